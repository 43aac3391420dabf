"""The model that a run leaves: a network with its class names, ready to classify. Nothing of it is pickled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import brief
from ..data.folders import read_image, squared
from ..errors import ConfigError, DataError, InputError
from ..learners.base import Learner
from ..learners.shared.class_gaussians import Likelihoods
from ..learners.shared.features import features_and_logits, forward_pass
from ..networks import NetworkConfig
from ..networks.inputs import Inputs
from ..own import build_network, own_network
from ..storage.extensible import name_of, refuse_not_imported
from ..storage.formats import stamped, unstamped
from ..storage.schema import decode, to_json
from ..storage.state import mapping, refuse_not_finite, tensor
from ..storage.state_file import read_state, write_state
from .folder import MODEL

AT_ONCE = 50  # images that are classified together
Picture: TypeAlias = str | Path | Image.Image | npt.NDArray[np.generic] | Tensor


@dataclass(frozen=True)
class Description:
    """All that is needed to build a model again, besides its tensors."""

    classes: list[str]
    input_shape: list[int]
    network: NetworkConfig
    inputs: Inputs = field(default_factory=Inputs)


class Model(nn.Module):
    """A trained classifier. Call it with a float batch in [0, 1] for logits, or `predict` with images of any kind."""

    def __init__(
        self,
        network: nn.Module,
        about: Description,
        labels: Tensor | None,
        means: Tensor | None,
        likelihoods: Likelihoods | None = None,
    ) -> None:
        """With `means`, the class of the nearest mean of features wins; `labels` says whose means they are.

        `likelihoods` are those of class Gaussians, which are added to the logits.
        """
        super().__init__()
        self.network, self.about, self.likelihoods = network, about, likelihoods
        self.register_buffer("labels", labels)
        self.register_buffer("means", means)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the outputs, in their order."""
        return tuple(self.about.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.about.input_shape)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a float batch (N, ...) in [0, 1]."""
        x = self.about.inputs.prepare(x)
        labels, means = self.labels, self.means
        if self.likelihoods is not None:
            scores: Tensor = self.likelihoods(*features_and_logits(self.network, x))
            return scores
        if not isinstance(labels, Tensor) or not isinstance(means, Tensor):
            logits: Tensor = self.network(x)
            return logits
        passed = forward_pass(self.network, x)
        distances = torch.cdist(F.normalize(passed.features, dim=1), means).square()
        return torch.full_like(passed.logits, -1e9).index_copy(1, labels, -distances)

    def predict(self, images: Picture | Sequence[Picture], top: int = 1) -> list[list[tuple[str, float]]]:
        """The `top` most probable classes of each image, best first, as (name, probability).

        Images are paths, Pillow images, or arrays and tensors, alone or in a list: bytes (height, width), (height,
        width, 3) or (channels, height, width), or floats in [0, 1] of the model's shape. Paths and Pillow images are
        made square, resized and turned to grey or colour as the training images were.
        """
        if not 1 <= top <= len(self.classes):
            raise InputError(f"top is {brief(top)}; expected 1 to {len(self.classes)}, the number of classes")
        alone = isinstance(images, str | Path | Image.Image | np.ndarray | Tensor)
        several = [images] if alone else list(images)  # type: ignore[arg-type]
        found: list[list[tuple[str, float]]] = []
        device = next(self.parameters()).device
        was_training = self.training
        self.eval()
        try:
            for start in range(0, len(several), AT_ONCE):
                batch = torch.stack([self._taken(image) for image in several[start : start + AT_ONCE]]).to(device)  # type: ignore[arg-type]
                with torch.no_grad():
                    probabilities = self(batch).softmax(1)
                values, places = probabilities.topk(top, dim=1)
                for row, numbers in zip(values.tolist(), places.tolist(), strict=True):
                    found.append([(self.classes[number], value) for value, number in zip(row, numbers, strict=True)])
        finally:
            self.train(was_training)
        return found

    def _taken(self, image: Picture) -> Tensor:
        """One image as the model takes it."""
        if isinstance(image, str | Path | Image.Image):
            return torch.from_numpy(self._pixels(image).copy()).float() / 255
        values = image if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
        if values.dtype == torch.uint8:
            channels = self.input_shape[0]
            if values.dim() == 2 and channels == 1:
                values = values[None]
            elif values.dim() == 3 and values.shape[2] == channels and values.shape[0] != channels:
                values = values.permute(2, 0, 1)
            values = values.float() / 255
        if not values.is_floating_point():
            raise InputError(f"an image has dtype {values.dtype}; expected bytes (uint8), or floats in [0, 1]")
        if tuple(values.shape) != self.input_shape:
            raise InputError(
                f"an image has shape {tuple(values.shape)}; expected {self.input_shape}, or a path or a Pillow image, "
                "which are resized"
            )
        if not bool(values.isfinite().all()):
            raise InputError("an image has NaN or infinite values; repair it, or leave it out")
        return values.float()

    def _pixels(self, image: str | Path | Image.Image) -> npt.NDArray[np.uint8]:
        shape = self.input_shape
        if len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
            raise InputError(f"the model takes inputs of shape {shape}, not square images; give it arrays")
        mode = "L" if shape[0] == 1 else "RGB"
        return (
            squared(image, shape[1], mode)
            if isinstance(image, Image.Image)
            else read_image(Path(image), shape[1], mode)
        )


def save_model(
    learner: Learner, network: NetworkConfig, classes: Sequence[str], shape: Sequence[int], path: Path
) -> None:
    """Write the model of a learner: what `predict` needs, and nothing that training does."""
    about = Description(list(classes), list(shape), network, learner.inputs)
    weights = mapping(learner.state_dict()["network"])  # which brings a last layer up to date that is solved for
    nearest = learner.class_means()
    labels, means = (None, None) if nearest is None else nearest
    likelihoods = learner.likelihoods()
    state: dict[str, object] = {"model": to_json(about), "network": dict(weights), "labels": labels, "means": means}
    gaussians = {} if likelihoods is None else {"likelihoods": dict(likelihoods.state_dict())}
    write_state(path, stamped(state | gaussians))


def load_model(folder: str | Path, network: str | None = None) -> Model:
    """The model of a run, from its folder or from its model.safetensors, in eval mode.

    If its network is your own, either its class of settings is there, or `network` says what to import, such as
    "mypackage.nets:build": a file alone never imports anything.
    """
    named = None if network is None else own_network(network)
    path = Path(folder)
    path = path / MODEL if path.is_dir() else path
    if not path.exists():
        raise DataError(f"there is no {path}; give the folder of a finished run (--fresh makes an old one again)")
    with _ours(path):
        _, state = unstamped(read_state(path, links=True))
        about = decode(Description, state["model"], "model")
        assert isinstance(about, Description)
    refuse_not_imported(about.network)
    if named is not None and not isinstance(about.network, named):
        raise ConfigError(f"network is {network}, but {path} has {name_of(type(about.network))}; leave it out")
    with torch.random.fork_rng():  # initial weights are drawn, and replaced
        built = build_network(about.network, tuple(about.input_shape), len(about.classes))
    with _ours(path):
        refuse_not_finite(state)
        built.load_state_dict(mapping(state["network"]))
        labels, means = state["labels"], state["means"]
        nearest = (None, None) if labels is None else (tensor(labels), tensor(means))
        gaussians = Likelihoods.from_state(mapping(state["likelihoods"])) if "likelihoods" in state else None
    return Model(built, about, nearest[0], nearest[1], gaussians).eval()


@contextmanager
def _ours(path: Path) -> Iterator[None]:
    """Whatever cannot be read inside becomes one sentence about this file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # another version's, or somebody's own
        raise DataError(
            f"{path} is not a model of this version of autorecall, or its network has changed ({type(error).__name__})"
        ) from error
