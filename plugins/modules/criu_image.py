#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: criu_image
short_description: Puts process trees that use CUDA on disk, and brings them back
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Writes a process, with all that descends from it and with its GPU memory, into an B(image), a directory. It ends
    then, and is brought back from the image later, also after a reboot, as the same processes with the same PIDs.
  - The members of a tree that use CUDA are suspended as M(gpufleet.checkpoint.cuda_checkpoint) does it, the others are
    stopped, and CRIU writes the image while the whole tree stands still. B(The tree is ended only) when the image is
    known to hold every process and all GPU memory, its checksums are taken, it is on the disk, and no thread has run
    since. Whatever fails before, the tree goes on as if nothing had been.
  - An image has B(one life). Once restored it is spent, and is not restored again. What belongs together is known by
    its lineage, since a PID and a start time change with a restore or a reboot.
  - An image holds the memory of processes, so their secrets. It belongs to root and nobody else can read it. A place
    that others can write is refused.
attributes:
  check_mode:
    support: full
    details:
      - What is there is read and everything that speaks against it is checked, as in a run. CRIU itself is not asked,
        so what it would refuse is not foreseen.
      - An image that an earlier task of the same run would have made is not there in check mode. To restore it is
        then reported as a change whose outcome is V(unknown).
  diff_mode:
    support: full
    details:
      - One line per image.
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
      - What is wanted.
    type: str
    required: true
    choices:
      present: >-
        The tree is in its image. Nothing is done if it is there already and the process has ended.
      restored: >-
        The tree has been brought back from its image, and runs on its GPUs. Nothing is done if it has been restored
        before, even if it has ended since.
      absent: >-
        There is no image at O(path), or none in O(store) that O(keep) and O(max_age) do not keep.
  pid:
    description:
      - The process at the root of the tree, for O(state=present). A short form of O(pids) with one entry. It need not
        use CUDA itself.
    type: raw
  path:
    description:
      - The directory of one image, as an absolute path. Its parent is made if it is missing.
    type: path
  store:
    description:
      - A directory that holds images, as an absolute path. Each tree gets one in it, named after its systemd unit,
        Slurm job or container, or else its PID.
      - With O(state=restored), every image in it that has not been restored yet is.
    type: path
  leave_running:
    description:
      - Whether the tree goes on after it has been dumped. Needed with O(state=present), since nobody should have to
        guess whether a process ends.
      - With V(true) the image is a snapshot. It can't be restored while the original is alive.
    type: bool
  all_or_nothing:
    description:
      - Whether one tree that can't be dumped brings back all trees of this task. All of them then stand still until the
        last one is dumped.
      - With V(false) each tree ends as soon as its own image is complete, while others are still being suspended or
        dumped.
    type: bool
    default: true
  parallel:
    description:
      - How many trees are worked on at the same time. V(0) is as many as there are processors.
    type: int
    default: 0
  verify:
    description:
      - How an image is checked before it is restored.
    type: str
    choices:
      full: Every byte against its checksum.
      sizes: Every file is there and has its size.
      none: Like V(sizes). CRIU never ends on a file that is cut short.
    default: full
  compress:
    description:
      - Whether the memory in an image is compressed. C(zstd) has to be installed then, here and where it is restored.
    type: str
    choices: [none, zstd]
    default: none
  force:
    description:
      - For O(state=absent). Delete an image although a process could still come back from it, or although it is
        damaged.
      - What is no image, such as a store, is never deleted.
    type: bool
    default: false
  keep:
    description:
      - For O(state=absent) with O(store). How many of the newest images that are spent stay.
    type: int
  max_age:
    description:
      - For O(state=absent) with O(store). Spent images that are older go. In seconds, or with V(s), V(m), V(h), V(d) or
        V(w) behind the number.
    type: str
  allow:
    description:
      - Names of what is to be done in spite of a finding. Each finding tells its name in RV(findings[].option).
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
      disk_space: >-
        There is not enough room where the image goes.
      external_pipe: >-
        For an image. A pipe leads to a program outside of the process tree, such as C(tee). After the restore
        the process dies of SIGPIPE at its next output.
      external_unix_socket: For an image. A unix socket is connected to a program outside of the process tree.
      file_lock: For an image. The process holds locks on files, which others can take while it is away.
      host_memory: >-
        The host lacks memory for the content of the GPU memory. After a checkpoint that was refused for want of memory,
        a process can never be checkpointed again.
      image_criu: For O(state=restored). The image was made by a newer CRIU than the one that is here.
      image_driver: For O(state=restored). The driver is not exactly the one that the image was made with.
      image_gpu: For O(state=restored). The GPUs are of another model than those of the image.
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
      second_life: >-
        For O(state=restored). The image was restored before, is a snapshot of a process that is alive, or was given to
        another host. A second life of the same process writes to the same files and answers the same peers.
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
  lock_timeout:
    description:
      - How long a process may take to be locked, in seconds.
    type: float
    default: 30
  step_timeout:
    description:
      - How long the work on one image is waited for, in seconds. V(0) computes it from its bytes, generously.
      - When it is over, nothing is killed. The work goes on, and the next run waits for it.
    type: float
    default: 0
  unit_policy:
    description:
      - What to do with a systemd service that would start a second copy of the process when its dump ends it
        (C(Restart=)), or kill it meanwhile because it does not report (C(WatchdogSec=)).
      - It is let go when the tree has been restored. That lives outside of the service then, in a scope of its own, and
        the service does not start beside it.
    type: str
    choices:
      refuse: >-
        The tree is refused with the findings V(systemd_restart) and V(systemd_watchdog), unless O(allow) overrides
        them.
      hold: >-
        The service is held before the first process is stopped. It has no watchdog then, and nothing starts it.
    default: refuse
  device_map:
    description:
      - On which GPU the memory of each GPU is restored, as in M(gpufleet.checkpoint.cuda_checkpoint).
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
  criu_executable:
    description:
      - Path of C(criu), version 4.0 or newer. Without it, it is looked for in the usual directories of root.
    type: path
  tcp_established:
    description:
      - CRIU's C(--tcp-established). V(auto) uses it where O(allow) says so.
    type: str
    choices: [auto, 'yes', 'no']
    default: auto
  shell_job:
    description:
      - CRIU's C(--shell-job), for a tree that was started from a terminal.
    type: str
    choices: [auto, 'yes', 'no']
    default: auto
  file_locks:
    description:
      - CRIU's C(--file-locks).
    type: str
    choices: [auto, 'yes', 'no']
    default: auto
  link_remap:
    description:
      - CRIU's C(--link-remap), for open files that have lost their name.
    type: str
    choices: [auto, 'yes', 'no']
    default: auto
  ext_unix_sk:
    description:
      - CRIU's C(--ext-unix-sk).
    type: str
    choices: [auto, 'yes', 'no']
    default: auto
  ghost_limit:
    description:
      - CRIU's C(--ghost-limit), how large a deleted file may be to be kept in the image. Bytes, or with C(K), C(M) or
        C(G) behind the number.
    type: str
  manage_cgroups:
    description:
      - CRIU's C(--manage-cgroups). With V(ignore), the restored tree lives in a cgroup of its own.
    type: str
    choices: [ignore, none, props, soft, full, strict]
    default: ignore
  external:
    description:
      - CRIU's C(--external), one entry each.
    type: list
    elements: str
  timeout:
    description:
      - CRIU's C(--timeout), in seconds. V(0) computes it from the size of the tree.
    type: int
    default: 0
  pid_namespace:
    description:
      - For O(state=restored). Where the processes get their PIDs back.
      - With V(new), each process sees itself and the others of its tree by the PIDs that they had, and the host knows
        them by other ones, which RV(images[].pids) returns. F(/proc) shows nobody else to them. Their namespace ends
        with its first process, C(gpufleet-init), and everybody in it with that.
      - A tree in a PID namespace of its own can be suspended and resumed, but not be dumped again.
    type: str
    choices:
      same: Those of the host. All of them have to be free.
      new: A PID namespace of its own, for PIDs that somebody else has now.
    default: same
  run_id:
    description:
      - A name for this run in the journal and in what is returned. Without it, one is made up.
    type: str
