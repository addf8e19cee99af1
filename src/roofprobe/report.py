"""A record in words and in a picture: the table and the roofline of a run."""

import io
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from roofprobe import crosscheck, metrics, part_tables
from roofprobe.derive import Figure, Figures, figures, own_rows
from roofprobe.errors import UsageError
from roofprobe.judge import TWO_PARTITIONS, Verdict, ceilings_for, verdict
from roofprobe.record import Measurement
from roofprobe.roofline import Ceiling, LeftOut, Point, Roofline, Source, path_name, place
from roofprobe.units import number, percent, seconds, si, visible
from roofprobe.witness import HEADS, Witness, witness

SOURCES: Final[tuple[Source, ...]] = ("measured", "datasheet")

FOOTER: Final = (
    "1 FMA = 2 FLOP; GB = 1e9 B; intensity = FLOP / DRAM bytes (read + write); "
    "FLOP/s = FLOP / unprofiled step time."
)

# A path with less of the total than this gets no roof of its own in the picture.
_WORTH_A_ROOF: Final = 0.01
# Roofs that differ by less than this (natural logarithm) are one line on paper.
_APART: Final = 0.03

WITNESS: Final = "witness: the hardware beside the analytic model"

_MODEL: Final = (
    "Figures marked analytic are a model and no count: what the operators' shapes ask for, with an "
    "error that is not known. Work on threads that the step starts itself is not in them."
)

_ALL_FLOP: Final = "all FLOP"

_WRITE_BACK: Final = "writes stay in L2 until it writes them back, which was later"

# Figures without a value that are named where they share a reason.
_NAMED: Final = 3

_ALL_DIGITS: Final = 10

_WIDEST: Final = 10_000  # characters: more than any table has

# Parts of a step whose names stand in its picture.
NAMED_PARTS: Final = 10

# What each FLOP path is, in the words of the field.
_PATHS = {
    "sass_fp16": "CUDA cores fp16 (upper bound, not in total)",
    "sass_fp32": "CUDA cores fp32",
    "sass_fp64": "CUDA cores fp64",
    "tensor_fp16": "tensor cores fp16",
    "tensor_bf16": "tensor cores bf16",
    "tensor_tf32": "tensor cores tf32",
    "tensor_fp8": "tensor cores fp8",
    "tensor_fp6": "tensor cores fp6",
    "tensor_fp4": "tensor cores fp4",
    "tensor_fp64": "tensor cores fp64",
    "tensor_int8": "tensor cores int8 (operations, not in total)",
}
BYTES: Final = {
    "dram_read": "DRAM read",
    "dram_write": "DRAM written",
    "dram": "DRAM",
    "l2": "L2",
    "l1": "L1",
}


class Row(NamedTuple):
    """One figure in words; what is empty has none."""

    label: str
    value: str
    spread: str
    source: str


@dataclass(frozen=True, slots=True)
class Content:
    """What every report of a record says, whatever it looks like.

    Attributes:
        title: Run, device, source and whether it is complete.
        rows: Figures per step, the use of each ceiling, then metrics that are in no figure.
        verdict: With its sentences.
        remarks: Sentences on what the figures rest on.
        witness: The hardware beside the model of one further step, where there was one.
        missing: Figures without a value, together where they share a reason, and that.
    """

    title: str
    rows: tuple[Row, ...]
    verdict: Verdict
    remarks: tuple[str, ...]
    witness: Witness | None
    missing: tuple[tuple[str, str], ...]


def content(record: Measurement) -> Content:
    """A record in words."""
    derived = figures(record)
    judged = verdict(record)
    return Content(
        title=_title(record),
        rows=(*_rows(record, derived), *_uses(judged), *_others(record)),
        verdict=judged,
        remarks=tuple(_remarks(record, derived, judged)),
        witness=None if record.witness is None or _is_model(record) else witness(record),
        missing=tuple(_missing(record, derived)),
    )


