"""``roofprobe kernels``: FLOP and bytes of the longest kernels, from a run under Nsight Compute."""

import argparse
import io
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from roofprobe import kernel_counters, ncu_run, part_tables
from roofprobe.cli import ncu_options
from roofprobe.errors import UsageError
from roofprobe.kernel_counters import Plan
from roofprobe.record import KernelCounts, Measurement
from roofprobe.units import number

VERB: Final = "kernels"

_COLUMNS: Final = 80  # of the table beside a kernel's name

# A run that may take longer, s, is started only when --yes says so.
_LONG: Final = 600.0


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        VERB,
        help="FLOP and bytes of the longest kernels, with Nsight Compute",
        description="Says what it will cost, runs the program once more, under ncu's kernel "
        "replay, up to the step that roofprobe.measure measured, and adds FLOP and bytes of the "
        "kernels that take longest to RUN, which was measured with --by kernel, layer or phase.",
        usage="roofprobe kernels RUN [options] -- COMMAND [ARGUMENT ...]",
    )
    ncu_options.add(parser)
    parser.add_argument(
        "--top",
        type=int,
        default=kernel_counters.TOP,
        metavar="N",
        help="how many kernels, by time (%(default)d)",
    )
    parser.add_argument(
        "--yes", action="store_true", help=f"also where it may take over {_LONG / 60:.0f} minutes"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Announces the price, counts, adds the counts to the run file and prints them."""
    ncu_options.require_command(arguments, VERB)
    path: Path = arguments.run_file
    record = Measurement.load(path)
    planned = kernel_counters.plan(record, arguments.top)
    ncu = ncu_run.find_ncu(arguments.ncu)
    ncu_options.require_place(path)
    ncu_options.say(f"=> {price(planned)}")
    most = planned.price[1]
    if most > _LONG and not arguments.yes:
        raise UsageError(
            f"that may take {most / 60:.0f} minutes: add --yes, or ask for fewer kernels with "
            f"--top (now {arguments.top})"
        )
    record = kernel_counters.count(
        record, planned, arguments.command, ncu, logs=arguments.logs, stall=arguments.stall
    )
    assert record.regions is not None
    assert record.regions.counted is not None
    ncu_options.add_to(path, record, text(record, record.regions.counted))
    return 0


def price(planned: Plan) -> str:
    """What it will take, in words."""
    least, most = planned.price
    others = len(planned.kernels) - len(planned.asked)
    beside = f" and {others} of the same function names" if others else ""
    return (
        f"ncu replays {number(planned.launches)} launches of {len(planned.asked)} kernels{beside} "
        f"for {len(planned.metrics)} metrics (8 passes each on an H200): about {least:.0f} to "
        f"{most:.0f} s, the steps before the measured one included; the program's start (imports, "
        "data) comes on top"
    )


def text(record: Measurement, how: KernelCounts, *, width: int = 110) -> str:
    """The counted kernels as plain text.

    Args:
        record: The record.
        how: Its ``regions.counted``.
        width: Columns that the sentences keep to, and the table if it can.
    """
    buffer = io.StringIO()
    # Names are cut to fit; where other cells are long, a wide line is better than a cut number.
    console = Console(file=buffer, width=2 * width, no_color=True, highlight=False, markup=False)
    found = part_tables.counted_kernels(record, how, width - _COLUMNS)
    table = Table(title=Text(found.title), title_justify="left", show_edge=False, pad_edge=False)
    for head, side in zip(found.heads, found.sides, strict=True):
        table.add_column(head, justify="left" if side == "l" else "right", no_wrap=True)
    for row in found.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    for line in part_tables.counted_remarks(record, how):
        console.print(line, width=width)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
