#!/bin/sh
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs in a test host. operator.sh
#   reset      as the documentation finds it: PID 4711 of inference.service, 4712 of training.service and 4822 of a script run, and
#              nothing is left of what was tried before
#   counting   succeeds if all of them run and count
#   job        starts a job of Slurm and tells its number
#   trainer    starts a process of the user trainer
#   container  starts a process as a container has one, and puts the tool beside its usual place
set -eu
jobs=/var/lib/jobs

unit() { # NAME PID GPU
    cat >"/etc/systemd/system/$1.service" <<END
[Service]
Type=forking
PIDFile=$jobs/$1.pid
ExecStart=/usr/bin/python3 /usr/local/lib/at_pid.py $2 root $jobs/$1 gpusim-workload --vram 32 --gpu $3 --out $jobs/$1
END
}

daemon() { # NAME
    printf '[Service]\nExecStart=/bin/sleep infinity\n' >"/etc/systemd/system/$1.service"
}

wait_until() { # COMMAND...
    tries=200
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || {
            echo "not within ten seconds: $*" >&2
            exit 1
        }
        sleep 0.05
    done
}

are_gone() { ! pgrep -x gpusim-workload >/dev/null && ! pgrep -x gpufleet-hold >/dev/null; }

counts() { # NAME VALUE BEFORE
    [ "$(cat "$jobs/$1")" != "$2" ]
}

reset() {
    # Where nothing is left, there is nothing to end.
    pkill -9 -x gpufleet-hold || true
    pkill -9 -x gpusim-workload || true
    wait_until are_gone
    systemctl stop inference training 2>/dev/null || true
    rm -rf /var/lib/gpufleet /srv/images /srv/gpufleet "$jobs"
    mkdir -p "$jobs" /srv
    chmod 1777 "$jobs"
    id trainer >/dev/null 2>&1 || useradd -m -s /bin/sh trainer
    unit inference 4711 0
    unit training 4712 1
    daemon nvidia-dcgm
    daemon nvidia-persistenced
    # Where a page has left a service held, for its process was suspended.
    rm -rf /run/systemd/system/inference.service.d /run/systemd/system/training.service.d
    systemctl daemon-reload
    systemctl reset-failed
    systemctl start inference training nvidia-dcgm nvidia-persistenced
    python3 /usr/local/lib/at_pid.py 4822 root "$jobs/script" gpusim-workload --vram 32 --gpu 0 --out "$jobs/script"
    for name in inference training script; do
        wait_until [ -s "$jobs/$name" ]
    done
}

counting() {
    for name in inference training script; do
        wait_until counts "$name" "$(cat "$jobs/$name")"
    done
}

job() {
    if [ ! -e "$jobs/slurm.id" ]; then
        printf '#!/bin/sh\nexec gpusim-workload --vram 16 --out %s\n' "$jobs/slurm" >"$jobs/slurm.sh"
        sbatch --parsable --nodelist=h1 --output=/dev/null "$jobs/slurm.sh" >"$jobs/slurm.id"
        wait_until [ -s "$jobs/slurm" ]
    fi
    cat "$jobs/slurm.id"
}

# CRIU can't dump it here: for another user's process it needs CAP_SYS_RESOURCE.
trainer() {
    python3 /usr/local/lib/at_pid.py 4823 trainer "$jobs/trainer" gpusim-workload --vram 16 --gpu 0 --out "$jobs/trainer"
    wait_until [ -s "$jobs/trainer" ]
}

container() {
    mkdir -p /opt/nvidia/bin
    ln -sf "$(command -v cuda-checkpoint)" /opt/nvidia/bin/cuda-checkpoint
    systemd-run --quiet --collect --unit=box --slice=machine.slice --property=Type=forking --property=PIDFile="$jobs/box.pid" \
        python3 /usr/local/lib/at_pid.py 4900 root "$jobs/box" gpusim-workload --vram 16 --out "$jobs/box"
    wait_until [ -s "$jobs/box" ]
}

"$1"
