"""Class means and covariances of features, kept batch by batch: the same for any order, up to rounding.

One scatter matrix is shared by all classes. Of the first `own` features, each class has one of its own as well. A batch
costs the same however many classes there are. Matrices are symmetric, and only their lower halves are read, saved and
counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import DivergedError, InputError
from ...networks.moments import merged
from ...storage.state import State, tensor
from .finite import check_finite

MARGIN = 1e-6  # of the largest number: below it, rounding cannot make one infinite
BLOCK = 256  # rows of the shared scatter that are added to at once
LEAST = 1e-6  # of a variance, as a share of their mean: a feature that never varied must not decide


@dataclass(frozen=True)
class Merged:
    """A batch, ready to be added."""

    means: dict[int, tuple[int, Tensor]]
    """How many images of each class it has, and the class's mean with them."""
    deviations: list[Tensor]
    """The rows of each class whose outer products its scatter grows by."""


class ClassGaussians:
    """Counts, means and scatter matrices."""

    def __init__(self, classes: int, features: int, own: int, kind: torch.dtype) -> None:
        self.counts = torch.zeros(classes, dtype=torch.int64)
        self.means = torch.zeros(classes, features, dtype=kind)
        self.scatter = torch.zeros(features, features, dtype=kind)
        self.own = torch.zeros(classes, own, own, dtype=kind)

    def with_more(self, more: int) -> ClassGaussians:
        """The same with so many further classes, none of which has been seen."""
        grown = ClassGaussians(0, 0, 0, self.means.dtype)
        grown.counts, grown.means = F.pad(self.counts, (0, more)), F.pad(self.means, (0, 0, 0, more))
        grown.scatter, grown.own = self.scatter.clone(), F.pad(self.own, (0, 0, 0, 0, 0, more))
        return grown

    def merge(self, features: Tensor, y: Tensor) -> Merged:
        """What a batch will change, or a DivergedError if the numbers cannot hold it; nothing is changed yet."""
        check_finite(features, "a feature")
        means, deviations = {}, []
        for label in torch.unique(y).tolist():
            rows = features[y == label]
            mean, rows_of_scatter = merged(self.means[label], int(self.counts[label]), rows)
            means[label] = len(rows), mean
            deviations.append(rows_of_scatter)
            check_finite(mean, "a class mean")
        # No product of two deviations exceeds the larger of their squares, so the diagonal stands for the whole.
        diagonal = self.scatter.diagonal() + torch.cat(deviations).square().sum(0)
        if float(diagonal.double().sum()) > MARGIN * torch.finfo(diagonal.dtype).max:
            raise DivergedError("the covariance", math.inf)
        return Merged(means, deviations)

    def add(self, batch: Merged) -> None:
        """Add a batch, in place."""
        part = self.own.shape[1]
        for (label, (count, mean)), rows in zip(batch.means.items(), batch.deviations, strict=True):
            self.counts[label] += count
            self.means[label] = mean
            if part:
                self.own[label].addmm_(rows[:, :part].T, rows[:, :part])
        rows = torch.cat(batch.deviations)
        for start in range(0, len(self.scatter), BLOCK):  # what is above the diagonal is never read
            end = start + BLOCK
            self.scatter[start:end, :end].addmm_(rows[:, start:end].T, rows[:, :end])

    def seen(self, least: int = 1) -> Tensor:
        """The classes of which there were at least so many images."""
        return torch.nonzero(self.counts >= least).flatten()

    def shared(self, part: int) -> tuple[Tensor, Tensor]:
        """The covariance of the first features within classes, and their variances, none of them 0."""
        covariance = self.scatter[:part, :part].double() / int(self.counts.sum())
        variances = covariance.diagonal()
        least = max(LEAST * float(variances.mean()), torch.finfo(self.scatter.dtype).eps)
        return covariance, variances.clamp_min(least)

    def discriminant(self, part: int, ridge: float) -> tuple[Tensor, Tensor]:
        """Weights and biases by which the nearest mean wins, measured by the shared covariance; equal priors."""
        covariance, variances = self.shared(part)
        means = self.means[:, :part].double()
        weights = torch.cholesky_solve(means.T, factor(covariance, ridge * variances)).T
        return weights, -(weights * means).sum(1) / 2

    def factors(self, labels: Tensor, part: int, own: float, floor: float) -> Tensor:
        """Cholesky factors of the covariances of some classes.

        A covariance is `own` parts the class's and the rest shared, but less of a class with hardly more images than
        features, whose covariance says little, and nothing of a class with a single image.
        """
        shared, variances = self.shared(part)
        if not own or not self.own.shape[1]:
            return factor(shared, floor * variances).expand(len(labels), -1, -1)
        counts = self.counts[labels].double()
        share = (own * ((counts - 1) / part).clamp(0, 1))[:, None, None]
        covariances = self.own[labels].double() * (share / counts[:, None, None])
        return factor(covariances.add_((1 - share) * shared), floor * variances)

    def numbers(self) -> int:
        """The numbers that are kept: counts, means, and the lower halves of symmetric matrices."""
        halves = (_lower(matrix) for matrix in (self.scatter, self.own))
        return sum(kept.numel() for kept in (self.counts, self.means, *halves))

    def state_dict(self) -> dict[str, object]:
        """Copies of all of it, of matrices the lower halves."""
        kept = {"counts": self.counts.clone(), "means": self.means.clone()}
        return {**kept, "scatter": _lower(self.scatter), "own": _lower(self.own)}

    @classmethod
    def from_state(cls, state: State) -> ClassGaussians:
        """What `state_dict` returned, or an InputError."""
        counts, means, scatter, own = (tensor(state[name]) for name in ("counts", "means", "scatter", "own"))
        shaped = counts.dim() == 1 and means.dim() == own.dim() == 2 and scatter.dim() == 1
        alike = means.is_floating_point() and means.dtype == scatter.dtype == own.dtype and counts.dtype == torch.int64
        if not (shaped and alike and len(counts) == len(means) == len(own)) or bool((counts < 0).any()):
            raise InputError("a saved state has statistics of classes that do not fit together; it is damaged")
        part = math.isqrt(2 * own.shape[1])
        made = cls(len(counts), means.shape[1], part, means.dtype)
        if part > means.shape[1] or _lower(made.scatter).shape != scatter.shape or _lower(made.own).shape != own.shape:
            raise InputError("a saved state has covariances that do not fit its means; it is damaged")
        made.counts, made.means = counts.clone(), means.clone()
        for matrix, half in ((made.scatter, scatter), (made.own, own)):
            rows, columns = torch.tril_indices(*matrix.shape[-2:])
            matrix[..., rows, columns] = half
            matrix[..., columns, rows] = half
        return made


