"""What the verbs that run a program under ncu have in common."""

import argparse
from pathlib import Path

from roofprobe import ncu_run
from roofprobe.errors import UsageError


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
