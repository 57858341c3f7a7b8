# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Do processes of one host fit on another, and which of several gets them?"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import FieldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    HELD,
    MOVED,
    RESTORING,
    SPENT,
    UNSPENT,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import ManifestGpu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.target import PROCESS, Holder
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.decide import (
    Place,
    Present,
    Verdict,
    Wish,
    decide,
    needed_paths,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.evidence import (
    LIVE,
    SourceEvidence,
    TreeEvidence,
    forecast,
    pack,
    unpack,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.read_cpu import parse_cpuinfo
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.read_files import parse_mapped
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._migration.choice import (
    Candidate,
    candidate_of,
    choose,
)
from tests.unit.plugins.criu.test_fit import FIRST, GIB, H200, HOST, gpu, make, manifest, target

A, B = "a" * 32, "b" * 32
LIBRARY = "/usr/lib/libc.so.6"
THERE = "GPU-aaaaaaaa-6a0d-4a1c-9f57-0c4f4c1f2b7a"


def tree(number: int = 0, **fields: Any) -> TreeEvidence:
    """Of one process with 8 GiB on the first GPU; number: so that there may be several."""
    pid = 5000 + 10 * number
    one = manifest(
        name=f"pid-{pid}",
        root=pid,
        tree=(make(pid, 1, group=pid, session=pid, threads=(pid,), cuda=True, device_bytes={FIRST: 8 * GIB}),),
        gpus=(ManifestGpu(FIRST, 0, H200, 140 * GIB),),
        files=(OpenRegular(LIBRARY, 10), OpenRegular("/srv/job/log", -1, False, True)),
        host_bytes=9 * GIB,
        chunks=forecast(9 * GIB),
    )
    return replace(TreeEvidence(one, LIVE, "", "", {LIBRARY: "ab" * 20}, ("/srv/job",)), **fields)


def source(*trees: TreeEvidence) -> SourceEvidence:
    return SourceEvidence("gpu07", A, "EPYC 9654", ("avx2", "avx512f", "ibrs"), trees or (tree(),))


def place(**fields: Any) -> Place:
    files = {LIBRARY: 10, "/srv/job/log": 5}
    there = target(gpus=(gpu(0, THERE),), files=files, host=replace(HOST, boot_id="0-1"), holders=())
    one = Place(
        there, "gpu08", B, "EPYC 9654", ("avx2", "avx512f"), {LIBRARY: "ab" * 20}, ("/srv/job",), {}, 99 * GIB, 0
    )
    return replace(one, **fields)


WISH = Wish("rsync", (), "auto", False, frozenset())


def judge(there: Place, *trees: TreeEvidence, wish: Wish = WISH) -> Verdict:
    return decide(source(*trees), there, wish)


def blocking(verdict: Verdict) -> list[str]:
    return [one.id for one in verdict.findings if one.severity == BLOCKING]


def test_what_is_equipped_alike_fits_with_a_map_to_its_own_gpus() -> None:
    verdict = judge(place())
    assert verdict.is_fit and not verdict.findings, verdict.findings
    assert verdict.device_map == {FIRST: THERE}
    assert verdict.image_bytes == 9 * GIB and verdict.free == 132 * GIB


@pytest.mark.parametrize(
    ("there", "finding", "words"),
    [
        (place(machine=A), "same_host", "one was cloned"),
        (place(machine=""), "no_machine_id", "gpu08: it has no machine id"),
        (place(flags=("avx2",)), "cpu_features", "lacks avx512f, which EPYC 9654 has"),
        (
            place(build_ids={LIBRARY: "cd" * 20}),
            "build_id",
            f"{LIBRARY} (cdcdcdcdcdcd, and abababababab at the source)",
        ),
        (place(build_ids={}), "build_id", "(none, and abababababab"),
        (place(directories=()), "directory_missing", "mkdir -p /srv/job"),
        (place(disk=9 * GIB), "disk_space", "9.0 GiB free"),
        (place(target=replace(place().target, files={LIBRARY: 10})), "image_file_missing", "/srv/job/log"),
        (place(target=replace(place().target, files={LIBRARY: 11, "/srv/job/log": 0})), "image_file_size", LIBRARY),
        (
            place(target=replace(place().target, gpus=(gpu(0, THERE, name="NVIDIA H100"),))),
            "image_gpu",
            "1 x NVIDIA H100",
        ),
        (place(target=replace(place().target, gpus=(gpu(0, THERE, free=GIB),))), "device_map", "has 1024 MiB"),
        (
            place(target=replace(place().target, host=replace(HOST, boot_id="0-1", driver_version="580.126.09"))),
            "image_driver",
            "here is 580.126.09",
        ),
        (
            place(target=replace(place().target, holders=(Holder(5000, PROCESS, 5000, "sshd", 0.0, 1, 1, "init"),))),
            "pid_busy",
            "PID 5000 (sshd)",
        ),
        (place(images={"pid-5000": Present("other", UNSPENT, "", False)}), "image_in_the_way", "it is unspent"),
        (place(images={"pid-5000": Present("other", SPENT, "", True)}), "image_in_the_way", "is alive"),
        (place(images={"pid-5000": Present("other", HELD, "", False)}), "image_in_the_way", "it is held"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(there: Place, finding: str, words: str) -> None:
    verdict = judge(there)
    assert finding in blocking(verdict), verdict.findings
    found = next(one for one in verdict.findings if one.id == finding)
    assert words in found.message() and found.reason and found.remedy and found.reference.endswith(f"#{finding}")


def test_everything_is_told_at_once() -> None:
    there = place(flags=(), disk=0, build_ids={}, directories=())
    assert {"cpu_features", "disk_space", "build_id", "directory_missing"} <= set(blocking(judge(there)))


def test_all_trees_together_need_the_room_that_each_has() -> None:
    roomy = place(target=replace(place().target, gpus=(gpu(0, THERE, free=12 * GIB),)), disk=15 * GIB)
    assert judge(roomy, tree()).is_fit
    both = judge(roomy, tree(), tree(1))
    assert set(blocking(both)) == {"device_map", "disk_space"}
    assert "2 trees of gpu07" in both.findings[0].message()


def test_what_goes_along_need_not_be_there() -> None:
    there = place(target=replace(place().target, files={LIBRARY: 10}), directories=())
    assert set(blocking(judge(there))) == {"image_file_missing", "directory_missing"}
    assert judge(there, wish=replace(WISH, carry=("/srv/job",))).is_fit
    assert not judge(there, wish=replace(WISH, carry=("/srv/jo",))).is_fit


def test_one_store_that_both_see_needs_no_room_and_has_the_image() -> None:
    stored = tree(state=UNSPENT)
    there = place(disk=GIB, images={"pid-5000": Present(stored.manifest.lineage, UNSPENT, "", False)})
    assert judge(there, stored, wish=replace(WISH, transfer="shared")).is_fit
    assert set(blocking(judge(there, stored))) == {"disk_space", "image_in_the_way"}


def test_consent_makes_a_warning_of_what_it_may() -> None:
    there = place(flags=(), build_ids={})
    verdict = judge(there, wish=replace(WISH, allow=frozenset(("cpu_features",))))
    assert blocking(verdict) == ["build_id"]
    assert "cpu_features" in [one.id for one in verdict.findings]


def test_what_was_given_up_for_a_host_goes_to_no_other() -> None:
    given = tree(state=MOVED, handoff="1" * 32, peer="c" * 32)
    assert "image_elsewhere" in blocking(judge(place(), given))
    assert judge(place(machine="c" * 32), given).is_fit


@pytest.mark.parametrize("state", [SPENT, RESTORING])
def test_what_lives_there_already_is_asked_nothing_more(state: str) -> None:
    given = tree(state=MOVED, handoff="1" * 32, peer=B)
    here = Present(given.manifest.lineage, state, "1" * 32, True)
    verdict = judge(place(disk=0, flags=(), images={"pid-5000": here}), given)
    assert verdict.is_fit and verdict.here == ("pid-5000",)
    other = replace(here, handoff="2" * 32)
    assert not judge(place(disk=0, images={"pid-5000": other}), given).is_fit


@pytest.mark.parametrize("free", [140 * GIB, GIB])
def test_what_is_half_restored_there_carries_on_with_its_map(free: int) -> None:
    """It may hold the memory already that its GPU lacks."""
    given = tree(state=MOVED, handoff="1" * 32, peer=B)
    here = Present(given.manifest.lineage, RESTORING, "1" * 32, True)
    there = place(
        images={"pid-5000": here}, target=replace(place().target, gpus=(gpu(0, THERE, free=free),), holders=())
    )
    assert judge(there, given).is_fit and judge(there, given).device_map == {FIRST: THERE}
    there = replace(there, images={"pid-5000": replace(here, state=SPENT)})
    assert judge(there, given).device_map == {}


def test_evidence_comes_as_it_was_sent() -> None:
    sent = source(tree(), tree(1, state=MOVED, handoff="1" * 32, peer=B))
    odd = replace(sent.trees[0].manifest, files=(OpenRegular("/srv/a\udcfe\n", 1),))
    sent = replace(sent, trees=(replace(sent.trees[0], manifest=odd), sent.trees[1]))
    assert unpack(pack(sent)) == sent
    assert set(pack(sent)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
    assert needed_paths(sent)[0] == ("/srv/a\udcfe\n", LIBRARY, "/srv/job/log")


def packed(data: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(data).encode())).decode()


@pytest.mark.parametrize(
    "word", ["", "no base64", "ä", base64.b64encode(b"x").decode(), packed([]), packed({}), packed({"hostname": 1})]
)
def test_evidence_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(FieldError):
        unpack(word)


def test_evidence_that_unpacks_to_too_much_is_refused() -> None:
    with pytest.raises(FieldError, match="more than"):
        unpack(base64.b64encode(zlib.compress(b" " * (65 << 20))).decode())


def test_one_name_twice_would_be_one_image_for_two_processes() -> None:
    with pytest.raises(FieldError, match="one name twice"):
        unpack(pack(source(tree(), tree())))


def test_mapped_files() -> None:
    maps = (
        b"55d0-55d1 r-xp 00000000 08:01 123        /usr/bin/python3\n"
        b"7f00-7f01 r--p 00000000 08:01 124        /usr/lib/a b.so\n"
        b"7f00-7f01 r-xp 00000000 08:01 124        /usr/lib/a b.so\n"
        b"7f01-7f02 rw-p 00000000 00:00 0 \n"
        b"7f02-7f03 rw-s 00000000 00:05 9          /dev/nvidia0\n"
        b"7f03-7f04 rw-s 00000000 00:05 10         /dev/shm/ring\n"
        b"7f04-7f05 r-xp 00000000 08:01 125        /usr/lib/gone.so (deleted)\n"
        b"7ffd-7ffe rw-p 00000000 00:00 0          [stack]\n"
    )
    assert parse_mapped(maps) == ("/usr/bin/python3", "/usr/lib/a b.so", "/dev/shm/ring")


def test_features_are_those_that_all_processors_have() -> None:
    text = "model name\t: EPYC\nflags\t\t: fpu avx2 amx_tile\n\nmodel name\t: other\nflags\t\t: fpu avx2 sse\n"
    assert parse_cpuinfo(text) == ("EPYC", ("avx2", "fpu"))
    assert parse_cpuinfo("") == ("", ())


# Which of several


def answer(host: str, **fields: Any) -> dict[str, Any]:
    return {"item": host, "fits": True, "findings": [], "refusals": [], "processes": 0, "free_bytes": 0, "here": [],
            "machine": host[-1] * 32, **fields}  # fmt: skip


def chosen(*answers: dict[str, Any], moved: tuple[str, ...] = ()) -> str:
    return choose([candidate_of(one, moved) for one in answers]).host


def test_the_one_with_the_fewest_warnings_then_processes_then_the_most_room() -> None:
    warned = {"findings": [{"severity": "warning"}]}
    assert chosen(answer("h1", **warned), answer("h2", processes=5)) == "h2"
    assert chosen(answer("h1", processes=1), answer("h2", free_bytes=1)) == "h2"
    assert chosen(answer("h1", free_bytes=1), answer("h2", free_bytes=2)) == "h2"
    assert chosen(answer("h2"), answer("h1")) == "h1"


def test_the_one_that_has_some_already_and_fits() -> None:
    assert chosen(answer("h1", free_bytes=9), answer("h2", here=["pid-1"], processes=7)) == "h2"
    assert chosen(answer("h1", free_bytes=9), answer("h2"), moved=("2" * 32,)) == "h2"


def test_why_not_is_told_of_each() -> None:
    choice = choose(
        [
            candidate_of(answer("h1", fits=False, refusals=["driver."])),
            candidate_of({"item": "h2", "unreachable": True, "msg": "no route"}),
            candidate_of({"item": "h3", "failed": True, "msg": "no criu"}),
            Candidate("h4", 0, (), 0, 0, 0),
        ]
    )
    assert choice.host == "h4" and choice.why == "the only one that fits"
    assert dict(choice.refused) == {
        "h1": ("driver.",),
        "h2": ("it can't be looked at: no route",),
        "h3": ("it can't be looked at: no criu",),
    }
    assert choose([]).host == "" and choose([]).why == "none of 0 fits"
