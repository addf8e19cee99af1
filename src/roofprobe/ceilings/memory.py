"""Ways to the roofs of memory: DRAM copied, read and written, and reads that stay in L2 or L1.

A copy counts its bytes twice, read and written. DRAM buffers are far larger than L2, so that
next to nothing of a pass is still there in the following one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from roofprobe.ceilings import kernels
from roofprobe.ceilings.bench import Reading, Way, best_of, look, read, sustained
from roofprobe.ceilings.gemm import random
from roofprobe.ceilings.roofs import (
    DRAM_COPY,
    DRAM_READ,
    DRAM_WRITE,
    L1_BYTE_A_CLOCK,
    UnavailableError,
)
from roofprobe.units import GIB, number, si

_KIB: Final = 2**10
_MIB: Final = 2**20
_BUFFER: Final = 4 * GIB  # 80 times the largest L2 that an H200 could hold
_OVER_L2: Final = 8  # least size of a DRAM buffer, in L2s

# Of L2's size. Below a half the plateau is expected, above one DRAM takes over.
_FOOTPRINTS: Final = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 5 / 16, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1.0)
_PLATEAU: Final = 0.95  # of the best footprint's rate
_L2_TOTAL: Final = 8 * GIB  # loaded by one launch: a millisecond or more
_L1_TOTAL: Final = 32 * GIB  # likewise
# Over what L1 delivers at the clock that was read, from which on loads are missing: a compiler that
# drops some drops half of them or more, and the clock is read around the bursts, not in them.
_TOO_FAST: Final = 1.5


def dram_ways(device: torch.device, memory: int) -> Mapping[str, list[Way]]:
    """Ways to copy, read and write DRAM.

    Args:
        device: The GPU.
        memory: Bytes that the buffers may take together.

    Raises:
        UnavailableError: no room for buffers that are large against L2.
    """
    size = min(_BUFFER, memory // 2) // _MIB * _MIB
    l2 = l2_byte(device)
    if size < _OVER_L2 * l2:
        raise UnavailableError(
            f"free memory allows buffers of {size / _MIB:.0f} MiB, and less than {_OVER_L2} times "
            f"the L2 cache ({l2 / _MIB:.0f} MiB) would partly measure that"
        )
    buffers = f"{size / GIB:.3g} GiB"

    def source() -> torch.Tensor:
        return random((size // 4,), torch.float32, device, 0)

    def copy(call: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[], object]:
        numbers = source()
        return partial(call, torch.empty_like(numbers), numbers)

    def scan(call: Callable[[torch.Tensor], object]) -> Callable[[], object]:
        return partial(call, source())

    def write(call: Callable[[torch.Tensor], object]) -> Callable[[], object]:
        return partial(call, torch.empty(size // 4, dtype=torch.float32, device=device))

    def own() -> Callable[[], object]:
        return kernels.reads(device, source(), size).run

    def negate(target: torch.Tensor, numbers: torch.Tensor) -> object:
        return torch.neg(numbers, out=target)

    reading = [
        Way(f"torch.sum of {buffers}", size, partial(scan, torch.sum)),
        Way(f"torch.amax of {buffers}", size, partial(scan, torch.amax)),
    ]
    try:
        # The rest that no full grid reads is left unread and uncounted.
        group = kernels.sweep_byte(device) * kernels.LOADS
        reading.append(Way(f"own kernel, 16-byte loads of {buffers}", size // group * group, own))
    except UnavailableError:
        pass  # the library's ways remain
    return {
        DRAM_COPY: [
            Way(f"Tensor.copy_ of {buffers}, read + written", 2 * size, partial(copy, _copy)),
            Way(f"torch.neg of {buffers}, read + written", 2 * size, partial(copy, negate)),
        ],
        DRAM_READ: reading,
        DRAM_WRITE: [
            Way(f"Tensor.fill_ of {buffers} with a constant", size, partial(write, _fill)),
            Way(f"Tensor.zero_ of {buffers}", size, partial(write, torch.Tensor.zero_)),
        ],
    }


def l2_reading(device: torch.device) -> Reading:
    """The rate of reads that stay in L2, at the footprint where it is highest.

    Raises:
        UnavailableError: the kernel cannot be compiled or loaded, or L2's size is not known.
    """
    rates = l2_rates(device)
    if not rates:
        raise UnavailableError("the size of L2 is not known, or one load of every thread fills it")
    best = max(rates, key=lambda size: rates[size])
    plateau = [size for size, rate in rates.items() if rate >= _PLATEAU * rates[best]]
    way = _l2_way(device, best)
    reading = read(way, rates[best], device)
    within = (
        f"; of footprints up to L2's {l2_byte(device) / _MIB:.0f} MiB, those of "
        f"{_span(plateau)} MiB read within {1 - _PLATEAU:.0%} of it"
    )
    return replace(
        reading,
        method=reading.method + within,
        sustained=sustained(way, reading.value, device),
    )


def l2_rates(device: torch.device) -> dict[int, float]:
    """Footprint in bytes -> rate of reads, byte/s, for footprints up to the size of L2."""
    least = kernels.sweep_byte(device)
    sizes = {int(l2_byte(device) * part) // _MIB * _MIB for part in _FOOTPRINTS}
    return {size: look(_l2_way(device, size), device) for size in sorted(sizes) if size >= least}


def l2_byte(device: torch.device) -> int:
    """Size of L2 as the device reports it, bytes; 0 where it does not."""
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))


def l1_reading(device: torch.device) -> Reading:
    """The rate of reads that stay in L1.

    Raises:
        UnavailableError: the kernel cannot be compiled or loaded, or runs faster than L1 can.
    """
    reading = best_of([_l1_way(device)], device)
    if reading.clock is not None:
        byte = reading.value / _sm_count(device) / reading.clock
        if byte > _TOO_FAST * L1_BYTE_A_CLOCK:
            raise UnavailableError(
                f"{number(byte, 3)} bytes a clock and SM, at the {si(reading.clock, 'Hz')} that "
                f"NVML read, are more than the {L1_BYTE_A_CLOCK} of L1: loads are missing, or the "
                "clock is wrong"
            )
    return reading


def _l1_way(device: torch.device) -> Way:
    def prepare() -> Callable[[], object]:
        numbers = random((byte // 4,), torch.float32, device, 0)
        return kernels.l1_reads(device, numbers, _L1_TOTAL).run

    byte = kernels.l1_byte(device)
    group = kernels.l1_group_byte(device)
    block, sm = kernels.L1_BLOCK_BYTE // _KIB, byte // _sm_count(device) // _KIB
    return Way(
        "own kernel, reads only, 16-byte loads that L1 answers (ld.relaxed.cta), "
        f"{block} KiB a block, {sm} KiB an SM",
        max(1, _L1_TOTAL // group) * group,
        prepare,
    )


def _sm_count(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _l2_way(device: torch.device, size: int) -> Way:
    def prepare() -> Callable[[], object]:
        return kernels.reads(device, random((size // 4,), torch.float32, device, 0), _L2_TOTAL).run

    group = kernels.sweep_byte(device) * kernels.LOADS
    return Way(
        f"own kernel, reads only, 16-byte loads past L1 (ld.relaxed.gpu), footprint "
        f"{size / _MIB:.0f} MiB",
        max(1, _L2_TOTAL // group) * group,
        prepare,
    )


def _span(sizes: list[int]) -> str:
    low, high = f"{min(sizes) / _MIB:.0f}", f"{max(sizes) / _MIB:.0f}"
    return low if low == high else f"{low} to {high}"


def _copy(target: torch.Tensor, numbers: torch.Tensor) -> object:
    return target.copy_(numbers)


def _fill(target: torch.Tensor) -> object:
    return target.fill_(1.5)
