"""The ``roofprobe`` command: one verb a module, each with ``add_parser`` and ``run``."""

import argparse
import sys
from collections.abc import Sequence

from roofprobe.cli import evaluate, import_ncu, metrics
from roofprobe.errors import RoofprobeError, UsageError

_VERBS = (metrics, evaluate, import_ncu)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. Returns the exit code: 0, 1 for a failure, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="roofprobe",
        description="What a GPU really did during PyTorch training. "
        "To measure a torchvision model: python -m roofprobe.train -a resnet18 --dummy",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in _VERBS:
        verb.add_parser(verbs)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except RoofprobeError as error:
        print(f"roofprobe: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader left; there is nobody to tell
        return 1
