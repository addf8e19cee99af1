"""Pictures by their data, labels and limits; how they look was judged by eye."""

import math
import struct
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from roofprobe.device import catalogue
from roofprobe.errors import RecordError, UsageError
from roofprobe.plot import draw_roofline, picture_format, save_roofline
from roofprobe.roofline import Ceiling, LeftOut, Point, Roofline, ceilings_of, suspects

H200 = next(spec for spec in catalogue() if spec.name == "H200 SXM")
FULL = Roofline(
    "ResNet-18, batch 256",
    ceilings_of(H200, ["tensor_tf32", "sass_fp32"]),
    (
        Point("all FLOP", 35.2, 5.83e13, "dram", "cupti"),
        Point("study's formula", 0.49, 8.3e11, "dram", "cupti"),
    ),
    (LeftOut("memset", "0 FLOP"), LeftOut("hash", "0 FLOP"), LeftOut("zero_time", "0 s")),
)
CPU = Roofline(
    "CPU",
    (
        Ceiling("FP32", "flop", 2e11, "analytic_fp32", None, "measured", "2048^3 matmul"),
        Ceiling("DRAM", "byte", 2e10, None, "dram", "measured", "1 GiB copy"),
    ),
    (Point("step", 20, 1.2e11, "dram", "analytic"),),
    (),
)
EMPTY = Roofline("nothing", (), (), ())
LEFT_OUT_ONLY = Roofline("nothing to draw", FULL.ceilings, (), FULL.left_out)
POINTS_ONLY = Roofline("no roofs", (), FULL.points, ())
MEMORY_ONLY = Roofline("no peak", CPU.ceilings[1:], CPU.points, ())
PEAK_ONLY = Roofline("no bandwidth", CPU.ceilings[:1], CPU.points, ())
FAR = Roofline("far right", CPU.ceilings, (Point("far", 1e7, 1e10, "dram", "cupti"),), ())
ALL = [FULL, CPU, EMPTY, LEFT_OUT_ONLY, POINTS_ONLY, MEMORY_ONLY, PEAK_ONLY, FAR]


def drawn(roofline):
    """The Axes, its lines with two ends (roofs), its markers, and its texts."""
    figure = Figure(figsize=(6.5, 5))
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0.18, 0.25, 0.78, 0.65))
    artists = draw_roofline(ax, roofline)
    roofs = [line for line in ax.lines if len(line.get_xdata()) == 2]
    points = [line for line in ax.lines if len(line.get_xdata()) == 1]
    texts = [artist.get_text() for artist in artists if hasattr(artist, "get_text")]
    return ax, roofs, points, texts


def test_points_are_where_they_belong():
    _, _, points, texts = drawn(FULL)
    positions = [(line.get_xdata()[0], line.get_ydata()[0]) for line in points]
    assert positions == [(35.2, 5.83e13), (0.49, 8.3e11)]
    assert {"all FLOP", "study's formula"} <= set(texts)


def test_labels_stand_by_their_points():
    figure = Figure(figsize=(6.5, 5))
    artists = draw_roofline(figure.add_axes((0.18, 0.25, 0.78, 0.65)), FULL)
    anchors = {a.get_text(): a.xy for a in artists if isinstance(a, Annotation)}
    for point in FULL.points:
        assert anchors[point.name] == pytest.approx((point.intensity, point.flop_per_s))


def test_roofs_are_labelled_with_their_values():
    _, _, _, texts = drawn(FULL)
    assert "TF32 tensor 494.7 TFLOP/s" in texts
    assert "FP32 CUDA cores 66.9 TFLOP/s" in texts
    assert "DRAM 4.8 TB/s" in texts
    assert "FP32 200 GFLOP/s" in drawn(CPU)[3]


def test_equal_roofs_are_one_line():
    roofline = Roofline("", ceilings_of(H200, ["tensor_bf16", "tensor_fp16"]), (), ())
    _, roofs, _, texts = drawn(roofline)
    assert len(roofs) == 2
    assert "BF16 tensor, FP16 tensor 989.4 TFLOP/s" in texts


def test_measured_and_datasheet_roofs_look_different():
    measured = Ceiling("TF32 tensor", "flop", 398e12, "tensor_tf32", None, "measured", "GEMM")
    _, roofs, _, _ = drawn(Roofline("", (*FULL.ceilings, measured), (), ()))
    by_value = {line.get_ydata()[1]: line for line in roofs}
    datasheet, real = by_value[494.7e12], by_value[398e12]
    assert datasheet.get_linestyle() != real.get_linestyle()
    assert datasheet.get_color() == real.get_color()


