"""The gradient of the recall objective in closed form: what autograd would find through `objectives`, in a few passes.

Small tensors cost by the operation, not by their size, so student and teacher are stacked and go together. A gradient u
with respect to probabilities p becomes p ⊙ (u − Σ p·u) with respect to logits. `objectives` is the oracle in the tests.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from .recall import RecallConfig, per_image


def logit_gradients(
    student_logits: Tensor, teacher_logits: Tensor, present_classes: Tensor, weights: Tensor, config: RecallConfig
) -> tuple[Tensor, Tensor]:
    """∂ objective / ∂ logits of the student, and of the teacher."""
    log_p = F.log_softmax(torch.stack((student_logits, teacher_logits)), dim=2)
    p = log_p.exp()
    by_probability, by_logit = _divergence(log_p, p, config)
    if config.diversity:  # of the entropy of Σ w p; the constant −1 cancels within a softmax
        mean = weights @ p[1]
        by_probability[1].sub_(mean.clamp_min(torch.finfo(mean.dtype).tiny).log(), alpha=config.diversity)
    # Of −log p_y, averaged over the C classes present: p − 1/C at each of them. Of log max p: 1 at the maximum, − p.
    avoidance = p.new_tensor([config.student_avoidance, config.teacher_avoidance]).view(2, 1, 1)
    by_logit[:, :, present_classes] -= avoidance / len(present_classes)
    if config.uncertainty:
        by_logit[1].scatter_add_(1, p[1].argmax(1, keepdim=True), p.new_full((p.shape[1], 1), config.uncertainty))
    expected = (p * by_probability).sum(2, keepdim=True) - avoidance
    expected[1] += config.uncertainty
    gradient = torch.addcmul(by_logit, p, by_probability - expected).mul_(weights[:, None])
    return gradient[0], gradient[1]


def _divergence(log_p: Tensor, p: Tensor, config: RecallConfig) -> tuple[Tensor, Tensor]:
    """The gradient of D with respect to probabilities, and what is left of it that acts on the logits directly."""
    weight = config.divergence_weight
    if config.divergence == "cross-entropy":  # −Σ p log p', with p' = p[0] of the student
        none = torch.zeros_like(p[0])
        return torch.stack((none, -weight * log_p[0])), torch.stack((weight * (p[0] - p[1]), none))
    log_m = torch.logaddexp(log_p[0], log_p[1]).sub_(math.log(2))
    if config.divergence == "jensen-shannon":  # ½·(log p − log m)
        return (log_p - log_m).mul_(0.5 * weight), torch.zeros_like(p)
    # mixture-first: ½·(log m − ½·(log p + log p') + 1 − m/p), where p ⊙ m/p = m needs no division.
    common = torch.sub(log_m, log_p.sum(0), alpha=0.5).mul_(0.5 * weight)
    return common.repeat(2, 1, 1), (p - log_m.exp()).mul_(0.5 * weight)


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
