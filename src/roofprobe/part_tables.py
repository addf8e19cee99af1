"""The parts of a step in words: what to fix first, and the kernels that take longest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from roofprobe.derive import figures
from roofprobe.kernel_names import brief
from roofprobe.kernel_parts import KernelPart, kernel_parts
from roofprobe.parts import (
    KERNEL_TIME,
    STEP_TIME,
    Block,
    Part,
    blocks,
    checks,
    name_of,
    parts,
    phase_name,
    phases,
)
from roofprobe.record import Kernel, KernelCounts, Measurement, Regions, total
from roofprobe.units import number, percent, seconds, si

TOP_PARTS: Final = 20
TOP_KERNELS: Final = 15
_TOP_BLOCKS: Final = 12
_PLACES: Final = 8  # of one kernel, on a page
# Characters of a line in a terminal, and the least and the most of a part's name in it.
_LINE: Final = 100
_SHORTEST: Final = 16
_NAME: Final = 34
# Characters of a kernel's name, and of the part that it runs in.
_KERNEL: Final = 46
_WHERE: Final = 22
_COUNTED: Final = 20  # of a kernel with its counts beside it
# On a page names wrap; of a kernel, a template's arguments alone can fill a thousand characters.
_LONGEST: Final = 160

_CHECKED: Final = {
    "FLOP": "FLOP",
    "dram": "DRAM bytes",
    "l2": "L2 bytes",
    "l1": "L1 bytes",
    KERNEL_TIME: "kernel time",
    STEP_TIME: "time",
}


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


class CountedRow(NamedTuple):
    """A kernel that was counted."""

    kernel: str
    launches: str
    time: str
    flop: str
    dram: str
    intensity: str
    bound: str
    lost: str


class PartTable(NamedTuple):
    """A table.

    Attributes:
        title: What it shows, and in which order.
        heads: Of the columns.
        rows: Cells, one for each head.
        sides: ``l`` or ``r`` for each column.
        of: What its rows are.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sides: str
    of: Literal["phase", "block", "layer", "kernel"]


def tables(record: Measurement, *, whole: bool = False) -> Iterator[PartTable]:
    """Phases, blocks by time, layers by time lost, kernels by time, as far as they were measured.

    Args:
        record: Measured by phase, layer or kernel; there are no tables of any other.
        whole: Every row with its whole name, for a page. In a terminal long tables end in a row
            for the rest, and long names lose their middle.
    """
    regions = record.regions
    if regions is None:
        return
    heads = ("part", "time", "step", "FLOP", "DRAM", "bound by", "lost")
    ranges = phases(record)
    if regions.by == "phase" or len(ranges) > 1:
        said = tuple(row(part) for part in ranges)
        rows = said if whole else _fitted(heads, said)
        yield PartTable("By phase", heads, rows, "lrrrrlr", "phase")
    if regions.by != "phase":
        found = parts(record)  # once: judging hundreds of them takes a while
        if regions.by == "layer":
            yield from _blocks(blocks(found), whole=whole)
        order = "time" if regions.by == "kernel" else "time lost against the roof, fix this first"
        ordered = _by_loss(found)
        shown = ordered if whole else ordered[:TOP_PARTS]
        said = tuple(row(part) for part in shown)
        if len(shown) < len(ordered):
            said = *said, _rest(ordered[len(shown) :])
        rows = said if whole else _fitted(heads, said)
        yield PartTable(f"By layer, by {order}", heads, rows, "lrrrrlr", "layer")
    if regions.kernels:
        kernels = regions.kernels if whole else regions.kernels[:TOP_KERNELS]
        title = "Kernels by time"
        if not whole:
            title = f"{title}, {len(kernels)} of {len(regions.kernels)}"
        step = record.timing.median if record.timing is not None else None
        runs = tuple(_kernel_row(kernel, regions, step, whole=whole) for kernel in kernels)
        yield PartTable(title, ("kernel", "runs", "time", "step", "where"), runs, "lrrrl", "kernel")
    if regions.counted is not None:
        yield counted_kernels(record, regions.counted, _LONGEST if whole else _COUNTED)


