/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What is the same on every simulated GPU, whatever its name: it behaves as an H200 that does nothing but hold memory.
 */
#include "device.h"

static nvmlReturn_t answer(nvmlDevice_t device, unsigned int *to, unsigned int value) {
    int index;
    nvmlReturn_t result = nvml_check(device, to, &index);
    if (!result) *to = value;
    return result;
}

#define FIXED(name, value)                                          \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *to) { \
        return answer(device, to, value);                           \
    }
FIXED(nvmlDeviceGetPersistenceMode, NVML_PERSISTENCE_ENABLED)
FIXED(nvmlDeviceGetComputeMode, 0)
FIXED(nvmlDeviceGetPerformanceState, 0)
FIXED(nvmlDeviceGetPowerState, 0)
FIXED(nvmlDeviceGetDisplayMode, 0)
FIXED(nvmlDeviceGetDisplayActive, 0)
FIXED(nvmlDeviceGetMultiGpuBoard, 0)
FIXED(nvmlDeviceIsMigDeviceHandle, 0)
FIXED(nvmlDeviceGetMaxMigDeviceCount, 0)
FIXED(nvmlDeviceGetBrand, NVML_BRAND_NVIDIA)
FIXED(nvmlDeviceGetArchitecture, NVML_ARCH_HOPPER)

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    nvmlReturn_t result = answer(device, current, 0);
    return result ? result : answer(device, pending, 0);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    nvmlReturn_t result = answer(device, (unsigned int *)major, 9);
    return result ? result : answer(device, (unsigned int *)minor, 0);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    nvmlReturn_t result = answer(device, rates ? &rates->gpu : (unsigned int *)0, 0);
    return result ? result : answer(device, &rates->memory, 0);
}

static nvmlReturn_t refuse(nvmlDevice_t device) {
    int index = 0;
    nvmlReturn_t result = nvml_check(device, &index, &index);
    return result ? result : NVML_ERROR_NOT_SUPPORTED;
}

/* What a simulation does not have, as a virtual GPU says it. */
#define UNSUPPORTED(name, ...) \
    EXPORT nvmlReturn_t name(nvmlDevice_t device __VA_OPT__(, ) __VA_ARGS__) { return refuse(device); }
UNSUPPORTED(nvmlDeviceGetTemperature, int, unsigned int *)
UNSUPPORTED(nvmlDeviceGetPowerUsage, unsigned int *)
UNSUPPORTED(nvmlDeviceGetEnforcedPowerLimit, unsigned int *)
UNSUPPORTED(nvmlDeviceGetFanSpeed, unsigned int *)
/* The further arguments of these are of no interest. */
UNSUPPORTED(nvmlDeviceGetSerial) UNSUPPORTED(nvmlDeviceGetVbiosVersion)
UNSUPPORTED(nvmlDeviceGetTemperatureV) UNSUPPORTED(nvmlDeviceGetTemperatureThreshold)
UNSUPPORTED(nvmlDeviceGetPowerManagementMode) UNSUPPORTED(nvmlDeviceGetPowerManagementLimit)
UNSUPPORTED(nvmlDeviceGetPowerManagementDefaultLimit) UNSUPPORTED(nvmlDeviceGetPowerManagementLimitConstraints)
UNSUPPORTED(nvmlDeviceGetTotalEnergyConsumption) UNSUPPORTED(nvmlDeviceGetNumFans)
UNSUPPORTED(nvmlDeviceGetFanSpeed_v2) UNSUPPORTED(nvmlDeviceGetClock) UNSUPPORTED(nvmlDeviceGetClockInfo)
UNSUPPORTED(nvmlDeviceGetMaxClockInfo) UNSUPPORTED(nvmlDeviceGetApplicationsClock)
UNSUPPORTED(nvmlDeviceGetCurrentClocksThrottleReasons) UNSUPPORTED(nvmlDeviceGetCurrentClocksEventReasons)
UNSUPPORTED(nvmlDeviceGetEccMode) UNSUPPORTED(nvmlDeviceGetTotalEccErrors)
UNSUPPORTED(nvmlDeviceGetMemoryErrorCounter) UNSUPPORTED(nvmlDeviceGetRetiredPages)
UNSUPPORTED(nvmlDeviceGetRemappedRows) UNSUPPORTED(nvmlDeviceGetBAR1MemoryInfo)
UNSUPPORTED(nvmlDeviceGetEncoderUtilization) UNSUPPORTED(nvmlDeviceGetDecoderUtilization)
UNSUPPORTED(nvmlDeviceGetProcessUtilization) UNSUPPORTED(nvmlDeviceGetAccountingMode)
UNSUPPORTED(nvmlDeviceGetPcieThroughput) UNSUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkWidth) UNSUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkWidth) UNSUPPORTED(nvmlDeviceGetNvLinkState) UNSUPPORTED(nvmlDeviceGetDriverModel)
UNSUPPORTED(nvmlDeviceGetFieldValues) UNSUPPORTED(nvmlDeviceSetPersistenceMode) UNSUPPORTED(nvmlDeviceSetComputeMode)
UNSUPPORTED(nvmlDeviceSetMigMode)
