# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of the simulated driver, each broken once: what is broken, and which cases must see it."""

from __future__ import annotations

from typing import Tuple

from tests.conformance.control.mutants import Mutation

LOCK = "driver/lock.c"
CHECKPOINT = "driver/checkpoint.c"
CALLER = "driver/caller.c"
CONTROL = "driver/control.c"
CLI = "driver/cli.c"
ERRORS = "driver/errors.c"
VRAM = "gpu/vram.c"

# These take longest, so they are begun first.
_SLOW = (
    Mutation(
        "forked-child-answers",
        CONTROL,
        "static void forget_in_child(void) { gpusim_control.restore_tid = 0; }",
        "static void forget_in_child(void) {}",
        ("kind/fork",),
    ),
    Mutation(
        "devices-stay-open",
        CHECKPOINT,
        "    devices_close();\n",
        "",
        ("state/evidence", "criu/cycle"),
    ),
)

_STATES = (
    Mutation(
        "lock-in-any-state",
        LOCK,
        "    if (p->state != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;\n",
        "",
        ("state/table",),
    ),
    Mutation(
        "checkpoint-in-any-state",
        CHECKPOINT,
        "    if (p->state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;\n",
        "",
        ("state/table",),
    ),
    Mutation(
        "restore-in-any-state",
        CHECKPOINT,
        "    if (p->state != CU_PROCESS_STATE_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;\n",
        "",
        ("map/states",),
    ),
    Mutation(
        "unlock-in-any-state",
        LOCK,
        "    if (p->state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;\n",
        "",
        ("state/table", "race/two-unlocks"),
    ),
    Mutation(
        "restore-goes-to-running",
        CHECKPOINT,
        "    p->state = CU_PROCESS_STATE_LOCKED;\n",
        "    p->state = CU_PROCESS_STATE_RUNNING;\n",
        ("state/table", "state/recheckpoint"),
    ),
    Mutation(
        "unlock-stays-locked",
        LOCK,
        "    p->state = CU_PROCESS_STATE_RUNNING;\n",
        "",
        ("state/table", "state/lock-unlock"),
    ),
    Mutation(
        "illegal-has-another-code",
        LOCK,
        "    if (p->state != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;\n",
        "    if (p->state != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_INVALID_VALUE;\n",
        ("state/table", "race/two-locks"),
    ),
    Mutation(
        "checkpoint-forgets-its-state",
        CHECKPOINT,
        "    p->state = CU_PROCESS_STATE_CHECKPOINTED;\n",
        "",
        ("state/table", "race/two-checkpoints"),
    ),
)

_LOCKING = (
    Mutation(
        "lock-stops-nobody",
        LOCK,
        "    while (locked) pthread_cond_wait(&changed, &mutex);\n",
        "    while (locked > 1) pthread_cond_wait(&changed, &mutex);\n",
        ("state/evidence",),
    ),
    Mutation(
        "lock-does-not-wait-for-work",
        LOCK,
        "if (!calls_in_progress() && !in_flight()) {",
        "if (calls_in_progress() >= 0) {",
        ("kind/long-kernel-timeout", "kind/long-kernel-queries"),
    ),
    Mutation(
        "timeout-ignored",
        LOCK,
        "if (deadline && ",
        "if (0 && deadline && ",
        ("kind/long-kernel-timeout",),
    ),
    Mutation(
        "timeout-leaves-the-lock",
        LOCK,
        "    set_locked(0);\n    return CUDA_ERROR_NOT_READY;\n",
        "    return CUDA_ERROR_NOT_READY;\n",
        ("stopped/lock-timeout",),
    ),
    Mutation(
        "timeout-has-another-code",
        LOCK,
        "    return CUDA_ERROR_NOT_READY;\n",
        "    return CUDA_ERROR_UNKNOWN;\n",
        ("kind/long-kernel-timeout",),
    ),
    Mutation(
        "lock-of-a-dead-caller-is-done",
        LOCK,
        "        if (!wanted()) break;\n",
        "        (void)wanted;\n",
        ("killed/tool-in-lock",),
    ),
    Mutation(
        "request-of-a-dead-caller-is-done",
        CONTROL,
        "if (got != sizeof request || !caller_waits(request.id)) continue;",
        "if (got != sizeof request) continue;",
        ("stopped/restore-caller-killed",),
    ),
    Mutation(
        "a-stopped-process-is-given-up",
        CALLER,
        "        if (poll(fds, 2, -1) < 0) continue;\n",
        "        if (poll(fds, 2, 300) <= 0) return CUDA_ERROR_NOT_READY;\n",
        ("stopped/state", "frozen/running"),
    ),
)

