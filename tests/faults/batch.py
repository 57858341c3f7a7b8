# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One batch: workloads on each host, one playbook over all of them, each host its own fault on the way; then `status`
and `recover`, as an operator would, and a look at everything."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.drain.drainlab import Drain, Runs, drains, on_each, states
from tests.faults.kinds import NOBODY, Fault
from tests.faults.matrix import Scenario
from tests.faults.points import DUMP, PARKED, RESTORE, RESUME, SUSPEND, UNDO
from tests.faults.verdict import STORE, Outcome, judge, untrue
from tests.system.lab import Lab, Workload
from tests.system.playing import Play, cuda
from tests.system.striking import ACTED, DONE, GO, PLAN, has_struck, strike

PLAYBOOKS = {SUSPEND: "suspend", DUMP: "suspend", RESUME: "restore", RESTORE: "restore"}
#: A copy takes half a second.
VRAM, RATE = 32, 64
#: Until a host has come to its point, with a whole fleet at work on one machine.
PATIENCE = 300


class Batch:
    """labs: at least as many hosts as scenarios, which are all of one way."""

    def __init__(self, labs: Sequence[Lab], scenarios: Sequence[Scenario], runs: Runs) -> None:
        self.labs = list(labs)[: len(scenarios)]
        self.way = scenarios[0].point.way
        self.runs = runs
        self.outcomes = {
            lab.host.name: Outcome(one, lab.host.name) for lab, one in zip(self.labs, scenarios, strict=True)
        }
        self.fleet = self.labs[0].host.fleet
        self.disk = self.way in (DUMP, RESTORE)
        self.output: list[str] = []

    def run(self) -> list[Outcome]:
        try:
            on_each(self.labs, self._start)
            if self.way in (RESUME, RESTORE, PARKED):
                self._playbook("suspend").ok()
            if self.way == PARKED:
                on_each(self.labs, self._strike_at_rest)
            else:
                self._strike_on_the_way()
            on_each(self.labs, self._heal)
            self._status()
            self._recover()
            on_each(self.labs, lambda lab: judge(lab, self._of(lab), "\n".join(self.output)))
        finally:
            on_each(self.labs, self._clear)
        return list(self.outcomes.values())

    def _of(self, lab: Lab) -> Outcome:
        return self.outcomes[lab.host.name]

    def _fault(self, lab: Lab) -> Fault:
        return self._of(lab).scenario.fault

    def _start(self, lab: Lab) -> None:
        lab.host.sh(f"rm -rf /var/lib/gpufleet {PLAN} {DONE} {ACTED} {GO}")
        kinds = ("polling", "plain")
        lab.start(*[Workload(kind, vram=VRAM, rate=RATE, wrap=("nice", "-n", "19")) for kind in kinds])
        if self.way == UNDO:
            lab.one("managed", sum=False)
        lab.before = lab.ask("leftovers")

    def _playbook(self, name: str, labs: Sequence[Lab] = (), **more: object) -> Drain:
        chosen = [lab.host.name for lab in labs or self.labs]
        mode = "disk" if self.disk else "memory"
        tasks = self.runs.tasks("maintenance", {"ansible.builtin.command": {"argv": ["true"]}, "changed_when": False})
        variables = {
            "gpu_suspend_mode": mode,
            "gpu_suspend_compress": "zstd",
            "gpu_drain_mode": mode,
            "gpu_drain_serial": [len(self.labs)],
            "gpu_drain_failures_allowed": len(self.labs),
            "gpu_drain_maintenance_tasks": tasks,
            **more,
        }
        own = {host: self.outcomes[host].scenario.fault.variables for host in chosen}
        return Drain(self.fleet, name, self.runs, limit=",".join(chosen), variables=variables, host_vars=own)

    # The fault

    def _strike_on_the_way(self) -> None:
        on_each(self.labs, self._plan)
        under_way = self._playbook(PLAYBOOKS.get(self.way, "drain"))
        with ThreadPoolExecutor(len(self.labs)) as pool:
            list(pool.map(lambda lab: self._from_outside(lab, under_way), self.labs))
        if any(one.scenario.fault.outside in ("playbook", "cable") for one in self.outcomes.values()):
            under_way.kill_all()
            on_each(self.labs, self._without_controller)
        else:
            under_way.wait()
        self.output.append(under_way.text())
        for lab in self.labs:
            self._of(lab).fired = has_struck(lab)

    def _plan(self, lab: Lab) -> None:
        point, fault = self._of(lab).scenario.point, self._fault(lab)
        script = _script(lab, fault.script) if fault.script else ""
        strike(lab, point.step, script, point.delay, bool(fault.outside), fault.clock)

    def _from_outside(self, lab: Lab, under_way: Drain) -> None:
        """Once the host is at its point, and waits there."""
        fault = self._fault(lab)
        if not fault.outside or not self._comes(lab, under_way):
            return
        if fault.outside == "operator":
            second = self._playbook(PLAYBOOKS[self.way], [lab])
            time.sleep(4)
            lab.host.sh(f"touch {GO}")
            second.wait()
            self.output.append(second.text())
        elif fault.outside == "cable":
            self.fleet.must("cut", lab.host.name)
        elif fault.outside != "playbook":
            self._down(lab)

    def _comes(self, lab: Lab, under_way: Drain) -> bool:
        end = time.monotonic() + PATIENCE
        while under_way.process.poll() is None and time.monotonic() < end:
            if has_struck(lab):
                return True
            time.sleep(0.2)
        return False

    def _without_controller(self, lab: Lab) -> None:
        if self._fault(lab).outside == "cable":
            self.fleet.must("mend", lab.host.name)
            lab.host.disconnect()
        lab.host.sh(f"touch {GO}")

    def _down(self, lab: Lab) -> None:
        if self._fault(lab).outside == "reboot":
            self.fleet.must("reboot", lab.host.name)
        else:
            self.fleet.must("poweroff", lab.host.name, "--lose-unsynced")
            self.fleet.must("start", lab.host.name)
        lab.booted()
        lab.host.sh(f"echo down >{DONE}")

    def _strike_at_rest(self, lab: Lab) -> None:
        self._of(lab).fired = True
        if self._fault(lab).outside:
            self._down(lab)
        else:
            lab.host.sh(_script(lab, self._fault(lab).script))

    def _heal(self, lab: Lab) -> None:
        if self._fault(lab).heal and self._of(lab).fired:
            lab.host.sh(_script(lab, self._fault(lab).heal))
        lab.host.sh(f"rm -f {PLAN}")

    # The operator

    def _status(self) -> None:
        """Until it agrees with /proc: what a killed task had begun goes on for a while."""
        wrong: dict[str, list[str]] = {}
        for _attempt in range(8):
            before = on_each(self.labs, states)
            asked = self._playbook("status").ok()
            after = on_each(self.labs, states)
            told = {result.host: result for result in asked.results() if "cuda" in result.data}
            wrong = {}
            for lab, was, now in zip(self.labs, before, after, strict=True):
                if self._fault(lab).by_hand:
                    continue
                if lab.host.name not in told:
                    wrong[lab.host.name] = ["no answer"]
                elif was != now:
                    wrong[lab.host.name] = [f"the processes went from {was} to {now} meanwhile"]
                elif found := untrue(told[lab.host.name], now, lab.jobs):
                    wrong[lab.host.name] = found
            self.output.append(asked.text())
            if not wrong:
                return
            time.sleep(2)
        for host, words in wrong.items():
            self.outcomes[host].problems += [f"status: {word}" for word in words]

    def _recover(self) -> None:
        """First as it is. Where processes may be lost, that is then said to be known. What a playbook `suspend` has
        suspended, as it was asked to, is what `restore` brings back."""
        by_hand = [lab for lab in self.labs if self._fault(lab).by_hand]
        if by_hand:
            self._follow_the_journals_page(by_hand)
        others = [lab for lab in self.labs if lab not in by_hand]
        self._try("recover", others, gpu_drain_maintenance_done=True)
        held = [lab for lab, rows in zip(others, on_each(others, _suspended), strict=True) if rows]
        self._try("restore", held)

    def _try(self, playbook: str, labs: Sequence[Lab], **more: object) -> None:
        failed = self._failed(playbook, labs, **more)
        costly = [lab for lab in failed if self._fault(lab).costs != NOBODY]
        given = {"gpu_drain_accept_loss": True, "gpu_restore_accept_loss": True}
        again = self._failed(playbook, costly, **{**more, **given})
        for lab, words in failed.items():
            if lab not in costly or lab in again:
                self._of(lab).problems.append(f"{playbook}: {again.get(lab, words)}")

    def _failed(self, playbook: str, labs: Sequence[Lab], **more: object) -> dict[Lab, str]:
        """The hosts on which it failed, and its words."""
        if not labs:
            return {}
        tried = self._playbook(playbook, labs, **more)
        tried.wait()
        self.output.append(tried.text())
        recap = tried.recap()
        return {lab: _last_words(tried, lab) for lab in labs if recap.get(lab.host.name, {"failed": 1})["failed"]}

    def _follow_the_journals_page(self, labs: Sequence[Lab]) -> None:
        """The damaged one was moved away. What is suspended is nobody's then; an image tells all of itself."""
        limit = ",".join(lab.host.name for lab in labs)
        on_each(
            labs, lambda lab: lab.host.sh("pkill -x gpufleet-hold; while pgrep -x gpufleet-hold; do sleep 0.1; done")
        )
        if self.disk:
            found = {lab.host.name: lab.host.sh(f"dirname $(find {STORE} -name manifest.json)").split() for lab in labs}
            image = {"state": "restored", "path": "{{ item }}"}
            every = "{{ (found | from_json)[inventory_hostname] }}"
            task = {"gpufleet.checkpoint.criu_image": image, "loop": every, "vars": {"found": json.dumps(found)}}
        else:
            task = cuda("running", select={"all": True}, allow=["parked_unowned", "vram_short"])
        for result in Play(self.fleet, [task], limit).wait():
            if result.outcome != "ok":
                self.outcomes[result.host].problems.append(f"by hand: {result.msg[:400]}")

    def _clear(self, lab: Lab) -> None:
        """Whatever it came to, the next batch begins anew."""
        lab.host.sh(
            f"touch {GO}; rm -f {PLAN}; ! mountpoint -q /var/lib/gpufleet || umount /var/lib/gpufleet;"
            " pkill -9 -x gpufleet-hold; pkill -9 -x gpusim-workload; rm -rf /var/lib/gpufleet /var/lib/filler.*; true"
        )
        lab.jobs.clear()
        lab.before = lab.ask("leftovers")


def _suspended(lab: Lab) -> list[dict[str, Any]]:
    return drains(lab, "closed IS NULL AND kind = 'suspend' AND phase = 'suspended'")


def _script(lab: Lab, script: str) -> str:
    return f"export PIDS='{' '.join(str(job.pid) for job in lab.jobs)}'\n{script}"


def _last_words(drain: Drain, lab: Lab) -> str:
    told = [result.msg for result in drain.results() if result.host == lab.host.name and result.failed and result.msg]
    return (told[-1] if told else drain.text())[-600:]
