# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What criu_image refuses before it looks at anything: which option, what was seen, what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_arguments import ALLOW, parse, parse_age
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageOptions
from ansible_collections.gpufleet.checkpoint.plugins.modules import gpu_drain, gpu_preflight
from ansible_collections.gpufleet.checkpoint.plugins.modules.criu_image import ARGUMENTS
from ansible_collections.gpufleet.checkpoint.plugins.modules.criu_image_info import places_of


def options(**given: Any) -> ImageOptions:
    table: dict[str, dict[str, Any]] = ARGUMENTS  # type: ignore[assignment]  # of mixed types
    params = {name: spec.get("default") for name, spec in table.items()}
    return parse({**params, "journal": "/j", **given}, check=False)


PRESENT = {"state": "present", "pid": 7, "path": "/s/x", "leave_running": False}


@pytest.mark.parametrize(
    "given,words",
    [
        ({**PRESENT, "leave_running": None}, ["leave_running", "false", "true"]),
        ({**PRESENT, "pid": None}, ["state", "pid"]),
        ({**PRESENT, "path": "s/x"}, ["path", "'s/x'", "absolute"]),
        ({**PRESENT, "path": None}, ["path", "store"]),
        ({**PRESENT, "pid": None, "pids": [7, 8]}, ["path", "several"]),
        ({**PRESENT, "pid": "x7"}, ["pids[0]", "x7"]),
        ({**PRESENT, "parallel": -1}, ["parallel", "-1"]),
        ({**PRESENT, "allow": ["everything"]}, ["allow", "everything"]),
        ({**PRESENT, "ghost_limit": "much"}, ["ghost_limit", "much"]),
        ({**PRESENT, "keep": 3}, ["keep", "absent"]),
        ({**PRESENT, "lock_timeout": 0}, ["lock_timeout"]),
        ({"state": "restored", "pid": 7, "path": "/s/x"}, ["pids", "restored", "image says itself"]),
        ({"state": "restored"}, ["path", "store"]),
        ({**PRESENT, "pid_namespace": "new"}, ["pid_namespace", "present", "restored to"]),
        ({"state": "absent", "store": "/s"}, ["store", "keep", "max_age"]),
        ({"state": "absent", "store": "/s", "keep": -1}, ["keep", "-1"]),
        ({"state": "absent", "store": "/s", "max_age": "soon"}, ["max_age", "soon"]),
    ],
)
def test_refused(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ArgumentError) as refused:
        options(**given)
    for word in words:
        assert word in str(refused.value)


DOTS = ("/tmp/../srv/x", "/srv/images/..", "/..", "../x")


@pytest.mark.parametrize("path", DOTS)
def test_a_path_with_dots_is_refused_by_every_module(path: str) -> None:
    """What it means depends on symbolic links on the way."""
    asked: list[Callable[[], object]] = [
        lambda: options(**{**PRESENT, "path": path}),
        lambda: options(**{**PRESENT, "path": None, "store": path}),
        lambda: options(state="absent", path=path, force=True),
        lambda: places_of({"path": path, "store": None}),
        lambda: places_of({"path": None, "store": path}),
        lambda: preflight(path),
        lambda: drain(path),
    ]
    for one in asked:
        with pytest.raises(ArgumentError) as refused:
            one()
        assert refused.value.argument in ("path", "store") and f"{path!r} has .. in it" in str(refused.value)


def preflight(store: str) -> object:
    table: dict[str, dict[str, Any]] = gpu_preflight.ARGUMENTS  # type: ignore[assignment]  # of mixed types
    return gpu_preflight.options_of({**{name: spec.get("default") for name, spec in table.items()}, "store": store})


def drain(store: str) -> object:
    table: dict[str, dict[str, Any]] = gpu_drain.ARGUMENTS  # type: ignore[assignment]  # of mixed types
    given = {**{name: spec.get("default") for name, spec in table.items()}, "phase": "suspending", "store": store}
    return gpu_drain.options_of(given, check=False)


def test_a_place_is_spelt_in_one_way() -> None:
    assert options(**{**PRESENT, "path": "//s//./x/"}).path == "/s/x"
    assert places_of({"path": None, "store": "/s/"}) == ("", "/s")


def test_the_choices_of_allow_are_what_the_code_knows() -> None:
    assert ARGUMENTS["allow"]["choices"] == sorted(ALLOW)  # type: ignore[index]  # of a table of mixed types


def test_an_option_of_criu_lifts_its_hazard() -> None:
    assert "file_lock" in options(**PRESENT, file_locks="yes").allow
    assert "file_lock" not in options(**PRESENT).allow


def test_a_suspend_for_an_image_knows_only_its_own_overrides() -> None:
    chosen = options(**PRESENT, allow=["second_life", "vram_short"])
    assert chosen.allow == {"second_life", "vram_short"}
    assert chosen.cuda.allow == {"vram_short"}


@pytest.mark.parametrize("text,seconds", [("90", 90), ("90s", 90), ("1.5h", 5400), ("2d", 172800), ("1w", 604800)])
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds
