"""The one loop: one step on linear networks as done by hand, and many on others as the plain equations have them."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autorecall.errors import DivergedError
from autorecall.recall import reference
from autorecall.recall.ascent import Ascent
from autorecall.recall.batch import Recalled
from autorecall.recall.objective import TERMS, Disagreement, disagreement
from autorecall.recall.plan import Plans
from autorecall.recall.side_by_side import SideBySide
from autorecall.recall.terms import DivergenceForm

from .worlds import CLASSES, COUNTS, NETWORKS, assert_close, network_of, of_copies, some_images

Array = NDArray[np.float64]
Found = tuple[Recalled, dict[str, float]]

X = torch.tensor([[0.2, 0.9, 0.4, 0.1], [0.7, 0.3, 0.8, 0.5], [0.6, 0.1, 0.2, 0.9]], dtype=torch.float64)
PRESENT = torch.tensor([1, 2])
NOTHING = dict.fromkeys(TERMS, 0.0)
WEIGHTS = dict(zip(TERMS, (1.5, 0.7, 0.3, 1.2, -0.4, -0.9, -0.8), strict=True))


def linear(seed: int, inputs: int = 4, classes: int = 4) -> nn.Module:
    """Logits W·x without bias."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes, bias=False)).double()


def weights_of(network: nn.Module) -> Array:
    return np.asarray(network.state_dict()["1.weight"])


def objective_of(
    start: Recalled, weights: Mapping[str, float], form: DivergenceForm = "mixture-first", classes: int = 4
) -> Disagreement:
    return disagreement(start, weights, PRESENT, form, classes)


def ascended(
    student: nn.Module,
    teacher: nn.Module,
    start: Recalled,
    objective: Disagreement,
    steps: int = 1,
    rate: float = 5.0,
    threads: int = 1,
) -> Found:
    side_by_side = SideBySide()
    side_by_side.threads = threads
    return Ascent(student, teacher, start, objective, side_by_side, Plans()).climb(steps, rate)


def literally(
    student: nn.Module, teacher: nn.Module, start: Recalled, objective: Disagreement, steps: int, rate: float
) -> Found:
    return reference.Ascent(student, teacher, start, objective).climb(steps, rate)


# One step, by hand


def softmax(logits: Array) -> Array:
    exponentials = np.exp(logits)
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def hand_made_gradients(student: Array, teacher: Array, form: DivergenceForm) -> dict[str, Array]:
    """M times ∂/∂x of every term for one copy of each image, for logits W·x."""
    x, one_hot = X.numpy(), np.eye(4)
    p, q = softmax(x @ teacher.T), softmax(x @ student.T)

    def through_softmax(slope: Array, outputs: Array, weights: Array) -> Array:
        """Σ_c slope_c · ∂p_c/∂x, where ∂p_c/∂x = p_c·(W_c − Σ_k p_k W_k)."""
        inner = outputs * (slope - (slope * outputs).sum(1, keepdims=True))
        return np.asarray(inner @ weights)

    present = one_hot[PRESENT.tolist()].mean(0)
    mean = np.repeat(p, COUNTS.tolist(), axis=0).mean(0)
    m = (p + q) / 2
    # ∂/∂p of ½·[Σ m log(m/p) + Σ m log(m/q)] is ½·[½·log(m/p) + ½·log(m/q) + 1 − m/p], and the same for q.
    both = 0.5 * (np.log(m / p) + np.log(m / q))
    # ∂/∂p of ½·[Σ p log(p/m) + Σ q log(q/m)] is ½·log(p/m): the other parts cancel.
    divergence = {
        "mixture-first": through_softmax(0.5 * (both + 1 - m / p), p, teacher)
        + through_softmax(0.5 * (both + 1 - m / q), q, student),
        "jensen-shannon": through_softmax(0.5 * np.log(p / m), p, teacher)
        + through_softmax(0.5 * np.log(q / m), q, student),
        "cross-entropy": through_softmax(-np.log(q), p, teacher) + (q - p) @ student,
    }
    return {
        "divergence": divergence[form],
        "teacher_avoidance": (p - present) @ teacher,
        "student_avoidance": (q - present) @ student,
        "diversity": through_softmax(-(np.log(mean) + 1) * np.ones_like(p), p, teacher),
        "uncertainty": (p - one_hot[p.argmax(1)]) @ teacher,
        "l2_norm": x / np.linalg.norm(x, axis=1, keepdims=True) / x.shape[1],
    }


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("form", get_args(DivergenceForm))
@pytest.mark.parametrize("names", [*((name,) for name in TERMS[:-1]), TERMS[:-1]], ids="+".join)
def test_one_step_on_linear_networks_is_the_one_done_by_hand(names: tuple[str, ...], form: DivergenceForm) -> None:
    """x̂ = x + η1/M · Σ weight · ∂term/∂x: a copy moves by its own share, however many there are."""
    student, teacher, start = linear(3), linear(4), Recalled(X, COUNTS, None)
    by_hand = hand_made_gradients(weights_of(student), weights_of(teacher), form)
    expected = X.numpy() + 5 / 7 * sum(WEIGHTS[name] * by_hand[name] for name in names)
    weights = NOTHING | {name: WEIGHTS[name] for name in names}
    for way in (ascended, literally):
        recalled, _ = way(student, teacher, start, objective_of(start, weights, form), 1, 5.0)
        np.testing.assert_allclose(recalled.images.numpy(), expected, atol=1e-12)


