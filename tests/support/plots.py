"""Which labels of a plot lie over a bar's value, a line, a legend or the frame."""

import itertools

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.transforms import Bbox

#: Pixels by which boxes of text may meet: fonts leave more around letters.
SLACK = 1.0


def boxes(figure):
    """The boxes of labels, by text, and of legends, in pixels."""
    renderer = figure.canvas.get_renderer()
    found = []
    for axes in figure.axes:
        texts = [text for text in axes.texts if text.get_text()]
        found += [(axes, text.get_text(), text.get_window_extent(renderer)) for text in texts]
        if axes.get_legend():
            found.append((axes, "legend", axes.get_legend().get_window_extent(renderer)))
    return [(axes, name, Bbox(shrunk(box))) for axes, name, box in found]


def shrunk(box):
    return [[box.x0 + SLACK, box.y0 + SLACK], [box.x1 - SLACK, box.y1 - SLACK]]


def lines(axes):
    """The lines of the axes as points in pixels."""
    for line in axes.get_lines():
        yield line.get_transform().transform(np.asarray(line.get_xydata(), float))
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            for segment in collection.get_segments():
                yield collection.get_transform().transform(segment)


def crosses(points, box):
    """Whether a polygonal line, or its one point, meets a box."""
    if len(points) == 1:
        return box.contains(*points[0])
    steps = np.linspace(0, 1, 400)[:, None]
    return any(
        box.contains(*point)
        for a, b in itertools.pairwise(points)
        if np.isfinite([a, b]).all()
        for point in a + steps * (b - a)
    )


def overlaps(figure):
    """What overlaps, in words; empty for a plot that reads well."""
    figure.canvas.draw()
    wrong, placed = [], boxes(figure)
    for (_, name, box), (_, other, other_box) in itertools.combinations(placed, 2):
        if box.overlaps(other_box):
            wrong.append(f"{name!r} over {other!r}")
    for axes, name, box in placed:
        frame = axes.get_window_extent()
        is_inside = frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)
        if not is_inside and (name != "legend" or frame.overlaps(box)):
            wrong.append(f"{name!r} crosses the frame")
        wrong += [f"{name!r} over a line" for points in lines(axes) if crosses(points, box)]
        if box.x1 > figure.bbox.width or box.y1 > figure.bbox.height:
            wrong.append(f"{name!r} is cut off")
        if name == "legend":
            bars = [bar.get_window_extent() for bar in axes.patches]
            wrong += [f"{name} over a bar" for bar in bars if box.overlaps(bar)]
    renderer = figure.canvas.get_renderer()
    titles = [axes.title for axes in figure.axes] + [figure._suptitle]
    for title in filter(None, titles):
        box = title.get_window_extent(renderer)
        if title.get_text() and (box.x0 < 0 or box.x1 > figure.bbox.width):
            wrong.append(f"the title {title.get_text()!r} is cut off")
    return wrong
