"""Counter data by region, recorded on an H200: three layers of known FLOP, forward and backward."""

from dataclasses import replace
from pathlib import Path

import pytest
from record_images import BATCH, WIDTHS
from workloads import three_linears

from roofprobe.counters import cupti
from roofprobe.counters.recorded import CounterFile
from roofprobe.errors import RecordError
from roofprobe.parts import checks, parts
from roofprobe.record import Measurement

DATA = Path(__file__).parents[1] / "data"


TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
BLOCKS = "sm__ctas_launched.sum"


def recorded(name="copy-2gib"):
    return CounterFile.load(DATA / f"{name}.counters")


@pytest.fixture(scope="module")
def by_region():
    """The recorded step: label -> metric -> value."""
    file = recorded("three-layers")
    (counted,) = file.evaluate_parts()
    assert counted.ranges_dropped == 0 and not counted.reasons
    return {file.labels[region]: values for region, values in counted.values.items()}


def test_tensor_operations_of_three_layers_are_exact_both_ways(by_region):
    found = {
        f"{module} {way}": values[TF32]
        for (_, module, way), values in by_region.items()
        if values[TF32]
    }
    assert found == three_linears(BATCH, WIDTHS)


def test_regions_add_up_to_the_step_that_was_not_cut(by_region):
    file = recorded("three-layers")
    whole = file.evaluate()[0].values
    for metric, tolerance in ((TF32, 0), (BLOCKS, 0), ("dram__bytes_read.sum", 0.01)):
        total = sum(values[metric] for values in by_region.values())
        assert total == pytest.approx(whole[metric], rel=tolerance), metric


def test_regions_are_those_of_the_gpu_machine_to_the_last_digit(by_region):
    record = Measurement.load(DATA / "three-layers.json")
    kept = {
        (segment.range, segment.module, segment.direction): segment.counters[0]
        for segment in record.regions.segments
        if segment.counters
    }
    for label, values in by_region.items():
        assert {name: kept[label][name] for name in values} == values
    assert all(check.agrees for check in checks(record))
    assert [part.name for part in parts(record)][1:6] == [f"{n} forward" for n in range(5)]


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
