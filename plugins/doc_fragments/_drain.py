# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules.

from __future__ import annotations


class ModuleDocFragment:
    """What the modules that keep and read the drains of a host have in common."""

    DOCUMENTATION = r"""
options:
  select:
    description:
      - Chooses the CUDA processes that are meant by what they are, as
        O(gpufleet.checkpoint.cuda_checkpoint#module:select) does. A process has to match B(every) criterion that is
        given.
      - Without it, the selection that the drain was begun with, or else every CUDA process.
    type: dict
    suboptions:
      all:
        description:
          - V(true) chooses every CUDA process. Further criteria still have to match.
        type: bool
        default: false
      gpus:
        description:
          - GPUs by index or by UUID. Needs nvidia-ml-py on the managed node.
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
          - A systemd unit. Its suffix can be left out for a service.
        type: str
      slurm_job:
        description:
          - The id of a Slurm job. The processes of all its steps are meant.
        type: str
      container:
        description:
          - The id of a container, or the first 12 or more characters of it.
        type: str
  journal:
    description:
      - Path of the database in which the managed node remembers what was done to which process, and which run drains
        it.
      - Every task that deals with the same processes has to name the same file.
    type: path
    default: /var/lib/gpufleet/checkpoint.db
requirements:
  - Linux on x86-64
  - Python 3.8 or newer, with its module C(sqlite3)
  - nvidia-ml-py, for O(select.gpus) only
"""
