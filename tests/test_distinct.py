"""Distinct images with counts are the same mathematics as their copies, and take no more than the real batch does."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from autorecall import ARM, ARMConfig, LagConfig, Stream, StreamConfig, load_dataset
from autorecall.distinct import counted, distinct
from autorecall.learners import Recollection
from autorecall.metrics import task_accuracy
from autorecall.networks import MLPConfig, ResNet18Config
from autorecall.objectives import Divergence
from autorecall.recall import Recalled

Engine = Literal["fast", "plain"]
Targets = Literal["soft", "hard"]

CLASSES = 6
IMAGE = (2, 16, 16)
ALWAYS = LagConfig("every", every=1, start=0)
SETTINGS = ARMConfig(
    images=17,
    steps=3,
    recall_rate=2.0,
    teacher_avoidance=0.7,
    student_avoidance=0.3,
    diversity=1.2,
    uncertainty=0.4,
    recalled_weight=1.3,
    real_weight=0.6,
    lag=ALWAYS,
)


def with_group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(IMAGE[0], 4, 3, stride=2),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def with_batch_norm_of_vectors() -> nn.Module:
    layers = nn.Flatten(), nn.Linear(512, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, CLASSES)
    return nn.Sequential(*layers)


def with_batch_norm_along_a_line() -> nn.Module:
    layers = nn.Flatten(2), nn.Conv1d(2, 4, 5, stride=4), nn.BatchNorm1d(4, momentum=None), nn.Tanh(), nn.Flatten()
    return nn.Sequential(*layers, nn.LazyLinear(CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLPConfig((8, 7)).build(IMAGE, CLASSES),
    "resnet": lambda: ResNet18Config(channels=4).build(IMAGE, CLASSES),
    "group norm": with_group_norm,
    "batch norm 1d": with_batch_norm_of_vectors,
    "batch norm 1d along a line": with_batch_norm_along_a_line,
}


def network_of(kind: str, seed: int = 0) -> nn.Module:
    """A network in double precision."""
    torch.manual_seed(seed)
    network = NETWORKS[kind]()
    network(torch.rand(2, *IMAGE))  # lazy layers take their shape
    return network.double()


def fewest(kind: str) -> int:
    """Recalled images that the network can take: one vector has no variance."""
    return 2 if kind == "batch norm 1d" else 1


def batch(number: int, count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.rand(count, *IMAGE, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (count,), generator=generator)


@dataclass
class Observed:
    """A learner, and what it recalled and reported."""

    learner: ARM
    recollections: list[Recollection]
    numbers: list[dict[str, float]]

    @property
    def recalled(self) -> list[Recalled]:
        return [recollection.recalled for recollection in self.recollections]

    @property
    def kept(self) -> dict[str, Tensor]:
        """Parameters and statistics of the student and its teacher."""
        teacher = self.learner.teacher.network
        assert teacher is not None
        return dict(self.learner.network.state_dict()) | {f"teacher.{k}": v for k, v in teacher.state_dict().items()}


def observed(network: nn.Module, config: ARMConfig, batches: int = 1, count: int = 6, seed: int = 0) -> Observed:
    found = Observed(ARM(network, config, seed=seed), [], [])
    found.learner.on_recall = found.recollections.append
    found.numbers += [found.learner.observe(*batch(number, count)) for number in range(batches)]
    return found


def origins_of(recalled: Recalled) -> Tensor:
    assert recalled.origins is not None
    return recalled.origins


def assert_close(found: object, expected: object, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_copies_change_nothing(
    network: nn.Module, config: ARMConfig, batches: int = 1, count: int = 6, seed: int = 0
) -> Observed:
    """The same observes with copies kept and with copies collapsed, which are returned."""
    keeping = observed(copy.deepcopy(network), replace(config, copies="keep"), batches, count, seed)
    collapsing = observed(network, replace(config, copies="collapse"), batches, count, seed)
    for literal, merged in zip(keeping.recollections, collapsing.recollections, strict=True):
        origins = origins_of(merged.recalled)
        assert literal.recalled.counts.tolist() == [1] * config.images
        occurrences = origins_of(literal.recalled).bincount(minlength=count)
        assert merged.recalled.counts.tolist() == occurrences[occurrences > 0].tolist()
        assert origins.tolist() == occurrences.nonzero().flatten().tolist()
        of_copy = torch.searchsorted(origins, origins_of(literal.recalled))
        assert_close(merged.recalled.images[of_copy], literal.recalled.images)
        assert_close(merged.targets[of_copy], literal.targets)
    assert_close(collapsing.numbers, keeping.numbers)
    assert_close(collapsing.kept, keeping.kept)
    return collapsing


# The same mathematics


@pytest.mark.parametrize("engine", get_args(Engine))
@pytest.mark.parametrize("images", [1, 4, 6, 7, 17, 60])
@pytest.mark.parametrize("kind", NETWORKS)
def test_an_observe_is_the_same_with_copies_kept_and_collapsed(kind: str, images: int, engine: Engine) -> None:
    images = max(images, fewest(kind))
    found = assert_copies_change_nothing(network_of(kind), replace(SETTINGS, images=images, engine=engine))
    (recalled,) = found.recalled
    assert len(recalled.images) == len(recalled.counts) <= min(images, 6)
    assert recalled.total == images
    if images > 6:
        assert len(set(recalled.counts.tolist())) > 1  # or uneven counts would go untested


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", ["mlp", "resnet"])
def test_an_observe_of_hardly_any_images_is_the_same(kind: str, count: int) -> None:
    assert_copies_change_nothing(network_of(kind), SETTINGS, count=count)


@pytest.mark.parametrize("lag", [LagConfig("every", every=2, start=2), LagConfig("every", every=3, start=1), ALWAYS])
@pytest.mark.parametrize("kind", NETWORKS)
def test_many_observes_are_the_same_while_the_teacher_is_refreshed(kind: str, lag: LagConfig) -> None:
    found = assert_copies_change_nothing(network_of(kind), replace(SETTINGS, lag=lag, steps=2), batches=6)
    assert found.learner.teacher.boundaries.tasks > 1


@given(
    kind=st.sampled_from(sorted(NETWORKS)),
    images=st.integers(1, 40),
    count=st.integers(2, 8),
    seed=st.integers(0, 10**6),
    engine=st.sampled_from(get_args(Engine)),
    divergence=st.sampled_from(get_args(Divergence)),
    repeats=st.integers(1, 3),
    accumulate=st.booleans(),
    targets=st.sampled_from(get_args(Targets)),
    real_weight=st.sampled_from([0.0, 0.6]),
)
def test_copies_change_nothing_whatever_the_settings(
    kind: str,
    images: int,
    count: int,
    seed: int,
    engine: Engine,
    divergence: Divergence,
    repeats: int,
    accumulate: bool,
    targets: Targets,
    real_weight: float,
) -> None:
    config = replace(
        SETTINGS,
        images=max(images, fewest(kind)),
        steps=2,
        engine=engine,
        divergence=divergence,
        repeats=repeats,
        accumulate_repeats=accumulate,
        targets=targets,
        real_weight=real_weight,
    )
    assert_copies_change_nothing(network_of(kind, seed), config, count=count, seed=seed)


@pytest.mark.parametrize("kind", ["resnet", "batch norm 1d"])
def test_copies_change_nothing_without_a_compiled_module(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.kernels._kernels", dict)
    assert_copies_change_nothing(network_of(kind), SETTINGS)


def test_layers_frozen_in_eval_mode_normalise_distinct_images_as_they_do_copies() -> None:
    network = network_of("resnet")
    frozen = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)][3]
    frozen.eval()
    passes = int(frozen.num_batches_tracked or 0)
    found = assert_copies_change_nothing(network, SETTINGS)
    assert frozen.num_batches_tracked == passes
    assert len(found.recalled[0].images) <= 6


def test_a_whole_run_gives_the_same_accuracies_with_copies_kept_and_collapsed() -> None:
    digits = load_dataset("mnist")
    stream = Stream(digits, StreamConfig(), fraction=0.06)
    tested = digits.test.inputs[:1000], digits.test.labels[:1000]

    def accuracies(copies: Literal["collapse", "keep"]) -> list[list[float]]:
        torch.manual_seed(0)
        network = MLPConfig().build(digits.input_shape, 10).double()
        config = ARMConfig(images=30, copies=copies, side_by_side=False, lag=LagConfig("every"))
        learner = config.build(network, 0, stream.task_lengths)
        matrix = []
        for task in stream:
            for x, y in task:
                learner.observe(x.double(), y)
            guesses = learner.predict(torch.from_numpy(tested[0]).double() / 255).argmax(1).numpy()
            matrix.append([task_accuracy(guesses, tested[1], each.classes) for each in stream])
        return matrix

    collapsed = accuracies("collapse")
    assert accuracies("keep") == collapsed
    assert max(collapsed[-1]) > 20  # it did learn something


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


def around(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(512, 8), layer, nn.ReLU(), nn.Linear(8, CLASSES)).double()


UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "Dropout": lambda: nn.Dropout(0.5),
    "AlphaDropout": lambda: nn.AlphaDropout(0.1),
    "Unknown": Unknown,
    "Inherited": Inherited,
    "OwnLinear": lambda: OwnLinear(8, 8),
    "Softmax": lambda: nn.Softmax(0),
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


@contextmanager
def heard() -> Iterator[list[str]]:
    """What is warned of inside."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(warning.message) for warning in caught]


