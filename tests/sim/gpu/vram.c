/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "vram.h"

#include "host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* /run/gpusim/vram, as a device: below /dev nobody takes it for a file of the process. */
#define DIRECTORY "/dev/gpusim"
enum { HEADER = 4096, CHUNK = 1 << 16 };

static uint64_t word_of(enum formula formula, uint64_t index) {
    return formula == FORMULA_GOLDEN ? index * 0x9E3779B97F4A7C15ull : 0;
}

enum formula vram_formula(const struct vram *vram) {
    uint32_t formula = FORMULA_ZERO;
    return pread(vram->fd, &formula, sizeof formula, 0) == sizeof formula ? (enum formula)formula : FORMULA_ZERO;
}

/* Who allocated: a process by its PID namespace and its PID there. Not by its start time: CRIU restores into a time
 * namespace, in which a process reads another start time of itself than everybody else does. */
struct owner {
    unsigned long long namespace;
    int pid;
};

static unsigned long long namespace_of(const char *process) {
    char path[96];
    struct stat namespace;
    snprintf(path, sizeof path, "/proc/%s/ns/pid", process);
    return stat(path, &namespace) ? 0 : namespace.st_ino;
}

static struct owner owner_of(int pid) {
    char path[64], line[512];
    struct owner owner = {0, 0};
    snprintf(path, sizeof path, "%d", pid);
    owner.namespace = namespace_of(path);
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        char *last = strncmp(line, "NSpid:", 6) ? NULL : strrchr(line, '\t');
        if (last) owner.pid = atoi(last);
    }
    if (file) fclose(file);
    return owner;
}

static int parse_name(const char *name, int *gpu, size_t *bytes, struct owner *owner) {
    return sscanf(name, "gpu%d-%zu-%llu-%d-", gpu, bytes, &owner->namespace, &owner->pid) == 4 ? 0 : -1;
}

static int ledger_lock(void) {
    int fd = open(DIRECTORY "/.ledger", O_RDWR | O_CLOEXEC);
    if (fd < 0) return -1;
    while (flock(fd, LOCK_EX))
        if (errno != EINTR) {
            close(fd);
            return -1;
        }
    return fd;
}

/* With the ledger locked: what live allocations take on that GPU; removes those of the dead. */
static unsigned long long used_locked(int gpu) {
    unsigned long long used = 0;
    DIR *directory = opendir(DIRECTORY);
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        int of;
        size_t bytes;
        struct owner owner;
        if (parse_name(entry->d_name, &of, &bytes, &owner) || of != gpu) continue;
        int fd = openat(dirfd(directory), entry->d_name, O_RDWR | O_CLOEXEC);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB))
            used += bytes;
        else
            unlinkat(dirfd(directory), entry->d_name, 0);
        close(fd);
    }
    if (directory) closedir(directory);
    return used;
}

unsigned long long vram_used(int gpu) {
    int ledger = ledger_lock();
    unsigned long long used = used_locked(gpu);
    if (ledger >= 0) close(ledger);
    return used;
}

