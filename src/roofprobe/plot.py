"""Draws a roofline on an Axes. Nothing is measured or judged here: that is in ``roofline``.

Labels look for a free place when they are drawn, at the size that the Axes has then.
"""

import io
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patheffects import withStroke
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from roofprobe.errors import UsageError
from roofprobe.record import write_whole
from roofprobe.roofline import Ceiling, Point, Roofline, above_roof, ridge, suspects
from roofprobe.units import number, percent, si, visible

FORMATS: Final = ("png", "svg", "pdf")

# Sizes in points, for a picture that is printed at its own width: a column of a two-column page
# (3.4 inches), so that it can be read at half a page.
_TITLE, _TEXT, _LABEL, _CAPTION = 8.0, 7.0, 6.0, 5.8
_WIDTH, _AXES_HEIGHT = 244.8, 190.0
_LEFT, _RIGHT, _ABOVE, _BELOW = 42.0, 8.0, 6.0, 28.0  # around the Axes, without title and caption
_SPACING = 1.25  # of lines, over font size
_MARKER = 5.0
_GAP = 2.0  # between a label and what it labels
_DPI = 300
# From this many roofs and points on, each one more makes the Axes a line higher, up to so much.
_ROOMY, _TALLER = 6, 70.0
_CLEAR = _MARKER / 2 + _GAP
_PLATEAU = 0.42  # of the width: where flat roofs carry their labels, right of the last ridge
_LEADS = (11.0, 18.0, 26.0, 36.0, 48.0, 64.0)  # how far off a label may go, at the end of a line

# Hues of Okabe and Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/,
# darkened until text in them reads on white. Memory roofs take the first one.
_COLOURS: Final = ("#0072b2", "#b84f00", "#007a58", "#9c4a78", "#7d6200", "#3d3d3d")
_DASHES: Final = {"measured": "-", "datasheet": "--", "given": ":"}
_DASH_NAMES: Final = {"measured": "solid", "datasheet": "dashed", "given": "dotted"}
_MARKERS: Final = {"dram": "o", "l2": "s", "l1": "^"}
_LEVELS: Final = {"dram": "DRAM", "l2": "L2", "l1": "L1"}

# Parts of a step: by what binds them.
_BOUNDS: Final = {
    "memory": _COLOURS[0],
    "compute": _COLOURS[1],
    "latency": _COLOURS[4],
    None: "#8a8a8a",
}
_BOUND_NAMES: Final = {"memory": "blue", "compute": "orange", "latency": "olive", None: "grey"}
_SMALLEST, _LARGEST = 1.5, 13.0  # diameters of their markers
_THROUGH = 0.65  # large ones do not hide small ones

_Line = tuple[tuple[float, float], tuple[float, float]]  # ends, in data

# From this many points on, labels are numbers with a key under the Axes.
_NUMBERED_FROM = 7
# So do labels longer than this share of the width, where they stand among others.
_LONGEST = 0.55
_NAMES_LISTED = 12  # for each reason
_LABEL_LENGTH = 48  # characters


