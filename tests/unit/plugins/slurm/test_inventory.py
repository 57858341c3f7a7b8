# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes of a cluster as an inventory: of what two versions of Slurm said, and of what somebody could have them say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.checkpoint.plugins.inventory import slurm
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._slurm_nodes import parse
from tests.unit.plugins.slurm.recorded import VERSIONS, recorded

ROOT = Path(__file__).resolve().parents[4]
ANSIBLES = {"newest": Path(sys.executable).parent, "oldest": ROOT / "build/oldest/bin"}


def node(name: str = "gpu1", **fields: str) -> str:
    """A line as Slurm 24.11 has it."""
    told = {
        "ActiveFeatures": "nvlink,ib",
        "Gres": "gpu:h100:8(S:0-1)",
        "NodeAddr": name,
        "OS": "Linux 6.18 #1 SMP",
        "State": "IDLE",
        "Partitions": "batch,debug-1",
        **fields,
    }
    rest = f"RealMemory=1000 State={told['State']} Weight=1 Partitions={told['Partitions']}  BootTime=1 "
    free = "".join(f"{name}={told[name]} " for name in ("Comment", "Reason") if name in told)
    return (
        f"NodeName={name} Arch=x86_64 ActiveFeatures={told['ActiveFeatures']} Gres={told['Gres']} "
        f"NodeAddr={told['NodeAddr']} NodeHostName={name} OS={told['OS']}  {rest}{free}\n"
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_nodes(version: str) -> None:
    said = recorded(version)
    lines = {name: text for name, text in said.items() if text.startswith("NodeName=")}
    assert len(lines) > 3
    for name, text in lines.items():
        ((one,), problems) = parse(text)
        assert (one.partitions, one.features, one.gpus, problems) == (("main",), (), {}, []), name
        assert (one.state and "down" not in one.state) or "down" in name or "respond" in name or "reboot" in name, name


def test_recorded_addresses_and_free_texts() -> None:
    ((one,), _problems) = parse(recorded("22.05.8")["mixed"])
    assert (one.name, one.address, one.state) == ("n2", "127.0.0.1", ("allocated",))
    assert one.variables()["ansible_host"] == "127.0.0.1"


def test_a_node() -> None:
    ((one,), problems) = parse(node(State="IDLE+DRAIN*", Reason="fan [root@1796032463]"))
    assert not problems
    assert one.variables() == {
        "slurm_state": ["drain", "idle"],
        "slurm_partitions": ["batch", "debug-1"],
        "slurm_features": ["nvlink", "ib"],
        "slurm_gpus": 8,
        "slurm_gpu_models": ["h100"],
        "slurm_reason": "fan",
    }


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("gpu:4", {"": 4}),
        ("gpu", {"": 1}),
        ("gpu:a100:2(S:0),gpu:h100:2(S:1),fs:scratch:1", {"a100": 2, "h100": 2}),
        ("gpu:h100:4(S:0,2),gpu:h100:4(S:1,3)", {"h100": 8}),
        ("shard:16,mps:400", {}),
        ("gpu:h100:0", {}),
        ("gpu:nvidia_a100-sxm4-80gb:8(S:0-7)", {"nvidia_a100-sxm4-80gb": 8}),
    ],
)
def test_gpus(gres: str, gpus: dict[str, int]) -> None:
    assert parse(node(Gres=gres))[0][0].gpus == gpus


@pytest.mark.parametrize("text", ["Partitions=secret", "x Gres=gpu:9 State=DOWN Partitions=secret", "NodeAddr=-oX"])
@pytest.mark.parametrize("field", ["OS", "Reason", "Comment"])
def test_no_free_text_is_a_field(field: str, text: str) -> None:
    ((one,), _problems) = parse(node(**{field: text}))
    assert (one.partitions, one.gpus, one.address) == (("batch", "debug-1"), {"h100": 8}, "gpu1")


@pytest.mark.parametrize(
    "line",
    [
        node("ALL"),
        node("-oProxyCommand=x"),
        node("gpu[1-8]"),
        node("a,b"),
        node(NodeAddr="-oProxyCommand=x"),
        node(NodeAddr="a;b"),
        "Unable to contact slurm controller\n",
    ],
    ids=repr,
)
def test_what_is_no_node_is_told_and_left_out(line: str) -> None:
    nodes, problems = parse(line + node())
    assert [one.name for one in nodes] == ["gpu1"] and len(problems) == 1


