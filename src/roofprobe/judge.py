"""What binds a step: arithmetic, a memory level, or latency. A pure function of a record.

The time-based roofline (Wang, Yang et al., https://arxiv.org/abs/2009.04598): each resource has a
least time, its work over its ceiling, and a use, that least time over the step. A step takes at
least the largest least time, and what no kernel accounts for is idle time. So a step is

- bound by a resource (``compute``, or ``memory`` at a level) whose use is at least ``NEAR``;
- bound by ``latency`` where none is. Of its two parts the larger is the cause: ``launch``, the GPU
  idles between kernels, or ``kernels``, kernels run and keep no resource busy;
- not judged (``None``, with the reason) where that cannot be told. One case is real and not a
  lack of input: a step is a sequence of kernels, and kernels that take turns at two ceilings use
  neither for most of the step. Where the uses of arithmetic and of the busiest memory level add up
  to ``NEAR``, the counts of a whole step cannot tell turns from kernels that are slow throughout.

Ceilings are of one kind within a verdict, its ``basis``: measured ones where they cover all that
the datasheet's cover, datasheet ones otherwise.

The module is not called ``verdict`` because ``roofprobe.verdict`` is the function, and Python would
put a module of that name in its place.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from roofprobe import device, metrics
from roofprobe.ceilings.roofs import dram_roof
from roofprobe.derive import Figure, Figures, figures
from roofprobe.device import TENSOR_FP16_ACC16, DeviceSpec
from roofprobe.record import Environment, MeasuredRoof, Measurement
from roofprobe.roofline import (
    ABOVE_ROOF,
    Ceiling,
    Source,
    ceilings_of,
    l1_ceiling,
    measured_ceiling,
    mixed_peak,
    path_name,
    suspects,
)
from roofprobe.units import number, percent, seconds, si

# From this use on a resource binds. It is the mark of Nsight Compute's rule on the speed of light:
# below 60% of peak for arithmetic and memory alike it suspects latency. What is made to reach a
# ceiling passes it also on datasheet peaks: bf16 GEMMs reach 73 to 87% of them
# (https://github.com/stas00/ml-engineering, accelerators), copies on an H200 89%.
NEAR: Final = 0.6

# From this use on a level is full, and a nearer level's use is a consequence: what streams from
# DRAM passes L2 as well. 80% is the upper mark of the same rule.
FULL: Final = 0.8

# Chips whose L2 has two partitions, and what their counter of L2 bytes reads at most for each byte
# that SMs asked for: traffic to the far partition is counted in both. An H200's copy of 2 GiB reads
# 1.54 (tests/data/copy-2gib.json), reads of what L2 holds can read 1. Roofs are in bytes that SMs
# asked for, so a use of L2 is known as a range. Partitions: A100 whitepaper;
# https://forums.developer.nvidia.com/t/ncu-l2-metric-understanding/361731 for GH100 and GB100.
TWO_PARTITIONS: Final = ("GA100", "GH100", "GB100", "GB102", "GB110")
_HOPS: Final = 1.54

# Work that takes less than this part of the least compute time may lack a roof.
_SMALL: Final = 0.01

_LEVELS: Final = {"dram": "DRAM", "l2": "L2", "l1": "L1"}
_NO_ROOF: Final = "no roof"

_FP16: Final = "tensor_fp16"

Bound = Literal["compute", "memory", "latency"]


@dataclass(frozen=True, slots=True)
class Use:
    """How much of one resource a step used.

    Attributes:
        ceiling: The bound; for arithmetic on several paths, that of the step's mix.
        time_at_roof: Work over ceiling, s: the step cannot be faster.
        fraction: That over the step time.
        spread: Of the fraction, relative: of counts, step time and roof together; None for none.
        at_least: True where time and fraction are at least so: a part of the work was not
            counted, or the counter may have counted it twice.
        modelled: True where the work is bytes of a model, which knows no caches.
    """

    ceiling: Ceiling
    time_at_roof: float
    fraction: float
    spread: float | None = None
    at_least: bool = False
    modelled: bool = False

    @property
    def name(self) -> str:
        """``compute`` or the memory level, for people."""
        return "compute" if self.ceiling.level is None else _LEVELS[self.ceiling.level]


class Unknown(NamedTuple):
    """A resource without a use.

    Attributes:
        name: ``compute`` or a level, for people.
        reason: Why its use is not known.
        at_most: The most that its use can be, where that can be told.
    """

    name: str
    reason: str
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What binds a step.

    Attributes:
        bound: ``compute``, ``memory`` or ``latency``; None where it cannot be told.
        level: The memory level of a memory bound.
        cause: Of a latency bound: ``launch`` or ``kernels``.
        reason: Why there is no bound; None where there is one.
        basis: Kind of all ceilings: ``measured`` or ``datasheet``; None without any.
        uses: Known resources; the binding one first, then by use.
        unknown: Resources whose use is not known and may be ``NEAR`` or more.
        idle: Share of the step in which no kernel ran.
        step_time: s.
        sentences: The verdict for people.
    """

    bound: Bound | None
    level: str | None
    cause: Literal["launch", "kernels"] | None
    reason: str | None
    basis: Source | None
    uses: tuple[Use, ...]
    unknown: tuple[Unknown, ...]
    idle: Figure
    step_time: Figure
    sentences: tuple[str, ...] = field(default=())

    @property
    def closest(self) -> Use | None:
        """The binding resource, or the one nearest to its ceiling; None where none is known."""
        return self.uses[0] if self.uses else None

    @property
    def next(self) -> Use | None:
        """The resource after it."""
        return self.uses[1] if len(self.uses) > 1 else None

    @property
    def ceiling(self) -> Ceiling | None:
        """The closest resource's ceiling."""
        return self.closest.ceiling if self.closest else None

    @property
    def next_ceiling(self) -> Ceiling | None:
        """The next resource's ceiling."""
        return self.next.ceiling if self.next else None

    @property
    def fraction(self) -> float | None:
        """Use of the closest ceiling."""
        return self.closest.fraction if self.closest else None

    @property
    def time_at_roof(self) -> float | None:
        """What the step would take at the closest ceiling, s."""
        return self.closest.time_at_roof if self.closest else None

    @property
    def compute(self) -> Use | None:
        """The use of arithmetic; its ceiling says how it was formed."""
        return next((use for use in self.uses if use.ceiling.kind == "flop"), None)


