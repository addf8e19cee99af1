"""``roofprobe evaluate``: counters of a saved counter-data file. Needs no GPU."""

import argparse
import json
from typing import Any

from roofprobe.counters.recorded import CounterFile


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "evaluate",
        help="counters of a saved counter-data file",
        description="Evaluates the counter-data images that --save-image kept, on any machine.",
    )
    parser.add_argument("file", help="a .counters file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints every counter of every round."""
    recorded = CounterFile.load(arguments.file)
    rounds = recorded.evaluate()
    if arguments.json:
        body = {
            "chip": recorded.chip,
            "passes": recorded.passes,
            "rounds": [dict(counts.values) for counts in rounds],
            "unavailable": {k: v for counts in rounds for k, v in counts.reasons.items()},
        }
        print(json.dumps(body, indent=1))
        return 0
    print(f"{recorded.chip}, {len(rounds)} rounds of {recorded.passes} passes")
    for name in recorded.metrics:
        values = [counts.values[name] for counts in rounds]
        shown = "  ".join("n/a" if value is None else f"{value:.9g}" for value in values)
        print(f"{name:62s} {shown}")
    return 0
