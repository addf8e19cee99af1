"""Several devices, and several contexts on one, in one process."""

import ctypes

import pytest
import torch
from workloads import gemm

import roofprobe

BF16 = "tensor_bf16"


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


def test_pytorchs_own_context_is_counted_where_another_one_is_current():
    driver = ctypes.CDLL("libcuda.so.1")
    step = gemm(2048, torch.bfloat16)
    step()
    torch.cuda.synchronize()
    context, current = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    try:
        assert driver.cuCtxGetCurrent(ctypes.byref(current)) == 0
        assert current.value == context.value
        record = roofprobe.measure_step(step, warmup=2, timed=2)
    finally:
        assert driver.cuCtxDestroy_v2(context) == 0
    # PyTorch makes its own context current for its work, and that is what is counted.
    assert roofprobe.figures(record).flop[BF16].value == pytest.approx(2 * 2048**3, rel=1e-3)
