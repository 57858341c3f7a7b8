# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that go from host to host with real CRIU, over SSH: they count on, and never live twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.drain.drainlab import Drain, Point, Runs, on_each, problems_of, watched
from tests.system.lab import Job, Lab, Workload

STORE = "/var/lib/gpufleet/images"
# What the workloads write lies there, and goes along.
CARRY = "/var/lib/lab"
KEYS = "~root/.ssh/authorized_keys"


@pytest.fixture
def hosts(large_fleet: list[Lab]) -> Iterator[Sequence[Lab]]:
    """h1 to h3. Names of files differ from host to host, and the PIDs of h1 are none that the others have."""
    with watched(large_fleet[:3]) as labs:
        for number, lab in enumerate(labs):
            lab._started = max(lab._started, 100 * number)
        # A file that is not there is the answer, too.
        if not labs[0].host.sh("cat /run/lab/pids-are-high 2>/dev/null || true"):
            labs[0].use_up_low_pids()
            labs[0].host.sh("echo yes >/run/lab/pids-are-high")
        try:
            yield labs
        finally:
            on_each(labs, lambda lab: lab.host.sh("rm -rf /var/lib/gpufleet/images /opt/extra"))


def migrate(
    source: Lab, runs: Runs, *arguments: str, target: str = "h2", point: Point | None = None, **variables: object
) -> Drain:
    told = {
        "gpu_migrate_hosts": source.host.name,
        "gpu_migrate_target": target,
        "gpu_migrate_select": {"all": True},
        "gpu_migrate_carry": [CARRY],
        **variables,
    }
    return Drain(source.host.fleet, "migrate", runs, *arguments, variables=told, point=point)


def moved(source: Lab, target: Lab) -> None:
    """From here on they are looked for there."""
    target.jobs += source.jobs
    source.jobs = []


def lives(job: Job, labs: Sequence[Lab]) -> list[str]:
    """Hosts that have a process of this workload, running or not."""
    script = (
        "for one in /proc/[0-9]*; do case $(readlink $one/exe) in */gpusim-workload) "
        f"tr '\\0' ' ' <$one/cmdline | grep -q -- '--out /run/lab/{job.name} ' && ! grep -q '^State:.[ZX]' $one/status "
        "&& echo ${one#/proc/};; esac; done; true"
    )
    return [lab.host.name for lab in labs for _pid in lab.host.sh(script).split()]


def only_once(jobs: Sequence[Job], labs: Sequence[Lab], when: object = "") -> None:
    for job in jobs:
        found = lives(job, labs)
        assert len(found) <= 1, f"{job.name} lives on {found} {when}"


def no_keys(*labs: Lab) -> None:
    for lab in labs:
        assert "gpufleet-migrate" not in lab.host.sh(f"cat {KEYS}"), lab.host.name
        # grep and ls fail where there is nothing, which is what is wanted.
        assert lab.host.sh("ls -d /run/gpufleet/migrate-keys-* 2>/dev/null | grep -v lock || true") == ""


def images(lab: Lab) -> dict[str, str]:
    """State of each image of the host's store, by name."""
    script = (
        f"cd {STORE} 2>/dev/null || exit 0; "
        "for one in *; do [ -e $one/life.json ] && echo $one $(cat $one/life.json); done; true"
    )
    found = {}
    for line in lab.host.sh(script).splitlines():
        name, _space, told = line.partition(" ")
        found[name] = str(json.loads(told)["state"])
    return found


