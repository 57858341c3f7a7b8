# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CRIU's options: what the operator gave, and what a tree needs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import AbstractSet, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

AUTO, YES, NO = "auto", "yes", "no"
TCP = "--tcp-established"
SHELL_JOB = "--shell-job"
#: Options that are on or off: their words for CRIU, and the hazard whose consent turns "auto" into "yes".
SWITCHES: Mapping[str, Tuple[str, str]] = {
    "tcp_established": (TCP, "tcp_established"),
    "shell_job": (SHELL_JOB, "controlling_tty"),
    "file_locks": ("--file-locks", "file_lock"),
    "link_remap": ("--link-remap", "deleted_file"),
    "ext_unix_sk": ("--ext-unix-sk", "external_unix_socket"),
}
CGROUPS = ("ignore", "none", "props", "soft", "full", "strict")
MIB = 1 << 20
GIB = 1 << 30
MOST_GHOST_BYTES = 1 << 40
MOST_SECONDS = 86400
#: CRIU's 10 s are for stopping every thread: too short for hundreds of them, or for one that is swapped out.
LEAST_SECONDS = 60
_SIZE = re.compile(r"([0-9]{1,15})([KMG]?)\Z", re.IGNORECASE)
_EXTERNAL = re.compile(r"(?:tty|file|dev|unix|mnt|net|netdev|veth|macvlan|pid|mac)\[[^\[\]]*\](?::.+)?\Z")


@dataclass(frozen=True)
class CriuOptions:
    """As the operator gave them. "auto", "yes" or "no" for the switches.

    ghost_limit: bytes, None for what the tree needs. timeout: seconds, 0 for what the tree needs.
    """

    tcp_established: str = AUTO
    shell_job: str = AUTO
    file_locks: str = AUTO
    link_remap: str = AUTO
    ext_unix_sk: str = AUTO
    ghost_limit: Optional[int] = None
    manage_cgroups: str = "ignore"
    external: Tuple[str, ...] = ()
    timeout: int = 0


@dataclass(frozen=True)
class Chosen:
    """arguments: for CRIU's command line. reasons: a text for each that evidence or consent has decided."""

    arguments: Tuple[str, ...]
    reasons: Tuple[str, ...] = ()

    @property
    def must_kill(self) -> bool:
        """CRIU itself has to end the tree with the dump: connections that are in the image would be reset, and be lost
        for their peers, by whoever else ends it."""
        return TCP in self.arguments


def parse(raw: Mapping[str, Any]) -> CriuOptions:
    """Raises ArgumentError. A name that is missing has its default."""
    default = CriuOptions()
    switches = {name: _switch(name, raw.get(name)) for name in SWITCHES}
    cgroups = raw.get("manage_cgroups") or default.manage_cgroups
    if cgroups not in CGROUPS:
        raise ArgumentError("manage_cgroups", repr(cgroups), f"One of {', '.join(CGROUPS)} is allowed.")
    external = raw.get("external") or ()
    if isinstance(external, str) or not isinstance(external, Sequence):
        raise ArgumentError("external", repr(external), "A list is allowed.")
    return CriuOptions(
        ghost_limit=_size(raw.get("ghost_limit")),
        manage_cgroups=cgroups,
        external=tuple(_external(index, one) for index, one in enumerate(external)),
        timeout=_timeout(raw.get("timeout")),
        **switches,
    )


def _switch(name: str, value: Any) -> str:
    if isinstance(value, bool):  # YAML's yes
        return YES if value else NO
    if value is None:
        return AUTO
    if value not in (AUTO, YES, NO):
        raise ArgumentError(name, repr(value), "auto, yes or no is allowed.")
    return str(value)


