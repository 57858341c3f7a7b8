/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_int users;

/* As the real one, it has nodes of its own open; the driver, where loaded, closes them for a checkpoint with its own. */
static void open_nodes(void) {
    static const char *const nodes[] = {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1",
                                        "/dev/nvidia-caps/nvidia-cap2"};
    static atomic_flag opened = ATOMIC_FLAG_INIT;
    void (*adopt)(int, const char *) = NULL;
    if (atomic_flag_test_and_set(&opened)) return;
    *(void **)&adopt = dlsym(RTLD_DEFAULT, "gpusim_adopt");
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        int fd = open(nodes[i], O_RDWR | O_CLOEXEC);
        if (fd >= 0 && adopt) adopt(fd, nodes[i]);
    }
}

const struct host *nvml_host(void) { return atomic_load(&users) > 0 ? gpusim_host() : NULL; }

nvmlReturn_t nvml_text(const char *text, char *answer, unsigned int room) {
    if (!answer) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= room) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(answer, text);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags; /* whether to attach to the GPUs at once: there is nothing to attach to */
    if (!gpusim_host()) return NVML_ERROR_DRIVER_NOT_LOADED;
    open_nodes();
    atomic_fetch_add(&users, 1);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ALSO_NAMED(nvmlInit, nvmlInit_v2);

EXPORT nvmlReturn_t nvmlShutdown(void) {
    int now = atomic_load(&users);
    while (now > 0)
        if (atomic_compare_exchange_weak(&users, &now, now - 1)) return NVML_SUCCESS;
    return NVML_ERROR_UNINITIALIZED;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request.", "RM has detected an NVML/RM version mismatch.",
        "In use by another client", "Insufficient Memory", "No data", "VGPU ECC not supported",
        "Insufficient resources", "Frequency not supported", "Argument version mismatch"};
    return result >= 0 && (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int room) {
    const struct host *host = nvml_host();
    return host ? nvml_text(host->driver, version, room) : NVML_ERROR_UNINITIALIZED;
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int room) {
    const struct host *host = gpusim_host();
    char text[NVML_TEXT_ROOM];
    if (!host) return NVML_ERROR_DRIVER_NOT_LOADED;
    snprintf(text, sizeof text, "%d.%s", host->cuda / 1000, host->driver);
    return nvml_text(text, version, room);
}

/* As documented, needs no initialization. */
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    const struct host *host = gpusim_host();
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    if (!host) return NVML_ERROR_DRIVER_NOT_LOADED;
    *version = host->cuda;
    return NVML_SUCCESS;
}
ALSO_NAMED(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2);

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int room) {
    char path[64], text[4096];
    if (!nvml_host()) return NVML_ERROR_UNINITIALIZED;
    if (!name || !room) return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file) return NVML_ERROR_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = '\0'; /* the name is the first argument: it ends at its own zero */
    if (!text[0]) return NVML_ERROR_NOT_FOUND;
    snprintf(name, room, "%s", text);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *count) {
    if (!nvml_host()) return NVML_ERROR_UNINITIALIZED;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}
