"""The plot of accuracy against bytes: where dots and their labels go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .charts import Frame, Tick, byte_words, number, rounded_ticks


@dataclass
class Dot:
    """A row in the plot of accuracy against memory."""

    name: str
    accuracy: float
    spread: float
    bytes: int
    kind: str
    """What is kept: images, numbers or nothing."""
    plain: bool
    """Whether it is a method as it stands, not a variant of one; variants are not labelled."""
    paper: float | None
    title: str
    link: str
    x: float = 0.0
    y: float = 0.0
    low: float = 0.0
    high: float = 0.0
    paper_y: float | None = None
    label: Tick | None = None
    label_y: float = 0.0
    anchor: str = "start"


@dataclass(frozen=True)
class Scatter:
    """Accuracy against bytes."""

    title: str
    frame: Frame
    dots: list[Dot]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    nothing: float | None
    """Where those stand that keep nothing, left of the axis of bytes."""
    paper: bool
    kinds: list[str]
    folded: bool


LETTER, HIGH = 6.3, 13.0  # of a label, on average
MOST_HIDDEN = 60.0  # of its area, which may cover something else
# Around a dot, nearest first: (right, down, anchor)
PLACES = (
    *((8, 4, "start"), (-8, 4, "end"), (0, -9, "middle"), (0, 17, "middle")),
    *((8, -7, "start"), (-8, -7, "end"), (8, 15, "start"), (-8, 15, "end")),
    *((0, -22, "middle"), (0, 30, "middle")),
    *((14, -19, "start"), (-14, -19, "end"), (14, 27, "start"), (-14, 27, "end")),
    *((0, -35, "middle"), (0, 43, "middle")),
    *((20, -31, "start"), (-20, -31, "end"), (20, 39, "start"), (-20, 39, "end")),
)
Box = tuple[float, float, float, float]


def scatter(title: str, dots: list[Dot], folded: bool) -> Scatter:
    """The dots, placed, variants below the others; labels stand where they hide neither a dot nor each other."""
    frame = Frame(860, 430, left=52, right=24, bottom=48)
    kept = [dot.bytes for dot in dots if dot.bytes > 0]
    none = frame.x(0.05) if len(kept) < len(dots) else None
    first, end = math.floor(math.log10(min(kept))), math.ceil(math.log10(max(kept)))
    end = max(end, first + 1)
    start = 0.14 if none is not None else 0.03
    highest = max(max(dot.accuracy + dot.spread, dot.paper or 0) for dot in dots)
    y_ticks = [tick for tick in rounded_ticks(0, min(100.0, highest * 1.04), 5) if tick <= 100]
    top = min(100.0, max(y_ticks[-1], highest)) or 1.0  # where all have 0

    def across(count: float) -> float:
        return frame.x(start + (0.97 - start) * (math.log10(count) - first) / (end - first))

    def up(value: float) -> float:
        return frame.y(min(max(value, 0.0), top) / top)

    for dot in dots:
        dot.x = across(dot.bytes) if dot.bytes else none or 0.0
        dot.y, dot.low, dot.high = up(dot.accuracy), up(dot.accuracy - dot.spread), up(dot.accuracy + dot.spread)
        dot.paper_y = None if dot.paper is None else up(dot.paper)
    _place_labels(dots, frame)
    return Scatter(
        title,
        frame,
        sorted(dots, key=lambda dot: dot.plain),
        [Tick(across(10.0**power), byte_words(10**power)) for power in range(first, end + 1)],
        [Tick(up(value), number(value)) for value in y_ticks],
        none,
        any(dot.paper is not None for dot in dots),
        sorted({dot.kind for dot in dots}),
        folded,
    )


def _place_labels(dots: Sequence[Dot], frame: Frame) -> None:
    taken: list[Box] = [(dot.x - 5, dot.y - 5, dot.x + 5, dot.y + 5) for dot in dots]
    taken += [(dot.x - 3, dot.paper_y - 3, dot.x + 3, dot.paper_y + 3) for dot in dots if dot.paper_y is not None]
    named = [dot for dot in dots if dot.plain]
    for dot in sorted(named or dots, key=lambda dot: dot.y):  # the best first
        text = dot.name if len(dot.name) <= 24 else dot.name[:23] + "…"
        tried = [(_box(dot, text, *place), place) for place in PLACES]
        box, (right, down, anchor) = min(
            tried, key=lambda each: _hidden(each[0], taken, frame)
        )  # the first of the best
        if _hidden(box, taken, frame) > MOST_HIDDEN:
            continue  # the row is a click away, and its name is shown above the dot
        taken.append(box)
        dot.label, dot.label_y, dot.anchor = Tick(dot.x + right, text), dot.y + down, anchor


def _box(dot: Dot, text: str, right: float, down: float, anchor: str) -> Box:
    wide = LETTER * len(text)
    left = dot.x + right - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
    return (left, dot.y + down - HIGH + 3, left + wide, dot.y + down + 2)


def _hidden(box: Box, taken: Sequence[Box], frame: Frame) -> float:
    """How much of a label and of what is there would cover each other, or lie outside."""
    outside = (
        max(0.0, 2 - box[0]) + max(0.0, box[2] - frame.width) + max(0.0, 2 - box[1]) + max(0.0, box[3] - frame.floor)
    )
    covered = 0.0
    for other in taken:
        wide, high = min(box[2], other[2]) - max(box[0], other[0]), min(box[3], other[3]) - max(box[1], other[1])
        covered += wide * high if wide > 0 and high > 0 else 0.0
    return covered + 100 * outside
