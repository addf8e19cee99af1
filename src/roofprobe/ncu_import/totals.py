"""FLOP by path, bytes by level, time and intensity of a workload. A missing part makes None.

Half precision: the counters count instructions, and nothing tells whether one works on two values
or on one (or only converts, or loads a constant). The weights are 2, 2, 4 for add, mul, fma,
which is the most that they can be; figures that hold such counts are listed as upper bounds. The
exception are Volta logs with ``sm__sass_*`` names, the form that ncu of 2019 and 2020 users
recorded and published analyses are made of: there the weights are 1, 1, 2, as published.

Tensor cores: operations (``ops_path_tensor``) count as they are, an FMA being two. Instructions
count only where every shape does the same work (Volta: 512 FLOP); elsewhere the FLOP are unknown.
Where anything else shows that tensor cores worked in a launch of which no operations were counted,
they are unknown, too: a kernel's operations may be of a type that nobody asked for. What shows it
is a counter of their pipe, or the kernel's name.

Time is the sum over launches of their durations; where there is none, of cycles over cycle rate.
The SM clock is SM cycles over time, in the launches where the files tell both.
"""

import math
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

from roofprobe import metrics
from roofprobe.ncu_import import vocabulary
from roofprobe.ncu_import.launches import Column, Launches
from roofprobe.ncu_import.merge import Workload
from roofprobe.ncu_import.vocabulary import Meaning

VOLTA: Final = "7.0"

# dram__bytes against read + write; collected in the same run they agree to the printed digit.
_CONSISTENT: Final = 1e-3
# A label of the details page shows three or four digits.
_ALIKE: Final = 1e-2
_SHOWN: Final = 3  # metrics in one message
# Of one launch, in two metrics that may be of different passes.
_NOTEWORTHY: Final = 0.05
_NAME: Final = 100  # characters of a kernel's name in a message
_EVERY_TYPE: Final = "sm__ops_path_tensor_src_*.sum"
_COLLECT: Final = f"collect {_EVERY_TYPE} of every type that the GPU has"
_OPERATIONS: Final = ("sm__ops_path_tensor", "smsp__ops_path_tensor")
# Compute capabilities on which a matrix product of known size showed what the counters count.
_SETTLED: Final = frozenset({"9.0"})
_SASS_PATHS: Final = ("sass_fp16", "sass_fp32", "sass_fp64")
_OPS: Final = ("add", "mul", "fma")
_DAY: Final = 86400.0  # s; no kernel runs that long, but broken time stamps say so

_VOLTA_KERNEL: Final = re.compile(r"\bvolta_")
_LATER_KERNEL: Final = re.compile(
    r"\b(turing|ampere|sm7[5-9]|sm[89][0-9]|sm1[0-9][0-9]|cutlass_[89])"
)

# Hz; no GPU's SMs run outside of this.
SLOWEST: Final = 1e7
FASTEST: Final = 4e9
_SM_UNITS: Final = (("sm",), ("smsp",), ("gpc",), ("tpc",))

# What a metric adds to a figure, and so leaves it without value where ncu could not collect it.
_ADDING: Final = frozenset({"flop", "tensor", "pipe", "byte", "time"})

