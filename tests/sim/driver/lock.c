/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int locked, calls;

static struct {
    unsigned long long busy_until; /* of the monotonic clock, ns */
    int (*finished)(void *);
    void *argument;
} work;

static unsigned long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec;
}

void api_enter(void) {
    pthread_mutex_lock(&mutex);
    while (locked) pthread_cond_wait(&changed, &mutex);
    calls++;
    pthread_mutex_unlock(&mutex);
}

void api_leave(void) {
    pthread_mutex_lock(&mutex);
    calls--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void work_spin(unsigned long long ns) {
    unsigned long long start = now();
    if (work.busy_until > start) start = work.busy_until;
    work.busy_until = start + ns;
}

void work_collective(int (*finished)(void *), void *argument) {
    work.finished = finished;
    work.argument = argument;
}

static int in_flight(void) { return now() < work.busy_until || (work.finished && !work.finished(work.argument)); }

CUresult work_drain(unsigned int timeout_ms) {
    unsigned long long deadline = now() + timeout_ms * 1000000ull;
    while (in_flight()) {
        if (timeout_ms && now() >= deadline) return CUDA_ERROR_NOT_READY;
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    return CUDA_SUCCESS;
}

static void set_locked(int value) {
    pthread_mutex_lock(&mutex);
    locked = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* Waits for the calls that had entered before the lock. */
static CUresult calls_drain(unsigned int timeout_ms) {
    struct timespec deadline;
    int result = 0;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += (timeout_ms % 1000) * 1000000l;
    if (deadline.tv_nsec >= 1000000000l) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000l;
    }
    pthread_mutex_lock(&mutex);
    while (calls && result != ETIMEDOUT)
        result = timeout_ms ? pthread_cond_timedwait(&changed, &mutex, &deadline)
                            : pthread_cond_wait(&changed, &mutex);
    result = calls ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult process_lock(unsigned int timeout_ms) {
    struct process *p = &gpusim_process;
    if (p->state != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
    if (p->mps_fd >= 0) return CUDA_ERROR_NOT_SUPPORTED;
    set_locked(1);
    unsigned long long start = now();
    CUresult result = calls_drain(timeout_ms);
    if (!result && timeout_ms) {
        unsigned long long spent = (now() - start) / 1000000ull;
        result = work_drain(spent < timeout_ms ? timeout_ms - (unsigned int)spent : 1);
    } else if (!result)
        result = work_drain(0);
    if (result)
        set_locked(0);
    else
        p->state = CU_PROCESS_STATE_LOCKED;
    return result;
}

CUresult process_unlock(void) {
    struct process *p = &gpusim_process;
    if (p->state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
    p->state = CU_PROCESS_STATE_RUNNING;
    set_locked(0);
    return CUDA_SUCCESS;
}
