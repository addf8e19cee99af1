"""GPM's figures against CUPTI's, of the same step on a real GPU."""

import pytest
import torch
from workloads import copy, gemm, tf32, training_step

import roofprobe
from roofprobe.counters.gpm import GpmBackend
from roofprobe.errors import UnsupportedDeviceError


def both(step, **options):
    """Figures of GPM and of CUPTI."""
    found = {}
    for backend in ("gpm", "cupti"):
        record = roofprobe.measure_step(step, backend=backend, kernels=False, **options)
        assert record.complete
        assert record.source == backend
        found[backend] = roofprobe.figures(record)
    return found["gpm"], found["cupti"]


@pytest.fixture(scope="module", autouse=True)
def supported():
    if torch.cuda.get_device_capability() < (9, 0):
        with pytest.raises(UnsupportedDeviceError, match="Hopper or newer"):
            GpmBackend(0, torch.cuda.synchronize).prepare([])
        pytest.skip("needs an NVIDIA GPU")


@pytest.mark.parametrize("batch", [64, 256])
def test_resnet18(batch):
    gpm, cupti = both(training_step("resnet18", batch))
    assert gpm.byte["dram"].value == pytest.approx(cupti.byte["dram"].value, rel=0.05)
    flop = cupti.flop["tensor_tf32"].value
    assert gpm.flop["tensor_tf32"].value == pytest.approx(flop, rel=0.05)
    assert gpm.flop["tensor_bf16"].value == gpm.flop["tensor_fp64"].value == 0
    # Bounds hold.
    assert gpm.flop["sass_fp32"].value >= 0.95 * cupti.flop["sass_fp32"].value
    assert gpm.flop_total.value >= 0.95 * cupti.flop_total.value


def test_autocast_is_seen_in_the_operands():
    gpm, cupti = both(training_step("resnet18", 256, amp=torch.bfloat16, channels_last=True))
    flop = cupti.flop["tensor_bf16"].value
    assert gpm.flop["tensor_bf16"].value == pytest.approx(flop, rel=0.1)  # its stated error
    assert gpm.flop["tensor_tf32"].value == 0
    assert gpm.byte["dram"].value == pytest.approx(cupti.byte["dram"].value, rel=0.05)


@pytest.mark.parametrize(
    ("path", "dtype", "error"),
    [("tensor_bf16", torch.bfloat16, 0.1), ("tensor_fp64", torch.float64, 0.05)],
)
def test_gemm_is_2mnk_whatever_the_clock(path, dtype, error):
    gpm = roofprobe.figures(roofprobe.measure_step(gemm(8192, dtype), backend="gpm", kernels=False))
    assert gpm.flop[path].value == pytest.approx(2 * 8192**3, rel=error)


def test_fp32_gemm_on_cuda_cores_is_bounded_by_its_ffma():
    with tf32(False):
        record = roofprobe.measure_step(gemm(8192, torch.float32), backend="gpm", kernels=False)
    found = roofprobe.figures(record)
    assert found.flop["sass_fp32"].value >= 0.95 * 2 * 8192**3
    assert found.flop["sass_fp32"].upper_bound


def test_a_copy_moves_its_bytes():
    gpm = roofprobe.figures(roofprobe.measure_step(copy(2**31), backend="gpm", kernels=False))
    assert gpm.byte["dram"].value == pytest.approx(2 * 2**31, rel=0.05)


def test_steps_are_as_fast_as_unprofiled_ones():
    record = roofprobe.measure_step(training_step("resnet18", 64), backend="gpm", kernels=False)
    taken = record.overhead["passes"] / (record.rounds[0].passes * record.timing.median)
    assert taken < 0.1
