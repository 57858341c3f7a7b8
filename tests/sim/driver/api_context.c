/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "api.h"

#include "errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct process gpusim_process = {.mps_fd = -1};

static struct CUctx_st contexts[GPUSIM_MAX_GPUS];
__thread CUcontext api_context;
static pthread_mutex_t initializing = PTHREAD_MUTEX_INITIALIZER;

static void connect_to_mps(void) {
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/control", directory ? directory : "/tmp/nvidia-mps");
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address))
        gpusim_process.mps_fd = fd;
    else
        close(fd);
}

EXPORT CUresult cuInit(unsigned int flags) {
    const struct host *host = gpusim_host();
    struct process *p = &gpusim_process;
    CUresult result = CUDA_SUCCESS;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!host || !host->gpu_count) return CUDA_ERROR_NO_DEVICE;
    pthread_mutex_lock(&initializing);
    if (!p->initialized) {
        p->gpu_count = host->gpu_count;
        for (int i = 0; i < host->gpu_count; i++) {
            p->uuids[i] = host->gpus[i].uuid;
            p->gpu_of[i] = i;
        }
        p->tracking = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        connect_to_mps();
        result = p->tracking == MAP_FAILED ? CUDA_ERROR_OPERATING_SYSTEM : control_start();
        if (!result) devices_open();
        p->initialized = !result;
    }
    pthread_mutex_unlock(&initializing);
    return result;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    const struct host *host = gpusim_host();
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = host ? host->cuda : 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text) { return error_name(error, text); }
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) { return error_text(error, text); }



static int gpu_of(CUdevice device) { return gpusim_process.gpu_of[device]; }
int api_gpu(void) { return gpu_of(api_context->ordinal); }

static int valid(CUdevice device) { return device >= 0 && device < gpusim_process.gpu_count; }

EXPORT CUresult cuDeviceGetCount(int *count) {
    if (!gpusim_process.initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = gpusim_process.gpu_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    if (!gpusim_process.initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", gpusim_host()->model);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *uuid = gpusim_process.uuids[device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = gpusim_host()->vram_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = CUDA_SUCCESS;
    if (!gpusim_process.initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    api_enter();
    pthread_mutex_lock(&api_allocating);
    if (!contexts[device].retained) {
        struct vram vram;
        result = vram_allocate(gpu_of(device), gpusim_host()->context_bytes, &vram);
        if (!result && !api_add(KIND_CONTEXT, gpu_of(device), gpusim_host()->context_bytes, 0, vram))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!result) {
        devices_use(device);
        contexts[device].ordinal = device;
        contexts[device].retained++;
        *context = &contexts[device];
    }
    pthread_mutex_unlock(&api_allocating);
    api_leave();
    return result;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    api_context = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    if (!api_context) return CUDA_ERROR_INVALID_CONTEXT;
    api_enter();
    CUresult result = work_drain();
    api_leave();
    return result;
}