def test_there_and_back(hosts: Sequence[Lab], runs: Runs) -> None:
    """On GPUs with other UUIDs each time, the second time chosen by the playbook itself."""
    h1, h2, h3 = hosts
    jobs = h1.start(Workload("plain"), Workload("polling"))
    there = migrate(h1, runs).ok().says("from h1 to h2 (it fits)", "MiB of images", "none was measured there yet")
    moved(h1, h2)
    assert not h2.problems(), there.text()
    only_once(jobs, hosts)
    assert images(h1) == {}, "what is left on the source is spent, and goes"
    assert set(images(h2).values()) == {"spent"}
    no_keys(h1, h2)
    assert len(h2.ask("journal", "SELECT * FROM image_steps WHERE step = 'image_transfer'")) == 1
    back = migrate(h2, runs, "--check", target="auto").ok().says("Would migrate")
    assert back.recap()["h2"]["changed"] == 0
    assert lives(jobs[0], hosts) == ["h2"]
    back = migrate(h2, runs, target="auto", gpu_migrate_candidates="fleet").ok().says("from h2 to h1")
    moved(h2, h1)
    assert not h1.problems(), back.text()
    only_once(jobs, hosts)
    assert not h3.ask("leftovers")["stopped"]
    migrate(h2, runs).ok().says("Nothing is left to migrate", "other host h1")
    migrate(h3, runs).fails("gpu_migrate_select matches no process", "Nothing was changed")


def occupy(lab: Lab, pid: int) -> None:
    """A process of the host with this PID."""
    script = (
        "import os, sys, time\n"
        f"wanted = {pid}\n"
        "while True:\n"
        "    one = os.fork()\n"
        "    if not one:\n"
        "        if os.getpid() == wanted:\n"
        "            os.setsid()\n"
        "            os.closerange(0, 3)\n"
        "            time.sleep(300)\n"
        "        os._exit(0)\n"
        "    if one == wanted:\n"
        "        break\n"
        "    assert one < wanted, (one, wanted)\n"
        "    os.waitpid(one, 0)\n"
    )
    lab.host.run("python3", "-c", script)


@pytest.fixture
def unlike(hosts: Sequence[Lab]) -> Iterator[Lab]:
    """h3 with another patch level of the driver and another model of GPU, for as long as the test takes."""
    h3 = hosts[2]
    h3.host.sh("cp /run/gpusim/host /run/gpusim/host.kept; cat /proc/driver/nvidia/version >/run/lab/version.kept")
    h3.host.sh("sed -i 's/^model=.*/model=NVIDIA H100/' /run/gpusim/host")
    h3.host.sh("sed -i 's/580.159.04/580.126.09/' /proc/driver/nvidia/version")
    yield h3
    h3.host.sh("cat /run/gpusim/host.kept >/run/gpusim/host; cat /run/lab/version.kept >/proc/driver/nvidia/version")
    # It has ended by itself, perhaps.
    h3.host.sh("pkill -f 'wanted = [0-9]' || true")


def test_what_does_not_fit_is_refused_before_anything_is_stopped(hosts: Sequence[Lab], unlike: Lab, runs: Runs) -> None:
    h1, h2, _h3 = hosts
    # One library that the target lacks, and one of another build there.
    library = "$(ls /usr/lib/x86_64-linux-gnu/libz.so.1.* | head -n 1)"
    h1.host.sh(f"mkdir -p /opt/extra; cp {library} /opt/extra/one.so; cp {library} /opt/extra/two.so")
    unlike.host.sh(f"mkdir -p /opt/extra; cp {library} /opt/extra/two.so")
    change = (
        "import sys; path = '/opt/extra/two.so'; data = bytearray(open(path, 'rb').read());"
        "at = data.index(b'GNU\\0') + 4; data[at] ^= 1; open(path, 'wb').write(data)"
    )
    unlike.host.run("python3", "-c", change)
    job = h1.start(Workload("plain", environment={"LD_PRELOAD": "/opt/extra/one.so /opt/extra/two.so"}))[0]
    unlike.use_up_low_pids() if int(unlike.host.sh("echo $$")) > job.pid else None
    occupy(unlike, job.pid)
    before = h1.look(job)[job.pid]["start"]
    refused = migrate(h1, runs, target="h3").fails(
        "made under driver 580.159.04, and here is 580.126.09",
        "1 x NVIDIA H200, and here is 1 x NVIDIA H100",
        "no longer there: /opt/extra/one.so",
        "another build id: /opt/extra/two.so",
        f"{job.pid} of it is in use by PID {job.pid} (python3",
        "Nothing was stopped",
    )
    assert not refused.touched()
    assert h1.look(job)[job.pid]["start"] == before and h1.host.counts(f"/run/lab/{job.name}")
    # The one that fits is chosen, and it is told why not the other.
    h2.host.sh(f"mkdir -p /opt/extra; cp {library} /opt/extra/one.so; cp {library} /opt/extra/two.so")
    migrate(h1, runs, "--limit", "h1,h2,h3", "--check", target="auto", gpu_migrate_candidates="fleet").ok().says(
        "Would migrate", "Not h3:", "580.126.09"
    )
    assert images(h1) == {} and images(h2) == {} and images(unlike) == {}


