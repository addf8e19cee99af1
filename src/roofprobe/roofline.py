"""The roofline model: ceilings, points under them, and what may not become a point.

attainable = min(peak, bandwidth * intensity): Williams, Waterman, Patterson, CACM 52(4), 2009,
https://doi.org/10.1145/1498765.1498785. Pure functions of numbers; nothing is measured or drawn.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from roofprobe.ceilings.roofs import L1_BYTE_A_CLOCK
from roofprobe.device import DeviceSpec
from roofprobe.errors import UsageError
from roofprobe.record import MeasuredRoof
from roofprobe.units import number, percent, si

Source = Literal["datasheet", "measured", "given"]

# A point up to this far above its roof is within what steps differ by when counts come from one
# and the time from another; the usual mistakes (sparse peak, wrong product, MAC for FLOP, a
# launch counted twice) are factors of 1.1 to 2.
ABOVE_ROOF: Final = 1.06
# Chips whose L1 hands L1_BYTE_A_CLOCK to an SM in a clock. Nsight Compute's hierarchical roofline
# draws L1 at 128 bytes for each clock in which l1tex__lsu_writeback_active counts, which is every
# clock of each SM at most (CUPTI 13.0 on GH100: 132 a clock). 18.8 TB/s were measured on an A100,
# 97% of that, and 4.05 on a T4, half of it (https://github.com/cissieAB/ifarm-gpus): Turing is not
# here, nor are chips of which no reading is known.
_L1_CHIPS: Final = ("GV100", "GA100", "GH100")
_L1_SOURCE: Final = (
    "https://github.com/K-Wu/sass_analyzer/blob/main/visualizer/utils/ncu_sections.md"
)
# With this share of the least time a path is alone, for people.
_ALONE: Final = 0.995


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
        clock: SM clock while a measured one was measured, Hz; None where not readable.
        sustained: What a measured one comes down to once the load lasts; None where not measured.
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
    clock: float | None = None
    sustained: float | None = None

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
        mix: FLOP paths and the share of the FLOP that ran on each, as far as they are known
            exactly; empty where that is not told.
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
    mix: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        _require_positive(f"point {self.name!r}", self.intensity, self.flop_per_s)


class Above(NamedTuple):
    """How far work lies above a roof that it cannot pass.

    Attributes:
        roof: Which, with its value.
        times: The attained rate over it, above ``ABOVE_ROOF``.
        mix: Whether that roof is one of a mix of FLOP paths.
        level: Memory level of that roof; None for one of arithmetic.
        modelled: Whether it is one of memory, and the bytes are a model's.
    """

    roof: str
    times: float
    mix: bool = False
    level: str | None = None
    modelled: bool = False

    @property
    def words(self) -> str:
        """For people."""
        return f"{number(self.times, 3)} times {self.roof}"


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
    # So little work that its time is 0 has no rate.
    return sum(flop for flop in work.values() if flop) / least_time if least_time else None


def place(
    name: str,
    *,
    flop: float | None,
    byte: float | None,
    time: float | None,
    source: str,
    level: str = "dram",
    note: str = "",
    spread: tuple[float | None, float | None] = (None, None),
    work: Mapping[str, float] | None = None,
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
        work: FLOP path -> those FLOP of it that are known exactly; None where that is not told.
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
    mix = tuple((path, each / known["FLOP"]) for path, each in (work or {}).items())
    intensity = known["FLOP"] / known["bytes"]
    return Point(name, intensity, rate, level, source, note, spread, mix=mix)


def suspects(*, mix: bool = False, level: str | None = None, modelled: bool = False) -> str:
    """What may be wrong where work lies above a roof, the likeliest first: the end of a sentence.

    Args:
        mix: The roof is one of a mix of FLOP paths.
        level: Memory level of the roof; None for one of arithmetic.
        modelled: The roof is one of memory, and the bytes are a model's, which knows no caches.
    """
    cached = (
        "operands that stayed in a cache, which the model counts as memory traffic; "
        if modelled
        else ""
    )
    # L1's counter looks up to 512 bytes a clock and SM (CUPTI's peak of l1tex__t_bytes on GH100).
    whole = (
        "loads that use a part of each 32-byte sector, which the counter of L1 counts whole; "
        if level == "l1"
        else ""
    )
    overlap = "paths that ran at the same time, which a mix does not allow for; " if mix else ""
    return (
        f"suspect, likeliest first: {cached}{overlap}{whole}a roof of another product, or a "
        "clock above the one that it assumes; a count with a wrong weight; a time that misses a "
        "part of the work"
    )


def exceeded(
    work: Mapping[str, float | None],
    byte: Mapping[str, float | None],
    time: float | None,
    ceilings: Iterable[Ceiling],
) -> Above | None:
    """The roof that work lies farthest above, or None where it lies above none.

    Of several roofs of one path or level the highest counts. Work on several paths is held against
    their mixed peak. What was not counted or has no roof is taken to cost no time.

    Args:
        work: FLOP path -> FLOP.
        byte: Memory level -> bytes.
        time: Seconds.
        ceilings: Of the device; one of a mix is passed over.
    """
    if not time:
        return None
    best: dict[str, Ceiling] = {}
    for ceiling in sorted(ceilings, key=lambda ceiling: ceiling.value):
        best[ceiling.path or ceiling.level or ""] = ceiling
    least = {path: flop / best[path].value for path, flop in work.items() if flop and path in best}
    found = [
        Above(_roof_words(best[level]), moved / best[level].value / time, level=level)
        for level, moved in byte.items()
        if moved and level in best
    ]
    if least:
        total, largest = sum(least.values()), max(least, key=lambda path: least[path])
        mix = least[largest] < _ALONE * total
        roof = _roof_words(best[largest])
        if mix:
            peak = sum(work[path] or 0.0 for path in least) / total
            roof = f"the {si(peak, 'FLOP/s')} of its mix of paths, mostly {path_name(largest)}"
        found.append(Above(roof, total / time, mix))
    above = [each for each in found if each.times > ABOVE_ROOF]
    return max(above, key=lambda each: each.times, default=None)


def above_roof(point: Point, roofline: Roofline) -> Above | None:
    """The roof that a point lies farthest above, or None where it does not.

    A point above the roof is kept as it is: the roof, the count or the time is wrong, and which
    one cannot be told here (see ``suspects``). A point whose mix of paths is not told is held
    against the highest peak.
    """
    own = [ceiling for ceiling in roofline.ceilings if ceiling.device == point.device]
    work: dict[str, float | None] = {path: share * point.flop_per_s for path, share in point.mix}
    if not point.mix:
        highest = max((c for c in own if c.kind == "flop"), key=lambda c: c.value, default=None)
        own = [c for c in own if c.kind == "byte" or c is highest]
        work = {(highest.path or "") if highest else "": point.flop_per_s}
    byte = {point.level: point.flop_per_s / point.intensity}
    above = exceeded(work, byte, 1.0, own)
    if above is None:
        return None
    return above._replace(modelled=above.level is not None and point.source == "analytic")


def _roof_words(ceiling: Ceiling) -> str:
    unit = "FLOP/s" if ceiling.kind == "flop" else "B/s"
    return f"the {ceiling.name} roof of {si(ceiling.value, unit)}"


def ceilings_of(
    spec: DeviceSpec, paths: Iterable[str], *, fp16_accumulate: float = 0.0
) -> tuple[Ceiling, ...]:
    """A datasheet's roofs: dense peaks of the given paths, then DRAM bandwidth.

    Args:
        spec: The product.
        paths: FLOP paths. One without a published peak gets no roof, and neither does an integer
            path: its op/s have no place on a FLOP/s axis.
        fp16_accumulate: Share of the fp16 FLOP on tensor cores that accumulates in fp16.
    """
    detail = f"{spec.name}, dense, seen {spec.seen}: {', '.join(spec.source)}"
    flop = []
    for path in dict.fromkeys(paths):
        peak = spec.peak(path, fp16_accumulate)
        if peak is None or path.startswith("tensor_int"):
            continue
        name = path_name(path)
        if path == "tensor_fp16" and spec.accumulators_differ and fp16_accumulate > 0:
            share = "" if fp16_accumulate == 1 else f"{percent(fp16_accumulate, 2)} "
            name = f"{name}, {share}fp16 accumulate"
        flop.append(Ceiling(name, "flop", peak, path, None, "datasheet", detail))
    dram = Ceiling("DRAM", "byte", spec.memory_byte_per_s, None, "dram", "datasheet", detail)
    return (*flop, dram)


def l1_ceiling(spec: DeviceSpec) -> Ceiling | None:
    """The roof of L1 at a product's boost clock, which no datasheet prints.

    Returns:
        None where the width of L1, the SM count or the clock is not known.
    """
    if spec.chip not in _L1_CHIPS or spec.sm_count is None or spec.boost_hz is None:
        return None
    detail = (
        f"derived, no datasheet prints it: {L1_BYTE_A_CLOCK} bytes a clock and SM x "
        f"{spec.sm_count} SMs of {spec.name} x {si(spec.boost_hz, 'Hz')}, as in Nsight Compute's "
        f"hierarchical roofline: {_L1_SOURCE}"
    )
    value = L1_BYTE_A_CLOCK * spec.sm_count * spec.boost_hz
    return Ceiling("L1, derived", "byte", value, None, "l1", "datasheet", detail)


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
        clock=roof.clock,
        sustained=roof.sustained,
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
