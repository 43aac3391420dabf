"""`autorecall reproduce`: from the words typed to runs, tables and exit codes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autorecall.commands import costs, many, reproduce
from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.study import Place, Row, Study, write_table
from autorecall.commands.table import Cell, Figure, Table
from autorecall.commands.worker import Job
from autorecall.data import mnist
from autorecall.data.mnist import load_embedded

from .worlds import Say, refused, result, store


class Small(Study):
    """Two short runs and a table."""

    name, what = "small", "two short runs"

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        return [Row.of("naive", "mnist/naive", seeds, 0.02 * fraction, {"curve_points": 0})]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        runs = [run for row in self.rows(seeds, fraction) for run in place.runs(row)]
        lines: list[list[Cell]] = [["naive", len(runs), Figure.over([run.result.accuracy for run in runs])]]
        return write_table(place, self.name, fraction, Table("Small", ("", "seeds", "accuracy"), lines)) if runs else []


@pytest.fixture
def small(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small study, on all digits: the processes that make runs load them themselves."""
    monkeypatch.setitem(STUDIES, "small", Small())
    monkeypatch.setattr(mnist, "load_embedded", load_embedded)
    many._fingerprint.cache_clear()


@pytest.mark.usefixtures("small")
def test_missing_runs_are_made_those_there_are_not_and_others_are_refused(say: Say, place: Path) -> None:
    said = say("reproduce", "small", "--seeds", "2", "--jobs", "2")
    assert said.code == 0
    table = place / "results" / "paper" / "small.md"
    assert "| naive | 2 |" in table.read_text()
    results = sorted((place / "results" / "mnist").rglob("result.json"))
    assert len(results) == 2
    before = [path.stat().st_mtime_ns for path in results]
    table.unlink()
    said = say("reproduce", "small", "--seeds", "2")
    assert "2 of 2 runs have already finished" in said.out
    assert [path.stat().st_mtime_ns for path in results] == before
    assert table.exists()

    config = results[0].with_name("config.json")
    config.write_text(config.read_text().replace('"learning_rate": 0.05', '"learning_rate": 0.06'))
    said = say("reproduce", "small", "--seeds", "2")
    assert said.code == 2
    assert "other settings" in said.err


class Steep(Small):
    """One more run, which diverges."""

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        steep = {"curve_points": 0, "learner.learning_rate": 1e30}
        return [*super().rows(seeds, fraction), Row.of("steep", "mnist/naive", 1, 0.02, steep)]


@pytest.mark.usefixtures("small")
def test_a_run_that_diverges_does_not_keep_the_table_from_being_written(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STUDIES, "small", Steep())
    monkeypatch.setattr(costs, "slowness", lambda: 2.0)
    for before in ("failed: ", "1 of 2 runs have already diverged"):
        said = say("reproduce", "small", "--seeds", "1")
        assert (said.code, said.err) == (0, "")
        assert before in said.out
        assert "1 of 2 runs diverged: results/mnist/naive+learning_rate=1e" in said.out
        assert "| naive | 1 |" in (place / "results" / "paper" / "small.md").read_text()
        (place / "results" / "paper" / "small.md").unlink()
    said = say("reproduce", "small", "--seeds", "1", "--no-make-runs")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("1 of 2 runs diverged: results/mnist/naive+learning_rate=1e")
    assert "missing" not in said.out
    listed = say("reproduce", "small", "--list", "--seeds", "1").out
    assert "│ 2    │ 0       │ -" in listed


@pytest.mark.usefixtures("small")
def test_without_making_runs_there_must_be_some(say: Say, place: Path) -> None:
    said = say("reproduce", "small", "--no-make-runs")
    assert said.code == 2
    assert "too few runs for small" in said.err
    assert list(place.iterdir()) == []


class Several(Small):
    """Three rows."""

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        rates = (0.05, 0.1, 0.2)
        return [
            Row.of(f"rate {rate}", "mnist/naive", seeds, fraction, {"learner.learning_rate": rate}) for rate in rates
        ]


