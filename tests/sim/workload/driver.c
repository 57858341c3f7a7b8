/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct driver cu;
struct nccl nccl;

void fail(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("gpusim-workload: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(status);
}

static void *symbol_of(void *library, const char *file, const char *symbol) {
    void *found = dlsym(library, symbol);
    if (!found) fail(3, "%s has no %s", file, symbol);
    return found;
}

static void *open_library(const char *file) {
    void *library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    if (!library) fail(3, "%s", dlerror());
    return library;
}

void load_driver(void) {
    const char *file = "libcuda.so.1";
    void *library = open_library(file);
#define LOAD(name, symbol, params) *(void **)&cu.name = symbol_of(library, file, #symbol);
    DRIVER_API(LOAD)
#undef LOAD
}

void load_nccl(void) {
    const char *file = getenv("GPUSIM_NCCL");
    if (!file) file = "libnccl.so.2";
    void *library = open_library(file);
#define LOAD(name, symbol, params) *(void **)&nccl.name = symbol_of(library, file, #symbol);
    NCCL_API(LOAD)
#undef LOAD
}

void check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    const char *name = NULL;
    if (cu.error_name) cu.error_name(result, &name);
    fail(3, "%s: CUresult %d %s", what, result, name ? name : "");
}

void check_nccl(int result, const char *what) {
    if (result) fail(3, "%s: ncclResult %d", what, result);
}
