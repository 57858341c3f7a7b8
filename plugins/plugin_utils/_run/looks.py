# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What drain_run does for plan, status and recover: reads what the tasks before it saw on each host, and tells it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import (
    answers,
    controller,
    hooks,
    look,
    plan,
    record,
    reporting,
    state,
    words,
)
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.directory import Directory
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.events import (
    Arguments,
    Surroundings,
    Told,
    plain,
)
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Host, RecordError, Run

_LIFE = {True: "alive here", False: "dead", None: "elsewhere"}


class Looks:
    """One task. warnings: to be shown to the operator."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.warnings: List[str] = []
        self.now = time.time()

    def plan(self, arguments: Arguments) -> Told:
        settings = plain(arguments["settings"])
        results: Dict[str, Mapping[str, Any]] = {}
        for name in self.around.hosts:
            told = self._of(name, "gpu_drain_looked")
            results[name] = _planned(name, told) if told else {"unreachable": True}
        try:
            made = plan.plan(results, settings.get("serial"))
        except ValueError:
            raise state.Refused(
                "gpu_drain_serial",
                f"{words.setting(settings.get('serial'))} is not understood",
                "Batches are made of numbers of hosts and percentages.",
                'Give for example [1, "10%"].',
            ) from None
        path = str(settings.get("plan_file") or "")
        text = plan.table(made)
        if path and not self.around.check:
            path = os.path.abspath(os.path.expanduser(path))
            try:
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(json.dumps(made, indent=1) + "\n")
            except OSError as error:
                raise state.Refused(
                    "gpu_drain_plan_file",
                    f"{path} can't be written: {error.strerror or error}",
                    "The plan was asked for there.",
                    "Give a path that the user of the controller can write.",
                ) from error
            text = f"{text}\n\nAs JSON: {path}"
        return {"msg": text, "plan": made}

    def status(self, arguments: Arguments) -> Told:
        settings = plain(arguments["settings"])
        seen = {name: self._of(name, "gpu_drain_seen") for name in self.around.hosts}
        hosts: Dict[str, Any] = {}
        totals: Dict[str, int] = {}
        lines = []
        for name, told in seen.items():
            unusable = _unusable(name, told)
            if told is None or "drain" not in told or unusable:
                why = "" if told is None else f": {unusable or told.get('msg', '')}"
                line, phase = f"{name} gave no answer{why}", "no answer"
            else:
                row = look.open_row(told)
                line, phase = look.status(name, told, _life(row)), str(row.get("phase") or "no drain")
            totals[phase] = totals.get(phase, 0) + 1
            hosts[name] = {"line": line, "phase": phase, "seen": told}
            lines.append(line)
        usable = {name: told for name, told in seen.items() if told and "drain" in told and not _unusable(name, told)}
        pages = self._rebuild(settings, usable)
        lines.append(
            f"{words.plural(len(seen), 'host')}: " + ", ".join(f"{count} {phase}" for phase, count in totals.items())
        )
        lines += [f"Report: {page}" for page in pages]
        return {"msg": "\n".join(lines), "hosts": hosts, "totals": totals, "report": pages[-1] if pages else None}

    def recover(self, arguments: Arguments) -> Told:
        settings = plain(arguments["settings"])
        files = hooks.resolve({name: self._wanted(name) for name in self.around.hosts}, os.getcwd())
        hosts: Dict[str, Any] = {}
        lines = []
        for name in self.around.hosts:
            told = self._of(name, "gpu_drain_seen")
            unusable = _unusable(name, told)
            if told is None or "drain" not in told or unusable:
                why = "it gave no answer" if told is None else unusable or str(told.get("msg", "it gave no answer"))
                hosts[name] = {"do": look.REPORT, "why": why, "run": {}}
            else:
                row = look.open_row(told)
                decision = look.recover(
                    told,
                    _life(row),
                    str(settings.get("run_id") or ""),
                    str(settings.get("take_over") or ""),
                    bool(self._wanted(name).get("maintenance_done")),
                )
                hosts[name] = {"do": decision.do, "why": decision.why, "run": self._run(settings, row, files)}
            lines.append(f"{name}: {hosts[name]['do']}: {hosts[name]['why']}")
        return {"msg": "\n".join(lines), "hosts": hosts}

    def _run(self, settings: Mapping[str, Any], row: Mapping[str, Any], files: Mapping[str, str]) -> Told:
        """What the task files of a drain take for their run. Without a record of it nothing is written down here."""
        run_id = str(row.get("run_id") or "")
        place = Directory(os.path.join(_base(settings), run_id))
        run = self._record(place) if run_id else None
        last = max((one.attempt for one in run.attempts), default=1) if run else 1
        return {
            "run_id": run_id,
            "attempt": last,
            "claim_attempt": 0,
            "slice": 1,
            "controller": controller.text(controller.of_parent(self.around.parent)),
            "directory": place.path if run else "",
            "hooks": dict(files),
            "notify": [],
        }

    def _rebuild(self, settings: Mapping[str, Any], seen: Mapping[str, Mapping[str, Any]]) -> List[str]:
        """The records of the runs that hosts know, from the hosts. A run that is at work writes them itself."""
        wanted = str(settings.get("run_id") or "")
        runs: Dict[str, List[str]] = {}
        for name, told in seen.items():
            row = told.get("drain") or {}
            if row.get("kind") == "drain" and row.get("run_id") and wanted in ("", row["run_id"]):
                runs.setdefault(str(row["run_id"]), []).append(name)
        pages = []
        for run_id, names in sorted(runs.items()):
            place = Directory(os.path.join(_base(settings), run_id))
            run = self._record(place)
            if run is None and not settings.get("given"):
                continue
            if self.around.check:
                continue
            place.create()
            if run is None:
                run = self._remade(place, run_id, {name: seen[name] for name in names})
            if not any(controller.alive(one.controller) for one in run.current()):
                for name in names:
                    place.change_host(name, _from(run_id, name, seen[name]))
            pages.append(reporting.write(place, self.now))
        return [page for page in pages if page]

    def _remade(self, place: Directory, run_id: str, seen: Mapping[str, Mapping[str, Any]]) -> Run:
        """A run whose directory is gone, as far as its hosts know it."""
        created = min(float((told["drain"] or {}).get("opened") or self.now) for told in seen.values())
        return place.change_run(lambda old: old or Run(run_id, "drain", created, {"serial": []}, "", tuple(seen), ()))

    def _record(self, place: Directory) -> Optional[Run]:
        try:
            return place.run()
        except RecordError as error:
            self.warnings.append(str(error))
            return None

    def _of(self, name: str, key: str) -> Optional[Dict[str, Any]]:
        found = plain(self.around.hostvars[name].get(key))
        return dict(found) if found else None

    def _wanted(self, name: str) -> Mapping[str, Any]:
        found = self._of(name, "gpu_drain_wanted")
        return dict(found["host"]) if found else {"hooks": {}}


def _unusable(name: str, told: Optional[Mapping[str, Any]]) -> str:
    """What is wrong with an answer, "" for nothing."""
    try:
        if told is not None and "drain" in told:
            answers.check_seen(name, told)
    except answers.Unusable as error:
        return f"what it returned can't be used ({error})"
    return ""


def _planned(name: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, or in its place what is wrong with it."""
    try:
        answers.attempted(lambda: json.dumps(plan.table(plan.plan({name: told})), allow_nan=False))
    except answers.Unusable as error:
        return {"errors": [f"What it returned can't be used ({error})"]}
    return told


def _from(run_id: str, name: str, told: Mapping[str, Any]) -> Any:
    def change(before: Host) -> Host:
        after = record.rebuilt(run_id, name, told, before)
        return replace(after, next=words.of_host(after))

    return change


def _base(settings: Mapping[str, Any]) -> str:
    return os.path.abspath(os.path.expanduser(str(settings["run_directory"])))


def _life(row: Mapping[str, Any]) -> str:
    who = controller.parsed(str(row.get("controller") or ""))
    return _LIFE[controller.alive(who)] if who else ""
