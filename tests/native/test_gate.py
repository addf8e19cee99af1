"""A backend whose first passes leave fp64 out, played through with images of a real GPU."""

from pathlib import Path
from typing import ClassVar

import pytest

import roofprobe
from roofprobe import _native, metrics
from roofprobe.counters import cupti
from roofprobe.counters.recorded import CounterFile
from roofprobe.errors import RecordError

DATA = Path(__file__).parents[1] / "data"
FULL = metrics.with_coverage(metrics.metric_set("full", "GH100"))
GATE = metrics.gate_of("GH100")
HIDDEN = metrics.behind(GATE, "GH100")
DMUL = "smsp__sass_thread_inst_executed_op_dmul_pred_on.sum"


class Session:
    """Stands for CUPTI's session; what it decodes was recorded."""

    opened: ClassVar[list["Session"]] = []
    images: ClassVar[list[str]] = []  # name of the recording that each session decodes

    def __init__(self, device, chip, names, config, max_ranges):
        self.names, self.closed, self.passes = names, False, 0
        Session.opened.append(self)

    def reset(self):
        self.passes = 0

    def start(self):
        assert not self.closed

    def push(self, name):
        pass

    def pop(self):
        pass

    def stop(self):
        self.passes += 1
        return type("Status", (), {"all_passes_submitted": self.passes == 7})()

    def decode(self):
        return 0

    def counter_data(self):
        recorded = CounterFile.load(DATA / f"{Session.images[len(Session.opened) - 1]}.counters")
        return _native.CounterDataImage.unseal(recorded.images[0])

    def close(self):
        self.closed = True


@pytest.fixture
def backend(monkeypatch):
    def scheduled(device, names):
        host = cupti.evaluator("GH100")
        return cupti._Scheduled(host, *cupti.schedule(host, names))

    monkeypatch.setattr(Session, "opened", [])
    monkeypatch.setattr(_native, "RangeSession", Session)
    monkeypatch.setattr(cupti, "chip_of", lambda device: "GH100")
    monkeypatch.setattr(cupti, "require_counters", lambda device: None)
    monkeypatch.setattr(cupti, "require_primary_context", lambda device: None)
    monkeypatch.setattr(cupti, "_scheduled", scheduled)
    return cupti.CuptiBackend(0, lambda: None)


def one_round(backend) -> tuple[int, dict[str, float | None]]:
    passes, submitted = 0, False
    while not submitted:
        backend.begin_pass()
        submitted = backend.end_pass()
        passes += 1
    return passes, backend.collect().values


def test_a_step_without_fp64_takes_the_passes_of_the_plan(backend, monkeypatch):
    monkeypatch.setattr(Session, "images", ["mul-fp32"])
    plan = backend.prepare(FULL)
    assert (plan.passes, plan.retry) == (7, 7)
    assert set(plan.metrics) == {*FULL, GATE.name}
    backend.open()
    passes, values = one_round(backend)
    assert passes == 7
    assert [values[name] for name in HIDDEN] == [0, 0, 0]
    assert one_round(backend)[0] == 7  # in the same session
    backend.close()
    (session,) = Session.opened
    assert not set(HIDDEN) & set(session.names)
    assert GATE.name in session.names


def test_a_step_with_fp64_starts_over_once_with_everything(backend, monkeypatch):
    monkeypatch.setattr(Session, "images", ["mul-fp64", "mul-fp64"])
    backend.prepare(FULL)
    backend.open()
    passes, values = one_round(backend)
    assert passes == 14
    assert values[DMUL] == 2**24
    assert one_round(backend)[0] == 7
    first, second = Session.opened
    assert first.closed
    assert not set(HIDDEN) & set(first.names)
    assert set(second.names) == {*FULL, GATE.name}
    # Known once, it is not tried again: neither by part nor in another plan.
    backend.close()
    assert backend.prepare(FULL).retry == 0


def test_a_loop_that_ends_in_the_second_set_keeps_what_the_first_one_counted(backend, monkeypatch):
    monkeypatch.setattr(Session, "images", ["mul-fp64", "mul-fp64"])
    with roofprobe.measure(backend=backend, device="cpu", warmup=1, timed=2) as probe:
        for _ in probe.steps(range(1 + 2 + 7 + 1)):
            pass
    record = probe.result
    assert not record.complete
    assert record.steps_missing == 6  # of 7 and 7
    (counted,) = record.rounds
    assert counted.passes == 7
    assert counted.counters[GATE.name] == 2**24 / 32
    assert counted.counters["l1tex__t_bytes.sum"] == 3 * 8 * 2**24  # two read, one written
    assert [counted.counters[name] for name in HIDDEN] == [None] * 3
    assert "the loop ended while" in record.unavailable[DMUL]
    assert "0 of 1 rounds" in " ".join(record.warnings)


def test_counts_by_part_leave_nothing_out(backend, monkeypatch):
    monkeypatch.setattr(Session, "images", ["mul-fp32"])
    backend.prepare(FULL)
    backend.open_regions(3)
    assert set(Session.opened[0].names) == {*FULL, GATE.name}
    backend.begin_regions(0)
    assert not backend.end_pass()
    for _ in range(5):
        backend.begin_regions(0)
        assert not backend.end_pass()
    backend.begin_regions(0)
    assert backend.end_pass()
    with pytest.raises(RecordError, match="no region"):
        backend.collect_regions()  # of a recording of whole steps


def test_a_session_that_ends_half_way_leaves_nothing_to_the_next(backend, monkeypatch):
    monkeypatch.setattr(Session, "images", ["mul-fp32", "mul-fp32"])
    backend.prepare(FULL)
    backend.open()
    for _ in range(7):
        backend.begin_pass()
        backend.end_pass()
    backend.close()  # before collect()
    backend.open()
    assert one_round(backend)[0] == 7


@pytest.mark.parametrize("asked", [["lts__t_bytes.sum"], [DMUL], [*HIDDEN[:2]]])
def test_what_the_gate_cannot_spare_is_asked_for_as_it_is(backend, asked):
    plan = backend.prepare(asked)
    assert plan.metrics == tuple(asked)
    assert plan.retry == 0


@pytest.mark.parametrize("chip", [chip for family in metrics.FAMILIES for chip in family.chips])
def test_a_gate_costs_no_pass(chip):
    host = cupti.evaluator(chip)
    names = metrics.with_coverage(metrics.metric_set("full", chip))
    plain = host.schedule(names).passes
    gated, spared = cupti._around_gate(names, chip)
    assert (spared is None) == (chip != "GH100")  # held against counters on that one alone
    assert host.schedule(list(gated)).passes == plain
    if spared is not None:
        assert host.schedule(list(spared)).passes == plain
