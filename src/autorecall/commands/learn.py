"""`autorecall learn`: another day, a finished run goes on with new images."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from .. import data
from ..config import ARRAYS
from ..data import OWN, Dataset, Split
from ..data.folders import every_image
from ..data.npz import every_example
from ..errors import ConfigError, DataError, InterruptedRunError
from ..own import Own
from ..runs.another_day import joined_classes, learn, lessons_of, relabelled
from ..runs.folder import LEARNER, read_config
from ..runs.model import Model, load_model
from ..runs.names import shortened
from ..runs.result import Lesson, read_result
from .matrix import Matrix
from .output import quiet_console
from .process import keep_freed_memory
from .run import Bar, print_result
from .signals import watched
from .source import refuse_among_classes, report_left_out, report_unread
from .text import complain, printable
from .words import chosen_from


@dataclass(frozen=True)
class Arguments:
    """Go on from a finished run with new images: of classes that it knows, by the names of their folders, or new ones.

    autorecall learn runs/folder/arm/seed-0 --data tuesday
    autorecall learn runs/folder/arm/seed-0+tuesday --data wednesday --test-data all-tests

    The result is a run of its own, which names its parent, can be used with `autorecall predict`, and can itself be
    continued. It
    tests what is known of the new classes, and of the others if there are images to test them. To resume an interrupted
    one, give the same command again.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of the finished run."""

    data: Path
    """Folder with a sub-folder of new images per class (or with train/ and test/), or a .npz file."""

    test_data: Path | None = None
    """Folder or .npz file of further images to test, such as those of earlier classes; none of them is learned. Of data
    that the run learned from, on whatever day, only the test images are tested."""

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
    chosen = chosen_from(Arguments, "autorecall learn", arguments)
    if not chosen.run.is_dir():
        raise DataError(f"there is no folder {chosen.run}; give that of a finished run")
    Own(chosen.network, chosen.learner).imported()
    if chosen.run.name in ("", ".."):
        chosen = replace(chosen, run=chosen.run.resolve())  # to be named, and found again
    folder = chosen.out or _beside(chosen.run, chosen.data)
    refuse_among_classes(folder, "--data", chosen.data)
    refuse_among_classes(folder, "--test-data", chosen.test_data)
    model = load_model(chosen.run)
    dataset = _load(chosen.data, model, Lesson("", skip_broken=chosen.skip_broken))
    report_left_out(dataset)
    if chosen.data.is_dir():
        report_unread(chosen.data)
    classes = joined_classes(model.classes, dataset.classes)
    tests, own = _tests(chosen, model, dataset, classes)
    console = quiet_console()
    done = not chosen.fresh and (folder / "result.json").exists()
    if done and chosen.keep_learner and not (folder / LEARNER).exists():
        raise ConfigError(f"{folder} holds a finished run that did not keep its learner; --fresh runs it again")
    keep_freed_memory()
    _, parent = read_config(chosen.run / "config.json")
    parts = [relabelled(part, dataset.classes, classes) for part in (dataset.train, getattr(dataset, parent.split))]
    learned, tested, further = (_named(part, classes) for part in (*parts, tests))
    tested |= further
    today = [name for name in classes if name in learned]
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
    if own:
        complain(f"the run learned from {chosen.test_data}, so only its {parent.split} images were tested")
    if done:
        console.print(f"already finished: {printable(str(folder))}; --fresh runs it again", soft_wrap=True)
    if observer.rows < len(result.accuracy_matrix):
        for line in matrix.lines(result.accuracy_matrix):
            console.print(line, soft_wrap=True)
    _, config = read_config(folder / "config.json")
    print_result(console, config, result, folder)


def _beside(run: Path, place: Path) -> Path:
    """The folder of the new run: RUN+NAME, or its beginning if that is long."""
    place = place.resolve()
    name = place.stem if place.suffix.lower() == ".npz" else place.name
    return run.with_name(shortened(f"{run.name}+{name}"))


def _named(split: Split | None, classes: Sequence[str]) -> set[str]:
    """The classes that a split has images of."""
    return set() if split is None else {classes[label] for label in np.unique(split.labels).tolist()}


def _load(place: Path, model: Model, how: Lesson) -> Dataset:
    """Images, made as large and as colourful as the model wants them."""
    shares = (how.test_share, how.val_share)
    if place.suffix.lower() == ".npz":
        return data.from_npz(place, *shares)
    channels, size = _wanted(model)
    return data.from_folder(place, size, *shares, how.skip_broken, channels, fewest_classes=1)


def _wanted(model: Model) -> tuple[int, int]:
    """The channels and the side of the images that a model takes."""
    shape = model.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
        raise ConfigError(
            f"the model takes inputs of shape {shape}, not square images; give a .npz file of such inputs"
        )
    return shape[0], shape[1]


def _learned(chosen: Arguments, model: Model, dataset: Dataset) -> Dataset | None:
    """The data to test if they were learned before or are learned now, split as they are then."""
    assert chosen.test_data is not None
    _, config = read_config(chosen.run / "config.json")
    before = lessons_of(read_result(chosen.run / "result.json"), config)
    read: dict[tuple[object, ...], tuple[Dataset, str]] = {}
    for lesson in (*before, Lesson.of(dataset)):
        how = (lesson.test_share, lesson.val_share, lesson.skip_broken)
        if how not in read:
            with suppress(DataError):  # such as one that there is a sentence about when all of it is read
                found = _load(chosen.test_data, model, lesson)
                read[how] = found, found.fingerprint()
        if how in read and read[how][1] == lesson.data:
            return read[how][0]
    return None


def _tests(chosen: Arguments, model: Model, dataset: Dataset, classes: Sequence[str]) -> tuple[Split | None, bool]:
    """Images of earlier classes to test: those that are named, or those of a dataset that everybody has.

    And whether those that are named are learned, so that only a part of them is tested.
    """
    own = False
    _, config = read_config(chosen.run / "config.json")
    if chosen.test_data is not None:
        found = _learned(chosen, model, dataset)
        if found is not None:
            own = True
            if found.fingerprint() == dataset.fingerprint():
                return None, own  # which are tested anyway
            part = getattr(found, config.split)
        elif chosen.test_data.suffix.lower() == ".npz":
            found = every_example(chosen.test_data)
            part = found.train
        else:
            channels, size = _wanted(model)
            found = every_image(chosen.test_data, size, channels, chosen.skip_broken)
            report_left_out(found)
            part = found.train
    else:
        if config.dataset in (*OWN, ARRAYS):
            return None, False
        try:
            found = data.load(config.dataset, may_download=False)
        except DataError:
            return None, False
        part = getattr(found, config.split)
    unknown = joined_classes(classes, found.classes)[len(classes) :]
    if unknown:
        raise DataError(f"{chosen.test_data} has the class {unknown[0]:.80}, which neither the run nor the data has")
    return relabelled(part, found.classes, classes), own
