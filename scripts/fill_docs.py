"""Copies the tables under results/paper into the docs: whatever stands between a table's name and its end is replaced.

    python scripts/fill_docs.py

In a document, `<!-- results/paper/mnist.md -->` and `<!-- end -->` on lines of their own hold the table of that file. A
test checks that the docs say what the files say, and that the files say what the runs found.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = (
    "README.md",
    *(f"docs/{name}" for name in ("results.md", "findings.md", "scale.md", "privacy.md", "choosing.md")),
)
HELD = re.compile(r"<!-- (results/paper/\S+\.md) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """The document with the tables of today."""
    return HELD.sub(lambda found: f"<!-- {found[1]} -->\n{(ROOT / found[1]).read_text()}<!-- end -->", text)


def main() -> None:
    """Fill them all."""
    for name in DOCS:
        path = ROOT / name
        if path.exists():
            before = path.read_text()
            if filled(before) != before:
                path.write_text(filled(before))
                print(f"filled {name}")


if __name__ == "__main__":
    main()
