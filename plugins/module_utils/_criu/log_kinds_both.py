# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why CRIU neither dumps nor restores."""

from __future__ import annotations

from typing import Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kind import BOTH, Kind

KINDS: Tuple[Kind, ...] = (
    Kind(
        "network_lock",
        BOTH,
        "Iptables configuration failed; Failed to lock TCP connection",
        "CRIU holds the packets of a TCP connection back while it works on it, and has no tool for that",
        "Install iptables, or nftables and a CRIU that was built with it; or close the connections before",
    ),
    Kind(
        "no_space",
        BOTH,
        "No space left on device; Disk quota exceeded",
        "A disk is full: in a dump that of the image, which needs as much room as the tree has memory, device memory "
        "included; in a restore that of a deleted file that was in the image",
        "Free space there, or put the image elsewhere, and run the task again",
    ),
    Kind(
        "image_directory",
        BOTH,
        "Can't open dir PATH; Couldn't open image dir",
        "The directory of the image is not there, or can't be opened",
        "Look at the path, and whether its file system is mounted",
    ),
    Kind(
        "not_root",
        BOTH,
        "CRIU needs to have the CAP_SYS_ADMIN or the CAP_CHECKPOINT_RESTORE capability; You need to be root",
        "CRIU does not run as root",
        "Run the task as root (become: true)",
    ),
    Kind(
        "missing_capability",
        BOTH,
        "Unable to create a new time namespace: Operation not permitted; Unable to restore capabilities; "
        "Can't set user ID",
        "Root lacks a capability here, as in a container or under a unit with CapabilityBoundingSet=",
        "Run it on the host itself, with every capability (CapBnd in /proc/self/status shows them)",
    ),
    Kind(
        "kernel_feature",
        BOTH,
        "failed when initializing kerndat; Could not initialize kernel features detection; Tracking memory is not "
        "available; vdso",
        "This kernel and this CRIU do not fit: the kernel lacks what CRIU needs, or is newer than CRIU knows",
        "Look at what `criu check` says; take a newer CRIU; remove /run/criu.kdat if the kernel was changed",
    ),
    Kind(
        "plugin",
        BOTH,
        "cuda_plugin; amdgpu_plugin; Missing required plugin",
        "A plugin of CRIU failed. This collection runs CRIU without plugins: its own CUDA plugin would ask the driver "
        "about a process that is parked, and wait for ever",
        "Make the image with this collection, and without CRIU_LIBS_DIR in the environment",
    ),
    Kind(
        "finished",
        BOTH,
        "Dumping finished successfully; Restore finished successfully",
        "CRIU itself says that all went well, so what was found afterwards is not of its making",
        "Look at the processes of the tree, and for who has ended them",
    ),
    Kind(
        "unfinished",
        BOTH,
        "nothing: the log ends without an error",
        "CRIU was still at it, or was killed",
        "Look whether it runs (the last line says at what), whether a control group is frozen, and for the "
        "out-of-memory killer (dmesg); and whether the disk with the log is full",
    ),
    Kind(
        "no_log",
        BOTH,
        "nothing: there is no log",
        "CRIU has written nothing, so it did not start, or could not open its log",
        "Run `criu check` as root; look at the directory of the log",
    ),
    Kind(
        "unknown",
        BOTH,
        "anything else",
        "CRIU gives a reason that is not known here",
        "Read the log from its first error on",
    ),
)
