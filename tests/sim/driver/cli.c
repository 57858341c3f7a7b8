/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What cuda-checkpoint does: its options and texts come from the driver, so they live here.
 */
#include "caller.h"
#include "errors.h"
#include "host.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { FIRST_TOGGLE = 550, FIRST_ACTION = 555, FIRST_DEVICE_MAP = 580, FIRST_LAUNCH = 590 };

struct call {
    int pid, have_pid;
    int have_timeout;
    enum operation_of_tool { NONE, STATE, TID, TOGGLE, ACTION } operation;
    const char *action;
    unsigned int timeout_ms;
    const char *device_map;
};

static int help(FILE *to, int status) {
    const struct host *host = gpusim_host();
    int branch = host ? host->branch : 0;
    fprintf(to, "CUDA checkpoint and restore utility, simulated.\nVersion %s.\n\nOperations:\n",
            host ? host->driver : "unknown");
    if (branch >= FIRST_ACTION)
        fprintf(to,
                "--get-state --pid <pid>\n\tprints the state\n\n"
                "--action lock | checkpoint | restore | unlock --pid <pid> [--timeout <ms>]%s\n\tdoes that\n\n"
                "--get-restore-tid --pid <pid>\n\tprints the restore thread's id\n\n",
                branch >= FIRST_DEVICE_MAP ? " [--device-map <uuids>]" : "");
    if (branch >= FIRST_LAUNCH) fprintf(to, "--launch-job <command>\n\tnot simulated\n\n");
    fprintf(to, "--toggle --pid <pid>\n\tsuspends or resumes\n\nOptions:\n--pid|-p <pid>\n\n");
    if (branch >= FIRST_ACTION) fprintf(to, "--timeout|-t <timeout>\n\tof the lock, in ms\n\n");
    if (branch >= FIRST_DEVICE_MAP) fprintf(to, "--device-map|-d <deviceUuids>\n\told=new,...\n\n");
    fprintf(to, "--help|-h\n");
    return status;
}

/* What is wrong with the command line, then the help. */
static int refuse(const char *why) {
    fprintf(stderr, "%s\n\n", why);
    return help(stderr, 1);
}

static const char *text_of(CUresult result) {
    const char *text;
    return error_text(result, &text) ? "unrecognized error code" : text;
}

static int report(const char *verb, int pid, CUresult result) {
    if (result) fprintf(stderr, "Could not %s on process ID %d: \"%s\"\n", verb, pid, text_of(result));
    return result != CUDA_SUCCESS;
}

static int print_state(int pid) {
    static const char *const names[] = {"running", "locked", "checkpointed", "failed"};
    CUprocessState state;
    CUresult result = caller_state(pid, &state);
    if (result) {
        fprintf(stderr, "Error getting process state for process ID %d: \"%s\"\n", pid, text_of(result));
        return 1;
    }
    puts(names[state]);
    return 0;
}

static int print_tid(int pid) {
    int tid;
    if (caller_restore_tid(pid, &tid)) {
        fprintf(stderr, "Could not find restore thread for process ID %d\n", pid);
        return 1;
    }
    printf("%d\n", tid);
    return 0;
}

static int toggle(int pid) {
    CUprocessState state;
    CUresult result = caller_state(pid, &state);
    if (!result && state == CU_PROCESS_STATE_CHECKPOINTED) {
        result = caller_restore(pid, NULL, 0);
        if (!result) result = caller_unlock(pid);
    } else if (!result && state != CU_PROCESS_STATE_RUNNING) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (!result) {
        result = caller_lock(pid, 0);
        if (!result) result = caller_checkpoint(pid);
    }
    if (result) fprintf(stderr, "Error toggling CUDA in process ID %d: \"%s\"\n", pid, text_of(result));
    return result != CUDA_SUCCESS;
}

