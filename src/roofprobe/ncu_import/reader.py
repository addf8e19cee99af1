"""One file: finds which of ncu's forms it has, and reads it to the end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from roofprobe.errors import RecordError
from roofprobe.ncu_import import csv_log, report_file
from roofprobe.ncu_import.csv_log import Layout
from roofprobe.ncu_import.launches import Launches
from roofprobe.ncu_import.messages import Messages
from roofprobe.ncu_import.numerals import NumberFormat, Numerals
from roofprobe.ncu_import.page_text import PageText
from roofprobe.ncu_import.source import open_lines
from roofprobe.ncu_import.transposed import Transposed

_CUT: Final = "the file breaks off"


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
        if report_file.is_report(path):
            content = Content(path, report_file.read(path), Messages())
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
    layout: Layout | PageText | Transposed = PageText(launches)
    foreign = 0
    headers = False
    line = ""
    taken = True
    for line in lines:
        taken = layout.take(line)
        if taken:
            continue
        found = csv_log.layout_of(line, launches)
        if found is None and not layout.rows and not headers:
            found = Transposed.starting(line, launches)
        if found is not None:
            layout, headers, taken = found, True, True
        elif not messages.take(line) and layout.rows and line.strip():
            foreign += 1
    if isinstance(layout, Transposed):
        layout.finish()
    if not len(launches):
        raise messages.no_kernels(headers)
    launches.settle()
    content = Content(path, launches, messages, foreign)
    tail = None if taken or line.endswith("\n") else line
    _check_end(content, layout, tail)
    return content


def _check_end(content: Content, layout: Layout | PageText | Transposed, tail: str | None) -> None:
    """Drops a last launch that is not all there.

    Args:
        content: What was read.
        layout: The reader of the last rows.
        tail: A last line that ends without a line feed and could not be read.
    """
    launches, last = content.launches, layout.last
    if last is None:
        return
    broken, ident = layout.broken(tail) if tail is not None else (False, None)
    content.foreign -= broken
    if broken and ident is not None and ident != launches.ident(last):
        content.cut = True
        content.warnings.append(f"{_CUT}: launch {ident} is left out of every total")
        return
    alone = len(launches) == 1
    if launches.lacks(last) or (broken and (alone or ident is not None)):
        if alone:
            raise RecordError(f"{_CUT} inside its only launch: nothing complete is left")
        content.cut = True
        name = launches.describe(last)
        content.warnings.append(
            f"{_CUT}: the last one, {name}, is incomplete and left out of every total"
        )
        launches.drop(last)
    elif broken:
        content.cut = True
        content.warnings.append(f"{_CUT} after {launches.describe(last)}")
