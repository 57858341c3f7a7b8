#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_migration_info
short_description: Tells whether the CUDA processes of one host would come back on another
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - On the host that processes are to leave (O(side=source)), tells what they are and what they need. What it returns in
    RV(evidence) is given to each host that they might go to (O(side=target)), which tells whether they fit there, and
    everything that speaks against it.
  - Compared are the models and the number of GPUs, the exact driver, CRIU, the features of the processor, free memory
    of the GPUs and of the host, free space, PIDs, and every program, library and open file by its path, size and build
    id. All processes are looked at together.
  - Nothing is changed, and no process is stopped. Whether a process can be suspended and dumped at all is what
    M(gpufleet.checkpoint.gpu_preflight) tells.
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
  - gpufleet.checkpoint._attributes.info_module
  - gpufleet.checkpoint._attributes.linux
  - gpufleet.checkpoint._attributes.actiongroup_all
options:
  side:
    description:
      - Which of the two hosts this one is.
    type: str
    choices:
      source: The processes are here.
      target: They are to come here.
    required: true
  store:
    description:
      - The directory of images of this host, as an absolute path.
    type: path
    required: true
  select:
    description:
      - Which processes, for O(side=source). The criteria are those of M(gpufleet.checkpoint.criu_image). Images of the
        same selection that a migration has left on its way count, too.
    type: dict
    suboptions:
      all:
        description:
          - V(true) chooses every CUDA process. Further criteria still have to match.
        type: bool
        default: false
      gpus:
        description:
          - GPUs by index or by UUID.
        type: list
        elements: str
      users:
        description:
          - Owners of the processes, by name or by numeric user id.
        type: list
        elements: str
      command:
        description:
          - A regular expression in the syntax of Python, searched for in the command line.
        type: str
      executable:
        description:
          - A shell pattern for the absolute path of the executable.
        type: str
      cgroup:
        description:
          - A path in the cgroup hierarchy. The processes in it and below it are meant.
        type: str
      unit:
        description:
          - A systemd unit.
        type: str
      slurm_job:
        description:
          - The id of a Slurm job.
        type: str
      container:
        description:
          - The id of a container, or the first 12 or more characters of it.
        type: str
  evidence:
    description:
      - What the source has returned, for O(side=target).
    type: str
  transfer:
    description:
      - V(shared) if both hosts see the same store, so that no copy needs room. For O(side=target).
    type: str
    choices: [copy, shared]
    default: copy
  carry:
    description:
      - Directories of which the files that the processes have open go along, and so need not be in place. For
        O(side=target).
    type: list
    elements: path
    default: []
  device_map:
    description:
      - As in M(gpufleet.checkpoint.criu_image), for O(side=target).
    type: raw
    default: auto
  pid_namespace:
    description:
      - As in M(gpufleet.checkpoint.criu_image), for O(side=target).
    type: str
    choices: [same, new]
    default: same
  allow:
    description:
      - Names of findings that are to be overridden, for O(side=target). Each finding tells its name.
    type: list
    elements: str
    default: []
  criu_executable:
    description:
      - Path of C(criu). Without it, it is looked for in the usual directories of root.
    type: path
  journal:
    description:
      - Path of the host's journal.
    type: path
    default: /var/lib/gpufleet/checkpoint.db
notes:
  - The module needs to be root.
seealso:
  - module: gpufleet.checkpoint.criu_image_handoff
  - module: gpufleet.checkpoint.gpu_preflight
"""

EXAMPLES = r"""
- name: Look at what is to leave
  gpufleet.checkpoint.gpu_migration_info:
    side: source
    store: /var/lib/gpufleet/images
    select:
      unit: inference.service
  register: leaving

- name: Would it come back on the other host?
  gpufleet.checkpoint.gpu_migration_info:
    side: target
    store: /var/lib/gpufleet/images
    evidence: "{{ leaving.evidence }}"
  delegate_to: gpu08
  register: there
  failed_when: not there.fits
"""

RETURN = r"""
hostname:
  description: Of this host.
  returned: success
  type: str
  sample: gpu07
machine:
  description: The machine id of this host.
  returned: success
  type: str
  sample: 4c1f0e5d8a7b4f0b9a6a1b2c3d4e5f60
image_bytes:
  description: What the images take, in bytes. For a process that runs it is an estimate.
  returned: success
  type: int
  sample: 9227468800
evidence:
  description: For O(side=target), as O(evidence).
  returned: with side source
  type: str
  sample: eJyrVkrLTFGyUkpLLC5RqgUAI7oEyQ==
driver:
  description: The version of the driver of the source.
  returned: with side source
  type: str
  sample: 580.159.04
moved:
  description: The last images that this host has given up for another one, or taken from one, newest first.
  returned: with side source
  type: list
  elements: dict
  contains:
    path:
      description: The image.
      returned: success
      type: str
      sample: /var/lib/gpufleet/images/inference-4711
    run_id:
      description: The run that did it.
      returned: success
      type: str
      sample: 20261130T020145-7f3a9c
    what:
      description: What it did, and with which host.
      returned: success
      type: str
      sample: "fenced: moved, other host gpu08"
