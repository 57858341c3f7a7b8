# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory of a run on the controller: run.json, hosts/NAME.json, report.json, report.html, lock.

A file is replaced as a whole and is on the disk before the call returns, so that a controller that dies leaves the old
one or the new one. The lock is held only while that happens.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, TypeVar
from urllib.parse import quote, unquote

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import answers, record
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Host, RecordError, Run

RUN = "run.json"
HOSTS = "hosts"
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"
LOCK = "lock"

_Record = TypeVar("_Record", Host, Run)


class Superseded(RecordError):
    """A later attempt over the same hosts has begun; this one writes nothing any more."""

    def __init__(self, run_id: str, slice: int, mine: int, last: int) -> None:
        super().__init__(
            f"run {run_id}, attempt {mine}",
            f"attempt {last} of this run{f', slice {slice},' if slice > 1 else ''} has taken over",
            "Two playbooks that drive the same hosts would undo each other's work.",
            "Let that one finish; this one has ended, and needs nothing more.",
        )


class Directory:
    """path: of the run, `<run directory>/<run id>`. Raises RecordError for whatever can't be read or written."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self) -> None:
        """0700: reports name users, hosts and programs."""
        with _told(self.path):
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            for one in (self.path, os.path.join(self.path, HOSTS)):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(one, mode=0o700)
                seen = os.lstat(one)
                if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
                    raise _not_ours(one, seen)
                os.chmod(one, 0o700)

    def run(self) -> Optional[Run]:
        """None if there is none."""
        run = self._read(RUN, record.run_from_json)
        if run is not None and run.run_id != os.path.basename(self.path):
            raise _damaged(os.path.join(self.path, RUN), f"it is of run {run.run_id}")
        return run

    def host(self, name: str) -> Optional[Host]:
        host = self._read(_host_file(name), record.host_from_json)
        if host is not None and host.host != name:
            raise _damaged(os.path.join(self.path, _host_file(name)), f"it is of host {host.host}")
        return host

    def hosts(self) -> Dict[str, Host]:
        """Those that there are, by name."""
        try:
            names = sorted(os.listdir(os.path.join(self.path, HOSTS)))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unusable(os.path.join(self.path, HOSTS), error) from error
        found = {unquote(name[:-5]): self.host(unquote(name[:-5])) for name in names if name.endswith(".json")}
        return {name: host for name, host in found.items() if host is not None}

    def change_run(self, change: Callable[[Optional[Run]], Run], fence: Optional[record.Attempt] = None) -> Run:
        """Read, change and write under the lock. fence: the attempt that writes; Superseded if a later one began."""
        with self._locked():
            before = self.run()
            self._fenced(before, fence)
            after = change(before)
            self._replace(RUN, _text(record.run_to_json(after)))
            return after

    def change_host(self, name: str, change: Callable[[Host], Host], fence: Optional[record.Attempt] = None) -> Host:
        """The same for a host. One without a record is untouched."""
        with self._locked():
            run = self.run()
            if run is None:
                raise RecordError(
                    os.path.join(self.path, RUN),
                    "there is none",
                    "A host's record belongs to a run.",
                    "The directory was emptied; gpufleet.checkpoint.status rebuilds it from the hosts' journals.",
                )
            self._fenced(run, fence)
            before = self.host(name) or Host(run_id=run.run_id, host=name)
            after = answers.recordable(name, lambda: change(before))
            self._replace(_host_file(name), _text(record.host_to_json(after)))
            return after

    def write_report(self, data: Mapping[str, Any], page: str, fence: Optional[record.Attempt] = None) -> str:
        """The path of the page. A page and its JSON are of the same moment."""
        with self._locked():
            self._fenced(self.run(), fence)
            self._replace(REPORT_JSON, _text(data))
            self._replace(REPORT_HTML, page)
        return os.path.join(self.path, REPORT_HTML)

    def _fenced(self, run: Optional[Run], fence: Optional[record.Attempt]) -> None:
        last = None if run is None or fence is None else run.last(fence.slice)
        if run is not None and fence is not None and last is not None and last.attempt > fence.attempt:
            raise Superseded(run.run_id, fence.slice, fence.attempt, last.attempt)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        path = os.path.join(self.path, LOCK)
        with _told(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with _told(path):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self, name: str, parse: Callable[[Mapping[str, Any]], _Record]) -> Optional[_Record]:
        path = os.path.join(self.path, name)
        try:
            with open(path, encoding="utf-8") as stream:
                data = json.load(stream)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(path, error) from error
        except (ValueError, RecursionError) as error:
            raise _damaged(path, str(error)) from error
        if isinstance(data, dict) and data.get("schema") != record.SCHEMA:
            raise RecordError(
                path,
                f"its schema is {data.get('schema')!r}, this release of the collection knows {record.SCHEMA}",
                "What another release means by it is not guessed.",
                "Use the release of the collection that wrote it, or name another gpu_drain_run_directory; the hosts' "
                "journals know where each host is.",
            )
        try:
            return parse(data)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}") from error

    def _replace(self, name: str, text: str) -> None:
        path = os.path.join(self.path, name)
        folder = os.path.dirname(path)
        with _told(path):
            descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".new")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def _host_file(name: str) -> str:
    return os.path.join(HOSTS, quote(name, safe="") + ".json")


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, sort_keys=False, default=str) + "\n"


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: str, error: OSError) -> RecordError:
    return RecordError(
        path,
        f"it can't be used: {error.strerror or error}",
        "What happens to the hosts is recorded on the controller before it happens.",
        "Give the user of the controller access and room there, or name another gpu_drain_run_directory.",
    )


def _not_ours(path: str, seen: os.stat_result) -> RecordError:
    what = f"it belongs to user id {seen.st_uid}" if stat.S_ISDIR(seen.st_mode) else "it is no directory"
    return RecordError(
        path,
        what,
        "Whoever can write records decides what a drain takes for done, and what is written where.",
        "Name a gpu_drain_run_directory in which only the user of the controller can make directories.",
    )


def _damaged(path: str, evidence: str) -> RecordError:
    return RecordError(
        path,
        f"it is no record of a run ({evidence})",
        "Records are replaced as a whole, so something else wrote it.",
        "Move it away; gpufleet.checkpoint.status rebuilds it from the hosts' journals, which are the truth.",
    )
