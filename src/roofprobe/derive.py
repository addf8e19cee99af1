"""From raw counters to FLOP, bytes, intensity and rates. Pure functions of a record.

Conventions: one FMA is two FLOP; intensity is FLOP over DRAM bytes (read and write) unless a
level is named; FLOP/s is FLOP over the unprofiled step time unless kernel time is named. A total
that misses a part is None, never a partial sum.
"""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from roofprobe import metrics
from roofprobe.errors import UsageError
from roofprobe.metrics import Metric
from roofprobe.record import Measurement

# Below this relative difference the study's FLOP and ours count as the same.
_SAME: Final = 0.01

# Kernels are traced on steps of their own, which may differ from the timed ones by this much; where
# kernels run longer than the step takes by more, the two do not belong together.
_STEPS_DIFFER: Final = 1.06

# Sources whose metrics have names of their own.
_PREFIXES: Final = {"analytic": metrics.ANALYTIC_PREFIX, "gpm": metrics.GPM_PREFIX}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with what is needed to trust it.

    Attributes:
        value: In base units; None when it could not be had.
        source: Where it comes from: ``cupti``, ``analytic``, ``cuda_events``, ...
        spread: Largest minus smallest over the mean between rounds or steps; None for one.
        reason: Why there is no value, or what limits it.
        upper_bound: True where the value is the most that it can be.
        error: Relative error that the source is known to have, a fraction; None for a counter.
    """

    value: float | None
    source: str
    spread: float | None = None
    reason: str | None = None
    upper_bound: bool = False
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """The published study's formula beside ours.

    Attributes:
        flop: fadd + fmul + 2 ffma, CUDA cores and fp32 only.
        intensity: That over DRAM bytes.
        flop_per_s: That over the sum of kernel times.
        ratio: Our total FLOP over the study's.
        reason: Why they differ, in a sentence; None when they agree.
    """

    flop: Figure
    intensity: Figure
    flop_per_s: Figure
    ratio: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that a report or a plot shows of one measurement, per step.

    Attributes:
        flop: By path (``sass_fp32``, ``tensor_tf32``, ...).
        flop_total: All floating-point paths whose weight is exact; integer operations and the
            fp16 upper bound stay outside. Of GPM, whose CUDA-core figures are all bounds, the
            bound of them all.
        byte: ``dram_read``, ``dram_write``, ``dram``, ``l2``, ``l1``.
        intensity: Total FLOP over bytes, by level.
        step_time: Unprofiled step, s.
        kernel_time: Sum of kernel durations, s.
        busy_time: Union of kernels, copies and fills within the device, s: what overlaps counts
            once. Copies and fills can put it above ``kernel_time``.
        flop_per_s: Total FLOP over step time.
        flop_per_s_kernel: Total FLOP over the sum of kernel times.
        byte_per_s: DRAM bytes over step time.
        study: The study's formula; None where no fp32 instruction was asked for.
        idle: Share of the step in which no kernel, copy or fill ran, a fraction.
        fma_share: FMA among the fp32 instructions of CUDA cores, a fraction. Only FMA reach the
            datasheet's peak: at a share f no more than (1 + f) / 2 of it can be had (Yang,
            "8 Steps to 3.7 TFLOP/s", https://arxiv.org/abs/2008.11326).
    """

    flop: Mapping[str, Figure]
    flop_total: Figure
    byte: Mapping[str, Figure]
    intensity: Mapping[str, Figure]
    step_time: Figure
    kernel_time: Figure
    busy_time: Figure
    flop_per_s: Figure
    flop_per_s_kernel: Figure
    byte_per_s: Figure
    study: Study | None
    idle: Figure
    fma_share: Figure


def figures(record: Measurement) -> Figures:
    """Derives every figure of a record.

    Raises:
        UsageError: no record was given.
    """
    # Whatever judges or shows a record begins here.
    if not isinstance(record, Measurement):
        raise UsageError(
            f"{reprlib.repr(record)} is no record: give a Measurement, which "
            "Measurement.load(path) reads from a run file"
        )
    rows = own_rows(record)
    flop = {
        path: _path(record, path, [row for row in rows if row.path == path])
        for path in dict.fromkeys(row.path for row in rows if row.kind in ("flop", "op"))
        if path is not None and path != "study_fp16"
    }
    counted = [
        row
        for row in rows
        if row.kind == "flop"
        and row.path != "study_fp16"
        and (not row.upper_bound or record.source == "gpm")
    ]
    total = _total(record, counted)
    byte = _bytes(record, rows)
    intensity: dict[str, Figure] = {
        level: _ratio(total, byte[level]) for level in metrics.LEVELS if level in byte
    }
    step_time, kernel_time, busy_time = _times(record)
    dram = byte.get("dram", Figure(None, record.source, reason="no DRAM counter was asked for"))
    return Figures(
        flop=flop,
        flop_total=total,
        byte=byte,
        intensity=intensity,
        step_time=step_time,
        kernel_time=kernel_time,
        busy_time=busy_time,
        flop_per_s=_ratio(total, step_time),
        flop_per_s_kernel=_ratio(total, kernel_time),
        byte_per_s=_ratio(dram, step_time),
        study=_study(record, total, dram, kernel_time),
        idle=_idle(step_time, busy_time),
        fma_share=_fma_share(record),
    )


