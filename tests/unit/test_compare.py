"""Comparisons of real H200 runs, of records varied from them, and the gates."""

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import roofprobe
from roofprobe.cli import compare as cli_compare
from roofprobe.cli import main
from roofprobe.compare import Gate, check, compare, parse_gates, plain, signed
from roofprobe.errors import UsageError
from roofprobe.record import Coverage, Measurement, Round, Timing

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests/data/runs"
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2, L1 = "lts__t_bytes.sum", "l1tex__t_bytes.sum"
BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
HFMA = "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum"
ALL_SASS = "smsp__sass_thread_inst_executed_op_"


def run_file(name: str) -> Path:
    return RESULTS / name / "run.json"


def load(name: str) -> Measurement:
    return Measurement.load(run_file(name))


def with_counters(record: Measurement, *rounds: dict[str, float | None]) -> Measurement:
    """The record with counters of its one round replaced; one round for each mapping."""
    counters = record.rounds[0].counters
    return replace(record, rounds=tuple(Round({**counters, **new}, 7, 0) for new in rounds))


def scaled(record: Measurement, factors: dict[str, float]) -> Measurement:
    counters = record.rounds[0].counters
    return with_counters(record, {name: counters[name] * by for name, by in factors.items()})


@pytest.fixture(scope="module")
def tf32() -> Measurement:
    return load("resnet18-b256")


@pytest.fixture(scope="module")
def fp32() -> Measurement:
    return load("resnet18-b256-no-tf32")


# Figures.


def test_the_figures_of_both_runs_stand_beside_each_other(fp32, tf32):
    found = {change.quantity: change for change in compare(fp32, tf32).changes}
    values = {name: (c.before.value, c.after.value) for name, c in found.items()}
    # fadd + fmul + 2 ffma, and two FLOP for each dfma of the run without TF32.
    sass = 27_779_594_014 + 11_401_938_728 + 2 * 928_549_098_589
    left = 5_211_901_726 + 7_141_270_184 + 2 * 13_507_888_477
    assert values["flop.sass_fp32"] == (sass, left)
    assert values["flop.sass_fp64"] == (2 * 28_311_552, 0)
    assert values["flop.tensor_tf32"] == (0, 2_766_122_516_480)
    assert values["flop"] == (sass + 56_623_104, left + 2_766_122_516_480)
    assert values["dram_bytes"] == (89_185_817_856, 79_718_491_392)
    assert values["launches"] == (345, 384)
    changes = {name: c.fraction for name, c in found.items()}
    assert changes["flop"] == pytest.approx(0.47943, abs=5e-6)
    assert changes["flop.tensor_tf32"] == math.inf
    assert changes["flop.sass_fp64"] == -1
    assert changes["dram_bytes"] == pytest.approx(-0.10615, abs=5e-6)
    # 35.1925 / 21.2628
    assert changes["intensity"] == pytest.approx(0.65512, abs=5e-6)
    # 46.97896 ms of 88.78138 ms
    assert changes["step_time"] == pytest.approx(-0.47085, abs=5e-6)
    # 1 - 88.06002 / 88.78138 and 1 - 46.79239 / 46.97896
    assert values["gpu_idle"] == pytest.approx((0.008125, 0.003971), abs=1e-6)


def test_tf32_in_words(fp32, tf32):
    *found, judged = compare(fp32, tf32).findings
    assert found == [
        "changed most: L1 bytes, which fell by 58.6% (from 246.7 GB to 102.1 GB)",
        "FLOP moved from FP32 CUDA cores (from 1.896 TFLOP to 39.37 GFLOP) to TF32 tensor "
        "(from 0 FLOP to 2.766 TFLOP); the total rose by 47.9%: other kernels do other arithmetic "
        "for the same result (padding, Winograd)",
        "DRAM bytes fell by 10.6%",
        "L2 bytes fell by 18.1%, L1 bytes fell by 58.6%",
        "intensity rose by 65.5% (from 21.26 FLOP/B to 35.19 FLOP/B)",
        "launches rose from 345 to 384",
        "step time fell by 47.1% (from 88.78 ms to 46.98 ms): kernels ran shorter",
    ]
    assert judged.startswith("verdict: ")
    assert "not judged" in judged


@pytest.mark.parametrize(
    ("recorded", "result"),
    [
        ("resnet18-b256-tf32", "resnet18-b256"),
        ("resnet18-b256-fp32", "resnet18-b256-no-tf32"),
        ("alexnet-b256-tf32", "alexnet-b256"),
    ],
)
def test_runs_of_one_step_in_two_processes_differ_by_noise_alone(recorded, result):
    before, after = Measurement.load(ROOT / f"tests/data/{recorded}.json"), load(result)
    comparison = compare(before, after)
    assert comparison.findings == ("nothing changed beyond noise",)
    gates = parse_gates("flop>+0.1%,flop<-0.1%,dram_bytes>+0.5%,l1_bytes>+0.5%,launches>+0%")
    assert not any(outcome.tripped for outcome in check(comparison, gates))


