"""Kernels built to be bound by one thing each, judged by ceilings of this GPU and of its sheet."""

import pytest
import torch
from workloads import copy, gemm, tf32, training_step

import roofprobe
from roofprobe.ceilings import kernels
from roofprobe.judge import NEAR

MIB = 2**20


@pytest.fixture(scope="module")
def roofs(gpu_ceilings):
    assert gpu_ceilings.complete, gpu_ceilings.left_out
    return gpu_ceilings.roofs


def measure(step, **options):
    record = roofprobe.measure_step(step, **{"warmup": 3, "timed": 5, **options})
    assert record.complete
    return record


@pytest.mark.parametrize(
    ("path", "dtype", "allow_tf32"),
    [
        ("tensor_bf16", torch.bfloat16, False),
        ("tensor_tf32", torch.float32, True),
        ("sass_fp32", torch.float32, False),
    ],
)
def test_a_large_gemm_is_bound_by_arithmetic(roofs, path, dtype, allow_tf32):
    with tf32(allow_tf32):
        record = measure(gemm(8192, dtype))
    for given, basis in ((roofs, "measured"), ((), "datasheet")):
        found = roofprobe.verdict(record, roofs=given)
        assert found.bound == "compute", found.sentences
        assert found.basis == basis, found.sentences
        assert found.compute.ceiling.path in (path, None)
    # FP32 products reach four fifths of what chains of FMAs do.
    assert 0.75 < roofprobe.verdict(record, roofs=roofs).fraction < 1.06


def test_a_copy_is_bound_by_dram(roofs):
    record = measure(copy(2 * 2**30))
    for given in (roofs, ()):
        found = roofprobe.verdict(record, roofs=given)
        assert (found.bound, found.level) == ("memory", "dram"), found.sentences
    assert roofprobe.verdict(record, roofs=roofs).fraction == pytest.approx(1, abs=0.1)


def test_tiny_kernels_are_bound_by_launches(roofs):
    value = torch.zeros(1, device="cuda")

    def step():
        for _ in range(1000):
            value.add_(1)

    record = measure(step)
    for given in (roofs, ()):
        found = roofprobe.verdict(record, roofs=given)
        assert (found.bound, found.cause) == ("latency", "launch"), found.sentences
        assert found.idle.value > 0.4
        assert found.fraction < 0.1


def test_reads_that_stay_in_l2_are_bound_by_l2(roofs):
    device = torch.device("cuda", torch.cuda.current_device())
    data = torch.randn(12 * MIB // 4, device=device)
    record = measure(kernels.reads(device, data, 8 * 2**30).run)
    found = roofprobe.verdict(record, roofs=roofs)
    assert (found.bound, found.level) == ("memory", "l2"), found.sentences
    assert found.fraction >= NEAR


def test_reads_that_stay_in_l1_are_bound_by_l1(roofs):
    device = torch.device("cuda", torch.cuda.current_device())
    data = torch.randn(kernels.l1_byte(device) // 4, device=device)
    record = measure(kernels.l1_reads(device, data, 32 * 2**30).run)
    found = roofprobe.verdict(record, roofs=roofs)
    assert (found.bound, found.level, found.basis) == ("memory", "l1", "measured"), found.sentences
    assert found.fraction == pytest.approx(1, abs=0.1)


def test_elementwise_passes_over_what_l2_holds_are_closest_to_l2(roofs):
    data = torch.randn(16 * MIB // 4, device="cuda")
    for _ in range(3):
        data.mul_(0.999)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(200):
            data.mul_(0.999)
    found = roofprobe.verdict(measure(graph.replay), roofs=roofs)
    assert found.closest.name == "L2", found.sentences
    # SASS counters see nothing of a graph, so that arithmetic is not judged, and that is said.
    assert "compute" in {each.name for each in found.unknown}


def test_a_training_step_says_why_it_is_at_no_roof(roofs):
    record = measure(training_step("resnet18", 256))
    found = roofprobe.verdict(record, roofs=roofs)
    assert found.fraction < NEAR
    assert found.bound in ("latency", None)
    assert found.cause != "launch"
    assert found.time_at_roof < found.step_time.value
