/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What the parts of the library share.
 */
#ifndef GPUSIM_NVML_DEVICE_H
#define GPUSIM_NVML_DEVICE_H

#include "host.h"
#include "nvml_abi.h"

#define EXPORT __attribute__((visibility("default")))
/* The same function under its name of before the version was appended. */
#define ALSO_NAMED(old, current) EXPORT __typeof__(current) old __attribute__((alias(#current)))

/* NULL unless the library is initialized. */
const struct host *nvml_host(void);
/* NVML_SUCCESS and the index where the handle is one of ours and there is somewhere to answer to. */
nvmlReturn_t nvml_check(nvmlDevice_t device, const void *answer, int *index);
nvmlReturn_t nvml_text(const char *text, char *answer, unsigned int room);

#endif
