/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

/* As the driver does: one control node, two descriptors of the memory manager that turn into eventfds while
 * the process is checkpointed, some of every GPU, and a 2 MiB mapping of /dev/nvidia-uvm per GPU in use. */
enum { UVM_FDS = 2, FDS_PER_GPU = 4, GPU_WINDOW = 4096, UVM_WINDOW = 2 << 20, MAX_MANAGED = 64, MAX_ADOPTED = 64 };

static int control_fd = -1, uvm_fds[UVM_FDS] = {-1, -1}, gpu_fds[GPUSIM_MAX_GPUS * FDS_PER_GPU];
static void *gpu_windows[GPUSIM_MAX_GPUS], *uvm_windows[GPUSIM_MAX_GPUS];
static struct {
    int fd;
    char path[48];
} adopted[MAX_ADOPTED];
static int adopted_count;
static int managed_fds[MAX_MANAGED], managed_count;

static int open_node(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) fprintf(stderr, "gpusim: %s: %m\n", path);
    return fd;
}

void devices_adopt(int fd, const char *path) {
    if (adopted_count == MAX_ADOPTED) return;
    adopted[adopted_count].fd = fd;
    snprintf(adopted[adopted_count++].path, sizeof adopted->path, "%s", path);
}

static void reopen_adopted(void) {
    for (int i = 0; i < adopted_count; i++) {
        int fd = open_node(adopted[i].path);
        if (fd < 0 || fd == adopted[i].fd) continue;
        dup3(fd, adopted[i].fd, O_CLOEXEC);
        close(fd);
    }
}

void devices_open(void) {
    char path[32];
    int first = uvm_fds[0] < 0;
    control_fd = open_node("/dev/nvidiactl");
    for (int i = 0; i < UVM_FDS; i++) {
        int fd = open_node("/dev/nvidia-uvm");
        if (first)
            uvm_fds[i] = fd;
        else {
            dup3(fd, uvm_fds[i], O_CLOEXEC);
            close(fd);
        }
    }
    for (int i = 0; i < gpusim_host()->gpu_count * FDS_PER_GPU; i++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", i / FDS_PER_GPU);
        gpu_fds[i] = open_node(path);
        if (i % FDS_PER_GPU == 0)
            gpu_windows[i / FDS_PER_GPU] = mmap(NULL, GPU_WINDOW, PROT_READ, MAP_PRIVATE, gpu_fds[i], 0);
    }
    if (!first) reopen_adopted();
}

void devices_use(int ordinal) {
    if (uvm_windows[ordinal]) return;
    void *window = mmap(NULL, UVM_WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, uvm_fds[0], 0);
    if (window == MAP_FAILED) return;
    madvise(window, UVM_WINDOW, MADV_DONTFORK);
    uvm_windows[ordinal] = window;
}

void devices_close(void) {
    for (int i = 0; i < GPUSIM_MAX_GPUS; i++) {
        if (uvm_windows[i]) munmap(uvm_windows[i], UVM_WINDOW);
        uvm_windows[i] = NULL;
    }
    for (int i = 0; i < adopted_count; i++) close(adopted[i].fd);
    for (int i = 0; i < gpusim_host()->gpu_count; i++) munmap(gpu_windows[i], GPU_WINDOW);
    for (int i = 0; i < gpusim_host()->gpu_count * FDS_PER_GPU; i++) close(gpu_fds[i]);
    for (int i = 0; i < UVM_FDS; i++) {
        int fd = eventfd(0, EFD_CLOEXEC);
        dup3(fd, uvm_fds[i], O_CLOEXEC);
        close(fd);
    }
    close(control_fd);
    control_fd = -1;
}

void *devices_map_managed(size_t bytes) {
    /* A range of the file is taken with a lock, which ends with the process. */
    if (managed_count == MAX_MANAGED) return MAP_FAILED;
    int fd = open_node("/dev/nvidia-uvm");
    for (off_t at = UVM_WINDOW; fd >= 0; at += (off_t)bytes) {
        struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = (off_t)bytes};
        if (fcntl(fd, F_OFD_SETLK, &range)) continue;
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
        if (memory == MAP_FAILED) break;
        managed_fds[managed_count++] = fd;
        return memory;
    }
    close(fd);
    return MAP_FAILED;
}
