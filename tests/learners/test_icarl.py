"""iCaRL: herding, answers, budget and the nearest mean of exemplars, each by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from autorecall import BoundaryConfig, ICaRL, ICaRLConfig
from autorecall.errors import InputError
from autorecall.learners.icarl import herd

from .worlds import CLASSES, assert_same, batch, conv, mlp, needs

SETTINGS = ICaRLConfig(
    kept_images=20, learning_rate=0.1, steps_per_batch=2, replayed=4, tasks=BoundaryConfig("every", every=2)
)
Make = Callable[[], nn.Module]
every_network = pytest.mark.parametrize("make", [mlp, conv])


def seen_by(network: nn.Module, images: Tensor) -> Tensor:
    """What enters the last layer, in eval mode, each row divided by its length."""
    assert isinstance(network, nn.Sequential)
    with torch.no_grad():
        features: Tensor = copy.deepcopy(network)[:-1].eval()(images)
    lengths: Tensor = torch.linalg.vector_norm(features, dim=1)
    return features / lengths[:, None]


def images_of(learner: ICaRL) -> dict[int, Tensor]:
    kept = {label: images for label, (images, _) in learner.exemplars.items()}
    for label, reservoir in learner.candidates.items():
        assert label not in kept
        if reservoir.images is not None:
            kept[label] = reservoir.images
    return kept


@pytest.mark.parametrize("seed", range(5))
def test_herding_is_the_greedy_choice_of_brute_force(seed: int) -> None:
    torch.manual_seed(seed)
    features = torch.randn(9, 4, dtype=torch.float64)
    expected: list[int] = []
    while len(expected) < len(features):
        left = [row for row in range(len(features)) if row not in expected]
        misses = [float((features.mean(0) - features[[*expected, row]].mean(0)).norm()) for row in left]
        expected.append(left[misses.index(min(misses))])
    assert herd(features).tolist() == expected


def test_herding_of_equal_rows_is_a_permutation() -> None:
    assert sorted(herd(torch.ones(6, 3)).tolist()) == list(range(6))
    assert herd(torch.ones(1, 3)).tolist() == [0]


@every_network
def test_prediction_is_the_nearest_mean_of_exemplars(make: Make) -> None:
    network = make()
    learner = ICaRL(network, SETTINGS)
    for number in range(5):
        learner.observe(*batch(number))
        x = batch(50 + number)[0]
        scores, kept, inputs = learner.predict(x), images_of(learner), seen_by(network, x)
        assert sorted(kept) == sorted({c for n in range(number + 1) for c in batch(n)[1].tolist()})
        expected = torch.full((len(x), CLASSES), -torch.inf, dtype=torch.float64)
        for label, images in kept.items():
            mean = seen_by(network, images.double()).mean(0)
            expected[:, label] = -((inputs - mean / mean.norm()) ** 2).sum(1)
        assert torch.equal(scores.argmax(1), expected.argmax(1))
        labels = sorted(kept)
        torch.testing.assert_close(scores[:, labels], expected[:, labels], rtol=0, atol=1e-9)
        assert not set(scores.argmax(1).tolist()) - set(labels)


@every_network
def test_prediction_after_a_step_knows_of_it(make: Make) -> None:
    """Means are remembered between two predictions, but not over a step, nor over a loaded state."""
    learner, other = ICaRL(make(), SETTINGS), ICaRL(make(), SETTINGS)
    for number in range(3):
        learner.observe(*batch(number))
        learner.predict(batch(9)[0])
        other.observe(*batch(number))
    assert torch.equal(learner.predict(batch(9)[0]), other.predict(batch(9)[0]))
    state = copy.deepcopy(learner.state_dict())
    learner.observe(*batch(3))
    learner.predict(batch(9)[0])
    learner.load_state_dict(state)
    assert torch.equal(learner.predict(batch(9)[0]), other.predict(batch(9)[0]))


def test_prediction_before_the_first_batch_is_logits() -> None:
    network = conv()
    x = batch(0)[0]
    torch.testing.assert_close(ICaRL(network, SETTINGS).predict(x), copy.deepcopy(network).eval()(x).detach())


@pytest.mark.parametrize("images", [1, 2, 4, 5, 7, 20])
def test_images_never_exceed_the_budget(images: int) -> None:
    learner = ICaRL(mlp(), replace(SETTINGS, kept_images=images, steps_per_batch=1))
    seen: set[int] = set()
    for number in range(8):
        x, y = batch(number)
        learner.observe(x, y)
        seen |= set(y.tolist())
        kept = images_of(learner)
        share = images // len(seen)
        assert max((len(some) for some in kept.values()), default=0) <= share
        assert learner.memory().images == sum(map(len, kept.values())) <= images
        for label, (exemplars, answers) in learner.exemplars.items():
            assert len(exemplars) == len(answers) <= share, label


@pytest.mark.parametrize("images", [1, 2, 4])
def test_prediction_with_more_classes_than_images_is_a_number(images: int) -> None:
    """A share of 0 images leaves classes without a mean, at first or in the course of time."""
    learner = ICaRL(mlp(), replace(SETTINGS, kept_images=images, steps_per_batch=1))
    for number in range(8):
        learner.observe(*batch(number))
        scores = learner.predict(batch(9)[0])
        assert scores.shape == (6, CLASSES)
        assert not scores.isnan().any(), f"batch {number}"


def test_candidates_are_images_of_their_class_from_the_stream() -> None:
    learner = ICaRL(mlp(), replace(SETTINGS, kept_images=8))
    shown: dict[int, list[Tensor]] = {}
    for number in range(8):
        x, y = batch(number)
        for image, label in zip(x, y.tolist(), strict=True):
            shown.setdefault(label, []).append(image)
        learner.observe(x, y)
        for label, images in images_of(learner).items():
            for image in images:
                assert any(torch.equal(image, earlier) for earlier in shown[label])


@every_network
def test_answers_are_those_at_the_end_of_the_task(make: Make) -> None:
    network = make()
    learner = ICaRL(network, SETTINGS)
    remembered: dict[int, tuple[Tensor, Tensor]] = {}
    for number in range(6):
        ending = {c: r.images.clone() for c, r in learner.candidates.items() if r.images is not None}
        known = sorted({*learner.exemplars, *learner.candidates})
        at_the_end = copy.deepcopy(network).eval()
        learner.observe(*batch(number))
        if number % 2 == 0:
            for label, images in ending.items():
                order = herd(seen_by(at_the_end, images))
                answers = torch.zeros(len(images), CLASSES, dtype=torch.float64)
                answers[:, known] = at_the_end(images)[:, known].sigmoid().detach()
                remembered[label] = images[order], answers[order]
            assert sorted(learner.exemplars) == sorted(remembered)
        for label, (images, answers) in learner.exemplars.items():
            torch.testing.assert_close(images, remembered[label][0][: len(images)], rtol=0, atol=0)
            torch.testing.assert_close(answers, remembered[label][1][: len(images)], rtol=0, atol=1e-12)
    assert len(remembered) == 4


@every_network
def test_step_asks_a_sigmoid_a_class_and_earlier_answers_of_exemplars(make: Make) -> None:
    """Real images are not asked about earlier classes. Nothing is crowded out, and the draw is all there is."""
    network, config = make(), replace(SETTINGS, kept_images=100, steps_per_batch=1, replayed=100)
    learner = ICaRL(network, config)
    for number in range(4):
        x, y = batch(number)
        literal = copy.deepcopy(network)
        learner.observe(x, y)
        exemplars = learner.exemplars.values()
        kept = [pair for images, answers in exemplars for pair in zip(images, answers, strict=True)]
        logits = literal(torch.stack([*x, *(image for image, _ in kept)]))
        loss = torch.zeros((), dtype=torch.float64)
        for row, label in zip(logits[: len(x)], y.tolist(), strict=True):
            for c in range(CLASSES):
                if c not in learner.exemplars:
                    loss = loss - (row[c].sigmoid() if c == label else 1 - row[c].sigmoid()).log()
        for row, (_, answers) in zip(logits[len(x) :], kept, strict=True):
            loss = loss - (answers * row.sigmoid().log() + (1 - answers) * (1 - row.sigmoid()).log()).sum()
        gradients = torch.autograd.grad(loss / len(logits), list(literal.parameters()))
        with torch.no_grad():
            for p, gradient in zip(literal.parameters(), gradients, strict=True):
                p.sub_(config.learning_rate * gradient)
        assert_same(network.state_dict(), literal.state_dict(), 1e-9, f"batch {number}")


def test_state_goes_on_bit_for_bit_in_the_middle_of_a_task() -> None:
    first, second = ICaRL(mlp(), SETTINGS, seed=1), ICaRL(mlp(4), SETTINGS, seed=2)
    for number in range(3):
        first.observe(*batch(number))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(3, 7):
        assert_same(second.observe(*batch(number)), first.observe(*batch(number)))
        assert torch.equal(second.predict(batch(9)[0]), first.predict(batch(9)[0]))
    assert_same(second.state_dict(), first.state_dict())


def test_a_class_that_comes_back_still_learns_its_own_label() -> None:
    network = mlp()
    student = ICaRL(network, ICaRLConfig(9, steps_per_batch=1, replayed=1, tasks=BoundaryConfig("every", 2)))
    for number in range(4):
        student.observe(*batch(number))
    x, _ = batch(9)
    before = copy.deepcopy(network.state_dict())
    student.observe(x, torch.zeros(len(x), dtype=torch.int64))
    changed = (network.state_dict()["5.weight"] - before["5.weight"]).abs().sum(1)
    assert float(changed[0]) > 0.1 * float(changed.max())


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_half_precision_will_do(dtype: torch.dtype) -> None:
    needs(dtype)
    student = ICaRL(mlp().to(dtype), ICaRLConfig(9, steps_per_batch=1, tasks=BoundaryConfig("every", 2)))
    for number in range(4):
        x, y = batch(number)
        student.observe(x.to(dtype), y)
    assert set(student.predict(batch(9)[0].to(dtype)).argmax(1).tolist()) <= {0, 1, 2, 3}


def test_a_network_without_a_linear_layer_is_refused_before_anything_is_learned() -> None:
    network = nn.Sequential(nn.Conv2d(2, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(InputError, match=r"no nn\.Linear"):
        ICaRL(network).observe(*batch(0))
    assert_same(network.state_dict(), before)
