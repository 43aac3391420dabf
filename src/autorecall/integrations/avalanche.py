"""Avalanche: recall for any of its strategies, and any learner as one of its strategies (avalanche-lib 0.6).

    strategy = Naive(model=network, optimizer=optimizer, train_mb_size=10, plugins=[Recall(ARMConfig())])
    strategy = as_strategy(ER(network, ERConfig(kept_images=200)))

Both are for streams that are seen once, ten images at a time (`train_mb_size=10, train_epochs=1`), without task labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, InputError
from ..learners.arm import ARMConfig
from ..learners.base import Learner
from ..learners.shared.algorithm1 import RecallConfig, RecallLearner
from ..learners.shared.frozen_copy import frozen_copy
from .torchvision import make_importable

try:
    make_importable()  # which Avalanche does at once
    from avalanche.benchmarks import OnlineCLExperience
    from avalanche.core import SupervisedPlugin
    from avalanche.models import MultiTaskModule
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.plugins.evaluation import default_evaluator
    from avalanche.training.templates import SupervisedTemplate
except ImportError as error:
    raise ConfigError(
        f"autorecall.integrations.avalanche cannot import Avalanche ({error}); use pip install 'autorecall[avalanche]'"
    ) from error


class Recall(SupervisedPlugin):  # type: ignore[misc]
    """Gives a strategy recall: after each of its steps the network recalls, and learns again.

    The strategy's own step is left as it is, with its loss and whatever other plugins add. The teacher is copied before
    an iteration, as `config.lag` says: by default before one with a class that was never seen. That needs no task
    labels, and works under `split_online_stream`, where every minibatch is an experience, too. With
    `LagConfig("boundary")` it is copied where an experience of the benchmark begins, if the stream may know.

    `learner` is the learner that recalls, from the first iteration on: `learner.memory()`, `learner.on_recall`.
    `numbers` are those of the last step.
    """

    def __init__(self, config: RecallConfig | None = None, seed: int = 0) -> None:
        """The settings of ARM, or of ADI; its learning_rate is not used, since the strategy has an optimizer."""
        super().__init__()
        self.config, self.seed = config or ARMConfig(), seed
        self.learner: RecallLearner | None = None
        self.numbers: dict[str, float] = {}
        self._layout: list[tuple[str, torch.Size]] = []

    def before_training_exp(self, strategy: Any, *_: object, **__: object) -> None:
        """Announce a task to those who wait for it."""
        learner = self._follow(strategy)
        if learner.waits_for_boundaries and _begins_task(strategy.experience):
            learner.boundary()

    def before_training_iteration(self, strategy: Any, *_: object, **__: object) -> None:
        """The teacher may be due for a copy of the network as it is before the step."""
        self._follow(strategy).before_step(strategy.mb_x, strategy.mb_y)

    def after_update(self, strategy: Any, *_: object, **__: object) -> None:
        """Recall, and a second step."""
        assert self.learner is not None
        self.numbers = self.learner.after_step(strategy.mb_x, strategy.mb_y)

    def _follow(self, strategy: Any) -> RecallLearner:
        """The learner around the strategy's network and optimizer, as they are now."""
        network: nn.Module = strategy.model
        layout = [(name, p.shape) for name, p in network.named_parameters()]
        known = self.learner
        if known is not None and (known.network, self._layout) == (network, layout):
            known.optimizer = strategy.optimizer  # some strategies make a new one now and then
            return known
        if isinstance(network, MultiTaskModule):
            raise InputError(
                f"{type(network).__name__} chooses its outputs by task labels, and recalled images have none; use a "
                "network with one output layer for all classes"
            )
        learner = self.config.build(network, self.seed)
        assert isinstance(learner, RecallLearner)
        learner.optimizer = strategy.optimizer
        if known is not None:
            if known.shift is not None:
                raise InputError(
                    "learner.initial is shift, and the network has got outputs; give it all from the start"
                )
            learner.generator, learner.threads, learner.copies = known.generator, known.threads, known.copies
            learner.on_recall = known.on_recall
            learner.boundaries.load_state_dict(known.boundaries.state_dict())
            if known.network is network and known.teacher.network is not None:
                learner.teacher.network = _grown(known.teacher.network, network)
            elif known.teacher.network is not None:
                learner.teacher.refresh(network)
        self.learner, self._layout = learner, layout
        return learner


