"""The paper's tables, typed in again by hand, against the presets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from autorecall import (
    GEN,
    ADIConfig,
    ARMConfig,
    ERConfig,
    ERMIRConfig,
    GEMConfig,
    GENConfig,
    GENMIRConfig,
    ICaRLConfig,
    LagConfig,
    LwFConfig,
    NaiveConfig,
)
from autorecall.data import Dataset, Split
from autorecall.errors import ConfigError
from autorecall.networks import ConvVAEConfig, GatedMLPConfig, MLPVAEConfig, ResNet18Config
from autorecall.presets import DEFAULT, PRESETS, Published, preset
from autorecall.storage.schema import differences
from autorecall.stream import Stream

DATASETS = ("mnist", "cifar10", "miniimagenet")
METHODS = ("naive", "stationary", "lwf", "arm")

# Training images per class, classes, tasks, iterations per task.
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


def test_every_row_of_the_papers_tables_is_a_preset() -> None:
    assert {name for name, row in PRESETS.items() if row.published is not None} == {*FIGURES}
    assert DEFAULT == "mnist/arm"
    for name, row in PRESETS.items():
        assert row.config.dataset == name.split("/")[0]
        assert preset(name) is row


@pytest.mark.parametrize("name", ["mnist", "mnist/", "mnist/ewc", "", "MNIST/arm", "mnist/arm "])
def test_an_unknown_preset_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^there is no preset '.*'; see `autorecall list`"):
        preset(name)


# Tables 1, 3 and 4 of the paper, its second table and its ablations: accuracy ±, forgetting ±, what ± is.
DEVIATION = "standard deviation, 5 runs"
ERROR = "standard error, 20 runs"
LIKELY = "not stated, most likely twice the standard error"
LIKELY_ONCE = "not stated, most likely the standard error"
Figures = tuple[float, float, float | None, float | None, str]
FIGURES: dict[str, Figures] = {
    "mnist/stationary": (87.1, 0.6, None, None, DEVIATION),
    "mnist/er-50": (62.8, 3.1, 42.0, 3.7, LIKELY),
    "mnist/er-mir-50": (63.8, 4.6, 40.6, 5.9, LIKELY),
    "mnist/er-25": (51.6, 2.7, 57.0, 3.3, LIKELY),
    "mnist/er-mir-25": (51.6, 2.6, 56.4, 3.3, LIKELY),
    "mnist/naive": (18.8, 0.5, 95.6, 2.7, DEVIATION),
    "mnist/gen": (79.3, 0.6, 19.5, 0.8, ERROR),
    "mnist/gen-mir": (82.1, 0.3, 17.0, 0.4, ERROR),
    "mnist/lwf": (33.3, 2.5, 58.0, 1.7, DEVIATION),
    "mnist/adi": (55.4, 2.6, 11.5, 5.0, DEVIATION),
    "mnist/arm": (56.3, 2.6, 21.8, 1.6, DEVIATION),
    "cifar10/stationary": (55.2, 5.0, None, None, DEVIATION),
    "cifar10/er-200": (27.5, 1.2, 50.5, 2.4, LIKELY),
    "cifar10/er-mir-200": (29.8, 1.1, 50.2, 2.0, LIKELY),
    "cifar10/icarl": (28.6, 1.2, 49.0, 2.4, LIKELY),
    "cifar10/gem": (16.8, 1.1, 73.5, 1.7, LIKELY),
    "cifar10/er-100": (22.4, 1.1, 66.2, 6.2, LIKELY),
    "cifar10/er-mir-100": (23.6, 0.9, 61.4, 1.8, LIKELY),
    "cifar10/naive": (15.0, 3.1, 69.4, 4.7, DEVIATION),
    "cifar10/gen": (15.3, 0.5, 61.3, 5.1, LIKELY_ONCE),
    "cifar10/gen-mir": (15.3, 1.2, 61.0, 1.2, LIKELY_ONCE),
    "cifar10/lwf": (19.2, 0.3, 60.9, 3.9, DEVIATION),
    "cifar10/adi": (24.8, 0.9, 12.0, 4.5, DEVIATION),
    "cifar10/arm": (26.4, 1.2, 8.07, 5.2, DEVIATION),
    "cifar10/lwf-unit-lag": (15.8, 2.6, None, None, DEVIATION),
    "cifar10/adi-unit-lag": (14.4, 1.6, None, None, DEVIATION),
    "cifar10/arm-unit-lag": (16.3, 1.8, None, None, DEVIATION),
    "cifar10/adi-no-distill": (20.0, 0.8, None, None, DEVIATION),
    "cifar10/arm-no-distill": (24.4, 1.7, None, None, DEVIATION),
    "cifar10/ablation-no-avoidance": (22.8, 1.8, 29.1, 2.0, DEVIATION),
    "cifar10/ablation-no-diversity": (15.3, 1.3, 4.17, 0.9, DEVIATION),
    "cifar10/ablation-no-uncertainty": (25.7, 2.0, 6.69, 5.4, DEVIATION),
    "cifar10/ablation-no-l2-norm": (25.8, 1.2, 6.95, 5.1, DEVIATION),
    "cifar10/ablation-no-total-variation": (26.4, 1.7, 6.36, 3.7, DEVIATION),
    "cifar10/ablation-150-images": (26.3, 0.9, 16.5, 5.5, DEVIATION),
    "cifar10/ablation-50-images": (24.4, 1.2, 5.71, 4.5, DEVIATION),
    "cifar10/ablation-20-steps": (25.1, 1.1, 8.11, 7.2, DEVIATION),
    "cifar10/ablation-5-steps": (24.6, 1.5, 13.5, 8.4, DEVIATION),
    "cifar10/ablation-cross-entropy": (24.6, 1.2, 24.9, 5.2, DEVIATION),
    "cifar10/ablation-noise": (16.0, 1.4, 4.00, 1.1, DEVIATION),
    "cifar10/ablation-recall-2-times": (17.5, 0.6, 0.57, 0.5, DEVIATION),
    "cifar10/ablation-recall-4-times": (17.4, 1.0, 0.44, 0.9, DEVIATION),
    "miniimagenet/stationary": (25.2, 4.7, None, None, DEVIATION),
    "miniimagenet/er-500": (5.60, 0.4, 55.2, 1.2, LIKELY),
    "miniimagenet/er-mir-500": (5.40, 0.4, 55.8, 0.9, LIKELY),
    "miniimagenet/er-100": (4.20, 0.4, 58.6, 0.9, LIKELY),
    "miniimagenet/er-mir-100": (4.00, 0.0, 59.2, 0.9, LIKELY),
    "miniimagenet/naive": (3.80, 0.2, 51.2, 2.0, DEVIATION),
    "miniimagenet/gen": (2.33, 0.3, 34.3, 0.7, LIKELY_ONCE),
    "miniimagenet/gen-mir": (2.00, 0.0, 35.3, 0.5, LIKELY_ONCE),
    "miniimagenet/lwf": (4.89, 0.2, 41.6, 1.6, DEVIATION),
    "miniimagenet/adi": (2.99, 0.6, 8.11, 2.1, DEVIATION),
    "miniimagenet/arm": (5.53, 0.8, 11.9, 2.7, DEVIATION),
}


@pytest.mark.parametrize("name", FIGURES)
def test_published_figures_are_the_papers(name: str) -> None:
    assert PRESETS[name].published == Published(*FIGURES[name])


# Facts of the implementations behind the figures.
@pytest.mark.parametrize(
    ("name", "images", "candidates", "steps", "input_range", "remembers"),
    [
        ("mnist/er-50", 50, None, 1, "unit", False),
        ("mnist/er-25", 25, None, 1, "unit", False),
        ("mnist/er-mir-50", 50, 50, 1, "unit", True),
        ("mnist/er-mir-25", 25, 50, 1, "unit", True),
        ("cifar10/er-200", 200, None, 1, "symmetric", False),
        ("cifar10/er-100", 100, None, 1, "symmetric", False),
        ("cifar10/er-mir-200", 200, 50, 1, "symmetric", False),
        ("cifar10/er-mir-100", 100, 50, 1, "symmetric", False),
        ("miniimagenet/er-500", 500, None, 3, "symmetric", False),
        ("miniimagenet/er-100", 100, None, 3, "symmetric", False),
        ("miniimagenet/er-mir-500", 500, 25, 3, "symmetric", False),
        ("miniimagenet/er-mir-100", 100, 25, 3, "symmetric", False),
    ],
)
def test_settings_of_replay_are_the_published_ones(
    name: str, images: int, candidates: int | None, steps: int, input_range: str, remembers: bool
) -> None:
    config = PRESETS[name].config
    learner = config.learner
    assert isinstance(learner, ERConfig)
    assert (learner.kept_images, learner.steps_per_batch, learner.input_range) == (images, steps, input_range)
    assert (learner.learning_rate, learner.replayed) == (0.1, 10)
    found = (learner.candidates, learner.remember_outputs) if isinstance(learner, ERMIRConfig) else (None, False)
    assert found == (candidates, remembers)
    if isinstance(config.network, ResNet18Config):
        assert config.network.stem_momentum == 0.1
    assert (
        sum(len(task.order) * task.passes for task in stream(name))
        == {
            "mnist": 5000,
            "cifar10": 47500,
            "miniimagenet": 45600,  # once, with three steps per batch
        }[config.dataset]
    )


@pytest.mark.parametrize(
    ("name", "rate", "recall_rate", "images", "real", "divergence", "statistics", "every"),
    [
        ("mnist/adi", 0.05, 25.0, 10, 0.5, 1.0, 0.0, None),
        ("cifar10/adi", 0.01, 10.0, 100, 1.0, 1.0, 0.1, None),
        ("miniimagenet/adi", 0.01, 10.0, 100, 2.0, 1.0, 0.1, None),
        ("cifar10/adi-unit-lag", 0.01, 10.0, 100, 1.0, 8.0, 0.1, 1),
        ("cifar10/adi-no-distill", 0.01, 10.0, 100, 0.0, 1.0, 0.1, None),
    ],
)
def test_settings_of_adi_are_the_published_ones(
    name: str,
    rate: float,
    recall_rate: float,
    images: int,
    real: float,
    divergence: float,
    statistics: float,
    every: int | None,
) -> None:
    learner = PRESETS[name].config.learner
    assert isinstance(learner, ADIConfig)
    assert (learner.learning_rate, learner.recall_rate, learner.recalled_images, learner.ascent_steps) == (
        rate,
        recall_rate,
        images,
        10,
    )
    assert (learner.class_loss, learner.l2_norm, learner.total_variation) == (1.0, 1.0, 1.0)
    assert (learner.real_weight, learner.divergence, learner.batch_statistics) == (real, divergence, statistics)
    assert learner.lag == LagConfig("every", every)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters", "groups"),
    [
        ("mnist/gen", (1, 28, 28), 10, 1_144_156, 4),
        ("mnist/gen-mir", (1, 28, 28), 10, 1_078_108, 10),
        ("cifar10/gen", (3, 32, 32), 10, 8_631_980, 10),
        ("cifar10/gen-mir", (3, 32, 32), 10, 9_502_580, 4),
        ("miniimagenet/gen", (3, 84, 84), 100, 27_063_182, 1),
        ("miniimagenet/gen-mir", (3, 84, 84), 100, 27_063_182, 2),
    ],
)
def test_generative_replay_keeps_as_many_parameters_as_the_paper_says(
    name: str, shape: tuple[int, ...], classes: int, parameters: int, groups: int
) -> None:
    """4.58, 4.31, 34.5, 38.0, 108 and 108 MB; M is ten times the number of groups."""
    config = PRESETS[name].config
    settings = config.learner
    assert isinstance(settings, GENConfig)
    assert settings.groups == groups
    learner = (
        replace(settings, steps_per_batch=1, groups=1).for_stream((1, 1)).build(config.network.build(shape, classes), 0)
    )
    assert isinstance(learner, GEN)
    x = torch.rand(2, *shape)
    shown = learner.prepare(x)
    vae = settings.vae.build(tuple(shown.shape[1:]))
    kept = 2 * sum(p.numel() for p in vae.parameters()) + sum(p.numel() for p in learner.network.parameters())
    assert kept == parameters


@pytest.mark.parametrize(
    ("name", "rate", "steps", "weight", "latents", "vae"),
    [
        ("mnist/gen", 0.01, 15, 3.0, 50, MLPVAEConfig(50, 2, 128, 0.0)),
        ("mnist/gen-mir", 0.01, 15, 3.0, 50, MLPVAEConfig(50, 1, 128, 0.4)),
        ("cifar10/gen", 0.1, 1, 1.0, 50, ConvVAEConfig),
        ("cifar10/gen-mir", 0.1, 1, 1.0, 100, ConvVAEConfig),
        ("miniimagenet/gen", 0.1, 1, 1.0, 100, ConvVAEConfig),
        ("miniimagenet/gen-mir", 0.1, 1, 1.0, 100, ConvVAEConfig),
    ],
)
def test_settings_of_generative_replay_are_the_published_ones(
    name: str, rate: float, steps: int, weight: float, latents: int, vae: MLPVAEConfig | type[ConvVAEConfig]
) -> None:
    config = PRESETS[name].config
    learner = config.learner
    assert isinstance(learner, GENConfig)
    assert (learner.learning_rate, learner.steps_per_batch, learner.replay_weight) == (rate, steps, weight)
    assert (learner.warm_up, learner.kl_weight, learner.vae.latents) == (1000, 1.0, latents)
    assert learner.vae == vae if isinstance(vae, MLPVAEConfig) else isinstance(learner.vae, vae)
    assert learner.input_range == ("unit" if config.dataset == "mnist" else "symmetric")
    assert isinstance(config.network, GatedMLPConfig if config.dataset == "mnist" else ResNet18Config)
    assert isinstance(learner, GENMIRConfig) == name.endswith("mir")
    if isinstance(learner, GENMIRConfig):
        assert (learner.ascent_steps, learner.ahead_rate) == (10, rate)
        assert (learner.interference, learner.certainty, learner.diversity) == (0.1, 1.0, 1.0)


def test_gem_and_icarl_keep_200_images_and_icarl_makes_five_steps_per_batch() -> None:
    gem, icarl = PRESETS["cifar10/gem"].config.learner, PRESETS["cifar10/icarl"].config.learner
    assert isinstance(gem, GEMConfig)
    assert isinstance(icarl, ICaRLConfig)
    assert (gem.kept_images, icarl.kept_images, icarl.steps_per_batch) == (200, 200, 5)


# Every row of the ablation makes one change from cifar10/arm.
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("ablation-no-avoidance", {"teacher_avoidance": 0.0, "student_avoidance": 0.0}),
        ("ablation-no-diversity", {"diversity": 0.0}),
        ("ablation-no-uncertainty", {"uncertainty": 0.0}),
        ("ablation-no-l2-norm", {"l2_norm": 0.0}),
        ("ablation-no-total-variation", {"total_variation": 0.0}),
        ("ablation-150-images", {"recalled_images": 150}),
        ("ablation-50-images", {"recalled_images": 50}),
        ("ablation-20-steps", {"ascent_steps": 20}),
        ("ablation-5-steps", {"ascent_steps": 5}),
        ("ablation-cross-entropy", {"divergence_form": "cross-entropy"}),
        ("ablation-noise", {"initial": "noise"}),
        ("ablation-recall-2-times", {"repeats": 2, "accumulate_repeats": True}),
        ("ablation-recall-4-times", {"repeats": 4, "accumulate_repeats": True}),
        ("arm-unit-lag", {"divergence": 8.0, "lag.every": 1}),
        ("arm-no-distill", {"real_weight": 0.0, "uncertainty": 1.0}),
    ],
)
def test_variants_of_arm_change_what_their_name_says(name: str, changed: dict[str, object]) -> None:
    found = differences(PRESETS[f"cifar10/{name}"].config, PRESETS["cifar10/arm"].config)
    assert found == {f"learner.{field}": value for field, value in changed.items()}


@pytest.mark.parametrize(("part", "starts"), [(1.0, 950), (0.1, 95)])
@pytest.mark.parametrize("method", ["lwf", "adi", "arm"])
def test_unit_lag_recalls_from_the_second_task_on(method: str, part: float, starts: int) -> None:
    learner = PRESETS[f"cifar10/{method}-unit-lag"].config.learner
    assert isinstance(learner, ARMConfig | ADIConfig | LwFConfig)
    lag = learner.lag.for_stream(stream(f"cifar10/{method}-unit-lag", fraction=part).task_lengths)
    assert (lag.every, lag.start) == (1, starts)


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
    assert (learner.ascent_steps, learner.recalled_images) == (steps, images)
    assert (learner.divergence_form, learner.divergence) == ("mixture-first", 1.0)
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
    assert isinstance(learner, LwFConfig)
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
    assert isinstance(learner, ARMConfig | LwFConfig)
    assert learner.lag == LagConfig(policy="every", every=None, start=None)
    made = stream(f"{dataset}/{method}", fraction=part)
    expected = {1.0: (100, 950, 684), 0.1: (10, 95, 69)}[part][DATASETS.index(dataset)]
    lag = learner.lag.for_stream(made.task_lengths)
    assert (lag.policy, lag.every, lag.start) == ("every", expected, expected)


@pytest.mark.parametrize(("dataset", "fixed"), [("mnist", False), ("cifar10", True), ("miniimagenet", True)])
def test_only_the_order_of_mnist_changes_with_the_seed(dataset: str, fixed: bool) -> None:
    first, second = stream(f"{dataset}/arm", seed=0)[0], stream(f"{dataset}/arm", seed=1)[0]
    assert bool(np.array_equal(first.order, second.order)) is fixed


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_stream_is_the_same_whatever_the_learner(dataset: str) -> None:
    """Except for the upper bound, and passes over a task that some learners take at once, as steps per batch."""
    streams = {
        replace(row.config.stream, passes=1)
        for name, row in PRESETS.items()
        if name.startswith(dataset + "/") and not name.endswith("/stationary")
    }
    assert len(streams) == 1


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
