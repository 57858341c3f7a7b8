/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "api.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    api_enter();
    struct allocation *a = api_find(address, 1);
    memset(handle, 0, sizeof *handle);
    if (a && a->kind == KIND_DEVICE) snprintf((char *)handle->reserved, sizeof handle->reserved, "%s", a->vram.name);
    api_leave();
    return a && a->kind == KIND_DEVICE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    struct vram vram;
    (void)flags;
    if (!api_context) return CUDA_ERROR_INVALID_CONTEXT;
    api_enter();
    handle.reserved[sizeof handle.reserved - 1] = '\0';
    CUresult result = vram_open((char *)handle.reserved, &vram);
    if (!result) {
        pthread_mutex_lock(&api_allocating);
        *address = api_reserve(vram.bytes);
        if (!api_add(KIND_IMPORTED, vram.gpu, vram.bytes, *address, vram)) result = CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_unlock(&api_allocating);
    }
    api_leave();
    return result;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                            unsigned long long flags) {
    struct allocation *a;
    if (!handle || !prop || flags || bytes % (2 << 20)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = api_allocate(KIND_VMM, bytes, NULL, &a);
    if (!result) *handle = (CUmemGenericAllocationHandle)(uintptr_t)a;
    return result;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t align, CUdeviceptr wish,
                                    unsigned long long flags) {
    (void)align, (void)wish, (void)flags;
    *address = api_reserve(bytes);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    struct allocation *a = (struct allocation *)(uintptr_t)handle;
    if (offset || flags || bytes != a->bytes || a->address) return CUDA_ERROR_INVALID_VALUE;
    a->address = address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *description, size_t count) {
    return api_find(address, bytes) && description && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemExportToShareableHandle(void *handle, CUmemGenericAllocationHandle allocation, int type,
                                             unsigned long long flags) {
    struct allocation *a = (struct allocation *)(uintptr_t)allocation;
    if (type != 1 || flags) return CUDA_ERROR_INVALID_VALUE;
    api_enter();
    int fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    a->exported = fd >= 0;
    api_leave();
    *(int *)handle = fd;
    return fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
