# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests: what is written is what is read, and whatever is not as it was written is refused by name."""

import copy
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import manifest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.digest import FileDigest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import FieldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import (
    Manifest,
    from_json,
    read_manifest,
    to_json,
    write_manifest,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from tests.unit.plugins.criu.images_made import BOOT, GPU, SHELL, WORKER, make_manifest

Change = Callable[[dict[str, Any]], object]


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(to_json(make_manifest()))
    return loaded


def refused(value: object) -> FieldError:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(FieldError) as caught:
        from_json(data)
    return caught.value


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    whole = make_manifest()
    assert from_json(to_json(whole)) == whole
    write_manifest(str(tmp_path), whole)
    assert read_manifest(str(tmp_path)) == whole
    assert os.stat(tmp_path / "manifest.json").st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["manifest.json"]
    small = replace(whole, driver="", gpus=(), tree=(SHELL,), files=(), options=(), selection="", compressed="zstd")
    assert from_json(to_json(small)) == small


def test_it_says_of_a_whole_what_its_parts_say() -> None:
    whole = make_manifest()
    assert whole.pids == (4711, 4712)
    assert whole.root_identity == Identity(4711, 100, BOOT)
    assert whole.member(4712) == WORKER and whole.member(4713) is None
    assert whole.bytes == 9 + (1 << 20) + 1
    assert whole.device_bytes == {GPU: 8 << 30}
    other = replace(SHELL, device_bytes={GPU: 1})
    assert make_manifest(tree=(other, WORKER)).device_bytes == {GPU: (8 << 30) + 1}


HOSTILE: list[tuple[str, Change, str, str]] = [
    ("a newer version", lambda v: v.update(version=2), "version", "2"),
    ("no version", lambda v: v.pop("version"), "version", "null"),
    ("true as version", lambda v: v.update(version=True), "version", "true"),
    ("1.0 as version", lambda v: v.update(version=1.0), "version", "1.0"),
    ("an unknown field", lambda v: v.update(command="rm"), "command", "there"),
    ("a field that is missing", lambda v: v.pop("tree"), "tree", "missing"),
    ("a lineage with a slash", lambda v: v.update(lineage="../x"), "lineage", '"../x"'),
    ("a lineage with a line end", lambda v: v.update(lineage="abc\n"), "lineage", '"abc\\n"'),
    ("a time that is none", lambda v: v.update(created="now"), "created", '"now"'),
    ("a time before all times", lambda v: v.update(created=-1), "created", "-1"),
    ("a name that escapes", lambda v: v.update(name="../../etc"), "name", '"../../etc"'),
    ("a name that hides", lambda v: v.update(name=".x"), "name", '".x"'),
    ("a run with a terminal's escape", lambda v: v.update(run_id="\x1b[2J"), "run_id", '"\\x1b[2J"'),
    ("a host that turns the text round", lambda v: v.update(hostname="\u202e"), "hostname", '"\\u202e"'),
    ("a driver that is words", lambda v: v.update(driver="580; rm"), "driver", '"580; rm"'),
    ("another compression", lambda v: v.update(compressed="xz"), "compressed", '"xz"'),
    ("a snapshot of 1", lambda v: v.update(snapshot=1), "snapshot", "1"),
    ("an option with a zero byte", lambda v: v.update(options=["--a\0b"]), "options[0]", '"--a\\x00b"'),
    ("options as one text", lambda v: v.update(options="--a"), "options", '"--a"'),
    ("a root that is not the first", lambda v: v.update(root=4712), "root", "4712"),
    ("no tree", lambda v: v.update(tree=[]), "tree", "empty"),
    ("a tree of numbers", lambda v: v.update(tree=[1]), "tree[0]", "1"),
    ("a PID of 0", lambda v: v["tree"][0].update(pid=0), "tree[0].pid", "0"),
    ("a negative PID", lambda v: v["tree"][0].update(pid=-1), "tree[0].pid", "-1"),
    ("a PID beyond all", lambda v: v["tree"][0].update(pid=1 << 22), "tree[0].pid", "4194304"),
    ("a PID as text", lambda v: v["tree"][0].update(pid="4711"), "tree[0].pid", '"4711"'),
    ("a PID as a fraction", lambda v: v["tree"][0].update(pid=4711.0), "tree[0].pid", "4711.0"),
    ("a PID of true", lambda v: v["tree"][0].update(pid=True), "tree[0].pid", "true"),
    ("a PID twice", lambda v: v["tree"].append(v["tree"][1]), "tree[2].threads", "with 4712, as before"),
    ("a thread twice", lambda v: v["tree"][1].update(threads=[4712, 4712]), "tree[1].threads", "with 4712, as before"),
    ("a thread of another", lambda v: v["tree"][1].update(threads=[4711]), "tree[1].threads", "a list of 1"),
    ("no threads", lambda v: v["tree"][0].update(threads=[]), "tree[0].threads", "a list of 0"),
    ("a stranger as parent", lambda v: v["tree"][1].update(parent=1), "tree[1].parent", "1"),
    ("its own parent", lambda v: v["tree"][1].update(parent=4712), "tree[1].parent", "4712"),
    ("a member that lacks a field", lambda v: v["tree"][0].pop("uid"), "tree[0].uid", "missing"),
    ("a user id beyond all", lambda v: v["tree"][0].update(uid=1 << 32), "tree[0].uid", "4294967296"),
    ("a state that is none", lambda v: v["tree"][1].update(state_before="gone"), "tree[1].state_before", '"gone"'),
    ("an executable elsewhere", lambda v: v["tree"][0].update(executable="a"), "tree[0].executable", '"a"'),
    (
        "absurd bytes on a GPU",
        lambda v: v["tree"][1]["device_bytes"].update({GPU: 1 << 60}),
        f"tree[1].device_bytes.{GPU}",
        str(1 << 60),
    ),
    (
        "bytes on a GPU that is not there",
        lambda v: v["tree"][1]["device_bytes"].update({"GPU-x": 1}),
        "tree[1].device_bytes",
        'with "GPU-x"',
    ),
    ("a GPU twice", lambda v: v["gpus"].append(v["gpus"][0]), "gpus[1].uuid", f'"{GPU}", as before'),
    ("a file elsewhere", lambda v: v["files"][0].update(path="etc/passwd"), "files[0].path", '"etc/passwd"'),
    ("a file with a zero byte", lambda v: v["files"][0].update(path="/a\0"), "files[0].path", '"/a\\x00"'),
    ("a file without a size", lambda v: v["files"][0].update(size=None), "files[0].size", "null"),
    ("a file of negative size", lambda v: v["files"][0].update(size=-2), "files[0].size", "-2"),
    ("no content", lambda v: v.update(chunks=[]), "chunks", "empty"),
    ("a content that escapes", lambda v: v["chunks"][0].update(name="../x"), "chunks[0].name", '"../x"'),
    (
        "a content that is absolute",
        lambda v: v["chunks"][0].update(name="/etc/passwd"),
        "chunks[0].name",
        '"/etc/passwd"',
    ),
    ("a content called ..", lambda v: v["chunks"][0].update(name=".."), "chunks[0].name", '".."'),
    ("a content that is an option", lambda v: v["chunks"][0].update(name="-rf"), "chunks[0].name", '"-rf"'),
    ("a content with a zero byte", lambda v: v["chunks"][0].update(name="a\0"), "chunks[0].name", '"a\\x00"'),
    ("a content without a name", lambda v: v["chunks"][0].update(name=""), "chunks[0].name", '""'),
    (
        "the manifest in itself",
        lambda v: v["chunks"][0].update(name="manifest.json"),
        "chunks[0].name",
        '"manifest.json"',
    ),
    ("the spent mark as content", lambda v: v["chunks"][0].update(name="life.json"), "chunks[0].name", '"life.json"'),
    ("a content twice", lambda v: v["chunks"].append(v["chunks"][0]), "chunks[2].name", '"inventory.img", as before'),
    ("an absurd size", lambda v: v["chunks"][0].update(bytes=1 << 62), "chunks[0].bytes", str(1 << 62)),
    (
        "a size that the sums don't fit",
        lambda v: v["chunks"][0].update(bytes=1 << 40),
        "chunks[0].sha256s",
        "a list of 1",
    ),
    ("chunks of a byte", lambda v: v["chunks"][0].update(chunk_bytes=1), "chunks[0].chunk_bytes", "1"),
    ("a sum too few", lambda v: v["chunks"][1]["sha256s"].pop(), "chunks[1].sha256s", "a list of 1"),
    ("a sum that is none", lambda v: v["chunks"][0].update(sha256s=["A" * 64]), "chunks[0].sha256s[0]", '"AAAA'),
]


@pytest.mark.parametrize(("change", "field", "seen"), [one[1:] for one in HOSTILE], ids=[one[0] for one in HOSTILE])
def test_what_was_never_written_is_refused_by_name(change: Change, field: str, seen: str) -> None:
    value = values()
    change(value)
    error = refused(value)
    assert error.field == field
    assert error.seen.startswith(seen)
    assert error.allowed and str(error).startswith(f"{field} is {seen}")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"[]", "a file with a list of 0"),
        (b"null", "a file with null"),
        (b'{"version": 1, "version": 1}', '"version" is there twice'),
        (b'{"version": NaN}', "NaN as a number"),
        (b'{"version": Infinity}', "Infinity as a number"),
        (b'{"version": 1e999}', "the number 1e999"),
        (b'{"version": ' + b"9" * 100 + b"}", "a number of 100 digits"),
        (b"[" * 200000, "nested too deep"),
        (b'{"a":' * 200000, "nested too deep"),
    ],
)
def test_what_is_no_manifest_at_all(data: bytes, words: str) -> None:
    began = time.monotonic()
    assert words in str(refused(data))
    assert time.monotonic() - began < 5


