# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records the evidence of processes that run already: one file per label."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import NvmlError, NvmlMissing

from .recording import save, scrubber, take


def parse(text: str) -> Tuple[str, List[int]]:
    """ "torch-idle=12,13" """
    label, separator, numbers = text.partition("=")
    pids = numbers.split(",")
    if not separator or not label or "/" in label or not all(one.isdigit() and int(one) > 0 for one in pids):
        raise argparse.ArgumentTypeError(f"{text!r} is not LABEL=PID[,PID...]")
    return label, [int(one) for one in pids]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="record", description=__doc__)
    parser.add_argument("--into", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--about", default="", help="what they are and do, in a sentence")
    parser.add_argument("processes", type=parse, nargs="+", metavar="LABEL=PID[,PID...]")
    options = parser.parse_args(arguments)
    clean = scrubber(options.into)
    failed = False
    for label, pids in options.processes:
        try:
            data = take(options.about or label, pids, {})
        except (NvmlError, NvmlMissing, OSError) as error:
            print(f"{label}: {error}", file=sys.stderr)
            return 1
        absent = sorted(set(pids) - {one["identity"]["pid"] for one in data["snapshot"]["processes"]})
        if absent:
            print(f"{label}: there is no process {', '.join(map(str, absent))}", file=sys.stderr)
            failed = True
            continue
        save(options.into / f"{label}.json", clean(data))
        print(options.into / f"{label}.json")
    return 1 if failed else 0
