"""Measured roofs of this CPU, for runs that are counted analytically and have no data sheet.

FLOP and bytes are what the analytic backend would count for the same call, so a step counted
there and these roofs share one convention: a GEMM of n x n matrices is 2*n**3 FLOP, and a copy
reads its source and writes its destination. Cache lines that a store fetches first are real
traffic but not counted, so the copy's figure is below what the memory modules deliver.
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Final

import torch

from roofprobe.record import MeasuredRoof
from roofprobe.units import GIB

_REPEATS: Final = 5
# Each is twice the one before, so a call takes about eight times as long.
_GEMM_SIZES: Final = (512, 1024, 2048, 4096)
# Both buffers together hold 24 times a last-level cache of 32 MiB. Where the caches come near
# 768 MiB in all (stacked-cache servers), the figure is partly theirs.
_COPY_BYTES: Final = 3 * GIB // 8
_BLOCK_BYTES: Final = 2**20


def measure_cpu_roofs(*, seconds: float = 3.0) -> tuple[MeasuredRoof, ...]:
    """Measures the fp32 GEMM rate and the memory bandwidth of torch's current CPU threads.

    Args:
        seconds: Time to spend in s, half on each roof; setting up comes on top, and each of
            the repeats takes one call at least. The buffers take 0.75 GiB.
    """
    # Inputs come from an own generator: measuring must not shift the random numbers of the user.
    generator = torch.Generator().manual_seed(0)
    return _gemm_roof(generator, seconds / 2), _copy_roof(generator, seconds / 2)


def _gemm_roof(generator: torch.Generator, seconds: float) -> MeasuredRoof:
    best: MeasuredRoof | None = None
    share = seconds / len(_GEMM_SIZES)
    duration = 0.0
    for size in _GEMM_SIZES:
        if best is not None and 8 * duration > share:
            break
        a, b, out = (_random(generator, size * size).view(size, size) for _ in range(3))
        duration, spread = _time(partial(torch.mm, a, b, out=out), share)
        roof = MeasuredRoof(
            name="CPU fp32 GEMM",
            kind="flop",
            value=2 * size**3 / duration,
            spread=spread,
            method=f"torch.mm of {size} x {size} matrices, {torch.get_num_threads()} threads",
            path="analytic_fp32",
            level=None,
        )
        best = roof if best is None or roof.value > best.value else best
    assert best is not None
    return best


def _copy_roof(generator: torch.Generator, seconds: float) -> MeasuredRoof:
    # Random numbers all the way would take longer than the copies.
    block = _random(generator, _BLOCK_BYTES // 4)
    source = block.repeat(_COPY_BYTES // _BLOCK_BYTES)
    destination = torch.empty_like(source)
    duration, spread = _time(partial(destination.copy_, source), seconds)
    return MeasuredRoof(
        name="CPU memory copy",
        kind="byte",
        value=2 * _COPY_BYTES / duration,
        spread=spread,
        method=(
            f"copy_ between two buffers of {_COPY_BYTES / 2**20:g} MiB, read and write counted, "
            f"{torch.get_num_threads()} threads"
        ),
        path=None,
        level="dram",
    )


def _random(generator: torch.Generator, count: int) -> torch.Tensor:
    return torch.rand(count, generator=generator, dtype=torch.float32, device="cpu")


def _time(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Median duration of one call in s, and the spread of the repeats as a fraction of it."""
    call()  # touches new pages and lets the library choose its kernel
    start = perf_counter()
    call()
    calls = max(1, round(seconds / _REPEATS / (perf_counter() - start)))
    durations = []
    for _ in range(_REPEATS):
        start = perf_counter()
        for _ in range(calls):
            call()
        durations.append((perf_counter() - start) / calls)
    middle = median(durations)
    return middle, (max(durations) - min(durations)) / middle
