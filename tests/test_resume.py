"""Runs that were interrupted, killed, doubled or robbed of their folder end as if nothing had happened, or say so."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autorecall.checkpoint import read_state, write_state
from autorecall.config import RunConfig
from autorecall.data import Dataset, Split, from_arrays, load
from autorecall.errors import AutorecallError, ConfigError, DataError, InterruptedRunError, StoppedError
from autorecall.experiment import Observer, Result, run
from autorecall.history import History
from autorecall.learners import ARMConfig, DistillConfig, LagConfig, LearnerConfig, NaiveConfig, Recollection
from autorecall.networks import MLPConfig, ResNet18Config
from autorecall.presets import PRESETS
from autorecall.stream import StreamConfig

LEARNERS: dict[str, LearnerConfig] = {
    "naive": NaiveConfig(0.5),
    "lwf": DistillConfig(0.5, lag=LagConfig("every")),
    "lwf, told of boundaries": DistillConfig(0.5, lag=LagConfig("boundary")),
    "arm": ARMConfig(images=12, steps=2, learning_rate=0.5, lag=LagConfig("every")),
    "arm, novel classes": ARMConfig(images=4, steps=2, lag=LagConfig("novel", spacing=2)),
    "arm from noise": ARMConfig(images=4, steps=2, initial="noise", lag=LagConfig("every")),
}
STEPS = 8  # two tasks of four


def bars(each: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Four classes of 8×8 images: a bright bar in one of four places, on noise."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(4), each))
    images = rng.integers(0, 100, (len(labels), 1, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label : 2 * label + 2] += 150
    return images, labels


@pytest.fixture(scope="module")
def data() -> Dataset:
    return from_arrays(train=bars(20, 0), test=bars(8, 2), name="bars")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """A few of the embedded digits: five training and test images of each of the first four."""
    whole = load("mnist")

    def first(split: Split) -> Split:
        kept = np.concatenate([np.flatnonzero(split.labels == label)[:5] for label in range(4)])
        return Split(split.inputs[kept], split.labels[kept])

    return Dataset("mnist", first(whole.train), first(whole.val), first(whole.test), whole.classes[:4])


def config(method: LearnerConfig | str = "naive", /, **changes: object) -> RunConfig:
    chosen = LEARNERS[method] if isinstance(method, str) else method
    made = RunConfig("arrays", MLPConfig((16,)), StreamConfig(2), chosen, threads=1)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


class Killed(BaseException):
    """What a run cannot see coming: nothing of ours catches it."""


class Watch(Observer):
    """Notes what it is told, and may kill the run after a step."""

    def __init__(self, killed_after: int = 0) -> None:
        self.killed_after = killed_after
        self.first, self.resumptions, self.warnings = 0, list[int](), list[str]()
        self.pictures: list[tuple[Tensor, Recollection]] = []

    def resumed(self, step: int, steps: int) -> None:
        assert steps == STEPS or steps > STEPS
        self.resumptions.append(step)

    def warned(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        self.first = self.first or step
        if step == self.killed_after:
            raise Killed

    def recalled(self, x: Tensor, recollection: Recollection) -> None:
        self.pictures.append((x, recollection))


def contents(folder: Path) -> dict[str, object]:
    """All files of a run but for the time it took and how often it was saved."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        if path.suffix == ".json":
            values = json.loads(path.read_text())
            values.pop("seconds", None)
            values.pop("checkpoint_seconds", None)
            found[path.name] = values
        elif path.is_file():
            found[path.name] = path.read_bytes()
    return found


class Stop(Observer):
    """Stops a run after a step."""

    def __init__(self, after: int) -> None:
        self.after, self.now = after, 0

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        self.now = step

    def __call__(self) -> bool:
        return self.now >= self.after


def interrupt(preset: str, chosen: RunConfig, data: Dataset, folder: Path, step: int) -> str:
    """Run until after a step, and what was said then."""
    stop = Stop(step)
    with pytest.raises(InterruptedRunError) as caught:
        run(preset, chosen, data, folder, stop, stop=stop)
    return str(caught.value)


def saved(folder: Path) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in sorted(folder.glob("checkpoints/step-*"))]


# Bit for bit


