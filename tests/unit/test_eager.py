"""A step from a CUDA graph with the SASS counters of an eager run."""

from dataclasses import replace
from pathlib import Path

import pytest

import roofprobe
from roofprobe import coverage, metrics, report
from roofprobe.compare import compare
from roofprobe.derive import figures
from roofprobe.eager import with_sass_of
from roofprobe.errors import UsageError
from roofprobe.page import _counters
from roofprobe.parts import parts
from roofprobe.record import Measurement

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
LABEL = "cupti, eager run"


def load(name="resnet18-b256-tf32") -> Measurement:
    return Measurement.load(DATA / f"{name}.json")


def from_graph(eager: Measurement) -> Measurement:
    """As CUPTI counts the same kernels in a graph: every SASS counter 0, the others the same."""
    sass = {row.name for row in metrics.rows(eager.metrics) if row.instrumented}
    rounds = tuple(
        replace(r, counters={n: 0.0 if n in sass else v for n, v in r.counters.items()})
        for r in eager.rounds
    )
    kernels = replace(eager.kernels, graph_launches=eager.kernels.launches)
    counted = replace(eager, name="graph", rounds=rounds, kernels=kernels, unavailable={})
    return coverage.applied(counted, profiler_active=False)


def test_hidden_counters_come_from_the_eager_run_and_say_so():
    eager = load()
    graph = from_graph(eager)
    assert figures(graph).flop_total.value is None
    both = with_sass_of(graph, eager)
    found, true = figures(both), figures(eager)
    assert found.flop["sass_fp32"].value == true.flop["sass_fp32"].value > 0
    assert found.flop["sass_fp32"].source == found.flop_total.source == LABEL
    assert found.flop_total.value == true.flop_total.value
    assert found.intensity["dram"].value == true.intensity["dram"].value
    assert found.intensity["dram"].source == LABEL
    assert found.flop["tensor_tf32"].source == "cupti"  # counted here
    assert found.byte["dram"].source == "cupti"
    assert found.study.flop.source == LABEL
    assert found.study.reason == true.study.reason
    assert found.fma_share.value == true.fma_share.value
    assert roofprobe.verdict(both).sentences
    # What was counted here stays as it was.
    assert both.value(FFMA) is None
    assert not both.coverage.trusted
    assert both.eager.agreement[TF32] == 1


def test_people_are_told():
    eager = load()
    both = with_sass_of(from_graph(eager), eager)
    text = " ".join(report.text(both, width=200).split())
    assert "SASS figures are of an eager run of the same step (resnet18-b256-tf32, " in text
    assert "FLOP, total │ 2.805 TFLOP │ │ cupti, eager run" in text
    rows = {row.name: row for row in _counters(both)}
    assert rows[FFMA].source == LABEL
    assert rows[TF32].source == "cupti"
    notes = " ".join(compare(eager, both).notes)
    assert "SASS figures of an eager run (resnet18-b256-tf32)" in notes


def test_a_record_keeps_it(tmp_path):
    eager = load()
    both = with_sass_of(from_graph(eager), eager)
    again = Measurement.load(both.save(tmp_path / "run.json"))
    assert again == both
    assert figures(again) == figures(both)


def test_counters_of_ones_own_are_kept():
    eager = load()
    assert with_sass_of(eager, load("alexnet-b256-tf32")) is eager


def test_another_step_is_refused_by_what_the_hardware_counts():
    with pytest.raises(UsageError, match=r"is not the step of 'graph': \S+ is \S+ there and \S+"):
        with_sass_of(from_graph(load()), load("alexnet-b256-tf32"))


def test_other_precision_settings_are_refused():
    with pytest.raises(UsageError, match="cudnn_allow_tf32 is False there and True here"):
        with_sass_of(from_graph(load()), load("resnet18-b256-fp32"))


def test_an_eager_run_that_saw_nothing_either_is_refused():
    eager = load()
    with pytest.raises(UsageError, match=r"no SASS counters to take .* CUDA graph"):
        with_sass_of(from_graph(eager), from_graph(eager))


def test_where_nothing_can_be_compared_nothing_is_taken():
    eager = load()
    bare = [FFMA, "smsp__sass_inst_executed_op_global_st.sum"]
    graph = replace(from_graph(eager), metrics=tuple(bare))
    with pytest.raises(UsageError, match="nothing shows that"):
        with_sass_of(graph, eager)


def test_a_metric_that_the_eager_run_lacks_is_named():
    eager = load()
    less = tuple(
        replace(r, counters={n: v for n, v in r.counters.items() if n != FFMA})
        for r in eager.rounds
    )
    with pytest.raises(UsageError, match=f"did not count {FFMA}"):
        with_sass_of(from_graph(eager), replace(eager, rounds=less))


def test_parts_of_the_step_take_nothing_of_the_whole():
    layered = Measurement.load(ROOT / "harness/results/h200/resnet18-layers/run.json")
    graph = from_graph(layered)
    both = with_sass_of(graph, layered)
    assert both.regions is not None
    assert all(part.record.eager is None for part in parts(both))


def test_measure_step_measures_the_eager_step_only_where_it_is_needed(monkeypatch):
    eager, other = load(), load("alexnet-b256-tf32")
    graph = from_graph(eager)
    asked = []

    def measured(records):
        left = iter(records)

        def run(step, name, options):
            asked.append((step(), name, options))
            return next(left)

        asked.clear()
        monkeypatch.setattr("roofprobe.probe._measured", run)

    measured([graph, eager])
    options = {"rounds": 2, "by": "phase", "model": None}
    record = roofprobe.measure_step(lambda: "graph", "net", eager=lambda: "eager", **options)
    assert record == with_sass_of(graph, eager)
    assert asked == [("graph", "net", options), ("eager", "net (eager)", {"rounds": 2})]
    measured([eager])
    assert roofprobe.measure_step(lambda: 0, eager=lambda: 1) is eager
    assert len(asked) == 1
    measured([graph, other])  # nothing measured is lost
    record = roofprobe.measure_step(lambda: 0, eager=lambda: 1)
    assert record.eager is None
    assert record.rounds == graph.rounds
    assert "SASS counters stay out: " in record.warnings[-1]
