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
    """Traces kernels, copies and fills between ``start`` and ``stop``.

    Args:
        synchronize: Waits until the device has finished.
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._records: list[Span] = []  # in CUPTI's ticks
        self._running = False
        self._clock = (0, 0)  # CUPTI's ticks and nanoseconds while tracing

    def start(self) -> None:
        """Switches tracing on.

        Raises:
            RoofprobeError: cupti-python is missing or CUPTI refuses.
        """
        cupti = _cupti()
        self._synchronize()
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
        """Switches tracing off and takes in every record. Safe to call twice."""
        if not self._running:
            return
        self._running = False
        cupti = _cupti()
        self._synchronize()
        ticks, clock = self._clock
        self._clock = cupti.get_timestamp() - ticks, time.perf_counter_ns() - clock
        cupti.activity_flush_all(1)
        for kind in _kinds(cupti):
            cupti.activity_disable(kind)

    def result(self, steps: int) -> KernelTimes:
        """What was traced, a step.

        Args:
            steps: Steps that ran between ``start`` and ``stop``.

        Raises:
            RoofprobeError: nothing was recorded.
        """
        if not self._records:
            raise RoofprobeError("CUPTI recorded no work; does another tool hold its records?")
        unit = seconds_per_tick(*self._clock)
        return summarize(
            [replace(span, start=span.start * unit, end=span.end * unit) for span in self._records],
            steps,
        )

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


def summarize(work: Sequence[Span], steps: int) -> KernelTimes:
    """Times of GPU work, as a mean over steps.

    Args:
        work: All work of ``steps`` steps, at least one piece.
        steps: Number of steps.
    """
    ordered = sorted(work, key=lambda span: span.start)
    busy, reached = 0.0, ordered[0].start
    for span in ordered:
        busy += max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    kernels = [span for span in work if span.kind == "kernel"]
    return KernelTimes(
        steps=steps,
        launches=len(kernels) / steps,
        graph_launches=sum(span.from_graph for span in kernels) / steps,
        sum=sum(span.end - span.start for span in kernels) / steps,
        union=busy / steps,
        span=(reached - ordered[0].start) / steps,
        copy_byte=sum(span.byte for span in work if span.kind == "copy") / steps,
        fill_byte=sum(span.byte for span in work if span.kind == "fill") / steps,
        copies=sum(span.kind != "kernel" for span in work) / steps,
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
