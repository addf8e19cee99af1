"""Several files as one workload.

Files that hold the same metrics are processes beside each other; files that hold different ones
are runs of the same program, each with its part of the metrics. Runs are put together launch by
launch where kernel, grid and order agree, and by kernel name where only the order differs.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from roofprobe.errors import RecordError
from roofprobe.ncu_import.launches import Column, Launches
from roofprobe.ncu_import.reader import Content

# Two runs of one program never read the same time; beyond this they are not the same work.
_NOTEWORTHY: Final = 0.05


@dataclass(slots=True)
class Workload:
    """What all files hold together.

    Attributes:
        launches: Launches of the first run, with every run's columns.
        paired: True where all columns list the launches in the same order.
        warnings: For the user.
    """

    launches: Launches
    paired: bool
    warnings: list[str]


def merge(contents: Sequence[Content]) -> Workload:
    """Puts files together.

    Raises:
        RecordError: their kernels differ.
    """
    warnings: list[str] = []
    by_metrics: dict[frozenset[str], list[Content]] = {}
    for content in contents:
        by_metrics.setdefault(content.metrics, []).append(content)
    runs = [_beside(group, warnings) for group in by_metrics.values()]
    first, *others = runs
    if any(run.cut for run in runs):
        _shorten(runs, warnings)
    paired = True
    for other in others:
        paired = _same_order(first, other, warnings, quiet=not paired) and paired
    for other in others:
        _adopt(first, other, paired, warnings)
    return Workload(first.launches, paired, warnings)


def _beside(group: Sequence[Content], warnings: list[str]) -> Content:
    """Files with the same metrics: their launches side by side, a launch given twice once."""
    first, *others = group
    before = len(first.launches)
    for other in others:
        try:
            first.launches.absorb(other.launches)
        except RecordError as error:
            raise RecordError(f"{first.path} and {other.path}: {error}") from None
    if others and len(first.launches) > before:
        warnings.append(
            f"{len(group)} files hold the same metrics and are taken for processes beside each "
            "other; repeats of one run must be imported one by one"
        )
    return first


def _shorten(runs: Sequence[Content], warnings: list[str]) -> None:
    """Where one run broke off, drops from the others what it does not have any more."""
    shortest = min(len(run.launches) for run in runs)
    dropped = 0
    for run in runs:
        while len(run.launches) > shortest:
            run.launches.drop(len(run.launches) - 1)
            dropped += 1
    if dropped:
        warnings.append(f"only the first {shortest} launches are complete in every file")


def _same_order(first: Content, other: Content, warnings: list[str], *, quiet: bool) -> bool:
    """Whether two runs list the same launches in the same order.

    Raises:
        RecordError: they did not launch the same kernels.
    """
    ours, theirs = _listed(first.launches), _listed(other.launches)
    grids = any(first.launches.shapes) and any(other.launches.shapes)
    if grids and ours == theirs:
        return True
    names, their_names = [name for name, _ in ours], [name for name, _ in theirs]
    if not grids and names == their_names:
        return True
    place = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    where = (
        f"first difference at launch {place}: "
        f"{_at(ours, place)} in {first.path.name}, {_at(theirs, place)} in {other.path.name}"
    )
    if Counter(names) != Counter(their_names):
        raise RecordError(
            f"{first.path} and {other.path} are not runs of one workload: {len(ours)} and "
            f"{len(theirs)} launches, {where}"
        )
    if not quiet:
        warnings.append(
            "the runs launched the same kernels in different orders or grids, so launches are put "
            "together by kernel name and clock rates by position; totals stand, single launches "
            f"do not ({where})"
        )
    return False


def _listed(launches: Launches) -> list[tuple[str, str]]:
    return [
        (launches.titles[name], launches.shapes[grid])
        for name, grid in zip(launches.names, launches.grids, strict=True)
    ]


def _at(listed: Sequence[tuple[str, str]], place: int) -> str:
    return f"{' '.join(listed[place]).strip()!r}" if place < len(listed) else "nothing"


def _adopt(first: Content, other: Content, paired: bool, warnings: list[str]) -> None:
    """Moves the columns of another run to the first; metrics in both stay the first's."""
    count = len(first.launches)
    known = {c.name: c for c in first.launches.columns if c.meaning is not None}
    for column in other.launches.columns:
        if column.meaning is None:
            continue
        twin = known.get(column.name)
        if twin is not None:
            ours, theirs = _sum(twin, count), _sum(column, count)
            same = math.isclose(ours, theirs, rel_tol=_NOTEWORTHY)
            if not same and not math.isnan(ours + theirs):
                warnings.append(
                    f"{column.name} differs between {first.path.name} and {other.path.name}: "
                    f"{ours:.6g} and {theirs:.6g}; the first is used"
                )
            continue
        if paired:
            column.names, column.titles = first.launches.names, first.launches.titles
        first.launches.columns.append(column)
    first.launches.unusable.update(other.launches.unusable)


def _sum(column: Column, count: int) -> float:
    return math.fsum(column.filled(count))
