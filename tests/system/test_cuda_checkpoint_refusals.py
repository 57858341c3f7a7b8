# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cuda_checkpoint refuses before it changes anything, in which words, and what `allow` does about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.system.lab import Job, Lab, Workload
from tests.system.playing import cuda, info

MIB = 1 << 20
MEMORY = "/sys/fs/cgroup/memory"
UNIFIED = "/sys/fs/cgroup/unified"


@contextmanager
def group(lab: Lab, path: str, *settings: tuple[str, object]) -> Iterator[str]:
    lab.host.sh(
        f"mkdir -p {path}; " + " && ".join(["true", *(f"echo {value} >{path}/{key}" for key, value in settings)])
    )
    try:
        yield path
    finally:
        lab.host.sh(
            f"i=0; until rmdir {path} 2>/dev/null || [ $i = 100 ]; do i=$((i+1)); sleep 0.05; done; ! ls {path} 2>&1"
        )


def stopped(lab: Lab, _stack: ExitStack) -> list[Job]:
    job = lab.one()
    lab.host.run("kill", "-STOP", str(job.pid))
    _stack.callback(lab.host.run, "kill", "-CONT", str(job.pid))
    return [job]


def frozen(lab: Lab, stack: ExitStack) -> list[Job]:
    """By the freezer of a cgroup above its own."""
    path = stack.enter_context(group(lab, f"{UNIFIED}/cold"))
    below = stack.enter_context(group(lab, f"{path}/below"))
    job = lab.one(cgroups=(below,))
    stack.callback(lab.end, job)
    lab.host.sh(f"echo 1 >{path}/cgroup.freeze; until grep -q 'frozen 1' {path}/cgroup.events; do sleep 0.02; done")
    stack.callback(lab.host.sh, f"echo 0 >{path}/cgroup.freeze")
    return [job]


TRACE = """
import ctypes, signal, sys
libc = ctypes.CDLL(None)
libc.prctl(15, b"debugger", 0, 0, 0)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0
print("attached", flush=True)
signal.sigwait([signal.SIGTERM])
"""


@contextmanager
def debugger(lab: Lab, job: Job) -> Iterator[int]:
    """A tracer that lets the process run."""
    assert lab.background("python3", "-c", TRACE, str(job.pid)) == "attached"
    tracer = int(lab.look(job)[job.pid]["tracer"])
    assert tracer
    try:
        yield tracer
    finally:
        lab.host.sh(f"kill -9 {tracer}; while [ -e /proc/{tracer} ]; do sleep 0.02; done")


def traced(lab: Lab, stack: ExitStack) -> list[Job]:
    job = lab.one()
    stack.enter_context(debugger(lab, job))
    return [job]


def small_cgroup(lab: Lab, stack: ExitStack) -> list[Job]:
    """Room for the process, but not for its GPU memory; the limit is that of the group above."""
    path = stack.enter_context(group(lab, f"{MEMORY}/small", ("memory.limit_in_bytes", 64 * MIB)))
    below = stack.enter_context(group(lab, f"{path}/below"))
    job = lab.one(vram=96, cgroups=(below,))
    stack.callback(lab.end, job)
    return [job]


def two_in_a_cgroup(lab: Lab, stack: ExitStack) -> list[Job]:
    """Each would fit alone."""
    path = stack.enter_context(group(lab, f"{MEMORY}/shared", ("memory.limit_in_bytes", 600 * MIB)))
    jobs = lab.start(*[Workload(vram=300, cgroups=(path,), gpu=number) for number in (0, 1)])
    stack.callback(lab.end, *jobs)
    return jobs


def data_limit(lab: Lab, _stack: ExitStack) -> list[Job]:
    return [lab.one(vram=96, data_limit=64 * MIB)]


def managed(lab: Lab, _stack: ExitStack) -> list[Job]:
    return [lab.one("managed")]


def two_ranks(lab: Lab, _stack: ExitStack) -> list[Job]:
    return lab.start(Workload("nccl", options=("--ranks", "2"), siblings=("rank1",)))


def mps_client(lab: Lab, stack: ExitStack) -> list[Job]:
    stack.callback(lab.host.sh, "echo quit | nvidia-cuda-mps-control; while pgrep nvidia-cuda-mps; do sleep 0.02; done")
    job = lab.one("mps")
    stack.callback(lab.end, job)
    return [job]


