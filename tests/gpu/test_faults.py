"""Faults around a measurement on a real GPU: forks, threads, signals, a second context."""

import ctypes
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from workloads import gemm, tf32, training_step

import roofprobe
from roofprobe.errors import MeasurementActiveError
from roofprobe.record import Measurement

N = 1024
GEMM_FLOP = 2 * N**3
QUICK = {"warmup": 1, "timed": 2}
PASSES = 7  # the full set on GH100


def product():
    return gemm(N, torch.bfloat16)


def tensor_flop(record):
    return roofprobe.figures(record).flop["tensor_bf16"].value


def assert_the_next_measurement_is_right(step):
    record = roofprobe.measure_step(step, **QUICK)
    assert record.complete
    assert tensor_flop(record) == GEMM_FLOP


def run(code, **options):
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        **options,
    )


FORK = """
import os, sys, torch, roofprobe
a = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
with roofprobe.measure(warmup=1, timed=2) as probe:
    for index in range(probe.steps_needed):
        with probe.step():
            a @ a
            if index in (0, 2, 4, 6):  # warm-up, timing, and two passes with a session open
                child = os.fork()
                if child == 0:
                    {child}
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert status == {status}, (index, status)
record = probe.result
print(record.complete, roofprobe.figures(record).flop["tensor_bf16"].value)
"""


@pytest.mark.parametrize(
    ("child", "status"), [("sys.exit(5)", 5), ("os._exit(6)", 6)], ids=["sys.exit", "os._exit"]
)
def test_a_fork_during_an_open_session_neither_hangs_nor_counts(child, status):
    ended = run(FORK.format(child=child, status=status))
    assert ended.stderr == ""
    assert ended.stdout.split() == ["True", str(float(GEMM_FLOP))]


def test_forked_loader_processes_do_not_disturb_the_counts():
    ended = run(
        """
        from itertools import islice
        import torch, roofprobe
        from torch.utils.data import DataLoader
        a = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
        loader = DataLoader(
            torch.arange(400), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        with roofprobe.measure(warmup=1, timed=2) as probe:
            for epoch in range(3):  # processes are forked anew while a session is open
                for batch in probe.steps(islice(loader, 4)):
                    a @ a
        record = probe.result
        print(record.complete, roofprobe.figures(record).flop["tensor_bf16"].value)
        """
    )
    assert ended.stdout.split() == ["True", str(float(GEMM_FLOP))], ended.stderr


def test_threads_do_not_share_the_counters():
    step = product()
    refused = []

    def beside():
        try:
            roofprobe.measure_step(step, **QUICK)
        except MeasurementActiveError as error:
            refused.append(error)

    with roofprobe.measure(**QUICK) as probe:
        for _ in range(probe.steps_needed):
            with probe.step():
                step()
                thread = threading.Thread(target=beside)
                thread.start()
                thread.join()
    assert len(refused) == 1 + 2 + PASSES + 2
    assert tensor_flop(probe.result) == GEMM_FLOP


def test_a_measurement_on_another_thread_works():
    step = product()
    found = []
    thread = threading.Thread(target=lambda: found.append(roofprobe.measure_step(step, **QUICK)))
    thread.start()
    thread.join()
    assert found[0].complete
    assert tensor_flop(found[0]) == GEMM_FLOP
    assert_the_next_measurement_is_right(step)


def test_ctrl_c_in_every_pass_and_trace():
    """One of the passes is the one of instrumented kernels."""
    step = product()
    for at in range(1 + 2 + PASSES + 2):
        calls = iter(range(at + 1))

        def interrupted(calls=calls, at=at):
            step()
            if next(calls) == at:
                signal.raise_signal(signal.SIGINT)
                step()  # Python delivers the signal before this

        with pytest.raises(KeyboardInterrupt):
            roofprobe.measure_step(interrupted, **QUICK)
    assert_the_next_measurement_is_right(step)


