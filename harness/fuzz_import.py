"""Does any damaged ncu file crash the import? Mutates small logs of every form and reads them.

    python harness/fuzz_import.py SECONDS [FILE...] [--seed N]

What counts as a failure says ``fuzzing``; one input for each outcome goes to build/fuzz-import, a
failure with its traceback, and the exit code is 1 where there was one.
"""

import argparse
import csv
import io
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import fuzzing

from roofprobe.ncu_import import import_files

FOUND: Final = Path("build/fuzz-import")

FFMA: Final = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
HFMA: Final = "sm__sass_thread_inst_executed_op_hfma_pred_on.sum"
RATE: Final = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed"
TENSOR: Final = "sm__ops_path_tensor_src_fp16_dst_fp32.sum"
PIPE: Final = "sm__inst_executed_pipe_tensor.sum"
READ: Final = "dram__bytes_read.sum"
WRITE: Final = "dram__bytes_write.sum"
SECTORS: Final = "lts__t_sectors.sum"
CYCLES: Final = "sm__cycles_elapsed.avg"
CLOCK: Final = "sm__cycles_elapsed.avg.per_second"
DURATION: Final = "gpu__time_duration.sum"
# Name, unit and value as ncu prints it, in English and in German.
METRICS: Final = (
    (FFMA, "inst", "1,000,000", "1.000.000"),
    (HFMA, "inst", "2,048", "2.048"),
    (RATE, "inst/cycle", "1.25", "1,25"),
    (TENSOR, "op", "4,096", "4.096"),
    (PIPE, "inst", "64", "64"),
    (READ, "Mbyte", "12.58", "12,58"),
    (WRITE, "Kbyte", "524.288", "524,288"),
    (SECTORS, "sector", "131,072", "131.072"),
    ("l1tex__t_bytes.sum", "byte", "8,388,608", "8.388.608"),
    (CYCLES, "cycle", "3,001.5", "3.001,5"),
    (CLOCK, "cycle/nsecond", "1.50", "1,50"),
    (DURATION, "usecond", "2.00", "2,00"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "n/a", "n/a"),
)
KERNELS: Final = ("copy", "void add<float, 4>(float *, int)", "volta_sgemm_128x64_nn")
FIRST: Final = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name")
LAST: Final = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
COLUMNS_12: Final = (*FIRST, "Kernel Time", "Context", "Stream", *LAST)
COLUMNS_15: Final = (
    *(*FIRST, "Context", "Stream", "Block Size", "Grid Size", "Device", "CC"),
    *LAST,
)
COLUMNS_20: Final = (
    *(*COLUMNS_15, "Rule Name", "Rule Type", "Rule Description"),
    *("Estimated Speedup Type", "Estimated Speedup"),
)
ABOUT: Final = {
    "Process ID": "7",
    "Process Name": "python3",
    "Host Name": "127.0.0.1",
    "Kernel Time": "2020-Jun-09 11:50:40",
    "Context": "1",
    "Stream": "7",
    "Block Size": "(256, 1, 1)",
    "Grid Size": "(64, 1, 1)",
    "Device": "0",
    "CC": "7.0",
    "Section Name": "Command line profiler metrics",
}
NOISE: Final = (
    "==PROF== Connected to process 7 (/usr/bin/python3)\n",
    '==WARNING== Failed to profile "copy"\n',
    "==WARNING== Failed to access the following 2 metrics: dram__bytes.sum, lts__t_bytes.sum\n",
    "==ERROR== ERR_NVGPUCTRPERM\n",
    "step 1, loss 0.70\n",
    " 50%|##  |",
)
CELLS: Final = (
    *("", "-", "n/a", "(!) n/a", "nan", "-nan(ind)", "inf", "1.234,5", "1,234.5", "1,234", "1.234"),
    *("0", "-1", "1e308", "1e-320", "9" * 30, "9" * 5000, "0x1p3", "1 000", "1'000'000", "٣", "²"),
    *(
        '"',
        '""',
        '"x',
        "\0",
        "\ufeff",
        "\r",
        ";",
        "\t",
        "%",
        "Zbyte",
        "Gbyte",
        "msecond",
        "byte/byte",
    ),
    *("inst/cycle", "ID", "Kernel Name", "Metric Name", FFMA, DURATION, "(1, 1, 1)", "9.0", "7"),
    *("12 <default domain>:step:none:none", "a, b", "[", "]", f"{FFMA} [inst]", "__", "==PROF== x"),
)
HEADERS: Final = (
    *(*COLUMNS_20, "", "Thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"),
    *(FFMA, DURATION, READ, "gpc__cycles_elapsed.max", "Duration", "Memory Throughput", "Function"),
)


