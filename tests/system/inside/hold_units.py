# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in a test host, with the collection under /usr/local/lib: holds the units of processes for an image.

usage: python3 hold_units.py hold LINEAGE PID... | release LINEAGE [PID] | mend | copies LINEAGE | rows
"""

from __future__ import annotations

import json
import sys
from typing import Any

sys.path.insert(0, "/usr/local/lib/collections")

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold import UnitHoldError, UnitHolds
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import IMAGE
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_rows import image_owner, read_rows


def answer(command: str, arguments: list[str]) -> Any:
    with open_journal("/var/lib/gpufleet/checkpoint.db") as journal:
        units = UnitHolds(journal)
        if command == "hold":
            identities = [read_identity(int(pid)) for pid in arguments[1:]]
            look = units.look(IMAGE, [one for one in identities if one is not None])
            try:
                done = units.hold(look, image_owner(arguments[0]))
            except UnitHoldError as error:
                return {"error": str(error)}
            return {"done": [one.as_dict() for one in done], "notes": look.notes, "free": sorted(look.free)}
        if command == "release":
            lives = read_identity(int(arguments[1])) if len(arguments) > 1 else None
            done, warnings = units.release([image_owner(arguments[0])], lives)
            return {"done": [one.as_dict() for one in done], "warnings": warnings}
        if command == "mend":
            return units.mend()
        if command == "copies":
            return [one.message() for one in units.second_copies(arguments[0])]
        return [[row.unit, row.owner, row.reach] for row in read_rows(journal)]


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], sys.argv[2:])))
