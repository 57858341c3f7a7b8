# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`ansible-galaxy` builds, installs, lists and verifies the collection; what does not belong there is not shipped."""

import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = "gpufleet.checkpoint"
SHIPPED = {"FILES.json", "LICENSE", "LICENSES", "MANIFEST.json", "README.md", "changelogs", "docs", "meta", "plugins"}
SHIPPED_LATER = {"CHANGELOG.rst", "extensions", "playbooks", "roles"}


def galaxy(*arguments: str, collections: Path) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-galaxy")), "collection", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(collections), "ANSIBLE_COLLECTIONS_PATH": str(collections)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"ansible-galaxy collection {' '.join(arguments)}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module", params=["from the checkout as it lies there", "from what git knows"])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("artifact")
    if request.param == "from what git knows":
        subprocess.run([str(ROOT / "tests/gates/build"), str(directory)], check=True, stdin=subprocess.DEVNULL)
    else:
        galaxy("build", "--output-path", str(directory), str(ROOT), collections=directory)
    (built,) = directory.glob("*.tar.gz")
    return built


def test_the_artifact_has_the_collection_and_nothing_else(artifact: Path) -> None:
    with tarfile.open(artifact) as archive:
        tops = {PurePosixPath(member.name).parts[0] for member in archive}
    assert tops >= SHIPPED
    assert tops <= SHIPPED | SHIPPED_LATER


def test_the_artifact_holds_text_only(artifact: Path) -> None:
    with tarfile.open(artifact) as archive:
        files = [member for member in archive if member.isfile()]
        assert files
        for member in files:
            content = archive.extractfile(member)
            assert content is not None
            data = content.read()
            assert b"\0" not in data, member.name
            data.decode("utf-8")
            assert not member.mode & 0o111, f"{member.name} is executable"


def test_it_installs_into_an_empty_path_is_listed_and_verified(artifact: Path, tmp_path: Path) -> None:
    galaxy("install", "--offline", "-p", str(tmp_path), str(artifact), collections=tmp_path)
    installed = tmp_path / "ansible_collections/gpufleet/checkpoint"
    assert (installed / "LICENSES/GPL-3.0-or-later.txt").read_bytes() == (ROOT / "LICENSE").read_bytes()
    listed = galaxy("list", NAME, "-p", str(tmp_path), collections=tmp_path)
    assert f"{NAME} 0.1.0".split() in [line.split() for line in listed.splitlines()]
    verified = galaxy("verify", "--offline", NAME, "-p", str(tmp_path), collections=tmp_path)
    assert "Successfully verified" in verified


def test_verify_notices_a_changed_file(artifact: Path, tmp_path: Path) -> None:
    galaxy("install", "--offline", "-p", str(tmp_path), str(artifact), collections=tmp_path)
    with (tmp_path / "ansible_collections/gpufleet/checkpoint/README.md").open("a") as readme:
        readme.write("changed\n")
    with pytest.raises(AssertionError, match=r"README\.md"):
        galaxy("verify", "--offline", NAME, "-p", str(tmp_path), collections=tmp_path)
