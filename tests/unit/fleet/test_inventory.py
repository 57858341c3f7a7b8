# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files for the fleet's users, and files in the hosts."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.fleet.gpufleet_testfleet import inventory, names, seed, supervisor
from tests.fleet.gpufleet_testfleet.errors import FleetError
from tests.fleet.gpufleet_testfleet.options import Options
from tests.fleet.gpufleet_testfleet.state import Directory, Fleet

ODD = "a b, #c: {d} 'e'"


def fleet(path: Path, hosts: int = 2) -> Fleet:
    return Fleet(Directory(path), Options(hosts=hosts), Path("/base"))


def test_inventory_is_yaml_for_any_path(tmp_path: Path) -> None:
    made = fleet(tmp_path / ODD)
    data = yaml.safe_load(inventory.inventory(made.directory, made.hosts))
    assert data["fleet"]["hosts"] == {"h1": {"ansible_host": "10.77.0.11"}, "h2": {"ansible_host": "10.77.0.12"}}
    variables = data["fleet"]["vars"]
    assert variables["ansible_user"] == "root"
    assert variables["ansible_ssh_executable"] == str(tmp_path / ODD / "ssh")
    assert variables["ansible_ssh_private_key_file"] == str(tmp_path / ODD / "id_ed25519")


def test_control_paths_of_two_fleets_differ_and_are_short(tmp_path: Path) -> None:
    paths = set()
    for name in ("one", "two"):
        made = fleet(tmp_path / name)
        data = yaml.safe_load(inventory.inventory(made.directory, made.hosts))
        paths.add(data["fleet"]["vars"]["ansible_control_path_dir"])
    assert len(paths) == 2
    assert all(len(path) < 50 for path in paths)  # a socket's path has 108 bytes


def test_ssh_config_is_what_ssh_understands(tmp_path: Path) -> None:
    made = fleet(tmp_path / (ODD + " 100%"))
    config = tmp_path / "config"
    config.write_text(inventory.ssh_config(made.directory, made.hosts))
    done = subprocess.run(["ssh", "-G", "-F", str(config), "h2"], capture_output=True, text=True, check=True)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert said["hostname"] == "10.77.0.12"
    assert said["user"] == "root"
    assert said["stricthostkeychecking"] in ("true", "yes")


def test_a_path_that_ssh_config_cannot_hold(tmp_path: Path) -> None:
    made = fleet(tmp_path / 'a"b')
    with pytest.raises(FleetError, match="FLEET_DIR"):
        inventory.ssh_config(made.directory, made.hosts)


def test_wrapper_passes_its_arguments(tmp_path: Path) -> None:
    directory = tmp_path / ODD
    directory.mkdir()
    nsenter = tmp_path / "nsenter"
    nsenter.write_text('#!/bin/sh\nprintf "[%s]\\n" "$@"\n')
    nsenter.chmod(0o755)
    wrapper = directory / "wrapper"
    wrapper.write_text(inventory.wrapper(Directory(directory), str(directory / "ssh"), Path("/run/netns/name")))
    done = subprocess.run(
        ["/bin/sh", str(wrapper), "h1", "echo a  b"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "[--net=/run/netns/name]",
        "[--]",
        f"[{directory / 'ssh'}]",
        "[-F]",
        f"[{directory / 'ssh_config'}]",
        "[h1]",
        "[echo a  b]",
    ]


def test_known_hosts() -> None:
    hosts = names.hosts("0123abcd", 2)
    text = inventory.known_hosts(hosts, {"h1": "ssh-ed25519 AAAA h1\n", "h2": "ssh-ed25519 BBBB h2\n"})
    assert text == "h1,10.77.0.11 ssh-ed25519 AAAA\nh2,10.77.0.12 ssh-ed25519 BBBB\n"


def test_hosts_file(tmp_path: Path) -> None:
    made = fleet(tmp_path, 3)
    lines = seed.hosts_file(made, made.host("h2")).splitlines()
    assert lines == ["127.0.0.1 localhost", "127.0.1.1 h2", "10.77.0.1 control", "10.77.0.11 h1", "10.77.0.13 h3"]


def test_unknown_host(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="h3: no such host; the fleet has h1 to h2"):
        fleet(tmp_path).host("h3")
    with pytest.raises(FleetError, match=r"the fleet has h1$"):
        fleet(tmp_path, 1).host("h2")


def test_overlay_options_quote_what_overlayfs_splits_at() -> None:
    lower = [Path("/a:b"), Path("/c,d"), Path("/e\\f")]
    options = supervisor.overlay_options(lower, Path("/u"), Path("/w"))
    assert options == "lowerdir=/a\\:b:/c\\,d:/e\\\\f,upperdir=/u,workdir=/w"


def test_layers_of_a_host(tmp_path: Path) -> None:
    made = fleet(tmp_path)
    host = made.hosts[0]
    assert supervisor.lower_layers(made, host) == [tmp_path / "hosts/h1/seed", tmp_path / "sim", Path("/base")]
    bare = Fleet(made.directory, Options(hosts=1, gpus=0), Path("/base"))
    assert supervisor.lower_layers(bare, host) == [tmp_path / "hosts/h1/seed", Path("/base")]
