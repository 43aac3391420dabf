"""Mammoth: any learner as one of its models (the interface of Mammoth 0.2.2).

Write this into `models/autorecall_model.py` of your Mammoth:

    from autorecall.integrations.mammoth import Autorecall

Then `python main.py --model autorecall --dataset seq-mnist --lr 0.05 --batch_size 10 …` trains ARM, and
`--learner er --settings '{"kept_images": 200}'` any other learner with any settings.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from ..checks import brief
from ..errors import AutorecallError, ConfigError
from ..learners.base import Learner, LearnerConfig, methods
from ..storage.schema import decode

try:
    from models.utils.continual_model import ContinualModel
except ImportError as error:
    raise ConfigError(
        f"autorecall.integrations.mammoth works inside Mammoth only, and cannot import its models ({error}); import it "
        "in a file in the folder models of Mammoth, and start Mammoth's main.py"
    ) from error


class Autorecall(ContinualModel):  # type: ignore[misc]
    """A learner of autorecall."""

    NAME = "autorecall"
    COMPATIBILITY = ("class-il", "domain-il", "general-continual")

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        """The method, and its settings."""
        parser.add_argument("--learner", default="arm", choices=sorted(methods()), help="The method of autorecall.")
        parser.add_argument(
            "--settings",
            default="{}",
            help="Its settings as JSON, such as '{\"recalled_images\": 100}'. The learning rate is --lr.",
        )
        return parser

    def __init__(
        self, backbone: nn.Module, loss: nn.Module, args: Namespace, transform: nn.Module, dataset: Any = None
    ) -> None:
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        # Where one task is all there is, new classes have to do.
        announced = getattr(dataset, "SETTING", "") != "general-continual"
        self.learner = learner_of(self.net, args, announced)
        self._descends = _has_rate(methods()[args.learner])

    def begin_task(self, dataset: Any) -> None:
        """Mammoth says where tasks begin, so the learner is told."""
        self.learner.boundary()

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> float:
        """One step, with the optimizer that Mammoth has now: it makes a new one for each task."""
        if self.opt is not None and self._descends:
            self.learner.optimizer = self.opt
        numbers = self.learner.observe(inputs, labels)
        return numbers.get("loss", 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """What the learner predicts."""
        return self.learner.predict(x)


def learner_of(network: nn.Module, args: Namespace, announced: bool = True) -> Learner:
    """The learner that the arguments describe; unless --settings say otherwise, tasks begin where it is `announced`."""
    kind = methods()[args.learner]
    try:
        settings = json.loads(args.settings)
        if not isinstance(settings, dict):
            raise ValueError(f"it is {type(settings).__name__}, not an object")
        if _has_rate(kind):
            settings = {"learning_rate": args.lr} | settings
        for name in ("lag", "tasks"):
            if announced and name in _names(kind):
                given = settings.get(name, {})
                settings[name] = {"policy": "boundary"} | given if isinstance(given, dict) else given
        config = decode(kind, {"method": args.learner} | settings, "settings")
    except (ValueError, AutorecallError) as error:
        raise ConfigError(f"--settings is {brief(args.settings)}: {error}") from error
    assert isinstance(config, kind)
    return config.build(network, args.seed or 0)


def _has_rate(kind: type[LearnerConfig]) -> bool:
    """Whether the method descends on a loss; others need no optimizer."""
    return "learning_rate" in _names(kind)


def _names(kind: type[LearnerConfig]) -> set[str]:
    return {field.name for field in fields(kind)}
