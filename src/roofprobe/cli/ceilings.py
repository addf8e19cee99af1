"""``roofprobe ceilings``: what this GPU reaches, beside what its datasheet promises."""

import argparse
import io
import sys
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from roofprobe import device
from roofprobe.ceilings import cache
from roofprobe.ceilings.roofs import L1_READ, Ceilings, dram_roof
from roofprobe.errors import RecordError, RoofprobeError, UsageError
from roofprobe.record import Environment, MeasuredRoof
from roofprobe.roofline import ABOVE_ROOF, l1_ceiling
from roofprobe.units import percent, si

_INTERRUPTED: Final = 130  # as shells have it
_WIDTH: Final = 100
_UNSTEADY: Final = 0.2  # spread; an H200's bursts differ by up to 14%
_UNITS: Final = "1 FMA = 2 FLOP; GB = 1e9 B; a copy counts bytes read + written. "
_FOOTERS: Final = {
    "cuda": _UNITS + "Measured: bursts of 10 ms on a rested GPU, the roof of work that does not "
    "heat it; spread: slowest less fastest burst. Sustained: after 0.3 s of the same load. SM "
    "clock: median of NVML's readings.",
    "cpu": _UNITS + "Measured: median of the repeats; spread: slowest less fastest repeat. Later "
    "runs with as many threads are judged by these; OMP_NUM_THREADS=N roofprobe ceilings measures "
    "those of N threads.",
}


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "ceilings",
        help="measure what this GPU reaches: FLOP/s by precision, DRAM, L2 and L1 bandwidth",
        description="Runs microbenchmarks (50 s on an H200), or shows what they gave before "
        "under the same driver, PyTorch and clock settings. Without a GPU, or where "
        "CUDA_VISIBLE_DEVICES= hides it, measures the CPU, for runs with as many threads.",
    )
    parser.add_argument("--gpu", type=int, metavar="N", help="which GPU, as PyTorch counts them")
    parser.add_argument("--fresh", action="store_true", help="measure anew")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures or looks up, and prints."""
    import torch

    from roofprobe.environment import collect

    where = _device(arguments.gpu, torch.cuda.device_count())
    environment = collect(torch.device(where))
    conditions = cache.conditions_of(environment)
    found = None if arguments.fresh or conditions is None else _cached(conditions)
    if found is None:
        found = _measure(where)
        if not found.roofs and found.complete:
            reasons = "; ".join(f"{name}: {why}" for name, why in found.left_out.items())
            raise RoofprobeError(f"no ceiling of {environment.device_name} was measured: {reasons}")
        if conditions is not None:
            try:
                cache.save(found, conditions)
            except RecordError as error:
                _say(f"warning: the result is not kept: {error}")
    if arguments.json:
        print(cache.to_json(found, conditions), end="")
    else:
        print(text(found, environment), end="")
    return 0 if found.complete else _INTERRUPTED


def text(ceilings: Ceilings, environment: Environment, *, width: int = _WIDTH) -> str:
    """Ceilings as a table, plain text.

    Args:
        ceilings: What was measured.
        environment: On what.
        width: Columns.
    """
    spec = device.find(
        device_name=environment.device_name,
        chip=environment.chip,
        sm_count=environment.sm_count,
        memory_byte=environment.memory_byte,
    )
    spec = spec if environment.device_kind == "cuda" else None
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False, markup=False)
    chip = f", {environment.chip}" if environment.chip else ""
    state = "" if ceilings.complete else ", INCOMPLETE"
    kind = "GPU" if environment.device_kind == "cuda" else "CPU, no GPU was found"
    title = f"{environment.device_name}{chip} [measured on this {kind}, {ceilings.created}{state}]"
    table = Table(title=Text(title), title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("ceiling", no_wrap=True)
    for heading in ("measured", "spread", "SM clock", "sustained", "datasheet, dense", "of it"):
        table.add_column(heading, justify="right", no_wrap=True)
    for roof in ceilings.roofs:
        peak = _peak(roof, spec)
        table.add_row(
            roof.name,
            si(roof.value, _unit(roof)),
            percent(roof.spread, 2),
            si(roof.clock, "Hz"),
            si(roof.sustained, _unit(roof)),
            si(peak, _unit(roof)),
            percent(roof.value / peak if peak else None),
        )
    console.print(table)
    for line in _remarks(ceilings, spec, environment.device_kind):
        console.print(line)
    console.print(_FOOTERS[environment.device_kind])
    buffer = console.file
    assert isinstance(buffer, io.StringIO)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _remarks(ceilings: Ceilings, spec: device.DeviceSpec | None, kind: str) -> Iterator[str]:
    for roof in ceilings.roofs:
        yield f"{roof.name}: {roof.method}"
    for name, reason in ceilings.left_out.items():
        yield f"n/a: {name}: {reason}"
    if kind == "cuda" and not _has(ceilings, L1_READ):
        yield (
            f"n/a: {L1_READ}: these ceilings were kept by a roofprobe that did not measure it; "
            "measure anew with --fresh"
        )
    dram = dram_roof(ceilings.roofs)
    if dram is not None and len([roof for roof in ceilings.roofs if roof.level == "dram"]) > 1:
        yield f"DRAM roof to judge work by: {dram.name}, the better of copy and read."
    if spec is not None:
        yield f"Datasheet: {spec.name}, dense peaks, seen {spec.seen}: {', '.join(spec.source)}"
    l1 = l1_ceiling(spec) if spec is not None else None
    if l1 is not None and any(roof.level == "l1" for roof in ceilings.roofs):
        yield f"Datasheet of L1: {l1.detail}"
    for roof in ceilings.roofs:
        peak = _peak(roof, spec)
        if peak is not None and roof.value > ABOVE_ROOF * peak:
            yield (
                f"warning: {roof.name} is {percent(roof.value / peak)} of the datasheet's dense "
                "peak: a boost above the listed clock, or another product than the one found"
            )
        if roof.spread > _UNSTEADY:
            yield (
                f"warning: the runs behind {roof.name} differ by {percent(roof.spread)}, so it is "
                "no ceiling to judge work by: measure again (--fresh) while nothing else uses this "
                "machine"
            )
    for warning in ceilings.warnings:
        yield f"warning: {warning}"


def _peak(roof: MeasuredRoof, spec: device.DeviceSpec | None) -> float | None:
    if spec is None:
        return None
    if roof.level == "dram":
        return spec.memory_byte_per_s
    if roof.level == "l1":
        l1 = l1_ceiling(spec)
        return l1.value if l1 is not None else None
    return spec.peaks.get(roof.path) if roof.path is not None else None


def _has(ceilings: Ceilings, name: str) -> bool:
    return name in ceilings.left_out or any(roof.name == name for roof in ceilings.roofs)


def _unit(roof: MeasuredRoof) -> str:
    return "FLOP/s" if roof.kind == "flop" else "B/s"


def _device(wanted: int | None, count: int) -> str:
    """The device's name for torch."""
    if wanted is None:
        return "cuda:0" if count else "cpu"
    if not 0 <= wanted < count:
        there = f"{count}, numbered from 0" if count else "none"
        raise UsageError(
            f"there is no GPU {wanted}: PyTorch sees {there}. Name another one with --gpu, or "
            "look at nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    return f"cuda:{wanted}"


def _cached(conditions: cache.Conditions) -> Ceilings | None:
    try:
        found = cache.load(conditions)
    except RecordError as error:
        _say(f"warning: measuring anew, since the kept ceilings are broken: {error}")
        return None
    return found if found is not None and found.complete else None


def _measure(where: str) -> Ceilings:
    import torch

    from roofprobe.environment import now_utc

    if where == "cpu":
        from roofprobe.ceilings.cpu import measure_cpu_roofs

        _say("=> measuring this CPU: PyTorch sees no GPU")
        return Ceilings(measure_cpu_roofs(), created=now_utc())
    from roofprobe.ceilings.gpu import measure_gpu_roofs

    return measure_gpu_roofs(torch.device(where), progress=lambda name: _say(f"=> {name}"))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
