"""ncu's unit names, old and new, as a factor to the base unit. Prefixes are decimal."""

from dataclasses import dataclass
from functools import cache
from typing import Final

from roofprobe.errors import RecordError

_BASES: Final = {
    "byte": "byte",
    "bytes": "byte",
    "B": "byte",
    "second": "second",
    "seconds": "second",
    "sec": "second",
    "s": "second",
    "cycle": "cycle",
    "cycles": "cycle",
    "inst": "inst",
    "instruction": "inst",
    "instructions": "inst",
    "op": "op",
    "ops": "op",
    "math_op": "op",
    "flop": "op",
    "sector": "sector",
    "sectors": "sector",
    "hz": "cycle/second",
    "Hz": "cycle/second",
    "HZ": "cycle/second",
}
_LARGE: Final = {"K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SMALL: Final = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "p": 1e-12}


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as ncu prints it.

    Attributes:
        scale: Factor from a printed value to the base unit.
        dimension: Base unit: ``byte``, ``second``, ``byte/second``, ``inst/cycle``, ...; the empty
            text for a bare number and ``%`` for a percentage.
    """

    scale: float
    dimension: str


@cache
def unit(text: str) -> Unit:
    """Looks a unit up.

    Raises:
        RecordError: not in the table; a guess could be wrong by any power of ten.
    """
    name = text.strip()
    if name in ("", "%"):
        return Unit(1.0, name)
    numerator, slash, denominator = name.partition("/")
    top, bottom = _part(numerator), _part(denominator) if slash else Unit(1.0, "")
    if slash and numerator.strip() in ("", "1"):
        top = Unit(1.0, "")  # "1/ns", "/ns": counts without a name
    if top is None or bottom is None:
        raise RecordError(
            f"unknown unit {name}: roofprobe will not guess its size; "
            "export again with --print-units base"
        )
    return Unit(
        top.scale / bottom.scale,
        f"{top.dimension}/{bottom.dimension}" if slash else top.dimension,
    )


def _part(name: str) -> Unit | None:
    name = name.strip()
    if name in _BASES:
        return Unit(1.0, _BASES[name])
    prefix, base = name[:1], _BASES.get(name[1:])
    if base is None:
        return None
    # Time is never printed in kiloseconds, and nothing else in thousandths.
    factor = (_SMALL if base == "second" else _LARGE).get(prefix)
    if factor is None:
        return None
    return Unit(factor, base)
