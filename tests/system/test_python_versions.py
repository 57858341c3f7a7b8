# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Managed hosts have Python 3.8 to 3.13, and often nothing beside its standard library. Each one that is here tries.

Debian has one version; under pyenv there can be all. Those that are missing are named. Whether the sources need
anything newer than 3.8 is also looked for by lint (vermin), which takes no interpreter.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build/tree"
PLUGINS = ROOT / "plugins"
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
# A request that each module refuses for a reason of its own, once everything that it imports has been loaded.
REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "criu_image": ({"state": "present", "pid": "abc", "path": "/srv/x", "leave_running": False}, "'abc' is no PID"),
    "criu_image_handoff": (
        {"state": "offered", "store": "/srv", "names": ["x"], "peer": "h2"},
        "The machine id of the",
    ),
    "criu_image_info": ({"path": "srv/x"}, "absolute"),
    "cuda_checkpoint": ({"state": "running", "pids": ["abc"]}, "'abc' is no PID"),
    "cuda_checkpoint_info": ({"pids": ["abc"]}, "'abc' is no PID"),
    "gpu_drain": ({"phase": "claimed", "run_id": "a b"}, "Up to 64 letters"),
    "gpu_drain_info": ({"run_id": "a b"}, "Up to 64 letters"),
    "gpu_migration_info": ({"side": "source", "store": "srv", "select": {"all": True}}, "absolute"),
    "gpu_preflight": ({"pids": ["abc"]}, "'abc' is no PID"),
    "slurm_node": ({"node": "ALL", "state": "drained", "run_id": "r"}, "not the name of one node"),
}


def interpreter(version: str) -> str | None:
    """On PATH or under pyenv, whose shims are no interpreters."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [
        shutil.which(f"python{version}"),
        *sorted(map(str, root.glob(f"versions/{version}.*/bin/python{version}"))),
    ]
    probe = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-I", "-c", probe], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


FOUND = {version: path for version, path in zip(VERSIONS, map(interpreter, VERSIONS), strict=True) if path}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    wanted: str = request.param
    if wanted not in FOUND:
        pytest.skip(f"this machine has no Python {wanted}, on PATH or under pyenv; lint still looks for what 3.8 lacks")
    return wanted


def test_one_of_them_is_there() -> None:
    missing = sorted(set(VERSIONS) - set(FOUND))
    if missing:
        warnings.warn(f"not tried, for want of an interpreter: Python {', '.join(missing)}", stacklevel=1)
    assert FOUND


IMPORT_ALL = """
import importlib, pathlib, sys
sys.path.insert(0, sys.argv[1])
base = pathlib.Path(sys.argv[1], "ansible_collections/gpufleet/checkpoint/plugins")
names = []
for path in sorted((base / "module_utils").rglob("*.py")):
    parts = path.relative_to(base).with_suffix("").parts
    names.append(".".join(("ansible_collections.gpufleet.checkpoint.plugins",) + parts))
for name in names:
    importlib.import_module(name)
foreign = [name for name, module in sys.modules.items() if "site-packages" in (getattr(module, "__file__", None) or "")]
assert not foreign, foreign
print(len(names))
"""


def test_module_utils_load_with_the_standard_library_alone(version: str) -> None:
    done = subprocess.run(
        [FOUND[version], "-I", "-S", "-B", "-W", "error", "-c", IMPORT_ALL, str(TREE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(list((PLUGINS / "module_utils").rglob("*.py")))


JOURNAL = """
import os, sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
me = read_identity(os.getpid())
with open_journal(sys.argv[2]) as journal:
    operation = journal.begin(run_id="r", identity=me, executable="x", uid=0, goal="checkpointed", park=True,
                              state_before="running", step="lock", worker=me, guard="none", backend="cli")
    child = os.fork()
    journal.step(operation.id, "child" if child == 0 else "parent")
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert journal.reserve([(me, {"a": 2})], lambda: {"a": 3}) == [None]
    journal.finish(operation.id, "suspended", "", {"lock": 0.5})
with open_journal(sys.argv[2], create=False) as journal:
    assert sorted(journal.steps(operation.id)) == ["child", "lock", "parent"]
    assert journal.live(me.boot_id)[0].status == "suspended"
    assert journal.reserved() == {"a": 2}
"""


def test_the_journal_works_with_its_sqlite(version: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [FOUND[version], "-I", "-S", "-B", "-W", "error", "-c", JOURNAL, str(TREE), str(tmp_path / "checkpoint.db")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def ansible_core(venv: str) -> str:
    """Its version, such as 2.17."""
    (found,) = (ROOT / "build" / venv).glob("lib/python3*/site-packages/ansible/release.py")
    said = re.search(r"__version__ = '(\d+\.\d+)\.", found.read_text())
    assert said is not None
    return said.group(1)


# Which versions of Python a module can run on, by ansible-core.
TARGETS = {
    "2.17": VERSIONS[:5],
    "2.18": VERSIONS,
    "2.19": VERSIONS,
    "2.20": VERSIONS[1:],
    "2.21": VERSIONS[1:],
}


@functools.cache
def play(venv: str, module: str, home: Path) -> dict[str, dict[str, Any]]:
    """What the module returns for each Python, run as ansible runs it: packed with everything that it imports."""
    inventory = home / "inventory.json"
    hosts = {
        version: {"ansible_connection": "local", "ansible_python_interpreter": FOUND[version]}
        for version in TARGETS[ansible_core(venv)]
        if version in FOUND
    }
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
    command = ["all", "-i", str(inventory), "-f", "2", "-m", f"gpufleet.checkpoint.{module}"]
    journal = {} if module in ("criu_image_info", "slurm_node") else {"journal": str(home / "checkpoint.db")}
    options = {**REFUSED[module][0], **journal}
    done = subprocess.run(
        [str(ROOT / "build" / venv / "bin/ansible"), *command, "-a", json.dumps(options)],
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(TREE),
            "ANSIBLE_DEPRECATION_WARNINGS": "0",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(\S+) \| \S+ => (\{.*?^\})", done.stdout, re.M | re.S)
    assert len(found) == len(hosts), done.stdout + done.stderr
    return {version: json.loads(result) for version, result in found}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize("module", sorted(REFUSED))
@pytest.mark.parametrize("venv", ["oldest", "venv"])
def test_the_modules_run_as_ansible_packs_them(venv: str, module: str, version: str, home: Path) -> None:
    if version not in TARGETS[ansible_core(venv)]:
        pytest.skip(f"ansible-core {ansible_core(venv)} runs no module on Python {version}")
    assert REFUSED[module][1] in play(venv, module, home)[version]["msg"]
    assert not (home / "checkpoint.db").exists()


def test_every_module_is_tried() -> None:
    """But those of which an action plugin leaves nothing for a host."""
    on_the_controller = {path.stem for path in (PLUGINS / "action").glob("*.py")}
    assert set(REFUSED) == {path.stem for path in (PLUGINS / "modules").glob("*.py")} - on_the_controller
