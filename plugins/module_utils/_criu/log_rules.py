# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""By which of its lines each refusal of CRIU is known. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Pattern, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kinds import BOTH, DUMP, RESTORE


@dataclass(frozen=True)
class Rule:
    """pattern: searched in the text of a line. Its groups, each with any digits behind its name: path; pid, whom it is
    about; fd; ino, of a unix socket outside. doing: as of Kind. plain: also in lines that are no error.
    whose: where to find the process, and the path, if the line does not tell: one of the names below.
    """

    kind: str
    pattern: Pattern[str]
    doing: str = BOTH
    plain: bool = False
    whose: str = ""


#: The task, and what it maps; the task, and what it binds; who has a terminal; a lock; the unix socket.
MAPPING, ADDRESS, TERMINAL, LOCK, SOCKET = "mapping", "address", "terminal", "lock", "socket"
#: The task, and the deleted file that it had open; the file of the image that the line before misses.
GHOST, IMAGE = "ghost", "image"


def _rule(kind: str, pattern: str, doing: str = BOTH, plain: bool = False, whose: str = "") -> Rule:
    return Rule(kind, re.compile(pattern), doing, plain, whose)


#: What never ends a dump or restore, though it is called an error.
HARMLESS = re.compile(
    r"rlimit: Can't setup RLIMIT_NOFILE|Couldn't unlink remap|Unable to detach from \d+: No such process|"
    r"tun: Unable to create tun"
)
#: What only says that something went wrong before.
CONSEQUENCE = re.compile(
    r"(?:Dumping|Pre-dumping|Restoring) FAILED|\(pid: \d+\) failed with|\(pid: \d+\)(?: from| with)? ?(?:parasite)?$|"
    r"Unable to open fd=|`- Can't open vma|Dump \d+ \w+ failed|Restorer fail|Message reply from daemon is trimmed|"
    r"Killing processes because of failure|Dump file lock failed"
)

