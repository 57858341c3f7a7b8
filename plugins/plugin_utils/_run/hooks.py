# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The task files that an operator gives."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.state import Refused


def resolve(hosts: Mapping[str, Mapping[str, Any]], directory: str) -> Dict[str, str]:
    """Each path as it was given, and the absolute one; a relative one starts at `directory`. Raises Refused if one is
    not there, before any host is touched."""
    users: Dict[str, List[str]] = {}
    names: Dict[str, str] = {}
    for host, settings in hosts.items():
        for hook, path in settings["hooks"].items():
            if path:
                users.setdefault(str(path), []).append(host)
                names[str(path)] = hook
    found = {}
    for path, using in users.items():
        absolute = os.path.abspath(os.path.join(directory, os.path.expanduser(path)))
        if not os.path.isfile(absolute):
            raise Refused(
                f"gpu_drain_{names[path]}_tasks",
                f"{absolute}, meant for {words.names(using)}, is no file",
                "It would be missed in the middle of a drain.",
                "A relative path starts at the working directory; give the path of a file with tasks.",
            )
        found[path] = absolute
    return found
