"""Runs as they go: who is told, where they stop, and that one taken up again ends as one that never stopped."""

from __future__ import annotations

import dataclasses
import errno
import importlib.metadata
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autorecall import ARMConfig, LagConfig, NaiveConfig, Recalled
from autorecall.data import Dataset, Split, load
from autorecall.errors import ConfigError, DivergedError, InterruptedRunError, StoppedError
from autorecall.networks import MLPConfig, ResNet18Config
from autorecall.presets import PRESETS
from autorecall.recall.kernels import can_call, winograd_pays
from autorecall.runs import loop
from autorecall.runs.loop import Observer, evaluate, few_of_each_class
from autorecall.runs.result import Point, Result
from autorecall.runs.run import build_learner, machine_of, run
from autorecall.storage.formats import FORMAT
from autorecall.storage.state_file import read_state, write_state
from autorecall.stream import Stream, StreamConfig, as_batch
from autorecall.torch_state import limited_threads

from .worlds import (
    FINISHED,
    LEARNERS,
    STEPS,
    Killed,
    Stop,
    Trouble,
    Watch,
    config,
    contents,
    full_disk,
    history,
    interrupt,
    kill,
    names,
    saved,
)

STOPPED = {"config.json", "history.csv", "stopped.json"}


# What an observer is told


