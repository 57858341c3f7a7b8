# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the multi-process service (MPS)."""

from __future__ import annotations

import re
from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    LOCK,
    SUSPEND,
    Context,
    ProcessHazard,
    name_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

#: As the kernel cuts nvidia-cuda-mps-server and nvidia-cuda-mps-control.
_DAEMON = "nvidia-cuda-mps"
_AUTOBOUND = re.compile(r"^@[0-9a-f]{5}$")


def is_daemon(process: ProcessSnapshot) -> bool:
    """One of MPS's own processes."""
    first = process.command[0].rpartition("/")[2] if process.command else ""
    return process.name.startswith(_DAEMON) or first.startswith(_DAEMON)


def _serves(context: Context) -> bool:
    return any(is_daemon(one) for one in context.snapshot.processes)


def _has_channels(process: ProcessSnapshot) -> bool:
    """What a client has beyond others (measured on an H200): two sockets that the kernel named, and eight pipes whose
    other ends somebody else holds."""
    named_by_kernel = [name for name in process.unix_names or () if _AUTOBOUND.match(name)]
    return len(named_by_kernel) >= 2 and (process.lone_pipes or 0) >= 4


class MpsClient(ProcessHazard):
    """Measured: conformance case kind/mps. The client itself stays whole."""

    id = "mps_client"
    actions = frozenset((LOCK, SUSPEND))
    option = "mps_client"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if process.looks_suspended:
            return None
        evidence = self._evidence(context, process)
        severity = ""
        if not evidence:
            evidence = self._doubt(context, process)
            severity = WARNING
        if not evidence:
            return None
        return self.finding(
            name_of(process),
            evidence,
            "The driver refuses to lock a client of MPS (801)",
            "Stop the service (echo quit | nvidia-cuda-mps-control) and start the program without it",
            process.pid,
            severity=severity,
        )

    @staticmethod
    def _evidence(context: Context, process: ProcessSnapshot) -> str:
        if is_daemon(process):
            return "it is MPS's own server"
        for gpu in context.snapshot.gpus:
            if any(one.pid == process.pid and one.kind == "mps" for one in gpu.processes):
                return f"NVML lists it as a client of MPS on GPU {gpu.index}"
        directory = (process.environment or {}).get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
        for name in process.unix_peer_names or ():
            if name.startswith(f"{directory.rstrip('/')}/"):
                return f"it is connected to MPS's socket {name}"
        for pid, name in process.unix_peers or ():
            peer = context.snapshot.process(pid)
            if name.startswith(_DAEMON) or (peer is not None and is_daemon(peer)):
                return f"it is connected to MPS's server, PID {pid}"
        if _has_channels(process) and _serves(context):
            return "MPS's server runs on this host, and this process has the unnamed sockets and pipes of a client"
        return ""

    @staticmethod
    def _doubt(context: Context, process: ProcessSnapshot) -> str:
        """A client that can't be told from others: the server runs, and whom the process talks to is not known."""
        if process.unix_peers is not None or not _serves(context):
            return ""
        return "MPS's server runs on this host, and whether this process is its client can't be seen"