@pytest.mark.parametrize("method", LEARNERS)
def test_a_run_stopped_after_any_step_ends_as_one_that_never_was(data: Dataset, tmp_path: Path, method: str) -> None:
    whole = Watch()
    run("own/bars", config(method), data, tmp_path / "whole", whole)
    for step in range(1, STEPS):
        folder, watch = tmp_path / f"{step}", Watch()
        said = interrupt("own/bars", config(method), data, folder, step)
        assert said == f"interrupted at step {step} of 8; run the same command again to go on from step {step}"
        assert saved(folder)[-1] == step
        torch.rand(step)  # what others draw does not matter
        run("own/bars", config(method), data, folder, watch)
        assert (watch.resumptions, watch.first, watch.warnings) == ([step], step + 1, [])
        assert contents(folder) == contents(tmp_path / "whole")
        for (x, recollection), (other_x, other) in zip(watch.pictures, whole.pictures, strict=True):
            assert torch.equal(x, other_x)
            assert torch.equal(recollection.recalled.images, other.recalled.images)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_run_killed_at_any_moment_goes_on_from_its_last_checkpoint(
    data: Dataset, tmp_path: Path, seconds: float
) -> None:
    chosen = config("arm", checkpoint_seconds=seconds)
    run("own/bars", chosen, data, tmp_path / "whole")
    for step in range(1, STEPS + 1):
        folder, watch = tmp_path / f"{step}", Watch()
        with pytest.raises(Killed):
            run("own/bars", chosen, data, folder, Watch(killed_after=step))
        # A checkpoint each step, the step that was killed has none yet; or one at the end of the first task alone.
        expected = min(step - 1, STEPS - 1) if seconds == 0 else 4 if step > 4 else 0
        assert saved(folder)[-1:] == ([expected] if expected else [])
        run("own/bars", chosen, data, folder, watch)
        assert watch.resumptions == ([expected] if expected else [])
        assert contents(folder) == contents(tmp_path / "whole")


def test_a_run_killed_over_and_over_ends_all_the_same(data: Dataset, tmp_path: Path) -> None:
    chosen = config("arm", checkpoint_seconds=0.0)
    run("own/bars", chosen, data, tmp_path / "whole")
    for step in range(1, STEPS + 1):
        with pytest.raises(Killed):
            run("own/bars", chosen, data, tmp_path / "run", Watch(killed_after=step))
    run("own/bars", chosen, data, tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_run_stopped_while_it_is_tested_is_tested_again(data: Dataset, tmp_path: Path) -> None:
    run("own/bars", config("lwf"), data, tmp_path / "whole")
    for asked, step, message in ((5, 4, "to go on from step 4"), (10, 8, "to go on from step 4")):
        folder = tmp_path / f"{asked}"  # asked after each of four steps, then after the batch that is tested
        answers = iter([False] * (asked - 1) + [True])
        with pytest.raises(InterruptedRunError, match=rf"^interrupted at step {step} of 8; .* {message}$"):
            run("own/bars", config("lwf"), data, folder, stop=answers.__next__)
        run("own/bars", config("lwf"), data, folder)
        assert contents(folder) == contents(tmp_path / "whole")


def test_dropout_goes_on_with_the_same_draws(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(self: MLPConfig, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, classes))

    monkeypatch.setattr(MLPConfig, "build", build)
    run("own/bars", config(), data, tmp_path / "whole")
    for step in (1, 3, 4, 6):
        interrupt("own/bars", config(), data, tmp_path / f"{step}", step)
        run("own/bars", config(), data, tmp_path / f"{step}")
        assert contents(tmp_path / f"{step}") == contents(tmp_path / "whole")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_convolutional_network_goes_on_in_its_own_memory_layout(data: Dataset, tmp_path: Path, threads: int) -> None:
    chosen = config("arm", network=ResNet18Config(4), threads=threads)
    run("own/bars", chosen, data, tmp_path / "whole")
    interrupt("own/bars", chosen, data, tmp_path / "run", 6)
    run("own/bars", chosen, data, tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("mnist/")])
