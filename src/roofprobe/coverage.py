"""Did SASS instrumentation see the kernels that ran?

SASS counters come from patched kernels. Under torch.profiler, under CUPTI activity records and in
CUDA graphs kernels are not patched, and every SASS counter reads 0 with no error. One class of
instruction, stores to memory, is therefore counted both ways (docs/design.md, "Coverage").
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from roofprobe import metrics
from roofprobe.record import Coverage, KernelTimes, Measurement

# Fully seen steps read 0.9985 to 1.0000 once the driver's copies are accounted for (25 kinds of
# work on an H200, harness/results/h200/coverage.json).
THRESHOLD: Final = 0.98

# The driver's copy and fill kernels store 4 bytes a thread, 128 a warp: a copy of 2 GiB counted
# 16,777,216 store instructions, and 200 copies of 4,000 bytes 6,400, so that a last, partly filled
# warp counts as one (measured, H200: harness/results/h200/coverage.json).
_COPY_BYTE_PER_STORE: Final = 128


def applied(record: Measurement, *, profiler_active: bool) -> Measurement:
    """The record with its coverage, and without SASS counters that cannot be believed.

    Args:
        record: As counted.
        profiler_active: A PyTorch profiler was on while counters were collected.
    """
    if not record.rounds:
        return record
    means = {name: record.value(name) for name in record.metrics}
    judged = judge(means, record.kernels, profiler_active=profiler_active)
    record = replace(record, coverage=judged)
    if judged is None or judged.trusted:
        return record
    hidden = {row.name for row in metrics.rows(record.metrics) if row.instrumented}
    rounds = tuple(
        replace(
            counted,
            counters={n: None if n in hidden else v for n, v in counted.counters.items()},
        )
        for counted in record.rounds
    )
    reasons = dict.fromkeys(sorted(hidden), str(judged.cause))
    return replace(record, rounds=rounds, unavailable={**reasons, **record.unavailable})


def judge(
    counters: Mapping[str, float | None],
    kernels: KernelTimes | None,
    *,
    profiler_active: bool,
) -> Coverage | None:
    """Decides whether the SASS counters of a measurement stand.

    Args:
        counters: Mean counters of the measurement.
        kernels: What ran, from activity records; None where that is not known.
        profiler_active: A PyTorch profiler was on while counters were collected.

    Returns:
        None when no SASS metric was asked for.
    """
    rows = metrics.rows(counters)
    if not any(row.instrumented for row in rows):
        return None
    instrumented = _total(counters, rows, "coverage_sass")
    hardware = _total(counters, rows, "coverage_hardware")
    if instrumented is None or hardware is None:
        cause = "the pair of counters that checks SASS instrumentation was not collected"
        return Coverage(instrumented, hardware, 0.0, None, False, cause)
    copies = 0.0
    if kernels is not None and not kernels.graph_launches:
        full_warps = (kernels.copy_byte + kernels.fill_byte) / _COPY_BYTE_PER_STORE
        copies = full_warps + kernels.copies
    explained = min(copies, max(0.0, hardware - instrumented))
    fraction = _fraction(instrumented, hardware, explained)
    if fraction is None:
        return _without_stores(instrumented, hardware, kernels)
    # A profiler of the CPU alone patches nothing away, so being active is a cause and no verdict.
    if fraction >= THRESHOLD:
        return Coverage(instrumented, hardware, explained, fraction, True)
    cause = _cause(fraction, kernels, profiler_active)
    return Coverage(instrumented, hardware, explained, fraction, False, cause)


def _without_stores(instrumented: float, hardware: float, kernels: KernelTimes | None) -> Coverage:
    """Kernels that write through TMA alone (GEMMs on Hopper) execute no store instruction."""
    trusted = kernels is not None and not kernels.graph_launches
    cause = "no kernel executed a store instruction; " + (
        "kernel records show that all were launched one by one"
        if trusted
        else "so nothing shows whether the kernels were seen"
    )
    return Coverage(instrumented, hardware, 0.0, None, trusted, cause)


def _cause(fraction: float, kernels: KernelTimes | None, profiler_active: bool) -> str:
    seen = f"SASS instrumentation saw {100 * fraction:.1f}% of the stores that ran"
    if profiler_active:
        return f"{seen}: a PyTorch profiler was active, under which kernels are not patched"
    if kernels is None:
        return (
            f"{seen}; the rest ran from a CUDA graph, under a profiler or as copies by the "
            "driver (kernel records, which would tell, were not taken)"
        )
    if kernels.graph_launches:
        share = kernels.graph_launches / kernels.launches
        return f"{seen}: {100 * share:.0f}% of the kernels were launched from a CUDA graph"
    return f"{seen}; another tool in this process may be tracing kernels"


def _fraction(instrumented: float | None, hardware: float | None, explained: float) -> float | None:
    if instrumented is None or not hardware:
        return None
    return (instrumented + explained) / hardware


def _total(
    counters: Mapping[str, float | None], rows: tuple[metrics.Metric, ...], kind: str
) -> float | None:
    values = [counters[row.name] for row in rows if row.kind == kind]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
