"""Base units are stored everywhere; scaling happens here, when something is printed.

So does the escaping of names and messages, which are stored as they came.

Glossary: byte, FLOP (a count), second, Hz; one FMA is two FLOP; GB is 1e9 bytes, GiB is 2**30.
"""

import math
import re

GIB = 2**30

_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SUBUNITS = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))

# C0 and C1 control characters, the two other characters that end a line, and halves of surrogate
# pairs, which no encoding has.
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def si(value: float | None, unit: str, digits: int = 4) -> str:
    """Formats a base-unit value with a decimal prefix: ``si(3.35e12, "B/s")`` is ``3.35 TB/s``.

    Args:
        value: In base units; None prints as ``n/a``.
        unit: Name of the base unit.
        digits: Significant digits.
    """
    if value is None:
        return "n/a"
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".strip()
    size = abs(value)
    for scale, prefix in _PREFIXES:
        if size >= scale * (1 - 0.5 * 10**-digits):
            return f"{_significant(value / scale, digits)} {prefix}{unit}".strip()
    return f"{value:.{digits}g} {unit}".strip()


def seconds(value: float | None, digits: int = 4) -> str:
    """Formats seconds with a fitting sub-unit: ``seconds(0.0475)`` is ``47.5 ms``."""
    if value is None:
        return "n/a"
    if value == 0:
        return "0 s"
    for scale, prefix in _SUBUNITS:
        if abs(value) >= scale:
            return f"{_significant(value / scale, digits)} {prefix}s"
    return f"{value:.{digits}g} s"


def number(value: float | None, digits: int = 4) -> str:
    """Formats a plain number to a few significant digits; None is ``n/a``."""
    return "n/a" if value is None else _significant(value, digits)


def percent(fraction: float | None, digits: int = 3) -> str:
    """Formats a fraction (0 to 1) as a percentage."""
    return "n/a" if fraction is None else f"{_significant(100 * fraction, digits)}%"


def visible(text: str) -> str:
    r"""``text`` as one line that a terminal prints and does not obey: ``\x1b[2J`` for an escape.

    For names and messages that others wrote: of runs, kernels, devices, libraries.
    """
    return _UNPRINTED.sub(lambda found: ascii(found[0])[1:-1], text)


def _significant(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text and 1e-4 <= abs(value) < 1e15 else text
