# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where this machine gets Debian packages from, as its own apt says."""

from __future__ import annotations

import os
import re
import subprocess

_FORMAT = "$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(CODENAME)|$(RELEASE)|$(COMPONENT)"
_SIDE_ARCHIVES = re.compile(r"(^|[-_/])(security|updates|backports|proposed|debug)\b")


def choose_mirror(targets: str) -> str | None:
    """From lines of `apt-get indextargets` in our format: a mirror of Debian's main archive, or None."""
    unnamed = None
    for line in targets.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 6:
            continue
        uri, origin, label, codename, release, component = fields
        uri = uri.rstrip("/")
        if not uri.startswith(("http://", "https://", "file:/")) or component != "main":
            continue
        if any(_SIDE_ARCHIVES.search(text.lower()) for text in (uri, label, codename, release)):
            continue
        if origin == "Debian":
            return uri
        if not origin and unnamed is None and uri.endswith("/debian"):
            unnamed = uri  # before the first apt-get update nothing but the address is known
    return unnamed


def mirror() -> str | None:
    try:
        result = subprocess.run(
            ["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    return choose_mirror(result.stdout)


def parse_proxies(dump: str) -> dict[str, str]:
    """Environment for debootstrap's downloads, from `apt-config dump`."""
    found = {}
    for scheme, value in re.findall(r'^Acquire::(https?)::Proxy "([^"]*)";$', dump, re.MULTILINE | re.IGNORECASE):
        if value and value != "DIRECT":
            found[f"{scheme.lower()}_proxy"] = value
    return found


def environment() -> dict[str, str]:
    try:
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        dump = ""
    return {**parse_proxies(dump), **os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