def _blocks(found: Sequence[Block], *, whole: bool) -> Iterator[PartTable]:
    """The model's blocks, if it has any."""
    if not found:
        return
    every = [part for block in found for part in block.parts]
    directions = [
        way
        for way in ("forward", "recompute", "backward")
        if any(part.segments[0].direction == way for part in every)
    ]
    heads = ("block", "time", "step", *directions, "FLOP", "DRAM", "lost")
    shown = found if whole else found[:_TOP_BLOCKS]
    rows = [_block_row(block.name, block.parts, directions) for block in shown]
    if len(shown) < len(found):
        rest = [part for block in found[len(shown) :] for part in block.parts]
        rows.append(_block_row(f"{len(found) - len(shown)} more", rest, directions))
    fitted = tuple(rows) if whole else _fitted(heads, rows)
    title = "By block, each with all that is in it, by time"
    yield PartTable(title, heads, fitted, "l" + "r" * (len(heads) - 1), "block")


def _block_row(name: str, found: Sequence[Part], directions: Sequence[str]) -> tuple[str, ...]:
    def time(way: str) -> float | None:
        return total(part.time for part in found if part.segments[0].direction == way)

    every = _rest(found)
    return (
        _shortened(name, _LONGEST),
        every.time,
        every.of_step,
        *(seconds(time(way), 3) for way in directions),
        every.flop,
        every.dram,
        every.lost,
    )


def counted_kernels(record: Measurement, how: KernelCounts, length: int) -> PartTable:
    """Kernels that were counted one by one, longest first.

    Args:
        record: The record.
        how: Its ``regions.counted``.
        length: Characters of a kernel's name.
    """
    heads = ("kernel", "runs", "time", "FLOP", "DRAM", "FLOP/B", "bound by", "lost")
    rows = tuple(_counted_row(part, length) for part in kernel_parts(record))
    return PartTable(
        f"Kernels, counted by {how.tool}, {how.mode}", heads, rows, "lrrrrrlr", "kernel"
    )


def counted_remarks(record: Measurement, how: KernelCounts) -> Iterator[str]:
    """Sentences on what the counts of single kernels rest on, and which are missing."""
    yield (
        f"Counts of single kernels are of {number(how.launches)} launches, each replayed alone "
        f"({how.source}); their times are of the step. With its caches flushed a kernel reads "
        "again what the one before it left there, and what it leaves there itself is not written "
        "back, so its bytes are not those of the step."
    )
    warm = sum(part.warm for part in kernel_parts(record))
    if warm:
        yield (
            f"{warm} of them needed more bytes than DRAM delivers in their time: in the step a "
            "part came from the caches, so they are judged without DRAM."
        )
    for metric, reason in how.unavailable.items():
        yield f"Kernels lack {metric}: {reason}."
    names: dict[str, list[str]] = {}
    for name, reason in how.left_out.items():
        names.setdefault(reason, []).append(_shortened(brief(name), _KERNEL))
    for reason, own in names.items():
        yield f"Not counted, {reason}: {', '.join(own)}."


def by_loss(record: Measurement) -> list[Part]:
    """Parts that lose most time first; then those whose loss is not known, by time."""
    return _by_loss(parts(record))


def _by_loss(found: Iterable[Part]) -> list[Part]:
    return sorted(
        found,
        key=lambda part: (part.lost is None, -(part.lost or 0.0), -(part.time or 0.0)),
    )


