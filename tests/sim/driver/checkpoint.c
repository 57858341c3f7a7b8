/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "process.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { STEP = 4 << 20 };

/* Keeps to the host's copy rate, so that a test can meet a copy in its middle. */
static void pace(size_t bytes) {
    unsigned long long rate = gpusim_host()->copy_bytes_per_s;
    if (!rate) return;
    unsigned long long ns = (unsigned long long)bytes * 1000000000ull / rate;
    struct timespec left = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    while (nanosleep(&left, &left)) {}
}

static void *host_memory(size_t bytes) {
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Contexts have memory of their own on each GPU, and that goes to the host, too: what NVML counts is what is needed there
 * (docs/driver-findings.md). */
static size_t overhead_bytes(void) {
    size_t bytes = gpusim_host()->host_overhead_bytes;
    for (struct allocation *a = gpusim_process.allocations; a; a = a->next)
        if (a->kind == KIND_CONTEXT) bytes += a->bytes;
    return bytes;
}

static void free_host_copies(void) {
    struct process *p = &gpusim_process;
    for (struct allocation *a = p->allocations; a; a = a->next)
        if (a->host_copy) {
            munmap(a->host_copy, a->bytes);
            a->host_copy = NULL;
        }
    if (p->host_overhead) munmap(p->host_overhead, overhead_bytes());
    p->host_overhead = NULL;
}

/* Room for everything first: where it is refused, nothing has changed. */
static CUresult take_host_memory(void) {
    struct process *p = &gpusim_process;
    size_t overhead = overhead_bytes();
    int refused = 0;
    if (overhead) {
        void *memory = host_memory(overhead);
        refused = memory == MAP_FAILED;
        p->host_overhead = refused ? NULL : memory;
    }
    for (struct allocation *a = p->allocations; a && !refused; a = a->next) {
        if (a->kind == KIND_CONTEXT) continue;
        void *memory = host_memory(a->bytes);
        refused = memory == MAP_FAILED;
        a->host_copy = refused ? NULL : memory;
    }
    if (refused) free_host_copies();
    return refused ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void copy_out(struct allocation *a) {
    a->formula = vram_formula(&a->vram);
    for (size_t at = 0; at < a->bytes; at += STEP) {
        size_t bytes = a->bytes - at < STEP ? a->bytes - at : STEP;
        vram_read(&a->vram, at, (char *)a->host_copy + at, bytes);
        pace(bytes);
    }
}

static void copy_in(struct allocation *a) {
    vram_fill(&a->vram, a->formula);
    for (size_t at = 0; at < a->bytes; at += STEP) {
        size_t bytes = a->bytes - at < STEP ? a->bytes - at : STEP;
        vram_write(&a->vram, at, (char *)a->host_copy + at, bytes);
        pace(bytes);
    }
}

CUresult process_checkpoint(void) {
    struct process *p = &gpusim_process;
    CUresult result;
    if (p->state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
    if (p->refused) return CUDA_ERROR_UNKNOWN;
    for (struct allocation *a = p->allocations; a; a = a->next)
        if (a->kind == KIND_MANAGED) {
            p->refused = 1;
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    if ((result = take_host_memory())) {
        p->refused = 1;
        return result;
    }
    if (p->host_overhead) memset(p->host_overhead, 0xA5, overhead_bytes());
    mmap(p->tracking, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (struct allocation *a = p->allocations; a; a = a->next) {
        if (a->kind != KIND_CONTEXT) copy_out(a);
        if (!a->exported) vram_close(&a->vram);
    }
    devices_close();
    p->state = CU_PROCESS_STATE_CHECKPOINTED;
    return CUDA_SUCCESS;
}

/* Which GPU of this host each ordinal of the process goes to. */
static CUresult resolve(const CUcheckpointGpuPair *pairs, unsigned int count, int *gpu_of, CUuuid *uuids) {
    const struct host *host = gpusim_host();
    struct process *p = &gpusim_process;
    int taken[GPUSIM_MAX_GPUS] = {0};
    if (count && !pairs) return CUDA_ERROR_INVALID_VALUE;
    if (count && count != (unsigned int)p->gpu_count) return CUDA_ERROR_INVALID_VALUE;
    for (int ordinal = 0; ordinal < p->gpu_count; ordinal++) {
        CUuuid target = p->uuids[ordinal];
        int named = count == 0;
        for (unsigned int i = 0; i < count; i++)
            if (!memcmp(&pairs[i].old_uuid, &p->uuids[ordinal], sizeof target)) {
                named++;
                target = pairs[i].new_uuid;
            }
        int gpu = gpusim_gpu_by_uuid(host, &target);
        if (named != 1 || gpu < 0 || taken[gpu]++) return CUDA_ERROR_INVALID_VALUE;
        gpu_of[ordinal] = gpu;
        uuids[ordinal] = target;
    }
    return CUDA_SUCCESS;
}

static int ordinal_of(int gpu) {
    for (int ordinal = 0; ordinal < gpusim_process.gpu_count; ordinal++)
        if (gpusim_process.gpu_of[ordinal] == gpu) return ordinal;
    return 0;
}

/* From here on a failure leaves the process lost: it holds the devices again but not its memory. */
static CUresult take_device_memory(const int *gpu_of) {
    struct process *p = &gpusim_process;
    enum { MOST = 4096 };
    static int gpus[MOST];
    static size_t bytes[MOST];
    static struct vram vrams[MOST];
    size_t count = 0, i = 0;
    if (p->peers) return CUDA_ERROR_NOT_SUPPORTED;
    for (struct allocation *a = p->allocations; a; a = a->next) {
        if (a->kind == KIND_IMPORTED) return CUDA_ERROR_INVALID_VALUE;
        if (a->exported) continue;
        if (count == MOST) return CUDA_ERROR_OUT_OF_MEMORY;
        gpus[count] = gpu_of[ordinal_of(a->gpu)];
        bytes[count++] = a->bytes;
    }
    CUresult result = vram_allocate_all(gpus, bytes, count, vrams);
    if (result) return result;
    for (struct allocation *a = p->allocations; a; a = a->next) {
        if (!a->exported) a->vram = vrams[i++];
        a->gpu = gpu_of[ordinal_of(a->gpu)];
    }
    return CUDA_SUCCESS;
}

CUresult process_restore(const CUcheckpointGpuPair *pairs, unsigned int count) {
    struct process *p = &gpusim_process;
    int gpu_of[GPUSIM_MAX_GPUS];
    CUuuid uuids[GPUSIM_MAX_GPUS];
    CUresult result;
    if (p->state != CU_PROCESS_STATE_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
    if (p->poisoned) return CUDA_ERROR_OPERATING_SYSTEM;
    gpusim_host_again();
    if ((result = resolve(pairs, count, gpu_of, uuids))) return result;
    devices_open();
    if ((result = take_device_memory(gpu_of))) {
        p->poisoned = 1;
        return result;
    }
    memcpy(p->gpu_of, gpu_of, sizeof gpu_of);
    memcpy(p->uuids, uuids, sizeof uuids);
    mmap(p->tracking, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (struct allocation *a = p->allocations; a; a = a->next)
        if (a->kind == KIND_CONTEXT)
            devices_use(ordinal_of(a->gpu));
        else
            copy_in(a);
    free_host_copies();
    p->state = CU_PROCESS_STATE_LOCKED;
    return CUDA_SUCCESS;
}
