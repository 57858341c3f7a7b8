/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Preloaded into criu: counts the calls by which it works on other processes, and ends criu by SIGKILL at one of them.
 *
 * CRIU_KILL_AT: the number of the call, 0 for none. CRIU_KILL_WHEN: "before" it, right "after" it, or "later", when
 * what the call has set going has had 3 ms. CRIU_KILL_COUNT: a file that gets the number of calls, if criu ends by
 * itself. CRIU_KILL_BOTH: its parent as well, first. Children of criu are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static long count, at;
static pid_t self;
static const char *when = "before";

__attribute__((constructor)) static void begin(void)
{
	const char *text = getenv("CRIU_KILL_AT");
	at = text ? atol(text) : 0;
	if (getenv("CRIU_KILL_WHEN"))
		when = getenv("CRIU_KILL_WHEN");
	self = getpid();
	unsetenv("LD_PRELOAD");
}

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("CRIU_KILL_COUNT");
	FILE *file = self == getpid() && path ? fopen(path, "w") : NULL;
	if (file) {
		fprintf(file, "%ld\n", count);
		fclose(file);
	}
}

static void die(void)
{
	if (getenv("CRIU_KILL_BOTH"))
		kill(getppid(), SIGKILL);
	kill(self, SIGKILL);
	for (;;)
		pause();
}

static long enter(void)
{
	if (self != getpid())
		return 0;
	if (++count == at && !strcmp(when, "before"))
		die();
	return count;
}

static long leave(long number, long result)
{
	if (!number || number != at)
		return result;
	if (!strcmp(when, "later"))
		usleep(3000);
	die();
	return result;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define COUNTED(type, name, parameters, arguments)                   \
	type name parameters                                         \
	{                                                            \
		static __typeof__(&name) real;                       \
		long number = enter();                               \
		if (!real)                                           \
			real = REAL(name);                           \
		return leave(number, real arguments);                \
	}

long ptrace(enum __ptrace_request request, ...)
{
	static long (*real)(enum __ptrace_request, ...);
	long number = enter();
	va_list more;
	va_start(more, request);
	pid_t pid = va_arg(more, pid_t);
	void *address = va_arg(more, void *), *data = va_arg(more, void *);
	va_end(more);
	if (!real)
		real = dlsym(RTLD_NEXT, "ptrace");
	return leave(number, real(request, pid, address, data));
}

COUNTED(pid_t, wait4, (pid_t pid, int *status, int options, struct rusage *usage), (pid, status, options, usage))
COUNTED(int, accept, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
COUNTED(ssize_t, send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags))
COUNTED(ssize_t, recv, (int fd, void *data, size_t size, int flags), (fd, data, size, flags))
COUNTED(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
COUNTED(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
COUNTED(ssize_t, splice, (int in, off64_t *in_at, int out, off64_t *out_at, size_t size, unsigned flags),
	(in, in_at, out, out_at, size, flags))
