/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "kernels.h"

#include <string.h>

struct kernel {
    const char *name;
    CUresult (*run)(void **params, struct allocation *(*find)(CUdeviceptr, size_t));
};

static uint64_t parameter(void **params, int index) { return *(uint64_t *)params[index]; }

static CUresult fill(void **params, struct allocation *(*find)(CUdeviceptr, size_t)) {
    uint64_t at = parameter(params, 0), words = parameter(params, 1);
    struct allocation *a = find(at, words * 8);
    if (!a) return CUDA_ERROR_INVALID_VALUE;
    if (a->kind == KIND_MANAGED) {
        for (uint64_t i = 0; i < words; i++) ((uint64_t *)(uintptr_t)at)[i] = i * 0x9E3779B97F4A7C15ull;
    } else {
        if (at != a->address || words * 8 != (a->bytes & ~7ull)) return CUDA_ERROR_NOT_SUPPORTED;
        vram_fill(&a->vram, FORMULA_GOLDEN);
    }
    return CUDA_SUCCESS;
}

static CUresult add_up(void **params, struct allocation *(*find)(CUdeviceptr, size_t)) {
    uint64_t at = parameter(params, 0), words = parameter(params, 1), out = parameter(params, 2), sum = 0, before;
    struct allocation *a = find(at, words * 8), *o = find(out, 8);
    if (!a || !o) return CUDA_ERROR_INVALID_VALUE;
    if (a->kind == KIND_MANAGED)
        for (uint64_t i = 0; i < words; i++) sum ^= ((uint64_t *)(uintptr_t)at)[i] * (i | 1);
    else
        sum = vram_sum(&a->vram, at - a->address, words);
    vram_read(&o->vram, out - o->address, &before, 8);
    sum ^= before;
    vram_write(&o->vram, out - o->address, &sum, 8);
    return CUDA_SUCCESS;
}

static CUresult count(void **params, struct allocation *(*find)(CUdeviceptr, size_t)) {
    uint64_t at = parameter(params, 0), value;
    struct allocation *a = find(at, 8);
    if (!a) return CUDA_ERROR_INVALID_VALUE;
    vram_read(&a->vram, at - a->address, &value, 8);
    value++;
    vram_write(&a->vram, at - a->address, &value, 8);
    return CUDA_SUCCESS;
}

static CUresult spin(void **params, struct allocation *(*find)(CUdeviceptr, size_t)) {
    (void)find;
    work_spin(parameter(params, 0));
    return CUDA_SUCCESS;
}

static const struct kernel kernels[] = {
    {"gpusim_fill", fill}, {"gpusim_sum", add_up}, {"gpusim_count", count}, {"gpusim_spin", spin}};

const struct kernel *kernel_by_name(const char *name) {
    for (unsigned int i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, name)) return &kernels[i];
    return NULL;
}

CUresult kernel_run(const struct kernel *kernel, void **params, struct allocation *(*find)(CUdeviceptr, size_t)) {
    return kernel && params ? kernel->run(params, find) : CUDA_ERROR_INVALID_HANDLE;
}
