"""Faults inside a measurement: in the step, the loader, a signal, a thread, the counters.

They are provoked for real where a CPU can; the counters' by a backend that fails in one call.
"""

import dataclasses
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import roofprobe
from roofprobe import activity
from roofprobe.counters import Plan, RoundCounters
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.errors import CuptiError, MeasurementActiveError, RecordError, UsageError
from roofprobe.record import Measurement, write_whole

DATA = Path(__file__).parents[1] / "data"
QUICK = {"device": "cpu", "warmup": 1, "timed": 2}
STEPS = 1 + 2 + 1  # warm-up, timed, and one pass of the analytic backend
CALLS = ("prepare", "open", "begin_pass", "end_pass", "collect", "close")


class FaultyBackend:
    """The analytic backend, in one of whose calls something happens.

    Args:
        where: The call.
        fault: What happens, before the call does its work; ``close`` has done it.
    """

    source = "analytic"
    chip = None

    def __init__(self, where: str = "", fault: Callable[[], object] = lambda: None) -> None:
        self.called: list[str] = []
        self._backend = AnalyticBackend()
        self._where = where
        self._fault = fault

    def _enter(self, call: str) -> None:
        self.called.append(call)
        if call == self._where:
            self._fault()

    def prepare(self, metrics: Sequence[str]) -> Plan:
        self._enter("prepare")
        return self._backend.prepare(metrics)

    def open(self) -> None:
        self._enter("open")
        self._backend.open()

    def begin_pass(self) -> None:
        self._enter("begin_pass")
        self._backend.begin_pass()

    def end_pass(self) -> bool:
        self._enter("end_pass")
        return self._backend.end_pass()

    def collect(self) -> RoundCounters:
        self._enter("collect")
        return self._backend.collect()

    def close(self) -> None:
        self._backend.close()
        self._enter("close")


def work() -> None:
    torch.ones(2, 3) @ torch.ones(3, 4)  # 2*2*3*4 = 48 FLOP


def assert_the_next_measurement_is_right() -> None:
    record = roofprobe.measure_step(work, **QUICK)
    assert record.complete
    assert roofprobe.figures(record).flop_total.value == 48


def run(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A program of its own: some faults end one."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


# -- Ctrl-C ---------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["warmup", "timing", "pass"])
def test_ctrl_c_inside_a_step_ends_the_measurement_in_every_phase(phase):
    phases = []
    backend = FaultyBackend()
    with (
        pytest.raises(KeyboardInterrupt),
        roofprobe.measure(
            backend=backend, progress=lambda event: phases.append(event.phase), **QUICK
        ) as probe,
    ):
        for _ in probe.steps(range(STEPS)):
            work()
            if phases[-1] == phase:
                signal.raise_signal(signal.SIGINT)
    record = probe.result
    assert not record.complete
    assert record.rounds == ()
    assert (record.timing is not None) == (phase == "pass")
    assert (backend.called[-1] == "close") == (phase == "pass")
    assert any("steps too early" in warning for warning in record.warnings)
    assert_the_next_measurement_is_right()


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_inside_every_call_of_the_counters_leaves_them_closed(call):
    def interrupted():
        if call == "prepare":  # on a thread of its own; the main one is in its first step by then
            time.sleep(0.1)
        signal.raise_signal(signal.SIGINT)

    backend = FaultyBackend(call, interrupted)
    with pytest.raises(KeyboardInterrupt), roofprobe.measure(backend=backend, **QUICK) as probe:
        for _ in probe.steps(range(STEPS)):
            work()
            if call == "prepare":
                time.sleep(0.2)
    assert not probe.result.complete
    if call != "prepare":
        assert backend.called[-1] == "close"
    assert_the_next_measurement_is_right()


def test_ctrl_c_while_kernels_are_traced_stops_the_trace(monkeypatch):
    running = []

    class Tracer:
        def __init__(self, synchronize, **_):
            pass

        def start(self):
            running.append(True)

        def stop(self):
            running.append(False)

    monkeypatch.setattr(activity, "KernelTracer", Tracer)
    with pytest.raises(KeyboardInterrupt), roofprobe.measure(**QUICK) as probe:
        probe._traced = 2  # as on a GPU
        for index in probe.steps(range(STEPS + 2)):
            work()
            if index == STEPS:
                signal.raise_signal(signal.SIGINT)
    assert running[0] and not running[-1]
    assert len(probe.result.rounds) == 1  # what was counted before stands
    assert roofprobe.figures(probe.result).flop_total.value == 48
    assert_the_next_measurement_is_right()


# -- The step and the loader ----------------------------------------------------------------


class LoaderError(Exception):
    pass


@pytest.mark.parametrize("batches", range(STEPS + 1))
def test_a_loader_that_raises_is_the_users_error_and_keeps_what_there_is(batches):
    def loader():
        yield from range(batches)
        raise LoaderError("no such image")

    with pytest.raises(LoaderError, match="no such image"), roofprobe.measure(**QUICK) as probe:
        for _ in probe.steps(loader()):
            work()
    assert probe.result.complete == (batches == STEPS)
    assert probe.result.steps_missing == STEPS - batches
    assert_the_next_measurement_is_right()


def test_running_out_of_memory_in_a_step_closes_the_counters():
    backend = FaultyBackend()
    with (
        pytest.raises(RuntimeError, match="allocate memory"),
        roofprobe.measure(backend=backend, **QUICK) as probe,
    ):
        for index in probe.steps(range(STEPS)):
            work()
            if index == STEPS - 1:
                torch.empty(2**60, dtype=torch.uint8)
    assert backend.called[-1] == "close"
    assert probe.result.timing is not None
    assert_the_next_measurement_is_right()


def test_sys_exit_in_a_step_keeps_its_status_and_says_nothing():
    ended = run(
        """
        import sys, torch, roofprobe
        steps = iter(range(9))
        def step():
            torch.ones(2, 3) @ torch.ones(3, 4)
            if next(steps) == 3:
                sys.exit(7)
        roofprobe.measure_step(step, warmup=1, timed=2, device="cpu")
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "", "")


def test_os_exit_in_a_step_does_not_hang():
    ended = run(
        """
        import os, torch, roofprobe
        roofprobe.measure_step(lambda: os._exit(7), warmup=0, timed=1, device="cpu")
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "", "")


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_program_that_ends_inside_a_step_ends_quietly(steps):
    """No with-block is left: the interpreter takes everything apart in an order of its own."""
    ended = run(
        f"""
        import torch, roofprobe
        opened = roofprobe.measure(warmup=1, timed=2, device="cpu")
        probe = opened.__enter__()
        for _ in range({steps}):
            with probe.step():
                torch.ones(2, 3) @ torch.ones(3, 4)
        left = probe.step()
        left.__enter__()
        """
    )
    assert (ended.returncode, ended.stderr) == (0, "")


# -- Threads --------------------------------------------------------------------------------


def in_thread(body: Callable[[], object]) -> object:
    """What a body returns or raises on a thread of its own."""
    found = []

    def caught() -> None:
        try:
            found.append(body())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=caught)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return found[0]