def counter(record: Measurement, metric: str) -> float | None:
    """Mean of a counter, of the eager run where the record has one and no value of its own."""
    value = record.value(metric)
    if value is None and record.eager is not None:
        return record.eager.counters.get(metric)
    return value


def own_rows(record: Measurement) -> tuple[Metric, ...]:
    """The table's rows for the metrics of a record that its source can count.

    A model and GPM have metrics of their own. What else such a run was asked for has no value, and
    would leave their totals without one.
    """
    prefix = _PREFIXES.get(record.source, "")
    return tuple(row for row in metrics.rows(record.metrics) if row.name.startswith(prefix))


def _idle(step: Figure, busy: Figure) -> Figure:
    ran = _ratio(busy, step)
    if ran.value is None:
        return ran
    if ran.value > _STEPS_DIFFER:
        reason = "kernels of the traced steps ran longer than a timed step takes"
        return Figure(None, busy.source, reason=reason)
    return Figure(max(0.0, 1 - ran.value), busy.source)


def _fma_share(record: Measurement) -> Figure:
    add, mul, fma = metrics.SASS_FP32
    if not {add.name, mul.name, fma.name} <= set(record.metrics):
        return Figure(None, record.source, reason="fp32 instructions were not asked for")
    # Counted as instructions: a weighted sum would count each FMA twice.
    every = _summed(record, [replace(row, weight=1.0) for row in (add, mul, fma)])
    return _ratio(_summed(record, [replace(fma, weight=1.0)]), every)


def _path(record: Measurement, path: str, asked: Sequence[Metric]) -> Figure:
    """FLOP of a path; None where the chip counts more of it than was asked for."""
    names = {row.name for row in asked}
    lacking = [row.name for row in metrics.rows_of_path(record.environment.chip, path)]
    lacking = [name for name in lacking if name not in names]
    if lacking and record.source not in ("analytic", "gpm"):
        reason = f"this run did not count {', '.join(lacking)}, which are FLOP of that path as well"
        return Figure(None, record.source, reason=reason)
    return _summed(record, asked)


def _total(record: Measurement, counted: Sequence[Metric]) -> Figure:
    """Sum over paths; None where the chip has a path that this run did not count."""
    asked = {row.path for row in counted}
    # A model has paths of its own, and GPM cannot see all of a chip's (fp8 is withheld as others).
    chip = record.environment.chip if record.source not in ("analytic", "gpm") else None
    missing = [path for path in metrics.flop_paths(chip) if path not in asked]
    if missing:
        names = ", ".join(missing)
        reason = f"this run did not count {names}; the set {metrics.DEFAULT_SET} does"
        return Figure(None, record.source, reason=reason)
    for path in asked:
        part = _path(record, str(path), [row for row in counted if row.path == path])
        if part.value is None:
            return part
    return _summed(record, counted)


