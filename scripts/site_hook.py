"""What mkdocs is told beyond mkdocs.yml, so that the pages work on a code-hosting site and on the documentation site.

Pages link to each other as files of the repository. Here such links become links of the site: README.md,
CONTRIBUTING.md and CHANGELOG.md are pages of it, pictures come along, source files become pages that show them, and
what is left (a folder, say) is named instead of linked. The pages of the API are made from src/autorecall/__init__.pyi.
"""

from __future__ import annotations

import ast
import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PICTURES = (".png", ".svg")
SOURCES = (".py", ".ipynb", ".md", ".cff")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```|^~~~.*?^~~~)", re.MULTILINE | re.DOTALL)
GROUPS = {
    "learners": ("Learners", "One method each, with the same verbs: those of `Learner`."),
    "networks": ("Networks", "Settings that build a network. Any `nn.Module` does as well."),
    "data": ("Data", "Arrays, folders, files and torch datasets as one thing."),
    "runs": ("Runs", "A config and a dataset become a run folder, and that a model."),
    "errors": ("Errors", "One family; each says in a sentence what was wrong and what to do."),
}
VERBS = ["observe", "predict", "boundary", "memory", "grow", "state_dict", "load_state_dict"]
VERBS += ["on_recall", "grows", "threads"]
SETTINGS = ["!^_", "!^build$", "!^for_stream$", "!^weights$", "!^method$"]  # no methods: they are for those inside
OTHERS = ("Settings and streams", "A run as one typed value, and what it is made of.")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures that are not in docs/."""
    for path, name in PAGES.items():
        _add(files, config, name, (ROOT / path).read_text(encoding="utf-8"))
    for name, text in _api():
        _add(files, config, name, text)
    for page in [*(ROOT / path for path in PAGES), *sorted((ROOT / "docs").glob("*.md"))]:
        for target in _targets(page):
            place = _place(target)
            if place is None or files.get_file_from_path(place):
                continue
            if target.suffix in PICTURES:
                files.append(File.generated(config, place, abs_src_path=str(target)))
            else:
                _add(files, config, place, _shown(target), hidden=True)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    name = page.file.src_uri
    origin = next((path for path, made in PAGES.items() if made == name), f"docs/{name}")
    if name.startswith(("api/", "files/")):
        return markdown

    def link(found: re.Match[str]) -> str:
        picture, text, address, anchor = found.groups()
        if re.match(r"[a-z]+:", address):
            return found[0]
        target = (ROOT / origin).parent.joinpath(address).resolve()
        if not target.exists():
            raise PluginError(f"{origin} links to {address}, which is not there")
        place = _place(target)
        if place is None:
            return f"{text}"
        return f"{picture}[{text}]({posixpath.relpath(place, posixpath.dirname(name) or '.')}{anchor or ''})"

    parts = CODE.split(markdown)
    for number in range(0, len(parts), 2):  # between pieces of code
        parts[number] = re.sub(r"(?<=\d) ± (?=\d)", "\u00a0±\u00a0", LINK.sub(link, parts[number]))
    return "".join(parts)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load from the site what the theme would load from elsewhere, so that pages opened from disk can be searched."""
    return _from_here(output, "../" * page.url.count("/"))


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same for the page that says that a page is missing."""
    return _from_here(output_content, "")


def _from_here(page: str, up: str) -> str:
    return page.replace("https://unpkg.com/iframe-worker/shim", f"{up}site/worker.js")


def _add(files: Files, config: Any, name: str, text: str, hidden: bool = False) -> None:
    inclusion = InclusionLevel.NOT_IN_NAV if hidden else InclusionLevel.UNDEFINED
    files.append(File.generated(config, name, content=text, inclusion=inclusion))


def _targets(page: Path) -> list[Path]:
    """The files of the repository that a page links to."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    addresses = [found[3] for found in LINK.finditer(text) if not re.match(r"[a-z]+:", found[3])]
    return [target for address in addresses if (target := page.parent.joinpath(address).resolve()).is_file()]


def _place(target: Path) -> str | None:
    """Where a file of the repository is on the site."""
    path = os.path.relpath(target, ROOT).replace(os.sep, "/")
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if target.suffix in PICTURES:
        return path
    if target.is_file() and target.suffix in SOURCES:
        return f"files/{path}.md"
    return None


def _shown(path: Path) -> str:
    """A page that shows a source file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        shown = "\n\n".join(source if kind == "markdown" else f"````python\n{source}\n````" for kind, source in cells)
    else:
        shown = text if path.suffix == ".md" else f"````python\n{text}````\n"
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path.relative_to(ROOT)}\n\n{shown}"


def _api() -> list[tuple[str, str]]:
    """The pages of the API: one for each part of the package, one entry for each public name."""
    stub = ast.parse((ROOT / "src" / "autorecall" / "__init__.pyi").read_text(encoding="utf-8"))
    names: dict[str, list[str]] = {group: [] for group in (*GROUPS, "others")}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            group = node.module.split(".")[0]
            names[group if group in GROUPS else "others"] += [f"{node.module}.{alias.name}" for alias in node.names]
    overview = ["# API\n\nEvery public name of `autorecall`; each is imported on first use.\n"]
    pages = []
    for group, members in names.items():
        title, about = GROUPS.get(group, OTHERS)
        members.sort(key=lambda name: ".base." not in name)  # what all others have in common comes first
        links = ", ".join(f"[`{name.rsplit('.', 1)[1]}`][autorecall.{name}]" for name in members)
        overview.append(f"**[{title}]({group}.md)**: {about}\n\n{links}\n")
        entries = "\n".join(f"::: autorecall.{name}\n{_options(name, members)}" for name in members)
        pages.append((f"api/{group}.md", f"# {title}\n\n{about}\n\n{entries}"))
    return [("api/index.md", "\n".join(overview)), *pages]


def _options(name: str, members: list[str]) -> str:
    """What is shown of a name: all settings of a config, and of learners the verbs, once."""
    last = name.rsplit(".", 1)[1]
    if last.endswith("Config"):
        chosen = [
            "inherited_members: true",
            "separate_signature: false",
            "show_signature: false",
            f"filters: {SETTINGS}",
        ]
    elif last == "Learner":
        chosen = [f"members: {VERBS}"]
    elif f"{name}Config" in members:
        chosen = ["members: false"]
    else:
        return ""
    story = _story(name) if f"{name}Config" in members else ""
    return "    options:\n" + "".join(f"      {option}\n" for option in chosen) + f"\n{story}\n"


def _story(name: str) -> str:
    """What the file of a method says first: its paper, its idea, its figures."""
    path = ROOT.joinpath("src", "autorecall", *name.split(".")[:-1]).with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
