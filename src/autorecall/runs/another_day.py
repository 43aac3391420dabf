"""Another day: a finished run goes on with new images, classes that it has not seen among them.

It is a run of its own, whose first test is of what its parent knew. The learner goes on as it was saved; of methods
that keep nothing besides their network, or copies of it, the model will do.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from ..config import ARRAYS, RunConfig
from ..data import OWN, Dataset, Split
from ..data.arrays import check_labels, joined
from ..data.locate import spelling
from ..errors import ConfigError, DataError
from ..learners.base import Learner, LearnerConfig
from ..learners.shared.boundaries import BoundaryConfig
from ..learners.shared.saving import read_learner, restore
from ..own import build_learner, build_network
from ..storage.extensible import refuse_not_imported
from ..stream import Stream, StreamConfig, Task
from ..torch_state import cores, limited_threads, own_random_state
from .folder import LEARNER, MODEL, RunStatus, held, read_config
from .loop import Observer, RunLoop
from .model import Model, load_model
from .result import Lesson, Result, read_result
from .run import check_batches, device, machine_of, versions


def learn(
    parent: str | Path,
    dataset: Dataset,
    folder: str | Path | None = None,
    tests: Split | None = None,
    observer: Observer | None = None,
    fresh: bool = False,
    stop: Callable[[], bool] = lambda: False,
    keep_learner: bool | None = None,
) -> Result:
    """Go on from the finished run in the folder `parent` with the training images of a dataset; write `folder`.

    Classes are matched by their names: those that the parent does not know get outputs of their own. `tests` are
    further images to test, such as those of earlier classes, with the labels of `joined_classes`. The first row of the
    result's accuracy_matrix is what the parent knew, the second what is known now; the columns are the classes that are
    not in the new data, if there are images to test them, and those that are.

    Folders, `observer`, `fresh` and `stop` are as in `run`. The learner is kept unless it holds images; `keep_learner`
    decides otherwise.
    """
    parent, observer = Path(parent), observer or Observer()
    preset, before, known = _parent(parent)
    model = load_model(parent)
    classes = joined_classes(model.classes, dataset.classes)
    data = _relabelled(dataset, classes)
    _check_shape("new", model, dataset.input_shape)
    if tests is not None:
        _check_shape("tested", model, tests.inputs.shape[1:])
        check_labels("tested", tests.labels, len(classes))
    stream, tested = _stream(before, data, tests)
    config = _config(before, dataset, stream)
    threads = config.threads or cores()
    with own_random_state(config.seed), limited_threads(max(1, threads // 2)):
        learner, source = _learner(parent, config, model, len(classes))
        check_batches(learner, stream[-1])
        seen = replace(data, test=tested).fingerprint()
        status = RunStatus(
            preset,
            config,
            _fingerprint(source, data, seen),
            threads,
            versions(),
            machine_of(learner.network, config.device),
            parent=os.fspath(parent),
            lessons=[*lessons_of(known, before), Lesson.of(dataset)],
            tested=seen,
        )
        loop = RunLoop(status, stream, learner, tested, data, observer, stop, fresh, keep_learner)
        if folder is None:
            return loop.finish()
        with held(Path(folder), fresh, observer.warned) as place:
            return place.finished(status) or loop.finish_in(place)


def joined_classes(known: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """The names of all classes: those known, then those that are new, in their order, however accents are written.

    >>> joined_classes(["cat", "dog"], ["bird", "dog"])
    ('cat', 'dog', 'bird')
    """
    return (*known, *(name for name in spelling(known, new) if name not in known))


def relabelled(split: Split, names: Sequence[str], classes: Sequence[str]) -> Split:
    """A split whose labels number `names`, with labels that number `classes`."""
    numbers = np.array([classes.index(name) for name in spelling(classes, names)], dtype=np.int64)
    return replace(split, labels=numbers[split.labels])


def lessons_of(result: Result, config: RunConfig) -> list[Lesson]:
    """What a run and those that it went on from learned; nothing is known of those that earlier versions made."""
    if result.parent or result.lessons:
        return result.lessons
    return [Lesson(result.data, config.test_share, config.val_share, result.left_out > 0)]


def _parent(folder: Path) -> tuple[str, RunConfig, Result]:
    for name in ("config.json", "result.json", MODEL):
        if not (folder / name).exists():
            raise DataError(f"{folder} has no {name}; give the folder of a finished run to go on from")
    result = read_result(folder / "result.json")
    preset, config = read_config(folder / "config.json")
    refuse_not_imported(config.network, config.learner)
    return preset, config, result


def _relabelled(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    train, val, test = (
        relabelled(split, dataset.classes, classes) for split in (dataset.train, dataset.val, dataset.test)
    )
    return replace(dataset, train=train, val=val, test=test, classes=classes)


def _check_shape(which: str, model: Model, shape: tuple[int, ...]) -> None:
    if shape != model.input_shape:
        raise ConfigError(
            f"the {which} inputs have shape {shape} but the model takes {model.input_shape}; give that shape"
        )


def _stream(config: RunConfig, data: Dataset, tests: Split | None) -> tuple[Stream, Split]:
    """What was learned before, as a task without batches, and the new images; and all images to test."""
    today = tuple(np.unique(data.train.labels).tolist())
    tested = getattr(data, config.split)
    if tests is not None and len(tests):
        tested = joined(tested, tests)
    found = set(np.unique(tested.labels).tolist())
    untested = [data.classes[label] for label in today if label not in found]
    if untested:
        raise ConfigError(f"there is no image of {untested[0]:.80} to test; add one to the {config.split} images")
    earlier = tuple(sorted(found - set(today)))
    rng = np.random.default_rng(config.seed if config.stream.order_seed is None else config.stream.order_seed)
    order = rng.permutation(len(data.train))
    size, passes = config.stream.batch_size, config.stream.passes
    tasks = [Task(today, data.train, order, size, passes)]
    if earlier:
        tasks.insert(0, Task(earlier, data.train, order[:0], size, passes))
    return Stream.of(tasks), tested


def _config(before: RunConfig, dataset: Dataset, stream: Stream) -> RunConfig:
    """That of the parent, for other data; where a task begins is announced."""
    own = dataset.name if dataset.name in OWN else ARRAYS
    today = StreamConfig(
        classes_per_task=len(stream[-1].classes),
        batch_size=before.stream.batch_size,
        passes=before.stream.passes,
        order_seed=before.stream.order_seed,
    )
    return replace(
        before,
        dataset=own,
        stream=today,
        learner=_announced(before.learner),
        fraction=1.0,
        image_size=None,
        test_images=None,
        test_share=None,
        val_share=None,
        skip_broken=False,
    )


def _announced(learner: LearnerConfig) -> LearnerConfig:
    parts = {field.name: getattr(learner, field.name) for field in fields(learner)}
    timed = {name: part for name, part in parts.items() if isinstance(part, BoundaryConfig) and part.every is None}
    return replace(learner, **{name: type(part)(policy="boundary") for name, part in timed.items()})


def _learner(parent: Path, config: RunConfig, model: Model, outputs: int) -> tuple[Learner, Path]:
    """The learner of the parent, with outputs for all classes; and the file that it comes from."""
    network = build_network(config.network, model.input_shape, len(model.classes)).to(device(config.device))
    learner = build_learner(config.learner, network, config.seed)
    learner.threads = config.threads
    path = parent / LEARNER
    if path.exists():
        restore(learner, read_learner(path, learner), path)
    elif learner.is_its_network:
        path = parent / MODEL
        network.load_state_dict(model.network.state_dict())
        if learner.boundaries is not None:
            learner.boundaries.go_on(range(len(model.classes)), 0)
    else:
        raise DataError(
            f"{parent} did not keep its learner, without which {type(learner).__name__} cannot go on; make it again "
            "with --keep-learner --fresh"
        )
    learner.grow(outputs)
    return learner, path


def _fingerprint(source: Path, data: Dataset, tested: str) -> str:
    """Of all that the result depends on besides the config: the new data, what is tested, and the parent."""
    digest = hashlib.sha256(source.read_bytes())
    digest.update(data.fingerprint().encode())
    digest.update(tested.encode())
    return digest.hexdigest()