def test_one_that_is_too_large_is_not_even_read(tmp_path: Path) -> None:
    with open(tmp_path / "manifest.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CriuError) as caught:
        read_manifest(str(tmp_path))
    assert f"{1 << 40} bytes long; allowed: at most {manifest.MOST} bytes" in str(caught.value)


def test_a_number_of_many_digits_costs_no_time() -> None:
    began = time.monotonic()
    refused(b'{"version": ' + b"7" * (manifest.MOST - 100) + b"}")
    assert time.monotonic() - began < 5


def test_where_it_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(CriuError) as caught:
        read_manifest(str(tmp_path))
    assert caught.value.subject == str(tmp_path / "manifest.json")
    assert "No such file" in caught.value.evidence and caught.value.remedy
    (tmp_path / "other").write_bytes(to_json(make_manifest()))
    (tmp_path / "manifest.json").symlink_to("other")
    with pytest.raises(CriuError, match="symbolic links"):
        read_manifest(str(tmp_path))
    (tmp_path / "manifest.json").unlink()
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(CriuError, match="no regular file"):
        read_manifest(str(tmp_path))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tree": (replace(SHELL, state_before="unknown"), WORKER)}, "tree[0].state_before is"),
        ({"gpus": ()}, "tree[1].device_bytes is with"),
        ({"chunks": (FileDigest("a/b", 0, 1 << 20, ("0" * 64,)),)}, "chunks[0].name is"),
        ({"version": 2}, "version is 2"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(CriuError) as caught:
        write_manifest(str(tmp_path), make_manifest(**changed))
    assert words in caught.value.evidence
    assert os.listdir(tmp_path) == []


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with a key of it."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    for key in keys:
        found.append((value, key))
        found.extend(places(value[key]))
    return found


ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**19,
    0.5,
    -0.0,
    "",
    ".",
    "..",
    "../x",
    "/",
    "/etc/shadow",
    "a\0b",
    "\n",
    "\u202e",
    "\ud800",
    "x" * 5000,
    [],
    {},
    [[]],
    [None],
    {"": 0},
    {"version": 1},
]


def mutate(value: dict[str, Any], chance: random.Random) -> None:
    for _change in range(chance.randint(1, 3)):
        container, key = chance.choice(places(value) or [(value, "version")])
        kind = chance.randrange(4)
        if kind == 0:
            container[key] = copy.deepcopy(chance.choice(ODD))
        elif kind == 1:
            del container[key]
        elif kind == 2 and isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(chance.choice([container[other] for container, other in places(value)]))


def is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_sound(read: Manifest) -> None:
    """What every manifest that was let in holds to, asked in other words."""
    assert read.pids[0] == read.root and len(set(read.pids)) == len(read.pids)
    for one in read.chunks:
        assert "/" not in one.name and one.name not in ("", ".", "..", "manifest.json", "life.json")
        assert one.name.isprintable() and not one.name.startswith((".", "-"))
        assert 0 <= one.bytes <= 1 << 50
    for file in read.files:
        assert file.path.startswith("/") and "\0" not in file.path and isinstance(file.size, int)
    for text in (read.lineage, read.name, read.run_id, read.hostname, read.driver, read.criu):
        assert text == "" or text.isprintable()
    for member in read.tree:
        assert is_number(member.pid) and 0 < member.pid < 1 << 22 and isinstance(member.cuda, bool)
        assert all(is_number(count) and 0 <= count <= 1 << 50 for count in member.device_bytes.values())


def test_thousands_of_random_changes_are_refused_or_sound() -> None:
    chance = random.Random(20261130)
    let_in = 0
    whole = values()
    for _round in range(6000):
        value = copy.deepcopy(whole)
        mutate(value, chance)
        data = json.dumps(value).encode()
        try:
            read = from_json(data)
        except FieldError as error:
            assert str(error).isprintable(), "a message must not carry anything onto a terminal"
            assert len(str(error)) < 1000
            continue
        let_in += 1
        check_sound(read)
        assert from_json(to_json(read)) == read
    assert 0 < let_in < 3000, "both happen"


def test_thousands_of_random_bytes_are_refused_or_sound() -> None:
    chance = random.Random(20261201)
    whole = to_json(make_manifest())
    refusals = 0
    for _round in range(6000):
        data = bytearray(whole)
        for _change in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            kind = chance.randrange(3)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                del data[at : at + chance.randint(1, 40)]
            else:
                data[at:at] = bytes(chance.choice(b'{}[]",:0123456789.-e\\/') for _byte in range(chance.randint(1, 9)))
        try:
            check_sound(from_json(bytes(data)))
        except FieldError as error:
            refusals += 1
            assert str(error).isprintable()
    assert refusals > 1000
