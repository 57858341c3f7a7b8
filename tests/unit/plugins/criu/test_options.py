# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CRIU's options, of the operator and of the tree."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.options import (
    SWITCHES,
    Chosen,
    CriuOptions,
    again,
    choose,
    parse,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular
from tests.unit.plugins.criu.known import member, tree

ALWAYS = ("--manage-cgroups=ignore", "--timeout=60")
JOB = member(223, 1, "sh", session=200)


# parse


def test_nothing_given() -> None:
    assert parse({}) == CriuOptions()
    given = dict.fromkeys(SWITCHES, "auto")
    assert parse({**given, "ghost_limit": None, "manage_cgroups": "ignore", "external": None, "timeout": 0}) == parse(
        {}
    )


def test_everything_given() -> None:
    raw = {
        "tcp_established": "yes",
        "shell_job": "no",
        "file_locks": True,
        "link_remap": False,
        "ext_unix_sk": "auto",
        "ghost_limit": "3M",
        "manage_cgroups": "soft",
        "external": ["mnt[/data]:data", "unix[1234]"],
        "timeout": 900,
    }
    assert parse(raw) == CriuOptions(
        "yes", "no", "yes", "no", "auto", 3 << 20, "soft", ("mnt[/data]:data", "unix[1234]"), 900
    )


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("2K", 2048), ("2k", 2048), ("1G", 1 << 30), (7, 7)]
)
def test_sizes(text: Any, size: int) -> None:
    assert parse({"ghost_limit": text}).ghost_limit == size


@pytest.mark.parametrize("text", ["-1", "1.5M", "1T", "M", " 1", "1 M", "1_000", "\u0661", "2000G", True, "1\n"])
def test_sizes_that_are_none(text: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^ghost_limit: .*allowed\.$"):
        parse({"ghost_limit": text})


@pytest.mark.parametrize("name", list(SWITCHES))
def test_switches_that_are_none(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}: 'maybe'. auto, yes or no is allowed.$"):
        parse({name: "maybe"})


def test_unknown_mode_of_cgroups() -> None:
    with pytest.raises(ArgumentError, match=r"^manage_cgroups: 'all'. One of ignore, none"):
        parse({"manage_cgroups": "all"})


@pytest.mark.parametrize("value", [-1, 86401, True, "60", 1.5])
def test_times_that_are_none(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^timeout: "):
        parse({"timeout": value})


@pytest.mark.parametrize(
    "value", ["", "--leave-running", "mnt", "mnt[a]b", "mnt[a]:x\n--exec", "exec[a]:b", 5, "mnt[a]:"]
)
def test_external_resources_that_are_none(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^external\[1\]: .*CRIU knows the forms"):
        parse({"external": ["tty[1:2]", value]})


def test_external_resources_are_a_list() -> None:
    with pytest.raises(ArgumentError, match=r"^external: 'tty\[1:2\]'. A list is allowed"):
        parse({"external": "tty[1:2]"})


# choose


def test_a_session_of_its_own_needs_nothing() -> None:
    assert choose(CriuOptions(), tree()) == Chosen(ALWAYS)


def test_a_job_of_a_shell() -> None:
    chosen = choose(CriuOptions(), tree(root=JOB))
    assert chosen.arguments == ("--shell-job", *ALWAYS)
    assert chosen.reasons == ("--shell-job: PID 223 (sh) does not lead its session; PID 200 does, outside of its tree",)


def test_no_means_no() -> None:
    assert choose(CriuOptions(shell_job="no"), tree(root=JOB)).arguments == ALWAYS
    every = CriuOptions("no", "no", "no", "no", "no")
    consent = {hazard for _word, hazard in SWITCHES.values()} - {"deleted_file"}
    assert choose(every, tree(), consent).arguments == ALWAYS


@pytest.mark.parametrize(("name", "word", "hazard"), [(name, *both) for name, both in SWITCHES.items()])
def test_yes_and_consent(name: str, word: str, hazard: str) -> None:
    said = choose(CriuOptions(**{name: "yes"}), tree())  # type: ignore[arg-type]
    assert said == Chosen((word, *ALWAYS))
    consented = choose(CriuOptions(), tree(), {hazard})
    assert word in consented.arguments and f"{word}: allow names {hazard}" in consented.reasons
    assert word not in choose(CriuOptions(), tree(), {"stopped"}).arguments


def test_deleted_files_with_consent() -> None:
    """Room for the largest, and for mapped ones, which nobody has measured."""
    small = tree(
        member(226, 223, "sleep", files=(OpenRegular("/a", 5 << 20, deleted=True), OpenRegular("/b", 9 << 30)))
    )
    assert "--ghost-limit=1073741824" in choose(CriuOptions(), small, {"deleted_file"}).arguments
    large = tree(member(226, 223, "sleep", files=(OpenRegular("/a", (2 << 30) + 1, deleted=True),)))
    chosen = choose(CriuOptions(), large, {"deleted_file"})
    assert f"--ghost-limit={(2 << 30) + (2 << 20)}" in chosen.arguments
    assert any("2147483649 bytes" in one for one in chosen.reasons)
    assert choose(CriuOptions(), large).arguments == ALWAYS
    assert "--ghost-limit=7" in choose(CriuOptions(ghost_limit=7), large, {"deleted_file"}).arguments


def test_time_grows_with_threads_and_memory() -> None:
    many = tree(member(225, 223, "victim", threads=tuple(range(225, 10225)), rss_anon_bytes=100 << 30))
    assert "--timeout=360" in choose(CriuOptions(), many).arguments
    assert "--timeout=5" in choose(CriuOptions(timeout=5), many).arguments


def test_the_rest_is_passed_on() -> None:
    chosen = choose(CriuOptions(manage_cgroups="full", external=("tty[1:2]", "unix[3]")), tree())
    assert chosen.arguments == (
        "--manage-cgroups=full", "--timeout=60", "--external", "tty[1:2]", "--external", "unix[3]",
    )  # fmt: skip


def test_connections_end_with_the_dump() -> None:
    assert choose(CriuOptions(tcp_established="yes"), tree()).must_kill
    assert not choose(CriuOptions(), tree()).must_kill


# again


def test_what_it_was_dumped_with() -> None:
    made = choose(CriuOptions(tcp_established="yes", external=("tty[1:2]",)), tree(root=JOB))
    back = again(made.arguments, CriuOptions())
    assert back.arguments == ("--tcp-established", "--shell-job", "--manage-cgroups=ignore")
    assert back.reasons == ("--tcp-established: it was dumped with it", "--shell-job: it was dumped with it")


def test_the_operator_counts_more() -> None:
    options = CriuOptions(shell_job="no", file_locks="yes", manage_cgroups="soft", timeout=9, external=("mnt[a]:/b",))
    assert again(("--shell-job",), options) == Chosen(
        ("--file-locks", "--manage-cgroups=soft", "--timeout=9", "--external", "mnt[a]:/b")
    )


@pytest.mark.parametrize(
    "hostile",
    [
        "--action-script=/tmp/x",
        "--exec-cmd",
        "--libdir=/tmp",
        "--root=/tmp",
        "--external",
        "mnt[a]:/etc",
        "--shell-job=x",
    ],
)
def test_a_manifest_adds_nothing_unknown(hostile: str) -> None:
    assert again((hostile,), CriuOptions()).arguments == ("--manage-cgroups=ignore",)
