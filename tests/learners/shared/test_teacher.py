"""When the teacher is refreshed, and when recall begins."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from torch import nn

from autorecall import ARM, ARMConfig, BoundaryConfig, LagConfig, LwF, LwFConfig, Naive
from autorecall.errors import ConfigError
from autorecall.learners.shared.boundaries import SPACING
from autorecall.networks import MLPConfig

from ..worlds import TAUGHT, assert_same, learner, mlp, teacher_of

Labels = Sequence[Sequence[int]]


def refreshes_and_start(lag: LagConfig, labels: Labels, boundaries: Sequence[int] = ()) -> tuple[list[int], int | None]:
    """The batches before which the teacher became a copy of the student, and the first batch with a second step."""
    torch.manual_seed(0)
    network = nn.Linear(3, 20)
    student = LwF(network, LwFConfig(lag=lag))
    copies, began, last = [], None, None
    for number, classes in enumerate(labels):
        if number in boundaries:
            student.boundary()
        before = copy.deepcopy(dict(network.state_dict()))
        numbers = student.observe(torch.rand(len(classes), 3), torch.tensor(classes))
        teacher = copy.deepcopy(teacher_of(student))
        if last is None or not same(teacher, last):
            copies.append(number)
            assert_same(teacher, before)
        if began is None and not math.isnan(numbers["distillation"]):
            began = number
        last = teacher
    return copies, began


def same(one: object, other: object) -> bool:
    try:
        assert_same(one, other)
    except AssertionError:
        return False
    return True


ALIKE = [[0, 1]] * 10


@pytest.mark.parametrize(
    ("every", "start", "copies", "began"),
    [
        (3, 3, [0, 3, 6, 9], 3),
        (3, 4, [0, 3, 6, 9], 4),
        (4, 0, [0, 4, 8], 0),
        (4, None, [0, 4, 8], 4),
        (1, 5, list(range(10)), 5),
        (100, 2, [0], 2),
    ],
)
def test_every_t_copies_before_batches_0_t_2t(every: int, start: int | None, copies: list[int], began: int) -> None:
    assert refreshes_and_start(LagConfig("every", every=every, start=start), ALIKE) == (copies, began)


def test_novel_copies_before_a_class_never_seen() -> None:
    labels = [[0, 1]] * 3 + [[2, 3]] * 3 + [[0, 3]] * 2 + [[4, 5]] * 2
    assert refreshes_and_start(LagConfig("novel", spacing=1), labels) == ([0, 3, 8], 3)


def test_late_class_of_a_task_does_not_refresh_the_teacher_again() -> None:
    """The trap: the first batches of a task of five classes need not show all five."""
    first = [[0, 1, 2], [0, 1, 3], [4, 1, 0], [0, 1, 2], [3, 4, 2], [0, 2, 4]]
    second = [[5, 6], [7, 5], [8, 9], [5, 9], [6, 7], [8, 5]]
    assert refreshes_and_start(LagConfig("novel", spacing=12), first + second) == ([0, 6], 6)
    assert refreshes_and_start(LagConfig("novel", spacing=1), first + second)[0] == [0, 1, 2, 6, 7, 8]


@pytest.mark.parametrize(("spacing", "copies"), [(5, [0, 5]), (6, [0])])
def test_spacing_is_the_fewest_images_between_two_copies(spacing: int, copies: list[int]) -> None:
    assert refreshes_and_start(LagConfig("novel", spacing=spacing), [[0]] * 5 + [[1]] * 3)[0] == copies


@pytest.mark.parametrize(("size", "batches"), [(64, 1), (64, 3), (20, 2), (10, 4), (1, 40)])
def test_short_tasks_are_noticed_whatever_the_size_of_a_batch(size: int, batches: int) -> None:
    labels = [[2 * task, 2 * task + 1] * (size // 2) or [task] for task in range(5) for _ in range(batches)]
    copies, began = refreshes_and_start(LagConfig("novel"), labels)
    assert copies == [batches * task for task in range(5)]
    assert began == batches


def test_forty_images_leave_out_one_of_five_classes_in_one_task_of_1500() -> None:
    """And a batch of ten shows them all with probability 0.52. By the closed form, as the module says."""

    def shows_all(images: int) -> float:
        left_out = [math.comb(5, missing) * math.pow(1 - missing / 5, images) for missing in range(6)]
        return math.fsum(left_out[0::2]) - math.fsum(left_out[1::2])

    assert shows_all(10) == pytest.approx(0.52, abs=0.005)
    assert 1 / (1 - shows_all(SPACING)) == pytest.approx(1500, rel=0.01)


def test_class_that_comes_late_by_a_few_images_starts_no_task() -> None:
    labels = [[0] * 10] * 3 + [[1] * 10] + [[0, 1] * 5] * 3 + [[2] * 10]
    assert refreshes_and_start(LagConfig("novel"), labels)[0] == [0, 7]


@pytest.mark.parametrize("policy", ["every", "boundary"])
def test_spacing_is_refused_where_it_would_do_nothing(policy: Literal["every", "boundary"]) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.lag\.spacing is 5 but the policy is {policy}"):
        LagConfig(policy, spacing=5)


def test_spacing_counts_from_the_last_copy() -> None:
    labels = [[0]] * 4 + [[1]] * 3 + [[2]] + [[3]] * 3
    assert refreshes_and_start(LagConfig("novel", spacing=4), labels)[0] == [0, 4, 8]


def test_boundary_copies_before_the_next_batch_only() -> None:
    labels = [[number] for number in range(10)]
    assert refreshes_and_start(LagConfig("boundary"), labels, boundaries=[3, 7]) == ([0, 3, 7], 3)
    assert refreshes_and_start(LagConfig("boundary", start=5), labels, boundaries=[3]) == ([0, 3], 5)
    assert refreshes_and_start(LagConfig("boundary"), labels) == ([0], None)


def test_boundary_before_the_first_batch_is_no_second_copy() -> None:
    assert refreshes_and_start(LagConfig("boundary"), ALIKE, boundaries=[0, 4]) == ([0, 4], 4)


@pytest.mark.parametrize("lag", [LagConfig("novel"), LagConfig("every", every=100, start=100)])
def test_boundary_is_heard_under_every_policy(lag: LagConfig) -> None:
    assert refreshes_and_start(lag, ALIKE, boundaries=[4])[0] == [0, 4]


def test_stream_of_equal_tasks_gives_the_lag_and_the_start() -> None:
    assert LagConfig("every").for_stream((7, 7, 7)) == LagConfig("every", every=7, start=7)
    assert LagConfig("every", start=3).for_stream((7, 7)) == LagConfig("every", every=7, start=3)
    assert LagConfig("every").for_stream((7,)) == LagConfig("every", every=7, start=7)


def test_stream_gives_unit_lag_its_start_and_keeps_an_explicit_one() -> None:
    assert LagConfig("every", every=1).for_stream((7, 7)) == LagConfig("every", every=1, start=7)
    assert LagConfig("every", every=1).for_stream((7, 9)) == LagConfig("every", every=1, start=7)
    assert LagConfig("every", every=2, start=0).for_stream((7, 7)) == LagConfig("every", every=2, start=0)


def test_stream_of_unequal_tasks_refreshes_at_each_boundary() -> None:
    lag = LagConfig("every").for_stream((3, 5, 2))
    assert lag == LagConfig("boundary")
    assert refreshes_and_start(lag, ALIKE, boundaries=[0, 3, 8]) == ([0, 3, 8], 3)
    assert LagConfig("every", start=1).for_stream((3, 5)).start == 1


@pytest.mark.parametrize("lag", [LagConfig("novel", spacing=3), LagConfig("boundary", start=4)])
def test_stream_changes_nothing_of_the_other_policies(lag: LagConfig) -> None:
    assert lag.for_stream((7, 7)) == lag


def test_configs_build_learners_with_the_lag_of_the_stream() -> None:
    network = nn.Linear(3, 4)
    arm = ARMConfig(lag=LagConfig("every")).for_stream((7, 7)).build(network, seed=0)
    lwf = LwFConfig(lag=LagConfig("every", every=1)).for_stream((7, 7)).build(network, seed=0)
    assert isinstance(arm, ARM)
    assert isinstance(lwf, LwF)
    assert arm.config.lag == LagConfig("every", every=7, start=7)
    assert lwf.config.lag == LagConfig("every", every=1, start=7)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"every": 0}, "learner.lag.every is 0"),
        ({"every": -3}, "learner.lag.every is -3"),
        ({"start": -1}, "learner.lag.start is -1"),
        ({"spacing": 0}, "learner.lag.spacing is 0"),
    ],
)
def test_impossible_lags_are_refused(settings: dict[str, int], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LagConfig("every", **settings)
    assert part in str(caught.value)


def test_policy_that_is_no_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.lag\.policy is"):
        LagConfig(policy="evry")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["naive", *TAUGHT])
def test_memory_is_the_teacher_and_no_image(method: str) -> None:
    """478,410 parameters and 1.91 MB for the network of MNIST, as the paper counts."""
    student = learner(method, MLPConfig().build((1, 28, 28), 10))
    student.observe(torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 0, 1]))
    parameters = 0 if method == "naive" else 478_410
    assert student.memory().parameters == parameters
    assert student.memory().parameter_bytes == 4 * parameters
    assert (student.memory().images, student.memory().image_bytes) == (0, 0)


@pytest.mark.parametrize("method", ["lwf", "arm"])
def test_unit_lag_counts_no_memory(method: str) -> None:
    student = learner(method, mlp(), lag=LagConfig("every", every=1, start=1))
    for _ in range(2):
        student.observe(torch.rand(4, 60, dtype=torch.float64), torch.tensor([0, 1, 0, 1]))
    assert student.memory().parameters == 0


def test_memory_before_the_first_batch_is_none() -> None:
    assert learner("arm", mlp()).memory().parameters == 0
    assert Naive(mlp()).memory().parameters == 0


def test_a_number_of_batches_that_the_policy_would_not_look_at_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.lag\.every is 1 but the policy is novel"):
        LagConfig(every=1)
    with pytest.raises(ConfigError, match=r"learner\.tasks\.every is 9 but the policy is boundary"):
        BoundaryConfig("boundary", 9)
