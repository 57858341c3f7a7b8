# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in a test host: starts workloads and tells what became of them. Arguments come as JSON on standard input.

usage: python3 lab.py start|look|check|holders|leftovers|journal|end
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable

DIRECTORY = Path("/run/lab")
JOURNAL = Path("/var/lib/gpufleet/checkpoint.db")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HOLDER = "gpufleet-hold"
SYSTEM = ("/usr/bin/", "/usr/sbin/", "/usr/lib/")
TABLES = ("reservations", "settings", "setting_users")
# The last operation of each process, and the states of one that is not over.
LATEST = "SELECT * FROM operations WHERE id IN (SELECT max(id) FROM operations GROUP BY boot_id, pid, start_ticks)"
LIVE = ("active", "suspended", "unknown")


def read(path: Path | str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def wait_for(condition: Callable[[], Any], seconds: float) -> Any:
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return met


def entry_of(pid: int) -> list[str]:
    """/proc/PID/stat after the name: state, parent, ...; empty when there is no such process."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def state_of(pid: int) -> str:
    """Of a workload; "" when it is gone, also when its PID is a program of the system by now, as after a reboot.
    Workloads are in other places, under names of all kinds."""
    with contextlib.suppress(OSError):  # a zombie has no program
        if os.readlink(f"/proc/{pid}/exe").startswith(SYSTEM):
            return ""
    return (entry_of(pid) or [""])[0]


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def status_of(pid: int) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in read(f"/proc/{pid}/status").splitlines() if ":\t" in line)


def cpu_ticks(pid: int) -> int:
    fields = entry_of(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def counter_of(name: str) -> int:
    """Of a file whose last writes were lost, there may be zero bytes at its end."""
    return int(read(DIRECTORY / name).strip("\0\n") or 0)


def ask_for_sums(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            (DIRECTORY / f"{name}.sum").unlink()
        (DIRECTORY / f"{name}.verify").touch()


def sums_of(names: list[str], seconds: float) -> dict[str, str]:
    def answered() -> bool:
        return all(read(DIRECTORY / f"{name}.sum") for name in names)

    wait_for(answered, seconds)
    return {name: read(DIRECTORY / f"{name}.sum") for name in names}


def launch(job: dict[str, Any]) -> None:
    """In a session of its own, with no descriptor of the SSH connection."""
    out = DIRECTORY / job["name"]
    argv = [*job["wrap"], "/usr/local/bin/gpusim-workload", "--out", str(out), *job["options"]]

    def prepare() -> None:
        for group in job["cgroups"]:
            Path(group, "cgroup.procs").write_text("0")
        if job["data_limit"]:
            resource.setrlimit(resource.RLIMIT_DATA, (job["data_limit"], job["data_limit"]))
        if job["user"]:
            entry = pwd.getpwnam(job["user"])
            os.setgroups([])
            os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
            os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)

    with open(f"{out}.log", "wb") as log:
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, **job["environment"]},
            start_new_session=True,
            preexec_fn=prepare,
        )


def copy_at(rate: int) -> bool:
    """The rate, in MiB/s, at which workloads that start from now on are copied; whether that is a change or slow."""
    host = Path("/run/gpusim/host")
    lines = read(host).splitlines()
    wanted = f"copy_mib_per_s={rate}"
    if not lines or wanted in lines:
        return rate > 0
    new = host.with_name("host.lab")
    new.write_text("\n".join([*(line for line in lines if not line.startswith("copy_mib_per_s=")), wanted]) + "\n")
    new.rename(host)
    return True


def start(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Starts workloads; PIDs by the name of the process once each counts, and the checksums of those that are asked."""
    DIRECTORY.mkdir(exist_ok=True)
    DIRECTORY.chmod(0o1777)
    for job in jobs:
        slow = copy_at(job["rate"])
        launch(job)
        if slow:  # a workload reads the rate once
            wait_for(partial(read, DIRECTORY / f"{job['name']}.pid"), 20)
    names = [name for job in jobs for name in job["names"]]
    if not wait_for(lambda: all(counter_of(name) for name in names), 60):
        late = [name for name in names if not counter_of(name)]
        sys.exit("\n".join(f"{name} does not count: {read(DIRECTORY / f'{name}.log')}" for name in late))
    asked = [name for job in jobs if job["sum"] for name in job["names"]]
    ask_for_sums(asked)
    return {
        "pids": {name: int(read(DIRECTORY / f"{name}.pid")) for name in names},
        "sums": sums_of(asked, 60),
    }


def look(names: dict[str, int]) -> dict[str, Any]:
    """What can be seen of each process without a driver call."""
    return {
        name: {
            "state": state_of(pid),
            "threads": sorted({(entry_of_thread(pid, tid) or [""])[0] for tid in threads_of(pid)}),
            "tracer": int(status_of(pid).get("TracerPid", 0)),
            "start": int((entry_of(pid) or ["0"] * 20)[19]),
            "devices": devices_of(pid),
            "counter": counter_of(name),
            "ticks": cpu_ticks(pid),
            "parent": int((entry_of(pid) or ["0"] * 2)[1]),
        }
        for name, pid in names.items()
    }


def threads_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(tid) for tid in os.listdir(f"/proc/{pid}/task")]
    return []


