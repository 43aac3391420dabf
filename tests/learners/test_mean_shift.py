"""Mean-shift recall against a naive transcription, and on streams of every kind."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorecall import MeanShift, MeanShiftConfig
from autorecall.errors import ConfigError, DivergedError, InputError
from autorecall.recall.batch import Recalled
from autorecall.recall.frequencies import from_low_frequencies, low_frequencies

from .worlds import CLASSES, IMAGE, assert_same, batch, conv, mlp, normed

SMALL = MeanShiftConfig(learning_rate=0.05, recalled_images=9)
NATURAL = replace(SMALL, recalled_classes="seen", frequencies=3, spread="class", real_loss="present")


class Seen:
    """All images so far, and what they would be if shifted."""

    def __init__(self) -> None:
        self.x, self.y = torch.zeros(0, *IMAGE, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)

    def add(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])

    def mean(self, label: int) -> Tensor:
        return self.x[self.y == label].mean(0)

    def shifted(self, image: Tensor, label: int, other: int, frequencies: int | None) -> Tensor:
        """x − m_y + m_c, one image at a time."""
        shift = self.mean(other) - self.mean(label)
        if frequencies is not None:
            shift = from_low_frequencies(low_frequencies(shift[None], frequencies), *IMAGE[1:])[0]
        return (image + shift).clamp(float(self.x.min()), float(self.x.max()))


def naive_loss(logits: Tensor, y: Tensor, real_loss: str) -> Tensor:
    """The cross-entropy over all classes, or over those of the batch, image by image."""
    allowed = list(range(CLASSES)) if real_loss == "all" else sorted(set(y.tolist()))
    losses = [torch.logsumexp(row[allowed], 0) - row[label] for row, label in zip(logits, y.tolist(), strict=True)]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("frequencies", [None, 3])
@pytest.mark.parametrize("recalled_classes", ["absent", "seen"])
@pytest.mark.parametrize("real_loss", ["all", "present"])
def test_steps_are_those_of_a_naive_transcription(
    frequencies: int | None,
    recalled_classes: Literal["absent", "seen"],
    real_loss: Literal["all", "present"],
) -> None:
    config = replace(
        SMALL,
        frequencies=frequencies,
        recalled_classes=recalled_classes,
        real_loss=real_loss,
        fewest_images=1,
    )
    student, network, seen = MeanShift(mlp(), config, seed=5), mlp(), Seen()
    optimizer, generator = torch.optim.SGD(network.parameters(), lr=0.05), torch.Generator().manual_seed(5)

    def descend(loss: Tensor) -> float:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    for number in range(6):
        x, y = batch(number)
        numbers = student.observe(x, y)
        seen.add(x, y)
        pool = sorted(set(seen.y.tolist()) - (set(y.tolist()) if recalled_classes == "absent" else set()))
        if not pool:
            assert numbers["loss"] == pytest.approx(descend(naive_loss(network(x), y, real_loss)), abs=1e-12)
            assert math.isnan(numbers["recalled_loss"])
            continue
        origins = torch.randint(len(x), (9,), generator=generator)
        labels = torch.tensor(pool)[torch.randint(len(pool), (9,), generator=generator)]
        images = torch.stack(
            [seen.shifted(x[i], int(y[i]), int(c), frequencies) for i, c in zip(origins, labels, strict=True)]
        )
        expected = {"loss": descend(naive_loss(network(x), y, real_loss))}
        expected["recalled_loss"] = descend(F.cross_entropy(network(images), labels))
        assert_same(numbers, expected, tolerance=1e-12)
    assert_same(student.network.state_dict(), network.state_dict(), tolerance=1e-12)


def test_low_frequencies_are_drawn_from_the_gaussian_of_their_class() -> None:
    """Their mean and covariance over many draws; the other frequencies are those of the image."""
    student = MeanShift(mlp(), replace(NATURAL, frequencies=2, recalled_images=40_000, shared_spread=0.0))
    x, y = batch(0, count=40)
    x = 0.4 + 0.2 * x  # far from where it would be clamped
    student.observe(torch.cat([x, torch.zeros(2, *IMAGE), torch.ones(2, *IMAGE)]), torch.cat([y, *[y[:1] * 0 + 5] * 4]))
    recalled, labels = student.recall(x, y)
    low = low_frequencies(recalled.images, 2).flatten(1)
    for label in (0, 1):
        real = low_frequencies(x[y == label], 2).flatten(1)
        made = low[labels == label]
        spread = torch.cov(real.T, correction=0)
        torch.testing.assert_close(made.mean(0), real.mean(0), rtol=0, atol=0.02)
        floor = torch.cov(made.T) - spread
        variance = float(floor.diagonal().mean())
        torch.testing.assert_close(
            floor, variance * torch.eye(len(floor), dtype=torch.float64), rtol=0, atol=0.05 * float(spread.max())
        )
    assert recalled.origins is not None
    rest = recalled.images - from_low_frequencies(low.view(-1, IMAGE[0], 2, 2), *IMAGE[1:])
    before = x - from_low_frequencies(low_frequencies(x, 2), *IMAGE[1:])
    torch.testing.assert_close(rest[labels < 2], before[recalled.origins][labels < 2], rtol=0, atol=1e-9)


def test_recalled_images_stay_in_the_range_of_all_that_was_seen() -> None:
    """Also where that is not [0, 1]."""
    student = MeanShift(mlp(), replace(SMALL, recalled_images=100))
    earlier, x, y = 6 * batch(0)[0] - 3, 6 * batch(2)[0] - 4, batch(2)[1]
    student.observe(earlier, batch(0)[1])
    student.observe(x, y)
    recalled, _ = student.recall(x, y)
    assert float(recalled.images.min()) == float(x.min())  # clamped to what was lowest, and to what was highest
    assert float(recalled.images.max()) == float(earlier.max())


@pytest.mark.parametrize("config", [SMALL, NATURAL])
def test_a_class_with_too_few_images_is_not_recalled(config: MeanShiftConfig) -> None:
    student = MeanShift(mlp(), replace(config, fewest_images=3, recalled_classes="absent"))
    x, _ = batch(0)
    student.observe(x, torch.tensor([0, 0, 1, 1, 1, 2]))
    assert set(student.recall(x, torch.full((6,), 5))[1].tolist()) == {1}
    assert student.recall(x, torch.full((6,), 1))[1].tolist() == []
    student.observe(x[:1], torch.tensor([0]))
    assert set(student.recall(x, torch.full((6,), 5))[1].tolist()) == {0, 1}


def test_the_mean_of_a_class_with_one_image_is_that_image_which_recall_may_show() -> None:
    student = MeanShift(mlp(), replace(SMALL, fewest_images=1))
    x, _ = batch(0)
    student.observe(x, torch.tensor([0, 1, 1, 1, 1, 1]))
    assert torch.equal(student.shift.statistics.means[0], x[0].flatten())
    student.observe(x[1:2], torch.tensor([2]))
    recalled, labels = student.recall(x[1:2], torch.tensor([2]))  # an image that is its class's mean, too
    torch.testing.assert_close(recalled.images[labels == 0][0], x[0])


@pytest.mark.parametrize("config", [SMALL, NATURAL])
@pytest.mark.parametrize(
    "labels",
    [
        [[0] * 6, [0] * 6, [1] * 6, [2] * 6],  # tasks of one class
        [[0, 1] * 3, [2, 3] * 3, [0, 1] * 3, [2, 3] * 3],  # classes that return
        [[0, 1, 2, 3, 4, 5]] * 3,  # no tasks at all
        [[0, 0, 0, 0, 0, 1], [2, 3] * 3, [4, 5] * 3],  # a class with one image
    ],
)
def test_any_stream_will_do(labels: list[list[int]], config: MeanShiftConfig) -> None:
    student = MeanShift(conv(), config)
    for number, each in enumerate(labels):
        numbers = student.observe(batch(number)[0], torch.tensor(each))
        assert math.isfinite(numbers["loss"])
    assert student.shift.statistics.counts.tolist() == [
        sum(row.count(label) for row in labels) for label in range(CLASSES)
    ]
    assert bool(student.predict(batch(9)[0]).isfinite().all())


def test_images_are_recalled_on_the_first_batch_after_a_change_without_being_told() -> None:
    student, shown = MeanShift(mlp(), SMALL), list[tuple[Recalled, Tensor]]()
    student.on_recall = lambda recalled, targets: shown.append((recalled, targets))
    student.observe(*batch(0))
    student.observe(*batch(1))
    assert shown == []
    student.observe(*batch(2))
    (recalled, targets) = shown[0]
    assert recalled.images.shape == (9, *IMAGE)
    assert set(targets.argmax(1).tolist()) == {0, 1}
    assert torch.equal(targets.sum(1), torch.ones(9, dtype=torch.float64))
    assert not student.waits_for_boundaries


def test_memory_counts_means_and_covariances() -> None:
    student, natural = MeanShift(mlp(), SMALL), MeanShift(mlp(), NATURAL)
    assert student.memory().statistics == 0
    for learner in (student, natural):
        learner.observe(*batch(0))
    assert student.memory().statistics == CLASSES * 60
    assert student.memory().images == 0
    assert natural.memory().statistics == CLASSES * (18 + 18**2)  # two channels of three by three frequencies


@pytest.mark.parametrize("config", [NATURAL, replace(NATURAL, spread="source")])
def test_natural_settings_go_on_bit_for_bit(config: MeanShiftConfig) -> None:
    one, other = MeanShift(conv(1), config, seed=1), MeanShift(conv(2), config, seed=2)
    for number in range(3):
        one.observe(*batch(number))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for number in range(3, 6):
        assert_same(other.observe(*batch(number)), one.observe(*batch(number)))
    assert_same(other.state_dict(), one.state_dict())


def test_a_refused_batch_is_undone() -> None:
    student, usual = MeanShift(normed(), SMALL), MeanShift(normed(), SMALL)
    for learner in (student, usual):
        learner.observe(batch(0)[0].float(), batch(0)[1])
    before = copy.deepcopy(student.state_dict())
    with pytest.raises(DivergedError) as caught:
        student.observe(1e30 * batch(2)[0].float(), batch(2)[1])
    assert not caught.value.spoiled
    assert_same(student.state_dict(), before)
    assert_same(student.observe(batch(2)[0].float(), batch(2)[1]), usual.observe(batch(2)[0].float(), batch(2)[1]))


@pytest.mark.parametrize(
    "damage",
    [{"shape": [2, 6]}, {"shape": []}, {"shape": [0, 0, 0]}, {"range": [0.0]}, {"range": [0.0, "1"]}, {"classes": 5}],
)
@pytest.mark.parametrize("config", [SMALL, NATURAL])
def test_a_damaged_state_is_refused(config: MeanShiftConfig, damage: dict[str, object]) -> None:
    student = MeanShift(mlp(), config)
    student.observe(*batch(0))
    state = student.state_dict()
    damaged = state | damage if "classes" in damage else state | {"shift": student.shift.state_dict() | damage}
    with pytest.raises(InputError, match="it is damaged"):
        MeanShift(mlp(), config).load_state_dict(damaged)


def test_inputs_of_another_shape_are_refused() -> None:
    student = MeanShift(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, CLASSES)).double(), SMALL)
    student.observe(*batch(0))
    with pytest.raises(InputError, match=r"had \(2, 6, 5\) before; this method keeps images or their means"):
        student.observe(*batch(1, shape=(2, 4, 4)))


def test_frequencies_need_images() -> None:
    student = MeanShift(mlp(inputs=5), replace(SMALL, frequencies=2))
    with pytest.raises(InputError, match=r"learner.frequencies is 2 but inputs have shape \(5,\)"):
        student.observe(*batch(0, shape=(5,)))


def test_one_recalled_image_is_refused_where_batch_norm_needs_two() -> None:
    student = MeanShift(normed().double(), replace(SMALL, recalled_images=1))
    with pytest.raises(InputError, match=r"learner\.recalled_images=1 is too small"):
        student.observe(*batch(0))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"learning_rate": 0.0}, "learner.learning_rate is 0.0; expected a number above 0"),
        ({"recalled_images": 0}, "learner.recalled_images is 0; expected 1 to 1,000,000"),
        ({"fewest_images": 0}, "learner.fewest_images is 0; expected 1 to 1,000,000"),
        ({"frequencies": 0}, "learner.frequencies is 0; expected 1 to 1,000,000"),
        ({"shared_spread": 1.5}, "learner.shared_spread is 1.5; expected a number from 0 to 1"),
        ({"spread": "class"}, "set frequencies, such as 6"),
        ({"real_loss": "some"}, "expected one of all, present"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        MeanShiftConfig(**settings)  # type: ignore[arg-type]
