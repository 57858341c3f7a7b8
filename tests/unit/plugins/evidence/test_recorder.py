# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorder: what it leaves out, and that it runs without Ansible."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recorder import record
from tests.recorder.kinds import KINDS
from tests.recorder.scrub import BOOT_ID, Scrubber

ROOT = Path(__file__).resolve().parents[4]


def test_scrubbing() -> None:
    clean = Scrubber({"/scratch/run": "/work", "/scratch": "/s"}, {"node17": "host", "ann": "user"})
    uuid, other = "GPU-12345678-1234-1234-1234-123456789abc", "GPU-87654321-1234-1234-1234-123456789abc"
    ident = "0123456789abcdef" * 4
    data = {
        "boot_id": "b0e1b0e1-1111-2222-3333-444455556666",
        "command": ["/scratch/run/a", "/scratchy", "/home/ann/x", "node17", "nodes17", "channel"],
        uuid: [uuid, other],
        "path": f"/docker/{ident}",
        "remote": ["41000 10.1.2.3:43000", "41001 10.1.2.4:1", "1 127.0.0.1:2", "580.159.04"],
        "count": 7,
        "nothing": None,
    }
    found = clean(data)
    assert found["boot_id"] == BOOT_ID
    assert found["command"] == ["/work/a", "/scratchy", "/home/user/x", "host", "nodes17", "channel"]
    first, second = "GPU-00000000-0000-4000-8000-000000000000", "GPU-00000000-0000-4000-8000-000000000001"
    assert found[first] == [first, second], "what belongs together stays together"
    assert len(found["path"]) == len(data["path"]) and ident not in found["path"]  # type: ignore[arg-type]
    assert found["remote"] == ["41000 192.0.2.1:43000", "41001 192.0.2.2:1", "1 127.0.0.1:2", "580.159.04"]
    assert found["count"] == 7 and found["nothing"] is None


@pytest.mark.parametrize("text", ["12", "a=", "a=b", "a=0", "a=1,", "=1", "a/b=1"])
def test_processes_are_named_with_a_label(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not LABEL=PID"):
        record.parse(text)


def test_a_label_with_processes() -> None:
    assert record.parse("torch-idle=12,13") == ("torch-idle", [12, 13])


#: Stands for nvidia-ml-py on a machine without a GPU.
NO_GPUS = """
class NVMLError(Exception): pass
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND = 3, 13
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 0
"""


def run(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "pynvml.py").write_text(NO_GPUS)
    argv = [sys.executable, "-S", str(ROOT / "tests/recorder/launch.py"), *arguments]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, cwd="/", timeout=60, check=False)


def test_it_runs_without_ansible_and_without_site_packages(tmp_path: Path) -> None:
    done = run(tmp_path, "record", "--into", str(tmp_path / "out"), "--about", "This test.", f"own={os.getpid()}")
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "out/own.json").read_text())
    assert data["about"] == "This test." and data["targets"] == [os.getpid()]
    assert [one["identity"]["pid"] for one in data["snapshot"]["processes"]].count(os.getpid()) == 1
    assert data["recorder"] and data["kernel"] and data["date"] and data["commands"][str(os.getpid())]


def test_a_process_that_does_not_exist(tmp_path: Path) -> None:
    done = run(tmp_path, "record", "--into", str(tmp_path / "out"), "gone=4194304", f"own={os.getpid()}")
    assert done.returncode == 1 and "gone: there is no process 4194304" in done.stderr
    assert not (tmp_path / "out/gone.json").exists() and (tmp_path / "out/own.json").exists()


def test_list_of_kinds(tmp_path: Path) -> None:
    done = run(tmp_path, "kinds", "--into", "x", "--list")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == list(KINDS)
