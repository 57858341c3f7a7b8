/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Something to hold: threads that count, and a "restore thread" that does what it is told through
 * standard input. What happens is written to a shared file. A thread that counts while the state is "checkpointed"
 * would have touched memory that is not there: it is noted as a violation.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHECKPOINTED = 2, SLOTS = 4096, COUNTERS = 1024, HANDLED = 64, HANDLED_BY = 192 };
enum { READY, RESTORE_TID, STATE, VIOLATIONS, CREATED, CREATED_SUM, BUSY, PID, READS, GATE };

static volatile uint64_t *shared;
static int counting, spinning, other_mask, uninterruptible;

static void add(int slot, uint64_t value) { __atomic_fetch_add(&shared[slot], value, __ATOMIC_SEQ_CST); }

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time) && errno == EINTR) {}
}

static void *count(void *slot) {
    volatile uint64_t *own = &shared[(intptr_t)slot];
    for (;;) {
        if (shared[STATE] == CHECKPOINTED) add(VIOLATIONS, 1);
        ++*own;
        if (!spinning) usleep(500);
    }
    return NULL;
}

static void *brief(void *unused) {
    (void)unused;
    if (shared[STATE] == CHECKPOINTED) add(VIOLATIONS, 1);
    return NULL;
}

static void *storm(void *slot) {
    for (;;) {
        pthread_t thread;
        if (shared[STATE] == CHECKPOINTED) add(VIOLATIONS, 1);
        if (!pthread_create(&thread, NULL, brief, NULL)) pthread_join(thread, NULL);
        ++shared[(intptr_t)slot];
        usleep(100);
    }
    return NULL;
}

static void *fork_and_wait(void *ms) {
    sleep_ms(50);
    if (!vfork()) {
        usleep((useconds_t)(intptr_t)ms * 1000);
        _exit(0);
    }
    wait(NULL);
    return NULL;
}

static void *created(void *forever) {
    add(CREATED, 1);
    for (int i = 0; i < 20 || forever; ++i) {
        add(CREATED_SUM, 1);
        sleep_ms(1);
    }
    return NULL;
}

static void handler(int number) {
    add(HANDLED + number, 1);
    shared[HANDLED_BY + number] = (uint64_t)gettid();
}

/* In small pieces of work and sleep, so that there is always a place to be interrupted; until the gate is open. */
static void copy(long pieces) {
    do {
        add(BUSY, 1);
        if (other_mask) {
            /* with signals unblocked for the time being, as some event loops do it */
            struct timespec a_moment = {0, 1000000};
            sigset_t none;
            sigemptyset(&none);
            ppoll(NULL, 0, &a_moment, &none);
        } else if (uninterruptible) {
            pid_t child = vfork();
            if (!child) {
                usleep(150000);
                _exit(0);
            }
            waitpid(child, NULL, 0);
        } else
            sleep_ms(1);
    } while (--pieces > 0 || !shared[GATE]);
}

static void start_threads(int many, int forever) {
    pthread_t threads[64];
    for (int i = 0; i < many; ++i) pthread_create(&threads[i], NULL, created, forever ? &shared : NULL);
    for (int i = 0; i < many && !forever; ++i) pthread_join(threads[i], NULL);
}

static void *restore(void *unused) {
    (void)unused;
    char line[128], reply[128];
    shared[RESTORE_TID] = (uint64_t)gettid();
    for (;;) {
        int id = 0, length = 0;
        char what = 0;
        long argument = 0;
        while (length < (int)sizeof line - 1) {
            ssize_t got = read(0, line + length, 1);
            add(READS, 1);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) pause();
            if (line[length++] == '\n') break;
        }
        line[length] = 0;
        sscanf(line, "%d %c %ld", &id, &what, &argument);
        switch (what) {
            case 'c': copy(argument); shared[STATE] = CHECKPOINTED; break;
            case 'r': copy(argument); shared[STATE] = 1; break;
            case 'u': shared[STATE] = 0; break;
            case 'l': shared[STATE] = 1; break;
            case 't': start_threads((int)argument, 0); shared[STATE] = CHECKPOINTED; break;
            case 'T': start_threads((int)argument, 1); shared[STATE] = CHECKPOINTED; break;
            case 'd': raise(SIGSEGV); break;
            case 'e': pthread_exit(NULL);
            case 'x': _exit((int)argument);
            default: break;
        }
        snprintf(reply, sizeof reply, "%d %ld\n", id, (long)shared[STATE]);
        if (write(1, reply, strlen(reply)) < 0) pause();
    }
    return NULL;
}

static void start(void *(*work)(void *), intptr_t argument) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    if (pthread_create(&thread, &attributes, work, (void *)argument)) exit(71);
}

/* target FILE THREADS [spin] [storm N] [vfork MS] [handlers] [exit-main] [mask SIGNAL] [ppoll] [uninterruptible] [alone] */
int main(int argc, char **argv) {
    int file = open(argv[1], O_RDWR), leave = 0, alone = 0;
    shared = mmap(NULL, SLOTS * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED || nice(5) < -1) return 70;
    /* before any of them starts */
    for (int i = 3; i < argc; ++i)
        if (!strcmp(argv[i], "spin")) spinning = 1;
    shared[GATE] = 1;
    shared[PID] = (uint64_t)getpid();
    counting = atoi(argv[2]);
    for (int i = 0; i < counting; ++i) start(count, COUNTERS + i);
    for (int i = 3; i < argc; ++i) {
        if (!strcmp(argv[i], "storm"))
            for (int n = atoi(argv[++i]); n > 0; --n) start(storm, COUNTERS + counting++);
        else if (!strcmp(argv[i], "vfork"))
            start(fork_and_wait, atoi(argv[++i]));
        else if (!strcmp(argv[i], "handlers")) {
            int numbers[] = {SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGRTMIN + 1};
            for (size_t n = 0; n < sizeof numbers / sizeof *numbers; ++n) {
                struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
                sigaction(numbers[n], &action, NULL);
            }
        } else if (!strcmp(argv[i], "mask")) {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, atoi(argv[++i]));
            pthread_sigmask(SIG_BLOCK, &set, NULL);
        } else if (!strcmp(argv[i], "ppoll"))
            other_mask = 1;
        else if (!strcmp(argv[i], "uninterruptible"))
            uninterruptible = 1;
        else if (!strcmp(argv[i], "exit-main"))
            leave = 1;
        else if (!strcmp(argv[i], "alone"))
            alone = 1;
    }
    if (alone) {
        shared[READY] = 1;
        restore(NULL);
    }
    start(restore, 0);
    while (!shared[RESTORE_TID]) sleep_ms(1);
    shared[READY] = 1;
    if (leave) pthread_exit(NULL);
    for (;;) pause();
}
