"""GPM: utilisations to counts, the course of a round on a simulated GPU, and falling back to it.

Figures of an H200 are from one run there (two samples 3 s apart around ResNet-18 at batch 256:
DRAM 34.34% of 4.917 TB/s, tensor cores 11.5%, 48.06 ms a step, SM clock 1980 MHz).
"""

import json
import os
import subprocess
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import roofprobe
from roofprobe import probe
from roofprobe.counters import Plan, RoundCounters, gpm, nvml
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.counters.gpm import GpmBackend, GpmDevice, Window, counts
from roofprobe.derive import figures
from roofprobe.errors import (
    CounterPermissionError,
    HardwareBusyError,
    OtherSubscriberError,
    UnsupportedDeviceError,
    UsageError,
)
from roofprobe.metrics import GPM
from roofprobe.record import Measurement
from roofprobe.report import text

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests/data/runs"
CLOCK = 1.98e9
GONE = 2**22 + 1  # no process: Linux counts to 2**22
H200 = GpmDevice(132, 3201e6 * 2 * 6144 / 8, gpm._FLOP_PER_CYCLE[9, 0])
IDLE = dict.fromkeys(nvml.IDS, 0.0)
RESNET = IDLE | {"graphics": 0.98, "dram": 0.3434, "hmma": 0.115, "any_tensor": 0.115}
FP32 = {"fp32": 2.726e12}

DRAM = "gpm__bytes_dram.sum"
TF32, BF16, FP16 = (f"gpm__flop_tensor_{kind}.sum" for kind in ("tf32", "bf16", "fp16"))


def window(utilisation=RESNET, step=0.04806, **options):
    return Window(64, 64 * step, utilisation, **({"sm_clock": CLOCK} | options))


def count(utilisation=RESNET, operands=FP32, tf32=True, device=H200, **options):
    return counts(window(utilisation, **options), device, operands, tf32=tf32)


class TestCounts:
    def test_resnet18_as_counted_by_cupti(self):
        found = count().values
        # 0.3434 * 3201e6 * 2 * 6144 / 8 * 0.04806
        assert found[DRAM] == pytest.approx(8.1145e10, rel=1e-3)
        # 0.93 * 0.115 * 132 * 2048 * 1.98e9 * 0.04806
        assert found[TF32] == pytest.approx(2.7513e12, rel=1e-3)
        counted = figures(Measurement.load(RESULTS / "resnet18-b256/run.json"))
        assert found[DRAM] == pytest.approx(counted.byte["dram"].value, rel=0.05)
        assert found[TF32] == pytest.approx(counted.flop["tensor_tf32"].value, rel=0.05)
        assert found[BF16] == found[FP16] == 0

    def test_every_metric_has_a_value_or_a_reason(self):
        for utilisation in (RESNET, IDLE, {}, {"graphics": 1.0}, RESNET | {"dram": 1.7}):
            found = count(utilisation)
            assert set(found.values) == {row.name for row in GPM}
            missing = {name for name, value in found.values.items() if value is None}
            assert missing == set(found.reasons)

    def test_cuda_cores_are_bounded_by_the_datasheet(self):
        found = count(RESNET | {"fp32": 1.0, "fp64": 0.5}, step=1.0).values
        # The H200's datasheet: 66.9 and 33.5 TFLOP/s.
        assert found["gpm__flop_fp32.sum"] == pytest.approx(66.9e12, rel=2e-3)
        assert found["gpm__flop_fp64.sum"] == pytest.approx(33.5e12 / 2, rel=2e-3)
        assert all(row.upper_bound for row in GPM if (row.path or "").startswith("sass_"))

    def test_dmma_is_fp64(self):
        found = count(RESNET | {"dfma": 0.5, "any_tensor": 0.615}, step=1.0).values
        # 0.98 * half of 66.9 TFLOP/s
        assert found["gpm__flop_tensor_fp64.sum"] == pytest.approx(0.49 * 66.9e12, rel=2e-3)

    def test_throttled_clock_counts(self):
        assert count(sm_clock=CLOCK / 2).values[TF32] == count().values[TF32] / 2
        found = count(sm_clock=None)
        assert found.values[TF32] is None
        assert found.values[DRAM] == count().values[DRAM]
        assert "SM clock" in found.reasons[TF32]

    def test_nothing_is_withheld_from_bytes_where_the_chip_is_not_known(self):
        found = count(device=replace(H200, flop_per_cycle={}))
        assert found.values[DRAM] == count().values[DRAM]
        assert found.values[TF32] is None
        assert "compute capability" in found.reasons[TF32]

    def test_no_peak_no_bytes(self):
        found = count(device=replace(H200, dram_byte_per_s=None))
        assert found.values[DRAM] is None
        assert "bus width" in found.reasons[DRAM]

    def test_an_idle_gpu_is_no_zero(self):
        found = count(IDLE)
        assert set(found.values.values()) == {None}
        assert set(found.reasons.values()) == {"GPM reported an idle GPU while the steps ran"}

    def test_an_impossible_percentage_is_withheld(self):
        found = count(RESNET | {"dram": 1.02})
        assert found.values[DRAM] is None
        assert "102%" in found.reasons[DRAM]


