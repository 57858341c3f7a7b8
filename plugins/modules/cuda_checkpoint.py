#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_checkpoint
short_description: Suspends and resumes running CUDA processes
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Brings the CUDA state of processes to V(running), V(locked) or V(checkpointed). A checkpointed process is called
    suspended here. It has given back all GPU memory, whose content lies in its host memory, and holds no file of the
    driver. It stays the same process with the same PID, and goes on where it was when it is resumed.
  - Away from V(running), it is B(all or nothing). All processes are locked, then all are checkpointed. If one of them
    fails, each process is taken back to where it was, and the task fails with a message that names each process, the
    step, the result of the driver and what to do.
  - Towards V(running), it is B(each for itself). A process that runs again stays running, whatever becomes of the
    others. The task fails in the end if one is left, and names it.
  - Every state is read again after every step. A process is known by its PID, its start time and the boot of its host,
    so that a process that got the same PID later is never touched.
  - Threads that run while their process is suspended can crash it. Programs that use JAX die of that within seconds. So
    all threads but the one that the driver needs are held during the steps, and a suspended process is B(parked). It is
    stopped, like after a C(SIGSTOP), until it is resumed. Neither a lost connection nor a crash of this module lets it
    run.
  - Before the first step it is checked whether the processes can be suspended and brought back without loss. What
    speaks against it is refused with what was seen, why it matters, what helps, and the name by which O(allow)
    overrides it.
attributes:
  check_mode:
    support: full
    details:
      - The states are read, the checks are made and the plan is the same as in a run. RV(processes[].plan) and
        RV(processes[].after) tell it.
      - Nothing is locked, so a lock that the driver would refuse, or that would take too long, is not foreseen.
  diff_mode:
    support: full
    details:
      - One line per process with its state.
  idempotent:
    support: full
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
  - gpufleet.checkpoint._attributes.linux
  - gpufleet.checkpoint._attributes.actiongroup_all
  - gpufleet.checkpoint._cuda
