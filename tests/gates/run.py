# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs gates, each a make target, in lanes side by side; prints the whole output of each as it ends, and a summary.

usage: run.py LANE...      LANE is a comma-separated list of make targets that run one after another
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "logs"
# A gate that hangs must not hang CI; make passes SIGTERM on, and what cleans up after itself gets the time for it.
LIMIT_SECONDS = 55 * 60
GRACE_SECONDS = 120


@dataclass(frozen=True)
class Outcome:
    name: str
    seconds: float
    reason: str

    @property
    def passed(self) -> bool:
        return not self.reason


def make(name: str) -> list[str]:
    return ["make", "--no-print-directory", name]


def summary(outcomes: list[Outcome]) -> str:
    """The last line has the form that CI systems know from test runners."""
    width = max(len(outcome.name) for outcome in outcomes)
    lines = [
        f"  {outcome.name:<{width}}  {outcome.seconds:6.0f} s  {outcome.reason or 'passed'}" for outcome in outcomes
    ]
    failed = sum(not outcome.passed for outcome in outcomes)
    return "\n".join(["gates", *lines, f"{len(outcomes) - failed} passed, {failed} failed"])


class Gates:
    """Output of two gates is never mixed: a gate's lines are printed together when it ends."""

    def __init__(
        self,
        lanes: list[list[str]],
        logs: Path = LOGS,
        command: Callable[[str], list[str]] = make,
        limit: float = LIMIT_SECONDS,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self.lanes = lanes
        self.logs = logs
        self.command = command
        self.limit = limit
        self.grace = grace
        self._lock = threading.Lock()
        self._outcomes: dict[str, Outcome] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self) -> list[Outcome]:
        self.logs.mkdir(parents=True, exist_ok=True)
        threads = [threading.Thread(target=self._run_lane, args=(lane,)) for lane in self.lanes]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self.stop()
            raise
        return [self._outcomes[name] for lane in self.lanes for name in lane if name in self._outcomes]

    def stop(self) -> None:
        """Ends what runs and starts nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def _run_lane(self, lane: list[str]) -> None:
        for name in lane:
            log = self.logs / f"{name}.log"
            self._print(f"gate {name}: started; its output is in {log} until it ends")
            start = time.monotonic()
            reason = self._run_gate(name, log)
            self._outcomes[name] = Outcome(name, time.monotonic() - start, reason)
            text = log.read_text(errors="replace").rstrip()
            self._print(f"===== gate {name}\n{text}\n===== gate {name}: {reason or 'passed'}")

    def _run_gate(self, name: str, log: Path) -> str:
        with log.open("wb") as output:
            with self._lock:
                if self._stopped:
                    return "not run: interrupted"
                process = subprocess.Popen(
                    self.command(name), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
                self._running.add(process)
            try:
                status = process.wait(self.limit)
                return f"exit status {status}" if status else ""
            except subprocess.TimeoutExpired:
                return f"still running after {self.limit:g} s, so it was ended"
            finally:
                self._end(process)
                with self._lock:
                    self._running.discard(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(self.grace)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _print(self, text: str) -> None:
        with self._lock:
            print(text, flush=True)


def main(arguments: list[str]) -> int:
    lanes = [argument.split(",") for argument in arguments]
    if not lanes or not all(name for lane in lanes for name in lane):
        print(__doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcomes = Gates(lanes).run()
    except KeyboardInterrupt:
        print("interrupted; what ran is cleaning up", file=sys.stderr, flush=True)
        return 130
    print(summary(outcomes), flush=True)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