def test_slanted_roofs_have_the_slope_of_their_bandwidth_and_end_at_the_peak():
    _, roofs, _, _ = drawn(FULL)
    slanted = next(line for line in roofs if line.get_ydata()[0] != line.get_ydata()[1])
    assert slanted.get_ydata() / np.asarray(slanted.get_xdata()) == pytest.approx(4.8e12)
    assert slanted.get_ydata()[1] == pytest.approx(494.7e12)


@pytest.mark.parametrize("roofline", ALL, ids=lambda roofline: roofline.title)
def test_limits_are_finite_and_hold_everything(roofline):
    ax, roofs, _, _ = drawn(roofline)
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert all(0 < limit < math.inf for limit in (left, right, bottom, top))
    for point in roofline.points:
        assert left < point.intensity < right
        assert bottom < point.flop_per_s < top
    for line in roofs:
        assert min(line.get_xdata()) >= left * (1 - 1e-9)
        assert max(line.get_ydata()) <= top
    if roofs and roofline.points:
        assert max(max(line.get_xdata()) for line in roofs) > max(
            point.intensity for point in roofline.points
        )


def test_axes_say_what_they_show():
    ax, _, _, _ = drawn(FULL)
    assert ax.get_xlabel() == "Arithmetic intensity (FLOP/byte of DRAM)"
    assert ax.get_ylabel() == "Attained performance (FLOP/s)"
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.yaxis.get_major_formatter()(1e12) == "1 T"
    assert ax.xaxis.get_major_formatter()(0.1) == "0.1"
    assert ax.get_title(loc="left") == FULL.title


@pytest.mark.parametrize("roofline", ALL, ids=lambda roofline: roofline.title)
def test_both_axes_carry_numbers(roofline):
    ax, _, _, _ = drawn(roofline)
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        assert sum(low <= tick <= high for tick in axis.get_majorticklocs()) >= 2


def test_levels_are_named_where_they_differ():
    points = (Point("step", 35, 5e13, "dram", "cupti"), Point("step", 12, 5e13, "l2", "cupti"))
    ax, _, markers, texts = drawn(Roofline("", (), points, ()))
    assert {"step (DRAM)", "L2"} <= set(texts)  # a line joins the two
    assert ax.get_xlabel() == "Arithmetic intensity (FLOP/byte of the level named)"
    assert markers[0].get_marker() != markers[1].get_marker()
    l2, _, _, texts = drawn(Roofline("", (), points[1:], ()))
    assert l2.get_xlabel() == "Arithmetic intensity (FLOP/byte of L2)"
    assert "step" in texts


def test_points_of_one_name_are_joined_and_nameless_ones_labelled_by_level():
    levels = (("dram", 35.0), ("l2", 12.0), ("l1", 8.0))
    points = tuple(Point("", x, 5e13, level, "ncu") for level, x in levels)
    _, joins, markers, texts = drawn(Roofline("a step", (), points, ()))
    assert [list(line.get_xdata()) for line in joins] == [[35, 12], [12, 8]]
    assert len(markers) == 3
    assert {"DRAM", "L2", "L1"} <= set(texts)
    assert "DRAM" in drawn(Roofline("a step", (), points[:1], ()))[3]
    assert not drawn(POINTS_ONLY)[1]  # different names are not joined
    assert not drawn(Roofline("", (), points[:1] * 2, ()))[1]  # nor namesakes at one level


def test_the_caption_lists_what_is_left_out_and_the_sources():
    caption = " ".join(drawn(FULL)[3][-1].split())
    assert "Not drawn: 0 FLOP (memset, hash); 0 s (zero_time)." in caption
    assert "FLOP and bytes: cupti. One FMA is two FLOP." in caption
    assert (
        "Datasheet roofs (dashed): H200 SXM, dense, seen 2026-11: https://www.nvidia.com" in caption
    )
    assert "Ridges (dots), FLOP/byte: DRAM: 103 TF32 tensor, 13.9 FP32 CUDA cores." in caption
    measured = " ".join(drawn(CPU)[3][-1].split())
    assert "Measured roofs (solid): on this device, see the run for how." in measured


def test_a_point_above_the_roof_is_hollow_and_listed():
    high = Point("too good", 1.0, 9.6e12, "dram", "cupti")
    _, _, points, texts = drawn(Roofline("", FULL.ceilings, (high, FULL.points[0]), ()))
    assert [line.get_markerfacecolor() for line in points] == ["white", "black"]
    caption = " ".join(texts[-1].split())
    assert "Hollow, above the roof: too good, 2 times the DRAM roof of 4.8 TB/s: " in caption
    assert caption.count(suspects()) == 1


