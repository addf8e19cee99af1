"""Times one way of running into a roof, and finds the best of several."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import torch

from roofprobe.ceilings.roofs import UnavailableError
from roofprobe.environment import sampled_clocks
from roofprobe.errors import RoofprobeError
from roofprobe.timing import step_timer

# What a call may raise where the device, the library or the memory does not allow it. A device
# fault is a RuntimeError as well; every later call then says so.
FAILURES: Final = (RuntimeError, ValueError, TypeError, AttributeError, RoofprobeError)

# The figure: this many bursts, each so long (s) and after so long a rest (s). Under full load an
# H200 comes down from 1.98 to 1.5 GHz within tens of milliseconds, because of its power limit; a
# training step, whose kernels take turns, keeps the high clock. So a roof for it is the burst's:
# single GEMMs were seen 16% above a rate that was taken back to back.
_BURSTS: Final = 7
_BURST: Final = 0.01
_REST: Final = 0.1
# What lasts: the rate over the second part of so long a load (s).
_HEATING: Final = 0.3
_SUSTAINED: Final = 0.2
_FINALISTS: Final = 2  # a look is good to 1%
# s. A way whose one call would take longer is not tried: smaller ones reach the rate as well.
_LONGEST_CALL: Final = 0.3


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running into a roof.

    Attributes:
        method: The exact call, its sizes and layouts.
        work: FLOP or bytes of one call.
        prepare: Allocates the operands and returns the call; may fail.
    """

    method: str
    work: float
    prepare: Callable[[], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A rate.

    Attributes:
        value: Median of the bursts, FLOP/s or byte/s.
        spread: (longest - shortest) / median of the bursts, a fraction.
        method: The way, with bursts and calls.
        clock: Median SM clock around the bursts, Hz; None where not readable.
        sustained: The rate once the load has lasted.
    """

    value: float
    spread: float
    method: str
    clock: float | None
    sustained: float | None = None


def best_of(ways: Iterable[Way], device: torch.device) -> Reading:
    """The highest rate that any way reaches.

    Every way is looked at briefly, the best few are measured at length.

    Args:
        ways: In order of growing work, where that differs.
        device: Where they run.

    Raises:
        UnavailableError: no way worked; with the first one's reason.
    """
    looks: list[tuple[float, Way]] = []
    reasons: list[str] = []
    for way in ways:
        fastest = max((rate for rate, _ in looks), default=0.0)
        if fastest and way.work / fastest > _LONGEST_CALL:
            continue
        try:
            looks.append((look(way, device), way))
        except FAILURES as error:
            reasons.append(reason_of(error))
    readings = []
    for rate, way in sorted(looks, key=lambda item: -item[0])[:_FINALISTS]:
        try:
            readings.append((read(way, rate, device), way))
        except FAILURES as error:
            reasons.append(reason_of(error))
    if not readings:
        raise UnavailableError(reasons[0] if reasons else "no size of it fits the free memory")
    best, way = max(readings, key=lambda reading: reading[0].value)
    return replace(best, sustained=sustained(way, best.value, device))


def look(way: Way, device: torch.device) -> float:
    """A quick estimate of a way's rate, work/s: one burst, like those that count."""
    call = way.prepare()
    call()  # the library chooses its kernel, the kernel is loaded
    once = max(_timed(call, 1, 1, device)[0], 1e-6)  # events resolve half a microsecond
    time.sleep(_REST)
    return way.work / _timed(call, max(1, round(_BURST / once)), 1, device)[0]


def read(way: Way, rate: float, device: torch.device) -> Reading:
    """A way's rate in short bursts on a rested GPU.

    Args:
        way: What to run.
        rate: About what it reaches, work/s.
        device: Where it runs.
    """
    call = way.prepare()
    calls = max(1, round(_BURST * rate / way.work))
    _timed(call, 1, 1, device)  # the library has chosen its kernel, caches are where they stay
    durations = []
    with sampled_clocks(device) as clocks:
        for _ in range(_BURSTS):
            time.sleep(_REST)
            durations.append(_timed(call, calls, 1, device)[0])
    middle = median(durations)
    return Reading(
        value=way.work / middle,
        spread=(max(durations) - min(durations)) / middle,
        method=f"{way.method}; {_BURSTS} bursts of {calls} call{'s' if calls > 1 else ''}",
        clock=clocks[0].sm[1] if clocks else None,
    )


def sustained(way: Way, rate: float, device: torch.device) -> float:
    """A way's rate once the load has lasted for a while, work/s.

    Args:
        way: What to run.
        rate: About what it reaches, work/s.
        device: Where it runs.
    """
    call = way.prepare()
    _timed(call, max(1, round(_HEATING * rate / way.work)), 1, device)
    calls = max(1, round(_SUSTAINED * rate / way.work))
    return way.work / _timed(call, calls, 1, device)[0]


def reason_of(error: BaseException) -> str:
    """The first line of an error, for a reader who wants to know why a roof is missing."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _timed(
    call: Callable[[], object], calls: int, repeats: int, device: torch.device
) -> tuple[float, ...]:
    """Seconds of one call, for each repeat of so many calls back to back."""
    timer = step_timer(device)
    for _ in range(repeats):
        timer.begin()
        for _ in range(calls):
            call()
        timer.end()
    return tuple(duration / calls for duration in timer.result().step)