class LearnerStrategy(SupervisedTemplate):  # type: ignore[misc]
    """A learner as a strategy: `observe` is its training iteration, `predict` its forward pass."""

    def __init__(
        self,
        *,
        learner: Learner,
        train_mb_size: int = 10,
        train_epochs: int = 1,
        eval_mb_size: int = 50,
        plugins: list[Any] | None = None,
        evaluator: EvaluationPlugin = default_evaluator,
        eval_every: int = -1,
        peval_mode: str = "epoch",
    ) -> None:
        self.learner = learner
        self.numbers: dict[str, float] = {}
        super().__init__(
            model=learner.network,
            optimizer=learner.optimizer,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=next(learner.network.parameters()).device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
            peval_mode=peval_mode,
        )

    def training_epoch(self, **kwargs: object) -> None:
        """One `observe` for each minibatch. Outputs for metrics are those from before it, as usual.

        Hooks around the backward pass are left out: a learner may make several, or none.
        """
        for self.mbatch in self.dataloader:  # noqa: B020  where Avalanche and its plugins look for it
            if self._stop_training:
                break
            self._unpack_minibatch()
            self._before_training_iteration(**kwargs)
            self._before_forward(**kwargs)
            self.mb_output = self.forward()
            self._after_forward(**kwargs)
            self._before_update(**kwargs)
            self.numbers = self.learner.observe(self.mb_x, self.mb_y)
            self.loss = self.criterion() if "loss" not in self.numbers else torch.tensor(self.numbers["loss"])
            self._after_update(**kwargs)
            self._after_training_iteration(**kwargs)

    def forward(self) -> Tensor:
        """What the learner predicts."""
        return self.learner.predict(self.mb_x)

    def criterion(self) -> Tensor:
        """The loss. A class that the network has no output for yet is as unlikely as the least likely one."""
        outputs, missing = self.mb_output, int(self.mb_y.max()) + 1 - self.mb_output.shape[1]
        if missing > 0:
            outputs = torch.cat([outputs, outputs.amin(1, keepdim=True).expand(-1, missing)], dim=1)
        loss: Tensor = self._criterion(outputs, self.mb_y)
        return loss

    def model_adaptation(self, model: nn.Module | None = None) -> nn.Module:
        """The network is the learner's, which adds outputs itself if its `grows` is True."""
        return self.model if model is None else model

    def check_model_and_optimizer(self, **_: object) -> None:
        """The optimizer is the learner's, too; it is told where tasks begin if it waits for that."""
        if self.learner.waits_for_boundaries and _begins_task(self.experience):
            self.learner.boundary()


def as_strategy(learner: Learner, **options: Any) -> LearnerStrategy:
    """Any learner as an Avalanche strategy; options are those of `LearnerStrategy`, such as evaluator and plugins."""
    return LearnerStrategy(learner=learner, **options)


@torch.no_grad()
def _grown(teacher: nn.Module, student: nn.Module) -> nn.Module:
    """The teacher, after outputs were added to the student: it answers as before; the new ones are the student's."""
    grown, before = frozen_copy(student), teacher.state_dict()
    for name, now in grown.state_dict().items():
        then = before.get(name)
        if then is not None and then.shape == now.shape:
            now.copy_(then)
        elif then is not None and then.shape[1:] == now.shape[1:] and len(then) < len(now):
            now[: len(then)] = then
    return grown


def _begins_task(experience: Any) -> bool:
    """Whether a task of the benchmark begins here; under split_online_stream every minibatch is an experience."""
    if isinstance(experience, OnlineCLExperience):
        return bool(experience.access_task_boundaries and experience.is_first_subexp)
    return True
