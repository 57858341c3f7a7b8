# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command lines of cuda-checkpoint, and how it is run."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import cli, tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.cli import Cli
from tests.unit.plugins.cuda.fake import Exchange, FakeTool

ROOT = Path(__file__).resolve().parents[4]
A, B = "GPU-00000000-0000-4000-8000-00000000000a", "GPU-00000000-0000-4000-8000-00000000000b"
ALL = frozenset(
    ("--help", "--toggle", "--pid", "--get-state", "--get-restore-tid", "--action", "--timeout", "--device-map")
)


@contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    "call,request_,words",
    [
        ("state", tool.Request(7), ["--get-state", "--pid", "7"]),
        ("restore_thread", tool.Request(7), ["--get-restore-tid", "--pid", "7"]),
        ("lock", tool.Request(7, "lock"), ["--action", "lock", "--pid", "7"]),
        ("lock", tool.Request(7, "lock", 1500), ["--action", "lock", "--pid", "7", "--timeout", "1500"]),
        ("checkpoint", tool.Request(7, "checkpoint"), ["--action", "checkpoint", "--pid", "7"]),
        ("restore", tool.Request(7, "restore"), ["--action", "restore", "--pid", "7"]),
        (
            "restore",
            tool.Request(7, "restore", device_map=((A, B), (B, A))),
            ["--action", "restore", "--pid", "7", "--device-map", f"{A}={B},{B}={A}"],
        ),
        ("unlock", tool.Request(7, "unlock"), ["--action", "unlock", "--pid", "7"]),
    ],
)
def test_command_lines(call: str, request_: tool.Request, words: list[str]) -> None:
    assert tool.argv("/usr/bin/x", cli.OPTIONS[call], request_) == ["/usr/bin/x", *words]


def test_every_option_has_one_formatter() -> None:
    used = {option for options in cli.OPTIONS.values() for option in options}
    assert used | {"--toggle"} == set(tool.FORMATTERS)


@pytest.mark.parametrize(
    "request_,words",
    [
        (tool.Request(0), "0 is no PID"),
        (tool.Request(-7), "-7 is no PID"),
        (tool.Request(7, "lock", -1), "timeout of a lock: -1 ms is negative"),
        (tool.Request(7, "restore", device_map=((A, ""),)), "'' is no GPU UUID"),
        (tool.Request(7, "restore", device_map=((A + ",x", B),)), f"'{A},x' is no GPU UUID"),
        (tool.Request(7, "restore", device_map=(("0", "1"),)), "'0' is no GPU UUID"),
        (tool.Request(7, "restore", device_map=((A + "\n", B),)), "is no GPU UUID"),
    ],
)
def test_what_the_tool_would_misread_is_never_passed(request_: tool.Request, words: str) -> None:
    with pytest.raises(ValueError) as error:
        tool.argv("x", cli.OPTIONS["restore"], request_)
    assert words in str(error.value)


def backend(fake: FakeTool, options: frozenset[str] = ALL) -> Cli:
    return Cli(tool.Offer(str(fake.path), options, "580.1"))


@pytest.mark.parametrize(
    "lacking,call,arguments,text",
    [
        ("--get-restore-tid", "restore_thread", (), "has no --get-restore-tid"),
        ("--device-map", "restore", ([(A, B), (B, A)],), "has no --device-map"),
        ("--timeout", "lock", (500,), "has no --timeout"),
    ],
)
def test_an_option_that_the_help_does_not_list_is_never_used(
    lacking: str, call: str, arguments: tuple[Any, ...], text: str, tmp_path: Path
) -> None:
    fake = FakeTool(tmp_path, [])
    reply = getattr(backend(fake, ALL - {lacking}), call)(7, *arguments).wait(30)
    assert (reply.ok, reply.code) == (False, None)
    assert reply.text == f"{fake.path} (driver 580.1) {text}"
    fake.check()


def test_what_it_can_do_is_read_from_the_help() -> None:
    whole, without = Cli(tool.Offer("x", ALL, "")), Cli(tool.Offer("x", frozenset(cli.NEEDED), ""))
    assert (whole.name, whole.can_lock, whole.can_hold, whole.can_map) == ("cli", True, True, True)
    assert (without.can_lock, without.can_hold, without.can_map) == (True, False, False)


def test_without_a_device_map_or_a_timeout_no_option_is_missing(tmp_path: Path) -> None:
    fake = FakeTool(
        tmp_path, [Exchange(["--action", "restore", "--pid", "7"]), Exchange(["--action", "lock", "--pid", "7"])]
    )
    bare = backend(fake, frozenset(cli.NEEDED))
    assert bare.restore(7, ()).wait(30).ok  # type: ignore[union-attr]
    assert bare.lock(7, 0).wait(30).ok  # type: ignore[union-attr]
    fake.check()


