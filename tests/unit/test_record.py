import contextlib
import dataclasses
import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofprobe import record
from roofprobe.errors import RecordError
from roofprobe.record import (
    Clocks,
    Coverage,
    Environment,
    KernelTimes,
    MeasuredRoof,
    Measurement,
    Round,
    Timing,
    write_whole,
)

ROOT = Path(__file__).parents[2]


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


def test_round_trip_is_exact():
    text = sample().to_json()
    assert Measurement.from_json(text) == sample()
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
    jsonschema.validate(json.loads(sample().to_json()), published)


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
