"""Maximally interfered latents against a literal search, what they gain, and what happens where a search fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from autorecall import GEN, GENMIR, BoundaryConfig, GENConfig, GENMIRConfig
from autorecall.networks import VAE, MLPVAEConfig

from .worlds import assert_same, batch, conv, mlp

SETTINGS = GENMIRConfig(
    learning_rate=0.05,
    steps_per_batch=1,
    groups=3,
    vae=MLPVAEConfig(latents=3, depth=1, hidden=6),
    tasks=BoundaryConfig("every", every=2),
    ascent_steps=4,
    ahead_rate=0.1,
    interference=0.7,
    certainty=0.9,
    diversity=0.6,
)
Make = Callable[[], nn.Module]
Gain = Callable[[Tensor, list[Tensor]], Tensor]
every_network = pytest.mark.parametrize("make", [mlp, conv])


def observed(make: Make = mlp, config: GENMIRConfig = SETTINGS, batches: int = 4) -> GENMIR:
    """A learner in its second task."""
    learner = GENMIR(make(), config, seed=6)
    for number in range(batches):
        learner.observe(*batch(number))
    return learner


class Search:
    """The search of facts.md written out, with networks of its own and the random numbers of a learner."""

    def __init__(self, learner: GENMIR, x: Tensor, y: Tensor) -> None:
        assert learner.vae is not None
        assert learner.earlier_vae is not None
        assert learner.earlier_network is not None
        self.config, self.x, self.y = learner.config, x, y
        self.vae, self.network = copy.deepcopy(learner.vae), copy.deepcopy(learner.network).train()
        self.earlier_vae: VAE = copy.deepcopy(learner.earlier_vae)
        self.earlier_network = copy.deepcopy(learner.earlier_network)
        self.generator = torch.Generator()
        self.generator.set_state(learner.generator.get_state())

    def normal(self, count: int) -> Tensor:
        return torch.randn(count, self.config.vae.latents, generator=self.generator).to(self.x)

    def stepped(self, network: nn.Module, loss: Tensor) -> None:
        optimizer = torch.optim.SGD(network.parameters(), lr=self.config.ahead_rate)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def both(self, weight: float) -> tuple[list[Tensor], list[Tensor]]:
        """The latents for the generator and for the classifier; one search never looks at the other."""
        self.stepped(self.vae, self.vae.loss(self.x, self.normal(len(self.x)), weight))
        self.stepped(self.network, nn.functional.cross_entropy(self.network(self.x), self.y))
        for_vae, for_network = list[Tensor](), list[Tensor]()
        for _ in range(self.config.groups):
            drawn = self.normal(20)
            ours, theirs = drawn[:10], drawn[10:]
            for _ in range(self.config.ascent_steps):
                ours = self.ascended(self.gain_for_vae, ours, for_vae)
                theirs = self.ascended(self.gain_for_network, theirs, for_network)
            for_vae.append(ours)
            for_network.append(theirs)
        return for_vae, for_network

    def ascended(self, gain: Gain, z: Tensor, found: list[Tensor]) -> Tensor:
        z = z.detach().requires_grad_()
        return (z + torch.autograd.grad(gain(z, found), z)[0]).detach()

    def gain_for_network(self, z: Tensor, found: list[Tensor]) -> Tensor:
        images = self.earlier_vae.decode(z)
        earlier: Tensor = self.earlier_network(images).softmax(1)
        harm: Tensor = -(earlier * self.network(images).softmax(1).log()).sum() / len(z)
        return self.config.interference * harm + self.rest(z, found)

    def gain_for_vae(self, z: Tensor, found: list[Tensor]) -> Tensor:
        images = self.earlier_vae.decode(z)
        harm = self.kl(self.vae, images) - self.kl(self.earlier_vae, images)
        return self.config.interference * harm + self.rest(z, found)

    def kl(self, vae: VAE, images: Tensor) -> Tensor:
        mean, variance = vae.encode(images)
        z = mean + variance.sqrt() * self.normal(len(images))
        q, p = torch.distributions.Normal(mean, variance.sqrt()), torch.distributions.Normal(0.0, 1.0)
        divergence: Tensor = (q.log_prob(z) - p.log_prob(z)).sum() / len(z)  # type: ignore[no-untyped-call]
        return divergence

    def rest(self, z: Tensor, found: list[Tensor]) -> Tensor:
        earlier: Tensor = self.earlier_network(self.earlier_vae.decode(z)).softmax(1)
        gain = self.config.certainty * (earlier * earlier.log()).sum() / len(z)
        for group in found:
            gain = gain + self.config.diversity * ((z - group) ** 2).sum() / z.numel() / len(found)
        return gain


@pytest.mark.parametrize("weight", [0.0, 0.4])
@every_network
def test_images_are_those_of_two_literal_searches(make: Make, weight: float) -> None:
    learner, (x, y) = observed(make), batch(4)
    search = Search(learner, x, y)
    for found, expected in zip(learner.replayed(x, y, weight), search.both(weight), strict=True):
        torch.testing.assert_close(found, search.earlier_vae.decode(torch.cat(expected)), rtol=0, atol=1e-9)


def test_searching_changes_no_network() -> None:
    learner, (x, y) = observed(), batch(4)
    before = copy.deepcopy(learner.state_dict())
    list(learner.replayed(x, y, 0.5))
    after = learner.state_dict()
    for name in ("network", "vae", "earlier_vae", "earlier_network"):
        one, other = before[name], after[name]
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        assert all(torch.equal(value, other[key]) for key, value in one.items()), name
    assert all(p.grad is None for p in learner.network.parameters())


def latents_of(learner: GENMIR, x: Tensor, y: Tensor) -> Tensor:
    """The latents that a search for the classifier ends with."""
    assert learner.earlier_vae is not None
    dreamt: list[Tensor] = []
    hook = learner.earlier_vae.decoder.register_forward_pre_hook(lambda _, inputs: dreamt.append(inputs[0]))
    list(learner.replayed(x, y, 0.5))
    hook.remove()
    return dreamt[-1].detach()


def test_ascended_latents_gain_by_it() -> None:
    """Each group, by the gain written out, with the groups before it as the search ended them."""
    learner, (x, y) = observed(), batch(4)
    search = Search(learner, x, y)
    ended = torch.split(latents_of(learner, x, y), 10)
    search.stepped(search.network, nn.functional.cross_entropy(search.network(x), y))
    search.normal(len(x))  # for the step of the generator
    for number, end in enumerate(ended):
        start, found = search.normal(20)[10:], list(ended[:number])
        search.normal(2 * SETTINGS.ascent_steps * 10)  # for the search of the generator
        assert not torch.equal(start, end)
        assert float(search.gain_for_network(end, found).detach()) > float(
            search.gain_for_network(start, found).detach()
        )


def test_diversity_drives_groups_apart() -> None:
    x, y = batch(4)

    def apart(diversity: float) -> float:
        """The mean squared distance of the second group of latents from the first."""
        learner = observed(config=replace(SETTINGS, groups=2))
        learner.config = replace(learner.config, diversity=diversity)
        first, second = torch.split(latents_of(learner, x, y), 10)
        return float((first - second).square().mean())

    assert apart(0.0) < 0.9 * apart(1.0) < 0.9 * apart(3.0)


def test_first_group_does_not_depend_on_diversity() -> None:
    (x, y), found = batch(4), []
    for diversity in (0.0, 2.0):
        learner = observed()
        learner.config = replace(learner.config, diversity=diversity)
        found.append(torch.split(latents_of(learner, x, y), 10))
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.allclose(found[0][1], found[1][1])


def test_search_that_fails_falls_back_to_latents_of_the_prior() -> None:
    learner, (x, y) = observed(), batch(4)
    learner.config = replace(learner.config, diversity=1e200)
    search = Search(learner, x, y)
    failed, before = search.normal(10), [search.normal(10)]
    for _ in range(3):
        failed = search.ascended(search.gain_for_network, failed, before)
    assert not failed.isfinite().all()
    latents = latents_of(learner, x, y)
    assert latents.shape == (30, 3)
    assert latents.isfinite().all()
    assert latents.abs().max() < 5
    assert 0.5 < float(latents.std()) < 1.5
    for images in learner.replayed(x, y, 0.5):
        assert images.isfinite().all()
        assert len(images) == 30
    learner.observe(x, y)
    assert all(p.isfinite().all() for p in learner.network.parameters())


def test_dropout_of_the_generator_is_off_in_its_copy_and_on_in_its_search() -> None:
    config = replace(SETTINGS, vae=MLPVAEConfig(latents=3, depth=1, hidden=6, dropout=0.4))
    learner = observed(config=config)
    z = torch.randn(5, 3, dtype=torch.float64)
    assert torch.equal(learner.dream(z), learner.dream(z))
    assert learner.vae is not None
    assert learner.vae.training
    assert not torch.equal(learner.vae.decode(z), learner.vae.decode(z))
    assert all(images.isfinite().all() for images in learner.replayed(*batch(4), 0.5))


def test_first_task_is_plain_generative_replay() -> None:
    plain = GEN(mlp(), GENConfig(0.05, 1, 3, vae=SETTINGS.vae, tasks=SETTINGS.tasks), seed=6)
    learner = observed(batches=0)
    for number in range(4):
        found, expected = learner.observe(*batch(number)), plain.observe(*batch(number))
        if number < 2:
            assert_same(found, expected)
            assert_same(learner.state_dict(), plain.state_dict())
    with pytest.raises(AssertionError):
        assert_same(dict(learner.network.state_dict()), dict(plain.network.state_dict()), 1e-12)
