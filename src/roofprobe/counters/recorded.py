"""Counter-data images kept in a file, and played back on any machine.

The file is one line of JSON (what it is, chip, metrics, rounds) and then the sealed images as one
LZMA stream: images of one machine differ in 1% of their bytes, so further rounds are nearly free.
CUPTI's host side turns them into the same values to the last digit, with no GPU and no driver.
"""

import json
import lzma
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roofprobe.counters import Plan, RegionCounters, RoundCounters
from roofprobe.counters.cupti import evaluate_image, evaluate_regions
from roofprobe.errors import RecordError
from roofprobe.record import write_whole
from roofprobe.schema import strict_json

SOURCE: Final = "recorded"
FORMAT: Final = "roofprobe.counters"
VERSION: Final = 1
SUFFIX: Final = ".counters"

_MAX_BYTE: Final = 2**30  # 23 metrics and two ranges take 1.3 MB; more than this is not ours
_MEMORY_LIMIT: Final = 256 * 2**20  # LZMA's preset 9 needs 65 MB


@dataclass(frozen=True, slots=True)
class CounterFile:
    """Sealed counter-data images of the rounds of one measurement.

    Attributes:
        chip: CUPTI's chip name.
        metrics: Metrics that were scheduled.
        passes: Steps that each round took.
        images: One sealed image a round.
        labels: What the regions of ``parts`` are, by number; each a JSON-like tuple.
        part_metrics: Metrics that were scheduled for ``parts``.
        parts: One sealed image a round that counted by region; empty where none did.
    """

    chip: str
    metrics: tuple[str, ...]
    passes: int
    images: tuple[bytes, ...]
    labels: tuple[tuple[str | None, ...], ...] = ()
    part_metrics: tuple[str, ...] = ()
    parts: tuple[bytes, ...] = ()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the file whole or not at all."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "chip": self.chip,
            "metrics": list(self.metrics),
            "passes": self.passes,
            "sizes": [len(image) for image in self.images],
        }
        if self.parts:
            head["labels"] = [list(label) for label in self.labels]
            head["part_metrics"] = list(self.part_metrics)
            head["part_sizes"] = [len(image) for image in self.parts]
        body = lzma.compress(b"".join((*self.images, *self.parts)), preset=9)
        return write_whole(path, json.dumps(head).encode() + b"\n" + body)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CounterFile":
        """Reads the file.

        Raises:
            RecordError: not such a file, truncated, or corrupted.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise RecordError(f"{path}: cannot be read ({error.strerror})") from None
        try:
            return cls._parse(data)
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from None

    @classmethod
    def _parse(cls, data: bytes) -> "CounterFile":
        line, newline, body = data.partition(b"\n")
        try:
            head = strict_json(line.decode())
            if not newline or head["format"] != FORMAT:
                raise KeyError("format")
            if head["version"] != VERSION:
                raise RecordError(
                    f"counter file of version {head['version']}; this roofprobe reads {VERSION}"
                )
            chip, metrics = str(head["chip"]), tuple(map(str, head["metrics"]))
            passes, sizes = int(head["passes"]), [int(size) for size in head["sizes"]]
            part_sizes = [int(size) for size in head.get("part_sizes", ())]
            labels = tuple(map(tuple, head.get("labels", ())))
            part_metrics = tuple(map(str, head.get("part_metrics", ())))
        except (ValueError, KeyError, TypeError):
            raise RecordError("not a roofprobe counter file") from None
        every = [*sizes, *part_sizes]
        if min(every, default=0) < 0 or sum(every) > _MAX_BYTE:
            raise RecordError("not a roofprobe counter file: impossible image sizes")
        joined = _unpack(body, sum(every))
        images = []
        for size in every:
            images.append(joined[:size])
            joined = joined[size:]
        whole, parts = tuple(images[: len(sizes)]), tuple(images[len(sizes) :])
        return cls(chip, metrics, passes, whole, labels, part_metrics, parts)

    def evaluate(self) -> list[RoundCounters]:
        """Values of every round. Needs no GPU."""
        return [evaluate_image(image, self.metrics) for image in self.images]

    def evaluate_parts(self) -> list[RegionCounters]:
        """Values of every round that counted by region. Needs no GPU."""
        return [evaluate_regions(image, self.part_metrics) for image in self.parts]


def _unpack(body: bytes, size: int) -> bytes:
    """Decompresses to exactly ``size`` bytes, or raises RecordError."""
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY_LIMIT)
    try:
        data = decoder.decompress(body, size)
        if not decoder.eof:
            data += decoder.decompress(b"", 1)  # the end mark may still be ahead
    except (lzma.LZMAError, EOFError) as error:
        raise RecordError(f"counter file is corrupted ({error})") from None
    if len(data) != size or not decoder.eof or decoder.unused_data:
        raise RecordError(
            f"counter file is truncated or corrupted: {len(data)} bytes of images where its "
            f"header says {size}"
        )
    return data


class RecordedBackend:
    """Plays back a counter file, one recorded round after the other (see ``CounterBackend``)."""

    source = SOURCE

    def __init__(self, recorded: CounterFile) -> None:
        self._recorded = recorded
        self._rounds = iter(recorded.evaluate())
        self._passes_left = recorded.passes

    @property
    def chip(self) -> str:
        """Chip of the recording."""
        return self._recorded.chip

    def prepare(self, metrics: Sequence[str]) -> Plan:
        """Plans what was recorded; other metrics are unavailable."""
        recorded = self._recorded.metrics
        missing = {name: "not in the recording" for name in metrics if name not in recorded}
        return Plan(recorded, self._recorded.passes, missing)

    def open(self) -> None:
        """Nothing to attach to."""

    def begin_pass(self) -> None:
        """Nothing to start."""

    def end_pass(self) -> bool:
        """True on the last pass of the recorded round."""
        self._passes_left -= 1
        return self._passes_left == 0

    def collect(self) -> RoundCounters:
        """Values of the next recorded round.

        Raises:
            RecordError: the recording has no further round.
        """
        self._passes_left = self._recorded.passes
        try:
            return next(self._rounds)
        except StopIteration:
            raise RecordError(f"the recording has {len(self._recorded.images)} rounds") from None

    def close(self) -> None:
        """Nothing to detach from."""
