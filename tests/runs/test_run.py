"""One config, one run folder: what is written, what is left as found, and what is refused before the first file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from autorecall import ARMConfig, LagConfig, Learner, LearnerConfig, LwFConfig, NaiveConfig, load, save
from autorecall.data import Dataset, Split, from_arrays
from autorecall.data import load as load_data
from autorecall.errors import AutorecallError, ConfigError, InputError, InterruptedRunError, StoppedError
from autorecall.metrics import average_accuracy, forgetting
from autorecall.networks import MLPConfig, ResNet18Config
from autorecall.presets import PRESETS
from autorecall.runs.folder import RunStatus, checkpoint, read_config
from autorecall.runs.history import Extent
from autorecall.runs.loop import Observer
from autorecall.runs.result import MemoryCount, Point, Result, Seconds, as_json, read_result
from autorecall.runs.run import MOST_ACCURACIES, run
from autorecall.storage import files, state_file
from autorecall.storage.state import mapping
from autorecall.storage.state_file import read_state, write_state
from autorecall.stream import Stream, StreamConfig
from autorecall.torch_state import cores

from .worlds import FINISHED, LEARNERS, STEPS, bars, checksum, config, contents, full_disk, history, names

ARM_COLUMNS = (
    ["loss", "divergence", "teacher_avoidance", "student_avoidance", "diversity", "uncertainty", "l2_norm"]
    + ["total_variation", "objective", "recalled_loss", "distillation"]
    + [f"recalled_class_{label}" for label in range(4)]
)
COLUMNS = {"naive": ["loss"], "lwf": ["loss", "distillation"], "arm": ARM_COLUMNS}
PARAMETERS = 64 * 16 + 16 + 16 * 4 + 4


@pytest.fixture(params=COLUMNS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# What a run writes


def test_a_run_writes_its_config_history_and_result(data: Dataset, tmp_path: Path, method: str) -> None:
    folder, chosen = tmp_path / "deep" / "run", config(method, seed=3, dataset="folder", image_size=8)
    result = run("own/bars", chosen, data, folder)
    assert names(folder) == FINISHED
    # The data were given, so the config names none that it could be run on again.
    given = dataclasses.replace(chosen, dataset="arrays", image_size=None)
    assert read_config(folder / "config.json") == ("own/bars", given)
    # Without those that earlier versions do not know of, as there is nothing to say.
    fields = [field.name for field in dataclasses.fields(Result) if field.name not in ("lessons", "tested")]
    assert list(json.loads((folder / "result.json").read_text())) == ["format", *fields]
    assert read_result(folder / "result.json") == result
    assert (result.preset, result.seed, result.split) == ("own/bars", 3, "test")
    assert result.data == data.fingerprint()


def test_a_folder_may_be_given_as_text(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("own/bars", config(), data, "deep/run")
    assert read_result(tmp_path / "deep" / "run" / "result.json") == result


def test_history_has_one_row_per_step_with_the_same_columns(data: Dataset, tmp_path: Path, method: str) -> None:
    result = run("own/bars", config(method), data, tmp_path)
    rows = history(tmp_path)
    assert result.steps == STEPS
    assert [row["step"] for row in rows] == [str(step) for step in range(1, STEPS + 1)]
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
        (ARMConfig(recalled_images=4, ascent_steps=1, lag=LagConfig(policy="every", every=1)), 0),
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
    learner = ARMConfig(recalled_images=4, ascent_steps=2, total_variation=0.0, lag=LagConfig("every"))
    assert run("own/flat", config(learner), data).steps == 4


def test_without_a_folder_nothing_is_written(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("own/bars", config("arm"), data)
    with pytest.raises(StoppedError, match=r"^stopped at step 2 \(task 1\)"):
        run("own/bars", config(NaiveConfig(1e30)), data)
    assert names(tmp_path) == set()


def test_a_preset_runs_on_the_embedded_digits(tmp_path: Path) -> None:
    few = dataclasses.replace(PRESETS["mnist/arm"].config, fraction=0.02, split="val", threads=1)
    result = run("mnist/arm", few, load_data("mnist"), tmp_path)
    assert read_config(tmp_path / "config.json") == ("mnist/arm", few)
    assert result.steps == len(history(tmp_path)) == 10
    assert [len(row) for row in result.accuracy_matrix] == [5] * 5
    assert result.memory.parameters == 478_410
    assert result.accuracy > 10


# The learner at the end


@pytest.mark.parametrize("method", LEARNERS)
def test_the_learner_that_is_kept_is_the_one_trained_by_hand(data: Dataset, tmp_path: Path, method: str) -> None:
    chosen = config(method, seed=3)
    stream = Stream(data, chosen.stream, seed=3)

    def fresh() -> Learner:
        network = chosen.network.build(data.input_shape, 4)
        return chosen.learner.for_stream(stream.task_lengths).build(network, 3)

    torch.manual_seed(3)
    by_hand = fresh()
    for task in stream:
        if by_hand.waits_for_boundaries:
            by_hand.boundary()
        for batch in task:
            by_hand.observe(*batch)
    run("own/bars", chosen, data, tmp_path / "run", keep_learner=True)
    save(by_hand, tmp_path / "by hand")
    assert checksum(tmp_path / "run" / "learner.safetensors") == checksum(tmp_path / "by hand")

    kept = fresh()
    load(kept, tmp_path / "run" / "learner.safetensors")
    x, y = next(iter(stream[0]))
    assert torch.equal(kept.predict(x), by_hand.predict(x))
    assert kept.observe(x, y) == by_hand.observe(x, y)


def test_no_learner_is_kept_unless_it_is_asked_for(data: Dataset, tmp_path: Path) -> None:
    plain = run("own/bars", config("arm"), data, tmp_path / "plain")
    kept = run("own/bars", config("arm"), data, tmp_path / "kept", keep_learner=True)
    assert names(tmp_path / "plain") == FINISHED
    assert names(tmp_path / "kept") == FINISHED | {"learner.safetensors"}
    assert dataclasses.replace(plain, seconds=Seconds()) == dataclasses.replace(kept, seconds=Seconds())


# The same again


def test_the_same_seed_gives_the_same_files(data: Dataset, tmp_path: Path, method: str) -> None:
    for place in ("first", "second"):
        run("own/bars", config(method), data, tmp_path / place)
        torch.rand(7)  # what others draw does not matter
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_another_seed_gives_other_numbers(data: Dataset, tmp_path: Path, method: str) -> None:
    fixed = StreamConfig(2, order_seed=0)  # so that the initial weights and the learner's draws alone differ
    for seed in (0, 1):
        run("own/bars", config(method, stream=fixed, seed=seed), data, tmp_path / str(seed))
    assert history(tmp_path / "0")[0] != history(tmp_path / "1")[0]


def test_neither_a_folder_nor_an_observer_changes_the_result(data: Dataset, tmp_path: Path, method: str) -> None:
    plain = run("own/bars", config(method), data)
    watched = run("own/bars", config(method), data, tmp_path, Told())
    assert dataclasses.replace(plain, seconds=Seconds()) == dataclasses.replace(watched, seconds=Seconds())


def test_all_learners_see_the_same_stream(data: Dataset, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    observe = Learner.observe

    def noted(self: Learner, x: Tensor, y: Tensor) -> dict[str, float]:
        seen.append((x.clone(), y.clone()))
        return observe(self, x, y)

    monkeypatch.setattr(Learner, "observe", noted)
    pool = StreamConfig(2, class_pool=(40, 80, 60, 30))
    run("own/bars", config(method, stream=pool, fraction=0.8, seed=4), data)
    expected = [batch for task in Stream(data, pool, 0.8, seed=4) for batch in task]
    for (x, y), (expected_x, expected_y) in zip(seen, expected, strict=True):
        assert torch.equal(x, expected_x)
        assert torch.equal(y, expected_y)


@pytest.mark.filterwarnings("ignore:class 2 is new")  # which is noticed, because nobody is told here
@pytest.mark.parametrize(("policy", "count"), [("every", 0), ("novel", 0), ("boundary", 2)])
def test_only_a_learner_that_asks_for_boundaries_is_told_of_them(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, policy: str, count: int
) -> None:
    told: list[Learner] = []
    monkeypatch.setattr(Learner, "boundary", lambda self: told.append(self))
    lag = LagConfig(policy=policy)  # type: ignore[arg-type]
    run("own/bars", config(LwFConfig(0.05, lag=lag)), data)
    assert len(told) == count


# What a run leaves as found


@pytest.fixture
def as_found() -> Iterator[None]:
    """Threads, random state and working directory are after the test what they were before."""

    def state() -> tuple[object, ...]:
        drawn = torch.get_rng_state().tolist(), random.getstate()
        return torch.get_num_threads(), torch.get_default_dtype(), Path.cwd(), *drawn

    found = state()
    yield
    assert state() == found


class Told(Observer):
    """Notes the threads that torch has meanwhile."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        self.threads.add(torch.get_num_threads())


