"""How fast is a large log read? Writes a CSV of a million rows and imports it.

    python harness/import_benchmark.py

The log has what real ones have: 15 columns, quotes, thousands, template names with commas, program
output between the rows. Prints seconds and peak memory of the import alone, in a process of its
own; the targets are 10 s and 300 MB on two cores.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def main() -> None:
    """Writes, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        write(path, arguments.rows)
        size = path.stat().st_size
        command = [sys.executable, __file__, "--measure", str(path)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    body = json.loads(done.stdout)
    print(
        f"{arguments.rows} rows, {size / 1e6:.0f} MB, {body['launches']} launches: "
        f"{body['seconds']:.2f} s, peak {body['peak_byte'] / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