def text(record: Measurement, *, width: int = 100) -> str:
    """The measurement as a table, plain text.

    Args:
        record: What was measured.
        width: Columns that sentences keep to, and tables if they can.
    """
    said = content(record)
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False, markup=False)
    heads = ("per step", *Row._fields[1:])
    print_table(console, plain_table(heads, said.rows, "lrrl", title=said.title))
    say(console, " ".join(said.verdict.sentences))
    for line in said.remarks:
        say(console, line)
    for label, reason in said.missing:
        say(console, f"n/a: {label}: {reason}")
    if "witness" in record.notes:
        say(console, f"n/a: witness: {record.notes['witness']}")
    for warning in record.warnings:
        say(console, f"warning: {warning}")
    if said.witness is not None:
        _print_witness(console, said.witness)
    for table in part_tables.tables(record):
        console.print()
        own = plain_table(table.heads, table.rows, table.sides, title=table.title)
        print_table(console, own)
    for line in part_tables.remarks(record):
        say(console, line)
    if record.crosscheck is not None:
        console.print()
        # Wrapped to the same width already.
        for line in crosscheck.text(record.crosscheck, width=width).splitlines():
            console.print(visible(line), soft_wrap=True)
    console.print(FOOTER)
    buffer = console.file
    assert isinstance(buffer, io.StringIO)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _print_witness(console: Console, found: Witness) -> None:
    console.print()
    table = plain_table(HEADS, found.rows, "lrrrl", title=WITNESS)
    print_table(console, table)
    for sentence, flagged in found.remarks:
        say(console, f"warning: {sentence}" if flagged else sentence)


def roofline_of(
    record: Measurement,
    *,
    levels: Sequence[str] = metrics.LEVELS,
    sources: Sequence[Source] = SOURCES,
) -> Roofline:
    """The roofline of a record: this device's roofs, the step, and the study's view of it.

    The step is one point for each memory level. Roofs are those of the paths on which a percent of
    the step's FLOP or more ran, of the levels, and of the step's mix of paths where it differs.

    Args:
        record: What was measured.
        levels: Memory levels to show.
        sources: Kinds of roofs to draw: ``measured``, from the record, and ``datasheet``.
    """
    derived = figures(record)
    ceilings = _roofs(record, derived, levels, sources)
    mix = _mix(record, ceilings, sources)
    placed = _points(record, derived, ceilings, levels, _ALL_FLOP)
    if derived.study is not None and derived.study.reason is not None and "dram" in levels:
        placed.append(_study_point(record, derived))
    return Roofline.of(_title(record), [*ceilings, *mix], [*placed, *_lacking(ceilings, sources)])


def layered_roofline(
    record: Measurement, *, sources: Sequence[Source] = SOURCES, named: int = NAMED_PARTS
) -> Roofline:
    """The roofline of a step's parts: a point for each, sized by its time.

    Args:
        record: Measured by phase or layer.
        sources: As in ``roofline_of``.
        named: How many parts keep their names: those that lose most time.

    Raises:
        UsageError: the record has no counts by part.
    """
    regions = record.regions
    if regions is None or not any(segment.counters for segment in regions.segments):
        raise UsageError(
            f"{record.name!r} was not counted by part: measure it with --by layer or --by phase"
        )
    derived = figures(record)
    ceilings = _roofs(record, derived, ("dram",), sources)
    placed: list[Point | LeftOut] = []
    left = named
    for part in part_tables.by_loss(record):
        found = place(
            part.name,
            flop=part.figures.flop_total.value,
            byte=part.figures.byte["dram"].value if "dram" in part.figures.byte else None,
            time=part.time,
            source=record.source,
            work=_work(part.figures),
        )
        if isinstance(found, Point):
            bound = part.verdict.bound
            found = replace(found, share=part.share, bound=bound, quiet=left <= 0)
            left -= 1
        placed.append(found)
    title = f"{_title(record)}: by {regions.by}"
    return Roofline.of(title, ceilings, [*placed, *_lacking(ceilings, sources)])


