"""The study's harness: table and picture of recorded runs, commands, what a failure costs."""

import gzip
import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import study
from PIL import Image

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "tests/data/runs"  # first recordings: tests that expect digits use these
H200 = ROOT / "harness/results/h200"  # measured last: held against figures within tolerances
NAMES = ["resnet18-b256", "resnet18-b256-no-tf32", "alexnet-b256", "alexnet-b256-no-tf32"]
PUBLISHED = [
    ("ResNet-18", "V100", 23.5, 4.60e12),
    ("ResNet-18", "A100", 0.55, 0.12e12),
    ("AlexNet", "V100", 10.4, 3.54e12),
    ("AlexNet", "A100", 5.24, 1.78e12),
]


@pytest.fixture
def out(tmp_path):
    """The four recorded runs, in a folder of their own."""
    for name in NAMES:
        shutil.copytree(FROZEN / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def h200():
    """What the harness finds in the committed results."""
    return study.read(H200)


def rows_of(folder, source="cupti"):
    return {row.run: row for row in study.read(folder).rows if row.source == source}


# Worked out by hand from the counters of the frozen run file:
# fadd 5211901726 + fmul 7141270184 + 2 * ffma 13507888477 = 39368948864; with TF32 2766122516480
# 2805491465344; DRAM 48332573696 + 31385917696 = 79718491392; kernels 0.04674053192138672 s;
# median step 0.0469789600 s.
def test_resnet18_is_as_worked_out_by_hand(out):
    row = rows_of(out)["resnet18-b256"]
    assert row.study_flop == 39_368_948_864
    assert row.flop == 2_805_491_465_344
    assert row.tensor_frac == pytest.approx(0.985967, abs=1e-6)
    assert row.dram_byte == 79_718_491_392
    assert row.study_intensity == pytest.approx(0.493850, rel=1e-5)
    assert row.intensity == pytest.approx(35.19248, rel=1e-6)
    assert row.study_flop_per_s == pytest.approx(0.842287e12, rel=1e-5)
    assert row.flop_per_s_kernel == pytest.approx(60.0227e12, rel=1e-5)
    assert row.flop_per_s == pytest.approx(59.718e12, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "model", "tf32", "study_intensity", "intensity", "tensor_frac"),
    [
        ("resnet18-b256", "ResNet-18", "convolutions", 0.494, 35.19, 0.986),
        ("resnet18-b256-no-tf32", "ResNet-18", "off", 21.26, 21.26, 0),
        ("alexnet-b256", "AlexNet", "convolutions", 5.472, 92.15, 0.9406),
        ("alexnet-b256-no-tf32", "AlexNet", "off", 47.09, 47.09, 0),
    ],
)
def test_rows_say_what_ran_and_where_it_lands(
    out, name, model, tf32, study_intensity, intensity, tensor_frac
):
    row = rows_of(out)[name]
    assert (row.model, row.batch, row.gpu, row.tf32) == (model, 256, "NVIDIA H200", tf32)
    assert row.study_intensity == pytest.approx(study_intensity, rel=5e-3)
    assert row.intensity == pytest.approx(intensity, rel=5e-3)
    assert row.tensor_frac == pytest.approx(tensor_frac, abs=1e-3)
    assert row.wall is None  # the run files alone do not tell
    assert row.reasons == {"wall": "the process was not timed"}


def test_rows_are_ordered_by_model_batch_and_tf32(out):
    shutil.copytree(FROZEN / "resnet18-b4", out / "resnet18-b4")
    assert [row.run for row in study.read(out).rows] == ["resnet18-b4", *NAMES]


def test_the_published_rows_are_there_as_printed(out):
    found = [(r.model, r.gpu, r.study_intensity, r.study_flop_per_s) for r in study.PUBLISHED]
    assert found == PUBLISHED
    lines = [line for line in study.table(study.read(out)).splitlines() if "published |" in line]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    where = [study._COLUMNS.index(name) for name in ("study's FLOP/B", "study's TFLOP/s")]
    assert [[line[0], line[2], *(line[i] for i in where)] for line in cells] == [
        ["ResNet-18", "V100", "~23.5", "~4.6"],
        ["ResNet-18", "A100", "~0.55", "~0.12"],
        ["AlexNet", "V100", "~10.4", "~3.54"],
        ["AlexNet", "A100", "~5.24", "~1.78"],
    ]
    # What was not published is not made up.
    assert all(r.flop is None and r.dram_byte is None and r.batch is None for r in study.PUBLISHED)


