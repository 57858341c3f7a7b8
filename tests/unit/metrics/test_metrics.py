# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role gpu_metrics exports: of journals that the collection wrote, and of processes that live and end."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_rows import Drains
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, Operation, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity
from roles.gpu_metrics.files import gpufleet_metrics as metrics
from tests.unit.plugins.journal.helpers import me

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "roles/gpu_metrics/files/gpufleet_metrics.py"
ALERTS = ROOT / "extensions/prometheus/alerts.yml"
GUIDE = ROOT / "docs/metrics.md"
NOBODY = Identity(1, 1, "")
Values = Mapping[str, float]


class Host:
    """A journal, the directory of a textfile collector, and processes."""

    def __init__(self, directory: Path, journal: Journal) -> None:
        self.directory = directory
        self.textfiles = directory / "textfile"
        self.textfiles.mkdir()
        self.journal = journal
        self.file = self.textfiles / metrics.NAME

    def run(self, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, str(SCRIPT), self.journal.path, str(self.textfiles)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def values(self) -> Values:
        done = self.run()
        assert (done.returncode, done.stderr) == (0, "")
        return parsed(self.file.read_text())

    def suspended(self, process: subprocess.Popen[bytes], guard: Identity = NOBODY, **more: Any) -> Operation:
        """What the journal has of a process that was suspended, and stopped."""
        identity = read_identity(process.pid)
        assert identity is not None
        operation = self.journal.begin(
            run_id=more.get("run_id", "r1"),
            identity=identity,
            executable="/usr/bin/secret-name",
            uid=1000,
            goal="checkpointed",
            state_before="running",
            step="checkpoint",
            worker=guard,
            park=more.get("park", True),
            guard="holder",
            backend="libcuda",
            device_bytes={"GPU-a": 5, "GPU-b": 7},
        )
        self.journal.finish(operation.id, "suspended", seconds={"checkpoint": 2.5})
        return operation


def parsed(text: str) -> dict[str, float]:
    """Value of each sample, by its name without the prefix and the values of its labels. A text that Prometheus would
    refuse raises ValueError."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.name.startswith(metrics.PREFIX) and family.documentation
            name = " ".join(
                [sample.name[len(metrics.PREFIX) :], *(value for _key, value in sorted(sample.labels.items()))]
            )
            assert name not in found
            found[name] = float(sample.value)
    assert found and text.endswith("\n")
    return found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with open_journal(str(tmp_path / "journal/checkpoint.db")) as journal:
        yield Host(tmp_path, journal)


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands still, as a parked one."""
    process = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
    stop(process)
    yield process
    process.kill()
    process.wait()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.005)


def test_a_host_on_which_nothing_was_ever_done(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    assert metrics.main([str(tmp_path / "none.db"), str(tmp_path / "t")]) == 0
    assert parsed((tmp_path / "t" / metrics.NAME).read_text()) == {"journal_present": 0.0, "journal_readable": 1.0}
    assert not (tmp_path / "none.db").exists()


def test_an_empty_journal_counts_nothing(host: Host) -> None:
    values = host.values()
    assert {values[f"processes {state}"] for state in metrics.STATES} == {0.0}
    assert values["operations_started_total"] == values["unspent_images"] == values["drain_phase maintenance"] == 0.0
    assert not [name for name in values if "timestamp" in name], "a time that never was"


def test_a_suspended_process(host: Host, job: subprocess.Popen[bytes]) -> None:
    began = time.time()
    host.suspended(job, guard=me())
    values = host.values()
    assert values["processes suspended"] == 1 and values["processes lost"] == 0
    assert (values["suspended_bytes GPU-a"], values["suspended_bytes GPU-b"]) == (5, 7)
    assert values["unguarded_processes"] == 0
    assert began <= values["oldest_suspended_timestamp_seconds"] <= time.time()
    assert (values["last_step_seconds checkpoint"], values["last_step_bytes checkpoint"]) == (2.5, 12)
    assert values["operations_started_total"] == 1
    assert "secret-name" not in host.file.read_text()


def test_a_guard_that_has_ended(host: Host, job: subprocess.Popen[bytes]) -> None:
    host.suspended(job)
    assert host.values()["unguarded_processes"] == 1


def test_one_that_somebody_continued(host: Host, job: subprocess.Popen[bytes]) -> None:
    host.suspended(job)
    job.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, job.pid, os.WCONTINUED)
    values = host.values()
    assert values["processes running_without_gpu"] == 1 and values["processes suspended"] == 0
    assert "suspended_bytes GPU-a" not in values
    stop(job)
    assert host.values()["processes suspended"] == 1