@pytest.mark.parametrize("name", UNKNOWN)
def test_copies_are_kept_where_a_layer_may_treat_them_differently_and_that_is_said_once(name: str) -> None:
    with heard() as messages:
        found = observed(around(UNKNOWN[name]()), SETTINGS, batches=4)
    (message,) = messages
    assert f"{name} (2)" in message
    assert "17 copies" in message
    assert [recalled.counts.tolist() for recalled in found.recalled] == [[1] * 17] * 4


def test_a_network_that_is_unknown_as_a_whole_is_named_by_its_class() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = around(nn.Identity())

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x)
            return logits

    with pytest.warns(UserWarning, match=r": Whole is not known"):
        observed(Whole(), SETTINGS)


def test_every_learner_says_for_itself_why_it_keeps_copies() -> None:
    with heard() as messages:
        for _ in range(2):
            observed(around(Unknown()), SETTINGS, batches=2)
    assert len(messages) == 2


@pytest.mark.parametrize("name", KNOWN)
def test_copies_are_merged_where_every_layer_is_known_to_treat_them_alike(name: str) -> None:
    for recalled in observed(around(KNOWN[name]()), SETTINGS, batches=2).recalled:
        assert len(recalled.counts) <= 6
        assert recalled.total == 17


def test_dropout_of_a_users_own_class_that_never_stops_keeps_the_copies() -> None:
    class Ceaseless(nn.Dropout):
        def forward(self, input: Tensor) -> Tensor:
            return nn.functional.dropout(input, self.p, training=True)

    with pytest.warns(UserWarning, match="Ceaseless"):
        observed(around(Ceaseless(0.5).eval()), SETTINGS)