#: The first line that one of these knows is the cause.
SURE: Tuple[Rule, ...] = (
    # Who asks, and of what
    _rule("not_root", r"CRIU needs to have the CAP_SYS_ADMIN|You need to be root|needs CAP_|CAP_CHECKPOINT_RESTORE"),
    _rule("image_directory", r"Can't open dir (?P<path>/.*): |Couldn't open image dir (?P<path2>.*)"),
    _rule(
        "plugin",
        r"\b(?:cuda|amdgpu)_plugin: |Missing required plugin: |Failed to load plugin",
    ),
    # Devices, and files that can't be dumped
    _rule("device_mapping", r"handle_device_vma plugin failed", DUMP, whose=MAPPING),
    _rule("io_uring", r"anon_inode:\[io_uring\]|send_fds failed \(-22\)", DUMP),
    _rule("device_mapping", r"Can't handle non-regular mapping on (?P<pid>\d+)'s map", DUMP, whose=MAPPING),
    _rule("device_file", r"Can't dump file (?P<fd>\d+) of that type \[\d+\] \((?:chr|blk) ", DUMP),
    _rule("unsupported_file", r"Can't dump file (?P<fd>\d+) of that type|Unknown shit \d+ \(", DUMP),
    _rule("ghost_limit", r"Can't dump ghost file (?P<path>.*) of \d+ size, increase limit", DUMP),
    _rule("link_remap", r"Can't create link remap for (?P<path>.*)\. Use ", DUMP),
    _rule("link_remap_leftover", r"Can't link remap to (?P<path>.*): File exists", DUMP),
    _rule("lost_mount", r"Can't lookup mount=-?\d+ for fd=-?(?P<fd>\d+) path=(?P<path>.*)", DUMP),
    _rule("overmounted_file", r"Open files on overmounted mounts .*fd=-?(?P<fd>\d+) path=(?P<path>.*)", DUMP),
    _rule("file_lock", r"Some file locks are hold by dumping tasks", DUMP, whose=LOCK),
    # Sockets
    _rule(
        "external_unix_stream",
        r"(?:Runaway socket|Ext stream not supported): ino (?P<ino>\d+) .* type\s+[15] .* name (?P<path>.*)",
        DUMP,
        plain=True,
        whose=SOCKET,
    ),
    _rule("external_unix_stream", r"Ext dgram w/o name: ino (?P<ino>\d+) ", DUMP, plain=True, whose=SOCKET),
    _rule(
        "external_unix_socket",
        r"Runaway socket: ino (?P<ino>\d+) .* type\s+2 .* name (?P<path>.*)",
        DUMP,
        plain=True,
        whose=SOCKET,
    ),
    _rule("external_unix_stream", r"Can't dump half of stream unix connection\. .*peer name: (?P<path>.*)", DUMP),
    _rule(
        "external_unix_stream",
        r"External socket is used|Can't dump name-less external|with(?:out|\sunreachable) peer \d+",
        DUMP,
    ),
    _rule("tcp_in_flight", r"[Ii]n-flight connection|Non-empty write queue on an in-flight socket", DUMP),
    _rule("tcp_established", r"Connected TCP socket, consider using", DUMP),
    _rule("network_lock", r"Iptables configuration failed|Failed to lock TCP connection|Can't lock network"),
    _rule("socket_option", r"Can't get 1:(?:16|34) opt: Operation not supported", DUMP),
    # Terminals and sessions
    _rule(
        "terminal",
        r"Found dangling tty|Found slave peer index \d+ without|Only one slave external peer|"
        r"Task attached to shell terminal|ctty inheritance detected",
        DUMP,
        whose=TERMINAL,
    ),
    _rule("session", r"The root process (?P<pid>\d+) is not a session leader", DUMP),
    _rule("session", r"A session leader of (?:zombie process )?(?P<pid>\d+)\(\d+\) is outside", DUMP),
    # Namespaces, mounts, shared memory
    _rule("sysv_shm", r"Task (?P<pid>\d+) with SysVIPC shmem map", DUMP),
    _rule(
        "external_mount", r"\d+:\.?(?P<path>\S+) (?:doesn't have a proper root mount|mountpoint is unsupported)", DUMP
    ),
    _rule("external_mount", r"Mount \d+ \.?(?P<path>\S+) \(master_id: .*unreachable", DUMP),
    _rule("external_mount", r"Mount \d+:\.?(?P<path>\S+) is autodetected external mount", DUMP),
    _rule("external_mount", r"FS mnt \.?(?P<path>\S+) dev \S+ root \S+ unsupported", DUMP),
    _rule("external_mount", r"Nested mount namespaces are not supported", DUMP),
    _rule("nested_namespace", r"Can't dump nested \w+ namespace for (?P<pid>\d+)|without the process init", DUMP),
    # Time, life and death
    _rule("timeout", r"Unseizable non-zombie (?P<pid>\d+) found", DUMP),
    _rule("died", r"(?P<pid>\d+) was killed by \d+ unexpectedly|ptrace: No such process", DUMP),
    # Room
    _rule(
        "no_space", r"Can't (?:send data|create ghost .*|send ghost .*): (?:No space|Disk quota)", RESTORE, whose=GHOST
    ),
    _rule("no_space", r"(?:No space left on device|Disk quota exceeded|File too large)$"),
    # Restore: files
    _rule("bad_file_size", r"File (?P<path>.*) has bad size \d+ \(expect \d+\)", RESTORE),
    _rule("build_id", r"File (?P<path>.*) has bad build-ID", RESTORE),
    _rule("file_mode", r"File (?P<path>.*) has bad mode ", RESTORE),
    _rule("link_remap_missing", r"Can't link (?P<path>.*link_remap\.\d+) -> .*: No such file or directory", RESTORE),
    _rule("missing_file", r"Can't open file (?P<path>.*?)(?: on restore)?: No such file or directory", RESTORE),
    _rule("file_access", r"Can't open file (?P<path>.*?)(?: on restore)?: ", RESTORE),
    # Restore: numbers
    _rule("pid_in_use", r"Can't fork for (?P<pid>\d+): File exists|Pid (?P<pid2>\d+) do not match expected", RESTORE),
    _rule("thread_id_in_use", r"Unable to create a thread: -17|Thread pid mismatch", RESTORE),
    _rule(
        "session_in_use",
        r"Current [sg]id \d+ intersects|Can't restore (?:sid|pgid) |Requested sid \d+ doesn't match",
        RESTORE,
    ),
    # Restore: surroundings
    _rule(
        "cgroup_missing", r"Cgroup dir (?P<path>\S+) doesn't exist|cg: Can't move (?:\S+ )?into (?P<path2>\S+)", RESTORE
    ),
    _rule("cgroup_exists", r"Abort restore of existing cgroups", RESTORE),
    _rule(
        "terminal_missing",
        r"Don't have tty to inherit session from|Can't open (?:slave|master) (?:tty|pty) |ctty inheritance detected",
        RESTORE,
    ),
    _rule("tcp_in_image", r"Connected TCP socket in image|Need to set the --tcp-close", RESTORE),
    _rule("port_in_use", r"Can't bind inet socket \(id \d+\): Address already in use", RESTORE, whose=ADDRESS),
    _rule("address_missing", r"Can't bind inet socket \(id \d+\): |couldn't find if\w+ for", RESTORE, whose=ADDRESS),
    _rule("peer_missing", r"unix: Can't connect \d+ socket: |External socket found in image", RESTORE),
    _rule("file_lock_refused", r"Can not set (?:flock|posix lock|ofd lock)", RESTORE),
    _rule("lsm_profile", r"can't write lsm profile|LSM specified but|mismatched lsm types", RESTORE),
    _rule(
        "cpu_features",
        r"CPU xfeatures has unsupported bits|CPU (?:instruction )?capabilities do not match|CPU xsave.* mismatch|"
        r"FPU feature required by image|Image carries unknown (?:vendor|capability)",
        RESTORE,
    ),
    _rule("mounts", r"^mnt(?:-v2)?: ", RESTORE),
    # Restore: the image
    _rule(
        "no_memory",
        r"Unable to reserve memory|Cannot allocate memory$|Can't restore \w+ mapping with (?:f{8}\w+|-12)|"
        r"Can't read pages data \(-12\)",
        RESTORE,
    ),
    _rule("image_incomplete", r"Read \d+ bytes while \d+ expected from (?P<path>.*?)(?:: |$)", RESTORE),
    _rule("image_incomplete", r"Unexpected EOF|Can't read pages data|Img trimmed", RESTORE, whose=IMAGE),
    _rule(
        "image_foreign",
        r"[Mm]agic doesn't match for (?P<path>.*)|Too old image|Not supported images version|[Cc]orrupt",
        RESTORE,
    ),
    # Rights and kernel
    _rule(
        "missing_capability",
        r"Unable to create a new time namespace: Operation not permitted|Unable to restore capabilities|"
        r"Unable to set a \w+ clock offset: Operation not permitted|Unable to set (?:real|PR_SET_SECUREBITS)|"
        r"Can't set(?:groups| (?:user|group) ID)|setuid failed|Can't (?:clone|fork).*: Operation not permitted",
    ),
    _rule(
        "kernel_feature",
        r"failed when initializing kerndat|Could not initialize kernel features|Tracking memory is not available|"
        r"Kernel reports more capabilities|kernel (?:lacks|does only support|commit)|kernel doesn't support|"
        r"^vdso: |vDSO isn't provided|Task had vdso|Diag module missing|rseq: can't restore",
    ),
)