def test_one_that_was_not_to_be_parked_is_no_runaway(host: Host, job: subprocess.Popen[bytes]) -> None:
    host.suspended(job, park=False)
    job.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, job.pid, os.WCONTINUED)
    assert host.values()["processes suspended"] == 1


def test_one_that_has_ended_is_lost_unless_it_is_in_an_image(host: Host, job: subprocess.Popen[bytes]) -> None:
    operation = host.suspended(job)
    job.kill()
    assert host.values()["processes lost"] == 1, "a zombie has ended"
    job.wait()
    assert host.values()["processes lost"] == 1
    host.journal.begin_image(
        lineage="l", path="/images/a", run_id="r1", root=operation.identity, leave="killed", worker=None
    )
    assert host.values()["processes lost"] == 0


def test_a_pid_that_is_somebody_elses_now(host: Host, job: subprocess.Popen[bytes]) -> None:
    operation = host.suspended(job)
    with sqlite3.connect(host.journal.path) as connection:
        connection.execute("UPDATE operations SET start_ticks = start_ticks - 1 WHERE id = ?", (operation.id,))
    connection.close()
    values = host.values()
    assert values["processes lost"] == 1 and values["processes suspended"] == 0


def test_a_settled_one_and_one_of_another_boot_are_nothing(host: Host, job: subprocess.Popen[bytes]) -> None:
    host.suspended(job)
    with sqlite3.connect(host.journal.path) as connection:
        connection.execute("UPDATE operations SET boot_id = '0d4cf4e5-6cf1-4f6c-8e6c-3d4b5a6f7c80'")
    connection.close()
    assert {host.values()[f"processes {state}"] for state in metrics.STATES} == {0.0}
    operation = host.suspended(job)
    host.journal.finish(operation.id, "done")
    assert {host.values()[f"processes {state}"] for state in metrics.STATES} == {0.0}


def test_a_restore_that_failed_does_not_begin_the_time_anew(host: Host, job: subprocess.Popen[bytes]) -> None:
    operation = host.suspended(job)
    since = host.values()["oldest_suspended_timestamp_seconds"]
    time.sleep(0.01)
    again = host.journal.begin(
        run_id="r2",
        identity=operation.identity,
        executable="x",
        uid=0,
        goal="running",
        state_before="checkpointed",
        step="restore",
        worker=None,
        park=True,
        guard="holder",
        backend="cli",
    )
    host.journal.finish(again.id, "failed", "out of memory")
    values = host.values()
    assert values["oldest_suspended_timestamp_seconds"] == since
    assert values["failed_processes"] == 1 and values["processes suspended"] == 1
    assert values["last_failure_timestamp_seconds running"] > since
    assert "last_failure_timestamp_seconds checkpointed" not in values


