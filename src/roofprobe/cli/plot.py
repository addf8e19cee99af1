"""``roofprobe plot``: the roofline of one run, or of several in one picture. Needs no GPU."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from roofprobe import metrics, part_tables, report
from roofprobe.errors import UsageError
from roofprobe.record import Measurement
from roofprobe.roofline import Roofline, Source
from roofprobe.units import visible

_SOURCES: Final[Mapping[str, tuple[Source, ...]]] = {
    "measured": ("measured",),
    "datasheet": ("datasheet",),
    "both": report.SOURCES,
}


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "plot",
        help="the roofline of one run, or of several in one picture",
        description="Draws runs under the roofs of their GPUs. One run is a point for each memory "
        "level, joined by a line, and the published study's point beside it, or with --by a point "
        "for each part of its step; several runs are a point each.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="a run.json")
    parser.add_argument(
        "--out",
        metavar="PICTURE",
        type=Path,
        default=Path("roofline.png"),
        help="png, svg or pdf (default: roofline.png)",
    )
    parser.add_argument(
        "--level",
        choices=[*metrics.LEVELS, "all"],
        help="memory level whose bytes count (default: all for one run, dram for several)",
    )
    parser.add_argument(
        "--by",
        choices=["layer", "phase"],
        help="a point for each part of one run's step, sized by its time, coloured by what binds "
        "it, at the bytes of DRAM",
    )
    parser.add_argument(
        "--ceilings",
        choices=sorted(_SOURCES),
        default="both",
        help="roofs to draw: measured, from the run, or of the datasheet (default: both)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draws the picture and says what is not in it."""
    # matplotlib takes a while, and the other verbs need none
    from roofprobe.plot import picture_format, save_roofline

    picture_format(arguments.out)
    if arguments.by is not None:
        _check(arguments)
    records = [Measurement.load(path) for path in arguments.runs]
    level = arguments.level or ("all" if len(records) == 1 else "dram")
    levels = metrics.LEVELS if level == "all" else (level,)
    sources = _SOURCES[arguments.ceilings]
    if arguments.by is not None:
        roofline = _layered(records[0], arguments.by, sources)
    elif len(records) == 1:
        roofline = report.roofline_of(records[0], levels=levels, sources=sources)
    else:
        named = list(zip(names(arguments.runs, records), records, strict=True))
        roofline = report.overlay(named, levels=levels, sources=sources)
    save_roofline(roofline, arguments.out)
    said = [f"{name}: {reason}" for name, reason in roofline.left_out]
    if arguments.by is not None:  # of parts, half may have no FLOP
        said = list(part_tables.left_out(roofline.left_out))
    for line in said:
        print(f"not in the picture: {visible(line)}")
    print(f"picture: {visible(str(arguments.out))}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """What does not go with ``--by``.

    Raises:
        UsageError: several runs, or another level than DRAM.
    """
    if len(arguments.runs) > 1:
        raise UsageError(
            f"cannot draw {len(arguments.runs)} runs by {arguments.by}: parts are drawn of one "
            "run; name one, or leave out --by"
        )
    if arguments.level not in (None, "dram"):
        raise UsageError(
            f"cannot draw parts at --level {arguments.level}: their points are at the bytes of "
            "DRAM; leave out --level"
        )


def _layered(
    record: Measurement, by: Literal["layer", "phase"], sources: Sequence[Source]
) -> Roofline:
    """The parts of a run; layers can be summed to phases, and phases not be taken apart.

    Raises:
        UsageError: the run was not counted by such parts.
    """
    regions = record.regions
    if regions is not None and (regions.by, by) == ("phase", "layer"):
        raise UsageError(
            f"{record.name!r} was counted by phase, which tells no layers apart: draw it with "
            "--by phase, or measure it with --by layer"
        )
    if regions is not None and regions.by == "layer":
        record = replace(record, regions=replace(regions, by=by))
    return report.layered_roofline(record, sources=sources)


def names(paths: Sequence[Path], records: Sequence[Measurement]) -> list[str]:
    """What to call runs: by their names, and namesakes by what their files' paths differ in."""
    count = Counter(record.name for record in records)
    found = []
    for path, record in zip(paths, records, strict=True):
        alike = [p for p, r in zip(paths, records, strict=True) if r.name == record.name]
        differs = _differing(path, alike)
        found.append(differs if count[record.name] > 1 else record.name)
    return found


def _differing(path: Path, alike: Sequence[Path]) -> str:
    """The end of a path that no other one shares, without a file name that all share."""
    parts = [p.absolute().with_suffix("").parts for p in alike]
    own = path.absolute().with_suffix("").parts
    if all(p[-1] == own[-1] for p in parts):
        parts, own = [p[:-1] for p in parts], own[:-1]
    for length in range(1, len(own) + 1):
        tail = own[-length:]
        if sum(p[-length:] == tail for p in parts) == 1:
            return "/".join(tail)
    return str(path)
