"""GEM: the projection against brute force, and the step that uses it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.optimize import lsq_linear, minimize
from torch import Tensor, nn

from autorecall import GEM, BoundaryConfig, GEMConfig
from autorecall.learners.gem import project

from .worlds import assert_same, batch, conv, mlp

SETTINGS = GEMConfig(kept_images=11, learning_rate=0.4, margin=0.0, tasks=BoundaryConfig("every", every=2))
Make = Callable[[], nn.Module]
every_network = pytest.mark.parametrize("make", [mlp, conv])


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def closest(gradient: Tensor, memories: Tensor) -> Tensor:
    """Brute force: orthogonal to some of the memories, and of all such that no memory minds, the nearest."""
    best, distance = gradient, torch.inf
    for count in range(len(memories) + 1):
        for some in itertools.combinations(range(len(memories)), count):
            rows = memories[list(some)]
            found = gradient - torch.linalg.pinv(rows) @ (rows @ gradient) if some else gradient
            away = float((found - gradient).norm())
            if bool((memories @ found >= -1e-9).all()) and away < distance:
                best, distance = found, away
    return best


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Whole numbers, so that memories often are zero, parallel, opposed, or the same."""
    size, count = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rows = st.lists(st.integers(-3, 3), min_size=size, max_size=size)
    return double(draw(rows)), double(draw(st.lists(rows, min_size=count, max_size=count)))


