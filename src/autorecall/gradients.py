"""The gradient of the recall objective in closed form: what autograd would find through `objectives`, in a few passes.

A gradient u with respect to probabilities p becomes p ⊙ (u − Σ p·u) with respect to logits. Logits are a handful of
numbers, and numpy is several times as fast with those as torch. `objectives` is the oracle in the tests.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .recall import RecallConfig, per_image

Array: TypeAlias = NDArray[np.floating]


class LogitGradient:
    """∂ objective / ∂ logits, of student and teacher, for one batch: its weights and its present classes are fixed."""

    def __init__(self, config: RecallConfig, present_classes: Tensor, weights: Tensor, classes: int) -> None:
        self._config = config
        self._weights: Array = weights.cpu().numpy()
        # Of −log p_y, averaged over the C classes present: p − 1/C at each of them.
        avoidance = np.array([config.student_avoidance, config.teacher_avoidance], self._weights.dtype)
        self._constant: Array = np.zeros((2, 1, classes), self._weights.dtype)
        self._constant[:, 0, present_classes.cpu().numpy()] = -avoidance[:, None] / len(present_classes)
        # Of log max p: 1 at the maximum, − p.
        self._along_p: Array = (avoidance - (0, config.uncertainty)).reshape(2, 1, 1).astype(self._weights.dtype)

    def __call__(self, student_logits: Tensor, teacher_logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """The gradients where the logits are these, of the student and of the teacher; None if they are not finite."""
        with np.errstate(all="ignore"):
            gradient = self._of(student_logits.detach(), teacher_logits.detach())
        if not np.isfinite(gradient).all():
            return None
        student, teacher = torch.from_numpy(gradient).to(student_logits)
        return student, teacher

    def _of(self, student_logits: Tensor, teacher_logits: Tensor) -> Array:
        config = self._config
        logits = np.stack((student_logits.cpu().numpy(), teacher_logits.cpu().numpy()))
        logits -= logits.max(2, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(2, keepdims=True))
        p = np.exp(log_p)
        by_probability, by_logit = _divergence(log_p, p, config)
        if config.diversity:  # of the entropy of Σ w p; the constant −1 cancels within a softmax
            mean = self._weights @ p[1]
            by_probability[1] -= config.diversity * np.log(np.maximum(mean, np.finfo(mean.dtype).tiny))
        by_logit += self._constant
        if config.uncertainty:
            by_logit[1, np.arange(len(p[1])), p[1].argmax(1)] += config.uncertainty
        by_logit += p * (by_probability - (p * by_probability).sum(2, keepdims=True) + self._along_p)
        by_logit *= self._weights[:, None]
        return by_logit


def _divergence(log_p: Array, p: Array, config: RecallConfig) -> tuple[Array, Array]:
    """The gradient of D with respect to probabilities, and what is left of it that acts on the logits directly."""
    weight = config.divergence_weight
    if config.divergence == "cross-entropy":  # −Σ p log p', with p' of the student
        none = np.zeros_like(p[0])
        return np.stack((none, -weight * log_p[0])), np.stack((weight * (p[0] - p[1]), none))
    log_m = np.logaddexp(log_p[0], log_p[1]) - math.log(2)
    if config.divergence == "jensen-shannon":  # ½·(log p − log m)
        return 0.5 * weight * (log_p - log_m), np.zeros_like(p)
    # mixture-first: ½·(log m − ½·(log p + log p') + 1 − m/p), where p ⊙ m/p = m needs no division.
    common = 0.5 * weight * (log_m - 0.5 * (log_p[0] + log_p[1]))
    return np.stack((common, common)), 0.5 * weight * (p - np.exp(log_m))


def add_image_gradient(gradient: Tensor, images: Tensor, share: float, config: RecallConfig) -> None:
    """Add −λ5·∂L2 − λ6·∂TV of images that each count `share` in the means."""
    flat = images.flatten(1)
    if config.l2_norm:
        norms = torch.linalg.vector_norm(flat, dim=1).clamp_min(torch.finfo(flat.dtype).tiny)
        factors = (-config.l2_norm * share / flat.shape[1]) / norms
        gradient.addcmul_(images, per_image(factors, images))
    if config.total_variation:
        for dimension in (2, 3):
            steps = images.diff(dim=dimension)
            if steps[0].numel():
                factor = 4 * config.total_variation * share / steps[0].numel()
                length = steps.shape[dimension]
                gradient.narrow(dimension, 0, length).add_(steps, alpha=factor)
                gradient.narrow(dimension, 1, length).sub_(steps, alpha=factor)