options:
  state:
    description:
      - The state that the processes are to be in. From any state, the shortest way is taken.
      - Exactly one of O(pids) and O(select) says which processes.
    type: str
    required: true
    choices:
      running: >-
        The processes run and use their GPUs. A suspended process gets its GPU memory back. Before that, each GPU needs
        as much free memory as the process held when it was suspended.
      locked: >-
        No call of the process to the driver goes through, and no work of it is left on a GPU. It keeps its GPU memory.
        Its threads run on until they call the driver. Not with O(backend=toggle).
      checkpointed: >-
        The processes are suspended, and with O(park=true) parked. Their host memory grows by what they held on GPUs,
        and about half a GiB each.
  allow:
    description:
      - Names of what is to be done in spite of a finding. Each finding tells its name in RV(findings[].option). An
        allowed one is still returned, as a warning.
      - Findings without a name can't be overridden, because there is no way to go on or no way that does not lose the
        process.
    type: list
    elements: str
    default: []
    choices:
      cgroup_memory: >-
        A memory limit of the process' cgroup, or of one above it, leaves no room for the content of the GPU memory. The
        kernel would kill the process.
      checkpoint_refused: >-
        The driver has refused a checkpoint of this very process before, and refuses every later one.
      container: The process runs in a container. CRIU can not put back what belongs to the runtime.
      container_probe: >-
        A health or liveness probe asks the container of the process, or may ask it. A parked process answers
        none, and its container is killed.
      controlling_tty: For an image. The process was started from a terminal.
      cuda_ipc_possible: >-
        Several CUDA processes belong together and may share GPU memory through CUDA IPC, which can't be seen from
        outside. A process that imported memory does not come back.
      deleted_file: For an image. The process uses deleted files whose content CRIU takes only if it is told to.
      external_pipe: >-
        For an image. A pipe leads to a program outside of the process tree, such as C(tee). After the restore
        the process dies of SIGPIPE at its next output.
      external_unix_socket: For an image. A unix socket is connected to a program outside of the process tree.
      file_lock: For an image. The process holds locks on files, which others can take while it is away.
      host_memory: >-
        The host lacks memory for the content of the GPU memory. After a checkpoint that was refused for want of memory,
        a process can never be checkpointed again.
      mig: A GPU is divided into MIG instances.
      mps_client: The process uses its GPU through the Multi-Process Service, where the driver refuses the lock.
      nccl_communicator: >-
        The process takes part in collective operations of NCCL with others. The first of them that is suspended does
        not come back.
      nfs_file: For an image. The process uses files that were deleted on a file server.
      park_unsafe_parent: The parent of the process kills workers that do not report, and a parked one does not.
      parked_unowned: >-
        The process is suspended and stopped, but this host's journal does not know by whom, nor how much GPU memory it
        needs to come back. It is taken over.
      private_mounts: For an image. The process has a mount namespace of its own.
      profiler_attached: A profiler is loaded into the process, which the driver does not support.
      rotated_log: For an image. The process writes to a log that was rotated away.
      slurm_step: For an image. The process is in a Slurm job, which ends with it.
      socket_option: >-
        For an image. CRIU before 4.2 can't dump the TCP and UDP sockets of the process on this kernel, not even one
        that only listens.
      stopped: >-
        Somebody else stopped the process, so no call of the driver would return. It is continued until it is locked,
        and it is stopped again after it has been resumed.
      systemd_restart: For an image. systemd starts the unit of the process anew when the dump ends it.
      systemd_runtime: The time of the unit of the process (RuntimeMaxSec=) is over in less than ten minutes.
      systemd_watchdog: systemd kills the unit of the process if it does not report in time, and a parked one does not.
      tcp_established: For an image. The process has TCP connections to programs outside of its tree.
      unparked: >-
        The process can be neither held nor parked, because of O(backend=toggle). Programs with threads that ask the
        driver while it is suspended, such as those that use JAX, die.
      uvm_managed: >-
        The process uses managed memory. The driver refuses the checkpoint, and from then on every later one.
      vmm_export: >-
        The process exported GPU memory to a file descriptor. That memory stays on the GPU while the process is
        suspended.
      volatile_file: For an image. The process uses files that live in memory, which are gone after a reboot.
      vram_short: >-
        A GPU lacks free memory for the processes that are to be resumed. The driver then fails in a way that loses the
        process.
  park:
    description:
      - Whether a suspended process stays stopped until it is resumed.
      - With V(false) its threads are held during the steps only and run while it is suspended, for example to answer
        health checks. Only programs that are known not to call the driver then survive it, and a worker that dies
        during a step lets the threads run at once. A warning says so for each process.
    type: bool
    default: true
  guard:
    description:
      - What keeps a parked process stopped when somebody else sends it a C(SIGCONT). Service managers, job schedulers
        and the kernel do that, the kernel when the shell that started a job exits.
      - Without a guard, the loss is found and mended by the next run of this module only, and that can be too late.
    type: str
    choices:
      auto: V(holder) if the process gets parked, else V(none).
      holder: >-
        A small process of this module stays attached to each parked process and stops it again before it executes an
        instruction.
      cgroup: >-
        V(holder), and in addition the freezer of a cgroup of its own, which still holds when the small process is
        killed. Needs cgroup v2 and a cgroup in which a child can be made.
      none: Nothing.
    default: auto
  parallel:
    description:
      - How many processes are worked on at the same time. V(0) is all of them.
    type: int
    default: 0
  lock_timeout:
    description:
      - How long a process may take to be locked, in seconds. It is locked when the work that it has on its GPUs is
        done.
      - When it is over, the process goes on running and the task fails.
    type: float
    default: 30
  step_timeout:
    description:
      - For how long the answer to one call of the driver is waited for, in seconds. For a lock, O(lock_timeout) is
        added.
      - V(0) computes it from the bytes that have to be moved, generously.
      - When it is over, the state of the process is V(unknown) and the task fails. Nothing is killed and nothing is
        undone, since the driver goes on. The next run finds out what became of it and goes on from there.
    type: float
    default: 0
  rollback:
    description:
      - Whether a failure on the way to V(locked) or V(checkpointed) takes all processes back to the state that they
        were in.
      - With V(false) everything is left as it is at that moment, for a person to look at. RV(processes[].after) tells
        the states.
    type: bool
    default: true
  device_map:
    description:
      - On which GPU the memory of each GPU is restored. For O(state=running).
      - V(auto) leaves a process where it was if there is room, and moves it to another GPU of the same model otherwise.
      - A dictionary maps every GPU of the host to one of them, each named exactly once on either side, by UUID or
        index. A map that swaps two GPUs of a host with four names all four.
      - Without it, every process is restored where it was.
      - Needs driver 580 or newer.
    type: raw
  huge_pages:
    description:
      - What to do with the setting of the host for transparent huge pages
        (C(/sys/kernel/mm/transparent_hugepage/enabled)). With V(always), the content of GPU memory is copied into host
        memory up to a third faster.
      - A changed setting is put back when the last run that needs it ends. If that run crashed, the next run does it.
        If somebody else has changed it in the meantime, it is left alone, with a warning.
    type: str
    choices:
      auto: >-
        Sets V(always) while processes are being suspended and resumed if it is V(madvise) otherwise. V(never) is
        respected.
      always: Sets V(always) while processes are being suspended and resumed, whatever it is otherwise.
      keep: Leaves it alone.
    default: auto
  unit_policy:
    description:
      - What to do with a systemd service that would kill a parked process because it does not report (C(WatchdogSec=)).
      - It is let go again by the task that resumes the process, which does not need this option. Also when that was
        held by a run that crashed, or when the process has ended. A reboot ends it.
      - C(Restart=) is left alone, because a process that is suspended does not end.
    type: str
    choices:
      refuse: >-
        The process is refused with the finding V(systemd_watchdog), unless O(allow) overrides it.
      hold: >-
        The watchdog of the service is switched off before the process is locked, and on again once it runs. Needs
        root. A service of a user's own service manager, and one that is being started or stopped, is refused.
    default: refuse
  run_id:
    description:
      - A name for this run in the journal and in what is returned, to find what belongs together. Up to 64 letters,
        digits, dots, underscores and hyphens.
      - Without it, one is made up.
    type: str
