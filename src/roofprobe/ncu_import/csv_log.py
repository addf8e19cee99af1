"""ncu's CSV: one metric a row (the default), or one launch a row (``--page raw``)."""

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, Protocol

from roofprobe.errors import RecordError
from roofprobe.ncu_import import ranks, rows, vocabulary
from roofprobe.ncu_import.launches import Launches, Owner, Sink
from roofprobe.ncu_import.rows import Fragment, Header

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
# Rows of one launch agree in these.
_KEYS: Final = (
    *("ID", "Process ID", "Device", "Context", "Host Name", "Kernel Name"),
    *("Kernel Time", "Grid Size"),
)
_NUMBERS: Final = ("ID", "Process ID", "Context", "Stream")
_LONG: Final = ("Metric Name", "Metric Unit", "Metric Value")
_FLOAT: Final = re.compile(r"([0-9]+)\.0")
_FEWEST: Final = 4  # fields that make a row of a line that nothing else shows to be one


class Layout(Protocol):
    """Reads the rows below one header.

    Attributes:
        last: Index of the launch of the last row.
        rows: Rows so far.
        start: Where in its line the header starts.
        torn: Parts of rows that shared a line with a whole row.
        form: What tells how a row reads: the names of its columns, and their units.
    """

    last: int | None
    rows: int
    start: int
    torn: list[Fragment]
    form: tuple[tuple[str, ...], ...]

    @property
    def hindrance(self) -> str | None:
        """Why no row can be read, None where that is possible."""

    @property
    def unfinished(self) -> bool:
        """Whether the last launch has an end that is missing."""

    def take(self, line: str) -> bool:
        """Reads a line; False when it is no row of this layout."""

    def fragment(self, line: str, *, final: bool) -> Fragment | None:
        """The launch of a line that is the start of a row and no whole one, None for other lines.

        Args:
            line: The line.
            final: No row follows, so less is enough to make it one that breaks off.
        """


def layout_of(line: str, launches: Launches) -> Layout | None:
    """The layout that a header announces, None for a line that is no header."""
    found = rows.header(line)
    if found is None:
        return None
    names = found.names
    if all(name in names for name in _LONG):
        made: Layout = _Long(found, launches)
    elif "Metric Name" in names and line.endswith("\n"):
        missing = ", ".join(name for name in _LONG if name not in names)
        raise RecordError(f"the header has no column {missing}: export the file again with ncu")
    elif not line.endswith(("\n", '"')) or not any("__" in name for name in names):
        return None  # it breaks off in the header, or it is a program's own table
    else:
        made = _Wide(found, launches)
    if found.delimiter == ";":
        launches.numerals.semicolons = True
    return made


# A column -> what a file is whose header has it, where that is nothing with a row for each launch.
_OTHER_TABLES: Final = {
    "Invocations": "a summary, and a roofline needs every launch: run ncu without --print-summary",
    "Function Name": "a table that the desktop application exported: "
    "write it with ncu --import FILE --page raw --csv",
}


def other_table(line: str) -> str | None:
    """What a line shows a file to be that cannot be imported, and what to do about it."""
    for name, what in _OTHER_TABLES.items():
        if f'"{name}"' in line and ('"ID"' in line or '"Metric Name"' in line):
            return what
    start = next(rows.starts(line), None)
    if start is None:
        return None
    fields, _ = rows.fields_at(line, start, line[line.index('"', start + 1) + 1], len(line))
    if len(fields) < _FEWEST or not fields[1].isdecimal():
        return None
    return "rows without their header, so its beginning is missing: export the file again with ncu"