#: Only when none of the others knows a line.
UNSURE: Tuple[Rule, ...] = (
    _rule("no_process", r"Unable to interrupt task: (?P<pid>\d+) \(No such process\)", DUMP, plain=True),
    _rule("cannot_trace", r"Unable to interrupt task: (?P<pid>\d+) \(Operation not permitted\)", DUMP, plain=True),
    _rule("timeout", r"Timeout reached\. Try to interrupt", DUMP),
    _rule("image_incomplete", r"^No (?P<path>pagemap-\d+\.img) image", RESTORE, plain=True),
    _rule("killed", r"(?P<pid>\d+) killed by signal \d+", RESTORE),
    _rule("died", r"Task is still running \(pid: (?P<pid>\d+), status: 0x8?[0-9a-f]\)", DUMP),
    _rule("died", r"BUG at criu/cgroup\.c|: No such process$", DUMP),
)
#: The last lines of a log that just stops.
STUCK: Tuple[Rule, ...] = (
    _rule(
        "file_lock_held",
        r"\((?:posix|flock|ofd|lease)\)flag: .* pid: (?P<pid>\d+), fd: (?P<fd>\d+)",
        RESTORE,
        plain=True,
    ),
    _rule("image_incomplete", r"`- returned 0$|^Preadv ", RESTORE, plain=True),
)
