"""The clock is a fake: real rates are nobody's to expect."""

from itertools import cycle

import pytest
import torch

from roofprobe import ceilings
from roofprobe.ceilings import measure_cpu_roofs


def set_clock(monkeypatch, *steps: float) -> None:
    """Makes each look at the clock come ``steps`` seconds after the one before, in turn."""
    now, turns = 0.0, cycle(steps)

    def clock() -> float:
        nonlocal now
        now += next(turns)
        return now

    monkeypatch.setattr(ceilings, "perf_counter", clock)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(ceilings, "_GEMM_SIZES", (4, 8))
    monkeypatch.setattr(ceilings, "_COPY_BYTES", 2**21)


def test_rates(monkeypatch):
    set_clock(monkeypatch, 1.0)
    # 160 s: 40 s for either GEMM size. A call takes 1 s, so a repeat is 40/5 = 8 calls and, by
    # this clock, takes 1 s: 1/8 s a call. The larger size wins with 2*8**3 / (1/8) = 8192 FLOP/s.
    # The copy has 80 s: a repeat is 16 calls of 2*2**21 byte in 1 s.
    gemm, copy = measure_cpu_roofs(seconds=160)
    assert (gemm.kind, gemm.path, gemm.level) == ("flop", "analytic_fp32", None)
    assert gemm.value == 8192
    assert gemm.method.startswith("torch.mm of 8 x 8 matrices")
    assert (copy.kind, copy.path, copy.level) == ("byte", None, "dram")
    assert copy.value == 2**26
    assert "two buffers of 2 MiB" in copy.method
    assert {gemm.source, copy.source} == {"measured"}
    assert gemm.spread == copy.spread == 0


def test_no_larger_matrices_than_fit_the_time(monkeypatch):
    set_clock(monkeypatch, 1.0)
    # 8 s: 2 s for a size, and the next size would take 8 times the 1 s that this one took
    gemm, _ = measure_cpu_roofs(seconds=8)
    assert gemm.method.startswith("torch.mm of 4 x 4 matrices")
    assert gemm.value == 2 * 4**3  # one call a repeat, 1 s each


def test_the_better_size_wins(monkeypatch):
    monkeypatch.setattr(ceilings, "_time", lambda call, seconds: (next(durations), 0.0))
    # 128 FLOP in 1 s, then 1024 FLOP in 16 s; the third is the copy's
    durations = iter((1.0, 16.0, 1.0))
    gemm, _ = measure_cpu_roofs(seconds=100)
    assert gemm.value == 128


def test_spread(monkeypatch):
    # Two looks for the trial call, then two for each of five repeats: 1, 1, 2, 1, 1 s.
    set_clock(monkeypatch, 0, 1, 0, 1, 0, 1, 0, 2, 0, 1, 0, 1)
    duration, spread = ceilings._time(lambda: None, 0.0)
    assert (duration, spread) == (1, 1)  # (2 - 1) / 1


def test_works_on_numbers_and_leaves_the_users_alone(monkeypatch):
    operands = []

    def keep(call, seconds):
        operands.extend(call.args)
        return 1.0, 0.0

    monkeypatch.setattr(ceilings, "_time", keep)
    before = torch.get_rng_state()
    measure_cpu_roofs()
    assert torch.equal(torch.get_rng_state(), before)
    # Pages and multiplications of zeros can be cheaper than others.
    assert all((operand != 0).float().mean() > 0.99 for operand in operands)
