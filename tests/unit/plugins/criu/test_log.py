# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read out of CRIU's log: recordings of a real one, words of its source, and logs that nobody should see."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log import CHARACTERS, LINES, Decoded, decode
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kinds import BY_ID, KINDS
from tests.unit.plugins.criu.said import CASES, LOGS, NOT_HERE, Case, parse, shortened


def recorded(name: str) -> str:
    return parse((LOGS / f"{name}.log").read_text())[0]


# Recordings


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recorded_log_says_what_it_was(case: Case) -> None:
    case.check(*parse((LOGS / f"{case.name}.log").read_text()))


def test_every_recording_has_its_case_and_tells_where_it_comes_from() -> None:
    assert {path.stem for path in LOGS.glob("*")} == {case.name for case in CASES}
    for path in LOGS.glob("*.log"):
        text = path.read_text()
        assert re.search(
            r"^# CRIU \d+\.\d+[.0-9]* on Linux \d+\.\d+, \d{4}-\d\d-\d\d: (dump|restore) ", text, re.MULTILINE
        )
        assert "SPDX-License-" + "Identifier: GPL-3.0-or-later" in text


def test_recordings_name_nothing_but_the_test_hosts_own_paths() -> None:
    known = ("/var/lib/criu-says", "/dev/", "/usr/bin/", "/usr/lib/", "/proc", "/sys/fs/cgroup", "/tmp/.criu.")
    for path in LOGS.glob("*.log"):
        for found in re.findall(r"(?:^|(?<=[\s\[=.]))/[a-z][\w./-]+", parse(path.read_text())[0], re.MULTILINE):
            assert found.startswith(known) or found in ("/data", "/var", "/criu-says"), (path.name, found)


def test_every_kind_was_said_or_it_is_told_why_not() -> None:
    said = {case.kind for case in CASES}
    assert said | set(NOT_HERE) == set(BY_ID)
    assert not said & set(NOT_HERE)
    assert set(NOT_HERE) - {"no_log"} <= {kind for _doing, kind, _subject, _line in WORDS}
    assert len(BY_ID) == len(KINDS)


def test_kinds_are_said_while_they_can_happen() -> None:
    for case in CASES:
        assert BY_ID[case.kind].doing in ("", case.doing), case


# Words of CRIU's source, version 4.1.1


