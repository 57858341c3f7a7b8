/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The part of the CUDA driver's binary interface that the workload calls and the simulated driver offers.
 * Names and numbers follow https://docs.nvidia.com/cuda/cuda-driver-api/.
 */
#ifndef GPUSIM_CUDA_ABI_H
#define GPUSIM_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef unsigned long long CUmemGenericAllocationHandle;

typedef struct {
    unsigned char bytes[16];
} CUuuid;

typedef struct {
    unsigned char reserved[64];
} CUipcMemHandle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999,
};

enum { CU_MEM_ATTACH_GLOBAL = 1 };
enum { CU_MEMHOSTALLOC_DEVICEMAP = 2 };
enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };

/* Virtual memory management. */
typedef struct {
    int type;                 /* 1: pinned */
    int requested_handle_types; /* 1: POSIX file descriptor */
    struct {
        int type;             /* 1: device */
        int id;
    } location;
    void *win32_handle_metadata;
    struct {
        unsigned char compression_type;
        unsigned char gpu_direct_rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } alloc_flags;
} CUmemAllocationProp;

typedef struct {
    struct {
        int type;
        int id;
    } location;
    int flags;                /* 3: read and write */
} CUmemAccessDesc;

/* Checkpoint. Every argument structure is 64 bytes; unused bytes are zero. */
typedef enum {
    CU_PROCESS_STATE_RUNNING = 0,
    CU_PROCESS_STATE_LOCKED = 1,
    CU_PROCESS_STATE_CHECKPOINTED = 2,
    CU_PROCESS_STATE_FAILED = 3,
} CUprocessState;

typedef struct {
    unsigned int timeout_ms;
    unsigned int reserved0;
    uint64_t reserved1[7];
} CUcheckpointLockArgs;

typedef struct {
    uint64_t reserved[8];
} CUcheckpointCheckpointArgs;

typedef struct {
    CUuuid old_uuid;
    CUuuid new_uuid;
} CUcheckpointGpuPair;

typedef struct {
    CUcheckpointGpuPair *gpu_pairs;
    unsigned int gpu_pairs_count;
    unsigned char reserved[44];
    uint64_t reserved1;
} CUcheckpointRestoreArgs;

typedef struct {
    uint64_t reserved[8];
} CUcheckpointUnlockArgs;

/* NCCL, as much as the workload needs. */
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef struct ncclComm *ncclComm_t;
enum { NCCL_UINT64 = 5, NCCL_SUM = 0 };

#endif
