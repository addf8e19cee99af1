"""``roofprobe verify``: runs a program again under Nsight Compute and compares its counters."""

import argparse
from pathlib import Path
from typing import Any, Final

from roofprobe import crosscheck, ncu_run, verify
from roofprobe.cli import ncu_options
from roofprobe.record import CrossCheck, Measurement

VERB: Final = "verify"


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        VERB,
        help="compare a run's counters with Nsight Compute's",
        description="Runs the program again under ncu, each time up to the step that "
        "roofprobe.measure measured: once while ncu replays that step's kernels, and then once for "
        "each pass that ncu needs for the bytes. Compares counter by counter and adds the "
        "comparison to RUN. Exit code 0 when all agree, 3 when something does not.",
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
    ncu_options.require_place(path)
    try:
        check = verify.cross_check(
            record, command, ncu_run.find_ncu(ncu), logs=logs, stall=stall, say=ncu_options.say
        )
    except verify.InterruptedCheck as stopped:
        if record.crosscheck is None:  # an earlier one is whole
            _keep(path, record, stopped.check)
        raise
    _keep(path, record, check)
    return 0 if check.agrees else 3


def _keep(path: Path, record: Measurement, check: CrossCheck) -> None:
    ncu_options.add_to(path, verify.applied(record, check), crosscheck.text(check))
