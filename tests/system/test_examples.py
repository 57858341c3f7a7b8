# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every example of the documentation, run as it stands on a host that is as the documentation finds it: PID 4711 is
that of inference.service. What a test host can't do is in NOT_RUN with its reason; nothing else is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.examples.blocks import ROOT, Block, blocks, pages
from tests.system.hosts import Host, fleet
from tests.system.playing import Play, Task, environment, shell
from tests.unit.plugins.documentation.returned import documentation

INSIDE = Path(__file__).parent / "inside"
OPERATOR = "/usr/local/lib/operator.sh"
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
GROUPS = ("gpu", "gpu_hosts", "gpu_nodes")
# Commands with the prompt of root that are for the machine with the checkout.
ON_THE_CONTROLLER = {"README.md", "docs/simulator.md", "docs/testing.md"}


def adhoc(module: str, **options: object) -> str:
    return f"ansible gpu1 --become -m gpufleet.checkpoint.{module} -a '{json.dumps(options)}'"


# Blocks that root types in the checkout, as a whole; the fleet is one of the test's own.
CHECKOUT = {"build/fleet/": "$FLEET_DIR/"}
# What stands for the reader's own. {guard}: the process that keeps PID 4711 stopped. {job}: a job of Slurm.
STANDS_FOR: dict[str, dict[str, str]] = {
    "README.md": {
        "build/gpufleet-checkpoint": f"{ROOT}/build/gpufleet-checkpoint",
        "make build": f"make -C {ROOT} build",
        **CHECKOUT,
    },
    "docs/first-suspend.md": {"5120": "{guard}"},
    "docs/hold-and-park.md": {"HOLDER": "{guard}", "/PID/": "/4711/"},
    "docs/docsite/rst/guide_workloads.rst": {"--unit=training": "--unit=another"},
    "docs/docsite/rst/guide_slurm.rst": {
        "90210": "{job}",
        "default(600)": "default(1)",
        "gpu_drain_maintenance_prompt: Change the cable": "gpu_drain_maintenance_seconds: 1",
    },
    # The hosts have no sqlite3 but Python's.
    "docs/journal.md": {"gpu7": "gpu1", "sqlite3 -readonly": "python3 -m sqlite3"},
    "docs/simulator.md": CHECKOUT,
    "docs/testing.md": CHECKOUT,
    "slurm_node": {"inventory_hostname": "gpu_drain_node", "login1": "gpu1"},
    "docs/drain.md": {"/srv/maintenance/": ""},
    "docs/security.md": {"/mnt/images/JOB/": "/srv/images/"},
    "docs/report.md": {"report.json": "runs/*/report.json"},
}
# Run by the reader before, on the controller: the page goes on from there.
FIRST: dict[str, str] = {
    "criu_image_info": adhoc(
        "criu_image", state="present", store="/var/lib/gpufleet/images", select={"all": True}, leave_running=True
    ),
    "docs/docsite/rst/guide_recovery.rst": adhoc(
        "criu_image", state="present", store="/var/lib/gpufleet/images", pids=[4711], leave_running=False
    ),
    "docs/journal.md": adhoc("gpu_drain", phase="claimed", run_id="r1", attempt=1),
    "docs/hold-and-park.md": adhoc("cuda_checkpoint", state="checkpointed", pids=[4711]),
    # Before the part without Ansible: everything had been resumed.
    "pgrep -ax gpufleet-hold": adhoc("cuda_checkpoint", state="checkpointed", pids=[4711]),
    "docs/report.md": "ansible-playbook gpufleet.checkpoint.drain -e @maintenance.yml",
    "docs/security.md": adhoc("criu_image", state="present", path="/srv/images", pid=4711, leave_running=True),
    "roles/gpu_restore/README.md": "ansible-playbook gpufleet.checkpoint.suspend",
}
# Pages that end with a process suspended or ended. After every other one all of them run and count.
SUSPENDED_AT_THE_END = {
    "README.md",
    "docs/hold-and-park.md",
    "docs/units.md",
    "roles/gpu_suspend/README.md",
}
# Before this task, or this command, on the host: what somebody else has done there by then.
BEFORE: dict[str, str] = {
    "Suspend two processes of which one was stopped by somebody with SIGSTOP": "kill -STOP 4712",
    "Free the first GPU of everything that the user trainer runs on it": f"{OPERATOR} trainer",
    "Suspend the containers' processes, four at a time": f"{OPERATOR} container",
}
# What grep exits with when it has counted none.
EXITS = {"ls -l /proc/4711/fd | grep -c nvidia                  # 0: suspended. Do not continue it": 1}
# Tasks that fail, as the example wants it where something is not as it should be: what the message says.
FAILS: dict[str, str] = {
    "Fail unless a run has given the host back": "",  # none has had it
    # Of the one kernel of all test hosts.
    "Fail unless one service can be written to the disk, and all of it is done within ten minutes": "but with warnings",
}
_NO_PACKAGES = "the hosts have no source of packages; the Molecule scenario gpu_tooling gives one, and runs it"
_ROLE = "goes with what roles/gpu_drain/tasks/begin.yml collects; tests/drain runs each of its events through the role"
NOT_RUN: dict[tuple[str, str], str] = {
    (
        "docs/tooling.md",
        "$ ansible-playbook gpufleet.checkpoint.tooling -i inventory -e gpu_tooling_hosts=gpu",
    ): _NO_PACKAGES,
    ("roles/gpu_tooling/README.md", "- name: Install the tools"): _NO_PACKAGES,
    ("drain_run", "Begin the run, or take up one that was interrupted"): _ROLE,
    ("drain_run", "Stop here if too many hosts have failed"): _ROLE,
    ("drain_run", "Write down that the restore begins"): _ROLE,
    ("drain_run", "Write down what became of the batch"): _ROLE,
    (
        "docs/docsite/rst/guide_workloads.rst",
        "# sysctl kernel.io_uring_disabled=2",
    ): "a test host has no kernel of its own",
    (
        "docs/drain.md",
        "$ ansible-playbook -i inventory.yml gpufleet.checkpoint.drain -e @maintenance.yml",
    ): "the hosts have no kernel of their own to install; guide_reboot.rst has the same drain without that",
    (
        "docs/tooling.md",
        "gpu_tooling_criu: source",
    ): "a checksum to fill in; the Molecule scenario gpu_tooling builds CRIU",
    (
        "docs/tooling.md",
        "gpu_tooling_cuda_checkpoint_source: https://mirror.example/cuda-checkpoint    # or a file on the controller",
    ): "a mirror to fill in; the Molecule scenario gpu_tooling installs one",
}


