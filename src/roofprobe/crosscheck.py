"""A cross-check in words: the table of roofprobe's counters beside another profiler's."""

import io
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from roofprobe.record import CheckedCounter, CrossCheck
from roofprobe.units import seconds


def text(check: CrossCheck, *, width: int = 110) -> str:
    """The comparison, its price and what it leaves out, as plain text.

    Args:
        check: The comparison.
        width: Columns.
    """
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False, markup=False)
    title = Text(f"roofprobe against {check.tool}, per step")
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("counter", no_wrap=True)
    for column in ("roofprobe", "ncu", "ratio", "tolerance"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    mode = ""
    for row in check.counters:
        if row.mode != mode:
            mode = row.mode
            table.add_section()
            table.add_row(Text(mode, style="italic"))
        table.add_row(*_cells(row))
    console.print(table)
    for line in _lines(check):
        console.print(line)
    buffer = console.file
    assert isinstance(buffer, io.StringIO)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def summary(check: CrossCheck) -> str:
    """The outcome in one sentence."""
    judged = [row for row in check.counters if row.agrees is not None]
    good = sum(bool(row.agrees) for row in judged)
    if check.agrees:
        return f"{check.tool} agrees on all {good} counters that were judged"
    names = ", ".join(_short(row.metric) for row in judged if not row.agrees)
    return f"{check.tool} agrees on {good} of {len(judged)} counters; it does not on {names}"


def _cells(row: CheckedCounter) -> tuple[str, ...]:
    verdict = {True: "agrees", False: "DIFFERS", None: "not judged"}[row.agrees]
    if row.agrees is False and (row.other is None or row.roofprobe is None):
        verdict = "NO VALUE"
    return (
        "  " + _short(row.metric),
        _value(row.roofprobe),
        _value(row.other),
        "" if row.ratio is None else f"{row.ratio:.5f}",
        "" if row.tolerance is None else f"{100 * row.tolerance:g}%",
        verdict,
    )


def _lines(check: CrossCheck) -> Iterator[str]:
    for reason in dict.fromkeys(row.reason for row in check.counters if row.reason):
        named = ", ".join(_short(row.metric) for row in check.counters if row.reason == reason)
        yield f"{named}: {reason}"
    for what, why in check.left_out.items():
        yield f"not compared: {what}: {why}"
    ours_first = sorted(
        check.duration.items(), key=lambda item: not item[0].startswith("roofprobe")
    )
    price = ", ".join(f"{run} {seconds(time)}" for run, time in ours_first)
    yield f"price: {price}"
    yield f"{summary(check)}."


def _short(metric: str) -> str:
    """A metric's name without what all names of its kind share."""
    return metric.removesuffix(".sum").replace("smsp__sass_thread_inst_executed_op_", "sass ")


def _value(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.6g}"