def test_a_run_against_itself(tf32):
    comparison = compare(tf32, tf32)
    assert {change.fraction for change in comparison.changes} == {0.0}
    assert comparison.findings == ("nothing changed beyond noise",)
    assert comparison.differences == comparison.notes == ()


# Words for single causes.


def test_fusion(tf32):
    fused = scaled(tf32, {READ: 0.69, WRITE: 0.69, L2: 0.69, L1: 0.69})
    fused = replace(fused, kernels=replace(tf32.kernels, launches=120.0))
    assert compare(tf32, fused).findings[:-1] == (
        "changed most: launches, which fell by 68.8% (from 384 to 120)",
        "DRAM bytes fell by 31%, FLOP stayed: fewer passes over memory (fusion, fewer copies)",
        "L2 bytes fell by 31%, L1 bytes fell by 31%",
        "intensity rose by 44.9% (from 35.19 FLOP/B to 51 FLOP/B)",
        "launches fell from 384 to 120: fewer kernels for the same arithmetic",
    )


def with_precision(record: Measurement, **settings: bool | str | None) -> Measurement:
    there = record.environment
    precision = {**there.precision, **settings}
    return replace(record, environment=replace(there, precision=precision))


def test_bytes_of_another_precision_have_no_cause(tf32):
    fewer = scaled(tf32, {READ: 0.69, WRITE: 0.69, L2: 0.69, L1: 0.69})
    bare = "DRAM bytes fell by 31%, FLOP stayed"
    assert bare not in compare(tf32, fewer).findings
    assert bare in compare(tf32, with_precision(fewer, autocast=True)).findings
    amp = replace(fewer, workload={**fewer.workload, "amp": "bf16"})
    assert bare in compare(tf32, amp).findings
    # The same settings, and the model itself is of another type: its FLOP are on another path.
    moved = with_counters(fewer, {TF32: 0.0, BF16: fewer.rounds[0].counters[TF32]})
    assert bare in compare(tf32, moved).findings
    # Settings that leave elements as wide as they are say nothing against passes.
    benched = with_precision(fewer, cudnn_benchmark=True)
    assert f"{bare}: fewer passes over memory (fusion, fewer copies)" in (
        compare(tf32, benched).findings
    )


def test_twice_the_bytes_and_flop_of_another_precision_are_not_called_more_work(tf32):
    flop = [name for name in tf32.metrics if name.startswith(ALL_SASS)]
    doubled = scaled(tf32, dict.fromkeys([READ, WRITE, L2, L1, TF32, *flop], 2.0))
    found = compare(tf32, with_precision(doubled, autocast=True)).findings
    assert "DRAM bytes rose by 100%" in found


def test_autocast_that_was_not_seen_is_not_known(tf32):
    # Records once held False for every step that switched it on and off again.
    off, unknown = (with_precision(tf32, autocast=value) for value in (False, None))
    assert compare(off, unknown).differences == ()
    fewer = scaled(unknown, {READ: 0.69, WRITE: 0.69, L2: 0.69, L1: 0.69})
    bare = "DRAM bytes fell by 31%, FLOP stayed"
    # FLOP by precision stayed where they were, so matrix products are as wide as before.
    assert f"{bare}: fewer passes over memory (fusion, fewer copies)" in (
        compare(off, fewer).findings
    )
    on = with_precision(fewer, autocast=True, autocast_dtype="bfloat16")
    for before in (off, unknown):
        comparison = compare(before, on)
        assert bare in comparison.findings
        assert [str(found) for found in comparison.differences] == [
            "autocast None -> True",
            "autocast_dtype None -> bfloat16",
        ]
    half = with_precision(tf32, autocast=True, autocast_dtype="float16")
    assert bare in compare(half, on).findings


@pytest.mark.parametrize("operator", ["conv", "rnn"])
def test_operators_that_are_set_apart_may_compute_in_another_width(tf32, operator):
    fewer = scaled(tf32, {READ: 0.69, WRITE: 0.69, L2: 0.69, L1: 0.69})
    apart = with_precision(tf32, **{f"cudnn_{operator}_fp32_precision": "ieee"})
    assert "DRAM bytes fell by 31%, FLOP stayed" in compare(apart, fewer).findings


def test_traffic_that_misses_l2(tf32):
    missing = scaled(tf32, {READ: 1.2, WRITE: 1.2})
    assert (
        "DRAM bytes rose by 20%, FLOP stayed and so did L2 bytes: the same traffic reached L2, and "
        "less of it was found there"
    ) in compare(tf32, missing).findings


def test_more_of_the_same_work(tf32):
    flop = [name for name in tf32.metrics if name.startswith(ALL_SASS)]
    doubled = scaled(tf32, dict.fromkeys([READ, WRITE, L2, L1, TF32, *flop], 2.0))
    found = compare(tf32, doubled).findings
    assert "DRAM bytes rose by 100%, as did FLOP: more of the same work" in found
    assert not [text for text in found if text.startswith("intensity")]


