/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The checkpoint calls as a caller makes them on another process, by PID or thread id. They need no CUDA of their own.
 */
#ifndef GPUSIM_CALLER_H
#define GPUSIM_CALLER_H

#include "cuda_abi.h"

CUresult caller_state(int id, CUprocessState *state);
CUresult caller_restore_tid(int id, int *tid);
CUresult caller_lock(int id, unsigned int timeout_ms);
CUresult caller_checkpoint(int id);
CUresult caller_restore(int id, const CUcheckpointGpuPair *pairs, unsigned int count);
CUresult caller_unlock(int id);

#endif