def verdict(record: Measurement, *, roofs: Iterable[MeasuredRoof] | None = None) -> Verdict:
    """Judges a measurement.

    Args:
        record: What was measured.
        roofs: Measured ceilings of its device; left out, those of the record. Where they do not
            cover what the step used, and where there are none (``roofs=()``), the datasheet's are
            taken.
    """
    derived = figures(record)
    ceilings = ceilings_for(record, roofs)
    cuda = record.environment.device_kind == "cuda"
    levels = [level for level in metrics.LEVELS if cuda or level in derived.byte]
    hops = _HOPS if record.environment.chip in TWO_PARTITIONS else 1.0
    found = judge(derived, ceilings, levels=levels, l2_hops=hops)
    if record.source == "analytic":
        model = "This judges a model of the step, not counters."
        found = replace(found, sentences=(*found.sentences, model))
    return found


def ceilings_for(
    record: Measurement, roofs: Iterable[MeasuredRoof] | None = None
) -> tuple[Ceiling, ...]:
    """All ceilings that are known for the device of a record: measured ones, then the datasheet's.

    Of the roofs of a path or level the highest is kept, of those of DRAM the one to judge by, of
    those of fp16 on tensor cores that of the step's own accumulators.

    Args:
        record: What was measured.
        roofs: As in ``verdict``.
    """
    spec = _spec(record.environment)
    accumulate = _fp16_accumulate(record)
    measured = tuple(record.roofs if roofs is None else roofs)
    if accumulate >= _SMALL:
        differ = spec is not None and spec.accumulators_differ
        measured = _fp16_accumulated(measured, accumulate, differ=differ)
    dram = dram_roof(measured)
    best: dict[tuple[str | None, str | None], MeasuredRoof] = {}
    for roof in measured:
        key = roof.path, roof.level
        if roof.level == "dram" and dram is not None and roof is not dram:
            continue
        if key not in best or roof.value > best[key].value:
            best[key] = roof
    return (*(measured_ceiling(r) for r in best.values()), *_sheet(spec, accumulate))


