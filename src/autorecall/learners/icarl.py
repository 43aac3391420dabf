"""iCaRL (Rebuffi et al. 2017), online: classes are told apart by the mean features of a few images kept per class.

Exemplars are ordered so that their running mean comes closest to the mean of all (herding), which makes any first part
of them a good choice. An input belongs to the class with the nearest exemplar mean. The network learns each class as
a yes/no question (sigmoid outputs), and keeps its earlier answers on exemplars.

The original herds over all images of a task and asks a copy of the earlier network. Online and within the budget there
is neither: candidates of the current task are a uniform sample per class within the same number of images, and earlier
answers are stored with the exemplars at the end of their task.
The paper has it for CIFAR10 only, with 5 steps per batch; its learning rate is not published.
CIFAR10, seed 0: accuracy 28.2, forgetting 76.1 (paper 28.6 ± 1.2, 49.0 ± 2.4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..checks import check_counts, check_positive
from ..errors import InputError
from ..storage.state import State, integer, mapping, tensor
from .base import Learner, LearnerConfig, Memory
from .shared.boundaries import Boundaries, BoundaryConfig
from .shared.features import forward_pass
from .shared.finite import check_finite
from .shared.modes import evaluating
from .shared.reservoir import Reservoir, kept_images, memory_of, refuse_other_shapes, share_of_each, unpack


@dataclass(frozen=True)
class ICaRLConfig(LearnerConfig):
    """iCaRL, online."""

    method: ClassVar[str] = "icarl"

    kept_images: int = 200
    """Images kept in total, shared equally among the classes seen so far."""

    learning_rate: float = 0.1
    """Rate of the SGD steps."""

    steps_per_batch: int = 5
    """SGD steps per batch, each with newly drawn exemplars."""

    replayed: int = 10
    """Exemplars of earlier tasks per step."""

    tasks: BoundaryConfig = field(default_factory=BoundaryConfig)
    """What counts as the beginning of a task."""

    def __post_init__(self) -> None:
        check_counts(self, "learner", "kept_images", "steps_per_batch", "replayed")
        check_positive(self, "learner", "learning_rate")

    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""
        return ICaRL(network, self, seed=seed)


class ICaRL(Learner):
    """Learn features with sigmoid outputs; predict by the nearest exemplar mean."""

    boundaries: Boundaries

    def __init__(
        self, network: nn.Module, config: ICaRLConfig | None = None, optimizer: Optimizer | None = None, seed: int = 0
    ) -> None:
        self.config = config or ICaRLConfig()
        super().__init__(network, self.config.learning_rate, optimizer, seed)
        self.boundaries = Boundaries(self.config.tasks)
        self.candidates: dict[int, Reservoir] = {}  # for the classes of the current task
        self.exemplars: dict[int, tuple[Tensor, Tensor]] = {}  # of earlier ones: images (packed), their answers
        self._means: Tensor | None = None  # of every class that has images, until the network changes
        self._features_known = False

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Take steps on batch and exemplars, then candidates from the batch."""
        self._means = None
        if self.boundaries.before(y):
            self._herd(x)
        losses = [self._step(x, y) for _ in range(self.config.steps_per_batch)]
        self._collect(x, y)
        return {"loss": losses[-1]}

    def predict(self, x: Tensor) -> Tensor:
        """Minus the squared distance to the mean of each class; far lower for classes never seen."""
        seen = [label for label, _ in self._images()]
        if not seen:
            return super().predict(x)
        x = self.received(x)
        features, logits = self._features_and_logits(x)
        if self._means is None:
            self._means = self._class_means(x)
        distances = torch.cdist(features, self._means.to(features)).square()
        scores = torch.full_like(logits, -1e9)
        scores[:, seen] = -distances
        return scores

    def class_means(self) -> tuple[Tensor, Tensor] | None:
        """The classes seen, and the means of their images' features."""
        seen = self._images()
        if not seen:
            return None
        like = torch.empty(0, device=self._device(), dtype=next(self.network.parameters()).dtype)
        return torch.tensor([label for label, _ in seen], device=self._device()), self._class_means(like)

    def memory(self) -> Memory:
        """Exemplars and candidates."""
        return self.with_features(memory_of([images for _, images in self._images()]))

    def kept_shape(self) -> tuple[int, ...] | None:
        """The shape of the kept images."""
        return next((tuple(images.shape[1:]) for _, images in self._images()), None)

    def check(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse a network whose features are unknown, before anything is learned."""
        x, y = super().check(x, y)
        if not self._features_known:
            self._features_and_logits(x[:1])
            self._features_known = True
        return x, y

    def grown(self, before: int, outputs: int) -> None:
        """The answers on exemplars: none is of a new class."""
        more = {c: (images, F.pad(answers, (0, outputs - before))) for c, (images, answers) in self.exemplars.items()}
        self.exemplars, self._means = more, None

    def state_dict(self) -> dict[str, object]:
        """The network, its optimizer and all images kept."""
        exemplars = {str(c): {"images": images, "answers": answers} for c, (images, answers) in self.exemplars.items()}
        return super().state_dict() | {
            "candidates": {str(label): images.state_dict() for label, images in self.candidates.items()},
            "exemplars": exemplars,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.candidates, self.exemplars, self._means = {}, {}, None
        for label, images in mapping(state["candidates"]).items():
            self.candidates[integer(int(label), most=self.classes - 1)] = own = Reservoir(self.config.kept_images)
            own.load_state_dict(mapping(images), self.classes)
        for label, part in mapping(state["exemplars"]).items():
            kept = mapping(part)
            answers = tensor(kept["answers"]).clone()
            if not answers.is_floating_point() or answers.shape[1:] != (self.classes,):
                raise InputError(f"a saved state has answers of shape {tuple(answers.shape)}; it is damaged")
            images = kept_images(kept["images"], len(answers)).clone()
            self.exemplars[integer(int(label), most=self.classes - 1)] = images, answers
        refuse_other_shapes([images for _, images in self._images()])

    def _step(self, x: Tensor, y: Tensor) -> float:
        """One step on the real batch and on exemplars, whose targets are their answers at the end of their task.

        What a real image should output for earlier classes is not known: those outputs are left out.
        """
        images, targets = [x], [F.one_hot(y, self.classes).to(x)]
        asked = [torch.ones_like(targets[0])]
        asked[0][:, sorted(self.exemplars)] = 0
        asked[0][torch.arange(len(y)), y] = 1  # except its own class, which may be an earlier one that returns
        if self.exemplars:
            kept = torch.cat([images for images, _ in self.exemplars.values()])
            answers = torch.cat([answers for _, answers in self.exemplars.values()])
            drawn = torch.randperm(len(kept), generator=self.generator)[: self.config.replayed]
            images, targets = [*images, unpack(kept[drawn], x)], [*targets, answers[drawn].to(x)]
            asked.append(torch.ones_like(targets[1]))
        logits = self.outputs(self._laid_out(torch.cat(images)))
        loss = F.binary_cross_entropy_with_logits(logits, torch.cat(targets), torch.cat(asked), reduction="sum")
        return self.descend(loss / len(logits), "the loss")

    def _collect(self, x: Tensor, y: Tensor) -> None:
        """Take candidates from a batch; earlier classes make room for new ones."""
        for label in torch.unique(y).tolist():
            if label not in self.exemplars:  # classes of earlier tasks have exemplars already
                self.candidates.setdefault(label, Reservoir(self.config.kept_images))
        known = len(self.exemplars) + len(self.candidates)
        share = share_of_each(self.config.kept_images, known, "classes")
        for reservoir in self.candidates.values():
            reservoir.shrink(share, self.generator)
        for label, reservoir in self.candidates.items():
            if bool((y == label).any()):
                reservoir.add(x[y == label], y[y == label], self.boundaries.tasks, self.generator)
        self.exemplars = {c: (i[:share].clone(), a[:share].clone()) for c, (i, a) in self.exemplars.items()}

    def _herd(self, like: Tensor) -> None:
        """A task is over: its candidates become exemplars, in order, with the network's answers on them."""
        known, exemplars = sorted({*self.exemplars, *self.candidates}), dict(self.exemplars)
        for label, reservoir in self.candidates.items():
            if reservoir.images is None or len(reservoir) == 0:
                continue
            features, logits = self._features_and_logits(self._laid_out(unpack(reservoir.images, like)))
            check_finite(features, "a feature of a kept image")
            check_finite(logits, "an output for a kept image")
            answers = torch.zeros_like(logits)
            answers[:, known] = logits[:, known].sigmoid()  # for classes yet to come: no
            order = herd(features)
            exemplars[label] = reservoir.images[order], answers.cpu()[order]
        self.candidates, self.exemplars = {}, exemplars

    def _features_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features of length 1 and logits, in eval mode; distances need at least single precision."""
        with evaluating(self.network), torch.no_grad():
            passed = forward_pass(self.network, x)
        kind = torch.promote_types(passed.features.dtype, torch.float32)
        return F.normalize(passed.features.to(kind), dim=1), passed.logits.to(kind)

    def _images(self) -> list[tuple[int, Tensor]]:
        """The images of each class, by label."""
        kept = {label: images for label, (images, _) in self.exemplars.items()}
        kept |= {c: reservoir.images for c, reservoir in self.candidates.items() if reservoir.images is not None}
        return sorted((label, images) for label, images in kept.items() if len(images))

    def _class_means(self, like: Tensor) -> Tensor:
        means = [
            self._features_and_logits(self._laid_out(unpack(images, like)))[0].mean(0) for _, images in self._images()
        ]
        return F.normalize(torch.stack(means), dim=1)


def herd(features: Tensor) -> Tensor:
    """An order of rows such that the mean of the first k is, greedily for each k, closest to the mean of all.

    >>> herd(torch.tensor([[9.0], [5.0], [4.0]]))
    tensor([1, 0, 2])
    """
    mean, total = features.mean(0), torch.zeros_like(features[0])
    left, order = torch.ones(len(features), dtype=torch.bool, device=features.device), []
    for k in range(1, len(features) + 1):
        distances = (mean - (total + features) / k).square().sum(1)
        nearest = int(distances.masked_fill(~left, torch.inf).argmin())
        left[nearest] = False
        total = total + features[nearest]
        order.append(nearest)
    return torch.tensor(order)
