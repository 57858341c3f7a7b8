# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the check of a finished site finds, and what it leaves alone."""

from pathlib import Path

import pytest

from tests.gates import links


def site(tmp_path: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (tmp_path / f"{name}.html").write_text(text)
    return tmp_path


def test_whole_links_are_no_problem(tmp_path: Path) -> None:
    whole = site(
        tmp_path,
        one='<p id="here"><a href="#here">x</a><a href="two.html#th%65re">x</a><a href="https://a.example/#b">x</a></p>',
        two='<a id="there"></a><a name="old"></a><a href="one.html">x</a><a href="#old">x</a><img src="data:,x">',
    )
    assert links.problems(whole) == []
    assert links.main([str(whole)]) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="three.html">x</a>', "one.html: no such file: three.html"),
        ('<a href="two.html#where">x</a>', "one.html: no such anchor: two.html#where"),
        ('<a href="#where">x</a>', "one.html: no such anchor: #where"),
        ('<img src="gone.png">', "one.html: no such file: gone.png"),
        (
            '<script src="https://a.example/x.js"></script>',
            "one.html: is loaded from elsewhere: https://a.example/x.js",
        ),
        ('<link href="//a.example/x.css">', "one.html: is loaded from elsewhere: //a.example/x.css"),
    ],
)
def test_each_kind_of_problem_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    broken = site(tmp_path, one=text, two='<p id="there"></p>')
    assert links.problems(broken) == [problem]
    assert links.main([str(broken)]) == 1
    assert problem in capsys.readouterr().err


def test_a_site_without_pages_is_no_site(tmp_path: Path) -> None:
    assert links.problems(tmp_path) == [f"{tmp_path}: no page"]