class Told(Watch):
    """Notes every step and every evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, int, int]] = []
        self.evaluations: list[tuple[int, list[float]]] = []

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        assert math.isfinite(numbers["loss"])
        self.steps.append((step, steps, task))

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        self.evaluations.append((task, accuracies))


@pytest.mark.parametrize("method", ["naive", "lwf", "arm"])
def test_an_observer_is_told_of_every_step_every_evaluation_and_the_last_recall(data: Dataset, method: str) -> None:
    told, chosen = Told(), config(method)
    result = run("own/bars", chosen, data, None, told)
    assert told.steps == [(step, STEPS, 1 if step <= 4 else 2) for step in range(1, STEPS + 1)]
    assert told.evaluations == list(enumerate(result.accuracy_matrix, start=1))
    assert len(told.pictures) == (method == "arm")
    *_, (last, _) = Stream(data, chosen.stream, seed=chosen.seed)[-1]
    for x, recalled, targets in told.pictures:
        assert torch.equal(x, last)
        assert recalled.total == 12
        assert recalled.images.shape == (len(recalled.counts), *x.shape[1:])
        assert targets.shape == (len(recalled.counts), 4)
        assert targets.sum(1).tolist() == pytest.approx([1.0] * len(targets))


class Failing(Watch):
    """Fails where it is told to."""

    def __init__(self, place: str, error: BaseException) -> None:
        super().__init__()
        self.place, self.error = place, error

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        if self.place == "evaluated":
            raise self.error

    def recalled(self, x: Tensor, recalled: Recalled, targets: Tensor) -> None:
        if self.place == "recalled":
            raise self.error


def test_a_task_is_saved_before_anyone_is_told(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError):
        run("own/bars", config(), data, tmp_path, Failing("evaluated", BrokenPipeError()))
    assert saved(tmp_path) == [4]


def test_a_picture_that_fails_is_a_warning(data: Dataset, tmp_path: Path) -> None:
    watch = Failing("recalled", OSError(errno.ENOSPC, "No space left on device"))
    run("own/bars", config("arm"), data, tmp_path, watch)
    assert watch.warnings == ["the recalled images could not be shown (OSError): [Errno 28] No space left on device"]
    assert names(tmp_path) == FINISHED


def test_a_picture_that_is_interrupted_is_drawn_the_next_time(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run("own/bars", config("arm"), data, tmp_path, Failing("recalled", KeyboardInterrupt()))
    assert not (tmp_path / "result.json").exists()
    watch = Watch()
    run("own/bars", config("arm"), data, tmp_path, watch)
    assert (watch.resumptions, len(watch.pictures)) == ([4], 1)


def test_no_picture_is_drawn_into_a_folder_that_is_anothers(data: Dataset, tmp_path: Path) -> None:
    folder, watch = tmp_path / "run", Watch()

    class Replaced(Watch):
        def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
            if step == STEPS:
                shutil.rmtree(folder)
                run("own/bars", config("arm"), data, folder, watch)

    outer = Replaced()
    with pytest.raises(StoppedError, match="removed or moved"):
        run("own/bars", config("arm"), data, folder, outer)
    assert (len(outer.pictures), len(watch.pictures)) == (0, 1)


# Runs that diverge


def test_a_run_that_diverges_says_where_and_keeps_what_there_is(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StoppedError) as caught:
        run("own/bars", config(NaiveConfig(1e30), seed=7), data, tmp_path)
    assert str(caught.value).startswith("stopped at step 2 (task 1): the loss on the real batch became ")
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == STOPPED
    assert [row["step"] for row in history(tmp_path)] == ["1"]
    stopped = json.loads((tmp_path / "stopped.json").read_text())
    assert stopped.pop("value") in ("nan", "inf")
    where = {"step": 2, "task": 1, "term": "the loss on the real batch"}
    assert stopped == {"format": FORMAT, "preset": "own/bars", "seed": 7} | where


def test_recall_that_diverges_is_stopped_in_the_second_task_by_the_name_of_a_term(
    data: Dataset, tmp_path: Path
) -> None:
    learner = ARMConfig(recalled_images=4, ascent_steps=3, recall_rate=1e30, lag=LagConfig("every"))
    with pytest.raises(StoppedError, match=r"^stopped at step 5 \(task 2\): the "):
        run("own/bars", config(learner), data, tmp_path)
    stopped = json.loads((tmp_path / "stopped.json").read_text())
    assert (stopped["step"], stopped["task"]) == (5, 2)
    assert "recall" in stopped["term"]
    assert len(history(tmp_path)) == 4
    assert names(tmp_path) == STOPPED  # and no checkpoint


def test_outputs_that_are_not_finite_are_noticed_when_tested(data: Dataset, tmp_path: Path) -> None:
    one_batch = StreamConfig(2, batch_size=1000)
    with pytest.raises(StoppedError, match=r"\(task 1\): an output of the network became nan"):
        run("own/bars", config(NaiveConfig(1e38), stream=one_batch), data, tmp_path)
    assert names(tmp_path) == STOPPED


# Bit for bit


@pytest.mark.parametrize("method", LEARNERS)
def test_a_run_stopped_after_any_step_ends_as_one_that_never_was(data: Dataset, tmp_path: Path, method: str) -> None:
    whole = Watch()
    run("own/bars", config(method), data, tmp_path / "whole", whole)
    for step in range(1, STEPS):
        folder, watch = tmp_path / f"{step}", Watch()
        said = interrupt(config(method), data, folder, step)
        assert said == f"interrupted at step {step} of 8; run the same command again to resume from step {step}"
        assert saved(folder)[-1] == step
        torch.rand(step)  # what others draw does not matter
        run("own/bars", config(method), data, folder, watch)
        assert (watch.resumptions, watch.first, watch.warnings) == ([step], step + 1, [])
        assert contents(folder) == contents(tmp_path / "whole")
        for mine, theirs in zip(watch.pictures, whole.pictures, strict=True):
            assert torch.equal(mine[0], theirs[0])
            assert torch.equal(mine[1].images, theirs[1].images)
            assert torch.equal(mine[2], theirs[2])


@pytest.mark.parametrize("often", [False, True])
def test_a_run_killed_at_any_moment_goes_on_from_its_last_checkpoint(
    data: Dataset, tmp_path: Path, whole: dict[str, object], often: bool
) -> None:
    chosen = config("arm", checkpoint_seconds=0.0) if often else config("arm")
    for step in range(1, STEPS + 1):
        folder, watch = tmp_path / f"{step}", Watch()
        kill(chosen, data, folder, step)
        # One checkpoint per step, the step that was killed has none yet; or one at the end of the first task alone.
        expected = [last for last in ((step - 1,) if often else (4,)) if 0 < last < step]
        assert saved(folder)[-1:] == expected
        run("own/bars", chosen, data, folder, watch)
        assert watch.resumptions == expected
        assert contents(folder) == whole


def test_a_run_killed_over_and_over_ends_all_the_same(data: Dataset, tmp_path: Path, whole: dict[str, object]) -> None:
    chosen = config("arm", checkpoint_seconds=0.0)
    for step in range(1, STEPS + 1):
        kill(chosen, data, tmp_path, step)
    run("own/bars", chosen, data, tmp_path)
    assert contents(tmp_path) == whole


def test_a_run_stopped_while_it_is_tested_is_tested_again(data: Dataset, tmp_path: Path) -> None:
    chosen = config("arm", curve_points=0)  # tested at the end of a task alone
    run("own/bars", chosen, data, tmp_path / "whole")
    for asked, step in ((5, 4), (9, 8)):
        folder = tmp_path / f"{asked}"  # asked after each step but the last of all, and after the batch that is tested
        answers, watch, again = iter([False] * (asked - 1) + [True]), Watch(), Watch()
        with pytest.raises(InterruptedRunError, match=rf"^interrupted at step {step} of 8; .* from step {step}$"):
            run("own/bars", chosen, data, folder, watch, stop=answers.__next__)
        run("own/bars", chosen, data, folder, again)
        assert contents(folder) == contents(tmp_path / "whole")
        assert again.first == (0 if step == STEPS else step + 1)  # no step is learned twice
        assert (len(watch.pictures), len(again.pictures)) == ((1, 0) if step == STEPS else (0, 1))


@pytest.mark.parametrize("task", [1, 2])
def test_a_run_killed_while_it_is_tested_goes_on_with_the_test(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: int
) -> None:
    """However long ago the last checkpoint was due: the steps of the task are saved before they are tested."""
    chosen, tests = config("arm", curve_points=0), iter(range(1, 10))
    run("own/bars", chosen, data, tmp_path / "whole")

    def killed(*arguments: object) -> list[float]:
        if next(tests) == task:
            raise Killed
        return evaluate(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("autorecall.runs.loop.evaluate", killed)
        with pytest.raises(Killed):
            run("own/bars", chosen, data, tmp_path / "run")
    watch = Watch()
    run("own/bars", chosen, data, tmp_path / "run", watch)
    assert watch.resumptions == [4 * task]
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_run_without_a_folder_can_be_stopped_too(data: Dataset) -> None:
    stop = Stop(3)
    with pytest.raises(InterruptedRunError, match=r"^interrupted at step 3 of 8; run the same command again to start"):
        run("own/bars", config(), data, None, stop, stop=stop)


def test_dropout_goes_on_with_the_same_draws(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MLPConfig, "build", with_dropout)
    run("own/bars", config(), data, tmp_path / "whole")
    for step in (1, 3, 4, 6):
        interrupt(config(), data, tmp_path / f"{step}", step)
        run("own/bars", config(), data, tmp_path / f"{step}")
        assert contents(tmp_path / f"{step}") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_convolutional_network_goes_on_in_its_own_memory_layout(data: Dataset, tmp_path: Path, threads: int) -> None:
    chosen = config("arm", network=ResNet18Config(4), threads=threads)
    run("own/bars", chosen, data, tmp_path / "whole")
    interrupt(chosen, data, tmp_path / "run", 6)
    run("own/bars", chosen, data, tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """A few of the embedded digits: five training and test images of each of the first four."""
    whole = load("mnist")

    def first(split: Split) -> Split:
        kept = np.concatenate([np.flatnonzero(split.labels == label)[:5] for label in range(4)])
        return Split(split.inputs[kept], split.labels[kept])

    return Dataset("mnist", first(whole.train), first(whole.val), first(whole.test), whole.classes[:4])


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("mnist/")])
def test_every_row_on_the_digits_goes_on_bit_for_bit(digits: Dataset, tmp_path: Path, name: str) -> None:
    """Also those to come: a method whose state is not all of it fails here."""
    usual = PRESETS[name].config
    few = dataclasses.replace(usual, stream=dataclasses.replace(usual.stream, batch_size=5), threads=1)
    run(name, few, digits, tmp_path / "whole")
    interrupt(few, digits, tmp_path / "run", 3, name)
    run(name, few, digits, tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda _: None,
    "cut": lambda content: content[:100],
    "grown": lambda content: content * 2,
    "changed": lambda content: content[:200] + b"?" + content[201:],
}


def damage(path: Path, how: str) -> None:
    content = DAMAGES[how](path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("place", [".", "checkpoints"])
def test_history_and_config_are_restored(
    data: Dataset, tmp_path: Path, whole: dict[str, object], place: str, how: str
) -> None:
    interrupt(config("arm"), data, tmp_path, 7)
    damage(tmp_path / place / "history.csv", how)
    (tmp_path / "config.json").unlink()
    watch = Watch()
    run("own/bars", config("arm"), data, tmp_path, watch)
    assert contents(tmp_path) == whole
    restored = [f"{tmp_path / 'history.csv'} was changed or removed, and was restored from a copy"]
    assert watch.warnings == (restored if place == "." and how != "grown" else [])


@pytest.mark.parametrize("how", ["gone", "cut", "changed"])
def test_without_its_earlier_rows_a_run_goes_on_all_the_same(
    data: Dataset, tmp_path: Path, whole: dict[str, object], how: str
) -> None:
    interrupt(config("arm"), data, tmp_path, 3)
    for path in (tmp_path / "history.csv", tmp_path / "checkpoints" / "history.csv"):
        damage(path, how)
    found = contents(tmp_path).get("history.csv")
    watch = Watch(killed_after=6)
    with pytest.raises(Killed):
        run("own/bars", config("arm"), data, tmp_path, watch)
    run("own/bars", config("arm"), data, tmp_path)
    aside = "" if how == "gone" else "; it is history.csv.damaged-1 now"
    begin = "was changed or removed, so its rows begin where the run resumes"
    assert watch.warnings == [f"{tmp_path / 'history.csv'} {begin}{aside}"]
    left = contents(tmp_path)
    assert left.pop("history.csv.damaged-1", None) == (None if how == "gone" else found)
    lines = str(whole["history.csv"], "utf-8").splitlines(keepends=True)  # type: ignore[call-overload]
    assert left == whole | {"history.csv": "".join(lines[:1] + lines[4:]).encode()}


def test_rows_that_are_lost_while_a_task_is_tested_do_not_end_the_run(
    data: Dataset, tmp_path: Path, whole: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next checkpoint then has a history without rows."""

    class Fallen(Observer):
        def evaluated(self, task: int, accuracies: list[float]) -> None:
            raise Killed

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(loop, "evaluate", killed)
        with pytest.raises(Killed):
            run("own/bars", config("arm", curve_points=0), data, tmp_path)
    for path in (tmp_path / "history.csv", tmp_path / "checkpoints" / "history.csv"):
        path.unlink()
    with pytest.warns(UserWarning, match="so its rows begin where the run resumes"), pytest.raises(Killed):
        run("own/bars", config("arm", curve_points=0), data, tmp_path, Fallen())
    found = run("own/bars", config("arm", curve_points=0), data, tmp_path)
    assert found.accuracy_matrix == whole["result.json"]["accuracy_matrix"]  # type: ignore[index]
    assert contents(tmp_path)["model.safetensors"] == whole["model.safetensors"]


