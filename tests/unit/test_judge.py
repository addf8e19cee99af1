"""Verdicts by hand-worked numbers and on recordings of an H200."""

import dataclasses
import json
from pathlib import Path

import pytest
from test_derive import COUNTERS, INT8, READ, SASS, TF32, WRITE, record

import roofprobe
from roofprobe import metrics
from roofprobe.derive import figures
from roofprobe.judge import NEAR, ceilings_for, judge, verdict
from roofprobe.record import Environment, KernelTimes, MeasuredRoof, Measurement
from roofprobe.roofline import Ceiling, suspects

ROOT = Path(__file__).parents[2]
L2, L1 = "lts__t_bytes.sum", "l1tex__t_bytes.sum"


def roof(name, value, *, path=None, level=None):
    return MeasuredRoof(name, "flop" if path else "byte", value, 0.01, "a test", path, level)


# GEMMs of 8192^3 and copies of 8 GiB on an H200 (a throw-away program, 2026-11-30); L2 is made up.
H200 = (
    roof("FP32 GEMM", 50.7e12, path="sass_fp32"),
    roof("TF32 GEMM", 398e12, path="tensor_tf32"),
    roof("DRAM copy", 4.25e12, level="dram"),
    roof("DRAM read", 4.21e12, level="dram"),
    roof("DRAM write", 4.57e12, level="dram"),
    roof("L2 read", 7e12, level="l2"),
)


def recorded(name):
    for path in (
        ROOT / "tests/data" / f"{name}.json",
        ROOT / f"tests/data/runs/{name}/run.json",
    ):
        if path.exists():
            return Measurement.load(path)
    raise FileNotFoundError(name)


def ceiling(kind, value, *, path=None, level=None, source="measured"):
    return Ceiling(f"a {kind} roof", kind, value, path, level, source, "")


def by_hand(
    *,
    flop=0.0,
    fp32=0.0,
    byte=0.0,
    l2=0.0,
    l1=0.0,
    busy=2.0,
    own=(),
    kernels=True,
    levels=("dram", "l2"),
):
    """A step of 2 s under roofs of 1000 and 100 FLOP/s (TF32, FP32), 100 B/s DRAM, 400 B/s L2."""
    counters = dict.fromkeys(COUNTERS, 0.0) | {
        TF32: flop,
        SASS.format("fadd"): fp32,
        READ: byte,
        L2: l2,
        L1: l1,
    }
    step = record(counters)
    times = KernelTimes(1, 1, 0, busy, busy, busy, 0, 0) if kernels else None
    step = dataclasses.replace(step, kernels=times, notes={"kernels": "held by another"})
    roofs = own or (
        ceiling("flop", 1000.0, path="tensor_tf32"),
        ceiling("flop", 100.0, path="sass_fp32"),
        ceiling("byte", 100.0, level="dram"),
        ceiling("byte", 400.0, level="l2"),
    )
    return judge(figures(step), roofs, levels=levels)


def said(found):
    return found.bound, found.level, found.cause


def test_compute_bound_by_hand():
    # 1500 FLOP at 1000/s take 1.5 s of 2, 50 B at 100/s 0.5 s.
    found = by_hand(flop=1500, byte=50)
    assert said(found) == ("compute", None, None)
    assert (found.fraction, found.time_at_roof) == (0.75, 1.5)
    assert found.ceiling.value == 1000
    assert (found.next.fraction, found.next_ceiling.level) == (0.25, "dram")
    assert found.basis == "measured"
    assert found.reason is None
    text = " ".join(found.sentences)
    assert "Compute-bound: arithmetic uses 75% of its ceiling" in text
    assert "At that roof the step would take 1.5 s instead of 2 s" in text
    assert "measured on this device" in text


