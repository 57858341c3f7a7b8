# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what a drain is judged by: its processes, its images, and who is still at work for it. No driver is asked."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import digest, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import living
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.namespace import inside
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import Drain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_judge import (
    DAMAGED,
    MISSING,
    UNFINISHED,
    UNSPENT,
    ImageSeen,
    Known,
    Member,
    Scene,
    Seen,
    last_suspend,
    suspender,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuReader, GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id, read_host
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_lives import criu_at
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import ImageRow
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import (
    ProcessSnapshot,
    is_alive,
    list_processes,
    task_state,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import select
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._targets import own_ancestors

POLL_SECONDS = 0.25


def read_scene(journal: Journal, drain: Optional[Drain], criteria: Mapping[str, Any]) -> Scene:
    """drain: None for a host without one: then everything that is suspended is somebody else's. Raises JournalError,
    CriuError, SelectError, NvmlMissing, NvmlError (the last three for what `criteria` asks for)."""
    boot_id = read_boot_id()
    known = _known(journal, drain) if drain is not None else {}
    images = _images(journal, drain) if drain is not None else ()
    came = {member.came for image in images for member in image.members if member.came is not None}
    seen = _seen(journal, [*known, *came], criteria)
    return Scene(
        phase=drain.phase if drain is not None else "",
        mode=drain.mode if drain is not None else "memory",
        boot_id=boot_id,
        seen=seen,
        known=tuple(known.values()),
        images=images,
        ours=frozenset(
            one.identity
            for one in seen
            if drain is not None
            and (
                (one.suspended and is_ours(suspender(journal.of_process(one.identity)), drain))
                or (one.half_way and is_ours(journal.latest(one.identity), drain))
            )
        ),
    )


def is_ours(operation: Optional[Operation], drain: Drain) -> bool:
    return operation is not None and operation.id > drain.after_operation and operation.run_id in drain.runs


# Processes


def _known(journal: Journal, drain: Drain) -> Dict[Identity, Known]:
    """Those of the row, and while it is open those that the journal tells of, which survives whoever was killed."""
    found = {}
    for one in drain.processes:
        identity = Identity(**one["identity"])
        found[identity] = Known(identity, str(one["executable"]), one["device_bytes"])
    if not drain.is_open:
        return found
    touched = [operation for run_id in drain.runs for operation in journal.of_run(run_id)]
    for identity in dict.fromkeys(one.identity for one in touched if one.id > drain.after_operation):
        operations = journal.of_process(identity)
        made = last_suspend(operations)
        if made is None or not is_ours(made, drain):
            continue
        found[identity] = Known(
            identity,
            made.executable,
            sum(made.device_bytes.values()) if made.device_bytes else None,
            park=made.park,
            resumed=suspender(operations) is None,
        )
    return found


def _seen(journal: Journal, named: Sequence[Identity], criteria: Mapping[str, Any]) -> Tuple[Seen, ...]:
    boot_id = read_boot_id()
    remembered = {operation.identity: operation for operation in journal.live(boot_id)}
    processes = list_processes([*(one.pid for one in named), *(one.pid for one in remembered)])
    held = {
        one.pid: dict(operation.device_bytes)
        for one, operation in remembered.items()
        if any(process.identity == one for process in processes)
    }
    gpus = _gpus() if criteria.get("gpus") else ()
    own = own_ancestors()
    chosen = set(select(criteria or {"all": True}, Snapshot(read_host(), gpus, processes, time.time()), held)) - own
    wanted = set(named)
    return tuple(
        Seen(
            identity=process.identity,
            executable=process.executable,
            suspended=is_suspended(process),
            stopped=is_stopped(process),
            selected=process.pid in chosen,
            half_way=not is_suspended(process) and _is_broken_off(remembered.get(process.identity)),
        )
        for process in processes
        if not process.is_zombie and not process.is_thread and (process.identity in wanted or process.pid in chosen)
    )


def _is_broken_off(operation: Optional[Operation]) -> bool:
    if operation is None or operation.status not in ("active", "unknown", "failed"):
        return False
    return operation.worker is None or not is_alive(operation.worker)


def is_suspended(process: ProcessSnapshot) -> bool:
    return bool(process.looks_suspended)


def is_stopped(process: ProcessSnapshot) -> bool:
    """One thread is enough: a stop is of all, and on its way where the others still move."""
    return bool(process.frozen) or any(
        state in ("T", "t") for state in (process.state, *(one.state for one in process.threads))
    )


def _gpus() -> Tuple[GpuSnapshot, ...]:
    with GpuReader() as reader:
        return reader.read()


# Images


def _images(journal: Journal, drain: Drain) -> Tuple[ImageSeen, ...]:
    """Those in its directory, and those elsewhere that one of its runs has made."""
    rows: Dict[str, ImageRow] = {}
    for row in image_rows(journal, drain):
        rows[row.path] = row
    found: Dict[str, ImageSeen] = {}
    listed = store.list_images(drain.store) if drain.store else ()
    for entry in listed:
        made = rows.get(entry.path)
        if isinstance(entry, store.Broken):
            found[entry.path] = ImageSeen(entry.path, made.root.pid if made else 0, DAMAGED, None, why=entry.why)
        elif entry.manifest.run_id in drain.runs and not entry.manifest.snapshot:
            found[entry.path] = _image(entry, made)
    for path, row in rows.items():
        if path in found:
            continue
        image = store.find_image(path)
        if image is not None and not image.manifest.snapshot:
            found[path] = _image(image, row)
        elif image is None:
            missing = _without_image(row)
            if missing is not None:
                found[path] = missing
    return tuple(found[path] for path in sorted(found))


def image_rows(journal: Journal, drain: Drain) -> Tuple[ImageRow, ...]:
    """What the runs of a drain did with images that end the process, in its order."""
    rows = [row for run_id in drain.runs for row in journal.images_of_run(run_id) if row.id > drain.after_image]
    ended = {row.path for row in rows if row.leave == "killed"}
    return tuple(sorted((row for row in rows if row.path in ended), key=lambda row: row.id))


def _image(image: store.Image, row: Optional[ImageRow]) -> ImageSeen:
    manifest, life = image.manifest, image.life
    lives = living(life)
    # In a PID namespace of their own they have the numbers of the image only inside.
    here = inside(life.init.pid) if life.init is not None and is_alive(life.init) else {}
    state, why = life.state, ""
    if state == UNSPENT and row is not None and not row.finished and is_alive(row.root):
        state, why = UNFINISHED, f"its tree has not been ended (step {row.step})"
    elif state != "spent":
        problems = _size_problems(image)
        if problems:
            state, why = DAMAGED, problems
    return ImageSeen(
        path=image.path,
        pid=manifest.root,
        state=state,
        bytes=manifest.bytes,
        members=tuple(
            Member(
                identity=Identity(member.pid, member.start_ticks, manifest.boot_id),
                executable=member.executable,
                device_bytes=sum(member.device_bytes.values()),
                came=next((one for one in lives if one.pid == here.get(member.pid, member.pid)), None),
            )
            for member in manifest.tree
            if member.cuda
        ),
        lives=bool(lives) or state == UNFINISHED,
        why=why,
    )


def _size_problems(image: store.Image) -> str:
    try:
        return "; ".join(digest.verify(image.path, image.manifest.chunks, "sizes"))
    except OSError as error:
        return f"it can't be read: {error.strerror or error}"


def _without_image(row: ImageRow) -> Optional[ImageSeen]:
    """There is none at its path. None: nor should there be."""
    if row.status in ("undone", "failed", "restored", "restoring") and row.finished:
        return None
    if is_alive(row.root):
        held = any(task_state(one.pid, one.pid) in ("T", "t") for one in row.stopped if is_alive(one))
        partial = store.has_partial(row.path)
        return ImageSeen(row.path, row.root.pid, UNFINISHED, None, lives=held) if held or partial else None
    why = "it is not there any more"
    if row.status not in ("sealed", "gone"):
        why = f"its tree has ended in the middle of the dump (step {row.step})"
        if store.has_partial(row.path):
            why += (
                f"; keep {row.path}.partial, which may hold it: criu_image with state: restored and path: {row.path} "
            )
            why += "finishes it where it is whole"
    return ImageSeen(row.path, row.root.pid, MISSING, None, (Member(row.root, "", None),), why=why)


# Who is at work


def at_work(journal: Journal, drain: Drain) -> Tuple[str, ...]:
    """Workers of its runs that are at work on a process or an image right now, in words."""
    found: List[str] = []
    seen: Set[Identity] = set()
    for run_id in drain.runs:
        for operation in reversed(journal.of_run(run_id)):
            if operation.identity in seen:
                continue
            seen.add(operation.identity)
            worker = operation.worker
            if operation.status in ("active", "unknown") and worker is not None and is_alive(worker):
                found.append(f"worker PID {worker.pid} at step {operation.step} of PID {operation.identity.pid}")
        for path, row in {row.path: row for row in journal.images_of_run(run_id)}.items():
            if row.finished:
                continue
            if row.worker is not None and is_alive(row.worker):
                found.append(f"worker PID {row.worker.pid} at step {row.step} of image {path}")
                continue
            criu = criu_at(path)
            if criu:
                found.append(f"criu PID {criu} at image {path}")
    return tuple(found)


def wait_until_idle(
    journal: Journal,
    drain: Drain,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Tuple[str, ...]:
    """Until nobody is at work for it; who still is after so many seconds, empty: nobody."""
    end = now() + seconds
    while True:
        busy = at_work(journal, drain)
        if not busy or now() > end:
            return busy
        sleep(POLL_SECONDS)


def guards(journal: Journal) -> FrozenSet[int]:
    """PIDs of workers that are attached to a process of this host, whoever started them."""
    return frozenset(
        operation.worker.pid
        for operation in journal.live(read_boot_id())
        if operation.worker is not None and is_alive(operation.worker)
    )