def test_sigterm_while_counting_saves_what_was_timed(tmp_path):
    line = f"-m roofprobe.train -a resnet18 --dummy -b 64 --rounds 7 --out {tmp_path}"
    with subprocess.Popen(
        [sys.executable, *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for said in process.stdout:
            if said.startswith("=> pass 9 of"):
                process.send_signal(signal.SIGTERM)
                break
        _, said = process.communicate(timeout=120)
    assert process.returncode == 143, said
    assert said.splitlines()[-1] == "roofprobe.train: ended by SIGTERM"
    record = Measurement.load(tmp_path / "run.json")
    assert not record.complete
    assert record.timing is not None
    assert len(record.rounds) >= 1


def test_a_second_context_on_the_device_is_not_counted():
    """Its work, a fill and no arithmetic, runs while the step of the first is counted."""
    step = product()
    step()
    cuda = ctypes.CDLL("libcuda.so.1")
    other, memory, popped = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
    assert cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2**26)) == 0
    assert cuda.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0

    def both():
        step()
        assert cuda.cuCtxPushCurrent_v2(other) == 0
        assert cuda.cuMemsetD32_v2(memory, 1, ctypes.c_size_t(2**24)) == 0
        assert cuda.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0

    try:
        record = roofprobe.measure_step(both, **QUICK)
        assert record.complete
        assert tensor_flop(record) == GEMM_FLOP
    finally:
        assert cuda.cuCtxDestroy_v2(other) == 0
    assert_the_next_measurement_is_right(step)


def test_out_of_memory_in_a_step_leaves_the_next_measurement_working():
    step = product()
    total = torch.cuda.get_device_properties(0).total_memory
    for at in (0, 2, 5, 9):
        calls = iter(range(at + 1))

        def greedy(calls=calls, at=at):
            step()
            if next(calls) == at:
                torch.empty(2 * total, dtype=torch.uint8, device="cuda")

        with pytest.raises(torch.OutOfMemoryError):
            roofprobe.measure_step(greedy, **QUICK)
    assert_the_next_measurement_is_right(step)


def test_a_program_that_ends_inside_a_pass_ends_quietly():
    ended = run(
        """
        import torch, roofprobe
        a = torch.ones(512, 512, device="cuda")
        opened = roofprobe.measure(warmup=1, timed=1)
        probe = opened.__enter__()
        for _ in range(4):
            with probe.step():
                a @ a
        left = probe.step()
        left.__enter__()
        a @ a
        """
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_another_gpu_index_is_refused():
    from roofprobe.errors import UsageError

    count = torch.cuda.device_count()
    with (
        pytest.raises(UsageError, match=f"device cuda:{count} was asked for, but there are"),
        roofprobe.measure(device=count),
    ):
        pass


def test_fifty_measurements_hold_no_files_or_threads():
    step = product()

    def held():
        return [sum(1 for _ in Path(f"/proc/self/{name}").iterdir()) for name in ("fd", "task")]

    for _ in range(5):
        roofprobe.measure_step(step, **QUICK)
    before = held()
    values = {tensor_flop(roofprobe.measure_step(step, **QUICK)) for _ in range(50)}
    files, threads = held()
    assert files <= before[0] + 1
    assert threads <= before[1] + 1
    assert values == {GEMM_FLOP}


def test_a_training_step_is_counted_alike_before_and_after_a_fault():
    with tf32(False):
        step = training_step("resnet18", 8)
        names = [
            f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum"
            for op in ("fadd", "ffma", "fmul")
        ]
        before = roofprobe.measure_step(step, metrics="fp32", **QUICK)
        for at in (3, 4):
            calls = iter(range(at + 1))

            def interrupted(calls=calls, at=at):
                step()
                if next(calls) == at:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                roofprobe.measure_step(interrupted, metrics="fp32", **QUICK)
        after = roofprobe.measure_step(step, metrics="fp32", **QUICK)
    # Max-pooling's kernels follow the data, which a step of training changes.
    for name in names:
        assert after.value(name) == pytest.approx(before.value(name), rel=0.01)
