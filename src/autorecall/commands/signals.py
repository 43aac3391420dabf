"""Ctrl-C and SIGTERM, turned into a question that a run asks between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether to stop: call it to ask."""

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self) -> bool:
        return self.signal != 0

    @property
    def exit_code(self) -> int:
        """The exit code by which shells tell that a signal ended a program."""
        return 128 + self.signal

    def handle(self, number: int, _: FrameType | None) -> None:
        """The first signal is kept for the run to see; a second one leaves at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def watched() -> Iterator[Stop]:
    """Watch for both signals inside; only the main thread can, and elsewhere nobody is asked to stop."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    found = {number: signal.signal(number, stop.handle) for number in WATCHED}
    try:
        yield stop
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
