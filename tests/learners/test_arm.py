"""ARM against a literal transcription of Algorithm 1, and what else `observe` of ARM promises."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from autorecall import ARM, ARMConfig, LagConfig
from autorecall.errors import DivergedError
from autorecall.learners import Recollection

from .algorithm1 import Algorithm1
from .worlds import CLASSES, IMAGE, assert_same, batch, conv, mlp, teacher_of

SETTINGS = ARMConfig(
    images=6,
    steps=3,
    recall_rate=2.0,
    divergence_weight=1.5,
    teacher_avoidance=0.7,
    student_avoidance=0.3,
    diversity=1.2,
    uncertainty=0.4,
    l2_norm=0.9,
    total_variation=0.8,
    learning_rate=0.05,
    recalled_weight=1.3,
    real_weight=0.6,
    lag=LagConfig("every", every=2, start=2),
)
VARIANTS = {
    "plain": SETTINGS,
    "fewer images than real": replace(SETTINGS, images=4),
    "more images than real": replace(SETTINGS, images=17),
    "noise": replace(SETTINGS, initial="noise"),
    "much noise": replace(SETTINGS, initial="noise", images=9),
    "hard targets": replace(SETTINGS, targets="hard"),
    "hard targets, copies": replace(SETTINGS, targets="hard", images=17),
    "no distill": replace(SETTINGS, real_weight=0.0, images=17),
    "only distill": replace(SETTINGS, recalled_weight=0.0),
    "repeats": replace(SETTINGS, repeats=2, images=17),
    "repeats that accumulate": replace(SETTINGS, repeats=3, accumulate_repeats=True, images=17),
    "jensen-shannon": replace(SETTINGS, divergence="jensen-shannon"),
    "cross-entropy": replace(SETTINGS, divergence="cross-entropy", images=17),
    "unit lag": replace(SETTINGS, lag=LagConfig("every", every=1, start=2)),
    "copies kept": replace(SETTINGS, images=17, copies="keep"),
    "start inside a task": replace(SETTINGS, lag=LagConfig("every", every=3, start=1)),
}
NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "conv": conv}


class Centre(nn.Module):
    """A layer of the user's own that ties the images of a batch together, unknown to any list of layers."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def centred() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 8), Centre(), nn.ReLU(), nn.Linear(8, CLASSES)).double()


def normalised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)).double()


def without_statistics() -> nn.Module:
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False, affine=False), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(48, CLASSES)).double()


def along_a_line() -> nn.Module:
    """Batch-norm of (images, channels, length)."""
    layers = nn.Flatten(2), nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4, momentum=None), nn.Flatten(), nn.Linear(112, CLASSES)
    return nn.Sequential(*layers).double()


def partly_frozen() -> nn.Module:
    """One layer does not learn, one normalises by its running statistics: both as the user set them."""
    network = conv()
    assert isinstance(network, nn.Sequential)
    network[3].requires_grad_(False)
    network[4].eval()
    return network


@pytest.fixture
def a_core_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.ascent.cores", lambda: 2)


@pytest.fixture
def no_core_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.ascent.cores", lambda: 1)


def assert_follows_algorithm_1(
    network: nn.Module,
    config: ARMConfig,
    optimizer: torch.optim.Optimizer | None = None,
    momentum: float = 0.0,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-9,
) -> None:
    literal = Algorithm1(copy.deepcopy(network), config, seed=5, rate=config.learning_rate, momentum=momentum)
    learner = ARM(network, config, optimizer, seed=5)
    for number in range(6):
        x, y = batch(number)
        found, expected = learner.observe(x.to(dtype), y), literal.observe(x.to(dtype), y)
        assert_same({name: found[name] for name in expected}, expected, tolerance, f"numbers of batch {number}")
        assert_same(network.state_dict(), literal.student.state_dict(), tolerance, f"student at batch {number}")
        assert_same(teacher_of(learner), dict(literal.teacher.state_dict()), tolerance, f"teacher at batch {number}")