class _Base:
    """What both layouts know about a launch, by column name."""

    def __init__(self, header: Header, launches: Launches) -> None:
        self.last: int | None = None
        self.rows = 0
        self.start = header.start
        self.torn: list[Fragment] = []
        self._names = names = header.names
        self.form: tuple[tuple[str, ...], ...] = (tuple(names),)
        self._width = len(names)
        self._delimiter = header.delimiter
        self._launches = launches
        launches.table += 1
        self._at = {name: index for index, name in reversed(list(enumerate(names)))}
        self._id = self._at["ID"]
        self._process = self._at.get("Process ID", self._id)
        # A range that is started and stopped can go around many that are pushed and popped.
        nvtx = [index for index, name in enumerate(names) if "_Range:" in name]
        self._nvtx = sorted(nvtx, key=lambda index: "Start/Stop" not in names[index])
        self._key: Any = itemgetter(*(self._at[key] for key in _KEYS if key in self._at))
        self._last_key: object = None
        self._quoted: bool | None = None
        self._rest = ""  # of a line, behind a row

    @property
    def hindrance(self) -> str | None:
        return None

    @property
    def unfinished(self) -> bool:
        return False

    def take(self, line: str) -> bool:
        fields = self._fields(line)
        if fields is None or not fields[self._id].isdecimal():
            return self._is_advice(line)
        self._put(fields)
        while self._rest:
            rest, self._rest = self._rest, ""
            more = self._salvaged(rest)
            if more is not None:
                self._put(more)
            else:
                self._tear(rest)
        return True

    def fragment(self, line: str, *, final: bool) -> Fragment | None:
        text = line.rstrip("\r\n")
        first = [0] if text.startswith('"') and self._id else []
        for start in (*first, *rows.starts(text)):
            fields, end = rows.fields_at(text, start, self._delimiter, self._width)
            if len(fields) <= self._id or not self._fits(fields):
                continue
            if len(fields) > max(self._process, 1):
                found = self._of(fields)
                # A program can print two or three fields, too: whole ones, and of no process.
                own = len(fields) < _FEWEST and line[end:] in ("\n", "\r\n")
                return None if own and not self._launches.has_process(found.process) else found
            if re.fullmatch(r'"[0-9]*' + ".*" * final, text[end + 1 :]):
                return Fragment(None, rows.ident(fields[self._id]))
        bare = self._bare(text, final and text == line) if self._quoted is not True else None
        if bare is None and final and text == line:
            return self._begun(text)
        return bare

    def _is_advice(self, line: str) -> bool:
        """Whether a line that is no whole row is of ncu's advice, and so nothing is lost."""
        return False

    def _put(self, fields: Sequence[str]) -> None:
        """Stores a row."""
        raise NotImplementedError

    def _of(self, fields: Sequence[str]) -> Fragment:
        process = fields[self._process] if self._process != self._id else ""
        return Fragment(process.strip(), rows.ident(fields[self._id].strip()))

    def _fits(self, fields: Sequence[str], names: Sequence[str] = _NUMBERS) -> bool:
        """Whether the columns that hold plain numbers do, as far as the fields go."""
        places = (self._at[name] for name in names if name in self._at)
        return all(
            fields[i].strip().isdecimal() or (i != self._id and not fields[i].strip())
            for i in places
            if i < len(fields)
        )

    def _bare(self, text: str, cut: bool) -> Fragment | None:
        """The launch of a part of a row without quotes."""
        *fields, last = text.split(self._delimiter)
        if not self._fits(fields, _NUMBERS[:2]):
            return None
        if len(fields) > max(self._id, self._process) and (cut or len(fields) >= _FEWEST):
            return self._of(fields)
        if cut and (fields or [last])[0].isdecimal() and (last.isdecimal() or not last):
            return Fragment(None, rows.ident(fields[self._id]) if len(fields) > self._id else None)
        return None

    def _begun(self, text: str) -> Fragment | None:
        """The launch of a row in quotes of which next to nothing is there."""
        if self._id:
            return Fragment(None, None) if text.count('"') % 2 and text[0] == '"' else None
        match = re.fullmatch(rf'"(?P<id>[0-9]*)(?P<closed>"{self._delimiter}?"?)?', text)
        if match is None:
            return None
        return Fragment(None, rows.ident(match["id"]) if match["id"] and match["closed"] else None)

    def _fields(self, line: str) -> list[str] | None:
        if line.startswith('"') and line.endswith(('"\n', '"')):
            fields = rows.split(line, self._delimiter)
            if len(fields) == self._width and fields[self._id].isdecimal():
                self._quoted = True
                return fields
        elif self._quoted is not True and line.endswith("\n") and not line.startswith('"'):
            # A row without quotes (saved again by a spreadsheet) is whole only if its line is.
            fields = rows.split(line, self._delimiter)
            if len(fields) == self._width and fields[self._id].strip().isdecimal():
                return [field.strip() for field in fields]
        return self._salvaged(line) or self._from_floats(line)

    def _salvaged(self, line: str) -> list[str] | None:
        """The fields of a row that has other text before or behind it."""
        torn: list[Fragment] = []
        for start in rows.starts(line):
            fields, end = rows.fields_at(line, start, self._delimiter, self._width)
            if len(fields) < self._width or not self._fits(fields):
                continue
            if rows.is_torn(line, end):
                torn.append(self._of(fields))
            else:
                self._quoted = True
                self.torn += torn
                if start and not torn:
                    self._tear(line[:start])
                if next(rows.starts(line[end:]), None) is not None:
                    self._rest = line[end:]
                return fields
        self.torn += torn[1:]  # the first is the line's own, see ``fragment``
        return None

    def _from_floats(self, line: str) -> list[str] | None:
        """The fields of a row whose numbers pandas took for floats: its ID is 0.0, not 0."""
        fields = rows.split(line, self._delimiter) if line.endswith(("\n", '"')) else []
        if len(fields) != self._width or not _FLOAT.fullmatch(fields[self._id].strip()):
            return None
        fields = [field.strip() for field in fields]
        for name in (*_NUMBERS, "Device"):
            place = self._at.get(name)
            if place is not None and (found := _FLOAT.fullmatch(fields[place])):
                fields[place] = found[1]
        return fields

    def _tear(self, text: str) -> None:
        """Keeps what else of a row was on a row's line."""
        found = self.fragment(text, final=False)
        if found is not None:
            self.torn.append(found)

    def _launch(self, fields: Sequence[str]) -> int:
        key = self._key(fields)
        if key != self._last_key or self.last is None:
            at = self._at
            owner = Owner(
                process=self._cell(fields, "Process ID") or "",
                device=self._cell(fields, "Device"),
                context=self._cell(fields, "Context") or "",
                compute_capability=rows.capability(self._cell(fields, "CC")),
                host=self._cell(fields, "Host Name") or "",
            )
            gpu = self._cell(fields, vocabulary.GPU_NAME)
            if gpu is not None:
                self._launches.gpus[gpu] = None
            nvtx = (range_name(fields[index]) for index in self._nvtx if fields[index].strip())
            stream = self._cell(fields, "Stream") or ""
            self.last = self._launches.launch(
                owner,
                rows.ident(fields[self._id]),
                fields[at["Kernel Name"]],
                f"{self._cell(fields, 'Grid Size') or ''}{self._cell(fields, 'Block Size') or ''}",
                NESTED.join(nvtx),
                self._cell(fields, "Kernel Time") or "",
                stream if stream.isdecimal() else "",
            )
            self._last_key = key
        return self.last

    def _cell(self, fields: Sequence[str], name: str) -> str | None:
        index = self._at.get(name)
        return (fields[index].strip() or None) if index is not None else None


