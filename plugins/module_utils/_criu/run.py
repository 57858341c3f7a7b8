# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs CRIU to its end, whatever becomes of the caller.

    caller --- a parent for it, in a session of its own --- criu, in a session of its own

The one in between waits for CRIU, tells its exit status and ends. It is there for trees that CRIU restores as its
sibling: they are handed on to init by the end of a process of another session, which the kernel takes no notice of.
"""

from __future__ import annotations

import os
import select
import signal
import tempfile
import time
from dataclasses import dataclass
from typing import IO, Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import namespace, watch
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive, read_identity

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Of a log: the kernel's and CRIU's versions stand at its head, what went wrong at its tail.
HEAD_BYTES = 64 << 10
TAIL_BYTES = 1 << 20
_GO = b"g"
_NOT_BEGUN = 125
#: Seconds between two looks at a CRIU that is at work.
_PAUSE = 0.01


@dataclass(frozen=True)
class Run:
    """rc: exit status, negative for a signal; None: it goes on still, or nobody knows. What is in /proc and in the
    image counts, not this. log: head and tail. seconds: how long it took. note: what `before` had to say."""

    rc: Optional[int]
    log: str
    seconds: float
    note: str


def run(
    argv: Sequence[str],
    log_path: str,
    seconds: float = 0.0,
    before: Optional[Callable[[int], str]] = None,
    meanwhile: Optional[Callable[[int], bool]] = None,
    new_namespace: bool = False,
    dumps: bool = False,
) -> Run:
    """log_path: where CRIU is told to write its log, absolute; what is there is removed. seconds: how long to wait, 0
    for as long as it takes; past them CRIU goes on. before: called with its PID before it begins. meanwhile: called
    with it again and again while it is at work, until it returns True; must not raise. new_namespace: in a PID
    namespace of its own, whose first process is its parent; see namespace.py. dumps: it does, and is watched, so that
    its death costs no process (`watch`); it has ended when this returns, whatever that takes. A dump is in no new
    namespace.

    Raises CriuError when it can't be started; what `before` raises, then it has not begun.
    """
    _remove(log_path)
    began = time.monotonic()
    with _scratch() as out:
        child, told, go = _start(argv, out, new_namespace, dumps)
        begun = False
        try:
            with os.fdopen(told, "rb", buffering=0) as answers:
                criu = _first_child(answers) if new_namespace else int(_line(answers, None) or 0)
                if not criu:
                    raise _not_started(argv, _read(out).strip() or "no process for it could be made")
                identity = read_identity(criu)
                note = before(criu) if before is not None else ""
                begun = os.write(go, _GO) == 1
                end = began + seconds if seconds and not dumps else None
                if meanwhile is not None:
                    _meanwhile(answers, end, meanwhile, criu)
                status = _line(answers, end)
                while dumps and not status and identity is not None and is_alive(identity):
                    time.sleep(_PAUSE)  # who waited for it has been killed
        finally:
            os.close(go)
            if not begun:
                _reap(child)
        took = time.monotonic() - began
        if status is not None:
            _reap(child)
        words = read_log(log_path) or _read(out)
    rc = int(status) if status else None
    if rc == _NOT_BEGUN:
        raise _not_started(argv, words.strip() or "it could not be executed")
    return Run(rc, words, took, note)


def _first_child(answers: IO[bytes]) -> int:
    """Two lines, in either order: who is the first process of the namespace, and that CRIU is there. 0 for neither."""
    lines = [_line(answers, None) or b"" for _number in range(2)]
    first = next((int(line) for line in lines if line.strip().isdigit()), 0)
    return namespace.child_of(first) if first and namespace.READY + b"\n" in lines else 0


def _reap(child: int) -> None:
    """Its end hands on to init what CRIU has restored."""
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        return  # the caller ignores SIGCHLD, so the kernel has done it


def _start(argv: Sequence[str], out: IO[bytes], new_namespace: bool, dumps: bool) -> Tuple[int, int, int]:
    """Its parent's PID, what that tells, and what lets it begin."""
    environment = _environment()
    told, tell = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _between(argv, environment, out.fileno(), tell, wait, new_namespace, dumps)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(wait)
    return child, told, go


