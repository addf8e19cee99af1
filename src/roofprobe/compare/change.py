"""One quantity before and after: how much it changed, and whether that exceeds its noise."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from roofprobe.derive import Figure
from roofprobe.units import number, percent, seconds, si

Kind = Literal["flop", "op", "byte", "intensity", "count", "time", "share", "raw"]


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity of both records.

    Attributes:
        quantity: Its name, as gates spell it.
        kind: What it is, which decides its unit and noise.
        before: The figure of the first record; without a value it has a reason.
        after: The figure of the second.
        noise: Largest change that repeats of the same step show, a fraction.
        images: Images of a step, before and after, where they differ and the quantity grows
            with them.
    """

    quantity: str
    kind: Kind
    before: Figure
    after: Figure
    noise: float
    images: tuple[int, int] | None = None

    @property
    def fraction(self) -> float | None:
        """(after - before) / before; infinite for a rise from 0, None where a value is missing."""
        return relative(self.before.value, self.after.value)

    @property
    def factor(self) -> float | None:
        """After / before, of two values above 0; None where there are none."""
        before, after = self.before.value, self.after.value
        return after / before if before and after else None

    @property
    def per_image(self) -> float | None:
        """The same of the quantity divided by the images of a step; None where they agree."""
        before, after = self.before.value, self.after.value
        if self.images is None or before is None or after is None:
            return None
        return relative(before / self.images[0], after / self.images[1])

    @property
    def notable(self) -> bool:
        """True for a change beyond the noise; of a share, in points."""
        if self.kind == "share":
            before, after = self.before.value, self.after.value
            return None not in (before, after) and abs(self.difference) > self.noise
        return self.fraction is not None and abs(self.fraction) > self.noise

    @property
    def difference(self) -> float:
        """After minus before, of two known values."""
        assert self.before.value is not None
        assert self.after.value is not None
        return self.after.value - self.before.value

    @property
    def missing(self) -> str | None:
        """Which side has no value and why; None when both have one."""
        sides = (("before", self.before), ("after", self.after))
        why = [f"{side}: {figure.reason}" for side, figure in sides if figure.value is None]
        return "; ".join(why) or None

    def shown(self, figure: Figure) -> str:
        """One side's value with its unit."""
        value, bound = figure.value, "<= " if figure.upper_bound else ""
        if value is None:
            return "n/a"
        if self.kind == "share":
            return percent(value)
        if self.kind == "time":
            return seconds(value)
        if self.kind in ("count", "raw"):
            return number(value, 10)
        unit = {"flop": "FLOP", "op": "op", "byte": "B", "intensity": "FLOP/B"}[self.kind]
        return bound + (f"{number(value)} {unit}" if self.kind == "intensity" else si(value, unit))


def signed(fraction: float | None) -> str:
    """A change as a signed percentage: ``+11.9%``; ``from 0`` where there is none."""
    if fraction is None:
        return "n/a"
    if math.isinf(fraction):
        return "from 0"
    if fraction == 0:
        return "0%"
    return ("+" if fraction > 0 else "-") + percent(abs(fraction))


def relative(before: float | None, after: float | None) -> float | None:
    """(after - before) / before; infinite for a rise from 0, None where a value is missing."""
    if before is None or after is None:
        return None
    if before == 0:
        return 0.0 if after == 0 else math.inf
    return (after - before) / before


def _percentage(fraction: float | None) -> float | None:
    return fraction if fraction is not None and math.isfinite(fraction) else None


def plain(change: Change) -> dict[str, Any]:
    """A change in JSON's types; null for a fraction where a value is missing or before is 0."""
    return {
        "quantity": change.quantity,
        "before": change.before.value,
        "after": change.after.value,
        "change": _percentage(change.fraction),
        "change_per_image": _percentage(change.per_image),
        "noise": change.noise,
        "notable": change.notable,
        "source": [change.before.source, change.after.source],
        "missing": change.missing,
    }
