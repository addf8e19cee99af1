"""The cross-check: the same step under Nsight Compute, compared counter by counter.

ncu is run twice, because none of its ways answers everything:

* kernel replay counts instructions and tensor operations (range replay refuses SASS metrics), and
  gives the bytes of its default, which flushes the caches before every kernel;
* application-range replay without cache control counts the bytes of the step as it runs, caches
  warm from kernel to kernel, which is what roofprobe counts.

Clocks are left alone in both. The program's own ``roofprobe.measure`` marks the step
(``counters.external``).

roofprobe counts all that ran in the context, nccl's kernels too; kernel replay leaves those out,
application-range replay does not. So instruction counts of a run of several ranks are judged only
where nccl cannot explain the difference. nccl runs no tensor operations. What other ranks write
into this GPU's memory meanwhile is in roofprobe's bytes and not in ncu's: of two ranks that add up
8192 x 8192 numbers, 0.27 GB and none, and with NCCL_P2P_DISABLE=1 both count the same (two H200,
harness/results/h200/two-ranks.txt).
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from roofprobe import metrics, ncu_run
from roofprobe.counters import external
from roofprobe.errors import RoofprobeError, UsageError
from roofprobe.kernel_counters import MOST
from roofprobe.ncu_import import Imported, import_files
from roofprobe.ncu_run import FLUSHED, KERNEL, NCCL_REASON, STALL, Ncu, Run, Say
from roofprobe.record import CheckedCounter, CrossCheck, Measurement

# Both read the same hardware: instructions repeat to the digit but for dropout, whose masks move
# fadd by 0.02%; bytes of the same question differ by up to 0.5% (measured, H200).
COUNT_TOLERANCE: Final = 1e-3
BYTE_TOLERANCE: Final = 2e-2

_SHORTEST: Final = 2e-6  # s, at least, from one launch to the next

_FLUSH_REASON: Final = (
    "another question: ncu flushes the caches before each kernel, so that what one kernel left "
    "there for the next is read again (reads up), and stops counting before dirty lines are "
    "written back (writes down)"
)
_NCCL_APART: Final = (
    "nccl's own additions are in roofprobe's count and not in ncu's, which leaves nccl's kernels "
    "out, so that more is counted here than there"
)
_PEERS: Final = (
    "other ranks write into this GPU's memory (nccl), which roofprobe counts and ncu does not: "
    "with NCCL_P2P_DISABLE=1 they do not, and both agree"
)
_NCCL_UNKNOWN: Final = (
    "if nccl ran in this step, its own additions are in roofprobe's count alone; neither the "
    "record nor ncu's log tells: measure with by='kernel', which names the kernels, or with "
    "workload={'world_size': N}"
)
_NO_SEED: Final = (
    "the record names no seed, so weights and dropout masks were probably others under ncu, and "
    "counts that follow the data differ with them: fix the seed in the program and name it with "
    "workload={'seed': N} (roofprobe.train does both with --seed N)"
)


class InterruptedCheck(KeyboardInterrupt):
    """A signal ended a cross-check of which a part was done.

    Attributes:
        check: That part; what was not compared says so.
    """

    def __init__(self, check: CrossCheck) -> None:
        super().__init__()
        self.check = check


def cross_check(
    record: Measurement,
    command: Sequence[str],
    ncu: Ncu,
    *,
    logs: Path | None = None,
    stall: float = STALL,
    say: Say = lambda line: None,
) -> CrossCheck:
    """Runs a program under ncu and compares what it counts with a record.

    A run that fails leaves its counters without a value and with the reason; the rest stands.

    Args:
        record: What roofprobe measured of the same program.
        command: The program.
        ncu: Which ncu.
        logs: Folder in which ncu's logs are kept; a temporary one by default.
        stall: Seconds without any output after which a run is stopped.
        say: Takes progress, a line at a time.

    Raises:
        UsageError: the record has no hardware counters, or this ncu does not know the chip.
        RoofprobeError: the logs have no place.
        InterruptedCheck: a signal came when one of the runs had been compared already.
    """
    require_comparable(record)
    ncu.require(record.environment.chip)
    ncu_run.require_room(logs)
    runs = _runs(record)
    rows: list[CheckedCounter] = []
    duration = {"roofprobe, beyond the steps": sum(record.overhead.values())}
    left_out = _left_out(record)
    limit = ncu_run.limit(price(record))
    interrupted = False
    say(f"=> ncu counts the first measurement of the program that is called {record.name!r}")
    for run in runs:
        say(f"=> ncu, {run.title}: {len(run.metrics)} metrics")
        started = time.perf_counter()
        counted: Imported | None = None
        reason: str | None = None
        try:
            with (
                external.only(record),
                ncu_run.profiled(run, command, ncu, logs=logs, stall=stall, limit=limit) as log,
            ):
                counted = _imported(log, record.name)
            # Range replay runs the whole program for each pass, and this says how long once takes.
            limit = max(limit, ncu_run.limit(time.perf_counter() - started))
        except RoofprobeError as error:
            reason = str(error)
            say(f"=> ncu, {run.title}, failed: {reason}")
        except KeyboardInterrupt:
            if all(row.other is None for row in rows):
                raise
            # What ncu counted in the run before took minutes. This one is the last.
            interrupted, reason = True, "ncu was interrupted"
        duration[f"ncu, {run.title}"] = time.perf_counter() - started
        rows += _compared(record, run, counted, reason)
        if run.mode == KERNEL and _nccl_ran(record, counted):
            left_out["nccl kernels"] = f"{NCCL_REASON}; the filter of {KERNEL} leaves them out"
        if counted is not None and counted.failed_kernels:
            left_out[f"kernels that ncu could not profile ({run.title})"] = ", ".join(
                counted.failed_kernels
            )
    check = CrossCheck(
        tool=f"ncu {ncu.version}",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=tuple(command),
        counters=tuple(_multiples_named(rows)),
        duration=duration,
        left_out=left_out,
    )
    if interrupted:
        raise InterruptedCheck(check)
    return check


def price(record: Measurement) -> float:
    """Seconds that kernel replay of the step may take at most, without the program's start."""
    timing = record.timing
    if record.kernels is not None:
        launches = record.kernels.launches
    else:
        launches = timing.median / _SHORTEST if timing is not None else 0.0
    # The warm-up, of which a record says nothing, is about as long as the timed steps.
    before = 2 * sum(timing.step) if timing is not None else 0.0
    return MOST * launches + before


