# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What criu_image_info returns, against what it documents."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.inspection import inspect_path, inspect_store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import SPENT, Life
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
from tests.unit.plugins.criu.images_made import BOOT, GPU, make_image, make_manifest, names
from tests.unit.plugins.documentation.returned import problems

NOW = 1796003600.75
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "inference-4711"
    make_image(path)
    return path


def checked(found: dict[str, Any]) -> dict[str, Any]:
    assert not problems("criu_image_info", found)
    json.dumps(found).encode("utf-8")
    return found


def test_an_image_is_told_whole(image: Path) -> None:
    found = checked(inspect_path(str(image), "full", NOW))
    assert found["broken"] == found["partial"] == []
    (shown,) = found["images"]
    size = sum(one.stat().st_size for one in image.iterdir() if one.suffix == ".img")
    assert {
        name: shown[name] for name in ("path", "name", "created", "age_seconds", "bytes", "device_bytes", "pid")
    } == {
        "path": str(image),
        "name": "inference-4711",
        "created": "2026-11-30T00:53:20Z",
        "age_seconds": 3600,
        "bytes": size,
        "device_bytes": 8 << 30,
        "pid": 4711,
    }
    assert [one["pid"] for one in shown["tree"]] == [4711, 4712]
    assert shown["tree"][1]["name"] == "pyth\\n\\udcff", "as it can stand in a message"
    assert shown["gpus"] == [{"uuid": GPU, "index": 0, "model": "NVIDIA H200", "bytes": 8 << 30}]
    assert (shown["verified"], shown["problems"]) == ("full", [])
    assert (shown["state"], shown["spent"], shown["lives"], shown["snapshot"]) == ("unspent", False, [], False)


def test_only_gpus_that_were_in_use_are_needed(image: Path) -> None:
    made = make_manifest()
    more = (*made.gpus, made.gpus[0].__class__("GPU-other", 1, "NVIDIA H200", 5))
    make_image(image.with_name("b"), gpus=more)
    shown = inspect_path(str(image.with_name("b")), "none", NOW)["images"][0]
    assert [one["uuid"] for one in shown["gpus"]] == [GPU]


def test_who_lives_is_told_and_what_was_spent(tmp_path: Path) -> None:
    me = read_identity(os.getpid())
    assert me is not None
    gone = me.__class__(4711, 100, BOOT)
    make_image(tmp_path / "a", Life(SPENT, me.boot_id, "run", 1.0, (gone, me)))
    shown = checked(inspect_path(str(tmp_path / "a"), "none", NOW))["images"][0]
    assert (shown["state"], shown["spent"]) == ("spent", True)
    assert shown["lives"] == [{"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": me.boot_id}]


def test_damage_is_a_problem_and_no_failure(image: Path) -> None:
    os.truncate(image / "pages-1.img", 5)
    assert inspect_path(str(image), "none", NOW)["images"][0]["problems"] == []
    for how in ("sizes", "full"):
        shown = checked(inspect_path(str(image), how, NOW))["images"][0]
        assert shown["problems"] == ["pages-1.img has 5 bytes instead of 256000"]


def test_what_is_not_there_is_no_failure(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"images": [], "broken": [], "partial": []}
    assert inspect_path(str(tmp_path / "a"), "full", NOW) == nothing
    assert inspect_path(str(tmp_path / "missing" / "a"), "full", NOW) == nothing
    assert inspect_store(str(tmp_path / "missing"), "full", NOW) == nothing
    assert inspect_store(str(tmp_path), "full", NOW) == nothing


def test_a_store_with_all_kinds(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        make_image(tmp_path / name)
    (tmp_path / "b" / "manifest.json").write_text('{"version": 2}')
    partial = store.make_partial(str(tmp_path / "d"))
    found = checked(inspect_store(str(tmp_path), "sizes", NOW))
    assert [one["name"] for one in found["images"]] == ["a", "c"]
    (broken,) = found["broken"]
    assert broken["path"] == str(tmp_path / "b") and "version is 2; allowed: 1" in broken["why"]
    (unfinished,) = found["partial"]
    size = os.stat(os.path.join(partial, ".owner")).st_size
    by = f"PID {os.getpid()} of {os.uname().nodename}"
    assert unfinished == {"path": partial, "by": by, "active": True, "bytes": size}
    assert checked(inspect_path(str(tmp_path / "b"), "none", NOW))["broken"] == [broken]
    assert inspect_path(str(tmp_path / "d"), "none", NOW)["partial"] == [unfinished]
    assert inspect_path(str(tmp_path / "a"), "none", NOW)["partial"] == []
    store.remove_partial(partial)


def test_nothing_is_changed(image: Path) -> None:
    before = [(one.name, one.stat().st_mtime_ns, one.stat().st_ino) for one in sorted(image.iterdir())]
    inspect_store(str(image.parent), "full", NOW)
    inspect_path(str(image), "full", NOW)
    assert [(one.name, one.stat().st_mtime_ns, one.stat().st_ino) for one in sorted(image.iterdir())] == before
    assert names(image.parent) == [image.name]


def test_a_place_that_can_not_be_trusted(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(CriuError, match="is a symbolic link"):
        inspect_store(str(tmp_path / "link"), "none", NOW)
    with pytest.raises(CriuError, match="is a symbolic link"):
        inspect_path(str(tmp_path / "link" / "a"), "none", NOW)
    with pytest.raises(CriuError, match="is not absolute"):
        inspect_path("a", "none", NOW)


def run(arguments: dict[str, Any], user: int) -> dict[str, Any]:
    """The module as Ansible runs it, as this user."""
    code = (
        "import sys, os; sys.argv = ['x', sys.argv[1]];"
        "from ansible_collections.gpufleet.checkpoint.plugins.modules.criu_image_info import main;"
        f"os.setuid({user}) if {user} != os.getuid() else None; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps({"ANSIBLE_MODULE_ARGS": arguments})],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "build/tree"), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("\n{"), done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.skipif(os.getuid() != 0, reason="images are root's")
def test_the_module_returns_it(image: Path) -> None:
    said = run({"store": str(image.parent), "verify": "full"}, 0)
    assert (said["changed"], [one["name"] for one in said["images"]]) == (False, ["inference-4711"])
    assert not problems("criu_image_info", said)
    assert "An absolute path is allowed" in run({"path": "images/a"}, 0)["msg"]
    assert "one of the following is required: path, store" in run({}, 0)["msg"]
    assert "mutually exclusive: path|store" in run({"path": "/a", "store": "/b"}, 0)["msg"]


def test_another_user_than_root_is_told_so(image: Path) -> None:
    user = os.getuid() or 65534
    said = run({"path": str(image)}, user)
    assert said["failed"] and said["msg"] == (
        f"The task runs as user id {user}. Images are closed to everybody but root. Set become: true."
    )
