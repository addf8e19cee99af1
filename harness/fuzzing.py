"""What a fuzzer needs beside its inputs: mutations of bytes, one attempt under limits, the loop.

A ``RoofprobeError`` about the input is a clean refusal; everything else is a failure, and so is an
input that takes over 5 s or 1 GB. Input N of a seed is always the same one.
"""

import random
import re
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from roofprobe.errors import RoofprobeError

LIMIT_S: Final = 5.0
LIMIT_BYTE: Final = 1_000_000_000  # of address space, above what the process has at the start
MOST_TRIES: Final = 400  # for making one input smaller

READ: Final = "read"
REFUSED: Final = "refused"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Target:
    """What is fuzzed.

    Attributes:
        name: For people and folders.
        draw: An input, by the source of random numbers.
        read: Reads an input; raises ``RoofprobeError`` where it refuses it.
    """

    name: str
    draw: Callable[[random.Random], bytes]
    read: Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an input ended.

    Attributes:
        kind: ``read``, ``refused`` or ``failed``.
        place: What tells outcomes apart: the sentence without its figures and quotations, or the
            line of code and the exception.
        text: The sentence or the traceback.
    """

    kind: str
    place: str = ""
    text: str = ""


# Mutations: bytes in place


def flip(data: bytearray, source: random.Random) -> None:
    """Changes one bit."""
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def insert(data: bytearray, source: random.Random) -> None:
    """Puts in some bytes."""
    at = source.randrange(len(data) + 1)
    data[at:at] = source.choice((b"\n", b'"', b",", b"\0", b"\xff", source.randbytes(4)))


def delete(data: bytearray, source: random.Random) -> None:
    """Takes out some bytes."""
    at = source.randrange(len(data))
    del data[at : at + source.choice((1, 1, 2, 8, 64))]


def truncate(data: bytearray, source: random.Random) -> None:
    """Cuts the end off."""
    del data[source.randrange(len(data)) :]


def damaged(data: bytes, source: random.Random) -> bytes:
    """The data with one to eight mutations."""
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 3, 5, 8))):
        if changed:
            source.choice((flip, flip, insert, delete, truncate))(changed, source)
    return bytes(changed)


# One attempt


class OvertimeError(BaseException):
    """An input over the limit; no ``except Exception`` may swallow it."""


def _overtime(_signal: int, _frame: Any) -> None:
    raise OvertimeError(f"over {LIMIT_S:g} s")


def set_limits() -> None:
    """Arms the limits: a failed allocation raises MemoryError, which is a failure as any other."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + LIMIT_BYTE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, _overtime)


def attempt(target: Target, data: bytes) -> Outcome:
    """Reads an input, within the limits where ``set_limits`` was called."""
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        target.read(data)
    except RoofprobeError as error:
        return Outcome(REFUSED, _skeleton(str(error)), str(error))
    except (Exception, OvertimeError):
        text = traceback.format_exc()
        return Outcome(FAILED, _where(text), text)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Outcome(READ)


def _skeleton(sentence: str) -> str:
    """A sentence without what is the input's: quotations, figures, places and values."""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|\{.*\}|\[.*\]", "_", sentence.replace("\n", " "))
    plain = re.sub(r"^/\S+: ", "", plain)
    plain = re.sub(r"\bat [\w./:-]+", "at _", plain)
    plain = re.sub(r"of version \S+;", "of version _;", plain)
    plain = re.sub(r": \S+ (is|was|are|were|does) ", r": _ \1 ", plain)
    return re.sub(r"[\d.]+(e[+-]?\d+)?", "0", plain)[:120]


def _where(text: str) -> str:
    lines = text.strip().splitlines()
    frames = [line.strip() for line in lines if line.startswith("  File ")]
    return f"{frames[-1] if frames else ''}: {lines[-1].split(':')[0]}"


def minimised(target: Target, data: bytes) -> bytes:
    """A smaller input with the same outcome: leaves out ever smaller parts while that holds."""
    wanted = attempt(target, data)
    same = (wanted.kind, wanted.place)
    size, tries = len(data) // 2, 0
    while size and tries < MOST_TRIES:
        at = 0
        while at < len(data) and tries < MOST_TRIES:
            smaller = data[:at] + data[at + size :]
            tries += 1
            found = attempt(target, smaller)
            if (found.kind, found.place) == same:
                data = smaller
            else:
                at += size
        size //= 2
    return data


# The loop


def fuzz(target: Target, seconds: float, seed: int, folder: Path) -> Counter[str]:
    """Reads inputs until the time is up.

    Args:
        target: What is fuzzed.
        seconds: How long.
        seed: Of the random numbers.
        folder: One input of each outcome is kept here, in ``read``, ``refused`` and ``failed``,
            failures with their traceback. ``running`` is the input at work, left behind where it
            takes the process down.

    Returns:
        Number of ``inputs``, and of those ``read``, ``refused`` and ``failed``.
    """
    counts: Counter[str] = Counter(dict.fromkeys(("inputs", READ, REFUSED, FAILED), 0))
    seen: set[tuple[str, str]] = set()
    for kind in (READ, REFUSED, FAILED):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    running = folder / "running"
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = counts["inputs"]
        counts["inputs"] += 1
        data = target.draw(random.Random(f"{seed}:{number}"))
        running.write_bytes(data)
        outcome = attempt(target, data)
        counts[outcome.kind] += 1
        if (outcome.kind, outcome.place) in seen:
            continue
        seen.add((outcome.kind, outcome.place))
        path = folder / outcome.kind / f"{seed}-{number}"
        path.write_bytes(data)
        if outcome.kind == FAILED:
            path.with_suffix(".txt").write_text(outcome.text, encoding="utf-8")
            print(f"{path}: {outcome.place}", flush=True)
    running.unlink(missing_ok=True)
    return counts
