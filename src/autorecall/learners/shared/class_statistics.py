"""Streaming statistics of vectors by class: counts, means and, if wanted, covariances. Any order gives the same.

Tensors are replaced, never changed in place, so that a refused batch can be undone by its attributes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import InputError
from ...networks.moments import merged
from ...storage.state import State, tensor
from .finite import check_finite

FLOOR = 0.01  # of the mean variance, added to all variances: a class with few images, or equal ones, varies a little


class ClassStatistics:
    """What is known about the vectors of each class, batch by batch."""

    def __init__(self, covariances: bool) -> None:
        self.counts = torch.zeros(0, dtype=torch.int64)  # the first batch gives the sizes
        self.means = torch.zeros(0, 0)
        self.scatters = torch.zeros(0, 0, 0) if covariances else None

    def add(self, vectors: Tensor, labels: Tensor, classes: int) -> None:
        """Take in a batch; a DivergedError if a statistic is no longer finite."""
        known, size = len(self.counts) > 0, vectors.shape[1]
        counts = self.counts.clone() if known else labels.new_zeros(classes)
        means = self.means.clone() if known else vectors.new_zeros(classes, size)
        scatters = self.scatters
        if scatters is not None:
            scatters = scatters.clone() if known else vectors.new_zeros(classes, size, size)
        for label in torch.unique(labels).tolist():
            rows = vectors[labels == label]
            means[label], deviations = merged(means[label], int(counts[label]), rows)
            if scatters is not None:
                scatters[label].addmm_(deviations.T, deviations)
            counts[label] += len(rows)
        check_finite(means, "a class mean")
        if scatters is not None:
            check_finite(scatters, "a class covariance")
        self.counts, self.means, self.scatters = counts, means, scatters

    def grow(self, more: int) -> None:
        """Have so many further classes, none of which has been seen."""
        if len(self.counts):
            self.counts, self.means = F.pad(self.counts, (0, more)), F.pad(self.means, (0, 0, 0, more))
            self.scatters = None if self.scatters is None else F.pad(self.scatters, (0, 0, 0, 0, 0, more))

    def covariances(self, labels: Tensor, shared: float) -> Tensor:
        """The covariance of each of these classes, in double precision, with this share of that of all classes.

        All variances are positive, so each has a Cholesky factor.
        """
        assert self.scatters is not None
        own = self.scatters[labels].double() / self.counts[labels, None, None]
        common = self.scatters.sum(0).double() / self.counts.sum()
        mixed = (1 - shared) * own + shared * common
        floor = FLOOR * common.diagonal().mean() + torch.finfo(self.scatters.dtype).eps
        mixed.diagonal(dim1=1, dim2=2).add_(floor)
        return mixed

    def numbers(self) -> int:
        """How many numbers are kept, apart from the counts."""
        return self.means.numel() + (0 if self.scatters is None else self.scatters.numel())

    def state_dict(self) -> dict[str, object]:
        """Everything that is kept."""
        return {"counts": self.counts, "means": self.means, "scatters": self.scatters}

    def load_state_dict(self, state: State, device: torch.device) -> None:
        """Restore what `state_dict` returned."""
        counts, means = tensor(state["counts"]).to(device), tensor(state["means"]).to(device)
        scatters = None if self.scatters is None else tensor(state["scatters"]).to(device)
        known, size = len(counts) if counts.dim() else 0, means.shape[-1:].numel()
        fits = counts.dtype == torch.int64 and counts.shape == (known,) and bool((counts >= 0).all())
        fits = fits and means.is_floating_point() and means.shape == (known, size)
        if scatters is not None:
            fits = fits and scatters.dtype == means.dtype and scatters.shape == (known, size, size)
        if not fits:
            raise InputError("a saved state has class statistics that do not fit each other; it is damaged")
        self.counts, self.means, self.scatters = counts, means, scatters
