"""What a run prints and draws, from records made by hand."""

from dataclasses import replace

from test_derive import COUNTERS, SASS, TF32, record

from roofprobe import metrics
from roofprobe.record import Coverage, Environment, MeasuredRoof
from roofprobe.report import roofline_of, save_plot, text

H200 = Environment("NVIDIA H200", "cuda", chip="GH100", sm_count=132, memory_byte=150_109_880_320)


def whole(**changes):
    """A record of an H200 with every path counted."""
    counters = dict.fromkeys(metrics.metric_set("full", "GH100"), 0.0) | COUNTERS
    return replace(record(counters), environment=H200, **changes)


def test_the_table_names_source_unit_and_path():
    shown = text(whole(), width=120)
    first = shown.splitlines()[0]
    assert first == "x on NVIDIA H200, GH100 [cupti]"
    assert "tensor cores tf32" in shown
    assert "910 FLOP" in shown
    assert "20 FLOP/B" in shown
    assert "1 FMA = 2 FLOP" in shown
    assert "CUDA cores fp16 (upper bound, not in total)" in shown
    assert "<= 18 FLOP" in shown


def test_paths_without_work_are_left_out_and_unread_ones_are_not():
    counters = {**COUNTERS, TF32: None}
    shown = text(record(counters, unavailable={TF32: "the device lacks it"}), width=120)
    assert "tensor cores tf32" in shown
    assert "n/a" in shown
    assert "the device lacks it" in shown
    assert "tensor cores fp8" not in text(whole(), width=120)


def test_incomplete_is_said_in_the_title():
    shown = text(whole(complete=False, steps_missing=3), width=120)
    assert "[cupti, INCOMPLETE]" in shown.splitlines()[0]


def test_coverage_is_said():
    seen = Coverage(99.0, 100.0, 1.0, 1.0, True)
    assert "SASS coverage: 100% of the stores" in text(whole(coverage=seen), width=120)
    unstored = Coverage(0.0, 0.0, 0.0, None, True, "no kernel executed a store instruction")
    assert "SASS coverage: no kernel executed" in text(whole(coverage=unstored), width=120)
    unseen = Coverage(0.0, 100.0, 0.0, 0.0, False, "a profiler was active")
    assert "SASS figures are withheld" in text(whole(coverage=unseen), width=120)


def test_the_roofline_has_the_roofs_of_the_paths_that_worked_and_both_points():
    roofline = roofline_of(whole(roofs=()))
    found = {ceiling.path or ceiling.level: ceiling.value for ceiling in roofline.ceilings}
    assert found == {"sass_fp32": 66.9e12, "tensor_tf32": 494.7e12, "dram": 4.8e12}
    ours, study = roofline.points
    assert (ours.intensity, ours.flop_per_s) == (20, 500)  # 1000 / 50, 1000 / 2.0
    assert (study.intensity, study.flop_per_s) == (1.8, 72)  # 90 / 50, 90 / 1.25


def test_a_path_with_next_to_no_work_gets_no_roof():
    counters = dict.fromkeys(metrics.metric_set("full", "GH100"), 0.0) | COUNTERS
    counters[SASS.format("dfma")] = 4.0  # 8 of 1008 FLOP are 0.8%
    little = roofline_of(replace(record(counters), environment=H200, roofs=()))
    assert "sass_fp64" not in {ceiling.path for ceiling in little.ceilings}
    counters[SASS.format("dfma")] = 6.0  # 12 of 1012 are 1.2%
    more = roofline_of(replace(record(counters), environment=H200, roofs=()))
    assert "sass_fp64" in {ceiling.path for ceiling in more.ceilings}


def test_one_point_where_the_study_sees_everything():
    counters = {**COUNTERS, TF32: 0.0, SASS.format("hfma"): 0.0}
    assert len(roofline_of(record(counters)).points) == 1


def test_roofs_measured_on_a_cpu_are_drawn(tmp_path):
    roofs = (
        MeasuredRoof("fp32 GEMM", "flop", 1e4, 0.1, "torch.mm", "analytic_fp32", None),
        MeasuredRoof("DRAM", "byte", 1e3, 0.1, "copy", None, "dram"),
    )
    cpu = whole(roofs=roofs)
    assert {"measured"} <= {ceiling.source for ceiling in roofline_of(cpu).ceilings}
    path = save_plot(cpu, tmp_path / "roofline.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_placed_is_listed():
    nothing = whole(rounds=(), timing=None)
    roofline = roofline_of(nothing)
    assert roofline.points == ()
    assert [name for name, _ in roofline.left_out] == ["x, all FLOP"]
