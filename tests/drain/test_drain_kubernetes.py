# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler hook over a real API server, which has nodes and pods but no kubelet."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.drain.drainlab import RUNNING, SUSPENDED, Drain, Point, Runs, all_are
from tests.kubernetes.server import Api, directory, serving
from tests.system.hosts import ROOT
from tests.system.lab import Lab, Workload
from tests.system.playing import environment

ANNOTATION = "gpufleet.io/drain"
MAINTENANCE = {"name": "Do nothing", "ansible.builtin.command": {"argv": ["true"]}, "changed_when": False}
CLIENT = ROOT / "build/kubernetes"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    if not (directory() / "kube-apiserver").exists():
        pytest.skip("the API server takes minutes to build, once: run tests/kubernetes/build, then this again")
    subprocess.run([str(ROOT / "tests/kubernetes/client")], check=True, stdin=subprocess.DEVNULL)
    with serving(tmp_path_factory.mktemp("kubernetes")) as one:
        yield one


@pytest.fixture(autouse=True)
def client(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CLIENT / "python"))


@pytest.fixture
def nodes(api: Api) -> Iterator[Api]:
    """h1 with three pods, one of which holds a GPU, and h2."""
    for name in ("h1", "h2"):
        api("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    for name, resources in (
        ("train", {"limits": {"nvidia.com/gpu": "2", "memory": "1Gi"}}),
        ("none", {"limits": {"nvidia.com/gpu": "0"}}),
        ("web", {"requests": {"cpu": "1"}}),
    ):
        environ = [{"name": "TEXT", "value": '"limits": {"nvidia.com/gpu": "1"}'}]
        container = {"name": "main", "image": "example/image", "resources": resources, "env": environ}
        spec = {"nodeName": "h1", "containers": [container]}
        api("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": spec})
    try:
        yield api
    finally:
        for name in ("train", "none", "web"):
            api("DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0})
        for name in ("h1", "h2"):
            api("DELETE", f"/api/v1/nodes/{name}")


def seen(api: Api, name: str) -> tuple[bool, str]:
    """Whether the node is cordoned, and by which run."""
    node = api("GET", f"/api/v1/nodes/{name}")
    return node["spec"].get("unschedulable", False), node["metadata"].get("annotations", {}).get(ANNOTATION, "")


def cordon(api: Api, name: str, run: str | None = None, cordoned: bool = True) -> None:
    api.patch(
        f"/api/v1/nodes/{name}", {"metadata": {"annotations": {ANNOTATION: run}}, "spec": {"unschedulable": cordoned}}
    )


def pods(api: Api) -> set[str]:
    items = api("GET", "/api/v1/namespaces/default/pods")["items"]
    return {item["metadata"]["name"] for item in items if "deletionTimestamp" not in item["metadata"]}


class Hook:
    """The task files by themselves, on the controller."""

    def __init__(self, api: Api, where: Path) -> None:
        self.api, self.where = api, where
        self.log = where / "log"

    def start(self, part: str, *arguments: str, collections: str = "", **variables: Any) -> subprocess.Popen[bytes]:
        told = {"gpu_drain_run": {"run_id": "r1"}, "gpu_drain_scheduler": "kubernetes", **variables}
        told.setdefault("gpu_drain_kubeconfig", str(self.api.kubeconfig))
        fact = {"drain": "gpu_drain_stamp", "release": "gpu_drain_scheduler_released"}[part]
        role = {"name": "gpufleet.checkpoint.gpu_drain", "tasks_from": f"scheduler/kubernetes/{part}"}
        said = {"content": f"{{{{ {fact} | to_json }}}}", "dest": str(self.where / "said")}
        tasks: list[dict[str, Any]] = [
            {"ansible.builtin.include_role": {**role, "rolespec_validate": False}},
            {"ansible.builtin.copy": {**said, "mode": "644"}, "check_mode": False},
        ]
        play = {"hosts": "h1", "connection": "local", "gather_facts": False, "become": True, "tasks": tasks}
        (self.where / "play.yml").write_text(json.dumps([play]))
        (self.where / "said").unlink(missing_ok=True)
        tree = str(ROOT / "build/tree")
        with self.log.open("wb") as output:
            return subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("ansible-playbook")),
                    *("-i", "h1,", "--extra-vars", json.dumps(told), *arguments, str(self.where / "play.yml")),
                ],
                env=environment(
                    ANSIBLE_COLLECTIONS_PATH=collections or f"{tree}:{CLIENT / 'collections'}",
                    CAPTURE_FILE=str(self.where / "results"),
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def run(self, part: str, *arguments: str, rc: int = 0, **variables: Any) -> dict[str, Any]:
        """The fact that it leaves; none where it fails."""
        assert self.start(part, *arguments, **variables).wait(240) == rc, self.log.read_text()
        said = self.where / "said"
        return dict(json.loads(said.read_text())) if said.exists() else {}

    def fails(self, part: str, *words: str, **variables: Any) -> None:
        self.run(part, rc=2, **variables)
        told = " ".join(self.log.read_text().split())
        assert not [word for word in words if word not in told], told
        assert "Traceback" not in told


@pytest.fixture
def hook(nodes: Api, tmp_path: Path) -> Hook:
    (tmp_path / "results").touch()
    return Hook(nodes, tmp_path)


def test_cordon_and_uncordon(nodes: Api, hook: Hook) -> None:
    foreseen = hook.run("drain", "--check")
    assert (foreseen["ours"], foreseen["pods"], seen(nodes, "h1")) == (True, ["default/train"], (False, ""))
    stamp = hook.run("drain")
    assert seen(nodes, "h1") == (True, "r1")
    assert (stamp["ours"], stamp["run_id"], stamp["before"]) == (True, "r1", "schedulable")
    assert stamp["pods"] == ["default/train"] and pods(nodes) == {"train", "none", "web"}
    again = hook.run("drain")
    assert (again["ours"], again["run_id"], again["before"]) == (True, "r1", "cordoned")
    assert "changed=1" in hook.log.read_text(), "the file that the test writes, and nothing else"

    assert hook.run("release", "--check")["released"] is True
    assert seen(nodes, "h1") == (True, "r1")
    other: dict[str, Any] = {"gpu_drain_run": {"run_id": "r2"}}
    assert hook.run("drain", **other)["ours"] is False
    left = hook.run("release", **other)
    assert (left["released"], left["left"], seen(nodes, "h1")) == (False, True, (True, "r1"))
    # By a run that has taken over the work of the first one.
    assert hook.run("release", **other, gpu_drain_host={"runs": ["r1", "r2"]})["released"] is True
    assert seen(nodes, "h1") == (False, "")
    over = hook.run("release")
    assert (over["released"], over["left"], over["text"]) == (False, False, "it is not cordoned")
    assert pods(nodes) == {"train", "none", "web"}


def test_a_cordon_of_somebody_else_is_left(nodes: Api, hook: Hook) -> None:
    cordon(nodes, "h1")
    stamp = hook.run("drain")
    assert (stamp["ours"], stamp["run_id"], seen(nodes, "h1")) == (False, "", (True, ""))
    assert hook.run("release")["left"] is True
    assert seen(nodes, "h1") == (True, "")


def test_somebody_cordons_it_anew_while_it_is_drained(nodes: Api, hook: Hook) -> None:
    hook.run("drain")
    cordon(nodes, "h1", run="somebody")
    assert hook.run("release")["left"] is True
    assert seen(nodes, "h1") == (True, "somebody")


def test_a_stamp_on_a_node_that_was_uncordoned_by_hand_is_no_drain(nodes: Api, hook: Hook) -> None:
    cordon(nodes, "h1", run="r0", cordoned=False)
    assert hook.run("drain")["ours"] is True
    assert seen(nodes, "h1") == (True, "r1")


@pytest.mark.parametrize("part,cordoned", [("drain", (True, "r1")), ("release", (False, ""))])
def test_a_node_that_changes_in_the_same_moment_is_read_again(
    part: str, cordoned: tuple[bool, str], nodes: Api, hook: Hook
) -> None:
    """The server refuses a patch of what is no longer there; once the node keeps still, the hook succeeds."""
    if part == "release":
        cordon(nodes, "h1", run="r1")
    over = threading.Event()
    done: list[int] = []

    def change() -> None:
        while not over.wait(0.02):
            done.append(len(done))
            nodes.patch("/api/v1/nodes/h1", {"metadata": {"labels": {"count": str(len(done))}}})

    changing = threading.Thread(target=change)
    changing.start()
    try:
        process = hook.start(part)
        title = {"drain": ": Cordon the node]", "release": ": Uncordon the node]"}[part]
        tick = threading.Event()
        while hook.log.read_text().count(title) < 2 and process.poll() is None:
            tick.wait(0.02)
    finally:
        over.set()
        changing.join()
    assert process.wait(120) == 0, hook.log.read_text()
    assert hook.log.read_text().count(title) >= 2, hook.log.read_text()
    assert seen(nodes, "h1") == cordoned


def test_refusals(nodes: Api, hook: Hook) -> None:
    hook.fails("drain", "no node gpu07", "gpu_drain_node", "gpu_drain_kubeconfig", gpu_drain_node="gpu07")
    look = hook.run("drain", "--check", gpu_drain_node="gpu07", gpu_drain_scheduler_look=True)
    assert look["ours"] is False and "no node gpu07" in look["refused"][0]
    gone = hook.run("release", gpu_drain_node="gpu07")
    assert (gone["released"], gone["text"]) == (False, "the cluster has no such node any more")
    tree = str(ROOT / "build/tree")
    for part in ("drain", "release"):
        hook.fails(part, "kubernetes.core", "ansible-galaxy collection install kubernetes.core", collections=tree)
    assert seen(nodes, "h1") == (False, "")


def test_a_drain(nodes: Api, three: Sequence[Lab], runs: Runs) -> None:
    """h1 is cordoned while its workload is suspended, and free again after; h2 was cordoned before, and stays so."""
    first, second, _third = three
    for lab in (first, second):
        lab.start(Workload(vram=16))
    cordon(nodes, "h2")
    variables = {
        "gpu_drain_scheduler": "kubernetes",
        "gpu_drain_kubeconfig": str(nodes.kubeconfig),
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
        "gpu_drain_serial": [2],
    }
    collections = Path(f"{ROOT / 'build/tree'}:{CLIENT / 'collections'}")

    def drain(playbook: str, point: Point | None = None) -> Drain:
        return Drain(first.host.fleet, playbook, runs, limit="h1,h2", variables=variables, point=point,
                     collections=collections)  # fmt: skip

    drain("plan").ok()
    assert (seen(nodes, "h1"), seen(nodes, "h2")) == ((False, ""), (True, ""))
    held = drain("drain", Point("gpu_drain", "done", arguments={"phase": "maintenance"})).come()
    assert seen(nodes, "h1") == (True, runs.run_id)
    assert all_are(first, SUSPENDED) and all_are(second, SUSPENDED)
    held.kill_all()
    drain("drain").ok()
    assert (seen(nodes, "h1"), seen(nodes, "h2")) == ((False, ""), (True, ""))
    assert all_are(first, RUNNING) and all_are(second, RUNNING)
    assert runs.host("h1")["scheduler"]["pods"] == ["default/train"]
    assert pods(nodes) == {"train", "none", "web"}
