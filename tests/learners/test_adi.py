"""Adaptive DeepInversion against a literal loop, its statistics by hand, and the classes that it aims at."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from scipy.special import chdtrc
from torch import Tensor, nn

from autorecall import ADI, ADIConfig, LagConfig, Naive, NaiveConfig, Recalled
from autorecall.errors import ConfigError, DivergedError
from autorecall.learners.adi import TERMS
from autorecall.recall.batch import Aimed
from autorecall.recall.statistics import statistics_of

from .algorithm1 import log_softmax, sum_of
from .worlds import CLASSES, IMAGE, Make, assert_same, batch, conv, mlp, teacher_of

SETTINGS = ADIConfig(
    recalled_images=5,
    ascent_steps=3,
    recall_rate=0.8,
    l2_norm=0.9,
    total_variation=0.01,
    learning_rate=0.05,
    recalled_weight=1.3,
    real_weight=0.6,
    class_loss=1.1,
    divergence=1.4,
    batch_statistics=0.1,
    lag=LagConfig("every", every=2, start=2),
)
VARIANTS = {
    "plain": SETTINGS,
    "many copies": replace(SETTINGS, recalled_images=17),
    "noise": replace(SETTINGS, initial="noise", recalled_images=7),
    "no statistics": replace(SETTINGS, batch_statistics=0.0, recalled_images=17),
    "no distill": replace(SETTINGS, real_weight=0.0),
    "unit lag": replace(SETTINGS, divergence=8.0, lag=LagConfig("every", every=1, start=2), recalled_images=17),
    "repeats": replace(SETTINGS, repeats=2, recalled_images=17),
}
NOTHING = replace(SETTINGS, class_loss=0, divergence=0, l2_norm=0, total_variation=0, batch_statistics=0)


def normalised() -> nn.Module:
    """A perceptron with batch-norm of (images, features)."""
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(60, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    return nn.Sequential(*layers).double()


def norms(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]


def statistics(network: nn.Module, images: Tensor) -> list[Tensor]:
    """|mean − running mean|₂ + |unbiased variance − running variance|₂ of each layer; a copy, so nothing moves."""
    distances: list[Tensor] = []

    def read(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].movedim(1, -1).flatten(0, -2)
        mean = rows.sum(0) / len(rows)
        variance = ((rows - mean) ** 2).sum(0) / (len(rows) - 1)
        off_mean = mean - layer.get_buffer("running_mean")
        off_variance = variance - layer.get_buffer("running_var")
        distances.append((off_mean**2).sum().sqrt() + (off_variance**2).sum().sqrt())

    watched = copy.deepcopy(network)
    for layer in norms(watched):
        layer.register_forward_pre_hook(read)
    watched(images)
    return distances


class LiteralADI:
    """Yin et al. 2020 as facts.md has it: M literal images, every formula written out, SGD by hand."""

    def __init__(self, network: nn.Module, config: ADIConfig, seed: int) -> None:
        self.student, self.teacher, self.config = network, network, config
        self.generator = torch.Generator().manual_seed(seed)
        self.seen: set[int] = set()
        self.t = 0
        self.recalled, self.targets = torch.empty(0), torch.empty(0)

    def observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """The terms of the objective at the last step; none where nothing was recalled."""
        config, present = self.config, set(y.tolist())
        assert config.lag.every is not None
        assert config.lag.start is not None
        if self.t % config.lag.every == 0:
            self.teacher = copy.deepcopy(self.student)
        self.t += 1
        absent = sorted(self.seen - present)
        self.seen |= present

        outputs = log_softmax(self.student(x))
        self.descend(sum_of([-outputs[i, y[i]] for i in range(len(y))]) / len(y))
        if self.t - 1 < config.lag.start or not absent:
            return {}
        self.recalled = self.start(x)
        chosen = self.choose(len(absent), config.recalled_images).tolist()
        self.targets = torch.tensor([absent[i] for i in chosen])
        for _ in range(config.repeats):
            for _ in range(config.ascent_steps):
                x_hat = self.recalled.requires_grad_()
                terms = self.terms(x_hat)
                gradient = torch.autograd.grad(terms["objective"], x_hat)[0]
                self.recalled = (x_hat + config.recall_rate * gradient).detach()
            loss = config.recalled_weight * self.kl(self.recalled)
            if config.real_weight:
                loss = loss + config.real_weight * self.kl(x)
            self.descend(loss)
        return {name: term.item() for name, term in terms.items()}

    def choose(self, available: int, count: int) -> Tensor:
        if count <= available:
            return torch.randperm(available, generator=self.generator)[:count]
        return torch.randint(available, (count,), generator=self.generator)

    def start(self, x: Tensor) -> Tensor:
        if self.config.initial == "noise":
            return torch.rand((self.config.recalled_images, *x.shape[1:]), generator=self.generator, dtype=x.dtype)
        return torch.stack([x[i] for i in self.choose(len(x), self.config.recalled_images).tolist()])

    def terms(self, x: Tensor) -> dict[str, Tensor]:
        config, count = self.config, len(x)
        distances = statistics(self.teacher, x) if config.batch_statistics else []
        teacher_logs, student_logs = log_softmax(self.teacher(x)), log_softmax(self.student(x))
        teacher, student = teacher_logs.exp(), student_logs.exp()
        mixture = (teacher + student) / 2
        divergence = (
            (mixture * (mixture.log() - teacher_logs)).sum() + (mixture * (mixture.log() - student_logs)).sum()
        ) / (2 * count)
        channels, height, width = x.shape[1:]
        vertical = ((x[:, :, 1:] - x[:, :, :-1]) ** 2).sum() / (channels * (height - 1) * width)
        horizontal = ((x[:, :, :, 1:] - x[:, :, :, :-1]) ** 2).sum() / (channels * height * (width - 1))
        terms = {
            "class_loss": -sum_of([teacher_logs[i, self.targets[i]] for i in range(count)]) / count,
            "divergence": divergence,
            "l2_norm": sum_of([(image**2).sum().sqrt() / image.numel() for image in x]) / count,
            "total_variation": 2 * (vertical + horizontal) / count,
            "batch_statistics": sum_of(distances) / len(distances) if distances else torch.zeros(()),
        }
        loss = (
            config.class_loss * terms["class_loss"]
            - config.divergence * terms["divergence"]
            + config.l2_norm * terms["l2_norm"]
            + config.total_variation * terms["total_variation"]
            + config.batch_statistics * terms["batch_statistics"]
        )
        return terms | {"objective": -loss}

    def kl(self, x: Tensor) -> Tensor:
        """KL(teacher‖student), of which the package leaves a constant out."""
        target = log_softmax(self.teacher(x)).detach()
        return (target.exp() * (target - log_softmax(self.student(x)))).sum() / len(x)

    def descend(self, loss: Tensor) -> None:
        parameters = list(self.student.parameters())
        with torch.no_grad():
            for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.sub_(self.config.learning_rate * gradient)


def watched(network: nn.Module, config: ADIConfig, seed: int = 5) -> tuple[ADI, list[tuple[Aimed, Tensor]]]:
    """A learner, and what it will recall, with the teacher's answers."""
    seen: list[tuple[Aimed, Tensor]] = []

    def see(recalled: Recalled, targets: Tensor) -> None:
        assert isinstance(recalled, Aimed)
        seen.append((recalled, targets))

    learner = ADI(network, config, seed=seed)
    learner.on_recall = see
    return learner, seen