MEASURED = json.loads((ROOT / "harness/results/h200/gpm_windows.json").read_text())


class TestAgainstCounters:
    """Windows and counts of one H200, the windows through the code that makes counts of them."""

    @pytest.mark.parametrize("name", MEASURED["workloads"])
    def test_the_error_that_is_told_covers_the_difference(self, name):
        work = MEASURED["workloads"][name]
        longest = work["windows"][-1]
        taken = Window(
            longest["steps"],
            longest["duration"],
            longest["utilisation"],
            sm_clock=longest["sm_clock"],
        )
        device = GpmDevice(
            MEASURED["sm_count"], MEASURED["dram_byte_per_s"], gpm._FLOP_PER_CYCLE[9, 0]
        )
        path = work["path"]
        operand = {"tensor_bf16": "bf16", "tensor_fp64": "fp64"}.get(path, "fp32")
        found = counts(taken, device, {operand: 1e12}, tf32=path == "tensor_tf32").values
        errors = {row.name: row.error for row in GPM}
        byte = work["cupti"]["byte"]
        assert found[DRAM] == pytest.approx(byte, rel=errors[DRAM])
        if path is None:
            return
        counted = work["cupti"]["flop"][path]
        metric = f"gpm__flop_{path.removeprefix('sass_')}.sum"
        assert found[metric] == pytest.approx(counted, rel=errors[metric])
        if name.startswith("resnet18 b"):
            assert found[DRAM] == pytest.approx(byte, rel=0.05)

    @pytest.mark.parametrize("batch", [64, 256])
    def test_committed_runs_of_resnet18(self, batch):
        """Of another card than the counts that they are held against."""
        folder = ROOT / "harness/results/h200"
        estimated = figures(Measurement.load(folder / f"gpm-resnet18-b{batch}/run.json"))
        beside = "verify-resnet18-b64" if batch == 64 else "resnet18-b256"
        counted = figures(Measurement.load(folder / beside / "run.json"))
        assert estimated.byte["dram"].source == "gpm"
        for found, true in (
            (estimated.byte["dram"], counted.byte["dram"]),
            (estimated.flop["tensor_tf32"], counted.flop["tensor_tf32"]),
        ):
            assert found.value == pytest.approx(true.value, rel=0.05)


class TestPrecision:
    def test_it_is_that_of_the_operands(self):
        full, half = count(), count(operands={"bf16": 1e12})
        assert half.values[TF32] == 0
        # Twice as fast, so the same cycles hold twice as much, of which a little less is done.
        assert half.values[BF16] / 0.87 == pytest.approx(2 * full.values[TF32] / 0.93)

    def test_of_two_the_cycles_are_shared_by_their_time(self):
        found = count(operands={"bf16": 2e12, "fp32": 1e12}).values
        assert found[BF16] == pytest.approx(2 * found[TF32])
        # Cycles of both: bf16 at 4096 FLOP, of which 0.87, tf32 at 2048, of which 0.93.
        spent = found[BF16] / 4096 / 0.87 + found[TF32] / 2048 / 0.93
        assert spent == pytest.approx(0.115 * 132 * CLOCK * 0.04806)

    def test_a_trace_of_another_type_decides_nothing(self):
        assert count(operands={"fp32": 1e12, "fp16": 1e9}).values[FP16] == 0

    @pytest.mark.parametrize(
        ("operands", "tf32", "why"),
        [
            ({}, True, "no PyTorch operator tells"),
            ({"fp32": 1e12}, False, "no PyTorch operator had operands"),
            ({"fp64": 1e12}, True, "no PyTorch operator had operands"),
            ({"bf16": 1e12, "other": 1e12}, True, "8-bit"),
        ],
    )
    def test_unknown_it_is_a_range_and_no_value(self, operands, tf32, why):
        found = count(operands=operands, tf32=tf32)
        assert found.values[TF32] is found.values[BF16] is found.values[FP16] is None
        assert why in found.reasons[TF32]
        # As above for tf32; twice that for the others.
        assert "2.75e+12 FLOP if tf32, 5.15e+12 if fp16 or bf16" in found.reasons[TF32]

    def test_without_tensor_work_it_does_not_matter(self):
        found = count(RESNET | {"hmma": 0.0, "any_tensor": 0.0}, operands={})
        assert found.values[TF32] == found.values[BF16] == 0
        # Next to nothing is not nothing.
        found = count(RESNET | {"hmma": 0.0002, "any_tensor": 0.0002}, operands={})
        assert found.values[TF32] is None
        assert "FLOP if tf32" in found.reasons[TF32]

    def test_little_work_is_not_made_none(self):
        full, little = count(RESNET | {"fp32": 0.1}), count(RESNET | {"fp32": 0.0002})
        name = "gpm__flop_fp32.sum"
        assert little.values[name] == pytest.approx(full.values[name] / 500)

    def test_tensor_work_without_a_name_is_not_left_out(self):
        found = count(RESNET | {"any_tensor": 0.2})
        assert found.values[TF32] is None
        assert "8.5% of the time" in found.reasons[TF32]


