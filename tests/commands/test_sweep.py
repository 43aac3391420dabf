"""`autorecall sweep`: a grid of runs, each as if it had been made alone, whatever happens to the processes.

Runs are made by processes of their own, which load all of the embedded digits and torch: so there are few of them here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from autorecall import cli
from autorecall.commands.many import make
from autorecall.commands.output import quiet_console
from autorecall.commands.signals import Stop
from autorecall.commands.worker import Job, do
from autorecall.integrations.ray import RayCrew
from autorecall.presets import PRESETS
from autorecall.runs.lock import locked
from autorecall.runs.result import Result
from autorecall.storage.schema import with_field

from .test_show import edit
from .worlds import FILES, MAIN, Say, files, read, refused, result, store, times

SMALL = ["--network.hidden", "16", "--threads", "1", "--curve-points", "0"]
ARM = ["mnist/arm", *SMALL, "--fraction", "0.1"]
ARM_FOLDER = "mnist/arm+hidden=16+fraction=0.1"
OFTEN = ["--checkpoint-seconds", "0"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with all digits: other processes know no fewer."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("AUTORECALL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return work


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing needs to be made."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("autorecall.commands.crew.subprocess.Popen", started)


def outcome(folder: Path) -> dict[str, object]:
    """What a run found, without the time it took."""
    found: dict[str, object] = {
        name: (folder / name).read_bytes() if (folder / name).exists() else None
        for name in ("history.csv", "recalled.png")
    }
    return found | {"result.json": read(folder / "result.json")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of ARM, each by `autorecall run`."""
    out = tmp_path_factory.mktemp("alone")
    for seed in "01":
        assert cli.dispatch(["run", *ARM, "--seed", seed, "--out", str(out)]) == 0
    return out / ARM_FOLDER


# Grids


def test_every_combination_is_run_once_and_as_if_alone(say: Say, place: Path) -> None:
    """Presets × seeds × values, with options of `run`; the table is that of `show`, and nothing is made again."""
    both = [*SMALL, "--fraction", "0.02", "--split=val", "--keep-learner"]
    words = ["mnist/naive", "mnist/lwf", "--seeds", "2", "--set", "learner.learning-rate=0.05,0.1", *both]
    said = say("sweep", *words, "--out", "all", "--best")
    assert (said.code, said.err) == (0, "")
    means: dict[str, float] = {}
    for name, rate in product(("naive", "lwf"), ("0.05", "0.1")):
        folder, row = f"{name}+hidden=16", f"mnist/{name} network.hidden=[16]"
        if rate == "0.1":
            folder, row = f"{folder}+learning_rate=0.1", f"{row} learner.learning_rate=0.1"
        folder, row = f"mnist/{folder}+fraction=0.02+split=val", f"{row} fraction=0.02 split=val"
        accuracies = []
        for seed in "01":
            mine, alone = (place / out / folder / f"seed-{seed}" for out in ("all", "one"))
            if (name, rate, seed) in (("naive", "0.1", "1"), ("lwf", "0.05", "0")):
                options = ["--learner.learning-rate", rate, "--seed", seed, "--out", "one"]
                assert say("run", f"mnist/{name}", *both, *options).code == 0
                assert outcome(mine) == outcome(alone)
                assert (mine / "config.json").read_bytes() == (alone / "config.json").read_bytes()
                assert files(mine) == files(alone)
            assert f"finished: {folder.removeprefix('mnist/')}/seed-{seed}\n" in said.out
            accuracies.append(json.loads((mine / "result.json").read_text())["accuracy"])
        means[row] = statistics.fmean(accuracies)
    assert len(list(place.glob("all/*/*/*/learner.safetensors"))) == 8
    best = max(means, key=lambda row: means[row])
    rate = "0.1" if "learner.learning_rate=0.1" in best else "0.05"
    name = f"{best.split(' ')[0]} with learner.learning-rate={rate}"
    assert said.out.splitlines()[-1] == f"best: {name}, {means[best]:.1f} % on the validation images"
    shown = say("show", "all").out
    assert shown in said.out

    found = times(place)
    again = say("sweep", *words, "--out", "all")
    assert (again.code, again.err, again.out) == (0, "", f"8 of 8 runs have already finished\n{shown}")
    assert times(place) == found