def test_waiting(tf32):
    step = tuple(2 * step for step in tf32.timing.step)
    waiting = replace(tf32, timing=Timing(step, "cuda_events"))
    found = compare(tf32, waiting).findings
    assert found[-3] == (
        "step time rose by 100% (from 46.98 ms to 93.96 ms): the GPU waited more between kernels"
    )
    assert found[-2] == "GPU idle rose from 0.397% to 50.2%"


def test_the_verdict_of_both(tf32):
    # At batch 4 no kernel runs in 80.8% of the step. Reads that take 9/10 of the step at 4.8 TB/s
    # are bound by DRAM: 0.9 * 46.98 ms * 4.8e12 byte/s are 203 GB.
    streaming = with_counters(tf32, {READ: 203e9, WRITE: 0.0})
    streaming = replace(streaming, workload=load("resnet18-b4").workload)
    assert compare(load("resnet18-b4"), streaming).findings[-1] == (
        "verdict: bound by latency between kernels before, bound by DRAM after"
    )
    slower = replace(load("resnet18-b4"), timing=Timing((0.1,), "cuda_events"))
    assert compare(load("resnet18-b4"), slower).findings[-1] == (
        "verdict: still bound by latency between kernels"
    )


def test_kernel_time_that_the_step_does_not_follow(tf32):
    kernels = replace(tf32.kernels, sum=0.9 * tf32.kernels.sum)
    found = compare(tf32, replace(tf32, kernels=kernels)).findings
    assert found[-2] == (
        "kernel time fell by 10% while step time stayed within its noise of 2%: the step waits "
        "for something else, or kernel records are incomplete"
    )


def test_graphs(tf32):
    kernels = replace(tf32.kernels, graph_launches=380.0)
    found = compare(tf32, replace(tf32, kernels=kernels, timing=Timing((1.0,), "cuda_events")))
    assert "launches from CUDA graphs: 0 before, 380 after" in found.findings


def test_what_is_within_noise_is_not_put_into_words(tf32):
    assert compare(tf32, scaled(tf32, {READ: 1.004, WRITE: 1.004})).findings == (
        "nothing changed beyond noise",
    )
    # Beyond noise, and too small for a cause.
    found = compare(tf32, scaled(tf32, {READ: 1.01, WRITE: 1.01})).findings
    assert "DRAM bytes rose by 1%" in found


def test_the_spread_between_rounds_is_noise_too(tf32):
    read = tf32.rounds[0].counters[READ]
    # 0.94 and 1.06: a mean of 1 and a spread of 12%.
    wide = with_counters(tf32, {READ: 0.94 * read}, {READ: 1.06 * read})
    change = compare(wide, scaled(tf32, {READ: 1.1})).change("dram_read_bytes")
    assert change.fraction == pytest.approx(0.1)
    assert change.noise == pytest.approx(0.12)
    assert not change.notable


def test_step_times_of_an_unsteady_run_are_noisy(tf32):
    # The recorded run at batch 4 says so itself: its steps differ by 22%.
    change = compare(tf32, load("resnet18-b4")).change("step_time")
    assert change.noise == pytest.approx(0.2169, abs=5e-5)


# What is 0, not known or infinite on either side.


LITTLE = load("resnet18-b4")
SIDES = ("before", "after")
AMOUNTS = st.sampled_from([0.0, None, math.inf, 100.0, 101.0, 200.0])


@st.composite
def degenerate(draw) -> Measurement:
    """A record of which FLOP, traffic, times or launches are 0, not known, infinite or a number."""
    flop, dram, l2 = draw(AMOUNTS), draw(AMOUNTS), draw(AMOUNTS)
    nothing = dict.fromkeys(LITTLE.rounds[0].counters, 0.0)
    record = with_counters(LITTLE, {**nothing, TF32: flop, READ: dram, L2: l2})
    step = draw(st.sampled_from([None, 1e-3, 2e-3]))
    busy, launches = draw(st.sampled_from([None, 0.0, 1e-3])), draw(st.sampled_from([0.0, 100.0]))
    kernels = replace(LITTLE.kernels, sum=busy or 0.0, union=busy or 0.0, launches=launches)
    return replace(
        record,
        timing=Timing((step,), "cuda_events") if step else None,
        kernels=kernels if busy is not None else None,
    )


# 0 stands for no work: it is no multiple of anything, and nothing but 0 is a multiple of it.
@given(degenerate(), degenerate())
def test_whatever_is_nothing_on_either_side_there_is_a_table_and_gates(before, after):
    comparison = compare(before, after)
    gated = ["flop", "dram_bytes", "l2_bytes", "launches", "step_time", "kernel_time"]
    outcomes = check(comparison, parse_gates(",".join(f"{name}>+2%" for name in gated)))
    for name, outcome in zip(gated, outcomes, strict=True):
        old, new = (getattr(comparison.change(name), side).value for side in SIDES)
        known = old is not None and new is not None
        assert outcome.tripped == (not known or Fraction(new) > Fraction(old) * Fraction(102, 100))
    # The verdict of an infinite count, which no file of a record can hold, may say so.
    found = comparison.findings
    found = found[:-1] if found[-1].startswith("verdict: ") else found
    comparison = replace(comparison, findings=found)
    shown = cli_compare.text(comparison, outcomes, (Path("a"), Path("b")))
    assert not re.search(r"\b(nan|inf)\b", shown)
    json.dumps([plain(change) for change in comparison.changes], allow_nan=False)
    flop, dram = (comparison.change(name) for name in gated[:2])
    if not (dram.before.value and dram.after.value):
        assert not [text for text in found if "as did FLOP" in text or "passes" in text]
    if "as did FLOP" in shown:
        old, new = (getattr(flop, side).value / getattr(dram, side).value for side in SIDES)
        assert old == pytest.approx(new, rel=0.03)


