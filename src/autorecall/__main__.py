"""`python -m autorecall` is `autorecall`."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":  # nothing runs when tools import every module
    main()
