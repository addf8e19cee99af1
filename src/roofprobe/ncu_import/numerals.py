"""Which of ``1.234`` and ``1,234`` is a thousand: decided for each file from its own numbers.

ncu prints numbers in the locale of whoever ran it. A separator is taken for what it must be
somewhere in the file; where no number tells, the file is refused, for a wrong guess is wrong by
a factor of 1000. Evidence, strongest first:

1. A number that reads one way only: ``1,234,567``, ``1,234.5``, ``0.5``, ``12.25``; and a count
   that must be whole (``1,234`` instructions). A round one (``128.000``) is whole both ways, as
   where pandas wrote it with three decimals. ``1,000`` is a thousand all the same unless another
   count shows such decimals (``0,000``); ``128.000`` needs other evidence.
2. What a value is (see ``clue``): ``45,678 %`` of the peak has decimals, ``1,024`` threads have
   none. And long integers without a point or comma (``1234567``, ``1 234 567``, ``1'234'567``):
   then a lone separator is a decimal one.
3. Fields separated by semicolons, as programs write them where the comma is the decimal sign.

Only where a number that a figure needs reads two ways does the file have to tell. What stands in
a column of the user's own (a version) is no evidence.
"""

import re
from typing import Final, Literal, NamedTuple

from roofprobe.errors import RecordError

NumberFormat = Literal["en", "ch", "de", "fr"]
Reading = Literal["en", "de"]  # by the sign before the decimals
Clue = Literal["whole", "share"]

# What --number-format takes.
FORMATS: Final[dict[str, NumberFormat]] = {"en": "en", "ch": "ch", "de": "de", "fr": "fr"}
# The sign before the decimals, and the one between thousands. Spaces and apostrophes group
# thousands in every format.
_SIGNS: Final[dict[NumberFormat, tuple[str, str]]] = {
    "en": (".", ","),
    "ch": (".", ""),
    "de": (",", "."),
    "fr": (",", ""),
}

_SHAPE: Final = re.compile(r"([+-]?)([0-9]+)((?:[.,][0-9]+)*)([eE][+-]?[0-9]+)?")
_NEUTRAL: Final = re.compile(
    r"[+-]?[1-9][0-9]{0,2}([ \u00a0\u2009\u202f'\u2019])[0-9]{3}(?:\1[0-9]{3})*(?![0-9])"
)
_NEVER: Final = re.compile(r"(?!)").fullmatch
# Hardware counters are whole, and so are sums and extremes of them; so is the shape of a launch.
_COUNTER: Final = re.compile(
    r"(?!derived__)[a-z0-9]+__\w+\.(?:sum|max|min)|launch__thread_count|Elapsed Cycles|Threads"
)
_COUNTED: Final = frozenset({"byte", "cycle", "inst", "op", "request", "sector", "thread", "warp"})
_SIZES: Final = frozenset({"launch__grid_size", "launch__block_size", "Grid Size", "Block Size"})
# Time stamps are whole nanoseconds.
_DURATION: Final = re.compile(r"gpu__time_duration\b.*|Duration")
# No counter gets there; a damaged one can, and sums of it would be infinite.
_LARGEST: Final = 1e30
_LONGEST: Final = 60  # characters
# Spreadsheets and C runtimes write them as "#N/A", "1.#QNAN", "-nan(ind)", "[n/a]".
_ABSENT: Final = re.compile(r"[^0-9a-z]*(?:(?:n\W?a|none|null|not available|no data)[^0-9a-z]*)?")
_NAN: Final = re.compile(r"[+-]?(?:[0-9]\.#)?(?:[qs]?nan|ind).*")
_INFINITE: Final = re.compile(r"[+-]?(?:[0-9]\.#)?inf(?:inity)?0*")
_SHOWN: Final = 20  # characters of a cell in words
_ROUND: Final = "000"

# Counters have 64 bits; a difference below zero wraps to just below the limit, and no launch runs
# for the days that half of it takes.
_FULL: Final = 2.0**63


class NotANumberError(ValueError):
    """A text that is no number, or none in the format that the user named."""


class Known(NamedTuple):
    """What is known of a value before it is read; the arguments of ``Numerals.both``."""

    whole: bool = False
    clue: Clue | None = None
    needed: bool = True
    tells: bool = True


def absent(text: str) -> str | None:
    """Why a cell holds no number, or None where it may hold one."""
    plain = text.replace("(!)", "").strip().lower()
    if _ABSENT.fullmatch(plain):
        return "n/a in the file: not collected, or the chip has no such metric"
    if _NAN.fullmatch(plain):
        return (
            "not a number (NaN) in the file: a DRAM or L2 counter reads so where MIG instances "
            "share the unit, any counter where its collection failed"
        )
    if _INFINITE.fullmatch(plain):
        return "infinite in the file"
    return None