# ("flop", path), ("op", path), ("byte", level), ("time", ""), and for the SM clock
# ("clock", "cycle") and ("clock", "second").
Figure = tuple[str, str]


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
        unusable: Metric -> why its values cannot be used, beyond what the files' launches say.
        scale: Factor that a calibration found, None without one.
    """

    items: list[Term] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    upper_bound: list[str] = field(default_factory=list)
    blind: bool = False
    unusable: dict[str, str] = field(default_factory=dict)
    scale: float | None = None

    def of(self, kind: str) -> list[Term]:
        """The terms of one kind of figure."""
        return [term for term in self.items if term.figure[0] == kind]


def terms(work: Workload, capability: str | None, missing: Iterable[str] = ()) -> Terms:
    """What every launch adds to every figure.

    Args:
        work: The merged files; metrics that are missing get a column without values.
        capability: Compute capability that the user named, for launches that have none.
        missing: Metrics that ncu said it could not collect.
    """
    launches = work.launches
    known = {column.name for column in launches.columns}
    for name in missing:
        meaning = vocabulary.expected(name)
        if name not in known and meaning is not None and meaning.kind in _ADDING:
            launches.columns.append(Column((name,), meaning, launches.names, launches.titles))
    return _Builder(work, capability).build()


class _Builder:
    def __init__(self, work: Workload, capability: str | None) -> None:
        self._launches = work.launches
        self._paired = work.paired
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
        self._clock(time)
        self._sass(time)
        if not self._tensor(time):
            self._pipe(time)
        self._signs()
        self._kernel_names()
        if not self._out.of("flop"):
            self._out.reasons["flop.total"] = self._nothing()
        self._bytes(time)
        # Messages name a figure's first term: that should be one which is unknown.
        self._out.items.sort(key=lambda term: not _has_nan(term.values))
        return self._out

    # Time

    def _time(self) -> Term | None:
        given = self._columns.get("time", {}).get((), [])
        found = self._coalesce(("time", ""), given, None) if given else None
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
        # One launch can be shorter than the last digit printed; all of them took some time.
        if not any(found.values):
            found.values[:] = array("d", [math.nan] * self._count)
            self._out.reasons["time_s"] = (
                f"{found.source} is 0 s in every launch: no time was taken"
            )
        self._out.items.append(found)
        return found

    def _from_cycles(self) -> Term | None:
        """Cycles over cycle rate, of the same unit of the chip."""
        cycles, clocks = self._columns.get("cycle", {}), self._columns.get("clock", {})
        for part in _SM_UNITS:
            if part in cycles and part in clocks:
                top, bottom = cycles[part][0], clocks[part][0]
                # Two runs in different orders pair by position: the clock follows the moment.
                values = array("d", map(_over, self._values(top), self._rates(bottom)))
                blamed = bottom if bottom.name in self._out.unusable else top
                return Term(("time", ""), values, top.names, top.titles, blamed.name)
        return None

    def _rates(self, column: Column) -> "array[float]":
        """The clock by launch, Hz; NaN where it is none."""
        values = self._values(column)
        for launch, value in enumerate(values):
            if not SLOWEST <= value <= FASTEST and not math.isnan(value):
                values[launch] = math.nan
                why = f"{value:.6g} Hz in {self._launches.describe(launch)}, which no GPU runs at"
                if column.name not in self._out.unusable:
                    self._warn(f"{column.name} is {why}: not used")
                    self._out.unusable[column.name] = why
        return values

    def _clock(self, time: Term | None) -> None:
        """Adds SM cycles and the time that they took; without times every launch counts alike."""
        cycles, clocks = self._columns.get("cycle", {}), self._columns.get("clock", {})
        rates = next((clocks[part][0] for part in _SM_UNITS if part in clocks), None)
        counts = next((cycles[part][0] for part in _SM_UNITS if part in cycles), None)
        over = time.values if time is not None else array("d", [1.0] * self._count)
        found: list[Term] = []
        if rates is not None:
            values = array("d", map(_times, self._rates(rates), over))
            found.append(Term(("", ""), values, rates.names, rates.titles, rates.name))
        if counts is not None and time is not None:
            found.append(self._term(("", ""), counts))
        if not found:
            return
        chosen = _first_known(found)
        known = [not math.isnan(both) for both in map(_plus, chosen.values, over)]
        for unit, each in (("cycle", chosen.values), ("second", over)):
            told = array("d", [x if k else 0.0 for x, k in zip(each, known, strict=True)])
            self._out.items.append(replace(chosen, figure=("clock", unit), values=told))

    # CUDA cores

    def _sass(self, time: Term | None) -> None:
        by_op: dict[tuple[str, str], list[Column]] = {}
        for (path, op, _), columns in self._columns.get("flop", {}).items():
            by_op.setdefault((path, op), []).extend(columns)
        packed = False
        for (path, _), columns in by_op.items():
            columns.sort(key=_rank)
            weights = []
            for column in columns:
                weight = _meaning(column).weight
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
                weights.append(weight)
            counts = [self._as_count(column, time) for column in columns]
            self._out.items.append(self._combine(("flop", path), counts, weights))
        if packed:
            self._out.upper_bound += ["sass_fp16", "total"]
        self._sass_hints(by_op)

    def _sass_hints(self, by_op: Mapping[tuple[str, str], object]) -> None:
        """Instructions that were asked for in a form that gives no count."""
        paths = {path for path, _ in by_op}
        for kind, *part in self._hints("flop"):
            path, op = part
            if (path, op) in by_op or (not op and path in paths):
                continue
            columns = self._columns["hint"][(kind, *part)]
            if not op and path == "sass_fp16":
                self._aside(columns)
                continue
            for column in columns:
                # A peak of a type of which nothing was counted was wanted as a roof.
                if not _meaning(column).silent or path in paths:
                    self._unknown(("flop", path), column)

    def _aside(self, columns: Sequence[Column]) -> None:
        """Says that instructions of CUDA cores are in no total: fp16 there is an upper bound."""
        totals_first = sorted(columns, key=lambda column: not column.name.endswith(".sum"))
        for column in totals_first:
            if not _meaning(column).silent and any(value > 0 for value in column.values):
                why = f"{column.name} {_meaning(column).flaw}"
                self._warn(f"fp16 instructions of CUDA cores are in no total: {why}")
                self._out.unusable[column.name] = _meaning(column).flaw
                self._out.reasons.setdefault("flop.sass_fp16", why)
                return

    def _hints(self, kind: str) -> list[tuple[str, ...]]:
        return [part for part in self._columns.get("hint", {}) if part[:1] == (kind,)]

    def _unknown(self, figure: Figure, column: Column) -> None:
        """A figure of which one part is only hinted at, in the launches where it is not 0."""
        term = self._term(figure, column)
        silent = _meaning(column).silent
        for launch, value in enumerate(term.values):
            term.values[launch] = 0.0 if value == 0 and not silent else math.nan
        if _has_nan(term.values):
            flaw = _meaning(column).flaw
            self._out.unusable[column.name] = flaw
            self._out.reasons.setdefault(".".join(figure), f"{column.name} {flaw}")
            self._out.items.append(term)

    def _nothing(self) -> str:
        """Why there are no FLOP at all."""
        flaws = {
            column.name: _meaning(column).flaw
            for part, columns in self._columns.get("hint", {}).items()
            if part[:1] != ("pipe",)
            for column in columns
        }
        if not flaws:
            return "no FLOP counter is in the files"
        said = "; ".join(f"{name} {flaw}" for name, flaw in list(flaws.items())[:_SHOWN])
        more = f"; and {len(flaws) - _SHOWN} more" if len(flaws) > _SHOWN else ""
        return f"no usable FLOP counter is in the files: {said}{more}"

    def _as_published(self, column: Column) -> bool:
        return _meaning(column).part[2] == "sm" and all(
            self._capability(owner) == VOLTA for owner in range(len(self._launches.owners))
        )

    def _as_count(self, column: Column, time: Term | None) -> Term:
        """A column as a count, rates multiplied out."""
        term = self._term(("", ""), column)
        per = _meaning(column).per
        if not per:
            return term
        if per == "second":
            factor = time.values if time is not None else None
        else:
            factor = self._elapsed(time)
        if factor is None:
            over = "what time it ran" if per == "second" else "how many cycles it ran"
            self._out.unusable[column.name] = f"a rate, and the files do not say over {over}"
            factor = array("d", [math.nan] * self._count)
        values = array("d", map(_times, term.values, factor))
        if any(value > 0 for value in values):
            over = "time" if per == "second" else "cycles"
            self._warn(
                f"{column.name} is a rate: multiplied by the {over}, with the digits printed"
            )
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

    def _tensor(self, time: Term | None) -> bool:
        """Adds operations; False where the files have no such counter."""
        given = self._columns.get("tensor", {})
        by_source: dict[tuple[str, str], dict[tuple[str, ...], Term]] = {}
        for (path, source, *rest), columns in given.items():
            # A counter's subdivisions (by instruction, result, sparsity) are part of it.
            if not any(_is_wider(other, (path, source, *rest)) for other in given):
                found = self._coalesce(_operations(path), columns, time)
                by_source.setdefault((path, source), {})[tuple(rest)] = found
        self._lacking_types(
            {
                (*source, *rest): term
                for source, parts in by_source.items()
                for rest, term in parts.items()
            }
        )
        for parts in by_source.values():
            self._overlaps(parts)
            self._out.items += parts.values()
        for _, *part in self._hints("tensor"):
            if not any(other == tuple(part) or _is_wider(other, part) for other in given):
                for column in self._columns["hint"][("tensor", *part)]:
                    silent = _meaning(column).silent
                    if not silent or not any(other[1:2] == tuple(part[1:2]) for other in given):
                        self._unknown(_operations(part[0] if part else "tensor"), column)
        return bool(self._tensor_terms())

    def _lacking_types(self, terms: Mapping[tuple[str, ...], Term]) -> None:
        """Makes 0 of n/a for a type that a launch's chip lacks, where its other types are counted.

        A script that asks for every type of every chip is normal.
        """
        gaps = {part: term for part, term in terms.items() if _has_nan(term.values)}
        if not self._paired or not gaps:
            return
        owners = range(len(self._launches.owners))
        wanted = [vocabulary.tensor_parts(self._capability(owner)) for owner in owners]
        for launch, owner in enumerate(self._launches.owner):
            unknown = [part for part, term in gaps.items() if math.isnan(term.values[launch])]
            for part in _foreign(unknown, wanted[owner], terms.keys() - set(unknown)):
                terms[part].values[launch] = 0.0

    def _tensor_terms(self) -> list[Term]:
        return [term for term in self._out.items if term.figure[1].startswith("tensor")]

    def _overlaps(self, parts: Mapping[tuple[str, ...], Term]) -> None:
        """Takes out what two subdivisions of a counter may both have counted."""
        for (ours, first), (theirs, second) in combinations(parts.items(), 2):
            if any(a and b and a != b for a, b in zip(ours, theirs, strict=True)):
                continue  # they differ in what both pin down
            if self._paired:
                pairs = zip(first.values, second.values, strict=True)
                both = [launch for launch, (one, other) in enumerate(pairs) if one and other]
            else:
                both = list(range(self._count)) if any(first.values) and any(second.values) else []
            for launch in both:
                first.values[launch] = math.nan
            if both:
                self._out.reasons[".".join(first.figure)] = (
                    f"{first.source} and {second.source} may both count the same operations: "
                    "collect the counter that they are parts of"
                )

    def _pipe(self, time: Term | None) -> None:
        """Adds tensor instructions, for want of operations."""
        parts = self._columns.get("pipe", {})
        chosen = [parts[("",)]] if ("",) in parts else list(parts.values())
        for columns in chosen:
            found = self._coalesce(("flop", "tensor"), columns, time)
            busy = any(value > 0 for value in found.values)
            pairs = list(zip(found.values, self._pipe_weights(), strict=True))
            if any(value > 0 and weight is None for value, weight in pairs):
                self._out.blind = True
                self._out.reasons["flop.tensor"] = (
                    f"instruction shape unknown: {found.source} counts instructions, and their "
                    f"FLOP differ by shape and type; {_COLLECT}"
                )
            if busy and self._guessed:
                self._warn(
                    "the files do not name the GPU; kernel names (volta_*) say Volta. "
                    "--gpu overrules that"
                )
            # A launch that used no tensor core does not tell of what kind they are.
            used = [weight for value, weight in pairs if value] or [weight for _, weight in pairs]
            flop = [
                (math.nan if weight is None else value * weight) if value else 0.0
                for value, weight in pairs
            ]
            path = "tensor" if None in used else "tensor_fp16"
            self._out.items.append(replace(found, figure=("flop", path), values=array("d", flop)))

    def _pipe_weights(self) -> list[float | None]:
        """FLOP of a tensor instruction, by launch; None where its shape is not known."""
        owners = range(len(self._launches.owners))
        weights = [vocabulary.PIPE_FLOP.get(self._capability(o) or "") for o in owners]
        if not self._paired and len(set(weights)) > 1:
            return [None] * self._count  # nobody knows which launch ran where
        return [weights[owner] for owner in self._launches.owner]

    def _signs(self) -> None:
        """Tensor cores that worked in launches of which no operations were counted."""
        if self._all_types():
            return
        counted = self._counted(self._tensor_terms())
        signs = [("flop", columns) for columns in self._columns.get("pipe", {}).values()]
        signs += [(part[1], self._columns["hint"][part]) for part in self._hints("pipe")]
        for kind, columns in signs:
            for column in columns:
                self._sign(kind, column, counted)

    def _sign(self, kind: str, column: Column, counted: dict[object, float]) -> None:
        """Makes unknown what a counter saw and ``counted`` lacks, and adds it there."""
        sign = self._term((kind, "tensor" if kind == "flop" else "tensor_int"), column)
        for launch, key in enumerate(self._keys(sign)):
            missed = sign.values[launch] > 0 and counted.get(key, 0.0) == 0
            sign.values[launch] = math.nan if missed else 0.0
        for key, value in zip(self._keys(sign), sign.values, strict=True):
            counted[key] = counted.get(key, 0.0) + value
        if _has_nan(sign.values):
            self._out.items.append(sign)
            self._out.blind = self._out.blind or kind == "flop"
            self._out.reasons.setdefault(
                ".".join(sign.figure),
                f"{column.name} says that tensor cores worked where no counter in the files gives "
                f"their operations; {_COLLECT}",
            )

    def _keys(self, term: Term) -> Sequence[object]:
        """What tells a term's launches apart: where the files' orders differ, only the kernel."""
        return range(self._count) if self._paired else [term.titles[name] for name in term.names]

    def _all_types(self) -> bool:
        """Whether the files have tensor operations of every type that the GPUs know."""
        given = self._columns.get("tensor", {})
        for owner in range(len(self._launches.owners)):
            wanted = vocabulary.tensor_parts(self._capability(owner))
            if wanted is None or not all(
                any(other == part or _is_wider(other, part) for other in given) for part in wanted
            ):
                return False
        return True

    def _kernel_names(self) -> None:
        """Makes unknown what kernels did whose names tell of tensor cores that nothing counted."""
        launches = self._launches
        types = {
            index: vocabulary.tensor_types(title)
            for index, title in enumerate(launches.titles)
            if vocabulary.uses_tensor_cores(title)
        }
        if not types or not self._out.of("flop"):
            return
        counted = self._counted([term for term in self._tensor_terms() if term.figure[0] == "flop"])
        idle = self._idle(launches.titles[name] for name in types)
        owners = range(len(launches.owners))
        sources: dict[tuple[int, Sequence[int]], str | None] = {}
        uncounted: dict[str, int] = {}  # metric -> its first kernel
        values = array("d", [0.0] * self._count)
        for launch, name in enumerate(launches.names):
            title = launches.titles[name]
            key = launch if self._paired else title
            # NaN counts as a count here: what is unknown already has its own reason.
            if name not in types or counted.get(key, 0.0) != 0 or (key, title) in idle:
                continue
            # Where the orders differ, nobody knows which launch ran where.
            ran = (launches.owner[launch],) if self._paired else tuple(owners)
            if (name, ran) not in sources:
                sources[name, ran] = self._missing_counter(types[name], ran)
            source = sources[name, ran]
            if source is not None:
                uncounted.setdefault(source, name)
                values[launch] = math.nan
        self._blame(uncounted, values)

    def _blame(self, uncounted: Mapping[str, int], values: "array[float]") -> None:
        """Adds what no counter saw.

        Args:
            uncounted: Metric that would have counted -> index of a kernel.
            values: NaN for the launches.
        """
        launches = self._launches
        for source, name in uncounted.items():
            self._out.unusable[source] = why = (
                f"not in the files, and by their names kernels such as "
                f"{launches.titles[name][:_NAME]} use tensor cores; {_COLLECT}"
            )
            self._out.reasons.setdefault("flop.tensor", f"{source}: {why}")
        if uncounted:
            figure = ("flop", "tensor")
            source = next(iter(uncounted))
            self._out.items.append(Term(figure, values, launches.names, launches.titles, source))
            self._out.blind = True

    def _counted(self, terms: Iterable[Term]) -> dict[object, float]:
        """Sums of terms by what tells launches apart."""
        counted: dict[object, float] = {}
        for term in terms:
            for key, value in zip(self._keys(term), term.values, strict=True):
                counted[key] = counted.get(key, 0.0) + value
        return counted

    def _idle(self, titles: Iterable[str]) -> set[tuple[object, str]]:
        """Launches, with their kernels' names, of which a counter says: no tensor core worked."""
        wanted = set(titles)
        found: set[tuple[object, str]] = set()
        columns = [each for part in self._columns.get("pipe", {}).values() for each in part]
        for part in self._hints("pipe"):
            columns += self._columns["hint"][part]
        for column in columns:
            term = self._term(("", ""), column)
            said: dict[tuple[object, str], float] = {}
            for key, name, value in zip(self._keys(term), term.names, term.values, strict=True):
                title = term.titles[name]
                if title in wanted and vocabulary.is_seen_by(column.name, title):
                    said[key, title] = said.get((key, title), 0.0) + value
            found |= {each for each, value in said.items() if value == 0}
        return found

    def _missing_counter(self, types: frozenset[str], owners: Iterable[int]) -> str | None:
        """A counter of tensor operations that a kernel needs and the files lack; None for none.

        Args:
            types: That its name tells; empty where it tells none.
            owners: Where it may have run.
        """
        given = self._columns.get("tensor", {})
        for owner in owners:
            every = vocabulary.tensor_parts(self._capability(owner))
            if every is None:
                have = {source for part in given for source in part[1].split("_")}
                if not types or not types <= have:
                    return _EVERY_TYPE
                continue
            needed = [part for part in every if not types.isdisjoint(part[1].split("_"))]
            for part in needed or every:
                if not any(_has(other, part) for other in given):
                    return vocabulary.tensor_metric(part)
        return None

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
                if columns:
                    figure = ("byte", f"{level}_{direction}" if direction else level)
                    found[direction] = self._coalesce(figure, columns, time)
            self._level(level, found)

    def _level(self, level: str, found: Mapping[str, Term]) -> None:
        read, write, total = (found.get(direction) for direction in ("read", "write", ""))
        if level == "dram" and write is not None and not any(write.values):
            self._warn(
                f"{write.source} is 0: L2 writes back late, so what the kernels wrote may still "
                "lie there. DRAM bytes and intensity are without it; bytes at L2 have it"
            )
        self._out.items += [part for part in (read, write) if part is not None]
        both = None
        if read is not None and write is not None:
            values = array("d", map(_plus, read.values, write.values))
            both = Term(("byte", level), values, read.names, read.titles, read.source)
        if both is not None and total is not None:
            differ = self._difference(both, total, _CONSISTENT)
            if differ is not None:
                self._warn(
                    f"{level} bytes do not add up: read + write and {total.source} are {differ}; "
                    "read + write is used"
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

    def _coalesce(self, figure: Figure, columns: Sequence[Column], time: Term | None) -> Term:
        counts = [self._as_count(column, time) for column in columns]
        return self._combine(figure, counts, [_meaning(column).weight for column in columns])

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
                differ = self._difference(result, item, _ALIKE)
                if differ is not None:
                    self._warn(
                        f"{result.source} and {item.source} count the same and differ: "
                        f"{differ}; the first is used"
                    )
                result = _fill(result, item)
        assert result is not None
        return result

    def _difference(self, ours: Term, theirs: Term, tolerance: float) -> str | None:
        """Where two metrics of one quantity differ, in words; None where they agree.

        Their sums may differ by ``tolerance``. So that errors of launches do not cancel, their
        differences are added up too; those are larger, for every launch is rounded.
        """
        pairs = [
            (launch, pair)
            for launch, pair in enumerate(zip(ours.values, theirs.values, strict=True))
            if not math.isnan(sum(pair))
        ]
        first, second = (math.fsum(pair[side] for _, pair in pairs) for side in (0, 1))
        if not math.isclose(first, second, rel_tol=tolerance):
            return f"{first:.6g} and {second:.6g}"
        if ours.names is not theirs.names:
            return None
        if math.fsum(abs(a - b) for _, (a, b) in pairs) <= _NOTEWORTHY * max(first, second):
            return None
        launch, (a, b) = max(pairs, key=lambda each: abs(each[1][0] - each[1][1]))
        return f"{a:.6g} and {b:.6g} in {self._launches.describe(launch)}"

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


def unsettled(parts: Terms, work: Workload, capability: str | None) -> str | None:
    """Warns where nobody has checked that the tensor counters count an FMA as two.

    Args:
        parts: Of all launches.
        work: The merged files.
        capability: Compute capability that the user named, for launches that have none.
    """
    launches = work.launches
    counted = [
        term.values
        for term in parts.of("flop")
        if term.source.startswith(_OPERATIONS) and any(value > 0 for value in term.values)
    ]
    if parts.scale is not None or not counted:
        return None
    who = launches.owner
    ran = (
        {who[i] for values in counted for i, value in enumerate(values) if value > 0}
        if work.paired
        else set(who)
    )
    chips = {launches.owners[owner].compute_capability or capability for owner in ran}
    if chips <= _SETTLED:
        return None
    others = sorted(filter(None, chips - _SETTLED))
    where = f"compute capability {', '.join(others)}" if others else "a GPU that is not named"
    return (
        f"tensor operations are taken to count an FMA as two on {where}, which was checked on "
        f"compute capability {', '.join(sorted(_SETTLED))} only: --calibration settles it with a "
        "matrix product of known size"
    )


def not_counted(work: Workload, capability: str | None) -> list[str]:
    """What a total of FLOP leaves out because its counters are not in the files, in sentences.

    Args:
        work: The merged files.
        capability: Compute capability that the user named, for launches that have none.
    """
    launches = work.launches
    ops: dict[str, set[str]] = {}
    tensor = False
    for column in launches.columns:
        if column.meaning is not None:
            part = column.meaning.part
            if column.meaning.kind != "hint":
                part = (column.meaning.kind, *part)
            kind = part[0]
            tensor = tensor or kind in ("tensor", "pipe")
            if kind == "flop":
                ops.setdefault(part[1], set()).add(part[2])
    said = [_some(path, ops[path]) for path in _SASS_PATHS if path in ops]
    if not ops:
        said.append(
            "flop.total counts tensor cores alone: no counter of CUDA cores is in the files; "
            f"collect {vocabulary.sass_metric('sass_fp32', '*')}"
        )
    elif "sass_fp64" not in ops:
        doubles = filter(vocabulary.uses_fp64, launches.titles)
        said += [
            f"flop.total counts no fp64 instructions of CUDA cores: by their names kernels such as "
            f"{title[:_NAME]} have some, and no such counter is in the files; collect "
            f"{vocabulary.sass_metric('sass_fp64', '*')}"
            for title in list(doubles)[:1]
        ]
    chips = (owner.compute_capability or capability for owner in launches.owners)
    if not tensor and any(map(vocabulary.has_tensor_cores, chips)):
        said.append(
            "flop.total counts CUDA cores alone: no counter of tensor cores is in the files; "
            f"{_COLLECT}"
        )
    return list(filter(None, said))


def _some(path: str, ops: Collection[str]) -> str | None:
    """Says which kinds of instructions of a path nobody counted; None where there is none."""
    told = {op[1:].rstrip("24") for op in ops}
    lacking = [op for op in _OPS if op not in told]
    if "" in told or not lacking:
        return None  # one counter of all kinds has its own reason
    names = " or ".join(vocabulary.sass_metric(path, op) for op in lacking)
    have = " and ".join(op for op in _OPS if op in told)
    return f"flop.total counts {have} of {path} alone: no {names} is in the files"


def nan_count(launches: Launches, column: Column) -> int:
    """Launches for which a column has no number."""
    return sum(map(math.isnan, column.filled(len(launches))))


def _first_known(found: Sequence[Term]) -> Term:
    """The first term that knows something, its gaps filled from the others of its order."""
    chosen = next((term for term in found if not all(map(math.isnan, term.values))), found[0])
    for term in found:
        if term.names is chosen.names:
            chosen = _fill(chosen, term)
    return chosen


def _fill(first: Term, second: Term) -> Term:
    """The first term with its gaps filled from the second."""
    if not _has_nan(first.values):
        return first
    pick: Callable[[float, float], float] = lambda a, b: b if math.isnan(a) else a  # noqa: E731
    values = array("d", map(pick, first.values, second.values))
    return Term(first.figure, values, first.names, first.titles, first.source)


def _has_nan(values: "array[float]") -> bool:
    return any(map(math.isnan, values))


def _foreign(
    unknown: Iterable[tuple[str, ...]],
    wanted: Sequence[tuple[str, ...]] | None,
    known: Collection[tuple[str, ...]],
) -> list[tuple[str, ...]]:
    """Which counters without a value count what a chip does not have.

    Args:
        unknown: The counters.
        wanted: Those that see every tensor FLOP of the chip, None where that is not known.
        known: Those with a value; without any, nothing tells that tensor cores were looked at.
    """
    if wanted is None or not known:
        return []
    every = all(any(_has(other, part) for other in known) for part in wanted)
    types = {name for part in wanted for name in part[1].split("_")}
    return [
        part
        for part in unknown
        if not part[0].startswith("tensor_int")
        and not any(_has(part, other) or _has(other, part) for other in wanted)
        # A chip may count fp8 together with fp4: only all of its counters have it for sure.
        and (every or types.isdisjoint(part[1].split("_")))
    ]


def _has(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Whether a counter is another, or contains it."""
    return tuple(wide) == tuple(narrow) or _is_wider(wide, narrow)


def _is_wider(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Whether a counter contains another: it leaves open what the other pins down."""
    same_length = len(wide) == len(narrow) and tuple(wide) != tuple(narrow)
    return same_length and all(a in ("", b) for a, b in zip(wide, narrow, strict=True))


def _operations(path: str) -> Figure:
    """Integer operations are no FLOP."""
    return "op" if path.startswith("tensor_int") else "flop", path


def _meaning(column: Column) -> Meaning:
    assert column.meaning is not None
    return column.meaning


def _rank(column: Column) -> int:
    return _meaning(column).rank


def _over(top: float, bottom: float) -> float:
    return top / bottom if bottom else math.nan


def _times(first: float, second: float) -> float:
    return first * second


def _plus(first: float, second: float) -> float:
    return first + second
