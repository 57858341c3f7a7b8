#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_drain
short_description: Says on a host how far a drain of its GPUs has come, and keeps other runs away
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - A drain suspends the CUDA processes of a host, has its maintenance done, and brings them back. This module writes
    each phase of it into the journal of the host B(before) or B(after) the work that other tasks do, so that a run that
    was broken off anywhere goes on from what the host itself says, whatever became of the controller.
  - The open entry is a lock. No other run gets the host, and no earlier attempt of the same run that is still alive.
  - What it says is re-read, never assumed. V(suspended) is reached only when every selected process is seen to be
    suspended and stopped, or to be in an image that is whole; V(restored) only when every process is seen to run.
  - The roles C(gpu_suspend), C(gpu_restore) and C(gpu_drain) of this collection use it. A playbook of your own that
    suspends or resumes processes with M(gpufleet.checkpoint.cuda_checkpoint) or M(gpufleet.checkpoint.criu_image) needs
    it only to be kept apart from them.
attributes:
  check_mode:
    support: full
    details:
      - Everything is read and checked as in a run, and nothing is written, not even an empty journal. What earlier
        tasks of the same run would have done is not there in check mode, so it is not proved.
  diff_mode:
    support: full
    details:
      - The phase and the held packages, before and after.
  idempotent:
    support: full
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
  - gpufleet.checkpoint._attributes.linux
  - gpufleet.checkpoint._attributes.actiongroup_all
  - gpufleet.checkpoint._drain
options:
  phase:
    description:
      - The phase that the host is to be in. Phases only go forward; one that is reached already is returned without a
        change.
    type: str
    required: true
    choices:
      claimed: The host belongs to this run. Before a scheduler or a load balancer is told.
      suspending: >-
        Before the first process is suspended. Holds the packages of the driver with O(hold_packages). Claims the host
        if that was not done.
      suspended: After it. Refused unless every process that is meant is suspended and stopped, or in its image.
      maintenance: Before the maintenance.
      restoring: Before the first process is brought back. RV(pids) and RV(images) say what there is to bring back.
      restored: After it. Refused unless every process runs.
      released: The host is given back. Lets the packages go, and ends the drain.
      undoing: >-
        Before what was begun is undone. From V(suspended) on it is refused, since a maintenance may have begun then.
      undone: After it. Refused unless every process of this drain runs. Lets the packages go, and ends the drain.
  run_id:
    description:
      - The name of the run, the same for each of its hosts and each of its attempts.
      - Empty is the drain of the host with O(kind=suspend) that has not ended; with O(phase=claimed) and
        O(phase=suspending), a new one if there is none.
    type: str
    default: ""
  attempt:
    description:
      - Which attempt of the run this is, from V(1). A number that is lower than the last one is refused in every phase.
      - V(0) is the next one. RV(attempt) returns it, to be handed on.
    type: int
    default: 0
  controller:
    description:
      - Who runs the attempt, as C(HOST USER PID:START:BOOT).
      - A run is not carried on from another host than the one that began it, without O(take_over).
    type: str
    default: ""
  kind:
    description:
      - Whether a drain of a fleet has the host, or a suspend by itself.
    type: str
    choices: [drain, suspend]
    default: drain
  mode:
    description:
      - Whether processes stay in the memory of the host, or go into images on disk that survive a reboot.
      - V(memory) if it was given neither now nor when the host was claimed.
      - Used until the first process is suspended. Later, RV(mode) is what counts.
    type: str
    choices: [memory, disk]
  store:
    description:
      - For O(mode=disk). The directory below which the drain gets one of its own, RV(store).
      - Used with O(phase=suspending).
    type: path
    default: /var/lib/gpufleet/images
  declares:
    description:
      - What the maintenance will do that decides what can be kept. Used until the first process is suspended.
    type: list
    elements: str
    choices:
      reboot: The host is booted. Needs O(mode=disk).
      driver_change: >-
        The driver is changed. An image needs exactly its driver, and a process in memory keeps the library of the old
        one, so it is refused if any process is selected.
      gpu_reset: >-
        A GPU is reset. V(suspended) and V(maintenance) are refused while anybody has C(/dev/nvidia*) open or mapped.
    default: []
  hold_packages:
    description:
      - Whether to hold the packages of the driver from V(suspending) until V(released), with C(apt-mark) or with
        C(dnf versionlock). Those that are held already are left as they are, also at the end.
      - If there is no such package or no such tool, RV(packages.why) says so, and nothing fails.
    type: bool
    default: false
  scheduler:
    description:
      - What the caller has to remember of the scheduler. It is kept as it is, and returned.
    type: dict
  note:
    description:
      - What to write down of what is going on. It does not change the phase, and is returned as RV(message) until the
        next phase is reached.
    type: str
  failure:
    description:
      - What has failed. It is written down with the time under the phase that the host is in, is returned in
        RV(failures) for good, and as RV(message) until the next phase is reached. What this module itself fails with
        is written down the same way.
      - With O(phase=claimed) nothing else is changed, and a host whose drain has ended is not claimed anew.
    type: str
  take_over:
    description:
      - The run that has the host, to take it over. Only by its name, so that a third one is not taken by mistake.
      - Phase, processes, images, packages and scheduler stay as they are. The drain is finished, not begun anew.
    type: str
    default: ""
  accept_loss:
    description:
      - For O(phase=restored) and O(phase=released). Whether to go on although RV(lost) is not empty. What lives has to
        run all the same.
    type: bool
    default: false
