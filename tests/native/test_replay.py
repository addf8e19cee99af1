"""The whole measuring path on a CPU, with an H200's recorded counters played back."""

from pathlib import Path

import pytest
import torch

import roofprobe
from roofprobe.counters.recorded import CounterFile, RecordedBackend
from roofprobe.errors import CuptiError, MeasurementActiveError, UnknownMetricError, UsageError
from roofprobe.report import text

DATA = Path(__file__).parents[1] / "data"
PASSES = 7  # the full set on GH100


def backend(rounds=1):
    one = CounterFile.load(DATA / "resnet18-b256-tf32.counters")
    return RecordedBackend(CounterFile(one.chip, one.metrics, one.passes, one.images * rounds))


def measure(**options):
    options = {"backend": backend(), "device": "cpu", "warmup": 2, "timed": 3, **options}
    return roofprobe.measure("replayed", **options)


def work():
    torch.randn(64, 64) @ torch.randn(64, 64)


def test_each_iteration_is_one_pass_and_the_loop_is_not_cut_short():
    events = []
    with measure(progress=events.append) as probe:
        assert probe.steps_needed == 2 + 3 + PASSES
        seen = []
        for item in probe.steps(range(20)):
            seen.append((item, probe.done))
            work()
    assert [item for item, _ in seen] == list(range(20))
    assert [done for _, done in seen] == [False] * 12 + [True] * 8
    phases = [event.phase for event in events]
    announced = phases.index("plan")  # as soon as it is known
    assert announced <= 2
    del phases[announced]
    assert phases == ["warmup"] * 2 + ["timing"] * 3 + ["pass"] * PASSES + ["done"]
    plan = next(event for event in events if event.phase == "plan")
    assert "12 steps: 2 warm-up, 3 timed, 7 with counters (23 metrics in 7 passes)" in plan.message
    passes = [(event.index, event.total) for event in events if event.phase == "pass"]
    assert passes == [(index, PASSES) for index in range(1, PASSES + 1)]
    assert probe.result.complete


def test_values_are_the_recorded_ones():
    record = roofprobe.measure_step(
        work, backend=backend(), device="cpu", warmup=1, timed=2, workload={"batch": 256}
    )
    assert record.source == "recorded"
    assert record.workload == {"batch": 256}
    tf32 = record.value("sm__ops_path_tensor_src_tf32_dst_fp32.sum")
    assert tf32 == pytest.approx(2.766e12, rel=0.01)
    assert len(record.timing.step) == 2
    assert record.timing.source == "perf_counter"
    # SASS is judged from the counters alone here, and the driver's 64 MB of copies are 0.9%.
    assert record.coverage.fraction == pytest.approx(0.991, abs=2e-3)
    assert record.coverage.trusted


def test_rounds_repeat_the_whole_set():
    record = roofprobe.measure_step(
        work, backend=backend(3), device="cpu", warmup=0, timed=1, rounds=3
    )
    assert [counted.passes for counted in record.rounds] == [PASSES] * 3
    assert all(len(counted.pass_duration) == PASSES for counted in record.rounds)
    assert record.spread("lts__t_bytes.sum") == 0


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 11])
def test_a_loop_that_ends_early_keeps_what_it_has(steps):
    with measure() as probe:
        for _ in probe.steps(range(steps)):
            work()
    record = probe.result
    assert not record.complete
    assert record.steps_missing == 12 - steps
    assert any(f"{12 - steps} steps too early" in warning for warning in record.warnings)
    assert record.rounds == ()
    assert (record.timing is None) == (steps < 5)
    assert roofprobe.figures(record).flop_total.value is None
    assert "INCOMPLETE" in text(record)


def test_a_second_round_that_is_cut_short_leaves_the_first():
    with measure(backend=backend(2), rounds=2) as probe:
        for _ in probe.steps(range(2 + 3 + PASSES + 4)):
            work()
    assert probe.result.steps_missing == PASSES - 4
    assert len(probe.result.rounds) == 1
    assert probe.result.value("lts__t_bytes.sum") > 1e11


class StepError(Exception):
    pass


