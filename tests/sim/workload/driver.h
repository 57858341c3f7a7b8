/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The driver and NCCL as tables of functions, loaded at run time: one binary for the real GPU and the simulator.
 */
#ifndef GPUSIM_WORKLOAD_DRIVER_H
#define GPUSIM_WORKLOAD_DRIVER_H

#include "cuda_abi.h"

/* result name, exported symbol, parameters */
#define DRIVER_API(X)                                                                                     \
    X(init, cuInit, (unsigned int flags))                                                                 \
    X(error_name, cuGetErrorName, (CUresult error, const char **text))                                    \
    X(device_count, cuDeviceGetCount, (int *count))                                                       \
    X(device_get, cuDeviceGet, (CUdevice * device, int ordinal))                                          \
    X(ctx_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                       \
    X(ctx_set, cuCtxSetCurrent, (CUcontext context))                                                      \
    X(ctx_sync, cuCtxSynchronize, (void))                                                                 \
    X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr * ptr, size_t bytes))                                        \
    X(mem_alloc_managed, cuMemAllocManaged, (CUdeviceptr * ptr, size_t bytes, unsigned int flags))        \
    X(mem_free, cuMemFree_v2, (CUdeviceptr ptr))                                                          \
    X(host_alloc, cuMemHostAlloc, (void **ptr, size_t bytes, unsigned int flags))                         \
    X(copy_to_device, cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))                  \
    X(copy_to_host, cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                          \
    X(module_load, cuModuleLoadData, (CUmodule * module, const void *image))                              \
    X(module_function, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))   \
    X(launch, cuLaunchKernel,                                                                             \
      (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,        \
       unsigned shared, CUstream stream, void **params, void **extra))                                    \
    X(stream_create, cuStreamCreate, (CUstream * stream, unsigned int flags))                             \
    X(stream_query, cuStreamQuery, (CUstream stream))                                                     \
    X(ipc_get, cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr ptr))                             \
    X(ipc_open, cuIpcOpenMemHandle_v2, (CUdeviceptr * ptr, CUipcMemHandle handle, unsigned int flags))    \
    X(vmm_create, cuMemCreate,                                                                            \
      (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop,              \
       unsigned long long flags))                                                                         \
    X(vmm_reserve, cuMemAddressReserve,                                                                   \
      (CUdeviceptr * ptr, size_t bytes, size_t align, CUdeviceptr addr, unsigned long long flags))        \
    X(vmm_map, cuMemMap,                                                                                  \
      (CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,                 \
       unsigned long long flags))                                                                         \
    X(vmm_access, cuMemSetAccess,                                                                         \
      (CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count))                         \
    X(vmm_export, cuMemExportToShareableHandle,                                                           \
      (void *handle, CUmemGenericAllocationHandle allocation, int type, unsigned long long flags))

#define NCCL_API(X)                                                                                       \
    X(unique_id, ncclGetUniqueId, (ncclUniqueId * id))                                                    \
    X(init_rank, ncclCommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank))             \
    X(all_reduce, ncclAllReduce,                                                                          \
      (const void *send, void *receive, size_t count, int type, int op, ncclComm_t comm, CUstream stream))

struct driver {
#define FIELD(name, symbol, params) CUresult(*name) params;
    DRIVER_API(FIELD)
#undef FIELD
};

struct nccl {
#define FIELD(name, symbol, params) int(*name) params;
    NCCL_API(FIELD)
#undef FIELD
};

extern struct driver cu;
extern struct nccl nccl;

void load_driver(void);
void load_nccl(void);
void check(CUresult result, const char *what);
void check_nccl(int result, const char *what);
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define CK(call) check(cu.call, #call)
#define CK_NCCL(call) check_nccl(nccl.call, #call)

#endif