class _Long(_Base):
    """One row for each metric of each launch; 12, 15, 20 or more columns."""

    def __init__(self, header: Header, launches: Launches) -> None:
        super().__init__(header, launches)
        section = [self._at["Section Name"]] if "Section Name" in self._at else []
        self._metric: Any = itemgetter(*(self._at[name] for name in _LONG[:2]), *section)
        self._value = self._at["Metric Value"]
        self._name = self._at["Metric Name"]
        self._advice = False  # inside a rule's words, which can have line feeds
        self._sinks: dict[tuple[str, ...], Sink | None] = {}

    def _is_advice(self, line: str) -> bool:
        is_odd = line.count('"') % 2 == 1
        if self._advice and next(rows.starts(line), None) is None:
            self._advice = not is_odd
            return True
        self._advice = False
        if not is_odd or not line.startswith('"'):
            return False
        # A row without a metric has nothing to lose.
        fields, _ = rows.fields_at(line, 0, self._delimiter, self._width)
        self._advice = self._name < len(fields) and not fields[self._name] and self._fits(fields)
        return self._advice

    def _put(self, fields: Sequence[str]) -> None:
        self._advice = False
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


class _Wide(_Base):
    """One row for each launch, one column for each metric, units in the first row."""

    def __init__(self, header: Header, launches: Launches) -> None:
        super().__init__(header, launches)
        self._sinks: list[tuple[int, Sink]] | None = None
        about = [name in _ABOUT or "_Range:" in name for name in self._names]
        self._about = {index for index, is_about in enumerate(about) if is_about}
        leading = [*about, False].index(False)
        blank = rf'(?:"(?:nan)?"{self._delimiter}){{{leading}}}'
        self._blank = re.compile(blank, re.IGNORECASE) if leading else None

    @property
    def hindrance(self) -> str | None:
        if self._sinks is not None:
            return None
        return "the row of units below the header is missing: export again with ncu --page raw"

    def take(self, line: str) -> bool:
        if self._sinks is not None:
            return super().take(line) or self._again(line)
        # Without its unit a number may be off by any power of ten, so no row comes before it.
        units = self._units(line)
        if units is not None:
            self._sinks = self._columns(units)
            self.form = (*self.form, tuple(units))
        return units is not None

    def fragment(self, line: str, *, final: bool) -> Fragment | None:
        if final and self._sinks is None and line.startswith('""'):
            return Fragment(None, None)  # of the row of units
        return super().fragment(line, final=final)

    def _again(self, line: str) -> bool:
        """Reads a second row of units; False for any other line.

        Raises:
            RecordError: its units are others.
        """
        units = self._units(line)
        if units is not None and tuple(units) != self.form[-1]:
            raise ranks.mixed("their units differ")
        return units is not None

    def _units(self, line: str) -> list[str] | None:
        """The units of the columns, None for a line that is not the row of units."""
        match = self._blank.search(line) if self._blank is not None else None
        if match is not None:
            fields, _ = rows.fields_at(line, match.start(), self._delimiter, self._width)
        else:
            fields = rows.split(line, self._delimiter) if line.endswith(("\n", '"')) else []
        if len(fields) != self._width:
            return None
        fields = ["" if field.strip().lower() == "nan" else field.strip() for field in fields]
        # Metrics without a unit have a row without any; further down that says nothing.
        blank = self._sinks is not None and any(self.form[-1]) and not any(fields)
        if blank or any(fields[index] for index in self._about):
            return None
        return fields

    def _put(self, fields: Sequence[str]) -> None:
        assert self._sinks is not None
        launch = self._launch(fields)
        for index, sink in self._sinks:
            sink.put(launch, fields[index])
        self.rows += 1

    def _columns(self, units: Sequence[str]) -> list[tuple[int, Sink]]:
        return [
            (index, self._launches.sink(name, units[index], ""))
            for index, name in enumerate(self._names)
            if name and index not in self._about
        ]


NESTED: Final = "\x1f"  # between the names of ranges inside each other; in no name
# A cell is: 31 "domain:name:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg" "domain:name:...", with
# the thread, or a range's own ID, in front. A name can hold colons too.
_NVTX: Final = re.compile(r'"([^"]*)"')
_NVTX_ID: Final = re.compile(r"\s*[0-9]+[:\s]\s*")
_NVTX_RANGE: Final = re.compile(r"(?:[^:]*:)?(?P<name>.+?)(?:(?::[^:]*){6})?")


def range_name(cell: str) -> str:
    """The names in an NVTX cell, outermost first, joined by ``NESTED``."""
    names = []
    for text in _NVTX.findall(cell) or [cell]:
        bare = text[found.end() :] if (found := _NVTX_ID.match(text)) else text
        match = _NVTX_RANGE.fullmatch(bare.strip())
        if match is not None:
            names.append(match["name"].strip())
    return NESTED.join(names)
