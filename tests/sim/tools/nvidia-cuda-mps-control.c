/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * nvidia-cuda-mps-control: "-d" starts the daemon and its server; commands come on standard input.
 */
#define _GNU_SOURCE
#include "vram.h"

#include "host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_un address = {.sun_family = AF_UNIX};

static int connected(void) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address)) return fd;
    close(fd);
    return -1;
}

/* The server owns a context on every GPU, under its own name. */
static pid_t start_server(void) {
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl("/proc/self/exe", "nvidia-cuda-mps-server", "--server", (char *)NULL);
    _exit(1);
}

static _Noreturn void be_server(void) {
    for (int gpu = 0; gpu < gpusim_host()->gpu_count; gpu++) {
        struct vram vram;
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", gpu);
        if (open(path, O_RDWR) < 0 || vram_allocate(gpu, gpusim_host()->context_bytes, &vram)) _exit(1);
    }
    for (;;) pause();
}

static _Noreturn void serve(int listener) {
    struct pollfd fds[256] = {{listener, POLLIN, 0}};
    int count = 1;
    pid_t server = start_server();
    for (;;) {
        poll(fds, (nfds_t)count, -1);
        for (int i = count - 1; i > 0; i--) {
            char command[256];
            if (!fds[i].revents) continue;
            ssize_t got = recv(fds[i].fd, command, sizeof command - 1, 0);
            if (got > 0 && !strncmp(command, "quit", 4)) {
                kill(server, SIGKILL);
                unlink(address.sun_path);
                exit(0);
            }
            if (got > 0 && !strncmp(command, "get_server_list", 15)) {
                int length = snprintf(command, sizeof command, "%d\n", server);
                send(fds[i].fd, command, (size_t)length, MSG_NOSIGNAL);
            } else if (got <= 0) {
                close(fds[i].fd);
                fds[i] = fds[--count];
            }
        }
        if (fds[0].revents && count < 256) fds[count++] = (struct pollfd){accept4(listener, NULL, NULL, SOCK_CLOEXEC), POLLIN, 0};
    }
}

static int start_daemon(const char *directory) {
    int fd = connected();
    if (fd >= 0) {
        fprintf(stderr, "An instance of this daemon is already running\n");
        return 1;
    }
    if (!gpusim_host()) {
        fprintf(stderr, "nvidia-cuda-mps-control: no GPU\n");
        return 1;
    }
    mkdir(directory, 0755);
    unlink(address.sun_path);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64)) {
        fprintf(stderr, "nvidia-cuda-mps-control: %s: %m\n", address.sun_path);
        return 1;
    }
    chmod(address.sun_path, 0666);
    if (daemon(0, 0)) return 1;
    serve(listener);
}

int main(int argc, char **argv) {
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char line[256];
    if (!directory) directory = "/tmp/nvidia-mps";
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/control", directory);
    if (argc == 2 && !strcmp(argv[1], "--server")) be_server();
    if (argc == 2 && !strcmp(argv[1], "-d")) return start_daemon(directory);
    int fd = connected();
    if (fd < 0) {
        fprintf(stderr, "Cannot find MPS control daemon process\n");
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        send(fd, line, strlen(line), MSG_NOSIGNAL);
        if (strncmp(line, "get_server_list", 15)) continue;
        ssize_t got = recv(fd, line, sizeof line - 1, 0);
        if (got > 0) fwrite(line, 1, (size_t)got, stdout);
    }
    return 0;
}