WORDS = [
    line.split(" | ", 3)
    for line in (Path(__file__).parent / "source_words.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize(("doing", "kind", "subject", "line"), WORDS)
def test_words_of_the_source(doing: str, kind: str, subject: str, line: str) -> None:
    log = (
        f"(00.000001) Version: 4.1.1 (gitid 0)\n(00.000002) {line}\n(00.000003) Error (criu/x.c:1): Restoring FAILED.\n"
    )
    decoded = decode(log, doing)
    assert (decoded.kind, decoded.subject) == (kind, subject.strip("-"))
    assert len(decoded.lines) == 1 and decoded.lines[0] in line


# The cause, not the last error


def test_what_comes_after_the_cause_is_passed_over() -> None:
    log = """\
(00.001) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
(00.002) Dumping task (pid: 12 comm: trainer)
(00.003) Error (criu/files-reg.c:1031): Can't dump ghost file /tmp/a of 9999999 size, increase limit
(00.004) Error (criu/cr-dump.c:1681): Dump files (pid: 12) failed with -1
(00.005) Error (criu/bfd.c:131): bfd: Error flushing image: No space left on device
(00.006) Error (criu/cr-dump.c:2111): Dumping FAILED.
"""
    assert decode(log, "dump").kind == "ghost_limit"


def test_an_unknown_cause_is_told_as_it_stands_with_what_follows_it() -> None:
    log = """\
(00.001) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
(00.002) Dumping task (pid: 12 comm: trainer)
(00.003) Error (criu/a.c:1): The moon is full
(00.004) Error (criu/cr-dump.c:1681): Dump files (pid: 12) failed with -1
(00.005) Error (criu/b.c:1): The tide is high
(00.006) Error (criu/cr-dump.c:2111): Dumping FAILED.
"""
    decoded = decode(log, "dump")
    assert (decoded.kind, decoded.lines) == ("unknown", ("The moon is full", "The tide is high"))
    assert decoded.subject == "PID 12 (trainer)" and "first error" in decoded.remedy


def test_what_is_said_behind_the_last_task_is_not_told_of_it() -> None:
    """A lock of the first process, and no task is named for what comes when all are dumped."""
    log = """\
(00.001) Dumping task (pid: 12 comm: shell)
(00.002) lockinfo: 1:2 1 12 07:01:881 0 EOF
(00.003) 12 fdinfo 5: pos: 0 flags: 0
(00.004) Dumping path for 5 fd via self 17 [/data/lock]
(00.005) 12 fdinfo 6: pos: 0 flags: 0
(00.006) Dumping path for 6 fd via self 17 [/data/other]
(00.007) Dumping task (pid: 13 comm: trainer)
(00.008) Dumping file-locks
"""
    held = decode(log + "(00.009) Error (criu/file-lock.c:110): Some file locks are hold by dumping tasks!\n", "dump")
    assert (held.subject, held.pid, held.descriptor) == ("/data/lock", 12, 5)
    assert decode(log + "(00.009) Error (criu/a.c:1): The moon is full\n", "dump").subject == ""


def test_with_several_deleted_files_none_is_named_for_the_full_disk() -> None:
    one = "(00.001) Opening ghost file 0x1 for data/a\n"
    full = "(00.003)   12: Error (criu/files-reg.c:329): Can't send data: No space left on device\n"
    assert decode(one + full, "restore").subject == "/data/a"
    assert decode(one + "(00.002) Opening ghost file 0x2 for data/b\n" + full, "restore").subject == "PID 12"


def test_a_dump_and_a_restore_are_told_apart() -> None:
    line = "(00.001) Error (criu/files-reg.c:2175): File a has bad size 1 (expect 2)\n"
    assert decode(line, "restore").kind == "bad_file_size"
    assert decode(line, "dump").kind == "unknown"


def test_a_log_that_just_stops_is_not_taken_for_a_success() -> None:
    whole = recorded("restore_well")
    cut = whole[: whole.index("Restore finished")].rpartition("\n")[0]
    assert decode(cut, "restore").kind == "unfinished"
    assert decode("", "dump").kind == decode("\n\n", "dump").kind == "no_log"


def test_what_it_waits_for_is_known_though_the_last_line_is_cut_off() -> None:
    log = recorded("restore_lock_held_flock").rstrip("\n")
    assert decode(log + "\n(00.0051", "restore").kind == "file_lock_held"
    pages = recorded("restore_broken_pages_short").rstrip("\n")
    assert decode(pages + "\n(01.5) pie: 12: `- ret", "restore").kind == "image_incomplete"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_middle_of_a_log_may_be_missing(case: Case) -> None:
    """What is left out, as of a log that is too long, begins and ends within a line. The kind is still known."""
    log, _pid = parse((LOGS / f"{case.name}.log").read_text())
    lines = log.splitlines(keepends=True)
    said = decode(log, case.doing).lines[-1]
    cause = next(at for at, line in enumerate(lines) if said in line.replace("\t", " "))
    kept = max(cause - 3, 1)
    assert decode(log[:20] + "".join(lines[kept - 1 :])[30:], case.doing).kind == case.kind


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_shortened_says_the_same(case: Case) -> None:
    log, _pid = parse((LOGS / f"{case.name}.log").read_text())
    assert decode(shortened(log), case.doing) == decode(log, case.doing)


# Whatever stands there


def test_texts_are_bounded_and_can_stand_in_a_message() -> None:
    path = "/data/\x1b[31m\r\u202e" + "x" * 9000
    log = f"(00.1) Error (criu/files-reg.c:1031): Can't dump ghost file {path} of 9 size, increase limit\n" * 9
    decoded = decode(log, "dump")
    assert len(decoded.lines) <= LINES and all(len(line) <= CHARACTERS for line in decoded.lines)
    assert all(text.isprintable() for text in (*decoded.lines, decoded.subject, decoded.path))


def test_nothing_in_a_log_makes_it_fail() -> None:
    chance = random.Random(5)
    recordings = [parse((LOGS / f"{case.name}.log").read_text())[0] for case in CASES]
    for _round in range(400):
        text = list(chance.choice(recordings))
        for _change in range(chance.randrange(1, 30)):
            at = chance.randrange(len(text))
            text[at] = chance.choice(["", "\0", "\n", "9" * 40, "(", "\udcff", "é", ": ", text[at] * 3])
        for doing in ("dump", "restore"):
            decoded = decode("".join(text), doing)
            assert isinstance(decoded, Decoded) and decoded.kind in BY_ID and decoded.reason and decoded.remedy


def test_long_logs_are_read_in_reasonable_time() -> None:
    lines = "(00.1) Handling VMA with the following smaps entry: 7f00-7f01 r--p 00000000 00:35 1  /usr/lib/x\n" * 60000
    hard = "(00.1) Error (criu/a.c:1): " + "File has bad type " * 200 + "\n"
    began = time.monotonic()
    assert decode(lines + hard * 100, "restore").kind == "unknown"
    assert time.monotonic() - began < 20
