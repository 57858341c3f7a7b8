# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What drain_run does for each event: reads records, asks the pure decisions, writes records. No host is touched."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import (
    answers,
    budget,
    controller,
    hooks,
    record,
    reporting,
    state,
    words,
)
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.directory import RUN, Directory
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.notify import notify
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Attempt, Host, RecordError, Run
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.state import Known, Refused

Arguments = Mapping[str, Any]
Told = Dict[str, Any]

KEEPALIVE = (
    "No ServerAliveInterval is set for SSH: a host that loses its network in the middle of a task would hang this run "
    "for ever, and its budget with it. In ansible.cfg: [ssh_connection] ssh_args = -C -o ControlMaster=auto "
    "-o ControlPersist=60s -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
)


@dataclass(frozen=True)
class Surroundings:
    """What Ansible says of the task. host: the one that it runs for. batch: hosts of the batch. hosts: all of the play.
    parent: PID of ansible-playbook."""

    host: str
    batch: Tuple[str, ...]
    hosts: Tuple[str, ...]
    hostvars: Mapping[str, Any]
    check: bool
    parent: int
    strategy: str
    ssh_arguments: str


class Events:
    """One task. warnings: to be shown to the operator. Each event raises Refused or RecordError."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.warnings: List[str] = []
        self.now = time.time()

    def begin(self, _arguments: Arguments) -> Told:
        around = self.around
        asked = state.wanted({name: self._wanted(name) for name in around.hosts})
        if around.parent <= 1:
            raise Refused(
                "this run",
                "ansible-playbook, which started it, has ended",
                "What it would do to hosts nobody would see.",
                "Run the command again.",
            )
        if around.strategy.rpartition(".")[2] in ("free", "host_pinned"):
            raise Refused(
                f"strategy {around.strategy}",
                "it does not wait for the other hosts of a batch",
                "The budget of failures is looked at between batches.",
                "Use the strategy linear (ANSIBLE_STRATEGY, or [defaults] strategy in ansible.cfg).",
            )
        files = hooks.resolve(asked.hosts, os.getcwd())
        self._somebody_there(asked.hosts)
        if "ServerAliveInterval" not in around.ssh_arguments:
            self.warnings.append(KEEPALIVE)
        base = os.path.abspath(os.path.expanduser(asked.directory))
        me = controller.of_parent(around.parent)
        begun, place = self._begin(base, asked, me)
        self.warnings += begun.said
        if asked.run_id == state.NEW and not around.check:
            self.warnings.append(
                f"gpu_drain_run_id: new begins another run each time. This one is {begun.run.run_id}: wherever the "
                f"same command again is meant to go on with it, give -e gpu_drain_run_id={begun.run.run_id} instead."
            )
        told: Told = {
            "run_id": begun.run.run_id,
            "attempt": begun.attempt.attempt,
            "claim_attempt": begun.claim_attempt,
            "slice": begun.attempt.slice,
            "controller": controller.text(me),
            "resumed": begun.resumed,
            "directory": place.path,
            "order": list(begun.order),
            "finished_hosts": list(begun.finished),
            "hooks": files,
            "serial": list(begun.run.settings["serial"]),
            "notify": list(asked.notify),
        }
        if around.check:
            return told
        report = reporting.write(place, self.now, begun.attempt)
        self._notify(asked.notify, "begin", begun.run, place.hosts(), report)
        what = "goes on" if begun.resumed else "begins"
        told["msg"] = (
            f"Run {begun.run.run_id} {what}, attempt {begun.attempt.attempt}: "
            f"{words.plural(len(begun.order), 'host')} to do, {len(begun.finished)} finished. Report: {report}"
        )
        return told

    def batch(self, arguments: Arguments) -> Told:
        told, around = arguments["run"], self.around
        if around.check:
            state.among(told["order"], told["serial"], around.batch)
            return {}
        place, run, attempt = self._open(told)
        number = state.batch(attempt, run.settings["serial"], around.batch)
        told_before = bool(attempt.stopped)
        attempt = replace(attempt, batch=number, stopped="")
        run = run.with_attempt(attempt)
        hosts = place.hosts()
        before = {name: hosts.get(name, Host(run_id=run.run_id, host=name)) for name in around.batch}
        marked = {name: record.marked(host, attempt) for name, host in before.items()}
        verdict = budget.verdict(run, {**hosts, **marked}, attempt)
        if verdict.stop:
            run, attempt = state.stopped(run, attempt, verdict.message)
            place.change_run(lambda old: (old or run).with_attempt(attempt), attempt)
            report = reporting.write(place, self.now, attempt)
            if not told_before:
                self._notify(told["notify"], "stopped", run, hosts, report)
            return {"failed": True, "msg": f"{verdict.message} Report: {report}"}
        if verdict.message:
            self.warnings.append(verdict.message)
        place.change_run(lambda old: (old or run).with_attempt(attempt), attempt)
        for name in around.batch:
            place.change_host(name, lambda host: record.marked(host, attempt), attempt)
        reporting.write(place, self.now, attempt)
        return {"msg": f"Batch {number}: {words.names(list(around.batch))}"}

    def host(self, arguments: Arguments) -> Told:
        data = plain(arguments["data"])
        what, ended = arguments["what"], arguments["ended"]
        if self.around.check or not arguments["run"].get("directory"):
            return {"phase": record.phase_of(what, data)}
        place, fence = self._fence(arguments["run"])

        def change(host: Host) -> Host:
            preflight = data.pop("preflight", None)
            if isinstance(preflight, dict):
                host = record.event(host, "preflight", float(preflight.get("at") or self.now), preflight, ended=True)
            return record.event(host, what, self.now, data, ended)

        after = place.change_host(self.around.host, change, fence)
        reporting.write_sometimes(place, self.now, fence)
        return {"phase": after.phase}

    def failed(self, arguments: Arguments) -> Told:
        """The last word about a host; before it, with `ended` false, a first one that does not end the task."""
        data = plain(arguments["data"])
        host_name = self.around.host
        parts = [f"{host_name}, {data.get('phase') or 'not claimed'}: {data.get('task')}: {data.get('msg')}"]
        if data.get("undo"):
            parts.append(f"It could not be undone either: {data['undo']}")
        if self.around.check or not arguments["run"].get("directory"):
            return {"failed": arguments["ended"], "msg": " ".join(parts)}
        place, fence = self._fence(arguments["run"])
        message = " ".join(parts)

        def change(host: Host) -> Host:
            host = record.known(host, {key: data[key] for key in ("findings", "estimate") if data.get(key)})
            if data.get("lost") and host.phase:
                host = record.event(host, host.phase, self.now, {"lost": data["lost"]})
            after = record.failed(host, self.now, message, "", str(data.get("undo") or ""))
            after = replace(after, refused=not (data.get("phase") or host.phase))
            if (
                not arguments["ended"]
                and data.get("phase") == record.SUSPENDING
                and str(data.get("passed")).lower() == "false"
            ):
                after = record.held_off(after, self.now)
            return replace(after, next=words.of_host(after))

        after = place.change_host(host_name, change, fence)
        if not arguments["ended"]:
            return {}
        stopped = self._last_of_its_attempt(arguments["run"])
        reporting.write(place, self.now, fence)
        self._notify_from(place, arguments["run"], "failed")
        if stopped:
            self._notify_from(place, arguments["run"], "stopped")
        return {"failed": True, "msg": f"{message} {after.next}".strip()}

    def controller(self, _arguments: Arguments) -> Told:
        """For who suspends or restores without a run."""
        return {"controller": controller.text(controller.of_parent(self.around.parent))}

    def end_batch(self, arguments: Arguments) -> Told:
        if self.around.check:
            return {}
        place, run, attempt = self._open(arguments["run"])
        hosts = place.hosts()
        for name in state.silent(attempt, run.settings["serial"], hosts):
            place.change_host(name, self._silent, attempt)
        hosts = place.hosts()
        report = reporting.write(place, self.now, attempt)
        count = reporting.counts(run, hosts)
        told = ", ".join(f"{number} {outcome.replace('_', ' ')}" for outcome, number in count.items() if number)
        if not state.last_batch(attempt, run.settings["serial"]):
            return {"msg": f"Batch {attempt.batch} is over. Run {run.run_id}: {told}. Report: {report}"}
        self._notify(arguments["run"]["notify"], "finished", run, hosts, report)
        following = words.of_run(run, hosts.values())
        return {
            "msg": f"Run {run.run_id}, attempt {attempt.attempt}, is over: {told}. Report: {report} {following}".strip()
        }

    def _last_of_its_attempt(self, told: Mapping[str, Any]) -> bool:
        """Ansible ends the playbook once every host of a batch has failed or is out of reach; no event follows. What
        the next batch would be told is written down now. Returns whether the attempt goes no further because of it."""
        place, fence = self._fence(told)
        run = place.run()
        attempt = None if run is None else run.last(fence.slice)
        if run is None or attempt is None or attempt.attempt != fence.attempt:
            return False
        hosts = place.hosts()
        mine = state.batch_of(attempt, run.settings["serial"])
        bad = (record.FAILED, record.UNDONE, record.LOST)
        if not mine or any(
            name not in hosts
            or hosts[name].outcome == record.FINISHED
            or (name in self.around.batch and hosts[name].outcome not in bad)
            for name in mine
        ):
            return False
        for name in state.silent(attempt, run.settings["serial"], hosts):
            place.change_host(name, self._silent, attempt)
        if attempt.stopped or state.last_batch(attempt, run.settings["serial"]):
            return False
        after = replace(attempt, batch=attempt.batch + 1)
        verdict = budget.verdict(run.with_attempt(after), place.hosts(), after)
        ended = f"Ansible ended the playbook: no host of batch {attempt.batch} is left. "
        over = replace(attempt, stopped=f"{'' if verdict.stop else ended}{verdict.message}")
        place.change_run(lambda old: (old or run).with_attempt(over), over)
        return True

    def finished(self, arguments: Arguments) -> Told:
        """A host that a former attempt finished, as gpu_drain_info sees it now."""
        data = plain(arguments["data"])
        try:
            answers.check_seen(self.around.host, data)
        except answers.Unusable as error:
            raise Refused(
                self.around.host,
                f"what it returned can't be used ({error})",
                "Whether it is as the record says is not known.",
                "Look at that host: another release of the collection, or somebody else, answers there.",
            ) from error
        row = data.get("drain") or {}
        states = [str(one.get("state")) for one in row.get("processes") or []]
        if row.get("phase") == record.RELEASED and "suspended" not in states:
            ended = states.count("gone")
            since = f", {ended} have ended since" if ended else ""
            return {"msg": f"{self.around.host}: released, {states.count('running')} of its processes run{since}"}
        told = (
            f"{self.around.host}: it was finished by the record of this run, and its journal says "
            f"{row.get('phase') or 'nothing of this run'}, with {states.count('suspended')} processes suspended. "
            f"Look at it with {words.STATUS}; {words.RECOVER} finishes what is open there."
        )
        if not self.around.check:
            place, fence = self._fence(arguments["run"])
            place.change_host(self.around.host, lambda host: record.failed(host, self.now, told, words.RECOVER), fence)
        return {"failed": True, "msg": told}

    def _begin(self, base: str, asked: state.Wanted, me: record.Controller) -> Tuple[state.Begun, Directory]:
        """Slices are started at the same moment: where another one was faster, once more with what it has written."""
        for left in reversed(range(asked.slices)):
            begun = state.begin(asked, self._known(base, asked), me, controller.alive, self.now, made_up(self.now))
            place = Directory(os.path.join(base, begun.run.run_id))
            if self.around.check:
                break
            place.create()
            try:
                place.change_run(partial(_begun, begun))
                break
            except Overtaken as error:
                if error.slice == asked.slice or not left:
                    raise
        return begun, place

    def _wanted(self, name: str) -> Mapping[str, Any]:
        found = plain(self.around.hostvars[name].get("gpu_drain_wanted"))
        if not found:
            raise Refused(
                name,
                "its variables could not be resolved",
                "What is wanted of it is not known.",
                "See the task before this one.",
            )
        return dict(found)

    def _somebody_there(self, hosts: Mapping[str, Mapping[str, Any]]) -> None:
        pausing = [
            name
            for name, host in hosts.items()
            if not host["hooks"]["maintenance"]
            and not host["maintenance_done"]
            and not int(host["maintenance_seconds"] or 0)
        ]
        if pausing and not self.around.check and not controller.has_terminal(self.around.parent):
            raise Refused(
                "gpu_drain_maintenance_tasks",
                f"there is none for {words.names(pausing)}, and no terminal where somebody could say that the "
                "maintenance is done",
                "The pause would end at once, and the hosts would come back without their maintenance.",
                "Give gpu_drain_maintenance_tasks, or gpu_drain_maintenance_seconds, or run it in a terminal.",
            )

    def _known(self, base: str, asked: state.Wanted) -> List[Known]:
        try:
            names = sorted(os.listdir(base))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Refused(
                f"gpu_drain_run_directory {base}",
                f"it can't be read: {error.strerror or error}",
                "It knows which runs are not finished.",
                "Give the user of the controller access to it, or name another one.",
            ) from error
        found = []
        for name in names:
            place = Directory(os.path.join(base, name))
            if not os.path.isfile(os.path.join(place.path, RUN)):
                continue
            try:
                run = place.run()
                if run is not None and (run.run_id == asked.run_id or set(run.order) & set(asked.hosts)):
                    found.append(Known(run, place.hosts()))
            except RecordError as error:
                if name == asked.run_id:
                    raise
                self.warnings.append(f"{error} It is not looked at.")
        return found

    def _fence(self, told: Mapping[str, Any]) -> Tuple[Directory, Attempt]:
        """Where to write, and what a later attempt is told apart by."""
        nobody = record.Controller("", "", 0, 0, "")
        fence = Attempt(int(told["attempt"]), int(told["slice"]), nobody, 0, ())
        return Directory(str(told["directory"])), fence

    def _open(self, told: Mapping[str, Any]) -> Tuple[Directory, Run, Attempt]:
        place, fence = self._fence(told)
        run = place.run()
        mine: Optional[Attempt] = None
        if run is not None:
            mine = next((a for a in run.attempts if (a.attempt, a.slice) == (fence.attempt, fence.slice)), None)
        if run is None or mine is None:
            raise Refused(
                place.path,
                "it does not know this attempt any more",
                "What happens to hosts is recorded before it happens.",
                f"Somebody has removed it. Run {words.again(os.path.basename(place.path))}.",
            )
        return place, run, mine

    def _silent(self, host: Host) -> Host:
        after = record.silent(host, f"no word since {words.where(host)}")
        return replace(after, next=words.of_host(after))

    def _notify(self, command: Any, what: str, run: Run, hosts: Mapping[str, Host], report: str) -> None:
        warning = notify([str(word) for word in command], reporting.event(what, run, hosts, report))
        if warning:
            self.warnings.append(warning)

    def _notify_from(self, place: Directory, told: Mapping[str, Any], what: str) -> None:
        run = place.run()
        if run is not None:
            self._notify(told["notify"], what, run, place.hosts(), os.path.join(place.path, "report.html"))


def made_up(now: float) -> str:
    """A run id, such as 20261130T020145-7f3a9c; UTC."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}"


def plain(value: Any) -> Any:
    """Without what Ansible wraps values into."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


class Overtaken(Refused):
    """Another command has begun an attempt over `slice` since the record was read."""

    def __init__(self, run_id: str, slice: int) -> None:
        super().__init__(
            f"run {run_id}",
            "another command has begun to work on it at this moment",
            "Two playbooks that drive the same hosts would undo each other's work.",
            "Wait for it, and run this again.",
        )
        self.slice = slice


def _begun(begun: state.Begun, before: Optional[Run]) -> Run:
    """Under the lock of the record: another command may have begun meanwhile."""
    seen = {(one.attempt, one.slice) for one in begun.run.attempts if one != begun.attempt}
    new = {one.slice for one in (before.attempts if before else ()) if (one.attempt, one.slice) not in seen}
    if new:
        raise Overtaken(begun.run.run_id, begun.attempt.slice if begun.attempt.slice in new else min(new))
    return begun.run
