# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a real CRIU was made to say, and what is to be read out of it. tests/system/test_criu_log.py makes it say it,
test_log.py reads the recordings of that in logs/.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log import Decoded, decode
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kinds import BY_ID
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_rules import HARMLESS

LOGS = Path(__file__).parent / "logs"
WORK = "/var/lib/criu-says/files"
PYTHON = "PID {pid} (python3)"
PID = "PID {pid}"


@dataclass(frozen=True)
class Case:
    """call: "dump" or "restore", a function of tests/system/inside/criu, and its arguments. subject: {pid} is whom it
    is about. said: words of the evidence.
    """

    call: str
    kind: str
    subject: str
    said: str
    path: str = ""
    descriptor: int | None = None

    @property
    def doing(self) -> str:
        return self.call.split()[0]

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "_", self.call.lower()).strip("_")

    def check(self, log: str, pid: int) -> Decoded:
        """The log says what it is to say."""
        decoded = decode(log, self.doing)
        kind = BY_ID[self.kind]
        told = (decoded.kind, decoded.subject, decoded.path, decoded.descriptor)
        assert told == (self.kind, self.subject.format(pid=pid), self.path.format(pid=pid), self.descriptor), decoded
        assert decoded.pid == pid or not self.subject.startswith("PID"), decoded
        assert (decoded.reason, decoded.remedy, decoded.option) == (kind.reason, kind.remedy, kind.option)
        assert any(self.said.format(pid=pid) in line for line in decoded.lines), decoded
        assert all(line.isprintable() for line in decoded.lines), decoded
        return decoded


def _file(call: str, kind: str, name: str, said: str, descriptor: int | None = None) -> Case:
    return Case(call, kind, f"{WORK}/{name}", said, f"{WORK}/{name}", descriptor)


