"""Which refusals let the next backend take over, and when a refusal is told."""

import time

import pytest
import torch

import roofprobe
from roofprobe import probe
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.errors import (
    CounterPermissionError,
    CuptiError,
    CuptiLibraryError,
    OtherSubscriberError,
    UnknownMetricError,
    UnsupportedDeviceError,
)


class Refused(AnalyticBackend):
    source = "cupti"

    def __init__(self, error):
        super().__init__()
        self.error = error

    def prepare(self, metrics):
        raise self.error


def measured(monkeypatch, error, **options):
    monkeypatch.setattr(probe, "_backends", lambda *_: [Refused(error), AnalyticBackend()])
    a = torch.ones(4, 4)
    with roofprobe.measure(device="cpu", **{"warmup": 1, "timed": 2} | options) as running:
        for _ in running.steps(range(20)):
            a @ a
    return running.result


@pytest.mark.parametrize(
    "error",
    [
        CounterPermissionError("ERR_NVGPUCTRPERM", 35),
        UnsupportedDeviceError("no range profiler"),
        CuptiLibraryError("CUPTI 12.4 has no range profiler"),
        CuptiError("cuptiProfilerInitialize failed", 15),
        CuptiError("CUPTI_ERROR_UNKNOWN", 999),
        UnknownMetricError("chip GB300 has no metric table"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_keeps_cupti_from_counting_the_next_one_counts(monkeypatch, error):
    record = measured(monkeypatch, error)
    assert record.complete
    assert record.source == "analytic"
    assert record.warnings[0] == f"cupti was refused, so analytic takes its place: {error}"
    assert roofprobe.figures(record).flop_total.value == 2 * 4**3


def test_another_profiler_of_this_process_is_left_alone(monkeypatch):
    record = measured(monkeypatch, OtherSubscriberError("nsys holds the counters", 39))
    assert record.source == "cupti"
    assert record.rounds == ()
    assert "nsys holds the counters" in record.warnings[0]


def test_metrics_asked_for_by_name_have_no_second_source(monkeypatch):
    with pytest.raises(UnknownMetricError, match="no such metric"):
        measured(monkeypatch, UnknownMetricError("no such metric"), metrics=["made__up.sum"])


def test_a_refusal_is_told_before_the_warm_up_is_spent(monkeypatch):
    error = CounterPermissionError("ERR_NVGPUCTRPERM", 35)
    monkeypatch.setattr(probe, "_backends", lambda *_: [Refused(error)])
    steps = 0
    with (
        pytest.raises(CounterPermissionError),
        roofprobe.measure(device="cpu", warmup=1000, timed=2) as running,
    ):
        for _ in running.steps(range(1000)):
            steps += 1
            time.sleep(0.01)  # a step longer than it takes to be refused
    assert steps < 100


def test_the_price_is_told_before_the_warm_up_is_spent():
    seen = []
    with roofprobe.measure(
        device="cpu", warmup=1000, timed=2, progress=lambda event: seen.append(event.phase)
    ) as running:
        for _ in running.steps(range(100)):
            time.sleep(0.01)
    assert seen.count("plan") == 1
    assert "timing" not in seen
