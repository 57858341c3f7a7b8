# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes CRIU refuse something, and tells what it said.

    python3 -m tests.system.inside.criu dump|restore NAME [ARGUMENT...]

NAME is a function of dumps.py or restores.py. Prints JSON: doing, log, status, pid. Nothing is left when it ends.
"""

from __future__ import annotations

import json
import shutil
import sys

from tests.system.inside.criu import dumps, restores
from tests.system.inside.criu.tools import PLACE, WORK


def main(doing: str, name: str, *arguments: str) -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        told = getattr(dumps if doing == "dump" else restores, name)(*arguments)
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
    print(json.dumps(told))


main(*sys.argv[1:])
