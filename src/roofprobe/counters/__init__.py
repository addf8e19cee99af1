"""Where counts come from. Each backend is one module; none but ``cupti`` imports ``_native``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard


@dataclass(frozen=True, slots=True)
class Plan:
    """What a backend will count, and its price.

    Attributes:
        metrics: Metrics that will be counted.
        passes: Steps that one round takes; the least number where ``window`` is above 0.
        unavailable: Metrics that were asked for and cannot be counted here, with the reason.
        window: Seconds that the steps of a round fill at least; ``end_pass`` says when.
        notes: What limits every figure of this backend here, for the record's notes.
        retry: Further passes that the first round takes where a step does what its first passes
            took for absent; 0 where nothing is.
    """

    metrics: tuple[str, ...]
    passes: int
    unavailable: Mapping[str, str] = field(default_factory=dict)
    window: float = 0.0
    notes: Mapping[str, str] = field(default_factory=dict)
    retry: int = 0

    def expected(self, step: float | None) -> int:
        """Steps that one round probably takes, where a step takes so many seconds."""
        return max(self.passes, math.ceil(self.window / step) if step else 0)


@dataclass(frozen=True, slots=True)
class RoundCounters:
    """Counts of one complete round.

    Attributes:
        values: Metric name -> value in the metric's own unit; None where none could be formed.
        reasons: Why, for each None.
        ranges_dropped: Ranges whose counts the backend lost; above 0, no value is kept.
        image: The sealed counter-data image, where the backend has one.
        warnings: What a person should know about these counts.
    """

    values: Mapping[str, float | None]
    reasons: Mapping[str, str]
    ranges_dropped: int = 0
    image: bytes | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RegionCounters:
    """Counts of one complete round, by region.

    Attributes:
        values: Region -> metric name -> value; regions that were never entered are absent.
        reasons: Metric name -> why some region has no value of it.
        ranges_dropped: As in ``RoundCounters``.
        image: As in ``RoundCounters``.
    """

    values: Mapping[int, Mapping[str, float | None]]
    reasons: Mapping[str, str] = field(default_factory=dict)
    ranges_dropped: int = 0
    image: bytes | None = None


class CounterBackend(Protocol):
    """Counts what happens between ``begin_pass`` and ``end_pass``, over as many passes as needed.

    Order: ``prepare`` once; then ``open``; for each round, ``begin_pass``/``end_pass`` until
    ``end_pass`` answers True, then ``collect``; at last ``close``, on every way out.
    """

    @property
    def source(self) -> str:
        """The label of every figure: ``cupti``, ``analytic``, ``recorded``, ..."""
        ...

    @property
    def chip(self) -> str | None:
        """CUPTI's chip name, which decides the metrics of a set; None where there is no chip."""
        ...

    def prepare(self, metrics: Sequence[str]) -> Plan:
        """Finds out which metrics can be counted and in how many passes; counts nothing yet."""
        ...

    def open(self) -> None:
        """Attaches to the device."""
        ...

    def begin_pass(self) -> None:
        """Starts counting."""
        ...

    def end_pass(self) -> bool:
        """Stops counting; True when every pass of this round has been submitted."""
        ...

    def collect(self) -> RoundCounters:
        """Values of the round just completed; the next ``begin_pass`` starts another."""
        ...

    def close(self) -> None:
        """Detaches. Safe to call twice, and after any failure."""
        ...


class RegionBackend(CounterBackend, Protocol):
    """A backend that can also count by region, which is a number.

    ``open_regions``, ``begin_regions`` and ``collect_regions`` take the places of ``open``,
    ``begin_pass`` and ``collect``. At any moment of a pass exactly one region is open, so that the
    regions' counts add up to the step's.
    """

    def open_regions(self, switches: int) -> None:
        """Attaches to the device for passes with so many switches at most."""
        ...

    def begin_regions(self, region: int) -> None:
        """Starts counting, in a region."""
        ...

    def switch(self, region: int) -> None:
        """What is issued from here on belongs to another region; callable from any thread."""
        ...

    def collect_regions(self) -> RegionCounters:
        """Values of the round just completed; the next ``begin_regions`` starts another."""
        ...


class RetryBackend(CounterBackend, Protocol):
    """A backend whose first round may start over with more metrics (``Plan.retry``)."""

    def before_retry(self) -> RoundCounters | None:
        """What the passes before the retry counted, for a loop that ended during it; else None."""
        ...


def retries(backend: CounterBackend) -> TypeGuard[RetryBackend]:
    """True for a backend whose first round may start over."""
    return callable(getattr(type(backend), "before_retry", None))


def counts_regions(backend: CounterBackend) -> TypeGuard[RegionBackend]:
    """True for a backend that can also count by region."""
    # Not by isinstance: that would ask for the chip, which takes CUPTI half a second to tell.
    return callable(getattr(type(backend), "switch", None))
