"""The paper's tables, written from runs whose figures are known."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.study import Place
from autorecall.presets import PRESETS

from .worlds import write_rows, write_run


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def lines_of(name: str, out: Path, seeds: int = 2, fraction: float = 1.0) -> list[dict[str, str]]:
    written = STUDIES[name].write(Place(out), seeds, fraction)
    assert {path.suffix for path in written} >= {".md", ".tex", ".csv"}
    return read(next(path for path in written if path.suffix == ".csv"))


def test_all_rows_of_the_papers_tables_are_reproduced() -> None:
    named = {row.preset for study in STUDIES.values() for row in study.rows(1, 1.0)}
    assert named == set(PRESETS)


def test_a_row_has_means_over_seeds_beside_the_published_figures(tmp_path: Path) -> None:
    study = STUDIES["mnist"]
    arm = next(row for row in study.rows(2, 1.0) if row.preset == "mnist/arm")
    write_rows(tmp_path, [arm], [[55.0, 59.0]])
    (line,) = lines_of("mnist", tmp_path)
    assert (line["method"], line["seeds"], line["M"]) == ("ARM", "2", "10")
    assert (float(line["accuracy"]), line["published accuracy"]) == (57.0, "56.3 ± 2.6")
    assert float(line["accuracy spread"]) == pytest.approx(8**0.5, abs=1e-6)
    assert (float(line["forgetting"]), line["published forgetting"]) == (10.0, "21.8 ± 1.6")
    assert (line["images"], line["their MB"], line["parameters"]) == ("7", "0.07", "1000")


@pytest.mark.parametrize(("accuracy", "marked"), [(58.8, False), (59.0, True), (53.8, False), (53.6, True)])
def test_what_lies_outside_the_published_spread_is_marked(tmp_path: Path, accuracy: float, marked: bool) -> None:
    write_run(tmp_path, "mnist/arm", PRESETS["mnist/arm"].config, accuracy, 21.8, steps=500)
    STUDIES["mnist"].write(Place(tmp_path), 1, 1.0)
    assert (rf"{accuracy}\*" in (tmp_path / "paper" / "mnist.md").read_text()) == marked


def test_runs_on_a_part_of_the_images_are_not_compared(tmp_path: Path) -> None:
    for name, steps in (("arm", 2280), ("er-500", 760)):  # which goes over its images once, the others three times
        write_run(tmp_path, f"miniimagenet/{name}", PRESETS[f"miniimagenet/{name}"].config, 1.0, steps=steps)
    STUDIES["miniimagenet"].write(Place(tmp_path), 1, 1.0)
    text = (tmp_path / "paper" / "miniimagenet.md").read_text()
    assert text.startswith("Sequential MiniImageNet, 17 % of its images\n")
    assert "| ARM |" in text
    assert "\\*" not in text


def test_rows_on_all_images_are_compared_beside_those_on_a_part(tmp_path: Path) -> None:
    arm, naive = (PRESETS[f"miniimagenet/{name}"].config for name in ("arm", "naive"))
    write_run(tmp_path, "miniimagenet/naive", naive, 99.0, steps=13680)
    write_run(tmp_path, "miniimagenet/arm", arm, 5.0, steps=2280)
    STUDIES["miniimagenet"].write(Place(tmp_path), 2, 1.0)
    text = (tmp_path / "paper" / "miniimagenet.md").read_text()
    assert text.startswith("Sequential MiniImageNet\n")
    assert "| ARM, 17 % of its images |" in text
    assert "99.0\\*" in text
    write_run(tmp_path, "miniimagenet/arm", replace(arm, seed=1), 5.6, steps=13680)
    STUDIES["miniimagenet"].write(Place(tmp_path), 2, 1.0)
    assert "| 1 | 5.6 |" in (tmp_path / "paper" / "miniimagenet.md").read_text()


def test_a_very_short_stream_has_a_table(tmp_path: Path) -> None:
    write_run(tmp_path, "mnist/naive", replace(PRESETS["mnist/naive"].config, fraction=0.0005), 5.0)
    assert STUDIES["mnist"].write(Place(tmp_path), 1, 0.0005)


def test_a_shortened_stream_is_not_compared_and_has_its_own_file(tmp_path: Path) -> None:
    config = replace(PRESETS["mnist/arm"].config, fraction=0.5)
    write_run(tmp_path, "mnist/arm", config, 5.0)
    assert STUDIES["mnist"].write(Place(tmp_path), 1, 1.0) == []
    STUDIES["mnist"].write(Place(tmp_path), 1, 0.5)
    text = (tmp_path / "paper" / "mnist+fraction=0.5.md").read_text()
    assert "the first 50 % of every task" in text
    assert "\\*" not in text


def test_the_ablation_has_differences_from_the_baseline(tmp_path: Path) -> None:
    rows = STUDIES["ablation"].rows(2, 1.0)
    write_rows(tmp_path, rows, [[20.0, 22.0], [18.0, 19.0], *([1.0 * number] for number in range(12))])
    lines = lines_of("ablation", tmp_path)
    assert len(lines) == 14
    assert (lines[0][""], lines[0]["change"], lines[0]["published change"]) == ("Baseline", "", "")
    assert (lines[1][""], lines[1]["change"], lines[1]["published change"]) == ("λ1 = 0, λ2 = 0", "-2.5", "-3.6")
    assert float(lines[1]["change spread"]) == pytest.approx(0.5**0.5, abs=1e-6)
    assert [line["seeds"] for line in lines] == ["2", "2", *["1"] * 12]
    assert [float(line["change"]) for line in lines[2:]] == [number - 20.0 for number in range(12)]  # from seed 0 alone
    assert "| −2.5 ± 0.7 |" in (tmp_path / "paper" / "ablation.md").read_text()


def test_a_change_without_a_baseline_of_its_seed_is_left_out(tmp_path: Path) -> None:
    base, changed, *_ = STUDIES["ablation"].rows(2, 1.0)
    write_run(tmp_path, base.preset, base.config, 20.0)
    write_run(tmp_path, changed.preset, replace(changed.config, seed=1), 30.0)
    assert [line["change"] for line in lines_of("ablation", tmp_path)] == ["", ""]


def test_distillation_has_a_line_for_each_case_and_a_column_for_each_method(tmp_path: Path) -> None:
    rows = STUDIES["distillation"].rows(1, 1.0)
    write_rows(tmp_path, rows, [[float(number)] for number in range(len(rows))])
    lines = lines_of("distillation", tmp_path, 1)
    assert [line[""] for line in lines] == ["Baseline", "Unit lag (T = 1)", "No distill"]
    assert [line["ARM"] for line in lines] == ["2.0", "5.0", "7.0"]
    assert lines[2]["Distill (LwF)"] == ""  # LwF is nothing but distillation
    assert lines[1]["ADI, published"] == "14.4 ± 1.6"
    assert lines[0]["ARM, published"] == "26.9 ± 1.1"  # 26.4 ± 1.2 in the paper's other tables
    assert [line["seeds"] for line in lines] == ["1 / 1 / 1", "1 / 1 / 1", "0 / 1 / 1"]


def test_the_selection_is_sorted_and_names_the_papers_choice(tmp_path: Path) -> None:
    rows = [row for row in STUDIES["select"].rows(1, 1.0) if row.label == "mnist"]
    assert len(rows) == 16
    assert all(row.config.split == "val" for row in STUDIES["select"].rows(1, 1.0))
    write_rows(tmp_path, rows, [[float(number)] for number in range(16)])
    lines = lines_of("select", tmp_path, 1)
    assert [float(line["accuracy on validation"]) for line in lines] == [float(15 - number) for number in range(16)]
    papers = [line for line in lines if "paper" in "".join(line.values())]
    assert [(line["λ1"], line["λ2"], line["λ3"], line["λ4"]) for line in papers] == [("1", "0.1", "16", "0.1")]


def test_choices_bracket_the_value_of_the_preset(tmp_path: Path) -> None:
    rows = [row for row in STUDIES["choices"].rows(1, 1.0) if row.preset == "cifar10/icarl"]
    write_rows(tmp_path, rows, [[1.0], [3.0], [2.0]])
    (line,) = lines_of("choices", tmp_path, 1)
    assert line["values, the preset's in brackets"] == "0.03, [0.1], 0.3"
    assert line["accuracy on validation"] == "1.0, 3.0, 2.0"
    assert line["of the stream"] == "10 %"


def test_choices_on_a_part_of_the_images_say_so(tmp_path: Path) -> None:
    for row in STUDIES["choices"].rows(1, 1.0):
        if row.preset == "miniimagenet/slda":
            write_run(tmp_path, row.preset, row.config, 7.0, steps=760)
    (line,) = lines_of("choices", tmp_path, 1)
    assert line["of the stream"] == "100 %, 17 % of its images"


def test_forgetting_outside_the_published_spread_is_marked_in_the_ablation_too(tmp_path: Path) -> None:
    base, changed, *_ = STUDIES["ablation"].rows(1, 1.0)
    write_run(tmp_path, base.preset, base.config, 26.4, 8.0, steps=4750)
    write_run(tmp_path, changed.preset, changed.config, 22.8, 50.0, steps=4750)
    STUDIES["ablation"].write(Place(tmp_path), 1, 1.0)
    text = (tmp_path / "paper" / "ablation.md").read_text()
    assert (r"50.0\*" in text, r"8.0\*" in text) == (True, False)


def test_a_run_that_two_studies_want_has_what_each_of_them_wants() -> None:
    """One draws its curve; the other would do without."""
    names = ("accuracy", "recall-starts")
    for first, second in (names, names[::-1]):
        rows = [row for name in (first, second) for row in STUDIES[name].rows(1, 1.0)]
        (job,) = (job for job in Place(Path("out")).jobs(rows) if job.folder == "out/mnist/arm/seed-0")
        assert job.draw_curve
        assert job.config.curve_points == PRESETS["mnist/arm"].config.curve_points > 0