notes:
  - The module needs to be root, or the owner of the processes. A user who is not root has to set O(journal), since the
    default belongs to root.
  - Deal with all processes of a host in one task. They are then worked on in parallel, and all or nothing covers them
    all.
  - A parked process answers nothing. Heartbeats and health checks fail meanwhile, timeouts go on counting, and peers
    may close connections.
  - A parked process is stopped in the sense of job control. A shell that started it in the foreground reports it as
    stopped.
  - Do not use C(cuda-checkpoint --toggle) for a process that this module deals with. It reverses whatever state it
    finds.
seealso:
  - module: gpufleet.checkpoint.cuda_checkpoint_info
  - name: The tool cuda-checkpoint
    description: What the driver supports, and what it does not.
    link: https://github.com/NVIDIA/cuda-checkpoint
  - name: CUDA Checkpointing
    description: The functions of the driver.
    link: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CHECKPOINT.html
"""

EXAMPLES = r"""
- name: Suspend everything that uses a GPU of this host
  gpufleet.checkpoint.cuda_checkpoint:
    state: checkpointed
    select:
      all: true
  register: suspended

- name: Show what a run would do, process by process
  gpufleet.checkpoint.cuda_checkpoint:
    state: checkpointed
    select:
      all: true
  check_mode: true
  diff: true

- name: Resume the processes that were suspended above
  gpufleet.checkpoint.cuda_checkpoint:
    state: running
    pids: "{{ suspended.processes | map(attribute='pid') }}"
  when: suspended.processes | length > 0

- name: Free the first GPU of everything that the user trainer runs on it
  gpufleet.checkpoint.cuda_checkpoint:
    state: checkpointed
    select:
      gpus: [0]
      users: [trainer]

- name: Suspend a systemd service whose GPU memory goes to the host within five minutes, or leave it alone
  gpufleet.checkpoint.cuda_checkpoint:
    state: checkpointed
    select:
      unit: inference.service
    lock_timeout: 60
    step_timeout: 300

- name: Suspend a service that has a watchdog, which is switched off until the service is resumed
  gpufleet.checkpoint.cuda_checkpoint:
    state: checkpointed
    select:
      unit: inference.service
    unit_policy: hold

- name: Suspend two processes of which one was stopped by somebody with SIGSTOP
  gpufleet.checkpoint.cuda_checkpoint:
    state: checkpointed
    pids: [4711, 4712]
    allow: [stopped]

- name: Resume a Slurm job, on other GPUs of the same model if its own have no room
  gpufleet.checkpoint.cuda_checkpoint:
    state: running
    select:
      slurm_job: "90210"
    device_map: auto

- name: Resume a process on the other GPU of a host with two
  gpufleet.checkpoint.cuda_checkpoint:
    state: running
    pids: [4711]
    device_map:
      "0": "1"
      "1": "0"

- name: Use the same journal and the same tool in every task of a play
  hosts: gpu_hosts
  become: true
  module_defaults:
    group/gpufleet.checkpoint.all:
      executable: /opt/nvidia/bin/cuda-checkpoint
      journal: /srv/gpufleet/checkpoint.db
  tasks:
    - name: Suspend the containers' processes, four at a time
      gpufleet.checkpoint.cuda_checkpoint:
        state: checkpointed
        select:
          cgroup: /machine.slice
        parallel: 4
