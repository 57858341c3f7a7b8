# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Live progress of a drain, beside whatever the stdout callback shows."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: notification
short_description: Tells how far a drain of GPU hosts has come
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - While M(gpufleet.checkpoint.gpu_drain) tells the phases of hosts, in the playbooks and roles of this collection or
    in playbooks of your own, this shows a line whenever a host comes to another phase. It has the hosts by phase, the
    GPU memory that is suspended and that was brought back, and when the run will be over.
  - It only listens. Nothing of it can fail a task or a run; if something in it fails, it says so once and is quiet.
  - Lines go to standard error, so what another callback writes to standard output stays as it is.
  - From hosts it shows numbers and known names of phases only, no text. Names of hosts are escaped.
  - The time that is left comes from the batches that are over. Before the first one is, it is C(unknown), with what the
    estimates of RV(gpufleet.checkpoint.gpu_preflight#module:estimate) sum up to as the least that it can be. The
    maintenance is not in an estimate, so no more is known then.
  - Nothing is drawn while no result comes. It starts no thread and takes no control of the terminal.
options:
  interval:
    description:
      - At least so many seconds lie between two lines, so that a drain of many hosts does not flood the terminal. A
        host that fails, a batch and the end are told at once.
    type: float
    default: 2
    env:
      - name: GPUFLEET_PROGRESS_INTERVAL
    ini:
      - section: gpufleet_progress
        key: interval
  style:
    description:
      - How a line looks.
    type: str
    choices:
      auto: As V(rich) on a terminal if the Python package C(rich) is there, else V(plain).
      plain: Text.
      rich: With a bar and colours. Without the package C(rich) it is V(plain), with a warning.
    default: auto
    env:
      - name: GPUFLEET_PROGRESS_STYLE
    ini:
      - section: gpufleet_progress
        key: style
  plan_file:
    description:
      - The file that C(gpufleet.checkpoint.plan) wrote for these hosts, with its C(gpu_drain_plan_file). Then bytes and
        estimates of hosts whose turn has not come are known, too.
      - A file that can't be read is a warning.
    type: path
    env:
      - name: GPUFLEET_PROGRESS_PLAN_FILE
    ini:
      - section: gpufleet_progress
        key: plan_file
requirements:
  - enabling it, with C(callbacks_enabled = gpufleet.checkpoint.progress) under C([defaults]) in C(ansible.cfg)
  - the Python package C(rich), for the bar
seealso:
  - module: gpufleet.checkpoint.gpu_drain
"""

EXAMPLES = r"""
ansible.cfg: |
  [defaults]
  callbacks_enabled = gpufleet.checkpoint.progress

  [gpufleet_progress]
  interval = 10
  plan_file = /srv/maintenance/plan.json
"""

import json
import os
import sys
import time
from typing import Any, Callable, Mapping, Optional

from ansible import constants as C
from ansible.plugins.callback import CallbackBase

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._progress import course, gauge, lines
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._progress.course import Course

OURS = "gpufleet.checkpoint."


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """See the documentation of gpufleet.checkpoint.progress."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "gpufleet.checkpoint.progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.disabled: bool = False
        self._course = Course()
        self._interval = 0.0
        self._rich = False
        self._told: Optional[float] = None
        self._last = ""
        self._anything = False

    def set_options(self, task_keys: Any = None, var_options: Any = None, direct: Any = None) -> None:
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        self._interval = float(self.get_option("interval"))
        style = str(self.get_option("style"))
        self._rich = gauge.AVAILABLE and (style == "rich" or (style == "auto" and _terminal()))
        if style == "rich" and not gauge.AVAILABLE:
            self._warn("the Python package rich is not there, so its lines are plain")
        path = self.get_option("plan_file")
        if path:
            self._guarded(self._read_plan, str(path))

    def v2_runner_on_ok(self, result: Any) -> None:
        self._guarded(self._ok, result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._guarded(self._not_ok, result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._guarded(self._unreachable, result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._guarded(self._end, stats)

    def _ok(self, result: Any) -> None:
        task, name = _task(result), _host(result)
        what = _ours(task)
        if not what or task.check_mode:
            return
        if what == "drain_run":
            self._of_run(str(task.args.get("event")), bool(task.args.get("ended")), name, result)
        elif what == "gpu_preflight":
            self._course.looked(name, _data(result))
        elif what == "gpu_drain" and self._course.reached(name, _data(result)):
            self._anything = True
            self._tell(lines.of_host(self._course, name))

    def _of_run(self, event: str, ended: bool, name: str, result: Any) -> None:
        if event == "begin":
            self._course.begin(_data(result))
        elif event == "batch":
            self._course.begin_batch(time.time())
            self._anything = True
            self._tell(f"batch {self._course.batch} begins", at_once=True)
        elif event == "end_batch":
            self._course.end_batch(time.time())
            self._tell(f"batch {self._course.batch} is over", at_once=True)
        elif event == "failed" and not ended and self._course.failed(name):
            self._tell(lines.of_host(self._course, name), at_once=True)

    def _not_ok(self, result: Any) -> None:
        """The last task of a host that failed; one that a rescue takes up is followed by it."""
        task, name = _task(result), _host(result)
        if _ours(task) == "drain_run" and str(task.args.get("event")) == "failed" and self._course.failed(name):
            self._tell(lines.of_host(self._course, name), at_once=True)

    def _unreachable(self, result: Any) -> None:
        name = _host(result)
        if name in self._course.hosts and self._course.failed(name):
            self._tell(lines.of_host(self._course, name) + ", unreachable", at_once=True)

    def _end(self, stats: Any) -> None:
        """Whether a rescue took up a failure is known only now."""
        self._course.end_batch(time.time())
        for name in self._course.hosts:
            counts = stats.summarize(name)
            if counts["failures"] or counts["unreachable"]:
                self._course.failed(name)
        if self._anything:
            self._tell("over", at_once=True, over=True)

    def _tell(self, what: str, at_once: bool = False, over: bool = False) -> None:
        now = time.time()
        if not at_once and self._told is not None and 0 <= now - self._told < self._interval:
            return
        self._told = now
        text = f"{what} | {lines.summary(self._course, now, over)}"
        if text == self._last:
            return
        self._last = text
        if self._rich:
            self._display.display(f"progress: {text}", log_only=True)
            gauge.show(self._course, text, C.ANSIBLE_NOCOLOR)
        else:
            self._display.display(f"progress: {text}", stderr=True)

    def _read_plan(self, path: str) -> None:
        try:
            with open(os.path.expanduser(path), encoding="utf-8") as stream:
                self._course.planned = course.planned(json.load(stream))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            self._warn(f"{path} can't be read as a plan of gpufleet.checkpoint.plan ({why}), so it goes without")

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        """A progress that is wrong is a nuisance; a run that it broke would be a loss."""
        if self.disabled:
            return
        try:
            action(*arguments)
        except Exception as error:
            self.disabled = True
            self._warn(f"no more of it in this run: {type(error).__name__} ({error}). The run goes on")

    def _warn(self, text: str) -> None:
        try:
            self._display.warning(printable(f"gpufleet.checkpoint.progress: {text}."))
        except Exception:
            self.disabled = True


def _terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _ours(task: Any) -> str:
    """The name of a module of this collection; "" for others."""
    action = str(getattr(task, "resolved_action", None) or task.action)
    return action[len(OURS) :] if action.startswith(OURS) else ""


# ansible-core 2.19 gave these their names without an underscore, and later ones warn of the old ones.
def _task(result: Any) -> Any:
    return result.task if hasattr(result, "task") else result._task


def _host(result: Any) -> str:
    return str((result.host if hasattr(result, "host") else result._host).get_name())


def _data(result: Any) -> Mapping[str, Any]:
    told = result.result if hasattr(result, "result") else result._result
    return told if isinstance(told, Mapping) else {}