def test_the_mix_has_a_ceiling_of_its_own():
    # 1000 FLOP at 1000/s and 50 at 100/s: 1050 FLOP in 1.5 s at least, 700 FLOP/s.
    found = by_hand(flop=1000, fp32=50)
    assert found.compute.fraction == 0.75
    assert found.compute.ceiling.value == pytest.approx(700)
    assert found.compute.ceiling.path is None
    detail = found.compute.ceiling.detail
    assert "95.2% of the FLOP on TF32 tensor at 1 kFLOP/s" in detail
    assert "4.76% of the FLOP on FP32 CUDA cores at 100 FLOP/s" in detail


def test_memory_bound_names_the_level():
    found = by_hand(byte=180)
    assert said(found) == ("memory", "dram", None)
    assert found.fraction == 0.9
    found = by_hand(byte=20, l2=600)
    assert said(found) == ("memory", "l2", None)
    assert found.fraction == 0.75
    assert "Memory-bound at L2" in found.sentences[0]


CACHES = (
    ceiling("byte", 100.0, level="dram"),
    ceiling("byte", 400.0, level="l2"),
    ceiling("byte", 1000.0, level="l1"),
)


def test_memory_bound_at_l1():
    # 1600 B at 1000/s take 1.6 s of 2; L2 has 20%, DRAM 10%.
    found = by_hand(byte=20, l2=160, l1=1600, own=CACHES, levels=metrics.LEVELS)
    assert said(found) == ("memory", "l1", None)
    assert (found.fraction, found.time_at_roof) == (0.8, 1.6)
    assert found.sentences[0].startswith("Memory-bound at L1: its traffic uses 80% of the ceiling")
    # A full L2 outranks it.
    full = by_hand(byte=20, l2=640, l1=1800, own=CACHES, levels=metrics.LEVELS)
    assert said(full) == ("memory", "l2", None)


def test_l1_may_be_above_its_roof_where_loads_use_a_part_of_a_sector():
    found = by_hand(byte=20, l1=2400, own=CACHES, levels=metrics.LEVELS)
    assert found.bound is None
    assert "loads that use a part of each 32-byte sector" in " ".join(found.sentences)
    dram = by_hand(byte=240, own=CACHES, levels=metrics.LEVELS)
    assert "sector" not in " ".join(dram.sentences)


def test_a_full_level_outranks_what_follows_from_it():
    # DRAM at 90%, L2 at 95%: streaming from DRAM passes L2.
    assert said(by_hand(byte=180, l2=760)) == ("memory", "dram", None)
    # DRAM at 65% is not full, so that L2 at 95% is what is in the way.
    assert said(by_hand(byte=130, l2=760)) == ("memory", "l2", None)


def test_idle_between_kernels_is_latency():
    # Idle 75%, DRAM 20%: kernels lose 5%.
    found = by_hand(byte=40, busy=0.5)
    assert said(found) == ("latency", None, "launch")
    assert found.idle.value == 0.75
    assert found.fraction == 0.2
    assert "no kernel runs in 75% of the step" in found.sentences[0]


def test_slow_kernels_are_latency_inside_them():
    # Idle 5%, DRAM 40%, arithmetic 10%: kernels lose 55%.
    found = by_hand(flop=200, byte=80, busy=1.9)
    assert said(found) == ("latency", None, "kernels")
    assert "they run in 95% of the step" in found.sentences[0]
    assert "used to 40%" in found.sentences[1]


def test_a_resource_near_its_roof_binds_although_the_gpu_idles():
    found = by_hand(byte=130, busy=1.4)
    assert said(found) == ("memory", "dram", None)
    assert "No kernel runs in 30% of the step." in found.sentences


def test_turns_at_two_ceilings_are_not_called_latency():
    # Arithmetic 45%, DRAM 50%: every kernel may be at a roof, or none.
    found = by_hand(flop=900, byte=100)
    assert said(found) == (None, None, None)
    assert "DRAM and compute add up to 95% of the step" in found.reason
    assert found.closest.name == "DRAM"


def test_the_threshold_is_the_boundary():
    assert by_hand(byte=2 * 100 * NEAR).bound == "memory"
    assert by_hand(byte=2 * 100 * NEAR - 1).bound == "latency"