def overlay(
    runs: Sequence[tuple[str, Measurement]],
    *,
    levels: Sequence[str] = ("dram",),
    sources: Sequence[Source] = SOURCES,
) -> Roofline:
    """Several runs in one roofline, on one GPU or on several, whose roofs are told apart.

    Of several roofs of one GPU, path and source, the highest is drawn.

    Args:
        runs: Name for people and record of each.
        levels: As in ``roofline_of``.
        sources: As in ``roofline_of``.
    """
    devices = list(dict.fromkeys(device_label(record) for _, record in runs))
    highest: dict[tuple[str | None, ...], Ceiling] = {}
    placed: list[Point | LeftOut] = []
    for name, record in runs:
        owner = device_label(record) if len(devices) > 1 else ""
        derived = figures(record)
        ceilings = _roofs(record, derived, levels, sources)
        for ceiling in (replace(each, device=owner) for each in ceilings):
            key = (owner, ceiling.path, ceiling.level, ceiling.source)
            if key not in highest or ceiling.value > highest[key].value:
                highest[key] = ceiling
        placed += [
            replace(each, device=owner) if isinstance(each, Point) else each
            for each in _points(record, derived, ceilings, levels, name)
        ]
    placed += _lacking(tuple(highest.values()), sources)
    title = f"{len(runs)} runs on {', '.join(devices)}"
    return Roofline.of(title, highest.values(), placed)


def _roofs(
    record: Measurement, derived: Figures, levels: Sequence[str], sources: Sequence[Source]
) -> list[Ceiling]:
    """The roofs of each path that worked and of each level."""
    used = _used(derived)
    known = ceilings_for(record)
    found: list[Ceiling] = []
    for source in sources:
        own = [ceiling for ceiling in known if ceiling.source == source]
        for path in used:
            found += [ceiling for ceiling in own if ceiling.path == path]
        for level in levels:
            found += [ceiling for ceiling in own if ceiling.level == level]
    return found


def _used(derived: Figures) -> dict[str, Figure]:
    """The paths whose work is worth a roof."""
    total = derived.flop_total.value or 0.0
    return {
        path: figure
        for path, figure in derived.flop.items()
        if figure.value and not figure.upper_bound and figure.value >= _WORTH_A_ROOF * total
    }


def path_points(
    record: Measurement, name: str, *, levels: Sequence[str] = metrics.LEVELS
) -> list[tuple[str, Point]]:
    """The step's work on one FLOP path alone, at each memory level: the path and its point.

    Bytes and time are those of the whole step, which serve every path. Integer operations have no
    place on a FLOP/s axis.

    Args:
        record: What was measured.
        name: Of the run, for people.
        levels: Memory levels to show.
    """
    derived = figures(record)
    found = []
    for path, flop in _used(derived).items():
        if path.startswith("tensor_int"):
            continue
        for level in (level for level in levels if level in derived.byte):
            byte, step = derived.byte[level], derived.step_time
            point = place(
                f"{name}, {path_name(path)} only",
                flop=flop.value,
                byte=byte.value,
                time=step.value,
                source=record.source,
                level=level,
                note="bytes and time are those of the whole step",
                work={path: flop.value or 0.0},
                spread=(_added(flop, byte), _added(flop, step)),
            )
            if isinstance(point, Point):
                found.append((path, point))
    return found


def _added(*parts: Figure) -> float | None:
    """Independent relative spreads add at most linearly."""
    spreads = [part.spread for part in parts if part.spread is not None]
    return sum(spreads) if spreads else None


def _mix(
    record: Measurement, ceilings: Sequence[Ceiling], sources: Sequence[Source]
) -> list[Ceiling]:
    """The verdict's compute ceiling, where it is a mix and lies apart from the paths' roofs."""
    found = verdict(record, roofs=None if "measured" in sources else ())
    mix = found.compute.ceiling if found.compute is not None else None
    if mix is None or mix.path is not None or mix.source not in sources:
        return []
    peaks = [c.value for c in ceilings if c.kind == "flop" and c.source == mix.source]
    apart = all(abs(math.log(peak / mix.value)) > _APART for peak in peaks)
    how = "total FLOP over the sum of each path's least time"
    return [replace(mix, name="this step's mix", detail=how)] if apart else []


