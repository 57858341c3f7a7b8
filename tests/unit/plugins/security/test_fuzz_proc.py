# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of the kernel, with whatever a workload may call its threads, files, sockets and control groups. Nothing
raises, and nothing that is there is told as if it were not."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import (
    _around_parse,
    _cgroup,
    _host,
    _process_parse,
    _sockets,
    _units,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Said
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._driver_packages import parse_dpkg, parse_versionlock
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import evaluate
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import masks
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import process as hold_process
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import read_driver, read_store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines, natural
from tests.unit.plugins.hazards.helpers import changed, context, recording

# What str.splitlines() or str.split() take for an end, digits that int() does not know, and what parsers look for.
NASTY = st.sampled_from(
    [
        *"\x0b\x0c\x1c\x1e\x85\u2028\xa0\u3000²٣ \t():@|",
        *("/dev/nvidia0", "TracerPid:\t0", "Uid:\tx", " - ", "(deleted)", "9" * 30),
    ]
)
CHARACTER = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
TEXT = st.lists(st.one_of(NASTY, st.text(CHARACTER, max_size=4)), max_size=6).map("".join)
LINE = TEXT.map(lambda text: text.replace("\n", ""))
NUMBER = st.integers(0, (1 << 64) - 1)
PID = st.integers(1, 1 << 22)


