"""`autorecall run`: from the words typed to the files, the words printed and the exit code."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from autorecall import load
from autorecall.commands import run as run_command
from autorecall.data import mnist
from autorecall.presets import PRESETS
from autorecall.runs.folder import read_config
from autorecall.runs.loop import evaluate
from autorecall.storage.formats import FORMAT, stamped
from autorecall.storage.schema import to_json
from autorecall.stream import Stream

from .test_signals import signalled
from .worlds import FILES, Say, files, read, refused, result, times

NAIVE = Path("runs/mnist/naive/seed-0")  # relative to the working directory
STEP_4 = "checkpoints/step-000000004.safetensors"


# Runs


@pytest.mark.parametrize(("steps", "compared"), [(500, True), (499, False)])
def test_a_result_is_printed_beside_the_papers_if_all_images_were_learned(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, steps: int, compared: bool
) -> None:
    found = dataclasses.replace(result("mnist/arm", 0), steps=steps)
    run_command.print_result(Console(), PRESETS["mnist/arm"].config, found, tmp_path)
    out = capsys.readouterr().out
    assert ("(paper 56.3 ± 2.6)" in out, "(paper 21.8 ± 1.6)" in out) == (compared, compared)


def test_run_alone_is_arm_on_the_embedded_digits(say: Say, place: Path) -> None:
    said = say("run")
    assert (said.code, said.err) == (0, "")
    folder = place / "runs" / "mnist" / "arm" / "seed-0"
    assert files(place) == {f"runs/mnist/arm/seed-0/{name}" for name in FILES | {"recalled.png"}}
    assert read_config(folder / "config.json") == ("mnist/arm", PRESETS["mnist/arm"].config)
    with Image.open(folder / "recalled.png") as picture:
        assert picture.size[0] > 400
    assert "(paper" not in said.out  # these digits are fewer
    assert "478,410 parameters (1.91 MB)" in said.out
    assert [line for line in said.out.splitlines() if line.startswith("after task  5")]
    assert "runs/mnist/arm/seed-0/recalled.png" in said.out


@pytest.mark.parametrize("name", ["mnist/naive", "mnist/stationary", "mnist/lwf"])
def test_a_preset_writes_its_folder(say: Say, place: Path, name: str) -> None:
    said = say("run", name, "--out", "deep/er", "--seed", "3")
    assert (said.code, said.err) == (0, "")
    assert files(place) == {f"deep/er/{name}/seed-3/{file}" for file in FILES}
    assert read(place / "deep" / "er" / name / "seed-3" / "result.json")["seed"] == 3


def test_options_change_single_fields_of_the_preset(say: Say, place: Path) -> None:
    words = ["--learner.ascent-steps", "2", "--learner.recalled-images=3", "--fraction", "0.5", "--split", "val"]
    said = say("run", "mnist/arm", *words, "--learner.lag.every", "2", "--network.hidden", "16", "8")
    assert said.code == 0
    changed = "arm+hidden=16,8+recalled_images=3+ascent_steps=2+every=2+fraction=0.5+split=val"
    stored = read(place / "runs" / "mnist" / changed / "seed-0" / "config.json")
    expected = to_json(PRESETS["mnist/arm"].config) | {"preset": "mnist/arm", "format": FORMAT}
    learner, network = expected["learner"], expected["network"]
    assert isinstance(learner, dict)
    assert isinstance(network, dict)
    learner |= {"ascent_steps": 2, "recalled_images": 3, "lag": learner["lag"] | {"every": 2}}
    assert stored == expected | {"fraction": 0.5, "split": "val", "network": network | {"hidden": [16, 8]}}
    assert " % on val" in said.out


# Options and the preset, in any order


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ("--learner.replayed 5 mnist/er-50 --fraction 0.1", "runs/mnist/er-50+replayed=5+fraction=0.1"),
        ("--learner.replayed=5 --fraction 0.1 mnist/er-50 --threads 1", "runs/mnist/er-50+replayed=5+fraction=0.1"),
        (
            "--out mnist/naive --learner.replayed 5 mnist/er-50 --fraction 0.1",
            "mnist/naive/mnist/er-50+replayed=5+fraction=0.1",
        ),
    ],
)
def test_options_may_stand_before_the_preset(say: Say, place: Path, words: str, folder: str) -> None:
    said = say("run", *words.split())
    assert (said.code, said.err) == (0, "")
    preset, config = read_config(place / folder / "seed-0" / "config.json")
    assert (preset, config.fraction, to_json(config.learner)["replayed"]) == ("mnist/er-50", 0.1, 5)


@pytest.mark.parametrize("out", ["mnist/naive", "mnist/arm"])
@pytest.mark.parametrize("words", ["--out {} --fraction 0.1", "--fraction 0.1 --out={}"])
def test_a_folder_with_the_name_of_a_preset_does_not_choose_it(say: Say, place: Path, out: str, words: str) -> None:
    assert say("run", *words.format(out).split()).code == 0
    assert files(place) == {f"{out}/mnist/arm+fraction=0.1/seed-0/{name}" for name in FILES | {"recalled.png"}}


@pytest.mark.parametrize("words", ["{} --help", "--help {}", "--seed 1 {} --help", "--help --seed 1 {}"])
def test_the_help_of_a_preset_shows_the_options_of_its_learner(say: Say, place: Path, words: str) -> None:
    shown = {"mnist/arm": "--learner.recall-rate", "mnist/er-50": "--learner.replayed", "mnist/naive": ""}
    for name in shown:
        said = say("run", *words.format(name).split())
        assert (said.code, said.err) == (0, "")
        assert said.out.count("usage: autorecall run") == 1
        for other, option in shown.items():
            assert not option or (option in said.out) == (name == other)
    assert files(place) == set()


@pytest.mark.parametrize(
    "words", ["--out mnist/naive --help", "--help --out mnist/naive", "--out mnist/naive --fraction 0.5 -h"]
)
def test_the_help_is_not_that_of_a_folder_with_the_name_of_a_preset(say: Say, words: str) -> None:
    said = say("run", *words.split())
    assert (said.code, said.err) == (0, "")
    assert "--learner.recall-rate" in said.out  # of mnist/arm, the default


@pytest.mark.parametrize("words", ["--learner.recal 3 mnist/er-50", "--learner.recal mnist/er-50 --seed 1"])
def test_an_unknown_option_before_the_preset_is_compared_with_those_of_its_learner(say: Say, words: str) -> None:
    said = say("run", *words.split())
    assert (said.code, said.out) == (2, "")
    assert "--learner.recal" in said.err
    assert "--learner.recall-rate" not in said.err


# Stored configs


def test_a_stored_config_runs_again_with_the_same_result(say: Say, place: Path) -> None:
    assert say("run", "mnist/arm", "--learner.ascent-steps", "2", "--seed", "5", "--out", "first").code == 0
    first = place / "first" / "mnist" / "arm+ascent_steps=2" / "seed-5"
    assert say("run", "--config", str(first / "config.json"), "--out", "second").code == 0
    assert say("run", f"--config={first / 'config.json'}", "--out=third").code == 0
    for name in ("second", "third"):
        again = place / name / "mnist" / "arm+ascent_steps=2" / "seed-5"
        assert read(again / "result.json") == read(first / "result.json")
        for file in ("config.json", "history.csv", "recalled.png"):
            assert (again / file).read_bytes() == (first / file).read_bytes()


def test_options_change_a_stored_config_too(say: Say, place: Path) -> None:
    assert say("run", "mnist/naive", "--fraction", "0.5").code == 0
    folder = place / "runs" / "mnist" / "naive+fraction=0.5"
    assert say("run", "--config", str(folder / "seed-0" / "config.json"), "--seed", "1").code == 0
    changed = read(folder / "seed-1" / "config.json")
    assert (changed["seed"], changed["fraction"]) == (1, 0.5)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[]", "config.json holds a list; expected a JSON object"),
        ("{", "config.json is not valid JSON"),
        ("{}", "config.json: its preset is None; expected a name such as mnist/arm"),
        ('{"preset": "mnist/arm"}', "config.dataset is missing; add it"),
        (
            f'{{"format": {FORMAT + 1}}}',
            f"config.json: its format is {FORMAT + 1}, from a newer autorecall, and this one",
        ),
    ],
)
def test_a_config_file_that_is_none_is_refused(say: Say, place: Path, content: str, sentence: str) -> None:
    (place / "config.json").write_text(content)
    refused(say("run", "--config", "config.json"), sentence)
    assert files(place) == {"config.json"}


@pytest.mark.parametrize("name", ["arm", "mnist/", "mnist/..", "../../arm", "mnist/\0", "mnist/\ud800", "mnist/arm\n"])
def test_a_config_file_with_a_preset_that_names_no_folder_is_refused(say: Say, place: Path, name: str) -> None:
    stored = stamped({"preset": name} | to_json(PRESETS["mnist/naive"].config))
    (place / "config.json").write_text(json.dumps(stored))
    refused(say("run", "--config", "config.json"), "config.json: its preset is ", "; expected a name such as mnist/arm")
    assert files(place) == {"config.json"}


@pytest.mark.parametrize("words", ["mnist/arm --config {}", "--seed 1 mnist/arm --config {}", "--config {} mnist/arm"])
def test_a_preset_beside_a_stored_config_is_refused(say: Say, place: Path, words: str) -> None:
    stored = stamped({"preset": "mnist/naive"} | to_json(PRESETS["mnist/naive"].config))
    (place / "config.json").write_text(json.dumps(stored))
    said = say("run", *words.format("config.json").split())
    refused(said, "both the preset 'mnist/arm' and --config are given; expected one of them")
    assert files(place) == {"config.json"}


@pytest.mark.parametrize("depth", [100, 900, 980, 100_000])
@pytest.mark.parametrize("name", ["preset", "dataset", "stream", "learner", "seed", "format", "unknown"])
def test_a_config_file_nested_deeply_is_refused_in_a_short_sentence(
    say: Say, place: Path, name: str, depth: int
) -> None:
    values = stamped({"preset": "mnist/arm"} | to_json(PRESETS["mnist/arm"].config)) | {name: "here"}
    (place / "config.json").write_text(json.dumps(values).replace('"here"', "[" * depth + "]" * depth))
    said = say("run", "--config", "config.json")
    refused(said, "config")
    assert len(said.err) < 300
    assert files(place) == {"config.json"}


def test_a_config_file_of_100_megabytes_is_refused_unread(say: Say, place: Path) -> None:
    (place / "config.json").touch()
    os.truncate(place / "config.json", 100 * 10**6)
    refused(say("run", "--config", "config.json"), "config.json is larger than 64 MiB")


# Runs that were finished before


def not_again(*_: object, **__: object) -> None:
    raise AssertionError("a finished run was run again")


def test_a_finished_run_is_shown_and_not_run_again(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = say("run", "mnist/naive")
    found = times(place)
    monkeypatch.setattr(run_command, "run", not_again)
    again = say("run", "mnist/naive")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("already finished: runs/mnist/naive/seed-0; --fresh runs it again\n")
    assert re.findall("average accuracy .*", again.out) == re.findall("average accuracy .*", first.out) != []
    assert times(place) == found


def test_fresh_moves_a_finished_run_aside(say: Say, place: Path) -> None:
    often = (5.0, 10.0, 20.0)  # seconds, which tell the runs apart and do not make them others
    for seconds in often:
        assert say("run", "mnist/naive", "--checkpoint-seconds", str(seconds), "--fresh").code == 0
    parent = place / "runs" / "mnist" / "naive"
    assert {path.name for path in parent.iterdir()} == {"seed-0", "seed-0.old-1", "seed-0.old-2"}
    for name, seconds in zip(("seed-0.old-1", "seed-0.old-2", "seed-0"), often, strict=True):
        _, config = read_config(parent / name / "config.json")
        assert config.checkpoint_seconds == seconds
        assert files(parent / name) == FILES


def test_fresh_does_not_move_a_run_aside_for_one_that_is_refused(say: Say, place: Path) -> None:
    assert say("run", "mnist/naive").code == 0
    found = times(place)
    assert say("run", "mnist/naive", "--fresh", "--device", "nonsense").code == 2
    assert times(place) == found


def test_a_run_that_was_cut_off_is_run_again(say: Say) -> None:
    assert say("run", "mnist/naive").code == 0
    found = read(NAIVE / "result.json")
    (NAIVE / "result.json").unlink()
    (NAIVE / "history.csv").write_text("step,task\n1,1\n")
    assert say("run", "mnist/naive").code == 0
    assert read(NAIVE / "result.json") == found
    assert (NAIVE / "history.csv").read_text().count("\n") == 21


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_finished_run_with_a_damaged_file_is_refused(say: Say, name: str) -> None:
    assert say("run", "mnist/naive").code == 0
    (NAIVE / name).write_text("{")
    refused(say("run", "mnist/naive"), f"{name} is not valid JSON", "--fresh starts over")


def test_a_run_that_diverges_exits_with_1_and_is_not_run_again_unless_told_to(say: Say) -> None:
    words = ("run", "mnist/naive", "--learner.learning-rate", "1e30")
    said = say(*words)
    assert said.code == 1
    assert re.fullmatch(r"autorecall: stopped at step 2 \(task 1\): the loss on the real batch became .*\n", said.err)
    (folder,) = Path("runs/mnist").glob("naive+learning_rate=*/seed-0")
    assert files(folder) == {"config.json", "history.csv", "stopped.json"}
    again = say(*words)
    assert again.code == 1
    assert "seed-0 holds a run that diverged: at step 2 (task 1) the loss on the real batch became" in again.err
    assert "--fresh runs it again" in again.err
    assert say(*words, "--fresh").code == 1
    assert folder.with_name("seed-0.old-1").joinpath("stopped.json").exists()


@pytest.mark.parametrize("left", [".lock", ".result.json.7.tmp", ".learner.safetensors.7.tmp", STEP_4])
def test_what_a_finished_run_left_when_it_was_killed_is_removed(say: Say, left: str) -> None:
    assert say("run", "mnist/naive").code == 0
    (NAIVE / left).parent.mkdir(exist_ok=True)
    (NAIVE / left).write_text("")
    assert say("run", "mnist/naive").out.startswith("already finished")
    assert files(NAIVE) == FILES
    assert not (NAIVE / "checkpoints").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", "1e999"),
        ("images", "1" + "0" * 400),
        ("seed", "1" + "0" * 5000),
        ("split", '"[/x]"'),
        ("threads", '"' + "9" * 5000 + '"'),
    ],
)
def test_a_finished_run_with_an_absurd_result_is_refused(say: Say, name: str, value: str) -> None:
    assert say("run", "mnist/naive").code == 0
    text = (NAIVE / "result.json").read_text()
    (NAIVE / "result.json").write_text(re.sub(f'("{name}": )[^,\n]*', rf"\g<1>{value}", text))
    said = say("run", "mnist/naive")
    refused(said, "result", "--fresh starts over")
    assert len(said.err) < 900


# The learner at the end


def test_a_learner_is_kept_if_it_is_asked_for(say: Say, place: Path) -> None:
    assert say("run", "mnist/arm", "--keep-learner", "--threads", "1").code == 0
    folder = place / "runs" / "mnist" / "arm" / "seed-0"
    assert files(folder) == FILES | {"recalled.png", "learner.safetensors"}
    _, config = read_config(folder / "config.json")
    stream = Stream(mnist.load_embedded(), config.stream, seed=0)
    network = config.network.build((1, 28, 28), 10)
    learner = config.learner.for_stream(stream.task_lengths).build(network, 0)
    load(learner, folder / "learner.safetensors")
    accuracies = evaluate(learner, mnist.load_embedded().test, stream.tasks, over_images=False)
    matrix = read(folder / "result.json")["accuracy_matrix"]
    assert isinstance(matrix, list)
    assert accuracies == matrix[-1]
    found = times(place)
    assert say("run", "mnist/arm", "--keep-learner", "--threads", "1").out.startswith("already finished")
    assert say("run", "mnist/arm", "--threads", "1").out.startswith("already finished")
    assert times(place) == found


def test_a_finished_run_without_its_learner_is_refused_if_that_is_asked_for(say: Say, place: Path) -> None:
    assert say("run", "mnist/naive").code == 0
    found = times(place)
    sentence = f"{NAIVE} holds a finished run that did not keep its learner; --fresh runs it again"
    refused(say("run", "mnist/naive", "--keep-learner"), sentence)
    assert times(place) == found
    assert say("run", "mnist/naive", "--keep-learner", "--fresh").code == 0
    assert files(NAIVE) == FILES | {"learner.safetensors"}
    assert files(NAIVE.with_name("seed-0.old-1")) == FILES


# Folders of earlier versions, whose names did not say what differs from the preset

HALF = ("run", "mnist/naive", "--fraction", "0.5")


def put_as_before(place: Path) -> None:
    """The only run there is, where an earlier version would have put it."""
    (found,) = place.glob("runs/mnist/naive+*/seed-0")
    NAIVE.parent.mkdir()
    found.rename(NAIVE)
    found.parent.rmdir()


def test_a_finished_run_of_an_earlier_version_is_found(say: Say, place: Path) -> None:
    assert say(*HALF).code == 0
    put_as_before(place)
    found = times(place)
    said = say(*HALF)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"already finished: {NAIVE}; --fresh runs it again\n")
    difference = "holds a finished run that differs in fraction (now 1.0, before 0.5)"
    refused(say("run", "mnist/naive"), difference, "--fresh to move it aside")
    assert times(place) == found
    assert say(*HALF[:-1], "0.25").code == 0  # yet another has a folder of its own
    assert files(place / "runs" / "mnist" / "naive+fraction=0.25" / "seed-0") == FILES
    assert say(*HALF, "--seed", "1").code == 0
    assert files(place / "runs" / "mnist" / "naive+fraction=0.5" / "seed-1") == FILES
    assert read(NAIVE / "config.json")["fraction"] == 0.5


def test_an_interrupted_run_of_an_earlier_version_goes_on(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGTERM)
        assert say(*HALF).code == 143
    put_as_before(place)
    refused(say("run", "mnist/naive"), "unfinished run that differs in fraction (now 1.0, before 0.5)")
    said = say(*HALF)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"resuming after step 7 of 10: {NAIVE}\n")
    assert files(place) == {f"{NAIVE}/{name}" for name in FILES}


def test_a_diverged_run_of_an_earlier_version_is_not_run_again(say: Say, place: Path) -> None:
    words = ("run", "mnist/naive", "--learner.learning-rate", "1e30")
    assert say(*words).code == 1
    put_as_before(place)
    said = say(*words)
    assert (said.code, "holds a run that diverged: at step 2" in said.err) == (1, True)
    refused(say("run", "mnist/naive"), "holds a diverged run that differs in learner.learning_rate")
    assert say("run", "mnist/naive", "--fresh").code == 0
    assert NAIVE.with_name("seed-0.old-1").joinpath("stopped.json").exists()


# Names are printed as they are, and no escape codes


@pytest.mark.parametrize("out", ["[/red]", "[bold]x", ":smile:", "{task}", "%s", "$x$"])
def test_a_folder_with_markup_is_named_literally(say: Say, place: Path, out: str) -> None:
    for line in ("results           ", "already finished: "):
        said = say("run", "mnist/arm", "--out", out, "--fraction", "0.1")
        assert (said.code, said.err) == (0, "")
        assert f"{line}{out}/mnist/arm+fraction=0.1/seed-0" in said.out
        assert f"picture           {out}/mnist/arm+fraction=0.1/seed-0/recalled.png\n" in said.out
    assert (place / out / "mnist").is_dir()


ODD = ["a\x1b[2Jb", "a\nb", "a\u202eb", "a\u2028b", "a\x9bb", "a\udcffb"]


@pytest.mark.parametrize("odd", ODD)
def test_a_folder_with_escape_codes_is_used_and_named_without_them(say: Say, place: Path, odd: str) -> None:
    words = ("run", "mnist/naive", "--out", odd, "--threads")
    for begin in ("after task", "already finished: a\ufffd"):
        said = say(*words, "1")
        assert (said.code, said.err) == (0, "")
        assert said.out.startswith(begin)
        assert said.out.replace("\n", "").isprintable()
    assert (place / odd / "mnist").is_dir()
    refused(say(*words, "2"), "holds a finished run that differs in threads (now 2, before 1)")


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "words",
    ["--nothing {}", "{} {}", "mnist/arm {}", "--seed {}", "--{} 1", "--split {}", "--device {}", "--dataset {}", "{}"],
)
def test_words_with_escape_codes_are_refused_without_them(say: Say, place: Path, words: str, odd: str) -> None:
    said = say("run", *(word.format(odd) for word in words.split()))
    assert (said.code, said.out.strip()) == (2, "")
    assert said.err.replace("\n", "").isprintable()
    assert said.err
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("command", ["sweep", "reproduce", "show", "bench", "list"])
def test_words_with_escape_codes_are_refused_by_every_command(say: Say, command: str) -> None:
    for words in (("x\x1b[2J", "y"), ("--\x1b[2J",), ("--\u202ex", "y")):
        said = say(command, *words)
        assert (said.code, said.out) == (2, "")
        assert said.err.replace("\n", "").isprintable()


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("words", [["--help"], ["--nothing"], ["--device", "x", "--help"], []])
def test_a_stored_config_with_escape_codes_is_shown_without_them(
    say: Say, place: Path, words: list[str], odd: str
) -> None:
    stored = stamped({"preset": "mnist/naive"} | to_json(PRESETS["mnist/naive"].config) | {"device": odd})
    (place / "config.json").write_text(json.dumps(stored))
    said = say("run", "--config", "config.json", *words)
    assert said.code == (0 if "--help" in words else 2)
    printed = said.out + said.err
    assert printed.replace("\n", "").isprintable()
    assert printed.strip()


# Runs that were not finished


def test_a_damaged_checkpoint_is_said_on_stderr(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("run", "mnist/naive", "--checkpoint-seconds", "1e9")  # one at the end of a task alone
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGINT)
        assert say(*words).code == 130
    last = sorted(NAIVE.rglob("step-*"))[-1]
    os.truncate(last, 100)
    said = say(*words)
    assert said.code == 0
    assert said.err == f"autorecall: the checkpoint {last} is damaged and was skipped\n"
    assert said.out.startswith("resuming after step 4 of 20")


def test_a_changed_config_of_an_interrupted_run_is_refused(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGTERM)
        assert say("run", "mnist/naive", "--threads", "1").code == 143
    changed = ("run", "mnist/naive", "--threads", "2")
    refused(say(*changed), "unfinished run that differs in threads (now 2, before 1); resume with --threads 1, choose")
    said = say(*changed, "--fresh")
    assert (said.code, said.out.startswith("after task  1 ")) == (0, True)
    assert list(NAIVE.with_name("seed-0.old-1").joinpath("checkpoints").iterdir())


@pytest.mark.parametrize("fresh", [(), ("--fresh",)])
def test_a_second_process_is_refused_with_the_id_of_the_first(say: Say, place: Path, fresh: tuple[str, ...]) -> None:
    code = f"""
