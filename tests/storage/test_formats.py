"""Files of earlier versions are read, and those of later ones refused.

tests/storage/format-1 was written by the last version without format numbers: a finished run, the same run
interrupted after step 7, and two saved learners. format-2 holds the interrupted run as the last version wrote it that
kept the history in its checkpoints.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from autorecall import (
    ARMConfig,
    AutorecallError,
    Dataset,
    ERConfig,
    LagConfig,
    Learner,
    Observer,
    from_arrays,
    load,
    run,
)
from autorecall.learners.er import ER
from autorecall.learners.lwf import LwF, LwFConfig
from autorecall.presets import PRESETS, changes
from autorecall.runs.folder import read_config
from autorecall.runs.names import run_folder
from autorecall.runs.result import read_result
from autorecall.storage.files import read_json, write_json
from autorecall.storage.formats import FORMAT, stamped, unstamped
from autorecall.storage.state_file import read_state, write_state

EARLIER = Path(__file__).parent / "format-1"
RESULTS = Path(__file__).parents[2] / "results"


class Quiet(Observer):
    """Other versions of Python or torch than those of the fixture are no matter here."""

    def warned(self, sentence: str) -> None:
        assert "was started with" in sentence


def dataset() -> Dataset:
    """The data of the fixture."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 15)
    images = rng.integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
    return from_arrays(train=(images, labels), test=(images, labels))


def network() -> nn.Module:
    """The network of the saved learners."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


def history(folder: Path) -> list[list[str]]:
    """The rows of a history."""
    return list(csv.reader((folder / "history.csv").read_text(encoding="utf-8").splitlines()))


def test_settings_keep_their_meaning_under_their_new_names() -> None:
    preset, config = read_config(EARLIER / "finished" / "config.json")
    learner = config.learner
    assert preset == "mnist/arm"
    assert isinstance(learner, ARMConfig)
    assert (learner.recalled_images, learner.ascent_steps) == (7, 3)
    assert (learner.divergence_form, learner.divergence) == ("jensen-shannon", 0.5)
    assert learner.lag == LagConfig("every")


def is_aside(folder: Path) -> bool:
    return ".old-" in folder.name


def test_every_committed_run_is_read_and_found() -> None:
    folders = sorted(path.parent for path in RESULTS.rglob("result.json"))
    assert len(folders) > 100
    for folder in folders:
        preset, config = read_config(folder / "config.json")
        assert read_result(folder / "result.json").preset == preset
        # The rows themselves are in folders of their names, and variations of them are not.
        is_row = folder.parent.name == preset.split("/")[1]
        assert is_row == (changes(config, PRESETS[preset].config) == {}), folder
        assert is_aside(folder) or run_folder(RESULTS, preset, config) == folder


def test_a_finished_run_is_finished_and_its_files_stay_as_they_are(tmp_path: Path) -> None:
    folder = shutil.copytree(EARLIER / "finished", tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    preset, config = read_config(folder / "config.json")
    assert run(preset, config, dataset(), folder) == read_result(EARLIER / "finished" / "result.json")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupted_run_goes_on(tmp_path: Path, number: int) -> None:
    folder = shutil.copytree(EARLIER.with_name(f"format-{number}") / "unfinished", tmp_path / "run")
    with (folder / "history.csv").open("a") as file:  # of steps that were not saved
        file.write("8,2,0.5\n9,")
    preset, config = read_config(folder / "config.json")
    result = run(preset, config, dataset(), folder, Quiet())
    expected = read_result(EARLIER / "finished" / "result.json")
    assert (result.steps, result.preset, result.data) == (expected.steps, expected.preset, expected.data)
    found, rows = history(folder), history(EARLIER / "finished")
    assert found[0] == rows[0]
    for row, usual in zip(found[1:], rows[1:], strict=True):  # another processor may round otherwise
        numbers, expected_numbers = ([float(cell or 0) for cell in cells] for cells in (row, usual))
        assert numbers == pytest.approx(expected_numbers, rel=1e-3, abs=1e-6)
    assert read_json(folder / "config.json")["format"] == read_json(folder / "result.json")["format"] == FORMAT


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("lwf", lambda: LwF(network(), LwFConfig(lag=LagConfig("every", every=1)))),
        ("er", lambda: ER(network(), ERConfig(kept_images=3, steps_per_batch=2))),
    ],
)
def test_a_saved_learner_is_taken_back(name: str, make: type[Learner]) -> None:
    learner = make()  # type: ignore[call-arg]
    load(learner, EARLIER / f"{name}.safetensors")
    assert learner.classes == 4
    assert bool(learner.predict(torch.rand(2, 1, 4, 4)).isfinite().all())


@pytest.mark.parametrize("number", [FORMAT + 1, 10**30, 0, -1, "2", 2.0, True, None])
def test_a_number_that_is_not_known_is_refused_in_every_file(number: object, tmp_path: Path) -> None:
    folder = shutil.copytree(EARLIER / "finished", tmp_path / "run")
    for name, read in (("config.json", read_config), ("result.json", read_result)):
        values = json.loads((folder / name).read_text(encoding="utf-8"))
        write_json(folder / name, {**values, "format": number})
        with pytest.raises(AutorecallError, match="its format is"):
            read(folder / name)
    state = read_state(EARLIER / "er.safetensors")
    write_state(tmp_path / "learner", {**state, "format": number})
    with pytest.raises(AutorecallError, match="learner: its format is"):
        load(ER(network(), ERConfig(3)), tmp_path / "learner")


def test_a_checkpoint_of_a_later_version_is_refused_and_kept(tmp_path: Path) -> None:
    folder = shutil.copytree(EARLIER / "unfinished", tmp_path / "run")
    (path,) = (folder / "checkpoints").iterdir()
    write_state(path, {**read_state(path), "format": FORMAT + 1})
    preset, config = read_config(folder / "config.json")
    with pytest.raises(AutorecallError, match="does not fit this version"):
        run(preset, config, dataset(), folder)
    assert path.exists()


def test_what_is_written_carries_the_present_number() -> None:
    assert unstamped(stamped({"a": 1})) == (FORMAT, {"a": 1})
    assert unstamped({"a": 1}) == (1, {"a": 1})
