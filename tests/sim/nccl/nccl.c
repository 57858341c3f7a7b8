/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The part of NCCL that the workload calls: ranks meet over shared memory, and a collective is work in flight
 * until every rank has come to it, which is what makes a rank that waits impossible to lock.
 */
#define _GNU_SOURCE
#include "cuda_abi.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { MAX_RANKS = 64, HELPER_THREADS = 3, NCCL_SUCCESS = 0, NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_ARGUMENT = 4 };

/* in the driver */
void gpusim_collective(int (*finished)(void *), void *argument);
void gpusim_has_peers(void);
CUresult gpusim_add_up(CUdeviceptr to, const uint64_t *values, int count);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);

struct meeting {
    uint64_t joined[MAX_RANKS];
    uint16_t port[MAX_RANKS];
    uint64_t arrived[MAX_RANKS]; /* number of the last collective that the rank came to */
    uint64_t value[MAX_RANKS];
};

struct ncclComm {
    int ranks, rank;
    uint64_t sequence;
    struct meeting *meeting;
};

EXPORT int ncclGetUniqueId(ncclUniqueId *id) {
    uint64_t unique;
    if (getrandom(&unique, sizeof unique, 0) != sizeof unique) return NCCL_SYSTEM_ERROR;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%016llx", (unsigned long long)unique);
    return NCCL_SUCCESS;
}

/* What tells a communicator from outside: an abstract socket of this name, and helper threads. */
static int announce(const char *id, int rank) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "tmp/nccl-socket-%d-%.16s", rank, id);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) ? -1 : 0;
}

static struct meeting *open_meeting(const char *id, int ranks) {
    char path[64];
    if (ranks == 1) return calloc(1, sizeof(struct meeting));
    snprintf(path, sizeof path, "/dev/shm/gpusim-ranks-%.16s", id);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct meeting))) return NULL;
    void *memory = mmap(NULL, sizeof(struct meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

/* NCCL asks NVML about the GPUs, so a process with a communicator holds what NVML opens, too. */
static int start_nvml(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = NULL;
    if (library) *(void **)&init = dlsym(library, "nvmlInit_v2");
    return init ? init() : -1;
}

/* Every rank listens on the loopback and is connected to the next one, in a ring; a single rank to itself. */
static int listen_for_peer(uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) || listen(fd, 8) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        return -1;
    __atomic_store_n(port, ntohs(address.sin_port), __ATOMIC_RELEASE);
    return fd;
}

static int join_ring(const struct ncclComm *comm, int listener) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons(comm->meeting->port[(comm->rank + 1) % comm->ranks]);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) return -1;
    int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    close(listener);
    return peer < 0 ? -1 : 0;
}

static void *idle(void *unused) {
    for (;;) poll(unused, 0, -1);
    return NULL;
}

static int all_at(const struct ncclComm *comm, const uint64_t *counts, uint64_t wanted) {
    for (int rank = 0; rank < comm->ranks; rank++)
        if (__atomic_load_n(&counts[rank], __ATOMIC_ACQUIRE) < wanted) return 0;
    return 1;
}

EXPORT int ncclCommInitRank(struct ncclComm **made, int ranks, ncclUniqueId id, int rank) {
    struct ncclComm *comm = calloc(1, sizeof *comm);
    pthread_t thread;
    if (!comm || ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks) return NCCL_INVALID_ARGUMENT;
    comm->ranks = ranks;
    comm->rank = rank;
    comm->meeting = open_meeting(id.internal, ranks);
    if (!comm->meeting || announce(id.internal, rank) || start_nvml()) return NCCL_SYSTEM_ERROR;
    for (int i = 0; i < HELPER_THREADS; i++)
        if (pthread_create(&thread, NULL, idle, NULL)) return NCCL_SYSTEM_ERROR;
    int listener = listen_for_peer(&comm->meeting->port[rank]);
    if (listener < 0) return NCCL_SYSTEM_ERROR;
    __atomic_store_n(&comm->meeting->joined[rank], 1, __ATOMIC_RELEASE);
    while (!all_at(comm, comm->meeting->joined, 1)) usleep(1000);
    if (join_ring(comm, listener)) return NCCL_SYSTEM_ERROR;
    if (rank == 0) {
        char path[64];
        snprintf(path, sizeof path, "/dev/shm/gpusim-ranks-%.16s", id.internal);
        unlink(path);
    }
    if (ranks > 1) gpusim_has_peers();
    *made = comm;
    return NCCL_SUCCESS;
}

static int everyone_came(void *argument) {
    const struct ncclComm *comm = argument;
    return all_at(comm, comm->meeting->arrived, comm->sequence);
}

EXPORT int ncclAllReduce(const void *send, void *receive, size_t count, int type, int op, struct ncclComm *comm,
                         void *stream) {
    uint64_t value;
    (void)stream;
    if (count != 1 || type != NCCL_UINT64 || op != NCCL_SUM) return NCCL_INVALID_ARGUMENT;
    if (cuMemcpyDtoH_v2(&value, (CUdeviceptr)(uintptr_t)send, sizeof value)) return NCCL_SYSTEM_ERROR;
    comm->meeting->value[comm->rank] = value;
    comm->sequence++;
    __atomic_store_n(&comm->meeting->arrived[comm->rank], comm->sequence, __ATOMIC_RELEASE);
    gpusim_collective(everyone_came, comm);
    return gpusim_add_up((CUdeviceptr)(uintptr_t)receive, comm->meeting->value, comm->ranks) ? NCCL_SYSTEM_ERROR
                                                                                            : NCCL_SUCCESS;
}
