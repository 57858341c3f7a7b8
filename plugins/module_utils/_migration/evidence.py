# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a migration knows of the processes of its source, before there is an image of them. Frozen.

It goes from host to host by way of the controller, as one word that no template takes for anything else. The target
reads it as input from outside.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from dataclasses import asdict
from typing import Dict, Mapping, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import manifest as manifests
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.digest import FileDigest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import FieldError, Fields, parse, text
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import STATES
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

#: Of a tree: it runs, and there is no image of it yet. The other states are those of an image.
LIVE = "live"
#: One chunk, whatever the size: there is nothing yet that could be hashed.
_CHUNK = 1 << 40
_PATH = re.compile(r"/[^\x00\ud800-\udc7f\udd00-\udfff]{0,4200}", re.DOTALL)
_HEX = re.compile(r"[0-9a-f]{2,128}")
_TOKEN = re.compile(r"(?:[0-9a-f]{32})?")
_FLAG = re.compile(r"[a-z0-9_.]{1,64}")
_MOST = 1 << 17
_UNPACKED = 64 << 20


@dataclass(frozen=True)
class TreeEvidence:
    """manifest: of its image, or what that would be. state: "live", or that of the image. handoff: the id of the move
    that it is in, peer: the machine id of the host that it goes to; "" for none. build_ids: by the path of a program or
    library. directories: those that its processes are in.
    """

    manifest: Manifest
    state: str
    handoff: str
    peer: str
    build_ids: Mapping[str, str]
    directories: Tuple[str, ...]


@dataclass(frozen=True)
class SourceEvidence:
    """hostname, machine: of the source, the latter its machine id. cpu: the name of its processor. flags: what that can
    do, by the names of the kernel."""

    hostname: str
    machine: str
    cpu: str
    flags: Tuple[str, ...]
    trees: Tuple[TreeEvidence, ...]


def forecast(size: int) -> Tuple[FileDigest, ...]:
    """In place of the files of an image that is not there, of so many bytes together."""
    return (FileDigest("pages-1.img", size, _CHUNK, ("0" * 64,) * max(1, -(-size // _CHUNK))),)


def pack(evidence: SourceEvidence) -> str:
    """Letters, digits and + / = only."""
    data = asdict(evidence)
    data["trees"] = [
        {
            "manifest": manifests.to_json(tree.manifest).decode("ascii"),
            "state": tree.state,
            "handoff": tree.handoff,
            "peer": tree.peer,
            "build_ids": dict(tree.build_ids),
            "directories": list(tree.directories),
        }
        for tree in evidence.trees
    ]
    return base64.b64encode(zlib.compress(json.dumps(data).encode("ascii"))).decode("ascii")


def unpack(word: str) -> SourceEvidence:
    """Raises FieldError for whatever is not as pack() gives it."""
    opened = zlib.decompressobj()
    try:
        text_of = opened.decompress(base64.b64decode(word.encode("ascii"), validate=True), _UNPACKED)
    except (binascii.Error, UnicodeEncodeError, zlib.error, ValueError):
        raise FieldError("evidence", "damaged", "what gpu_migration_info returned on the source") from None
    if opened.unconsumed_tail:
        raise FieldError("evidence", f"more than {_UNPACKED} bytes", "less")
    return _from_data(parse(text_of))


def _from_data(data: object) -> SourceEvidence:
    fields = Fields(data, "", SourceEvidence.__dataclass_fields__)
    trees = [_tree(value, name) for name, value in fields.items("trees", 4096)]
    names = [tree.manifest.name for tree in trees]
    if len(set(names)) < len(names):
        raise FieldError("trees", "with one name twice", "each image once")
    return SourceEvidence(
        hostname=fields.line("hostname"),
        machine=fields.text("machine", _TOKEN, "a machine id, or nothing"),
        cpu=fields.line("cpu"),
        flags=tuple(text(one, name, _FLAG, "the name of a feature") for name, one in fields.items("flags", 4096)),
        trees=tuple(trees),
    )


def _tree(value: object, where: str) -> TreeEvidence:
    one = Fields(value, where, TreeEvidence.__dataclass_fields__)
    told = one.raw("manifest")
    if not isinstance(told, str):
        raise FieldError(one.name("manifest"), "no text", "a manifest as text")
    build_ids: Dict[str, str] = {}
    for path, found in one.mapping("build_ids", _MOST):
        named = one.name("build_ids")
        build_ids[text(path, named, _PATH, "absolute paths")] = text(found, named, _HEX, "build ids")
    return TreeEvidence(
        manifest=manifests.from_json(told.encode("utf-8", "surrogatepass")),
        state=one.choice("state", (LIVE, *STATES)),
        handoff=one.text("handoff", _TOKEN, "32 digits, 0-9a-f, or nothing"),
        peer=one.text("peer", _TOKEN, "a machine id, or nothing"),
        build_ids=build_ids,
        directories=tuple(
            text(path, name, _PATH, "an absolute path") for name, path in one.items("directories", 1 << 12)
        ),
    )
