"""Several files as one workload.

Files that hold the same metrics are processes beside each other; files that hold different ones
are runs of the same program, each with its part of the metrics. Runs are put together launch by
launch where kernel, grid, device and order agree, and by kernel name where only the order differs.
"""

import math
import re
from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

from roofprobe.errors import RecordError
from roofprobe.ncu_import.launches import Column, Launches, shown
from roofprobe.ncu_import.reader import Content

# Two runs of one program never read the same time; beyond this they are not the same work.
_NOTEWORTHY: Final = 0.05
# Counts of what a program did, not of how it went: the same in every run. The work of some kernels
# follows the data (max-pooling, backward), so steps of one program differ a little.
_EXACT: Final = frozenset({"flop", "tensor", "pipe"})
_FOLLOWS_DATA: Final = 0.02

_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_ONE_BY_ONE: Final = "repeats of one run must be imported one by one"


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


class _Launch(NamedTuple):
    """What a launch must have in common with its counterparts in other runs."""

    name: str
    shape: tuple[float, ...]
    place: tuple[str, ...]


def merge(contents: Sequence[Content]) -> Workload:
    """Puts files together.

    Raises:
        RecordError: they do not hold the same work, or one of them holds several runs.
    """
    warnings: list[str] = []
    by_metrics: dict[frozenset[str], list[Content]] = {}
    for content in contents:
        _check_alone(content, warnings)
        by_metrics.setdefault(content.metrics, []).append(content)
    runs = [_beside(group, warnings) for group in by_metrics.values()]
    _check_parts(runs)
    first, *others = runs
    if any(run.cut for run in runs):
        _shorten(runs, warnings)
    paired = True
    for other in others:
        paired = _same_order(first, other, warnings, quiet=not paired) and paired
    for other in others:
        _adopt(first, other, paired, warnings)
    if others and paired and _indistinct(first.launches):
        warnings.append(
            "several processes have one device number, so the metrics of the runs are put together "
            "in the order of the processes: by_device can mix processes up, totals stand"
        )
    return Workload(first.launches, paired, warnings)


def _check_alone(content: Content, warnings: list[str]) -> None:
    """Notes what looks like several runs in one file.

    Raises:
        RecordError: they have different metrics.
    """
    launches, name = content.launches, content.path.name
    for (one, mine), (two, other) in combinations(_metrics_by_process(launches).items(), 2):
        # Another chip has other metrics, and a process that was stopped has fewer.
        if one[-1] == two[-1] and mine - other and other - mine:
            raise RecordError(
                f"{content.path}: processes {one[1]} and {two[1]} have different metrics "
                f"({min(mine - other)[0]} and {min(other - mine)[0]}), as where two runs were "
                "written to one file: put each run into a file of its own and import them together"
            )
    if launches.again:
        warnings.append(
            f"{name}: {len(launches.again)} launches are in the file twice, with the same values, "
            "and count once; if they are those of ranks whose process IDs are equal (containers), "
            "import each rank by itself and add up"
        )
    if launches.restarted():
        warnings.append(
            f"{name}: launch IDs start again at another time, taken for processes beside each "
            f"other; {_ONE_BY_ONE}"
        )


def _metrics_by_process(
    launches: Launches,
) -> dict[tuple[str, str, str | None], set[tuple[str, ...]]]:
    """Metrics by host, process and compute capability; nothing for a single process."""
    keys = [(owner.host, owner.process, owner.compute_capability) for owner in launches.owners]
    found: dict[tuple[str, str, str | None], set[tuple[str, ...]]] = {}
    if len(set(keys)) > 1:
        for column in launches.columns:
            if column.meaning is not None:
                pairs = zip(launches.owner, column.values, strict=False)
                for who in {who for who, value in pairs if not math.isnan(value)}:
                    found.setdefault(keys[who], set()).add(column.key)
    return found


def _beside(group: Sequence[Content], warnings: list[str]) -> Content:
    """Files with the same metrics: their launches side by side, a launch given twice once.

    Raises:
        RecordError: they have one launch with different values.
    """
    first, *others = group
    if not others:
        return first
    before = len(first.launches)
    for content in group:
        content.launches.call(str(content.path))  # where no process ID tells them apart
    for other in others:
        total = len(first.launches) + len(other.launches)
        try:
            first.launches.absorb(other.launches)
        except RecordError as error:
            raise RecordError(
                f"{first.path} and {other.path}: {error}. Import them one by one: they may be "
                "repeats of one run, runs with another --cache-control, --replay-mode or "
                "--clock-control, or ranks whose process IDs are equal"
            ) from None
        first.cut = first.cut or other.cut
        twice = total - len(first.launches)
        if twice:
            warnings.append(
                f"{twice} launches of {other.path.name} are in {first.path.name} too, with the "
                "same values, and count once; if the files are those of ranks whose process IDs "
                "are equal (containers), import each by itself and add up"
            )
    if len(first.launches) > before:
        warnings.append(
            f"{len(group)} files hold the same metrics and are taken for processes beside each "
            f"other; {_ONE_BY_ONE}"
        )
    return first