def _sheet(spec: DeviceSpec | None, accumulate: float) -> Iterator[Ceiling]:
    """A datasheet's ceilings, and that of L1, which follows from it."""
    if spec is None:
        return
    yield from ceilings_of(spec, spec.peaks, fp16_accumulate=accumulate)
    l1 = l1_ceiling(spec)
    if l1 is not None:
        yield l1


def _fp16_accumulated(
    measured: Sequence[MeasuredRoof], share: float, *, differ: bool
) -> tuple[MeasuredRoof, ...]:
    """Measured roofs with that of fp16 products for the share of them that accumulates in fp16.

    One of its own is there only where fp16 accumulation gains something: without it the FP16 GEMM,
    measured with fp32 accumulate, is the roof of both, unless the datasheet says that they differ.
    """
    fast = _highest(measured, TENSOR_FP16_ACC16)
    if fast is None and not differ:
        return tuple(measured)
    slow = _highest(measured, _FP16)
    others = tuple(roof for roof in measured if roof.path not in (_FP16, TENSOR_FP16_ACC16))
    if fast is not None and 1 - share < _SMALL:
        return (*others, replace(fast, path=_FP16))
    if fast is None or slow is None:
        return others
    return (*others, _of_both(slow, fast, share))


def _of_both(slow: MeasuredRoof, fast: MeasuredRoof, share: float) -> MeasuredRoof:
    """The roof of products of which a share accumulates in fp16, one after another."""

    def mixed(with32: float, with16: float) -> float:
        return 1 / ((1 - share) / with32 + share / with16)

    lasting = slow.sustained and fast.sustained and mixed(slow.sustained, fast.sustained)
    how = f"{percent(share, 2)} of the FLOP with fp16 accumulate"
    return replace(
        fast,
        name=f"{slow.name}, {percent(share, 2)} FP16 accumulate",
        path=_FP16,
        value=mixed(slow.value, fast.value),
        spread=max(slow.spread, fast.spread),
        method=f"{how}: {fast.method}; the rest: {slow.method}",
        clock=fast.clock if fast.clock == slow.clock else None,
        sustained=lasting or None,
    )


def _highest(measured: Iterable[MeasuredRoof], path: str) -> MeasuredRoof | None:
    own = (roof for roof in measured if roof.path == path)
    return max(own, key=lambda roof: roof.value, default=None)


def _spec(environment: Environment) -> DeviceSpec | None:
    if environment.device_kind != "cuda":
        return None
    return device.find(
        device_name=environment.device_name,
        chip=environment.chip,
        sm_count=environment.sm_count,
        memory_byte=environment.memory_byte,
    )


def _fp16_accumulate(record: Measurement) -> float:
    """Share of the fp16 FLOP on tensor cores that accumulates in fp16."""
    rows = [row for row in metrics.rows(record.metrics) if row.path == _FP16]
    counted = {row.name: record.value(row.name) for row in rows}
    return device.fp16_accumulate(counted, sum(value or 0.0 for value in counted.values()))


