"""What the page's roofline shows, as data for its script: places, colours and words to hover.

Numbers become words here, with the formats of every other report; the script only draws.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from roofprobe import metrics, report
from roofprobe.record import Measurement
from roofprobe.roofline import (
    Above,
    Ceiling,
    Point,
    Roofline,
    above_roof,
    path_name,
    ridge,
    suspects,
)
from roofprobe.units import number, percent, si

# Indices into the colours of page.css. Memory roofs slant and peaks are flat, so they may share.
_LEVEL_COLOURS: Final = {"dram": 0, "l2": 2, "l1": 3}
_PATH_COLOURS: Final = (1, 4, 5, 3, 2, 0)

_HOVER_WIDTH: Final = 50  # characters: fits a screen of 400 pixels
_STUDY: Final = "study's formula"


class _Placed(NamedTuple):
    """A point, the one FLOP path that it shows, if so, and its run's number among several."""

    point: Point
    path: str | None
    number: str | None


def chart(runs: Sequence[tuple[str, Measurement]]) -> Mapping[str, Any]:
    """Roofs, points, limits and what can be picked, in JSON's types.

    Args:
        runs: Name for people and record of each; one is drawn as ``report.roofline_of`` has it,
            several as ``report.overlay``.
    """
    if len(runs) == 1:
        roofline = report.roofline_of(runs[0][1])
        numbers = {}
    else:
        roofline = report.overlay(runs, levels=metrics.LEVELS)
        numbers = {name: str(number) for number, (name, _) in enumerate(runs, start=1)}
    placed = [_Placed(point, None, numbers.get(point.name)) for point in roofline.points]
    devices = {report.device_label(record) for _, record in runs}
    for name, record in runs:
        owner = report.device_label(record) if len(devices) > 1 else ""
        for path, point in report.path_points(record, name):
            placed.append(_Placed(replace(point, device=owner), path, numbers.get(name)))
    points = [each.point for each in placed]
    x, y = limits(roofline, points)
    return {
        "title": roofline.title,
        "x": x,
        "y": y,
        "roofs": [roof(ceiling, roofline) for ceiling in roofline.ceilings],
        "marks": [_mark(each, roofline) for each in placed],
        "runs": list(numbers),
        "left_out": [f"{name}: {reason}" for name, reason in roofline.left_out],
        "choices": _choices(roofline, placed, several=len(runs) > 1),
    }


