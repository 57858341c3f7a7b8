# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PID 1 of a host without systemd, run by the host's own Python.

It sets up the simulated GPU, runs sshd, reaps every orphan at once (a restored process needs its PID free), and ends
the host on the signals that systemd takes: SIGRTMIN+4 powers off, SIGRTMIN+5 reboots.
"""

import ctypes
import os
import signal
import sys
import time

SETUP = "/usr/lib/gpusim/setup"
SSHD = ["/usr/sbin/sshd", "-D", "-e"]
POWER_OFF = signal.SIGRTMIN + 4
REBOOT = signal.SIGRTMIN + 5
WAITED = {signal.SIGCHLD, POWER_OFF, REBOOT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
LINUX_REBOOT = {POWER_OFF: 0x4321FEDC, REBOOT: 0x01234567}
GRACE = 5.0


def start(argv: list[str]) -> int:
    # Python ignores SIGPIPE and SIGXFSZ; what runs in the host must not.
    reset = [signal.SIGPIPE, signal.SIGXFSZ]
    return os.posix_spawn(argv[0], argv, dict(os.environ), setsigmask=[], setsigdef=reset, setsid=True)


def reap() -> list[int]:
    """The PIDs of all children that have ended."""
    ended: list[int] = []
    while True:
        try:
            pid, _dummy = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append(pid)


def others_left() -> bool:
    try:
        os.kill(-1, 0)
    except ProcessLookupError:
        return False
    return True


def end_all() -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE
        try:
            os.kill(-1, number)
            os.kill(-1, signal.SIGCONT)
        except ProcessLookupError:
            return
        while others_left() and time.monotonic() < deadline:
            reap()
            time.sleep(0.01)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
    if os.access(SETUP, os.X_OK):
        _dummy, status = os.waitpid(start([SETUP]), 0)
        if status != 0:
            sys.exit(f"init: {SETUP} ended with status {os.waitstatus_to_exitcode(status)}")
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    sshd, started = start(SSHD), time.monotonic()
    while True:
        number = signal.sigwait(WAITED)
        if number in LINUX_REBOOT:
            end_all()
            ctypes.CDLL(None).reboot(LINUX_REBOOT[number])
        if sshd in reap():
            print("init: sshd ended; starting it again", file=sys.stderr, flush=True)
            time.sleep(max(0.0, started + 1 - time.monotonic()))  # not in a tight loop
            sshd, started = start(SSHD), time.monotonic()


main()
