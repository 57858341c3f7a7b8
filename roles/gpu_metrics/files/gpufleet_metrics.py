# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what this host knows of its suspended CUDA processes as a file for node_exporter's textfile collector.

usage: gpufleet_metrics.py JOURNAL DIRECTORY

It reads the journal and /proc, and changes nothing but its own file, which is replaced as a whole. It asks no driver,
and takes no lock that a suspend would have to wait for. Needs root: other users' processes and the journal are read.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import sys
import tempfile
import time
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

NAME = "gpufleet_checkpoint.prom"
PREFIX = "gpufleet_checkpoint_"
#: Seconds for which another process may keep the journal, and after which a half written file is nobody's any more.
BUSY, STALE = 5.0, 3600.0
#: From here on, and until it runs again, a process has nothing on its GPU.
AWAY = ("checkpoint", "settle", "park", "guard", "restore")
STATES = ("suspended", "running_without_gpu", "lost", "other")
PHASES = ("claimed", "suspending", "suspended", "maintenance", "restoring", "restored", "undoing")
STEPS = ("checkpoint", "restore", "criu_dump", "criu_restore")
GOALS = ("checkpointed", "locked", "running")
LIFE, MOST = "life.json", 4 << 20

Labels = Tuple[Tuple[str, str], ...]


class Metric(NamedTuple):
    kind: str
    help: str


#: Everything that may be written. A name that ends in _total only ever grows while the journal is the same.
METRICS: Mapping[str, Metric] = {
    "journal_present": Metric("gauge", "Whether the host has a journal. One on which nothing was ever done has none."),
    "journal_readable": Metric("gauge", "Whether the journal could be read. If not, nothing else is exported."),
    "operations_started_total": Metric("counter", "Operations on processes since the journal was made."),
    "processes": Metric(
        "gauge",
        "Processes that the journal has not settled: suspended (stopped, without GPU), running_without_gpu (somebody "
        "continued them), lost (ended while suspended, and in no image), other (at work, failed or half way).",
    ),
    "unguarded_processes": Metric("gauge", "Suspended processes whose guard has ended; they are still stopped."),
    "failed_processes": Metric("gauge", "Living processes whose last operation failed or was given no answer."),
    "suspended_bytes": Metric("gauge", "GPU memory that suspended processes had on this GPU, now in host memory."),
    "oldest_suspended_timestamp_seconds": Metric("gauge", "When the process that is suspended for longest was."),
    "last_failure_timestamp_seconds": Metric("gauge", "When an operation with this goal last failed in this boot."),
    "last_image_failure_timestamp_seconds": Metric("gauge", "When the making or restoring of an image last failed."),
    "last_step_timestamp_seconds": Metric("gauge", "When this step was last begun."),
    "last_step_seconds": Metric("gauge", "How long this step took when it was last made, in seconds."),
    "last_step_bytes": Metric("gauge", "How many bytes this step moved when it was last made."),
    "unspent_images": Metric("gauge", "Images that are there, were not restored, and whose processes have ended."),
    "unspent_image_bytes": Metric("gauge", "Memory that was written to those images."),
    "oldest_unspent_image_timestamp_seconds": Metric("gauge", "When the oldest of those images was made."),
    "drain_phase": Metric("gauge", "1 for the phase that the drain of this host is in. All 0: no drain has it."),
    "drain_phase_timestamp_seconds": Metric("gauge", "When that phase was reached."),
    "drain_info": Metric("gauge", "The drain that has this host."),
    "last_drain_failure_timestamp_seconds": Metric("gauge", "When a drain of this host last failed."),
}


class Unreadable(Exception):
    """str() says why."""


