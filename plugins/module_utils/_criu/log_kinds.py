# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be wrong when CRIU refuses: why it matters, and what helps. docs/criu-errors.md is made from it.

What CRIU says of each was seen with CRIU 4.1.1 on Linux 6.18, or stands in its source: tests/system/test_criu_log.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple

DUMP = "dump"
RESTORE = "restore"
BOTH = ""


@dataclass(frozen=True)
class Kind:
    """doing: "dump", "restore", or "" for both. says: the words of CRIU. reason, remedy: sentences without their full
    stop. option: of criu_image, with the value that overrides it; "" for none.
    """

    id: str
    doing: str
    says: str
    reason: str
    remedy: str
    option: str = ""


_DUMP = (
    Kind(
        "device_mapping",
        DUMP,
        "handle_device_vma plugin failed; Can't handle non-regular mapping",
        "CRIU can't save the memory of a device that is mapped. With /dev/nvidia*, the process still has its GPU",
        "Of a CUDA process: suspend it before; a child that has inherited the device has to close it. Another device: "
        "let the program unmap it",
    ),
    Kind(
        "device_file",
        DUMP,
        "Can't dump file N of that type (chr MAJOR:MINOR)",
        "CRIU can't save the state of a device that is open. With /dev/nvidia* (major number 195), the process still "
        "has its GPU",
        "Of a CUDA process: suspend it before; a child that has inherited the descriptor has to close it "
        "(ls -l /proc/PID/fd/N shows the device). Another device: let the program close it",
    ),
    Kind(
        "io_uring",
        DUMP,
        "send_fds failed (-22); anon_inode:[io_uring]",
        "CRIU can't save an io_uring, which the process has open",
        "Start the program without io_uring (UV_USE_IO_URING=0 for what uses libuv), or turn it off for all with the "
        "sysctl kernel.io_uring_disabled=2 before it starts",
    ),
    Kind(
        "unsupported_file",
        DUMP,
        "Can't dump file N of that type (anon ...)",
        "CRIU can't save what kind of file this is: userfaultfd, perf events, BPF, KVM and others",
        "Let the program close it (ls -l /proc/PID/fd/N shows what it is), or end the profiler that has opened it",
    ),
    Kind(
        "external_unix_stream",
        DUMP,
        "External socket is used (type 1 or 5); Can't dump half of stream unix connection",
        "A unix socket of it is connected to a program outside the tree, and CRIU can't save one half of a connection",
        "Let the program close the connection before (the output of a systemd unit: StandardOutput=append:FILE), or "
        "dump the tree that has both ends",
    ),
    Kind(
        "external_unix_socket",
        DUMP,
        "External socket is used. Consider using --ext-unix-sk option (type 2)",
        "It sends datagrams to a unix socket outside the tree, as a client of syslog does",
        "Consent to it if the socket will be there, under the same name, at the restore",
        "ext_unix_sk: yes",
    ),
    Kind(
        "tcp_established",
        DUMP,
        "Connected TCP socket, consider using --tcp-established option",
        "It has a TCP connection, and the other side gives up when nobody answers for long",
        "Take it out of its load balancer and let the connections end; or consent, if both sides survive the loss",
        "tcp_established: yes",
    ),
    Kind(
        "tcp_in_flight",
        DUMP,
        "In-flight connection",
        "A TCP connection to it is half open: nobody has accepted it yet, or it is being made",
        "Take it out of its load balancer, run the task again; a program that never accepts is stuck",
    ),
    Kind(
        "socket_option",
        DUMP,
        "Can't get 1:16 opt: Operation not supported",
        "From Linux 6.16 on the kernel refuses a question (SO_PASSCRED) that CRIU before 4.2 asks of every TCP and UDP "
        "socket, a listening one included",
        "CRIU 4.2 or newer, or let the program close its sockets before",
    ),
    Kind(
        "terminal",
        DUMP,
        "Found dangling tty; Found slave peer index N without correspond master peer; ctty inheritance detected",
        "It hangs on a terminal whose other end is outside the tree, as a job of a login shell does. CRIU could be made "
        "to dump it (--shell-job), but restores it only from a terminal, and a task has none",
        "Start it with setsid, and with its input and output in files; or dump the tree that has both ends, as that of "
        "the tmux or screen server",
    ),
    Kind(
        "session",
        DUMP,
        "The root process N is not a session leader; A session leader of N is outside of its pid namespace",
        "It belongs to a session whose leader is outside the tree, as what a script has started in the background",
        "Start it with setsid; or consent: then it comes back in the session of whoever restores it",
        "shell_job: yes",
    ),
    Kind(
        "ghost_limit",
        DUMP,
        "Can't dump ghost file PATH of N size, increase limit",
        "It has a deleted file open, which has to go into the image, and the file is larger than the limit",
        "Raise the limit above the size that CRIU names",
        "ghost_limit: SIZE",
    ),
    Kind(
        "link_remap",
        DUMP,
        "Can't create link remap for PATH. Use link-remap option",
        "It has a file open whose name is gone, but which lives on under another name",
        "Consent that CRIU gives it a second name, link_remap.N in the same directory, which has to stay until the "
        "restore",
        "link_remap: yes",
    ),
    Kind(
        "link_remap_leftover",
        DUMP,
        "Can't link remap to PATH: File exists",
        "A file link_remap.N that an earlier dump has made is still in the directory of the file",
        "Delete it, unless an image that is not spent needs it; then run the task again",
    ),
    Kind(
        "file_lock",
        DUMP,
        "Some file locks are hold by dumping tasks! You can try --file-locks",
        "It holds a lock on a file. The lock is gone between dump and restore, and somebody else may take it",
        "Let the program give up the lock; or consent, if nobody else takes it meanwhile",
        "file_locks: yes",
    ),
    Kind(
        "sysv_shm",
        DUMP,
        "Task N with SysVIPC shmem map doesn't live in IPC ns",
        "It has System V shared memory, which CRIU saves only with the IPC namespace that it is in",
        "Run the program without it, or the whole tree in an IPC namespace of its own (PrivateIPC=yes)",
    ),
    Kind(
        "external_mount",
        DUMP,
        "doesn't have a proper root mount; is autodetected external mount; unreachable sharing; "
        "Nested mount namespaces are not supported",
        "It lives in a mount namespace of its own, with mounts that come from outside: a container, or a unit with "
        "PrivateTmp= or ProtectSystem=",
        "Start the unit without private mounts; dump a container with its runtime. CRIU's option external takes mounts "
        "out of the image, but then each has to be given again at the restore",
    ),
    Kind(
        "lost_mount",
        DUMP,
        "Can't lookup mount=N for fd=N",
        "It has a file open on a mount that is not there for it: detached since, or of another mount namespace",
        "Mount it again and let the program open the file anew, or let it close the file",
    ),
    Kind(
        "overmounted_file",
        DUMP,
        "Open files on overmounted mounts are not supported yet",
        "It has a file open on a mount that is hidden under another one",
        "Unmount what is on top, or let the program close the file",
    ),
    Kind(
        "nested_namespace",
        DUMP,
        "Can't dump nested NAME namespace; Can't dump a pid namespace without the process init",
        "Some of its processes live in namespaces of their own within the tree, or its first process is not the first "
        "of its PID namespace",
        "Dump the tree of the namespace's first process; dump a container with its runtime",
    ),
    Kind(
        "timeout",
        DUMP,
        "Timeout reached. Try to interrupt",
        "A thread of it could not be stopped in time. State D: it waits in the kernel, for a disk, a network file "
        "system, or a child that it has made with vfork",
        "Look at /proc/PID/stack and at the file systems, run the task again; or give it longer",
        "timeout: SECONDS",
    ),
    Kind(
        "cannot_trace",
        DUMP,
        "Unable to interrupt task: N (Operation not permitted)",
        "CRIU may not trace the process: a debugger or a guard is attached to it, it is a zombie, or CRIU lacks "
        "CAP_SYS_PTRACE",
        "Look at TracerPid and State in /proc/PID/status; end the debugger; run as root with every capability",
    ),
    Kind(
        "no_process",
        DUMP,
        "Unable to interrupt task: N (No such process)",
        "The process is not there (any more)",
        "Look at its log for why it has ended",
    ),
    Kind(
        "died",
        DUMP,
        "N was killed by S unexpectedly; No such process; BUG at criu/cgroup.c",
        "The process has ended while it was dumped. CRIU does not end it before the image is complete",
        "Look for who has killed it: its log, the out-of-memory killer (dmesg), a watchdog",
    ),
)

