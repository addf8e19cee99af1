"""The launches of one file, column by column, so that a million rows fit in little memory.

A launch is known by (process, device, context, ID), and by its time of day where the file has it.
A column holds one metric of every launch.
"""

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from roofprobe.errors import RecordError
from roofprobe.ncu_import import numerals, unit_names, vocabulary
from roofprobe.ncu_import.numerals import Known, NotANumberError, Numerals
from roofprobe.ncu_import.vocabulary import Meaning

_T = TypeVar("_T")

# In a column: no row at all, and a row without a number. Neither is ever a value.
_NO_ROW: Final = math.nan
_NO_VALUE: Final = -math.inf

NAMELESS: Final = "(no name)"

# What --print-metric-instances puts behind a value: "1,000 (500; 500)", "1,000 (0x10: 500)".
_INSTANCES: Final = re.compile(r"(?<=[0-9])\s*\([0-9][^()]*\)\s*$")

_DIGITS: Final = 19  # fewer are a number without a second look
_LARGEST_ID: Final = 2**62

# Two decimals is the least that ncu prints in a scaled unit; in the same unit values must be equal.
_ROUNDING: Final = 5e-3  # of the unit
_SAME: Final = 1e-9


class Owner(NamedTuple):
    """Who launched: None where the file does not say."""

    process: str
    device: str | None
    context: str
    compute_capability: str | None
    host: str = ""


class Column:
    """One metric of every launch, in its base unit.

    Attributes:
        name: The metric's name in the file.
        meaning: What it contributes; None for one that only duplicates are looked for.
        values: By launch; may be shorter than the list of launches.
        reasons: Why cells have no number -> how many.
        names: By launch, an index into ``titles``; the launches of the file that it comes from.
        titles: Kernel names.
        key: What tells it from other columns: its name, and for a label what it stands for and the
            section.
        scales: Of the units that it is printed in, in order of appearance.
    """

    def __init__(
        self, key: tuple[str, ...], meaning: Meaning | None, names: "array[int]", titles: list[str]
    ) -> None:
        self.key = key
        self.name = key[0]
        self.meaning = meaning
        self.values = array("d")
        self.reasons: dict[str, int] = {}
        self.names = names
        self.titles = titles
        self.scales: list[float] = []
        self.doubted = False  # some value reads two ways
        # By launch, an index into ``scales``; what lies beyond its end is in the first of them.
        self._units = array("B")

    @property
    def tolerance(self) -> float:
        """How far from the true ones values can be, as a fraction; beyond that they differ."""
        return _SAME if set(self.scales) <= {1.0} else _ROUNDING

    def unit(self, scale: float) -> int:
        """The index of a unit in ``scales``."""
        if scale not in self.scales:
            self.scales.append(scale)
        return self.scales.index(scale)

    def scale(self, launch: int) -> float:
        """That of the unit in which a launch's value is printed."""
        return self.scales[self._unit_of(launch)]

    def _unit_of(self, launch: int) -> int:
        return self._units[launch] if launch < len(self._units) else 0

    def note_unit(self, launch: int, unit: int) -> None:
        """Keeps in which unit a launch's value is printed."""
        if unit or launch < len(self._units):
            self._units.extend([0] * (launch + 1 - len(self._units)))
            self._units[launch] = unit

    def take(self, launch: int, value: float, scale: float) -> bool:
        """Adds a value of a launch; of two that agree the finer is kept.

        Returns:
            False where the launch has another value.
        """
        known = self.values[launch]
        if value == _NO_VALUE and not math.isnan(known):
            return True
        if known != _NO_VALUE and not math.isnan(known):
            if not _agree(known, value, self.scale(launch), scale):
                return False
            if scale >= self.scale(launch):
                return True
        self.values[launch] = value
        self.note_unit(launch, self.unit(scale))
        return True

    def select(self, order: Sequence[int], count: int) -> None:
        """Keeps some of ``count`` launches, in a new order."""
        values = self.padded(count)
        self.values = array("d", [values[i] for i in order])
        self._units = array("B", map(self._unit_of, order))

    def refuse_zero(self, launch: int, reason: str) -> None:
        """Takes a 0 of a launch for no value."""
        if launch < len(self.values) and self.values[launch] == 0:
            self.values[launch] = _NO_VALUE
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def padded(self, count: int) -> "array[float]":
        """The cells of ``count`` launches."""
        values = array("d", self.values)
        values.extend([_NO_ROW] * (count - len(values)))
        return values

    def filled(self, count: int) -> "array[float]":
        """The values of ``count`` launches, NaN where there is none."""
        values = self.padded(count)
        if self.reasons:
            for index, value in enumerate(values):
                if value == _NO_VALUE:
                    values[index] = math.nan
        return values

    def has(self, launch: int) -> bool:
        """Whether the file has a row for a launch, with a number or without."""
        return launch < len(self.values) and not math.isnan(self.values[launch])


