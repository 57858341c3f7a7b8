# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes of a Slurm cluster as hosts, and its partitions as groups."""

from __future__ import annotations

DOCUMENTATION = r"""
name: slurm
short_description: Nodes of a Slurm cluster as hosts, its partitions as groups
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Asks C(scontrol) for the nodes of the cluster, whenever an inventory is read. A host has the name of its node, so
    that C(gpu_drain_scheduler=slurm) finds it without more.
  - Each partition is the group C(slurm_partition_NAME). Signs that can't be in a group's name are underscores.
  - Each host has C(slurm_state), C(slurm_partitions), C(slurm_features), C(slurm_gpus), C(slurm_gpu_models) and
    C(slurm_reason); and C(ansible_host), if Slurm has another address for it.
  - What Slurm says is data. No text in it is a template, and a name or an address that is none is left out with a
    warning.
extends_documentation_fragment:
  - constructed
options:
  plugin:
    description:
      - The name of this plugin.
    type: str
    required: true
    choices: [gpufleet.checkpoint.slurm]
  command:
    description:
      - How to call C(scontrol) on the controller, as a list of words. C(-o show node) is added.
      - For a controller outside of the cluster, C([ssh, login1, scontrol]).
    type: list
    elements: str
    default: [scontrol]
  gpus_only:
    description:
      - Whether to leave out nodes of which Slurm knows no GPU (C(Gres)).
    type: bool
    default: true
  timeout:
    description:
      - For how many seconds to wait for an answer.
    type: int
    default: 30
requirements:
  - Slurm's C(scontrol), or a way to it
seealso:
  - module: gpufleet.checkpoint.slurm_node
"""

EXAMPLES = r"""
# slurm.yml: every node with a GPU
plugin: gpufleet.checkpoint.slurm
command: [scontrol]
keyed_groups:
  - key: slurm_gpu_models
    prefix: gpu
groups:
  drained: "'drain' in slurm_state"
compose:
  gpu_drain_scheduler: "'slurm'"
"""

import subprocess
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Constructable
from ansible.utils.unsafe_proxy import wrap_var

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._slurm_nodes import Node, parse


class InventoryModule(BaseInventoryPlugin, Constructable):  # type: ignore[misc]  # Ansible has no types
    """See the documentation of gpufleet.checkpoint.slurm."""

    NAME = "gpufleet.checkpoint.slurm"

    def verify_file(self, path: str) -> bool:
        return bool(super().verify_file(path)) and path.endswith(("slurm.yml", "slurm.yaml"))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        nodes, problems = parse(self._ask([str(word) for word in self.get_option("command")]))
        for problem in problems:
            self.display.warning(printable(f"{path}: left out: {problem}"))
        if not nodes:
            raise AnsibleParserError(
                f"{path}: scontrol named no node. Run it by hand: {' '.join(self.get_option('command'))} -o show node"
            )
        known = [node for node in nodes if node.gpus or not self.get_option("gpus_only")]
        if not known:
            self.display.warning(
                f"{path}: of {len(nodes)} nodes none has a GPU that Slurm knows of (Gres in slurm.conf). Set "
                "gpus_only: false to have them all."
            )
        for node in known:
            self._add(node)

    def _add(self, node: Node) -> None:
        self.inventory.add_host(node.name)
        variables = {name: wrap_var(value) for name, value in node.variables().items()}
        for name, value in variables.items():
            self.inventory.set_variable(node.name, name, value)
        for partition in node.partitions:
            group = self._sanitize_group_name(f"slurm_partition_{partition}")
            self.inventory.add_group(group)
            self.inventory.add_host(node.name, group=group)
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, node.name, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, node.name, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, node.name, strict=strict)

    def _ask(self, command: "list[str]") -> str:
        argv = [*command, "-o", "show", "node"]
        what = " ".join(argv)
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=self.get_option("timeout"),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AnsibleParserError(
                f"{what}: no answer within {self.get_option('timeout')} s. Look whether slurmctld answers (scontrol "
                "ping), or give it more time with timeout."
            ) from error
        except OSError as error:
            raise AnsibleParserError(
                f"{what}: {error.strerror or error}. Slurm's client tools have to be on the controller. Install them, "
                "or name another way with command, such as [ssh, login1, scontrol]."
            ) from error
        if done.returncode != 0:
            said = printable(done.stderr.decode(errors="replace").strip()[-300:])
            raise AnsibleParserError(f"{what}: exit status {done.returncode}: {said or 'it said nothing'}")
        return done.stdout.decode(errors="replace")