def had(place: Path, preset: str, seed: int, accuracy: float = 50.0, **changes: object) -> Path:
    """A finished run, made by hand, where it belongs."""
    config, name = dataclasses.replace(PRESETS[preset].config, seed=seed), preset.split("/")[1]
    for field, value in changes.items():
        config = with_field(config, field.replace("__", "."), value)
        written = ",".join(map(str, value)) if isinstance(value, tuple) else value
        name += f"+{field.split('__')[-1]}={written}"
    found: Result = dataclasses.replace(result(preset, seed, accuracy), split=config.split)
    return store(place / "runs" / "mnist" / name / f"seed-{seed}", found, config)


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("mnist/er-*", ["er-50", "er-mir-50", "er-25", "er-mir-25"]),
        ("mnist/*", [name.split("/")[1] for name in PRESETS if name.startswith("mnist/")]),
        ("mnist/a* mnist/arm mnist/?di", ["adi", "arm"]),
        ("mnist/[an]*", ["naive", "adi", "arm"]),
    ],
)
def test_patterns_name_all_presets_that_match_once(say: Say, place: Path, words: str, names: list[str]) -> None:
    for name in names:
        for seed in (0, 1):
            had(place, f"mnist/{name}", seed)
    said = say("sweep", *words.split(), "--seeds", "2")
    assert (said.code, said.err) == (0, "")
    assert said.out == f"{2 * len(names)} of {2 * len(names)} runs have already finished\n{say('show', 'runs').out}"


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize(
    ("words", "seeds"),
    [("--seeds 3", [0, 1, 2]), ("--seed 7", [7]), ("--seed=7 --seeds 1", [7]), ("--set seed=5,3", [5, 3]), ("", [0])],
)
def test_seeds_are_counted_or_named(say: Say, place: Path, words: str, seeds: list[int]) -> None:
    for seed in seeds:
        had(place, "mnist/naive", seed)
    assert f"{len(seeds)} of {len(seeds)} runs have" in say("sweep", "mnist/naive", *words.split()).out


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize(
    "words",
    [
        "mnist/naive --set fraction=0.5,0.25 --split val",
        "mnist/naive --split val --set fraction=0.5,0.25",
        "mnist/naive --set split=val fraction=0.5,0.25",
        "mnist/naive --set=fraction=0.5,0.25 --split=val",
        "mnist/naive --seeds 1 --split val --set fraction=0.25,0.5 --best",
        "--set fraction=0.25,0.5 --seeds 1 mnist/naive --split val",
    ],
)
def test_options_of_the_sweep_and_of_its_runs_may_stand_in_any_order(say: Say, place: Path, words: str) -> None:
    for fraction in (0.5, 0.25):
        had(place, "mnist/naive", 0, fraction=fraction, split="val")
    said = say("sweep", *words.split())
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("2 of 2 runs have already finished\n")


@pytest.mark.usefixtures("no_worker")
def test_a_value_may_have_several_words(say: Say, place: Path) -> None:
    for hidden in ((16,), (16, 8)):
        had(place, "mnist/naive", 0, network__hidden=hidden)
    said = say("sweep", "mnist/naive", "--set", "network.hidden=16, 16 8")
    assert said.out.startswith("2 of 2 runs have already finished\n")


@pytest.mark.usefixtures("no_worker")
def test_every_set_counts_if_there_are_several(say: Say, place: Path) -> None:
    """Or the second is refused; what must not happen is that the first is forgotten."""
    for fraction, split in product((0.5, 0.25), ("val", "test")):
        changes: dict[str, object] = (
            {"fraction": fraction, "split": split} if split == "val" else {"fraction": fraction}
        )
        had(place, "mnist/naive", 0, 50.0, **changes)
    said = say("sweep", "mnist/naive", "--set", "fraction=0.5,0.25", "--set", "split=val,test")
    assert said.code == 2 or said.out.startswith("4 of 4 runs have already finished\n")


@pytest.mark.usefixtures("no_worker")
def test_a_setting_that_is_set_twice_is_refused(say: Say, place: Path) -> None:
    for fraction in (0.5, 0.25, 0.1):
        had(place, "mnist/naive", 0, fraction=fraction)
    refused(say("sweep", "mnist/naive", "--set", "fraction=0.1", "fraction=0.25,0.5"), "fraction")


# The best


