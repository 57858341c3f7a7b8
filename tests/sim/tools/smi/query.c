/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

struct row {
    const struct smi_host *host;
    const struct smi_gpu *gpu;
    const nvmlProcessInfo_t *process;
};

struct field {
    const char *name, *other_name, *unit;
    void (*put)(const struct row *row, char *to, size_t room);
};

#define PUT(name, ...) \
    static void name(const struct row *row, char *to, size_t room) { snprintf(to, room, __VA_ARGS__); }
PUT(put_count, "%u", row->host->attached)
PUT(put_driver, "%s", row->host->driver)
PUT(put_index, "%u", row->gpu->index)
PUT(put_name, "%s", row->gpu->name)
PUT(put_uuid, "%s", row->gpu->uuid)
PUT(put_bus_id, "%s", row->gpu->pci.bus_id)
PUT(put_total, "%llu", row->gpu->memory.total >> SMI_MIB_SHIFT)
PUT(put_used, "%llu", row->gpu->memory.used >> SMI_MIB_SHIFT)
PUT(put_free, "%llu", row->gpu->memory.free >> SMI_MIB_SHIFT)
PUT(put_pid, "%u", row->process->pid)
PUT(put_process_used, "%llu", row->process->used >> SMI_MIB_SHIFT)

#define NUMBER(name, value, ...)                                       \
    static void name(const struct row *row, char *to, size_t room) {   \
        if ((value) < 0)                                               \
            snprintf(to, room, "[N/A]");                               \
        else                                                           \
            snprintf(to, room, __VA_ARGS__);                           \
    }
#define ON(value) ((value) ? "Enabled" : "Disabled")
NUMBER(put_utilization, row->gpu->utilization, "%lld", row->gpu->utilization)
NUMBER(put_memory_utilization, row->gpu->memory_utilization, "%lld", row->gpu->memory_utilization)
NUMBER(put_temperature, row->gpu->temperature, "%lld", row->gpu->temperature)
NUMBER(put_fan, row->gpu->fan, "%lld", row->gpu->fan)
NUMBER(put_state, row->gpu->state, "P%lld", row->gpu->state)
NUMBER(put_power, row->gpu->milliwatts, "%.2f", (double)row->gpu->milliwatts / 1000)
NUMBER(put_power_limit, row->gpu->milliwatts_limit, "%.2f", (double)row->gpu->milliwatts_limit / 1000)
NUMBER(put_persistence, row->gpu->persistence, "%s", ON(row->gpu->persistence))
NUMBER(put_mig, row->gpu->mig, "%s", ON(row->gpu->mig))
NUMBER(put_mig_pending, row->gpu->mig_pending, "%s", ON(row->gpu->mig_pending))
NUMBER(put_display, row->gpu->display, "%s", ON(row->gpu->display))
NUMBER(put_capability, row->gpu->capability_major, "%lld.%lld", row->gpu->capability_major, row->gpu->capability_minor)

