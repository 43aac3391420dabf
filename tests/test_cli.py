"""The command line, from the words typed to the files, the words printed and the exit code."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from autorecall import cli
from autorecall.commands import run as run_command
from autorecall.config import from_json
from autorecall.data import Dataset, Split, load, mnist
from autorecall.learners import Learner
from autorecall.presets import PRESETS
from autorecall.schema import to_json

FILES = {"config.json", "history.csv", "result.json"}
MAIN = "from autorecall.cli import main; main()"


@dataclass(frozen=True)
class Said:
    """What a command did."""

    code: int
    out: str
    err: str


Say = Callable[..., Said]


@pytest.fixture(scope="session")
def few_digits() -> Dataset:
    """The embedded digits, cut to the first 20 training and 10 other images a class."""
    whole = load("mnist")

    def first(split: Split, each: int) -> Split:
        kept = np.sort(np.concatenate([np.flatnonzero(split.labels == label)[:each] for label in range(10)]))
        return Split(split.inputs[kept], split.labels[kept])

    return dataclasses.replace(
        whole, train=first(whole.train, 20), val=first(whole.val, 10), test=first(whole.test, 10)
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_digits: Dataset) -> Path:
    """An empty folder to work in, few digits, and no data or cache of this machine."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("AUTORECALL_DATA", raising=False)
    monkeypatch.setenv("AUTORECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(mnist, "load_embedded", lambda: few_digits)
    return work


@pytest.fixture
def say(place: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """Type a command line."""

    def typed(*words: str) -> Said:
        try:
            code = cli.dispatch(words)
        except SystemExit as end:  # how tyro ends after --help or a word it does not know
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return typed


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def read(path: Path) -> dict[str, object]:
    values: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return values


def result(folder: Path) -> dict[str, object]:
    values = read(folder / "result.json")
    del values["seconds"]
    return values


def refused(said: Said, *parts: str) -> None:
    """Exit code 2 and one sentence for a person, on stderr."""
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert said.err.startswith("autorecall: ")
    assert said.out.strip() == ""
    for part in parts:
        assert part in said.err


# Help, list, and words that are no command


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("help",)])
def test_help_names_the_commands(say: Say, words: tuple[str, ...]) -> None:
    said = say(*words)
    assert said.code == 0
    assert said.err == ""
    for command in ("run", "list", "show"):
        assert f"\n  {command} " in said.out


def test_no_command_at_all_prints_the_help_and_is_an_error(say: Say) -> None:
    assert say() == Said(2, cli.HELP, "")


def test_version(say: Say) -> None:
    assert re.fullmatch(r"autorecall \d+\.\d+\.\d+\n", say("--version").out)


@pytest.mark.parametrize("word", ["rum", "RUN", "", "--run", "run ", "mnist/arm"])
def test_an_unknown_command_is_refused(say: Say, word: str) -> None:
    refused(say(word), f"there is no command {word!r}; expected one of run, list, show")


def test_escape_codes_do_not_reach_the_terminal(say: Say) -> None:
    said = say("show", "no\x1b[2J\nwhere")
    refused(said, "where is no folder")
    assert "\x1b" not in said.err


def test_list_prints_the_presets_one_a_line(say: Say) -> None:
    assert say("list") == Said(0, "".join(f"{name}\n" for name in PRESETS), "")


