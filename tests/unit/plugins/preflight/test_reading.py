# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of a host, read from trees and programs made for it."""

from __future__ import annotations

import gzip
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _background
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import elf
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import PciGpu, PluginFacts, ProcGpu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_containers import visible_gpus
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_criu import CriuProbe
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_driver import (
    find_library,
    library_version,
    read_driver,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_kernel import read_kernel, read_rights
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_store import parse_kind, read_store

ELF64 = b"\x7fELF\x02\x01\x01" + bytes(57)
ELF32 = b"\x7fELF\x01\x01\x01" + bytes(45)
# As driver 580.159.04 writes it.
INFORMATION = """Model: \t\t NVIDIA H200
IRQ:   \t\t 0
GPU UUID: \t GPU-037f4427-7da6-3ac9-a8cb-e47043f7d821
Video BIOS: \t 96.00.af.00.01
Bus Type: \t PCIe
DMA Size: \t 52 bits
Bus Location: \t 0000:06:00.0
Device Minor: \t 3
GPU Firmware: \t 580.159.04
GPU Excluded:\t No
"""


def put(path: Path, text: str | bytes = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def program(path: Path, script: str) -> str:
    put(path, f"#!/bin/sh\n{script}\n").chmod(0o755)
    return str(path)


# The driver


def pci(sys_root: Path, address: str, vendor: str, kind: str, module: str = "") -> None:
    device = sys_root / "bus/pci/devices" / address
    put(device / "vendor", vendor + "\n")
    put(device / "class", kind + "\n")
    if module:
        (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{module}")


def test_gpus_are_seen_on_the_bus_and_by_the_kernel_module(tmp_path: Path) -> None:
    proc, sys_root = tmp_path / "proc", tmp_path / "sys"
    put(proc / "driver/nvidia/version", "NVRM version: ...")
    put(proc / "driver/nvidia/gpus/0000:06:00.0/information", INFORMATION)
    put(
        proc / "driver/nvidia/gpus/0000:07:00.0/information",
        "Model: NVIDIA H200\nGPU UUID: GPU-????????-????-????-????-????????????\nDevice Minor: ??\n",
    )
    (proc / "driver/nvidia/gpus/0000:08:00.0").mkdir()
    pci(sys_root, "0000:06:00.0", "0x10de", "0x030200", "nvidia")
    pci(sys_root, "0000:06:00.1", "0x10de", "0x040300", "snd_hda_intel")
    pci(sys_root, "0000:07:00.0", "0x10de", "0x030000")
    pci(sys_root, "0000:00:02.0", "0x8086", "0x030000", "i915")
    (sys_root / "module/nouveau").mkdir(parents=True)

    found = read_driver(str(proc), str(sys_root))
    assert found.loaded and found.nouveau
    assert found.pci_gpus == (PciGpu("0000:06:00.0", "nvidia"), PciGpu("0000:07:00.0", ""))
    assert found.gpus == (
        ProcGpu("0000:06:00.0", "GPU-037f4427-7da6-3ac9-a8cb-e47043f7d821", "NVIDIA H200", 3),
        ProcGpu("0000:07:00.0", "", "NVIDIA H200", None),
        ProcGpu("0000:08:00.0", "", "", None),
    )


def test_a_host_without_any_of_it_is_read_without_an_error(tmp_path: Path) -> None:
    found = read_driver(str(tmp_path / "proc"), str(tmp_path / "sys"))
    assert (found.loaded, found.nouveau, found.pci_gpus, found.gpus) == (False, False, (), ())


def test_the_library_is_the_one_that_the_loader_would_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    narrow = put(tmp_path / "lib32/libcuda.so.1", ELF32)
    text = put(tmp_path / "text/libcuda.so.1", "INPUT(libcuda.so)")
    wide = put(tmp_path / "lib64/libcuda.so.580.95.05", ELF64)
    link = tmp_path / "lib64/libcuda.so.1"
    link.symlink_to(wide.name)
    later = put(tmp_path / "usr/libcuda.so.1", ELF64)
    cache = put(
        tmp_path / "ld.so.cache",
        b"glibc-ld.so.cache1.1\0\0libcuda.so.1\0"
        + b"\0".join(str(path).encode() for path in (narrow, text, tmp_path / "gone/libcuda.so.1", link))
        + b"\0/usr/lib/libcudart.so.1\0",
    )
    directories = (str(later.parent),)
    assert find_library(str(cache), directories) == str(link)
    assert library_version(str(link)) == "580.95.05"
    assert find_library(str(tmp_path / "none"), directories) == str(later)
    assert library_version(str(later)) == ""
    monkeypatch.setenv("LD_LIBRARY_PATH", f"relative:{later.parent}")
    assert find_library(str(cache), ()) == str(later)
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert find_library(str(tmp_path / "none"), ()) == "" and library_version("") == ""


# The kernel


def test_the_mark_of_the_option_counts_before_the_configuration(tmp_path: Path) -> None:
    put(tmp_path / "sys/kernel/ns_last_pid", "4711\n")
    put(tmp_path / "sys/kernel/io_uring_disabled", "2\n")
    found = read_kernel("6.8.0", str(tmp_path), "/nonexistent", "/nonexistent")
    assert (found.checkpoint_restore, found.io_uring_disabled) == (True, 2)
    assert found.told_by == "/proc/sys/kernel/ns_last_pid"


@pytest.mark.parametrize(
    ("config", "built"),
    [
        ("CONFIG_A=y\nCONFIG_CHECKPOINT_RESTORE=y\n", True),
        ("CONFIG_A=y\n# CONFIG_CHECKPOINT_RESTORE is not set\n", False),
        ("# CONFIG_CHECKPOINT_RESTORE=y\nCONFIG_A=y\n", False),
        ("nonsense", None),
    ],
)
def test_the_configuration_is_read_wherever_it_lies(tmp_path: Path, config: str, built: bool | None) -> None:
    boot, modules = tmp_path / "boot", tmp_path / "modules"
    assert read_kernel("6.8.0", str(tmp_path), str(boot), str(modules)).checkpoint_restore is None
    lib = put(modules / "6.8.0/config", config)
    found = read_kernel("6.8.0", str(tmp_path), str(boot), str(modules))
    assert (found.checkpoint_restore, found.told_by, found.io_uring_disabled) == (built, str(lib), None)
    lib.unlink()
    put(boot / "config-6.8.0", config)
    assert read_kernel("6.8.0", str(tmp_path), str(boot), str(modules)).checkpoint_restore is built
    put(boot / "config-6.8.0", "CONFIG_OTHER=y")
    put(tmp_path / "config.gz", gzip.compress(config.encode()))
    found = read_kernel("6.8.0", str(tmp_path), str(boot), str(modules))
    assert (found.checkpoint_restore, found.told_by) == (built, "/proc/config.gz")
    put(tmp_path / "config.gz", b"\x1f\x8bcut")
    assert read_kernel("6.8.0", str(tmp_path), str(boot), str(modules)).told_by == str(boot / "config-6.8.0")


def test_rights_are_those_of_the_caller(tmp_path: Path) -> None:
    put(tmp_path / "self/status", "Name:\tx\nCapEff:\t000001fffefeffff\n")
    put(tmp_path / "self/uid_map", "         0          0 4294967295\n")
    put(
        tmp_path / "self/mountinfo",
        "21 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw,hidepid=invisible\n22 1 0:9 / /sys rw - sysfs sysfs rw\n",
    )
    found = read_rights(str(tmp_path))
    assert found.uid == os.geteuid() and found.capabilities == 0x1FFFEFEFFFF
    assert found.initial_user_namespace and found.hidepid == "invisible"
    put(tmp_path / "self/uid_map", "0 100000 65536\n")
    put(tmp_path / "self/mountinfo", "21 1 0:20 / /proc rw,nosuid - proc proc rw\n")
    found = read_rights(str(tmp_path))
    assert not found.initial_user_namespace and found.hidepid == ""


# The store


def test_a_store_is_judged_by_the_nearest_directory_that_is_there(tmp_path: Path) -> None:
    found = read_store(str(tmp_path / "images" / "deep"))
    assert (found.place, found.problem, found.read_only) == (str(tmp_path), "", False)
    assert found.free is not None and found.free > 0
    space = os.statvfs(tmp_path)
    assert found.free == pytest.approx(space.f_bavail * space.f_frsize, rel=0.2)


def test_a_store_that_can_not_be_one_is_said(tmp_path: Path) -> None:
    file = put(tmp_path / "file")
    assert read_store("images").problem == "it is not an absolute path"
    assert read_store(str(file)).problem == f"{file} is no directory"
    assert read_store(str(file / "below")).problem == f"{file} is no directory"
    (tmp_path / "loop").symlink_to("loop")
    assert "loop" in read_store(str(tmp_path / "loop")).problem


def test_a_directory_on_the_way_that_others_can_write_is_named(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    place = shared / "images"
    place.mkdir(parents=True)
    shared.chmod(0o755)
    assert read_store(str(place)).open_to == ""
    shared.chmod(0o777)
    assert read_store(str(place)).open_to == str(shared)
    shared.chmod(0o1777)
    assert read_store(str(place)).open_to == "", "a sticky directory on the way does no harm"
    assert read_store(str(shared)).open_to == str(shared), "as the store itself it does"
    assert read_store(str(shared / "new")).open_to == str(shared)


def test_the_kind_of_file_system_is_that_of_the_device() -> None:
    mounts = (
        "21 1 0:20 / /proc rw shared:5 - proc proc rw\n"
        "30 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw\n"
        "44 30 0:44 / /mnt/nfs rw - nfs4 server:/x rw\nnonsense\n"
    )
    assert [parse_kind(mounts, device) for device in ("8:1", "0:44", "9:9")] == ["ext4", "nfs4", ""]


# CRIU and its plugin

PLUGIN_C = """
typedef struct {
    const char *name;
    int (*init)(int);
    void (*exit)(int, int);
    unsigned version, max_hooks;
    void *hooks[15];
} desc;
static int start(int stage) { return stage; }
static void stop(int stage, int ret) { (void)stage; (void)ret; }
desc CR_PLUGIN_DESC = {"cuda_plugin", start, stop, 512, HOOKS, {0}};
"""


def compiled(directory: Path, hooks: int) -> Path:
    source = put(directory / "plugin.c", PLUGIN_C)
    target = directory / "cuda_plugin.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-DHOOKS={hooks}", "-o", str(target), str(source)],
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return target


def test_a_plugin_tells_how_many_hooks_it_was_built_for(tmp_path: Path) -> None:
    image = compiled(tmp_path, 13).read_bytes()
    assert elf.plugin_hooks(image) == 13
    assert elf.plugin_hooks(image.replace(b"CR_PLUGIN_DESC", b"CR_PLUGIN_DESX")) is None
    for cut in (0, 4, 64, 200, len(image) // 2, len(image) - 900):
        assert elf.plugin_hooks(image[:cut]) in (None, 13)
    assert elf.plugin_hooks(ELF32) is None and elf.plugin_hooks(b"#!/bin/sh") is None


def test_a_damaged_plugin_never_raises(tmp_path: Path) -> None:
    image = bytearray(compiled(tmp_path, 12).read_bytes())
    for at in range(0x20, 0x40):
        broken = bytes(image[:at]) + b"\xff" + bytes(image[at + 1 :])
        assert elf.plugin_hooks(broken) is None or isinstance(elf.plugin_hooks(broken), int)


def noted(name: bytes, kind: int, content: bytes) -> bytes:
    """A file with one segment, of notes: one of somebody else's, and this one."""
    other = struct.pack("<III", 4, 4, 1) + b"ABI\0" + b"xxxx"
    note = struct.pack("<III", len(name), len(content), kind) + name + content
    header = b"\x7fELF\x02\x01" + bytes(26) + struct.pack("<Q", 64) + bytes(14) + struct.pack("<HH", 56, 1)
    notes = other + note
    segment = struct.pack("<IIQQQQQQ", 4, 0, 120, 0, 0, len(notes), len(notes), 4)
    return header.ljust(64, b"\0") + segment + notes


def test_the_build_id_of_a_file() -> None:
    image = noted(b"GNU\0", 3, bytes(range(20)))
    assert elf.build_id(image) == bytes(range(20)).hex()
    assert elf.build_id(noted(b"GNU\0", 1, bytes(20))) == "" and elf.build_id(noted(b"GNX\0", 3, bytes(20))) == ""
    assert elf.build_id(b"#!/bin/sh") == "" and elf.build_id(ELF32) == ""
    for cut in range(len(image)):
        assert elf.build_id(image[:cut]) == ""
    for at in range(len(image)):
        assert isinstance(elf.build_id(image[:at] + b"\xff" + image[at + 1 :]), str)


CRIU = """case $1 in
--version) echo "Version: 4.1.1"; echo "GitID: v4.1.1" ;;
check) echo "Looks good." ;;
*) exit 9 ;;
esac"""


def test_criu_tells_its_version_its_check_and_its_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    plugin = compiled(plugins, 12)
    monkeypatch.setenv("CRIU_LIBS_DIR", str(plugins))
    found = CriuProbe(program(tmp_path / "criu", CRIU), check=True).finish()
    assert (found.version, found.check, found.words, found.why) == ("4.1.1", 0, ("Looks good.",), "")
    assert found.plugin == PluginFacts(str(plugin), 12)


def test_a_plugin_is_looked_for_beside_criu_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRIU_LIBS_DIR", raising=False)
    plugin = put(tmp_path / "lib/criu/cuda_plugin.so", "no plugin")
    found = CriuProbe(program(tmp_path / "sbin/criu", CRIU), check=False).finish()
    assert found.plugin == PluginFacts(str(plugin), None)
    assert (found.check, found.words) == (None, ())


def test_what_criu_refuses_is_kept_in_its_words(tmp_path: Path) -> None:
    script = CRIU.replace('echo "Looks good."', "echo 'Error (x.c:1): kcmp is not supported' >&2; exit 1")
    found = CriuProbe(program(tmp_path / "criu", script), check=True).finish()
    assert (found.check, found.words) == (1, ("Error (x.c:1): kcmp is not supported",))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'criu: libnet.so.1: cannot open shared object file' >&2; exit 127", "cannot open shared object file"),
        ("exit 3", "exit status 3 without a word"),
        ("kill -SEGV $$", "exit status -11 without a word"),
    ],
)
def test_a_criu_that_does_not_start_is_said(tmp_path: Path, script: str, words: str) -> None:
    found = CriuProbe(program(tmp_path / "criu", script), check=False).finish()
    assert found.version == "" and found.path and words in found.why


def test_a_criu_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = CriuProbe("criu-of-nobody", check=True).finish()
    assert (found.path, found.version, found.check) == ("", "", None)
    assert "no executable criu-of-nobody in" in found.why
    there = put(tmp_path / "criu-file")
    assert "is no executable file" in CriuProbe(str(there), check=True).finish().why


def test_a_criu_that_hangs_is_ended(tmp_path: Path) -> None:
    probe = CriuProbe(program(tmp_path / "criu", "sleep 600"), check=True)
    began = time.monotonic()
    found = probe.finish(0.2)
    assert time.monotonic() - began < 5
    assert "gave no answer within 0.2 s" in found.why and found.check == -1
    assert probe.finish(0.2) is found, "asked twice, it tells the same"


def test_criu_works_while_other_evidence_is_read(tmp_path: Path) -> None:
    probe = CriuProbe(program(tmp_path / "criu", f"sleep 0.3\n{CRIU}"), check=True)
    time.sleep(0.5)
    began = time.monotonic()
    assert probe.finish().check == 0
    assert time.monotonic() - began < 0.25


def test_a_command_has_the_c_locale_no_input_and_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    code = "import os, sys; print(os.environ['LC_ALL'], sys.stdin.read() == '', os.getsid(0) == os.getpid())"
    said = _background.Command([sys.executable, "-c", code]).finish(20)
    assert (said.status, said.lines, said.problem) == (0, ("C True True",), "")


def test_a_command_that_can_not_be_started_says_why() -> None:
    said = _background.Command(["/nonexistent/x"]).finish(1)
    assert said.status is None and said.problem == "/nonexistent/x can't be started: No such file or directory"


def test_output_that_is_no_text_is_kept_as_far_as_it_is(tmp_path: Path) -> None:
    said = _background.Command(["/bin/sh", "-c", r"printf 'a\377b\n' >&2; echo c"]).finish(20)
    assert said.lines == ("a\ufffdb", "c")


# Containers


def test_a_process_with_the_callers_mounts_and_one_that_is_gone_are_left_out() -> None:
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    try:
        assert visible_gpus([child.pid, os.getpid()]) == {}
    finally:
        child.kill()
        child.wait()
    assert visible_gpus([child.pid]) == {}


def test_a_process_with_a_dev_of_its_own_sees_the_gpus_that_are_in_it(tmp_path: Path) -> None:
    script = (
        "mount -t tmpfs none /dev && cd /dev && touch nvidia0 nvidia13 nvidiactl nvidia-uvm && echo ready && sleep 60"
    )
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
        unshare = ["unshare", "--mount"]
        if subprocess.run([*unshare, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
            pytest.skip("no mount namespace can be made here")
    child = subprocess.Popen(
        [*unshare, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        assert visible_gpus([child.pid]) == {child.pid: 2}
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
