"""The words of a command line, parsed by tyro, whose help and errors repeat them without the escape codes in them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial, wraps
from io import StringIO
from typing import ParamSpec

import tyro

from .text import printable

Parameters = ParamSpec("Parameters")


def call(command: Callable[Parameters, None], prog: str, arguments: Sequence[str]) -> None:
    """Call a function with the arguments that these words give."""

    @wraps(command)
    def later(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Callable[[], None]:
        return partial(command, *args, **kwargs)

    with harmless(arguments):
        ready = tyro.cli(later, prog=prog, args=arguments)
    ready()


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
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield
