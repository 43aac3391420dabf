"""Pictures of real images and what they became in recall."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ...data import cifar10
from ...errors import AutorecallError, DataError
from ...storage.state import labels, tensor
from ...storage.state_file import read_state, write_state
from .. import drawing
from ..pictures import pixels
from .kept import Kept, KeptStudy
from .study import Place, Row

IMAGES = 10
CLASSES = {"mnist": [str(digit) for digit in range(10)], "cifar10": list(cifar10.CLASSES)}
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR10"}


class RecalledImages(KeptStudy):
    """Real images above recalled ones."""

    name = "recalled"
    what = "real and recalled images with their classes, MNIST and CIFAR10"
    kind = "safetensors"

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """One run of ARM on each dataset, whose learner is kept."""
        return [Row.of(dataset, f"{dataset}/arm", 1, fraction, keep_learner=True) for dataset in CLASSES]

    def measure(self, end: Kept, path: Path) -> None:
        """Recalled once more."""
        write_state(path, _few(end))

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Recalled once more by the kept learner, unless the images are there."""
        written: list[Path] = []
        for dataset, images in self.measured(place, seeds, fraction):
            parts = _read(images, len(CLASSES[dataset]))
            written += [images, *self._draw(place.stem(f"recalled-{dataset}", fraction), dataset, *parts)]
        return written

    def _draw(
        self, path: Path, dataset: str, real: Tensor, recalled: Tensor, labels: Tensor, targets: Tensor
    ) -> list[Path]:
        words = CLASSES[dataset]
        figure = drawing.new_figure(10, 2.5)
        axes = figure.subplots(2, len(real), squeeze=False)
        for column in range(len(real)):
            for ax, image, number in zip(axes[:, column], (recalled, real), (targets, labels), strict=True):
                ax.imshow(pixels(image[column].float() / 255), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                ax.set_xticks([])
                ax.set_yticks([])
                ax.set_xlabel(words[int(number[column])], fontsize=9)
        axes[0, 0].set_ylabel("recalled")
        axes[1, 0].set_ylabel("real")
        words_above = "recalled images with the teacher's class, above the real ones that they started from"
        figure.suptitle(f"{TITLES[dataset]}: {words_above}", fontsize=10)
        return drawing.save(figure, path)


def _read(path: Path, classes: int) -> list[Tensor]:
    """Images and their classes, if they fit together."""
    try:
        state = read_state(path)
        real, recalled = (tensor(state[name]) for name in ("real", "recalled"))
        numbers = [labels(state[name], classes, len(real)) for name in ("labels", "targets")]
        if real.shape != recalled.shape or real.dtype != torch.uint8 or real.dim() != 4 or len(real) == 0:
            raise DataError("not as many real as recalled images")
    except (AutorecallError, LookupError) as error:
        raise DataError(f"{path} is damaged ({error}); remove it to recall again") from error
    return [real, recalled, *numbers]


def _few(end: Kept) -> dict[str, Tensor]:
    """Ten images as bytes, clipped to [0, 1]."""
    samples = next(end.recall(IMAGES, end.stream.tasks[-1:]))

    def as_bytes(images: Tensor) -> Tensor:
        return (255 * images.clamp(0, 1)).round().to(torch.uint8)

    return {
        "real": as_bytes(samples.real),
        "recalled": as_bytes(samples.images),
        "labels": samples.labels,
        "targets": samples.targets.argmax(1),
    }
