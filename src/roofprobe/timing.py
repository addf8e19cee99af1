"""Durations of unprofiled steps.

A step is timed from its own beginning to its own end, so waiting for data between steps does not
count. On a GPU the two are CUDA events in the stream: steps follow each other without a
synchronisation, as in plain training, and time that the GPU spends idle inside a step counts.
"""

import time
from typing import Final, Protocol

import torch

from roofprobe.record import Timing


class StepTimer(Protocol):
    """Times steps, one after the other."""

    def begin(self) -> None:
        """The step begins."""
        ...

    def end(self) -> None:
        """The step has been issued."""
        ...

    def result(self) -> Timing:
        """All durations so far; waits for the device."""
        ...


class CudaStepTimer:
    """Times steps with a pair of CUDA events each, on the current stream of the device."""

    source: Final = "cuda_events"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def begin(self) -> None:
        """Records the event in front of the step."""
        self._events.append((_event(), _event()))
        self._events[-1][0].record(torch.cuda.current_stream(self._device))

    def end(self) -> None:
        """Records the event behind the step."""
        self._events[-1][1].record(torch.cuda.current_stream(self._device))

    def result(self) -> Timing:
        """Durations in seconds (CUDA's resolution is about half a microsecond)."""
        torch.cuda.synchronize(self._device)
        return Timing(tuple(a.elapsed_time(b) / 1e3 for a, b in self._events), self.source)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class WallStepTimer:
    """Times steps with the process' monotonic clock, for a device that is synchronous."""

    source: Final = "perf_counter"

    def __init__(self) -> None:
        self._begin = 0.0
        self._durations: list[float] = []

    def begin(self) -> None:
        """Reads the clock."""
        self._begin = time.perf_counter()

    def end(self) -> None:
        """Reads the clock again."""
        self._durations.append(time.perf_counter() - self._begin)

    def result(self) -> Timing:
        """Durations in seconds."""
        return Timing(tuple(self._durations), self.source)


def implausible(timing: Timing, wall: float) -> str | None:
    """Why step times cannot be believed; None where they can.

    Args:
        timing: Of steps that ran one after the other.
        wall: Seconds of wall clock in which all of them ran.
    """
    for step in timing.step:
        if not step > 0:
            return f"a step was timed at {step:g} s, so that clock does not run forward"
    # The two clocks may differ a little in pace.
    if not sum(timing.step) <= 1.01 * wall:
        return (
            f"{len(timing.step)} steps were timed at {sum(timing.step):g} s in all, within "
            f"{wall:.3g} s of wall clock, so that clock jumps"
        )
    return None


def step_timer(device: torch.device) -> StepTimer:
    """The timer that fits a device."""
    return CudaStepTimer(device) if device.type == "cuda" else WallStepTimer()