def spread_out(recalled: Aimed) -> Tensor:
    """Images with their classes in front, one row per copy, in an order that does not depend on how they were kept."""
    of_copy = torch.arange(len(recalled.counts)).repeat_interleave(recalled.counts)
    return in_order(recalled.images[of_copy], recalled.classes[of_copy])


def in_order(images: Tensor, classes: Tensor) -> Tensor:
    rows = torch.cat([classes.to(images)[:, None], images.flatten(1)], 1)
    ranked = sorted(range(len(rows)), key=lambda i: tuple((rows[i] * 1e6).round().tolist()))
    return rows[ranked]


def assert_literal(network: nn.Module, config: ADIConfig, copies: Literal["auto", "keep"] = "auto") -> None:
    literal = LiteralADI(copy.deepcopy(network), config, seed=5)
    learner, seen = watched(network, config)
    learner.copies = copies
    for number in range(6):
        found, expected = learner.observe(*batch(number)), literal.observe(*batch(number))
        assert_same({name: found[name] for name in expected}, expected, 1e-9, f"numbers of batch {number}")
        assert all(math.isnan(found[name]) for name in (*TERMS, "objective") if name not in expected)
        assert_same(network.state_dict(), literal.student.state_dict(), 1e-9, f"student at batch {number}")
        assert_same(teacher_of(learner), dict(literal.teacher.state_dict()), 1e-9, f"teacher at batch {number}")
        if number >= 2:
            expected_rows = in_order(literal.recalled, literal.targets)
            assert_same(spread_out(seen[-1][0]), expected_rows, 1e-9, f"recalled at batch {number}")
            assert len(seen[-1][0].counts) == config.recalled_images or copies == "auto"
    assert len(seen) == 4 * config.repeats


