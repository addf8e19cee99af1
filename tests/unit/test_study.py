"""The study's harness: table and picture of the committed runs, commands, what a failure costs."""

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
H200 = ROOT / "harness/results/h200"
NAMES = ["resnet18-b256", "resnet18-b256-no-tf32", "alexnet-b256", "alexnet-b256-no-tf32"]
PUBLISHED = [
    ("ResNet-18", "V100", 23.5, 4.60e12),
    ("ResNet-18", "A100", 0.55, 0.12e12),
    ("AlexNet", "V100", 10.4, 3.54e12),
    ("AlexNet", "A100", 5.24, 1.78e12),
]


@pytest.fixture
def out(tmp_path):
    """The four committed runs, in a folder of its own; other runs in the results stay out."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        shutil.copy(H200 / name / "run.json", tmp_path / name)
    return tmp_path


def rows_of(folder, source="cupti"):
    return {row.run: row for row in study.read(folder).rows if row.source == source}


# Worked out by hand from the counters of the run files:
# ResNet-18: fadd 5211901726 + fmul 7141270184 + 2 * ffma 13507888477; + TF32 2766122516480;
# DRAM 48332573696 + 31385917696; kernels 0.04674053192138672 s; median step 0.0469789600 s.
# FLOP of this run are the same to the last digit whenever it is measured; bytes are not (0.1%).
def test_resnet18_is_as_worked_out_by_hand(out):
    row = rows_of(out)["resnet18-b256"]
    assert row.study_flop == 39_368_948_864
    assert row.flop == 2_805_491_465_344
    assert row.tensor_frac == pytest.approx(0.985967, abs=1e-6)
    assert row.dram_byte == pytest.approx(79_718_491_392, rel=3e-3)
    assert row.study_intensity == pytest.approx(0.493850, rel=3e-3)
    assert row.intensity == pytest.approx(35.19248, rel=3e-3)
    assert row.study_flop_per_s == pytest.approx(0.842287e12, rel=0.02)
    assert row.flop_per_s_kernel == pytest.approx(60.0227e12, rel=0.02)
    assert row.flop_per_s == pytest.approx(59.718e12, rel=0.02)


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
    shutil.copytree(H200 / "resnet18-b4", out / "resnet18-b4")
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
            *[(47.09, 28.62), (47.09, 28.62)],
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


def test_the_training_commands_are_those_of_the_committed_runs():
    """The four runs by their arguments, as the committed run files have them."""
    for case in study.cases(256):
        command = json.loads((H200 / case.name / "run.json").read_text())["environment"]["command"]
        options = [
            o for o in command[3:-2] if o != "--dummy"
        ]  # without python -m ... and --out DIR
        ours = [o for o in case.arguments if o not in ("--dummy", "-b", "256")]
        assert ours == options
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
    assert set(asked) - set(eight) == {"dram__bytes.sum", "gpu__time_duration.sum"}
    assert set(eight) <= set(asked)
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
    assert "dram__sectors_op_read.sum" in asked
    assert "dram__bytes_op_read.sum.per_second" in asked


# -- ncu's part, with a program that writes what ncu writes -------------------------------

# Two launches: fadd 1000 and 2000, fmul 3000, ffma 40000, so 6000 + 2 * 40000 = 86000 FLOP;
# sectors 150 + 300 of 32 bytes: 14400; 1000.5 + 1999.5 ns.
HEADER = (
    "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC"
)
LOG = f"""==PROF== Connected to process 8 (/usr/bin/python3.12)
{HEADER},dram__bytes.sum,dram__sectors_read.sum,dram__sectors_write.sum,gpu__time_duration.sum,\
smsp__sass_thread_inst_executed_op_fadd_pred_on.sum,\
smsp__sass_thread_inst_executed_op_ffma_pred_on.sum,\
smsp__sass_thread_inst_executed_op_fmul_pred_on.sum,\
smsp__sass_thread_inst_executed_op_fp16_pred_on.sum
,,,,,,,,,,,byte,sector,sector,ns,inst,inst,inst,inst
0,8,python3,127.0.0.1,gemm,1,7,"(256, 1, 1)","(64, 1, 1)",0,9.0,"4,800",100,50,"1,000.5",\
"1,000","40,000","3,000",7
1,8,python3,127.0.0.1,add,1,7,"(256, 1, 1)","(64, 1, 1)",0,9.0,"9,600",200,100,"1,999.5",\
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
    found = [(row.run, row.source) for row in study.read(out).rows]
    assert found == [(name, source) for name in NAMES for source in ("cupti", "ncu")]
    command = (out / "alexnet-b256" / "ncu.txt").read_text().splitlines()[0]
    assert "--replay-mode application" in command
    assert command.endswith("/") is False and "-a alexnet -b 256 --dummy" in command


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


def test_the_document_quotes_what_the_harness_finds(out):
    """Rows of docs/study.md at batch 256: intensities and TFLOP/s over kernel time."""
    lines = (ROOT / "docs/study.md").read_text().splitlines()
    for row in rows_of(out).values():
        start = f"| {row.model} | H200 | {row.tf32} | 256 |"
        (line,) = [line for line in lines if line.startswith(start)]
        quoted = [float(cell) for cell in line.removeprefix(start).strip("| ").split("|")]
        tera = [row.study_flop_per_s / 1e12, row.flop_per_s_kernel / 1e12]
        assert quoted[:2] == pytest.approx([row.study_intensity, row.intensity], rel=0.01)
        assert quoted[2:] == pytest.approx(tera, rel=0.02)
