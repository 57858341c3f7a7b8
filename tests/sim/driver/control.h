/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * How a caller reaches the restore thread of another process: two pipes of the target, opened through /proc/PID/fd,
 * whose numbers the caller reads from the target's memory. All of it survives a dump and a restore by CRIU.
 */
#ifndef GPUSIM_CONTROL_H
#define GPUSIM_CONTROL_H

#include "host.h"

#define CONTROL_MAGIC 0x6770757369636b31ull

struct control {
    uint64_t magic;
    int restore_tid;            /* in the target's PID namespace; 0: no CUDA in this process */
    int request_read, request_write, reply_read, reply_write;
    uint64_t expected;          /* id of the request whose caller holds the lock on the request pipe */
};

enum operation { OP_STATE = 1, OP_LOCK, OP_CHECKPOINT, OP_RESTORE, OP_UNLOCK };

struct request {
    uint64_t id;
    int operation;
    unsigned int pair_count;
    unsigned long long deadline; /* of a lock: ns of the real-time clock, 0: none */
    CUcheckpointGpuPair pairs[GPUSIM_MAX_GPUS];
};

struct reply {
    uint64_t id;
    int result;
    int state;
};

extern struct control gpusim_control;

#endif
