"""Lines to CSV fields: where a header or a row starts, with other programs' output around it."""

import csv
import re
from typing import Final

_DELIMITERS: Final = ",;\t"
# A header has at least four columns; one of them is the kernel's name.
_QUOTED_HEADER: Final = re.compile(r'(?:"[^"]*"[,;\t]){3,}"[^"]*"')
_QUOTED_ROW: Final = re.compile(r'"[0-9]+"([,;\t])"')
_LONGEST_ID: Final = 25  # digits
_FIELD: Final = re.compile(r'"((?:[^"]|"")*)"')


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
    return next(csv.reader([text], delimiter=delimiter), [])


def header(line: str) -> tuple[list[str], str] | None:
    """Column names and delimiter of a header, found anywhere in a line."""
    if "Kernel Name" not in line:
        return None
    match = _QUOTED_HEADER.search(line)
    if match is not None:
        text = match.group()
        delimiter = text[text.index('"', 1) + 1]
    else:
        text = line.strip()
        delimiter = max(_DELIMITERS, key=text.count)
        start = text.find(f"ID{delimiter}")
        text = text[max(start, 0) :]
    names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter), [])]
    if "Kernel Name" not in names or "ID" not in names:
        return None
    return names, delimiter


def salvage(line: str, delimiter: str, width: int) -> list[str] | None:
    """The fields of a row that has foreign text before or after it; None where there is no row.

    Only for rows in quotes: without them nobody can tell where the text starts.
    """
    match = _QUOTED_ROW.search(line)
    if match is None or match[1] != delimiter:
        return None
    position = match.start()
    fields: list[str] = []
    while len(fields) < width:
        field = _FIELD.match(line, position)
        if field is None:
            return None
        fields.append(field[1].replace('""', '"'))
        position = field.end()
        if len(fields) < width:
            if line[position : position + 1] != delimiter:
                return None
            position += 1
    return fields


def ident(text: str) -> int:
    """A launch ID; of an impossibly long one the first digits, which are still impossible."""
    return int(text[:_LONGEST_ID])  # int() itself refuses texts of over 4300 digits


def started(line: str, delimiter: str) -> tuple[bool, int | None]:
    """Whether a broken line is the start of a row, and the launch ID where that much is left."""
    match = re.search(rf'(?:^|(?<=[^"0-9]))"?([0-9]+)?("?{re.escape(delimiter)})?', line)
    if match is None or not line.lstrip().startswith(('"', *"0123456789")):
        return False, None
    return True, ident(match[1]) if match[1] and match[2] else None
