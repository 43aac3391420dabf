"""Deep generative replay (Shin et al. 2017): a generator trained with the classifier makes images of earlier tasks.

At the end of a task both are copied, and the copies stand in for it from then on: the generator learns from the real
batch and its copy's images, the classifier from the real batch and such images with its own copy's answers.
MNIST-5k, seeds 0-4: accuracy 81.0 ± 1.1, forgetting 16.7 ± 1.7 (paper 79.3 ± 0.6, 19.5 ± 0.8).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..checks import check_choices, check_counts, check_not_negative, check_positive
from ..errors import ConfigError, InputError
from ..networks.inputs import Inputs
from ..networks.vae import VAE, ConvVAEConfig, MLPVAEConfig, draw
from ..recall.copies import in_passes
from ..storage.state import State, for_optimizer, integer, integers, mapping, savable, tensor
from .base import Learner, LearnerConfig, Memory
from .shared import undo
from .shared.boundaries import Boundaries, BoundaryConfig
from .shared.finite import finite
from .shared.frozen_copy import frozen_copy
from .shared.inspection import check_optimized
from .shared.undo import Undo

PROBABILITY = 1e-5  # lower bound on outputs in the loss on soft labels


@dataclass(frozen=True)
class GENConfig(LearnerConfig):
    """Deep generative replay. Defaults are the published values for MNIST."""

    method: ClassVar[str] = "gen"

    learning_rate: float = 0.01
    """Rate of the classifier's SGD steps; the generator uses Adam with default settings."""

    steps_per_batch: int = 15
    """Steps per batch of the generator and of the classifier, each on the same replayed images."""

    groups: int = 4
    """Groups of ten replayed images, drawn once for the generator and once for the classifier."""

    replay_weight: float = 3.0
    """Weight of the loss on replayed images, for both networks."""

    warm_up: int = 1000
    """Images of a task over which the weight of the generator's KL term rises from 0 to 1."""

    kl_weight: float = 1.0
    """β, the upper limit of that weight."""

    vae: MLPVAEConfig | ConvVAEConfig = field(default_factory=MLPVAEConfig)
    """The generator."""

    input_range: Literal["unit", "symmetric"] = "unit"
    """unit: inputs are left unchanged. symmetric: they are scaled from [0, 1] to [-1, 1]."""

    image_size: int | None = None
    """Height and width to resize images to for both networks; if unset, unchanged."""

    tasks: BoundaryConfig = field(default_factory=BoundaryConfig)
    """What counts as the beginning of a task."""

    def __post_init__(self) -> None:
        check_choices(self, "learner")
        check_counts(self, "learner", "steps_per_batch", "groups", "warm_up")
        check_positive(self, "learner", "learning_rate")
        check_not_negative(self, "learner", "replay_weight", "kl_weight")
        if self.image_size is not None and not 1 <= self.image_size <= 1024:
            raise ConfigError(f"learner.image_size is {self.image_size}; expected 1 to 1024")
        if self.input_range == "symmetric" and isinstance(self.vae, MLPVAEConfig):
            raise ConfigError("learner.input_range is symmetric but mlp-vae makes grey values in [0, 1]; use unit")

    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""
        return GEN(network, self, seed=seed)


GROUP = 10  # images per group