_BOTH = (
    Kind(
        "network_lock",
        BOTH,
        "Iptables configuration failed; Failed to lock TCP connection",
        "CRIU holds the packets of a TCP connection back while it works on it, and has no tool for that",
        "Install iptables, or nftables and a CRIU that was built with it; or close the connections before",
    ),
    Kind(
        "no_space",
        BOTH,
        "No space left on device; Disk quota exceeded",
        "A disk is full: in a dump that of the image, which needs as much room as the tree has memory, device memory "
        "included; in a restore that of a deleted file that was in the image",
        "Free space there, or put the image elsewhere, and run the task again",
    ),
    Kind(
        "image_directory",
        BOTH,
        "Can't open dir PATH; Couldn't open image dir",
        "The directory of the image is not there, or can't be opened",
        "Look at the path, and whether its file system is mounted",
    ),
    Kind(
        "not_root",
        BOTH,
        "CRIU needs to have the CAP_SYS_ADMIN or the CAP_CHECKPOINT_RESTORE capability; You need to be root",
        "CRIU does not run as root",
        "Run the task as root (become: true)",
    ),
    Kind(
        "missing_capability",
        BOTH,
        "Unable to create a new time namespace: Operation not permitted; Unable to restore capabilities; "
        "Can't set user ID",
        "Root lacks a capability here, as in a container or under a unit with CapabilityBoundingSet=",
        "Run it on the host itself, with every capability (CapBnd in /proc/self/status shows them)",
    ),
    Kind(
        "kernel_feature",
        BOTH,
        "failed when initializing kerndat; Could not initialize kernel features detection; Tracking memory is not "
        "available; vdso",
        "This kernel and this CRIU do not fit: the kernel lacks what CRIU needs, or is newer than CRIU knows",
        "Look at what `criu check` says; take a newer CRIU; remove /run/criu.kdat if the kernel was changed",
    ),
    Kind(
        "plugin",
        BOTH,
        "cuda_plugin; amdgpu_plugin; Missing required plugin",
        "A plugin of CRIU failed. This collection runs CRIU without plugins: its own CUDA plugin would ask the driver "
        "about a process that is parked, and wait for ever",
        "Make the image with this collection, and without CRIU_LIBS_DIR in the environment",
    ),
    Kind(
        "finished",
        BOTH,
        "Dumping finished successfully; Restore finished successfully",
        "CRIU itself says that all went well, so what was found afterwards is not of its making",
        "Look at the processes of the tree, and for who has ended them",
    ),
    Kind(
        "unfinished",
        BOTH,
        "nothing: the log ends without an error",
        "CRIU was still at it, or was killed",
        "Look whether it runs (the last line says at what), whether a control group is frozen, and for the "
        "out-of-memory killer (dmesg); and whether the disk with the log is full",
    ),
    Kind(
        "no_log",
        BOTH,
        "nothing: there is no log",
        "CRIU has written nothing, so it did not start, or could not open its log",
        "Run `criu check` as root; look at the directory of the log",
    ),
    Kind(
        "unknown",
        BOTH,
        "anything else",
        "CRIU gives a reason that is not known here",
        "Read the log from its first error on",
    ),
)

