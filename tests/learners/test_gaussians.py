"""Class Gaussians as a learner: any order, in closed form or by samples, on any network and on fixed features."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from autorecall import SLDA, Gaussians, GaussiansConfig, Learner
from autorecall.errors import ConfigError, InputError
from autorecall.learners.er import ER, ERConfig
from autorecall.learners.naive import Naive, NaiveConfig
from autorecall.networks import DescriptorConfig, FixedFeatures, NetworkConfig, PatchesConfig
from autorecall.runs.model import load_model, save_model

from .worlds import CLASSES, alive, assert_same, batch, log_density, mlp, needs

SHAPE = (1, 10, 10)
DESCRIPTOR = DescriptorConfig(pixels=4, edges=2, map_size=5, first_images=12, hidden=(16,))
PATCHES = PatchesConfig(filters=6, size=3, first_images=12, frequencies=2)
SAMPLED = GaussiansConfig(samples=12, floor=0.05)
CLOSED = GaussiansConfig(own_features=14)


def digits(number: int, count: int = 6) -> tuple[Tensor, Tensor]:
    """Batch `number` of a stream of images of one bright row each, whose classes change every ten batches."""
    generator = torch.Generator().manual_seed(number)
    y = torch.randint(2, (count,), generator=generator) + number // 10 * 2 % CLASSES
    x = 0.3 * torch.rand(count, *SHAPE, generator=generator)
    x[torch.arange(count), 0, y + 2] += 0.7
    return x, y


def taught(config: GaussiansConfig, network: NetworkConfig, batches: int = 30) -> Gaussians:
    torch.manual_seed(0)
    student = Gaussians(network.build(SHAPE, CLASSES), config)
    for number in range(batches):
        student.observe(*digits(number))
    return student


def accuracy(student: Learner) -> float:
    """On all classes."""
    x, y = (torch.cat(part) for part in zip(*(digits(100 + number) for number in range(30)), strict=True))
    return float((student.predict(x).argmax(1) == y).double().mean())


both = pytest.mark.parametrize(("config", "network"), [(SAMPLED, DESCRIPTOR), (CLOSED, PATCHES)])
fixed = pytest.mark.parametrize("network", [DESCRIPTOR, PATCHES])


# In closed form


def expected_scores(config: GaussiansConfig, x: Tensor, y: Tensor, asked: Tensor) -> Tensor:
    """Discriminant + weight · (Gaussians − discriminant of their features), for the classes seen, up to a constant."""
    labels, size = sorted(set(y.tolist())), x.shape[1]
    part = config.own_features or size
    means = torch.stack([x[y == label].mean(0) for label in labels])
    centred = torch.cat([x[y == label] - mean for label, mean in zip(labels, means, strict=True)])
    shared = centred.T @ centred / len(x)

    def distances(features: int) -> Tensor:
        covariance = shared[:features, :features]
        covariance = covariance + config.ridge * covariance.diagonal().diag()
        logs = [log_density(asked[:, :features], mean[:features], covariance) for mean in means]
        return torch.stack(logs, 1)

    gaussians = []
    for label, mean in zip(labels, means, strict=True):
        own = x[y == label, :part].T.cov(correction=0)
        share = config.own * min(1.0, (int((y == label).sum()) - 1) / part)
        covariance = share * own + (1 - share) * shared[:part, :part]
        covariance = covariance + config.floor * shared[:part, :part].diagonal().diag()
        gaussians.append(log_density(asked[:, :part], mean[:part], covariance))
    return distances(size) + config.weight * (torch.stack(gaussians, 1) - distances(part))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    "config", [GaussiansConfig(), GaussiansConfig(own_features=3, weight=0.7), GaussiansConfig(weight=0.0, ridge=0.1)]
)
def test_any_order_gives_the_closed_form(config: GaussiansConfig, order: int) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(60, 7), nn.Tanh(), nn.Linear(7, CLASSES)).double()
    before = copy.deepcopy(network)
    x, y = (torch.cat(part) for part in zip(*(batch(number, count=12) for number in range(6)), strict=True))
    if order:
        mixed = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        x, y = x[mixed], y[mixed]
    student = Gaussians(network, config)
    for features, labels in zip(torch.split(x, 5), torch.split(y, 5), strict=True):
        student.observe(features, labels)
        student.predict(features)
    asked = batch(50, count=9)[0]
    with torch.no_grad():
        expected = expected_scores(config, before[:-1](x), y, before[:-1](asked))
    found = student.predict(asked)[:, sorted(set(y.tolist()))]
    torch.testing.assert_close(found - found[:, :1], expected - expected[:, :1], rtol=1e-5, atol=1e-5)


def test_without_class_gaussians_it_is_streaming_lda() -> None:
    """But for the form of the ridge, which is equal where all variances are."""
    generator = torch.Generator().manual_seed(0)
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double() for _ in range(2)]
    ours, lda = Gaussians(networks[0], GaussiansConfig(weight=0.0, ridge=1e-6)), SLDA(networks[1])
    x, y = torch.randn(400, 4, generator=generator, dtype=torch.float64), torch.arange(400) % 3
    x = x + y[:, None]
    for student in (ours, lda):
        student.observe(x, y)
    agree = ours.predict(x).argmax(1) == lda.predict(x).argmax(1)
    assert float(agree.double().mean()) > 0.98


# By samples


def test_samples_have_the_mean_and_covariance_of_their_class() -> None:
    student = taught(SAMPLED, DESCRIPTOR)
    labels = torch.arange(2).repeat_interleave(20_000) * 3
    found, statistics = student.sampled(labels), student.statistics
    size = statistics.means.shape[1]
    for label in (0, 3):
        rows = found[labels == label].double()
        factors = statistics.factors(torch.tensor([label]), size, SAMPLED.own, SAMPLED.floor)[0]
        scale = (factors @ factors.T).diagonal().sqrt()
        assert float(((rows.mean(0) - statistics.means[label]) / scale).abs().max()) < 0.05
        apart = (rows.T.cov() - factors @ factors.T) / scale / scale[:, None]
        assert float(apart.abs().max()) < 0.06


def test_a_step_is_on_the_batch_and_on_samples_of_absent_classes_each_class_alike() -> None:
    student = taught(SAMPLED, DESCRIPTOR, batches=25)
    twin = copy.deepcopy(student)
    x, y = digits(25)
    loss = student.observe(x, y)["loss"]
    network = twin.network
    assert isinstance(network, FixedFeatures)
    absent = torch.tensor([label for label in range(4) if label not in y.tolist()])
    labels = absent[torch.randint(len(absent), (12,), generator=twin.generator)]
    recalled = nn.functional.cross_entropy(network.classify(twin.sampled(labels)), labels)
    real = nn.functional.cross_entropy(network.classify(network.features(x)), y)
    present = len(set(y.tolist()))
    expected = (present * real + len(absent) * recalled) / (present + len(absent))
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_class_is_sampled_from_so_many_images_on() -> None:
    student = taught(replace(SAMPLED, least_images=10**6), DESCRIPTOR)
    x, y = digits(31)
    expected = nn.functional.cross_entropy(student.network(x), y).item()
    assert student.observe(x, y)["loss"] == pytest.approx(expected, rel=1e-5)


def test_any_network_that_ends_in_a_linear_layer_is_trained_in_that_layer() -> None:
    network = mlp()
    before = copy.deepcopy(network.state_dict())
    student = Gaussians(network, replace(SAMPLED, weight=0.0))
    for number in range(6):
        assert student.observe(*batch(number))["loss"] > 0
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"5.weight", "5.bias"}
    assert torch.equal(student.predict(batch(9)[0]), network(batch(9)[0]).detach())


# On fixed features, and streams of all kinds


@both
def test_it_learns_a_stream_without_boundaries_and_remembers(config: GaussiansConfig, network: NetworkConfig) -> None:
    assert accuracy(taught(config, network)) > 0.8


@both
def test_a_class_with_one_image_a_task_of_one_class_and_classes_that_return(
    config: GaussiansConfig, network: NetworkConfig
) -> None:
    student = taught(config, network, batches=10)
    x, y = digits(20, count=40)
    single = x[y == 4][:1]
    student.observe(single, torch.tensor([4]))
    assert int(student.predict(single).argmax()) == 4
    for number in range(8):
        x, _ = digits(number + 300)
        x[:, :, 2:8] = 0.3
        x[:, 0, 7] += 0.4
        student.observe(x, torch.full((6,), 5))
    for number in range(4):
        student.observe(*digits(400 + 0 * number))
    assert bool(student.predict(digits(99)[0]).isfinite().all())
    assert int(student.predict(x).argmax(1).mode().values) == 5


@both
def test_classes_never_seen_are_never_predicted(config: GaussiansConfig, network: NetworkConfig) -> None:
    student = taught(config, network, batches=10)
    assert set(student.predict(5 * torch.rand(50, *SHAPE)).argmax(1).tolist()) <= {0, 1}


@both
def test_a_stream_shorter_than_the_first_images_is_learned_too(config: GaussiansConfig, network: NetworkConfig) -> None:
    student = taught(config, replace(network, first_images=10_000))  # type: ignore[call-arg]
    assert accuracy(student) > 0.5


@fixed
def test_statistics_begin_anew_when_features_are_settled(network: NetworkConfig) -> None:
    torch.manual_seed(0)
    config = SAMPLED if network is DESCRIPTOR else CLOSED
    student = Gaussians(network.build(SHAPE, CLASSES), config)
    counts = [(student.observe(*digits(number)) and 0) or int(student.statistics.counts.sum()) for number in range(4)]
    assert counts == [6, 6, 12, 18]  # the second batch of six settles them


@both
@pytest.mark.parametrize("observed", [0, 1, 2, 25])
def test_state_goes_on_bit_for_bit(config: GaussiansConfig, network: NetworkConfig, observed: int) -> None:
    first = taught(config, network, observed)
    torch.manual_seed(5)
    second = Gaussians(network.build(SHAPE, CLASSES), config, seed=9)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    x = digits(99)[0]
    if observed:
        assert torch.equal(second.predict(x), first.predict(x))
    for number in range(observed, observed + 3):
        assert second.observe(*digits(number)) == first.observe(*digits(number))
    assert torch.equal(second.predict(x), first.predict(x))
    assert_same(second.state_dict(), first.state_dict())


@both
def test_a_model_answers_as_its_learner_does(config: GaussiansConfig, network: NetworkConfig, tmp_path: Path) -> None:
    student = taught(config, network)
    save_model(student, network, [str(c) for c in range(CLASSES)], SHAPE, tmp_path / "model.safetensors")
    x = digits(99, count=40)[0]
    assert torch.equal(load_model(tmp_path)(x), student.predict(x))


@both
def test_no_image_outlives_observe(config: GaussiansConfig, network: NetworkConfig) -> None:
    torch.manual_seed(0)
    student = Gaussians(network.build(SHAPE, CLASSES), config)
    before = alive(SHAPE)
    for number in range(5):
        student.observe(*digits(number))
    assert alive(SHAPE) == before


def test_memory_is_statistics_and_what_makes_the_features() -> None:
    closed, sampled = taught(CLOSED, PATCHES), taught(SAMPLED, DESCRIPTOR)
    size = closed.statistics.means.shape[1]
    filters = 6 * 9 + 9 * 9 + 9
    expected = CLASSES + CLASSES * size + size * (size + 1) // 2 + CLASSES * 14 * 15 // 2 + filters
    assert closed.memory().statistics == expected
    assert (closed.memory().images, closed.memory().parameters) == (0, 0)
    size = sampled.statistics.means.shape[1]
    assert sampled.memory().statistics == CLASSES + CLASSES * size + (CLASSES + 1) * size * (size + 1) // 2 + 2 * size
    assert sampled.memory().statistic_bytes == 4 * sampled.memory().statistics
    saved = closed.state_dict()["statistics"]
    assert isinstance(saved, dict)
    assert sum(value.numel() for value in saved.values()) + filters == expected


# Fixed features under other learners


@fixed
@pytest.mark.parametrize(
    "make", [lambda net: Naive(net, NaiveConfig(0.1)), lambda net: ER(net, ERConfig(5)), lambda net: SLDA(net)]
)
def test_first_images_settle_the_features_whatever_the_learner(
    network: NetworkConfig, make: Callable[[nn.Module], Learner]
) -> None:
    torch.manual_seed(0)
    built = network.build(SHAPE, CLASSES)
    assert isinstance(built, FixedFeatures)
    student = make(built)
    x = digits(99)[0]
    seen = []
    for number in range(4):
        student.observe(*digits(number))
        seen.append(built.features(x))
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[2])
    assert torch.equal(seen[2], seen[3])
    assert student.memory().statistics == built.kept_numbers()


@fixed
def test_a_batch_that_cannot_be_learned_leaves_the_features_as_they_were(network: NetworkConfig) -> None:
    torch.manual_seed(0)
    student = Gaussians(network.build(SHAPE, CLASSES), SAMPLED if network is DESCRIPTOR else CLOSED)
    student.observe(*digits(0))
    before = copy.deepcopy(student.state_dict())
    x, y = digits(1)
    with pytest.raises(Exception, match="became"):
        student.observe(x * 1e30, y)
    assert_same(student.state_dict(), before)


def test_half_precision_has_its_statistics_in_single() -> None:
    needs(torch.bfloat16)
    student = Gaussians(mlp().to(torch.bfloat16))
    for number in range(4):
        x, y = batch(number)
        student.observe(x.to(torch.bfloat16), y)
    assert student.statistics.scatter.dtype == torch.float32
    assert set(student.predict(batch(9)[0].to(torch.bfloat16)).argmax(1).tolist()) <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"weight": -1.0}, "learner.weight is -1.0"),
        ({"own": 1.5}, "learner.own is 1.5; expected a number from 0 to 1"),
        ({"own_features": 0}, "learner.own_features is 0"),
        ({"floor": 0.0}, "learner.floor is 0.0; expected 1e-06 to 1"),
        ({"ridge": 1e-9}, "learner.ridge is 1e-09; expected 1e-06 to 1"),
        ({"samples": -1}, "learner.samples is -1"),
        ({"samples": 5, "own_features": 3}, "samples need Gaussians of all features"),
        ({"least_images": 0}, "learner.least_images is 0"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GaussiansConfig(**settings)  # type: ignore[arg-type]
    assert part in str(caught.value)


def test_networks_that_do_not_fit_are_refused() -> None:
    for network, config, part in (
        (DESCRIPTOR.build(SHAPE, CLASSES), GaussiansConfig(), "hidden layers on top of its fixed features"),
        (PATCHES.build(SHAPE, CLASSES), GaussiansConfig(own_features=1000), "learner.own_features is 1000 but"),
        (DESCRIPTOR.build(SHAPE, CLASSES).requires_grad_(False), SAMPLED, "is frozen"),
        (nn.Sequential(nn.Conv2d(1, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), CLOSED, "nn.Linear"),
    ):
        with pytest.raises(InputError) as caught:
            Gaussians(network, config).observe(*digits(0))
        assert part in str(caught.value)
    with pytest.raises(InputError, match="no parameters"):
        Gaussians(nn.Flatten())