@pytest.mark.parametrize("command", ["run", "list", "show"])
def test_every_command_explains_itself(say: Say, place: Path, command: str) -> None:
    said = say(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"usage: autorecall {command}" in said.out
    assert files(place) == set()


def test_the_help_of_a_preset_shows_the_options_of_its_learner(say: Say) -> None:
    assert "--learner.recall-rate" in say("run", "mnist/arm", "--help").out
    assert "--learner.recall-rate" not in say("run", "mnist/naive", "--help").out


# Runs


def test_run_alone_is_arm_on_the_embedded_digits(say: Say, place: Path) -> None:
    said = say("run")
    assert (said.code, said.err) == (0, "")
    folder = place / "runs" / "mnist" / "arm" / "seed-0"
    assert files(place) == {f"runs/mnist/arm/seed-0/{name}" for name in FILES | {"recalled.png"}}
    stored = read(folder / "config.json")
    assert stored.pop("preset") == "mnist/arm"
    assert from_json(stored) == PRESETS["mnist/arm"].config
    with Image.open(folder / "recalled.png") as picture:
        assert picture.size[0] > 400
    assert "(paper 56.3 ± 2.6)" in said.out
    assert "(paper 21.8 ± 1.6)" in said.out
    assert "478,410 parameters (1.91 MB)" in said.out
    assert [line for line in said.out.splitlines() if line.startswith("after task  5")]
    assert "runs/mnist/arm/seed-0/recalled.png" in said.out


@pytest.mark.parametrize("name", ["mnist/naive", "mnist/stationary", "mnist/lwf"])
def test_a_preset_writes_its_folder(say: Say, place: Path, name: str) -> None:
    said = say("run", name, "--out", "deep/er", "--seed", "3")
    assert (said.code, said.err) == (0, "")
    assert files(place) == {f"deep/er/{name}/seed-3/{file}" for file in FILES}
    assert read(place / "deep" / "er" / name / "seed-3" / "result.json")["seed"] == 3


def test_the_method_on_another_dataset_goes_to_that_datasets_folder(say: Say, place: Path) -> None:
    pictures(place / "photos")
    assert say("run", "mnist/naive", "--dataset", "folder", "--data", "photos").code == 0
    assert (place / "runs" / "folder" / "naive" / "seed-0" / "result.json").exists()


def test_options_change_single_fields_of_the_preset(say: Say, place: Path) -> None:
    words = ["--learner.steps", "2", "--learner.images=3", "--fraction", "0.5", "--split", "val"]
    said = say("run", "mnist/arm", *words, "--learner.lag.every", "2", "--network.hidden", "16", "8")
    assert said.code == 0
    stored = read(place / "runs" / "mnist" / "arm" / "seed-0" / "config.json")
    learner, network = stored["learner"], stored["network"]
    assert isinstance(learner, dict)
    assert isinstance(network, dict)
    assert (learner["steps"], learner["images"], stored["fraction"], stored["split"]) == (2, 3, 0.5, "val")
    assert (learner["lag"]["policy"], learner["lag"]["every"], network["hidden"]) == ("every", 2, [16, 8])
    assert learner["recall_rate"] == 25.0
    assert " % on val" in said.out


def test_a_stored_config_runs_again_with_the_same_result(say: Say, place: Path) -> None:
    assert say("run", "mnist/arm", "--learner.steps", "2", "--seed", "5", "--out", "first").code == 0
    first = place / "first" / "mnist" / "arm" / "seed-5"
    assert say("run", "--config", str(first / "config.json"), "--out", "second").code == 0
    assert say("run", f"--config={first / 'config.json'}", "--out=third").code == 0
    for name in ("second", "third"):
        again = place / name / "mnist" / "arm" / "seed-5"
        assert result(again) == result(first)
        for file in ("config.json", "history.csv", "recalled.png"):
            assert (again / file).read_bytes() == (first / file).read_bytes()


def test_options_change_a_stored_config_too(say: Say, place: Path) -> None:
    assert say("run", "mnist/naive", "--fraction", "0.5").code == 0
    stored = place / "runs" / "mnist" / "naive" / "seed-0" / "config.json"
    assert say("run", "--config", str(stored), "--seed", "1").code == 0
    changed = read(place / "runs" / "mnist" / "naive" / "seed-1" / "config.json")
    assert (changed["seed"], changed["fraction"]) == (1, 0.5)


# Runs that were finished before


def not_again(*_: object, **__: object) -> None:
    raise AssertionError("a finished run was run again")


def test_a_finished_run_is_shown_and_not_run_again(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = say("run", "mnist/naive")
    found = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    monkeypatch.setattr(run_command, "run", not_again)
    again = say("run", "mnist/naive")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("finished before: runs/mnist/naive/seed-0; --fresh runs it again\n")
    assert re.findall("average accuracy .*", again.out) == re.findall("average accuracy .*", first.out)
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == found


def test_a_finished_run_with_another_config_is_refused(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert say("run", "mnist/naive").code == 0
    found = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    monkeypatch.setattr(run_command, "run", not_again)
    said = say("run", "mnist/naive", "--learner.learning-rate", "0.1")
    refused(
        said,
        "holds a finished run that differs in learner.learning_rate (now 0.1, before 0.05)",
        "--fresh to move it aside",
    )
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == found


def test_fresh_moves_a_finished_run_aside(say: Say, place: Path) -> None:
    rates = ("0.05", "0.1", "0.2")
    for rate in rates:
        assert say("run", "mnist/naive", "--learner.learning-rate", rate, "--fresh").code == 0
    parent = place / "runs" / "mnist" / "naive"
    assert {path.name for path in parent.iterdir()} == {"seed-0", "seed-0.old-1", "seed-0.old-2"}
    for name, rate in zip(("seed-0.old-1", "seed-0.old-2", "seed-0"), rates, strict=True):
        learner = read(parent / name / "config.json")["learner"]
        assert isinstance(learner, dict)
        assert learner["learning_rate"] == float(rate)
        assert files(parent / name) == FILES


def test_a_run_that_was_cut_off_is_run_again(say: Say, place: Path) -> None:
    assert say("run", "mnist/naive").code == 0
    folder = place / "runs" / "mnist" / "naive" / "seed-0"
    found = result(folder)
    (folder / "result.json").unlink()
    (folder / "history.csv").write_text("step,task\n1,1\n")
    assert say("run", "mnist/naive").code == 0
    assert result(folder) == found
    assert (folder / "history.csv").read_text().count("\n") == 21


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_finished_run_with_a_damaged_file_is_refused(say: Say, place: Path, name: str) -> None:
    assert say("run", "mnist/naive").code == 0
    path = place / "runs" / "mnist" / "naive" / "seed-0" / name
    path.write_text("{")
    said = say("run", "mnist/naive")
    assert said.code == 2
    assert f"{name} is not valid JSON" in said.err


def test_a_run_that_diverges_exits_with_1_and_says_where(say: Say, place: Path) -> None:
    said = say("run", "mnist/naive", "--learner.learning-rate", "1e30")
    assert said.code == 1
    assert said.err.startswith("autorecall: stopped at step 2 (task 1): the loss on the real batch became ")
    assert said.err.count("\n") == 1
    folder = place / "runs" / "mnist" / "naive" / "seed-0"
    assert files(folder) == {"config.json", "history.csv", "stopped.json"}


def test_a_run_that_diverged_is_not_run_again_unless_told_to(say: Say, place: Path) -> None:
    words = ("run", "mnist/naive", "--learner.learning-rate", "1e30")
    assert say(*words).code == 1
    again = say(*words)
    assert again.code == 1
    assert "seed-0 holds a run that diverged: at step 2 (task 1) the loss on the real batch became" in again.err
    assert "--fresh runs it again" in again.err
    refused(say("run", "mnist/naive"), "holds a diverged run that differs in learner.learning_rate")
    assert say("run", "mnist/naive", "--fresh").code == 0
    assert (place / "runs" / "mnist" / "naive" / "seed-0.old-1" / "stopped.json").exists()


# Runs that are interrupted


def signalled(monkeypatch: pytest.MonkeyPatch, step: int, *numbers: signal.Signals) -> None:
    """Signals that come during a step."""
    observe, steps = Learner.observe, iter(range(1, 10_000))

    def observing(self: Learner, x: Tensor, y: Tensor) -> dict[str, float]:
        if next(steps) == step:
            for number in numbers:
                os.kill(os.getpid(), number)
        return observe(self, x, y)

    monkeypatch.setattr(Learner, "observe", observing)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_run_and_the_same_command_goes_on(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    assert say("run", "mnist/arm", "--out", "whole").code == 0
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patched:
        signalled(patched, 7, number)
        said = say("run", "mnist/arm")
    assert said.code == code
    assert said.err == "autorecall: interrupted at step 7 of 20; run the same command again to go on from step 7\n"
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    folder = place / "runs" / "mnist" / "arm" / "seed-0"
    assert not (folder / "result.json").exists()

    said = say("run", "mnist/arm")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("going on after step 7 of 20: runs/mnist/arm/seed-0\nafter task  2 ")
    whole = place / "whole" / "mnist" / "arm" / "seed-0"
    assert files(folder) == files(whole)
    assert result(folder) == result(whole)
    for name in ("history.csv", "recalled.png", "config.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_only_a_second_interrupt_leaves_at_once(
    say: Say, monkeypatch: pytest.MonkeyPatch, second: signal.Signals
) -> None:
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGTERM, second, second)
        said = say("run", "mnist/naive")
    assert said.code == 143
    assert said.err == "autorecall: interrupted at step 7 of 20; run the same command again to go on from step 7\n"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_is_ignored_stays_so(say: Say, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    found = signal.signal(number, signal.SIG_IGN)  # as nohup does
    try:
        with monkeypatch.context() as patched:
            signalled(patched, 7, number)
            assert say("run", "mnist/naive").code == 0
    finally:
        assert signal.signal(number, found) is signal.SIG_IGN


def test_a_fresh_run_that_is_interrupted_says_how_to_go_on(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGINT)
        said = say("run", "mnist/naive", "--fresh")
    advice = "run the same command without --fresh to go on from step 7"
    assert said == Said(130, said.out, f"autorecall: interrupted at step 7 of 20; {advice}\n")
    assert say("run", "mnist/naive").out.startswith("going on after step 7 of 20")


def test_signals_are_ignored_on_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process that is about to exit with the code of a signal."""
    code = """
import os, signal, sys
from autorecall import cli
cli.dispatch = lambda _: 143
class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
late = Late()
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "")


def test_a_second_interrupt_leaves_at_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGINT, signal.SIGINT)
        assert cli.dispatch(["run", "mnist/naive", "--checkpoint-seconds", "0"]) == 130
    line = "autorecall: leaving at once; what was learned since the last checkpoint will be learned again\n"
    assert capfd.readouterr().err == line  # past Python's own stderr, which may be in use at that moment
    assert signal.getsignal(signal.SIGINT) is handler
    assert cli.dispatch(["run", "mnist/naive"]) == 0
    assert "going on after step 6 of 20" in capfd.readouterr().out


def test_a_run_in_another_thread_leaves_signals_alone(say: Say) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(cli.dispatch(["run", "mnist/naive", "--threads", "1"])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_a_damaged_checkpoint_is_said_on_stderr(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGINT)
        assert say("run", "mnist/naive").code == 130
    last = sorted(place.rglob("step-*"))[-1]
    os.truncate(last, 100)
    said = say("run", "mnist/naive")
    assert said.code == 0
    assert said.err == f"autorecall: the checkpoint {last.relative_to(place)} is damaged and was passed over\n"
    assert said.out.startswith("going on after step 4 of 20")


def test_a_changed_config_of_an_interrupted_run_is_refused(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGTERM)
        assert say("run", "mnist/naive").code == 143
    refused(
        say("run", "mnist/naive", "--fraction", "0.5"), "unfinished run that differs in fraction (now 0.5, before 1"
    )
    said = say("run", "mnist/naive", "--fraction", "0.5", "--fresh")
    assert (said.code, said.out.startswith("after task  1 ")) == (0, True)
    assert list((place / "runs" / "mnist" / "naive" / "seed-0.old-1" / "checkpoints").iterdir())


@pytest.mark.parametrize("fresh", [(), ("--fresh",)])
def test_a_second_process_is_refused_with_the_id_of_the_first(say: Say, place: Path, fresh: tuple[str, ...]) -> None:
    folder = place / "runs" / "mnist" / "naive" / "seed-0"
    code = f"""
from pathlib import Path
from autorecall.lock import owned
with owned(Path({str(folder)!r})):
    print("mine", flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"mine\n"
        refused(say("run", "mnist/naive", *fresh), f"{folder.relative_to(place)} is in use by process {first.pid} on ")
        first.kill()
    assert (folder / ".lock").read_text().startswith(f"{first.pid} on ")  # left by the dead, and taken over
    assert say("run", "mnist/naive", *fresh).code == 0
    assert files(folder) == FILES


@pytest.mark.parametrize("left", [".lock", ".result.json.7.tmp", "checkpoints/step-000000004.safetensors"])
def test_what_a_finished_run_left_when_it_was_killed_is_removed(say: Say, place: Path, left: str) -> None:
    assert say("run", "mnist/naive").code == 0
    folder = place / "runs" / "mnist" / "naive" / "seed-0"
    (folder / left).parent.mkdir(exist_ok=True)
    (folder / left).write_text("")
    assert say("run", "mnist/naive").out.startswith("finished before")
    assert files(folder) == FILES
    assert not (folder / "checkpoints").exists()


def test_a_full_disk_exits_with_1_and_says_where_to_go_on(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files, which the system enforces as it does the size of a disk."""
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGTERM)
        assert say("run", "mnist/naive").code == 143
    size, limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit))
    try:
        said = say("run", "mnist/naive")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit))
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert re.search(
        r"cannot write .*: File too large; check the folder .*, then run again to go on from step 7", said.err
    )
    said = say("run", "mnist/naive")
    assert said.out.startswith("going on after step 7 of 20")
    assert said.code == 0