notes:
  - The module needs to be root.
  - Deal with all trees of a host in one task. They are then worked on in parallel, and all or nothing covers them all.
  - Files that a tree has open are not part of its image. They have to be in place, and of the same size, when it is
    restored.
  - An image needs the exact driver, the GPU models and the programs and libraries of the host that it was made on.
seealso:
  - module: gpufleet.checkpoint.criu_image_info
  - module: gpufleet.checkpoint.criu_image_handoff
  - module: gpufleet.checkpoint.cuda_checkpoint
  - name: CRIU
    description: What it can dump, and what it can not.
    link: https://criu.org/
"""

EXAMPLES = r"""
- name: Put a training run on disk before a reboot
  gpufleet.checkpoint.criu_image:
    state: present
    pid: 4711
    path: /srv/images/train
    leave_running: false

- name: Bring it back afterwards
  gpufleet.checkpoint.criu_image:
    state: restored
    path: /srv/images/train

- name: Put everything that uses a GPU on disk, each in an image of its own
  gpufleet.checkpoint.criu_image:
    state: present
    select:
      all: true
    store: /srv/images
    leave_running: false
    compress: zstd

- name: Bring back everything in the store
  gpufleet.checkpoint.criu_image:
    state: restored
    store: /srv/images

- name: Take a snapshot of a process that goes on
  gpufleet.checkpoint.criu_image:
    state: present
    pid: 4711
    path: /srv/images/train-before-upgrade
    leave_running: true

