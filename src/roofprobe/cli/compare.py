"""``roofprobe compare``: what changed between two run files, and gates on it for CI.

Exit codes: 0, or 1 and 2 as everywhere, or 3 when a gate of ``--fail-on`` trips.
"""

import argparse
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from roofprobe.compare import (
    Change,
    Comparison,
    Effect,
    Outcome,
    check,
    compare,
    parse_gates,
    plain,
    signed,
)
from roofprobe.record import Measurement
from roofprobe.report import plain_table, print_table, say
from roofprobe.units import percent, visible

TRIPPED: Final = 3

_LABELS: Final[Mapping[Effect, str]] = {
    "meaning": "NOT COMPARABLE",
    "work": "OTHER WORK OR DEVICE",
    "setting": "differs",
}
_FOOTER: Final = "Noise is how far repeats of one step differ. 1 FMA = 2 FLOP; GB = 1e9 B."


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "compare",
        help="what changed between two runs, with gates for CI",
        description="Explains the change from one run file to another. Exit code 3 when a gate "
        "trips, which it also does where its quantity has no value.",
    )
    parser.add_argument("before", type=Path, help="a run.json")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument(
        "--fail-on",
        metavar="GATES",
        help="changes that fail, such as 'dram_bytes>+2%%,flop>+0.5%%': a quantity of the table "
        "other than gpu_idle, or a CUPTI metric, > or <, a signed percentage of the value before",
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="compare runs of different sources, gate runs of different work or GPUs",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the comparison and holds the gates against it."""
    gates = parse_gates(arguments.fail_on) if arguments.fail_on is not None else ()
    before, after = (Measurement.load(path) for path in (arguments.before, arguments.after))
    comparison = compare(before, after, anyway=arguments.anyway)
    outcomes = check(comparison, gates, anyway=arguments.anyway)
    if arguments.json:
        body = _plain(comparison, outcomes)
        print(json.dumps(body, indent=1, sort_keys=True, allow_nan=False))
    else:
        files = (arguments.before, arguments.after)
        print(text(comparison, outcomes, files), end="")
    tripped = [outcome for outcome in outcomes if outcome.tripped]
    for outcome in tripped:
        print(f"roofprobe: gate {visible(outcome.message)}", file=sys.stderr)
    return TRIPPED if tripped else 0


def _plain(comparison: Comparison, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """The comparison in JSON's types."""
    return {
        "schema": "roofprobe.comparison",
        "version": 1,
        "before": _identity(comparison.before),
        "after": _identity(comparison.after),
        "changes": {change.quantity: plain(change) for change in comparison.changes},
        "differences": [
            {
                "name": found.name,
                "before": found.before,
                "after": found.after,
                "effect": found.effect,
            }
            for found in comparison.differences
        ],
        "notes": list(comparison.notes),
        "findings": list(comparison.findings),
        "gates": [
            {
                "gate": outcome.gate.text,
                "tripped": outcome.tripped,
                "message": outcome.message,
                **plain(outcome.change),
            }
            for outcome in outcomes
        ],
    }


def _identity(record: Measurement) -> dict[str, Any]:
    return {
        "name": record.name,
        "source": record.source,
        "created": record.created,
        "device": record.environment.device_name,
    }


def text(
    comparison: Comparison,
    outcomes: Sequence[Outcome],
    files: tuple[Path, Path],
    *,
    width: int = 100,
) -> str:
    """The comparison as a table and sentences, plain text.

    Args:
        comparison: The two records.
        outcomes: Gates; those that hold are listed.
        files: Where the records are from.
        width: Columns that sentences keep to, and the table if it can.
    """
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, no_color=True, highlight=False, markup=False)
    for side, path, record in zip(
        ("before", "after"), files, (comparison.before, comparison.after), strict=True
    ):
        state = "" if record.complete else ", INCOMPLETE"
        device = record.environment.device_name
        say(console, f"{side + ':':7s} {record.name} on {device} [{record.source}{state}], {path}")
    for effect, label in _LABELS.items():
        found = [str(d) for d in comparison.differences if d.effect == effect]
        if found:
            say(console, f"{label}: {', '.join(found)}")
    for note in comparison.notes:
        say(console, f"note: {note}")
    console.print()
    print_table(console, _table(comparison.changes))
    for why in dict.fromkeys(change.missing for change in comparison.changes):
        if why is not None:
            names = [change.quantity for change in comparison.changes if change.missing == why]
            say(console, f"n/a: {', '.join(names)}: {why}")
    console.print()
    for finding in comparison.findings:
        say(console, f"* {finding}.")
    for outcome in outcomes:
        if not outcome.tripped:
            say(console, f"gate {outcome.message}")
    say(console, _FOOTER)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _table(changes: Iterable[Change]) -> Table:
    shown = [change for change in changes if change.before.value != 0 or change.after.value != 0]
    by_image = any(change.images is not None for change in shown)
    numbers = ("before", "after", "change", *(("per image",) if by_image else ()), "noise")
    rows = [
        (
            change.quantity,
            change.shown(change.before),
            change.shown(change.after),
            _points(change) if change.kind == "share" else signed(change.fraction),
            *((signed(change.per_image) if change.images else "",) if by_image else ()),
            percent(change.noise),
            " / ".join(dict.fromkeys((change.before.source, change.after.source))),
        )
        for change in shown
    ]
    return plain_table(("per step", *numbers, "source"), rows, f"l{'r' * len(numbers)}l")


def _points(change: Change) -> str:
    return "n/a" if change.missing is not None else f"{100 * change.difference:+.1f} pp"
