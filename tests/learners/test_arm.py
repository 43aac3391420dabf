"""ARM against a literal transcription of Algorithm 1, and what else `observe` of ARM promises."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from autorecall import (
    ARM,
    ARMConfig,
    LagConfig,
    MLPConfig,
    Recalled,
    ResNet18Config,
    Stream,
    StreamConfig,
    load_dataset,
)
from autorecall.commands.measure import LiteralARM
from autorecall.errors import ConfigError, DivergedError, InputError
from autorecall.metrics import task_accuracy
from autorecall.recall.copies import treats_copies_alike
from autorecall.recall.objective import TERMS
from autorecall.recall.terms import DivergenceForm

from .algorithm1 import Algorithm1
from .worlds import CLASSES, IMAGE, Make, assert_same, batch, conv, mlp, teacher_of

Copies = Literal["auto", "keep", "collapse"]

SETTINGS = ARMConfig(
    recalled_images=6,
    ascent_steps=3,
    recall_rate=2.0,
    divergence=1.5,
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
ALWAYS = replace(SETTINGS, recalled_images=17, lag=LagConfig("every", every=1, start=0))
VARIANTS = {
    "plain": SETTINGS,
    "fewer images than real": replace(SETTINGS, recalled_images=4),
    "more images than real": replace(SETTINGS, recalled_images=17),
    "many more images than real": replace(SETTINGS, recalled_images=60),
    "noise": replace(SETTINGS, initial="noise"),
    "much noise": replace(SETTINGS, initial="noise", recalled_images=9),
    "hard targets": replace(SETTINGS, targets="hard"),
    "hard targets, copies": replace(SETTINGS, targets="hard", recalled_images=17),
    "no distill": replace(SETTINGS, real_weight=0.0, recalled_images=17),
    "only distill": replace(SETTINGS, recalled_weight=0.0),
    "repeats": replace(SETTINGS, repeats=2, recalled_images=17),
    "repeats that accumulate": replace(SETTINGS, repeats=3, accumulate_repeats=True, recalled_images=17),
    "jensen-shannon": replace(SETTINGS, divergence_form="jensen-shannon"),
    "cross-entropy": replace(SETTINGS, divergence_form="cross-entropy", recalled_images=17),
    "unit lag": replace(SETTINGS, lag=LagConfig("every", every=1, start=2)),
    "start inside a task": replace(SETTINGS, lag=LagConfig("every", every=3, start=1)),
}
some_variants = pytest.mark.parametrize(
    "variant", ["plain", "more images than real", "no distill", "repeats that accumulate"]
)


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


def dropped() -> nn.Module:
    layers = nn.Conv2d(2, 5, 3, padding=1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(150, CLASSES)
    return nn.Sequential(*layers).double()


LAYERS: tuple[Make, ...] = (normalised, along_a_line, without_statistics, centred, partly_frozen)
unknown_layers = pytest.mark.filterwarnings("ignore:recall keeps all:UserWarning")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tests run: so teacher and student of a convolutional network run side by side."""
    monkeypatch.setattr("autorecall.learners.shared.algorithm1.cores", lambda: 2)


def watch(learner: ARM) -> list[tuple[Recalled, Tensor]]:
    """Every recalled batch from now on, with the teacher's answers."""
    seen: list[tuple[Recalled, Tensor]] = []
    learner.on_recall = lambda recalled, targets: seen.append((recalled, targets))
    return seen


# Algorithm 1


def assert_follows_algorithm_1(
    learner: ARM,
    batches: int = 6,
    count: int = 6,
    seed: int = 0,
    momentum: float = 0.0,
    shape: tuple[int, ...] = IMAGE,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-9,
) -> None:
    """Its numbers, what was recalled, and both networks, after every batch."""
    network, seen = learner.network, watch(learner)
    literal = Algorithm1(copy.deepcopy(network), learner.config, seed, momentum)
    for number in range(batches):
        x, y = batch(number, count, shape)
        found, expected = learner.observe(x.to(dtype), y), literal.observe(x.to(dtype), y)
        assert_same(found, dict.fromkeys(found, math.nan) | expected, tolerance, f"numbers of batch {number}")
        assert_same(network.state_dict(), literal.student.state_dict(), tolerance, f"student at batch {number}")
        assert_same(teacher_of(learner), dict(literal.teacher.state_dict()), tolerance, f"teacher at batch {number}")
        if seen:
            assert_stands_for_copies(*seen[-1], literal, tolerance)
    assert seen


