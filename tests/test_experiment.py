"""One config, one run folder: what is written, what is left as found, and what is refused before the first file."""

from __future__ import annotations

import csv
import dataclasses
import errno
import json
import math
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from autorecall.ascent import cores
from autorecall.config import RunConfig, from_json
from autorecall.data import Dataset, Split, from_arrays, load
from autorecall.errors import AutorecallError, ConfigError, InputError, StoppedError
from autorecall.experiment import MemoryCount, Observer, Result, Seconds, read_result, run
from autorecall.learners import (
    ARMConfig,
    DistillConfig,
    LagConfig,
    Learner,
    LearnerConfig,
    NaiveConfig,
    Recollection,
)
from autorecall.learners.teacher import TaughtLearner
from autorecall.metrics import average_accuracy, forgetting
from autorecall.networks import MLPConfig, ResNet18Config
from autorecall.presets import PRESETS
from autorecall.stream import Stream, StreamConfig

TASK_LAG = LagConfig(policy="every")
LEARNERS: dict[str, LearnerConfig] = {
    "naive": NaiveConfig(0.5),
    "lwf": DistillConfig(0.5, lag=TASK_LAG),
    "arm": ARMConfig(images=4, steps=3, learning_rate=0.5, lag=TASK_LAG),
}
ARM_COLUMNS = (
    ["loss", "divergence", "teacher_avoidance", "student_avoidance", "diversity", "uncertainty", "l2_norm"]
    + ["total_variation", "objective", "recalled_loss", "distillation"]
    + [f"recalled_class_{label}" for label in range(4)]
)
COLUMNS = {"naive": ["loss"], "lwf": ["loss", "distillation"], "arm": ARM_COLUMNS}
PARAMETERS = 64 * 16 + 16 + 16 * 4 + 4