def test_many_points_are_numbered_with_a_key():
    points = tuple(Point(f"layer{i}", 1.0 + i, 1e12, "dram", "cupti") for i in range(1, 21))
    _, _, markers, texts = drawn(Roofline("", FULL.ceilings, points, ()))
    assert len(markers) == 20
    assert {str(i) for i in range(1, 21)} <= set(texts)
    assert all(f"{i}\N{NO-BREAK SPACE}layer{i}" in texts[-1] for i in range(1, 21))


def test_points_that_lie_on_one_another_share_a_number():
    """Layers of one kind do; a number each would hide the others."""
    block = [Point(f"block{i}", 10.0 * (1 + 1e-4 * i), 1e12, "dram", "cupti") for i in range(4)]
    apart = [Point(f"head{i}", 1.0 * 10**i, 1e11, "dram", "cupti") for i in range(3)]
    last = Point("block4", 10.0, 1e12, "dram", "cupti")
    points = (*block[:3], apart[0], block[3], *apart[1:], last)
    _, _, markers, texts = drawn(Roofline("", FULL.ceilings, points, ()))
    assert len(markers) == 8
    assert {"4", "6", "7"} <= set(texts)
    assert "1-3, 5, 8" in texts
    assert not {"1", "2", "3", "5", "8"} & set(texts)
    assert all(f"{i}\N{NO-BREAK SPACE}{p.name}" in texts[-1] for i, p in enumerate(points, 1))


def test_ridges_are_dots_where_roofs_of_one_kind_meet():
    ax, _, _, _ = drawn(FULL)
    (dots,) = ax.collections
    # 494.7 and 66.9 TFLOP/s over 4.8 TB/s.
    assert dots.get_offsets().data == pytest.approx(
        np.array([(103.0625, 494.7e12), (13.9375, 66.9e12)])
    )
    measured = Ceiling("DRAM", "byte", 4.25e12, None, "dram", "measured", "copy")
    ax, _, _, _ = drawn(Roofline("", (*FULL.ceilings[:2], measured), (), ()))
    assert not ax.collections  # a measured bandwidth and a datasheet peak have no ridge


def test_spread_is_drawn_as_bars():
    point = Point("step", 10.0, 1e12, "dram", "cupti", spread=(None, 0.5))
    ax, _, markers, texts = drawn(Roofline("", (), (point,), ()))
    across, up = (bars.get_segments()[0] for bars in ax.collections)
    assert up[:, 1] == pytest.approx([1e12 / 1.25, 1e12 * 1.25])
    assert across[:, 0] == pytest.approx([10, 10])
    assert len(markers) == 1
    assert "Bars: spread" in texts[-1]
    huge = Point("step", 10.0, 1e12, "dram", "cupti", spread=(None, 5.0))
    ax, _, _, _ = drawn(Roofline("", (), (huge,), ()))
    assert ax.collections[1].get_segments()[0][:, 1].min() > 0
    plain = Point("step", 10.0, 1e12, "dram", "cupti", spread=(0.0, None))
    assert not drawn(Roofline("", (), (plain,), ()))[0].collections


def test_roofs_of_several_gpus_are_told_apart():
    v100 = next(spec for spec in catalogue() if spec.name == "V100 SXM2 16GB")
    ceilings = [
        replace(ceiling, device=name)
        for name, spec in (("H200", H200), ("V100", v100))
        for ceiling in ceilings_of(spec, ["sass_fp32"])
    ]
    points = (
        Point("a", 30, 1e13, "dram", "cupti", device="H200"),
        Point("b", 30, 1.7e13, "dram", "cupti", device="V100"),
    )
    _, roofs, markers, texts = drawn(Roofline("", tuple(ceilings), points, ()))
    assert {"H200: FP32 CUDA cores 66.9 TFLOP/s", "V100: DRAM 900 GB/s"} <= set(texts)
    assert len({line.get_color() for line in roofs}) == 2
    assert markers[0].get_markerfacecolor() != markers[1].get_markerfacecolor()
    # 17 TFLOP/s are under the H200's roof and 1.08 times the V100's, whose point it is.
    assert markers[1].get_markerfacecolor() == "white"
    caption = " ".join(texts[-1].split())
    assert "Hollow, above the roof: b, 1.08 times the FP32 CUDA cores roof" in caption


def test_long_labels_of_several_points_become_numbers():
    points = tuple(Point(f"{'long ' * 9}{i}", 10.0 * i, 1e12, "dram", "cupti") for i in (1, 2))
    figure = Figure(figsize=(3.4, 4))
    artists = draw_roofline(figure.add_axes((0.2, 0.3, 0.75, 0.6)), Roofline("", (), points, ()))
    texts = [artist.get_text() for artist in artists if hasattr(artist, "get_text")]
    assert {"1", "2"} <= set(texts)


