"""Which of ``1.234`` and ``1,234`` is a thousand: decided for each file from its own numbers.

ncu prints numbers in the locale of whoever ran it. A separator is taken for what it must be
somewhere in the file; where no number tells, the file is refused, for a wrong guess is wrong by
a factor of 1000. Evidence, strongest first:

1. A number that reads one way only: ``1,234,567``, ``1,234.5``, ``0.5``, ``12.25``; and a count
   that must be whole (``1,234`` instructions).
2. Integers without any grouping (``1234567``): then a lone separator is a decimal one.
3. Fields separated by semicolons, as programs write them where the comma is the decimal sign.
"""

import re
from typing import Final, Literal

from roofprobe.errors import RecordError

NumberFormat = Literal["en", "de"]

# What --number-format takes: the sign before the decimals decides. Spaces and apostrophes group
# thousands in every format.
FORMATS: Final[dict[str, NumberFormat]] = {"en": "en", "ch": "en", "de": "de", "fr": "de"}

_SHAPE: Final = re.compile(r"([+-]?)([0-9]+)((?:[.,][0-9]+)*)([eE][+-]?[0-9]+)?")
_NEUTRAL: Final = re.compile(r"(?<=[0-9])[ \u00a0\u2009\u202f'\u2019](?=[0-9]{3}(?![0-9]))")
# No counter gets there; a damaged one can, and sums of it would be infinite.
_LARGEST: Final = 1e30
_LONGEST: Final = 60  # characters
_ABSENT: Final = frozenset({"", "n/a", "na", "-", "--", "none", "null", "[n/a]"})


class NotANumberError(ValueError):
    """A text that is no number in any format."""


def absent(text: str) -> str | None:
    """Why a cell holds no number, or None where it may hold one."""
    plain = text.replace("(!)", "").strip().lower()
    if plain in _ABSENT:
        return "n/a in the file: not collected, or the chip has no such metric"
    if plain.lstrip("+-").startswith("nan"):
        return (
            "not a number (NaN) in the file: hardware gives that for a unit shared with other MIG "
            "instances"
        )
    if plain.lstrip("+-") in ("inf", "infinity"):
        return "infinite in the file"
    return None


class Numerals:
    """The numbers of one file.

    Attributes:
        ungrouped: True once a long integer without separators was seen.
        semicolons: True where fields are separated by semicolons.
    """

    def __init__(self, forced: NumberFormat | None = None) -> None:
        self.ungrouped = False
        self.semicolons = False
        self._forced = forced
        # Once a number has proven the format, grouped integers in it need no second look.
        self._usual: re.Pattern[str] | None = None
        self._group = ""
        self._proof: dict[NumberFormat, str] = {}
        self._open: dict[str, str] = {}  # separator -> a number that reads two ways

    def both(self, text: str, *, whole: bool = False) -> tuple[float, float]:
        """Reads a number as ``en`` and as ``de``; the two agree unless it reads two ways.

        Args:
            text: The cell.
            whole: The value is a count, so it has no decimals unless they are plain to see.

        Raises:
            NotANumberError: the text is no number, or not one in the forced format.
        """
        if self._usual is not None and self._usual.fullmatch(text):
            value = float(text.replace(self._group, ""))
            return value, value
        text = text.strip()
        if len(text) > _LONGEST:
            raise NotANumberError(text)
        bare = _NEUTRAL.sub("", text)
        match = _SHAPE.fullmatch(bare)
        if match is None:
            raise NotANumberError(text)
        sign, head, tail, exponent = match.groups("")
        if not tail:
            if len(head) > 3 and bare == text:
                self.ungrouped = True
            value = _plausible(float(bare), text)
            return value, value
        separators = tail.translate(_ONLY_SEPARATORS)
        parts = [head, *re.split("[.,]", tail[1:])]
        last = separators[-1]
        lone = len(separators) == 1
        if lone and not exponent and bare == text and _may_group(parts):
            if whole:
                return self._proven(_grouped_by(last), sign, parts, "", text)
            self._open.setdefault(last, text)
            grouped = float(sign + "".join(parts))
            decimal = float(f"{sign}{parts[0]}.{parts[1]}")
            en, de = (grouped, decimal) if last == "," else (decimal, grouped)
            if self._forced is not None:
                return (en, en) if self._forced == "en" else (de, de)
            return en, de
        if lone:
            return self._proven(_decimal_by(last), sign, parts[:1], parts[1] + exponent, text)
        if len(set(separators)) == 1 and not exponent and _may_group(parts):
            return self._proven(_grouped_by(last), sign, parts, "", text)
        mixed = last not in separators[:-1] and len(set(separators[:-1])) == 1
        if mixed and _may_group(parts[:-1]):
            return self._proven(_decimal_by(last), sign, parts[:-1], parts[-1] + exponent, text)
        raise NotANumberError(text)

    def decide(self) -> NumberFormat:
        """The file's format, once all numbers were read.

        Raises:
            RecordError: the numbers contradict each other, or read two ways and nothing tells.
        """
        if self._forced is not None:
            return self._forced
        if len(self._proof) == 2:
            raise RecordError(
                f"numbers in two formats: {self._proof['en']!r} and {self._proof['de']!r}; "
                "if one of them is damaged, force the other with --number-format"
            )
        for known in self._proof:
            return known
        if not self._open:
            return "en"
        if self.ungrouped and len(self._open) == 1:
            return _decimal_by(next(iter(self._open)))
        if self.semicolons and len(self._open) == 1:
            return "de"
        example = next(iter(self._open.values()))
        raise RecordError(
            f"{example!r} reads two ways, a thousand times apart, and no other number of the file "
            "tells which: pass --number-format en (decimal point) or de (decimal comma), or run "
            "ncu with LC_ALL=C"
        )

    def _proven(
        self, known: NumberFormat, sign: str, whole: list[str], rest: str, text: str
    ) -> tuple[float, float]:
        if self._forced not in (None, known):
            raise NotANumberError(text)
        if known not in self._proof:
            self._proof[known] = text
            self._group = "," if known == "en" else "."
            self._usual = re.compile(rf"[1-9][0-9]{{0,2}}(?:{re.escape(self._group)}[0-9]{{3}})+")
        value = _plausible(float(sign + "".join(whole) + ("." + rest if rest else "")), text)
        return value, value


_ONLY_SEPARATORS: Final = {ord(digit): None for digit in "0123456789"}


def _plausible(value: float, text: str) -> float:
    if abs(value) > _LARGEST:
        raise NotANumberError(text)
    return value


def _may_group(parts: list[str]) -> bool:
    """Whether separators can stand for thousands (or, in India, for lakhs and crores)."""
    head, *middle, last = parts if len(parts) > 1 else [*parts, "000"]
    return (
        1 <= len(head) <= 3
        and head != "0" * len(head)
        and len(last) == 3
        and all(len(part) in (2, 3) for part in middle)
    ) or len(parts) == 1


def _grouped_by(separator: str) -> NumberFormat:
    return "en" if separator == "," else "de"


def _decimal_by(separator: str) -> NumberFormat:
    return "en" if separator == "." else "de"
