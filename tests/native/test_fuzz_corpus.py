"""Inputs that fuzzing found worth keeping (harness/fuzz_records.py), read again."""

import random
from pathlib import Path

import pytest
from fuzz_records import TARGETS
from fuzzing import FAILED, READ, REFUSED, Outcome, Target, attempt, fuzz, minimised

from roofprobe.errors import RecordError

CORPUS = Path(__file__).parents[1] / "data/fuzz"


@pytest.fixture
def target(request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # put back afterwards; a target sets its own
    return TARGETS[request.param](tmp_path)


def kept(name):
    return sorted(path for path in (CORPUS / name).rglob("*") if path.is_file())


@pytest.mark.parametrize("target", TARGETS, indirect=True)
def test_every_kept_input_is_read_or_refused_as_before(target):
    found = {path: attempt(target, path.read_bytes()) for path in kept(target.name)}
    assert len(found) >= 15
    wrong = {path: (o.kind, o.text) for path, o in found.items() if o.kind != path.parent.name}
    assert not wrong
    assert {READ, REFUSED} == {outcome.kind for outcome in found.values()}


@pytest.mark.parametrize("target", TARGETS, indirect=True)
def test_a_refusal_is_one_line(target):
    for path in kept(target.name):
        outcome = attempt(target, path.read_bytes())
        assert outcome.text.count("\n") == 0, path


@pytest.mark.parametrize("target", TARGETS, indirect=True)
def test_an_input_depends_on_its_number_only(target):
    first, again, other = (target.draw(random.Random(f"0:{number}")) for number in (5, 5, 6))
    assert first == again != other


def test_the_corpus_is_small():
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 200_000


# -- The fuzzer itself ----------------------------------------------------------------------


def picky(data):
    if b"!" in data:
        raise RecordError("no '!' is allowed, not even 1")
    if b"?" in data:
        raise KeyError(data)


TOY = Target("toy", lambda source: source.choice((b"ab", b"a!", b"a?")), picky)


def test_outcomes_are_told_apart():
    assert attempt(TOY, b"ab") == Outcome(READ)
    refused = attempt(TOY, b"a!")
    assert (refused.kind, refused.place) == (REFUSED, "no _ is allowed, not even 0")
    failed = attempt(TOY, b"a?")
    assert failed.kind == FAILED
    assert failed.place.endswith("in picky: KeyError")


def test_an_input_is_made_smaller_as_long_as_it_ends_alike():
    assert minimised(TOY, b"a" * 50 + b"!" + b"b" * 50) == b"!"
    assert minimised(TOY, b"a" * 50 + b"?" + b"b" * 50) == b"?"


def test_one_input_of_each_outcome_is_kept(tmp_path, capsys):
    counts = fuzz(TOY, 0.2, seed=0, folder=tmp_path)
    assert counts["inputs"] == counts[READ] + counts[REFUSED] + counts[FAILED] > 10
    assert [len(list((tmp_path / kind).iterdir())) for kind in (READ, REFUSED, FAILED)] == [1, 1, 2]
    assert "KeyError" in capsys.readouterr().out
    assert not (tmp_path / "running").exists()