def left_out(reasons: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What a picture of parts leaves out, one line for each reason.

    Args:
        reasons: Name and reason of each, as a ``Roofline`` has them.
    """
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    for reason, own in names.items():
        yield f"{own[0] if len(own) == 1 else f'{len(own)} parts'}: {reason}"


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
    if regions.counted is not None:
        yield from counted_remarks(record, regions.counted)
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
        add, are = ("adds", "is") if check.name in (KERNEL_TIME, STEP_TIME) else ("add", "are")
        if check.ratio is None:
            lacking = "parts have" if check.parts is None else "step has"
            yield f"Whether the parts' {name} {add} up is not known: the {lacking} no value."
        else:
            off = percent(abs(1 - check.ratio))
            what = f"{off} {are} {'missing' if check.ratio < 1 else 'too much'}"
            yield (
                f"The parts DO NOT add up to the uncut step: of its {name}, {what} (allowed: "
                f"{percent(check.tolerance)})."
            )


def _idle(record: Measurement) -> Iterator[str]:
    idle = figures(record).idle
    if idle.value is not None:
        yield f"No kernel runs in {percent(idle.value)} of the step, which no part has."


def row(part: Part) -> PartRow:
    """A part in words."""
    return PartRow(
        _shortened(part.name, _LONGEST),
        seconds(part.time, 3),
        percent(part.share, 2),
        si(part.figures.flop_total.value, "", 3),
        si(_dram(part), "B", 3),
        _bound(part) if part.time else "",
        _lost(part.lost, at_most=part.lost_at_most),
    )


def _rest(rest: Sequence[Part]) -> PartRow:
    """Several parts together."""
    return PartRow(
        f"{len(rest)} more",
        seconds(total(part.time for part in rest), 3),
        percent(total(part.share for part in rest), 2),
        si(total(part.figures.flop_total.value for part in rest), "", 3),
        si(total(_dram(part) for part in rest), "B", 3),
        "",
        _lost(total(part.lost for part in rest), at_most=any(part.lost_at_most for part in rest)),
    )


def _lost(time: float | None, *, at_most: bool) -> str:
    said = seconds(time, 3)
    return f"<= {said}" if time is not None and at_most else said


def _fitted(heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Rows whose names leave the other cells their room on a line."""
    _, *others = (max(map(len, column)) for column in zip(heads, *rows, strict=True))
    room = _LINE - sum(others) - len(" │ ") * len(others)
    length = min(_NAME, max(_SHORTEST, room))
    names = told_apart([said[0] for said in rows], length)
    return tuple((name, *said[1:]) for said, name in zip(rows, names, strict=True))


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


def _kernel_row(kernel: Kernel, regions: Regions, step: float | None, *, whole: bool) -> KernelRow:
    places: dict[str, float] = {}
    for use in kernel.uses:
        segment = regions.segments[use.segment]
        name = phase_name(segment) if regions.by == "phase" else name_of(segment)
        places[name] = places.get(name, 0.0) + use.time
    where = _all_places(places) if whole else _longest_place(places)
    return KernelRow(
        # Parameters would take the room of the template arguments, which tell kernels apart.
        _shortened(brief(kernel.name), _LONGEST if whole else _KERNEL),
        number(kernel.launches, 3),
        seconds(kernel.time, 3),
        percent(kernel.time / step if step else None, 2),
        where if places else "not known",
    )


def _longest_place(places: Mapping[str, float]) -> str:
    """Where a kernel runs for longest, and at how many other places."""
    most = max(places, key=lambda name: places[name], default="")
    more = f" +{len(places) - 1}" if len(places) > 1 else ""
    return _shortened(most, _WHERE) + more


def _all_places(places: Mapping[str, float]) -> str:
    """Where a kernel runs, longest first, with what of its time that is."""
    ordered = sorted(places, key=lambda name: -places[name])
    time = sum(places.values())
    if len(ordered) < 2 or not time:
        return ", ".join(_shortened(name, _LONGEST) for name in ordered[:_PLACES])
    named = [f"{_shortened(n, _LONGEST)} {percent(places[n] / time, 2)}" for n in ordered[:_PLACES]]
    more = f", +{len(ordered) - _PLACES} more" if len(ordered) > _PLACES else ""
    return ", ".join(named) + more


def _counted_row(found: KernelPart, length: int) -> CountedRow:
    part = found.part
    intensity = found.counted.intensity.get("dram")
    byte = found.counted.byte.get("dram")
    said = row(part)
    return CountedRow(
        _shortened(brief(found.kernel.name), length),
        number(found.kernel.launches, 3),
        said.time,
        si(found.counted.flop_total.value, "", 3),
        si(byte.value if byte is not None else None, "B", 3),
        number(intensity.value if intensity is not None else None, 3),
        said.bound,
        said.lost,
    )


def told_apart(names: Sequence[str], length: int) -> list[str]:
    """Short names of which no two are alike, if one cut for all of them does that.

    Args:
        names: Of rows of one table.
        length: Characters at most.
    """
    usual = (length - 1) // 3
    # Layers of a deep model differ in the middle of their paths: then the beginning goes first.
    cuts = (usual, 0, *range(length - 1, 0, -1))
    tried = ([_shortened(name, length, head) for name in names] for head in cuts)
    return max(tried, key=lambda short: len(set(short)))


def _shortened(name: str, length: int, head: int | None = None) -> str:
    """One line of text, the middle of a long one left out: most names differ at both ends.

    Args:
        name: Any text.
        length: Characters at most.
        head: Characters before the gap; a third where not given.
    """
    name = " ".join(name.split())
    head = (length - 1) // 3 if head is None else head
    return name if len(name) <= length else f"{name[:head]}…{name[head + 1 - length :]}"
