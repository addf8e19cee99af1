"""Ctrl-C, SIGTERM and SIGHUP end a verb in one way: by an exception, which cleans up behind it."""

import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Any, Final, TextIO

# A closed terminal sends SIGHUP twice, and a batch system SIGTERM and more: the second, s, must
# not break off the cleaning up after the first. A person who means it presses again later.
_BURST: Final = 1.0


class EndedError(KeyboardInterrupt):
    """A signal came. Not KeyboardInterrupt itself.

    Where that passes through ``exec``, as in many an import, Python notes it and takes 130 for the
    exit code, whatever becomes of it (CPython, ``unhandled_keyboard_interrupt``).
    """


class Signals:
    """Raises EndedError for each of the three while it is open, and knows which came.

    Attributes:
        came: The first that came; None as long as none did.
    """

    def __init__(self) -> None:
        self.came: int | None = None
        self._raised: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        with suppress(ValueError):  # only the main thread may; elsewhere signals are the caller's
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # What is ignored stays so (nohup, a shell's background); so does a caller's own.
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = signal.signal(number, self._raise)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _raise(self, number: int, _frame: FrameType | None) -> None:
        self.came = self.came or number
        now = time.monotonic()
        if self._raised is None or now - self._raised > _BURST:
            self._raised = now
            raise EndedError


def words(number: int) -> str:
    """How a run was ended, in words."""
    name = signal.Signals(number).name
    return "interrupted" if number == signal.SIGINT else f"ended by {name}"


def drop_unwritten(*streams: TextIO) -> None:
    """Gives up what cannot be written: at its end, Python would complain and change the status."""
    for stream in streams:
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(line: str) -> None:
    """Writes a line to standard error, where anybody is left to read it."""
    with suppress(OSError):  # a terminal that was closed
        print(line, file=sys.stderr, flush=True)
