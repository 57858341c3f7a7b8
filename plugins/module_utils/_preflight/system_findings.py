# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the caller may not do, and what the kernel and CRIU can't. Pure."""

from __future__ import annotations

import re
from typing import List, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import comma
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import (
    EVERYTHING,
    IMAGES,
    SUSPEND,
    Concern,
    HostHazard,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.driver_findings import HOST
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import CriuFacts, HostFacts

_KILL, _SYS_PTRACE, _SYS_ADMIN, _CHECKPOINT_RESTORE = 5, 19, 21, 40


class NotRoot(HostHazard):
    """The owner may drive its own processes (measured: case who/owner); CRIU needs root."""

    id = "not_root"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        rights = facts.rights
        if rights.uid == 0 and rights.initial_user_namespace:
            return []
        who = f"the user id is {rights.uid}" if rights.uid else "this is the root of a user namespace only"
        unseen = ""
        if rights.hidepid not in ("", "0", "off"):
            unseen = f"; /proc is mounted with hidepid={rights.hidepid}, so that processes of others are not seen"
        return [
            self.concern(
                HOST,
                who + unseen,
                "Processes of other users can't be suspended, and what they hold can't be seen",
                "Use become: true",
                severity=WARNING,
                capabilities=frozenset((SUSPEND,)),
            ),
            self.concern(HOST, who, "CRIU needs root", "Use become: true", capabilities=IMAGES),
        ]


class RightsMissing(HostHazard):
    """Root of a container."""

    id = "rights_missing"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        mask = facts.rights.capabilities
        if mask is None or facts.rights.uid != 0:
            return []
        held = [bool(mask >> number & 1) for number in (_KILL, _SYS_PTRACE)]
        for_all = [name for name, there in zip(("CAP_KILL", "CAP_SYS_PTRACE"), held) if not there]
        found = []
        if for_all:
            found.append(
                self.concern(
                    HOST,
                    f"root lacks {comma(for_all)} here",
                    "A process can't be held and parked without",
                    "Run this on the host itself, or give the container these capabilities",
                )
            )
        if not (mask >> _SYS_ADMIN & 1 or mask >> _CHECKPOINT_RESTORE & 1):
            found.append(
                self.concern(
                    HOST,
                    "root has neither CAP_SYS_ADMIN nor CAP_CHECKPOINT_RESTORE here",
                    "CRIU needs one of them",
                    "Run this on the host itself, or give the container one of these capabilities",
                    capabilities=IMAGES,
                )
            )
        return found


class NoCheckpointRestore(HostHazard):
    id = "kernel_without_checkpoint_restore"
    capabilities = IMAGES

    def detect(self, facts: HostFacts) -> List[Concern]:
        kernel = facts.kernel
        if kernel.checkpoint_restore:
            return []
        if kernel.checkpoint_restore is None:
            evidence = (
                f"Linux {facts.host.kernel} has no /proc/sys/kernel/ns_last_pid; its configuration is not to be found"
            )
        else:
            evidence = f"Linux {facts.host.kernel} is built without CONFIG_CHECKPOINT_RESTORE ({kernel.told_by})"
        return [
            self.concern(
                HOST,
                evidence,
                "CRIU can't dump on such a kernel",
                "Boot a kernel with CONFIG_CHECKPOINT_RESTORE=y, as distributions have it",
            )
        ]


class IoUringAllowed(HostHazard):
    """About what programs may do; one that has a ring open has its own finding, `io_uring`."""

    id = "io_uring_allowed"
    capabilities = IMAGES
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        setting = facts.kernel.io_uring_disabled
        if setting == 2:
            return []
        if setting is None:
            evidence = f"Linux {facts.host.kernel} has no sysctl kernel.io_uring_disabled, so nothing forbids it"
        else:
            evidence = f"kernel.io_uring_disabled is {setting}"
        return [
            self.concern(
                HOST,
                f"{evidence}: programs may use io_uring",
                "CRIU can't dump a process that has a ring open; some runtimes use one where they are let",
                "sysctl kernel.io_uring_disabled=2 before the programs start, if none of them needs it"
                if setting is not None
                else "Use Linux 6.6 or later, and there kernel.io_uring_disabled=2",
            )
        ]


#: CRIU that knows what CUDA processes need (and has the plugin interface for devices).
OLDEST_CRIU = (4, 0)
#: How many hooks CRIU's plugin interface has, from that version on (criu-plugin.h).
HOOKS: Tuple[Tuple[Tuple[int, ...], int], ...] = (((3, 19), 10), ((4, 0), 12), ((4, 2), 13))


def criu_version(text: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


class CriuMissing(HostHazard):
    id = "criu_missing"
    capabilities = IMAGES

    def detect(self, facts: HostFacts) -> List[Concern]:
        criu = facts.criu
        if criu.version:
            return []
        return [
            self.concern(
                HOST,
                criu.why or "CRIU was not found",
                "Images of processes are written and read by CRIU",
                "Install CRIU 4.0 or later, or name it with `criu`"
                if not criu.path
                else "Mend or reinstall it; it has to print its version",
            )
        ]


class CriuTooOld(HostHazard):
    id = "criu_too_old"
    capabilities = IMAGES

    def detect(self, facts: HostFacts) -> List[Concern]:
        version = criu_version(facts.criu.version)
        if not version or version >= OLDEST_CRIU:
            return []
        return [
            self.concern(
                HOST,
                f"{facts.criu.path} is CRIU {facts.criu.version}",
                "Older ones fail on current kernels (seen with 3.17: the vDSO) and are not tested with this collection",
                "Install CRIU 4.0 or later, or name another one with `criu`",
            )
        ]


#: What CRIU needs this sysctl for it does with clone3() where the kernel has it, but its check demands the sysctl.
_LAST_PID = "ns_last_pid sysctl is inaccessible"
_FIRST_WITH_CLONE3 = (5, 5)


def _kernel_version(release: str) -> Tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match.group(1)), int(match.group(2))) if match else ()