def _points(
    record: Measurement,
    derived: Figures,
    ceilings: Sequence[Ceiling],
    levels: Sequence[str],
    name: str,
) -> list[Point | LeftOut]:
    """The step at each memory level that was asked for at all."""
    placed: list[Point | LeftOut] = []
    bound = {ceiling.level for ceiling in ceilings}
    for level in levels:
        byte, intensity = derived.byte.get(level), derived.intensity.get(level)
        if byte is None or intensity is None:
            if level == "dram" or len(levels) == 1:
                placed.append(LeftOut(name, f"{BYTES[level]} bytes were not counted"))
            continue
        notes = []
        if level not in bound and bound - {None}:
            notes.append(f"no roof of {BYTES[level]} is known")
        if level == "l2" and record.environment.chip in TWO_PARTITIONS:
            notes.append("counts traffic between L2's two partitions, too")
        if level == "dram" and _unwritten(derived):
            notes.append(f"0 bytes written: {_WRITE_BACK}")
        placed.append(
            place(
                name,
                flop=derived.flop_total.value,
                byte=byte.value,
                time=derived.step_time.value,
                source=record.source,
                level=level,
                note=", ".join(notes),
                work=_work(derived),
                spread=(intensity.spread, derived.flop_per_s.spread),
            )
        )
    # Three times the same reason is one reason too many.
    return list(dict.fromkeys(placed))


def _work(derived: Figures) -> dict[str, float]:
    """FLOP by path, as far as they are known exactly."""
    return {
        path: figure.value
        for path, figure in derived.flop.items()
        if figure.value and not figure.upper_bound
    }


def _unwritten(derived: Figures) -> bool:
    """Whether a counter saw no byte written to DRAM; a model has no L2 to hold what was."""
    written = derived.byte.get("dram_write")
    return written is not None and written.value == 0 and written.source != "analytic"


def _study_point(record: Measurement, derived: Figures) -> Point | LeftOut:
    """The study divides by kernel time; without kernel records its point has no height."""
    study = derived.study
    assert study is not None
    return place(
        "study's formula",
        flop=study.flop.value,
        byte=derived.byte["dram"].value if "dram" in derived.byte else None,
        time=derived.kernel_time.value,
        source=record.source,
        note="fp32 instructions over kernel time",
        work={"sass_fp32": study.flop.value or 0.0},
        spread=(study.intensity.spread, study.flop_per_s.spread),
    )


def _lacking(ceilings: Sequence[Ceiling], sources: Sequence[Source]) -> list[LeftOut]:
    """Kinds of roofs that were asked for by themselves and are not there."""
    have = {ceiling.source for ceiling in ceilings}
    if have & set(sources):
        return []
    why = {"measured": "the run holds none", "datasheet": "the device is not in the catalogue"}
    return [LeftOut(f"{source} roofs", why[source]) for source in sources]


def device_label(record: Measurement) -> str:
    """The device's name without the maker's."""
    return record.environment.device_name.removeprefix("NVIDIA ").removeprefix("Tesla ")


def save_plot(record: Measurement, path: str | os.PathLike[str]) -> Path:
    """Draws the roofline of a record into a file; its suffix decides the format."""
    from roofprobe.plot import save_roofline  # matplotlib takes a while, and text needs none

    return save_roofline(roofline_of(record), path)


def save_layered_plot(record: Measurement, path: str | os.PathLike[str]) -> Path:
    """Draws the roofline of a record's parts into a file.

    Raises:
        UsageError: the record has no counts by part.
    """
    from roofprobe.plot import save_roofline

    return save_roofline(layered_roofline(record), path)


def _is_model(record: Measurement) -> bool:
    """True where nothing was counted by hardware."""
    return record.source == "analytic"


def _title(record: Measurement) -> str:
    chip = f", {record.environment.chip}" if record.environment.chip else ""
    state = "" if record.complete else ", INCOMPLETE"
    return f"{record.name} on {record.environment.device_name}{chip} [{record.source}{state}]"


