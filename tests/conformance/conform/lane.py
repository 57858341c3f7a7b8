# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One lane: plays every n-th random sequence on workloads of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

from . import backend, host, proc
from .context import MARK, Context
from .onecase import OutOfTime, _stop, become_subreaper, end_with
from .options import Options
from .sequences import Step, generate
from .workload import Process, Workload


def _word(result: Any) -> str:
    if not isinstance(result, dict):
        return str(result)
    text = f"rc {result['rc']}"
    for key in ("out", "err"):
        if key in result:
            text += f" {result[key] if isinstance(result[key], str) else json.dumps(result[key])}"
    return text.replace("; ", ", ").replace("\n", " | ")


class Lane:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.targets: Dict[str, Process] = {}
        self.serial = 0

    def prepare(self) -> None:
        """Workloads that are alive and known; a broken one is replaced."""
        for name in ("a", "b"):
            if name in self.targets:
                continue
            self.serial += 1
            one = self.context.workload(name, mib=self.context.size.sequence, file=f"{name}{self.serial}")
            self.context.remember_sum(one)
            self.targets[name] = one
            if name == "a":
                # Of all its threads the restore thread is the one that is sure to live on.
                self.targets["a.thread"] = Process("a.thread", self.context.restore_tid(one))
                self.context.names.add_pid(self.targets["a.thread"].pid, "a.thread")
        if "plain" not in self.targets:
            self.targets["plain"] = self.context.other("plain", ["sleep", "1000000"])
            gone = self.context.other("dead", ["true"])
            self.context.gone(gone)
            self.targets["dead"] = gone

    def drop(self, name: str) -> None:
        one = self.targets.pop(name, None)
        if one is not None:
            one.signal(signal.SIGCONT)
            one.signal(signal.SIGKILL)
            one.wait_death(20)
            one.reap()

    def play(self, steps: List[Step]) -> str:
        words = [self._step(step) for step in steps]
        for name in ("a", "b"):
            words.append(self._home(name))
        return "; ".join(words)

    def _step(self, step: Step) -> str:
        target = self.targets[step.who]
        if step.op == "stop":
            target.signal(signal.SIGSTOP)
            end = time.monotonic() + 5
            while proc.state_of(target.pid) != "T" and time.monotonic() < end:
                time.sleep(0.001)
            return f"{step.text} {proc.snapshot(target.pid).run_class}"
        if step.op == "cont":
            target.signal(signal.SIGCONT)
            return step.text
        if step.op == "sum":
            assert isinstance(target, Workload)
            state = self.context.state(target)
            if state != "running":
                return f"{step.text} not asked: {state}"
            now = target.checksum(self.context.size.patience)
            return f"{step.text} {'equal' if now == target.sum else 'DIFFERENT' if now else 'none'}"
        how: Dict[str, Any] = {"args": step.args}
        if step.timeout_ms >= 0:
            how["timeout_ms"] = step.timeout_ms
        pending = self.context.begin(step.op, target, **how)
        reply = pending.wait(self.context.size.patience)
        if reply is None:
            self.context.loose.append(pending)
            return f"{step.text}={'no answer'}"
        named = self.targets["a"] if step.who == "a.thread" else target
        result = _word(self.context.result_of(step.op, named, reply))
        if step.op in ("state", "tid"):
            return f"{step.text}={result}"
        return f"{step.text}={result} {self.context.state(target)}"

    def _home(self, name: str) -> str:
        """Bring it to running by the state that is read, and compare its memory."""
        one = self.targets[name]
        assert isinstance(one, Workload)
        state = self.context.state(one)
        path = {"checkpointed": ["restore", "unlock"], "locked": ["unlock"], "running": []}.get(state)
        if path is None:
            how = one.death()
            self.drop(name)
            return f"end {name} {state}: {how}"
        for op in path:
            reply = self.context.begin(op, one).wait(self.context.size.patience)
            if reply is None or not reply.ok:
                self.drop(name)
                return f"end {name} {state}: {op} failed"
        now = one.checksum(self.context.size.patience)
        if now != one.sum:
            self.drop(name)
            return f"end {name} {state}: checksum {'DIFFERENT' if now else 'none'}"
        return f"end {name} {state}: {self.context.state(one)}, checksum equal"


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    os.umask(0o022)
    become_subreaper()
    signal.signal(signal.SIGTERM, _stop)
    end_with(spec["runner"])
    options = Options.from_json(spec["options"])
    driver = backend.make(spec["backend"], options.libcuda, options.cli)
    work = Path(spec["work"])
    work.mkdir(parents=True)
    context = Context("sequences", driver, options, host.from_json(spec["host"]), work, os.environ[MARK])
    lane = Lane(context)
    try:
        with open(spec["result"], "a") as result:
            for index in spec["indices"]:
                lane.prepare()
                try:
                    line = lane.play(generate(spec["seed"], index, driver.name))
                except Exception as error:  # the next sequence starts afresh
                    line = f"error: {type(error).__name__}: {error} at {context.step}"
                    for name in ("a", "b"):
                        lane.drop(name)
                result.write(json.dumps([index, line]) + "\n")
                result.flush()
    except OutOfTime:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for complaint in context.close():
            print(f"sequences: left behind: {complaint}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