- name: Delete what has been restored, but the newest five and the last two weeks
  gpufleet.checkpoint.criu_image:
    state: absent
    store: /srv/images
    keep: 5
    max_age: 2w
"""

RETURN = r"""
state:
  description: What was asked for.
  returned: when the options are valid
  type: str
  sample: present
run_id:
  description: The name of this run. See O(run_id).
  returned: when the options are valid
  type: str
  sample: 20261130T020145-7f3a9c
seconds:
  description: How long the module itself took, in seconds.
  returned: when the options are valid
  type: float
  sample: 14.62
images:
  description: Each image that the task was about.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    path:
      description: Its directory.
      returned: success
      type: str
      sample: /srv/images/train
    name:
      description: Its name.
      returned: success
      type: str
      sample: train
    pid:
      description: The PID of the root of its tree.
      returned: success
      type: int
      sample: 4711
    lineage:
      description: What joins a process, its image and what is restored from it.
      returned: success
      type: str
      sample: 0f5c3a9d6f4b4a0e9d7b7a3f1c2d3e4f
    before:
      description: V(absent), V(present), V(restored) or V(unknown).
      returned: success
      type: str
      sample: absent
    after:
      description: V(absent), V(present), V(restored) or V(unknown). In check mode, what it would be.
      returned: success
      type: str
      sample: present
    changed:
      description: Whether anything was done.
      returned: success
      type: bool
      sample: true
    ended:
      description: It was restored, and what was restored has ended since. It does not come back a second time.
      returned: success
      type: bool
      sample: false
    pids:
      description: The PIDs of its tree.
      returned: success
      type: list
      elements: int
      sample: [4711, 4712]
    identities:
      description: What was restored, as O(pids) takes it.
      returned: when it was restored by this task
      type: list
      elements: dict
      sample: [{"pid": 4711, "start_ticks": 89123, "boot_id": "5c1f3b0a-7c0e-4d39-9a55-2f1f0a7d9c11"}]
    image_pids:
      description: The PIDs that RV(images[].identities) have in the image. Others, with O(pid_namespace=new).
      returned: when it was restored by this task
      type: list
      elements: int
      sample: [4711]
    bytes:
      description: The size of the image in bytes. Not known before it is made.
      returned: success
      type: int
      sample: 8711200123
    device_bytes:
      description: How much GPU memory it holds, in bytes. Not known before it is made.
      returned: success
      type: int
      sample: 8589934592
    seconds:
      description: How long each step took, in seconds.
      returned: success
      type: dict
      sample: {"suspend": 4.4, "dump": 4.7, "seal": 3.1}
    criu_options:
      description: What CRIU was told beyond the usual.
      returned: success
      type: list
      elements: str
      sample: ["--file-locks"]
    log:
      description: CRIU's log on the managed node, if it ran.
      returned: success
      type: str
      sample: /srv/images/train/dump.log
    warnings:
      description: What an operator should know although it went well.
      returned: success
      type: list
      elements: str
      sample: []
    error:
      description: What failed.
      returned: when it failed
      type: dict
      contains:
        step:
          description: The step.
          returned: always
          type: str
          sample: dump
        text:
          description: What was seen, and why it matters.
          returned: always
          type: str
          sample: "PID 4711 (train): it has an io_uring open. CRIU can't dump it."
        remedy:
          description: What helps.
          returned: always
          type: str
          sample: Run the task again.
findings:
  description: What speaks against it, or should be known.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    id:
      description: What it is.
      returned: success
      type: str
      sample: pid_busy
    severity:
      description: V(blocking) or V(warning).
      returned: success
      type: str
      sample: blocking
    subject:
      description: Whom it is about.
      returned: success
      type: str
      sample: PID 4711
    evidence:
      description: What was seen.
      returned: success
      type: str
      sample: the number is in use by sshd since 12:04
    reason:
      description: Why it matters.
      returned: success
      type: str
      sample: A tree comes back with the PIDs that it had
    remedy:
      description: What helps.
      returned: success
      type: str
      sample: End that process, and run the task again
    option:
      description: The name by which O(allow) overrides it, empty if nothing does.
      returned: success
      type: str
      sample: ""
    reference:
      description: Where to read more.
      returned: success
      type: str
      sample: https://github.com/gpufleet/checkpoint/blob/main/docs/images.md
    pid:
      description: The process that it is about, if it is about one.
      returned: success
      type: int
      sample: 4711
