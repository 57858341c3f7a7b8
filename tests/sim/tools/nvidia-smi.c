/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * nvidia-smi, as much of it as tools and operators use to look at GPUs. It changes nothing.
 */
#include "smi/smi.h"

#include <stdio.h>
#include <string.h>

static const struct option {
    const char *name, *other_name;
    int takes_value;
} options_known[] = {
    {"-L", "--list-gpus", 0},   {"-i", "--id", 1},
    {"-h", "--help", 0},        {"--query-gpu", NULL, 1},
    {"--query-compute-apps", NULL, 1}, {"--format", NULL, 1},
};
enum { LIST, ID, HELP, QUERY_GPU, QUERY_APPS, FORMAT, UNKNOWN };

static int which(const char *argument, size_t length) {
    for (int i = 0; i < UNKNOWN; i++) {
        const char *names[] = {options_known[i].name, options_known[i].other_name};
        for (int k = 0; k < 2; k++)
            if (names[k] && strlen(names[k]) == length && !strncmp(names[k], argument, length)) return i;
    }
    return UNKNOWN;
}

static int refuse(const char *argument, const char *why) {
    fprintf(stderr, "nvidia-smi: %s: %s. Run 'nvidia-smi -h' for what is simulated.\n", argument, why);
    return 2;
}

static int set(struct smi_options *options, int option, const char *value) {
    static const int modes[] = {
        [LIST] = SMI_LIST, [HELP] = SMI_HELP, [QUERY_GPU] = SMI_QUERY_GPU, [QUERY_APPS] = SMI_QUERY_APPS};
    if (option == ID)
        options->ids = value;
    else if (option == FORMAT)
        options->format = value;
    else {
        if (options->mode != SMI_TABLE) return refuse(options_known[option].name, "only one thing can be asked for");
        options->mode = modes[option];
        options->fields = value;
    }
    return 0;
}

static int parse(int argc, char **argv, struct smi_options *options) {
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i], *value = strchr(argument, '=');
        int option = which(argument, value ? (size_t)(value - argument) : strlen(argument));
        if (option == UNKNOWN) return refuse(argument, "this option is not simulated");
        if (value && !options_known[option].takes_value) return refuse(argument, "this option takes no value");
        if (value)
            value++;
        else if (options_known[option].takes_value && !(value = argv[++i]))
            return refuse(argument, "the value is missing");
        if (set(options, option, value)) return 2;
    }
    if (options->format && options->mode != SMI_QUERY_GPU && options->mode != SMI_QUERY_APPS)
        return refuse("--format", "goes with --query-gpu or --query-compute-apps");
    return 0;
}

static void help(void) {
    printf("nvidia-smi of the simulated driver. It shows the GPUs and changes nothing.\n\n"
           "    nvidia-smi [-i ID,...]       a table of the GPUs and the processes on them\n"
           "    nvidia-smi -L                one line for each GPU\n"
           "    nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]\n"
           "    nvidia-smi --query-compute-apps=FIELD,... --format=csv[,noheader][,nounits]\n\n"
           "ID is an index, a UUID or a PCI bus ID.\n");
    smi_query_help();
}

static void list(const struct smi_host *host) {
    for (unsigned int i = 0; i < host->count; i++)
        printf("GPU %u: %s (UUID: %s)\n", host->gpus[i].index, host->gpus[i].name, host->gpus[i].uuid);
}

static void show(const struct smi_options *options, const struct smi_host *host) {
    if (options->mode == SMI_TABLE) smi_table(host);
    if (options->mode == SMI_LIST) list(host);
    if (options->mode == SMI_QUERY_GPU || options->mode == SMI_QUERY_APPS) smi_query(options, host);
}

int main(int argc, char **argv) {
    struct smi_options options = {0};
    struct smi_host host = {0};
    int status = parse(argc, argv, &options);
    if (!status && options.mode == SMI_HELP) {
        help();
        return 0;
    }
    if (!status && options.fields) status = smi_query_check(&options);
    if (!status) status = smi_load();
    if (!status) status = smi_read(options.ids, &host);
    if (status) return status;
    show(&options, &host);
    nvml.nvmlShutdown();
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    fprintf(stderr, "nvidia-smi: standard output: %m\n");
    return 1;
}
