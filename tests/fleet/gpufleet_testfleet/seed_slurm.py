# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the hosts of one fleet are a Slurm cluster: files of the hosts' own layers."""

from __future__ import annotations

from collections.abc import Sequence

# The first host is the controller. Intervals are short so that a test sees soon what it waits for.
_CONF = """\
ClusterName=gpufleet
SlurmctldHost={controller}
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
MailProg=/bin/true
ReturnToService=1
SlurmdParameters=config_overrides
KillWait=3
OverTimeLimit=0
NodeName={nodes} CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes={nodes} Default=YES OverSubscribe=YES MaxTime=INFINITE State=UP
"""

# The hosts' cgroups are not for Slurm.
_CGROUP = "CgroupPlugin=disabled\n"

_CONTROLLER_ONLY = "slurmctld.service"


def files(names: Sequence[str]) -> dict[str, str]:
    """Path -> text of what each of the hosts `names` has for Slurm."""
    return {
        "etc/slurm/slurm.conf": _CONF.format(controller=names[0], nodes=",".join(names)),
        "etc/slurm/cgroup.conf": _CGROUP,
    }


def masked(names: Sequence[str], own: str) -> tuple[str, ...]:
    """Units that host `own` does not run."""
    return () if own == names[0] else (_CONTROLLER_ONLY,)
