/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The CUDA state of this process: contexts, allocations, and the lock that a checkpoint takes over every call.
 */
#ifndef GPUSIM_PROCESS_H
#define GPUSIM_PROCESS_H

#include "host.h"
#include "vram.h"

#include <pthread.h>

enum kind { KIND_DEVICE, KIND_CONTEXT, KIND_VMM, KIND_MANAGED, KIND_IMPORTED };

struct allocation {
    enum kind kind;
    int gpu;
    size_t bytes;
    CUdeviceptr address;        /* 0: not mapped yet */
    struct vram vram;           /* fd -1: not on the GPU now */
    void *host_copy;            /* while checkpointed */
    enum formula formula;       /* of the copy, to write it back sparsely */
    int exported;               /* to a file descriptor: stays on the GPU */
    struct allocation *next;
};

struct process {
    int initialized;
    int gpu_count;
    CUuuid uuids[GPUSIM_MAX_GPUS];  /* of the GPUs that the process knows, by its own ordinals */
    int gpu_of[GPUSIM_MAX_GPUS];    /* ordinal -> GPU of the host; differs after a device map */
    struct allocation *allocations;
    int mps_fd;                     /* connection to the MPS daemon, or -1 */
    int peers;                      /* an NCCL communicator maps memory of other processes */
    void *tracking;                 /* what stream and event queries read; unmapped while checkpointed */
    void *host_overhead;
    CUprocessState state;
    int poisoned;                   /* a restore failed half way */
    int refused;                    /* a checkpoint was refused once: there will be no other */
};

extern struct process gpusim_process;

/* Every call that touches the device is between these two; a locked process waits in the first. */
void api_enter(void);
void api_leave(void);

/* Work in flight: spinning kernels end at a time, collectives when their peers have come. */
void work_spin(unsigned long long ns);
void work_collective(int (*finished)(void *), void *argument);
/* Waits until no work is in flight. */
CUresult work_drain(void);

/* The checkpoint operations, run by the restore thread alone. */
/* `deadline` in ns of the real-time clock, 0: none; `wanted` tells whether the caller still waits. */
CUresult process_lock(unsigned long long deadline, int (*wanted)(void));
CUresult process_checkpoint(void);
CUresult process_restore(const CUcheckpointGpuPair *pairs, unsigned int count);
CUresult process_unlock(void);

/* /dev/nvidia* of this process. */
void devices_open(void);
void devices_close(void);
/* A context on that GPU begins, or is back. */
void devices_use(int ordinal);
/* A descriptor that another library of the driver opened (NVML): closed and opened again with ours. */
void devices_adopt(int fd, const char *path);
/* A mapping of /dev/nvidia-uvm that no other process shares, as managed memory has. */
void *devices_map_managed(size_t bytes);

/* Starts the thread that answers other processes. */
CUresult control_start(void);

#endif
