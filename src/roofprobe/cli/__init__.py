"""The ``roofprobe`` command: one verb a module, each with ``add_parser`` and ``run``."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from roofprobe.cli import (
    ceilings,
    compare,
    doctor,
    evaluate,
    import_ncu,
    kernels,
    metrics,
    plot,
    report,
    verify,
)
from roofprobe.errors import RoofprobeError, UsageError

_VERBS = (doctor, metrics, ceilings, evaluate, import_ncu, verify, kernels, report, plot, compare)
_WITH_COMMAND = (verify.VERB, kernels.VERB)


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
    if "--" in given and given[0] in _WITH_COMMAND:
        # argparse cannot keep another program's options apart from those in front of it.
        cut = given.index("--")
        given, command = given[:cut], given[cut + 1 :]
    arguments = parser.parse_args(given)
    arguments.command = command
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except RoofprobeError as error:
        print(f"roofprobe: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader left; there is nobody to tell
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(f"roofprobe: error: cannot write the output: {error.strerror}", file=sys.stderr)
        # What is left in the buffer cannot be written at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
