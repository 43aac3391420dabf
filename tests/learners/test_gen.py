"""Deep generative replay against a literal one, and what its copies promise."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from autorecall import GEN, BoundaryConfig, GENConfig
from autorecall.errors import ConfigError, InputError
from autorecall.networks import VAE, ConvVAEConfig, FourierConfig, MLPVAEConfig

from .algorithm1 import log_softmax, sum_of
from .worlds import CLASSES, IMAGE, assert_same, batch, conv, mlp

SETTINGS = GENConfig(
    learning_rate=0.05,
    steps_per_batch=3,
    groups=2,
    replay_weight=1.7,
    warm_up=20,
    kl_weight=0.5,
    vae=MLPVAEConfig(latents=3, depth=1, hidden=6),
    tasks=BoundaryConfig("every", every=2),
)


def parameters(*networks: nn.Module) -> int:
    return sum(p.numel() for network in networks for p in network.parameters())


class LiteralGEN:
    """Shin et al. 2017 as facts.md has it, from a learner that has seen its first batch on."""

    def __init__(self, learner: GEN) -> None:
        assert learner.vae is not None
        self.network, self.vae, self.config = copy.deepcopy(learner.network), copy.deepcopy(learner.vae), learner.config
        self.generator = torch.Generator()
        self.generator.set_state(learner.generator.get_state())
        self.adam = torch.optim.Adam(self.vae.parameters())
        state = copy.deepcopy(learner.state_dict()["vae_optimizer"])
        assert isinstance(state, Mapping)
        self.adam.load_state_dict({**state, "state": {int(key): part for key, part in state["state"].items()}})
        self.earlier: tuple[VAE, nn.Module] | None = None
        self.batches, self.images_of_task, self.clamped = 1, 6, 0

    def observe(self, x: Tensor, y: Tensor) -> None:
        config = self.config
        assert config.tasks.every is not None
        if self.batches % config.tasks.every == 0:
            self.images_of_task = 0
            self.earlier = copy.deepcopy(self.vae).eval(), copy.deepcopy(self.network).eval()
        self.batches += 1
        self.images_of_task += len(x)
        weight = min(self.images_of_task / config.warm_up, config.kl_weight)

        dreams = self.dream(x)
        for _ in range(config.steps_per_batch):
            loss = self.minus_bound(x, weight)
            if dreams is not None:
                loss = loss + config.replay_weight * self.minus_bound(dreams, weight)
            self.adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.adam.step()

        dreams = self.dream(x)
        for _ in range(config.steps_per_batch):
            logs = log_softmax(self.network(x))
            loss = sum_of([-logs[i, y[i]] for i in range(len(y))]) / len(y)
            if dreams is not None:
                assert self.earlier is not None
                answers = self.earlier[1](dreams).softmax(1).detach()
                outputs = self.network(dreams).softmax(1)
                self.clamped += int((outputs < 1e-5).sum())
                outputs = torch.where(outputs < 1e-5, torch.full_like(outputs, 1e-5), outputs)
                loss = loss - config.replay_weight * (answers * outputs.log()).sum() / len(dreams)
            gradients = torch.autograd.grad(loss, list(self.network.parameters()))
            with torch.no_grad():
                for p, gradient in zip(self.network.parameters(), gradients, strict=True):
                    p.sub_(config.learning_rate * gradient)

    def dream(self, like: Tensor) -> Tensor | None:
        if self.earlier is None:
            return None
        return self.earlier[0].decode(self.normal(10 * self.config.groups, like)).detach()

    def normal(self, count: int, like: Tensor) -> Tensor:
        return torch.randn(count, self.config.vae.latents, generator=self.generator).to(like)

    def minus_bound(self, x: Tensor, weight: float) -> Tensor:
        mean, variance = self.vae.encode(x)
        z = mean + variance.sqrt() * self.normal(len(x), x)
        pixels = self.vae.decode(z)
        reconstruction = -(x * pixels.log() + (1 - x) * (1 - pixels).log()).sum() / len(x)
        q, p = torch.distributions.Normal(mean, variance.sqrt()), torch.distributions.Normal(0.0, 1.0)
        divergence: Tensor = (q.log_prob(z) - p.log_prob(z)).sum() / len(x)  # type: ignore[no-untyped-call]
        return reconstruction + weight * divergence


def sure() -> nn.Module:
    """A network that is all but certain of what it sees, so that most outputs are clamped."""
    network = mlp()
    assert isinstance(network, nn.Sequential)
    with torch.no_grad():
        for p in network[-1].parameters():
            p.mul_(100)
    return network


@pytest.mark.parametrize("kind", ["mlp", "conv", "sure"])
def test_observe_is_literal_generative_replay(kind: str) -> None:
    network = {"mlp": mlp, "conv": conv, "sure": sure}[kind]()
    learner = GEN(network, replace(SETTINGS, learning_rate=1e-3 if kind == "sure" else 0.05), seed=2)
    learner.observe(*batch(0))
    literal = LiteralGEN(learner)
    for number in range(1, 6):
        learner.observe(*batch(number))
        literal.observe(*batch(number))
        assert learner.vae is not None
        assert_same(learner.vae.state_dict(), literal.vae.state_dict(), 1e-8, f"generator at batch {number}")
        assert_same(network.state_dict(), literal.network.state_dict(), 1e-8, f"classifier at batch {number}")
    assert (literal.clamped > 0) == (kind == "sure")


@pytest.mark.parametrize(("most", "expected"), [(1.0, [0.3, 0.6, 0.9, 1.0]), (0.7, [0.3, 0.6, 0.7, 0.7])])
def test_weight_of_the_divergence_rises_with_the_images_of_a_task(most: float, expected: list[float]) -> None:
    weights: list[float] = []

    class Watched(GEN):
        def vae_losses(self, batches: list[Tensor], kl_weight: float) -> list[Tensor]:
            weights.append(kl_weight)
            return super().vae_losses(batches, kl_weight)

    config = replace(SETTINGS, steps_per_batch=1, kl_weight=most, tasks=BoundaryConfig("every", every=4))
    learner = Watched(mlp(), config)
    for number in range(8):
        learner.observe(*batch(number))
    assert weights == pytest.approx(2 * expected)


def test_only_the_second_task_replays() -> None:
    learner = GEN(mlp(), replace(SETTINGS, tasks=BoundaryConfig("boundary")))
    for number in range(4):
        assert math.isnan(learner.observe(*batch(number))["replayed_loss"])
        assert learner.earlier_vae is None
        assert learner.earlier_network is None
    learner.boundary()
    assert math.isfinite(learner.observe(*batch(4))["replayed_loss"])


def test_copies_are_frozen_in_eval_mode_and_those_of_the_end_of_the_task() -> None:
    network = conv()
    learner = GEN(network, SETTINGS)
    for number in range(6):
        if number % 2 == 0:
            before = copy.deepcopy((learner.vae, network))
        learner.observe(*batch(number))
        if number < 2:
            continue
        assert before[0] is not None
        for made, expected in ((learner.earlier_vae, before[0]), (learner.earlier_network, before[1])):
            assert made is not None
            assert_same(made.state_dict(), expected.state_dict())
            assert not any(p.requires_grad for p in made.parameters())
            assert not any(module.training for module in made.modules())
    assert network.training
    assert all(p.requires_grad for p in network.parameters())


def test_memory_is_the_generator_its_copy_and_the_copy_of_the_classifier() -> None:
    network = mlp()
    learner = GEN(network, SETTINGS)
    assert learner.memory().parameters == 0
    learner.observe(*batch(0))
    assert learner.vae is not None
    assert learner.memory().parameters == parameters(learner.vae)
    learner.observe(*batch(1))
    learner.observe(*batch(2))
    assert learner.memory().parameters == 2 * parameters(learner.vae) + parameters(network)
    assert learner.memory().images == 0


@pytest.mark.parametrize("steps", [1, 4])
def test_images_are_dreamt_once_a_batch_for_each_network_and_used_in_all_steps(steps: int) -> None:
    network = mlp()
    learner = GEN(network, replace(SETTINGS, steps_per_batch=steps))
    for number in range(3):
        learner.observe(*batch(number))
    assert learner.earlier_vae is not None
    assert learner.vae is not None
    dreams: list[Tensor] = []
    shown: list[Tensor] = []
    learnt: list[Tensor] = []
    learner.earlier_vae.decoder.register_forward_hook(lambda *call: dreams.append(call[2]))
    network.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0]))
    learner.vae.encoder.register_forward_pre_hook(lambda _, inputs: learnt.append(inputs[0]))
    learner.observe(*batch(3))
    assert [len(images) for images in dreams] == [20, 20]
    assert not torch.equal(*dreams)
    for_vae, for_network = ([x[-20:] for x in images if len(x) == 26] for images in (learnt, shown))
    assert len(for_vae) == len(for_network) == steps
    assert all(torch.equal(images, dreams[0]) for images in for_vae)
    assert all(torch.equal(images, dreams[1]) for images in for_network)


SIZE = 8
NATURAL = replace(
    SETTINGS, steps_per_batch=1, groups=1, vae=ConvVAEConfig(latents=2), input_range="symmetric", image_size=SIZE
)


def test_images_are_resized_and_scaled_alike_in_observe_and_predict() -> None:
    network = FourierConfig(features=5).build((2, SIZE, SIZE), CLASSES)
    learner = GEN(network, NATURAL)
    shown: list[Tensor] = []
    encoded: list[Tensor] = []
    network.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0].clone()))
    for number in range(3):
        x, y = batch(number, shape=(2, 13, 10))
        x = x.float()
        expected = 2 * nn.functional.interpolate(x, (SIZE, SIZE), mode="bilinear", antialias=True) - 1
        assert expected.min() < -0.1
        if number == 1:
            assert learner.vae is not None
            learner.vae.encoder.register_forward_pre_hook(lambda _, inputs: encoded.append(inputs[0].clone()))
        shown.clear()
        learner.observe(x, y)
        real = [images[: len(x)] for images in shown if len(images) >= len(x)]
        assert len(real) == 1
        torch.testing.assert_close(real[0], expected)
        shown.clear()
        logits = learner.predict(x)
        (predicted,) = shown
        torch.testing.assert_close(predicted, expected)
        torch.testing.assert_close(logits, copy.deepcopy(network).eval()(expected).detach())
    torch.testing.assert_close([images[: len(x)] for images in encoded if len(images) >= len(x)][-1], expected)
    assert learner.earlier_vae is not None
    assert learner.dream(torch.zeros(3, 2)).shape == (3, 2, SIZE, SIZE)


def test_image_that_has_the_size_already_is_left_as_it_is() -> None:
    learner = GEN(mlp(), replace(NATURAL, input_range="unit"))
    x = torch.rand(2, 3, SIZE, SIZE)
    assert torch.equal(learner.prepare(x), x)


def test_generator_of_grey_values_refuses_others() -> None:
    x, y = batch(0)
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        GEN(mlp(), SETTINGS).observe(2 * x - 1, y)


def test_white_images_can_be_resized_for_the_generator_of_grey_values() -> None:
    """Weights of an interpolation need not add up to exactly 1, and a grey value above 1 would be refused."""
    for size in range(3, 30):
        network = FourierConfig(features=2).build((1, size, size), CLASSES)
        learner = GEN(network, replace(SETTINGS, steps_per_batch=1, image_size=size))
        learner.observe(torch.ones(4, 1, 32, 32), torch.tensor([0, 1, 0, 1]))


def test_state_goes_on_bit_for_bit_before_and_after_the_first_task() -> None:
    for observed in (0, 1, 3):
        first, second = GEN(mlp(), SETTINGS, seed=1), GEN(mlp(5), SETTINGS, seed=2)
        for number in range(observed):
            first.observe(*batch(number))
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for number in range(observed, observed + 3):
            torch.manual_seed(number)
            expected = first.observe(*batch(number))
            torch.manual_seed(number)
            assert_same(second.observe(*batch(number)), expected)
        assert_same(second.state_dict(), first.state_dict())


def test_generator_has_the_shape_and_type_of_the_images() -> None:
    learner = GEN(mlp(), SETTINGS)
    learner.observe(*batch(0))
    assert learner.vae is not None
    assert {p.dtype for p in learner.vae.parameters()} == {torch.float64}
    assert learner.vae.decode(torch.zeros(2, 3, dtype=torch.float64)).shape == (2, *IMAGE)


def test_a_generator_in_the_precision_of_its_inputs_goes_on_in_it() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(60, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x.flatten(1).float())
            return logits

    settings = GENConfig(steps_per_batch=1, groups=1, vae=MLPVAEConfig(3, 1, 8), tasks=BoundaryConfig("every", 2))
    first, second = GEN(Single(), settings), GEN(Single(), settings, seed=1)
    for number in range(3):
        first.observe(*batch(number))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert_same(second.observe(*batch(3)), first.observe(*batch(3)))


def test_settings_that_cannot_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="mlp-vae makes grey values"):
        GENConfig(input_range="symmetric")
    with pytest.raises(InputError, match=r"learner\.image_size is set but inputs have shape \(60,\)"):
        GEN(nn.Linear(60, CLASSES).double(), GENConfig(image_size=4)).observe(*batch(0, shape=(60,)))
