"""What a run prints and draws, from records made by hand."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_derive import COUNTERS, READ, SASS, TF32, WRITE, record

from roofprobe import metrics
from roofprobe.cli import main
from roofprobe.cli.plot import names
from roofprobe.record import (
    CheckedCounter,
    Coverage,
    CrossCheck,
    Environment,
    MeasuredRoof,
    Measurement,
    Modelled,
    Round,
)
from roofprobe.report import overlay, roofline_of, save_plot, text
from roofprobe.roofline import above_roof

RESULTS = Path(__file__).parents[2] / "tests/data/runs"
ROOFS = (
    MeasuredRoof("TF32 GEMM", "flop", 398e12, 0.01, "8192^3", "tensor_tf32", None),
    MeasuredRoof("FP32 GEMM", "flop", 50.7e12, 0.01, "8192^3", "sass_fp32", None),
    MeasuredRoof("DRAM copy", "byte", 4.25e12, 0.01, "8 GiB", None, "dram"),
    MeasuredRoof("DRAM write", "byte", 4.57e12, 0.01, "8 GiB", None, "dram"),
    MeasuredRoof("L2 read", "byte", 7e12, 0.01, "16 MiB", None, "l2"),
)
CONTROLS = r"[\x00-\x09\x0b-\x1f\x7f-\x9f]"  # but for the end of a line
H200 = Environment("NVIDIA H200", "cuda", chip="GH100", sm_count=132, memory_byte=150_109_880_320)


def whole(**changes):
    """A record of an H200 with every path counted."""
    counters = dict.fromkeys(metrics.metric_set("full", "GH100"), 0.0) | COUNTERS
    return replace(record(counters), environment=H200, **changes)


def test_the_table_names_source_unit_and_path():
    shown = text(whole(), width=120)
    first = shown.splitlines()[0]
    assert first == "x on NVIDIA H200, GH100 [cupti]"
    assert "tensor cores tf32" in shown
    assert "910 FLOP" in shown
    assert "20 FLOP/B" in shown
    assert "1 FMA = 2 FLOP" in shown
    assert "CUDA cores fp16 (upper bound, not in total)" in shown
    assert "<= 18 FLOP" in shown


def test_paths_without_work_are_left_out_and_unread_ones_are_not():
    counters = {**COUNTERS, TF32: None}
    shown = text(record(counters, unavailable={TF32: "the device lacks it"}), width=120)
    assert "tensor cores tf32" in shown
    assert "n/a" in shown
    assert "the device lacks it" in shown
    assert "tensor cores fp8" not in text(whole(), width=120)


def test_incomplete_is_said_in_the_title():
    shown = text(whole(complete=False, steps_missing=3), width=120)
    assert "[cupti, INCOMPLETE]" in shown.splitlines()[0]


def test_coverage_is_said():
    seen = Coverage(99.0, 100.0, 1.0, 1.0, True)
    assert "SASS coverage: 100% of the stores" in text(whole(coverage=seen), width=120)
    unstored = Coverage(0.0, 0.0, 0.0, None, True, "no kernel executed a store instruction")
    assert "SASS coverage: no kernel executed" in text(whole(coverage=unstored), width=120)
    unseen = Coverage(0.0, 100.0, 0.0, 0.0, False, "a profiler was active")
    assert "SASS figures are withheld" in text(whole(coverage=unseen), width=120)


def test_a_model_says_that_its_error_is_not_known():
    said = "Figures marked analytic are a model and no count"
    counters = {"analytic__flop_fp32.sum": 6.0, "analytic__bytes_read.sum": 2.0}
    assert said in text(record(counters, source="analytic"))
    assert "error that is not known" in " ".join(text(record(counters, source="analytic")).split())
    assert said not in text(whole())


# 90 FLOP on CUDA cores and 910 in TF32, 50 bytes: test_derive.
MODELLED = Modelled(
    {
        **dict.fromkeys((row.name for row in metrics.ANALYTIC), 0.0),
        "analytic__flop_fp32.sum": 800.0,
        "analytic__bytes_read.sum": 30.0,
        "analytic__bytes_write.sum": 10.0,
    },
    {"convolution": 0.0, "attention": 0.0, "other": 800.0},
)


def test_the_hardware_stands_beside_the_model():
    shown = text(whole(witness=MODELLED))
    title, heads, _, flop, byte, *rest = shown[shown.index("witness: ") :].splitlines()
    assert title == "witness: the hardware beside the analytic model"
    assert [cell.strip() for cell in heads.split("┃")] == [
        "per step", "hardware", "model", "ratio", "verdict",
    ]  # fmt: skip
    assert [cell.strip() for cell in flop.split("│")] == [
        "FLOP", "1 kFLOP", "800 FLOP", "1.25", "explained",
    ]  # fmt: skip
    assert [cell.strip() for cell in byte.split("│")] == [
        "DRAM bytes", "50 B", "40 B", "1.25", "explained",
    ]  # fmt: skip
    words = " ".join(rest)
    assert "1.25 times the model's 800 FLOP, which fits padding:" in words
    assert "its error is not known." in words


def test_a_flag_is_a_warning():
    little = replace(MODELLED, counters={**MODELLED.counters, "analytic__flop_fp32.sum": 8.0})
    shown = " ".join(text(whole(witness=little)).split())
    assert (
        "warning: The hardware's FLOP (cupti) are 125 times the model's 8 FLOP, and nothing known "
        "explains that: kernels ran that are no operators of PyTorch, or a count or the model is "
        "wrong." in shown
    )


def test_without_a_witness_there_is_none():
    assert "witness" not in text(whole())
    # Nor where the whole record is a model.
    assert "witness" not in text(record(COUNTERS, source="analytic", witness=MODELLED))


def test_the_roofline_has_the_roofs_of_the_paths_that_worked_and_both_points():
    roofline = roofline_of(whole(roofs=()))
    found = {ceiling.path or ceiling.level: ceiling.value for ceiling in roofline.ceilings}
    # L1: 128 bytes of 132 SMs at 1.98 GHz
    l1 = 128 * 132 * 1.98e9
    assert found == {"sass_fp32": 66.9e12, "tensor_tf32": 494.7e12, "dram": 4.8e12, "l1": l1}
    *ours, study = roofline.points
    # 1000 FLOP over 50, 200 and 0 bytes in 2.0 s; nothing crossed L1.
    assert [(p.level, p.intensity, p.flop_per_s) for p in ours] == [
        ("dram", 20, 500),
        ("l2", 5, 500),
    ]
    assert ("all FLOP", "0 bytes: intensity unbounded") in roofline.left_out
    assert (study.intensity, study.flop_per_s) == (1.8, 72)  # 90 / 50, 90 / 1.25


def test_a_path_with_next_to_no_work_gets_no_roof():
    counters = dict.fromkeys(metrics.metric_set("full", "GH100"), 0.0) | COUNTERS
    counters[SASS.format("dfma")] = 4.0  # 8 of 1008 FLOP are 0.8%
    little = roofline_of(replace(record(counters), environment=H200, roofs=()))
    assert "sass_fp64" not in {ceiling.path for ceiling in little.ceilings}
    counters[SASS.format("dfma")] = 6.0  # 12 of 1012 are 1.2%
    more = roofline_of(replace(record(counters), environment=H200, roofs=()))
    assert "sass_fp64" in {ceiling.path for ceiling in more.ceilings}


def test_one_point_where_the_study_sees_everything():
    counters = {**COUNTERS, TF32: 0.0, SASS.format("hfma"): 0.0}
    assert [point.name for point in roofline_of(record(counters)).points] == ["all FLOP"] * 2


def test_roofs_measured_on_a_cpu_are_drawn(tmp_path):
    roofs = (
        MeasuredRoof("fp32 GEMM", "flop", 1e4, 0.1, "torch.mm", "analytic_fp32", None),
        MeasuredRoof("DRAM", "byte", 1e3, 0.1, "copy", None, "dram"),
    )
    cpu = whole(roofs=roofs)
    assert {"measured"} <= {ceiling.source for ceiling in roofline_of(cpu).ceilings}
    path = save_plot(cpu, tmp_path / "roofline.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_placed_is_listed():
    nothing = whole(rounds=(), timing=None)
    roofline = roofline_of(nothing)
    assert roofline.points == ()
    assert [name for name, _ in roofline.left_out] == ["all FLOP"]


def test_the_verdict_is_said_with_its_ceilings():
    run = replace(Measurement.load(RESULTS / "resnet18-b256/run.json"), roofs=ROOFS)
    shown = text(run, width=120)
    assert "use of DRAM ceiling, 4.25 TB/s" in shown
    assert "39.9%" in shown
    assert "Bound by latency or inefficiency inside kernels" in shown
    assert "Judged by ceilings that were measured on this device." in " ".join(shown.split())
    # 2.805e12 FLOP in 2.766e12 / 398e12 + 3.94e10 / 50.7e12 s.
    joined = " ".join(shown.split())
    assert "Compute ceiling (measured), 363.1 TFLOP/s: total FLOP over the sum" in joined
    assert "98.6% of the FLOP on TF32 tensor at 398 TFLOP/s" in joined
    assert "FMA are 52% of the fp32 instructions" in joined
    for level in ("DRAM", "L2", "L1"):
        assert f"intensity, {level}" in shown


def test_measured_and_datasheet_roofs_are_both_drawn():
    run = replace(Measurement.load(RESULTS / "resnet18-b256/run.json"), roofs=ROOFS)
    both = {(c.source, c.path or c.level or c.name): c.value for c in roofline_of(run).ceilings}
    assert both == {
        ("measured", "tensor_tf32"): 398e12,
        ("measured", "sass_fp32"): 50.7e12,
        ("measured", "dram"): 4.25e12,
        ("measured", "l2"): 7e12,
        ("measured", "this step's mix"): pytest.approx(363.1e12, rel=1e-3),
        ("datasheet", "tensor_tf32"): 494.7e12,
        ("datasheet", "sass_fp32"): 66.9e12,
        ("datasheet", "dram"): 4.8e12,
        ("datasheet", "l1"): 128 * 132 * 1.98e9,
    }
    sheet = roofline_of(run, levels=("dram",), sources=("datasheet",))
    assert {ceiling.source for ceiling in sheet.ceilings} == {"datasheet"}
    assert {point.level for point in sheet.points} == {"dram"}
    (l2,) = roofline_of(run, levels=("l2",)).points  # the study's point is DRAM's
    assert "between L2's two partitions" in l2.note


def test_a_cross_check_is_shown_counter_by_counter():
    check = CrossCheck(
        "ncu 2025.3.1.0",
        "2026-11-30T00:00:00Z",
        ("python", "x.py"),
        (
            CheckedCounter("l1.sum", 1.0, 2.0, "app-range", None, None, "caches were flushed"),
            CheckedCounter("fadd.sum", 1000.0, 1000.0, "kernel", 0.001, True),
            CheckedCounter("dram.sum", 103.0, 100.0, "app-range", 0.01, False),
        ),
        {"roofprobe": 1.0},
        {"hadd.sum": "ncu cannot count it here"},
    )
    shown = text(whole(crosscheck=check), width=120)
    assert "roofprobe against ncu 2025.3.1.0, per step" in shown
    rows = [line.split() for line in shown.splitlines() if "│" in line]
    rows = [row for row in rows if row[0] in ("l1", "fadd", "dram")]
    assert [row[0] for row in rows] == ["l1", "fadd", "dram"]
    assert "not" in rows[0] and "judged" in rows[0]
    assert "agrees" in rows[1]
    assert "DIFFERS" in rows[2] and "1.03000" in rows[2] and "1%" in rows[2]
    assert "l1: caches were flushed" in shown
    assert "not compared: hadd.sum: ncu cannot count it here" in shown
    assert "ncu 2025.3.1.0 agrees on 1 of 2 counters; it does not on dram." in shown
    agrees = replace(check, counters=check.counters[:2])
    assert "agrees on all 1 counters" in text(whole(crosscheck=agrees), width=120)


def runs(*folders):
    return [RESULTS / folder / "run.json" for folder in folders]


def test_runs_and_gpus_in_one_roofline():
    one, two = (Measurement.load(path) for path in runs("resnet18-b256", "alexnet-b256"))
    same = overlay([("one", replace(one, roofs=ROOFS)), ("two", two)])
    assert [point.name for point in same.points] == ["one", "two"]
    assert {point.device for point in same.points} == {""}
    # Both bring the sheet's roofs of one GPU, which are drawn once.
    assert len([c for c in same.ceilings if c.source == "datasheet"]) == 3
    v100 = Environment("Tesla V100-SXM2-16GB", "cuda", sm_count=80, memory_byte=16 * 2**30)
    both = overlay([("one", one), ("two", replace(two, environment=v100))])
    assert {point.device for point in both.points} == {"H200", "V100-SXM2-16GB"}
    dram = {c.device: c.value for c in both.ceilings if c.level == "dram"}
    assert dram == {"H200": 4.8e12, "V100-SXM2-16GB": 900e9}


def test_namesakes_are_told_apart_by_their_paths():
    paths = runs("resnet18-b256", "resnet18-b256-no-tf32", "alexnet-b256")
    records = [Measurement.load(path) for path in paths]
    assert names(paths, records) == [
        "resnet18-b256",
        "resnet18-b256-no-tf32",
        "alexnet batch 256",
    ]


def test_plot_command(tmp_path, capsys):
    picture = tmp_path / "x.svg"
    files = [str(path) for path in runs("resnet18-b256", "resnet18-b4")]
    assert main(["plot", *files, "--out", str(picture)]) == 0
    assert "2 runs on H200" in picture.read_text()
    assert capsys.readouterr().out == f"picture: {picture}\n"
    assert main(["plot", files[0], "--out", str(picture), "--ceilings", "measured"]) == 0
    assert "measured roofs: the run holds none" in capsys.readouterr().out
    assert main(["plot", files[0], "--level", "l2", "--out", str(tmp_path / "l2.pdf")]) == 0


def test_plot_refuses_a_format_before_it_reads(tmp_path, capsys):
    assert main(["plot", str(tmp_path / "missing.json"), "--out", "x.gif"]) == 2
    assert ".png, .svg, .pdf" in capsys.readouterr().err
    assert main(["plot", str(tmp_path / "missing.json"), "--out", str(tmp_path / "x.png")]) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("written", "noted"), [(10.0, False), (0.0, True)])
def test_nothing_written_to_dram_is_noted(written, noted):
    counters = {**whole().rounds[0].counters, WRITE: written}
    run = replace(whole(), rounds=(replace(whole().rounds[0], counters=counters),))
    said = " ".join(text(run).split())
    assert ("0 bytes written to DRAM is a count and no gap: writes stay in L2" in said) is noted
    (point,) = [p for p in roofline_of(run).points if (p.name, p.level) == ("all FLOP", "dram")]
    assert ("0 bytes written" in point.note) is noted


def test_a_model_has_no_l2_to_hold_writes():
    counters = dict.fromkeys((row.name for row in metrics.ANALYTIC), 0.0)
    run = record(counters, source="analytic")
    assert "0 bytes written" not in text(run)
    assert not [p for p in roofline_of(run).points if "0 bytes written" in p.note]


def test_names_and_messages_do_not_steer_the_terminal(tmp_path, capsys):
    odd = "a\n\x1b[31mred\x9b2J\x07\r"
    run = whole(name=odd, warnings=(odd,), notes={"kernels": odd, "witness": odd})
    counters = {**run.rounds[0].counters, TF32: None}
    run = replace(run, rounds=(replace(run.rounds[0], counters=counters),), unavailable={TF32: odd})
    device = replace(H200, device_name=odd)
    shown = r"a\n\x1b[31mred\x9b2J\x07\r"
    said = text(replace(run, environment=device))
    assert said.splitlines()[0] == f"{shown} on {shown}, GH100 [cupti]"
    assert f"\nwarning: {shown}\n" in said
    assert f"\nn/a: witness: {shown}\n" in said
    assert not re.search(CONTROLS, said)
    path = run.save(tmp_path / "run.json")
    picture, page = tmp_path / "a.svg", tmp_path / "a.html"
    assert main(["plot", str(path), str(path), "--out", str(picture)]) == 0
    assert main(["report", str(path), "--out", str(page)]) == 0
    assert not re.search(CONTROLS, "".join(capsys.readouterr()))
    assert not re.search(CONTROLS, picture.read_text())


def test_metrics_that_were_asked_for_by_name_have_their_own_line():
    cycles, absent = "sm__cycles_elapsed.max", "sm__cycles_active.avg"
    counters = {**whole().rounds[0].counters, cycles: 93_123_456.5, absent: None}
    run = replace(
        whole(),
        metrics=tuple(counters),
        rounds=(Round(counters, 1, 0),),
        unavailable={absent: "the device lacks it"},
    )
    lines = text(run).splitlines()
    found = {line.split("│")[0].strip(): line for line in lines if "│" in line}
    assert found[cycles].split("│")[1].strip() == "93123456.5"
    assert found[absent].split("│")[1].strip() == "n/a"
    assert f"n/a: {absent}: the device lacks it" in lines
    assert "smsp__" not in text(run)  # what figures are made of


def test_figures_that_share_a_reason_share_a_line():
    why = "the run ended before all passes of a round were done"
    names = [row.name for row in metrics.ANALYTIC]
    run = record(dict.fromkeys(names), source="analytic", unavailable=dict.fromkeys(names, why))
    lines = [line for line in text(run, width=200).splitlines() if line.startswith("n/a: ")]
    # five paths, three rows of bytes and the total
    assert lines == [f"n/a: analytic fp16, analytic bf16, analytic fp32 and 6 more: {why}"]


def test_a_step_is_held_against_the_roofs_of_its_own_paths():
    # 200 TFLOP of fp32 and 4 of TF32 in 2 s: under TF32's roof, and 1.5 times above fp32's 66.9.
    counters = {**dict.fromkeys(whole().metrics, 0.0), TF32: 4e12, READ: 1e9, WRITE: 1e9}
    counters[SASS.format("ffma")] = 100e12
    run = replace(whole(), rounds=(replace(whole().rounds[0], counters=counters),))
    roofline = roofline_of(run)
    (point,) = [p for p in roofline.points if p.level == "dram" and p.name == "all FLOP"]
    # 200 / 66.9 + 4 / 494.7 = 2.9976 s at least
    assert above_roof(point, roofline).times == pytest.approx(2.9976 / 2, rel=1e-4)