_TARGETS = (
    Mutation(
        "no-such-pid-has-another-code",
        CALLER,
        "    if (!*pid) return CUDA_ERROR_OPERATING_SYSTEM;\n",
        "    if (!*pid) return CUDA_ERROR_NOT_INITIALIZED;\n",
        ("who/no-such-pid",),
    ),
    Mutation(
        "not-cuda-has-another-code",
        CALLER,
        "    CUresult result = CUDA_ERROR_NOT_INITIALIZED;\n",
        "    CUresult result = CUDA_ERROR_INVALID_VALUE;\n",
        ("who/not-cuda", "who/zombie"),
    ),
    Mutation(
        "other-owner-has-another-code",
        CALLER,
        "return errno == ESRCH ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_OPERATING_SYSTEM;",
        "return CUDA_ERROR_NOT_INITIALIZED;",
        ("who/other-owner",),
    ),
    Mutation(
        "thread-id-refused", CALLER, "    return group;\n", "    return group == id ? group : 0;\n", ("who/thread-id",)
    ),
    Mutation(
        "restore-thread-is-the-main-thread",
        CALLER,
        "    *tid = found;\n",
        "    *tid = pid;\n",
        ("state/restore-tid", "who/thread-id"),
    ),
    Mutation(
        "null-result-has-another-code",
        CALLER,
        "    if (!state) return CUDA_ERROR_INVALID_VALUE;\n",
        "    if (!state) return CUDA_ERROR_NOT_INITIALIZED;\n",
        ("args/null-result",),
    ),
    Mutation(
        "reserved-bytes-are-not-looked-at",
        "driver/checkpoint_api.c",
        "        if (((const unsigned char *)bytes)[i]) return 1;\n",
        "        if (((const unsigned char *)bytes)[i] > 1) return 1;\n",
        ("args/reserved",),
    ),
)

_KINDS = (
    Mutation(
        "managed-has-another-code",
        CHECKPOINT,
        "            p->refused = 1;\n            return CUDA_ERROR_NOT_SUPPORTED;\n",
        "            p->refused = 1;\n            return CUDA_ERROR_INVALID_VALUE;\n",
        ("kind/managed",),
    ),
    Mutation(
        "managed-refused-twice-the-same",
        CHECKPOINT,
        "    if (p->refused) return CUDA_ERROR_UNKNOWN;\n",
        "",
        ("kind/managed",),
    ),
    Mutation(
        "mps-client-may-be-locked",
        LOCK,
        "    if (p->mps_fd >= 0) return CUDA_ERROR_NOT_SUPPORTED;\n",
        "",
        ("kind/mps",),
    ),
    Mutation(
        "imported-memory-has-another-code",
        CHECKPOINT,
        "if (a->kind == KIND_IMPORTED) return CUDA_ERROR_INVALID_VALUE;",
        "if (a->kind == KIND_IMPORTED) return CUDA_ERROR_NOT_SUPPORTED;",
        ("kind/ipc-imported", "kind/ipc-importer-alone"),
    ),
    Mutation(
        "exported-memory-leaves-the-gpu",
        CHECKPOINT,
        "        if (!a->exported) vram_close(&a->vram);\n",
        "        vram_close(&a->vram);\n",
        ("kind/vmm-export-memory",),
    ),
    Mutation(
        "nvml-lists-who-left",
        VRAM,
        "    return holds_gpu ? count : first;\n",
        "    return holds_gpu ? count : count + first - first;\n",
        ("kind/vmm-export",),
    ),
    Mutation(
        "nccl-peers-do-no-harm",
        CHECKPOINT,
        "    if (p->peers) return CUDA_ERROR_NOT_SUPPORTED;\n",
        "",
        ("nccl/two-ranks",),
        gpus=2,
    ),
    Mutation(
        "nccl-rank-may-be-locked-in-a-collective",
        LOCK,
        "(work.finished && !work.finished(work.argument))",
        "(work.finished && 0 && !work.finished(work.argument))",
        ("nccl/two-ranks", "nccl/two-ranks-unlock"),
        gpus=2,
    ),
    Mutation(
        "queries-survive-the-checkpoint",
        CHECKPOINT,
        "    mmap(p->tracking, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);\n",
        "",
        ("park/polling-plain-suspend", "park/continued"),
    ),
)

_MEMORY = (
    Mutation(
        "failed-restore-may-be-repeated",
        CHECKPOINT,
        "        p->poisoned = 1;\n",
        "        p->poisoned = 0;\n",
        ("vram/too-little",),
    ),
    Mutation(
        "lost-has-another-code",
        CHECKPOINT,
        "    if (p->poisoned) return CUDA_ERROR_OPERATING_SYSTEM;\n",
        "    if (p->poisoned) return CUDA_ERROR_OUT_OF_MEMORY;\n",
        ("vram/too-little", "kind/ipc-imported"),
    ),
    Mutation(
        "vram-of-others-is-not-counted",
        VRAM,
        "used_locked(gpu) + wanted[gpu] > host->vram_bytes",
        "(used_locked(gpu), wanted[gpu]) > host->vram_bytes",
        ("vram/too-little",),
    ),
    Mutation(
        "suspended-stays-on-the-gpu",
        CHECKPOINT,
        "        if (!a->exported) vram_close(&a->vram);\n",
        "",
        ("kind/plain-memory",),
    ),
    Mutation(
        "memory-comes-back-wrong",
        CHECKPOINT,
        "        vram_write(&a->vram, at, (char *)a->host_copy + at, bytes);\n",
        "        vram_write(&a->vram, at, (char *)a->host_copy, bytes);\n",
        ("state/again", "criu/cycle"),
    ),
    Mutation(
        "host-memory-is-not-taken",
        CHECKPOINT,
        "        vram_read(&a->vram, at, (char *)a->host_copy + at, bytes);\n",
        "",
        ("state/evidence",),
    ),
    Mutation(
        "host-memory-is-not-given-back",
        CHECKPOINT,
        "    free_host_copies();\n    p->state = CU_PROCESS_STATE_LOCKED;\n",
        "    p->state = CU_PROCESS_STATE_LOCKED;\n",
        ("state/evidence",),
    ),
    Mutation(
        "refused-host-memory-has-another-code",
        CHECKPOINT,
        "    return refused ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;\n",
        "    return refused ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;\n",
        ("limit/rlimit-data",),
    ),
    Mutation("socket-has-another-name", CONTROL, '"cuda-uvmfd-%llu-%d"', '"cuda-uvm-%llu-%d"', ("state/evidence",)),
)

