/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * usage: victim FILE [handler]
 * Two processes with two threads each that notice whatever is changed in them: each thread counts in a file of its own
 * (FILE.0 to FILE.3), and ends its process when a register, its signal mask, a byte of its memory or a timer is not
 * what it has to be. In both, one thread executes instructions nearly all the time and one waits in the kernel. With
 * "handler" they have one for SIGTRAP, which writes to FILE.4 and FILE.6. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BYTES (1 << 20)
static uint64_t memory[BYTES / 8];
static const char *name;
static timer_t timer;

static void fail(const char *what)
{
	char text[256];
	int size = snprintf(text, sizeof text, "%d: %s\n", getpid(), what);
	if (write(2, text, size) != size)
		_exit(98);
	_exit(99);
}

static int trap_file;

static void trapped(int number)
{
	(void)number;
	if (write(trap_file, "t", 1) != 1)
		fail("SIGTRAP");
}

static int out(int index)
{
	char path[256];
	snprintf(path, sizeof path, "%s.%d", name, index);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		fail(path);
	return fd;
}

static void check(int fd, const sigset_t *mask)
{
	sigset_t now;
	struct itimerspec left;
	struct itimerval real;
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	if (memcmp(&now, mask, 8))
		fail("signal mask");
	for (uint64_t i = 0; i < BYTES / 8; i++)
		if (memory[i] != i * 0x9E3779B97F4A7C15u)
			fail("memory");
	if (timer_gettime(timer, &left) || left.it_value.tv_sec < 80000)
		fail("timer");
	if (getitimer(ITIMER_REAL, &real) || real.it_value.tv_sec < 80000)
		fail("interval timer");
	if (write(fd, "x", 1) != 1)
		fail("file");
}

/* All general registers but the stack's, and a vector register, keep their values over a long loop. */
static void registers(void)
{
	uint64_t sum = 0, rounds = 200000;
	__m128i vector = _mm_set_epi64x(0x1122334455667788, 0x99AABBCCDDEEFF00), seen;
	__asm__ volatile("movdqa %[vector], %%xmm7\n mov $3, %%rbx\n mov $5, %%r8\n mov $7, %%r9\n mov $11, %%r10\n"
			 "mov $13, %%r11\n mov $17, %%r12\n mov $19, %%r13\n mov $23, %%r14\n mov $29, %%r15\n"
			 "mov $31, %%rdx\n mov $37, %%rsi\n mov $41, %%rdi\n"
			 "1: dec %[rounds]\n jnz 1b\n"
			 "movdqa %%xmm7, %[seen]\n lea (%%rbx,%%r8), %[sum]\n add %%r9, %[sum]\n add %%r10, %[sum]\n"
			 "add %%r11, %[sum]\n add %%r12, %[sum]\n add %%r13, %[sum]\n add %%r14, %[sum]\n"
			 "add %%r15, %[sum]\n add %%rdx, %[sum]\n add %%rsi, %[sum]\n add %%rdi, %[sum]\n"
			 : [sum] "=&a"(sum), [rounds] "+c"(rounds), [seen] "=m"(seen)
			 : [vector] "m"(vector)
			 : "xmm7", "rbx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdx", "rsi", "rdi", "cc");
	if (sum != 3 + 5 + 7 + 11 + 13 + 17 + 19 + 23 + 29 + 31 + 37 + 41 || rounds)
		fail("registers");
	if (memcmp(&seen, &vector, sizeof seen))
		fail("vector register");
}

static void *waiting(void *data)
{
	int fd = out((int)(intptr_t)data);
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	sigaddset(&mask, SIGWINCH);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	for (;;) {
		struct timespec pause = { 0, 20000000 }, begun, ended;
		clock_gettime(CLOCK_MONOTONIC, &begun);
		while (nanosleep(&pause, &pause))
			;
		clock_gettime(CLOCK_MONOTONIC, &ended);
		if ((ended.tv_sec - begun.tv_sec) * 1000000000L + ended.tv_nsec - begun.tv_nsec < 20000000)
			fail("nanosleep");
		check(fd, &mask);
	}
	return NULL;
}

int main(int count, char **words)
{
	struct sigevent nothing = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec day = { .it_value = { 86400, 0 } };
	struct itimerval real = { .it_value = { 86400, 0 } };
	pthread_t thread;
	sigset_t mask;
	name = count > 1 ? words[1] : "victim";
	for (uint64_t i = 0; i < BYTES / 8; i++)
		memory[i] = i * 0x9E3779B97F4A7C15u;
	int first = fork() ? 0 : 2;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (count > 2) {
		struct sigaction action = { .sa_handler = trapped, .sa_flags = SA_NODEFER };
		trap_file = out(first + 4);
		if (sigaction(SIGTRAP, &action, NULL))
			fail("sigaction");
	}
	if (timer_create(CLOCK_MONOTONIC, &nothing, &timer) || timer_settime(timer, 0, &day, NULL) ||
	    setitimer(ITIMER_REAL, &real, NULL))
		fail("timers");
	int fd = out(first);
	if (pthread_create(&thread, NULL, waiting, (void *)(intptr_t)(first + 1)))
		fail("thread");
	for (int round = 0;; round++) {
		registers();
		if (round % 16 == 0)
			check(fd, &mask);
		if (round % 64 == 0)
			usleep(1000);
	}
}
