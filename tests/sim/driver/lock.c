/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "process.h"

#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int locked, calls;

static struct {
    unsigned long long busy_until; /* of the monotonic clock, ns */
    int (*finished)(void *);
    void *argument;
} work;

static unsigned long long clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec;
}

static unsigned long long now(void) { return clock_ns(CLOCK_MONOTONIC); }

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

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL); }

CUresult work_drain(void) {
    while (in_flight()) nap();
    return CUDA_SUCCESS;
}

static void set_locked(int value) {
    pthread_mutex_lock(&mutex);
    locked = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static int calls_in_progress(void) {
    pthread_mutex_lock(&mutex);
    int count = calls;
    pthread_mutex_unlock(&mutex);
    return count;
}

/* The calls that had entered before the lock are waited for, then the work. A caller that is killed meanwhile, or
 * whose time is over (also while the process was stopped), leaves no lock behind. */
CUresult process_lock(unsigned long long deadline, int (*wanted)(void)) {
    struct process *p = &gpusim_process;
    if (p->state != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
    if (p->mps_fd >= 0) return CUDA_ERROR_NOT_SUPPORTED;
    set_locked(1);
    for (;;) {
        if (deadline && clock_ns(CLOCK_REALTIME) >= deadline) break;
        if (!calls_in_progress() && !in_flight()) {
            p->state = CU_PROCESS_STATE_LOCKED;
            return CUDA_SUCCESS;
        }
        if (!wanted()) break;
        nap();
    }
    set_locked(0);
    return CUDA_ERROR_NOT_READY;
}

CUresult process_unlock(void) {
    struct process *p = &gpusim_process;
    if (p->state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
    p->state = CU_PROCESS_STATE_RUNNING;
    set_locked(0);
    return CUDA_SUCCESS;
}
