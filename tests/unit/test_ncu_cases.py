"""The shared cases and the shared V100 logs, where they lie beside the checkout."""

import json
import math
from pathlib import Path

import pytest

from roofprobe.cli import main

SHARED = Path(__file__).parents[3] / "shared"
CASES = SHARED / "cases"
REAL = SHARED / "real/deepcam-v100"


@pytest.fixture
def case():
    def find(number: str) -> tuple[Path, dict]:
        if not CASES.is_dir():
            pytest.skip("needs the shared cases beside the checkout")
        (folder,) = CASES.glob(f"{number}-*")
        return folder, json.loads((folder / "expected.json").read_text())["expect"]

    return find


@pytest.fixture
def imported(capsys):
    def run(*arguments: object) -> dict:
        assert main(["import-ncu", "--json", "--per-kernel", *map(str, arguments)]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def refused(capsys):
    def run(*arguments: object) -> str:
        assert main(["import-ncu", *map(str, arguments)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        assert captured.err.count("\n") == 1
        return captured.err

    return run


def kernel(record: dict, name: str) -> dict:
    (found,) = [entry for entry in record["kernels"] if entry["name"] == name]
    return found


def test_01_permission_denied(case, refused):
    folder, _ = case("01")
    text = refused(folder / "ncu.log")
    for part in (
        "NVreg_RestrictProfilingToAdminUsers=0",
        "HOST",
        "--cap-add=SYS_ADMIN",
        "a hosted job cannot fix this from inside",
    ):
        assert part in text
    assert "FLOP" not in text


def test_03_mig_nan(case, imported):
    folder, expect = case("03")
    record = imported(folder / "mig.csv")
    assert record["launches"] == expect["launches"]
    assert record["flop"]["total"] == expect["flops"]
    assert record["time_s"] == pytest.approx(expect["time_ns"] * 1e-9)
    assert record["flop_per_s"] == pytest.approx(expect["flop_per_s"])
    assert record["byte"]["dram"] is None
    assert record["byte"]["l2"] is None
    assert record["intensity"] is None
    assert "MIG" in record["unavailable"]["dram__bytes.sum"]


def test_16_ranges(case, imported):
    folder, expect = case("16")
    record = imported(folder / "steps.csv")
    ranges = {entry["name"]: entry for entry in record["ranges"]}
    for name, step in expect["steps"].items():
        assert ranges[name]["launches"] == step["launches"]
        assert ranges[name]["flop"]["total"] == step["flops"]
        assert ranges[name]["time_s"] == pytest.approx(step["time_ns"] * 1e-9)
    assert ranges[record["steady_range"]]["flop"]["total"] == expect["steady_state_flops"]
    assert f"step_0: {expect['warn_step_0']}" == record["warnings"][0].replace("ranges", "steps")


def test_21_cache_control(case, imported):
    folder, expect = case("21")
    for name in ("flush_all", "flush_none"):
        record = imported(folder / f"{name}.csv")
        assert record["flop"]["total"] == expect[name]["flops"]
        assert record["byte"]["dram"] == expect[name]["dram_bytes"]
        assert record["intensity"] == pytest.approx(expect[name]["ai"], rel=1e-5)


def test_25_kernel_names(case, imported):
    folder, expect = case("25")
    record = imported(folder / "names.csv")
    assert record["launches"] == expect["launches"]
    assert [entry["name"] for entry in record["kernels"]] == expect["names"]
    assert record["flop"]["total"] == expect["flops"]
    assert record["byte"]["dram"] == expect["dram_bytes"]
    assert record["intensity"] == pytest.approx(expect["ai"], rel=1e-5)


def test_26_units(case, imported, refused):
    folder, expect = case("26")
    for name in ("raw_auto.csv", "raw_base.csv"):
        record = imported(folder / name)
        assert record["launches"] == expect[name]["launches"]
        assert record["flop"]["total"] == expect[name]["flops"]
        assert record["byte"]["dram"] == pytest.approx(expect[name]["dram_bytes"])
        assert record["time_s"] == pytest.approx(expect[name]["time_ns"] * 1e-9)
    assert "unknown unit furlong" in refused(folder / "unknown_unit.csv")


def test_28_noise(case, imported):
    folder, expect = case("28")
    record = imported(folder / "mixed.log")
    assert record["launches"] == expect["launches"]
    assert record["flop"]["total"] == expect["flops"]
    assert record["byte"]["dram"] == expect["dram_bytes"]
    assert len(record["warnings"]) == expect["warnings"]
    assert list(record["unavailable"]) == expect["unavailable_metrics"]
    assert record["processes"] == expect["processes"]
    assert record["skipped_lines"] == 1


def test_31_no_kernels(case, refused):
    folder, expect = case("31")
    text = refused(folder / "run.log")
    assert "no kernels" in text
    assert expect["hint"] in text
    assert all(name in text for name in expect["failed_kernels"])


@pytest.mark.parametrize("name", ["latin1_log.csv", "utf16le_bom_crlf.csv", "utf8_bom_crlf.csv"])
def test_32_encodings(case, imported, name):
    folder, expect = case("32")
    record = imported(folder / name)
    assert record["launches"] == expect["each_file"]["launches"]
    assert record["flop"]["total"] == expect["each_file"]["flops"]
    assert record["byte"]["dram"] == expect["each_file"]["dram_bytes"]
    assert record["intensity"] == expect["each_file"]["ai"]


@pytest.mark.parametrize("name", ["cc8.csv", "cc12.csv"])
def test_34_renames(case, imported, name):
    folder, expect = case("34")
    record = imported(folder / name)
    assert record["byte"]["dram"] == expect["each_file"]["dram_bytes"]
    assert record["byte"]["dram_read"] == expect["each_file"]["dram_read"]
    assert record["byte"]["dram_write"] == expect["each_file"]["dram_write"]
    assert record["flop"]["total"] == expect["each_file"]["flops"]
    assert record["intensity"] == expect["each_file"]["ai"]
    assert record["warnings"] == []


def test_35_tensor_cores(case, imported):
    folder, expect = case("35")
    calibration = ("--calibration", folder / "calib.json")
    for name in ("gemm.csv", "gemm_half.csv"):
        record = imported(folder / name, *calibration)
        layer = kernel(record, "layer_gemm")
        assert record["tensor_scale"] == expect[name]["scale"]
        assert layer["flop"]["tensor_fp16"] == expect[name]["layer_tensor_flops"]
        assert layer["intensity"] == expect[name]["layer_ai"]
    whole = kernel(imported(folder / "gemm.csv"), "layer_gemm")
    assert whole["flop"]["total"] == expect["gemm.csv"]["layer_flops"]
    assert whole["flop"]["sass_fp32"] == expect["gemm.csv"]["layer_sass_flops"]
    alone = imported(folder / "insts_only.csv")
    assert alone["flop"]["total"] is None
    assert alone["flop"]["tensor"] is None
    assert alone["intensity"] is None
    assert expect["insts_only.csv"]["reason"] in alone["reasons"]["flop.tensor"]


def test_42_zeros(case, imported):
    folder, expect = case("42")
    record = imported(folder / "step.csv")
    assert record["launches"] == expect["launches"]
    assert record["flop"]["total"] == expect["step"]["flops"]
    assert record["byte"]["dram"] == expect["step"]["dram_bytes"]
    assert record["time_s"] == pytest.approx(expect["step"]["time_ns"] * 1e-9)
    assert record["intensity"] == pytest.approx(expect["step"]["ai"], rel=1e-5)
    assert record["flop_per_s"] == pytest.approx(1e9 * expect["step"]["gflop_per_s"], rel=1e-5)
    axpy = kernel(record, "axpy")
    assert axpy["intensity"] == pytest.approx(expect["axpy"]["ai"], rel=1e-5)
    assert axpy["flop_per_s"] == pytest.approx(1e9 * expect["axpy"]["gflop_per_s"])
    assert kernel(record, "spin_regs")["intensity"] is None


# launches, SASS FLOP, tensor FLOP, DRAM, L2, L1 bytes, s, TFLOP/s, intensities: shared/real.
PUBLISHED = {
    "PT-fp32-O0-Adam-fw": (
        *(633, 1.18459e12, 0, 5.34147e10, 9.42575e10, 1.29256e11, 0.170426, 6.95),
        ("22.2", "12.6", "9.2"),
    ),
    "PT-fp32-O1-Adam-fw": (
        *(797, 2.41696e11, 1.12868e12, 2.18271e10, 4.01603e10, 6.09688e10, 0.104122, 13.16),
        ("62.8", "34.1", "22.5"),
    ),
    "TF-fp16-batch2-fw-amp": (
        *(559, 4.60468e10, 9.34866e12, 5.33923e10, 1.51795e11, 1.98284e11, 0.198640, 47.30),
        ("176", "61.9", "47.4"),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_v100_logs_give_the_published_totals(imported, name):
    if not REAL.is_dir():
        pytest.skip("needs the shared V100 logs beside the checkout")
    launches, sass, tensor, dram, l2, l1, time, tera, intensities = PUBLISHED[name]
    record = imported(*sorted((REAL / name).iterdir()))
    flop = record["flop"]

    def digits(value: float) -> float:
        return float(f"{value:.5e}")

    assert record["launches"] == launches
    assert digits(math.fsum(v for k, v in flop.items() if k.startswith("sass_"))) == sass
    assert digits(flop["tensor_fp16"]) == tensor
    assert digits(flop["total"]) == pytest.approx(sass + tensor, rel=1e-5)
    assert [digits(record["byte"][level]) for level in ("dram", "l2", "l1")] == [dram, l2, l1]
    assert digits(record["time_s"]) == time
    assert record["flop_per_s"] / 1e12 == pytest.approx(tera, abs=0.005)
    for level, shown in zip(("dram", "l2", "l1"), intensities, strict=True):
        places = len(shown.partition(".")[2])
        assert f"{record['intensity_by_level'][level]:.{places}f}" == shown
    reordered = any("different orders" in text for text in record["warnings"])
    assert reordered == name.startswith("TF")