_RESTORE = (
    Kind(
        "bad_file_size",
        RESTORE,
        "File PATH has bad size N (expect N)",
        "A file that the tree has open or mapped has another size than at the dump: it was written to, rotated or "
        "upgraded since",
        "Put the file back as it was; a log: keep what is new elsewhere and cut it to the size that CRIU expects "
        "(truncate --size)",
    ),
    Kind(
        "missing_file",
        RESTORE,
        "Can't open file PATH on restore: No such file or directory",
        "A file or directory that the tree has open, mapped, or stands in is not there",
        "Put it back, with the size that it had; look whether its file system is mounted (/tmp and /run are empty "
        "after a reboot)",
    ),
    Kind(
        "file_access",
        RESTORE,
        "Can't open file PATH on restore: ...; Can't open file PATH: ...",
        "A file that the tree has open or mapped can't be opened",
        "Look at its owner and modes, at its mount (read-only, noexec), and at the server of a network file system",
    ),
    Kind(
        "file_mode",
        RESTORE,
        "File PATH has bad mode N (expect N)",
        "A file that the tree has open has other permissions than at the dump",
        "Give it back the mode that CRIU expects (chmod)",
    ),
    Kind(
        "build_id",
        RESTORE,
        "File PATH has bad build-ID",
        "A program or library that the tree has mapped is another build than at the dump, as after an upgrade",
        "Install the version that was there at the dump",
    ),
    Kind(
        "pid_in_use",
        RESTORE,
        "Can't fork for N: File exists",
        "Somebody else has a PID that the tree had. A PID is also in use while it is a thread's, a process group's or "
        "a session's, or a zombie's that nobody has reaped",
        "Wait until that process is gone, or end it; after a reboot, restore before other services start",
    ),
    Kind(
        "thread_id_in_use",
        RESTORE,
        "Unable to create a thread: -17; Thread pid mismatch",
        "Somebody else has the PID that a thread of the tree had",
        "Look which of the thread ids in the image is taken; wait until that process is gone, or end it",
    ),
    Kind(
        "session_in_use",
        RESTORE,
        "Current sid N intersects with pid; Can't restore sid; Requested sid N doesn't match inherited",
        "The session or process group of the tree can't be made again: whoever restores has one with that number",
        "Restore it from another session; wait until the process that leads the session is gone",
    ),
    Kind(
        "cgroup_missing",
        RESTORE,
        "Cgroup dir PATH doesn't exist; Can't move into PATH",
        "The control group that the tree was in is not there, as after a reboot or when its unit has ended",
        "Restore it where CRIU leaves control groups alone, or start what makes the group",
        "manage_cgroups: ignore",
    ),
    Kind(
        "cgroup_exists",
        RESTORE,
        "Abort restore of existing cgroups",
        "The control group that is to be made for the tree is there already",
        "Remove it, or leave control groups alone",
        "manage_cgroups: ignore",
    ),
    Kind(
        "mounts",
        RESTORE,
        "mnt: No mapping for N; Can't re-create deleted file; any other that begins with mnt",
        "The image has a mount namespace of its own, and a mount of it can't be made again",
        "Make what it was mounted from, and give each external mount (external: [mnt[KEY]:PATH]); where CRIU itself "
        "fails over it (BUG), the image can't be restored",
    ),
    Kind(
        "terminal_missing",
        RESTORE,
        "Don't have tty to inherit session from; Can't open slave tty; Can't open master pty",
        "The tree was dumped with a terminal of somebody else's, and there is none here to give it",
        "Restore it by hand from a terminal (criu restore --shell-job), or start it without a terminal next time",
    ),
    Kind(
        "tcp_in_image",
        RESTORE,
        "Connected TCP socket in image",
        "The image has TCP connections, and CRIU was not told to restore them",
        "Consent to it; the peers have to be there still, and the address of this host has to be the same",
        "tcp_established: yes",
    ),
    Kind(
        "port_in_use",
        RESTORE,
        "Can't bind inet socket (id N): Address already in use",
        "Somebody else has the port that a socket of the tree is bound to",
        "Look who has it (ss --listening --tcp --udp --processes), and end it",
    ),
    Kind(
        "address_missing",
        RESTORE,
        "Can't bind inet socket (id N): Cannot assign requested address; couldn't find ifindex",
        "A socket of the tree is bound to an address, or an interface, that this host does not have",
        "Give the host that address, or restore on the host that has it",
    ),
    Kind(
        "peer_missing",
        RESTORE,
        "unix: Can't connect N socket: ...; External socket found in image",
        "The unix socket outside the tree that a socket of it was connected to is not there, or nobody listens to it",
        "Start the service that has it (ext_unix_sk: yes as at the dump)",
    ),
    Kind(
        "link_remap_missing",
        RESTORE,
        "Can't link PATH/link_remap.N -> PATH: No such file or directory",
        "The second name that the dump has given to an open file without a name (link_remap) is gone, and the file "
        "perhaps with it",
        "If the file is there under another name, link it to that name (ln); else the image can't be restored",
    ),
    Kind(
        "file_lock_held",
        RESTORE,
        "nothing: the log ends while it sets a lock",
        "CRIU waits for a file lock that the tree held, and somebody else has it now",
        "Look who holds it (lslocks); once it is free, run the task again",
    ),
    Kind(
        "file_lock_refused",
        RESTORE,
        "Can not set flock!; Can not set posix lock!; Can not set ofd lock!",
        "A file lock that the tree held can't be taken again",
        "Look who holds it (lslocks) and whether the file system knows locks; then run the task again",
    ),
    Kind(
        "no_memory",
        RESTORE,
        "Unable to reserve memory; Cannot allocate memory; Can't restore N mapping with -12",
        "There is no memory for the tree: the host's, a limit of the control group, or an rlimit",
        "Free memory or raise the limit, run the task again",
    ),
    Kind(
        "killed",
        RESTORE,
        "N killed by signal 9",
        "A process of the tree was killed while it was restored, mostly by the out-of-memory killer of a control group",
        "Look at dmesg and memory.events; raise the limit, run the task again",
    ),
    Kind(
        "image_incomplete",
        RESTORE,
        "Can't read pages data; Preadv returned 0; Unexpected EOF; No pagemap-N.img image; bytes while N expected",
        "A file of the image is missing or cut short",
        "Verify the image (criu_image_info, verify: full); bring back a whole copy of it",
    ),
    Kind(
        "image_foreign",
        RESTORE,
        "Magic doesn't match; Too old image; Not supported images version; Corrupted",
        "A file of the image is damaged, or of a CRIU that this one does not understand",
        "Verify the image (criu_image_info, verify: full); restore it with the CRIU that has made it",
    ),
    Kind(
        "cpu_features",
        RESTORE,
        "CPU xfeatures has unsupported bits; CPU capabilities do not match run time",
        "This CPU lacks instructions that the one had on which the tree was dumped",
        "Restore it on a host with the same model of CPU",
    ),
    Kind(
        "lsm_profile",
        RESTORE,
        "can't write lsm profile; apparmor LSM specified but apparmor not supported",
        "The AppArmor or SELinux profile that the tree ran under can't be set",
        "Load the profile that was there at the dump",
    ),
)

#: Those of a dump, of both, of a restore.
KINDS: Tuple[Kind, ...] = _DUMP + _BOTH + _RESTORE
BY_ID: Dict[str, Kind] = {kind.id: kind for kind in KINDS}
