# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from . import names
from .errors import FleetError
from .options import DEFAULT_MODEL, DRIVERS, FLAVOURS, INITS, Options, parse_settings
from .state import Directory, Fleet, Lock, load

_CHECKOUT = Path(__file__).resolve().parents[3]
_PREFIX = re.compile(r"[a-z][a-z0-9]{0,15}-")

_EPILOG = """\
The fleet's directory is build/fleet of the checkout; FLEET_DIR overrides it. In it: inventory.yml for Ansible, ssh, scp
and sftp for the hosts (ssh h1), fleet.json, hosts/hN/log. Several fleets may be up on one machine.
The base image is cached in /var/cache/gpufleet-checkpoint; GPUFLEET_CACHE overrides it.
Needs root, and the Debian packages in tests/fleet/apt-packages.txt.
"""


def fleet_directory() -> Path:
    if not _PREFIX.fullmatch(names.PREFIX):
        raise FleetError("FLEET_PREFIX: expected 1 to 16 lower case letters and digits, a letter first")
    path = Path(os.environ.get("FLEET_DIR") or _CHECKOUT / "build/fleet")
    if "\n" in str(path):
        raise FleetError("FLEET_DIR: a line break in a path can't be written into an inventory")
    return path.resolve()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="fleet",
        description="Debian 13 hosts in namespaces of this machine: real systemd, sshd and CRIU, simulated GPUs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start a fleet; one that is there is removed first")
    up.add_argument("--hosts", type=int, required=True, metavar="N", help=f"1 to {names.MAX_HOSTS}; named h1 to hN")
    up.add_argument("--gpus", type=int, default=1, metavar="G", help="GPUs of each host (default 1; 0: no driver)")
    up.add_argument("--vram", type=int, default=16384, metavar="MIB", help="memory of each GPU (default 16384)")
    up.add_argument("--driver", default="580", metavar="VERSION", help=f"{' '.join(DRIVERS)}, or in full (default 580)")
    up.add_argument("--init", default="systemd", choices=INITS, help="systemd (default), or none: starts in no time")
    up.add_argument("--sim", metavar="DIR", help="layer with the simulated driver (default: tests/sim/build)")
    up.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME", help=f"GPU model (default {DEFAULT_MODEL})")
    up.add_argument("--disk", type=int, default=32768, metavar="MIB", help="disk of each host, sparse (default 32768)")
    up.add_argument(
        "--with", dest="flavour", default="", choices=FLAVOURS, help="slurm: the hosts are a cluster, h1 its controller"
    )
    up.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a line of /etc/gpusim.conf")

    commands.add_parser("down", help="remove the fleet and all that is left of it")
    status = commands.add_parser("status", help="the state of each host")
    status.add_argument("--json", action="store_true", help="as JSON")

    for name, text in (
        ("exec", "run a command over SSH and return its exit status; without a command a shell"),
        ("console", "the same through the host's namespaces: works when it is cut off"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("host", metavar="HOST")
        command.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND...")

    for name, text in (
        ("reboot", "reboot, and wait until it is up again"),
        ("cut", "pull its network cable"),
        ("mend", "put the cable back"),
        ("start", "start a host that is off"),
    ):
        commands.add_parser(name, help=text).add_argument("host", metavar="HOST")
    poweroff = commands.add_parser("poweroff", help="shut down cleanly")
    poweroff.add_argument("host", metavar="HOST")
    poweroff.add_argument("--lose-unsynced", action="store_true", help="take its power: unsynced writes are lost")

    commands.add_parser("destroy-all", help="remove every fleet of this machine, of other checkouts too")
    return top


def remote_command(words: list[str]) -> list[str]:
    """What follows HOST; a leading -- is the user's way of saying that options are the command's."""
    return words[1:] if words[:1] == ["--"] else words


def _status(directory: Directory, as_json: bool) -> int:
    from . import hoststate

    fleet = load(directory)
    states = [hoststate.of(directory, host) for host in fleet.hosts]
    if as_json:
        data = {
            "fleet": directory.fleet,
            "directory": str(directory.path),
            "options": fleet.options.as_json(),
            "hosts": [asdict(state) for state in states],
        }
        print(json.dumps(data, indent=1))
        return 0
    options = fleet.options
    gpus = f"{options.gpus} GPU {options.vram} MiB driver {options.driver}" if options.gpus else "no GPU"
    print(f"fleet {directory.fleet} in {directory.path}: init {options.init}, {gpus}")
    for state in states:
        boot = f"boot {state.boots} {state.boot_id}" if state.boot_id else ""
        notes = [boot, "cut off" if state.cut else "", state.reason]
        print(f"{state.name:4} {state.address:12} {state.state:9} {', '.join(filter(None, notes))}".rstrip())
    return 0


def _destroy_all() -> None:
    from . import lifecycle, machine, sweep

    found = sorted(sweep.fleets())
    if not found:
        print("no fleet on this machine")
    for fleet in found:
        path = machine.registered().get(fleet)
        if path is not None and path.is_dir() and names.fleet_id(path) == fleet:
            with Lock(path):
                lifecycle.destroy(fleet, Directory(path))
        else:
            lifecycle.destroy(fleet, None)


def _on_host(directory: Directory, name: str, action: Callable[[Fleet, names.Host], None]) -> None:
    load(directory).host(name)  # no lock, no directory for what does not exist
    with Lock(directory.path, shared=True):
        fleet = load(directory)
        host = fleet.host(name)
        with Lock(directory.host(host).path):
            action(fleet, host)


def _interrupted(number: int, _dummy: object) -> NoReturn:
    raise KeyboardInterrupt(number)


def _run(arguments: argparse.Namespace) -> int:
    from . import lifecycle, power

    directory = Directory(fleet_directory())
    command: str = arguments.command
    if command == "up":
        options = Options(
            hosts=arguments.hosts,
            gpus=arguments.gpus,
            vram=arguments.vram,
            driver=arguments.driver,
            init=arguments.init,
            sim=str(Path(arguments.sim).resolve()) if arguments.sim else None,
            model=arguments.model,
            disk=arguments.disk,
            flavour=arguments.flavour,
            settings=parse_settings(arguments.set),
        )
        options.check()
        lifecycle.require_root()
        with Lock(directory.path):
            lifecycle.up(directory, options)
        return 0
    lifecycle.require_root()
    if command == "down":
        with Lock(directory.path):
            lifecycle.down(directory)
    elif command == "status":
        return _status(directory, arguments.json)
    elif command == "destroy-all":
        _destroy_all()
    elif command in ("exec", "console"):
        fleet = load(directory)
        act = power.execute if command == "exec" else power.console
        act(fleet, fleet.host(arguments.host), remote_command(arguments.argv))
    else:
        actions: dict[str, Callable[[Fleet, names.Host], None]] = {
            "reboot": power.reboot,
            "cut": lambda fleet, host: power.set_cable(fleet, host, up=False),
            "mend": lambda fleet, host: power.set_cable(fleet, host, up=True),
            "poweroff": lambda fleet, host: power.power_off(fleet, host, arguments.lose_unsynced),
            "start": power.start,
        }
        _on_host(directory, arguments.host, actions[command])
    return 0


def main(argv: list[str]) -> int:
    if argv[:1] == ["_supervise"]:
        from . import supervisor

        return supervisor.main(load(Directory(fleet_directory())), argv[1])
    arguments = parser().parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupted)
    try:
        return _run(arguments)
    except FleetError as error:
        print(f"fleet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print("fleet: interrupted", file=sys.stderr)
        return 128 + (error.args[0] if error.args else signal.SIGINT)