def judge(
    derived: Figures,
    ceilings: Sequence[Ceiling],
    *,
    levels: Sequence[str] = metrics.LEVELS,
    l2_hops: float = 1.0,
    no_roof: str = _NO_ROOF,
) -> Verdict:
    """Judges figures under ceilings.

    Args:
        derived: Of one step.
        ceilings: All that are known, of either kind; of each kind one a path and level.
        levels: Memory levels that the device has, farthest first.
        l2_hops: Bytes that the counter of L2 reads at most for each byte that SMs asked for.
        no_roof: What to say of a path or level without a ceiling.
    """
    basis = _basis(derived, ceilings)
    own = [ceiling for ceiling in ceilings if ceiling.source == basis]
    known: list[Use] = []
    unknown: list[Unknown] = []
    step = derived.step_time
    if step.value:
        for found in (
            *_compute(derived, own, ceilings, no_roof),
            *_memory(derived, own, levels, l2_hops, no_roof),
        ):
            if isinstance(found, Use):
                known.append(found)
            else:
                unknown.append(found)
        unknown += _hidden_fp16(derived, known, ceilings)
    known.sort(key=lambda use: -use.fraction)
    binding = _binding(known, levels)
    if binding is not None:
        if basis == "measured" and binding.fraction > ABOVE_ROOF:
            sheet = [ceiling for ceiling in ceilings if ceiling.source != "measured"]
            # The measured roofs are there, and named as what was exceeded.
            instead = judge(
                derived, sheet, levels=levels, l2_hops=l2_hops, no_roof="no datasheet roof"
            )
            return _set_aside(binding, instead)
        known = [binding, *(use for use in known if use is not binding)]
        unknown = [each for each in unknown if each.name != binding.name]
    beside = known if binding is None else []
    idle = derived.idle.value or 0.0
    possible = tuple(each for each in unknown if _may_bind(each, beside, idle))
    unsaid = Verdict(None, None, None, None, basis, tuple(known), possible, derived.idle, step)
    return _in_words(_decided(unsaid, binding), derived, ceilings)


def _set_aside(broken: Use, instead: Verdict) -> Verdict:
    """A verdict by the datasheet, with the reason why measured roofs were not believed."""
    if instead.closest is None:  # its other sentence says that no ceiling is known
        kept, how = instead.sentences[:1], "Not judged by measured ceilings"
    else:
        kept, how = instead.sentences[:-1], "Judged by the datasheet's dense peaks"
    why = (
        f"{how}: the measured {_roof(broken)} is exceeded {number(broken.fraction, 3)} times: "
        f"{_suspects(broken)}."
    )
    return replace(instead, sentences=(*kept, why))


def _basis(derived: Figures, ceilings: Iterable[Ceiling]) -> Source | None:
    """Measured where these cover all that datasheet ceilings cover of what the step used."""
    peaks = _peaks(ceilings)
    wanted = {path for path in _work(derived) if _matters(path, derived, peaks)} | {"dram"}
    covered: dict[str, set[str]] = {"measured": set(), "datasheet": set()}
    for ceiling in ceilings:
        covered.setdefault(ceiling.source, set()).add(ceiling.path or ceiling.level or "")
    measured, sheet = (covered[kind] & wanted for kind in ("measured", "datasheet"))
    if measured and measured >= sheet:
        return "measured"
    return "datasheet" if sheet else None


def _work(derived: Figures) -> dict[str, float]:
    """Work by path, integer tensor operations too, which take the same units' time."""
    return {
        path: figure.value
        for path, figure in derived.flop.items()
        if figure.value and not figure.upper_bound
    }


def _peaks(ceilings: Iterable[Ceiling]) -> dict[str, float]:
    """Highest ceiling of each path."""
    peaks: dict[str, float] = {}
    for ceiling in ceilings:
        if ceiling.path is not None:
            peaks[ceiling.path] = max(ceiling.value, peaks.get(ceiling.path, 0.0))
    return peaks


def _matters(path: str, derived: Figures, peaks: Mapping[str, float]) -> bool:
    """True where a path takes a percent of the least compute time, or that cannot be told."""
    work = _work(derived)
    least = {each: flop / peaks[each] for each, flop in work.items() if each in peaks}
    return path not in least or least[path] >= _SMALL * sum(least.values())


