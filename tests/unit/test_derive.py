"""Every formula, with numbers worked out by hand."""

from dataclasses import replace

import pytest
from test_record import sample

from roofprobe import metrics
from roofprobe.derive import figures
from roofprobe.record import Environment, KernelTimes, Round, Timing

SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
INT8 = "sm__ops_path_tensor_src_int8.sum"
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2 = "lts__t_bytes.sum"

# 10 + 20 + 2 * 30 = 90 FLOP in fp32 and 910 on tensor cores; 40 + 10 = 50 bytes.
COUNTERS = {
    SASS.format("fadd"): 10.0,
    SASS.format("fmul"): 20.0,
    SASS.format("ffma"): 30.0,
    SASS.format("hadd"): 1.0,
    SASS.format("hmul"): 2.0,
    SASS.format("hfma"): 3.0,
    TF32: 910.0,
    INT8: 7.0,
    READ: 40.0,
    WRITE: 10.0,
    L2: 200.0,
}


def record(*rounds, unavailable=None, chip=None, **changes):
    """A record of a chip without a metric table, so that what was asked for is all there is."""
    rounds = rounds or (COUNTERS,)
    return sample(
        environment=Environment("a GPU", "cuda", chip=chip),
        metrics=tuple(rounds[0]),
        rounds=tuple(Round(counters, 1, 0) for counters in rounds),
        unavailable=unavailable or {},
        timing=Timing((2.0, 2.0, 2.0), "cuda_events"),
        kernels=KernelTimes(1, 3, 0, 1.25, 1.0, 1.5, 0, 0),
        **changes,
    )


def test_flop_by_path_and_in_all():
    found = figures(record())
    assert found.flop["sass_fp32"].value == 90
    assert found.flop["tensor_tf32"].value == 910
    assert found.flop["sass_fp16"].value == 2 * 1 + 2 * 2 + 4 * 3
    assert found.flop["sass_fp16"].upper_bound
    assert found.flop["tensor_int8"].value == 7
    # The fp16 upper bound and integer operations stay outside the total.
    assert found.flop_total.value == 1000
    assert not found.flop_total.upper_bound


def test_bytes_intensity_and_rates():
    found = figures(record())
    assert found.byte["dram_read"].value == 40
    assert found.byte["dram_write"].value == 10
    assert found.byte["dram"].value == 50
    assert found.intensity["dram"].value == 20  # 1000 / 50
    assert found.intensity["l2"].value == 5  # 1000 / 200
    assert "l1" not in found.byte
    assert found.step_time.value == 2.0
    assert found.flop_per_s.value == 500  # 1000 / 2.0
    assert found.flop_per_s_kernel.value == 800  # 1000 / 1.25
    assert found.byte_per_s.value == 25  # 50 / 2.0
    assert found.busy_time.value == 1.0


def test_the_study_beside_ours():
    study = figures(record()).study
    assert study.flop.value == 90
    assert study.intensity.value == 1.8  # 90 / 50
    assert study.flop_per_s.value == 72  # 90 / 1.25
    assert study.ratio == pytest.approx(1000 / 90)
    assert "91.0% of the FLOP ran on tensor cores (mostly TF32)" in study.reason


def test_the_study_agrees_where_all_is_fp32():
    study = figures(record({**COUNTERS, TF32: 0.0})).study
    assert study.ratio == 1.0
    assert study.reason is None


def test_the_study_names_another_precision():
    counters = {**COUNTERS, TF32: 0.0, SASS.format("dfma"): 500.0}
    assert "another precision" in figures(record(counters)).study.reason


def test_no_study_without_fp32():
    assert figures(record({READ: 1.0, WRITE: 1.0})).study is None


def test_a_total_that_misses_a_part_is_none():
    counters = {**COUNTERS, SASS.format("ffma"): None}
    found = figures(record(counters, unavailable={SASS.format("ffma"): "no instrumentation"}))
    for figure in (found.flop["sass_fp32"], found.flop_total, found.intensity["dram"]):
        assert figure.value is None
        assert "no instrumentation" in figure.reason
    assert found.flop["tensor_tf32"].value == 910
    assert found.byte["dram"].value == 50
    assert found.study.flop.value is None


def test_a_total_without_a_path_that_the_chip_has_is_none():
    fp32_only = {SASS.format(op): 1.0 for op in ("fadd", "fmul", "ffma")}
    found = figures(record(fp32_only, chip="GV100"))
    assert found.flop["sass_fp32"].value == 4
    assert found.flop_total.value is None
    assert found.flop_per_s.value is None
    assert "tensor_fp16, sass_fp64" in found.flop_total.reason
    assert "sass_fp16" not in found.flop_total.reason
    assert found.study.flop.value == 4
    everything = dict.fromkeys(metrics.metric_set("full", "GV100"), 1.0)
    # Two tensor counters, fp32 4, fp64 4; the fp16 upper bound stays outside.
    assert figures(record(everything, chip="GV100")).flop_total.value == 2 + 4 + 4


def test_a_level_that_misses_a_direction_is_none():
    found = figures(record({**COUNTERS, WRITE: None}))
    assert found.byte["dram_read"].value == 40
    assert found.byte["dram"].value is None


