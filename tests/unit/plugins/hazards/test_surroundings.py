# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hazards of what lies around a process: what a recording can't show, and the words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around import (
    Around,
    DeletedMapping,
    Member,
    OpenFile,
    OpenSocket,
    Parent,
    Ties,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import OPTIONS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._units import Unit
from tests.recorder.recording import Recording
from tests.unit.plugins.hazards.helpers import (
    blocking,
    changed,
    context,
    evaluate,
    of,
    on_host,
    recording,
    target,
    the_only,
)

MIB = 1 << 20


def around(taken: Recording, **fields: Any) -> Recording:
    """Every target with other surroundings than were recorded; `ties` as a dict of fields."""
    ties = fields.pop("ties", {})
    seen = []
    for one in taken.snapshot.around or ():
        assert one.ties is not None
        seen.append(replace(one, ties=replace(one.ties, **ties), **fields))
    return replace(taken, snapshot=replace(taken.snapshot, around=tuple(seen)))


def in_unit(taken: Recording, **fields: Any) -> Recording:
    """Its units as they are recorded, the service with other properties."""
    units = tuple(replace(unit, **fields) if unit.name.endswith(".service") else unit for unit in taken.snapshot.units)
    return replace(taken, snapshot=replace(taken.snapshot, units=units))


# Nobody looked


def test_without_a_look_around_no_image_is_clean() -> None:
    taken = recording("plain")
    for seen in (None, ()):
        blind = replace(taken, snapshot=replace(taken.snapshot, around=seen))
        assert "its tree has open can't be seen" in the_only(evaluate(context(blind, "dump")), "files_unknown").evidence
        assert evaluate(context(blind, "suspend")) == evaluate(context(taken, "suspend"))


def test_a_child_that_may_not_be_looked_into_is_named() -> None:
    taken = around(recording("plain"), ties={"unseen": ("PID 9 (x)",)})
    finding = the_only(evaluate(context(taken, "dump"), OPTIONS), "files_unknown")
    assert "PID 9 (x)" in finding.evidence and finding.option == ""


# Words


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("tee", ("1 pipe of it leads out of its tree", "(tee)", "SIGPIPE", "allow: [external_pipe]")),
        ("deleted-file", ("state.bin (2 MiB)", "deleted")),
        ("file-lock", ("/lock (FLOCK WRITE)", "allow: [file_lock]")),
        ("file-lock-posix", ("/lock (POSIX WRITE)",)),
        ("volatile-file", ("/dev/shm/gpufleet-recorder (tmpfs)", "reboot")),
        ("nfs-file", ("data.bin (fuse.recorder)", "mounted there at restore")),
        ("rotated-log", ("train.log.1", "rotated away")),
        ("unix-socket", ("/socket", "allow: [external_unix_socket]")),
        ("tcp", ("127.0.0.1:", "on this host", "load balancer")),
        ("journald", ("descriptor 1", "descriptor 2", "StandardOutput=append:")),
        ("restart", ("Restart=always", "gpufleet-recorder.service", "second copy")),
        ("container", ("of Docker", "docker checkpoint create")),
        ("kubernetes", ("of Kubernetes", "kubelet's checkpoint API")),
        ("terminal", ("/dev/pts/", "allow: [controlling_tty]")),
        ("slurm", ("Slurm job 90210, step 0", "gives the GPU to the next one")),
        ("private-mounts", ("mount namespace of its own", "PrivateTmp=")),
        ("io-uring", ("io_uring", "kernel.io_uring_disabled=2")),
        ("fork", ("has forked PID", "num_workers=0")),
    ],
)
def test_what_an_image_can_not_hold_is_named_with_its_remedy(label: str, words: tuple[str, ...]) -> None:
    text = " ".join(finding.message() for finding in evaluate(context(recording(label), "dump")))
    assert [word for word in words if word not in text] == [], text


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("watchdog", ("watchdog of 90 s", "gpufleet-recorder.service", "allow: [systemd_watchdog]")),
        ("profiler", ("libToolsInjection64.so", "nsys", "allow: [profiler_attached]")),
        ("gunicorn", ("(gunicorn)", "--timeout 0")),
        ("container-probe", ("of Docker has a health check", "task of a swarm")),
        ("kubernetes", ("livenessProbe", "allow: [container_probe]")),
        ("oomd", ("systemd-oomd", "gpufleet-recorder.service (memory pressure)")),
        ("slurm", ("ends in 59 min", "squeue -h -j 90210")),
        ("slurm-cgroup", ("90210", "its time limit is not in its environment")),
        ("terminal", ("/dev/pts/", "in its foreground")),
    ],
)
def test_what_a_parked_process_meets_is_named_with_its_remedy(label: str, words: tuple[str, ...]) -> None:
    text = " ".join(finding.message() for finding in evaluate(context(recording(label))))
    assert [word for word in words if word not in text] == [], text