def _check_parts(runs: Sequence[Content]) -> None:
    """Refuses a run that adds no metric, for it is more likely a process beside the others."""
    for one, two in combinations(runs, 2):
        less, more = sorted((one, two), key=lambda run: len(run.metrics))
        if less.metrics <= more.metrics:
            raise RecordError(
                f"every metric of {less.path} is in {more.path} too: as a run of the same program "
                "it adds nothing, so leave it out; if both are ranks, profile them with the same "
                f"metrics ({min(more.metrics - less.metrics)} is only in one)"
            )


def _shorten(runs: Sequence[Content], warnings: list[str]) -> None:
    """Where one run broke off, drops from the others what it does not have any more.

    A whole run of another length than the others is another workload, and stays as it is.
    """
    cut = {len(run.launches) for run in runs if run.cut}
    whole = {len(run.launches) for run in runs if not run.cut}
    if len(cut | whole) == 1 or len(whole) > 1 or max(cut) > min(whole, default=max(cut)):
        return
    shortest = min(cut)
    for run in runs:
        run.launches.select(range(shortest))
    warnings.append(f"only the first {shortest} launches are complete in every file")


def _same_order(first: Content, other: Content, warnings: list[str], *, quiet: bool) -> bool:
    """Whether two runs list the same launches in the same order on each device.

    Where devices take turns in another order, the second run's launches are put into the first's.

    Raises:
        RecordError: they did not launch the same kernels, with the same grids on the same devices.
    """
    ours, theirs = _listed(first.launches, other.launches)
    if ours == theirs:
        return True
    if len({launch.place for launch in ours + theirs}) > 1:
        _check_devices(first, other)
        mine, others = _by_place(ours), _by_place(theirs)
        if [ours[i] for i in mine] == [theirs[i] for i in others]:
            counterpart = dict(zip(mine, others, strict=True))
            other.launches.select([counterpart[i] for i in range(len(ours))])
            return True
    place = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    where = (
        f"first difference at launch {place}: {_at(first.launches, place)} in {first.path.name}, "
        f"{_at(other.launches, place)} in {other.path.name}"
    )
    if Counter(ours) != Counter(theirs):
        raise RecordError(
            f"{first.path} and {other.path} are not runs of one workload: {len(ours)} and "
            f"{len(theirs)} launches, {where}"
        )
    if not quiet:
        unchecked = "" if ours[0].shape else ", which files without launch grids cannot show"
        warnings.append(
            "the runs launched the same kernels in different orders, so launches are put together "
            "by kernel name and clock rates by position: totals rest on the assumption that every "
            f"run did the same work{unchecked}, and single launches are not known ({where})"
        )
    return False


def _listed(first: Launches, other: Launches) -> tuple[list[_Launch], list[_Launch]]:
    """Both runs' launches, by what both files say of them."""
    shapes = [[tuple(map(float, _NUMBER.findall(s))) for s in run.shapes] for run in (first, other)]
    depth = min(
        len(found[grid])
        for found, run in zip(shapes, (first, other), strict=True)
        for grid in set(run.grids)
    )
    fields = [
        field
        for field in ("device", "compute_capability")
        if None not in _known(first, field) | _known(other, field)
    ]
    if _known(first, "host") == _known(other, "host"):
        fields.insert(0, "host")
    return _described(first, shapes[0], depth, fields), _described(other, shapes[1], depth, fields)


def _described(
    launches: Launches, shapes: Sequence[tuple[float, ...]], depth: int, fields: Sequence[str]
) -> list[_Launch]:
    places = [tuple(getattr(owner, field) for field in fields) for owner in launches.owners]
    return [
        _Launch(launches.titles[name], shapes[grid][:depth], places[who])
        for name, grid, who in zip(launches.names, launches.grids, launches.owner, strict=True)
    ]


def _known(launches: Launches, field: str) -> set[str | None]:
    return {getattr(launches.owners[who], field) for who in set(launches.owner)}


def _check_devices(first: Content, other: Content) -> None:
    """Refuses runs on different devices."""
    for field, word in (("device", "device"), ("compute_capability", "compute capability")):
        ours, theirs = (_known(run.launches, field) for run in (first, other))
        if None not in ours | theirs and ours != theirs:
            raise RecordError(
                f"{first.path} and {other.path} have different metrics and ran on {word} "
                f"{_words(ours)} and {_words(theirs)}: runs of one program must be profiled on the "
                "same devices to be put together, and ranks with the same metrics"
            )