def test_a_picture_is_a_column_wide_and_its_text_can_be_read_there(tmp_path):
    head = save_roofline(FULL, tmp_path / "x.png").read_bytes()[:24]
    assert struct.unpack(">I", head[16:20])[0] == 1020  # pixels: 3.4 inches at 300 an inch
    figure = Figure(figsize=(3.4, 4))
    artists = draw_roofline(figure.add_axes((0.2, 0.3, 0.75, 0.6)), FULL)
    sizes = [artist.get_fontsize() for artist in artists if hasattr(artist, "get_fontsize")]
    assert min(sizes) >= 5.8  # points


def test_nothing_to_draw_is_said():
    _, _, points, texts = drawn(LEFT_OUT_ONLY)
    assert not points
    assert "no point to draw" in texts
    assert "zero_time" in texts[-1]


def boxes(roofline):
    """Boxes of the labels that are not slanted, and of the Axes."""
    figure = Figure(figsize=(6.5, 5.0))
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0.18, 0.25, 0.78, 0.65))
    artists = draw_roofline(ax, roofline)
    figure.draw_without_rendering()
    labels = [a for a in artists[:-1] if hasattr(a, "get_text") and a.get_rotation() == 0]
    return [label.get_window_extent() for label in labels], ax.bbox


def test_labels_do_not_collide():
    measured = (
        Ceiling("TF32 tensor", "flop", 398e12, "tensor_tf32", None, "measured", "GEMM"),
        Ceiling("FP32 CUDA cores", "flop", 50.7e12, "sass_fp32", None, "measured", "GEMM"),
        Ceiling("DRAM", "byte", 4.25e12, None, "dram", "measured", "copy"),
    )
    for roofline in (FULL, CPU, Roofline("", (*FULL.ceilings, *measured), FULL.points, ())):
        labels, axes = boxes(roofline)
        for index, box in enumerate(labels):
            assert axes.x0 <= box.x0 and box.x1 <= axes.x1
            assert not any(box.overlaps(other) for other in labels[index + 1 :])


