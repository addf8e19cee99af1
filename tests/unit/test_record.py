import contextlib
import dataclasses
import functools
import json
import re
from pathlib import Path

import jsonschema
import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roofprobe import record, report
from roofprobe.errors import RecordError
from roofprobe.record import (
    Clocks,
    Coverage,
    Environment,
    Kernel,
    KernelTimes,
    KernelUse,
    MeasuredRoof,
    Measurement,
    Modelled,
    Regions,
    Round,
    Segment,
    Timing,
    storable,
    write_whole,
)

ROOT = Path(__file__).parents[2]


MODELLED = Modelled({"c.sum": 5.0, "d.sum": None}, {"other": None}, {"mine::op": 3}, "no")


def sample(**changes) -> Measurement:
    """A record with every part in it."""
    whole = Measurement(
        name="x",
        source="cupti",
        created="2026-11-30T00:00:00Z",
        environment=Environment("NVIDIA H200", "cuda", chip="GH100", command=("python", "x.py")),
        workload={"batch": 256, "arch": "resnet18", "amp": None},
        metrics=("a.sum", "b.sum"),
        rounds=(
            Round({"a.sum": 1.0, "b.sum": None}, 2, 0, (0.1, 0.2)),
            Round({"a.sum": 3.0, "b.sum": None}, 2, 0, (0.1, 0.2)),
        ),
        complete=True,
        steps_missing=0,
        unavailable={"b.sum": "does not exist"},
        timing=Timing((0.2, 0.1, 0.4), "cuda_events"),
        kernels=KernelTimes(2, 10, 0, 0.1, 0.09, 0.11, 64, 0),
        coverage=Coverage(99, 100, 1, 1.0, True),
        clocks=Clocks((1e9, 1.5e9, 2e9), None, 7),
        roofs=(MeasuredRoof("GEMM", "flop", 1e11, 0.1, "torch.mm", "analytic_fp32", None),),
        overhead={"open": 0.1},
        notes={"kernels": "none"},
        warnings=("careful",),
    )
    return dataclasses.replace(whole, **changes)


@pytest.mark.parametrize("witness", [None, MODELLED])
def test_round_trip_is_exact(witness):
    text = sample(witness=witness).to_json()
    assert Measurement.from_json(text) == sample(witness=witness)
    assert Measurement.from_json(text).to_json() == text


def test_optional_parts_may_be_missing():
    bare = sample(timing=None, kernels=None, coverage=None, clocks=None, rounds=())
    assert Measurement.from_json(bare.to_json()) == bare


def test_mean_and_spread_over_rounds():
    assert sample().value("a.sum") == 2.0  # (1 + 3) / 2
    assert sample().spread("a.sum") == 1.0  # (3 - 1) / 2
    assert sample().value("b.sum") is None
    assert sample().spread("b.sum") is None
    assert sample().value("never asked for") is None


def test_timing_median_and_spread():
    assert sample().timing.median == 0.2
    assert sample().timing.spread == pytest.approx((0.4 - 0.1) / 0.2)


def test_published_schema_is_the_real_one():
    published = json.loads((ROOT / "docs/run.schema.json").read_text())
    assert published == json.loads(json.dumps(record.schema()))
    jsonschema.Draft202012Validator.check_schema(published)
    jsonschema.validate(json.loads(sample(witness=MODELLED).to_json()), published)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body.pop("rounds"), "rounds"),
        (lambda body: body.update(complete="yes"), "complete"),
        (lambda body: body["timing"].update(step=["fast"]), "timing/step/0"),
        (lambda body: body.update(surprise=1), "surprise"),
        (lambda body: body.update(version=99), "version 99"),
        (lambda body: body.update(schema="other"), "not a run record"),
    ],
)
def test_broken_records_are_refused_with_the_place(change, message):
    body = json.loads(sample().to_json())
    change(body)
    with pytest.raises(RecordError, match=re.escape(message)):
        Measurement.from_json(json.dumps(body))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kernels/sum", -1.0),
        ("kernels/launches", -5.0),
        ("timing/step/0", 1e300),
        ("coverage/fraction", -2.0),
        ("clocks/sm/1", -1.0),
        ("clocks/samples", -3),
        ("rounds/0/passes", -1),
        ("rounds/0/ranges_dropped", -1),
        ("steps_missing", -4),
        ("roofs/0/value", 0.0),
        ("roofs/0/value", -1.0),
        ("roofs/0/value", 1e300),
        ("roofs/0/spread", -0.1),
        ("witness/counters/c.sum", -1.0),
        ("witness/uncounted/mine::op", -1),
        ("regions/by", "foo"),
        ("regions/by", "step"),
        ("regions/between", -1.0),
        ("regions/segments/0/time", -1.0),
        ("regions/kernels/0/uses/0/time", -1.0),
    ],
)
def test_what_nothing_can_have_measured_is_refused_with_the_place(path, value):
    segment = Segment("", None, None, 1, ({"a.sum": 1.0}, {"a.sum": 1.0}), 0.1, 1)
    kernel = Kernel("gemm", (KernelUse(0, 1, 0.1),))
    parts = Regions("phase", (segment,), 1, "cupti_activity", (kernel,), between=0.1)
    whole = sample(regions=parts, witness=MODELLED)
    assert Measurement.from_json(whole.to_json()) == whole
    body = json.loads(whole.to_json())
    *places, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
    held = functools.reduce(lambda at, key: at[key], places, body)
    held[last] = value
    with pytest.raises(RecordError, match=f"broken run record: at {path}: "):
        Measurement.from_json(json.dumps(body))


