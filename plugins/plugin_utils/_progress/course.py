# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a drain has come, from the results of its tasks as they arrive. Pure: times are seconds of any one clock,
sizes bytes.

What a node returned is believed where it is a known phase or a number, and is otherwise as if it had not been said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import batches, record

_MODES: Tuple[str, ...] = (record.CAPABILITY["disk"], record.CAPABILITY["memory"])
#: From here on the processes of a host do not run until they are brought back.
_AWAY = frozenset((record.SUSPENDED, record.MAINTENANCE, record.RESTORING))
_BACK = frozenset((record.RESTORED, record.RELEASED))


@dataclass(frozen=True)
class Need:
    """What a host was said to have before it was suspended: bytes of GPU memory, and seconds there and back without the
    maintenance. None: not known."""

    size: Optional[int] = None
    seconds: Optional[float] = None


@dataclass
class Host:
    """processes: how many it has or had on its GPUs; None until it was looked at. before: an earlier attempt of the run
    has finished it."""

    phase: str = ""
    processes: Optional[int] = None
    need: Need = field(default_factory=Need)
    failed: bool = False
    before: bool = False

    @property
    def size(self) -> Optional[int]:
        return self.need.size

    @property
    def finished(self) -> bool:
        return self.before or (self.phase == record.RELEASED and not self.failed)


@dataclass(frozen=True)
class Left:
    """How long it still takes. seconds None: nothing is known. least: it takes at least so long; what is missing in it
    is `why`."""

    seconds: Optional[float]
    least: bool = False
    why: str = ""


@dataclass
class _Batch:
    hosts: Tuple[str, ...]
    began: float
    ended: Optional[float] = None


