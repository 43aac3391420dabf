"""Algorithm 1 except for the objective: learn, recall, learn again. ARM and ADI differ only in the objective."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ...checks import check_choices, check_counts, check_not_negative, check_positive
from ...errors import ConfigError, InputError
from ...recall.ascent import Ascent
from ...recall.batch import Aimed, Initial, Recalled, choose, initial_images
from ...recall.copies import forward, in_passes, mixes_images, obstacle, treats_copies_alike
from ...recall.objective import Objective
from ...recall.plan import Plans, unchanged
from ...recall.reference import Ascent as LiteralAscent
from ...recall.side_by_side import SideBySide
from ...recall.terms import soft_cross_entropy
from ...storage.state import State, mapping
from ...torch_state import cores
from ..base import LearnerConfig, Memory
from .class_shift import ClassShift
from .finite import finite
from .frozen_copy import frozen_copy
from .modes import training
from .teacher import LagConfig, TaughtLearner
from .undo import Undo


@dataclass(frozen=True)
class RecallConfig(LearnerConfig):
    """How images are recalled and learned from, for any objective. Defaults are the paper's values for MNIST."""

    recalled_images: int = 10
    """M, the number of recalled images."""

    ascent_steps: int = 10
    """S, the number of ascent steps."""

    recall_rate: float = 25.0
    """η1, the rate of an ascent step. The objective is a mean, so one image moves by η1/M times its own gradient."""

    initial: Initial = "real"
    """What recalled images start from: images of the real batch, uniform noise in [0, 1), or, not in the paper, shift:
    images of the real batch moved to the mean of the class they are to show (see mean-shift). Class means are then
    kept, and that of a class with one image is that image."""

    l2_norm: float = 1.0
    """λ5, penalises large pixel values."""

    total_variation: float = 1.0
    """λ6, penalises rough images; must be 0 unless inputs are images (channels, height, width)."""

    learning_rate: float = 0.05
    """η0, the rate of both SGD steps."""

    recalled_weight: float = 1.0
    """λ0 of the recalled images in the learning step."""

    real_weight: float = 1.0
    """λ0 of the real batch in the learning step; 0 is the paper's "no distill"."""

    targets: Literal["soft", "hard", "told"] = "soft"
    """soft: learn the teacher's softmax outputs on recalled images. hard: only its most probable class. told, which is
    not in the paper: the class that an image was to show, whatever the teacher sees in it."""

    repeats: int = 1
    """Rounds of recall and learning per batch, each continuing with the images found before."""

    accumulate_repeats: bool = False
    """The published form of repeats: gradients are not cleared between them, so repeat r steps along g₁ + … + g_r."""

    lag: LagConfig = field(default_factory=LagConfig)
    """When the teacher becomes a fresh copy of the student."""

    def __post_init__(self) -> None:
        check_choices(self, "learner")
        check_counts(self, "learner", "recalled_images", "ascent_steps", "repeats")
        check_positive(self, "learner", "recall_rate", "learning_rate")
        check_not_negative(self, "learner", "l2_norm", "total_variation", "recalled_weight", "real_weight")
        if self.recalled_weight == 0 and self.real_weight == 0:
            raise ConfigError("learner.recalled_weight and learner.real_weight are both 0; expected one above 0")

    @abstractmethod
    def weights(self) -> dict[str, float]:
        """The signed weight of every term in the objective."""


