"""The words of a command line, parsed by tyro, whose help and errors repeat them without the escape codes in them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial, wraps
from inspect import getdoc
from io import StringIO
from textwrap import indent
from typing import Any, ParamSpec, TypeVar

import tyro

from .text import printable

Parameters = ParamSpec("Parameters")
Chosen = TypeVar("Chosen")


def call(command: Callable[Parameters, None], prog: str, arguments: Sequence[str]) -> None:
    """Call a function with the arguments that these words give."""

    @wraps(command)
    def later(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Callable[[], None]:
        return partial(command, *args, **kwargs)

    chosen_from(later, prog, arguments)()


def chosen_from(
    kind: Callable[..., Chosen],
    prog: str,
    arguments: Sequence[str],
    repeated: Iterable[str] = (),
    **options: Any,
) -> Chosen:
    """What these words choose; `repeated` are others that may be printed."""
    with harmless([*arguments, *repeated]), whole_sentences():
        found: Chosen = tyro.cli(kind, prog=prog, args=arguments, description=_description(kind), **options)
    return found


def _description(of: object) -> str:
    """What --help says first: the docstring; examples are set in, without which tyro would join their lines."""
    paragraphs = (getdoc(of) or "").split("\n\n")
    return "\n\n".join(indent(text, "  ") if text.startswith("autorecall ") else text for text in paragraphs)


@contextmanager
def whole_sentences() -> Iterator[None]:
    """Inside, tyro gets the docstrings of fields as one line each: it would keep breaks before indented lines."""
    try:
        import docstring_parser  # it comes with tyro, which asks it for them
    except ImportError:  # with a later tyro, perhaps
        yield
        return
    found = docstring_parser.parse_from_object

    def joined(
        obj: object, style: docstring_parser.DocstringStyle = docstring_parser.DocstringStyle.AUTO
    ) -> docstring_parser.Docstring:
        parsed = found(obj, style)
        for field in parsed.params:
            field.description = " ".join((field.description or "").split()) or None
        return parsed

    docstring_parser.parse_from_object = joined
    try:
        yield
    finally:
        docstring_parser.parse_from_object = found


@contextmanager
def harmless(words: Sequence[str]) -> Iterator[None]:
    """Clean what is printed inside, if any of the words that it may repeat needs that."""
    if all(word == printable(word) for word in words):
        yield
        return
    out, err = StringIO(), StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        for printed, file in ((out, sys.stdout), (err, sys.stderr)):
            for line in printed.getvalue().split("\n")[:-1]:
                print(printable(line), file=file)


@contextmanager
def silent() -> Iterator[None]:
    """Print nothing inside; tyro prints some errors even if it is told not to."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), whole_sentences():
        yield
