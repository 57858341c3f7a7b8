# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Can this image be restored here? Pure; target.py reads what it is compared with."""

from __future__ import annotations

import time
from collections import Counter
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest, Member
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.target import (
    GROUP,
    SESSION,
    SSH,
    THREAD,
    ZOMBIE,
    Holder,
    Target,
    is_checked,
    read_target,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_map import (
    DeviceMapError,
    FormerGpu,
    Wanted,
    resolve,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import MIB, comma, size
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

__all__ = ["OPTIONS", "Target", "fit", "origin_of", "read_target"]

DOCS = "https://github.com/gpufleet/checkpoint/blob/main/docs/images.md"
#: What `allow` takes of these.
OPTIONS = frozenset(("host_memory", "image_criu", "image_driver", "image_gpu", "vram_short"))
#: Page tables, and CRIU itself.
MARGIN = 64 * MIB
_NEW_NAMESPACE = (
    "restore into a PID namespace of its own: pid_namespace: new (gpu_restore_pid_namespace or "
    "gpu_drain_pid_namespace where a role does it)"
)
_NEVER_STARTED = "Nothing has been started, and the image is as it was"


def fit(
    manifest: Manifest, target: Target, device_map: Wanted = None, new_namespace: bool = False
) -> Tuple[Finding, ...]:
    """Everything that speaks against it, the worst first. device_map: None, "auto", or old to new GPUs.
    new_namespace: its PIDs need not be free on this host."""
    found: List[Finding] = []
    found.extend(_machine(manifest, target))
    found.extend(_criu(manifest, target))
    found.extend(_pids(manifest, target, new_namespace))
    found.extend(_files(manifest, target))
    found.extend(_memory(manifest, target))
    if any(member.cuda for member in manifest.tree):
        found.extend(_driver(manifest, target))
        found.extend(_gpus(manifest, target, device_map))
    return tuple(sorted(found, key=lambda one: one.severity != BLOCKING))


def _finding(
    manifest: Manifest,
    identifier: str,
    evidence: str,
    reason: str,
    remedy: str,
    severity: str = BLOCKING,
    pid: Optional[int] = None,
) -> Finding:
    return Finding(
        id=identifier,
        severity=severity,
        subject=printable(f"image of {manifest.name or f'PID {manifest.root}'}"),
        evidence=printable(evidence),
        reason=reason,
        remedy=printable(remedy),
        option=identifier if identifier in OPTIONS else "",
        reference=f"{DOCS}#{identifier}",
        pid=pid,
    )


def _machine(manifest: Manifest, target: Target) -> Iterator[Finding]:
    host = target.host
    if manifest.machine != host.machine:
        yield _finding(
            manifest,
            "image_architecture",
            f"it was made on {manifest.machine}, and this host is {host.machine}",
            "Memory and registers of one kind of processor mean nothing to another",
            f"Restore it on a host with {manifest.machine}",
        )
    elif manifest.kernel != host.kernel:
        yield _finding(
            manifest,
            "image_kernel",
            f"it was made under Linux {manifest.kernel}, and this host runs {host.kernel}",
            "CRIU carries processes from one kernel to another, but an older one may lack what the process uses",
            "If CRIU refuses it, boot the kernel that it was made under",
            WARNING,
        )


def _criu(manifest: Manifest, target: Target) -> Iterator[Finding]:
    made = tuple(int(part) for part in manifest.criu.split(".") if part.isdigit())
    here = target.criu
    if here >= made:
        return
    yield _finding(
        manifest,
        "image_criu",
        f"it was made by CRIU {manifest.criu}, and here is {'.'.join(map(str, here))}",
        "An older CRIU may not know all that is in it, and restore less than there was",
        f"Install CRIU {manifest.criu} or newer, or name one with criu_executable",
        WARNING if here[:2] == made[:2] else BLOCKING,
    )


# PIDs


def _pids(manifest: Manifest, target: Target, new_namespace: bool) -> Iterator[Finding]:
    most = max((number for member in manifest.tree for number in (member.pid, *member.threads)), default=0)
    if target.pid_max and most >= target.pid_max:
        yield _finding(
            manifest,
            "pid_max",
            f"it holds PID {most}, and kernel.pid_max is {target.pid_max} here",
            "A process comes back with its own PID, or not at all",
            f"sysctl kernel.pid_max={max(most + 1, 4194304)}",
        )
    by_owner: Dict[int, List[Holder]] = {}
    for holder in target.holders:
        by_owner.setdefault(holder.pid, []).append(holder)
    for pid, holders in by_owner.items():
        if new_namespace and _original(manifest, target, holders[0]) is None:
            continue
        yield _busy(manifest, target, pid, holders)


def _busy(manifest: Manifest, target: Target, pid: int, holders: Sequence[Holder]) -> Finding:
    first = holders[0]
    who = f"PID {pid} ({first.name}{_since(first)})"
    held = [_held(one) for one in holders]
    if _original(manifest, target, first) is not None:
        remedy = "That is the process that the image was made of: end it first, if it is not wanted any more"
    elif first.kind == ZOMBIE:
        remedy = (
            f"It has ended, but PID {first.parent} ({first.parent_name}) has not reaped it: make that do so, or end it"
        )
    elif pid in target.own and first.name.startswith(SSH):
        who += ", the SSH connection of this very run"
        remedy = (
            "Reset it, so that the task comes over one with another PID (ansible.builtin.meta: reset_connection before "
            f"the task), and run again; or {_NEW_NAMESPACE}"
        )
    elif pid in target.own:
        who += ", which is part of this very run"
        remedy = f"Run again, which gives it another PID; or {_NEW_NAMESPACE}"
    elif first.parent == 2 or pid <= 2:
        remedy = f"It is the host's own: boot again, so that it gets another PID; or {_NEW_NAMESPACE}"
    else:
        remedy = f"End PID {pid} until the restore is over, or start it anew for another PID; or {_NEW_NAMESPACE}"
    return _finding(
        manifest,
        "pid_busy",
        f"{comma(held)} of it {'is' if len(held) == 1 else 'are'} in use by {who}",
        "A process comes back with its own PIDs, thread ids, process groups and sessions, or not at all",
        remedy,
        pid=pid,
    )


def _original(manifest: Manifest, target: Target, holder: Holder) -> Optional[Member]:
    """The member of the tree that this holder is: it lives on, in spite of the image."""
    if manifest.boot_id != target.host.boot_id:
        return None
    return next((one for one in manifest.tree if one.pid == holder.pid and one.start_ticks == holder.start_ticks), None)


def _held(holder: Holder) -> str:
    words = {
        THREAD: f"{holder.number} (a thread there)",
        ZOMBIE: f"{holder.number} (a zombie there)",
        GROUP: f"{holder.number} (a process group there, without its leader)",
        SESSION: f"{holder.number} (a session there, without its leader)",
    }
    return words.get(holder.kind, str(holder.number))


def _since(holder: Holder) -> str:
    if not holder.since:
        return ""
    return time.strftime(", since %Y-%m-%d %H:%M:%S UTC", time.gmtime(holder.since))


# Files


def _files(manifest: Manifest, target: Target) -> Iterator[Finding]:
    missing: List[str] = []
    others: List[Tuple[str, int, int]] = []
    for one in manifest.files:
        if not is_checked(one.path, one.deleted):
            continue
        now = target.files.get(one.path)
        if now is None:
            if one.path not in missing:
                missing.append(one.path)
        elif one.size not in (now, -1):
            others.append((one.path, one.size, now))
    lost = "" if manifest.boot_id == target.host.boot_id else ". What lay in memory (/run, /dev/shm) went with its boot"
    if missing:
        yield _finding(
            manifest,
            "image_file_missing",
            f"no longer there: {comma(missing)}",
            f"CRIU opens every file by its name, and refuses the image if one is gone. {_NEVER_STARTED}",
            f"Bring them back as they were when it was made{lost}",
        )
    if others:
        yield _finding(
            manifest,
            "image_file_size",
            "of another size: " + comma(f"{path} ({now} bytes, and {was} in the image)" for path, was, now in others),
            f"CRIU refuses such a file: the process would go on in one that is not its own. {_NEVER_STARTED}",
            _size_remedy(others),
        )


def _size_remedy(others: Iterable[Tuple[str, int, int]]) -> str:
    path, was, now = next(iter(others))
    if now > was:
        return (
            f"Bring them back as they were. One that only got longer may be cut: truncate -s {was} {path}; for a "
            "program or library, undo its upgrade"
        )
    return "Bring them back as they were; for a program or library, undo its upgrade"


# Memory and GPUs


def _memory(manifest: Manifest, target: Target) -> Iterator[Finding]:
    host = target.host
    needed = manifest.host_bytes + MARGIN
    rooms = [
        ("available", host.memory_available),
        ("left to promise (vm.overcommit_memory is 2)", host.commit_headroom),
    ]
    short = [(what, room) for what, room in rooms if room is not None and room < needed]
    if host.memory_available is not None and not short:
        return
    if short:
        evidence = f"it needs {size(needed)} of host memory, and {size(short[0][1])} are {short[0][0]}"
    else:
        evidence = f"it needs {size(needed)} of host memory, and how much is available can't be read (/proc/meminfo)"
    yield _finding(
        manifest,
        "host_memory",
        evidence,
        "All of it comes back to host memory, that of its GPUs too, before anything goes to a GPU; if it does not fit, "
        "the kernel kills a program",
        "Free memory, or restore fewer images at once",
    )


def _driver(manifest: Manifest, target: Target) -> Iterator[Finding]:
    here = target.host.driver_version
    if here == manifest.driver:
        return
    yield _finding(
        manifest,
        "image_driver",
        f"it was made under driver {manifest.driver or 'unknown'}, and here "
        + (f"is {here}" if here else "none is loaded"),
        "A driver restores GPU memory only for processes that were suspended under exactly the same one",
        f"Install driver {manifest.driver or 'of then'}, or restore it on a host that has it",
    )


def origin_of(manifest: Manifest) -> Tuple[FormerGpu, ...]:
    """The GPUs of the host that it was made on."""
    return tuple(FormerGpu(gpu.index, gpu.uuid, gpu.model) for gpu in manifest.gpus)


def _gpus(manifest: Manifest, target: Target, device_map: Wanted) -> Iterator[Finding]:
    then, now = Counter(gpu.model for gpu in manifest.gpus), Counter(gpu.name for gpu in target.gpus)
    if then != now:
        yield _finding(
            manifest,
            "image_gpu",
            f"it was made with {_models(then)}, and here {'is' if len(target.gpus) == 1 else 'are'} {_models(now)}",
            "The driver brings a process back only to the same models, and the same number of GPUs",
            "Restore it on a host that is equipped alike",
        )
    needs = {uuid: count for uuid, count in manifest.device_bytes.items() if count}
    try:
        targets = resolve(device_map, target.gpus, needs, origin=origin_of(manifest)).targets(needs)
    except DeviceMapError as error:
        yield _finding(
            manifest,
            "device_map",
            "; ".join(error.problems),
            "Without a place for all of its GPU memory the process would be lost",
            error.remedy,
        )
        return
    yield from _vram(manifest, {gpu.uuid: gpu for gpu in target.gpus}, targets)


def _vram(manifest: Manifest, here: Mapping[str, GpuSnapshot], targets: Mapping[str, int]) -> Iterator[Finding]:
    for uuid, needed in sorted(targets.items()):
        gpu = here.get(uuid)
        if gpu is None:
            known = next((one for one in manifest.gpus if one.uuid == uuid), None)
            yield _finding(
                manifest,
                "gpu_missing",
                f"{size(needed)} of it belong to GPU {uuid}{f' ({known.model})' if known else ''}, which is not here",
                "The driver can't restore memory to a GPU that is not there",
                "Restore it on the host with that GPU",
            )
        elif gpu.free_bytes < needed:
            holders = comma(f"PID {one.pid}" for one in gpu.processes)
            yield _finding(
                manifest,
                "vram_short",
                f"GPU {gpu.index} ({uuid}) has {size(gpu.free_bytes)} free, and it needs {size(needed)}",
                "A process that finds no room at its restore is lost",
                f"Free that GPU{f' (in use by {holders})' if holders else ''}, or use another one: device_map: auto",
            )


def _models(counted: Mapping[str, int]) -> str:
    return comma(f"{count} x {model}" for model, count in sorted(counted.items())) or "no GPU"
