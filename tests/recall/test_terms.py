"""Every term of the objective against a second way to compute it: Python loops over images, classes and pixels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autorecall.recall import terms
from autorecall.recall.terms import DivergenceForm

Row = list[float]
Image = list[list[Row]]


@dataclass
class Inputs:
    """A recalled batch and what two networks and a target say of it."""

    student: Tensor
    teacher: Tensor
    images: Tensor
    targets: Tensor
    present: Tensor

    def copies(self, counts: list[int]) -> Inputs:
        """The batch with every image repeated as often as its count says."""
        index = torch.tensor([i for i, count in enumerate(counts) for _ in range(count)])
        return Inputs(self.student[index], self.teacher[index], self.images[index], self.targets[index], self.present)


def inputs(seed: int, count: int, classes: int, image: tuple[int, int, int], scale: float = 3.0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    student, teacher, targets = torch.randn(3, count, classes, generator=generator, dtype=torch.float64)
    images = torch.rand(count, *image, generator=generator, dtype=torch.float64)
    present = torch.randperm(classes, generator=generator)[: max(1, classes // 2)]
    return Inputs(scale * student, scale * teacher, images, targets.softmax(1), present)


def softmax(logits: Row) -> Row:
    exponentials = [math.exp(value) for value in logits]
    return [value / sum(exponentials) for value in exponentials]


def kl(p: Row, q: Row) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def naive_divergence(given: Inputs, form: DivergenceForm) -> float:
    per_image = []
    for student_row, teacher_row in zip(given.student.tolist(), given.teacher.tolist(), strict=True):
        student, teacher = softmax(student_row), softmax(teacher_row)
        mixture = [(a + b) / 2 for a, b in zip(student, teacher, strict=True)]
        if form == "mixture-first":
            per_image.append((kl(mixture, teacher) + kl(mixture, student)) / 2)
        elif form == "jensen-shannon":
            per_image.append((kl(teacher, mixture) + kl(student, mixture)) / 2)
        else:
            per_image.append(-sum(b * math.log(a) for a, b in zip(student, teacher, strict=True)))
    return mean(per_image)


def naive_avoidance(logits: Tensor, present: Tensor) -> float:
    return mean([mean([-math.log(softmax(row)[y]) for y in present.tolist()]) for row in logits.tolist()])


def naive_diversity(given: Inputs) -> float:
    outputs = [softmax(row) for row in given.teacher.tolist()]
    means = [mean([row[c] for row in outputs]) for c in range(len(outputs[0]))]
    return -sum(p * math.log(p) for p in means)


def naive_uncertainty(given: Inputs) -> float:
    return mean([-math.log(max(softmax(row))) for row in given.teacher.tolist()])


def naive_l2_norm(given: Inputs) -> float:
    norms = []
    for image in given.images.tolist():
        pixels = [pixel for channel in image for row in channel for pixel in row]
        norms.append(math.sqrt(sum(pixel * pixel for pixel in pixels)) / len(pixels))
    return mean(norms)


def naive_total_variation(given: Inputs) -> float:
    """2·(Σ vertical / (c·(h−1)·w) + Σ horizontal / (c·h·(w−1))) / M, as facts.md has it."""
    batch: list[Image] = given.images.tolist()
    channels, height, width = given.images.shape[1:]
    vertical = horizontal = 0.0
    for image, c, i, j in itertools.product(batch, range(channels), range(height), range(width)):
        if i > 0:
            vertical += (image[c][i][j] - image[c][i - 1][j]) ** 2
        if j > 0:
            horizontal += (image[c][i][j] - image[c][i][j - 1]) ** 2
    total = 0.0
    if height > 1:
        total += vertical / (channels * (height - 1) * width)
    if width > 1:
        total += horizontal / (channels * height * (width - 1))
    return 2 * total / len(batch)


def naive_soft_cross_entropy(given: Inputs) -> float:
    pairs = zip(given.student.tolist(), given.targets.tolist(), strict=True)
    return mean([-sum(q * math.log(p) for p, q in zip(softmax(row), target, strict=True)) for row, target in pairs])


Weights = Tensor | None
Term = tuple[Callable[[Inputs, Weights], Tensor], Callable[[Inputs], float]]


def divergence_in(form: DivergenceForm) -> Term:
    return lambda i, w: terms.divergence(i.student, i.teacher, w, form), lambda i: naive_divergence(i, form)


TERMS: dict[str, Term] = {form: divergence_in(form) for form in get_args(DivergenceForm)} | {
    "avoidance": (
        lambda i, w: terms.avoidance(i.student, i.present, w),
        lambda i: naive_avoidance(i.student, i.present),
    ),
    "diversity": (lambda i, w: terms.diversity(i.teacher, w), naive_diversity),
    "uncertainty": (lambda i, w: terms.uncertainty(i.teacher, w), naive_uncertainty),
    "l2_norm": (lambda i, w: terms.l2_norm(i.images, w), naive_l2_norm),
    "total_variation": (lambda i, w: terms.total_variation(i.images, w), naive_total_variation),
    "soft_cross_entropy": (lambda i, w: terms.soft_cross_entropy(i.student, i.targets, w), naive_soft_cross_entropy),
}

every_term = pytest.mark.parametrize("term", TERMS)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Inputs, list[int]]:
    """A batch of any size and scale, and how many copies of every image are meant."""
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    scale = draw(st.floats(0, 20))
    return inputs(draw(st.integers(0, 10**6)), len(counts), draw(st.integers(2, 6)), shape, scale), counts


@every_term
@given(case=batches())
def test_term_equals_loops_over_images_classes_and_pixels(term: str, case: tuple[Inputs, list[int]]) -> None:
    ours, naive = TERMS[term]
    batch, _ = case
    assert float(ours(batch, None)) == pytest.approx(naive(batch), rel=1e-9, abs=1e-9)


@every_term
@given(case=batches())
def test_weights_stand_for_literal_copies(term: str, case: tuple[Inputs, list[int]]) -> None:
    ours, naive = TERMS[term]
    batch, counts = case
    weights = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    assert float(ours(batch, weights)) == pytest.approx(naive(batch.copies(counts)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@every_term
def test_gradient_of_term_is_right_in_every_argument(term: str, weighted: bool) -> None:
    ours, _ = TERMS[term]
    batch = inputs(seed=1, count=3, classes=4, image=(2, 3, 2), scale=1.0)
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64) if weighted else None
    arguments = [batch.student, batch.teacher, batch.images, batch.targets, *([weights] if weights is not None else [])]

    def value(student: Tensor, teacher: Tensor, images: Tensor, targets: Tensor, *given: Tensor) -> Tensor:
        return ours(Inputs(student, teacher, images, targets, batch.present), given[0] if given else None)

    assert torch.autograd.gradcheck(value, [a.clone().requires_grad_() for a in arguments])


@pytest.mark.parametrize("size", [100, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_term
def test_extreme_logits_and_black_images_give_finite_values_and_gradients(
    term: str, dtype: torch.dtype, size: float
) -> None:
    """The last class is so improbable that its softmax is 0."""
    ours, _ = TERMS[term]
    rows = size * torch.tensor([[1.0, -1, -1], [-1, 1, -1], [1, 1, -1]], dtype=dtype)
    batch = Inputs(
        rows, rows.roll(1, 0), torch.zeros(3, 1, 2, 2, dtype=dtype), torch.eye(3, dtype=dtype), torch.tensor([0, 1])
    )
    arguments = [part.requires_grad_() for part in (batch.student, batch.teacher, batch.images)]
    result = ours(batch, None)
    gradients = torch.autograd.grad(result, arguments, allow_unused=True)
    assert result.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


def test_mixture_first_is_unbounded_where_jensen_shannon_stays_below_log_2() -> None:
    certain, opposite = torch.tensor([[30.0, -30.0]]), torch.tensor([[-30.0, 30.0]])
    assert float(terms.divergence(certain, opposite)) == pytest.approx(30 - math.log(2))
    assert float(terms.divergence(certain, opposite, None, "jensen-shannon")) == pytest.approx(math.log(2))


@pytest.mark.parametrize("form", ["mixture-first", "jensen-shannon"])
@given(seed=st.integers(0, 10**6))
def test_divergence_is_symmetric_and_never_negative(form: DivergenceForm, seed: int) -> None:
    batch = inputs(seed, 3, 4, (1, 1, 1))
    there = float(terms.divergence(batch.student, batch.teacher, None, form))
    back = float(terms.divergence(batch.teacher, batch.student, None, form))
    assert there == pytest.approx(back)
    assert there >= 0


def test_diversity_is_greatest_when_the_batch_covers_every_class() -> None:
    one_class, every_class = torch.tensor([[50.0, 0, 0]]).expand(3, 3), 50 * torch.eye(3)
    assert float(terms.diversity(one_class)) == pytest.approx(0, abs=1e-6)
    assert float(terms.diversity(every_class)) == pytest.approx(math.log(3))


def test_the_first_of_tied_classes_has_all_of_the_gradient_of_uncertainty() -> None:
    """Of −log p at the argmax, that is p, less 1 at the argmax."""
    tied = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(terms.uncertainty(tied), tied)
    expected = (tied.softmax(1) - torch.eye(4, dtype=torch.float64)[[1, 0]]) / 2
    torch.testing.assert_close(gradient, expected)


def test_flat_images_have_no_total_variation_and_one_row_only_horizontal() -> None:
    assert float(terms.total_variation(torch.full((2, 3, 4, 4), 0.7))) == 0
    assert float(terms.total_variation(torch.tensor([[[[0.0, 3.0]]]]))) == pytest.approx(2 * 9)
    assert float(terms.total_variation(torch.tensor([[[[5.0]]]]))) == 0


def test_weighted_mean_counts_rows_by_their_weight() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert terms.weighted_mean(values).tolist() == [2.0, 4.0]
    assert terms.weighted_mean(values, torch.tensor([0.25, 0.75])).tolist() == [2.5, 5.0]
