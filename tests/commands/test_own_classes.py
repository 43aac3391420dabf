"""Networks and learners of a user's own, by module:name; and files that name them, which never import anything."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

from autorecall import PRESETS, ConfigError, MLPConfig, load_model
from autorecall.commands import many, worker
from autorecall.commands.crew import Progress
from autorecall.commands.signals import Stop
from autorecall.commands.source import Source
from autorecall.commands.worker import Job, do, read_job, write_job
from autorecall.data import Dataset
from autorecall.runs.folder import read_config
from autorecall.runs.run import run
from autorecall.storage.extensible import NotImported
from autorecall.storage.state_file import read_state, write_state

from .worlds import FILES, Say, files, read, refused, times

DOCS = (Path(__file__).parents[2] / "docs" / "how-to.md").read_text(encoding="utf-8")
SECTION = DOCS.split("## Your own network and learner from the command line\n")[1].split("\n## ")[0]
MINE = re.findall("```python\n(.*?)```", SECTION, re.DOTALL)[0]
COMMANDS = re.findall("```\n(autorecall .*?)```", SECTION, re.DOTALL)[0].splitlines()
QUICK = ["--curve-points", "0", "--threads", "1"]
MODULES = """
class Net(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.inner = build(input_shape, classes)

    def forward(self, x):
        return self.inner(x)
"""
WRONG = """
from dataclasses import dataclass, field
from pathlib import Path
from torch import nn
from autorecall import LearnerConfig, NetworkConfig

number = 3

def nothing(input_shape, classes):
    return None

def fails(input_shape, classes):
    return 1 / 0

def leaves(input_shape, classes):
    raise SystemExit(0)

def five(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 5))

def twelve(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 12))

class Bare(NetworkConfig):
    width: int = 3

    def build(self, input_shape, classes):
        return five(input_shape, classes)

@dataclass(frozen=True)
class Alone:
    def build(self, input_shape, classes):
        return five(input_shape, classes)

@dataclass(frozen=True)
class Half(NetworkConfig):
    pass

@dataclass(frozen=True)
class Needy(Bare):
    depth: int = field(kw_only=True)

@dataclass(frozen=True)
class Odd(Bare):
    place: Path = Path("x")

@dataclass(frozen=True)
class Either(Bare):
    share: int | float = 1

@dataclass(frozen=True)
class Picky(Bare):
    depth: int = 1

    def __post_init__(self):
        assert self.depth > 0, "too shallow"

@dataclass(frozen=True)
class Tagged(LearnerConfig):
    method: str = "mine"

    def build(self, network, seed):
        return network

@dataclass(frozen=True)
class NoLearner(LearnerConfig):
    def build(self, network, seed):
        return network
