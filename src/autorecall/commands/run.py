"""`autorecall run`: one preset, with any field changed, to one run folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..checks import brief
from ..config import ARRAYS, RunConfig
from ..data import OWN, Dataset
from ..errors import ConfigError, DataError, InterruptedRunError
from ..own import Own, blamed
from ..presets import DEFAULT, PRESETS, changes, preset, share_of_images
from ..recall.batch import Recalled
from ..runs.folder import CURVES, LEARNER, RECALLED, TENSORBOARD, check_writable, earlier_result, read_config
from ..runs.loop import Observer
from ..runs.names import run_folder
from ..runs.result import Result
from ..runs.run import run
from ..storage.extensible import refuse_not_imported
from ..storage.schema import texts, to_json
from ..torch_state import cores
from .matrix import Matrix, is_own
from .output import Bars, quiet_console
from .own_data import COLOUR, best_preset, dataset_meant, fitted, why_best
from .process import keep_freed_memory
from .signals import watched
from .source import Source, refuse_among_classes, report_left_out, report_unread, source_of
from .text import complain, printable
from .words import chosen_from, silent

if TYPE_CHECKING:
    from ..integrations.tensorboard import TensorBoard


@dataclass(frozen=True)
class Arguments:
    """Train one learner on one stream, and write its results to OUT/<dataset>/<method>/seed-<N>.

    What differs from the preset becomes part of the folder's name, such as arm+ascent_steps=20.

    PRESET is a row of the paper's tables, as printed by `autorecall list`. Every option below changes one field of it;
    options depend on the preset, so `autorecall run PRESET --help` shows those of its own learner. Without a preset,
    --data DIR takes the most accurate method that keeps no image, and says which.

    The folder gets config.json (run it again with --config), history.csv (one row per step), result.json, curves.png
    and, for methods that recall images, recalled.png. To resume an interrupted run, give the same command again.
    """

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[PRESET]")]
    """The row to run."""

    run: Annotated[RunConfig, tyro.conf.arg(name="")]

    out: Path = Path("runs")
    """Where run folders go."""

    data: Path | None = None
    """Folder of the data, or your own images: a folder with a sub-folder per class, or a .npz file. If unset,
    AUTORECALL_DATA, a cache or a download."""

    config: Path | None = None
    """Repeat an earlier run from its config.json, instead of a preset."""

    fresh: bool = False
    """Start over, moving an earlier run of the same name aside."""

    keep_learner: bool = False
    """Save the learner at the end as learner.safetensors: network, teacher, and any images that the method keeps. With
    data of your own it is saved anyway, unless the method keeps images."""

    network: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """Train a network of your own: a function or torch module class of (input_shape, classes), or a class derived from
    NetworkConfig, whose fields become options. Modules are imported from the current folder, too."""

    learner: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """Train with a method of your own: a class derived from LearnerConfig, whose fields become options."""

    pictures: bool = False
    """Draw recalled.png from data of your own, too: some of the last images, and what recall made of them."""

    tensorboard: bool = False
    """Write event files for TensorBoard to the folder tensorboard of the run (needs the package tensorboard)."""


def main(arguments: list[str]) -> None:
    """Parse, run, report."""
    chosen, console = parse(arguments), quiet_console()
    dataset = None
    if chosen.preset == COLOUR and chosen.run.dataset in OWN and chosen.config is None and not _preset_among(arguments):
        dataset = source_of(chosen.run, chosen.data).load()
        chosen, why = _best(arguments, dataset)
        console.print(why, soft_wrap=True)
    config = chosen.run
    folder = run_folder(chosen.out, chosen.preset, config)
    if chosen.tensorboard:
        _board(folder, _Complaining())  # refuses if the package is missing, before anything is done
    source = source_of(config, chosen.data)
    if chosen.data is not None and config.dataset == "mnist":
        complain("--data is not used, as mnist comes with the package; add --dataset folder for your own images")
    fingerprint = partial(_fingerprint, source) if dataset is None else dataset.fingerprint
    earlier = (
        None if chosen.fresh else earlier_result(folder, chosen.preset, config, config.threads or cores(), fingerprint)
    )
    if earlier is not None and chosen.keep_learner and not (folder / LEARNER).exists():
        raise ConfigError(f"{folder} holds a finished run that did not keep its learner; --fresh runs it again")
    draws = chosen.pictures and hasattr(config.learner, "recalled_images")
    if earlier is not None and draws and not (folder / RECALLED).exists():
        raise ConfigError(f"{folder} holds a finished run that drew no pictures; --fresh runs it again")
    if earlier is not None:
        if chosen.tensorboard:
            with _board(folder, _Complaining()) as board:
                board.complete(earlier)
        console.print(f"already finished: {printable(str(folder))}; --fresh runs it again", soft_wrap=True)
        print_matrix(console, config, earlier)
        print_result(console, config, earlier, folder)
        return
    check_writable(folder)
    keep_freed_memory()
    dataset = source.load(progress=True) if dataset is None else dataset
    report_left_out(dataset)
    if source.dataset == "folder" and source.folder is not None:
        report_unread(source.folder)
    tasks = [[dataset.classes[label] for label in task] for task in config.stream.task_classes(dataset.classes)]
    matrix = Matrix(config.dataset, tasks, console.width)
    title = f"{chosen.preset} seed {config.seed}"
    pictures = chosen.pictures or not is_own(config.dataset)
    keep_learner = chosen.keep_learner or (None if is_own(config.dataset) else False)
    with (
        watched() as stop,
        Bar(console, title, folder, dataset.classes, matrix, pictures) as bar,
        _board(folder, bar) if chosen.tensorboard else nullcontext(bar) as observer,
    ):
        try:
            result = run(chosen.preset, config, dataset, folder, observer, chosen.fresh, stop, keep_learner)
        except InterruptedRunError as error:
            error.exit_code = stop.exit_code
            raise
    if bar.rows < len(result.accuracy_matrix):  # the others were printed before an interruption, or never
        print_matrix(console, config, result)
    print_result(console, config, result, folder)


def _board(folder: Path, observer: Observer) -> TensorBoard:
    from ..integrations.tensorboard import TensorBoard

    return TensorBoard(folder, observer)


def _fingerprint(source: Source) -> str | None:
    return None if source.dataset == "mnist" else source.fingerprint()


def parse(arguments: Sequence[str]) -> Arguments:
    """The arguments, with the preset or config that they name as defaults."""
    file, place = _option(arguments, "--config"), _option(arguments, "--data")
    named = _preset_among(arguments) if file is None else None
    if place is not None and _option(arguments, "--dataset") is None:
        meant = dataset_meant(place, named, decided=file is not None)
        arguments = arguments if meant is None else [*arguments, "--dataset", meant]
    own = _own_in(arguments)
    if file is None:
        undecided = _option(arguments, "--dataset") in OWN and own == Own()
        name = named or (COLOUR if undecided else DEFAULT)
        if name not in PRESETS and Path(name).exists():
            raise ConfigError(f"there is no preset {brief(name)}; to learn your own images, use --data {name:.80}")
        return _checked(_parse(arguments, name, own.put_into(preset(name).config)))
    if not arguments[0].startswith("-"):
        raise ConfigError(f"both the preset {brief(arguments[0])} and --config are given; expected one of them")
    own.imported()  # before it is read, so that its settings are of these classes
    try:
        stored, config = read_config(Path(file), links=True)
    except DataError as error:
        raise ConfigError(str(error) if file in str(error) else f"{file}: {error}") from error
    if not re.fullmatch("[a-z0-9-]+/[a-z0-9-]+", stored):  # it becomes a folder
        raise ConfigError(f"{file}: its preset is {brief(stored)}; expected a name such as {DEFAULT}")
    config = own.put_into(config)
    refuse_not_imported(config.network, config.learner)
    parsed = _parse(arguments, stored, config)
    if parsed.preset != stored:
        raise ConfigError(f"both the preset {brief(parsed.preset)} and --config are given; expected one of them")
    return _checked(parsed)


def _best(arguments: Sequence[str], dataset: Dataset) -> tuple[Arguments, str]:
    """The arguments, with what is best for these data as defaults, and what to say about it."""
    name = best_preset(dataset)
    given = _parse(arguments, name, replace(PRESETS[name].config, dataset=dataset.name))
    chosen = _checked(_parse(arguments, name, fitted(given.run, dataset)))
    return chosen, why_best(name, changes(chosen.run, given.run), dataset)


def _preset_among(arguments: Sequence[str]) -> str | None:
    """The preset that is named, first or after options, if any is; the options depend on it."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    words = [word for word in arguments if word not in ("-h", "--help")]
    for name in dict.fromkeys(word for word in words if word in PRESETS):
        # It may be the value of an option, such as --out mnist/arm: then it is neither the preset nor left over.
        try:
            parsed, unknown = _with_unknown(words, Arguments("", PRESETS[name].config))
        except ConfigError:  # in a setting, which is refused again later, aloud
            return name
        except SystemExit:
            continue
        if name in (parsed.preset, *unknown):
            return name
    return None