def test_every_row_on_the_digits_goes_on_bit_for_bit(digits: Dataset, tmp_path: Path, name: str) -> None:
    """Also those to come: a method whose state is not all of it fails here."""
    usual = PRESETS[name].config
    two_a_task = dataclasses.replace(usual.stream, batch_size=5)
    few = dataclasses.replace(usual, stream=two_a_task, threads=1)
    run(name, few, digits, tmp_path / "whole")
    interrupt(name, few, digits, tmp_path / "run", 3)
    run(name, few, digits, tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_seconds_are_those_of_all_parts(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    interrupt("own/bars", config(), data, tmp_path, 5)
    seconds = run("own/bars", config(), data, tmp_path).seconds
    assert (seconds.train, seconds.evaluate) == (STEPS, 2)  # a tick each


# When a checkpoint is written


def test_a_checkpoint_is_due_after_so_many_seconds(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that moves ten seconds a step: with 25, checkpoints after steps 3, 4 (a task's end) and 7."""
    clock, written = [0.0], list[int]()

    class Ticking(Watch):
        def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
            written.extend(saved(tmp_path)[-1:])
            clock[0] += 10

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    run("own/bars", config(checkpoint_seconds=25.0), data, tmp_path, Ticking())
    assert sorted(set(written)) == [3, 4, 7]


def test_a_finished_run_has_no_checkpoints(data: Dataset, tmp_path: Path) -> None:
    run("own/bars", config(checkpoint_seconds=0.0), data, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "history.csv", "result.json"}


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_an_interval_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"^checkpoint_seconds is .*; expected a number of at least 0$"):
        config(checkpoint_seconds=seconds)


# Damaged checkpoints


def interrupted(data: Dataset, folder: Path, step: int = 7, chosen: RunConfig | None = None) -> None:
    interrupt("own/bars", chosen or config("arm", checkpoint_seconds=0.0), data, folder, step)


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(data: Dataset, tmp_path: Path, damaged: int) -> None:
    run("own/bars", config("arm"), data, tmp_path / "whole")
    folder, watch = tmp_path / "run", Watch()
    interrupted(data, folder)
    assert saved(folder) == [6, 7]
    paths = sorted(folder.glob("checkpoints/*"), reverse=True)[:damaged]
    for path in paths:
        os.truncate(path, path.stat().st_size // 2)
    run("own/bars", config("arm"), data, folder, watch)
    over = [f"no checkpoint in {folder / 'checkpoints'} is whole; the run starts over"] if damaged == 2 else []
    assert watch.warnings == [f"the checkpoint {path} is damaged and was passed over" for path in paths] + over
    assert watch.resumptions == ([6] if damaged == 1 else [])  # with all damaged, it starts over
    assert watch.first == (7 if damaged == 1 else 1)
    assert contents(folder) == contents(tmp_path / "whole")


def test_without_an_observer_a_damaged_checkpoint_is_a_warning(data: Dataset, tmp_path: Path) -> None:
    interrupted(data, tmp_path)
    os.truncate(sorted(tmp_path.glob("checkpoints/*"))[-1], 9)
    with pytest.warns(UserWarning, match="is damaged and was passed over"):
        run("own/bars", config("arm"), data, tmp_path)


@pytest.mark.parametrize("damage", ["gone", "cut", "grown"])
def test_history_is_restored_from_the_checkpoint(data: Dataset, tmp_path: Path, damage: str) -> None:
    run("own/bars", config("arm"), data, tmp_path / "whole")
    interrupted(data, tmp_path / "run")
    path = tmp_path / "run" / "history.csv"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100] if damage == "cut" else path.read_bytes() * 2)
    (tmp_path / "run" / "config.json").unlink()
    run("own/bars", config("arm"), data, tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_what_a_killed_process_left_aside_is_removed(data: Dataset, tmp_path: Path) -> None:
    interrupted(data, tmp_path)
    for name in (".result.json.123.tmp", "checkpoints/.step-000000009.safetensors.123.tmp"):
        (tmp_path / name).write_text("half a f")
    run("own/bars", config("arm"), data, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "history.csv", "result.json"}


# Another config, other data


@pytest.mark.parametrize("step", [0, 7])
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": 1}, "differs in seed (now 1, before 0)"),
        ({"device": "cpu:0"}, "differs in device (now cpu:0, before cpu)"),
        ({"fraction": 0.5, "seed": 2}, "differs in fraction (now 0.5, before 1.0), seed (now 2, before 0)"),
        ({"network": MLPConfig((16, 8))}, "differs in network.hidden (now [16, 8], before [16])"),
        ({"learner": NaiveConfig(0.5)}, "differs in learner.method (now naive, before arm)"),
    ],
    ids=str,
)
def test_a_changed_config_is_named_and_refused(
    data: Dataset, tmp_path: Path, changes: dict[str, object], sentence: str, step: int
) -> None:
    if step:
        interrupted(data, tmp_path)
    else:
        with pytest.raises(Killed):  # before the first checkpoint
            run("own/bars", config("arm"), data, tmp_path, Watch(killed_after=1))
    found = contents(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run("own/bars", config("arm", **changes), data, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path} holds an unfinished run that {sentence}")
    assert str(caught.value).endswith("; choose another --out, or --fresh to move it aside")
    assert contents(tmp_path) == found
    run("own/bars", config("arm"), data, tmp_path)


def test_another_interval_is_no_change(data: Dataset, tmp_path: Path) -> None:
    interrupted(data, tmp_path)
    watch = Watch()
    run("own/bars", config("arm", checkpoint_seconds=5.0), data, tmp_path, watch)
    assert watch.resumptions == [7]
    assert run("own/bars", config("arm", checkpoint_seconds=6.0), data, tmp_path).steps == STEPS


def test_threads_that_were_left_open_count_as_they_were(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autorecall.experiment.cores", lambda: 2)
    interrupted(data, tmp_path, chosen=config("arm", threads=None))
    monkeypatch.setattr("autorecall.experiment.cores", lambda: 1)  # another machine
    with pytest.raises(ConfigError, match=r"differs in threads \(now 1, before 2\); go on with --threads 2, choose"):
        run("own/bars", config("arm", threads=None), data, tmp_path)
    watch = Watch()
    first = run("own/bars", config("arm", threads=2), data, tmp_path, watch)
    assert watch.resumptions == [7]
    # Finished on two threads, however that came about; and what was left open may be left open.
    for threads in (2, None):
        assert run("own/bars", config("arm", threads=threads), data, tmp_path) == first
    with pytest.raises(ConfigError, match=r"a finished run that differs in threads \(now 3, before None\); choose"):
        run("own/bars", config("arm", threads=3), data, tmp_path)


def test_threads_do_not_matter_before_anything_is_saved(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autorecall.experiment.cores", lambda: 2)
    with pytest.raises(Killed):
        run("own/bars", config("arm", threads=2), data, tmp_path, Watch(killed_after=1))
    run("own/bars", config("arm", threads=None), data, tmp_path)


@pytest.mark.parametrize("finished", [False, True])
def test_changed_data_are_refused(data: Dataset, tmp_path: Path, finished: bool) -> None:
    if finished:
        run("own/bars", config("arm"), data, tmp_path)
    else:
        interrupted(data, tmp_path)
    inputs = data.train.inputs.copy()
    inputs[3, 0, 0, 0] ^= 1
    changed = dataclasses.replace(data, train=dataclasses.replace(data.train, inputs=inputs))
    with pytest.raises((ConfigError, DataError), match="other data"):
        run("own/bars", config("arm"), changed, tmp_path)


@pytest.mark.parametrize("until", [1, 7, 8])
def test_another_preset_is_refused(data: Dataset, tmp_path: Path, until: int) -> None:
    if until == 8:
        run("own/bars", config("arm"), data, tmp_path)
    elif until == 7:
        interrupted(data, tmp_path)
    else:
        with pytest.raises(Killed):
            run("own/bars", config("arm"), data, tmp_path, Watch(killed_after=1))
    with pytest.raises(ConfigError, match=r"with other preset \(own/bars, now other/bars\)"):
        run("other/bars", config("arm"), data, tmp_path)


def test_another_version_is_said_and_noted(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autorecall import experiment

    real = experiment._versions()
    for torch_version, step in (("1.0", 2), ("1.0", 4), ("1.1", 6)):
        monkeypatch.setattr(experiment, "_versions", lambda version=torch_version: real | {"torch": version})
        with pytest.raises(Killed):
            run("own/bars", config(checkpoint_seconds=0.0), data, tmp_path, (watch := Watch(killed_after=step)))
        assert len(watch.warnings) == (torch_version == "1.1")
    monkeypatch.setattr(experiment, "_versions", lambda: dict(real))
    watch = Watch()
    result = run("own/bars", config(), data, tmp_path, watch)
    assert watch.warnings == [
        f"{tmp_path} was begun with torch 1.0, then 1.1 and goes on with {real['torch']}; its numbers may differ in "
        "the last digits from those of one version"
    ]
    assert result.versions == real | {"torch": f"1.0, then 1.1, then {real['torch']}"}


# Finished, diverged, afresh


def test_a_finished_run_is_returned_and_not_run_again(data: Dataset, tmp_path: Path) -> None:
    first = run("own/bars", config(), data, tmp_path)
    found = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    watch = Watch(killed_after=1)
    assert run("own/bars", config(), data, tmp_path, watch) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == found


def test_a_finished_run_is_rid_of_what_was_left_of_its_checkpoints(data: Dataset, tmp_path: Path) -> None:
    interrupted(data, tmp_path / "run")
    shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "kept")
    run("own/bars", config("arm"), data, tmp_path / "run")
    shutil.copytree(tmp_path / "kept", tmp_path / "run" / "checkpoints")  # as if killed before they were removed
    run("own/bars", config("arm"), data, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.json", "history.csv", "result.json"}


def test_a_run_that_diverged_says_so_again_and_starts_over_only_afresh(data: Dataset, tmp_path: Path) -> None:
    folder, hot = tmp_path / "run", config(NaiveConfig(1e30), checkpoint_seconds=0.0)
    with pytest.raises(StoppedError, match=r"^stopped at step 2"):
        run("own/bars", hot, data, folder)
    found = contents(folder)
    assert set(found) == {"config.json", "history.csv", "stopped.json"}
    with pytest.raises(StoppedError, match=r"holds a run that diverged: at step 2 \(task 1\) the loss .*--fresh"):
        run("own/bars", hot, data, folder)
    with pytest.raises(ConfigError, match=r"holds a diverged run that differs in learner.learning_rate \(now 0.5"):
        run("own/bars", config(), data, folder)
    assert contents(folder) == found
    with pytest.raises(StoppedError, match=r"^stopped at step 2"):
        run("own/bars", hot, data, folder, fresh=True)
    assert contents(tmp_path / "run.old-1") == contents(folder) == found


@pytest.mark.parametrize("finished", [False, True])
def test_fresh_moves_the_old_folder_aside(data: Dataset, tmp_path: Path, finished: bool) -> None:
    folder, watch = tmp_path / "run", Watch()
    if finished:
        run("own/bars", config("arm"), data, folder)
    else:
        interrupted(data, folder)
    found = contents(folder)
    run("own/bars", config("arm", seed=1), data, folder, watch, fresh=True)
    assert (watch.first, watch.resumptions) == (1, [])
    assert contents(tmp_path / "run.old-1") == found
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run.old-1"}


def test_a_fresh_run_that_is_interrupted_does_not_advise_to_start_over(data: Dataset, tmp_path: Path) -> None:
    chosen, advice = config(checkpoint_seconds=0.0), "run the same command without --fresh to go on from step"
    for place in (tmp_path / "new", tmp_path / "new"):  # the second time, something is moved aside
        stop = Stop(5)
        with pytest.raises(InterruptedRunError, match=rf"^interrupted at step 5 of 8; {advice} 5$"):
            run("own/bars", chosen, data, place, stop, fresh=True, stop=stop)
    with pytest.MonkeyPatch.context() as patched:
        trouble = Trouble(6, lambda: patched.setattr(os, "fsync", full))
        with pytest.raises(StoppedError, match=rf"No space left on device; .*, then {advice} 5$"):
            run("own/bars", chosen, data, tmp_path / "full", trouble, fresh=True)


def test_the_folder_one_is_in_cannot_be_moved_aside(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("own/bars", config(), data, Path())
    found = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"^cannot move \. aside, because it is the folder you are in"):
        run("own/bars", config(), data, Path(), fresh=True)
    assert contents(tmp_path) == found


def test_fresh_on_nothing_moves_nothing(data: Dataset, tmp_path: Path) -> None:
    run("own/bars", config(), data, tmp_path / "run", fresh=True)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_a_run_without_a_folder_can_be_stopped_too(data: Dataset) -> None:
    stop = Stop(3)
    with pytest.raises(InterruptedRunError, match=r"^interrupted at step 3 of 8; run the same command again to start"):
        run("own/bars", config(), data, None, stop, stop=stop)


# One writer


def test_a_second_run_in_the_same_folder_is_refused(data: Dataset, tmp_path: Path) -> None:
    refusals: list[str] = []

    class Doubled(Observer):
        def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
            for fresh in (False, True):
                with pytest.raises(AutorecallError) as caught:
                    run("own/bars", config(), data, tmp_path, fresh=fresh)
                refusals.append(str(caught.value))

    run("own/bars", config(), data, tmp_path, Doubled())
    owner = f"{os.getpid()} on {platform.node()}"
    assert set(refusals) == {f"{tmp_path} is in use by process {owner}; wait for it or choose another folder"}
    assert len(refusals) == 2 * STEPS


def test_of_many_at_once_one_runs_and_the_others_are_refused(data: Dataset, tmp_path: Path) -> None:
    results, refusals = list[Result](), list[str]()
    together = threading.Barrier(6)

    def attempt() -> None:
        together.wait()
        try:
            results.append(run("own/bars", config(), data, tmp_path))
        except AutorecallError as error:
            refusals.append(str(error))

    found = torch.get_num_threads()
    threads = [threading.Thread(target=attempt) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(found)
    assert len(results) + len(refusals) == 6
    assert results  # late ones may find it finished, and are given the same
    assert all(result == results[0] for result in results)
    assert all("is in use by process" in sentence for sentence in refusals)


# Trouble with the disk


class Trouble(Observer):
    """Does something to the folder after a step."""

    def __init__(self, step: int, make: Callable[[], object]) -> None:
        self.at, self.make = step, make

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        if step == self.at:
            self.make()


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_up_is_one_sentence_and_the_last_checkpoint_is_used(data: Dataset, tmp_path: Path) -> None:
    run("own/bars", config("arm"), data, tmp_path / "whole")
    folder, watch = tmp_path / "run", Watch()
    with pytest.MonkeyPatch.context() as patched:
        trouble = Trouble(6, lambda: patched.setattr(os, "fsync", full))
        with pytest.raises(StoppedError) as caught:
            run("own/bars", config("arm", checkpoint_seconds=0.0), data, folder, trouble)
    assert str(caught.value) == (
        f"cannot write {folder / 'checkpoints' / 'step-000000006.safetensors'}: No space left on device; check the "
        "folder and the free space, then run again to go on from step 5"
    )
    assert not list(folder.rglob("*.tmp"))
    run("own/bars", config("arm"), data, folder, watch)
    assert watch.resumptions == [5]
    assert contents(folder) == contents(tmp_path / "whole")


def test_a_folder_that_is_lost_is_one_sentence_and_is_not_made_again(data: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(StoppedError, match=r"it was removed or moved; check the folder, then run again$"):
        run("own/bars", config(checkpoint_seconds=0.0), data, folder, Trouble(3, lambda: shutil.rmtree(folder)))
    assert not folder.exists()


def test_a_folder_that_is_moved_goes_on_where_it_was_put_back(data: Dataset, tmp_path: Path) -> None:
    folder, elsewhere, watch = tmp_path / "run", tmp_path / "moved", Watch()
    run("own/bars", config("arm"), data, tmp_path / "whole")
    chosen = config("arm", checkpoint_seconds=0.0)
    with pytest.raises(StoppedError, match="removed or moved"):
        run("own/bars", chosen, data, folder, Trouble(6, lambda: folder.rename(elsewhere)))
    assert not folder.exists()
    elsewhere.rename(folder)
    run("own/bars", config("arm"), data, folder, watch)
    assert watch.resumptions == [5]
    assert contents(folder) == contents(tmp_path / "whole")


def test_a_folder_that_was_replaced_is_not_written_to(data: Dataset, tmp_path: Path) -> None:
    """Removed by hand and begun again by another process, while the first is still at work."""
    folder = tmp_path / "run"

    def replace() -> None:
        shutil.rmtree(folder)
        run("own/bars", config(), data, folder)

    with pytest.raises(StoppedError, match="removed or moved"):
        run("own/bars", config(seed=1), data, folder, Trouble(3, replace))
    assert json.loads((folder / "result.json").read_text())["seed"] == 0
    assert set(contents(folder)) == {"config.json", "history.csv", "result.json"}


# Folders and files of others


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["history.csv", "config.json", "checkpoints/mymodel.pt", ".notes.tmp"])
def test_a_folder_with_the_files_of_others_is_refused(data: Dataset, tmp_path: Path, name: str, fresh: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"name": "mine"}')
    with pytest.raises(ConfigError, match=r"holds other files and no run of autorecall; choose a new or an empty"):
        run("own/bars", config(), data, tmp_path, fresh=fresh)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [Path(name).name]


def test_what_others_put_into_a_run_folder_stays(data: Dataset, tmp_path: Path) -> None:
    interrupted(data, tmp_path)
    others = {".notes.tmp", ".history.csv.tmp", "notes.txt", "checkpoints/mymodel.pt", "checkpoints/.a.1.tmp"}
    for name in others:
        (tmp_path / name).write_text("mine")
    run("own/bars", config("arm"), data, tmp_path)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == others | {"config.json", "history.csv", "result.json"}


# Checkpoints that are whole and do not fit


def changed_run(**values: object) -> Callable[[dict[str, object]], object]:
    return lambda state: state.update(run=dict(state["run"], **values))  # type: ignore[call-overload]


WRONG: dict[str, Callable[[dict[str, object]], object]] = {
    "a saved learner": lambda state: state.pop("run"),
    "no learner": lambda state: state.update(learner={}),
    "no network": lambda state: state.update(learner=dict(state["learner"], network={})),  # type: ignore[call-overload]
    "no random state": lambda state: state.update(random={"cpu": torch.zeros(3)}),
    "no text": lambda state: state.update(history=torch.tensor([255, 254], dtype=torch.uint8)),
    "fewer rows": lambda state: state.update(history=torch.tensor(list(b"step\n1\n"), dtype=torch.uint8)),
    "all steps": changed_run(steps=8),
    "more steps": changed_run(steps=10**6),
    "fewer steps": changed_run(steps=5),
    "no steps": changed_run(steps=0),
    "negative steps": changed_run(steps=-5),
    "no tests": changed_run(matrix=[]),
    "more tests": changed_run(matrix=[[1.0, 2.0]] * 2),
    "narrow tests": changed_run(matrix=[[1.0]]),
    "a setting of tomorrow": changed_run(config={"tomorrow": 1}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_whole_checkpoint_that_does_not_fit_is_one_sentence(data: Dataset, tmp_path: Path, wrong: str) -> None:
    interrupted(data, tmp_path)
    path = sorted(tmp_path.glob("checkpoints/*"))[-1]
    state = dict(read_state(path))
    WRONG[wrong](state)
    write_state(path, state)
    found = contents(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run("own/bars", config("arm"), data, tmp_path)
    assert str(caught.value).startswith(f"{path} does not fit this version of autorecall or this run (")
    assert str(caught.value).endswith("; --fresh starts over")
    assert contents(tmp_path) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid JSON .*; --fresh starts over"),
        ('{"preset": "own/bars", "tomorrow": 1}', "config.tomorrow is no field of RunConfig; .*; --fresh starts over"),
        ('{"preset": 1}', "the preset is 1; expected a name; --fresh starts over"),
    ],
)
def test_a_config_that_cannot_be_read_is_named(data: Dataset, tmp_path: Path, text: str, sentence: str) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        run("own/bars", config("arm"), data, folder, Watch(killed_after=1))
    (folder / "config.json").write_text(text)
    with pytest.raises(DataError, match=rf"config\.json:? {sentence}$"):
        run("own/bars", config("arm"), data, folder)
    run("own/bars", config("arm"), data, folder, fresh=True)


# Observers that fail


class Failing(Watch):
    """Fails where it is told to."""

    def __init__(self, place: str, error: BaseException) -> None:
        super().__init__()
        self.place, self.error = place, error

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        if self.place == "evaluated":
            raise self.error

    def recalled(self, x: Tensor, recollection: Recollection) -> None:
        super().recalled(x, recollection)
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
    assert (tmp_path / "result.json").exists()


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
        def evaluated(self, task: int, accuracies: list[float]) -> None:
            if task == 2:
                shutil.rmtree(folder)
                run("own/bars", config("arm"), data, folder, watch)

    outer = Replaced()
    with pytest.raises(StoppedError, match="removed or moved"):
        run("own/bars", config("arm"), data, folder, outer)
    assert (len(outer.pictures), len(watch.pictures)) == (0, 1)


def test_columns_with_a_comma_in_their_name_go_on() -> None:
    first = History()
    first.add({"step": 1, 'a, "b"': 2.0})
    second = History(text=first.text)
    second.add({"step": 2, 'a, "b"': 3.0})
    assert second.text == 'step,"a, ""b"""\n1,2.0\n2,3.0\n'
    assert (first.rows, second.rows, History().rows) == (1, 2, 0)
