/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "device.h"

#include <stdio.h>
#include <string.h>

/* A handle is an address in here and nothing else. */
struct nvmlDevice_st {
    char nothing;
};
static struct nvmlDevice_st devices[GPUSIM_MAX_GPUS];

enum { H200_PCI_DEVICE = 0x233510de, H200_PCI_SUBSYSTEM = 0x18be10de };

nvmlReturn_t nvml_check(nvmlDevice_t device, const void *answer, int *index) {
    const struct host *host = nvml_host();
    if (!host) return NVML_ERROR_UNINITIALIZED;
    if (!answer) return NVML_ERROR_INVALID_ARGUMENT;
    for (*index = 0; *index < host->gpu_count; ++*index)
        if (device == &devices[*index]) return NVML_SUCCESS;
    return NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    const struct host *host = nvml_host();
    if (!host) return NVML_ERROR_UNINITIALIZED;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned int)host->gpu_count;
    return NVML_SUCCESS;
}
ALSO_NAMED(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    const struct host *host = nvml_host();
    if (!host) return NVML_ERROR_UNINITIALIZED;
    if (!device || index >= (unsigned int)host->gpu_count) return NVML_ERROR_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}
ALSO_NAMED(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    const struct host *host = nvml_host();
    if (!host) return NVML_ERROR_UNINITIALIZED;
    if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < host->gpu_count; i++)
        if (!strcmp(host->gpus[i].uuid_text, uuid)) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

/* DOMAIN:BUS:DEVICE.FUNCTION, the domain of any width or left out. */
static int parse_bus_id(const char *text, unsigned int id[4]) {
    int end = 0;
    if (sscanf(text, "%x:%x:%x.%x%n", &id[0], &id[1], &id[2], &id[3], &end) == 4 && !text[end]) return 0;
    id[0] = 0;
    return sscanf(text, "%x:%x.%x%n", &id[1], &id[2], &id[3], &end) == 3 && !text[end] ? 0 : -1;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    const struct host *host = nvml_host();
    unsigned int wanted[4], id[4];
    if (!host) return NVML_ERROR_UNINITIALIZED;
    if (!bus_id || !device || parse_bus_id(bus_id, wanted)) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < host->gpu_count; i++)
        if (!parse_bus_id(host->gpus[i].bus_id, id) && !memcmp(id, wanted, sizeof id)) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}
ALSO_NAMED(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    if (!nvml_host()) return NVML_ERROR_UNINITIALIZED;
    return serial && device ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *answer) {
    int index;
    nvmlReturn_t result = nvml_check(device, answer, &index);
    if (!result) *answer = (unsigned int)index;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    return nvmlDeviceGetIndex(device, minor);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int room) {
    int index;
    nvmlReturn_t result = nvml_check(device, name, &index);
    return result ? result : nvml_text(nvml_host()->model, name, room);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int room) {
    int index;
    nvmlReturn_t result = nvml_check(device, uuid, &index);
    return result ? result : nvml_text(nvml_host()->gpus[index].uuid_text, uuid, room);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    int index;
    unsigned int id[4] = {0};
    nvmlReturn_t result = nvml_check(device, pci, &index);
    if (result) return result;
    parse_bus_id(nvml_host()->gpus[index].bus_id, id);
    *pci = (nvmlPciInfo_t){.domain = id[0], .bus = id[1], .device = id[2],
                           .pci_device = H200_PCI_DEVICE, .pci_subsystem = H200_PCI_SUBSYSTEM};
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.0", id[0] & 0xffff, id[1] & 0xff,
             id[2] & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", id[0], id[1], id[2]);
    return NVML_SUCCESS;
}