static int create_locked(int gpu, size_t bytes, struct vram *vram) {
    char path[160];
    uint32_t unique;
    if (getrandom(&unique, sizeof unique, 0) != sizeof unique) return CUDA_ERROR_OPERATING_SYSTEM;
    snprintf(vram->name, sizeof vram->name, "gpu%d-%zu-%llu-%d-%08x", gpu, bytes, namespace_of("self"),
             getpid(), unique);
    snprintf(path, sizeof path, DIRECTORY "/%s", vram->name);
    vram->gpu = gpu;
    vram->bytes = bytes;
    vram->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (vram->fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    fchmod(vram->fd, 0666);
    if (flock(vram->fd, LOCK_SH) || ftruncate(vram->fd, (off_t)(HEADER + bytes))) {
        vram_close(vram);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    return CUDA_SUCCESS;
}

int vram_allocate_all(const int *gpus, const size_t *bytes, size_t count, struct vram *vrams) {
    const struct host *host = gpusim_host();
    unsigned long long wanted[GPUSIM_MAX_GPUS] = {0};
    int ledger = ledger_lock(), result = ledger < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
    size_t made = 0;
    for (size_t i = 0; i < count; i++) wanted[gpus[i]] += bytes[i];
    for (int gpu = 0; gpu < host->gpu_count && !result; gpu++)
        if (wanted[gpu] && used_locked(gpu) + wanted[gpu] > host->vram_bytes) result = CUDA_ERROR_OUT_OF_MEMORY;
    for (; made < count && !result; made++) result = create_locked(gpus[made], bytes[made], &vrams[made]);
    if (result)
        while (made > 0) vram_close(&vrams[--made]);
    if (ledger >= 0) close(ledger);
    return result;
}

int vram_allocate(int gpu, size_t bytes, struct vram *vram) { return vram_allocate_all(&gpu, &bytes, 1, vram); }

int vram_open(const char *name, struct vram *vram) {
    char path[160];
    struct owner owner;
    if (strchr(name, '/') || parse_name(name, &vram->gpu, &vram->bytes, &owner)) return CUDA_ERROR_INVALID_VALUE;
    snprintf(vram->name, sizeof vram->name, "%s", name);
    snprintf(path, sizeof path, DIRECTORY "/%s", name);
    vram->fd = open(path, O_RDWR | O_CLOEXEC);
    if (vram->fd < 0) return CUDA_ERROR_INVALID_VALUE;
    if (flock(vram->fd, LOCK_SH | LOCK_NB)) {
        vram_close(vram);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

void vram_close(struct vram *vram) {
    if (vram->fd >= 0) close(vram->fd);
    vram->fd = -1;
}

/* Both directions work on whole aligned words, so that formula(word) is defined; callers' ranges may be odd. */
static void transform(const struct vram *vram, size_t offset, uint8_t *data, size_t bytes) {
    enum formula formula = vram_formula(vram);
    if (formula == FORMULA_ZERO) return;
    for (size_t i = 0; i < bytes;) {
        size_t at = offset + i, within = at % 8, take = 8 - within < bytes - i ? 8 - within : bytes - i;
        uint64_t word = word_of(formula, at / 8);
        for (size_t k = 0; k < take; k++) data[i + k] ^= ((uint8_t *)&word)[within + k];
        i += take;
    }
}

void vram_read(const struct vram *vram, size_t offset, void *to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(vram->fd, (uint8_t *)to + done, bytes - done, (off_t)(HEADER + offset + done));
        if (got <= 0) {
            if (got < 0 && errno == EINTR) continue;
            memset((uint8_t *)to + done, 0, bytes - done);
            break;
        }
        done += (size_t)got;
    }
    transform(vram, offset, to, bytes);
}

static int all_zero(const uint8_t *data, size_t bytes) {
    return bytes == 0 || (data[0] == 0 && !memcmp(data, data + 1, bytes - 1));
}

void vram_write(const struct vram *vram, size_t offset, const void *from, size_t bytes) {
    uint8_t buffer[CHUNK], old[CHUNK];
    for (size_t done = 0; done < bytes;) {
        size_t take = bytes - done < CHUNK ? bytes - done : CHUNK;
        off_t at = (off_t)(HEADER + offset + done);
        memcpy(buffer, (const uint8_t *)from + done, take);
        transform(vram, offset + done, buffer, take);
        /* leave holes as they are: that is what keeps the simulated memory free of charge */
        if (!(all_zero(buffer, take) && pread(vram->fd, old, take, at) == (ssize_t)take && all_zero(old, take)))
            for (size_t put = 0; put < take;) {
                ssize_t wrote = pwrite(vram->fd, buffer + put, take - put, at + (off_t)put);
                if (wrote < 0 && errno != EINTR) {
                    fprintf(stderr, "gpusim: write of simulated device memory: %m\n");
                    abort();
                }
                if (wrote > 0) put += (size_t)wrote;
            }
        done += take;
    }
}

void vram_fill(const struct vram *vram, enum formula formula) {
    uint32_t value = formula;
    if (fallocate(vram->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)(HEADER + vram->bytes)) ||
        pwrite(vram->fd, &value, sizeof value, 0) != sizeof value) {
        fprintf(stderr, "gpusim: fill of simulated device memory: %m\n");
        abort();
    }
}

uint64_t vram_sum(const struct vram *vram, size_t offset, size_t words) {
    enum formula formula = vram_formula(vram);
    uint64_t sum = 0, buffer[CHUNK / 8];
    off_t data = lseek(vram->fd, (off_t)HEADER, SEEK_DATA);
    for (size_t i = 0; i < words;) {
        size_t take = words - i < CHUNK / 8 ? words - i : CHUNK / 8;
        off_t at = (off_t)(HEADER + offset + 8 * i);
        if (data >= 0 && data < at) data = lseek(vram->fd, at, SEEK_DATA);
        if (data < 0 || data >= at + (off_t)(8 * take))
            for (size_t k = 0; k < take; k++) buffer[k] = word_of(formula, offset / 8 + i + k);
        else
            vram_read(vram, offset + 8 * i, buffer, 8 * take);
        for (size_t k = 0; k < take; k++) sum ^= buffer[k] * ((i + k) | 1);
        i += take;
    }
    return sum;
}

static size_t users_of_process(int pid, struct vram_user *users, size_t count, size_t room) {
    char path[64], target[256];
    struct owner self = {0, 0};
    size_t first = count;
    int holds_gpu = 0; /* memory exported to a descriptor stays on the GPU of a process that has left it */
    struct stat own, other;
    if (stat(DIRECTORY, &own)) return count;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        int gpu;
        size_t bytes, i;
        struct owner owner;
        ssize_t got = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);
        if (got <= 0) continue;
        target[got] = '\0';
        if (!strncmp(target, "/dev/nvidia", 11) && target[11] >= '0' && target[11] <= '9') holds_gpu = 1;
        if (strncmp(target, DIRECTORY "/gpu", sizeof DIRECTORY + 3)) continue;
        if (parse_name(target + sizeof DIRECTORY, &gpu, &bytes, &owner)) continue;
        /* the same path may be another simulated host's */
        if (fstatat(dirfd(directory), entry->d_name, &other, 0) || other.st_dev != own.st_dev) continue;
        if (!self.pid) self = owner_of(pid);
        if (owner.pid != self.pid || owner.namespace != self.namespace) continue; /* inherited over fork, or imported */
        for (i = first; i < count && !(users[i].gpu == gpu); i++) {}
        if (i == count) {
            if (count == room) break;
            users[count++] = (struct vram_user){pid, gpu, 0};
        }
        users[i].bytes += bytes;
    }
    if (directory) closedir(directory);
    return holds_gpu ? count : first;
}

size_t vram_users(struct vram_user *users, size_t room) {
    size_t count = 0;
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        int pid = atoi(entry->d_name);
        if (pid > 0) count = users_of_process(pid, users, count, room);
    }
    if (directory) closedir(directory);
    return count;
}
