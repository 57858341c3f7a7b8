# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""criu_image on hosts with systemd: what was restored outlives the session, and an image outlives a reboot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.lab import LAB, INSIDE, Lab, labs
from tests.system.test_criu_image import STORE, first, gone, image


@pytest.fixture(scope="module")
def host(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--gpus", "1", "--vram", "1024", init="systemd") as (only,):
        yield only


def test_an_image_outlives_a_reboot_and_is_restored_once(host: Lab) -> None:
    with host.watched() as lab:
        # Not one of the low numbers, which the next boot gives out anew.
        lab.host.sh("echo 30000 > /proc/sys/kernel/ns_last_pid || true")
        job = lab.one()
        path = f"{STORE}/reboot"
        dump: dict[str, Any] = {"pid": job.pid, "path": path, "leave_running": False}
        lab.play(image("present", **dump))[0].ok(changed=True)
        lab.host.disconnect()
        lab.host.fleet.must("reboot", lab.host.name)
        lab.host.put(LAB, (INSIDE / "lab.py").read_text())
        lab.host.sh("[ -e /run/lab ] || ln -s /var/lib/lab /run/lab")
        assert gone(lab, job)
        present, back, again = lab.play(
            image("present", **dump), image("restored", path=path), image("restored", path=path)
        )
        present.ok(changed=False)
        back.ok(changed=True)
        again.ok(changed=False)
        assert first(back)["identities"][0]["pid"] == job.pid


def test_what_is_restored_is_in_no_session(host: Lab) -> None:
    with host.watched() as lab:
        job = lab.one()
        path = f"{STORE}/scope"
        made, back = lab.play(
            image("present", pid=job.pid, path=path, leave_running=False), image("restored", path=path)
        )
        made.ok(changed=True)
        back.ok(changed=True)
        assert first(back)["warnings"] == []
        group = lab.host.sh(f"cat /proc/{job.pid}/cgroup")
        assert "gpufleet-restored-" in group and "session-" not in group, group
        # Each session's processes are killed with it, as logind does where it is told to.
        lab.host.sh("loginctl --no-legend list-sessions | while read -r id rest; do loginctl kill-session $id; done")
        lab.host.disconnect()
        assert lab.look(job)[job.pid]["state"] not in ("", "Z")
