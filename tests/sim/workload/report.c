/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
#include "workload.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void write_file(const char *path, const char *text) {
    char temporary[4096 + 16];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) fail(3, "%s: %m", temporary);
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text)) fail(3, "%s: %m", temporary);
    close(fd);
    if (rename(temporary, path)) fail(3, "%s: %m", path);
}

void report_open(struct report *report, const char *out) {
    char path[4096 + 8], pid[32];
    if (snprintf(report->counter_path, sizeof report->counter_path, "%s", out) >= 4000) fail(2, "--out: too long");
    snprintf(report->verify_path, sizeof report->verify_path, "%s.verify", out);
    snprintf(report->sum_path, sizeof report->sum_path, "%s.sum", out);
    unlink(report->verify_path);
    unlink(report->sum_path);
    snprintf(path, sizeof path, "%s.pid", out);
    snprintf(pid, sizeof pid, "%d\n", getpid());
    write_file(path, pid);
    report->counter_fd = open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (report->counter_fd < 0) fail(3, "%s: %m", out);
}

void report_counter(struct report *report, unsigned long long counter) {
    char text[32];
    int n = snprintf(text, sizeof text, "%llu\n", counter);
    if (lseek(report->counter_fd, 0, SEEK_SET) < 0 || write(report->counter_fd, text, n) != n)
        fail(3, "%s: %m", report->counter_path);
}

int report_sum_wanted(const struct report *report) { return access(report->verify_path, F_OK) == 0; }

void report_sum(const struct report *report, unsigned long long sum) {
    char text[32];
    snprintf(text, sizeof text, "%016llx\n", sum);
    write_file(report->sum_path, text);
    unlink(report->verify_path);
}
