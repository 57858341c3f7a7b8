/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The parts of nvidia-smi. All it knows comes from libnvidia-ml.so.1, loaded as a stranger would load it.
 */
#ifndef GPUSIM_SMI_H
#define GPUSIM_SMI_H

#include "../../nvml/nvml_abi.h"

#include <stddef.h>

#define SMI_FUNCTIONS(F)                                                                                          \
    F(nvmlInit_v2) F(nvmlShutdown) F(nvmlErrorString) F(nvmlSystemGetDriverVersion)                               \
    F(nvmlSystemGetCudaDriverVersion_v2) F(nvmlSystemGetProcessName) F(nvmlDeviceGetCount_v2)                     \
    F(nvmlDeviceGetHandleByIndex_v2) F(nvmlDeviceGetHandleByUUID) F(nvmlDeviceGetHandleByPciBusId_v2)             \
    F(nvmlDeviceGetIndex) F(nvmlDeviceGetName) F(nvmlDeviceGetUUID) F(nvmlDeviceGetPciInfo_v3)                    \
    F(nvmlDeviceGetMemoryInfo_v2) F(nvmlDeviceGetComputeRunningProcesses_v3) F(nvmlDeviceGetUtilizationRates)     \
    F(nvmlDeviceGetPersistenceMode) F(nvmlDeviceGetComputeMode) F(nvmlDeviceGetMigMode)                           \
    F(nvmlDeviceGetCudaComputeCapability) F(nvmlDeviceGetPerformanceState) F(nvmlDeviceGetDisplayActive)          \
    F(nvmlDeviceGetTemperature) F(nvmlDeviceGetPowerUsage) F(nvmlDeviceGetEnforcedPowerLimit)                     \
    F(nvmlDeviceGetFanSpeed)

struct smi_nvml {
#define F(name) __typeof__(&name) name;
    SMI_FUNCTIONS(F)
#undef F
};
extern struct smi_nvml nvml;

enum { SMI_NAME_ROOM = 256, SMI_MIB_SHIFT = 20 };

/* What NVML said of one GPU, read once so that one output does not contradict itself. Numbers: -1 is "N/A". */
struct smi_gpu {
    nvmlDevice_t device;
    unsigned int index;
    char name[NVML_TEXT_ROOM], uuid[NVML_TEXT_ROOM];
    nvmlPciInfo_t pci;
    nvmlMemory_v2_t memory;
    long long utilization, memory_utilization, persistence, compute_mode, mig, mig_pending, capability_major,
        capability_minor, state, display, temperature, milliwatts, milliwatts_limit, fan;
    nvmlProcessInfo_t *processes;
    unsigned int process_count;
};

struct smi_host {
    char driver[NVML_TEXT_ROOM];
    int cuda;
    unsigned int attached, count; /* `count` GPUs have been asked for */
    struct smi_gpu *gpus;
};

struct smi_options {
    enum { SMI_TABLE, SMI_LIST, SMI_QUERY_GPU, SMI_QUERY_APPS, SMI_HELP } mode;
    const char *fields, *format, *ids;
};

/* 0 or the exit status; says what is wrong. */
int smi_load(void);
int smi_read(const char *ids, struct smi_host *host);
void smi_process_name(unsigned int pid, char *name, size_t room);

int smi_query_check(const struct smi_options *options);
void smi_query(const struct smi_options *options, const struct smi_host *host);
void smi_query_help(void);
void smi_table(const struct smi_host *host);

#endif