def _bytes(record: Measurement, rows: Sequence[Metric]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for level in metrics.LEVELS:
        here = [row for row in rows if row.level == level and row.kind in ("byte", "sector")]
        if not here:
            continue
        # The study's set counts DRAM as sectors and as one total: never add the two up.
        split = [row for row in here if row.direction is not None]
        exact = [row for row in split if row.kind == "byte"] or split
        for direction in ("read", "write"):
            part = [row for row in exact if row.direction == direction]
            if part:
                found[f"{level}_{direction}"] = _summed(record, part)
        directions = {row.direction for row in exact}
        if exact == here and len(directions) == 1:
            one = directions.pop()
            reason = f"this run counted {level.upper()} bytes {one} only"
            found[level] = Figure(None, record.source, reason=reason)
        elif len(directions) == 1:
            # One direction beside a counter of both: the latter is the level's figure.
            found[level] = _summed(record, [row for row in here if row.direction is None])
        else:
            found[level] = _summed(record, exact or here)
    return found


def _times(record: Measurement) -> tuple[Figure, Figure, Figure]:
    if record.timing is None:
        why = record.notes.get("timing", "the loop ended before steps were timed")
        cpu = record.environment.device_kind == "cpu"
        step = Figure(None, "perf_counter" if cpu else "cuda_events", reason=why)
    else:
        step = Figure(record.timing.median, record.timing.source, record.timing.spread)
    if record.kernels is None:
        why = record.notes.get("kernels", "no kernels were traced")
        missing = Figure(None, "cupti_activity", reason=why)
        return step, missing, missing
    source = record.kernels.source
    return step, Figure(record.kernels.sum, source), Figure(record.kernels.union, source)


def _study(record: Measurement, total: Figure, dram: Figure, kernel_time: Figure) -> Study | None:
    names = [row.name for row in metrics.SASS_FP32]
    if not set(names) <= set(record.metrics):
        return None
    flop = _summed(record, metrics.SASS_FP32)
    ratio = None
    if flop.value and total.value is not None:
        ratio = total.value / flop.value
    return Study(
        flop=flop,
        intensity=_ratio(flop, dram),
        flop_per_s=_ratio(flop, kernel_time),
        ratio=ratio,
        reason=_study_reason(record, flop, total),
    )


def _study_reason(record: Measurement, flop: Figure, total: Figure) -> str | None:
    if flop.value is None or total.value is None or total.value == 0:
        return None
    missed = total.value - flop.value
    if missed <= _SAME * total.value:
        return None
    shares: dict[str, float] = {}
    for row in metrics.rows(record.metrics):
        value = counter(record, row.name)
        if row.kind == "flop" and row.path and value and row.path.startswith("tensor_"):
            shares[row.path] = shares.get(row.path, 0.0) + row.weight * value
    tensor = sum(shares.values())
    if tensor < 0.5 * missed:
        return (
            f"the study's formula counts fp32 instructions only and misses "
            f"{100 * missed / total.value:.1f}% of the FLOP, which ran in another precision"
        )
    largest = max(shares, key=lambda path: shares[path]).removeprefix("tensor_").upper()
    return (
        f"{100 * tensor / total.value:.1f}% of the FLOP ran on tensor cores (mostly {largest}), "
        "which the study's fp32 SASS counters do not see"
    )


def _summed(record: Measurement, rows: Iterable[Metric]) -> Figure:
    """Weighted sum of counters; None with the first reason when one of them has no value."""
    chosen = list(rows)
    source = record.source
    if not chosen:
        return Figure(None, source, reason="no such counter was asked for")
    borrowed: Mapping[str, float] = {}
    for row in chosen:
        if record.value(row.name) is not None:
            continue
        value = counter(record, row.name)
        if value is None or record.eager is None:
            reason = record.unavailable.get(row.name, "not measured")
            return Figure(None, source, reason=f"{row.name}: {reason}")
        source = record.eager.source
        borrowed = {**borrowed, row.name: value}
    per_round = [
        sum(row.weight * ({**counted.counters, **borrowed}[row.name] or 0.0) for row in chosen)
        for counted in record.rounds
    ]
    mean = fmean(per_round)
    spread = None
    if len(per_round) > 1:
        spread = (max(per_round) - min(per_round)) / mean if mean else 0.0
    bound = any(row.upper_bound for row in chosen)
    return Figure(mean, source, spread, upper_bound=bound, error=_error(record, chosen))


def _error(record: Measurement, rows: Sequence[Metric]) -> float | None:
    """Relative error of a weighted sum; errors of one backend have one cause, and so add up."""
    if not any(row.error for row in rows):
        return None
    parts = [row.weight * (counter(record, row.name) or 0.0) for row in rows]
    whole = sum(parts)
    if not whole:
        return max(row.error for row in rows)
    return sum(part * row.error for part, row in zip(parts, rows, strict=True)) / whole


def _ratio(top: Figure, bottom: Figure) -> Figure:
    for part in (top, bottom):
        if part.value is None:
            return Figure(None, top.source, reason=part.reason)
    assert top.value is not None
    if not bottom.value:
        return Figure(None, top.source, reason="divided by a measured 0")
    # Independent relative spreads add at most linearly.
    spreads = [part.spread for part in (top, bottom) if part.spread is not None]
    errors = [part.error for part in (top, bottom) if part.error is not None]
    return Figure(
        top.value / bottom.value,
        top.source,
        sum(spreads) if spreads else None,
        upper_bound=top.upper_bound,
        error=sum(errors) if errors else None,
    )
