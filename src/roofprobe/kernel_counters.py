"""FLOP and bytes of single kernels, from one run of the program under ncu's kernel replay.

A replay costs some tenths of a second a launch, so only the kernels that take longest are
replayed, and what that will take is known first (``plan``). ncu's filter takes function names
alone, so kernels that differ in template arguments are replayed together. ncu is asked for symbols,
because it shortens the names that it demangles; demangled as a record's names were, both are the
same text.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from roofprobe import metrics, ncu_run
from roofprobe.counters import external
from roofprobe.errors import RoofprobeError, UsageError
from roofprobe.kernel_names import demangled, function_name
from roofprobe.ncu_import import reader
from roofprobe.ncu_run import STALL, Ncu
from roofprobe.record import Kernel, KernelCounts, Measurement, Regions, Timing
from roofprobe.units import number

TOP: Final = 10

# Seconds a launch, all passes and the program's start included: 108 s for 347 launches and 45 s for
# 140, 19 metrics in 8 passes each; 72 s for 387 with 7 metrics; 0.36 in another probe (H200).
LEAST: Final = 0.2
MOST: Final = 0.36

# Steps that measure() warms up with unless it is told otherwise. A record does not say how many.
_WARMUP: Final = 5

_NCCL: Final = "nccl"


@dataclass(frozen=True, slots=True)
class Plan:
    """What ncu will be asked for.

    Attributes:
        kernels: That the filter lets pass, longest first: those asked for, and others that share
            a function name with one of them.
        asked: Names of those asked for.
        functions: Their function names.
        metrics: What is counted.
        left_out: Kernel -> why ncu is not asked for it, though it is among the longest.
        before: Seconds of the steps before the one that is replayed, least and most: those that
            were timed, and those with the usual warm-up; 0 where steps were not timed. The
            program's start (imports, data) comes on top.
    """

    kernels: tuple[Kernel, ...]
    asked: tuple[str, ...]
    functions: tuple[str, ...]
    metrics: tuple[str, ...]
    left_out: Mapping[str, str]
    before: tuple[float, float] = (0.0, 0.0)

    @property
    def launches(self) -> float:
        """How many launches of a step will be replayed."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def price(self) -> tuple[float, float]:
        """Seconds that it may take, least and most, with the steps before."""
        least, most = self.before
        return LEAST * self.launches + least, MOST * self.launches + most

    @property
    def pattern(self) -> str:
        """The filter. Namespaces in front are allowed for, should this ncu keep them."""
        return f"regex:^(.*::)?({'|'.join(self.functions)})$"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A kernel as ncu counted it.

    Attributes:
        launches: In a step of one process.
        counters: Metric -> sum over them; None where one has no value.
    """

    launches: float
    counters: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Log:
    """What a log of ncu says, kernel by kernel.

    Attributes:
        kernels: By name, demangled.
        repeated: Names that several of its kernels have; they are not among ``kernels``.
        respelled: Names that ncu demangled in its own way.
        failed: Names, or function names, of kernels that ncu could not profile.
        unavailable: Metric -> why it has no value, or not for every launch.
        launches: Of all of them, in a step of one process.
    """

    kernels: Mapping[str, Replayed]
    repeated: frozenset[str]
    respelled: frozenset[str]
    failed: frozenset[str]
    unavailable: Mapping[str, str]
    launches: float


def plan(record: Measurement, top: int = TOP) -> Plan:
    """Chooses the kernels that take longest.

    Args:
        record: Its kernels were traced: measured by phase, layer or kernel.
        top: How many.

    Raises:
        UsageError: there are none that can be replayed, or no table for the chip.
    """
    if top < 1:
        raise UsageError(f"--top {top} asks for no kernel: ask for one or more")
    if record.environment.device_kind != "cuda":
        raise UsageError(
            f"{record.name!r} was measured on a CPU, and Nsight Compute counts kernels of a GPU: "
            "measure it on one, with --by kernel"
        )
    kernels = _regions(record).kernels
    chip = record.environment.chip
    if chip is None:
        raise UsageError(
            f"{record.name!r} does not say which chip it was measured on, so that it is not known "
            "what to count: measure it again on the GPU"
        )
    left_out: dict[str, str] = {}
    asked: list[str] = []
    functions: list[str] = []
    for kernel in kernels:
        if len(asked) == top:
            break
        function = function_name(kernel.name)
        if function is None:
            left_out[kernel.name] = "no function that ncu could be asked for, as the driver's own"
        elif function.startswith(_NCCL):
            left_out[kernel.name] = ncu_run.NCCL_REASON
        else:
            asked.append(kernel.name)
            functions.append(function)
    if not asked:
        raise UsageError(f"none of the {len(kernels)} kernels of {record.name!r} can be replayed")
    names = tuple(dict.fromkeys(functions))
    wanted = metrics.rows(metrics.metric_set(metrics.DEFAULT_SET, chip))
    return Plan(
        kernels=tuple(kernel for kernel in kernels if function_name(kernel.name) in names),
        asked=tuple(asked),
        functions=names,
        metrics=tuple(row.name for row in wanted if row.kind in ("flop", "op", "byte")),
        left_out=left_out,
        before=_before(record.timing),
    )


def _before(timing: Timing | None) -> tuple[float, float]:
    if timing is None:
        return 0.0, 0.0
    timed = len(timing.step)
    return timed * timing.median, (timed + _WARMUP) * timing.median


def count(
    record: Measurement,
    planned: Plan,
    command: Sequence[str],
    ncu: Ncu,
    *,
    logs: Path | None = None,
    stall: float = STALL,
) -> Measurement:
    """Runs the program under ncu; the record with what its kernels did.

    Args:
        record: What roofprobe measured of the same program.
        planned: Made from it.
        command: The program.
        ncu: Which ncu.
        logs: Folder in which ncu's log is kept; a temporary one by default.
        stall: Seconds without any output after which the run is stopped.

    Raises:
        UsageError: this ncu does not know the chip.
        RoofprobeError: the run failed, in one sentence.
    """
    ncu.require(record.environment.chip)
    symbols = ("--print-kernel-base", "mangled")
    run = ncu_run.kernel_replay(planned.metrics, planned.pattern, symbols)
    started = time.perf_counter()
    limit = ncu_run.limit(planned.price[1])
    with (
        external.only(record),
        ncu_run.profiled(run, command, ncu, logs=logs, stall=stall, limit=limit) as path,
    ):
        log = read(path, planned.metrics)
    counts = KernelCounts(
        tool=f"ncu {ncu.version}",
        mode=ncu_run.FLUSHED,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=tuple(command),
        launches=log.launches,
        duration=time.perf_counter() - started,
    )
    record = merged(record, planned, log, counts)
    regions = _regions(record)
    if not any(kernel.counters for kernel in regions.kernels):
        assert regions.counted is not None
        reasons = "; ".join(dict.fromkeys(regions.counted.left_out.values()))
        raise RoofprobeError(
            f"no kernel that ncu replayed is one of {record.name!r} ({reasons}): give the command "
            "that was measured, with the same arguments"
        )
    return record


def read(path: Path, wanted: Sequence[str]) -> Log:
    """Reads a log of ncu's kernel replay.

    Args:
        path: The log.
        wanted: Metrics.

    Raises:
        RecordError: it cannot be read.
    """
    content = reader.read(path)
    launches, messages = content.launches, content.messages
    columns = {column.name: column for column in launches.columns}
    sums: dict[str, list[float | None]] = {}
    unavailable: dict[str, str] = {}
    for metric in wanted:
        column = columns.get(metric)
        values = column.filled(len(launches)) if column is not None else [math.nan] * len(launches)
        parts: list[list[float]] = [[] for _ in launches.titles]
        for title, value in zip(launches.names, values, strict=True):
            parts[title].append(value)
        totals = [math.fsum(part) for part in parts]
        sums[metric] = [None if math.isnan(total) else total for total in totals]
        if None in sums[metric]:
            known = messages.missing.get(metric)
            told = "; ".join(column.reasons) if column is not None else "ncu printed no such column"
            unavailable[metric] = known or launches.unusable.get(metric) or told or "no row"
    # Processes of a distributed run do the same work; a record is of one of them.
    processes = len({(owner.host, owner.process) for owner in launches.owners})
    runs = Counter(launches.names)
    names = [demangled(title) for title in launches.titles]
    several = frozenset(name for name, times in Counter(names).items() if times > 1)
    return Log(
        kernels={
            name: Replayed(
                runs[index] / processes,
                {
                    metric: None if (total := each[index]) is None else total / processes
                    for metric, each in sums.items()
                },
            )
            for index, name in enumerate(names)
            if name not in several
        },
        repeated=several,
        respelled=frozenset(title for title in launches.titles if "(" in title),
        failed=frozenset(map(demangled, messages.failed)),
        unavailable=unavailable,
        launches=len(launches) / processes,
    )


def merged(record: Measurement, planned: Plan, log: Log, counts: KernelCounts) -> Measurement:
    """The record with the counters of the kernels that ncu replayed, and why others have none.

    Args:
        record: What roofprobe measured.
        planned: Made from it.
        log: What ncu counted.
        counts: How.
    """
    regions = _regions(record)
    left_out = dict(planned.left_out)
    used = {kernel.name for kernel in regions.kernels}
    kernels: list[Kernel] = []
    for kernel in regions.kernels:
        counters: Mapping[str, float | None] = {}
        if kernel in planned.kernels:
            other = _namesake(kernel, planned.kernels, log)
            reason = _refusal(kernel, planned.kernels, log, other)
            if other is not None:
                used.add(other)
            if other is not None and reason is None:
                counters = log.kernels[other].counters
            elif reason is not None:
                left_out[kernel.name] = reason
        kernels.append(replace(kernel, counters=counters))
    strange = [name for name in log.kernels if name not in used]
    left_out |= dict.fromkeys(strange, "ncu replayed it, and the traced steps did not run it")
    counts = replace(counts, unavailable=log.unavailable, left_out=left_out)
    return replace(record, regions=replace(regions, kernels=tuple(kernels), counted=counts))


def _namesake(kernel: Kernel, planned: Sequence[Kernel], log: Log) -> str | None:
    """Which of ncu's kernels it is: the one of the same name.

    Where ncu spelled its names itself, the one of the same function name, if there is one only.
    """
    if kernel.name in log.kernels:
        return kernel.name
    function = function_name(kernel.name)
    ours = [each for each in planned if function_name(each.name) == function]
    theirs = [name for name in log.kernels if function_name(name) == function]
    alone = len(ours) == len(theirs) == 1
    return theirs[0] if alone and theirs[0] in log.respelled else None


def _refusal(kernel: Kernel, planned: Sequence[Kernel], log: Log, other: str | None) -> str | None:
    """Why ncu's counters are not this kernel's; None where they are."""
    if kernel.name in log.repeated or [each.name for each in planned].count(kernel.name) > 1:
        return "several kernels have this name"
    function = function_name(kernel.name)
    if kernel.name in log.failed or function in log.failed:
        return "ncu could not profile it"
    if other is None:
        close = sum(function_name(name) == function for name in log.respelled)
        if close:
            return f"ncu spells names differently, and {close} of its kernels may be this one"
        return "ncu saw no launch of it"
    replayed = log.kernels[other].launches
    if not math.isclose(replayed, kernel.launches):
        return (
            f"ncu replayed {number(replayed)} launches of it, and a traced step had "
            f"{number(kernel.launches)}"
        )
    return None


def _regions(record: Measurement) -> Regions:
    regions = record.regions
    if regions is None or not regions.kernels:
        raise UsageError(
            f"{record.name!r} does not say which kernels ran: measure it with --by kernel first"
        )
    return regions
