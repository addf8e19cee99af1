"""Logs of ncu that fuzzing found worth keeping (harness/fuzz_import.py), read again.

One for each refusal, as small as it could be made, and those that the importer once failed on.
"""

from pathlib import Path

import fuzz_import
import pytest
from fuzzing import FAILED, READ, REFUSED, attempt

CORPUS = Path(__file__).parents[1] / "data/fuzz/import"
KEPT = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.fixture
def outcome(tmp_path):
    importer = fuzz_import.target([], tmp_path)
    return lambda path: attempt(importer, path.read_bytes())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: str(path.relative_to(CORPUS)))
def test_every_kept_log_is_read_or_refused_in_one_line(outcome, path):
    found = outcome(path)
    assert found.kind != FAILED, found.text
    assert "\n" not in found.text


def test_the_kept_logs_reach_many_refusals(outcome):
    found = [outcome(path) for path in KEPT]
    assert {each.kind for each in found} == {READ, REFUSED}
    assert len({each.place for each in found}) >= 20


def test_the_kept_logs_are_small():
    assert 20 <= len(KEPT) <= 40
    assert sum(path.stat().st_size for path in KEPT) < 200_000
