"""Draw examples for the fuzz tests for as long as it is told to, other ones every time, and count them.

python scripts/fuzzing.py --minutes 30
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests" / "fuzz"
# How pytest heads the statistics of a test, and what hypothesis reports there.
TEST = re.compile(r"^tests/fuzz/(\S+?)(?:\[.*\])?:$")
DRAWN = re.compile(r"(\d+) passing, (\d+) failing")


def one_round(chosen: list[str], counts: Counter[str]) -> bool:
    """Every test once, with a seed of its own; whether all went well."""
    words = ["-p", "no:xdist", "-q", "--hypothesis-show-statistics", f"--hypothesis-seed={random.randrange(2**31)}"]
    command = [sys.executable, "-m", "pytest", *words, *(chosen or [str(TESTS)])]
    ended = subprocess.run(
        command, env=os.environ | {"AUTORECALL_FUZZ": "1"}, cwd=TESTS.parents[1], capture_output=True, check=False
    )
    said, name = ended.stdout.decode(errors="replace"), "?"
    for line in said.splitlines():
        if found := TEST.match(line):
            name = found[1]
        if found := DRAWN.search(line):
            counts[name] += int(found[1]) + int(found[2])
    if ended.returncode:
        print(said, ended.stderr.decode(errors="replace"), " ".join(command), sep="\n")
    return ended.returncode == 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run the fuzz tests with ever new examples.")
    parser.add_argument("--minutes", type=float, default=5.0, help="begin no round after so many")
    parser.add_argument("tests", nargs="*", help="those of tests/fuzz to run; if none are named, all")
    chosen = parser.parse_args()
    deadline = time.monotonic() + 60 * chosen.minutes
    counts: Counter[str] = Counter()
    well = True
    while well and time.monotonic() < deadline:
        well = one_round(chosen.tests, counts)
        print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())), flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
