# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's part of a drain. Nothing here touches a host, and in check mode nothing is written."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from ansible import constants as C
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines, printable
from ansible_collections.gpufleet.checkpoint.plugins.modules.drain_run import ARGUMENTS
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.events import Events, Surroundings
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.looks import Looks
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import RecordError
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.state import Refused


def _shown(text: str) -> str:
    """For a terminal: parts of it come from hosts, and may hold what a terminal takes for a command."""
    return "\n".join(printable(line) for line in lines(text))


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """See the documentation of gpufleet.checkpoint.drain_run."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(ARGUMENTS)
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        known = task_vars or {}
        _validated, arguments = self.validate_argument_spec(argument_spec=ARGUMENTS)
        around = Surroundings(
            host=str(known.get("inventory_hostname", "")),
            batch=tuple(str(name) for name in known.get("ansible_play_batch", ())),
            hosts=tuple(str(name) for name in known.get("ansible_play_hosts_all", ())),
            hostvars=known.get("hostvars", {}),
            check=bool(self._task.check_mode),
            parent=os.getppid(),
            strategy=str(C.DEFAULT_STRATEGY),
            ssh_arguments=self._ssh_arguments(known),
        )
        events = Looks(around) if arguments["event"] in ("plan", "status", "recover") else Events(around)
        try:
            told = getattr(events, arguments["event"])(arguments)
        except (Refused, RecordError) as error:
            return {"failed": True, "changed": False, "msg": _shown(str(error))}
        for warning in events.warnings:
            self._display.warning(_shown(warning))
        if "msg" in told:
            told["msg"] = _shown(told["msg"])
        # Ansible shows the message of a task that succeeds to nobody who has not asked for it.
        if told.get("msg") and not told.get("failed"):
            self._display.display(told["msg"])
        return {"changed": False, **told}

    def _ssh_arguments(self, known: Dict[str, Any]) -> str:
        """Of the first host and of the configuration, for a look at its keepalive."""
        names = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
        told = [str(self._templar.template(known[name])) for name in names if known.get(name)]
        for option in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
            try:
                value = C.config.get_config_value(option, plugin_type="connection", plugin_name="ssh")
            except Exception:  # the configuration of a plugin that this ansible-core has under another name
                value = None
            told.append(str(value or ""))
        return " ".join(told)
