"""The ``roofprobe`` command: one verb a module, each with ``add_parser`` and ``run``."""

import argparse
import sys
from collections.abc import Sequence

from roofprobe.cli import (
    ceilings,
    compare,
    doctor,
    evaluate,
    import_ncu,
    metrics,
    plot,
    report,
    verify,
)
from roofprobe.errors import RoofprobeError, UsageError

_VERBS = (doctor, metrics, ceilings, evaluate, import_ncu, verify, report, plot, compare)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Returns:
        The exit code: 0, 1 for a failure, 2 for wrong usage, 3 when a gate of ``compare`` trips
        or ``verify`` finds a difference.
    """
    parser = argparse.ArgumentParser(
        prog="roofprobe",
        description="What a GPU really did during PyTorch training. "
        "To measure a torchvision model: python -m roofprobe.train -a resnet18 --dummy",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in _VERBS:
        verb.add_parser(verbs)
    given = list(sys.argv[1:] if argv is None else argv)
    command: list[str] = []
    if given[:1] == [verify.VERB] and "--" in given:
        # argparse cannot keep another program's options apart from those in front of it.
        cut = given.index("--")
        given, command = given[:cut], given[cut + 1 :]
    arguments = parser.parse_args(given)
    arguments.command = command
    try:
        return int(arguments.run(arguments))
    except RoofprobeError as error:
        print(f"roofprobe: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader left; there is nobody to tell
        return 1
