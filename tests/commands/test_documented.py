"""What README and docs tell people to type works: Python blocks run in order, page by page, and so do commands.

Every block is found by itself. A new one runs with the names and files of `world` below; one that cannot run here is
named with its reason in SHOWN or PARSED, where a command must still be one that the real parser takes.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from autorecall import PRESETS, Naive, NaiveConfig, run
from autorecall.cli import COMMANDS
from autorecall.data import Dataset

from .worlds import Say

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# Parts of Python blocks, and of lines that are not commands of ours, that are shown and not run.
SHOWN = {
    "git clone": "there is nothing to clone from here",
    r"^tensorboard |integrations\.tensorboard": "an extra; `make test-tensorboard` has it",
    r"integrations\.avalanche|as_strategy": "an extra; `make test-avalanche` has it",
    r"integrations\.mammoth|main\.py --model": "Mammoth is no package; test_mammoth.py has its interface",
    "ray start": "needs Ray; `make test-ray` starts a cluster",
    "^oldest/bin/|^python3.11 -m venv|pip install": "tests install nothing",
}
# Commands that are not run, but taken by the parser.
PARSED = {
    r"^bench": "measures for minutes",
    r"^export": "onnx is an extra; `make test-onnx` runs it",
    r"^sweep": "many runs in processes of their own; tests/commands/test_sweep.py has some",
    r"^run --data '~/photos'": "the run on monday has its folder",
    r"--tensorboard": "tensorboard is an extra; `make test-tensorboard` runs it",
    r"--network mine:": "tests/commands/test_own_classes.py runs them",
    r"^reproduce": "takes hours, and --list some seconds; tests/commands/test_reproduce.py has small ones",
    r"^run (?:cifar10|miniimagenet)/(?!.*--dataset)": "wants data that do not come with the package",
    r"(?:^|\s)(?:[A-Z]{2,}(?:[:/].*)?|…)(?:\s|$)": "has a word to be replaced",
}
STOPS = {"run": "run_folder", "sweep": "make", "reproduce": "Place"}  # what a command uses once all its words are taken
Type = Callable[[str, bool], None]
Save = Callable[[str, str], None]
SHELL = ("", "bash", "sh", "shell")


@dataclass(frozen=True)
class Block:
    """A block of code in a page."""

    line: int
    language: str
    text: str

    def commands(self) -> Iterator[str]:
        """Its lines that are typed, without comments; a backslash joins two."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if self.language == "console":
                typed = line.removeprefix("$ ") if line.startswith("$ ") else ""
            elif self.language == "indented":
                typed = line if re.match(r"(?:\.venv/bin/)?(?:autorecall|make|python) ", line) else ""
            else:
                typed = line if self.language in SHELL else ""
            words = shlex.split(typed, comments=True)
            if words:
                yield shlex.join(words)


def blocks(page: Path) -> Iterator[Block]:
    """Fenced and indented blocks, from top to bottom."""
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"( *)(```+|~~~+) *(\w*)", lines[number])
        if fence:
            end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == fence[2])
            text = "\n".join(line.removeprefix(fence[1]) for line in lines[number + 1 : end])
            yield Block(number + 1, fence[3], text)
            number = end + 1
        elif lines[number].startswith("    ") and not lines[number - 1].strip():
            yield Block(number + 1, "indented", lines[number].strip())
            number += 1
        else:
            number += 1


class Parsed(BaseException):
    """The words of a command were taken; it would begin now."""


