"""Kernel durations from CUPTI activity records, on steps of their own.

The only module that imports cupti-python. Three facts of the H200 shape it (docs/design.md,
"Activity"):

* While records are taken, SASS instrumentation sees nothing. So tracing is never on while
  counters are collected.
* Records that CUPTI still holds when the process ends are delivered to a Python that is gone;
  after a range session that is a segmentation fault. So every trace ends with a flush.
* Once torch.profiler has run in the process, time stamps are processor ticks and not
  nanoseconds. So every trace measures what its unit is.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from roofprobe.errors import RoofprobeError
from roofprobe.record import KernelTimes

_BUFFER_BYTE: Final = 8 * 2**20
_COPY_DEVICE_TO_DEVICE: Final = 8  # CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, cupti_activity.h


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of GPU work.

    Attributes:
        kind: ``kernel``, or the driver's own ``copy`` (within the device) or ``fill`` (memset).
        start: Seconds of an arbitrary origin.
        end: Likewise.
        byte: Bytes copied or filled; 0 for a kernel.
        from_graph: A CUDA graph launched it.
    """

    kind: Literal["kernel", "copy", "fill"]
    start: float
    end: float
    byte: int = 0
    from_graph: bool = False


class KernelTracer:
    """Traces kernels, copies and fills of whole steps.

    Each step lies between a ``start`` and a ``stop`` of its own, so that what the GPU does between
    steps (loading data, computing scores) is not taken for a part of them.

    Args:
        synchronize: Waits until the device has finished.
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._steps: list[list[Span]] = []
        self._records: list[Span] = []  # of the step that runs, in CUPTI's ticks
        self._running = False
        self._dropped = 0
        self._clock = (0, 0)  # CUPTI's ticks and nanoseconds while tracing

    def start(self) -> None:
        """The step begins: switches tracing on.

        Raises:
            RoofprobeError: cupti-python is missing or CUPTI refuses.
        """
        cupti = _cupti()
        self._synchronize()
        self._records = []
        self._clock = cupti.get_timestamp(), time.perf_counter_ns()
        try:
            cupti.activity_register_callbacks(lambda: (_BUFFER_BYTE, 0), self._keep)
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
        unit = seconds_per_tick(ticks, clock)
        self._steps.append(
            [replace(span, start=span.start * unit, end=span.end * unit) for span in self._records]
        )

    def result(self) -> KernelTimes:
        """What was traced, a step.

        Raises:
            RoofprobeError: nothing was recorded, or not everything.
        """
        if self._dropped:
            raise RoofprobeError(
                f"CUPTI dropped {self._dropped} activity records, so that kernel times would miss "
                "a part: trace a shorter step"
            )
        if not any(self._steps):
            raise RoofprobeError("CUPTI recorded no work; does another tool hold its records?")
        return summarize(self._steps)

    def _keep(self, activities: Sequence[Any]) -> None:
        # Records die with CUPTI's buffer, so what is needed is copied out here.
        cupti = _cupti()
        kernel, copy, fill = _kinds(cupti)
        for activity in activities:
            times = activity.start, activity.end
            graph = activity.graph_id != 0
            if activity.kind == kernel:
                self._records.append(Span("kernel", *times, from_graph=graph))
            elif activity.kind == fill:
                self._records.append(Span("fill", *times, activity.bytes, graph))
            elif activity.kind == copy and activity.copy_kind == _COPY_DEVICE_TO_DEVICE:
                self._records.append(Span("copy", *times, activity.bytes, graph))


def summarize(steps: Sequence[Sequence[Span]]) -> KernelTimes:
    """Times of GPU work, as a mean over steps.

    Args:
        steps: The work of each step, at least one piece in all.
    """
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


def _cupti() -> Any:
    try:
        from cupti import cupti
    except ImportError as error:
        raise RoofprobeError(
            f"kernel times need the package cupti-python, which cannot be imported ({error})"
        ) from None
    return cupti
