"""`autorecall learn`: another day, a finished run goes on with new images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from .. import data
from ..config import ARRAYS
from ..data import OWN, Dataset, Split
from ..errors import ConfigError, DataError, InterruptedRunError
from ..own import Own
from ..runs.another_day import joined_classes, learn, relabelled
from ..runs.folder import read_config
from ..runs.model import Model, load_model
from .matrix import Matrix
from .output import quiet_console
from .process import keep_freed_memory
from .run import Bar, print_result
from .signals import watched
from .source import report_left_out
from .text import complain
from .words import harmless


@dataclass(frozen=True)
class Arguments:
    """Go on from a finished run with new images: of classes that it knows, by the names of their folders, or new ones.

    autorecall learn runs/folder/arm/seed-0 --data tuesday
    autorecall learn runs/folder/arm/seed-0+tuesday --data wednesday --test-data all-tests

    The result is a run of its own, which names its parent, can be used with `autorecall predict`, and gone on from. It
    tests what is known of the new classes, and of the others if there are images to test them. To resume an interrupted
    one, give the same command again.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of the finished run."""

    data: Path
    """Folder with a sub-folder of new images per class (or with train/ and test/), or a .npz file."""

    test_data: Path | None = None
    """Folder of further images to test, such as those of earlier classes; all of them are tested, none is learned."""

    out: Path | None = None
    """Folder of the new run; if unset, RUN+NAME beside RUN, where NAME is that of the data."""

    skip_broken: bool = False
    """Leave out images that cannot be read, and say how many."""

    fresh: bool = False
    """Start over, moving an earlier run of the same name aside."""

    keep_learner: bool = False
    """Save the learner even if it holds images; without images it is saved anyway."""

    pictures: bool = False
    """Draw recalled.png, which shows some of the last images, and what came of them."""

    network: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """What to import for a run with a network of your own; the run alone imports nothing."""

    learner: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """What to import for a run with a learner of your own; the run alone imports nothing."""


def main(arguments: list[str]) -> None:
    """Parse, learn, report."""
    with harmless(arguments):
        chosen = tyro.cli(Arguments, prog="autorecall learn", args=arguments)
    if not chosen.run.is_dir():
        raise DataError(f"there is no folder {chosen.run}; give that of a finished run")
    Own(chosen.network, chosen.learner).imported()
    model = load_model(chosen.run)
    dataset = _load(chosen.data, model, chosen.skip_broken)
    report_left_out(dataset)
    classes = joined_classes(model.classes, dataset.classes)
    tests = _tests(chosen, model, classes)
    folder = chosen.out or chosen.run.with_name(f"{chosen.run.name}+{chosen.data.resolve().stem}")
    console = quiet_console()
    keep_freed_memory()
    today = list(dataset.classes)
    tested = {classes[label] for label in np.unique(tests.labels).tolist()} if tests is not None else set()
    earlier = [name for name in classes if name in tested and name not in today]
    if not earlier and set(classes) != set(today):
        complain(
            "no image of an earlier class is tested; give some with --test-data to see whether they are still known"
        )
    matrix = Matrix("folder", [earlier, today] if earlier else [today], console.width)
    keep = chosen.keep_learner or None
    with watched() as stop, Bar(console, chosen.data.name, folder, classes, matrix, chosen.pictures) as observer:
        try:
            result = learn(chosen.run, dataset, folder, tests, observer, chosen.fresh, stop, keep)
        except InterruptedRunError as error:
            error.exit_code = stop.exit_code
            raise
    if observer.rows < len(result.accuracy_matrix):
        for line in matrix.lines(result.accuracy_matrix):
            console.print(line, soft_wrap=True)
    _, config = read_config(folder / "config.json")
    print_result(console, config, result, folder)


def _load(place: Path, model: Model, skip_broken: bool) -> Dataset:
    """New images, made as large and as colourful as the model wants them."""
    if place.suffix.lower() == ".npz":
        return data.from_npz(place)
    shape = model.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
        raise ConfigError(
            f"the model takes inputs of shape {shape}, not square images; give a .npz file of such inputs"
        )
    return data.from_folder(place, shape[1], skip_broken=skip_broken, channels=shape[0], fewest_classes=1)


def _tests(chosen: Arguments, model: Model, classes: Sequence[str]) -> Split | None:
    """Images of earlier classes to test: those that are named, or those of a dataset that everybody has."""
    if chosen.test_data is not None:
        found = _load(chosen.test_data, model, chosen.skip_broken)
        parts: tuple[Split, ...] = (found.train, found.val, found.test)
    else:
        _, config = read_config(chosen.run / "config.json")
        if config.dataset in (*OWN, ARRAYS):
            return None
        try:
            found = data.load(config.dataset, may_download=False)
        except DataError:
            return None
        parts = (getattr(found, config.split),)
    unknown = [name for name in found.classes if name not in classes]
    if unknown:
        raise DataError(f"{chosen.test_data} has the class {unknown[0]:.80}, which neither the run nor the data has")
    split = Split(np.concatenate([part.inputs for part in parts]), np.concatenate([part.labels for part in parts]))
    return relabelled(split, found.classes, classes)