def test_draw_needs_no_gpu_and_no_program(out, capsys):
    assert study.main([str(out), "--draw"]) == 0
    body = json.loads((out / "study.json").read_text())
    assert [row["run"] for row in body["rows"]] == [*NAMES, "", "", "", ""]
    assert body["rows"][0]["study_flop"] == 39_368_948_864
    assert (out / "study.md").read_text() in capsys.readouterr().out
    with Image.open(out / "study-b256.png") as image:
        assert image.size == (1110, 885)
    before = (out / "study-b256.png").read_bytes()
    study.main([str(out), "--draw"])
    assert (out / "study-b256.png").read_bytes() == before


def test_the_picture_has_every_point_where_the_table_has_it(out, monkeypatch):
    points = []
    plot = study._draw

    def spy(ax, row):
        before = len(ax.lines)
        plot(ax, row)
        for line in ax.lines[before:]:
            points.append((row.source, *line.get_xydata()[0]))

    monkeypatch.setattr(study, "_draw", spy)
    study.picture(study.read(out), 256)
    published = [(x, y) for source, x, y in points if source == "published"]
    assert published == [(x, pytest.approx(y / 1e12)) for _, _, x, y in PUBLISHED]
    assert [(x, y) for source, x, y in points if source == "cupti"] == [
        (pytest.approx(x, rel=5e-3), pytest.approx(y, rel=0.02))
        for x, y in [
            *[(0.4938, 0.8423), (35.19, 60.02)],  # ResNet-18: study's formula, all FLOP
            *[(21.26, 21.24), (21.26, 21.24)],  # without TF32
            *[(5.472, 6.407), (92.15, 107.9)],
            *[(47.09, 28.62), (47.09, 28.62)],  # this recording lost one kernel of 113
        ]
    ]


def test_a_folder_with_a_part_gives_that_part(out, capsys):
    for name in NAMES[1:3]:
        shutil.rmtree(out / name)
    (out / NAMES[3] / "run.json").write_text("{ half a file")
    assert study.main([str(out), "--draw"]) == 0
    text = (out / "study.md").read_text()
    assert [row.run for row in study.read(out).rows] == NAMES[:1]
    assert "- not in the table: alexnet-b256-no-tf32: " in text
    assert (out / "study-b256.png").exists()


