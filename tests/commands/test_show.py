"""`autorecall show`: runs gathered into one table, beside the paper's figures."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from autorecall import ARMConfig, LagConfig, cli
from autorecall.commands.row_formats import HEADER
from autorecall.commands.text import markdown
from autorecall.presets import PRESETS
from autorecall.runs.result import Result
from autorecall.storage.formats import FORMAT

from .worlds import result, store


@dataclass(frozen=True)
class Said:
    """What `show` did."""

    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, str]]:
        """The cells of the Markdown table, by their heading; the two columns of the paper and of MB are numbered."""
        lines = [line for line in self.out.splitlines() if line.startswith("| ")]
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        assert tuple(cells[0]) == HEADER
        names = [name if HEADER.index(name) == place else f"{name} 2" for place, name in enumerate(HEADER)]
        return [dict(zip(names, row, strict=True)) for row in cells[1:]]


Show = Callable[..., Said]


@pytest.fixture
def show(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Show:
    monkeypatch.delenv("COLUMNS", raising=False)

    def typed(*words: str) -> Said:
        code = cli.dispatch(["show", str(tmp_path), *words])
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return typed


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# Figures


def test_a_row_is_mean_and_standard_deviation_over_seeds_beside_the_paper(tmp_path: Path, show: Show) -> None:
    for seed, (accuracy, lost) in enumerate([(54.0, 20.0), (56.0, 22.0), (61.0, 30.0)]):
        store(tmp_path / f"seed-{seed}", result("mnist/arm", seed, accuracy, lost))
    said = show("--markdown")
    assert (said.code, said.err) == (0, "")
    assert said.rows() == [
        {
            "run": "mnist/arm",
            "seeds": "3",
            "accuracy": "57.0 ± 3.6",  # the sample's: √((9 + 1 + 16) / 2)
            "paper": "56.3 ± 2.6",
            "forgetting": "24.0 ± 5.3",
            "paper 2": "21.8 ± 1.6",
            "images": "0",
            "MB": "0.00",
            "parameters": "478,410",
            "MB 2": "1.91",
            "seconds": "8.5",
        }
    ]
    assert "Paper's ±: standard deviation, 5 runs (mnist/arm)." in said.out


def test_a_single_run_has_no_deviation(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "seed-0", result("mnist/lwf", 0, 33.25, 57.0))
    (row,) = show("--markdown").rows()
    assert (row["seeds"], row["accuracy"], row["forgetting"]) == ("1", "33.2", "57.0")
    assert (row["paper"], row["paper 2"]) == ("33.3 ± 2.5", "58.0 ± 1.7")


def test_a_stationary_run_forgets_nothing_and_so_says_nothing(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "seed-0", result("mnist/stationary", 0, 87.0, None))
    (row,) = show("--markdown").rows()
    assert (row["paper"], row["forgetting"], row["paper 2"]) == ("87.1 ± 0.6", "-", "-")


def test_the_table_for_the_terminal_holds_the_same(tmp_path: Path, show: Show) -> None:
    for seed, accuracy in enumerate([54.0, 58.0]):
        store(tmp_path / f"seed-{seed}", result("mnist/arm", seed, accuracy))
    said = show()
    assert (said.code, said.err) == (0, "")
    (line,) = [line for line in said.out.splitlines() if line.startswith("mnist/arm")]
    (row,) = show("--markdown").rows()
    shown = [row[name] for name in ("run", "accuracy", "paper", "forgetting", "paper 2")]
    assert re.split(" {2,}", line) == [*shown, "1.91", *(row[name] for name in ("seeds", "seconds", "images"))]
    assert "Measured: mean ± standard deviation over seeds" in said.out


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_the_table_fits_the_terminal_and_keeps_what_matters_most(
    tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    usual = PRESETS["mnist/arm"].config
    assert isinstance(usual.learner, ARMConfig)
    learner = dataclasses.replace(usual.learner, ascent_steps=5, diversity=0.25, teacher_avoidance=3.0, told=True)
    store(tmp_path / "a", result("cifar10/ablation-no-total-variation", 0))
    store(tmp_path / "b", result("mnist/arm", 0), dataclasses.replace(usual, learner=learner, fraction=0.5))
    if columns != 100:  # which is how wide it is if nobody says
        monkeypatch.setenv("COLUMNS", str(columns))
    lines = show().out.splitlines()
    assert max(map(len, lines)) <= columns
    header = lines[0].split()
    wide = ["run", "accuracy", "paper", "forgetting", "paper", "kept", "MB", "seeds", "seconds", "images", "parameters"]
    assert header == wide[: {60: 3, 80: 4, 100: 8, 140: 11}[columns]]
    text = " ".join(" ".join(line.split()) for line in lines)
    for setting in ("teacher_avoidance=3.0", "diversity=0.25", "ascent_steps=5", "told=True", "fraction=0.5"):
        assert setting in text


# Other formats


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A row of the paper with two seeds, one with other settings, and one of another name."""
    for seed, accuracy in enumerate([54.0, 58.0]):
        store(tmp_path / f"arm-{seed}", result("mnist/arm", seed, accuracy))
    half = dataclasses.replace(PRESETS["mnist/naive"].config, fraction=0.5)
    store(tmp_path / "half", result("mnist/naive", 0, 19.25, None), half)
    store(tmp_path / "own", result('=HYPERLINK("http://x")&_\\{$', 3), PRESETS["mnist/arm"].config)
    return tmp_path


