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
from dataclasses import dataclass
from typing import Any, Final

from roofprobe.errors import RoofprobeError
from roofprobe.record import KernelTimes

_BUFFER_BYTE: Final = 8 * 2**20
_COPY_DEVICE_TO_DEVICE: Final = 8  # CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, cupti_activity.h
_CLOCK_WINDOW: Final = 0.02  # s; the unit is found to about 0.01% in it


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel: start and end in seconds of an arbitrary origin, and whether a graph ran it."""

    start: float
    end: float
    from_graph: bool


class KernelTracer:
    """Traces kernels, copies and fills between ``start`` and ``stop``.

    Args:
        synchronize: Waits until the device has finished.
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._records: list[Any] = []
        self._running = False

    def start(self) -> None:
        """Switches tracing on.

        Raises:
            RoofprobeError: cupti-python is missing or CUPTI refuses.
        """
        cupti = _cupti()
        self._synchronize()
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
        cupti.activity_flush_all(1)
        for kind in _kinds(cupti):
            cupti.activity_disable(kind)

    def result(self, steps: int) -> KernelTimes:
        """What was traced, a step.

        Args:
            steps: Steps that ran between ``start`` and ``stop``.

        Raises:
            RoofprobeError: no kernel was recorded.
        """
        cupti = _cupti()
        unit = _seconds_per_tick(cupti)
        kernels, copy_byte, fill_byte = [], 0, 0
        for record in self._records:
            if record[0] == "kernel":
                kernels.append(Span(record[1] * unit, record[2] * unit, record[3]))
            elif record[0] == "copy":
                copy_byte += record[1]
            else:
                fill_byte += record[1]
        if not kernels:
            raise RoofprobeError("CUPTI recorded no kernel; does another tool hold its records?")
        return summarize(kernels, steps, copy_byte, fill_byte)

    def _keep(self, activities: Sequence[Any]) -> None:
        # Records die with CUPTI's buffer, so what is needed is copied out here.
        cupti = _cupti()
        kernel, copy, fill = _kinds(cupti)
        for activity in activities:
            if activity.kind == kernel:
                span = (activity.start, activity.end, activity.graph_id != 0)
                self._records.append(("kernel", *span))
            elif activity.kind == copy and activity.copy_kind == _COPY_DEVICE_TO_DEVICE:
                self._records.append(("copy", activity.bytes))
            elif activity.kind == fill:
                self._records.append(("fill", activity.bytes))


def summarize(
    kernels: Sequence[Span], steps: int, copy_byte: float, fill_byte: float
) -> KernelTimes:
    """Sum, union and span of kernel times, as a mean over steps.

    Args:
        kernels: Every kernel of ``steps`` steps.
        steps: Number of steps.
        copy_byte: Bytes copied within the device by the driver, all steps.
        fill_byte: Bytes filled by the driver, all steps.
    """
    ordered = sorted(kernels, key=lambda kernel: kernel.start)
    union, reached = 0.0, ordered[0].start
    for kernel in ordered:
        union += max(0.0, kernel.end - max(kernel.start, reached))
        reached = max(reached, kernel.end)
    return KernelTimes(
        steps=steps,
        launches=len(kernels) / steps,
        graph_launches=sum(kernel.from_graph for kernel in kernels) / steps,
        sum=sum(kernel.end - kernel.start for kernel in kernels) / steps,
        union=union / steps,
        span=(reached - ordered[0].start) / steps,
        copy_byte=copy_byte / steps,
        fill_byte=fill_byte / steps,
    )


def _seconds_per_tick(cupti: Any) -> float:
    """Unit of CUPTI's time stamps now: nanoseconds, unless somebody installed another clock."""
    ticks, clock = cupti.get_timestamp(), time.perf_counter_ns()
    time.sleep(_CLOCK_WINDOW)
    ticks, clock = cupti.get_timestamp() - ticks, time.perf_counter_ns() - clock
    per_nanosecond = ticks / clock
    # The clock reading itself is good to about 0.1%; nanoseconds are taken as exact.
    return 1e-9 if abs(per_nanosecond - 1) < 1e-2 else 1e-9 / per_nanosecond


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