def exported(lab: Lab, _stack: ExitStack) -> list[Job]:
    return [lab.one("vmm_export")]


@dataclass(frozen=True)
class Gate:
    """prepare: makes processes that are refused. words: of the message. option: of `allow`, empty where none helps."""

    id: str
    prepare: Callable[[Lab, ExitStack], list[Job]]
    words: tuple[str, ...]
    option: str = ""


GATES = {
    "stopped": Gate("stopped_or_frozen", stopped, ("T", "kill -CONT"), "stopped"),
    "frozen": Gate("stopped_or_frozen", frozen, ("/cold", "frozen")),
    "traced": Gate("traced", traced, ("debugger",)),
    "small cgroup": Gate("cgroup_memory", small_cgroup, ("/small", "MiB"), "cgroup_memory"),
    "cgroup for one of two": Gate("cgroup_memory", two_in_a_cgroup, ("/shared",), "cgroup_memory"),
    "RLIMIT_DATA": Gate("host_memory", data_limit, ("RLIMIT_DATA", "64 MiB"), "host_memory"),
    "managed memory": Gate("uvm_managed", managed, ("/dev/nvidia-uvm", "managed"), "uvm_managed"),
    "two NCCL ranks": Gate("nccl_communicator", two_ranks, ("NCCL",), "nccl_communicator"),
    "MPS": Gate("mps_client", mps_client, ("MPS",), "mps_client"),
    "exported memory": Gate("vmm_export", exported, ("nvidiactl",), "vmm_export"),
}


@pytest.mark.parametrize("name", GATES)
def test_gate(lab: Lab, name: str) -> None:
    """Also the process beside it, with which nothing is wrong, is left alone; both modules say the same."""
    gate = GATES[name]
    with ExitStack() as stack:
        (fine,) = lab.start(Workload())
        jobs = gate.prepare(lab, stack)
        pids = [fine.pid, *(job.pid for job in jobs)]
        before = lab.look(fine, *jobs)
        allow = ["cuda_ipc_possible"] * (gate.id != "cuda_ipc_possible")
        told, refused, seen = lab.play(
            cuda("checkpointed", pids, allow=allow, check=True), cuda("checkpointed", pids, allow=allow), info(pids)
        )
        after = lab.look(fine, *jobs)
        for result in (told, refused):
            result.refused(*(f"PID {job.pid}" for job in jobs[:1]), *gate.words)
            assert (f"allow: [{gate.option}]" in result.msg) is bool(gate.option), result.msg
        mine = [one for one in refused.data["findings"] if one["id"] == gate.id and one["severity"] == "blocking"]
        assert {one["pid"] for one in mine} <= {job.pid for job in jobs} | {None} and mine, refused
        for one in mine:
            assert one["option"] == gate.option
            assert all(one[key] for key in ("subject", "evidence", "reason", "remedy", "reference"))
            assert all(one[key].rstrip(".") in refused.msg for key in ("subject", "evidence", "reason", "remedy"))
        assert gate.id in {one["id"] for one in seen.ok().data["findings"]}
        for pid in before:
            assert [before[pid][key] for key in ("start", "devices", "tracer")] == [
                after[pid][key] for key in ("start", "devices", "tracer")
            ]
            assert (before[pid]["state"] in "Tt") == (after[pid]["state"] in "Tt")
        assert lab.host.state(str(fine.pid)) == "running"


def test_several_cuda_processes_that_belong_together_may_share_memory(lab: Lab) -> None:
    """It can't be seen from outside, so it is said."""
    jobs = lab.start(Workload("ipc", siblings=("importer",)))
    (told,) = lab.play(cuda("checkpointed", [job.pid for job in jobs], check=True))
    found = [one for one in told.data["findings"] if one["id"] == "cuda_ipc_possible"]
    assert found and all(
        one["reason"] and one["remedy"] and "can't" in one["reason"] + one["evidence"] for one in found
    )


def test_a_process_without_cuda_is_an_error(lab: Lab) -> None:
    lab.host.sh("setsid -f sleep 1000 </dev/null >/dev/null 2>&1")
    pid = int(lab.host.run("pgrep", "-n", "-x", "sleep"))
    fine = lab.one()
    (refused,) = lab.play(cuda("checkpointed", [fine.pid, pid]))
    refused.refused(f"PID {pid} (sleep)", "CUDA")
    lab.host.run("kill", str(pid))