@pytest.mark.usefixtures("mixed")
def test_csv_has_every_figure_in_full(show: Show) -> None:
    said = show("--csv")
    assert (said.code, said.err) == (0, "")
    half, arm, own = csv.DictReader(io.StringIO(said.out))
    assert (arm["run"], arm["seeds"], arm["accuracy"]) == ("mnist/arm", "2", "56.0")
    assert float(arm["accuracy spread"]) == pytest.approx(8**0.5)
    assert (arm["published accuracy"], arm["published accuracy spread"]) == ("56.3", "2.6")
    assert (arm["numbers"], arm["number MB"], arm["seconds"]) == ("478410", "1.91364", "8.5")
    assert (half["changed"], half["forgetting"], half["published accuracy"]) == ("fraction=0.5", "", "")
    assert own["run"].startswith("'=")  # which a spreadsheet shows, and does not compute


@pytest.mark.usefixtures("mixed")
def test_json_has_every_figure_in_full(show: Show) -> None:
    said = show("--json")
    assert (said.code, said.err, said.out.isascii()) == (0, "", True)
    half, arm, own = json.loads(said.out)
    assert arm["accuracy"] == {"mean": 56.0, "deviation": pytest.approx(8**0.5)}
    assert arm["published"]["accuracy"] == {"mean": 56.3, "spread": 2.6}
    assert (arm["seeds"], arm["memory"]["bytes"], arm["seconds"]) == ([0, 1], 1_913_640, 8.5)
    assert (half["changed"], half["forgetting"], half["published"]) == ({"fraction": 0.5}, None, None)
    assert own["preset"] == '=HYPERLINK("http://x")&_\\{$'


@pytest.mark.usefixtures("mixed")
def test_latex_has_a_line_for_every_row(show: Show) -> None:
    said = show("--latex")
    assert (said.code, said.err) == (0, "")
    lines = [line for line in said.out.splitlines() if line.endswith("\\\\")]
    assert [line.count("&") - line.count(r"\&") for line in lines] == [11] * 4
    assert r"56.0 $\pm$ 2.8 & 56.3 $\pm$ 2.6" in lines[2]
    assert r"\&\_\textbackslash{}\{\$" in lines[3]


def test_formats_are_given_one_at_a_time(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "run", result("mnist/arm", 0))
    said = show("--csv", "--json")
    assert (said.code, said.out) == (2, "")
    assert said.err == "autorecall: --csv and --json are given; expected one format at a time\n"


# Which runs make a row


