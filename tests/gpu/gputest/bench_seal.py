# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long an image takes to be sealed and verified, beside sha256sum: see bench/README.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import content
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.digest import FileDigest, digest, verify

from .bench_seal_report import HOT, SEAL, SUM, VERIFY, WAYS, layout, lower, page
from .machine import collection_hash, commit, grow, meminfo, read

MIB = 1 << 20
_ROOT = Path(__file__).resolve().parents[3]
_BLOCK = 8 * MIB
#: Free besides the files: of memory, of the disk.
_SPARE = 512 * MIB
_CGROUP = Path("/sys/fs/cgroup")


class Stop(Exception):
    pass


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/seal", description="Needs Python and coreutils; no GPU, no root.")
    parser.add_argument("--mib", type=int, default=8192, help="of all files together (8192)")
    parser.add_argument("--rounds", type=int, default=5, help="of each way, in turn, after a warm-up (5)")
    parser.add_argument("--home", type=Path, default=Path("/var/tmp"), metavar="DIR", help="of the files (/var/tmp)")
    parser.add_argument("--grow", type=int, default=0, metavar="GIB", help="host memory to use once before anything")
    parser.add_argument("--record", type=Path, metavar="FILE", help="all numbers, as JSON")
    parser.add_argument("--report", type=Path, metavar="FILE", help="a page of Markdown made from the record")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="fail below it: the lower of the two")
    return parser


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def clock(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


# -- the machine


def _cgroups() -> Tuple[Path, ...]:
    """Of version 2: that of this process and its ancestors."""
    inside = next((line[3:] for line in read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), "/")
    here = _CGROUP / inside.lstrip("/")
    return tuple(one for one in (here, *here.parents) if _CGROUP in (one, *one.parents))


def cores() -> float:
    """That can be used at once."""
    count = float(len(os.sched_getaffinity(0)))
    for one in _cgroups():
        quota, _space, period = read(one / "cpu.max").partition(" ")
        if quota.isdigit():
            count = min(count, int(quota) / int(period))
    return round(count, 2)


def available() -> int:
    """Bytes that the page cache can grow to have; what it holds already counts."""
    found = meminfo("MemAvailable")
    for one in _cgroups():
        limit, used = read(one / "memory.max"), read(one / "memory.current")
        if limit.isdigit() and used.isdigit():
            stat = dict(line.split(" ", 1) for line in read(one / "memory.stat").splitlines())
            found = min(found, int(limit) - int(used) + int(stat.get("file", "0")))
    return found


def physical() -> int:
    """Cores whose threads those are; 0 where the kernel does not say."""
    names = (f"/sys/devices/system/cpu/cpu{one}/topology/thread_siblings_list" for one in os.sched_getaffinity(0))
    found = {read(Path(name)) for name in names}
    return 0 if "" in found else len(found)


def describe(tool: str, home: Path) -> Dict[str, Any]:
    cpu = {
        line.partition(":")[0].strip(): line.partition(":")[2].strip()
        for line in read(Path("/proc/cpuinfo")).split("\n\n")[0].splitlines()
    }
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    told = _output([tool, "--version"]).splitlines()
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": cpu.get("model name") or platform.machine(),
        "cores": cores(),
        "threads": len(os.sched_getaffinity(0)),
        "physical": physical(),
        "instructions": [one for one in ("sha_ni", "sha2", "avx2", "avx512f") if one in flags],
        "coreutils": told[0] if told else tool,
        "libcrypto": b"libcrypto.so" in Path(os.path.realpath(tool)).read_bytes(),
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,
        "kernel": platform.release(),
        "filesystem": _output(["stat", "-f", "-c", "%T", str(home)]).strip(),
        "load": read(Path("/proc/loadavg")).split(" ")[0],
        "commit": commit(_ROOT),
        "collection": collection_hash(_ROOT),
    }


