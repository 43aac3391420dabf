"""Tasks, batches, passes, prefixes, seeds and the published order of arrival."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autorecall.commands.paper import STUDIES
from autorecall.data import Dataset, from_arrays
from autorecall.errors import ConfigError
from autorecall.stream import Stream, StreamConfig, Task, as_batch

quick = settings(max_examples=40, deadline=None)


def numbered(counts: Sequence[int]) -> Dataset:
    """counts[c] inputs of class c in mixed order; each input is its own index, so a batch shows what is in it."""
    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    return from_arrays(train=(inputs, labels), test=(inputs, labels))


def indices(task: Task) -> list[int]:
    """The inputs of the task, in order of arrival."""
    return [int(index) for x, _ in task for index in x[:, 0]]


def arrived(stream: Stream) -> list[list[int]]:
    return [indices(task) for task in stream]


def classes(stream: Stream) -> list[tuple[int, ...]]:
    return [task.classes for task in stream]


# Tasks


def test_tasks_introduce_classes_in_label_order() -> None:
    stream = Stream(numbered([3] * 6), StreamConfig(classes_per_task=2))
    assert classes(stream) == [(0, 1), (2, 3), (4, 5)]
    assert [sorted({int(label) for _, y in task for label in y}) for task in stream] == [[0, 1], [2, 3], [4, 5]]


def test_class_order_decides_which_classes_a_task_introduces() -> None:
    stream = Stream(numbered([3] * 4), StreamConfig(classes_per_task=2, class_order=(3, 0, 2, 1)))
    assert classes(stream) == [(3, 0), (2, 1)]
    assert [{int(label) for _, y in task for label in y} for task in stream] == [{0, 3}, {1, 2}]


@pytest.mark.parametrize(
    ("per_task", "expected"),
    [
        (1, [(0,), (1,), (2,), (3,), (4,)]),
        (2, [(0, 1), (2, 3), (4,)]),
        (3, [(0, 1, 2), (3, 4)]),
        (5, [(0, 1, 2, 3, 4)]),
    ],
)
def test_the_last_task_takes_the_classes_that_are_left(per_task: int, expected: list[tuple[int, ...]]) -> None:
    assert classes(Stream(numbered([2] * 5), StreamConfig(per_task))) == expected


def test_tasks_may_have_different_numbers_of_classes() -> None:
    stream = Stream(numbered([2] * 6), StreamConfig(tasks=(3, 1, 2)))
    assert classes(stream) == [(0, 1, 2), (3,), (4, 5)]
    assert classes(Stream(numbered([2] * 3), StreamConfig(5, class_order=(2, 0, 1), tasks=(1, 2)))) == [(2,), (0, 1)]


def test_tasks_of_one_size_are_those_of_classes_per_task() -> None:
    data = numbered([5, 6, 7, 8])
    assert arrived(Stream(data, StreamConfig(tasks=(2, 2)), seed=3)) == arrived(Stream(data, StreamConfig(2), seed=3))


@pytest.mark.parametrize("settings", [{}, {"class_order": (2, 0, 1, 2, 0, 1)}, {"tasks": (1, 2)}])
@pytest.mark.parametrize("count", [1, 2])
def test_the_first_tasks_are_those_of_the_whole_stream(settings: dict[str, Any], count: int) -> None:
    data = numbered([7, 8, 9])
    whole = Stream(data, StreamConfig(2, **settings), seed=5)
    config = StreamConfig(2, first_tasks=count, **settings)
    assert arrived(Stream(data, config, seed=5)) == arrived(whole)[:count]
    assert list(config.task_classes(data.classes)) == classes(whole)[:count]


@pytest.mark.parametrize(
    "config",
    [
        StreamConfig(2),
        StreamConfig(2, first_tasks=2),
        StreamConfig(2, first_tasks=3),
        StreamConfig(tasks=(1, 2, 2), first_tasks=2),
        StreamConfig(2, class_order=(0, 1, 2, 3, 4, 0, 2, 0), first_tasks=3),
        StreamConfig(1, order=("b", "a", "b", "c", "d", "e"), first_tasks=2),
    ],
)
def test_the_part_of_the_images_that_the_first_tasks_have_is_known_beforehand(config: StreamConfig) -> None:
    learned = Stream(named([6] * 5, "abcde"), config)
    assert config.share_learned(5) * 30 == pytest.approx(sum(len(task.order) for task in learned))


def named(counts: Sequence[int], names: Sequence[str]) -> Dataset:
    return dataclasses.replace(numbered(counts), classes=tuple(names))


def test_classes_may_be_ordered_by_name() -> None:
    data = named([4, 5, 6, 7], ["cat", "dog", "owl", "a cow"])
    stream = Stream(data, StreamConfig(2, order=("a cow", "cat", "owl", "dog")), seed=1)
    assert classes(stream) == [(3, 0), (2, 1)]
    assert arrived(stream) == arrived(Stream(data, StreamConfig(2, class_order=(3, 0, 2, 1)), seed=1))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"order": ("cat", "dgo", "owl")},
            r"stream\.order names 'dgo', which the data do not have; expected 'cat, dog, owl'",
        ),
        ({"order": ("cat", "owl")}, r"stream\.order leaves out 'dog'; expected every class at least once"),
        ({"tasks": (2, 2)}, r"stream\.tasks is \(2, 2\), 4 in all, but there are 3 classes to learn; .* add up to 3"),
        ({"tasks": (2,)}, r"stream\.tasks is \(2,\), 2 in all, but there are 3 classes to learn"),
        (
            {"tasks": (2, 2), "class_order": (0, 0, 1, 2)},
            r"task 1 has the class 'cat' twice; expected it once in every",
        ),
        ({"classes_per_task": 3, "order": ("cat", "dog", "cat", "owl")}, r"task 1 has the class 'cat' twice"),
        ({"stationary": True, "class_order": (0, 1, 2, 0)}, r"stream\.stationary makes a single task"),
        ({"first_tasks": 3}, r"stream\.first_tasks is 3; expected 1 to 2, as many as there are"),
    ],
)
def test_tasks_that_the_data_do_not_have_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        Stream(named([5, 5, 5], ["cat", "dog", "owl"]), StreamConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tasks": (2, 0)}, r"stream\.tasks is \(2, 0\); expected at least one class in every task"),
        ({"tasks": (-1,)}, r"stream\.tasks is \(-1,\)"),
        ({"tasks": (10**5000,)}, r"stream\.tasks is "),
        ({"tasks": (2,), "stationary": True}, r"stream\.tasks is \(2,\) but stream\.stationary makes a single task"),
        ({"order": ("a",), "class_order": (0,)}, r"both stream\.order and stream\.class_order are given"),
        ({"first_tasks": 0}, r"stream\.first_tasks is 0; expected 1 to 1,000,000"),
        ({"first_tasks": 1, "stationary": True}, r"stream\.first_tasks is 1 but stream\.stationary makes a single"),
    ],
    ids=range(7),
)
def test_tasks_that_no_data_could_have_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        StreamConfig(**settings)


# Classes that return


@given(st.lists(st.integers(3, 9), min_size=3, max_size=3), st.integers(0, 3), st.sampled_from([(), (9, 20, 11)]))
@quick
def test_the_images_of_a_class_that_returns_are_shared_out(counts: list[int], seed: int, pool: tuple[int, ...]) -> None:
    """Against a plain count: every image once, of a class that comes three times a third of them each."""
    data = numbered(counts)
    config = StreamConfig(class_order=(0, 1, 0, 2, 0), tasks=(2, 2, 1), class_pool=pool)
    stream = Stream(data, config, seed=seed)
    assert classes(stream) == [(0, 1), (0, 2), (0,)]
    found = arrived(stream)
    assert sorted(index for task in found for index in task) == list(range(sum(counts)))
    labels = data.train.labels
    own = [[index for index in task if labels[index] == 0] for task in found]
    sizes = [len(part) for part in own]
    assert max(sizes) - min(sizes) <= 1
    assert [sorted(part) for part in own] == [sorted(p) for p in _thirds(np.flatnonzero(labels == 0).tolist(), sizes)]
    for number, task in enumerate(found):
        assert {int(labels[index]) for index in task} == set(stream[number].classes)


def _thirds(images: list[int], sizes: list[int]) -> list[list[int]]:
    """In the order of the data: what comes first is seen first."""
    return [images[sum(sizes[:part]) : sum(sizes[: part + 1])] for part in range(len(sizes))]


def test_a_class_with_too_few_images_to_return_is_refused() -> None:
    data = named([2, 5], ["cat", "dog"])
    with pytest.raises(ConfigError, match=r"^class cat has 2 training images but is in 3 tasks; expected at least one"):
        Stream(data, StreamConfig(1, order=("cat", "dog", "cat", "cat")))


def test_a_stream_can_be_counted_indexed_and_gone_through_again() -> None:
    stream = Stream(numbered([5, 4, 3]), StreamConfig(1, batch_size=2))
    assert len(stream) == 3
    assert stream.task_lengths == (3, 2, 2)
    assert stream[1].classes == (1,)
    assert arrived(stream) == arrived(stream)


# Batches and passes


@given(
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=6),
    per_task=st.integers(1, 6),
    batch_size=st.integers(1, 7),
    passes=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
@quick
def test_every_pass_holds_each_image_of_the_task_once_in_the_same_order(
    counts: list[int], per_task: int, batch_size: int, passes: int, seed: int
) -> None:
    data = numbered(counts)
    config = StreamConfig(min(per_task, len(counts)), batch_size=batch_size, passes=passes)
    for task in Stream(data, config, seed=seed):
        batches = list(task)
        own = np.flatnonzero(np.isin(data.train.labels, task.classes))
        a_pass = math.ceil(len(own) / batch_size)
        rest = len(own) % batch_size or batch_size
        assert len(task) == len(batches) == passes * a_pass
        assert [len(x) for x, _ in batches] == ([batch_size] * (a_pass - 1) + [rest]) * passes
        order = indices(task)
        first = order[: len(own)]
        assert sorted(first) == own.tolist()
        assert order == first * passes
        for x, y in batches:
            assert y.tolist() == data.train.labels[x[:, 0].long().numpy()].tolist()


def test_the_order_within_a_task_is_shuffled() -> None:
    (order,) = arrived(Stream(numbered([100, 100]), StreamConfig(2)))
    assert order != sorted(order)
    labels = numbered([100, 100]).train.labels[order]
    # An even shuffle of 100 + 100 changes class about 100 times; one block per class would do so once.
    assert 70 < int(np.count_nonzero(np.diff(labels))) < 130


# A shorter stream


@given(
    counts=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    fraction=st.floats(0, 1, exclude_min=True),
    seed=st.integers(0, 99),
    pool=st.booleans(),
)
@quick
def test_a_fraction_keeps_the_first_part_of_every_task_and_at_least_one_image(
    counts: list[int], fraction: float, seed: int, pool: bool
) -> None:
    data = numbered(counts)
    config = StreamConfig(2, class_pool=tuple(3 * count for count in counts) if pool else ())
    whole, part = arrived(Stream(data, config, 1.0, seed)), arrived(Stream(data, config, fraction, seed))
    for all_of_it, kept in zip(whole, part, strict=True):
        assert kept == all_of_it[: max(1, round(fraction * len(all_of_it)))]


def test_a_tenth_of_a_stream_has_tasks_of_a_tenth() -> None:
    assert Stream(numbered([50] * 4), StreamConfig(2), fraction=0.1).task_lengths == (1, 1)
    assert [len(order) for order in arrived(Stream(numbered([50] * 4), StreamConfig(2), fraction=0.1))] == [10, 10]


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.0001, math.nan, math.inf])
def test_an_impossible_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match=r"^fraction is "):
        Stream(numbered([2, 2]), StreamConfig(2), fraction)


# Stationary


def test_a_stationary_stream_is_one_task_of_all_images_mixed() -> None:
    data = numbered([40] * 4)
    stream = Stream(data, StreamConfig(2, stationary=True, passes=2))
    assert classes(stream) == [(0, 1, 2, 3)]
    (order,) = arrived(stream)
    assert sorted(order[:160]) == list(range(160))
    assert order[160:] == order[:160]
    assert set(data.train.labels[order[:40]].tolist()) == {0, 1, 2, 3}


def test_a_class_pool_does_not_bend_a_stationary_stream() -> None:
    data = numbered([10, 10])
    with_pool = Stream(data, StreamConfig(stationary=True, class_pool=(10, 1000)), seed=3)
    assert arrived(with_pool) == arrived(Stream(data, StreamConfig(stationary=True), seed=3))


# Seeds


@pytest.mark.parametrize(
    "config",
    [StreamConfig(2), StreamConfig(2, class_pool=(30, 40, 50, 60)), StreamConfig(stationary=True)],
    ids=["tasks", "pool", "stationary"],
)
def test_the_same_seed_gives_the_same_batches_and_another_seed_others(config: StreamConfig) -> None:
    data = numbered([20] * 4)
    first = [(x, y) for task in Stream(data, config, seed=5) for x, y in task]
    again = [(x, y) for task in Stream(data, config, seed=5) for x, y in task]
    assert len(first) == len(again) == 8
    for (x, y), (x_again, y_again) in zip(first, again, strict=True):
        assert torch.equal(x, x_again)
        assert torch.equal(y, y_again)
    assert arrived(Stream(data, config, seed=6)) != arrived(Stream(data, config, seed=5))


def test_an_order_seed_fixes_the_order_for_all_runs() -> None:
    data = numbered([20] * 4)
    fixed = [arrived(Stream(data, StreamConfig(2, order_seed=0), seed=seed)) for seed in (0, 1, 2)]
    assert fixed[0] == fixed[1] == fixed[2] == arrived(Stream(data, StreamConfig(2), seed=0))
    assert arrived(Stream(data, StreamConfig(2, order_seed=1), seed=0)) != fixed[0]


def test_a_stream_neither_reads_nor_moves_the_global_random_state() -> None:
    data = numbered([20] * 4)
    torch.manual_seed(1)
    first = arrived(Stream(data, StreamConfig(2), seed=0))
    torch.manual_seed(2)
    found = torch.get_rng_state()
    assert arrived(Stream(data, StreamConfig(2), seed=0)) == first
    assert torch.equal(torch.get_rng_state(), found)


# The published order: a literal pool, shuffled and cut


def cut_from_pool(
    pool: Sequence[int], counts: Sequence[int], wanted: Sequence[int], rng: np.random.Generator
) -> list[int]:
    """The oracle: shuffle the labels of the whole pool, keep the first counts[c] of each, and pick out one task."""
    left = list(counts)
    kept = []
    for label in rng.permutation(np.repeat(np.arange(len(pool)), pool)).tolist():
        if left[label]:
            left[label] -= 1
            kept.append(label)
    return [label for label in kept if label in wanted]


def tail(labels: Sequence[int]) -> int:
    """How many images of a single class a task ends with."""
    alone = 1
    while alone < len(labels) and labels[-1 - alone] == labels[-1]:
        alone += 1
    return alone


def sequences(data: Dataset, config: StreamConfig, task: int, seeds: int) -> NDArray[np.int64]:
    return np.array([data.train.labels[Stream(data, config, seed=seed)[task].order] for seed in range(seeds)])


def standard_error(values: Sequence[int]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


@pytest.mark.parametrize(
    ("counts", "pool"),
    [((30, 30, 30, 30), (60, 120, 90, 100)), ((10, 40, 20, 20), (100, 100, 50, 400)), ((25,) * 4, (50,) * 4)],
    ids=["rare first", "uneven classes", "even pool"],
)
@pytest.mark.parametrize("task", [0, 1])
def test_classes_arrive_as_from_a_literal_pool(counts: tuple[int, ...], pool: tuple[int, ...], task: int) -> None:
    runs = 300
    ours = sequences(numbered(counts), StreamConfig(2, class_pool=pool), task, runs)
    rng = np.random.default_rng(99)
    wanted = (2 * task, 2 * task + 1)
    oracle = np.array([cut_from_pool(pool, counts, wanted, rng) for _ in range(runs)])
    assert ours.shape == oracle.shape

    our_tails, oracle_tails = [tail(row) for row in ours.tolist()], [tail(row) for row in oracle.tolist()]
    spread = math.hypot(standard_error(our_tails), standard_error(oracle_tails))
    assert abs(statistics.fmean(our_tails) - statistics.fmean(oracle_tails)) < 4 * spread

    # The chance of the second class at every place of the task; 5 standard errors of the difference of two shares.
    difference = np.abs((ours == wanted[1]).mean(0) - (oracle == wanted[1]).mean(0))
    assert difference.max() < 5 * math.sqrt(2 * 0.25 / runs)


def test_without_a_pool_no_class_is_alone_at_the_end() -> None:
    data = numbered([30, 30])
    even = [tail(row) for row in sequences(data, StreamConfig(2), 0, 300).tolist()]
    pooled = [tail(row) for row in sequences(data, StreamConfig(2, class_pool=(60, 120)), 0, 300).tolist()]
    assert statistics.fmean(even) < 3
    assert statistics.fmean(pooled) > 10


def test_classes_arrive_in_proportion_to_the_pool_and_the_rarest_is_alone_at_the_end() -> None:
    rows = sequences(numbered([50, 50]), StreamConfig(2, class_pool=(100, 400)), 0, 100)
    # Four of class 1 come for each of class 0, until the 50 of class 1 run out after some 62 images.
    assert (rows[:, :50] == 1).mean() == pytest.approx(0.8, abs=0.02)
    assert (rows[:, -20:] == 0).all()


MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)  # training images of each digit
POOL = tuple(count - round(count / 20) for count in MNIST)  # minus the validation images


def test_the_published_order_of_the_results_is_that_of_mnist() -> None:
    docs = Path(__file__).parent.parent / "docs" / "results.md"
    assert " ".join(map(str, POOL)) in docs.read_text(encoding="utf-8")
    assert {row.config.stream.class_pool for row in STUDIES["order"].rows(1, 1.0)} == {POOL}


def test_published_mnist_tasks_end_with_several_batches_of_one_class() -> None:
    tails = [tail(row) for row in sequences(numbered([500] * 10), StreamConfig(2, class_pool=POOL), 0, 40).tolist()]
    # 500 zeros of 5627 and 500 ones of 6405: the ones run out when 500·5627/6405 zeros have come.
    assert statistics.fmean(tails) == pytest.approx(500 * (1 - 5627 / 6405), abs=4 * standard_error(tails))


@given(
    counts=st.lists(st.integers(1, 15), min_size=2, max_size=6),
    extra=st.lists(st.integers(0, 50), min_size=6, max_size=6),
    per_task=st.integers(1, 6),
    seed=st.integers(0, 99),
)
@quick
def test_with_a_pool_each_image_still_arrives_once(
    counts: list[int], extra: list[int], per_task: int, seed: int
) -> None:
    data = numbered(counts)
    pool = tuple(count + more for count, more in zip(counts, extra, strict=False))
    order = tuple(reversed(range(len(counts))))
    config = StreamConfig(min(per_task, len(counts)), class_order=order, class_pool=pool)
    for task in Stream(data, config, seed=seed):
        assert sorted(indices(task)) == np.flatnonzero(np.isin(data.train.labels, task.classes)).tolist()


def test_a_pool_also_shuffles_the_images_of_a_class() -> None:
    data = numbered([50, 50])
    config = StreamConfig(2, class_pool=(500, 500))
    first, second = (
        [index for index in indices(Stream(data, config, seed=seed)[0]) if data.train.labels[index] == 0]
        for seed in (0, 1)
    )
    assert first != sorted(first)
    assert first != second


@pytest.mark.parametrize("pool", [(10,), (10, 10, 10), (10, 4), (4, 10), (10, -10), (0, 0)], ids=lambda pool: str(pool))
def test_a_class_pool_of_the_wrong_length_or_too_small_is_refused(pool: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^stream\.class_pool is .* but the classes have \(5, 5\) images"):
        Stream(numbered([5, 5]), StreamConfig(2, class_pool=pool))


# From arrays to tensors


def test_bytes_become_floats_from_0_to_1_exactly() -> None:
    every_byte = np.arange(256, dtype=np.uint8).reshape(4, 1, 8, 8)
    data = from_arrays(train=(every_byte, [0, 1, 2, 3]), test=(every_byte, [0, 1, 2, 3]))
    x, y = as_batch(data.train, slice(None))
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert x.shape == (4, 1, 8, 8)
    expected = np.arange(256, dtype=np.float32) / np.float32(255)
    assert np.array_equal(x.numpy().ravel(), expected)
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)


def test_floats_pass_through_unchanged() -> None:
    floats = np.array([[-3.5, 0.0, 1e-30], [255.0, 1.0, 3e38]], dtype=np.float32)
    data = from_arrays(train=(floats, [0, 1]), test=(floats, [0, 1]))
    (task,) = Stream(data, StreamConfig(2))
    ((x, y),) = task
    assert x.dtype == torch.float32
    assert np.array_equal(x.numpy(), floats[y.numpy()])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_who_writes_into_a_batch_does_not_write_into_the_data(dtype: type) -> None:
    inputs: NDArray[np.generic] = np.arange(1, 41).reshape(10, 4).astype(dtype)
    labels = np.arange(10) % 2
    data = from_arrays(train=(inputs, labels), test=(inputs, labels))
    found = data.fingerprint()
    for task in Stream(data, StreamConfig(2, batch_size=3, passes=2)):
        for x, y in task:
            x.zero_()
            y.zero_()
    x, y = as_batch(data.test, slice(0, 10))
    x.zero_()
    y.zero_()
    assert data.fingerprint() == found


# Refusals


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"classes_per_task": 0}, "classes_per_task"),
        ({"batch_size": 0}, "batch_size"),
        ({"passes": -1}, "passes"),
        ({"order_seed": -1}, "order_seed"),
    ],
)
def test_numbers_that_make_no_stream_are_refused(settings: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^stream\.{name} is {settings[name]}; expected (1 to|a whole number)"):
        StreamConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [10**9, 10**18, 10**400, 10**5000], ids=["9", "18", "400", "5000"])
def test_a_class_pool_too_large_to_draw_from_is_refused_at_once(size: int) -> None:
    for pool in ((size, 5), (5, size), (size, -size), (10**6,) * 1000):
        with pytest.raises(ConfigError, match=r"^stream\.class_pool .*; expected 20,000,000 images at most") as caught:
            StreamConfig(2, class_pool=pool)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("number", [-1, 2**63, 10**400, 10**5000], ids=["-1", "63", "400", "5000"])
def test_an_order_seed_is_one_that_can_be_stored(number: int) -> None:
    with pytest.raises(ConfigError, match=r"^stream\.order_seed is .*; expected a whole number from 0 to 2\*\*63 - 1$"):
        StreamConfig(order_seed=number)
    assert StreamConfig(order_seed=2**63 - 1).order_seed == 2**63 - 1


@pytest.mark.parametrize("number", [-(10**400), 10**18, 10**400, 10**5000], ids=["-400", "18", "400", "5000"])
def test_a_class_order_of_any_numbers_is_refused_in_a_short_sentence(number: int) -> None:
    for order in ((0, number), (number,) * 10**4):
        with pytest.raises(
            ConfigError, match=r"^stream\.class_order is .*; expected each of 0 to 1 at least once$"
        ) as caught:
            Stream(numbered([5, 5]), StreamConfig(2, class_order=order))
        assert len(str(caught.value)) < 300


def test_more_classes_a_task_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^stream\.classes_per_task is 3 but the data have 2 classes"):
        Stream(numbered([2, 2]), StreamConfig(3))


@pytest.mark.parametrize("order", [(0,), (0, 0), (0, 1, 2), (1, 2), (-1, 0)])
def test_a_class_order_that_is_no_order_of_the_classes_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^stream\.class_order is .*expected each of 0 to 1 at least once"):
        Stream(numbered([2, 2]), StreamConfig(1, class_order=order))


def test_a_class_without_a_training_image_is_refused() -> None:
    inputs = np.zeros((3, 1), dtype=np.float32)
    data = from_arrays(train=(inputs, [0, 0, 2]), test=(inputs, [0, 1, 2]))
    with pytest.raises(ConfigError, match=r"^class 1 has no training image"):
        Stream(data, StreamConfig(1))
    with pytest.raises(ConfigError, match=r"^class dog has no training image"):
        Stream(dataclasses.replace(data, classes=("cat", "dog", "owl")), StreamConfig(1))
