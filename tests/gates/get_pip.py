# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for the get-pip script that ansible-test would download: the pip that comes with Python, then the index."""

import ensurepip
import os
import subprocess
import sys

# ansible-test passes these for the real script; a virtual environment of today has neither package anyway.
NOT_FOR_PIP = ("--no-setuptools", "--no-wheel")

# ensurepip takes pip's configuration out of this process's environment, and with it the package index.
environment = dict(os.environ)
ensurepip.bootstrap()
arguments = [argument for argument in sys.argv[1:] if argument not in NOT_FOR_PIP]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", "--quiet", *arguments], env=environment))