def test_flop_that_fall_to_0_have_a_table_and_gates(tmp_path, capsys, tf32):
    nothing = {name: 0.0 for name in tf32.metrics if name.startswith(ALL_SASS)} | {TF32: 0.0}
    without = with_counters(tf32, {**nothing, READ: 1e9, WRITE: 1e9})
    path = without.save(tmp_path / "run.json")
    # 79.72 GB to 2 GB are -97.5%
    assert command(run_file("resnet18-b256"), path, "--fail-on", "dram_bytes>+2%") == 0
    said = capsys.readouterr().out
    assert "* FLOP fell by 100%, on FP32 CUDA cores (from 39.37 GFLOP to 0 FLOP)" in said
    assert "* DRAM bytes fell by 97.5%.\n" in said
    assert command(path, run_file("resnet18-b256"), "--fail-on", "dram_bytes>+2%", "--json") == 3
    body = json.loads(capsys.readouterr().out)
    assert "DRAM bytes rose by 3886%" in body["findings"]


def test_two_rises_from_0_are_not_the_same_rise(tf32):
    idle = with_counters(tf32, dict.fromkeys(tf32.rounds[0].counters, 0.0))
    found = compare(idle, tf32).findings
    assert "DRAM bytes rose from 0" in found
    assert "DRAM bytes fell by 100%" in compare(tf32, idle).findings


def test_data_that_now_stay_in_l2_are_told_from_fewer_passes(tf32):
    stayed = with_counters(tf32, {READ: 0.0, WRITE: 0.0})
    assert (
        "DRAM bytes fell by 100%, FLOP stayed and so did L2 bytes: the same traffic reached L2, "
        "and more of it was found there"
    ) in compare(tf32, stayed).findings


UNSEEN = (
    "the analytic model takes compiled functions as eager ones, so what fusion saves does not show "
    "in FLOP and bytes"
)


def test_a_model_of_a_compiled_step_says_that_it_saw_it_eager(tf32):
    eager, compiled = (
        replace(tf32, source="analytic", workload={**tf32.workload, "compile": on})
        for on in (False, True)
    )
    assert compare(eager, compiled).findings == ("nothing changed beyond noise", UNSEEN)
    slower = replace(compiled, timing=Timing((1.0,), "cuda_events"))
    assert UNSEEN in compare(eager, slower).findings
    bare = replace(eager, workload={k: v for k, v in eager.workload.items() if k != "compile"})
    assert UNSEEN in compare(compiled, bare).findings
    assert UNSEEN not in compare(eager, bare).findings
    assert UNSEEN not in compare(compiled, slower).findings
    # Counters see what was fused.
    counted = [replace(record, source="cupti") for record in (eager, compiled)]
    assert UNSEEN not in compare(*counted).findings


# What may be compared.


def test_another_batch_size_is_labelled_and_divided_by(tf32):
    comparison = compare(tf32, load("resnet18-b4"))
    assert [(d.name, d.before, d.after) for d in comparison.differences if d.effect == "work"] == [
        ("batch_size", 256, 4)
    ]
    found = {change.quantity: change.per_image for change in comparison.changes}
    # 41,387,741,860 / 4 over 2,805,491,465,344 / 256
    assert found["flop"] == pytest.approx(-0.05585, abs=5e-6)
    # 1,052,899,584 / 4 over 79,718,491,392 / 256
    assert found["dram_bytes"] == pytest.approx(-0.15471, abs=5e-6)
    assert found["launches"] is None
    assert found["intensity"] is None
    # No causes: what follows a colon would be one.
    assert not [text for text in comparison.findings[1:-1] if ":" in text]


def test_a_gate_across_different_work_is_refused(tf32):
    gates = parse_gates("flop>+1%")
    for other in (load("resnet18-b4"), load("alexnet-b256")):
        comparison = compare(tf32, other)
        with pytest.raises(UsageError, match="different work or devices"):
            check(comparison, gates)
        assert check(comparison, ()) == ()
        assert not check(comparison, gates, anyway=True)[0].tripped


def test_a_gate_across_gpus_is_refused(tf32):
    other = replace(tf32, environment=replace(tf32.environment, device_name="NVIDIA H100"))
    with pytest.raises(UsageError, match="NVIDIA H200 -> NVIDIA H100"):
        check(compare(tf32, other), parse_gates("flop>+1%"))