class Sink:
    """Where the values of one (metric, unit, section) of a file go."""

    __slots__ = (
        *("_column", "_index", "_known", "_launches", "_refusal", "_scale", "_tells", "_unit"),
        *("_usual", "_values"),
    )

    def __init__(
        self,
        launches: "Launches",
        column: Column,
        index: int,
        scale: float,
        known: Known,
        refusal: str | None,
    ) -> None:
        self._launches = launches
        self._column = column
        self._index = index
        self._scale = scale
        self._values = column.values
        self._known = known
        self._tells = known.needed or known.clue is not None
        self._refusal = refusal
        self._unit = column.unit(scale)
        self._usual = launches.numerals.usual

    def put(self, launch: int, text: str) -> None:
        """Stores a cell.

        Raises:
            RecordError: it is needed and no number.
        """
        if self._refusal is None and text.isdecimal() and len(text) < _DIGITS:
            if len(text) > 3 and self._tells:
                self._launches.numerals.ungrouped = True
            en = de = float(text) * self._scale
        elif self._refusal is None and (usual := self._usual(text)) is not None:
            en = de = usual * self._scale
        else:
            found = self._read(text)
            if found is None:
                return
            en, de = found
        values = self._values
        count = len(values)
        if launch == count:
            values.append(en)
        elif launch > count:
            values.extend([_NO_ROW] * (launch - count))
            values.append(en)
        elif math.isnan(values[launch]) or values[launch] == _NO_VALUE:
            values[launch] = en
        else:
            self._launches.came_again(launch)
            # What reads two ways agrees or not only in the format that is found in the end.
            open_ = en != de or self._column.doubted
            if open_ or values[launch] != en or self._scale < self._column.scale(launch):
                self._launches.repeat(self._index, launch, en, de, self._scale)
            return
        if self._unit:
            self._column.note_unit(launch, self._unit)
        if en != de:
            self._launches.doubt(self._index, launch, de)

    def _read(self, text: str) -> tuple[float, float] | None:
        """A cell in both formats, without a number where it has none; None for one of no use."""
        reason = self._refusal
        if text.endswith(")") and (found := _INSTANCES.search(text)) is not None:
            text = text[: found.start()]
        if not text[:1].isdecimal() or "#" in text:
            reason = numerals.absent(text) or reason
        if reason is None:
            meaning = self._column.meaning
            try:
                en, de = self._launches.numerals.both(text, *self._known)
            except NotANumberError as error:
                if meaning is None or vocabulary.is_hint(meaning):
                    return None  # an attribute in words
                reason = numerals.wordy(text)
                if reason is None:
                    raise RecordError(f"{self._column.name}: {error}") from None
            else:
                en, de = en * self._scale, de * self._scale
                reason = numerals.impossible(en)
                if self._known.whole and en % 1 and reason is None:
                    reason = "no whole number in the file, where a count belongs: a part is missing"
                if reason is None:
                    return en, de
        self._column.reasons[reason] = self._column.reasons.get(reason, 0) + 1
        return _NO_VALUE, _NO_VALUE