def test_images_that_wait_for_their_restore(host: Host) -> None:
    image = host.directory / "image"
    image.mkdir()
    (image / metrics.LIFE).write_text(json.dumps({"state": "unspent"}))
    row = host.journal.begin_image(lineage="l", path=str(image), run_id="r", root=me(), leave="killed", worker=None)
    assert host.values()["unspent_images"] == 0, "it is being made"
    host.journal.image_measured(row.id, "criu_dump", 3.5, 1 << 30)
    host.journal.finish_image(row.id, "gone")
    values = host.values()
    assert (values["unspent_images"], values["unspent_image_bytes"]) == (1, 1 << 30)
    assert values["oldest_unspent_image_timestamp_seconds"] == pytest.approx(row.created)
    assert (values["last_step_seconds criu_dump"], values["last_step_bytes criu_dump"]) == (3.5, 1 << 30)
    for state in ("spent", "restoring"):
        (image / metrics.LIFE).write_text(json.dumps({"state": state}))
        assert host.values()["unspent_images"] == 0, "restored elsewhere"
    (image / metrics.LIFE).write_text(json.dumps({"state": "unspent"}))
    host.journal.finish_image(row.id, "failed")
    assert host.values()["unspent_images"] == 0
    assert host.values()["last_image_failure_timestamp_seconds"] > 0


def test_the_drain_of_the_host(host: Host) -> None:
    drains = Drains(host.journal.file)
    name = 'run\\with"everything\nin it'
    with drains.lock() as change:
        row = change.open(name, 1, "claimed", "boot", controller="c u p", mode="disk")
    with drains.lock() as change:
        change.reach(row.id, "suspended", "boot")
        change.fail(row.id, "no")
    values = host.values()
    assert values["drain_phase suspended"] == 1 and values["drain_phase claimed"] == 0
    assert values[f"drain_info drain disk {name}"] == 1
    assert values["drain_phase_timestamp_seconds"] <= values["last_drain_failure_timestamp_seconds"] <= time.time()
    with drains.lock() as change:
        change.reach(row.id, "released", "boot")
    values = host.values()
    assert {values[f"drain_phase {phase}"] for phase in metrics.PHASES} == {0.0}
    assert not [key for key in values if key.startswith("drain_info")] and "drain_phase_timestamp_seconds" not in values


@pytest.mark.parametrize("damage", ["garbage", "link", "writable", "foreign", "directory"])
def test_a_journal_that_can_not_be_read(damage: str, host: Host) -> None:
    path = Path(host.journal.path)
    host.values()
    host.journal.close()
    for extra in path.parent.glob("*-*"):
        extra.unlink()
    if damage == "garbage":
        path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    elif damage == "link":
        path.rename(path.with_name("other"))
        path.symlink_to(path.with_name("other"))
    elif damage == "writable":
        path.chmod(0o666)
    else:
        path.unlink()
        if damage == "directory":
            path.mkdir()
        else:
            sqlite3.connect(path).executescript("CREATE TABLE a (b)").connection.close()
    done = host.run()
    assert done.returncode == 1 and str(path) in done.stderr and "Traceback" not in done.stderr
    assert parsed(host.file.read_text()) == {"journal_present": 1.0, "journal_readable": 0.0}


def test_a_journal_of_an_older_release(host: Host, job: subprocess.Popen[bytes]) -> None:
    host.suspended(job)
    with sqlite3.connect(host.journal.path) as connection:
        for table in ("image_steps", "images", "drain_failures", "drain_phases", "drains"):
            connection.execute(f"DROP TABLE {table}")
    connection.close()
    assert host.values()["processes suspended"] == 1


def test_who_writes_the_journal_does_not_wait_and_is_not_waited_for(host: Host, job: subprocess.Popen[bytes]) -> None:
    operation = host.suspended(job)
    with host.journal.file.transaction():
        began = time.monotonic()
        assert host.values()["processes suspended"] == 1
        assert time.monotonic() - began < metrics.BUSY / 2
    reader = metrics.Journal(host.journal.path)
    began = time.monotonic()
    host.journal.step(operation.id, "restore")
    host.journal.finish(operation.id, "done")
    assert time.monotonic() - began < metrics.BUSY / 2
    reader.close()
    assert host.values()["processes suspended"] == 0


def test_a_directory_that_is_not_there_or_not_writable(host: Host) -> None:
    host.textfiles.rename(host.directory / "elsewhere")
    done = host.run()
    assert done.returncode == 1 and "Nothing was written" in done.stderr and "Traceback" not in done.stderr


