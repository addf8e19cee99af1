"""The cross-check against the ncu that is installed, on work of known size and on two ranks."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from roofprobe.record import Measurement


@pytest.fixture(autouse=True)
def _ncu_is_there():
    if shutil.which("ncu") is None:
        pytest.skip("needs ncu")


PROGRAM = """
    import os, sys
    import torch, roofprobe

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(rank)
    if world > 1:
        torch.distributed.init_process_group("nccl")
    torch.manual_seed(0)
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    # Five times what L2 holds: a smaller product's writes differ by 4% between runs.
    b = torch.randn(8192, 8192, device="cuda")

    def step():
        a @ a
        b @ b
        if world > 1:
            torch.distributed.all_reduce(b)
            b.div_(world)

    record = roofprobe.measure_step(step, "products", workload={"world_size": world})
    if rank == 0:
        record.save(sys.argv[1])
    if world > 1:
        torch.distributed.destroy_process_group()
"""


def verified(tmp_path: Path, launcher: list[str]) -> tuple[int, Measurement, str]:
    program, run = tmp_path / "program.py", tmp_path / "run.json"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [*launcher, str(program), str(run)]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, "-m", "roofprobe", "verify", str(run), "--stall", "60", "--", *command],
        capture_output=True,
        text=True,
        timeout=400,
    )
    return done.returncode, Measurement.load(run), done.stdout + done.stderr


def test_products_agree_with_ncu(tmp_path):
    code, record, text = verified(tmp_path, [sys.executable])
    assert code == 0, text
    rows = {(row.metric, row.mode): row for row in record.crosscheck.counters}
    tensor = rows["sm__ops_path_tensor_src_bf16_dst_fp32.sum", "kernel replay"]
    assert tensor.other == pytest.approx(2 * 4096**3, rel=1e-3)
    assert len(record.rounds) == 1  # the program under ncu wrote nothing over it


def test_two_ranks_with_nccl_neither_hang_nor_differ(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    code, record, text = verified(tmp_path, torchrun)
    assert code == 0, text
    assert "nccl kernels" in record.crosscheck.left_out
