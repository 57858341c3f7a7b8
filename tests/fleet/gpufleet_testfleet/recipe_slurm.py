# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the base image has beyond the plain one in a fleet with Slurm. A change to this file makes a new image of this
flavour, and of no other. The packages make the key of munge, so all hosts have the same one."""

from __future__ import annotations

PACKAGES = ("munge", "slurm-client", "slurmctld", "slurmd")
