# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The criu executable, and its command lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.options import Chosen
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tool import Criu

CRIU = Criu("/usr/sbin/criu", (4, 1, 1), "")
NOTHING = Chosen(("--manage-cgroups=ignore",))


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "state"
    monkeypatch.setattr(tool, "STATE", str(place))
    return place


# find


def test_version_and_commit(tmp_path: Path) -> None:
    path = program(tmp_path / "criu", "echo 'Version: 4.1.1'; echo 'GitID: v4.1.1-3-gabc'")
    assert tool.find(path) == Criu(path, (4, 1, 1), "v4.1.1-3-gabc")
    assert tool.find(program(tmp_path / "packaged", "echo 'Version: 4.2'; echo 'GitID: 0'")).gitid == ""


def test_name_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "criu-test", "echo Version: 4.0")
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path}")
    assert tool.find("criu-test").path == str(tmp_path / "criu-test")


def test_missing() -> None:
    with pytest.raises(CriuError) as caught:
        tool.find("/nowhere/criu")
    assert "/nowhere/criu is no executable file" in str(caught.value)
    assert "Install the package criu, version 4.0 or newer" in str(caught.value)
    assert caught.value.option == "criu_executable"


@pytest.mark.parametrize("version", ["3.17.1", "3.19", "0.9"])
def test_too_old(tmp_path: Path, version: str) -> None:
    with pytest.raises(CriuError, match=f"its version is {version}.*Install CRIU 4.0 or newer"):
        tool.find(program(tmp_path / "criu", f"echo Version: {version}"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no; exit 1", "it says: no"),
        ("exit 3", "exit status 3 without a word"),
        ("echo 'libnet.so.9: cannot open' >&2; exit 127", "libnet.so.9: cannot open"),
        ("printf 'a\\033[2Jb\\n'", r"it says: a\\x1b\[2Jb"),
    ],
)
def test_without_a_version(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(CriuError, match=words):
        tool.find(program(tmp_path / "criu", script))


def test_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "SECONDS", 0.2)
    with pytest.raises(CriuError, match=r"gave no answer within 0\.2 s"):
        tool.find(program(tmp_path / "criu", "exec sleep 60"))


# Command lines


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_dump(state: Path) -> None:
    words = tool.dump_argv(CRIU, 4711, "/images/a.partial", Chosen(("--shell-job",)), "stopped")
    assert words[:2] == ["/usr/sbin/criu", "dump"]
    assert after(words, "--tree") == "4711"
    assert after(words, "--images-dir") == "/images/a.partial"
    assert after(words, "--log-file") == "/images/a.partial/dump.log"
    assert after(words, "--libdir") == str(state / "no-plugins")
    assert {"-v4", "--no-default-config", "--leave-stopped", "--shell-job"} <= set(words)


def test_dump_that_ends_the_tree() -> None:
    words = tool.dump_argv(CRIU, 4711, "/images/a", NOTHING, "killed")
    assert not {"--leave-stopped", "--leave-running"} & set(words)


def test_restore(state: Path) -> None:
    words = tool.restore_argv(CRIU, "/images/a", NOTHING, "/images/a/restore.log")
    assert words[:2] == ["/usr/sbin/criu", "restore"]
    assert after(words, "--log-file") == "/images/a/restore.log"
    assert after(words, "--work-dir") == str(state / "criu")
    assert {"--restore-detached", "--leave-stopped", "--no-default-config"} <= set(words)
    assert "--restore-sibling" not in words


def test_jobs_of_a_shell_are_restored_as_siblings() -> None:
    """Else the end of CRIU orphans their process group, and the kernel ends them."""
    assert "--restore-sibling" in tool.restore_argv(CRIU, "/images/a", Chosen(("--shell-job",)), "/log")


@pytest.mark.parametrize(
    ("there", "expected"),
    [(("iptables-restore", "nft"), False), (("nft",), True), ((), False), (("iptables-restore",), False)],
)
def test_connections_are_locked_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], expected: bool
) -> None:
    monkeypatch.setattr(tool, "PATH", str(tmp_path))
    for name in there:
        program(tmp_path / name, "")
    words = tool.dump_argv(CRIU, 9, "/images/a", Chosen(("--tcp-established",)), "killed")
    assert ("--network-lock=nftables" in words) is expected
    assert "--network-lock=nftables" not in tool.dump_argv(CRIU, 9, "/images/a", NOTHING, "stopped")


@pytest.mark.parametrize("pid", [0, 1, -5])
def test_impossible_roots(pid: int) -> None:
    with pytest.raises(ValueError, match="is no PID of a tree"):
        tool.dump_argv(CRIU, pid, "/images/a", NOTHING, "stopped")


def test_paths_are_absolute() -> None:
    with pytest.raises(ValueError, match="images is not absolute"):
        tool.dump_argv(CRIU, 9, "images", NOTHING, "stopped")
    with pytest.raises(ValueError, match=r"restore\.log is not absolute"):
        tool.restore_argv(CRIU, "/images/a", NOTHING, "restore.log")
    with pytest.raises(ValueError, match="running"):
        tool.dump_argv(CRIU, 9, "/images/a", NOTHING, "running")


# The directory without plugins


def test_it_is_made_for_its_owner_alone(state: Path) -> None:
    for _again in range(2):
        tool.dump_argv(CRIU, 9, "/images/a", NOTHING, "stopped")
    assert (state / "no-plugins").stat().st_mode & 0o777 == 0o700
    assert os.listdir(state / "no-plugins") == []


def test_a_plugin_in_it_is_refused(state: Path) -> None:
    tool.dump_argv(CRIU, 9, "/images/a", NOTHING, "stopped")
    (state / "no-plugins" / "cuda_plugin.so").write_bytes(b"")
    with pytest.raises(CriuError, match=r"it holds cuda_plugin\.so.*given one of root's that holds none.*Remove"):
        tool.restore_argv(CRIU, "/images/a", NOTHING, "/log")


@pytest.mark.parametrize("kind", ["link", "file", "writable"])
def test_a_place_that_others_made(state: Path, tmp_path: Path, kind: str) -> None:
    state.mkdir(mode=0o700)
    place = state / "no-plugins"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        place.write_bytes(b"")
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(CriuError, match="no directory, or others than root can write to it"):
        tool.dump_argv(CRIU, 9, "/images/a", NOTHING, "stopped")


def test_a_place_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(tool, "STATE", str(tmp_path / "file" / "state"))
    with pytest.raises(CriuError, match="it can't be made: Not a directory"):
        tool.dump_argv(CRIU, 9, "/images/a", NOTHING, "stopped")
