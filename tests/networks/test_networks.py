from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autorecall.errors import ConfigError
from autorecall.networks import MLP, MLPConfig, ResNet18, ResNet18Config
from autorecall.networks.resnet import BasicBlock


@pytest.mark.parametrize(
    ("config", "shape", "classes", "parameters", "tensors"),
    [
        (MLPConfig(), (1, 28, 28), 10, 478_410, 6),
        (ResNet18Config(), (3, 32, 32), 10, 1_094_750, 62),
        (ResNet18Config(), (3, 84, 84), 100, 1_157_240, 62),
    ],
)
def test_networks_have_the_parameters_of_the_paper(
    config: MLPConfig | ResNet18Config, shape: tuple[int, ...], classes: int, parameters: int, tensors: int
) -> None:
    network = config.build(shape, classes)
    sizes = [p.numel() for p in network.parameters()]
    assert (sum(sizes), len(sizes)) == (parameters, tensors)


def test_only_the_stem_averages_its_statistics_cumulatively() -> None:
    network = ResNet18Config(channels=2).build((3, 32, 32), 10)
    momenta = [module.momentum for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert momenta == [None] + [0.1] * 19
    published_by_replay = ResNet18Config(channels=2, stem_momentum=0.1).build((3, 32, 32), 10)
    assert all(m.momentum == 0.1 for m in published_by_replay.modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (16, 16), (28, 28), (32, 32), (33, 47), (64, 64), (84, 84), (16, 64)])
def test_resnet_takes_any_image_size(size: tuple[int, int], channels: int) -> None:
    network = ResNet18Config(channels=2).build((channels, *size), 7)
    assert network(torch.rand(2, channels, *size)).shape == (2, 7)


@pytest.mark.parametrize(("size", "features"), [(32, 160), (84, 640)])
def test_resnet_pools_to_the_features_of_the_paper(size: int, features: int) -> None:
    network = ResNet18Config().build((3, size, size), 10)
    assert isinstance(network, ResNet18)
    assert network.classify.in_features == features


def test_resnet_has_no_max_pool_and_keeps_the_size_in_the_stem() -> None:
    network = ResNet18((3, 32, 32), 10, channels=2, stem_momentum=None)
    assert network.stem(torch.rand(1, 3, 32, 32)).shape == (1, 2, 32, 32)
    assert not any(isinstance(module, nn.MaxPool2d) for module in network.modules())


@pytest.mark.parametrize("channels", [3, 9])
def test_a_shortcut_strides_alike_whether_by_slicing_or_by_convolution(channels: int) -> None:
    block = BasicBlock(channels, 5, stride=2).double()
    x = torch.rand(3, channels, 7, 6, dtype=torch.float64)
    convolution = block.shortcut[0]
    assert isinstance(convolution, nn.Conv2d)
    strided = F.conv2d(x, convolution.weight, stride=2)
    main = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(x)))))
    torch.testing.assert_close(block(x), F.relu(main + block.shortcut[1](strided)))


def test_resnet_gradient_reaches_every_parameter_and_the_image() -> None:
    network = ResNet18Config(channels=2).build((3, 16, 16), 4)
    x = torch.rand(3, 3, 16, 16, requires_grad=True)
    network(x).square().sum().backward()
    assert x.grad is not None
    assert all(p.grad is not None and bool(p.grad.any()) for p in network.parameters())


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4, 3)])
def test_mlp_is_linear_layers_with_relu_between_on_images_as_they_are(hidden: tuple[int, ...]) -> None:
    network = MLP(12, hidden, 3)
    x = torch.randn(4, 1, 3, 4)
    features = x.reshape(4, 12)
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    for number, linear in enumerate(linears):
        features = features @ linear.weight.T + linear.bias
        if number < len(linears) - 1:
            features = features * (features > 0)
    assert len(linears) == len(hidden) + 1
    torch.testing.assert_close(network(x), features)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: MLPConfig(hidden=(400, 0)), "network.hidden is (400, 0)"),
        (lambda: ResNet18Config(channels=0), "network.channels is 0"),
        (lambda: ResNet18Config(stem_momentum=0.0), "network.stem_momentum is 0.0"),
        (lambda: ResNet18Config(stem_momentum=1.5), "network.stem_momentum is 1.5"),
        (lambda: ResNet18Config(stem_momentum=float("nan")), "network.stem_momentum is nan"),
        (lambda: ResNet18Config().build((784,), 10), "(784,)"),
    ],
)
def test_impossible_networks_are_refused_by_name(make: Callable[[], object], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert part in str(caught.value)