"""

RETURN = r"""
state:
  description: The state that was asked for.
  returned: when the options are valid
  type: str
  sample: checkpointed
run_id:
  description: The name of this run. See O(run_id).
  returned: when the options are valid
  type: str
  sample: 20261130T020145-7f3a9c
backend:
  description: How the driver was asked.
  returned: when the options are valid
  type: str
  sample: libcuda
seconds:
  description: How long the module itself took, in seconds, without the time that Ansible needs to start it.
  returned: when the options are valid
  type: float
  sample: 4.62
huge_pages:
  description: What was done with the setting for transparent huge pages.
  returned: when the options are valid
  type: str
  sample: madvise -> always -> madvise
units:
  description:
    - The systemd services that were held or let go. See O(unit_policy). In check mode, those that a run would hold.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    unit:
      description: The name of the service.
      returned: success
      type: str
      sample: inference.service
    held:
      description: V(true) if it is held now, V(false) if it was let go.
      returned: success
      type: bool
      sample: true
    watchdog:
      description: The time of its watchdog that was switched off, or on again, in seconds. V(0) for none.
      returned: success
      type: float
      sample: 30.0
    restart:
      description: Whether its C(Restart=) is concerned, too. Only by images.
      returned: success
      type: bool
      sample: false
processes:
  description:
    - One entry per process, in the order of O(pids), or by PID with O(select).
    - Also returned when the task fails. It then says what was left of each process.
  returned: when the options are valid
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
    before:
      description:
        - The state before. V(running), V(locked), V(checkpointed), V(failed), V(checkpointing), V(restoring), or
          V(running_without_gpu) for a suspended process that somebody continued.
      returned: success
      type: str
      sample: running
    after:
      description:
        - The state after, as it was read at the end. In check mode, the state that a run would reach.
        - V(unknown) if the driver gave no answer in time, V(ended) if the process is gone.
      returned: success
      type: str
      sample: checkpointed
    changed:
      description: Whether this process was changed.
      returned: success
      type: bool
      sample: true
    parked:
      description: Whether the process is parked.
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
    plan:
      description: The steps from RV(processes[].before) to the wanted state. Empty if it is in that state.
      returned: success
      type: list
      elements: str
      sample: [lock, checkpoint]
    gpus:
      description:
        - The GPUs of the process. For a suspended one those that it used when it was suspended.
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
    seconds:
      description: How long each step took that was made, in seconds.
      returned: success
      type: dict
      sample: {"lock": 0.004, "checkpoint": 4.41}
    gib_per_second:
      description: The rates at which the GPU memory was copied, in GiB per second. Only those of steps that were made.
      returned: success
      type: dict
      contains:
        checkpoint:
          description: From the GPUs to host memory.
          returned: when the process was checkpointed
          type: float
          sample: 1.81
        restore:
          description: From host memory to the GPUs.
          returned: when the process was restored
          type: float
          sample: 5.6
      sample: {"checkpoint": 1.81}
    findings:
      description: The identifiers of those of RV(findings) that are about this process.
      returned: success
      type: list
      elements: str
      sample: []
    warnings:
      description: What went otherwise than it should, without harm to the process.
      returned: success
      type: list
      elements: str
      sample: []
    error:
      description: Why the process is not in the wanted state.
      returned: when this process failed
      type: dict
      contains:
        step:
          description: The step that failed.
          returned: success
          type: str
          sample: lock
        code:
          description: The result of the driver as a number (CUresult), V(null) if the driver did not say one.
          returned: success
          type: int
          sample: 600
        name:
          description: The name of RV(processes[].error.code).
          returned: success
          type: str
          sample: NOT_READY
        text:
          description: What was seen.
          returned: success
          type: str
          sample: device not ready
        reason:
          description: Why it is so, as far as it is known.
          returned: success
          type: str
          sample: work on the GPU was not done within 30 s
        remedy:
          description: What can be done.
          returned: success
          type: str
          sample: raise lock_timeout, or wait until the process does less
findings:
  description: What speaks against the change, and what was overridden by O(allow).
  returned: when the options are valid
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
      description: The name by which O(allow) overrides it, empty if nothing does.
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
import time
from contextlib import ExitStack
from typing import Any, Mapping, Optional

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _compile_once

_compile_once.install()

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _arguments, _report
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import BackendError, choose
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_map import DeviceMapError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._engine import ALLOW, Engine, Failed, Refused
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuReader, NvmlError, NvmlMissing
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import SelectError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import refused_by_host

