"""Limits on changes, for CI: ``dram_bytes>+2%,flop>+0.5%``. Counters repeat, times do not."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from roofprobe.compare.change import Change, signed
from roofprobe.compare.comparison import Comparison
from roofprobe.compare.quantities import IDLE, PATHS, QUANTITIES, known
from roofprobe.errors import UsageError
from roofprobe.units import percent

_GATE: Final = re.compile(r"([^<>]*)([<>])([^<>]*)")

_THRESHOLD: Final = re.compile(r"([+-][0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%")

_METRIC: Final = re.compile(r"[a-z0-9_]+__[a-z0-9_]+(?:\.[a-z0-9_]+)+")


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit on the change of one quantity.

    Attributes:
        text: As the user wrote it.
        quantity: What it stands on.
        above: True trips on a change above the threshold, False below it.
        threshold: A fraction of the value before.
    """

    text: str
    quantity: str
    above: bool
    threshold: Fraction


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a gate: ``message`` names it, both values, and the change."""

    gate: Gate
    change: Change
    tripped: bool
    message: str


def parse_gates(text: str) -> tuple[Gate, ...]:
    """Reads ``quantity op threshold`` gates that commas separate: ``dram_bytes>+2%,flop<-1%``.

    Raises:
        UsageError: the text is no list of gates; the message says what a gate looks like.
    """
    return tuple(_gate(part.strip()) for part in text.split(","))


def check(
    comparison: Comparison, gates: Sequence[Gate], *, anyway: bool = False
) -> tuple[Outcome, ...]:
    """Holds gates against a comparison. A gate on a quantity without a value trips.

    Args:
        comparison: The two records.
        gates: The limits.
        anyway: Also where the records are of different work or GPUs.

    Raises:
        UsageError: they are, and ``anyway`` is False; or a metric that neither record knows.
    """
    other = [str(found) for found in comparison.differences if found.effect == "work"]
    if gates and other and not anyway:
        raise UsageError(
            f"a gate between runs of different work or devices says nothing ({', '.join(other)}): "
            "measure the same step on the same GPU, or gate all the same with --anyway"
        )
    return tuple(_outcome(gate, comparison.change(gate.quantity)) for gate in gates)


def _gate(text: str) -> Gate:
    asked = f"--fail-on {text[:80]!r}"
    found = _GATE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{asked}: a gate is a quantity, > or <, and a signed percentage, such as "
            "dram_bytes>+2%; several are separated by commas"
        )
    quantity, sign, limit = (part.strip() for part in found.groups())
    if quantity == IDLE:
        raise UsageError(
            f"{asked}: {IDLE} is a share of the step, and of the difference of two times a "
            "percentage says little: gate busy_time or step_time instead"
        )
    if not known(quantity) and _METRIC.fullmatch(quantity) is None:
        raise UsageError(
            f"{asked}: there is no quantity {quantity[:80]!r}; there are {', '.join(QUANTITIES)}, "
            f"flop.PATH with one of {', '.join(PATHS)}, and CUPTI metric names"
        )
    threshold = _THRESHOLD.fullmatch(limit)
    if threshold is None:
        raise UsageError(
            f"{asked}: the threshold must be a percentage of the value before, with its sign, such "
            "as +2% or -0.5%; absolute values are not taken"
        )
    fraction = Fraction(threshold[1]) / 100
    if sign == "<" and fraction <= -1:
        raise UsageError(f"{asked}: nothing falls by more than 100%, so this gate can never trip")
    return Gate(text, quantity, sign == ">", fraction)


def _outcome(gate: Gate, change: Change) -> Outcome:
    values = f"before {change.shown(change.before)}, after {change.shown(change.after)}"
    if change.missing is not None:
        return Outcome(gate, change, True, f"{gate.text} trips: {values} ({change.missing})")
    tripped, why = _trips(gate, change)
    message = f"{gate.text} {'trips' if tripped else 'holds'}: {values}, {why}"
    if abs(float(gate.threshold)) < change.noise:
        message += f"; repeats of one step differ by up to {percent(change.noise)}"
    return Outcome(gate, change, tripped, message)


def _trips(gate: Gate, change: Change) -> tuple[bool, str]:
    """Whether, and the change in words. Exact, so that +2% of 100 is 102 and not a hair less."""
    assert change.before.value is not None
    assert change.after.value is not None
    before, after = Fraction(change.before.value), Fraction(change.after.value)
    if before == 0 != after:
        why = "a rise from 0, of which there is no percentage: it trips every > gate"
        return gate.above, why
    moved = (after - before) / abs(before) if before else before
    tripped = moved > gate.threshold if gate.above else moved < gate.threshold
    return tripped, f"change {signed(change.fraction)}"
