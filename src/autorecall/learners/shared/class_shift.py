"""Inputs moved from the mean of their class to that of another, with what must be kept for it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import InputError
from ...recall.frequencies import from_low_frequencies, low_frequencies
from ...storage.state import State, integers, mapping, sequence
from . import undo
from .class_statistics import ClassStatistics
from .undo import Undo


class ClassShift:
    """Class means of all pixels, or of low frequencies alone, and the range of values seen."""

    def __init__(self, frequencies: int | None = None, shared_spread: float | None = None) -> None:
        """With a `shared_spread` distances from the mean are drawn anew, from class covariances with this share of
        that of all classes; without one, inputs keep their own."""
        self.frequencies, self.shared_spread = frequencies, shared_spread
        self.statistics = ClassStatistics(covariances=shared_spread is not None)
        self.shape: tuple[int, ...] = ()  # of inputs; both are empty before the first batch
        self._range: tuple[float, ...] = ()  # the lowest and highest value seen

    @torch.no_grad()
    def add(self, x: Tensor, y: Tensor, classes: int) -> None:
        """Take in a batch."""
        self.statistics.add(self._vectors(x), y, classes)
        self.shape = tuple(x.shape[1:])
        low, high = (float(end) for end in x.aminmax())
        self._range = min([low, *self._range[:1]]), max([high, *self._range[1:]])

    @torch.no_grad()
    def move(self, x: Tensor, y: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Inputs of the classes `y` as they would be as members of the classes `labels`."""
        found = self._vectors(x)
        shift = self._moved(found, y, labels, generator) - found
        return (x + self._images(shift).to(x)).clamp(*self._range)

    def remember(self) -> list[Undo]:
        """How to put everything back as it is now."""
        return [undo.attributes(self), undo.attributes(self.statistics)]

    def state_dict(self) -> dict[str, object]:
        """Everything that is kept."""
        return {"statistics": self.statistics.state_dict(), "shape": list(self.shape), "range": list(self._range)}

    def load_state_dict(self, state: State, classes: int, device: torch.device) -> None:
        """Restore what `state_dict` returned."""
        shape, ends = tuple(integers(state["shape"])), sequence(state["range"])
        numbers = tuple(end for end in ends if isinstance(end, float))
        self.statistics.load_state_dict(mapping(state["statistics"]), device)
        fits = self.statistics.means.shape == ((classes, self._length(shape)) if shape else (0, 0))
        if not fits or len(ends) != len(numbers) or len(numbers) != (2 if shape else 0):
            raise InputError("a saved state has class means that do not fit its inputs; it is damaged")
        self.shape, self._range = shape, numbers

    def _moved(self, vectors: Tensor, y: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        means = self.statistics.means
        if self.shared_spread is None:
            return vectors - means[y] + means[labels]
        drawn = torch.randn(vectors.shape, generator=generator, dtype=torch.float64).to(vectors.device)
        kinds, which = torch.unique(labels, return_inverse=True)
        factors = torch.linalg.cholesky(self.statistics.covariances(kinds, self.shared_spread))
        distances: Tensor = (factors[which] @ drawn[:, :, None]).squeeze(2)
        return means[labels] + distances.to(means)

    def _vectors(self, x: Tensor) -> Tensor:
        """What is moved, one row per input, at least in single precision."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return (x if self.frequencies is None else low_frequencies(x, self.frequencies)).flatten(1)

    def _images(self, vectors: Tensor) -> Tensor:
        """Inputs that have these low frequencies, or pixels."""
        if self.frequencies is None:
            return vectors.view(-1, *self.shape)
        channels, height, width = self.shape
        rows, columns = (min(self.frequencies, size) for size in (height, width))
        return from_low_frequencies(vectors.view(-1, channels, rows, columns), height, width)

    def _length(self, shape: tuple[int, ...]) -> int:
        """Of the vector of an input of this shape."""
        if self.frequencies is None or len(shape) != 3:
            return math.prod(shape)
        return shape[0] * math.prod(min(self.frequencies, size) for size in shape[1:])