# Killed at each step


def handed(state: str) -> Point:
    return Point("criu_image_handoff", "done", arguments={"state": state})


def imaged(state: str, moment: str, hold: bool = True) -> Point:
    return Point("criu_image", moment, arguments={"state": state}, hold=hold)


FETCHING = Point("copy", "done")
EVERY = (
    imaged("present", "start", hold=False),
    imaged("present", "done"),
    handed("offered"),
    handed("received"),
    FETCHING,
    handed("accepted"),
    Point("criu_image_handoff", "start", arguments={"state": "fenced"}, hold=False),
    handed("fenced"),
    Point("criu_image_handoff", "start", arguments={"state": "taken"}, hold=False),
    handed("taken"),
    imaged("restored", "start", hold=False),
    imaged("restored", "done"),
    handed("concluded"),
)
SAMPLE = (
    imaged("present", "start", hold=False),
    handed("accepted"),
    handed("fenced"),
    imaged("restored", "start", False),
)


def kill_modules(lab: Lab) -> None:
    """Whatever a task, its workers and CRIU are doing there."""
    lab.host.sh("pkill -9 -x python3; pkill -9 gpufleet-image; pkill -9 -x criu; pkill -9 -x rsync; true")


def tempt(labs: Sequence[Lab]) -> None:
    """Somebody who knows nothing of it restores whatever there is, on both hosts."""
    restore = {
        "name": "tempted",
        "gpufleet.checkpoint.criu_image": {"state": "restored", "store": STORE},
        "ignore_errors": True,
    }
    for lab in labs:
        lab.play(restore)


def run_chain(
    labs: Sequence[Lab], runs: Runs, points: Sequence[Point], end: Callable[[Drain], None], killed: Sequence[Lab] = ()
) -> None:
    """Each attempt is ended one step later than the one before, the last one finishes."""
    h1, h2 = labs[:2]
    jobs = h1.start(*[Workload("polling", vram=32, rate=64)] * 2)
    for point in points:
        drain = migrate(h1, runs, point=point).come()
        for lab in killed:
            kill_modules(lab)
        end(drain)
        only_once(jobs, labs, f"at the {point}")
    drain = migrate(h1, runs)
    drain.wait()
    only_once(jobs, labs)
    drain.ok()
    moved(h1, h2)
    no_keys(*labs[:2])
    found = problems_of(h2)
    assert not found, (found, drain.text())


def test_killed_and_run_again(hosts: Sequence[Lab], runs: Runs) -> None:
    run_chain(hosts, runs, SAMPLE, Drain.kill_all)


@pytest.mark.whole
@pytest.mark.parametrize("end", [Drain.kill, Drain.kill_all])
def test_killed_at_every_step(hosts: Sequence[Lab], runs: Runs, end: Callable[[Drain], None]) -> None:
    run_chain(hosts, runs, EVERY, end)


@pytest.mark.whole
@pytest.mark.parametrize("side", [0, 1])
def test_a_side_that_is_killed_at_every_step(hosts: Sequence[Lab], runs: Runs, side: int) -> None:
    """Modules, workers, CRIU and rsync of one host; the playbook goes on, and may bring them back."""
    h1, h2 = hosts[:2]
    jobs = h1.start(*[Workload("polling", vram=32, rate=64)] * 2)
    for point in EVERY:
        going = Point(point.action, point.moment, point.host, point.arguments, hold=False)
        drain = migrate(h1, runs, point=going).come()
        kill_modules(hosts[side])
        drain.wait()
        only_once(jobs, hosts, f"at the {point}")
        if lives(jobs[0], hosts) == ["h2"]:
            break
    drain = migrate(h1, runs)
    drain.wait()
    only_once(jobs, hosts)
    moved(h1, h2)
    found = problems_of(h2)
    assert not found, (found, drain.text())