class GEN(Learner):
    """Train a generator and a classifier on the real batch and on what their copies make up."""

    config: GENConfig
    boundaries: Boundaries

    def __init__(
        self, network: nn.Module, config: GENConfig | None = None, optimizer: Optimizer | None = None, seed: int = 0
    ) -> None:
        self.config = config or GENConfig()
        super().__init__(network, self.config.learning_rate, optimizer, seed)
        self.boundaries = Boundaries(self.config.tasks)
        self.inputs = Inputs(self.config.input_range, self.config.image_size)
        self.vae: VAE | None = None  # made once the first batch shows the shape
        self.earlier_vae: VAE | None = None
        self.earlier_network: nn.Module | None = None
        self.images_of_task = 0
        self._shape: tuple[int, ...] = ()
        self._vae_optimizer: Optimizer

    def check(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Also refuse what the generator cannot make."""
        x, y = super().check(x, y)
        if self.config.image_size is not None and x.dim() != 4:
            raise InputError(f"learner.image_size is set but inputs have shape {tuple(x.shape[1:])}; leave it out")
        shown = self.prepare(x)
        if self._shape and tuple(shown.shape[1:]) != self._shape:
            raise InputError(
                f"inputs have shape {tuple(shown.shape[1:])} but the generator makes {self._shape}; use one shape"
            )
        self.config.vae.check(shown)
        return x, y

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Steps of the generator, then steps of the classifier."""
        begins, x = self.boundaries.before(y), self.prepare(x)
        if self.vae is None:
            self._make_vae(tuple(x.shape[1:]), x)
        if begins:
            self.images_of_task = 0
            if self.boundaries.tasks > 1:
                self._copy_both()
        assert self.vae is not None
        self.images_of_task += len(x)
        weight = min(self.images_of_task / self.config.warm_up, self.config.kl_weight)

        replayed = itertools.repeat(None) if self.earlier_vae is None else self.replayed(x, y, weight)
        images = next(replayed)
        for _ in range(self.config.steps_per_batch):
            bound = self._vae_step(x, images, weight)
        images = next(replayed)
        answers = None if images is None else self._answers(images)
        for _ in range(self.config.steps_per_batch):
            loss, on_replayed = self._network_step(x, y, images, answers)
        return {"loss": loss, "replayed_loss": on_replayed, "bound": bound}

    def remember(self) -> list[Undo]:
        """The generator as well, whose steps come first."""
        found = super().remember()
        return found if self.vae is None else [*found, undo.training(self.vae, self._vae_optimizer)]

    def check_state(self) -> None:
        """The generator as well."""
        super().check_state()
        assert self.vae is not None
        check_optimized(self._vae_optimizer, self.vae, "the generator: ")

    def replayed(self, x: Tensor, y: Tensor, kl_weight: float) -> Iterator[Tensor]:
        """Images for the generator to remember, then images for the classifier."""
        for _ in range(2):
            yield self.dream(self.latents(self.config.groups * GROUP, x))

    def latents(self, count: int, like: Tensor) -> Tensor:
        """Latents drawn from the prior."""
        return draw(count, self.config.vae.latents, self.generator, like)

    @torch.no_grad()
    def dream(self, latents: Tensor) -> Tensor:
        """The images that the earlier generator makes from latents."""
        assert self.earlier_vae is not None
        return self._laid_out(self.earlier_vae.decode(latents))

    def kept_networks(self) -> list[nn.Module]:
        """The earlier classifier."""
        return [] if self.earlier_network is None else [self.earlier_network]

    def memory(self) -> Memory:
        """The generator, its copy, and the copy of the classifier."""
        networks = (self.vae, self.earlier_vae, self.earlier_network)
        kept = sum(p.numel() for n in networks if n is not None for p in n.parameters())
        return self.with_features(Memory(parameters=kept))

    def state_dict(self) -> dict[str, object]:
        """Both networks with their optimizers, and their copies."""
        parts = {"vae": self.vae, "earlier_vae": self.earlier_vae, "earlier_network": self.earlier_network}
        return super().state_dict() | {
            "images_of_task": self.images_of_task,
            "shape": list(self._shape),
            "vae_optimizer": None if self.vae is None else savable(self._vae_optimizer.state_dict()),
            **{name: None if part is None else dict(part.state_dict()) for name, part in parts.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.vae = self.earlier_vae = self.earlier_network = None
        self._shape = ()
        if state["vae"] is not None:
            saved = [tensor(value) for value in mapping(state["vae"]).values()]
            shape = tuple(integers(state["shape"]))
            if not 1 <= math.prod(shape) <= sum(value.numel() for value in saved):  # nor build a giant to find out
                raise InputError(f"a saved state has the shape {shape} for its generator; it is damaged")
            if len({value.dtype for value in saved if value.is_floating_point()}) != 1:
                raise InputError("a saved state has several dtypes for its generator; it is damaged")
            self._make_vae(shape, saved[0].to(self._device()))
        super().load_state_dict(state)  # after drawing initial weights, to restore the random generator
        self.images_of_task = integer(state["images_of_task"])
        if self.vae is None:
            return
        self.vae.load_state_dict(mapping(state["vae"]))
        self._vae_optimizer.load_state_dict(for_optimizer(self._vae_optimizer, mapping(state["vae_optimizer"])))
        if state["earlier_vae"] is not None:
            self._copy_both()
            assert self.earlier_vae is not None
            assert self.earlier_network is not None
            self.earlier_vae.load_state_dict(mapping(state["earlier_vae"]))
            self.earlier_network.load_state_dict(mapping(state["earlier_network"]))

    def _make_vae(self, shape: tuple[int, ...], like: Tensor) -> None:
        self._shape = shape
        with torch.random.fork_rng(devices=[]):  # weights come from torch's global generator, which is not ours
            torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=self.generator)))
            self.vae = self.config.vae.build(shape).to(like)
        if self._convolutional:
            self.vae.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._vae_optimizer = torch.optim.Adam(self.vae.parameters())

    def _copy_both(self) -> None:
        """A task is over: make the copies that stand in for it."""
        assert self.vae is not None
        self.earlier_network, self.earlier_vae = frozen_copy(self.network).eval(), frozen_copy(self.vae).eval()

    def vae_losses(self, batches: list[Tensor], kl_weight: float) -> list[Tensor]:
        """Minus the generator's bound on each batch."""
        assert self.vae is not None
        noise = torch.cat([self.latents(len(images), images) for images in batches])
        return self.vae.losses(batches, noise, kl_weight)

    def _vae_step(self, x: Tensor, images: Tensor | None, kl_weight: float) -> float:
        loss, *replayed = self.vae_losses([x] if images is None else [x, images], kl_weight)
        value = finite(loss, "the generator's loss on the real batch")
        for on_replayed in replayed:
            finite(on_replayed, "the generator's loss on replayed images")
            loss = loss + self.config.replay_weight * on_replayed
        self._vae_optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._vae_optimizer.step()
        return -value

    def _network_step(self, x: Tensor, y: Tensor, images: Tensor | None, answers: Tensor | None) -> tuple[float, float]:
        logits = in_passes(self.network, [x] if images is None else [x, images])
        loss, replayed = F.cross_entropy(logits[0], y), math.nan
        value = finite(loss, "the loss on the real batch")
        if answers is not None:
            outputs = logits[1].softmax(1).clamp(PROBABILITY, 1)
            on_replayed = -(answers * outputs.log()).sum(1).mean()
            replayed = finite(on_replayed, "the loss on replayed images")
            loss = loss + self.config.replay_weight * on_replayed
        self.descend(loss, "the loss")
        return value, replayed

    @torch.no_grad()
    def _answers(self, images: Tensor) -> Tensor:
        assert self.earlier_network is not None
        answers: Tensor = self.earlier_network(images).softmax(1)
        return answers