class Cluster:
    """A scontrol that says this."""

    def __init__(self, directory: Path, ansible: str = "newest") -> None:
        self.directory = directory
        self.ansible = ANSIBLES[ansible]
        self.scontrol = directory / "scontrol"
        self.source = directory / "slurm.yml"

    def says(self, text: str, status: int = 0) -> None:
        (self.directory / "said").write_text(text)
        self.scontrol.write_text(
            f'#!/bin/sh\n[ "$*" = "-o show node" ] || exit 9\ncat {self.directory}/said\n'
            f"[ {status} = 0 ] || echo 'slurm_load_node error: down' >&2\nexit {status}\n"
        )
        self.scontrol.chmod(0o755)

    def read(self, **options: Any) -> tuple[int, dict[str, Any], str]:
        """Exit status, the inventory, and what was said."""
        told = {"plugin": "gpufleet.checkpoint.slurm", "command": [str(self.scontrol)], **options}
        self.source.write_text(json.dumps(told))
        done = subprocess.run(
            [str(self.ansible / "ansible-inventory"), "-i", str(self.source), "--list"],
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
                "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/tree"),
                "ANSIBLE_HOME": str(self.directory / "home"),
                "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
                "ANSIBLE_NOCOLOR": "true",
                "LC_ALL": "C.UTF-8",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, json.loads(done.stdout or "{}"), " ".join(done.stderr.split())


@pytest.fixture(params=sorted(ANSIBLES))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, request.param)


def test_the_example_of_the_documentation(cluster: Cluster) -> None:
    cluster.says(node() + node("gpu2", State="MIXED+DRAIN", Partitions="batch") + node("login", Gres="(null)"))
    example = yaml.safe_load(slurm.EXAMPLES)
    rc, found, told = cluster.read(**{**example, "command": [str(cluster.scontrol)]})
    assert (rc, told) == (0, ""), told
    assert found["slurm_partition_batch"]["hosts"] == ["gpu1", "gpu2"]
    assert found["slurm_partition_debug_1"]["hosts"] == ["gpu1"]
    assert found["gpu_h100"]["hosts"] == ["gpu1", "gpu2"] and found["drained"]["hosts"] == ["gpu2"]
    assert set(found["_meta"]["hostvars"]) == {"gpu1", "gpu2"}
    # How ansible-inventory shows what is no template differs between releases.
    assert found["_meta"]["hostvars"]["gpu1"]["gpu_drain_scheduler"] in ("slurm", {"__ansible_unsafe": "slurm"})


def test_all_nodes_if_asked_for(cluster: Cluster) -> None:
    cluster.says(recorded("24.11.5")["idle"])
    rc, found, told = cluster.read()
    assert rc == 0 and "none has a GPU that Slurm knows of" in told and "_meta" in found
    rc, found, told = cluster.read(gpus_only=False)
    assert rc == 0 and found["slurm_partition_main"]["hosts"] == ["h2"]


def test_nothing_that_slurm_says_is_a_template(cluster: Cluster) -> None:
    mark = cluster.directory / "mark"
    template = "{{lookup('ansible.builtin.pipe','touch\\x20" + str(mark) + "')}}"
    cluster.says(node(Reason=template, ActiveFeatures=template, Partitions=f"{template},batch", Comment=template))
    rc, found, _told = cluster.read(
        compose={"seen": "slurm_reason ~ slurm_features[0]"}, keyed_groups=[{"key": "slurm_reason", "prefix": "r"}]
    )
    assert rc == 0 and "batch" in str(found)
    play = cluster.directory / "play.yml"
    task = {"ansible.builtin.debug": {"msg": "{{ slurm_reason }} {{ seen }} {{ slurm_partitions }}"}}
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    done = subprocess.run(
        [str(cluster.ansible / "ansible-playbook"), "-i", str(cluster.source), str(play)],
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/tree"), "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and "lookup" in done.stdout, done.stdout + done.stderr
    assert not mark.exists()


def test_an_answer_that_is_none_is_an_error_with_a_way_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.says("", status=1)
    rc, _found, told = cluster.read()
    assert rc != 0 and "exit status 1: slurm_load_node error: down" in told
    cluster.says("")
    assert "scontrol named no node. Run it by hand" in cluster.read()[2]
    cluster.scontrol.write_text("#!/bin/sh\nexec sleep 30\n")
    assert "no answer within 1 s" in cluster.read(timeout=1)[2]
    cluster.scontrol.unlink()
    assert "[ssh, login1, scontrol]" in cluster.read()[2]


def test_the_guide_has_the_same_example() -> None:
    guide = (ROOT / "docs/schedulers.md").read_text()
    block = guide.partition("```yaml\n# slurm.yml")[2].partition("```")[0]
    assert yaml.safe_load("#" + block) == yaml.safe_load(slurm.EXAMPLES)
