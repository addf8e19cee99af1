"""The roofline model: ceilings, points under them, and what may not become a point.

attainable = min(peak, bandwidth * intensity): Williams, Waterman, Patterson, CACM 52(4), 2009,
https://doi.org/10.1145/1498765.1498785. Pure functions of numbers; nothing is measured or drawn.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from roofprobe.device import DeviceSpec
from roofprobe.errors import UsageError
from roofprobe.record import MeasuredRoof

Source = Literal["datasheet", "measured", "given"]

# A point up to this far above its roof is within what steps differ by when counts come from one
# and the time from another; the usual mistakes (sparse peak, wrong product, MAC for FLOP, a
# launch counted twice) are factors of 1.1 to 2.
ABOVE_ROOF: Final = 1.06


@dataclass(frozen=True, slots=True)
class Ceiling:
    """An upper bound on a rate.

    Attributes:
        name: For people, without the value: ``TF32 tensor``.
        kind: ``flop`` (FLOP/s) or ``byte`` (byte/s).
        value: The rate, above 0.
        path: FLOP path for kind ``flop``; None for a mix of paths.
        level: Memory level for kind ``byte``.
        source: ``datasheet``, ``measured`` on this machine, or ``given`` by the user.
        detail: Where exactly it is from, how it was measured, or how it was formed.
        spread: Of the repeats of a measured one: largest minus smallest over the median.
        device: Whose it is, where several devices are in one picture; else empty.
    """

    name: str
    kind: Literal["flop", "byte"]
    value: float
    path: str | None
    level: str | None
    source: Source
    detail: str
    spread: float | None = None
    device: str = ""

    def __post_init__(self) -> None:
        _require_positive(f"ceiling {self.name!r}", self.value)


@dataclass(frozen=True, slots=True)
class Point:
    """A piece of work on the plane; both coordinates are above 0 and finite.

    Attributes:
        name: Of the step, phase or layer.
        intensity: FLOP per byte of ``level``.
        flop_per_s: Attained rate.
        level: Memory level whose bytes were counted.
        source: Where FLOP and bytes are from (``cupti``, ``analytic``, ...).
        note: What limits the figure; empty when nothing does.
        spread: Of intensity and of rate: largest minus smallest over the mean; None where there
            was no repetition.
        device: As in ``Ceiling``.
        share: Of a part of a step: its share of the step's time, a fraction; None for a whole one.
        bound: Of a part of a step: what binds it, as in a verdict; None where that is not told.
        quiet: True for one of many, whose name does not stand in the picture.
    """

    name: str
    intensity: float
    flop_per_s: float
    level: str
    source: str
    note: str = ""
    spread: tuple[float | None, float | None] = (None, None)
    device: str = ""
    share: float | None = None
    bound: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        _require_positive(f"point {self.name!r}", self.intensity, self.flop_per_s)


class LeftOut(NamedTuple):
    """Work that has no place on logarithmic axes, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """Everything that one picture shows.

    Attributes:
        title: For people.
        ceilings: Roofs, in any order.
        points: What can be drawn.
        left_out: Names and reasons of what cannot.
    """

    title: str
    ceilings: tuple[Ceiling, ...]
    points: tuple[Point, ...]
    left_out: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls, title: str, ceilings: Iterable[Ceiling], placed: Iterable[Point | LeftOut]
    ) -> "Roofline":
        """Sorts what ``place`` returned into points and what is left out."""
        placed = tuple(placed)
        return cls(
            title,
            tuple(ceilings),
            tuple(item for item in placed if isinstance(item, Point)),
            tuple(item for item in placed if isinstance(item, LeftOut)),
        )


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """The rate that a roof allows, FLOP/s.

    Args:
        intensity: FLOP/byte.
        peak: FLOP/s.
        bandwidth: byte/s.
    """
    return min(peak, bandwidth * intensity)


def ridge(peak: float, bandwidth: float) -> float:
    """The intensity (FLOP/byte) from which on the peak binds and no longer the bandwidth."""
    return peak / bandwidth


def mixed_peak(
    flop_by_path: Mapping[str, float | None], peaks: Mapping[str, float]
) -> float | None:
    """The peak of work that uses several FLOP paths one after another, FLOP/s.

    Total FLOP over the sum of each path's least time, FLOP_i / peak_i. Work whose paths overlap
    in time can exceed it.

    Args:
        flop_by_path: FLOP path -> FLOP; None where it was not measured.
        peaks: FLOP path -> peak, FLOP/s.

    Returns:
        None without any work, and when a path with work (or with an unknown amount) has no peak.
    """
    work = {path: flop for path, flop in flop_by_path.items() if flop != 0}
    least_time = 0.0
    for path, flop in work.items():
        if flop is None or path not in peaks:
            return None
        least_time += flop / peaks[path]
    return sum(flop for flop in work.values() if flop) / least_time if work else None