@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize("threads", [1, 2, 6, None])
def test_threads_and_random_state_are_left_as_found(data: Dataset, threads: int | None) -> None:
    told = Told()
    run("own/bars", config("arm", threads=threads, fraction=0.5), data, None, told)
    # Half of them, so that another network can run beside it.
    assert told.threads == {max(1, (threads or cores()) // 2)}


@pytest.mark.usefixtures("as_found")
def test_threads_and_random_state_are_left_as_found_by_runs_that_fail(data: Dataset) -> None:
    with pytest.raises(ConfigError):
        run("own/bars", config(device="nonsense", threads=6), data)
    with pytest.raises(StoppedError):
        run("own/bars", config(NaiveConfig(1e30), threads=6), data)


def test_a_run_does_not_change_the_data(data: Dataset, method: str) -> None:
    found = data.fingerprint()
    run("own/bars", config(method), data)
    assert data.fingerprint() == found


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
    assert run("own/bars", config(), lacking(data, "val")).steps == STEPS


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"device": "nonsense"}, "device is 'nonsense', which torch cannot use here"),
        ({"device": ""}, "device is '', which torch cannot use here"),
        ({"device": "meta"}, "device is 'meta', which torch cannot use here"),
        ({"device": "cuda:99"}, "device is 'cuda:99', which torch cannot use here"),
        ({"device": "hpu"}, "device is 'hpu', which torch cannot use here"),
        ({"stream": StreamConfig(5)}, "stream.classes_per_task is 5 but the data have 4 classes"),
        ({"stream": StreamConfig(2, class_pool=(9, 9))}, "stream.class_pool is (9, 9) but the classes have"),
        ({"stream": StreamConfig(2, class_order=(0, 1))}, "stream.class_order is (0, 1); expected each of 0 to 3"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    data: Dataset, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    chosen = config(**changes)
    with pytest.raises(ConfigError) as caught:
        run("own/bars", chosen, data, tmp_path / "run")
    assert str(caught.value).startswith(sentence)
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"network": ResNet18Config()}, ConfigError, "^resnet18 needs images"),
        ({"learner": LEARNERS["arm"], "network": MLPConfig((8,))}, InputError, "total_variation"),
    ],
    ids=["by the network", "by the learner"],
)
def test_inputs_that_are_refused_leave_no_folder(
    tmp_path: Path, changes: dict[str, object], error: type[AutorecallError], sentence: str
) -> None:
    vectors, labels = np.random.default_rng(0).random((40, 9), dtype=np.float32), np.arange(40) % 4
    chosen, data = config(**changes), from_arrays((vectors, labels), (vectors, labels))
    with pytest.raises(error, match=sentence):
        run("own/vectors", chosen, data, tmp_path / "run")
    assert names(tmp_path) == set()


