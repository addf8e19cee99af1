"""ncu's CSV: one metric a row (the default), or one launch a row (``--page raw``)."""

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, Protocol

from roofprobe.errors import RecordError
from roofprobe.ncu_import import rows
from roofprobe.ncu_import.launches import Launches, Owner, Sink

# Columns that describe a launch. In a raw page every other one is a metric.
_ABOUT: Final = frozenset(
    {
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Kernel Time",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
        "Device",
        "CC",
        "Section Name",
        "Estimated Speedup",
        "Estimated Speedup Type",
    }
)
_LONG: Final = ("Metric Name", "Metric Unit", "Metric Value")


class Layout(Protocol):
    """Reads the rows below one header."""

    last: int | None  # index of the launch of the last row
    rows: int

    def take(self, line: str) -> bool:
        """Reads a line; False when it is no row of this layout."""

    def broken(self, line: str) -> tuple[bool, int | None]:
        """Whether a line is the start of a row that breaks off, and of which launch ID."""


def layout_of(line: str, launches: Launches) -> Layout | None:
    """The layout that a header announces, None for a line that is no header."""
    found = rows.header(line)
    if found is None:
        return None
    names, delimiter = found
    if delimiter == ";":
        launches.numerals.semicolons = True
    if all(name in names for name in _LONG):
        return _Long(names, delimiter, launches)
    if not line.endswith("\n") and not line.endswith('"'):
        return None  # it breaks off in the header
    if "Metric Name" in names and line.endswith("\n"):
        missing = ", ".join(name for name in _LONG if name not in names)
        raise RecordError(f"the header has no column {missing}: export the file again with ncu")
    return _Wide(names, delimiter, launches)


class _Base:
    """What both layouts know about a launch, by column name."""

    def __init__(self, names: list[str], delimiter: str, launches: Launches) -> None:
        self.last: int | None = None
        self.rows = 0
        self._names = names
        self._width = len(names)
        self._delimiter = delimiter
        self._launches = launches
        self._at = {name: index for index, name in reversed(list(enumerate(names)))}
        self._id = self._at["ID"]
        self._nvtx = [index for index, name in enumerate(names) if "_Range:" in name]
        keys = ("ID", "Process ID", "Device", "Context", "Host Name", "Kernel Name")
        self._key: Any = itemgetter(*(self._at[key] for key in keys if key in self._at))
        self._last_key: object = None
        self._quoted: bool | None = None

    def broken(self, line: str) -> tuple[bool, int | None]:
        return rows.started(line, self._delimiter)

    def _fields(self, line: str) -> list[str] | None:
        if line.startswith('"') and line.endswith(('"\n', '"')):
            fields = rows.split(line, self._delimiter)
            if len(fields) == self._width and (fields[self._id].isdecimal() or not self.rows):
                self._quoted = True
                return fields
        elif self._quoted is not True and line.endswith("\n") and not line.startswith('"'):
            # A row without quotes (saved again by a spreadsheet) is whole only if its line is.
            fields = rows.split(line, self._delimiter)
            if len(fields) == self._width and fields[self._id].strip().isdecimal():
                return [field.strip() for field in fields]
        return rows.salvage(line, self._delimiter, self._width)

    def _launch(self, fields: Sequence[str]) -> int:
        key = self._key(fields)
        if key != self._last_key or self.last is None:
            at = self._at
            owner = Owner(
                process=self._cell(fields, "Process ID") or "",
                device=self._cell(fields, "Device"),
                context=self._cell(fields, "Context") or "",
                compute_capability=self._cell(fields, "CC"),
                host=self._cell(fields, "Host Name") or "",
            )
            nvtx = next((fields[index] for index in self._nvtx if fields[index].strip()), "")
            self.last = self._launches.launch(
                owner,
                rows.ident(fields[self._id]),
                fields[at["Kernel Name"]],
                f"{self._cell(fields, 'Grid Size') or ''}{self._cell(fields, 'Block Size') or ''}",
                range_name(nvtx),
            )
            self._last_key = key
        return self.last

    def _cell(self, fields: Sequence[str], name: str) -> str | None:
        index = self._at.get(name)
        return (fields[index].strip() or None) if index is not None else None


class _Long(_Base):
    """One row for each metric of each launch; 12, 15, 20 or more columns."""

    def __init__(self, names: list[str], delimiter: str, launches: Launches) -> None:
        super().__init__(names, delimiter, launches)
        section = [self._at["Section Name"]] if "Section Name" in self._at else []
        self._metric: Any = itemgetter(*(self._at[name] for name in _LONG[:2]), *section)
        self._value = self._at["Metric Value"]
        self._name = self._at["Metric Name"]
        self._sinks: dict[tuple[str, ...], Sink | None] = {}

    def take(self, line: str) -> bool:
        fields = self._fields(line)
        if fields is None or not fields[self._id].isdecimal():
            return False
        launch = self._launch(fields)
        key = self._metric(fields)
        try:
            sink = self._sinks[key]
        except KeyError:
            # Rows of rules (advice) have no metric.
            name, unit, *section = key
            made = self._launches.sink(name, unit, "".join(section)) if name else None
            sink = self._sinks[key] = made
        if sink is not None:
            sink.put(launch, fields[self._value])
        self.rows += 1
        return True


class _Wide(_Base):
    """One row for each launch, one column for each metric, units in the first row."""

    def __init__(self, names: list[str], delimiter: str, launches: Launches) -> None:
        super().__init__(names, delimiter, launches)
        self._sinks: list[tuple[int, Sink]] | None = None
        self._seen: set[int] = set()

    def take(self, line: str) -> bool:
        fields = self._fields(line)
        if fields is None and self._sinks is None and line.endswith("\n"):
            # The row of units has no ID, and without quotes it may start with the delimiter.
            fields = rows.split(line, self._delimiter)
        if fields is None or len(fields) != self._width:
            return False
        if not fields[self._id].isdecimal():
            if self._sinks is not None or fields[self._id].strip():
                return False
            self._sinks = self._columns(fields)
            return True
        if self._sinks is None:
            self._sinks = self._columns([""] * self._width)
        launch = self._launch(fields)
        for index, sink in self._sinks:
            sink.put(launch, fields[index])
        self.rows += 1
        return True

    def _columns(self, units: Sequence[str]) -> list[tuple[int, Sink]]:
        return [
            (index, self._launches.sink(name, units[index], ""))
            for index, name in enumerate(self._names)
            if name and name not in _ABOUT and index not in self._nvtx
        ]


_THREAD: Final = re.compile(r"^\s*[0-9]*\s*")


def range_name(cell: str) -> str:
    """The name in an NVTX cell: ``31 <default domain>:step_0:none:...`` is ``step_0``."""
    parts = _THREAD.sub("", cell).split(":")
    return parts[1].strip() if len(parts) > 1 else cell.strip()
