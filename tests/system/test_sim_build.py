# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests/sim/build and the setup program of a host refuse, before they change anything."""

import subprocess
from pathlib import Path

import pytest

SIM = Path(__file__).resolve().parents[1] / "sim"


def build(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SIM / "build", *arguments], capture_output=True, text=True, check=False)


def test_build_makes_a_layer_and_replaces_it(tmp_path: Path) -> None:
    layer = tmp_path / "new/layer"
    assert build(layer).returncode == 0
    first = (layer / "usr/bin/cuda-checkpoint").stat().st_ino
    assert build(layer).returncode == 0
    assert (layer / "usr/bin/cuda-checkpoint").stat().st_ino != first
    assert [path.name for path in layer.parent.iterdir()] == ["layer"]


def test_build_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(SIM / "build")
    assert subprocess.run([tmp_path / "link", tmp_path / "layer"], check=False).returncode == 0
    assert (tmp_path / "layer/usr/lib/gpusim/setup").is_file()


def test_build_keeps_what_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep", encoding="utf-8")
    for wrong in (tmp_path, tmp_path / "file", Path("/")):
        done = build(wrong)
        assert done.returncode == 1 and "is no layer made by this program" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gpus=100", "gpus=100 is not a number from 0 to 64"),
        ("gpus=abc", "gpus=abc is not a number from 0 to 64"),
        ("gpus=-3", "gpus=-3 is not a number from 0 to 64"),
        ("vram_mib=abc", "vram_mib=abc is not a number"),
        ("vram_mib=99999999999999", "is not a number from 1 to 16777216"),
        ("context_mib=-1", "context_mib=-1 is not a number"),
        ("host_overhead_mib=x", "host_overhead_mib=x is not a number"),
        ("copy_mib_per_s=1.5", "copy_mib_per_s=1.5 is not a number"),
        ("driver=5800", "driver=5800 is not simulated"),
        ("driver=580/../../x", "is no version"),
    ],
)
def test_setup_refuses(tmp_path: Path, line: str, said: str) -> None:
    """It refuses before it makes anything, so that it can run outside of a host."""
    conf = tmp_path / "gpusim.conf"
    conf.write_text(f"gpus=1\n{line}\n", encoding="utf-8")
    setup = (SIM / "setup").read_text(encoding="utf-8").replace("conf=/etc/gpusim.conf", f"conf={conf}")
    done = subprocess.run(["sh", "-c", setup], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"gpusim: {conf}: " in done.stderr and said in done.stderr
