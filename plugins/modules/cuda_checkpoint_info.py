#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_checkpoint_info
short_description: Lists CUDA processes and their state
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Tells, for each CUDA process of the managed node, its state, its GPUs and their memory, its owner, where it comes
    from (systemd unit, Slurm job, container), whether it is parked, and what would keep
    M(gpufleet.checkpoint.cuda_checkpoint) from suspending or resuming it.
  - Nothing is changed, and no process is stopped or continued. What can't be seen that way, such as the state inside
    the driver of a parked process, comes from the journal.
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
  - gpufleet.checkpoint._attributes.info_module
  - gpufleet.checkpoint._attributes.linux
  - gpufleet.checkpoint._attributes.actiongroup_all
  - gpufleet.checkpoint._cuda
notes:
  - Neither O(pids) nor O(select) given, every CUDA process is listed.
  - Root sees everything. Another user gets the state of its own processes, and V(unknown) for those of others.
seealso:
  - module: gpufleet.checkpoint.cuda_checkpoint
"""

EXAMPLES = r"""
- name: List every CUDA process of the host
  gpufleet.checkpoint.cuda_checkpoint_info:
  register: cuda

- name: Say which of them could not be suspended, and why
  ansible.builtin.debug:
    msg: "{{ item.subject }}: {{ item.evidence }}. {{ item.remedy }}"
  loop: "{{ cuda.findings | selectattr('severity', 'eq', 'blocking') }}"
  loop_control:
    label: "{{ item.id }}"

- name: Look at the processes of one service
  gpufleet.checkpoint.cuda_checkpoint_info:
    select:
      unit: inference.service
  register: inference

- name: Fail unless all of them run
  ansible.builtin.assert:
    that: inference.processes | rejectattr('state', 'eq', 'running') | length == 0

- name: Look at two processes, with their command lines
  gpufleet.checkpoint.cuda_checkpoint_info:
    pids: [4711, 4712]
    full_command: true
"""

RETURN = r"""
backend:
  description: How the driver was asked.
  returned: success
  type: str
  sample: libcuda
driver:
  description: The version of the driver, V(null) if none is loaded.
  returned: success
  type: str
  sample: 580.159.04
gpus:
  description: The GPUs of the host.
  returned: success
  type: list
  elements: dict
  contains:
    index:
      description: The index of the GPU.
      returned: success
      type: int
      sample: 0
    uuid:
      description: The UUID of the GPU.
      returned: success
      type: str
      sample: GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a
    name:
      description: The model.
      returned: success
      type: str
      sample: NVIDIA H200
    total_bytes:
      description: The memory of the GPU, in bytes.
      returned: success
      type: int
      sample: 150754820096
    used_bytes:
      description: How much of it is in use, in bytes.
      returned: success
      type: int
      sample: 9127854080
    free_bytes:
      description: How much of it is free, in bytes.
      returned: success
      type: int
      sample: 141626966016
    mig:
      description: Whether it is divided into MIG instances.
      returned: success
      type: bool
      sample: false
    persistence:
      description: Whether persistence mode is on, V(null) if it is not known.
      returned: success
      type: bool
      sample: true
processes:
  description: One entry per process, in the order of O(pids), or by PID.
  returned: success
  type: list
  elements: dict
  contains:
    pid:
      description: The process id.
      returned: success
      type: int
      sample: 4711
    identity:
      description: What tells this process from every other one. O(pids) takes it as an entry.
      returned: success
      type: dict
      contains:
        pid:
          description: The process id.
          returned: success
          type: int
          sample: 4711
        start_ticks:
          description: When the process started, in clock ticks after the boot of the host.
          returned: success
          type: int
          sample: 1893412
        boot_id:
          description: The boot of the host.
          returned: success
          type: str
          sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
    executable:
      description: Path of the executable.
      returned: success
      type: str
      sample: /usr/bin/python3.12
    command:
      description: The command line.
      returned: with O(full_command=true)
      type: list
      elements: str
      sample: [python3, train.py]
    user:
      description: The owner of the process, as a number if it has no name.
      returned: success
      type: str
      sample: trainer
    state:
      description:
        - V(running), V(locked), V(checkpointed), V(failed), V(checkpointing) or V(restoring).
        - V(running_without_gpu) for a suspended process that somebody continued. M(gpufleet.checkpoint.cuda_checkpoint)
          with O(pids) mends that.
        - V(unknown) if it can't be told, for example because somebody stopped the process and the driver would give no
          answer.
      returned: success
      type: str
      sample: checkpointed
    parked:
      description: Whether the process is suspended and stopped.
      returned: success
      type: bool
      sample: true
    guard:
      description: What keeps the parked process stopped.
      returned: success
      type: dict
      contains:
        kind:
          description: V(holder), V(cgroup) or V(none).
          returned: success
          type: str
          sample: holder
        pid:
          description: The process id of the small process that is attached to it, V(null) if there is none.
          returned: success
          type: int
          sample: 5120
    run_id:
      description:
        - The run of M(gpufleet.checkpoint.cuda_checkpoint) that last dealt with the process, V(null) if the journal has
          none. A process that is parked without such a run was parked by somebody else.
      returned: success
      type: str
      sample: 20261130T020145-7f3a9c
    gpus:
      description: The GPUs of the process. For a suspended one those that it used when it was suspended.
      returned: success
      type: list
      elements: dict
      contains:
        uuid:
          description: The UUID of the GPU.
          returned: success
          type: str
          sample: GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a
        index:
          description: The index of the GPU, V(null) if the host has no such GPU now.
          returned: success
          type: int
          sample: 0
        bytes:
          description: The GPU memory that the process holds or held there, in bytes, V(null) if it is not known.
          returned: success
          type: int
          sample: 8589934592
    device_bytes:
      description: The sum over RV(processes[].gpus), in bytes, V(null) if it is not known.
      returned: success
      type: int
      sample: 8589934592
    cgroup:
      description: The path of its cgroup.
      returned: success
      type: str
      sample: /system.slice/inference.service
    unit:
      description: Its systemd unit, V(null) if it has none.
      returned: success
      type: str
      sample: inference.service
    slurm_job:
      description: Its Slurm job, V(null) if it has none.
      returned: success
      type: str
      sample: "90210"
    container:
      description: Its container, V(null) if it has none.
      returned: success
      type: str
      sample: 3f1c0e5d8a7b
    findings:
      description: The identifiers of those of RV(findings) that are about this process.
      returned: success
      type: list
      elements: str
      sample: []
    warnings:
      description: What could not be seen.
      returned: success
      type: list
      elements: str
      sample: []
