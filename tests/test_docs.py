"""The docs say what the files under results/paper say, and those say what the runs found."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autorecall.commands import drawing
from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.study import Place

ROOT = Path(__file__).parents[1]
TABLES = sorted(path.name for path in (ROOT / "results" / "paper").glob("*.md"))
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*DOCS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_tables_in_the_docs_are_those_of_the_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert script("fill_docs").filled(text) == text


def study_of(table: str) -> tuple[str, float]:
    """The study that writes a table, and the part of every task that it is about."""
    name, _, part = table.removesuffix(".md").partition("+fraction=")
    return (name if name in STUDIES or name == "frozen-backbone" else name.rpartition("-")[0]), float(part or 1)


@pytest.mark.parametrize(("study", "part"), sorted(set(map(study_of, TABLES))))
def test_tables_of_the_results_are_those_of_the_runs(
    study: str, part: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "save", lambda figure, path: [])  # figures are not compared
    place, paper = Place(ROOT / "results", into=tmp_path), ROOT / "results" / "paper"
    for numbers in paper.glob("*.json"):  # of learners that are not kept
        (tmp_path / numbers.name).write_bytes(numbers.read_bytes())
    if study == "frozen-backbone":
        frozen = script("frozen_backbone")
        frozen.write(frozen.numbers_in(frozen.NUMBERS, frozen.Numbers), place)
    else:
        STUDIES[study].write(place, 5 if part == 1 else 3, part)
    for table in TABLES:
        if study_of(table) == (study, part):
            for name in (table, table[:-2] + "tex", table[:-2] + "csv"):
                assert (tmp_path / name).read_text() == (paper / name).read_text()


def test_every_table_and_figure_of_the_results_is_in_the_docs() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS)
    figures = [path.name for path in (ROOT / "results" / "paper").glob("*.png")]
    for name in [*TABLES, *figures]:
        assert f"results/paper/{name}" in text, name


@pytest.mark.parametrize("path", LINKING, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`]*`", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for address, anchor in LINK.findall(text):
        if re.match(r"[a-z]+:", address):
            continue
        target = (path.parent / address).resolve() if address else path
        assert target.exists(), address
        assert ROOT in target.parents, address
        assert not anchor or anchor in anchors(target), f"{address}#{anchor}"


def anchors(page: Path) -> set[str]:
    """What headings are called in links, where code-hosting sites and the documentation site agree."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").glob("*.md")):
        assert re.search(rf"^ +- .+: {re.escape(path.name)}$", listed, re.MULTILINE), f"add {path.name} to mkdocs.yml"


def test_the_map_of_the_paper_names_what_is_in_the_files() -> None:
    text = (ROOT / "docs" / "paper-to-code.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\((\.\./[^)]+\.py)\):((?:,? `\w+`)+)", text)
    assert len(named) > 40
    for address, names in named:
        source = (ROOT / "docs" / address).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^ *(?:def |class )?{name}\b", source, re.MULTILINE), f"{address} has no {name}"


def test_the_map_of_the_paper_is_complete() -> None:
    text = (ROOT / "docs" / "paper-to-code.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for title, count in (("Equations", 12), ("Algorithm 1", 11), ("Tables", 9), ("Figures", 7)):
        rows = re.findall(r"^\| ([\d, ]+) \|", sections[title], re.MULTILINE)
        assert [int(number) for row in rows for number in row.split(",")] == list(range(1, count + 1)), title
    for name, study in STUDIES.items():
        if name != "choices" and not study.what.startswith("ours:"):
            assert f"`autorecall reproduce {name}`" in text, name
