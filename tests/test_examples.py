"""The examples run as they are."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib import pyplot as plt

from autorecall.integrations.torchvision import make_importable

matplotlib.use("Agg")
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


def shares(said: str) -> list[float]:
    return [float(found) for found in re.findall(r"digit \d: +(\d+\.\d) % recognised", said)]


def test_batches_of_a_data_loader(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / "data_loader.py"), run_name="__main__")
    said = capsys.readouterr()
    assert said.err == ""
    assert len(shares(said.out)) == 4
    assert shares(said.out)[0] > 50
    assert "Memory(images=0" in said.out


@pytest.mark.filterwarnings("default")  # those of Lightning are not ours
def test_lightning_with_manual_optimisation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_importable()  # before Lightning imports torchvision, if it is there
    pytest.importorskip("lightning", reason="needs lightning, which make test-examples installs")
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / "lightning_module.py"), run_name="__main__")
    accuracy = re.search(r"accuracy\W+(0\.\d+)", capsys.readouterr().out)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.5  # plain SGD knows the second pair alone
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("default")
def test_a_network_of_timm(capsys: pytest.CaptureFixture[str]) -> None:
    make_importable()
    pytest.importorskip("timm", reason="needs timm, which make test-examples installs")
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / "timm_network.py"), run_name="__main__")
    found = shares(capsys.readouterr().out)
    assert len(found) == 4
    assert min(sum(found[:2]), sum(found[2:])) > 50


def test_the_notebook_runs_from_top_to_bottom(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a part of its images, without Jupyter."""
    notebook = json.loads((EXAMPLES / "recall_in_ten_minutes.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    source = "\n".join(cells)
    assert source.count("rows[order].split(10)") == 1
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    names: dict[str, object] = {}
    with torch.random.fork_rng():
        for number, cell in enumerate(cells):
            part = cell.replace("rows[order].split(10)", "rows[order][:300].split(10)")
            exec(compile(part, f"cell {number}", "exec"), names)
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.count("after task") == 6
    ended = re.search(r"in the end: (\d+\.\d) % with plain SGD, (\d+\.\d) % with ARM", said.out)
    assert ended is not None
    assert float(ended[2]) > 60 > float(ended[1])
    plt.close("all")