def _rows(record: Measurement, derived: Figures) -> Iterable[Row]:
    yield _row("step time, unprofiled", derived.step_time, "s")
    if record.kernels is not None:
        yield _row("kernel time, sum", derived.kernel_time, "s")
        yield _row("GPU busy (kernels, copies, fills)", derived.busy_time, "s")
    for path, figure in derived.flop.items():
        # A path without work is noise, unless it is the only one or could not be read.
        if figure.value != 0 or path in ("sass_fp32", "analytic_fp32"):
            unit = "op" if path == "tensor_int8" else "FLOP"
            yield _row(path_words(path), figure, unit)
    yield _row("FLOP, total", derived.flop_total, "FLOP")
    for level, figure in derived.byte.items():
        yield _row(f"{BYTES[level]} bytes", figure, "B")
    for level, figure in derived.intensity.items():
        yield _row(f"intensity, {BYTES[level]}", figure, "FLOP/B")
    yield _row("attained, over step time", derived.flop_per_s, "FLOP/s")
    if record.kernels is not None:
        yield _row("attained, over kernel time", derived.flop_per_s_kernel, "FLOP/s")
    yield _row("DRAM bandwidth, over step time", derived.byte_per_s, "B/s")
    if derived.study is not None:
        yield _row("study's FLOP (fadd+fmul+2ffma)", derived.study.flop, "FLOP")
        yield _row("study's intensity", derived.study.intensity, "FLOP/B")
        if record.kernels is not None:
            yield _row("study's FLOP/s (kernel time)", derived.study.flop_per_s, "FLOP/s")


def path_words(path: str) -> str:
    """What a FLOP path is, in the words of the field."""
    return _PATHS.get(path, path.replace("_", " "))


def _row(label: str, figure: Figure, unit: str) -> Row:
    if unit == "s":
        value = seconds(figure.value)
    elif unit == "FLOP/B":
        value = f"{number(figure.value)} {unit}" if figure.value is not None else "n/a"
    else:
        value = si(figure.value, unit)
    if figure.error is not None and figure.value is not None:
        value = f"{value} ±{percent(figure.error, 2)}"
    if figure.upper_bound and figure.value is not None:
        value = f"<= {value}"
    return Row(label, value, _spread(figure.spread), figure.source)


def _spread(fraction: float | None) -> str:
    return percent(fraction, 2) if fraction is not None else ""


