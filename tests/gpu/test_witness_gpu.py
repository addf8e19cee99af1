"""The analytic model of a step beside the counters of the same step, on a real GPU."""

import pytest
import torch
from workloads import gemm, tf32, training_step

import roofprobe
from roofprobe import report
from roofprobe.witness import witness

N = 4096


def measured(step, **options):
    told = []
    options = {"warmup": 3, "timed": 3, "witness": True, "progress": told.append, **options}
    record = roofprobe.measure_step(step, **options)
    print(report.text(record))
    assert record.complete
    assert record.notes.get("witness") is None
    assert [event.phase for event in told if event.index][-2:] == ["witness", "done"]
    (plan,) = [event for event in told if event.phase == "plan"]
    assert plan.message.endswith(", 1 under the analytic model")
    return record, witness(record)


@pytest.mark.parametrize(
    ("dtype", "allow_tf32", "size"),
    [
        (torch.float32, True, 4),
        (torch.float32, False, 4),
        (torch.bfloat16, False, 2),
        (torch.float64, False, 8),
    ],
)
def test_a_product_has_its_flop_and_its_bytes(dtype, allow_tf32, size):
    with tf32(allow_tf32):
        record, found = measured(gemm(N, dtype))
    assert found.flop.algorithmic == 2 * N**3
    assert found.flop.ratio == pytest.approx(1, rel=0.01)
    assert found.flop.verdict == "agrees"
    # Two matrices are read and one is written. Tiles read their operands more than once (recorded:
    # 1.8 to 4.0 times), and L2 may still hold some of the result.
    assert found.byte.algorithmic == 3 * N**2 * size
    assert 0.7 < found.byte.ratio < 5
    assert found.byte.verdict in ("agrees", "explained")
    assert record.overhead["witness"] > 0


def test_nothing_that_was_measured_is_different():
    with tf32(True):
        step = training_step("resnet18", 16)
        plain = roofprobe.figures(roofprobe.measure_step(step, warmup=3, timed=3))
        record, _ = measured(step)
    figures = roofprobe.figures(record)
    assert figures.flop_total.value == pytest.approx(plain.flop_total.value, rel=0.01)
    assert figures.byte["dram"].value == pytest.approx(plain.byte["dram"].value, rel=0.05)
    # 1.814 GMAC an image, 2 FLOP each, 3 passes, without the gradient of the images.
    assert sum(record.witness.flop.values()) == pytest.approx(
        16 * (6 * 1.814e9 - 2 * 64 * 112**2 * 147), rel=1e-3
    )


def test_convolutions_without_tf32_are_winograd_s():
    with tf32(False):
        _, found = measured(training_step("resnet18", 64))
    assert found.flop.ratio < 0.9
    assert found.flop.causes[0].startswith("Winograd")


def test_a_compiled_step_is_modelled_and_stays_compiled():
    with tf32(True):
        step = training_step("resnet18", 16, compiled=True)
        record, found = measured(step)
        again, _ = measured(step)
    assert found.flop.ratio == pytest.approx(1, rel=0.1)
    assert again.kernels.launches == record.kernels.launches


def test_a_graph_hides_its_operators_and_an_eager_run_shows_them():
    a = torch.randn(1024, 1024, device="cuda")
    b, out = torch.randn_like(a), torch.empty_like(a)

    def step():
        torch.mm(a, b, out=out)
        torch.relu_(out)

    with tf32(False):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        _, hidden = measured(graph.replay)
        options = {"warmup": 3, "timed": 3, "witness": True, "eager": step}
        shown = witness(roofprobe.measure_step(graph.replay, **options))
    assert hidden.flop.verdict == "unknown"
    assert shown.flop.algorithmic == 2 * 1024**3
    assert shown.flop.ratio == pytest.approx(1, rel=0.01)
