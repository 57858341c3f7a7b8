# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong: how it is done to a host, how an operator mends the cause, and whom it may cost its life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.faults.points import DRAIN, DUMP, PARKED, POINTS, RESTORE, RESUME, SUSPEND, UNDO, Point, all_steps
from tests.system.striking import python

#: Whom a fault may kill. MEMORY: whatever is not in a whole image when the host goes down.
NOBODY, ONE, BOTH, MEMORY = "nobody", "one", "both", "memory"
#: How many of a host's workloads that may be.
COSTS = {NOBODY: 0, ONE: 1, BOTH: 2, MEMORY: 3}
LIVE = (SUSPEND, RESUME, DUMP, RESTORE)
FLEET = (DRAIN, UNDO)
EVERY = (*LIVE, *FLEET)
DATABASE = "/var/lib/gpufleet/checkpoint.db"


@dataclass(frozen=True)
class Fault:
    """script: run on the host, as root; PIDS are the workloads, and OURS the one whose step it is. outside: what is
    done from elsewhere while the step waits: "reboot", "power", "playbook", "cable", "operator". heal: what the
    operator does about it before anything else. costs: whom it may kill by itself. steps: at which alone, () for all of
    the ways. delays: further ones. by_hand: with the journal, `recover` has lost what it goes by; the operator follows
    docs/journal.md.
    """

    name: str
    what: str
    ways: tuple[str, ...]
    script: str = ""
    outside: str = ""
    heal: str = ""
    costs: str = NOBODY
    steps: tuple[str, ...] = ()
    delays: tuple[float, ...] = ()
    clock: float = 0.0
    variables: Mapping[str, object] = field(default_factory=dict)
    by_hand: bool = False

    def points(self) -> tuple[Point, ...]:
        found = [point for point in POINTS if point.way in self.ways and (not self.steps or point.step in self.steps)]
        more = [Point(point.way, point.step, delay) for point in found if not point.delay for delay in self.delays]
        if self.delays:
            found = [point for point in found if not point.delay]
        if self.outside or self.clock:
            # What is done while the step waits has no moment within it.
            found = [point for point in found if not point.delay]
        return (*found, *more)


_CLI = {"gpu_suspend_backend": "cli", "gpu_restore_backend": "cli"}
_CALLS = ("process:lock", "process:checkpoint", "process:restore", "process:unlock")
_CONTINUE = "for _ in $(seq 100); do kill -CONT ${OURS:-$PIDS}; done; true"
_LET_GO_ON = (
    "for pid in $PIDS; do grep -q '^State:.T' /proc/$pid/status 2>/dev/null"
    " && ls -l /proc/$pid/fd | grep -q /dev/nvidia && kill -CONT $pid; done; true"
)
_HOG = (
    "free=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits | head -n 1)\n"
    "setsid -f gpusim-workload --vram $((free - 24)) --out /run/faults.hog </dev/null >/run/faults.hog.log 2>&1\n"
    "for _ in $(seq 200); do [ -s /run/faults.hog.pid ] && break; sleep 0.02; done"
)
_REPLACE = """
import ctypes, os, signal, time
pid = int(os.environ["PIDS"].split()[0])
os.kill(pid, signal.SIGKILL)
end = time.monotonic() + 10
while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
    time.sleep(0.002)
# clone3 with set_tid, as CRIU does it
wanted = (ctypes.c_int32 * 1)(pid)
told = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1, 0)
made = ctypes.CDLL(None, use_errno=True).syscall(435, told, ctypes.sizeof(told))
if made == 0:
    os.setsid()
    os.execv("/bin/sleep", ["sleep", "900"])
"""
_DEBUGGER = """
import ctypes, os, sys, time
c = ctypes.CDLL(None, use_errno=True)
for pid in map(int, os.environ["PIDS"].split()):
    if os.fork() == 0:
        os.setsid()
        if c.ptrace(16, pid, None, None) == 0:
            os.waitpid(pid, 0x40000000)
            time.sleep(3)
            c.ptrace(17, pid, None, None)
        os._exit(0)
time.sleep(0.2)
"""
_VERSION = """
import sqlite3
c = sqlite3.connect("/var/lib/gpufleet/checkpoint.db", isolation_level=None, timeout=30)
if {keep}:
    open("/run/faults.version", "w").write(str(c.execute("PRAGMA user_version").fetchone()[0]))
{setting}
"""
_LOCK_JOURNAL = f"""
import sqlite3, subprocess, sys
code = '''
import sqlite3, time
c = sqlite3.connect({DATABASE!r}, isolation_level=None)
c.execute("BEGIN EXCLUSIVE")
time.sleep(4)
'''
subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
"""


def _killed(name: str, what: str, script: str, ways: tuple[str, ...] = EVERY) -> Fault:
    return Fault(name, what, ways, script)


