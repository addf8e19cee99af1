"""The cross-check, on ncu's real logs of an H200; and what it says when ncu does not work.

Where a fault is tested, a script stands in for ncu: it writes a real log, or fails in one way.
"""

import csv
import gzip
import os
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from roofprobe import crosscheck, ncu_run, refusals, verify
from roofprobe.cli import main
from roofprobe.counters import external
from roofprobe.errors import UsageError
from roofprobe.ncu_import import import_files
from roofprobe.record import CheckedCounter, CrossCheck, Measurement

RECORDED = Path(__file__).parents[1] / "data/ncu-alexnet-b64"
FADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    for packed in RECORDED.glob("*.gz"):
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


@pytest.fixture
def recorded() -> Measurement:
    return Measurement.load(RECORDED / "run.json")


@pytest.fixture
def ncu(tmp_path, logs):
    """Makes a stand-in for ncu from the body of its profiling run; ``log`` is its --log-file."""

    def make(body: str, chips: str = "gh100, tu102", version: str = "Version 2025.3.1.0") -> str:
        path = tmp_path / "bin" / "ncu"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f"#!{sys.executable}\n"
            + textwrap.dedent(
                f"""
                import os, pathlib, shutil, signal, sys, time
                if "--version" in sys.argv:
                    print("NVIDIA (R) Nsight Compute", "{version} (build 1)", sep="\\n")
                    sys.exit()
                if "--list-chips" in sys.argv:
                    print("{chips}")
                    sys.exit()
                log = pathlib.Path(sys.argv[sys.argv.index("--log-file") + 1])
                mode = sys.argv[sys.argv.index("--replay-mode") + 1]
                real = pathlib.Path("{logs}") / {{"kernel": "kernel-replay.csv",
                    "app-range": "application-range-replay.csv"}}[mode]
                print("the program speaks", flush=True)
                """
            )
            + textwrap.dedent(body)
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def check(record: Measurement, ncu: str, **options) -> CrossCheck:
    return verify.cross_check(record, ["python", "t.py"], ncu_run.find_ncu(ncu), **options)


# -- Real logs ----------------------------------------------------------------------------


def test_recorded_logs_give_the_table_that_the_machine_gave(recorded, ncu):
    found = check(recorded, ncu("shutil.copy(real, log)"))
    there = recorded.crosscheck
    assert [replace(row, reason=None) for row in found.counters] == [
        replace(row, reason=None) for row in there.counters
    ]
    assert found.tool == there.tool == "ncu 2025.3.1.0"
    assert not found.agrees


def test_values_of_the_table(recorded):
    rows = {(row.metric, row.mode): row for row in recorded.crosscheck.counters}
    # The same step to the digit on both sides; ncu's sum here by a reader of its own.
    tensor = rows[TF32, "kernel replay"]
    log = gzip.decompress((RECORDED / "kernel-replay.csv.gz").read_bytes()).decode()
    heads, _, *launches = csv.reader(line for line in log.splitlines() if line.startswith('"'))
    assert len(launches) == 140
    column = heads.index(TF32)
    assert tensor.other == sum(float(launch[column]) for launch in launches)
    assert tensor.roofprobe == tensor.other
    assert (tensor.ratio, tensor.agrees, tensor.tolerance) == (1.0, True, 1e-3)
    # Data-dependent: the loss was NaN in one of the two (harness/results/README).
    fadd = rows[FADD, "kernel replay"]
    assert not fadd.agrees
    assert fadd.ratio == pytest.approx(7.1229e7 / 6.88697e7, rel=1e-4)
    # Natural caches: within a percent; flushed caches: read more, written back less.
    natural = rows["dram__bytes_read.sum", "application-range replay"]
    flushed = rows["dram__bytes_read.sum", "kernel replay, caches flushed"]
    assert natural.agrees
    assert natural.ratio == pytest.approx(1, abs=0.01)
    assert flushed.agrees is None
    assert flushed.tolerance is None
    assert flushed.other > 1.15 * flushed.roofprobe
    written = rows["dram__bytes_write.sum", "kernel replay, caches flushed"]
    assert written.other < 0.6 * written.roofprobe
    assert sum(row.agrees is True for row in recorded.crosscheck.counters) == 18


