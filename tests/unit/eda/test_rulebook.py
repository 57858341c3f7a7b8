# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rulebook as ansible-rulebook runs it: what Alertmanager posts, and what comes of it. The engine needs Java."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.eda.alerting import ROOT, Hosts

RULEBOOK = ROOT / "extensions/eda/rulebooks/drain_on_alert.yml"
NAME = "gpufleet.checkpoint.drain_on_alert"
TOKEN = "not-a-secret"
PROGRAM = Path(sys.executable).with_name("ansible-rulebook")


def alert(host: str, name: str = "GpuXid", status: str = "firing", **more: Any) -> dict[str, Any]:
    """As Alertmanager has it."""
    return {
        "status": status,
        "labels": {"alertname": name, "instance": host, "severity": "critical"},
        "annotations": {"summary": "fell off the bus"},
        "startsAt": "2026-11-30T02:01:45Z",
        "fingerprint": "b4d1",
        **more,
    }


class Rulebook:
    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.log = hosts.directory / "log"
        variables = hosts.directory / "vars.yml"
        variables.write_text(
            json.dumps({"gpu_alert_allowed": ["GpuXid"], "gpu_alert_port": self.port, "gpu_alert_token": TOKEN})
        )
        tree = hosts.directory / "tree/ansible_collections/gpufleet/checkpoint"
        tree.mkdir(parents=True)
        for name in ("galaxy.yml", "meta", "plugins", "roles", "playbooks", "extensions"):
            (tree / name).symlink_to(ROOT / name)
        environment = {**hosts.environment, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(str(PROGRAM), "--rulebook", NAME, "--inventory", str(hosts.inventory)),
                    *("--vars", str(variables), "--verbose"),
                ],
                cwd=hosts.directory,
                env={**environment, "ANSIBLE_COLLECTIONS_PATH": str(hosts.directory / "tree")},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def post(self, *alerts: dict[str, Any], token: str = TOKEN) -> int:
        """The status that Alertmanager is answered."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/alerts",
            json.dumps({"version": "4", "status": "firing", "alerts": list(alerts)}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
        )
        end = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code
            except OSError:
                assert self.process.poll() is None and time.monotonic() < end, self.text()
                time.sleep(0.2)

    def planned(self, host: str) -> str:
        """Until the plan of this host was shown; one playbook runs after another."""
        end = time.monotonic() + 120
        while not re.search(rf"^{host} +1 ", self.text(), re.M):
            assert self.process.poll() is None and time.monotonic() < end, self.text()
            time.sleep(0.2)
        return self.text()

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def rulebook(tmp_path: Path) -> Iterator[Rulebook]:
    if not shutil.which("java"):
        pytest.skip("ansible-rulebook needs Java from 17 on: apt-get install default-jre-headless")
    one = Rulebook(Hosts(tmp_path))
    try:
        yield one
    finally:
        one.end()


def test_an_alert_shows_the_plan_of_its_host_and_no_label_does_more(rulebook: Rulebook) -> None:
    hosts, mark = rulebook.hosts, rulebook.hosts.directory / "mark"
    template = "{{ lookup('ansible.builtin.pipe', 'touch " + str(mark) + "') }}"
    assert rulebook.post(alert("n2"), token="wrong") == 401
    hostile = ["all", "n*", "n1,n2", "gpu", "n1:&gpu", "~n.*", "-e@/etc/passwd", template, f"n1{template}", "n1\n", ""]
    assert (
        rulebook.post(
            *(alert(label) for label in hostile),
            alert("n1", name="GpuOther"),
            alert("n1", name=f"GpuXid{template}"),
            alert("n1", status="resolved"),
            alert("n1", meta={"hosts": "all"}),
            {"status": "firing", "labels": {}},
            alert("n2:9100", annotations={"summary": template, "description": "{% raw %}"}),
            # Once an hour is enough for the same alert of the same host.
            alert("n2:9100"),
        )
        == 200
    )
    rulebook.post(alert("n3"))
    told = rulebook.planned("n3")
    assert hosts.asked == {"n2", "n3"}
    # What looks like a name gets as far as the playbook; for a pattern, as everywhere, so does a line feed at the end.
    refused = re.findall(r"Alert GpuXid: (.*?) is not the name of one host", told)
    assert set(refused) == {"all", "gpu", "n1\\n"}
    assert len(re.findall(r"^n2 +1 ", told, re.M)) == 1, "the same alert twice"
    assert not mark.exists() and "Collect what is wanted" not in told


def test_it_is_what_ansible_rulebook_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its schema, its parser and its conditions; without Java."""
    monkeypatch.setenv("PATH", f"{PROGRAM.parent}:{os.environ['PATH']}")
    schema_file = pytest.importorskip("ansible_rulebook").__path__[0] + "/schema/ruleset_schema.json"
    from ansible_rulebook import rules_parser
    from jsonschema import Draft202012Validator

    content = yaml.safe_load(RULEBOOK.read_text())
    schema = json.loads(Path(schema_file).read_text())
    Draft202012Validator(schema).validate(content)
    (found,) = rules_parser.parse_rule_sets(content, {"gpu_alert_token": "t", "gpu_alert_allowed": []})
    assert [rule.name for rule in found.rules] and found.hosts == ["all,localhost"]
    broken = [{**content[0], "rules": [{"name": "x", "condition": True, "action": {"run_playbook": {}}}]}]
    assert list(Draft202012Validator(schema).iter_errors(broken))


def test_the_guide_tells_the_same() -> None:
    """Its variables are those that rulebook and playbook take, and its Alertmanager posts to where it listens."""
    guide = (ROOT / "docs/eda.md").read_text()
    used = set(re.findall(r"gpu_alert_\w+", RULEBOOK.read_text() + (ROOT / "playbooks/drain_on_alert.yml").read_text()))
    # What the rulebook hands on to the playbook, and what the playbook makes for itself.
    inner = {"gpu_alert_name", "gpu_alert_host", "gpu_alert_node", "gpu_alert_before", "gpu_alert_planned"}
    inner |= {"gpu_alert_plan", "gpu_alert_drain"}
    table = "".join(re.findall(r"^\| (`gpu_alert_.*?) \|", guide, re.M))
    assert set(re.findall(r"gpu_alert_\w+", table)) == used - inner
    first, second = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", guide, re.S))
    assert set(first) <= used
    (webhook,) = second["receivers"][0]["webhook_configs"]
    assert webhook["url"].startswith("http://127.0.0.1:5050/")
    assert webhook["http_config"]["authorization"]["credentials"] == first["gpu_alert_token"]
    assert str(RULEBOOK.relative_to(ROOT)) in guide and f"--rulebook {NAME} " in guide