class Launches:
    """All launches of a file.

    Attributes:
        numerals: How the file's numbers read.
        owners: Distinct owners, in order of appearance.
        owner: By launch, an index into ``owners``.
        names: By launch, an index into ``titles``.
        titles: Distinct kernel names.
        grids: By launch, an index into ``shapes``.
        shapes: Distinct launch grids; the empty text where the file has none.
        ranges: By launch, an index into ``range_names``, -1 for none.
        range_names: Distinct NVTX ranges.
        streams: By launch, an index into ``stream_names``.
        stream_names: Distinct streams of a context; the empty text where the file has none.
        columns: One for each metric.
        unusable: Metric -> why its values cannot be used.
        again: Launches that came twice, below two headers, with the same values.
        table: Number of the header whose rows are read.
        gpus: Names of the GPUs that the file tells, in order of appearance.
    """

    def __init__(self, numerals: Numerals) -> None:
        self.numerals = numerals
        self.owners: list[Owner] = []
        self.owner = array("i")
        self.names = array("i")
        self.titles: list[str] = []
        self.grids = array("i")
        self.shapes: list[str] = []
        self.ranges = array("i")
        self.range_names: list[str] = []
        self.streams = array("i")
        self.stream_names: list[str] = []
        self.columns: list[Column] = []
        self.unusable: dict[str, str] = {}
        self.again: set[int] = set()
        self.gpus: dict[str, None] = {}
        self._ids = array("q")
        self._times = array("i")
        self._time_names: list[str] = []
        self._find: list[dict[tuple[int, int], int]] = []
        self._owner_of: dict[Owner, int] = {}
        self._title_of: dict[str, int] = {}
        self._shape_of: dict[str, int] = {}
        self._range_of: dict[str, int] = {}
        self._stream_of: dict[str, int] = {}
        self._time_of: dict[str, int] = {}
        self._column_of: dict[tuple[str, ...], int] = {}
        self._tables = array("i")  # by launch, in which table it came first
        self.table = 0
        self._doubts = (array("i"), array("q"), array("d"))
        self._repeats: list[tuple[int, int, float, float, float]] = []

    def __len__(self) -> int:
        return len(self.names)

    def launch(
        self,
        owner: Owner,
        ident: int,
        name: str,
        grid: str = "",
        nvtx: str = "",
        time: str = "",
        stream: str = "",
    ) -> int:
        """The index of a launch; a new one where it was not seen before.

        Args:
            owner: Who launched.
            ident: Its ID.
            name: The kernel's; ``NAMELESS`` stands for an empty one.
            grid: Grid and block.
            nvtx: The range.
            time: Of day, as the file has it.
            stream: Of the context.

        Raises:
            RecordError: the same launch under two kernel names or grids, or an impossible ID.
        """
        if ident > _LARGEST_ID:
            raise RecordError(f"{ident} is no launch ID: the file is damaged")
        name = name if name.strip() else NAMELESS
        who = _intern(owner, self._owner_of, self.owners)
        if who == len(self._find):
            self._find.append({})
        key = (ident, _intern(time, self._time_of, self._time_names))
        known = self._find[who].get(key)
        if known is not None:
            had, shape = self.titles[self.names[known]], self.shapes[self.grids[known]]
            if had != name:
                raise RecordError(
                    f"launch {ident} of process {owner.process} is called both "
                    f"{had!r} and {name!r}: two runs in one file?"
                )
            if shape and grid and shape != grid:
                raise RecordError(
                    f"launch {ident} of process {owner.process} ({name}) has both the grid {shape} "
                    f"and {grid}: two runs in one file?"
                )
            return known
        index = self._find[who][key] = len(self.names)
        self.owner.append(who)
        self._ids.append(ident)
        self._times.append(key[1])
        self._tables.append(self.table)
        self.names.append(_intern(name, self._title_of, self.titles))
        self.grids.append(_intern(grid, self._shape_of, self.shapes))
        self.ranges.append(_intern(nvtx, self._range_of, self.range_names) if nvtx else -1)
        self.streams.append(_intern(stream, self._stream_of, self.stream_names))
        return index

    def sink(self, name: str, unit: str, section: str) -> Sink:
        """Where values of a metric go.

        Raises:
            RecordError: a metric that is needed has an unknown unit.
        """
        try:
            known = unit_names.unit(unit)
            found = vocabulary.meaning(name, known.dimension)
        except RecordError as error:
            # A unit matters only where the value is used.
            known, found = unit_names.Unit(1.0, unit), vocabulary.meaning(name, "")
            if found is not None and not vocabulary.is_hint(found):
                raise RecordError(f"{name}: {error}") from None
        refusal = None
        if isinstance(found, str):
            # A cell without a number often has no unit either; only a number makes it a fault.
            refusal, found = found, vocabulary.expected(name)
            if found is None:
                self.unusable[name] = refusal
        # A label can stand for different things in two sections, and as a share beside its value;
        # a metric's name cannot. Of its unit only the size changes from launch to launch.
        exact = found is not None and vocabulary.is_metric_name(name)
        stands_for = known.dimension if found is None else found.kind
        index = self._index((name,) if exact else (name, stands_for, section), found)
        needed = found is not None and not vocabulary.is_hint(found)
        clue = numerals.clue(name, unit)
        expected = Known(
            # Only an unscaled count is whole: 1.234 Mbyte is fine.
            whole=found is not None and found.whole and known.scale == 1.0,
            clue=clue,
            needed=needed,
            # A column of the user's own has no unit.
            tells=needed or clue is not None or bool(unit.strip()),
        )
        refusal = None if found is None else refusal
        return Sink(self, self.columns[index], index, known.scale, expected, refusal)

    def _index(self, key: tuple[str, ...], meaning: Meaning | None) -> int:
        """The index of a column; a new one where it was not seen before."""
        index = self._column_of.get(key)
        if index is None:
            index = self._column_of[key] = len(self.columns)
            self.columns.append(Column(key, meaning, self.names, self.titles))
        return index

    def came_again(self, launch: int) -> None:
        """Notes that a launch has a cell once more; below its own header that is no news."""
        if self._tables[launch] != self.table:
            self.again.add(launch)

    def doubt(self, column: int, launch: int, de: float) -> None:
        """Keeps the other reading of a number until the file's format is known."""
        self.columns[column].doubted = True
        columns, launches, values = self._doubts
        columns.append(column)
        launches.append(launch)
        values.append(de)

    def repeat(self, column: int, launch: int, en: float, de: float, scale: float) -> None:
        """Keeps a second value of the same metric and launch, to be compared later."""
        self._repeats.append((column, launch, en, de, scale))

    def settle(self) -> None:
        """Decides the number format, once the whole file was read.

        Raises:
            RecordError: it cannot be decided, or a metric has two values in one launch.
        """
        german = self.numerals.decide() == "de"
        if german:
            for doubted, launch, value in zip(*self._doubts, strict=True):
                self.columns[doubted].values[launch] = value
        self._doubts = (array("i"), array("q"), array("d"))
        for index, launch, en, de, scale in self._repeats:
            self._take(self.columns[index], launch, de if german else en, scale)
        self._repeats.clear()

    def _take(self, column: Column, launch: int, value: float, scale: float) -> None:
        if not column.take(launch, value, scale):
            raise RecordError(
                f"{column.name} of {self.describe(launch)} is there twice, with different values: "
                f"{shown(column.values[launch])} and {shown(value)}"
            )

    def describe(self, launch: int) -> str:
        """A launch in words."""
        return f"launch {self._ids[launch]} ({self.titles[self.names[launch]]})"

    def ident(self, launch: int) -> int:
        """A launch's ID."""
        return self._ids[launch]

    def has_process(self, process: str | None) -> bool:
        """Whether a launch of a process was seen."""
        return any(owner.process == process for owner in self.owners)

    def process(self, launch: int) -> tuple[str, str]:
        """(host, process) of a launch."""
        owner = self.owners[self.owner[launch]]
        return owner.host, owner.process

    def by_process(self) -> dict[tuple[str, str], list[int]]:
        """(host, process) -> its launches, in order of appearance."""
        found: dict[tuple[str, str], list[int]] = {}
        for launch in range(len(self)):
            found.setdefault(self.process(launch), []).append(launch)
        return found

    def spans(self) -> dict[int, dict[tuple[str, str], tuple[int, int]]]:
        """Number of a header -> (host, process) -> lowest and highest ID below it."""
        found: dict[int, dict[tuple[str, str], tuple[int, int]]] = {}
        for launch, (ident, table) in enumerate(zip(self._ids, self._tables, strict=True)):
            here, who = found.setdefault(table, {}), self.process(launch)
            low, high = here.get(who, (ident, ident))
            here[who] = (min(low, ident), max(high, ident))
        return found

    def lacks(self, launch: int, others: Iterable[int]) -> bool:
        """Whether a launch breaks off: it has only a part of what others of its chip all have.

        A launch with metrics of its own is another run's or another chip's, and no part.
        """
        chip = self._capability(launch)
        peers = [i for i in others if i != launch and self._capability(i) == chip]
        labels: dict[tuple[str, str], list[Column]] = {}
        for column in self.columns:
            labels.setdefault((column.key[0], column.key[-1]), []).append(column)
        missing = False
        for columns in labels.values():
            if not peers or all(column.meaning is None for column in columns):
                continue
            having = (any(column.has(i) for column in columns) for i in peers)
            if not any(column.has(launch) for column in columns):
                missing = missing or all(having)
            elif not any(having):
                return False
        return missing

    def _capability(self, launch: int) -> str | None:
        """Compute capability of the device that a launch ran on."""
        return self.owners[self.owner[launch]].compute_capability

    def call(self, process: str) -> None:
        """Gives a name to the process of launches that have none."""
        self.owners = [
            owner if owner.process else owner._replace(process=process) for owner in self.owners
        ]
        self._owner_of = {owner: index for index, owner in enumerate(self.owners)}

    def restarted(self) -> bool:
        """Whether a process has one ID at two times of day."""
        return len(set(zip(self.owner, self._ids, strict=True))) < len(self)

    def by_ident(self) -> dict[int, list[int]]:
        """Launches by ID, which several processes can have."""
        found: dict[int, list[int]] = {}
        for launch, ident in enumerate(self._ids):
            found.setdefault(ident, []).append(launch)
        return found

    def select(self, order: Sequence[int]) -> None:
        """Keeps some launches, in a new order. Call it after ``settle``."""
        count = len(self)
        for column in self.columns:
            column.select(order, count)
        self._keep(order)

    def leave_out(self, kernel: str) -> int:
        """Takes out all launches of a kernel, and says how many; call it after ``settle``.

        Columns of a run with another order lose the launches that this run calls so.
        """
        count = len(self)
        runs = {id(column.names): column for column in self.columns}
        kept = {
            run: [i for i, name in enumerate(column.names) if column.titles[name] != kernel]
            for run, column in runs.items()
        }
        for column in self.columns:
            column.select(kept[id(column.names)], count)
        for run, column in runs.items():
            if column.names is not self.names:
                _pick(column.names, kept[run])
        self._keep([i for i, name in enumerate(self.names) if self.titles[name] != kernel])
        return count - len(self)

    def _keep(self, order: Sequence[int]) -> None:
        """Keeps what is known of some launches, and of nothing that none of them has."""
        for numbers in (self._ids, self._tables):
            _pick(numbers, order)
        _compact(order, self.owner, self.owners, self._owner_of)
        _compact(order, self.names, self.titles, self._title_of)
        _compact(order, self.grids, self.shapes, self._shape_of)
        _compact(order, self.ranges, self.range_names, self._range_of)
        _compact(order, self.streams, self.stream_names, self._stream_of)
        _compact(order, self._times, self._time_names, self._time_of)
        self.again = {new for new, old in enumerate(order) if old in self.again}
        self._find = [{} for _ in self.owners]
        keys = zip(self.owner, self._ids, self._times, strict=True)
        for index, (who, ident, time) in enumerate(keys):
            self._find[who][ident, time] = index

    def absorb(self, other: "Launches") -> None:
        """Adds another file's launches; one that both have is taken once.

        Raises:
            RecordError: both have a launch, with different values.
        """
        places = array("q")
        for index, who in enumerate(other.owner):
            nvtx = other.ranges[index]
            place = self.launch(
                other.owners[who],
                other.ident(index),
                other.titles[other.names[index]],
                other.shapes[other.grids[index]],
                other.range_names[nvtx] if nvtx >= 0 else "",
                other._time_names[other._times[index]],
                other.stream_names[other.streams[index]],
            )
            places.append(place)
        for column in other.columns:
            if column.meaning is not None:
                mine = self.columns[self._index(column.key, column.meaning)]
                self._absorb(mine, column, places)
        self.unusable.update(other.unusable)

    def _absorb(self, mine: Column, column: Column, places: Sequence[int]) -> None:
        mine.values = mine.padded(len(self))
        for index, (place, value) in enumerate(zip(places, column.values, strict=False)):
            if not math.isnan(value):
                self._take(mine, place, value, column.scale(index))
        for reason, count in column.reasons.items():
            mine.reasons[reason] = mine.reasons.get(reason, 0) + count

    def overlapping(self) -> int:
        """The most streams that launches of one context on one device are of; 0 if not told."""
        of_owner: dict[int, set[int]] = {}
        for who, stream in zip(self.owner, self.streams, strict=True):
            if self.stream_names[stream]:
                of_owner.setdefault(who, set()).add(stream)
        return max(map(len, of_owner.values()), default=0)

    def by_range(self) -> Iterator[tuple[str, list[int]]]:
        """NVTX ranges with their launches, in order of appearance."""
        members: dict[int, list[int]] = {}
        for launch, index in enumerate(self.ranges):
            if index >= 0:
                members.setdefault(index, []).append(launch)
        for index, launches in members.items():
            yield self.range_names[index], launches