def test_a_measurement_on_a_thread_beside_another_is_refused():
    with roofprobe.measure(**QUICK) as probe:
        for index in probe.steps(range(STEPS)):
            work()
            if index in (0, 2, 3):
                refused = in_thread(lambda: roofprobe.measure_step(work, **QUICK))
                assert isinstance(refused, MeasurementActiveError)
    assert probe.result.complete
    assert roofprobe.figures(probe.result).flop_total.value == 48


def test_of_threads_that_all_start_at_once_one_measures():
    barrier = threading.Barrier(4)
    ended = []

    def body() -> None:
        barrier.wait()
        try:
            with roofprobe.measure(**QUICK) as probe:
                time.sleep(0.2)
                for _ in probe.steps(range(STEPS)):
                    work()
            ended.append(roofprobe.figures(probe.result).flop_total.value)
        except MeasurementActiveError:
            ended.append(None)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended, key=str) == [48, None, None, None]


def test_a_measurement_on_another_thread_than_the_main_one_works():
    record = in_thread(lambda: roofprobe.measure_step(work, **QUICK))
    assert isinstance(record, Measurement), record
    assert record.complete
    assert roofprobe.figures(record).flop_total.value == 48


def test_work_in_a_thread_of_the_steps_is_a_gap_and_no_zero():
    record = roofprobe.measure_step(lambda: in_thread(work), **QUICK)
    derived = roofprobe.figures(record)
    assert derived.flop_total.value is None
    assert "own thread" in derived.flop_total.reason
    assert derived.byte["dram"].value is None
    assert sum("own thread" in text for text in record.warnings) == 1


# -- What is asked for ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rounds": 1.5}, "rounds is 1.5; it must be a whole number"),
        ({"warmup": "5"}, "warmup is '5'; it must be a whole number"),
        ({"timed": None}, "timed is None; it must be a whole number"),
        ({"rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"name": None}, "name is None; a region's name is a text"),
        ({"name": 3}, "name is 3; a region's name is a text"),
        ({"backend": None}, "backend is None; it must be auto, cupti, gpm or analytic, or an "),
        ({"backend": 3}, "backend is 3; it must be "),
        ({"backend": AnalyticBackend}, "backend is <class"),
        ({"metrics": None}, "metrics is None: name a set (study, fp32, memory, full) or list "),
        ({"metrics": 5}, "metrics is 5: name a set"),
        ({"metrics": ["a.sum", 3]}, "metrics has 3, which is no text: name a set"),
        ({"levels": 5}, "levels is 5: pass a list, such as levels=['dram']"),
        ({"levels": iter(["dram"])}, "levels is <list_iterator"),
        ({"workload": 5}, "workload is 5; it must be a mapping"),
        ({"progress": 5}, "progress is 5; it must be a callable"),
        ({"eager": 5}, "eager is 5; it must be a callable"),
    ],
)
def test_what_cannot_be_measured_so_is_refused_before_any_step(options, reason):
    def never():
        raise AssertionError("a step ran")

    with pytest.raises(UsageError, match=f"^{re.escape(reason)}"):
        roofprobe.measure_step(never, **{**QUICK, **options})


