/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "host.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct host the_host;
static int host_known;
static pthread_once_t once = PTHREAD_ONCE_INIT;

int gpusim_parse_uuid(const char *text, CUuuid *uuid) {
    int filled = 0;
    if (!strncmp(text, "GPU-", 4)) text += 4;
    while (*text && filled < 16) {
        unsigned int byte;
        if (*text == '-') text++;
        if (sscanf(text, "%2x", &byte) != 1 || !text[0] || !text[1]) return -1;
        uuid->bytes[filled++] = (unsigned char)byte;
        text += 2;
    }
    return filled == 16 && !*text ? 0 : -1;
}

static void take(struct host *host, const char *key, const char *value) {
    char field[16];
    int index;
    const unsigned long long mib = 1ull << 20;
    if (!strcmp(key, "driver")) {
        snprintf(host->driver, sizeof host->driver, "%s", value);
        host->branch = atoi(value);
    } else if (!strcmp(key, "cuda"))
        host->cuda = atoi(value);
    else if (!strcmp(key, "model"))
        snprintf(host->model, sizeof host->model, "%s", value);
    else if (!strcmp(key, "gpus"))
        host->gpu_count = atoi(value) > GPUSIM_MAX_GPUS ? GPUSIM_MAX_GPUS : atoi(value);
    else if (!strcmp(key, "vram_mib"))
        host->vram_bytes = strtoull(value, NULL, 10) * mib;
    else if (!strcmp(key, "context_mib"))
        host->context_bytes = strtoull(value, NULL, 10) * mib;
    else if (!strcmp(key, "host_overhead_mib"))
        host->host_overhead_bytes = strtoull(value, NULL, 10) * mib;
    else if (!strcmp(key, "copy_mib_per_s"))
        host->copy_bytes_per_s = strtoull(value, NULL, 10) * mib;
    else if (sscanf(key, "gpu%d_%15s", &index, field) == 2 && index >= 0 && index < GPUSIM_MAX_GPUS) {
        struct gpu *gpu = &host->gpus[index];
        if (!strcmp(field, "uuid")) {
            snprintf(gpu->uuid_text, sizeof gpu->uuid_text, "%s", value);
            gpusim_parse_uuid(value, &gpu->uuid);
        } else if (!strcmp(field, "bus"))
            snprintf(gpu->bus_id, sizeof gpu->bus_id, "%s", value);
    }
}

/* Without the allocator: a thread that is held may have its lock. */
static void read_host(void) {
    static char text[16384];
    static struct host found;
    int file = open("/run/gpusim/host", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (size <= 0) return;
    text[size] = '\0';
    memset(&found, 0, sizeof found);
    for (char *line = text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next) *next++ = '\0';
        char *value = strchr(line, '=');
        if (!value) continue;
        *value++ = '\0';
        take(&found, line, value);
    }
    if (found.branch > 0) the_host = found;
    host_known = the_host.branch > 0;
}

void gpusim_host_again(void) {
    unsigned long long rate = the_host.copy_bytes_per_s;
    read_host();
    the_host.copy_bytes_per_s = rate;
}

const struct host *gpusim_host(void) {
    pthread_once(&once, read_host);
    return host_known ? &the_host : NULL;
}

int gpusim_gpu_by_uuid(const struct host *host, const CUuuid *uuid) {
    for (int i = 0; i < host->gpu_count; i++)
        if (!memcmp(&host->gpus[i].uuid, uuid, sizeof *uuid)) return i;
    return -1;
}
