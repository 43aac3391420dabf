"""Gradient episodic memory (Lopez-Paz and Ranzato 2017): steps that raise no earlier task's loss.

The gradient of the real batch is replaced by the closest one that has no negative product with the gradient on any
earlier task's kept images. The dual is a quadratic programme with one variable per earlier task.
The paper has it for CIFAR10 only; learning rate, margin and how images are shared among tasks are not published.
CIFAR10, seed 0: accuracy 19.6, forgetting 85.6 (paper 16.8 ± 1.1, 73.5 ± 1.7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..checks import check_counts, check_not_negative, check_positive
from ..storage.state import State, labels, mapping
from .base import Learner, LearnerConfig, Memory
from .shared.boundaries import Boundaries, BoundaryConfig
from .shared.finite import check_finite, finite
from .shared.reservoir import kept_images, memory_of, pack, refuse_other_shapes, share_of_each, unpack


@dataclass(frozen=True)
class GEMConfig(LearnerConfig):
    """Gradient episodic memory."""

    method: ClassVar[str] = "gem"

    kept_images: int = 200
    """Images kept in total, shared equally among the tasks begun so far."""

    learning_rate: float = 0.03
    """Rate of the SGD step."""

    margin: float = 0.5
    """γ, the minimum weight of an earlier task's gradient in the step; above 0 favours earlier tasks."""

    tasks: BoundaryConfig = field(default_factory=BoundaryConfig)
    """What counts as the beginning of a task."""

    def __post_init__(self) -> None:
        check_counts(self, "learner", "kept_images")
        check_positive(self, "learner", "learning_rate")
        check_not_negative(self, "learner", "margin")

    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""
        return GEM(network, self, seed=seed)


class GEM(Learner):
    """One SGD step per batch, along a gradient that earlier tasks agree with."""

    boundaries: Boundaries

    def __init__(
        self, network: nn.Module, config: GEMConfig | None = None, optimizer: Optimizer | None = None, seed: int = 0
    ) -> None:
        self.config = config or GEMConfig()
        super().__init__(network, self.config.learning_rate, optimizer, seed)
        self.boundaries = Boundaries(self.config.tasks)
        self.kept: list[tuple[Tensor, Tensor]] = []  # per task, its latest images (packed) and labels

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Get the gradients of earlier tasks and of the batch, and step along what they agree on."""
        begins = self.boundaries.before(y)
        earlier = self.kept if begins else self.kept[:-1]
        memories = [self._memory_gradient(images, labels, x) for images, labels in earlier if len(labels)]
        gradient, loss = self._gradient(x, y)
        projected = 0.0
        if memories:
            products = torch.stack(memories) @ gradient
            if bool((products < 0).any()):
                gradient, projected = project(gradient, torch.stack(memories), self.config.margin), 1.0
        self._descend_along(gradient)
        self._keep(x, y, begins)
        return {"loss": loss, "projected": projected}

    def memory(self) -> Memory:
        """The kept images."""
        return self.with_features(memory_of([images for images, _ in self.kept]))

    def kept_shape(self) -> tuple[int, ...] | None:
        """The shape of the kept images."""
        return tuple(self.kept[0][0].shape[1:]) if self.kept else None

    def state_dict(self) -> dict[str, object]:
        """The network, its optimizer and the kept images."""
        kept = {str(task): {"images": images, "labels": labels} for task, (images, labels) in enumerate(self.kept)}
        return super().state_dict() | {"kept": kept}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        tasks = sorted(mapping(state["kept"]).items(), key=lambda item: int(item[0]))
        parts = [mapping(part) for _, part in tasks]
        kept = [labels(part["labels"], self.classes).clone() for part in parts]
        self.kept = [
            (kept_images(part["images"], len(own)).clone(), own) for part, own in zip(parts, kept, strict=True)
        ]
        refuse_other_shapes([images for images, _ in self.kept])

    def _trained(self) -> list[nn.Parameter]:
        return [p for p in self.network.parameters() if p.requires_grad]

    def _gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        """The gradient of the mean loss of a batch as one vector, and the loss."""
        loss = F.cross_entropy(self.outputs(self._laid_out(x)), y)
        value = finite(loss, "the loss")
        parts = torch.autograd.grad(loss, self._trained(), allow_unused=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in parts]), value

    def _memory_gradient(self, images: Tensor, labels: Tensor, like: Tensor) -> Tensor:
        slots = self.never_alone(torch.arange(len(labels)), like)
        return self._gradient(unpack(images[slots], like), labels[slots].to(like.device))[0]

    def _descend_along(self, gradient: Tensor) -> None:
        trained = self._trained()
        for p, part in zip(trained, torch.split(gradient, [p.numel() for p in trained]), strict=True):
            p.grad = part.view_as(p).to(p.dtype)
        self.take_step()

    def _keep(self, x: Tensor, y: Tensor, begins: bool) -> None:
        """Keep the latest images of the current task; earlier tasks make room."""
        if begins:
            self.kept.append((x[:0].cpu(), y[:0].cpu()))
        images, labels = self.kept[-1]
        self.kept[-1] = pack(torch.cat([unpack(images, x.cpu()), x.cpu()])), torch.cat([labels, y.cpu()])
        share = share_of_each(self.config.kept_images, len(self.kept), "tasks")
        self.kept = [(_latest(images, share), _latest(labels, share)) for images, labels in self.kept]


def project(gradient: Tensor, memories: Tensor, margin: float = 0.0) -> Tensor:
    """The gradient closest to this one that has no negative product with any row of `memories`.

    It is gradient + Σ v_t·memory_t for the v ≥ margin that make it shortest (the dual programme, a non-negative least
    squares problem in as many variables as there are rows); with a margin it is no longer the closest one.
    """
    from scipy.optimize import nnls  # slow to import, and no other method needs it

    rows, vector = memories.double(), gradient.double()
    # All of length 1, so that a task known by heart, whose gradient is tiny, counts as well.
    lengths = rows.norm(dim=1)
    check_finite(max(margin, 1.0) * lengths, "the gradient on kept images")
    rows, least = rows / lengths.clamp_min(torch.finfo(rows.dtype).tiny)[:, None], (margin * lengths).cpu().numpy()
    # With gram = A·Aᵀ, |vector + rowsᵀ·v|² is |Aᵀ·v + A⁺·rows·vector|² up to a constant: a small problem.
    values, directions = torch.linalg.eigh(rows @ rows.T)
    used = values > values.max() * 1e-12
    root = values[used].sqrt()
    matrix = (root[:, None] * directions[:, used].T).cpu().numpy()
    target = -(directions[:, used].T @ (rows @ vector) / root).cpu().numpy() - matrix @ least
    check_finite(torch.from_numpy(target), "the gradient to be projected")
    above, _ = nnls(matrix, target)
    weights = torch.from_numpy(above + least).to(rows)
    projected: Tensor = vector + weights @ rows
    return projected.to(gradient)


def _latest(rows: Tensor, count: int) -> Tensor:
    return rows[max(0, len(rows) - count) :].clone()
