# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of gpu_preflight: evidence first, then decisions, then the result. Changes nothing."""

from __future__ import annotations

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.evidence import Evidence
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.options import Options, Verdict


def _load() -> None:
    """What decides. Nothing is forked here that would need it after Ansible's zip file is gone."""
    import ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.decide  # noqa: F401


class Preflight:
    def __init__(self, options: Options) -> None:
        self._options = options

    def run(self) -> Verdict:
        """Raises ArgumentError, SelectError, JournalError; OSError where /proc is not mounted."""
        options = self._options
        evidence = Evidence(
            options.criu, options.journal, options.backend, options.executable, options.allow, meanwhile=_load
        )
        try:
            subjects = evidence.subjects(options.pids, options.select)
            facts = evidence.facts(options.store)
            # Loaded by now, while NVML looked.
            from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.decide import decide

            return decide(options, evidence, subjects, facts)
        finally:
            evidence.close()
