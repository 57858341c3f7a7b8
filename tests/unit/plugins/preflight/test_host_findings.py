# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each finding about a host: what shows it, what it blocks, and in which words. A fit host has none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import (
    BackendFacts,
    CriuFacts,
    DriverFacts,
    HostFacts,
    JournalFacts,
    Moved,
    NvmlFacts,
    PciGpu,
    PluginFacts,
    ProcGpu,
    StoreFacts,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.host_findings import HOST_HAZARDS, look
from tests.unit.plugins.preflight.helpers import ADDRESSES, GIB, UUIDS, fit_host, gpu, no_gpu_host, said, spoilt

ALL = "suspend dump migrate"
IMAGES = "dump migrate"
NOT_LOADED = DriverFacts(False, "", "", False, (PciGpu(ADDRESSES[0], ""),), ())
LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
LAST_PID = (
    "Error (criu/cr-check.c:160): sys/kernel/ns_last_pid sysctl is inaccessible: Read-only file system",
    "Warn  (criu/cr-check.c:1648): Does not look good.",
)


@dataclass(frozen=True)
class Case:
    """facts: what is other than on the fit host. words: in the message. severity and capabilities of the only finding
    with this id."""

    id: str
    facts: dict[str, Any]
    words: tuple[str, ...]
    severity: str = "blocking"
    capabilities: str = ALL
    others: tuple[str, ...] = field(default=())


def store(**fields: Any) -> StoreFacts:
    known = {"path": "/images", "place": "/images", "problem": "", "free": 900 * GIB, "kind": "ext4"}
    return StoreFacts(**{**known, "read_only": False, "open_to": "", **fields})


