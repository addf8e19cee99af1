import pytest

from roofprobe.units import number, percent, seconds, si


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (4.8e12, "FLOP/s", "4.8 TFLOP/s"),
        (999.99e9, "B", "1 TB"),
        (1.5e6, "B", "1.5 MB"),
        (0, "B", "0 B"),
        (0.25, "FLOP", "0.25 FLOP"),
        (None, "B", "n/a"),
    ],
)
def test_si(value, unit, text):
    assert si(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0475, "47.5 ms"), (1.0, "1 s"), (2e-6, "2 µs"), (0, "0 s"), (None, "n/a")],
)
def test_seconds(value, text):
    assert seconds(value) == text


def test_number_and_percent():
    assert number(35.2049) == "35.2"
    assert number(None) == "n/a"
    assert percent(0.986) == "98.6%"
    assert percent(None) == "n/a"
