"""One further step under the analytic model, beside counters that an H200 recorded."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import roofprobe
from roofprobe import ceilings, imagenet, probe, report, train
from roofprobe.counters import Plan, RoundCounters
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.errors import UsageError
from roofprobe.metrics import ANALYTIC
from roofprobe.record import Measurement, Modelled
from roofprobe.witness import witness

DATA = Path(__file__).parents[1] / "data"
QUICK = {"device": "cpu", "warmup": 1, "timed": 2}
FP32 = "analytic__flop_fp32.sum"
READ, WRITE = "analytic__bytes_read.sum", "analytic__bytes_write.sum"


class Replayed:
    """Plays back the counters of recorded runs, one after the other, and notes its calls."""

    source = "cupti"
    chip = None

    def __init__(self, *names: str) -> None:
        self.called: list[str] = []
        self._records = [Measurement.load(DATA / f"{name}.json") for name in names]

    def prepare(self, metrics: Sequence[str]) -> Plan:
        return Plan(self._records[0].metrics, 1)

    def open(self) -> None:
        self.called.append("open")

    def begin_pass(self) -> None:
        pass

    def end_pass(self) -> bool:
        return True

    def collect(self) -> RoundCounters:
        (counted,) = self._records.pop(0).rounds
        return RoundCounters(counted.counters, {})

    def close(self) -> None:
        self.called.append("close")


def product() -> torch.Tensor:
    return torch.ones(2, 3) @ torch.ones(3, 4)  # 2 * 2*3*4 = 48 FLOP


def measured(step: Callable[[], object] = product, **options: object) -> Measurement:
    backend = Replayed("gemm4096-tf32")
    return roofprobe.measure_step(step, **{"backend": backend, "witness": True, **QUICK, **options})


def flop_of(step: Callable[[], object]) -> dict[str, float | None]:
    """FLOP by kind of operator, those without any left out."""
    found = measured(step).witness
    assert found is not None
    return {kind: flop for kind, flop in found.flop.items() if flop != 0}


# -- The step -----------------------------------------------------------------------------


def test_one_more_step_is_counted_by_the_model():
    record = measured()
    assert record.complete
    assert record.source == "cupti"
    assert record.value("sm__ops_path_tensor_src_tf32_dst_fp32.sum") == 2 * 4096**3
    found = record.witness
    assert found.source == "analytic"
    assert set(found.counters) == {row.name for row in ANALYTIC}
    assert found.counters[FP32] == 48
    # Two tensors of ones are written, both read, and their product written: 6, 12 and 8 numbers.
    assert found.counters[READ] == 4 * (6 + 12)
    assert found.counters[WRITE] == 4 * (6 + 12 + 8)
    assert (found.uncounted, found.reason, record.notes) == ({}, None, {})
    assert "witness" in record.overhead
    assert Measurement.from_json(record.to_json()) == record


def test_nobody_who_did_not_ask_pays():
    steps = []
    record = roofprobe.measure_step(lambda: steps.append(1), backend=Replayed("mul-fp32"), **QUICK)
    assert record.witness is None
    assert len(steps) == 1 + 2 + 1  # warm-up, timed, one pass


def test_it_comes_last_and_is_announced():
    told = []
    backend = Replayed("gemm4096-tf32")
    with roofprobe.measure(backend=backend, witness=True, progress=told.append, **QUICK) as open_:
        assert open_.steps_needed == 1 + 2 + 1 + 1
        while not open_.done:
            with open_.step():
                product()
                # Under the model no session is open.
                if told[-1].phase == "witness":
                    assert backend.called == ["open", "close"]
    (plan,) = [event for event in told if event.phase == "plan"]
    assert plan.message == (
        "5 steps: 1 warm-up, 2 timed, 1 with counters (24 metrics in 1 passes), 1 under the "
        "analytic model"
    )
    phases = [event.phase for event in told]
    assert phases == ["plan", "warmup", "timing", "timing", "pass", "witness", "done"] or (
        phases == ["warmup", "plan", "timing", "timing", "pass", "witness", "done"]
    )


def test_a_model_has_no_witness():
    steps = []
    record = roofprobe.measure_step(lambda: steps.append(product()), witness=True, **QUICK)
    assert record.source == "analytic"
    assert record.witness is None
    assert record.notes["witness"] == "the counts are the analytic model's already"
    assert len(steps) == 1 + 2 + 1


def test_a_step_for_a_profiler_outside_has_none(monkeypatch):
    monkeypatch.setenv("ROOFPROBE_COUNTED_BY", "ncu")
    with roofprobe.measure(backend="cupti", witness=True, **QUICK) as open_:
        assert open_.steps_needed == 1 + 2 + 1


def test_a_loop_that_ends_before_it_keeps_what_was_counted():
    with roofprobe.measure(backend=Replayed("mul-fp32"), witness=True, **QUICK) as open_:
        for _ in open_.steps(range(4)):
            product()
    record = open_.result
    assert not record.complete
    assert record.steps_missing == 1
    assert record.rounds
    assert record.witness is None
    assert record.notes["witness"] == "the run ended before its step under the analytic model"
    assert f"n/a: witness: {record.notes['witness']}" in report.text(record)


# -- What the model sees ------------------------------------------------------------------


def test_kinds_of_operators():
    images, attended = torch.rand(1, 2, 8, 8), torch.rand(1, 1, 16, 8)
    wide, point = torch.rand(3, 2, 3, 3), torch.rand(5, 3, 1, 1)

    def step():
        out = functional.conv2d(functional.conv2d(images, wide, padding=1), point)
        functional.scaled_dot_product_attention(attended, attended, attended)
        return out.mean((2, 3)) @ torch.ones(5, 7)

    assert flop_of(step) == {
        "convolution": 2 * 64 * 3 * 2 * 9,  # 3 x 3 for 3 of 2 channels, at 64 points
        "attention": 2 * 2 * 16 * 16 * 8,
        "other": 2 * 64 * 5 * 3 + 2 * 5 * 7,  # the convolution with one point is a product
    }


def test_gradients_of_convolutions_are_convolutions():
    layers = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.Conv2d(3, 5, 1))
    images = torch.rand(1, 2, 8, 8)
    wide, point = 2 * 64 * 3 * 2 * 9, 2 * 64 * 5 * 3
    # Autograd runs them on a thread of its own. The images need no gradient.
    assert flop_of(lambda: layers(images).sum().backward()) == {
        "convolution": 2 * wide,
        "other": 3 * point,
    }


def test_inference_mode_and_compiled_functions_are_seen():
    images, weight = torch.rand(1, 2, 8, 8), torch.rand(3, 2, 3, 3)

    @torch.inference_mode()
    def inferred():
        return functional.conv2d(images, weight, padding=1)

    compiled = torch.compile(lambda: functional.conv2d(images, weight), fullgraph=True)
    assert flop_of(inferred) == {"convolution": 2 * 64 * 3 * 2 * 9}
    assert flop_of(lambda: compiled()) == {"convolution": 2 * 36 * 3 * 2 * 9}
    # The stance is the user's again.
    assert torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)(torch.ones(1)) == 2


def test_wrapped_tensors_count_once():
    from torch.testing._internal.two_tensor import TwoTensor

    wrapped = TwoTensor(torch.ones(2, 3), torch.ones(2, 3))
    other = TwoTensor(torch.ones(3, 4), torch.ones(3, 4))
    assert flop_of(lambda: wrapped @ other) == {"other": 2 * 48}


def test_control_flow_of_higher_order_runs():
    def step():
        return torch.cond(
            torch.tensor(True), lambda x: x @ x, lambda x: x.clone(), (torch.ones(4, 4),)
        )

    record = measured(step)
    assert record.complete
    assert record.witness.uncounted
    assert "cond" in record.witness.reason


def test_a_step_past_pytorch_has_no_figures_and_says_why():
    found = measured(lambda: None)
    assert found.witness.counters == dict.fromkeys(found.witness.counters)
    flop, _ = witness(found).sentences
    assert flop.startswith("No witness for FLOP: no PyTorch operator ran in the step's own thread")


def test_an_operator_without_formula_is_named():
    matrix = torch.eye(16)
    found = measured(lambda: torch.linalg.cholesky(matrix @ matrix))
    assert found.witness.counters[FP32] is None
    assert found.witness.counters["analytic__flop_fp64.sum"] == 0
    assert found.witness.uncounted == {"aten.linalg_cholesky_ex.default": 1}
    flop, byte = witness(found).sentences
    assert flop.startswith("No witness for FLOP: operators without a FLOP formula")
    assert "aten.linalg_cholesky_ex.default (1)" in flop
    assert "times the model's" in byte


# -- Failures -----------------------------------------------------------------------------


def test_the_steps_own_exception_is_the_users_and_costs_nothing_counted():
    steps = []
    error = RuntimeError("mine")

    def step():
        steps.append(product())
        if len(steps) == 5:
            raise error

    with (
        pytest.raises(RuntimeError) as raised,
        roofprobe.measure(backend=Replayed("gemm4096-tf32"), witness=True, **QUICK) as open_,
    ):
        while not open_.done:
            with open_.step():
                step()
    assert raised.value is error
    record = open_.result
    assert record.value("sm__ops_path_tensor_src_tf32_dst_fp32.sum") == 2 * 4096**3
    assert record.witness is None
    assert record.notes["witness"] == "the step under the analytic model did not come to its end"
    assert probe.torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize("where", ["open", "begin_regions", "end_pass", "collect_regions"])
def test_a_failure_of_the_model_costs_nothing_measured(monkeypatch, where):
    def fail(*_: object) -> None:
        raise RuntimeError("a torch that is not known yet")

    if where == "end_pass":
        monkeypatch.setattr(AnalyticBackend, "close", fail)
    else:
        monkeypatch.setattr(AnalyticBackend, where, fail)
    steps = []
    record = measured(lambda: steps.append(product()))
    assert record.complete
    assert record.rounds
    assert len(steps) == 5
    assert record.witness is None
    assert record.notes["witness"] == (
        "the analytic model failed on the step: RuntimeError('a torch that is not known yet')"
    )
    assert probe.torch.utils._python_dispatch._get_current_dispatch_mode() is None


# -- Where it is reached from -------------------------------------------------------------


def hidden(name: str, monkeypatch: pytest.MonkeyPatch) -> Replayed:
    """As in a CUDA graph the first time, where CUPTI counts no SASS, and eager the second."""
    backend = Replayed(name, name)
    collect = Replayed.collect

    def graph_first(self: Replayed) -> RoundCounters:
        first = len(self._records) == 2
        values = collect(self).values
        return RoundCounters(
            {n: 0.0 if first and "__sass_" in n else value for n, value in values.items()}, {}
        )

    monkeypatch.setattr(Replayed, "collect", graph_first)
    monkeypatch.setattr(Replayed, "prepare", lambda self, _: Plan(self._records[0].metrics, 1))
    return backend


def test_a_graph_has_the_witness_of_its_eager_run(monkeypatch):
    backend = hidden("resnet18-b256-tf32", monkeypatch)
    record = measured(lambda: None, backend=backend, eager=product)
    assert record.eager is not None
    assert record.witness.counters[FP32] == 48


class TinyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images.mean((2, 3)))


@pytest.fixture
def tiny(monkeypatch):
    """A training of one layer, without the roofs and the plot."""
    monkeypatch.setattr(imagenet, "build_model", lambda arch, pretrained: TinyModel())
    monkeypatch.setattr(ceilings, "measure_cpu_roofs", lambda: ())
    monkeypatch.setattr(report, "save_plot", lambda record, path: path)


@pytest.mark.usefixtures("tiny")
def test_train_has_the_option(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(probe, "_backends", lambda *_: [Replayed("gemm4096-tf32")])
    command = ["--dummy", "-b", "2", "-j", "0", "--witness", "--out", str(tmp_path)]
    assert train.main(command) == 0
    record = Measurement.load(tmp_path / "run.json")
    # Forward and the gradient of the weights, of 2 images: 2 * 2*3*1000 each.
    assert record.witness.counters[FP32] == 24000
    printed = capsys.readouterr().out
    assert "1 under the analytic model" in printed
    assert "=> the analytic model, beside the counters: 1 step\n" in printed
    assert "witness: the hardware beside the analytic model" in printed


@pytest.mark.usefixtures("tiny")
def test_train_on_a_cpu_ignores_it(tmp_path):
    command = ["--dummy", "-b", "2", "-j", "0", "--witness", "--out", str(tmp_path)]
    assert train.main(command) == 0
    record = Measurement.load(tmp_path / "run.json")
    assert (record.source, record.witness) == ("analytic", None)


def test_a_record_without_one_is_told_how_to_get_it():
    record = Measurement.load(DATA / "gemm4096-tf32.json")
    with pytest.raises(UsageError, match=r"has no witness: measure it with witness=True"):
        witness(record)
    assert isinstance(measured().witness, Modelled)
