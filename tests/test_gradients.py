"""The closed-form gradient and step against autograd through the objective."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autorecall import kernels
from autorecall.gradients import Compiled, Plain, gradient_of
from autorecall.objectives import Divergence
from autorecall.recall import RecallConfig, Recalled

pytestmark = pytest.mark.skipif(not kernels.can_call(torch.zeros(1)), reason="installed without a C compiler")

CONFIG = RecallConfig(
    divergence_weight=1.7, teacher_avoidance=0.9, student_avoidance=0.4, uncertainty=0.3, total_variation=2.0
)
PRESENT = torch.tensor([1, 4])
CLASSES = 6
COUNTS = torch.tensor([3, 1, 5, 2])
every_divergence = pytest.mark.parametrize("kind", get_args(Divergence))
every_layout = pytest.mark.parametrize("layout", ["rows", "channels last"])
every_shape = pytest.mark.parametrize("shape", [(2, 5, 4), (1, 1, 7), (3, 6, 1), (9,), (4, 3)], ids=str)


def batch(shape: tuple[int, ...], layout: str = "rows", dtype: torch.dtype = torch.float64) -> Recalled:
    images = torch.rand(len(COUNTS), *shape, dtype=dtype)
    if layout == "channels last" and images.dim() == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    return Recalled(images, COUNTS, None)


def logits(scale: float = 3.0) -> tuple[Tensor, Tensor]:
    student, teacher = scale * torch.randn(2, len(COUNTS), CLASSES, dtype=torch.float64)
    return student, teacher


def both(start: Recalled, config: RecallConfig) -> tuple[Plain, Compiled]:
    return Plain(start, PRESENT, CLASSES, config), Compiled(start, PRESENT, CLASSES, config)


def assert_same_gradients(start: Recalled, config: RecallConfig, student: Tensor, teacher: Tensor) -> None:
    plain, compiled = both(start, config)
    expected, found = (way.at_logits(student, teacher, start.images) for way in (plain, compiled))
    assert expected is not None
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@every_divergence
def test_gradient_at_the_logits_is_that_of_the_objective(kind: Divergence) -> None:
    assert_same_gradients(batch((2, 5, 4)), replace(CONFIG, divergence=kind), *logits())


@every_divergence
@pytest.mark.parametrize("scale", [0.0, 1e-6, 50.0])
def test_gradient_holds_for_equal_and_for_extreme_logits(kind: Divergence, scale: float) -> None:
    assert_same_gradients(batch((2, 5, 4)), replace(CONFIG, divergence=kind, uncertainty=0.0), *logits(scale))


weight = st.sampled_from([0.0, 0.1, 1.0, 16.0])


@given(st.sampled_from(get_args(Divergence)), weight, weight, weight, weight, weight, st.integers(0, 99))
def test_gradient_holds_whatever_the_weights(
    kind: Divergence, divergence: float, teacher: float, student: float, diversity: float, uncertainty: float, seed: int
) -> None:
    torch.manual_seed(seed)
    config = replace(
        CONFIG,
        divergence=kind,
        divergence_weight=divergence,
        teacher_avoidance=teacher,
        student_avoidance=student,
        diversity=diversity,
        uncertainty=uncertainty,
    )
    assert_same_gradients(batch((1, 3, 3)), config, *logits())


@every_shape
@every_layout
def test_step_and_terms_are_those_of_the_plain_way(shape: tuple[int, ...], layout: str) -> None:
    config = CONFIG if len(shape) == 3 else replace(CONFIG, total_variation=0.0)
    start = batch(shape, layout)
    by_student, by_teacher = torch.randn_like(start.images), torch.randn_like(start.images)
    student, teacher = logits()
    stepped, terms = [], []
    for way in both(start, config):
        way.at_logits(student, teacher, start.images)
        stepped.append(way.step(start.images, by_student, by_teacher))
        terms.append(way.terms())
    torch.testing.assert_close(stepped[1], stepped[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(terms[1], terms[0], rtol=1e-10, atol=1e-12)
    assert stepped[1].stride() == start.images.stride()


def test_step_takes_gradients_in_another_layout() -> None:
    start = batch((2, 5, 4), "channels last")
    gradient = torch.randn(start.images.shape, dtype=torch.float64)
    plain, compiled = both(start, CONFIG)
    for way in (plain, compiled):
        way.at_logits(*logits(), start.images)
    expected = plain.step(start.images, gradient, 2 * gradient)
    torch.testing.assert_close(compiled.step(start.images, gradient, 2 * gradient), expected, rtol=1e-10, atol=1e-12)


def test_black_images_have_no_gradient_of_their_norm() -> None:
    start = Recalled(torch.zeros(4, 1, 3, 3, dtype=torch.float64), COUNTS, None)
    compiled = Compiled(start, PRESENT, CLASSES, CONFIG)
    nothing = torch.zeros_like(start.images)
    assert torch.equal(compiled.step(start.images, nothing, nothing), start.images)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("way", [Plain, Compiled])
def test_what_is_not_finite_is_noticed(way: type[Plain | Compiled], value: float) -> None:
    start, (student, teacher) = batch((2, 5, 4)), logits()
    teacher[2, 3] = value
    assert way(start, PRESENT, CLASSES, CONFIG).at_logits(student, teacher, start.images) is None


def test_single_precision_is_close_to_double() -> None:
    start = batch((2, 5, 4))
    single = replace(start, images=start.images.float())
    student, teacher = logits()
    exact = Compiled(start, PRESENT, CLASSES, CONFIG).at_logits(student, teacher, start.images)
    rough = Compiled(single, PRESENT, CLASSES, CONFIG).at_logits(student.float(), teacher.float(), single.images)
    assert exact is not None
    assert rough is not None
    assert all(gradient.dtype == torch.float32 for gradient in rough)
    for found, expected in zip(rough, exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_without_kernels_autograd_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = batch((2, 5, 4))
    assert isinstance(gradient_of(start, PRESENT, CLASSES, CONFIG), Compiled)
    monkeypatch.setattr(kernels, "_kernels", dict)
    assert isinstance(gradient_of(start, PRESENT, CLASSES, CONFIG), Plain)


def test_images_too_dark_for_their_norm_stay_where_they_are() -> None:
    start = Recalled(torch.full((4, 1, 3, 3), 1e-25), COUNTS, None)
    compiled, nothing = Compiled(start, PRESENT, CLASSES, CONFIG), torch.zeros(4, 1, 3, 3)
    assert torch.equal(compiled.step(start.images, nothing, nothing), start.images)
