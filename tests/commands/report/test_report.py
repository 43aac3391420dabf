"""`autorecall report`: what the page says, that nothing in a file becomes part of it, and what is never overwritten."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from pathlib import Path

import pytest

from autorecall.commands.report import details
from autorecall.commands.report.charts import byte_words
from autorecall.commands.report.comparison import plots
from autorecall.commands.report.row_details import row_details
from autorecall.commands.report.scatter import Dot, scatter
from autorecall.commands.rows import gather, grouped
from autorecall.presets import PRESETS
from autorecall.runs.result import MemoryCount

from ..worlds import Say, refused, result, store
from .worlds import HARMLESS, HOSTILE, Page, history, page, write

# What it says


def test_a_run_is_told_from_its_accuracy_to_the_command_that_makes_it_again(tmp_path: Path) -> None:
    found = store(tmp_path / "seed-3", dataclasses.replace(result("mnist/arm", 3, 57.25), machine={"threads": "2"}))
    history(found, ["loss", "divergence"], 500)
    text = re.sub(r"\s+", " ", Page(page(found)).text)
    for part in (
        "mnist/arm seed 3",
        "57.2 %",
        "paper 56.3 ± 2.6",
        "paper 21.8 ± 1.6",
        "1.91 MB",
        "parameters478,4101,913,640",
        "divergence weight 1",
        "14 ms per step",
        "All settings are those of the preset.",
        "autorecall run mnist/arm --seed 3 --threads 2",
    ):
        assert part in text, part


def test_accuracies_forgetting_and_what_the_slider_needs_are_those_of_the_run(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    found = Page(page(run))
    text = found.text
    assert "after task 190.00.0" in text.replace("\n", "")
    assert "forgotten40.0–" in text.replace("\n", "")
    times = json.loads(found.scripts[0])
    assert (times["last"], times["steps"]) == (40, [0, 20, 40])
    assert times["accuracies"] == [[0.0, 12.0], [90.0, 0.0], [50.0, 80.0]]
    assert times["shares"][:20] == [[0.0, 0.0]] * 20
    assert times["shares"][-1] == [1.0, 1.0]
    assert sum(value.startswith("data:image/png") for value in found.values("src") + found.values("href")) == 2


def test_what_differs_from_the_preset_is_marked(tmp_path: Path) -> None:
    usual = PRESETS["mnist/arm"].config
    changed = dataclasses.replace(usual, fraction=0.5)
    run = store(tmp_path / "run", result("mnist/arm", 0), changed)
    text = page(run)
    assert '<tr class="differs"><th scope="row">fraction</th><td>0.5</td><td class="quiet">1.0</td></tr>' in text
    assert text.count('class="differs"') == 2  # here, and among all settings
    assert '<pre class="command">autorecall run mnist/arm --fraction 0.5</pre>' in text
    assert "paper 56.3" not in text


def test_several_runs_are_compared_by_mean_and_deviation_beside_the_paper(tmp_path: Path) -> None:
    for seed, accuracy in enumerate([54.0, 56.0, 61.0]):
        store(tmp_path / f"arm-{seed}", result("mnist/arm", seed, accuracy))
    images = dataclasses.replace(result("mnist/er-50", 0, 68.0), memory=MemoryCount(50, 0.0392, 0, 0.0))
    store(tmp_path / "er", images)
    nothing = dataclasses.replace(result("mnist/naive", 0, 19.0), memory=MemoryCount(0, 0.0, 0, 0.0))
    store(tmp_path / "naive", nothing)
    found = Page(page(tmp_path))
    lines = found.text.replace("\n", " ")
    assert "57.0 ± 3.6 56.3 ± 2.6" in lines
    assert found.values("id").count("row-0") == 1
    assert [value for value in found.values("data-value") if value.startswith("57")] == ["57.0"]
    assert sorted(value for value in found.values("href") if value.startswith("#")) == ["#row-0", "#row-1", "#row-2"]
    assert "What does a byte buy?" in lines
    assert {"dot images", "dot numbers", "dot nothing"} <= set(found.values("class"))


def test_runs_on_a_part_of_the_images_are_compared_with_each_other_alone(tmp_path: Path) -> None:
    kept = [MemoryCount(images, images / 100, 0, 0.0) for images in (0, 5, 9)]
    for name, memory in zip(("naive", "er-500", "lwf"), kept, strict=True):
        whole = dataclasses.replace(result(f"miniimagenet/{name}", 0), memory=memory)
        store(tmp_path / name, whole)
        store(tmp_path / f"{name}-part", dataclasses.replace(whole, steps=whole.steps // 6))
    rows = [
        row_details(number, row, [tmp_path], details.Budget.of(6))
        for number, row in enumerate(grouped(gather(tmp_path)))
    ]
    titles = [plot.title for plot in plots(rows)]
    assert titles == ["MiniImageNet, on test images", "MiniImageNet, 17 % of its images, on test images"]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["tern", "emu"]),  # the stream begins with class 1
        ({"parent": "seed-0"}, ["0", "1"]),
        ({"tasks": [["emu", "tern"]], "accuracy_matrix": [[50.0]]}, ["0", "1"]),
    ],
)
def test_recalled_classes_have_their_names_if_the_run_says_which_is_which(
    tmp_path: Path, changes: dict[str, object], names: list[str]
) -> None:
    usual = PRESETS["mnist/arm"].config
    stream = dataclasses.replace(usual.stream, classes_per_task=1, class_order=(1, 0))
    said: dict[str, object] = {"tasks": [["emu"], ["tern"]], "accuracy_matrix": [[50.0, 0.0], [50.0, 50.0]]}
    found = dataclasses.replace(result("own/arm", 0), **(said | changes))  # type: ignore[arg-type]
    run = store(tmp_path / "run", found, dataclasses.replace(usual, stream=stream))
    history(run, ["recalled_class_0", "recalled_class_1"], 500)
    (row,) = grouped(gather(run))
    (shown,) = row_details(0, row, [run], details.Budget.of(1)).runs
    assert [bar.label for bar in shown.class_bars] == names


def test_a_long_run_has_no_longer_curves_than_a_short_one(tmp_path: Path) -> None:
    run = store(tmp_path / "run", dataclasses.replace(result("mnist/arm", 0), steps=5000))
    history(run, ["loss"], 5000)
    (curve,) = [value for value in Page(page(run)).values("d") if value.count("L") > 50]
    assert curve.count("L") == 199


def test_left_out_and_missing_parts_are_named(tmp_path: Path, say: Say) -> None:
    write(tmp_path / "runs" / "good")
    bad = write(tmp_path / "runs" / "bad", seed=1)
    (bad / "result.json").write_text("{")
    plain = write(tmp_path / "runs" / "plain", seed=2)
    (plain / "history.csv").write_text("step\nx\n")
    said = say("report", str(tmp_path / "runs"))
    assert said.code == 0
    assert said.err.startswith(f"left out: {bad}")
    text = (tmp_path / "runs" / "report.html").read_text()
    assert "1 left out" in text
    assert "Without losses and recalled classes: runs/plain/history.csv is damaged" in text


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\nnothing", b"<svg onload='x'/>"])
def test_a_picture_that_is_none_is_left_out(tmp_path: Path, content: bytes) -> None:
    run = write(tmp_path / "run")
    (run / "recalled.png").write_bytes(content)
    text = page(run)
    assert "recalled.png is left out, because it is not a picture" in text
    assert "<img" not in text


def test_pictures_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(tmp_path / "run")
    monkeypatch.setattr(details, "LARGEST_PICTURE", 20)
    assert "<img" not in page(run)
    monkeypatch.undo()
    monkeypatch.setattr(details, "MOST_PIXELS", 599)
    assert "<img" not in page(run)
    monkeypatch.undo()
    assert "<img" in page(run)


# What it lets in


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_text_of_a_file_becomes_part_of_the_page(tmp_path: Path, hostile: str) -> None:
    """The page has the same elements and attributes whatever the texts are, and shows them as they are."""
    pages: list[Page] = []
    for name in (HARMLESS, hostile):
        place = tmp_path / str(len(pages))
        for seed in range(2):
            write(place / f"seed-{seed}", name, seed)
        write(place / "own", name, own=True)
        write(place / "third", name, seed=5, own=True)
        pages.append(Page(page(place)))
    harmless, found = pages
    assert found.elements == harmless.elements
    assert found.scripts[-1] == harmless.scripts[-1]
    assert (found.scripts[:-1], found.styles) == (harmless.scripts[:-1], harmless.styles)
    assert hostile in found.text
    assert f"term {hostile} over the steps of the run" in found.values("aria-label")  # in an attribute of an SVG
    assert all(value.startswith(("data:image/png;base64,", "#row-")) for value in found.values("href"))
    assert all(value.startswith("data:image/png;base64,") for value in found.values("src"))


@pytest.mark.parametrize("odd", ["\u202e", "\x1b[2J", "\0", "\ud800", "\u2028"])
def test_control_characters_are_replaced(tmp_path: Path, odd: str) -> None:
    write(tmp_path / "run", f"a{odd}b")
    text = page(tmp_path / "run")
    assert odd not in text
    assert text.encode()


def test_the_policy_allows_the_styles_and_scripts_of_the_page_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "run")
    found = Page(page(tmp_path / "run"))
    (policy,) = [value for value in found.values("content") if "default-src" in value]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for rule, text in (("script-src", found.scripts[-1]), ("style-src", found.styles[0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert not [name for _, name, _ in found.attributes if name == "style" or name.startswith("on")]


# Where it goes


def test_it_is_written_into_the_folder_and_again_over_itself(tmp_path: Path, say: Say) -> None:
    write(tmp_path / "runs" / "run")
    for words in ((), ("--out", str(tmp_path / "runs" / "report.html"))):
        said = say("report", str(tmp_path / "runs"), *words)
        assert (said.code, said.err) == (0, "")
        assert re.fullmatch(rf"wrote {tmp_path}/runs/report\.html \(\d[\d.]* kB\): 1 run\n", said.out)
    assert say("report", str(tmp_path / "runs"), str(tmp_path / "runs" / "run")).code == 0
    assert Path("report.html").exists()  # of several folders, here


@pytest.mark.parametrize("kind", ["text", "folder", "link", "page"])
def test_nothing_else_is_overwritten(tmp_path: Path, say: Say, kind: str) -> None:
    write(tmp_path / "run")
    target = tmp_path / "notes.html"
    if kind == "folder":
        target.mkdir()
    elif kind == "link":
        target.symlink_to(tmp_path / "run" / "result.json")
    else:
        target.write_text("<!doctype html><p>my notes" if kind == "page" else "my notes")
    before = (tmp_path / "run" / "result.json").read_bytes()
    refused(say("report", str(tmp_path / "run"), "--out", str(target)), str(target), "choose another --out")
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    if kind in ("text", "page"):
        assert target.read_text().endswith("my notes")


def test_nothing_is_written_without_a_run(tmp_path: Path, say: Say) -> None:
    (tmp_path / "runs").mkdir()
    refused(say("report", str(tmp_path / "runs")), f"there is no finished run under {tmp_path / 'runs'}; make one")
    refused(say("report", str(tmp_path / "nothing")), "is not a folder")
    refused(say("report"), "no folder is given")
    write(tmp_path / "runs" / "run")
    refused(say("report", str(tmp_path / "runs"), "--out", str(tmp_path / "no" / "where.html")), "is not a folder")
    assert not list(tmp_path.rglob("*.html"))


# Charts


def dot(name: str, accuracy: float, size: int) -> Dot:
    return Dot(name, accuracy, 1.0, size, "numbers" if size else "nothing", True, None, name, "#row-0")


def test_bytes_are_on_a_logarithmic_axis_and_nothing_stands_apart() -> None:
    dots = [dot("none", 20, 0), dot("small", 50, 10_000), dot("middle", 60, 100_000), dot("large", 70, 1_000_000)]
    chart = scatter("", dots, False)
    none, small, middle, large = (each.x for each in dots)
    assert middle - small == pytest.approx(large - middle, abs=0.2)
    assert chart.nothing == none < small
    assert [tick.label for tick in chart.x_ticks] == ["10 kB", "100 kB", "1 MB"]
    assert [tick.at for tick in chart.x_ticks] == [small, middle, large]
    heights = [each.y for each in dots]
    assert heights == sorted(heights, reverse=True)


def test_methods_that_know_nothing_stand_on_the_floor() -> None:
    dots = [Dot(name, 0.0, 0.0, size, "numbers", True, None, name, "#row-0") for name, size in (("a", 10), ("b", 100))]
    chart = scatter("", dots, False)
    assert {each.y for each in dots} == {chart.frame.floor} == {tick.at for tick in chart.y_ticks}


def test_labels_do_not_cover_each_other() -> None:
    dots = [dot(f"method-{place}", 50 + place, 1_000_000 + 1000 * place) for place in range(9)]
    scatter("", dots, False)
    boxes = []
    for each in dots:
        if each.label is not None:
            wide = 6.3 * len(each.name)
            left = each.label.at - {"start": 0, "middle": wide / 2, "end": wide}[each.anchor]
            boxes.append((left, each.label_y - 10, left + wide, each.label_y + 2))
    assert len(boxes) >= 5
    for place, one in enumerate(boxes):
        for other in boxes[:place]:
            wide, high = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
            assert wide <= 0 or high <= 0 or wide * high < 80


def test_a_single_amount_of_memory_makes_no_plot(tmp_path: Path) -> None:
    for seed, name in enumerate(("mnist/arm", "mnist/adi", "mnist/lwf")):
        store(tmp_path / str(seed), result(name, 0))
    assert "What does a byte buy?" not in page(tmp_path)


@pytest.mark.parametrize("count", [0, 999, 1000, 123_456_789, 5 * 10**13])
def test_bytes_in_words_are_right_to_three_digits(count: int) -> None:
    words = byte_words(count)
    if count:
        value, unit = words.split(" ")
        assert float(value) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit] == pytest.approx(
            count, rel=5e-3
        )
    else:
        assert words == "none"
