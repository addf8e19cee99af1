"""Measures the ceilings of a GPU, one after the other; what fails leaves out only itself."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal

import torch

from roofprobe.ceilings import fma, gemm, memory, nvml
from roofprobe.ceilings.bench import FAILURES, Reading, best_of, reason_of
from roofprobe.ceilings.roofs import DRAM_COPY, DRAM_READ, DRAM_WRITE, L1_READ, Ceilings
from roofprobe.environment import collect, now_utc
from roofprobe.record import MeasuredRoof
from roofprobe.units import percent, si

# Of free memory, that operands and buffers may take: others may want some meanwhile.
_SHARE: Final = 0.6
# A gain below this is no gain: GPUs of data centres run both ways of accumulating at one rate.
_GAIN: Final = 1.05

FP32_FMA: Final = "FP32 FMA"
FP64_FMA: Final = "FP64 FMA"
L2_READ: Final = "L2 read"

# Name of a ceiling, what it limits (FLOP path or memory level), and how to measure it.
Part = tuple[str, dict[str, str], Callable[[], Reading]]


def measure_gpu_roofs(
    device: torch.device, *, progress: Callable[[str], None] | None = None
) -> Ceilings:
    """Runs every microbenchmark on a GPU: about 50 s on an H200.

    Torch's settings and random numbers are as before afterwards. Ctrl-C ends it and keeps what
    was measured.

    Args:
        device: The GPU.
        progress: Called with the name of each ceiling before it is measured.

    Returns:
        What could be measured, and why the rest could not.
    """
    begin = time.perf_counter()
    with torch.cuda.device(device):
        device = torch.device("cuda", torch.cuda.current_device())
        torch.cuda.synchronize()
        environment = collect(device)
        warnings, disturbed = _others(environment.uuid)
        # A share of what is free for torch: what it has cached already counts.
        torch.cuda.empty_cache()
        budget = int(_SHARE * torch.cuda.mem_get_info(device)[0])
        parts = list(_parts(device, environment.chip, budget))
        roofs, left_out, complete = run_parts(parts, progress)
        late, _ = _others(environment.uuid, settle=False)
    found = Ceilings(
        roofs,
        left_out,
        tuple(dict.fromkeys((*warnings, *late))),
        complete,
        disturbed,
        now_utc(),
        time.perf_counter() - begin,
    )
    return judged(found)


def run_parts(
    parts: Sequence[Part], progress: Callable[[str], None] | None
) -> tuple[tuple[MeasuredRoof, ...], dict[str, str], bool]:
    """Measures one part after the other.

    Args:
        parts: What to measure.
        progress: Called with each part's name before it is measured.

    Returns:
        The roofs, a reason for each part without one, and False where Ctrl-C broke it off.
    """
    roofs: list[MeasuredRoof] = []
    left_out: dict[str, str] = {}
    try:
        for name, limits, run in parts:
            if progress is not None:
                progress(name)
            try:
                reading = run()
            except FAILURES as error:
                left_out[name] = reason_of(error)
            else:
                roofs.append(_roof(name, limits, reading))
            # A fault of the device makes every later call fail: what was measured stands.
            with suppress(*FAILURES):
                torch.cuda.empty_cache()
    except KeyboardInterrupt:
        done = {roof.name for roof in roofs} | left_out.keys()
        left_out |= {name: "interrupted" for name, _, _ in parts if name not in done}
        return tuple(roofs), left_out, False
    return tuple(roofs), left_out, True


def judged(ceilings: Ceilings) -> Ceilings:
    """Takes out what another ceiling shows to be no ceiling of its own."""
    value = {roof.name: roof.value for roof in ceilings.roofs}
    reasons: dict[str, str] = {}
    with32, with16 = value.get(gemm.FP16.name), value.get(gemm.FP16_ACC16.name)
    if with32 and with16 and with16 < _GAIN * with32:
        reasons[gemm.FP16_ACC16.name] = (
            f"FP16 accumulation gains nothing on this GPU ({si(with16, 'FLOP/s')} against "
            f"{si(with32, 'FLOP/s')} with FP32): the FP16 GEMM is the roof of both"
        )
    l2, dram = value.get(L2_READ), value.get(DRAM_READ)
    if l2 and dram and l2 <= dram:
        reasons[L2_READ] = (
            f"no footprint below the size of L2 is read faster ({si(l2, 'B/s')}) than DRAM "
            f"({si(dram, 'B/s')})"
        )
    l1, outer = value.get(L1_READ), max(l2 or 0.0, dram or 0.0)
    if l1 and l1 <= outer:
        reasons[L1_READ] = (
            f"what fits in L1 is read no faster ({si(l1, 'B/s')}) than what does not "
            f"({si(outer, 'B/s')}): L1 does not hold it"
        )
    return dataclasses.replace(
        ceilings,
        roofs=tuple(roof for roof in ceilings.roofs if roof.name not in reasons),
        left_out={**ceilings.left_out, **reasons},
    )


def _parts(device: torch.device, chip: str | None, budget: int) -> Iterator[Part]:
    """Every ceiling: its name, what it limits, and how to measure it."""

    def product(precision: gemm.Gemm) -> Reading:
        gemm.require(precision, torch.cuda.get_device_capability(device), chip)
        with gemm.settings(precision):
            return best_of(gemm.ways(precision, device, budget), device)

    def dram(name: str) -> Reading:
        return best_of(memory.dram_ways(device, budget)[name], device)

    def chains(precision: Literal["fp32", "fp64"]) -> Reading:
        return best_of(fma.ways(device, precision), device)

    for one in gemm.GEMMS:
        yield one.name, {"path": one.path}, partial(product, one)
    yield FP32_FMA, {"path": "sass_fp32"}, partial(chains, "fp32")
    yield FP64_FMA, {"path": "sass_fp64"}, partial(chains, "fp64")
    for name in (DRAM_COPY, DRAM_READ, DRAM_WRITE):
        yield name, {"level": "dram"}, partial(dram, name)
    yield L2_READ, {"level": "l2"}, partial(memory.l2_reading, device)
    yield L1_READ, {"level": "l1"}, partial(memory.l1_reading, device)


def _roof(name: str, limits: dict[str, str], reading: Reading) -> MeasuredRoof:
    return MeasuredRoof(
        name=name,
        kind="flop" if "path" in limits else "byte",
        value=reading.value,
        spread=reading.spread,
        method=reading.method,
        path=limits.get("path"),
        level=limits.get("level"),
        clock=reading.clock,
        sustained=reading.sustained,
    )


def _others(uuid: str | None, *, settle: bool = True) -> tuple[list[str], bool]:
    """Warnings about other users of the GPU, and whether one of them is at work."""
    if uuid is None:
        return [], False
    warnings = []
    others = nvml.other_processes(uuid)
    if others:
        who = "another process has" if others == 1 else f"{others} other processes have"
        warnings.append(f"{who} the GPU open: ceilings read too low while they compute on it")
    load = (nvml.busy(uuid) or 0.0) if settle else 0.0
    if load:
        warnings.append(
            f"the GPU was {percent(load)} busy before anything was measured: ceilings are too low "
            "and are not kept; measure again when it is idle"
        )
    return warnings, load > 0