# Seeds: one small log of every form


def _csv(rows: Iterable[Iterable[str]], delimiter: str = ",", quoted: bool = True) -> str:
    out = io.StringIO()
    writer = csv.writer(
        out,
        delimiter=delimiter,
        quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL,
        lineterminator="\n",
    )
    writer.writerows(rows)
    return out.getvalue()


def _long(columns: tuple[str, ...], german: bool = False, processes: int = 1) -> list[list[str]]:
    """Header and rows of a CSV with one metric a row."""
    rows = [list(columns)]
    for process in range(processes):
        for ident, kernel in enumerate(KERNELS):
            for name, unit, english, foreign in METRICS:
                cells = ABOUT | {
                    "ID": str(ident),
                    "Process ID": str(7 + process),
                    "Device": str(process),
                    "Kernel Name": kernel,
                    "Metric Name": name,
                    "Metric Unit": unit,
                    "Metric Value": foreign if german else english,
                }
                rows.append([cells.get(column, "") for column in columns])
    return rows


def _wide() -> list[list[str]]:
    """Header, units and rows of a raw page with one launch a row, and NVTX ranges."""
    nvtx = "1 Thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    about = [*COLUMNS_15[:11], nvtx]
    rows = [[*about, *(metric[0] for metric in METRICS)]]
    rows.append([*([""] * len(about)), *(metric[1] for metric in METRICS)])
    for ident, kernel in enumerate(KERNELS * 2):
        cells = ABOUT | {"ID": str(ident), "Kernel Name": kernel}
        cells[nvtx] = f"31 <default domain>:step_{ident // 3}:none:none:none:none:none:none"
        rows.append([*(cells[column] for column in about), *(metric[2] for metric in METRICS)])
    return rows


def _details() -> str:
    """A plain-text page with a section and a metrics table under each kernel."""
    text = "==PROF== Connected to process 12 (/usr/bin/app)\n[12] app@127.0.0.1\n"
    for kernel in KERNELS:
        text += f"  {kernel} (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 7.0\n"
        for section, rows in (
            ("GPU Speed Of Light Throughput", (("Duration", "us", "2.00"), ("SM", "%", "60.2"))),
            (ABOUT["Section Name"], tuple(metric[:3] for metric in METRICS)),
        ):
            ruler = f"    {'-' * 60} {'-' * 13} {'-' * 12}\n"
            body = "".join(
                f"    {name:60s} {unit:>13s} {value:>12s}\n" for name, unit, value in rows
            )
            head = f"    {'Metric Name':60s} {'Metric Unit':>13s} {'Metric Value':>12s}\n"
            text += f"    Section: {section}\n{ruler}{head}{ruler}{body}{ruler}\n"
    return text


def _transposed() -> list[list[str]]:
    """The desktop application's export: metrics down, launches across."""
    rows = [["", *(f"{index} - {kernel}" for index, kernel in enumerate(KERNELS))]]
    rows.append(["Function", *KERNELS])
    for name in ("Process ID", "Device", "CC", "Grid Size"):
        rows.append([name, *[ABOUT[name]] * len(KERNELS)])
    for name, unit, value, _ in METRICS:
        rows.append([f"{name} [{unit}]", *[f"{value} (+5.00%)"] * len(KERNELS)])
    return rows


