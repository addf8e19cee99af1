"""From a file's bytes to lines of text: encodings, byte-order marks, line ends, progress."""

import codecs
import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from roofprobe.errors import RecordError

_BUFFER: Final = 1 << 20

# Longest first: the UTF-32 mark starts with the UTF-16 one.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@contextmanager
def open_lines(path: Path) -> Iterator[TextIO]:
    """Opens a file as lines of text that end in a line feed, whatever the file's own end is.

    A byte that does not belong to the encoding becomes a replacement character: programs print
    into these logs in encodings of their own, and that is no reason to lose the counters.

    Raises:
        RecordError: the file cannot be opened, is empty or is not text.
    """
    try:
        with path.open("rb", buffering=0) as raw:
            encoding = _encoding(path, raw.read(4096))
            raw.seek(0)
            watched = _Watched(raw, path.name, path.stat().st_size)
            with (
                io.BufferedReader(watched, _BUFFER) as buffered,
                io.TextIOWrapper(buffered, encoding=encoding, errors="replace") as lines,
            ):
                yield lines
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from None


def _encoding(path: Path, head: bytes) -> str:
    if not head:
        raise RecordError(f"{path}: the file is empty; ncu wrote nothing into it")
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    if b"\0" not in head:
        return "utf-8"
    # UTF-16 without a mark: for mostly ASCII text, every second byte is zero.
    for encoding, first in (("utf-16-le", 1), ("utf-16-be", 0)):
        if head[first::2].count(0) > 0.9 * len(head[first::2]) and 0 not in head[1 - first :: 2]:
            return encoding
    raise RecordError(f"{path}: neither text nor an .ncu-rep report")


class _Watched(io.RawIOBase):
    """A file that shows on a terminal how much of it was read."""

    _DELAY: Final = 0.5  # s; faster updates cost more than they tell

    def __init__(self, raw: io.FileIO, name: str, size: int) -> None:
        self._raw = raw
        self._name = name
        self._size = size
        self._done = 0
        self._next = time.monotonic() + self._DELAY
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads like any raw file."""
        count = self._raw.readinto(buffer)
        self._done += count
        if self._terminal and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._DELAY
            share = 100 * self._done / self._size if self._size else 100
            print(f"\r{self._name}: {share:3.0f}%", end="", file=sys.stderr, flush=True)
            self._shown = True
        if self._shown and not count:
            print(f"\r{' ' * (len(self._name) + 6)}\r", end="", file=sys.stderr, flush=True)
            self._shown = False
        return count