def test_what_is_not_known_is_never_guessed():
    # No kernel records: idle time is unknown, which leaves a near roof and nothing else.
    assert by_hand(byte=180, kernels=False).bound == "memory"
    found = by_hand(byte=80, kernels=False)
    assert found.bound is None
    assert "held by another" in found.reason
    # No roof of L2, and 160 B of it might fill DRAM's own 100 B/s to 80%.
    dram = (ceiling("flop", 1000.0, path="tensor_tf32"), ceiling("byte", 100.0, level="dram"))
    found = by_hand(byte=40, l2=160, own=dram)
    assert found.bound is None
    assert [each.name for each in found.unknown] == ["L2"]
    assert found.unknown[0].at_most == 0.8
    # With 80 B L2 cannot be near even at DRAM's rate, which it exceeds.
    assert said(by_hand(byte=40, l2=80, own=dram)) == ("latency", None, "kernels")
    # Idle 75% leaves no room for any resource.
    assert said(by_hand(byte=40, l2=160, own=dram, busy=0.5)) == ("latency", None, "launch")


def test_no_ceilings_no_verdict():
    found = by_hand(byte=180, own=(ceiling("byte", 1.0, level="l1"),))
    assert (found.bound, found.basis, found.closest, found.fraction) == (None, None, None, None)
    none = "No ceiling of this device is known: run roofprobe ceilings once on it"
    assert none not in " ".join(found.sentences)  # L1's is, and L1 was not counted
    assert none in " ".join(judge(figures(record()), ()).sentences)


def test_ceilings_that_nothing_was_counted_for_are_known_all_the_same():
    nothing = figures(dataclasses.replace(record(dict.fromkeys(COUNTERS)), kernels=None))
    found = judge(nothing, (ceiling("byte", 100.0, level="dram"),), levels=("dram",))
    assert (found.bound, found.uses, found.basis) == (None, (), "measured")
    (said,) = found.sentences
    assert said.startswith("No verdict: no use of a ceiling is known: compute (")


def test_no_step_time_no_verdict():
    found = verdict(dataclasses.replace(record(), timing=None))
    assert found.bound is None
    assert "before steps were timed" in found.reason


def busy(counters):
    """Figures of a step of 2 s that a kernel fills."""
    times = KernelTimes(1, 1, 0, 2.0, 2.0, 2.0, 0, 0)
    return figures(dataclasses.replace(record(counters), kernels=times))


def test_an_uncounted_path_leaves_a_lower_bound():
    nothing = dict.fromkeys(COUNTERS, 0.0) | {SASS.format("ffma"): None}
    roofs = (ceiling("flop", 1000.0, path="tensor_tf32"), ceiling("byte", 100.0, level="dram"))
    found = judge(busy({**nothing, TF32: 1500.0}), roofs, levels=("dram",))
    assert found.bound == "compute"
    assert found.closest.at_least
    assert "at least 75%" in found.sentences[0]
    little = judge(busy({**nothing, TF32: 500.0}), roofs, levels=("dram",))
    assert little.bound is None
    assert "compute" in {each.name for each in little.unknown}


def test_work_without_any_roof_is_not_left_out():
    counters = dict.fromkeys(COUNTERS, 0.0) | {TF32: 500.0, INT8: 500.0, READ: 40.0}
    roofs = (ceiling("flop", 1000.0, path="tensor_tf32"), ceiling("byte", 100.0, level="dram"))
    found = judge(busy(counters), roofs, levels=("dram",))
    assert found.bound is None
    assert "no roof of INT8 tensor" in found.reason


def test_kinds_of_ceilings_are_never_mixed():
    sheet = [ceiling("flop", 2000.0, path="tensor_tf32", source="datasheet")]
    sheet += [ceiling("byte", 120.0, level="dram", source="datasheet")]
    measured = [ceiling("flop", 1000.0, path="tensor_tf32"), ceiling("byte", 100.0, level="dram")]
    found = by_hand(flop=1500, byte=50, own=(*measured, *sheet))
    assert {use.ceiling.source for use in found.uses} == {found.basis} == {"measured"}
    # Without a measured roof of the path that works, all of the verdict is the datasheet's.
    found = by_hand(flop=1500, byte=50, own=(*measured[1:], *sheet))
    assert {use.ceiling.source for use in found.uses} == {found.basis} == {"datasheet"}
    assert {use.ceiling.value for use in found.uses} == {2000, 120}
    assert "no roof was measured of TF32 tensor" in found.sentences[-1]


