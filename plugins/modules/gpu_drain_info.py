#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_drain_info
short_description: Tells which run drains the GPUs of a host, and how far it has come
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Tells what M(gpufleet.checkpoint.gpu_drain) has written on the managed node, and what has become of the processes
    and images of the drain since.
  - Nothing is changed, and no process is stopped, continued or asked for anything. A host without a journal, or with
    one of an older release, has no drain, which is no failure.
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
  - gpufleet.checkpoint._attributes.info_module
  - gpufleet.checkpoint._attributes.linux
  - gpufleet.checkpoint._attributes.actiongroup_all
  - gpufleet.checkpoint._drain
options:
  run_id:
    description:
      - Tells of the drain of this run, instead of the one that has the host or had it last.
    type: str
    default: ""
notes:
  - It needs root.
seealso:
  - module: gpufleet.checkpoint.gpu_drain
"""

EXAMPLES = r"""
- name: Look at the drain of a host
  gpufleet.checkpoint.gpu_drain_info:
  register: info

- name: Say what is suspended, and by which run
  ansible.builtin.debug:
    msg: "{{ item.pid }}: {{ item.run_id }}"
  loop: "{{ info.cuda | selectattr('state', 'eq', 'suspended') }}"

- name: Fail unless a run has given the host back
  gpufleet.checkpoint.gpu_drain_info:
    run_id: kernel-2026-12
  register: info
  failed_when: info.drain is none or info.drain.phase != 'released'
