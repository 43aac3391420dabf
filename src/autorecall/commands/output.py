"""What commands print to: a console that falls silent when nobody listens, and progress bars that leave room for ^C."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import Progress

from .text import complain

ECHO = 4  # columns of two ^C


def quiet_console() -> Console:
    """A console on stdout that prints text as it is, for as long as it can be written."""
    return Console(highlight=False, markup=False, emoji=False, file=cast(TextIO, Quiet(sys.stdout)))


class Quiet:
    """A file that falls silent once it cannot be written to: a run need not end because nobody is listening."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._broken = file, False

    def write(self, text: str) -> int:
        """Write, as long as that works."""
        if not self._broken:
            try:
                return self._file.write(text)
            except OSError as error:
                self._fall_silent(error)
        return len(text)

    def flush(self) -> None:
        """Flush, as long as that works."""
        if not self._broken:
            try:
                self._file.flush()
            except OSError as error:
                self._fall_silent(error)

    def _fall_silent(self, error: OSError) -> None:
        self._broken = True
        if not isinstance(error, BrokenPipeError):  # a reader that left knows
            complain(f"cannot print ({error.strerror}); the run continues without output")

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class Bars(Progress):
    """Progress bars that do not fill their lines: an echoed ^C would wrap, and Rich leave a line behind."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, a little narrower than the terminal."""
        return (Narrower(inside) for inside in super().get_renderables())


@dataclass(frozen=True)
class Narrower:
    """Leaves the last columns to what the terminal echoes."""

    inside: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return console.render(self.inside, options.update_width(max(1, options.max_width - ECHO)))
