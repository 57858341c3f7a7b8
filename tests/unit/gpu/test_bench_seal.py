# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""bench/seal: its files and its page, pure; and the whole of it, small."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import NAME, is_content
from tests.gpu.gputest.bench_seal_report import aim, layout, lower, page, ratios

ROOT = Path(__file__).resolve().parents[3]


def record(**meta: Any) -> Dict[str, Any]:
    known = {
        "date": "2026-11-30",
        "processor": "AMD EPYC",
        "cores": 16.0,
        "threads": 16,
        "physical": 8,
        "instructions": ["sha_ni"],
        "coreutils": "sha256sum (GNU coreutils) 9.4",
        "libcrypto": True,
        "python": "3.12.3",
        "openssl": "OpenSSL 3.0.13",
        "kernel": "6.8.0",
        "filesystem": "ext2/ext3",
        "load": "0.10",
        "commit": "",
        "collection": "04eae32af7fd5103",
    }
    return {
        "meta": {**known, **meta},
        "bytes": 8 << 30,
        "files": 32,
        "rounds": [
            {"sha256sum": 5.0, "seal": 0.4, "verify": 0.3, "read": 0},
            {"sha256sum": 4.8, "seal": 0.3, "verify": 0.4, "read": 1 << 20},
            {"sha256sum": 6.0, "seal": 9.0, "verify": 0.5, "read": 0},
        ],
        "alone": {"hash, one": 2.0, "hash, all": 31.0, "read, one": 10.0, "read, all": 80.0, "seal, one": 1.6},
    }


@pytest.mark.parametrize("total", [1 << 20, 8 << 30, (8 << 30) + 1])
def test_the_files_are_those_of_an_image_and_have_the_size_that_is_asked_for(total: int) -> None:
    files = dict(layout(total))
    assert sum(files.values()) == total
    assert all(NAME.fullmatch(name) and is_content(name) for name in files)
    assert files["pages-1.img"] > total / 2 and 0 in files.values()
    assert sum(size > 1 << 20 for size in files.values()) in (0, 4)


def test_too_few_bytes_are_no_image() -> None:
    with pytest.raises(ValueError, match="1000 bytes"):
        layout(1000)


def test_ratios_are_of_medians_and_the_lower_one_counts() -> None:
    assert ratios(record()["rounds"]) == {"seal": pytest.approx(12.5), "verify": pytest.approx(12.5)}
    slower = record()
    slower["rounds"][0]["verify"] = 0.5
    assert lower(slower) == pytest.approx(10.0)
    assert aim(16) == pytest.approx(12.8)


def test_page_says_what_is_met_and_what_is_missed() -> None:
    text = page(record())
    assert "seal: 12.50 times faster than sha256sum; at least 0.8 x 16 cores = 12.80: MISSED." in text
    assert "| sha256sum | 5.000 | 4.800 | 6.000 | 1.60 |" in text
    assert "| seal | 1.60 | 20.00 | 12.50 |" in text
    assert "Read from the disk meanwhile: 1.0 MiB at most." in text
    assert "16 cores (threads of 8 physical ones)" in text
    assert "computes without libcrypto" not in text
    other = page(record(libcrypto=False, cores=4.0, physical=16))
    assert "seal: 12.50 times faster than sha256sum; at least 0.8 x 4 cores = 3.20: met." in other
    assert "4 cores (by the limit of its cgroup, of 16)" in other
    assert "computes without libcrypto" in other and "9.4, not linked with libcrypto" in other


def run(tmp_path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Without anything but a checkout and Python's own library: -S leaves out what is installed."""
    argv = [sys.executable, "-S", str(ROOT / "bench/seal.py"), "--home", str(tmp_path), *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/", env={"PATH": os.environ["PATH"]})


def test_it_runs_on_a_bare_python_and_leaves_only_its_record(tmp_path: Path) -> None:
    kept, told = tmp_path / "record.json", tmp_path / "page.md"
    done = run(tmp_path, "--mib", "8", "--rounds", "2", "--record", str(kept), "--report", str(told))
    assert done.returncode == 0, done.stderr
    found = json.loads(kept.read_text())
    assert found["bytes"] == 8 << 20 and len(found["rounds"]) == 2
    assert all(one[way] > 0 for one in found["rounds"] for way in ("sha256sum", "seal", "verify"))
    assert told.read_text() == page(found) and told.read_text() in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["page.md", "record.json"]


def test_below_least_it_fails_and_says_by_how_much(tmp_path: Path) -> None:
    done = run(tmp_path, "--mib", "8", "--rounds", "1", "--least", "1e9")
    assert done.returncode == 1
    assert "times faster than sha256sum, less than --least 1e+09" in done.stderr
    assert os.listdir(tmp_path) == []


def test_without_room_it_says_so_before_it_writes(tmp_path: Path) -> None:
    done = run(tmp_path, "--mib", str(1 << 40))
    assert done.returncode == 2 and f"the files take {1 << 40}" in done.stderr and "--home, --mib" in done.stderr
    done = run(tmp_path / "none", "--mib", "8")
    assert done.returncode == 2 and "No such file or directory" in done.stderr and "--home" in done.stderr
    assert os.listdir(tmp_path) == []