def test_what_is_made_from_a_part_of_its_runs_says_so(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Several()
    monkeypatch.setitem(STUDIES, "several", study)
    jobs = [job for row in study.rows(2, 1.0) for job in Place(Path("results")).jobs([row])]

    def said(*words: str) -> list[str]:
        done = say("reproduce", *words, "--no-make-runs")
        assert (done.code, done.err) == (0, "")
        return [line for line in done.out.splitlines() if not line.startswith("wrote ")]

    def had(job: Job) -> None:
        store(place / job.folder, result(job.preset, job.config.seed), job.config)

    had(jobs[2])
    ending = "; it is made from those that there are"
    assert said("several", "--seeds", "2") == [
        f"several: 5 of 6 runs are missing (rate 0.05, rate 0.1, rate 0.2){ending}"
    ]
    assert said("several", "--seeds", "1") == [f"several: 2 of 3 runs are missing (rate 0.05, rate 0.2){ending}"]
    for job in (jobs[0], jobs[1], jobs[4], jobs[5]):
        had(job)
    assert said("several", "--seeds", "2") == [f"several: 1 of 6 runs is missing (rate 0.1){ending}"]
    assert said("several", "--seeds", "1") == []


def test_the_list_names_all_studies_with_a_time(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "slowness", lambda: 2.0)
    said = say("reproduce", "--list")
    assert said.code == 0
    for name, study in STUDIES.items():
        line = next(line for line in said.out.splitlines() if line.startswith(f"│ {name} "))
        assert study.what.split(" ")[0] in line
        assert line.rstrip("│ ").endswith(("min", "h"))


def test_the_list_does_not_want_data_that_are_not_here(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that have finished are on data that the folder given may lack."""
    monkeypatch.setattr(costs, "slowness", lambda: 2.0)
    (place / "data").mkdir()
    results = str(Path(__file__).parents[2] / "results")
    said = say("reproduce", "--list", "ablation", "--fraction", "0.1", "--data", "data", "--out", results)
    assert (said.code, said.err) == (0, "")
    assert "ablation" in said.out
    said = say("reproduce", "--list", "ablation", "--fraction", "0.1", "--data", "nowhere", "--out", results)
    assert (said.code, said.out) == (2, "")
    assert "nowhere does not exist" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "nothing is named"),
        ("mnits", "there is no study 'mnits'"),
        ("all mnits", "there is no study 'mnits'"),
        ("mnist --seeds 0", "seeds is 0"),
        ("mnist --seeds 1001", "seeds is 1001"),
        ("mnist --fraction 0", "fraction is 0.0"),
        ("mnist --fraction nan", "fraction is nan"),
        ("mnist --jobs 0", "jobs is 0"),
        ("mnist --list --jobs 0", "jobs is 0"),
        ("mnist --jobs 2 --ray local", "both --jobs and --ray"),
        ("cifar10 --data nowhere", "nowhere does not exist"),
        ("miniimagenet", "miniimagenet"),
    ],
)
def test_bad_use_gets_one_sentence_and_leaves_nothing(
    say: Say, place: Path, words: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = say("reproduce", *words.split())
    assert said.code == 2
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert list(place.iterdir()) == []


def test_estimates_go_by_the_images_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTORECALL_CACHE", str(tmp_path / "cache"))
    for name in ("a/1.jpg", "a/2.png", "b/1.jpg", "b/notes.txt", "c.jpg"):
        path = tmp_path / "mini-imagenet" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert costs.share_here("miniimagenet", tmp_path) == 3 / 60_000
    assert costs.share_here("cifar10", tmp_path) == 1
    assert costs.share_here("miniimagenet", tmp_path / "mini-imagenet" / "a") == 1  # none there: of all of it
    assert costs.share_here("miniimagenet", tmp_path / "missing") == 1


@pytest.mark.usefixtures("small")
def test_what_is_in_the_way_of_tables_is_refused_before_runs_are_made(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "make", lambda *_: pytest.fail("runs were made"))
    (place / "f4").mkdir()
    (place / "f4" / "paper").touch()
    way = "is in the way of the folder of tables and figures; choose another --out, or move it aside"
    refused(say("reproduce", "small", "--out", "f4"), f"f4/paper {way}")
    refused(say("reproduce", "small", "--out", "f4/paper"), f"f4/paper {way}")
    (place / "f4" / "paper").unlink()
    (place / "f4" / "paper").symlink_to("nowhere")
    refused(say("reproduce", "small", "--out", "f4", "--no-make-runs"), f"f4/paper {way}")
    (place / "f4" / "paper").unlink()
    (place / "f4" / "paper").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "paper")  # root may write anywhere
    refused(say("reproduce", "small", "--out", "f4"), "f4/paper cannot be written to; choose another --out")
    assert sorted(place.rglob("*")) == [place / "f4", place / "f4" / "paper"]


def test_what_is_no_folder_has_no_runs_to_list(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "slowness", lambda: 2.0)
    (place / "file").touch()
    (place / "link").symlink_to("nowhere")
    for name in ("file", "link", "file/below"):
        sentence = f"{name.split('/')[0]} is in the way of the folder of all runs; choose another --out, or move it"
        refused(say("reproduce", "--list", "history", "--out", name), sentence)
    (place / "link").unlink()
    (place / "link").symlink_to(place)
    assert say("reproduce", "--list", "history", "--out", "link").code == 0
