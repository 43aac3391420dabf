"""iCaRL on CIFAR10, ours and as published, and what lies between: which difference changes the figures?

    python scripts/icarl_differences.py DIR [--seeds 1] [--fraction 0.1] [--only VARIANT ...]

DIR has cifar-10-batches-bin. Prints accuracy and forgetting for every variant, and the accuracy on each task when it
ended and at the end of the stream: means over seeds 0, 1, …. The paper quotes iCaRL from Aljundi et al., whose code for
those figures is not public. "Published" is the iCaRL for one head that they published elsewhere
(github.com/rahafaljundi/Gradient-based-Sample-Selection: model/icarl.py), with the five steps per batch and the 200
images that the paper names, and the rate of 0.1 of its Cifar_10.sh.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorecall.data import Dataset, load
from autorecall.learners.icarl import ICaRL, ICaRLConfig, herd
from autorecall.learners.shared.modes import training
from autorecall.learners.shared.reservoir import Reservoir, unpack
from autorecall.metrics import average_accuracy, forgetting
from autorecall.presets import PRESETS
from autorecall.runs.loop import evaluate
from autorecall.stream import Stream
from autorecall.torch_state import limited_threads, own_random_state

AT_ONCE = 500  # images of a pass


@dataclass(frozen=True)
class Variant:
    """How a procedure differs from ours."""

    softmax: bool = False
    """Published: cross-entropy over all outputs, earlier classes included, and a KL divergence on one exemplar of each
    earlier class, averaged over outputs as well as images and so a tenth as strong; its targets are the outputs at the
    end of the last task. Ours: yes/no questions about the classes that a real image can answer, and as many exemplars
    as real images, whose targets are the outputs at the end of their own task."""

    outputs_as_features: bool = False
    """Published: distances are between outputs, as they are. Ours: between inputs of the last layer, of length 1."""

    whole_task: bool = False
    """Published: exemplars are chosen among all images of their task, which are kept until it ends, whatever the
    budget. Ours: among a uniform sample within it."""

    train_mode: bool = False
    """Published: exemplars are chosen, and their targets found, in train mode, class by class: the running statistics
    with which the network is tested are then mostly those of exemplars. Needs all of the above. Ours: in eval mode."""


VARIANTS = {
    "ours": Variant(),
    "softmax": Variant(softmax=True),
    "outputs as features": Variant(outputs_as_features=True),
    "chosen among all images": Variant(whole_task=True),
    "these three": Variant(True, True, True),
    "all, as published": Variant(True, True, True, train_mode=True),
}


class Varied(ICaRL):
    """iCaRL with some of the differences."""

    def __init__(self, network: nn.Module, config: ICaRLConfig, variant: Variant, seed: int) -> None:
        super().__init__(network, config, seed=seed)
        self.variant = variant

    def end_task(self, like: Tensor) -> None:
        """Choose exemplars before the test, as published; ours are tested by all candidates, which are as many."""
        if self.variant.whole_task:
            self._means = None
            self._herd(like)

    def _step(self, x: Tensor, y: Tensor) -> float:
        if not self.variant.softmax:
            return super()._step(x, y)
        loss = F.cross_entropy(self.outputs(x), y)
        if self.exemplars:
            kept = [self._one_of(images, answers) for images, answers in self.exemplars.values()]
            images, answers = (torch.cat(parts) for parts in zip(*kept, strict=True))
            logits = self.outputs(self._laid_out(unpack(images, x)))
            loss = loss + F.kl_div(logits.log_softmax(1), answers.to(x), reduction="sum") / logits.numel()
        return self.descend(loss, "the loss")

    def _one_of(self, images: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(len(images), (1,), generator=self.generator)
        return images[drawn], answers[drawn]

    def _collect(self, x: Tensor, y: Tensor) -> None:
        if not self.variant.whole_task:
            super()._collect(x, y)
            return
        for label in torch.unique(y).tolist():
            kept = self.candidates.setdefault(label, Reservoir(10**6))
            kept.add(x[y == label], y[y == label], self.boundaries.tasks, self.generator)

    def _herd(self, like: Tensor) -> None:
        if self.variant.whole_task and self.candidates:
            share = self.config.kept_images // (len(self.exemplars) + len(self.candidates))
            self.exemplars = {c: (images[:share], answers[:share]) for c, (images, answers) in self.exemplars.items()}
            self._herd_all(share, like)
            return
        super()._herd(like)
        if self.variant.softmax:
            self._answer_again(like)

    def _herd_all(self, share: int, like: Tensor) -> None:
        """Choose among all images of the task."""
        for label, kept in self.candidates.items():
            assert kept.images is not None
            x = self._laid_out(unpack(kept.images, like))
            chosen = self._chosen_in_train_mode(x, share) if self.variant.train_mode else self._chosen(x, share)
            known = sorted({*self.exemplars, *self.candidates})
            answers = torch.zeros(len(chosen), self.classes)
            answers[:, known] = self._features_and_logits(x[chosen])[1][:, known].sigmoid()
            self.exemplars[label] = kept.images[chosen], answers
        self.candidates = {}
        if self.variant.softmax:
            self._answer_again(like)

    def _chosen(self, x: Tensor, share: int) -> Tensor:
        return herd(self._features_and_logits(x)[0])[:share]

    @torch.no_grad()
    def _chosen_in_train_mode(self, x: Tensor, share: int) -> Tensor:
        """Herding as published, whose many passes all move the running statistics."""
        chosen: list[int] = []
        with training(self.network):
            mean, all_outputs = self.outputs(x).mean(0), self.outputs(x)
            for number in range(1, min(share, len(x)) + 1):
                before = self.outputs(x[chosen]).sum(0) if chosen else torch.zeros_like(mean)
                distances = (mean - (all_outputs + before) / number).norm(dim=1)
                distances[chosen] = torch.inf
                chosen.append(int(distances.argmin()))
        return torch.tensor(chosen)

    @torch.no_grad()
    def _answer_again(self, like: Tensor) -> None:
        """The targets of all exemplars are what the network says now."""
        for label, (images, _) in self.exemplars.items():
            x = self._laid_out(unpack(images, like))
            if self.variant.train_mode:
                with training(self.network):
                    logits = self.outputs(x)
            else:
                logits = self._features_and_logits(x)[1]
            self.exemplars[label] = images, logits.softmax(1)

    def _features_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = [super(Varied, self)._features_and_logits(part) for part in torch.split(x, AT_ONCE)]
        features, logits = (torch.cat(part) for part in zip(*parts, strict=True))
        return (logits if self.variant.outputs_as_features else features), logits

    def _class_means(self, like: Tensor) -> Tensor:
        if not self.variant.outputs_as_features:
            return super()._class_means(like)
        images = [self._laid_out(unpack(images, like)) for _, images in self._images()]
        return torch.stack([self._features_and_logits(kept)[0].mean(0) for kept in images])


def matrix(data: Dataset, variant: Variant, fraction: float, seed: int) -> list[list[float]]:
    """The accuracy on every task after each task."""
    config = replace(PRESETS["cifar10/icarl"].config, seed=seed)
    stream, found = Stream(data, config.stream, fraction, seed), []
    settings = config.learner.for_stream(stream.task_lengths)
    assert isinstance(settings, ICaRLConfig)
    with own_random_state(seed):
        learner = Varied(config.network.build(data.input_shape, len(data.classes)), settings, variant, seed)
        for task in stream:
            for x, y in task:
                learner.observe(x, y)
            learner.end_task(x)  # the streams of this preset count their batches: nobody announces boundaries
            found.append(evaluate(learner, data.test, stream.tasks, over_images=False))
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Which difference to the published iCaRL changes its figures?")
    parser.add_argument("folder", type=Path, help="has cifar-10-batches-bin")
    parser.add_argument("--seeds", type=int, default=1, help="runs of every variant")
    parser.add_argument("--fraction", type=float, default=0.1, help="the first part of every task to learn")
    parser.add_argument("--only", nargs="+", choices=tuple(VARIANTS), default=tuple(VARIANTS), help="variants to run")
    options = parser.parse_args()
    data = load("cifar10", options.folder, may_download=False)
    print(f"{'variant':28} accuracy forgetting   when a task ends / at the end of the stream, by task")
    with limited_threads(1):
        for name in options.only:
            runs = [matrix(data, VARIANTS[name], options.fraction, seed) for seed in range(options.seeds)]
            accuracy, forgotten = np.mean([[average_accuracy(run), forgetting(run) or 0.0] for run in runs], axis=0)
            mean = np.mean(runs, axis=0)
            learned, left = (" ".join(f"{value:3.0f}" for value in row) for row in (mean.diagonal(), mean[-1]))
            print(f"{name:28} {accuracy:8.1f} {forgotten:10.1f}   {learned} / {left}", flush=True)


if __name__ == "__main__":
    main()
