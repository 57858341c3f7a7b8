/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The table that nvidia-smi prints without arguments, as driver 580 lays it out.
 */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define COLUMNS "+-----------------------------------------+------------------------+----------------------+\n"
#define FULL "+-----------------------------------------------------------------------------------------+\n"

static const char *units(char *to, size_t room, long long value, const char *unit) {
    if (value < 0)
        snprintf(to, room, "N/A");
    else
        snprintf(to, room, "%lld%s", value, unit);
    return to;
}
#define UNITS(value, unit) units((char[24]){0}, 24, value, unit)
#define WORD(value, off, on) ((value) < 0 ? "N/A" : (value) ? (on) : (off))

static const char *compute_mode(long long mode) {
    static const char *const modes[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
    return mode >= 0 && mode < 4 ? modes[mode] : "N/A";
}

static void print_head(const struct smi_host *host) {
    char date[32], cuda[16];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%a %b %e %H:%M:%S %Y", localtime(&now));
    snprintf(cuda, sizeof cuda, "%d.%d", host->cuda / 1000, host->cuda % 1000 / 10);
    printf("%-31s\n" FULL, date);
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n" COLUMNS, host->driver, host->driver, cuda);
    printf("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
           "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
           "|                                         |                        |               MIG M. |\n"
           "|=========================================+========================+======================|\n");
}

static void print_gpu(const struct smi_gpu *gpu) {
    const long long watts = gpu->milliwatts < 0 ? -1 : gpu->milliwatts / 1000;
    const long long limit = gpu->milliwatts_limit < 0 ? -1 : gpu->milliwatts_limit / 1000;
    char state[24];
    snprintf(state, sizeof state, gpu->state < 0 ? "N/A" : "P%lld", gpu->state);
    printf("| %3u  %-30.30s %-3s | %18s %3s | %20s |\n", gpu->index, gpu->name, WORD(gpu->persistence, "Off", "On"),
           gpu->pci.bus_id, WORD(gpu->display, "Off", "On"), "N/A");
    printf("| %3s  %4s %5s  %14s / %5s | %10s / %9s | %7s %12s |\n", UNITS(gpu->fan, "%"),
           UNITS(gpu->temperature, "C"), state, UNITS(watts, "W"),
           limit < 0 ? " N/A " : UNITS(limit, "W"),
           UNITS((long long)(gpu->memory.used >> SMI_MIB_SHIFT), "MiB"),
           UNITS((long long)(gpu->memory.total >> SMI_MIB_SHIFT), "MiB"), UNITS(gpu->utilization, "%"),
           compute_mode(gpu->compute_mode));
    printf("| %39s | %22s | %20s |\n" COLUMNS, "", "", WORD(gpu->mig, "Disabled", "Enabled"));
}

/* Of a long name the end is shown. */
static void print_process(unsigned int gpu, const nvmlProcessInfo_t *process) {
    enum { ROOM = 32 };
    char name[SMI_NAME_ROOM], shown[ROOM + 1];
    smi_process_name(process->pid, name, sizeof name);
    size_t length = strlen(name);
    if (length > ROOM)
        snprintf(shown, sizeof shown, "...%s", name + length - (ROOM - 3));
    else
        memcpy(shown, name, length + 1);
    printf("| %4u   N/A  N/A %15u      C   %-36s %9s |\n", gpu, process->pid, shown,
           UNITS((long long)(process->used >> SMI_MIB_SHIFT), "MiB"));
}

void smi_table(const struct smi_host *host) {
    unsigned int shown = 0;
    print_head(host);
    for (unsigned int i = 0; i < host->count; i++) print_gpu(&host->gpus[i]);
    printf("\n" FULL
           "| Processes:                                                                              |\n"
           "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
           "|        ID   ID                                                               Usage      |\n"
           "|=========================================================================================|\n");
    for (unsigned int i = 0; i < host->count; i++)
        for (unsigned int k = 0; k < host->gpus[i].process_count; k++, shown++)
            print_process(host->gpus[i].index, &host->gpus[i].processes[k]);
    if (!shown)
        printf("|  No running processes found                                                             |\n");
    printf(FULL);
}
