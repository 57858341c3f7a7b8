# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What package managers say, and how patiently they are asked."""

from collections.abc import Sequence

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Said
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import DrainError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._driver_packages import (
    Dnf,
    Installed,
    find,
    parse_dpkg,
    parse_versionlock,
    patiently,
)

DPKG = """ii  libcuda1:amd64
hi  libnvidia-compute-580:amd64
rc  nvidia-driver-570
un  nvidia-driver-assistant
ii  nvidia-driver-580
iU  nvidia-dkms-580
"""
# dnf 4 with dnf-plugins-core, and dnf 5.
LOCKED_4 = """nvidia-driver-3:580.65.06-1.el9.*
kmod-nvidia-open-dkms-3:580.65.06-1.el9.*
!nvidia-driver-cuda-3:590.1-1.el9.*
kernel-5.14.0-427.el9.*
"""
LOCKED_5 = """# Added by 'versionlock add' command on 2026-11-30 09:00:00
Package name: nvidia-driver
evr = 3:580.65.06-1.fc42
"""


def test_dpkg_tells_what_is_installed_and_what_is_held() -> None:
    assert parse_dpkg(DPKG) == Installed(
        ("libcuda1:amd64", "libnvidia-compute-580:amd64", "nvidia-driver-580"),
        frozenset({"libnvidia-compute-580:amd64"}),
    )


@pytest.mark.parametrize(
    ("text", "held"),
    [(LOCKED_4, {"nvidia-driver", "kmod-nvidia-open-dkms"}), (LOCKED_5, {"nvidia-driver"}), ("", set())],
)
def test_versionlock_tells_what_is_locked(text: str, held: set[str]) -> None:
    assert parse_versionlock(text, ["nvidia-driver", "kmod-nvidia-open-dkms", "nvidia-driver-cuda"]) == held


class Asked:
    """Answers with these one after another, the last one again and again."""

    def __init__(self, *answers: Said) -> None:
        self.answers = list(answers)
        self.seen: list[list[str]] = []

    def __call__(self, argv: Sequence[str], _limit: float) -> Said:
        self.seen.append(list(argv))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_a_manager_that_is_busy_is_asked_again() -> None:
    busy = Said(100, err="E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (apt-get)")
    slept: list[float] = []
    ask = Asked(busy, busy, Said(0))
    patiently(["/usr/bin/apt-mark", "hold", "x"], ask, slept.append, lambda: 0.0)
    assert len(ask.seen) == 3 and len(slept) == 2
    times = iter([0.0, 10.0, 1000.0])
    with pytest.raises(DrainError, match=r"apt-mark hold: .*held by process 812.*gpu_drain_hold_packages: false"):
        patiently(["/usr/bin/apt-mark", "hold", "x"], Asked(busy), slept.append, lambda: next(times))


def test_another_failure_is_told_at_once() -> None:
    with pytest.raises(DrainError, match="apt-mark unhold: E: Unable to locate package x"):
        patiently(["/usr/bin/apt-mark", "unhold", "x"], Asked(Said(100, err="E: Unable to locate package x")))


def test_which_manager_a_host_has() -> None:
    places = {"rpm": "/usr/bin/rpm", "dnf": "/usr/bin/dnf"}
    dnf, why = find(Asked(Said(0)), places.get)
    assert isinstance(dnf, Dnf) and why == ""
    none, why = find(Asked(Said(1, err="No such command: versionlock")), places.get)
    assert none is None and "No such command: versionlock" in why and "python3-dnf-plugin-versionlock" in why
    assert find(Asked(Said(0)), lambda _name: None) == (None, "this host has neither apt-mark nor dnf")
    apt, _why = find(
        Asked(Said(0)), {"dpkg-query": "/usr/bin/dpkg-query", "apt-mark": "/usr/bin/apt-mark", **places}.get
    )
    assert apt is not None and apt.name == "apt"


def test_dnf_is_asked_for_the_driver_s_packages_and_told_their_names() -> None:
    ask = Asked(Said(0, out="nvidia-driver\nnvidia-driver-cuda\nnvidia-driver\n"), Said(0, out=LOCKED_4), Said(0))
    dnf = Dnf("/usr/bin/rpm", "/usr/bin/dnf", ask)
    assert dnf.read() == Installed(("nvidia-driver", "nvidia-driver-cuda"), frozenset({"nvidia-driver"}))
    dnf.hold(["nvidia-driver-cuda"])
    dnf.let_go(["nvidia-driver-cuda"])
    assert [one[1:] for one in ask.seen[2:]] == [
        ["-q", "versionlock", "add", "nvidia-driver-cuda"],
        ["-q", "versionlock", "delete", "nvidia-driver-cuda"],
    ]
    assert ask.seen[0][:2] == ["/usr/bin/rpm", "-qa"] and "nvidia-driver*" in ask.seen[0]
