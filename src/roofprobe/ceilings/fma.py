"""Ways to the roof of the CUDA cores: chains of FMAs of known count."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch

from roofprobe.ceilings import kernels
from roofprobe.ceilings.bench import Way

# Rounds, so that a launch takes milliseconds on a fast path and on one of 1/64 of its rate.
_ROUNDS = {"fp32": (64, 1024, 8192), "fp64": (8, 64, 1024)}


def ways(device: torch.device, precision: Literal["fp32", "fp64"]) -> list[Way]:
    """FMA chains of several lengths; the longest hides its start best.

    Raises:
        UnavailableError: the kernel cannot be compiled or loaded.
    """

    def prepare(rounds: int) -> Callable[[], object]:
        return kernels.fma_chains(device, precision, rounds).run

    return [
        Way(
            f"own kernel, {precision} fused multiply-adds in registers, "
            f"{kernels.FMA_FLOP_A_ROUND * rounds // 2} a thread",
            kernels.fma_chains(device, precision, rounds).work,
            partial(prepare, rounds),
        )
        for rounds in _ROUNDS[precision]
    ]
