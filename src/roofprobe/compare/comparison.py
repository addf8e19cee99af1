"""Two run records side by side.

What may be compared:
    Records whose counters mean different things (a model's against the hardware's) are refused.
    Other work (model, batch size, ranks) or another GPU is labelled: the figures stand, but why
    they differ cannot be read from them, so no cause is named, and gates refuse it. Where a batch
    size is not known, a note says so; FLOP that differ by more than a few percent are then taken
    for other work, and gates still hold. All other settings (precision, versions) are labelled as
    what may have caused the change.
"""

from dataclasses import dataclass

from roofprobe.compare.change import Change
from roofprobe.compare.findings import findings
from roofprobe.compare.quantities import UNASKED, changes, known, metric_change
from roofprobe.compare.setups import Difference, differences, notes
from roofprobe.derive import Figure
from roofprobe.errors import UsageError
from roofprobe.record import Measurement


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two records side by side.

    Attributes:
        before: The first record.
        after: The second.
        changes: Every quantity that either of them has, in a fixed order.
        differences: In what their set-ups differ.
        notes: What limits either record.
        findings: What changed and what that means, in sentences.
    """

    before: Measurement
    after: Measurement
    changes: tuple[Change, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    findings: tuple[str, ...]

    def change(self, quantity: str) -> Change:
        """The change of a quantity, a CUPTI metric among them.

        Raises:
            UsageError: neither record knows a metric of that name.
        """
        for change in self.changes:
            if change.quantity == quantity:
                return change
        if known(quantity):
            none = Figure(None, self.before.source, reason=UNASKED)
            return Change(quantity, "flop", none, none, 0.0)
        return metric_change(self.before, self.after, quantity)


def compare(before: Measurement, after: Measurement, *, anyway: bool = False) -> Comparison:
    """Puts two records side by side.

    Args:
        before: The first record.
        after: The second.
        anyway: Also where their counters mean different things.

    Raises:
        UsageError: they do, and ``anyway`` is False.
    """
    found = tuple(differences(before, after))
    meaning = [str(difference) for difference in found if difference.effect == "meaning"]
    if meaning and not anyway:
        raise UsageError(
            f"the counters of the two runs mean different things ({', '.join(meaning)}): measure "
            "both the same way, or look at them side by side with --anyway"
        )
    changed = tuple(changes(before, after))
    like = all(difference.effect == "setting" for difference in found)
    return Comparison(
        before=before,
        after=after,
        changes=changed,
        differences=found,
        notes=tuple(notes(before, after)),
        findings=tuple(findings({c.quantity: c for c in changed}, before, after, like=like)),
    )