def seeds() -> list[bytes]:
    """One log of every form that ncu and its users write."""
    usual = _csv(_long(COLUMNS_15))
    texts = [
        usual,
        _csv(_long(COLUMNS_15, german=True)),
        _csv(_long(COLUMNS_15, german=True), delimiter=";", quoted=False),
        _csv(_long(COLUMNS_12)),
        _csv(_long(COLUMNS_20)),
        _csv(_long(COLUMNS_15, processes=2)),
        _csv(_wide()),
        _csv(_wide(), quoted=False),
        _details(),
        _csv(_transposed()),
        _csv(_transposed(), delimiter="\t", quoted=False),
        "".join(NOISE) + usual,
    ]
    binary = [text.encode() for text in texts]
    return [*binary, usual.encode("utf-16"), usual.encode("utf-16-le"), usual.encode("utf-8-sig")]


# Mutations: bytes to bytes


def _lines(data: bytearray, source: random.Random) -> None:
    """Deletes, repeats, swaps or adds a line."""
    lines = bytes(data).splitlines(keepends=True)
    first, second = source.randrange(len(lines)), source.randrange(len(lines))
    match source.randrange(4):
        case 0:
            del lines[first]
        case 1:
            lines.insert(second, lines[first])
        case 2:
            lines[first], lines[second] = lines[second], lines[first]
        case _:
            lines.insert(first, source.choice(NOISE).encode())
    data[:] = b"".join(lines)


def _replace(data: bytearray, source: random.Random, cells: tuple[str, ...], first: bool) -> None:
    """Replaces a cell of some line (of the first with several, for headers) by another text."""
    lines = bytes(data).splitlines(keepends=True)
    delimiter = max((b'","', b",", b";", b"\t", b" "), key=bytes(data).count)
    wide = [index for index, line in enumerate(lines) if line.count(delimiter) > 2]
    if not wide:
        return
    chosen = wide[0] if first else source.choice(wide)
    fields = lines[chosen].split(delimiter)
    fields[source.randrange(len(fields))] = source.choice(cells).encode()
    lines[chosen] = delimiter.join(fields)
    data[:] = b"".join(lines)


def _cell(data: bytearray, source: random.Random) -> None:
    _replace(data, source, CELLS, first=False)


def _header(data: bytearray, source: random.Random) -> None:
    _replace(data, source, HEADERS, first=True)


MUTATIONS: Final[tuple[Callable[[bytearray, random.Random], None], ...]] = (
    *(
        fuzzing.flip,
        fuzzing.insert,
        fuzzing.delete,
        fuzzing.truncate,
        _lines,
        _lines,
        _cell,
        _cell,
        _cell,
        _header,
    ),
)


def mutated(pool: list[bytes], source: random.Random) -> bytes:
    """One of the pool, or the start of one and the end of another, with one to eight mutations."""
    data = bytearray(source.choice(pool))
    if source.random() < 0.2:
        other = source.choice(pool)
        at = source.randrange(len(other))
        data[source.randrange(len(data) + 1) :] = other[at:]
    for _ in range(source.choice((1, 1, 2, 3, 5, 8))):
        if data:
            source.choice(MUTATIONS)(data, source)
    return bytes(data)


def target(pool: list[bytes], folder: Path) -> fuzzing.Target:
    """The importer, fed with mutated files.

    Args:
        pool: Files to start from.
        folder: May be written to.
    """
    path = folder / "log.csv"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        import_files([path]).to_json(kernels=True)

    return fuzzing.Target("import", lambda source: mutated(pool, source), read)


def main() -> int:
    """Runs, prints the counts, and gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("seconds", type=float, metavar="SECONDS")
    parser.add_argument("files", nargs="*", metavar="FILE", type=Path, help="further files")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_intermixed_args()
    pool = [*seeds(), *(path.read_bytes() for path in arguments.files)]
    if not all(pool):
        parser.error("an empty file cannot be mutated")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        importer = target(pool, Path(folder))
        fuzzing.set_limits()
        counts = fuzzing.fuzz(importer, arguments.seconds, arguments.seed, FOUND)
    print(
        f"{arguments.seconds:g} s, seed {arguments.seed}, {len(pool)} files to start from: "
        + ", ".join(f"{count} {name}" for name, count in counts.items())
    )
    return 1 if counts[fuzzing.FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
