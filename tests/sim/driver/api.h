/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later *
 * What the files of the exported interface share.
 */
#ifndef GPUSIM_API_H
#define GPUSIM_API_H

#include "process.h"

#define EXPORT __attribute__((visibility("default")))

struct CUctx_st {
    int ordinal;
    int retained;
};

extern __thread CUcontext api_context; /* current in this thread */
extern pthread_mutex_t api_allocating;

/* GPU of the host that the current context is on. */
int api_gpu(void);
struct allocation *api_add(enum kind kind, int gpu, size_t bytes, CUdeviceptr address, struct vram vram);
/* The allocation that holds the whole range. */
struct allocation *api_find(CUdeviceptr address, size_t bytes);
/* Addresses are real reservations, so that they stay unique and keep through a dump. */
CUdeviceptr api_reserve(size_t bytes);
CUresult api_allocate(enum kind kind, size_t bytes, CUdeviceptr *address, struct allocation **made);

CUresult cuCtxSynchronize(void);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);

#endif