def test_another_unit_of_the_same_gpu_is_the_same(tf32):
    other = replace(tf32, environment=replace(tf32.environment, uuid="GPU-1"))
    assert compare(tf32, other).differences == ()


def test_a_fact_that_one_record_lacks_is_no_other_work(tf32):
    bare = replace(tf32, workload={})
    comparison = compare(bare, tf32)
    assert {found.effect for found in comparison.differences} == {"setting"}
    assert not check(comparison, parse_gates("flop>+1%"))[0].tripped


UNSURE = (
    "FLOP differ by more than 3%, and not both batch sizes are known: they may differ, so no cause "
    "is named"
)


def without_batch_size(record: Measurement) -> Measurement:
    facts = {key: value for key, value in record.workload.items() if key != "batch_size"}
    return replace(record, workload=facts)


@pytest.mark.parametrize(
    ("sides", "who"),
    [
        ((True, True), "neither run says its"),
        ((True, False), "before does not say its"),
        ((False, True), "after does not say its"),
    ],
)
def test_a_batch_size_that_is_not_known_is_noted(tf32, sides, who):
    flop = [name for name in tf32.metrics if name.startswith(ALL_SASS)]
    records = [tf32, scaled(tf32, dict.fromkeys([READ, WRITE, L2, L1, TF32, *flop], 4.0))]
    records = [
        without_batch_size(record) if silent else record
        for record, silent in zip(records, sides, strict=True)
    ]
    comparison = compare(*records)
    assert comparison.notes == (
        f"{who} batch size, so it is not known whether both did the same amount of work: pass "
        "workload={'batch_size': ...} to measure()",
    )
    assert UNSURE in comparison.findings
    # Four times the images would do all of this; none of it is a cause.
    assert "DRAM bytes rose by 300%" in comparison.findings
    # Gates hold and trip as before.
    flop_gate, launches = check(comparison, parse_gates("flop>+1%,launches>+0%"))
    assert (flop_gate.tripped, launches.tripped) == (True, False)


def test_flop_that_stay_do_not_suggest_another_batch_size(tf32):
    before = without_batch_size(tf32)
    less = without_batch_size(scaled(tf32, {TF32: 0.98, READ: 0.69, WRITE: 0.69}))
    same = without_batch_size(scaled(tf32, {READ: 0.69, WRITE: 0.69, L2: 0.69, L1: 0.69}))
    for after in (less, same):
        comparison = compare(before, after)
        assert len(comparison.notes) == 1
        assert UNSURE not in comparison.findings
    # Causes are told as before.
    assert (
        "DRAM bytes fell by 31%, FLOP stayed: fewer passes over memory (fusion, fewer copies)"
        in (compare(before, same).findings)
    )


def test_known_batch_sizes_leave_nothing_open(fp32, tf32):
    comparison = compare(fp32, tf32)  # FLOP rose by 48%
    assert comparison.notes == ()
    assert UNSURE not in comparison.findings


def test_a_model_of_two_batch_sizes_is_not_compared_silently(tmp_path, capsys):
    """As a user's own loop records it: no batch size, and the same name."""
    paths = []
    for images in (64, 256):
        a, w = torch.ones(images, 128), torch.ones(128, 128)
        record = roofprobe.measure_step(
            partial(torch.mm, a, w), "my model", warmup=1, timed=2, backend="analytic"
        )
        paths.append(record.save(tmp_path / f"{images}.json"))
    assert command(*paths, "--fail-on", "flop>+400%") == 0
    said = " ".join(capsys.readouterr().out.split())
    # 2 x 64 x 128 x 128 and four times that
    assert "FLOP rose by 300%, on FP32 analytic (from 2.097 MFLOP to 8.389 MFLOP)" in said
    assert "note: neither run says its batch size" in said
    assert UNSURE in said
    assert command(*paths, "--fail-on", "flop>+200%") == 3


def test_rates_of_bytes_are_no_bytes(tf32):
    """A run of the study's set without its sectors has rates, and no total of DRAM bytes."""
    read, write = (f"{name}.per_second" for name in (READ, WRITE))
    rates = {read: 9.9e11, write: 6.4e11}
    bare = replace(tf32, metrics=tuple(rates), rounds=(Round(rates, 1, 0),))
    change = compare(bare, bare).change(read)
    assert (change.fraction, change.noise) == (0, 0.13)  # as the time of the range
    dram = compare(bare, tf32).change("dram_bytes")
    assert (dram.before.value, dram.after.value) == (None, 79_718_491_392)


def test_model_and_counters_are_not_compared(tf32):
    model = replace(tf32, source="analytic")
    with pytest.raises(UsageError, match=r"mean different things \(source analytic -> cupti\)"):
        compare(model, tf32)
    assert compare(model, tf32, anyway=True).differences[0].effect == "meaning"


def test_a_played_back_image_holds_the_same_counts(tf32):
    assert compare(replace(tf32, source="recorded"), tf32).differences == ()


