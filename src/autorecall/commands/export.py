"""`autorecall export`: the model of a run as an ONNX file, for programs that know nothing of torch."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import torch
import tyro
from rich.console import Console

from ..errors import ConfigError, DataError
from ..networks import FixedFeatures
from ..own import blamed
from ..runs.model import Model, load_model
from ..storage.files import place_to_write, write_bytes
from .text import printable
from .words import chosen_from

CLOSE = 1e-4  # of the largest logit
TRIED = 4  # images
UNSEEN = 1e8


@dataclass(frozen=True)
class Arguments:
    """Write the model of a finished run as an ONNX file (needs the packages of the extra onnx).

    autorecall export runs/folder/arm/seed-0 --onnx model.onnx

    Its input is `images`, any number of them (one at a time for descriptors and patch filters) as floats from 0 to 1 in
    the shape that the run learned, its output `logits`. The metadata has the names of the classes, in their order, as
    JSON under `classes`. If onnxruntime is installed, it runs the file, which must give the same logits.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of the run."""

    onnx: Path
    """The file to write."""

    network: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """What to import for a run with a network of your own; the run alone imports nothing."""


def main(arguments: list[str]) -> None:
    """Parse, convert, try, write."""
    chosen = chosen_from(Arguments, "autorecall export", arguments)
    if find_spec("onnx") is None:
        raise ConfigError("the package onnx is not installed; use pip install 'autorecall[onnx]'")
    target = place_to_write(chosen.onnx)
    model = load_model(chosen.run, chosen.network)
    content = as_onnx(model)
    tried = _difference(model, content) if find_spec("onnxruntime") is not None else None
    if tried is not None and tried > CLOSE:
        raise DataError(
            f"onnxruntime gives logits that differ by {tried:.1e} of the largest, so {chosen.onnx} was not written"
        )
    write_bytes(target, content)
    told = (
        "not tried: onnxruntime is not installed"
        if tried is None
        else f"onnxruntime agrees to {tried:.1e} of the largest"
    )
    console = Console(highlight=False, markup=False, emoji=False)
    shape = " × ".join(map(str, ("one" if takes_one(model) else "N", *model.input_shape)))
    console.print(
        f"wrote {printable(str(chosen.onnx))}: images ({shape}) to logits of {len(model.classes)} classes; {told}",
        soft_wrap=True,
    )


def as_onnx(model: Model) -> bytes:
    """The content of the file."""
    import onnx
    from torch.onnx.utils import register_custom_op_symbolic

    free, several = {0: "number"}, not takes_one(model)
    # The exporter does not know it; of class Gaussians, matrices are transposed one per class.
    register_custom_op_symbolic("aten::mT", lambda g, x: g.op("Transpose", x, perm_i=[0, 2, 1]), 9)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        # The newer exporter gives the same file, takes twenty times as long, and needs a further package.
        warnings.simplefilter("ignore")
        with blamed("the conversion of this network"):
            try:
                torch.onnx.export(
                    model,
                    (torch.rand(2 if several else 1, *model.input_shape),),
                    f"{folder}/model.onnx",
                    input_names=["images"],
                    output_names=["logits"],
                    dynamic_axes={"images": free, "logits": free} if several else None,
                    dynamo=False,
                )
            except torch.onnx.errors.OnnxExporterError as error:
                what = str(error).partition(". ")[0][:200]
                raise DataError(
                    f"torch cannot write this network as ONNX ({what}); use `autorecall predict`"
                ) from error
        graph = onnx.load(f"{folder}/model.onnx")
    onnx.helper.set_model_props(graph, {"classes": json.dumps(model.classes)})
    onnx.checker.check_model(graph)
    content: bytes = graph.SerializeToString()
    return content


def takes_one(model: Model) -> bool:
    """Whether the file takes one image at a time: fixed features go through a batch image by image."""
    return isinstance(model.network, FixedFeatures)


def _difference(model: Model, content: bytes) -> float:
    """How far onnxruntime's logits are from torch's, on noise, as a share of the largest."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    images = torch.rand(TRIED, *model.input_shape, generator=torch.Generator().manual_seed(0))
    parts = torch.split(images, 1 if takes_one(model) else TRIED)
    found = np.concatenate([session.run(["logits"], {"images": part.numpy()})[0] for part in parts])
    with torch.no_grad():
        expected = model(images)
    usual = expected.abs() < UNSEEN  # classes never seen have a number that no other can reach
    return float(((torch.from_numpy(found) - expected).abs() / expected[usual].abs().max().clamp_min(1))[usual].max())
