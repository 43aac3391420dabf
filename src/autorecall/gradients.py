"""The gradient of the recall objective in closed form: what autograd would find through `objectives`, in a few passes.

Notation: s and t are the logits of student and teacher, q and p their softmax, w the images' weights. A gradient u with
respect to probabilities p becomes p ⊙ (u − Σ p·u) with respect to logits. `objectives` is the oracle in the tests.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from .recall import RecallConfig


def logit_gradients(
    student_logits: Tensor, teacher_logits: Tensor, present_classes: Tensor, weights: Tensor, config: RecallConfig
) -> tuple[Tensor, Tensor]:
    """∂ objective / ∂ s and ∂ objective / ∂ t."""
    log_q, log_p = F.log_softmax(student_logits, dim=1), F.log_softmax(teacher_logits, dim=1)
    q, p = log_q.exp(), log_p.exp()
    student, teacher = _divergence(log_q, log_p, q, p, config)
    for gradient, outputs, weight in ((student, q, config.student_avoidance), (teacher, p, config.teacher_avoidance)):
        if weight:  # of −log p_y, averaged over the classes present: p − 1/C at each of them
            gradient.add_(outputs, alpha=weight)
            gradient[:, present_classes] -= weight / len(present_classes)
    if config.uncertainty:  # of log max p
        teacher.sub_(p, alpha=config.uncertainty)
        teacher.scatter_add_(1, p.argmax(1, keepdim=True), p.new_full((len(p), 1), config.uncertainty))
    if config.diversity:  # of the entropy of Σ w p; the constant −1 cancels within a softmax
        mean = weights @ p
        surprise = -mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
        teacher.add_(p * (surprise - (p @ surprise)[:, None]), alpha=config.diversity)
    return student * weights[:, None], teacher * weights[:, None]


def _divergence(log_q: Tensor, log_p: Tensor, q: Tensor, p: Tensor, config: RecallConfig) -> tuple[Tensor, Tensor]:
    """Weight times ∂D/∂s and ∂D/∂t, per image."""
    if config.divergence == "cross-entropy":  # −Σ p log q
        with_q = p * log_q
        return (
            config.divergence_weight * (q - p),
            config.divergence_weight * (p * with_q.sum(1, keepdim=True) - with_q),
        )
    log_m = torch.logaddexp(log_q, log_p).sub_(math.log(2))
    if config.divergence == "mixture-first":  # ∂D/∂q = ½·(log m − ½·(log p + log q) + 1 − m/q), and likewise for p
        common, m = log_m - 0.5 * (log_p + log_q) + 1, log_m.exp()
        student, teacher = q * common - m, p * common - m
    else:  # jensen-shannon: ∂D/∂q = ½·(log q − log m)
        student, teacher = q * (log_q - log_m), p * (log_p - log_m)
    half = 0.5 * config.divergence_weight
    return (
        half * (student - q * student.sum(1, keepdim=True)),
        half * (teacher - p * teacher.sum(1, keepdim=True)),
    )


def add_image_gradient(gradient: Tensor, images: Tensor, share: float, config: RecallConfig) -> None:
    """Add −λ5·∂L2 − λ6·∂TV of images that each count `share` in the means."""
    flat = images.flatten(1)
    if config.l2_norm:
        norms = torch.linalg.vector_norm(flat, dim=1).clamp_min(torch.finfo(flat.dtype).tiny)
        factors = (-config.l2_norm * share / flat.shape[1]) / norms
        gradient.addcmul_(images, factors.view(-1, *(1,) * (images.dim() - 1)))
    if config.total_variation:
        for dimension in (2, 3):
            steps = images.diff(dim=dimension)
            if steps[0].numel():
                factor = 4 * config.total_variation * share / steps[0].numel()
                length = steps.shape[dimension]
                gradient.narrow(dimension, 0, length).add_(steps, alpha=factor)
                gradient.narrow(dimension, 1, length).sub_(steps, alpha=factor)
