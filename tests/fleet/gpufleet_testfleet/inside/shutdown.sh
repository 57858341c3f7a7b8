#!/bin/sh
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# halt, poweroff, reboot and shutdown of a host without systemd: PID 1 takes SIGRTMIN+4 (off) and SIGRTMIN+5 (reboot).

POWER_OFF=38 REBOOT=39
PENDING=/run/shutdown.pid

name=${0##*/}
signal=$POWER_OFF
[ "$name" = reboot ] && signal=$REBOOT
when=now

cancel() {
    [ -f "$PENDING" ] || return 0
    kill "$(cat "$PENDING")" 2>/dev/null
    rm -f "$PENDING"
}

while [ $# -gt 0 ]; do
    case $1 in
    -r | --reboot) signal=$REBOOT ;;
    -h | -P | -H | -p | --poweroff | --halt) signal=$POWER_OFF ;;
    -f | --force | -n | --no-wall | -w | -k | -q | --quiet) ;;
    -c) cancel; exit ;;
    --help) echo "usage: $name [-r|-h|-P|-c] [now|+MINUTES] [MESSAGE]"; exit 0 ;;
    -*) echo "$name: unknown option $1; known: -r -h -P -H -f -c" >&2; exit 1 ;;
    *) break ;;
    esac
    shift
done
if [ "$name" = shutdown ]; then when=${1:-+1}; fi

minutes=${when#+}
[ "$when" = now ] && minutes=0
case $minutes in
'' | *[!0-9]*) echo "$name: $when: give a time as now or +MINUTES" >&2; exit 1 ;;
esac

cancel
if [ "$minutes" -eq 0 ]; then
    exec kill -"$signal" 1
fi
# shellcheck disable=SC2016  # it is the inner shell that expands them
setsid sh -c 'sleep "$1"; kill -"$2" 1' sh $((minutes * 60)) "$signal" </dev/null >/dev/null 2>&1 &
echo $! >"$PENDING"
