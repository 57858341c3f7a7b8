# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The batches that are foreseen are those that Ansible makes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.executor.playbook_executor import PlaybookExecutor

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.batches import batches, entries

SERIALS: list[Any] = [
    [],
    1,
    3,
    100,
    0,
    -1,
    "2",
    "10%",
    "25%",
    "100%",
    "1%",
    "0%",
    "-10%",
    [1, "10%"],
    [1, 2, "50%"],
    ["10%", 1],
    [1, 0],
    [2, -1, 5],
]


def by_ansible(hosts: list[str], serial: Any) -> tuple[tuple[str, ...], ...]:
    executor = object.__new__(PlaybookExecutor)
    executor._inventory = SimpleNamespace(get_hosts=lambda *_pattern, **_order: list(hosts))
    as_list = serial if isinstance(serial, list) else [serial]
    made = executor._get_serialized_batches(SimpleNamespace(hosts="all", order=None, serial=as_list))
    return tuple(tuple(one) for one in made)


@pytest.mark.parametrize("serial", SERIALS, ids=str)
def test_batches_are_those_of_ansible(serial: Any) -> None:
    for count in (0, 1, 2, 7, 16, 33):
        hosts = [f"h{number}" for number in range(count)]
        assert batches(hosts, serial) == by_ansible(hosts, serial), count


@pytest.mark.parametrize("serial", ["some", "a%", "1.5", "12.5%"])
def test_what_is_no_number_is_refused_as_ansible_does(serial: str) -> None:
    with pytest.raises(ValueError):
        by_ansible(["h1"], serial)
    with pytest.raises(ValueError):
        batches(["h1"], serial)


def test_entries() -> None:
    assert entries(None) == entries("") == entries([]) == ("100%",)
    assert entries(4) == (4,)
    assert entries([1, "10%"]) == (1, "10%")