def assert_stands_for_copies(recalled: Recalled, targets: Tensor, literal: Algorithm1, tolerance: float) -> None:
    """Every image that Algorithm 1 recalled is among these, which count as often as they occur there."""
    of_copy = list(range(len(literal.recalled)))
    assert (recalled.origins is None) == (literal.origins is None)
    if recalled.origins is not None and literal.origins is not None:
        origins = recalled.origins.tolist()
        of_copy = [origins.index(origin) for origin in literal.origins]
        assert sorted(recalled.origins.repeat_interleave(recalled.counts).tolist()) == sorted(literal.origins)
    assert recalled.total == len(literal.recalled)
    assert_same(recalled.images[of_copy], literal.recalled, tolerance, "recalled images")
    assert_same(targets[of_copy], literal.answers, tolerance, "the teacher's answers")
    assert not recalled.images.requires_grad
    assert not targets.requires_grad


@pytest.mark.parametrize("way", ["as it is", "copies kept", "without kernels", "equations as they stand"])
@some_variants
@pytest.mark.parametrize("make", [mlp, conv])
def test_observe_follows_algorithm_1_in_every_way(
    make: Make, variant: str, way: str, request: pytest.FixtureRequest
) -> None:
    if way == "without kernels":
        request.getfixturevalue("without_kernels")
    learner = (LiteralARM if way == "equations as they stand" else ARM)(make(), VARIANTS[variant])
    if way == "copies kept":
        learner.copies = "keep"
    assert_follows_algorithm_1(learner)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("make", [mlp, conv])
def test_observe_follows_algorithm_1(make: Make, variant: str) -> None:
    assert_follows_algorithm_1(ARM(make(), VARIANTS[variant]))


@unknown_layers
@pytest.mark.parametrize("kind", [ARM, LiteralARM])
@pytest.mark.parametrize("images", [4, 17])
@pytest.mark.parametrize("make", LAYERS)
def test_observe_follows_algorithm_1_where_a_layer_needs_care(make: Make, images: int, kind: type[ARM]) -> None:
    assert_follows_algorithm_1(kind(make(), replace(SETTINGS, recalled_images=images)))


@pytest.mark.parametrize("images", [4, 17])
def test_observe_follows_algorithm_1_with_the_network_of_the_paper(images: int) -> None:
    network = ResNet18Config(channels=4).build((2, 16, 16), CLASSES).double()
    assert_follows_algorithm_1(ARM(network, replace(ALWAYS, recalled_images=images)), batches=3, shape=(2, 16, 16))


@unknown_layers
@given(
    make=st.sampled_from((mlp, conv, *LAYERS)),
    copies=st.sampled_from(["auto", "keep"]),
    images=st.integers(2, 40),
    count=st.integers(2, 8),
    seed=st.integers(0, 10**6),
    form=st.sampled_from(get_args(DivergenceForm)),
    repeats=st.integers(1, 3),
    accumulate=st.booleans(),
    targets=st.sampled_from(["soft", "hard"]),
    real_weight=st.sampled_from([0.0, 0.6]),
)
def test_observe_follows_algorithm_1_whatever_the_settings(
    make: Make,
    copies: Copies,
    images: int,
    count: int,
    seed: int,
    form: DivergenceForm,
    repeats: int,
    accumulate: bool,
    targets: Literal["soft", "hard"],
    real_weight: float,
) -> None:
    config = replace(
        ALWAYS,
        recalled_images=images,
        ascent_steps=2,
        divergence_form=form,
        repeats=repeats,
        accumulate_repeats=accumulate,
        targets=targets,
        real_weight=real_weight,
    )
    learner = ARM(make(), config, seed=seed)
    learner.copies = copies
    assert_follows_algorithm_1(learner, 2, count, seed)


