# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why CRIU does not dump a tree."""

from __future__ import annotations

from typing import Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kind import DUMP, Kind

KINDS: Tuple[Kind, ...] = (
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
        "It hangs on a terminal whose other end is outside the tree, as a job of a login shell does. CRIU could "
        "be made to dump it (--shell-job), but restores it only from a terminal, and a task has none",
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
