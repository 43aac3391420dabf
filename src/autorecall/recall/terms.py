"""The terms of the recall objective (paper, equations 8 and 9), as pure functions of tensors.

Every term is a mean over the recalled batch. All take `weights`, one per recalled image, that sum to 1: `None` means
1/M each, and an image that stands for several copies has their total share. Probabilities are the softmax of the given
logits; gradients flow into every tensor argument.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

DivergenceForm: TypeAlias = Literal["mixture-first", "jensen-shannon", "cross-entropy"]


def weighted_mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """Weighted mean over the first dimension.

    >>> weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([0.75, 0.25]))
    tensor(1.5000)
    """
    if weights is None:
        return values.mean(0)
    mean: Tensor = torch.tensordot(weights.to(values), values, dims=1)  # outputs may be of another precision
    return mean


def divergence(
    student_logits: Tensor,
    teacher_logits: Tensor,
    weights: Tensor | None = None,
    form: DivergenceForm = "mixture-first",
) -> Tensor:
    """D(p', p): how far the student's outputs p' are from the teacher's p, with the mixture m = ½(p + p').

    - mixture-first: ½·[KL(m‖p) + KL(m‖p')], the form behind the published figures. Unlike the textbook form it has no
      upper bound: it rewards an input on which one network is certain and the other is certain of the opposite.
    - jensen-shannon: ½·[KL(p‖m) + KL(p'‖m)], the textbook form, at most log 2.
    - cross-entropy: −Σ p log p', the paper's ablation.

    >>> same = torch.tensor([[1.0, 2.0]])
    >>> divergence(same, same)
    tensor(0.)
    """
    log_student, log_teacher = F.log_softmax(student_logits, dim=1), F.log_softmax(teacher_logits, dim=1)
    if form == "cross-entropy":
        return weighted_mean(-(log_teacher.exp() * log_student).sum(1), weights)
    log_mixture = torch.logaddexp(log_student, log_teacher) - math.log(2)
    if form == "mixture-first":
        per_image = (log_mixture.exp() * (log_mixture - 0.5 * (log_student + log_teacher))).sum(1)
    else:
        towards_mixture = log_teacher.exp() * (log_teacher - log_mixture) + log_student.exp() * (
            log_student - log_mixture
        )
        per_image = 0.5 * towards_mixture.sum(1)
    return weighted_mean(per_image, weights)


def avoidance(logits: Tensor, present_classes: Tensor, weights: Tensor | None = None) -> Tensor:
    """How improbable the network finds the classes of the real batch: the mean of −log p_y over them (λ1 and λ2)."""
    return weighted_mean(-F.log_softmax(logits, dim=1)[:, present_classes].mean(1), weights)


def diversity(teacher_logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """Entropy of the teacher's mean output over the batch (λ3): high when the batch covers many classes."""
    mean = weighted_mean(teacher_logits.softmax(1), weights)
    return -(mean * mean.clamp_min(torch.finfo(mean.dtype).tiny).log()).sum()


def uncertainty(teacher_logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean of −log max_c p_c, the teacher's cross-entropy to its own argmax (λ4, subtracted): 0 when it is certain.

    If classes tie, the first is the argmax and gets all of the gradient.
    """
    logs = F.log_softmax(teacher_logits, dim=1)
    return weighted_mean(-logs.gather(1, logs.argmax(1, keepdim=True)).squeeze(1), weights)


def l2_norm(images: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean of ‖x̂‖₂ divided by the number of values in one image (λ5, subtracted)."""
    flat = images.flatten(1)
    return weighted_mean(torch.linalg.vector_norm(flat, dim=1) / flat.shape[1], weights)


def total_variation(images: Tensor, weights: Tensor | None = None) -> Tensor:
    """Squared differences of neighbouring pixels of (N, channels, height, width) images (λ6, subtracted).

    Per image 2·(Σ vertical² / (c·(h−1)·w) + Σ horizontal² / (c·h·(w−1))); a direction without neighbours counts as 0.
    """
    vertical = (images[:, :, 1:] - images[:, :, :-1]).square().flatten(1)
    horizontal = (images[:, :, :, 1:] - images[:, :, :, :-1]).square().flatten(1)
    directions = [d.mean(1) for d in (vertical, horizontal) if d.shape[1]]
    return weighted_mean(2 * sum(directions, start=images.new_zeros(len(images))), weights)


def soft_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """L(f(x), q) = −Σ q log p, the loss for learning from recalled images; targets are probabilities."""
    return weighted_mean(-(targets * F.log_softmax(logits, dim=1)).sum(1), weights)