@pytest.mark.usefixtures("installation")
def test_one_step_of_total_variation_draws_two_pixels_together() -> None:
    """For one row of two pixels the term is 2·(a − b)², with the gradient ±4·(a − b)."""
    start = Recalled(torch.tensor([[[[0.9, 0.4]]]], dtype=torch.float64), torch.tensor([1]), None)
    objective = objective_of(start, NOTHING | {"total_variation": -3.0})
    recalled, _ = ascended(linear(3, inputs=2), linear(4, inputs=2), start, objective, rate=0.01)
    step = 0.01 * 3 * 4 * (0.9 - 0.4)
    np.testing.assert_allclose(recalled.images.flatten().numpy(), [0.9 - step, 0.4 + step], atol=1e-12)


# Many steps


def pair_of(kind: str) -> tuple[nn.Module, nn.Module]:
    return network_of(kind, seed=0), network_of(kind, seed=1)


def states(*networks: nn.Module) -> list[dict[str, Tensor]]:
    return [dict(network.state_dict()) for network in networks]


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("form", get_args(DivergenceForm))
@pytest.mark.parametrize("kind", NETWORKS)
def test_many_steps_are_those_of_the_equations_on_literal_copies(kind: str, form: DivergenceForm) -> None:
    """Images, terms, and the running statistics of both networks."""
    theirs, of_copy = pair_of(kind), of_copies(COUNTS)
    copies = Recalled(some_images()[of_copy], torch.ones(7, dtype=torch.int64), None)
    expected, terms = literally(*theirs, copies, objective_of(copies, WEIGHTS, form, CLASSES), 4, 5.0)
    for way in (ascended, literally):
        ours, start = pair_of(kind), Recalled(some_images(), COUNTS, None)
        found, values = way(*ours, start, objective_of(start, WEIGHTS, form, CLASSES), 4, 5.0)
        assert_close(found.images[of_copy], expected.images)
        assert_close(values, terms)
        assert_close(states(*ours), states(*theirs))


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_side_by_side_give_the_same_bits_as_one_after_the_other(kind: str) -> None:
    start, found = Recalled(some_images(), COUNTS, None), []
    for threads in (1, 2):
        networks = pair_of(kind)
        recalled, values = ascended(*networks, start, objective_of(start, WEIGHTS, classes=CLASSES), 4, threads=threads)
        found.append((recalled.images, values, states(*networks)))
    assert_close(found[1], found[0], 0)


@pytest.mark.usefixtures("installation")
def test_more_steps_raise_the_objective() -> None:
    start = Recalled(X, COUNTS, None)
    reached = [
        ascended(linear(3), linear(4), start, objective_of(start, WEIGHTS), n, 0.05)[1] for n in (1, 2, 4, 8, 16)
    ]
    values = [step["objective"] for step in reached]
    assert values == sorted(set(values))


@pytest.mark.usefixtures("installation")
def test_images_are_not_clipped() -> None:
    start = Recalled(X, COUNTS, None)
    images = ascended(linear(3), linear(4), start, objective_of(start, WEIGHTS), rate=500.0)[0].images
    assert images.min() < 0
    assert images.max() > 1


