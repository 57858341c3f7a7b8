/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "smi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct smi_nvml nvml;

enum { EXIT_NO_DEVICE = 6, EXIT_NO_LIBRARY = 12, EXIT_NO_FUNCTION = 13 };

int smi_load(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA "
               "Display Driver is properly installed and present in your system.\n");
        fprintf(stderr, "%s\n", dlerror());
        return EXIT_NO_LIBRARY;
    }
#define F(name)                                                  \
    if (!(*(void **)&nvml.name = dlsym(library, #name))) {       \
        fprintf(stderr, "nvidia-smi: %s\n", dlerror());          \
        return EXIT_NO_FUNCTION;                                 \
    }
    SMI_FUNCTIONS(F)
#undef F
    nvmlReturn_t result = nvml.nvmlInit_v2();
    if (result == NVML_ERROR_DRIVER_NOT_LOADED)
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
               "latest NVIDIA driver is installed and running.\n\n");
    else if (result)
        printf("Failed to initialize NVML: %s\n", nvml.nvmlErrorString(result));
    return result;
}

void smi_process_name(unsigned int pid, char *name, size_t room) {
    if (nvml.nvmlSystemGetProcessName(pid, name, (unsigned int)room)) snprintf(name, room, "[Not Found]");
}

static long long number(nvmlReturn_t (*get)(nvmlDevice_t, unsigned int *), nvmlDevice_t device) {
    unsigned int value;
    return get(device, &value) ? -1 : (long long)value;
}

static nvmlReturn_t read_processes(struct smi_gpu *gpu) {
    nvmlReturn_t result;
    unsigned int room = 64;
    do { /* until what had been asked for is enough */
        nvmlProcessInfo_t *more = realloc(gpu->processes, 2 * room * sizeof *more);
        if (!more) return NVML_ERROR_MEMORY;
        gpu->processes = more;
        gpu->process_count = 2 * room;
        result = nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu->device, &gpu->process_count, more);
        room = gpu->process_count;
    } while (result == NVML_ERROR_INSUFFICIENT_SIZE);
    return result;
}

static void read_modes(struct smi_gpu *gpu) {
    unsigned int celsius, current, pending;
    int major, minor;
    nvmlUtilization_t rates;
    gpu->persistence = number(nvml.nvmlDeviceGetPersistenceMode, gpu->device);
    gpu->compute_mode = number(nvml.nvmlDeviceGetComputeMode, gpu->device);
    gpu->state = number(nvml.nvmlDeviceGetPerformanceState, gpu->device);
    gpu->display = number(nvml.nvmlDeviceGetDisplayActive, gpu->device);
    gpu->milliwatts = number(nvml.nvmlDeviceGetPowerUsage, gpu->device);
    gpu->milliwatts_limit = number(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu->device);
    gpu->fan = number(nvml.nvmlDeviceGetFanSpeed, gpu->device);
    gpu->temperature = -1;
    if (!nvml.nvmlDeviceGetTemperature(gpu->device, NVML_TEMPERATURE_GPU, &celsius)) gpu->temperature = celsius;
    gpu->mig = gpu->mig_pending = -1;
    if (!nvml.nvmlDeviceGetMigMode(gpu->device, &current, &pending)) gpu->mig = current, gpu->mig_pending = pending;
    gpu->utilization = gpu->memory_utilization = -1;
    if (!nvml.nvmlDeviceGetUtilizationRates(gpu->device, &rates))
        gpu->utilization = rates.gpu, gpu->memory_utilization = rates.memory;
    gpu->capability_major = gpu->capability_minor = -1;
    if (!nvml.nvmlDeviceGetCudaComputeCapability(gpu->device, &major, &minor))
        gpu->capability_major = major, gpu->capability_minor = minor;
}

static nvmlReturn_t read_gpu(unsigned int index, struct smi_gpu *gpu) {
    nvmlReturn_t result = nvml.nvmlDeviceGetHandleByIndex_v2(index, &gpu->device);
    if (!result) result = nvml.nvmlDeviceGetIndex(gpu->device, &gpu->index);
    if (!result) result = nvml.nvmlDeviceGetPciInfo_v3(gpu->device, &gpu->pci);
    gpu->memory.version = NVML_MEMORY_V2;
    if (!result) result = nvml.nvmlDeviceGetMemoryInfo_v2(gpu->device, &gpu->memory);
    if (!result) result = nvml.nvmlDeviceGetName(gpu->device, gpu->name, sizeof gpu->name);
    if (!result) result = nvml.nvmlDeviceGetUUID(gpu->device, gpu->uuid, sizeof gpu->uuid);
    if (!result) result = read_processes(gpu);
    if (result) return result;
    read_modes(gpu);
    return NVML_SUCCESS;
}

/* An index, a UUID or a PCI bus ID. */
static int find(const char *id, nvmlDevice_t *device) {
    size_t digits = strspn(id, "0123456789");
    if (digits && digits < 9 && !id[digits])
        return nvml.nvmlDeviceGetHandleByIndex_v2((unsigned int)strtoul(id, NULL, 10), device);
    if (!nvml.nvmlDeviceGetHandleByUUID(id, device)) return 0;
    return nvml.nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

/* Keeps the GPUs that the list names, in the order of the host; -1 where it names one that is not there. */
static int select_gpus(const char *ids, struct smi_host *host) {
    char list[4096], *rest = list, *id;
    unsigned int kept = 0;
    char wanted[256] = {0};
    if ((size_t)snprintf(list, sizeof list, "%s", ids) >= sizeof list) return -1;
    while ((id = strsep(&rest, ","))) {
        nvmlDevice_t device;
        unsigned int i = 0;
        if (find(id, &device)) return -1;
        while (i < host->count && host->gpus[i].device != device) i++;
        if (i < sizeof wanted) wanted[i] = 1;
    }
    for (unsigned int i = 0; i < host->count && i < sizeof wanted; i++)
        if (wanted[i]) host->gpus[kept++] = host->gpus[i];
    host->count = kept;
    return 0;
}

int smi_read(const char *ids, struct smi_host *host) {
    nvmlReturn_t result = nvml.nvmlDeviceGetCount_v2(&host->attached);
    host->count = host->attached;
    if (!result) result = nvml.nvmlSystemGetDriverVersion(host->driver, sizeof host->driver);
    if (!result) result = nvml.nvmlSystemGetCudaDriverVersion_v2(&host->cuda);
    if (!result && !(host->gpus = calloc(host->count + 1, sizeof *host->gpus))) result = NVML_ERROR_MEMORY;
    for (unsigned int i = 0; i < host->count && !result; i++) result = read_gpu(i, &host->gpus[i]);
    if (result) {
        printf("Unable to read the GPUs: %s\n", nvml.nvmlErrorString(result));
        return result;
    }
    if ((ids && select_gpus(ids, host)) || !host->count) {
        printf("No devices were found\n");
        return EXIT_NO_DEVICE;
    }
    return 0;
}