from pathlib import Path
from autorecall.runs.lock import locked
with locked(Path({str(place / NAIVE)!r})):
    print("mine", flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"mine\n"
        refused(say("run", "mnist/naive", *fresh), f"{NAIVE} is in use by process {first.pid} on ")
        first.kill()
    assert (NAIVE / ".lock").read_text().startswith(f"{first.pid} on ")  # left by the dead, and taken over
    assert say("run", "mnist/naive", *fresh).code == 0
    assert files(NAIVE) == FILES


def test_a_full_disk_exits_with_1_and_says_where_to_go_on(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
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
    sentence = r"autorecall: cannot write .*: File too large; .*, then run again to resume from step 7\n"
    assert re.fullmatch(sentence, said.err)
    said = say("run", "mnist/naive")
    assert (said.code, said.out.startswith("resuming after step 7 of 20")) == (0, True)


@pytest.mark.parametrize(("name", "what"), [("recalled.png", "recalled images"), ("curves.png", "curves")])
def test_a_picture_that_cannot_be_written_does_not_cost_the_result(say: Say, place: Path, name: str, what: str) -> None:
    folder = place / "runs" / "mnist" / "arm+fraction=0.1" / "seed-0"
    (folder / name).mkdir(parents=True)
    (folder / ".lock").touch()  # of an earlier process: the folder is a run's
    said = say("run", "mnist/arm", "--fraction", "0.1")
    assert said.code == 0
    assert said.err.startswith(f"autorecall: the {what} could not be shown (WriteError): cannot write ")
    assert said.err.count("\n") == 1
    assert (folder / "result.json").exists()


# Words that cannot work: one sentence, nothing written


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("nothing", "there is no preset 'nothing'; see `autorecall list`"),
        ("mnist/ewc --seed 1", "there is no preset 'mnist/ewc'"),
        ("--seed 1 mnist/ewc", "there is no preset 'mnist/ewc'"),
        ("--learner.recalled-images 0", "learner.recalled_images is 0; expected 1 to 1,000,000"),
        ("--learner.diversity inf", "learner.diversity is inf; expected a number of at least 0"),
        ("--learner.replayed -1 mnist/er-50", "learner.replayed is -1; expected 1 to 1,000,000"),
        ("mnist/naive --learner.learning-rate -0.1", "learner.learning_rate is -0.1; expected a number above 0"),
        ("--stream.classes-per-task 11", "stream.classes_per_task is 11 but the data have 10 classes"),
        ("--fraction nan", "fraction is nan; expected a number above 0 and at most 1"),
        ("--fraction 1e-400", "fraction is 0.0; expected a number above 0 and at most 1"),
        ("--fraction inf", "fraction is inf; expected a number above 0 and at most 1"),
        ("--threads 0", "threads is 0; expected 1 to 1024"),
        ("--threads 1000000000", "threads is 1000000000; expected 1 to 1024"),
        (f"--threads {10**400}", "; expected 1 to 1024"),
        (f"--seed {10**400}", "; expected a whole number from 0"),
        ("--checkpoint-seconds nan", "checkpoint_seconds is nan; expected a number of at least 0"),
        ("--checkpoint-seconds inf", "checkpoint_seconds is inf; expected a number of at least 0"),
        ("--checkpoint-seconds -1", "checkpoint_seconds is -1.0; expected a number of at least 0"),
        (f"--stream.class-pool {10**18} {'9 ' * 9}", "stream.class_pool is (1000000000000000000, 9"),
        (f"--stream.class-pool {'9 ' * 9} {10**400}", "; expected 20,000,000 images at most"),
        (f"--stream.class-order 1 {10**400}", "stream.class_order is (1, 1000"),
        (f"--stream.order-seed {10**400}", "; expected a whole number from 0 to 2**63 - 1"),
        (f"--stream.batch-size {10**400}", "; expected 1 to 1,000,000"),
        (f"--dataset folder --image-size {10**400}", "; expected 1 to 1024"),
        (f"--network.hidden {10**9}", "every width must be from 1 to 1,000,000"),
        (f"--network.hidden {10**400}", "every width must be from 1 to 1,000,000"),
        ("--seed -1", "seed is -1; expected a whole number from 0"),
        ("--device nonsense", "device is 'nonsense', which torch cannot use here"),
        ("--image-size 8", "image_size is 8 but mnist has a size of its own"),
        ("--network.hidden 0", "network.hidden is (0,); every width must be from 1 to 1,000,000"),
        ("--dataset cifar100", "dataset is 'cifar100'; expected one of mnist, mnist-full, fashion-mnist, cifar10"),
        ("--dataset arrays", "dataset is 'arrays', which only Python can give; use --dataset folder for your own"),
        ("mnist/naive --dataset arrays --fresh", "dataset is 'arrays', which only Python can give"),
        ("cifar10/naive --data nowhere", "the folder nowhere does not exist"),
        ("miniimagenet/arm --data .", "miniimagenet is not in ."),
        ("cifar10/naive --dataset folder", "the dataset folder needs a folder"),
        ("cifar10/naive --dataset folder --data .", ". holds 0 class folders"),
        ("--config nowhere.json", "cannot read nowhere.json"),
        ("--config .", ". is a folder, not a regular file"),
        (f"mnist/naive --out {'a' * 300}", "File name too long"),
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
        ("--nothing 3", "--nothing"),
        ("mnist/naive --learner.repeats 3", "--learner.repeats"),
        ("--learner.replayed 5 mnist/naive", "--learner.replayed"),
        ("--seed 1.5", "--seed"),
        ("--seed one", "--seed"),
        ("--seed one mnist/naive", "--seed"),
        ("--seed 1" + "0" * 5000, "--seed"),
        ("--fraction half", "--fraction"),
        ("--split train", "--split"),
        ("--seed", "--seed"),
        ("--config", "--config"),
        ("mnist/arm mnist/naive", "mnist/naive"),
        ("--seed 1 mnist/arm mnist/naive", "mnist/naive"),
    ],
)
def test_words_of_the_wrong_kind_are_refused_and_nothing_is_written(
    say: Say, place: Path, words: str, option: str
) -> None:
    said = say("run", *words.split())
    assert (said.code, said.out) == (2, "")
    assert option in said.err
    assert said.err.count("For full helptext") == 1  # said once, however often it was tried
    assert "Traceback" not in said.err
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize("out", ["file", "file/deeper", "link"])
def test_what_is_in_the_way_of_out_is_refused(say: Say, place: Path, command: str, out: str) -> None:
    (place / "file").write_text("a file")
    (place / "link").symlink_to("nowhere")
    way = f"{out.split('/')[0]} is in the way of a run's folder; choose another --out, or move it aside"
    refused(say(command, "mnist/naive", "--out", out), way)
    assert files(place) == {"file", "link"}


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_result_of_another_program_is_somebody_s_work(say: Say, place: Path, command: str) -> None:
    folder = place / NAIVE
    folder.mkdir(parents=True)
    (folder / "result.json").write_text('{"theirs": 1}')
    refused(
        say(command, "mnist/naive"), f"{NAIVE} holds other files and no run of autorecall; choose a new or an empty"
    )
    assert files(place) == {f"{NAIVE}/result.json"}


