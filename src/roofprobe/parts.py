"""The parts of a step: each as a record of its own, judged like a whole step. Pure functions.

A part's time is that of its kernels (on a CPU, wall clock), taken on steps of their own: where a
step is cut into parts, every cut waits for the device, so that the parts' own wall clock says
nothing. The parts' counts come from such steps too, and ``checks`` compares their sums with steps
that were not cut.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from roofprobe import metrics
from roofprobe.derive import Figures, figures
from roofprobe.errors import UsageError
from roofprobe.judge import Verdict, verdict
from roofprobe.record import KernelTimes, Measurement, Regions, Round, Segment, Timing, total
from roofprobe.regions import MODEL, layer_name, range_name

# The parts' sum may differ by so much from the step that was not cut: FLOP repeat to 0.02% (dropout
# masks), bytes vary with what a drained GPU finds in its caches. Kernels are timed on steps alike,
# but wall clock has the labelling in it, and other steps' noise.
FLOP_TOLERANCE: Final = 0.02
BYTE_TOLERANCE: Final = 0.05
KERNEL_TOLERANCE: Final = 0.05
CLOCK_TOLERANCE: Final = 0.10

# What is checked beside FLOP and bytes, by where the parts' times come from.
KERNEL_TIME: Final = "kernel time"
STEP_TIME: Final = "step time"

# A block of the model is at most so deep in it: deeper ones are no blocks to people.
_DEEPEST: Final = 4


@dataclass(frozen=True)
class Part:
    """A part of a step.

    Attributes:
        name: For people: ``layer1.0.conv1 backward``, ``optimizer``, ``(outside)``.
        segments: What it is made of.
        record: The part as a measurement of its own: its counts, its time.
        step_time: Of the whole unprofiled step, s; None where it was not timed.
    """

    name: str
    segments: tuple[Segment, ...]
    record: Measurement
    step_time: float | None

    @cached_property
    def figures(self) -> Figures:
        """FLOP, bytes, intensity and rates."""
        return figures(self.record)

    @cached_property
    def verdict(self) -> Verdict:
        """What binds it."""
        return verdict(self.record)

    @property
    def time(self) -> float | None:
        """Seconds a step; None where that was not taken."""
        return total(segment.time for segment in self.segments)

    @property
    def share(self) -> float | None:
        """Its time over the unprofiled step, a fraction."""
        return self.time / self.step_time if self.time is not None and self.step_time else None

    @property
    def lost(self) -> float | None:
        """Seconds beyond what the closest ceiling allows; None without a ceiling or a time."""
        if self.time == 0:
            return 0.0
        uses = self.verdict.uses
        if self.time is None or not uses:
            return None
        return max(0.0, self.time - max(use.time_at_roof for use in uses))

    @property
    def lost_at_most(self) -> bool:
        """True where a resource of unknown use, or one known in part, may explain some of it."""
        return bool(self.verdict.unknown) or any(use.at_least for use in self.verdict.uses)


@dataclass(frozen=True, slots=True)
class Check:
    """The parts' sum beside the step that was not cut.

    Attributes:
        name: ``FLOP``, a memory level, ``KERNEL_TIME`` or ``STEP_TIME``.
        parts: Sum over the parts; None where one has no value.
        whole: Of the step.
        tolerance: Largest relative difference that counts as the same.
    """

    name: str
    parts: float | None
    whole: float | None
    tolerance: float

    @property
    def ratio(self) -> float | None:
        """Parts over whole; 1 for two zeros, None where that cannot be told."""
        if self.parts is None or self.whole is None:
            return None
        if self.whole == 0:
            return 1.0 if self.parts == 0 else None
        return self.parts / self.whole

    @property
    def agrees(self) -> bool:
        """True where the two are the same within the tolerance."""
        return self.ratio is not None and abs(self.ratio - 1) <= self.tolerance


@dataclass(frozen=True, slots=True)
class Block:
    """A module of the model with all that is in it.

    Attributes:
        name: Its path; of a module around other blocks, whose own work alone this is, that and
            ``itself``.
        parts: What it is made of, both ways.
    """

    name: str
    parts: tuple[Part, ...]

    @property
    def time(self) -> float:
        """Seconds a step."""
        return sum(part.time or 0.0 for part in self.parts)


def parts(record: Measurement) -> tuple[Part, ...]:
    """The parts of a step that was measured by phase, layer or kernel; none of any other.

    By phase one for each range, without what ranges inside it have; otherwise one for each module
    and direction, and for what belongs to no module one for each range. They add up to the step.
    """
    regions = record.regions
    if regions is None:
        return ()
    groups: dict[str, list[Segment]] = {}
    for segment in regions.segments:
        name = phase_name(segment) if regions.by == "phase" else name_of(segment)
        groups.setdefault(name, []).append(segment)
    return tuple(_part(record, regions, name, own) for name, own in groups.items())


def phases(record: Measurement) -> tuple[Part, ...]:
    """The same by range alone, whatever it was measured by."""
    if record.regions is None:
        return ()
    return parts(replace(record, regions=replace(record.regions, by="phase")))


def within(record: Measurement, path: str) -> Part:
    """A module with all that is in it, both directions, or a range with those inside it.

    Args:
        record: Measured by layer or phase.
        path: Of the module (empty for the whole model) or of the range.

    Raises:
        UsageError: there is no such part.
    """
    regions = record.regions
    segments = regions.segments if regions is not None else ()
    found = [segment for segment in segments if _lies_in(segment, path)]
    if regions is None or not found:
        raise UsageError(f"{record.name!r} has no part called {path!r}: measure it by layer")
    return _part(record, regions, path or MODEL, found)


def blocks(found: Sequence[Part]) -> tuple[Block, ...]:
    """The blocks of a model by time, longest first; none where each would be a single module.

    All lie at one depth, the least at which none has more than half of the step's time that
    deeper ones could share.

    Args:
        found: The parts of a step that was measured by layer.
    """
    whole = total(part.time for part in found)
    owned = [(path, part) for part in found if (path := part.segments[0].module) is not None]
    if not whole or not owned:
        return ()
    for depth in range(1, _DEEPEST + 1):
        grouped: dict[str, list[Part]] = {}
        members: dict[str, set[str]] = {}
        for path, part in owned:
            name = ".".join(path.split(".")[:depth])
            grouped.setdefault(name, []).append(part)
            members.setdefault(name, set()).add(path)
        several = [name for name, paths in members.items() if len(paths) > 1]
        if all(Block(name, tuple(grouped[name])).time <= whole / 2 for name in several):
            break
    if not several:
        return ()
    made = [Block(_block_name(name, grouped), tuple(own)) for name, own in grouped.items()]
    return tuple(sorted(made, key=lambda block: -block.time))


def _block_name(path: str, all_paths: Iterable[str]) -> str:
    inner = f"{path}." if path else ""
    around = any(other != path and other.startswith(inner) for other in all_paths)
    return f"{path or MODEL} itself" if around else path or MODEL


def checks(record: Measurement) -> tuple[Check, ...]:
    """Whether the parts add up to the step: FLOP, bytes by level, time; what was measured of it."""
    regions = record.regions
    if regions is None:
        return ()
    counted = any(segment.counters for segment in regions.segments)
    return (*(_counts(record, regions) if counted else ()), *_times(record, regions))


def _counts(record: Measurement, regions: Regions) -> Iterator[Check]:
    whole = figures(record)
    summed = _part(record, regions, "sum", regions.segments).figures
    yield Check("FLOP", summed.flop_total.value, whole.flop_total.value, FLOP_TOLERANCE)
    for level in metrics.LEVELS:
        if level in whole.byte:
            yield Check(level, summed.byte[level].value, whole.byte[level].value, BYTE_TOLERANCE)


def _times(record: Measurement, regions: Regions) -> Iterator[Check]:
    summed = total(segment.time for segment in regions.segments)
    if regions.time_source == "cupti_activity":
        kernels = record.kernels.union if record.kernels is not None else None
        yield Check(KERNEL_TIME, summed, kernels, KERNEL_TOLERANCE)
    elif regions.time_source is not None:
        step = record.timing.median if record.timing is not None else None
        yield Check(STEP_TIME, summed, step, CLOCK_TOLERANCE)


def name_of(segment: Segment) -> str:
    """A segment of a layer for people; without a module, its range in parentheses."""
    return layer_name(segment.range, segment.module, segment.direction)


def phase_name(segment: Segment) -> str:
    """A segment's range for people."""
    return range_name(segment.range)