class Likelihoods(nn.Module):
    """Adds to the logits of each class seen the weighted log-likelihood of its Gaussian; others never win."""

    def __init__(self, labels: Tensor, means: Tensor, inverses: Tensor, weight: Tensor) -> None:
        """`inverses` are those of the Cholesky factors of covariances."""
        super().__init__()
        self.register_buffer("labels", labels)
        self.register_buffer("means", means)
        self.register_buffer("inverses", inverses)
        self.register_buffer("weight", weight)

    @classmethod
    def from_state(cls, state: State) -> Likelihoods:
        """What `state_dict` returned."""
        return cls(*(tensor(state[name]) for name in ("labels", "means", "inverses", "weight")))

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Scores of a batch; a constant that all classes share is left out."""
        labels, means, inverses, weight = (self.get_buffer(n) for n in ("labels", "means", "inverses", "weight"))
        distances = (features[:, : means.shape[1]] - means[:, None]) @ inverses.mT
        volumes = inverses.diagonal(dim1=-2, dim2=-1).log().sum(1)
        found = weight * (volumes - distances.square().sum(2).T / 2)
        least = torch.finfo(logits.dtype).min
        scores = torch.full_like(logits, least)
        scores[:, labels] = logits[:, labels] + found.clamp_min(least / 2).to(logits.dtype)
        return scores


def factor(covariances: Tensor, added: Tensor) -> Tensor:
    """Cholesky factors after this was added to the diagonals, in place, and more where rounding asks for it."""
    diagonals = covariances.diagonal(dim1=-2, dim2=-1)
    for more in (1.0, 10.0, 100.0, 1e3, 1e4, 1e5):
        diagonals += more * added
        factors: Tensor
        factors, failed = torch.linalg.cholesky_ex(covariances)
        if not bool(failed.any()):
            return factors
    raise DivergedError("the inverse of the covariance", math.inf)


def _lower(matrices: Tensor) -> Tensor:
    """The lower halves of matrices, each as one row."""
    rows, columns = torch.tril_indices(*matrices.shape[-2:])
    return matrices[..., rows, columns]
