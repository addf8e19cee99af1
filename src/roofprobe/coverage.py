"""Can the counters be believed: do they count at all, and did SASS instrumentation see the kernels?

A session counts what one CUDA context runs, so kernels of another one void what it counted.

Counters that are connected to nothing (a virtual GPU, a sandbox) read 0 with no error. Every kernel
moves bytes, so kernels without any show it (docs/design.md, "Coverage").

SASS counters come from patched kernels. Under torch.profiler, under CUPTI activity records and in
CUDA graphs kernels are not patched, and every SASS counter reads 0 with no error. One class of
instruction, stores to memory, is therefore counted both ways (docs/design.md, "Coverage").
"""

from collections.abc import Collection, Mapping
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

# What a step of several contexts must reach: blocks are counted to the digit (measured, H200).
_EVERY_BLOCK: Final = 0.999

# How the tracer says that it was on and saw nothing (activity.KernelTracer).
_NO_WORK: Final = "CUPTI recorded no work"
# A 0 of a model or of GPM is no counter's.
_MODELLED: Final = (metrics.ANALYTIC_PREFIX, metrics.GPM_PREFIX)
_ALL: Final = "every counter"
_UNCONNECTED: Final = "the counters were not connected (a virtual GPU, another profiler, a sandbox)"


def applied(record: Measurement, *, profiler_active: bool) -> Measurement:
    """The record with its coverage, and without counters that cannot be believed.

    Where that is none of them, ``notes["counters"]`` says why.

    Args:
        record: As counted.
        profiler_active: A PyTorch profiler was on while counters were collected.
    """
    if not record.rounds:
        return record
    means = {name: record.value(name) for name in record.metrics}
    judged = judge(means, record.kernels, profiler_active=profiler_active)
    why = unseen(record) or unconnected(record)
    if why is not None:
        if judged is not None:
            judged = Coverage(judged.instrumented, judged.hardware, 0.0, None, False, why)
        noted = replace(record, coverage=judged, notes={**record.notes, "counters": why})
        return _without(noted, record.metrics, why)
    record = replace(record, coverage=judged)
    if judged is None or judged.trusted:
        return record
    hidden = {row.name for row in metrics.rows(record.metrics) if row.instrumented}
    return _without(record, hidden, str(judged.cause))


def unseen(record: Measurement) -> str | None:
    """Why counters miss a part of the step that kernel records show; None where they do not.

    A session counts what its CUDA context runs, and what runs in green contexts; bytes, which
    belong to no context, it counts of everything (docs/design.md, "Coverage"). Where it misses a
    kernel, no counter is the whole step's nor a known part's.

    Args:
        record: As counted.
    """
    kernels = record.kernels
    if kernels is None or record.source != "cupti":
        return None
    rows = metrics.rows(record.metrics)
    counted = _total({row.name: record.value(row.name) for row in rows}, rows, "block")
    seen = None
    if counted is not None and kernels.blocks:
        seen = f"counters saw {counted:g} of {kernels.blocks:g} thread blocks that ran"
        least, most = _EVERY_BLOCK * kernels.blocks, kernels.blocks / _EVERY_BLOCK
        # Copies by the driver are blocks that no record knows of.
        every = counted >= least and (kernels.copies > 0 or counted <= most)
        if counted and (not kernels.elsewhere or every):
            return None
    if kernels.elsewhere:
        where = f"{kernels.elsewhere:g} of {kernels.launches:g} kernels ran in a CUDA context"
        why = f"{where} that a library made for itself (cuCtxCreate)"
        seen = seen or "nothing shows that they were counted"
        fix = "leave them out of the step, or use backend gpm, which reads the whole device"
        return f"{why}, and {seen}: {fix}"
    return f"{seen}: {_UNCONNECTED}; run roofprobe doctor" if seen is not None else None


def unconnected(record: Measurement) -> str | None:
    """Why no counter of a record is a count; None where nothing speaks against them.

    A step of which kernel records show no kernel may read 0 everywhere.

    Args:
        record: As counted.
    """
    kernels = record.kernels
    if kernels is None and record.notes.get("kernels", "").startswith(_NO_WORK):
        return None
    if kernels is not None and not kernels.launches:
        return None
    ran = kernels is not None
    # One such round spoils the mean.
    silent = (_silent(counted.counters, ran=ran) for counted in record.rounds)
    which = next((found for found in silent if found is not None), None)
    if which is None:
        return None
    if kernels is not None:
        number = f"{kernels.launches:g} kernel{'' if kernels.launches == 1 else 's'}"
        return f"{which} read 0 although {number} ran: {_UNCONNECTED}; run roofprobe doctor"
    if which != _ALL:
        return f"{which} read 0 although kernels were counted: {_UNCONNECTED}; run roofprobe doctor"
    return (
        f"{which} read 0, and without kernel records nothing shows that the step was empty: "
        f"{_UNCONNECTED}, or nothing ran; run roofprobe doctor"
    )


def _silent(counters: Mapping[str, float | None], *, ran: bool) -> str | None:
    """Counters of a round that read 0 and cannot have, in words; None where there are none.

    Args:
        counters: Of the round.
        ran: Kernels are known to have run.
    """
    rows = metrics.rows(counters)
    clocks = {row.name for row in rows if row.kind == "second"}  # run without the counters
    counts = {
        name: value
        for name, value in counters.items()
        if value is not None and name not in clocks and not name.startswith(_MODELLED)
    }
    if counts and not any(counts.values()):
        return _ALL
    byte: dict[str, float] = {}
    for row in rows:
        if row.level is not None and row.name in counts:
            byte[row.level] = byte.get(row.level, 0.0) + counts[row.name]
        elif counts.get(row.name):  # instructions and operations, which only kernels execute
            ran = True
    quiet = {level for level, value in byte.items() if not value}
    # DRAM alone may rest, with everything in L2.
    if not ran or quiet <= {"dram"}:
        return None
    if quiet == byte.keys():
        return "every byte counter"
    return "bytes at L1 and L2" if quiet >= {"l1", "l2"} else None


def _without(record: Measurement, hidden: Collection[str], why: str) -> Measurement:
    """The record without the values of some metrics, in the step and in its parts."""

    def kept(counters: Mapping[str, float | None]) -> dict[str, float | None]:
        return {name: None if name in hidden else value for name, value in counters.items()}

    rounds = tuple(replace(each, counters=kept(each.counters)) for each in record.rounds)
    regions = record.regions
    if regions is not None:
        segments = tuple(
            replace(segment, counters=tuple(map(kept, segment.counters)))
            for segment in regions.segments
        )
        regions = replace(regions, segments=segments)
    unavailable = {**dict.fromkeys(sorted(hidden), why), **record.unavailable}
    return replace(record, rounds=rounds, regions=regions, unavailable=unavailable)


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
