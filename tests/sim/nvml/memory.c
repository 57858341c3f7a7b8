/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "device.h"
#include "vram.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* For so long a look at all processes is taken for the present. */
#define FRESH_NS 10000000L

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    int index;
    nvmlReturn_t result = nvml_check(device, memory, &index);
    if (result) return result;
    memory->total = nvml_host()->vram_bytes;
    memory->used = vram_used(index);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t first;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, memory ? &first : NULL);
    if (result) return result;
    if (memory->version != NVML_MEMORY_V2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *memory = (nvmlMemory_v2_t){NVML_MEMORY_V2, first.total, 0, first.free, first.used};
    return NVML_SUCCESS;
}

static struct vram_user *read_users_now(size_t *count) {
    struct vram_user *users = NULL;
    for (size_t room = 256;; room *= 2) {
        struct vram_user *more = realloc(users, room * sizeof *users);
        if (!more) break;
        users = more;
        *count = vram_users(users, room);
        if (*count < room) return users;
    }
    free(users);
    return NULL;
}

/* Those of all GPUs. One look at all processes serves the lists of all GPUs that are asked for right behind each other;
 * a real driver needs no look at all. */
static struct vram_user *read_users(size_t *count) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct vram_user *known;
    static size_t known_count;
    static struct timespec known_at;
    struct vram_user *users = NULL;
    struct timespec now;
    pthread_mutex_lock(&mutex);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!known || (now.tv_sec - known_at.tv_sec) * 1000000000L + now.tv_nsec - known_at.tv_nsec > FRESH_NS) {
        free(known);
        known = read_users_now(&known_count);
        clock_gettime(CLOCK_MONOTONIC, &known_at);
    }
    if (known && (users = malloc((known_count + 1) * sizeof *users))) {
        memcpy(users, known, known_count * sizeof *users);
        *count = known_count;
    }
    pthread_mutex_unlock(&mutex);
    return users;
}

static unsigned int keep_those_on(int gpu, struct vram_user *users, size_t count) {
    unsigned int kept = 0;
    for (size_t i = 0; i < count; i++)
        if (users[i].gpu == gpu) users[kept++] = users[i];
    return kept;
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned int *room, void *infos, size_t info_bytes) {
    int index;
    size_t count = 0;
    nvmlReturn_t result = nvml_check(device, room, &index);
    if (result) return result;
    struct vram_user *users = read_users(&count);
    if (!users) return NVML_ERROR_MEMORY;
    unsigned int here = keep_those_on(index, users, count), had = *room;
    *room = here;
    if (here > had)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    else if (here && !infos)
        result = NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < here && !result; i++) {
        nvmlProcessInfo_t info = {(unsigned int)users[i].pid, users[i].bytes, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
        memcpy((char *)infos + i * info_bytes, &info, info_bytes);
    }
    free(users);
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_v1_t *infos) {
    return list(device, count, infos, sizeof *infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_t *infos) {
    return list(device, count, infos, sizeof *infos);
}
ALSO_NAMED(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3);

/* No simulated process draws. */
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, void *infos) {
    int index;
    (void)infos;
    nvmlReturn_t result = nvml_check(device, count, &index);
    if (!result) *count = 0;
    return result;
}
ALSO_NAMED(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3);
ALSO_NAMED(nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v3);

static int is_mps_server(int pid) {
    char path[64], name[16] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    if (!fgets(name, sizeof name, file)) name[0] = '\0';
    fclose(file);
    return !strncmp(name, "nvidia-cuda-mps", 15);
}

/* Without an MPS server nobody is its client; with one, who is cannot be told from outside. */
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *room, void *infos) {
    int index;
    size_t count = 0;
    (void)infos;
    nvmlReturn_t result = nvml_check(device, room, &index);
    if (result) return result;
    struct vram_user *users = read_users(&count);
    if (!users) return NVML_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++)
        if (is_mps_server(users[i].pid)) result = NVML_ERROR_NOT_SUPPORTED;
    free(users);
    if (!result) *room = 0;
    return result;
}
ALSO_NAMED(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses_v3);
ALSO_NAMED(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses_v3);