def test_control_characters_of_a_name_do_not_reach_a_message() -> None:
    taken = changed(recording("managed"), name="a\nfake: all is well\x1b[2J")
    text = the_only(evaluate(context(taken)), "uvm_managed").message()
    assert "\n" not in text and "\x1b" not in text and r"(a\nfake: all is well\x1b[2J)" in text


# systemd


def test_a_watchdog_is_known_from_the_environment_where_systemd_can_not_be_asked() -> None:
    taken = in_unit(recording("unit"), problem="systemctl can't be started")
    (unknown,) = of(evaluate(context(taken)), "systemd_watchdog")
    assert unknown.severity == "warning" and "systemctl can't be started" in unknown.evidence
    told = changed(taken, environment={"WATCHDOG_USEC": "30000000"})
    assert "watchdog of 30 s" in the_only(evaluate(context(told)), "systemd_watchdog").evidence
    for value in ("0", "\xb2"):
        none = changed(recording("unit"), environment={"WATCHDOG_USEC": value})
        assert of(evaluate(context(none)), "systemd_watchdog") == []


@pytest.mark.parametrize(
    ("word", "restarts"),
    [("always", True), ("on-failure", True), ("on-abort", True), ("on-success", False), ("on-watchdog", False),
     ("no", False), ("", False)],
)  # fmt: skip
def test_only_a_unit_that_comes_back_after_sigkill_is_a_hazard(word: str, restarts: bool) -> None:
    found = evaluate(context(in_unit(recording("restart"), restart=word), "dump"))
    assert [finding.id for finding in blocking(found)] == (["systemd_restart"] if restarts else [])


def test_a_job_of_a_restarting_daemon_ends_without_it() -> None:
    taken = recording("restart")
    parent = changed(taken, parent=77)
    assert the_only(evaluate(context(in_unit(parent, main_pid=77), "dump")), "systemd_restart")
    assert "whose main process is PID 77," in evaluate(context(in_unit(parent, main_pid=77), "dump"))[0].evidence
    assert evaluate(context(in_unit(parent, main_pid=1234567), "dump")) == ()


def test_a_restart_that_can_not_be_seen_is_told() -> None:
    taken = in_unit(recording("restart"), problem="systemd can't be reached from here")
    (finding,) = of(evaluate(context(taken, "dump")), "systemd_restart")
    assert finding.severity == "warning" and "can't be reached" in finding.evidence


def test_a_slice_above_counts_for_oomd() -> None:
    taken = recording("unit")
    units = (*taken.snapshot.units, Unit("system.slice", oomd=("swap",)))
    units = tuple(unit for unit in units if unit.name != "system.slice" or unit.oomd)
    (finding,) = of(evaluate(context(replace(taken, snapshot=replace(taken.snapshot, units=units)))), "systemd_oomd")
    assert "system.slice (swap)" in finding.evidence


# Who started it, and where


@pytest.mark.parametrize("command", [("gunicorn: master [app]",), ("/usr/bin/python3", "/usr/bin/gunicorn", "app")])
def test_gunicorn_under_every_name(command: tuple[str, ...]) -> None:
    taken = around(recording("plain"), parent=Parent(7, "python3", 7, command))
    assert the_only(evaluate(context(taken)), "park_unsafe_parent").option == "park_unsafe_parent"


