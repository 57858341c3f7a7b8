# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loop devices, found again by the name that we give them in the kernel."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from .errors import FleetError

_LOOP_CLR_FD = 0x4C01
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_CONFIGURE = 0x4C0A
_LOOP_CTL_GET_FREE = 0x4C82
_AUTOCLEAR = 4
_LOOP_MAJOR = 7

# struct loop_info64: device inode rdevice offset sizelimit, number encrypt_type key_size flags, name crypt key, init[2]
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
# struct loop_config: fd block_size info reserved[8]
_CONFIG = struct.Struct(f"=II{_INFO.size}s64x")


def _open_free(control: int) -> int:
    number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    path = f"/dev/loop{number}"
    if not os.path.exists(path):  # /dev is no devtmpfs here
        os.mknod(path, 0o660 | 0o060000, os.makedev(_LOOP_MAJOR, number))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def attach(image: Path, name: str) -> int:
    """Attach the image and return the device's descriptor. The kernel frees the device when its last user is gone."""
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise FleetError(f"loop devices: /dev/loop-control: {error.strerror}; load the kernel module loop") from error
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, name.encode(), b"", b"", 0, 0)
        for _dummy in range(256):
            device = _open_free(control)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIG.pack(backing, 0, info))
                return device
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # EBUSY: somebody else took this one first
                    raise
        raise FleetError(f"loop devices: none stayed free for {image}; see losetup -a")
    finally:
        os.close(backing)
        os.close(control)


def attached() -> dict[str, str]:
    """Device path -> our name, for every loop device in use."""
    found: dict[str, str] = {}
    for entry in Path("/sys/block").glob("loop*"):
        if not (entry / "loop").is_dir():
            continue
        path = f"/dev/{entry.name}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            raw = fcntl.ioctl(fd, _LOOP_GET_STATUS64, bytes(_INFO.size))
            found[path] = _INFO.unpack(raw)[9].rstrip(b"\0").decode(errors="replace")
        except OSError:
            pass
        finally:
            os.close(fd)
    return found


def detach(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.ioctl(fd, _LOOP_CLR_FD)
    except OSError:
        pass  # it became free by itself, or its last user will free it
    finally:
        os.close(fd)