"""

import os
import time
from contextlib import ExitStack
from typing import Union

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _compile_once

_compile_once.install()

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_arguments, _image_report
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import BackendError, choose
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_map import DeviceMapError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._engine import Failed, Refused
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuReader, NvmlError, NvmlMissing
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_absent import Absent
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_engine import ImageEngine
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageOptions
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import SelectError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import refused_by_host

YES_NO = {"type": "str", "choices": ["auto", "yes", "no"], "default": "auto"}
ARGUMENTS = {
    "state": {"type": "str", "required": True, "choices": ["present", "restored", "absent"]},
    "pid": {"type": "raw"},
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
    "path": {"type": "path"},
    "store": {"type": "path"},
    "leave_running": {"type": "bool"},
    "all_or_nothing": {"type": "bool", "default": True},
    "parallel": {"type": "int", "default": 0},
    "verify": {"type": "str", "choices": ["full", "sizes", "none"], "default": "full"},
    "compress": {"type": "str", "choices": ["none", "zstd"], "default": "none"},
    "force": {"type": "bool", "default": False},
    "keep": {"type": "int"},
    "max_age": {"type": "str"},
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
            "disk_space",
            "external_pipe",
            "external_unix_socket",
            "file_lock",
            "host_memory",
            "image_criu",
            "image_driver",
            "image_gpu",
            "mig",
            "mps_client",
            "nccl_communicator",
            "nfs_file",
            "park_unsafe_parent",
            "parked_unowned",
            "private_mounts",
            "profiler_attached",
            "rotated_log",
            "second_life",
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
    "backend": {"type": "str", "choices": ["auto", "libcuda", "cli", "toggle"], "default": "auto"},
    "executable": {"type": "path"},
    "lock_timeout": {"type": "float", "default": 30},
    "step_timeout": {"type": "float", "default": 0},
    "unit_policy": {"type": "str", "choices": ["refuse", "hold"], "default": "refuse"},
    "pid_namespace": {"type": "str", "choices": ["same", "new"], "default": "same"},
    "device_map": {"type": "raw"},
    "huge_pages": {"type": "str", "choices": ["auto", "always", "keep"], "default": "auto"},
    "full_command": {"type": "bool", "default": False},
    "criu_executable": {"type": "path"},
    "tcp_established": YES_NO,
    "shell_job": YES_NO,
    "file_locks": YES_NO,
    "link_remap": YES_NO,
    "ext_unix_sk": YES_NO,
    "ghost_limit": {"type": "str"},
    "manage_cgroups": {
        "type": "str",
        "choices": ["ignore", "none", "props", "soft", "full", "strict"],
        "default": "ignore",
    },
    "external": {"type": "list", "elements": "str"},
    "timeout": {"type": "int", "default": 0},
    "journal": {"type": "path", "default": "/var/lib/gpufleet/checkpoint.db"},
    "run_id": {"type": "str"},
}


def prepare(options: ImageOptions, resources: ExitStack) -> Union[ImageEngine, Absent]:
    """What the state needs, and no more. Raises what it is missing."""
    if os.geteuid() != 0:
        raise CriuError(
            "criu_image",
            f"it runs as user id {os.geteuid()}",
            "CRIU, and an image that only root may read, need root.",
            "Set become: true.",
        )
    if options.state == "absent":
        return Absent(options, resources.enter_context(open_journal(options.journal, create=not options.check)))
    gpus = resources.enter_context(GpuReader())
    criu = tool.find(options.criu_executable)
    backend = (
        choose(options.cuda.backend, options.cuda.executable)
        if options.cuda.executable
        else choose(options.cuda.backend)
    )
    backend.prepare()
    journal = resources.enter_context(open_journal(options.journal, create=not options.check))
    return ImageEngine(options, backend, criu, journal, gpus.read)


def _warn(module: AnsibleModule, engine: Union[ImageEngine, Absent, None]) -> None:
    for warning in _image_report.warnings(engine):
        module.warn(warning)


def main() -> None:
    hear_of_children()
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        mutually_exclusive=[("pid", "pids", "select"), ("path", "store")],
        supports_check_mode=True,
    )
    began = time.monotonic()
    engine: Union[ImageEngine, Absent, None] = None
    try:
        options = _image_arguments.parse(module.params, module.check_mode)
        with ExitStack() as resources:
            engine = prepare(options, resources)
            engine.run()
    except NvmlMissing as error:
        module.fail_json(msg=missing_required_lib(error.library), exception=error.trace)
    except (
        ArgumentError,
        SelectError,
        BackendError,
        CriuError,
        DeviceMapError,
        JournalError,
        NvmlError,
        Refused,
        Failed,
    ) as error:
        _warn(module, engine)
        module.fail_json(msg=str(error), **_image_report.report(engine, time.monotonic() - began))
    except OSError as error:
        _warn(module, engine)
        module.fail_json(msg=refused_by_host(error), **_image_report.report(engine, time.monotonic() - began))
    else:
        _warn(module, engine)
        module.exit_json(**_image_report.report(engine, time.monotonic() - began))


if __name__ == "__main__":
    main()
