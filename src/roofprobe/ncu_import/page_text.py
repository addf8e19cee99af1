"""ncu's plain text (``--page details`` or ``raw`` without ``--csv``): tables under each kernel."""

import re
from typing import Final

from roofprobe.ncu_import import numerals, ranks, rows, vocabulary
from roofprobe.ncu_import.launches import Launches, Owner, Sink
from roofprobe.ncu_import.rows import Fragment

_PROCESS: Final = re.compile(r"\[(?P<process>[0-9]+)\] \S.*@(?P<host>[^\s@]+)\s*")
# What a launcher puts before each line of a rank ("0: ", "[1,0]<stdout>:", "worker-1  | ").
_RANK: Final = re.compile(rf"(?P<rank>[\w \t.,<>\[\]-]{{1,40}}[:|>\]] ?){_PROCESS.pattern}")
_KERNEL: Final = re.compile(
    r"  (?P<name>\S.*?)"
    r"(?: (?P<grid>\([0-9]+, *[0-9]+, *[0-9]+\)x\([0-9]+, *[0-9]+, *[0-9]+\)))?"
    r"(?:, [0-9]{4}-[A-Za-z0-9]+-[0-9]+ [0-9:]+)?"
    r", Context (?P<context>[0-9]+), Stream (?P<stream>[0-9]+)"
    r"(?:, Device (?P<device>[0-9]+))?(?:, CC (?P<cc>[0-9.]+))?\s*"
)
_SECTION: Final = re.compile(r"\s+Section: (?P<name>.*\S)\s*")
_RULER: Final = re.compile(r"\s+-+(?: +-+){2}\s*")
# A kernel's line that something else was printed into.
_TORN_KERNEL: Final = re.compile(r"[0-9], *[0-9]+\)x\([0-9]|, Context [0-9]")
_BAR: Final = re.compile(r"[0-9]%\|")
_EXPONENT: Final = re.compile(r"[0-9]+(?:[.,][0-9]+)?[eE][+-]?[0-9]+")
_GLUED: Final = re.compile(r"[0-9][0-9.,]*[^0-9.,]*[A-Za-z].*")