class Samples:
    """Of one reading. Raises KeyError for a name that METRICS lacks."""

    def __init__(self) -> None:
        self._values: Dict[str, Dict[Labels, float]] = {}

    def put(self, name: str, value: Optional[float], **labels: str) -> None:
        """None: not known, so nothing is exported."""
        if METRICS[name] and value is not None:
            self._values.setdefault(name, {})[tuple(sorted(labels.items()))] = value

    def text(self) -> str:
        lines: List[str] = []
        for name, metric in METRICS.items():
            if name not in self._values:
                continue
            lines += [f"# HELP {PREFIX}{name} {metric.help}", f"# TYPE {PREFIX}{name} {metric.kind}"]
            lines += [f"{PREFIX}{name}{_labels(labels)} {value!r}" for labels, value in self._values[name].items()]
        return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    clean = value.encode("utf-8", "replace").decode("utf-8")
    return clean.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Process(NamedTuple):
    """stopped: every or some of its threads are. devices: it has device files of the driver open or mapped."""

    stopped: bool
    devices: bool


def look(proc: str, pid: int, start_ticks: int) -> Optional[Process]:
    """None: this process has ended, whoever has its PID now."""
    if ticks(proc, pid) != start_ticks:
        return None
    seen = Process(_stopped(proc, pid) or _frozen(proc, pid), _devices(proc, pid))
    return seen if ticks(proc, pid) == start_ticks else None


def ticks(proc: str, pid: int) -> Optional[int]:
    """When it started. None: no such process, or a zombie."""
    fields = _stat(f"{proc}/{pid}/stat")
    return None if not fields or fields[0] in ("Z", "X") else int(fields[19])


def _stat(path: str) -> List[str]:
    return _read(path).rpartition(")")[2].split()


def _stopped(proc: str, pid: int) -> bool:
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return False
    return any(_stat(f"{proc}/{pid}/task/{thread}/stat")[:1] in (["T"], ["t"]) for thread in threads)


def _frozen(proc: str, pid: int) -> bool:
    paths = [line[3:] for line in _read(f"{proc}/{pid}/cgroup").split("\n") if line.startswith("0::/")]
    events = [
        _read(f"{root}{path}/cgroup.events") for path in paths for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    ]
    return any("frozen 1" in text.split("\n") for text in events)


def _devices(proc: str, pid: int) -> bool:
    if any(line.rpartition(" ")[2].startswith("/dev/nvidia") for line in _read(f"{proc}/{pid}/maps").split("\n")):
        return True
    try:
        files = os.listdir(f"{proc}/{pid}/fd")
    except OSError:
        return False
    return any(_link(f"{proc}/{pid}/fd/{number}").startswith("/dev/nvidia") for number in files)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


