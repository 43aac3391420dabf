"""Text that came from files, made fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, without escape codes: a file name or a setting may hold either."""
    return "".join(character if character.isprintable() else "�" for character in text)