def test_a_roof_that_is_exceeded_is_not_believed():
    sheet = ceiling("byte", 120.0, level="dram", source="datasheet")
    found = by_hand(byte=220, own=(ceiling("byte", 100.0, level="dram"), sheet))
    assert found.bound == "memory"
    assert found.basis == "datasheet"
    assert found.fraction == pytest.approx(220 / 240)
    assert "is exceeded 1.1 times" in found.sentences[-1]
    found = by_hand(byte=220, own=(ceiling("byte", 100.0, level="dram"),))
    first, second = found.sentences
    assert first.startswith("No verdict: ")
    assert second.startswith("Not judged by measured ceilings: the measured DRAM")
    found = by_hand(byte=280, own=(sheet,))
    assert found.bound is None
    assert "1.17 times its ceiling" in found.reason


def test_a_roof_that_is_set_aside_is_not_said_to_be_lacking():
    # 220 B in 2 s are 1.1 times 100 B/s, 1000 FLOP in 2 s half of 1000 FLOP/s.
    own = (ceiling("byte", 100.0, level="dram"), ceiling("flop", 1000.0, path="tensor_tf32"))
    first, second = by_hand(flop=1000, byte=220, own=own, levels=("dram",)).sentences
    assert first == (
        "No verdict: no use of a ceiling is known: compute (no datasheet roof of TF32 tensor); "
        "DRAM (no datasheet roof)."
    )
    assert second == (
        "Not judged by measured ceilings: the measured DRAM (a byte roof) at 100 B/s is exceeded "
        f"1.1 times: {suspects(level='dram')}."
    )
    # 440 B of L2 in 2 s at 100 B/s of two measured roofs; the datasheet has DRAM's alone.
    own = (ceiling("byte", 120.0, level="dram"), ceiling("byte", 100.0, level="l2"))
    sheet = ceiling("byte", 140.0, level="dram", source="datasheet")
    found = by_hand(byte=20, l2=440, own=(*own, sheet))
    assert "L2 (no datasheet roof)" in found.reason
    assert "the measured L2 (a byte roof) at 100 B/s is exceeded 2.2 times" in found.sentences[-1]


CACHED = "suspect, likeliest first: operands that stayed in a cache, which the model counts as"


def modelled(byte, flop):
    """A model of a step of 2 s."""
    counters = dict.fromkeys((row.name for row in metrics.ANALYTIC), 0.0)
    counters["analytic__bytes_read.sum"] = byte
    counters["analytic__flop_fp32.sum"] = flop
    cpu = Environment("a CPU", "cpu")
    return dataclasses.replace(record(counters, source="analytic"), environment=cpu)


@pytest.mark.parametrize("source", ["measured", "datasheet"])
def test_a_model_knows_no_caches(source):
    dram = ceiling("byte", 100.0, level="dram", source=source)
    peak = ceiling("flop", 100.0, path="analytic_fp32", source=source)
    # 300 in 2 s are 1.5 times 100/s.
    for byte, flop, expected in ((300.0, 0.0, True), (0.0, 300.0, False)):
        derived = figures(modelled(byte, flop))
        found = judge(derived, (dram, peak), levels=("dram",))
        said = " ".join(found.sentences)
        assert "1.5 times" in said
        assert (CACHED in said) is expected
    # As the second of two that are exceeded.
    found = judge(figures(modelled(300.0, 400.0)), (dram, peak), levels=("dram",))
    assert CACHED not in " ".join(found.sentences)
    # A counter counts what reaches memory.
    counted = by_hand(byte=300, own=(dram,), levels=("dram",))
    assert CACHED not in " ".join(counted.sentences)