def wordy(text: str) -> str | None:
    """Why a cell without a digit holds no number, None for one with digits."""
    if any(map(str.isdecimal, text)):
        return None
    return f"{text.strip()[:_SHOWN]!r} in the file, where a number belongs"


def impossible(value: float) -> str | None:
    """Why no counter of a launch, in its base unit, can have a value; None where it can."""
    if value < 0:
        return "below zero in the file, where no counter gets: it was not read right"
    if value >= _FULL:
        return "2^63 or more in the file, where no launch gets: the counter was not read right"
    return None


def clue(name: str, unit: str) -> Clue | None:
    """What is known of a metric's values beforehand.

    Args:
        name: Of the metric, or its label on the details page.
        unit: As in the file.

    Returns:
        ``whole`` for a count; ``share`` for a percentage, which is no multiple of 1000 %; None for
        what can be either.
    """
    if unit in ("ns", "nsecond"):
        return "whole" if _DURATION.fullmatch(name) else None
    if unit == "%":
        # Labels with this unit are shares; of metrics some are ratios without a bound.
        return "share" if "__" not in name or ".pct_of_peak" in name else None
    counted = unit in _COUNTED and _COUNTER.fullmatch(name) is not None
    return "whole" if counted or name in _SIZES else None


class Numerals:
    """The numbers of one file.

    Attributes:
        ungrouped: True once a long integer was seen that points and commas do not group.
        semicolons: True where fields are separated by semicolons.
    """

    def __init__(self, forced: NumberFormat | None = None) -> None:
        self.ungrouped = False
        self.semicolons = False
        self._forced = forced
        self._usual = _NEVER
        self._group = ""
        self._proof: dict[Reading, str] = {}
        self._clues: set[Reading] = set()
        self._open: dict[str, str] = {}  # separator -> a needed number that reads two ways
        self._round: dict[str, str] = {}  # separator -> a count that is whole both ways
        self._fixed: set[str] = set()  # separators before the decimals of whole counts

    def usual(self, text: str) -> float | None:
        """A grouped integer in the format that a number has proven, which needs no second look.

        Returns:
            None for any other text.
        """
        return float(text.replace(self._group, "")) if self._usual(text) else None

    def both(
        self,
        text: str,
        whole: bool = False,
        clue: Clue | None = None,
        needed: bool = True,
        tells: bool = True,
    ) -> tuple[float, float]:
        """Reads a number as ``en`` and as ``de``; the two agree unless it reads two ways.

        Args:
            text: The cell.
            whole: The value is a count, so it has no decimals unless they are plain to see.
            clue: What the value is by its name and unit (see ``clue``), which can be mistaken.
            needed: A figure rests on it.
            tells: It is ncu's own number, and so evidence.

        Raises:
            NotANumberError: the text is no number, or not one in the forced format.
        """
        text = text.strip()
        bare = _without_neutral(text)
        match = _SHAPE.fullmatch(bare) if len(text) <= _LONGEST else None
        if match is None:
            raise _damaged(text)
        sign, head, tail, exponent = match.groups("")
        if not tail:
            # Of a text (a version, a name in digits) nothing follows for numbers.
            if len(head) > 3 and (needed or clue is not None):
                self.ungrouped = True
            value = _plausible(float(bare), text)
            return value, value
        separators = tail.translate(_ONLY_SEPARATORS)
        parts = [head, *re.split("[.,]", tail[1:])]
        last = separators[-1]
        lone = len(separators) == 1
        is_round = parts[-1] == _ROUND and not exponent
        if is_round and (whole or clue == "whole"):
            if not _may_group(parts) or len(set(separators)) > 1:
                self._fixed.add(last)
            elif last == ".":
                clue = None
        if lone and not exponent and _may_group(parts):
            if whole and is_round:
                self._round.setdefault(last, text)
            elif whole:
                return self._proven("", last, sign, parts, "", text)
            return self._lone(last, sign, parts, text, clue, needed)
        if lone:
            return self._proven(last, "", sign, parts[:1], parts[1] + exponent, text, tells)
        if len(set(separators)) == 1 and not exponent and _may_group(parts):
            return self._proven("", last, sign, parts, "", text, tells)
        mixed = last not in separators[:-1] and len(set(separators[:-1])) == 1
        if mixed and _may_group(parts[:-1]):
            rest = parts[-1] + exponent
            return self._proven(last, separators[0], sign, parts[:-1], rest, text, tells)
        raise _damaged(text)

    def decide(self) -> Reading:
        """The file's format, once all numbers were read.

        Raises:
            RecordError: the numbers contradict each other, or read two ways and nothing tells.
        """
        if self._forced is not None:
            return _decimal_by(_SIGNS[self._forced][0])
        proof = self._proof_with_round()
        if len(proof) == 2:
            raise RecordError(
                f"numbers in two formats: {proof['en']!r} and {proof['de']!r}; import "
                "two logs as two files; where one of the numbers is damaged, --number-format names "
                "the right one"
            )
        for known in proof:
            return known
        told = set(self._clues)
        if self.ungrouped and len(self._open) == 1:
            told.add(_decimal_by(next(iter(self._open))))
        if len(told) == 1:
            return told.pop()
        if not self._open:
            return "en"
        if not told and self.semicolons and len(self._open) == 1 and not self._round:
            return "de"
        example = next(iter(self._open.values()))
        raise RecordError(
            f"{example!r} reads two ways, a thousand times apart, and no other number of the file "
            "tells which: pass --number-format en (decimal point) or de (decimal comma), or run "
            "ncu with LC_ALL=C"
        )

    def _proof_with_round(self) -> dict[Reading, str]:
        """What is proven, once it is known what round counts are."""
        proof = dict(self._proof)
        for separator in sorted(self._round):  # the comma first
            if separator not in self._fixed and (proof or separator == ","):
                proof.setdefault(_grouped_by(separator), self._round[separator])
        return proof

    def _lone(
        self,
        separator: str,
        sign: str,
        parts: list[str],
        text: str,
        clue: Clue | None,
        needed: bool,
    ) -> tuple[float, float]:
        """A number that reads two ways."""
        if clue is not None:
            by = _grouped_by if clue == "whole" else _decimal_by
            self._clues.add(by(separator))
        if needed:
            self._open.setdefault(separator, text)
        grouped = float(sign + "".join(parts))
        decimal = float(f"{sign}{parts[0]}.{parts[1]}")
        if self._forced is not None:
            is_decimal = separator == _SIGNS[self._forced][0]
            self._check(separator if is_decimal else "", "" if is_decimal else separator, text)
            return (decimal, decimal) if is_decimal else (grouped, grouped)
        return (grouped, decimal) if separator == "," else (decimal, grouped)

    def _proven(
        self,
        decimal: str,
        group: str,
        sign: str,
        whole: list[str],
        rest: str,
        text: str,
        tells: bool = True,
    ) -> tuple[float, float]:
        """A number that reads one way, with the signs that it has."""
        self._check(decimal, group, text)
        known = _decimal_by(decimal) if decimal else _grouped_by(group)
        if tells and known not in self._proof:
            self._proof[known] = text
            self._group = _SIGNS[self._forced or known][1]
            if self._group:
                pattern = rf"[1-9][0-9]{{0,2}}(?:{re.escape(self._group)}[0-9]{{3}}){{1,5}}"
                self._usual = re.compile(pattern).fullmatch
        value = _plausible(float(sign + "".join(whole) + ("." + rest if rest else "")), text)
        return value, value

    def _check(self, decimal: str, group: str, text: str) -> None:
        """Refuses signs that the format does not have which the user named."""
        if self._forced is None:
            return
        signs = _SIGNS[self._forced]
        if decimal not in ("", signs[0]) or group not in ("", signs[1]):
            raise NotANumberError(
                f"{text!r} is not a number in format {self._forced}: name another with "
                "--number-format, or leave it out"
            )


_ONLY_SEPARATORS: Final = {ord(digit): None for digit in "0123456789"}


def _damaged(text: str) -> NotANumberError:
    return NotANumberError(
        f"{text[:_LONGEST]!r} is not a number: the file is damaged; export it again with ncu"
    )


def _plausible(value: float, text: str) -> float:
    if abs(value) > _LARGEST:
        raise _damaged(text)
    return value


def _without_neutral(text: str) -> str:
    """A number without the spaces or apostrophes between its thousands."""
    match = _NEUTRAL.match(text)
    if match is None:
        return text
    return match.group().replace(match[1], "") + text[match.end() :]


def _may_group(parts: list[str]) -> bool:
    """Whether separators can stand for thousands (or, in India, for lakhs and crores)."""
    head, *middle, last = parts if len(parts) > 1 else [*parts, "000"]
    return (
        1 <= len(head) <= 3
        and head != "0" * len(head)
        and len(last) == 3
        and all(len(part) in (2, 3) for part in middle)
    ) or len(parts) == 1


def _grouped_by(separator: str) -> Reading:
    return "en" if separator == "," else "de"


def _decimal_by(separator: str) -> Reading:
    return "en" if separator == "." else "de"