def test_another_user_may_only_touch_its_own(lab: Lab, trainer: str) -> None:
    own, foreign = lab.start(Workload(user=trainer), Workload())
    as_trainer = {
        "become": True,
        "become_user": trainer,
        "become_method": "ansible.builtin.su",
        "vars": {"ansible_remote_tmp": "/tmp/trainer", "ansible_become_flags": "-"},
    }
    journal = f"/home/{trainer}/checkpoint.db"
    refused, suspended, resumed, seen = lab.play(
        {**cuda("checkpointed", [own.pid, foreign.pid], journal=journal), **as_trainer},
        {**cuda("checkpointed", [own.pid], journal=journal), **as_trainer},
        {**cuda("running", [own.pid], journal=journal), **as_trainer},
        {**info([foreign.pid], journal=journal), **as_trainer},
    )
    refused.refused(f"PID {foreign.pid}", "root")
    assert "allow: [" not in refused.msg
    suspended.ok(changed=True)
    resumed.ok(changed=True)
    assert seen.ok().processes[foreign.pid]["state"] == "unknown"
    lab.host.sh(f"rm -rf {journal}* /tmp/trainer")


def test_a_gpu_without_room_is_refused_and_nothing_is_lost(lab: Lab) -> None:
    job = lab.one(vram=600)
    lab.play(cuda("checkpointed", [job.pid]))[0].ok(changed=True)
    (intruder,) = lab.start(Workload(vram=600))
    told, refused, seen = lab.play(cuda("running", [job.pid], check=True), cuda("running", [job.pid]), info([job.pid]))
    for result in (told, refused):
        result.refused(f"PID {job.pid}", "GPU", "MiB", "allow: [vram_short]")
    assert [one["id"] for one in refused.data["findings"]] == ["vram_short"]
    assert "vram_short" in {one["id"] for one in seen.ok().data["findings"]}
    assert lab.is_parked(job)
    lab.end(intruder)
    lab.play(cuda("running", [job.pid]))[0].ok(changed=True)


def test_allow_overrides_a_gate_and_the_finding_stays_as_a_warning(lab: Lab) -> None:
    """Exported memory stays on the GPU; a cgroup whose limit is only too small by the margin."""
    with ExitStack() as stack:
        path = stack.enter_context(group(lab, f"{MEMORY}/tight", ("memory.limit_in_bytes", 200 * MIB)))
        export, tight = lab.start(Workload("vmm_export"), Workload(vram=96, cgroups=(path,)))
        stack.callback(lab.end, tight)
        pids = [export.pid, tight.pid]
        both = ["vmm_export", "cgroup_memory"]
        half, suspended, resumed = lab.play(
            cuda("checkpointed", pids, allow=both[:1]), cuda("checkpointed", pids, allow=both), cuda("running", pids)
        )
        half.refused(f"PID {tight.pid}")
        suspended.ok(changed=True)
        severities = {one["id"]: one["severity"] for one in suspended.data["findings"] if one["pid"] is not None}
        assert severities == dict.fromkeys([*both, "cuda_ipc_possible"], "warning")
        resumed.ok(changed=True)
        assert not lab.problems()


def test_allow_stopped_continues_it_for_the_lock_and_leaves_it_stopped(lab: Lab) -> None:
    job = lab.one()
    lab.host.run("kill", "-STOP", str(job.pid))
    counter = lab.look(job)[job.pid]["counter"]
    suspended, resumed, again = lab.play(
        cuda("checkpointed", [job.pid], allow=["stopped"]), cuda("running", [job.pid]), cuda("running", [job.pid])
    )
    suspended.ok(changed=True)
    assert "stopped_or_frozen" in suspended.processes[job.pid]["findings"]
    assert any(one.startswith(f"stopped_or_frozen: PID {job.pid}") for one in suspended.data["warnings"])
    resumed.ok(changed=True)
    left = f"it is stopped, as it was found: kill -CONT {job.pid} lets it run"
    assert left in resumed.processes[job.pid]["warnings"]
    assert any(one.endswith(left) for one in resumed.data["warnings"])
    again.refused(f"run {resumed.data['run_id']} found it stopped by somebody else", "allow: [stopped]")
    seen = lab.look(job)[job.pid]
    assert seen["state"] == "T" and seen["devices"] and not seen["tracer"]
    assert seen["counter"] - counter <= 5  # what it counted while it was continued for the lock
    lab.host.run("kill", "-CONT", str(job.pid))


