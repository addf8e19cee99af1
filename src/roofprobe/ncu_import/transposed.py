"""The desktop application's export: metrics down, launches across, the unit beside the name."""

import re
from collections.abc import Sequence
from typing import Final

from roofprobe import metrics
from roofprobe.errors import RecordError
from roofprobe.ncu_import import rows, vocabulary
from roofprobe.ncu_import.launches import Launches, Owner

_BRACKET: Final = re.compile(r"[\[\]]")
_NAMED: Final = re.compile(r"[a-z0-9_]+__[^\s\[\]]+")  # a name of the hardware's, and not a label
# Labels that programs print as well start a table only in quotes, as the application writes them.
_START: Final = re.compile(
    r'"?(?:Function(?: Name)?|Kernel(?: Name)?|Metric Name'
    r'|(?=[a-z0-9_]+__)[A-Za-z0-9_.]+(?: (?:\[[^\]]*\]|\([^)]*\)))?)"?(?P<delimiter>[,;\t])'
    r'|"(?:ID|Process(?: ID)?|Device|Context|CC|Compute Capability)"(?P<quoted>[,;\t])"'
)
# A cell can end in a comparison with the baseline: "1,234 (+5.6%)".
_COMPARED: Final = re.compile(r"(?<=[0-9a-z])\s*\([^()]*\)\s*$")
_PROCESS: Final = ("Process", "Process ID")
_DEVICE: Final = ("Device",)
_CONTEXT: Final = ("Context",)
_CAPABILITY: Final = ("CC", "Compute Capability")
_GRID: Final = ("Grid Size",)
_BLOCK: Final = ("Block Size",)
_STREAM: Final = ("Stream",)
_LABELS: Final = (*_PROCESS, *_DEVICE, *_CONTEXT, *_CAPABILITY, *_GRID, *_BLOCK, *_STREAM)
_FUNCTION: Final = ("Function", "Function Name", "Kernel", "Kernel Name", "Metric Name")
_UNITS: Final = ("Unit", "Metric Unit")  # a column of its own, in an export saved anew
_ADVICE: Final = "the table is damaged or was edited; export it again"
_SHOWN: Final = 60  # characters of a line in a message


