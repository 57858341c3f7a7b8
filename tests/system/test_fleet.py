# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The test fleet itself: what a host can do, and that nothing is left of a fleet, whatever was killed."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLEET = ROOT / "tests/fleet/fleet"
CAP_SYS_MODULE = 16

if os.geteuid() != 0:
    pytest.fail(
        f"{Path(__file__).name} needs root: it makes namespaces, mounts and cgroups; run it with sudo", pytrace=False
    )


class Fleet:
    """The tool under test, and what the kernel has of one fleet: looked up here, not asked from the tool."""

    def __init__(self, directory: Path, prefix: str = "gpufleet") -> None:
        self.directory = directory
        self.id = hashlib.sha256(str(directory).encode()).hexdigest()[:8]
        self.prefix = prefix
        self.name = f"{prefix}-{self.id}"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "FLEET_DIR": str(self.directory), "FLEET_PREFIX": self.prefix}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(FLEET), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, expect: int | None = 0) -> str:
        done = subprocess.run(
            [str(FLEET), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        if expect is not None:
            assert done.returncode == expect, f"fleet {' '.join(arguments)}: {done.returncode}\n{done.stdout}"
        return done.stdout.strip()

    def sh(self, host: str, script: str, expect: int | None = 0) -> str:
        return self.run("exec", host, "sh", "-c", script, expect=expect)

    def hosts(self) -> dict[str, dict[str, object]]:
        return {host["name"]: host for host in json.loads(self.run("status", "--json"))["hosts"]}

    def boot_id(self, host: str) -> str:
        return self.sh(host, "cat /proc/sys/kernel/random/boot_id")

    def processes(self) -> dict[int, str]:
        """Living processes in its cgroups, in its namespaces or named after its directory."""
        found = {}
        control = Path("/run/netns") / self.name
        control_inode = control.stat().st_ino if control.exists() else None
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                    continue  # this machine's PID 1 takes its time to reap
                words = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
                environment = (entry / "environ").read_text(errors="replace")
                belongs = (
                    self.name in (entry / "cgroup").read_text()
                    or f"{self.name}-h" in (entry / "mountinfo").read_text()
                    or (entry / "ns/net").stat().st_ino == control_inode
                    or f"FLEET_DIR={self.directory}\0" in environment
                    or str(self.directory) in words
                )
            except (OSError, ValueError):
                continue
            if belongs:
                found[int(entry.name)] = words
        return found

    def traces(self) -> list[str]:
        """Everything of this fleet that the kernel still has, and its files."""
        found = [f"process {pid}: {words}" for pid, words in self.processes().items()]
        found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if self.name in line]
        for namespaces in Path("/run/netns"), Path("/var/run/netns"):
            found += [str(path) for path in namespaces.glob(f"{self.name}*")]
        found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{self.name}*")]
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            try:
                if str(self.directory) in backing.read_text():
                    found.append(f"{backing.parents[1].name}: {backing.read_text().strip()}")
            except OSError:
                continue
        found += [str(path) for path in Path(f"/run/{self.prefix}-checkpoint").glob(f"{self.id}*")]
        found += [str(path) for path in self.directory.glob("*")]
        return found

    def hosts_in_kernel(self) -> int:
        """Hosts whose PID 1 runs."""
        unified = subprocess.run(
            ["findmnt", "-n", "-t", "cgroup2", "-o", "TARGET"], capture_output=True, text=True, check=True
        ).stdout.split()[0]
        return sum(
            bool(procs.read_text().strip())
            for host in Path(unified, self.name).glob("h*/host")
            for procs in [*host.glob("init/cgroup.procs"), *host.glob("payload/init.scope/cgroup.procs")]
        )


def inotify_limit() -> int:
    return int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())


def wait_for(what: str, condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def parent_directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="fleet tests,")).resolve()  # a path that is not easy
    yield path
    shutil.rmtree(path)


def managed(directory: Path) -> Iterator[Fleet]:
    directory.mkdir()
    fleet = Fleet(directory)
    try:
        yield fleet
    finally:
        fleet.run("down")
    assert fleet.traces() == []


