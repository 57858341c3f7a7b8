# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which capabilities a host and its processes have, and what speaks against each. Pure.

The detectors over processes say for which actions they hold; a capability is the sum of the actions that it takes. An
action that no detector knows yet is left out, and used as soon as `_hazards` has it.
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import ACTIONS, LOCK, RESUME
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import SUSPEND as SUSPEND_ACTION
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import EXCLUSIVE
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import (
    CAPABILITIES,
    DUMP,
    MIGRATE,
    SUSPEND,
    Concern,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

DUMP_ACTION = "dump"
MIGRATE_ACTION = "migrate"

ACTIONS_OF: Mapping[str, Tuple[str, ...]] = {
    SUSPEND: (LOCK, SUSPEND_ACTION, RESUME),
    DUMP: (LOCK, SUSPEND_ACTION, RESUME, DUMP_ACTION),
    MIGRATE: (LOCK, SUSPEND_ACTION, RESUME, DUMP_ACTION, MIGRATE_ACTION),
}
#: Asked of processes that are suspended already; every other action but RESUME of those that are not; these of both.
OF_ALL = frozenset((DUMP_ACTION, MIGRATE_ACTION))


@dataclass(frozen=True)
class Capability:
    """ready: nothing blocks it. blocking, warnings: ids of findings, each once, in their order."""

    name: str
    required: bool
    ready: bool
    blocking: Tuple[str, ...]
    warnings: Tuple[str, ...]


def capabilities_of(action: str) -> FrozenSet[str]:
    return frozenset(name for name, actions in ACTIONS_OF.items() if action in actions)


def known_actions(known: FrozenSet[str] = ACTIONS) -> Tuple[str, ...]:
    """Those that the detectors over processes answer, out of ACTIONS_OF, in their order."""
    return tuple(action for action in ACTIONS_OF[MIGRATE] if action in known)


def ask(
    evaluate: Callable[[str, Sequence[int]], Iterable[Finding]],
    running: Sequence[int],
    suspended: Sequence[int],
    known: FrozenSet[str] = ACTIONS,
) -> List[Concern]:
    """What speaks against each action. evaluate: the detectors, of an action and PIDs. One finding about several
    actions is one concern. Of a process that can't be suspended at all, nothing is asked about its image."""
    found: Dict[Finding, FrozenSet[str]] = {}
    settled: Set[Optional[int]] = set()
    for action in known_actions(known):
        asked = [*running, *suspended] if action in OF_ALL else suspended if action == RESUME else running
        pids = [pid for pid in asked if action not in OF_ALL or pid not in settled]
        for finding in evaluate(action, pids) if pids else ():
            found[finding] = found.get(finding, frozenset()) | capabilities_of(action)
            if finding.id in EXCLUSIVE:
                settled.add(finding.pid)
    return [Concern(finding, capabilities) for finding, capabilities in found.items()]


def accept(concerns: Iterable[Concern], allow: FrozenSet[str]) -> List[Concern]:
    """What the operator consents to comes back as a warning."""
    return [
        Concern(one.finding.allowed(), one.capabilities) if one.finding.option and one.finding.option in allow else one
        for one in concerns
    ]


def _ids(concerns: Iterable[Concern]) -> Tuple[str, ...]:
    return tuple(dict.fromkeys(one.finding.id for one in concerns))


def decide(concerns: Sequence[Concern], required: Iterable[str]) -> Tuple[Capability, ...]:
    """All capabilities, in their order."""
    wanted = frozenset(required)
    found = []
    for name in CAPABILITIES:
        against = [one for one in concerns if name in one.capabilities]
        blocking = [one for one in against if one.finding.severity == BLOCKING]
        others = [one for one in against if one.finding.severity != BLOCKING]
        found.append(Capability(name, name in wanted, not blocking, _ids(blocking), _ids(others)))
    return tuple(found)


def failures(concerns: Sequence[Concern], required: Iterable[str], fail_on: str) -> Tuple[Concern, ...]:
    """What the run fails by. fail_on: "blocking", "warning" (either) or "never"."""
    if fail_on == "never":
        return ()
    wanted = frozenset(required)
    return tuple(
        one
        for one in concerns
        if one.capabilities & wanted and (fail_on == "warning" or one.finding.severity == BLOCKING)
    )


def message(failed: Sequence[Concern], required: Iterable[str], most: int = 20) -> str:
    """For the operator: what the host is not ready for, and why."""
    wanted = frozenset(required)
    hit = [name for name in CAPABILITIES if any(name in one.capabilities & wanted for one in failed)]
    texts = [one.finding.message() for one in failed[:most]]
    rest = len(failed) - most
    if rest > 0:
        texts.append(f"And {rest} more: see findings.")
    blocking = any(one.finding.severity == BLOCKING for one in failed)
    start = "Not ready for" if blocking else "Ready, but with warnings, for"
    return f"{start} {' and '.join(hit)}. " + " ".join(texts)
