# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes in containers, and in mount namespaces of their own."""

from __future__ import annotations

from typing import Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    IMAGES,
    SUSPEND,
    Context,
    ProcessHazard,
    name_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import NAMESPACE_INIT
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import place

_OWN = (
    ("kubepods", "Kubernetes", "the kubelet's checkpoint API (POST /checkpoint/NAMESPACE/POD/CONTAINER)"),
    ("libpod", "Podman", "podman container checkpoint {}"),
    ("docker", "Docker", "docker checkpoint create {} NAME"),
    ("containerd", "containerd", "ctr task checkpoint {}"),
    ("crio", "CRI-O", "crictl checkpoint {}"),
    ("lxc", "LXC", "lxc-checkpoint -n {}"),
)


def runtime_of(process: ProcessSnapshot) -> Tuple[str, str]:
    """Its name, and its own way to checkpoint; "" where it is not known, or has none."""
    paths = " ".join(process.cgroup_paths)
    container = (place(process).container or "")[:12]
    for word, name, command in _OWN:
        if word in paths:
            return name, command.format(container)
    return "", ""


def in_container(context: Context, process: ProcessSnapshot) -> bool:
    """By its control group, or a PID namespace other than the reader's."""
    own = context.snapshot.host.pid_namespace
    return place(process).container is not None or bool(own and process.pid_namespace and process.pid_namespace != own)


class Container(ProcessHazard):
    """CRIU from outside would take the namespaces, mounts and network of the container without its runtime."""

    id = "container"
    actions = IMAGES
    option = "container"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if not in_container(context, process):
            return None
        around = context.snapshot.around_of(process.pid)
        if around is not None and around.parent is not None and around.parent.name == NAMESPACE_INIT:
            return self.finding(
                name_of(process),
                f"it was restored into a PID namespace of its own, that of PID {around.parent.pid} ({NAMESPACE_INIT})",
                "CRIU dumps such a namespace only together with its first process, and would have to make its mounts "
                "anew",
                "Suspend it in memory with cuda_checkpoint; or end it and restore an earlier image",
                process.pid,
                option="",
            )
        container = place(process).container
        name, own = runtime_of(process)
        evidence = f"it runs in container {container}" if container else "it runs in a PID namespace of its own"
        return self.finding(
            name_of(process),
            evidence + (f" of {name}" if name else ""),
            "Its mounts, network and control groups are the runtime's: CRIU can't put them back without it, and the "
            "runtime takes the end of the process for the end of the container",
            f"Suspend it with cuda_checkpoint, then use the runtime's own checkpoint: {own}"
            if own
            else "Use the checkpoint of its runtime, if it has one; or suspend it in memory",
            process.pid,
        )


class PrivateMounts(ProcessHazard):
    """PrivateTmp=, ProtectSystem= and the like give a unit a mount namespace of its own."""

    id = "private_mounts"
    actions = IMAGES
    option = "private_mounts"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        around = context.snapshot.around_of(process.pid)
        if around is None or around.private_mounts is False or process.is_zombie or in_container(context, process):
            return None
        if around.private_mounts is None:
            evidence, severity = "whether it has a mount namespace of its own can't be seen", WARNING
        else:
            evidence, severity = "it has a mount namespace of its own", ""
        return self.finding(
            name_of(process),
            evidence,
            "CRIU would have to make all of its mounts anew at restore, and fails at those that a service has",
            "Start the unit without PrivateTmp=, ProtectSystem=, PrivateDevices= and the like, or let CRIU try",
            process.pid,
            severity=severity,
        )


class ContainerProbe(ProcessHazard):
    """A probe that a parked process does not answer. Kubernetes keeps probes where the host can't see them."""

    id = "container_probe"
    actions = frozenset((SUSPEND,))
    option = "container_probe"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        around = context.snapshot.around_of(process.pid)
        probe = "" if around is None else around.probe
        if probe in ("", "none"):
            return None
        name, _own = runtime_of(process)
        container = place(process).container or "?"
        reason = "A parked process answers no probe; after some failures its container is killed and started anew"
        remedy = "Take the probe off (or raise its failureThreshold) before, or consent if it does not kill"
        severity = ""
        if probe == "unknown" and name == "Kubernetes":
            evidence = (
                f"it runs in container {container} of Kubernetes, whose liveness probe, if any, can't be seen here"
            )
            remedy = "Look at its pod (kubectl get pod -o yaml: livenessProbe), and consent where it has none"
        elif probe == "unknown":
            evidence = (
                f"whether container {container} has a health check can't be seen: its configuration can't be read"
            )
            severity = WARNING
        elif probe == "docker":
            evidence = f"container {container} of Docker has a health check"
            reason = (
                "A parked process answers none: Docker calls the container unhealthy, and whoever watches that acts"
            )
            severity = WARNING
        else:
            evidence = f"container {container} of {name} has a health check" + (
                ", and is a task of a swarm" if probe == "swarm" else ", which may be told to kill it"
            )
        return self.finding(name_of(process), evidence, reason, remedy, process.pid, severity=severity)
