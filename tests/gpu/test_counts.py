"""Work of known size, counted in-process on a real GPU."""

import pytest
import torch
from workloads import copy, driver_copy, gemm, product, tf32, training_step

import roofprobe
from roofprobe import metrics

N = 4096
GEMM_FLOP = 2 * N**3  # multiply and add for each of N^3 products


def measure(step, **options):
    options = {"warmup": 3, "timed": 3, **options}
    record = roofprobe.measure_step(step, **options)
    assert record.complete
    return record, roofprobe.figures(record)


@pytest.mark.parametrize(
    ("path", "dtype", "allow_tf32"),
    [
        ("tensor_tf32", torch.float32, True),
        ("tensor_bf16", torch.bfloat16, False),
        ("tensor_fp16", torch.float16, False),
        ("tensor_fp64", torch.float64, False),
    ],
)
def test_gemm_on_tensor_cores_is_2mnk(path, dtype, allow_tf32):
    with tf32(allow_tf32):
        _, figures = measure(gemm(N, dtype))
    assert figures.flop[path].value == pytest.approx(GEMM_FLOP, rel=1e-3)
    others = [v.value for p, v in figures.flop.items() if p.startswith("tensor_") and p != path]
    assert others == [0.0] * 5
    # SASS adds next to nothing: these kernels' arithmetic is all on tensor cores.
    assert figures.flop_total.value == pytest.approx(GEMM_FLOP, rel=1e-3)


def test_fp32_gemm_on_cuda_cores_is_2mnk():
    with tf32(False):
        record, figures = measure(gemm(N, torch.float32))
    assert figures.flop["sass_fp32"].value == pytest.approx(GEMM_FLOP, rel=5e-3)
    assert figures.flop_total.value == pytest.approx(GEMM_FLOP, rel=5e-3)
    assert figures.study.reason is None
    assert record.coverage.trusted


DMUL = "smsp__sass_thread_inst_executed_op_dmul_pred_on.sum"


def test_fp64_instructions_are_instrumented_only_where_the_fp64_pipe_did_something():
    elements = 2**24
    record, figures = measure(product(elements, torch.float32))
    passes = record.rounds[0].passes
    assert record.value(metrics.gate_of("GH100").name) == 0
    assert record.value(DMUL) == 0
    assert figures.flop["sass_fp32"].value == elements
    assert figures.flop["sass_fp64"].value == 0
    # Every round counts fp64 then, the first one after as many passes without.
    record, figures = measure(product(elements, torch.float64), rounds=2)
    assert [counted.passes for counted in record.rounds] == [2 * passes, passes]
    assert [counted.counters[DMUL] for counted in record.rounds] == [elements, elements]
    assert figures.flop["sass_fp64"].value == elements
    assert figures.flop["sass_fp32"].value == 0
    assert figures.flop_total.value == elements


def test_a_loop_that_ends_before_fp64_was_counted_says_how_many_steps_it_lacks():
    step = product(2**20, torch.float64)
    with roofprobe.measure(warmup=1, timed=2, kernels=False) as probe:
        for _ in probe.steps(range(1 + 2 + 8)):
            step()
    record = probe.result
    assert not record.complete
    assert record.steps_missing == 6  # of 7 passes twice, 8 were run
    assert roofprobe.figures(record).flop["sass_fp64"].value is None


def test_a_graph_has_the_sass_counters_of_an_eager_run_where_that_was_asked():
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
        alone, hidden = measure(graph.replay)
        assert hidden.flop["sass_fp32"].value is None
        record, figures = measure(graph.replay, eager=step)
    assert figures.flop["sass_fp32"].value == pytest.approx(2 * 1024**3, rel=5e-3)
    assert figures.flop["sass_fp32"].source == "cupti, eager run"
    assert figures.byte["dram"].source == "cupti"
    assert all(abs(ratio - 1) < 0.02 for ratio in record.eager.agreement.values())
    assert alone.eager is None
    # Another step is not taken for it.
    with tf32(False):
        other, figures = measure(graph.replay, eager=gemm(512, torch.float32))
    assert figures.flop["sass_fp32"].value is None
    assert "SASS counters stay out" in " ".join(other.warnings)


