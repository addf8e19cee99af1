"""The scale of a chip's tensor-operation counter, from a matrix product of known size."""

import difflib
import json
import math
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from roofprobe import metrics
from roofprobe.errors import RecordError
from roofprobe.ncu_import.launches import Launches
from roofprobe.ncu_import.totals import Term, Terms

# A counter counts an FMA as two or as one; padding of odd sizes adds a little.
_SCALES: Final = (1.0, 2.0)
_TOLERANCE: Final = 0.05
_NEAR: Final = 3  # names that a message offers


@dataclass(frozen=True, slots=True)
class Calibration:
    """A kernel of known work.

    Attributes:
        kernel: Its name in the files.
        flop: What one launch of it does.
    """

    kernel: str
    flop: float

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Reads JSON with ``kernel`` and either ``exact_flops`` or ``m``, ``n`` and ``k``.

        Raises:
            RecordError: it is not that.
        """
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            flop = body.get("exact_flops") or 2.0 * body["m"] * body["n"] * body["k"]
            return cls(str(body["kernel"]), float(flop))
        except OSError as error:
            raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RecordError(
                f"{path}: not a calibration: it needs kernel, and exact_flops or m, n and k"
            ) from None

    def scale(self, parts: Terms) -> float:
        """What the tensor counters must be multiplied with: 1 or 2.

        Raises:
            RecordError: the kernel is not in the files, its operations are unknown, or neither
                scale explains their count.
        """
        self._require({title for term in parts.items for title in term.titles})
        counted = 0.0
        launches: set[int] = set()
        for term in parts.of("flop"):
            if term.figure[1].startswith("tensor"):
                for launch, (name, value) in enumerate(zip(term.names, term.values, strict=True)):
                    if term.titles[name] == self.kernel:
                        launches.add(launch)
                        counted += value
                        if math.isnan(value):
                            self._refuse(term, parts)
        if not launches or not counted:
            raise RecordError(
                f"the calibration kernel {self.kernel!r} has no tensor operations in the files"
            )
        ratio = self.flop * len(launches) / counted
        for scale in _SCALES:
            if math.isclose(ratio, scale, rel_tol=_TOLERANCE):
                return scale
        raise RecordError(
            f"the calibration kernel {self.kernel!r} should do {self.flop:.6g} FLOP and counts "
            f"{counted / len(launches):.6g}: a ratio of {ratio:.4g}, where 1 or 2 was expected"
        )

    def _require(self, titles: Collection[str]) -> None:
        if self.kernel in titles:
            return
        near = [title for title in titles if self.kernel in title]
        near += difflib.get_close_matches(self.kernel, titles, _NEAR)
        shown = ", ".join(map(repr, dict.fromkeys(near[:_NEAR]))) or "nothing like it"
        raise RecordError(
            f"no kernel in the files has the calibration's name {self.kernel!r}: give the name as "
            f"it stands there, in full (there is {shown})"
        )

    def _refuse(self, term: Term, parts: Terms) -> NoReturn:
        why = parts.reasons.get(".".join(term.figure), f"{term.source} has no value")
        raise RecordError(
            f"the tensor operations of the calibration kernel {self.kernel!r} are unknown: {why}"
        )

    def apply(self, launches: Launches, build: Callable[[], Terms]) -> Terms:
        """Leaves the kernel's own launches out, and scales the tensor terms of all others.

        Args:
            launches: Of all files; those of the kernel are taken out.
            build: Gives the terms of the launches that there are.

        Raises:
            RecordError: see ``scale``.
        """
        scale = self.scale(build())
        count = launches.leave_out(self.kernel)
        # Sums over no launch would be zeros.
        parts = build() if len(launches) else self._alone()
        parts.scale = scale
        for index, term in enumerate(parts.items):
            if term.figure[1].startswith("tensor"):
                values = array("d", [value * scale for value in term.values])
                parts.items[index] = replace(term, values=values)
        parts.warnings.insert(
            0,
            f"{count} launches of {self.kernel} settled the tensor counter's scale ({scale:g}) "
            "and are left out of every total",
        )
        return parts

    def _alone(self) -> Terms:
        figures = ("flop.total", "time_s", *(f"byte.{level}" for level in metrics.LEVELS))
        why = f"the files hold no kernel but {self.kernel}, which is in no total"
        return Terms(reasons=dict.fromkeys(figures, why))
