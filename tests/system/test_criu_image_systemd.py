# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""criu_image on hosts with systemd: what was restored outlives the session, and an image outlives a reboot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.lab import Job, Lab, labs
from tests.system.test_criu_image import STORE, first, gone, image


@pytest.fixture(scope="module")
def host(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--gpus", "1", "--vram", "1024", init="systemd") as (only,):
        yield only


def test_an_image_outlives_a_reboot_and_is_restored_once(host: Lab) -> None:
    with host.watched() as lab:
        lab.use_up_low_pids()
        job = lab.one()
        path = f"{STORE}/reboot"
        dump: dict[str, Any] = {"pid": job.pid, "path": path, "leave_running": False}
        lab.play(image("present", **dump))[0].ok(changed=True)
        lab.host.fleet.must("reboot", lab.host.name)
        lab.booted()
        assert gone(lab, job)
        present, back, again = lab.play(
            image("present", **dump), image("restored", path=path), image("restored", path=path)
        )
        present.ok(changed=False)
        back.ok(changed=True)
        again.ok(changed=False)
        assert first(back)["identities"][0]["pid"] == job.pid


def test_an_image_and_the_files_of_its_process_outlive_a_loss_of_power(host: Lab) -> None:
    """What the process had written before it was dumped was on no disk yet."""
    with host.watched() as lab:
        lab.use_up_low_pids()
        job = lab.one()
        path = f"{STORE}/power"
        lab.play(image("present", pid=job.pid, path=path, leave_running=False))[0].ok(changed=True)
        lab.host.fleet.must("poweroff", lab.host.name, "--lose-unsynced")
        lab.host.fleet.must("start", lab.host.name)
        lab.booted()
        lab.play(image("restored", path=path))[0].ok(changed=True)


@pytest.mark.parametrize("place", ["same", "new"])
def test_what_is_restored_is_in_no_session(host: Lab, place: str) -> None:
    with host.watched() as lab:
        job = lab.one()
        path = f"{STORE}/scope-{place}"
        made, back = lab.play(
            image("present", pid=job.pid, path=path, leave_running=False),
            image("restored", path=path, pid_namespace=place),
        )
        made.ok(changed=True)
        back.ok(changed=True)
        assert place == "new" or first(back)["warnings"] == []
        (job.pid,) = first(back)["pids"]
        parent = lab.host.sh(f"awk '/^PPid:/ {{ print $2 }}' /proc/{job.pid}/status")
        for pid in (job.pid, parent) if place == "new" else (job.pid,):
            group = lab.host.sh(f"cat /proc/{pid}/cgroup")
            assert "gpufleet-restored-" in group and "session-" not in group, group
        # Each session's processes are killed with it, as logind does where it is told to.
        lab.host.sh("loginctl --no-legend list-sessions | while read -r id rest; do loginctl kill-session $id; done")
        lab.host.disconnect()
        assert lab.look(job)[job.pid]["state"] not in ("", "Z")


def service(lab: Lab, name: str, *properties: str, output: str = "append:/var/lib/lab/service.log") -> Job:
    """A unit with a file of its own, which a restart starts anew; the workload is its main process."""
    out = f"/var/lib/lab/{name}"
    lines = [
        "[Service]",
        f"ExecStart=/usr/local/bin/gpusim-workload --vram 16 --out {out}",
        "WorkingDirectory=/",
        f"StandardOutput={output}",
        f"StandardError={output}",
        *properties,
    ]
    lab.host.put(f"/run/systemd/system/{name}.service", "\n".join(lines) + "\n")
    lab.host.sh(f"rm -f {out} {out}.pid; systemctl daemon-reload; systemctl start {name}")
    pid = int(lab.host.sh(f"until [ -s {out} ]; do sleep 0.02; done; cat {out}.pid"))
    job = Job(name, pid, lab.host.checksum(out))
    lab.jobs.append(job)
    return job


def lives(lab: Lab) -> list[str]:
    return lab.host.sh("pgrep -x gpusim-workload || true").split()


def test_a_service_that_restarts_itself_has_one_life(host: Lab) -> None:
    with host.watched() as lab:
        job = service(lab, "always", "Restart=always", "RestartSec=0")
        path = f"{STORE}/always"
        dump: dict[str, Any] = {"pid": job.pid, "path": path, "leave_running": False}
        refused, made = lab.play(image("present", **dump), image("present", **dump, unit_policy="hold"))
        refused.refused("always.service", "systemd_restart")
        made.ok(changed=True)
        for _moment in range(10):
            assert lives(lab) == []
            time.sleep(0.2)
        (back,) = lab.play(image("restored", path=path))
        back.ok(changed=True)
        for _moment in range(10):
            assert lives(lab) == [str(job.pid)]
            time.sleep(0.2)
        (again,) = lab.play(image("restored", path=path))
        again.ok(changed=False)
        assert lives(lab) == [str(job.pid)]
        assert lab.problems() == ["1 rows in settings", "1 rows in setting_users"], "the unit does not start beside it"
        lab.end(job)
        lab.play(image("absent", path=path))[0].ok(changed=True)
        lab.host.sh("systemctl stop always; rm /run/systemd/system/always.service; systemctl daemon-reload")


def test_a_service_is_taken_back_when_its_dump_fails(host: Lab) -> None:
    """Its unit is held for the attempt only: afterwards systemd restarts it as before."""
    with host.watched() as lab:
        job = service(lab, "tried", "Restart=always", "RestartSec=0")
        lab.host.sh("mkdir -p /var/lib/small && mount -t tmpfs -o size=4m,mode=700 small /var/lib/small")
        (failed,) = lab.play(
            image(
                "present",
                pid=job.pid,
                path="/var/lib/small/x",
                leave_running=False,
                unit_policy="hold",
                allow=["disk_space"],
            )
        )
        assert failed.failed
        failed.says("space")
        assert lives(lab) == [str(job.pid)]
        lab.host.sh("umount /var/lib/small")
        lab.host.run("kill", "-9", str(job.pid))
        job.may_be_gone = "systemd was to start it anew"
        lab.wait_for("the restart", lambda: len(lives(lab)) == 1 and lives(lab) != [str(job.pid)])
        lab.host.sh("systemctl stop tried; rm /run/systemd/system/tried.service; systemctl daemon-reload")


def test_output_to_the_journal_is_refused_before_anything(host: Lab) -> None:
    with host.watched() as lab:
        job = service(lab, "talks", output="journal")
        before = lab.look(job)[job.pid]
        (refused,) = lab.play(
            image("present", pid=job.pid, path=f"{STORE}/talks", leave_running=False, unit_policy="hold")
        )
        refused.refused("journal", "StandardOutput")
        after = lab.look(job)[job.pid]
        assert after["state"] not in "Tt" and after["start"] == before["start"]
        lab.host.sh("systemctl stop talks; rm /run/systemd/system/talks.service; systemctl daemon-reload")
        job.may_be_gone = "it was stopped"
