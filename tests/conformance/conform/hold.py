# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold every thread of a CUDA process but its restore thread while the driver works, and leave it parked.

For tests only. Meant to be run in a child: the kernel detaches everything when that child ends, so that a holder
that is killed at any step leaves a stopped process ("stop first": SIGSTOP comes before the first seize, and SIGCONT
after the last driver call).
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Callable, List, Optional, Set

from . import proc
from .backend import Pending, Reply

_SEIZE, _INTERRUPT, _CONT, _DETACH, _GETEVENTMSG = 0x4206, 0x4207, 7, 17, 0x4201
_TRACECLONE = 0x8
_EVENT_CLONE, _EVENT_STOP = 3, 128
_WALL = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class HoldError(RuntimeError):
    """The process could not be held, or not let go, in time."""


def _ptrace(request: int, tid: int, data: int = 0) -> int:
    return 0 if _libc.ptrace(request, tid, None, data) == 0 else ctypes.get_errno()


def _event_message(tid: int) -> int:
    value = ctypes.c_ulong(0)
    _libc.ptrace(_GETEVENTMSG, tid, None, ctypes.cast(ctypes.byref(value), ctypes.c_void_p))
    return int(value.value)


def _wait(tid: int, end: float) -> Optional[int]:
    """The next status of one tracee; None past the deadline, -1 when it is gone."""
    pause = 0.0002
    while True:
        try:
            got, status = os.waitpid(tid, _WALL | os.WNOHANG)
        except ChildProcessError:
            return -1
        if got:
            return status
        if time.monotonic() > end:
            return None
        time.sleep(pause)
        pause = min(pause * 2, 0.005)


