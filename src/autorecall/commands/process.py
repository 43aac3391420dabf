"""Memory and threads, which the program sets up for its own process; as a library, autorecall leaves them alone."""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGEST = 2**25  # bytes; glibc accepts no more
SPINS = 10_000  # looks at whether the others are done, before a thread goes to sleep; GNU's OpenMP takes 300,000
WAITS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def keep_freed_memory() -> bool:
    """Use freed memory again instead of giving it back to the system, which would clear it for the next use.

    A pass over images frees megabytes and wants them again a moment later. Whether it was done: other C libraries have
    no such setting, and what the user has set is left alone.
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not on Windows, and only in glibc
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, 2**31 - 1))


def wait_briefly() -> bool:
    """Have threads of torch go to sleep soon, if they wait for each other; only before torch is imported.

    By default they keep their core busy for milliseconds, in case the others are done at once. On a machine that does
    something else as well, the others often have no core to run on, and all that time is lost (`scripts/waiting.py`).
    Whether it was done: what the user has set is left alone.
    """
    if any(name in os.environ for name in WAITS):
        return False
    os.environ["GOMP_SPINCOUNT"] = str(SPINS)
    return True
