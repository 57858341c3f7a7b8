/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#ifndef GPUSIM_WORKLOAD_WORKLOAD_H
#define GPUSIM_WORKLOAD_WORKLOAD_H

#include "driver.h"

enum { MAX_GPUS = 64 };

struct options {
    size_t vram_mib;
    const char *out;
    const char *kind;
    int gpu;
    int ranks;              /* 0: two where there are two GPUs, else one */
    unsigned long kernel_ms;
    /* how a process of this program starts the next one, not for users */
    int rank;
    const char *handle;
};

/* What the process has on one GPU. */
struct share {
    CUcontext context;
    CUdeviceptr memory;
    size_t words;
    CUdeviceptr sum;
    CUfunction fill, add_up, count, spin;
};

/* The files through which the outside watches one process: OUT, OUT.pid, OUT.verify, OUT.sum. */
struct report {
    char counter_path[4096];
    int counter_fd;
    char verify_path[4096 + 8];
    char sum_path[4096 + 8];
};

void report_open(struct report *report, const char *out);
void report_counter(struct report *report, unsigned long long counter);
int report_sum_wanted(const struct report *report);
void report_sum(const struct report *report, unsigned long long sum);

/* Starts this program again for a further process of the same kind. */
void start_sibling(const struct options *options, const char *suffix, int gpu, int rank, const void *handle,
                   size_t handle_bytes);
void decode_handle(const char *text, void *handle, size_t bytes);
/* Forks a child that never calls CUDA, with a counter of its own. */
void start_plain_child(const struct options *options);
void connect_to_mps(void);
/* Threads that query a stream all the time, as JAX does: a suspend that lets them run kills the process. */
void start_polling(CUcontext context);

#endif
