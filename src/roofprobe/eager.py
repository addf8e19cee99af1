"""SASS counters of an eager run, for a step that ran from a CUDA graph.

CUPTI cannot instrument the kernels of a CUDA graph, so a measurement of one has no SASS counters.
The same kernels launched one by one have. Whether they are the same is decided by what the hardware
counts in both: tensor operations, stores and bytes at L1.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from roofprobe import metrics
from roofprobe.errors import UsageError
from roofprobe.record import EagerRun, Measurement
from roofprobe.units import percent

# Counts repeat to the digit where kernels do; bytes at L1 may follow the data.
_SAME_COUNT: Final = 0.01
_SAME_BYTE: Final = 0.02


def with_sass_of(record: Measurement, eager: Measurement) -> Measurement:
    """The record with the SASS counters that it lacks taken from an eager run of the same step.

    Every figure with such a counter in it is labelled so. A record that has SASS counters of its
    own is returned as it is.

    Args:
        record: Of a step whose kernels ran from a CUDA graph.
        eager: Of the same step with its kernels launched one by one, on the same kind of GPU.

    Raises:
        UsageError: the eager run has no SASS counters either, or is another step.
    """
    if record.coverage is None or record.coverage.trusted:
        return record
    if eager.coverage is None or not eager.coverage.trusted:
        cause = "none were asked for" if eager.coverage is None else eager.coverage.cause
        raise UsageError(
            f"{eager.name!r} has no SASS counters to take for {record.name!r}: {cause}; measure "
            "the step without CUDA graphs and profilers"
        )
    here, there = record.environment, eager.environment
    settings = (
        ("the GPU", here.device_name, there.device_name),
        *(
            (name, value, there.precision.get(name))
            for name, value in here.precision.items()
            # of the CPU; a graph that is replayed enters no autocast
            if name not in ("num_threads", "autocast", "autocast_dtype")
        ),
    )
    for what, mine, other in settings:
        if mine != other and None not in (mine, other):  # None is not known
            raise UsageError(
                f"{eager.name!r} is not the step of {record.name!r}: {what} is {other} there and "
                f"{mine} here"
            )
    hidden = [row.name for row in metrics.rows(record.metrics) if row.instrumented]
    counters = {name: value for name in hidden if (value := eager.value(name)) is not None}
    missing = [name for name in hidden if name not in counters]
    if missing:
        raise UsageError(
            f"{eager.name!r} did not count {missing[0]}, which {record.name!r} lacks: measure both "
            "with the same metrics"
        )
    taken = EagerRun(
        eager.name, eager.created, there.command, counters, dict(_agreement(record, eager))
    )
    return replace(record, eager=taken)


def _agreement(record: Measurement, eager: Measurement) -> Iterator[tuple[str, float]]:
    """What the hardware counted in both, here over there; raises where it differs."""
    compared = 0
    for row in metrics.rows(record.metrics):
        mine, other = record.value(row.name), eager.value(row.name)
        if row.kind in ("flop", "op", "coverage_hardware") and not row.instrumented:
            tolerance = _SAME_COUNT
        elif row.level == "l1":
            tolerance = _SAME_BYTE
        else:
            continue
        if mine is None or other is None or mine == other == 0:
            continue
        difference = abs(mine - other) / max(mine, other)
        if difference > tolerance:
            raise UsageError(
                f"{eager.name!r} is not the step of {record.name!r}: {row.name} is {other:g} there "
                f"and {mine:g} here, {percent(difference, 2)} apart"
            )
        compared += 1
        yield row.name, mine / other
    if not compared:
        raise UsageError(
            f"nothing shows that {eager.name!r} is the step of {record.name!r}: no "
            "hardware counter but for DRAM and L2 was read in both; measure both with the set full"
        )
