"""The examples run as they are."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_own_network_still_knows_its_first_digits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "own_network.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    shares = [re.fullmatch(r"digit (\d): +(\d+\.\d) % recognised", line) for line in lines]
    assert [int(found[1]) for found in shares if found] == [0, 1, 2, 3]
    assert len(lines) == 4
    assert shares[0] is not None
    assert float(shares[0][2]) > 50
    assert list(tmp_path.iterdir()) == []


def test_from_a_folder_to_a_model_that_learns_on(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "folder_to_model.py"), run_name="__main__")
    said = capsys.readouterr()
    assert said.err == ""
    assert len(re.findall(r"digit 3/1\.png: digit 3", said.out)) == 2
    assert "digit 5/0.png: digit 5" in said.out
    matrix = re.findall(r"after task  2 +(\d+\.\d) +(\d+\.\d)", said.out)
    assert all(float(share) > 85 for row in matrix for share in row)
    assert len(matrix) == 2