@pytest.mark.usefixtures("no_worker")
def test_the_best_has_the_highest_mean_over_seeds(say: Say, place: Path) -> None:
    """Not the highest of all runs, nor the first."""
    accuracies = {0.1: (20.0, 20.0), 0.2: (50.0, 60.0), 0.3: (90.0, 10.0)}
    for fraction, each in accuracies.items():
        for seed, accuracy in enumerate(each):
            had(place, "mnist/naive", seed, accuracy, fraction=fraction, split="val")
    had(place, "mnist/naive", 0, 99.0)  # no part of this sweep
    words = ["mnist/naive", "--seeds", "2", "--set", "fraction=0.1,0.2,0.3", "--split", "val"]
    said = say("sweep", *words, "--best")
    assert (said.code, said.err) == (0, "")
    line = "best: mnist/naive with fraction=0.2, 55.0 % on the validation images"
    assert said.out.splitlines()[-1] == line
    assert "best" not in say("sweep", *words).out


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize(
    ("words", "best"),
    [
        ("--set learner.diversity=1,16", "mnist/arm with learner.diversity=16, 20.5"),  # which is the preset's own
        ("--set learner.diversity=1,4 --seeds 2", "mnist/arm with learner.diversity=4, 20.0"),
        ("--set seed=0,1 learner.diversity=1.0,4", "mnist/arm with learner.diversity=4, 20.0"),
        ("mnist/naive", "mnist/arm, 20.5"),
        ("--set learner.diversity=1,4,8", "mnist/arm with learner.diversity=8, 20.5"),
        ("--set learner.diversity=16,8", "mnist/arm with learner.diversity=(8|16), 20.5 .*, and 1 other as good"),
        (
            "--set learner.diversity=1,2,8,16",
            "mnist/arm with learner.diversity=(2|8|16), 20.5 .*, and 2 others as good",
        ),
    ],
)
def test_the_best_is_named_by_what_was_tried_and_not_alone_if_others_are_as_good(
    say: Say, place: Path, words: str, best: str
) -> None:
    had(place, "mnist/naive", 0, 19.0, split="val")
    had(place, "mnist/arm", 0, 20.5, split="val")
    for weight, accuracy in {1.0: 10.0, 2.0: 20.5, 4.0: 20.0, 8.0: 20.5}.items():
        for seed in (0, 1):
            had(place, "mnist/arm", seed, accuracy, learner__diversity=weight, split="val")
    said = say("sweep", "mnist/arm", *words.split(), "--split", "val", "--best")
    assert (said.code, said.err) == (0, "")
    image, _, more = best.partition(" .*")
    assert re.fullmatch(f"best: {image} % on the validation images{more}", said.out.splitlines()[-1])


# Finished runs that are not these


@pytest.mark.usefixtures("no_worker")
def test_a_run_with_other_settings_in_the_folder_is_refused(say: Say, place: Path) -> None:
    folder = had(place, "mnist/naive", 0, fraction=0.5)
    edit(folder / "config.json", fraction=0.25)
    sentence = "seed-0 holds a run with other settings; choose another --out, or move it aside"
    refused(say("sweep", "mnist/naive", "--set", "fraction=0.5"), sentence)


@pytest.mark.usefixtures("no_worker")
def test_a_run_on_other_data_is_refused(say: Say, place: Path) -> None:
    edit(had(place, "mnist/naive", 0) / "result.json", data="0" * 64)
    refused(say("sweep", "mnist/naive"), "seed-0 holds a finished run on other data; choose another --out, or move")


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("result.json", {"accuracy": 101.0}),
        ("result.json", {"curve": [{"step": 9, "accuracies": []}]}),
        ("config.json", {"fraction": 7.0}),
        ("config.json", {"preset": None}),
        ("config.json", {"format": 10**6}),
    ],
)
def test_a_damaged_run_is_refused_by_its_folder(say: Say, place: Path, name: str, changes: dict[str, object]) -> None:
    for seed in (0, 1, 2):
        folder = had(place, "mnist/naive", seed)
        if seed == 1:
            edit(folder / name, **changes)
    refused(say("sweep", "mnist/naive", "--seeds", "3"), "runs/mnist/naive/seed-1")