def test_no_reader_ever_sees_a_torn_file(host: Host, job: subprocess.Popen[bytes]) -> None:
    """It is killed at any moment, and the collector reads at any moment."""
    host.suspended(job)
    whole = host.values()
    chance = random.Random(7)
    took = time.monotonic()
    host.run()
    took = time.monotonic() - took
    killed = 0
    for _round in range(40):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), host.journal.path, str(host.textfiles)],
            stdin=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0, took * 1.2))
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        assert parsed(host.file.read_text()) == whole
        assert [path.name for path in host.textfiles.glob("*.prom")] == [metrics.NAME]
    assert killed > 5
    left = host.textfiles / f".{metrics.NAME}.abc.tmp"
    fresh = host.textfiles / f".{metrics.NAME}.def.tmp"
    for path in (left, fresh):
        path.touch()
    os.utime(left, (time.time() - metrics.STALE - 1,) * 2)
    host.values()
    assert not left.exists() and fresh.exists()


def test_a_link_in_its_place_is_replaced_and_not_followed(host: Host) -> None:
    target = host.directory / "target"
    target.write_text("mine")
    host.file.symlink_to(target)
    host.values()
    assert target.read_text() == "mine" and not host.file.is_symlink()
    assert host.file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("minor", range(8, 14))
def test_each_python_of_managed_nodes(minor: int, host: Host, job: subprocess.Popen[bytes]) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
    if not found:
        pytest.skip(f"no Python 3.{minor} under pyenv")
    host.suspended(job)
    done = host.run(str(found[0]))
    assert (done.returncode, done.stderr) == (0, "")
    assert parsed(host.file.read_text())["processes suspended"] == 1


def test_names_follow_the_conventions() -> None:
    for name, metric in metrics.METRICS.items():
        assert re.fullmatch(r"[a-z_]+", name) and metric.help.endswith(".")
        assert (metric.kind == "counter") is name.endswith("_total")
    with pytest.raises(KeyError):
        metrics.Samples().put("misspelt", 1.0)


def test_alerts_use_what_is_exported() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert len(rules) > 5
    used: set[str] = set()
    for rule in rules:
        names = re.findall(r"\b(gpufleet_checkpoint_\w+|node_\w+)", rule["expr"])
        assert names, rule
        used |= set(names)
        for name, label, value in re.findall(r'gpufleet_checkpoint_(\w+)\{(\w+)="([^"]*)"\}', rule["expr"]):
            assert value in LABELS[name, label], rule["expr"]
        assert {"summary", "description"} <= set(rule["annotations"]) and rule["labels"]["severity"]
    known = {metrics.PREFIX + name for name in metrics.METRICS}
    assert used - {"node_textfile_mtime_seconds"} <= known
    assert metrics.NAME in ALERTS.read_text()


LABELS = {
    ("processes", "state"): metrics.STATES,
    ("last_failure_timestamp_seconds", "goal"): metrics.GOALS,
    ("drain_info", "kind"): ("drain", "suspend"),
}


def test_the_guide_has_every_metric_and_every_alert_and_no_other() -> None:
    text = GUIDE.read_text()
    assert re.findall(r"^\| `gpufleet_checkpoint_(\w+)", text, re.M) == list(metrics.METRICS)
    rules = [rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert re.findall(r"^\| `(Gpu\w+)` \|", text, re.M) == rules


def test_the_example_is_what_molecule_runs() -> None:
    """But for the interval, which would keep it waiting."""
    (run,) = yaml.safe_load((ROOT / "extensions/molecule/gpu_metrics/converge.yml").read_text())
    assert run["roles"][0]["vars"].pop("gpu_metrics_interval") < 10
    run["hosts"] = "gpu"
    for guide in (GUIDE, ROOT / "roles/gpu_metrics/README.md"):
        (block,) = re.findall(r"```yaml\n(.*?)```", guide.read_text(), re.S)
        assert yaml.safe_load(block) == [run]
