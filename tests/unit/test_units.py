import pytest

from roofprobe.units import number, percent, seconds, si, visible


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ResNet-18, 模型 батч 4 🚀 ±2% \xa0", "ResNet-18, 模型 батч 4 🚀 ±2% \xa0"),
        ("a\n\tb\r", r"a\n\tb\r"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x00\x1f\x7f\x80\x9b\x9f", r"\x00\x1f\x7f\x80\x9b\x9f"),
        ("\x85\u2028\u2029\ud800", r"\x85\u2028\u2029\ud800"),
        (r"\x1b", r"\x1b"),
    ],
)
def test_a_name_is_one_line_that_no_terminal_obeys(text, shown):
    assert visible(text) == shown
    assert visible(shown) == shown