def test_ncu_is_asked_for_the_right_thing(recorded, ncu, tmp_path):
    seen = tmp_path / "seen"
    check(
        recorded,
        ncu(
            f"""
            with open("{seen}", "a") as out:
                print(os.environ["{external.ENVIRONMENT}"], os.environ["LC_ALL"], *sys.argv[1:],
                      file=out)
            shutil.copy(real, log)
            """
        ),
    )
    kernel, ranges = seen.read_text().splitlines()
    for line in (kernel, ranges):
        assert line.startswith("ncu C ")
        assert line.endswith(" python t.py")
        assert "--clock-control none" in line
        assert "--print-units base" in line
    assert "--replay-mode kernel --profile-from-start off" in kernel
    assert "--cache-control" not in kernel  # ncu's default, which flushes
    assert TF32 in kernel
    assert FFMA in kernel
    assert "--replay-mode app-range --cache-control none" in ranges
    # Range replay refuses these two.
    assert "__sass_" not in ranges
    assert "--profile-from-start" not in ranges


def test_nccl_kernels_alone_are_filtered_out():
    import re

    pattern = ncu_run.NOT_NCCL.removeprefix("regex:")
    for name in ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_Broadcast"):
        assert not re.search(pattern, name)
    kept = ("nchwToNhwcKernel", "gemm", "ncc_like", "elementwise_kernel", "myncclKernel")
    for name in (*kept, "n", "nc", "ncc", "x", "n_x", "nc_x", "ncc_x"):
        assert re.search(pattern, name)
        assert re.fullmatch(pattern, name)


def test_several_processes_are_averaged(recorded, logs):
    imported = import_files([logs / "kernel-replay.csv"])
    two = replace(
        imported,
        processes=(1, 2),
        counters={name: 2 * value for name, value in imported.counters.items()},
    )
    run = verify._runs(recorded)[0]
    assert verify._compared(recorded, run, two, None) == verify._compared(
        recorded, run, imported, None
    )


def test_a_bracket_of_several_steps_is_named(recorded, logs):
    imported = import_files([logs / "kernel-replay.csv"])
    many = {name: 10 * value for name, value in imported.counters.items()}
    run = verify._runs(recorded)[0]
    # fadd is off for a reason of its own here, so that it is left out of this one.
    rows = [
        row
        for row in verify._compared(recorded, run, replace(imported, counters=many), None)
        if row.metric != FADD
    ]
    named = verify._multiples_named(rows)
    tensor = next(row for row in named if row.metric == TF32)
    assert not tensor.agrees
    assert "brackets 10 steps" in tensor.reason
    assert all("brackets" not in (row.reason or "") for row in named if row.agrees)


def test_words(recorded):
    text = crosscheck.text(recorded.crosscheck)
    assert "kernel replay, caches flushed" in text
    assert "nccl kernels: they wait for other processes" in text
    assert "price: roofprobe, beyond the steps" in text
    assert text.endswith("agrees on 18 of 19 counters; it does not on sass fadd.\n")
    line = next(line for line in text.splitlines() if "sass fadd" in line)
    assert "1.03426" in line
    assert "DIFFERS" in line


@pytest.mark.parametrize(
    ("ours", "other", "ratio"),
    [(0.0, 0.0, 1.0), (3.0, 2.0, 1.5), (3.0, 0.0, None), (None, 1.0, None), (1.0, None, None)],
)
def test_ratio(ours, other, ratio):
    assert CheckedCounter("m", ours, other, "", 0.1, None).ratio == ratio


def test_nothing_judged_is_no_agreement():
    row = CheckedCounter("m", 1.0, 1.0, "", None, None)
    assert not CrossCheck("ncu", "", (), (row,), {}).agrees
    assert CrossCheck("ncu", "", (), (row, replace(row, agrees=True)), {}).agrees


# -- The verb -----------------------------------------------------------------------------


def run_verb(record: Measurement, path: Path, ncu: str, *options: str) -> int:
    replace(record, crosscheck=None).save(path)
    return main(["verify", str(path), "--ncu", ncu, *options, "--", "python", "t.py", "--b", "4"])


def test_the_comparison_becomes_part_of_the_run_file(recorded, ncu, tmp_path, capsys):
    path = tmp_path / "run.json"
    assert run_verb(recorded, path, ncu("shutil.copy(real, log)")) == 3
    added = Measurement.load(path)
    assert added.crosscheck.command == ("python", "t.py", "--b", "4")
    assert added.crosscheck.counters == recorded.crosscheck.counters
    assert replace(added, crosscheck=None) == replace(recorded, crosscheck=None)
    assert "added to" in capsys.readouterr().out


def test_agreement_is_exit_code_0(recorded, ncu, tmp_path, logs):
    counters = dict(recorded.rounds[0].counters)
    counters[FADD] = import_files([logs / "kernel-replay.csv"]).counters[FADD]
    same = replace(recorded, rounds=(replace(recorded.rounds[0], counters=counters),))
    assert run_verb(same, tmp_path / "run.json", ncu("shutil.copy(real, log)")) == 0


