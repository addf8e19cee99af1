"""A record in words and in a picture: the table and the roofline of a run."""

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from roofprobe import device
from roofprobe.derive import Figure, Figures, figures
from roofprobe.record import MeasuredRoof, Measurement
from roofprobe.roofline import Ceiling, Roofline, ceilings_of, place
from roofprobe.units import number, percent, seconds, si

_FOOTER = (
    "1 FMA = 2 FLOP; GB = 1e9 B; intensity = FLOP / DRAM bytes (read + write); "
    "FLOP/s = FLOP / unprofiled step time."
)

# A path with less of the total than this gets no roof of its own in the picture.
_WORTH_A_ROOF: Final = 0.01

# What each FLOP path is, in the words of the field.
_PATHS = {
    "sass_fp16": "CUDA cores fp16 (upper bound, not in total)",
    "sass_fp32": "CUDA cores fp32",
    "sass_fp64": "CUDA cores fp64",
    "tensor_fp16": "tensor cores fp16",
    "tensor_bf16": "tensor cores bf16",
    "tensor_tf32": "tensor cores tf32",
    "tensor_fp8": "tensor cores fp8",
    "tensor_fp6": "tensor cores fp6",
    "tensor_fp4": "tensor cores fp4",
    "tensor_fp64": "tensor cores fp64",
    "tensor_int8": "tensor cores int8 (operations, not in total)",
}
_BYTES = {
    "dram_read": "DRAM read",
    "dram_write": "DRAM written",
    "dram": "DRAM",
    "l2": "L2",
    "l1": "L1",
}


