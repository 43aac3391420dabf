"""Recall on linear networks, where one ascent step can be written down by hand, seen through `ARM.on_recall`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autorecall import ARM, ARMConfig, LagConfig
from autorecall.errors import ConfigError
from autorecall.learners import Recollection

Array = NDArray[np.float64]

SILENT = ARMConfig(
    images=3,
    steps=1,
    recall_rate=5.0,
    divergence_weight=0.0,
    teacher_avoidance=0.0,
    student_avoidance=0.0,
    diversity=0.0,
    uncertainty=0.0,
    l2_norm=0.0,
    total_variation=0.0,
    lag=LagConfig("every", every=1, start=0),
)
"""No term has a weight: recalled images stay where they start."""

X = torch.tensor([[0.2, 0.9, 0.4, 0.1], [0.7, 0.3, 0.8, 0.5], [0.6, 0.1, 0.2, 0.9]], dtype=torch.float64)
Y = torch.tensor([1, 2, 1])
ONE_HOT = np.eye(4)


def linear(shape: tuple[int, ...] = (4,)) -> nn.Module:
    """Logits W·x without bias, four classes."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 4, bias=False)).double()


def recalled_from(network: nn.Module, config: ARMConfig, x: Tensor = X, y: Tensor = Y) -> Recollection:
    """What one observe recalls."""
    given: list[Recollection] = []
    learner = ARM(network, config)
    learner.on_recall = given.append
    learner.observe(x, y)
    (recollection,) = given
    return recollection


def images_of(recollection: Recollection) -> Tensor:
    return recollection.recalled.images


def origins_of(recollection: Recollection) -> Tensor:
    assert recollection.recalled.origins is not None
    return recollection.recalled.origins


def in_order(recollection: Recollection) -> Tensor:
    """Recalled images in the order of the real ones they started from."""
    return images_of(recollection)[origins_of(recollection).argsort()]


def softmax(logits: Array) -> Array:
    exponentials = np.exp(logits)
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def hand_made_gradients(teacher: Array, rate: float) -> dict[str, Array]:
    """∂/∂x of every term's sum over images, for logits W·x: the student is the teacher after one step on the batch."""
    x, labels = X.numpy(), Y.numpy()
    student = teacher - rate * (softmax(x @ teacher.T) - ONE_HOT[labels]).T @ x / len(x)
    p, q = softmax(x @ teacher.T), softmax(x @ student.T)

    def through_softmax(slope: Array, outputs: Array, weights: Array) -> Array:
        """Σ_c slope_c · ∂p_c/∂x, where ∂p_c/∂x = p_c·(W_c − Σ_k p_k W_k)."""
        inner = outputs * (slope - (slope * outputs).sum(1, keepdims=True))
        return np.asarray(inner @ weights)

    present = ONE_HOT[[1, 2]].mean(0)
    mean = p.mean(0)
    m = (p + q) / 2
    # ∂/∂p of ½·[Σ m log(m/p) + Σ m log(m/q)] is ½·[½·log(m/p) + ½·log(m/q) + 1 − m/p], and the same for q.
    both = 0.5 * (np.log(m / p) + np.log(m / q))
    mixture_first = through_softmax(0.5 * (both + 1 - m / p), p, teacher) + through_softmax(
        0.5 * (both + 1 - m / q), q, student
    )
    # ∂/∂p of ½·[Σ p log(p/m) + Σ q log(q/m)] is ½·log(p/m): the other parts cancel.
    jensen_shannon = through_softmax(0.5 * np.log(p / m), p, teacher) + through_softmax(0.5 * np.log(q / m), q, student)
    cross_entropy = through_softmax(-np.log(q), p, teacher) + (q - p) @ student
    return {
        "mixture-first": mixture_first,
        "jensen-shannon": jensen_shannon,
        "cross-entropy": cross_entropy,
        "teacher_avoidance": (p - present) @ teacher,
        "student_avoidance": (q - present) @ student,
        "diversity": through_softmax(-(np.log(mean) + 1) * np.ones_like(p), p, teacher),
        "uncertainty": -(p - ONE_HOT[p.argmax(1)]) @ teacher,
        "l2_norm": -x / np.linalg.norm(x, axis=1, keepdims=True) / x.shape[1],
    }


@pytest.mark.parametrize("engine", ["fast", "plain"])
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("mixture-first", replace(SILENT, divergence_weight=1.0)),
        ("jensen-shannon", replace(SILENT, divergence_weight=1.0, divergence="jensen-shannon")),
        ("cross-entropy", replace(SILENT, divergence_weight=1.0, divergence="cross-entropy")),
        ("teacher_avoidance", replace(SILENT, teacher_avoidance=1.0)),
        ("student_avoidance", replace(SILENT, student_avoidance=1.0)),
        ("diversity", replace(SILENT, diversity=1.0)),
        ("uncertainty", replace(SILENT, uncertainty=1.0)),
        ("l2_norm", replace(SILENT, l2_norm=1.0)),
    ],
)
def test_one_step_on_a_linear_network_is_the_one_done_by_hand(
    name: str, config: ARMConfig, engine: Literal["fast", "plain"]
) -> None:
    """x̂ = x + η1/M · ∂term/∂x, minus for the regularisers; the student has moved a good deal before it."""
    network = linear()
    teacher = network.state_dict()["1.weight"].numpy().copy()
    config = replace(config, learning_rate=2.0, engine=engine)
    expected = X.numpy() + config.recall_rate / config.images * hand_made_gradients(teacher, 2.0)[name]
    recollection = recalled_from(network, config)
    np.testing.assert_allclose(in_order(recollection).numpy(), expected, atol=1e-12)