def test_logs_are_kept_where_asked(recorded, ncu, tmp_path):
    run_verb(recorded, tmp_path / "run.json", ncu("shutil.copy(real, log)"), "--logs", "kept")
    kept = Path("kept")
    try:
        assert sorted(path.name for path in kept.iterdir()) == [
            "application-range-replay.csv",
            "application-range-replay.out",
            "kernel-replay.csv",
            "kernel-replay.out",
        ]
        assert (kept / "kernel-replay.out").read_text() == "the program speaks\n"
    finally:
        for path in kept.iterdir():
            path.unlink()
        kept.rmdir()


def test_a_command_is_needed(recorded, tmp_path, capsys):
    recorded.save(tmp_path / "run.json")
    assert main(["verify", str(tmp_path / "run.json")]) == 2
    assert "needs the command" in capsys.readouterr().err


# -- Faults -------------------------------------------------------------------------------


def test_no_ncu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(ncu_run, "_candidates", lambda given: ["ncu"])
    with pytest.raises(UsageError, match="not on PATH"):
        ncu_run.find_ncu()


def test_something_else_called_ncu(tmp_path, ncu):
    with pytest.raises(UsageError, match="does not answer as Nsight Compute"):
        ncu_run.find_ncu(ncu("", version="netcat"))
    with pytest.raises(UsageError, match="is not a program"):
        ncu_run.find_ncu(str(tmp_path / "none"))


def test_an_ncu_that_does_not_know_the_chip(recorded, ncu):
    with pytest.raises(UsageError, match="does not know chip GH100"):
        check(recorded, ncu("", chips="tu102, ga100"))


def test_a_model_is_not_compared(recorded, ncu):
    with pytest.raises(UsageError, match="its source is analytic"):
        check(replace(recorded, source="analytic"), ncu(""))
    with pytest.raises(UsageError, match="no complete round"):
        check(replace(recorded, rounds=()), ncu(""))


def test_a_record_that_cannot_be_compared_is_refused_before_ncu_is_asked_for(
    recorded, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(ncu_run, "_candidates", lambda given: [])
    path = replace(recorded, source="analytic").save(tmp_path / "run.json")
    assert main(["verify", str(path), "--", "python", "t.py"]) == 2
    assert "its source is analytic" in capsys.readouterr().err


DENIED = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (f"log.write_text('{DENIED}'); sys.exit(1)", "the driver lets only administrators read"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by signal SIGKILL (out of memory?)"),
        ("sys.exit(137)", "was killed by signal SIGKILL"),
        ("pass", "ended without an error and wrote nothing"),
        (
            "print('boom'); sys.exit(5)",
            "the program under ncu ended with status 5; the program's last line: boom",
        ),
        (
            "log.write_text('==ERROR== Unknown option'); sys.exit(1)",
            "ncu ended with status 1; ncu said: Unknown option; the program's last line: the "
            "program speaks",
        ),
        (
            "log.write_text('==PROF== Connected\\n==WARNING== No kernels were profiled.\\n')",
            "no kernels were profiled",
        ),
    ],
    ids=["refused", "killed", "killed by a shell", "empty", "program", "option", "no kernels"],
)
def test_a_fault_is_one_sentence_and_costs_nothing(recorded, ncu, tmp_path, capsys, body, sentence):
    path = tmp_path / "run.json"
    assert run_verb(recorded, path, ncu(body)) == 3
    kept = Measurement.load(path)
    assert kept.rounds == recorded.rounds
    assert not kept.crosscheck.agrees
    judged = [row for row in kept.crosscheck.counters if row.tolerance is not None]
    assert all(row.other is None and row.agrees is False for row in judged)
    assert all(sentence in row.reason for row in kept.crosscheck.counters)
    printed = capsys.readouterr().out
    assert " ".join(sentence.split()) in " ".join(printed.split())
    assert "Traceback" not in printed


