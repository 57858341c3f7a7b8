# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job templates of AWX as ansible-runner runs them, which is what AWX does: with what their surveys answer, in one
job and in two slices at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.drain.drainlab import KEEPALIVE, LONGEST, RUNNING, Runs, all_are, on_each, watched
from tests.system.hosts import ROOT, Fleet
from tests.system.lab import Lab, Workload
from tests.system.playing import environment
from tests.unit.awx.test_job_templates import TEMPLATES, answers

MAINTENANCE = {"name": "Do nothing", "ansible.builtin.command": {"argv": ["true"]}, "changed_when": False}


class Job:
    """rc, text: how it ended, and what AWX would show. seconds: that it took."""

    def __init__(self, fleet: Fleet, directory: Path, playbook: str, limit: str, variables: Mapping[str, Any]) -> None:
        shutil.copytree(ROOT / "extensions/awx/project", directory / "project")
        (template,) = (one for one in TEMPLATES if one["playbook"] == f"{playbook}.yml")
        settings = environment(ANSIBLE_SSH_ARGS=KEEPALIVE, ANSIBLE_CALLBACKS_ENABLED="gpufleet.checkpoint.progress")
        settings["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        (directory / "env").mkdir()
        (directory / "env/extravars").write_text(json.dumps({**answers(template), **variables}))
        began = time.monotonic()
        done = subprocess.run(
            [
                *(str(Path(sys.executable).with_name("ansible-runner")), "run", str(directory)),
                *("--playbook", template["playbook"], "--inventory", str(fleet.inventory), "--limit", limit),
                *("--ident", "one", "--quiet"),
            ],
            env=settings,
            stdin=subprocess.DEVNULL,
            timeout=LONGEST,
            check=False,
        )
        self.seconds = time.monotonic() - began
        self.rc = done.returncode
        self.text = (directory / "artifacts/one/stdout").read_text().replace("\r\n", "\n")


def test_a_plan_and_a_drain_in_two_slices(large_fleet: list[Lab], runs: Runs) -> None:
    with watched(large_fleet[:4]) as labs:
        on_each(labs, lambda lab: lab.start(Workload(vram=16)))
        fleet = labs[0].host.fleet
        plan = Job(fleet, runs.directory / "plan", "plan", "h1,h2,h3,h4", {"gpu_drain_serial": [1, 2]})
        assert plan.rc == 0, plan.text
        rows = re.findall(r"^(h\d) +(\d) +memory +yes", plan.text, re.M)
        assert rows == [("h1", "1"), ("h2", "2"), ("h3", "2"), ("h4", "3")], plan.text
        sliced = {
            "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
            "gpu_drain_run_directory": str(runs.runs),
            "gpu_drain_run_id": "sliced",
            "gpu_drain_serial": [1, 1],
            "gpu_drain_slices": 2,
        }
        refused = Job(fleet, runs.directory / "refused", "drain", "h1,h2", {**sliced, "gpu_drain_slice": 1})
        assert refused.rc == 2 and "gpu_drain_run_directory_shared is not true" in refused.text

        def slice(number: int) -> Job:
            # As a survey has it.
            told = {**sliced, "gpu_drain_slice": number, "gpu_drain_run_directory_shared": "true"}
            return Job(fleet, runs.directory / f"slice{number}", "drain", ("h1,h2", "h3,h4")[number - 1], told)

        with ThreadPoolExecutor(2) as pool:
            jobs = list(pool.map(slice, (1, 2)))
        for job in jobs:
            assert job.rc == 0, job.text
            # ansible-runner gives it a terminal, so that it has its bar.
            assert "over | batch 2/2; 2/2 hosts done" in job.text
        assert runs.outcomes() == dict.fromkeys(("h1", "h2", "h3", "h4"), "finished")
        assert {one["slice"] for one in runs.run()["attempts"]} == {1, 2}
        assert all(all_are(lab, RUNNING) for lab in labs)
        print(json.dumps({"plan": plan.seconds, "slices": [job.seconds for job in jobs]}))