@pytest.mark.parametrize("images", [1, 17])
@pytest.mark.parametrize("make", [mlp, conv])
def test_observe_follows_algorithm_1_with_a_single_image(make: Make, images: int) -> None:
    assert_follows_algorithm_1(ARM(make(), replace(ALWAYS, recalled_images=images)), count=1)


@pytest.mark.parametrize("variant", ["plain", "more images than real"])
@pytest.mark.parametrize("make", [mlp, conv])
def test_observe_follows_algorithm_1_in_single_precision(make: Make, variant: str) -> None:
    assert_follows_algorithm_1(ARM(make().float(), VARIANTS[variant]), dtype=torch.float32, tolerance=1e-4)


@some_variants
def test_users_own_optimizer_takes_both_steps(variant: str) -> None:
    network = conv()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.9)
    config = replace(VARIANTS[variant], learning_rate=0.03)
    assert_follows_algorithm_1(ARM(network, config, optimizer), momentum=0.9)


def test_users_optimizer_rather_than_the_config_sets_the_rate() -> None:
    by_config, by_optimizer = mlp(), mlp()
    quick = ARM(by_config, replace(SETTINGS, learning_rate=0.2))
    slow_config = ARM(by_optimizer, SETTINGS, torch.optim.SGD(by_optimizer.parameters(), lr=0.2))
    for number in range(4):
        assert_same(quick.observe(*batch(number)), slow_config.observe(*batch(number)))
    assert_same(by_config.state_dict(), by_optimizer.state_dict())


def test_layer_frozen_in_eval_later_is_frozen_in_the_next_copy() -> None:
    network = conv()
    literal = Algorithm1(copy.deepcopy(network), SETTINGS, seed=0)
    learner = ARM(network, SETTINGS)
    for number in range(4):
        if number == 2:
            for student in (network, literal.student):
                assert isinstance(student, nn.Sequential)
                student[4].eval()
        learner.observe(*batch(number))
        literal.observe(*batch(number))
    assert_same(teacher_of(learner), dict(literal.teacher.state_dict()), 1e-9)


def test_running_statistics_count_every_published_pass() -> None:
    """Real batch, S ascent steps, recalled batch, real batch again; the teacher all but the first."""
    network = conv()
    learner = ARM(network, replace(ALWAYS, ascent_steps=5))
    learner.observe(*batch(0))
    for name in ("1.num_batches_tracked", "4.num_batches_tracked"):
        assert network.state_dict()[name] == 8
        assert teacher_of(learner)[name] == 7


@pytest.mark.parametrize("repeats", [1, 3])
def test_on_recall_is_given_the_recalled_batch_of_every_repeat(repeats: int) -> None:
    learner = ARM(mlp(), replace(SETTINGS, repeats=repeats))
    seen = watch(learner)
    for number in range(4):
        learner.observe(*batch(number))
    assert len({recalled.images.sum() for recalled, _ in seen}) == len(seen) == 2 * repeats


def test_same_seed_recalls_the_same_and_another_seed_does_not() -> None:
    def after(seed: int) -> dict[str, Tensor]:
        network = mlp()
        learner = ARM(network, replace(SETTINGS, recalled_images=2), seed=seed)
        for number in range(3):
            learner.observe(*batch(number))
        return network.state_dict()

    assert_same(after(1), after(1))
    with pytest.raises(AssertionError):
        assert_same(after(1), after(2))


# Copies


def test_a_whole_run_gives_the_same_accuracies_with_copies_kept_and_collapsed() -> None:
    digits = load_dataset("mnist")
    stream = Stream(digits, StreamConfig(), fraction=0.06)
    tested = digits.test.inputs[:1000], digits.test.labels[:1000]

    def accuracies(copies: Copies) -> list[list[float]]:
        torch.manual_seed(0)
        network = MLPConfig().build(digits.input_shape, 10).double()
        config = ARMConfig(recalled_images=30, lag=LagConfig("every")).for_stream(stream.task_lengths)
        learner = ARM(network, config)
        learner.copies = copies
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


