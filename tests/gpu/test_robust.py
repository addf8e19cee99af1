"""What must not go wrong around a measurement on a real GPU."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from workloads import gemm, tf32, training_step

import roofprobe
from roofprobe.errors import MeasurementActiveError

QUICK = {"warmup": 2, "timed": 2}


class BrokenStepError(Exception):
    pass


def median_step(step, count=20):
    for _ in range(5):
        step()
    pairs = []
    for _ in range(count):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        step()
        pair[1].record()
        pairs.append(pair)
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in pairs)[count // 2]


def test_inside_torch_profiler_sass_is_withheld():
    step = training_step("resnet18", 8)
    with profile(activities=[ProfilerActivity.CUDA]):
        record = roofprobe.measure_step(step, **QUICK)
    assert record.coverage.fraction == 0
    assert not record.coverage.trusted
    assert "profiler" in record.coverage.cause
    assert record.value("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum") is None
    assert "profiler" in record.notes["kernels"]
    figures = roofprobe.figures(record)
    assert figures.flop["sass_fp32"].value is None
    assert figures.flop_total.value is None
    assert figures.flop["tensor_tf32"].value > 1e10
    assert figures.byte["dram"].value > 1e8


def test_after_torch_profiler_kernel_times_are_in_seconds():
    step = gemm(4096, torch.float32)
    with tf32(False):
        with profile(activities=[ProfilerActivity.CUDA]):
            step()
        record = roofprobe.measure_step(step, **QUICK)
    # Kineto leaves a clock of processor ticks behind; unscaled, this would read 2.1 times as long.
    assert record.kernels.sum == pytest.approx(record.timing.median, rel=0.1)


def test_cuda_graph_is_recognised():
    step = training_step("resnet18", 8)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    record = roofprobe.measure_step(graph.replay, **QUICK)
    assert record.coverage.fraction == 0
    assert "CUDA graph" in record.coverage.cause
    figures = roofprobe.figures(record)
    assert figures.flop["sass_fp32"].value is None
    assert figures.flop["tensor_tf32"].value > 1e10


def test_half_a_step_in_a_graph_is_recognised():
    step = training_step("resnet18", 8)
    small = torch.randn(1024, 1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        small.mul(2).add(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            small.mul(2).add(1)

    def both():
        step()
        graph.replay()

    record = roofprobe.measure_step(both, **QUICK)
    assert 0.1 < record.coverage.fraction < 0.98
    assert not record.coverage.trusted


def test_an_exception_in_a_step_leaves_the_next_measurement_working():
    step = gemm(512, torch.float32)
    with roofprobe.measure(**QUICK) as probe:
        needed = probe.steps_needed
        for _ in range(needed):
            with probe.step():
                step()
    assert probe.result.complete

    for fail_at in range(needed):
        calls = iter(range(needed))

        def failing(calls=calls, fail_at=fail_at):
            step()
            if next(calls) == fail_at:
                raise BrokenStepError

        with pytest.raises(BrokenStepError):
            roofprobe.measure_step(failing, **QUICK)
    assert roofprobe.measure_step(step, **QUICK).complete


def test_a_second_measurement_inside_a_first_is_refused():
    with roofprobe.measure(**QUICK), pytest.raises(MeasurementActiveError, match="inside another"):
        roofprobe.measure_step(lambda: None)
    assert roofprobe.measure_step(gemm(512, torch.float32), **QUICK).complete


def test_200_sessions_leak_nothing():
    import resource

    step = gemm(512, torch.float32)
    options = {"warmup": 0, "timed": 1, "metrics": "memory", "kernels": False}
    for _ in range(10):
        roofprobe.measure_step(step, **options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    free = torch.cuda.mem_get_info()[0]
    values = set()
    for _ in range(200):
        record = roofprobe.measure_step(step, **options)
        values.add(round(record.value("l1tex__t_bytes.sum") / 1e5))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 20, f"{grown} MiB"
    assert free - torch.cuda.mem_get_info()[0] < 16 * 2**20
    assert len(values) <= 2


def test_step_time_afterwards_is_step_time_before():
    # A batch that the GPU takes longer over than the CPU: what is left behind in the GPU shows
    # to a thousandth, and how busy the CPU is does not.
    step = training_step("resnet18", 256)
    before = median_step(step)
    roofprobe.measure_step(step, **QUICK)
    assert median_step(step) == pytest.approx(before, rel=0.01)


def test_a_profiler_in_its_scheduled_warm_up_is_noticed():
    script = """
    import torch, roofprobe
    from torch.profiler import ProfilerActivity, profile, schedule
    a = torch.randn(1024, 1024, device="cuda")
    warm_up = schedule(wait=0, warmup=100, active=1)
    with profile(activities=[ProfilerActivity.CUDA], schedule=warm_up):
        record = roofprobe.measure_step(lambda: a @ a, warmup=2, timed=2)
    assert "PyTorch profiler" in record.notes["kernels"], record.notes
    assert "PyTorch profiler" in record.coverage.cause, record.coverage
    assert not record.coverage.trusted
    record = roofprobe.measure_step(lambda: a @ a, warmup=2, timed=2)
    assert record.coverage.trusted and record.kernels.launches >= 1
    print("done")
    """
    # It hung for ever when both used CUPTI's activity buffers.
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=90
    )
    assert ended.stdout.split()[-1:] == ["done"], ended.stderr


@pytest.mark.parametrize("fails", [False, True], ids=["whole", "interrupted while tracing"])
def test_the_process_ends_cleanly(fails):
    script = f"""
    import torch, roofprobe
    a = torch.randn(512, 512, device="cuda")
    steps = 0
    def step():
        global steps
        a @ a
        steps += 1
        if {fails} and steps == 1 + 1 + 7 + 1:
            raise SystemExit(3)
    roofprobe.measure_step(step, warmup=1, timed=1)
    roofprobe.measure_step(step, warmup=1, timed=1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == (3 if fails else 0), done.stderr
    assert not done.stderr


def test_a_process_that_prepared_ahead_counts_alike():
    code = """
        import threading, torch, roofprobe
        roofprobe.prepare()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()
        a = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
        record = roofprobe.measure_step(lambda: a @ a, warmup=1, timed=2)
        print(roofprobe.figures(record).flop["tensor_bf16"].value)
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ended.stdout.split() == [str(float(2 * 1024**3))], ended.stderr


def test_trials_in_a_counted_step_are_warned_of():
    """As autotuning makes them: one of the steps does more, in memory of its own."""
    product = gemm(1024, torch.bfloat16)
    for at, words in ((4 + 3, "asked for GPU memory"), (4 + 7, "did not run the same kernels")):
        steps = iter(range(100))

        def uneven(steps=steps, at=at):
            product()
            if next(steps) == at:
                torch.empty(1024, device="cuda").exp_()

        record = roofprobe.measure_step(uneven, **QUICK)
        assert any(words in text for text in record.warnings), record.warnings
    alike = roofprobe.measure_step(product, **QUICK)
    assert not [text for text in alike.warnings if "same" in text]
