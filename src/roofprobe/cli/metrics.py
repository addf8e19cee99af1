"""``roofprobe metrics``: what can be counted on a chip, and in how many passes. Needs no GPU."""

import argparse
from typing import Any

from roofprobe import metrics
from roofprobe.counters import cupti
from roofprobe.errors import UsageError


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "metrics",
        help="what can be counted on a chip",
        description="Without --chip, lists the chips that this libcupti knows. With it, the "
        "named sets with their passes; with a name, the metrics that contain it.",
    )
    parser.add_argument("name", nargs="?", help="part of a metric's name")
    parser.add_argument("--chip", help="CUPTI's chip name, such as GH100")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    if arguments.chip is None:
        if arguments.name is not None:
            raise UsageError("a metric's name needs a chip: roofprobe metrics --chip GH100 NAME")
        for chip in cupti.supported_chips():
            print(chip)
        return 0
    host = cupti.evaluator(arguments.chip)
    if arguments.name is not None:
        found = [name for name in host.metrics() if arguments.name in name]
        if not found:
            raise UsageError(
                f"no metric of {arguments.chip} has {arguments.name!r} in its name: try a shorter "
                "part of it"
            )
        for name in found:
            about = cupti.described(host, name)
            print(f"{name}  {about.description} [{about.unit}]" if about else name)
        return 0
    for set_name in metrics.SET_NAMES:
        names = metrics.with_coverage(metrics.metric_set(set_name, arguments.chip))
        plan, kept, unavailable = cupti.schedule(host, names)
        print(f"{set_name}: {len(kept)} metrics in {plan.passes if plan else 0} passes")
        for name in kept:
            print(f"  {name}")
        for name, reason in unavailable.items():
            print(f"  {name}: {reason}")
    return 0
