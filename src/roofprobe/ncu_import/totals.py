"""FLOP by path, bytes by level, time and intensity of a workload. A missing part makes None.

Half precision: the counters count instructions, and nothing tells whether one works on two values
or on one (or only converts, or loads a constant). The weights are 2, 2, 4 for add, mul, fma,
which is the most that they can be; figures that hold such counts are listed as upper bounds. The
exception are Volta logs with ``sm__sass_*`` names, the form that ncu of 2019 and 2020 users
recorded and published analyses are made of: there the weights are 1, 1, 2, as published.

Tensor cores: operations (``ops_path_tensor``) count as they are, an FMA being two. Instructions
count only where every shape does the same work (Volta: 512 FLOP); elsewhere the FLOP are unknown.

Time is the sum over launches of their durations; where there is none, of cycles over cycle rate.
"""

import math
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from roofprobe import metrics
from roofprobe.ncu_import import vocabulary
from roofprobe.ncu_import.launches import Column, Launches
from roofprobe.ncu_import.merge import Workload

VOLTA: Final = "7.0"

# dram__bytes against read + write; collected in the same run they agree to the printed digit.
_CONSISTENT: Final = 1e-3
# A label of the details page shows three or four digits.
_ALIKE: Final = 1e-2
_DAY: Final = 86400.0  # s; no kernel runs that long, but broken time stamps say so

_VOLTA_KERNEL: Final = re.compile(r"\bvolta_")
_LATER_KERNEL: Final = re.compile(
    r"\b(turing|ampere|sm7[5-9]|sm[89][0-9]|sm1[0-9][0-9]|cutlass_[89])"
)