def test_the_time_limit_of_a_job_that_has_passed() -> None:
    taken = changed(recording("slurm"), environment={"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "100"})
    (finding,) = of(evaluate(context(taken)), "slurm_step")
    assert "its time limit has passed" in finding.evidence and finding.severity == "warning"


def test_a_time_limit_that_is_no_number() -> None:
    taken = changed(recording("slurm"), environment={"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "\xb2"})
    (finding,) = of(evaluate(context(taken)), "slurm_step")
    assert "its time limit is not in its environment" in finding.evidence


@pytest.mark.parametrize(
    ("path", "own"),
    [
        (f"/machine.slice/libpod-{'ab' * 32}.scope", "podman container checkpoint abababababab"),
        ("/lxc.payload.web", "lxc-checkpoint -n web"),
        (f"/system.slice/docker-{'ab' * 32}.scope", "docker checkpoint create abababababab"),
        (f"/kubepods.slice/crio-{'ab' * 32}.scope", "kubelet"),
    ],
)
def test_each_runtime_has_its_own_checkpoint(path: str, own: str) -> None:
    finding = the_only(evaluate(context(changed(recording("plain"), cgroup_paths=(path,)), "dump")), "container")
    assert own in finding.remedy


def test_a_pid_namespace_of_its_own_is_a_container() -> None:
    finding = the_only(evaluate(context(changed(recording("plain"), pid_namespace="1"), "dump")), "container")
    assert "PID namespace of its own" in finding.evidence


@pytest.mark.parametrize(
    ("probe", "severity"),
    [("", None), ("none", None), ("unknown", "warning"), ("docker", "warning"), ("podman", "blocking")],
)
def test_health_checks(probe: str, severity: str | None) -> None:
    found = of(evaluate(context(around(recording("container"), probe=probe))), "container_probe")
    assert [finding.severity for finding in found] == ([] if severity is None else [severity])


# Files


def files(*some: OpenFile) -> Recording:
    return around(recording("plain"), ties={"files": some})


def test_a_deleted_file_on_a_server_blocks() -> None:
    pid = target(recording("plain")).pid
    finding = the_only(
        evaluate(context(files(OpenFile(pid, "descriptor 3", "/data/.nfs0001", "nfs4")), "dump")), "nfs_file"
    )
    assert "deleted there: /data/.nfs0001" in finding.evidence


def test_a_file_with_another_name_left_is_not_taken_into_the_image() -> None:
    pid = target(recording("plain")).pid
    some = OpenFile(pid, "descriptor 3", "/data/x", "ext4", 100, 1, deleted=True)
    assert the_only(evaluate(context(files(some), "dump")), "deleted_file")
    (finding,) = evaluate(context(files(replace(some, links=0)), "dump"))
    assert (finding.id, finding.severity) == ("deleted_file", "warning")


def test_mapped_libraries_that_an_upgrade_deleted() -> None:
    pid = target(recording("plain")).pid
    taken = around(recording("plain"), ties={"mappings": (DeletedMapping(pid, "/usr/lib/libx.so.1", 3 * MIB),)})
    assert "mapped /usr/lib/libx.so.1 (3 MiB)" in the_only(evaluate(context(taken, "dump")), "deleted_file").evidence


@pytest.mark.parametrize(
    ("left", "severity", "words"),
    [
        (None, "", ""),
        (7200.0, "warning", "for 24 h 0 min (RuntimeMaxSec=), of which 2 h 0 min are left"),
        (600.0, "warning", "of which 10 min are left"),
        (599.0, "blocking", "of which 9 min are left"),
        (-1.0, "blocking", "and that is over"),
    ],
)
def test_what_is_left_of_the_time_of_its_unit(left: float | None, severity: str, words: str) -> None:
    taken = in_unit(recording("unit"), runtime=86400.0, runtime_left=left)
    found = of(evaluate(context(taken)), "systemd_runtime")
    assert [one.severity for one in found] == ([severity] if severity else [])
    for one in found:
        assert words in one.evidence and "RuntimeMaxSec=infinity" in one.remedy and "[Service]" in one.remedy
        assert ".service.d/" in one.remedy and one.option == "systemd_runtime"
    assert of(evaluate(context(taken, "dump")), "systemd_runtime") == []


def test_what_was_restored_into_a_namespace_is_told_as_that_and_nothing_overrides_it() -> None:
    parent = Parent(77, "gpufleet-init", 77, ())
    taken = around(changed(recording("plain"), pid_namespace="1"), parent=parent, private_mounts=True)
    finding = the_only(evaluate(context(taken, "dump"), frozenset(("container", "private_mounts"))), "container")
    assert "PID 77 (gpufleet-init)" in finding.evidence and finding.option == ""
    # A program of that name is not enough.
    taken = around(recording("plain"), parent=parent)
    assert of(evaluate(context(taken, "dump")), "container") == []


def test_a_child_with_cuda_of_its_own_is_no_forked_one() -> None:
    taken = recording("two-processes")
    first, second = target(taken), target(taken, 1)
    members = (Member(first.pid, 1, "a"), Member(second.pid, first.pid, "b", ("/dev/nvidia0",)))
    seen = tuple(
        Around(one.pid, "", False, None, False, "", Ties(members if one is first else members[1:]))
        for one in (first, second)
    )
    taken = replace(taken, snapshot=replace(taken.snapshot, around=seen))
    assert of(evaluate(context(taken, "dump")), "forked_gpu_child") == []


def test_peers_that_can_not_be_seen_are_told() -> None:
    (finding,) = evaluate(context(around(recording("plain"), ties={"unix_ends": None}), "dump"))
    assert (finding.id, finding.severity) == ("external_unix_socket", "warning")


def with_sockets(*protocols: str, answers: bool | None = False) -> Recording:
    taken = recording("plain")
    some = tuple(OpenSocket(target(taken).pid, 3 + number, name) for number, name in enumerate(protocols))
    return on_host(around(taken, ties={"sockets": some}), kernel="6.18.44", socket_credentials=answers)


def test_sockets_that_an_old_criu_can_not_dump_are_named_with_what_was_seen() -> None:
    finding = the_only(evaluate(context(with_sockets("TCP", "UDPv6"), "dump")), "socket_option")
    message = finding.message()
    for words in ("2 sockets", "CRIU 4.1.1", "Linux 6.18.44", "descriptor 3 (TCP), descriptor 4 (UDPv6)", "CRIU 4.2"):
        assert words in message
    assert message.endswith("Override: allow: [socket_option].")
    (allowed,) = evaluate(context(with_sockets("TCP"), "dump"), frozenset(("socket_option",)))
    assert allowed.severity == "warning"


@pytest.mark.parametrize(
    ("protocol", "stops"),
    [
        *((name, True) for name in ("TCP", "TCPv6", "UDP", "UDP-Lite", "UDPLITEv6", "RAW", "RAWv6", "PACKET", "")),
        *((name, False) for name in ("MPTCP", "PING", "AF_VSOCK")),
    ],
)
def test_which_sockets_an_old_criu_can_not_dump(protocol: str, stops: bool) -> None:
    """Measured with CRIU 4.1.1 on Linux 6.18; what it refuses for another reason is not told as this."""
    assert bool(of(evaluate(context(with_sockets(protocol), "dump")), "socket_option")) is stops


@pytest.mark.parametrize(
    ("criu", "answers", "stops"),
    [
        ((4, 1, 1), False, True),
        ((4, 1), False, True),
        ((4, 0), False, True),
        ((4, 2), False, False),
        ((4, 2, 1), False, False),
        ((5, 0), False, False),
        ((), False, False),
        ((4, 1, 1), True, False),
        ((4, 1, 1), None, False),
    ],
)
def test_sockets_stop_a_dump_only_with_an_old_criu_on_a_kernel_that_refuses_it(
    criu: tuple[int, ...], answers: bool | None, stops: bool
) -> None:
    taken = with_sockets("TCP", answers=answers)
    assert bool(of(evaluate(context(taken, "dump", criu=criu)), "socket_option")) is stops


# The host


@pytest.mark.parametrize(
    ("scope", "uid", "stops"),
    [
        (None, 1000, False),
        (0, 1000, False),
        (1, 1000, True),
        (1, 0, False),
        (2, 1000, True),
        (2, 0, False),
        (3, 0, True),
    ],
)
def test_yama(scope: int | None, uid: int, stops: bool) -> None:
    taken = changed(on_host(recording("plain"), yama_ptrace_scope=scope), uid=uid)
    for action in ("suspend", "resume"):
        found = of(evaluate(context(taken, action, uid=uid), OPTIONS), "yama_ptrace")
        assert [(finding.severity, finding.pid) for finding in found] == ([("blocking", None)] if stops else [])
    assert of(evaluate(context(taken, "lock", uid=uid)), "yama_ptrace") == []


def test_everything_with_a_name_can_be_allowed() -> None:
    for label in ("tee", "file-lock", "volatile-file", "tcp", "unix-socket", "container", "restart", "terminal"):
        assert blocking(evaluate(context(recording(label), "dump"), OPTIONS)) == [], label
    for label in ("journald", "io-uring", "fork"):
        assert blocking(evaluate(context(recording(label), "dump"), OPTIONS)), label
