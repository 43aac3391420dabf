"""The paper's tables, typed off again by hand, against the presets."""

from __future__ import annotations

import numpy as np
import pytest

from autorecall.data import Dataset, Split
from autorecall.errors import ConfigError
from autorecall.learners import ARMConfig, DistillConfig, LagConfig, NaiveConfig
from autorecall.presets import DEFAULT, PRESETS, Published, preset
from autorecall.stream import Stream

DATASETS = ("mnist", "cifar10", "miniimagenet")
METHODS = ("naive", "stationary", "lwf", "arm")

# Training images a class, classes, tasks, iterations a task.
STREAMS = {"mnist": (500, 10, 5, 100), "cifar10": (4750, 10, 5, 950), "miniimagenet": (456, 100, 20, 684)}


def labelled(dataset: str) -> Dataset:
    """The labels of the training set; its images are a single byte each."""
    each, classes, _, _ = STREAMS[dataset]
    labels = np.repeat(np.arange(classes), each)
    split = Split(np.zeros((len(labels), 1, 1, 1), dtype=np.uint8), labels)
    return Dataset(dataset, split, split, split, tuple(map(str, range(classes))))


def stream(name: str, seed: int = 0, fraction: float = 1.0) -> Stream:
    config = PRESETS[name].config
    return Stream(labelled(config.dataset), config.stream, fraction, seed)


def test_there_is_a_preset_for_each_method_on_each_dataset() -> None:
    assert list(PRESETS) == [f"{dataset}/{method}" for dataset in DATASETS for method in METHODS]
    assert DEFAULT == "mnist/arm"
    for name, row in PRESETS.items():
        assert row.config.dataset == name.split("/")[0]
        assert preset(name) is row


@pytest.mark.parametrize("name", ["mnist", "mnist/", "mnist/ewc", "", "MNIST/arm", "mnist/arm "])
def test_an_unknown_preset_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^there is no preset '.*'; expected one of those that"):
        preset(name)


# Tables 1, 3 and 4 of the paper: accuracy ±, forgetting ±.
@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("mnist/stationary", (87.1, 0.6, None, None)),
        ("mnist/naive", (18.8, 0.5, 95.6, 2.7)),
        ("mnist/lwf", (33.3, 2.5, 58.0, 1.7)),
        ("mnist/arm", (56.3, 2.6, 21.8, 1.6)),
        ("cifar10/stationary", (55.2, 5.0, None, None)),
        ("cifar10/naive", (15.0, 3.1, 69.4, 4.7)),
        ("cifar10/lwf", (19.2, 0.3, 60.9, 3.9)),
        ("cifar10/arm", (26.4, 1.2, 8.07, 5.2)),
        ("miniimagenet/stationary", (25.2, 4.7, None, None)),
        ("miniimagenet/naive", (3.80, 0.2, 51.2, 2.0)),
        ("miniimagenet/lwf", (4.89, 0.2, 41.6, 1.6)),
        ("miniimagenet/arm", (5.53, 0.8, 11.9, 2.7)),
    ],
)
def test_published_figures_are_the_papers(name: str, figures: tuple[float, float, float | None, float | None]) -> None:
    assert PRESETS[name].published == Published(*figures, spread="standard deviation, 5 runs")


# The paper's table "Hyperparameters", and M of its result tables.
@pytest.mark.parametrize(
    ("dataset", "eta0", "eta1", "recalled", "real", "lambdas", "steps", "images"),
    [
        ("mnist", 0.05, 25.0, 1.0, 1.0, (1.0, 0.1, 16.0, 0.1, 1.0, 1.0), 10, 10),
        ("cifar10", 0.01, 10.0, 1.0, 1.0, (1.0, 0.1, 16.0, 0.1, 1.0, 1.0), 10, 100),
        ("miniimagenet", 0.01, 10.0, 1.0, 2.0, (1.0, 0.1, 1.0, 1.0, 1.0, 1.0), 10, 100),
    ],
)
def test_hyper_parameters_of_arm_are_the_papers(
    dataset: str,
    eta0: float,
    eta1: float,
    recalled: float,
    real: float,
    lambdas: tuple[float, ...],
    steps: int,
    images: int,
) -> None:
    learner = PRESETS[f"{dataset}/arm"].config.learner
    assert isinstance(learner, ARMConfig)
    assert (learner.learning_rate, learner.recall_rate) == (eta0, eta1)
    assert (learner.recalled_weight, learner.real_weight) == (recalled, real)
    assert lambdas == (
        learner.teacher_avoidance,
        learner.student_avoidance,
        learner.diversity,
        learner.uncertainty,
        learner.l2_norm,
        learner.total_variation,
    )
    assert (learner.steps, learner.images) == (steps, images)
    assert (learner.divergence, learner.divergence_weight) == ("mixture-first", 1.0)
    assert (learner.initial, learner.targets, learner.repeats) == ("real", "soft", 1)


