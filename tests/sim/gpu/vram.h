/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Device memory of all processes of the host. An allocation is a sparse file in /dev/gpusim that holds
 * content XOR formula(word), so that what a fill kernel wrote takes no memory, and one changed word takes a page.
 * Whoever has it open holds a shared lock on it: an allocation whose lock nobody holds is gone, as when a process dies.
 */
#ifndef GPUSIM_VRAM_H
#define GPUSIM_VRAM_H

#include <stddef.h>
#include <stdint.h>

enum formula { FORMULA_ZERO = 0, FORMULA_GOLDEN = 1 };

struct vram {
    int fd;
    size_t bytes;
    int gpu;
    char name[64]; /* as long as an IPC handle */
};

/* 0, or the CUresult. Fails with OUT_OF_MEMORY where the GPU lacks room. */
int vram_allocate(int gpu, size_t bytes, struct vram *vram);
/* Allocates all or nothing, so that a restore that does not fit takes no room. */
int vram_allocate_all(const int *gpus, const size_t *bytes, size_t count, struct vram *vrams);
int vram_open(const char *name, struct vram *vram);
void vram_close(struct vram *vram);

void vram_read(const struct vram *vram, size_t offset, void *to, size_t bytes);
void vram_write(const struct vram *vram, size_t offset, const void *from, size_t bytes);
/* Makes the whole allocation formula(word). */
void vram_fill(const struct vram *vram, enum formula formula);
enum formula vram_formula(const struct vram *vram);
uint64_t vram_sum(const struct vram *vram, size_t offset, size_t words);

unsigned long long vram_used(int gpu);

/* One line of what a process holds, for NVML. */
struct vram_user {
    int pid;
    int gpu;
    unsigned long long bytes;
};
/* Reads at most `room` users; returns how many there are. */
size_t vram_users(struct vram_user *users, size_t room);

#endif
