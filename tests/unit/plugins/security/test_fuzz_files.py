# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that somebody else may have written: manifests, CRIU's images, journals. Each is refused in its own words, or
holds what this collection could have written itself."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import (
    images,
    life,
    manifest,
    owner,
    saved,
    store,
    wire,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import is_content
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import FieldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_rows import Drains
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_rows import Row, read_rows, record
from tests.unit.plugins.criu.test_manifest import values
from tests.unit.plugins.journal.helpers import BOOT, begin, identity

SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["../../etc/passwd", "/etc/passwd", "pages-1.img\n", ".owner", "manifest.json", "\ud800", "-1", "1e9"]
    ),
)
JSON = st.recursive(
    SCALAR, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=6), one, max_size=3)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything in it, how to get there."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        found += places(one, (*path, key))
    return found


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode("ascii")


WHOLE = values()


def read_manifest(data: bytes) -> None:
    try:
        found = manifest.from_json(data)
    except FieldError:
        return
    assert manifest.from_json(manifest.to_json(found)) == found
    for chunk in found.chunks:
        assert os.path.basename(chunk.name) == chunk.name and is_content(chunk.name) and chunk.name.isprintable()
    assert found.hostname.isprintable() and found.run_id.isprintable() and found.name.isprintable()
    assert not [one for one in found.options if not one.isprintable() and any(ord(letter) < 32 for letter in one)]


@given(st.binary(max_size=60))
@example(b"[" * 100000)
@example(b'{"version": ' + b"9" * 5000 + b"}")
def test_any_bytes_are_no_manifest(data: bytes) -> None:
    for parse in (manifest.from_json, life.from_json):
        with pytest.raises(FieldError):
            parse(data)


@given(st.sampled_from(places(WHOLE)), JSON)
def test_a_manifest_with_any_value_in_any_place_is_refused_or_sound(path: tuple[Any, ...], value: Any) -> None:
    read_manifest(as_json(put(WHOLE, path, value)))


@given(JSON)
def test_any_life_is_refused_or_sound(value: Any) -> None:
    whole = {"state": "spent", "boot_id": "", "run_id": "", "at": 1.0, "members": [["x"]]}
    for one in (value, {**whole, "members": value}, {**whole, "init": value}, {**whole, "state": value}):
        try:
            found = life.from_json(as_json(one))
        except FieldError:
            continue
        assert life.from_json(life.to_json(found)) == found


@given(content=st.one_of(st.binary(max_size=200), JSON.map(as_json)))
def test_any_files_of_an_image_are_refused_or_read(tmp_path: Path, content: bytes) -> None:
    image = tmp_path / "image"
    shutil.rmtree(image, ignore_errors=True)
    image.mkdir(mode=0o700)
    for name in ("manifest.json", "life.json", ".owner", ".lifeline"):
        (image / name).write_bytes(content)
        (image / name).chmod(0o600)
    owner.read_owner(str(image))
    for one in saved.load(str(image)):
        assert isinstance(one.identity.pid, int)
    with pytest.raises(CriuError):
        store.open_image(str(image))
    assert [type(one) for one in store.list_images(str(tmp_path))] == [store.Broken]


MAGIC = {"pstree.img": 0x50273030, "files.img": 0x56303138, "core-1.img": 0x55053847, "pagemap-1.img": 0x56084025}


@given(records=st.lists(st.binary(max_size=40), max_size=4), size=st.integers(0, 1 << 32))
def test_any_image_of_criu_is_refused_or_read(tmp_path: Path, records: list[bytes], size: int) -> None:
    body = b"".join(len(one).to_bytes(4, "little") + one for one in records)
    for name, magic in MAGIC.items():
        head = wire.COMMON.to_bytes(4, "little") + magic.to_bytes(4, "little")
        (tmp_path / name).write_bytes(head + body + (size & 0xFFFFFFFF).to_bytes(4, "little")[: size % 5])
    for read in (images.read_pstree, images.page_bytes, images.regular_files):
        try:
            read(str(tmp_path))
        except images.ImageError:
            pass
    assert images.is_complete(str(tmp_path), "dump", "Dumping finished successfully") is False


@given(st.binary(max_size=60))
def test_any_message_is_refused_or_read(data: bytes) -> None:
    try:
        message = wire.parse(data, "x")
    except wire.ImageError:
        return
    for field in message:
        for read in (wire.number, wire.numbers, wire.content):
            try:
                read(message, field, "x")
            except wire.ImageError:
                pass


# The journal