def test_a_step_that_cannot_be_called():
    with pytest.raises(UsageError, match=r"^step is 5; it must be a callable"):
        roofprobe.measure_step(5, **QUICK)


@pytest.mark.parametrize("attribute", ["steps", "step", "range", "result", "done"])
def test_what_the_probe_has_is_asked_of_measure_itself(attribute):
    outside = roofprobe.measure(**QUICK)
    with pytest.raises(UsageError, match=rf"with roofprobe\.measure.* use probe\.{attribute} in"):
        getattr(outside, attribute)
    assert not hasattr(outside, "nothing")


def test_one_measurement_is_one_with_block():
    manager = roofprobe.measure(**QUICK)
    with manager as probe:
        with pytest.raises(UsageError, match="begun before: call measure"), manager:
            pass
        for _ in probe.steps(range(STEPS)):
            work()
    assert probe.result.complete
    with pytest.raises(UsageError, match="begun before: call measure"), manager:
        pass
    assert_the_next_measurement_is_right()


def test_one_step_of_the_probe_is_one_with_block():
    with roofprobe.measure(**QUICK) as probe:
        step = probe.step()
        with step:
            work()
        with pytest.raises(UsageError, match=r"call probe\.step\(\) anew for each"), step:
            pass
        while not probe.done:
            with probe.step():
                work()
    assert probe.result.complete


def test_a_steps_own_exception_comes_out_as_it_went_in():
    mine = KeyError("mine")
    with (
        pytest.raises(KeyError) as raised,
        roofprobe.measure(**QUICK) as probe,
        probe.step(),
    ):
        raise mine
    assert raised.value is mine
    assert (mine.__cause__, mine.__context__) == (None, None)
    assert [entry.name for entry in raised.traceback] == [
        "test_a_steps_own_exception_comes_out_as_it_went_in"
    ]


@pytest.mark.parametrize("ask", [roofprobe.figures, roofprobe.verdict])
def test_what_is_no_record_is_refused_in_a_sentence(ask):
    with pytest.raises(UsageError, match=r"^'run\.json' is no record: .*Measurement\.load\(path\)"):
        ask("run.json")


def test_metrics_that_can_be_gone_through_once_are_kept():
    names = (name for name in ["sm__cycles_active.sum"])
    record = roofprobe.measure_step(work, metrics=names, **QUICK)
    assert "sm__cycles_active.sum" in record.metrics


def test_a_model_keeps_no_counter_data(tmp_path):
    with roofprobe.measure(name="mine", **QUICK) as probe:
        for _ in probe.steps(range(STEPS)):
            work()
    with pytest.raises(UsageError, match=r"^'mine' .*: backend analytic keeps none, only backend "):
        probe.save_counter_data(tmp_path / "run.counters")


def test_any_fact_of_the_users_is_kept_and_read_again(tmp_path):
    facts = {"lr": float("nan"), "dtype": torch.float16, "shape": (3, 2), 7: 1}
    record = roofprobe.measure_step(work, workload=facts, **QUICK)
    kept = {"lr": "nan", "dtype": "torch.float16", "shape": "(3, 2)", "7": 1}
    assert record.workload == kept
    assert Measurement.load(record.save(tmp_path / "run.json")) == record


# -- Steps that are not alike -----------------------------------------------------------------


def test_two_step_times_that_differ_are_warned_of():
    sleeps = iter((0.0, 0.02, 0.08, 0.0))  # warm-up, two timed steps, the counted one

    def step():
        work()
        time.sleep(next(sleeps))

    record = roofprobe.measure_step(step, **QUICK)
    # about (0.08 - 0.02) / 0.05
    assert any(text.startswith("step times differ by 1") for text in record.warnings)


def test_rounds_of_different_work_are_warned_of():
    steps = iter(range(100))

    def uneven():
        for _ in range(6 if next(steps) == 3 else 1):  # trials, in the first counted step
            work()

    record = roofprobe.measure_step(uneven, rounds=2, **QUICK)
    (said,) = [text for text in record.warnings if "between rounds" in text]
    # 6 * 48 and 48 FLOP: 5/6 of the larger
    assert said.startswith("FLOP differ by 83.3% between rounds, and their mean is of no step")
    alike = roofprobe.measure_step(work, rounds=2, **QUICK)
    assert not [text for text in alike.warnings if "between rounds" in text]