"""


@pytest.fixture
def mine(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module of the docs, in the current folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (place / "mine.py").write_text(MINE + MODULES)
    (place / "wrong.py").write_text(WRONG)
    (place / "broken.py").write_text("import nowhere_to_be_found\n")
    (place / "unfinished.py").write_text("def build(:\n")
    yield place
    for name in ("mine", "wrong"):
        sys.modules.pop(name, None)


class HereCrew:
    """Makes runs in this process, from the lines that workers get."""

    def __init__(self, jobs: Sequence[Job], workers: int, told: Callable[[Progress, str], None]) -> None:
        self.all = [Progress(job) for job in jobs]

    def work(self, stop: Callable[[], bool]) -> None:
        for progress in self.all:
            line = write_job(progress.job)
            sys.modules.pop("mine", None)  # as in a process of its own
            do(read_job(line), lambda event, progress=progress: progress.hear(event), Stop())  # type: ignore[misc]


def image(place: Path, digits: Dataset) -> str:
    Image.fromarray(digits.test.inputs[0][0]).save(place / "photo.png")
    return "photo.png"


def test_the_example_of_the_docs_works_as_it_stands(
    say: Say, mine: Path, few_digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "Crew", HereCrew)
    monkeypatch.setattr(many, "_fingerprint", Source.fingerprint)  # these digits are few, and not to be remembered
    monkeypatch.setattr(worker, "_loaded", Source.load)
    image(mine, few_digits)
    (mine / "mine.py").write_text(MINE)
    for line in COMMANDS:
        _, command, *words = line.split()
        said = say(command, *words, *(QUICK if command in ("run", "sweep") else []))
        assert (said.code, said.err) == (0, ""), line
        if command == "show":
            assert "network=mine:build" in said.out
    assert re.match(r"photo.png: \d \d+\.\d %\n", said.out)
    assert {path.name for path in (mine / "runs" / "mnist").iterdir()} == {
        "arm+network=mine.build",
        "naive+network=mine.Wide+width=100",
        "naive+network=mine.Wide+width=200",
        "naive+network=mine.Wide+width=200+learner=mine.Smooth+rate=0.1+smoothing=0.1",
    }
    assert len(list(mine.glob("runs/mnist/*/seed-*/result.json"))) == 2 + 6


def test_a_torch_module_class_is_a_network_and_a_finished_run_is_found_again(say: Say, mine: Path) -> None:
    words = ["run", "mnist/naive", "--network", "mine:Net", *QUICK]
    assert say(*words).code == 0
    folder = mine / "runs" / "mnist" / "naive+network=mine.Net" / "seed-0"
    assert files(folder) == FILES
    assert read(folder / "config.json")["network"] == {"kind": "mine:Net"}
    before = times(folder)
    assert "already finished" in say(*words).out
    assert "already finished" in say("run", "--config", str(folder / "config.json"), "--network", "mine:Net").out
    assert times(folder) == before


def test_an_interrupted_run_resumes_as_if_nothing_had_happened(say: Say, mine: Path, few_digits: Dataset) -> None:
    words = ["run", "mnist/naive", "--network=mine:build", "--learner=mine:Smooth", *QUICK]
    assert say(*words).code == 0
    folder = next((mine / "runs" / "mnist").iterdir()) / "seed-0"
    whole = (folder / "history.csv").read_bytes(), read(folder / "result.json")
    _, config = read_config(folder / "config.json")
    shutil.rmtree(folder)
    answers = iter([False] * 7 + [True])
    with pytest.raises(Exception, match="interrupted"):
        run("mnist/naive", config, few_digits, folder, stop=answers.__next__)
    said = say(*words)
    assert re.search(r"resuming after step \d of 20", said.out)
    assert ((folder / "history.csv").read_bytes(), read(folder / "result.json")) == whole


def test_a_run_goes_on_another_day_if_both_of_its_classes_are_named(say: Say, mine: Path, few_digits: Dataset) -> None:
    assert say("run", "mnist/naive", "--network=mine:Wide", "--learner=mine:Smooth", *QUICK).code == 0
    folder = next((mine / "runs" / "mnist").iterdir()) / "seed-0"
    for number, picture in enumerate(few_digits.train.inputs[:10]):
        place = mine / "tuesday" / "eleven"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture[0]).save(place / f"{number}.png")
    said = say("learn", str(folder), "--data", "tuesday", "--network", "mine:Wide", "--learner", "mine:Smooth")
    assert (said.code, said.err) == (0, "")
    model = load_model(f"{folder}+tuesday")
    assert len(model.classes) == 11
    again = load_model(f"{folder}+tuesday", network="mine:Wide")
    x = torch.rand(3, 1, 28, 28)
    assert torch.equal(model(x), again(x))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--network build", "network is 'build'; expected module:name, such as mypackage.nets:build"),
        ("--network mine.py:build", "expected module:name"),
        ("--network ../mine:build", "expected module:name"),
        ("--network mine:build()", "expected module:name"),
        ("--network nowhere:build", "there is no module nowhere, neither installed nor in "),
        ("--network mine.inner:build", "there is no module mine.inner"),
        ("--network mine:biuld", "mine.py) has no biuld; correct the name"),
        (
            "--network broken:build",
            "raised ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("--network unfinished:build", "importing unfinished raised SyntaxError: "),
        ("--network wrong:number", "network is wrong:number, which is a int; expected a function of"),
        ("--network autorecall.networks:MLP", "of autorecall's own networks, give the settings"),
        ("--network wrong:nothing", "wrong:nothing gave a NoneType; expected a torch.nn.Module"),
        ("--network wrong:fails", "wrong:fails raised ZeroDivisionError: division by zero ("),
        ("--network wrong:leaves", "wrong:leaves raised SystemExit: 0 ("),
        ("--network wrong:five", "the network has 5 outputs; expected 10, one for each class"),
        ("--network wrong:twelve", "the network has 12 outputs; expected 10, one for each class"),
        ("--network wrong:Bare", "wrong:Bare is not a dataclass; put @dataclass(frozen=True) before the class"),
        ("--network wrong:Alone", "network is wrong:Alone, a dataclass; derive it from autorecall.NetworkConfig"),
        ("--network wrong:Half", "wrong:Half has no build; define it"),
        ("--network wrong:Needy", "wrong:Needy has no default for depth"),
        ("--network wrong:Odd", "network.place is x, declared as pathlib.Path; expected what JSON can hold"),
        ("--network wrong:Either", "network.share is 1, declared as int | float; expected what"),
        ("--network wrong:Picky --network.depth 0", "a setting raised AssertionError: too shallow ("),
        ("--learner mine:build", "learner is mine:build, which is a function; expected a class of settings, derived"),
        (
            "--learner mine:Smoothed",
            "learner is mine:Smoothed, which is the class Smoothed; expected a class",
        ),
        ("--learner wrong:Tagged", "wrong:Tagged has a setting called method, which is the name of its class"),
        ("--learner wrong:NoLearner", "wrong:NoLearner gave a Sequential; expected an autorecall.Learner"),
    ],
)
def test_code_that_cannot_work_is_refused_in_a_sentence_and_nothing_is_written(
    say: Say, mine: Path, words: str, sentence: str
) -> None:
    network = [] if "--network" in words else ["--network", "mine:build"]
    refused(say("run", "mnist/naive", *words.split(), *network, *QUICK), sentence)
    assert not (mine / "runs").exists()


# Files from elsewhere


EVIL = """
from pathlib import Path
Path("imported").touch()

