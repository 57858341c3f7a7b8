/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "api.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

pthread_mutex_t api_allocating = PTHREAD_MUTEX_INITIALIZER;

struct allocation *api_add(enum kind kind, int gpu, size_t bytes, CUdeviceptr address, struct vram vram) {
    struct allocation *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    *a = (struct allocation){kind, gpu, bytes, address, vram, NULL, FORMULA_ZERO, 0, gpusim_process.allocations};
    gpusim_process.allocations = a;
    return a;
}

CUdeviceptr api_reserve(size_t bytes) {
    void *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return range == MAP_FAILED ? 0 : (CUdeviceptr)(uintptr_t)range;
}

struct allocation *api_find(CUdeviceptr address, size_t bytes) {
    for (struct allocation *a = gpusim_process.allocations; a; a = a->next)
        if (a->address && address >= a->address && address + bytes <= a->address + a->bytes) return a;
    return NULL;
}


CUresult api_allocate(enum kind kind, size_t bytes, CUdeviceptr *address, struct allocation **made) {
    CUresult result;
    struct vram vram = {.fd = -1};
    struct allocation *a = NULL;
    int gpu;
    if (!api_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    api_enter();
    gpu = api_gpu();
    pthread_mutex_lock(&api_allocating);
    if (kind == KIND_MANAGED) {
        void *memory = devices_map_managed((bytes + 0x1fffff) & ~(size_t)0x1fffff);
        result = memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        if (!result) a = api_add(kind, gpu, bytes, (CUdeviceptr)(uintptr_t)memory, vram);
    } else {
        CUdeviceptr range = kind == KIND_VMM ? 0 : api_reserve(bytes);
        result = vram_allocate(gpu, bytes, &vram);
        if (!result) a = api_add(kind, gpu, bytes, range, vram);
    }
    pthread_mutex_unlock(&api_allocating);
    api_leave();
    if (!result && !a) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!result && address) *address = a->address;
    if (!result && made) *made = a;
    return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    return address ? api_allocate(KIND_DEVICE, bytes, address, NULL) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags) {
    (void)flags;
    return address ? api_allocate(KIND_MANAGED, bytes, address, NULL) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    api_enter();
    pthread_mutex_lock(&api_allocating);
    for (struct allocation **at = &gpusim_process.allocations; *at; at = &(*at)->next) {
        struct allocation *a = *at;
        if (a->address != address || a->kind == KIND_CONTEXT) continue;
        *at = a->next;
        vram_close(&a->vram);
        munmap((void *)(uintptr_t)a->address, a->bytes);
        free(a);
        result = CUDA_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&api_allocating);
    api_leave();
    return result;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (!api_context) return CUDA_ERROR_INVALID_CONTEXT;
    api_enter();
    *total = gpusim_host()->vram_bytes;
    *free_bytes = *total - vram_used(api_gpu());
    api_leave();
    return CUDA_SUCCESS;
}

/* Pinned memory stays mapped while checkpointed: plain shared anonymous memory, as the driver's is. */
EXPORT CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags) {
    (void)flags;
    if (!memory || !bytes) return CUDA_ERROR_INVALID_VALUE;
    *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    api_enter();
    struct allocation *a = api_find(to, bytes);
    CUresult result = a ? work_drain() : CUDA_ERROR_INVALID_VALUE;
    if (!result && a->kind == KIND_MANAGED)
        memcpy((void *)(uintptr_t)to, from, bytes);
    else if (!result)
        vram_write(&a->vram, to - a->address, from, bytes);
    api_leave();
    return result;
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    api_enter();
    struct allocation *a = api_find(from, bytes);
    CUresult result = a ? work_drain() : CUDA_ERROR_INVALID_VALUE;
    if (!result && a->kind == KIND_MANAGED)
        memcpy(to, (void *)(uintptr_t)from, bytes);
    else if (!result)
        vram_read(&a->vram, from - a->address, to, bytes);
    api_leave();
    return result;
}