def unknown_options(arguments: Sequence[str], name: str) -> list[str]:
    """Those that a run of this preset does not have; what else may be wrong with these words is heard of later."""
    config = _own_in(arguments).put_into(preset(name).config)
    try:
        _, unknown = _with_unknown(arguments, Arguments(name, config))
    except (ConfigError, SystemExit):
        return []
    return [word.partition("=")[0] for word in unknown if word.startswith("--")]


def _with_unknown(words: Sequence[str], default: Arguments) -> tuple[Arguments, list[str]]:
    """What the words say, and those of them that say nothing."""
    with silent(), blamed("a setting", SystemExit):
        return tyro.cli(
            Arguments, args=words, default=default, config=(tyro.conf.AvoidSubcommands,), return_unknown_args=True
        )


def _own_in(arguments: Sequence[str]) -> Own:
    return Own(_option(arguments, "--network"), _option(arguments, "--learner"))


def _parse(arguments: Sequence[str], name: str, config: RunConfig) -> Arguments:
    with blamed("a setting", SystemExit):
        return chosen_from(
            Arguments,
            "autorecall run",
            arguments,
            texts(to_json(config)),
            default=Arguments(name, config),
            config=(tyro.conf.AvoidSubcommands,),
        )


def _checked(chosen: Arguments) -> Arguments:
    if chosen.config is None:
        preset(chosen.preset)
    if chosen.run.dataset == ARRAYS:
        raise ConfigError("dataset is 'arrays', which only Python can give; use --dataset folder for your own images")
    if chosen.run.dataset == "folder":
        refuse_among_classes(chosen.out, "--data", chosen.data)
    return chosen