_MAPS = (
    Mutation(
        "map-may-name-more",
        CHECKPOINT,
        "    if (count && count != (unsigned int)p->gpu_count) return CUDA_ERROR_INVALID_VALUE;\n",
        "",
        ("map/bad",),
    ),
    Mutation("map-may-leave-out", CHECKPOINT, "if (named != 1 ||", "if (named > 1 ||", ("map/bad",)),
    Mutation("map-may-name-twice", CHECKPOINT, "taken[gpu]++)", "taken[gpu])", ("map/two-gpus-bad",), gpus=2),
    Mutation(
        "map-is-ignored",
        CHECKPOINT,
        "        gpu_of[ordinal] = gpu;\n",
        "        gpu_of[ordinal] = ordinal;\n",
        ("map/swap", "criu/map-swap"),
        gpus=2,
    ),
    Mutation(
        "map-of-the-first-pair-only",
        CHECKPOINT,
        "        for (unsigned int i = 0; i < count; i++)\n            if (!memcmp",
        "        for (unsigned int i = 0; i < count && i < 1; i++)\n            if (!memcmp",
        ("map/order",),
        gpus=2,
    ),
)

_TOOL = (
    Mutation(
        "text-of-illegal-state",
        ERRORS,
        '"the operation cannot be performed in the present state"',
        '"illegal state"',
        ("state/table",),
        backend="cli",
    ),
    Mutation(
        "text-of-timeout",
        ERRORS,
        '"device not ready"',
        '"timed out"',
        ("kind/long-kernel-timeout",),
        backend="cli",
    ),
    Mutation(
        "text-of-os-error",
        ERRORS,
        '"OS call failed or operation not supported on this OS"',
        '"OS call failed"',
        ("who/no-such-pid",),
        backend="cli",
    ),
    Mutation(
        "text-of-action",
        CLI,
        "Could not %s on process ID %d",
        "Could not %s process ID %d",
        ("state/table",),
        backend="cli",
    ),
    Mutation(
        "text-of-state-error",
        CLI,
        "Error getting process state for process ID",
        "Error getting state for process ID",
        ("who/not-cuda", "cli/locale"),
        backend="cli",
    ),
    Mutation(
        "text-of-missing-restore-thread",
        CLI,
        "Could not find restore thread for process ID",
        "No restore thread for process ID",
        ("who/not-cuda",),
        backend="cli",
    ),
    Mutation(
        "exit-code-is-the-result",
        CLI,
        "    return result != CUDA_SUCCESS;\n}\n\nstatic int print_state",
        "    return (int)result;\n}\n\nstatic int print_state",
        ("state/table",),
        backend="cli",
    ),
    Mutation(
        "toggle-from-locked",
        CLI,
        "        result = CUDA_ERROR_ILLEGAL_STATE;\n",
        "        result = caller_checkpoint(pid);\n",
        ("cli/toggle",),
        backend="cli",
    ),
    Mutation(
        "toggle-leaves-locked",
        CLI,
        "        if (!result) result = caller_unlock(pid);\n",
        "",
        ("cli/toggle",),
        backend="cli",
    ),
    Mutation(
        "help-names-another-option",
        CLI,
        '"--get-restore-tid --pid <pid>',
        '"--get-restore-thread --pid <pid>',
        ("cli/help",),
        backend="cli",
    ),
    Mutation(
        "any-word-is-a-pid",
        CLI,
        "call.have_pid = !*end && call.pid >= 0;",
        "call.have_pid = end != optarg || call.pid >= 0;",
        ("cli/bad-arguments",),
        backend="cli",
    ),
    Mutation(
        "empty-map-is-no-map",
        CLI,
        "    if (!*text) return -1;\n",
        "",
        ("cli/device-map-texts",),
        backend="cli",
    ),
)

MUTATIONS: Tuple[Mutation, ...] = (*_SLOW, *_STATES, *_LOCKING, *_TARGETS, *_KINDS, *_MEMORY, *_MAPS, *_TOOL)