def entry_of_thread(pid: int, tid: int) -> list[str]:
    return read(f"/proc/{pid}/task/{tid}/stat").rpartition(")")[2].split()


def devices_of(pid: int) -> int:
    """Open descriptors of GPU devices."""
    found = 0
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found += os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("/dev/nvidia")
    return found


def check(names: dict[str, int]) -> dict[str, Any]:
    """Like look, with the checksum over the device memory and whether the counter goes on, after giving it the time."""
    before = {name: counter_of(name) for name in names}
    ask_for_sums(list(names))
    living = [name for name, pid in names.items() if state_of(pid) not in ("", *"ZXTt")]
    sums = sums_of(living, 60)
    wait_for(lambda: all(counter_of(name) > before[name] for name in living), 30)
    seen = look(names)
    for name, found in seen.items():
        found["sum"] = sums.get(name, "")
        found["counts"] = counter_of(name) > before[name]
    return seen


def holders() -> list[int]:
    return [pid for pid in processes() if read(f"/proc/{pid}/comm") == HOLDER and (entry_of(pid) or ["Z"])[0] != "Z"]


def journal(query: str) -> list[dict[str, Any]]:
    if not JOURNAL.exists():
        return []
    with contextlib.closing(sqlite3.connect(f"file:{JOURNAL}?mode=ro", uri=True, timeout=10)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(query)]


def leftovers() -> dict[str, Any]:
    """What a run may not leave behind; settled for a moment, since a holder that was just told to go takes one."""
    wait_for(lambda: not holders(), 5)
    states = {pid: (entry_of(pid) or [""])[0] for pid in processes()}
    lives = {(pid, int(fields[19])) for pid in states if len(fields := entry_of(pid)) > 19 and fields[0] not in "ZX"}
    rows = {table: len(journal(f"SELECT * FROM {table}")) for table in TABLES if JOURNAL.exists()}
    return {
        "holders": holders(),
        "stopped": [pid for pid, state in states.items() if state and state in "Tt"],
        "traced": [pid for pid in states if status_of(pid).get("TracerPid", "0") != "0"],
        # One kernel serves all hosts: where it is read-only, what is in it is another host's doing.
        "huge_pages": read(HUGE_PAGES) if os.access(HUGE_PAGES, os.W_OK) else "read-only",
        "live": [row for row in journal(LATEST) if (row["pid"], row["start_ticks"]) in lives and row["status"] in LIVE],
        "rows": rows,
        # What was restored lives on in a scope of its own.
        "groups": [
            str(path)
            for path in Path("/sys/fs/cgroup").glob("**/*gpufleet*")
            if not path.name.startswith("gpufleet-restored-")
        ],
        "remote": [str(path) for path in (Path.home() / ".ansible/tmp").glob("*")],
    }


def end(names: dict[str, int]) -> list[str]:
    """Kills them, and waits until they are gone; names of those that stay."""
    for pid in names.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def left() -> list[str]:
        return [name for name, pid in names.items() if (entry_of(pid) or ["Z"])[0] not in "ZX"]

    wait_for(lambda: not left(), 30)
    for name in names:
        for suffix in ("", ".pid", ".sum", ".verify", ".log"):
            with contextlib.suppress(OSError):
                (DIRECTORY / f"{name}{suffix}").unlink()
    return left()


def main() -> None:
    command = sys.argv[1]
    argument = json.loads(sys.stdin.read() or "null")
    answers: dict[str, Callable[[], Any]] = {
        "start": lambda: start(argument),
        "look": lambda: look(argument),
        "check": lambda: check(argument),
        "leftovers": leftovers,
        "holders": holders,
        "journal": lambda: journal(argument),
        "end": lambda: end(argument),
    }
    print(json.dumps(answers[command]()))


if __name__ == "__main__":
    main()
