"""How fast is a large log read? Writes a CSV of a million rows and imports it.

    python harness/import_benchmark.py [RESULT.json]

The log has what real ones have: 15 columns, quotes, thousands, template names with commas, program
output between the rows. Prints seconds and peak memory of the import alone, in a process of its
own, and the machine with its load. Ends with 1 above 10 s or 300 MB, the targets for a million
rows on two cores.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COLUMNS = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC", "Section Name"),
    *("Metric Name", "Metric Unit", "Metric Value"),
)
# The metrics of a roofline: what the README suggests to record.
METRICS = (
    ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst"),
    ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst"),
    ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst"),
    ("sm__ops_path_tensor_src_tf32_dst_fp32.sum", "op"),
    ("dram__bytes_read.sum", "byte"),
    ("dram__bytes_write.sum", "byte"),
    ("lts__t_bytes.sum", "byte"),
    ("l1tex__t_bytes.sum", "byte"),
    ("gpu__time_duration.sum", "ns"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
)
KERNELS = tuple(
    f"void at::native::vectorized_elementwise_kernel<{n}, at::native::add<float>, "
    f"std::array<char *, 3>>(int, T2, T3)"
    for n in range(40)
)
NOISE_EVERY = 1000  # rows
MOST_SECONDS = 10.0
MOST_BYTE = 300e6


def write(path: Path, rows: int) -> None:
    """Writes the log."""
    with path.open("w", encoding="utf-8") as log:
        log.write("==PROF== Connected to process 42 (/usr/bin/python3)\n")
        log.write(",".join(f'"{name}"' for name in COLUMNS) + "\n")
        for row in range(rows):
            launch, metric = divmod(row, len(METRICS))
            name, unit = METRICS[metric]
            about = (
                f'"{launch}","42","python3","127.0.0.1","{KERNELS[launch % len(KERNELS)]}","1","7",'
                '"(256, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics"'
            )
            value = f"{row % 100}.25" if unit == "%" else f"{1000 + row * 7919 % 10**8:,}"
            log.write(f'{about},"{name}","{unit}","{value}"\n')
            if row % NOISE_EVERY == 0:
                log.write(f"step {row}, loss 0.70\n")


def measure(path: Path) -> None:
    """Imports the log in this process and prints figures as JSON."""
    from roofprobe.ncu_import import import_files

    start = time.perf_counter()
    found = import_files([path])
    found.to_json(kernels=True)
    body = {
        "seconds": time.perf_counter() - start,
        "peak_byte": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "launches": found.whole.launches,
        "flop_total": found.whole.flop["total"],
    }
    print(json.dumps(body))


def machine() -> dict[str, Any]:
    """What the figures depend on; a load above 0 makes the seconds too many."""
    model = platform.processor() or platform.machine()
    about = Path("/proc/cpuinfo")
    for line in about.read_text().splitlines() if about.exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def exceeded(result: dict[str, Any]) -> list[str]:
    """Targets that a result misses, in words."""
    found = []
    if result["seconds"] > MOST_SECONDS:
        found.append(f"{result['seconds']:.2f} s, and {MOST_SECONDS:g} s is the target")
    if result["peak_byte"] > MOST_BYTE:
        found.append(
            f"{result['peak_byte'] / 1e6:.0f} MB, and {MOST_BYTE / 1e6:.0f} MB is the target"
        )
    return found


def main() -> int:
    """Writes, measures and prints; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("result", nargs="?", type=Path, help="JSON file to write the figures to")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return 0
    where = machine()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        write(path, arguments.rows)
        size = path.stat().st_size
        command = [sys.executable, __file__, "--measure", str(path)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result = {"rows": arguments.rows, "file_byte": size, **json.loads(done.stdout), **where}
    print(
        f"{arguments.rows} rows, {size / 1e6:.0f} MB, {result['launches']} launches: "
        f"{result['seconds']:.2f} s, peak {result['peak_byte'] / 1e6:.0f} MB"
    )
    print(
        f"on {where['cpu']}, {where['cores']} cores, load {where['load_before']:.2f} before, "
        f"Python {where['python']}"
    )
    if arguments.result:
        arguments.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    missed = exceeded(result)
    for text in missed:
        print(f"too much: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
