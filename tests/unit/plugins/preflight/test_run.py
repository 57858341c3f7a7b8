# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole module's logic on the machine that runs the tests: processes as odd as they come, none of them CUDA's."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError, Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.options import Options, Verdict
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.run import Preflight
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity

HAS_DRIVER = Path("/proc/driver/nvidia/version").exists()
# Other tests may run simulated hosts on this machine, whose processes can be seen from here.
NOBODY = {"executable": "/nonexistent/nobody"}
# Maps a file whose name makes the process a candidate for CUDA, tells that it is ready, and stays.
CANDIDATE = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as stream:
    mapping = mmap.mmap(stream.fileno(), 0)
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""
# Starts such processes all the time, which end at once.
CHURN = """
import subprocess, sys
print("ready", flush=True)
while True:
    one = [sys.executable, "-S", "-c", sys.argv[1], sys.argv[2], "0.02"]
    children = [subprocess.Popen(one, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _number in range(3)]
    for child in children:
        child.wait()
"""
# As many mappings as it is told: neighbours with other rights don't merge.
MANY = """
import mmap, sys, time
rights = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
pages = [mmap.mmap(-1, 4096, prot=rights[number % 2]) for number in range(int(sys.argv[1]))]
print("ready", flush=True)
time.sleep(60)
"""


Children = Callable[[], list[psutil.Process]]


def options(tmp_path: Path, *pids: int, **fields: Any) -> Options:
    known: dict[str, Any] = {
        "pids": tuple(Wanted(pid) for pid in pids) or None,
        "select": None,
        "required": ("suspend",),
        "fail_on": "blocking",
        "allow": frozenset(),
        "store": None,
        "window": None,
        "backend": "auto",
        "executable": None,
        "criu": "/nonexistent/criu",
        "journal": str(tmp_path / "journal.db"),
        "full_command": False,
    }
    return Options(**{**known, **fields})


def run(tmp_path: Path, *pids: int, **fields: Any) -> Verdict:
    verdict = Preflight(options(tmp_path, *pids, **fields)).run()
    json.dumps(verdict.result, allow_nan=False).encode("utf-8")
    return verdict


def ids(verdict: Verdict, pid: int | None = None) -> list[str]:
    return [one["id"] for one in verdict.result["findings"] if one["pid"] == pid]


