"""The committed results of real runs: they load, and they agree with independent measurements."""

from pathlib import Path

import pytest

from roofprobe.derive import figures
from roofprobe.record import Measurement

RESULTS = Path(__file__).parents[2] / "harness/results"
RUNS = sorted(RESULTS.rglob("run.json"))


def test_there_are_results():
    assert len(RUNS) >= 5


@pytest.mark.parametrize("path", RUNS, ids=[str(run.parent.relative_to(RESULTS)) for run in RUNS])
def test_a_result_is_whole(path):
    record = Measurement.load(path)
    assert record.complete
    assert record.coverage.trusted
    assert record.environment.command
    assert record.clocks.samples > 0
    assert figures(record).flop_total.value > 0
    assert (path.parent / "roofline.png").read_bytes().startswith(b"\x89PNG")


# FLOP on CUDA cores and on tensor cores, and DRAM bytes, a step at batch 256: measured on an H200
# by a separate C++ program on the range profiler, before this project had code.
@pytest.mark.parametrize(
    ("name", "sass", "tensor", "dram", "study", "all_flop"),
    [
        ("resnet18-b256", 3.94e10, 2.766e12, 7.97e10, 0.49, 35.2),
        ("resnet18-b256-no-tf32", 1.896e12, 0, 8.92e10, 21.3, 21.3),
        ("alexnet-b256", 9.24e10, 1.464e12, 1.69e10, 5.47, 92.2),
    ],
)
def test_counters_agree_with_another_program(name, sass, tensor, dram, study, all_flop):
    found = figures(Measurement.load(RESULTS / "h200" / name / "run.json"))
    assert found.flop["sass_fp32"].value == pytest.approx(sass, rel=0.01)
    assert found.flop["tensor_tf32"].value == pytest.approx(tensor, rel=0.01)
    assert found.byte["dram"].value == pytest.approx(dram, rel=0.03)
    assert found.study.intensity.value == pytest.approx(study, rel=0.03)
    assert found.intensity["dram"].value == pytest.approx(all_flop, rel=0.03)
