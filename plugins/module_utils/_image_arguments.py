# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the operator asked of criu_image, checked before anything is looked at."""

from __future__ import annotations

import os
import re
from typing import Any, FrozenSet, List, Mapping

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _arguments, _image_findings
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import fit
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import options as criu_options
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._engine import ALLOW as CUDA_ALLOW
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageOptions

ALLOW: FrozenSet[str] = CUDA_ALLOW | _image_findings.OPTIONS | fit.OPTIONS
CRIU = (
    "tcp_established",
    "shell_job",
    "file_locks",
    "link_remap",
    "ext_unix_sk",
    "ghost_limit",
    "manage_cgroups",
    "external",
    "timeout",
)
#: CRIU's options that say what to do about a hazard lift it.
LIFTED = {
    "tcp_established": "tcp_established",
    "shell_job": "controlling_tty",
    "file_locks": "file_lock",
    "ext_unix_sk": "external_unix_socket",
    "link_remap": "deleted_file",
}
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse(params: Mapping[str, Any], check: bool) -> ImageOptions:
    """Raises ArgumentError."""
    state = params["state"]
    raw = params["pids"] if params["pids"] is not None else [] if params["pid"] is None else [params["pid"]]
    path, store = (_arguments.parse_place(name, params[name]) for name in ("path", "store"))
    _check_combination(params, state, raw)
    if params["parallel"] < 0:
        raise ArgumentError("parallel", str(params["parallel"]), "0 (as many as processors) or more is allowed.")
    keep = params["keep"]
    if keep is not None and keep < 0:
        raise ArgumentError("keep", str(keep), "0 or more is allowed.")
    allow = _arguments.parse_allow(params["allow"], ALLOW)
    lifted = {hazard for option, hazard in LIFTED.items() if params[option] == "yes"}
    return ImageOptions(
        state=state,
        pids=_arguments.parse_pids(raw) if raw else (),
        select=_arguments.parse_select(params["select"]),
        path=path,
        store=store,
        leave_running=bool(params["leave_running"]),
        all_or_nothing=params["all_or_nothing"],
        parallel=params["parallel"],
        verify=params["verify"],
        compress=params["compress"],
        force=params["force"],
        keep=keep,
        max_age=None if params["max_age"] is None else parse_age(params["max_age"]),
        allow=allow | lifted,
        criu=criu_options.parse({name: params[name] for name in CRIU}),
        criu_executable=params["criu_executable"] or "",
        step_timeout=params["step_timeout"],
        unit_policy=params["unit_policy"],
        pid_namespace=_pid_namespace(params["pid_namespace"], state),
        cuda=_cuda(params, (allow | lifted) & CUDA_ALLOW, check),
        journal=os.path.abspath(params["journal"]),
        run_id=_arguments.parse_run_id(params["run_id"]),
        device_map=_arguments.parse_device_map(params["device_map"]),
        check=check,
    )


def _pid_namespace(value: str, state: str) -> str:
    if value != "same" and state != "restored":
        raise ArgumentError("pid_namespace", f"{value} with state {state}", "It says where a tree is restored to.")
    return value


def _check_combination(params: Mapping[str, Any], state: str, raw: List[Any]) -> None:
    chosen = bool(raw) or params["select"] is not None
    if state == "present":
        if not chosen:
            raise ArgumentError("state", "present without pid, pids or select", "Say which processes are to be dumped.")
        if params["leave_running"] is None:
            raise ArgumentError(
                "leave_running",
                "it is not given",
                "false: the process ends once its image is complete; true: it goes on, and the image is a snapshot.",
            )
        if params["path"] and (params["select"] is not None or len(raw) != 1):
            raise ArgumentError("path", "one path for several processes", "Name a store; each gets an image in it.")
    elif chosen:
        raise ArgumentError(
            "pids" if raw else "select",
            f"given with state {state}",
            "An image says itself which processes it holds: name its path, or the store.",
        )
    if not params["path"] and not params["store"]:
        raise ArgumentError("path", "neither path nor store is given", "Name the image, or the store of images.")
    pruning = params["keep"] is not None or params["max_age"] is not None
    if pruning and (state != "absent" or not params["store"]):
        raise ArgumentError(
            "keep", "given without state absent and store", "Old images of a store are deleted with them."
        )
    if state == "absent" and params["store"] and not pruning:
        raise ArgumentError("store", "state absent for a whole store", "Say which: keep, max_age, or the path of one.")


def _cuda(params: Mapping[str, Any], allow: FrozenSet[str], check: bool) -> _arguments.Options:
    _arguments.check_ranges(0, params["lock_timeout"], params["step_timeout"])
    return _arguments.Options(
        goal="checkpointed",
        pids=(),
        select=None,
        allow=allow,
        park=True,
        guard="holder",
        backend=params["backend"],
        executable=params["executable"] or "",
        parallel=0,
        lock_timeout=params["lock_timeout"],
        step_timeout=params["step_timeout"],
        rollback=True,
        device_map=None,
        huge_pages=params["huge_pages"],
        full_command=False,
        journal=os.path.abspath(params["journal"]),
        run_id=_arguments.parse_run_id(params["run_id"]),
        check=check,
        unit_policy=params["unit_policy"],
    )


def parse_age(text: str) -> float:
    """Seconds. Raises ArgumentError."""
    found = re.match(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)\Z", text)
    if not found:
        raise ArgumentError("max_age", repr(text), "A number of seconds, or one with s, m, h, d or w behind it.")
    return float(found.group(1)) * _UNITS[found.group(2)]