def _complaints(criu: CriuFacts) -> Tuple[str, ...]:
    """Its errors, or where it has none all that it said."""
    errors = tuple(line for line in criu.words if line.startswith("Error"))
    return errors or criu.words


class CriuCheck(HostHazard):
    id = "criu_check"
    capabilities = IMAGES

    def detect(self, facts: HostFacts) -> List[Concern]:
        criu = facts.criu
        if criu.check in (None, 0):
            return []
        complaints = _complaints(criu)
        harmless = _kernel_version(facts.host.kernel) >= _FIRST_WITH_CLONE3 and any(
            _LAST_PID in line and "Read-only file system" in line for line in complaints
        )
        said = "; ".join(complaints[:4]) or f"nothing, with exit status {criu.check}"
        if harmless:
            return [
                self.concern(
                    HOST,
                    f"`criu check` stopped early and said: {said}",
                    "That sysctl is read-only here, as in containers; CRIU does without where the kernel has clone3(), "
                    "as this one does, but what it would have checked next is not known",
                    "Mount /proc/sys so that it can be written, or try a dump and restore of a small program",
                    severity=WARNING,
                )
            ]
        return [
            self.concern(
                HOST,
                f"`criu check` said: {said}",
                "CRIU lacks something that every dump or restore needs",
                "Load the modules and use the kernel that it asks for; run `criu check` again",
            )
        ]


class CriuPlugin(HostHazard):
    """Told by the number of hooks only: CRIU 4.0 to 4.1.1 have the same."""

    id = "criu_plugin"
    capabilities = IMAGES
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        plugin, version = facts.criu.plugin, criu_version(facts.criu.version)
        if plugin is None or not version:
            return []
        known = [hooks for since, hooks in HOOKS if version >= since]
        if plugin.hooks is None:
            evidence = f"{plugin.path} is no plugin that can be read"
        elif known and plugin.hooks != known[-1]:
            built = [f"{since[0]}.{since[1]}" for since, hooks in HOOKS if hooks == plugin.hooks]
            evidence = f"{plugin.path} was built for {f'CRIU {built[0]}' if built else 'another CRIU'}, and CRIU is "
            evidence += facts.criu.version
        else:
            return []
        return [
            self.concern(
                HOST,
                evidence,
                "CRIU crashes or refuses to work with a plugin of another version. This collection runs CRIU without "
                "its plugins; whoever runs it by hand does not",
                "Install both from the same release, or remove the plugin",
            )
        ]


RIGHTS: Tuple[HostHazard, ...] = (NotRoot(), RightsMissing())
KERNEL: Tuple[HostHazard, ...] = (NoCheckpointRestore(), IoUringAllowed())
CRIU: Tuple[HostHazard, ...] = (CriuMissing(), CriuTooOld(), CriuCheck(), CriuPlugin())
