"""Ctrl-C, SIGTERM and a terminal that goes away, turned into a question that a run asks between two steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

WATCHED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
AT_ONCE = b"autorecall: leaving at once; what was learned since the last checkpoint will be learned again\n"


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
        """The first signal is kept for the run to see; then only a person's Ctrl-C leaves at once.

        A second SIGTERM is ignored, because those who send it often send several, and the run is being saved.
        """
        if not self.signal:
            self.signal = number
        elif number == signal.SIGINT:
            with suppress(OSError):
                os.write(2, AT_ONCE)  # print might be at work at this very moment
            raise KeyboardInterrupt


@contextmanager
def watched() -> Iterator[Stop]:
    """Watch for these signals inside, but for those that are ignored, such as by nohup.

    Only the main thread can, and elsewhere nobody is asked to stop.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    heard = [number for number in WATCHED if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    found = {number: signal.signal(number, stop.handle) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Hear no more signals: the process is leaving, with an exit code that is decided."""
    for number in WATCHED:
        signal.signal(number, signal.SIG_IGN)