def test_a_folder_with_nothing_is_a_sentence(tmp_path, capsys):
    assert study.main([str(tmp_path / "none"), "--draw"]) == 2
    assert study.main([str(tmp_path), "--draw"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("none: run the study first, without --draw")
    assert second.endswith("has no run of resnet18 or alexnet on a GPU in it")
    assert not list(tmp_path.iterdir())


def test_another_batch_size_has_a_table_and_no_picture(out, capsys):
    assert study.main([str(out), "--draw", "-b", "8"]) == 0
    assert "no run at batch size 8 is there" in capsys.readouterr().err
    assert not list(out.glob("*.png"))


# -- Commands -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", study.cases(256), ids=lambda case: case.name)
def test_the_committed_runs_are_what_the_commands_ask_for(case):
    body = json.loads((H200 / case.name / "run.json").read_text())
    workload, arguments = body["workload"], case.arguments
    assert workload["arch"] == arguments[arguments.index("-a") + 1]
    assert workload["batch_size"] == int(arguments[arguments.index("-b") + 1]) == 256
    assert workload["data"] == "dummy" and "--dummy" in arguments
    assert workload["tf32"] == (False if "--no-tf32" in arguments else None)
    assert [workload[name] for name in study.PLAIN] == list(study.PLAIN.values())
    command = body["environment"]["command"]
    if "--backend" in command:  # the harness itself has started it
        ours = study.train_command(case, Path(command[-1]))
        assert command[1:] == ours[1:]


def test_the_four_runs():
    assert [case.name for case in study.cases(256)] == NAMES


def test_the_ncu_command_is_the_studys():
    command = study.ncu_command("ncu", "GA100", Path("log.csv"), ["python", "train.py"])
    options, program = command[: command.index("python")], command[command.index("python") :]
    assert program == ["python", "train.py"]
    asked = options[options.index("--metrics") + 1].split(",")
    sass = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    # The eight of the study's own command line.
    eight = [
        *(sass.format(op) for op in ("fp16", "fadd", "fmul", "ffma")),
        *("dram__sectors_write.sum", "dram__bytes_write.sum.per_second"),
        *("dram__sectors_read.sum", "dram__bytes_read.sum.per_second"),
    ]
    # Besides, the duration: none of the eight is a time.
    assert sorted(asked) == sorted([*eight, "gpu__time_duration.sum"])
    for option, value in [
        ("--profile-from-start", "off"),
        ("--replay-mode", "application"),
        ("--target-processes", "all"),
        ("--page", "raw"),
        ("--print-units", "base"),
        ("--clock-control", "none"),
        ("--log-file", "log.csv"),
    ]:
        assert options[options.index(option) + 1] == value
    assert "--csv" in options


def test_sector_metrics_take_the_names_of_the_chip():
    command = study.ncu_command("ncu", "GB202", Path("x.csv"), ["python"])
    asked = command[command.index("--metrics") + 1].split(",")
    assert [name for name in asked if name.startswith("dram")] == [
        "dram__sectors_op_read.sum",
        "dram__sectors_op_write.sum",
        "dram__bytes_op_read.sum.per_second",
        "dram__bytes_op_write.sum.per_second",
    ]


# -- ncu's part, with a program that writes what ncu writes -------------------------------

# Two launches: fadd 1000 and 2000, fmul 3000, ffma 40000, so 6000 + 2 * 40000 = 86000 FLOP;
# sectors 150 + 300 of 32 bytes: 14400; 1000.5 + 1999.5 ns. Rates, whose own bytes are others, are
# in no figure: 3e9 byte/s for 1000.5 ns would be 3000 bytes read, where 100 sectors are 3200.
HEADER = (
    "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC"
)
LOG = f"""==PROF== Connected to process 8 (/usr/bin/python3.12)
{HEADER},dram__bytes_read.sum.per_second,dram__bytes_write.sum.per_second,dram__sectors_read.sum,\
dram__sectors_write.sum,gpu__time_duration.sum,\
smsp__sass_thread_inst_executed_op_fadd_pred_on.sum,\
smsp__sass_thread_inst_executed_op_ffma_pred_on.sum,\
smsp__sass_thread_inst_executed_op_fmul_pred_on.sum,\
smsp__sass_thread_inst_executed_op_fp16_pred_on.sum
,,,,,,,,,,,byte/second,byte/second,sector,sector,ns,inst,inst,inst,inst
0,8,python3,127.0.0.1,gemm,1,7,"(256, 1, 1)","(64, 1, 1)",0,9.0,3e9,2e9,100,50,"1,000.5",\
"1,000","40,000","3,000",7
1,8,python3,127.0.0.1,add,1,7,"(256, 1, 1)","(64, 1, 1)",0,9.0,3e9,2e9,200,100,"1,999.5",\
"2,000",0,0,0
"""


@pytest.fixture
def ncu(tmp_path_factory, monkeypatch):
    """Puts a program called ncu on the PATH; returns what sets its text and exit code."""
    folder = tmp_path_factory.mktemp("bin")

    def become(text, code=0):
        (folder / "log").write_text(text)
        program = folder / "ncu"
        program.write_text(
            f'#!/bin/sh\n[ {code} = 0 ] && cp "{folder}/log" "$3"\n'
            f'echo "==ERROR== the last word"\nexit {code}\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return become


def test_ncu_gives_a_row_beside_ours(out, ncu, capsys):
    ncu(LOG)
    assert study.main([str(out)]) == 0
    row = rows_of(out, "ncu")["resnet18-b256"]
    assert (row.study_flop, row.dram_byte) == (86_000, 14_400)
    assert row.study_intensity == pytest.approx(86_000 / 14_400)
    assert row.study_flop_per_s == pytest.approx(86_000 / 3e-6)
    assert row.wall > 0
    assert row.flop is None
    assert row.reasons["flop"] == "the study's metrics do not count tensor cores"
    assert gzip.decompress((out / row.run / "ncu.csv.gz").read_bytes()).decode() == LOG
    assert not list(out.rglob("*.csv"))
    line = study.read(out).traffic[0]  # sectors of 32 bytes: 300 read, 150 written
    assert (line.run, line.read, line.write) == (row.run, 48_332_573_696, 31_385_917_696)
    assert (line.flushed_read, line.flushed_write, line.unflushed) == (9_600, 4_800, None)
    found = [(row.run, row.source) for row in study.read(out).rows]
    assert found == [(name, source) for name in NAMES for source in ("cupti", "ncu")]
    command = (out / "alexnet-b256" / "ncu.txt").read_text().splitlines()[0]
    assert "--replay-mode application" in command
    assert command.endswith("/") is False and "-a alexnet -b 256 --dummy" in command


def test_ncu_writes_numbers_without_the_users_locale(tmp_path, monkeypatch):
    """ncu marks decimals as the locale does: 1.999,5 in de_DE."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    output = tmp_path / "ncu.txt"
    assert study._process(["/bin/sh", "-c", 'echo "LC_ALL=$LC_ALL"'], output) is not None
    assert output.read_text().splitlines()[1:] == ["LC_ALL=C"]


def test_a_part_that_fails_costs_only_itself_and_is_tried_again(out, ncu, capsys):
    ncu(LOG, code=9)
    assert study.main([str(out)]) == 1
    said = capsys.readouterr().err
    assert said.count("ncu failed: ==ERROR== the last word") == 4
    assert "Traceback" not in said
    assert [row.source for row in study.read(out).rows] == ["cupti"] * 4
    ncu("no log at all\n")
    assert study.main([str(out)]) == 1
    assert capsys.readouterr().err.count("ncu's log is of no use: ") == 4
    ncu(LOG)
    assert study.main([str(out)]) == 0
    ncu(LOG, code=9)  # not needed any more
    assert study.main([str(out)]) == 0


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"no gzip", lambda b: b""])
def test_a_damaged_log_costs_its_row_and_is_named(out, damage):
    log = out / NAMES[0] / "ncu.csv.gz"
    log.write_bytes(damage(gzip.compress(LOG.encode())))
    found = study.read(out)
    assert [row.source for row in found.rows] == ["cupti"] * 4
    (note,) = [note for note in found.notes if "ncu's log" in note]
    assert note.startswith(f"not in the table: {NAMES[0]}: ncu's log: {log}: ")
    assert "/tmp/tmp" not in note


def test_runs_without_ncu_are_named(out):
    assert [note for note in study.read(out).notes if note.startswith("no row of ncu")] == [
        "no row of ncu for `resnet18-b256`, `resnet18-b256-no-tf32`, `alexnet-b256`, "
        "`alexnet-b256-no-tf32`: it was not run, or not to its end"
    ]


def test_other_settings_stay_out_of_the_table(out):
    path = out / NAMES[0] / "run.json"
    body = json.loads(path.read_text())
    body["workload"] |= {"amp": "bf16", "channels_last": True}
    path.write_text(json.dumps(body))
    found = study.read(out)
    assert [row.run for row in found.rows] == NAMES[1:]
    assert (
        "not in the table: resnet18-b256: not the study's setting (amp bf16, channels_last True)"
        in found.notes
    )


def test_without_ncu_it_says_so_and_goes_on(out, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert study.main([str(out)]) == 0
    assert "ncu is not on the PATH, so its rows are left out" in capsys.readouterr().err
    assert study.main([str(out), "--no-ncu"]) == 0
    assert "PATH" not in capsys.readouterr().err


def test_without_a_gpu_there_is_a_sentence_and_no_model_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "MODELS", {"resnet18": "ResNet-18"})
    monkeypatch.setattr(study, "TF32", {"": ()})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert study.main([str(tmp_path), "--no-ncu"]) == 1
    assert "needs an NVIDIA GPU" in (tmp_path / "resnet18-b256" / "train.txt").read_text()
    assert not (tmp_path / "resnet18-b256" / "run.json").exists()


# -- Around it ----------------------------------------------------------------------------


def test_it_starts_without_torch():
    """--draw is for machines that have neither a GPU nor PyTorch's start-up time to spare."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'harness')!r}); import study; "
        "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("name", ["study.sh", "study.sbatch"])
def test_launch_files_are_valid_shell(name):
    path = ROOT / "harness/launch" / name
    assert subprocess.run(["bash", "-n", path]).returncode == 0
    assert "set -euo pipefail" in path.read_text()


# -- The committed results and the document -----------------------------------------------

ADD, MUL, FMA = (
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma")
)
DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")


def test_the_committed_table_is_what_the_runs_say(h200):
    """Fails after new results: python harness/study.py harness/results/h200 --draw."""
    assert (H200 / "study.md").read_text() == study.table(h200)
    assert (H200 / "study.json").read_text() == study.as_json(h200)
    drawn = (H200 / "study-b256.png").read_bytes()
    assert (ROOT / "docs/study/study-b256.png").read_bytes() == drawn


def test_the_table_has_the_studys_settings_only(h200):
    assert {row.run for row in h200.rows} >= {*NAMES, "verify-resnet18-b64", "verify-alexnet-b64"}
    assert not {row.run for row in h200.rows} & {
        *("resnet18-b256-bf16-cl", "resnet18-b256-compiled", "resnet50-b256", "vit_b_16-b128")
    }


@pytest.mark.parametrize("name", ["verify-resnet18-b64", "verify-alexnet-b64"])
def test_a_cross_check_gives_rows_and_traffic(h200, name):
    """Figures of ncu, added up here from the run file's own lines."""
    body = json.loads((H200 / name / "run.json").read_text())
    kernel, ranged = {}, {}
    for line in body["crosscheck"]["counters"]:
        (kernel if line["mode"].startswith("kernel") else ranged)[line["metric"]] = line["other"]
    ours, ncu = [row for row in h200.rows if row.run == name]
    assert (ours.source, ncu.source) == ("cupti", "ncu")
    assert ncu.study_flop == kernel[ADD] + kernel[MUL] + 2 * kernel[FMA]
    tensor = kernel["sm__ops_path_tensor_src_tf32_dst_fp32.sum"]
    assert ncu.flop == pytest.approx(ncu.study_flop + tensor, rel=1e-12)
    assert ncu.tensor_frac == pytest.approx(tensor / ncu.flop)
    assert ncu.dram_byte == sum(kernel[metric] for metric in DRAM)
    assert ncu.study_intensity == pytest.approx(ncu.study_flop / ncu.dram_byte)
    assert ncu.wall == body["crosscheck"]["duration"]["ncu, kernel replay"]
    assert ncu.study_flop_per_s is None
    assert ncu.reasons["study_flop_per_s"] == "a cross-check takes no times from ncu"
    (line,) = [line for line in h200.traffic if line.run == name]
    counted = body["rounds"][0]["counters"]
    assert (line.read, line.write) == tuple(counted[metric] for metric in DRAM)
    assert (line.flushed_read, line.flushed_write) == tuple(kernel[metric] for metric in DRAM)
    assert line.unflushed == sum(ranged[metric] for metric in DRAM)


def test_ncu_counts_the_same_flop_and_fewer_bytes(h200):
    """The study's command on the H200 beside ours: what the flush moves, and what it does not."""
    ncu = {row.run: row for row in h200.rows if row.source == "ncu"}
    beside = [(row, ncu[row.run]) for row in h200.rows if row.source == "cupti" and row.run in ncu]
    assert len(beside) >= 4
    for ours, theirs in beside:
        assert theirs.study_flop == pytest.approx(ours.study_flop, rel=1e-3)
        assert 0.85 < theirs.dram_byte / ours.dram_byte < 0.97
    for line in h200.traffic:
        assert line.flushed_read > line.read
        assert line.flushed_write < line.write
        assert line.unflushed is None or line.unflushed == pytest.approx(
            line.read + line.write, rel=0.02
        )


def test_kernels_fill_the_step(h200):
    """At batch 256 the GPU is never idle, so both rates agree; a lost kernel record parts them."""
    for row in h200.rows:
        if row.run in NAMES and row.source == "cupti":
            assert row.flop_per_s_kernel == pytest.approx(row.flop_per_s, rel=0.02)


def _document():
    """Rows of all tables of docs/study.md, as cells."""
    lines = (ROOT / "docs/study.md").read_text().splitlines()
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines if line[:1] == "|"]


def test_the_document_quotes_what_the_harness_finds(h200):
    """Intensities within 1%, TFLOP/s over kernel time within 2%: for each row of the harness."""
    quoted = {
        (model, tf32, batch, source): cells
        for model, gpu, tf32, batch, source, *cells in (r for r in _document() if len(r) == 9)
        if gpu == "H200"
    }
    wanted = [row for row in h200.rows if not row.run.endswith("-diverged")]
    assert len(quoted) == len(wanted)
    for row in wanted:
        cells = quoted[row.model, row.tf32, str(row.batch), row.source]
        values = [row.study_intensity, row.intensity, row.study_flop_per_s, row.flop_per_s_kernel]
        for cell, value, unit, rel in zip(
            cells, values, (1, 1, 1e12, 1e12), (0.01, 0.01, 0.02, 0.02), strict=True
        ):
            assert (cell == "") == (value is None)
            if value is not None:
                assert float(cell) == pytest.approx(value / unit, rel=rel)


def test_the_document_quotes_the_traffic(h200):
    """GB read, written, and by ncu with its flush, within 1%."""
    quoted = {tuple(r[:3]): r[3:] for r in _document() if len(r) == 8 and r[1].isdigit()}
    wanted = [line for line in h200.traffic if not line.run.endswith("-diverged")]
    assert len(quoted) == len(wanted)
    for line in wanted:
        *gigabytes, change = quoted[line.model, str(line.batch), line.tf32]
        counted = [line.read, line.write, line.flushed_read, line.flushed_write]
        assert [float(cell) * 1e9 for cell in gigabytes] == pytest.approx(counted, rel=0.01)
        ratio = sum(counted[2:]) / sum(counted[:2])
        assert float(change.rstrip("%")) == pytest.approx(100 * (ratio - 1), abs=0.2)
