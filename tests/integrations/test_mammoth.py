"""The model for Mammoth, in a stub with the signatures of Mammoth 0.2.2 (models/utils/continual_model.py).

The stub has what Mammoth's training loop calls, in its order; a run of the real thing is in docs/integrations.md.
"""

from __future__ import annotations

import inspect
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorecall import ARM, ARMConfig, ConfigError
from autorecall.learners.base import methods

MODULE = "autorecall.integrations.mammoth"


class ContinualModel(nn.Module):
    """What Mammoth's base class does for its models, and nothing else."""

    NAME: str
    COMPATIBILITY: list[str]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        return parser

    def __init__(self, backbone: Any, loss: Any, args: Namespace, transform: Any, dataset: Any = None) -> None:
        super().__init__()
        self.net, self.loss, self.args, self.dataset = backbone, loss, args, dataset
        self.opt = self.get_optimizer()
        self._current_task = 0

    def get_optimizer(self, params: Any = None, lr: Any = None) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=self.args.lr)

    def begin_task(self, dataset: Any) -> None:
        pass

    def end_task(self, dataset: Any) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def meta_begin_task(self, dataset: Any) -> None:
        self.opt.zero_grad(set_to_none=True)
        self.opt = self.get_optimizer()
        self.begin_task(dataset)

    def meta_end_task(self, dataset: Any) -> None:
        self.end_task(dataset)
        self._current_task += 1

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: Any = None) -> float:
        raise NotImplementedError

    def meta_observe(self, *args: Any, **kwargs: Any) -> float:
        known = inspect.signature(self.observe).parameters
        return self.observe(*args, **{name: value for name, value in kwargs.items() if name in known})


@pytest.fixture
def model_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    stub = ModuleType("models.utils.continual_model")
    stub.ContinualModel = ContinualModel  # type: ignore[attr-defined]
    for name in ("models", "models.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    from autorecall.integrations.mammoth import Autorecall

    yield Autorecall
    del sys.modules[MODULE]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 6))


def arguments(model_class: Any, *words: str) -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=None)
    found: Namespace = model_class.get_parser(parser.add_argument_group("Model-specific arguments")) and (
        parser.parse_args(words)
    )
    return found


def tasks(count: int = 3) -> list[list[tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(1)
    return [
        [
            (torch.rand(6, 3, 4, 4, generator=generator), torch.randint(2, (6,), generator=generator) + 2 * task)
            for _ in range(3)
        ]
        for task in range(count)
    ]


def train(model: Any) -> list[float]:
    """As Mammoth does, one epoch for each task."""
    losses = []
    for task in tasks():
        model.net.train()
        model.meta_begin_task(None)
        losses += [model.meta_observe(x, y, x, epoch=0, task_label=0) for x, y in task]
        model.meta_end_task(None)
    return losses


def test_it_learns_as_the_learner_does_in_a_loop_of_ones_own(model_class: Any) -> None:
    args = arguments(model_class, "--settings", '{"recalled_images": 4, "ascent_steps": 2}')
    model = model_class(network(), F.cross_entropy, args, None, None)
    losses = train(model)
    learner = ARM(network(), ARMConfig(recalled_images=4, ascent_steps=2, learning_rate=0.03))
    expected = []
    for task in tasks():
        learner.boundary()
        expected += [learner.observe(x, y)["loss"] for x, y in task]
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(model.net.parameters(), learner.network.parameters(), strict=True))
    assert model.learner.boundaries.tasks == 3
    x, _ = tasks()[0][0]
    assert torch.equal(model(x), learner.predict(x))


def test_the_optimizer_is_that_which_mammoth_has_now(model_class: Any) -> None:
    model = model_class(network(), F.cross_entropy, arguments(model_class), None, None)
    train(model)
    assert model.learner.optimizer is model.opt
    before = [p.clone() for p in model.net.parameters()]
    model.opt.param_groups[0]["lr"] = 0.0  # as a scheduler might
    x, y = tasks()[2][0]
    model.meta_observe(x, y, x, epoch=0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.net.parameters(), strict=True))


def test_tasks_begin_where_mammoth_says_and_nowhere_else(model_class: Any) -> None:
    """Not where a class of a large task is seen for the first time; if nothing is announced, there."""
    for setting, settings, expected in (
        ("class-il", "{}", 1),
        ("class-il", '{"lag": {"policy": "novel"}}', 2),
        ("general-continual", "{}", 2),
    ):
        args = arguments(model_class, "--learner", "lwf", "--settings", settings)
        model = model_class(network(), F.cross_entropy, args, None, SimpleNamespace(SETTING=setting))
        model.meta_begin_task(None)
        for label in (0, 1):
            for _ in range(10):
                model.meta_observe(torch.rand(6, 3, 4, 4), torch.full((6,), label), None, epoch=0)
        assert model.learner.boundaries.tasks == expected


@pytest.mark.parametrize("method", ["naive", "lwf", "er", "icarl", "slda", "mean-shift"])
def test_any_learner_can_be_named(model_class: Any, method: str) -> None:
    model = model_class(network(), F.cross_entropy, arguments(model_class, "--learner", method), None, None)
    assert len(train(model)) == 9
    assert model(tasks()[0][0][0]).shape == (6, 6)
    assert isinstance(model.learner.config, methods()[method])


def test_signatures_are_those_of_mammoth(model_class: Any) -> None:
    for name in ("__init__", "begin_task", "observe", "forward", "get_parser"):
        mine, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (model_class, ContinualModel))
        assert list(mine) == list(theirs)
    assert model_class.NAME == "autorecall"
    assert "class-il" in model_class.COMPATIBILITY


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("nonsense", "--settings is 'nonsense'"),
        ("[1]", "not an object"),
        ('{"recalled": 3}', "recalled is not a field of ARMConfig"),
        ('{"recalled_images": 0}', "recalled_images is 0"),
    ],
)
def test_bad_settings_get_one_sentence(model_class: Any, settings: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match="settings") as caught:
        model_class(network(), F.cross_entropy, arguments(model_class, "--settings", settings), None, None)
    assert sentence in str(caught.value)


def test_outside_mammoth_one_sentence_says_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setitem(sys.modules, "models", None)
    with pytest.raises(ConfigError, match="works inside Mammoth only"):
        import autorecall.integrations.mammoth  # noqa: F401
