# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one error that a user sees."""

from __future__ import annotations


class FleetError(Exception):
    """Says subject, what was seen, reason and remedy, in words for an operator."""
