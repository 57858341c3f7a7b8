// Copyright (c) 2026, gpufleet contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
// Preloaded: a thread that reports to systemd every 0.3 s, as a service with WatchdogSec= has one. It says that it is
// ready unless REPORTER_NOT_READY is set.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void *report(void *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    const char *words = getenv("REPORTER_NOT_READY") ? "STATUS=starting" : "READY=1";
    for (;; words = "WATCHDOG=1") {
        int one = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        sendto(one, words, strlen(words), 0, (struct sockaddr *)&address, sizeof address);
        close(one);
        usleep(300000);
    }
    return NULL;
}

__attribute__((constructor)) static void begin(void)
{
    static pthread_t thread;
    char *path = getenv("NOTIFY_SOCKET");
    if (path)
        pthread_create(&thread, NULL, report, path);
}
