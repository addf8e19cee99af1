"""The parts of a step in words: what to fix first, and the kernels that take longest."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from roofprobe.derive import figures
from roofprobe.parts import Part, checks, name_of, parts, phase_name, phases, total
from roofprobe.record import Kernel, Measurement, Regions
from roofprobe.units import number, percent, seconds, si

TOP_PARTS: Final = 20
TOP_KERNELS: Final = 15
_NAME: Final = 34  # characters of a part's name, and of a kernel's
_KERNEL: Final = 46

_CHECKED: Final = {"FLOP": "FLOP", "dram": "DRAM bytes", "l2": "L2 bytes", "l1": "L1 bytes"}


class PartRow(NamedTuple):
    """A part of the step."""

    part: str
    time: str
    of_step: str
    flop: str
    dram: str
    bound: str
    lost: str


class KernelRow(NamedTuple):
    """A kernel."""

    kernel: str
    launches: str
    time: str
    of_step: str
    where: str


class PartTable(NamedTuple):
    """A table.

    Attributes:
        title: What it shows, and in which order.
        heads: Of the columns.
        rows: Cells, one for each head.
        sides: ``l`` or ``r`` for each column.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sides: str


def tables(record: Measurement) -> Iterator[PartTable]:
    """Phases, then layers by time lost, then kernels by time, as far as they were measured."""
    regions = record.regions
    if regions is None:
        return
    heads = ("part", "time", "step", "FLOP", "DRAM", "bound by", "lost")
    ranges = phases(record)
    if regions.by == "phase" or len(ranges) > 1:
        yield PartTable("By phase", heads, tuple(map(_row, ranges)), "lrrrrlr")
    if regions.by != "phase":
        order = "time" if regions.by == "kernel" else "time lost against the roof, fix this first"
        rows = tuple(_layers(by_loss(record)))
        yield PartTable(f"By layer, by {order}", heads, rows, "lrrrrlr")
    if regions.kernels:
        shown = regions.kernels[:TOP_KERNELS]
        title = f"Kernels by time, {len(shown)} of {len(regions.kernels)}"
        step = record.timing.median if record.timing is not None else None
        rows = tuple(_kernel_row(kernel, regions, step) for kernel in shown)
        yield PartTable(title, ("kernel", "runs", "time", "step", "where"), rows, "lrrrl")


def by_loss(record: Measurement) -> list[Part]:
    """Parts that lose most time first; then those whose loss is not known, by time."""
    return sorted(
        parts(record),
        key=lambda part: (part.lost is None, -(part.lost or 0.0), -(part.time or 0.0)),
    )


def remarks(record: Measurement) -> Iterator[str]:
    """Sentences on what the parts rest on, and what is missing from them."""
    regions = record.regions
    if regions is None:
        return
    yield from _sums(record)
    if regions.time_source == "cupti_activity":
        yield (
            "Where a step is cut into parts every cut waits for the GPU, so a part's time is that "
            f"of its kernels on {regions.steps} steps traced for it (cupti_activity), and its "
            "share is of the unprofiled step."
        )
        yield from _idle(record)
        if regions.lost_time:
            yield f"Kernels of {seconds(regions.lost_time)} began before the first part."
    elif regions.time_source == "perf_counter":
        yield (
            f"A part's time is wall clock on {regions.steps} labelled step (perf_counter); the "
            "labelling itself is in it."
        )
    else:
        why = record.notes.get("kernels") or record.notes.get("parts") or "kernels were not traced"
        yield f"Parts have no time: {why}."
    if regions.between is not None:
        yield (
            f"Between two steps the loop takes {seconds(regions.between)} (median, wall clock): "
            "loading data and whatever else it does there."
        )
    if "parts" in record.notes and regions.time_source is not None:
        yield f"{record.notes['parts']}."
    for note in regions.notes:
        yield f"{note[0].upper()}{note[1:]}."


def _sums(record: Measurement) -> Iterator[str]:
    found = checks(record)
    good = [f"{percent(c.ratio, 4)} of its {_CHECKED[c.name]}" for c in found if c.agrees]
    if good:
        yield f"The parts add up to the uncut step: {', '.join(good)}."
    for check in found:
        if check.agrees:
            continue
        name = _CHECKED[check.name]
        if check.ratio is None:
            lacking = "parts have" if check.parts is None else "step has"
            yield f"Whether the parts' {name} add up is not known: the {lacking} no value."
        else:
            off = percent(abs(1 - check.ratio))
            what = f"{off} are missing" if check.ratio < 1 else f"{off} are too much"
            yield (
                f"The parts DO NOT add up to the uncut step: of its {name}, {what} (allowed: "
                f"{percent(check.tolerance)})."
            )


def _idle(record: Measurement) -> Iterator[str]:
    idle = figures(record).idle
    if idle.value is not None:
        yield f"No kernel runs in {percent(idle.value)} of the step, which no part has."


def _layers(ordered: Sequence[Part]) -> Iterator[tuple[str, ...]]:
    shown, rest = ordered[:TOP_PARTS], ordered[TOP_PARTS:]
    yield from map(_row, shown)
    if rest:
        yield PartRow(
            f"{len(rest)} more",
            seconds(total(part.time for part in rest), 3),
            percent(total(part.share for part in rest), 2),
            si(total(part.figures.flop_total.value for part in rest), "", 3),
            si(total(_dram(part) for part in rest), "B", 3),
            "",
            seconds(total(part.lost for part in rest), 3),
        )


def _row(part: Part) -> PartRow:
    lost = seconds(part.lost, 3)
    return PartRow(
        _shortened(part.name, _NAME),
        seconds(part.time, 3),
        percent(part.share, 2),
        si(part.figures.flop_total.value, "", 3),
        si(_dram(part), "B", 3),
        _bound(part) if part.time else "",
        f"<= {lost}" if part.lost is not None and part.lost_at_most else lost,
    )


def _dram(part: Part) -> float | None:
    byte = part.figures.byte.get("dram")
    return byte.value if byte is not None else None


def _bound(part: Part) -> str:
    judged = part.verdict
    use = judged.closest
    if use is None:
        return judged.bound or "n/a"
    bound = use.name if judged.bound == "memory" else judged.bound
    share = percent(use.fraction, 2)
    return f"{bound} {share}" if bound == use.name else f"{bound or '?'} ({use.name} {share})"


def _kernel_row(kernel: Kernel, regions: Regions, step: float | None) -> KernelRow:
    places: dict[str, float] = {}
    for use in kernel.uses:
        segment = regions.segments[use.segment]
        name = phase_name(segment) if regions.by == "phase" else name_of(segment)
        places[name] = places.get(name, 0.0) + use.time
    most = max(places, key=lambda name: places[name])
    more = f" +{len(places) - 1}" if len(places) > 1 else ""
    return KernelRow(
        _shortened(kernel.name, _KERNEL),
        number(kernel.launches, 3),
        seconds(kernel.time, 3),
        percent(kernel.time / step if step else None, 2),
        _shortened(most, 22) + more,
    )


def _shortened(name: str, length: int) -> str:
    """One line of text, the middle of a long one left out: names differ at both ends."""
    name = " ".join(name.split())
    head = (length - 1) // 3
    return name if len(name) <= length else f"{name[:head]}…{name[head + 1 - length :]}"