notes:
  - It needs root.
  - V(suspending), V(restoring) and V(undoing) wait for up to 10 minutes for what an earlier attempt still does on the
    host.
seealso:
  - module: gpufleet.checkpoint.gpu_drain_info
  - module: gpufleet.checkpoint.cuda_checkpoint
  - module: gpufleet.checkpoint.criu_image
"""

EXAMPLES = r"""
- name: Claim the host before the load balancer is told
  gpufleet.checkpoint.gpu_drain:
    phase: claimed
    run_id: kernel-2026-12
    attempt: 1
    declares: [gpu_reset]

- name: Say that processes are going to be suspended, and hold the packages of the driver
  gpufleet.checkpoint.gpu_drain:
    phase: suspending
    run_id: kernel-2026-12
    attempt: 1
    hold_packages: true

- name: Suspend every CUDA process
  gpufleet.checkpoint.cuda_checkpoint:
    state: checkpointed
    select: {all: true}
    run_id: kernel-2026-12

- name: Prove it
  gpufleet.checkpoint.gpu_drain:
    phase: suspended
    run_id: kernel-2026-12
    attempt: 1

- name: Reset the GPUs
  ansible.builtin.command:
    argv: [nvidia-smi, --gpu-reset]
  changed_when: true

- name: Say that processes are going to be brought back
  gpufleet.checkpoint.gpu_drain:
    phase: restoring
    run_id: kernel-2026-12
    attempt: 1
  register: restoring

- name: Bring them back
  gpufleet.checkpoint.cuda_checkpoint:
    state: running
    pids: "{{ restoring.pids }}"
    run_id: kernel-2026-12
  when: restoring.pids | length > 0

- name: Prove it
  gpufleet.checkpoint.gpu_drain:
    phase: restored
    run_id: kernel-2026-12
    attempt: 1

- name: Give the host back
  gpufleet.checkpoint.gpu_drain:
    phase: released
    run_id: kernel-2026-12
    attempt: 1
"""

RETURN = r"""
phase:
  description:
    - >-
      The phase that the host is in now, V(claimed), V(suspending), V(suspended), V(maintenance), V(restoring),
      V(restored), V(released), V(undoing) or V(undone). Empty if the host has no such drain.
  returned: when the options are valid
  type: str
  sample: suspended
phase_before:
  description: The phase that it was in before this task, empty if the drain began with it.
  returned: when the options are valid
  type: str
  sample: suspending
todo:
  description:
    - >-
      What a run still has to do on this host, in this order, of V(scheduler), V(before_suspend), V(suspend),
      V(maintenance), V(restore), V(after_restore) and V(release). Just V(undo) where a run has begun to undo. Empty
      when the host is released, or has no drain.
  returned: when the options are valid
  type: list
  elements: str
  sample: [maintenance, restore, after_restore, release]
run_id:
  description: The run that the drain belongs to.
  returned: when the options are valid
  type: str
  sample: 20261130T020145-7f3a9c
