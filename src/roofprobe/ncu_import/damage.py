"""What is missing from a file: rows that are damaged, an end that broke off, launches left out."""

from collections.abc import Collection, Iterable
from typing import Final

from roofprobe.errors import RecordError
from roofprobe.ncu_import.csv_log import Layout
from roofprobe.ncu_import.launches import Launches
from roofprobe.ncu_import.page_text import PageText
from roofprobe.ncu_import.rows import Fragment

Table = Layout | PageText

_CUT: Final = "the file breaks off"
_LEFT_OUT: Final = "left out of every total"
_NAMED: Final = 5  # launches that one warning names


class Damage:
    """Rows of one file that are there in part only.

    Attributes:
        rows: How many.
        cut: True where the end of the file is missing.
        warnings: For the user.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.cut = False
        self.warnings: list[str] = []
        # What came last of a launch, and where: None where a whole row came after it.
        self._found: dict[Fragment, tuple[Table, int] | None] = {}

    def note(self, table: Table, line: str, *, final: bool = False) -> bool:
        """Keeps what a line says that is the start of a row; False for any other line."""
        fragment = table.fragment(line, final=final)
        if fragment is None:
            return False
        self.rows += 1
        self.cut = self.cut or final
        self._found[fragment] = (table, table.rows)
        return True

    def collect(self, table: Table) -> None:
        """Keeps what shared its lines with whole rows of a table."""
        for fragment in table.torn:
            self.rows += 1
            self._found.setdefault(fragment, None)
        table.torn.clear()

    def settle(self, launches: Launches, table: Table) -> None:
        """Drops the launches that are not all there, and says which.

        Args:
            launches: Of the file, with their number format settled.
            table: The last one.

        Raises:
            RecordError: no launch is left.
        """
        doomed: set[int] = set()
        hurt: set[int] = set()
        amid: list[Fragment] = []
        at_end: list[Fragment] = []
        unclear = False
        known = launches.by_ident() if self._found else {}
        for fragment, place in self._found.items():
            final = place == (table, table.rows)
            self.cut = self.cut or final
            launch = _launch_of(fragment, known, launches, table.last)
            if fragment.ident is None:
                unclear = unclear or final
            elif launch is None:
                (at_end if final else amid).append(fragment)
            elif final:
                if launch not in doomed:  # else those behind it are, too
                    doomed.update(_from(launch, launches))
            else:
                hurt.add(launch)
        last = table.last
        broken = table.unfinished or (unclear and len(launches) == 1)
        ends = _broken_off(launches, last)
        if last is not None and broken:
            ends.add(last)
        doomed |= ends
        self.cut = self.cut or not ends <= hurt
        if doomed and len(doomed) == len(launches):
            where = "inside its only launch" if len(doomed) == 1 else "before any launch is whole"
            raise RecordError(f"{_CUT} {where}: nothing complete is left")
        describe = launches.describe
        left_out = [*map(describe, sorted(doomed - hurt)), *map(_called, at_end)]
        if left_out:
            self.warnings.append(f"{_CUT}: {_listed(left_out)} incomplete and {_LEFT_OUT}")
        elif unclear and last is not None:
            self.warnings.append(f"{_CUT} after {describe(last)}")
        torn = [*map(describe, sorted(doomed & hurt)), *map(_called, amid)]
        if torn:
            self.warnings.append(f"damaged rows: {_listed(torn)} {_LEFT_OUT}")
        partial = [*map(describe, sorted(hurt - doomed))]
        if partial:
            self.warnings.append(f"damaged rows: {_listed(partial)} without some of the metrics")
        self._find_gaps(launches, [*amid, *at_end])
        if doomed:
            launches.select([i for i in range(len(launches)) if i not in doomed])

    def compare(self, profiled: int, launches: Launches) -> None:
        """Warns where ncu says that it profiled more than the file has rows for."""
        have = len(launches) + len(self._found)
        if profiled > have:
            self.warnings.append(
                f"ncu profiled {profiled} kernels, and the file has rows for {len(launches)}: "
                f"the others are {_LEFT_OUT}"
            )

    def _find_gaps(self, launches: Launches, told: Collection[Fragment]) -> None:
        """Warns of IDs that no launch has: ncu numbers launches without a break.

        It does so in each process, or through all of them.
        """
        of_process: dict[str, list[int]] = {}
        for launch, owner in enumerate(launches.owner):
            process = launches.owners[owner].process
            of_process.setdefault(process, []).append(launches.ident(launch))
        for fragment in told:
            if fragment.ident is not None:
                of_process.setdefault(fragment.process or "", []).append(fragment.ident)
        if not _gaps(ident for idents in of_process.values() for ident in idents):
            return
        missing = [
            _named(first, process, last)
            for process, idents in of_process.items()
            for first, last in _gaps(idents)
        ]
        if missing:
            self.warnings.append(
                f"no row of {_names(missing)}, though there are launches before and after: in no "
                "total"
            )


def _gaps(idents: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of numbers that are left out."""
    found = []
    before = None
    for ident in sorted(set(idents)):
        if before is not None and ident > before + 1:
            found.append((before + 1, ident - 1))
        before = ident
    return found


def _launch_of(
    fragment: Fragment, known: dict[int, list[int]], launches: Launches, last: int | None
) -> int | None:
    """The launch of a fragment; of several with its ID, that of the row before it."""
    if fragment.ident is None:
        return None
    found = [
        launch
        for launch in known.get(fragment.ident, [])
        if fragment.process in (None, launches.owners[launches.owner[launch]].process)
    ]
    return last if last in found else found[-1] if found else None


def _broken_off(launches: Launches, last: int | None) -> set[int]:
    """Launches at which a process breaks off; ranks that share a log end at different places."""
    processes = launches.by_process().values()
    ends = {of[-1] for of in processes if launches.lacks(of[-1], of)}
    if last is not None and last not in ends and launches.lacks(last, range(len(launches))):
        ends.add(last)
    return ends


def _from(launch: int, launches: Launches) -> list[int]:
    """A launch and those of its process behind it.

    Where rows are sorted by metric and not by launch, a metric that breaks off is missing there.
    """
    process = launches.owners[launches.owner[launch]].process
    return [
        other
        for other in range(launch, len(launches))
        if launches.owners[launches.owner[other]].process == process
    ]


def _named(ident: int, process: str | None, last: int | None = None) -> str:
    several = last is not None and last > ident
    which = f"launches {ident} to {last}" if several else f"launch {ident}"
    return which + (f" of process {process}" if process else "")


def _called(fragment: Fragment) -> str:
    assert fragment.ident is not None
    return _named(fragment.ident, fragment.process)


def _names(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _listed(names: list[str]) -> str:
    """Names with their verb."""
    return f"{_names(names)} {'is' if len(names) == 1 else 'are'}"