def test_of_several_roofs_the_one_to_judge_by():
    step = dataclasses.replace(recorded("copy-2gib"), roofs=H200)
    dram = [c for c in ceilings_for(step) if c.level == "dram" and c.source == "measured"]
    assert [c.value for c in dram] == [4.25e12]  # not what only writes reach


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("copy-2gib", ("memory", "dram", None)),
        ("gemm4096-fp32", ("compute", None, None)),
        ("gemm4096-tf32", ("compute", None, None)),
        ("gemm4096-bf16", ("compute", None, None)),
        ("gemm4096-fp16", ("compute", None, None)),
        ("gemm4096-fp64", ("compute", None, None)),
        ("resnet18-b4", ("latency", None, "launch")),
    ],
)
def test_recorded_work_that_was_built_to_be_so(name, expected):
    for roofs in (H200, ()):
        found = verdict(recorded(name), roofs=roofs)
        assert said(found) == expected, found.sentences


def test_a_real_step_at_no_roof():
    found = verdict(recorded("resnet18-b256"), roofs=H200)
    assert said(found) == ("latency", None, "kernels")
    assert found.basis == "measured"
    # 79.7 GB at 4.25 TB/s are 18.8 ms of 47.
    assert found.ceiling.name == "DRAM copy"
    assert found.time_at_roof == pytest.approx(18.8e-3, rel=0.01)
    assert found.fraction == pytest.approx(0.40, abs=0.01)
    # 2.766e12 / 398e12 + 3.94e10 / 50.7e12 = 7.73 ms.
    assert found.compute.time_at_roof == pytest.approx(7.73e-3, rel=0.01)
    # A counter that may see traffic between the halves of L2 twice gives a lower bound.
    l2 = next(use for use in found.uses if use.name == "L2")
    assert l2.at_least
    assert l2.fraction == pytest.approx(188e9 / 1.54 / 7e12 / 46.98e-3, rel=0.01)


def test_without_a_roof_of_l2_that_step_is_not_judged():
    found = verdict(recorded("resnet18-b256"))
    assert found.basis == "datasheet"
    assert found.bound is None
    assert "L2 (no roof)" in found.reason
    assert found.closest.name == "DRAM"


def test_a_roof_of_l1_settles_what_is_open_without_one():
    path = ROOT / "harness/results/h200/resnet18-b256-no-tf32/run.json"
    step = Measurement.load(path)
    old = tuple(each for each in step.roofs if each.level != "l1")
    bare = verdict(step, roofs=old)
    assert bare.reason == "no known ceiling is near, but others may be: L1 (no roof)"
    assert bare.sentences[-1] == (
        "Judged by ceilings that were measured on this device. No roof of L1 was: roofprobe "
        "ceilings says there why, or measures it for later runs with --fresh."
    )
    # 246.7 GB at 31 TB/s are 7.96 ms of 88.7.
    found = verdict(step, roofs=(*old, roof("L1 read", 31e12, level="l1")))
    assert said(found) == ("latency", None, "kernels")
    assert found.unknown == ()
    l1 = next(use for use in found.uses if use.name == "L1")
    assert l1.fraction == pytest.approx(246.7e9 / 31e12 / 88.7e-3, rel=0.02)
    assert found.sentences[-1] == "Judged by ceilings that were measured on this device."


def test_the_datasheet_s_l1_is_derived_and_its_l2_is_missing():
    step = recorded("resnet18-b256")
    found = verdict(step, roofs=())
    l1 = next(use for use in found.uses if use.name == "L1")
    assert (l1.ceiling.name, l1.ceiling.source) == ("L1, derived", "datasheet")
    assert l1.ceiling.value == 128 * 132 * 1.98e9
    assert [each.name for each in found.unknown] == ["L2"]
    assert "it gives none of L2: run roofprobe ceilings" in found.sentences[-1]
    # Nobody has read Blackwell's L1.
    b200 = dataclasses.replace(
        step.environment,
        device_name="NVIDIA B200",
        chip="GB100",
        sm_count=148,
        memory_byte=int(179.1 * 2**30),
    )
    found = verdict(dataclasses.replace(step, environment=b200), roofs=())
    assert "it gives none of L2 and L1: run roofprobe ceilings" in found.sentences[-1]