def test_rows_stand_in_the_order_of_the_presets(tmp_path: Path, show: Show) -> None:
    for name in ("mnist/arm", "cifar10/naive", "own/thing", "mnist/naive"):
        store(tmp_path / name, result(name, 0), PRESETS.get(name, PRESETS["mnist/arm"]).config)
    names = [row["run"] for row in show("--markdown").rows()]
    assert names == ["mnist/naive", "mnist/arm", "cifar10/naive", "own/thing"]


def test_changed_settings_make_a_row_of_their_own_without_the_papers_figure(tmp_path: Path, show: Show) -> None:
    usual = PRESETS["mnist/arm"].config
    changed = dataclasses.replace(usual, fraction=0.5, learner=ARMConfig(ascent_steps=5, lag=LagConfig(policy="every")))
    for seed in (0, 1):
        store(tmp_path / "usual" / f"{seed}", result("mnist/arm", seed, 56.0))
        store(tmp_path / "changed" / f"{seed}", result("mnist/arm", seed, 40.0 + 2 * seed), changed)
    said = show("--markdown")
    first, second = said.rows()
    assert (first["run"], first["seeds"], first["paper"]) == ("mnist/arm", "2", "56.3 ± 2.6")
    assert second["run"] == "mnist/arm learner.ascent_steps=5 fraction=0.5"
    assert (second["seeds"], second["accuracy"], second["paper"], second["paper 2"]) == ("2", "41.0 ± 1.4", "-", "-")


def test_a_part_of_the_images_makes_a_row_of_its_own_without_the_papers_figure(tmp_path: Path, show: Show) -> None:
    whole = result("miniimagenet/arm", 0)
    for seed, steps in enumerate([whole.steps, whole.steps // 6, whole.steps // 6]):
        store(tmp_path / str(seed), dataclasses.replace(whole, seed=seed, steps=steps))
    first, second = show("--markdown").rows()
    assert (first["run"], first["seeds"], first["paper"]) == ("miniimagenet/arm", "1", "5.53 ± 0.8")
    assert (second["run"], second["seeds"], second["paper"]) == ("miniimagenet/arm images=17 %", "2", "-")


def test_long_lists_are_shortened_but_part_runs_by_all_of_them(tmp_path: Path, show: Show) -> None:
    usual = PRESETS["mnist/naive"].config
    for seed, last in enumerate((9, 8)):
        pool = dataclasses.replace(usual.stream, class_pool=(5, 6, 7, last))
        store(tmp_path / str(seed), result("mnist/naive", seed), dataclasses.replace(usual, stream=pool))
    assert [row["run"] for row in show("--markdown").rows()] == ["mnist/naive stream.class_pool=[5, 6, …]"] * 2


def test_threads_and_device_do_not_part_runs(tmp_path: Path, show: Show) -> None:
    for seed, threads in enumerate([1, 2, None]):
        config = dataclasses.replace(PRESETS["mnist/arm"].config, threads=threads, device="cuda" if seed else "cpu")
        store(tmp_path / f"seed-{seed}", result("mnist/arm", seed), config)
    (row,) = show("--markdown").rows()
    assert (row["run"], row["seeds"]) == ("mnist/arm", "3")


def test_figures_on_val_are_not_mixed_with_those_on_test(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "test", result("mnist/arm", 0))
    on_val = dataclasses.replace(PRESETS["mnist/arm"].config, split="val")
    store(tmp_path / "val", dataclasses.replace(result("mnist/arm", 0), split="val"), on_val)
    assert [row["run"] for row in show("--markdown").rows()] == ["mnist/arm", "mnist/arm split=val"]


def test_runs_are_found_at_any_depth_and_those_moved_aside_are_passed_over(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "a" / "b" / "seed-0", result("mnist/arm", 0))
    store(tmp_path / "a" / "b" / "seed-0.old-1", result("mnist/arm", 0))
    store(tmp_path / "seed-1", result("mnist/arm", 1))
    (tmp_path / "unfinished").mkdir()
    (row,) = show("--markdown").rows()
    assert row["seeds"] == "2"


# What cannot be read


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", "{"),
        ("result.json", "[]"),
        ("result.json", "{}"),
        ("result.json", "[" * 100_000),
        ("config.json", "{}"),
        ("config.json", "null"),
        ("config.json", None),
    ],
)
def test_a_damaged_run_is_left_out_with_a_note(tmp_path: Path, show: Show, name: str, content: str | None) -> None:
    store(tmp_path / "good", result("mnist/arm", 0))
    bad = store(tmp_path / "bad", result("mnist/arm", 1)) / name
    bad.unlink()
    if content is not None:
        bad.write_text(content)
    said = show("--markdown")
    assert said.code == 0
    assert [row["seeds"] for row in said.rows()] == ["1"]
    assert said.err.startswith("left out: ")
    assert said.err.count("\n") == 1
    assert str(tmp_path / "bad") in said.err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"accuracy": "56"}, "result.accuracy is '56'; expected a float"),
        ({"accuracy": float("nan")}, "NaN is no number"),
        ({"format": FORMAT + 1}, f"its format is {FORMAT + 1}, from a newer autorecall"),
    ],
    ids=["text", "nan", "newer"],
)
def test_a_result_that_cannot_be_read_is_left_out_with_the_reason(
    tmp_path: Path, show: Show, changes: dict[str, object], sentence: str
) -> None:
    store(tmp_path / "good", result("mnist/arm", 0))
    bad = store(tmp_path / "bad", result("mnist/arm", 1))
    edit(bad / "result.json", **changes)
    said = show("--markdown")
    assert (said.code, [row["seeds"] for row in said.rows()]) == (0, ["1"])
    assert said.err.startswith(f"left out: {bad}")
    assert sentence in said.err


