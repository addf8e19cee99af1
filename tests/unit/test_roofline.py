"""The roofline model by hand-worked values and properties."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofprobe.device import catalogue
from roofprobe.errors import UsageError
from roofprobe.record import MeasuredRoof
from roofprobe.roofline import (
    Ceiling,
    LeftOut,
    Point,
    Roofline,
    above_roof,
    attainable,
    ceilings_of,
    exceeded,
    l1_ceiling,
    measured_ceiling,
    mixed_peak,
    place,
    ridge,
    suspects,
)

H200 = next(spec for spec in catalogue() if spec.name == "H200 SXM")
rates = st.floats(1e6, 1e18)
intensities = st.floats(1e-6, 1e9)


def roof(kind, value, level=None, source="given"):
    return Ceiling("roof", kind, value, None, level, source, "")


def test_attainable_by_hand():
    # 67 TFLOP/s and 4.8 TB/s: at 0.5 FLOP/byte 2.4 TFLOP/s, from 13.96 FLOP/byte on 67.
    assert attainable(0.5, 67e12, 4.8e12) == 2.4e12
    assert attainable(100, 67e12, 4.8e12) == 67e12
    assert ridge(67e12, 4.8e12) == pytest.approx(13.958, abs=5e-4)


@pytest.mark.parametrize(
    ("peak", "bandwidth", "expected"),
    [
        (989.4e12, 3.35e12, 295.34),
        (494.7e12, 3.35e12, 147.67),
        (312e12, 2.039e12, 153.02),
        (121e12, 300e9, 403.33),
    ],
)
def test_dense_ridges(peak, bandwidth, expected):
    assert ridge(peak, bandwidth) == pytest.approx(expected, abs=0.005)


@given(intensities, rates, rates)
def test_attainable_is_under_both_roofs(intensity, peak, bandwidth):
    rate = attainable(intensity, peak, bandwidth)
    assert rate <= peak
    assert rate <= bandwidth * intensity


@given(intensities, intensities, rates, rates)
def test_attainable_rises_with_intensity(one, other, peak, bandwidth):
    low, high = sorted((one, other))
    assert attainable(low, peak, bandwidth) <= attainable(high, peak, bandwidth)


@given(rates, rates)
def test_attainable_is_continuous_at_the_ridge(peak, bandwidth):
    at = ridge(peak, bandwidth)
    assert attainable(at, peak, bandwidth) == pytest.approx(peak, rel=1e-12)
    assert attainable(at * (1 - 1e-9), peak, bandwidth) == pytest.approx(peak, rel=2e-9)
    assert attainable(at * (1 + 1e-9), peak, bandwidth) == pytest.approx(peak, rel=2e-9)


def test_mixed_peak_by_hand():
    # 300 FLOP at 100/s take 3 s, 100 FLOP at 50/s take 2 s: 400 FLOP in 5 s.
    peaks = {"tensor_tf32": 100.0, "sass_fp32": 50.0}
    assert mixed_peak({"tensor_tf32": 300.0, "sass_fp32": 100.0}, peaks) == 80.0
    assert mixed_peak({"tensor_tf32": 300.0, "sass_fp32": 0.0}, peaks) == 100.0


def test_mixed_peak_of_what_is_unknown_is_unknown():
    peaks = {"sass_fp32": 50.0}
    assert mixed_peak({"sass_fp32": 1.0, "tensor_tf32": 1.0}, peaks) is None
    assert mixed_peak({"sass_fp32": 1.0, "tensor_tf32": None}, peaks) is None
    assert mixed_peak({"sass_fp32": 1.0, "tensor_tf32": 0.0}, peaks) == 50.0
    assert mixed_peak({"sass_fp32": 0.0}, peaks) is None
    assert mixed_peak({}, peaks) is None


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(1, 1e15), min_size=1))
def test_mixed_peak_is_between_the_peaks_of_its_paths(work):
    peaks = dict(zip("abcd", (1e12, 3e12, 5e13, 1e15), strict=True))
    used = [peaks[path] for path in work]
    assert min(used) * (1 - 1e-9) <= mixed_peak(work, peaks) <= max(used) * (1 + 1e-9)


def placed_at(name, counts, **told):
    """``place`` of FLOP, bytes and seconds."""
    flop, byte, time = counts
    return place(name, flop=flop, byte=byte, time=time, **told)


# Kernel: FLOP, bytes, seconds. Only axpy has a place on logarithmic axes.
KERNELS = {
    "memset": (0, 4000, 1e-6),
    "spin_regs": (8000, 0, 2e-6),
    "int_hash": (0, 2000, 1e-6),
    "axpy": (2000, 12000, 1e-6),
    "empty": (0, 0, 0.5e-6),
    "zero_time": (100, 100, 0),
}


def test_zeros_are_listed_and_never_drawn():
    placed = [placed_at(name, counts, source="ncu") for name, counts in KERNELS.items()]
    roofline = Roofline.of("kernels", [], placed)
    (axpy,) = roofline.points
    assert axpy.name == "axpy"
    assert axpy.intensity == pytest.approx(0.166667, abs=5e-7)
    assert axpy.flop_per_s == pytest.approx(2.0e9, rel=1e-12)
    assert roofline.left_out == (
        ("memset", "0 FLOP"),
        ("spin_regs", "0 bytes: intensity unbounded"),
        ("int_hash", "0 FLOP"),
        ("empty", "0 FLOP and 0 bytes"),
        ("zero_time", "0 s"),
    )


def test_the_step_still_counts_what_is_not_drawn():
    counts = (sum(column) for column in zip(*KERNELS.values(), strict=True))
    step = placed_at("step", counts, source="ncu")
    assert isinstance(step, Point)
    assert step.intensity == pytest.approx(0.558011, abs=5e-7)
    assert step.flop_per_s == pytest.approx(1.836364e9, rel=1e-6)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ((None, 1, 1), "not measured: FLOP"),
        ((1, None, None), "not measured: bytes, time"),
        ((0, None, 1), "not measured: bytes"),
        ((math.nan, 1, 1), "not measured: FLOP"),
        ((1, math.inf, 1), "not measured: bytes"),
        ((1, 1, -1), "not measured: time"),
    ],
)
def test_what_was_not_measured_is_not_zero(counts, reason):
    assert placed_at("step", counts, source="cupti") == LeftOut("step", reason)


@given(st.lists(st.none() | st.floats(0, 1e20), min_size=3, max_size=3))
def test_everything_is_a_point_or_a_reason(counts):
    if any(count is not None and 0 < count < 1e-9 for count in counts):
        return  # no count and no duration is that small
    placed = placed_at("step", counts, source="cupti")
    if isinstance(placed, Point):
        assert 0 < placed.intensity < math.inf
        assert 0 < placed.flop_per_s < math.inf
    else:
        assert placed.reason


def test_a_point_keeps_what_it_was_told():
    point = placed_at("step", (8, 4, 2), source="cupti", level="l2", note="upper bound")
    assert point == Point("step", 2.0, 4.0, "l2", "cupti", "upper bound")


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_ceilings_and_points_are_positive_and_finite(value):
    with pytest.raises(UsageError, match="logarithmic"):
        roof("byte", value, "dram")
    with pytest.raises(UsageError, match="logarithmic"):
        Point("step", value, 1.0, "dram", "cupti")
    with pytest.raises(UsageError, match="logarithmic"):
        Point("step", 1.0, value, "dram", "cupti")


def test_a_point_is_held_against_the_roofs_of_its_device():
    slow = Ceiling("slow", "flop", 10, None, None, "given", "", device="a")
    fast = Ceiling("fast", "flop", 100, None, None, "given", "", device="b")
    placed = placed_at("p", (50, 1, 1), source="cupti", spread=(0.1, 0.2))
    assert placed.spread == (0.1, 0.2)
    for device, ratio in (("a", 5.0), ("b", None)):
        point = replace(placed, device=device)
        above = above_roof(point, Roofline("", (slow, fast), (point,), ()))
        assert (above and above.times) == ratio


def test_a_measured_roof_is_a_ceiling():
    roof = MeasuredRoof(
        "TF32 GEMM", "flop", 4e14, 0.02, "8192^3", "tensor_tf32", None, 1.965e9, 3.6e14
    )
    assert measured_ceiling(roof) == Ceiling(
        "TF32 GEMM",
        "flop",
        4e14,
        "tensor_tf32",
        None,
        "measured",
        "8192^3",
        0.02,
        clock=1.965e9,
        sustained=3.6e14,
    )


def test_a_point_above_the_roof_is_flagged_and_kept():
    def ratio(intensity, rate, level="dram", ceilings=None):
        if ceilings is None:
            ceilings = (roof("flop", 100), roof("flop", 60), roof("byte", 10, "dram"))
        point = Point("p", intensity, rate, level, "cupti")
        above = above_roof(point, Roofline("", ceilings, (point,), ()))
        return above and above.times

    assert ratio(1, 12) == pytest.approx(1.2)
    assert ratio(1, 10.6) is None  # 1.06 itself is within what steps differ by
    assert ratio(1, 9) is None
    assert ratio(50, 90) is None  # above one peak, under the highest
    assert ratio(50, 130) == pytest.approx(1.3)
    assert ratio(1, 12, level="l2") is None  # DRAM's bandwidth does not bind L2 bytes
    assert ratio(1, 150, level="l2") == pytest.approx(1.5)
    assert ratio(1, 12, ceilings=()) is None
    measured = (roof("byte", 8, "dram", "measured"), roof("byte", 10, "dram", "datasheet"))
    assert ratio(1, 9.5, ceilings=measured) is None
    assert ratio(1, 12, ceilings=measured) == pytest.approx(1.2)


def test_datasheet_ceilings():
    tf32, fp32, dram = ceilings_of(H200, ["tensor_tf32", "sass_fp32", "tensor_tf32"])
    assert (tf32.name, tf32.kind, tf32.value) == ("TF32 tensor", "flop", 494.7e12)
    assert (fp32.name, fp32.path, fp32.level) == ("FP32 CUDA cores", "sass_fp32", None)
    assert (dram.name, dram.kind, dram.value, dram.level) == ("DRAM", "byte", 4.8e12, "dram")
    for ceiling in (tf32, fp32, dram):
        assert ceiling.source == "datasheet"
        assert "H200 SXM, dense, seen 2026-11" in ceiling.detail
        assert H200.source[0] in ceiling.detail


def test_paths_without_a_peak_in_flop_get_no_roof():
    ceilings = ceilings_of(H200, ["tensor_fp4", "tensor_int8", "study_fp16", "analytic_fp32"])
    assert [ceiling.name for ceiling in ceilings] == ["DRAM"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("H200 SXM", 33.45408e12),  # 128 B x 132 SMs x 1.98 GHz
        ("A100 SXM4 80GB", 19.49184e12),  # x 108 x 1.41
        ("V100 SXM2 16GB", 15.6672e12),  # x 80 x 1.53
    ],
)
def test_the_roof_of_l1_is_its_width_at_the_boost_clock(name, value):
    (spec,) = [spec for spec in catalogue() if spec.name == name]
    found = l1_ceiling(spec)
    assert found.value == pytest.approx(value)
    assert (found.name, found.kind, found.level) == ("L1, derived", "byte", "l1")
    assert found.source == "datasheet"
    assert f"128 bytes a clock and SM x {spec.sm_count} SMs of {name} x " in found.detail
    assert "no datasheet prints it" in found.detail and "https://" in found.detail


def test_an_l1_whose_width_has_no_source_has_no_roof():
    # Turing's is half as wide; of Pascal, Blackwell and the cards for graphics nobody has read it.
    for spec in catalogue():
        known = spec.chip in ("GV100", "GA100", "GH100")
        assert (l1_ceiling(spec) is not None) == known, spec.name
    assert l1_ceiling(replace(H200, boost_hz=None)) is None
    assert l1_ceiling(replace(H200, sm_count=None)) is None


SHEET = ceilings_of(H200, ["tensor_bf16", "sass_fp32"])  # 989.4 and 66.9 TFLOP/s, 4.8 TB/s


def test_work_on_several_paths_is_held_against_their_mixed_peak():
    # 150 GFLOP at 66.9 and 3 GFLOP at 989.4 TFLOP/s take 2.24215 + 0.00303 ms, and it took 1 ms:
    # far under bf16's roof of 989.4 and all the same 2.245 times too fast.
    work = {"sass_fp32": 150e9, "tensor_bf16": 3e9}
    found = exceeded(work, {"dram": 6e8}, 1e-3, SHEET)
    assert found.times == pytest.approx(2.24518, rel=1e-5)
    assert found.words == "2.25 times the FP32 CUDA cores roof of 66.9 TFLOP/s"
    point = placed_at("mix", (153e9, 6e8, 1e-3), source="ncu", work=work)
    assert above_roof(point, Roofline("", SHEET, (point,), ())) == found
    untold = placed_at("mix", (153e9, 6e8, 1e-3), source="ncu")
    assert above_roof(untold, Roofline("", SHEET, (), ())) is None
    assert exceeded(work, {"dram": 6e8}, 2.2e-3, SHEET) is None  # 1.02 times


def test_a_mix_is_told_as_one():
    # 66.9 and 989.4 GFLOP take 1 ms each at their peaks: 1056.3 GFLOP in 2 ms are 528.15 TFLOP/s.
    found = exceeded({"sass_fp32": 66.9e9, "tensor_bf16": 989.4e9}, {}, 1e-3, SHEET)
    assert found.times == pytest.approx(2)
    assert found.words.startswith("2 times the 528.1 TFLOP/s of its mix of paths")
    assert found.mix
    assert "paths that ran at the same time" in suspects(mix=True)


def test_bytes_and_time_are_held_against_the_bandwidth():
    # 4.8 MB at 4.8 TB/s take 1 us.
    found = exceeded({}, {"dram": 4.8e6, "l2": 1e9}, 0.8e-6, SHEET)
    assert found.words == "1.25 times the DRAM roof of 4.8 TB/s"
    assert not found.mix
    assert exceeded({}, {"dram": 4.8e6}, 0.95e-6, SHEET) is None
    assert exceeded({}, {"dram": None}, 1e-9, SHEET) is None
    assert exceeded({"tensor_bf16": 1e15}, {"dram": 4.8e6}, None, SHEET) is None
    assert exceeded({"tensor_bf16": 1e15}, {"dram": 4.8e6}, 0.0, SHEET) is None
    # A path without a roof costs no time that is known.
    assert exceeded({"tensor_fp4": 1e15}, {}, 1e-3, SHEET) is None


@pytest.mark.parametrize(
    ("source", "bandwidth", "expected"),
    [("analytic", 1.0, True), ("cupti", 1.0, False), ("analytic", 1e3, False)],
)
def test_above_a_roof_of_memory_a_model_suspects_caches_first(source, bandwidth, expected):
    # 20 FLOP/s at 2 FLOP/B are 10 B/s: 10 times 1 B/s, or 2 times 10 FLOP/s.
    ceilings = (
        Ceiling("FP32", "flop", 10.0, "analytic_fp32", None, "measured", ""),
        Ceiling("DRAM", "byte", bandwidth, None, "dram", "measured", ""),
    )
    point = Point("step", 2.0, 20.0, "dram", source)
    above = above_roof(point, Roofline("", ceilings, (point,), ()))
    assert above.times == (10 if bandwidth == 1.0 else 2)
    assert above.modelled is expected
    why = suspects(mix=above.mix, level=above.level, modelled=above.modelled)
    first = "suspect, likeliest first: operands that stayed in a cache, which the model counts as"
    assert why.startswith(first) is expected


def test_suspects_stand_in_order():
    text = suspects()
    places = [text.index(word) for word in ("product", "clock", "weight", "time")]
    assert places == sorted(places)
    assert "same time" not in text and "sector" not in text
    # The counter of L1 counts whole sectors.
    l1 = Ceiling("L1 read", "byte", 31e12, None, "l1", "measured", "")
    found = exceeded({}, {"l1": 62e12}, 1.0, (*SHEET, l1))
    assert (found.level, found.words) == ("l1", "2 times the L1 read roof of 31 TB/s")
    assert "32-byte sector, which the counter of L1 counts whole" in suspects(level=found.level)
    assert "sector" not in suspects(level="dram")


def test_the_roof_of_fp16_follows_the_accumulator():
    card = next(spec for spec in catalogue() if spec.name == "RTX 4090")
    names = {
        share: [
            (c.name, c.value) for c in ceilings_of(card, ["tensor_fp16"], fp16_accumulate=share)
        ]
        for share in (0.0, 0.5, 1.0)
    }
    assert names[0.0][0] == ("FP16 tensor", 165.2e12)
    assert names[0.5][0][0] == "FP16 tensor, 50% fp16 accumulate"
    assert names[1.0][0] == ("FP16 tensor, fp16 accumulate", pytest.approx(330.3e12))
    (same, _) = ceilings_of(H200, ["tensor_fp16"], fp16_accumulate=1.0)
    assert (same.name, same.value) == ("FP16 tensor", 989.4e12)


def test_work_too_little_to_take_time_has_no_mixed_peak():
    assert mixed_peak({"sass_fp32": 5e-324}, {"sass_fp32": 66.9e12}) is None
