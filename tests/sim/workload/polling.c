/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "workload.h"

#include <pthread.h>

enum { THREADS = 2 };
static CUcontext polled;

/* An idle stream: its query reads memory that a checkpoint unmaps, and takes no lock that would hold it back. */
static void *poll_stream(void *stream) {
    CK(ctx_set(polled));
    for (;;) CK(stream_query(stream));
    return NULL;
}

void start_polling(CUcontext context) {
    polled = context;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        CUstream stream;
        CK(stream_create(&stream, 1));
        if (pthread_create(&thread, NULL, poll_stream, stream)) fail(3, "thread: %m");
    }
}