CASES = (
    Case("architecture", {"host__machine": "aarch64"}, ("this host: its architecture is aarch64", "(801)", "x86-64")),
    Case("architecture", {"host__machine": ""}, ("its architecture is unknown",)),
    Case(
        "driver_missing",
        {"driver": NOT_LOADED},
        (
            "/proc/driver/nvidia/version is not there",
            f"no module drives the GPU {ADDRESSES[0]}",
            "Install NVIDIA's driver",
        ),
    ),
    Case(
        "driver_missing",
        {"driver": DriverFacts(False, LIBRARY, "580.159.04", False, (PciGpu(ADDRESSES[0], "vfio-pci"),), ())},
        (
            f"another module drives the GPU {ADDRESSES[0]} (vfio-pci)",
            f"its library is installed ({LIBRARY})",
            "modprobe",
        ),
    ),
    Case(
        "nouveau",
        {"driver": DriverFacts(False, "", "", True, (PciGpu(ADDRESSES[0], "nouveau"),), ())},
        ("the kernel module nouveau is loaded", f"drives the GPU {ADDRESSES[0]}", "blacklist nouveau"),
    ),
    Case(
        "nouveau",
        {"driver__nouveau": True, "driver__pci_gpus": (PciGpu("0000:06:00.0", "nvidia"), PciGpu("0:9", "nouveau"))},
        ("drives the GPU 0:9",),
        "warning",
    ),
    Case("driver_unknown", {"host__driver_version": ""}, ("can't be read out of",), "warning"),
    Case(
        "driver_too_old",
        {"host__driver_version": "535.274.02", "driver__library_version": "535.274.02"},
        ("its driver is 535.274.02", "before 550", "570"),
    ),
    Case(
        "driver_denied",
        {"host__driver_version": "610.57.02", "driver__library_version": "610.57.02"},
        ("610.57.02", "610.57 is on the list", "The lock crashes (reported)", "another version"),
    ),
    Case(
        "driver_mismatch",
        {"driver__library_version": "580.95.05"},
        ("the kernel module is 580.159.04", "libcuda.so.1 is 580.95.05", "Reboot"),
    ),
    Case(
        "driver_mismatch",
        {"nvml": NvmlFacts(None, words="Driver/library version mismatch", code=18), "driver__library_version": ""},
        ("NVML says: Driver/library version mismatch",),
    ),
    Case(
        "driver_mismatch",
        {"driver__library": "/usr/local/cuda-13.1/compat/libcuda.so.1", "driver__library_version": "590.48.01"},
        ("libcuda.so.1 is 590.48.01", "forward compatibility"),
        "warning",
    ),
    Case("no_gpu", {"nvml": NvmlFacts(()), "driver__gpus": ()}, ("NVML lists no GPU", "dmesg")),
    Case(
        "no_gpu",
        {"nvml": NvmlFacts(None, missing=True), "driver__gpus": ()},
        ("/proc/driver/nvidia/gpus lists no GPU",),
        others=("nvml_missing",),
    ),
    Case(
        "gpu_silent",
        {"nvml": NvmlFacts((gpu(0),))},
        ("the kernel module has 2 GPUs, NVML lists 1", f"not {ADDRESSES[1]}", "Xid"),
        "warning",
    ),
    Case(
        "gpu_silent",
        {
            "nvml": NvmlFacts((gpu(0),)),
            "driver__gpus": (ProcGpu(ADDRESSES[0], UUIDS[0], "", 0), ProcGpu(ADDRESSES[1], "", "", 1)),
        },
        ("the kernel module has 2 GPUs, NVML lists 1. A GPU",),
        "warning",
    ),
    Case(
        "no_backend",
        {
            "host__driver_version": "555.58.02",
            "driver__library_version": "",
            "backend": BackendFacts(
                "", problem="no way", evidence="no executable cuda-checkpoint", remedy="Install it"
            ),
        },
        ("no way: no executable cuda-checkpoint", "Install it."),
    ),
    Case(
        "unparked",
        {
            "host__driver_version": "550.163.01",
            "driver__library_version": "550.163.01",
            "backend": BackendFacts("toggle"),
        },
        ("its driver is 550.163.01", "JAX", "Override: allow: [unparked]"),
        others=("no_device_map",),
    ),
    Case(
        "no_device_map",
        {"host__driver_version": "570.195.03", "driver__library_version": "570.195.03", "backend__can_map": False},
        ("its driver is 570.195.03", "takes no device map", "580"),
        capabilities="migrate",
    ),
    Case("no_device_map", {"backend__can_map": False}, ("580.159.04", "no device map"), capabilities="migrate"),
    Case(
        "nvml_missing",
        {"nvml": NvmlFacts(None, missing=True)},
        ("Python has no module pynvml", "Not looked at: how much memory", "Install the Python package nvidia-ml-py"),
    ),
    Case(
        "nvml_silent",
        {"nvml": NvmlFacts(None, words="GPU is lost", code=15)},
        ("NVML says: GPU is lost", "Not looked at"),
    ),
    Case("nvml_silent", {"nvml": NvmlFacts(None, words="no answer within 60 s")}, ("no answer within 60 s",)),
    Case(
        "persistence_off",
        {"nvml": NvmlFacts((gpu(0), gpu(1, persistence=False)))},
        ("GPU 1: persistence mode is off", "nvidia-persistenced"),
        "warning",
    ),
    Case("mig_on", {"nvml": NvmlFacts((gpu(0, mig=True), gpu(1)))}, ("GPU 0: MIG is on", "-mig 0"), "warning"),
    Case(
        "mps_daemon",
        {"mps": ((11, "nvidia-cuda-mps-control"), (12, "nvidia-cuda-mps-server"))},
        ("PID 11 (nvidia-cuda-mps-control), PID 12", "(801)", "quit"),
        "warning",
    ),
    Case("rights_missing", {"rights__capabilities": (1 << 41) - 1 & ~(1 << 19)}, ("root lacks CAP_SYS_PTRACE here",)),
    Case(
        "rights_missing",
        {"rights__capabilities": (1 << 5) | (1 << 19)},
        ("neither CAP_SYS_ADMIN nor CAP_CHECKPOINT_RESTORE",),
        capabilities=IMAGES,
    ),
    Case(
        "journal_unusable",
        {"journal": JournalFacts("/j", "journal /j", "others can write it", "It decides much.", "chmod 600 /j")},
        ("journal /j: others can write it", "chmod 600 /j"),
    ),
    Case(
        "kernel_without_checkpoint_restore",
        {"kernel__checkpoint_restore": False, "kernel__told_by": "/proc/config.gz"},
        ("Linux 6.8.0-60-generic is built without CONFIG_CHECKPOINT_RESTORE (/proc/config.gz)",),
        capabilities=IMAGES,
    ),
    Case(
        "kernel_without_checkpoint_restore",
        {"kernel__checkpoint_restore": None},
        ("has no /proc/sys/kernel/ns_last_pid", "not to be found"),
        capabilities=IMAGES,
    ),
    Case(
        "io_uring_allowed",
        {"kernel__io_uring_disabled": 0},
        ("kernel.io_uring_disabled is 0", "sysctl kernel.io_uring_disabled=2"),
        "warning",
        IMAGES,
    ),
    Case("io_uring_allowed", {"kernel__io_uring_disabled": 1}, ("is 1",), "warning", IMAGES),
    Case("io_uring_allowed", {"kernel__io_uring_disabled": None}, ("has no sysctl", "Linux 6.6"), "warning", IMAGES),
    Case(
        "criu_missing",
        {"criu": CriuFacts("", why="no executable criu in /usr/bin")},
        ("no executable criu in /usr/bin", "Install CRIU 4.0 or later"),
        capabilities=IMAGES,
    ),
    Case(
        "criu_missing",
        {"criu": CriuFacts("/opt/criu", why="/opt/criu --version: version `GLIBC_2.38' not found", check=1)},
        ("GLIBC_2.38", "Mend or reinstall it"),
        capabilities=IMAGES,
        others=("criu_check",),
    ),
    Case(
        "criu_too_old",
        {"criu__version": "3.17.1"},
        ("/usr/sbin/criu is CRIU 3.17.1", "Install CRIU 4.0 or later"),
        capabilities=IMAGES,
    ),
    Case(
        "criu_check",
        {"criu__check": 1, "criu__words": ("Error (criu/x.c:1): System call kcmp is not supported", "Warn: no good")},
        ("`criu check` said: Error (criu/x.c:1): System call kcmp is not supported.",),
        capabilities=IMAGES,
    ),
    Case(
        "criu_check",
        {"criu__check": -1, "criu__words": ("/usr/sbin/criu check gave no answer within 30 s",)},
        ("gave no answer within 30 s",),
        capabilities=IMAGES,
    ),
    Case("criu_check", {"criu__check": 3, "criu__words": ()}, ("nothing, with exit status 3",), capabilities=IMAGES),
    Case(
        "criu_check",
        {"criu__check": 1, "criu__words": LAST_PID},
        ("stopped early and said", "ns_last_pid", "clone3()"),
        "warning",
        IMAGES,
    ),
    Case(
        "criu_check",
        {"criu__check": 1, "criu__words": LAST_PID, "host__kernel": "5.4.0-200-generic"},
        ("`criu check` said", "ns_last_pid"),
        capabilities=IMAGES,
    ),
    Case(
        "criu_plugin",
        {"criu__plugin": PluginFacts("/usr/lib/criu/cuda_plugin.so", 13)},
        ("/usr/lib/criu/cuda_plugin.so was built for CRIU 4.2, and CRIU is 4.1.1", "same release"),
        "warning",
        IMAGES,
    ),
    Case(
        "criu_plugin",
        {"criu__plugin": PluginFacts("/x/cuda_plugin.so", 99)},
        ("was built for another CRIU",),
        "warning",
        IMAGES,
    ),
    Case(
        "criu_plugin",
        {"criu__plugin": PluginFacts("/x/cuda_plugin.so", None)},
        ("is no plugin that can be read",),
        "warning",
        IMAGES,
    ),
    Case("store_unknown", {"store": None}, ("no place for images was named", "8.0 GiB", "`store`"), "warning", IMAGES),
    Case(
        "store_unusable",
        {"store": store(problem="/images is no directory", free=None)},
        ("store /images: /images is no directory",),
        capabilities=IMAGES,
    ),
    Case("store_unusable", {"store": store(read_only=True)}, ("is read-only",), capabilities=IMAGES),
    Case(
        "store_unusable",
        {"store": store(open_to="/images")},
        ("others than root may write /images", "secrets", "chmod go-w /images"),
        capabilities=IMAGES,
    ),
    Case("store_volatile", {"store": store(kind="tmpfs")}, ("is on tmpfs", "reboot"), "warning", IMAGES),
    Case("store_network", {"store": store(kind="nfs4")}, ("is on nfs4", "fsync"), "warning", IMAGES),
    Case(
        "disk_short",
        {"store": store(free=6 * GIB)},
        ("/images has 6.0 GiB free; images of 1 process take 8.0 GiB, 2.0 GiB more",),
        capabilities=IMAGES,
    ),
    Case(
        "disk_short",
        {"store": store(free=6 * GIB), "moved": Moved(image=8 * GIB, unknown=1, count=3)},
        ("images of 3 processes take at least 8.0 GiB",),
        capabilities=IMAGES,
    ),
    Case(
        "disk_short",
        {"moved": Moved(image=8 * GIB, unknown=1, count=3)},
        ("has 900.0 GiB free; how much 1 process of 3 hold on GPUs is not known",),
        "warning",
        IMAGES,
    ),
    Case(
        "window_short",
        {"moved__window": 20.0, "moved__seconds": {"suspend": 10.0, "dump": 25.0, "migrate": 20.0}},
        ("dump, there and back, takes about 25 s, and the window is 20 s",),
        "warning",
        "dump",
    ),
)


