"""In what the set-ups of two records differ, and what follows for a comparison."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from roofprobe.compare.quantities import counted
from roofprobe.record import Measurement

Effect = Literal["meaning", "work", "setting"]

_WORK: Final = ("arch", "batch_size", "world_size")

# What counts the same: a played-back image holds CUPTI's own counts.
_MEANING: Final = {"recorded": "cupti"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact of the set-up in which the records differ.

    Attributes:
        name: Of the fact.
        before: Its value in the first record.
        after: Its value in the second.
        effect: ``meaning`` where counters mean different things, ``work`` where another step or
            device was measured, ``setting`` for everything that may have caused the change.
    """

    name: str
    before: object
    after: object
    effect: Effect

    def __str__(self) -> str:
        return f"{self.name} {self.before} -> {self.after}"


def differences(before: Measurement, after: Measurement) -> Iterator[Difference]:
    """Facts of machine, software and workload that are not the same."""
    meaning = [_MEANING.get(record.source, record.source) for record in (before, after)]
    if meaning[0] != meaning[1]:
        yield Difference("source", before.source, after.source, "meaning")
    # A model's figures do not depend on the machine that computes them.
    device: Effect = "setting" if meaning == ["analytic", "analytic"] else "work"
    first, second = before.environment, after.environment
    facts: list[tuple[str, object, object, Effect]] = [
        ("device", first.device_name, second.device_name, device),
        ("chip", first.chip, second.chip, device),
        ("SMs", first.sm_count, second.sm_count, device),
        ("name", before.name, after.name, "setting"),
    ]
    for key in dict.fromkeys([*before.workload, *after.workload]):
        effect: Effect = "work" if key in _WORK else "setting"
        facts.append((key, before.workload.get(key), after.workload.get(key), effect))
    facts.append(("autocast", seen_autocast(before), seen_autocast(after), "setting"))
    for key in dict.fromkeys([*first.precision, *second.precision]):
        if key != "autocast":
            facts.append((key, first.precision.get(key), second.precision.get(key), "setting"))
    for key in ("driver", "cuda_driver", "cupti", "torch", "cuda_runtime", "cudnn", "roofprobe"):
        facts.append((key, getattr(first, key), getattr(second, key), "setting"))
    for name, old, new, effect in facts:
        if old != new:
            # What only one record says is no evidence of other work.
            unknown = effect == "work" and None in (old, new)
            yield Difference(name, old, new, "setting" if unknown else effect)


def seen_autocast(record: Measurement) -> bool | None:
    """True where autocast was on; None where it is not known, which is all that False says.

    Records once held False for any step that switched it on and off again.
    """
    return True if record.environment.precision.get("autocast") else None


def fusion_unseen(before: Measurement, after: Measurement) -> bool:
    """True where one run was compiled otherwise than the other, and a model counted both."""
    compiled = [record.workload.get("compile") or None for record in (before, after)]
    return before.source == after.source == "analytic" and compiled[0] != compiled[1]


def without_batch_size(before: Measurement, after: Measurement) -> tuple[str, ...]:
    """Which of ``before`` and ``after`` do not say their batch size."""
    sides = (("before", before), ("after", after))
    return tuple(side for side, record in sides if record.workload.get("batch_size") is None)


def notes(before: Measurement, after: Measurement) -> Iterator[str]:
    """What limits either record, and what is not known of both."""
    silent = without_batch_size(before, after)
    if silent:
        who = "neither run says its" if len(silent) > 1 else f"{silent[0]} does not say its"
        yield (
            f"{who} batch size, so it is not known whether both did the same amount of work: pass "
            "workload={'batch_size': ...} to measure()"
        )
    for side, record in (("before", before), ("after", after)):
        if not record.complete:
            yield (
                f"{side} is incomplete: {record.steps_missing} steps were missing, "
                f"{len(record.rounds)} whole rounds are compared"
            )
        if record.coverage is not None and not record.coverage.trusted:
            cause = record.coverage.cause or "coverage is too low"
            if record.eager is None:
                yield f"{side} has no SASS figures: {cause}"
            else:
                yield f"{side} has SASS figures of an eager run ({record.eager.name}): {cause}"
    only = [
        (side, sorted(counted(record) - counted(other)))
        for side, record, other in (("before", before, after), ("after", after, before))
    ]
    for side, names in only:
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"counted in {side} only: {', '.join(names[:3])}{more}"