def test_study_misses_a_tf32_gemm():
    with tf32(True):
        _, figures = measure(gemm(N, torch.float32))
    assert figures.study.ratio > 50
    assert "tensor cores" in figures.study.reason
    assert "TF32" in figures.study.reason


def test_copy_moves_its_bytes():
    size = 2 * 2**30
    _, figures = measure(copy(size))
    assert figures.byte["dram_read"].value == pytest.approx(size, rel=0.01)
    assert figures.byte["dram_write"].value == pytest.approx(size, rel=0.01)
    # x + 0 is one fused multiply-add an element: a + alpha * b.
    assert figures.flop["sass_fp32"].value == pytest.approx(2 * size / 4, rel=1e-3)


def test_driver_copy_is_recognised_and_does_no_arithmetic():
    record, figures = measure(driver_copy(2 * 2**30))
    assert record.coverage.instrumented == 0
    assert record.coverage.trusted, record.coverage
    assert figures.flop_total.value == 0
    assert figures.byte["dram_read"].value == pytest.approx(2 * 2**30, rel=0.01)


def test_backward_of_a_matmul_is_twice_its_forward():
    a = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    b = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    seed = torch.randn(2048, 2048, device="cuda")

    def forward():
        with torch.no_grad():
            torch.mm(a, b)

    def both():
        torch.mm(a, b).backward(seed)
        a.grad = b.grad = None

    with tf32(True):
        _, once = measure(forward)
        _, thrice = measure(both)
    forward_flop = once.flop["tensor_tf32"].value
    assert forward_flop == pytest.approx(2 * 2048**3, rel=1e-3)
    assert thrice.flop["tensor_tf32"].value == pytest.approx(3 * forward_flop, rel=1e-3)


def test_rounds_give_a_spread():
    record, figures = measure(training_step("resnet18", 16), rounds=3)
    assert len(record.rounds) == 3
    assert figures.flop_total.spread < 1e-3
    assert 0 <= figures.byte["dram"].spread < 0.05


@pytest.mark.parametrize(
    "options",
    [{"compiled": True}, {"amp": torch.bfloat16, "channels_last": True}, {"amp": torch.float16}],
    ids=["compile", "bf16", "fp16"],
)
def test_compiled_and_autocast_models_measure(options):
    record, figures = measure(training_step("resnet18", 16, **options), warmup=6)
    assert record.coverage.trusted, record.coverage
    # 16 images of 1.814 GMAC: two FLOP a MAC, forward and twice that backward, less the first
    # convolution's unneeded input gradient (0.118 GMAC).
    expected = 16 * 2 * (3 * 1.814e9 - 0.118e9)
    assert figures.flop_total.value == pytest.approx(expected, rel=0.35)
    assert figures.intensity["dram"].value > 1


def test_an_unavailable_metric_drops_out_by_name():
    record, _ = measure(
        gemm(512, torch.float32),
        metrics=["dram__bytes_read.sum", "dram__no_such_thing.sum", "lts__t_bytes.sum"],
    )
    assert "does not exist on chip" in record.unavailable["dram__no_such_thing.sum"]
    assert record.value("dram__no_such_thing.sum") is None
    assert record.value("lts__t_bytes.sum") > 0


def test_named_sets_measure():
    for name in ("study", "fp32", "memory"):
        record, figures = measure(gemm(1024, torch.float32), metrics=name)
        assert not record.unavailable, name
        assert figures.byte["dram"].value > 0
        # None of them counts tensor cores, so none of them knows the total.
        assert figures.flop_total.value is None


def test_kernel_times_fit_the_step():
    with tf32(False):
        record, figures = measure(gemm(N, torch.float32))
    assert record.kernels.launches == 1
    assert figures.kernel_time.value == pytest.approx(figures.step_time.value, rel=0.1)
    assert figures.busy_time.value == pytest.approx(figures.kernel_time.value, rel=1e-6)