def test_a_model_does_not_depend_on_the_machine(tf32):
    model = replace(tf32, source="analytic")
    other = replace(model, environment=replace(model.environment, device_name="another CPU"))
    assert [found.effect for found in compare(model, other).differences] == ["setting"]


def test_settings_are_named(fp32, tf32):
    assert [str(found) for found in compare(fp32, tf32).differences] == [
        "tf32 False -> None",
        "cudnn_allow_tf32 False -> True",
    ]


def test_incomplete_and_uncovered_runs_are_noted(tf32):
    sass = [name for name in tf32.metrics if "__sass_" in name]
    uncovered = replace(
        with_counters(tf32, dict.fromkeys(sass)),
        unavailable=dict.fromkeys(sass, "kernels came from a CUDA graph"),
        coverage=Coverage(0.0, 100.0, 0.0, 0.0, False, "kernels came from a CUDA graph"),
        complete=False,
        steps_missing=3,
    )
    comparison = compare(tf32, uncovered)
    assert comparison.notes == (
        "after is incomplete: 3 steps were missing, 1 whole rounds are compared",
        "after has no SASS figures: kernels came from a CUDA graph",
    )
    flop, dram = check(comparison, parse_gates("flop>+50%,dram_bytes>+2%"))
    assert flop.tripped
    assert "CUDA graph" in flop.message
    assert not dram.tripped


def test_sums_of_different_parts_are_not_compared(tf32):
    names = tuple(name for name in tf32.metrics if name not in (WRITE, FFMA))
    comparison = compare(tf32, replace(tf32, metrics=names))
    found = {change.quantity: change for change in comparison.changes}
    for quantity, why in (
        ("dram_bytes", "after: this run counted DRAM bytes read only"),
        ("intensity", "after: this run did not count "),
        ("flop.sass_fp32", f"after: this run did not count {FFMA}"),
        ("flop", f"after: this run did not count {FFMA}"),
    ):
        assert found[quantity].fraction is None, quantity
        assert found[quantity].missing.startswith(why), quantity
    assert found["dram_read_bytes"].fraction == 0
    assert found["dram_write_bytes"].missing == "after: no such counter was asked for"
    assert found["flop.tensor_tf32"].fraction == 0


def test_sums_of_a_chip_without_a_table_have_no_known_parts(tf32):
    # Nobody knows then what makes up a path, so only the same parts can be compared.
    unknown = replace(tf32, environment=replace(tf32.environment, chip=None))
    names = tuple(name for name in tf32.metrics if name != FFMA)
    found = {
        change.quantity: change
        for change in compare(unknown, replace(unknown, metrics=names)).changes
    }
    for quantity in ("flop.sass_fp32", "flop", "intensity"):
        assert found[quantity].fraction is None, quantity
        assert "different parts" in found[quantity].missing


def test_metrics_of_one_run_are_noted(tf32):
    counters = {k: v for k, v in tf32.rounds[0].counters.items() if k not in (L1, L2)}
    names = tuple(name for name in tf32.metrics if name in counters)
    fewer = replace(tf32, metrics=names, rounds=(Round(counters, 7, 0),))
    assert compare(tf32, fewer).notes == (f"counted in before only: {L1}, {L2}",)


def test_numbers_that_are_none(tf32):
    broken = with_counters(tf32, {L2: math.nan})
    (outcome,) = check(compare(tf32, broken), parse_gates("l2_bytes>+2%"))
    assert outcome.tripped
    assert "no finite number" in outcome.message


def test_busier_than_the_step_is_no_idle_share(tf32):
    step = Timing((0.04,), "cuda_events")  # kernels ran for 46.8 ms
    change = compare(tf32, replace(tf32, timing=step)).change("gpu_idle")
    assert change.after.value is None
    assert "ran longer than" in change.missing


# Gates.


