# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A page of Markdown from a record of bench/seal, and how large its files are. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from .bench_report import _HEAD, median

SUM, SEAL, VERIFY = "sha256sum", "seal", "verify"
WAYS = (SUM, SEAL, VERIFY)
#: Times faster than sha256sum, for each core.
AIM = 0.8
#: What was read from the disk must be less than this share: otherwise the disk was measured.
HOT = 0.01
_GIB = 1 << 30
_WORDS = f"""- **{SUM}**: one process over all files, as coreutils comes: wall time from its start to its end
- **{SEAL}**: the names and the SHA-256 of every chunk, as `criu_image` makes them for the manifest at `state: present`
- **{VERIFY}**: the same files against these sums, as `verify: full` does it
- the last two as calls in a process that runs already, on all cores; no fsync, no manifest written

In turn, in one run, over the same files, which are in the page cache.
"""
_SMALL = ("core", "fdinfo", "fs", "ids", "mm", "pagemap")


def layout(total: int, processes: int = 4) -> List[Tuple[str, int]]:
    """(name, bytes) of an image of so many bytes: the memory of one process is most of it, as that of one that holds
    what was on the GPU."""
    found = [("files.img", 60_000), ("inventory.img", 60), ("pstree.img", 200), ("tty-info.img", 0)]
    for number in range(processes):
        found += [(f"{name}-{100 + number}.img", 300 + 4_000 * at) for at, name in enumerate(_SMALL)]
    left = total - sum(size for _name, size in found)
    if left < processes:
        raise ValueError(f"{total} bytes are no image")
    others = [left // (16 * processes)] * (processes - 1)
    pages = [left - sum(others), *others]
    return sorted([*found, *((f"pages-{number + 1}.img", size) for number, size in enumerate(pages))])


def ratios(rounds: List[Dict[str, float]]) -> Dict[str, float]:
    """How many times faster than sha256sum: medians."""
    return {name: median(rounds, SUM) / median(rounds, name) for name in (SEAL, VERIFY)}


def aim(cores: float) -> float:
    return AIM * cores


def lower(record: Dict[str, Any]) -> float:
    """The lower ratio: what --least judges."""
    return min(ratios(record["rounds"]).values())


def page(record: Dict[str, Any]) -> str:
    meta, rounds = record["meta"], record["rounds"]
    run = (
        f"{meta['date']}; {meta['processor']}, {_cores(meta)}; "
        f"instructions: {', '.join(meta['instructions']) or 'none for SHA-256'}; {meta['coreutils']}, "
        f"{'' if meta['libcrypto'] else 'not '}linked with libcrypto; Python {meta['python']}, {meta['openssl']}; "
        f"Linux {meta['kernel']}; {meta['filesystem']}; load before: {meta['load']}; "
        f"collection {meta['commit'] or 'without commit'}, sha256 of plugins/: {meta['collection']}.\n"
    )
    parts = [
        _HEAD,
        f"# {record['bytes'] / _GIB:.2f} GiB in {record['files']} files: sealed, verified, beside sha256sum\n",
        run,
        _WORDS,
        _table(record["bytes"], rounds),
    ]
    for name, ratio in ratios(rounds).items():
        wanted = aim(meta["cores"])
        parts.append(
            f"{name}: {ratio:.2f} times faster than sha256sum; at least {AIM:g} x {meta['cores']:g} cores = "
            f"{wanted:.2f}: {'met' if ratio >= wanted else 'MISSED'}.\n"
        )
    if not meta["libcrypto"]:
        parts.append("This sha256sum computes without libcrypto, and so without sha_ni: that makes it slower.\n")
    parts.append(_alone(record))
    parts.append(f"Read from the disk meanwhile: {max(one['read'] for one in rounds) / (1 << 20):.1f} MiB at most.\n")
    return "\n".join(parts)


def _alone(record: Dict[str, Any]) -> str:
    alone = record["alone"]
    lines = ["What it is made of, measured once afterwards:\n\n| | GiB/s on one thread | on all | times |\n"]
    lines.append(f"|{'---|' * 4}\n")
    sealed = record["bytes"] / _GIB / median(record["rounds"], SEAL)
    for name, one, many in (
        ("SHA-256 of 256 KiB again and again, in the cache of the core", alone["hash, one"], alone["hash, all"]),
        ("reading the files without SHA-256", alone["read, one"], alone["read, all"]),
        (SEAL, alone["seal, one"], sealed),
    ):
        lines.append(f"| {name} | {one:.2f} | {many:.2f} | {many / one:.2f} |\n")
    return "".join(lines)


def _cores(meta: Dict[str, Any]) -> str:
    words = f"{meta['cores']:g} cores"
    if meta["physical"] and meta["physical"] < meta["threads"]:
        words += f" (threads of {meta['physical']} physical ones)"
    if meta["cores"] < meta["threads"]:
        words += f" (by the limit of its cgroup, of {meta['threads']})"
    return words


def _table(size: int, rounds: List[Dict[str, float]]) -> str:
    lines = ["| | median s | from | to | GiB/s |\n", f"|{'---|' * 5}\n"]
    for name in WAYS:
        times = [one[name] for one in rounds]
        middle = median(rounds, name)
        lines.append(f"| {name} | {middle:.3f} | {min(times):.3f} | {max(times):.3f} | {size / _GIB / middle:.2f} |\n")
    return "".join(lines)
