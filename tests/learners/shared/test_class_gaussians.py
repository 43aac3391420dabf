"""Class means and covariances, batch by batch, against all features at once."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from autorecall.errors import DivergedError, InputError
from autorecall.learners.shared.class_gaussians import ClassGaussians, Likelihoods, factor

from ..worlds import log_density

CLASSES, FEATURES, OWN = 5, 6, 4


def rows(count: int = 200, kind: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Features whose means and covariances differ between classes 0, 1 and 3; class 3 has one row."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (count,), generator=generator)
    y[count // 2] = 3
    x = torch.randn(count, FEATURES, generator=generator, dtype=kind) @ torch.linspace(0, 1, 36, dtype=kind).view(6, 6)
    return x * (1 + y[:, None]) + 3 * y[:, None] + torch.randn(count, FEATURES, generator=generator, dtype=kind), y


def kept(x: Tensor, y: Tensor, size: int = 7) -> ClassGaussians:
    found = ClassGaussians(CLASSES, FEATURES, OWN, x.dtype)
    for features, labels in zip(torch.split(x, size), torch.split(y, size), strict=True):
        found.add(found.merge(features, labels))
    return found


def within(x: Tensor, y: Tensor) -> Tensor:
    """The shared covariance."""
    total = torch.zeros(FEATURES, FEATURES, dtype=x.dtype)
    for label in set(y.tolist()):
        for row in x[y == label] - x[y == label].mean(0):
            total += torch.outer(row, row)
    return total / len(x)


@pytest.mark.parametrize("size", [1, 7, 200])
def test_statistics_are_those_of_all_rows(size: int) -> None:
    x, y = rows()
    found = kept(x, y, size)
    assert found.counts.tolist() == [int((y == label).sum()) for label in range(CLASSES)]
    assert found.seen().tolist() == [0, 1, 3]
    assert found.seen(2).tolist() == [0, 1]
    for label in (0, 1, 3):
        torch.testing.assert_close(found.means[label], x[y == label].mean(0))
        own = x[y == label, :OWN].T.cov(correction=0).reshape(OWN, OWN) * (y == label).sum()
        torch.testing.assert_close(found.own[label], own, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(found.scatter / len(x), within(x, y))


@pytest.mark.parametrize("part", [OWN, FEATURES])
def test_the_discriminant_is_the_difference_of_distances(part: int) -> None:
    x, y = rows()
    weights, biases = kept(x, y).discriminant(part, ridge=0.02)
    covariance = within(x, y)[:part, :part]
    inverse = (covariance + 0.02 * covariance.diagonal().diag()).inverse()
    asked = x[:9, :part]
    logits = asked @ weights.T + biases
    means = torch.stack([x[y == label, :part].mean(0) for label in (0, 1, 3)])
    apart = asked[:, None] - means
    distances = torch.einsum("ncf,fg,ncg->nc", apart, inverse, apart)
    seen = logits[:, [0, 1, 3]]
    torch.testing.assert_close(seen - seen[:, :1], -(distances - distances[:, :1]) / 2)


@pytest.mark.parametrize("own", [0.0, 0.4, 1.0])
def test_factors_are_of_mixed_covariances_and_a_single_image_leans_on_the_others(own: float) -> None:
    x, y = rows()
    labels = torch.tensor([0, 3])
    factors = kept(x, y).factors(labels, OWN, own, floor=0.05)
    shared = within(x, y)[:OWN, :OWN]
    floor = 0.05 * shared.diagonal().diag()
    expected = own * x[y == 0, :OWN].T.cov(correction=0) + (1 - own) * shared + floor
    torch.testing.assert_close(factors[0] @ factors[0].T, expected)
    torch.testing.assert_close(factors[1] @ factors[1].T, shared + floor)


def test_a_class_with_few_images_leans_on_the_others_in_part() -> None:
    x, y = rows()
    x, y = torch.cat([x, x[:3] * 2]), torch.cat([y, torch.full((3,), 4)])
    factors = kept(x, y).factors(torch.tensor([4]), OWN, 0.8, floor=0.05)
    shared, share = within(x, y)[:OWN, :OWN], 0.8 * 2 / OWN
    expected = share * x[-3:, :OWN].T.cov(correction=0) + (1 - share) * shared + 0.05 * shared.diagonal().diag()
    torch.testing.assert_close(factors[0] @ factors[0].T, expected)


def test_likelihoods_are_those_of_gaussians() -> None:
    x, y = rows()
    statistics, labels = kept(x, y), torch.tensor([0, 1, 3])
    factors = statistics.factors(labels, OWN, 0.4, 0.01)
    inverses = torch.linalg.inv(factors)
    means = statistics.means[labels, :OWN]
    add = Likelihoods(labels, means, inverses, torch.tensor(0.3, dtype=torch.float64))
    logits = torch.randn(9, CLASSES, dtype=torch.float64)
    scores = add(x[:9], logits)
    for place, label in enumerate(labels.tolist()):
        density = log_density(x[:9, :OWN], means[place], factors[place] @ factors[place].T)
        expected = logits[:, label] + 0.3 * density
        torch.testing.assert_close(scores[:, label], expected)
    assert bool((scores[:, [2, 4]] == torch.finfo(torch.float64).min).all())
    again = Likelihoods.from_state(add.state_dict())
    assert torch.equal(again(x[:9], logits), scores)


def test_scores_are_finite_however_far_an_input_is() -> None:
    add = Likelihoods(torch.tensor([1]), torch.zeros(1, 2), torch.eye(2)[None], torch.tensor(1.0))
    assert bool(add(torch.full((3, 2), 1e30), torch.zeros(3, CLASSES)).isfinite().all())


def test_single_precision_will_do_for_a_long_stream() -> None:
    """Two hundred thousand rows far from 0, in batches of which some are single rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, FEATURES, generator=generator) * torch.logspace(-3, 2, FEATURES) + 300
    y = torch.arange(len(x)) // 1000 % 2
    found, start = ClassGaussians(CLASSES, FEATURES, OWN, torch.float32), 0
    for size in [1, 999] * 200:
        found.add(found.merge(x[start : start + size], y[start : start + size]))
        start += size
    exact = kept(x.double(), y, 100_000)
    torch.testing.assert_close(found.means[:2].double(), exact.means[:2], rtol=1e-6, atol=1e-4)
    scale = exact.scatter.diagonal().sqrt()
    torch.testing.assert_close(found.scatter.double() / scale / scale[:, None], exact.scatter / scale / scale[:, None],
                               rtol=0, atol=2e-3)  # fmt: skip