def _compute(
    derived: Figures, own: Sequence[Ceiling], ceilings: Sequence[Ceiling], no_roof: str
) -> Iterator[Use | Unknown]:
    """The use of arithmetic under the ceiling of the step's mix; nothing without any work.

    Where a path was not counted, those that were still say how much there is at least.
    """
    total, step = derived.flop_total, derived.step_time
    if total.value is None:
        yield Unknown("compute", total.reason or "FLOP were not measured")
    peaks = _peaks(own)
    work = _work(derived)
    kept = {p: n for p, n in work.items() if p in peaks or _matters(p, derived, _peaks(ceilings))}
    if not kept:
        return
    peak = mixed_peak(kept, peaks)
    if peak is None:
        bare = [path_name(path) for path in kept if path not in peaks]
        yield Unknown("compute", f"{no_roof} of {', '.join(bare)}")
        return
    best = {c.path: c for c in own if c.path in kept}
    least = sum(kept.values()) / peak
    ceiling = next(iter(best.values())) if len(kept) == 1 else _mix(peak, kept, best, least)
    spreads = [roof.spread for roof in best.values() if roof.spread is not None]
    use = _use(ceiling, least, step, total.spread, max(spreads, default=None))
    yield replace(use, at_least=total.value is None or total.upper_bound)


def _mix(
    peak: float, work: Mapping[str, float], best: Mapping[str, Ceiling], least: float
) -> Ceiling:
    """The ceiling of work on several paths, with how it was formed."""
    largest = sorted(work, key=lambda path: -work[path] / best[path].value)
    parts = [
        f"{percent(work[path] / sum(work.values()))} of the FLOP on {path_name(path)} at "
        f"{si(best[path].value, 'FLOP/s')}"
        for path in largest
        if work[path] / best[path].value >= _SMALL * least
    ]
    detail = (
        f"total FLOP over the sum of each path's least time: {', '.join(parts)}; paths that "
        "overlap in time can exceed it"
    )
    source = best[largest[0]].source
    name = f"mix, mostly {path_name(largest[0])}"
    return Ceiling(name, "flop", peak, None, None, source, detail)


def _memory(
    derived: Figures,
    own: Sequence[Ceiling],
    levels: Sequence[str],
    l2_hops: float,
    no_roof: str,
) -> Iterator[Use | Unknown]:
    """The use of each memory level."""
    step = derived.step_time
    outer: float | None = None  # bandwidth of the nearest level outside that has a roof
    for level in levels:
        name = _LEVELS[level]
        byte = derived.byte.get(level)
        roof = next((c for c in own if c.level == level), None)
        hops = l2_hops if level == "l2" else 1.0
        if byte is None or byte.value is None:
            why = byte.reason if byte is not None else None
            yield Unknown(name, why or f"{name} bytes were not counted")
        elif roof is None:
            # A level is at least as fast as the one outside it.
            at_most = byte.value / outer / step.value if outer and step.value else None
            yield Unknown(name, no_roof, at_most)
        else:
            use = _use(roof, byte.value / hops / roof.value, step, byte.spread, roof.spread)
            yield replace(use, at_least=hops > 1, modelled=byte.source == "analytic")
            if use.fraction < NEAR and hops > 1:
                why = "its counter counts traffic between its two partitions, too"
                yield Unknown(name, why, use.fraction * hops)
        outer = roof.value if roof is not None else outer


def _use(ceiling: Ceiling, least: float, step: Figure, *spreads: float | None) -> Use:
    assert step.value
    known = [spread for spread in (step.spread, *spreads) if spread is not None]
    return Use(ceiling, least, least / step.value, sum(known) if known else None)


def _hidden_fp16(
    derived: Figures, known: Iterable[Use], ceilings: Iterable[Ceiling]
) -> Iterator[Unknown]:
    """Half-precision work on CUDA cores, of which only a bound is known, where it could bind."""
    most = derived.flop.get("sass_fp16")
    if most is None or not most.value or not derived.step_time.value:
        return
    peaks = _peaks(ceilings)
    # From Volta on, which is where the counters begin, half is at least as fast as single.
    peak = peaks.get("sass_fp16") or peaks.get("sass_fp32")
    if peak is None:
        return
    exact = sum(use.fraction for use in known if use.ceiling.kind == "flop")
    at_most = exact + most.value / peak / derived.step_time.value
    if exact < NEAR <= at_most:
        why = "fp16 work on CUDA cores is known as an upper bound only"
        yield Unknown("compute", why, at_most)