def test_a_process_that_was_stopped_and_suspended_by_hand_is_left_alone(lab: Lab) -> None:
    job = lab.one()
    lab.host.act("lock", str(job.pid))
    lab.host.act("checkpoint", str(job.pid))
    lab.host.run("kill", "-STOP", str(job.pid))
    refused, seen = lab.play(cuda("running", [job.pid]), info([job.pid]))
    refused.refused(f"PID {job.pid}", "journal")
    assert lab.look(job)[job.pid]["state"] == "T"
    assert seen.ok().processes[job.pid]["parked"] and seen.processes[job.pid]["run_id"] is None
    lab.host.run("kill", "-CONT", str(job.pid))
    lab.host.act("restore", str(job.pid))
    lab.host.act("unlock", str(job.pid))


# Of a user who has nothing to do with the GPU.
HOSTILE = r"""
import ctypes, mmap, os, pathlib, socket, time
kept = []
for name in (b"x\na b c d e f \xc2\xb2 g", b"\xff\xfe", b"x\x0ba b c d e f 1 g"):
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(b"\0" + name)
for place in ("/tmp/hostile/a\x0b/dev/nvidia0", "/tmp/hostile/a\u2028/dev/nvidia-uvm"):
    file = pathlib.Path(place)
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(4096))
    with file.open("r+b") as stream:
        kept.append(mmap.mmap(stream.fileno(), 4096))
ctypes.CDLL(None).prctl(15, b"a)\x0b\nTgid: 1", 0, 0, 0)
print(os.getpid(), flush=True)
time.sleep(1000)
"""

# A program whose path is no UTF-8, with a file like that open.
ODD_NAME = r"""
directory=$(printf '/var/lib/we\377ird\n\303\251'); mkdir -p "$directory"; cp "$1" "$directory/a program"; shift
exec 9>"$directory/log" "$directory/a program" "$@"
"""


def test_names_that_are_no_text_and_neighbours_that_are_hostile(lab: Lab, trainer: str) -> None:
    """Nothing that another user calls his files and sockets may keep a run from its processes."""
    job = lab.start(Workload(wrap=("sh", "-c", ODD_NAME, "-")))[0]
    neighbour = lab.background(
        "setpriv", f"--reuid={trainer}", "--regid=65534", "--clear-groups", "python3", "-c", HOSTILE
    )
    looked, suspended, again, resumed = lab.play(
        info(select={"all": True}),
        cuda("checkpointed", select={"executable": "a program"}),
        info([job.pid]),
        cuda("running", [job.pid]),
    )
    lab.host.sh(f"kill {neighbour}; rm -rf /tmp/hostile")
    assert [process["pid"] for process in looked.ok().data["processes"]] == [job.pid]
    assert "/we\ufffdird\n\xe9/a program" in suspended.ok(changed=True).each("executable")[0]
    assert again.ok().each("state") == ["checkpointed"]
    assert resumed.ok(changed=True).each("after") == ["running"]


ZOMBIE = "import os, time; pid = os.fork(); os._exit(0) if pid == 0 else print(pid, flush=True); time.sleep(1000)"


