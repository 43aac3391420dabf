"""Charts as numbers: where lines, ticks and labels go. The templates make SVG of them, and escape every text."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

Values = NDArray[np.float64]

CLASSES = 7  # colours of lines that the style sheet knows, for light and dark
DARK, LIGHT = (82, 106, 184), (110, 190, 70)  # more lines than that run from one to the other
# From nothing to much, with brightness that only rises, so that it can be read in grey.
DENSITY = ((4, 4, 20), (73, 18, 106), (159, 42, 99), (228, 89, 51), (251, 167, 35), (252, 255, 164))


@dataclass(frozen=True)
class Frame:
    """The size of a chart, and the margins around what is drawn."""

    width: float
    height: float
    left: float = 44
    right: float = 10
    top: float = 10
    bottom: float = 34

    @property
    def inner(self) -> float:
        """The width between the margins."""
        return self.width - self.left - self.right

    @property
    def floor(self) -> float:
        """The lowest line."""
        return self.height - self.bottom

    def x(self, share: float) -> float:
        """How far to the right a share of the width is."""
        return round(self.left + share * self.inner, 1)

    def y(self, share: float) -> float:
        """How far down a share of the height is, counted from below."""
        return round(self.floor - share * (self.floor - self.top), 1)


LARGE, SMALL = Frame(440, 230), Frame(300, 150)


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """A line of a chart; its colour is a class of the style sheet or a colour by itself."""

    label: str
    colour: str
    path: Markup


@dataclass(frozen=True)
class LineChart:
    """Lines over the steps of a run."""

    title: str
    note: str
    frame: Frame
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    boundaries: list[float]
    """Where tasks end."""


def line_chart(
    title: str,
    steps: Sequence[int],
    series: Mapping[str, Sequence[float]],
    last: int,
    task_ends: Sequence[int],
    frame: Frame,
    extent: tuple[float, float] | None = None,
    note: str = "",
) -> LineChart:
    """One line for each series, on an axis of steps up to the last; a number that is NaN leaves a gap."""
    known = [value for values in series.values() for value in values if math.isfinite(value)]
    low, high = extent or (min(known, default=0.0), max(known, default=1.0))
    y_ticks = rounded_ticks(low, high, 5 if frame.height > 200 else 3)
    if extent is None:
        low, high = min(low, y_ticks[0]), max(high, y_ticks[-1])
    size = (high - low) or 1.0
    lines = []
    for (label, values), colour in zip(series.items(), colours(len(series)), strict=True):
        points = [(frame.x(step / last), (value - low) / size) for step, value in zip(steps, values, strict=True)]
        lines.append(Line(label, colour, _path([(x, frame.y(y)) for x, y in points])))
    return LineChart(
        title,
        note,
        frame,
        lines,
        step_ticks(last, frame),
        [Tick(frame.y((at - low) / size), label) for at, label in labelled(y_ticks) if low <= at <= high],
        [frame.x(end / last) for end in task_ends[:-1]],
    )


def _path(points: Sequence[tuple[float, float]]) -> Markup:
    words, drawing = [], False
    for x, y in points:
        if math.isfinite(y):
            words.append(f"{'L' if drawing else 'M'}{x:g} {y:g}")
        drawing = math.isfinite(y)
    return Markup("".join(words))  # numbers and two letters


def step_ticks(last: int, frame: Frame) -> list[Tick]:
    """A few steps along the axis."""
    count = 5 if frame.width > 400 else 3
    return [Tick(frame.x(value / last), number(value)) for value in rounded_ticks(0, last, count) if value <= last]


def rounded_ticks(low: float, high: float, count: int) -> list[float]:
    """About so many round numbers that reach from one to the other.

    >>> rounded_ticks(0, 100, 5), rounded_ticks(0.013, 0.047, 3)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.0, 0.02, 0.04, 0.06])
    """
    size = high - low
    if not (math.isfinite(size) and size > 1e-300):
        return [low]
    rough = size / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * place, 12 - math.floor(math.log10(step))) for place in range(first, end + 1)]


def labelled(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks with as many digits as tell them apart.

    >>> labelled([1.75, 1.755, 1.76])
    [(1.75, '1.750'), (1.755, '1.755'), (1.76, '1.760')]
    """
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
    if not 1e-5 < step < 1:
        return [(tick, number(tick)) for tick in ticks]
    digits = next(places for places in range(8) if abs(round(step, places) - step) < step / 100)
    return [(tick, f"{tick:,.{digits}f}") for tick in ticks]


def number(value: float) -> str:
    """A number in few letters.

    >>> number(0.0), number(4750), number(0.0125), number(1e-7)
    ('0', '4,750', '0.0125', '1e-07')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def colours(count: int) -> list[str]:
    """A colour for each of several lines."""
    if count <= CLASSES:
        return [f"line-{place}" for place in range(count)]
    return [_hex(_between(DARK, LIGHT, place / (count - 1))) for place in range(count)]


def _between(one: Sequence[int], other: Sequence[int], share: float) -> tuple[int, ...]:
    return tuple(round(a + share * (b - a)) for a, b in zip(one, other, strict=True))


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


@dataclass(frozen=True)
class Density:
    """Classes against time; the brighter, the more."""

    frame: Frame
    image: Markup
    """One pixel for each class and stretch of time, as a data URI."""
    most: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    boundaries: list[float]


def density(shares: Values, classes: Sequence[str], last: int, task_ends: Sequence[int]) -> Density:
    """A picture of shares, stretches × classes."""
    filled = np.nan_to_num(shares)
    most = float(filled.max()) or 1.0
    anchors = np.linspace(0, 1, len(DENSITY))
    levels = filled.T.clip(0) / most
    pixels = np.stack([np.interp(levels, anchors, [c[part] for c in DENSITY]) for part in range(3)], axis=-1)
    drawn = io.BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8)).save(drawn, "PNG", optimize=True)
    longest = max((len(name) for name in classes), default=1)
    frame = Frame(440, 230, left=min(110, 16 + 7 * longest))
    every = math.ceil(len(classes) / 12)
    height = (frame.floor - frame.top) / max(1, len(classes))
    labels = [
        Tick(round(frame.top + height * (place + 0.5), 1), name if len(name) <= 14 else name[:13] + "…")
        for place, name in enumerate(classes)
        if place % every == 0
    ]
    boundaries = [frame.x(end / last) for end in task_ends[:-1]]
    return Density(frame, png_uri(drawn.getvalue()), most, step_ticks(last, frame), labels, boundaries)


def png_uri(content: bytes) -> Markup:
    """A PNG file as an address that holds it."""
    return Markup("data:image/png;base64," + base64.b64encode(content).decode())


def byte_words(count: float) -> str:
    """A number of bytes as a person says it; 1 MB is 10⁶ bytes.

    >>> byte_words(0), byte_words(784), byte_words(39_200), byte_words(1_913_640)
    ('none', '784 B', '39.2 kB', '1.91 MB')
    """
    if count == 0:
        return "none"
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
