"""Which networks treat copies of an image alike, and that counting distinct images is the same as running copies."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from autorecall.recall.copies import counted, distinct, forward, obstacle, treats_copies_alike

from .worlds import CLASSES, COUNTS, NETWORKS, assert_close, network_of, of_copies, some_images

every_network = pytest.mark.parametrize("kind", NETWORKS)


# Whether copies may be merged


class Unknown(nn.Module):
    """Treats images alone, but does not say so."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Declared(Unknown):
    treats_images_alone = True


class Inherited(Declared):
    pass


class OwnLinear(nn.Linear):
    pass


class Ceaseless(nn.Dropout):
    """Dropout that does not stop in eval mode."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.dropout(input, self.p, training=True)


UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "Dropout": lambda: nn.Dropout(0.5),
    "AlphaDropout": lambda: nn.AlphaDropout(0.1),
    "Unknown": Unknown,
    "Inherited": Inherited,
    "OwnLinear": lambda: OwnLinear(8, 8),
    "Softmax": lambda: nn.Softmax(0),
    "Ceaseless": lambda: Ceaseless(0.5).eval(),
}
KNOWN: dict[str, Callable[[], nn.Module]] = {
    "dropout of nothing": lambda: nn.Dropout(0.0),
    "dropout frozen in eval mode": lambda: nn.Dropout(0.5).eval(),
    "class that says so": Declared,
    "batch norm": lambda: nn.BatchNorm1d(8),
    "layer norm": lambda: nn.LayerNorm(8),
    "gelu": nn.GELU,
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(8, 8), Declared())),
}


def around(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(512, 8), layer, nn.ReLU(), nn.Linear(8, CLASSES))


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_layer_that_may_treat_copies_differently_is_named(name: str) -> None:
    assert obstacle(around(UNKNOWN[name]())) == f"{name} (2)"


def test_a_network_that_is_unknown_as_a_whole_is_named_by_its_class() -> None:
    assert obstacle(Unknown()) == "Unknown"


@pytest.mark.parametrize("name", KNOWN)
def test_nothing_is_in_the_way_where_every_layer_treats_copies_alike(name: str) -> None:
    assert obstacle(around(KNOWN[name]())) is None


@every_network
def test_nothing_is_in_the_way_in_any_of_these_networks(kind: str) -> None:
    assert obstacle(network_of(kind)) is None


# Finding out by trying


class Own(nn.Module):
    """A user's network around something."""

    def __init__(self, middle: Callable[[Tensor], Tensor], momentum: float | None = 0.1) -> None:
        super().__init__()
        self.first, self.last, self.middle = nn.Linear(512, 8), nn.Linear(8, CLASSES), middle
        self.norm = nn.BatchNorm1d(8, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.norm(self.first(x.flatten(1)))))  # type: ignore[no-any-return]


def sometimes(x: Tensor) -> Tensor:
    """Draws, but hardly ever changes a value."""
    return x * (torch.rand(len(x), 1) > 1e-6)


ALIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "softmax over classes": lambda x: x.softmax(1),
    "cut at the largest": lambda x: x.clamp_max(x.detach().max()),
}
DIFFERENT: dict[str, Callable[[Tensor], Tensor]] = {
    "centred": lambda x: x - x.mean(0),
    "softmax over images": lambda x: x.softmax(0),
    "divided by their number": lambda x: x / len(x),
    "batch-norm of its own": lambda x: nn.functional.batch_norm(x, None, None, training=True),
    "dropout": lambda x: nn.functional.dropout(x, 0.5),
    "hardly any dropout": sometimes,
    "drawn in Python": lambda x: x if random.random() > 1e-9 else -x,
    "the image before": lambda x: x + x.roll(1, 0),
    "gradient of another": lambda x: x.detach() + x.mean(0) - x.mean(0).detach(),
    "no gradient at all": lambda x: x.detach(),
    "an error": lambda x: x if len(x) == 3 else torch.zeros(0).max(),
    "not finite": lambda x: x * torch.inf,
}


@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("name", ALIKE)
def test_a_network_that_treats_copies_alike_is_found_out(name: str, count: int) -> None:
    network = Own(ALIKE[name])
    assert obstacle(network) == "Own"
    assert treats_copies_alike(copy.deepcopy(network), torch.rand(count, 512))
    assert treats_copies_alike(copy.deepcopy(network).double(), torch.rand(count, 512).double())


