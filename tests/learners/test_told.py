"""Recall that is told a class, against a literal loop: its start, its ascent and what is learned."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorecall import ADI, ARM, ADIConfig, ARMConfig, LagConfig
from autorecall.errors import ConfigError, DivergedError
from autorecall.recall.batch import Aimed, Recalled

from .worlds import CLASSES, IMAGE, Make, assert_same, batch, conv, mlp, normed

TOLD = ARMConfig(
    recalled_images=5,
    ascent_steps=3,
    recall_rate=2.0,
    divergence=1.5,
    l2_norm=0.9,
    total_variation=0.8,
    recalled_weight=1.3,
    real_weight=0.6,
    targets="told",
    told=True,
    lag=LagConfig("every", every=2, start=2),
)
VARIANTS = {
    "labels": TOLD,
    "more images than real": replace(TOLD, recalled_images=17),
    "the teacher's answers": replace(TOLD, targets="soft", recalled_images=17),
    "the teacher's classes": replace(TOLD, targets="hard"),
    "no distill": replace(TOLD, real_weight=0.0, recalled_images=17),
    "noise": replace(TOLD, initial="noise"),
    "shifted": replace(TOLD, initial="shift"),
    "shifted, more images than real": replace(TOLD, initial="shift", recalled_images=17),
    "shifted, the teacher's answers": replace(TOLD, initial="shift", targets="soft"),
    "cross-entropy": replace(TOLD, divergence_form="cross-entropy"),
}


class Loop:
    """Every step written out: M literal images, a teacher that is a deep copy, means of all images at once."""

    def __init__(self, network: nn.Module, config: ARMConfig, seed: int) -> None:
        self.student, self.teacher, self.config = network, network, config
        self.generator = torch.Generator().manual_seed(seed)
        self.x, self.y = torch.zeros(0, *IMAGE, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        self.t = 0

    def observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """The loss on the real batch, and what follows where something is recalled."""
        config = self.config
        if self.t % 2 == 0:
            self.teacher = copy.deepcopy(self.student)
        self.t += 1
        absent = sorted(set(self.y.tolist()) - set(y.tolist()))
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])
        loss = F.cross_entropy(self.student(x), y)
        if self.t <= 2 or not absent:
            self.descend(loss)
            return {"loss": loss.item()}
        images, classes = self.start(x, y, absent)  # drawn first; it needs no network
        self.descend(loss)
        for _ in range(config.ascent_steps):
            images = images.detach().requires_grad_()
            images = images + config.recall_rate * torch.autograd.grad(self.objective(images, classes), images)[0]
        images = images.detach()
        answers = self.teacher(images).softmax(1).detach()
        learned = {
            "soft": answers,
            "hard": torch.eye(CLASSES, dtype=torch.float64)[answers.argmax(1)],
            "told": torch.eye(CLASSES, dtype=torch.float64)[classes],
        }[config.targets]
        recalled = config.recalled_weight * -(learned * self.student(images).log_softmax(1)).sum(1).mean()
        distilled = torch.zeros(())
        if config.real_weight:
            answers = self.teacher(x).softmax(1).detach()
            distilled = config.real_weight * -(answers * self.student(x).log_softmax(1)).sum(1).mean()
        self.descend(recalled + distilled)
        found = {"loss": loss.item(), "recalled_loss": recalled.item()}
        return found | ({"distillation": distilled.item()} if config.real_weight else {})

    def choose(self, available: int) -> list[int]:
        count = self.config.recalled_images
        if count <= available:
            return torch.randperm(available, generator=self.generator)[:count].tolist()
        return torch.randint(available, (count,), generator=self.generator).tolist()

    def start(self, x: Tensor, y: Tensor, absent: list[int]) -> tuple[Tensor, Tensor]:
        """Images, noise, or images with the mean of their own class taken off and that of another put on."""
        shape = (self.config.recalled_images, *IMAGE)
        if self.config.initial == "noise":
            noise = torch.rand(shape, generator=self.generator, dtype=torch.float64)
            return noise, torch.tensor([absent[i] for i in self.choose(len(absent))])
        origins = self.choose(len(x))
        classes = [absent[i] for i in self.choose(len(absent))]
        images = []
        for origin, label in zip(origins, classes, strict=True):
            image = x[origin]
            if self.config.initial == "shift":
                image = image - self.x[self.y == y[origin]].mean(0) + self.x[self.y == label].mean(0)
                image = image.clamp(float(self.x.min()), float(self.x.max()))
            images.append(image)
        return torch.stack(images), torch.tensor(classes)

    def objective(self, x: Tensor, classes: Tensor) -> Tensor:
        config = self.config
        teacher, student = self.teacher(x).log_softmax(1), self.student(x).log_softmax(1)
        mixture = (teacher.exp() + student.exp()) / 2
        disagreement = (mixture * (mixture.log() - teacher / 2 - student / 2)).sum(1).mean()
        if config.divergence_form == "cross-entropy":
            disagreement = -(teacher.exp() * student).sum(1).mean()
        norm = torch.stack([image.square().sum().sqrt() / image.numel() for image in x]).mean()
        vertical = (x[:, :, 1:] - x[:, :, :-1]).square().mean()
        horizontal = (x[:, :, :, 1:] - x[:, :, :, :-1]).square().mean()
        likely: Tensor = teacher[range(len(x)), classes].mean()
        penalties = config.l2_norm * norm + config.total_variation * 2 * (vertical + horizontal)
        total: Tensor = config.divergence * disagreement + likely - penalties
        return total

    def descend(self, loss: Tensor) -> None:
        parameters = list(self.student.parameters())
        with torch.no_grad():
            for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.sub_(self.config.learning_rate * gradient)


def assert_literal(make: Make, config: ARMConfig, keep: Literal["auto", "keep"] = "auto") -> None:
    learner, literal = ARM(make(), config, seed=3), Loop(make(), config, seed=3)
    learner.copies = keep
    for number in range(6):
        found, expected = learner.observe(*batch(number)), literal.observe(*batch(number))
        assert_same({name: found[name] for name in expected}, expected, tolerance=1e-9)
    weights = dict(literal.student.named_parameters())
    for name, p in learner.network.named_parameters():
        torch.testing.assert_close(p, weights[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", [mlp, conv])
@pytest.mark.parametrize("variant", VARIANTS)
def test_observe_is_the_literal_loop(make: Make, variant: str) -> None:
    assert_literal(make, VARIANTS[variant])


@pytest.mark.parametrize("variant", ["more images than real", "shifted, more images than real"])
def test_copies_may_be_kept(variant: str) -> None:
    assert_literal(mlp, VARIANTS[variant], keep="keep")


def test_told_a_class_and_answered_by_the_teacher_it_is_inversion_without_batch_statistics() -> None:
    arm = ARM(mlp(), replace(TOLD, targets="soft"), seed=1)
    shared = ["recalled_images", "ascent_steps", "recall_rate", "divergence", "l2_norm", "total_variation"]
    shared += ["recalled_weight", "real_weight", "lag"]
    adi = ADI(mlp(), ADIConfig(**{name: getattr(TOLD, name) for name in shared}), seed=1)
    for number in range(6):
        arm.observe(*batch(number))
        adi.observe(*batch(number))
    assert_same(arm.network.state_dict(), adi.network.state_dict())


def test_inversion_can_learn_the_class_that_was_to_be_shown() -> None:
    adi = ADI(mlp(), ADIConfig(ascent_steps=1, recalled_images=40, real_weight=0.0, targets="told"), seed=1)
    shown = list[Recalled]()
    adi.on_recall = lambda recalled, _: shown.append(recalled)
    adi.boundary()
    adi.observe(*batch(0))
    adi.boundary()
    before = copy.deepcopy(adi.network)
    loss = adi.observe(*batch(2))["recalled_loss"]
    assert isinstance(shown[0], Aimed)
    assert set(shown[0].classes.tolist()) == {0, 1}
    optimizer = torch.optim.SGD(before.parameters(), lr=0.05)
    F.cross_entropy(before(batch(2)[0]), batch(2)[1]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    images, classes = (each.repeat_interleave(shown[0].counts, 0) for each in (shown[0].images, shown[0].classes))
    assert loss == pytest.approx(float(F.cross_entropy(before(images), classes).detach()), abs=1e-9)


def test_class_means_are_counted_saved_and_kept_only_where_images_are_shifted() -> None:
    usual, shifted = ARM(mlp(), TOLD), ARM(mlp(), replace(TOLD, initial="shift"))
    for number in range(3):
        usual.observe(*batch(number))
        shifted.observe(*batch(number))
    assert shifted.memory().statistics == CLASSES * 60
    assert shifted.memory().parameters == usual.memory().parameters
    assert "shift" not in usual.state_dict()
    other = ARM(mlp(1), replace(TOLD, initial="shift"), seed=7)
    other.load_state_dict(copy.deepcopy(shifted.state_dict()))
    for number in range(3, 6):
        assert_same(other.observe(*batch(number)), shifted.observe(*batch(number)))
    assert_same(other.state_dict(), shifted.state_dict())


def test_class_means_are_as_before_after_a_refused_batch() -> None:
    learner = ARM(normed(), replace(TOLD, initial="shift", total_variation=0.0))
    learner.observe(batch(0)[0].float(), batch(0)[1])
    before = copy.deepcopy(learner.state_dict())
    with pytest.raises(DivergedError) as caught:
        learner.observe(1e30 * batch(1)[0].float(), batch(1)[1])
    assert not caught.value.spoiled
    assert_same(learner.state_dict(), before)


def test_steps_that_recall_nothing_have_the_same_numbers() -> None:
    learner = ARM(mlp(), TOLD)
    names = [list(learner.observe(*batch(number))) for number in range(4)]
    assert names[0] == names[3]
    assert names[0][:6] == ["loss", "class_loss", "divergence", "l2_norm", "total_variation", "objective"]


@pytest.mark.parametrize(("name", "choice"), [("targets", "told"), ("initial", "shift")])
def test_what_needs_a_class_is_refused_without_one(name: str, choice: str) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.{name} is {choice} but recalled images are told no class"):
        ARMConfig(**{name: choice})  # type: ignore[arg-type]
