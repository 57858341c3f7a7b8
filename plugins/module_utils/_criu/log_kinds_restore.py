# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why CRIU does not restore a tree."""

from __future__ import annotations

from typing import Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kind import RESTORE, Kind

KINDS: Tuple[Kind, ...] = (
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