trees:
  description: Each process tree.
  returned: with side source
  type: list
  elements: dict
  contains:
    name:
      description: The name of its image.
      returned: success
      type: str
      sample: inference-4711
    state:
      description: >-
        V(live) for one that runs. Of one that is in an image already, V(unspent), V(restoring) if a restore of it has
        begun on this host, or V(moved) if it was given up for another host.
      returned: success
      type: str
      sample: live
    id:
      description: The id of the move that it is in, empty for none.
      returned: success
      type: str
      sample: ""
    peer:
      description: The machine id of the host that it was given up for, empty for none.
      returned: success
      type: str
      sample: ""
    pid:
      description: Its root.
      returned: success
      type: int
      sample: 4711
    pids:
      description: All of it.
      returned: success
      type: list
      elements: int
      sample: [4711, 4712]
    lineage:
      description: The lineage, which means something only of an image.
      returned: success
      type: str
      sample: 5b1d7c0e6f2a4a0f9a4b6d1c2e3f4a5b
    executable:
      description: Of its root.
      returned: success
      type: str
      sample: /usr/bin/python3.12
    device_bytes:
      description: Its GPU memory, in bytes.
      returned: success
      type: int
      sample: 8589934592
    image_bytes:
      description: What its image takes, in bytes.
      returned: success
      type: int
      sample: 9227468800
fits:
  description: Whether nothing blocks.
  returned: with side target
  type: bool
  sample: true
findings:
  description: Everything that speaks against it, the worst first, as in M(gpufleet.checkpoint.criu_image).
  returned: with side target
  type: list
  elements: dict
  sample: []
refusals:
  description: What blocks, one text each.
  returned: with side target
  type: list
  elements: str
  sample: []
device_map:
  description: On which GPU of this host each GPU of the source is restored. Empty if all stay where they are.
  returned: with side target
  type: dict
  sample: {"GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a": "GPU-2d4c7a90-3c1b-4b57-8f0e-6a9e1f2d3c4b"}
here:
  description: The names of those that are here already, restored or being restored.
  returned: with side target
  type: list
  elements: str
  sample: []
free_bytes:
  description: GPU memory that would be left on the fullest GPU, in bytes.
  returned: with side target
  type: int
  sample: 68719476736
processes:
  description: How many processes use the GPUs of this host.
  returned: with side target
  type: int
  sample: 0
transfer_rate:
  description: How fast images came here before.
  returned: with side target
  type: dict
  contains:
    bytes_per_second:
      description: The slowest tenth of what was measured, 0 if nothing was.
      returned: success
      type: int
      sample: 412000000
    measured:
      description: How many transfers were.
      returned: success
      type: int
      sample: 12
"""

import os
from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _compile_once

_compile_once.install()

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import (
    ArgumentError,
    parse_allow,
    parse_device_map,
    parse_place,
    parse_select,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import FieldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import NvmlError, NvmlMissing
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration import info
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.decide import OPTIONS, Wish
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import SelectError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children

ARGUMENTS = {
    "side": {"type": "str", "choices": ["source", "target"], "required": True},
    "store": {"type": "path", "required": True},
    "select": {
        "type": "dict",
        "options": {
            "all": {"type": "bool", "default": False},
            "gpus": {"type": "list", "elements": "str"},
            "users": {"type": "list", "elements": "str"},
            "command": {"type": "str"},
            "executable": {"type": "str"},
            "cgroup": {"type": "str"},
            "unit": {"type": "str"},
            "slurm_job": {"type": "str"},
            "container": {"type": "str"},
        },
    },
    "evidence": {"type": "str"},
    "transfer": {"type": "str", "choices": ["copy", "shared"], "default": "copy"},
    "carry": {"type": "list", "elements": "path", "default": []},
    "device_map": {"type": "raw", "default": "auto"},
    "pid_namespace": {"type": "str", "choices": ["same", "new"], "default": "same"},
    "allow": {"type": "list", "elements": "str", "default": []},
    "criu_executable": {"type": "path"},
    "journal": {"type": "path", "default": "/var/lib/gpufleet/checkpoint.db"},
}


def look(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Raises ArgumentError, FieldError, and what reading the host raises."""
    store = parse_place("store", params["store"])
    journal, criu = os.path.abspath(params["journal"]), params["criu_executable"] or ""
    if params["side"] == "source":
        return info.of_source(journal, criu, store, parse_select(params["select"]))
    wish = Wish(
        transfer=params["transfer"],
        carry=tuple(parse_place("carry", one) for one in params["carry"]),
        device_map=parse_device_map(params["device_map"]),
        new_namespace=params["pid_namespace"] == "new",
        allow=parse_allow(params["allow"], OPTIONS),
    )
    return info.of_target(journal, criu, store, params["evidence"], wish)


def main() -> None:
    hear_of_children()
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[("side", "source", ["select"]), ("side", "target", ["evidence"])],
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(
            msg=f"gpu_migration_info: it runs as user id {os.geteuid()}. It reads processes of every user, and images. "
            "Set become: true."
        )
    try:
        found = look(module.params)
    except NvmlMissing as error:
        module.fail_json(msg=missing_required_lib(error.library), exception=error.trace)
    except (ArgumentError, CriuError, FieldError, JournalError, NvmlError, SelectError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
