# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of cuda-checkpoint: options, texts, exit codes."""

from __future__ import annotations

from ..backend import Cli, Request
from ..context import Context
from ..registry import case
from ..workload import Process

CLI = ["cli"]


def run(
    c: Context,
    arguments: list[str],
    target: Process | None = None,
    label: str = "",
    env: dict[str, str] | None = None,
) -> str:
    assert isinstance(c.backend, Cli)
    shown = label or c.names.clean("cuda-checkpoint " + " ".join(arguments))
    pending = c.backend.start_argv(arguments, Request("raw", 0, env=env))
    reply = pending.wait(c.size.patience)
    if reply is None:
        c.loose.append(pending)
        c.note(shown, "no answer", c.state(target) if target else None)
        return ""
    result = c.clean(reply.result)
    c.note(shown, result, c.state(target) if target else None)
    return str(reply.result.get("out", ""))


def home(c: Context, w: Process) -> None:
    """Back to running, and said when that needed anything."""
    state = c.state(w)
    for op in {"checkpointed": ["restore", "unlock"], "locked": ["unlock"]}.get(state, []):
        c.begin(op, w).wait(c.size.patience)
    if state != "running":
        c.note("that had left it", state)


@case("cli/help", backends=CLI)
def help_text(c: Context) -> None:
    for arguments in (["--help"], ["-h"], []):
        text = run(c, arguments)
        c.raw.append({"at": "help " + " ".join(arguments), "text": text})
    run(c, ["--version"])


@case("cli/bad-arguments", backends=CLI)
def bad_arguments(c: Context) -> None:
    w = c.workload()
    pid = str(w.pid)
    for arguments in (
        ["--no-such-option"],
        ["--get-state"],
        ["--toggle"],
        ["--action", "lock"],
        ["--action", "--pid", pid],
        ["--action", "no-such-action", "--pid", pid],
        ["--pid", pid],
        ["--pid"],
        ["--get-state", "--pid", "abc"],
        ["--get-state", "--pid", ""],
        ["--get-state", "--pid", "12x"],
        ["--get-state", "--pid", pid, "extra"],
        ["--get-state", "--toggle", "--pid", pid],
        ["--action", "lock", "--timeout", "abc", "--pid", pid],
        ["--action", "unlock", "--timeout", "100", "--pid", pid],
        ["--get-state", "--timeout", "100", "--pid", pid],
        ["--get-state", f"--pid={pid}"],
        ["--get-state", "-p", pid],
        ["-p", pid, "--get-state"],
        ["--action", "LOCK", "--pid", pid],
    ):
        run(c, arguments)
        home(c, w)
    c.note("state at the end", c.state(w))


@case("cli/short-options", backends=CLI)
def short_options(c: Context) -> None:
    w = c.workload()
    pid = str(w.pid)
    run(c, ["--action", "lock", "-p", pid, "-t", "500"], w)
    run(c, ["--action", "unlock", "-p", pid], w)
    run(c, ["--action", "lock", "--pid", pid, "--timeout", "0"], w)
    run(c, ["--pid", pid, "--action", "unlock"], w)


@case("cli/get-state", backends=CLI)
def get_state(c: Context) -> None:
    w = c.workload()
    pid = str(w.pid)
    for action in ("", "lock", "checkpoint", "restore", "unlock"):
        if action:
            c.call(action, w)
        run(c, ["--get-state", "--pid", pid])


@case("cli/toggle", backends=CLI)
def toggle(c: Context) -> None:
    """From each state. It reverses itself when repeated."""
    w = c.workload()
    c.remember_sum(w)
    c.call("toggle", w)
    c.look(w, "toggled")
    c.call("toggle", w)
    c.whole(w)
    c.call("lock", w)
    c.call("toggle", w)
    c.call("toggle", w)
    c.call("toggle", w)
    state = c.state(w)
    c.note("state after three toggles", state)
    for op in {"checkpointed": ["restore", "unlock"], "locked": ["unlock"]}.get(state, []):
        c.call(op, w)
    c.suspend(w)
    c.call("restore", w)
    c.call("toggle", w)
    state = c.state(w)
    for op in {"checkpointed": ["restore", "unlock"], "locked": ["unlock"]}.get(state, []):
        c.call(op, w)
    c.whole(w)