/* Pairs read, or -1. */
static int parse_map(const char *text, CUcheckpointGpuPair *pairs) {
    int count = 0;
    if (!*text) return -1;
    while (*text) {
        char old[64], new[64];
        int used = 0;
        if (count == GPUSIM_MAX_GPUS || sscanf(text, "%63[^=,]=%63[^=,]%n", old, new, &used) != 2 || !used) return -1;
        if (gpusim_parse_uuid(old, &pairs[count].old_uuid) || gpusim_parse_uuid(new, &pairs[count].new_uuid)) return -1;
        count++;
        text += used;
        if (*text == ',') text++;
    }
    return count;
}

static int act(const struct call *call) {
    CUcheckpointGpuPair pairs[GPUSIM_MAX_GPUS];
    int count = 0;
    if (!strcmp(call->action, "lock")) return report("lock", call->pid, caller_lock(call->pid, call->timeout_ms));
    if (!strcmp(call->action, "checkpoint")) return report("checkpoint", call->pid, caller_checkpoint(call->pid));
    if (!strcmp(call->action, "unlock")) return report("unlock", call->pid, caller_unlock(call->pid));
    if (strcmp(call->action, "restore")) return refuse("Invalid process state");
    if (call->device_map && (count = parse_map(call->device_map, pairs)) < 0) return refuse("Invalid device remap");
    return report("restore", call->pid, caller_restore(call->pid, pairs, (unsigned int)count));
}

static int choose(struct call *call, enum operation_of_tool operation) {
    call->operation = operation;
    return 1;
}

static int does(const struct call *call, const char *action) {
    return call->operation == ACTION && !strcmp(call->action, action);
}

EXPORT int gpusim_cuda_checkpoint(int argc, char **argv) {
    static const struct option all[] = {
        {"help", 0, 0, 'h'},   {"pid", 1, 0, 'p'},        {"toggle", 0, 0, 'T'},  {"get-state", 0, 0, 'S'},
        {"action", 1, 0, 'a'}, {"get-restore-tid", 0, 0, 'R'}, {"timeout", 1, 0, 't'}, {"device-map", 1, 0, 'd'},
        {0, 0, 0, 0}};
    struct option known[sizeof all / sizeof *all];
    const struct host *host = gpusim_host();
    int branch = host ? host->branch : 0, wrong = 0, operations = 0, count = branch >= FIRST_DEVICE_MAP ? 8 : branch >= FIRST_ACTION ? 7 : 3;
    struct call call = {0};
    if (branch < FIRST_TOGGLE) {
        fprintf(stderr, "cuda-checkpoint: this driver can't checkpoint\n");
        return 1;
    }
    memcpy(known, all, sizeof known);
    known[count] = all[8];
    for (int option; (option = getopt_long(argc, argv, "hp:t:d:", known, NULL)) != -1;) switch (option) {
            case 'h': return help(stdout, 0);
            case 'p': {
                char *end;
                call.pid = (int)strtol(optarg, &end, 10);
                call.have_pid = !*end && call.pid >= 0;
                if (!call.have_pid) return refuse("pid must be a non-negative integer");
                break;
            }
            case 'S': operations += choose(&call, STATE); break;
            case 'R': operations += choose(&call, TID); break;
            case 'T': operations += choose(&call, TOGGLE); break;
            case 'a':
                operations += choose(&call, ACTION);
                call.action = optarg;
                break;
            case 't':
                call.timeout_ms = (unsigned int)strtoul(optarg, NULL, 10);
                call.have_timeout = 1;
                break;
            case 'd': call.device_map = optarg; break;
            default: wrong = 1;
        }
    /* a timeout belongs to lock, a map to restore; words that are no options are passed over */
    if (wrong) return help(stderr, 1);
    if (operations > 1) return refuse("Too many operations selected");
    if (!operations) return refuse("No operation selected");
    if (!call.have_pid) return refuse("Missing pid to perform operation on");
    if (call.have_timeout && !does(&call, "lock")) return refuse("Timeout is only valid for --action lock operation");
    if (call.device_map && !does(&call, "restore")) return refuse("Device remap only allowed for restore action");
    switch (call.operation) {
        case STATE: return print_state(call.pid);
        case TID: return print_tid(call.pid);
        case TOGGLE: return toggle(call.pid);
        case ACTION: return act(&call);
        default: return help(stderr, 1);
    }
}
