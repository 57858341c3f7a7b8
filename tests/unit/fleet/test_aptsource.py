# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mirror and the proxy that this machine's apt is configured with."""

import pytest

from tests.fleet.gpufleet_testfleet.aptsource import choose_mirror, parse_proxies

MAIN = "http://mirror.example/debian/|Debian|Debian|bookworm|bookworm|main"
CONTRIB = "http://contrib.example/debian/|Debian|Debian|bookworm|bookworm|contrib"
UPDATES = "http://updates.example/debian/|Debian|Debian|bookworm-updates|bookworm-updates|main"
SECURITY = "http://mirror.example/debian-security/|Debian|Debian-Security|bookworm-security|bookworm-security|main"
SECURITY_ELSEWHERE = "http://other.example/all/|Debian|Debian-Security|bookworm-security|bookworm-security|main"
VENDOR = "https://packages.example/node|Vendor|Vendor|nodistro|nodistro|main"
MIRROR_LIST = "mirror+file:/etc/apt/mirrors/debian.list|Debian|Debian|trixie|trixie|main"
NOT_UPDATED = "https://fresh.example/debian||||trixie|main"
LOCAL = "file:/srv/debian|Debian|Debian|trixie|trixie|main"


@pytest.mark.parametrize(
    "lines,mirror",
    [
        ([SECURITY, UPDATES, VENDOR, MAIN], "http://mirror.example/debian"),
        ([SECURITY_ELSEWHERE, CONTRIB, MAIN], "http://mirror.example/debian"),
        ([NOT_UPDATED, MAIN], "http://mirror.example/debian"),
        ([VENDOR, NOT_UPDATED], "https://fresh.example/debian"),
        ([MIRROR_LIST, LOCAL], "file:/srv/debian"),
        ([SECURITY, UPDATES, VENDOR, CONTRIB, MIRROR_LIST], None),
        (["", "nonsense", "a|b"], None),
    ],
)
def test_choose_mirror(lines: list[str], mirror: str | None) -> None:
    assert choose_mirror("\n".join(lines) + "\n") == mirror


def test_proxies() -> None:
    dump = (
        'Acquire "";\nAcquire::http "";\nAcquire::http::Proxy "http://proxy.example:3128/";\n'
        'Acquire::HTTPS::Proxy "DIRECT";\nAcquire::ftp::Proxy "http://never.example/";\n'
    )
    assert parse_proxies(dump) == {"http_proxy": "http://proxy.example:3128/"}
    assert parse_proxies("") == {}