def escaped(text: str) -> str:
    """As the kernel writes a name into maps and status."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def octal(text: str) -> str:
    """As the kernel writes a path into mountinfo."""
    for character in "\\ \t\n":
        text = text.replace(character, f"\\{ord(character):03o}")
    return text


@given(TEXT)
def test_any_text_is_read_without_an_error(text: str) -> None:
    _process_parse.parse_stat(text)
    _process_parse.parse_status(text)
    _process_parse.parse_limits(text)
    _process_parse.parse_maps(text)
    _process_parse.waits_in_freezer("S", text)
    _process_parse.may_matter(text.encode())
    _process_parse.parse_environment(text.encode())
    _process_parse.sort_descriptors([text, f"socket:[{text}]", f"pipe:[{text}]"])
    _around_parse.parse_fdinfo(text)
    _around_parse.parse_mounts(text)
    _around_parse.deleted_mappings(text)
    _cgroup.parse_mounts(text)
    _cgroup.parse_membership(text)
    _cgroup.parse_stat(text)
    _sockets.parse_unix(text)
    _sockets.parse_tcp(text)
    _sockets.parse_end(text)
    _host.parse_meminfo(text)
    _host.parse_driver_version(text)
    _host.parse_choice(text)
    _units.units_of(["a.service"], Said(0, text))
    parse_dpkg(text)
    parse_versionlock(text, ["a"])
    read_store.parse_kind(text, "8:1")
    read_driver.parse_information("0", text)


@given(TEXT)
def test_a_number_is_what_the_kernel_writes(text: str) -> None:
    value = natural(text)
    assert value is None or (text.isascii() and int(text) == value)


@given(st.lists(LINE))
def test_only_a_line_feed_ends_a_line(parts: list[str]) -> None:
    text = "".join(part + "\n" for part in parts)
    assert lines(text) == parts


@given(PID, TEXT, st.sampled_from("RSDTtZX"), st.lists(st.integers(-(1 << 31), 1 << 40), min_size=20, max_size=20))
def test_stat_round_trip(pid: int, name: str, state: str, rest: list[int]) -> None:
    found = _process_parse.parse_stat(f"{pid} ({name}) {state} {' '.join(map(str, rest))}\n")
    assert found is not None and found.name == name and found.state == state
    assert (found.parent, found.group, found.start_ticks) == (rest[0], rest[1], rest[18])
    assert _process_parse.parse_stat(f"{pid} ({name}) {state} 1 2") is None


FIELDS = {"Uid": "1000\t1000\t1000\t1000", "TracerPid": "77", "ShdPnd": "0000000000004000", "NSpid": "12"}


@given(TEXT.map(lambda name: name[:15]))
@example("\x0bTracerPid:\t0")
@example("\x0bVmSize:q")
def test_no_name_of_a_thread_is_a_line_of_its_status(name: str) -> None:
    text = f"Name:\t{escaped(name)}\n" + "".join(f"{key}:\t{value}\n" for key, value in FIELDS.items())
    assert _process_parse.parse_status(text) == {"Name": escaped(name).strip(), **FIELDS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hold_process, "read", lambda pid, field, tid=None: text)
        assert hold_process.tracer(1, 1) == 77
        assert hold_process.status_field(1, "ShdPnd") == FIELDS["ShdPnd"]


MAPPED = st.one_of(
    LINE.map(lambda text: "/" + text),
    LINE.map(lambda text: "/dev/nvidia" + text),
    st.sampled_from(
        ["/dev/nvidia0", "/tmp/a\x0b/dev/nvidia0", "/tmp/\u2028/dev/nvidia-uvm", "[anon:/dev/nvidia0]", "[heap]", ""]
    ),
)


@given(st.lists(st.tuples(st.integers(0, 1 << 46), st.integers(1, 1 << 30), MAPPED)))
@example([(4096, 4096, "/tmp/a\x0b/dev/nvidia0")])
def test_the_device_mappings_are_those_of_device_files(mappings: list[tuple[int, int, str]]) -> None:
    text = "".join(
        f"{start:08x}-{start + size:08x} rw-s 00000000 00:05 12 {' ' * 20}{path}".rstrip(" ") + "\n"
        for start, size, path in mappings
    )
    expected = tuple(
        (path.rstrip(" "), start, size) for start, size, path in mappings if path.startswith("/dev/nvidia")
    )
    assert _process_parse.parse_maps(text).devices == expected
    assert _around_parse.deleted_mappings(text) is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "memory", "cpu,cpuacct", "freezer"]),
            st.lists(LINE.map(lambda t: t.replace("/", "")), max_size=3),
        )
    )
)
def test_membership_round_trip(groups: list[tuple[str, list[str]]]) -> None:
    paths = [(hierarchy, "/" + "/".join(names)) for hierarchy, names in groups]
    text = "".join(f"{index}:{hierarchy}:{path}\n" for index, (hierarchy, path) in enumerate(paths))
    found = _cgroup.parse_membership(text)
    assert [one[0] for one in found] == [one[0] for one in paths]
    for (_hierarchy, path), (_name, said) in zip(paths, found, strict=True):
        assert said == path or path == f"{said} (deleted)"


POINT = TEXT.map(lambda text: "/" + text)


@given(st.lists(st.tuples(POINT, st.sampled_from(["tmpfs", "ext4", "nfs4", "fuse.x", "cgroup2"])), max_size=5))
@example([("/tmp", "tmpfs"), ("/tmp/\xa0y", "fuse.x")])
def test_mounts_round_trip(mounts: list[tuple[str, str]]) -> None:
    text = "".join(
        f"{30 + index} 1 8:{index} / {octal(point)} rw,relatime shared:1 - {kind} source rw\n"
        for index, (point, kind) in enumerate(mounts)
    )
    found = _around_parse.parse_mounts(text)
    assert list(found.points) == mounts
    assert found.types == {30 + index: kind for index, (_point, kind) in enumerate(mounts)}
    assert [one.point for one in _cgroup.parse_mounts(text)] == [point for point, kind in mounts if kind == "cgroup2"]
    for index, (_point, kind) in enumerate(mounts):
        assert read_store.parse_kind(text, f"8:{index}") == kind


@given(st.integers(0, 0o7777777), st.integers(1, 1 << 20))
def test_fdinfo_round_trip(flags: int, mount: int) -> None:
    found = _around_parse.parse_fdinfo(f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t{mount}\nino:\t7\n")
    assert (found.flags, found.mount) == (flags, mount)


@given(TEXT)
def test_flags_that_can_not_be_read_are_taken_for_writing(word: str) -> None:
    found = _around_parse.parse_fdinfo(f"flags:\t8{word}\n")
    assert found.flags & os.O_ACCMODE


@given(LINE.filter(lambda text: text.strip() != "max" and natural(text.strip()) is None))
def test_a_limit_that_can_not_be_read_is_not_taken_for_none(text: str) -> None:
    assert _cgroup.parse_limit(text) == 0
    assert _cgroup.parse_limit("max\n") is None and _cgroup.parse_limit("4096\n") == 4096
    shown = f"Limit                     Soft Limit\n{'Max data size':<26}x{text} unlimited bytes\n"
    assert _process_parse.parse_limits(shown)["Max data size"] == 0


# The kernel writes names of sockets into /proc/net/unix as they are, with line feeds.
FORGED = st.builds(
    lambda inode, name: f"\n0000000000000000: 00000002 00000000 00010000 0001 01 {inode} {name}",
    st.integers(100, 110),
    st.sampled_from(["", "@cuda-uvmfd-1-777", "/run/nvidia-mps/control", "@x"]),
)
NAME = st.one_of(
    st.just(""), st.builds("@{}{}".format, TEXT, st.one_of(st.just(""), FORGED)), st.just("@cuda-uvmfd-4026531836-590")
)


@given(st.lists(NAME, max_size=8))
def test_no_name_of_a_socket_takes_the_name_of_another_away(names: list[str]) -> None:
    text = "Num       RefCount Protocol Flags    Type St Inode Path\n" + "".join(
        f"0000000000000000: 00000002 00000000 00010000 0001 01 {100 + index}{' ' + name if name else ''}\n"
        for index, name in enumerate(names)
    )
    found = _sockets.parse_unix(text)
    for index, name in enumerate(names):
        if name.rstrip("@") and "\n" not in name:
            assert found is None or found[100 + index] == name.rstrip("@")


@given(st.binary(max_size=200), st.integers(0, 2000))
def test_messages_of_sock_diag_are_read_or_refused(data: bytes, inode: int) -> None:
    found = _sockets.UnixSockets({}, {})
    for more in (data, struct.pack("=IHHII", 16 + len(data), 20, 2, 1, 0) + data):
        try:
            _sockets.parse_unix_messages(more, found)
        except OSError:
            pass


@given(
    st.lists(
        st.tuples(st.integers(1, 1 << 40), st.integers(1, 11), st.binary(min_size=4, max_size=4), st.integers(0, 65535))
    )
)
def test_tcp_round_trip(sockets: list[tuple[int, int, bytes, int]]) -> None:
    text = "  sl  local_address rem_address   st\n" + "".join(
        f"   0: {address[::-1].hex().upper()}:{port:04X} 0100007F:0016 {state:02X} 0:0 00:0 0 0 0 {inode} 1\n"
        for inode, state, address, port in sockets
    )
    found = _sockets.parse_tcp(text)
    assert [(one.inode, one.state, one.local[0], one.local[1]) for one in found] == [
        (inode, state, ".".join(map(str, address)), port) for inode, state, address, port in sockets
    ]


@given(st.dictionaries(st.sampled_from(_process_parse.ENVIRONMENT), TEXT))
@example({"WORLD_SIZE": "²", "SLURM_JOB_END_TIME": "²", "WATCHDOG_USEC": "²"})
@example({"WORLD_SIZE": "9" * 5000, "SLURM_JOB_END_TIME": "9" * 5000, "WATCHDOG_USEC": "9" * 5000})
def test_no_environment_of_a_workload_stops_the_look_for_hazards(environment: dict[str, str]) -> None:
    data = b"\0".join(f"{key}={value}".encode() for key, value in environment.items())
    read = _process_parse.parse_environment(data)
    group = "/system.slice/slurmstepd.scope/job_1/step_0"
    taken = changed(recording("plain"), environment=read, cgroup_paths=(group,))
    for action in ("suspend", "dump"):
        evaluate(context(taken, action=action))


@given(st.dictionaries(PID, NUMBER, max_size=4), TEXT)
def test_signal_masks_round_trip(found: dict[int, int], text: str) -> None:
    assert masks.from_text(masks.to_text(found)) == found
    try:
        masks.from_text(text)
    except ValueError:
        pass