@contextlib.contextmanager
def started(argv: Sequence[str | bytes], ready: bool = True, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process, once it says that it is ready; ended afterwards."""
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **more)
    try:
        if ready:
            assert child.stdout is not None and child.stdout.readline().strip() == b"ready"
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file that a process can map under the name of CUDA's library."""
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(bytes(mmap.PAGESIZE))
    tmp_path.chmod(0o755)
    path.chmod(0o666)
    return path


def candidate(library: Path, seconds: float = 60) -> list[str]:
    return [sys.executable, "-c", CANDIDATE, str(library), str(seconds)]


@pytest.mark.skipif(HAS_DRIVER, reason="this machine has an NVIDIA driver")
def test_a_machine_without_gpu_and_criu_gets_a_true_report(tmp_path: Path) -> None:
    verdict = run(tmp_path)
    found = verdict.result
    assert {"driver_missing", "criu_missing", "store_unknown"} <= set(ids(verdict))
    assert not {"driver_too_old", "driver_mismatch", "no_backend", "unparked", "mig_on", "gpu_silent"} & set(
        ids(verdict)
    )
    assert not found["ready"] and not any(one["ready"] for one in found["capabilities"].values())
    assert "driver_missing" in found["capabilities"]["suspend"]["blocking"]
    assert "criu_missing" not in found["capabilities"]["suspend"]["blocking"]
    assert found["gpus"] == []
    assert found["host"]["driver"]["version"] is None and found["host"]["criu"]["version"] is None
    assert found["host"]["architecture"] == os.uname().machine
    assert verdict.failed.startswith("Not ready for suspend. this host: NVIDIA's kernel module is not loaded")
    assert "criu" not in verdict.failed


def test_nothing_fails_where_the_operator_says_never(tmp_path: Path) -> None:
    verdict = run(tmp_path, select=NOBODY, fail_on="never", required=("suspend", "dump", "migrate"))
    assert verdict.failed == "" and not verdict.result["capabilities"]["dump"]["ready"]


def test_it_leaves_nothing_behind(tmp_path: Path, new_children: Children) -> None:
    run(tmp_path, select=NOBODY, store=str(tmp_path / "images"))
    assert list(tmp_path.iterdir()) == []
    assert new_children() == []


def test_a_process_without_cuda_is_no_error_but_a_finding(tmp_path: Path) -> None:
    with started(["sleep", "60"], ready=False) as child:
        verdict = run(tmp_path, child.pid)
    assert ids(verdict, child.pid) == ["not_cuda"]
    (process,) = verdict.result["processes"]
    assert process["pid"] == child.pid and process["findings"] == ["not_cuda"]
    assert process["ready"] == {"suspend": False, "dump": False, "migrate": False}
    assert f"PID {child.pid} (sleep)" in verdict.failed


def test_a_process_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with started(["sleep", "60"], ready=False) as child:
        pass
    with pytest.raises(ArgumentError, match=f"there is no process {child.pid}"):
        run(tmp_path, child.pid)


def test_a_pid_that_was_used_again_is_an_error(tmp_path: Path) -> None:
    with started(["sleep", "60"], ready=False) as child:
        identity = read_identity(child.pid)
        assert identity is not None
        wanted = (Wanted(child.pid, identity.start_ticks + 1),)
        with pytest.raises(ArgumentError, match="is another process now"):
            run(tmp_path, pids=wanted)


def test_a_candidate_that_only_maps_the_library_is_not_taken_for_cuda(tmp_path: Path, library: Path) -> None:
    with started(candidate(library)) as child:
        everything = run(tmp_path)
        named = run(tmp_path, child.pid)
    assert all(process["pid"] != child.pid for process in everything.result["processes"])
    assert ids(named, child.pid) == ["not_cuda"]


def test_command_lines_that_are_no_text_are_kept_as_far_as_they_are(tmp_path: Path) -> None:
    odd = [
        sys.executable.encode(),
        b"-c",
        b"import time; print('ready', flush=True); time.sleep(60)",
        b"\xff\xfe",
        b"a\nb\t\x1b[31m",
        b"",
    ]
    with started(odd) as child:
        verdict = run(tmp_path, child.pid, full_command=True)
        hidden = run(tmp_path, child.pid)
    (process,) = verdict.result["processes"]
    assert process["command"][3:] == ["\ufffd\ufffd", "a\nb\t\x1b[31m", ""]
    assert ids(verdict, child.pid) == ["not_cuda"]
    assert "command" not in hidden.result["processes"][0]


def test_a_name_that_is_no_text_does_no_harm(tmp_path: Path) -> None:
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) \\xff\\n(', 0, 0, 0)"
    code = f"{rename}; import time; print('ready', flush=True); time.sleep(60)"
    with started([sys.executable, "-c", code]) as child:
        verdict = run(tmp_path, child.pid)
    assert ids(verdict, child.pid) == ["not_cuda"]


def test_ten_thousand_mappings_are_read_in_time(tmp_path: Path) -> None:
    with started([sys.executable, "-c", MANY, "10000"]) as child:
        assert len(Path(f"/proc/{child.pid}/maps").read_text().splitlines()) > 10000
        began = time.process_time()
        verdict = run(tmp_path, child.pid)
        assert time.process_time() - began < 2.0
    assert ids(verdict, child.pid) == ["not_cuda"]


def test_a_process_in_a_pid_namespace_of_its_own_is_known_by_the_callers_pid(tmp_path: Path, library: Path) -> None:
    unshared = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshared, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
        unshared = ["unshare", "--pid", "--fork"]
        if subprocess.run([*unshared, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
            pytest.skip("no PID namespace can be made here")
    with started([*unshared, *unshared, *candidate(library)], start_new_session=True) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        first = int(children.read_text())
        inner = int(Path(f"/proc/{first}/task/{first}/children").read_text())
        try:
            verdict = run(tmp_path, inner)
        finally:
            os.kill(inner, signal.SIGKILL)
    assert ids(verdict, inner) == ["not_cuda"]
    assert verdict.result["processes"][0]["identity"]["pid"] == inner


def test_processes_that_come_and_go_meanwhile_do_no_harm(tmp_path: Path, library: Path) -> None:
    with started(candidate(library)) as stays, started([sys.executable, "-c", CHURN, CANDIDATE, str(library)]):
        for _attempt in range(5):
            verdict = run(tmp_path, stays.pid)
            assert ids(verdict, stays.pid) == ["not_cuda"]
            assert [process["pid"] for process in verdict.result["processes"]] == [stays.pid]


def as_nobody(tmp_path: Path, *pids: int) -> Verdict:
    """A run by a user without rights."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            verdict = Preflight(options(tmp_path, *pids, fail_on="blocking")).run()
            os.write(writer, json.dumps([verdict.result, verdict.failed]).encode())
        except BaseException as error:
            os.write(writer, json.dumps([{}, repr(error)]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        result, failed = json.loads(stream.read())
    os.waitpid(child, 0)
    return Verdict(result, failed)


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user takes root")
def test_what_may_not_be_read_is_said_and_nothing_is_made_up(tmp_path: Path, library: Path) -> None:
    with started(candidate(library)) as child:
        verdict = as_nobody(tmp_path, child.pid)
    assert verdict.result, verdict.failed
    assert "not_root" in ids(verdict)
    assert ids(verdict, child.pid) == ["other_owner"]
    assert not {"not_cuda", "uvm_managed", "host_memory", "vmm_export"} & set(ids(verdict, child.pid))
    assert verdict.result["host"]["criu"]["check"] is None, "criu check takes root"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_process_of_root_is_not_looked_into_by_others(tmp_path: Path) -> None:
    assert ids(run(tmp_path, 1), 1) == ["other_owner"]


def test_a_journal_that_can_not_be_used_is_a_finding(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    journal.write_text("this is no database, but long enough to be read as one" * 20)
    journal.chmod(0o600)
    verdict = run(tmp_path, select=NOBODY)
    (finding,) = [one for one in verdict.result["findings"] if one["id"] == "journal_unusable"]
    assert finding["severity"] == "blocking" and str(journal) in finding["subject"]
    assert "journal_unusable" in verdict.result["capabilities"]["suspend"]["blocking"]


def test_the_store_is_looked_at_where_it_is_to_be(tmp_path: Path) -> None:
    verdict = run(tmp_path, store=str(tmp_path / "images"), select=NOBODY)
    disk = verdict.result["capacity"]["disk"]
    assert disk["path"] == str(tmp_path / "images") and disk["needed_bytes"] == 0 and disk["available_bytes"] > 0
    assert "store_unknown" not in ids(verdict)
    assert "store_unusable" in ids(run(tmp_path, store="relative"))


def test_a_criu_that_is_there_is_told(tmp_path: Path) -> None:
    criu = tmp_path / "criu"
    criu.write_text("#!/bin/sh\n[ $1 = check ] && { echo 'Looks good.'; exit; }\necho 'Version: 3.17.1'\n")
    criu.chmod(0o755)
    verdict = run(tmp_path, select=NOBODY, criu=str(criu))
    told = verdict.result["host"]["criu"]
    assert (told["path"], told["version"]) == (str(criu), "3.17.1")
    assert told["check"] is (True if os.geteuid() == 0 else None)
    assert "criu_too_old" in ids(verdict) and "criu_missing" not in ids(verdict)


def test_a_finding_that_is_allowed_is_a_warning(tmp_path: Path) -> None:
    tool = tmp_path / "cuda-checkpoint"
    tool.write_text("#!/bin/sh\necho 'Version 550.163.01'\necho '--toggle --pid PID'\n")
    tool.chmod(0o755)
    blocked = run(tmp_path, select=NOBODY, backend="toggle", executable=str(tool))
    accepted = run(tmp_path, select=NOBODY, backend="toggle", executable=str(tool), allow=frozenset(("unparked",)))
    assert "unparked" in blocked.result["capabilities"]["suspend"]["blocking"]
    assert "unparked" in accepted.result["capabilities"]["suspend"]["warnings"]
    assert blocked.result["host"]["backend"] == "toggle"
