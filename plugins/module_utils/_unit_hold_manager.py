# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd of this host: asked with systemctl, told about a watchdog through its notification socket, given drop-ins."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
from contextlib import contextmanager
from typing import Callable, Dict, Iterable, Iterator, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Command, Said
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import (
    DROP_IN,
    PROPERTIES,
    Service,
    service_from,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._units import parse_show

ASK_SECONDS = 10.0
#: systemd reads every unit anew.
RELOAD_SECONDS = 120.0
BARRIER_SECONDS = 10.0
# socket(7), unix(7); older Pythons have no names for them.
_SCM_RIGHTS, _SCM_CREDENTIALS = 1, 2


def _ask(argv: Sequence[str], limit: float) -> Said:
    return Command(argv).finish(limit)


class Manager:
    """units: where drop-ins of this boot go. ask: runs a program; for tests, as the paths."""

    def __init__(
        self,
        ask: Callable[[Sequence[str], float], Said] = _ask,
        units: str = "/run/systemd/system",
        notify: str = "/run/systemd/notify",
        lock: str = "/run/gpufleet/units.lock",
    ) -> None:
        self._ask = ask
        self._units = units
        self._notify = notify
        self._lock = lock

    @property
    def is_there(self) -> bool:
        """Does systemd run this host? (sd_booted)"""
        return os.path.isdir(self._units)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else of this collection changes units meanwhile. Raises OSError."""
        os.makedirs(os.path.dirname(self._lock), mode=0o700, exist_ok=True)
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def services(self, names: Iterable[str]) -> Dict[str, Service]:
        """Each by its name, in one call."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        properties = [f"--property={name}" for name in PROPERTIES]
        said = self._ask(["systemctl", "show", "--no-pager", *properties, "--", *wanted], ASK_SECONDS)
        blocks = parse_show(said.out)
        if said.problem or len(blocks) != len(wanted):
            problem = said.problem or next(iter(said.lines), "systemctl says nothing")
            return {name: Service(name, problem) for name in wanted}
        return {name: service_from(name, block) for name, block in zip(wanted, blocks)}

    def tell(self, pid: int, *lines: str) -> str:
        """A notification in the name of that process (sd_pid_notify(3)), which root may send. Returns why it could not
        be, "" once systemd has read it."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(BARRIER_SECONDS)
                channel.connect(self._notify)
                sender = struct.pack("3i", pid, 0, 0)
                channel.sendmsg(["\n".join(lines).encode()], [(socket.SOL_SOCKET, _SCM_CREDENTIALS, sender)])
                return _barrier(channel)
        except OSError as error:
            return f"{self._notify}: {error.strerror or error}"

    def reload(self) -> str:
        """Returns why not, "" when it is done."""
        said = self._ask(["systemctl", "daemon-reload"], RELOAD_SECONDS)
        if said.problem or said.status != 0:
            return f"systemctl daemon-reload: {said.problem or next(iter(said.lines), f'exit status {said.status}')}"
        return ""

    def drop_in(self, unit: str) -> str:
        """Its text, "" where there is none. Raises OSError."""
        try:
            with open(self._path(unit), encoding="utf-8") as stream:
                return stream.read()
        except FileNotFoundError:
            return ""

    def write(self, unit: str, text: str) -> None:
        """Whole or not at all; "" removes it. Raises OSError."""
        path = self._path(unit)
        directory = os.path.dirname(path)
        if not text:
            try:
                os.unlink(path)
                os.rmdir(directory)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                    raise
            return
        os.makedirs(directory, mode=0o755, exist_ok=True)
        # systemd reads what ends in .conf only.
        scratch = f"{path}.{os.getpid()}"
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                # The umask of who calls is not the file's business.
                os.fchmod(stream.fileno(), 0o644)
            os.rename(scratch, path)
        except BaseException:
            os.unlink(scratch)
            raise

    def _path(self, unit: str) -> str:
        if "/" in unit or not unit.endswith(".service"):
            raise ValueError(f"{unit!r} is no service")
        return os.path.join(self._units, f"{unit}.d", DROP_IN)


def _barrier(channel: socket.socket) -> str:
    """Wait until everything that was sent before has been read: systemd then closes what it is handed
    (sd_notify_barrier(3)). One older than 246 closes it, too, as something that it did not expect."""
    mine, theirs = os.pipe()
    try:
        try:
            handed = struct.pack("i", theirs)
            channel.sendmsg([b"BARRIER=1"], [(socket.SOL_SOCKET, _SCM_RIGHTS, handed)])
        finally:
            os.close(theirs)
        waiting = select.poll()
        waiting.register(mine, 0)
        return "" if waiting.poll(BARRIER_SECONDS * 1000) else f"systemd reads nothing for {BARRIER_SECONDS:g} s"
    finally:
        os.close(mine)
