# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What only looks changes nothing: every file and every process of a host is the same before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.drain.drainlab import Drain, Runs, watched
from tests.system.lab import Lab

# Everything that says whether a file was written, of a directory what is in it. Left out: what the workload counts
# into, what a login writes, Ansible's own files, and CRIU's cache of what the kernel can do.
FILES = (
    "find / /var /run /etc /root /dev/shm -xdev"
    r" \( -path /proc -o -path /sys -o -path /var/lib/lab -o -path '*/.ansible' -o -path /run/criu.kdat"
    r" -o -path /run/sshd -o -path /run/motd.dynamic -o -path '/run/utmp*' -o -path '/var/log/[bw]tmp*'"
    r" -o -path '/var/log/lastlog*' -o -path /var/log/init.log \) -prune"
    r" -o -type d -printf '%p %y %m %U\n' -o -printf '%p %y %m %U %s %C@ %T@ %l\n' | sort -u"
)
PROCESSES = r"""
for directory in /proc/[0-9]*; do
    [ -r $directory/stat ] || continue
    name=$(cat $directory/comm 2>/dev/null)
    case $name in ssh*|sh|sftp*|cat|find|sort|sed|"") continue ;; esac
    sed -E 's/^.*\) (.).* *$/\1/; s/[RSD]/alive/' $directory/stat | tr '\n' ' '
    echo "${directory#/proc/} $name $(sed -E 's/^.*\) //' $directory/stat | cut -d' ' -f20)"
done
"""


def look(lab: Lab) -> set[str]:
    # One script for both: what it starts is the same each time.
    return set(lab.host.sh(FILES).splitlines()) | set(lab.host.sh(PROCESSES).splitlines())


def changes(before: set[str], after: set[str]) -> list[str]:
    return sorted(f"- {line}" for line in before - after) + sorted(f"+ {line}" for line in after - before)


def test_what_only_looks_changes_nothing(large_fleet: list[Lab], runs: Runs) -> None:
    with watched(large_fleet[:1]) as (lab,):
        lab.one(vram=16)
        variables = {"gpu_drain_maintenance_tasks": runs.tasks("m", {"ansible.builtin.command": {"argv": ["false"]}})}
        # What Python compiles the first time that something is imported is not ours.
        Drain(lab.host.fleet, "plan", runs, limit="h1").ok()
        before = look(lab)
        assert len(before) > 1000 and any("gpusim-workload" in line for line in before)
        looks: Sequence[tuple[str, tuple[str, ...], Mapping[str, object]]] = (
            ("preflight", (), {}),
            ("plan", (), {}),
            ("plan", (), {"gpu_drain_mode": "disk"}),
            ("status", (), {}),
            ("drain", ("--check",), variables),
            ("drain", ("--check",), {**variables, "gpu_drain_mode": "disk"}),
            ("suspend", ("--check",), {}),
            ("suspend", ("--check",), {"gpu_suspend_mode": "disk"}),
            ("restore", ("--check",), {}),
            ("recover", ("--check",), {}),
        )
        for playbook, arguments, told in looks:
            Drain(lab.host.fleet, playbook, runs, *arguments, limit="h1", variables=told).ok()
            assert changes(before, look(lab)) == [], f"{playbook} {arguments} {told}"
            assert not runs.runs.exists(), f"{playbook} {arguments} {told}"
