"""Single kernels under the roofs: each that was counted, as a record of its own. Pure functions.

Counts are ncu's, with caches flushed before each kernel; times are those of the step as it runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from roofprobe import metrics
from roofprobe.derive import Figures, figures
from roofprobe.judge import ceilings_for
from roofprobe.parts import Part
from roofprobe.record import Kernel, KernelTimes, Measurement, Regions, Round, Segment, Timing
from roofprobe.roofline import ABOVE_ROOF

_WARM: Final = (
    "with caches flushed it needs more bytes than DRAM delivers in its time: in the step a part "
    "came from the caches"
)


@dataclass(frozen=True, slots=True)
class KernelPart:
    """A kernel that was counted.

    Attributes:
        kernel: The kernel.
        counted: Its figures as they were counted.
        part: As it is judged.
        warm: True where in the step it found in the caches what it was counted to read from DRAM.
            How many bytes the step read is then not known, and it is judged without them.
    """

    kernel: Kernel
    counted: Figures
    part: Part
    warm: bool


def kernel_parts(record: Measurement) -> Iterator[KernelPart]:
    """The kernels that were counted, longest first."""
    regions = record.regions
    for kernel in regions.kernels if regions is not None else ():
        if regions is not None and kernel.counters:
            yield _judged(record, regions, kernel)


def _judged(record: Measurement, regions: Regions, kernel: Kernel) -> KernelPart:
    own = _own(record, regions, kernel)
    counted = figures(own)
    byte = counted.byte.get("dram")
    # Measured ceilings come first, and are the closer ones.
    roof = next((each.value for each in ceilings_for(record) if each.level == "dram"), None)
    warm = (
        byte is not None
        and byte.value is not None
        and roof is not None
        and byte.value > ABOVE_ROOF * roof * kernel.time
    )
    if warm:
        names = [row.name for row in metrics.rows(own.metrics) if row.level == "dram"]
        own = replace(
            own,
            rounds=(_round({**kernel.counters, **dict.fromkeys(names)}),),
            unavailable={**own.unavailable, **dict.fromkeys(names, _WARM)},
        )
    step = record.timing.median if record.timing is not None else None
    whole = Segment("", None, None, kernel.launches, (), kernel.time, kernel.launches)
    return KernelPart(kernel, counted, Part(kernel.name, (whole,), own, step), warm)


def _own(record: Measurement, regions: Regions, kernel: Kernel) -> Measurement:
    counts = regions.counted
    missing = dict(counts.unavailable) if counts is not None else {}
    time = kernel.time
    return replace(
        record,
        name=kernel.name,
        source=counts.source if counts is not None else record.source,
        metrics=tuple(kernel.counters),
        rounds=(_round(kernel.counters),),
        unavailable={
            name: why for name, why in missing.items() if kernel.counters.get(name) is None
        },
        timing=Timing((time,), regions.time_source or ""),
        kernels=KernelTimes(regions.steps, kernel.launches, 0.0, time, time, time, 0.0, 0.0),
        coverage=None,
        crosscheck=None,
        regions=None,
        eager=None,
        warnings=(),
    )


def _round(counters: Mapping[str, float | None]) -> Round:
    return Round(counters, passes=0, ranges_dropped=0)