"""

RETURN = r"""
drain:
  description: >-
    The drain that has the host, or else the last one, V(null) if there never was one, or none of O(run_id).
  returned: success
  type: dict
  contains:
    phase:
      description:
        - >-
          The phase that the host is in now, V(claimed), V(suspending), V(suspended), V(maintenance), V(restoring),
          V(restored), V(released), V(undoing) or V(undone). Empty if the host has no such drain.
      returned: when there is one
      type: str
      sample: suspended
    phase_before:
      description: The phase that it was in before this task, empty if the drain began with it.
      returned: when there is one
      type: str
      sample: suspending
    todo:
      description:
        - >-
          What a run still has to do on this host, in this order, of V(scheduler), V(before_suspend), V(suspend),
          V(maintenance), V(restore), V(after_restore) and V(release). Just V(undo) where a run has begun to undo. Empty
          when the host is released, or has no drain.
      returned: when there is one
      type: list
      elements: str
      sample: [maintenance, restore, after_restore, release]
    run_id:
      description: The run that the drain belongs to.
      returned: when there is one
      type: str
      sample: 20261130T020145-7f3a9c
    runs:
      description: >-
        Every run that it has belonged to, the oldest first. What one of them did to a process, or stamped in a
        scheduler, is this drain's.
      returned: when there is one
      type: list
      elements: str
      sample: [20261130T020145-7f3a9c]
    attempt:
      description: Which attempt of the run this is. Hand it on to the next task of the same attempt.
      returned: when there is one
      type: int
      sample: 1
    kind:
      description: V(drain) or V(suspend).
      returned: when there is one
      type: str
      sample: drain
    mode:
      description: >-
        V(memory) or V(disk), as it was when the processes were suspended. That counts, whatever a later task says.
      returned: when there is one
      type: str
      sample: memory
    store:
      description: The directory with the images of this drain, empty in mode V(memory) and before V(suspending).
      returned: when there is one
      type: str
      sample: ""
    boot_id:
      description: The boot of the host now.
      returned: when there is one
      type: str
      sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
    rebooted:
      description: Whether the host has booted since its processes were suspended, or since the drain began.
      returned: when there is one
      type: bool
      sample: false
    others:
      description: >-
        PIDs of CUDA processes that somebody else suspended. They are left as they are.
      returned: when there is one
      type: list
      elements: int
      sample: []
    since:
      description: When the phase was reached, in seconds since the epoch.
      returned: when there is one
      type: float
      sample: 1795917705.25
    controller:
      description: Who runs the attempt, as O(gpufleet.checkpoint.gpu_drain#module:controller) has it.
      returned: when there is one
      type: str
      sample: "control1 admin 4711:1893412:0d5b6e1f-58e1-4b3c-9a3e-0b9d3f0a7c11"
    message:
      description: What was last said of a failure. Empty if nothing was.
      returned: when there is one
      type: str
      sample: ""
    opened:
      description: When it began, in seconds since the epoch.
      returned: when there is one
      type: float
      sample: 1795917701.5
    closed:
      description: When it ended, in seconds since the epoch, V(null) if it has the host still.
      returned: when there is one
      type: float
      sample: null
    declares:
      description: What its maintenance was said to do.
      returned: when there is one
      type: list
      elements: str
      sample: [reboot]
    processes:
      description: >-
        The CUDA processes of the drain. Before they are suspended, those that the selection matches.
      returned: when there is one
      type: list
      elements: dict
      contains:
        identity:
          description: What tells this process from every other one.
          returned: when there is one
          type: dict
          contains:
            pid:
              description: The process id.
              returned: when there is one
              type: int
              sample: 4711
            start_ticks:
              description: When the process started, in clock ticks after the boot of the host.
              returned: when there is one
              type: int
              sample: 1893412
            boot_id:
              description: The boot of the host.
              returned: when there is one
              type: str
              sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
        executable:
          description: Path of the executable.
          returned: when there is one
          type: str
          sample: /usr/bin/python3.12
        device_bytes:
          description: >-
            The GPU memory that it held when it was last suspended, in bytes, V(null) if it is not known.
          returned: when there is one
          type: int
          sample: 8589934592
        state:
          description: >-
            V(running), V(suspended) or V(gone). In an image that has not been restored it is V(suspended).
          returned: when there is one
          type: str
          sample: suspended
    pids:
      description: >-
        Identities of the processes that this drain has suspended in memory, that live and are still suspended, or
        that it may have left locked when a step was broken off. They are what
        M(gpufleet.checkpoint.cuda_checkpoint) takes as O(gpufleet.checkpoint.cuda_checkpoint#module:pids) to bring
        them back.
      returned: when there is one
      type: list
      elements: dict
      contains:
        pid:
          description: The process id.
          returned: when there is one
          type: int
          sample: 4711
        start_ticks:
          description: When the process started, in clock ticks after the boot of the host.
          returned: when there is one
          type: int
          sample: 1893412
        boot_id:
          description: The boot of the host.
          returned: when there is one
          type: str
          sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
    images:
      description: The images that this drain has made.
      returned: when there is one
      type: list
      elements: dict
      contains:
        path:
          description: The directory of the image.
          returned: when there is one
          type: str
          sample: /var/lib/gpufleet/images/20261130T020145-7f3a9c/pid-4711
        pid:
          description: The process at the root of the tree in it.
          returned: when there is one
          type: int
          sample: 4711
        state:
          description: >-
            V(unspent), V(restoring), V(spent), V(missing) or V(damaged); V(unfinished) where it was begun and is not
            whole.
          returned: when there is one
          type: str
          sample: unspent
        bytes:
          description: Its size, in bytes, V(null) if it is not known.
          returned: when there is one
          type: int
          sample: 9127854080
    lost:
      description: What of this drain does not come back.
      returned: when there is one
      type: list
      elements: dict
      contains:
        what:
          description: The process or the image.
          returned: when there is one
          type: str
          sample: PID 4711 (/usr/bin/python3.12)
        why:
          description: How that is known.
          returned: when there is one
          type: str
          sample: it was suspended in memory, and the host has booted since
    holders:
      description: >-
        Who still has C(/dev/nvidia*) open or mapped. Looked for in the phases V(suspended) and V(maintenance) only.
      returned: when there is one
      type: list
      elements: dict
      contains:
        pid:
          description: The process id.
          returned: when there is one
          type: int
          sample: 912
        executable:
          description: Path of the executable, or its name in brackets if the path is not known.
          returned: when there is one
          type: str
          sample: /usr/bin/nvidia-persistenced
        user:
          description: The owner of the process, as a number if it has no name.
          returned: when there is one
          type: str
          sample: nvidia-persistenced
        files:
          description: Which of the devices it has.
          returned: when there is one
          type: list
          elements: str
          sample: [/dev/nvidia0, /dev/nvidiactl]
    packages:
      description: The packages of the driver that are held, so that no upgrade changes it meanwhile.
      returned: when there is one
      type: dict
      contains:
        manager:
          description: V(apt), V(dnf) or V(none).
          returned: when there is one
          type: str
          sample: apt
        held:
          description: Those that this drain holds, and lets go at its end.
          returned: when there is one
          type: list
          elements: str
          sample: [libnvidia-compute-580, nvidia-driver-580]
        already:
          description: Those that somebody else had held before. They stay held.
          returned: when there is one
          type: list
          elements: str
          sample: []
        why:
          description: Why nothing is held, empty if something is, or was not asked for.
          returned: when there is one
          type: str
          sample: ""
    scheduler:
      description: What was last handed over as O(gpufleet.checkpoint.gpu_drain#module:scheduler).
      returned: when there is one
      type: dict
      sample: {kind: slurm, node: gpu7, ours: true}
    timeline:
      description: The phases that the host has been in, the oldest first.
      returned: when there is one
      type: list
      elements: dict
      contains:
        phase:
          description: The phase.
          returned: when there is one
          type: str
          sample: claimed
        at:
          description: When it was reached, in seconds since the epoch.
          returned: when there is one
          type: float
          sample: 1795917701.5
        attempt:
          description: The attempt that reached it.
          returned: when there is one
          type: int
          sample: 1
        boot_id:
          description: The boot of the host then.
          returned: when there is one
          type: str
          sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
        message:
          description: What was said of it. Empty if nothing was.
          returned: when there is one
          type: str
          sample: ""
    failures:
      description: What has failed, the oldest first, each under the phase that the host was in.
      returned: when there is one
      type: list
      elements: dict
      contains:
        phase:
          description: The phase.
          returned: when there is one
          type: str
          sample: suspending
        attempt:
          description: The attempt.
          returned: when there is one
          type: int
          sample: 1
        at:
          description: When it was told, in seconds since the epoch.
          returned: when there is one
          type: float
          sample: 1795917703.75
        message:
          description: What failed, and why.
          returned: when there is one
          type: str
          sample: "Look at what speaks against it: PID 4711 (python3.12) has 3.0 GiB of managed memory"
    findings:
      description: What keeps the host from the phase, or should be known.
      returned: when there is one
      type: list
      elements: dict
      contains:
        id:
          description: What kind of finding it is.
          returned: when there is one
          type: str
          sample: device_holders
        severity:
          description: V(blocking) or V(warning).
          returned: when there is one
          type: str
          sample: warning
        pid:
          description: The process that it is about, V(null) if it is about the host.
          returned: when there is one
          type: int
          sample: 912
        subject:
          description: What it is about, for people.
          returned: when there is one
          type: str
          sample: PID 912 (/usr/bin/nvidia-persistenced)
        evidence:
          description: What was seen.
          returned: when there is one
          type: str
          sample: it has /dev/nvidia0 open
        reason:
          description: Why it matters.
          returned: when there is one
          type: str
          sample: A GPU that is in use can't be reset
        remedy:
          description: What helps.
          returned: when there is one
          type: str
          sample: Stop it for the time of the maintenance
        option:
          description: The option that overrides it, empty if nothing does.
          returned: when there is one
          type: str
          sample: ""
        reference:
          description: Where to read more.
          returned: when there is one
          type: str
          sample: https://github.com/gpufleet/checkpoint/blob/main/docs/drain.md
history:
  description: The last ten drains that have ended, the newest first.
  returned: success
  type: list
  elements: dict
  contains:
    run_id:
      description: The run.
      returned: success
      type: str
      sample: 20261130T020145-7f3a9c
    runs:
      description: Every run that it has belonged to, the oldest first.
      returned: success
      type: list
      elements: str
      sample: [20261130T020145-7f3a9c]
    kind:
      description: V(drain) or V(suspend).
      returned: success
      type: str
      sample: drain
    mode:
      description: V(memory) or V(disk).
      returned: success
      type: str
      sample: memory
    phase:
      description: How it ended, V(released) or V(undone).
      returned: success
      type: str
      sample: released
    attempt:
      description: The last attempt.
      returned: success
      type: int
      sample: 1
    controller:
      description: Who ran it.
      returned: success
      type: str
      sample: "control1 admin 4711:1893412:0d5b6e1f-58e1-4b3c-9a3e-0b9d3f0a7c11"
    opened:
      description: When it began, in seconds since the epoch.
      returned: success
      type: float
      sample: 1795917701.5
    closed:
      description: When it ended, in seconds since the epoch.
      returned: success
      type: float
      sample: 1795918901.5
    message:
      description: What was last said of a failure. Empty if nothing was.
      returned: success
      type: str
      sample: ""
host:
  description: The managed node.
  returned: success
  type: dict
  contains:
    boot_id:
      description: The boot of the host now.
      returned: success
      type: str
      sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
    uptime_seconds:
      description: How long ago that was, in seconds.
      returned: success
      type: float
      sample: 93211.4
    driver:
      description: The version of the NVIDIA driver, empty if none is loaded.
      returned: success
      type: str
      sample: 580.159.04
cuda:
  description: The CUDA processes of the host that O(select) chooses.
  returned: success
  type: list
  elements: dict
  contains:
    pid:
      description: The process id.
      returned: success
      type: int
      sample: 4711
    state:
      description: >-
        V(running), V(suspended), or V(running_without_gpu) for a suspended process that somebody continued.
      returned: success
      type: str
      sample: suspended
    run_id:
      description: The run that suspended it, V(null) if it is not suspended, or the journal does not know.
      returned: success
      type: str
      sample: 20261130T020145-7f3a9c
"""

import os

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _compile_once

_compile_once.install()

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import (
    ArgumentError,
    parse_run_id,
    parse_select,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_info import inspect
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import NvmlError, NvmlMissing
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import SelectError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children

ARGUMENTS = {
    "run_id": {"type": "str", "default": ""},
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
    "journal": {"type": "path", "default": "/var/lib/gpufleet/checkpoint.db"},
}


def main() -> None:
    hear_of_children()
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    if os.geteuid() != 0:
        module.fail_json(
            msg=f"gpu_drain_info: it runs as user id {os.geteuid()}. It reads what belongs to root: the journal and "
            "processes of every user. Set become: true."
        )
    try:
        run_id = parse_run_id(module.params["run_id"]) if module.params["run_id"] else ""
        select = parse_select(module.params["select"])
        with open_journal(os.path.abspath(module.params["journal"]), create=False) as journal:
            found = inspect(journal, run_id, select)
    except NvmlMissing as error:
        module.fail_json(msg=missing_required_lib(error.library), exception=error.trace)
    except (ArgumentError, CriuError, JournalError, NvmlError, SelectError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