@pytest.fixture
def fleet(parent_directory: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    yield from managed(parent_directory / f"f{abs(hash(request.node.name)) % 10**8}")


@pytest.fixture(scope="module")
def plain(parent_directory: Path) -> Iterator[Fleet]:
    """Two hosts without systemd, shared by the tests that leave them as they were."""
    for fleet in managed(parent_directory / "plain"):
        fleet.run("up", "--hosts", "2", "--gpus", "0", "--init", "none")
        yield fleet


@pytest.fixture(scope="module")
def booted(parent_directory: Path) -> Iterator[Fleet]:
    """Two hosts with systemd, likewise."""
    for fleet in managed(parent_directory / "booted"):
        fleet.run("up", "--hosts", "2", "--gpus", "0", "--init", "systemd")
        yield fleet


@pytest.fixture(params=["none", "systemd"])
def either(request: pytest.FixtureRequest) -> Fleet:
    fleet: Fleet = request.getfixturevalue("plain" if request.param == "none" else "booted")
    return fleet


# --- up and down


@pytest.mark.parametrize("init,rounds", [("none", 5), ("systemd", 1)])
def test_sixteen_hosts_up_and_down(fleet: Fleet, init: str, rounds: int) -> None:
    limit = inotify_limit()
    for _dummy in range(rounds):
        said = fleet.run("up", "--hosts", "16", "--gpus", "0", "--init", init)
        lines = [line.split() for line in said.splitlines() if line.startswith("h")]
        assert [line[0] for line in lines] == [f"h{number}" for number in range(1, 17)]
        assert all(line[2] in ("running", "degraded") for line in lines)
        assert fleet.hosts_in_kernel() == 16
        names = [fleet.run("exec", f"h{number}", "hostname") for number in (1, 16)]
        assert names == ["h1", "h16"]
        fleet.run("down")
        assert fleet.traces() == []
    assert inotify_limit() == limit


def test_up_replaces_the_fleet_that_is_there(fleet: Fleet) -> None:
    fleet.run("up", "--hosts", "3", "--gpus", "0", "--init", "none")
    before = set(fleet.processes())
    fleet.run("up", "--hosts", "1", "--gpus", "0", "--init", "none")
    assert list(fleet.hosts()) == ["h1"]
    assert not before & set(fleet.processes())


def test_two_fleets_do_not_meet(parent_directory: Path, plain: Fleet) -> None:
    for other in managed(parent_directory / "other"):
        other.run("up", "--hosts", "1", "--gpus", "0", "--init", "none")
        assert other.boot_id("h1") != plain.boot_id("h1")
        assert other.sh("h1", "cat /etc/machine-id") != plain.sh("h1", "cat /etc/machine-id")
        assert not other.processes().keys() & plain.processes().keys()
    assert plain.run("exec", "h1", "hostname") == "h1"


# --- killed


def killed_up(fleet: Fleet, moment: Callable[[], object], hosts: int, init: str) -> None:
    process = fleet.start("up", "--hosts", str(hosts), "--gpus", "0", "--init", init)
    wait_for("the moment to kill", lambda: moment() or process.poll() is not None)
    assert process.poll() is None, f"up ended too early: {process.communicate()[0]}"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


MOMENTS: dict[str, Callable[[Fleet], object]] = {
    "state written": lambda fleet: (fleet.directory / "fleet.json").exists(),
    "network made": lambda fleet: Path("/run/netns", fleet.name).exists(),
    "first disk": lambda fleet: (fleet.directory / "hosts/h1/disk.img").exists(),
    "first PID 1": lambda fleet: fleet.hosts_in_kernel() >= 1,
    "half of the disks": lambda fleet: (fleet.directory / "hosts/h8/disk.img").exists(),
    "last disk": lambda fleet: (fleet.directory / "hosts/h16/disk.img").exists(),
    "half of the hosts": lambda fleet: fleet.hosts_in_kernel() >= 8,
    "inventory written": lambda fleet: (fleet.directory / "inventory.yml").exists(),
    "all hosts": lambda fleet: fleet.hosts_in_kernel() >= 16,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_up_killed(fleet: Fleet, moment: str) -> None:
    limit = inotify_limit()
    killed_up(fleet, lambda: MOMENTS[moment](fleet), 16, "none")
    fleet.run("down")
    assert fleet.traces() == []
    assert inotify_limit() == limit


@pytest.mark.parametrize("moment", ["half of the disks", "half of the hosts", "all hosts"])
def test_up_with_systemd_killed_and_up_again(fleet: Fleet, moment: str) -> None:
    killed_up(fleet, lambda: MOMENTS[moment](fleet), 16, "systemd")
    fleet.run("up", "--hosts", "1", "--gpus", "0", "--init", "systemd")
    assert list(fleet.hosts()) == ["h1"]
    assert fleet.hosts_in_kernel() == 1


def test_interrupted_up_leaves_its_log_only(fleet: Fleet) -> None:
    process = fleet.start("up", "--hosts", "16", "--gpus", "0", "--init", "none")
    wait_for("a host", lambda: fleet.hosts_in_kernel() >= 1)
    process.terminate()
    said = process.communicate()[0]
    assert process.returncode == 128 + signal.SIGTERM, said
    assert fleet.traces() == [str(fleet.directory / "failed-up.log")]


def named(fleet: Fleet, word: str) -> list[int]:
    return [pid for pid, words in fleet.processes().items() if word in words]


def test_supervisor_killed(fleet: Fleet) -> None:
    fleet.run("up", "--hosts", "2", "--gpus", "0", "--init", "none")
    os.kill(named(fleet, "_supervise h1")[0], signal.SIGKILL)
    wait_for("its host is gone with it", lambda: fleet.hosts_in_kernel() == 1)
    assert fleet.hosts()["h1"]["state"] == "failed"
    assert fleet.hosts()["h2"]["state"] == "running"
    fleet.run("start", "h1")
    assert fleet.run("exec", "h1", "hostname") == "h1"


def test_nspawn_killed_alone(fleet: Fleet) -> None:
    fleet.run("up", "--hosts", "2", "--gpus", "0", "--init", "systemd")
    os.kill(named(fleet, f"--machine={fleet.name}-h1")[0], signal.SIGKILL)
    wait_for("the host's end", lambda: fleet.hosts()["h1"]["state"] == "failed")
    assert fleet.hosts_in_kernel() == 1
    fleet.run("start", "h1")
    assert fleet.run("exec", "h1", "hostname") == "h1"


def test_supervisor_of_a_systemd_host_killed(fleet: Fleet) -> None:
    fleet.run("up", "--hosts", "2", "--gpus", "0", "--init", "systemd")
    for host in ("h1", "h2"):
        os.kill(named(fleet, f"_supervise {host}")[0], signal.SIGKILL)
    wait_for("hosts without a supervisor", lambda: {host["state"] for host in fleet.hosts().values()} == {"orphaned"})
    fleet.run("start", "h1")
    assert fleet.hosts()["h1"]["state"] == "running"
    fleet.run("down")
    assert fleet.traces() == []


def test_a_process_that_came_in_from_outside_ends(fleet: Fleet) -> None:
    fleet.run("up", "--hosts", "1", "--gpus", "0", "--init", "none")
    init = str(fleet.hosts()["h1"]["init_pid"])
    inside = subprocess.Popen(["nsenter", f"--target={init}", "--mount", "sleep", "600"])
    control = subprocess.Popen(["ip", "netns", "exec", fleet.name, "sleep", "600"])
    master = subprocess.Popen([str(fleet.directory / "ssh"), "-MNS", f"/tmp/{fleet.name}", "h1"])
    wait_for("the SSH master", lambda: Path(f"/tmp/{fleet.name}").exists())
    fleet.run("down")
    assert [inside.wait(10), control.wait(10)] == [-signal.SIGKILL] * 2
    master.wait(10)
    Path(f"/tmp/{fleet.name}").unlink(missing_ok=True)
    assert fleet.traces() == []


def test_destroy_all_needs_no_files(parent_directory: Path, plain: Fleet) -> None:
    fleets = [Fleet(parent_directory / name, prefix="fleetsoftests") for name in ("one", "two")]
    for fleet in fleets:
        fleet.run("up", "--hosts", "2", "--gpus", "0", "--init", "none")
    shutil.rmtree(fleets[0].directory)
    said = fleets[0].run("destroy-all")
    assert {line.split()[1] for line in said.splitlines()} == {fleet.id for fleet in fleets}
    assert [fleet.traces() for fleet in fleets] == [[], []]
    assert fleets[0].run("destroy-all") == "no fleet on this machine"
    assert plain.run("exec", "h1", "hostname") == "h1"


# --- life of a host


def test_reboot_from_inside_and_outside(either: Fleet) -> None:
    before = either.boot_id("h1")
    either.sh("h1", "echo kept > /var/kept; echo kept > /root/kept; echo gone > /run/gone; echo gone > /tmp/gone")
    either.run("reboot", "h1")
    second = either.boot_id("h1")
    either.run("exec", "h1", "reboot", expect=None)  # the connection may end before the command does

    def up_again() -> bool:
        now = either.run("exec", "h1", "cat", "/proc/sys/kernel/random/boot_id", expect=None)
        return len(now) == 36 and now != second

    wait_for("the second reboot", up_again)
    assert len({before, second, either.boot_id("h1"), Path("/proc/sys/kernel/random/boot_id").read_text().strip()}) == 4
    assert either.sh("h1", "cat /var/kept /root/kept; ls /run/gone /tmp/gone 2>/dev/null", expect=None) == "kept\nkept"


def test_power_off_and_start(either: Fleet) -> None:
    before = either.boot_id("h2")
    either.sh("h2", "echo kept > /var/clean; echo kept > /etc/clean")
    either.run("poweroff", "h2")
    assert either.hosts()["h2"]["state"] == "off"
    assert "is off" in either.run("exec", "h2", "true", expect=1)
    either.run("start", "h2")
    assert either.boot_id("h2") != before
    assert either.sh("h2", "cat /var/clean /etc/clean") == "kept\nkept"


def test_power_loss(either: Fleet) -> None:
    before = either.boot_id("h2")
    either.sh("h2", "echo synced > /var/synced && sync /var/synced && echo synced > /etc/synced && sync /etc/synced")
    either.sh("h2", "sync -f /var; echo lost > /var/unsynced; echo lost > /root/unsynced; cat /var/unsynced")
    either.run("poweroff", "h2", "--lose-unsynced")
    assert either.hosts()["h2"]["state"] == "off"
    either.run("start", "h2")
    assert either.boot_id("h2") != before
    found = either.sh("h2", "cat /var/synced /etc/synced; cat /var/unsynced /root/unsynced 2>/dev/null", expect=None)
    assert found == "synced\nsynced"


def test_cut_and_mend(either: Fleet) -> None:
    ssh = [str(either.directory / "ssh"), "-o", "ConnectTimeout=1", "h2", "true"]
    assert subprocess.run(ssh, check=False).returncode == 0
    either.run("cut", "h2")
    assert subprocess.run(ssh, check=False, stderr=subprocess.DEVNULL).returncode == 255
    assert either.hosts()["h2"]["cut"] is True
    assert either.run("console", "h2", "hostname") == "h2"
    either.run("reboot", "h2")
    assert subprocess.run(ssh, check=False, stderr=subprocess.DEVNULL).returncode == 255, "a reboot mended the cable"
    assert either.run("exec", "h1", "hostname") == "h1"
    either.run("mend", "h2")
    assert either.run("exec", "h2", "hostname") == "h2"


# --- what a host is


def test_exec_passes_arguments_and_status(either: Fleet) -> None:
    words = ["a b", "$HOME", "it's", '"', "*", ";", "", "\\"]
    assert either.run("exec", "h1", "printf", "[%s]\n", *words).splitlines() == [f"[{word}]" for word in words]
    assert either.run("console", "h1", "printf", "[%s]\n", *words).splitlines() == [f"[{word}]" for word in words]
    either.run("exec", "h1", "sh", "-c", "exit 7", expect=7)
    either.run("console", "h1", "sh", "-c", "exit 7", expect=7)


def test_a_host_of_its_own(either: Fleet) -> None:
    assert either.sh("h1", "hostname; cat /etc/hostname") == "h1\nh1"
    for kind in ("mnt", "pid", "uts", "ipc", "net", "cgroup"):
        namespaces = {either.run("exec", host, "readlink", f"/proc/self/ns/{kind}") for host in ("h1", "h2")}
        assert len(namespaces | {os.readlink(f"/proc/self/ns/{kind}")}) == 3, kind
    for identity in ("cat /etc/machine-id", "cat /etc/ssh/ssh_host_ed25519_key.pub"):
        assert either.sh("h1", identity) != either.sh("h2", identity)
    assert either.sh("h1", "findmnt -n -o FSTYPE /var") == "ext4"
    # ip fails, as it should; what it says is looked at
    assert either.sh("h1", "ip route get 192.0.2.1 2>&1 || true").endswith("Network is unreachable")
    assert either.sh("h1", "getent hosts h2").split()[0] == str(either.hosts()["h2"]["address"])
    for path in (str(either.directory), str(ROOT)):
        either.run("exec", "h1", "test", "-e", path, expect=1)


FOREIGN_FILES = """
import os
own = os.readlink("/proc/self/ns/mnt")
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if os.readlink(f"/proc/{pid}/ns/mnt") != own:
            continue  # a service with private mounts
        mounts = {line.split()[0] for line in open(f"/proc/{pid}/mountinfo")}
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = os.readlink(f"/proc/{pid}/fd/{fd}")
            fields = dict(line.split(":", 1) for line in open(f"/proc/{pid}/fdinfo/{fd}") if ":" in line)
            if path.startswith("/") and fields["mnt_id"].strip() not in mounts:
                print(pid, fd, path)
    except (FileNotFoundError, ProcessLookupError):
        continue
print("looked")
"""


def test_a_process_in_a_host_has_nothing_from_outside(either: Fleet) -> None:
    assert set(either.sh("h1", "ls /proc/self/fd").split()) == {"0", "1", "2", "3"}  # 3: the listing itself
    assert either.run("exec", "h1", "python3", "-c", FOREIGN_FILES) == "looked"


def test_devices_and_proc_for_the_simulated_driver(either: Fleet) -> None:
    script = "mknod /dev/probe c 10 229 && exec 9<>/dev/probe && readlink /proc/self/fd/9 && rm /dev/probe"
    assert either.sh("h1", script) == "/dev/probe"
    script = "mount -t tmpfs probe /proc/driver && mkdir /proc/driver/nvidia && ls /proc/driver && umount /proc/driver"
    assert either.sh("h1", script) == "nvidia"
    assert either.sh("h1", "stat -c %a /dev/null /dev/zero /tmp /dev/shm").split() == ["666", "666", "1777", "1777"]


def test_the_machine_is_safe_from_its_hosts(either: Fleet) -> None:
    either.sh("h1", "echo 60 > /proc/sys/vm/swappiness", expect=2)
    either.sh("h1", "sysctl -q -w net.ipv4.ip_forward=1")
    bounding = int(either.sh("h1", "sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status"), 16)
    assert not bounding >> CAP_SYS_MODULE & 1


def test_orphans_are_reaped_at_once(plain: Fleet) -> None:
    script = "sh -c 'sh -c \"echo \\$\\$; exec sleep 0.1\" & ' ; sleep 0.4"
    pid = plain.sh("h1", script).split()[0]
    plain.run("exec", "h1", "test", "-e", f"/proc/{pid}", expect=1)


@pytest.mark.parametrize("init", ["none", "systemd"])
def test_what_the_caller_ignores_and_masks_stays_outside(fleet: Fleet, init: str) -> None:
    """Such as HUP under nohup: a workload that ignored it would behave as none does in production."""
    command = 'trap "" HUP INT QUIT TERM USR1; umask 077; exec "$0" up --hosts 1 --gpus 0 --init "$1"'
    subprocess.run(
        ["sh", "-c", command, str(FLEET), init], env=fleet.environment, check=True, stdout=subprocess.DEVNULL
    )
    masks = fleet.sh("h1", "sed -n '/^Sig[BI]/p' /proc/self/status").split()[1::2]
    # 32 and 33 are the C library's own: its posix_spawn ignores them.
    assert [int(mask, 16) & ~(1 << 31 | 1 << 32) for mask in masks] == [0, 0]
    assert fleet.sh("h1", "umask; stat -c %a / /etc /var /run /root").split() == ["0022", *["755"] * 4, "700"]


def test_cgroups_of_a_host(plain: Fleet) -> None:
    script = """
    set -e
    v2=/sys/fs/cgroup; memory=$v2 limit=memory.max
    if [ -d $v2/memory ]; then v2=$v2/unified memory=/sys/fs/cgroup/memory limit=memory.limit_in_bytes; fi
    mkdir $memory/small; echo 30M > $memory/small/$limit
    big='bytearray(200 << 20)'
    if (echo 0 > $memory/small/cgroup.procs; exec python3 -c "$big") 2>/dev/null; then echo not limited; fi
    rmdir $memory/small
    mkdir $v2/cold; sleep 60 & echo $! > $v2/cold/cgroup.procs; echo 1 > $v2/cold/cgroup.freeze
    for try in $(seq 100); do grep -q 'frozen 1' $v2/cold/cgroup.events && break; sleep 0.05; done
    grep frozen $v2/cold/cgroup.events
    echo 0 > $v2/cold/cgroup.freeze; kill $!; wait $! || true; rmdir $v2/cold
    """  # wait gives the status of the killed sleep
    said = plain.sh("h1", script).splitlines()
    assert "Killed" in said and "not limited" not in said
    assert "frozen 1" in said
    assert plain.sh("h1", "cat /proc/self/cgroup | cut -d: -f3 | sort -u | tail -1") == "/init"
    assert "h2" not in plain.sh("h1", "find /sys/fs/cgroup -name 'h[0-9]*'")


def test_a_frozen_host_goes_down(fleet: Fleet) -> None:
    fleet.run("up", "--hosts", "1", "--gpus", "0", "--init", "none")
    script = """
    v2=/sys/fs/cgroup; [ -d $v2/unified ] && v2=$v2/unified
    mkdir $v2/cold
    sleep 600 </dev/null >/dev/null 2>&1 & echo $! > $v2/cold/cgroup.procs
    echo 1 > $v2/cold/cgroup.freeze
    """
    fleet.sh("h1", script)
    fleet.run("reboot", "h1")
    assert fleet.run("exec", "h1", "hostname") == "h1"


COUNTER = """
import os, time
count = 0
while True:
    count += 1
    with open("/var/tmp/count.new", "w") as file:
        file.write(f"{count}\\n")
    os.rename("/var/tmp/count.new", "/var/tmp/count")
    time.sleep(0.01)
"""


def test_criu_dump_and_restore_over_ssh(either: Fleet) -> None:
    run = either.sh
    run("h1", "rm -rf /var/tmp/image /var/tmp/count; mkdir -p /var/tmp/image /var/tmp/no-plugins")
    subprocess.run(
        [str(either.directory / "ssh"), "h1", "cat > /var/tmp/counter.py"], input=COUNTER, text=True, check=True
    )
    pid = run("h1", "setsid python3 /var/tmp/counter.py </dev/null >/dev/null 2>&1 & echo $!")
    run("h1", "until [ -s /var/tmp/count ]; do sleep 0.02; done")
    criu = "-D /var/tmp/image --libdir /var/tmp/no-plugins -v4"
    run("h1", f"criu dump -t {pid} {criu} -o dump.log || {{ grep Error /var/tmp/image/dump.log; exit 1; }}")
    run("h1", f"test -e /proc/{pid}", expect=1)
    stopped = int(run("h1", "cat /var/tmp/count"))
    assert int(run("h1", "sleep 0.1; cat /var/tmp/count")) == stopped
    run(
        "h1",
        f"criu restore {criu} -o restore.log --restore-detached </dev/null >/dev/null 2>&1"
        " || { grep Error /var/tmp/image/restore.log; exit 1; }",
    )
    assert run("h1", f"tr '\\0' ' ' < /proc/{pid}/cmdline").strip() == "python3 /var/tmp/counter.py"
    run("h1", f"until [ $(cat /var/tmp/count) -gt {stopped} ]; do sleep 0.02; done")
    run("h1", f"kill {pid}; while [ -e /proc/{pid} ]; do sleep 0.02; done")


# --- from outside


def ansible() -> str:
    beside = ROOT / "build/venv/bin/ansible"
    found = str(beside) if beside.exists() else shutil.which("ansible")
    if found is None:
        pytest.fail("no ansible in build/venv/bin or PATH: run tests/setup")
    return found


def test_ansible_through_the_inventory(either: Fleet, tmp_path: Path) -> None:
    command = [ansible(), "-i", str(either.directory / "inventory.yml"), "fleet", "-o"]
    environment = {**os.environ, "HOME": str(tmp_path), "ANSIBLE_LOCAL_TEMP": str(tmp_path), "ANSIBLE_NOCOLOR": "1"}
    for module in (["-m", "ping"], ["-m", "copy", "-a", f"src={__file__} dest=/root/copied mode=0600"]):
        done = subprocess.run(
            [*command, *module], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (
        either.sh("h2", "sha256sum < /root/copied").split()[0]
        == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    )


def test_ansible_reboot_module(either: Fleet, tmp_path: Path) -> None:
    before = either.boot_id("h1")
    done = subprocess.run(
        [ansible(), "-i", str(either.directory / "inventory.yml"), "h1", "-m", "reboot", "-a", "reboot_timeout=60"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "ANSIBLE_LOCAL_TEMP": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert either.boot_id("h1") != before


def test_scp_and_sftp(either: Fleet, tmp_path: Path) -> None:
    for options in ([], ["-O"]):
        subprocess.run([str(either.directory / "scp"), "-q", *options, __file__, "h1:/root/by-scp"], check=True)
        subprocess.run([str(either.directory / "scp"), "-q", *options, "h1:/root/by-scp", str(tmp_path)], check=True)
        assert (tmp_path / "by-scp").read_bytes() == Path(__file__).read_bytes()
    subprocess.run(
        [str(either.directory / "sftp"), "-q", "-b", "-", "h1"],
        input=f'get /root/by-scp "{tmp_path}/by-sftp"\n',
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert (tmp_path / "by-sftp").read_bytes() == Path(__file__).read_bytes()


# --- refusals


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["exec", "h9", "true"], "h9: no such host; the fleet has h1 to h2"),
        (["reboot", "nonsense"], "nonsense: no such host"),
        (["start", "h1"], "h1 is running already"),
    ],
)
def test_refusals(plain: Fleet, arguments: list[str], said: str) -> None:
    assert said in plain.run(*arguments, expect=1)


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["status"], "no such fleet"),
        (["exec", "h1", "true"], "no such fleet"),
        (["up", "--hosts", "0"], "a fleet has 1 to 64 hosts"),
        (["up", "--hosts", "65"], "a fleet has 1 to 64 hosts"),
        (["up", "--hosts", "1", "--driver", "418"], "unknown driver version"),
        (["up", "--hosts", "1", "--set", "nonsense"], "expected KEY=VALUE"),
        (["up", "--hosts", "1", "--init", "none", "--sim", "/nonexistent"], "no such directory"),
    ],
)
def test_refusals_without_a_fleet(fleet: Fleet, arguments: list[str], said: str) -> None:
    assert said in fleet.run(*arguments, expect=1)
    assert [trace for trace in fleet.traces() if not trace.endswith("failed-up.log")] == []


