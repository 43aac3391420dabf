"""What a byte buys: rows that can be compared, as plots of accuracy against memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..rows import PART, Row
from .charts import byte_words
from .row_details import RowDetails
from .scatter import Dot, Scatter, scatter

FEWEST = 3  # rows that make a plot
# What rows are told apart by that is not a setting of a method.
SHARED = ("fraction", "split", "test_images", "dataset", PART)
VARIANTS = ("ablation-", "-unit-lag", "-no-distill")  # presets that are a method with something changed
DATASETS = {
    "mnist": "MNIST-5k",
    "mnist-full": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR10",
    "miniimagenet": "MiniImageNet",
}

Group = tuple[str, float, str, int | None, object, str]


def plots(rows: Sequence[RowDetails]) -> list[Scatter]:
    """One for each dataset, and part of it, of which several rows keep different amounts."""
    groups: dict[Group, list[RowDetails]] = {}
    for details in rows:
        groups.setdefault(_group(details.row), []).append(details)
    found = []
    for group, members in groups.items():
        kept = {details.row.memory.bytes for details in members}
        if len(members) >= FEWEST and len(kept) > 1:
            whole = group[1:4] == (1.0, "test", None)
            found.append(scatter(_title(group), [_dot(details) for details in members], folded=not whole))
    if found and all(plot.folded for plot in found):
        found = [replace(plot, folded=False) for plot in found]
    return sorted(found, key=lambda plot: plot.folded)


def _group(row: Row) -> Group:
    run = row.runs[0]
    config = run.config
    data = run.result.data if config.dataset not in DATASETS else ""  # one's own may be any
    return (config.dataset, config.fraction, config.split, config.test_images, row.changed.get(PART), data)


def _title(group: Group) -> str:
    dataset, fraction, split, images, share, _ = group
    part = "" if fraction == 1 else f", the first {100 * fraction:g} % of every task"
    part += "" if share is None else f", {share} of its images"
    some = "" if images is None else f", about {images:,} images tested"
    return (
        f"{DATASETS.get(dataset, 'Your own data')}{part}{some}, on {'validation' if split == 'val' else 'test'} images"
    )


def _dot(details: RowDetails) -> Dot:
    row = details.row
    memory, accuracy = row.memory, row.accuracy
    plain = not set(row.changed) - set(SHARED) and not any(part in row.preset for part in VARIANTS)
    name = row.preset.split("/")[-1]
    if not plain:
        name = ", ".join([name, *details.changed])
    return Dot(
        name,
        accuracy.value,
        accuracy.spread or 0.0,
        memory.bytes,
        "images" if memory.images else "numbers" if memory.numbers else "nothing",
        plain,
        row.published.accuracy if row.published is not None else None,
        f"{' '.join([row.preset, *details.changed])}: {accuracy} %, keeps {byte_words(memory.bytes)}",
        f"#{details.id}",
    )