@case("cli/toggle-errors", backends=CLI)
def toggle_errors(c: Context) -> None:
    plain = c.other("plain", ["sleep", "1000"])
    dead = c.other("dead", ["true"])
    c.gone(dead)
    c.call("toggle", plain, reread=False)
    c.call("toggle", dead, reread=False)


@case("cli/toggle-twice-at-once", backends=CLI)
def toggle_twice(c: Context) -> None:
    """Two toggles at once: one suspends, the other resumes, or one is refused. Only the end is compared."""
    w = c.workload()
    c.remember_sum(w)
    first, second = c.begin("toggle", w), c.begin("toggle", w)
    codes = []
    for pending in (first, second):
        reply = pending.wait(c.size.patience)
        codes.append("no answer" if reply is None else "answered")
    c.note("two toggles at once", codes)
    state = c.state(w)
    c.raw.append({"at": "two toggles at once", "state": state})
    for op in {"checkpointed": ["restore", "unlock"], "locked": ["unlock"]}.get(state, []):
        c.begin(op, w).wait(c.size.patience)
    c.whole(w)


@case("cli/preload-noise", backends=CLI)
def preload_noise(c: Context) -> None:
    """A failing LD_PRELOAD: noise on stderr, the call succeeds."""
    w = c.workload()
    run(c, ["--get-state", "--pid", str(w.pid)], w, env={"LD_PRELOAD": "/nonexistent/noise.so"})
    run(c, ["--action", "lock", "--pid", str(w.pid)], w, env={"LD_PRELOAD": "/nonexistent/noise.so"})
    c.call("unlock", w)


@case("cli/locale", backends=CLI)
def locale(c: Context) -> None:
    plain = c.other("plain", ["sleep", "1000"])
    run(c, ["--get-state", "--pid", str(plain.pid)], env={"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"})


@case("cli/device-map-texts", backends=CLI)
def device_map_texts(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    uuid = c.host.gpus[0][0]
    pid = str(w.pid)
    for value in ("", "x", f"{uuid}", f"{uuid}=", f"={uuid}", f"{uuid}=x", f"{uuid}={uuid},", "0=0", f"{uuid}:{uuid}"):
        run(c, ["--action", "restore", "--pid", pid, "--device-map", value], w, label=c.clean(f"device-map {value!r}"))
        if c.state(w) == "locked":
            c.call("checkpoint", w)
    run(c, ["--action", "restore", "--pid", pid, "--device-map"], w)
    run(c, ["--action", "lock", "--pid", pid, "--device-map", f"{uuid}={uuid}"], w)
    c.resume(w)
    c.whole(w)


@case("smi/query", backends=CLI, requires=["smi"])
def smi_query(c: Context) -> None:
    """The forms of nvidia-smi's answers that tools read. Numbers are replaced."""
    import re
    import subprocess

    w = c.workload()
    uuid = {gpu[0]: f"gpu{i}" for i, gpu in enumerate(c.host.gpus)}

    def smi(*arguments: str) -> str:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return f"rc {done.returncode}: " + done.stdout.decode(errors="replace").strip()

    def shape(text: str) -> str:
        for number, name in uuid.items():
            text = text.replace(number, f"<{name}>")
        text = text.replace(c.host.driver, "<driver>").replace(c.host.gpus[0][1], "<model>")
        return re.sub(r"\b\d+ MiB", "N MiB", text)

    c.note("-L", shape(smi("-L")))
    for query in ("index,name,uuid,memory.total", "driver_version", "persistence_mode,mig.mode.current", "memory.used"):
        text = smi(f"--query-gpu={query}", "--format=csv,noheader")
        c.note(
            query,
            shape(text)
            if query != "persistence_mode,mig.mode.current"
            else "answered"
            if text.startswith("rc 0")
            else text,
        )
        c.raw.append({"at": query, "text": text})
    text = smi("--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits")
    c.note("memory without units", "numbers" if re.fullmatch(r"rc 0: (\d+, \d+\s*)+", text + "\n") else text)
    apps = smi("--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits")
    c.raw.append({"at": "compute apps", "text": apps})
    c.note("compute apps name w1", str(w.pid) in re.findall(r"\d+", apps))
    c.suspend(w)
    apps = smi("--query-compute-apps=pid", "--format=csv,noheader")
    c.note("suspended: compute apps name w1", str(w.pid) in re.findall(r"\d+", apps))
    c.note("no such query", shape(smi("--query-gpu=no_such_thing", "--format=csv,noheader")))
