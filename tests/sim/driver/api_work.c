/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "api.h"

#include "kernels.h"

#include <stdlib.h>
#include <string.h>

struct CUstream_st {
    int unused;
};
struct CUevent_st {
    int unused;
};

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    if (!api_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!image || !strstr(image, ".entry")) return CUDA_ERROR_INVALID_IMAGE;
    *module = (CUmodule)(uintptr_t)image;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)(uintptr_t)kernel_by_name(name);
    return module && *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    if (!api_context) return CUDA_ERROR_INVALID_CONTEXT;
    api_enter();
    CUresult result = kernel_run((const struct kernel *)function, params, api_find);
    api_leave();
    return result;
}


/* Queries read the tracking page without taking the lock, as the driver's do: that is what kills JAX. */
static int tracking_value(void) { return *(volatile int *)gpusim_process.tracking; }

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    (void)flags;
    if (!api_context) return CUDA_ERROR_INVALID_CONTEXT;
    api_enter();
    *stream = calloc(1, sizeof **stream);
    api_leave();
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
    (void)stream;
    return tracking_value() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    return tracking_value() ? cuCtxSynchronize() : CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    (void)flags;
    if (!api_context) return CUDA_ERROR_INVALID_CONTEXT;
    api_enter();
    *event = calloc(1, sizeof **event);
    api_leave();
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)event, (void)stream;
    api_enter();
    api_leave();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event) {
    (void)event;
    return cuStreamQuery(NULL);
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    return cuStreamSynchronize(NULL);
}


/* For the simulated NCCL. */
EXPORT void gpusim_collective(int (*finished)(void *), void *argument) {
    api_enter();
    work_collective(finished, argument);
    api_leave();
}

/* For the simulated NVML and NCCL, which open the device on their own. */
EXPORT void gpusim_adopt(int fd, const char *path) { devices_adopt(fd, path); }
EXPORT void gpusim_has_peers(void) { gpusim_process.peers = 1; }

EXPORT CUresult gpusim_add_up(CUdeviceptr to, const uint64_t *values, int count) {
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) sum += values[i];
    return cuMemcpyHtoD_v2(to, &sum, sizeof sum);
}
