# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `scontrol -o show node` says of all nodes, for an inventory. Pure."""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._slurm import SlurmError, check_name, parse_node
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines, natural

#: What may be handed to SSH as a host: never an option of it.
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:-]*\Z")
#: Of one device: `gpu:8`, `gpu:h100:8(S:0-1)`. Fields whose text is anybody's come later in the line.
_GPU = re.compile(r"gpu(?::([^:(,]+))??(?::([0-9]+))?(?:\(.*\))?\Z")
_FREE = re.compile(r"\s(?:Reason|Comment|Extra)=")
_KERNEL = re.compile(r"\sOS=")
_NONE = ("", "(null)", "N/A")


class Node(NamedTuple):
    """gpus: by their model, "" where Slurm was not told of one. state: its parts, in small letters."""

    name: str
    address: str
    state: Tuple[str, ...]
    partitions: Tuple[str, ...]
    features: Tuple[str, ...]
    gpus: Dict[str, int]
    reason: str

    def variables(self) -> Dict[str, Any]:
        found: Dict[str, Any] = {
            "slurm_state": list(self.state),
            "slurm_partitions": list(self.partitions),
            "slurm_features": list(self.features),
            "slurm_gpus": sum(self.gpus.values()),
            "slurm_gpu_models": sorted(model for model in self.gpus if model),
            "slurm_reason": self.reason,
        }
        return {**found, "ansible_host": self.address} if self.address != self.name else found


def parse(text: str) -> Tuple[List[Node], List[str]]:
    """The nodes, and what is to be told of lines that are none, or of names that can't be those of a host."""
    nodes, problems = [], []
    for line in lines(text):
        if not line.strip():
            continue
        try:
            nodes.append(_node(line))
        except SlurmError as error:
            problems.append(str(error))
    return nodes, problems


def _node(line: str) -> Node:
    seen = parse_node(line)
    check_name(seen.name)
    before = _KERNEL.split(line, maxsplit=1)[0]
    address = _field(before, "NodeAddr")
    if address and not _ADDRESS.match(address):
        raise SlurmError(f"node {seen.name}: its NodeAddr {address[:80]!r} is no address. Correct it in slurm.conf.")
    return Node(
        name=seen.name,
        address=address or seen.name,
        state=tuple(sorted(flag.lower() for flag in seen.flags if flag)),
        partitions=_several(_field(line, "Partitions")),
        features=_several(_field(before, "ActiveFeatures")),
        gpus=_gpus(_field(before, "Gres")),
        reason=seen.reason,
    )


def _field(line: str, name: str) -> str:
    """Empty for one that is not there, or says that it is nothing. The last one counts: what a node says of its kernel
    (OS) may look like fields, and stands before what is read from behind it."""
    free = _FREE.search(line)
    found = re.findall(rf"\s{name}=(\S*)", line[: free.start()] if free else line)
    return "" if not found or found[-1] in _NONE else str(found[-1])


def _several(text: str) -> Tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _gpus(text: str) -> Dict[str, int]:
    found: Dict[str, int] = {}
    # A comma also stands between the sockets in brackets.
    for part in re.split(r",(?![^(]*\))", text):
        match = _GPU.match(part)
        if match is not None:
            count = natural(match.group(2)) if match.group(2) else 1
            model = match.group(1) or ""
            found[model] = found.get(model, 0) + (count or 0)
    return {model: count for model, count in found.items() if count}
