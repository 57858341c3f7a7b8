#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_node
short_description: Drains a Slurm node for one run, and releases what that run has drained
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Takes a node of Slurm out of scheduling with C(scontrol), and puts it back. The reason of the drain is
    C(gpufleet), a space, and O(run_id).
  - A node that somebody else has drained, or has taken down, is left as it is. RV(ours) is V(false) then.
  - Releases a node only if the reason that Slurm itself shows now is that of O(run_id) or of one of O(runs).
  - Before it touches anything it looks at the jobs on the node, and refuses if the drain would end one of them. After
    the drain it looks again, and takes the drain back if such a job has started in between.
  - The node's state is read again after each change.
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
  - gpufleet.checkpoint._attributes.actiongroup_all
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    support: full
    details:
      - Every Linux with the client tools of Slurm.
    platforms: linux
options:
  node:
    description:
      - Name of one node, as Slurm knows it. Lists, ranges and V(ALL) are refused.
    type: str
    required: true
  state:
    description:
      - What the node shall be.
    type: str
    choices:
      drained: >-
        No job is started on it. Jobs that are on it go on.
      released: >-
        It is back in scheduling, if it was drained by O(run_id) or one of O(runs).
    required: true
  run_id:
    description:
      - Identifies the run whose drain it is. Up to 64 letters, digits, dots, underscores and hyphens.
    type: str
    required: true
  runs:
    description:
      - More runs whose drain counts as one's own, such as the one whose work this run has taken over.
    type: list
    elements: str
    default: []
  mode:
    description:
      - What will be done with the processes of the node while it is drained.
    type: str
    choices:
      memory: >-
        They are suspended in memory. A job stays RUNNING and its time runs on, so that a job whose time limit ends
        within O(window) is refused.
      disk: They are written to the disk and end. Every job on the node is refused.
    default: memory
  reboots:
    description:
      - Whether the host will be rebooted. Every job on the node is refused then.
    type: bool
    default: false
  window:
    description:
      - For how many seconds from now the processes may be suspended.
    type: int
    default: 3600
  allow:
    description:
      - Names of findings that the operator accepts, V(slurm_step) for jobs that will end, V(slurm_time_limit) for jobs
        that reach their time limit. An allowed one is returned as a warning. Other names are passed over, so that the
        list can be that of M(gpufleet.checkpoint.gpu_preflight).
    type: list
    elements: str
    default: []
  scontrol:
    description:
      - Path of C(scontrol), or its name in the directories of E(PATH).
    type: str
    default: scontrol
  squeue:
    description:
      - Path of C(squeue), or its name in the directories of E(PATH).
    type: str
    default: squeue
requirements:
  - Slurm 22.05 or newer, with its client tools on the host that the task runs on
  - The right to change nodes, which root, SlurmUser and operators have
notes:
  - Slurm has no way to change a node only if nobody else has. Who drains it by hand within the same moment may have the
    reason overwritten.
  - Newer versions of Slurm show a reason also after a drain is over. It is C(gpufleet), O(run_id) and C(released) then.
seealso:
  - module: gpufleet.checkpoint.gpu_preflight
"""

EXAMPLES = r"""
- name: Start no more jobs on the node, and refuse if a job would end within two hours
  gpufleet.checkpoint.slurm_node:
    node: "{{ inventory_hostname }}"
    state: drained
    run_id: firmware-2026-11
    window: 7200
  register: slurm

- name: Stop if somebody else keeps the node out of service
  ansible.builtin.assert:
    that: slurm.ours
    fail_msg: "{{ slurm.node }} is {{ slurm.after }}: {{ slurm.reason }} ({{ slurm.by }})"

- name: Start jobs again, from a host that has the tools
  gpufleet.checkpoint.slurm_node:
    node: "{{ inventory_hostname }}"
    state: released
    run_id: firmware-2026-11
  delegate_to: login1
"""

RETURN = r"""
node:
  description: The name of the node.
  returned: success
  type: str
  sample: gpu07
