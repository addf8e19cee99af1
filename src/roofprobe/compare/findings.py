"""What changed and what that means, in sentences.

Rules over the changes of two records. Only what exceeds its noise is stated; a cause is named where
the change is telling and the work is the same.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from roofprobe import metrics
from roofprobe.compare.change import Change
from roofprobe.compare.quantities import BYTES, IDLE
from roofprobe.compare.setups import fusion_unseen, seen_autocast, without_batch_size
from roofprobe.judge import Verdict, verdict
from roofprobe.record import Measurement
from roofprobe.roofline import path_name
from roofprobe.units import number, percent

# Below this a change is stated, and no cause is named. A choice.
_TELLING: Final = 0.02

# FLOP that differ by more are those of another amount of work, unless the batch sizes say that
# they are not. A choice: algorithms for the same result differ by as much, too.
_MORE_WORK: Final = 0.03

# Settings of PyTorch that decide in which precision a step computes.
_WIDTHS: Final = (
    "autocast_dtype",
    "default_dtype",
    "cudnn_allow_tf32",
    "cudnn_conv_fp32_precision",
    "cudnn_rnn_fp32_precision",
    "matmul_allow_tf32",
    "float32_matmul_precision",
)

# Share of the total FLOP from which on a path is named. A choice.
_WORTH_NAMING: Final = 0.01


def findings(
    changes: Mapping[str, Change], before: Measurement, after: Measurement, *, like: bool
) -> Iterator[str]:
    """What changed, largest first named, then arithmetic, memory, launches and time.

    Args:
        changes: By quantity.
        before: The first record.
        after: The second.
        like: The same work on the same device, so that causes can be told.
    """
    if not any(change.notable for change in changes.values()):
        known = any(change.fraction is not None for change in changes.values())
        yield "nothing changed beyond noise" if known else "no quantity has a value in both runs"
        yield from _unseen(before, after)
        return
    other = _may_be_other_work(changes["flop"], before, after)
    like = like and not other
    yield from _most(changes)
    yield from _arithmetic(changes, like=like)
    if other:
        yield (
            f"FLOP differ by more than {percent(_MORE_WORK)}, and not both batch sizes are known: "
            "they may differ, so no cause is named"
        )
    yield from _memory(changes, like=like, same_width=_same_width(changes, before, after))
    yield from _launching(changes, before, after, like=like)
    yield from _time(changes, like=like)
    yield from _unseen(before, after)
    yield _bounds(verdict(before), verdict(after))


def _same_width(changes: Mapping[str, Change], before: Measurement, after: Measurement) -> bool:
    """False where elements may have become wider or narrower: bytes then change without passes.

    Autocast that was not seen is not known to be off, and the type of the model itself is in no
    setting. What either makes narrower are matrix products, whose FLOP then are on another path.
    """
    gained, lost = _moves(changes)
    return _widths(before) == _widths(after) and not (gained and lost)


def _widths(record: Measurement) -> tuple[object, ...]:
    precision = record.environment.precision
    return (seen_autocast(record), *map(precision.get, _WIDTHS), record.workload.get("amp"))


def _may_be_other_work(flop: Change, before: Measurement, after: Measurement) -> bool:
    differ = flop.fraction is not None and abs(flop.fraction) > _MORE_WORK
    return differ and bool(without_batch_size(before, after))


def _most(changes: Mapping[str, Change]) -> Iterator[str]:
    names = ("flop", *(BYTES[level] for level in metrics.LEVELS), "launches", "kernel_time")
    moved: dict[str, float] = {}
    for name in (*names, "step_time"):
        change = changes.get(name)
        if change is not None and change.notable and change.factor:
            moved[name] = abs(math.log(change.factor))
    if moved:
        change = changes[max(moved, key=lambda name: moved[name])]
        yield f"changed most: {_label(change.quantity)}, which {_moved(change)} ({_both(change)})"


def _moves(changes: Mapping[str, Change]) -> tuple[list[Change], list[Change]]:
    """FLOP paths that gained work worth naming, and those that lost some."""
    paths = [
        change
        for name, change in changes.items()
        if name.startswith("flop.")
        and change.kind == "flop"
        and change.fraction is not None
        and not (change.before.upper_bound or change.after.upper_bound)
    ]
    whole = max(
        sum(change.before.value or 0.0 for change in paths),
        sum(change.after.value or 0.0 for change in paths),
    )
    named = [
        change
        for change in paths
        if change.notable and abs(change.difference) >= _WORTH_NAMING * whole
    ]
    gained = [change for change in named if change.difference > 0]
    return gained, [change for change in named if change.difference < 0]


def _arithmetic(changes: Mapping[str, Change], *, like: bool) -> Iterator[str]:
    total = changes["flop"]
    gained, lost = _moves(changes)
    named = [*gained, *lost]  # one of the two is empty, or neither is listed
    sum_ = f"the total {_moved(total)}" if total.fraction is not None else "there is no total"
    if gained and lost:
        text = f"FLOP moved from {_listed(lost)} to {_listed(gained)}; {sum_}"
        if like and _telling(total):
            text += ": other kernels do other arithmetic for the same result (padding, Winograd)"
        yield text
    elif total.notable:
        yield f"FLOP {_moved(total)}" + (f", on {_listed(named)}" if named else "")
    elif named:
        yield f"FLOP changed on {_listed(named)}; {sum_}"


def _memory(changes: Mapping[str, Change], *, like: bool, same_width: bool) -> Iterator[str]:
    dram = changes.get("dram_bytes")
    if dram is not None and dram.notable:
        text = f"DRAM bytes {_moved(dram)}"
        if like and _telling(dram):
            text += _traffic(dram, changes["flop"], changes.get("l2_bytes"), same_width=same_width)
        yield text
    caches = [changes[BYTES[level]] for level in ("l2", "l1") if BYTES[level] in changes]
    moved = [f"{_label(cache.quantity)} {_moved(cache)}" for cache in caches if cache.notable]
    if moved:
        yield ", ".join(moved)
    intensity = changes.get("intensity")
    if intensity is not None and intensity.notable:
        yield f"intensity {_moved(intensity)} ({_both(intensity)})"


def _traffic(dram: Change, flop: Change, l2: Change | None, *, same_width: bool) -> str:
    """What a telling change of DRAM bytes means, beside FLOP and L2 bytes."""
    if flop.fraction is None or dram.fraction is None:
        return ""
    more = dram.fraction > 0
    if _telling(flop):
        # What rose from 0 or fell to 0 changed by no factor, and so not by the same one.
        if not (same_width and dram.factor and flop.factor):
            return ""
        if abs(dram.factor / flop.factor - 1) > _TELLING:
            return ""
        return f", as did FLOP: {'more' if more else 'less'} of the same work"
    stayed = f"FLOP {'hardly changed' if flop.notable else 'stayed'}"
    if l2 is not None and l2.fraction is not None and not _telling(l2):
        return (
            f", {stayed} and so did L2 bytes: the same traffic reached L2, and "
            f"{'less' if more else 'more'} of it was found there"
        )
    if not (same_width and dram.factor):
        return f", {stayed}"
    cause = (
        "more passes over memory (less fusion, extra copies or casts)"
        if more
        else "fewer passes over memory (fusion, fewer copies)"
    )
    return f", {stayed}: {cause}"


def _launching(
    changes: Mapping[str, Change], before: Measurement, after: Measurement, *, like: bool
) -> Iterator[str]:
    launches = changes["launches"]
    if launches.notable:
        fewer = launches.difference < 0
        text = f"launches {'fell' if fewer else 'rose'} {_both(launches)}"
        flop = changes["flop"]
        if like and _telling(launches) and flop.fraction is not None and not _telling(flop):
            text += f": {'fewer' if fewer else 'more'} kernels for the same arithmetic"
        yield text
    if before.kernels is not None and after.kernels is not None:
        old, new = before.kernels.graph_launches, after.kernels.graph_launches
        if old != new:
            yield f"launches from CUDA graphs: {number(old, 10)} before, {number(new, 10)} after"


def _time(changes: Mapping[str, Change], *, like: bool) -> Iterator[str]:
    step, kernel, busy = (changes[name] for name in ("step_time", "kernel_time", "busy_time"))
    idle = changes[IDLE]
    if step.notable:
        text = f"step time {_moved(step)} ({_both(step)})"
        if like and busy.fraction is not None:
            shorter = step.difference < 0
            if busy.difference / step.difference >= 0.5:
                text += f": kernels ran {'shorter' if shorter else 'longer'}"
            else:
                text += f": the GPU waited {'less' if shorter else 'more'} between kernels"
        yield text
    elif kernel.notable and step.fraction is not None:
        yield (
            f"kernel time {_moved(kernel)} while step time stayed within its noise of "
            f"{percent(step.noise)}: the step waits for something else, or kernel records are "
            "incomplete"
        )
    if idle.notable:
        yield f"GPU idle {'rose' if idle.difference > 0 else 'fell'} {_both(idle)}"


def _unseen(before: Measurement, after: Measurement) -> Iterator[str]:
    if fusion_unseen(before, after):
        yield (
            "the analytic model takes compiled functions as eager ones, so what fusion saves does "
            "not show in FLOP and bytes"
        )


def _bounds(before: Verdict, after: Verdict) -> str:
    """What bound the step before and what binds it after."""
    first, second = _bound(before), _bound(after)
    text = f"still {first}" if first == second else f"{first} before, {second} after"
    if before.basis != after.basis:
        text += f" (by {before.basis or 'no'} and by {after.basis or 'no'} ceilings)"
    return f"verdict: {text}"


def _bound(found: Verdict) -> str:
    if found.bound is None:
        return f"not judged ({found.reason})"
    if found.bound == "latency":
        where = "between kernels" if found.cause == "launch" else "inside kernels"
        return f"bound by latency {where}"
    return f"bound by {found.level.upper() if found.level else found.bound}"


def _telling(change: Change) -> bool:
    return change.notable and change.fraction is not None and abs(change.fraction) >= _TELLING


def _moved(change: Change) -> str:
    fraction = change.fraction
    if fraction is None:
        return "is n/a"
    if not change.notable:
        return "stayed"
    if math.isinf(fraction):
        return "rose from 0"
    return f"{'rose' if fraction > 0 else 'fell'} by {percent(abs(fraction))}"


def _both(change: Change) -> str:
    return f"from {change.shown(change.before)} to {change.shown(change.after)}"


def _listed(changes: Sequence[Change]) -> str:
    return " and ".join(f"{_label(change.quantity)} ({_both(change)})" for change in changes)


def _label(quantity: str) -> str:
    """A quantity in the words of the field."""
    if quantity.startswith("flop."):
        return path_name(quantity.removeprefix("flop."))
    level, _, rest = quantity.partition("_")
    if level in metrics.LEVELS:
        return f"{level.upper()} {rest.replace('_', ' ')}"
    return "FLOP" if quantity == "flop" else quantity.replace("_", " ")