def limits(
    roofline: Roofline, points: Iterable[Point]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Limits (FLOP/byte and FLOP/s) that hold every point, every ridge and a part of every roof.

    They are the same whatever is picked, so that points stay where they are.
    """
    points = list(points)
    peaks = [c.value for c in roofline.ceilings if c.kind == "flop"]
    bandwidths = [c.value for c in roofline.ceilings if c.kind == "byte"]
    xs = [point.intensity for point in points]
    xs += [ridge(peak, bandwidth) for peak in peaks for bandwidth in bandwidths]
    x = (min(xs) / 4, max(xs) * 6) if xs else (0.03, 300.0)
    ys = [point.flop_per_s for point in points] + peaks
    ys += [x[0] * bandwidth for bandwidth in bandwidths]
    if not peaks:
        ys += [x[1] * bandwidth for bandwidth in bandwidths]
    return x, (min(ys) / 3, max(ys) * 3) if ys else (3e9, 3e14)


def roof(ceiling: Ceiling, roofline: Roofline) -> dict[str, Any]:
    """A roof for the script."""
    unit = "FLOP/s" if ceiling.kind == "flop" else "B/s"
    label = f"{ceiling.name} {si(ceiling.value, unit)}"
    if ceiling.device:
        label = f"{ceiling.device}: {label}"
    lines = [label, f"source: {ceiling.source}", _repeats(ceiling)]
    if ceiling.clock is not None:
        lines.append(f"SM clock: {si(ceiling.clock, 'Hz')}")
    if ceiling.sustained is not None:
        lines.append(f"once the load lasts: {si(ceiling.sustained, unit)}")
    lines.append(ceiling.detail)
    return {
        "kind": ceiling.kind,
        "value": ceiling.value,
        "level": ceiling.level,
        "path": ceiling.path,
        "source": ceiling.source,
        "device": ceiling.device,
        "label": label,
        "colour": _colour(ceiling, roofline),
        "hover": wrapped(lines),
    }


def _repeats(ceiling: Ceiling) -> str:
    if ceiling.spread is None:
        return "uncertainty: none is stated"
    return f"uncertainty: {percent(ceiling.spread, 2)} between repeats"


def _colour(ceiling: Ceiling, roofline: Roofline) -> int:
    """A path and a level keep their colour in all their roofs; several devices have one each."""
    devices = list(dict.fromkeys(each.device for each in roofline.ceilings))
    if len(devices) > 1:
        return devices.index(ceiling.device) % len(_PATH_COLOURS)
    if ceiling.level is not None:
        return _LEVEL_COLOURS[ceiling.level]
    paths = list(dict.fromkeys(each.path for each in roofline.ceilings if each.kind == "flop"))
    return _PATH_COLOURS[paths.index(ceiling.path) % len(_PATH_COLOURS)]


def _mark(placed: _Placed, roofline: Roofline) -> dict[str, Any]:
    point = placed.point
    above = above_roof(point, roofline)
    level = report.BYTES[point.level]
    lines = [
        point.name,
        f"intensity: {number(point.intensity)} FLOP/byte of {level}",
        f"attained: {si(point.flop_per_s, 'FLOP/s')}",
        f"source: {point.source}",
        f"uncertainty: {_uncertainty(point)}",
        point.note,
    ]
    if above is not None:
        lines.append(above_words(above))
    return {
        "x": point.intensity,
        "y": point.flop_per_s,
        "reach": [1 + (spread or 0.0) / 2 for spread in point.spread],
        "level": point.level,
        "path": placed.path,
        "series": point.name,
        "label": placed.number or (level if point.name != _STUDY else _STUDY),
        "above": above is not None,
        "hover": wrapped(lines),
    }


def _uncertainty(point: Point) -> str:
    """What rounds and steps differed by; counters of a single round have no spread."""
    parts = zip(("intensity", "rate"), point.spread, strict=True)
    known = [f"{what} {percent(spread, 2)}" for what, spread in parts if spread is not None]
    return f"{', '.join(known)} (largest minus smallest)" if known else "not known, no repetition"


def _choices(
    roofline: Roofline, placed: Sequence[_Placed], *, several: bool
) -> list[dict[str, Any]]:
    """What can be picked: a name, a title, options and the one to start with."""
    there = {each.point.level for each in placed} | {c.level for c in roofline.ceilings}
    levels = [(level, report.BYTES[level]) for level in metrics.LEVELS if level in there]
    paths = [*(c.path for c in roofline.ceilings), *(each.path for each in placed)]
    flop = [(path, path_name(path)) for path in dict.fromkeys(paths) if path is not None]
    have = {c.source for c in roofline.ceilings}
    sources = [(source, source) for source in report.SOURCES if have]
    return [
        {
            "name": name,
            "title": title,
            "options": [
                {"value": "all", "label": "all", "off": False},
                *(
                    {"value": value, "label": label, "off": name == "source" and value not in have}
                    for value, label in options
                ),
            ],
            "start": levels[0][0] if name == "level" and several and levels else "all",
        }
        for name, title, options in (
            ("level", "memory level", levels),
            ("path", "FLOP path", flop),
            ("source", "ceilings", sources),
        )
        if len(options) > 1
    ]


def above_words(above: Above) -> str:
    """What a point above its roof means."""
    return f"{above.words}: {suspects(mix=above.mix, level=above.level, modelled=above.modelled)}"


def wrapped(lines: Iterable[str]) -> list[str]:
    """Lines that fit a narrow screen."""
    return [part for line in lines for part in _parts(line)]


def _parts(line: str) -> Iterator[str]:
    yield from textwrap.wrap(line, _HOVER_WIDTH, subsequent_indent="  ")
