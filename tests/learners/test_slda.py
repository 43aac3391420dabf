"""Streaming linear discriminant analysis against all features at once, whatever the order of the stream."""

from __future__ import annotations

import copy
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from autorecall import SLDA, SLDAConfig
from autorecall.errors import ConfigError, InputError
from autorecall.networks import FourierConfig, GatedMLPConfig

from .worlds import CLASSES, assert_same, batch, conv, mlp, needs

COUNT = 24
SHRINKAGE = 0.05


def images() -> tuple[Tensor, Tensor]:
    """A whole stream; four of the six classes occur."""
    x = torch.cat([batch(number)[0] for number in range(4)])
    return x, torch.cat([batch(number)[1] for number in range(4)])


def features_of(network: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(network, nn.Sequential)
    with torch.no_grad():
        features: Tensor = copy.deepcopy(network)[:-1].eval()(x)
    return features


def distances(network: nn.Module, x: Tensor, y: Tensor, asked: Tensor, shrinkage: float) -> Tensor:
    """Squared Mahalanobis distances from inputs to the mean of every class seen, using all features at once."""
    features, labels = features_of(network, x), sorted(set(y.tolist()))
    means = torch.stack([features[y == label].mean(0) for label in labels])
    size = features.shape[1]
    covariance = torch.zeros(size, size, dtype=torch.float64)
    for row, label in zip(features, y.tolist(), strict=True):
        centred = row - means[labels.index(label)]
        covariance += torch.outer(centred, centred) / len(features)
    isotropic = covariance.trace() / size * torch.eye(size, dtype=torch.float64)
    inverse = ((1 - shrinkage) * covariance + shrinkage * isotropic).inverse()
    differences = features_of(network, asked)[:, None] - means
    return torch.einsum("ncf,fg,ncg->nc", differences, inverse, differences)


def assert_closed_form(learner: SLDA, before: nn.Module, x: Tensor, y: Tensor) -> None:
    """Differences of logits are half the differences of distances, so the nearest mean has the largest logit."""
    asked, labels = batch(40, count=10)[0], sorted(set(y.tolist()))
    expected = distances(before, x, y, asked, learner.config.shrinkage)
    logits = learner.predict(asked)
    seen = logits[:, labels]
    torch.testing.assert_close(seen - seen[:, :1], -(expected - expected[:, :1]) / 2, rtol=1e-8, atol=1e-8)
    nearest = torch.tensor(labels)[expected.argmin(1)]
    assert torch.equal(logits.argmax(1), nearest)


@given(st.permutations(range(COUNT)), st.lists(st.integers(1, COUNT), min_size=1, max_size=COUNT))
def test_any_order_and_any_batches_give_the_closed_form(order: list[int], sizes: list[int]) -> None:
    network = mlp()
    before, learner, (x, y) = copy.deepcopy(network), SLDA(network, SLDAConfig(SHRINKAGE)), images()
    left = torch.tensor(order)
    for size in [*sizes, COUNT]:
        if len(left):
            learner.observe(x[left[:size]], y[left[:size]])
            left = left[size:]
    assert learner.counts.tolist() == [int((y == label).sum()) for label in range(CLASSES)]
    assert_closed_form(learner, before, x, y)


@pytest.mark.parametrize("make", [mlp, conv])
def test_every_batch_of_a_stream_gives_the_closed_form_of_what_was_seen(
    make: Callable[[], nn.Module],
) -> None:
    """Predicting in between does not change what is learned."""
    network = make()
    before, learner = copy.deepcopy(network), SLDA(network, SLDAConfig(SHRINKAGE))
    seen: list[tuple[Tensor, Tensor]] = []
    for number in range(6):
        seen.append(batch(number))
        learner.observe(*batch(number))
        assert_closed_form(learner, before, torch.cat([x for x, _ in seen]), torch.cat([y for _, y in seen]))


@pytest.mark.parametrize("make", [mlp, conv])
def test_layers_but_the_last_stay_unchanged(make: Callable[[], nn.Module]) -> None:
    network = make()
    before = copy.deepcopy(network.state_dict())
    learner = SLDA(network)
    for number in range(4):
        learner.observe(*batch(number))
        learner.predict(batch(9)[0])
    assert isinstance(network, nn.Sequential)
    last = str(len(network) - 1)
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"{last}.weight", f"{last}.bias"}


def test_classes_never_seen_are_never_predicted() -> None:
    learner = SLDA(mlp())
    seen: set[int] = set()
    for number in range(6):
        x, y = batch(number)
        learner.observe(x, y)
        seen |= set(y.tolist())
        assert set(learner.predict(100 * batch(60, count=50)[0]).argmax(1).tolist()) <= seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("per_class", [1, 3])