# Your own images


def pictures(folder: Path, classes: int = 4, each: int = 10) -> None:
    """One colour per class, with noise."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 60, (10, 12, 3), dtype=np.uint8)
            pixels[..., label % 3] += 150
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{number:02}.png")


SMALL = "--dataset folder --image-size 8 --threads 1 --network.channels 2 --stream.batch-size 4 --fraction 0.5"


@pytest.mark.parametrize("name", ["cifar10/naive", "cifar10/arm"])
def test_a_folder_of_your_own_images_is_learned(say: Say, place: Path, name: str) -> None:
    pictures(place / "photos")
    recall = ["--learner.recalled-images", "12", "--learner.ascent-steps", "2"] if name == "cifar10/arm" else []
    said = say("run", name, *SMALL.split(), "--data", "photos", *recall, "--pictures")
    assert (said.code, said.err) == (0, "")
    (folder,) = (place / "runs" / "folder").glob(f"{name.split('/')[1]}+*/seed-0")  # by the dataset that was learned
    assert files(folder) == FILES | {"learner.safetensors"} | ({"recalled.png"} if recall else set())
    found = read(folder / "result.json")
    assert found["steps"] == 4  # of 16 training images per task, half, by fours
    matrix = found["accuracy_matrix"]
    assert isinstance(matrix, list)
    assert [len(row) for row in matrix] == [2, 2]


def test_a_finished_run_on_other_images_is_refused(say: Say, place: Path) -> None:
    pictures(place / "photos")
    pictures(place / "others", classes=5)
    words = ["run", "cifar10/naive", *SMALL.split()]
    assert say(*words, "--data", "photos").code == 0
    assert say(*words, "--data", "photos").out.startswith("already finished")
    said = say(*words, "--data", "others")
    refused(said, "holds a finished run on other data; choose another --out, or --fresh")
    refused(say(*words, "--data", "nowhere"), "nowhere")
    said = say(*words)  # not named, and so not found
    assert (said.code, said.out.startswith("already finished")) == (0, True)


def test_the_data_option_may_be_given_with_the_embedded_digits_all_the_same(say: Say) -> None:
    assert say("run", "mnist/naive", "--data", "nowhere").code == 0
