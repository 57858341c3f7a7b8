/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * gpusim-workload: holds device memory, counts, and answers with a checksum of that memory.
 */
#include "workload.h"

#include "kernels.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: gpusim-workload --vram MIB --out FILE [--gpu N] [--kind KIND] [--ranks N] [--kernel-ms MS]\n"
    "KIND: plain managed pinned vmm vmm_export ipc ipc_export nccl mps fork polling longkernel multi_gpu\n"
    "FILE holds an increasing counter; create FILE.verify and FILE.sum gets a checksum of the device memory.\n";

static const char *const kinds[] = {"plain", "managed", "pinned", "vmm",     "vmm_export", "ipc",      "ipc_export",
                                    "nccl",  "mps",     "fork",   "polling", "longkernel", "multi_gpu"};

static int is(const struct options *o, const char *kind) { return !strcmp(o->kind, kind); }

static long number(const char *option, const char *text, long low, long high) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < low || value > high)
        fail(2, "%s: \"%s\" is not a number from %ld to %ld", option, text, low, high);
    return value;
}

static struct options parse(int argc, char **argv) {
    enum { VRAM = 1, OUT, GPU, KIND, RANKS, KERNEL_MS, RANK, HANDLE, HELP };
    static const struct option known[] = {{"vram", 1, 0, VRAM},   {"out", 1, 0, OUT},
                                          {"gpu", 1, 0, GPU},     {"kind", 1, 0, KIND},
                                          {"ranks", 1, 0, RANKS}, {"kernel-ms", 1, 0, KERNEL_MS},
                                          {"rank", 1, 0, RANK},   {"handle", 1, 0, HANDLE},
                                          {"help", 0, 0, HELP},   {0, 0, 0, 0}};
    struct options o = {.kind = "plain", .kernel_ms = 20000};
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) switch (option) {
            case VRAM: o.vram_mib = (size_t)number("--vram", optarg, 1, 1L << 30); break;
            case OUT: o.out = optarg; break;
            case GPU: o.gpu = (int)number("--gpu", optarg, 0, MAX_GPUS - 1); break;
            case KIND: o.kind = optarg; break;
            case RANKS: o.ranks = (int)number("--ranks", optarg, 0, MAX_GPUS); break;
            case KERNEL_MS: o.kernel_ms = (unsigned long)number("--kernel-ms", optarg, 1, 86400000); break;
            case RANK: o.rank = (int)number("--rank", optarg, 0, MAX_GPUS); break;
            case HANDLE: o.handle = optarg; break;
            case HELP: fputs(usage, stdout); exit(0);
            default: fputs(usage, stderr); exit(2);
        }
    int known_kind = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) known_kind |= is(&o, kinds[i]);
    if (!known_kind) fail(2, "--kind: \"%s\" is not known\n%s", o.kind, usage);
    if (!o.vram_mib || !o.out || optind != argc) {
        fputs(usage, stderr);
        exit(2);
    }
    return o;
}

static void launch(CUfunction function, unsigned blocks, void **params) {
    CK(launch(function, blocks, 1, 1, blocks == 1 ? 1 : 256, 1, 1, 0, NULL, params, NULL));
}

static CUdeviceptr allocate_vmm(const struct options *o, int gpu, size_t bytes) {
    /* 2 MiB is the granularity of every GPU that this runs on; MIB is rounded up to it. */
    size_t rounded = (bytes + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1);
    CUmemAllocationProp prop = {.type = 1, .requested_handle_types = is(o, "vmm_export"), .location = {1, gpu}};
    CUmemAccessDesc access = {{1, gpu}, 3};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    CK(vmm_create(&handle, rounded, &prop, 0));
    CK(vmm_reserve(&ptr, rounded, 0, 0, 0));
    CK(vmm_map(ptr, rounded, 0, handle, 0));
    CK(vmm_access(ptr, rounded, &access, 1));
    if (is(o, "vmm_export")) {
        int fd;
        CK(vmm_export(&fd, handle, 1, 0));
    }
    return ptr;
}

