/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The simulated host: which GPUs it has and which driver. Written by the setup program to /run/gpusim/host.
 */
#ifndef GPUSIM_HOST_H
#define GPUSIM_HOST_H

#include "cuda_abi.h"

enum { GPUSIM_MAX_GPUS = 64 };

struct gpu {
    CUuuid uuid;
    char uuid_text[48];     /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
    char bus_id[32];        /* 00000000:00:06.0 */
};

struct host {
    char driver[32];        /* 580.159.04 */
    int branch;             /* 580 */
    int cuda;               /* 13000 */
    char model[64];
    int gpu_count;
    unsigned long long vram_bytes;      /* of each GPU */
    unsigned long long context_bytes;   /* VRAM that a context takes */
    unsigned long long host_overhead_bytes; /* host memory that a checkpoint takes beside the device bytes */
    unsigned long long copy_bytes_per_s;    /* 0: no limit */
    struct gpu gpus[GPUSIM_MAX_GPUS];
};

/* Read once; NULL, and the reason on stderr, where no GPU is simulated. */
const struct host *gpusim_host(void);

/* Reads it anew, all but the rate of copies, which a process keeps: one that was restored may be on another host. */
void gpusim_host_again(void);

/* Index of the GPU with that UUID, or -1. */
int gpusim_gpu_by_uuid(const struct host *host, const CUuuid *uuid);
int gpusim_parse_uuid(const char *text, CUuuid *uuid);

#endif