@pytest.mark.whole
@pytest.mark.parametrize("point", EVERY, ids=str)
def test_whoever_restores_on_both_hosts_after_a_kill_gets_one_life(
    hosts: Sequence[Lab], runs: Runs, point: Point
) -> None:
    h1, h2 = hosts[:2]
    jobs = h1.start(Workload("plain"))
    migrate(h1, runs, point=point).come().kill_all()
    tempt(hosts[:2])
    only_once(jobs, hosts, f"at the {point}")
    tempt(hosts[1::-1])
    only_once(jobs, hosts, f"at the {point}")
    migrate(h1, runs).wait()
    only_once(jobs, hosts)
    assert lives(jobs[0], hosts) == ["h2"]
    moved(h1, h2)


def test_a_target_that_can_not_restore_gives_it_back(hosts: Sequence[Lab], runs: Runs) -> None:
    """CRIU fails there, after the source was fenced: the process comes back where it was."""
    h1, h2 = hosts[:2]
    job = h1.one()
    broken = '#!/bin/sh\n[ "$1" = restore ] && exit 1\nexec /usr/sbin/criu "$@"\n'
    h2.host.put("/opt/extra/criu", broken, "755")
    h1.host.sh("mkdir -p /opt/extra; ln -sf /usr/sbin/criu /opt/extra/criu")
    told = migrate(h1, runs, gpu_migrate_criu_executable="/opt/extra/criu").fails(
        "not migrated to h2", "Bring them to life on the target", "On h1 again: pid-"
    )
    assert lives(job, hosts) == ["h1"], told.text()
    assert set(images(h2).values()) == {"returned"}
    no_keys(h1, h2)


def test_a_target_that_could_restore_nothing_gives_back_what_it_never_ran(hosts: Sequence[Lab], runs: Runs) -> None:
    """As when its GPU is broken: who it is, and what is in its store, is all that it is asked for."""
    h1, h2 = hosts[:2]
    job = h1.one()
    migrate(h1, runs, point=handed("fenced")).come().kill_all()
    h2.host.sh("mv /usr/sbin/criu /usr/sbin/criu.away")
    try:
        told = migrate(h1, runs, gpu_migrate_direction="back").ok().says("On h1 again: pid-")
    finally:
        h2.host.sh("mv /usr/sbin/criu.away /usr/sbin/criu")
    assert lives(job, hosts) == ["h1"], told.text()
    assert set(images(h2).values()) == {"returned"}
    migrate(h1, runs, gpu_migrate_direction="back").ok().says("Nothing was on its way")


@pytest.fixture
def cable(hosts: Sequence[Lab]) -> Iterator[Lab]:
    """h2, whose network cable the test may pull."""
    yield hosts[1]
    hosts[1].host.fleet.must("mend", "h2")


def test_a_target_that_is_gone_after_the_dump_leaves_them_where_they_were(
    hosts: Sequence[Lab], cable: Lab, runs: Runs
) -> None:
    h1, h2 = hosts[:2]
    job = h1.one()
    drain = migrate(h1, runs, point=imaged("present", "done")).come()
    assert lives(job, hosts) == [], "it is in an image, and nowhere else"
    h1.host.fleet.must("cut", "h2")
    drain.go()
    drain.fails("not migrated to h2", "h2 did not answer when it was to make room for the copies", "On h1 again: pid-")
    h1.host.fleet.must("mend", "h2")
    assert lives(job, hosts) == ["h1"], drain.text()
    assert images(h2) == {}
    migrate(h1, runs).ok()
    moved(h1, h2)
    only_once([job], hosts)
    no_keys(h1, h2)


@pytest.mark.whole
def test_many_both_ways(hosts: Sequence[Lab], runs: Runs) -> None:
    """Ten processes, from h1 to h2 and back."""
    h1, h2 = hosts[:2]
    there = h1.start(*[Workload("plain", vram=4)] * 10)
    migrate(h1, runs).ok()
    moved(h1, h2)
    assert not h2.problems()
    only_once(there, hosts)
    migrate(h2, runs, target="h1").ok()
    moved(h2, h1)
    assert not h1.problems()
    only_once(there, hosts)
