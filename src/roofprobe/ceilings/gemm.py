"""Ways to the roofs of arithmetic in libraries: matrix products of every precision.

A product of n x n matrices is 2 * n**3 FLOP. Operands are random normal numbers: the power that a
GPU draws depends on the bits that change, and products of zeros or of constants run at clocks
that no training sees.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from roofprobe.ceilings.bench import Way
from roofprobe.ceilings.roofs import UnavailableError
from roofprobe.device import TENSOR_FP16_ACC16
from roofprobe.metrics import flop_paths

# Multiples of every tile size. Which one is best depends on the library, and on how its tiles
# fill the last wave.
SIZES: Final = (4096, 8192, 12288, 16384)
# How the operands lie in memory, for which libraries have different kernels; "nt" is what a linear
# layer does.
LAYOUTS: Final = {"nn": "A and B row-major", "nt": "B transposed", "tn": "A transposed"}

# Compute capabilities whose FP64 GEMM runs on tensor cores (DMMA at full rate).
_FP64_TENSOR: Final = ((8, 0), (9, 0), (10, 0))


@dataclass(frozen=True, slots=True)
class Gemm:
    """A precision of matrix products.

    Attributes:
        name: For people.
        path: FLOP path that its rate is the roof of.
        dtype: Of the operands.
        since: First compute capability that has it.
        fp32_precision: PyTorch's setting for fp32 operands, ``ieee`` or ``tf32``.
        fp16_accumulation: PyTorch's setting for fp16 operands.
    """

    name: str
    path: str
    dtype: torch.dtype
    since: tuple[int, int] = (0, 0)
    fp32_precision: str = "ieee"
    fp16_accumulation: bool = False


FP16: Final = Gemm("FP16 GEMM", "tensor_fp16", torch.float16, (7, 0))
FP16_ACC16: Final = Gemm(
    "FP16 GEMM, FP16 accumulate",
    TENSOR_FP16_ACC16,
    torch.float16,
    (7, 0),
    fp16_accumulation=True,
)
GEMMS: Final = (
    FP16,
    FP16_ACC16,
    Gemm("BF16 GEMM", "tensor_bf16", torch.bfloat16, (8, 0)),
    Gemm("FP8 GEMM", "tensor_fp8", torch.float8_e4m3fn, (8, 9)),
    Gemm("TF32 GEMM", "tensor_tf32", torch.float32, (8, 0), fp32_precision="tf32"),
    Gemm("FP32 GEMM", "sass_fp32", torch.float32),
    Gemm("FP64 GEMM", "tensor_fp64", torch.float64),
)


def require(gemm: Gemm, capability: tuple[int, int], chip: str | None) -> None:
    """Checks that a GPU runs a precision on the path whose roof it would be.

    Args:
        gemm: The precision.
        capability: The GPU's compute capability.
        chip: CUPTI's chip name, where known.

    Raises:
        UnavailableError: it does not, or it is not known which unit it would run on.
    """
    here = f"compute capability {capability[0]}.{capability[1]}"
    paths = flop_paths(chip)
    path = FP16.path if gemm is FP16_ACC16 else gemm.path
    if capability < gemm.since or (paths and path not in paths and path != "tensor_fp64"):
        raise UnavailableError(f"this GPU ({here}) has no such tensor cores")
    if gemm.path == "tensor_fp64" and capability not in _FP64_TENSOR:
        raise UnavailableError(
            f"this GPU ({here}) has no full-rate FP64 tensor cores; see FP64 FMA for its CUDA cores"
        )
    if gemm.fp16_accumulation and not _has_fp16_accumulation():
        raise UnavailableError("this PyTorch cannot switch FP16 accumulation on")


def ways(gemm: Gemm, device: torch.device, memory: int) -> Iterator[Way]:
    """Products of several sizes and layouts, smaller ones first.

    Args:
        gemm: The precision.
        device: Where they run.
        memory: Bytes that the operands may take together.
    """
    for size in SIZES:
        # One fp32 matrix is there while an operand is made.
        if size**2 * (3 * max(gemm.dtype.itemsize, 2) + 4) > memory:
            return
        for layout, words in ({"nt": "B column-major"} if _is_fp8(gemm) else LAYOUTS).items():
            for fast in (True, False) if _is_fp8(gemm) else (False,):
                if _is_fp8(gemm):
                    call = f"torch._scaled_mm, unit scales, use_fast_accum={fast}, BF16 result"
                else:
                    call = "torch.mm"
                yield Way(
                    f"{call}, {_type(gemm)}, {size} x {size} x {size}, {words}",
                    2 * size**3,
                    partial(_prepare, gemm, device, size, layout, fast),
                )


@contextmanager
def settings(gemm: Gemm) -> Iterator[None]:
    """PyTorch's settings of a precision, without autocast and gradients; restored afterwards."""
    products = torch.backends.cuda.matmul
    switch = _has_fp16_accumulation()
    precision = products.fp32_precision
    accumulation = products.allow_fp16_accumulation if switch else False
    try:
        products.fp32_precision = gemm.fp32_precision
        if switch:
            products.allow_fp16_accumulation = gemm.fp16_accumulation
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            yield
    finally:
        # Reading gives what holds, also where that is inherited from torch.backends; only a value
        # that inheriting does not give back was set here.
        products.fp32_precision = "none"
        if products.fp32_precision != precision:
            products.fp32_precision = precision
        if switch:
            products.allow_fp16_accumulation = accumulation


def random(
    size: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int
) -> torch.Tensor:
    """Normal numbers from a generator of their own: the user's random numbers do not shift."""
    generator = torch.Generator(device).manual_seed(seed)
    numbers = torch.randn(size, generator=generator, dtype=torch.float32, device=device)
    return numbers.to(dtype)


def _prepare(
    gemm: Gemm, device: torch.device, size: int, layout: str, fast: bool
) -> Callable[[], object]:
    a, b = (random((size, size), gemm.dtype, device, seed) for seed in (0, 1))
    a, b = (a.t() if layout[0] == "t" else a), (b.t() if layout[1] == "t" else b)
    if _is_fp8(gemm):
        one = torch.ones((), dtype=torch.float32, device=device)
        return partial(
            torch._scaled_mm,
            a,
            b,
            scale_a=one,
            scale_b=one,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )
    out = torch.empty((size, size), dtype=gemm.dtype, device=device)
    return partial(torch.mm, a, b, out=out)


def _type(gemm: Gemm) -> str:
    if gemm.dtype is torch.float32:
        return f"fp32 with fp32_precision={gemm.fp32_precision}"
    if gemm.fp16_accumulation:
        return "float16 with allow_fp16_accumulation=True"
    return str(gemm.dtype).removeprefix("torch.")


def _is_fp8(gemm: Gemm) -> bool:
    return gemm.dtype is torch.float8_e4m3fn


def _has_fp16_accumulation() -> bool:
    try:
        return isinstance(torch.backends.cuda.matmul.allow_fp16_accumulation, bool)
    except AttributeError:
        return False