def test_classes_never_seen_are_not_predicted_where_nothing_varies_within_classes(
    per_class: int, dtype: torch.dtype
) -> None:
    """One image per class, or the same one again: the covariance is 0, and distances are large."""
    learner = SLDA(nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES)).to(dtype))
    x, y = torch.eye(4, dtype=dtype)[:2].repeat(per_class, 1), torch.tensor([1, 4]).repeat(per_class)
    learner.observe(x, y)
    assert learner.predict(x).argmax(1).tolist() == y.tolist()
    far = torch.randn(50, 4, dtype=dtype)
    assert set(learner.predict(far).argmax(1).tolist()) <= {1, 4}


def test_memory_is_means_and_one_covariance() -> None:
    learner = SLDA(mlp())
    assert learner.memory().parameters == 0
    learner.observe(*batch(0))
    assert (learner.memory().images, learner.memory().parameters) == (0, CLASSES * 7 + 7 * 7)


def test_random_fourier_features_take_any_order() -> None:
    """RanDumb, in the single precision of its preset."""
    torch.manual_seed(1)
    networks = [FourierConfig(features=20, width=2.0).build((2, 6, 5), CLASSES) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    one, other = (SLDA(network, SLDAConfig(0.1)) for network in networks)
    x, y = images()
    for first in range(0, COUNT, 4):
        one.observe(x[first : first + 4].float(), y[first : first + 4])
    other.observe(x.flip(0).float(), y.flip(0))
    asked = batch(40, count=20)[0].float()
    torch.testing.assert_close(one.predict(asked), other.predict(asked), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("observed", [0, 3])
def test_state_goes_on_bit_for_bit(observed: int) -> None:
    first, second = SLDA(mlp()), SLDA(mlp(5))
    for number in range(observed):
        first.observe(*batch(number))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert torch.equal(second.predict(batch(9)[0]), first.predict(batch(9)[0]))
    for number in range(3, 6):
        first.observe(*batch(number))
        second.observe(*batch(number))
    assert torch.equal(second.predict(batch(9)[0]), first.predict(batch(9)[0]))
    assert_same(second.state_dict(), first.state_dict())


def test_loaded_state_is_a_copy() -> None:
    first, second = SLDA(mlp()), SLDA(mlp())
    first.observe(*batch(0))
    second.load_state_dict(first.state_dict())
    first.observe(*batch(1))
    assert int(second.counts.sum()) == 6


def test_network_without_a_linear_layer_or_its_bias_is_refused() -> None:
    for network in (
        nn.Sequential(nn.Conv2d(2, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(60, CLASSES, bias=False)),
    ):
        with pytest.raises(InputError, match=r"nn\.Linear"):
            SLDA(network.double()).observe(*batch(0))
    for shrinkage in (0.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match=r"learner\.shrinkage"):
            SLDAConfig(shrinkage)


def test_network_whose_logits_are_not_those_of_its_last_linear_layer_is_refused() -> None:
    """The last nn.Linear of a gated perceptron is only the gate of its logits: no discriminant can go there."""
    network = GatedMLPConfig(hidden=(9,)).build((2, 6, 5), CLASSES).double()
    with pytest.raises(InputError):
        SLDA(network).observe(*batch(0))


def test_one_input_at_a_time_will_do_with_batch_norm() -> None:
    """Batch statistics play no part, so nothing is wrong with a batch of one."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(60, 7), nn.BatchNorm1d(7), nn.Linear(7, CLASSES)).double()
    before, learner, (x, y) = copy.deepcopy(network), SLDA(network, SLDAConfig(SHRINKAGE)), images()
    for place in range(COUNT):
        learner.observe(x[place : place + 1], y[place : place + 1])
    assert_closed_form(learner, before, x, y)


def test_saved_network_is_up_to_date() -> None:
    """The network saved on its own has the last layer that it predicts with."""
    learner, bare = SLDA(mlp()), mlp()
    learner.observe(*batch(0))
    saved = learner.state_dict()["network"]
    assert isinstance(saved, dict)
    bare.load_state_dict(saved)
    x = batch(9)[0]
    with torch.no_grad():
        assert torch.equal(bare(x), learner.predict(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_half_precision_has_its_statistics_in_single(dtype: torch.dtype) -> None:
    needs(dtype)
    learner, reference = SLDA(mlp().to(dtype)), SLDA(mlp().to(dtype).float())
    for number in range(4):
        x, y = batch(number)
        learner.observe(x.to(dtype), y)
        reference.observe(x.to(dtype).float(), y)
    assert learner.scatter.dtype == torch.float32
    torch.testing.assert_close(learner.means, reference.means, rtol=0.05, atol=0.01)
    assert set(learner.predict(batch(9)[0].to(dtype)).argmax(1).tolist()) <= {0, 1, 2, 3}


def test_a_frozen_network_will_do() -> None:
    network = mlp().requires_grad_(False)
    student = SLDA(network)
    for number in range(4):
        student.observe(*batch(number))
    assert not any(p.requires_grad for p in network.parameters())
    assert len(student.predict(batch(0)[0]).argmax(1)) == 6
