# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What root runs: which program, with which words and surroundings."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _slurm
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Command
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import options
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import check_place
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import tool

PLUGINS = Path(__file__).resolve().parents[4] / "plugins"
CODE = {
    "LD_PRELOAD": "/nonexistent.so",
    "LD_AUDIT": "/nonexistent.so",
    "PYTHONPATH": "/tmp",
    "BASH_ENV": "/tmp/x",
    "PERL5LIB": "/tmp",
    "GCONV_PATH": "/tmp",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
}


def test_no_program_gets_code_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CODE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/driver")
    said = Command(["/usr/bin/env"]).finish(10)
    shown = dict(line.split("=", 1) for line in said.out.split("\n") if "=" in line)
    assert not set(CODE) & set(shown) and "LD_PRELOAD" not in said.err
    assert shown["LC_ALL"] == "C" and shown["LD_LIBRARY_PATH"] == "/opt/driver"
    script = tmp_path / "cuda-checkpoint"
    script.write_text(
        "#!/bin/sh\n[ $# -gt 0 ] && echo --action\necho Version 580.1\nenv >" + str(tmp_path / "seen") + "\n"
    )
    script.chmod(0o755)
    tool.probe(str(script))
    assert not [line for line in (tmp_path / "seen").read_text().split("\n") if line.partition("=")[0] in CODE]


def test_a_program_is_not_looked_for_where_the_caller_happens_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (tmp_path, tmp_path / "sub"):
        place.mkdir(exist_ok=True)
        (place / "criu-of-nobody").write_text("#!/bin/sh\n")
        (place / "criu-of-nobody").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".::sub:{os.environ['PATH']}")
    with pytest.raises(tool.ToolError, match="no executable criu-of-nobody"):
        tool.find("criu-of-nobody")


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_nothing_goes_through_a_shell_or_is_executed_as_python() -> None:
    found = []
    for path in sorted(PLUGINS.rglob("*.py")):
        for call in calls(ast.parse(path.read_text())):
            name = ast.unparse(call.func)
            shell = [one for one in call.keywords if one.arg in ("shell", "use_unsafe_shell")]
            loads = name.partition(".")[0] in ("pickle", "marshal", "shelve", "yaml") and "load" in name
            if name in ("eval", "exec", "os.system", "os.popen", "compile", "subprocess.getoutput") or shell or loads:
                found.append(f"{path.name}:{call.lineno}: {name}")
    assert not found


def test_no_text_from_outside_is_split_by_rules_that_its_author_may_choose() -> None:
    """str.splitlines() ends lines at characters that may be in a name; see _words.lines()."""
    found = [
        f"{path.name}:{call.lineno}"
        for path in sorted(PLUGINS.rglob("*.py"))
        for call in calls(ast.parse(path.read_text()))
        if isinstance(call.func, ast.Attribute) and call.func.attr == "splitlines"
    ]
    assert not found


@pytest.mark.parametrize("name", ["-x", "--help", "a,b", "n[1-3]", "ALL", "a b", "a\nb", "", "x;y", "a=b"])
def test_no_node_is_an_option_or_several_nodes(name: str) -> None:
    with pytest.raises(_slurm.SlurmError):
        _slurm.check_name(name)


@pytest.mark.parametrize("value", ["--exec-cmd", "-x", "tty[1]\n--lsm-profile", "file[1]:x\0y", "unix[1] --y\x1b"])
def test_no_external_resource_is_an_option_of_criu(value: str) -> None:
    with pytest.raises(ArgumentError):
        options.parse({"external": [value]})


@pytest.mark.parametrize(
    "path", ["-x", "--images-dir", "images", "/images/../etc/x", "/images/a\nb", "/images/-x", "/a\0b"]
)
def test_no_path_of_an_image_is_an_option_or_leads_elsewhere(path: str) -> None:
    with pytest.raises(CriuError):
        check_place(path)


@pytest.mark.parametrize(
    "pair", [("--pid", "x"), ("GPU-1,GPU-2", "GPU-3"), ("GPU-" + "a" * 36 + "\n", "GPU-" + "b" * 36)]
)
def test_no_gpu_is_an_option_of_cuda_checkpoint(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError):
        tool.argv("/usr/bin/cuda-checkpoint", ["--device-map"], tool.Request(1, device_map=(pair,)))
