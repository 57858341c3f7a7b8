# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The source tree keeps its own rules: headers, no trace of the machine it was written on, a documented Makefile."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LICENCE_LINES = (
    "Copyright (c) 2026, gpufleet contributors",
    "GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)",
    "SPDX-License-" + "Identifier: GPL-3.0-or-later",  # in two, or it would speak for this line's end as well
)
# Prose, licence texts, formats without comments, and what tools write: REUSE.toml speaks for these.
WITHOUT_HEADER = re.compile(
    r"(\.(md|png|json|jsonl|gz|xz|rst|txt)|(^|/)LICENSE|^LICENSES/.*|changelogs/changelog\.yaml|/recordings/.*\.img)$"
)
WITH_HEADER_ALL_THE_SAME = {"meta/bindep.txt", "tests/requirements.txt", "tests/fleet/apt-packages.txt"}
# Spelled so that this file does not match itself.
FOREIGN = re.compile(
    r"/(?:work|root)/(?:main|shared)\b|/root/\.|/tmp/[t]eam|\b(?:deb|pypi)\.(?:debian|org)\b|registry\.[n]pmjs", re.I
)


def sources() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    return sorted(
        name for name in names if name and not name.startswith(("build/", ".git/")) and (ROOT / name).is_file()
    )


def text_of(name: str) -> str:
    return (ROOT / name).read_bytes().decode("utf-8", errors="replace")


def test_every_source_file_starts_with_the_licence() -> None:
    names = [name for name in sources() if not WITHOUT_HEADER.search(name) or name in WITH_HEADER_ALL_THE_SAME]
    assert len(names) > 20
    lacking = [
        name
        for name in names
        if text_of(name).strip()
        and any(line not in "\n".join(text_of(name).splitlines()[:8]) for line in LICENCE_LINES)
    ]
    assert not lacking


def test_no_file_names_the_machine_it_was_written_on_or_a_package_registry() -> None:
    found = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name in sources()
        for number, line in enumerate(text_of(name).splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    "words", ["see /work /main/x", "/root /.pyenv/bin", "http://deb .debian.org/debian", "pypi .org/simple"]
)
def test_the_search_for_such_names_finds_them(words: str) -> None:
    assert FOREIGN.search(words.replace(" ", ""))
    assert not FOREIGN.search(words)


def targets() -> set[str]:
    declared = re.search(r"^\.PHONY: (.*)$", text_of("Makefile"), re.M)
    assert declared
    return set(declared.group(1).split())


def test_make_alone_lists_every_target() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[0] for line in listed.splitlines()} == targets()
    assert all(len(line.split()) > 3 for line in listed.splitlines())


def test_the_readme_knows_every_target_and_no_other() -> None:
    named = set(re.findall(r"`make ([a-z-]+)", text_of("README.md")))
    assert named == targets() - {"help"}
