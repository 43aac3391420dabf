"""Pictures of what a run recalled. The only room that knows matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from .learners import Recollection
from .recall import Recalled

COLUMNS = 10


def draw_recalled(path: Path, x: Tensor, recollection: Recollection, classes: Sequence[str]) -> None:
    """Real images above what they became, the teacher's class beneath."""
    recalled = recollection.recalled
    columns = _distinct(recalled)
    labels = recollection.targets.argmax(1).tolist()
    figure = Figure(figsize=(max(len(columns), 3) * 1.0, 2.7), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(columns), squeeze=False)
    for column, index in enumerate(columns):
        origin = None if recalled.origins is None else int(recalled.origins[index])
        above = np.zeros((1, 1)) if origin is None else _pixels(x[origin])
        for ax, pixels in zip(axes[:, column], (above, _pixels(recalled.images[index])), strict=True):
            ax.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            ax.set_xticks([])
            ax.set_yticks([])
        name = classes[labels[index]].replace("$", r"\$")
        axes[1, column].set_xlabel(name if len(name) <= 12 else name[:11] + "…", fontsize=9)
    axes[0, 0].set_ylabel("real" if recalled.origins is not None else "(noise)", fontsize=9)
    axes[1, 0].set_ylabel("recalled", fontsize=9)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    figure.savefig(aside, format="png")
    aside.replace(path)


def _distinct(recalled: Recalled) -> list[int]:
    """One recalled image for each real one it started from; copies of one image stay alike."""
    if recalled.origins is None:
        return list(range(min(COLUMNS, len(recalled.images))))
    first: dict[int, int] = {}
    for index, origin in enumerate(recalled.origins.tolist()):
        first.setdefault(origin, index)
    return [first[origin] for origin in sorted(first)][:COLUMNS]


def _pixels(image: Tensor) -> NDArray[np.float32]:
    """Height × width (× 3), cut to [0, 1]: recalled pixels may lie outside."""
    array: NDArray[np.float32] = image.detach().cpu().float().numpy()
    if array.ndim == 3 and array.shape[0] == 3:
        array = array.transpose(1, 2, 0)
    elif array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    else:
        array = array.reshape(1, -1)
    return np.clip(array, 0, 1)
