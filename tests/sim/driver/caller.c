/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "caller.h"

#include "control.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Process that a PID or thread id belongs to, 0 if there is none. */
static int thread_group(int id) {
    char path[64], line[256];
    int group = 0;
    if (id <= 0) return 0;
    snprintf(path, sizeof path, "/proc/%d/status", id);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Tgid: %d", &group) == 1) break;
    fclose(file);
    return group;
}

static int own_offset(uintptr_t *offset) {
    Dl_info info;
    if (!dladdr((void *)&gpusim_control, &info)) return -1;
    *offset = (uintptr_t)&gpusim_control - (uintptr_t)info.dli_fbase;
    return 0;
}

/* Address of the target's control block; NOT_INITIALIZED where it has not loaded the driver. */
static CUresult find_control(int pid, uintptr_t *address) {
    char path[64], line[4352];
    uintptr_t offset, start, file_offset;
    CUresult result = CUDA_ERROR_NOT_INITIALIZED;
    if (own_offset(&offset)) return CUDA_ERROR_OPERATING_SYSTEM;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "re");
    /* a process without memory: a zombie, or a thread of the kernel (ESRCH, on current kernels) */
    if (!file) return errno == ESRCH ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_OPERATING_SYSTEM;
    while (fgets(line, sizeof line, file)) {
        if (!strstr(line, "/libcuda.so")) continue;
        if (sscanf(line, "%lx-%*x %*s %lx", &start, &file_offset) != 2 || file_offset) continue;
        *address = start + offset;
        result = CUDA_SUCCESS;
        break;
    }
    if (ferror(file)) result = CUDA_ERROR_OPERATING_SYSTEM;
    fclose(file);
    return result;
}

static CUresult read_control(int pid, uintptr_t address, struct control *control) {
    struct iovec local = {control, sizeof *control}, remote = {(void *)address, sizeof *control};
    if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != (ssize_t)sizeof *control) return CUDA_ERROR_OPERATING_SYSTEM;
    return control->magic == CONTROL_MAGIC && control->restore_tid ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static int expect(int pid, uintptr_t address, uint64_t id) {
    struct iovec local = {&id, sizeof id}, remote = {(void *)(address + offsetof(struct control, expected)), sizeof id};
    return process_vm_writev(pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof id ? 0 : -1;
}

static int open_fd_of(int pid, int fd, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    return open(path, flags | O_CLOEXEC);
}

static void drain(int pid, int fd) {
    char left[4096];
    int own = open_fd_of(pid, fd, O_RDONLY | O_NONBLOCK);
    while (own >= 0 && read(own, left, sizeof left) > 0) {}
    close(own);
}

/* Waits for the answer as long as the target lives: a stopped target gives none. */
static CUresult await(int pidfd, int reply_fd, uint64_t id, struct reply *reply) {
    for (;;) {
        struct pollfd fds[2] = {{reply_fd, POLLIN, 0}, {pidfd, POLLIN, 0}};
        if (poll(fds, 2, -1) < 0) continue;
        if (fds[0].revents & POLLIN) {
            if (read(reply_fd, reply, sizeof *reply) == (ssize_t)sizeof *reply && reply->id == id) return CUDA_SUCCESS;
            continue;
        }
        if (fds[1].revents) return CUDA_ERROR_OPERATING_SYSTEM;
    }
}

/* Of a clock that no time namespace shifts: CRIU restores into one. */
static unsigned long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec;
}

static CUresult exchange(int pid, uintptr_t address, const struct control *control, struct request *request,
                         struct reply *reply) {
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    int request_fd = open_fd_of(pid, control->request_write, O_WRONLY);
    int reply_fd = open_fd_of(pid, control->reply_read, O_RDONLY);
    CUresult result = CUDA_ERROR_OPERATING_SYSTEM;
    if (pidfd >= 0 && request_fd >= 0 && reply_fd >= 0 && !flock(request_fd, LOCK_EX)) {
        drain(pid, control->request_read);
        drain(pid, control->reply_read);
        if (request->deadline) request->deadline += now();
        if (getrandom(&request->id, sizeof request->id, 0) == (ssize_t)sizeof request->id &&
            !expect(pid, address, request->id) && write(request_fd, request, sizeof *request) == (ssize_t)sizeof *request)
            result = await(pidfd, reply_fd, request->id, reply);
    }
    close(reply_fd);
    close(request_fd);
    close(pidfd);
    return result;
}

static CUresult reach(int id, int *pid, uintptr_t *address, struct control *control) {
    CUresult result;
    *pid = thread_group(id);
    if (!*pid) return CUDA_ERROR_OPERATING_SYSTEM;
    if ((result = find_control(*pid, address))) return result;
    return read_control(*pid, *address, control);
}

static CUresult ask(int id, struct request *request, struct reply *reply) {
    struct control control;
    uintptr_t address;
    int pid;
    CUresult result = reach(id, &pid, &address, &control);
    return result ? result : exchange(pid, address, &control, request, reply);
}

static CUresult act(int id, struct request *request) {
    struct reply reply;
    CUresult result = ask(id, request, &reply);
    return result ? result : reply.result;
}

CUresult caller_state(int id, CUprocessState *state) {
    struct request request = {.operation = OP_STATE};
    struct reply reply;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = ask(id, &request, &reply);
    if (!result) *state = (CUprocessState)reply.state;
    return result;
}

CUresult caller_lock(int id, unsigned int timeout_ms) {
    /* the time runs from when the target could take the request, not while another caller is served */
    struct request request = {.operation = OP_LOCK, .deadline = timeout_ms * 1000000ull};
    return act(id, &request);
}

CUresult caller_checkpoint(int id) {
    struct request request = {.operation = OP_CHECKPOINT};
    return act(id, &request);
}

CUresult caller_restore(int id, const CUcheckpointGpuPair *pairs, unsigned int count) {
    struct request request = {.operation = OP_RESTORE, .pair_count = count};
    if (count > GPUSIM_MAX_GPUS) return CUDA_ERROR_INVALID_VALUE;
    if (count) memcpy(request.pairs, pairs, count * sizeof *pairs);
    return act(id, &request);
}

CUresult caller_unlock(int id) {
    struct request request = {.operation = OP_UNLOCK};
    return act(id, &request);
}

/* Anybody may know the restore thread: it is found by its name. */
CUresult caller_restore_tid(int id, int *tid) {
    char path[64], name[32];
    int found = 0;
    if (!tid) return CUDA_ERROR_INVALID_VALUE;
    int pid = thread_group(id);
    if (!pid) return CUDA_ERROR_OPERATING_SYSTEM;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && !found && (entry = readdir(directory))) {
        int thread = atoi(entry->d_name);
        if (thread <= 0) continue;
        snprintf(path, sizeof path, "/proc/%d/task/%d/comm", pid, thread);
        FILE *file = fopen(path, "re");
        if (file && fgets(name, sizeof name, file) && !strncmp(name, "cuda00001", 9)) found = thread;
        if (file) fclose(file);
    }
    if (directory) closedir(directory);
    if (!found) return CUDA_ERROR_NOT_INITIALIZED;
    *tid = found;
    return CUDA_SUCCESS;
}
