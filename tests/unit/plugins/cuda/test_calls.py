# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A call on its way: it blocks nobody, keeps nobody, and loses nothing."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.call import ThreadCall, not_made
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply

ROOT = Path(__file__).resolve().parents[4]
DONE = Reply(True, 0, "no error", 0.0, state="running")


def test_a_call_is_polled_and_waited_for() -> None:
    gate = threading.Event()

    def work() -> Reply:
        gate.wait(30)
        return DONE

    call = ThreadCall(work, "test")
    began = time.monotonic()
    assert call.poll() is None
    assert call.wait(-1) is None
    assert time.monotonic() - began < 5
    assert call.wait(0.05) is None
    assert time.monotonic() - began >= 0.05
    gate.set()
    reply = call.wait(float("inf"))
    assert reply is not None and (reply.ok, reply.state) == (True, "running")
    assert reply.seconds >= 0.05
    assert call.poll() is reply and call.wait(0) is reply


def test_an_answer_wakes_the_waiter_at_once() -> None:
    gate = threading.Event()

    def work() -> Reply:
        gate.wait(30)
        return DONE

    call = ThreadCall(work, "test")
    threading.Timer(0.05, gate.set).start()
    began = time.monotonic()
    assert call.wait(20) is not None
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "error,text",
    [
        (
            OSError("libcuda.so.1: cannot open shared object file"),
            "OSError: libcuda.so.1: cannot open shared object file",
        ),
        (AttributeError("undefined symbol: x"), "AttributeError: undefined symbol: x"),
    ],
)
def test_an_error_in_the_thread_comes_back(error: Exception, text: str) -> None:
    def work() -> Reply:
        raise error

    reply = ThreadCall(work, "test").wait(30)
    assert reply is not None
    assert (reply.ok, reply.code, reply.text) == (False, None, text)


def test_a_thread_that_cannot_start_is_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    reply = ThreadCall(lambda: DONE, "test").poll()
    assert reply is not None
    assert (reply.ok, reply.text) == (False, "the call was not made: can't start new thread")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_not_made() -> None:
    assert not_made("no") == Reply(False, None, "no", 0.0)


def test_signals_go_to_the_caller_and_not_to_the_thread() -> None:
    masks = []

    def work() -> Reply:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return DONE

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    ThreadCall(work, "test").wait(30)
    assert {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGUSR1} <= set(masks[0])
    assert signal.SIGSEGV not in masks[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert not before & {signal.SIGTERM, signal.SIGUSR1}


HUNG = """
import os, sys, time, threading
sys.path[:0] = [{tree!r}]
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.call import ThreadCall
reader, writer = os.pipe()
def work():
    os.write(writer, b"x")
    time.sleep(1000)
call = ThreadCall(work, "hung")
os.read(reader, 1)
assert call.wait(0.01) is None
{end}
"""


@pytest.mark.parametrize("end,status", [("os._exit(7)", 7), ("sys.exit(8)", 8), ("", 0)])
def test_a_call_that_never_comes_back_keeps_no_process_from_ending(end: str, status: int) -> None:
    script = HUNG.format(tree=str(ROOT / "build/tree"), end=end)
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == status


def test_a_worker_that_was_forked_makes_its_own_calls() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            reply = ThreadCall(lambda: DONE, "in the worker").wait(20)
            os.write(writer, b"y" if reply is not None and reply.ok else b"n")
        finally:
            os._exit(0)
    os.close(writer)
    try:
        assert select.select([reader], [], [], 30)[0]
        assert os.read(reader, 1) == b"y"
    finally:
        os.close(reader)
        os.waitpid(child, 0)
