# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules.

from __future__ import annotations


class ModuleDocFragment:
    """What the modules that look at CUDA processes have in common."""

    DOCUMENTATION = r"""
options:
  pids:
    description:
      - Process ids of CUDA processes, as the managed node's own PID namespace counts them. A process in a container is
        named by the PID that it has on the host.
      - Each is a whole number from 1 on. Text that consists of digits alone is taken for one, since a template yields
        text. Everything else, a boolean included, is an error.
      - An entry can also be a dictionary with the keys C(pid) and C(start_ticks), and C(boot_id) if it is known, such
        as RV(gpufleet.checkpoint.cuda_checkpoint_info#module:processes[].identity). A process that got the same PID
        later is then an error.
      - Also errors, before anything is done, are a PID without a process, a zombie, the id of a thread that is not its
        process, a PID that is named twice, and a process without CUDA.
      - Mutually exclusive with O(select).
    type: list
    elements: raw
  select:
    description:
      - Chooses the CUDA processes of the managed node by what they are. A process has to match B(every) criterion that
        is given; of a criterion that is a list, one entry.
      - At least one criterion is needed. To mean every process, say V(true) to O(select.all).
      - No match is no error. Nothing is done then, and the list of processes that is returned is empty.
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
          - A GPU that the managed node does not have is an error.
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
  full_command:
    description:
      - Whether to return the command line of each process. Command lines often hold tokens and passwords, and what a
        task returns ends up in logs. With V(false) only the path of the executable is returned.
    type: bool
    default: false
  backend:
    description:
      - How the driver is asked.
    type: str
    choices:
      auto: The first of V(libcuda), V(cli) and V(toggle) that the managed node has.
      libcuda: The functions of C(libcuda.so.1). They exist from driver 570 on. The fastest way.
      cli: The options C(--action) and C(--get-state) of C(cuda-checkpoint), from driver 555 on.
      toggle: >-
        The option C(--toggle) of C(cuda-checkpoint), all that driver 550 has. The state of a process is concluded from
        what it has open, it cannot be locked, and it can be neither held nor parked.
    default: auto
  executable:
    description:
      - Path of the tool C(cuda-checkpoint) on the managed node. Needed for O(backend=cli) and O(backend=toggle) only.
      - Without it, the tool is looked for in the directories of E(PATH).
    type: path
  journal:
    description:
      - Path of the database in which the managed node remembers what was done to which process. It is needed to resume,
        also after a crash.
      - The file belongs to the user who runs the module and only that user can read it. Its directory is created if it
        is missing.
      - Every task that deals with the same processes has to name the same file.
    type: path
    default: /var/lib/gpufleet/checkpoint.db
requirements:
  - Linux on x86-64
  - Python 3.8 or newer, with its module C(sqlite3)
  - NVIDIA driver 550 or newer; 555 or newer to hold and park processes
  - nvidia-ml-py, which provides the Python module C(pynvml)
  - the tool C(cuda-checkpoint), for O(backend=cli) and O(backend=toggle)
"""