@pytest.mark.parametrize("copies", ["auto", "keep"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("make", [mlp, conv, normalised])
def test_observe_is_literal_inversion(make: Make, variant: str, copies: Literal["auto", "keep"]) -> None:
    assert_literal(make(), VARIANTS[variant], copies)


@pytest.mark.parametrize("make", [conv, normalised])
def test_observe_is_literal_inversion_without_kernels(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.recall.kernels._kernels", dict)
    assert_literal(make(), VARIANTS["many copies"])


@pytest.mark.parametrize("only", TERMS)
@pytest.mark.parametrize("make", [conv, normalised])
def test_any_term_can_be_the_only_one(make: Make, only: str) -> None:
    assert_literal(make(), replace(NOTHING, **{only: getattr(SETTINGS, only)}))


def test_teacher_and_student_side_by_side_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.learners.shared.algorithm1.cores", lambda: 2)
    states = []
    for threads in (1, 2):
        learner, _ = watched(conv(), VARIANTS["many copies"])
        learner.threads = threads
        for number in range(4):
            learner.observe(*batch(number))
        assert learner.side_by_side.threads == threads
        states.append(learner.state_dict())
    assert_same(states[1], states[0])


def test_collapsed_items_are_pairs_of_an_image_and_a_class() -> None:
    learner, seen = watched(mlp(), replace(SETTINGS, recalled_images=200, ascent_steps=1))
    for number in range(4):
        learner.observe(*batch(number))
    recalled, _ = seen[-1]
    assert recalled.origins is not None
    pairs = list(zip(recalled.origins.tolist(), recalled.classes.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) == 12, "six images, and each of them for two classes"
    assert recalled.total == 200


@pytest.mark.parametrize("make", [conv, normalised])
def test_statistics_are_zero_on_a_batch_that_has_the_running_ones(make: Make) -> None:
    network, x = make(), batch(0)[0]
    for layer in norms(network):
        assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        layer.momentum = 1.0  # a pass makes the batch's statistics the running ones
    network(x)
    everyone = Recalled(x, torch.ones(len(x), dtype=torch.int64), None)
    with statistics_of(network, everyone) as distances:
        network(x)
    assert len(distances) == len(norms(network))
    assert all(float(distance.detach()) < 1e-12 for distance in distances)
    other = batch(1)[0]
    with statistics_of(network, everyone) as distances:
        network(other)
    assert all(float(distance.detach()) > 1e-3 for distance in distances), "read before the pass moves them"


@pytest.mark.parametrize("counts", [[1, 1, 1, 1, 1, 1], [3, 1, 1, 2, 5, 1]])
@pytest.mark.parametrize("make", [conv, normalised])
def test_statistics_of_counted_images_are_those_of_their_copies(make: Make, counts: list[int]) -> None:
    network, x = make(), batch(0)[0]
    network(batch(1)[0])
    first = norms(network)[0]  # the input of later ones already depends on how this one counts
    recalled = Recalled(x, torch.tensor(counts), None)
    expected = statistics(network, x.repeat_interleave(recalled.counts, 0))[0]
    with statistics_of(network, recalled) as distances:
        network(x)
    torch.testing.assert_close(distances[0], expected, rtol=0, atol=1e-12)
    assert not first._forward_pre_hooks


def test_statistics_of_one_value_are_a_number() -> None:
    """One image, one pixel: there is no unbiased variance, but neither is there a reason to stop."""
    network = nn.Sequential(nn.BatchNorm2d(3)).double().eval()
    x = torch.rand(1, 3, 1, 1, dtype=torch.float64)
    with statistics_of(network, Recalled(x, torch.tensor([1]), None)) as distances:
        network(x)
    assert distances[0].isfinite()


def test_network_without_batch_norm_has_no_statistics() -> None:
    found: list[Tensor] = []
    for weight in (0.0, 100.0):
        learner, seen = watched(mlp(), replace(SETTINGS, batch_statistics=weight))
        numbers = [learner.observe(*batch(number)) for number in range(3)][-1]
        assert numbers["batch_statistics"] == 0
        found.append(seen[0][0].images)
    assert torch.equal(*found)


@pytest.mark.parametrize("images", [2, 17])
def test_target_classes_were_seen_before_and_are_not_present(images: int) -> None:
    learner, seen = watched(mlp(), replace(SETTINGS, recalled_images=images, ascent_steps=1))
    earlier: set[int] = set()
    for number in range(9):
        x, y = batch(number)
        learner.observe(x, y)
        if number >= 2:
            recalled, _ = seen[-1]
            assert set(recalled.classes.tolist()) <= earlier - set(y.tolist())
            assert recalled.images.shape[1:] == IMAGE
        earlier |= set(y.tolist())


def test_target_classes_are_drawn_uniformly() -> None:
    learner, _ = watched(mlp(), replace(SETTINGS, recalled_images=20, ascent_steps=1))
    for number in range(5):
        learner.observe(*batch(number))
    x, y = batch(5)
    drawn = torch.zeros(CLASSES, dtype=torch.float64)
    for _ in range(100):
        aimed = learner.start(x, y, keep_copies=False)
        assert aimed is not None
        drawn.index_add_(0, aimed.classes, aimed.counts.double())
    assert drawn[4:].tolist() == [0, 0], "present"
    assert chdtrc(3, float(((drawn[:4] - 500) ** 2 / 500).sum())) > 1e-3, drawn.tolist()


def test_nothing_is_recalled_where_every_earlier_class_is_present() -> None:
    inverting, plain = conv(), conv()
    learner, seen = watched(inverting, SETTINGS)
    naive = Naive(plain, NaiveConfig(SETTINGS.learning_rate))
    for number in range(5):
        x, y = batch(number)[0], torch.tensor([0, 1, 0, 1, 1, 0])
        numbers = learner.observe(x, y)
        naive.observe(x, y)
        assert math.isnan(numbers["objective"])
    assert seen == []
    assert_same(inverting.state_dict(), plain.state_dict())
    learner.observe(*batch(2))
    assert len(seen) == 1


def test_images_come_closer_to_their_classes() -> None:
    """What it is for: the teacher takes recalled images for the classes that they were aimed at."""
    network, (x, y) = mlp(), batch(2)
    config = replace(NOTHING, recalled_images=12, ascent_steps=20, recall_rate=100.0, class_loss=1.1)
    learner, seen = watched(network, config)
    learner.observe(*batch(0))
    learner.observe(*batch(1))
    start = copy.deepcopy(network)(x).softmax(1).detach()
    learner.observe(x, y)
    recalled, targets = seen[0]
    assert recalled.origins is not None
    before, after = start[recalled.origins, recalled.classes], targets.gather(1, recalled.classes[:, None])
    assert (after[:, 0] > before + 0.02).all()


@pytest.mark.parametrize(
    ("config", "rate", "name"),
    [
        (SETTINGS, 1e308, "divergence"),
        (replace(SETTINGS, recall_rate=1e308), 0.05, "l2_norm"),
        (replace(NOTHING, total_variation=1e308), 0.05, "total_variation"),
        (replace(NOTHING, batch_statistics=1e308), 0.05, "batch_statistics"),
    ],
)
def test_inversion_that_diverges_is_noticed_and_named(config: ADIConfig, rate: float, name: str) -> None:
    """By a student that took too large a step, or by images that did."""
    network = conv()
    learner, _ = watched(network, config)
    learner.observe(*batch(0))
    learner.observe(*batch(1))
    learner.optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(DivergedError, match=f"^the term {name} of the recall objective became (nan|-?inf)"):
        learner.observe(*batch(2))
    assert all(module.training for module in network.modules())
    assert learner.teacher.network is not None
    assert not any(layer._forward_pre_hooks for layer in norms(learner.teacher.network))


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", TERMS)
def test_weights_that_are_no_numbers_or_negative_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.{name} is {value}"):
        replace(SETTINGS, **{name: value})  # type: ignore[arg-type]