def _binding(known: Sequence[Use], levels: Sequence[str]) -> Use | None:
    """The resource that binds: the one used most, but a full level before those within it."""
    near = [use for use in known if use.fraction >= NEAR]
    if not near:
        return None
    full = [use for use in near if use.ceiling.level in levels and use.fraction >= FULL]
    if near[0].ceiling.level is not None and full:
        return min(full, key=lambda use: levels.index(use.ceiling.level or ""))
    return near[0]


def _decided(v: Verdict, binding: Use | None) -> Verdict:
    """The verdict's bound, or the reason for none."""
    if not v.step_time.value:
        return replace(v, reason=v.step_time.reason or "the step took no time")
    if binding is not None:
        if binding.fraction > ABOVE_ROOF:
            return replace(
                v,
                reason=f"{binding.name} is used to {number(binding.fraction, 3)} times its "
                f"ceiling: {_suspects(binding)}",
            )
        level = binding.ceiling.level
        return replace(v, bound="compute" if level is None else "memory", level=level)
    closest = v.uses[0].fraction if v.uses else 0.0
    idle = v.idle.value
    if idle is not None and idle > 1 - idle - closest and not v.unknown:
        return replace(v, bound="latency", cause="launch")
    turns = _turns(v)
    if len(turns) == 2 and sum(use.fraction for use in turns) >= NEAR:
        return replace(
            v,
            reason=f"{turns[0].name} and {turns[1].name} add up to "
            f"{percent(sum(use.fraction for use in turns), 2)} of the step; kernels may take turns "
            "at them or be slow throughout, which only counts of the step's parts can tell",
        )
    if v.unknown:
        named = "; ".join(f"{each.name} ({each.reason})" for each in v.unknown)
        near = "no known ceiling is near, but others may be"
        return replace(v, reason=f"{near if v.uses else 'no use of a ceiling is known'}: {named}")
    if idle is None:
        why = f"no ceiling is near, and idle time is not known ({v.idle.reason})"
        return replace(v, reason=why)
    return replace(v, bound="latency", cause="kernels")


def _may_bind(each: Unknown, beside: Sequence[Use], idle: float) -> bool:
    """True where a resource of unknown use may bind, alone or in turns with arithmetic.

    It cannot be used while no kernel runs. In turns counts for a level without a roof only: where
    there is one, ``_turns`` looks at the level itself.
    """
    arithmetic = sum(use.fraction for use in beside if use.ceiling.kind == "flop")
    alone = each.name == "compute" or each.name in {use.name for use in beside}
    most = 1 - idle if each.at_most is None else min(1 - idle, each.at_most)
    return most >= NEAR - (0.0 if alone else arithmetic)


def _turns(v: Verdict) -> list[Use]:
    """Arithmetic and the busiest memory level, as far as known."""
    memory = [use for use in v.uses if use.ceiling.kind == "byte"]
    compute = [use for use in v.uses if use.ceiling.kind == "flop"]
    return sorted([*compute, *memory[:1]], key=lambda use: -use.fraction)


def _in_words(v: Verdict, derived: Figures, ceilings: Sequence[Ceiling]) -> Verdict:
    return replace(v, sentences=tuple(_sentences(v, derived, ceilings)))


