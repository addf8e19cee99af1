"""``roofprobe report``: the table in the terminal, and all of it on one HTML page."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from roofprobe import report
from roofprobe.cli.plot import names
from roofprobe.errors import UsageError
from roofprobe.record import Measurement
from roofprobe.units import visible

_SUFFIXES: Final = (".html", ".htm")


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "report",
        help="a run as a table and as an HTML page with an interactive roofline",
        description="Prints the table of each run and writes one page that needs no network: "
        "roofline, verdict, figures, parts of the step, counters, ceilings, cross-check and "
        "environment. Several runs share the roofline and have a section each.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="a run.json")
    parser.add_argument(
        "--out",
        metavar="PAGE",
        type=Path,
        help="where to write the page (default: report.html beside the first run)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the tables and writes the page."""
    # a template engine and 5 MB of script, which the other verbs do without
    from roofprobe import page

    # A file is one run however it is spelled.
    paths: Sequence[Path] = list({path.resolve(): path for path in arguments.runs}.values())
    out: Path = arguments.out or paths[0].parent / "report.html"
    _check(out, paths)
    records = [Measurement.load(path) for path in paths]
    target = page.save(list(zip(names(paths, records), records, strict=True)), out)
    print("\n".join(report.text(record) for record in records))
    print(f"page: {visible(str(target))}")
    return 0


def _check(out: Path, runs: Sequence[Path]) -> None:
    """A page overwrites an earlier one and nothing else.

    Raises:
        UsageError: the name is not a page's, or a run's.
    """
    if out.suffix.lower() not in _SUFFIXES:
        raise UsageError(
            f"cannot write the report to {str(out)!r}: the name must end in "
            f"{' or '.join(_SUFFIXES)}"
        )
    if out.resolve() in [path.resolve() for path in runs]:
        raise UsageError(
            f"cannot write the report to {str(out)!r}: that is the run to report on; name another "
            "file with --out"
        )