before:
  description: Its state before, as Slurm writes it.
  returned: success
  type: str
  sample: MIXED
after:
  description: Its state after, read again. In check mode what it would be.
  returned: success
  type: str
  sample: MIXED+DRAIN
ours:
  description: Whether it is drained by O(run_id) or one of O(runs) now.
  returned: success
  type: bool
  sample: true
left:
  description: Whether somebody else keeps it out of service, so that nothing was done.
  returned: success
  type: bool
  sample: false
reason:
  description: The reason that Slurm shows now.
  returned: success
  type: str
  sample: gpufleet firmware-2026-11
by:
  description: The user who set it.
  returned: success
  type: str
  sample: root
since:
  description: When it was set, in unix seconds, V(null) if it is not known.
  returned: success
  type: int
  sample: 1796032292
text:
  description: What was done or found, for people.
  returned: success
  type: str
  sample: drained
jobs:
  description: The jobs that have processes on the node.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: The id of the job, with the index of an array.
      returned: success
      type: str
      sample: "90210"
    user:
      description: Whose it is.
      returned: success
      type: str
      sample: trainer
    state:
      description: Its state.
      returned: success
      type: str
      sample: RUNNING
    end:
      description: When its time limit ends, in unix seconds, V(null) if it has none.
      returned: success
      type: int
      sample: 1796034090
    name:
      description: Its name.
      returned: success
      type: str
      sample: train
findings:
  description: Jobs that the drain would end. The module fails if one of them is blocking.
  returned: when the node was asked
  type: list
  elements: dict
  contains:
    id:
      description: V(slurm_step) or V(slurm_time_limit).
      returned: when the node was asked
      type: str
      sample: slurm_time_limit
    severity:
      description: V(blocking) or V(warning).
      returned: when the node was asked
      type: str
      sample: blocking
    subject:
      description: The job.
      returned: when the node was asked
      type: str
      sample: Slurm job 90210 (train) of trainer
    evidence:
      description: What was seen.
      returned: when the node was asked
      type: str
      sample: it is RUNNING on this node, and its time limit ends within the window
    reason:
      description: Why it matters.
      returned: when the node was asked
      type: str
      sample: Its time runs on while it is suspended; at its limit Slurm ends it
    remedy:
      description: What helps.
      returned: when the node was asked
      type: str
      sample: Raise its limit (scontrol update JobId=90210 TimeLimit=+40)
    option:
      description: The name by which O(allow) accepts it.
      returned: when the node was asked
      type: str
      sample: slurm_time_limit
    reference:
      description: Where to read more.
      returned: when the node was asked
      type: str
      sample: https://github.com/gpufleet/checkpoint/blob/main/docs/schedulers.md#slurm_time_limit
    pid:
      description: Always V(null), since a job is no process.
      returned: when the node was asked
      type: int
      sample: null