@pytest.mark.parametrize("fail_at", [0, 3, 6, 11])
def test_an_exception_in_a_step_reaches_the_user_and_closes_everything(fail_at):
    closed = []
    played = backend()
    played.close = lambda: closed.append(True)
    with pytest.raises(StepError) as caught, measure(backend=played) as probe:
        for item in probe.steps(range(20)):
            if item == fail_at:
                raise StepError("mine")
    assert caught.value.args == ("mine",)
    assert caught.value.__context__ is None
    assert bool(closed) == (fail_at >= 5)
    assert probe.done
    assert not probe.result.complete
    assert probe.result.steps_missing == 12 - fail_at


def test_a_failing_close_does_not_hide_the_users_exception():
    played = backend()

    def close():
        raise RuntimeError("CUPTI is gone")

    played.close = close
    with pytest.raises(StepError), measure(backend=played) as probe:
        for item in probe.steps(range(20)):
            if item == 8:
                raise StepError
    assert any("CUPTI is gone" in warning for warning in probe.result.warnings)


def test_passes_that_never_end_are_an_error_and_not_an_endless_loop():
    played = backend()
    played.end_pass = lambda: False
    with pytest.raises(CuptiError, match="7 passes were scheduled"), measure(backend=played) as p:
        for _ in p.steps(range(100)):
            work()
    assert not p.result.complete


def test_an_early_end_still_names_the_metrics():
    with measure() as probe:
        for _ in probe.steps(range(1)):
            work()
    assert len(probe.result.metrics) == 24
    assert set(probe.result.unavailable) == set(probe.result.metrics)


def test_step_is_for_loops_that_cannot_be_wrapped():
    with measure() as probe:
        while not probe.done:
            with probe.step():
                work()
    assert probe.result.complete


def test_leaving_the_loop_with_break():
    with measure() as probe:
        for _ in probe.steps(iter(int, 1)):
            if probe.done:
                break
            work()
    assert probe.result.complete


def test_a_step_inside_a_step_is_refused():
    with measure() as probe:
        with probe.step(), pytest.raises(UsageError, match="inside a step"), probe.step():
            pass
        while not probe.done:
            with probe.step():
                work()
    assert probe.result.complete


def test_a_second_measurement_inside_a_first_is_refused():
    with measure(), pytest.raises(MeasurementActiveError, match="inside another one"), measure():
        pass
    with measure() as probe:
        for _ in probe.steps(range(12)):
            work()
    assert probe.result.complete


def test_the_result_exists_only_afterwards():
    with measure() as probe, pytest.raises(UsageError, match="with-block"):
        _ = probe.result


@pytest.mark.parametrize("option", [{"warmup": -1}, {"timed": 0}, {"rounds": 0}])
def test_counts_below_their_minimum_are_refused(option):
    with pytest.raises(UsageError, match=next(iter(option))), measure(**option):
        pass


def test_an_unknown_set_is_refused_before_anything_is_measured():
    with pytest.raises(UnknownMetricError, match="nonsense"), measure(metrics="nonsense") as probe:
        for _ in probe.steps(range(20)):
            work()


def test_cupti_needs_a_cuda_device():
    with (
        pytest.raises(UsageError, match="CUDA device"),
        roofprobe.measure(backend="cupti", device="cpu"),
    ):
        pass


def test_counter_data_can_be_kept(tmp_path):
    with measure() as probe:
        for _ in probe.steps(range(12)):
            work()
    path = probe.save_counter_data(tmp_path / "run.counters")
    kept = CounterFile.load(path)
    assert kept.evaluate()[0].values == probe.result.rounds[0].counters


def test_without_counter_data_there_is_nothing_to_keep(tmp_path):
    with measure() as probe:
        for _ in probe.steps(range(3)):
            work()
    with pytest.raises(UsageError, match="no counter data"):
        probe.save_counter_data(tmp_path / "run.counters")


def test_the_report_says_what_the_study_misses():
    record = recorded_run("resnet18-b256-tf32")
    shown = text(record, width=120)
    assert "Total FLOP are 71.26 times the study's" in shown
    assert "tensor cores tf32" in shown
    assert "2.766 TFLOP" in shown
    assert "35.2 FLOP/B" in shown


def recorded_run(name):
    from roofprobe.record import Measurement

    return Measurement.load(DATA / f"{name}.json")
