# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and addresses of a fleet."""

from pathlib import Path

import pytest

from tests.fleet.gpufleet_testfleet import names


def test_id_is_the_directory_however_it_is_spelled(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    identity = names.fleet_id(real)
    assert len(identity) == 8 and int(identity, 16) >= 0
    assert names.fleet_id(tmp_path / "link") == names.fleet_id(tmp_path / "real" / ".." / "real") == identity
    assert names.fleet_id(tmp_path) != identity


@pytest.mark.parametrize(
    "name,owner",
    [
        ("gpufleet-0123abcd", "0123abcd"),
        ("gpufleet-0123abcd-h1", "0123abcd"),
        ("gpufleet-0123abcd-h64", "0123abcd"),
        ("gpufleet-0123abc", None),
        ("gpufleet-0123abcd-x", None),
        ("gpufleet-0123abcde", None),
        ("xgpufleet-0123abcd", None),
        ("gpufleet-checkpoint", None),
        ("", None),
    ],
)
def test_owner_of(name: str, owner: str | None) -> None:
    assert names.owner_of(name) == owner


def test_owner_of_every_global_name() -> None:
    assert names.owner_of(names.Host("0123abcd", 64).global_name) == "0123abcd"


def test_hosts_do_not_share_anything() -> None:
    hosts = names.hosts("0123abcd", names.MAX_HOSTS)
    assert [hosts[0].name, hosts[-1].name] == ["h1", "h64"]
    for kind in ("name", "global_name", "address", "mac", "link"):
        assert len({getattr(host, kind) for host in hosts}) == len(hosts), kind
    assert names.CONTROL_ADDRESS not in {host.address for host in hosts}
    assert all(len(host.link) < 16 for host in hosts)  # the kernel's limit
    assert all(int(host.mac[:2], 16) & 3 == 2 for host in hosts)  # locally administered, not multicast
