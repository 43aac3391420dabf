"""A report in a real browser: it opens without an error, sorts, folds and slides, and its policy holds."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .worlds import HOSTILE, page, write

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--dump-dom"),
)

# What a reader does, and what the page shows then.
ACTIONS = """
const said = [], names = () => [...document.querySelectorAll("tr.row")].map((row) => row.cells[1].dataset.value);
const heads = document.querySelectorAll("thead button");
heads[1].click(); said.push(names().join(" ")); heads[1].click(); said.push(names().join(" "));
document.querySelectorAll("tr.row button")[0].click();
said.push([...document.querySelectorAll("tr.more")].filter((row) => !row.hidden).length);
const slider = document.querySelector("tr.more:not([hidden]) input[type=range]");
const table = document.querySelector("tr.more:not([hidden]) .bars");
const bars = () => [...table.rows].map((row) => row.cells[2].textContent);
said.push(bars().join(" ")); slider.value = 25; slider.dispatchEvent(new Event("input")); said.push(bars().join(" "));
said.push(document.querySelector("tr.more:not([hidden]) output").textContent);
const filter = document.getElementById("filter");
filter.value = "nothing-like-it"; filter.dispatchEvent(new Event("input"));
said.push([...document.querySelectorAll("tbody[id]")].filter((body) => !body.hidden).length);
document.title = said.join("; ");
"""


def opened(tmp_path: Path, text: str) -> tuple[str, list[str]]:
    """The title in the end, and what the console said."""
    assert BROWSER is not None
    (tmp_path / "page.html").write_text(text)
    command = [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path / 'browser'}", (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None
    return title[1], [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")
def test_it_opens_sorts_folds_and_slides_and_lets_no_script_in(tmp_path: Path) -> None:
    for place, name in enumerate(HOSTILE[:4]):
        write(tmp_path / "runs" / str(place), name, own=True)
    text = page(tmp_path / "runs").replace('data-value="65.0"', 'data-value="{}"')
    for value in "3142":  # accuracies to sort by
        text = text.replace('data-value="{}"', f'data-value="{value}"', 1)
    digest = base64.b64encode(hashlib.sha256(ACTIONS.encode()).digest()).decode()
    acted = text.replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ")
    title, console = opened(tmp_path, acted.replace("</body>", f"<script>{ACTIONS}</script></body>"))
    assert console == []
    assert title == "4 3 2 1; 1 2 3 4; 1; 50 80; 90 0; 25; 0"

    injected = "<script>document.title = 'in'</script><img src='x' onerror='document.title = 1'>"
    title, console = opened(tmp_path, text.replace("</body>", f"{injected}</body>"))
    assert title == "4 runs in runs"
    assert console  # the browser says that it refused them