@pytest.mark.parametrize(("copies", "entries"), [("keep", 17), ("collapse", 6)])
@pytest.mark.parametrize("layer", [Unknown, nn.ReLU, nn.Dropout])
def test_copies_are_kept_or_merged_without_a_word_where_that_is_asked_for(
    layer: Callable[[], nn.Module], copies: Literal["keep", "collapse"], entries: int
) -> None:
    (recalled,) = observed(around(layer()), replace(SETTINGS, copies=copies, steps=1)).recalled
    assert len(recalled.counts) <= entries
    assert (len(recalled.counts) == 17) == (copies == "keep")


@pytest.mark.parametrize("copies", ["auto", "keep", "collapse"])
@pytest.mark.parametrize(("images", "initial"), [(1, "real"), (5, "real"), (6, "real"), (6, "noise"), (17, "noise")])
def test_nothing_is_said_where_there_are_no_copies(
    images: int, initial: Literal["real", "noise"], copies: Literal["auto", "keep", "collapse"]
) -> None:
    config = replace(SETTINGS, images=images, initial=initial, copies=copies)
    (recalled,) = observed(around(Unknown()), config).recalled
    assert recalled.counts.tolist() == [1] * images
    assert (recalled.origins is None) == (initial == "noise")


# What it takes


@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("images", [10, 30, 100, 300, 1000])
def test_no_more_images_are_recalled_than_the_real_batch_has(images: int, count: int) -> None:
    (recalled,) = observed(network_of("mlp"), replace(SETTINGS, images=images), count=count).recalled
    assert len(recalled.images) == len(recalled.counts) <= count
    assert recalled.total == images
    assert_close(recalled.weights.sum(), torch.tensor(1.0, dtype=torch.float64))


def leaves(state: object) -> Iterator[object]:
    """The plain values and tensors of a nested state."""
    if isinstance(state, Mapping | list):
        for part in state.values() if isinstance(state, Mapping) else state:
            yield from leaves(part)
    else:
        yield state