def applied(record: Measurement, check: CrossCheck) -> Measurement:
    """The record with the cross-check in it."""
    return dataclasses.replace(record, crosscheck=check)


def _imported(log: Path, name: str) -> Imported:
    """What ncu counted.

    Raises:
        RoofprobeError: nothing, in one sentence; also where the program never measured ``name``.
    """
    try:
        return import_files([log])
    except RoofprobeError as error:
        output = log.with_suffix(".out")  # where ncu_run keeps what the program printed
        printed = output.read_text(errors="replace") if output.exists() else ""
        others = external.passed_by(printed)
        if not others:
            raise RoofprobeError(
                f"{error}; ncu counts what the program measures as {name!r}: see that the command "
                "is the one that was measured"
            ) from None
        raise RoofprobeError(
            f"the program measured {', '.join(map(repr, others))} and never {name!r}, which the "
            "run file is of, so ncu counted nothing: give the command that was measured, with the "
            "same arguments"
        ) from None


# -- What is compared ---------------------------------------------------------------------


def _runs(record: Measurement) -> tuple[Run, ...]:
    rows = metrics.rows(record.metrics)
    counts = tuple(row.name for row in rows if row.kind in ("flop", "op"))
    byte = tuple(row.name for row in rows if row.kind in ("byte", "sector"))
    if not counts and not byte:
        raise UsageError(
            "none of the record's metrics is one that ncu is compared on: measure one of the sets "
            f"{', '.join(metrics.SET_NAMES)}"
        )
    found = [ncu_run.kernel_replay((*counts, *byte))]
    if byte:
        found.append(ncu_run.range_replay(byte))
    return tuple(found)


def require_comparable(record: Measurement) -> None:
    """Raises UsageError for a record without anything that ncu could be compared on."""
    if record.source != "cupti" or not record.rounds:
        raise UsageError(
            f"the record holds no complete round of hardware counters (its source is "
            f"{record.source}): measure with --backend cupti first"
        )
    _runs(record)


def _left_out(record: Measurement) -> dict[str, str]:
    found = {}
    for row in metrics.rows(record.metrics):
        if row.kind == "second":
            found[row.name] = "ncu runs kernels one at a time, so that its time is another one"
        elif row.kind in ("coverage_sass", "coverage_hardware"):
            found[row.name] = "a check of the SASS counters, which are compared themselves"
        elif row.kind == "rate":
            found[row.name] = "a rate over ncu's own time, which is another one"
        elif row.kind == "block":
            found[row.name] = "a check that the counters see every kernel"
        elif row.kind == "gate":
            found[row.name] = "says whether its pipe did anything; what that executes is compared"
    unknown = [name for name in record.metrics if name not in metrics.TABLE]
    return found | dict.fromkeys(unknown, "not a count of FLOP or bytes")


