/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The checkpoint interface of drivers from 570 on: compiled only into that variant of the library.
 */
#include "caller.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) { return caller_state(pid, state); }

EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) { return caller_restore_tid(pid, tid); }

static int any(const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (((const unsigned char *)bytes)[i]) return 1;
    return 0;
}

/* Reserved bytes must be zero. */
#define REFUSE_RESERVED(args, from)                                                                   \
    if ((args) && any((const char *)(args) + (from), sizeof *(args) - (from))) return CUDA_ERROR_INVALID_VALUE

EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    REFUSE_RESERVED(args, 4);
    return caller_lock(pid, args ? args->timeout_ms : 0);
}

EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
    REFUSE_RESERVED(args, 0);
    return caller_checkpoint(pid);
}

EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    REFUSE_RESERVED(args, 12);
    return caller_restore(pid, args ? args->gpu_pairs : (void *)0, args ? args->gpu_pairs_count : 0);
}

EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
    REFUSE_RESERVED(args, 0);
    return caller_unlock(pid);
}