def _between(
    argv: Sequence[str],
    environment: Dict[str, str],
    out: int,
    tell: int,
    wait: int,
    new_namespace: bool,
    dumps: bool,
) -> None:
    os.setsid()
    _reset_signals()
    os.chdir("/")
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    close_all(frozenset((0, 1, 2, tell, wait)))

    def become() -> None:
        try:
            _become(argv, environment, tell, wait)
        finally:
            os._exit(_NOT_BEGUN)

    if new_namespace:
        try:
            os.write(tell, b"%d\n" % namespace.start(become, tell, environment))
        except OSError as error:
            os.write(2, f"a PID namespace can't be made: {error}\n".encode())
        return
    criu = os.fork()
    if criu == 0:
        become()
    os.close(wait)
    os.write(tell, b"%d\n" % criu)
    status = watch.wait(criu) if dumps else os.waitpid(criu, 0)[1]
    os.write(tell, b"%d\n" % (-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)))


def _become(argv: Sequence[str], environment: Dict[str, str], tell: int, wait: int) -> None:
    os.close(tell)
    os.setsid()
    if os.read(wait, 1) != _GO:
        return  # the caller is gone
    os.close(wait)
    try:
        os.execve(argv[0], list(argv), environment)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())


def _reset_signals() -> None:
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # SIGKILL, SIGSTOP and those of the C library
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def close_all(keep: FrozenSet[int]) -> None:
    """Every descriptor but these."""
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number not in keep:
            try:
                os.close(number)
            except OSError:  # the listing's own
                continue


def _environment() -> Dict[str, str]:
    """What CRIU's libraries and helpers (iptables, nft, tar) need, and nothing that changes what it does."""
    wanted = {"PATH": PATH, "LC_ALL": "C"}
    libraries = os.environ.get("LD_LIBRARY_PATH")
    if libraries:
        wanted["LD_LIBRARY_PATH"] = libraries
    return wanted


def _line(stream: IO[bytes], end: Optional[float]) -> Optional[bytes]:
    """b"" when nothing more comes; None past `end` (time.monotonic())."""
    line = b""
    while not line.endswith(b"\n"):
        left = None if end is None else end - time.monotonic()
        if left is not None and (left <= 0 or not select.select([stream], [], [], left)[0]):
            return None
        piece = stream.read(1)
        if not piece:
            return b""
        line += piece
    return line


def _meanwhile(stream: IO[bytes], end: Optional[float], look: Callable[[int], bool], criu: int) -> None:
    """Until there is something to read, the time is over, or nothing more to look for."""
    while not select.select([stream], [], [], _PAUSE)[0]:
        if look(criu) or (end is not None and time.monotonic() > end):
            return


def _remove(path: str) -> None:
    """CRIU would follow a link, and append to what is there. Raises CriuError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CriuError(
            path,
            f"it can't be removed: {error.strerror}",
            "CRIU's log is to be written there",
            "Remove it by hand",
        ) from None


def read_log(path: str) -> str:
    """Head and tail; "" where there is none."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(HEAD_BYTES)
            size = os.fstat(stream.fileno()).st_size
            if size <= HEAD_BYTES + TAIL_BYTES:
                return _text([head, stream.read(TAIL_BYTES)])
            stream.seek(size - TAIL_BYTES)
            left_out = b"\n... %d bytes left out ...\n" % (size - HEAD_BYTES - TAIL_BYTES)
            return _text([head, left_out, stream.read(TAIL_BYTES)])
    except OSError:
        return ""


def _text(pieces: List[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", "replace")


def _scratch() -> IO[bytes]:
    """For what CRIU says before it has a log. A file, so that it never waits for a reader."""
    try:
        return os.fdopen(os.memfd_create("criu"), "w+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()


def _read(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read(HEAD_BYTES).decode("utf-8", "replace")


def _not_started(argv: Sequence[str], evidence: str) -> CriuError:
    return CriuError(
        argv[0],
        evidence,
        "Without CRIU there is no image",
        "Run it by hand, with --version, as root",
        "criu_executable",
    )
