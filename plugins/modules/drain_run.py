#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: drain_run
short_description: Keeps the record of a drain on the controller
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Finds the run that a command belongs to, writes down on the controller what happens to each host before it happens,
    stops the run when too many hosts have failed, and writes its report.
  - The playbooks of this collection use it. It runs on the controller alone and never connects to a host.
  - The record is a view. What counts is the journal of each host, see M(gpufleet.checkpoint.gpu_drain).
  - An attempt that a later one has replaced writes nothing any more and fails.
attributes:
  check_mode:
    support: full
    details:
      - Nothing is written.
  diff_mode:
    support: none
  idempotent:
    support: N/A
    details:
      - It changes no host.
  platform:
    support: full
    platforms: posix
    details:
      - Of the controller.
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
options:
  event:
    description:
      - What happens.
    type: str
    required: true
    choices:
      begin: >-
        A command begins, before any host is touched. With C(run_once). It reads the variable C(gpu_drain_wanted) of
        each host of the play.
      batch: >-
        A batch begins. Its first task, with C(run_once) and C(any_errors_fatal). It fails if the run has to stop.
      host: A phase, a hook or a check of the host began, or with O(ended=true) is over.
      failed: The host failed. With O(ended=true) it is the last word about it, and the task fails with it.
      controller: >-
        Who runs this playbook, in RV(controller), for M(gpufleet.checkpoint.gpu_drain). Nothing is written, and no run
        is begun.
      end_batch: A batch is over. Its last task, with C(run_once).
      finished: A host that was finished before was looked at again. O(data) is what was seen.
      plan: Each host was looked at, and nothing changed. With C(run_once).
      status: Each host was asked how far it is. With C(run_once).
      recover: What is to be done with each host after that. With C(run_once).
  run:
    description:
      - What O(event=begin) returned.
    type: dict
    default: {}
  what:
    description:
      - The phase, the hook or the check, for O(event=host).
    type: str
    default: ""
  ended:
    description:
      - Whether it is over.
    type: bool
    default: false
  data:
    description:
      - The result of the module that told it. Only what is documented to be in a report is kept.
    type: dict
    default: {}
  settings:
    description:
      - What the playbooks are told beside that.
    type: dict
    default: {}
seealso:
  - module: gpufleet.checkpoint.gpu_drain
  - module: gpufleet.checkpoint.gpu_drain_info
"""

EXAMPLES = r"""
- name: Begin the run, or take up one that was interrupted
  gpufleet.checkpoint.drain_run:
    event: begin
  register: drain
  run_once: true

- name: Stop here if too many hosts have failed
  gpufleet.checkpoint.drain_run:
    event: batch
    run: "{{ drain }}"
  run_once: true
  any_errors_fatal: true

- name: Write down that the restore begins
  gpufleet.checkpoint.drain_run:
    event: host
    run: "{{ drain }}"
    what: restoring

- name: Write down what became of the batch
  gpufleet.checkpoint.drain_run:
    event: end_batch
    run: "{{ drain }}"
  run_once: true
"""

RETURN = r"""
run_id:
  description: The name of the run.
  returned: with O(event=begin)
  type: str
  sample: 20261130T020145-7f3a9c
attempt:
  description: Which attempt of the run this is, from V(1).
  returned: with O(event=begin)
  type: int
  sample: 1
claim_attempt:
  description: >-
    What hosts are claimed with. V(0) where this controller can't know how many attempts they have seen.
  returned: with O(event=begin)
  type: int
  sample: 1
slice:
  description: Which slice of the hosts this is.
  returned: with O(event=begin)
  type: int
  sample: 1
controller:
  description: Who runs the attempt, for M(gpufleet.checkpoint.gpu_drain).
  returned: with O(event=begin) and O(event=controller)
  type: str
  sample: "control1 admin 4711:1893412:0d5b6e1f-58e1-4b3c-9a3e-0b9d3f0a7c11"
resumed:
  description: Whether it goes on with a run that was begun before.
  returned: with O(event=begin)
  type: bool
  sample: false
directory:
  description: Where its record and its report are, on the controller.
  returned: with O(event=begin)
  type: str
  sample: /home/admin/.local/state/gpufleet/runs/20261130T020145-7f3a9c
order:
  description: The hosts that are still to do, those that are half done first.
  returned: with O(event=begin)
  type: list
  elements: str
  sample: [gpu1, gpu2]
finished_hosts:
  description: The hosts that a former attempt has finished.
  returned: with O(event=begin)
  type: list
  elements: str
  sample: []
hooks:
  description: Each task file, as it was given, with its absolute path.
  returned: with O(event=begin)
  type: dict
  sample: {reboot.yml: /srv/maintenance/reboot.yml}
serial:
  description: The sizes of the batches.
  returned: with O(event=begin)
  type: list
  elements: raw
  sample: [1, 10%]
notify:
  description: The command that is notified.
  returned: with O(event=begin)
  type: list
  elements: str
  sample: []
phase:
  description: The phase that the record has the host in now. In check mode, the one that was told; empty for a hook.
  returned: with O(event=host)
  type: str
  sample: suspending
plan:
  description: >-
    The plan. C(hosts) with batch, mode, processes, bytes, seconds and what speaks against it; C(batches); C(totals).
  returned: with O(event=plan)
  type: dict
  sample: {hosts: [], batches: [], totals: {}}
hosts:
  description: >-
    By host. With O(event=status) its line and what was read; with O(event=recover) C(do), which is V(nothing), V(undo),
    V(finish) or V(report), and C(why).
  returned: with O(event=status) and O(event=recover)
  type: dict
  sample: {gpu1: {do: undo, why: its run died while it suspended}}
totals:
  description: How many hosts are in which phase.
  returned: with O(event=status)
  type: dict
  sample: {suspended: 1}
report:
  description: The path of the report on the controller, V(null) if there is no record of a run.
  returned: with O(event=status)
  type: str
  sample: /home/admin/.local/state/gpufleet/runs/20261130T020145-7f3a9c/report.html
"""

from ansible.module_utils.basic import AnsibleModule

ARGUMENTS = {
    "event": {
        "type": "str",
        "required": True,
        "choices": [
            "begin",
            "batch",
            "host",
            "failed",
            "controller",
            "end_batch",
            "finished",
            "plan",
            "status",
            "recover",
        ],
    },
    "run": {"type": "dict", "default": {}},
    "what": {"type": "str", "default": ""},
    "ended": {"type": "bool", "default": False},
    "data": {"type": "dict", "default": {}},
    "settings": {"type": "dict", "default": {}},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(
        msg="drain_run runs on the controller, through its action plugin. This ansible-core did not find it."
    )


if __name__ == "__main__":
    main()