static void put_compute_mode(const struct row *row, char *to, size_t room) {
    static const char *const modes[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    long long mode = row->gpu->compute_mode;
    snprintf(to, room, "%s", mode >= 0 && mode < 4 ? modes[mode] : "[N/A]");
}

static void put_process_name(const struct row *row, char *to, size_t room) {
    smi_process_name(row->process->pid, to, room);
}

static void put_timestamp(const struct row *row, char *to, size_t room) {
    char day[32];
    struct timeval now;
    (void)row;
    gettimeofday(&now, NULL);
    strftime(day, sizeof day, "%Y/%m/%d %H:%M:%S", localtime(&now.tv_sec));
    snprintf(to, room, "%s.%03d", day, (int)(now.tv_usec / 1000));
}

static const struct field gpu_fields[] = {
    {"timestamp", NULL, NULL, put_timestamp},
    {"driver_version", NULL, NULL, put_driver},
    {"count", NULL, NULL, put_count},
    {"name", "gpu_name", NULL, put_name},
    {"uuid", "gpu_uuid", NULL, put_uuid},
    {"pci.bus_id", "gpu_bus_id", NULL, put_bus_id},
    {"index", NULL, NULL, put_index},
    {"persistence_mode", NULL, NULL, put_persistence},
    {"mig.mode.current", NULL, NULL, put_mig},
    {"mig.mode.pending", NULL, NULL, put_mig_pending},
    {"compute_mode", NULL, NULL, put_compute_mode},
    {"compute_cap", NULL, NULL, put_capability},
    {"display_active", NULL, NULL, put_display},
    {"pstate", NULL, NULL, put_state},
    {"memory.total", NULL, "MiB", put_total},
    {"memory.used", NULL, "MiB", put_used},
    {"memory.free", NULL, "MiB", put_free},
    {"utilization.gpu", NULL, "%", put_utilization},
    {"utilization.memory", NULL, "%", put_memory_utilization},
    {"temperature.gpu", NULL, NULL, put_temperature},
    {"power.draw", NULL, "W", put_power},
    {"power.limit", NULL, "W", put_power_limit},
    {"fan.speed", NULL, "%", put_fan},
    {0},
};

static const struct field app_fields[] = {
    {"timestamp", NULL, NULL, put_timestamp},
    {"gpu_name", NULL, NULL, put_name},
    {"gpu_bus_id", NULL, NULL, put_bus_id},
    {"gpu_uuid", NULL, NULL, put_uuid},
    {"pid", NULL, NULL, put_pid},
    {"process_name", "name", NULL, put_process_name},
    {"used_gpu_memory", "used_memory", "MiB", put_process_used},
    {0},
};

enum { MAX_FIELDS = 64 };
static const struct field *asked[MAX_FIELDS];
static int asked_count, with_header = 1, with_units = 1;

static const struct field *find(const struct field *fields, const char *name) {
    for (; fields->name; fields++)
        if (!strcmp(fields->name, name) || (fields->other_name && !strcmp(fields->other_name, name))) return fields;
    return NULL;
}

static int check_fields(const struct smi_options *options) {
    char list[4096], *rest = list, *name;
    snprintf(list, sizeof list, "%s", options->fields);
    while ((name = strsep(&rest, ","))) {
        name += strspn(name, " ");
        const struct field *field = find(options->mode == SMI_QUERY_APPS ? app_fields : gpu_fields, name);
        if (!field || asked_count == MAX_FIELDS) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return 2;
        }
        asked[asked_count++] = field;
    }
    return 0;
}

static int check_format(const char *format) {
    char list[256], *rest = list, *word;
    int csv = 0;
    snprintf(list, sizeof list, "%s", format ? format : "");
    while ((word = strsep(&rest, ","))) {
        word += strspn(word, " ");
        if (!strcmp(word, "csv"))
            csv = 1;
        else if (!strcmp(word, "noheader"))
            with_header = 0;
        else if (!strcmp(word, "nounits"))
            with_units = 0;
        else if (*word) {
            fprintf(stderr, "nvidia-smi: --format: \"%s\" is not known; csv, noheader and nounits are\n", word);
            return 2;
        }
    }
    if (!csv) fprintf(stderr, "nvidia-smi: a query needs --format=csv[,noheader][,nounits]\n");
    return csv ? 0 : 2;
}

int smi_query_check(const struct smi_options *options) {
    int status = check_format(options->format);
    return status ? status : check_fields(options);
}

static void print_row(const struct row *row) {
    for (int i = 0; i < asked_count; i++) {
        char value[SMI_NAME_ROOM];
        asked[i]->put(row, value, sizeof value);
        int unit = with_units && asked[i]->unit && value[0] != '[';
        printf("%s%s%s%s", i ? ", " : "", value, unit ? " " : "", unit ? asked[i]->unit : "");
    }
    putchar('\n');
}

static void print_header(void) {
    for (int i = 0; i < asked_count; i++) {
        printf("%s%s", i ? ", " : "", asked[i]->name);
        if (asked[i]->unit) printf(" [%s]", asked[i]->unit);
    }
    putchar('\n');
}

void smi_query(const struct smi_options *options, const struct smi_host *host) {
    if (with_header) print_header();
    for (unsigned int i = 0; i < host->count; i++) {
        struct row row = {host, &host->gpus[i], NULL};
        if (options->mode == SMI_QUERY_GPU) print_row(&row);
        for (unsigned int k = 0; options->mode == SMI_QUERY_APPS && k < row.gpu->process_count; k++) {
            row.process = &row.gpu->processes[k];
            print_row(&row);
        }
    }
}

static void print_names(const char *title, const struct field *fields) {
    printf("\n%s\n", title);
    for (; fields->name; fields++)
        printf(fields->other_name ? "    %s or %s\n" : "    %s\n", fields->name, fields->other_name);
}

void smi_query_help(void) {
    print_names("Fields of --query-gpu:", gpu_fields);
    print_names("Fields of --query-compute-apps:", app_fields);
}