def test_one_step_of_total_variation_draws_two_pixels_together() -> None:
    """For one row of two pixels the term is 2·(a − b)², with the gradient ±4·(a − b)."""
    x = torch.tensor([[[[0.9, 0.4]]]], dtype=torch.float64)
    config = replace(SILENT, images=1, recall_rate=0.01, total_variation=3.0)
    recollection = recalled_from(linear((1, 1, 2)), config, x, torch.tensor([0]))
    step = 0.01 * 3 * 4 * (0.9 - 0.4)
    np.testing.assert_allclose(in_order(recollection).flatten().numpy(), [0.9 - step, 0.4 + step], atol=1e-12)


def test_terms_add_up_by_their_weights() -> None:
    network = linear()
    gradients = hand_made_gradients(network.state_dict()["1.weight"].numpy().copy(), 2.0)
    config = replace(
        SILENT, learning_rate=2.0, divergence_weight=2.0, teacher_avoidance=0.5, diversity=3.0, uncertainty=0.25
    )
    total = (
        2 * gradients["mixture-first"]
        + 0.5 * gradients["teacher_avoidance"]
        + 3 * gradients["diversity"]
        + 0.25 * gradients["uncertainty"]
    )
    expected = X.numpy() + 5 / 3 * total
    np.testing.assert_allclose(in_order(recalled_from(network, config)).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("images", [1, 2, 3])
def test_recall_starts_from_different_real_images(images: int) -> None:
    recollection = recalled_from(linear(), replace(SILENT, images=images))
    origins = origins_of(recollection)
    assert len(set(origins.tolist())) == images
    assert torch.equal(images_of(recollection), X[origins])


@pytest.mark.parametrize("copies", ["collapse", "keep"])
def test_recall_of_more_images_than_real_ones_starts_from_real_ones(copies: Literal["collapse", "keep"]) -> None:
    recollection = recalled_from(linear(), replace(SILENT, images=50, copies=copies))
    assert len(images_of(recollection)) == (3 if copies == "collapse" else 50)
    assert recollection.recalled.total == 50
    assert {tuple(row) for row in images_of(recollection).tolist()} == {tuple(row) for row in X.tolist()}


def test_recall_from_noise_starts_uniform_and_owes_nothing_to_the_real_images() -> None:
    config = replace(SILENT, images=400, initial="noise")
    first, second = recalled_from(linear(), config), recalled_from(linear(), config, 1 - X)
    images = images_of(first)
    assert torch.equal(images, images_of(second))
    assert images.dtype == torch.float64
    assert images.shape == (400, 4)
    assert 0 <= float(images.min()) < 0.05
    assert 0.95 < float(images.max()) < 1
    assert float(images.mean()) == pytest.approx(0.5, abs=0.03)


def test_images_are_not_clipped() -> None:
    recollection = recalled_from(linear(), replace(SILENT, teacher_avoidance=1.0, recall_rate=500.0))
    images = images_of(recollection)
    assert bool((images < 0).any())
    assert bool((images > 1).any())


def test_more_images_take_smaller_steps() -> None:
    """The objective is a mean over M: one image moves by η1/M times its own gradient."""
    x, y = X[:1].expand(8, 4), Y[:1].expand(8)
    config = replace(SILENT, teacher_avoidance=1.0, recall_rate=1e-3)
    few = images_of(recalled_from(linear(), replace(config, images=2), x, y)) - X[0]
    many = images_of(recalled_from(linear(), replace(config, images=8), x, y)) - X[0]
    torch.testing.assert_close(few[0] / many[0], torch.full((4,), 4.0, dtype=torch.float64), rtol=1e-6, atol=0)


def test_more_steps_raise_the_objective() -> None:
    config = ARMConfig(images=3, recall_rate=0.05, total_variation=0.0, lag=LagConfig("every", every=1, start=0))
    values = [ARM(linear(), replace(config, steps=steps)).observe(X, Y)["objective"] for steps in (1, 2, 4, 8, 16)]
    assert values == sorted(set(values))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name",
    [
        "recall_rate",
        "divergence_weight",
        "teacher_avoidance",
        "student_avoidance",
        "diversity",
        "uncertainty",
        "l2_norm",
        "total_variation",
        "learning_rate",
        "recalled_weight",
        "real_weight",
    ],
)
def test_rates_and_weights_that_are_no_numbers_or_negative_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.{name} is {value}"):
        replace(SILENT, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["images", "steps", "repeats", "recall_rate", "learning_rate"])
def test_zero_is_refused_where_it_means_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.{name} is 0"):
        replace(SILENT, **{name: 0})  # type: ignore[arg-type]


def test_learning_from_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"recalled_weight and learner\.real_weight are both 0"):
        ARMConfig(recalled_weight=0.0, real_weight=0.0)


@pytest.mark.parametrize("name", ["divergence", "initial", "targets", "copies", "engine"])
def test_words_that_are_no_choice_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.{name} is"):
        replace(SILENT, **{name: "nonsense"})  # type: ignore[arg-type]
