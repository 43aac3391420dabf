"""The program: which command is meant, what an error becomes, and what it does when nobody listens."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import pytest

from autorecall import cli
from autorecall.commands.words import chosen_from

from .worlds import FILES, Said, Say, files, program, refused, without_reader

SHORT = ["run", "mnist/naive", "--fraction", "0.01", "--split", "val", "--threads", "1"]
FOLDER = "mnist/naive+fraction=0.01+split=val/seed-0"  # of its results


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_names_the_commands(say: Say, word: str) -> None:
    assert say(word) == Said(0, cli.HELP, "")
    assert {"run", "sweep", "list", "show", "bench"} <= set(cli.COMMANDS)
    for command in cli.COMMANDS:
        assert f"\n  {command} " in cli.HELP


def test_no_command_at_all_prints_the_help_and_is_an_error(say: Say) -> None:
    assert say() == Said(2, cli.HELP, "")


def test_version(say: Say) -> None:
    assert re.fullmatch(r"autorecall \d+\.\d+\.\d+\n", say("--version").out)


@pytest.mark.parametrize("word", ["rum", "RUN", "", "--run", "run ", "mnist/arm", "signals"])
def test_an_unknown_command_is_refused(say: Say, word: str) -> None:
    refused(say(word), f"there is no command {word!r}; expected one of {', '.join(cli.COMMANDS)}")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself(say: Say, place: Path, command: str) -> None:
    said = say(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"usage: autorecall {command}" in said.out
    assert files(place) == set()


@dataclass
class Options:
    """What it is for.

    autorecall one
    autorecall two
    """

    number: int = 1
    """A sentence that goes on
    (without a break)."""


def test_help_keeps_sentences_in_one_piece_and_examples_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chosen_from(Options, "autorecall", ["--help"])
    printed = capsys.readouterr().out
    assert "A sentence that goes on (without a break)." in printed
    assert "\n  autorecall one\n  autorecall two\n" in printed


def test_escape_codes_do_not_reach_the_terminal(say: Say) -> None:
    said = say("show", "no\x1b[2J\nwhere")
    refused(said, "where is not a folder")
    assert "\x1b" not in said.err


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
        (MemoryError(), 1, "autorecall: this needs more memory than the machine has; .*\n"),
        (RuntimeError("can't allocate memory"), 1, "autorecall: this needs more memory than the machine has; .*\n"),
        (OSError(5, "Input/output error", "x"), 2, "autorecall: x: Input/output error; check the path and .*\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_becomes_an_exit_code_and_a_sentence_or_none(
    say: Say, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, sentence: str
) -> None:
    def failing(_: list[str]) -> None:
        raise error

    monkeypatch.setattr("autorecall.commands.list.main", failing)
    said = say("list")
    assert (said.code, said.out) == (code, "")
    assert re.fullmatch(sentence, said.err)


def test_an_error_of_ours_is_not_hidden(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: list[str]) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("autorecall.commands.list.main", failing)
    with pytest.raises(RuntimeError, match="a bug"):
        say("list")


# As a process of its own


def test_the_program_runs_a_preset_on_a_terminal_that_knows_ascii_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = program(*SHORT, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == {f"runs/{FOLDER}/{name}" for name in FILES}
    assert "average accuracy" in done.stdout
    assert done.stdout.isascii()


def test_the_program_exits_with_2_and_a_sentence(tmp_path: Path) -> None:
    done = program("run", "nothing", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch("autorecall: there is no preset 'nothing'; see .*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error() -> None:
    assert without_reader("list") == (0, "")


def test_a_run_goes_on_when_nobody_listens(tmp_path: Path) -> None:
    assert without_reader(*SHORT, "--out", str(tmp_path)) == (0, "")
    assert files(tmp_path) == {f"{FOLDER}/{name}" for name in FILES}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_run_goes_on_when_its_words_fill_the_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch, Path("/dev/full").open("wb", buffering=0) as full:
        patch.setattr(sys, "stdout", TextIOWrapper(full, write_through=True))
        code = cli.dispatch([*SHORT, "--out", str(tmp_path)])
    sentence = "autorecall: cannot print (No space left on device); the run continues without output\n"
    assert (code, capsys.readouterr().err) == (0, sentence)
    assert files(tmp_path) == {f"{FOLDER}/{name}" for name in FILES}
