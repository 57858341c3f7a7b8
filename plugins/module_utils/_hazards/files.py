# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that an image refers to, and that may be gone or others by the time it is restored."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around import OpenFile
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around_parse import is_network, is_volatile
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    IMAGES,
    MIB,
    Context,
    ProcessHazard,
    comma,
    name_of,
    size,
    ties_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

#: CRIU's own limit for the content of files without a name that it takes into an image.
GHOST_BYTES = MIB

_GONE = "CRIU opens every file by its name at restore, and refuses the image if one is gone or has another size"


def shown(process: ProcessSnapshot, files: Sequence[OpenFile], tell: Callable[[OpenFile], str] = lambda one: "") -> str:
    """ "descriptor 3, /a/b (12 MiB)"; PIDs only of other members of the tree."""
    words = []
    for one in files:
        told = tell(one)
        who = "" if one.pid == process.pid else f"PID {one.pid} "
        words.append(f"{who}{one.what}, {one.path}{f' ({told})' if told else ''}")
    return comma(words, 4)


def files_of(context: Context, process: ProcessSnapshot) -> Sequence[OpenFile]:
    ties = ties_of(context, process)
    return () if ties is None else ties.files


class FilesUnknown(ProcessHazard):
    """What the other detectors over files, pipes and sockets would have to see. They say nothing where it is
    unknown."""

    id = "files_unknown"
    actions = IMAGES

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        ties = ties_of(context, process)
        if ties is not None and not ties.unseen:
            return None
        what = comma(ties.unseen) if ties is not None else "its tree"
        return self.finding(
            name_of(process),
            f"what {what} has open can't be seen",
            "Whether CRIU can dump it, and what would be missing at restore, can't be told",
            "Run this as root on the host itself (become: true)",
            process.pid,
        )


class DeletedFile(ProcessHazard):
    """CRIU takes the content of a file without a name into the image up to 1 MiB (--ghost-limit); one that has other
    names needs --link-remap."""

    id = "deleted_file"
    actions = IMAGES
    option = "deleted_file"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        ties = ties_of(context, process)
        if ties is None:
            return None
        gone = [one for one in ties.files if one.deleted and not is_network(one.filesystem)]
        large = [one for one in gone if (one.size or 0) > GHOST_BYTES or one.links or not one.what.startswith("desc")]
        mapped = [one for one in ties.mappings if one.bytes > GHOST_BYTES]
        if not gone and not ties.mappings:
            return None
        words = []
        if gone:
            words.append(shown(process, gone, lambda one: "" if one.size is None else size(one.size)))
        if ties.mappings:
            words.append("mapped " + comma([f"{one.path} ({size(one.bytes)})" for one in ties.mappings], 4))
        return self.finding(
            name_of(process),
            f"it uses files that were deleted: {'; '.join(words)}",
            "Their content has no name to be opened by at restore. CRIU puts up to 1 MiB of each into the image, and "
            "refuses larger ones, and those that have another name left, unless it is told otherwise",
            "Let the program close them (after an upgrade of libraries: start it anew), or consent to larger ones in "
            "the image",
            process.pid,
            severity=BLOCKING if large or mapped else WARNING,
        )


class FileLock(ProcessHazard):
    """CRIU refuses locks unless it is told --file-locks."""

    id = "file_lock"
    actions = IMAGES
    option = "file_lock"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        locked = [one for one in files_of(context, process) if one.locks]
        if not locked:
            return None
        return self.finding(
            name_of(process),
            f"it holds locks on files: {shown(process, locked, lambda one: comma(one.locks))}",
            "The locks are free while it is in the image; if another program takes one, the restore fails, and if it "
            "changes the file, the process comes back to a file that is not its own any more",
            "Let the program release them, or consent if nobody else uses these files",
            process.pid,
        )


class VolatileFile(ProcessHazard):
    """Files that live in memory only."""

    id = "volatile_file"
    actions = IMAGES
    option = "volatile_file"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        lost = [one for one in files_of(context, process) if is_volatile(one.filesystem) and not one.deleted]
        if not lost:
            return None
        return self.finding(
            name_of(process),
            f"it uses files that live in memory: {shown(process, lost, lambda one: one.filesystem)}",
            f"They are gone after a reboot, and are not on another host. {_GONE}",
            "Let the program use a directory on a disk, or consent if the process comes back on this host before its "
            "next boot",
            process.pid,
        )


class NfsFile(ProcessHazard):
    """Files of a server, or of a program (FUSE)."""

    id = "nfs_file"
    actions = IMAGES
    option = "nfs_file"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        there = [one for one in files_of(context, process) if is_network(one.filesystem)]
        if not there:
            return None
        nameless = [one for one in there if one.deleted or "/.nfs" in one.path]
        return self.finding(
            name_of(process),
            f"it uses files of a file server: {shown(process, there, lambda one: one.filesystem)}"
            + (f"; deleted there: {comma(one.path for one in nameless)}" if nameless else ""),
            f"Others can change them meanwhile, and root may not be allowed to open them. {_GONE}",
            "Let the program close the deleted ones"
            if nameless
            else "Make sure that the same file system is mounted there at restore, and that nobody changes these files",
            process.pid,
            severity=BLOCKING if nameless else WARNING,
        )


class RotatedLog(ProcessHazard):
    """Logs: one that was rotated away is compressed or deleted next; one that is not, may be before the restore."""

    id = "rotated_log"
    actions = IMAGES
    option = "rotated_log"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        written = [one for one in files_of(context, process) if one.writable and not one.deleted]
        away = [one for one in written if one.rotated]
        due = [one for one in written if one.path.startswith("/var/log/")]
        found: List[OpenFile] = away or due
        if not found:
            return None
        return self.finding(
            name_of(process),
            f"it writes to {'logs that were rotated away' if away else 'a log that logrotate may rotate meanwhile'}: "
            f"{shown(process, found)}",
            _GONE,
            "Let the program open its log anew (often SIGHUP, or copytruncate is missing), and hold logrotate until it "
            "is restored",
            process.pid,
            severity=BLOCKING if away else WARNING,
        )
