"""Text from files, folders and the command line, made safe to show: no other module decides what that means."""

from __future__ import annotations

import re
import sys
import unicodedata
from contextlib import suppress

LONGEST = 800  # characters of anything that is shown
MOST_MARKS = 4  # accents on one letter; Vietnamese and Hebrew need three
REPLACED = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text on one line of a terminal, at most LONGEST characters of it.

    Control, format and unassigned characters are replaced, such as escape codes, line breaks and those that turn the
    direction of writing. A sentence ends with what to do, so long ones lose their middle.
    """
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2 - 3]} … {text[-LONGEST // 2 :]}"
    shown: list[str] = []
    marks = MOST_MARKS + 1  # as if there were many: the first letter has nothing to stand on
    for letter in text:
        kind = unicodedata.category(letter)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        if kind == "Zs":
            shown.append(" ")
        elif letter.isprintable() and marks <= MOST_MARKS:
            shown.append(letter)
        elif not marks or not shown:
            shown.append(REPLACED)
    return "".join(shown)


# Not escaped, because they mean nothing and are common in names of rows: underscores within words, lists of numbers.
_PLAIN = re.compile(r"(?<=[^\W_])_(?=[^\W_])|\[[\d.,… -]*\d[\d.,… -]*\](?![\[(:])")
_ESCAPED = re.compile(r"[\\`*_~#!|<>&()\[\]$]|:(?=//)|(?<=www)\.|^[-+](?=\s)|(?<=^1)\.(?=\s)", re.IGNORECASE)


def markdown(text: str) -> str:
    """The text in a cell or a line of Markdown, where nothing in it is a link, a tag, a formula or a new cell."""
    text = printable(text)
    escaped, place = "", 0
    for plain in _PLAIN.finditer(text):
        escaped += _ESCAPED.sub(r"\\\g<0>", text[place : plain.start()]) + plain[0]
        place = plain.end()
    escaped += _ESCAPED.sub(r"\\\g<0>", text[place:])
    # GitHub looks for names and addresses after escapes are gone, but not across a comment.
    return escaped.replace("@", "<!-- -->@<!-- -->")


def spreadsheet(text: str) -> str:
    """The text in a cell of a CSV file, where no program takes it for a formula.

    >>> spreadsheet("=1+1"), spreadsheet("-1.5"), spreadsheet("-"), spreadsheet("mnist/arm")
    ("'=1+1", '-1.5', '-', 'mnist/arm')
    """
    is_formula = text.startswith(("=", "+", "-", "@")) and not re.fullmatch(r"[+-][\d.]*", text)
    return f"'{text}" if is_formula else text


def complain(sentence: str) -> None:
    """Print a sentence on stderr, if anyone is there to read it."""
    with suppress(OSError):
        print(f"autorecall: {printable(sentence)}", file=sys.stderr)