def test_bad_input_is_an_error_before_anything_changes(lab: Lab) -> None:
    job, other = lab.start(Workload(), Workload(gpu=1))
    pid = job.pid
    sshd = int(lab.host.run("pgrep", "-o", "-x", "sshd"))
    thread = int(lab.host.sh(f"ls /proc/{pid}/task | grep -v '^{pid}$' | head -n 1"))
    zombie = int(lab.background("python3", "-c", ZOMBIE))
    dead = int(lab.host.sh("sh -c 'echo $$'"))
    start = lab.look(job)[pid]["start"]
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"pids": ["twelve"]}, ["pids[0]", "twelve"]),
        ({"pids": [pid, f"{pid} x"]}, ["pids[1]"]),
        ({"pids": ["1_000"]}, ["pids[0]", "1_000"]),
        ({"pids": [-pid]}, ["pids[0]", f"-{pid}"]),
        ({"pids": [0]}, ["pids[0]", "from 1"]),
        ({"pids": [True]}, ["pids[0]"]),
        ({"pids": [pid, 1.5]}, ["pids[1]"]),
        ({"pids": [1 << 40]}, ["pids[0]", "range"]),
        ({"pids": []}, ["pids", "empty"]),
        ({"pids": [pid, other.pid, pid]}, ["pids", str(pid), "twice"]),
        ({"pids": [thread]}, [f"{thread} is a thread of process {pid}"]),
        ({"pids": [sshd]}, [str(sshd), "runs this module"]),
        ({"pids": [pid, dead]}, [f"no process {dead}"]),
        ({"pids": [zombie]}, [str(zombie), "zombie"]),
        ({"pids": [{"pid": pid, "start_ticks": start - 1}]}, [f"{pid} is another process now", str(start)]),
        ({"pids": [pid], "allow": ["everything"]}, ["allow", "everything", "uvm_managed"]),
        ({"pids": [pid], "select": {"all": True}}, ["pids", "select", "mutually exclusive"]),
        ({}, ["pids", "select"]),
        ({"select": {}}, ["select", "criterion"]),
        ({"select": {"gpus": [7]}}, ["7", "GPU"]),
        ({"select": {"users": ["nobody-here"]}}, ["nobody-here"]),
        ({"select": {"command": "("}}, ["command", "("]),
        ({"select": {"command": "a{99999999999999}"}}, ["command", "repetition"]),
        ({"select": {"users": ["\xb2"]}}, ["knows no user", "\xb2"]),
        ({"pids": ["9" * 5000]}, ["pids[0]"]),
        ({"pids": [pid], "parallel": -1}, ["parallel", "-1"]),
        ({"pids": [pid], "lock_timeout": 0}, ["lock_timeout", "0"]),
        ({"pids": [pid], "step_timeout": -1}, ["step_timeout", "-1"]),
        ({"pids": [pid], "run_id": "a b"}, ["run_id", "a b"]),
        ({"pids": [pid], "guard": "holder", "park": False}, ["guard", "park"]),
        ({"pids": [pid], "executable": "/no/such/tool", "backend": "cli"}, ["/no/such/tool"]),
    ]
    maps: list[tuple[object, list[str]]] = [
        ("sideways", ["device_map", "sideways"]),
        ({"0": "1"}, ["device_map", "missing"]),
        ({"0": "1", "1": "1"}, ["device_map", "2 times"]),
        ({"0": "1", "1": "2"}, ["device_map", "2 is no GPU of this host"]),
        ({"0": "1", "1": "GPU-00000000-0000-0000-0000-000000000000"}, ["device_map", "is no GPU of this host"]),
    ]
    parked = lab.one()
    tasks = [cuda("checkpointed", **arguments) for arguments, _words in cases]
    tasks += [cuda("running", [parked.pid], device_map=one) for one, _words in maps]
    first, *results = lab.play(cuda("checkpointed", [parked.pid]), *tasks)
    first.ok(changed=True)
    wrong = []
    for result, (what, words) in zip(results, [*cases, *maps], strict=True):
        try:
            result.refused(*words)
        except AssertionError as error:
            wrong.append(f"{what}: {str(error).splitlines()[0]}")
    assert not wrong, "\n".join(wrong)
    assert lab.is_parked(parked) and not lab.stands_still(job) and not lab.stands_still(other)
    rows = lab.ask("journal", f"SELECT * FROM operations WHERE pid IN ({pid}, {other.pid})")
    assert rows == []
    lab.host.sh(f"kill $(cut -d' ' -f4 /proc/{zombie}/stat)")
    lab.play(cuda("running", [parked.pid]))[0].ok(changed=True)


def test_a_host_that_gives_no_descriptors_is_told(lab: Lab) -> None:
    pids = [job.pid for job in lab.start(*[Workload()] * 12)]
    lab.host.put("/usr/local/bin/poor-python", '#!/bin/sh\nulimit -n 14\nexec /usr/bin/python3 "$@"\n', "755")
    poor = {"vars": {"ansible_python_interpreter": "/usr/local/bin/poor-python"}}
    for result in lab.play(cuda("checkpointed", pids) | poor, info(pids) | poor):
        result.refused("Too many open files", "ulimit -n")