CASES = (
    # Devices, and what can't be dumped at all
    Case("dump cuda", "device_file", "PID {pid} (gpusim-workload)", "Can't dump file 8 of that type", "", 8),
    Case("dump device_mapping", "device_mapping", PYTHON, "it maps /dev/nvidia7", "/dev/nvidia7"),
    Case("dump device_mapping child", "device_mapping", PYTHON, "it maps /dev/nvidia7", "/dev/nvidia7"),
    Case("dump device_file", "device_file", PYTHON, "Can't dump file 3 of that type [20600] (chr 10:229)", "", 3),
    Case("dump io_uring", "io_uring", PYTHON, "send_fds failed (-22)"),
    Case("dump io_uring_mapped", "io_uring", PYTHON, "anon_inode:[io_uring]"),
    Case("dump userfaultfd", "unsupported_file", PYTHON, "(anon anon_inode:[userfaultfd])", "", 3),
    # Sockets
    Case("dump unix_stream", "external_unix_stream", PYTHON, "External socket is used", f"{WORK}/server.socket", 3),
    Case(
        "dump unix_stream --ext-unix-sk",
        "external_unix_stream",
        PYTHON,
        "Can't dump half of stream unix connection",
        f"{WORK}/server.socket",
        3,
    ),
    Case("dump unix_pair", "external_unix_stream", PYTHON, "External socket is used", "", 4),
    Case("dump unix_pair --ext-unix-sk", "external_unix_stream", PYTHON, "peer name: (null)", "", 4),
    Case("dump unix_datagram", "external_unix_socket", PYTHON, "External socket is used", f"{WORK}/log.socket", 3),
    Case("dump tcp", "tcp_established", PYTHON, "Connected TCP socket"),
    Case("dump tcp --tcp-established", "socket_option", PYTHON, "Can't get 1:16 opt"),
    Case("dump tcp_listening", "socket_option", PYTHON, "Can't get 1:16 opt"),
    Case("dump tcp_in_flight", "tcp_in_flight", PYTHON, "In-flight connection"),
    Case("dump network_lock", "network_lock", PYTHON, "Iptables configuration failed"),
    # Terminals and sessions
    Case("dump terminal_job", "terminal", "PID {pid} (sleep)", "Found dangling tty", "/dev/pts/0", 0),
    Case("dump terminal_leader", "terminal", PYTHON, "Found slave peer index", "/dev/pts/0", 0),
    Case("dump session_outside", "session", PYTHON, "is not a session leader"),
    # Files
    _file("dump ghost_limit", "ghost_limit", "scratch.bin", "of 4194304 size, increase limit"),
    _file("dump link_remap", "link_remap", "state.bin", "Can't create link remap"),
    _file("dump link_remap leftover", "link_remap_leftover", "state.bin", "File exists"),
    _file("dump file_lock", "file_lock", "lock", "Some file locks are hold by dumping tasks!", 3),
    _file("dump file_lock child", "file_lock", "lock", "Some file locks are hold by dumping tasks!", 3),
    Case("dump lost_mount", "lost_mount", PYTHON, "Can't lookup mount=", "/data", 3),
    _file("dump overmounted", "overmounted_file", "over/data", "Open files on overmounted mounts", 3),
    # Namespaces
    Case("dump external_mount", "external_mount", "/var", "doesn't have a proper root mount", "/var"),
    Case("dump nested_namespace", "nested_namespace", PID, "Can't dump nested uts namespace"),
    Case("dump sysv_shm", "sysv_shm", PYTHON, "with SysVIPC shmem map"),
    # The host, and the caller
    Case("dump no_space", "no_space", PYTHON, "No space left on device"),
    Case(
        "dump no_directory",
        "image_directory",
        "/var/lib/criu-says/missing",
        "Can't open dir",
        "/var/lib/criu-says/missing",
    ),
    Case("dump timeout", "timeout", PYTHON, "found, state D"),
    Case("dump frozen", "unfinished", PYTHON, "Parasite syscall_ip"),
    Case("dump not_root", "not_root", "", "CRIU needs to have the CAP_SYS_ADMIN"),
    Case("dump no_ptrace", "cannot_trace", PYTHON, "Unable to interrupt task"),
    Case("dump traced", "cannot_trace", PYTHON, "Unable to interrupt task"),
    Case("dump zombie", "cannot_trace", PYTHON, "Unable to interrupt task"),
    Case("dump no_process", "no_process", PID, "Unable to interrupt task"),
    Case("dump died Seized files.img", "died", PYTHON, "No such process"),
    Case("dump died Dumping.pages pages-1.img", "died", PYTHON, ""),
    Case("dump track_mem", "kernel_feature", "", "Tracking memory is not available"),
    Case("dump well", "finished", "", "Dumping finished successfully"),
    # Restore: files
    _file("restore bad_file_size", "bad_file_size", "data.bin", "has bad size 18 (expect 10)"),
    _file("restore library_size", "bad_file_size", "lib.so", "has bad size"),
    _file("restore missing_file", "missing_file", "data.bin", "No such file or directory"),
    _file("restore missing_directory", "missing_file", "stand", "No such file or directory"),
    _file("restore missing_parent", "missing_file", "deep/data", "No such file or directory"),
    _file("restore file_mode", "file_mode", "data.bin", "has bad mode 0100600 (expect 0100644)"),
    _file("restore file_access", "file_access", "disk/data", "Read-only file system"),
    _file("restore build_id", "build_id", "lib.so", "has bad build-ID"),
    _file("restore link_remap_missing", "link_remap_missing", "link_remap.12", "No such file or directory"),
    _file("restore no_space", "no_space", "small/scratch.bin", "No space left on device"),
    Case("restore lock_held flock", "file_lock_held", PID, "(flock)", "", 3),
    Case("restore lock_held lockf", "file_lock_held", PID, "(posix)", "", 3),
    # Restore: numbers
    Case("restore pid_in_use", "pid_in_use", PID, "Can't fork for {pid}: File exists"),
    Case("restore child_pid_in_use", "pid_in_use", PID, "Can't fork for {pid}: File exists"),
    Case("restore session_in_use", "pid_in_use", PID, "Can't fork for {pid}: File exists"),
    Case("restore thread_id_in_use", "thread_id_in_use", PID, "Unable to create a thread: -17"),
    # Restore: surroundings
    Case("restore cgroup none none", "cgroup_missing", "unified/criu-says", "doesn't exist", "unified/criu-says"),
    Case("restore cgroup strict strict", "cgroup_exists", "", "Abort restore of existing cgroups"),
    Case("restore mounts", "mounts", "", "No mapping for"),
    Case("restore terminal_missing", "terminal_missing", PID, "Don't have tty to inherit session from"),
    Case("restore peer_missing", "peer_missing", PID, "Can't connect"),
    Case("restore port_in_use", "port_in_use", PID, "it binds 127.0.0.1 port 47124"),
    Case("restore address_missing", "address_missing", PID, "it binds 10.99.0.1 port 47125"),
    Case("restore tcp_in_image", "tcp_in_image", PID, "Connected TCP socket in image"),
    # Restore: the image, the host, and the caller
    Case("restore broken core-* gone", "image_incomplete", "core-{pid}.img", "Unexpected EOF", "core-{pid}.img"),
    Case(
        "restore broken core-* short",
        "image_incomplete",
        "/var/lib/criu-says/images/core-{pid}.img",
        "bytes while",
        "/var/lib/criu-says/images/core-{pid}.img",
    ),
    Case("restore broken pages-* gone", "image_incomplete", PID, "Can't read pages data"),
    Case("restore broken pages-* short", "image_incomplete", PID, ""),
    Case("restore broken pagemap-* gone", "image_incomplete", "pagemap-{pid}.img", "No pagemap", "pagemap-{pid}.img"),
    Case("restore broken inventory.img gone", "image_incomplete", "inventory.img", "Unexpected EOF", "inventory.img"),
    Case("restore broken pstree.img magic", "image_foreign", "pstree.img", "magic doesn't match", "pstree.img"),
    Case("restore not_root", "not_root", "", "CRIU needs to have the CAP_SYS_ADMIN"),
    Case("restore no_capability cap_sys_ptrace", "missing_capability", PID, "Unable to restore capabilities"),
    Case("restore no_capability cap_sys_admin", "missing_capability", PID, "new time namespace"),
    Case("restore no_memory", "no_memory", PID, "Cannot allocate memory"),
    Case("restore killed", "killed", PID, "killed by signal 9"),
    Case("restore well", "finished", "", "Restore finished successfully"),
)

