"""The shared cases and the shared V100 logs, where they lie beside the checkout."""

import json
import math
from pathlib import Path

import pytest

from roofprobe.cli import main
from roofprobe.cli.import_ncu import roofline_of
from roofprobe.ncu_import import import_files
from roofprobe.roofline import suspects

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
    record = imported("--gpu", "V100-SXM2-16GB", *sorted((REAL / name).iterdir()))
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
    assert not any("above the roof" in text for text in record["warnings"])
    reordered = any("different orders" in text for text in record["warnings"])
    assert reordered == name.startswith("TF")


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_hierarchical_roofline_of_v100_logs_is_drawn(name, tmp_path, capsys):
    if not REAL.is_dir():
        pytest.skip("needs the shared V100 logs beside the checkout")
    *_, tera, intensities = PUBLISHED[name]
    files, picture = sorted((REAL / name).iterdir()), tmp_path / "x.png"
    arguments = ["--gpu", "V100-SXM2-16GB", "--plot", str(picture)]
    assert main(["import-ncu", *arguments, *map(str, files)]) == 0
    assert f"picture: {picture}" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = import_files(files, gpu="V100-SXM2-16GB", compute_capability="7.0")
    roofline = roofline_of(found, name)
    # One height, and a point for each level, under the roofs of the datasheet.
    assert [point.level for point in roofline.points] == ["dram", "l2", "l1"]
    for point, shown in zip(roofline.points, intensities, strict=True):
        assert f"{point.intensity:.{len(shown.partition('.')[2])}f}" == shown
        assert point.flop_per_s / 1e12 == pytest.approx(tera, abs=0.005)
    names = [roof.name for roof in roofline.ceilings]
    assert "DRAM" in names
    assert any(roof.kind == "flop" for roof in roofline.ceilings)


BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
FP16 = "sm__ops_path_tensor_src_fp16_dst_fp{}.sum"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"


@pytest.fixture
def log(tmp_path):
    """A log of kernels, each with its time in ms, 0.6 GB of DRAM and what else it counted."""

    def write(*kernels: tuple[str, float, dict[str, float]]) -> Path:
        lines = ["ID,Kernel Name,Metric Name,Metric Unit,Metric Value"]
        for index, (name, time, counts) in enumerate(kernels):
            lines.append(f"{index},{name},gpu__time_duration.sum,msecond,{time}")
            lines.append(f"{index},{name},dram__bytes.sum,byte,{counts.get('byte', 6e8):.0f}")
            for metric, value in counts.items():
                if metric != "byte":
                    lines.append(f"{index},{name},{metric},,{value:.0f}")
        path = tmp_path / "log.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def above(record: dict) -> list[str]:
    return [text for text in record["warnings"] if text.startswith("above the roof of")]


def test_work_above_a_roof_of_the_named_gpu_is_flagged_and_kept(log, imported, capsys):
    path = log(("gemm", 1, {BF16: 1.5e12}))  # 1.5 PFLOP/s, and 989.4 TFLOP/s is the peak
    record = imported(path, "--gpu", "H100 SXM5")
    roof = "the BF16 tensor roof of 989.4 TFLOP/s"
    (text,) = above(record)
    assert text == f"above the roof of H100 SXM5: all launches, 1.52 times {roof}: {suspects()}"
    assert record["flop_per_s"] == pytest.approx(1.5e15)
    assert main(["import-ncu", str(path), "--gpu", "H100 SXM5"]) == 0
    assert f"warning: {text}" in capsys.readouterr().out
    assert not above(imported(path))
    assert not above(imported(log(("gemm", 1, {BF16: 1.03e12})), "--gpu", "H100 SXM5"))


