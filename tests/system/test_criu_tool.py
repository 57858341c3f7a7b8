# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real CRIU on real trees: command lines, what is read of its images, their proof, and whether they fit."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.hosts import ROOT, Host, host

INSIDE = Path(__file__).parent / "inside" / "criu_tool.py"
PLACE = "/usr/local/lib/criu-tool"
# Counts into a file that it keeps open, with a child that counts as well, three threads, and a child that has ended.
WORKLOAD = """
import os, sys, threading, time
name = sys.argv[1]
child = os.fork()
if child == 0:
    name += ".child"
elif os.fork() == 0:
    os._exit(0)
for _ in range(2):
    threading.Thread(target=time.sleep, args=(10**6,), daemon=True).start()
if name.endswith(".gone"):
    gone = open("/srv/deleted", "w+b")
    gone.write(bytes(3 << 20)); gone.flush(); os.unlink("/srv/deleted")
memory = bytearray(b"x") * (4 << 20)
with open(name, "w") as out:
    while True:
        out.write("."); out.flush(); time.sleep(0.01)
"""
# In the session of another process, and in a process group of its own, or of that process.
JOB = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if sys.argv[1] == "own":
            os.setpgid(0, 0)
        os.execvp("python3", ["python3", "/srv/workload.py", sys.argv[2]])
    time.sleep(3)
