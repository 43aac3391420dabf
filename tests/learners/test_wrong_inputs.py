"""What every learner refuses, with one sentence and without a trace; and what only looks wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from autorecall import (
    ARM,
    ER,
    ERMIR,
    GEM,
    ARMConfig,
    BoundaryConfig,
    ERConfig,
    ERMIRConfig,
    GEMConfig,
    ICaRL,
    ICaRLConfig,
    LagConfig,
    Learner,
)
from autorecall.errors import InputError

from .worlds import (
    CLASSES,
    KEEPING,
    Make,
    any_method,
    assert_same,
    batch,
    conv,
    every_method,
    every_network,
    learner,
    mlp,
    observe,
)

X, Y = batch(0)
WRONG: dict[str, tuple[object, object, str]] = {
    "negative label": (X, Y - 3, "label -3"),
    "label too large": (X, torch.full_like(Y, 7), "the label 7 but the network has 6 outputs"),
    "one label too large": (X, torch.tensor([0, 1, 0, 1, 0, CLASSES]), "the label 6"),
    "NaN pixel": (X.index_fill(0, torch.tensor([1]), float("nan")), Y, "NaN or infinite"),
    "infinite pixel": (X.index_fill(0, torch.tensor([1]), float("-inf")), Y, "NaN or infinite"),
    "empty batch": (X[:0], Y[:0], "shape (0, 2, 6, 5)"),
    "integer images": (X.byte(), Y, "torch.uint8"),
    "boolean images": (X > 0.5, Y, "torch.bool"),
    "complex images": (X.to(torch.complex128), Y, "torch.complex128"),
    "float labels": (X, Y.float(), "torch.float32"),
    "boolean labels": (X, Y.bool(), "torch.bool"),
    "fewer labels": (X, Y[:-1], "(5,) for 6 inputs"),
    "column of labels": (X, Y[:, None], "(6, 1) for 6 inputs"),
    "one image without batch": (X[0, 0, 0], Y[:1], "shape (5,)"),
    "arrays": (X.numpy(), Y.numpy(), "ndarray"),
}


def assert_refused(student: Learner, x: object, y: object, says: str) -> None:
    """One sentence that names the value, and not a trace of the batch."""
    before = copy.deepcopy(student.state_dict())
    modes = [module.training for module in student.network.modules()]
    with pytest.raises(InputError) as caught:
        student.observe(x, y)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    if before["classes"] == 0:
        before["classes"] = student.state_dict()["classes"]
    assert_same(student.state_dict(), before)
    assert [module.training for module in student.network.modules()] == modes


@pytest.mark.parametrize("observed", [0, 3])
@any_method
def test_wrong_batches_are_refused_without_a_trace(method: str, observed: int) -> None:
    student = learner(method, conv())
    observe(student, observed)
    for wrong in WRONG.values():
        assert_refused(student, *wrong)


@pytest.mark.parametrize("observed", [0, 3])
@pytest.mark.parametrize(("make", "shape"), [(mlp, (61,)), (conv, (3, 6, 5)), (conv, (2, 1, 1)), (conv, (60,))])
@any_method
def test_inputs_of_a_wrong_shape_are_refused(method: str, make: Make, shape: tuple[int, ...], observed: int) -> None:
    student = learner(method, make())
    observe(student, observed)
    x, y = batch(5, shape=shape)
    assert_refused(student, x, y, f"inputs of shape {shape}")


@any_method
def test_inputs_of_another_precision_are_refused(method: str) -> None:
    x, y = batch(0)
    assert_refused(learner(method, mlp()), x.float(), y, "inputs of shape (2, 6, 5)")


class Wrapped(nn.Module):
    """A network whose answer is something else than logits."""

    def __init__(self, answer: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.inner = mlp()
        self.answer = answer

    def forward(self, x: Tensor) -> object:
        return self.answer(self.inner(x))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda logits: (logits, None), "gave tuple"),
        (lambda logits: logits.sum(1), "gave (1,)"),
        (lambda logits: logits[:, :, None], "gave (1, 6, 1)"),
        (lambda logits: torch.cat([logits, logits]), "gave (2, 6)"),
        (lambda logits: None, "gave NoneType"),
    ],
)
@any_method
def test_network_that_gives_no_logits_is_refused(method: str, answer: Callable[[Tensor], object], says: str) -> None:
    assert_refused(learner(method, Wrapped(answer)), *batch(0), says)


@every_method
def test_network_without_anything_to_train_is_refused(method: str) -> None:
    with pytest.raises(InputError, match="nothing to train"):
        learner(method, mlp().requires_grad_(False))


@pytest.mark.parametrize("shape", [(60,), (12, 5)])
def test_total_variation_of_inputs_that_are_no_images_is_refused(shape: tuple[int, ...]) -> None:
    student = ARM(mlp(), ARMConfig(lag=LagConfig("every", 2, start=2)))
    assert_refused(student, *batch(0, shape=shape), f"learner.total_variation is 1.0 but inputs have shape {shape}")


@pytest.mark.parametrize("observed", [0, 3])
@every_method
def test_single_input_is_refused_where_batch_norm_cannot_take_it(method: str, observed: int) -> None:
    layers = nn.Flatten(), nn.Linear(60, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)
    student = learner(method, nn.Sequential(*layers).double())
    observe(student, observed)
    assert_refused(student, *batch(5, count=1), "use two or more")


def test_single_recalled_image_is_refused_where_batch_norm_cannot_take_it() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(60, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)).double()
    student = ARM(network, ARMConfig(recalled_images=1, lag=LagConfig("every", 1, start=0)))
    with pytest.raises(InputError, match="two or more"):
        student.observe(*batch(0))


@every_network
@every_method
def test_single_input_is_learned_where_the_network_can_take_it(method: str, make: Make) -> None:
    student = learner(method, make())
    before = copy.deepcopy(student.network.state_dict())
    for number in range(4):
        student.observe(*batch(number, count=1))
    with pytest.raises(AssertionError):
        assert_same(student.network.state_dict(), before)


class Pooling(nn.Module):
    """A network that takes images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