# Pages and modules whose examples need what the host has not got; they are checked in tests/unit all the same.
ELSEWHERE: dict[str, str] = {
    "docs/eda.md": "it waits for an Alertmanager; tests/unit/eda gives the rulebook events",
    "criu_image_handoff": "it takes two hosts: tests/drain/test_migrate.py",
    "docs/migrate.md": "it takes two hosts: tests/drain/test_migrate.py",
    "roles/gpu_migrate/README.md": "it takes two hosts: tests/drain/test_migrate.py",
    "docs/metrics.md": "the Molecule scenario gpu_metrics runs the role",
    "docs/schedulers.md": "an inventory of a cluster with partitions; tests/unit/plugins/slurm has what one says",
    "roles/gpu_metrics/README.md": "the Molecule scenario gpu_metrics runs the role",
}


class Stage:
    """The host, and a controller with a directory for the files of a page."""

    def __init__(self, host: Host, directory: Path) -> None:
        self.host = host
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self.fleet_directory = directory / "own-fleet"

    def reset(self) -> None:
        self.host.run(OPERATOR, "reset")

    def open(self, page: str) -> Path:
        """A directory with what every page takes for granted."""
        place = self.directory / page.replace("/", "-")
        place.mkdir()
        known: dict[str, Any] = yaml.safe_load(self.host.fleet.inventory.read_text())["fleet"]
        gpu1 = {**known["hosts"]["h1"], "gpu_drain_node": "h1"}
        inventory = {
            "all": {
                "vars": {**known["vars"], "gpu_drain_run_directory": str(place / "runs")},
                "hosts": {"gpu1": gpu1},
                "children": {group: {"hosts": {"gpu1": {}}} for group in GROUPS},
            }
        }
        for name in ("inventory", "inventory.yml"):
            (place / name).write_text(yaml.safe_dump(inventory))
        (place / "maintenance.yml").write_text(
            "gpu_drain_hosts: gpu_nodes\ngpu_drain_serial: [1]\ngpu_drain_maintenance_seconds: 1\n"
        )
        return place

    def substitute(self, page: str, text: str) -> str:
        for old, new in STANDS_FOR.get(page, {}).items():
            text = text.replace(old, new)
        if "{guard}" in text:
            text = text.replace("{guard}", self.host.sh("sed -n 's/^TracerPid:.//p' /proc/4711/status"))
        if "{job}" in text:
            text = text.replace("{job}", self.host.run(OPERATOR, "job"))
        return text

    def command(self, command: str, place: Path, config: Path | None) -> str:
        """On the controller, as a person types it."""
        own = environment(
            HOME=str(self.home),
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            ANSIBLE_INVENTORY="inventory.yml",
            FLEET_DIR=str(self.fleet_directory),
            CAPTURE_FILE=os.devnull,
        )
        if config:
            own["ANSIBLE_CONFIG"] = str(config)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=place,
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def stage(simulator: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    options = ("--gpus", "2", "--vram", "1024", "--with", "slurm", "--sim", str(simulator))
    with fleet("--hosts", "1", "--init", "systemd", *options) as one:
        host = Host(one)
        try:
            for name in ("at_pid.py", "operator.sh"):
                host.put(f"/usr/local/lib/{name}", (INSIDE / name).read_text(), "755")
            host.put("/usr/local/bin/urgent", "#!/bin/sh\nexec nvidia-smi\n", "755")
            host.put("/usr/local/bin/train", "#!/bin/sh\nexec sleep 1\n", "755")
            # There is no GPU that could be reset.
            reset = '#!/bin/sh\n[ "$1" = --gpu-reset ] || exec /usr/bin/nvidia-smi "$@"\n'
            host.put("/usr/local/bin/nvidia-smi", reset, "755")
            yield Stage(host, tmp_path_factory.mktemp("examples"))
        finally:
            host.disconnect()


def reason(page: str, text: str) -> str:
    """Why this is not run; empty if it is. text: a block or command, by its first line, or a task's name."""
    return NOT_RUN.get((page, text.splitlines()[0]), "")


EVERY = [page for page in pages() if any(one.language != "text" for one in blocks(page))]


def test_what_is_left_out_is_there() -> None:
    """An entry that fits nothing any more is a reason for nothing."""
    assert set(ELSEWHERE) <= {*EVERY, *MODULES}
    known = {(page, one.text.splitlines()[0]) for page in EVERY for one in blocks(page)}
    known |= {(page, f"{prompt} {text}") for page in EVERY for one in blocks(page) for prompt, text in one.commands}
    known |= {(module, task["name"]) for module in MODULES for task in documentation(module, "EXAMPLES")}
    assert set(NOT_RUN) <= known


@pytest.mark.parametrize("page", [page for page in EVERY if page not in ELSEWHERE])
def test_page(stage: Stage, page: str) -> None:
    stage.reset()
    place = stage.open(page)
    files: dict[str, str] = {}
    ran: list[str] = []
    config: Path | None = None
    if page in FIRST:
        stage.command(FIRST[page], place, None)
    for block in blocks(page):
        text = stage.substitute(page, block.text) if block.language != "console" else block.text
        if reason(page, block.text) or block.language == "text":
            continue
        if block.file:
            files[block.file] = text
            (place / Path(block.file).name).write_text(text)
        elif block.language == "yaml":
            ran += run_tasks(stage, block, text, place)
        elif block.language == "console":
            if page in ON_THE_CONTROLLER and block.text.startswith("#"):
                script = "\n".join(["set -e", *(command for _prompt, command in block.commands)])
                stage.command(stage.substitute(page, script), ROOT, None)
                continue
            for prompt, command in block.commands:
                if reason(page, f"{prompt} {command}"):
                    continue
                given = stage.substitute(page, command)
                if command in FIRST:
                    stage.command(FIRST[command], place, None)
                if prompt == "#":
                    stage.host.sh(given, rc=EXITS.get(given, 0))
                else:
                    stage.command(given, place, config)
                ran.append(command)
        elif block.language == "ini":
            config = place / "ansible.cfg"
            with config.open("a") as stream:
                stream.write(text)
        elif block.language == "python":
            compile(text, str(block), "exec")
        else:
            raise AssertionError(f"{block}: what is a block of the language {block.language!r}?")
    # A file of a page is run by a command that names it, or by another file that does.
    for name in files:
        users = [*ran, *(text for other, text in files.items() if other != name)]
        assert any(Path(name).name in user for user in users), f"{page}: nothing uses {name}"
    if page not in SUSPENDED_AT_THE_END:
        stage.host.run(OPERATOR, "counting")


def run_tasks(stage: Stage, block: Block, text: str, place: Path) -> list[str]:
    content = yaml.safe_load(text)
    assert isinstance(content, list), f"{block}: neither tasks nor a playbook"
    playbook = place / f"line-{block.line}.yml"
    if "hosts" not in content[0]:
        content = [{"hosts": "gpu1", "become": True, "gather_facts": False, "tasks": content}]
    playbook.write_text(yaml.safe_dump(content, sort_keys=False))
    return [stage.command(f"ansible-playbook {playbook.name}", place, None)]


@pytest.mark.parametrize("module", [module for module in MODULES if module not in ELSEWHERE])
def test_module(stage: Stage, module: str) -> None:
    """Task after task, as a reader would copy them; each has to do what its name says."""
    stage.reset()
    place = stage.open(f"plugins/modules/{module}.py")
    examples = yaml.safe_load(stage.substitute(module, yaml.safe_dump(documentation(module, "EXAMPLES"))))
    if module in FIRST:
        stage.command(FIRST[module], place, None)
    plays: list[dict[str, Any]] = [entry for entry in examples if "hosts" in entry]
    loose = [entry for entry in examples if "hosts" not in entry]
    if not with_others(module, examples):
        return
    first = {"hosts": "gpu1", "become": True, "gather_facts": False, "tasks": with_others(module, loose)}
    plays = [first, *({**one, "tasks": with_others(module, one["tasks"])} for one in plays)]
    play = Play(
        stage.host.fleet,
        yaml.safe_dump(plays, sort_keys=False),
        arguments=("-i", str(place / "inventory.yml")),
    )
    results = play.wait(300)
    told = play.log.read_text()
    for result in results:
        assert result.failed is (result.task in FAILS), f"{result!r}\n{told}"
        assert FAILS.get(result.task, "") in result.msg
    names = {task["name"] for one in plays for task in one["tasks"] if not reason(module, task["name"])}
    skipped = {name for name in names if f"TASK [{name}]" in told} - {result.task for result in results}
    assert names - {result.task for result in results} == skipped, told


def with_others(module: str, tasks: list[Task]) -> list[Task]:
    """What somebody else does in between."""
    found: list[Task] = []
    for task in tasks:
        if reason(module, task["name"]):
            continue
        if task["name"] in BEFORE:
            found.append({**shell(BEFORE[task["name"]]), "ignore_errors": False})
        found.append({**task, "ignore_errors": True} if task["name"] in FAILS else task)
    return found