@contextmanager
def _boxes_for_missing_glyphs() -> Iterator[None]:
    """A character that the font lacks is a box, and no news to whoever named the run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        yield


@_boxes_for_missing_glyphs()
def draw_roofline(ax: Axes, roofline: Roofline) -> list[Artist]:
    """Draws roofs, points, labels and the caption under the Axes.

    Args:
        ax: Takes over its scales, limits, labels and title. The caption needs room below.
        roofline: What to draw.

    Returns:
        The artists that were added: roofs, points and what joins them, their labels, caption.
    """
    x, y = _limits(roofline)
    ax.set(xscale="log", yscale="log", xlim=x, ylim=y)
    _decorate(ax, roofline)
    layout = _Layout(ax)
    artists: list[Artist] = []

    roofs = list(_roofs(roofline, x))
    for _, style, (start, end) in roofs:
        artists += ax.plot(*zip(start, end, strict=True), linewidth=1.1, zorder=2, **style)
        layout.occupy(_chain(layout.at(*start), layout.at(*end), 1.0), _Layout.LINE)
    for start, end in _joins(roofline.points):
        style = {"color": "black", "linewidth": 0.8, "zorder": 3}
        artists += ax.plot(*zip(start, end, strict=True), **style)
        layout.occupy(_chain(layout.at(*start), layout.at(*end), 1.0), _Layout.LINE)
    ridges = [(at, peak.value) for peak, _, at in _ridges(roofline)]
    if ridges:
        dots: dict[str, Any] = {
            "s": 7,
            "color": "white",
            "edgecolors": "#555555",
            "linewidths": 0.6,
            "zorder": 3,
        }
        artists.append(ax.scatter(*zip(*ridges, strict=True), **dots))
    colours = _device_colours(roofline)
    sizes = _sizes(roofline.points)
    for point in sorted(roofline.points, key=lambda point: -sizes[point]):
        artists += _draw_spread(ax, point)
        hollow = above_roof(point, roofline) is not None
        colour = _BOUNDS.get(point.bound) if point.share is not None else None
        colour = colour or colours.get(point.device, "black")
        artists.append(_draw_point(ax, point, colour, sizes[point], hollow=hollow))
        if not point.quiet:
            centre = layout.at(point.intensity, point.flop_per_s)
            layout.occupy(_chain(centre, centre, sizes[point] / 2 + 1), _Layout.SOLID)
    labels = [_roof_label(layout, text, style["color"], line) for text, style, line in roofs]
    artists += _write(ax, layout, labels)
    named = _named(roofline.points)
    texts = [_short(name) for name in _marks(named)]
    if _numbered(named, layout.size[0]):
        places = [layout.at(point.intensity, point.flop_per_s) for point in named]
        groups = _coinciding(places, [sizes[point] / 4 for point in named])
        texts = [_runs([index + 1 for index in group]) for group in groups]
        named = [named[group[0]] for group in groups]
    labels = [
        _point_label(layout, text, point, sizes[point])
        for text, point in zip(texts, named, strict=True)
    ]
    artists += _write(ax, layout, labels)

    if not roofline.points:  # in the corner that lies below all roofs
        said = ax.text(0.98, 0.03, "no point to draw", transform=ax.transAxes, ha="right")
        said.set_fontsize(_TEXT)
        artists.append(said)
    caption = ax.annotate(
        "\n".join(_caption(roofline, layout.size[0])),
        (0, 0),
        (0, -_BELOW),
        xycoords="axes fraction",
        textcoords="offset points",
        va="top",
        size=_CAPTION,
        linespacing=_SPACING,
        color="#333333",
        parse_math=False,
        annotation_clip=False,
    )
    return [*artists, caption]


def picture_format(path: str | os.PathLike[str]) -> str:
    """The format that a file's name asks for, one of ``FORMATS``.

    Raises:
        UsageError: another suffix.
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise UsageError(
            f"cannot draw a picture as {Path(path).name!r}: the name must end in "
            f"{', '.join(f'.{known}' for known in FORMATS)}"
        )
    return suffix


@_boxes_for_missing_glyphs()
def save_roofline(roofline: Roofline, path: str | os.PathLike[str]) -> Path:
    """Writes a roofline as a picture, whole or not at all; the same roofline gives the same bytes.

    Args:
        roofline: What to draw.
        path: Its suffix says the format: png, svg or pdf.

    Raises:
        UsageError: another suffix.
        RecordError: the file cannot be written.
    """
    target = Path(path)
    suffix = picture_format(target)
    with matplotlib.style.context(["default", {"svg.hashsalt": "roofprobe"}]):
        width = _WIDTH - _LEFT - _RIGHT
        above = _ABOVE + _TITLE * _SPACING * len(_wrap(roofline.title, _TITLE, width))
        below = _BELOW + _CAPTION * _SPACING * len(_caption(roofline, width)) + _ABOVE
        more = max(0, len(roofline.ceilings) + len(_named(roofline.points)) - _ROOMY)
        axes = _AXES_HEIGHT + min(_LABEL * _SPACING * more, _TALLER)
        height = below + axes + above
        figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=_DPI)
        FigureCanvasAgg(figure)
        box = _LEFT / _WIDTH, below / height, width / _WIDTH, axes / height
        draw_roofline(figure.add_axes(box), roofline)
        picture = io.BytesIO()
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        figure.savefig(picture, format=suffix, metadata=undated.get(suffix))
    return write_whole(target, picture.getvalue())