def place(
    name: str,
    flop: float | None,
    byte: float | None,
    time: float | None,
    *,
    source: str,
    level: str = "dram",
    note: str = "",
    spread: tuple[float | None, float | None] = (None, None),
    device: str = "",
) -> Point | LeftOut:
    """Puts a piece of work on the plane, or says why it has no place there.

    Args:
        name: Of the step, phase or layer.
        flop: FLOP; None when not measured, as are NaN, infinity and negative numbers.
        byte: Bytes that crossed ``level``.
        time: Seconds.
        source: Where the counts are from (``cupti``, ``analytic``, ...).
        level: Memory level.
        note: What limits the figure.
        spread: Of intensity and of rate, fractions.
        device: Whose roofs apply, where several devices are in one picture.
    """
    counts = {"FLOP": flop, "bytes": byte, "s": time}
    known = {unit: n for unit, n in counts.items() if n is not None and 0 <= n < math.inf}
    if len(known) < len(counts):
        missing = ["time" if unit == "s" else unit for unit in counts if unit not in known]
        return LeftOut(name, f"not measured: {', '.join(missing)}")
    zeros = [f"0 {unit}" for unit, n in known.items() if n == 0]
    if zeros:
        unbounded = ": intensity unbounded" if zeros == ["0 bytes"] else ""
        return LeftOut(name, " and ".join(zeros) + unbounded)
    rate = known["FLOP"] / known["s"]
    return Point(name, known["FLOP"] / known["bytes"], rate, level, source, note, spread, device)


def above_roof(point: Point, roofline: Roofline) -> float | None:
    """How far a point lies above every roof that applies to it, or None where it does not.

    A point above the roof is kept as it is: the roof, the count or the time is wrong, and which
    one cannot be told here.

    Returns:
        Attained over attainable under the highest peak and the highest bandwidth of the point's
        level, where that ratio is above ``ABOVE_ROOF``.
    """
    own = [c for c in roofline.ceilings if c.device == point.device]
    peaks = [c.value for c in own if c.kind == "flop"]
    bandwidths = [c.value for c in own if c.kind == "byte" and c.level == point.level]
    roof = attainable(
        point.intensity, max(peaks, default=math.inf), max(bandwidths, default=math.inf)
    )
    ratio = point.flop_per_s / roof
    return ratio if ratio > ABOVE_ROOF else None


def ceilings_of(spec: DeviceSpec, paths: Iterable[str]) -> tuple[Ceiling, ...]:
    """A datasheet's roofs: dense peaks of the given paths, then DRAM bandwidth.

    Args:
        spec: The product.
        paths: FLOP paths. One without a published peak gets no roof, and neither does an integer
            path: its op/s have no place on a FLOP/s axis.
    """
    detail = f"{spec.name}, dense, seen {spec.seen}: {', '.join(spec.source)}"
    flop = tuple(
        Ceiling(path_name(path), "flop", spec.peaks[path], path, None, "datasheet", detail)
        for path in dict.fromkeys(paths)
        if path in spec.peaks and not path.startswith("tensor_int")
    )
    dram = Ceiling("DRAM", "byte", spec.memory_byte_per_s, None, "dram", "datasheet", detail)
    return (*flop, dram)


def measured_ceiling(roof: MeasuredRoof) -> Ceiling:
    """A roof of a record as a ceiling, under its own name."""
    kind: Literal["flop", "byte"] = "flop" if roof.kind == "flop" else "byte"
    return Ceiling(
        name=roof.name,
        kind=kind,
        value=roof.value,
        path=roof.path,
        level=roof.level,
        source="measured",
        detail=roof.method,
        spread=roof.spread,
    )


def path_name(path: str) -> str:
    """A FLOP path for people: ``TF32 tensor``, ``FP32 CUDA cores``."""
    unit, _, precision = path.partition("_")
    return f"{precision.upper()} {'CUDA cores' if unit == 'sass' else unit}"


def _require_positive(what: str, *values: float) -> None:
    if not all(0 < value < math.inf for value in values):
        raise UsageError(
            f"{what} has a value of {' and '.join(f'{value:g}' for value in values)}; rooflines "
            "are drawn on logarithmic axes, so give finite numbers above 0 or leave it out"
        )