# Words that cannot work: one sentence, nothing written


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("nothing", "there is no preset 'nothing'; expected one of those that `autorecall list` prints"),
        ("mnist/ewc --seed 1", "there is no preset 'mnist/ewc'"),
        ("--learner.images 0", "learner.images is 0; expected 1 to 1,000,000"),
        ("--learner.steps -3", "learner.steps is -3; expected 1 to 1,000,000"),
        ("--learner.recall-rate -1", "learner.recall_rate is -1.0; expected a number above 0"),
        ("--learner.learning-rate 0", "learner.learning_rate is 0.0; expected a number above 0"),
        ("--learner.learning-rate nan", "learner.learning_rate is nan; expected a number above 0"),
        ("--learner.diversity inf", "learner.diversity is inf; expected a number of at least 0"),
        ("mnist/naive --learner.learning-rate -0.1", "learner.learning_rate is -0.1; expected a number above 0"),
        ("--stream.classes-per-task 11", "stream.classes_per_task is 11 but the data have 10 classes"),
        ("--stream.classes-per-task 0", "stream.classes_per_task is 0; expected 1 to 1,000,000"),
        ("--stream.class-pool 5 5", "stream.class_pool is (5, 5) but the classes have"),
        ("--stream.class-order 0 1", "stream.class_order is (0, 1); expected each of 0 to 9 once"),
        ("--fraction 0", "fraction is 0.0; expected a number above 0 and at most 1"),
        ("--fraction 2", "fraction is 2.0; expected a number above 0 and at most 1"),
        ("--fraction nan", "fraction is nan; expected a number above 0 and at most 1"),
        ("--threads 0", "threads is 0; expected 1 to 1024"),
        ("--seed -1", "seed is -1; expected a whole number from 0"),
        ("--device nonsense", "device is 'nonsense', which torch cannot use here"),
        ("--image-size 8", "image_size is 8 but mnist has a size of its own"),
        ("--network.hidden 0", "network.hidden is (0,); every width must be from 1 to 1,000,000"),
        ("cifar10/naive --data nowhere", "the folder nowhere does not exist"),
        ("miniimagenet/arm --data .", "miniimagenet is not in ."),
        ("cifar10/naive --dataset folder", "the dataset folder needs a folder"),
        ("cifar10/naive --dataset folder --data .", ". holds 0 class folders"),
        ("--config nowhere.json", "cannot read nowhere.json"),
        ("--config .", "cannot read ."),
        ("mnist/arm --config config.json", "both the preset 'mnist/arm' and --config are given"),
        ("--seed 1 mnist/ewc", "there is no preset 'mnist/ewc'"),
    ],
)
def test_impossible_settings_are_refused_and_nothing_is_written(
    say: Say, place: Path, words: str, sentence: str
) -> None:
    refused(say("run", *words.split()), sentence)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("run --nothing 3", "--nothing"),
        ("run mnist/naive --learner.steps 3", "--learner.steps"),
        ("run --seed 1.5", "--seed"),
        ("run --seed one", "--seed"),
        ("run --fraction half", "--fraction"),
        ("run --split train", "--split"),
        ("run --dataset cifar100", "--dataset"),
        ("run --seed", "--seed"),
        ("run --config", "--config"),
        ("run mnist/arm mnist/naive", "mnist/naive"),
        ("list all", "all"),
        ("show", "DIR"),
        ("show . --nothing", "--nothing"),
    ],
)
def test_words_of_the_wrong_kind_are_refused_and_nothing_is_written(
    say: Say, place: Path, words: str, option: str
) -> None:
    said = say(*words.split())
    assert said.code == 2
    assert option in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("out", ["file", "file/deeper"])