def test_what_may_be_below_zero_is_read():
    # measuring took less than the plain steps; the user's facts are the user's
    odd = sample(overhead={"passes": -0.5}, workload={"lr": -1, "offset": -1e300})
    assert Measurement.from_json(odd.to_json()) == odd


@pytest.mark.parametrize(
    ("fact", "kept"),
    [
        (3, 3),
        (0.5, 0.5),
        (True, True),
        (None, None),
        ("text", "text"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ((3, 2), "(3, 2)"),
        (torch.float32, "torch.float32"),
        (torch.tensor(3), "tensor(3)"),
        (numpy.float32(3), "3.0"),
        (10**400, str(10**400)),
    ],
)
def test_facts_that_a_record_cannot_hold_become_text(fact, kept):
    facts = storable({3: fact})
    assert facts == {"3": kept}
    record = sample(workload=facts)
    assert Measurement.from_json(record.to_json()) == record


def test_half_a_surrogate_pair_is_spelled_out():
    odd = sample(name="a\ud800", workload={"\udce9": "caf\udce9"}, notes={"x": "ok: \u00e9"})
    read = Measurement.from_json(odd.to_json())
    assert read.name == r"a\ud800"
    assert read.workload == {r"\udce9": r"caf\udce9"}
    assert read.notes == {"x": "ok: \u00e9"}


def test_integers_that_another_program_wrote_as_8_0_are_integers():
    path = Path(__file__).parents[1] / "data/three-layers.json"
    whole = Measurement.load(path)
    body = json.loads(path.read_text())
    body["rounds"][0]["passes"] = float(body["rounds"][0]["passes"])
    body["environment"]["sm_count"] = float(body["environment"]["sm_count"])
    for kernel in body["regions"]["kernels"]:
        for use in kernel["uses"]:
            use["segment"] = float(use["segment"])
    read = Measurement.from_json(json.dumps(body))
    assert read.to_json() == whole.to_json()
    assert "By layer" in report.text(read)


def test_every_committed_run_file_is_read():
    files = [*ROOT.glob("harness/results/**/run*.json"), *ROOT.glob("tests/data/**/run*.json")]
    assert len(files) > 10
    for path in files:
        Measurement.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"x"', "[" * 100_000])
def test_other_text_is_refused(text):
    with pytest.raises(RecordError):
        Measurement.from_json(text)


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(0, 3000), byte=st.integers(0, 255))
def test_a_damaged_record_loads_or_is_refused(cut, byte):
    data = bytearray(sample().to_json().encode())
    data[cut % len(data)] = byte
    with contextlib.suppress(RecordError):
        Measurement.from_json(data.decode("utf-8", "replace"))


def test_nan_never_gets_into_a_file():
    bad = sample(rounds=(Round({"a.sum": float("nan")}, 1, 0),))
    with pytest.raises(ValueError, match="JSON compliant"):
        bad.to_json()


def test_load_names_the_file(tmp_path):
    path = tmp_path / "run.json"
    with pytest.raises(RecordError, match=str(path)):
        Measurement.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match=str(path)):
        Measurement.load(path)
    assert Measurement.load(sample().save(tmp_path / "deep/er/run.json")) == sample()


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RecordError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="could not write"):
        write_whole(tmp_path / "file" / "run.json", b"")