def test_a_kernel_above_the_roof_does_not_hide_behind_others(log, imported):
    slow = {BF16: 0.0}
    record = imported(log(("gemm", 1, {BF16: 1.5e12}), ("slow", 9, slow)), "--gpu", "H100 SXM")
    (text,) = above(record)
    assert text.startswith("above the roof of H100 SXM5: gemm, 1.52 times the BF16 tensor roof")
    many = [(f"k{index}", 1, {BF16: (1.1 + index / 10) * 1e12}) for index in range(8)]
    (text,) = above(imported(log(*many, ("slow", 99, slow)), "--gpu", "H100 SXM"))
    assert "H100 SXM5: k7, 1.82 times" in text
    assert "; 3 more kernels: suspect" in text


def test_paths_and_bandwidth_have_roofs_of_their_own(log, imported):
    # 150 TFLOP/s of fp32, 66.9 at most, beside a little bf16.
    (text,) = above(imported(log(("mix", 1, {BF16: 3e9, FFMA: 75e9})), "--gpu", "H100 SXM5"))
    assert "2.25 times the FP32 CUDA cores roof of 66.9 TFLOP/s" in text
    (text,) = above(imported(log(("copy", 1, {"byte": 4e9, FFMA: 0})), "--gpu", "H100 SXM5"))
    assert "1.19 times the DRAM roof of 3.35 TB/s" in text
    # Of all that are called so, the NVL has 3.938 TB/s: 1.02 times.
    assert not above(imported(log(("copy", 1, {"byte": 4e9, FFMA: 0})), "--gpu", "H100"))


def test_fp16_accumulate_has_its_own_roof(log, imported):
    half, single = FP16.format(16), FP16.format(32)
    assert not above(imported(log(("a", 1, {half: 3e11, single: 0})), "--gpu", "RTX 4090"))
    (text,) = above(imported(log(("a", 1, {half: 0, single: 3e11})), "--gpu", "RTX 4090"))
    assert "1.82 times the FP16 tensor roof of 165.2 TFLOP/s" in text
    path = log(("a", 1, {half: 3e11, single: 0}))
    (roof, _) = roofline_of(import_files([path], gpu="RTX 4090"), "x").ceilings
    assert (roof.name, roof.value) == ("FP16 tensor, fp16 accumulate", pytest.approx(330.3e12))


def test_a_name_of_other_products_is_no_name_of_a_known_one(log, imported, capsys):
    path = log(("a", 1, {BF16: 1e9}))
    assert main(["import-ncu", str(path), "--gpu", "RTX 6000"]) == 2
    assert "no GPU known here is called that" in capsys.readouterr().err
    assert imported(path, "--gpu", "H100 80GB")["compute_capability"] == ["9.0"]
    roofline = roofline_of(import_files([path], gpu="H100 80GB"), "x")
    assert not roofline.ceilings
    assert all("H100 PCIe, H100 SXM5, and they differ" in why for _, why in roofline.left_out[2:])


class TestWhatBelongsTogether:
    def test_20_runs_of_other_kernels(self, case, refused, tmp_path):
        folder, expect = case("20")
        header = "ID,Process ID,Kernel Name,Metric Name,Metric Unit,Metric Value\n"
        logs = []
        for name, metric in (("pass_a", "dram__bytes.sum"), ("pass_b", "lts__t_bytes.sum")):
            kernels = json.loads((folder / f"{name}.json").read_text())
            rows = [f"{i},1,{kernel},{metric},byte,100\n" for i, kernel in enumerate(kernels)]
            logs.append(tmp_path / f"{name}.csv")
            logs[-1].write_text(header + "".join(rows))
        text = refused(*logs)
        assert f"{expect['len_a']} and {expect['len_b']} launches" in text
        assert f"first difference at launch {expect['first_difference_index']}: " in text

    def test_21_runs_with_other_cache_control(self, case, refused, imported):
        folder, _ = case("21")
        text = refused(folder / "flush_all.csv", folder / "flush_none.csv")
        assert "--cache-control, --replay-mode" in text
        record = imported(folder / "flush_all.csv")
        assert record["cache_control"] is None
        assert "--cache-control all" in record["reasons"]["cache_control"]