static CUdeviceptr allocate(const struct options *o, int gpu, size_t bytes) {
    CUdeviceptr ptr;
    if (is(o, "managed"))
        CK(mem_alloc_managed(&ptr, bytes, CU_MEM_ATTACH_GLOBAL));
    else if (is(o, "vmm") || is(o, "vmm_export"))
        ptr = allocate_vmm(o, gpu, bytes);
    else if (is(o, "ipc") && o->handle) {
        CUipcMemHandle handle;
        decode_handle(o->handle, &handle, sizeof handle);
        CK(ipc_open(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    } else
        CK(mem_alloc(&ptr, bytes));
    return ptr;
}

static struct share take_share(const struct options *o, int gpu) {
    struct share share = {.words = o->vram_mib << 17};
    CUdevice device;
    CUmodule module;
    CK(device_get(&device, gpu));
    CK(ctx_retain(&share.context, device));
    CK(ctx_set(share.context));
    CK(module_load(&module, kernels_ptx));
    CK(module_function(&share.fill, module, "gpusim_fill"));
    CK(module_function(&share.add_up, module, "gpusim_sum"));
    CK(module_function(&share.count, module, "gpusim_count"));
    CK(module_function(&share.spin, module, "gpusim_spin"));
    share.memory = allocate(o, gpu, o->vram_mib << 20);
    CK(mem_alloc(&share.sum, 8));
    if (!(is(o, "ipc") && o->handle)) launch(share.fill, 1024, (void *[]){&share.memory, &share.words});
    CK(ctx_sync());
    return share;
}

static unsigned long long checksum(const struct share *share) {
    unsigned long long sum = 0;
    CK(ctx_set(share->context));
    CK(copy_to_device(share->sum, &sum, 8));
    launch(share->add_up, 1024, (void *[]){(void *)&share->memory, (void *)&share->words, (void *)&share->sum});
    CK(copy_to_host(&sum, share->sum, 8));
    return sum;
}

static ncclComm_t join_ranks(struct options *o, int gpus) {
    ncclUniqueId id;
    ncclComm_t comm;
    load_nccl();
    if (!o->ranks) o->ranks = gpus > 1 ? 2 : 1;
    if (o->handle)
        decode_handle(o->handle, &id, sizeof id);
    else {
        CK_NCCL(unique_id(&id));
        for (int rank = 1; rank < o->ranks; rank++) {
            char suffix[16];
            snprintf(suffix, sizeof suffix, "rank%d", rank);
            start_sibling(o, suffix, (o->gpu + rank) % gpus, rank, &id, sizeof id);
        }
    }
    CK_NCCL(init_rank(&comm, o->ranks, id, o->rank));
    return comm;
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    struct report report;
    struct share shares[MAX_GPUS];
    int gpus, used = 1;

    signal(SIGCHLD, SIG_IGN);
    if (is(&o, "mps")) {
        signal(SIGCHLD, SIG_DFL);
        connect_to_mps();
    }
    load_driver();
    CK(init(0));
    CK(device_count(&gpus));
    if (o.gpu >= gpus) fail(2, "--gpu %d: the host has %d", o.gpu, gpus);
    report_open(&report, o.out);

    if (is(&o, "multi_gpu"))
        for (used = 0; used < gpus && used < MAX_GPUS; used++) shares[used] = take_share(&o, used);
    else
        shares[0] = take_share(&o, o.gpu);
    CK(ctx_set(shares[0].context));
    if (is(&o, "pinned")) {
        void *host;
        CK(host_alloc(&host, o.vram_mib << 20, 0));
        memset(host, 7, o.vram_mib << 20);
    }
    if (is(&o, "ipc_export") || (is(&o, "ipc") && !o.handle)) {
        CUipcMemHandle handle;
        CK(ipc_get(&handle, shares[0].memory));
        if (is(&o, "ipc")) start_sibling(&o, "importer", o.gpu, 1, &handle, sizeof handle);
    }
    if (is(&o, "fork")) start_plain_child(&o);
    if (is(&o, "polling")) start_polling(shares[0].context);
    ncclComm_t comm = is(&o, "nccl") ? join_ranks(&o, gpus) : NULL;

    CUdeviceptr counter, reduced = 0;
    unsigned long long count = 0, kernel_ns = o.kernel_ms * 1000000ull;
    CK(mem_alloc(&counter, 8));
    CK(copy_to_device(counter, &count, 8));
    if (comm) CK(mem_alloc(&reduced, 8));
    for (;;) {
        CK(ctx_set(shares[0].context));
        if (is(&o, "longkernel") && count) launch(shares[0].spin, 1, (void *[]){&kernel_ns});
        launch(shares[0].count, 1, (void *[]){&counter});
        if (comm)
            CK_NCCL(all_reduce((void *)(uintptr_t)counter, (void *)(uintptr_t)reduced, 1, NCCL_UINT64, NCCL_SUM, comm,
                               NULL));
        CK(copy_to_host(&count, counter, 8));
        report_counter(&report, count);
        if (report_sum_wanted(&report)) {
            unsigned long long sum = 0;
            for (int i = 0; i < used; i++) sum = sum * 31 + checksum(&shares[i]);
            report_sum(&report, sum);
        }
        usleep(20000);
    }
}