def build(*_):
    Path("called").touch()
"""
FORGED = [
    "evil:build",
    "os:system",
    "os.path:join",
    "builtins:__import__",
    "evil:__class__.__init__",
    "__main__:evil",
    "./evil.py:build",
    "evil:build; rm -rf ~",
    "evil:\x1b[2Jbuild",
    "http://example.org:evil",
    ":",
    "evil:" + "x" * 5000,
]


@pytest.fixture(scope="module")
def honest(few_digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("honest") / "seed-0"
    config = dataclasses.replace(PRESETS["mnist/naive"].config, network=MLPConfig((4,)), threads=1, curve_points=0)
    run("mnist/naive", config, few_digits, folder)
    return folder


@pytest.fixture
def evil(place: Path, honest: Path, few_digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, a photo, and a module that leaves a trace if it is imported."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    (place / "evil.py").write_text(EVIL)
    image(place, few_digits)
    (place / "new" / "cat").mkdir(parents=True)
    for number in range(3):
        Image.fromarray(few_digits.test.inputs[number][0]).save(place / "new" / "cat" / f"{number}.png")
    return shutil.copytree(honest, place / "runs" / "mnist" / "naive+hidden=4" / "seed-0")


def forge(folder: Path, part: str, name: str) -> None:
    """Have all files of a run name this class."""
    tag = "kind" if part == "network" else "method"
    values = json.loads((folder / "config.json").read_text())
    values[part] = {tag: name, "deep": {"list": [1, {"x": "\x1b[31m"}]}}
    (folder / "config.json").write_text(json.dumps(values))
    state = dict(read_state(folder / "model.safetensors"))
    about = state["model"]
    assert isinstance(about, Mapping)
    if part == "network":
        state["model"] = {**about, "network": values[part]}
    write_state(folder / "model.safetensors", state)


def uninvited(place: Path) -> list[str]:
    """Whatever was imported because a file said so."""
    assert "evil" not in sys.modules
    return [name for name in ("imported", "called") if (place / name).exists()]


@pytest.mark.parametrize("name", FORGED)
def test_no_file_makes_a_program_import_anything(
    say: Say, evil: Path, place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autorecall.commands.export.find_spec", lambda _: True)  # as if onnx were installed
    run, config, photo = str(evil), str(evil / "config.json"), "photo.png"
    forge(evil, "network", name)
    monkeypatch.setattr("autorecall.own._found", None)  # the only function that imports
    before = files(place)
    for words in (
        ["predict", run, photo],
        ["export", run, "--onnx", "model.onnx"],
        ["learn", run, "--data", "new"],
        ["run", "--config", config, *QUICK],
        ["run", "--config", config, "--fresh", "--out", "elsewhere", *QUICK],
    ):
        refused(say(*words), "network of this run is ", " not autorecall's own")
    with pytest.raises(ConfigError, match="not autorecall's own"):
        load_model(run)
    said = say("show", "runs")
    assert said.code == 0
    assert "network=" in said.out
    assert "\x1b" not in said.out
    assert say("show", "runs", "--markdown").code == 0
    assert say("report", "runs", "--out", "report.html").code == 0
    Path("report.html").unlink()
    forge(evil, "learner", name[:100])  # both are shown in one line of limited length
    for words in (["learn", run, "--data", "new"], ["run", "--config", config, *QUICK]):
        refused(say(*words), "of this run is ", " not autorecall's own")
    assert "learner=" in say("show", "runs").out
    # What the folder holds is compared, not used.
    refused(say("run", "mnist/naive", "--network.hidden", "4", *QUICK), "holds a finished run that differs in")
    refused(say("sweep", "mnist/naive", "--network.hidden", "4", *QUICK), "holds a run with other settings")
    assert files(place) == before
    assert uninvited(place) == []


def test_tables_of_the_paper_are_not_made_from_forged_runs(say: Say, evil: Path, place: Path) -> None:
    forge(evil, "learner", "evil:build")
    shutil.move(evil.parent, place / "runs" / "mnist" / "naive")
    refused(
        say("reproduce", "mnist", "--no-make-runs", "--out", "runs", "--seeds", "1"), "holds a run with other settings"
    )
    assert uninvited(place) == []


def test_a_forged_name_is_not_imported_by_another_that_is_given(say: Say, evil: Path, mine: Path) -> None:
    forge(evil, "network", "evil:build")
    refused(
        say("predict", str(evil), "photo.png", "--network", "mine:build"), "if you trust it, add --network evil:build"
    )
    config = str(evil / "config.json")
    refused(say("run", "--config", config, "--learner", "mine:Smooth", *QUICK), "add --network evil:build")
    assert uninvited(mine) == []


def test_a_network_that_a_run_does_not_have_need_not_be_named(say: Say, evil: Path, mine: Path) -> None:
    said = say("predict", str(evil), "photo.png", "--network", "mine:build")
    refused(said, "network is mine:build, but ", " has mlp; leave it out")


def test_settings_nested_without_end_are_refused(say: Say, evil: Path) -> None:
    values = json.loads((evil / "config.json").read_text())
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    (evil / "config.json").write_text(json.dumps({**values, "learner": {"method": "evil:build", "deep": deep}}))
    said = say("show", "runs")
    assert said.code == 2
    assert "config.learner has settings more than 20 levels deep" in said.err


def test_what_is_not_here_can_be_compared_and_written_but_not_used(evil: Path, few_digits: Dataset) -> None:
    forge(evil, "network", "evil:build")
    _, config = read_config(evil / "config.json")
    assert isinstance(config.network, NotImported)
    _, again = read_config(evil / "config.json")
    assert again == config
    with pytest.raises(ConfigError, match="add --network evil:build"):
        run("mnist/naive", config, few_digits)
