"""``roofprobe import-ncu``: figures from files that Nsight Compute wrote. Needs no GPU."""

import argparse
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from roofprobe import device, metrics
from roofprobe.device import DeviceSpec
from roofprobe.errors import UsageError
from roofprobe.ncu_import import Calibration, Imported, Kernel, import_files
from roofprobe.ncu_import.numerals import FORMATS
from roofprobe.roofline import (
    Above,
    Ceiling,
    LeftOut,
    Point,
    Roofline,
    ceilings_of,
    exceeded,
    place,
    suspects,
)
from roofprobe.units import number, seconds, si

_SHOWN: Final = 10  # kernels in the table without --per-kernel
_FLAGGED: Final = 5  # kernels that are named in a warning
# A path with less of the total than this gets no roof in the picture.
_WORTH_A_ROOF: Final = 0.01
# How far a peak may be from a power of two of FLOP a cycle, as a binary logarithm: datasheets
# state some tensor peaks at a lower clock than the boost clock, by up to 13%.
_OFF: Final = 0.25


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "import-ncu",
        help="figures from files that Nsight Compute wrote",
        description="Reads CSV and plain-text logs, raw and details pages, exports of the desktop "
        "application and .ncu-rep reports. Several files are one workload: runs with a part of "
        "the metrics each are put together, files with the same metrics are processes.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path)
    parser.add_argument("--gpu", metavar="NAME", help="the GPU, where the files do not tell")
    parser.add_argument("--json", action="store_true", help="print the record")
    parser.add_argument("--per-kernel", action="store_true", help="list every kernel")
    parser.add_argument(
        "--number-format",
        choices=sorted(FORMATS),
        help="how numbers read, where the files do not tell: 1,234.5 is en, 1.234,5 is de",
    )
    parser.add_argument(
        "--calibration",
        metavar="JSON",
        type=Path,
        help="kernel and its m, n, k (or exact_flops), which settles whether tensor counters "
        "count an FMA as one or two; its launches are left out",
    )
    parser.add_argument(
        "--plot",
        metavar="PICTURE",
        type=Path,
        help="draw the roofline, one point for each memory level (png, svg, pdf); "
        "the datasheet's roofs need --gpu",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the figures and draws the picture."""
    if arguments.plot:
        from roofprobe.plot import picture_format, save_roofline  # matplotlib takes a while

        picture_format(arguments.plot)  # a bad suffix is refused before a long import
    capability = _capability(arguments.gpu) if arguments.gpu else None
    calibration = Calibration.load(arguments.calibration) if arguments.calibration else None
    found = import_files(
        arguments.files,
        gpu=arguments.gpu,
        compute_capability=capability,
        number_format=FORMATS[arguments.number_format] if arguments.number_format else None,
        calibration=calibration,
    )
    found = replace(found, warnings=(*found.warnings, *_above(found)))
    if arguments.json:
        print(found.to_json(kernels=arguments.per_kernel), end="")
    else:
        _print(found, every=arguments.per_kernel)
    if arguments.plot:
        roofline = roofline_of(found, workload(arguments.files))
        save_roofline(roofline, arguments.plot)
        out = sys.stderr if arguments.json else sys.stdout
        for name, reason in roofline.left_out:
            print(f"not in the picture: {name}: {reason}", file=out)
        print(f"picture: {arguments.plot}", file=out)
    return 0


def workload(files: Sequence[Path]) -> str:
    """What to call files: a single one by its name, several by their folder where it is one."""
    folders = {path.absolute().parent for path in files}
    if len(files) == 1 or len(folders) > 1:
        return files[0].name + (" ..." if len(files) > 1 else "")
    return folders.pop().name or files[0].name


def roofline_of(found: Imported, name: str) -> Roofline:
    """The hierarchical roofline: all launches as one point for each memory level.

    The height is total FLOP over the sum of the launches' durations. Roofs are those of the
    datasheet of the GPU that the user named, and its compute roofs at the SM clock of the files.

    Args:
        found: The figures.
        name: Of the workload.
    """
    specs = device.called(found.gpu) if found.gpu else ()
    ceilings, missing = _roofs(found, specs)
    roofed = {ceiling.level for ceiling in ceilings}
    placed = [_level(found, level, bare=bool(roofed - {level})) for level in metrics.LEVELS]
    gpu = specs[0].name if len(specs) == 1 else found.gpu
    title = f"{name}, {found.whole.launches} launches{f' on {gpu}' if gpu else ''} [ncu]"
    return Roofline.of(title, ceilings, [*placed, *missing])


def _level(found: Imported, level: str, *, bare: bool) -> Point | LeftOut:
    """The point of a memory level, or why there is none.

    Args:
        found: The figures.
        level: Which.
        bare: Roofs are drawn, and none of them is this level's.
    """
    whole = found.whole
    notes = []
    if "total" in found.upper_bound:
        notes.append("FLOP are an upper bound, fp16 instructions may be packed or not")
    if found.parts:
        notes.append(f"mean of {len(found.parts)} processes or devices, under the roof of one")
    if bare and level != "dram":
        notes.append("not bound by the DRAM roof, datasheets give no bandwidth of this level")
    # Nameless: the title says what all points are of.
    point = place(
        "",
        flop=whole.flop["total"],
        byte=whole.byte[level],
        time=whole.time_s,
        source="ncu; time: sum of the launches' durations",
        level=level,
        note=", ".join(notes),
        work=_exact(found, whole),
    )
    if isinstance(point, Point):
        return point
    parts = {
        "flop.total": whole.flop["total"],
        f"byte.{level}": whole.byte[level],
        "time_s": whole.time_s,
    }
    why = dict.fromkeys(
        found.reasons[key] for key, value in parts.items() if value is None and key in found.reasons
    )
    return LeftOut(level.upper(), "; ".join(why) or point.reason)


def _roofs(
    found: Imported, specs: Sequence[DeviceSpec]
) -> tuple[tuple[Ceiling, ...], list[LeftOut]]:
    """Roofs on which all products agree that are called so, and what has none and why.

    Compute roofs are those of the paths that do a percent or more of the FLOP.
    """
    if not specs:
        return (), [LeftOut("roofs", "the GPU is not known, name the product with --gpu")]
    least = _WORTH_A_ROOF * (found.whole.flop["total"] or 0.0)
    flop = {path: value for path, value in found.whole.flop.items() if path != "total"}
    used = [path for path, value in flop.items() if value and value >= least]
    share = _fp16_accumulate(found)
    sheets = [_sheet(spec, used, share, found.whole.sm_clock_hz) for spec in specs]
    values = [{ceiling.name: ceiling.value for ceiling in sheet} for sheet in sheets]
    agreed = tuple(c for c in sheets[0] if all(v.get(c.name) == c.value for v in values))
    names = dict.fromkeys(name for sheet in values for name in sheet)
    missing = [
        LeftOut(
            f"{name} roof",
            f"{found.gpu} is any of {', '.join(spec.name for spec in specs)}, and they differ, "
            "so name one with --gpu",
        )
        for name in names
        if name not in {ceiling.name for ceiling in agreed}
    ]
    published = {ceiling.path for sheet in sheets for ceiling in sheet}
    missing += [
        LeftOut(f"{path} roof", "no datasheet figure") for path in used if path not in published
    ]
    return agreed, missing


def _sheet(
    spec: DeviceSpec, paths: Sequence[str], fp16_accumulate: float, clock: float | None
) -> list[Ceiling]:
    """A product's roofs: those of its datasheet, and the compute roofs at a clock in Hz."""
    roofs = list(ceilings_of(spec, paths, fp16_accumulate=fp16_accumulate))
    if clock is not None:
        roofs += [slower for roof in roofs if (slower := _at_clock(spec, roof, clock)) is not None]
    return roofs


def _at_clock(spec: DeviceSpec, roof: Ceiling, clock: float) -> Ceiling | None:
    """A compute roof at another clock, in Hz; None where its FLOP a cycle are not known.

    An SM does a power of two of them a cycle on every path, which shows at what clock a datasheet
    states a peak.
    """
    if roof.path is None or spec.sm_count is None or spec.boost_hz is None:
        return None
    stated = spec.peaks[roof.path] / spec.sm_count  # FLOP/s of one SM
    exponent = math.log2(stated / spec.boost_hz)
    if abs(exponent - round(exponent)) > _OFF:
        return None
    per_cycle = 2 ** round(exponent)
    at = si(clock, "Hz")
    return Ceiling(
        name=f"{roof.name} at {at}",
        kind="flop",
        value=spec.sm_count * per_cycle * clock * (roof.value / spec.peaks[roof.path]),
        path=roof.path,
        level=None,
        source="given",
        detail=f"the datasheet's at the files' mean SM clock, {at}",
    )


def _exact(found: Imported, kernel: Kernel) -> dict[str, float]:
    """FLOP by path, as far as they are known exactly."""
    return {
        path: value
        for path, value in kernel.flop.items()
        if value and path not in ("total", *found.upper_bound)
    }


def _fp16_accumulate(found: Imported) -> float:
    """Share of the fp16 FLOP on tensor cores that accumulates in fp16."""
    flop = found.whole.flop.get("tensor_fp16")
    # What a calibration scales is the FLOP, and not the counters.
    return device.fp16_accumulate(found.counters, flop and flop / (found.tensor_scale or 1.0))


def _above(found: Imported) -> Iterator[str]:
    """The warning that the whole or kernels lie above a roof of the GPU.

    It is the one that the user named, or has the compute capability in the files. Of several
    products the highest roofs count.
    """
    specs = device.called(found.gpu) if found.gpu else ()
    whose = " or ".join(spec.name for spec in specs)
    if not specs and len(found.compute_capabilities) == 1:
        (capability,) = found.compute_capabilities
        specs = tuple(s for s in device.catalogue() if s.compute_capability == capability)
        whose = f"every GPU of compute capability {capability} that is known here"
    share = _fp16_accumulate(found)
    whole = _exceeded(found, found.whole, specs, share)
    several = found.kernels if len(found.kernels) > 1 else ()
    # Which kernel accumulates in fp16 is not kept, so each may.
    kernels = [
        (kernel.name, above)
        for kernel in several
        if (above := _exceeded(found, kernel, specs, math.ceil(share))) is not None
    ]
    kernels.sort(key=lambda each: -each[1].times)
    flags = [("all launches", whole)] if whole is not None else []
    flags += kernels[:_FLAGGED]
    if flags:
        said = "; ".join(f"{name}, {above.words}" for name, above in flags)
        more = len(kernels) - _FLAGGED
        more_kernels = f"; {more} more kernels" if more > 0 else ""
        why = suspects(mix=any(above.mix for _, above in flags))
        yield f"above the roof of {whose}: {said}{more_kernels}: {why}"


def _exceeded(
    found: Imported, kernel: Kernel, specs: Sequence[DeviceSpec], fp16_accumulate: float
) -> Above | None:
    work = _exact(found, kernel)
    roofs = [c for spec in specs for c in ceilings_of(spec, work, fp16_accumulate=fp16_accumulate)]
    return exceeded(work, kernel.byte, kernel.time_s, roofs)


def _capability(name: str) -> str:
    """Compute capability of a GPU by its name, its chip, or itself (``8.0``).

    Raises:
        UsageError: nothing in the catalogue is called that, or products that differ are.
    """
    if re.fullmatch(r"[0-9]+\.[0-9]", name):
        return name
    found = {spec.compute_capability for spec in device.called(name)}
    if len(found) != 1:
        known = ", ".join(spec.name for spec in device.catalogue())
        raise UsageError(
            f"--gpu {name}: {'several GPUs are' if found else 'no GPU known here is'} called that; "
            f"name its compute capability (--gpu 8.0) or one of {known}"
        )
    return found.pop()


def _print(found: Imported, *, every: bool) -> None:
    whole = found.whole
    print(f"{', '.join(found.files[:3])}{' ...' if len(found.files) > 3 else ''} [ncu]")
    gpu = found.gpu or ", ".join(f"compute capability {c}" for c in found.compute_capabilities)
    print(f"{whole.launches} launches" + (f" on {gpu}" if gpu else ""))
    for path, value in whole.flop.items():
        bound = "<= " if path in found.upper_bound and value is not None else ""
        _row("FLOP, total" if path == "total" else f"FLOP, {path}", bound + si(value, "FLOP"))
    for path, value in whole.op.items():
        _row(f"operations, {path} (not in total)", si(value, "op"))
    for level, value in whole.byte.items():
        if value is not None or level == "dram":
            _row(f"bytes, {level}", si(value, "B"))
    _row("time, sum over launches", seconds(whole.time_s))
    for level, value in whole.intensity_by_level.items():
        if value is not None or level == "dram":
            _row(f"intensity, {level}", f"{number(value)} FLOP/B" if value is not None else "n/a")
    _row("attained, over that time", si(whole.flop_per_s, "FLOP/s"))
    if whole.sm_clock_hz is not None:
        _row("SM clock, mean over that time", si(whole.sm_clock_hz, "Hz"))
        specs = device.called(found.gpu) if found.gpu else ()
        for roof in _roofs(found, specs)[0]:
            if roof.kind == "flop":
                kind = "datasheet roof" if roof.source == "datasheet" else "roof"
                _row(f"{kind}, {roof.name}", si(roof.value, "FLOP/s"))
    _kernels("by device", found.parts)
    _kernels("by range", found.ranges)
    if found.ranges:
        _row("steady range", found.steady or "none")
    kernels = sorted(found.kernels, key=lambda kernel: -(kernel.time_s or 0))
    _kernels("by kernel", kernels if every else kernels[:_SHOWN])
    if len(kernels) > _SHOWN and not every:
        print(f"  and {len(kernels) - _SHOWN} more: --per-kernel")
    for figure, reason in found.reasons.items():
        print(f"n/a: {figure}: {reason}")
    for metric, reason in found.unavailable.items():
        print(f"n/a: {metric}: {reason}")
    if found.skipped_lines:
        print(f"{found.skipped_lines} lines between ncu's rows are not ncu's and were skipped")
    for warning in (*found.not_counted, *found.warnings):
        print(f"warning: {warning}")
    print("1 FMA = 2 FLOP; GB = 1e9 B; durations are of launches that ncu ran one at a time.")


def _row(label: str, value: str) -> None:
    print(f"{label:40s} {value:>16s}")


def _kernels(title: str, kernels: Any) -> None:
    if not kernels:
        return
    print(f"{title}: launches, time, FLOP, DRAM bytes, FLOP/B")
    kernel: Kernel
    for kernel in kernels:
        print(
            f"  {kernel.launches:7d} {seconds(kernel.time_s):>10s} "
            f"{si(kernel.flop['total'], 'FLOP'):>13s} {si(kernel.byte['dram'], 'B'):>10s} "
            f"{number(kernel.intensity):>9s}  {kernel.name[:100]}"
        )
