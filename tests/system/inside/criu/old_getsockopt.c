// Copyright (c) 2026, gpufleet contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
// SO_PASSCRED and SO_PASSSEC of sockets that have none: off, as Linux says before 6.16.

#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
    int result = syscall(SYS_getsockopt, fd, level, name, value, length);
    if (result < 0 && errno == EOPNOTSUPP && level == SOL_SOCKET && (name == SO_PASSCRED || name == SO_PASSSEC)) {
        *(int *)value = 0;
        return 0;
    }
    return result;
}
