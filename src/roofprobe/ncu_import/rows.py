"""Lines to CSV fields: where a header or a row starts, with other programs' output around it."""

import csv
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

_DELIMITERS: Final = ",;\t"
# The first column of a header in quotes; a spreadsheet's own count may stand before it.
_QUOTED_HEADER: Final = re.compile(
    r'(?:^"[^"]*"[,;\t])?"(?:ID|Process ID|Process Name|Host Name|Kernel Name|Metric \w+)"'
    r'([,;\t])"'
)
_BARE_ID: Final = re.compile(r"(?<![A-Za-z] )ID[,;\t]")
_QUOTED_ROW: Final = re.compile(r'"[0-9]+"(?=[,;\t]")')
_TRIES: Final = 5  # places where a header without quotes may start behind a program's text
_CAPABILITY: Final = re.compile(r"([0-9]{1,2})(?:[.,]([0-9]))?")
_LONGEST_ID: Final = 25  # digits
# Two quotes are one inside a field, unless the next row starts there.
_FIELD: Final = re.compile(r'"([^"]*(?:""(?![0-9]+"[,;\t]")[^"]*)*)"')


class Header(NamedTuple):
    """Names of columns, what separates them, and where in its line the header starts."""

    names: list[str]
    delimiter: str
    start: int


class Fragment(NamedTuple):
    """The launch of a row of which only a part is there; None for what that part does not say."""

    process: str | None
    ident: int | None


def split(line: str, delimiter: str) -> list[str]:
    """The fields of a row, its line end included; none where a quote is left open."""
    text = line.rstrip("\r\n")
    if text.count('"') % 2:
        return []
    # Ten times faster than the csv module, and the same as long as no quote is inside a field.
    if text.startswith('"') and text.endswith('"') and '""' not in text:
        fields = text[1:-1].split(f'"{delimiter}"')
        if text.count('"') == 2 * len(fields):
            return fields
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:  # a field longer than the csv module takes, and than any of ncu's
        return []


def header(line: str) -> Header | None:
    """A header, found anywhere in a line."""
    if "Kernel Name" not in line:
        return None
    end = 0
    while (match := _QUOTED_HEADER.search(line, end)) is not None:
        names, end = fields_at(line, match.start(), match[1], len(line))
        if {"ID", "Kernel Name"} <= set(names):
            return Header([name.strip() for name in names], match[1], match.start())
        end = max(end, match.start() + 1)
    delimiter = max(_DELIMITERS, key=line.count)
    first = islice(_BARE_ID.finditer(line), _TRIES)
    for start in (0, *(match.start() for match in first)):
        names = [name.strip() for name in split(line[start:], delimiter)]
        if {"ID", "Kernel Name"} <= set(names):
            return Header(names, delimiter, start)
    return None


def fields_at(line: str, position: int, delimiter: str, limit: int) -> tuple[list[str], int]:
    """Whole fields in quotes that follow one another, ``limit`` at most, and where they end."""
    fields: list[str] = []
    end = position
    while len(fields) < limit:
        field = _FIELD.match(line, position)
        if field is None:
            break
        fields.append(field[1].replace('""', '"'))
        end = field.end()
        if line[end : end + 1] != delimiter:
            break
        position = end + 1
    return fields, end


def starts(line: str) -> Iterator[int]:
    """Where in a line a row in quotes may start.

    Only rows in quotes: without them nobody can tell where text before a row ends.
    """
    return (match.start() for match in _QUOTED_ROW.finditer(line))


def is_torn(line: str, end: int) -> bool:
    """Whether the quote before ``end`` opens what follows, so a row's last field has no end."""
    if _QUOTED_ROW.match(line, end - 1) is not None:
        return True
    # The next row can be torn instead.
    return line.count('"', end) % 2 == 1 and _QUOTED_ROW.match(line, end) is None


@lru_cache(maxsize=64)
def capability(text: str | None) -> str | None:
    """A compute capability; a spreadsheet makes 8 or 8,0 of 8.0."""
    found = _CAPABILITY.fullmatch(text or "")
    return f"{found[1]}.{found[2] or 0}" if found is not None else text


def ident(text: str) -> int:
    """A launch ID; of an impossibly long one the first digits, which are still impossible."""
    return int(text[:_LONGEST_ID])  # int() itself refuses texts of over 4300 digits