def test_sectors_are_32_bytes_and_never_added_to_bytes():
    study_set = {
        "dram__sectors_read.sum": 3.0,
        "dram__sectors_write.sum": 1.0,
        "dram__bytes.sum": 128.0,
        SASS.format("fp16"): 9.0,
        **{SASS.format(op): 1.0 for op in ("fadd", "fmul", "ffma")},
    }
    found = figures(record(study_set))
    assert found.byte["dram"].value == 128  # (3 + 1) * 32
    assert found.flop_total.value == 4  # 1 + 1 + 2; op_fp16 is counted by the study, not used
    assert "study_fp16" not in found.flop


def test_spread_goes_through():
    rounds = [{**COUNTERS, READ: value} for value in (39.0, 41.0)]
    found = figures(record(*rounds))
    assert found.byte["dram"].value == 50
    assert found.byte["dram"].spread == pytest.approx(2 / 50)
    assert found.flop_total.spread == 0
    assert found.intensity["dram"].spread == pytest.approx(2 / 50)


def test_zero_is_a_value_and_division_by_it_is_not():
    found = figures(record({**COUNTERS, READ: 0.0, WRITE: 0.0}))
    assert found.byte["dram"].value == 0
    assert found.intensity["dram"].value is None
    assert "measured 0" in found.intensity["dram"].reason


def test_without_times_there_are_no_rates():
    found = figures(sample(timing=None, kernels=None, notes={"kernels": "held by another"}))
    assert found.flop_per_s.value is None
    assert found.kernel_time.reason == "held by another"


@pytest.mark.parametrize(("kind", "clock"), [("cpu", "perf_counter"), ("cuda", "cuda_events")])
def test_a_step_that_was_not_timed_has_the_clock_of_its_device(kind, clock):
    there = Environment("a device", kind)
    assert figures(sample(timing=None, environment=there)).step_time.source == clock


def test_a_model_s_totals_do_not_miss_what_no_model_counts():
    own = {row.name: 3.0 for row in metrics.ANALYTIC}
    asked = {**own, READ: None, TF32: None, L2: None}
    found = figures(record(asked, source="analytic"))
    assert found.flop_total.value == 15  # five precisions
    assert (found.byte["dram"].value, found.intensity["dram"].value) == (6, 2.5)
    assert set(found.byte) == {"dram", "dram_read", "dram_write"}
    assert "tensor_tf32" not in found.flop


def test_idle_is_what_no_kernel_ran_in():
    assert figures(record()).idle.value == 0.5  # 1 - 1.0 / 2.0
    longer = KernelTimes(1, 3, 0, 2.1, 2.1, 2.1, 0, 0)
    assert figures(replace(record(), kernels=longer)).idle.value == 0  # steps differ by 5%
    unlike = KernelTimes(1, 3, 0, 3.0, 3.0, 3.0, 0, 0)
    idle = figures(replace(record(), kernels=unlike)).idle
    assert idle.value is None
    assert "longer than a timed step" in idle.reason
    assert figures(sample(kernels=None, notes={"kernels": "held"})).idle.reason == "held"


def test_fma_share_counts_instructions():
    assert figures(record()).fma_share.value == 0.5  # 30 of 10 + 20 + 30
    assert figures(record({READ: 1.0, WRITE: 1.0})).fma_share.value is None
    unread = record({**COUNTERS, SASS.format("fadd"): None})
    assert figures(unread).fma_share.value is None


def test_step_time_spread_feeds_the_rate():
    step = replace(record(), timing=Timing((1.9, 2.0, 2.2), "cuda_events"))
    found = figures(step)
    assert found.flop_per_s.spread == pytest.approx(0.3 / 2.0)
    assert found.intensity["dram"].spread is None  # one round, and no time in it


def test_a_part_of_a_path_is_not_the_path():
    partial = {SASS.format("fadd"): 10.0, SASS.format("fmul"): 20.0, TF32: 910.0}
    found = figures(record(partial, chip="GH100"))
    assert found.flop["sass_fp32"].value is None
    assert "ffma_pred_on.sum" in found.flop["sass_fp32"].reason
    assert found.flop["tensor_tf32"].value == 910
    assert found.flop_total.value is None
    # Nothing is known of what a chip without a table counts.
    assert figures(record(partial)).flop["sass_fp32"].value == 30


def test_one_direction_is_not_the_level():
    found = figures(record({READ: 40.0, SASS.format("fadd"): 10.0}))
    assert found.byte["dram_read"].value == 40
    assert found.byte["dram"].value is None
    assert found.byte["dram"].reason == "this run counted DRAM bytes read only"
    assert found.intensity["dram"].value is None
    # A counter of both directions beside one of them is the level's own figure.
    both = figures(record({READ: 40.0, "dram__bytes.sum": 50.0}))
    assert both.byte["dram"].value == 50


def test_the_fp32_set_counts_all_of_its_path_on_every_chip():
    for family in metrics.FAMILIES:
        for chip in family.chips:
            asked = set(metrics.metric_set("fp32", chip))
            assert {row.name for row in metrics.rows_of_path(chip, "sass_fp32")} <= asked, chip