def _option(arguments: Sequence[str], name: str) -> str | None:
    """The value of an option; if it is given several times, the last, as for tyro."""
    found = None
    for index, word in enumerate(arguments):
        if word == name and index + 1 < len(arguments):
            found = arguments[index + 1]
        if word.startswith(f"{name}="):
            found = word.removeprefix(f"{name}=")
    return found


class _Complaining(Observer):
    """Prints warnings."""

    def warned(self, sentence: str) -> None:
        """Print it."""
        complain(sentence)


class Bar(_Complaining):
    """A progress bar with the time left, one row of the matrix per task, and pictures at the end."""

    def __init__(
        self, console: Console, title: str, folder: Path, classes: Sequence[str], matrix: Matrix, pictures: bool
    ) -> None:
        self._console, self._title, self._folder, self._classes = console, title, folder, classes
        self._pictures = pictures
        self._matrix, self.rows = matrix, 0
        self._progress = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None

    def resumed(self, step: int, steps: int) -> None:
        """Say where the run resumes."""
        self._console.print(f"resuming after step {step} of {steps}: {printable(str(self._folder))}", soft_wrap=True)

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        """Advance the bar."""
        if self._task is None:
            self._task = self._progress.add_task(self._title, total=steps, loss="")
        loss = f"loss {numbers['loss']:.2f}" if "loss" in numbers else ""
        self._progress.update(self._task, completed=step, description=f"{self._title} task {task}", loss=loss)

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        """Print the accuracy on every task."""
        heading = self._matrix.heading()
        if heading is not None and not self.rows:
            self._console.print(heading, soft_wrap=True)
        self._console.print(self._matrix.row(task, accuracies))
        self.rows += 1

    def recalled(self, x: Tensor, recalled: Recalled, targets: Tensor) -> None:
        """Draw the last recalled batch, if it may be drawn."""
        if not self._pictures:
            return
        from .pictures import draw_recalled

        draw_recalled(self._folder / RECALLED, x, recalled, targets, self._classes)

    def finished(self, result: Result) -> None:
        """Draw the curves."""
        from .pictures import draw_curves

        draw_curves(self._folder, result)

    def __enter__(self) -> Bar:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.__exit__(None, None, None)


def print_matrix(console: Console, config: RunConfig, result: Result) -> None:
    """One row of accuracies for every task."""
    for line in Matrix(config.dataset, result.tasks, console.width).lines(result.accuracy_matrix):
        console.print(line, soft_wrap=True)


def print_result(console: Console, config: RunConfig, result: Result, folder: Path) -> None:
    """Accuracy, forgetting, the memory, and where everything is."""
    usual = PRESETS.get(result.preset)
    whole = share_of_images(config, result.steps) == 1
    published = usual.published if usual is not None and whole and not changes(config, usual.config) else None
    paper = f"   (paper {published.accuracy} ± {published.accuracy_spread})" if published else ""
    some = "" if config.test_images is None else f", about {config.test_images:,} images"
    console.print(f"average accuracy  {result.accuracy:.1f} % on {result.split}{some}{paper}")
    if result.forgetting is not None:
        both = published and published.forgetting is not None
        paper = f"   (paper {published.forgetting} ± {published.forgetting_spread})" if published and both else ""
        console.print(f"forgetting        {result.forgetting:.1f} %{paper}")
    memory = result.memory
    console.print(
        f"extra memory      {memory.images:,} images ({memory.image_mb:.2f} MB), "
        f"{memory.parameters:,} parameters ({memory.parameter_mb:.2f} MB)"
        + (f", {memory.statistics:,} statistics ({memory.statistic_mb:.2f} MB)" if memory.statistics else "")
    )
    console.print(f"time              {result.seconds.train:.1f} s training, {result.seconds.evaluate:.1f} s testing")
    if result.left_out:
        console.print(f"left out          {result.left_out:,} image{'s' * (result.left_out > 1)} that cannot be read")
    console.print(f"results           {printable(os.fspath(folder))}", soft_wrap=True)
    for name in (CURVES, RECALLED):
        if (folder / name).exists():
            console.print(f"picture           {printable(os.fspath(folder / name))}", soft_wrap=True)
    if (folder / TENSORBOARD).exists():
        console.print(f"tensorboard       --logdir {printable(os.fspath(folder / TENSORBOARD))}", soft_wrap=True)