def text(record: Measurement, *, width: int = 100) -> str:
    """The measurement as a table, plain text.

    Args:
        record: What was measured.
        width: Columns.
    """
    derived = figures(record)
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False, markup=False)
    table = Table(title=Text(_title(record)), title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("per step", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("spread", justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    for row in _rows(record, derived):
        table.add_row(*row)
    console.print(table)
    for line in _remarks(record, derived):
        console.print(line)
    console.print(_FOOTER)
    buffer = console.file
    assert isinstance(buffer, io.StringIO)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def roofline_of(record: Measurement) -> Roofline:
    """The roofline of a record: this device's roofs, the step, and the study's view of it.

    Datasheet roofs come from the catalogue, for the paths on which a percent of the step's FLOP
    or more ran; measured ones from the record.
    """
    derived = figures(record)
    total = derived.flop_total.value or 0.0
    used = [
        path
        for path, figure in derived.flop.items()
        if figure.value and not figure.upper_bound and figure.value >= _WORTH_A_ROOF * total
    ]
    ceilings = [_measured(roof) for roof in record.roofs]
    environment = record.environment
    spec = device.find(
        device_name=environment.device_name,
        chip=environment.chip,
        sm_count=environment.sm_count,
        memory_byte=environment.memory_byte,
    )
    if environment.device_kind == "cuda" and spec is not None:
        ceilings += ceilings_of(spec, used)
    time = derived.step_time.value
    dram = derived.byte["dram"].value if "dram" in derived.byte else None
    placed = [
        place(
            f"{record.name}, all FLOP", derived.flop_total.value, dram, time, source=record.source
        )
    ]
    study = derived.study
    if study is not None and study.reason is not None:
        # The study divides by kernel time; without kernel records its point has no height.
        placed.append(
            place(
                "study's formula (fp32 SASS over kernel time)",
                study.flop.value,
                dram,
                derived.kernel_time.value,
                source=record.source,
            )
        )
    return Roofline.of(_title(record), ceilings, placed)


def _measured(roof: MeasuredRoof) -> Ceiling:
    kind = cast(Literal["flop", "byte"], roof.kind)
    return Ceiling(roof.name, kind, roof.value, roof.path, roof.level, "measured", roof.method)


def save_plot(record: Measurement, path: str | os.PathLike[str]) -> Path:
    """Draws the roofline of a record into a file; its suffix decides the format."""
    from roofprobe.plot import save_roofline  # matplotlib takes a while, and text needs none

    return save_roofline(roofline_of(record), path)


def _title(record: Measurement) -> str:
    chip = f", {record.environment.chip}" if record.environment.chip else ""
    state = "" if record.complete else ", INCOMPLETE"
    return f"{record.name} on {record.environment.device_name}{chip} [{record.source}{state}]"


def _rows(record: Measurement, derived: Figures) -> Iterable[tuple[str, str, str, str]]:
    yield _row("step time, unprofiled", derived.step_time, "s")
    if record.kernels is not None:
        yield _row("kernel time, sum", derived.kernel_time, "s")
        yield _row("GPU busy (union of kernels)", derived.busy_time, "s")
    for path, figure in derived.flop.items():
        # A path without work is noise, unless it is the only one or could not be read.
        if figure.value != 0 or path in ("sass_fp32", "analytic_fp32"):
            unit = "op" if path == "tensor_int8" else "FLOP"
            yield _row(_PATHS.get(path, path.replace("_", " ")), figure, unit)
    yield _row("FLOP, total", derived.flop_total, "FLOP")
    for level, figure in derived.byte.items():
        yield _row(f"{_BYTES[level]} bytes", figure, "B")
    for level, figure in derived.intensity.items():
        yield _row(f"intensity, {_BYTES[level]}", figure, "FLOP/B")
    yield _row("attained, over step time", derived.flop_per_s, "FLOP/s")
    if record.kernels is not None:
        yield _row("attained, over kernel time", derived.flop_per_s_kernel, "FLOP/s")
    yield _row("DRAM bandwidth, over step time", derived.byte_per_s, "B/s")
    if derived.study is not None:
        yield _row("study's FLOP (fadd+fmul+2ffma)", derived.study.flop, "FLOP")
        yield _row("study's intensity", derived.study.intensity, "FLOP/B")
        if record.kernels is not None:
            yield _row("study's FLOP/s (kernel time)", derived.study.flop_per_s, "FLOP/s")


def _row(label: str, figure: Figure, unit: str) -> tuple[str, str, str, str]:
    if unit == "s":
        value = seconds(figure.value)
    elif unit == "FLOP/B":
        value = f"{number(figure.value)} {unit}" if figure.value is not None else "n/a"
    else:
        value = si(figure.value, unit)
    if figure.upper_bound and figure.value is not None:
        value = f"<= {value}"
    return (
        label,
        value,
        percent(figure.spread, 2) if figure.spread is not None else "",
        figure.source,
    )


def _remarks(record: Measurement, derived: Figures) -> Iterable[str]:
    clocks = record.clocks
    if clocks is not None:
        low, middle, high = (si(clock, "Hz") for clock in clocks.sm)
        yield f"SM clock while timing: {middle} ({low} to {high}, {clocks.samples} readings, nvml)"
    if record.coverage is not None and record.coverage.fraction is not None:
        yield (
            f"SASS coverage: {percent(record.coverage.fraction, 4)} of the stores that the "
            "hardware counted" + ("" if record.coverage.trusted else "; SASS figures are withheld")
        )
    elif record.coverage is not None and record.coverage.trusted:
        yield f"SASS coverage: {record.coverage.cause}"
    if derived.study is not None and derived.study.reason is not None:
        times = f"{number(derived.study.ratio)} times" if derived.study.ratio else "all of"
        yield f"Total FLOP are {times} the study's: {derived.study.reason}."
    for label, figure in _missing(derived):
        yield f"n/a: {label}: {figure.reason}"
    for warning in record.warnings:
        yield f"warning: {warning}"


def _missing(derived: Figures) -> Iterable[tuple[str, Figure]]:
    """Figures without a value, one line for each distinct reason."""
    seen: set[str | None] = set()
    labelled = [
        *((_PATHS.get(path, path), figure) for path, figure in derived.flop.items()),
        *((f"{_BYTES[level]} bytes", figure) for level, figure in derived.byte.items()),
        ("total FLOP", derived.flop_total),
        ("step time", derived.step_time),
        ("kernel time", derived.kernel_time),
    ]
    for label, figure in labelled:
        if figure.value is None and figure.reason not in seen:
            seen.add(figure.reason)
            yield label, figure
