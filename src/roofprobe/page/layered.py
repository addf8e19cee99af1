"""What the page's picture of a step's parts shows, as data for its script."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from roofprobe import report
from roofprobe.judge import Verdict
from roofprobe.page.chart import above_words, limits, roof, wrapped
from roofprobe.part_tables import by_loss, left_out, row
from roofprobe.parts import Part, phases
from roofprobe.record import Measurement
from roofprobe.roofline import Point, Roofline, above_roof
from roofprobe.units import number, percent, si

# Indices into the colours of page.css; the PNG has the same.
COLOURS: Final = {"memory": 0, "compute": 1, "latency": 4, None: 6}

# Characters of the reason why a part is not judged.
_REASON: Final = 110


def layered(record: Measurement) -> Mapping[str, Any]:
    """Roofs and a point for each part, the largest first, in JSON's types.

    A named point's label is the number of its row in the table of parts.

    Args:
        record: Measured by phase or layer.

    Raises:
        UsageError: the record has no counts by part.
    """
    roofline = report.layered_roofline(record)
    by_phase = record.regions is not None and record.regions.by == "phase"
    rows = phases(record) if by_phase else by_loss(record)
    found = {part.name: (index, part) for index, part in enumerate(rows, start=1)}
    points = sorted(roofline.points, key=lambda point: -(point.share or 0.0))
    longest = max((point.share or 0.0 for point in points), default=0.0)
    x, y = limits(roofline, points)
    return {
        "x": x,
        "y": y,
        "roofs": [roof(ceiling, roofline) for ceiling in roofline.ceilings],
        "marks": [_mark(point, *found[point.name], longest, roofline) for point in points],
        "bounds": list(_bounds(roofline)),
        "left_out": list(left_out(roofline.left_out)),
    }


def _mark(
    point: Point, index: int, part: Part, longest: float, roofline: Roofline
) -> dict[str, Any]:
    above = above_roof(point, roofline)
    said = row(part)
    lines = [
        f"{index}. {part.name}",
        f"time: {said.time}, {said.of_step} of the step",
        f"lost against the roof: {said.lost}",
        f"verdict: {_verdict(part)}",
        f"FLOP: {said.flop}; DRAM bytes: {said.dram}",
        f"intensity: {number(point.intensity)} FLOP/byte of {report.BYTES[point.level]}",
        f"attained: {si(point.flop_per_s, 'FLOP/s')}",
        f"source: {point.source}; time: {part.figures.step_time.source}",
        point.note,
    ]
    if above is not None:
        lines.append(above_words(above))
    return {
        "x": point.intensity,
        "y": point.flop_per_s,
        "size": math.sqrt(point.share / longest) if point.share and longest else None,
        "colour": COLOURS[point.bound],
        "label": "" if point.quiet else str(index),
        "above": above is not None,
        "hover": wrapped(lines),
    }


def _verdict(part: Part) -> str:
    bound, use = part.verdict.bound, part.verdict.closest
    least = "at least " if use is not None and use.at_least else ""
    used = f", {use.name} used to {least}{percent(use.fraction, 2)}" if use is not None else ""
    return f"{bound}-bound{used}" if bound else f"not judged{used}{_reason(part.verdict)}"


def _reason(verdict: Verdict) -> str:
    """Why there is no verdict, in short."""
    if verdict.reason is None:
        return ""
    # A part is judged as if it were a step, and what is said of kernels that take turns points to
    # parts, which this is.
    turns, found, _ = verdict.reason.partition(" of the step; kernels may take turns")
    reason = f"{turns} of its time, maybe in turns" if found else verdict.reason
    return f": {textwrap.shorten(reason, _REASON, placeholder=' …')}"


def _bounds(roofline: Roofline) -> Iterator[Mapping[str, Any]]:
    """What each colour means, and how many points have it."""
    count = Counter(point.bound for point in roofline.points)
    for bound, colour in COLOURS.items():
        if count[bound]:
            name = f"{bound}-bound" if bound else "not judged"
            yield {"name": name, "colour": colour, "count": count[bound]}
