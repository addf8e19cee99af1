"""Counting from outside: another profiler reads the counters, this process marks the step.

``roofprobe verify`` and ``kernels`` start the user's program under ncu with ``ENVIRONMENT`` set.
The program's own ``measure`` then attaches nothing: it warms up and times as ever, brackets one
step with the CUDA profiler's start and stop, and ends the program there. Going on would only
repeat the program for every pass of ncu's, and let it write over what it wrote when it was
measured.

A program may measure several things, and the run file is of one of them: ``NAME`` says which.
Measurements of other names before it are plain steps.

Of several ranks the run file is of one as well: ``RANK`` says which, and the others do the same
steps unmarked. ncu profiles one process of a machine at a time, so that a range of each, with a
collective in both, waits for the other one for ever (measured, two H200).
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from roofprobe.counters import Plan, RoundCounters
from roofprobe.errors import CountersBusyError
from roofprobe.record import Measurement

ENVIRONMENT: Final = "ROOFPROBE_COUNTED_BY"
NAME: Final = "ROOFPROBE_COUNTED_NAME"
RANK: Final = "ROOFPROBE_COUNTED_RANK"
SOURCE: Final = "ncu"

_PASSED_BY: Final = "roofprobe: passed by without counters, as the run file is of another: "


def requested() -> bool:
    """True in a program that roofprobe itself has started under another profiler."""
    return os.environ.get(ENVIRONMENT) == SOURCE


@contextmanager
def only(record: Measurement) -> Iterator[None]:
    """Programs that are started in here mark the measurement that a record is of, and no other."""
    rank = record.workload.get("rank")
    wanted = {NAME: _spelled(record.name), RANK: str(rank if isinstance(rank, int) else 0)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def passed_by(output: str) -> list[str]:
    """Names of measurements that a program passed by, from what it printed."""
    found = (line.partition(_PASSED_BY) for line in output.splitlines())
    return list(dict.fromkeys(name for _, mark, name in found if mark))


def _spelled(name: str) -> str:
    """A name in ASCII: an environment holds no NUL, and any locale reads it back."""
    # Halves of surrogate pairs as a record spells them.
    return name.encode("utf-8", "backslashreplace").decode().encode("unicode_escape").decode()


class ExternalBackend:
    """Marks one step for a profiler around this process (see ``CounterBackend``).

    Args:
        synchronize: Waits until the device has finished.
        name: Of the measurement; None for one that is marked whatever its name.
        rank: Of this process; None where it is the only one.
    """

    source = SOURCE
    chip = None

    def __init__(
        self,
        synchronize: Callable[[], None],
        name: str | None = None,
        rank: int | None = None,
    ) -> None:
        self._synchronize = synchronize
        self._name = name
        self._marks = rank is None or str(rank) == os.environ.get(RANK, "0")
        self._open = False

    def prepare(self, metrics: Sequence[str]) -> Plan:
        """One pass: the other profiler repeats the program where it needs more.

        Raises:
            CountersBusyError: the other profiler waits for a measurement of another name. The steps
                then go on, as beside any profiler that has the counters.
        """
        wanted = os.environ.get(NAME)
        if self._name is not None and wanted not in (None, _spelled(self._name)):
            print(_PASSED_BY + _spelled(self._name), file=sys.stderr, flush=True)
            raise CountersBusyError(
                f"this program runs under {SOURCE} for its measurement {wanted!r}, and "
                f"{self._name!r} is another one"
            )
        return Plan((), 1)

    def open(self) -> None:
        """Nothing to attach."""

    def begin_pass(self) -> None:
        """The other profiler's region begins, where this rank is the one that it counts."""
        if not self._marks:
            return
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
