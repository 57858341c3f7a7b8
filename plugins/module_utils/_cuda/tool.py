# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The `cuda-checkpoint` executable: what it offers, how it is called, and what its words mean.

It is a shim: options, texts and even the version that it prints come from the driver. It exits 1 for every refusal
and says only on stderr which one it was.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from typing import IO, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import STATES, Reply, code_of, text
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines

DEFAULT = "cuda-checkpoint"
PROBE_SECONDS = 30.0
# More than any help text; what a broken tool writes beyond it is not read.
MOST_BYTES = 65536


@dataclass(frozen=True)
class Request:
    """One call, as data. timeout_ms: 0 for none. device_map: empty for none."""

    pid: int
    action: str = ""
    timeout_ms: int = 0
    device_map: Tuple[Tuple[str, str], ...] = ()


# One formatter per option: its words, or none where the request has nothing for it.
FORMATTERS: Mapping[str, Callable[[Request], List[str]]] = {
    "--get-state": lambda request: ["--get-state"],
    "--get-restore-tid": lambda request: ["--get-restore-tid"],
    "--toggle": lambda request: ["--toggle"],
    "--action": lambda request: ["--action", request.action],
    "--pid": lambda request: ["--pid", str(request.pid)],
    "--timeout": lambda request: ["--timeout", str(request.timeout_ms)] if request.timeout_ms else [],
    "--device-map": lambda request: (
        ["--device-map", ",".join(f"{old}={new}" for old, new in request.device_map)] if request.device_map else []
    ),
}


def argv(executable: str, options: Sequence[str], request: Request) -> List[str]:
    """The command line of these options, in this order. Raises ValueError for what the tool would misread: it takes an
    empty PID for 0 and passes over words that are no options."""
    if request.pid <= 0:
        raise ValueError(f"{request.pid} is no PID")
    if request.timeout_ms < 0:
        raise ValueError(f"timeout of a lock: {request.timeout_ms} ms is negative")
    for pair in request.device_map:
        for uuid in pair:
            if not re.match(r"GPU-[0-9A-Fa-f-]{36}\Z", uuid):
                raise ValueError(f"{uuid!r} is no GPU UUID")
    words = [executable]
    for option in options:
        words += FORMATTERS[option](request)
    return words


def environment() -> Dict[str, str]:
    """The caller's, with the C locale, and without what puts other code into a program that root runs. The path of
    libraries stays: it may be where the driver is."""
    kept = {key: value for key, value in os.environ.items() if key == _LIBRARIES or not key.startswith(_CODE)}
    kept.pop("LANGUAGE", None)
    return {**kept, "LC_ALL": "C"}


@dataclass(frozen=True)
class Finished:
    """What a run of the tool left. status: exit status, negative for a signal, None if somebody else reaped it."""

    status: Optional[int]
    out: str
    err: str


