"""Several ranks in one log: rows that may be another rank's than the header above them."""

from collections.abc import Sequence
from typing import Protocol

from roofprobe.errors import RecordError
from roofprobe.ncu_import.launches import Launches


class Table(Protocol):
    """What is below one header; ``form`` is how its rows read."""

    form: tuple[tuple[str, ...], ...]


def mixed(why: str) -> RecordError:
    """The refusal of a log in which nobody can tell whose a row is, for ``why``."""
    return RecordError(
        f"ranks share this log, and {why}, so nobody can tell how a row reads: "
        "write a file for each rank, with ncu --log-file NAME%p"
    )


def check(tables: Sequence[Table], launches: Launches) -> None:
    """Refuses rows of several processes below a header that is not the header of all of them.

    One ncu writes one header. So a rank goes on below another's where a header came without any
    row of its own, or where a process has rows below two headers and its IDs do not start anew.

    Args:
        tables: In order of appearance.
        launches: Of the file.

    Raises:
        RecordError: that is so, and the two headers or their units differ.
    """
    if not any(_differ(tables[0], table) for table in tables[1:]):
        return
    spans = launches.spans()
    anew = set(map(launches.process, launches.again))
    for number, table in enumerate(tables, start=1):
        here = spans.get(number, {})
        for earlier, other in enumerate(tables[: number - 1], start=1):
            before = spans.get(earlier, {})
            both = (here.keys() & before.keys()) - anew
            goes_on = not before or any(here[who][0] > before[who][1] for who in both)
            if len(here) > 1 and goes_on and _differ(table, other):
                raise mixed("their headers or units differ")


def _differ(one: Table, other: Table) -> bool:
    """Whether the rows of two tables read differently; a table may lack its units."""
    return any(a != b for a, b in zip(one.form, other.form, strict=False))
