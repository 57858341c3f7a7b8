# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A live NCCL communicator of more than one rank: the first rank that is suspended does not come back."""

from __future__ import annotations

from typing import List, Optional, Set

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    LOCK,
    SUSPEND,
    Context,
    ProcessHazard,
    comma,
    name_of,
    names_of,
    plural,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import natural

#: Below that, one end is a service's well-known port; NCCL takes ephemeral ones at both ends.
_EPHEMERAL = 32768
_THREADS = ("pt_nccl_watchdg", "pt_nccl_heartbt")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def communicator(process: ProcessSnapshot) -> List[str]:
    """What shows a communicator, of whatever size. That libnccl is mapped says nothing: PyTorch always maps it."""
    seen = []
    if any("tmp/nccl-socket-" in name for name in process.unix_names or ()):
        seen.append("a socket nccl-socket-*")
    if nccl_files(process):
        seen.append("/dev/shm/nccl-*")
    threads = sorted({thread.name for thread in process.threads if thread.name in _THREADS})
    if threads:
        seen.append(f"the thread {threads[0]}")
    return seen


def nccl_files(process: ProcessSnapshot) -> Set[str]:
    return {path.partition(" ")[0] for path in process.shm_files or () if path.startswith("/dev/shm/nccl-")}


def other_ranks(snapshot: Snapshot, process: ProcessSnapshot) -> List[str]:
    """What shows that the communicator has more than this one rank."""
    seen = []
    connected = [snapshot.process(pid) for pid in process.tcp_peers or ()]
    peers = [peer for peer in connected if peer is not None and peer.may_be_cuda]
    if peers:
        seen.append(f"TCP connections to {names_of(peers)}")
    own = nccl_files(process)
    sharing = [
        other
        for other in snapshot.processes
        if other.pid != process.pid and other.may_be_cuda and own & nccl_files(other)
    ]
    if sharing:
        seen.append(f"shared memory of NCCL with {names_of(sharing)}")
    remote = [one for one in process.tcp_remote or () if _both_ephemeral(one)]
    if remote:
        seen.append(f"{plural(len(remote), 'connection')} to other hosts ({comma((_end(one) for one in remote), 2)})")
    for name in _SIZES:
        value = (process.environment or {}).get(name, "")
        if (natural(value) or 0) > 1:
            seen.append(f"{name}={value}")
            break
    return seen


def _end(connection: str) -> str:
    return connection.partition(" ")[2]


def _both_ephemeral(connection: str) -> bool:
    local, _separator, end = connection.partition(" ")
    return min(int(local), int(end.rpartition(":")[2])) >= _EPHEMERAL


class NcclCommunicator(ProcessHazard):
    """Measured: conformance cases nccl/two-ranks (lost) and kind/nccl-one-rank (whole)."""

    id = "nccl_communicator"
    actions = frozenset((LOCK, SUSPEND))
    option = "nccl_communicator"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if process.looks_suspended:
            return None
        if process.unix_names is None or process.tcp_peers is None:
            evidence = "whether it has an NCCL communicator can't be seen: its sockets may not be read"
        else:
            seen = communicator(process)
            ranks = other_ranks(context.snapshot, process) if seen else []
            if not ranks:
                return None
            evidence = f"it is one of several NCCL ranks: {', '.join(seen)}; {', '.join(ranks)}"
        return self.finding(
            name_of(process),
            evidence,
            "The first rank that is suspended is lost at its restore (801), and the lock of the next one waits in a "
            "collective for the first",
            "Let the program destroy the communicator before (torch.distributed.destroy_process_group), and make a new "
            "one after the resume",
            process.pid,
        )