runs:
  description: >-
    Every run that it has belonged to, the oldest first. What one of them did to a process, or stamped in a scheduler,
    is this drain's.
  returned: when the options are valid
  type: list
  elements: str
  sample: [20261130T020145-7f3a9c]
attempt:
  description: Which attempt of the run this is. Hand it on to the next task of the same attempt.
  returned: when the options are valid
  type: int
  sample: 1
kind:
  description: V(drain) or V(suspend).
  returned: when the options are valid
  type: str
  sample: drain
mode:
  description: >-
    V(memory) or V(disk), as it was when the processes were suspended. That counts, whatever a later task says.
  returned: when the options are valid
  type: str
  sample: memory
store:
  description: The directory with the images of this drain, empty in mode V(memory) and before V(suspending).
  returned: when the options are valid
  type: str
  sample: ""
boot_id:
  description: The boot of the host now.
  returned: when the options are valid
  type: str
  sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
rebooted:
  description: Whether the host has booted since its processes were suspended, or since the drain began.
  returned: when the options are valid
  type: bool
  sample: false
others:
  description: >-
    PIDs of CUDA processes that somebody else suspended. They are left as they are.
  returned: when the options are valid
  type: list
  elements: int
  sample: []
since:
  description: When the phase was reached, in seconds since the epoch.
  returned: when the options are valid
  type: float
  sample: 1795917705.25
controller:
  description: Who runs the attempt, as O(controller) has it.
  returned: when the options are valid
  type: str
  sample: "control1 admin 4711:1893412:0d5b6e1f-58e1-4b3c-9a3e-0b9d3f0a7c11"
message:
  description: What was last said of a failure. Empty if nothing was.
  returned: when the options are valid
  type: str
  sample: ""
opened:
  description: When it began, in seconds since the epoch.
  returned: when the options are valid
  type: float
  sample: 1795917701.5
closed:
  description: When it ended, in seconds since the epoch, V(null) if it has the host still.
  returned: when the options are valid
  type: float
  sample: null
declares:
  description: What its maintenance was said to do.
  returned: when the options are valid
  type: list
  elements: str
  sample: [reboot]
processes:
  description: >-
    The CUDA processes of the drain. Before they are suspended, those that the selection matches.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    identity:
      description: What tells this process from every other one.
      returned: when the options are valid
      type: dict
      contains:
        pid:
          description: The process id.
          returned: when the options are valid
          type: int
          sample: 4711
        start_ticks:
          description: When the process started, in clock ticks after the boot of the host.
          returned: when the options are valid
          type: int
          sample: 1893412
        boot_id:
          description: The boot of the host.
          returned: when the options are valid
          type: str
          sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
    executable:
      description: Path of the executable.
      returned: when the options are valid
      type: str
      sample: /usr/bin/python3.12
    device_bytes:
      description: >-
        The GPU memory that it held when it was last suspended, in bytes, V(null) if it is not known.
      returned: when the options are valid
      type: int
      sample: 8589934592
    state:
      description: >-
        V(running), V(suspended) or V(gone). In an image that has not been restored it is V(suspended).
      returned: when the options are valid
      type: str
      sample: suspended