"""

import re
import time
from dataclasses import asdict
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._slurm import (
    Job,
    Node,
    SlurmError,
    check_name,
    expected,
    released,
    stamp,
    whose,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._slurm_findings import findings
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._slurm_tools import Slurm

ARGUMENTS = {
    "node": {"type": "str", "required": True},
    "state": {"type": "str", "required": True, "choices": ["drained", "released"]},
    "run_id": {"type": "str", "required": True},
    "runs": {"type": "list", "elements": "str", "default": []},
    "mode": {"type": "str", "default": "memory", "choices": ["memory", "disk"]},
    "reboots": {"type": "bool", "default": False},
    "window": {"type": "int", "default": 3600},
    "allow": {"type": "list", "elements": "str", "default": []},
    "scontrol": {"type": "str", "default": "scontrol"},
    "squeue": {"type": "str", "default": "squeue"},
}


class Task:
    """One call of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params: Dict[str, Any] = module.params
        self.name: str = module.params["node"]
        self.runs: List[str] = [module.params["run_id"], *module.params["runs"]]
        check_name(self.name)
        for run in self.runs:
            if not re.match(r"[A-Za-z0-9._-]{1,64}\Z", run):
                raise SlurmError(
                    f"run_id: {run!r}. Up to 64 letters, digits, dots, underscores and hyphens are allowed."
                )
        if self.params["window"] < 0:
            raise SlurmError(f"window: {self.params['window']} s. 0 or more seconds are allowed.")
        self.slurm = Slurm(self.params["scontrol"], self.params["squeue"])
        self.before = self.slurm.node(self.name)

    def run(self) -> Dict[str, Any]:
        return self.drain() if self.params["state"] == "drained" else self.release()

    def against(self, jobs: List[Job]) -> List[Finding]:
        until = int(time.time()) + self.params["window"]
        return findings(jobs, self.params["mode"], self.params["reboots"], until, self.params["allow"])

    def drain(self) -> Dict[str, Any]:
        jobs = self.slurm.jobs(self.name)
        found = self.against(jobs)
        self.refuse(found, "Nothing was changed.")
        who = whose(self.before, self.runs)
        if who:
            text = (
                "it was drained by this run before"
                if who == "ours"
                else "somebody else keeps it out of service; it is left so"
            )
            return self.result(self.before, False, text, jobs, found)
        if self.module.check_mode:
            return self.result(expected(self.before, self.runs[0]), True, "it would be drained", jobs, found)
        said = self.slurm.drain(self.name, stamp(self.runs[0]))
        after = self.slurm.node(self.name)
        who = whose(after, self.runs)
        if who == "theirs":
            return self.result(
                after, False, "somebody else has drained it in the same moment; it is left so", jobs, found
            )
        if who != "ours":
            raise SlurmError(said or f"scontrol said nothing against it, and yet {self.name} is {after.state}. {_LOOK}")
        jobs = self.slurm.jobs(self.name)
        found = self.against(jobs)
        if any(one.severity == BLOCKING for one in found):
            self.slurm.resume(self.name, released(self.runs[0]))
            back = self.slurm.node(self.name)
            state = "The drain was taken back." if not back.drained else f"The node is still {back.state}."
            self.refuse(found, f"It started in the moment of the drain. {state}")
        return self.result(after, True, "drained", jobs, found)

    def release(self) -> Dict[str, Any]:
        who = whose(self.before, self.runs)
        if who != "ours":
            text = "somebody else keeps it out of service; it is left so" if who else "it is not drained"
            return self.result(self.before, False, text, [], [])
        if self.module.check_mode:
            return self.result(expected(self.before, ""), True, "it would be released", [], [])
        said = self.slurm.resume(self.name, released(self.runs[0]))
        after = self.slurm.node(self.name)
        if after.out:
            raise SlurmError(said or f"scontrol said nothing against it, and yet {self.name} is {after.state}. {_LOOK}")
        return self.result(after, True, "released", [], [])

    def refuse(self, found: List[Finding], done: str) -> None:
        blocking = [one for one in found if one.severity == BLOCKING]
        if blocking:
            told = " ".join(one.message() for one in blocking)
            self.module.fail_json(msg=f"{told} {done}", findings=[one.as_dict() for one in found])

    def result(self, after: Node, changed: bool, text: str, jobs: List[Job], found: List[Finding]) -> Dict[str, Any]:
        who = whose(after, self.runs)
        result: Dict[str, Any] = {
            "changed": changed,
            "node": self.name,
            "before": self.before.state,
            "after": after.state,
            "ours": who == "ours",
            "left": who == "theirs",
            "reason": after.reason,
            "by": after.by,
            "since": after.since,
            "text": text,
            "jobs": [asdict(job) for job in jobs],
            "findings": [one.as_dict() for one in found],
        }
        if changed:
            old, new = (f"{node.state} {node.reason if node.out else ''}".strip() for node in (self.before, after))
            result["diff"] = {"before": f"{self.name}: {old}\n", "after": f"{self.name}: {new}\n"}
        return result


_LOOK = "Look at it with scontrol show node, and at the log of slurmctld."


def main() -> None:
    hear_of_children()
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = Task(module).run()
    except SlurmError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