@pytest.mark.parametrize("make", ["nothing", "unfinished", "damaged", "aside"])
def test_no_finished_run_is_refused(tmp_path: Path, show: Show, make: str) -> None:
    if make != "nothing":
        folder = store(tmp_path / ("seed-0.old-1" if make == "aside" else "seed-0"), result("mnist/arm", 0))
        if make == "unfinished":
            (folder / "result.json").unlink()
        elif make == "damaged":
            (folder / "result.json").write_text("")
    said = show()
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines()[-1].startswith(f"autorecall: there is no finished run under {tmp_path}; make one")


@pytest.mark.parametrize("make", ["nothing", "file"])
def test_what_is_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], make: str) -> None:
    path = tmp_path / "runs"
    if make == "file":
        path.touch()
    assert cli.dispatch(["show", str(path)]) == 2
    assert (
        capsys.readouterr().err == f"autorecall: {path} is not a folder; give one that `autorecall run --out` wrote\n"
    )


def huge(name: str, number: str) -> Callable[[Path], None]:
    """Put a number into a result.json that Python itself would not write."""

    def change(folder: Path) -> None:
        path = folder / "result.json"
        text, found = re.subn(rf'("{name}": )[^,}}]+', rf"\g<1>{number}", path.read_text())
        assert found == 1
        path.write_text(text)

    return change


@pytest.mark.parametrize(
    "change",
    [
        huge("images", "1" + "0" * 400),
        huge("images", "1" + "0" * 5000),
        huge("images", "-1"),
        huge("image_mb", "1e999"),
        huge("parameters", "1" + "0" * 30),
        huge("parameter_mb", "-1.0"),
        huge("accuracy", "1e999"),
        huge("accuracy", "-1e999"),
        huge("accuracy", "1e300"),
        huge("accuracy", "NaN"),
        huge("accuracy", "100.5"),
        huge("forgetting", "1e999"),
        huge("forgetting", "-101"),
        huge("train", "1e308"),
        huge("evaluate", "1e999"),
        huge("seed", "1" + "0" * 5000),
        huge("seed", "-1"),
        huge("steps", "1" + "0" * 30),
        huge("split", '"\\\\u001b[2J"'),
        lambda folder: edit(folder / "result.json", accuracy_matrix=[[]]),
        lambda folder: edit(folder / "result.json", accuracy_matrix=[[1.0, 2.0], [3.0]]),
        lambda folder: edit(folder / "result.json", accuracy_matrix=[[1e300]]),
        lambda folder: edit(folder / "config.json", seed=10**30),
        lambda folder: edit(folder / "config.json", fraction=10**400),
        lambda folder: edit(folder / "config.json", stream={"class_pool": [10**18] * 10}),
        lambda folder: edit(folder / "config.json", checkpoint_seconds=float("inf")),
    ],
)
def test_one_absurd_run_does_not_bring_down_the_others(
    tmp_path: Path, show: Show, change: Callable[[Path], None]
) -> None:
    store(tmp_path / "good", result("mnist/arm", 0))
    change(store(tmp_path / "bad", result("mnist/arm", 1)))
    for words in ((), ("--markdown",)):
        said = show(*words)
        assert said.code == 0
        assert "50.0" in said.out
        assert said.err.startswith(f"left out: {tmp_path / 'bad'}")
        assert said.err.count("\n") == 1
        assert len(said.err) < 900
    assert [row["seeds"] for row in show("--markdown").rows()] == ["1"]


