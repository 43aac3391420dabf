"""Algorithm 1 of the paper, transcribed line by line for the tests: slow, literal, no code shared with the package.

M literal copies, every formula written out, a teacher that is a deep copy, and SGD by hand.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from autorecall import ARMConfig


class Algorithm1:
    """A student, its teacher, the batches seen so far, and what was recalled last."""

    def __init__(self, network: nn.Module, config: ARMConfig, seed: int, momentum: float = 0.0) -> None:
        self.student = network
        self.teacher = network
        self.config = config
        self.generator = torch.Generator().manual_seed(seed)
        self.momentum = momentum
        self.velocities: dict[nn.Parameter, Tensor] = {}
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self.t = 0
        self.origins: list[int] | None = None
        self.recalled, self.answers = torch.empty(0), torch.empty(0)

    def observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Lines 3 to 11; the teacher is refreshed before batches 0, T, 2T, …"""
        config = self.config
        assert config.lag.every is not None
        assert config.lag.start is not None
        if self.t % config.lag.every == 0:
            self.teacher = copy.deepcopy(self.student)
        self.t += 1

        outputs = log_softmax(self.student(x))
        loss = sum_of([-outputs[i, y[i]] for i in range(len(x))]) / len(x)
        self.step(loss, add=False)
        if self.t - 1 < config.lag.start:
            return {"loss": loss.item()}

        self.recalled = self.start(x)
        numbers: dict[str, float] = {}
        for repeat in range(config.repeats):
            for _ in range(config.ascent_steps):
                x_hat = self.recalled.requires_grad_()
                terms = self.terms(x_hat, y)
                numbers = {name: term.item() for name, term in terms.items()}
                self.recalled = (
                    x_hat + config.recall_rate * torch.autograd.grad(terms["objective"], x_hat)[0]
                ).detach()
            numbers |= self.learn(self.recalled, x, add=config.accumulate_repeats and repeat > 0)
        return {"loss": loss.item()} | numbers

    def start(self, x: Tensor) -> Tensor:
        """Line 6: M images of the real batch, without replacement if there are enough; or noise."""
        count, wanted = len(x), self.config.recalled_images
        if self.config.initial == "noise":
            return torch.rand((wanted, *x.shape[1:]), generator=self.generator, dtype=x.dtype)
        if wanted <= count:
            indices = torch.randperm(count, generator=self.generator)[:wanted]
        else:
            indices = torch.randint(count, (wanted,), generator=self.generator)
        self.origins = indices.tolist()
        return torch.stack([x[i] for i in self.origins])

    def terms(self, recalled: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Equation 8 and each of its terms."""
        config, count = self.config, len(recalled)
        present = sorted(set(y.tolist()))
        student_logs, teacher_logs = log_softmax(self.student(recalled)), log_softmax(self.teacher(recalled))
        student, teacher = student_logs.exp(), teacher_logs.exp()
        mixture = (student + teacher) / 2

        def kl(p: Tensor, q: Tensor) -> Tensor:
            return (p * (p.log() - q.log())).sum()

        if config.divergence_form == "mixture-first":
            divergence = (kl(mixture, teacher) + kl(mixture, student)) / 2 / count
        elif config.divergence_form == "jensen-shannon":
            divergence = (kl(teacher, mixture) + kl(student, mixture)) / 2 / count
        else:
            divergence = -(teacher * student_logs).sum() / count
        mean_teacher = teacher.sum(0) / count
        channels, height, width = recalled.shape[1:]
        vertical = ((recalled[:, :, 1:] - recalled[:, :, :-1]) ** 2).sum() / (channels * (height - 1) * width)
        horizontal = ((recalled[:, :, :, 1:] - recalled[:, :, :, :-1]) ** 2).sum() / (channels * height * (width - 1))
        terms = {
            "divergence": divergence,
            "teacher_avoidance": sum_of([-teacher_logs[:, c].sum() for c in present]) / len(present) / count,
            "student_avoidance": sum_of([-student_logs[:, c].sum() for c in present]) / len(present) / count,
            "diversity": -(mean_teacher * mean_teacher.log()).sum(),
            "uncertainty": sum_of([-row.max().log() for row in teacher]) / count,
            "l2_norm": sum_of([(image**2).sum().sqrt() / image.numel() for image in recalled]) / count,
            "total_variation": 2 * (vertical + horizontal) / count,
        }
        terms["objective"] = (
            config.divergence * terms["divergence"]
            + config.teacher_avoidance * terms["teacher_avoidance"]
            + config.student_avoidance * terms["student_avoidance"]
            + config.diversity * terms["diversity"]
            - config.uncertainty * terms["uncertainty"]
            - config.l2_norm * terms["l2_norm"]
            - config.total_variation * terms["total_variation"]
        )
        return terms

    def learn(self, recalled: Tensor, x: Tensor, add: bool) -> dict[str, float]:
        """Line 9: the sum of two means, the two batches going through the networks separately."""
        config = self.config
        self.answers = outputs = log_softmax(self.teacher(recalled)).exp().detach()
        targets = outputs
        if config.targets == "hard":
            targets = torch.zeros_like(outputs)
            for i in range(len(outputs)):
                targets[i, outputs[i].argmax()] = 1
        loss = config.recalled_weight * -(targets * log_softmax(self.student(recalled))).sum() / len(recalled)
        losses = {"recalled_loss": loss.item(), "distillation": float("nan")}
        if config.real_weight > 0:
            real_targets = log_softmax(self.teacher(x)).exp().detach()
            real_loss = config.real_weight * -(real_targets * log_softmax(self.student(x))).sum() / len(x)
            losses["distillation"] = real_loss.item()
            loss = loss + real_loss
        self.step(loss, add)
        shares = {f"recalled_class_{c}": outputs[:, c].sum().item() / len(outputs) for c in range(outputs.shape[1])}
        return losses | shares

    def step(self, loss: Tensor, add: bool) -> None:
        """θ' ← θ' − η0·∇, with momentum if asked for; `add` keeps the gradient of the step before."""
        parameters = [p for p in self.student.parameters() if p.requires_grad]
        with torch.no_grad():
            for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                self.gradients[p] = self.gradients[p] + gradient if add else gradient
                velocity = self.momentum * self.velocities[p] if p in self.velocities else torch.zeros_like(p)
                self.velocities[p] = velocity + self.gradients[p]
                p.sub_(self.config.learning_rate * self.velocities[p])


def log_softmax(logits: Tensor) -> Tensor:
    """log(exp z_c / Σ exp z), as written."""
    return logits - logits.exp().sum(1, keepdim=True).log()


def sum_of(values: list[Tensor]) -> Tensor:
    """Σ values."""
    return torch.stack(values).sum()
