# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The call that gives the workers a scope of their own, as systemd's interface wants it."""

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._scope import command, move


def test_the_call_is_one_argument_list() -> None:
    call = command("/usr/bin/busctl", "gpufleet-checkpoint-x", "Workers of run x; rm -rf /", [12, 13])
    assert call[:3] == ["/usr/bin/busctl", "--system", "call"]
    signature = call.index("ssa(sv)a(sa(sv))")
    assert call[signature - 1] == "StartTransientUnit"
    assert call[signature + 1 : signature + 3] == ["gpufleet-checkpoint-x.scope", "fail"]
    # Two properties, each a name, a type and a value; then no auxiliary units.
    assert call[signature + 3 :] == [
        "2",
        "Description",
        "s",
        "Workers of run x; rm -rf /",
        "PIDs",
        "au",
        "2",
        "12",
        "13",
        "0",
    ]


def test_nobody_to_move_is_no_problem() -> None:
    assert move("x", "y", []) == ""
