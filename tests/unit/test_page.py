"""The HTML page of ``roofprobe report``: its words, its data and what it must not contain."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from test_derive import COUNTERS, TF32, record
from test_parts import CONV, NORM, REST, counters, segment
from test_parts import record as parted
from test_report import MODELLED, RESULTS, ROOFS, runs, whole

import roofprobe
from roofprobe import metrics, part_tables, report
from roofprobe.cli import main
from roofprobe.errors import UsageError
from roofprobe.page import html, meaning_of
from roofprobe.page.chart import chart
from roofprobe.page.layered import COLOURS, layered
from roofprobe.record import CheckedCounter, CrossCheck, Environment, Kernel, KernelUse, Measurement

RESNET = RESULTS / "resnet18-b256/run.json"
EVIL = "<script>alert(1)</script> & \"quotes\" 'n' {{ 7 * 7 }} <b>%{x}"

# docs/design.md and FACTS of ResNet-18 at batch 64 on an H200: ncu 2025.3.1, app-range replay.
CHECK = CrossCheck(
    "ncu 2025.3.1.0",
    "2026-11-30T05:00:00Z",
    ("python", "train.py", "--name", "a b"),
    (
        CheckedCounter("dram__bytes_read.sum", 10.434e9, 10.422e9, "app-range", 0.01, True),
        CheckedCounter("fadd.sum", 1.29477e9, 1.4e9, "kernel", 0.001, False),
    ),
    {"roofprobe": 1.13, "app-range replay": 14.5},
    {"nvlrx__bytes.sum": "the device lacks it"},
)


class Page(HTMLParser):
    """What a browser would find: text, attributes and scripts."""

    def __init__(self, source):
        super().__init__()
        self.words, self.attributes, self.scripts, self._open = [], [], [], ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self._open = tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page(*records):
    return Page(html([(each.name, each) for each in records]))


@pytest.fixture(scope="module")
def resnet():
    return Measurement.load(RESNET)


@pytest.fixture(scope="module")
def shown(resnet):
    return page(resnet)


def test_all_that_the_terminal_says_is_on_the_page(resnet, shown):
    said = report.content(resnet)
    assert said.title in shown.text
    for row in said.rows:
        assert " ".join(" ".join(row).split()) in shown.text
    for line in (*said.verdict.sentences, *said.remarks, report.FOOTER):
        assert line in shown.text
    assert "Basis: datasheet ceilings" in shown.text


def test_counters_clocks_environment_and_workload_are_on_the_page(shown):
    for words in (
        # tests/data/runs/resnet18-b256/run.json
        "sm__ops_path_tensor_src_tf32_dst_fp32.sum tensor cores tf32, 1 FLOP each "
        "2,766,122,516,480 cupti",
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum CUDA cores fp32, 2 FLOP each "
        "13,507,888,477 cupti",
        "dram__bytes_read.sum DRAM read, bytes 48,332,573,696 cupti",
        "SM 1.98 GHz (1.98 GHz to 1.98 GHz) memory 3.201 GHz readings 113 (nvml)",
        "driver 580.159.04",
        "memory 150.1 GB",
        "cudnn_allow_tf32 True",
        "command python3 -m roofprobe.train -a resnet18 --dummy",
        "batch_size 256",
        "passes 844.4 ms",
        "TF32 tensor 494.7 TFLOP/s datasheet",
    ):
        assert words in shown.text


def test_every_metric_of_the_table_has_a_meaning():
    said = {row.name: meaning_of(row) for row in metrics.TABLE.values()}
    assert all(said.values())
    assert said["dram__sectors_read.sum"] == "DRAM read, sectors of 32 bytes"
    assert "at most 4 FLOP" in said["smsp__sass_thread_inst_executed_op_hfma_pred_on.sum"]


def test_what_is_not_available_is_said_with_its_reason():
    shown = page(
        replace(
            record({**COUNTERS, TF32: None}, unavailable={TF32: "the device lacks it"}),
            notes={"kernels": "tracing was refused"},
            warnings=("step times differ",),
            complete=False,
            steps_missing=3,
        )
    )
    assert f"{TF32} tensor cores tf32, 1 FLOP each: the device lacks it n/a" in shown.text
    assert f"tensor cores tf32, total FLOP : {TF32}: the device lacks it" in shown.text
    assert "kernels : tracing was refused" in shown.text
    assert "Incomplete: 3 more steps were needed." in shown.text
    assert "step times differ" in shown.text


def test_a_record_of_nothing_makes_a_page():
    nothing = whole(rounds=(), timing=None, clocks=None, roofs=())
    shown = page(replace(nothing, environment=Environment("a CPU", "cpu")))
    assert "Not in the picture: all FLOP:" in shown.text
    assert "None is known" in shown.text
    assert "clocks not read, or there is none" in shown.text


def test_the_cross_check_is_on_the_page(resnet):
    shown = page(replace(resnet, crosscheck=CHECK))
    assert "it does not on fadd." in shown.text
    assert "dram__bytes_read 1.0434e+10 1.0422e+10 1.00115 1% agrees" in shown.text
    assert "fadd 1.29477e+09 1.4e+09 0.92484 0.1% DIFFERS" in shown.text
    assert "not compared: nvlrx__bytes.sum: the device lacks it" in shown.text
    assert "python train.py --name 'a b'" in shown.text
    assert "price: roofprobe 1.13 s, app-range replay 14.5 s" in shown.text


def test_the_witness_is_on_the_page(shown):
    assert "analytic" not in shown.text
    assert 'class="witness"' not in html([("x", whole())])
    found = page(whole(witness=MODELLED))
    assert "witness: the hardware beside the analytic model" in found.text
    assert "per step hardware model ratio verdict" in found.text
    assert "FLOP 1 kFLOP 800 FLOP 1.25 explained" in found.text
    assert "DRAM bytes 50 B 40 B 1.25 explained" in found.text
    for line, _ in report.content(whole(witness=MODELLED)).witness.remarks:
        assert line in found.text
    assert "Warning:" not in found.text
    little = replace(MODELLED, counters={**MODELLED.counters, "analytic__flop_fp32.sum": 8.0})
    flagged = page(whole(witness=little)).text
    assert "1 kFLOP 8 FLOP 125 FLAG" in flagged
    assert "Warning: The hardware's FLOP (cupti) are 125 times the model's 8 FLOP" in flagged


def test_what_the_witness_lacks_is_said():
    noted = page(whole(notes={"witness": "the run ended before"}))
    assert "witness : the run ended before" in noted.text
    evil = replace(MODELLED, counters={}, reason=EVIL)
    assert EVIL in page(whole(witness=evil)).text


def test_nothing_is_loaded_from_anywhere(shown):
    names = {(tag, name) for tag, name, _ in shown.attributes}
    assert not {name for _, name in names} & {"src", "href", "srcset", "action", "data", "poster"}
    assert not {tag for tag, _ in names} & {"link", "iframe", "object", "embed", "base", "img"}
    (policy,) = [v for tag, n, v in shown.attributes if tag == "meta" and "default-src" in v]
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*|unsafe-eval", policy)
    data, plotly, own = shown.scripts
    assert data.startswith("{")
    for script in (plotly, own):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "script-src 'unsafe" not in policy
    style = re.search(r"<style>(.*?)</style>", html([("x", whole())]), re.DOTALL)
    assert not re.search(r"url\(|@import", style[1])


def test_what_a_user_wrote_stays_text(resnet):
    check = replace(CHECK, tool=EVIL, left_out={EVIL: EVIL})
    hostile = replace(
        resnet,
        name=EVIL,
        warnings=(EVIL,),
        notes={EVIL: EVIL},
        workload={EVIL: EVIL},
        metrics=(*resnet.metrics, EVIL),
        unavailable={EVIL: EVIL},
        environment=replace(resnet.environment, device_name=EVIL, command=(EVIL,)),
        crosscheck=check,
    )
    for shown in (page(hostile), page(hostile, replace(hostile, name=EVIL + "2"))):
        assert len(shown.scripts) == 3
        assert not {tag for tag, _, _ in shown.attributes if tag == "b"}
        assert shown.text.count(" ".join(EVIL.split())) >= 10
        assert not [name for _, name, _ in shown.attributes if name.startswith("on")]


def test_half_a_surrogate_pair_can_be_written(resnet, tmp_path):
    from roofprobe.page import save

    odd = replace(resnet, name="half \ud800")
    path = save([(odd.name, odd)], tmp_path / "x.html")
    assert "half ?" in path.read_text("utf-8")


def test_the_same_record_gives_the_same_bytes():
    code = (
        "import hashlib, sys; from roofprobe.page import html;"
        "from roofprobe.record import Measurement;"
        "runs = [(p, Measurement.load(p)) for p in sys.argv[1:]];"
        "print(hashlib.sha256(html(runs).encode()).hexdigest())"
    )
    files = [str(path) for path in runs("resnet18-b256", "alexnet-b256")]
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, *files],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_the_chart_has_every_point_and_roof(resnet):
    data = chart([("x", replace(resnet, roofs=ROOFS))])
    found = {(roof["source"], roof["path"] or roof["level"]): roof for roof in data["roofs"]}
    assert found["measured", "tensor_tf32"]["value"] == 398e12
    assert found["datasheet", "dram"]["value"] == 4.8e12
    assert found["measured", "l2"]["label"] == "L2 read 7 TB/s"
    assert "uncertainty: 1% between repeats" in found["measured", "l2"]["hover"]
    assert "uncertainty: none is stated" in found["datasheet", "dram"]["hover"]
    assert found["datasheet", "l1"]["label"] == "L1, derived 33.45 TB/s"
    # A path keeps its colour, whatever the source.
    assert len({r["colour"] for r in data["roofs"] if r["path"] == "tensor_tf32"}) == 1

    marks = {(mark["path"], mark["label"]): mark for mark in data["marks"]}
    # 2.805e12 FLOP, 2.766e12 of them TF32, over 79.72 GB and 46.98 ms: see the run file.
    assert marks[None, "DRAM"]["x"] == pytest.approx(35.19, rel=1e-3)
    assert marks[None, "DRAM"]["y"] == pytest.approx(59.72e12, rel=1e-3)
    tf32 = marks["tensor_tf32", "DRAM"]
    assert tf32["x"] == pytest.approx(2766122516480 / (48332573696 + 31385917696))
    assert tf32["y"] == pytest.approx(2766122516480 / 0.04697896, rel=1e-6)
    assert tf32["hover"][:4] == [
        "x, TF32 tensor only",
        "intensity: 34.7 FLOP/byte of DRAM",
        "attained: 58.88 TFLOP/s",
        "source: cupti",
    ]
    assert tf32["hover"][4] == "uncertainty: rate 0.68% (largest minus smallest)"
    assert tf32["reach"] == [1, pytest.approx(1.0034, abs=1e-4)]
    assert marks[None, "study's formula"]["x"] == pytest.approx(0.494, rel=1e-3)
    assert not any(mark["above"] for mark in marks.values())
    low, high = data["x"]
    bottom, top = data["y"]
    assert all(low < m["x"] < high and bottom < m["y"] < top for m in marks.values())
    assert all(bottom < roof["value"] < top for roof in data["roofs"] if roof["kind"] == "flop")
    assert low < 66.9 / 4.8 < 494.7 / 4.8 < high


def test_a_ceiling_has_its_clock_and_what_it_comes_down_to(resnet):
    lasting = tuple(replace(each, clock=1.965e9, sustained=0.9 * each.value) for each in ROOFS)
    run = replace(resnet, roofs=lasting)
    shown = page(run)
    assert "ceiling value spread SM clock sustained source from" in shown.text
    assert (
        "TF32 GEMM 398 TFLOP/s 1% 1.965 GHz 358.2 TFLOP/s measured 8192^3" in shown.text
        and "L2 read 7 TB/s 1% 1.965 GHz 6.3 TB/s measured 16 MiB" in shown.text
    )
    assert "TF32 tensor 494.7 TFLOP/s datasheet H200 SXM, dense" in shown.text
    assert "L1, derived 33.45 TB/s datasheet derived, no datasheet prints it: 128" in shown.text
    found = {(roof["source"], roof["level"]): roof for roof in chart([("x", run)])["roofs"]}
    assert found["measured", "l2"]["hover"] == [
        "L2 read 7 TB/s",
        "source: measured",
        "uncertainty: 1% between repeats",
        "SM clock: 1.965 GHz",
        "once the load lasts: 6.3 TB/s",
        "16 MiB",
    ]
    # A record that lacks them says nothing of them.
    old = {(roof["source"], roof["level"]): roof for roof in chart([("x", resnet)])["roofs"]}
    assert not [line for line in old["datasheet", "dram"]["hover"] if "clock" in line]


def test_choices_are_those_that_the_run_has(resnet):
    def options(data):
        return {
            choice["name"]: {o["value"]: not o["off"] for o in choice["options"]}
            for choice in data["choices"]
        }

    measured = options(chart([("x", replace(resnet, roofs=ROOFS))]))
    assert measured == {
        "level": {"all": True, "dram": True, "l2": True, "l1": True},
        "path": {"all": True, "tensor_tf32": True, "sass_fp32": True},
        "source": {"all": True, "measured": True, "datasheet": True},
    }
    assert options(chart([("x", resnet)]))["source"]["measured"] is False
    # Without TF32 one path did all the work: there is nothing to pick.
    plain = Measurement.load(RESULTS / "resnet18-b256-no-tf32/run.json")
    assert "path" not in options(chart([("x", plain)]))


def test_a_point_above_its_path_s_roof_is_marked(resnet):
    slow = tuple(replace(r, value=r.value / 10) if r.path == "tensor_tf32" else r for r in ROOFS)
    run = replace(resnet, roofs=slow, environment=Environment("an unknown GPU", "cuda"))
    marks = {(m["path"], m["level"]): m for m in chart([("x", run)])["marks"]}
    # 58.88 TFLOP/s on TF32 under a roof of 39.8 are 1.48 times too many; the step as a whole has
    # fp32's roof of 50.7.
    assert marks["tensor_tf32", "dram"]["above"]
    hover = " ".join(" ".join(marks["tensor_tf32", "dram"]["hover"]).split())
    assert (
        hover.count("1.48 times the TF32 GEMM roof of 39.8 TFLOP/s: suspect, likeliest first:") == 1
    )
    assert not marks["sass_fp32", "dram"]["above"]


def test_several_runs_are_numbered_and_have_a_section_each():
    one, two = (Measurement.load(path) for path in runs("resnet18-b256", "resnet18-b4"))
    v100 = Environment("Tesla V100-SXM2-16GB", "cuda", "GV100", sm_count=80, memory_byte=16 * 2**30)
    named = [("one", one), ("two", replace(two, environment=v100))]
    data = chart(named)
    assert data["runs"] == ["one", "two"]
    assert {m["label"] for m in data["marks"] if m["series"].startswith("two")} == {"2"}
    assert {roof["device"]: roof["colour"] for roof in data["roofs"]} == {
        "H200": 0,
        "V100-SXM2-16GB": 1,
    }
    assert [c["start"] for c in data["choices"]] == ["dram", "all", "all"]
    shown = Page(html(named))
    assert "1 one: resnet18 batch 256 on NVIDIA H200" in shown.text
    assert "2 two: resnet18 batch 4 on Tesla V100" in shown.text
    assert shown.text.count("Figures per step") == 2


def test_report_command(tmp_path, capsys):
    run = tmp_path / "run.json"
    run.write_bytes(RESNET.read_bytes())
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr().out
    assert said == report.text(Measurement.load(run)) + f"\npage: {tmp_path / 'report.html'}\n"
    first = (tmp_path / "report.html").read_bytes()
    assert main(["report", str(run)]) == 0  # over the earlier page
    assert (tmp_path / "report.html").read_bytes() == first
    other = str(RESULTS / "alexnet-b256/run.json")
    target = tmp_path / "new" / "both.HTML"
    assert main(["report", str(run), other, str(run), "--out", str(target)]) == 0
    assert "2 runs on H200" in target.read_text("utf-8")
    assert run.read_bytes() == RESNET.read_bytes()


def test_report_overwrites_no_run(tmp_path, capsys):
    run = tmp_path / "run.html"
    run.write_bytes(RESNET.read_bytes())
    for out, why in ((RESNET, "must end in .html"), (run, "that is the run to report on")):
        assert main(["report", str(run), "--out", str(out)]) == 2
        said = capsys.readouterr()
        assert why in said.err and said.out == ""
    assert run.read_bytes() == RESNET.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]


@pytest.mark.parametrize("content", ["", "{}", '{"schema": "roofprobe.run", "version": 99}'])
def test_a_broken_file_gives_one_sentence_and_no_page(tmp_path, capsys, content):
    run = tmp_path / "run.json"
    run.write_text(content)
    assert main(["report", str(run)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"roofprobe: error: {run}: ")
    assert said.err.count("\n") == 1 and said.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_other_verbs_load_neither_templates_nor_plotly():
    code = (
        "import sys, roofprobe.cli;"
        "print([m for m in ('plotly', 'jinja2', 'roofprobe.page') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_s_own_files_are_in_the_package():
    folder = Path(report.__file__).parent / "page"
    assert {path.name for path in folder.iterdir()} >= {"page.html", "page.css", "page.js"}


# 1 ms where 1 GB takes 0.25: 4 TB/s; 1 GFLOP are next to nothing.
HEAD = segment("head", "forward", 1e-3, counters(1e9, 1e9))


def test_tables_and_remarks_of_parts_are_on_the_page():
    whole = parted()
    shown = page(whole)
    tables = list(part_tables.tables(whole, whole=True))
    assert [table.of for table in tables] == ["phase", "layer", "kernel"]
    for table in tables:
        assert table.title in shown.text
        assert " ".join(table.heads) in shown.text
        for row in table.rows:
            assert " ".join(" ".join(row).split()) in shown.text
    for line in part_tables.remarks(whole):
        assert line in shown.text
    assert "net.norm backward 8 ms 40% 0 20 GB DRAM 62% 3 ms" in shown.text
    assert "The parts add up to the uncut step: 100% of its FLOP" in shown.text
    assert "Not in the picture: 2 parts: 0 FLOP" in shown.text


def test_the_picture_of_parts_has_their_places_sizes_colours_and_words():
    data = layered(parted(HEAD, CONV, NORM))
    conv, head = data["marks"]  # the larger one is drawn first
    assert (conv["x"], conv["y"]) == pytest.approx((500, 2e12 / 6.25e-3))
    assert (head["x"], head["y"]) == pytest.approx((1, 1e12))
    # areas as times: 6.25 to 1 ms
    assert (conv["size"], head["size"]) == (1, pytest.approx(0.4))
    # rows by loss: norm 3 ms, conv 1.25, head 0.75
    assert (conv["label"], head["label"]) == ("2", "3")
    assert (conv["colour"], head["colour"]) == (1, 4)
    assert conv["hover"] == [
        "2. net.conv forward",
        "time: 6.25 ms, 31% of the step",
        "lost against the roof: 1.25 ms",
        "verdict: compute-bound, compute used to 80%",
        "FLOP: 2 T; DRAM bytes: 4 GB",
        "intensity: 500 FLOP/byte of DRAM",
        "attained: 320 TFLOP/s",
        "source: cupti; time: cupti_activity",
    ]
    assert [(b["name"], b["count"]) for b in data["bounds"]] == [
        ("compute-bound", 1),
        ("latency-bound", 1),
    ]
    assert data["left_out"] == ["net.norm backward: 0 FLOP"]
    assert {roof["label"] for roof in data["roofs"] if roof["source"] == "measured"} == {
        "TF32 GEMM 400 TFLOP/s",
        "DRAM copy 4 TB/s",
    }


def test_hover_says_why_a_part_is_not_judged():
    def verdict(part):
        (mark,) = layered(parted(part))["marks"]
        return re.search("verdict: (.*?) FLOP:", " ".join(" ".join(mark["hover"]).split()))[1]

    # 1 ms: 140 GFLOP under 400 TFLOP/s are 35%, 1.6 GB under 4 TB/s 40%
    turns = segment("turns", "forward", 1e-3, counters(1.4e11, 1.6e9))
    assert verdict(turns) == (
        "not judged, DRAM used to 40%: DRAM and compute add up to 75% of its time, maybe in turns"
    )
    unknown = segment("unknown", "forward", 1e-3, counters(1e9, 1e9))
    unknown = replace(unknown, counters=({**unknown.counters[0], "lts__t_bytes.sum": None},))
    assert verdict(unknown).startswith("not judged, DRAM used to 25%: no known ceiling is near, ")
    # what is told is short: the reason has a metric's whole name and more
    assert len(verdict(unknown)) < 145
    assert "of the step" not in verdict(turns)


@pytest.mark.parametrize("arch", ["resnet18", "resnet50", "vit_b_16"])
def test_no_part_of_a_real_model_is_left_unjudged_without_a_reason(arch):
    results = Path(__file__).parents[2] / "harness/results/h200"
    data = layered(Measurement.load(results / f"{arch}-layers/run.json"))
    hovers = [" ".join(" ".join(mark["hover"]).split()) for mark in data["marks"]]
    unjudged = [hover for hover in hovers if "verdict: not judged" in hover]
    assert len(unjudged) > 10
    for hover in unjudged:
        said = re.search("verdict: not judged, .*?: (.*) FLOP: ", hover)[1]
        assert "add up to" in said or "others may be: L" in said


def test_numbers_in_the_picture_are_rows_of_the_table_of_parts():
    # phases stand in the order of the step, layers in that of their loss
    by_phase = [replace(part, range=name) for part, name in ((NORM, "a"), (HEAD, "b"), (CONV, "c"))]
    whole = parted(*by_phase, by="phase")
    labels = {mark["hover"][0]: mark["label"] for mark in layered(whole)["marks"]}
    assert labels == {"2. b": "2", "3. c": "3"}
    (table,) = (t for t in part_tables.tables(whole) if t.of == "phase")
    assert [row[0] for row in table.rows] == ["a", "b", "c"]
    classes = [v for tag, n, v in page(whole).attributes if (tag, n) == ("table", "class")]
    assert classes.count("stacked ranked") == 1


def test_parts_beyond_the_named_ones_have_no_number_and_a_part_above_the_roof_is_hollow():
    many = [segment(f"l{n}", "forward", 1e-3, counters(1e9, 1e9)) for n in range(11)]
    fast = segment("fast", "forward", 1e-3, counters(1e12, 1e9))  # 1 PFLOP/s: roofs are 400, 494.7
    marks = {mark["hover"][0]: mark for mark in layered(parted(*many, fast))["marks"]}
    assert sum(mark["label"] != "" for mark in marks.values()) == report.NAMED_PARTS
    above = marks["12. fast forward"]
    assert above["above"] and above["label"] == ""
    hover = " ".join(" ".join(above["hover"]).split())
    assert "2.02 times the TF32 tensor roof of 494.7 TFLOP/s: suspect, likeliest" in hover
    assert not marks["1. l0 forward"]["above"]


def test_parts_without_counts_have_tables_and_the_reason_why_there_is_no_picture():
    bare = [replace(part, counters=()) for part in (CONV, NORM, REST)]
    whole = parted(*bare, by="kernel")
    kernels = tuple(
        Kernel(f"kernel{n}<int>", (KernelUse(0, 1.0, 1e-3),))
        for n in range(part_tables.TOP_KERNELS + 1)
    )
    whole = replace(whole, regions=replace(whole.regions, kernels=kernels))
    with pytest.raises(UsageError, match="was not counted by part"):
        layered(whole)
    shown = page(whole)
    assert "No picture: 'x' was not counted by part: measure it with --by layer" in shown.text
    assert len(shown.scripts) == 3
    # all kernels are there, and the script folds those beyond the first
    assert all(f"kernel{n}<" in shown.text for n in range(16))
    assert [v for _, name, v in shown.attributes if name == "data-first"] == ["15"]
    assert "ranked" not in {v for tag, n, v in shown.attributes if tag == "table"}


def test_a_page_holds_every_part_and_long_names_lose_their_middle():
    many = [segment(f"l{n}", "forward", 1e-3, counters(1e11, 1e9)) for n in range(24)]
    shown = page(parted(*many))
    assert all(f"l{n} forward 1 ms 5% 100 G 1 GB" in shown.text for n in range(24))
    assert "4 more" not in shown.text
    assert [v for _, name, v in shown.attributes if name == "data-first"] == ["20"]
    whole = parted()
    kernel = replace(whole.regions.kernels[0], name="a" * 500 + "z")
    whole = replace(whole, regions=replace(whole.regions, kernels=(kernel,)))
    (table,) = (t for t in part_tables.tables(whole, whole=True) if t.of == "kernel")
    name = table.rows[0][0]
    assert len(name) == 160 and name.endswith("az") and "\N{HORIZONTAL ELLIPSIS}" in name
    # the terminal's are shorter
    assert len(next(t for t in part_tables.tables(whole) if t.of == "kernel").rows[0][0]) == 46


def test_names_of_parts_stay_text():
    evil = [replace(part, module=EVIL) for part in (CONV, NORM)]
    hostile = parted(*evil, replace(REST, range=EVIL), name=EVIL)
    kernels = tuple(replace(kernel, name=EVIL) for kernel in hostile.regions.kernels)
    hostile = replace(hostile, regions=replace(hostile.regions, kernels=kernels, notes=(EVIL,)))
    shown = page(hostile, replace(hostile, name=EVIL + "2"))
    assert (
        len(shown.scripts) == 5
    )  # data of the roofline and of each picture of parts; two that run
    assert not {tag for tag, _, _ in shown.attributes if tag == "b"}
    assert not [name for _, name, _ in shown.attributes if name.startswith("on")]
    assert shown.text.count(" ".join(EVIL.split())) >= 10
    kinds = [value for tag, name, value in shown.attributes if (tag, name) == ("script", "type")]
    assert kinds == ["application/json"] * 3
    assert "<script>alert(1)" in " ".join(json.loads(shown.scripts[0])["marks"][0]["hover"])


def test_a_record_without_parts_says_nothing_of_them(shown):
    assert "Parts of the step" not in shown.text
    assert not [v for _, n, v in shown.attributes if n == "class" and v in ("parts", "layered")]


def test_a_step_measured_by_layer_makes_a_page():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    rows = torch.randn(32, 8)

    def step():
        model.zero_grad()
        model(rows).sum().backward()

    run = roofprobe.measure_step(
        step, "tiny", by="layer", model=model, device="cpu", warmup=1, timed=2
    )
    data = layered(run)
    # 2 FLOP for each product; rows, weights, bias and what comes out have 4 bytes each
    forward = next(m for m in data["marks"] if "0 forward" in m["hover"][0])
    byte = 4 * (32 * 8 + 8 * 16 + 16 + 32 * 16)
    assert forward["x"] == pytest.approx(2 * 32 * 8 * 16 / byte)
    assert {" ".join(m["hover"][0].split()[1:]) for m in data["marks"]} == {
        "0 forward",
        "0 backward",
        "2 forward",
        "2 backward",
    }
    assert html([("tiny", run)]) == html([("tiny", run)])
    assert "1 forward" in page(run).text  # ReLU, which has no FLOP


def test_colours_of_the_page_are_those_of_the_picture():
    from roofprobe import plot

    css = (Path(report.__file__).parent / "page/page.css").read_text()
    light = dict(re.findall(r"--c(\d): (#\w{6})", css[: css.index("@media")]))
    assert [light[str(index)] for index in range(6)] == list(plot._COLOURS)
    assert {bound: light[str(index)] for bound, index in COLOURS.items()} == plot._BOUNDS


def test_the_page_needs_no_matplotlib():
    code = "import sys, roofprobe.page; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
