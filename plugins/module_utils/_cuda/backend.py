# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ways to the driver, behind one protocol, and the choice between them."""

from __future__ import annotations

from typing import Optional, Protocol, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import libcuda, tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.cli import NEEDED, Cli
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.errors import BackendError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.libcuda import Libcuda
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.toggle import Toggle
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import parse_driver_version

__all__ = ["WANTED", "Backend", "BackendError", "Call", "Reply", "choose"]

_VERSION_FILE = "/proc/driver/nvidia/version"
WANTED = ("auto", "libcuda", "cli", "toggle")


class Call(Protocol):
    """A driver call on its way. Nothing can cut it."""

    def poll(self) -> Optional[Reply]:
        """The reply, or None. Never blocks."""

    def wait(self, seconds: float) -> Optional[Reply]:
        """The reply as soon as it is there; None after `seconds` without one: the call goes on."""


class Backend(Protocol):
    """Each method starts its call and returns at once. Raises ValueError for arguments that are none."""

    @property
    def name(self) -> str:
        """As in the option `backend`."""

    @property
    def can_lock(self) -> bool:
        """Whether lock and unlock are steps of their own."""

    @property
    def can_hold(self) -> bool:
        """Whether the restore thread can be named, so that the others can be held."""

    @property
    def can_map(self) -> bool:
        """Whether restore takes a device map."""

    def prepare(self) -> None:
        """What every later call needs, done once before workers are forked. No driver call."""

    def state(self, pid: int) -> Call:
        """Its state."""

    def restore_thread(self, pid: int) -> Call:
        """The id of its restore thread."""

    def lock(self, pid: int, timeout_ms: int) -> Call:
        """From running to locked."""

    def checkpoint(self, pid: int) -> Call:
        """From locked to checkpointed."""

    def restore(self, pid: int, device_map: Sequence[Tuple[str, str]]) -> Call:
        """From checkpointed to locked. device_map: UUIDs before and after, of every GPU of the host, or none."""

    def unlock(self, pid: int) -> Call:
        """From locked to running."""


_UPGRADE = "Use driver 550 or later (from 570 on no tool is needed), or name another cuda-checkpoint with `executable`"
_INSTALL = (
    "Install NVIDIA's cuda-checkpoint and name it with `executable`, or use driver 570 or later, whose libcuda.so.1 "
    "needs no tool"
)


def choose(wanted: str = "auto", executable: str = tool.DEFAULT, library: str = libcuda.LIBRARY) -> Backend:
    """The backend to use, after a look at what is there. Makes no driver call on any process, loads no library into
    the caller, and starts no thread.

    wanted: "auto" takes the first usable of libcuda, cli, toggle. executable: path of cuda-checkpoint, or its name on
    PATH. Raises BackendError; ValueError for a `wanted` that is no backend.
    """
    if wanted not in WANTED:
        raise ValueError(f"{wanted!r} is no backend: {', '.join(WANTED)}")
    tried = [_driver()]
    if wanted in ("auto", "libcuda"):
        found = libcuda.probe(library)
        if found.usable:
            return Libcuda(library, can_map=found.version >= libcuda.FIRST_WITH_PAIRS)
        tried.append(found.why)
        if wanted == "libcuda":
            remedy = "Use driver 570 or later, or `backend: auto`, which falls back on cuda-checkpoint"
            raise BackendError("backend libcuda can't be used", "; ".join(tried), remedy)
    try:
        offer = tool.probe(executable)
    except tool.ToolError as error:
        tried.append(str(error))
        subject = "no way to suspend CUDA processes" if wanted == "auto" else f"backend {wanted} can't be used"
        raise BackendError(subject, "; ".join(tried), _UPGRADE if error.there else _INSTALL) from error
    if wanted != "toggle" and offer.options.issuperset(NEEDED):
        return Cli(offer)
    if "--action" not in offer.options and wanted != "cli":
        return Toggle(offer)
    raise _refuse(wanted, offer, tried)


def _driver() -> str:
    try:
        with open(_VERSION_FILE, encoding="utf-8", errors="replace") as stream:
            return f"the driver is {parse_driver_version(stream.read()) or 'of an unknown version'}"
    except OSError:
        return "no NVIDIA driver is loaded"


def _refuse(wanted: str, offer: tool.Offer, tried: Sequence[str]) -> BackendError:
    seen = "; ".join([*tried, f"{offer.executable} --help lists {', '.join(sorted(offer.options))}"])
    if wanted == "toggle":
        return BackendError(
            "backend toggle is refused",
            f"{seen}. A toggle turns round when it is repeated and can't be held, so it is used only where there is "
            "nothing else",
            "Use `backend: auto` or `backend: cli`",
        )
    if wanted == "cli" and "--action" not in offer.options:
        return BackendError(
            "backend cli can't be used",
            f"{seen}, but not --action, which drivers from 555 on have",
            "Use `backend: auto`; what a toggle can't do is refused by name",
        )
    missing = ", ".join(option for option in NEEDED if option not in offer.options)
    return BackendError("cuda-checkpoint can't be used", f"{seen}, but not {missing}", "Use driver 570 or later")
