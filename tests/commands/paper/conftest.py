"""A short run whose learner was kept, for the studies that recall once more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autorecall import run
from autorecall.commands.paper.kept import Kept, kept
from autorecall.commands.paper.study import Place, Row
from autorecall.data import load
from autorecall.presets import PRESETS
from autorecall.runs.names import run_folder

FRACTION = 0.05


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of ARM on MNIST whose learner was kept."""
    out = tmp_path_factory.mktemp("results")
    config = replace(PRESETS["mnist/arm"].config, fraction=FRACTION, curve_points=0)
    run("mnist/arm", config, load("mnist"), run_folder(out, "mnist/arm", config), keep_learner=True)
    return out


@pytest.fixture
def end(results: Path) -> Kept:
    found = kept(Place(results), Row.of("mnist", "mnist/arm", 1, FRACTION, keep_learner=True))
    assert found is not None
    return found