class Course:
    """One playbook. planned: by host, from the plan that was made before; it may be empty."""

    def __init__(self, planned: Optional[Mapping[str, Need]] = None) -> None:
        self.planned = dict(planned or {})
        self.run_id = ""
        self.hosts: Dict[str, Host] = {}
        self._foreseen: List[Tuple[str, ...]] = []
        self._batches: List[_Batch] = []

    @property
    def batch(self) -> int:
        """From 1; 0 before the first."""
        return len(self._batches)

    @property
    def batches(self) -> int:
        """How many there will be; 0 where that is not known."""
        return max(len(self._foreseen), len(self._batches)) if self._foreseen else 0

    def begin(self, told: Mapping[str, Any]) -> None:
        """The run has begun: what drain_run returned."""
        order, finished = _names(told.get("order")), _names(told.get("finished_hosts"))
        self.run_id = str(told.get("run_id") or "")
        for name in order:
            self._host(name)
        for name in finished:
            self._host(name).before = True
        try:
            self._foreseen = list(batches.batches(order, told.get("serial")))
        except (ValueError, TypeError):
            self._foreseen = []

    def begin_batch(self, at: float) -> None:
        self.end_batch(at)
        number = len(self._batches)
        self._batches.append(_Batch(self._foreseen[number] if number < len(self._foreseen) else (), at))

    def end_batch(self, at: float) -> None:
        if self._batches and self._batches[-1].ended is None:
            self._batches[-1].ended = at

    def looked(self, name: str, told: Mapping[str, Any]) -> None:
        """What gpu_preflight returned of a host."""
        estimate = told.get("estimate")
        if not isinstance(estimate, Mapping):
            return
        host = self._host(name)
        total = estimate.get("total_seconds")
        times = total if isinstance(total, Mapping) else {}
        capabilities = told.get("capabilities")
        wanted = capabilities if isinstance(capabilities, Mapping) else {}
        seconds = None
        for mode in _MODES:
            asked = wanted.get(mode)
            if isinstance(asked, Mapping) and asked.get("required") is True:
                seconds = _number(times.get(mode))
                break
        size = _number(estimate.get("device_bytes"))
        host.need = Need(host.size if size is None else int(size), host.need.seconds if seconds is None else seconds)
        if isinstance(told.get("processes"), (list, tuple)):
            host.processes = len(told["processes"])

    def reached(self, name: str, told: Mapping[str, Any]) -> bool:
        """What gpu_drain returned of a host. False: it says nothing new."""
        phase = told.get("phase")
        if not isinstance(phase, str) or phase not in record.PHASES:
            return False
        host = self._host(name)
        processes = told.get("processes")
        if isinstance(processes, (list, tuple)) and processes:
            host.processes = len(processes)
            sizes = [_number(one.get("device_bytes")) if isinstance(one, Mapping) else None for one in processes]
            if all(size is not None for size in sizes):
                host.need = Need(int(sum(size or 0 for size in sizes)), host.need.seconds)
        if host.phase == phase:
            return False
        host.phase = phase
        return True

    def failed(self, name: str) -> bool:
        """False: it was known."""
        host = self._host(name)
        before, host.failed = host.failed, True
        return not before

    def counts(self) -> Dict[str, int]:
        """Of all hosts: finished, failed, undone (put back as they were), untouched; else by phase."""
        found: Dict[str, int] = {}
        for host in self.hosts.values():
            if host.finished:
                key = record.FINISHED
            elif host.phase == record.UNDONE_PHASE:
                key = record.UNDONE
            elif host.failed:
                key = record.FAILED
            else:
                key = host.phase or record.UNTOUCHED
            found[key] = found.get(key, 0) + 1
        return found

    def sizes(self) -> Tuple[int, int, int]:
        """Bytes of GPU memory: of processes that are suspended now, of those that were brought back, and of all that
        are known."""
        away = sum(host.size or 0 for host in self.hosts.values() if host.phase in _AWAY)
        back = sum(host.size or 0 for host in self.hosts.values() if host.phase in _BACK)
        return away, back, sum(host.size or 0 for host in self.hosts.values())

    @property
    def unknown(self) -> int:
        """How many hosts of this run nobody has looked at yet."""
        return sum(host.size is None and not host.before for host in self.hosts.values())

    def left(self, now: float) -> Left:
        """From the batches that are over: what each took beyond the estimate of its slowest host, or, where a host has
        no estimate, as long as they took. Before the first is over nothing but the estimates is known, and they are
        without the maintenance."""
        if not self._foreseen:
            return Left(None, why="how many hosts there are is not known")
        if not self._batches:
            return self._least(self._foreseen, "nothing was done yet; without the maintenance")
        over = [batch for batch in self._batches if batch.ended is not None and batch.hosts]
        current = self._batches[-1] if self._batches[-1].ended is None else None
        rest = self._foreseen[len(self._batches) :]
        if not over:
            hosts = (current.hosts if current else (), *rest)
            return self._least(hosts, "no batch is over yet; without the maintenance")
        spent = sum(self._expected(names, over) for names in rest)
        if current is not None:
            spent += max(self._expected(current.hosts, over) - (now - current.began), 0.0)
        return Left(spent)

    def _least(self, hosts: Sequence[Tuple[str, ...]], why: str) -> Left:
        known = [self._slowest(names) for names in hosts if names]
        if not known or all(seconds is None for seconds in known):
            return Left(None, why=why)
        return Left(sum(seconds or 0.0 for seconds in known), True, why)

    def _expected(self, names: Tuple[str, ...], over: Sequence[_Batch]) -> float:
        took = [(batch.ended or batch.began) - batch.began for batch in over]
        slowest = self._slowest(names)
        before = [self._slowest(batch.hosts) for batch in over]
        if slowest is None or any(seconds is None for seconds in before):
            return sum(took) / len(took)
        beyond = [max(seconds - (own or 0.0), 0.0) for seconds, own in zip(took, before)]
        return slowest + sum(beyond) / len(beyond)

    def _slowest(self, names: Tuple[str, ...]) -> Optional[float]:
        """None if one of them has no estimate."""
        found = [self._host(name).need.seconds for name in names]
        known = [seconds for seconds in found if seconds is not None]
        return max(known) if known and len(known) == len(found) else None

    def _host(self, name: str) -> Host:
        if name not in self.hosts:
            self.hosts[name] = Host(need=self.planned.get(name, Need()))
        return self.hosts[name]


def planned(made: Any) -> Dict[str, Need]:
    """From the JSON that `plan` writes. Raises ValueError for something else."""
    hosts = made.get("hosts") if isinstance(made, Mapping) else None
    if not isinstance(hosts, list) or not all(isinstance(host, Mapping) and host.get("host") for host in hosts):
        raise ValueError("it has no list of hosts")
    found: Dict[str, Need] = {}
    for host in hosts:
        size, seconds = _number(host.get("bytes")), _number(host.get("seconds"))
        found[str(host["host"])] = Need(None if size is None else int(size), seconds)
    return found


def _names(told: Any) -> Tuple[str, ...]:
    return tuple(str(name) for name in told) if isinstance(told, (list, tuple)) else ()


def _number(told: Any) -> Optional[float]:
    """Of a node: anything else than a sane number is not known."""
    if isinstance(told, bool) or not isinstance(told, (int, float)):
        return None
    return told if 0 <= told < 1 << 60 else None
