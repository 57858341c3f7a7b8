# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host on paper: processes with a CUDA state, workers that do what the driver would, and failures on order."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _worker
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import Options, Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._engine import Engine
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuProcess, GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import HostSnapshot, read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Command, Outcome, command_from
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import (
    Identity,
    Mapping,
    ProcessSnapshot,
    ThreadSnapshot,
    read_identity,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot

GIB = 1 << 30
GPUS = ("GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222")
FIRST_PID = 3_000_001


@dataclass
class Job:
    """A CUDA process on paper."""

    pid: int
    state: str = "running"
    stopped: str = ""
    bytes: int = GIB
    gpu: str = GPUS[0]
    start_ticks: int = 4242
    log: List[str] = field(default_factory=list)


class Backend:
    """Only its name and abilities are asked for: the calls are the workers'."""

    name = "paper"
    can_lock = True
    can_hold = True
    can_map = True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the module itself made the driver call {name}")


Reaction = Callable[[Job, Command], Optional[Outcome]]


class PaperHost:
    """failures: (PID, command) to the outcomes of its next such commands, in place of success."""

    def __init__(self, directory: Path, count: int = 8, free_bytes: int = 100 * GIB) -> None:
        self.journal_path = str(directory / "journal" / "checkpoint.db")
        self.jobs: Dict[int, Job] = {FIRST_PID + index: Job(FIRST_PID + index) for index in range(count)}
        self.failures: Dict[Tuple[int, str], List[Outcome]] = {}
        self.free_bytes = free_bytes
        self.commands: List[Tuple[int, str]] = []
        self.left: List[int] = []
        self.timeouts_ms: List[int] = []
        self.serving = 0
        self._lock = threading.Lock()

    # What the engine sees

    def snapshot(self, pids: Sequence[int]) -> Snapshot:
        return Snapshot(self._host(), self.gpus(), tuple(self._process(job) for job in self.jobs.values()))

    def gpus(self) -> Tuple[GpuSnapshot, ...]:
        return tuple(
            GpuSnapshot(
                index=index,
                uuid=uuid,
                name="Paper",
                total_bytes=141 * GIB,
                used_bytes=141 * GIB - self.free_bytes,
                free_bytes=self.free_bytes,
                mig=False,
                persistence=True,
                processes=tuple(
                    GpuProcess(job.pid, job.bytes, "compute")
                    for job in self.jobs.values()
                    if job.gpu == uuid and job.state != "checkpointed"
                ),
            )
            for index, uuid in enumerate(GPUS)
        )

    def _host(self) -> HostSnapshot:
        return HostSnapshot(
            boot_id=read_boot_id(),
            kernel="6.18.0",
            machine="x86_64",
            driver_version="580.159.04",
            memory_total=500 * GIB,
            memory_available=400 * GIB,
            swap_free=0,
            overcommit_memory=0,
            commit_limit=500 * GIB,
            committed=10 * GIB,
            thp="madvise",
            yama_ptrace_scope=0,
            effective_uid=os.geteuid(),
            pid_namespace="4026531836",
        )

    def _process(self, job: Job) -> ProcessSnapshot:
        on_gpu = job.state != "checkpointed"
        node = "/dev/nvidia-uvm"
        return ProcessSnapshot(
            identity=self.identity(job.pid),
            thread_group=job.pid,
            parent=1,
            group=job.pid,
            session=job.pid,
            tty=0,
            uid=os.geteuid(),
            gid=os.getegid(),
            name="train",
            executable="/usr/bin/train",
            command=("train", "--token", "secret"),
            state="T" if job.stopped else "S",
            tracer_pid=0,
            threads=(ThreadSnapshot(job.pid, "train", "S"),),
            pid_namespace="4026531836",
            pids_in_namespaces=(job.pid,),
            pending_signals=0,
            rss_anon_bytes=GIB,
            data_bytes=GIB,
            virtual_bytes=2 * GIB,
            data_limit_bytes=None,
            address_limit_bytes=None,
            cgroups=(),
            cgroup_paths=(f"/jobs/{job.pid}",),
            frozen=False,
            device_files=("/dev/nvidiactl", "/dev/nvidia0", node) if on_gpu else (),
            device_mappings=(Mapping(node, 0x200000000, 2 << 20),) if on_gpu else (),
            libraries=("libcuda.so.1",),
            uvm_socket=True,
            unix_names=(),
            unix_peers=(),
            unix_peer_names=(),
            tcp_peers=(),
            tcp_remote=(),
            anon_inodes=(),
            shm_files=(),
            lone_pipes=0,
            environment={},
        )

    # What the workers do

    def start(self, job: _worker.Job, channel: socket.socket) -> int:
        # Its PID is a real one, since it is what a reservation hangs on; the work is a thread's.
        stand_in = subprocess.Popen(["sleep", "60"])
        threading.Thread(target=self._serve, args=(job, channel.dup(), stand_in), daemon=True).start()
        return stand_in.pid

    def _serve(self, job: _worker.Job, channel: socket.socket, stand_in: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            self.serving += 1
        try:
            self._listen(job, channel)
        finally:
            with self._lock:
                self.serving -= 1
            stand_in.kill()
            stand_in.wait()

    def _listen(self, job: _worker.Job, channel: socket.socket) -> None:
        paper = self.jobs[job.identity.pid]
        with channel, channel.makefile("rb") as lines:
            for line in lines:
                command = command_from(line)
                if command.do == "leave":
                    self.left.append(paper.pid)
                    return
                with self._lock:
                    self.commands.append((paper.pid, command.do))
                    paper.log.append(command.do)
                    waiting = self.failures.get((paper.pid, command.do), [])
                    outcome = waiting.pop(0) if waiting else None
                    if outcome is not None and outcome.lost_worker:
                        return
                    if outcome is None:
                        outcome = self._obey(paper, command)
                    elif outcome.late:
                        continue
                    self._remember(job, paper, command, outcome)
                channel.sendall(outcome.line())

    def _obey(self, job: Job, command: Command) -> Outcome:
        if command.do == "lock":
            self.timeouts_ms.append(command.timeout_ms)
            job.state = "locked"
        elif command.do == "suspend":
            job.state, job.stopped = "checkpointed", "us"
        elif command.do == "resume":
            job.state, job.stopped = "running" if command.unlock else "locked", ""
        elif command.do == "unlock":
            job.state, job.stopped = "running", ""
        elif command.do == "go_on":
            job.stopped = ""
        return Outcome(ok=True, state=job.state, stopped=job.stopped, seconds={command.do: 0.5})

    def _remember(self, job: _worker.Job, paper: Job, command: Command, outcome: Outcome) -> None:
        if command.do in ("state", "probe"):
            return
        journal = open_journal(self.journal_path)
        try:
            operation = journal.begin(
                run_id=job.run_id,
                identity=job.identity,
                executable=job.executable,
                uid=job.uid,
                goal=job.goal,
                state_before=command.state_before,
                step=command.do,
                worker=read_identity(os.getpid()),
                park=job.park,
                guard=job.guard,
                stopped_by=outcome.stopped,
                device_bytes=dict(job.device_bytes),
                backend="paper",
            )
            status = "suspended" if outcome.state == "checkpointed" else "done"
            journal.finish(operation.id, status, "", {})
        finally:
            journal.close()

    # Running

    def options(self, goal: str, **changed: Any) -> Options:
        usual = Options(
            goal=goal,
            pids=tuple(Wanted(pid) for pid in self.jobs),
            select=None,
            allow=frozenset(),
            park=True,
            guard="holder",
            backend="auto",
            executable="",
            parallel=0,
            lock_timeout=5.0,
            step_timeout=0.0,
            rollback=True,
            device_map=None,
            huge_pages="keep",
            full_command=False,
            journal=self.journal_path,
            run_id="test",
            check=False,
        )
        return replace(usual, **changed)

    def engine(self, goal: str, **changed: Any) -> Engine:
        options = self.options(goal, **changed)
        journal: Journal = open_journal(self.journal_path)
        return Engine(options, Backend(), journal, self.gpus, self.snapshot, self.start)

    def identity(self, pid: int) -> Identity:
        return Identity(pid, self.jobs[pid].start_ticks, read_boot_id())

    def states(self) -> List[str]:
        return [job.state for job in self.jobs.values()]

    def fail(self, pid: int, do: str, *outcomes: Outcome) -> None:
        self.failures[(pid, do)] = list(outcomes)