class Hold:
    def __init__(self, pid: int, restore_tid: int, seconds: float = 30) -> None:
        self.pid = pid
        self.restore_tid = restore_tid
        self.end = time.monotonic() + seconds
        self.held: Set[int] = set()
        self.created: Set[int] = set()

    def _left(self, most: float) -> float:
        return min(self.end, time.monotonic() + most)

    def stop(self) -> None:
        """SIGSTOP, and wait until every task has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        while True:
            moving = [tid for tid in proc.threads_of(self.pid) if _task_state(self.pid, tid) not in "TtZX"]
            if not moving:
                return
            if time.monotonic() > self.end:
                raise HoldError(f"threads {moving} of {self.pid} did not stop")
            time.sleep(0.001)

    def seize(self) -> None:
        """Every thread, until two scans in a row find nothing new."""
        quiet = 0
        while quiet < 2:
            new = [
                tid
                for tid in proc.threads_of(self.pid)
                if tid not in self.held and _task_state(self.pid, tid) not in "ZX"
            ]
            quiet = 0 if new else quiet + 1
            for tid in new:
                error = _ptrace(_SEIZE, tid, _TRACECLONE)
                if error == 3:  # ESRCH: ended in between
                    continue
                if error:
                    raise HoldError(f"thread {tid} of {self.pid}: seize: {os.strerror(error)}")
                self.held.add(tid)
                status = _wait(tid, time.monotonic() + 0.1)
                if status is None:
                    _ptrace(_INTERRUPT, tid)
                    status = _wait(tid, self._left(120 if tid == self.restore_tid else 20))
                if status is None:
                    raise HoldError(f"thread {tid} did not stop under ptrace: {_describe(self.pid, tid)}")
                if status == -1 or os.WIFEXITED(status) or os.WIFSIGNALED(status):
                    self.held.discard(tid)
            if time.monotonic() > self.end:
                raise HoldError(f"{self.pid}: its threads could not all be held in time")

    def go(self) -> None:
        """Let the restore thread run, and nobody else."""
        error = _ptrace(_CONT, self.restore_tid)
        if error:
            raise HoldError(f"restore thread {self.restore_tid}: continue: {os.strerror(error)}")

    def _serve(self, tid: int) -> None:
        """Pass on what a running tracee reports."""
        try:
            got, status = os.waitpid(tid, _WALL | os.WNOHANG)
        except ChildProcessError:
            self.held.discard(tid)
            self.created.discard(tid)
            return
        if not got:
            return
        if not os.WIFSTOPPED(status):
            self.held.discard(tid)
            self.created.discard(tid)
            if tid == self.restore_tid:
                raise HoldError(f"restore thread {tid} ended: status {status:#x}")
            return
        event = status >> 16
        if event == _EVENT_CLONE:
            self.created.add(_event_message(tid))
        _ptrace(_CONT, tid, 0 if event else os.WSTOPSIG(status))

    def during(self, start: Callable[[], Pending], seconds: float) -> Optional[Reply]:
        """The reply of a driver call made while only the restore thread runs."""
        pending = start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for tid in [self.restore_tid, *sorted(self.created)]:
                self._serve(tid)
            reply = pending.wait(0.002)
            if reply is not None:
                return reply
        return None

    def play(self, steps: List[Callable[[], Pending]], seconds: float) -> List[Optional[Reply]]:
        """One call after the other while only the restore thread runs, up to the first that gives no answer."""
        self.go()
        replies: List[Optional[Reply]] = []
        for step in steps:
            replies.append(self.during(step, seconds))
            if replies[-1] is None:
                break
        return replies

    def settle(self) -> None:
        """Stop the restore thread and its children at a stop from which a detach swallows no signal."""
        for tid in [self.restore_tid, *sorted(self.created)]:
            _ptrace(_INTERRUPT, tid)
            while True:
                status = _wait(tid, self._left(10))
                if status is None:
                    raise HoldError(f"thread {tid} of {self.pid} did not settle")
                if status == -1 or not os.WIFSTOPPED(status):
                    self.created.discard(tid)
                    break
                if status >> 16 == _EVENT_STOP:
                    self.held.add(tid)
                    break
                if status >> 16 == _EVENT_CLONE:
                    self.created.add(_event_message(tid))
                _ptrace(_CONT, tid, 0 if status >> 16 else os.WSTOPSIG(status))

    def detach(self) -> None:
        for tid in sorted(self.held):
            _ptrace(_DETACH, tid)
        self.held.clear()


def _task_state(pid: int, tid: int) -> str:
    try:
        with open(f"/proc/{pid}/task/{tid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def _describe(pid: int, tid: int) -> str:
    """Why a thread does not stop: its name, state, and where in the kernel it is."""
    words = []
    for name in ("comm", "wchan", "syscall", "stack"):
        try:
            with open(f"/proc/{pid}/task/{tid}/{name}") as stream:
                words.append(f"{name} {stream.read().strip()}")
        except OSError as error:
            words.append(f"{name}: {error.strerror}")
    return f"state {_task_state(pid, tid)}; " + "; ".join(words)


def _results(replies: List[Optional[Reply]]) -> List[object]:
    return [None if reply is None else reply.result for reply in replies]


def _answers(replies: List[Optional[Reply]]) -> List[object]:
    return [
        None if reply is None else {"result": reply.result, "ok": reply.ok, "value": reply.value} for reply in replies
    ]


def suspend(pid: int, restore_tid: int, checkpoint: Callable[[], Pending], seconds: float) -> List[object]:
    """The process is locked already. [result of checkpoint]; the process is left parked."""
    hold = Hold(pid, restore_tid, seconds)
    hold.stop()
    hold.seize()
    replies = hold.play([checkpoint], seconds)
    hold.settle()
    os.kill(pid, signal.SIGSTOP)  # a SIGCONT from elsewhere has cancelled the first one
    hold.detach()
    return _results(replies)


def resume(pid: int, restore_tid: int, steps: List[Callable[[], Pending]], seconds: float) -> List[object]:
    """Restore and unlock of a parked process: SIGCONT comes last."""
    hold = Hold(pid, restore_tid, seconds)
    hold.seize()
    replies = hold.play(steps, seconds)
    hold.settle()
    os.kill(pid, signal.SIGCONT)
    hold.detach()
    return _results(replies)


def alone(pid: int, restore_tid: int, steps: List[Callable[[], Pending]], seconds: float) -> List[object]:
    """Stop the process, make these calls while only the restore thread runs, let it go on."""
    hold = Hold(pid, restore_tid, seconds * (len(steps) + 1))
    hold.stop()
    hold.seize()
    replies = hold.play(steps, seconds)
    hold.settle()
    os.kill(pid, signal.SIGCONT)
    hold.detach()
    return _answers(replies)


def finish(pid: int, restore_tid: int, steps: List[Callable[[], Pending]], seconds: float) -> List[object]:
    """Of a process that is stopped already: make these calls while only the restore thread runs, leave it stopped."""
    hold = Hold(pid, restore_tid, seconds)
    hold.seize()
    replies = hold.play(steps, seconds)
    hold.settle()
    os.kill(pid, signal.SIGSTOP)
    hold.detach()
    return _answers(replies)


def watch(pid: int, seconds: float) -> None:
    """Seize every thread and let it run, passing its signals on, until killed or out of time."""
    end = time.monotonic() + seconds
    seized: Set[int] = set()
    while time.monotonic() < end:
        for tid in proc.threads_of(pid):
            if tid not in seized and _ptrace(_SEIZE, tid) == 0:
                seized.add(tid)
        for tid in sorted(seized):
            try:
                got, status = os.waitpid(tid, _WALL | os.WNOHANG)
            except ChildProcessError:
                seized.discard(tid)
                continue
            if got and os.WIFSTOPPED(status):
                _ptrace(_CONT, tid, 0 if status >> 16 else os.WSTOPSIG(status))
        time.sleep(0.005)