@pytest.fixture(scope="session")
def finished(few_digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "seed-0"
    run("mnist/arm", replace(PRESETS["mnist/arm"].config, curve_points=0), few_digits, folder)
    return folder


@pytest.fixture
def world(place: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The files that commands name, and the names that Python blocks use without having made them."""
    monkeypatch.setenv("HOME", str(place))
    shutil.copytree(finished, place / "runs" / "mnist" / "arm" / "seed-0")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 28, 28), np.uint8)
    Image.fromarray(pixels[0]).save("photo.png")
    for folder in (
        *(f"photos/{name}" for name in ("cat", "cow", "dog", "owl")),
        *(f"monday/{part}/{name}" for part in ("train", "test") for name in ("cat", "dog")),
        *("tuesday/cat", "tuesday/owl"),
        *("folder-of-images", "FOLDER/cat", "FOLDER/dog"),
    ):
        Path(folder).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(pixels[number]).save(f"{folder}/{number}.png")
    np.savez("arrays.npz", x=pixels, y=np.arange(40) % 4)
    x, y = torch.rand(10, 3, 32, 32), torch.arange(10)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    learner = Naive(network, NaiveConfig())
    learner.observe(x, y)
    return {
        "network": network,
        "learner": learner,
        "x": x,
        "y": y,
        "x_test": x,
        "y_test": y,
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.1),
        "my_loss": nn.functional.cross_entropy,
        "loader": [(x, y)],
        "batches": [(x, y)],
        "stream": [(x, y)],
        "train": TensorDataset(x, y),
        "test": TensorDataset(x, y),
        "folder": Path("own"),
    }


@pytest.fixture
def typed(say: Say, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Type a command of a page: run it, or, where that is not to be, make sure that it could begin."""

    def type_in(command: str, only_parse: bool) -> None:
        program, name, *words = shlex.split(command)
        words = words[: words.index(">")] if ">" in words else words  # the rest is the shell's
        assert program.removeprefix(".venv/bin/") == "autorecall"
        assert name in COMMANDS
        words = [word.replace("~", str(Path.home()), 1) if word.startswith("~") else word for word in words]
        if not only_parse:
            said = say(name, *words)
            assert said.code == 0, f"{command}: {said.err}"
            return
        with monkeypatch.context() as patch, suppress(Parsed):
            stop_after_parsing(name, patch)
            said = say(name, *words)
            assert said.code == 0, f"{command}: {said.err}"  # 0 after --help

    return type_in


@pytest.fixture
def save_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Save]:
    """Save a block that begins with the name of a module, which is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    saved: list[str] = []

    def save(name: str, text: str) -> None:
        saved.append(name)
        sys.modules.pop(name, None)
        Path(f"{name}.py").write_text(text, encoding="utf-8")

    yield save
    for name in saved:
        sys.modules.pop(name, None)


def stop_after_parsing(name: str, patch: pytest.MonkeyPatch) -> None:
    """Have a command end when it has taken all its words."""
    real = tyro.cli

    def begin(*args: object, **kwargs: object) -> None:
        raise Parsed

    def take(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)  # type: ignore[call-overload]
        raise Parsed

    patch.setattr("autorecall.integrations.ray.answering", lambda _: None)  # as if there were one
    if name in STOPS:
        patch.setattr(import_module(f"autorecall.commands.{name}"), STOPS[name], begin)
    else:
        patch.setattr(tyro, "cli", take)


def reason(table: dict[str, str], text: str) -> str | None:
    """Why it is not run."""
    return next((why for pattern, why in table.items() if re.search(pattern, text)), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page: Path, world: dict[str, object], typed: Type, save_module: Save) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for block in blocks(page):
        if block.language == "python" and reason(SHOWN, block.text) is None:
            module = re.match(r"# (\w+)\.py\n", block.text)
            if module:
                save_module(module[1], block.text)
            # As many empty lines as there are before it, so that a traceback names the line of the page.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), world)
        for command in block.commands():
            words = command.removeprefix(".venv/bin/").split()
            if words[0] == "autorecall":
                typed(command, reason(PARSED, " ".join(words[1:])) is not None)
            elif words[0] == "make":
                assert words[1] in targets, command
            elif words[0] == "python" and reason(SHOWN, command) is None:
                assert (ROOT / words[1]).exists(), command
            else:
                assert reason(SHOWN, command), f"{page.name}:{block.line}: run {command}, or say in SHOWN why not"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_within_sentences_are_taken_by_the_parser(page: Path, world: dict[str, object], typed: Type) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for found in re.findall(r"`(autorecall [^`]+)`", text):
        _, name, *words = found.split()
        assert name in COMMANDS or name.startswith("-") or name.isupper(), found
        if words and reason({list(PARSED)[-1]: ""}, " ".join(words)) is None:
            typed(" ".join(["autorecall", name, *words]), True)
