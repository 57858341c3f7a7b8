/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What the workload's kernels do (workload/kernels.h), known by their names: the simulator runs no PTX.
 */
#ifndef GPUSIM_KERNELS_H
#define GPUSIM_KERNELS_H

#include "process.h"

struct kernel;
const struct kernel *kernel_by_name(const char *name);
CUresult kernel_run(const struct kernel *kernel, void **params, struct allocation *(*find)(CUdeviceptr, size_t));

#endif
