# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does everything that is to be migrated fit on this target? Pure; target.py reads what it is compared with.

All trees are looked at together: what each of them would find room for, all of them may not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import fit as fits
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    HELD,
    MOVED,
    RESTORING,
    RETURNED,
    SPENT,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.target import Target, is_checked
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_map import (
    DeviceMap,
    DeviceMapError,
    Wanted,
    resolve,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import comma, size
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.evidence import (
    LIVE,
    SourceEvidence,
    TreeEvidence,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

DOCS = "https://github.com/gpufleet/checkpoint/blob/main/docs/migrate.md"
#: What allow takes here, beside the options of fit.
OPTIONS = fits.OPTIONS | frozenset(("cpu_features", "disk_space"))
#: Beside the memory in an image: CRIU's other files, the manifest. Bytes.
MARGIN = 64 << 20
#: Features that tell of the machine, and not of instructions that a program may have chosen.
_NO_INSTRUCTIONS = frozenset(
    """acpi aperfmperf arat arch_capabilities arch_perfmon bts cmp_legacy constant_tsc cpuid cpuid_fault cqm
    cqm_llc cqm_mbm_local cqm_mbm_total cqm_occup_llc cdp_l2 cdp_l3 cat_l2 cat_l3 mba ds_cpl dtes64 dtherm dts
    ept ept_ad erms est extapic extd_apicid flexpriority flush_l1d fsrm ht hwp hwp_act_window hwp_epp hwp_notify
    hwp_pkg_req hypervisor ibpb ibrs ibrs_enhanced ida intel_pt invpcid invpcid_single irperf lbrv mca mce
    md_clear mtrr nonstop_tsc nrip_save nx overflow_recov pae pat pausefilter pbe pcid pconfig pdcm pdpe1gb pebs
    perfctr_core perfctr_llc perfctr_nb pfthreshold pge pln pse pse36 pts rdt_a rep_good skinit smap smca smep
    split_lock_detect ss ssbd stibp succor svm svm_lock tm tm2 topoext tpr_shadow tsc_adjust tsc_deadline_timer
    tsc_known_freq tsc_scale v_vmsave_vmload vgif vme vmcb_clean vmx vnmi vpid wbnoinvd wdt x2apic x2avic
    xtopology xtpr""".split()
)


@dataclass(frozen=True)
class Present:
    """What the store of the target has under the name of a tree. state: of that image. alive: who came out of it is."""

    lineage: str
    state: str
    handoff: str
    alive: bool


@dataclass(frozen=True)
class Place:
    """The target. machine: its machine id. flags: of its processor. build_ids, directories: of those that the source
    named, what is here. images: by name. disk: free bytes of the store, None for unknown. processes: how many CUDA
    processes it has."""

    target: Target
    hostname: str
    machine: str
    cpu: str
    flags: Tuple[str, ...]
    build_ids: Mapping[str, str]
    directories: Tuple[str, ...]
    images: Mapping[str, Present]
    disk: int
    processes: int


@dataclass(frozen=True)
class Wish:
    """transfer: "shared" (one store that both see), or another word: the image is copied. carry: directories of which
    the files that a tree writes go along. new_namespace: as in fit."""

    transfer: str
    carry: Tuple[str, ...]
    device_map: Wanted
    new_namespace: bool
    allow: "frozenset[str]"


@dataclass(frozen=True)
class Verdict:
    """findings: the worst first. device_map: old to new GPUs, empty where all stay. here: names of the trees that this
    target has already, and that only it may have. free: GPU memory that would be left on the fullest GPU, bytes."""

    findings: Tuple[Finding, ...]
    device_map: Mapping[str, str]
    here: Tuple[str, ...]
    image_bytes: int
    free: int

    @property
    def is_fit(self) -> bool:
        return all(one.severity != BLOCKING for one in self.findings)


def decide(source: SourceEvidence, place: Place, wish: Wish) -> Verdict:
    found: List[Finding] = list(_hosts(source, place, wish))
    here = tuple(tree.manifest.name for tree in source.trees if _is_here(tree, place))
    due = [tree for tree in source.trees if tree.manifest.name not in here]
    found.extend(_images(due, place, wish))
    device_map: Mapping[str, str] = {}
    free = min((gpu.free_bytes for gpu in place.target.gpus), default=0)
    size_of = sum(tree.manifest.bytes for tree in due)
    if due:
        merged = _merge([_without(tree.manifest, wish.carry) for tree in due])
        found.extend(fits.fit(merged, place.target, wish.device_map, wish.new_namespace))
        found.extend(_cpu(source, place))
        found.extend(_libraries(due, place))
        found.extend(_directories(due, place, wish.carry))
        found.extend(_disk(due, place, wish, size_of))
        mapped, needs = _mapped(merged, place, wish)
        if mapped is not None:
            device_map = dict(mapped.pairs)
            room = {gpu.uuid: gpu.free_bytes for gpu in place.target.gpus}
            free = min((room.get(uuid, 0) - count for uuid, count in mapped.targets(needs).items()), default=free)
    begun = [tree for tree in source.trees if tree.manifest.name in here and _state_of(tree, place) == RESTORING]
    if begun:
        # It carries on there, with the map that it can't do without.
        merged = _merge([tree.manifest for tree in [*due, *begun]])
        mapped = _mapped(merged, place, wish)[0] or _mapped(merged, _emptied(place), wish)[0]
        device_map = {} if mapped is None else dict(mapped.pairs)
    allowed = [replace(one, severity=WARNING) if one.option and one.option in wish.allow else one for one in found]
    ordered = sorted(allowed, key=lambda one: one.severity != BLOCKING)
    return Verdict(tuple(ordered), device_map, here, size_of, free)


def _is_here(tree: TreeEvidence, place: Place) -> bool:
    """It lives here, or is about to: what this host lacks is no question any more."""
    present = place.images.get(tree.manifest.name)
    if present is None or tree.state == LIVE or present.lineage != tree.manifest.lineage:
        return False
    if present.handoff != tree.handoff or not tree.handoff or tree.state != MOVED:
        return False
    return present.state in (RESTORING, SPENT)


def _state_of(tree: TreeEvidence, place: Place) -> str:
    return place.images[tree.manifest.name].state


def _mapped(merged: Manifest, place: Place, wish: Wish) -> Tuple[Optional[DeviceMap], Mapping[str, int]]:
    """None where there is none, which fit() tells of. And bytes by GPU of the source."""
    needs = {uuid: count for uuid, count in merged.device_bytes.items() if count}
    try:
        return resolve(wish.device_map, place.target.gpus, needs, origin=fits.origin_of(merged)), needs
    except DeviceMapError:
        return None, needs


def _emptied(place: Place) -> Place:
    """As if nothing were on its GPUs: what is half restored holds some of the room that it is to have."""
    gpus = tuple(replace(gpu, free_bytes=gpu.total_bytes) for gpu in place.target.gpus)
    return replace(place, target=replace(place.target, gpus=gpus))


def _merge(manifests: Sequence[Manifest]) -> Manifest:
    first = manifests[0]
    files = {(one.path, one.size, one.deleted): one for manifest in manifests for one in manifest.files}
    return replace(
        first,
        name=first.name if len(manifests) == 1 else f"{len(manifests)} trees of {first.hostname}",
        tree=tuple(member for manifest in manifests for member in manifest.tree),
        host_bytes=sum(manifest.host_bytes for manifest in manifests),
        files=tuple(files.values()),
    )


def is_carried(path: str, carry: Iterable[str]) -> bool:
    return any(path.startswith(place.rstrip("/") + "/") for place in carry)


def _without(manifest: Manifest, carry: Sequence[str]) -> Manifest:
    """Files that go along need not be in place."""
    return replace(manifest, files=tuple(one for one in manifest.files if not is_carried(one.path, carry)))


def _finding(
    identifier: str, subject: str, evidence: str, reason: str, remedy: str, severity: str = BLOCKING
) -> Finding:
    return Finding(
        id=identifier,
        severity=severity,
        subject=printable(subject),
        evidence=printable(evidence),
        reason=reason,
        remedy=printable(remedy),
        option=identifier if identifier in OPTIONS else "",
        reference=f"{DOCS}#{identifier}",
        pid=None,
    )


def _hosts(source: SourceEvidence, place: Place, wish: Wish) -> Iterator[Finding]:
    if source.machine and source.machine == place.machine:
        yield _finding(
            "same_host",
            place.hostname,
            f"its machine id, {place.machine}, is that of {source.hostname}",
            "It is the source itself, or one was cloned from the other, and then no image can say which of them may "
            "restore it",
            "Name another target; a clone gets an id of its own with: rm /etc/machine-id; systemd-machine-id-setup",
        )
    if not source.machine or not place.machine:
        nameless = source.hostname if not source.machine else place.hostname
        yield _finding(
            "no_machine_id",
            nameless,
            "it has no machine id (/etc/machine-id)",
            "An image that is handed over says by it which host may restore it",
            "systemd-machine-id-setup",
        )
    elsewhere = sorted({tree.peer for tree in source.trees if tree.state == MOVED and tree.peer != place.machine})
    if elsewhere:
        names = [tree.manifest.name for tree in source.trees if tree.state == MOVED]
        yield _finding(
            "image_elsewhere",
            place.hostname,
            f"{comma(names)} was handed to another host (machine id {elsewhere[0]}) by an earlier run",
            "It may be restored there, and nowhere else, until that host gives it back",
            "Migrate to that host, or first bring it back: gpu_migrate_direction: back",
        )


def _images(due: Sequence[TreeEvidence], place: Place, wish: Wish) -> Iterator[Finding]:
    """What lies where the copies are to go."""
    for tree in due if wish.transfer != "shared" else ():
        present = place.images.get(tree.manifest.name)
        if present is None:
            continue
        ours = tree.state != LIVE and present.lineage == tree.manifest.lineage
        if ours and present.handoff == tree.handoff and tree.handoff:
            continue
        if present.state in (RETURNED, MOVED) or (present.state == SPENT and not present.alive):
            continue
        if ours and present.state == HELD:
            continue
        yield _finding(
            "image_in_the_way",
            f"image {tree.manifest.name} in the store of {place.hostname}",
            f"it is {present.state}" + (", and what came out of it is alive" if present.alive else ""),
            "The copy would have that name, and an image that somebody may need is never replaced",
            "Restore or delete that image, or name another store for the target",
        )


def _cpu(source: SourceEvidence, place: Place) -> Iterator[Finding]:
    missing = sorted(set(source.flags) - set(place.flags) - _NO_INSTRUCTIONS)
    if missing:
        yield _finding(
            "cpu_features",
            f"processor of {place.hostname}",
            f"{place.cpu or 'it'} lacks {comma(missing)}, which {source.cpu or 'that of the source'} has",
            "Programs choose instructions when they start, and die of the first that another processor does not know",
            "A host with the same processors",
        )


def _libraries(due: Sequence[TreeEvidence], place: Place) -> Iterator[Finding]:
    others = []
    for path, wanted in sorted({item for tree in due for item in tree.build_ids.items()}):
        # One that is missing, or has another size, is told of by fit().
        if place.target.files.get(path) is not None and place.build_ids.get(path) != wanted:
            others.append(f"{path} ({place.build_ids.get(path, 'none')[:12]}, and {wanted[:12]} at the source)")
    if others:
        yield _finding(
            "build_id",
            f"programs and libraries of {place.hostname}",
            f"another build id: {comma(others)}",
            "It is another build: the process would go on in the middle of code that is not its own. CRIU refuses it",
            "Install the same version of the package on both hosts",
        )


def _directories(due: Sequence[TreeEvidence], place: Place, carry: Sequence[str]) -> Iterator[Finding]:
    wanted = {path for tree in due for path in tree.directories}
    missing = sorted(path for path in wanted - set(place.directories) if not is_carried(path + "/", carry))
    if missing:
        yield _finding(
            "directory_missing",
            f"directories of {place.hostname}",
            f"not there: {comma(missing)}",
            "A process comes back in the directory that it was in, or not at all",
            f"mkdir -p {missing[0]}, or name it in carry",
        )


def _disk(due: Sequence[TreeEvidence], place: Place, wish: Wish, needed: int) -> Iterator[Finding]:
    unpacked = sum(tree.manifest.host_bytes for tree in due if tree.manifest.compressed)
    total = unpacked + MARGIN * len(due) + (0 if wish.transfer == "shared" else needed)
    if place.disk < total:
        yield _finding(
            "disk_space",
            f"store of {place.hostname}",
            f"{size(place.disk)} free, {size(total)} are needed for {len(due)} image(s)",
            "A copy that runs out of space is of no use, and takes its time",
            "Make room, or name another store",
        )


def needed_paths(source: SourceEvidence) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """Files, and directories, that the target has to be asked for."""
    files: Dict[str, None] = {}
    for tree in source.trees:
        files.update((one.path, None) for one in tree.manifest.files if is_checked(one.path, one.deleted))
        files.update((path, None) for path in tree.build_ids)
    places = tuple(dict.fromkeys(path for tree in source.trees for path in tree.directories))
    return tuple(files), places