@pytest.mark.parametrize("depth", range(930, 1000, 7))
@pytest.mark.parametrize("name", ["format", "preset", "seed", "memory", "accuracy_matrix"])
def test_a_result_nested_just_not_too_deeply_to_be_parsed_is_left_out(
    tmp_path: Path, show: Show, name: str, depth: int
) -> None:
    store(tmp_path / "good", result("mnist/arm", 0))
    bad = store(tmp_path / "bad", result("mnist/arm", 1))
    edit(bad / "result.json", **{name: "here"})
    (bad / "result.json").write_text((bad / "result.json").read_text().replace('"here"', "[" * depth + "]" * depth))
    said = show("--markdown")
    assert (said.code, [row["seeds"] for row in said.rows()]) == (0, ["1"])
    assert said.err.startswith("left out: ")


# Where runs are looked for


def test_links_that_lead_back_are_not_followed(tmp_path: Path, show: Show) -> None:
    run = store(tmp_path / "a" / "seed-0", result("mnist/arm", 0))
    (run / "up").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    said = show("--markdown")
    assert (said.code, said.err, [row["seeds"] for row in said.rows()]) == (0, "", ["1"])


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path / "good", result("mnist/arm", 0))
    store(tmp_path / "closed" / "seed-1", result("mnist/arm", 1))
    scandir = os.scandir

    def failing(path: str | Path) -> object:  # as for anyone but root
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    said = show("--markdown")
    assert (said.code, [row["seeds"] for row in said.rows()]) == (0, ["1"])
    assert said.err == f"left out: cannot read {tmp_path / 'closed'}: Permission denied\n"


def test_a_very_deep_folder_is_searched(tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path / "good", result("mnist/arm", 0))
    monkeypatch.chdir(tmp_path)
    depth = 1500  # deeper than Python's stack, and within the longest path
    for _ in range(depth):
        Path("d").mkdir()
        os.chdir("d")
    said = show("--markdown")
    for _ in range(depth):  # pytest could not
        os.chdir("..")
        Path("d").rmdir()
    assert (said.err, [row["seeds"] for row in said.rows()]) == ("", ["1"])


def test_thousands_of_runs_without_an_end_are_not_all_named(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "good", result("mnist/arm", 0))
    for number in range(50):
        (store(tmp_path / f"cut-{number:02}", result("mnist/arm", 1)) / "result.json").unlink()
    said = show("--markdown")
    assert said.err.startswith(f"left out: {tmp_path / 'cut-00'} (unfinished), ")
    assert said.err.endswith(" and 45 more\n")


# Runs of one row that were computed differently


def machine(seed: int, torch: str = "2.13.0", **values: str) -> Result:
    found = result("mnist/arm", seed)
    return dataclasses.replace(found, machine={"device": "cpu", "threads": "2", **values}, versions={"torch": torch})


def noted(said: Said) -> list[str]:
    return [line for line in said.out.splitlines() if "not all" in line]


