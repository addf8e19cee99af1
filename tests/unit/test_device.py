"""The catalogue's figures, and which product a device is taken for."""

import json
import math
from pathlib import Path

import pytest

from roofprobe.device import (
    TENSOR_FP16_ACC16,
    DeviceSpec,
    called,
    catalogue,
    find,
    fp16_accumulate,
)
from roofprobe.metrics import FAMILIES, SASS
from roofprobe.roofline import ridge

MIB = 2**20
SPARSE_CASE = Path(__file__).parents[3] / "shared/cases/39-sparse-peaks"


def usable(gib: float) -> int:
    return int(0.99 * gib * 2**30)


# Path names of the metric table; fp4 and integers exist in the catalogue only where published.
PATHS = {m.path for family in FAMILIES for m in (*family.tensor, *SASS)} | {TENSOR_FP16_ACC16}


def named(name: str) -> DeviceSpec:
    return next(spec for spec in catalogue() if spec.name == name)


def found(device_name: str, chip: str | None, sm_count: int | None, memory_byte: int | None):
    spec = find(device_name=device_name, chip=chip, sm_count=sm_count, memory_byte=memory_byte)
    return spec and spec.name


# Sizes in MiB and to the byte are from device properties in public issues and documents (seen
# 2026-11); the others are the printed size in GiB less 1% for the driver.
@pytest.mark.parametrize(
    ("device_name", "chip", "sm_count", "memory_byte", "expected"),
    [
        ("NVIDIA H200", "GH100", 132, 143156 * MIB, "H200 SXM"),
        ("NVIDIA H200 NVL", "GH100", 132, 143156 * MIB, "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "GH100", 132, 81089 * MIB, "H100 SXM5"),
        ("NVIDIA H100 PCIe", "GH100", 114, 81008 * MIB, "H100 PCIe"),
        ("NVIDIA H100 NVL", "GH100", 132, usable(94), "H100 NVL"),
        ("NVIDIA GH200 480GB", "GH100", 132, usable(96), "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH100", 132, 153008209920, "GH200 144GB"),
        ("NVIDIA A100-SXM4-40GB", "GA100", 108, 42298834944, "A100 SXM4 40GB"),
        ("NVIDIA A100-SXM4-80GB", "GA100", 108, usable(80), "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "GA100", 108, usable(80), "A100 PCIe 80GB"),
        ("NVIDIA B200", "GB100", 148, int(178.35 * 2**30), "B200"),
        ("Tesla T4", "TU104", 40, 14930 * MIB, "T4"),
        ("Tesla T4", "TU104", 40, 15109 * MIB, "T4"),
        ("NVIDIA A10G", "GA102", 80, 22587 * MIB, "A10G"),
        ("NVIDIA L40S", "AD102", 142, 45589 * MIB, "L40S"),
        ("GeForce RTX 2080 Ti", "TU102", 68, usable(11), "RTX 2080 Ti"),
    ],
)
def test_a_device_is_found_by_what_it_reports(device_name, chip, sm_count, memory_byte, expected):
    assert found(device_name, chip, sm_count, memory_byte) == expected


def test_the_chip_may_be_unknown():
    assert found("NVIDIA A10G", None, 80, 22587 * MIB) == "A10G"


@pytest.mark.parametrize(
    ("device_name", "chip", "sm_count", "memory_byte"),
    [
        pytest.param("NVIDIA H200", None, None, None, id="a name alone"),
        pytest.param("NVIDIA H200", "GH100", None, None, id="a name and a chip"),
        pytest.param("Orin (nvgpu)", "GA10B", None, None, id="integrated, no memory size"),
        pytest.param("NVIDIA L40", "AD102", 142, 45589 * MIB, id="L40 is no L40S"),
        pytest.param("NVIDIA H800", "GH100", 132, 81089 * MIB, id="H800 is no H100"),
        pytest.param("NVIDIA GeForce RTX 5090 D", "GB202", 170, usable(32), id="nor this 5090"),
        pytest.param("NVIDIA A10", "GA102", 80, 22587 * MIB, id="name against SM count"),
        pytest.param("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "GA100", 42, usable(20), id="MIG slice"),
        pytest.param("NVIDIA H100 80GB HBM3", "GH100", 132, 64 * 2**30, id="memory size"),
        pytest.param("NVIDIA Graphics Device", "GA100", 108, usable(80), id="SXM or PCIe"),
    ],
)
def test_no_guess_is_made(device_name, chip, sm_count, memory_byte):
    assert found(device_name, chip, sm_count, memory_byte) is None


def test_a_nameless_device_is_found_when_only_one_set_of_roofs_fits():
    spec = find(
        device_name="NVIDIA Graphics Device", chip="GA100", sm_count=108, memory_byte=42298834944
    )
    sxm, pcie = named("A100 SXM4 40GB"), named("A100 PCIe 40GB")
    assert spec in (sxm, pcie)
    assert (sxm.peaks, sxm.memory_byte_per_s) == (pcie.peaks, pcie.memory_byte_per_s)


def test_the_size_of_every_product_is_recognised_in_binary_units():
    for spec in catalogue():
        name = spec.device_names[0] if spec.device_names else spec.name
        size = int(spec.memory_byte / 1e9 * 2**30)
        assert found(name, spec.chip, spec.sm_count, size) == spec.name


def test_h200_figures():
    h200 = named("H200 SXM")
    assert h200.peaks["tensor_fp16"] == 989.4e12  # dense; the sheet prints 1,979 with sparsity
    assert h200.peaks["tensor_tf32"] == 494.7e12
    assert h200.peaks["sass_fp32"] == 66.9e12
    assert h200.memory_byte_per_s == 4.8e12
    assert h200.memory_byte == 141e9
    assert (h200.chip, h200.compute_capability, h200.sm_count) == ("GH100", "9.0", 132)
    assert h200.boost_hz == 1.98e9


# Dense and not sparse (2x), with fp32 accumulate and not fp16 (2x on GeForce), of the right SKU.
@pytest.mark.parametrize(
    ("name", "path", "peak"),
    [
        ("H100 SXM5", "tensor_bf16", 989.4e12),
        ("H100 NVL", "tensor_bf16", 835.5e12),
        ("A100 SXM4 80GB", "tensor_bf16", 312e12),
        ("A100 SXM4 80GB", "tensor_tf32", 156e12),
        ("L4", "tensor_fp16", 121e12),
        ("RTX 3090", "tensor_fp16", 71e12),
        ("A10G", "tensor_bf16", 70e12),
        ("T4", "tensor_fp16", 65e12),
    ],
)
def test_peaks_are_dense(name, path, peak):
    assert named(name).peaks[path] == peak


# FLOP of FP16 a clock and SM at full dense rate: 8 tensor cores of 64 FMA (GV100, TU10x), 4 of 256
# (GA100), of 128 (GA10x, AD10x, GB202), of 512 (GH100), of 1024 (GB100), 2 FLOP each.
FP16_PER_CLOCK = {
    "GV100": 1024,
    "TU102": 1024,
    "TU104": 1024,
    "GA100": 2048,
    "GA102": 1024,
    "AD102": 1024,
    "AD104": 1024,
    "GH100": 4096,
    "GB100": 8192,
    "GB202": 1024,
}
# Half of it with fp32 accumulate: GeForce by NVIDIA's own tables, the A10G by AWS's.
HALF_RATE = {"RTX 2080 Ti", "RTX 3090", "RTX 4090", "RTX 5090", "A10G"}


def test_no_fp16_peak_is_sparse_or_of_the_other_accumulator():
    # Twice as much would be the sparse figure, or on GeForce the one with fp16 accumulate.
    # Down to 0.86: the dense peaks of some Hopper and Blackwell sheets imply less than the boost
    # clock (1.545 of 1.785 GHz on an NVL).
    checked = 0
    for spec in catalogue():
        if spec.sm_count and spec.boost_hz and "tensor_fp16" in spec.peaks:
            full = FP16_PER_CLOCK[spec.chip] * spec.sm_count * spec.boost_hz
            share = spec.peaks["tensor_fp16"] / full
            low, high = (0.49, 0.51) if spec.name in HALF_RATE else (0.86, 1.01)
            assert low < share < high, spec.name
            checked += 1
    assert checked == 30  # of 34: P100s have no tensor cores, two rows no peak or no clock


def test_tensor_peaks_of_one_product_keep_the_ratios_of_dense_rates():
    # A sparse figure in a dense row, or the other way round, is off by 2.
    ratios = {"tensor_bf16": 1, "tensor_tf32": 0.5, "tensor_fp8": 2}
    for spec in catalogue():
        for path, ratio in ratios.items():
            if path in spec.peaks:
                expected = ratio * spec.peaks["tensor_fp16"]
                assert spec.peaks[path] == pytest.approx(expected, rel=0.02), (spec.name, path)


def test_fp16_accumulate_is_a_peak_of_its_own():
    # Whitepapers: Turing, GA102, Ada, Blackwell for GeForce; Ampere's lists 312 for both.
    both = {
        spec.name: (spec.peaks["tensor_fp16"], spec.peaks[TENSOR_FP16_ACC16])
        for spec in catalogue()
        if TENSOR_FP16_ACC16 in spec.peaks
    }
    assert both["RTX 2080 Ti"] == (53.8e12, 107.6e12)
    assert both["RTX 3090"] == (71e12, 142e12)
    assert both["RTX 4090"] == (165.2e12, 330.3e12)
    assert both["RTX 5090"] == (209.5e12, 419e12)
    assert both["A100 SXM4 80GB"] == (312e12, 312e12)


def test_the_shared_case_of_sparse_claims():
    if not SPARSE_CASE.is_dir():
        pytest.skip("needs the shared cases beside the checkout")
    rows = {"H100 SXM": "H100 SXM5", "A100 SXM 80GB": "A100 SXM4 80GB"}
    expected = json.loads((SPARSE_CASE / "expected.json").read_text())
    for claim in json.loads((SPARSE_CASE / "claims.json").read_text()):
        right = expected["expect"][f"{claim['gpu']}/{claim['dtype']}"]
        peak = named(rows.get(claim["gpu"], claim["gpu"])).peaks[f"tensor_{claim['dtype']}"]
        assert peak == pytest.approx(1e12 * right["dense_tflops"], rel=1e-3)
        if claim["with_sparsity"]:
            assert peak == pytest.approx(1e12 * claim["datasheet_tflops"] / 2, rel=1e-3)
        bandwidth = claim["mem_bytes_per_s"]
        assert ridge(peak, bandwidth) == pytest.approx(right["ridge_flop_per_byte"], rel=1e-3)
    share = expected["example"]["achieved_tflops"] * 1e12 / named("H100 SXM5").peaks["tensor_bf16"]
    assert 100 * share == pytest.approx(expected["example"]["pct_dense"], rel=1e-3)


def test_every_row_is_sourced_and_every_figure_is_real():
    for spec in catalogue():
        assert spec.source and all(url.startswith("https://") for url in spec.source), spec.name
        assert spec.seen == "2026-11"
        assert spec.note and spec.chip
        known = (spec.sm_count, spec.boost_hz, spec.l2_byte, spec.tdp_w)
        figures = [n for n in known if n is not None]
        figures += [spec.memory_byte, spec.memory_byte_per_s, *spec.peaks.values()]
        assert all(0 < n < math.inf for n in figures), spec.name


def test_every_row_is_in_base_units():
    for spec in catalogue():
        assert spec.boost_hz is None or 1e9 < spec.boost_hz < 3e9
        assert 1e10 < spec.memory_byte < 1e12
        assert 1e11 < spec.memory_byte_per_s < 1e13
        assert all(1e11 < peak < 2e16 for peak in spec.peaks.values()), spec.name


def test_paths_and_names():
    names = [spec.name for spec in catalogue()]
    reported = [name for spec in catalogue() for name in spec.device_names]
    assert len(set(names)) == len(names)
    assert len(set(reported)) == len(reported)
    assert {path for spec in catalogue() for path in spec.peaks} <= PATHS


def test_cuda_core_peaks_follow_from_sms_and_clock():
    # FP32 lanes of an SM: 64 up to GA100, 128 from GA10x on; a lane does an FMA, 2 FLOP, a cycle.
    for spec in catalogue():
        if spec.sm_count and spec.boost_hz and "sass_fp32" in spec.peaks:
            lanes = 64 if spec.compute_capability in ("6.0", "7.0", "7.5", "8.0") else 128
            by_clock = spec.sm_count * lanes * 2 * spec.boost_hz
            assert spec.peaks["sass_fp32"] == pytest.approx(by_clock, rel=0.01), spec.name


def test_the_catalogue_is_read_once():
    assert catalogue() is catalogue()


H100_80 = {"H100 PCIe", "H100 SXM5"}
A100_SXM = {"A100 SXM4 40GB", "A100 SXM4 80GB"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H100 SXM5", {"H100 SXM5"}),
        ("H100 SXM", {"H100 SXM5"}),
        ("H100 80GB", H100_80),  # both have 80 GB
        ("H100-80GB", H100_80),
        ("h100 80 GiB", H100_80),
        ("H100 80GB HBM3", {"H100 SXM5"}),
        ("H100", {*H100_80, "H100 NVL"}),
        ("A100 SXM", A100_SXM),
        ("A100 SXM 80GB", {"A100 SXM4 80GB"}),
        ("A100 80G", {"A100 SXM4 80GB", "A100 PCIe 80GB"}),
        ("V100-SXM2-16GB", {"V100 SXM2 16GB"}),
        ("V100 SXM3 32GB", set()),  # it exists, at other clocks
        ("GH200 480GB", {"GH200 96GB"}),
        ("GH200 144G", {"GH200 144GB"}),
        ("H200", {"H200 SXM", "H200 NVL"}),
        ("NVIDIA H200", {"H200 SXM"}),  # as its driver says, and the NVL's says NVL
        ("GeForce RTX 4090", {"RTX 4090"}),
        ("4090", {"RTX 4090"}),
        ("RTX 4090 D", set()),
        ("RTX 2080", set()),  # no 2080 Ti
        ("RTX 2080 Ti", {"RTX 2080 Ti"}),
        ("RTX 6000", set()),  # of Turing or Ada, and no RTX PRO 6000
        ("RTX PRO 6000 Blackwell Server", {"RTX PRO 6000 Blackwell Server"}),
        ("A6000", {"RTX A6000"}),
        ("SXM", set()),
        ("80GB", set()),
        ("AD104", {"L4"}),
        ("", set()),
        ("8.0", set()),
    ],
)
def test_what_a_user_calls_a_product(name, expected):
    assert {spec.name for spec in called(name)} == expected


def test_every_product_is_found_by_each_of_its_own_names():
    for spec in catalogue():
        for name in (spec.name, *spec.device_names):
            assert called(name) == (spec,)
            assert spec in called(name.removeprefix("NVIDIA ").removeprefix("Tesla "))


FP16 = "sm__ops_path_tensor_src_fp16_dst_{}.sum"


@pytest.mark.parametrize(
    ("counters", "flop", "share"),
    [
        ({FP16.format("fp16"): 30.0, FP16.format("fp32"): 90.0}, 120.0, 0.25),
        ({FP16.format("fp16"): 30.0, FP16.format("fp32"): 0.0}, 30.0, 1.0),
        ({FP16.format("fp16"): 0.0, FP16.format("fp32"): 90.0}, 90.0, 0.0),
        ({"sm__ops_path_tensor_src_fp16.sum": 90.0}, 90.0, 0.0),  # Hopper does not tell
        ({FP16.format("fp16"): None}, None, 0.0),
        ({FP16.format("fp16"): 0.0}, 0.0, 0.0),
        # By sparsity: two parts of one count, beside it or in its place.
        (
            {
                "sm__ops_path_tensor_src_fp16_dst_fp16_sparsity_off.sum": 10.0,
                "sm__ops_path_tensor_src_fp16_dst_fp16_sparsity_on.sum": 20.0,
            },
            60.0,
            0.5,
        ),
        (
            {
                FP16.format("fp16"): 30.0,
                "sm__ops_path_tensor_src_fp16_dst_fp16_sparsity_off.sum": 30.0,
            },
            60.0,
            0.5,
        ),
    ],
)
def test_share_of_fp16_accumulate(counters, flop, share):
    assert fp16_accumulate(counters, flop) == share


def test_the_peak_of_fp16_follows_the_accumulator():
    card, a100 = named("RTX 4090"), named("A100 SXM4 80GB")
    assert card.peak("tensor_fp16") == 165.2e12
    assert card.peak("tensor_fp16", 1.0) == pytest.approx(330.3e12)
    # Half of 2 FLOP at 165.2 and half at 330.3 TFLOP/s: 2 / (1/165.2 + 1/330.3) = 220.24.
    assert card.peak("tensor_fp16", 0.5) == pytest.approx(220.24e12, rel=1e-4)
    assert card.peak("tensor_bf16", 1.0) == 165.2e12
    assert a100.peak("tensor_fp16", 1.0) == 312e12
    assert named("H100 SXM5").peak("tensor_fp16", 1.0) == 989.4e12
    assert named("P100 PCIe 16GB").peak("tensor_fp16", 1.0) is None