class PageText:
    """Reads the tables of one file.

    Attributes:
        last: Index of the launch that was read last.
        rows: Rows so far.
        torn: Nothing: two rows do not share a line here.
    """

    def __init__(self, launches: Launches) -> None:
        self.last: int | None = None
        self.rows = 0
        self.torn: list[Fragment] = []
        self._launches = launches
        self._rank = ""  # what stands before each line
        self._process = ("", "")
        self._next: dict[tuple[str, str], int] = {}
        self._here: Fragment | None = None  # the launch whose tables come
        self._skip = False  # its line could not be read
        self._section = ""
        self._ends: list[int] | None = None  # where the columns end, inside a table
        self._empty = False  # no row came since its line
        self._processes: set[str] = set()
        self._named = False  # a process's line came last, and no kernel's since
        self._opened = False  # a ruler came last, and it begins a table
        self._headed = False  # the names of the columns came last
        self._sinks: dict[tuple[str, str, str], Sink] = {}

    @property
    def hindrance(self) -> str | None:
        """Why no row can be read."""
        return None

    @property
    def unfinished(self) -> bool:
        """Whether the last launch has no table yet, or one without an end."""
        return not self._skip and (self._empty or self._ends is not None)

    def take(self, line: str) -> bool:
        """Reads a line; False when it has nothing to do with ncu's tables.

        Raises:
            RecordError: it is another rank's.
        """
        line = self._bare(line)
        if _RULER.fullmatch(line):
            self._rule(line)
            return True
        if not line.endswith("\n"):
            return False  # cut off: what looks like a value may be half of one
        if self._ends is not None and self._row(line):
            return True
        if line.startswith("["):
            process = _PROCESS.fullmatch(line)
            if process is not None:
                self._processes.add(process["process"])
                self._check(not self._named)
                self._named = True
                self._process = (process["process"], process["host"])
                return True
        kernel = _KERNEL.fullmatch(line) if ", Context " in line else None
        if kernel is not None:
            self._kernel(kernel)
            return True
        if self.last is not None and _TORN_KERNEL.search(line):
            self._tear()
            return False
        section = _SECTION.fullmatch(line)
        if section is not None:
            self._section, self._ends, self._opened = section["name"], None, False
            return True
        # Advice and empty lines below a kernel belong to it.
        below = line.startswith(" ") and not _is_outer(line) and self.last is not None
        return below and (self._ends is None or not line.strip())

    def fragment(self, line: str, *, final: bool) -> Fragment | None:
        """The launch of a line that is the start of a row or of a kernel, None for other lines.

        Args:
            line: The line.
            final: No row follows, so less is enough to make it one that breaks off.
        """
        line = line.removeprefix(self._rank)
        if self._ends is not None:
            name = line.strip().partition("  ")[0]
            known = "__" in name or any(name == key[0] for key in self._sinks)
            return self._here if line.startswith("    ") and (final or known) else None
        if self._skip and _TORN_KERNEL.search(line):
            return self._here
        begun = _is_outer(line) and not _BAR.search(line)
        if final and begun and self._process != ("", ""):
            return Fragment(self._process[0], self._next.get(self._process, 0))
        return None

    def _bare(self, line: str) -> str:
        """A line without what a launcher put before it."""
        if "@" in line and (ranked := _RANK.fullmatch(line)) is not None:
            if self._rank not in ("", ranked["rank"]):
                raise ranks.mixed("their lines have different beginnings")
            self._rank = ranked["rank"]
        if self._rank and line.rstrip() == self._rank.rstrip():
            return "\n"
        return line.removeprefix(self._rank)

    def _rule(self, line: str) -> None:
        """A ruler begins a table, is below the names of its columns, or ends it."""
        self._check(not self._opened)
        self._opened = self._ends is None
        ends = self._ends is not None and not self._headed
        self._ends = None if ends else [match.end() for match in re.finditer("-+", line)]
        self._headed = False

    def _check(self, in_order: bool) -> None:
        """Refuses a log into which several processes write line by line in turn."""
        if not in_order and len(self._processes) > 1:
            raise ranks.mixed("their lines alternate")

    def _begin(self) -> int:
        """A launch begins: its number. Plain text has no IDs, so the order stands for them."""
        ident = self._next.get(self._process, 0)
        self._next[self._process] = ident + 1
        self._here = Fragment(self._process[0], ident)
        self._section, self._ends = "", None
        self._named = self._opened = False
        return ident

    def _kernel(self, kernel: re.Match[str]) -> None:
        process, host = self._process
        owner = Owner(
            process, kernel["device"], kernel["context"], rows.capability(kernel["cc"]), host
        )
        # What a program printed before it on the line is no part of the name.
        name = kernel["name"].rpartition("  ")[2]
        self.last = self._launches.launch(
            owner, self._begin(), name, kernel["grid"] or "", stream=kernel["stream"]
        )
        self._skip, self._empty = False, True

    def _tear(self) -> None:
        """A kernel's line that cannot be read: its tables are nobody's."""
        if not self._skip or self._section:  # not the other half of the same line
            self._begin()
        self._skip = True

    def _row(self, line: str) -> bool:
        assert self._ends is not None
        first, second, third = self._ends
        name, unit, value = line[:first].strip(), line[first:second].strip(), line[second:].strip()
        if line[first : first + 1].strip() or line[second : second + 1].strip():
            # Wider than the ruler: metric names and units have no spaces, so words will do.
            name, *middle, value = line.split() if len(line.split()) > 1 else ("", "")
            unit = " ".join(middle)
        if not line.startswith("    ") or not name:
            return False
        used = vocabulary.expected(name) is not None
        if not value:
            # ncu pads it to the ruler, so nothing broke off; a figure that is used has a value.
            return not used and vocabulary.is_metric_name(name) and len(line) > third
        self._opened = False
        if (name, unit) == ("Metric Name", "Metric Unit"):
            self._headed = True
            return True
        # Values end where the ruler ends, in characters or in bytes.
        text = line.rstrip()
        if max(len(text), len(text.encode())) < third or (used and _is_glued(value)):
            return False
        if self.last is None or self._skip:
            return self._skip
        key = (name, unit, self._section)
        sink = self._sinks.get(key)
        if sink is None:
            sink = self._sinks[key] = self._launches.sink(*key)
        sink.put(self.last, value)
        self.rows += 1
        self._empty = False
        return True


def is_kernel(line: str) -> bool:
    """Whether a line is that above a kernel's tables, a launcher's mark before it or not."""
    found = _KERNEL.search(line) if ", Context " in line else None
    return found is not None and found.end() == len(line)


def _is_glued(value: str) -> bool:
    """Whether a number runs into other text, so that half of it may be gone."""
    is_number = _EXPONENT.fullmatch(value) is not None or numerals.absent(value) is not None
    return not is_number and _GLUED.fullmatch(value) is not None


def _is_outer(line: str) -> bool:
    """Whether a line is indented as far as those of kernels."""
    return line.startswith("  ") and bool(line[2:3].strip())
