"""The desktop application's export: metrics down, launches across, the unit beside the name."""

import re
from collections.abc import Sequence
from typing import Final

from roofprobe.errors import RecordError
from roofprobe.ncu_import import rows, vocabulary
from roofprobe.ncu_import.launches import Launches, Owner

_METRIC: Final = re.compile(r"(?P<name>[^\[\]]*?)\s*(?:\[(?P<unit>[^\]]*)\])?")
_NAMED: Final = re.compile(r"[a-z0-9_]+__[^\s\[\]]+")  # a name of the hardware's, and not a label
_START: Final = re.compile(
    r'"?(?:Function(?: Name)?|Kernel(?: Name)?|[a-z0-9_]+__[A-Za-z0-9_.]+(?: \[[^\]]*\])?)"?'
    r"(?P<delimiter>[,;\t])"
)
# A cell can end in a comparison with the baseline: "1,234 (+5.6%)".
_COMPARED: Final = re.compile(r"(?<=[0-9a-z])\s*\([^()]*\)\s*$")
_FUNCTION: Final = ("Function", "Function Name", "Kernel", "Kernel Name")


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

    @classmethod
    def starting(cls, line: str, launches: Launches) -> "Transposed | None":
        """A reader for a table that starts at this line, None for any other line."""
        match = _START.match(line)
        if match is None:
            return None
        table = cls(launches, match["delimiter"])
        if match["delimiter"] == ";":
            launches.numerals.semicolons = True
        return table if table.take(line) else None

    def take(self, line: str) -> bool:
        """Reads a line; False when it is no row of the table.

        Raises:
            RecordError: a metric that is needed, and no telling in which unit.
        """
        if not line.endswith("\n") and not line.endswith('"'):
            return False
        head, *cells = rows.split(line, self._delimiter) or [""]
        if not cells:
            return False
        metric, named = _METRIC.fullmatch(head), _NAMED.match(head)
        if named and metric is None and vocabulary.expected(named.group()):
            raise RecordError(f"{head!r} is no metric with its unit: the file is damaged")
        if metric is not None and (named or metric["unit"] is not None):
            self._metrics.append((metric["name"], metric["unit"] or "", cells))
        elif head and head not in self._cells:
            self._cells[head] = cells
        else:
            return False
        self.rows += 1
        return True

    def broken(self, line: str) -> tuple[bool, int | None]:
        """A row that breaks off loses a metric, not a launch."""
        return False, None

    def finish(self) -> None:
        """Adds the launches and their metrics."""
        names = next((self._cells[key] for key in _FUNCTION if key in self._cells), None)
        count = len(names) if names else max((len(row[2]) for row in self._metrics), default=0)
        launches = []
        for index in range(count):
            owner = Owner(
                process=self._cell(("Process", "Process ID"), index),
                device=self._cell(("Device",), index) or None,
                context=self._cell(("Context",), index),
                compute_capability=self._cell(("CC", "Compute Capability"), index) or None,
            )
            grid = self._cell(("Grid Size",), index) + self._cell(("Block Size",), index)
            name = names[index] if names else f"kernel {index}"
            launches.append(self._launches.launch(owner, index, name, grid))
        for name, unit, cells in self._metrics:
            sink = self._launches.sink(name, unit, "")
            for launch, cell in zip(launches, cells, strict=False):
                sink.put(launch, _COMPARED.sub("", cell))

    def _cell(self, names: Sequence[str], index: int) -> str:
        for name in names:
            cells = self._cells.get(name, [])
            if index < len(cells):
                return cells[index].strip()
        return ""