@pytest.mark.parametrize("engine", ["fast", "plain"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("network", NETWORKS)
def test_observe_follows_algorithm_1(network: str, variant: str, engine: Literal["fast", "plain"]) -> None:
    assert_follows_algorithm_1(NETWORKS[network](), replace(VARIANTS[variant], engine=engine))


@pytest.mark.parametrize("variant", ["plain", "more images than real"])
@pytest.mark.parametrize("network", NETWORKS)
def test_observe_follows_algorithm_1_in_single_precision(network: str, variant: str) -> None:
    assert_follows_algorithm_1(NETWORKS[network]().float(), VARIANTS[variant], dtype=torch.float32, tolerance=1e-4)


@pytest.mark.parametrize("spare", ["a_core_to_spare", "no_core_to_spare"])
@pytest.mark.parametrize("variant", ["plain", "more images than real", "no distill", "repeats that accumulate"])
@pytest.mark.parametrize("network", NETWORKS)
def test_observe_follows_algorithm_1_with_teacher_and_student_side_by_side(
    network: str, variant: str, spare: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(spare)
    assert_follows_algorithm_1(NETWORKS[network](), VARIANTS[variant])
    assert torch.get_num_threads() == 1


@pytest.mark.filterwarnings("ignore:recall keeps all 17 copies:UserWarning")
@pytest.mark.parametrize("engine", ["fast", "plain"])
@pytest.mark.parametrize("images", [4, 17])
@pytest.mark.parametrize("make", [normalised, along_a_line, without_statistics, centred, partly_frozen])
def test_observe_follows_algorithm_1_where_a_layer_needs_care(
    make: Callable[[], nn.Module], images: int, engine: Literal["fast", "plain"]
) -> None:
    assert_follows_algorithm_1(make(), replace(SETTINGS, images=images, engine=engine))


def test_layer_frozen_in_eval_later_is_frozen_in_the_next_copy() -> None:
    network = conv()
    literal = Algorithm1(copy.deepcopy(network), SETTINGS, seed=0, rate=SETTINGS.learning_rate)
    learner = ARM(network, SETTINGS)
    for number in range(4):
        if number == 2:
            for student in (network, literal.student):
                assert isinstance(student, nn.Sequential)
                student[4].eval()
        learner.observe(*batch(number))
        literal.observe(*batch(number))
    assert_same(teacher_of(learner), dict(literal.teacher.state_dict()), 1e-9)


@pytest.mark.parametrize("variant", ["plain", "more images than real", "repeats that accumulate"])
def test_users_own_optimizer_takes_both_steps(variant: str) -> None:
    network = conv()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.9)
    config = replace(VARIANTS[variant], learning_rate=0.03)
    assert_follows_algorithm_1(network, config, optimizer, momentum=0.9)


def test_users_optimizer_rather_than_the_config_sets_the_rate() -> None:
    by_config, by_optimizer = mlp(), mlp()
    quick = ARM(by_config, replace(SETTINGS, learning_rate=0.2))
    slow_config = ARM(by_optimizer, SETTINGS, torch.optim.SGD(by_optimizer.parameters(), lr=0.2))
    for number in range(4):
        assert_same(quick.observe(*batch(number)), slow_config.observe(*batch(number)))
    assert_same(by_config.state_dict(), by_optimizer.state_dict())


def test_students_running_statistics_count_every_published_pass() -> None:
    """Real batch, S ascent steps, recalled batch, real batch again; the teacher all but the first."""
    network = conv()
    learner = ARM(network, replace(SETTINGS, steps=5, lag=LagConfig("every", every=1, start=0)))
    learner.observe(*batch(0))
    for name, count in (("1.num_batches_tracked", 8), ("4.num_batches_tracked", 8)):
        assert network.state_dict()[name] == count
        assert teacher_of(learner)[name] == count - 1


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("images", [1, 4, 6])
def test_on_recall_is_given_every_recalled_batch(images: int, repeats: int) -> None:
    given: list[Recollection] = []
    learner = ARM(mlp(), replace(SETTINGS, images=images, repeats=repeats))
    learner.on_recall = given.append
    for number in range(4):
        learner.observe(*batch(number))
    assert len(given) == 2 * repeats
    for recollection in given:
        recalled = recollection.recalled
        assert recalled.images.shape == (images, *IMAGE)
        assert recalled.counts.tolist() == [1] * images
        assert recalled.origins is not None
        assert len(set(recalled.origins.tolist())) == images
        torch.testing.assert_close(recollection.targets.sum(1), torch.ones(images, dtype=torch.float64))
        assert not recalled.images.requires_grad
        assert not recollection.targets.requires_grad


def test_recalled_targets_are_what_the_teacher_says_of_the_recalled_images() -> None:
    given: list[Recollection] = []
    network = mlp()
    learner = ARM(network, replace(SETTINGS, targets="hard"))
    learner.on_recall = given.append
    for number in range(3):
        if number == 2:
            teacher = copy.deepcopy(network)
        learner.observe(*batch(number))
    torch.testing.assert_close(given[0].targets, teacher(given[0].recalled.images).softmax(1).detach())


def dropped() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 30), nn.Dropout(0.5), nn.Linear(30, CLASSES)).double()


def distinct_after_recall(network: nn.Module) -> int:
    """Different images among 12 recalled from 2."""
    given: list[Recollection] = []
    learner = ARM(network, replace(SETTINGS, images=12, lag=LagConfig("every", every=1, start=0)))
    learner.on_recall = given.append
    learner.observe(*batch(0, count=2))
    assert given[0].recalled.total == 12
    return len(torch.unique(given[0].recalled.images.flatten(1), dim=0))


def test_dropout_keeps_copies_of_one_image_apart_and_says_so() -> None:
    """Copies that are dropped out differently are different images: they may not be merged."""
    with pytest.warns(UserWarning, match=r"keeps all 12 copies.*Dropout"):
        assert distinct_after_recall(dropped()) == 12


