# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""jax_worker.py OUT MIB: JAX."""

import importlib
import os
import sys

from protocol import serve

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


def count() -> int:
    global counter
    counter = step(counter)
    return int(counter)


serve(out, count, lambda: int(total(memory, weights)))
