"""What CUPTI itself says of the width of L1, against the roof that is derived from it."""

from pathlib import Path

import pytest

from roofprobe.ceilings.roofs import L1_BYTE_A_CLOCK
from roofprobe.counters.cupti import evaluate_image
from roofprobe.counters.recorded import CounterFile
from roofprobe.device import catalogue
from roofprobe.roofline import l1_ceiling

# Counter data of an H200, whose 132 SMs it names.
RECORDED = Path(__file__).parents[1] / "data/copy-2gib.counters"


def peak(metric: str) -> float:
    """The most of a metric that CUPTI lets all SMs count in a clock."""
    image = CounterFile.load(RECORDED).images[0]
    name = f"{metric}.sum.peak_sustained"
    return evaluate_image(image, [name]).values[name]


def test_l1_writes_back_once_a_clock_and_sm():
    (h200,) = [spec for spec in catalogue() if spec.name == "H200 SXM"]
    beats = peak("l1tex__lsu_writeback_active")
    assert beats == h200.sm_count == 132
    assert l1_ceiling(h200).value == pytest.approx(beats * L1_BYTE_A_CLOCK * h200.boost_hz)


def test_the_counter_of_l1_can_count_four_times_what_l1_delivers():
    # 16 sectors of 32 bytes a clock and SM: loads that use all of each are bound by the beats.
    assert peak("l1tex__t_bytes") == 132 * 16 * 32 == 4 * 132 * L1_BYTE_A_CLOCK