def test_gates_are_read():
    assert parse_gates(" dram_bytes > +2% ,flop.tensor_tf32<-0.5%,dram__bytes.sum>+10 %") == (
        Gate("dram_bytes > +2%", "dram_bytes", True, Fraction(1, 50)),
        Gate("flop.tensor_tf32<-0.5%", "flop.tensor_tf32", False, Fraction(-1, 200)),
        Gate("dram__bytes.sum>+10 %", "dram__bytes.sum", True, Fraction(1, 10)),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a gate is a quantity"),
        ("flop>+1%,", "a gate is a quantity"),
        ("flop", "a gate is a quantity"),
        ("flop=+1%", "a gate is a quantity"),
        ("flop>+1%>+2%", "a gate is a quantity"),
        (">+1%", "there is no quantity ''"),
        ("flops>+1%", "there is no quantity 'flops'; there are flop, dram_bytes"),
        ("flop.tensor>+1%", "tensor_tf32"),
        ("gpu_idle>+1%", "gpu_idle is a share of the step"),
        ("tensor_tf32>+1%", "there is no quantity"),
        ("flop>1%", "with its sign"),
        ("flop>5e9", "absolute values are not taken"),
        ("flop>+5e9%", "with its sign"),
        ("flop>=+1%", "with its sign"),
        ("flop>+inf%", "with its sign"),
        ("flop>+1٣%", "with its sign"),
        ("flop<-100%", "can never trip"),
    ],
)
def test_what_is_no_gate_is_refused_with_a_sentence(text, why):
    with pytest.raises(UsageError) as caught:
        parse_gates(text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


NAMES = st.sampled_from(["flop", "dram_bytes", "flop.sass_fp32", "dram__bytes.sum", "x", ""])
LIMITS = st.from_regex(r"[+-]?[0-9]{0,12}(\.[0-9]{0,12})?(e9)?%?", fullmatch=True)
GATES = st.builds("".join, st.tuples(NAMES, st.sampled_from([">", "<", ">=", ""]), LIMITS))


@given(st.one_of(st.text(), st.lists(GATES, max_size=3).map(",".join)))
@example("flop>+" + "9" * 5000 + "%")
@example("flop>+1%\n")
def test_any_text_is_gates_or_one_error(text):
    try:
        gates = parse_gates(text)
    except UsageError as error:
        assert str(error).startswith("--fail-on ")
        assert "\n" not in str(error)
    else:
        assert len(gates) == text.count(",") + 1
        for gate, part in zip(gates, text.split(","), strict=True):
            assert gate.text == part.strip()
            assert part.strip().startswith(gate.quantity)
            assert gate.above == (">" in part)


@given(st.integers(1, 2**60), st.integers(0, 2**60), st.integers(-99, 500))
def test_a_gate_trips_exactly_beyond_its_threshold(before, after, limit):
    record = load("resnet18-b4")
    first, second = (with_counters(record, {L2: value}) for value in (before, after))
    text = f"l2_bytes>{limit:+d}%,l2_bytes<{limit:+d}%"
    above, below = check(compare(first, second), parse_gates(text))
    # The record keeps floats; what these hold is compared without rounding.
    old, new = Fraction(float(before)), Fraction(float(after))
    assert above.tripped == (100 * new > (100 + limit) * old)
    assert below.tripped == (100 * new < (100 + limit) * old)


def test_a_change_of_just_the_threshold_holds(tf32):
    first, second = (with_counters(tf32, {L2: value}) for value in (100.0, 102.0))
    assert 102.0 / 100.0 - 1 > 0.02  # what floats make of it
    assert not check(compare(first, second), parse_gates("l2_bytes>+2%"))[0].tripped


def test_a_rise_from_zero(fp32, tf32):
    comparison = compare(fp32, tf32)
    text = "flop.tensor_tf32>+500%,flop.tensor_tf32<-1%,flop.tensor_fp8>+0%"
    rise, fall, nothing = check(comparison, parse_gates(text))
    assert rise.tripped
    assert "a rise from 0, of which there is no percentage" in rise.message
    assert not fall.tripped
    assert not nothing.tripped  # 0 before and after


def test_a_gate_names_both_values_and_the_change(fp32, tf32):
    gates = parse_gates("dram_bytes>+2%,dram_bytes>-20%,step_time>+1%")
    held, tripped, narrow = check(compare(fp32, tf32), gates)
    assert held.message == ("dram_bytes>+2% holds: before 89.19 GB, after 79.72 GB, change -10.6%")
    assert tripped.tripped
    assert tripped.message == (
        "dram_bytes>-20% trips: before 89.19 GB, after 79.72 GB, change -10.6%"
    )
    assert narrow.message.endswith("repeats of one step differ by up to 2%")


def test_a_gate_on_a_metric(fp32, tf32):
    comparison = compare(fp32, tf32)
    (outcome,) = check(comparison, parse_gates(f"{HFMA}<-50%"))
    # 2,646,369,184 and 333,491,072
    assert outcome.change.fraction == pytest.approx(-0.87398, abs=5e-6)
    assert outcome.tripped
    with pytest.raises(UsageError, match="neither run asked for 'dram__bites"):
        check(comparison, parse_gates("dram__bites_read.sum>+1%"))


def test_a_gate_on_what_nobody_counted_trips(tf32):
    (outcome,) = check(compare(tf32, tf32), parse_gates("flop.analytic_fp32>+1%"))
    assert outcome.tripped
    assert "no such counter was asked for" in outcome.message


def test_a_gate_without_kernel_records_trips_with_the_reason(tf32):
    blind = replace(tf32, kernels=None, notes={"kernels": "cupti-python is not installed"})
    (outcome,) = check(compare(tf32, blind), parse_gates("launches>+0%"))
    assert outcome.message == (
        "launches>+0% trips: before 384, after n/a (after: cupti-python is not installed)"
    )


def test_signs():
    assert [signed(x) for x in (None, 0.0, 0.1189, -0.5, math.inf)] == [
        "n/a",
        "0%",
        "+11.9%",
        "-50%",
        "from 0",
    ]


# The command.


def command(*arguments: object) -> int:
    return main(["compare", *map(str, arguments)])


def test_the_table(capsys):
    before, after = run_file("resnet18-b256-no-tf32"), run_file("resnet18-b256")
    assert command(before, after) == 0
    shown = capsys.readouterr().out
    rows = {
        cells[0]: cells[1:]
        for cells in ([cell.strip() for cell in line.split("│")] for line in shown.splitlines())
        if len(cells) > 1
    }
    assert rows["dram_bytes"] == ["89.19 GB", "79.72 GB", "-10.6%", "0.5%", "cupti"]
    assert rows["flop.tensor_tf32"] == ["0 FLOP", "2.766 TFLOP", "from 0", "0.05%", "cupti"]
    assert rows["flop.sass_fp16"][:2] == ["<= 10.59 GFLOP", "<= 1.334 GFLOP"]
    assert rows["gpu_idle"][:3] == ["0.813%", "0.397%", "-0.4 pp"]
    assert "flop.tensor_fp8" not in rows  # 0 in both
    assert "differs: tf32 False -> None, cudnn_allow_tf32 False -> True" in shown
    assert "* DRAM bytes fell by 10.6%." in shown
    command(before, after)
    assert capsys.readouterr().out == shown


def test_no_line_is_too_wide_or_cut(capsys):
    assert command(run_file("resnet18-b256"), run_file("resnet18-b4")) == 0
    shown = capsys.readouterr().out
    assert "OTHER WORK OR DEVICE: batch_size 256 -> 4" in shown
    assert "per image" in shown
    assert "…" not in shown
    for line in shown.splitlines():
        assert len(line) <= 100
        assert line == line.rstrip()


def test_a_table_is_wider_before_it_cuts_a_number(capsys, tmp_path, tf32):
    counters = dict.fromkeys(tf32.rounds[0].counters, 0.0) | {READ: 12_345.0, WRITE: 12_345.0}
    little = with_counters(tf32, counters)
    timing = Timing((1.2345e-3,), "perf_counter_of_another_clock")
    little = replace(little, timing=timing, workload={**tf32.workload, "batch_size": 4})
    path = replace(little, source="analytic").save(tmp_path / "run.json")
    assert command(path, run_file("resnet18-b256"), "--anyway") == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "perf_counter_of_another_clock / cuda_events" in shown


def test_what_has_no_value_is_listed_once_for_each_reason(capsys, tmp_path, tf32):
    why = "cupti-python is not installed"
    path = replace(tf32, kernels=None, notes={"kernels": why}).save(tmp_path / "run.json")
    assert command(run_file("resnet18-b256"), path) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if why in line]
    assert line == f"n/a: launches, kernel_time, busy_time, gpu_idle: after: {why}"