class Journal:
    """Read only. Raises Unreadable."""

    def __init__(self, path: str) -> None:
        seen = os.lstat(path)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
            raise Unreadable("it is no file that this user alone can write")
        quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        self._connection = sqlite3.connect(f"file:{quoted}?mode=ro", uri=True, timeout=BUSY, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        # One state of it, however long the reading takes; in a write-ahead log nobody waits for a reader.
        self._connection.execute("BEGIN")
        self._tables = {row["name"] for row in self._connection.execute("SELECT name FROM sqlite_master")}
        if "operations" not in self._tables:
            raise Unreadable("it is a database of another program")

    def close(self) -> None:
        self._connection.close()

    def rows(self, table: str, statement: str, *values: Any) -> List[Dict[str, Any]]:
        """None of a table that an older release has not made."""
        if table not in self._tables:
            return []
        return [dict(row) for row in self._connection.execute(statement, values)]

    def value(self, table: str, statement: str, *values: Any) -> Optional[float]:
        """The only one of the first row."""
        found = [one for row in self.rows(table, statement, *values)[:1] for one in row.values()]
        return float(found[0]) if found and found[0] is not None else None


def read(path: str, proc: str = "/proc") -> Samples:
    """Of the journal at this path. Raises Unreadable, OSError, sqlite3.Error."""
    samples = Samples()
    samples.put("journal_present", float(os.path.lexists(path)))
    if os.path.lexists(path):
        journal = Journal(path)
        try:
            boot_id = _read(f"{proc}/sys/kernel/random/boot_id").strip()
            _operations(journal, boot_id, proc, samples)
            _steps(journal, samples)
            _images(journal, samples)
            _drain(journal, samples)
        finally:
            journal.close()
    samples.put("journal_readable", 1.0)
    return samples


def _operations(journal: Journal, boot_id: str, proc: str, samples: Samples) -> None:
    rows = journal.rows(
        "operations",
        "SELECT * FROM operations WHERE status NOT IN ('done', 'undone')"
        " AND id IN (SELECT max(id) FROM operations WHERE boot_id = ? GROUP BY pid, start_ticks)",
        boot_id,
    )
    states = dict.fromkeys(STATES, 0)
    unguarded = failed = 0
    since: List[float] = []
    held: Dict[str, int] = {}
    for row in rows:
        process = look(proc, row["pid"], row["start_ticks"])
        state = judge(row, process, process is None and _in_an_image(journal, row))
        if state:
            states[state] += 1
        failed += process is not None and row["status"] in ("failed", "unknown")
        if state != "suspended":
            continue
        since.append(_since(journal, row))
        guard = row["worker_pid"]
        alive = guard is not None and ticks(proc, guard) == row["worker_start_ticks"]
        unguarded += row["status"] == "suspended" and row["guard"] == "holder" and not alive
        for gpu in journal.rows("device_bytes", "SELECT gpu, bytes FROM device_bytes WHERE operation = ?", row["id"]):
            held[gpu["gpu"]] = held.get(gpu["gpu"], 0) + gpu["bytes"]
    for state, count in states.items():
        samples.put("processes", float(count), state=state)
    samples.put("unguarded_processes", float(unguarded))
    samples.put("failed_processes", float(failed))
    samples.put("oldest_suspended_timestamp_seconds", min(since, default=None))
    for uuid, count in held.items():
        samples.put("suspended_bytes", float(count), gpu=uuid)
    for goal in GOALS:
        at = "SELECT max(updated) FROM operations WHERE boot_id = ? AND status = 'failed' AND goal = ?"
        samples.put("last_failure_timestamp_seconds", journal.value("operations", at, boot_id, goal), goal=goal)
    # Ids are never given twice, also when old rows have been forgotten.
    sequence = "SELECT seq FROM sqlite_sequence WHERE name = 'operations'"
    samples.put("operations_started_total", journal.value("operations", sequence) or 0.0)


def _since(journal: Journal, row: Mapping[str, Any]) -> float:
    """Not when its guard was renewed, or it was last tried to resume it."""
    statement = (
        "SELECT max(created) FROM operations WHERE boot_id = ? AND pid = ? AND start_ticks = ?"
        " AND goal = 'checkpointed' AND state_before IN ('running', 'locked')"
    )
    found = journal.value("operations", statement, row["boot_id"], row["pid"], row["start_ticks"])
    return float(row["created"]) if found is None else found


def judge(row: Mapping[str, Any], process: Optional[Process], imaged: bool) -> str:
    """One of STATES; "" for what needs nobody."""
    suspended = row["status"] == "suspended"
    if process is None:
        return "lost" if (suspended or row["step"] in AWAY) and not imaged else ""
    if process.devices:
        return "" if suspended else "other"
    if process.stopped or (suspended and not row["park"]):
        return "suspended"
    return "running_without_gpu" if suspended else "other"


def _in_an_image(journal: Journal, row: Mapping[str, Any]) -> bool:
    statement = "SELECT 1 FROM images WHERE (boot_id = ? AND pid = ? AND start_ticks = ?) OR run_id = ? LIMIT 1"
    return bool(journal.rows("images", statement, row["boot_id"], row["pid"], row["start_ticks"], row["run_id"]))


def _steps(journal: Journal, samples: Samples) -> None:
    for table in ("steps", "image_steps"):
        for step in STEPS:
            statement = f"SELECT * FROM {table} WHERE step = ? AND seconds IS NOT NULL ORDER BY id DESC LIMIT 1"
            for row in journal.rows(table, statement, step):
                samples.put("last_step_timestamp_seconds", row["at"], step=step)
                samples.put("last_step_seconds", row["seconds"], step=step)
                samples.put("last_step_bytes", None if row["bytes"] is None else float(row["bytes"]), step=step)


def _images(journal: Journal, samples: Samples) -> None:
    made = journal.rows(
        "images",
        "SELECT id, path, created FROM images WHERE status = 'gone' AND leave = 'killed' AND id IN"
        " (SELECT max(id) FROM images GROUP BY path)",
    )
    left = [row for row in made if _unspent(row["path"])]
    size = "SELECT bytes FROM image_steps WHERE image = ? AND step = 'criu_dump' ORDER BY id DESC LIMIT 1"
    samples.put("unspent_images", float(len(left)))
    samples.put("unspent_image_bytes", sum(journal.value("image_steps", size, row["id"]) or 0.0 for row in left))
    samples.put("oldest_unspent_image_timestamp_seconds", min((row["created"] for row in left), default=None))
    failed = "SELECT max(updated) FROM images WHERE status = 'failed'"
    samples.put("last_image_failure_timestamp_seconds", journal.value("images", failed))


def _unspent(path: str) -> bool:
    """Also one that was restored on another host is spent: the image itself says so."""
    try:
        with open(os.path.join(path, LIFE), "rb") as stream:
            told = json.loads(stream.read(MOST))
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("state") == "unspent"


def _drain(journal: Journal, samples: Samples) -> None:
    rows = journal.rows("drains", "SELECT * FROM drains WHERE closed IS NULL LIMIT 1")
    phase = rows[0]["phase"] if rows else ""
    for name in PHASES:
        samples.put("drain_phase", float(name == phase), phase=name)
    for row in rows:
        samples.put("drain_info", 1.0, run_id=row["run_id"], kind=row["kind"], mode=row["mode"])
        at = "SELECT max(at) FROM drain_phases WHERE drain = ?"
        samples.put("drain_phase_timestamp_seconds", journal.value("drain_phases", at, row["id"]))
    failed = "SELECT max(at) FROM drain_failures"
    samples.put("last_drain_failure_timestamp_seconds", journal.value("drain_failures", failed))


def unreadable(path: str) -> Samples:
    samples = Samples()
    samples.put("journal_present", float(os.path.lexists(path)))
    samples.put("journal_readable", 0.0)
    return samples


def write(directory: str, text: str) -> None:
    """Whole or not at all: a reader sees the old file or the new one. Raises OSError."""
    _forget(directory, time.time())
    descriptor, name = tempfile.mkstemp(prefix=f".{NAME}.", suffix=".tmp", dir=directory)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o644)
            stream.write(text)
        os.replace(name, os.path.join(directory, NAME))
    except BaseException:
        os.unlink(name)
        raise


def _forget(directory: str, now: float) -> None:
    """What a run that was killed has left."""
    for name in os.listdir(directory):
        if name.startswith(f".{NAME}.") and name.endswith(".tmp"):
            path = os.path.join(directory, name)
            try:
                if now - os.lstat(path).st_mtime > STALE:
                    os.unlink(path)
            except FileNotFoundError:  # another run has removed it, or is done with it
                continue


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write(f"{__doc__}")
        return 2
    path, directory = arguments
    problem: Iterable[str] = ()
    try:
        samples = read(path)
    except (Unreadable, OSError, sqlite3.Error, KeyError, ValueError) as error:
        samples = unreadable(path)
        problem = (f"gpufleet_metrics: journal {path}: {error}\n",)
    try:
        write(directory, samples.text())
    except OSError as error:
        problem = (*problem, f"gpufleet_metrics: {directory}: {error}. Nothing was written\n")
    sys.stderr.writelines(problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