@pytest.mark.parametrize("init,said", [("none", "setup ended with status 4"), ("systemd", "degraded")])
def test_broken_driver_layer(fleet: Fleet, tmp_path: Path, init: str, said: str) -> None:
    setup = tmp_path / "layer/usr/lib/gpusim/setup"
    setup.parent.mkdir(parents=True)
    setup.write_text("#!/bin/sh\necho no GPU today >&2\nexit 4\n")
    setup.chmod(0o755)
    units = tmp_path / "layer/usr/lib/systemd/system/multi-user.target.wants"
    units.mkdir(parents=True)
    (units.parent / "gpusim.service").write_text(
        f"[Service]\nType=oneshot\nExecStart=/{setup.relative_to(tmp_path / 'layer')}\n"
    )
    (units / "gpusim.service").symlink_to("../gpusim.service")
    words = ["up", "--hosts", "1", "--init", init, "--sim", str(tmp_path / "layer")]
    assert said in fleet.run(*words, expect=1 if init == "none" else 0)
    if init == "none":
        assert "no GPU today" in (fleet.directory / "failed-up.log").read_text()


def test_not_root(parent_directory: Path) -> None:
    # A copy that others may read, and Debian's own Python: one in root's home is not for others.
    copied = parent_directory / "copy"
    shutil.copytree(FLEET.parent, copied)
    parent_directory.chmod(0o755)
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", str(copied / "fleet"), "up", "--hosts", "1"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the fleet needs root" in done.stderr


def test_failed_build_of_the_base_says_why(fleet: Fleet, tmp_path: Path) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "debootstrap").write_text("#!/bin/sh\necho E: the archive is closed today\nexit 9\n")
    (fake / "debootstrap").chmod(0o755)
    done = subprocess.run(
        [str(FLEET), "up", "--hosts", "1", "--gpus", "0"],
        env={**fleet.environment, "PATH": f"{fake}:{os.environ['PATH']}", "GPUFLEET_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "status 9" in done.stderr and "the archive is closed today" in done.stderr
    assert not list((tmp_path / "cache").glob("base-*/"))
