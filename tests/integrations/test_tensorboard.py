"""Event files, read back with TensorBoard's own reader; `make test-tensorboard` installs it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autorecall import PRESETS, ConfigError, InterruptedRunError, RunConfig, cli, load_dataset, run
from autorecall.integrations import tensorboard
from autorecall.integrations.tensorboard import TensorBoard
from autorecall.runs.loop import Observer

needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None, reason="needs tensorboard, which make test-tensorboard installs"
)
pytestmark = pytest.mark.filterwarnings("default")  # those of TensorBoard are not ours

SHORT = replace(PRESETS["mnist/arm"].config, fraction=0.03, test_images=100, curve_points=0, threads=1)
WORDS = ["mnist/arm", "--fraction", "0.03", "--test-images", "100", "--curve-points", "0", "--threads", "1"]
NAME = "arm+fraction=0.03+test_images=100"


class Events:
    """What the event files of a run hold: by tag, every step with its value."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        reader: Any = EventAccumulator(
            str(folder / "tensorboard"), {"scalars": 0, "images": 0, "tensors": 0}, purge_orphaned_data=False
        )
        reader.Reload()
        tags = reader.Tags()
        self.scalars = {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in tags["scalars"]}
        self.images = {tag: [(e.step, e.encoded_image_string) for e in reader.Images(tag)] for tag in tags["images"]}
        self.texts = {
            tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in reader.Tensors(tag)]
            for tag in tags["tensors"]
        }


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars that belong to history.csv and result.json."""
    found: dict[str, list[tuple[int, float]]] = {}
    ends = {}
    with (folder / "history.csv").open() as file:
        for row in csv.DictReader(file):
            step = int(row.pop("step"))
            ends[int(row["task"])] = step
            for name, value in row.items():
                tag = f"recalled_classes/{name[15:]}" if name.startswith("recalled_class_") else f"step/{name}"
                if value:
                    found.setdefault(tag, []).append((step, float(np.float32(value))))
    matrix = json.loads((folder / "result.json").read_text())["accuracy_matrix"]
    for number, row in enumerate(matrix, start=1):
        for task, value in enumerate(row, start=1):
            found.setdefault(f"accuracy/task_{task}", []).append((ends[number], float(np.float32(value))))
        mean = float(np.float32(np.mean(row[:number])))
        found.setdefault("accuracy/average_of_tasks_so_far", []).append((ends[number], mean))
    return found


def same(one: dict[str, list[tuple[int, float]]], other: dict[str, list[tuple[int, float]]]) -> bool:
    return one.keys() == other.keys() and all(
        np.allclose(one[tag], other[tag], rtol=1e-6, atol=0) if len(one[tag]) == len(other[tag]) else False
        for tag in one
    )


@needs_tensorboard
def test_a_run_leaves_its_history_matrix_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.dispatch(["run", *WORDS, "--tensorboard", "--out", str(tmp_path)]) == 0
    folder = tmp_path / "mnist" / NAME / "seed-0"
    assert f"tensorboard       --logdir {folder}/tensorboard\n" in capsys.readouterr().out
    events = Events(folder)
    assert same(events.scalars, expected(folder))
    assert len(events.scalars["step/loss"]) == 15
    steps = json.loads((folder / "result.json").read_text())["steps"]
    assert events.images == {"recalled/images": [(steps, (folder / "recalled.png").read_bytes())]}
    (tables,) = events.texts.values()
    assert [step for step, _ in tables] == [3, 6, 9, 12, 15]
    assert tables[-1][1].count("\n| after task") == 5

    # The same from what a finished run has left.
    before = events.scalars
    for file in (folder / "tensorboard").iterdir():
        file.unlink()
    assert cli.dispatch(["run", *WORDS, "--tensorboard", "--out", str(tmp_path)]) == 0
    again = Events(folder)
    assert (again.scalars, again.images, list(again.texts.values())) == (before, events.images, [tables])
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["config.json", "curves.png", "history.csv", "model.safetensors", "recalled.png", "result.json", "tensorboard"]
    )


@needs_tensorboard
def test_the_command_given_again_completes_events_and_never_loses_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may have been cut short by an interruption, and history.csv may be gone by now."""
    words = ["run", *WORDS, "--tensorboard", "--out", str(tmp_path)]
    assert cli.dispatch(words) == 0
    folder = tmp_path / "mnist" / NAME / "seed-0"
    (file,) = (folder / "tensorboard").iterdir()
    whole, before = Events(folder).scalars, file.read_bytes()
    for cut in (len(before), len(before) // 2, 10):
        file.write_bytes(before[:cut])
        assert cli.dispatch(words) == 0
        assert same(Events(folder).scalars, whole)
        (file,) = (folder / "tensorboard").iterdir()
    before = file.read_bytes()
    rows = (folder / "history.csv").read_text().splitlines(keepends=True)
    capsys.readouterr()
    for content, sentence in (
        ("".join(rows[:8]), "history.csv has 7 of 15 steps"),
        ("".join(rows[:1] + rows[8:]), "history.csv has 8 of 15 steps"),
        ("nothing", "history.csv has 0 of 15 steps"),
        ("step,task\nfirst,1\n", "history.csv is not the history of a run (invalid literal"),
        (None, "history.csv is not the history of a run (cannot read"),
    ):
        (folder / "history.csv").unlink()
        if content is not None:
            (folder / "history.csv").write_text(content)
        assert cli.dispatch(words) == 0
        said = capsys.readouterr().err
        assert said.startswith("autorecall: ")
        assert sentence in said
        assert said.endswith("; TensorBoard's event files stay as they are\n")
        assert [path.read_bytes() for path in (folder / "tensorboard").iterdir()] == [before]
        (folder / "history.csv").touch()


def interrupted(folder: Path, config: RunConfig, after: int, watched: bool = True) -> None:
    count = iter(range(1000))
    with pytest.raises(InterruptedRunError), TensorBoard(folder) as board:
        run(
            "mnist/arm",
            config,
            load_dataset("mnist"),
            folder,
            board if watched else None,
            stop=lambda: next(count) >= after,
        )


@needs_tensorboard
@pytest.mark.parametrize("watched", [True, False], ids=["from the start", "from the second part on"])
def test_a_resumed_run_has_every_step_once(tmp_path: Path, watched: bool) -> None:
    interrupted(tmp_path, SHORT, 7, watched)
    if watched:
        (file,) = (tmp_path / "tensorboard").iterdir()
        file.write_bytes(file.read_bytes()[:-10])  # what a crash may leave
    with TensorBoard(tmp_path) as board:
        run("mnist/arm", SHORT, load_dataset("mnist"), tmp_path, board)
    events = Events(tmp_path)
    assert same(events.scalars, expected(tmp_path))
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


@needs_tensorboard
def test_no_image_of_data_of_your_own_unless_it_may_be_drawn(tmp_path: Path) -> None:
    data = load_dataset("mnist")
    np.savez(tmp_path / "own.npz", x=data.train.inputs[::100], y=data.train.labels[::100])
    words = ["run", "mnist/arm", "--data", str(tmp_path / "own.npz"), "--curve-points", "0", "--tensorboard"]
    for pictures, images in (([], 0), (["--pictures"], 1)):
        out = tmp_path / f"out-{images}"
        assert cli.dispatch([*words, *pictures, "--out", str(out)]) == 0
        (folder,) = out.glob("npz/*/seed-0")
        assert len(Events(folder).images) == images


@needs_tensorboard
def test_a_full_disk_costs_the_event_files_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    monkeypatch.setattr(tensorboard, "append_to", full)
    observer = Observer()
    monkeypatch.setattr(observer, "warned", said.append)
    with TensorBoard(tmp_path, observer) as board:
        run("mnist/arm", SHORT, load_dataset("mnist"), tmp_path, board)
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert (tmp_path / "result.json").exists()


@needs_tensorboard
def test_a_new_run_removes_the_events_of_one_that_left_nothing_else(tmp_path: Path) -> None:
    interrupted(tmp_path, SHORT, 2)
    for file in (tmp_path / "checkpoints").iterdir():
        file.unlink()
    (tmp_path / "tensorboard" / "notes.txt").write_text("mine")
    run("mnist/arm", SHORT, load_dataset("mnist"), tmp_path)
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == ["notes.txt"]


@needs_tensorboard
def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out" / "mnist" / NAME / "seed-0"
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    (tmp_path / "elsewhere").mkdir()
    (folder / "tensorboard").symlink_to(tmp_path / "elsewhere")
    assert cli.dispatch(["run", *WORDS, "--tensorboard", "--out", str(tmp_path / "out")]) == 2
    assert "tensorboard is a symbolic link, which no run makes" in capsys.readouterr().err
    assert not list((tmp_path / "elsewhere").iterdir())


def test_without_tensorboard_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: None)
    assert cli.dispatch(["run", *WORDS, "--tensorboard", "--out", str(tmp_path)]) == 2
    assert "use pip install 'autorecall[tensorboard]'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="the package tensorboard is not installed"):
        TensorBoard(tmp_path)
    assert cli.dispatch(["sweep", "mnist/naive", "--tensorboard", "--out", str(tmp_path)]) == 2
    assert "--tensorboard is for a single run" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_all_that_an_observer_hears_is_passed_on() -> None:
    heard = {name for name in vars(Observer) if not name.startswith("_")}
    assert heard <= set(vars(TensorBoard))