@pytest.mark.parametrize("images", [10, 1000])
def test_a_learner_keeps_as_much_after_many_tasks_as_after_one(images: int) -> None:
    learner = ARM(network_of("resnet"), replace(SETTINGS, images=images, steps=1, lag=LagConfig("boundary")))
    sizes = []
    for number in range(8):
        learner.boundary()
        learner.observe(batch(number)[0], torch.arange(CLASSES))
        kept = list(leaves(learner.state_dict()))
        sizes.append((len(kept), sum(value.numel() for value in kept if isinstance(value, Tensor))))
    assert learner.teacher.boundaries.tasks == 8
    assert len(set(sizes)) == 1
    assert learner.memory().images == 0


# Counting


def test_distinct_gives_the_images_that_occur_in_order_and_how_often() -> None:
    images, counts = distinct(torch.tensor([5, 1, 5, 0, 5, 1]))
    assert images.tolist() == [0, 1, 5]
    assert counts.tolist() == [1, 2, 3]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50))
def test_distinct_loses_no_copy(origins: list[int]) -> None:
    images, counts = distinct(torch.tensor(origins))
    assert images.repeat_interleave(counts).tolist() == sorted(origins)
    assert all(one < next_one for one, next_one in pairwise(images.tolist()))


COUNTS = torch.tensor([2, 1, 4])


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_counted_batch_gives_the_outputs_of_its_copies(kind: str) -> None:
    network, (x, _) = network_of(kind), batch(0, count=3)
    literal = copy.deepcopy(network)
    of_copy = torch.arange(3).repeat_interleave(COUNTS)
    with counted(network, COUNTS):
        found = network(x)[of_copy]
    assert_close(found, literal(x[of_copy]), 1e-12)
    assert_close(dict(network.state_dict()), dict(literal.state_dict()), 1e-12)


@pytest.mark.parametrize("kind", NETWORKS)
def test_counts_of_one_are_a_plain_batch(kind: str) -> None:
    network, (x, _) = network_of(kind), batch(0)
    plain = copy.deepcopy(network)
    with counted(network, torch.ones(6, dtype=torch.int64)):
        found = network(x)
    assert_close(found, plain(x), 1e-12)
    assert_close(dict(network.state_dict()), dict(plain.state_dict()), 1e-12)


@pytest.mark.parametrize("kind", NETWORKS)
def test_without_counts_nothing_is_different(kind: str) -> None:
    network, (x, _) = network_of(kind), batch(0)
    plain = copy.deepcopy(network)
    with counted(network, None):
        assert torch.equal(network(x), plain(x))
    assert_close(dict(network.state_dict()), dict(plain.state_dict()), 0)


def traces(network: nn.Module) -> list[str]:
    return [name for name, module in network.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize("kind", NETWORKS)
def test_counting_leaves_no_trace(kind: str) -> None:
    network = network_of(kind)
    before = {name: list(vars(module)) for name, module in network.named_modules()}
    with counted(network, COUNTS):
        network(batch(0, count=3)[0])
    assert {name: list(vars(module)) for name, module in network.named_modules()} == before


@pytest.mark.parametrize("kind", ["resnet", "batch norm 1d"])
def test_counting_leaves_no_trace_after_an_error(kind: str) -> None:
    network = network_of(kind)
    with pytest.raises(RuntimeError), counted(network, COUNTS):
        network(torch.rand(3, 1, 2, 2, dtype=torch.float64))
    assert traces(network) == []


def test_a_forward_that_was_there_before_is_there_afterwards() -> None:
    network = network_of("batch norm 1d")
    layer = next(module for module in network.modules() if isinstance(module, nn.BatchNorm1d))
    vars(layer)["forward"] = layer.forward
    with counted(network, COUNTS):
        pass
    assert "forward" in vars(layer)


def test_layers_in_eval_mode_are_left_alone() -> None:
    network, (x, _) = network_of("resnet").eval(), batch(0, count=3)
    plain = network(x)
    before = copy.deepcopy(network.state_dict())
    with counted(network, COUNTS):
        assert traces(network) == []
        assert torch.equal(network(x), plain)
    assert_close(dict(network.state_dict()), dict(before), 0)


def test_layers_without_running_statistics_count_in_eval_mode_too() -> None:
    network, (x, _) = nn.BatchNorm2d(2, track_running_stats=False).double().eval(), batch(0, count=3)
    of_copy = torch.arange(3).repeat_interleave(COUNTS)
    with counted(network, COUNTS):
        found = network(x)
    assert_close(found[of_copy], network(x[of_copy]), 1e-12)
