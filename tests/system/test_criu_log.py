# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real CRIU is made to refuse each thing, and its log says to log.py what it was.

    RECORD_CRIU_LOGS=1 python -m pytest tests/system/test_criu_log.py     writes the recordings that the unit tests read

tests/unit/plugins/criu/said.py has the cases, and the kinds that no test host can be made to say.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log import decode
from tests.system.hosts import ROOT, Host
from tests.system.lab import labs
from tests.unit.plugins.criu.said import CASES, LOGS, Case, shortened

PLACE = "/usr/local/lib/criu-says"
INSIDE = Path("tests/system/inside/criu")
#: CRIU's status where it waits for ever: it is killed.
FOR_EVER = {
    "dump frozen",
    "restore lock_held flock",
    "restore lock_held lockf",
    "restore broken pages-* short",
}
LEFT = "pgrep --list-name 'python3|criu|sleep|gpusim' || :"
HEAD = """# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# CRIU {version} on Linux {kernel}, {date}: {call}. Shortened, see said.py; written by tests/system/test_criu_log.py.
# pid: {pid}

"""


@pytest.fixture(scope="module")
def victims(simulator: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host with the programs of INSIDE. Nothing of them is left at the end."""
    library = tmp_path_factory.mktemp("criu") / "old_getsockopt.so"
    source = ROOT / INSIDE / "old_getsockopt.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    with labs(simulator, "--gpus", "1", "--vram", "1024") as (lab,):
        for path in sorted((ROOT / INSIDE).glob("*.py")):
            lab.host.put(f"{PLACE}/{INSIDE / path.name}", path.read_text())
        encoded = base64.b64encode(library.read_bytes()).decode()
        lab.host.run("sh", "-c", f"base64 -d >{PLACE}/{library.name}", stdin=encoded)
        before = lab.host.sh(LEFT)
        yield lab.host
        assert lab.host.sh(LEFT) == before
        assert lab.host.sh("ls -A /var/lib/criu-says 2>/dev/null; mount | grep criu-says; :") == ""


def ask(host: Host, *call: str) -> dict[str, Any]:
    script = f'cd {PLACE} && PYTHONDONTWRITEBYTECODE=1 exec python3 -m {".".join(INSIDE.parts)} "$@"'
    done = host.ssh("sh", "-c", script, "-", *call, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_criu_says_why(victims: Host, case: Case) -> None:
    told = ask(victims, *case.call.split())
    status = told["status"]
    expected = None if case.call in FOR_EVER else 0 if case.kind == "finished" else 1
    assert status == expected, told["log"][-2000:]
    decoded = case.check(told["log"], told["pid"])
    if os.environ.get("RECORD_CRIU_LOGS"):
        record(victims, case, told, decode(shortened(told["log"]), case.doing) == decoded)


def record(host: Host, case: Case, told: dict[str, Any], same: bool) -> None:
    assert same, f"{case.name}: the shortened log says something else"
    LOGS.mkdir(exist_ok=True)
    head = HEAD.format(
        version=host.sh("criu --version | head -n 1").split()[-1],
        kernel=".".join(host.sh("uname -r").split(".")[:2]),
        date=datetime.now(timezone.utc).date(),
        call=case.call,
        pid=told["pid"],
    )
    (LOGS / f"{case.name}.log").write_text(head + shortened(told["log"]))