@pytest.mark.usefixtures("no_worker")
def test_a_run_of_an_earlier_version_is_found_in_its_folder(say: Say, place: Path) -> None:
    had(place, "mnist/naive", 0, fraction=0.5).rename(place / "before")
    (place / "runs" / "mnist" / "naive").mkdir()
    (place / "before").rename(place / "runs" / "mnist" / "naive" / "seed-0")
    assert say("sweep", "mnist/naive", "--set", "fraction=0.5").out.startswith("1 of 1 runs have already finished\n")


@pytest.mark.usefixtures("no_worker")
def test_a_folder_that_no_run_can_go_to_is_refused_before_any_run_is_made(say: Say, place: Path) -> None:
    last = place / "runs" / "mnist" / "naive" / "seed-2"
    last.mkdir(parents=True)
    (last / "mine.txt").write_text("mine")
    refused(say("sweep", "mnist/naive", "--seeds", "3"), "runs/mnist/naive/seed-2 holds other files and no run of")
    (last / "mine.txt").rename(last / ".lock")
    os.mkfifo(last / "history.csv")
    refused(say("sweep", "mnist/naive", "--seeds", "3"), "runs/mnist/naive/seed-2/history.csv is a pipe, which no run")
    assert [path.name for path in last.parent.iterdir()] == ["seed-2"]
    (last / "history.csv").unlink()
    (last / ".lock").rename(place / "mine.txt")
    last.rmdir()
    (place / "mine.txt").rename(last)
    refused(say("sweep", "mnist/naive", "--seeds", "3"), "runs/mnist/naive/seed-2 is in the way of a run's folder")


