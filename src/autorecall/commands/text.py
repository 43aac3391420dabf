"""Text from files, made safe for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, without escape codes: file names and settings may contain either."""
    return "".join(character if character.isprintable() else "�" for character in text)
