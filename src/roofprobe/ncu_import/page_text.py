"""ncu's plain text (``--page details`` or ``raw`` without ``--csv``): tables under each kernel."""

import re
from typing import Final

from roofprobe.ncu_import.launches import Launches, Owner, Sink

_PROCESS: Final = re.compile(r"\[(?P<process>[0-9]+)\] \S.*@(?P<host>\S+)\s*")
_KERNEL: Final = re.compile(
    r"\s+(?P<name>\S.*?)"
    r"(?: (?P<grid>\([0-9]+, *[0-9]+, *[0-9]+\)x\([0-9]+, *[0-9]+, *[0-9]+\)))?"
    r"(?:, [0-9]{4}-[A-Za-z0-9]+-[0-9]+ [0-9:]+)?"
    r", Context (?P<context>[0-9]+), Stream [0-9]+"
    r"(?:, Device (?P<device>[0-9]+))?(?:, CC (?P<cc>[0-9.]+))?\s*"
)
_SECTION: Final = re.compile(r"\s+Section: (?P<name>.+?)\s*")
_RULER: Final = re.compile(r"\s+-+(?: +-+){2}\s*")


class PageText:
    """Reads the tables of one file.

    Attributes:
        last: Index of the launch that was read last.
        rows: Rows so far.
    """

    def __init__(self, launches: Launches) -> None:
        self.last: int | None = None
        self.rows = 0
        self._launches = launches
        self._process = ("", "")
        self._next: dict[tuple[str, str], int] = {}
        self._section = ""
        self._ends: list[int] | None = None  # where the columns end, inside a table
        self._sinks: dict[tuple[str, str, str], Sink] = {}

    def take(self, line: str) -> bool:
        """Reads a line; False when it has nothing to do with ncu's tables."""
        if _RULER.fullmatch(line):
            self._ends = [match.end() for match in re.finditer("-+", line)]
            return True
        if not line.endswith("\n"):
            return False  # cut off: what looks like a value may be half of one
        if self.last is not None and self._ends and self._row(line):
            return True
        if line.startswith("["):
            process = _PROCESS.fullmatch(line)
            if process is not None:
                self._process = (process["process"], process["host"])
                return True
        if not line.startswith(" "):
            return False
        if ", Context " in line:
            kernel = _KERNEL.fullmatch(line)
            if kernel is not None:
                self._kernel(kernel)
                return True
        section = _SECTION.fullmatch(line)
        if section is not None:
            self._section, self._ends = section["name"], None
            return True
        # Advice and empty lines below a kernel belong to it.
        return self.last is not None

    def broken(self, line: str) -> tuple[bool, int | None]:
        """Whether a line is the start of a table row that breaks off."""
        return self.last is not None and line.startswith("    "), None

    def _kernel(self, kernel: re.Match[str]) -> None:
        process, host = self._process
        # Plain text has no launch IDs: the order within the process stands for them.
        ident = self._next.get(self._process, 0)
        self._next[self._process] = ident + 1
        owner = Owner(process, kernel["device"], kernel["context"], kernel["cc"], host)
        self.last = self._launches.launch(owner, ident, kernel["name"], kernel["grid"] or "")
        self._section, self._ends = "", None

    def _row(self, line: str) -> bool:
        assert self._ends is not None and self.last is not None
        first, second, _ = self._ends
        name, unit, value = line[:first].strip(), line[first:second].strip(), line[second:].strip()
        if line[first : first + 1].strip() or line[second : second + 1].strip():
            # Wider than the ruler: metric names and units have no spaces, so words will do.
            name, *middle, value = line.split() if len(line.split()) > 1 else ("", "")
            unit = " ".join(middle)
        if not name or not value or not line.startswith("    "):
            return False
        if (name, unit) == ("Metric Name", "Metric Unit"):
            return True
        key = (name, unit, self._section)
        sink = self._sinks.get(key)
        if sink is None:
            sink = self._sinks[key] = self._launches.sink(*key)
        sink.put(self.last, value)
        self.rows += 1
        return True
