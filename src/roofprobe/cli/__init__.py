"""The ``roofprobe`` command: one verb a module, each with ``add_parser`` and ``run``."""

import io
import signal
import sys
from collections.abc import Sequence

from roofprobe.cli.signals import Signals, complain, drop_unwritten, words

# All else is imported by ``main``, so that Ctrl-C in the meantime gets its sentence too.


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Returns:
        The exit code: 0, 1 for a failure, 2 for wrong usage, 3 when a gate of ``compare`` trips
        or ``verify`` finds a difference, 128 and the number of the signal that ended it.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not where a caller put in something else
            stream.reconfigure(errors="backslashreplace")  # a kernel's name can hold anything
    with Signals() as signals:
        try:
            status = _main(given)
        except KeyboardInterrupt:
            signals.came = signals.came or signal.SIGINT
        except BaseException:
            # In the middle of an import, a library may have made another exception of it.
            if signals.came is None:
                raise
        if signals.came is None:
            return status
        verb = " ".join(["roofprobe", *given[:1]])
        complain(
            f"roofprobe: {words(signals.came)}: {verb} did not get to its end; what was written "
            "stays"
        )
        drop_unwritten(sys.stdout, sys.stderr)
        return 128 + signals.came


def _main(given: list[str]) -> int:
    import argparse
    import errno

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

    parser = argparse.ArgumentParser(
        prog="roofprobe",
        description="What a GPU really did during PyTorch training. "
        "To measure a torchvision model: python -m roofprobe.train -a resnet18 --dummy",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in (
        doctor,
        metrics,
        ceilings,
        evaluate,
        import_ncu,
        verify,
        kernels,
        report,
        plot,
        compare,
    ):
        verb.add_parser(verbs)
    command: list[str] = []
    if "--" in given and given[0] in (verify.VERB, kernels.VERB):
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
        drop_unwritten(sys.stdout)
        return 1
