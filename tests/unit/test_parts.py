"""Parts of a step judged one by one, from numbers worked out by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_record import sample

from roofprobe import metrics
from roofprobe.errors import UsageError
from roofprobe.part_tables import by_loss, remarks, tables, told_apart
from roofprobe.parts import blocks, checks, parts, phases, within
from roofprobe.record import (
    Environment,
    Kernel,
    KernelTimes,
    KernelUse,
    MeasuredRoof,
    Measurement,
    Regions,
    Round,
    Segment,
    Timing,
)
from roofprobe.report import layered_roofline, text

TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
FULL = metrics.metric_set("full", "GH100")
H200 = Environment("NVIDIA H200", "cuda", chip="GH100", sm_count=132, memory_byte=150_109_880_320)
ROOFS = (
    MeasuredRoof("TF32 GEMM", "flop", 400e12, 0.0, "8192^3", "tensor_tf32", None),
    MeasuredRoof("FP32 GEMM", "flop", 50e12, 0.0, "8192^3", "sass_fp32", None),
    MeasuredRoof("DRAM copy", "byte", 4e12, 0.0, "8 GiB", None, "dram"),
)


def counters(tf32=0.0, byte=0.0, **others):
    """Half of the bytes are read and half written."""
    return {**dict.fromkeys(FULL, 0.0), TF32: tf32, READ: byte / 2, WRITE: byte / 2, **others}


def segment(module, direction, time, counted, range_="", launches=1.0):
    return Segment(range_, module, direction, 1.0, (counted,), time, launches)


# Under roofs of 400 TFLOP/s and 4 TB/s, in a step of 20 ms:
CONV = segment("net.conv", "forward", 6.25e-3, counters(2e12, 4e9))  # 5 ms of FLOP: 80%
NORM = segment("net.norm", "backward", 8e-3, counters(0.0, 20e9))  # 5 ms of bytes: 62.5%
REST = segment(None, None, 1e-3, counters(0.0, 0.4e9), range_="optimizer", launches=7.0)
KERNELS = (
    Kernel("void gemm<float>(float*)", (KernelUse(0, 1.0, 6.25e-3),)),
    Kernel("reduce", (KernelUse(1, 1.0, 8e-3), KernelUse(2, 7.0, 1e-3))),
)


def record(*segments, by="layer", byte=24.4e9, **changes):
    segments = segments or (CONV, NORM, REST)
    regions = Regions(by, segments, 2, "cupti_activity", KERNELS, 0.0, 2e-3)
    return sample(
        environment=H200,
        metrics=FULL,
        rounds=(Round(counters(2e12, byte), 7, 0),),
        unavailable={},
        timing=Timing((20e-3, 20e-3), "cuda_events"),
        kernels=KernelTimes(2, 9, 0, 15.25e-3, 15.25e-3, 19e-3, 0, 0),
        roofs=ROOFS,
        regions=regions,
        **{"notes": {}, "warnings": (), **changes},
    )


def test_each_part_is_judged_by_its_own_counts_and_time():
    conv, norm, rest = parts(record())
    assert [part.name for part in (conv, norm, rest)] == [
        "net.conv forward",
        "net.norm backward",
        "(optimizer)",
    ]
    assert conv.verdict.bound == "compute"
    assert conv.verdict.fraction == pytest.approx(0.8)
    assert (norm.verdict.bound, norm.verdict.level) == ("memory", "dram")
    assert norm.verdict.fraction == pytest.approx(0.625)
    assert (rest.verdict.bound, rest.verdict.cause) == ("latency", "kernels")
    assert conv.figures.intensity["dram"].value == pytest.approx(500)
    # the time is the kernels' own, and so is the source
    assert conv.figures.step_time.value == 6.25e-3
    assert conv.figures.step_time.source == "cupti_activity"


def test_shares_are_of_the_unprofiled_step_and_losses_are_against_the_closest_roof():
    conv, norm, rest = parts(record())
    assert [p.share for p in (conv, norm, rest)] == pytest.approx([0.3125, 0.4, 0.05])
    # 6.25 - 5, 8 - 5, 1 - 0.1 ms
    assert [p.lost for p in (conv, norm, rest)] == pytest.approx([1.25e-3, 3e-3, 0.9e-3])
    assert [part.name for part in by_loss(record())] == [
        "net.norm backward",
        "net.conv forward",
        "(optimizer)",
    ]


def test_what_is_not_counted_is_never_a_partial_sum():
    hidden = replace(CONV, counters=(counters(2e12, 4e9, **{FFMA: None}),))
    whole = record(hidden, NORM, REST)
    conv = parts(whole)[0]
    assert conv.figures.flop_total.value is None
    assert "ffma" in conv.figures.flop_total.reason
    assert conv.figures.flop["tensor_tf32"].value == 2e12
    assert conv.lost_at_most
    assert within(whole, "net").figures.flop_total.value is None
    flop, dram, *_ = checks(whole)
    assert flop.ratio is None
    assert not flop.agrees
    assert dram.ratio == pytest.approx(1)
    assert "Whether the parts' FLOP add up is not known: the parts have no value." in words(whole)


def test_parts_without_a_time_have_no_rate_and_no_loss():
    untimed = record(*(replace(part, time=None, launches=None) for part in (CONV, NORM)))
    untimed = replace(untimed, regions=replace(untimed.regions, time_source=None, kernels=()))
    conv, norm = parts(untimed)
    assert conv.time is None
    assert conv.share is None
    assert conv.lost is None
    assert conv.figures.flop_total.value == 2e12
    assert conv.figures.flop_per_s.value is None
    # without times the order is that of the step
    assert by_loss(untimed) == [conv, norm]
    assert "Parts have no time" in words(untimed)
    assert layered_roofline(untimed).points == ()


def test_the_sum_beside_the_step():
    assert all(check.agrees for check in checks(record()))
    whole = record(byte=26e9)
    flop, dram, *_ = checks(whole)
    assert flop.agrees
    assert dram.ratio == pytest.approx(24.4 / 26)
    assert not dram.agrees
    assert "DO NOT add up to the uncut step: of its DRAM bytes, 6.15% are missing" in words(whole)
    more = record(byte=20e9)
    assert "22% are too much" in words(more)


def test_levels_that_were_not_asked_for_are_not_checked():
    few = (READ, WRITE)
    own = dict.fromkeys(few, 5.0)
    whole = replace(
        record(replace(CONV, counters=(own,)), replace(NORM, counters=(own,))),
        metrics=few,
        rounds=(Round(dict.fromkeys(few, 10.0), 1, 0),),
    )
    assert [(check.name, check.ratio) for check in checks(whole)] == [
        ("FLOP", None),
        ("dram", 1),
        ("kernel time", pytest.approx(14.25 / 15.25)),
    ]


def test_the_sum_of_times_is_checked_against_kernels_of_the_uncut_step():
    *_, time = checks(record())
    assert (time.name, time.parts, time.whole) == ("kernel time", 15.25e-3, 15.25e-3)
    assert "100% of its kernel time" in words(record())
    # 15.25 of 17 ms are 10.3% less, of 16 4.7%
    busy = KernelTimes(2, 9, 0, 17e-3, 17e-3, 19e-3, 0, 0)
    whole = replace(record(), kernels=busy)
    assert not checks(whole)[-1].agrees
    assert "of its kernel time, 10.3% is missing (allowed: 5%)" in words(whole)
    assert checks(replace(record(), kernels=replace(busy, union=16e-3)))[-1].agrees
    unknown = words(replace(record(), kernels=None))
    assert "Whether the parts' kernel time adds up is not known: the step has no value." in unknown


def test_wall_clock_is_checked_against_the_unprofiled_step():
    def on_a_cpu(scale):
        slow = [replace(part, time=scale * part.time) for part in (CONV, NORM, REST)]
        whole = record(*slow)
        regions = replace(whole.regions, time_source="perf_counter")
        timing = Timing((15.25e-3,), "perf_counter")
        return replace(whole, timing=timing, kernels=None, regions=regions)

    *_, time = checks(on_a_cpu(1.09))
    assert (time.name, time.ratio) == ("step time", pytest.approx(1.09))
    assert time.agrees
    said = " ".join(remarks(on_a_cpu(13.44)))
    # 12.44 times as much again
    assert "DO NOT add up to the uncut step: of its time, 1244% is too much (allowed: 10%)" in said
    assert not any("kernel" in sentence for sentence in remarks(on_a_cpu(1.0)))


def test_phases_and_prefixes():
    conv, norm = (replace(part, range=name) for part, name in ((CONV, "a"), (NORM, "a/b")))
    whole = record(conv, norm, REST)
    assert [part.name for part in phases(whole)] == ["a", "a/b", "optimizer"]
    assert within(whole, "a").figures.byte["dram"].value == pytest.approx(24e9)
    assert within(whole, "a/b").figures.byte["dram"].value == pytest.approx(20e9)
    assert within(whole, "net").time == pytest.approx(14.25e-3)
    assert within(whole, "net.norm").time == pytest.approx(8e-3)
    with pytest.raises(UsageError, match=r"'net\.nor'"):
        within(whole, "net.nor")


def words(whole):
    return " ".join(text(whole, width=100).split())


def test_the_table_says_what_to_fix_first():
    shown = text(record(), width=100)
    lines = shown.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("By layer"))
    first, second, third = (lines[at + n].split("│") for n in (3, 4, 5))
    assert [cell.strip() for cell in first] == [
        "net.norm backward", "8 ms", "40%", "0", "20 GB", "DRAM 62%", "3 ms",
    ]  # fmt: skip
    assert second[0].strip() == "net.conv forward"
    assert second[5].strip() == "compute 80%"
    assert third[0].strip() == "(optimizer)"
    assert third[5].strip() == "latency (DRAM 10%)"
    assert max(map(len, lines)) <= 100


def test_kernels_by_time_with_where_they_ran():
    lines = text(record(), width=100).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Kernels by time"))
    # as the record has them, which is longest first
    gemm, reduce = (lines[at + n].split("│") for n in (3, 4))
    assert [cell.strip() for cell in gemm] == [
        "gemm<float>", "1", "6.25 ms", "31%", "net.conv forward",
    ]  # fmt: skip
    assert [cell.strip() for cell in reduce] == [
        "reduce", "8", "9 ms", "45%", "net.norm backward +1",
    ]  # fmt: skip


def test_on_the_page_a_kernel_has_all_its_layers_with_their_shares():
    def places(whole):
        (table,) = (each for each in tables(whole, whole=True) if each.of == "kernel")
        return [row[-1] for row in table.rows]

    # 8 and 1 of 9 ms
    assert places(record()) == [
        "net.conv forward",
        "net.norm backward 89%, (optimizer) 11%",
    ]
    many = [segment(f"l{n}", "forward", 1e-3, counters()) for n in range(10)]
    whole = record(*many)
    # 10 + 9 + ... + 1 = 55 ms
    uses = tuple(KernelUse(n, 1.0, (n + 1) * 1e-3) for n in range(10))
    whole = replace(whole, regions=replace(whole.regions, kernels=(Kernel("k", uses),)))
    assert places(whole) == [
        "l9 forward 18%, l8 forward 16%, l7 forward 15%, l6 forward 13%, l5 forward 11%, "
        "l4 forward 9.1%, l3 forward 7.3%, l2 forward 5.5%, +2 more"
    ]


def test_kernels_that_differ_in_a_template_argument_are_told_apart_on_the_page():
    run = Path(__file__).parents[2] / "harness/results/h200/resnet18-layers/run.json"
    every = tables(Measurement.load(run), whole=True)
    kernels = next(table for table in every if table.title.startswith("Kernels by time"))
    names = [row[0] for row in kernels.rows]
    batch_norm = [name for name in names if name.startswith("bn_bw_1C11_kernel_new<")]
    assert len(batch_norm) == len(set(batch_norm)) == 3  # of 512, 128 and 32 threads


def test_what_the_parts_rest_on_is_said():
    said = words(record())
    assert "The parts add up to the uncut step: 100% of its FLOP, 100% of its DRAM bytes" in said
    assert "kernels on 2 steps traced for it (cupti_activity)" in said
    # 1 - 15.25 / 20
    assert "No kernel runs in 23.8% of the step, which no part has." in said
    assert "Between two steps the loop takes 2 ms" in said


def test_many_parts_are_cut_short_and_the_rest_is_summed_up():
    many = [
        segment(f"l{n}", "forward", 1e-3, counters(1e11, 1e9)) for n in range(24)
    ]  # 1 ms where the bytes take 0.25
    shown = text(record(*many), width=100)
    row = next(line for line in shown.splitlines() if line.startswith("4 more"))
    assert [cell.strip() for cell in row.split("│")] == [
        "4 more", "4 ms", "20%", "400 G", "4 GB", "", "3 ms",
    ]  # fmt: skip


def test_the_rest_of_bounds_is_a_bound():
    # FLOP of one part are not known, so its bytes alone may not explain its time.
    many = [segment(f"l{n}", "forward", 1e-3, counters(1e11, 1e9)) for n in range(23)]
    unknown = segment("last", "forward", 0.9e-3, counters(None, 1e9))
    shown = text(record(*many, unknown), width=100)
    rest = next(line for line in shown.splitlines() if line.startswith("4 more"))
    # 3 parts lose 1 ms less 0.25 ms of bytes, and the last at most 0.9 ms less 0.25 ms.
    assert rest.split("│")[-1].strip() == "<= 2.9 ms"


def test_names_give_way_to_numbers():
    name = "features.3.squeeze_and_the_activation"
    long = segment(name, "backward", 1.234e-6, counters(None, 1.23e3))
    slow = segment("slow", "forward", 1.234e-6, counters(1.23e5, 1.23e3))
    shown = text(record(CONV, NORM, long, slow), width=100)
    # "1.23 µs", "0.0062%", "123 k", "1.23 kB", "latency (compute 0.025%)", "<= 1.23 µs" and six
    # bars take 7 + 7 + 5 + 7 + 24 + 10 + 6 * 3 = 78 of 100 characters.
    line = next(line for line in shown.splitlines() if "…" in line)
    assert line.split("│")[0].rstrip() == "feature…ation backward"  # 22
    assert line.count("…") == 1
    assert line.endswith("<= 1.23 µs")
    assert max(map(len, shown.splitlines())) <= 100


def test_a_kernel_that_ran_nowhere_has_no_place():
    whole = record()
    regions = replace(whole.regions, kernels=(Kernel("gemm", ()),))
    line = next(
        line for line in text(replace(whole, regions=regions)).splitlines() if "gemm" in line
    )
    assert [cell.strip() for cell in line.split("│")] == ["gemm", "0", "0 s", "0%", "not known"]


def test_a_point_for_each_part_sized_by_time_and_coloured_by_verdict():
    conv = replace(REST, module="head", direction="forward", counters=(counters(1e9, 1e9),))
    found = layered_roofline(record(CONV, NORM, conv), named=1)
    assert [(p.name, p.intensity, p.bound, p.quiet) for p in found.points] == [
        ("net.conv forward", pytest.approx(500), "compute", False),
        ("head forward", pytest.approx(1), "latency", True),
    ]
    assert [point.share for point in found.points] == pytest.approx([0.3125, 0.05])
    # without FLOP there is no place on the plane
    assert found.left_out == (("net.norm backward", "0 FLOP"),)
    assert {ceiling.name for ceiling in found.ceilings if ceiling.source == "measured"} == {
        "TF32 GEMM",
        "DRAM copy",
    }


def test_a_whole_step_has_no_parts():
    whole = replace(record(), regions=None)
    assert parts(whole) == phases(whole) == ()
    assert checks(whole) == ()
    assert "By layer" not in text(whole)
    with pytest.raises(UsageError, match="was not counted by part"):
        layered_roofline(whole)


def test_two_rounds_have_a_mean_and_a_spread():
    twice = replace(CONV, counters=(counters(2e12, 4e9), counters(2e12, 6e9)))
    whole = record(twice)
    assert parts(whole)[0].figures.byte["dram"].value == pytest.approx(5e9)
    assert parts(whole)[0].figures.byte["dram"].spread == pytest.approx(0.4)


def test_kernels_alone_are_sorted_by_time_and_have_no_counts():
    bare = [replace(part, counters=()) for part in (CONV, NORM, REST)]
    whole = record(*bare, by="kernel")
    assert [check.name for check in checks(whole)] == ["kernel time"]
    lines = text(whole, width=100).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("By layer, by time"))
    first = [cell.strip() for cell in lines[at + 3].split("│")]
    assert first == ["net.norm backward", "8 ms", "40%", "n/a", "n/a", "n/a", "n/a"]
    assert any(line.startswith("Kernels by time, 2 of 2") for line in lines)
    with pytest.raises(UsageError, match="was not counted by part"):
        layered_roofline(whole)


def test_shortened_names_of_layers_can_be_told_apart():
    layers = [f"encoder.layers.encoder_layer_{n}.self_attention backward" for n in range(12)]
    short = told_apart(layers, 34)
    assert len(set(short)) == 12
    assert all(len(name) <= 34 for name in short)
    assert short[3] == "…r_layer_3.self_attention backward"
    # Where the usual cut does, it is used; what fits is left alone.
    assert told_apart(["conv1", "layer1.0.downsample.0 backward"], 20) == [
        "conv1",
        "layer1…le.0 backward",
    ]
    # The beginning tells these apart, and nothing tells equal names apart.
    blocks = [f"stage{n}.the.same.long.path.of.modules.in.each.stage" for n in range(3)]
    assert len(set(told_apart(blocks, 20))) == 3
    assert told_apart(["x" * 30, "x" * 30], 10) == ["xxx…xxxxxx", "xxx…xxxxxx"]


# -- Blocks -------------------------------------------------------------------------------


def both_ways(path, forward, backward):
    """A module that takes so many ms; for each the roofs allow 0.25: 100 GFLOP and 1 GB."""
    return [
        segment(path, way, time * 1e-3, counters(time * 1e11, time * 1e9))
        for way, time in (("forward", forward), ("backward", backward))
    ]


def blocks_of(*segments):
    return {block.name: 1e3 * block.time for block in blocks(parts(record(*segments)))}


def block_tables(measured, *, whole=False):
    return [table for table in tables(measured, whole=whole) if table.of == "block"]


FIRST, SECOND = "body.layers.0", "body.layers.1"
DEEP = (  # 28 ms
    *both_ways("embed", 1, 0),
    *both_ways(f"{FIRST}.attention.scores", 1, 3),
    *both_ways(f"{FIRST}.head", 2, 4),
    *both_ways(FIRST, 1, 2),
    *both_ways(f"{SECOND}.head", 3, 6),
    *both_ways("body.layers", 0.5, 1),
    *both_ways("", 0.5, 1),
    segment(None, None, 2e-3, counters(0.0, 2e9), range_="optimizer"),
)


def test_blocks_lie_where_none_has_more_than_half_of_the_time():
    # body and body.layers have 23.5 ms, the first layer 4 + 6 + 3
    assert blocks_of(*DEEP) == pytest.approx(
        {FIRST: 13, SECOND: 9, "body.layers itself": 1.5, "(model) itself": 1.5, "embed": 1}
    )
    assert list(blocks_of(*DEEP))[:2] == [FIRST, SECOND]
    # with 5 ms more the first layer has 18 of 33, so its own blocks are shown
    more = blocks_of(*DEEP, *both_ways(f"{FIRST}.attention.mask", 2, 3))
    assert more == pytest.approx(
        {
            f"{FIRST}.attention": 9,
            f"{SECOND}.head": 9,
            f"{FIRST}.head": 6,
            f"{FIRST} itself": 3,
            "body.layers itself": 1.5,
            "(model) itself": 1.5,
            "embed": 1,
        }
    )


def test_blocks_lie_no_deeper_than_four_steps():
    chain = ("a.b.c.d.e.f", "a.b.c.d.e.g", "a.b.c.h")
    found = blocks_of(*(each for path in chain for each in both_ways(path, 1, 1)))
    assert found == pytest.approx({"a.b.c.d": 4, "a.b.c.h": 2})


def test_a_long_module_that_has_no_parts_hides_no_blocks():
    # nothing deeper could share out what the first has
    slow = both_ways("stem", 10, 10), both_ways("body.0", 1, 1), both_ways("body.1", 1, 2)
    found = blocks_of(*(each for part in slow for each in part))
    assert found == pytest.approx({"stem": 20, "body": 5})


def test_a_flat_model_has_no_blocks():
    assert blocks_of(*both_ways("0", 1, 2), *both_ways("1", 1, 2), *both_ways("", 1, 1)) == {}
    # and where all of it is in one, its modules are the rows of the other table
    assert blocks_of(*both_ways("net.0", 1, 2), *both_ways("net.1", 1, 2)) == {}
    assert block_tables(record()) == []


def test_the_table_of_blocks():
    (table,) = block_tables(record(*DEEP))
    assert table.heads == ("block", "time", "step", "forward", "backward", "FLOP", "DRAM", "lost")
    # of a step of 20 ms; each ms could be 0.25
    assert table.rows[0] == (FIRST, "13 ms", "65%", "4 ms", "9 ms", "1.3 T", "13 GB", "9.75 ms")
    assert [row[0] for row in table.rows[-1:]] == ["embed"]
    shown = text(record(*DEEP), width=100)
    assert shown.index("By block, each with all that is in it") < shown.index("By layer, by time")
    # by phase or by kernel there are none
    assert block_tables(record(*DEEP, by="phase")) == block_tables(record(*DEEP, by="kernel")) == []
    untimed = record(*(replace(each, time=None, launches=None) for each in DEEP))
    untimed = replace(untimed, regions=replace(untimed.regions, time_source=None, kernels=()))
    assert block_tables(untimed) == []


def test_what_a_checkpoint_computes_again_has_a_column():
    again = segment(f"{FIRST}.head", "recompute", 1e-3, counters(1e11, 1e9))
    (table,) = block_tables(record(*DEEP, again))
    assert table.heads[3:6] == ("forward", "recompute", "backward")
    assert table.rows[0][1:6] == ("14 ms", "70%", "4 ms", "1 ms", "9 ms")


def test_many_blocks_are_cut_short_in_a_terminal_and_whole_on_the_page():
    many = [each for n in range(15) for each in both_ways(f"layers.{n}.head", 1, 0)]
    many += [each for n in range(15) for each in both_ways(f"layers.{n}.body", 0, 1)]
    (table,) = block_tables(record(*many))
    assert len(table.rows) == 13
    assert table.rows[-1] == (
        *("3 more", "6 ms", "30%", "3 ms", "3 ms", "600 G", "6 GB", "4.5 ms"),
    )
    (table,) = block_tables(record(*many), whole=True)
    assert len(table.rows) == 15


@pytest.mark.parametrize(
    ("arch", "first", "count"),
    [
        ("resnet18", "layer1", 10),
        ("resnet50", "layer1", 10),
        ("vit_b_16", "encoder.layers.encoder_layer_", 17),  # twelve that are alike
    ],
)
def test_blocks_of_real_models_add_up_to_all_that_their_modules_do(arch, first, count):
    path = Path(__file__).parents[2] / f"harness/results/h200/{arch}-layers/run.json"
    whole = Measurement.load(path)
    found = blocks(parts(whole))
    assert found[0].name.startswith(first) and len(found) == count
    assert found[0].time == pytest.approx(within(whole, found[0].name).time)
    assert sum(block.time for block in found) == pytest.approx(within(whole, "").time)
    assert max(block.time for block in found) < whole.kernels.union / 2