@pytest.mark.parametrize("x", [torch.rand(10, 512), torch.zeros(10, 512)], ids=["images", "nothing"])
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_network_that_treats_copies_differently_is_found_out(name: str, x: Tensor) -> None:
    network = Own(DIFFERENT[name])
    state = torch.get_rng_state(), random.getstate()
    assert not treats_copies_alike(network, x)
    assert (random.getstate(), torch.get_rng_state().tolist()) == (state[1], state[0].tolist())


def test_weights_of_zero_hide_nothing() -> None:
    network = Own(DIFFERENT["centred"])
    nn.init.zeros_(network.last.weight)
    assert not treats_copies_alike(network, torch.rand(10, 512))
    network = Own(ALIKE["tanh"])
    nn.init.zeros_(network.last.weight)
    assert treats_copies_alike(network, torch.rand(10, 512))


def test_statistics_that_would_be_others_are_noticed() -> None:
    layers = nn.Unflatten(1, (2, 256)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
    assert not treats_copies_alike(nn.Sequential(*layers, nn.Linear(512, 4)), torch.rand(10, 512))


def test_a_dropout_layer_is_not_tried() -> None:
    assert not treats_copies_alike(Own(nn.Dropout(1e-9)), torch.rand(10, 512))
    assert not treats_copies_alike(Own(Ceaseless(1e-9).eval()), torch.rand(10, 512))
    assert treats_copies_alike(Own(nn.Dropout(0.5).eval()), torch.rand(10, 512))


# Counting


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50))
def test_distinct_loses_no_copy(origins: list[int]) -> None:
    images, counts = distinct(torch.tensor(origins))
    assert images.repeat_interleave(counts).tolist() == sorted(origins)
    assert all(one < next_one for one, next_one in pairwise(images.tolist()))


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("counts", [COUNTS, torch.ones(3, dtype=torch.int64)], ids=["uneven", "once each"])
@every_network
def test_a_counted_batch_gives_the_outputs_of_its_copies(kind: str, counts: Tensor) -> None:
    network, x, of_copy = network_of(kind), some_images(), of_copies(counts)
    literal = copy.deepcopy(network)
    assert_close(forward(network, x, counts)[of_copy], literal(x[of_copy]), 1e-12)
    assert_close(dict(network.state_dict()), dict(literal.state_dict()), 1e-12)


@every_network
def test_without_counts_nothing_is_different(kind: str) -> None:
    network, x = network_of(kind), some_images()
    plain = copy.deepcopy(network)
    assert torch.equal(forward(network, x, None), plain(x))
    assert_close(dict(network.state_dict()), dict(plain.state_dict()), 0)


def traces(network: nn.Module) -> list[str]:
    return [name for name, module in network.named_modules() if "forward" in vars(module)]


@every_network
def test_counting_leaves_no_trace(kind: str) -> None:
    network = network_of(kind)
    before = {name: list(vars(module)) for name, module in network.named_modules()}
    forward(network, some_images(), COUNTS)
    assert {name: list(vars(module)) for name, module in network.named_modules()} == before


@pytest.mark.parametrize("kind", ["resnet", "batch norm 1d"])
def test_counting_leaves_no_trace_after_an_error(kind: str) -> None:
    network = network_of(kind)
    with pytest.raises(RuntimeError):
        forward(network, torch.rand(3, 1, 2, 2, dtype=torch.float64), COUNTS)
    assert traces(network) == []


def test_a_forward_that_was_there_before_is_there_afterwards() -> None:
    network = network_of("batch norm 1d")
    layer = next(module for module in network.modules() if isinstance(module, nn.BatchNorm1d))
    vars(layer)["forward"] = found = layer.forward
    with counted(network, COUNTS):
        assert layer.forward is not found
    assert vars(layer)["forward"] is found


def test_layers_in_eval_mode_are_left_alone() -> None:
    network, x = network_of("resnet").eval(), some_images()
    plain = network(x)
    before = copy.deepcopy(network.state_dict())
    with counted(network, COUNTS):
        assert traces(network) == []
        assert torch.equal(network(x), plain)
    assert_close(dict(network.state_dict()), dict(before), 0)


def test_layers_without_running_statistics_count_in_eval_mode_too() -> None:
    network, x = nn.BatchNorm2d(2, track_running_stats=False).double().eval(), some_images()
    assert_close(forward(network, x, COUNTS)[of_copies(COUNTS)], network(x[of_copies(COUNTS)]), 1e-12)