ARGUMENTS = {
    "state": {"type": "str", "required": True, "choices": ["running", "locked", "checkpointed"]},
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
    "allow": {
        "type": "list",
        "elements": "str",
        "default": [],
        "choices": [
            "cgroup_memory",
            "checkpoint_refused",
            "container",
            "container_probe",
            "controlling_tty",
            "cuda_ipc_possible",
            "deleted_file",
            "external_pipe",
            "external_unix_socket",
            "file_lock",
            "host_memory",
            "mig",
            "mps_client",
            "nccl_communicator",
            "nfs_file",
            "park_unsafe_parent",
            "parked_unowned",
            "private_mounts",
            "profiler_attached",
            "rotated_log",
            "slurm_step",
            "socket_option",
            "stopped",
            "systemd_restart",
            "systemd_runtime",
            "systemd_watchdog",
            "tcp_established",
            "unparked",
            "uvm_managed",
            "vmm_export",
            "volatile_file",
            "vram_short",
        ],
    },
    "park": {"type": "bool", "default": True},
    "guard": {"type": "str", "choices": ["auto", "holder", "cgroup", "none"], "default": "auto"},
    "backend": {"type": "str", "choices": ["auto", "libcuda", "cli", "toggle"], "default": "auto"},
    "executable": {"type": "path"},
    "parallel": {"type": "int", "default": 0},
    "lock_timeout": {"type": "float", "default": 30},
    "step_timeout": {"type": "float", "default": 0},
    "rollback": {"type": "bool", "default": True},
    "device_map": {"type": "raw"},
    "huge_pages": {"type": "str", "choices": ["auto", "always", "keep"], "default": "auto"},
    "full_command": {"type": "bool", "default": False},
    "journal": {"type": "path", "default": "/var/lib/gpufleet/checkpoint.db"},
    "unit_policy": {"type": "str", "choices": ["refuse", "hold"], "default": "refuse"},
    "run_id": {"type": "str"},
}


def options_of(params: Mapping[str, Any], check: bool) -> _arguments.Options:
    """Raises ArgumentError."""
    _arguments.check_ranges(params["parallel"], params["lock_timeout"], params["step_timeout"])
    return _arguments.Options(
        goal=params["state"],
        pids=_arguments.parse_pids(params["pids"]) if params["pids"] is not None else (),
        select=_arguments.parse_select(params["select"]),
        allow=_arguments.parse_allow(params["allow"], ALLOW),
        park=params["park"],
        guard=_arguments.parse_guard(params["guard"], params["park"]),
        backend=params["backend"],
        executable=params["executable"] or "",
        parallel=params["parallel"],
        lock_timeout=params["lock_timeout"],
        step_timeout=params["step_timeout"],
        rollback=params["rollback"],
        device_map=_arguments.parse_device_map(params["device_map"]),
        huge_pages=params["huge_pages"],
        full_command=params["full_command"],
        journal=os.path.abspath(params["journal"]),
        run_id=_arguments.parse_run_id(params["run_id"]),
        check=check,
        unit_policy=params["unit_policy"],
    )


def _warn(module: AnsibleModule, engine: Optional[Engine]) -> None:
    for warning in _report.warnings(engine):
        module.warn(warning)


def main() -> None:
    hear_of_children()
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_one_of=[("pids", "select")],
        mutually_exclusive=[("pids", "select")],
        supports_check_mode=True,
    )
    began = time.monotonic()
    engine: Optional[Engine] = None
    try:
        options = options_of(module.params, module.check_mode)
        with ExitStack() as resources:
            # First: NVML takes its time to begin, and does so in a child while this goes on.
            gpus = resources.enter_context(GpuReader())
            backend = choose(options.backend, options.executable) if options.executable else choose(options.backend)
            backend.prepare()
            journal = resources.enter_context(open_journal(options.journal, create=not options.check))
            engine = Engine(options, backend, journal, gpus.read)
            resources.callback(engine.harden)
            engine.run()
    except NvmlMissing as error:
        module.fail_json(msg=missing_required_lib(error.library), exception=error.trace)
    except (
        _arguments.ArgumentError,
        SelectError,
        BackendError,
        DeviceMapError,
        JournalError,
        NvmlError,
        Refused,
        Failed,
    ) as error:
        _warn(module, engine)
        module.fail_json(msg=str(error), **_report.report(engine, time.monotonic() - began))
    except OSError as error:
        _warn(module, engine)
        module.fail_json(msg=refused_by_host(error), **_report.report(engine, time.monotonic() - began))
    else:
        _warn(module, engine)
        module.exit_json(**_report.report(engine, time.monotonic() - began))


if __name__ == "__main__":
    main()