@pytest.mark.parametrize(("wsl", "fix"), [(False, "NVreg_Restrict"), (True, "under Linux itself")])
def test_a_refusal_under_wsl_is_the_platforms(recorded, ncu, monkeypatch, wsl, fix):
    monkeypatch.setattr(refusals, "under_wsl", lambda: wsl)
    reason = check(recorded, ncu(f"log.write_text('{DENIED}'); sys.exit(1)")).counters[0].reason
    assert reason.startswith("ncu ended with status 1; ncu said: ERR_NVGPUCTRPERM")
    assert fix in reason
    assert ("NVreg" in reason) is not wsl


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Profiling failed because a driver resource was unavailable.", "stop the other profiler"),
        ("Profiling is not supported on Windows Subsystem for Linux", "under Linux itself"),
        ("Failed to open lock file /tmp/nsight-compute-lock.", "until the other ncu has ended"),
        ("Cuda driver is not compatible with Nsight Compute", "update the driver"),
        ("Failed to find metric foo__bar.sum", "ncu --query-metrics"),
    ],
    ids=["busy", "WSL", "lock file", "old driver", "metric"],
)
@pytest.mark.parametrize("file", ["log", "output"])
def test_what_ncu_said_comes_with_its_remedy(recorded, ncu, said, fix, file):
    line = f"==ERROR== {said}"
    body = {"log": f"log.write_text({line!r}); ", "output": f"print({line!r}); "}[file]
    reason = check(recorded, ncu(body + "sys.exit(1)")).counters[0].reason
    assert "last line: ==" not in reason  # what ncu says is not the program's
    assert reason.startswith(f"ncu ended with status 1; ncu said: {said.rstrip('.')}; ")
    assert fix in reason


def test_a_program_that_fails_is_heard(recorded, ncu):
    ended = "==ERROR== The application returned an error code (1)."
    body = f"log.write_text({ended!r}); print('RuntimeError: no data'); sys.exit(1)"
    reason = check(recorded, ncu(body)).counters[0].reason
    assert "the program failed: see what it printed" in reason
    assert reason.endswith("; the program's last line: RuntimeError: no data")


@pytest.mark.parametrize(
    ("kernels", "named"), [("a", "a"), ("abc", "a, b, c"), ("abcde", "a, b, c and 2 more")]
)
def test_kernels_that_failed_without_a_word_are_named(recorded, ncu, kernels, named):
    text = "\n".join(f'==ERROR== Failed to profile "{kernel}" in process 7' for kernel in kernels)
    reason = check(recorded, ncu(f"log.write_text({text!r}); sys.exit(1)")).counters[0].reason
    assert reason.startswith(f"ncu ended with status 1; failed: {named}; run ncu again with one")


def test_a_killed_run_tells_the_signal_and_what_ncu_said(recorded, ncu):
    body = "log.write_text('==ERROR== LaunchFailed'); os.kill(os.getpid(), signal.SIGKILL)"
    reason = check(recorded, ncu(body)).counters[0].reason
    assert reason.startswith("ncu or the program under it was killed by signal SIGKILL")
    assert "; ncu said: LaunchFailed; find out whether the program runs without ncu" in reason


def test_one_failed_run_leaves_the_other(recorded, ncu):
    found = check(recorded, ncu("sys.exit(9) if mode == 'app-range' else shutil.copy(real, log)"))
    rows = {(row.metric, row.mode): row for row in found.counters}
    assert rows[TF32, "kernel replay"].agrees
    assert rows["lts__t_bytes.sum", "application-range replay"].other is None


def test_a_hang_is_ended_with_everything_that_it_started(recorded, ncu, tmp_path):
    mark = tmp_path / "child"
    body = f"""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        pathlib.Path("{mark}").write_text(str(child))
    time.sleep(600)
    """
    started = time.monotonic()
    found = check(recorded, ncu(body), stall=1.0)
    assert time.monotonic() - started < 60
    assert "printed nothing for 1 s" in found.counters[0].reason
    child = int(mark.read_text())
    for _ in range(50):
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True
        ).stdout.strip()
        if not state or state.startswith("Z"):
            break
        time.sleep(0.1)
    assert not state or state.startswith("Z"), state


def test_a_program_that_speaks_is_not_stopped(recorded, ncu):
    body = """
    for _ in range(8):
        print(".", flush=True)
        time.sleep(0.3)
    shutil.copy(real, log)
    """
    assert check(recorded, ncu(body), stall=1.5).counters[2].agrees


# -- The program's side -------------------------------------------------------------------


def test_a_verified_program_marks_one_step_and_ends(monkeypatch, tmp_path):
    script = """
    import torch
    calls = []
    torch.cuda.profiler.start = lambda: calls.append("start")
    torch.cuda.profiler.stop = lambda: calls.append("stop")
    import roofprobe
    from roofprobe.counters.external import ExternalBackend
    def step():
        calls.append("step")
    try:
        roofprobe.measure_step(
            step, warmup=1, timed=2, device="cpu", backend=ExternalBackend(lambda: None)
        )
        calls.append("went on")
    finally:
        print(*calls)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, external.ENVIRONMENT: external.SOURCE},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["step", "step", "step", "start", "step", "stop"]


def test_only_verify_makes_it_so(monkeypatch):
    monkeypatch.delenv(external.ENVIRONMENT, raising=False)
    assert not external.requested()
    monkeypatch.setenv(external.ENVIRONMENT, external.SOURCE)
    assert external.requested()
