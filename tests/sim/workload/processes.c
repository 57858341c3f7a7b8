/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
#include "workload.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t fork_bound(void) {
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) fail(3, "fork: %m");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(3);
    }
    return pid;
}

static void encode_handle(const void *handle, size_t bytes, char *text) {
    for (size_t i = 0; i < bytes; i++) sprintf(text + 2 * i, "%02x", ((const unsigned char *)handle)[i]);
}

void decode_handle(const char *text, void *handle, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        unsigned int byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1) fail(2, "--handle: not a handle of %zu bytes", bytes);
        ((unsigned char *)handle)[i] = (unsigned char)byte;
    }
}

void start_sibling(const struct options *options, const char *suffix, int gpu, int rank, const void *handle,
                   size_t handle_bytes) {
    char out[4096], text[257], vram[32], gpu_text[16], rank_text[16], ranks[16];
    snprintf(out, sizeof out, "%s.%s", options->out, suffix);
    snprintf(vram, sizeof vram, "%zu", options->vram_mib);
    snprintf(gpu_text, sizeof gpu_text, "%d", gpu);
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(ranks, sizeof ranks, "%d", options->ranks);
    encode_handle(handle, handle_bytes, text);
    if (fork_bound() == 0) {
        execl("/proc/self/exe", "gpusim-workload", "--kind", options->kind, "--vram", vram, "--out", out, "--gpu",
              gpu_text, "--ranks", ranks, "--rank", rank_text, "--handle", text, (char *)NULL);
        fail(3, "/proc/self/exe: %m");
    }
}

void start_plain_child(const struct options *options) {
    if (fork_bound() == 0) {
        char out[4096];
        struct report report;
        snprintf(out, sizeof out, "%s.child", options->out);
        report_open(&report, out);
        for (unsigned long long counter = 1;; counter++) {
            report_counter(&report, counter);
            usleep(20000);
        }
    }
}

void connect_to_mps(void) {
    char control[4096];
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!directory) directory = "/tmp/nvidia-mps";
    snprintf(control, sizeof control, "%s/control", directory);
    if (access(control, F_OK) == 0) return;
    pid_t pid = fork();
    if (pid < 0) fail(3, "fork: %m");
    if (pid == 0) {
        execlp("nvidia-cuda-mps-control", "nvidia-cuda-mps-control", "-d", (char *)NULL);
        fail(3, "nvidia-cuda-mps-control: %m");
    }
    int status;
    if (waitpid(pid, &status, 0) != pid || status) fail(3, "nvidia-cuda-mps-control -d ended with status %#x", status);
    for (int i = 0; i < 500 && access(control, F_OK); i++) usleep(20000);
}
