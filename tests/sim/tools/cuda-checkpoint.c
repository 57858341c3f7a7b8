/* Copyright (c) 2026, gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * cuda-checkpoint: a shim, as the real one is. Everything is in the driver.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*run)(int, char **) = NULL;
    if (driver) *(void **)&run = dlsym(driver, "gpusim_cuda_checkpoint");
    if (!run) {
        fprintf(stderr, "cuda-checkpoint: %s\n", dlerror());
        return 1;
    }
    return run(argc, argv);
}
