# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program inherits from whoever started it, and may not rely on."""

from __future__ import annotations

import signal


def hear_of_children() -> None:
    """Whoever started Ansible may ignore SIGCHLD, and so does what it starts. Then a program that failed seems to have
    succeeded, nobody can wait for a child, and a guard does not hear that its process was continued."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
