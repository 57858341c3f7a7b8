# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether there is room on the disk and in time for what would be moved, and whether the host can remember it. Pure."""

from __future__ import annotations

from typing import List

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import size
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import (
    CAPABILITIES,
    EVERYTHING,
    IMAGES,
    Concern,
    HostHazard,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.driver_findings import HOST
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import HostFacts

_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.glusterfs")


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


class JournalUnusable(HostHazard):
    id = "journal_unusable"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        journal = facts.journal
        if not journal.subject:
            return []
        return [self.concern(journal.subject, journal.evidence, journal.reason, journal.remedy)]


class StoreUnknown(HostHazard):
    id = "store_unknown"
    capabilities = IMAGES
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        if facts.store is not None:
            return []
        return [
            self.concern(
                HOST,
                "no place for images was named, so its free space was not looked at",
                f"All images together need {size(facts.moved.image)}"
                if facts.moved.count and not facts.moved.unknown
                else "An image needs as much as its process has in memory and on GPUs together",
                "Name the directory with `store`",
            )
        ]


class StoreUnusable(HostHazard):
    id = "store_unusable"
    capabilities = IMAGES

    def detect(self, facts: HostFacts) -> List[Concern]:
        store = facts.store
        if store is None:
            return []
        reason = "Images can't be written there"
        if store.problem:
            evidence, remedy = store.problem, "Name a directory by its absolute path"
        elif store.read_only:
            evidence, remedy = f"the file system of {store.place} is read-only", "Name a place that can be written"
        elif store.open_to:
            evidence = f"others than root may write {store.open_to}"
            reason = "An image holds the memory of a process, secrets included, and is brought to life as it is"
            remedy = f"Take that right away (chmod go-w {store.open_to}; owner root), or name another place"
        else:
            return []
        return [self.concern(f"store {store.path}", evidence, reason, remedy)]


class StoreVolatile(HostHazard):
    id = "store_volatile"
    capabilities = IMAGES
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        store = facts.store
        if store is None or store.kind not in _MEMORY:
            return []
        return [
            self.concern(
                f"store {store.path}",
                f"{store.place} is on {store.kind}",
                "What lies there is gone after a reboot, and takes the host memory that the processes need as well",
                "Name a place on a disk",
            )
        ]


class StoreNetwork(HostHazard):
    id = "store_network"
    capabilities = IMAGES
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        store = facts.store
        if store is None or store.kind not in _NETWORK:
            return []
        return [
            self.concern(
                f"store {store.path}",
                f"{store.place} is on {store.kind}",
                "Whether root may write there, and whether locks and fsync hold what they promise, was not tried; how "
                "fast it is, is not in the estimate",
                "Try it with a dump of a small program, or name a place on a local disk",
            )
        ]


class DiskShort(HostHazard):
    id = "disk_short"
    capabilities = IMAGES

    def detect(self, facts: HostFacts) -> List[Concern]:
        store, moved = facts.store, facts.moved
        if store is None or store.free is None:
            return []
        if moved.image > store.free:
            least = "at least " if moved.unknown else ""
            return [
                self.concern(
                    f"store {store.path}",
                    f"{store.place} has {size(store.free)} free; images of {_processes(moved.count)} take {least}"
                    f"{size(moved.image)}, {size(moved.image - store.free)} more",
                    "A dump that runs out of space fails, and its process has to be brought back",
                    "Free space, name a larger place, or dump fewer processes",
                )
            ]
        if moved.unknown:
            return [
                self.concern(
                    f"store {store.path}",
                    f"{store.place} has {size(store.free)} free; how much {_processes(moved.unknown)} of {moved.count} "
                    "hold on GPUs is not known",
                    "Whether the images fit can't be said",
                    "Look at what is found about these processes",
                    severity=WARNING,
                )
            ]
        return []


class WindowShort(HostHazard):
    id = "window_short"
    capabilities = EVERYTHING
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        window = facts.moved.window
        if window is None:
            return []
        return [
            self.concern(
                HOST,
                f"{capability}, there and back, takes about {facts.moved.seconds[capability]:.0f} s, and the window is "
                f"{window:.0f} s",
                "The processes would not be back in time",
                "Plan a longer window, or fewer processes at once on this host",
                capabilities=frozenset((capability,)),
            )
            for capability in CAPABILITIES
            if facts.moved.seconds.get(capability, 0.0) > window
        ]