def plain_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], sides: str, *, title: str | None = None
) -> Table:
    """A plain table.

    Args:
        heads: Of the columns.
        rows: Cells, one for each head.
        sides: ``l`` or ``r`` for each column.
        title: Above it.
    """
    above = Text(visible(title)) if title is not None else None
    table = Table(title=above, title_justify="left", show_edge=False, pad_edge=False)
    for head, side in zip(heads, sides, strict=True):
        table.add_column(visible(head), justify="right" if side == "r" else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table


def say(console: Console, sentence: str) -> None:
    """Prints a sentence; what is in it of names and messages cannot steer the terminal."""
    console.print(visible(sentence))


def print_table(console: Console, table: Table) -> None:
    """Prints a table, wider than the console where it must be: no number is cut."""
    wide = console.options.update(width=_WIDEST)
    table.width = console.measure(table, options=wide).maximum
    console.print(table, crop=False)


def _uses(judged: Verdict) -> Iterable[Row]:
    """The use of each ceiling."""
    for use in judged.uses:
        unit = "FLOP/s" if use.ceiling.kind == "flop" else "B/s"
        value = percent(use.fraction)
        yield Row(
            f"use of {use.name} ceiling, {si(use.ceiling.value, unit)}",
            f">= {value}" if use.at_least else value,
            _spread(use.spread),
            use.ceiling.source,
        )


def _remarks(record: Measurement, derived: Figures, judged: Verdict) -> Iterable[str]:
    if _is_model(record):
        yield _MODEL
    compute = judged.compute
    if compute is not None:
        ceiling = compute.ceiling
        how = ceiling.detail if ceiling.path is None else f"{ceiling.name}, {ceiling.detail}"
        yield f"Compute ceiling ({ceiling.source}), {si(ceiling.value, 'FLOP/s')}: {how}."
    share = derived.fma_share.value
    cores, total = derived.flop.get("sass_fp32"), derived.flop_total.value
    worked = cores.value if cores is not None else None
    if share is not None and worked and total and worked >= _WORTH_A_ROOF * total:
        yield (
            f"FMA are {percent(share, 2)} of the fp32 instructions on CUDA cores, so no more than "
            f"{percent((1 + share) / 2, 2)} of their peak can be reached."
        )
    clocks = record.clocks
    if clocks is not None:
        low, middle, high = (si(clock, "Hz") for clock in clocks.sm)
        yield f"SM clock while timing: {middle} ({low} to {high}, {clocks.samples} readings, nvml)"
    if _unwritten(derived):
        yield f"0 bytes written to DRAM is a count and no gap: {_WRITE_BACK}."
    if record.coverage is not None and record.coverage.fraction is not None:
        yield (
            f"SASS coverage: {percent(record.coverage.fraction, 4)} of the stores that the "
            "hardware counted" + ("" if record.coverage.trusted else _untrusted(record))
        )
    elif record.coverage is not None and record.coverage.trusted:
        yield f"SASS coverage: {record.coverage.cause}"
    if derived.study is not None and derived.study.reason is not None:
        times = f"{number(derived.study.ratio)} times" if derived.study.ratio else "all of"
        yield f"Total FLOP are {times} the study's: {derived.study.reason}."


def _untrusted(record: Measurement) -> str:
    eager = record.eager
    if eager is None:
        return "; SASS figures are withheld"
    worst = max(eager.agreement.values(), key=lambda ratio: abs(ratio - 1))
    return (
        f"; SASS figures are of an eager run of the same step ({eager.name}, {eager.created}), "
        f"whose hardware counters agree with this one's within {percent(abs(worst - 1), 2)}"
    )


def _others(record: Measurement) -> Iterable[Row]:
    """Metrics that were asked for by name and mean nothing to a roofline: their own values."""
    for name in _outside(record):
        spread = _spread(record.spread(name))
        yield Row(name, number(record.value(name), _ALL_DIGITS), spread, record.source)


def _outside(record: Measurement) -> list[str]:
    """Metrics of a record that the table of metrics, or its source, knows nothing of."""
    used = {row.name for row in own_rows(record)}
    return [name for name in record.metrics if name not in used]


def _missing(record: Measurement, derived: Figures) -> Iterable[tuple[str, str]]:
    """Figures without a value and why, together where they share a reason."""
    labelled = [
        *((path_words(path), figure.value, figure.reason) for path, figure in derived.flop.items()),
        *(
            (f"{BYTES[at]} bytes", figure.value, figure.reason)
            for at, figure in derived.byte.items()
        ),
        ("total FLOP", derived.flop_total.value, derived.flop_total.reason),
        ("step time", derived.step_time.value, derived.step_time.reason),
        ("kernel time", derived.kernel_time.value, derived.kernel_time.reason),
        *(
            (name, record.value(name), record.unavailable.get(name, "not measured"))
            for name in _outside(record)
        ),
    ]
    found: dict[str, list[tuple[str, str]]] = {}
    for label, value, reason in labelled:
        if value is None:
            found.setdefault(_cause(record, str(reason)), []).append((label, str(reason)))
    for cause, those in found.items():
        # What is missing of each differs, and only of one is there room to say it.
        reasons = {reason for _, reason in those}
        yield _listed([label for label, _ in those]), reasons.pop() if len(reasons) == 1 else cause


def _cause(record: Measurement, reason: str) -> str:
    """A reason without the name of the metric that it is about."""
    name, _, cause = reason.partition(": ")
    return cause if name in record.metrics else reason


def _listed(labels: Sequence[str]) -> str:
    left = len(labels) - _NAMED
    return ", ".join(labels[:_NAMED]) + (f" and {left} more" if left > 0 else "")
