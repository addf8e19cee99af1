"""Single kernels under the ncu that is installed, on work of known size."""

import shutil
import subprocess
import sys
import textwrap

import pytest

from roofprobe.kernel_parts import kernel_parts
from roofprobe.record import Measurement

SIZE = 2048
FILL = 64 * 2**20  # values, more than an H200's L2 holds

PROGRAM = f"""
    import sys
    import torch, roofprobe

    torch.manual_seed(0)
    a = torch.randn({SIZE}, {SIZE}, device="cuda", dtype=torch.bfloat16)
    b = torch.randn({FILL}, device="cuda")
    c = torch.empty_like(b)

    def step():
        a @ a
        torch.mul(b, 2.0, out=c)
        torch.mul(b, 3.0, out=c)

    roofprobe.measure_step(step, "kernels", by="kernel").save(sys.argv[1])
"""


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> tuple[Measurement, str]:
    if shutil.which("ncu") is None:
        pytest.skip("needs ncu")
    folder = tmp_path_factory.mktemp("kernels")
    program, run = folder / "program.py", folder / "run.json"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(program), str(run)]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, "-m", "roofprobe", "kernels", str(run), "--stall", "60", "--", *command],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Measurement.load(run), done.stdout


def test_every_kernel_is_found_under_its_name(counted):
    record, said = counted
    assert said.startswith("=> ncu replays 3 launches of ")
    assert record.regions.counted.left_out == {}, record.regions.counted.left_out
    assert all(kernel.counters for kernel in record.regions.kernels)
    assert sum(kernel.launches for kernel in record.regions.kernels) == 3


def test_flop_and_bytes_are_those_of_the_work(counted):
    record, _ = counted
    parts = list(kernel_parts(record))
    product = max(parts, key=lambda part: part.counted.flop["tensor_bf16"].value)
    assert product.counted.flop["tensor_bf16"].value == pytest.approx(2 * SIZE**3, rel=1e-3)
    (scaled,) = (part for part in parts if part is not product)
    assert scaled.kernel.launches == 2
    # A product for each value, in each launch; reads are cold, what is written last stays in L2.
    assert scaled.counted.flop["sass_fp32"].value == pytest.approx(2 * FILL, rel=1e-2)
    assert scaled.counted.byte["dram_read"].value == pytest.approx(2 * 4 * FILL, rel=0.05)
    assert scaled.part.verdict.level == "dram"


def test_the_range_profiler_counts_the_same_flop(counted):
    record, _ = counted
    name = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
    together = sum(kernel.counters[name] for kernel in record.regions.kernels)
    assert together == pytest.approx(record.value(name), rel=1e-3)