@pytest.mark.parametrize(("dataset", "rate"), [("mnist", 0.05), ("cifar10", 0.1), ("miniimagenet", 0.1)])
@pytest.mark.parametrize("method", ["naive", "stationary"])
def test_naive_rates_are_the_published_ones(dataset: str, method: str, rate: float) -> None:
    assert PRESETS[f"{dataset}/{method}"].config.learner == NaiveConfig(rate)


@pytest.mark.parametrize(
    ("dataset", "rate", "weight"), [("mnist", 0.05, 1.0), ("cifar10", 0.01, 1.0), ("miniimagenet", 0.01, 2.0)]
)
def test_lwf_settings_are_the_published_ones(dataset: str, rate: float, weight: float) -> None:
    learner = PRESETS[f"{dataset}/lwf"].config.learner
    assert isinstance(learner, DistillConfig)
    assert (learner.learning_rate, learner.weight) == (rate, weight)


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("method", ["naive", "lwf", "arm"])
def test_tasks_have_the_published_number_of_classes_and_iterations(dataset: str, method: str) -> None:
    each, classes, tasks, iterations = STREAMS[dataset]
    made = stream(f"{dataset}/{method}")
    per_task = classes // tasks
    assert [task.classes for task in made] == [
        tuple(range(first, first + per_task)) for first in range(0, classes, per_task)
    ]
    assert made.task_lengths == (iterations,) * tasks
    assert all(len(task.order) == each * per_task and task.batch_size == 10 for task in made)


@pytest.mark.parametrize("dataset", DATASETS)
def test_stationary_presets_mix_all_classes_for_as_many_iterations(dataset: str) -> None:
    _, classes, tasks, iterations = STREAMS[dataset]
    (task,) = stream(f"{dataset}/stationary")
    assert len(task.classes) == classes
    assert len(task) == tasks * iterations


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("method", ["lwf", "arm"])
@pytest.mark.parametrize("part", [1.0, 0.1])
def test_lag_and_start_of_recall_are_the_length_of_a_task_also_when_it_is_shortened(
    dataset: str, method: str, part: float
) -> None:
    learner = PRESETS[f"{dataset}/{method}"].config.learner
    assert isinstance(learner, ARMConfig | DistillConfig)
    assert learner.lag == LagConfig(policy="every", every=None, start=None)
    made = stream(f"{dataset}/{method}", fraction=part)
    expected = {1.0: (100, 950, 684), 0.1: (10, 95, 69)}[part][DATASETS.index(dataset)]
    lag = learner.lag.for_stream(made.task_lengths)
    assert (lag.policy, lag.every, lag.start) == ("every", expected, expected)


@pytest.mark.parametrize(("dataset", "fixed"), [("mnist", False), ("cifar10", True), ("miniimagenet", True)])
def test_only_the_order_of_mnist_changes_with_the_seed(dataset: str, fixed: bool) -> None:
    first, second = stream(f"{dataset}/arm", seed=0)[0], stream(f"{dataset}/arm", seed=1)[0]
    assert bool(np.array_equal(first.order, second.order)) is fixed


def test_the_pool_of_mnist_is_its_class_sizes_less_a_twentieth() -> None:
    whole = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    for name in ("mnist/naive", "mnist/lwf", "mnist/arm"):
        assert PRESETS[name].config.stream.class_pool == tuple(count - round(count / 20) for count in whole)


@pytest.mark.parametrize(
    ("dataset", "shape", "parameters"),
    [
        ("mnist", (1, 28, 28), 478_410),
        ("cifar10", (3, 32, 32), 1_094_750),
        ("miniimagenet", (3, 84, 84), 1_157_240),
    ],
)
def test_networks_have_the_published_number_of_parameters(
    dataset: str, shape: tuple[int, ...], parameters: int
) -> None:
    built = PRESETS[f"{dataset}/arm"].config.network.build(shape, STREAMS[dataset][1])
    assert sum(p.numel() for p in built.parameters()) == parameters
    assert all(
        PRESETS[f"{dataset}/{method}"].config.network == PRESETS[f"{dataset}/arm"].config.network for method in METHODS
    )


@pytest.mark.parametrize("name", PRESETS)
def test_presets_run_whole_on_the_test_set_with_seed_0(name: str) -> None:
    config = PRESETS[name].config
    assert (config.fraction, config.split, config.seed, config.device, config.image_size) == (
        1.0,
        "test",
        0,
        "cpu",
        None,
    )