class TestSteadiness:
    def parts(self, *values):
        return tuple(RESNET | {"dram": value} for value in values)

    def test_alike_parts_pass(self):
        parts = self.parts(0.34, 0.35, 0.34, 0.345)
        assert count(parts=parts).values[DRAM] == count().values[DRAM]

    def test_others_do_not(self):
        # Standard error 0.058 of a mean of 0.35: 16%, where 5% is promised.
        found = count(parts=self.parts(0.3, 0.2, 0.4, 0.45))
        assert found.values[DRAM] is None
        assert "20.0% to 45.0%" in found.reasons[DRAM]
        assert found.values[TF32] is not None

    def test_coarse_readings_of_next_to_nothing_pass(self):
        parts = tuple(RESNET | {"fp64": value} for value in (0.0, 0.001, 0.0, 0.001))
        found = count(RESNET | {"fp64": 0.0006}, parts=parts)
        assert found.values["gpm__flop_fp64.sum"] > 0


class Gpu:
    """A GPU whose time passes as steps run, and GPM as its driver keeps it.

    Args:
        step: Duration of a step, s; DRAM is in use in the first half of it.
        queue: True for a CPU that runs ahead, so that work is done when it is waited for.
    """

    def __init__(self, step, queue=False, others=()):
        self.now, self.step_time, self.queue = 100.0, step, queue
        self.queued, self.done, self.others = 0, [], others
        self.samples, self.freed = 0, 0

    def step(self):
        self.queued += 1
        if not self.queue:
            self.synchronize()

    def synchronize(self):
        for _ in range(self.queued):
            self.done.append(self.now)
            self.now += self.step_time
        self.queued = 0
        self.now += 20e-6

    def busy(self, until):
        """Time in which DRAM was in use up to a time, s."""
        half = self.step_time / 2
        return sum(min(max(until - begun, 0.0), half) for begun in self.done)

    # What a reader is asked.

    def sample(self):
        self.samples += 1
        return int(self.now * 10) / 10  # renewed ten times a second

    def utilisation(self, first, second):
        used = 0.7 * (self.busy(second) - self.busy(first)) / (second - first)
        return RESNET | {"dram": used}

    def others_at_work(self, since):
        assert since > 0
        return self.others

    def dram_byte_per_s(self):
        return H200.dram_byte_per_s

    def sm_clock(self):
        return CLOCK

    def free(self):
        self.freed = self.samples


