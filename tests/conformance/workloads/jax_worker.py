# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""jax_worker.py OUT MIB: JAX, the protocol of gpusim-workload (OUT counts, OUT.verify, OUT.sum, OUT.pid)."""

import importlib
import os
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

jax = importlib.import_module("jax")
jnp = importlib.import_module("jax.numpy")

out, mib = sys.argv[1], int(sys.argv[2])
memory = jnp.arange(mib * 1024 * 1024 // 4, dtype=jnp.uint32) * jnp.uint32(2654435761)
weights = jnp.arange(mib * 1024 * 1024 // 4, dtype=jnp.uint32) | jnp.uint32(1)
counter = jnp.zeros((), dtype=jnp.int32)
step = jax.jit(lambda value: value + 1)
total = jax.jit(lambda one, two: jnp.sum(one * two))
total(memory, weights).block_until_ready()
with open(out + ".pid", "w") as stream:
    stream.write(f"{os.getpid()}\n")
stream = open(out, "w")
while True:
    counter = step(counter)
    stream.seek(0)
    stream.write(f"{int(counter)}\n")
    stream.flush()
    if os.path.exists(out + ".verify"):
        with open(out + ".sum.partial", "w") as answer:
            answer.write(f"{int(total(memory, weights)):x}\n")
        os.rename(out + ".sum.partial", out + ".sum")
        os.unlink(out + ".verify")
    time.sleep(0.02)