def test_names_are_taken_literally():
    name = "void kernel<$x_1$>\n(" + "very long argument, " * 20 + ")"
    point = Point(name, 1.0, 1e12, "dram", "cupti", note="$")
    _, _, _, texts = drawn(Roofline(name, FULL.ceilings, (point,), (LeftOut(name, "0 FLOP"),)))
    label = next(text for text in texts if text.startswith("void kernel<$x_1$> ("))
    assert len(label) <= 49 and "\n" not in label
    assert name.split("\n")[0] in texts[-1]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_any_name_is_drawn_without_a_warning(tmp_path, suffix):
    name = "模型 🚀 \x1b[31mred\x07\ud800"
    shown = r"模型 🚀 \x1b[31mred\x07\ud800"
    ceilings = tuple(replace(each, device=name) for each in FULL.ceilings)
    point = Point(name, 1.0, 1e12, "dram", "cupti", note=name)
    roofline = Roofline(name, ceilings, (point,), (LeftOut(name, name),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax, _, _, texts = drawn(roofline)
        save_roofline(roofline, tmp_path / f"roofline.{suffix}")
    assert ax.get_title(loc="left") == shown
    assert shown in texts
    assert not [text for text in texts if any(char in text for char in "\x1b\x07\ud800")]


def test_a_model_above_a_roof_of_memory_suspects_caches_first():
    above = Point("step", 0.1, 4e9, "dram", "analytic")  # twice 20 GB/s
    caption = " ".join(drawn(replace(CPU, points=(above,)))[3][-1].split())
    assert f"2 times the DRAM roof of 20 GB/s: {suspects(modelled=True)}." in caption
    counted = replace(above, source="cupti")
    caption = " ".join(drawn(replace(CPU, points=(counted,)))[3][-1].split())
    assert f"2 times the DRAM roof of 20 GB/s: {suspects()}." in caption


@pytest.mark.parametrize(
    ("suffix", "magic"),
    [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89")],
)
def test_a_picture_is_written_in_the_format_of_its_name(tmp_path, suffix, magic):
    path = tmp_path / f"roofline.{suffix}"
    assert save_roofline(FULL, path) == path
    assert path.read_bytes().startswith(magic)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_roofline_gives_the_same_bytes(tmp_path, suffix):
    one = save_roofline(FULL, tmp_path / f"one.{suffix}").read_bytes()
    assert save_roofline(FULL, tmp_path / f"two.{suffix}").read_bytes() == one


@pytest.mark.parametrize("roofline", ALL, ids=lambda roofline: roofline.title)
def test_every_roofline_can_be_saved(tmp_path, roofline):
    assert save_roofline(roofline, tmp_path / "picture.png").stat().st_size > 1000


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path):
    for name in ("roofline.jpeg", "roofline"):
        with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
            save_roofline(FULL, tmp_path / name)
        with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
            picture_format(tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert picture_format("x/roofline.SVG") == "svg"


def test_a_picture_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="could not write"):
        save_roofline(FULL, tmp_path / "file" / "roofline.png")


def test_no_pyplot(tmp_path):
    code = (
        "import sys; from roofprobe.plot import save_roofline; "
        "from roofprobe.roofline import Roofline; "
        f"save_roofline(Roofline('', (), (), ()), {str(tmp_path / 'a.png')!r}); "
        "assert 'matplotlib.pyplot' not in sys.modules; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


PARTS = Roofline(
    "by layer",
    CPU.ceilings,
    (
        Point("conv", 20, 1e11, "dram", "cupti", share=0.4, bound="compute"),
        Point("norm", 0.5, 2e9, "dram", "cupti", share=0.1, bound="memory"),
        Point("tiny", 5, 1e9, "dram", "cupti", share=1e-6, bound=None, quiet=True),
    ),
    (),
)


def test_parts_have_areas_as_their_times_and_colours_as_their_verdicts():
    _, _, points, texts = drawn(PARTS)
    by_place = {line.get_xdata()[0]: line for line in points}
    conv, norm, tiny = (by_place[point.intensity] for point in PARTS.points)
    areas = conv.get_markersize() ** 2, norm.get_markersize() ** 2
    assert areas[0] / areas[1] == pytest.approx(0.4 / 0.1)
    assert 0 < tiny.get_markersize() < norm.get_markersize()
    colours = {line.get_markeredgecolor() for line in (conv, norm, tiny)}
    assert len(colours) == 3
    # small ones lie on large ones
    order = [line.get_markersize() for line in points]
    assert order == sorted(order, reverse=True)
    assert {"conv", "norm"} <= set(texts)
    assert "tiny" not in texts


def test_the_caption_says_what_areas_and_colours_mean():
    caption = " ".join(drawn(PARTS)[3][-1].split())
    assert "3 parts of the step; 1 unnamed" in caption
    assert "the largest, conv, takes 40% of the step" in caption
    assert "memory blue (1), compute orange (1), not judged grey (1)" in caption


def test_parts_of_one_name_are_not_joined():
    twice = replace(PARTS, points=tuple(replace(p, name="x", level="l2") for p in PARTS.points))
    one = Point("x", 1, 1e9, "dram", "cupti", share=0.2)
    _, roofs, _, _ = drawn(replace(twice, points=(*twice.points[:1], one)))
    assert len(roofs) == len(PARTS.ceilings)


@pytest.mark.parametrize("low", [1e-13, 3e-6, 2e-4, 0.02, 7.0, 3e4])
@pytest.mark.parametrize("span", [10.0, 300.0, 1e6, 1e12])
def test_numbers_on_the_axes_do_not_overlap(low, span):
    points = tuple(Point("", at, 1e12 * at, "dram", "ncu") for at in (low, low * span))
    figure = Figure(figsize=(3.4, 4), dpi=300)
    canvas = FigureCanvasAgg(figure)
    # As wide as save_roofline's Axes: 194.8 of 244.8 points.
    ax = figure.add_axes((0.172, 0.3, 0.795, 0.6))
    draw_roofline(ax, Roofline("", (), points, ()))
    canvas.draw()
    left, right = ax.get_xlim()
    boxes = [
        label.get_window_extent()
        for tick, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
        if left <= tick <= right
    ]
    assert len(boxes) > 1
    assert all(one.x1 < next_.x0 for one, next_ in pairwise(boxes))


def test_numbers_on_the_axes_are_read_as_they_are():
    points = tuple(Point("", at, 1e12, "dram", "ncu") for at in (1e-4, 1e8))
    figure = Figure(figsize=(3.4, 4))
    ax = figure.add_axes((0.172, 0.3, 0.795, 0.6))
    draw_roofline(ax, Roofline("", (), points, ()))
    read = ax.xaxis.get_major_formatter()
    values = (2e-5, 1e-3, 0.01, 500.0, 2e4, 1e5, 5e12)
    texts = [read(value) for value in values]
    assert texts == ["2e-5", "0.001", "0.01", "500", "20000", "1e5", "5e12"]
