# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image says about itself, so that it can be judged, checked and brought back without the host it was made on.

It comes from outside: an image may have been copied, damaged or made to do harm. So nothing of it is used that
was not checked, and nothing in it leads out of the image.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import (
    MANIFEST,
    NAME,
    NAME_ALLOWED,
    is_content,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.digest import FileDigest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import write_file
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import (
    FieldError,
    Fields,
    number,
    parse,
    read_limited,
    shown,
    text,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular, TreeMember
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

VERSION = 1
#: Of the file, in bytes.
MOST = 16 << 20
#: PIDs are below (Linux on 64 bits: PID_MAX_LIMIT).
PIDS = 1 << 22
#: Bytes of a file, a memory, an image: a pebibyte.
BYTES = 1 << 50
_MEMBERS = 1 << 16
_FILES = 1 << 17
_CHUNK_LEAST, _CHUNK_MOST = 1 << 16, 1 << 40
_STATES = ("", "running", "locked", "checkpointed")

_LINEAGE = re.compile(r"[A-Za-z0-9-]{1,64}")
_BOOT = re.compile(r"[0-9a-f-]{1,64}")
_UUID = re.compile(r"[A-Za-z0-9/_-]{1,100}")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+~-]{0,63}")
_DRIVER = re.compile(r"(?:[0-9][0-9.]{0,31})?")
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# What the kernel gives out as it is: whatever bytes a file or a thread is called by, but never a zero byte.
_COMM = re.compile(r"[^\x00\ud800-\udc7f\udd00-\udfff]{0,64}", re.DOTALL)
_PATH = re.compile(r"/[^\x00\ud800-\udc7f\udd00-\udfff]{0,4200}", re.DOTALL)
_PATH_OR_NONE = re.compile(r"(?:/[^\x00\ud800-\udc7f\udd00-\udfff]{0,4200})?", re.DOTALL)
_OPTION = re.compile(r"[^\x00-\x1f\x7f\ud800-\udc7f\udd00-\udfff]{1,4300}")
_SELECTION = re.compile(r"[\x20-\x7e]{0,65536}")
_A_PATH = "an absolute path"


@dataclass(frozen=True)
class ManifestGpu:
    """A GPU of the host. bytes: its memory."""

    uuid: str
    index: int
    model: str
    bytes: int


@dataclass(frozen=True)
class Member:
    """A process of the tree. parent, group, session: PIDs. threads: thread ids, its own PID first.
    device_bytes: GPU UUID to bytes. state_before: of CUDA, "" where it has none. stopped_before: by somebody else than
    those who made the image, so it stays stopped when it is restored."""

    pid: int
    parent: int
    group: int
    session: int
    start_ticks: int
    name: str
    executable: str
    uid: int
    threads: Tuple[int, ...]
    cuda: bool
    device_bytes: Mapping[str, int]
    state_before: str
    stopped_before: bool


def member_of(
    seen: TreeMember, device_bytes: Mapping[str, int], state_before: str = "", stopped_before: bool = False
) -> Member:
    """As the manifest tells a process that was seen."""
    return Member(
        pid=seen.pid,
        parent=seen.parent,
        group=seen.group,
        session=seen.session,
        start_ticks=seen.identity.start_ticks,
        name=seen.name,
        executable=seen.executable,
        uid=seen.uid,
        threads=seen.threads,
        cuda=seen.cuda,
        device_bytes=device_bytes,
        state_before=state_before,
        stopped_before=stopped_before,
    )


@dataclass(frozen=True)
class Manifest:
    """lineage: joins a process, its images and its later lives. created: seconds since the epoch.
    hostname, kernel, boot_id, machine: of the host. driver: its version, "" for none. gpus: all of the host.
    criu: its version. options: CRIU's, as they were chosen. root: its PID. tree: parents before their children.
    host_bytes: memory of the tree. files: what it has open, by path; size -1 is any. chunks: every file of the image.
    snapshot: the tree went on. compressed: "" or "zstd". selection: the option select, as JSON, "" for none.
    """

    lineage: str
    created: float
    hostname: str
    kernel: str
    boot_id: str
    machine: str
    driver: str
    gpus: Tuple[ManifestGpu, ...]
    criu: str
    options: Tuple[str, ...]
    root: int
    tree: Tuple[Member, ...]
    host_bytes: int
    files: Tuple[OpenRegular, ...]
    chunks: Tuple[FileDigest, ...]
    snapshot: bool
    compressed: str
    run_id: str
    name: str
    selection: str = ""
    version: int = VERSION

    @property
    def root_identity(self) -> Identity:
        """Of the process that was dumped."""
        return Identity(self.root, self.tree[0].start_ticks, self.boot_id)

    @property
    def pids(self) -> Tuple[int, ...]:
        return tuple(member.pid for member in self.tree)

    @property
    def bytes(self) -> int:
        """Of the image on the disk."""
        return sum(one.bytes for one in self.chunks)

    @property
    def device_bytes(self) -> Dict[str, int]:
        """GPU UUID to bytes that the tree held there."""
        total: Dict[str, int] = {}
        for member in self.tree:
            for uuid, count in member.device_bytes.items():
                total[uuid] = total.get(uuid, 0) + count
        return total

    def member(self, pid: int) -> Optional[Member]:
        return next((member for member in self.tree if member.pid == pid), None)


def to_json(manifest: Manifest) -> bytes:
    """One line per field, in ASCII."""
    values = asdict(manifest)
    ordered = {"version": values.pop("version"), **values}
    lines = [f"{json.dumps(name)}: {_lines(value)}" for name, value in ordered.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def _lines(value: Any) -> str:
    if isinstance(value, (list, tuple)) and any(isinstance(one, dict) for one in value):
        return "[\n" + ",\n".join(" " + json.dumps(one) for one in value) + "\n]"
    return json.dumps(value)


def from_json(data: bytes, sealed: bool = True) -> Manifest:
    """sealed: it has chunks. Raises FieldError for whatever is not as this release writes it."""
    if len(data) > MOST:
        raise FieldError("", f"{len(data)} bytes long", f"at most {MOST} bytes")
    value = parse(data)
    if isinstance(value, dict) and value.get("version") is not True and value.get("version") != VERSION:
        allowed = f"{VERSION}; a newer release of gpufleet.checkpoint may know it"
        raise FieldError("version", shown(value.get("version")), allowed)
    fields = Fields(value, "", Manifest.__dataclass_fields__)
    tree = _tree(fields)
    gpus = _gpus(fields)
    known = {gpu.uuid for gpu in gpus}
    for index, member in enumerate(tree):
        for uuid in member.device_bytes:
            if uuid not in known:
                raise FieldError(f"tree[{index}].device_bytes", f'with "{uuid}"', "GPUs that are in gpus")
    return Manifest(
        lineage=fields.text("lineage", _LINEAGE, "at most 64 letters, digits and -"),
        created=fields.real("created", 0.0, 1e12),
        hostname=fields.line("hostname"),
        kernel=fields.line("kernel"),
        boot_id=fields.text("boot_id", _BOOT, "a boot id"),
        machine=fields.text("machine", _WORD, "a machine as uname names it"),
        driver=fields.text("driver", _DRIVER, "a version like 580.159.04"),
        gpus=gpus,
        criu=fields.text("criu", _VERSION, "a version like 4.1.1"),
        options=tuple(text(one, name, _OPTION, "an option of CRIU") for name, one in fields.items("options", 4096)),
        root=number(fields.raw("root"), "root", tree[0].pid, tree[0].pid),
        tree=tree,
        host_bytes=fields.number("host_bytes", 0, BYTES),
        files=_files(fields),
        chunks=_chunks(fields) if sealed else (),
        snapshot=fields.flag("snapshot"),
        compressed=fields.choice("compressed", ("", "zstd")),
        run_id=fields.line("run_id"),
        name=fields.text("name", NAME, NAME_ALLOWED),
        selection=fields.text("selection", _SELECTION, "printable ASCII, at most 65536 characters"),
        version=fields.number("version", VERSION, VERSION),
    )


def _gpus(fields: Fields) -> Tuple[ManifestGpu, ...]:
    found: Dict[str, ManifestGpu] = {}
    for name, value in fields.items("gpus", 1024):
        one = Fields(value, name, ManifestGpu.__dataclass_fields__)
        gpu = ManifestGpu(
            uuid=one.text("uuid", _UUID, "the UUID of a GPU"),
            index=one.number("index", 0, 1 << 16),
            model=one.line("model"),
            bytes=one.number("bytes", 0, BYTES),
        )
        if gpu.uuid in found:
            raise FieldError(f"{name}.uuid", f'"{gpu.uuid}", as before', "each GPU once")
        found[gpu.uuid] = gpu
    return tuple(found.values())


def _tree(fields: Fields) -> Tuple[Member, ...]:
    members: List[Member] = []
    pids: Set[int] = set()
    threads: Set[int] = set()
    for name, value in fields.items("tree", _MEMBERS):
        member = _member(Fields(value, name, Member.__dataclass_fields__))
        for tid in member.threads:
            if tid in threads:
                raise FieldError(f"{name}.threads", f"with {tid}, as before", "each thread once")
            threads.add(tid)
        if pids and member.parent not in pids:
            raise FieldError(f"{name}.parent", str(member.parent), "a PID of the tree that comes before it")
        pids.add(member.pid)
        members.append(member)
    if not members:
        raise FieldError("tree", "empty", "at least one process")
    return tuple(members)


def _member(one: Fields) -> Member:
    pid = one.number("pid", 1, PIDS - 1)
    threads = tuple(number(tid, name, 1, PIDS - 1) for name, tid in one.items("threads", PIDS))
    if not threads or threads[0] != pid:
        raise FieldError(one.name("threads"), shown(list(threads)), f"a list that begins with {pid}")
    device_bytes: Dict[str, int] = {}
    for uuid, count in one.mapping("device_bytes", 1024):
        named = f"{one.name('device_bytes')}.{printable(uuid)[:40]}"
        device_bytes[text(uuid, named, _UUID, "the UUID of a GPU")] = number(count, named, 0, BYTES)
    return Member(
        pid=pid,
        parent=one.number("parent", 0, PIDS - 1),
        group=one.number("group", 0, PIDS - 1),
        session=one.number("session", 0, PIDS - 1),
        start_ticks=one.number("start_ticks", 0, (1 << 63) - 1),
        name=one.text("name", _COMM, "at most 64 characters"),
        executable=one.text("executable", _PATH_OR_NONE, f"{_A_PATH}, or nothing"),
        uid=one.number("uid", 0, (1 << 32) - 1),
        threads=threads,
        cuda=one.flag("cuda"),
        device_bytes=device_bytes,
        state_before=one.choice("state_before", _STATES),
        stopped_before=one.flag("stopped_before"),
    )


def _files(fields: Fields) -> Tuple[OpenRegular, ...]:
    found = []
    for name, value in fields.items("files", _FILES):
        one = Fields(value, name, OpenRegular.__dataclass_fields__)
        found.append(
            OpenRegular(
                path=one.text("path", _PATH, _A_PATH),
                size=one.number("size", -1, (1 << 63) - 1),
                deleted=one.flag("deleted"),
                writable=one.flag("writable"),
            )
        )
    return tuple(found)


def _chunks(fields: Fields) -> Tuple[FileDigest, ...]:
    found: Dict[str, FileDigest] = {}
    for name, value in fields.items("chunks", _FILES):
        one = Fields(value, name, FileDigest.__dataclass_fields__)
        file = one.text("name", NAME, NAME_ALLOWED)
        if not is_content(file):
            raise FieldError(f"{name}.name", f'"{file}"', "files that CRIU makes at a dump")
        if file in found:
            raise FieldError(f"{name}.name", f'"{file}", as before', "each file once")
        size = one.number("bytes", 0, BYTES)
        chunk = one.number("chunk_bytes", _CHUNK_LEAST, _CHUNK_MOST)
        count = max(1, -(-size // chunk))
        sums = tuple(text(each, at, _SHA256, "64 digits, 0-9a-f") for at, each in one.items("sha256s", _FILES))
        if len(sums) != count:
            raise FieldError(one.name("sha256s"), f"a list of {len(sums)}", f"{count}, for {size} bytes")
        found[file] = FileDigest(file, size, chunk, sums)
    if not found:
        raise FieldError("chunks", "empty", "the files of the image")
    return tuple(found.values())


def read_manifest(directory: str) -> Manifest:
    """Raises CriuError."""
    path = os.path.join(directory, MANIFEST)
    try:
        return from_json(read_limited(path, MOST))
    except FieldError as error:
        raise CriuError(
            path,
            str(error),
            "It was written by another release, damaged, or made by somebody who means harm: nothing of it is used.",
            "Bring the image from its origin again.",
        ) from None
    except OSError as error:
        raise CriuError(
            path, str(error.strerror), "Without it an image can't be judged.", "Bring the image from its origin again."
        ) from None


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Durable. Raises CriuError: what could not be read again is not written; OSError."""
    data = to_json(manifest)
    try:
        from_json(data)
    except FieldError as error:
        raise CriuError(
            os.path.join(directory, MANIFEST),
            str(error),
            "An image that can't be read again is of no use.",
            "This is an error of the program: please report it.",
        ) from None
    write_file(directory, MANIFEST, data)
