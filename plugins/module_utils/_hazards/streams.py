# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pipes and sockets with somebody else at the other end."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around import End, OpenSocket
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    IMAGES,
    Context,
    ProcessHazard,
    comma,
    name_of,
    plural,
    ties_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot


def _end(process: ProcessSnapshot, one: End) -> str:
    who = "" if one.pid == process.pid else f"PID {one.pid} "
    other = one.name or comma(one.holders)
    return f"{who}descriptor {one.descriptor}{f', at the other end {other}' if other else ''}"


class ExternalPipe(ProcessHazard):
    """A pipe to a program outside the tree, such as `| tee`: CRIU dumps it, and restores a pipe with one end."""

    id = "external_pipe"
    actions = IMAGES
    option = "external_pipe"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        ties = ties_of(context, process)
        pipes = () if ties is None else ties.pipes
        if not pipes:
            return None
        writes = [one for one in pipes if one.writes]
        return self.finding(
            name_of(process),
            f"{plural(len(pipes), 'pipe')} of it {'leads' if len(pipes) == 1 else 'lead'} out of its tree: "
            + comma([_end(process, one) for one in pipes], 4),
            "It is restored with a pipe that has nobody at the other end: "
            + ("at its next output it dies of SIGPIPE" if writes else "it reads the end of its input"),
            "Start it with its output in a file, not in a pipe (no `| tee`); or dump the tree that has both ends",
            process.pid,
        )


class ExternalUnixSocket(ProcessHazard):
    """CRIU refuses the half of a connection, but for datagrams (--ext-unix-sk)."""

    id = "external_unix_socket"
    actions = IMAGES
    option = "external_unix_socket"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        ties = ties_of(context, process)
        if ties is None or ties.unix_ends == ():
            return None
        if ties.unix_ends is None:
            return self.finding(
                name_of(process),
                "whom its unix sockets are connected to can't be seen from this network namespace",
                "CRIU refuses a unix socket that is connected to a program outside the tree",
                "Look at them from inside (nsenter --net, ss --unix)",
                process.pid,
                severity=WARNING,
            )
        return self.finding(
            name_of(process),
            f"{plural(len(ties.unix_ends), 'unix socket')} of it {'is' if len(ties.unix_ends) == 1 else 'are'} "
            "connected to programs outside its tree: " + comma([_end(process, one) for one in ties.unix_ends], 4),
            "CRIU refuses such a socket, and the program at the other end sees it close",
            "Let the program close the connection before, or consent if it connects anew by itself",
            process.pid,
        )


class TcpEstablished(ProcessHazard):
    """CRIU refuses TCP connections unless it is told --tcp-established."""

    id = "tcp_established"
    actions = IMAGES
    option = "tcp_established"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        ties = ties_of(context, process)
        if ties is None or not ties.connections:
            return None
        count = len(ties.connections)
        return self.finding(
            name_of(process),
            f"it has {plural(count, 'TCP connection')} to programs outside its tree: {comma(ties.connections, 4)}",
            "CRIU refuses them unless it is told to keep them, and the other side gives up when nobody answers for "
            "long; on another host they can't come back at all",
            "Take it out of its load balancer and let the connections end, or consent if both sides survive their loss",
            process.pid,
        )


class SocketOption(ProcessHazard):
    """Measured with CRIU 4.1.1 on Linux 6.18: "Can't get 1:16 opt" of every socket of TCP, UDP, UDP-Lite, raw and
    packet, whatever its state; not of unix and netlink. CRIU 4.2 asks only of those that have the option."""

    id = "socket_option"
    actions = IMAGES
    option = "socket_option"

    FIXED = (4, 2)
    PROTOCOLS = frozenset(
        ("TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "RAW", "RAWv6", "PACKET"),
    )

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        host = context.snapshot.host
        ties = ties_of(context, process)
        if ties is None or not context.criu or context.criu >= self.FIXED or host.socket_credentials is not False:
            return None
        # "": the kernel does not tell what it is, and CRIU may well ask.
        hit = [one for one in ties.sockets or () if one.protocol in self.PROTOCOLS or not one.protocol]
        if not hit:
            return None
        shown = comma([_socket(process, one) for one in hit], 4)
        version = ".".join(map(str, context.criu))
        return self.finding(
            name_of(process),
            f"it has {plural(len(hit), 'socket')} that CRIU {version} can't dump on Linux {host.kernel}: {shown}",
            "From Linux 6.16 on the kernel refuses a question (SO_PASSCRED) that CRIU before 4.2 asks of every TCP and "
            'UDP socket, a listening one included: the dump ends with "Can\'t get 1:16 opt"',
            "Install CRIU 4.2 or newer, or let the program close its sockets before; consent if this CRIU has the "
            "correction of 4.2",
            process.pid,
        )


def _socket(process: ProcessSnapshot, one: OpenSocket) -> str:
    who = "" if one.pid == process.pid else f"PID {one.pid} "
    return f"{who}descriptor {one.descriptor} ({one.protocol or 'unknown'})"


class JournaldStdio(ProcessHazard):
    """Output to systemd's journal: a stream socket of which CRIU would have to dump one half."""

    id = "journald_stdio"
    actions = IMAGES

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        ties = ties_of(context, process)
        if ties is None or not ties.journal:
            return None
        return self.finding(
            name_of(process),
            f"its output goes to systemd's journal: {comma(ties.journal, 4)}",
            "CRIU refuses to dump the half of a stream socket, and journald has no other half to give back",
            "Give the unit StandardOutput=append:/var/log/NAME.log and StandardError=inherit, and start it anew",
            process.pid,
        )
