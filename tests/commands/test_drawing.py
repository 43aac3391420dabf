"""Names beside points: none covers another, nor a marker, where there is room."""

from __future__ import annotations

from itertools import combinations

import pytest

from autorecall.commands import drawing


@pytest.mark.parametrize(("scale", "left", "right"), [("linear", -10, 12), ("log", 0.1, 20)])
def test_names_cover_neither_each_other_nor_markers(scale: str, left: float, right: float) -> None:
    figure = drawing.new_figure(5, 4)
    ax = figure.subplots()
    points = [(1.0, 50.0), (1.0, 51.0), (1.02, 52.0), (1.0, 60.0), (2.0, 50.5), (8.0, 90.0)]
    for point in points:
        ax.plot(*point, "s", markersize=4)
    ax.plot([1.0, 5.0, 9.0], [55.0, 80.0, 88.0], "o-", markersize=4)
    ax.text(1.2, 42.0, "a level")
    ax.set_xscale(scale)
    ax.set_xlim(left, right)
    ax.set_ylim(0, 100)
    names = ["iCaRL (5 iter)", "ER", "ER-MIR", "GEM", "ARM", "streaming LDA"]
    found = drawing.name_points(ax, names, points)
    figure.draw_without_rendering()
    assert [text.get_text() for text in found] == names
    assert len(ax.texts) == len(names) + 1
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    markers = [place for line in ax.get_lines() for place in line.get_transform().transform(line.get_xydata())]
    assert not any(box.contains(*place) for box in boxes for place in markers)
