"""Runs to report on, with names that a page may take for something else."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from autorecall.commands.report.page import page_of
from autorecall.commands.rows import gather, grouped
from autorecall.presets import PRESETS
from autorecall.runs.result import Point

from ..worlds import result, store

HARMLESS = "a"
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "</style></title></template></svg><b>",
    "\" onload=alert(1) x='",
    "{{ 7 * 7 }}{% raw %}",
    "<!--",
    "]]>&lt;&#x3c;b>",
    "javascript:alert(1)",
)


def write(folder: Path, name: str = HARMLESS, seed: int = 0, own: bool = False) -> Path:
    """A run of two tasks that recalls, with this name wherever a file may hold a text."""
    preset = f"own/{name}" if own else "mnist/arm"
    usual = PRESETS["mnist/arm"].config
    config = replace(usual, device=name, stream=replace(usual.stream, order=(name, f"{name}2")))
    found = replace(
        result(preset, seed, 65.0, 40.0),
        accuracy_matrix=[[90.0, 0.0], [50.0, 80.0]],
        steps=40,
        curve=[Point(0, [0.0, 12.0]), Point(20, [90.0, 0.0]), Point(40, [50.0, 80.0])],
        tasks=[[name], [f"{name}2"]],
        machine={"threads": "2", "processor": name, name: name},
        versions={"torch": name},
        data=name,
    )
    made = store(folder, found, config)
    history(made, ["loss", f"term {name}", "recalled_class_0", "recalled_class_1"], 40)
    Image.new("RGB", (30, 20), "red").save(made / "recalled.png")
    return made


def history(folder: Path, columns: Sequence[str], steps: int) -> None:
    """Every number is its step over all steps; nothing is recalled in the first half."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["step", "task", *columns])
    for step in range(1, steps + 1):
        late = step > steps // 2
        shares = [step / steps if late or not name.startswith("recalled_class") else "" for name in columns]
        writer.writerow([step, 1 + late, *shares])
    (folder / "history.csv").write_text(lines.getvalue(), errors="replace")


def page(*places: Path) -> str:
    """The report on folders."""
    return page_of(grouped([run for place in places for run in gather(place)]), places)


class Page(HTMLParser):
    """The elements of a page, their attributes and the text in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}", ()))
        self._inside = ""

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", (data,)))

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside == "style":
            self.styles.append(data)
        else:
            self.text += data

    def values(self, name: str) -> list[str]:
        """Those of all attributes of this name."""
        return [value for _, found, value in self.attributes if found == name]