def test_a_file_in_the_way_of_out_is_refused(say: Say, place: Path, out: str) -> None:
    (place / "file").write_text("a file")
    refused(say("run", "mnist/naive", "--out", out), "cannot create the folder", "choose another")
    assert files(place) == {"file"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[]", "config.json holds a list; expected a JSON object"),
        ("{", "config.json is not valid JSON"),
        ("{}", "config.json has the preset None; expected a name such as mnist/arm"),
        ('{"preset": "arm"}', "config.json has the preset 'arm'; expected a name such as mnist/arm"),
        ('{"preset": "../../arm"}', "config.json has the preset '../../arm'; expected a name such as mnist/arm"),
        ('{"preset": "mnist/arm"}', "config.dataset is missing; add it"),
    ],
)
def test_a_config_file_that_is_none_is_refused(say: Say, place: Path, content: str, sentence: str) -> None:
    (place / "config.json").write_text(content)
    refused(say("run", "--config", "config.json"), sentence)
    assert files(place) == {"config.json"}


@pytest.mark.parametrize("depth", [100, 900, 980, 100_000])
@pytest.mark.parametrize("name", ["preset", "dataset", "stream", "learner", "seed", "unknown"])
def test_a_config_file_nested_deeply_is_refused_in_a_short_sentence(
    say: Say, place: Path, name: str, depth: int
) -> None:
    values = {"preset": "mnist/arm"} | to_json(PRESETS["mnist/arm"].config) | {name: "here"}
    (place / "config.json").write_text(json.dumps(values).replace('"here"', "[" * depth + "]" * depth))
    said = say("run", "--config", "config.json")
    refused(said, "config")
    assert len(said.err) < 300
    assert files(place) == {"config.json"}


