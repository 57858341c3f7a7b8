# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file system with one file, served by a thread of this process through FUSE: what a file server's looks like."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import threading
from pathlib import Path

NAME = "data.bin"
_DEVICE = "/dev/fuse"
KIND = "fuse.recorder"

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 14, 15, 17, 18
_FLUSH, _INIT, _BATCH_FORGET, _ACCESS = 25, 26, 42, 34
_HEADER = struct.Struct("=IIQQIIII")
_ROOT, _FILE = 1, 2
_SIZE = 4096
_DETACH = 2


def _attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o644
    return struct.pack("=QQQQQQIIIIIIIIII", node, _SIZE, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class Server:
    """Mounts at once. Raises OSError where that is not allowed."""

    def __init__(self, point: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._point = str(point).encode()
        if not os.path.exists(_DEVICE):
            os.mknod(_DEVICE, stat.S_IFCHR | 0o666, os.makedev(10, 229))
        self._device = os.open(_DEVICE, os.O_RDWR)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if self._libc.mount(b"recorder", self._point, KIND.encode(), 0, options):
            number = ctypes.get_errno()
            os.close(self._device)
            raise OSError(number, os.strerror(number))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._libc.umount2(self._point, _DETACH)
        self._thread.join(10)
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 18)
            except OSError:
                return  # unmounted
            _length, code, unique, node, _uid, _gid, _pid, _padding = _HEADER.unpack_from(request)
            if code in (_FORGET, _BATCH_FORGET):
                continue
            error, body = self._answer(code, node, request[_HEADER.size :])
            os.write(self._device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)

    @staticmethod
    def _answer(code: int, node: int, body: bytes) -> "tuple[int, bytes]":
        if code == _INIT:
            return 0, struct.pack("=IIIIHHIIHH8I", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, *[0] * 8)
        if code == _LOOKUP:
            if body.rstrip(b"\0") != NAME.encode():
                return -2, b""
            return 0, struct.pack("=QQQQII", _FILE, 0, 60, 60, 0, 0) + _attributes(_FILE)
        if code == _GETATTR:
            return 0, struct.pack("=QII", 60, 0, 0) + _attributes(node)
        if code == _OPEN:
            return 0, struct.pack("=QII", 1, 0, 0)
        if code == _READ:
            return 0, bytes(_SIZE)
        if code == _STATFS:
            return 0, struct.pack("=QQQQQIIII6I", 0, 0, 0, 0, 0, 4096, 255, 4096, 0, *[0] * 6)
        if code in (_RELEASE, _FLUSH, _ACCESS):
            return 0, b""
        return -38, b""
