"""The C library's memory, which the program sets up for itself; as a library, autorecall leaves it alone."""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGEST = 2**25  # bytes; glibc accepts no more


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