# What cannot work


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "no preset is given; expected some of `autorecall list`, such as mnist/arm or 'mnist/*'"),
        ("--seeds 2", "no preset is given"),
        ("--fraction 0.5", "no preset is given"),
        ("mnist/ewc", "there is no preset 'mnist/ewc'; see `autorecall list`"),
        ("mnist/arm mnist/ewc", "there is no preset 'mnist/ewc'"),
        ("minst/*", "there is no preset 'minst/*'"),
        ("mnist/naive --seeds 0", "seeds is 0; expected 1 to 10,000, where 5 means 0 to 4"),
        ("mnist/naive --seeds -1", "seeds is -1; expected 1 to 10,000"),
        ("mnist/naive --seeds 10001", "seeds is 10001; expected 1 to 10,000"),
        ("mnist/naive --jobs 0", "jobs is 0; expected 1 to 1,024 runs at a time"),
        ("mnist/naive --jobs=-2", "jobs is -2; expected 1 to 1,024"),
        ("mnist/naive --jobs 1025", "jobs is 1025; expected 1 to 1,024"),
        ("mnist/naive --set fraction", "--set has 'fraction'; expected option=value,value such as"),
        ("mnist/naive --set =0.5", "--set has '=0.5'; expected option=value,value"),
        ("mnist/naive --set fraction=", "--set has 'fraction='; expected option=value,value"),
        ("mnist/naive --set fraction=0.5,,1", "--set has 'fraction=0.5,,1'; expected option=value,value"),
        ("mnist/naive --set split=val fraction", "--set has 'fraction'; expected option=value,value"),
        ("mnist/naive --set fraction=0.5,0.25,0.5", "--set has 'fraction=0.5,0.25,0.5' with a value twice; leave one"),
        ("mnist/naive --config x.json", "--config is for a single run; give it to `autorecall run`"),
        ("mnist/naive --config=x.json", "--config is for a single run"),
        ("mnist/naive --pictures", "--pictures is for a single run; give it to `autorecall run`"),
        ("mnist/naive --fresh", "--fresh is for a single run; give it to `autorecall run`"),
        ("mnist/naive --seeds 2 --seed 1", "both --seeds and seed are given; expected one of them"),
        ("mnist/naive --seeds 2 --seed=1", "both --seeds and seed are given"),
        ("mnist/naive --seeds 2 --set seed=1,2", "both --seeds and seed are given"),
        ("mnist/naive --set fraction=0.5,0.50", "two of these runs would go to runs/mnist/naive+fraction=0.5/seed-0;"),
        (
            "mnist/naive --set threads=1,2",
            "two of these runs would go to runs/mnist/naive/seed-0; leave one of them out",
        ),
        ("mnist/naive --best", "--best would choose on test images; add --split val"),
        ("mnist/naive --best --set split=val,test", "--best would choose on test images; add --split val"),
        (
            "mnist/naive --set " + " ".join(f"{letter}=1,2,3,4,5,6,7,8,9" for letter in "abcdefghij"),
            "1 presets, 3486784401 settings and 1 seeds are more than 10,000",
        ),
        (
            "mnist/naive --seeds 6000 --set fraction=0.1,0.2",
            "1 presets, 2 settings and 6000 seeds are more than 10,000",
        ),
        ("mnist/naive --set fraction=0.5,2", "fraction is 2.0; expected a number above 0 and at most 1"),
        ("mnist/naive --fraction nan", "fraction is nan; expected"),
        ("mnist/naive --set dataset=mnist,cifar100", "dataset is 'cifar100'; expected one of"),
        ("cifar10/naive --data nowhere", "the folder nowhere does not exist"),
        (
            "mnist/arm --nothing 1",
            "mnist/arm has no option --nothing, which is given for all runs; see `autorecall run mnist/arm --help`",
        ),
        ("mnist/naive --nothing=-1", "mnist/naive has no option --nothing, which is given for all runs; see"),
        (
            "mnist/naive --set foo=1,2 fraction=0.1,0.2",
            "mnist/naive has no option --foo, which --set names; see `autorecall run mnist/naive --help`",
        ),
        (
            "mnist/arm mnist/naive --set learner.diversity=1,4",
            "mnist/naive has no option --learner.diversity, which --set names; leave the preset out, or see "
            "`autorecall run mnist/naive --help`",
        ),
        (
            "mnist/naive mnist/arm --learner.diversity 4 --set fraction=0.1,0.2",
            "mnist/naive has no option --learner.diversity, which is given for all runs; leave the preset out, or see",
        ),
        ("mnist/naive --set learner.ascent_steps=1", "mnist/naive has no option --learner.ascent_steps, which --set"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence_and_nothing_is_written(
    say: Say, place: Path, words: str, sentence: str
) -> None:
    refused(say("sweep", *words.split()), sentence)
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize("words", ["sweep mnist/naive", "sweep cifar10/naive", "reproduce mnist", "reproduce --list"])
def test_a_cluster_without_ray_is_refused_before_data_are_looked_for(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("data were loaded")

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("autorecall.commands.source.Source.load", load)
    refused(say(*words.split(), "--ray", "local"), "--ray needs Ray, which is not installed; install autorecall[ray],")
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("mnist/naive --set seed=one", "--seed"),
        ("mnist/naive --seeds two", "--seeds"),
        ("mnist/naive --jobs", "--jobs"),
    ],
)
def test_options_of_the_wrong_kind_are_refused_and_nothing_is_written(
    say: Say, place: Path, words: str, option: str
) -> None:
    said = say("sweep", *words.split())
    assert (said.code, said.out.strip()) == (2, "")
    assert option in said.err
    assert "Traceback" not in said.err
    assert list(place.iterdir()) == []


# What may happen to the processes


def test_runs_that_fail_do_not_stop_the_others(say: Say, place: Path) -> None:
    """One diverges, one is being made by another process; one has finished without its learner, and is made again."""
    both = ["mnist/naive", *SMALL, "--fraction", "0.02"]
    assert say("run", *both).code == 0
    for name in ("statistics.py", "queue.py", "numpy.py"):  # in the working folder, and no concern of ours
        (place / name).write_text("raise SystemExit('a file of the user was imported')")
    used = Path("runs/mnist/naive+hidden=16+learning_rate=0.2+fraction=0.02/seed-0")
    with locked(used):
        said = say("sweep", *both, "--set", "learner.learning-rate=1e30,0.2,0.05", "--keep-learner")
        assert files(used) == {".lock"}
    assert said.code == 1
    why = f"{used} is in use by process {os.getpid()} on "
    assert f"failed: {used.parent.name}/seed-0: {why}" in said.out
    (diverged,) = place.glob("runs/mnist/naive*learning_rate=1e*/seed-0")
    assert files(diverged) == {"config.json", "history.csv", "stopped.json"}
    why = "stopped at step 2 (task 1): the loss on the real batch became "
    assert f"failed: {diverged.parent.name}/seed-0: {why}" in said.out
    assert said.err.startswith(f"autorecall: 1 of 3 runs failed: {used}: ")
    assert said.err.count("\n") == 1
    good = place / "runs" / "mnist" / "naive+hidden=16+fraction=0.02" / "seed-0"
    assert f"finished: {good.parent.name}/seed-0\n" in said.out
    assert files(good) == FILES | {"learner.safetensors"}
    assert files(good.with_name("seed-0.old-1")) == FILES
    assert outcome(good) == outcome(good.with_name("seed-0.old-1"))


