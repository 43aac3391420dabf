"""The docs say what the files under results/paper say, and those say what the runs found."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.study import Place

ROOT = Path(__file__).parents[1]
TABLES = sorted(path.name for path in (ROOT / "results" / "paper").glob("*.md"))
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_results_are_those_of_the_runs(name: str, tmp_path: Path) -> None:
    study, fraction = re.fullmatch(r"([a-z0-9-]+?)(?:\+fraction=([\d.]+))?\.md", name).groups()  # type: ignore[union-attr]
    part = float(fraction or 1)
    place = Place(ROOT / "results", into=tmp_path)
    for numbers in (ROOT / "results" / "paper").glob(f"{study}*.json"):  # of learners that are not kept
        (tmp_path / numbers.name).write_bytes(numbers.read_bytes())
    if study == "frozen-backbone":
        frozen = script("frozen_backbone")
        frozen.write(frozen.numbers_in(frozen.NUMBERS, frozen.Numbers), place)
    else:
        found = STUDIES.get(study) or STUDIES[study.rsplit("-", 1)[0]]  # some have a table for each dataset
        found.write(place, 5 if part == 1 else 3, part)
    for kind in ("md", "tex", "csv"):
        written = Path(name).with_suffix(f".{kind}").name if "=" not in name else name.removesuffix("md") + kind
        assert (tmp_path / written).read_text() == (ROOT / "results" / "paper" / written).read_text()


def test_every_table_and_figure_of_the_results_is_in_the_docs() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS)
    figures = [path.name for path in (ROOT / "results" / "paper").glob("*.png")]
    for name in [*TABLES, *figures]:
        assert f"results/paper/{name}" in text, name
