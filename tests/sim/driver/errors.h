/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#ifndef GPUSIM_ERRORS_H
#define GPUSIM_ERRORS_H

#include "cuda_abi.h"

CUresult error_name(CUresult error, const char **text);
CUresult error_text(CUresult error, const char **text);

#endif
