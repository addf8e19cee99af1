"""Counter-data images recorded on an H200, evaluated here."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofprobe import _native
from roofprobe.cli import main
from roofprobe.counters import cupti
from roofprobe.counters.recorded import CounterFile
from roofprobe.derive import figures
from roofprobe.errors import RecordError
from roofprobe.record import Measurement

DATA = Path(__file__).parents[1] / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.counters"))
GEMM_FLOP = 2 * 4096**3
GIB2 = 2 * 2**30


def recorded(name):
    return CounterFile.load(DATA / f"{name}.counters")


def counters(name):
    return recorded(name).evaluate()[0].values


def test_there_are_recordings():
    assert len(NAMES) == 13


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_gpu_machine_to_the_last_digit(name):
    record = Measurement.load(DATA / f"{name}.json")
    kept = {k: v for k, v in record.rounds[0].counters.items() if v is not None}
    assert len(kept) >= 13
    found = counters(name)
    assert {k: found[k] for k in kept} == kept


@pytest.mark.parametrize(
    ("name", "source"),
    [("tf32", "tf32_dst_fp32"), ("bf16", "bf16_dst_fp32"), ("fp16", "fp16"), ("fp64", "fp64")],
)
def test_tensor_ops_of_a_gemm_are_2mnk(name, source):
    found = counters(f"gemm4096-{name}")
    prefix = "sm__ops_path_tensor_src_"
    assert found[f"{prefix}{source}.sum"] == pytest.approx(GEMM_FLOP, rel=1e-3)
    others = [v for k, v in found.items() if k.startswith(prefix) and source not in k]
    assert others == [0.0] * 5


def test_an_fp32_gemm_is_2mnk_in_fused_multiply_adds():
    found = counters("gemm4096-fp32")
    ffma = found["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"]
    assert 2 * ffma == pytest.approx(GEMM_FLOP, rel=5e-3)


def test_a_copy_moves_its_bytes():
    found = counters("copy-2gib")
    assert found["dram__bytes_read.sum"] == pytest.approx(GIB2, rel=0.01)
    assert found["dram__bytes_write.sum"] == pytest.approx(GIB2, rel=0.01)


DMUL = "smsp__sass_thread_inst_executed_op_dmul_pred_on.sum"
ELEMENTS = 2**24  # of the elementwise products


def test_fp64_is_0_where_its_pipe_did_nothing_although_it_was_not_instrumented():
    found = counters("mul-fp32")
    assert found["smsp__inst_executed_pipe_fp64.sum"] == 0
    assert found["smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"] == ELEMENTS
    assert found[DMUL] == 0
    derived = figures(Measurement.load(DATA / "mul-fp32.json"))
    assert derived.flop["sass_fp64"].value == 0
    assert derived.flop_total.value == ELEMENTS
    # What makes it 0 is the gate: by itself it has no value.
    image = recorded("mul-fp32").images[0]
    alone = cupti.evaluate_image(image, [DMUL])
    assert alone.values[DMUL] is None
    assert DMUL in alone.reasons


def test_fp64_is_counted_where_its_pipe_did_something():
    found = counters("mul-fp64")
    assert found["smsp__inst_executed_pipe_fp64.sum"] == ELEMENTS / 32  # lanes of a warp
    assert found[DMUL] == ELEMENTS
    record = Measurement.load(DATA / "mul-fp64.json")
    assert record.rounds[0].passes == 14  # 7 without fp64, and 7 with it
    derived = figures(record)
    assert derived.flop["sass_fp64"].value == ELEMENTS
    assert derived.flop_total.value == ELEMENTS


# Per step, from FACTS measured with a separate program on the same kind of machine:
# SASS FLOP, tensor FLOP, DRAM bytes.
@pytest.mark.parametrize(
    ("name", "sass", "tensor", "dram"),
    [
        ("resnet18-b256-tf32", 3.94e10, 2.766e12, 7.97e10),
        ("resnet18-b256-fp32", 1.896e12, 0, 8.92e10),
        ("alexnet-b256-tf32", 9.24e10, 1.464e12, 1.69e10),
    ],
)
def test_models_read_what_was_measured_independently(name, sass, tensor, dram):
    found = figures(Measurement.load(DATA / f"{name}.json"))
    assert found.flop["sass_fp32"].value == pytest.approx(sass, rel=0.01)
    assert found.flop["tensor_tf32"].value == pytest.approx(tensor, rel=0.01)
    assert found.byte["dram"].value == pytest.approx(dram, rel=0.03)


def test_tf32_does_not_change_alexnets_work_by_much():
    on, off = (
        figures(Measurement.load(DATA / f"alexnet-b256-{kind}.json")) for kind in ("tf32", "fp32")
    )
    # Winograd and FFT algorithms save arithmetic where the tensor cores multiply it out.
    assert on.flop_total.value > off.flop_total.value
    # Three times the forward's 0.714 GMAC an image, less the first layer's input gradient
    # (0.0703 GMAC): 2 * (3 * 0.714 - 0.0703) * 256 GFLOP.
    algorithmic = 2 * (3 * 0.714e9 - 0.0703e9) * 256
    assert on.flop_total.value == pytest.approx(algorithmic, rel=0.5)


@pytest.mark.parametrize("size", [0, 1, 7, 39, 40, 41, 1000, -1])
def test_a_truncated_image_is_an_error(size):
    sealed = recorded("copy-2gib").images[0]
    with pytest.raises(RecordError, match="image"):
        cupti.evaluate_image(sealed[:size], ["lts__t_bytes.sum"])


def test_a_corrupted_image_is_an_error_wherever_the_bit_is():
    sealed = recorded("copy-2gib").images[0]
    chosen = random.Random(0)
    places = [*range(40), *(chosen.randrange(len(sealed)) for _ in range(200))]
    for place in places:
        damaged = bytearray(sealed)
        damaged[place] ^= 1 << chosen.randrange(8)
        with pytest.raises(RecordError):
            cupti.evaluate_image(bytes(damaged), ["lts__t_bytes.sum"])


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200), head=st.booleans())
def test_any_bytes_are_refused(data, head):
    sealed = (b"RPCDIMG1" if head else b"") + data
    with pytest.raises(RecordError):
        cupti.evaluate_image(sealed, ["lts__t_bytes.sum"])


def test_an_image_of_another_chip_is_refused():
    image = _native.CounterDataImage.unseal(recorded("copy-2gib").images[0])
    assert image.chip == "GH100"
    with pytest.raises(_native.ImageError, match="GH100 given to an evaluator of GA100"):
        cupti.evaluator("GA100").range_names(image)


def test_ranges_have_names_and_bounds():
    host = cupti.evaluator("GH100")
    image = _native.CounterDataImage.unseal(recorded("copy-2gib").images[0])
    assert host.range_names(image) == ["discard", "step"]
    with pytest.raises(IndexError, match="range 2 of an image with 2"):
        host.evaluate(image, 2, ["lts__t_bytes.sum"])


def test_the_throw_away_range_is_not_the_step():
    host = cupti.evaluator("GH100")
    image = _native.CounterDataImage.unseal(recorded("copy-2gib").images[0])
    [(name, value)] = host.evaluate(image, 0, ["dram__bytes_read.sum"])
    assert name == "dram__bytes_read.sum"
    assert value < 1e6


def test_sealing_is_reversible():
    sealed = recorded("copy-2gib").images[0]
    assert _native.CounterDataImage.unseal(sealed).seal() == sealed


def test_a_metric_that_was_not_scheduled_has_no_value():
    sealed = recorded("copy-2gib").images[0]
    found = cupti.evaluate_image(sealed, ["sm__ops_path_tensor_src_int1.sum", "lts__t_bytes.sum"])
    assert found.values["sm__ops_path_tensor_src_int1.sum"] is None
    assert found.reasons["sm__ops_path_tensor_src_int1.sum"]
    assert found.values["lts__t_bytes.sum"] > GIB2


def test_a_file_survives_a_round_trip(tmp_path):
    one = recorded("copy-2gib")
    two = CounterFile(one.chip, one.metrics, one.passes, one.images * 2)
    assert CounterFile.load(two.save(tmp_path / "x.counters")) == two


def test_a_damaged_file_is_one_sentence(tmp_path, capsys):
    whole = (DATA / "copy-2gib.counters").read_bytes()
    path = tmp_path / "x.counters"
    chosen = random.Random(1)
    cuts = [whole[:size] for size in (0, 1, 100, 1500, len(whole) // 2, len(whole) - 1)]
    flips = []
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[chosen.randrange(len(whole))] ^= 1 << chosen.randrange(8)
        flips.append(bytes(damaged))
    for data in [*cuts, *flips, whole + b"x", b"\0" * 5000]:
        path.write_bytes(data)
        code = main(["evaluate", str(path)])
        error = capsys.readouterr().err
        if code == 0:
            # The damage hit a metric's name: it must then have no value, and nothing else moves.
            assert not error
        else:
            assert code == 1
            assert error.startswith("roofprobe: error: ")
            assert error.count("\n") == 1


def test_evaluate_prints_the_counters(capsys):
    assert main(["evaluate", str(DATA / "gemm4096-bf16.counters")]) == 0
    assert "sm__ops_path_tensor_src_bf16_dst_fp32.sum" in capsys.readouterr().out
    assert main(["evaluate", "--json", str(DATA / "gemm4096-bf16.counters")]) == 0
    assert '"sm__ops_path_tensor_src_bf16_dst_fp32.sum": 137438953472.0' in capsys.readouterr().out
