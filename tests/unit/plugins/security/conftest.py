# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long the parsers are fuzzed: a sample that is the same each time, or with GPUFLEET_FUZZ=EXAMPLES so many of each
property, at random (make fuzz). A failure prints what repeats it."""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

set_hypothesis_home_dir(Path(__file__).resolve().parents[4] / "build/cache/hypothesis")

_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "sample", max_examples=60, derandomize=True, database=None, deadline=None, suppress_health_check=_SLOW
)
settings.register_profile(
    "long",
    max_examples=int(os.environ.get("GPUFLEET_FUZZ") or 1),
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.load_profile("long" if os.environ.get("GPUFLEET_FUZZ") else "sample")
