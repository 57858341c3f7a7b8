# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._migration.choice import as_data, candidate_of, choose


def migration_target(results: Any, trees: Optional[List[Mapping[str, Any]]] = None) -> Dict[str, Any]:
    if not isinstance(results, (list, tuple)) or not all(isinstance(one, Mapping) for one in results):
        raise AnsibleFilterError("migration_target: the results of a loop are wanted, a list of dictionaries.")
    moved = [str(tree.get("peer")) for tree in trees or [] if tree.get("peer")]
    return as_data(choose([candidate_of(one, moved) for one in results]), results)


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"migration_target": migration_target}