def test_a_config_file_of_100_megabytes_is_refused_unread(say: Say, place: Path) -> None:
    (place / "config.json").touch()
    os.truncate(place / "config.json", 100 * 10**6)
    refused(say("run", "--config", "config.json"), "config.json is larger than 16 MiB")


# Your own images


def pictures(folder: Path, classes: int = 4, each: int = 10) -> None:
    """A colour a class, with noise."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 60, (10, 12, 3), dtype=np.uint8)
            pixels[..., label % 3] += 150
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{number:02}.png")


@pytest.mark.parametrize("name", ["cifar10/naive", "cifar10/arm"])
def test_a_folder_of_your_own_images_is_learned(say: Say, place: Path, name: str) -> None:
    pictures(place / "photos")
    words = ["--dataset", "folder", "--data", "photos", "--image-size", "8", "--threads", "1"]
    small = ["--network.channels", "2", "--stream.batch-size", "4", "--fraction", "0.5"]
    recall = ["--learner.images", "12", "--learner.steps", "2"] if name == "cifar10/arm" else []
    said = say("run", name, *words, *small, *recall)
    assert (said.code, said.err) == (0, "")
    folder = place / "runs" / "folder" / name.split("/")[1] / "seed-0"
    assert files(folder) == FILES | ({"recalled.png"} if recall else set())
    found = read(folder / "result.json")
    assert found["steps"] == 4  # of 16 training images a task, half, by fours
    matrix = found["accuracy_matrix"]
    assert isinstance(matrix, list)
    assert [len(row) for row in matrix] == [2, 2]


def test_a_finished_run_on_other_images_is_refused(say: Say, place: Path) -> None:
    pictures(place / "photos")
    pictures(place / "others", classes=5)
    small = "--dataset folder --image-size 8 --threads 1 --network.channels 2 --stream.batch-size 4 --fraction 0.5"
    words = ["run", "cifar10/naive", *small.split(), "--data"]
    assert say(*words, "photos").code == 0
    assert say(*words, "photos").out.startswith("finished before")
    refused(say(*words, "others"), "holds a finished run on other data; choose another --out, or --fresh")
    refused(say(*words, "nowhere"), "nowhere")
    said = say(*words[:-1])  # not named, and so not found
    assert (said.code, said.out.startswith("finished before")) == (0, True)


def test_the_data_option_may_be_given_with_the_embedded_digits_all_the_same(say: Say) -> None:
    assert say("run", "mnist/naive", "--data", "nowhere").code == 0


# The program itself


def program(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words], capture_output=True, text=True, cwd=cwd, env=environment
    )


def test_the_program_runs_a_preset_on_the_digits_it_carries(tmp_path: Path) -> None:
    done = program("run", "mnist/naive", "--fraction", "0.01", "--split", "val", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == {f"runs/mnist/naive/seed-0/{name}" for name in FILES}
    assert "average accuracy" in done.stdout


@pytest.mark.parametrize("words", [("nothing",), ("run", "nothing")])
def test_the_program_exits_with_2_and_a_sentence(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = program(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch("autorecall: there is no (command|preset) 'nothing'; expected .*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []


def without_reader(*words: str) -> tuple[int, str]:
    """The program with a reader that has gone away."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-u", "-c", MAIN, *words], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    return done.returncode, done.stderr