def _scratch() -> IO[bytes]:
    """For output: a file, so that the tool never waits for a reader and never loses one."""
    try:
        return os.fdopen(os.memfd_create("cuda-checkpoint"), "w+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()


def _read(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read(MOST_BYTES).decode("utf-8", "replace")


def run(words: Sequence[str], keep: Sequence[int] = (), mask: Optional[FrozenSet[int]] = None) -> Finished:
    """Runs the tool to its end, however long that takes: in a session of its own, so that no signal to the caller's
    group ends it, and so that it finishes when the caller dies.

    keep: descriptors that it inherits. mask: the signals that it starts with blocked; None for the caller's.
    Raises OSError when it can't be started.
    """
    with _scratch() as out, _scratch() as err:
        process = _start(words, out, err, keep, mask)
        status = _reap(process)
        return Finished(status, _read(out), _read(err))


def _start(
    words: Sequence[str], out: IO[bytes], err: IO[bytes], keep: Sequence[int], mask: Optional[FrozenSet[int]]
) -> "subprocess.Popen[bytes]":
    before = signal.pthread_sigmask(signal.SIG_SETMASK, mask) if mask is not None else None
    try:
        # run_command() belongs to a module, waits, and takes the child with it when it is killed.
        return subprocess.Popen(  # pylint: disable=ansible-bad-function
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(),
            cwd="/",
            start_new_session=True,
            pass_fds=tuple(keep),
        )
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap(process: "subprocess.Popen[bytes]") -> Optional[int]:
    """Popen.wait() would call a child that somebody else reaped a success."""
    try:
        _pid, status = os.waitpid(process.pid, 0)
    except ChildProcessError:
        process.returncode = 0  # so that Popen does not wait for it, either
        return None
    process.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return process.returncode


class ToolError(Exception):
    """The executable can't be used; str() says what was looked for and what was found. there: it exists."""

    def __init__(self, words: str, there: bool) -> None:
        super().__init__(words)
        self.there = there


@dataclass(frozen=True)
class Offer:
    """What the executable's help lists. version: the driver's, as it prints it; "" where it doesn't."""

    executable: str
    options: FrozenSet[str]
    version: str


def find(executable: str) -> str:
    """The absolute path of the tool: `executable` itself, or looked up on PATH and in the usual places.

    Raises ToolError.
    """
    if os.sep in executable:
        if os.path.isfile(executable) and os.access(executable, os.X_OK):
            return os.path.abspath(executable)
        raise ToolError(f"{executable} is no executable file", os.path.exists(executable))
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    places += [place for place in _USUAL_PLACES if place not in places]
    found = shutil.which(executable, path=os.pathsep.join(place for place in places if os.path.isabs(place)))
    if found is None:
        raise ToolError(f"no executable {executable} in {', '.join(places)}", False)
    return found


def probe(executable: str = DEFAULT, seconds: float = PROBE_SECONDS) -> Offer:
    """Asks the tool for its help, which makes no driver call on any process. Raises ToolError."""
    path = find(executable)
    with _scratch() as out, _scratch() as err:
        try:
            process = _start([path, "--help"], out, err, (), None)
        except OSError as error:
            raise ToolError(f"{path} can't be started: {error.strerror}", True) from error
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.poll()
            raise ToolError(f"{path} --help gave no answer within {seconds:g} s", True) from None
        finished = Finished(status, _read(out), _read(err))
    words = finished.out + "\n" + finished.err
    options = frozenset(_OPTION.findall(words))
    if not options & {"--toggle", "--action"}:
        said = _said(finished.err) or _said(finished.out) or [f"exit status {status} without a word"]
        raise ToolError(f"{path} --help lists neither --action nor --toggle, but says: {said[0]}", True)
    version = _VERSION.search(words)
    return Offer(path, options, version.group(1) if version else "")


_LIBRARIES = "LD_LIBRARY_PATH"
_CODE = ("LD_", "GCONV_", "GLIBC_", "BASH_", "PERL", "PYTHON")
_USUAL_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_OPTION = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*")
_VERSION = re.compile(r"^Version (\d+(?:\.\d+)+)", re.MULTILINE)
_REFUSAL = re.compile(
    r"(?:Could not [a-z]+ on|Error getting process state for|Error toggling CUDA in) process ID \d+: \"(.*)\""
)
_NO_THREAD = re.compile(r"Could not find restore thread for process ID \d+")
# A failing LD_PRELOAD: noise, the call succeeds all the same.
_NOISE = re.compile(r"ERROR: ld\.so: object ")
# What the tool says instead of a CUresult, before its help text.
_USAGE_CODES = {"Invalid device remap": 1}


def _said(words: str) -> List[str]:
    return [line.strip() for line in lines(words) if line.strip() and not _NOISE.match(line)]


def refusal(finished: Finished) -> Optional[Reply]:
    """What the tool refused; None when it claims success. Its words count first, its exit status only without words."""
    said = _said(finished.err)
    for line in said:
        match = _REFUSAL.match(line)
        if match:
            code = code_of(match.group(1))
            return Reply(False, code, line if code is None else text(code), 0.0)
        if _NO_THREAD.match(line):
            return Reply(False, None, line, 0.0)
    if finished.status == 0 or (finished.status is None and not said):
        return None
    if finished.status is not None and finished.status < 0:
        return Reply(False, None, f"cuda-checkpoint was ended by signal {-finished.status}", 0.0)
    first = said[0] if said else f"cuda-checkpoint exited with status {finished.status} without a word"
    return Reply(False, _USAGE_CODES.get(first), first, 0.0)


def done(finished: Finished) -> Reply:
    """The reply to a call that changes a state."""
    return refusal(finished) or Reply(True, 0, text(0), 0.0)


def read_state(finished: Finished) -> Reply:
    """The reply to --get-state."""
    refused = refusal(finished)
    if refused:
        return refused
    word = finished.out.strip()
    if word not in STATES.values():
        return Reply(False, None, f"cuda-checkpoint printed {word[:80]!r}, which is no state known here", 0.0)
    return Reply(True, 0, text(0), 0.0, state=word)


def read_thread(finished: Finished) -> Reply:
    """The reply to --get-restore-tid."""
    refused = refusal(finished)
    if refused:
        return refused
    word = finished.out.strip()
    if not re.match(r"[1-9][0-9]{0,9}\Z", word):
        return Reply(False, None, f"cuda-checkpoint printed {word[:80]!r}, which is no thread id", 0.0)
    return Reply(True, 0, text(0), 0.0, tid=int(word))
