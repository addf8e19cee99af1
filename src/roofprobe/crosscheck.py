"""A cross-check in words: the table of roofprobe's counters beside another profiler's."""

import io
from collections.abc import Iterator
from itertools import groupby
from typing import Final, Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from roofprobe.record import CheckedCounter, CrossCheck
from roofprobe.units import seconds

_SASS: Final = "smsp__sass_thread_inst_executed_op_"
_TENSOR: Final = "sm__ops_path_tensor_src_"


class Row(NamedTuple):
    """One counter in words."""

    counter: str
    roofprobe: str
    other: str
    ratio: str
    tolerance: str
    verdict: str
    mode: str


def title(check: CrossCheck) -> str:
    """What is compared with what."""
    return f"roofprobe against {check.tool}, per step"


def rows(check: CrossCheck) -> list[Row]:
    """Counter by counter, those of one way of collecting together."""
    return [_row(counter) for counter in check.counters]


def remarks(check: CrossCheck) -> Iterator[str]:
    """Reasons, what is left out, the price, and last the outcome."""
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


def text(check: CrossCheck, *, width: int = 110) -> str:
    """The comparison, its price and what it leaves out, as plain text.

    Args:
        check: The comparison.
        width: Columns.
    """
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False, markup=False)
    heads = ("counter", "roofprobe", check.tool.split()[0], "ratio", "tolerance", "verdict")
    table = Table(title=Text(title(check)), title_justify="left", show_edge=False, pad_edge=False)
    for head in heads:
        side: Literal["left", "right"] = "left" if head in ("counter", "verdict") else "right"
        table.add_column(head, justify=side, no_wrap=True)
    for mode, members in groupby(rows(check), key=lambda row: row.mode):
        table.add_section()
        table.add_row(Text(mode))
        for row in members:
            table.add_row("  " + row.counter, *row[1:-1])
    console.print(table)
    for line in remarks(check):
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


def _row(row: CheckedCounter) -> Row:
    verdict = {True: "agrees", False: "DIFFERS", None: "not judged"}[row.agrees]
    if row.agrees is False and (row.other is None or row.roofprobe is None):
        verdict = "NO VALUE"
    return Row(
        _short(row.metric),
        _value(row.roofprobe),
        _value(row.other),
        "" if row.ratio is None else f"{row.ratio:.5f}",
        "" if row.tolerance is None else f"{100 * row.tolerance:g}%",
        verdict,
        row.mode,
    )


def _short(metric: str) -> str:
    """A metric's name without what all names of its kind share, so that tables stay narrow."""
    name = metric.removesuffix(".sum")
    if name.startswith(_SASS):
        return "sass " + name.removeprefix(_SASS).removesuffix("_pred_on")
    return name.replace(_TENSOR, "tensor ")


def _value(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.6g}"
