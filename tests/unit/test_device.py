"""The catalogue's figures, and which product a device is taken for."""

import math

import pytest

from roofprobe.device import DeviceSpec, catalogue, find
from roofprobe.metrics import FAMILIES, SASS

MIB = 2**20


def usable(gib: float) -> int:
    return int(0.99 * gib * 2**30)


# Path names of the metric table; fp4 and integers exist in the catalogue only where published.
PATHS = {m.path for family in FAMILIES for m in (*family.tensor, *SASS)}


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