Figure = tuple[str, str]  # ("flop", path), ("op", path), ("byte", level), ("time", "")


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a figure, for every launch, in the figure's base unit; NaN where unknown.

    Attributes:
        figure: What it adds to.
        values: By launch.
        names: By launch, an index into ``titles``.
        titles: Kernel names.
        source: The metric, for messages.
    """

    figure: Figure
    values: "array[float]"
    names: "array[int]"
    titles: Sequence[str]
    source: str


@dataclass(slots=True)
class Terms:
    """All terms of a workload.

    Attributes:
        items: The terms.
        warnings: For the user.
        reasons: Figure's name -> why it has no value.
        upper_bound: Figures that are the most they can be.
        blind: True where FLOP were done that cannot be known at all, so no intensity is.
    """

    items: list[Term] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    upper_bound: list[str] = field(default_factory=list)
    blind: bool = False

    def of(self, kind: str) -> list[Term]:
        """The terms of one kind of figure."""
        return [term for term in self.items if term.figure[0] == kind]


def terms(work: Workload, capability: str | None) -> Terms:
    """What every launch adds to every figure.

    Args:
        work: The merged files.
        capability: Compute capability that the user named, for launches that have none.
    """
    return _Builder(work, capability).build()


class _Builder:
    def __init__(self, work: Workload, capability: str | None) -> None:
        self._launches = work.launches
        self._count = len(work.launches)
        self._columns: dict[str, dict[tuple[str, ...], list[Column]]] = {}
        for column in work.launches.columns:
            if column.meaning is not None:
                parts = self._columns.setdefault(column.meaning.kind, {})
                parts.setdefault(column.meaning.part, []).append(column)
        for parts in self._columns.values():
            for columns in parts.values():
                columns.sort(key=_rank)
        self._out = Terms()
        self._named = capability
        self._guess: str | None = None
        self._guessed = False

    def build(self) -> Terms:
        time = self._time()
        self._sass(time)
        if not self._tensor():
            self._pipe()
        self._bytes(time)
        return self._out

    # Time

    def _time(self) -> Term | None:
        given = self._columns.get("time", {}).get((), [])
        found = self._coalesce(("time", ""), given, [1.0] * len(given)) if given else None
        if found is None or _has_nan(found.values):
            computed = self._from_cycles()
            if computed is not None:
                found = computed if found is None else _fill(found, computed)
        if found is None:
            self._out.reasons["time_s"] = (
                "the files have neither gpu__time_duration nor cycles with their rate"
            )
            return None
        for launch, value in enumerate(found.values):
            if value < 0 or value > _DAY:
                found.values[launch] = math.nan
                self._out.reasons["time_s"] = (
                    f"{found.source} of {self._launches.describe(launch)} is {value:.6g} s, "
                    "which no kernel takes"
                )
        self._out.items.append(found)
        return found

    def _from_cycles(self) -> Term | None:
        """Cycles over cycle rate, of the same unit of the chip."""
        cycles, clocks = self._columns.get("cycle", {}), self._columns.get("clock", {})
        for part in (("sm",), ("smsp",), ("gpc",), ("tpc",)):
            if part in cycles and part in clocks:
                top, bottom = cycles[part][0], clocks[part][0]
                # Two runs in different orders pair by position: the clock follows the moment.
                values = array("d", map(_over, self._values(top), self._values(bottom)))
                return Term(("time", ""), values, top.names, top.titles, top.name)
        return None

    # CUDA cores

    def _sass(self, time: Term | None) -> None:
        by_op: dict[tuple[str, str], list[Column]] = {}
        for (path, op, _), columns in self._columns.get("flop", {}).items():
            by_op.setdefault((path, op), []).extend(columns)
        packed = False
        for (path, _), columns in by_op.items():
            columns.sort(key=_rank)
            weights = []
            converted = []
            for column in columns:
                weight = column.meaning.weight if column.meaning else 1.0
                if path == "sass_fp16" and self._as_published(column):
                    weight /= 2
                    how = "1, 1, 2 for add, mul, fma, as published analyses of such logs do"
                elif path == "sass_fp16":
                    how = "2, 2, 4 for add, mul, fma: an upper bound, the counters do not tell"
                    packed = packed or any(value > 0 for value in column.values)
                else:
                    how = ""
                if how and any(value > 0 for value in column.values):
                    self._warn(f"fp16 instructions of CUDA cores are weighted {how}")
                values = self._as_count(column, time)
                if values is not None:
                    converted.append(values)
                    weights.append(weight)
            if converted:
                self._out.items.append(self._combine(("flop", path), converted, weights))
        if packed:
            self._out.upper_bound += ["sass_fp16", "total"]

    def _as_published(self, column: Column) -> bool:
        assert column.meaning is not None
        return column.meaning.part[2] == "sm" and all(
            self._capability(owner) == VOLTA for owner in range(len(self._launches.owners))
        )

    def _as_count(self, column: Column, time: Term | None) -> Term | None:
        """A column as a count, rates multiplied out."""
        assert column.meaning is not None
        term = self._term(("", ""), column)
        if not column.meaning.per:
            return term
        if column.meaning.per == "second":
            factor = time.values if time is not None else None
        else:
            factor = self._elapsed(time)
        if factor is None:
            self._launches.unusable[column.name] = (
                "a rate, and the files do not say over what time it ran"
            )
            factor = array("d", [math.nan] * self._count)
        self._warn(f"{column.name} is a rate: multiplied by the time, with the digits printed")
        values = array("d", map(_times, term.values, factor))
        return Term(term.figure, values, term.names, term.titles, term.source)

    def _elapsed(self, time: Term | None) -> "array[float] | None":
        """Cycles that a launch took on its SMs."""
        for part in (("smsp",), ("sm",), ("gpc",)):
            for column in self._columns.get("cycle", {}).get(part, []):
                return self._values(column)
        for part in (("smsp",), ("sm",), ("gpc",)):
            for column in self._columns.get("clock", {}).get(part, []):
                if time is not None:
                    return array("d", map(_times, self._values(column), time.values))
        return None

    # Tensor cores

    def _tensor(self) -> bool:
        """Adds operations; False where the files have no such counter."""
        by_source: dict[tuple[str, str], dict[tuple[str, ...], list[Column]]] = {}
        for (path, source, *rest), columns in self._columns.get("tensor", {}).items():
            by_source.setdefault((path, source), {})[tuple(rest)] = columns
        for (path, _), parts in by_source.items():
            kind = "op" if path.startswith("tensor_int") else "flop"
            for qualifiers, columns in parts.items():
                # A counter's subdivisions (by instruction, result, sparsity) are part of it.
                if not any(_is_wider(other, qualifiers) for other in parts):
                    weights = [1.0] * len(columns)
                    found = self._coalesce((kind, path), columns, weights)
                    self._out.items.append(found)
        return bool(by_source)

    def _pipe(self) -> None:
        """Adds tensor instructions, for want of operations."""
        parts = self._columns.get("pipe", {})
        chosen = [parts[("",)]] if ("",) in parts else list(parts.values())
        for columns in chosen:
            found = self._coalesce(("flop", "tensor"), columns, [1.0] * len(columns))
            busy = any(value > 0 for value in found.values)
            owners = range(len(self._launches.owners))
            weights = [vocabulary.PIPE_FLOP.get(self._capability(o) or "") for o in owners]
            if busy and None in weights:
                self._out.blind = True
                self._out.reasons["flop.tensor"] = (
                    f"instruction shape unknown: {found.source} counts instructions, and their "
                    "FLOP differ by shape and type; collect sm__ops_path_tensor_src_* instead"
                )
            if busy and self._guessed:
                self._warn(
                    "the files do not name the GPU; kernel names (volta_*) say Volta. "
                    "--gpu overrules that"
                )
            path = "tensor" if None in weights else "tensor_fp16"
            for launch, value in enumerate(found.values):
                weight = weights[self._launches.owner[launch]]
                if value:
                    found.values[launch] = value * weight if weight is not None else math.nan
            item = Term(("flop", path), found.values, found.names, found.titles, found.source)
            self._out.items.append(item)

    def _capability(self, owner: int) -> str | None:
        known = self._launches.owners[owner].compute_capability or self._named
        return known or self._from_kernels()

    def _from_kernels(self) -> str | None:
        if not self._guessed and self._guess is None:
            titles = self._launches.titles
            volta = any(_VOLTA_KERNEL.search(title) for title in titles)
            later = any(_LATER_KERNEL.search(title) for title in titles)
            self._guess = VOLTA if volta and not later else ""
            self._guessed = bool(self._guess)
        return self._guess or None

    # Bytes

    def _bytes(self, time: Term | None) -> None:
        parts = self._columns.get("byte", {})
        for level in metrics.LEVELS:
            found: dict[str, Term] = {}
            for direction in ("read", "write", ""):
                columns = parts.get((level, direction), [])
                counts = [(self._as_count(column, time), column) for column in columns]
                usable = [(term, column) for term, column in counts if term is not None]
                if usable:
                    figure = ("byte", f"{level}_{direction}" if direction else level)
                    weights = [c.meaning.weight if c.meaning else 1.0 for _, c in usable]
                    found[direction] = self._combine(figure, [t for t, _ in usable], weights)
            self._level(level, found)

    def _level(self, level: str, found: Mapping[str, Term]) -> None:
        read, write, total = (found.get(direction) for direction in ("read", "write", ""))
        self._out.items += [part for part in (read, write) if part is not None]
        both = None
        if read is not None and write is not None:
            values = array("d", map(_plus, read.values, write.values))
            both = Term(("byte", level), values, read.names, read.titles, read.source)
        if both is not None and total is not None:
            ours, theirs = math.fsum(both.values), math.fsum(total.values)
            if not math.isnan(ours + theirs) and not math.isclose(
                ours, theirs, rel_tol=_CONSISTENT
            ):
                self._warn(
                    f"{level} bytes do not add up: read + write is {ours:.6g}, "
                    f"{total.source} is {theirs:.6g}; read + write is used"
                )
            both = _fill(both, total) if read is not None and read.names is total.names else both
            if _has_nan(both.values) and not _has_nan(total.values):
                both = total
        chosen = both or total
        if chosen is not None:
            self._out.items.append(chosen)
        elif found:
            have = "read" if read is not None else "write"
            self._out.reasons[f"byte.{level}"] = f"only the {have} counter is in the files"

    # Shared

    def _term(self, figure: Figure, column: Column) -> Term:
        return Term(figure, self._values(column), column.names, column.titles, column.name)

    def _values(self, column: Column) -> "array[float]":
        return column.filled(self._count)

    def _coalesce(
        self, figure: Figure, columns: Sequence[Column], weights: Sequence[float]
    ) -> Term:
        return self._combine(figure, [self._term(figure, column) for column in columns], weights)

    def _combine(self, figure: Figure, found: Sequence[Term], weights: Sequence[float]) -> Term:
        """Several metrics of the same quantity: the first that has a value, launch by launch."""
        result: Term | None = None
        for term, weight in zip(found, weights, strict=True):
            scaled = term.values
            if weight != 1:
                scaled = array("d", [weight * value for value in term.values])
            item = Term(figure, scaled, term.names, term.titles, term.source)
            if result is None:
                result = item
                continue
            if result.names is item.names:
                ours, theirs = math.fsum(result.values), math.fsum(item.values)
                if not math.isnan(ours + theirs) and not math.isclose(ours, theirs, rel_tol=_ALIKE):
                    self._warn(
                        f"{result.source} and {item.source} count the same and differ: "
                        f"{ours:.6g} and {theirs:.6g}; the first is used"
                    )
                result = _fill(result, item)
        assert result is not None
        return result

    def _warn(self, text: str) -> None:
        if text not in self._out.warnings:
            self._out.warnings.append(text)


def summed(items: Iterable[Term], chosen: Iterable[int] | None = None) -> dict[Figure, float]:
    """Sums of figures over launches; NaN where a part is unknown.

    Args:
        items: Terms.
        chosen: Launches; None for all.
    """
    parts: dict[Figure, list[float]] = {}
    launches = None if chosen is None else list(chosen)
    for term in items:
        values = term.values if launches is None else [term.values[i] for i in launches]
        parts.setdefault(term.figure, []).append(math.fsum(values))
    return {figure: math.fsum(values) for figure, values in parts.items()}


def by_kernel(items: Iterable[Term]) -> dict[str, dict[Figure, float]]:
    """Sums of figures by kernel name."""
    found: dict[str, dict[Figure, float]] = {}
    for term in items:
        sums = [0.0] * len(term.titles)
        seen = [False] * len(term.titles)
        for name, value in zip(term.names, term.values, strict=True):
            sums[name] += value
            seen[name] = True
        for title, value, there in zip(term.titles, sums, seen, strict=True):
            if there:
                kernel = found.setdefault(title, {})
                kernel[term.figure] = kernel.get(term.figure, 0.0) + value
    return found


def covered(parts: Terms, level: str, count: int) -> tuple[float | None, int]:
    """Intensity over the launches that have both FLOP and bytes, and how many these are."""
    flop = _by_launch(parts.of("flop"), count)
    byte = _by_launch([t for t in parts.of("byte") if t.figure[1] == level], count)
    both = [
        (top, bottom)
        for top, bottom in zip(flop, byte, strict=True)
        if not math.isnan(top) and not math.isnan(bottom)
    ]
    work, moved = math.fsum(top for top, _ in both), math.fsum(bottom for _, bottom in both)
    return (work / moved if moved else None), len(both)


def _by_launch(items: Sequence[Term], count: int) -> "array[float]":
    if not items:
        return array("d", [math.nan] * count)
    total = array("d", items[0].values)
    for term in items[1:]:
        total = array("d", map(_plus, total, term.values))
    return total


def nan_count(launches: Launches, column: Column) -> int:
    """Launches for which a column has no number."""
    return sum(map(math.isnan, column.filled(len(launches))))


def _fill(first: Term, second: Term) -> Term:
    """The first term with its gaps filled from the second."""
    if not _has_nan(first.values):
        return first
    pick: Callable[[float, float], float] = lambda a, b: b if math.isnan(a) else a  # noqa: E731
    values = array("d", map(pick, first.values, second.values))
    return Term(first.figure, values, first.names, first.titles, first.source)


def _has_nan(values: "array[float]") -> bool:
    return any(map(math.isnan, values))


def _is_wider(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    """Whether a counter contains another: it leaves open what the other pins down."""
    return wide != narrow and all(a in ("", b) for a, b in zip(wide, narrow, strict=True))


def _rank(column: Column) -> int:
    return column.meaning.rank if column.meaning is not None else 0


def _over(top: float, bottom: float) -> float:
    return top / bottom if bottom else math.nan


def _times(first: float, second: float) -> float:
    return first * second


def _plus(first: float, second: float) -> float:
    return first + second