def bars(each: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Four classes of 8×8 images: a bright bar in one of four places, on noise."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), each)
    images = rng.integers(0, 100, (len(labels), 1, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label : 2 * label + 2] += 150
    order = rng.permutation(len(labels))
    return images[order], labels[order]


@pytest.fixture(scope="session")
def data() -> Dataset:
    return from_arrays(train=bars(20, 0), val=bars(5, 1), test=bars(8, 2), name="bars")


def config(learner: LearnerConfig | str = "naive", **changes: object) -> RunConfig:
    chosen = LEARNERS[learner] if isinstance(learner, str) else learner
    made = RunConfig("folder", MLPConfig((16,)), StreamConfig(2), chosen, threads=1)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def history(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(params=LEARNERS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# What a run writes


def test_a_run_writes_its_config_history_and_result(data: Dataset, tmp_path: Path, method: str) -> None:
    folder = tmp_path / "deep" / "run"
    chosen = config(method, seed=3)
    result = run("own/bars", chosen, data, folder)
    assert names(folder) == {"config.json", "history.csv", "result.json"}

    written = json.loads((folder / "config.json").read_text())
    assert written.pop("preset") == "own/bars"
    assert from_json(written) == dataclasses.replace(chosen, dataset="arrays")  # not of any dataset it could name

    fields = [field.name for field in dataclasses.fields(Result)]
    assert list(json.loads((folder / "result.json").read_text())) == fields
    assert read_result(folder / "result.json") == result
    assert (result.preset, result.seed, result.split) == ("own/bars", 3, "test")
    assert result.data == data.fingerprint()


def test_history_has_a_row_a_step_with_the_same_columns(data: Dataset, tmp_path: Path, method: str) -> None:
    result = run("own/bars", config(method), data, tmp_path)
    rows = history(tmp_path)
    assert len(rows) == result.steps == 8
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 9)]
    assert [row["task"] for row in rows] == ["1"] * 4 + ["2"] * 4
    for row in rows:
        assert list(row) == ["step", "task", *COLUMNS[method]]
        # Before recall or distillation starts, with the second task, there is nothing but the loss.
        empty = {name for name, cell in row.items() if cell == ""}
        assert empty == (set(COLUMNS[method]) - {"loss"} if row["task"] == "1" else set())
        assert all(math.isfinite(float(cell)) for cell in row.values() if cell)


def test_results_are_those_of_the_matrix(data: Dataset, method: str) -> None:
    result = run("own/bars", config(method), data)
    assert [len(row) for row in result.accuracy_matrix] == [2, 2]
    assert all(0 <= share <= 100 for row in result.accuracy_matrix for share in row)
    assert result.accuracy == average_accuracy(result.accuracy_matrix)
    assert result.forgetting == forgetting(result.accuracy_matrix)
    assert result.accuracy_matrix[0][0] > 50  # the first task is learned
    assert result.accuracy_matrix[0][1] == 0  # the second is not known yet
    assert min(result.seconds.train, result.seconds.evaluate) > 0
    assert set(result.versions) == {"python", "autorecall", "torch", "numpy"}
    assert result.machine["device"] == "cpu"
    assert result.machine["threads"] == "1"


@pytest.mark.parametrize(
    ("learner", "parameters"),
    [
        (LEARNERS["naive"], 0),
        (LEARNERS["lwf"], PARAMETERS),
        (LEARNERS["arm"], PARAMETERS),
        (ARMConfig(images=4, steps=1, lag=LagConfig(policy="every", every=1)), 0),
    ],
    ids=["naive", "lwf", "arm", "unit lag"],
)
def test_memory_is_the_teacher_and_no_image(data: Dataset, learner: LearnerConfig, parameters: int) -> None:
    memory = run("own/bars", config(learner), data).memory
    assert memory == MemoryCount(0, 0.0, parameters, 4 * parameters / 1e6)


def test_a_stationary_run_has_one_task_and_no_forgetting(data: Dataset, tmp_path: Path) -> None:
    result = run("own/bars", config(stream=StreamConfig(stationary=True)), data, tmp_path)
    assert (len(result.accuracy_matrix), len(result.accuracy_matrix[0]), result.forgetting) == (1, 1, None)
    assert read_result(tmp_path / "result.json").forgetting is None


def test_tasks_of_different_lengths_are_run(data: Dataset, method: str) -> None:
    result = run("own/bars", config(method, stream=StreamConfig(3)), data)
    assert (result.steps, len(result.accuracy_matrix)) == (6 + 2, 2)


def test_flat_float_inputs_are_run_without_total_variation() -> None:
    images, labels = bars(10, 0)
    flat = images.reshape(-1, 64).astype(np.float32) / 255
    data = from_arrays(train=(flat, labels), test=(flat, labels))
    learner = ARMConfig(images=4, steps=2, total_variation=0.0, lag=TASK_LAG)
    assert run("own/flat", config(learner), data).steps == 4


def test_without_a_folder_nothing_is_written(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run("own/bars", config(method), data)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["mnist/naive", "mnist/stationary", "mnist/lwf", "mnist/arm"])
def test_presets_run_on_the_embedded_digits(tmp_path: Path, name: str) -> None:
    digits = load("mnist")
    few = dataclasses.replace(PRESETS[name].config, fraction=0.02, split="val")
    result = run(name, few, digits, tmp_path)
    tasks = 1 if name == "mnist/stationary" else 5
    assert result.steps == len(history(tmp_path)) == 10
    assert [len(row) for row in result.accuracy_matrix] == [tasks] * tasks
    assert result.memory.parameters == (478_410 if name in ("mnist/lwf", "mnist/arm") else 0)
    assert result.accuracy > 10


# The same again


def without_seconds(folder: Path) -> dict[str, object]:
    values: dict[str, object] = json.loads((folder / "result.json").read_text())
    del values["seconds"]
    return values


def test_the_same_seed_gives_the_same_files(data: Dataset, tmp_path: Path, method: str) -> None:
    torch.manual_seed(1)
    run("own/bars", config(method), data, tmp_path / "first")
    torch.manual_seed(2)
    torch.rand(7)
    run("own/bars", config(method), data, tmp_path / "second")
    for name in ("history.csv", "config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert without_seconds(tmp_path / "first") == without_seconds(tmp_path / "second")


def test_another_seed_gives_other_numbers(data: Dataset, tmp_path: Path, method: str) -> None:
    fixed = StreamConfig(2, order_seed=0)  # so that the initial weights and the learner's draws alone differ
    run("own/bars", config(method, stream=fixed), data, tmp_path / "first")
    run("own/bars", config(method, stream=fixed, seed=1), data, tmp_path / "second")
    first, second = ((tmp_path / name / "history.csv").read_text() for name in ("first", "second"))
    assert first.splitlines()[1] != second.splitlines()[1]


def test_a_run_with_a_folder_finds_the_same_as_one_without(data: Dataset, tmp_path: Path, method: str) -> None:
    with_folder, without = run("own/bars", config(method), data, tmp_path), run("own/bars", config(method), data)
    assert dataclasses.replace(with_folder, seconds=Seconds()) == dataclasses.replace(without, seconds=Seconds())


def test_an_observer_does_not_change_the_run(data: Dataset, method: str) -> None:
    plain, observed = run("own/bars", config(method), data), run("own/bars", config(method), data, None, Told())
    assert dataclasses.replace(plain, seconds=Seconds()) == dataclasses.replace(observed, seconds=Seconds())


def test_all_learners_see_the_same_stream(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    observe = Learner.observe

    def noted(self: Learner, x: Tensor, y: Tensor) -> dict[str, float]:
        seen.append((x.clone(), y.clone()))
        return observe(self, x, y)

    monkeypatch.setattr(Learner, "observe", noted)
    pool = StreamConfig(2, class_pool=(40, 80, 60, 30))
    expected = [batch for task in Stream(data, pool, 0.8, seed=4) for batch in task]
    for name in LEARNERS:
        seen.clear()
        run("own/bars", config(name, stream=pool, fraction=0.8, seed=4), data)
        assert len(seen) == len(expected)
        for (x, y), (expected_x, expected_y) in zip(seen, expected, strict=True):
            assert torch.equal(x, expected_x)
            assert torch.equal(y, expected_y)


def test_only_a_learner_that_asks_for_boundaries_is_told_of_them(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    boundary = TaughtLearner.boundary

    def noted(self: TaughtLearner) -> None:
        told.append(self.teacher.config.policy)
        boundary(self)

    monkeypatch.setattr(TaughtLearner, "boundary", noted)
    for policy, count in (("every", 0), ("novel", 0), ("boundary", 2)):
        told.clear()
        lag = LagConfig(policy=policy)  # type: ignore[arg-type]
        run("own/bars", config(DistillConfig(0.05, lag=lag)), data)
        assert told == ["boundary"] * count


# What a run leaves as found


@pytest.fixture
def as_found() -> Iterator[None]:
    """Threads, random state and working directory are after the test what they were before."""
    threads, state, others, place = torch.get_num_threads(), torch.get_rng_state(), random.getstate(), Path.cwd()
    default = torch.get_default_dtype()
    yield
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == others
    assert Path.cwd() == place
    assert torch.get_default_dtype() == default


class Told(Observer):
    """Notes everything it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []
        self.evaluations: list[tuple[int, list[float]]] = []
        self.recollections: list[tuple[Tensor, Recollection]] = []
        self.threads: set[int] = set()

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        assert math.isfinite(numbers["loss"])
        self.steps.append((step, steps, task))
        self.threads.add(torch.get_num_threads())

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        self.evaluations.append((task, accuracies))

    def recalled(self, x: Tensor, recollection: Recollection) -> None:
        self.recollections.append((x, recollection))


@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize("threads", [1, 2, None])
def test_threads_and_random_state_are_left_as_found(data: Dataset, method: str, threads: int | None) -> None:
    told = Told()
    found = torch.get_num_threads()
    run("own/bars", config(method, threads=threads, fraction=0.5), data, None, told)
    # Half of them, so that another network can run beside it.
    assert told.threads == {max(1, (threads or cores()) // 2)}
    assert torch.get_num_threads() == found


@pytest.mark.usefixtures("as_found")
def test_threads_and_random_state_are_left_as_found_by_runs_that_fail(data: Dataset) -> None:
    with pytest.raises(ConfigError):
        run("own/bars", config(device="nonsense", threads=2), data)
    with pytest.raises(StoppedError):
        run("own/bars", config(NaiveConfig(1e30), threads=2), data)


def test_a_run_does_not_change_the_data(data: Dataset, method: str) -> None:
    found = data.fingerprint()
    run("own/bars", config(method), data)
    assert data.fingerprint() == found


# What an observer is told


def test_an_observer_is_told_of_every_step_and_every_evaluation(data: Dataset, method: str) -> None:
    told = Told()
    result = run("own/bars", config(method), data, None, told)
    assert told.steps == [(step, 8, 1 if step <= 4 else 2) for step in range(1, 9)]
    assert told.evaluations == list(enumerate(result.accuracy_matrix, start=1))


def test_an_observer_sees_the_last_recalled_batch_of_arm_and_of_nobody_else(data: Dataset, method: str) -> None:
    told = Told()
    chosen = config(method)
    run("own/bars", chosen, data, None, told)
    if method != "arm":
        assert told.recollections == []
        return
    ((x, recollection),) = told.recollections
    *_, (last, _) = Stream(data, chosen.stream, seed=chosen.seed)[-1]
    assert torch.equal(x, last)
    images, targets = recollection.recalled.images, recollection.targets
    assert images.shape == (4, *x.shape[1:])
    assert targets.shape == (4, 4)
    assert targets.sum(1).tolist() == pytest.approx([1.0] * 4)


# Runs that diverge


def test_a_run_that_diverges_says_where_and_keeps_what_there_is(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StoppedError) as caught:
        run("own/bars", config(NaiveConfig(1e30), seed=7), data, tmp_path)
    assert str(caught.value).startswith("stopped at step 2 (task 1): the loss on the real batch became ")
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == {"config.json", "history.csv", "stopped.json"}
    assert [row["step"] for row in history(tmp_path)] == ["1"]
    stopped = json.loads((tmp_path / "stopped.json").read_text())
    assert stopped.pop("value") in ("nan", "inf")
    assert stopped == {"preset": "own/bars", "seed": 7, "step": 2, "task": 1, "term": "the loss on the real batch"}


def test_recall_that_diverges_is_stopped_in_the_second_task_by_the_name_of_a_term(
    data: Dataset, tmp_path: Path
) -> None:
    learner = ARMConfig(images=4, steps=3, recall_rate=1e30, lag=TASK_LAG)
    with pytest.raises(StoppedError, match=r"^stopped at step 5 \(task 2\): the "):
        run("own/bars", config(learner), data, tmp_path)
    stopped = json.loads((tmp_path / "stopped.json").read_text())
    assert (stopped["step"], stopped["task"]) == (5, 2)
    assert "recall" in stopped["term"]
    assert len(history(tmp_path)) == 4
    assert "result.json" not in names(tmp_path)


def test_outputs_that_are_not_finite_are_noticed_when_tested(data: Dataset, tmp_path: Path) -> None:
    one_batch = StreamConfig(2, batch_size=1000)
    with pytest.raises(StoppedError, match=r"\(task 1\): an output of the network became nan"):
        run("own/bars", config(NaiveConfig(1e38), stream=one_batch), data, tmp_path)
    assert names(tmp_path) == {"config.json", "history.csv", "stopped.json"}


def test_a_run_that_diverges_without_a_folder_writes_nothing(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoppedError, match=r"^stopped at step 2 \(task 1\)"):
        run("own/bars", config(NaiveConfig(1e30)), data)
    assert names(tmp_path) == set()


def test_a_run_that_ends_well_is_no_longer_marked_as_stopped(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run("own/bars", config(NaiveConfig(1e30)), data, tmp_path)
    run("own/bars", config(), data, tmp_path, fresh=True)
    assert names(tmp_path) == {"config.json", "history.csv", "result.json"}


# Which split is tested


def test_val_is_tested_on_the_validation_split(data: Dataset) -> None:
    wrong = Split(data.val.inputs, (data.val.labels + 1) % 4)
    data = dataclasses.replace(data, val=wrong)
    swapped = dataclasses.replace(data, val=data.test, test=wrong)
    on_val = run("own/bars", config(split="val"), data)
    assert on_val.split == "val"
    assert on_val.accuracy_matrix == run("own/bars", config(), swapped).accuracy_matrix
    assert on_val.accuracy_matrix != run("own/bars", config(), data).accuracy_matrix


# Refused before the first file


def lacking(data: Dataset, split: str) -> Dataset:
    """The same data without class 2 in one split."""
    whole = getattr(data, split)
    kept = whole.labels != 2
    part = Split(whole.inputs[kept], whole.labels[kept])
    return dataclasses.replace(data, test=part) if split == "test" else dataclasses.replace(data, val=part)


@pytest.mark.parametrize("split", ["test", "val"])
def test_a_tested_split_that_lacks_a_class_is_refused(data: Dataset, tmp_path: Path, split: str) -> None:
    with pytest.raises(ConfigError, match=f"^the {split} split has no image of class 2, so its accuracy cannot"):
        run("own/bars", config(split=split), lacking(data, split), tmp_path / "run")
    assert names(tmp_path) == set()


def test_a_split_that_is_not_tested_may_lack_a_class(data: Dataset) -> None:
    assert run("own/bars", config(), lacking(data, "val")).steps == 8


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"device": "nonsense"}, "device is 'nonsense', which torch cannot use here"),
        ({"device": ""}, "device is '', which torch cannot use here"),
        ({"device": "meta"}, "device is 'meta', which torch cannot use here"),
        ({"device": "cuda:99"}, "device is 'cuda:99', which torch cannot use here"),
        ({"device": "hpu"}, "device is 'hpu', which torch cannot use here"),
        ({"threads": 2**40}, "threads is 1099511627776; expected 1 to 1024"),
        ({"stream": StreamConfig(5)}, "stream.classes_per_task is 5 but the data have 4 classes"),
        ({"stream": StreamConfig(2, class_pool=(9, 9))}, "stream.class_pool is (9, 9) but the classes have"),
        ({"stream": StreamConfig(2, class_order=(0, 1))}, "stream.class_order is (0, 1); expected each of 0 to 3"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    data: Dataset, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run("own/bars", config("naive", **changes), data, tmp_path / "run")
    assert str(caught.value).startswith(sentence)
    assert names(tmp_path) == set()


def test_a_network_for_images_refuses_flat_inputs_before_anything_is_written(tmp_path: Path) -> None:
    flat = np.zeros((4, 64), dtype=np.float32)
    data = from_arrays(train=(flat, [0, 1, 2, 3]), test=(flat, [0, 1, 2, 3]))
    with pytest.raises(ConfigError, match=r"^resnet18 needs images"):
        run("own/flat", config(network=ResNet18Config()), data, tmp_path / "run")
    assert names(tmp_path) == set()


# Folders that cannot be written to


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_in_the_way_of_the_folder_is_refused(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(AutorecallError, match=r"^cannot create the folder .*; choose another$"):
        run("own/bars", config(), data, tmp_path / "run" / "seed-0")
    assert (tmp_path / "run").read_text() == "a file"


def test_a_folder_without_permission_is_refused(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, to whom every folder is open
    with pytest.raises(AutorecallError, match=r"^cannot write to the folder .*: permission denied"):
        run("own/bars", config(), data, tmp_path)
    assert names(tmp_path) == set()


def test_a_disk_that_is_full_from_the_start_is_refused(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(AutorecallError, match=r"^cannot write .*config\.json: No space left on device"):
        run("own/bars", config(), data, tmp_path)
    assert names(tmp_path) == set()


def test_a_disk_that_is_full_at_the_end_leaves_no_half_result(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullAtTheEnd(Observer):
        def evaluated(self, task: int, accuracies: list[float]) -> None:
            if task == 2:
                monkeypatch.setattr(os, "fsync", full_disk)

    with pytest.raises(StoppedError, match=r"^cannot write .*: No space left on device.*to go on from step 4$"):
        run("own/bars", config(), data, tmp_path, FullAtTheEnd())
    assert names(tmp_path) == {"config.json", "history.csv", "checkpoints"}
    assert len(history(tmp_path)) == 8


@pytest.mark.parametrize("trouble", ["full", "folder"])
def test_a_history_that_cannot_be_written_is_one_sentence(data: Dataset, tmp_path: Path, trouble: str) -> None:
    (tmp_path / ".lock").touch()  # of an earlier process: the folder is a run's
    if trouble == "full":
        (tmp_path / "history.csv").symlink_to("/dev/full")
    else:
        (tmp_path / "history.csv").mkdir()
    with pytest.raises(AutorecallError, match=r"history\.csv"):
        run("own/bars", config(), data, tmp_path)


def test_inputs_that_the_learner_refuses_leave_no_folder(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).random((40, 9), dtype=np.float32)
    labels = np.arange(40) % 4
    data = from_arrays((vectors, labels), (vectors, labels))
    with pytest.raises(InputError, match="total_variation"):
        run("own/vectors", config("arm", network=MLPConfig((8,))), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