def test_exit_codes(capsys, tmp_path):
    before, after = run_file("resnet18-b256-no-tf32"), run_file("resnet18-b256")
    assert command(before, after, "--fail-on", "dram_bytes>+2%") == 0
    assert "gate dram_bytes>+2% holds: before 89.19 GB" in capsys.readouterr().out
    assert command(before, after, "--fail-on", "dram_bytes>+2%,flop>+0.5%") == 3
    assert capsys.readouterr().err == (
        "roofprobe: gate flop>+0.5% trips: before 1.896 TFLOP, after 2.805 TFLOP, change +47.9%\n"
    )
    assert command(before, after, "--fail-on", "nonsense") == 2
    assert command(before, tmp_path / "none.json") == 1
    assert command(before, run_file("resnet18-b4"), "--fail-on", "flop>+1%") == 2
    assert command(before, run_file("resnet18-b4"), "--fail-on", "flop>+1%", "--anyway") == 0


def test_names_and_reasons_do_not_steer_the_terminal(tmp_path, capsys, tf32):
    kernels = "held\r\x1b[2Jby\x9banother\x07"
    odd = replace(tf32, name="a\n\x1b[31mb", kernels=None, notes={"kernels": kernels})
    path = odd.save(tmp_path / "run.json")
    assert command(path, path, "--fail-on", "launches>+0%") == 3
    said = capsys.readouterr()
    assert r"before: a\n\x1b[31mb on NVIDIA H200" in said.out
    assert r"held\r\x1b[2Jby\x9banother\x07" in said.out
    assert r"(before: held\r\x1b[2Jby\x9banother\x07; after: " in said.err
    assert said.err.count("\n") == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said.out + said.err)


def test_json(capsys):
    before, after = run_file("resnet18-b256-no-tf32"), run_file("resnet18-b256")
    assert command(before, after, "--json", "--fail-on", f"flop.tensor_tf32>+1%,{L1}<-1%") == 3
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "roofprobe.comparison"
    assert body["changes"]["dram_bytes"]["before"] == 89_185_817_856
    assert body["changes"]["dram_bytes"]["after"] == 79_718_491_392
    assert body["changes"]["flop.tensor_tf32"]["change"] is None  # from 0
    assert [gate["tripped"] for gate in body["gates"]] == [True, True]
    assert body["differences"][0] == {
        "name": "tf32",
        "before": False,
        "after": None,
        "effect": "setting",
    }
    assert body["findings"] == list(compare(*map(Measurement.load, (before, after))).findings)
