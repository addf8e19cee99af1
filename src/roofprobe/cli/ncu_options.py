"""What the verbs that run a program under ncu have in common."""

import argparse
import sys
import tempfile
from pathlib import Path

from roofprobe import ncu_run
from roofprobe.cli.signals import complain
from roofprobe.errors import RecordError, RoofprobeError, UsageError
from roofprobe.record import Measurement


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the run file and the options about ncu."""
    parser.add_argument("run_file", metavar="RUN", type=Path, help="the run's run.json")
    parser.add_argument("--ncu", metavar="PATH", help="which ncu (the one on PATH)")
    parser.add_argument(
        "--stall",
        type=float,
        default=ncu_run.STALL,
        metavar="S",
        help="stop a run that prints nothing for so many seconds (%(default)g)",
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep ncu's logs")


def require_command(arguments: argparse.Namespace, verb: str) -> None:
    """Raises UsageError where no program was named behind two dashes."""
    if not arguments.command:
        raise UsageError(
            f"{verb} needs the command that the run measured, after two dashes: "
            f"roofprobe {verb} run.json -- python train.py"
        )


def require_place(path: Path) -> None:
    """Makes sure that a run file can be added to, before ncu takes minutes.

    Raises:
        RoofprobeError: its folder cannot be written to.
    """
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise RoofprobeError(
            f"nothing can be added to {path}, because its folder cannot be written to "
            f"({error.strerror}): copy the file to one that can, and name the copy"
        ) from None


def add_to(path: Path, record: Measurement, table: str) -> None:
    """Writes a run file anew and prints what was added to it.

    Raises:
        RecordError: it could not be written; the table has been printed.
    """
    unsaved: RecordError | None = None
    try:
        record.save(path)
    except RecordError as error:  # told last: the table holds what took minutes
        unsaved = error
    print("\n" + table, end="")
    if unsaved is not None:
        raise unsaved
    print(f"added to {path}")


def say(line: str) -> None:
    """Prints progress; a full disk, or a reader that left, costs no run under ncu."""
    try:
        print(line, flush=True)
    except OSError as error:
        complain(
            f"roofprobe: standard output cannot be written to ({error.strerror}); the rest is here"
        )
        sys.stdout = sys.stderr
        complain(line)