FAULTS: tuple[Fault, ...] = (
    _killed("module", "SIGKILL of the module", "kill -9 $MODULE"),
    _killed("holder", "SIGKILL of the worker that holds the process", "kill -9 $WORKER", LIVE),
    _killed("both", "SIGKILL of the module and of its worker at once", "kill -9 $MODULE $WORKER", LIVE),
    _killed("session", "SIGKILL of the SSH session", "kill -9 $SESSION"),
    Fault(
        "criu",
        "SIGKILL of CRIU",
        (DUMP, RESTORE),
        "pkill -9 -x criu; true",
        steps=("image:dump", "image:restore"),
        delays=(0.01, 0.03, 0.06, 0.1, 0.15),
    ),
    Fault(
        "cuda-checkpoint",
        "SIGKILL of cuda-checkpoint, called in place of the library",
        (SUSPEND, RESUME),
        "pkill -9 -x cuda-checkpoint; true",
        steps=_CALLS,
        delays=(0.02, 0.1),
        variables=_CLI,
    ),
    Fault("playbook", "SIGKILL of ansible-playbook and all that it started", EVERY, outside="playbook"),
    Fault("operator", "a second operator runs the same playbook", LIVE, outside="operator"),
    Fault("cable", "the network is gone for good, and comes back after the controller gave up", EVERY, outside="cable"),
    Fault("reboot", "the host reboots", (*EVERY, PARKED), outside="reboot", costs=MEMORY),
    Fault(
        "power", "the host loses its power, and what was not synced", (*EVERY, PARKED), outside="power", costs=MEMORY
    ),
    Fault(
        "SIGCONT",
        "a stranger's SIGCONT, a hundred times",
        (*LIVE, PARKED),
        _CONTINUE,
        steps=tuple({*all_steps(), ""} - {"image:dump"}),
    ),
    Fault(
        "SIGCONT at CRIU",
        "the same while CRIU attaches, or has just let go: what has a guard it can't dump",
        (DUMP,),
        _CONTINUE,
        steps=("image:dump",),
        costs=ONE,
    ),
    Fault(
        "SIGTERM",
        "a stranger's SIGTERM to one of the processes",
        (SUSPEND, RESUME, PARKED),
        "kill -TERM ${PIDS%% *}; true",
        costs=ONE,
    ),
    Fault(
        "SIGSTOP",
        "a stranger's SIGSTOP",
        (SUSPEND, RESUME, PARKED),
        "kill -STOP $PIDS; true",
        heal=_LET_GO_ON,
    ),
    Fault(
        "debugger",
        "a debugger attaches, and detaches after 3 s",
        (SUSPEND, RESUME, PARKED),
        python(_DEBUGGER),
        heal=f"sleep 3; {_LET_GO_ON}",
    ),
    Fault(
        "disk",
        "the disk is full",
        (*EVERY, PARKED),
        "for size in 1M 4k; do dd if=/dev/zero of=/var/lib/filler.$size bs=$size status=none 2>/dev/null; done; true",
        heal="rm -f /var/lib/filler.*",
    ),
    Fault(
        "gpu",
        "another process takes the memory of the GPU between the check and the restore",
        (RESUME, RESTORE, PARKED),
        _HOG,
        heal="kill -9 $(cat /run/faults.hog.pid); sleep 0.5; rm -f /run/faults.hog*; true",
        steps=("process:seize", "process:mask", "image:verify", "image:restore", ""),
        costs=BOTH,
    ),
    Fault(
        "memory",
        "the host has no memory for a copy (the limit of the process stands for it)",
        (SUSPEND, DUMP),
        "for pid in $PIDS; do prlimit --data=$((16 << 20)):unlimited --pid $pid; done; true",
        heal="for pid in $PIDS; do prlimit --data=unlimited:unlimited --pid $pid 2>/dev/null; done; true",
        steps=("process:lock", "process:mask", "process:checkpoint", "image:stop", "image:suspend"),
    ),
    Fault("exit", "one of the processes ends", (*LIVE, PARKED), "kill -9 ${PIDS%% *} 2>/dev/null; true", costs=ONE),
    Fault(
        "replaced",
        "one of the processes ends, and another one gets its PID",
        (SUSPEND, RESUME, PARKED),
        python(_REPLACE),
        heal="pkill -9 -x sleep; true",
        costs=ONE,
    ),
    Fault("clock ahead", "the clock jumps a day ahead", EVERY, clock=86400.0),
    Fault("clock back", "the clock jumps a day back", EVERY, clock=-86400.0),
    Fault("journal locked", "somebody has the journal locked for 4 s", EVERY, python(_LOCK_JOURNAL) + "\nsleep 0.3"),
    Fault(
        "journal read-only",
        "the file system of the journal becomes read-only",
        EVERY,
        "mount --bind /var/lib/gpufleet /var/lib/gpufleet && mount -o remount,ro,bind /var/lib/gpufleet",
        heal="umount /var/lib/gpufleet",
    ),
    Fault(
        "journal newer",
        "a newer release has written the journal",
        EVERY,
        python(_VERSION.format(setting="c.execute('PRAGMA user_version = 999')", keep=1)),
        heal=python(
            _VERSION.format(setting="c.execute('PRAGMA user_version = ' + open('/run/faults.version').read())", keep=0)
        ),
    ),
    Fault(
        "journal damaged",
        "the journal is damaged",
        (RESUME, RESTORE, PARKED),
        f"dd if=/dev/urandom of={DATABASE} bs=64 count=1 conv=notrunc status=none; rm -f {DATABASE}-wal {DATABASE}-shm",
        heal=f"mkdir -p /root/damaged && mv {DATABASE}* /root/damaged",
        by_hand=True,
    ),
)
#: What is not in the matrix.
LEFT_OUT: Mapping[str, str] = {
    "a journal that is damaged on the way out": "refused like one that is read-only: nothing is begun without it",
    "a control group whose limit sinks during a copy": "the kernel kills the process, whoever copies; the gate before "
    "it: tests/system/test_cuda_checkpoint_refusals.py",
    "a host without memory": "it would take the tests with it; a limit of the process stands for it (`memory`)",
}
