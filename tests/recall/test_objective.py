"""The paper's objective in closed form against autograd through the same terms, and what any objective does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autorecall.errors import DivergedError, InputError
from autorecall.recall import kernels
from autorecall.recall.batch import Recalled
from autorecall.recall.objective import TERMS, ClosedForm, Disagreement, disagreement
from autorecall.recall.terms import DivergenceForm

from .worlds import assert_close

WEIGHTS = dict(zip(TERMS, (1.7, 0.9, 0.4, 16.0, -0.3, -1.0, -2.0), strict=True))
NOTHING = dict.fromkeys(TERMS, 0.0)
PRESENT = torch.tensor([1, 4])
CLASSES = 6
COUNTS = torch.tensor([3, 1, 5, 2])
compiled_only = pytest.mark.skipif(not kernels.can_call(torch.zeros(1)), reason="installed without a C compiler")
every_form = pytest.mark.parametrize("form", get_args(DivergenceForm))
either_way = pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=compiled_only)])


def batch(shape: tuple[int, ...] = (2, 5, 4), layout: str = "rows", dtype: torch.dtype = torch.float64) -> Recalled:
    images = torch.rand(len(COUNTS), *shape, dtype=dtype)
    if layout == "channels last" and images.dim() == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    return Recalled(images, COUNTS, None)


def logits(scale: float = 3.0) -> tuple[Tensor, Tensor]:
    student, teacher = scale * torch.randn(2, len(COUNTS), CLASSES, dtype=torch.float64)
    return student, teacher


def objective(
    compiled: bool,
    start: Recalled,
    weights: Mapping[str, float] = WEIGHTS,
    form: DivergenceForm = "mixture-first",
) -> Disagreement:
    if compiled:
        return ClosedForm(start, weights, PRESENT, form, CLASSES)
    return Disagreement(start, weights, PRESENT, form)


def gradients(
    compiled: bool,
    student: Tensor,
    teacher: Tensor,
    weights: Mapping[str, float] = WEIGHTS,
    form: DivergenceForm = "mixture-first",
) -> tuple[Tensor, Tensor]:
    """At the logits of the student and of the teacher."""
    start = batch((1, 3, 3), dtype=student.dtype)
    found = objective(compiled, start, weights, form).at_outputs(student, (teacher,), start.images)
    assert found is not None
    at_student, (at_teacher,) = found
    return at_student, at_teacher


def assert_same_gradients(
    student: Tensor, teacher: Tensor, weights: Mapping[str, float] = WEIGHTS, form: DivergenceForm = "mixture-first"
) -> None:
    found, expected = (gradients(compiled, student, teacher, weights, form) for compiled in (True, False))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


# In closed form and by autograd


@compiled_only
@every_form
@pytest.mark.parametrize("scale", [0.0, 1e-6, 3.0, 50.0])
def test_gradient_is_that_of_autograd_for_equal_and_for_extreme_logits(form: DivergenceForm, scale: float) -> None:
    assert_same_gradients(*logits(scale), form=form)


@compiled_only
@every_form
def test_gradient_is_that_of_autograd_where_the_teacher_is_torn_between_classes(form: DivergenceForm) -> None:
    """Ties of two, three and all classes, at the beginning, in the middle and at the end."""
    rows = [[2, 2, 0, 1, 0, 1], [0, 1, 3, 0, 3, 3], [0, 0, 0, 0, 5, 5], [1, 1, 1, 1, 1, 1]]
    assert_same_gradients(logits()[0], torch.tensor(rows, dtype=torch.float64), form=form)


weight = st.sampled_from([0.0, 0.1, 1.0, 16.0])


@compiled_only
@given(st.sampled_from(get_args(DivergenceForm)), st.tuples(*[weight] * 5), st.integers(0, 99))
def test_gradient_is_that_of_autograd_whatever_the_weights(
    form: DivergenceForm, sizes: tuple[float, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    weights = WEIGHTS | {name: math.copysign(size, WEIGHTS[name]) for name, size in zip(TERMS, sizes, strict=False)}
    assert_same_gradients(*logits(), weights, form)


@compiled_only
@pytest.mark.parametrize("shape", [(2, 5, 4), (1, 1, 7), (3, 6, 1), (9,), (4, 3)], ids=str)
@pytest.mark.parametrize("layout", ["rows", "channels last"])
@pytest.mark.parametrize("as_laid_out", [True, False])
def test_step_and_terms_are_those_of_autograd(shape: tuple[int, ...], layout: str, as_laid_out: bool) -> None:
    """Also where gradients come in a layout of their own."""
    start, weights = batch(shape, layout), WEIGHTS if len(shape) == 3 else WEIGHTS | {"total_variation": 0.0}
    by_student, by_teacher = torch.randn(2, *start.images.shape, dtype=torch.float64)
    if as_laid_out:
        by_student, by_teacher = (torch.empty_like(start.images).copy_(g) for g in (by_student, by_teacher))
    (student, teacher), stepped, values = logits(), [], []
    for compiled in (False, True):
        way = objective(compiled, start, weights)
        way.at_outputs(student, (teacher,), start.images)
        stepped.append(way.step(start.images, by_student, by_teacher, rate=25.0))
        values.append(way.values())
    assert_close(stepped[1], stepped[0], 1e-10)
    assert_close(values[1], values[0], 1e-10)
    assert stepped[1].stride() == start.images.stride()
    assert list(values[1]) == list(values[0]) == [*TERMS, "objective"]


@compiled_only
def test_single_precision_is_close_to_double() -> None:
    student, teacher = logits()
    exact, rough = gradients(True, student, teacher), gradients(True, student.float(), teacher.float())
    for found, expected in zip(rough, exact, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@compiled_only
@pytest.mark.parametrize("shape", [(4, 5), (4, 7), (3, 6)])
def test_logits_of_another_shape_are_refused_rather_than_read_beyond_their_end(shape: tuple[int, int]) -> None:
    start, (student, _) = batch(), logits()
    with pytest.raises(InputError, match="its number of outputs must not change"):
        objective(True, start).at_outputs(student, (torch.zeros(shape, dtype=torch.float64),), start.images)


@compiled_only
def test_closed_form_is_used_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(images: Tensor) -> type[Disagreement]:
        return type(disagreement(Recalled(images, COUNTS, None), WEIGHTS, PRESENT, "mixture-first", CLASSES))

    images = batch().images
    assert kind(images) is kind(images.float()) is ClosedForm
    assert kind(images.contiguous(memory_format=torch.channels_last)) is ClosedForm
    assert kind(images.bfloat16()) is Disagreement
    assert kind(images.transpose(2, 3)) is Disagreement
    monkeypatch.setattr(kernels, "_kernels", dict)
    assert kind(images) is Disagreement


# Either way


@either_way
@pytest.mark.parametrize(("value", "dtype"), [(0.0, torch.float64), (1e-25, torch.float32)])
def test_images_too_dark_for_their_norm_stay_where_they_are(compiled: bool, value: float, dtype: torch.dtype) -> None:
    start = Recalled(torch.full((4, 1, 3, 3), value, dtype=dtype), COUNTS, None)
    way, nothing = objective(compiled, start), torch.zeros_like(start.images)
    student, teacher = logits()
    way.at_outputs(student.to(dtype), (teacher.to(dtype),), start.images)
    assert torch.equal(way.step(start.images, nothing, nothing, rate=1.0), start.images)


@either_way
def test_objective_is_the_weighted_sum_of_its_terms(compiled: bool) -> None:
    start, (student, teacher) = batch(), logits()
    way, nothing = objective(compiled, start), torch.zeros_like(start.images)
    way.at_outputs(student, (teacher,), start.images)
    way.step(start.images, nothing, nothing, rate=1.0)
    values = way.values()
    assert values["objective"] == pytest.approx(sum(WEIGHTS[name] * values[name] for name in TERMS))


@either_way
def test_inputs_that_are_no_images_have_no_total_variation_and_an_objective_all_the_same(compiled: bool) -> None:
    start, (student, teacher) = batch((9,)), logits()
    way = objective(compiled, start)
    assert way.at_outputs(student, (teacher,), start.images) is not None
    values = way.values()
    assert math.isnan(values["total_variation"])
    assert math.isfinite(values["objective"])


@either_way
def test_without_any_term_nothing_moves(compiled: bool) -> None:
    start, (student, teacher) = batch(), logits()
    way, nothing = objective(compiled, start, NOTHING), torch.zeros_like(start.images)
    found = way.at_outputs(student, (teacher,), start.images)
    assert found is not None
    assert_close(found, (torch.zeros_like(student), (torch.zeros_like(teacher),)), 0)
    assert torch.equal(way.step(start.images, nothing, nothing, rate=1.0), start.images)
    assert way.values()["objective"] == 0


def test_term_of_weight_0_cannot_spoil_the_objective() -> None:
    start, (student, teacher) = batch(), logits()
    student[:] = math.nan
    found = objective(False, start, WEIGHTS | {"divergence": 0, "student_avoidance": 0}).at_outputs(
        student, (teacher,), start.images
    )
    assert found is not None
    assert found[1][0].isfinite().all()


@either_way
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("whose", "without", "name"),
    [
        ("teacher", (), "the term divergence of the recall objective"),
        ("teacher", ("divergence",), "the term teacher_avoidance of the recall objective"),
        ("student", ("divergence",), "the term student_avoidance of the recall objective"),
    ],
)
def test_a_term_that_is_not_finite_is_noticed_and_named(
    compiled: bool, value: float, whose: str, without: tuple[str, ...], name: str
) -> None:
    start, (student, teacher) = batch(), logits()
    (student if whose == "student" else teacher)[2, 3] = value
    way = objective(compiled, start, WEIGHTS | dict.fromkeys(without, 0.0))
    assert way.at_outputs(student, (teacher,), start.images) is None
    assert way.diverged().term == name
    assert math.isnan(way.diverged().value)


@either_way
@pytest.mark.parametrize("name", ["l2_norm", "total_variation"])
def test_images_that_are_not_finite_are_noticed_and_named(compiled: bool, name: str) -> None:
    start, (student, teacher) = batch(), logits()
    start.images[1, 0, 2, 2] = math.inf
    way, nothing = objective(compiled, start, NOTHING | {name: -1.0}), torch.zeros_like(start.images)
    if way.at_outputs(student, (teacher,), start.images) is not None:
        way.step(start.images, nothing, nothing, rate=1.0)
    with pytest.raises(DivergedError, match=f"the term {name} of the recall objective became inf"):
        way.values()


@either_way
def test_a_sum_that_is_not_finite_though_its_terms_are_is_named(compiled: bool) -> None:
    start, (student, teacher) = batch(), logits(scale=50.0)
    way = objective(compiled, start, WEIGHTS | {"divergence": 1e308})
    way.at_outputs(student, (teacher,), start.images)
    with pytest.raises(DivergedError, match=r"^the recall objective became inf"):
        way.values()


@compiled_only
def test_a_gradient_that_is_not_finite_though_the_objective_is_is_named() -> None:
    """All teachers are certain of one class: no entropy to speak of, but the slope of its logarithm is steep."""
    start = batch()
    certain = torch.zeros(4, CLASSES, dtype=torch.float64)
    certain[:, 0] = 100.0
    way = objective(True, start, NOTHING | {"diversity": 1e308})
    assert way.at_outputs(certain, (certain,), start.images) is None
    assert way.diverged().term == "the gradient of the recall objective"


@compiled_only
@pytest.mark.parametrize("shape", [(3, 1, 4, 3), (3, 9)])
def test_any_sign_of_any_weight_means_the_same_in_c(shape: tuple[int, ...]) -> None:
    """Total variation is only for images, whatever its weight."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(shape, generator=generator, dtype=torch.float64)
    start = Recalled(images, torch.tensor([1, 2, 1]), None)
    student, teacher = (torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    weights = dict(zip(TERMS, (-1.0, 0.5, -0.2, 2.0, 0.3, 0.7, 0.4), strict=True))
    stepped = []
    for objective in (
        Disagreement(start, weights, torch.tensor([1]), "mixture-first"),
        ClosedForm(start, weights, torch.tensor([1]), "mixture-first", 5),
    ):
        found = objective.at_outputs(student, (teacher,), images)
        assert found is not None
        stepped.append((found[0], found[1][0], objective.step(images, images, images, 0.1)))
    for plain, closed in zip(*stepped, strict=True):
        torch.testing.assert_close(closed, plain)