def _compared(
    record: Measurement, run: Run, counted: Imported | None, reason: str | None
) -> list[CheckedCounter]:
    found = []
    processes = max(1, len(counted.processes)) if counted is not None else 1
    for name in run.metrics:
        byte = metrics.TABLE[name].kind in ("byte", "sector")
        shown_only = byte and run.mode == KERNEL
        other = counted.counters.get(name) if counted is not None else None
        row = CheckedCounter(
            metric=name,
            roofprobe=record.value(name),
            other=None if other is None else other / processes,
            mode=FLUSHED if shown_only else run.mode,
            tolerance=None if shown_only else BYTE_TOLERANCE if byte else COUNT_TOLERANCE,
            agrees=None,
        )
        if shown_only:
            row = dataclasses.replace(row, reason=reason or _FLUSH_REASON)
        else:
            row = _judged(row, record, counted, reason)
        found.append(row)
    return found


def _judged(
    row: CheckedCounter, record: Measurement, counted: Imported | None, reason: str | None
) -> CheckedCounter:
    assert row.tolerance is not None
    if row.roofprobe is None:
        why = record.unavailable.get(row.metric, "not measured")
        return dataclasses.replace(row, agrees=False, reason=f"roofprobe has no value: {why}")
    if row.other is None:
        if reason is None:
            known = counted.unavailable if counted is not None else {}
            why = known.get(row.metric, "no such column in its output")
            reason = f"ncu has no value: {why}"
        return dataclasses.replace(row, agrees=False, reason=reason)
    difference = abs(row.roofprobe - row.other)
    agrees = difference <= row.tolerance * max(abs(row.other), abs(row.roofprobe))
    row = dataclasses.replace(row, agrees=agrees)
    return row if agrees else _explained(row, record, counted)


def _explained(
    row: CheckedCounter, record: Measurement, counted: Imported | None
) -> CheckedCounter:
    """A count that differs, with what may explain it."""
    assert row.roofprobe is not None
    assert row.other is not None
    if row.tolerance != COUNT_TOLERANCE:
        written = metrics.TABLE[row.metric].direction == "write" and row.roofprobe > row.other
        if written and _nccl_ran(record, counted):
            return dataclasses.replace(row, agrees=None, reason=_PEERS)
        return row
    reasons = []
    if metrics.TABLE[row.metric].instrumented and row.roofprobe > row.other:
        nccl = _nccl_ran(record, counted)
        if nccl:
            return dataclasses.replace(row, agrees=None, reason=_NCCL_APART)
        if nccl is None:
            reasons.append(_NCCL_UNKNOWN)
    if record.workload.get("seed") is None:
        reasons.append(_NO_SEED)
    return dataclasses.replace(row, reason="; ".join(reasons) or None)


def _nccl_ran(record: Measurement, counted: Imported | None) -> bool | None:
    """Whether nccl's kernels ran in the step; None where nothing tells.

    Kernels by name tell it best. Otherwise a run of several ranks is taken for one with nccl.
    """
    kernels = record.regions.kernels if record.regions is not None else ()
    if kernels:
        return any("nccl" in kernel.name.lower() for kernel in kernels)
    ranks = record.workload.get("world_size")
    if isinstance(ranks, int | float):
        return ranks > 1
    return True if counted is not None and len(counted.processes) > 1 else None


def _multiples_named(rows: Sequence[CheckedCounter]) -> list[CheckedCounter]:
    """Says so where ncu saw several steps: everything is then off by one whole factor."""
    ratios = [
        row.other / row.roofprobe
        for row in rows
        if row.tolerance == COUNT_TOLERANCE and row.other and row.roofprobe
    ]
    steps = round(ratios[0]) if ratios else 1
    if steps < 2 or any(abs(ratio / steps - 1) > COUNT_TOLERANCE for ratio in ratios):
        return list(rows)
    why = (
        f"ncu counted {steps} times as much: the program brackets {steps} steps with the CUDA "
        "profiler's start and stop where roofprobe measured one"
    )
    return [
        dataclasses.replace(row, reason=why) if row.agrees is False and row.other else row
        for row in rows
    ]
