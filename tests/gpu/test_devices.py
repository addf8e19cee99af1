"""Several devices, and several contexts on one, in one process."""

import ctypes
import os
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest
import torch
from workloads import gemm

import roofprobe
from roofprobe.errors import ForeignContextError
from roofprobe.record import Measurement

BF16 = "tensor_bf16"
BLOCKS = "sm__ctas_launched.sum"


def product(size: int, device: int):
    a = torch.randn(size, size, device=f"cuda:{device}", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, a, out=out)


@pytest.mark.parametrize("device", [0, 1])
def test_each_device_counts_its_own_work(device):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    sizes = (2048, 4096)
    steps = [product(size, index) for index, size in enumerate(sizes)]

    def step():
        for each in steps:
            each()

    assert torch.cuda.current_device() == 0
    record = roofprobe.measure_step(step, device=device, warmup=2, timed=2)
    assert record.complete
    assert torch.cuda.current_device() == 0
    assert record.environment.uuid.endswith(str(torch.cuda.get_device_properties(device).uuid))
    found = roofprobe.figures(record)
    assert found.flop[BF16].value == pytest.approx(2 * sizes[device] ** 3, rel=1e-3)
    # A product takes longer than half its least time at 989 TFLOP/s, on its own device.
    assert found.step_time.value > 0.5 * 2 * sizes[device] ** 3 / 989e12


def test_work_on_another_device_alone_is_no_work_of_this_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    record = roofprobe.measure_step(product(4096, 1), device=0, warmup=2, timed=2)
    found = roofprobe.figures(record)
    assert found.flop[BF16].value == 0


@pytest.fixture(scope="module")
def another_context():
    """A context of somebody's own on the first device: makes it current for a while."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, popped = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0

    @contextmanager
    def current():
        assert driver.cuCtxPushCurrent_v2(context) == 0
        try:
            yield
        finally:
            assert driver.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0
            assert popped.value == context.value

    yield current
    assert driver.cuCtxDestroy_v2(context) == 0


def test_another_context_that_is_current_is_refused(another_context):
    step = gemm(2048, torch.bfloat16)
    step()
    torch.cuda.synchronize()
    with (
        another_context(),
        pytest.raises(ForeignContextError, match="a library made for itself"),
    ):
        roofprobe.measure_step(step, warmup=2, timed=2, backend="cupti")
    record = roofprobe.measure_step(step, warmup=2, timed=2, backend="cupti")
    assert roofprobe.figures(record).flop[BF16].value == pytest.approx(2 * 2048**3, rel=1e-3)


def test_kernels_of_another_context_void_the_counters(another_context):
    step = gemm(2048, torch.bfloat16)
    other = gemm(1024, torch.bfloat16)
    other()

    def both():
        step()
        torch.cuda.synchronize()
        with another_context():
            other()
            torch.cuda.synchronize()

    record = roofprobe.measure_step(both, warmup=2, timed=2, backend="cupti")
    assert (record.kernels.launches, record.kernels.elsewhere) == (2, 1)
    assert roofprobe.figures(record).flop[BF16].value is None
    assert record.notes["counters"].startswith("1 of 2 kernels ran in a CUDA context")
    again = roofprobe.measure_step(step, warmup=2, timed=2, backend="cupti")
    assert roofprobe.figures(again).flop[BF16].value == pytest.approx(2 * 2048**3, rel=1e-3)
    assert again.value(BLOCKS) == again.kernels.blocks > 0


GREEN = """
    import sys
    import torch
    from torch.cuda.green_contexts import GreenContext
    from workloads import gemm
    import roofprobe
    step = gemm(2048, torch.bfloat16)
    step()
    torch.cuda.synchronize()
    green = GreenContext.create(num_sms=64, device_id=0)
    def on_some_sms():
        green.set_context()
        step()
        torch.cuda.synchronize()
        green.pop_context()
    roofprobe.measure_step(on_some_sms, warmup=2, timed=2, backend="cupti").save(sys.argv[1])
"""


def test_green_contexts_are_counted(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GREEN), str(tmp_path / "run.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    record = Measurement.load(tmp_path / "run.json")
    assert (record.kernels.launches, record.kernels.elsewhere) == (1, 1)
    assert record.value(BLOCKS) == record.kernels.blocks > 0
    assert roofprobe.figures(record).flop[BF16].value == pytest.approx(2 * 2048**3, rel=1e-3)
