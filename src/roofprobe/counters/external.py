"""Counting from outside: another profiler reads the counters, this process marks the step.

``roofprobe verify`` and ``kernels`` start the user's program under ncu with ``ENVIRONMENT`` set.
The program's own ``measure`` then attaches nothing: it warms up and times as ever, brackets one
step with the CUDA profiler's start and stop, and ends the program there. Going on would only
repeat the program for every pass of ncu's, and let it write over what it wrote when it was
measured.
"""

import os
from collections.abc import Callable, Sequence
from typing import Final

from roofprobe.counters import Plan, RoundCounters

ENVIRONMENT: Final = "ROOFPROBE_COUNTED_BY"
SOURCE: Final = "ncu"


def requested() -> bool:
    """True in a program that roofprobe itself has started under another profiler."""
    return os.environ.get(ENVIRONMENT) == SOURCE


class ExternalBackend:
    """Marks one step for a profiler around this process (see ``CounterBackend``).

    Args:
        synchronize: Waits until the device has finished.
    """

    source = SOURCE
    chip = None

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._open = False

    def prepare(self, metrics: Sequence[str]) -> Plan:
        """One pass: the other profiler repeats the program where it needs more."""
        return Plan((), 1)

    def open(self) -> None:
        """Nothing to attach."""

    def begin_pass(self) -> None:
        """The other profiler's region begins."""
        import torch

        self._synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        self._open = True

    def end_pass(self) -> bool:
        """The region ends, and with it the program.

        Raises:
            SystemExit: always, with status 0.
        """
        self.close()
        raise SystemExit(0)

    def collect(self) -> RoundCounters:
        """Nothing was counted in this process."""
        raise AssertionError("end_pass() ends the program")

    def close(self) -> None:
        """Ends the region where it is open."""
        if self._open:
            import torch

            self._synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
            self._open = False