def test_a_record_brings_its_own_roofs():
    with_roofs = dataclasses.replace(recorded("copy-2gib"), roofs=H200)
    assert verdict(with_roofs).basis == "measured"
    assert verdict(with_roofs, roofs=()).basis == "datasheet"
    assert roofprobe.verdict(with_roofs) == verdict(with_roofs)


def test_a_model_on_a_cpu_says_that_it_is_one():
    metrics = ("analytic__flop_fp32.sum", "analytic__bytes_read.sum", "analytic__bytes_write.sum")
    cpu = record(dict(zip(metrics, (180.0, 40.0, 10.0), strict=True)))
    cpu = dataclasses.replace(
        cpu,
        source="analytic",
        environment=Environment("a CPU", "cpu"),
        kernels=None,
        roofs=(
            roof("CPU fp32 GEMM", 100.0, path="analytic_fp32"),
            roof("CPU memory copy", 100.0, level="dram"),
        ),
    )
    found = verdict(cpu)
    assert said(found) == ("compute", None, None)
    assert found.fraction == 0.9
    assert "model" in found.sentences[-1]


def test_spread_goes_into_the_fraction():
    rounds = [{**COUNTERS, READ: value, WRITE: 0.0} for value in (99.0, 101.0)]
    roofs = [dataclasses.replace(ceiling("byte", 100.0, level="dram"), spread=0.03)]
    found = judge(figures(record(*rounds)), roofs, levels=("dram",))
    assert found.closest.fraction == 0.5
    assert found.closest.spread == pytest.approx(0.02 + 0.03)


def test_a_verdict_is_plain_data():
    body = json.loads(json.dumps(dataclasses.asdict(verdict(recorded("copy-2gib")))))
    assert body["bound"] == "memory"
    assert body["uses"][0]["ceiling"]["source"] == "datasheet"


def test_hidden_fp16_can_keep_a_verdict_back():
    # 300 FLOP at most at 100/s (as fast as fp32 at least) might fill the step.
    counters = dict.fromkeys(COUNTERS, 0.0) | {SASS.format("hfma"): 75.0, READ: 40.0}
    roofs = (ceiling("flop", 100.0, path="sass_fp32"), ceiling("byte", 100.0, level="dram"))
    found = judge(busy(counters), roofs, levels=("dram",))
    assert found.bound is None
    assert "upper bound" in found.reason


def test_fp16_accumulate_has_a_roof_of_its_own():
    # On a 4090: 400 TFLOP in 2 s, at 165.2 TFLOP/s with fp32 accumulate and 330.3 with fp16.
    environment = Environment(
        "NVIDIA GeForce RTX 4090", "cuda", "AD102", sm_count=128, memory_byte=int(23.6 * 2**30)
    )
    measured = (roof("FP16 GEMM", 160e12, path="tensor_fp16"), roof("copy", 9e11, level="dram"))
    counters = dict.fromkeys(metrics.metric_set("full", "AD102"), 0.0)
    found = []
    for accumulate in ("fp32", "fp16"):
        work = {f"sm__ops_path_tensor_src_fp16_dst_{accumulate}.sum": 400e12}
        step = dataclasses.replace(record(counters | work), environment=environment)
        found.append(verdict(step, roofs=measured))
    slow, fast = found
    assert slow.bound is None  # 200 TFLOP/s are above what either roof allows
    assert slow.reason == f"compute is used to 1.21 times its ceiling: {suspects()}"
    assert (fast.bound, fast.basis) == ("compute", "datasheet")  # roofs are measured in fp32
    assert fast.fraction == pytest.approx(200 / 330.3)
    assert fast.ceiling.name == "FP16 tensor, fp16 accumulate"
    assert "no roof was measured of FP16 tensor, fp16 accumulate." in fast.sentences[-1]