def _limits(roofline: Roofline) -> tuple[tuple[float, float], tuple[float, float]]:
    """Limits that hold every point, every ridge and a stretch of every roof; always finite."""
    peaks = [c.value for c in roofline.ceilings if c.kind == "flop"]
    bandwidths = [c.value for c in roofline.ceilings if c.kind == "byte"]
    at = [point.intensity for point in roofline.points]
    ridges = [ridge(peak, bandwidth) for peak in peaks for bandwidth in bandwidths]
    x = (0.03, 300.0)
    if at or ridges:
        low = min(at + ridges) / 6
        plateau = low * (max(ridges, default=low) / low) ** (1 / (1 - _PLATEAU))
        x = low, max(plateau, 6 * max(at + ridges))
    ys = [point.flop_per_s for point in roofline.points] + peaks
    ys += [bandwidth * x[0] for bandwidth in bandwidths]
    if not peaks:
        ys += [bandwidth * x[1] for bandwidth in bandwidths]
    return x, (min(ys) / 3, max(ys) * 4) if ys else (3e9, 3e14)


def _decorate(ax: Axes, roofline: Roofline) -> None:
    levels = list(dict.fromkeys(point.level for point in roofline.points)) or ["dram"]
    of = _level(levels[0]) if len(levels) == 1 else "the level named"
    ax.set_xlabel(f"Arithmetic intensity (FLOP/byte of {of})", size=_TEXT)
    ax.set_ylabel("Attained performance (FLOP/s)", size=_TEXT)
    width = ax.bbox.width * 72 / ax.figure.dpi
    title = "\n".join(_wrap(roofline.title, _TITLE, width))
    ax.set_title(title, loc="left", size=_TITLE, linespacing=_SPACING, parse_math=False)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, 1e5, number(value))))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, 1e21, si(value, ""))))
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_view_interval()
        few = high / low < 300  # powers of ten alone would leave an axis with one number
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=9))
        axis.set_minor_locator(LogLocator(subs=tuple(range(2, 10)), numticks=9))
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(labelsize=_TEXT)
    ax.grid(color="#e6e6e6", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _tick(value: float, large: float, text: str) -> str:
    """A tick's label: a power of ten where the text would have too many digits for its room."""
    if 0.99e-3 < value < 0.99 * large:
        return text
    digit, exponent = f"{value:.0e}".split("e")  # ticks are 1, 2 or 5 times a power of ten
    return f"{digit}e{int(exponent)}"


def _roofs(
    roofline: Roofline, x: tuple[float, float]
) -> Iterator[tuple[str, dict[str, Any], _Line]]:
    """Label, style and ends of each roof, equal ones as one; highest first.

    Memory roofs end at the highest peak of their device and source, and peaks begin at the highest
    memory roof.
    """
    merged: dict[tuple[str, str, str | None, str, float], list[Ceiling]] = {}
    for c in sorted(roofline.ceilings, key=lambda c: (c.kind, -c.value)):
        merged.setdefault((c.device, c.kind, c.level, c.source, c.value), []).append(c)
    # A path keeps its colour in all its roofs; the line's dashes tell their sources apart.
    paths = [c.path or c.name for c in roofline.ceilings if c.kind == "flop"]
    paths = list(dict.fromkeys(paths))
    colours = _device_colours(roofline)
    for (owner, kind, _, source, value), ceilings in merged.items():
        names = _short(", ".join(c.name for c in ceilings))
        other = _highest(roofline, ceilings[0], "byte" if kind == "flop" else "flop")
        line: _Line
        if kind == "flop":
            line = (value / other if other else x[0], value), (x[1], value)
            order = paths.index(ceilings[0].path or ceilings[0].name)
            unit, colour = "FLOP/s", _COLOURS[1 + order % (len(_COLOURS) - 1)]
        else:
            end = other / value if other else x[1]
            line = (x[0], value * x[0]), (end, value * end)
            unit, colour = "B/s", _COLOURS[0]
        label = f"{names} {si(value, unit)}"
        if owner in colours:
            label, colour = f"{_short(owner)}: {label}", colours[owner]
        yield label, {"color": colour, "linestyle": _DASHES[source]}, line


def _highest(roofline: Roofline, of: Ceiling, kind: str) -> float | None:
    """The highest roof of a kind that belongs to another: of its source, else of its device."""
    own = [c for c in roofline.ceilings if c.kind == kind and c.device == of.device]
    same = [c for c in own if c.source == of.source]
    return max((c.value for c in same or own), default=None)


def _ridges(roofline: Roofline) -> Iterator[tuple[Ceiling, Ceiling, float]]:
    """Peak, memory roof and intensity of each ridge, within one device and source."""
    flop, byte = ([c for c in roofline.ceilings if c.kind == kind] for kind in ("flop", "byte"))
    for memory in byte:
        for peak in flop:
            if (peak.device, peak.source) == (memory.device, memory.source):
                yield peak, memory, ridge(peak.value, memory.value)


def _device_colours(roofline: Roofline) -> dict[str, str]:
    """A colour for each device; none where there is one device only."""
    owners = [c.device for c in roofline.ceilings] + [point.device for point in roofline.points]
    devices = list(dict.fromkeys(owners))
    if len(devices) < 2:
        return {}
    return {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(devices)}


def _draw_spread(ax: Axes, point: Point) -> list[Artist]:
    """Bars that span what rounds and steps differed by, where they did.

    They reach as far up as down on the logarithmic axis, and so stay above 0.
    """
    if not any(point.spread):
        return []
    bars = []
    for value, spread in zip((point.intensity, point.flop_per_s), point.spread, strict=True):
        reach = 1 + (spread or 0.0) / 2
        bars.append(((value - value / reach,), (value * reach - value,)))
    container = ax.errorbar(
        *((point.intensity,), (point.flop_per_s,)),
        xerr=bars[0],
        yerr=bars[1],
        fmt="none",
        ecolor="#666666",
        elinewidth=1.0,
        zorder=5,
    )
    return list(container.get_children())


def _named(points: Sequence[Point]) -> list[Point]:
    """The points whose names stand in the picture."""
    return [point for point in points if not point.quiet]


def _sizes(points: Sequence[Point]) -> dict[Point, float]:
    """Diameters of markers, in points: areas of parts are as their shares of the time."""
    longest = max((point.share or 0.0 for point in points), default=0.0)
    return {
        point: _MARKER
        if point.share is None
        else max(_SMALLEST, _LARGEST * math.sqrt(point.share / longest))
        for point in points
    }


def _draw_point(ax: Axes, point: Point, colour: str, size: float, *, hollow: bool) -> Artist:
    (artist,) = ax.plot(
        point.intensity,
        point.flop_per_s,
        marker=_MARKERS.get(point.level, "D"),
        markersize=size,
        markeredgecolor=colour,
        markerfacecolor="white" if hollow else colour,
        alpha=None if point.share is None else _THROUGH,
        linestyle="none",
        # Parts may be large and many, and their numbers must be read all the same.
        zorder=6 if point.share is None else 4,
    )
    return artist


def _joins(points: Sequence[Point]) -> Iterator[_Line]:
    """Lines between points of one name: one piece of work, seen at several memory levels."""
    by_name: dict[tuple[str, str], list[Point]] = {}
    for point in (point for point in points if point.share is None):
        by_name.setdefault((point.name, point.device), []).append(point)
    for group in by_name.values():
        if len({point.level for point in group}) == len(group):
            yield from pairwise((point.intensity, point.flop_per_s) for point in group)


def _names(points: Sequence[Point]) -> list[str]:
    """Names of points, with their levels where these differ; of a nameless one the level alone."""
    mixed = len({point.level for point in points}) > 1
    return [
        f"{point.name} ({_level(point.level)})"
        if mixed and point.name
        else point.name or _level(point.level)
        for point in points
    ]


def _marks(points: Sequence[Point]) -> list[str]:
    """What stands by points: where a line joins several levels, the name once and then levels."""
    marks, seen = [], set()
    for point, full in zip(points, _names(points), strict=True):
        joined = (point.name, point.device) in seen and bool(point.name)
        seen.add((point.name, point.device))
        marks.append(_level(point.level) if joined and full != point.name else full)
    return marks


def _numbered(points: Sequence[Point], width: float) -> bool:
    """True where labels would be too many or too long to stand by their points."""
    if len(points) >= _NUMBERED_FROM:
        return True
    widths = [_width(_short(mark), _LABEL) for mark in _marks(points)]
    return len(points) > 1 and max(widths, default=0.0) > _LONGEST * width


def _coinciding(places: Sequence[NDArray[np.float64]], near: Sequence[float]) -> list[list[int]]:
    """Indices of points that lie on one another, so that one label does for all of them.

    Args:
        places: Of the points' centres.
        near: How far from each point's centre another one is taken to lie on it.
    """
    groups: list[list[int]] = []
    for index, place in enumerate(places):
        for group in groups:
            reach = min(near[group[0]], near[index])
            if math.dist(places[group[0]], place) <= reach:
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def _runs(numbers: Sequence[int]) -> str:
    """Ascending numbers, each run of them by its ends: ``1-3, 5, 6``."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    parts = (
        [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(each) for each in run] for run in runs
    )
    return ", ".join(text for part in parts for text in part)


class _Place(NamedTuple):
    """Where a label could go, in points from the Axes' lower left corner.

    Attributes:
        spot: On what is labelled.
        centre: Of the text.
        angle: Of the text, degrees.
        corner: Where a line from the spot meets the text; None where they are side by side.
    """

    spot: NDArray[np.float64]
    centre: NDArray[np.float64]
    angle: float = 0.0
    corner: NDArray[np.float64] | None = None

    @property
    def length(self) -> float:
        """Length of the line to the text, 0 without."""
        return 0.0 if self.corner is None else math.dist(self.spot, self.corner)


class _Label(NamedTuple):
    """A text and the places where it could go, those with the shortest lines first."""

    text: str
    width: float
    colour: str
    places: Sequence[_Place]


def _beside(
    width: float,
    spot: NDArray[np.float64],
    towards: NDArray[np.float64],
    distance: float,
    clear: float = _CLEAR,
) -> _Place:
    """A place for level text whose nearest edge or corner is ``distance`` from the spot.

    Farther off than ``clear`` a line leads to it.
    """
    corner = spot + distance * towards
    centre = corner + np.round(towards) * (width / 2, _LABEL / 2)
    return _Place(spot, centre, corner=corner if distance > clear else None)


def _roof_label(layout: "_Layout", text: str, colour: str, line: _Line) -> _Label:
    """Along the roof: a flat one from its right end on, a slanted one from its left end."""
    start, end = (layout.at(*position) for position in line)
    length = math.dist(start, end)
    along = (end - start) / length
    up = np.array((-along[1], along[0]))
    angle = math.degrees(math.atan2(along[1], along[0]))
    flat = line[0][1] == line[1][1]
    first, along = (end, -along) if flat else (start, along)
    width = _width(text, _LABEL)
    nearest = width / 2 + _GAP
    places = []
    for shift in np.arange(nearest, max(length - width / 2, nearest + 1), 6.0):
        spot = first + along * shift
        off = up * (_LABEL / 2 + _GAP)
        places += [_Place(spot, spot + off, angle), _Place(spot, spot - off, angle)]
    for distance in _LEADS:
        for shift in np.linspace(_GAP, length - _GAP, 2 + int(length / _LABEL)):
            spot = first + along * shift
            places += [_beside(width, spot, side, distance) for side in (up, -up)]
    return _Label(text, width, colour, places)


def _point_label(layout: "_Layout", text: str, point: Point, size: float) -> _Label:
    """Beside the point, or farther off with a line to it."""
    spot = layout.at(point.intensity, point.flop_per_s)
    width = _width(text, _LABEL)
    degrees_around = (0, 180, 45, -45, 135, -135, 90, -90, 22, -22, 158, -158, 67, -67, 113, -113)
    angles = [math.radians(degrees) for degrees in degrees_around]
    clear = size / 2 + _GAP
    places = [
        _beside(width, spot, np.array((math.cos(angle), math.sin(angle))), distance, clear)
        for distance in (clear, *(lead for lead in _LEADS if lead > clear))
        for angle in angles
    ]
    return _Label(text, width, "black", places)


def _write(ax: Axes, layout: "_Layout", labels: Sequence[_Label]) -> list[Artist]:
    """Writes each label on its freest place, those that find one easily first."""
    easiest = sorted(range(len(labels)), key=lambda index: layout.freest(labels[index])[0])
    artists = {}
    for index in easiest:
        label = labels[index]
        _, place = layout.freest(label)
        layout.occupy(_cells(label, place), _Layout.SOLID)
        artists[index] = _write_at(ax, label, place, layout.data(place.spot))
    return [artists[index] for index in range(len(labels))]


def _write_at(ax: Axes, label: _Label, place: _Place, anchor: tuple[float, float]) -> Artist:
    """Writes a label; it moves with its anchor, the data position that it labels."""
    lead: dict[str, Any] | None = None
    if place.corner is not None:
        # relpos: where the line meets the text, in fractions of the text's box.
        to = tuple(0.5 - np.sign(np.round(place.centre - place.corner, 6)) / 2)
        lead = {"arrowstyle": "-", "linewidth": 0.7, "color": label.colour, "relpos": to}
        lead |= {"shrinkA": 0, "shrinkB": 0}
    return ax.annotate(
        label.text,
        anchor,
        tuple(place.centre - place.spot),
        textcoords="offset points",
        arrowprops=lead,
        ha="center",
        va="center",
        rotation=place.angle,
        size=_LABEL,
        color=label.colour,
        parse_math=False,
        annotation_clip=False,
        zorder=5,
        path_effects=[withStroke(linewidth=2, foreground="white")],
    )


class _Layout:
    """What is taken on an Axes, as discs, in points from its lower left corner.

    Lines, markers and rotated text all become chains of discs, so that one comparison serves all.
    The weights say what covering a disc costs.
    """

    OUTSIDE: Final = 10000.0  # nothing is ever cut off
    SOLID: Final = 100.0  # labels and markers must stay legible
    LINE: Final = 1.0  # a roof may run behind a label where nothing else is free
    LEAD: Final = 0.05  # each point of length of a line that leads to a label

    def __init__(self, ax: Axes) -> None:
        self._ax = ax
        self._scale = 72 / ax.figure.dpi
        self.size = np.array((ax.bbox.width, ax.bbox.height)) * self._scale
        self._discs = np.empty((0, 4))

    def at(self, x: float, y: float) -> NDArray[np.float64]:
        """A data position in points."""
        display = self._ax.transData.transform((x, y))
        return np.asarray((display - self._ax.bbox.min) * self._scale)

    def data(self, point: NDArray[np.float64]) -> tuple[float, float]:
        """The data position of a point."""
        display = point / self._scale + self._ax.bbox.min
        x, y = self._ax.transData.inverted().transform(display)
        return float(x), float(y)

    def occupy(self, cells: NDArray[np.float64], weight: float) -> None:
        """Takes the discs (rows of x, y, radius); ``weight`` is what covering one costs."""
        self._discs = np.vstack((self._discs, np.insert(cells, 3, weight, axis=1)))

    def freest(self, label: _Label) -> tuple[float, _Place]:
        """Cost and position of a label's cheapest place, the first of equals."""
        lowest, best = math.inf, label.places[0]
        for place in label.places:
            detour = self.LEAD * place.length
            if detour >= lowest:
                break
            cost = detour + self._covered(_cells(label, place))
            if cost < lowest:
                lowest, best = cost, place
        return lowest, best

    def _covered(self, cells: NDArray[np.float64]) -> float:
        centres, radius = cells[:, :2], cells[:, 2:]
        margin = radius + _GAP
        outside = (centres < margin).any(axis=1) | (centres > self.size - margin).any(axis=1)
        away = np.hypot(*(centres[:, None] - self._discs[None, :, :2]).transpose(2, 0, 1))
        covered = (away < radius + self._discs[:, 2]) * self._discs[:, 3]
        return float(outside.sum() * self.OUTSIDE + covered.sum())


def _chain(
    start: NDArray[np.float64], end: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """Discs (rows of x, y, radius) along a segment, so close that no text slips through."""
    count = 1 + math.ceil(math.dist(start, end) / max(radius, _LABEL / 3))
    return np.insert(np.linspace(start, end, count), 2, radius, axis=1)


def _cells(label: _Label, place: _Place) -> NDArray[np.float64]:
    """Discs that cover a label at a place, and its line."""
    angle = math.radians(place.angle)
    reach = max(label.width - _LABEL, 0) / 2 * np.array((math.cos(angle), math.sin(angle)))
    cells = _chain(place.centre - reach, place.centre + reach, _LABEL / 2)
    if place.corner is None:
        return cells
    way = place.corner - place.spot
    start = place.spot + way / math.hypot(*way) * _CLEAR
    return np.vstack((cells, _chain(start, place.corner, 1.5)))


def _caption(roofline: Roofline, width: float) -> list[str]:
    """The lines under the Axes: flags, what is left out, notes, sources; ``width`` in points."""
    points, names = roofline.points, _names(roofline.points)
    paragraphs = []
    named = _named(points)
    if _numbered(named, width):
        key = (f"{index}\N{NO-BREAK SPACE}{name}" for index, name in enumerate(_names(named), 1))
        paragraphs.append(f"Points: {', '.join(key)}.")
    paragraphs += _of_parts(points)
    flags = [above_roof(point, roofline) for point in points]
    above = [
        f"{name}, {flag.words}" for name, flag in zip(names, flags, strict=True) if flag is not None
    ]
    if above:
        known = [flag for flag in flags if flag is not None]
        why = suspects(
            mix=any(flag.mix for flag in known), modelled=any(flag.modelled for flag in known)
        )
        paragraphs.append(f"Hollow, above the roof: {'; '.join(above)}: {why}.")
    if roofline.left_out:
        paragraphs.append(f"Not drawn: {_by_last(roofline.left_out)}.")
    notes = [(name, point.note) for name, point in zip(names, points, strict=True) if point.note]
    if notes:
        paragraphs.append(f"Notes: {_by_last(notes)}.")
    if any(any(point.spread) for point in points):
        paragraphs.append("Bars: spread of rounds and steps, where larger than the marker.")
    if points:
        sources = _by_last(zip(names, (p.source for p in points), strict=True), brief=True)
        model = " (a model of the work, not a measurement)" if "analytic" in sources else ""
        paragraphs.append(f"FLOP and bytes: {sources}{model}. One FMA is two FLOP.")
    ridges: dict[str, list[str]] = {}
    for peak, memory, at in _ridges(roofline):
        ridges.setdefault(_owned(memory), []).append(f"{number(at, 3)} {peak.name}")
    if ridges:
        listed = "; ".join(f"{name}: {_listed(peaks)}" for name, peaks in ridges.items())
        paragraphs.append(f"Ridges (dots), FLOP/byte: {listed}.")
    for source, dashes in _DASH_NAMES.items():
        own = [c for c in roofline.ceilings if c.source == source]
        if not own:
            continue
        if source == "measured":
            # How each was measured would fill the picture; the run file and the report have it.
            paragraphs.append(f"Measured roofs ({dashes}): on this device, see the run for how.")
            continue
        # A sheet is a device's.
        of = [c.device if source == "datasheet" and c.device else _owned(c) for c in own]
        details = list(
            dict.fromkeys((n, c.detail) for n, c in zip(of, own, strict=True) if c.detail)
        )
        said = f": {_by_last(details, brief=True)}" if details else "."
        paragraphs.append(f"{source.capitalize()} roofs ({dashes}){said}")
    return [line for text in paragraphs for line in _wrap(text, _CAPTION, width)]


def _of_parts(points: Sequence[Point]) -> Iterator[str]:
    """What areas and colours of parts mean."""
    shown = [point for point in points if point.share is not None]
    if not shown:
        return
    bounds = {bound: sum(point.bound == bound for point in shown) for bound in _BOUNDS}
    colours = ", ".join(
        f"{bound or 'not judged'} {_BOUND_NAMES[bound]} ({count})"
        for bound, count in bounds.items()
        if count
    )
    largest = max(shown, key=lambda point: point.share or 0.0)
    quiet = f"; {sum(p.quiet for p in shown)} unnamed" if any(p.quiet for p in shown) else ""
    yield (
        f"{len(shown)} parts of the step{quiet}. Area: its time; the largest, {largest.name}, "
        f"takes {percent(largest.share, 2)} of the step. Colour, what binds it: {colours}."
    )


def _by_last(pairs: Iterable[tuple[str, str]], *, brief: bool = False) -> str:
    """Names by what is said of them: ``0 FLOP (memset, hash); 0 s (b)``.

    Args:
        pairs: Name and what is said of it.
        brief: Leave the names out where the same is said of all.
    """
    groups: dict[str, list[str]] = {}
    for name, said in pairs:
        groups.setdefault(said, []).append(name)
    if brief and len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{said} ({_listed(names)})" for said, names in groups.items())


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_LISTED
    return ", ".join(names[:_NAMES_LISTED]) + (f" and {more} more" if more > 0 else "")


def _owned(ceiling: Ceiling) -> str:
    return f"{ceiling.device} {ceiling.name}".lstrip()


def _level(level: str) -> str:
    return _LEVELS.get(level, level)


def _short(name: str) -> str:
    """A name that fits on a picture: one line, the middle of a long one left out."""
    name = visible(" ".join(name.split()))
    half = _LABEL_LENGTH // 2
    return name if len(name) <= _LABEL_LENGTH else f"{name[:half]}…{name[-half:]}"


def _width(text: str, size: float) -> float:
    """Width of a line of text in points."""
    font = FontProperties(size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def _wrap(text: str, size: float, width: float) -> list[str]:
    """Breaks text into lines that fit; a word that does not fit by itself is broken anywhere."""
    lines = [""]
    for word in map(visible, re.split(r"[ \t\r\n]+", text)):  # not at a no-break space
        longer = f"{lines[-1]} {word}".lstrip()
        if _width(longer, size) <= width:
            lines[-1] = longer
            continue
        lines.append("")
        for letter in word:
            if _width(lines[-1] + letter, size) > width:
                lines.append("")
            lines[-1] += letter
    return [line for line in lines if line]
