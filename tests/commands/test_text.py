"""Text from files and folders, as it is shown: nothing in it acts on a terminal or in a Markdown page."""

from __future__ import annotations

import html
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from autorecall.commands.text import LONGEST, markdown, printable

ACTING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
ODD = [
    "\x1b[2J",
    "a\nb\r\tc\0",
    "\x9b31m",
    "\u202eevil\u202c",
    "\u2066x\u2069",
    "\u2028\u2029\x85",
    "zero\u200bwidth\ufeff",
    "\ud800",
    "\ue000",
    "\U000e0041",
    "no-break\u00a0space\u3000wide",
]


@pytest.mark.parametrize("text", ["", "mnist/arm", "é ü ß ± …", "猫/いぬ", "שלום", "ภาษาไทย", "[red] :smile: {x} $x$"])
def test_ordinary_text_is_printed_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize("text", ODD)
def test_what_acts_on_a_terminal_is_replaced(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert not {unicodedata.category(letter) for letter in shown} & ACTING
    assert shown.isprintable()


def test_marks_cannot_pile_up_or_reach_what_stands_before() -> None:
    assert printable("e\u0301x") == "e\u0301x"
    assert len(printable("e" + "\u0301" * 500 + "x" + "\u0489" * 500)) < 20
    assert not unicodedata.combining(printable("\u0301x")[0])


def test_long_text_is_cut_in_its_middle() -> None:
    shown = printable("begin" + "x" * 10**6 + "end")
    assert len(shown) <= LONGEST
    assert (shown[:5], shown[-3:]) == ("begin", "end")
    assert printable("y" * LONGEST) == "y" * LONGEST


@given(st.text())
def test_any_text_becomes_one_short_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown


# Markdown


def rendered(cell: str) -> str:
    """The HTML of a cell of a table, with links found in plain text as well."""
    page = MarkdownIt("commonmark").enable("table").enable("strikethrough").render(f"| a |\n|---|\n| {cell} |\n")
    found = re.search("<td>(.*)</td>", page)
    assert found is not None
    assert page.count("<td>") == 1
    return found[1]


def read(cell: str) -> str:
    """What a reader sees."""
    seen = rendered(cell).replace("<!-- -->", "")
    assert "<" not in seen
    return html.unescape(seen)


HARMFUL = [
    "<script>alert(1)</script>",
    "[l](javascript:x)",
    "![i](http://x/y.png)",
    "[l][m]",
    "<http://x.y>",
    "a|b",
    r"a\|b",
    "\\",
    "*a* **b** _c_ __d__ ~~e~~ `f` # g",
    "&lt;b&gt; &amp;",
    "[5](x)",
    "[1, 2][3]",
    "[^1]",
    "a_b_c _d_",
    "$x$",
]


@pytest.mark.parametrize("text", HARMFUL)
def test_nothing_has_a_meaning_in_markdown(text: str) -> None:
    assert read(markdown(text)) == text


@given(st.text(st.sampled_from("ab1 _*[]()<>&`|\\~#!@:/.w$-=+\"'^{}"), max_size=20))
def test_any_text_is_read_as_it_is(text: str) -> None:
    assert read(markdown(text)) == text.strip()


@pytest.mark.parametrize(
    "text", ["http://x.y", "HTTPS://x.y", "ftp://x", "www.x.y", "WWW.x.y", "a@b.c", "@name", "mailto:a@b.c"]
)
def test_no_address_becomes_a_link(text: str) -> None:
    """As GitHub finds them: in what is left of the text between tags and escapes."""
    pieces = re.split(r"\\.|<!-- -->", markdown(text))
    assert not [piece for piece in pieces if re.search(r"(?i)\w://|www\.|@\w|\w@\w", piece)]
    assert read(markdown(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "mnist/arm learner.lag.policy=window",
        "mnist/naive stream.class_pool=[5627, 6405, …]",
        "cifar10/gem learner.learning_rate=0.01 learner.margin=0.0 fraction=0.1 split=val",
        "stream.class_order=[3, 1]",
        "56.3 ± 2.6",
        "1,094,750",
        "not in the paper",
        "-",
    ],
)
def test_ordinary_rows_are_written_as_they_are(text: str) -> None:
    assert markdown(text) == text
    assert read(text) == text


@pytest.mark.parametrize("text", ["- a", "+ b", "1. c", "* d", "# e", "> f", "2) g", "---", "1) h"])
def test_a_line_after_others_is_part_of_them(text: str) -> None:
    assert MarkdownIt("commonmark").render(f"Notes.\n{markdown(text)}: x\n").count("<") == 2


@pytest.mark.parametrize("text", ODD)
def test_markdown_has_nothing_that_acts_on_a_terminal(text: str) -> None:
    assert markdown(text).isprintable()