#: Kinds that no test host can be made to say, and why. Their words are those of CRIU's source (4.1.1).
NOT_HERE = {
    "cpu_features": "there is one model of CPU, and CRIU looks at it only with --cpu-cap",
    "file_lock_refused": "the file systems of the test hosts know all locks",
    "lsm_profile": "the kernel of the test hosts has neither AppArmor nor SELinux",
    "no_log": "CRIU always says something, if only to its standard error",
    "plugin": "CRIU is run without plugins",
    "session_in_use": "a session that is in use has its PID in use: pid_in_use",
    "unknown": "what is known is not unknown",
}
_KEPT = re.compile(
    r"Dumping (task|processes) |Dumping (file-locks|pstree)|fdinfo \d+:|Dumping path for \d|tty: Dumping|lockinfo:|"
    r"unix:\s+Dumping|inet:\s+Restore:|Opening ghost file|Version: |"
    r"Runaway|Ext stream|finished success"
)


def shortened(log: str) -> str:
    """What a recording keeps: every error with the two lines before it, and what they are understood by."""
    lines = [line for line in log.splitlines() if "Running on " not in line and "run id" not in line]
    kept = {len(lines) - 1}
    for number, line in enumerate(lines):
        bare = not re.match(r"\(\d|pie", line) and line.strip() and not line.startswith("task_args")
        wrong = ("Error (" in line or "Warn  (" in line) and not HARMLESS.search(line)
        if wrong or bare or _KEPT.search(line):
            kept.add(number)
        if wrong:
            kept.update((max(number - 2, 0), max(number - 1, 0)))
            kept.update([at for at in range(number) if "smaps entry" in lines[at]][-1:])
    return "".join(f"{lines[number]}\n" for number in sorted(kept) if lines)


def parse(recording: str) -> tuple[str, int]:
    """The log, and the PID that it is about."""
    head, _empty, log = recording.partition("\n\n")
    pid = re.search(r"^# pid: (\d+)$", head, re.MULTILINE)
    assert pid, head
    return log, int(pid.group(1))