def test_runs_of_one_row_that_were_computed_differently_are_noted(tmp_path: Path, show: Show) -> None:
    for seed, kernels in enumerate(["compiled", "compiled", "torch"]):
        store(tmp_path / f"{seed}", machine(seed, kernels=kernels, instructions="AVX2"))
    note = "mnist/arm: not all on the same kernels (compiled: seeds 0, 1; torch: seed 2)"
    expected = [f"{note}; the same seed gives other figures there."]
    assert noted(show("--markdown")) == expected
    assert " ".join(show().out.split()).count(expected[0]) == 1


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ([{"instructions": "AVX2"}, {}], "instructions (AVX2: seed 0; not recorded: seed 1)"),
        ([{"threads": "1"}, {}], "number of threads (1: seed 0; 2: seed 1)"),
        ([{"device": "cuda"}, {}, {}], "device (cpu: seeds 1, 2; cuda: seed 0)"),
        ([{"torch": "2.12"}, {}], "version of torch (2.12: seed 0; 2.13.0: seed 1)"),
        (
            [{"instructions": "AVX512, then AVX2"}, {"instructions": "AVX2"}],
            "instructions (AVX2: seed 1; AVX512, then AVX2: seed 0)",
        ),
        ([{"processor": "arm64", "cores": "9"}, {}], None),
        ([{"instructions": "AVX2", "kernels": "torch"}] * 2, None),
        ([{}, {}], None),
        ([{"kernels": "\x1b[2J<b>"}, {}], "kernels (\ufffd\\[2J\\<b\\>: seed 0; not recorded: seed 1)"),
    ],
)
def test_each_property_that_differs_is_a_note(
    tmp_path: Path, show: Show, values: list[dict[str, str]], note: str | None
) -> None:
    for seed, each in enumerate(values):
        store(tmp_path / f"{seed}", machine(seed, **each))
    other = [f"mnist/arm: not all on the same {note}; the same seed gives other figures there."] if note else []
    assert noted(show("--markdown")) == other


def test_many_seeds_are_not_all_named_in_a_note(tmp_path: Path, show: Show) -> None:
    for seed in range(30):
        store(tmp_path / f"{seed}", machine(seed, kernels="torch" if seed == 7 else "compiled"))
    (note,) = noted(show("--markdown"))
    assert "(compiled: seeds 0, 1, 2, 3, 4 and 24 more; torch: seed 7)" in note


def test_rows_of_their_own_are_not_compared(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "0", machine(0, kernels="torch"))
    on_val = dataclasses.replace(PRESETS["mnist/arm"].config, split="val")
    store(tmp_path / "1", dataclasses.replace(machine(1, kernels="compiled"), split="val"), on_val)
    assert noted(show("--markdown")) == []


# Names are shown as they are


@pytest.mark.parametrize(
    "name",
    ["own/[red]thing", "own/[/red]", "own/[link=x]y", "own/a|b", "own/{x}", "own/:smile:", "My_thing", "[l](http://x)"],
)
def test_names_with_markup_are_shown_literally(tmp_path: Path, show: Show, name: str) -> None:
    store(tmp_path / "run", result(name, 0), PRESETS["mnist/arm"].config)
    (line,) = [line for line in show().out.splitlines() if name in line]
    assert line.startswith(f"{name} ")
    (row,) = show("--markdown").rows()
    assert row["run"] == markdown(name)
    assert (row["paper"], row["accuracy"]) == ("-", "50.0")


def test_folders_with_markup_are_named_literally_in_notes(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "good", result("mnist/arm", 0))
    bad = store(tmp_path / "[red]bad[/]", result("mnist/arm", 1))
    (bad / "result.json").write_text("")
    assert str(bad) in show().err


@pytest.mark.parametrize("words", [(), ("--markdown",)])
@pytest.mark.parametrize("odd", ["\x1b[2J\n", "\u202e", "\u2028", "\x9b", "\r", "\u200b", "\u0301" * 100, "\ud800"])
def test_control_characters_do_not_reach_the_terminal(
    tmp_path: Path, show: Show, odd: str, words: tuple[str, ...]
) -> None:
    store(tmp_path / "run", result(f"own/a{odd}b", 0), PRESETS["mnist/arm"].config)
    bad = store(tmp_path / f"bad{odd}".replace("\ud800", "\udcff"), result("mnist/arm", 1))
    (bad / "result.json").write_text("")
    unended = store(tmp_path / f"twin{odd}".replace("\ud800", "\udcff"), result("mnist/arm", 2))
    (unended / "result.json").unlink()
    said = show(*words)
    assert said.code == 0
    assert said.out.replace("\n", "").isprintable()
    assert (said.err.count("\n"), said.err.replace("\n", "").isprintable()) == (2, True)
    assert "\u0301" * 5 not in said.out + said.err