REUSE = """
import os, sys, time
wanted = int(sys.argv[1])
for attempt in range(2000):
    with open("/run/lab/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(wanted - 1))
    pid = os.fork()
    if pid == 0:
        if os.getpid() == wanted:
            os.setsid()
            os.execv(sys.argv[2], sys.argv[2:])
        os._exit(0)
    if pid == wanted:
        sys.exit(0)
    os.waitpid(pid, 0)
sys.exit("that PID was not to be had")
"""


def test_a_reused_pid_is_never_touched(lab: Lab) -> None:
    """The suspended process is killed, and another CUDA process gets its PID."""
    job = lab.one()
    (suspended,) = lab.play(cuda("checkpointed", [job.pid]))
    identity = suspended.ok(changed=True).processes[job.pid]["identity"]
    lab.end(job)
    lab.host.sh("mkdir -p /run/lab/proc; mount -t proc proc /run/lab/proc")
    lab.host.put("/run/lab/reuse.py", REUSE)
    out = f"/run/lab/{job.name}"
    again = ("/usr/local/bin/gpusim-workload", "--vram", "16", "--out", out)
    lab.host.run("sh", "-c", 'exec "$@" </dev/null >/run/lab/reuse.log 2>&1', "-",
                 *("python3", "/run/lab/reuse.py", str(job.pid), *again))  # fmt: skip
    lab.host.sh(f"umount /run/lab/proc; until [ -s {out} ]; do sleep 0.02; done")
    assert lab.host.run("cat", f"{out}.pid") == str(job.pid)
    lab.jobs.append(job)
    refused, also, suspended, resumed = lab.play(
        cuda("running", [job.pid]),
        cuda("running", [{key: identity[key] for key in ("pid", "start_ticks", "boot_id")}]),
        cuda("checkpointed", [{"pid": job.pid, "start_ticks": lab.look(job)[job.pid]["start"]}]),
        cuda("running", [{"pid": job.pid, "start_ticks": lab.look(job)[job.pid]["start"]}]),
    )
    refused.refused(str(job.pid), "is not the process that run")
    also.refused(f"{job.pid} is another process now")
    suspended.ok(changed=True)
    resumed.ok(changed=True)


NEWER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA application_id = 0x47504643")
database.execute("PRAGMA user_version = 99")
"""
JOURNALS = {
    "a link": ("ln -s /etc/passwd {path}", "link"),
    "of somebody else": ("touch {path}; chmod 600 {path}; chown nobody {path}", "nobody"),
    "in a directory that others can write": ("chmod 777 $(dirname {path})", "write"),
    "not a database": ("head -c 8192 /dev/urandom >{path}; chmod 600 {path}", "database"),
    "of a newer release": ("python3 /run/lab/newer.py {path}; chmod 600 {path}", "99"),
    "a directory": ("mkdir {path}", "regular file"),
}


def test_a_journal_that_can_not_be_trusted_is_refused(lab: Lab) -> None:
    job = lab.one()
    lab.host.put("/run/lab/newer.py", NEWER)
    tasks = []
    for number, (make, _word) in enumerate(JOURNALS.values()):
        path = f"/root/journals/{number}/checkpoint.db"
        lab.host.sh(f"mkdir -p -m 700 /root/journals/{number}; " + make.format(path=path))
        tasks.append(cuda("checkpointed", [job.pid], journal=path))
    for result, (name, (_make, word)) in zip(lab.play(*tasks), JOURNALS.items(), strict=True):
        assert result.refused("journal", word), name
    assert not lab.stands_still(job)
    lab.host.run("rm", "-rf", "/root/journals")


def test_a_journal_without_room_or_rights_is_refused(lab: Lab) -> None:
    """A file system that is full, and one that is read-only."""
    job = lab.one()
    lab.host.sh(
        "mkdir -m 700 /root/full /root/fixed; mount -t tmpfs -o size=64k,mode=700 none /root/full; "
        "mount -t tmpfs -o ro,mode=700 none /root/fixed; head -c 1M /dev/zero >/root/full/file || true"
    )
    try:
        full, fixed = lab.play(
            cuda("checkpointed", [job.pid], journal="/root/full/checkpoint.db"),
            cuda("checkpointed", [job.pid], journal="/root/fixed/checkpoint.db"),
        )
    finally:
        lab.host.sh("umount /root/full /root/fixed; rmdir /root/full /root/fixed")
    full.refused("/root/full/checkpoint.db", "space")
    fixed.refused("/root/fixed/checkpoint.db", "Read-only")
    assert not lab.stands_still(job)
