"""``roofprobe import-ncu``: figures from files that Nsight Compute wrote. Needs no GPU."""

import argparse
import re
from pathlib import Path
from typing import Any, Final

from roofprobe import device
from roofprobe.errors import UsageError
from roofprobe.ncu_import import Calibration, Imported, Kernel, import_files
from roofprobe.ncu_import.numerals import FORMATS
from roofprobe.units import number, seconds, si

_SHOWN: Final = 10  # kernels in the table without --per-kernel


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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the figures."""
    capability = _capability(arguments.gpu) if arguments.gpu else None
    calibration = Calibration.load(arguments.calibration) if arguments.calibration else None
    found = import_files(
        arguments.files,
        gpu=arguments.gpu,
        compute_capability=capability,
        number_format=FORMATS[arguments.number_format] if arguments.number_format else None,
        calibration=calibration,
    )
    if arguments.json:
        print(found.to_json(kernels=arguments.per_kernel), end="")
    else:
        _print(found, every=arguments.per_kernel)
    return 0


def _capability(name: str) -> str:
    """Compute capability of a GPU by its name, its chip, or itself (``8.0``).

    Raises:
        UsageError: nothing in the catalogue is called that, or products that differ are.
    """
    if re.fullmatch(r"[0-9]+\.[0-9]", name):
        return name
    wanted = set(re.findall(r"[a-z0-9]+", name.lower())) - {"nvidia", "tesla", "geforce"}
    found = {
        spec.compute_capability
        for spec in device.catalogue()
        if wanted
        and wanted
        <= set(
            re.findall(r"[a-z0-9]+", " ".join((spec.name, spec.chip, *spec.device_names)).lower())
        )
    }
    if len(found) != 1:
        known = ", ".join(spec.name for spec in device.catalogue())
        raise UsageError(
            f"--gpu {name}: {'several GPUs are' if found else 'no GPU is'} called that; name its "
            f"compute capability (--gpu 8.0) or one of {known}"
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
    _kernels("by device", found.parts)
    _kernels("by range", found.ranges)
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
    for warning in found.warnings:
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
