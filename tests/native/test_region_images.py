"""Counter data by region. Nothing with several regions has been recorded yet, so what is tested
here is that other images are refused and that files keep both kinds apart."""

from dataclasses import replace
from pathlib import Path

import pytest

from roofprobe.counters import cupti
from roofprobe.counters.recorded import CounterFile
from roofprobe.errors import RecordError

DATA = Path(__file__).parents[1] / "data"


def recorded():
    return CounterFile.load(DATA / "copy-2gib.counters")


def test_an_image_of_a_whole_step_has_no_regions():
    with pytest.raises(RecordError, match="'step', which is no region"):
        cupti.evaluate_regions(recorded().images[0], recorded().metrics)


def test_a_file_keeps_both_kinds_of_images_apart(tmp_path):
    one = recorded()
    labels = (("", None, None), ("forward", "net.0", "backward"))
    both = replace(one, labels=labels, part_metrics=one.metrics[:3], parts=(one.images[0][::-1],))
    again = CounterFile.load(both.save(tmp_path / "both.counters"))
    assert again == both
    assert again.evaluate() == one.evaluate()
    with pytest.raises(RecordError):  # what is no image is no image here either
        again.evaluate_parts()


def test_files_without_parts_are_what_they_were(tmp_path):
    path = DATA / "copy-2gib.counters"
    again = CounterFile.load(path).save(tmp_path / "again.counters")
    assert again.read_bytes().partition(b"\n")[0] == path.read_bytes().partition(b"\n")[0]