def recalled_by(network: nn.Module, config: ARMConfig = ALWAYS, copies: Copies = "auto", count: int = 6) -> Recalled:
    """What the first batch makes a learner recall."""
    learner = ARM(network, config)
    learner.copies = copies
    seen = watch(learner)
    learner.observe(*batch(0, count))
    return seen[0][0]


@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("images", [10, 30, 1000])
def test_no_more_images_are_recalled_than_the_real_batch_has(images: int, count: int) -> None:
    recalled = recalled_by(mlp(), replace(ALWAYS, recalled_images=images), count=count)
    assert len(recalled.images) == len(recalled.counts) <= count
    assert recalled.total == images


def test_copies_are_kept_where_a_layer_may_treat_them_differently_and_each_learner_says_so_once() -> None:
    learners = ARM(centred(), ALWAYS), ARM(dropped(), ALWAYS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for learner in learners:
            seen = watch(learner)
            for number in range(3):
                learner.observe(*batch(number))
            assert [recalled.counts.tolist() for recalled, _ in seen] == [[1] * 17] * 3
    for warning, name in zip(caught, ["Centre (2)", "Dropout (2)"], strict=True):
        assert str(warning.message).startswith("recall keeps all 17 copies, which takes longer: " + name)
        assert warning.filename == __file__


class OwnNetwork(nn.Module):
    """A user's class, of which nothing is known."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = conv()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).tanh()  # type: ignore[no-any-return]


def test_a_network_of_ones_own_is_tried_once_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def trying(network: nn.Module, x: Tensor) -> bool:
        tried.append(treats_copies_alike(network, x))
        return tried[-1]

    monkeypatch.setattr("autorecall.learners.shared.algorithm1.treats_copies_alike", trying)
    assert_follows_algorithm_1(ARM(OwnNetwork().double(), VARIANTS["more images than real"]))
    assert tried == [True]
    assert len(recalled_by(OwnNetwork().double()).counts) <= 6


def test_copies_that_are_dropped_out_differently_become_different_images() -> None:
    """That is why they may not be merged; where dropout is frozen, they may."""
    config, network = replace(ALWAYS, recalled_images=12), dropped()
    with pytest.warns(UserWarning, match=r"keeps all 12 copies.*Dropout"):
        assert len(torch.unique(recalled_by(network, config, count=2).images.flatten(1), dim=0)) == 12
    network.get_submodule("2").eval()
    assert len(recalled_by(network, config, count=2).counts) == 2


@pytest.mark.parametrize("make", [centred, dropped, mlp])
@pytest.mark.parametrize("copies", ["keep", "collapse"])
def test_copies_are_kept_or_merged_without_a_word_where_that_is_asked_for(make: Make, copies: Copies) -> None:
    recalled = recalled_by(make(), copies=copies)
    assert recalled.total == 17
    assert (len(recalled.counts) == 17) if copies == "keep" else (len(recalled.counts) <= 6)


@pytest.mark.parametrize("copies", get_args(Copies))
@pytest.mark.parametrize(("images", "initial"), [(1, "real"), (5, "real"), (6, "real"), (6, "noise"), (17, "noise")])
def test_nothing_is_said_where_there_are_no_copies(
    images: int, initial: Literal["real", "noise"], copies: Copies
) -> None:
    recalled = recalled_by(centred(), replace(ALWAYS, recalled_images=images, initial=initial), copies)
    assert recalled.counts.tolist() == [1] * images
    assert (recalled.origins is None) == (initial == "noise")


def leaves(state: object) -> Iterator[object]:
    """The plain values and tensors of a nested state."""
    if isinstance(state, Mapping | list):
        for part in state.values() if isinstance(state, Mapping) else state:
            yield from leaves(part)
    else:
        yield state


@pytest.mark.parametrize("images", [10, 1000])
def test_a_learner_keeps_as_much_after_many_tasks_as_after_one(images: int) -> None:
    learner = ARM(conv(), replace(ALWAYS, recalled_images=images, ascent_steps=1, lag=LagConfig("boundary")))
    sizes = []
    for number in range(8):
        learner.boundary()
        learner.observe(batch(number)[0], torch.arange(CLASSES))
        kept = list(leaves(learner.state_dict()))
        sizes.append((len(kept), sum(value.numel() for value in kept if isinstance(value, Tensor))))
    assert learner.teacher.boundaries.tasks == 8
    assert len(set(sizes)) == 1
    assert learner.memory().images == 0


# Threads


@unknown_layers
@pytest.mark.parametrize(
    ("make", "threads", "worth"),
    [(conv, None, 2), (conv, 2, 2), (conv, 64, 2), (conv, 1, 1), (mlp, None, 1), (dropped, None, 1)],
)
def test_threads_are_used_where_they_pay_and_are_there(make: Make, threads: int | None, worth: int) -> None:
    learner = ARM(make(), ALWAYS)
    learner.threads = threads
    learner.observe(*batch(0))
    assert learner.side_by_side.threads == worth


@some_variants
def test_teacher_and_student_side_by_side_change_no_bit(variant: str) -> None:
    found = []
    for threads in (1, 2):
        learner = ARM(conv(), VARIANTS[variant])
        learner.threads = threads
        numbers = [learner.observe(*batch(number)) for number in range(5)]
        found.append((numbers, learner.state_dict()))
        assert torch.get_num_threads() == 1
    assert_same(found[1][0], found[0][0])
    assert_same(found[1][1], found[0][1])


@unknown_layers
@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_the_same_again_from_the_same_seed(training: bool) -> None:
    """Two threads would draw in a race."""

    def weights() -> Mapping[str, Tensor]:
        torch.manual_seed(0)
        network = dropped().train(training)
        learner = ARM(network, SETTINGS)
        for number in range(4):
            learner.observe(*batch(number))
        return network.state_dict()

    first = weights()
    for _ in range(4):
        assert_same(weights(), first)


# Divergence


HUGE = ARMConfig(recalled_images=6, ascent_steps=1, lag=LagConfig("every", every=1, start=0))
WITHOUT_D = replace(HUGE, learning_rate=1e38, divergence=0)


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize(
    ("config", "named"),
    [
        (replace(HUGE, learning_rate=1e38), "the term divergence of the recall objective"),
        (WITHOUT_D, "the term student_avoidance of the recall objective"),
        (replace(WITHOUT_D, ascent_steps=3), "the term student_avoidance of the recall objective"),
        (replace(HUGE, ascent_steps=10, recall_rate=1e38), r"the term \w+ of the recall objective"),
        (replace(HUGE, ascent_steps=10, diversity=3e38), r"the (gradient of the )?recall objective"),
        (replace(HUGE, recalled_weight=3e38), "the loss on recalled images"),
        (replace(HUGE, real_weight=3e38), "the distillation loss on the real batch"),
    ],
)
def test_divergence_is_noticed_and_named(config: ARMConfig, named: str) -> None:
    network, (x, y) = mlp().float(), batch(0)
    with pytest.raises(DivergedError, match=f"^{named} became (nan|-?inf)") as caught:
        ARM(network, config).observe(x.float(), y)
    assert not math.isfinite(caught.value.value)
    assert all(module.training for module in network.modules())


# Settings


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", [*TERMS, "recall_rate", "learning_rate", "recalled_weight", "real_weight"])
def test_rates_and_weights_that_are_no_numbers_or_negative_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.{name} is {value}"):
        replace(SETTINGS, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["recalled_images", "ascent_steps", "repeats", "recall_rate", "learning_rate"])
def test_zero_is_refused_where_it_means_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.{name} is 0"):
        replace(SETTINGS, **{name: 0})  # type: ignore[arg-type]


def test_learning_from_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"recalled_weight and learner\.real_weight are both 0"):
        ARMConfig(recalled_weight=0.0, real_weight=0.0)


@pytest.mark.parametrize("name", ["divergence_form", "initial", "targets"])
def test_words_that_are_no_choice_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.{name} is"):
        replace(SETTINGS, **{name: "nonsense"})  # type: ignore[arg-type]


def test_a_way_with_copies_that_does_not_exist_is_refused() -> None:
    learner = ARM(conv())
    learner.copies = "nonsense"  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"learner\.copies is 'nonsense'; expected auto, collapse or keep"):
        learner.observe(*batch(0))
