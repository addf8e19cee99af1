"""The launches of one file, column by column, so that a million rows fit in little memory.

A launch is known by (process, device, context, ID). A column holds one metric of every launch.
"""

import math
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

from roofprobe.errors import RecordError
from roofprobe.ncu_import import numerals, unit_names, vocabulary
from roofprobe.ncu_import.numerals import NotANumberError, Numerals
from roofprobe.ncu_import.vocabulary import Meaning

_T = TypeVar("_T")

# In a column: no row at all, and a row without a number. Neither is ever a value.
_NO_ROW: Final = math.nan
_NO_VALUE: Final = -math.inf

_DIGITS: Final = 19  # fewer are a number without a second look
_LARGEST_ID: Final = 2**62

# A value printed in a scaled unit has four or more digits; in the same unit it must be the same.
_ROUNDING: Final = 5e-3
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
    """

    def __init__(
        self, name: str, meaning: Meaning | None, names: "array[int]", titles: list[str]
    ) -> None:
        self.name = name
        self.meaning = meaning
        self.values = array("d")
        self.reasons: dict[str, int] = {}
        self.names = names
        self.titles = titles
        self.scales: set[float] = set()

    def filled(self, count: int) -> "array[float]":
        """The values of ``count`` launches, NaN where there is none."""
        values = array("d", self.values)
        values.extend([_NO_ROW] * (count - len(values)))
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

    __slots__ = ("_column", "_index", "_launches", "_refusal", "_scale", "_values", "_whole")

    def __init__(
        self,
        launches: "Launches",
        column: Column,
        index: int,
        scale: float,
        whole: bool,
        refusal: str | None,
    ) -> None:
        self._launches = launches
        self._column = column
        self._index = index
        self._scale = scale
        self._values = column.values
        self._whole = whole
        self._refusal = refusal
        column.scales.add(scale)

    def put(self, launch: int, text: str) -> None:
        """Stores a cell.

        Raises:
            RecordError: it is needed and no number.
        """
        if self._refusal is None and text.isdecimal() and len(text) < _DIGITS:
            if len(text) > 3:
                self._launches.numerals.ungrouped = True
            en = de = float(text) * self._scale
        else:
            reason = self._refusal
            if not text[:1].isdecimal():
                reason = numerals.absent(text) or reason
            if reason is not None:
                self._column.reasons[reason] = self._column.reasons.get(reason, 0) + 1
                en = de = _NO_VALUE
            else:
                try:
                    en, de = self._launches.numerals.both(text, whole=self._whole)
                except NotANumberError:
                    if self._column.meaning is None:
                        return  # an attribute in words
                    raise RecordError(f"{self._column.name}: {text!r} is not a number") from None
                en, de = en * self._scale, de * self._scale
        values = self._values
        count = len(values)
        if launch == count:
            values.append(en)
        elif launch > count:
            values.extend([_NO_ROW] * (launch - count))
            values.append(en)
        elif math.isnan(values[launch]):
            values[launch] = en
        else:
            if values[launch] != en:
                self._launches.repeat(self._index, launch, en, de)
            return
        if en != de:
            self._launches.doubt(self._index, launch, de)


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
        columns: One for each metric.
        unusable: Metric -> why its values cannot be used.
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
        self.columns: list[Column] = []
        self.unusable: dict[str, str] = {}
        self._ids = array("q")
        self._find: list[dict[int, int]] = []
        self._owner_of: dict[Owner, int] = {}
        self._title_of: dict[str, int] = {}
        self._shape_of: dict[str, int] = {}
        self._range_of: dict[str, int] = {}
        self._column_of: dict[tuple[str, ...], int] = {}
        self._doubts = (array("i"), array("q"), array("d"))
        self._repeats: list[tuple[int, int, float, float]] = []

    def __len__(self) -> int:
        return len(self.names)

    def launch(self, owner: Owner, ident: int, name: str, grid: str = "", nvtx: str = "") -> int:
        """The index of a launch; a new one where it was not seen before.

        Raises:
            RecordError: the same launch under two kernel names, or an impossible ID.
        """
        if ident > _LARGEST_ID:
            raise RecordError(f"{ident} is no launch ID: the file is damaged")
        who = _intern(owner, self._owner_of, self.owners)
        if who == len(self._find):
            self._find.append({})
        known = self._find[who].get(ident)
        if known is not None:
            if self.titles[self.names[known]] != name:
                raise RecordError(
                    f"launch {ident} of process {owner.process} is called both "
                    f"{self.titles[self.names[known]]!r} and {name!r}: two runs in one file?"
                )
            return known
        index = self._find[who][ident] = len(self.names)
        self.owner.append(who)
        self._ids.append(ident)
        self.names.append(_intern(name, self._title_of, self.titles))
        self.grids.append(_intern(grid, self._shape_of, self.shapes))
        self.ranges.append(_intern(nvtx, self._range_of, self.range_names) if nvtx else -1)
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
            if vocabulary.meaning(name, "") is not None:
                raise RecordError(f"{name}: {error}") from None
            known, found = unit_names.Unit(1.0, unit), None
        refusal = None
        if isinstance(found, str):
            # A cell without a number often has no unit either; only a number makes it a fault.
            refusal, found = found, vocabulary.expected(name)
            if found is None:
                self.unusable[name] = refusal
        needed = found is not None
        # A label can stand for different things in two sections; a metric's name cannot.
        exact = needed and vocabulary.is_metric_name(name)
        key = (name,) if exact else (name, unit, section)
        index = self._column_of.get(key)
        if index is None:
            index = self._column_of[key] = len(self.columns)
            self.columns.append(Column(name, found, self.names, self.titles))
        scale = known.scale if needed else 1.0
        # Only an unscaled count is whole: 1.234 Mbyte is fine.
        whole = found is not None and found.whole and known.scale == 1.0
        return Sink(self, self.columns[index], index, scale, whole, refusal if needed else None)

    def doubt(self, column: int, launch: int, de: float) -> None:
        """Keeps the other reading of a number until the file's format is known."""
        columns, launches, values = self._doubts
        columns.append(column)
        launches.append(launch)
        values.append(de)

    def repeat(self, column: int, launch: int, en: float, de: float) -> None:
        """Keeps a second value of the same metric and launch, to be compared later."""
        self._repeats.append((column, launch, en, de))

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
        for index, launch, en, de in self._repeats:
            column = self.columns[index]
            first, second = column.values[launch], de if german else en
            tolerance = _ROUNDING if len(column.scales) > 1 else _SAME
            if not _same(first, second, tolerance):
                raise RecordError(
                    f"{column.name} of {self.describe(launch)} is there twice, with different "
                    f"values: {_shown(first)} and {_shown(second)}"
                )
        self._repeats.clear()

    def describe(self, launch: int) -> str:
        """A launch in words."""
        return f"launch {self._ids[launch]} ({self.titles[self.names[launch]]})"

    def ident(self, launch: int) -> int:
        """A launch's ID."""
        return self._ids[launch]

    def lacks(self, launch: int) -> bool:
        """Whether a launch lacks a metric that every other launch has."""
        others = len(self) - 1
        return others > 0 and any(
            not column.has(launch)
            and len(column.values) >= others
            and all(column.has(other) for other in range(len(self)) if other != launch)
            for column in self.columns
        )

    def drop(self, launch: int) -> None:
        """Takes a launch out of every column. Call it after ``settle``."""
        for values in (self.owner, self.names, self.grids, self.ranges, self._ids):
            del values[launch]
        for column in self.columns:
            if launch < len(column.values):
                del column.values[launch]
        self._find = [{} for _ in self.owners]
        for index, (who, ident) in enumerate(zip(self.owner, self._ids, strict=True)):
            self._find[who][ident] = index

    def absorb(self, other: "Launches") -> None:
        """Adds another file's launches; one that both have is taken once.

        Raises:
            RecordError: both have a launch, with different values.
        """
        places = array("q")
        before = len(self)
        for index, who in enumerate(other.owner):
            nvtx = other.ranges[index]
            place = self.launch(
                other.owners[who],
                other.ident(index),
                other.titles[other.names[index]],
                other.shapes[other.grids[index]],
                other.range_names[nvtx] if nvtx >= 0 else "",
            )
            places.append(place)
        mine = {column.name: column for column in self.columns if column.meaning is not None}
        for column in other.columns:
            if column.meaning is None:
                continue
            target = mine[column.name].values
            target.extend([_NO_ROW] * (len(self) - len(target)))
            for place, value in zip(places, column.values, strict=False):
                if place < before and not _same(target[place], value, _SAME):
                    raise RecordError(
                        f"{column.name} of {self.describe(place)} is there twice, with different "
                        f"values: {_shown(target[place])} and {_shown(value)}"
                    )
                target[place] = value
            for reason, count in column.reasons.items():
                reasons = mine[column.name].reasons
                reasons[reason] = reasons.get(reason, 0) + count
        self.unusable.update(other.unusable)

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


def _same(first: float, second: float, tolerance: float) -> bool:
    absent = math.isnan(first) and math.isnan(second)
    return absent or math.isclose(first, second, rel_tol=tolerance)


def _shown(value: float) -> str:
    return "n/a" if value == _NO_VALUE else f"{value:.9g}"