class RecallLearner(TaughtLearner):
    """Learn, recall, learn again. Subclasses say what recalled images start from and ascend."""

    config: RecallConfig

    copies: Literal["auto", "collapse", "keep"] = "auto"
    """collapse runs copies of an image once and counts them, the same mathematics; auto does so where it is safe."""

    def __init__(
        self,
        network: nn.Module,
        config: RecallConfig,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        trained: bool | Iterable[int] = False,
    ) -> None:
        self.config = config
        if trained is not False and config.initial == "shift":
            raise InputError(
                "learner.initial is shift, which moves images to class means, and none are known of the classes that "
                "the network was trained on; use another start, or leave trained out"
            )
        super().__init__(network, config.lag, config.learning_rate, optimizer, seed, trained)
        self.side_by_side = SideBySide()
        self.plans = Plans()
        self.shift = ClassShift() if config.initial == "shift" else None
        self._said_why = False
        self._led_by: tuple[nn.Module | None] | None = None  # the teacher of a batch whose first step others take
        self._tried: tuple[list[object], bool] | None = None  # the network as it was, and whether copies came out alike

    @abstractmethod
    def start(self, x: Tensor, y: Tensor, keep_copies: bool) -> Recalled | None:
        """Line 6: what recalled images start from; None if there is nothing to recall."""

    def aimed_images(self, x: Tensor, y: Tensor, keep_copies: bool) -> Aimed | None:
        """Images to start from, each with a class to show that was seen before and is not present.

        None if there is no such class: the batch is then learned from its labels alone.
        """
        absent = torch.tensor(sorted(self.boundaries.earlier_classes - set(y.tolist())))
        if len(absent) == 0:
            return None
        count = self.config.recalled_images
        found = initial_images(x, count, self.config.initial, self.generator, keep_copies=True)
        origins, counts, classes = found.origins, found.counts, absent[choose(len(absent), count, self.generator)]
        if origins is None:
            return Aimed(found.images, counts, origins, classes.to(x.device))
        if not keep_copies:  # copies of one image move alike only if they have the same class to show
            pairs, counts = torch.unique(torch.stack([origins, classes], dim=1), dim=0, return_counts=True)
            origins, classes = pairs.unbind(1)
        chosen, classes = origins.to(x.device), classes.to(x.device)
        images = x[chosen]
        if self.shift is not None:
            images = self._laid_out(self.shift.move(images, y[chosen], classes, self.generator))
        return Aimed(images, counts.to(x.device), origins, classes)

    @abstractmethod
    def objective(self, start: Recalled, present_classes: Tensor) -> Objective:
        """Equation 8: what they ascend."""

    def ascent(self, start: Recalled, present_classes: Tensor, teacher: nn.Module) -> Ascent | LiteralAscent:
        """Lines 7 and 8."""
        objective = self.objective(start, present_classes)
        return Ascent(self.network, teacher, start, objective, self.side_by_side, self.plans)

    def before_step(self, x: Tensor, y: Tensor) -> None:
        """For loops that take the step on the real batch themselves: what has to happen before it.

        Then comes your step, with any loss and regulariser, and then `after_step`, in place of `observe`.
        """
        checked, labels = self.check(x, y)
        if self.grows and int(labels.max()) >= self.classes:
            ways_back = self._grow(int(labels.max()) + 1)
            try:
                self._check_grown(checked)
            except InputError:
                for go_back in reversed(ways_back):
                    go_back()
                raise
        with training(self.network):
            self._led_by = (self.teacher.follow(self.network, labels),)

    def after_step(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Recall and learn again, after your own step on the batch; return the numbers, without that step's loss.

        Gradients of your step are left as they are.
        """
        if self._led_by is None:
            raise InputError("after_step was called without before_step; call that before your own step on the batch")
        parameters = [p for p in self.network.parameters() if p.grad is not None]
        gradients = [p.grad for p in parameters]
        try:
            numbers = self.observe(x, y)
        finally:
            self._led_by = None
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
        del numbers["loss"]
        return numbers

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """One round of Algorithm 1."""
        (teacher,) = self._led_by or (self.teacher.follow(self.network, y),)
        if self.shift is not None:
            self.shift.add(x, y, self.classes)
        reason, present = self._obstacle(x), torch.unique(y)
        recalled = None if teacher is None else self.start(x, y, self._keeps_copies(len(x), reason))
        if teacher is None or recalled is None:
            return {"loss": self._step_on_real(x, y)} | self._nothing_recalled()

        self.side_by_side.threads = self._threads_worth(x, reason)
        try:
            return self._recall_and_learn(x, y, recalled, teacher, present)
        finally:
            self.plans.forget()

    def _recall_and_learn(
        self, x: Tensor, y: Tensor, recalled: Recalled, teacher: nn.Module, present: Tensor
    ) -> dict[str, float]:
        config, ascent = self.config, self.ascent(recalled, present, teacher)
        loss, _ = self.side_by_side.both(partial(self._step_on_real, x, y), ascent.begin)
        numbers = {"loss": loss}
        for repeat in range(config.repeats):
            ascent = ascent if repeat == 0 else self.ascent(recalled, present, teacher)
            recalled, terms = ascent.climb(config.ascent_steps, config.recall_rate)
            keep_gradients = config.accumulate_repeats and repeat > 0
            losses, targets = self._learn_from(recalled, x, teacher, keep_gradients)
            shares = recalled.weights.to(targets) @ targets
            numbers |= terms | losses | self._class_history(shares.tolist())
            if self.on_recall is not None:
                self.on_recall(recalled, targets)
        return numbers

    def _step_on_real(self, x: Tensor, y: Tensor) -> float:
        if self._led_by is not None:
            return math.nan
        return self.descend(F.cross_entropy(self.outputs(x), y), "the loss on the real batch")

    def _learn_from(
        self, recalled: Recalled, x: Tensor, teacher: nn.Module, keep_gradients: bool
    ) -> tuple[dict[str, float], Tensor]:
        """Line 9, as published: the sum of two means, each batch in its own pass; in one, if that makes no difference.

        It makes none if all layers treat images alone, and batch-norm does not.
        """
        config = self.config
        batches = [(recalled.images, recalled.multiplicities)] + ([(x, None)] if config.real_weight else [])
        one_pass = len(batches) == 2 and obstacle(self.network) is None and not mixes_images(self.network)
        logits, answers = self.side_by_side.both(
            partial(self._outputs, self.network, batches, one_pass), partial(self._answers, teacher, batches, one_pass)
        )
        targets = answers[0]
        learned = targets
        if config.targets != "soft":
            shown = recalled.classes if config.targets == "told" and isinstance(recalled, Aimed) else targets.argmax(1)
            learned = F.one_hot(shown, targets.shape[1]).to(targets)
        losses = [config.recalled_weight * soft_cross_entropy(logits[0], learned, recalled.weights)]
        losses += [config.real_weight * soft_cross_entropy(logits[1], answers[1])] if config.real_weight else []
        values = [finite(losses[0], "the loss on recalled images")]
        values += [finite(loss, "the distillation loss on the real batch") for loss in losses[1:]]
        self._descend_together([losses[0] + losses[1]] if one_pass else losses, keep_gradients)
        return {"recalled_loss": values[0], "distillation": values[1] if config.real_weight else math.nan}, targets

    def _outputs(self, network: nn.Module, batches: list[Batch], one_pass: bool) -> list[Tensor]:
        with self.filtering():
            if one_pass:  # counts are of no use then
                return in_passes(network, [images for images, _ in batches])
            return [forward(network, images, counts) for images, counts in batches]

    @torch.no_grad()
    def _answers(self, teacher: nn.Module, batches: list[Batch], one_pass: bool) -> list[Tensor]:
        return [logits.softmax(1) for logits in self._outputs(teacher, batches, one_pass)]

    def _descend_together(self, losses: list[Tensor], keep_gradients: bool) -> None:
        """One optimizer step down the sum of losses."""
        if not keep_gradients:
            self._clear_gradients()
        if len(losses) == 2 and not keep_gradients:
            # Their graphs share only parameters, and a sum of two does not depend on which comes first.
            self.side_by_side.both(losses[0].backward, losses[1].backward)
        else:
            for loss in losses:
                loss.backward()  # type: ignore[no-untyped-call]
        self.take_step()

    @property
    def is_its_network(self) -> bool:
        """Unless class means are kept."""
        return self.shift is None

    def grown(self, before: int, outputs: int) -> None:
        """Nothing is known of the new classes."""
        if self.shift is not None:
            self.shift.statistics.grow(outputs - before)

    def remember(self) -> list[Undo]:
        """Class means, too, if there are any."""
        return [*super().remember(), *(() if self.shift is None else self.shift.remember())]

    def memory(self) -> Memory:
        """The teacher's parameters, and class means."""
        kept, means = super().memory(), 0 if self.shift is None else self.shift.statistics.numbers()
        return replace(kept, statistics=kept.statistics + means)

    def kept_shape(self) -> tuple[int, ...] | None:
        """The shape of the inputs that class means are of."""
        return None if self.shift is None else self.shift.shape or None

    def state_dict(self) -> dict[str, object]:
        """The network, its optimizer, the teacher and class means, if there are any."""
        return super().state_dict() | ({} if self.shift is None else {"shift": self.shift.state_dict()})

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        if self.shift is not None:
            self.shift.load_state_dict(mapping(state["shift"]), self.classes, self._device())

    def check(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Also refuse what recall cannot use."""
        x, y = super().check(x, y)
        if self.copies not in ("auto", "collapse", "keep"):
            raise InputError(f"learner.copies is {self.copies!r:.80}; expected auto, collapse or keep")
        weight = self.config.total_variation
        if x.dim() != 4 and weight > 0:
            raise InputError(
                f"learner.total_variation is {weight} but inputs have shape {tuple(x.shape[1:])}, not "
                "(channels, height, width); set it to 0, or give inputs of that shape"
            )
        if self.config.recalled_images == 1:
            self.check_single(x, "learner.recalled_images=1")
        return x, y

    def _obstacle(self, x: Tensor) -> str | None:
        """What stands in the way of counting copies: known to, or found to by trying once."""
        reason = obstacle(self.network)
        if reason is None or self.copies != "auto":
            return reason
        as_now = [*self._layers, *(layer.training for layer in self._layers), x.shape[1:], x.dtype]
        if self._tried is None or not unchanged(self._tried[0], as_now):
            self._tried = as_now, treats_copies_alike(frozen_copy(self.network), x)
        return None if self._tried[1] else reason

    def _threads_worth(self, x: Tensor, reason: str | None) -> int:
        """Threads for the two networks together.

        Handing work to another thread pays off for convolutions, not for a few small matrix products. A network that
        draws random numbers would draw them in a race, and an accelerator has its own queue.
        """
        worth = self._convolutional and reason is None and x.device.type == "cpu"
        return min(self.threads or cores(), cores()) if worth else 1

    def _keeps_copies(self, count: int, reason: str | None) -> bool:
        """Whether each copy of a real image is run separately. With M ≤ N, or from noise, there are none."""
        config = self.config
        if self.copies != "auto" or config.initial == "noise" or config.recalled_images <= count:
            return self.copies == "keep"
        if reason is not None and not self._said_why:
            self._said_why = True
            warnings.warn(
                f"recall keeps all {config.recalled_images} copies, which takes longer: {reason} is not known to treat "
                "copies of an image alike, and does not when tried; if it should, set treats_images_alone = True on "
                "its class, or learner.copies = 'collapse'",
                stacklevel=4,
            )
        return reason is not None

    def _class_history(self, mean_teacher_outputs: list[float]) -> dict[str, float]:
        return {f"recalled_class_{label}": share for label, share in enumerate(mean_teacher_outputs)}

    def _nothing_recalled(self) -> dict[str, float]:
        names = (*self.config.weights(), "objective", "recalled_loss", "distillation")
        return dict.fromkeys(names, math.nan) | self._class_history([math.nan] * self.classes)


Batch: TypeAlias = tuple[Tensor, Tensor | None]  # inputs, and how often each occurs if not once
