# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module returns against what its RETURN says: for tests that have a result in hand."""

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml

PREFIX = "ansible_collections.gpufleet.checkpoint.plugins.modules"
# What Ansible itself adds to a result, or takes out of it.
ANSIBLE = {"changed", "diff", "exception", "failed", "invocation", "msg", "skipped", "warnings", "deprecations"}
# A value of one of these types may be null where its description says so.
TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "dict": (dict,),
    "float": (float, int),
    "int": (int,),
    "list": (list,),
    "str": (str,),
}


@cache
def documentation(module: str, part: str = "DOCUMENTATION") -> Any:
    """DOCUMENTATION, EXAMPLES or RETURN of a module, parsed."""
    return yaml.safe_load(getattr(importlib.import_module(f"{PREFIX}.{module}"), part))


def problems(module: str, result: Mapping[str, Any]) -> list[str]:
    """What is returned and not documented, or is of another type than documented; empty when all is well."""
    values = {key: value for key, value in result.items() if key not in ANSIBLE and not key.startswith("_")}
    return list(_compare(documentation(module, "RETURN"), values, ""))


def _compare(documented: Mapping[str, Any], values: Mapping[str, Any], where: str) -> Iterator[str]:
    for key, value in values.items():
        if key not in documented:
            yield f"{where}{key} is not documented"
            continue
        entry = documented[key]
        text = str(entry["description"])
        if value is None:
            if "V(null)" not in text:
                yield f"{where}{key} is null, which is not documented"
            continue
        if not isinstance(value, TYPES[entry["type"]]) or (entry["type"] == "int" and isinstance(value, bool)):
            yield f"{where}{key} is {type(value).__name__}, not {entry['type']}"
            continue
        if "contains" in entry:
            inner: list[Any] = list(value) if isinstance(value, list) else [value]
            for number, element in enumerate(inner):
                place = f"{where}{key}[{number}]." if isinstance(value, list) else f"{where}{key}."
                yield from _compare(entry["contains"], element, place)