def test_dropout_that_is_frozen_in_eval_keeps_no_copies() -> None:
    network = dropped()
    assert isinstance(network, nn.Sequential)
    network[2].eval()
    assert distinct_after_recall(network) == 2


def test_unknown_layer_is_named_once() -> None:
    learner = ARM(centred(), replace(SETTINGS, images=17, lag=LagConfig("every", every=1, start=0)))
    with pytest.warns(UserWarning, match=r"keeps all 17 copies.*Centre \(2\)"):
        learner.observe(*batch(0))
    learner.observe(*batch(1))


@pytest.mark.usefixtures("a_core_to_spare")
@pytest.mark.filterwarnings("ignore:recall keeps all:UserWarning")
def test_dropout_is_the_same_again_from_the_same_seed() -> None:
    def weights() -> Tensor:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(300, 200), nn.Dropout(0.5), nn.Linear(200, CLASSES)).double()
        learner = ARM(network, replace(SETTINGS, total_variation=0.0, lag=LagConfig("every", every=1, start=0)))
        for number in range(3):
            learner.observe(*batch(number, shape=(300,)))
        weight: Tensor = network.state_dict()["1.weight"]
        return weight

    first = weights()
    assert all(torch.equal(weights(), first) for _ in range(4))


def test_numbers_have_the_same_names_at_every_step() -> None:
    learner = ARM(mlp(), replace(SETTINGS, images=17, lag=LagConfig("every", every=2, start=2)))
    numbers = [learner.observe(*batch(number)) for number in range(4)]
    assert all(list(step) == list(numbers[0]) for step in numbers)
    assert all(math.isfinite(value) for step in numbers[2:] for value in step.values())
    assert [math.isnan(step["objective"]) for step in numbers] == [True, True, False, False]
    for step in numbers[2:]:
        shares = [step[f"recalled_class_{label}"] for label in range(CLASSES)]
        assert sum(shares) == pytest.approx(1)
        assert min(shares) > 0


def test_same_seed_recalls_the_same_and_another_seed_does_not() -> None:
    def after(seed: int) -> dict[str, Tensor]:
        network = mlp()
        learner = ARM(network, replace(SETTINGS, images=2), seed=seed)
        for number in range(3):
            learner.observe(*batch(number))
        return network.state_dict()

    assert_same(after(1), after(1))
    with pytest.raises(AssertionError):
        assert_same(after(1), after(2))


HUGE = ARMConfig(images=6, steps=1, lag=LagConfig("every", every=1, start=0))


def diverged(config: ARMConfig) -> DivergedError:
    network = mlp().float()
    learner = ARM(network, config)
    x, y = batch(0)
    with pytest.raises(DivergedError) as caught:
        learner.observe(x.float(), y)
    assert not math.isfinite(caught.value.value)
    assert caught.value.term in str(caught.value)
    assert all(module.training for module in network.modules())
    return caught.value


@pytest.mark.parametrize("engine", ["fast", "plain"])
@pytest.mark.parametrize(
    ("config", "term"),
    [
        (replace(HUGE, learning_rate=1e38), "the term divergence of the recall objective"),
        (replace(HUGE, learning_rate=1e38, divergence_weight=0), "the term student_avoidance of the recall objective"),
        (replace(HUGE, recalled_weight=3e38), "the loss on recalled images"),
        (replace(HUGE, real_weight=3e38), "the distillation loss on the real batch"),
    ],
)
def test_divergence_is_noticed_and_named(config: ARMConfig, term: str, engine: Literal["fast", "plain"]) -> None:
    assert diverged(replace(config, engine=engine)).term == term


@pytest.mark.parametrize("engine", ["fast", "plain"])
@pytest.mark.parametrize("config", [replace(HUGE, steps=10, recall_rate=1e38), replace(HUGE, steps=10, diversity=3e38)])
def test_ascent_that_diverges_is_noticed(config: ARMConfig, engine: Literal["fast", "plain"]) -> None:
    assert "recall" in diverged(replace(config, engine=engine)).term


def test_term_that_diverges_first_is_the_one_named() -> None:
    config = replace(HUGE, steps=3, learning_rate=1e38, divergence_weight=0)
    assert diverged(config).term == "the term student_avoidance of the recall objective"


@pytest.mark.usefixtures("a_core_to_spare")
@pytest.mark.filterwarnings("ignore:recall keeps all:UserWarning")
def test_dropout_of_a_network_given_in_eval_mode_is_the_same_again() -> None:
    def weights() -> Tensor:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(60, 90), nn.Dropout(0.5), nn.Linear(90, CLASSES)).double()
        learner = ARM(network.eval(), replace(SETTINGS, lag=LagConfig("every", every=1, start=0)))
        for number in range(3):
            learner.observe(*batch(number))
        weight: Tensor = network.state_dict()["1.weight"]
        return weight

    first = weights()
    assert all(torch.equal(weights(), first) for _ in range(4))
