"""Average accuracy and forgetting, from the whole matrix a[i][j] (paper, Appendix "Evaluation")."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = Sequence[Sequence[float]]


def task_accuracy(
    predictions: NDArray[np.int64], labels: NDArray[np.int64], classes: Sequence[int], over_images: bool = False
) -> float:
    """Percent correct on these classes: the mean of their accuracies, or the share over all of their images.

    >>> round(task_accuracy(np.array([0, 0, 1]), np.array([0, 0, 0]), [0]), 2)
    66.67
    """
    correct = predictions == labels
    if over_images:
        return 100 * float(correct[np.isin(labels, classes)].mean())
    return 100 * float(np.mean([correct[labels == c].mean() for c in classes]))


def average_accuracy(matrix: Matrix) -> float:
    """A_T = 1/T · Σ_j a[T][j]: the mean over tasks after the last one.

    >>> average_accuracy([[90.0, 0.0], [50.0, 80.0]])
    65.0
    """
    return math.fsum(matrix[-1]) / len(matrix[-1])


def forgetting(matrix: Matrix) -> float | None:
    """F_T = 1/(T−1) · Σ_{j<T} (max_{l<T} a[l][j] − a[T][j]); None for a single task, where nothing can be forgotten.

    >>> forgetting([[90.0, 0.0], [50.0, 80.0]])
    40.0
    """
    last = len(matrix) - 1
    if last == 0:
        return None
    return math.fsum(max(row[j] for row in matrix[:last]) - matrix[last][j] for j in range(last)) / last
