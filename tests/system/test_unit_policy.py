# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services of a real systemd that would kill a parked process, or start a second copy of one that is in an image: held,
and let go again, whatever happens in between."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.hosts import ROOT, Host
from tests.system.lab import INSIDE, LAB, Job, Lab, labs
from tests.system.playing import cuda
from tests.unit.plugins.documentation.returned import problems

REPORTER = "/usr/local/lib/reporter.so"
HOLD_UNITS = "/usr/local/lib/hold_units.py"
DROP_IN = "zzzz-gpufleet-hold.conf"
WATCHED = ("Type=notify", "WatchdogSec=2", "WatchdogSignal=SIGKILL", "Restart=always", "RestartSec=100ms")
QUIET = ("StandardOutput=null", "StandardError=null")
UTILS = ROOT / "plugins/module_utils"


def put_bytes(host: Host, path: str, content: bytes) -> None:
    host.run("sh", "-c", 'base64 -d >"$1"', "-", path, stdin=base64.b64encode(content).decode())


def packed() -> bytes:
    """module_utils, as an archive of the collection."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in sorted(UTILS.rglob("*.py")):
            inside = Path("ansible_collections/gpufleet/checkpoint/plugins/module_utils") / path.relative_to(UTILS)
            archive.add(path, str(inside))
    return stream.getvalue()


@pytest.fixture(scope="module")
def host(simulator: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    library = tmp_path_factory.mktemp("reporter") / "reporter.so"
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(INSIDE / "reporter.c")]
    subprocess.run([*compiler, "-lpthread"], stdin=subprocess.DEVNULL, check=True)
    with labs(simulator, "--gpus", "1", "--vram", "1024", init="systemd") as (only,):
        put_bytes(only.host, REPORTER, library.read_bytes())
        put_bytes(only.host, "/root/collection.tgz", packed())
        only.host.sh(
            "mkdir -p /usr/local/lib/collections && tar xzf /root/collection.tgz -C /usr/local/lib/collections"
        )
        only.host.put(HOLD_UNITS, (INSIDE / "hold_units.py").read_text())
        yield only


def service(lab: Lab, name: str, *properties: str, options: tuple[str, ...] = (), ready: bool = True) -> Job:
    """A unit of its own file in /etc. name: "NAME.service", or "NAME@INSTANCE.service" of a template."""
    out = f"/run/lab/{name}"
    lines = [*QUIET, f"Environment=LD_PRELOAD={REPORTER}{'' if ready else ' REPORTER_NOT_READY=1'}", *properties]
    command = ["/usr/local/bin/gpusim-workload", "--vram", "16", "--out", out, *options]
    text = "\n".join(["[Service]", f"ExecStart={' '.join(command)}", *lines, "[Install]", "WantedBy=multi-user.target"])
    head, at, _instance = name.partition("@")
    lab.host.put(f"/etc/systemd/system/{head}@.service" if at else f"/etc/systemd/system/{name}", text + "\n")
    lab.host.run("rm", "-f", out)
    lab.host.sh(f"systemctl daemon-reload; systemctl start --no-block {name}")
    return job_of(lab, name)


def transient(lab: Lab, name: str, *properties: str) -> Job:
    out = f"/run/lab/{name}"
    lines = [*QUIET, f"Environment=LD_PRELOAD={REPORTER}", *properties]
    lab.host.run("rm", "-f", out)
    lab.host.run(
        *("systemd-run", "--quiet", f"--unit={name}", "--collect", *(f"--property={line}" for line in lines)),
        *("/usr/local/bin/gpusim-workload", "--vram", "16", "--out", out),
    )
    return job_of(lab, name)


def job_of(lab: Lab, name: str) -> Job:
    out = f"/run/lab/{name}"
    job = Job(name, int(lab.host.sh(f"until [ -s {out} ]; do sleep 0.02; done; cat {out}.pid")), "")
    lab.jobs.append(job)
    return job


def show(lab: Lab, name: str) -> dict[str, str]:
    keys = ("MainPID", "WatchdogUSec", "Restart", "ActiveState", "SubState", "NRestarts", "Result", "DropInPaths")
    told = lab.host.run("systemctl", "show", name, *(f"--property={key}" for key in keys))
    return dict(line.split("=", 1) for line in told.splitlines())


def is_as_ever(lab: Lab, name: str, job: Job) -> bool:
    """The same process, with the watchdog and the Restart= that it was started with."""
    told = show(lab, name)
    return (
        told["MainPID"] == str(job.pid)
        and (told["WatchdogUSec"], told["Restart"], told["NRestarts"]) == ("2s", "always", "0")
        and DROP_IN not in told["DropInPaths"]
    )


def stop(lab: Lab, *names: str) -> None:
    """As an administrator does; the jobs are not expected to live."""
    lab.host.sh(f"systemctl stop {' '.join(names)}; systemctl reset-failed {' '.join(names)} 2>/dev/null; :")
    lab.jobs = [job for job in lab.jobs if job.name not in names]
    lab.host.sh(f"cd /etc/systemd/system && rm -rf {' '.join(names)} && systemctl daemon-reload")


def units(lab: Lab, *arguments: str) -> Any:
    return json.loads(lab.host.run("python3", HOLD_UNITS, *arguments))


def test_a_service_with_a_watchdog_lives_on_parked(host: Lab) -> None:
    name = "watched.service"
    with host.watched() as lab:
        job = service(lab, name, *WATCHED)
        refused, foreseen, held, again = lab.play(
            cuda("checkpointed", [job.pid]),
            cuda("checkpointed", [job.pid], unit_policy="hold", check=True),
            cuda("checkpointed", [job.pid], unit_policy="hold"),
            cuda("checkpointed", [job.pid], unit_policy="hold"),
        )
        refused.refused(f"{name} has a watchdog of 2 s", "unit_policy: hold", "allow: [systemd_watchdog]")
        expected = [{"unit": name, "held": True, "watchdog": 2.0, "restart": False}]
        assert foreseen.ok(changed=True).data["units"] == expected
        assert held.ok(changed=True).data["units"] == expected
        assert not {"systemd_watchdog", "unit_hold"} & {one["id"] for one in held.data["findings"]}
        assert problems("cuda_checkpoint", held.data) == []
        assert again.ok(changed=False).data["units"] == []
        time.sleep(6.5)
        assert lab.is_parked(job)
        told = show(lab, name)
        assert (told["MainPID"], told["NRestarts"], told["Restart"]) == (str(job.pid), "0", "always")
        # Neither systemd's own reload nor its re-execution brings the watchdog back.
        lab.host.sh("systemctl daemon-reload; systemctl daemon-reexec")
        time.sleep(3)
        assert lab.is_parked(job)
        (back,) = lab.play(cuda("running", [job.pid]))
        assert back.ok(changed=True).data["units"] == [{**expected[0], "held": False}]
        assert is_as_ever(lab, name, job)
        time.sleep(3)
        assert is_as_ever(lab, name, job), "it reports, and is left alone"
        # The watchdog bites as before.
        lab.host.run("kill", "-STOP", str(job.pid))
        lab.wait_for("the watchdog", lambda: show(lab, name)["NRestarts"] == "1", 10)
        stop(lab, name)


def test_two_of_one_template_and_a_failure_takes_all_back(host: Lab) -> None:
    names = ("copy@1.service", "copy@2.service", "busy.service")
    with host.watched() as lab:
        first, second = (service(lab, name, *WATCHED) for name in names[:2])
        busy = service(lab, names[2], *WATCHED, options=("--kind", "longkernel", "--kernel-ms", "6000"))
        pids = [first.pid, second.pid, busy.pid]
        failed, held = lab.play(
            cuda("checkpointed", pids, unit_policy="hold", lock_timeout=0.5),
            cuda("checkpointed", pids[:2], unit_policy="hold"),
        )
        failed.refused(f"PID {busy.pid}", "NOT_READY")
        assert sorted((one["unit"], one["held"]) for one in failed.data["units"]) == sorted((n, False) for n in names)
        assert is_as_ever(lab, names[2], busy)
        assert [one["unit"] for one in held.ok(changed=True).data["units"]] == list(names[:2])
        time.sleep(3)
        assert lab.is_parked(first, second)
        one, other = lab.play(cuda("running", [first.pid]), cuda("running", [second.pid]))
        assert one.ok(changed=True).data["units"][0]["unit"] == names[0]
        assert other.ok(changed=True).data["units"][0]["unit"] == names[1]
        assert is_as_ever(lab, names[0], first) and is_as_ever(lab, names[1], second)
        stop(lab, *names)


def test_what_ended_while_it_was_parked_is_started_anew_with_its_watchdog(host: Lab) -> None:
    """In memory Restart= is left alone: a process that ends is no process that is somewhere else."""
    name = "lasting.service"
    with host.watched() as lab:
        job = service(lab, name, *WATCHED)
        lab.play(cuda("checkpointed", [job.pid], unit_policy="hold"))[0].ok(changed=True)
        lab.jobs.remove(job)
        lab.host.run("rm", "-f", f"/run/lab/{name}")
        lab.host.run("kill", "-KILL", str(job.pid))
        anew = job_of(lab, name)
        lab.wait_for("its start", lambda: show(lab, name)["SubState"] == "running")
        told = show(lab, name)
        assert (told["MainPID"], told["WatchdogUSec"], told["NRestarts"]) == (str(anew.pid), "2s", "1")
        (next_one,) = lab.play(cuda("running", [anew.pid]))
        next_one.ok(changed=False)
        assert units(lab, "rows") == []
        stop(lab, name)


def test_what_a_killed_run_left_held_is_let_go(host: Lab) -> None:
    """Of a unit without a file of its own, too."""
    name = "forgotten.service"
    with host.watched() as lab:
        job = transient(lab, name, *WATCHED)
        # A run that dies between hold and the first step.
        assert units(lab, "hold", "a" * 32, str(job.pid))["done"]
        assert show(lab, name)["Restart"] == "no" and show(lab, name)["WatchdogUSec"] != "2s"
        (asked,) = lab.play(cuda("running", [job.pid]))
        assert any(f"{name} was still held" in warning for warning in asked.ok(changed=False).data["warnings"])
        assert is_as_ever(lab, name, job) and units(lab, "rows") == []
        stop(lab, name)


def test_what_can_not_be_held_is_refused_before_anything_happens(host: Lab) -> None:
    starting = "starting.service"
    with host.watched() as lab:
        root = lab.host.sh("[ -e /sys/fs/cgroup/cgroup.procs ] && echo /sys/fs/cgroup || echo /sys/fs/cgroup/unified")
        slow = service(lab, starting, *WATCHED, "TimeoutStartSec=600", ready=False)
        user, other = lab.one(), lab.one()
        group = f"{root}/user.slice/user-1000.slice/user@1000.service/app.slice/training.service"
        foreign = f"{root}/system.slice/nobody-runs-it.service"
        lab.host.sh(f"mkdir -p {group} {foreign}; echo {user.pid} >{group}/cgroup.procs; "
                    f"echo {other.pid} >{foreign}/cgroup.procs")  # fmt: skip
        try:
            of_user, of_nobody, early = lab.play(
                cuda("checkpointed", [user.pid], unit_policy="hold"),
                cuda("checkpointed", [other.pid], unit_policy="hold"),
                cuda("checkpointed", [slow.pid], unit_policy="hold"),
            )
            of_user.refused("training.service of user id 1000", "the user's own service manager")
            of_nobody.refused("nobody-runs-it.service", "this host's systemd does not run")
            early.refused(starting, "activating")
            assert {one["id"] for one in of_user.data["findings"] if one["severity"] == "blocking"} == {"unit_hold"}
        finally:
            lab.end(user, other)
            lab.host.sh(f"rmdir {group} {group}/.. {group}/../.. {foreign}; :")
        stop(lab, starting)


def test_no_second_copy_beside_an_image(host: Lab) -> None:
    """What CRIU does to the service, without CRIU: its main process is killed."""
    name, lineage = "imaged.service", "b" * 32
    etc = f"/etc/systemd/system/{name}.d"
    stop_post = ("RuntimeDirectory=imaged", "ExecStopPost=/usr/bin/touch /run/lab/stop-post", "RemainAfterExit=yes")
    with host.watched() as lab:
        lab.host.put(f"{etc}/99-ours.conf", "[Unit]\nOnFailure=alarm.service\n[Service]\nRestart=always\n")
        lab.host.put("/etc/systemd/system/alarm.service", "[Service]\nExecStart=/usr/bin/touch /run/lab/alarm\n")
        lab.host.sh("rm -f /run/lab/alarm /run/lab/stop-post")
        job = service(lab, name, *WATCHED, *stop_post)
        lab.wait_for("its start", lambda: show(lab, name)["SubState"] == "running")
        held = units(lab, "hold", lineage, str(job.pid))
        assert held["done"] == [{"unit": name, "held": True, "watchdog": 2.0, "restart": True}]
        assert held["free"] == [job.pid]
        assert units(lab, "hold", lineage, str(job.pid))["done"] == held["done"], "once more is no harm"
        assert show(lab, name)["Restart"] == "no"
        assert units(lab, "copies", lineage) == [], "it is still the first one"
        job.may_be_gone = "it is in an image, so to speak"
        lab.host.run("kill", "-KILL", str(job.pid))
        lab.wait_for("its end", lambda: show(lab, name)["ActiveState"] == "inactive")
        time.sleep(1)
        told = show(lab, name)
        assert (told["SubState"], told["Result"], told["NRestarts"]) == ("dead", "success", "0")
        # Nothing of it is cleared away, and nobody is alarmed.
        assert lab.host.sh("ls -d /run/imaged") and not lab.host.sh("ls /run/lab | grep -x -e alarm -e stop-post; :")
        assert "Assertion failed" in lab.host.sh(f"systemctl start {name} 2>&1", rc=1)
        assert units(lab, "copies", lineage) == []
        released = units(lab, "release", lineage)
        assert released == {"done": [{**held["done"][0], "held": False}], "warnings": []}
        assert units(lab, "release", lineage) == {"done": [], "warnings": []}
        time.sleep(1)
        assert show(lab, name)["ActiveState"] == "inactive"
        lab.host.run("test", "!", "-e", f"/run/systemd/system/{name}.d")
        lab.host.run("systemctl", "start", name)
        assert show(lab, name)["Restart"] == "always"
        stop(lab, name, etc.rpartition("/")[2], "alarm.service")


def test_a_unit_does_not_start_beside_what_was_restored_from_its_image(host: Lab) -> None:
    name, lineage, scope = "restored.service", "f" * 32, "gpufleet-restored-test.scope"
    with host.watched() as lab:
        job = service(lab, name, *WATCHED)
        lab.wait_for("its start", lambda: show(lab, name)["SubState"] == "running")
        units(lab, "hold", lineage, str(job.pid))
        lab.jobs.remove(job)
        lab.host.run("kill", "-KILL", str(job.pid))
        lab.host.sh(f"setsid -f systemd-run --quiet --scope --unit={scope} sleep 1000 </dev/null >/dev/null 2>&1")
        lab.wait_for("a life", lambda: lab.host.sh("pgrep -x sleep; :"))
        life = lab.host.sh("pgrep -x sleep")
        assert units(lab, "release", lineage, life)["done"][0]["held"] is False
        assert show(lab, name)["Restart"] == "always"
        assert "Assertion failed" in lab.host.sh(f"systemctl start {name} 2>&1", rc=1)
        # Into an image once more: now it is the image that it must not start beside.
        units(lab, "hold", lineage, life)
        lab.host.run("kill", "-KILL", life)
        lab.wait_for("its end", lambda: not lab.host.sh("pgrep -x sleep; :"))
        assert "Assertion failed" in lab.host.sh(f"systemctl start {name} 2>&1", rc=1)
        lab.host.sh(f"setsid -f systemd-run --quiet --scope --unit={scope} sleep 1000 </dev/null >/dev/null 2>&1")
        lab.wait_for("a life", lambda: lab.host.sh("pgrep -x sleep; :"))
        life = lab.host.sh("pgrep -x sleep")
        units(lab, "release", lineage, life)
        lab.host.run("kill", "-KILL", life)
        lab.wait_for("its end", lambda: lab.host.sh(f"systemctl show -p ActiveState --value {scope}") == "inactive")
        # Nobody has to lift anything: with that life, the reason has gone.
        lab.host.run("systemctl", "start", name)
        assert units(lab, "mend") == [] and units(lab, "rows") == []
        assert DROP_IN not in show(lab, name)["DropInPaths"]
        stop(lab, name)


def test_a_parked_companion_is_neither_killed_nor_continued(host: Lab) -> None:
    """systemd sends the rest of a unit SIGTERM, SIGCONT and SIGKILL when its main process ends."""
    name, lineage = "pair.service", "c" * 32
    with host.watched() as lab:
        job = service(lab, name, *WATCHED)
        group = lab.host.sh(f"sed -n 's/^0:://p' /proc/{job.pid}/cgroup")
        root = lab.host.sh("[ -e /sys/fs/cgroup/cgroup.procs ] && echo /sys/fs/cgroup || echo /sys/fs/cgroup/unified")
        script = f"echo $$ >/run/lab/companion; echo $$ >{root}{group}/cgroup.procs; exec sleep 1000"
        lab.host.sh(f"rm -f /run/lab/companion; setsid -f sh -c '{script}' </dev/null >/dev/null 2>&1")
        companion = lab.host.sh("until [ -s /run/lab/companion ]; do sleep 0.02; done; cat /run/lab/companion")
        lab.wait_for("its start", lambda: show(lab, name)["SubState"] == "running")
        units(lab, "hold", lineage, str(job.pid), companion)
        job.may_be_gone = "it is in an image, so to speak"
        lab.host.sh(f"kill -STOP {companion}; kill -KILL {job.pid}")
        lab.wait_for("its end", lambda: show(lab, name)["ActiveState"] == "inactive")
        time.sleep(1)
        assert lab.host.sh(f"cut -d' ' -f3 /proc/{companion}/stat") == "T"
        lab.host.run("kill", "-KILL", companion)
        units(lab, "release", lineage)
        stop(lab, name)


def test_the_daemon_of_a_job_that_is_not_its_own_is_not_held(host: Lab) -> None:
    """A job that was started over SSH, or by cron, is in the unit of that daemon: nobody may lock himself out."""
    name, lineage = "daemon.service", "d" * 32
    script = "#!/bin/sh\nsetsid -f sh -c 'echo $$ >/run/lab/theirs; exec sleep 1000'\nexec sleep 1000\n"
    with host.watched() as lab:
        lab.host.put("/usr/local/bin/daemon-of-jobs", script, "755")
        lab.host.run("systemd-run", "--quiet", f"--unit={name}", "--property=Restart=always", "daemon-of-jobs")
        theirs = lab.host.sh("until [ -s /run/lab/theirs ]; do sleep 0.02; done; cat /run/lab/theirs")
        held = units(lab, "hold", lineage, theirs)
        assert held["done"] == [] and show(lab, name)["Restart"] == "always" and units(lab, "rows") == []
        stop(lab, name)


def test_a_unit_that_starts_with_the_host_is_found_beside_its_image(host: Lab) -> None:
    name, lineage = "enabled.service", "e" * 32
    with host.watched() as lab:
        job = service(lab, name, *WATCHED)
        lab.host.run("systemctl", "enable", "--quiet", name)
        lab.wait_for("its start", lambda: show(lab, name)["SubState"] == "running")
        units(lab, "hold", lineage, str(job.pid))
        lab.jobs.remove(job)
        lab.host.run("kill", "-KILL", str(job.pid))
        lab.host.run("rm", "-f", f"/run/lab/{name}")
        lab.host.disconnect()
        lab.host.fleet.must("reboot", lab.host.name)
        lab.host.put(LAB, (INSIDE / "lab.py").read_text())
        lab.host.sh("[ -e /run/lab ] || ln -s /var/lib/lab /run/lab")
        anew = lab.host.sh(f"until [ $(systemctl show {name} -p SubState --value) = running ]; do sleep 0.1; done; "
                           f"systemctl show {name} -p MainPID --value")  # fmt: skip
        assert show(lab, name)["Restart"] == "always", "a reboot ends what is held"
        (found,) = units(lab, "copies", lineage)
        assert name in found and f"PID {anew}" in found and f"systemctl stop {name}" in found
        lab.host.run("systemctl", "stop", name)
        assert units(lab, "copies", lineage) == []
        assert units(lab, "release", lineage)["warnings"] == [] and units(lab, "rows") == []
        stop(lab, name)
