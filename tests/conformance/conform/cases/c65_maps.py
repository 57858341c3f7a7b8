# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device maps."""

from __future__ import annotations

from ..backend import DeviceMap
from ..context import Context
from ..registry import case
from ..workload import Workload
from .c60_limits import fill

NOWHERE = "GPU-00000000-0000-0000-0000-000000000000"
UNKNOWN = "GPU-12345678-1234-1234-1234-123456789abc"


def mapped(c: Context, w: Workload, device_map: DeviceMap, words: str = "") -> None:
    """A restore with a map; if it was done, the process goes back to be checkpointed for the next one."""
    c.names._gpus.setdefault(NOWHERE, "uuid of zeros")
    c.names._gpus.setdefault(UNKNOWN, "uuid of no gpu")
    c.call("restore", w, device_map=device_map, label=f"restore w1 map {words or c.map_words(device_map)}")
    if c.state(w) == "locked":
        c.call("checkpoint", w)


@case("map/one-gpu-identity")
def identity(c: Context) -> None:
    """Every GPU of the host mapped to itself."""
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    c.call("restore", w, device_map=c.identity_map(), label="restore w1 map identity")
    c.call("unlock", w)
    c.look(w, "back")
    c.whole(w)


@case("map/bad")
def bad(c: Context) -> None:
    """Maps that name what is not there, or name it twice; after each refusal the plain restore still works."""
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    first = c.host.gpus[0][0]
    rest = c.identity_map()[1:]
    for device_map in (
        ((UNKNOWN, first), *rest),
        ((first, UNKNOWN), *rest),
        ((UNKNOWN, UNKNOWN), *rest),
        ((NOWHERE, NOWHERE), *rest),
        (*c.identity_map(), (UNKNOWN, UNKNOWN)),
        (*c.identity_map(), (first, first)),
    ):
        mapped(c, w, device_map)
    c.resume(w)
    c.whole(w)


@case("map/states")
def states(c: Context) -> None:
    """A map where no restore is due."""
    w = c.workload()
    c.remember_sum(w)
    good, wrong = c.identity_map(), ((UNKNOWN, UNKNOWN),)
    c.names._gpus.setdefault(UNKNOWN, "uuid of no gpu")
    for _dummy in ("running", "locked"):
        c.call("restore", w, device_map=good, label="restore w1 map identity")
        c.call("restore", w, device_map=wrong, label="restore w1 map unknown")
        if c.state(w) == "running":
            c.call("lock", w)
    c.call("unlock", w)
    c.whole(w)


@case("map/two-gpus-bad", requires=["gpus>=2"])
def two_bad(c: Context) -> None:
    """With two GPUs every one of the host must be named, as old and as new, once."""
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    one, two = c.host.gpus[0][0], c.host.gpus[1][0]
    for device_map in (
        ((one, one),),
        ((two, two),),
        ((one, two),),
        ((two, one),),
        ((one, two), (two, two)),
        ((one, one), (two, one)),
        ((one, one), (one, two)),
        ((one, two), (one, one)),
        ((one, two), (two, one), (one, two)),
    ):
        mapped(c, w, device_map)
    c.resume(w)
    c.look(w, "back")
    c.whole(w)


@case("map/order", requires=["gpus>=2"])
def order(c: Context) -> None:
    """The order of the pairs does not matter."""
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    for device_map in (c.identity_map(), tuple(reversed(c.identity_map()))):
        c.call("restore", w, device_map=device_map, label=f"restore w1 map {c.map_words(device_map)}")
        c.call("checkpoint", w)
    c.resume(w)
    c.whole(w)


@case("map/swap", requires=["gpus>=2"])
def swap(c: Context) -> None:
    """The process moves to the other GPU, its memory identical; and back."""
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    for where in ("there", "back"):
        c.call("restore", w, device_map=c.swap_map(), label=f"restore w1 map swap, {where}")
        c.call("unlock", w)
        c.look(w, where)
        c.whole(w)
        c.suspend(w)
    c.resume(w)
    c.whole(w)


@case("map/swap-then-plain", requires=["gpus>=2"])
def swap_then_plain(c: Context) -> None:
    """After a move, a plain cycle stays on the new GPU."""
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    c.call("restore", w, device_map=c.swap_map(), label="restore w1 map swap")
    c.call("unlock", w)
    c.suspend(w)
    c.resume(w)
    c.look(w, "after a plain cycle")
    c.whole(w)


@case("map/second-gpu-swap", requires=["gpus>=2"])
def second_swap(c: Context) -> None:
    w = c.workload(gpu=1)
    c.remember_sum(w)
    c.suspend(w)
    c.call("restore", w, device_map=c.swap_map(), label="restore w1 map swap")
    c.call("unlock", w)
    c.look(w, "moved")
    c.whole(w)


@case("map/multi-gpu-swap", requires=["gpus>=2"])
def multi_swap(c: Context) -> None:
    w = c.workload(kind="multi_gpu")
    c.remember_sum(w)
    c.suspend(w)
    c.call("restore", w, device_map=c.swap_map(), label="restore w1 map swap")
    c.call("unlock", w)
    c.look(w, "swapped")
    c.whole(w)


@case("map/onto-a-full-gpu", requires=["gpus>=2"], exclusive=True, seconds=300)
def onto_full(c: Context) -> None:
    """Moved onto a GPU without room: lost, as with a plain restore."""
    w = c.workload(mib=c.size.mid)
    c.remember_sum(w)
    c.suspend(w)
    filler = fill(c, c.size.mid // 2, gpu=1)
    c.note("room on the target", c.free_mib(1) >= c.size.mid)
    c.call("restore", w, device_map=c.swap_map(), label="restore w1 map swap")
    c.call("restore", w, hang=True)
    c.note("the filler", filler.death())
    c.note("w1", w.death())