def test_a_history_that_something_else_changed_is_said_at_the_end(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "history.csv"

    class Meddling(Watch):
        def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
            if step == 3:
                path.write_text("")

    watch = Meddling()
    run("own/bars", config(), data, tmp_path, watch)
    changed = "was changed by something else during the run, so not all of its rows are the run's"
    assert watch.warnings == [f"{path} {changed}"]


# The curve of accuracy


@pytest.mark.parametrize(
    ("points", "steps"),
    [
        (0, []),
        (1, [4, 8]),
        (2, [0, 4, 8]),
        (4, [0, 2, 4, 6, 8]),
        (6, [0, 1, 2, 4, 5, 6, 8]),
        (8, list(range(9))),
        (50, list(range(9))),
        (10_000, list(range(9))),
    ],
)
def test_a_curve_has_points_at_even_distances_and_at_the_ends_of_tasks(
    data: Dataset, points: int, steps: list[int]
) -> None:
    result = run("own/bars", config(curve_points=points), data)
    assert [point.step for point in result.curve] == steps
    ends = {point.step: point.accuracies for point in result.curve}
    assert not points or [ends[4], ends[8]] == result.accuracy_matrix


@pytest.mark.parametrize("method", LEARNERS)
def test_a_curve_is_that_of_a_learner_trained_by_hand(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Within tasks on the first test images of each class, at the end of a task on all of them."""
    monkeypatch.setattr("autorecall.runs.loop.CURVE_IMAGES", 12)
    chosen = config(method, seed=3)
    stream = Stream(data, chosen.stream, seed=3)
    torch.manual_seed(3)
    learner, found = build_learner(chosen, data, stream), list[Point]()

    def test(images: int) -> Point:
        shares = []
        for task in stream:
            right = []
            for label in task.classes:
                for image in data.test.inputs[data.test.labels == label][:images]:
                    x = torch.from_numpy(image)[None].float() / 255
                    right.append(int(learner.predict(x).argmax()) == label)
            shares.append(100 * sum(right) / len(right))
        return Point(steps, shares)

    steps = 0
    for task in stream:
        if learner.waits_for_boundaries:
            learner.boundary()
        for x, y in task:
            if not found or found[-1].step < steps:
                found.append(test(3))
            learner.observe(x, y)
            steps += 1
        found.append(test(8))
    curve = run("own/bars", chosen, data).curve
    assert [point.step for point in curve] == [point.step for point in found] == list(range(9))
    for mine, by_hand in zip(curve, found, strict=True):
        assert mine.accuracies == pytest.approx(by_hand.accuracies)


@pytest.mark.parametrize("method", LEARNERS)
def test_a_curve_changes_nothing_else(data: Dataset, tmp_path: Path, method: str) -> None:
    found = []
    for points in (0, 3, 50):
        run("own/bars", config(method, curve_points=points), data, tmp_path / f"{points}")
        values = contents(tmp_path / f"{points}")
        values.pop("config.json")
        found.append(values | {"result.json": {**values["result.json"], "curve": []}})  # type: ignore[dict-item]
    assert found[0] == found[1] == found[2]


def with_dropout(self: MLPConfig, shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, classes))


def test_a_curve_draws_nothing_that_dropout_would_have_drawn(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MLPConfig, "build", with_dropout)
    for points in (0, 50):
        run("own/bars", config(curve_points=points), data, tmp_path / f"{points}")
    assert history(tmp_path / "0") == history(tmp_path / "50")


@pytest.mark.parametrize("method", ["arm from noise", "lwf, told of boundaries"])
def test_a_run_stopped_at_any_question_ends_with_the_same_curve(data: Dataset, tmp_path: Path, method: str) -> None:
    """After each step but the last of all, and within each test."""
    result = run("own/bars", config(method), data, tmp_path / "whole")
    assert len(result.curve) == STEPS + 1
    questions = STEPS - 1 + STEPS + 1
    for asked in range(1, questions + 2):
        folder, answers = tmp_path / f"{asked}", iter([False] * (asked - 1) + [True] * 100)
        if asked <= questions:
            with pytest.raises(InterruptedRunError):
                run("own/bars", config(method), data, folder, stop=answers.__next__)
        run("own/bars", config(method), data, folder)
        assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize("often", [False, True])
def test_a_run_killed_in_any_test_ends_with_the_same_curve(
    data: Dataset, tmp_path: Path, whole: dict[str, object], often: bool
) -> None:
    chosen = config("arm", checkpoint_seconds=0.0) if often else config("arm")
    for last in range(1, STEPS + 2):
        folder, tests = tmp_path / f"{last}", iter(range(1, 100))

        def killed(*arguments: object, last: int = last, tests: Iterator[int] = tests) -> list[float]:
            if next(tests) == last:
                raise Killed
            return evaluate(*arguments)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("autorecall.runs.loop.evaluate", killed)
            with pytest.raises(Killed):
                run("own/bars", chosen, data, folder)
        run("own/bars", chosen, data, folder)
        assert contents(folder) == whole


def test_a_run_may_go_on_with_another_number_of_points(data: Dataset, tmp_path: Path, whole: dict[str, object]) -> None:
    result = run("own/bars", config("arm"), data)
    for before, after, expected in ((0, 50, result.curve[5:]), (50, 0, result.curve[:5])):
        folder = tmp_path / f"{before}"
        interrupt(config("arm", curve_points=before), data, folder, 5)
        later = run("own/bars", config("arm", curve_points=after), data, folder)
        assert later.curve == expected
        assert later.accuracy_matrix == result.accuracy_matrix
        assert contents(folder)["history.csv"] == whole["history.csv"]
        assert run("own/bars", config("arm", curve_points=7), data, folder) == later  # finished is finished


def test_a_point_where_the_network_says_nothing_finite_is_left_out(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may recover; the test at the end of the task decides."""
    tests = iter(range(100))

    def failing(*arguments: object) -> list[float]:
        if next(tests) in (1, 5):
            raise DivergedError("an output of the network", math.nan)
        return evaluate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("autorecall.runs.loop.evaluate", failing)
    result = run("own/bars", config(), data, tmp_path)
    assert [point.step for point in result.curve] == [0, 2, 3, 4, 6, 7, 8]
    assert names(tmp_path) == FINISHED


@pytest.mark.parametrize("count", [1, 4, 7, 12, 1000])
def test_few_images_are_the_first_of_each_class_in_their_order(count: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 5], [2, 9, 20, 1]))
    split = Split(np.arange(32, dtype=np.float32)[:, None], labels)
    few = few_of_each_class(split, count)
    expected, seen = list[int](), dict.fromkeys([0, 1, 2, 5], 0)
    for place, label in enumerate(labels):
        seen[label] += 1
        if seen[label] <= -(-count // 4):
            expected.append(place)
    assert few.inputs[:, 0].tolist() == expected
    assert few.labels.tolist() == labels[expected].tolist()


# The learner at the end


@pytest.mark.parametrize("method", LEARNERS)
def test_the_learner_that_is_kept_is_that_of_an_undisturbed_run(data: Dataset, tmp_path: Path, method: str) -> None:
    run("own/bars", config(method), data, tmp_path / "whole", keep_learner=True)
    assert names(tmp_path / "whole") == FINISHED | {"learner.safetensors"}
    for step in (2, 5):
        interrupt(config(method), data, tmp_path / f"{step}", step)
        run("own/bars", config(method), data, tmp_path / f"{step}", keep_learner=True)
        assert contents(tmp_path / f"{step}") == contents(tmp_path / "whole")


def test_the_learner_of_a_run_that_was_killed_before_its_result_is_not_taken_for_that_of_another(
    data: Dataset, tmp_path: Path
) -> None:
    run("own/bars", config(), data, tmp_path, keep_learner=True)
    (tmp_path / "result.json").unlink()
    run("own/bars", config(), data, tmp_path)
    assert names(tmp_path) == FINISHED


def test_a_learner_that_cannot_be_kept_leaves_no_result(data: Dataset, tmp_path: Path) -> None:
    class InTheWay(Observer):
        def evaluated(self, task: int, accuracies: list[float]) -> None:
            if task == 2:
                (tmp_path / "learner.safetensors").mkdir()

    with pytest.raises(StoppedError, match=r"^cannot write .*learner\.safetensors: .*to resume from step 8$"):
        run("own/bars", config(), data, tmp_path, InTheWay(), keep_learner=True)
    assert not (tmp_path / "result.json").exists()
    (tmp_path / "learner.safetensors").rmdir()
    run("own/bars", config(), data, tmp_path, keep_learner=True)
    assert names(tmp_path) == FINISHED | {"learner.safetensors"}


def test_a_run_that_diverges_keeps_no_learner(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run("own/bars", config(NaiveConfig(1e30)), data, tmp_path, keep_learner=True)
    assert names(tmp_path) == STOPPED


# How long it took, and with which versions


def test_seconds_are_those_of_all_parts(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    for points, tests in ((0, 2), (4, 5)):  # at the end of each task; and at the start and in the middle of each
        folder, chosen = tmp_path / f"{points}", config(curve_points=points)
        interrupt(chosen, data, folder, 5)
        seconds = run("own/bars", chosen, data, folder).seconds
        assert (seconds.train, seconds.evaluate) == (STEPS, tests)  # one tick each


def test_another_version_is_said_and_noted(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version("numpy")
    began = f"{tmp_path} was started with torch"
    differ = "its numbers may differ in the last digits from those of one kind"
    for step, now, said in [
        (2, "1.0", []),
        (4, "1.0", []),
        (6, "1.1", [f"{began} 1.0 and resumes with 1.1; {differ}"]),
        (0, "1.2", [f"{began} 1.0, then 1.1 and resumes with 1.2; {differ}"]),
    ]:
        monkeypatch.setattr("autorecall.runs.run._installed", {"torch": now, "numpy": real}.__getitem__)
        watch = Watch(killed_after=step)
        with suppress(Killed):
            run("own/bars", config(checkpoint_seconds=0.0), data, tmp_path, watch)
        assert watch.warnings == said
    versions = json.loads((tmp_path / "result.json").read_text())["versions"]
    assert (versions["torch"], versions["numpy"]) == ("1.0, then 1.1, then 1.2", real)


def test_another_kind_of_processor_and_kernels_are_said_and_noted(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    interrupt(config("arm"), data, tmp_path, 5)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    kernels = kernels_here()
    request.getfixturevalue("without_kernels")
    watch = Watch()
    machine = run("own/bars", config("arm"), data, tmp_path, watch).machine
    assert machine["instructions"] == "AVX512, then AVX2"
    assert machine["kernels"] == ("compiled, then torch" if kernels == "compiled" else "torch")
    assert [sentence.split(" was started with ")[1].split(";")[0] for sentence in watch.warnings] == [
        "instructions AVX512 and resumes with AVX2",
        *(["kernels compiled and resumes with torch"] if kernels == "compiled" else []),
    ]


def kernels_here() -> str:
    return "compiled" if can_call(torch.empty(0)) else "torch"


# When a checkpoint is written


def test_a_checkpoint_is_due_after_so_many_seconds(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that moves ten seconds per step: with 25, checkpoints after steps 3, 4 (a task's end) and 7."""
    clock, written = [0.0], list[int]()

    class Ticking(Observer):
        def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
            written.extend(saved(tmp_path)[-1:])
            clock[0] += 10

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    run("own/bars", config(checkpoint_seconds=25.0), data, tmp_path, Ticking())
    assert sorted(set(written)) == [3, 4, 7]


@pytest.mark.parametrize("fails", [False, True])
def test_an_observer_has_the_result_and_the_whole_history_before_the_run_ends(
    data: Dataset, tmp_path: Path, fails: bool
) -> None:
    """And if it fails, as a picture on a full disk, that costs nothing but the picture."""
    found: list[Result] = []

    class Drawing(Observer):
        def finished(self, result: Result) -> None:
            found.append(result)
            assert not (tmp_path / "result.json").exists()
            assert len((tmp_path / "history.csv").read_text().splitlines()) == 1 + STEPS
            if fails:
                raise OSError("no space")

    warned = pytest.warns(UserWarning, match=r"^the curves could not be shown \(OSError\): no space$")
    with warned if fails else nullcontext():
        assert run("own/bars", config(), data, tmp_path, Drawing()) == found[0]
    assert (len(found), names(tmp_path)) == (1, FINISHED)


# Trouble with the disk


@pytest.mark.parametrize("fresh", [False, True])
def test_a_disk_that_fills_up_is_one_sentence_and_the_last_checkpoint_is_used(
    data: Dataset, tmp_path: Path, whole: dict[str, object], fresh: bool
) -> None:
    folder, watch = tmp_path / "run", Watch()
    with pytest.MonkeyPatch.context() as patched:
        trouble = Trouble(6, lambda: patched.setattr(os, "fsync", full_disk))
        with pytest.raises(StoppedError) as caught:
            run("own/bars", config("arm", checkpoint_seconds=0.0), data, folder, trouble, fresh)
    again = "run the same command without --fresh" if fresh else "run again"
    assert str(caught.value) == (
        f"cannot write {folder / 'history.csv'}: No space left on device; check the "
        f"folder and the free space, then {again} to resume from step 5"
    )
    assert not list(folder.rglob("*.tmp"))
    run("own/bars", config("arm"), data, folder, watch)
    assert watch.resumptions == [5]
    assert contents(folder) == whole


@pytest.mark.parametrize("keep", [False, True])
def test_a_disk_that_is_full_at_the_end_leaves_no_half_result(data: Dataset, tmp_path: Path, keep: bool) -> None:
    class FullAtTheEnd(Observer):
        def evaluated(self, task: int, accuracies: list[float]) -> None:
            if task == 2:
                patched.setattr(os, "fsync", full_disk)

    with (
        pytest.MonkeyPatch.context() as patched,
        pytest.raises(StoppedError, match=r"^cannot write .*: No space left on device.*to resume from step 8$"),
    ):
        run("own/bars", config(), data, tmp_path, FullAtTheEnd(), keep_learner=keep)
    assert names(tmp_path) == {"config.json", "history.csv", "checkpoints"}
    assert len(history(tmp_path)) == STEPS
    run("own/bars", config(), data, tmp_path, keep_learner=keep)
    assert names(tmp_path) == FINISHED | ({"learner.safetensors"} if keep else set())


def test_a_folder_that_is_lost_is_one_sentence_and_is_not_made_again(data: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(StoppedError, match=r"it was removed or moved; check the folder, then run again$"):
        run("own/bars", config(checkpoint_seconds=0.0), data, folder, Trouble(3, lambda: shutil.rmtree(folder)))
    assert not folder.exists()


def test_a_folder_that_is_moved_goes_on_where_it_was_put_back(
    data: Dataset, tmp_path: Path, whole: dict[str, object]
) -> None:
    folder, elsewhere, watch = tmp_path / "run", tmp_path / "moved", Watch()
    chosen = config("arm", checkpoint_seconds=0.0)
    with pytest.raises(StoppedError, match="removed or moved"):
        run("own/bars", chosen, data, folder, Trouble(6, lambda: folder.rename(elsewhere)))
    assert not folder.exists()
    elsewhere.rename(folder)
    run("own/bars", config("arm"), data, folder, watch)
    assert watch.resumptions == [5]
    assert contents(folder) == whole


def test_a_folder_that_was_replaced_is_not_written_to(data: Dataset, tmp_path: Path) -> None:
    """Removed by hand and begun again by another process, while the first is still at work."""
    folder = tmp_path / "run"

    def replace() -> None:
        shutil.rmtree(folder)
        run("own/bars", config(), data, folder)

    with pytest.raises(StoppedError, match="removed or moved"):
        run("own/bars", config(seed=1), data, folder, Trouble(3, replace))
    assert json.loads((folder / "result.json").read_text())["seed"] == 0
    assert names(folder) == FINISHED


# Checkpoints that are whole and do not fit


def changed_run(**values: object) -> Callable[[dict[str, object]], object]:
    return lambda state: state.update(run=dict(state["run"], **values))  # type: ignore[call-overload]


def changed_history(**values: object) -> Callable[[dict[str, object]], object]:
    return lambda state: state.update(values)


WRONG: dict[str, Callable[[dict[str, object]], object]] = {
    "a saved learner": lambda state: state.pop("run"),
    "no learner": lambda state: state.update(learner={}),
    "no network": lambda state: state.update(learner=dict(state["learner"], network={})),  # type: ignore[call-overload]
    "no random state": lambda state: state.update(random={"cpu": torch.zeros(3)}),
    "no history": lambda state: state.pop("history"),
    "a history of tensors": lambda state: state.update(history=torch.tensor([255, 254], dtype=torch.uint8)),
    "a text that is none": changed_history(format=2, history=torch.tensor([255, 254], dtype=torch.uint8)),
    "a text of fewer rows": changed_history(format=2, history=torch.tensor(list(b"step\n1\n"), dtype=torch.uint8)),
    "a text without rows": changed_history(format=2, history=torch.tensor(list(b"step\n"), dtype=torch.uint8)),
    "fewer rows": lambda state: state["history"].update(step=6),  # type: ignore[attr-defined]
    "a negative length": lambda state: state["history"].update(size=-1),  # type: ignore[attr-defined]
    "all steps": changed_run(steps=8),
    "more steps": changed_run(steps=10**6),
    "fewer steps": changed_run(steps=5),
    "no steps": changed_run(steps=0),
    "negative steps": changed_run(steps=-5),
    "no tests": changed_run(matrix=[]),
    "more tests": changed_run(matrix=[[1.0, 2.0]] * 2),
    "narrow tests": changed_run(matrix=[[1.0]]),
    "an accuracy that is none": changed_run(matrix=[[1.0, math.nan]]),
    "an accuracy of more than all": changed_run(matrix=[[1.0, 101.0]]),
    "a negative accuracy": changed_run(matrix=[[1.0, -1.0]]),
    "a curve that is none": changed_run(curve=[1.0]),
    "a narrow point": changed_run(curve=[{"step": 4, "accuracies": [1.0]}]),
    "a point of more than all": changed_run(curve=[{"step": 4, "accuracies": [1.0, 101.0]}]),
    "a point of less than nothing": changed_run(curve=[{"step": 4, "accuracies": [-1.0, 1.0]}]),
    "a point that is no number": changed_run(curve=[{"step": 4, "accuracies": [1.0, math.nan]}]),
    "points that fall": changed_run(curve=[{"step": step, "accuracies": [1.0, 1.0]} for step in (4, 2)]),
    "a point twice": changed_run(curve=[{"step": step, "accuracies": [1.0, 1.0]} for step in (4, 4)]),
    "a point to come": changed_run(curve=[{"step": 8, "accuracies": [1.0, 1.0]}]),
    "a point before the first": changed_run(curve=[{"step": -1, "accuracies": [1.0, 1.0]}]),
    "endless seconds": changed_run(seconds={"train": math.inf, "evaluate": 1.0}),
    "negative seconds": changed_run(seconds={"train": 1.0, "evaluate": -1.0}),
    "a setting of tomorrow": changed_run(config={"tomorrow": 1}),
    "the format of tomorrow": lambda state: state.update(format=FORMAT + 1),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_whole_checkpoint_that_does_not_fit_is_one_sentence(data: Dataset, tmp_path: Path, wrong: str) -> None:
    interrupt(config("arm"), data, tmp_path, 7)
    path = sorted(tmp_path.glob("checkpoints/*"))[-1]
    state = dict(read_state(path))
    WRONG[wrong](state)
    write_state(path, state)
    found = contents(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run("own/bars", config("arm"), data, tmp_path)
    assert str(caught.value).startswith(f"{path} does not fit this version of autorecall or this run (")
    assert str(caught.value).endswith("; --fresh starts over")
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == found


@pytest.mark.skipif(not winograd_pays(), reason="no compiled kernels, or no AVX2")
def test_runs_test_by_minimal_filtering_and_say_so(data: Dataset) -> None:
    chosen = dataclasses.replace(config(), network=ResNet18Config(channels=8))
    stream = Stream(data, chosen.stream, 1.0, 0)
    learner = build_learner(chosen, data, stream)
    logits: list[Tensor] = []
    predict = learner.predict
    learner.predict = lambda x: logits.append(predict(x)) or logits[-1]  # type: ignore[func-returns-value, method-assign]
    with limited_threads(1):
        evaluate(learner, data.test, tuple(stream), False)
        x, _ = as_batch(data.test, slice(0, len(logits[0])))
        expected = predict(x)
    torch.testing.assert_close(logits[0], expected, rtol=1e-3, atol=1e-3)
    assert not torch.equal(logits[0], expected)
    assert machine_of(learner.network, "cpu")["kernels"] == "compiled, with minimal filtering where it suits"
    assert machine_of(nn.Linear(9, 2), "cpu")["kernels"] == "compiled"