def _lies_in(segment: Segment, path: str) -> bool:
    module = segment.module
    if module is not None and (not path or module == path or module.startswith(f"{path}.")):
        return True
    return bool(path) and f"{segment.range}/".startswith(f"{path}/")


def _part(record: Measurement, regions: Regions, name: str, segments: Sequence[Segment]) -> Part:
    step_time = record.timing.median if record.timing is not None else None
    time = total(segment.time for segment in segments)
    source = regions.time_source
    # A part in which nothing ran has no rates: 0 s is no time to divide by.
    timing = Timing((time,), source) if time and source is not None else None
    kernels = None
    if timing is not None and source == "cupti_activity":
        launches = sum(segment.launches or 0.0 for segment in segments)
        kernels = KernelTimes(
            regions.steps, launches, 0.0, timing.median, timing.median, timing.median, 0.0, 0.0
        )
    rounds = tuple(_summed(segments))
    unavailable = dict(record.unavailable)
    why = record.notes.get("parts", "not every part has a value")
    for counted in rounds:
        for metric, value in counted.counters.items():
            if value is None:
                reason = record.notes.get(f"parts: {metric}", why)
                unavailable.setdefault(metric, reason)
    own = replace(
        record,
        name=name,
        rounds=rounds,
        unavailable=unavailable,
        timing=timing,
        kernels=kernels,
        crosscheck=None,
        regions=None,
        eager=None,  # counted of the whole step alone
        warnings=(),
    )
    return Part(name, tuple(segments), own, step_time)


def _summed(segments: Sequence[Segment]) -> Iterator[Round]:
    """Counters of several segments together, round by round."""
    for counted in zip(*(segment.counters for segment in segments), strict=True):
        names = dict.fromkeys(name for values in counted for name in values)
        added: Mapping[str, float | None] = {
            name: total(values.get(name) for values in counted) for name in names
        }
        yield Round(added, passes=0, ranges_dropped=0)