lost:
  description:
    - Processes that were suspended on this host since it was booted and have ended since, without an image of them.
      They don't come back. Empty with O(pids).
    - A run of M(gpufleet.checkpoint.cuda_checkpoint) with O(gpufleet.checkpoint.cuda_checkpoint#module:select) warns of
      them; after one with O(gpufleet.checkpoint.cuda_checkpoint#module:state=running) they are no longer listed.
  returned: success
  type: list
  elements: dict
  contains:
    pid:
      description: What its process ID was.
      returned: success
      type: int
      sample: 4711
    executable:
      description: Path of its program.
      returned: success
      type: str
      sample: /usr/bin/python3.12
    user:
      description: Name or number of its owner.
      returned: success
      type: str
      sample: trainer
    run_id:
      description: The run that suspended it.
      returned: success
      type: str
      sample: 20261130T101812-902252
    device_bytes:
      description: What it held on all GPUs, in bytes.
      returned: success
      type: int
      sample: 17725128704
findings:
  description:
    - What would keep the processes from being suspended, or, if they are suspended, from being resumed.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: What kind of finding it is.
      returned: success
      type: str
      sample: cgroup_memory
    severity:
      description: V(blocking) or V(warning).
      returned: success
      type: str
      sample: blocking
    pid:
      description: The process that it is about, V(null) if it is about the host.
      returned: success
      type: int
      sample: 4711
    subject:
      description: What it is about, for people.
      returned: success
      type: str
      sample: process 4711 (python3)
    evidence:
      description: What was seen.
      returned: success
      type: str
      sample: memory.max of /jobs/a is 4.0 GiB, 1.2 GiB are in use, the process holds 8.0 GiB of GPU memory
    reason:
      description: Why it matters.
      returned: success
      type: str
      sample: the kernel would kill the process while its GPU memory is copied to host memory
    remedy:
      description: What helps.
      returned: success
      type: str
      sample: raise memory.max to at least 9.7 GiB
    option:
      description: >-
        The name by which O(gpufleet.checkpoint.cuda_checkpoint#module:allow) overrides it, empty if nothing does.
      returned: success
      type: str
      sample: cgroup_memory
    reference:
      description: Where to read more.
      returned: success
      type: str
      sample: https://github.com/gpufleet/checkpoint/blob/main/docs/driver-findings.md
"""

import os

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _compile_once

_compile_once.install()

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import (
    ArgumentError,
    parse_pids,
    parse_select,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import BackendError, choose
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuReader, NvmlError, NvmlMissing
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._info import Inspection
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import SelectError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import read_snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import refused_by_host

ARGUMENTS = {
    "pids": {"type": "list", "elements": "raw"},
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
    "full_command": {"type": "bool", "default": False},
    "backend": {"type": "str", "choices": ["auto", "libcuda", "cli", "toggle"], "default": "auto"},
    "executable": {"type": "path"},
    "journal": {"type": "path", "default": "/var/lib/gpufleet/checkpoint.db"},
}


def main() -> None:
    hear_of_children()
    module = AnsibleModule(argument_spec=ARGUMENTS, mutually_exclusive=[("pids", "select")], supports_check_mode=True)
    params = module.params
    try:
        wanted = None if params["pids"] is None else parse_pids(params["pids"])
        criteria = parse_select(params["select"])
        path = os.path.abspath(params["journal"])
        with GpuReader() as gpus, open_journal(path, create=False) as journal:
            if params["executable"]:
                backend = choose(params["backend"], params["executable"])
            else:
                backend = choose(params["backend"])
            backend.prepare()
            inspection = Inspection(backend, journal, path, lambda pids: read_snapshot(pids, gpus=gpus.read))
            found = inspection.run(wanted, criteria, params["full_command"])
    except NvmlMissing as error:
        module.fail_json(msg=missing_required_lib(error.library), exception=error.trace)
    except (ArgumentError, SelectError, BackendError, JournalError, NvmlError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=refused_by_host(error))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