def _output(argv: Sequence[str]) -> str:
    """ "" where it fails."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
    except OSError:
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def check_room(home: Path, wanted: int) -> None:
    """Raises Stop."""
    try:
        disk = shutil.disk_usage(home).free
    except OSError as error:
        raise Stop(f"{home}: {error.strerror}. The files go there. Name another directory: --home") from None
    if disk < wanted + _SPARE:
        raise Stop(
            f"{home}: {disk // MIB} MiB are free, and the files take {wanted // MIB} and {_SPARE // MIB} to spare. "
            "Free it, or name another directory or a smaller size: --home, --mib"
        )
    memory = available()
    if memory < wanted + _SPARE:
        raise Stop(
            f"memory: {memory // MIB} MiB are available, and the page cache has to hold {wanted // MIB}, with "
            f"{_SPARE // MIB} to spare: otherwise the disk is measured. Free memory, or take a smaller size: --mib. "
            "Where a virtual machine shows its memory only once it has been used: --grow"
        )


# -- the files


def fill(directory: Path, total: int) -> None:
    """As CRIU leaves them; on the disk, so that nothing is written while something is measured."""
    block = bytearray(os.urandom(_BLOCK))
    for name, size in layout(total):
        with open(directory / name, "wb", buffering=0) as stream:
            for start in range(0, size, _BLOCK):
                # No two blocks are the same.
                block[:16] = hashlib.md5(f"{name} {start}".encode(), usedforsecurity=False).digest()
                view = memoryview(block)[: min(_BLOCK, size - start)]
                while view:
                    view = view[stream.write(view) :]
            os.fsync(stream.fileno())


class Bench:
    def __init__(self, directory: Path, tool: str) -> None:
        self.directory = str(directory)
        self.tool = tool
        self.names = content(self.directory)
        self.bytes = sum((directory / name).stat().st_size for name in self.names)
        self.sealed: Tuple[FileDigest, ...] = ()

    def warm_up(self) -> None:
        """Every byte is read, by each of them."""
        self.sealed = digest(self.directory, self.names)
        self.sum()

    # -- the ways

    def seal(self) -> None:
        if digest(self.directory, content(self.directory)) != self.sealed:
            raise Stop(f"{self.directory}: sums differ from those before, though nobody writes there")

    def verify(self) -> None:
        problems = verify(self.directory, self.sealed, "full")
        if problems:
            raise Stop(f"{self.directory}: {'; '.join(problems)}")

    def sum(self) -> None:
        argv = [self.tool, "--", *self.names]
        done = subprocess.run(
            argv, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={"LC_ALL": "C"}, check=False
        )
        told: Dict[str, str] = {}
        for line in done.stdout.decode().splitlines():
            value, _space, name = line.partition("  ")
            told[name] = value
        single = {one.name: one.sha256s[0] for one in self.sealed if len(one.sha256s) == 1}
        wrong = [name for name, value in single.items() if told.get(name) != value]
        if done.returncode != 0 or wrong or set(told) != set(self.names):
            raise Stop(
                f"{self.tool}: rc {done.returncode}; other sums than the image has: {', '.join(wrong) or 'none'}"
            )

    def round(self) -> Dict[str, float]:
        before = _blocks()
        ways = {SUM: self.sum, SEAL: self.seal, VERIFY: self.verify}
        found = {name: round(clock(ways[name]), 4) for name in WAYS}
        found["read"] = (_blocks() - before) * 512
        if found["read"] > HOT * self.bytes:
            raise Stop(
                f"{self.directory}: {int(found['read']) // MIB} MiB came from the disk, so the page cache did not hold "
                "the files. Free memory, or a smaller size: --mib"
            )
        return found

    # -- what it is made of

    def alone(self) -> Dict[str, float]:
        """GiB/s."""
        threads = len(os.sched_getaffinity(0))
        share = max(64 * MIB, self.bytes // 8)
        return {
            "hash, one": _rate(share, _each(1, lambda: _hash_alone(share))),
            "hash, all": _rate(share * threads, _each(threads, lambda: _hash_alone(share))),
            "read, one": _rate(self.bytes, clock(lambda: self._read(1))),
            "read, all": _rate(self.bytes, clock(lambda: self._read(threads))),
            "seal, one": _rate(self.bytes, clock(lambda: digest(self.directory, self.names, parallel=1))),
        }

    def _read(self, threads: int) -> None:
        step = 16 * MIB
        parts = [
            (name, start)
            for name in self.names
            for start in range(0, os.stat(os.path.join(self.directory, name)).st_size, step)
        ]

        def one(part: Tuple[str, int]) -> None:
            buffer = bytearray(MIB)
            handle = os.open(os.path.join(self.directory, part[0]), os.O_RDONLY)
            try:
                for position in range(part[1], part[1] + step, MIB):
                    os.preadv(handle, [buffer], position)
            finally:
                os.close(handle)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, parts))


def _blocks() -> int:
    """Of 512 bytes, read from disks by this process and its children."""
    return sum(resource.getrusage(who).ru_inblock for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _rate(size: int, seconds: float) -> float:
    return round(size / (1 << 30) / seconds, 3)


def _each(threads: int, work: Callable[[], None]) -> float:
    """Seconds that it takes in so many threads at once."""
    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        for one in [pool.submit(work) for _number in range(threads)]:
            one.result()
    return time.monotonic() - began


def _hash_alone(size: int) -> None:
    buffer = bytes(256 << 10)
    summed = hashlib.sha256()
    for _number in range(size // len(buffer)):
        summed.update(buffer)


# -- the run


def run(arguments: argparse.Namespace, directory: Path) -> Dict[str, Any]:
    """The record. Raises Stop, OSError."""
    tool = shutil.which("sha256sum")
    if tool is None:
        raise Stop("sha256sum: not on PATH; it is of coreutils, and what is compared with")
    meta = describe(tool, directory)
    say(f"writing {arguments.mib} MiB to {directory}")
    fill(directory, arguments.mib * MIB)
    bench = Bench(directory, tool)
    bench.warm_up()
    record: Dict[str, Any] = {"meta": meta, "bytes": bench.bytes, "files": len(bench.names), "rounds": []}
    for number in range(arguments.rounds):
        found = bench.round()
        record["rounds"].append(found)
        say(f"round {number + 1}: " + ", ".join(f"{name} {found[name]:.3f} s" for name in WAYS))
    record["alone"] = bench.alone()
    return record


def _interrupted(_number: int, _frame: Optional[FrameType]) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.mib < 1 or arguments.rounds < 1:
        parser.error("--mib and --rounds: at least 1")
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        growing = grow(arguments.grow)
        if growing is not None:
            growing.wait()
        check_room(arguments.home, arguments.mib * MIB)
        with tempfile.TemporaryDirectory(prefix="bench-seal-", dir=arguments.home) as directory:
            record = run(arguments, Path(directory))
    except (Stop, OSError) as error:
        say(f"seal: {error}")
        return 2
    except KeyboardInterrupt:
        say("seal: stopped; its files are gone")
        return 130
    text = page(record)
    if arguments.record:
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.report:
        arguments.report.write_text(text)
    print(text)
    if lower(record) < arguments.least:
        say(f"seal: {lower(record):.2f} times faster than sha256sum, less than --least {arguments.least:g}")
        return 1
    return 0