def _intern(item: _T, index: dict[_T, int], items: list[_T]) -> int:
    found = index.get(item)
    if found is None:
        found = index[item] = len(items)
        items.append(item)
    return found


def _pick(numbers: "array[int]", order: Sequence[int]) -> None:
    """Keeps some numbers, in a new order."""
    numbers[:] = array(numbers.typecode, [numbers[i] for i in order])


def _compact(
    order: Sequence[int], numbers: "array[int]", items: list[_T], index: dict[_T, int]
) -> None:
    """Keeps some launches' items, and of the items those that one of them has."""
    _pick(numbers, order)
    used = [number for number in dict.fromkeys(numbers) if number >= 0]
    new = {-1: -1} | {old: place for place, old in enumerate(used)}
    numbers[:] = array(numbers.typecode, [new[number] for number in numbers])
    items[:] = [items[old] for old in used]
    index.clear()
    index.update((item, place) for place, item in enumerate(items))


def _agree(first: float, second: float, *scales: float) -> bool:
    """Whether two values can be one, printed in units of these sizes."""
    rounding = _ROUNDING * max(scales) if len(set(scales)) > 1 else 0.0
    return math.isclose(first, second, rel_tol=_SAME, abs_tol=rounding)


def shown(value: float) -> str:
    """A cell in words."""
    return "n/a" if value == _NO_VALUE else f"{value:.9g}"
