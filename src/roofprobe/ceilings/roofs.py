"""What a set of measured ceilings is, and which of several binds. Pure; no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from roofprobe.errors import RoofprobeError
from roofprobe.record import MeasuredRoof

DRAM_COPY: Final = "DRAM copy"
DRAM_READ: Final = "DRAM read"
DRAM_WRITE: Final = "DRAM write"
L1_READ: Final = "L1 read"

# The interface through which L1 hands data to an SM is this wide from Volta on, and half of it on
# Turing. roofline names the sources.
L1_BYTE_A_CLOCK: Final = 128


class UnavailableError(RoofprobeError):
    """One ceiling cannot be measured here; the others can."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The ceilings of one device, measured in one go.

    Attributes:
        roofs: What was measured.
        left_out: Ceiling -> why it is missing.
        warnings: For the user.
        complete: False when the user broke it off; what was measured until then stands.
        disturbed: True when the GPU was at work for somebody else at the beginning: rates are too
            low then, and are not kept.
        created: UTC, ISO 8601.
        duration: Seconds that measuring took.
    """

    roofs: tuple[MeasuredRoof, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    complete: bool = True
    disturbed: bool = False
    created: str = ""
    duration: float = 0.0


def dram_roof(roofs: Iterable[MeasuredRoof]) -> MeasuredRoof | None:
    """The one DRAM bandwidth to judge work by: the better of copy and read.

    Work reads, or reads and writes. Writing alone is faster than either (4.57 TB/s against 4.25
    and 4.21 on an H200) and hardly any kernel does only that, so as a roof it would make
    every kernel look further from its limit than it is.

    Returns:
        None where neither was measured. A CPU has one roof, of copying.
    """
    fit = [roof for roof in roofs if roof.level == "dram" and roof.name != DRAM_WRITE]
    return max(fit, key=lambda roof: roof.value, default=None)


def peaks(roofs: Iterable[MeasuredRoof]) -> Mapping[str, MeasuredRoof]:
    """FLOP path -> its highest roof: fp32 on CUDA cores has two, a GEMM and chains of FMAs."""
    best: dict[str, MeasuredRoof] = {}
    for roof in roofs:
        if roof.path is not None and (roof.path not in best or roof.value > best[roof.path].value):
            best[roof.path] = roof
    return best
