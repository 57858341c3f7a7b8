/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "control.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct control gpusim_control = {.magic = CONTROL_MAGIC};

/* A caller that was killed while its request waited (the target was stopped) must not be served any more. */
static int caller_waits(uint64_t id) {
    if (__atomic_load_n(&gpusim_control.expected, __ATOMIC_ACQUIRE) != id) return 0;
    if (flock(gpusim_control.request_read, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) return 1;
    flock(gpusim_control.request_read, LOCK_UN);
    return 0;
}

static uint64_t serving;

static int serving_wanted(void) { return caller_waits(serving); }

static CUresult serve(const struct request *request) {
    switch (request->operation) {
        case OP_STATE: return CUDA_SUCCESS;
        case OP_LOCK: return process_lock(request->deadline, serving_wanted);
        case OP_CHECKPOINT: return process_checkpoint();
        case OP_RESTORE: return process_restore(request->pair_count ? request->pairs : NULL, request->pair_count);
        case OP_UNLOCK: return process_unlock();
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static void *restore_thread(void *started) {
    struct request request;
    prctl(PR_SET_NAME, "cuda00001400006");
    __atomic_store_n(&gpusim_control.restore_tid, gettid(), __ATOMIC_RELEASE);
    __atomic_store_n((int *)started, 1, __ATOMIC_RELEASE);
    for (;;) {
        ssize_t got = read(gpusim_control.request_read, &request, sizeof request);
        if (got != sizeof request || !caller_waits(request.id)) continue;
        serving = request.id;
        struct reply reply = {.id = request.id, .result = serve(&request)};
        reply.state = gpusim_process.state;
        while (write(gpusim_control.reply_write, &reply, sizeof reply) < 0 && errno == EINTR) {}
    }
    return NULL;
}

static void *event_thread(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "cuda-EvtHandlr");
    for (;;) poll(NULL, 0, -1);
    return NULL;
}

/* The listening socket by which the real driver's processes are known. */
static void announce(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat namespace;
    if (stat("/proc/self/ns/pid", &namespace)) return;
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "cuda-uvmfd-%llu-%d",
                          (unsigned long long)namespace.st_ino, getpid());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* the name ends with a zero byte, as the driver's does */
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 2 + length)) ||
        listen(fd, 16))
        fprintf(stderr, "gpusim: %s: %m\n", address.sun_path + 1);
}

static void forget_in_child(void) { gpusim_control.restore_tid = 0; }

CUresult control_start(void) {
    pthread_t thread;
    sigset_t all, old;
    int pipes[4], started = 0;
    if (pipe2(pipes, O_CLOEXEC) || pipe2(pipes + 2, O_CLOEXEC)) return CUDA_ERROR_OPERATING_SYSTEM;
    gpusim_control.request_read = pipes[0];
    gpusim_control.request_write = pipes[1];
    gpusim_control.reply_read = pipes[2];
    gpusim_control.reply_write = pipes[3];
    pthread_atfork(NULL, NULL, forget_in_child);
    announce();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&thread, NULL, restore_thread, &started);
    if (!failed) {
        while (!__atomic_load_n(&started, __ATOMIC_ACQUIRE)) usleep(100);
        failed = pthread_create(&thread, NULL, event_thread, NULL);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failed ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
