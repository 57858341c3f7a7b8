# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/architecture.md names files that are there, and what is added where it says fits what is there."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/architecture.md").read_text()
TOPS = "changelogs|docs|extensions|meta|playbooks|plugins|roles|tests"
# What begins like a path of this repository.
PATHS = sorted(set(re.findall(rf"`((?:{TOPS})/[\w./*-]*)`", PAGE.replace("KIND", "kubernetes"))))
VARIABLES = sorted((ROOT / "roles/gpu_tooling/vars").glob("[A-Zo]*.yml"))


def test_it_names_files_of_every_part() -> None:
    assert {path.partition("/")[0] for path in PATHS} >= {"docs", "playbooks", "plugins", "roles", "tests"}
    assert len(PATHS) > 30


@pytest.mark.parametrize("path", PATHS)
def test_each_is_there(path: str) -> None:
    assert list(ROOT.glob(path.rstrip("/"))), path


@pytest.mark.parametrize("file", VARIABLES, ids=lambda file: file.stem)
def test_every_distribution_says_the_same_things(file: Path) -> None:
    known = yaml.safe_load((ROOT / "roles/gpu_tooling/vars/Debian.yml").read_text())
    assert len(VARIABLES) > 2
    assert set(yaml.safe_load(file.read_text())) == set(known)
