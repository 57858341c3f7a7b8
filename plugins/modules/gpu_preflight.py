#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_preflight
short_description: Tells whether a host and its CUDA processes are fit to be suspended, dumped or migrated
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Looks at the managed node and at its CUDA processes, and tells for each of the capabilities V(suspend), V(dump) and
    V(migrate) whether it is there. What speaks against one is a finding, with what was seen, why it matters, what
    helps, and the name that overrides it.
  - Also tells how many bytes would be moved and how many seconds that would take, and whether memory, disk and GPUs
    have room for it.
  - Fails if a capability that O(capabilities) requires has a finding that O(fail_on) names.
  - Nothing is changed. No process is stopped, no call of the driver is made on one, and nothing has to be installed but
    Python. What is missing is a finding, with what could not be looked at, and the rest is told all the same. So the
    module can be run on a host without a GPU, a driver, CRIU or the Python package nvidia-ml-py.
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
  - gpufleet.checkpoint._attributes.info_module
  - gpufleet.checkpoint._attributes.linux
  - gpufleet.checkpoint._attributes.actiongroup_all
attributes:
  platform:
    details:
      - Runs on every Linux, and tells that a host whose architecture is not x86-64 is not fit.
options:
  capabilities:
    description:
      - What the managed node and the processes have to be fit for. The others are told as well, but the module does not
        fail because of them.
    type: list
    elements: str
    choices:
      suspend: >-
        Suspend in memory and resume, by M(gpufleet.checkpoint.cuda_checkpoint).
      dump: Also write the process to the disk, and restore it on this host.
      migrate: Also restore it on another host.
    default: [suspend]
  fail_on:
    description:
      - Which findings make the module fail, if they are about one of O(capabilities).
      - Invalid options, such as a PID that does not exist, are errors in any case.
    type: str
    choices:
      blocking: Those with the severity V(blocking).
      warning: All.
      never: None. The result tells what is missing.
    default: blocking
  pids:
    description:
      - Process ids of CUDA processes, as the managed node's own PID namespace counts them. A process in a container is
        named by the PID that it has on the host.
      - Each is a whole number from 1 on. Text that consists of digits alone is taken for one, since a template yields
        text. Everything else, a boolean included, is an error.
      - An entry can also be a dictionary with the keys C(pid) and C(start_ticks), and C(boot_id) if it is known, such
        as RV(processes[].identity). A process that got the same PID later is then an error.
      - Also errors are a PID without a process, a zombie, the id of a thread that is not its process, and a PID that is
        named twice. A process without CUDA is a finding.
      - Mutually exclusive with O(select). If neither is given, every CUDA process is looked at.
    type: list
    elements: raw
  select:
    description:
      - Chooses the CUDA processes of the managed node by what they are. A process has to match B(every) criterion that
        is given; of a criterion that is a list, one entry.
      - At least one criterion is needed. No match is no error, and then the host alone is judged.
      - Mutually exclusive with O(pids).
    type: dict
    suboptions:
      all:
        description:
          - V(true) chooses every CUDA process. Further criteria still have to match.
        type: bool
        default: false
      gpus:
        description:
          - GPUs by index, such as V(0), or by UUID, such as V(GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a).
          - A suspended process counts for the GPUs that it used when it was suspended by
            M(gpufleet.checkpoint.cuda_checkpoint).
          - A GPU that the managed node does not have is an error, and so is this criterion where NVML does not answer.
        type: list
        elements: str
      users:
        description:
          - Owners of the processes, by name or by numeric user id.
        type: list
        elements: str
      command:
        description:
          - A regular expression in the syntax of Python, searched for in the command line, whose arguments are joined
            by single spaces.
        type: str
      executable:
        description:
          - A shell pattern, such as V(/opt/inference/bin/*), for the absolute path of the executable. V(*) matches
            slashes, too.
        type: str
      cgroup:
        description:
          - A path in the cgroup hierarchy, such as V(/system.slice). The processes in it and below it are meant.
        type: str
      unit:
        description:
          - A systemd unit, such as V(inference.service) or V(session-4.scope). Its suffix can be left out for a
            service.
        type: str
      slurm_job:
        description:
          - The id of a Slurm job. The processes of all its steps are meant.
        type: str
      container:
        description:
          - The id of a container, or the first 12 or more characters of it.
        type: str
  allow:
    description:
      - Names of findings that the operator accepts, as O(gpufleet.checkpoint.cuda_checkpoint#module:allow) takes them.
        Each finding tells its name in RV(findings[].option). An allowed one is returned as a warning.
    type: list
    elements: str
    default: []
  store:
    description:
      - The directory in which images are to lie, whose free space is then compared with what the processes need. It
        does not have to exist.
      - Without it, a warning for V(dump) and V(migrate) tells that the space was not looked at.
    type: path
  window:
    description:
      - For how many seconds the processes may be away. An estimate that is longer, there and back, is a warning.
    type: float
  backend:
    description:
      - How the driver would be asked, as in O(gpufleet.checkpoint.cuda_checkpoint#module:backend).
    type: str
    choices:
      auto: The first of V(libcuda), V(cli) and V(toggle) that the managed node has.
      libcuda: The functions of C(libcuda.so.1). They exist from driver 570 on.
      cli: The options C(--action) and C(--get-state) of C(cuda-checkpoint), from driver 555 on.
      toggle: The option C(--toggle) of C(cuda-checkpoint), all that driver 550 has.
    default: auto
  executable:
    description:
      - Path of the tool C(cuda-checkpoint) on the managed node.
      - Without it, the tool is looked for in the directories of E(PATH).
    type: path
  criu:
    description:
      - Path of C(criu) on the managed node, or its name in the directories of E(PATH).
    type: str
    default: criu
  journal:
    description:
      - Path of the database in which the managed node remembers what was done to which process. It is only read. It
        tells how fast this host was and what suspended processes need. One that is missing is no error.
    type: path
    default: /var/lib/gpufleet/checkpoint.db
  full_command:
    description:
      - Whether to return the command line of each process. Command lines often hold tokens and passwords, and what a
        task returns ends up in logs. With V(false) only the path of the executable is returned.
    type: bool
    default: false
requirements:
  - Linux
  - Python 3.8 or newer
notes:
  - Run it as root. Another user sees its own processes only, and is told so.
  - C(criu check) is run as root only. CRIU keeps what it found out about the kernel in C(/run/criu.kdat).
  - Whether the driver would lock a process is known only when it is tried. A process that waits in the driver for
    others, such as for a collective operation, can refuse.
  - All findings, and what each version of the driver brings, are described in the collection's C(docs/preflight.md).
seealso:
  - module: gpufleet.checkpoint.cuda_checkpoint
  - module: gpufleet.checkpoint.cuda_checkpoint_info
"""

EXAMPLES = r"""
- name: Fail unless every CUDA process of the host can be suspended and resumed
  gpufleet.checkpoint.gpu_preflight:

- name: Fail unless one service can be written to the disk, and all of it is done within ten minutes
  gpufleet.checkpoint.gpu_preflight:
    capabilities: [suspend, dump]
    select:
      unit: training.service
    store: /var/lib/gpufleet/images
    window: 600
    fail_on: warning

- name: Look at a host without failing
  gpufleet.checkpoint.gpu_preflight:
    fail_on: never
  register: preflight

- name: Say what speaks against suspending
  ansible.builtin.debug:
    msg: "{{ item.subject }}: {{ item.evidence }}. {{ item.remedy }}"
  loop: "{{ preflight.findings | selectattr('capabilities', 'contains', 'suspend') }}"
  loop_control:
    label: "{{ item.severity }} {{ item.id }}"

- name: Say how long it would take
  ansible.builtin.debug:
    msg: >-
      {{ preflight.estimate.device_bytes | human_readable }} of {{ preflight.processes | length }} processes,
      away and back in {{ preflight.estimate.total_seconds.suspend | round(1) }} seconds
"""

RETURN = r"""
ready:
  description: Whether nothing blocks any of O(capabilities).
  returned: when the options are valid
  type: bool
  sample: true
capabilities:
  description: For each of C(suspend), C(dump) and C(migrate) the same dictionary.
  returned: when the options are valid
  type: dict
  contains:
    suspend:
      description: Suspend in memory and resume.
      returned: when the options are valid
      type: dict
      contains:
        required:
          description: Whether it is one of O(capabilities).
          returned: when the options are valid
          type: bool
          sample: true
        ready:
          description: Whether no finding blocks it.
          returned: when the options are valid
          type: bool
          sample: false
        blocking:
          description: The identifiers of the findings that block it.
          returned: when the options are valid
          type: list
          elements: str
          sample: [cgroup_memory]
        warnings:
          description: The identifiers of the other findings about it.
          returned: when the options are valid
          type: list
          elements: str
          sample: [persistence_off]
    dump:
      description: Write processes to the disk, and restore them.
      returned: when the options are valid
      type: dict
      sample: {required: false, ready: false, blocking: [criu_missing], warnings: [store_unknown]}
    migrate:
      description: Restore them on another host.
      returned: when the options are valid
      type: dict
      sample: {required: false, ready: false, blocking: [criu_missing], warnings: [store_unknown]}
findings:
  description: What speaks against any of the capabilities. Those about the host come first.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    id:
      description: What kind of finding it is.
      returned: when the options are valid
      type: str
      sample: criu_too_old
    severity:
      description: V(blocking) or V(warning).
      returned: when the options are valid
      type: str
      sample: blocking
    capabilities:
      description: The capabilities that it speaks against.
      returned: when the options are valid
      type: list
      elements: str
      sample: [dump, migrate]
    pid:
      description: The process that it is about, V(null) if it is about the host or about several processes.
      returned: when the options are valid
      type: int
      sample: 4711
    subject:
      description: What it is about, for people.
      returned: when the options are valid
      type: str
      sample: this host
    evidence:
      description: What was seen.
      returned: when the options are valid
      type: str
      sample: /usr/sbin/criu is CRIU 3.17.1
    reason:
      description: Why it matters.
      returned: when the options are valid
      type: str
      sample: Older ones fail on current kernels
    remedy:
      description: What helps.
      returned: when the options are valid
      type: str
      sample: Install CRIU 4.0 or later, or name another one with `criu`
    option:
      description: The name by which O(allow) accepts it, empty if nothing does.
      returned: when the options are valid
      type: str
      sample: ""
    reference:
      description: Where to read more.
      returned: when the options are valid
      type: str
      sample: https://github.com/gpufleet/checkpoint/blob/main/docs/preflight.md#criu_too_old
host:
  description: What was seen of the host.
  returned: when the options are valid
  type: dict
  contains:
    architecture:
      description: The architecture of the machine.
      returned: when the options are valid
      type: str
      sample: x86_64
    kernel:
      description: The version of the kernel.
      returned: when the options are valid
      type: str
      sample: 6.8.0-60-generic
    root:
      description: Whether the module ran as root, and not as that of a user namespace.
      returned: when the options are valid
      type: bool
      sample: true
    transparent_huge_pages:
      description: The kernel's setting. With V(always) processes are suspended faster. V(null) if it is not known.
      returned: when the options are valid
      type: str
      sample: madvise
    driver:
      description: NVIDIA's driver.
      returned: when the options are valid
      type: dict
      contains:
        version:
          description: The version of the kernel module, V(null) if none is loaded.
          returned: when the options are valid
          type: str
          sample: 580.159.04
        library:
          description: Where its library is, V(null) if it is not found.
          returned: when the options are valid
          type: str
          sample: /lib/x86_64-linux-gnu/libcuda.so.1
        library_version:
          description: The version of the library, V(null) if it is not known.
          returned: when the options are valid
          type: str
          sample: 580.159.04
        measured:
          description: Whether all that this collection relies on was measured with this version.
          returned: when the options are valid
          type: bool
          sample: true
        features:
          description:
            - What this version brings. V(toggle), V(actions), V(libcuda), V(nvml_users), V(some_gpus), V(device_map),
              V(launch_job) and V(cuda_ipc).
          returned: when the options are valid
          type: list
          elements: str
          sample: [toggle, actions, libcuda, nvml_users, some_gpus, device_map]
    backend:
      description: How the driver would be asked, V(null) if there is no way.
      returned: when the options are valid
      type: str
      sample: libcuda
    nvml:
      description: Whether NVML answered.
      returned: when the options are valid
      type: bool
      sample: true
    criu:
      description: CRIU.
      returned: when the options are valid
      type: dict
      contains:
        path:
          description: Where it is, V(null) if it is not found.
          returned: when the options are valid
          type: str
          sample: /usr/sbin/criu
        version:
          description: Its version, V(null) if it does not tell.
          returned: when the options are valid
          type: str
          sample: 4.1.1
        check:
          description: Whether C(criu check) found everything, V(null) if it was not run.
          returned: when the options are valid
          type: bool
          sample: true
gpus:
  description: The GPUs of the host. Where NVML does not answer, what the kernel module tells of them.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    index:
      description: The index of the GPU, V(null) if it is not known.
      returned: when the options are valid
      type: int
      sample: 0
    uuid:
      description: The UUID of the GPU, V(null) if it is not known.
      returned: when the options are valid
      type: str
      sample: GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a
    name:
      description: The model, V(null) if it is not known.
      returned: when the options are valid
      type: str
      sample: NVIDIA H200
    total_bytes:
      description: The memory of the GPU, in bytes, V(null) if it is not known.
      returned: when the options are valid
      type: int
      sample: 150754820096
    used_bytes:
      description: How much of it is in use, in bytes, V(null) if it is not known.
      returned: when the options are valid
      type: int
      sample: 9127854080
    free_bytes:
      description: How much of it is free, in bytes, V(null) if it is not known.
      returned: when the options are valid
      type: int
      sample: 141626966016
    mig:
      description: Whether it is divided into MIG instances, V(null) if it is not known.
      returned: when the options are valid
      type: bool
      sample: false
    persistence:
      description: Whether persistence mode is on, V(null) if it is not known.
      returned: when the options are valid
      type: bool
      sample: true
capacity:
  description: What there is, beside what is needed.
  returned: when the options are valid
  type: dict
  contains:
    memory:
      description: Host memory, in bytes. C(needed_bytes) to suspend the processes that are not suspended.
      returned: when the options are valid
      type: dict
      sample: {needed_bytes: 8690597888, available_bytes: 1022202216448}
    disk:
      description: >-
        The place for images, in bytes. C(needed_bytes) for the images of all processes. C(path) and C(available_bytes)
        are V(null) without O(store).
      returned: when the options are valid
      type: dict
      sample: {path: /var/lib/gpufleet/images, needed_bytes: 9227468800, available_bytes: 812202216448}
    gpus:
      description: >-
        Each GPU, in bytes. C(needed_bytes) to resume the processes that are suspended. Empty if NVML does not answer.
      returned: when the options are valid
      type: list
      elements: dict
      sample:
        - uuid: GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a
          needed_bytes: 0
          available_bytes: 141626966016
    unknown:
      description: How many processes are not in these numbers, because it is not known how much they hold on GPUs.
      returned: when the options are valid
      type: int
      sample: 0
estimate:
  description:
    - What moving all the processes would take. Memory that processes share, and children without CUDA, are not in it.
  returned: when the options are valid
  type: dict
  contains:
    device_bytes:
      description: What they hold on GPUs, or held when they were suspended, in bytes.
      returned: when the options are valid
      type: int
      sample: 8589934592
    image_bytes:
      description: What their images need, in bytes.
      returned: when the options are valid
      type: int
      sample: 9227468800
    unknown:
      description: How many processes are not in these numbers, because it is not known how much they hold on GPUs.
      returned: when the options are valid
      type: int
      sample: 0
    seconds:
      description: Of each phase, for all processes at once.
      returned: when the options are valid
      type: dict
      sample: {suspend: 6.96, dump: 5.9, restore: 5.1, resume: 3.4}
    in_turn_seconds:
      description: Of each phase, one process after another.
      returned: when the options are valid
      type: dict
      sample: {suspend: 6.96, dump: 5.9, restore: 5.1, resume: 3.4}
    total_seconds:
      description: >-
        By capability, there and back, for all processes at once. Copying images to another host is not in it.
      returned: when the options are valid
      type: dict
      sample: {suspend: 10.36, dump: 21.36, migrate: 21.36}
    rates:
      description: >-
        What the numbers follow from, by phase. C(measured_steps) of this host, by its journal; V(0) means that it has
        none, and that the slowest rate that was measured elsewhere is taken.
      returned: when the options are valid
      type: dict
      sample:
        suspend: {gib_per_second: 1.149, measured_steps: 0}
        dump: {gib_per_second: 1.379, measured_steps: 0}
        restore: {gib_per_second: 1.671, measured_steps: 0}
        resume: {gib_per_second: 2.353, measured_steps: 0}
processes:
  description: One entry per process, in the order of O(pids), or by PID.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    pid:
      description: The process id.
      returned: when the options are valid
      type: int
      sample: 4711
    identity:
      description: What tells this process from every other one.
      returned: when the options are valid
      type: dict
      sample: {pid: 4711, start_ticks: 1893412, boot_id: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11}
    executable:
      description: Path of the executable.
      returned: when the options are valid
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
      returned: when the options are valid
      type: str
      sample: trainer
    suspended:
      description: Whether it has CUDA but holds no GPU. It is not asked by the driver.
      returned: when the options are valid
      type: bool
      sample: false
    parked:
      description: Whether it is suspended and stopped, by the journal.
      returned: when the options are valid
      type: bool
      sample: false
    ready:
      description: For each capability, whether no finding about this process blocks it.
      returned: when the options are valid
      type: dict
      sample: {suspend: true, dump: true, migrate: true}
    gpus:
      description: >-
        The GPUs of the process, with C(uuid), C(index) and C(bytes). For a suspended one those that it used when it was
        suspended.
      returned: when the options are valid
      type: list
      elements: dict
      sample:
        - uuid: GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a
          index: 0
          bytes: 8589934592
    device_bytes:
      description: The sum over RV(processes[].gpus), in bytes, V(null) if it is not known.
      returned: when the options are valid
      type: int
      sample: 8589934592
    image_bytes:
      description: What its image needs, in bytes, V(null) if it is not known.
      returned: when the options are valid
      type: int
      sample: 9227468800
    seconds:
      description: Of each phase that is to come, if it is moved alone.
      returned: when the options are valid
      type: dict
      sample: {suspend: 6.96, dump: 5.9, restore: 5.1, resume: 3.4}
    cgroup:
      description: The path of its cgroup.
      returned: when the options are valid
      type: str
      sample: /system.slice/inference.service
    unit:
      description: Its systemd unit, V(null) if it has none.
      returned: when the options are valid
      type: str
      sample: inference.service
    slurm_job:
      description: Its Slurm job, V(null) if it has none.
      returned: when the options are valid
      type: str
      sample: "90210"
    container:
      description: Its container, V(null) if it has none.
      returned: when the options are valid
      type: str
      sample: 3f1c0e5d8a7b
    findings:
      description: The identifiers of those of RV(findings) that are about this process alone.
      returned: when the options are valid
      type: list
      elements: str
      sample: []
    warnings:
      description: What could not be seen.
      returned: when the options are valid
      type: list
      elements: str
      sample: []
"""

from typing import Any, Mapping

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _compile_once

_compile_once.install()

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import (
    ArgumentError,
    check_dots,
    parse_allow,
    parse_pids,
    parse_select,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._findings import OWN_OPTIONS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import OPTIONS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.options import Options
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.run import Preflight
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import SelectError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children

ARGUMENTS = {
    "capabilities": {
        "type": "list",
        "elements": "str",
        "choices": ["suspend", "dump", "migrate"],
        "default": ["suspend"],
    },
    "fail_on": {"type": "str", "choices": ["blocking", "warning", "never"], "default": "blocking"},
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
    "allow": {"type": "list", "elements": "str", "default": []},
    "store": {"type": "path"},
    "window": {"type": "float"},
    "backend": {"type": "str", "choices": ["auto", "libcuda", "cli", "toggle"], "default": "auto"},
    "executable": {"type": "path"},
    "criu": {"type": "str", "default": "criu"},
    "journal": {"type": "path", "default": "/var/lib/gpufleet/checkpoint.db"},
    "full_command": {"type": "bool", "default": False},
}


def options_of(params: Mapping[str, Any]) -> Options:
    """Raises ArgumentError."""
    window = params["window"]
    if window is not None and not 0 < window <= 31536000:
        raise ArgumentError("window", f"{window:g}", "More than 0 and at most 31536000 seconds are allowed.")
    if not params["capabilities"]:
        raise ArgumentError("capabilities", "the list is empty", "Name at least one; fail_on: never requires none.")
    check_dots("store", params["store"])
    return Options(
        pids=None if params["pids"] is None else parse_pids(params["pids"]),
        select=parse_select(params["select"]),
        required=tuple(params["capabilities"]),
        fail_on=params["fail_on"],
        allow=parse_allow(params["allow"], OPTIONS | OWN_OPTIONS),
        store=params["store"],
        window=window,
        backend=params["backend"],
        executable=params["executable"],
        criu=params["criu"],
        journal=params["journal"],
        full_command=params["full_command"],
    )


def main() -> None:
    hear_of_children()
    module = AnsibleModule(argument_spec=ARGUMENTS, mutually_exclusive=[("pids", "select")], supports_check_mode=True)
    try:
        verdict = Preflight(options_of(module.params)).run()
    except (ArgumentError, SelectError, JournalError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"this host can't be looked at: {error}. /proc has to be mounted and readable.")
    if verdict.failed:
        module.fail_json(msg=verdict.failed, changed=False, **verdict.result)
    module.exit_json(changed=False, **verdict.result)


if __name__ == "__main__":
    main()
