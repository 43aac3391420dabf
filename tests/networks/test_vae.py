"""Variational auto-encoders: sizes of the published ones, both parts of the bound by hand, and that they learn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autorecall import GEN, GENConfig
from autorecall.data import load
from autorecall.errors import ConfigError, InputError
from autorecall.networks import ConvVAEConfig, FourierConfig, GatedMLPConfig, MLPVAEConfig
from autorecall.networks.gated import Gated
from autorecall.networks.vae import _TwoAsOne, sampled_kl

GREY, COLOUR, LARGE = (1, 28, 28), (3, 32, 32), (3, 64, 64)


@pytest.mark.parametrize(
    ("config", "shape", "parameters"),
    [
        (MLPVAEConfig(), GREY, 254_068),
        (MLPVAEConfig(depth=1, dropout=0.4), GREY, 221_044),
        (ConvVAEConfig(latents=50), COLOUR, 3_768_615),
        (ConvVAEConfig(latents=100), COLOUR, 4_203_915),
        (ConvVAEConfig(latents=100), LARGE, 12_952_971),
    ],
)
def test_generators_have_the_parameters_of_the_paper(
    config: MLPVAEConfig | ConvVAEConfig, shape: tuple[int, ...], parameters: int
) -> None:
    with torch.device("meta"):
        network = config.build(shape)
        assert sum(p.numel() for p in network.parameters()) == parameters
        mean, variance = network.encode(torch.rand(2, *shape))
        assert mean.shape == variance.shape == (2, config.latents)
        assert network.decode(mean).shape == (2, *shape)


def test_classifier_of_generative_replay_has_the_parameters_of_the_paper() -> None:
    network = GatedMLPConfig().build(GREY, 10)
    assert sum(p.numel() for p in network.parameters()) == 636_020
    assert 2 * 254_068 + 636_020 == 1_144_156
    assert 2 * 221_044 + 636_020 == 1_078_108
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.2]


def test_gated_perceptron_by_hand() -> None:
    network = GatedMLPConfig(hidden=(5,)).build((2, 3), 4).eval()
    hidden, last = (module for module in network.modules() if isinstance(module, Gated))
    x = 5 * torch.randn(7, 2, 3)
    rows = x.flatten(1)
    rows = hidden.value(rows).clamp_min(0) * torch.sigmoid(hidden.gate(rows))
    expected = last.value(rows) * torch.sigmoid(last.gate(rows))
    torch.testing.assert_close(network(x), expected)
    assert (expected < 0).any(), "no ReLU on logits"


def test_sampled_kl_has_the_closed_form_as_its_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([[0.5, -1.5, 0.0], [0.0, 0.0, 0.0], [2.0, 0.1, -0.3]], dtype=torch.float64)
    variance = torch.tensor([[0.2, 3.0, 1.0], [1.0, 1.0, 1.0], [0.01, 7.0, 0.5]], dtype=torch.float64)
    noise = torch.randn(40_000, 3, 3, generator=generator, dtype=torch.float64)
    closed = 0.5 * (mean**2 + variance - variance.log() - 1).sum(1)
    for row in range(3):
        z = mean[row] + variance[row].sqrt() * noise[:, row]
        found = sampled_kl(z, mean[row], variance[row])
        error = float(found.std()) / 40_000**0.5
        assert abs(float(found.mean()) - float(closed[row])) <= 4 * error + 1e-12, row
    assert closed[1] == 0


def test_sampled_kl_is_a_difference_of_log_densities() -> None:
    mean, z = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    variance = torch.rand(4, 3, dtype=torch.float64) + 0.1
    q, p = torch.distributions.Normal(mean, variance.sqrt()), torch.distributions.Normal(0.0, 1.0)
    expected = (q.log_prob(z) - p.log_prob(z)).sum(1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(sampled_kl(z, mean, variance), expected)


def test_divergence_is_of_latents_that_have_the_encoders_mean_and_variance() -> None:
    vae = MLPVAEConfig(latents=3, hidden=6).build((2, 2)).double()
    x, noise = torch.rand(5, 2, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    mean, variance = vae.encode(x)
    assert (variance > 0).all()
    z, kl = vae.kl(x, noise)
    torch.testing.assert_close(z, mean + variance**0.5 * noise)
    torch.testing.assert_close(kl, sampled_kl(z, mean, variance).sum() / 5)
    for weight in (0.0, 0.3, 1.0):
        torch.testing.assert_close(vae.loss(x, noise, weight), vae.reconstruction(x, vae.decode(z)) + weight * kl)


def test_reconstruction_of_grey_values_is_summed_over_pixels_and_a_mean_over_images() -> None:
    vae = MLPVAEConfig(latents=3, hidden=6).build((2, 4)).double()
    x, z = torch.rand(5, 2, 4, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    means = vae.decode(z)
    assert means.shape == x.shape
    expected = -(x * means.log() + (1 - x) * (1 - means).log()).sum() / 5
    torch.testing.assert_close(vae.reconstruction(x, vae.decode(z)), expected)


def test_reconstruction_of_a_certain_generator_is_finite() -> None:
    vae = MLPVAEConfig(latents=3, hidden=6).build((2, 4)).double()
    x, z = torch.rand(5, 2, 4, dtype=torch.float64), 1e6 * torch.randn(5, 3, dtype=torch.float64)
    means = vae.decode(z)
    assert ((means == 0) | (means == 1)).any()
    means = means.clamp(1e-5, 1 - 1e-5)
    expected = -(x * means.log() + (1 - x) * (1 - means).log()).sum() / 5
    torch.testing.assert_close(vae.reconstruction(x, vae.decode(z)), expected)
    assert expected.isfinite()


@pytest.mark.parametrize("form", ["sum", "mean"])
def test_reconstruction_of_colours_by_hand(form: str) -> None:
    vae = ConvVAEConfig(latents=2, reconstruction="sum" if form == "sum" else "mean").build((3, 8, 4))
    x, z = torch.rand(5, 3, 8, 4), torch.randn(5, 2)
    squares = (vae.decode(z) - x) ** 2
    expected = squares.sum() / 5 if form == "sum" else squares.sum() / squares.numel() / 5
    torch.testing.assert_close(vae.reconstruction(x, vae.decode(z)), expected)


def test_variance_of_colours_is_kept_within_bounds() -> None:
    vae = ConvVAEConfig(latents=4).build((1, 4, 4))
    assert isinstance(vae.variance, nn.Sequential)
    features = 1e3 * torch.randn(50, 256)
    variance = vae.variance(features).detach()
    assert (float(variance.min()), float(variance.max())) == pytest.approx((0.01, 7.0))
    torch.testing.assert_close(variance, nn.functional.softplus(vae.variance[0](features).detach()).clamp(0.01, 7))


def test_two_convolutions_as_one_are_one_after_the_other() -> None:
    first, second = nn.Conv2d(3, 7, 5, padding=2).double(), nn.Conv2d(7, 2, 1).double()
    fused = _TwoAsOne(first, second)
    x = torch.randn(4, 3, 6, 5, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(4, 2, 6, 5, dtype=torch.float64)
    tensors: list[Tensor] = [x, *first.parameters(), *second.parameters()]
    torch.testing.assert_close(fused(x), second(first(x)))
    found = torch.autograd.grad((fused(x) * direction).sum(), tensors)
    expected = torch.autograd.grad((second(first(x)) * direction).sum(), tensors)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(3, 30, 32), (3, 32, 30), (3, 33, 33), (1, 28, 27), (784,), (28, 28)])
def test_shapes_that_strides_cannot_halve_twice_are_refused(shape: tuple[int, ...]) -> None:
    learner = GEN(FourierConfig(features=4).build(shape, 3), GENConfig(vae=ConvVAEConfig(latents=2)))
    with pytest.raises(InputError, match="multiples of 4"):
        learner.observe(torch.rand(2, *shape), torch.tensor([0, 1]))


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 8, 4), (2, 12, 20)])
def test_shapes_that_are_multiples_of_4_are_made(shape: tuple[int, ...]) -> None:
    vae = ConvVAEConfig(latents=3).build(shape)
    assert vae.decode(vae.encode(torch.rand(2, *shape))[0]).shape == (2, *shape)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_dropout_follows_each_hidden_layer(dropout: float) -> None:
    vae = MLPVAEConfig(depth=2, dropout=dropout).build((4,))
    found = [module.p for module in vae.modules() if isinstance(module, nn.Dropout)]
    assert found == ([dropout] * 4 if dropout else [])


def test_impossible_generators_are_refused_by_name() -> None:
    for make, part in (
        (lambda: MLPVAEConfig(latents=0), "learner.vae.latents is 0"),
        (lambda: MLPVAEConfig(dropout=1.0), "learner.vae.dropout is 1.0"),
        (lambda: ConvVAEConfig(latents=0), "learner.vae.latents is 0"),
        (lambda: GatedMLPConfig(dropout=-0.1), "network.dropout is -0.1"),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert part in str(caught.value)


def test_bound_rises_in_training_on_digits() -> None:
    """From next to nothing to better than the best picture that is the same for all digits."""
    images = torch.from_numpy(load("mnist").train.inputs[:60].copy()).float() / 255
    vae = MLPVAEConfig(latents=8, depth=1, hidden=64).build(GREY)
    optimizer = torch.optim.Adam(vae.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    fixed = torch.randn(60, 8, generator=generator)
    start = -float(vae.loss(images, fixed, 1.0).detach())
    for _ in range(150):
        optimizer.zero_grad()
        vae.loss(images, torch.randn(60, 8, generator=generator), 1.0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    end = -float(vae.loss(images, fixed, 1.0).detach())
    same = images.mean(0).clamp(1e-5, 1 - 1e-5).expand_as(images)
    best_without_latents = -float(nn.functional.binary_cross_entropy(same, images, reduction="sum")) / 60
    assert start < -400
    assert end > best_without_latents > start
