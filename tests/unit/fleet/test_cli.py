# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line's arguments."""

from pathlib import Path

import pytest

from tests.fleet.gpufleet_testfleet import cli, commands
from tests.fleet.gpufleet_testfleet.errors import FleetError


def test_defaults_of_up() -> None:
    arguments = vars(cli.parser().parse_args(["up", "--hosts", "2"]))
    assert arguments == {
        "command": "up",
        "hosts": 2,
        "gpus": 1,
        "vram": 16384,
        "driver": "580",
        "init": "systemd",
        "sim": None,
        "model": "NVIDIA H200",
        "disk": 32768,
        "flavour": "",
        "set": [],
    }


def test_set_may_be_given_often() -> None:
    arguments = cli.parser().parse_args(["up", "--hosts", "1", "--set", "a=1", "--set", "b=2"])
    assert arguments.set == ["a=1", "b=2"]


@pytest.mark.parametrize(
    "words,command",
    [
        (["ls", "-l", "--", "x"], ["ls", "-l", "--", "x"]),
        (["--", "ls", "-l"], ["ls", "-l"]),
        (["sh", "-c", "--help"], ["sh", "-c", "--help"]),
        ([], []),
    ],
)
def test_exec_takes_the_rest_as_it_is(words: list[str], command: list[str]) -> None:
    arguments = cli.parser().parse_args(["exec", "h1", *words])
    assert (arguments.host, cli.remote_command(arguments.argv)) == ("h1", command)


@pytest.mark.parametrize(
    "words", [[], ["up"], ["up", "--hosts", "many"], ["reboot"], ["up", "--hosts", "1", "--init", "x"]]
)
def test_usage_errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.parser().parse_args(words)
    assert ended.value.code == 2
    assert "usage: fleet" in capsys.readouterr().err


def test_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLEET_DIR", raising=False)
    default = cli.fleet_directory()
    assert default.parts[-2:] == ("build", "fleet") and (default.parents[1] / "galaxy.yml").exists()
    monkeypatch.setenv("FLEET_DIR", str(tmp_path / "x/../y"))
    assert cli.fleet_directory() == tmp_path / "y"
    monkeypatch.setenv("FLEET_DIR", "two\nlines")
    with pytest.raises(FleetError, match="line break"):
        cli.fleet_directory()


def test_missing_tools_name_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FleetError) as refused:
        commands.require_tools("systemd")
    assert "lacks cp, debootstrap, ip, " in str(refused.value) and "systemd-nspawn" in str(refused.value)
    assert "apt-get install --no-install-recommends debootstrap e2fsprogs " in str(refused.value)
    assert "#" not in str(refused.value)
