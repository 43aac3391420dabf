"""`autorecall predict`: images classified by the model that a run left."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from ..data.folders import is_image
from ..data.locate import disk_errors
from ..errors import ConfigError, DataError
from ..runs.model import AT_ONCE, Model, load_model
from ..storage.files import place_to_write, write_text
from .text import complain, printable, spreadsheet
from .words import chosen_from


@dataclass(frozen=True)
class Arguments:
    """Classify images with the model of a finished run: for each, the most probable classes.

    autorecall predict runs/folder/arm/seed-0 photo.jpg
    autorecall predict runs/folder/arm/seed-0 new-photos --top 3 --csv classes.csv
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of the run."""

    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="IMAGE…")]
    """Image files, and folders, of which all images at any depth are taken."""

    top: int = 1
    """How many classes to name."""

    csv: Path | None = None
    """Write a table instead: file, and class and probability of each."""

    network: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """What to import for a run with a network of your own; the run alone imports nothing."""


def main(arguments: list[str]) -> None:
    """Parse, classify, print."""
    chosen = chosen_from(Arguments, "autorecall predict", arguments)
    table = None if chosen.csv is None else place_to_write(chosen.csv)
    model = load_model(chosen.run, chosen.network)
    if not 1 <= chosen.top <= len(model.classes):
        raise ConfigError(f"top is {chosen.top}; expected 1 to {len(model.classes)}, the number of classes")
    paths = list(_files(chosen.images))
    if not paths:
        raise DataError("no image is named, or the folders have none; give image files, or folders of them")
    console = Console(highlight=False, markup=False, emoji=False)
    rows: list[tuple[str, list[tuple[str, float]]]] = []
    broken = 0
    for start in range(0, len(paths), AT_ONCE):
        found, missed = _classified(model, paths[start : start + AT_ONCE], chosen.top)
        broken += missed
        for path, answers in found:
            rows.append((str(path), answers))
            if table is None:
                words = ", ".join(f"{printable(name)} {100 * share:.1f} %" for name, share in answers)
                console.print(f"{printable(str(path))}: {words}", soft_wrap=True)
    if table is not None:
        write_text(table, _table(rows, chosen.top))
        console.print(f"wrote {printable(str(chosen.csv))}", soft_wrap=True)
    if broken:
        raise DataError(f"{broken} of {len(paths)} images could not be read, and were left out")


def _files(places: Sequence[Path]) -> Iterator[Path]:
    """The files that were named, and those in folders that were."""
    with disk_errors():
        for place in places:
            if not place.is_dir():
                if not place.exists():
                    raise DataError(f"there is no {place}; give image files, or folders of them")
                yield place
                continue
            for folder, inner, names in os.walk(place):
                inner[:] = sorted(name for name in inner if not name.startswith("."))
                yield from (path for name in sorted(names) if is_image(path := Path(folder) / name))


def _classified(
    model: Model, paths: Sequence[Path], top: int
) -> tuple[list[tuple[Path, list[tuple[str, float]]]], int]:
    """What a few images show, and how many of them cannot be read: one of them does not spoil the others."""
    try:
        return list(zip(paths, model.predict(paths, top), strict=True)), 0
    except DataError as error:
        if len(paths) == 1:
            complain(f"left out: {error}")
            return [], 1
        parts = [_classified(model, [path], top) for path in paths]
        return [row for rows, _ in parts for row in rows], sum(missed for _, missed in parts)


def _table(rows: Sequence[tuple[str, list[tuple[str, float]]]], top: int) -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["file", *(f"{what}_{place + 1}" for place in range(top) for what in ("class", "probability"))])
    for name, answers in rows:
        found = (value for answer in answers for value in (spreadsheet(answer[0]), f"{answer[1]:.6f}"))
        writer.writerow([spreadsheet(name), *found])
    return lines.getvalue()
