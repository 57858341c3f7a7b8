# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/criu-errors.md says what log.py says, and both in words for an operator."""

from __future__ import annotations

import re

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kinds import BY_ID, KINDS, Kind
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_rules import STUCK, SURE, UNSURE
from tests.unit.plugins.criu.errors_page import PAGE, inserted


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    page = PAGE.read_text()
    assert page == inserted(page), (
        "docs/criu-errors.md is not up to date: PYTHONPATH=.:build/tree python -m tests.unit.plugins.criu.errors_page"
    )


def test_the_page_has_each_kind_once_and_speaks_of_no_other() -> None:
    page = PAGE.read_text()
    anchors = re.findall(r'<a id="([a-z_]+)"></a>`([a-z_]+)`', page)
    assert all(anchor == name for anchor, name in anchors)
    assert sorted(name for name, _shown in anchors) == sorted(BY_ID)
    text = page.split("## Dump")[0]
    assert set(re.findall(r"\(`([a-z_]+)`\)", text)) <= set(BY_ID)


def test_a_page_without_a_place_for_the_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="dump: begin"):
        inserted("# nothing")


def test_every_rule_leads_to_a_kind_of_its_time() -> None:
    for rule in (*SURE, *UNSURE, *STUCK):
        assert BY_ID[rule.kind].doing in ("", rule.doing), rule


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
def test_texts_are_sentences_that_can_stand_together(kind: Kind) -> None:
    for text in (kind.reason, kind.remedy):
        assert text[0].isupper() or text.startswith("CRIU"), text
        assert text[-1] not in ".!? " and "  " not in text and "|" not in text, text
        assert text.isprintable(), text
    message = str(CriuError("PID 12 (trainer)", "what it said", kind.reason, kind.remedy, kind.option))
    assert message.startswith(f"PID 12 (trainer): what it said. {kind.reason}. {kind.remedy}.")
    assert (f"Override: {kind.option}." in message) == bool(kind.option)


def test_options_are_those_of_the_module() -> None:
    module = (PAGE.parents[1] / "plugins/modules/criu_image.py").read_text()
    for kind in KINDS:
        if kind.option:
            name, _colon, value = kind.option.partition(": ")
            assert re.search(rf"^  {name}:$", module, re.MULTILINE) and value, kind