def ids(facts: HostFacts) -> tuple[str, ...]:
    return tuple(concern.finding.id for concern in look(facts))


def test_a_fit_host_has_no_finding() -> None:
    assert ids(fit_host()) == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{'-'.join(case.facts)[:40]}")
def test_what_a_host_lacks_is_found_alone_and_said(case: Case) -> None:
    concerns = look(spoilt(**case.facts))
    assert tuple(one.finding.id for one in concerns if one.finding.id not in case.others) == (case.id,)
    concern = next(one for one in concerns if one.finding.id == case.id)
    assert concern.finding.severity == case.severity
    assert concern.capabilities == frozenset(case.capabilities.split())
    missing = [word for word in case.words if word not in said(concern)]
    assert not missing, f"{missing} not in: {said(concern)}"


def test_every_detector_has_a_case_and_an_id_of_its_own() -> None:
    names = [hazard.id for hazard in HOST_HAZARDS]
    assert len(set(names)) == len(names)
    assert {case.id for case in CASES} | {"not_root"} == set(names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_findings_are_complete_sentences_for_an_operator(case: Case) -> None:
    for concern in look(spoilt(**case.facts)):
        finding = concern.finding
        assert finding.pid is None
        assert finding.reference.endswith(f"docs/preflight.md#{finding.id}")
        assert finding.reason and finding.remedy and finding.evidence
        assert finding.reason[0].isupper() or not finding.reason[0].isalpha(), finding.reason
        assert not finding.reason.endswith(".") or finding.id == "journal_unusable"
        assert "  " not in said(concern) and "None" not in said(concern)


@pytest.mark.parametrize("fields", [{"rights__uid": 1000}, {"rights__initial_user_namespace": False}])
def test_without_root_suspend_is_limited_and_dump_impossible(fields: dict[str, Any]) -> None:
    first, second = look(spoilt(**fields))
    assert (first.finding.id, second.finding.id) == ("not_root", "not_root")
    assert (first.finding.severity, set(first.capabilities)) == ("warning", {"suspend"})
    assert (second.finding.severity, set(second.capabilities)) == ("blocking", {"dump", "migrate"})
    assert "become: true" in said(first) and "CRIU needs root" in said(second)


def test_hidden_processes_are_said() -> None:
    first = look(spoilt(rights__uid=1000, rights__hidepid="2"))[0]
    assert "hidepid=2, so that processes of others are not seen" in said(first)


def test_a_host_with_nothing_is_told_each_cause_once() -> None:
    assert ids(no_gpu_host()) == ("driver_missing", "no_gpu", "nvml_missing", "criu_missing")


def test_a_driver_that_is_not_loaded_is_not_blamed_for_what_follows_from_it() -> None:
    facts = spoilt(
        driver=DriverFacts(False, LIBRARY, "580.159.04", False, (PciGpu(ADDRESSES[0], ""),), ()),
        nvml=NvmlFacts(None, words="Driver Not Loaded", code=9),
        backend=BackendFacts("", problem="no way", evidence="x", remedy="y"),
        host__driver_version="",
    )
    assert ids(facts) == ("driver_missing",)


def test_a_driver_that_is_too_old_is_not_blamed_for_lacking_a_backend() -> None:
    facts = spoilt(
        host__driver_version="535.274.02",
        driver__library_version="535.274.02",
        backend=BackendFacts("", problem="no way", evidence="x", remedy="y"),
    )
    assert ids(facts) == ("driver_too_old",)


@pytest.mark.parametrize(
    ("version", "hooks", "found"),
    [("3.19", 10, False), ("4.0", 12, False), ("4.1.1", 12, False), ("4.1.1", 10, True), ("4.2", 12, True)],
)
def test_a_plugin_fits_a_criu_with_as_many_hooks(version: str, hooks: int, found: bool) -> None:
    facts = spoilt(criu__version=version, criu__plugin=PluginFacts("/x/cuda_plugin.so", hooks))
    assert ("criu_plugin" in ids(facts)) is found


def test_a_window_that_is_long_enough_is_no_finding() -> None:
    assert "window_short" not in ids(spoilt(moved__window=25.0))


def test_persistence_that_is_not_known_is_no_finding() -> None:
    assert ids(spoilt(nvml=NvmlFacts((gpu(0, persistence=None), gpu(1))))) == ()
