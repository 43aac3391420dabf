"""Ctrl-C, SIGTERM and a closed terminal, turned into a question that a run asks between steps."""

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
        """The exit code that shells use for a program ended by a signal."""
        return 128 + self.signal

    def handle(self, number: int, _: FrameType | None) -> None:
        """The first signal is kept for the run to see; after that, only Ctrl-C leaves at once.

        A second SIGTERM is ignored, because senders often repeat it, and the run is being saved.
        """
        if not self.signal:
            self.signal = number
        elif number == signal.SIGINT:
            with suppress(OSError):
                os.write(2, AT_ONCE)  # print might be running right now
            raise KeyboardInterrupt


@contextmanager
def watched() -> Iterator[Stop]:
    """Watch for these signals inside, except any that are ignored, as under nohup.

    Only the main thread can do this; in others, nothing is watched.
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
    """Ignore further signals: the process is leaving, and its exit code is decided."""
    for number in WATCHED:
        signal.signal(number, signal.SIG_IGN)