def _size(value: Any) -> Optional[int]:
    if value is None or value == "":
        return None
    found = None if isinstance(value, bool) else _SIZE.match(str(value))
    if not found:
        raise ArgumentError(
            "ghost_limit", repr(value), "A number of bytes, or one with K, M or G behind it, is allowed."
        )
    size = int(found.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[found.group(2).upper()]
    if size > MOST_GHOST_BYTES:
        raise ArgumentError("ghost_limit", repr(value), f"At most {MOST_GHOST_BYTES >> 30}G is allowed.")
    return size


def _external(index: int, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not _EXTERNAL.match(value):
        raise ArgumentError(
            f"external[{index}]",
            repr(value),
            "CRIU knows the forms tty[...], file[...], unix[...], dev[...]:NAME, mnt[...]:NAME, net[...]:NAME, "
            "netdev[...]:NAME, veth[...]:NAME, macvlan[...]:NAME and pid[...]:NAME.",
        )
    return value


def _timeout(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_SECONDS:
        raise ArgumentError("timeout", repr(value), f"0 (what the tree needs) to {MOST_SECONDS} seconds are allowed.")
    return value


def choose(options: CriuOptions, tree: Tree, allow: AbstractSet[str] = frozenset()) -> Chosen:
    """For a dump. allow: hazards that the operator consents to."""
    wanted = _given(options)
    arguments: List[str] = []
    reasons: List[str] = []
    for name, (word, hazard) in SWITCHES.items():
        why = ""
        if wanted[name] == AUTO:
            why = f"allow names {hazard}" if hazard in allow else _evidence(name, tree)
        if wanted[name] == YES or why:
            arguments.append(word)
        if why:
            reasons.append(f"{word}: {why}")
    limit, why = _ghosts(options, tree, "deleted_file" in allow)
    if limit:
        arguments.append(f"--ghost-limit={limit}")
    if why:
        reasons.append(f"--ghost-limit={limit}: {why}")
    arguments.append(f"--manage-cgroups={options.manage_cgroups}")
    arguments.append(f"--timeout={options.timeout or _seconds(tree)}")
    for external in options.external:
        arguments += ["--external", external]
    return Chosen(tuple(arguments), tuple(reasons))


def _given(options: CriuOptions) -> Dict[str, str]:
    return {name: str(getattr(options, name)) for name in SWITCHES}


def _evidence(option: str, tree: Tree) -> str:
    """Why the tree needs it, "" where it doesn't."""
    root = tree.root
    if option == "shell_job" and root.session != root.pid:
        name = printable(root.name)
        return f"PID {root.pid} ({name}) does not lead its session; PID {root.session} does, outside of its tree"
    return ""


def _ghosts(options: CriuOptions, tree: Tree, consent: bool) -> Tuple[int, str]:
    """The limit, 0 for CRIU's own, and why."""
    if options.ghost_limit is not None:
        return options.ghost_limit, ""
    largest = max((one.size for member in tree.members for one in member.files if one.deleted), default=0)
    if not consent:
        return 0, ""
    # Mapped files without a name are not among those that are open: there is room for them, too.
    limit = min(max(GIB, -(-largest // MIB) * MIB + MIB), MOST_GHOST_BYTES)
    return limit, f"allow names deleted_file, and the largest that is open has {largest} bytes"


def _seconds(tree: Tree) -> int:
    threads = sum(len(member.threads) for member in tree.members)
    held = sum(member.rss_anon_bytes for member in tree.members)
    return min(MOST_SECONDS, LEAST_SECONDS + threads // 50 + held // GIB)


def again(arguments: Sequence[str], options: CriuOptions) -> Chosen:
    """For the restore of what was dumped with these arguments, which come from the manifest: only what is known here
    passes. What the operator says now counts more. externals have another form at restore, so they are never taken on.
    """
    wanted = _given(options)
    chosen = []
    reasons = []
    for name, (word, _hazard) in SWITCHES.items():
        recorded = word in arguments
        if wanted[name] == YES or (wanted[name] == AUTO and recorded):
            chosen.append(word)
        if wanted[name] == AUTO and recorded:
            reasons.append(f"{word}: it was dumped with it")
    chosen.append(f"--manage-cgroups={options.manage_cgroups}")
    if options.timeout:
        chosen.append(f"--timeout={options.timeout}")
    for external in options.external:
        chosen += ["--external", external]
    return Chosen(tuple(chosen), tuple(reasons))
