"""Kernel durations from CUPTI activity records, on steps of their own.

The only module that imports cupti-python. Three facts of the H200 shape it (docs/design.md,
"Activity"), and one of cupti-python:

* While records are taken, SASS instrumentation sees nothing. So tracing is never on while
  counters are collected.
* Records that CUPTI still holds when the process ends are delivered to a Python that is gone;
  after a range session that is a segmentation fault. So every trace ends with a flush.
* Once torch.profiler has run in the process, time stamps are processor ticks and not
  nanoseconds. So every trace measures what its unit is.
* cupti-python opens the libcupti of its own major version in NVIDIA's wheels, whichever copy the
  process uses already, and two break each other. So which one is in use is asked first.
"""

import ctypes
import importlib.metadata
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal

from roofprobe._location import find_libcupti, mapped_libcupti
from roofprobe.counters.cupti import cupti_version, primary_context_id
from roofprobe.errors import CuptiLibraryError, RoofprobeError
from roofprobe.record import KernelTimes

_BUFFER_BYTE: Final = 8 * 2**20
_COPY_DEVICE_TO_DEVICE: Final = 8  # CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, cupti_activity.h
_WHEEL: Final = "nvidia/*/lib/*"  # where NVIDIA's wheels, which cupti-python knows, put libcupti


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of GPU work.

    Attributes:
        kind: ``kernel``, or the driver's own ``copy`` (within the device), ``fill`` (memset) or
            ``transfer`` (a copy from or to elsewhere, which is no work of the device's).
        start: Seconds of an arbitrary origin.
        end: Likewise.
        byte: Bytes copied or filled; 0 for a kernel.
        from_graph: A CUDA graph launched it.
        name: Of a kernel as the compiler spells it; empty for anything else.
        issued: When the processor asked for it, in the same clock; None where that is not kept:
            CUPTI knows it of kernels alone.
        elsewhere: It is a kernel of another CUDA context than the one that is counted.
        blocks: Thread blocks of a kernel.
    """

    kind: Literal["kernel", "copy", "fill", "transfer"]
    start: float
    end: float
    byte: int = 0
    from_graph: bool = False
    name: str = ""
    issued: float | None = None
    elsewhere: bool = False
    blocks: int = 0

    @property
    def asked(self) -> float:
        """When it was asked for, or else when it began."""
        return self.start if self.issued is None else self.issued


@dataclass(frozen=True, slots=True)
class Trace:
    """What one step did on the GPU.

    Attributes:
        spans: The work, in any order.
        marks: When ``KernelTracer.mark`` was called, in order, s of the same origin.
    """

    spans: tuple[Span, ...]
    marks: tuple[float, ...] = ()


class KernelTracer:
    """Traces kernels, copies and fills of whole steps.

    Each step lies between a ``start`` and a ``stop`` of its own, so that what the GPU does between
    steps (loading data, computing scores) is not taken for a part of them.

    Args:
        synchronize: Waits until the device has finished.
        device: CUDA's number of the device whose work is kept; None keeps everything.
        counted: CUDA's number of the device whose primary context is counted, so that kernels of
            another context are told apart; None where nothing depends on it.
        detailed: Keep when kernels were asked for, and transfers from and to the device.
            Marks are taken in the processor's time, like the moment when a kernel is put into the
            command buffer; what runs is timed in the GPU's, which CUPTI converts.
    """

    def __init__(
        self,
        synchronize: Callable[[], None],
        *,
        device: int | None = None,
        counted: int | None = None,
        detailed: bool = False,
    ) -> None:
        self._synchronize = synchronize
        self._device = device
        self._counted = counted
        self._context: int | None = None  # CUPTI's number of the one that is counted
        self._detailed = detailed
        self._steps: list[Trace] = []
        self._records: list[Span] = []  # of the step that runs, in CUPTI's ticks
        self._marks: list[int] = []  # likewise
        self._running = False
        self._dropped = 0
        self._impossible = 0
        self._clock = (0, 0)  # CUPTI's ticks and nanoseconds while tracing

    def start(self) -> None:
        """The step begins: switches tracing on.

        Raises:
            RoofprobeError: cupti-python is missing or of another CUDA, or CUPTI refuses.
        """
        cupti = _cupti()
        self._synchronize()
        if self._counted is not None and self._context is None:
            self._context = primary_context_id(self._counted)
        self._records = []
        self._marks = []
        try:
            self._clock = cupti.get_timestamp(), time.perf_counter_ns()
            cupti.activity_register_callbacks(lambda: (_BUFFER_BYTE, 0), self._keep)
            if self._detailed:
                # When a kernel was asked for. Records of the calls themselves would tell as well,
                # and take ten times as long to write and to read (0.1 to 0.25 s a step).
                cupti.activity_enable_latency_timestamps(1)
            for kind in _kinds(cupti):
                cupti.activity_enable(kind)
                self._running = True
        except cupti.cuptiError as error:
            self.stop()
            raise RoofprobeError(f"CUPTI refuses activity records: {error}") from None

    def stop(self) -> None:
        """The step has been issued: waits for it and takes in its records. Safe to call twice."""
        if not self._running:
            return
        self._running = False
        cupti = _cupti()
        self._synchronize()
        ticks, clock = self._clock
        ticks, clock = cupti.get_timestamp() - ticks, time.perf_counter_ns() - clock
        cupti.activity_flush_all(1)
        dropped = ctypes.c_size_t()
        cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(dropped))
        self._dropped += dropped.value
        for kind in _kinds(cupti):
            cupti.activity_disable(kind)
        if self._detailed:
            cupti.activity_enable_latency_timestamps(0)
        unit = seconds_per_tick(ticks, clock)
        self._impossible += impossible(self._records, ticks)
        spans = in_seconds(self._records, unit)
        self._steps.append(Trace(spans, tuple(mark * unit for mark in self._marks)))

    def mark(self) -> None:
        """Waits for what was issued; what starts from here on comes after this mark.

        Does nothing outside of a step.
        """
        if self._running:
            self._synchronize()
            self._marks.append(_cupti().get_timestamp())

    @property
    def steps(self) -> tuple[Trace, ...]:
        """What was traced, step by step.

        Raises:
            RoofprobeError: nothing was recorded, or not everything.
        """
        self._require_all()
        return tuple(self._steps)

    def result(self) -> KernelTimes:
        """What was traced, a step.

        Raises:
            RoofprobeError: nothing was recorded, or not everything.
        """
        self._require_all()
        return summarize([step.spans for step in self._steps])

    def _require_all(self) -> None:
        if self._dropped:
            raise RoofprobeError(
                f"CUPTI dropped {self._dropped} activity records, so that kernel times would miss "
                "a part: trace a shorter step"
            )
        if self._impossible:
            raise RoofprobeError(
                f"{self._impossible} activity records begin at 0, end before they begin or last "
                "longer than their step: CUPTI's time stamps are no times here"
            )
        if not any(step.spans for step in self._steps):
            raise RoofprobeError("CUPTI recorded no work; does another tool hold its records?")

    def _keep(self, activities: Sequence[Any]) -> None:
        # Records die with CUPTI's buffer, so what is needed is copied out here.
        kernel, copy, fill = _kinds(_cupti())
        for activity in activities:
            if self._device is not None and activity.device_id != self._device:
                continue
            times = activity.start, activity.end
            graph = activity.graph_id != 0
            if activity.kind == kernel:
                # Of a graph's kernels CUPTI does not know it: what it gives is of no use.
                known = self._detailed and not graph
                issued = activity.queued or None if known else None
                elsewhere = self._context is not None and activity.context_id != self._context
                blocks = activity.grid_x * activity.grid_y * activity.grid_z
                span = Span("kernel", *times, 0, graph, activity.name, issued, elsewhere, blocks)
            elif activity.kind == fill:
                span = Span("fill", *times, activity.bytes, graph)
            elif activity.kind == copy and activity.copy_kind == _COPY_DEVICE_TO_DEVICE:
                span = Span("copy", *times, activity.bytes, graph)
            elif self._detailed:
                span = Span("transfer", *times, activity.bytes, graph)
            else:
                continue
            self._records.append(span)


def in_seconds(records: Sequence[Span], unit: float) -> tuple[Span, ...]:
    """Work with its times in seconds.

    Args:
        records: In CUPTI's ticks.
        unit: Seconds a tick.
    """
    return tuple(
        replace(
            span,
            start=span.start * unit,
            end=span.end * unit,
            issued=None if span.issued is None else span.issued * unit,
        )
        for span in records
    )


def different_kernels(steps: Sequence[Trace]) -> str | None:
    """The first kernel that some steps ran more often than others; None where all are alike.

    Args:
        steps: Traced ones.

    Returns:
        Its name as the compiler spells it.
    """
    ran = [Counter(s.name for s in step.spans if s.kind == "kernel") for step in steps]
    names = dict.fromkeys(name for kernels in ran for name in kernels)
    return next((name for name in names if len({kernels[name] for kernels in ran}) > 1), None)


def impossible(spans: Sequence[Span], ticks: int) -> int:
    """How many pieces have time stamps that no work has; CUPTI writes 0 where it knows none.

    Args:
        spans: Of one step, in CUPTI's ticks.
        ticks: How long the step took.
    """
    return sum(not (span.start > 0 and 0 <= span.end - span.start <= ticks) for span in spans)


def summarize(steps: Sequence[Sequence[Span]]) -> KernelTimes:
    """Times of GPU work, as a mean over steps.

    Args:
        steps: The work of each step, at least one piece in all; transfers are none.
    """
    steps = [[piece for piece in work if piece.kind != "transfer"] for work in steps]
    busy = span = 0.0
    for work in steps:
        ordered = sorted(work, key=lambda piece: piece.start)
        reached = ordered[0].start if ordered else 0.0
        for piece in ordered:
            busy += max(0.0, piece.end - max(piece.start, reached))
            reached = max(reached, piece.end)
        span += reached - ordered[0].start if ordered else 0.0
    count = len(steps)
    pieces = [piece for work in steps for piece in work]
    kernels = [piece for piece in pieces if piece.kind == "kernel"]
    return KernelTimes(
        steps=count,
        launches=len(kernels) / count,
        graph_launches=sum(kernel.from_graph for kernel in kernels) / count,
        sum=sum(kernel.end - kernel.start for kernel in kernels) / count,
        union=busy / count,
        span=span / count,
        copy_byte=sum(piece.byte for piece in pieces if piece.kind == "copy") / count,
        fill_byte=sum(piece.byte for piece in pieces if piece.kind == "fill") / count,
        copies=sum(piece.kind != "kernel" for piece in pieces) / count,
        elsewhere=sum(kernel.elsewhere for kernel in kernels) / count,
        blocks=sum(kernel.blocks for kernel in kernels) / count,
    )


def seconds_per_tick(ticks: int, nanoseconds: int) -> float:
    """Unit of CUPTI's time stamps: nanoseconds, unless somebody installed another clock.

    Args:
        ticks: By how much CUPTI's time stamp moved on.
        nanoseconds: How long that took.
    """
    # Reading both clocks is good to microseconds; close to nanoseconds is taken as exactly those.
    return 1e-9 if abs(ticks / nanoseconds - 1) < 1e-2 else 1e-9 * nanoseconds / ticks


def preload() -> None:
    """Imports cupti-python, which takes a while, ahead of its use; says nothing if it cannot."""
    with suppress(RoofprobeError):
        _cupti()


def _kinds(cupti: Any) -> tuple[Any, Any, Any]:
    kinds = cupti.ActivityKind
    return kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET


@cache  # of a success; a failure is asked again, and says so again
def _cupti() -> Any:
    _require_one_libcupti()
    try:
        from cupti import cupti
    except ImportError as error:
        raise RoofprobeError(
            f"kernel times need the package cupti-python, which cannot be imported ({error})"
        ) from None
    return cupti


def _require_one_libcupti() -> None:
    """Sees to it that cupti-python loads no second libcupti.

    Raises:
        RoofprobeError: it is for another CUDA than the libcupti in use, or there are two already.
    """
    try:
        package = importlib.metadata.version("cupti-python")
    except importlib.metadata.PackageNotFoundError:
        return  # which its import says
    try:
        path = find_libcupti()
        ours = _major(cupti_version())
    except CuptiLibraryError:
        if mapped_libcupti():
            raise
        return  # cupti-python's own is then the only one
    theirs = _major(package)
    if theirs != ours:
        raise RoofprobeError(
            f"no kernel is traced, because cupti-python {package} loads CUPTI {theirs} and PyTorch "
            f"uses CUPTI {ours} ({path}), which break each other in one process: "
            f"pip install 'cupti-python=={ours}.*'"
        )
    if not path.match(_WHEEL):
        # cupti-python asks the process for CUPTI's functions before it opens the wheels' copy, and
        # sees them only here.
        ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_NOLOAD)


def _major(version: str) -> str:
    """CUDA's major version; CUPTI's older numbers, where they work at all, are all CUDA 12's."""
    return "12" if version.startswith("API") else version.partition(".")[0]