def test_the_caller_s_locale_is_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    fake = FakeTool(tmp_path, [Exchange(["--get-state", "--pid", "7"], out="running\n")])
    reply = backend(fake).state(7).wait(30)
    assert reply is not None and reply.state == "running"
    fake.check()


def test_the_caller_s_input_is_not_passed_on(tmp_path: Path) -> None:
    fake = FakeTool(tmp_path, [Exchange(["--get-state", "--pid", "7"], out="running\n")])
    reader, writer = os.pipe()
    before = os.dup(0)
    os.dup2(reader, 0)
    try:
        reply = backend(fake).state(7).wait(30)
    finally:
        os.dup2(before, 0)
        for descriptor in (before, reader, writer):
            os.close(descriptor)
    assert reply is not None and reply.state == "running"
    fake.check()


def test_the_fake_refuses_what_it_does_not_expect(tmp_path: Path) -> None:
    fake = FakeTool(tmp_path, [Exchange(["--get-state", "--pid", "7"], out="running\n")])
    reply = backend(fake).state(8).wait(30)
    assert reply is not None and not reply.ok
    with pytest.raises(AssertionError, match="expected"):
        fake.check()


def test_a_call_does_not_block_and_is_not_cut_short(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fake = FakeTool(tmp_path, [Exchange(["--action", "checkpoint", "--pid", "7"], waits_for=str(gate))])
    call = backend(fake).checkpoint(7)
    assert call.poll() is None
    assert call.wait(0.3) is None
    gate.touch()
    reply = call.wait(30)
    assert reply is not None and reply.ok and reply.seconds >= 0.3
    fake.check()


def test_a_long_answer_does_not_stop_the_tool(tmp_path: Path) -> None:
    noise = "ERROR: ld.so: object 'x' from LD_PRELOAD cannot be preloaded: ignored.\n" * 5000
    fake = FakeTool(tmp_path, [Exchange(["--get-state", "--pid", "7"], out="running\n", err=noise)])
    reply = backend(fake).state(7).wait(30)
    assert reply is not None and reply.state == "running"
    fake.check()


@pytest.mark.parametrize("broken", ["missing", "refused"])
def test_output_is_kept_where_there_is_no_memory_file(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python built for an old C library has no memfd_create; vm.memfd_noexec can forbid it."""
    if broken == "missing":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(os, "memfd_create", lambda name: os.open("/nonexistent", os.O_RDONLY))
    used = []
    original = tempfile.TemporaryFile

    def temporary_file() -> Any:
        used.append(original())
        return used[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary_file)
    fake = FakeTool(tmp_path, [Exchange(["--get-state", "--pid", "7"], out="locked\n")])
    reply = backend(fake).state(7).wait(30)
    assert reply is not None and reply.state == "locked"
    assert len(used) == 2
    fake.check()


def test_a_child_that_somebody_else_reaps_is_judged_by_its_words(tmp_path: Path) -> None:
    refused = 'Could not lock on process ID 7: "device not ready"\n'
    fake = FakeTool(
        tmp_path,
        [
            Exchange(["--get-state", "--pid", "7"], out="running\n"),
            Exchange(["--action", "lock", "--pid", "7"], 1, err=refused),
            Exchange(["--action", "unlock", "--pid", "7"], 1, err="something odd\n"),
        ],
    )
    with ignored(signal.SIGCHLD):
        state = backend(fake).state(7).wait(30)
        lock = backend(fake).lock(7, 0).wait(30)
        unlock = backend(fake).unlock(7).wait(30)
    assert state is not None and state.state == "running"
    assert lock is not None and (lock.ok, lock.code) == (False, 600)
    assert unlock is not None and (unlock.ok, unlock.text) == (False, "something odd")
    fake.check()


def test_a_tool_that_is_killed_is_no_success(tmp_path: Path) -> None:
    fake = FakeTool(tmp_path, [Exchange(["--action", "lock", "--pid", "7"], -9)])
    reply = backend(fake).lock(7, 0).wait(30)
    assert reply is not None and (reply.ok, reply.text) == (False, "cuda-checkpoint was ended by signal 9")


def test_a_tool_that_is_gone_is_a_reply(tmp_path: Path) -> None:
    fake = FakeTool(tmp_path, [])
    fake.path.unlink()
    reply = backend(fake).checkpoint(7).wait(30)
    assert reply is not None and (reply.ok, reply.code) == (False, None)
    assert reply.text.startswith("FileNotFoundError") and str(fake.path) in reply.text


CALLER = """
import sys, time
sys.path[:0] = [{tree!r}]
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.cli import Cli
call = Cli(tool.Offer({path!r}, frozenset(("--action", "--pid")), "")).checkpoint(7)
time.sleep(1000)
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_tool_outlives_its_caller_and_the_caller_s_group(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fake = FakeTool(tmp_path, [Exchange(["--action", "checkpoint", "--pid", "7"], err="a word\n", waits_for=str(gate))])
    script = CALLER.format(tree=str(ROOT / "build/tree"), path=str(fake.path))
    caller = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    until(fake.pids)
    (pid,) = fake.pids()
    os.killpg(caller.pid, signal.SIGTERM)
    os.killpg(caller.pid, signal.SIGKILL)
    caller.wait(30)
    time.sleep(0.2)
    assert running(pid)
    gate.touch()
    until(lambda: not running(pid))
    fake.check()


def test_the_tool_starts_with_the_caller_s_signal_mask(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = [Exchange(["--get-state", "--pid", "7"], out="running\n", waits_for=str(gate))]
    fake = FakeTool(tmp_path, script)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        call = backend(fake).state(7)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    until(fake.pids)
    status = Path(f"/proc/{fake.pids()[0]}/status").read_text()
    gate.touch()
    (line,) = [line for line in status.splitlines() if line.startswith("SigBlk")]
    expected = sum(1 << (number - 1) for number in {*before, signal.SIGUSR2})
    assert int(line.split()[1], 16) == expected
    assert call.wait(30) is not None


# The probe


def test_probe_of_a_script_in_a_path_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "a b 'c"
    folder.mkdir()
    fake = FakeTool(folder, [Exchange(["--help"], out="Version 555.58.02.\n--action x --pid <pid>\n--get-state\n")])
    offer = tool.probe(str(fake.path))
    assert offer == tool.Offer(str(fake.path), frozenset(("--action", "--pid", "--get-state")), "555.58.02")
    fake.check()


def test_a_help_on_stderr_with_a_failing_status_counts_too(tmp_path: Path) -> None:
    fake = FakeTool(tmp_path, [Exchange(["--help"], 1, err="--toggle --pid <pid>\n")])
    assert tool.probe(str(fake.path)).options == {"--toggle", "--pid"}


@pytest.mark.parametrize(
    "exchange,words",
    [
        (
            Exchange(["--help"], 127, err="x: error while loading shared libraries: libcuda.so.1\n"),
            "error while loading",
        ),
        (Exchange(["--help"], 1), "exit status 1 without a word"),
        (Exchange(["--help"], -11), "exit status -11 without a word"),
        (Exchange(["--help"], 0, out="usage: sleep NUMBER\n"), "usage: sleep NUMBER"),
    ],
)
def test_a_tool_that_offers_nothing(exchange: Exchange, words: str, tmp_path: Path) -> None:
    fake = FakeTool(tmp_path, [exchange])
    with pytest.raises(tool.ToolError) as error:
        tool.probe(str(fake.path))
    assert str(error.value).startswith(f"{fake.path} --help lists neither --action nor --toggle, but says: ")
    assert words in str(error.value)
    assert error.value.there


def test_a_help_that_never_ends_has_a_deadline(tmp_path: Path) -> None:
    fake = FakeTool(tmp_path, [Exchange(["--help"], waits_for="/nonexistent/gate")])
    with pytest.raises(tool.ToolError) as error:
        tool.probe(str(fake.path), seconds=1.0)
    assert str(error.value) == f"{fake.path} --help gave no answer within 1 s"
    until(lambda: not any(running(pid) for pid in fake.pids()))


def test_an_executable_that_cannot_be_started(tmp_path: Path) -> None:
    path = tmp_path / "cuda-checkpoint"
    path.write_bytes(b"\x7fELF nothing")
    path.chmod(0o755)
    with pytest.raises(tool.ToolError) as error:
        tool.probe(str(path))
    assert str(error.value) == f"{path} can't be started: Exec format error"


def test_where_the_tool_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTool(tmp_path, [])
    monkeypatch.setenv("PATH", f".:{tmp_path}")
    monkeypatch.chdir(tmp_path)
    assert tool.find("cuda-checkpoint") == str(fake.path)
    assert tool.find("./cuda-checkpoint") == str(fake.path)
    monkeypatch.setenv("PATH", ".")
    monkeypatch.setattr(tool, "_USUAL_PLACES", ())
    with pytest.raises(tool.ToolError, match=r"no executable cuda-checkpoint in \."):
        tool.find("cuda-checkpoint")
    with pytest.raises(tool.ToolError) as missing:
        tool.find("/nonexistent/cuda-checkpoint")
    assert str(missing.value) == "/nonexistent/cuda-checkpoint is no executable file"
    assert not missing.value.there
    fake.path.chmod(0o644)
    with pytest.raises(tool.ToolError) as refused:
        tool.find(str(fake.path))
    assert refused.value.there
