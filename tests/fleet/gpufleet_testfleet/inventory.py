# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files for whoever uses the fleet: inventory, SSH configuration, wrappers that enter the control namespace."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from . import commands, machine, network
from .errors import FleetError
from .names import Host
from .state import Directory, Fleet, write_atomically

_WRAPPED = ("ssh", "scp", "sftp")


def inventory(directory: Directory, hosts: list[Host]) -> str:
    """YAML; JSON strings are YAML strings, whatever is in a path."""
    variables = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(directory.key),
        "ansible_ssh_executable": str(directory.ssh),
        "ansible_scp_executable": str(directory.path / "scp"),
        "ansible_sftp_executable": str(directory.path / "sftp"),
        "ansible_control_path_dir": str(machine.control_paths(directory.fleet)),
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    lines = ["---", "fleet:", "  hosts:"]
    for host in hosts:
        lines += [f"    {host.name}:", f"      ansible_host: {json.dumps(host.address)}"]
    lines.append("  vars:")
    lines += [f"    {key}: {json.dumps(value)}" for key, value in variables.items()]
    return "\n".join(lines) + "\n"


def _ssh_quote(text: str) -> str:
    """For ssh_config: in double quotes, percent signs doubled."""
    if '"' in text:
        raise FleetError(f"{text}: a path with a double quote can't be written in an SSH configuration; set FLEET_DIR")
    return '"' + text.replace("%", "%%") + '"'


def ssh_config(directory: Directory, hosts: list[Host]) -> str:
    lines = []
    for host in hosts:
        lines += [f"Host {host.name}", f"  HostName {host.address}"]
    lines += [
        "Host *",
        "  User root",
        f"  IdentityFile {_ssh_quote(str(directory.key))}",
        "  IdentitiesOnly yes",
        "  IdentityAgent none",
        f"  UserKnownHostsFile {_ssh_quote(str(directory.known_hosts))}",
        "  GlobalKnownHostsFile none",
        "  StrictHostKeyChecking yes",
        "  CheckHostIP no",
        "  PreferredAuthentications publickey",
        "  ConnectTimeout 10",
        # The post-quantum default doubles the CPU time of a login, on a wire inside one machine.
        "  KexAlgorithms curve25519-sha256",
        "  LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"


def wrapper(directory: Directory, program: str, namespace: Path) -> str:
    return (
        "#!/bin/sh\n"
        f"# {Path(program).name} to the hosts of the test fleet, from the ordinary network namespace.\n"
        f"exec nsenter --net={shlex.quote(str(namespace))} -- {shlex.quote(program)}"
        f' -F {shlex.quote(str(directory.ssh_config))} "$@"\n'
    )


def known_hosts(hosts: list[Host], keys: dict[str, str]) -> str:
    lines = []
    for host in hosts:
        kind, key = keys[host.name].split()[:2]
        lines.append(f"{host.name},{host.address} {kind} {key}")
    return "\n".join(lines) + "\n"


def make_key(directory: Directory) -> None:
    for path in (directory.key, directory.key.with_suffix(".pub")):
        path.unlink(missing_ok=True)
    commands.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "fleet", "-f", str(directory.key)])


def write(fleet: Fleet, keys: dict[str, str]) -> None:
    directory = fleet.directory
    write_atomically(directory.known_hosts, known_hosts(fleet.hosts, keys))
    write_atomically(directory.ssh_config, ssh_config(directory, fleet.hosts))
    for name in _WRAPPED:
        program = shutil.which(name)
        if program is None:
            raise FleetError(f"{name}: not found; apt-get install openssh-client")
        text = wrapper(directory, program, network.control_namespace(directory.fleet))
        write_atomically(directory.path / name, text, 0o755)
    write_atomically(directory.inventory, inventory(directory, fleet.hosts))