@given(problems())
def test_projection_is_the_closest_gradient_that_no_memory_minds(problem: tuple[Tensor, Tensor]) -> None:
    gradient, memories = problem
    found = project(gradient, memories)
    assert (memories @ found).min() >= -1e-9
    torch.testing.assert_close(found, closest(gradient, memories), rtol=0, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_projection_solves_the_primal_programme(seed: int) -> None:
    torch.manual_seed(seed)
    gradient, memories = torch.randn(12, dtype=torch.float64), torch.randn(5, 12, dtype=torch.float64)
    g, rows = gradient.numpy(), memories.numpy()
    constraints = {"type": "ineq", "fun": lambda z: rows @ z, "jac": lambda z: rows}
    solution = minimize(
        lambda z: ((z - g) ** 2).sum() / 2, g, jac=lambda z: z - g, constraints=constraints, options={"ftol": 1e-15}
    )
    assert (rows @ g).min() < 0, "something is violated"
    np.testing.assert_allclose(project(gradient, memories).numpy(), solution.x, atol=1e-6)


def test_gradient_that_nobody_minds_is_unchanged() -> None:
    gradient, memories = double([1.0, 2.0, -0.5]), double([[1.0, 0.0, 0.0], [0.3, 1.0, 1.0], [0.0, 0.0, -1.0]])
    assert torch.equal(project(gradient, memories), gradient)


@given(problems(), st.sampled_from([0.1, 0.5, 2.0]))
def test_margin_is_the_least_weight_of_a_memory(problem: tuple[Tensor, Tensor], margin: float) -> None:
    """The shortest gradient + Σ v·memory of all v ≥ margin, and so still nothing that a memory minds."""
    gradient, memories = problem
    found = project(gradient, memories, margin)
    weights = lsq_linear(memories.numpy().T, -gradient.numpy(), bounds=(margin, np.inf), tol=1e-14).x
    torch.testing.assert_close(found, gradient + torch.from_numpy(weights) @ memories, rtol=0, atol=1e-5)
    assert (memories @ found).min() >= -1e-9


def test_margin_by_hand() -> None:
    gradient, memories = double([1.0, -1.0]), double([[1.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(project(gradient, memories, 0.5), double([1.5, 0.0]))
    torch.testing.assert_close(project(gradient, memories, 3.0), double([4.0, 2.0]))


@pytest.mark.parametrize(
    ("memories", "expected"),
    [
        ([[0.0, 2.0]], [-1.0, 0.0]),
        ([[0.0, 2.0], [0.0, 2.0]], [-1.0, 0.0]),
        ([[0.0, 2.0], [0.0, 5.0], [0.0, 1e-3]], [-1.0, 0.0]),
        ([[0.0, 2.0], [0.0, 0.0]], [-1.0, 0.0]),
        ([[0.0, 0.0]], [-1.0, -1.0]),
        ([[0.0, 0.0], [0.0, 0.0]], [-1.0, -1.0]),
        ([[0.0, 1.0], [0.0, -1.0]], [-1.0, 0.0]),
        ([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 0.0]),
    ],
    ids=["one", "same", "parallel", "one zero", "only zero", "all zero", "opposed", "a sum of others"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_memories_by_hand(memories: list[list[float]], expected: list[float], dtype: torch.dtype) -> None:
    found = project(double([-1.0, -1.0]).to(dtype), double(memories).to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found, double(expected).to(dtype), rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [1e-3, 1e-5, 1e-7, 1e-9])
def test_memory_is_minded_however_short_it_is_beside_another(length: float) -> None:
    """A task that is known by heart has a short gradient, and none the less a say in the direction."""
    found = project(double([-1.0, -1.0]), double([[1.0, 0.0], [0.0, length]]))
    torch.testing.assert_close(found, double([0.0, 0.0]), rtol=0, atol=1e-6)


class LiteralGEM:
    """Lopez-Paz and Ranzato 2017 with the latest images of each task; the projection by brute force."""

    def __init__(self, network: nn.Module, config: GEMConfig) -> None:
        self.network, self.config = network, config
        self.tasks: list[list[tuple[Tensor, int]]] = []
        self.batches = self.projections = 0

    def observe(self, x: Tensor, y: Tensor) -> None:
        assert self.config.tasks.every is not None
        begins = self.batches % self.config.tasks.every == 0
        self.batches += 1
        earlier = self.tasks if begins else self.tasks[:-1]
        pairs = [(torch.stack([i for i, _ in task]), torch.tensor([c for _, c in task])) for task in earlier if task]
        gradient, memories = self.gradient(x, y), [self.gradient(images, labels) for images, labels in pairs]
        if any(float(memory @ gradient) < 0 for memory in memories):
            gradient = closest(gradient, torch.stack(memories))
            self.projections += 1
        with torch.no_grad():
            for p in self.network.parameters():
                p.sub_(self.config.learning_rate * gradient[: p.numel()].view_as(p))
                gradient = gradient[p.numel() :]
        if begins:
            self.tasks.append([])
        self.tasks[-1] += zip(x, y.tolist(), strict=True)
        share = self.config.kept_images // len(self.tasks)
        self.tasks = [task[len(task) - min(share, len(task)) :] for task in self.tasks]

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(self.network(x), y)
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(self.network.parameters()))])


@pytest.mark.parametrize(("images", "every"), [(11, 2), (30, 1), (2, 1)])
@every_network
def test_observe_steps_along_the_projected_gradient(make: Make, images: int, every: int) -> None:
    network, config = make(), replace(SETTINGS, kept_images=images, tasks=BoundaryConfig("every", every=every))
    literal, learner = LiteralGEM(copy.deepcopy(network), config), GEM(network, config)
    for number in range(6):
        before = literal.projections
        numbers = learner.observe(*batch(number))
        literal.observe(*batch(number))
        assert numbers["projected"] == literal.projections - before
        assert_same(dict(network.named_parameters()), dict(literal.network.named_parameters()), 1e-9, f"{number}")
        kept = [len(task) for task in literal.tasks]
        assert [len(labels) for _, labels in learner.kept] == kept
        assert learner.memory().images == sum(kept) <= images
    assert 0 < literal.projections < 6


def test_no_earlier_task_minds_the_step() -> None:
    """By the gradient of each earlier task, taken before the step."""
    network = mlp()
    learner, projected = GEM(network, SETTINGS), 0.0
    for number in range(8):
        literal = LiteralGEM(copy.deepcopy(network), SETTINGS)
        earlier = copy.deepcopy(learner.kept if number % 2 == 0 else learner.kept[:-1])
        before = torch.cat([p.detach().flatten() for p in network.parameters()])
        projected += learner.observe(*batch(number))["projected"]
        step = before - torch.cat([p.detach().flatten() for p in network.parameters()])
        for images, labels in earlier:
            assert literal.gradient(images.double(), labels) @ step >= -1e-9
    assert projected


def test_images_are_the_latest_of_each_task_in_equal_shares() -> None:
    learner = GEM(mlp(), replace(SETTINGS, kept_images=7))
    shown: list[Tensor] = []
    for number in range(12):
        x, y = batch(number)
        learner.observe(x, y)
        shown.append(x)
        tasks = number // 2 + 1
        share = 7 // tasks
        assert len(learner.kept) == tasks
        for task, (images, labels) in enumerate(learner.kept):
            assert torch.equal(images, torch.cat(shown[2 * task : 2 * task + 2])[-share:])
            assert set(labels.tolist()) <= {task * 2 % 6, task * 2 % 6 + 1}
        assert learner.memory().images == min(share * tasks, 6 * (number + 1)) <= 7


def test_more_tasks_than_images_keep_none_and_learn_on() -> None:
    learner = GEM(mlp(), replace(SETTINGS, kept_images=2, tasks=BoundaryConfig("every", every=1)))
    for number in range(6):
        numbers = learner.observe(*batch(number))
        assert learner.memory().images <= 2
    assert learner.memory().images == 0
    assert numbers["projected"] == 0


def test_frozen_layer_is_left_out_of_the_projection() -> None:
    network = mlp()
    assert isinstance(network, nn.Sequential)
    network[1].requires_grad_(False)
    before = copy.deepcopy(network[1].state_dict())
    learner = GEM(network, SETTINGS)
    projected = [learner.observe(*batch(number))["projected"] for number in range(6)]
    assert any(projected)
    assert_same(network[1].state_dict(), before)