def _words(values: set[str | None]) -> str:
    return ", ".join(sorted(filter(None, values)))


def _by_place(launches: Sequence[_Launch]) -> list[int]:
    return sorted(range(len(launches)), key=lambda i: launches[i].place)


def _at(launches: Launches, place: int) -> str:
    if place >= len(launches):
        return "nothing"
    words = f"{launches.titles[launches.names[place]]} {launches.shapes[launches.grids[place]]}"
    device = launches.owners[launches.owner[place]].device
    return f"{words.strip()!r}" + (f" on device {device}" if device is not None else "")


def _indistinct(launches: Launches) -> bool:
    """Whether several processes have one device number, so that only their order tells them."""
    owners = [launches.owners[who] for who in set(launches.owner)]
    processes = {(owner.host, owner.process, owner.device) for owner in owners}
    return len(processes) > len({(host, device) for host, _, device in processes})


def _adopt(first: Content, other: Content, paired: bool, warnings: list[str]) -> None:
    """Moves the columns of another run to the first; metrics in both stay the first's.

    Raises:
        RecordError: both have a count of work, and it differs by more than data explain.
    """
    known = {c.key: c for c in first.launches.columns if c.meaning is not None}
    for column in other.launches.columns:
        if column.meaning is None:
            continue
        if paired:
            column.names, column.titles = first.launches.names, first.launches.titles
        twin = known.get(column.key)
        if twin is None:
            first.launches.columns.append(column)
            continue
        if column.meaning.kind in _EXACT and not column.meaning.per:
            _check_work(first, other, twin, column, paired, warnings)
        elif column.meaning.kind != "hint":
            _compare(first, other, twin, column, warnings)
        _fill(twin, column, len(first.launches))
    first.launches.unusable.update(other.launches.unusable)


def _check_work(
    first: Content,
    other: Content,
    ours: Column,
    theirs: Column,
    paired: bool,
    warnings: list[str],
) -> None:
    count = len(first.launches)
    mine, others = _counts(ours, count, paired), _counts(theirs, count, paired)
    key = max(mine, key=lambda key: _apart(mine[key], others[key]), default=None)
    apart = _apart(mine[key], others[key]) if key is not None else 0.0
    if apart <= max(ours.tolerance, theirs.tolerance):
        return
    what = first.launches.describe(key) if isinstance(key, int) else key
    differ = f"{ours.name} of {what} is {shown(mine[key])} and {shown(others[key])}"
    if apart > _FOLLOWS_DATA:
        raise RecordError(
            f"{first.path} and {other.path} did not do the same work, so their metrics do not "
            f"belong together: {differ}; profile one run twice with the same seed and data, or "
            "import each by itself"
        )
    warnings.append(
        f"{first.path.name} and {other.path.name} did not do quite the same work, as where it "
        f"follows the data: {differ}, and nothing is further apart; the first is used"
    )


def _apart(ours: float, theirs: float) -> float:
    """How far two counts are apart, as a fraction of the larger; 0 where one is not known."""
    if math.isnan(ours + theirs) or ours == theirs:
        return 0.0
    return abs(ours - theirs) / max(abs(ours), abs(theirs))


def _counts(column: Column, count: int, paired: bool) -> dict[Hashable, float]:
    """A column by launch, or by kernel name."""
    values = column.filled(count)
    if paired:
        return dict(enumerate(values))
    members: dict[Hashable, list[float]] = {}
    for name, value in zip(column.names, values, strict=True):
        members.setdefault(column.titles[name], []).append(value)
    return {title: math.fsum(found) for title, found in members.items()}


def _compare(
    first: Content, other: Content, twin: Column, column: Column, warnings: list[str]
) -> None:
    count = len(first.launches)
    ours, theirs = (math.fsum(each.filled(count)) for each in (twin, column))
    if math.isnan(ours + theirs) or math.isclose(ours, theirs, rel_tol=_NOTEWORTHY):
        return
    warnings.append(
        f"{column.name} differs between {first.path.name} and {other.path.name}: "
        f"{ours:.6g} and {theirs:.6g}, as where --cache-control, --replay-mode or --clock-control "
        "did; the first is used"
    )


def _fill(column: Column, other: Column, count: int) -> None:
    """Takes from another run what a column has no number for."""
    ours, theirs = column.filled(count), other.filled(count)
    if column.names is other.names:
        filled = [b if math.isnan(a) else a for a, b in zip(ours, theirs, strict=True)]
        column.values = array("d", filled)
    elif all(map(math.isnan, ours)):
        column.values, column.names, column.titles = theirs, other.names, other.titles
