# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tool's answers mean: each recorded exchange, and every answer in the conformance recordings."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.cli import Cli
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply
from tests.unit.plugins.cuda.fake import Exchange, FakeTool
from tests.unit.plugins.cuda.recorded import DRIVERS, Recorded, driver

ROOT = Path(__file__).resolve().parents[4]
EVERY = [(version, each) for version in DRIVERS for each in driver(version).exchanges]
NOISE = "ERROR: ld.so: object '/nonexistent/noise.so' from LD_PRELOAD cannot be preloaded"


def read(call: str, finished: tool.Finished) -> Reply:
    return {"state": tool.read_state, "restore_thread": tool.read_thread}.get(call, tool.done)(finished)


def told(reply: Reply) -> Any:
    return reply.ok, reply.code, reply.text, reply.state, reply.tid


def name_of(value: object) -> str:
    if isinstance(value, Recorded):
        return f"{' '.join(value.argv)} {value.status} {value.err[:60]}"
    return str(value)


@pytest.mark.parametrize("version,each", EVERY, ids=name_of)
def test_each_recorded_answer_is_understood(version: str, each: Recorded) -> None:
    assert told(read(each.call, tool.Finished(each.status, each.out, each.err))) == each.expected


@pytest.mark.parametrize("version,each", EVERY, ids=name_of)
def test_each_recorded_answer_is_understood_with_noise_on_stderr(version: str, each: Recorded) -> None:
    noisy = tool.Finished(each.status, each.out, f"{NOISE}: ignored.\n{each.err}{NOISE}: ignored.\n")
    assert told(read(each.call, noisy)) == each.expected


@pytest.mark.parametrize("version,each", [(v, e) for v, e in EVERY if e.refused_in_words], ids=name_of)
@pytest.mark.parametrize("status", [None, 0, 1, 145, 2])
def test_words_count_more_than_the_exit_status(version: str, each: Recorded, status: "int | None") -> None:
    """Versions are reported that exit with the low byte of the CUresult; and nobody may take a 0 for a success."""
    assert told(read(each.call, tool.Finished(status, each.out, each.err))) == each.expected


@pytest.mark.parametrize("version", [version for version in DRIVERS if "--action" in driver(version).help])
def test_the_backend_makes_the_recorded_calls(version: str, tmp_path: Path) -> None:
    exchanges = [each for each in driver(version).exchanges if each.call != "toggle"]
    script = [Exchange(each.argv, each.status, each.out, each.err) for each in exchanges]
    fake = FakeTool(tmp_path, [Exchange(["--help"], out=driver(version).help), *script])
    backend = Cli(tool.probe(str(fake.path)))
    for each in exchanges:
        reply = getattr(backend, each.call)(each.pid, **each.arguments).wait(30)
        assert reply is not None, each.argv
        assert told(reply) == each.expected
        assert 0 < reply.seconds < 30
    fake.check()


def pairs_of_answers() -> Iterator[tuple[str, str, str, Any, int]]:
    """Of cases that were recorded over both ways: case, step, call, what the tool said, what libcuda said."""
    for path in sorted((ROOT / "tests/conformance/recordings").glob("*.json")):
        recording = json.loads(path.read_text())
        for case, ways in {**recording["cases"], **recording["real_only"]}.items():
            steps, others = ways.get("cli", []), ways.get("libcuda", [])
            if not all(isinstance(step, dict) for step in (*steps, *others)):
                continue
            if [step["do"] for step in steps] != [step["do"] for step in others]:
                continue
            for step, other in zip(steps, others, strict=True):
                call = step["do"].split()[0]
                code = re.match(r"\d+", str(other.get("result")))
                said = step.get("result")
                if call in ("state", "lock", "checkpoint", "restore", "unlock") and isinstance(said, dict) and code:
                    if "rc" in said and isinstance(said.get("err", ""), str):
                        yield case, step["do"], call, said, int(code.group())


def test_the_tool_and_libcuda_gave_the_same_answers_on_the_gpu() -> None:
    """Step for step, the code that is read out of the tool's words is what libcuda returned in the same case."""
    seen = set()
    for case, step, call, said, code in pairs_of_answers():
        err = re.sub(r"<[^>]*>", "4711", said.get("err", ""))  # recordings have names for PIDs
        reply = read(call, tool.Finished(said["rc"], said.get("out", ""), err))
        assert (reply.ok, reply.code) == (code == 0, code), f"{case}: {step}: {said}"
        seen.add(code)
    assert seen >= {0, 1, 2, 3, 304, 401, 600, 801, 999}


LOADER = "x: error while loading shared libraries: y"
NEW_WORDS = 'Could not lock on process ID 7: "new words"'


@pytest.mark.parametrize(
    "status,out,err,text",
    [
        (-9, "", "", "cuda-checkpoint was ended by signal 9"),
        (-11, "running\n", "", "cuda-checkpoint was ended by signal 11"),
        (3, "", "", "cuda-checkpoint exited with status 3 without a word"),
        (127, "", f"{LOADER}\n", LOADER),
        (None, "running\n", "something odd\n", "something odd"),
        (1, "", f"{NEW_WORDS}\n", NEW_WORDS),
        (0, "", "", "cuda-checkpoint printed '', which is no state known here"),
        (0, "paused\n", "", "cuda-checkpoint printed 'paused', which is no state known here"),
        (0, "running\nlocked\n", "", "cuda-checkpoint printed 'running\\nlocked', which is no state known here"),
    ],
)
def test_an_answer_that_is_none_is_no_success(status: "int | None", out: str, err: str, text: str) -> None:
    reply = tool.read_state(tool.Finished(status, out, err))
    assert (reply.ok, reply.code, reply.text, reply.state) == (False, None, text, None)


@pytest.mark.parametrize("out", ["", "0\n", "-1\n", "abc\n", "12 13\n", "07\n"])
def test_what_is_no_thread_id_is_refused(out: str) -> None:
    reply = tool.read_thread(tool.Finished(0, out, ""))
    assert (reply.ok, reply.tid) == (False, None)
    assert reply.text == f"cuda-checkpoint printed {out.strip()!r}, which is no thread id"


@pytest.mark.parametrize("state", ["checkpointing", "restoring", "failed"])
def test_the_states_that_later_drivers_report(state: str) -> None:
    assert tool.read_state(tool.Finished(0, f"{state}\n", "")).state == state