@pytest.fixture
def simulate(monkeypatch):
    def begin(*args, **options):
        gpu = Gpu(*args, **options)
        properties = SimpleNamespace(uuid="0", multi_processor_count=132, major=9, minor=0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
        monkeypatch.setattr(gpm, "GpmReader", lambda uuid: gpu)
        monkeypatch.setattr(gpm.time, "perf_counter", lambda: gpu.now)
        clock = nullcontext(SimpleNamespace(mean=CLOCK))
        monkeypatch.setattr(gpm, "MeanClock", lambda read: clock)
        backend = GpmBackend(0, gpu.synchronize)
        return gpu, backend, backend.prepare(["dram__bytes_read.sum"])

    return begin


def run_round(gpu, backend):
    steps, full = 0, False
    while not full:
        backend.begin_pass()
        torch.ones(8, 8) @ torch.ones(8, 8)
        gpu.step()
        full = backend.end_pass()
        steps += 1
    return steps, backend.collect()


class TestRound:
    # 0.7 * half of a step at 4.917 TB/s.
    @staticmethod
    def byte(step):
        return 0.35 * H200.dram_byte_per_s * step

    @pytest.mark.parametrize("queue", [False, True])
    @pytest.mark.parametrize("step", [1e-3, 13.3e-3, 47e-3, 0.4])
    def test_old_samples_do_no_harm(self, simulate, step, queue):
        gpu, backend, plan = simulate(step, queue)
        backend.open()
        steps, found = run_round(gpu, backend)
        assert found.values[DRAM] == pytest.approx(self.byte(step), rel=0.03)
        assert found.values[TF32] > 0  # the watched step multiplied fp32 operands
        assert steps >= plan.passes
        assert steps * step >= 2.0
        assert gpu.freed == gpu.samples == 5

    def test_the_plan_foresees_the_steps(self, simulate):
        for step in (1e-3, 13.3e-3, 47e-3):
            gpu, backend, plan = simulate(step)
            steps, _ = run_round(gpu, backend)
            # The lead-in doubles until it is long enough, so it can take twice as long.
            assert 0.95 <= steps / plan.expected(step) <= 1.2
        assert plan.expected(None) == plan.passes == 18
        assert plan.unavailable == {
            "dram__bytes_read.sum": "a hardware counter, which GPM does not read"
        }

    def test_rounds_follow_each_other(self, simulate):
        gpu, backend, _ = simulate(13.3e-3)
        first, second = run_round(gpu, backend), run_round(gpu, backend)
        assert first[0] == second[0]
        assert second[1].values[DRAM] == pytest.approx(first[1].values[DRAM], rel=0.02)

    def test_another_process_at_work(self, simulate):
        gpu, backend, _ = simulate(13.3e-3, others=(4711,))
        _, found = run_round(gpu, backend)
        assert set(found.values.values()) == {None}
        assert "process 4711" in found.reasons[DRAM]

    def test_not_knowing_of_others_is_said(self, simulate):
        gpu, backend, _ = simulate(13.3e-3, others=None)
        _, found = run_round(gpu, backend)
        assert found.values[DRAM] > 0
        assert "NVML does not say" in found.warnings[0]

    @pytest.mark.parametrize("passes", [0, 1, 3, 100])
    def test_a_round_cut_short_leaves_nothing_open(self, simulate, passes):
        gpu, backend, _ = simulate(13.3e-3)
        for _ in range(passes):
            backend.begin_pass()
            gpu.step()
            backend.end_pass()
        backend.begin_pass()
        backend.close()
        backend.close()
        assert gpu.freed == gpu.samples
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.fixture
def stranger():
    """The number of another process."""
    with subprocess.Popen(["sleep", "600"]) as other:
        yield other.pid
        other.kill()


class TestReader:
    """Without a driver NVML cannot start; what it answers with one is tested in tests/gpu."""

    def test_no_driver(self):
        if torch.cuda.is_available():
            pytest.skip("needs a machine without an NVIDIA driver")
        with pytest.raises(UnsupportedDeviceError, match="NVML GPM cannot be read here"):
            nvml.GpmReader("GPU-0")

    @staticmethod
    def others(*busy, idle=()):
        """What a reader makes of NVML's list of (process, use of the SMs in %)."""

        class Error(Exception):
            pass

        rows = [SimpleNamespace(pid=pid, smUtil=used) for pid, used in busy]
        rows += [SimpleNamespace(pid=pid, smUtil=0) for pid in idle]
        reader = object.__new__(nvml.GpmReader)
        reader._handle = None
        reader._nvml = SimpleNamespace(
            NVMLError=Error, nvmlDeviceGetProcessUtilization=lambda handle, since: rows
        )
        return reader.others_at_work(0.0)

    def test_a_stranger_is_not_taken_for_this_process(self, stranger):
        own = os.getpid()
        assert self.others((stranger, 80)) == [stranger]
        assert self.others((stranger, 80), (GONE, 10)) == sorted((stranger, GONE))
        # The busier of two need not be this one either.
        assert self.others((own, 5), (stranger, 80)) == [stranger]
        # It was at work, whether or not it still is there.
        assert self.others((own, 80), (GONE, 10)) == [GONE]

    def test_alone_is_alone(self, stranger):
        assert self.others((os.getpid(), 80), idle=(stranger,)) == []
        assert self.others() == self.others(idle=(GONE,)) == []

    def test_numbers_of_another_namespace_tell_nothing(self):
        assert self.others((GONE, 80)) is None
        assert self.others((GONE, 80), (GONE + 1, 10)) is None

    def test_no_permission_is_told_apart(self):
        import pynvml

        reader = object.__new__(nvml.GpmReader)
        reader._nvml = pynvml
        with pytest.raises(CounterPermissionError), reader._translated():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        with pytest.raises(UnsupportedDeviceError), reader._translated():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def test_ids_are_those_of_nvml(self):
        import pynvml

        names = {
            "graphics": "GRAPHICS_UTIL",
            "dram": "DRAM_BW_UTIL",
            "any_tensor": "ANY_TENSOR_UTIL",
        }
        names |= {pipe: f"{pipe.upper()}_TENSOR_UTIL" for pipe in ("dfma", "hmma", "imma")}
        names |= {pipe: f"{pipe.upper()}_UTIL" for pipe in ("fp64", "fp32", "fp16")}
        assert {n: getattr(pynvml, f"NVML_GPM_METRIC_{names[n]}") for n in names} == nvml.IDS

    def test_mean_clock(self):
        three = threading.Event()
        answers = iter([1e9, None, 2e9])

        def read():
            try:
                return next(answers)
            except StopIteration:
                three.set()
                return None

        with nvml.MeanClock(read) as clock:
            assert three.wait(30)
        assert clock.mean == 1.5e9


class Refused:
    """A backend that is refused at a given call."""

    source, chip = "cupti", None

    def __init__(self, where, error):
        self.where, self.error, self.closed = where, error, 0

    def _at(self, where):
        if where == self.where:
            raise self.error

    def prepare(self, metrics):
        self._at("prepare")
        return Plan(("dram__bytes_read.sum",), 7)

    def open(self):
        self._at("open")

    def begin_pass(self):
        self._at("begin_pass")

    def end_pass(self):
        self._at("end_pass")
        return True

    def collect(self):
        self._at("collect")

    def close(self):
        self.closed += 1


class Windowed(AnalyticBackend):
    """Counts as ever, in a window whose length is not known beforehand."""

    source = "gpm"
    left = 4

    def prepare(self, metrics):
        return replace(super().prepare(metrics), passes=2, window=1e-9)

    def end_pass(self):
        self.left -= 1
        return super().end_pass() and not self.left


def measure(monkeypatch, *backends, **options):
    monkeypatch.setattr(probe, "_backends", lambda *_: backends)
    events = []
    record = roofprobe.measure_step(
        lambda: torch.ones(8, 8) @ torch.ones(8, 8),
        device="cpu",
        warmup=1,
        timed=2,
        progress=events.append,
        **options,
    )
    return record, events


class TestFallBack:
    @pytest.mark.parametrize("where", ["prepare", "open"])
    @pytest.mark.parametrize(
        "error", [CounterPermissionError, HardwareBusyError, UnsupportedDeviceError]
    )
    def test_the_next_backend_takes_over(self, monkeypatch, where, error):
        first = Refused(where, error("CUPTI said no"))
        record, events = measure(monkeypatch, first, AnalyticBackend())
        assert record.complete
        assert record.source == "analytic"
        assert record.value("analytic__flop_fp32.sum") == 2 * 8**3
        assert "cupti was refused, so analytic takes its place: CUPTI said no" in record.warnings
        assert [e.total for e in events if e.phase == "pass"] == [1]

    def test_twice(self, monkeypatch):
        second = Refused("prepare", UnsupportedDeviceError("NVML has no GPM"))
        second.source = "gpm"
        first = Refused("prepare", CounterPermissionError("CUPTI said no"))
        record, _ = measure(monkeypatch, first, second, AnalyticBackend())
        assert record.source == "analytic"
        assert sum("was refused" in text for text in record.warnings) == 2

    def test_the_last_refusal_is_raised(self, monkeypatch):
        with pytest.raises(CounterPermissionError, match="said no"):
            measure(monkeypatch, Refused("open", CounterPermissionError("CUPTI said no")))

    @pytest.mark.parametrize("where", ["prepare", "open", "begin_pass", "end_pass", "collect"])
    def test_beside_nsys_and_ncu_the_steps_go_on_and_nothing_takes_over(self, monkeypatch, where):
        first = Refused(where, OtherSubscriberError("nsys is here"))
        record, _ = measure(monkeypatch, first, AnalyticBackend())
        assert not record.complete
        assert (record.source, record.rounds, record.steps_missing) == ("cupti", (), 0)
        assert "no counters, and the steps went on without: nsys is here" in record.warnings
        assert (record.timing is None) == (where == "prepare")
        assert set(record.unavailable.values()) <= {"nsys is here"}
        shown = text(record)
        assert "the loop ended" not in shown
        assert "no kernels were traced" not in shown

    def test_a_loop_beside_nsys_runs_to_its_end(self, monkeypatch):
        monkeypatch.setattr(
            probe, "_backends", lambda *_: [Refused("prepare", OtherSubscriberError("nsys"))]
        )
        done = []
        with roofprobe.measure(device="cpu", warmup=1, timed=2) as measured:
            assert measured.steps_needed > 0
            for step in measured.steps(range(20)):
                done.append(step)
        assert done == list(range(20))
        assert isinstance(measured.refusal, OtherSubscriberError)

    def test_a_window_ends_when_the_backend_says_so(self, monkeypatch):
        record, events = measure(monkeypatch, Windowed())
        assert record.complete
        assert record.rounds[0].passes == 4
        assert [e.index for e in events if e.phase == "pass"] == [1, 2, 3, 4]
        assert "at least 2 with counters" in next(e for e in events if e.phase == "plan").message

    def test_auto_on_a_gpu(self):
        names = [each.source for each in probe._backends("auto", torch.device("cuda", 0), "step")]
        assert names == ["cupti", "gpm", "analytic"]
        assert [b.source for b in probe._backends("auto", torch.device("cpu"), "step")] == [
            "analytic"
        ]
        assert [b.source for b in probe._backends("gpm", torch.device("cuda", 0), "step")] == [
            "gpm"
        ]

    def test_on_a_cpu_there_is_no_gpm(self):
        with pytest.raises(UsageError, match="gpm was asked for on device cpu"):
            roofprobe.measure_step(lambda: None, device="cpu", backend="gpm")


def as_record(found: RoundCounters) -> Measurement:
    """The committed ResNet-18 run with GPM's counts in place of CUPTI's."""
    real = Measurement.load(RESULTS / "resnet18-b256/run.json")
    one = replace(real.rounds[0], counters=found.values)
    return replace(
        real,
        source="gpm",
        metrics=tuple(row.name for row in GPM),
        rounds=(one,),
        unavailable=found.reasons,
        coverage=None,
    )


class TestFigures:
    def test_they_carry_source_and_error(self):
        found = figures(as_record(count()))
        assert found.byte["dram"].source == "gpm"
        assert found.byte["dram"].error == 0.07
        assert found.flop["tensor_tf32"].error == 0.05
        assert found.intensity["dram"].error == pytest.approx(0.12)

    def test_the_total_is_the_bound_of_all_paths(self):
        record = as_record(count(RESNET | {"fp32": 0.02}))
        found = figures(record)
        assert found.flop_total.upper_bound
        assert found.flop_total.value == pytest.approx(
            found.flop["tensor_tf32"].value + found.flop["sass_fp32"].value
        )
        assert found.flop_per_s.upper_bound

    def test_the_error_of_a_sum_is_that_of_its_parts(self):
        found = figures(as_record(count(operands={"bf16": 2e12, "fp32": 1e12})))
        bf16, tf32 = (found.flop[f"tensor_{kind}"].value for kind in ("bf16", "tf32"))
        assert found.flop_total.error == pytest.approx((0.1 * bf16 + 0.05 * tf32) / (bf16 + tf32))

    def test_a_withheld_path_withholds_the_total(self):
        found = figures(as_record(count(operands={})))
        assert found.flop_total.value is None
        assert "no PyTorch operator tells" in found.flop_total.reason

    def test_the_table_says_so(self):
        shown = text(as_record(count(RESNET | {"fp32": 0.02})))
        line = next(row for row in shown.splitlines() if row.startswith("DRAM bytes"))
        assert "81.14 GB ±7%" in line
        assert line.endswith("gpm")
        total = next(row for row in shown.splitlines() if row.startswith("FLOP, total"))
        assert "<=" in total
