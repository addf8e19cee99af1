"""``roofprobe verify``: runs a program again under Nsight Compute and compares its counters."""

import argparse
from pathlib import Path
from typing import Any, Final

from roofprobe import crosscheck, ncu_run, verify
from roofprobe.cli import ncu_options
from roofprobe.record import Measurement

VERB: Final = "verify"


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        VERB,
        help="compare a run's counters with Nsight Compute's",
        description="Runs the program twice more, under ncu, up to the step that roofprobe.measure "
        "measured, and compares counter by counter. The comparison is added to RUN. Exit code 0 "
        "when all agree, 3 when something does not.",
        usage="roofprobe verify RUN [options] -- COMMAND [ARGUMENT ...]",
    )
    ncu_options.add(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compares, adds the comparison to the run file and prints it."""
    ncu_options.require_command(arguments, VERB)
    return verify_file(
        arguments.run_file,
        arguments.command,
        ncu=arguments.ncu,
        logs=arguments.logs,
        stall=arguments.stall,
    )


def verify_file(
    path: Path,
    command: list[str],
    *,
    ncu: str | None = None,
    logs: Path | None = None,
    stall: float = ncu_run.STALL,
) -> int:
    """Compares a run file with ncu, adds the comparison to it and prints it.

    Returns:
        The exit code: 0 when all agree, 3 when something does not.
    """
    record = Measurement.load(path)
    verify.require_comparable(record)  # before anybody is asked to install ncu for it
    check = verify.cross_check(
        record,
        command,
        ncu_run.find_ncu(ncu),
        logs=logs,
        stall=stall,
        say=lambda line: print(line, flush=True),
    )
    verify.applied(record, check).save(path)
    print("\n" + crosscheck.text(check), end="")
    print(f"added to {path}")
    return 0 if check.agrees else 3
