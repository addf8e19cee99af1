"""From a file's bytes to lines of text: encodings, byte-order marks, line ends, progress."""

import codecs
import io
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from roofprobe.errors import RecordError

_BUFFER: Final = 1 << 20
_LONGEST_LINE: Final = 1 << 24  # characters; a raw page of every metric stays below 1 << 17

# Longest first: the UTF-32 mark starts with the UTF-16 one.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# 32 letters in UTF-16 and 64 in UTF-8: more than text of the other kind has by chance, and less
# than any header or row.
_RUN: Final = 64  # bytes
_WIDE: Final = re.compile(rb"(?:[\t\r\n -~]\0){32}")
_NARROW: Final = re.compile(rb"[\t\r\n -~]{64}")

_PACKED: Final = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
_CONTROLS: Final = bytes(set(range(0x20)) - set(b"\0\b\t\n\f\r\x1b"))
_MOST_CONTROLS: Final = 0.1  # of a file's head


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """Opens a file as lines of text that end in a line feed, whatever the file's own end is.

    Shells append to a log in an encoding of their own, so it can change on the way. Programs print
    into these logs in yet others, and that is no reason to lose the counters: a byte that is no
    UTF-8 is read as Windows-1252, and one that is nothing becomes a replacement character.

    Raises:
        RecordError: the file cannot be opened, is empty or is not text.
    """
    try:
        with path.open("rb", buffering=0) as raw:
            encoding = _encoding(path, raw.read(4096))
            raw.seek(0)
            blocks = _Watched(raw, path.name, path.stat().st_size)
            yield _lines(_text(blocks, encoding))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from None


def _encoding(path: Path, head: bytes) -> str:
    """By the mark at the start; without one it shows where the text does (see ``_text``)."""
    if not head:
        raise RecordError(f"{path}: the file is empty; ncu wrote nothing into it")
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    if head.startswith(_PACKED):
        raise RecordError(f"{path}: the file is compressed: unpack it, and import what was in it")
    if b"\0" in head and sum(map(head.count, _CONTROLS)) > _MOST_CONTROLS * len(head):
        raise RecordError(
            f"{path}: neither text nor an .ncu-rep report; write text with "
            "ncu --csv --log-file FILE"
        )
    return "utf-8"


def _text(blocks: Iterable[bytes], encoding: str) -> Iterator[str]:
    """Decodes; line ends become line feeds.

    Args:
        blocks: The file's bytes.
        encoding: Of its start.
    """
    decoder = _decoder(encoding)
    rest = b""
    for block in blocks:
        rest += block
        while (start := _other(rest, encoding)) is not None:
            yield decoder.decode(rest[:start], final=True)
            rest = rest[start:]
            encoding = "utf-16-le" if _is_narrow(encoding) else "utf-8"
            decoder = _decoder(encoding)
        # A run can go on in the next block.
        yield decoder.decode(rest[:-_RUN])
        rest = rest[-_RUN:]
    yield decoder.decode(rest, final=True)


def _is_narrow(encoding: str) -> bool:
    return encoding.startswith("utf-8")


def _other(data: bytes, encoding: str) -> int | None:
    """Where text in the other encoding starts.

    Big-endian text counts as little-endian with a line end or a zero byte before it: the same as
    long as it is Latin, and no shell appends the rest.
    """
    if not _is_narrow(encoding):
        found = _NARROW.search(data)
    else:
        found = _WIDE.search(data) if b"\0" in data else None
    return found.start() if found is not None else None


def _decoder(encoding: str) -> io.IncrementalNewlineDecoder:
    errors = _FALLBACK if _is_narrow(encoding) else "replace"
    return io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder(encoding)(errors), translate=True
    )


def _as_windows(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


_FALLBACK: Final = "roofprobe.cp1252"
codecs.register_error(_FALLBACK, _as_windows)


def _lines(texts: Iterable[str]) -> Iterator[str]:
    rest = ""
    for text in texts:
        lines = (rest + text).split("\n")
        rest = lines.pop()
        if len(rest) > _LONGEST_LINE:
            raise RecordError(f"a line of over {_LONGEST_LINE} characters: not written by ncu")
        for line in lines:
            yield line + "\n"
    if rest:
        yield rest


class _Watched:
    """The blocks of a file; shows on a terminal how much of it was read."""

    _DELAY: Final = 0.5  # s; faster updates cost more than they tell

    def __init__(self, raw: io.FileIO, name: str, size: int) -> None:
        self._raw = raw
        self._name = name
        self._size = size
        self._done = 0
        self._next = time.monotonic() + self._DELAY
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def __iter__(self) -> Iterator[bytes]:
        while block := self._raw.read(_BUFFER):
            self._done += len(block)
            if self._terminal and time.monotonic() >= self._next:
                self._next = time.monotonic() + self._DELAY
                share = 100 * self._done / self._size if self._size else 100
                print(f"\r{self._name}: {share:3.0f}%", end="", file=sys.stderr, flush=True)
                self._shown = True
            yield block
        if self._shown:
            print(f"\r{' ' * (len(self._name) + 6)}\r", end="", file=sys.stderr, flush=True)