pids:
  description: >-
    Identities of the processes that this drain has suspended in memory, that live and are still suspended, or that
    it may have left locked when a step was broken off. They are what M(gpufleet.checkpoint.cuda_checkpoint) takes
    as O(gpufleet.checkpoint.cuda_checkpoint#module:pids) to bring them back.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    pid:
      description: The process id.
      returned: when the options are valid
      type: int
      sample: 4711
    start_ticks:
      description: When the process started, in clock ticks after the boot of the host.
      returned: when the options are valid
      type: int
      sample: 1893412
    boot_id:
      description: The boot of the host.
      returned: when the options are valid
      type: str
      sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
images:
  description: The images that this drain has made.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    path:
      description: The directory of the image.
      returned: when the options are valid
      type: str
      sample: /var/lib/gpufleet/images/20261130T020145-7f3a9c/pid-4711
    pid:
      description: The process at the root of the tree in it.
      returned: when the options are valid
      type: int
      sample: 4711
    state:
      description: >-
        V(unspent), V(restoring), V(spent), V(missing) or V(damaged); V(unfinished) where it was begun and is not whole.
      returned: when the options are valid
      type: str
      sample: unspent
    bytes:
      description: Its size, in bytes, V(null) if it is not known.
      returned: when the options are valid
      type: int
      sample: 9127854080
lost:
  description: What of this drain does not come back.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    what:
      description: The process or the image.
      returned: when the options are valid
      type: str
      sample: PID 4711 (/usr/bin/python3.12)
    why:
      description: How that is known.
      returned: when the options are valid
      type: str
      sample: it was suspended in memory, and the host has booted since
holders:
  description: >-
    Who still has C(/dev/nvidia*) open or mapped. Looked for in the phases V(suspended) and V(maintenance) only.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    pid:
      description: The process id.
      returned: when the options are valid
      type: int
      sample: 912
    executable:
      description: Path of the executable, or its name in brackets if the path is not known.
      returned: when the options are valid
      type: str
      sample: /usr/bin/nvidia-persistenced
    user:
      description: The owner of the process, as a number if it has no name.
      returned: when the options are valid
      type: str
      sample: nvidia-persistenced
    files:
      description: Which of the devices it has.
      returned: when the options are valid
      type: list
      elements: str
      sample: [/dev/nvidia0, /dev/nvidiactl]
packages:
  description: The packages of the driver that are held, so that no upgrade changes it meanwhile.
  returned: when the options are valid
  type: dict
  contains:
    manager:
      description: V(apt), V(dnf) or V(none).
      returned: when the options are valid
      type: str
      sample: apt
    held:
      description: Those that this drain holds, and lets go at its end.
      returned: when the options are valid
      type: list
      elements: str
      sample: [libnvidia-compute-580, nvidia-driver-580]
    already:
      description: Those that somebody else had held before. They stay held.
      returned: when the options are valid
      type: list
      elements: str
      sample: []
    why:
      description: Why nothing is held, empty if something is, or was not asked for.
      returned: when the options are valid
      type: str
      sample: ""
scheduler:
  description: What was last handed over as O(scheduler).
  returned: when the options are valid
  type: dict
  sample: {kind: slurm, node: gpu7, ours: true}
timeline:
  description: The phases that the host has been in, the oldest first.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    phase:
      description: The phase.
      returned: when the options are valid
      type: str
      sample: claimed
    at:
      description: When it was reached, in seconds since the epoch.
      returned: when the options are valid
      type: float
      sample: 1795917701.5
    attempt:
      description: The attempt that reached it.
      returned: when the options are valid
      type: int
      sample: 1
    boot_id:
      description: The boot of the host then.
      returned: when the options are valid
      type: str
      sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
    message:
      description: What was said of it. Empty if nothing was.
      returned: when the options are valid
      type: str
      sample: ""
failures:
  description: What has failed, the oldest first, each under the phase that the host was in.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    phase:
      description: The phase.
      returned: when the options are valid
      type: str
      sample: suspending
    attempt:
      description: The attempt.
      returned: when the options are valid
      type: int
      sample: 1
    at:
      description: When it was told, in seconds since the epoch.
      returned: when the options are valid
      type: float
      sample: 1795917703.75
    message:
      description: What failed, and why.
      returned: when the options are valid
      type: str
      sample: "Look at what speaks against it: PID 4711 (python3.12) has 3.0 GiB of managed memory"
findings:
  description: What keeps the host from the phase, or should be known.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    id:
      description: What kind of finding it is.
      returned: when the options are valid
      type: str
      sample: device_holders
    severity:
      description: V(blocking) or V(warning).
      returned: when the options are valid
      type: str
      sample: warning
    pid:
      description: The process that it is about, V(null) if it is about the host.
      returned: when the options are valid
      type: int
      sample: 912
    subject:
      description: What it is about, for people.
      returned: when the options are valid
      type: str
      sample: PID 912 (/usr/bin/nvidia-persistenced)
    evidence:
      description: What was seen.
      returned: when the options are valid
      type: str
      sample: it has /dev/nvidia0 open
    reason:
      description: Why it matters.
      returned: when the options are valid
      type: str
      sample: A GPU that is in use can't be reset
    remedy:
      description: What helps.
      returned: when the options are valid
      type: str
      sample: Stop it for the time of the maintenance
    option:
      description: The option that overrides it, empty if nothing does.
      returned: when the options are valid
      type: str
      sample: ""
    reference:
      description: Where to read more.
      returned: when the options are valid
      type: str
      sample: https://github.com/gpufleet/checkpoint/blob/main/docs/drain.md
"""

import os
from typing import Any, Dict, Mapping, Tuple

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _compile_once

_compile_once.install()

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _drain_report
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import (
    ArgumentError,
    parse_place,
    parse_run_id,
    parse_select,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import Ask, DrainError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_engine import Call, Options
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import NvmlError, NvmlMissing
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import SelectError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children

CONTROLLER_LENGTH = 200
ERRORS = (ArgumentError, CriuError, DrainError, JournalError, NvmlError, SelectError, OSError)
ARGUMENTS = {
    "phase": {
        "type": "str",
        "required": True,
        "choices": [
            "claimed",
            "suspending",
            "suspended",
            "maintenance",
            "restoring",
            "restored",
            "released",
            "undoing",
            "undone",
        ],
    },
    "run_id": {"type": "str", "default": ""},
    "attempt": {"type": "int", "default": 0},
    "controller": {"type": "str", "default": ""},
    "kind": {"type": "str", "choices": ["drain", "suspend"], "default": "drain"},
    "mode": {"type": "str", "choices": ["memory", "disk"]},
    "store": {"type": "path", "default": "/var/lib/gpufleet/images"},
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
    "declares": {"type": "list", "elements": "str", "choices": ["reboot", "driver_change", "gpu_reset"], "default": []},
    "hold_packages": {"type": "bool", "default": False},
    "scheduler": {"type": "dict"},
    "note": {"type": "str"},
    "failure": {"type": "str"},
    "take_over": {"type": "str", "default": ""},
    "accept_loss": {"type": "bool", "default": False},
    "journal": {"type": "path", "default": "/var/lib/gpufleet/checkpoint.db"},
}


def options_of(params: Mapping[str, Any], check: bool) -> Options:
    """Raises ArgumentError."""
    if not 0 <= params["attempt"] < 1 << 31:
        raise ArgumentError("attempt", str(params["attempt"]), "0 (the next one) or more is allowed.")
    controller: str = params["controller"]
    if len(controller) > CONTROLLER_LENGTH or not controller.isprintable():
        raise ArgumentError(
            "controller", f"{len(controller)} characters", f"{CONTROLLER_LENGTH} that can be printed are allowed."
        )
    return Options(
        ask=Ask(
            phase=params["phase"],
            run_id=parse_run_id(params["run_id"]) if params["run_id"] else "",
            attempt=params["attempt"],
            controller=controller,
            kind=params["kind"],
            take_over=params["take_over"],
            accept_loss=params["accept_loss"],
            check=check,
        ),
        mode=params["mode"] or "",
        store=parse_place("store", params["store"]),
        select=parse_select(params["select"]),
        declares=tuple(params["declares"]),
        hold_packages=params["hold_packages"],
        scheduler=params["scheduler"],
        message=params["note"],
        failure=params["failure"],
    )


def run(options: Options, journal_path: str) -> Tuple[Call, Dict[str, Any], str]:
    """What was done, what is returned, and why it failed, "" if it did not. Raises JournalError where there is nothing
    to be returned, and NvmlMissing."""
    with open_journal(journal_path, create=not options.ask.check) as journal:
        call, failure = Call(options, journal), ""
        try:
            call.run()
        except ERRORS as error:
            failure = str(error)
        return call, _drain_report.of_call(call), failure


def main() -> None:
    hear_of_children()
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    if os.geteuid() != 0:
        module.fail_json(
            msg=f"gpu_drain: it runs as user id {os.geteuid()}. It reads and writes what belongs to root: the journal, "
            "processes of every user, packages. Set become: true."
        )
    try:
        options = options_of(module.params, module.check_mode)
        call, result, failure = run(options, os.path.abspath(module.params["journal"]))
    except NvmlMissing as error:
        module.fail_json(msg=missing_required_lib(error.library), exception=error.trace)
    except ERRORS as error:
        module.fail_json(msg=str(error))
    if failure:
        module.fail_json(msg=failure, changed=call.changed, **result)
    for note in call.notes:
        module.warn(note)
    if module._diff:
        result["diff"] = _drain_report.difference(call)
    module.exit_json(changed=call.changed, **result)


if __name__ == "__main__":
    main()
