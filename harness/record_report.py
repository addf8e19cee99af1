"""Records an ncu report of known work, for tests of the importer that have no GPU.

    python harness/record_report.py tests/data/ncu-report

The report comes with what ncu itself exports of it, as CSV. Own kernels keep it small: of a
library's, ncu stores the machine code of much else.
"""

import subprocess
import sys
from pathlib import Path

import torch

from roofprobe.ceilings import kernels

ROUNDS = 64
READ = 2**30  # bytes

METRICS = (
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_bytes.sum",
    "l1tex__t_bytes.sum",
)


def work() -> None:
    """Two chains of FMAs and a read, between the profiler's start and stop."""
    device = torch.device("cuda", 0)
    chains = kernels.fma_chains(device, "fp32", ROUNDS)
    read = kernels.reads(device, torch.zeros(READ // 4, device=device), READ)
    for launch in (chains, read):
        launch.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    with torch.cuda.nvtx.range("arithmetic"):
        chains.run()
        chains.run()
    read.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    print(chains.work, read.work)


def main(folder: str) -> None:
    """Records the report into ``folder``."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    report = Path(folder, "kernels.ncu-rep")
    command = [
        *("ncu", "--profile-from-start", "off", "--clock-control", "none", "--nvtx"),
        *("--metrics", ",".join(METRICS), "--force-overwrite", "--export", str(report)),
        *(sys.executable, __file__),
    ]
    subprocess.run(command, check=True)
    export = ["ncu", "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    text = subprocess.run(export, check=True, capture_output=True, text=True).stdout
    report.with_suffix(".csv").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else work()