@pytest.mark.parametrize("method", [*KEEPING, "gen", "gen-mir"])
def test_images_of_another_size_are_refused_by_those_who_keep_or_make_some(method: str) -> None:
    student = learner(method, Pooling().double())
    observe(student, 3)
    assert_refused(student, *batch(3, shape=(2, 8, 8)), "(2, 8, 8)")
    fresh = learner(method, Pooling().double())
    fresh.load_state_dict(copy.deepcopy(student.state_dict()))
    assert_refused(fresh, *batch(3, shape=(2, 8, 8)), "(2, 8, 8)")


@pytest.mark.parametrize("method", KEEPING)
def test_a_single_image_is_replayed_through_batch_norm(method: str) -> None:
    """Batch-norm of features cannot take one image, and there may be just one of an earlier task."""
    layers = nn.Flatten(), nn.Linear(60, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)
    network = nn.Sequential(*layers).double()
    tasks = BoundaryConfig("every", 2)
    lone: dict[str, Learner] = {
        "er": ER(network, ERConfig(1, tasks=tasks)),
        "er-mir": ERMIR(network, ERMIRConfig(1, replayed=1, candidates=1, tasks=tasks)),
        "gem": GEM(network, GEMConfig(3, tasks=tasks)),
        "icarl": ICaRL(network, ICaRLConfig(6, tasks=tasks)),
    }
    observe(lone[method], 6)


@pytest.mark.parametrize("around", [torch.inference_mode, lambda: torch.autocast("cpu")], ids=["inference", "autocast"])
def test_modes_without_exact_gradients_are_refused(around: Callable[[], AbstractContextManager[object]]) -> None:
    x, y = batch(0)
    student = learner("arm", mlp())
    with around(), pytest.raises(InputError, match="inside inference_mode or autocast"):
        student.observe(x, y)


def test_network_that_changes_its_number_of_outputs_is_refused() -> None:
    class Widening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = nn.Linear(60, 6), nn.Linear(60, 9)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = (self.wide if self.training else self.narrow)(x.flatten(1))
            return outputs

    student = ARM(
        Widening().double(),
        ARMConfig(recalled_images=2, ascent_steps=2, total_variation=0.0, lag=LagConfig("every", 1, start=0)),
    )
    with pytest.raises(InputError, match="number of outputs must not change"):
        student.observe(*batch(0))
