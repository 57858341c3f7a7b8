# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real kube-apiserver over a real etcd, as tests/kubernetes/build made them. No kubelet: nodes are made by hand, and
pods never run."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
READY_SECONDS = 120.0
_TOKEN = "for-tests-only"


def directory() -> Path:
    """Where build puts it, whether it is there or not."""
    done = subprocess.run([str(HERE / "build"), "--where"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


class Api:
    """The server, as its administrator."""

    def __init__(self, url: str, kubeconfig: Path) -> None:
        self.url = url
        self.kubeconfig = kubeconfig
        # A certificate that the server has just made for itself.
        self._trust = ssl._create_unverified_context()

    def __call__(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {_TOKEN}", "Content-Type": kind},
        )
        with urllib.request.urlopen(request, context=self._trust, timeout=30) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def patch(self, path: str, body: object) -> Any:
        return self("PATCH", path, body, "application/merge-patch+json")

    def is_ready(self) -> bool:
        try:
            return bool(self("GET", "/readyz") == "ok")
        except (OSError, urllib.error.URLError):
            return False


def _free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _number in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def _start(log: Path, *argv: str) -> subprocess.Popen[bytes]:
    """It dies with this process, whatever kills it."""
    with log.open("wb") as output:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *argv], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


@contextmanager
def serving(where: Path) -> Iterator[Api]:
    """Up and ready; its files, logs and kubeconfig are in `where`."""
    tools = directory()
    client, peer, port = _free_ports(3)
    etcd = f"http://127.0.0.1:{client}"
    for bits, name in (("genrsa -out sa.key 2048", "sa.key"), ("rsa -in sa.key -pubout -out sa.pub", "sa.pub")):
        subprocess.run(["openssl", *bits.split()], cwd=where, check=True, capture_output=True)
        (where / name).chmod(0o600)
    (where / "tokens.csv").write_text(f'{_TOKEN},admin,admin,"system:masters"\n')
    kubeconfig = where / "kubeconfig"
    kubeconfig.write_text(_kubeconfig(port))
    kubeconfig.chmod(0o600)
    started = [
        _start(
            where / "etcd.log",
            *(str(tools / "etcd"), "--data-dir", str(where / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
        ),
        _start(
            where / "kube-apiserver.log",
            *(str(tools / "kube-apiserver"), "--etcd-servers", etcd, "--secure-port", str(port)),
            *("--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--cert-dir", str(where / "certs")),
            *("--service-account-issuer", "https://localhost", "--token-auth-file", str(where / "tokens.csv")),
            *("--service-account-signing-key-file", str(where / "sa.key")),
            *("--service-account-key-file", str(where / "sa.pub"), "--authorization-mode", "RBAC"),
            *("--service-cluster-ip-range", "10.96.0.0/16", "--disable-admission-plugins", "ServiceAccount"),
        ),
    ]
    api = Api(f"https://127.0.0.1:{port}", kubeconfig)
    try:
        end = time.monotonic() + READY_SECONDS
        while not api.is_ready():
            ended = [one.args for one in started if one.poll() is not None]
            logs = "".join((where / f"{name}.log").read_text()[-1500:] for name in ("etcd", "kube-apiserver"))
            assert not ended, f"{ended} ended: {logs}"
            assert time.monotonic() < end, f"not ready within {READY_SECONDS:.0f} s: {logs}"
            time.sleep(0.2)
        yield api
    finally:
        for one in reversed(started):
            one.terminate()
        for one in reversed(started):
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def _kubeconfig(port: int) -> str:
    server = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "admin", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        },
        indent=1,
    )


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: run DIRECTORY", file=sys.stderr)
        return 2
    where = Path(arguments[0]).resolve()
    where.mkdir(parents=True, exist_ok=True)
    if not (directory() / "kube-apiserver").exists():
        print(f"{directory()} is missing: run tests/kubernetes/build", file=sys.stderr)
        return 1
    with serving(where) as api:
        print(f"ready: export KUBECONFIG={api.kubeconfig}", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