def fill(journal: Journal) -> None:
    """A row at least in each table."""
    operation = begin(journal)
    journal.step(operation.id, "checkpoint", signal_mask="12=0000000000004000")
    journal.finish(operation.id, "suspended", "x", {"checkpoint": 1.5})
    begin(journal, pid=13)
    journal.reserve([(identity(14), {"GPU-a": 5})], lambda: {"GPU-a": 9}, lambda _one: True)
    image = journal.begin_image(
        lineage="l", path="/images/a", run_id="run", root=identity(12), leave="killed", worker=None
    )
    journal.image_step(image.id, "criu_dump", stopped=[identity(12)])
    journal.image_measured(image.id, "criu_dump", 1.0, 4096)
    with Drains(journal.file).lock() as change:
        row = change.open("run", 1, "claimed", BOOT)
        change.reach(
            row.id, "suspending", BOOT, processes=({"identity": {"pid": 1, "start_ticks": 2, "boot_id": BOOT}},)
        )
        change.fail(row.id, "x")
    record(journal, Row("a.service", "image:l", BOOT, 5, "both", identity(12), None, (identity(13),)))


def read_everything(path: str, write: bool) -> None:
    journal = open_journal(path, create=write, busy_seconds=0.2)
    try:
        journal.live(BOOT)
        journal.latest(identity(12))
        journal.refused(identity(12))
        journal.of_run("run")
        journal.history("checkpoint")
        journal.history("criu_dump")
        journal.steps(1)
        journal.reserved(lambda _one: True)
        journal.images_of(identity(12))
        journal.live_images()
        drains = Drains(journal.file)
        drains.find("run")
        drains.closed(5)
        drains.timeline(1)
        drains.failures(1)
        read_rows(journal)
        if write:
            journal.drop_reservations(lambda _one: False)
            begin(journal, pid=77)
    finally:
        journal.file.close()


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "sample.db"
    journal = open_journal(str(path))
    fill(journal)
    with journal.file.transaction() as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert all(connection.execute(f"SELECT count(*) FROM {one}").fetchone()[0] for one in tables)
    journal.file.close()
    read_everything(str(path), write=False)
    return path


def refused_or_read(path: Path) -> bool:
    """True: each way of opening it refused it."""
    refusals = 0
    for write in (False, True):
        try:
            read_everything(str(path), write)
        except JournalError:
            refusals += 1
    return refusals == 2


def with_change(sample: Path, directory: Path, change: Callable[[sqlite3.Connection], object]) -> Path:
    path = directory / "journal.db"
    for one in directory.iterdir():
        one.unlink()
    shutil.copy(sample, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        change(connection)
    return path


COLUMNS = st.sampled_from(
    [
        ("operations", "pid"),
        ("operations", "run_id"),
        ("operations", "created"),
        ("operations", "signal_mask"),
        ("operations", "worker_pid"),
        ("device_bytes", "bytes"),
        ("steps", "seconds"),
        ("reservations", "bytes"),
        ("settings", "before"),
        ("settings", "during"),
        ("setting_users", "pid"),
        ("images", "stopped"),
        ("images", "finished"),
        ("image_steps", "bytes"),
        ("drains", "runs"),
        ("drains", "processes"),
        ("drains", "scheduler"),
        ("drains", "opened"),
        ("drain_phases", "at"),
        ("drain_failures", "attempt"),
    ]
)
CELL = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.text(max_size=8).filter(lambda text: text.isprintable()),
    st.binary(max_size=8),
    JSON.map(json.dumps),
    st.sampled_from(["[" * 100000, '[["x", 1, 2]]', "{}", "[]", '{"watchdog_usec": 1}']),
)


@given(place=COLUMNS, value=CELL)
def test_any_value_in_any_column_is_refused_or_read(
    sample: Path, tmp_path: Path, place: tuple[str, str], value: Any
) -> None:
    table, column = place

    def change(connection: sqlite3.Connection) -> None:
        try:
            connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
        except sqlite3.IntegrityError:
            pass

    refused_or_read(with_change(sample, tmp_path, change))


@given(at=st.floats(0, 0.9999), data=st.binary(min_size=1, max_size=64), cut=st.booleans())
def test_any_damage_is_refused_or_read(sample: Path, tmp_path: Path, at: float, data: bytes, cut: bool) -> None:
    path = with_change(sample, tmp_path, lambda _connection: None)
    content = path.read_bytes()
    start = int(at * len(content))
    path.write_bytes(content[:start] + data + (b"" if cut else content[start + len(data) :]))
    refused_or_read(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER x AFTER INSERT ON operations BEGIN DELETE FROM operations; END",
        "CREATE VIEW x AS SELECT 1",
        "CREATE TABLE x (y)",
        "DROP TABLE images",
        "DROP INDEX drains_open",
        "UPDATE operations SET pid = 'twelve'",
        "UPDATE operations SET run_id = x'00'",
        "UPDATE operations SET created = 9e999",
        "UPDATE images SET stopped = '[[1, 2]]'",
        "UPDATE images SET stopped = '{'",
        "UPDATE drains SET processes = '[7]'",
        "UPDATE settings SET during = '{}' WHERE name LIKE 'unit_hold %'",
    ],
)
def test_what_no_release_has_written_is_refused(sample: Path, tmp_path: Path, statement: str) -> None:
    assert refused_or_read(with_change(sample, tmp_path, lambda connection: connection.execute(statement)))