def test_runs_that_diverge_on_a_cluster_are_named_by_the_folders_that_were_asked_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told absolute paths, as its processes work in folders of their own."""

    class Here(RayCrew):
        def work(self, stop: Callable[[], bool]) -> None:
            assert isinstance(stop, Stop)
            for progress in self.all:
                assert Path(progress.job.folder).is_absolute()
                do(progress.job, lambda event, progress=progress: progress.hear(event), stop)  # type: ignore[misc]

    monkeypatch.setattr("autorecall.integrations.ray.RayCrew", Here)
    monkeypatch.setattr("autorecall.integrations.ray.answering", lambda _: None)
    config = PRESETS["mnist/naive"].config
    jobs = [
        Job("mnist/naive", with_field(with_field(config, "fraction", 0.02), "learner.learning_rate", rate), folder)
        for rate, folder in ((0.05, "good"), (1e30, "steep"))
    ]
    lost = make(jobs, 1, "local", quiet_console())
    assert [job.folder for job in lost] == ["steep"]
    assert (place / "good" / "result.json").exists()


def test_what_diverges_is_left_out_and_said(say: Say, place: Path) -> None:
    """A grid is there to find out what diverges: the others are shown, and one of them is the best."""
    grid = ["mnist/naive", *SMALL, "--split", "val", "--best", "--seeds", "2", "--jobs", "2"]
    words = ["sweep", *grid, "--set", "learner.learning-rate=1e30,0.05"]
    said, again = say(*words), say(*words)
    (lost,) = place.glob("runs/mnist/naive*learning_rate=1e*")
    for each in (said, again):
        assert each.code == 1
        sentence = (
            f"autorecall: 2 of 4 runs diverged: {lost.relative_to(place)}/seed-0: the loss on the real batch became "
        )
        assert each.err.startswith(sentence)
        assert each.err.endswith(" at step 2 (and 1 more)\n")
        assert "\nbest: mnist/naive" in each.out
        assert "1e+30" not in each.out.split("best: ")[1]
    assert again.out.startswith("2 of 4 runs have already finished\n2 of 4 runs have already diverged\n")
    none = say("sweep", *grid, "--set", "learner.learning-rate=1e30")
    assert (none.code, none.out) == (1, "2 of 2 runs have already diverged\n")


def until(found: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def is_saved(folder: Path) -> bool:
    """Whether a run is being made there, and can be resumed."""
    lock = folder / ".lock"
    return bool(list(folder.glob("checkpoints/step-*.safetensors"))) and lock.exists() and bool(lock.read_text())


def maker(folder: Path) -> int:
    """The process that makes the run there."""
    return int((folder / ".lock").read_text().split()[0])


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Something that happens beside the test."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.usefixtures("all_cores")
def test_a_sweep_can_be_interrupted_and_can_lose_a_process(say: Say, place: Path, alone: Path) -> None:
    """Ctrl-C saves all runs; one of them is then resumed by `run`; processes of the other are killed and told to go."""
    words = ["sweep", *ARM, *OFTEN, "--seeds", "2", "--jobs", "2"]
    folders = [place / "runs" / ARM_FOLDER / f"seed-{seed}" for seed in (0, 1)]

    def interrupt() -> None:
        stopped: dict[Path, int] = {}
        while len(stopped) < 2:  # so that none of them ends before the other has begun
            until(lambda: any(is_saved(folder) for folder in folders if folder not in stopped))
            for folder in folders:
                if folder not in stopped and is_saved(folder):
                    stopped[folder] = maker(folder)
                    os.kill(stopped[folder], signal.SIGSTOP)
        assert len({*stopped.values(), os.getpid()}) == 3  # processes
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)  # until they are told; their runs need longer than that anyway
        for process in stopped.values():
            os.kill(process, signal.SIGCONT)

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with meanwhile(interrupt):
        said = say(*words)
    assert said.code == 130
    assert said.err == "autorecall: interrupted with 2 of 2 runs to go; give the same command to go on\n"
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    for folder in folders:
        assert list(folder.glob("checkpoints/step-*.safetensors"))
        assert not (folder / "result.json").exists()
        assert not (folder / ".lock").exists()  # nobody is at work

    said = say("run", *ARM, "--seed", "1")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("resuming after step ")

    def kill() -> None:
        until(lambda: is_saved(folders[0]))
        first = maker(folders[0])
        os.kill(first, signal.SIGKILL)
        until(lambda: is_saved(folders[0]) and maker(folders[0]) != first)
        os.kill(maker(folders[0]), signal.SIGTERM)

    with meanwhile(kill):
        said = say(*words)
    assert said.code == 0
    process = f"autorecall: the process that made runs/{ARM_FOLDER}/seed-0"
    ends = ("was killed by signal 9", "was told to leave")
    assert said.err == "".join(f"{process} {end}; it is taken up again\n" for end in ends)
    assert said.out.startswith("1 of 2 runs have already finished\n")
    for seed, folder in enumerate(folders):
        assert outcome(folder) == outcome(alone / f"seed-{seed}")
        assert files(folder) == files(alone / f"seed-{seed}")


def is_gone(process: int) -> bool:
    """Also one whose end nobody has asked about."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_processes_leave_when_the_sweep_is_killed_and_their_runs_are_saved(say: Say, place: Path, alone: Path) -> None:
    folder = place / "runs" / ARM_FOLDER / "seed-0"
    command = [sys.executable, "-c", MAIN, "sweep", *ARM, *OFTEN]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as sweep:
        until(lambda: is_saved(folder))
        process = maker(folder)
        assert process != sweep.pid
        sweep.kill()
    until(lambda: is_gone(process))
    assert not (folder / "result.json").exists()
    assert not (folder / ".lock").exists()
    last = int(sorted(folder.glob("checkpoints/step-*.safetensors"))[-1].stem.removeprefix("step-"))
    said = say("run", *ARM)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"resuming after step {last} of 50: ")
    assert outcome(folder) == outcome(alone / "seed-0")


