"""The import's benchmark: what it says, writes and ends with."""

import json
import sys

import import_benchmark as benchmark
import pytest


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the benchmark on a small log: exit status, output and complaints."""

    def start(*arguments):
        monkeypatch.setattr(sys, "argv", ["x", "--rows", "200", *map(str, arguments)])
        return benchmark.main(), *capsys.readouterr()

    return start


def test_a_result_within_the_targets(run, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "MOST_SECONDS", 1e4)  # how fast this machine is, is no test
    monkeypatch.setattr(benchmark, "MOST_BYTE", 1e12)
    status, out, err = run(tmp_path / "r.json")
    assert (status, err) == (0, "")
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["rows"], found["launches"]) == (200, 20)
    assert f"{found['seconds']:.2f} s" in out
    assert f"{found['cores']} cores" in out and found["cpu"] in out
    assert 1e6 < found["peak_byte"] < 1e10


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [("MOST_SECONDS", 0.0, "0 s is the target"), ("MOST_BYTE", 1e6, "1 MB is the target")],
)
def test_a_target_that_is_missed(run, monkeypatch, limit, value, said):
    monkeypatch.setattr(benchmark, limit, value)
    status, _, err = run()
    assert status == 1
    assert said in err
