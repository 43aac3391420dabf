"""The page: templates, filled in, with a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ..rows import Row, notes_on
from ..text import printable
from .comparison import plots
from .details import Budget
from .row_details import row_details

MARK = '<meta name="generator" content="autorecall report">'  # by which a report is recognised


def page_of(rows: Sequence[Row], roots: Sequence[Path], left_out: Sequence[str] = ()) -> str:
    """A report on these rows; `roots` are the folders that were given."""
    budget = Budget.of(sum(len(row.runs) for row in rows))
    details = [row_details(number, row, roots, budget) for number, row in enumerate(rows)]
    style, script = _text("page.css"), _text("page.js")
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {_hash(style)}; script-src {_hash(script)}"
    )
    return (
        _environment()
        .get_template("page.html")
        .render(
            mark=Markup(MARK),
            policy=policy,
            style=Markup(style),
            script=Markup(script),
            rows=details,
            runs=sum(len(row.runs) for row in details),
            plots=plots(details),
            notes=notes_on(rows, printable),
            left_out=left_out,
            places=[root.name or str(root) for root in roots],
            version=version("autorecall"),
        )
    )


def _environment() -> Environment:
    """Everything that is filled in is cleaned and escaped, whatever it is and wherever it stands."""
    return Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _text(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