RTX4090 = Environment(
    "NVIDIA GeForce RTX 4090", "cuda", "AD102", sm_count=128, memory_byte=int(23.6 * 2**30)
)
FP16_ROOFS = (
    dataclasses.replace(roof("FP16 GEMM", 160e12, path="tensor_fp16"), sustained=150e12),
    dataclasses.replace(
        roof("FP16 GEMM, FP16 accumulate", 300e12, path="tensor_fp16_acc16"),
        spread=0.02,
        sustained=250e12,
    ),
    roof("DRAM copy", 9e11, level="dram"),
)


def fp16_step(with32, with16, environment=RTX4090):
    """A step of 2 s with so many FLOP of fp16 products, by accumulator."""
    counters = dict.fromkeys(metrics.metric_set("full", "AD102"), 0.0)
    counters["sm__ops_path_tensor_src_fp16_dst_fp32.sum"] = with32
    counters["sm__ops_path_tensor_src_fp16_dst_fp16.sum"] = with16
    return dataclasses.replace(record(counters), environment=environment)


def test_a_measured_roof_of_fp16_accumulate_is_used():
    # 400 TFLOP in 2 s are two thirds of the 300 TFLOP/s that were measured.
    found = verdict(fp16_step(0.0, 400e12), roofs=FP16_ROOFS)
    assert (found.bound, found.basis) == ("compute", "measured")
    assert found.fraction == pytest.approx(2 / 3)
    assert found.ceiling.name == "FP16 GEMM, FP16 accumulate"
    # Half of them with fp32 accumulate: 100 at 150 and 100 at 300 TFLOP/s take a second; roofs of
    # 160 and 300 give 2 / (1 / 160 + 1 / 300) = 208.7.
    found = verdict(fp16_step(200e12, 200e12), roofs=FP16_ROOFS)
    assert (found.bound, found.basis) == ("compute", "measured")
    assert found.ceiling.value == pytest.approx(208.696e12, rel=1e-5)
    assert found.ceiling.name == "FP16 GEMM, 50% FP16 accumulate"
    assert found.ceiling.sustained == pytest.approx(187.5e12)  # 2 / (1 / 150 + 1 / 250)
    assert found.ceiling.spread == 0.02
    assert found.ceiling.detail.startswith("50% of the FLOP with fp16 accumulate: ")
    # None of them: the roof is the FP16 GEMM's.
    found = verdict(fp16_step(300e12, 0.0), roofs=FP16_ROOFS)
    assert (found.ceiling.name, found.ceiling.value) == ("FP16 GEMM", 160e12)


def test_where_fp16_accumulation_gains_nothing_one_roof_serves_both():
    # An A100 counts the accumulators apart and runs both at one rate: its ceilings hold one roof.
    a100 = Environment(
        "NVIDIA A100-SXM4-80GB", "cuda", "GA100", sm_count=108, memory_byte=int(79.25 * 2**30)
    )
    roofs = (roof("FP16 GEMM", 280e12, path="tensor_fp16"), FP16_ROOFS[2])
    found = verdict(fp16_step(0.0, 400e12, a100), roofs=roofs)
    assert (found.bound, found.basis) == ("compute", "measured")
    assert found.fraction == pytest.approx(200 / 280)
    # A card that is in no catalogue, too, since its ceilings would have said otherwise.
    unknown = Environment("NVIDIA GeForce RTX 9090", "cuda", "AD102", sm_count=99)
    assert verdict(fp16_step(0.0, 400e12, unknown), roofs=roofs).basis == "measured"


def test_what_is_above_a_mix_may_have_overlapped():
    # 2000 FLOP at 1000/s and 200 at 100/s take 4 s one after the other, and the step took 2.
    sheet = (
        ceiling("flop", 1000.0, path="tensor_tf32", source="datasheet"),
        ceiling("flop", 100.0, path="sass_fp32", source="datasheet"),
    )
    reason = by_hand(flop=2000, fp32=200, own=sheet).reason
    assert reason.startswith("compute is used to 2 times its ceiling: ")
    assert reason.endswith(suspects(mix=True))
