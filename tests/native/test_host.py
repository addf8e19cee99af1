"""CUPTI's host side through the extension, with no GPU and no driver."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from roofprobe import _native, metrics
from roofprobe.cli import main
from roofprobe.counters import cupti
from roofprobe.counters.recorded import CounterFile
from roofprobe.derive import figures
from roofprobe.errors import CuptiLibraryError, UnsupportedDeviceError
from roofprobe.record import Measurement, Round

CHIPS = ("GV100", "TU104", "GA100", "GA102", "AD102", "GH100", "GB100", "GB202")

# Passes of each set, its coverage counters included: the fewest that any order of the names gave
# (400 random orders each, CUPTI 13.0.85).
PASSES = {
    "GV100": {"study": 3, "fp32": 4, "memory": 1, "full": 4},
    "TU104": {"study": 2, "fp32": 2, "memory": 1, "full": 3},
    "GA100": {"study": 2, "fp32": 2, "memory": 1, "full": 7},
    "GA102": {"study": 2, "fp32": 2, "memory": 1, "full": 7},
    "AD102": {"study": 2, "fp32": 2, "memory": 1, "full": 8},
    "GH100": {"study": 2, "fp32": 2, "memory": 1, "full": 7},
    "GB100": {"study": 2, "fp32": 2, "memory": 1, "full": 8},
    "GB202": {"study": 2, "fp32": 2, "memory": 1, "full": 11},
}


def test_every_chip_of_the_table_is_known_to_cupti():
    known = set(cupti.supported_chips())
    assert len(known) >= 30
    assert {chip for family in metrics.FAMILIES for chip in family.chips} <= known


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", metrics.SET_NAMES)
def test_every_name_of_every_set_exists_and_schedules(chip, name):
    names = metrics.with_coverage(metrics.metric_set(name, chip))
    plan, kept, unavailable = cupti.schedule(cupti.evaluator(chip), names)
    assert unavailable == {}
    assert list(kept) == names
    assert plan.passes == PASSES[chip][name]


@pytest.mark.parametrize(
    "chip", [chip for family in metrics.FAMILIES for chip in family.chips if chip not in CHIPS]
)
def test_the_other_chips_of_a_family_have_its_names(chip):
    for name in ("full", "study"):
        _, _, unavailable = cupti.schedule(cupti.evaluator(chip), metrics.metric_set(name, chip))
        assert unavailable == {}


@pytest.mark.parametrize("chip", [chip for family in metrics.FAMILIES for chip in family.chips])
def test_the_studys_metrics_take_two_passes_on_every_chip_with_dram_counters(chip):
    names = metrics.metric_set("study", chip)
    plan, _, _ = cupti.schedule(cupti.evaluator(chip), names)
    assert (len(names), plan.passes) == ((8, 2) if metrics.family_of(chip).dram else (4, 1))


@pytest.mark.parametrize("chip", CHIPS)
def test_tensor_metrics_without_a_type_are_only_those_left_out_on_purpose(chip):
    """A new CUPTI that counts a new source type must not go unnoticed."""
    known = {row.name.partition(".")[0] for row in metrics.TABLE.values()}
    offered = {
        name
        for name in cupti.evaluator(chip).metrics()
        if name.startswith("sm__ops_path_tensor_src_")
        and "sparsity" not in name
        and not name.endswith("_realtime")
    }
    left_out = {name.removeprefix("sm__ops_path_tensor_src_") for name in offered - known}
    assert left_out <= {"int1", "int4"}


@pytest.mark.parametrize("chip", ["GH100", "GB202"])
@pytest.mark.parametrize("name", ["full", "study"])
def test_units_are_what_the_table_takes_them_for(chip, name):
    host = cupti.evaluator(chip)
    for row in metrics.rows(metrics.with_coverage(metrics.metric_set(name, chip))):
        unit = host.describe(row.name).unit
        tensor = row.path is not None and row.path.startswith("tensor")
        expected = {
            "byte": "byte",
            "sector": "l2_sector",  # 32 bytes: see below
            "rate": "byte/second",
            "second": "nanosecond",
            "block": "cta",  # CUDA's thread block
        }.get(row.kind, "math_op" if tensor else "instruction")
        assert unit == expected, row.name


RECORDED = Path(__file__).parents[1] / "data"


def test_the_studys_set_of_a_recorded_step():
    """The image holds what the rates are made of: bytes, and the time of the range."""
    (image,) = CounterFile.load(RECORDED / "resnet18-b256-tf32.counters").images
    names = metrics.metric_set("study", "GH100")
    counted = cupti.evaluate_image(image, [*names, "gpu__time_duration.sum"])
    rates = ("dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second")
    # 1,510,109,224 and 980,793,728 sectors of 32 bytes in 48.742592 ms
    assert [counted.values[name] for name in rates] == pytest.approx(
        [48_323_495_168 / 48.742592e-3, 31_385_399_296 / 48.742592e-3], rel=1e-12
    )
    # A run of the set: the image lacks fp16 instructions, which no figure of ours needs.
    values = {name: counted.values[name] for name in names}
    study = replace(
        Measurement.load(RECORDED / "resnet18-b256-tf32.json"),
        metrics=names,
        rounds=(Round(values, 2, 0),),
        unavailable=counted.reasons,
    )
    found = figures(study)
    assert found.byte["dram_read"].value == 48_323_495_168
    assert found.byte["dram_write"].value == 31_385_399_296
    assert found.byte["dram"].value == 79_708_894_464
    # fadd 5,211,901,726 + fmul 7,141,270,184 + 2 x ffma 13,507,888,477
    assert found.study.flop.value == 39_368_948_864
    assert found.study.intensity.value == pytest.approx(39_368_948_864 / 79_708_894_464)
    assert found.flop_total.value is None  # tensor cores were not counted


def test_rates_alone_are_no_bytes():
    (image,) = CounterFile.load(RECORDED / "copy-2gib.counters").images
    names = ("dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second")
    values = cupti.evaluate_image(image, names).values
    assert all(values.values())
    copied = Measurement.load(RECORDED / "copy-2gib.json")
    assert figures(copied).byte["dram"].value == 2_147_549_184 + 2_147_038_976
    alone = replace(copied, metrics=names, rounds=(Round(values, 1, 0),))
    assert figures(alone).byte == {}


def test_one_bad_name_drops_out_by_itself():
    host = cupti.evaluator("GH100")
    names = ["dram__bytes_read.sum", "dram__nonsense.sum", "lts__t_bytes.sum", "no roll-up"]
    plan, kept, unavailable = cupti.schedule(host, names)
    assert kept == ("dram__bytes_read.sum", "lts__t_bytes.sum")
    assert set(unavailable) == {"dram__nonsense.sum", "no roll-up"}
    assert "does not exist on chip GH100" in unavailable["dram__nonsense.sum"]
    assert plan.passes == 1


def test_dram_names_of_another_generation_drop_out():
    _, kept, unavailable = cupti.schedule(cupti.evaluator("GB202"), ["dram__sectors_read.sum"])
    assert kept == ()
    assert "GB202" in unavailable["dram__sectors_read.sum"]


def test_repeated_names_are_counted_once():
    _, kept, _ = cupti.schedule(cupti.evaluator("GH100"), ["lts__t_bytes.sum"] * 3)
    assert kept == ("lts__t_bytes.sum",)


@pytest.mark.parametrize("chip", ["gh100", "H100", "gh-100"])
def test_a_misspelt_chip_gets_the_right_name(chip, capsys):
    assert main(["metrics", "--chip", chip]) == 1
    said = capsys.readouterr().err
    assert f"knows no chip {chip!r}: did you mean GH100?" in said


def test_a_chip_without_a_name_gets_the_list(capsys):
    assert main(["metrics", "--chip", ""]) == 1
    said = capsys.readouterr().err
    assert "knows no chip '': `roofprobe metrics` lists those" in said


def test_unknown_and_refused_chips_say_so():
    with pytest.raises(UnsupportedDeviceError, match="newer libcupti"):
        cupti.evaluator("XX999")
    with pytest.raises(UnsupportedDeviceError, match="no range profiler"):
        cupti.evaluator("GV11B")


def test_status_codes_become_exceptions_with_call_code_and_name():
    with pytest.raises(_native.CuptiError) as caught:
        _native.raise_status(35)
    assert caught.value.call == "raise_status"
    assert caught.value.code == 35
    assert caught.value.name == "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    _native.raise_status(0)


def test_a_second_libcupti_is_refused(tmp_path):
    cupti.load()
    with pytest.raises(_native.LibraryError, match="already loaded"):
        _native.load_cupti(str(tmp_path / "libcupti.so.12"))


def test_evaluators_may_be_shared_by_threads():
    host = cupti.evaluator("GH100")
    names = metrics.metric_set("full", "GH100")
    found = []

    def ask():
        for _ in range(20):
            found.append((host.schedule(list(names)).passes, len(host.metrics())))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    assert len(set(found)) == 1


def test_loading_needs_a_libcupti(monkeypatch):
    def absent():
        raise _native.LibraryError("not loaded")

    monkeypatch.setattr(_native, "cupti_path", absent)
    monkeypatch.setattr(cupti, "find_libcupti", lambda: "/nowhere/libcupti.so.13")
    with pytest.raises(CuptiLibraryError, match=r"loading CUPTI: .*/nowhere/libcupti\.so\.13"):
        cupti.load()


@pytest.mark.parametrize("chip", ["GV100", "GA100", "GH100", "GB202"])
def test_every_metric_of_a_chip_can_be_listed(chip, capsys):
    """Also those of CUPTI's own groups, whose roll-ups it refuses to tell."""
    assert main(["metrics", "--chip", chip, "tensor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all("tensor" in line for line in lines)
    assert main(["metrics", "--chip", chip, "no such name"]) == 2
    assert f"no metric of {chip} has 'no such name' in its name" in capsys.readouterr().err