"""


@dataclass
class Place:
    """The host, and what it runs."""

    host: Host

    def ask(self, step: str, **given: Any) -> Any:
        done = self.host.ssh("env", f"PYTHONPATH={PLACE}", "python3", f"{PLACE}/step.py", step,
                             stdin=json.dumps(given))  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def counted(self, name: str) -> int:
        return int(self.host.sh(f"stat -c %s {name}"))

    def until(self, condition: str) -> None:
        """For 20 s at most."""
        self.host.sh(f"for i in $(seq 400); do {{ {condition}; }} && exit 0; sleep 0.05; done; exit 1")

    def start(self, name: str, job: str = "") -> int:
        command = f"python3 /srv/job.py {job} {name}" if job else f"setsid -f python3 /srv/workload.py {name}"
        self.host.sh(f"rm -f {name} {name}.child; {command} </dev/null >/dev/null 2>&1")
        self.until(f"[ -s {name} ] && [ -s {name}.child ]")
        pid = int(self.host.sh(f"pgrep -o -f '^python3 /srv/workload.py {name}$'"))
        # The process that leads the session of a job ends, as it does when somebody logs out.
        self.until(f"[ $(ps -o ppid= -p {pid}) = 1 ]")
        return pid

    def end(self, *pids: int) -> None:
        """And reaped."""
        numbers = [str(pid) for pid in pids]
        self.host.sh(f"kill -9 {' '.join(numbers)} 2>/dev/null; true")
        self.until(" && ".join(f"[ ! -e /proc/{pid} ]" for pid in numbers))

    def goes_on(self, name: str, *pids: int) -> None:
        before = self.counted(name), self.counted(f"{name}.child")
        self.host.sh(f"kill -CONT {' '.join(str(pid) for pid in pids)}")
        self.until(f"[ $(stat -c %s {name}) -gt {before[0]} ] && [ $(stat -c %s {name}.child) -gt {before[1]} ]")
        # From where it was: a file that was begun anew, or has a hole, shows.
        assert self.host.sh(f"tr -d . <{name} | wc -c") == "0"


def collection() -> bytes:
    """Its module_utils, as Ansible would bring them."""
    into = io.BytesIO()
    inside = "ansible_collections/gpufleet/checkpoint/plugins/module_utils"
    with zipfile.ZipFile(into, "w") as packed:
        for path in sorted((ROOT / "plugins/module_utils").rglob("*.py")):
            packed.write(path, f"{inside}/{path.relative_to(ROOT / 'plugins/module_utils')}")
    return into.getvalue()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with host() as h1:
        h1.put(f"{PLACE}/step.py", INSIDE.read_text())
        h1.put("/srv/workload.py", WORKLOAD)
        h1.put("/srv/job.py", JOB)
        unpack = f"cd {PLACE} && base64 -d >collection.zip && python3 -m zipfile -e collection.zip ."
        done = h1.ssh("sh", "-c", unpack, stdin=base64.b64encode(collection()).decode())
        assert done.returncode == 0, done.stderr
        yield Place(h1)


def pids(seen: list[dict[str, Any]]) -> list[int]:
    return [one["pid"] for one in seen]


def test_a_tree_to_disk_and_back(place: Place) -> None:
    pid = place.start("/srv/count")
    made = place.ask("dump", pid=pid, directory="/srv/images/first")
    assert made["rc"] == 0 and made["complete"] and made["problems"] == []
    assert made["arguments"] == ["--manage-cgroups=ignore", "--timeout=60"] and made["reasons"] == []
    # Nothing is lost yet: it lives, and stands still.
    assert len(made["after"]) == 2 and {one["state"] for one in made["after"]} == {"T"}
    assert [one["threads"] for one in made["after"]] == [3, 3]
    assert made["modes"] == ["0o100600"]
    assert made["pages"] > 4 << 20
    at = place.counted("/srv/count")
    assert made["files"]["/srv/count"] == at
    assert any("libc.so" in path for path in made["files"])

    tree, arguments = made["after"], made["arguments"]
    busy = place.ask("fit", pid=pid, directory="/srv/images/first", tree=tree, arguments=arguments)
    assert [one["id"] for one in busy] == ["pid_busy", "pid_busy", "pid_busy"], "its zombie, too"
    place.end(*pids(tree))
    assert place.ask("fit", pid=pid, directory="/srv/images/first", tree=tree, arguments=arguments) == []

    back = place.ask("restore", pid=pid, directory="/srv/images/first", arguments=arguments)
    assert back["rc"] == 0 and back["complete"] and back["note"] == "noted", back["log"]
    assert back["after"] == [{**one, "parent": 1} if one["pid"] == pid else one for one in tree]
    assert back["new"] == ["restore.log"]
    assert place.counted("/srv/count") == at
    place.goes_on("/srv/count", *pids(tree))
    place.end(*pids(tree))


@pytest.mark.parametrize("group", ["own", "shared"])
def test_a_job_of_a_shell_comes_back_stopped(place: Place, group: str) -> None:
    """Its session is led by somebody else, who is gone by then. And so again for what came back."""
    name = f"/srv/job.{group}"
    pid = place.start(name, job=group)
    for turn in ("first", "second"):
        image = f"/srv/images/{group}.{turn}"
        made = place.ask("dump", pid=pid, directory=image)
        assert made["problems"] == [] and made["arguments"][0] == "--shell-job"
        assert "does not lead its session" in made["reasons"][0]
        tree = made["after"]
        assert tree[0]["session"] != pid and (tree[0]["group"] == pid) is (group == "own")
        place.end(*pids(tree))
        assert place.ask("fit", pid=pid, directory=image, tree=tree, arguments=made["arguments"]) == []

        back = place.ask("restore", pid=pid, directory=image, arguments=made["arguments"])
        assert back["rc"] == 0, back["log"]
        assert pids(back["after"]) == pids(tree) and {one["state"] for one in back["after"]} == {"T"}
        assert back["after"][0]["parent"] == 1 and back["after"][0]["session"] == back["criu"]
        place.goes_on(name, *pids(tree))
    place.end(*pids(tree))


def test_as_a_child_of_criu_such_a_job_is_lost(place: Place) -> None:
    """Why it is restored as a sibling: CRIU tells of success, and the kernel ends the orphaned group if it has stopped
    by then, which it had in 11 of 15 tries."""
    pid = place.start("/srv/lost", job="own")
    made = place.ask("dump", pid=pid, directory="/srv/images/lost")
    tree, asked = made["after"], {"directory": "/srv/images/lost", "arguments": made["arguments"]}
    lost = False
    for _try in range(12):
        place.end(*pids(tree))
        back = place.ask("restore", pid=pid, without=["--restore-sibling"], **asked)
        assert back["rc"] == 0 and back["complete"]
        lost = pid not in pids(back["after"])
        if lost:
            break
    assert lost
    for _try in range(5):
        place.end(*pids(tree))
        back = place.ask("restore", pid=pid, **asked)
        assert {one["state"] for one in back["after"]} == {"T"}
    place.goes_on("/srv/lost", *pids(tree))
    place.end(*pids(tree))


def test_a_deleted_file_needs_consent(place: Place) -> None:
    pid = place.start("/srv/with.gone")
    refused = place.ask("dump", pid=pid, directory="/srv/images/refused")
    assert not refused["complete"] and refused["rc"] != 0
    assert "Can't dump ghost file" in refused["log"]
    assert {one["state"] for one in refused["after"]} == {"T"}, "nothing has happened to it"
    made = place.ask("dump", pid=pid, directory="/srv/images/gone", allow=["deleted_file"])
    assert made["complete"] and made["problems"] == []
    assert made["files"]["/srv/deleted"] == 3 << 20
    tree = made["after"]
    place.end(*pids(tree))
    assert place.ask("fit", pid=pid, directory="/srv/images/gone", tree=tree, arguments=made["arguments"]) == []
    back = place.ask("restore", pid=pid, directory="/srv/images/gone", arguments=made["arguments"])
    assert pids(back["after"]) == pids(tree), back["log"]
    place.goes_on("/srv/with.gone", *pids(tree))
    assert place.host.sh(f"stat -L -c %s /proc/{pid}/fd/3") == str(3 << 20)
    place.end(*pids(tree))


def test_what_would_not_fit(place: Place) -> None:
    """Each is told before, and CRIU does refuse it."""
    pid = place.start("/srv/moved")
    made = place.ask("dump", pid=pid, directory="/srv/images/moved")
    tree, asked = made["after"], {"directory": "/srv/images/moved", "arguments": made["arguments"]}
    child = pids(tree)[1]

    # Its root has ended, and its child goes on: in a session and a group that have the number of the root.
    place.end(pid)
    (busy,) = place.ask("fit", pid=pid, tree=tree, **asked)
    assert busy["id"] == "pid_busy" and busy["pid"] == child
    assert f"{pid} (a session there, without its leader), {child}, " in busy["evidence"]
    assert busy["evidence"].count("(a thread there)") == 2
    back = place.ask("restore", pid=pid, **asked)
    assert back["rc"] != 0 and "File exists" in back["log"]
    place.end(child)

    place.host.sh("echo more >>/srv/moved; mv /srv/moved.child /srv/elsewhere")
    found = place.ask("fit", pid=pid, tree=tree, **asked)
    assert [one["id"] for one in found] == ["image_file_missing", "image_file_size"]
    assert "/srv/moved.child" in found[0]["evidence"] and "/srv/moved (" in found[1]["evidence"]
    back = place.ask("restore", pid=pid, **asked)
    assert back["rc"] != 0 and back["after"] == []
    place.host.sh(f"truncate -s {made['files']['/srv/moved']} /srv/moved; mv /srv/elsewhere /srv/moved.child")

    assert place.ask("fit", pid=pid, tree=tree, **asked) == []
    back = place.ask("restore", pid=pid, **asked)
    assert pids(back["after"]) == pids(tree), back["log"]
    place.goes_on("/srv/moved", *pids(tree))
    place.end(*pids(tree))


def test_a_restore_that_is_not_waited_for_goes_on(place: Place) -> None:
    pid = place.start("/srv/slow")
    made = place.ask("dump", pid=pid, directory="/srv/images/slow")
    place.end(*pids(made["after"]))
    back = place.ask("restore", pid=pid, directory="/srv/images/slow", arguments=made["arguments"], seconds=0.001)
    assert back["rc"] is None
    place.until(f"[ $(ps -o ppid= -p {pid}) = 1 ] && [ $(ps -o state= -p {pid}) = T ]")
    place.goes_on("/srv/slow", *pids(made["after"]))
    place.end(*pids(made["after"]))
