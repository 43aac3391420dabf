"""A short torture with a fixed seed; `make torture` does it for minutes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "torture.py"
ROW = "mnist/arm"  # `make torture` takes all there are

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def torture(tmp_path: Path, runs: int, *rows: str) -> subprocess.CompletedProcess[str]:
    words = ["--minutes", "1e6", "--runs", str(runs), "--seed", "3", "--rows", *rows]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, env=environment)


def test_runs_that_are_killed_and_damaged_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    done = torture(tmp_path, 1, ROW)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = r"1 runs, (\d+) kills, (\d+) resumes, (\d+) damages, \d+ refusals, \d+ begun afresh"
    numbers = counts + r", \d+ histories without all rows, 0 differences, 0 lost runs"
    found = re.search(numbers, done.stdout)
    assert found is not None, done.stdout
    assert min(map(int, found.groups())) > 0
    assert "left out" not in done.stdout
    assert not list(tmp_path.glob("autorecall-torture-*"))
