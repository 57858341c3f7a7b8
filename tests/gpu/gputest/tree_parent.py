# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tree_parent.py OUT PLAN: a parent without CUDA. Starts the processes that PLAN names (JSON: argv, stderr, env), and
one that counts into a pipe; what comes out of the pipe it appends to OUT.lines. OUT.children: their PIDs, that one's
last."""

import json
import os
import subprocess
import sys

COUNT = "import itertools, time\nfor i in itertools.count(1):\n    print(i, flush=True)\n    time.sleep(0.05)"

out, plan = sys.argv[1], sys.argv[2]
with open(plan) as stream:
    wanted = json.load(stream)
children = []
for one in wanted:
    with open(one["stderr"], "wb") as log:
        children.append(
            subprocess.Popen(
                one["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **one["env"]}, cwd="/"
            )
        )
counting = subprocess.Popen(
    [sys.executable, "-c", COUNT], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
)
with open(out + ".children.partial", "w") as stream:
    json.dump([one.pid for one in (*children, counting)], stream)
os.rename(out + ".children.partial", out + ".children")
assert counting.stdout is not None
with open(out + ".lines", "ab", buffering=0) as lines:
    for line in counting.stdout:
        lines.write(line)
