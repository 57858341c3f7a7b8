# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a host of the demo: what can be seen of the workloads, as JSON. It asks no module of the collection.

usage: python3 look.py DIRECTORY [--sums] [--beyond COUNTER,...] NAME...

--sums: ask each workload for a checksum over its GPU memory. --beyond: wait until each counts beyond these.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60


def read(path: Path) -> str:
    """Empty for what is not there."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def wait(met: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not met() and time.monotonic() < end:
        time.sleep(0.05)


def smi(query: str) -> list[str]:
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, check=True, text=True
    )
    return done.stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sums", action="store_true")
    parser.add_argument("--beyond", default="")
    parser.add_argument("names", nargs="+")
    asked = parser.parse_args()
    files = [asked.directory / name for name in asked.names]
    floor = [int(count) for count in asked.beyond.split(",") if count] or [0] * len(files)
    wait(lambda: all(int(read(file) or 0) > least for file, least in zip(files, floor, strict=True)))
    pids = [read(file.with_name(f"{file.name}.pid")) for file in files]
    answers = [file.with_name(f"{file.name}.sum") for file in files] if asked.sums else []
    for file, answer in zip(files, answers, strict=False):
        if answer.exists():  # an old one is never taken for an answer
            answer.unlink()
        file.with_name(f"{file.name}.verify").touch()
    wait(lambda: all(read(answer) for answer in answers))
    seen = {
        "boot_id": read(Path("/proc/sys/kernel/random/boot_id")),
        "names": asked.names,
        "pids": [int(pid) for pid in pids],
        "counters": [read(file) for file in files],
        "stats": [read(Path("/proc") / pid / "stat") for pid in pids],
        "apps": smi("--query-compute-apps=pid,used_memory"),
        "gpu_used_mib": smi("--query-gpu=memory.used"),
        "sums": [read(answer) for answer in answers],
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
