"""One HTML page for one or more records, whole in itself: it asks nothing of any network.

plotly.js is inlined as the Python package carries it. The page forbids all loading and every
script but its own two by its Content-Security-Policy, so that a name in a record can do no harm.
The same records give the same bytes.
"""

import base64
import dataclasses
import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2

from roofprobe import crosscheck, metrics, part_tables, report
from roofprobe.errors import UsageError
from roofprobe.judge import ceilings_for
from roofprobe.metrics import Metric
from roofprobe.page.chart import chart
from roofprobe.page.layered import layered
from roofprobe.record import Environment, Measurement, Regions, write_whole
from roofprobe.roofline import Ceiling
from roofprobe.units import percent, seconds, si
from roofprobe.witness import HEADS

_NOT_READ: Final = "not read, or there is none"


class Counter(NamedTuple):
    """A raw counter in words: its own value per step, or the reason why there is none."""

    name: str
    meaning: str
    value: str
    spread: str
    source: str


class Roof(NamedTuple):
    """A ceiling in words."""

    name: str
    value: str
    spread: str
    clock: str
    sustained: str
    source: str
    detail: str


def html(runs: Sequence[tuple[str, Measurement]]) -> str:
    """The page.

    Args:
        runs: Name for people and record of each, one or more.
    """
    # 5 MB of script, which nothing else needs
    from plotly.offline import get_plotlyjs

    here = files(__package__)
    plotly, script, style, template = (
        get_plotlyjs(),
        *((here / name).read_text("utf-8") for name in ("page.js", "page.css", "page.html")),
    )
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(
        chart=chart(runs),
        sections=[_section(name, record) for name, record in runs],
        footer=report.FOOTER,
        witness_heads=HEADS,
        witness_title=report.WITNESS,
        plotly=plotly,
        script=script,
        style=style,
        hashes=[_hash(plotly), _hash(script)],
    )


def save(runs: Sequence[tuple[str, Measurement]], path: str | os.PathLike[str]) -> Path:
    """Writes the page whole or not at all.

    Raises:
        RecordError: the file cannot be written.
    """
    # JSON can hold half of a surrogate pair, which no file can.
    return write_whole(path, html(runs).encode("utf-8", "replace"))


def _hash(script: str) -> str:
    """What a Content-Security-Policy calls a script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _section(name: str, record: Measurement) -> Mapping[str, Any]:
    """All that the page says of one record."""
    check = record.crosscheck
    return {
        "name": name,
        "record": record,
        "content": report.content(record),
        "roofs": [_roof(ceiling) for ceiling in ceilings_for(record)],
        "counters": list(_counters(record)),
        "clocks": list(_clocks(record)),
        "overhead": {part: seconds(time) for part, time in record.overhead.items()},
        "environment": dict(_environment(record.environment)),
        "parts": _parts(record, record.regions) if record.regions is not None else None,
        "check": check
        and {
            "title": crosscheck.title(check),
            "rows": crosscheck.rows(check),
            "remarks": list(crosscheck.remarks(check)),
            "command": shlex.join(check.command),
            "created": check.created,
        },
    }


def _parts(record: Measurement, regions: Regions) -> Mapping[str, Any]:
    """The parts of a step: their picture, or why there is none, tables and remarks."""
    picture, reason = None, ""
    try:
        picture = layered(record)
    except UsageError as error:
        reason = str(error)
    tables = []
    for table in part_tables.tables(record, whole=True):
        most = part_tables.TOP_KERNELS if table.of == "kernel" else part_tables.TOP_PARTS
        tables.append(
            {
                "title": table.title,
                "heads": table.heads,
                "rows": table.rows,
                "numbers": [index for index, side in enumerate(table.sides) if side == "r"],
                "first": most if len(table.rows) > most else 0,
                # the picture's points carry the numbers of its rows
                "ranked": picture is not None and table.of == regions.by,
            }
        )
    return {
        "picture": picture,
        "reason": reason,
        "tables": tables,
        "remarks": list(part_tables.remarks(record)),
    }


def _counters(record: Measurement) -> Iterator[Counter]:
    for name in record.metrics:
        value, spread, source = record.value(name), record.spread(name), record.source
        if value is None and record.eager is not None and name in record.eager.counters:
            value, source = record.eager.counters[name], record.eager.source
        shown = "n/a" if value is None else f"{value:,.0f}"
        row = metrics.TABLE.get(name)
        meaning = meaning_of(row) if row is not None else "no part of a roofline"
        if value is None:
            meaning = f"{meaning}: {record.unavailable.get(name, 'not measured')}"
        between = percent(spread, 2) if spread is not None else ""
        yield Counter(name, meaning, shown, between, source)


def meaning_of(row: Metric) -> str:
    """What one count of a metric is."""
    if row.kind in ("flop", "op"):
        unit = "FLOP" if row.kind == "flop" else "op"
        bound = "at most " if row.upper_bound else ""
        return f"{report.path_words(row.path or '')}, {bound}{row.weight:g} {unit} each"
    if row.kind in ("byte", "sector"):
        where = "_".join(part for part in (row.level, row.direction) if part)
        unit = "bytes" if row.kind == "byte" else f"sectors of {row.weight:g} bytes"
        return f"{report.BYTES[where]}, {unit}"
    if row.kind == "rate":
        where = "_".join(part for part in (row.level, row.direction) if part)
        return f"{report.BYTES[where]}, bytes a second over the range"
    if row.kind == "second":
        return "time that the GPU was in the range, ns"
    if row.kind == "gate":
        return "warp instructions of a pipe: where 0, what only it executes was not instrumented"
    if row.kind == "block":
        return "thread blocks launched: where kernel records show more, kernels were not counted"
    by = "instrumentation" if row.kind == "coverage_sass" else "the hardware"
    return f"store instructions, counted by {by}"


def _roof(ceiling: Ceiling) -> Roof:
    spread = percent(ceiling.spread, 2) if ceiling.spread is not None else ""
    unit = "FLOP/s" if ceiling.kind == "flop" else "B/s"
    clock = si(ceiling.clock, "Hz") if ceiling.clock is not None else ""
    sustained = si(ceiling.sustained, unit) if ceiling.sustained is not None else ""
    value = si(ceiling.value, unit)
    return Roof(ceiling.name, value, spread, clock, sustained, ceiling.source, ceiling.detail)


def _clocks(record: Measurement) -> Iterator[tuple[str, str]]:
    clocks = record.clocks
    if clocks is None:
        yield "clocks", _NOT_READ
        return
    low, middle, high = (si(clock, "Hz") for clock in clocks.sm)
    yield "SM", f"{middle} ({low} to {high})"
    yield "memory", si(clocks.memory, "Hz")
    yield "readings", f"{clocks.samples} ({clocks.source})"


def _environment(environment: Environment) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(environment):
        value = getattr(environment, field.name)
        name = field.name.replace("_", " ").removesuffix(" byte")
        if field.name == "precision":
            yield from ((part, str(setting)) for part, setting in value.items())
        elif field.name == "command":
            yield name, shlex.join(value) if value else _NOT_READ
        elif value is None:
            yield name, _NOT_READ
        else:
            yield name, si(value, "B") if field.name == "memory_byte" else str(value)