class Transposed:
    """Collects the rows of a transposed table; ``finish`` turns them into launches.

    Attributes:
        rows: Rows so far.
    """

    def __init__(self, launches: Launches, delimiter: str) -> None:
        self.rows = 0
        self.last: int | None = None
        self._launches = launches
        self._delimiter = delimiter
        self._cells: dict[str, list[str]] = {}
        self._metrics: list[tuple[str, str, list[str]]] = []
        self._ended = self._quoted = True  # the last row
        # Why the table cannot be read. Kept until it is over: a program's table is no fault.
        self._fault: str | None = None

    @classmethod
    def starting(cls, line: str, launches: Launches) -> "Transposed | None":
        """A reader for a table that starts at this line, None for any other line."""
        match = _START.match(line)
        if match is None:
            return None
        table = cls(launches, match["delimiter"] or match["quoted"])
        return table if table.take(line) else None

    def take(self, line: str) -> bool:
        """Reads a line; False when it is no row of the table.

        Raises:
            RecordError: a metric that is needed, and no telling in which unit.
        """
        if rows.header(line) is not None:
            return False  # ncu's own; this table was something that a program printed
        ended = line.endswith("\n")
        closed = line if ended or line.count('"') % 2 == 0 else line + '"'
        head, *cells = rows.split(closed, self._delimiter) or [""]
        metric, named = _metric(head), _NAMED.match(head)
        if not cells:
            self._note_part(line)
            return False
        if named and metric is None and vocabulary.expected(named.group()):
            raise RecordError(f"{head!r} is no metric with its unit: the file is damaged")
        self._ended = ended
        if metric is not None and (named or metric[1]):
            self._metrics.append((*metric, cells))
        elif head and head not in self._cells and (ended or line.endswith('"')):
            self._cells[head] = cells
        else:
            if head in (*_FUNCTION, *_LABELS):
                self._fault = self._fault or (
                    f"two exports are in this file, for the row {head!r} comes twice: import them "
                    "as two files"
                )
            return False
        self.rows += 1
        self._quoted = line.rstrip("\r\n").endswith('"')
        return True

    def _note_part(self, line: str) -> None:
        """Keeps that a line is a row of which only a part is there: a metric may be lost."""
        text = line.strip()
        if not text or not self.rows:
            return
        begins = any(name.startswith(text) for name in metrics.TABLE)
        # UTF-16 can be cut inside a quote.
        if begins or text.startswith(('"', "\ufffd")) or _NAMED.match(text):
            self._fault = self._fault or (
                f"the table breaks off inside a row ({text[:_SHOWN]!r}), so a metric may be lost: "
                "export it again"
            )

    def finish(self) -> None:
        """Adds the launches and their metrics.

        Raises:
            RecordError: a part of a row, rows of two tables or of different widths, or cells that
                belong to no launch.
        """
        if self._fault is not None:
            raise RecordError(self._fault)
        if self._delimiter == ";":
            self._launches.numerals.semicolons = True
        names = next((self._cells[key] for key in _FUNCTION if key in self._cells), None)
        if names and names[0].strip() in _UNITS:
            self._take_units()
        count = self._width(names)
        launches = []
        for index in range(count):
            owner = Owner(
                process=self._cell(_PROCESS, index),
                device=self._cell(_DEVICE, index) or None,
                context=self._cell(_CONTEXT, index),
                compute_capability=rows.capability(self._cell(_CAPABILITY, index)) or None,
            )
            grid = self._cell(_GRID, index) + self._cell(_BLOCK, index)
            name = names[index] if names else f"kernel {index}"
            stream = self._cell(_STREAM, index)
            launches.append(self._launches.launch(owner, index, name, grid, stream=stream))
        for name, unit, cells in self._metrics:
            sink = self._launches.sink(name, unit, "")
            for launch, cell in zip(launches, cells, strict=False):
                sink.put(launch, _COMPARED.sub("", cell))

    def _take_units(self) -> None:
        """Moves a column of units to the metrics' names."""
        self._metrics = [
            (name, unit or cells[0].strip(), cells[1:]) for name, unit, cells in self._metrics
        ]
        for cells in self._cells.values():
            del cells[0]

    def _width(self, names: list[str] | None) -> int:
        """How many launches there are: columns without any text at the end are none."""
        table = [self._cells[label] for label in _LABELS if label in self._cells]
        needed = [cells for name, _, cells in self._metrics if vocabulary.expected(name)]
        table = [*([names] if names else []), *table, *needed]
        width = len(table[0]) if table else 0
        last = self._metrics[-1][2] if self._metrics else []
        if not self._ended and not (self._quoted and len(last) == width):
            last.clear()  # what is left of a row can end in half a number
        odd = next((cells for cells in table if cells and len(cells) != width), None)
        if odd is not None:
            raise RecordError(
                f"rows of {width} and of {len(odd)} cells, so nobody can tell which kernel a value "
                f"is of: {_ADVICE}"
            )
        count = 1 + max(
            (i for cells in table for i, cell in enumerate(cells) if cell.strip()), default=-1
        )
        if names and not all(name.strip() for name in names[:count]):
            raise RecordError(f"a column of values has no kernel name above it: {_ADVICE}")
        return count

    def _cell(self, names: Sequence[str], index: int) -> str:
        for name in names:
            cells = self._cells.get(name, [])
            if index < len(cells):
                return cells[index].strip()
        return ""


def _metric(head: str) -> tuple[str, str] | None:
    """Name and unit of ``name [unit]``, ``name (unit)`` or ``name``; None for what is damaged."""
    name, unit = head.strip(), ""
    if name.endswith("]") and "[" in name:
        name, _, unit = name[:-1].partition("[")
    elif name.endswith(")") and ")" not in name[name.rfind("(") : -1] and "(" in name:
        name, _, unit = name[:-1].rpartition("(")
    return None if _BRACKET.search(name + unit) else (name.rstrip(), unit)