def test_a_run_goes_on_when_nobody_listens(tmp_path: Path) -> None:
    words = ("run", "mnist/naive", "--fraction", "0.01", "--split", "val", "--threads", "1", "--out", str(tmp_path))
    assert without_reader(*words) == (0, "")
    assert files(tmp_path) == {f"mnist/naive/seed-0/{name}" for name in FILES}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_run_goes_on_when_its_words_fill_the_disk(tmp_path: Path) -> None:
    words = ("run", "mnist/naive", "--fraction", "0.01", "--split", "val", "--threads", "1", "--out", str(tmp_path))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", MAIN, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (
        0,
        "autorecall: cannot print (No space left on device); the run goes on without\n",
    )
    assert files(tmp_path) == {f"mnist/naive/seed-0/{name}" for name in FILES}


def test_a_reader_that_goes_away_is_no_error() -> None:
    assert without_reader("list") == (0, "")


def test_an_interrupt_ends_quietly(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_list", interrupted)
    assert say("list") == Said(130, "", "")


# Less likely faults


def test_an_option_whose_value_is_the_name_of_a_preset_does_not_choose_it(say: Say, place: Path) -> None:
    assert say("run", "--fraction", "0.1", "--out", "mnist/naive").code == 0
    assert (place / "mnist" / "naive" / "mnist" / "arm" / "seed-0" / "result.json").exists()


def test_fresh_does_not_move_a_run_aside_for_one_that_is_refused(say: Say, place: Path) -> None:
    assert say("run", "mnist/naive").code == 0
    assert say("run", "mnist/naive", "--fresh", "--device", "nonsense").code == 2
    assert (place / "runs" / "mnist" / "naive" / "seed-0" / "result.json").exists()


def test_a_name_too_long_for_a_folder_is_refused(say: Say) -> None:
    refused(say("run", "mnist/naive", "--out", "a" * 300), "File name too long")


def test_a_picture_that_cannot_be_written_does_not_cost_the_result(say: Say, place: Path) -> None:
    folder = place / "runs" / "mnist" / "arm" / "seed-0"
    (folder / "recalled.png").mkdir(parents=True)
    (folder / ".lock").touch()  # of an earlier process: the folder is a run's
    said = say("run", "mnist/arm", "--fraction", "0.1")
    assert said.code == 0
    assert said.err.startswith("autorecall: the recalled images could not be shown (AutorecallError): cannot write ")
    assert said.err.count("\n") == 1
    assert (folder / "result.json").exists()


@pytest.mark.parametrize("name", ["mnist/\0", "mnist/\ud800", "mnist/..", "mnist/"])
def test_a_config_file_with_a_preset_that_names_no_folder_is_refused(say: Say, place: Path, name: str) -> None:
    assert say("run", "mnist/naive", "--out", "first").code == 0
    stored = read(place / "first" / "mnist" / "naive" / "seed-0" / "config.json")
    (place / "config.json").write_text(json.dumps(stored | {"preset": name}))
    refused(say("run", "--config", "config.json"), "expected a name such as mnist/arm")


def test_a_reader_that_goes_away_from_the_help_is_no_error() -> None:
    assert without_reader("--help") == (0, "")
