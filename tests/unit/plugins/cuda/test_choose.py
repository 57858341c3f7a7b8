# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which backend a host gets, and what is said where it gets none."""

import threading
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import backend as backends
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import libcuda
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import BackendError, choose
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.libcuda import Probe
from tests.unit.plugins.cuda.fake import Exchange, FakeTool
from tests.unit.plugins.cuda.recorded import driver

NO_LIBRARY = Probe(False, "libcuda.so.1 has no cuCheckpointProcess functions, which drivers from 570 on have")


class Host:
    """What is there: what a look at the library gives, and a tool, or none."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.tool = "/nonexistent/cuda-checkpoint"
        self.fake: "FakeTool | None" = None
        self.library(NO_LIBRARY)
        self.driver("")

    def driver(self, text: str) -> None:
        path = self._folder / "version"
        path.write_text(text)
        self._monkeypatch.setattr(backends, "_VERSION_FILE", str(path) if text else "/nonexistent")

    def library(self, probe: Probe) -> None:
        self._monkeypatch.setattr(libcuda, "probe", lambda library: probe)

    def helps(self, text: str) -> None:
        self.fake = FakeTool(self._folder, [Exchange(["--help"], out=text)])
        self.tool = str(self.fake.path)

    def refusal(self, wanted: str) -> BackendError:
        with pytest.raises(BackendError) as error:
            choose(wanted, self.tool)
        assert str(error.value) == f"{error.value.subject}: {error.value.evidence}. {error.value.remedy}."
        return error.value


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "version,library,wanted,name,can_map",
    [
        ("550.163.01", NO_LIBRARY, "auto", "toggle", False),
        ("550.163.01", NO_LIBRARY, "toggle", "toggle", False),
        ("555.58.02", NO_LIBRARY, "auto", "cli", False),
        ("555.58.02", NO_LIBRARY, "cli", "cli", False),
        ("570.195.03", Probe(True, "", 12080), "auto", "libcuda", False),
        ("570.195.03", Probe(True, "", 12080), "cli", "cli", False),
        ("580.159.04", Probe(True, "", 13000), "auto", "libcuda", True),
        ("580.159.04", Probe(True, "", 13000), "libcuda", "libcuda", True),
        ("580.159.04", Probe(True, "", 13000), "cli", "cli", True),
    ],
)
def test_what_each_driver_gets(version: str, library: Probe, wanted: str, name: str, can_map: bool, host: Host) -> None:
    host.library(library)
    host.helps(driver(version).help)
    threads = threading.active_count()
    backend = choose(wanted, host.tool)
    assert (backend.name, backend.can_map) == (name, can_map)
    assert backend.can_lock is backend.can_hold is (name != "toggle")
    assert threading.active_count() == threads
    if name == "libcuda":
        assert host.fake is not None and not host.fake.pids()
    elif host.fake is not None:
        host.fake.check()


def test_no_tool_and_no_library(host: Host) -> None:
    error = host.refusal("auto")
    assert error.subject == "no way to suspend CUDA processes"
    assert (
        error.evidence
        == f"no NVIDIA driver is loaded; {NO_LIBRARY.why}; /nonexistent/cuda-checkpoint is no executable file"
    )
    assert error.remedy.startswith("Install NVIDIA's cuda-checkpoint and name it with `executable`")


def test_a_driver_whose_version_is_not_understood(host: Host) -> None:
    host.driver("something else\n")
    assert host.refusal("auto").evidence.startswith("the driver is of an unknown version; ")


def test_a_tool_whose_driver_is_too_old(host: Host) -> None:
    host.helps("cuda-checkpoint: this driver can't checkpoint\n")
    host.driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n")
    error = host.refusal("auto")
    assert error.evidence.startswith(f"the driver is 535.183.01; {NO_LIBRARY.why}; ")
    said = "cuda-checkpoint: this driver can't checkpoint"
    assert error.evidence.endswith(f"{host.tool} --help lists neither --action nor --toggle, but says: {said}")
    assert error.remedy.startswith("Use driver 550 or later")


def test_libcuda_alone_is_wanted(host: Host) -> None:
    host.helps(driver("580.159.04").help)
    error = host.refusal("libcuda")
    assert error.subject == "backend libcuda can't be used"
    assert error.evidence == f"no NVIDIA driver is loaded; {NO_LIBRARY.why}"
    assert "`backend: auto`" in error.remedy
    assert host.fake is not None and not host.fake.pids()


@pytest.mark.parametrize("wanted", ["cli", "toggle"])
def test_a_tool_is_wanted_that_is_not_there(wanted: str, host: Host) -> None:
    host.library(Probe(True, "", 13000))
    error = host.refusal(wanted)
    assert error.subject == f"backend {wanted} can't be used"
    assert error.evidence == "no NVIDIA driver is loaded; /nonexistent/cuda-checkpoint is no executable file"


@pytest.mark.parametrize("version", ["555.58.02", "570.195.03", "580.159.04"])
def test_never_a_toggle_where_there_is_an_action(version: str, host: Host) -> None:
    host.helps(driver(version).help)
    error = host.refusal("toggle")
    assert error.subject == "backend toggle is refused"
    assert "turns round when it is repeated" in error.evidence
    assert error.remedy == "Use `backend: auto` or `backend: cli`"


def test_cli_where_there_is_only_a_toggle(host: Host) -> None:
    host.helps(driver("550.163.01").help)
    error = host.refusal("cli")
    assert error.evidence.endswith(
        f"; {host.tool} --help lists --help, --pid, --toggle, but not --action, which drivers from 555 on have"
    )


@pytest.mark.parametrize("wanted", ["auto", "cli"])
def test_an_action_without_a_state_query(wanted: str, host: Host) -> None:
    host.helps("--toggle --pid <pid>\n--action x --pid <pid>\n")
    error = host.refusal(wanted)
    assert error.subject == "cuda-checkpoint can't be used"
    assert error.evidence.endswith("lists --action, --pid, --toggle, but not --get-state")


def test_a_backend_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="'nvml' is no backend: auto, libcuda, cli, toggle"):
        choose("nvml")