# Folders that cannot be written to


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
    with pytest.raises(StoppedError, match=r"^cannot write .*config\.json: No space left on device.*to start over$"):
        run("own/bars", config(), data, tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("place", [0, 20])
def test_a_history_that_cannot_be_written_is_one_sentence(data: Dataset, tmp_path: Path, place: int) -> None:
    """The system refuses to write more to any file, as on a full disk: nothing at all, or after the first rows."""

    class Full(Observer):
        def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
            limit = (tmp_path / "history.csv").stat().st_size + place
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, found[1]))

    found = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(StoppedError, match=r"^cannot write .*history\.csv: .*, then run again to start over$"):
            run("own/bars", config(), data, tmp_path, Full())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, found)
    run("own/bars", config(), data, tmp_path)
    assert [row["step"] for row in history(tmp_path)] == [str(step + 1) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("tasks", "points", "count"),
    [(1001, 50, "2,004,002"), (1000, 1000, "2,001,000"), (500, 10_000, "5,250,500"), (1415, 0, "2,002,225")],
)
def test_more_accuracies_than_could_be_read_again_are_refused(
    tmp_path: Path, tasks: int, points: int, count: str
) -> None:
    labels = np.arange(tasks)
    inputs = np.zeros((tasks, 2), dtype=np.float32)
    many = from_arrays((inputs, labels), (inputs, labels))
    sentence = (
        f"the stream has {tasks:,} tasks and curve_points is {points:,}, which takes {count} accuracies; expected 2"
    )
    with pytest.raises(ConfigError, match=sentence):
        run("own/many", config(stream=StreamConfig(1), curve_points=points), many, tmp_path)
    assert not any(tmp_path.iterdir())


def test_as_many_tasks_as_are_admitted_begin() -> None:
    labels = np.arange(1000)
    inputs = np.zeros((1000, 2), dtype=np.float32)
    many = from_arrays((inputs, labels), (inputs, labels))
    with pytest.raises(InterruptedRunError, match="interrupted at step 1 of 1000"):
        run("own/many", config(stream=StreamConfig(1), curve_points=999), many, stop=lambda: True)


def test_as_many_accuracies_as_are_admitted_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of them, each as long as one can be, in files of a hundredth of the size."""
    monkeypatch.setattr(files, "LARGEST_JSON", files.LARGEST_JSON // 100)
    monkeypatch.setattr(state_file, "LARGEST_HEADER", state_file.LARGEST_HEADER // 100)
    tasks = 100
    assert 2 * tasks**2 == MOST_ACCURACIES // 100
    row = [1.2345678901234567e-05] * tasks
    status = RunStatus("own/many", config(), "", 1, {}, steps=tasks)
    status.matrix, status.curve = [row] * tasks, [Point(step, row) for step in range(1, tasks + 1)]
    write_state(tmp_path / "state", checkpoint(status, Extent.of(b"step,task\n100,1\n"), {}))
    assert mapping(mapping(read_state(tmp_path / "state"))["run"])["matrix"] == status.matrix
    none, matrix = MemoryCount(0, 0.0, 0, 0.0), status.matrix
    result = Result("own/many", 0, "test", 1.0, 1.0, matrix, none, tasks, Seconds(), {}, {}, curve=status.curve)
    files.write_json(tmp_path / "result.json", as_json(result))
    assert read_result(tmp_path / "result.json") == result
