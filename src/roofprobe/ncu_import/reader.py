"""One file: finds which of ncu's forms it has, and reads it to the end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from roofprobe.errors import RecordError
from roofprobe.ncu_import import csv_log, ranks, report_file
from roofprobe.ncu_import.csv_log import Layout
from roofprobe.ncu_import.damage import Damage, Table
from roofprobe.ncu_import.launches import Launches
from roofprobe.ncu_import.messages import Messages
from roofprobe.ncu_import.numerals import NumberFormat, Numerals
from roofprobe.ncu_import.page_text import PageText, is_kernel
from roofprobe.ncu_import.source import open_lines
from roofprobe.ncu_import.transposed import Transposed

_BOTH: Final = "CSV and plain text of ncu are in one file: import them as two files"


@dataclass(slots=True)
class Content:
    """What one file holds.

    Attributes:
        path: The file.
        launches: Its launches.
        messages: What ncu said in it.
        foreign: Lines of other programs between ncu's rows.
        cut: True where the end is missing.
        warnings: For the user.
    """

    path: Path
    launches: Launches
    messages: Messages
    foreign: int = 0
    cut: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> frozenset[str]:
        """Names of the metrics that a roofline uses."""
        return frozenset(c.name for c in self.launches.columns if c.meaning is not None)


def read(path: Path, forced: NumberFormat | None = None) -> Content:
    """Reads a file of any form.

    Args:
        path: The file.
        forced: Its number format, where the user knows better than the file.

    Raises:
        RecordError: with the file's name in front: no launches, numbers that read two ways, an
            unknown unit, two values for one metric.
    """
    try:
        if path.is_fifo():
            raise RecordError("a pipe, which cannot be read twice: save it to a file first")
        if report_file.is_report(path):
            launches = report_file.read(path)
            content = Content(path, launches, Messages(), warnings=[report_file.PROCESSES])
        else:
            with open_lines(path) as lines:
                content = parse(lines, path, forced)
    except RecordError as error:
        text = str(error)
        raise RecordError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    return content


def parse(lines: Iterable[str], path: Path, forced: NumberFormat | None = None) -> Content:
    """Reads lines that end in a line feed; the last may lack it.

    Raises:
        RecordError: see ``read``; without the file's name.
    """
    launches = Launches(Numerals(forced))
    messages = Messages()
    damage = Damage()
    layout: Table | Transposed = PageText(launches)
    tables: list[Layout] = []
    headers = False
    other: str | None = None
    foreign = 0
    stray = ("", 0)  # the last line of another program, and the rows before it
    for line in lines:
        if layout.take(line):
            if "==" in line:  # a message that shares the line with a row
                messages.take(line)
            continue
        found: Layout | Transposed | None = csv_log.layout_of(line, launches)
        if found is None and not layout.rows and not headers:
            other = other or csv_log.other_table(line)
            found = Transposed.starting(line, launches) if other is None else None
        if found is not None:
            if isinstance(layout, PageText) and layout.last is not None:
                raise RecordError(_BOTH)
            if not isinstance(layout, Transposed) and not isinstance(found, Transposed):
                damage.note(layout, line[: found.start])
                damage.collect(layout)
            layout, headers, stray = found, True, ("", 0)
            if not isinstance(found, Transposed):
                tables.append(found)
            messages.take(line)
            continue
        if not isinstance(layout, PageText) and is_kernel(line):
            raise RecordError(_BOTH)
        torn = not isinstance(layout, Transposed) and damage.note(layout, line)
        if messages.take(line):
            stray = ("", 0)
        elif not torn and line.strip():
            foreign += headers or layout.last is not None
            stray = (line, layout.rows)
    if isinstance(layout, Transposed):
        layout.finish()
        if not launches.columns:
            raise RecordError(
                "no kernels to read, only a table without metrics of whole launches: export with "
                "ncu --page raw --csv"
            )
    else:
        if stray[0] and stray[1] == layout.rows:
            foreign -= damage.note(layout, stray[0], final=True)
        damage.collect(layout)
    if not len(launches):
        raise _nothing(messages, damage, layout, headers, other)
    ranks.check(tables, launches)
    launches.settle()
    if not isinstance(layout, Transposed):
        damage.compare(messages.profiled, launches)
        damage.settle(launches, layout)
    return Content(path, launches, messages, foreign, damage.cut, damage.warnings)


def _nothing(
    messages: Messages,
    damage: Damage,
    layout: Table | Transposed,
    headers: bool,
    other: str | None,
) -> RecordError:
    """Why a file has no launch."""
    if damage.rows and not messages.errors:
        hindrance = None if isinstance(layout, Transposed) else layout.hindrance
        if damage.cut or (damage.rows == 1 and hindrance is None):
            return RecordError("the file breaks off in its first row: nothing complete is left")
        return RecordError(
            hindrance
            or f"{damage.rows} rows do not fit the header, so nothing complete is left: "
            "export the file again with ncu"
        )
    if other is not None and not headers:
        return RecordError(other)
    return messages.no_kernels(headers)