def test_runs_of_another_name_are_rows_by_their_settings(tmp_path: Path, show: Show) -> None:
    config = PRESETS["mnist/arm"].config
    assert isinstance(config.learner, ARMConfig)
    for seed, steps in ((0, 3), (1, 3), (0, 1)):
        changed = dataclasses.replace(
            config, seed=seed, learner=dataclasses.replace(config.learner, ascent_steps=steps)
        )
        store(tmp_path / f"{steps}-{seed}", result("own/arm", seed), changed)
    assert sorted(row["seeds"] for row in show("--markdown").rows()) == ["1", "2"]


def test_runs_without_an_end_are_named_in_one_line(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "done", result("mnist/arm", 0))
    for name in ("cut off", "diverged", "aside.old-1"):
        (store(tmp_path / name, result("mnist/arm", 1)) / "result.json").unlink()
    (tmp_path / "diverged" / "stopped.json").write_text("{}")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "config.json").write_text('{"name": "no run"}')
    said = show("--markdown")
    assert [row["seeds"] for row in said.rows()] == ["1"]
    assert said.err == f"left out: {tmp_path / 'cut off'} (unfinished), {tmp_path / 'diverged'} (diverged)\n"


def test_the_same_run_twice_is_one_seed(tmp_path: Path, show: Show) -> None:
    for place, (seed, accuracy) in enumerate([(0, 50.0), (1, 60.0), (0, 90.0)]):
        store(tmp_path / f"{place}", result("mnist/arm", seed, accuracy))
    said = show("--markdown")
    assert [(row["seeds"], row["accuracy"]) for row in said.rows()] == [("2", "55.0 ± 7.1")]
    assert said.err == f"left out: {tmp_path / '2'} has the same settings and seed as {tmp_path / '0'}\n"


def test_a_row_that_is_not_from_the_paper_says_so(tmp_path: Path, show: Show) -> None:
    store(tmp_path / "seed-0", result("mnist/slda", 0, 93.0, 3.0))
    (row,) = show("--markdown").rows()
    assert (row["paper"], row["paper 2"]) == ("not in the paper", "not in the paper")


def test_runs_on_other_data_are_rows_of_their_own(tmp_path: Path, show: Show) -> None:
    """Also where a dataset that everybody has is not whole; the earliest results say nothing of their data."""
    usual = dataclasses.replace(PRESETS["miniimagenet/naive"].config, fraction=0.1)
    for seed, data in enumerate(["a" * 64, "a" * 64, "b" * 64, ""]):
        store(tmp_path / str(seed), dataclasses.replace(result("miniimagenet/naive", seed), data=data), usual)
    rows = {row["run"].partition("data=")[2]: row["seeds"] for row in show("--markdown").rows()}
    assert rows == {"aaaaaaaa": "2", "bbbbbbbb": "1", "unknown": "1"}


def test_a_folder_that_was_moved_aside_is_shown_if_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path / "seed-0.old-1", result("mnist/arm", 0))
    store(tmp_path / "runs" / "seed-0+photos.old-camera", result("mnist/arm", 0))
    for place in ("seed-0.old-1", "runs"):
        assert cli.dispatch(["show", str(tmp_path / place), "--csv"]) == 0
        assert capsys.readouterr().out.count("mnist/arm") == 1


def test_folders_stand_in_the_order_of_their_seeds(tmp_path: Path, show: Show) -> None:
    for seed in (0, 2, 10):
        store(tmp_path / f"seed-{seed}", result("mnist/arm", seed))
    (row,) = json.loads(show("--json").out)
    assert [Path(folder).name for folder in row["folders"]] == [f"seed-{seed}" for seed in row["seeds"]]