# Processes that cannot work, in the place of Python


def worker_that(monkeypatch: pytest.MonkeyPatch, place: Path, does: str) -> None:
    script = place.parent / "worker.sh"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    monkeypatch.setattr("autorecall.commands.crew.sys.executable", str(script))


@pytest.mark.parametrize(("does", "how"), [("exit 3", "ended with code 3"), ("kill -9 $$", "was killed by signal 9")])
def test_a_run_whose_processes_die_again_and_again_is_given_up(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch, does: str, how: str
) -> None:
    worker_that(monkeypatch, place, f"echo begun >>{place}/begun; {does}")
    said = say("sweep", "mnist/naive", "--seeds", "2", "--jobs", "2")
    assert said.code == 1
    assert (place / "begun").read_text().count("begun") == 6  # each three times
    lines = said.err.splitlines()
    for seed in (0, 1):
        again = f"autorecall: the process that made runs/mnist/naive/seed-{seed} {how}; it is taken up again"
        assert lines[:-1].count(again) == 2
    why = f"its process {how} 3 times; is there enough memory?"
    assert re.fullmatch(rf"autorecall: 2 of 2 runs failed: .*/seed-0: {re.escape(why)} \(and 1 more\)", lines[-1])


def test_a_second_interrupt_leaves_at_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even if processes do not obey."""
    worker_that(monkeypatch, place, f"trap '' TERM; echo >{place}/begun; exec sleep 600")
    start, started = subprocess.Popen, list[subprocess.Popen[str]]()

    def noted(*words: object, **options: object) -> subprocess.Popen[str]:
        started.append(start(*words, **options))  # type: ignore[call-overload]
        return started[-1]

    def interrupt() -> None:
        until((place / "begun").exists)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)  # two signals at once would be one

    monkeypatch.setattr("autorecall.commands.crew.LEAVING", 0.2)
    monkeypatch.setattr("autorecall.commands.crew.subprocess.Popen", noted)
    with meanwhile(interrupt):
        assert cli.dispatch(["sweep", "mnist/naive"]) == 130
    assert "autorecall: leaving at once; " in capfd.readouterr().err
    (process,) = started
    assert process.wait(60) == -signal.SIGKILL
    assert process.stdin is not None
    process.stdin.close()