@pytest.mark.usefixtures("installation")
def test_nothing_but_the_images_changes_or_gets_a_gradient() -> None:
    """Running statistics aside, which move in train mode: here one network is in eval mode, and one half of another."""
    student, teacher = pair_of("resnet")
    student.eval()
    teacher.get_submodule("stages.0").eval()
    modes = [module.training for network in (student, teacher) for module in network.modules()]
    before, start = copy.deepcopy((student, teacher)), Recalled(some_images(), COUNTS, torch.arange(3))
    images = start.images.clone()
    recalled, _ = ascended(student, teacher, start, objective_of(start, WEIGHTS, classes=CLASSES), 2)
    assert torch.equal(start.images, images)
    assert recalled.counts is start.counts
    assert recalled.origins is start.origins
    assert recalled.images.stride() == start.images.stride()
    assert not recalled.images.requires_grad
    assert [module.training for network in (student, teacher) for module in network.modules()] == modes
    assert_close(states(student), states(before[0]), 0)
    assert_close([list(teacher.parameters())], [list(before[1].parameters())], 0)
    assert all(parameter.grad is None for network in (student, teacher) for parameter in network.parameters())


# Divergence


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("rate", [1e200, 1e308])
def test_an_ascent_that_leaves_all_bounds_ends_with_the_name_of_a_term(rate: float) -> None:
    start = Recalled(X, COUNTS, None)
    with pytest.raises(DivergedError, match=r"^the term \w+ of the recall objective became (nan|-?inf)"):
        ascended(linear(3), linear(4), start, objective_of(start, WEIGHTS), 3, rate)


@pytest.mark.usefixtures("installation")
def test_the_first_step_that_is_not_finite_is_the_last() -> None:
    """Or the term that diverged first would hide among those that it took along."""
    passes = []
    student, teacher = linear(3), linear(4)
    with torch.no_grad():
        next(student.parameters()).fill_(math.nan)
    teacher.register_forward_hook(lambda *_: passes.append(1))
    start = Recalled(X, COUNTS, None)
    with pytest.raises(DivergedError) as caught:
        ascended(student, teacher, start, objective_of(start, WEIGHTS | {"divergence": 0.0}), 5)
    assert caught.value.term == "the term student_avoidance of the recall objective"
    assert passes == [1]


def test_the_teacher_may_begin_before_the_student_is_ready() -> None:
    """Its first pass is made once, ahead of time or not, and everything ends the same."""
    found = []
    for ahead in (False, True):
        student, teacher = pair_of("resnet")
        start = Recalled(some_images(), COUNTS, None)
        objective = objective_of(start, WEIGHTS, classes=CLASSES)
        ascent = Ascent(student, teacher, start, objective, SideBySide(), Plans())
        if ahead:
            ascent.begin()
        with torch.no_grad():
            for p in student.parameters():
                p.mul_(0.9)  # the student learns meanwhile
        recalled, terms = ascent.climb(3, 5.0)
        found.append([recalled.images, terms, *states(student, teacher)])
    assert_close(found[1], found[0], 0)


# On an accelerator


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("kind", ["mlp", "resnet", "batch norm 1d"])
def test_the_host_does_not_wait_for_numbers_inside_the_ascent(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read a number is to wait for all that was queued before it: so often for many steps as for few."""
    seen: list[str] = []

    def listen(name: str) -> None:
        found = getattr(Tensor, name)

        def heard(tensor: Tensor, *given: object) -> object:
            seen.append(name)
            return found(tensor, *given)

        monkeypatch.setattr(Tensor, name, heard)

    student, teacher = (network_of(kind) for _ in range(2))
    for name in ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__float__", "__int__", "__index__"):
        listen(name)
    counts = []
    for steps in (1, 2, 9):
        seen.clear()
        start = Recalled(some_images(), COUNTS, None)
        objective = Disagreement(start, WEIGHTS, PRESENT, "mixture-first")
        objective.checks_every_step = False
        ascended(student, teacher, start, objective, steps)
        counts.append(len(seen))
    assert counts[0] == counts[1] == counts[2] > 0


@pytest.mark.usefixtures("without_kernels")
def test_what_diverges_inside_is_noticed_at_the_end() -> None:
    student, teacher = linear(0), linear(1)
    start = Recalled(X, torch.ones(len(X), dtype=torch.int64), None)
    objective = Disagreement(start, WEIGHTS, PRESENT, "mixture-first")
    objective.checks_every_step = False
    with pytest.raises(DivergedError):
        ascended(student, teacher, start, objective, steps=5, rate=1e200)