def _sentences(v: Verdict, derived: Figures, ceilings: Sequence[Ceiling]) -> Iterator[str]:
    closest = v.closest
    idle = v.idle.value
    if v.bound == "compute" and closest:
        yield (
            f"Compute-bound: arithmetic uses {_share(closest)} of its ceiling, {_roof(closest)}."
        )
    elif v.bound == "memory" and closest:
        yield (
            f"Memory-bound at {closest.name}: its traffic uses {_share(closest)} of the "
            f"ceiling, {_roof(closest)}."
        )
    elif v.cause == "launch":
        yield (
            f"Bound by launches or other latency outside kernels: no kernel runs in "
            f"{percent(idle)} of the step."
        )
    elif v.cause == "kernels":
        yield (
            f"Bound by latency or inefficiency inside kernels: they run in "
            f"{percent(1 - (idle or 0))} of the step, and no ceiling is near."
        )
    elif closest is not None and closest.fraction < NEAR:
        yield f"No single ceiling is seen to bind the step: {v.reason}."
    else:
        yield f"No verdict: {v.reason}."
    if closest is None:
        if v.step_time.value and not ceilings:
            yield (
                "No ceiling of this device is known: run roofprobe ceilings once on it, and later "
                "runs are judged by what it reaches."
            )
        return
    if v.bound not in ("compute", "memory"):
        yield f"Closest ceiling: {_roof(closest)}, used to {_share(closest)}."
    if closest.fraction <= ABOVE_ROOF:
        yield _headroom(v, closest)
    if v.bound in ("compute", "memory"):
        if idle is None:
            yield f"Idle time is not known: {v.idle.reason}."
        elif idle >= _SMALL:
            yield f"No kernel runs in {percent(idle, 2)} of the step."
        if v.unknown:
            named = ", ".join(f"{each.name} ({each.reason})" for each in v.unknown)
            yield f"Not judged: {named}."
    for use in v.uses[1:]:
        if use.fraction > ABOVE_ROOF:
            said = "" if closest.fraction > ABOVE_ROOF else f": {_suspects(use)}"
            yield f"{use.name} exceeds its ceiling {number(use.fraction, 3)} times{said}."
    yield _basis_sentence(v, derived, ceilings)


def _headroom(v: Verdict, closest: Use) -> str:
    least, now = seconds(closest.time_at_roof, 3), seconds(v.step_time.value, 3)
    if closest.fraction > 1 - _SMALL:
        said = f"The step takes what that roof allows, {least}"
    else:
        said = f"At that roof the step would take {least} instead of {now}"
    if v.next is None:
        return f"{said}."
    return f"{said}; the next ceiling, {_roof(v.next)}, is used to {_share(v.next)}."


def _basis_sentence(v: Verdict, derived: Figures, ceilings: Iterable[Ceiling]) -> str:
    if v.basis == "measured":
        said = "Judged by ceilings that were measured on this device."
        bare = [each.name for each in v.unknown if each.reason == _NO_ROOF]
        if not bare:
            return said
        return (
            f"{said} No roof of {' and '.join(bare)} was: roofprobe ceilings says there why, or "
            "measures it for later runs with --fresh."
        )
    measured = [c for c in ceilings if c.source == "measured"]
    sheet = [c for c in ceilings if c.source != "measured"]
    if not measured:
        bare = [n for level, n in _LEVELS.items() if level not in {c.level for c in sheet}]
        return (
            f"Judged by the datasheet's dense peaks, and it gives none of {' and '.join(bare)}: "
            "run roofprobe ceilings once on this device, and later runs are judged by what it "
            "reaches."
        )
    have = {c.path or c.level for c in measured}
    peaks = _peaks(ceilings)
    # Its name tells how the step accumulates, for which the measured roofs may not stand.
    fp16 = {c.path: c.name for c in sheet if c.path == _FP16}
    lacking = [
        fp16.get(path) or path_name(path)
        for path in _work(derived)
        if path not in have and _matters(path, derived, peaks)
    ]
    lacking += ["DRAM"] if "dram" not in have else []
    return (
        f"Judged by the datasheet's dense peaks, as no roof was measured of {', '.join(lacking)}."
    )


def _suspects(use: Use) -> str:
    mix = use.ceiling.kind == "flop" and use.ceiling.path is None
    return suspects(mix=mix, level=use.ceiling.level, modelled=use.modelled)


def _roof(use: Use) -> str:
    ceiling = use.ceiling
    unit = "FLOP/s" if ceiling.kind == "flop" else "B/s"
    name = ceiling.name
    if use.name.lower() not in name.lower():
        name = f"{use.name} ({name})"
    return f"{name} at {si(ceiling.value, unit)}"


def _share(use: Use) -> str:
    share = percent(use.fraction, 3 if use.fraction >= 0.1 else 2)
    return f"at least {share}" if use.at_least else share