def test_a_batch_changes_its_own_classes_alone() -> None:
    found = kept(*rows())
    before = copy.deepcopy(found)
    found.add(found.merge(torch.ones(2, FEATURES, dtype=torch.float64), torch.tensor([3, 3])))
    for label in (0, 1, 2, 4):
        assert torch.equal(found.means[label], before.means[label])
        assert torch.equal(found.own[label], before.own[label])
    assert not torch.equal(found.means[3], before.means[3])


def test_merging_changes_nothing() -> None:
    found = kept(*rows())
    before = copy.deepcopy(found.state_dict())
    found.merge(*rows(20))
    after = found.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)  # type: ignore[arg-type]


def test_what_numbers_cannot_hold_is_refused() -> None:
    found = ClassGaussians(CLASSES, FEATURES, OWN, torch.float32)
    for value, sentence in ((math.nan, "a feature became nan"), (1e20, "the covariance became inf")):
        x = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(0)) * value
        with pytest.raises(DivergedError, match=sentence):
            found.merge(x, torch.zeros(4, dtype=torch.int64))
    assert int(found.counts.sum()) == 0


def test_features_that_never_vary_can_be_factored() -> None:
    found = ClassGaussians(CLASSES, FEATURES, OWN, torch.float32)
    found.add(found.merge(torch.ones(1, FEATURES), torch.tensor([2])))
    assert bool(found.factors(torch.tensor([2]), OWN, 0.4, 0.01).isfinite().all())
    assert all(bool(part.isfinite().all()) for part in found.discriminant(FEATURES, 0.001))


def test_a_matrix_that_rounding_made_indefinite_is_raised() -> None:
    matrix = torch.tensor([[1.0, 1.0 + 1e-4], [1.0 + 1e-4, 1.0]], dtype=torch.float64)
    with pytest.raises(RuntimeError):
        torch.linalg.cholesky(matrix)
    found = factor(matrix.clone(), torch.full((2,), 1e-5, dtype=torch.float64))
    raised = found @ found.T - matrix
    assert float(raised.abs().max()) < 2e-3
    with pytest.raises(DivergedError):
        factor(-torch.eye(2), torch.full((2,), 1e-9))


def test_a_state_holds_each_number_once_and_comes_back() -> None:
    found = kept(*rows())
    state = found.state_dict()
    sizes = {name: value.numel() for name, value in state.items() if isinstance(value, Tensor)}
    assert sizes == {"counts": 5, "means": 30, "scatter": 21, "own": 50}
    assert found.numbers() == 106
    again = ClassGaussians.from_state(state)
    for one in (found, again):
        one.add(one.merge(*rows(20)))
    after, expected = again.state_dict(), found.state_dict()
    assert all(torch.equal(after[name], expected[name]) for name in expected)  # type: ignore[arg-type]
    torch.testing.assert_close(again.scatter, again.scatter.T)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("counts", torch.zeros(4, dtype=torch.int64)),
        ("counts", torch.zeros(5)),
        ("counts", torch.full((5,), -1)),
        ("means", torch.zeros(5, 7, dtype=torch.float64)),
        ("means", torch.zeros(5, 6)),
        ("scatter", torch.zeros(20, dtype=torch.float64)),
        ("own", torch.zeros(5, 11, dtype=torch.float64)),
        ("own", torch.zeros(5, 28, dtype=torch.float64)),
        ("own", torch.zeros(4, 10, dtype=torch.float64)),
    ],
)
def test_a_damaged_state_is_refused(name: str, value: Tensor) -> None:
    with pytest.raises(InputError, match="it is damaged"):
        ClassGaussians.from_state(kept(*rows()).state_dict() | {name: value})
