# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What two versions of Slurm said, by the name of the moment."""

from pathlib import Path

DIRECTORY = Path(__file__).parent / "recordings"
VERSIONS = sorted(path.stem for path in DIRECTORY.glob("*.txt"))


def recorded(version: str) -> dict[str, str]:
    text = (DIRECTORY / f"{version}.txt").read_text()
    parts = [part.partition("\n") for part in ("\n" + text).split("\n== ")[1:]]
    return {name: said + "\n" for name, _newline, said in parts}