# -- The device -----------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without an NVIDIA driver")
@pytest.mark.parametrize("device", ["cuda", "cuda:7", 7])
def test_a_gpu_that_is_not_there_is_one_sentence(device):
    with (
        pytest.raises(UsageError, match="PyTorch finds no CUDA device"),
        roofprobe.measure(device=device),
    ):
        pass
    with pytest.raises(UsageError, match="PyTorch finds no CUDA device"):
        roofprobe.prepare(device=device)
    assert_the_next_measurement_is_right()


def test_on_the_cpu_there_is_nothing_to_prepare():
    before = threading.active_count()
    roofprobe.prepare(device="cpu")
    assert threading.active_count() == before


@pytest.mark.parametrize("call", CALLS)
def test_a_gpu_that_is_lost_ends_the_measurement_with_cuptis_words(call):
    def lost():
        raise CuptiError("stopping a pass: CUPTI_ERROR_UNKNOWN (999)", 999)

    backend = FaultyBackend(call, lost)
    with (
        pytest.raises(CuptiError, match="CUPTI_ERROR_UNKNOWN"),
        roofprobe.measure(backend=backend, **QUICK) as probe,
    ):
        for _ in probe.steps(range(STEPS)):
            work()
    if call == "prepare":  # nothing is known that a record could hold
        with pytest.raises(UsageError, match="the result exists once"):
            _ = probe.result
    else:
        assert not probe.result.complete
        assert (len(probe.result.rounds) == 1) == (call == "close")
        assert backend.called[-1] == "close"
    assert_the_next_measurement_is_right()


def test_a_gpu_that_is_lost_together_with_its_session_hides_no_error_of_the_step():
    def lost():
        raise CuptiError("closing: CUPTI_ERROR_UNKNOWN (999)", 999)

    with (
        pytest.raises(RuntimeError, match="unspecified launch failure"),
        roofprobe.measure(backend=FaultyBackend("close", lost), **QUICK) as probe,
    ):
        for index in probe.steps(range(STEPS)):
            if index == STEPS - 1:
                raise RuntimeError("CUDA error: unspecified launch failure")
    assert any("CUPTI_ERROR_UNKNOWN" in warning for warning in probe.result.warnings)
    assert_the_next_measurement_is_right()


def test_a_shared_mig_instance_keeps_the_flop_of_its_sms():
    """NaN of units that instances share is None with the reason (BUGS 03); SM counts stand."""
    whole = Measurement.load(DATA / "resnet18-b256-tf32.json")
    why = "CUPTI could not form a value (NaN)"
    shared = [name for name in whole.metrics if name.startswith(("dram__", "lts__"))]
    assert len(shared) >= 3
    counted = dict(whole.rounds[0].counters) | dict.fromkeys(shared)
    record = dataclasses.replace(
        whole,
        rounds=(dataclasses.replace(whole.rounds[0], counters=counted),),
        unavailable={**whole.unavailable, **dict.fromkeys(shared, why)},
    )
    found = roofprobe.figures(record)
    assert found.flop_total.value == roofprobe.figures(whole).flop_total.value > 2.7e12
    assert found.byte["dram"].value is None
    assert why in found.byte["dram"].reason
    assert found.intensity["dram"].value is None
    assert found.intensity["l1"].value > 0


# -- Files ----------------------------------------------------------------------------------


def test_a_run_file_on_a_full_disk_is_written_whole_or_not_at_all(tmp_path):
    """A limit on file sizes stands for the disk: both stop the write in the middle."""
    (tmp_path / "run.json").write_text("old")
    ended = run(
        """
        import resource, sys
        from roofprobe.record import write_whole
        from roofprobe.errors import RecordError
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_whole(sys.argv[1], b"x" * 2000)
        except RecordError as error:
            print(error)
        """.replace("sys.argv[1]", repr(str(tmp_path / "run.json")))
    )
    assert ended.stdout == f"could not write {tmp_path / 'run.json'}: File too large\n"
    assert (tmp_path / "run.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "run.json"]


def test_an_output_folder_that_was_removed_meanwhile_is_made_again(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with roofprobe.measure(**QUICK) as probe:
        for _ in probe.steps(range(STEPS)):
            work()
        folder.rmdir()
    path = probe.result.save(folder / "run.json")
    assert Measurement.load(path) == probe.result


def test_a_folder_that_cannot_be_written_to_is_one_sentence():
    """Not even root writes there."""
    with pytest.raises(RecordError, match=r"^could not write /proc/self/run.json: "):
        write_whole("/proc/self/run.json", b"{}")
