"""Accuracy and forgetting, against sums written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autorecall.metrics import average_accuracy, forgetting, task_accuracy

percent = st.floats(0, 100)


@st.composite
def matrices(draw: st.DrawFn) -> list[list[float]]:
    tasks = draw(st.integers(2, 6))
    return [[draw(percent) for _ in range(tasks)] for _ in range(tasks)]


def brute_forgetting(matrix: list[list[float]]) -> float:
    """f_j^T = max over l < T of a[l][j], minus a[T][j]; the mean over the tasks before the last."""
    total, last = 0.0, len(matrix) - 1
    for j in range(last):
        best = -1.0
        for evaluation in range(last):
            best = max(best, matrix[evaluation][j])
        total += best - matrix[last][j]
    return total / last


@given(matrix=matrices())
def test_average_and_forgetting_equal_brute_force(matrix: list[list[float]]) -> None:
    assert average_accuracy(matrix) == pytest.approx(sum(matrix[-1]) / len(matrix[-1]), abs=1e-9)
    assert forgetting(matrix) == pytest.approx(brute_forgetting(matrix), abs=1e-9)


def test_single_task_has_an_accuracy_and_nothing_to_forget() -> None:
    assert average_accuracy([[72.0]]) == 72
    assert forgetting([[72.0]]) is None


def test_best_evaluation_is_sought_before_the_last_task_only() -> None:
    """Task 0 is best after the last task: it counts as a negative forgetting, not as 0."""
    assert forgetting([[50.0, 0.0], [80.0, 90.0]]) == -30


def test_best_evaluation_may_come_before_the_task_was_learned() -> None:
    assert forgetting([[90.0, 40.0, 0.0], [10.0, 30.0, 0.0], [20.0, 25.0, 70.0]]) == ((90 - 20) + (40 - 25)) / 2


def test_accuracy_of_a_task_is_the_mean_of_its_classes_accuracies() -> None:
    labels = np.array([0] * 8 + [1] * 2 + [2] * 5)
    predictions = np.where(labels == 0, 0, 7)
    assert task_accuracy(predictions, labels, [0, 1]) == 50
    assert task_accuracy(predictions, labels, [0, 1], over_images=True) == 80


@given(data=st.data(), classes=st.integers(1, 5))
def test_accuracy_of_a_task_equals_brute_force(data: st.DataObject, classes: int) -> None:
    labels = [*range(classes), *data.draw(st.lists(st.integers(0, classes - 1), max_size=20))]
    guesses = [data.draw(st.integers(0, classes - 1)) for _ in labels]
    chosen = data.draw(st.lists(st.integers(0, classes - 1), min_size=1, unique=True))
    shares, right, all_images = [], 0, 0
    for label in chosen:
        hits = [guess == label for guess, truth in zip(guesses, labels, strict=True) if truth == label]
        shares.append(sum(hits) / len(hits))
        right, all_images = right + sum(hits), all_images + len(hits)
    given_arrays = np.array(guesses), np.array(labels)
    assert task_accuracy(*given_arrays, chosen) == pytest.approx(100 * sum(shares) / len(shares))
    assert task_accuracy(*given_arrays, chosen, over_images=True) == pytest.approx(100 * right / all_images)
