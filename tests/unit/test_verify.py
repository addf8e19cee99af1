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
from roofprobe.errors import CountersBusyError, UsageError
from roofprobe.ncu_import import import_files
from roofprobe.record import CheckedCounter, CrossCheck, Measurement

RECORDED = Path(__file__).parents[1] / "data/ncu-alexnet-b64"
HARNESS = Path(__file__).parents[2] / "harness/results/h200"
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


# -- nccl ---------------------------------------------------------------------------------

# ncu's own count of the recorded step; and a gradient of 30.5e6 values, each added once.
NCU_FADD = 68_869_662
WRITTEN = "dram__bytes_write.sum"
ALL_REDUCE = 30_500_000


def counting(record: Measurement, workload: dict, **counters: float) -> Measurement:
    """The record with other counts and facts."""
    named = {"fadd": FADD, "tensor": TF32, "written": WRITTEN}
    changed = {named[key]: value for key, value in counters.items()}
    (round_,) = record.rounds
    facts = {key: value for key, value in record.workload.items() if key != "world_size"}
    return replace(
        record,
        rounds=(replace(round_, counters={**round_.counters, **changed}),),
        workload={**facts, **workload},
    )


def kernel_row(check: CrossCheck, metric: str) -> CheckedCounter:
    (row,) = [row for row in check.counters if row.metric == metric and row.mode == "kernel replay"]
    return row


def test_additions_that_nccl_explains_are_not_judged(recorded, ncu, tmp_path, capsys):
    ours = counting(recorded, {"world_size": 2}, fadd=NCU_FADD + ALL_REDUCE)
    path = tmp_path / "run.json"
    assert run_verb(ours, path, ncu("shutil.copy(real, log)")) == 0
    found = Measurement.load(path).crosscheck
    row = kernel_row(found, FADD)
    assert row.other == NCU_FADD
    assert row.agrees is None
    assert row.reason.startswith("nccl's own additions are in roofprobe's count and not in ncu's")
    assert kernel_row(found, FFMA).agrees
    assert "nccl kernels" in found.left_out
    printed = " ".join(capsys.readouterr().out.split())
    assert "sass fadd: nccl's own additions" in printed
    assert "agrees on all 18 counters that were judged" in printed


@pytest.mark.parametrize(
    ("workload", "counters"),
    [
        ({"world_size": 2}, {"fadd": NCU_FADD - 1_000_000}),
        ({"world_size": 2, "seed": 1}, {"fadd": NCU_FADD, "tensor": 1e13}),
        ({"world_size": 1}, {"fadd": NCU_FADD + ALL_REDUCE}),
    ],
    ids=["fewer than ncu", "tensor operations", "one rank"],
)
def test_what_nccl_does_not_explain_differs(recorded, ncu, workload, counters):
    ours = counting(recorded, workload, **counters)
    found = check(ours, ncu("shutil.copy(real, log)"))
    row = kernel_row(found, TF32 if "tensor" in counters else FADD)
    assert row.agrees is False
    assert "nccl" not in (row.reason or "")
    assert not found.agrees


@pytest.mark.parametrize(
    ("ranks", "factor", "agrees"),
    [(2, 1.3, None), (2, 1.01, True), (2, 0.9, False), (1, 1.3, False)],
)
def test_what_other_ranks_write_here_is_not_judged(recorded, ncu, ranks, factor, agrees):
    theirs = next(
        row.other for row in recorded.crosscheck.counters if row.metric == WRITTEN and row.agrees
    )
    ours = counting(recorded, {"world_size": ranks}, written=factor * theirs)
    found = check(ours, ncu("shutil.copy(real, log)"))
    (row,) = [row for row in found.counters if row.metric == WRITTEN and row.tolerance is not None]
    assert row.agrees is agrees
    assert ("other ranks write into this GPU's memory" in (row.reason or "")) is (agrees is None)


def test_where_nothing_tells_of_nccl_the_difference_stands_and_says_so(recorded, ncu):
    ours = counting(recorded, {}, fadd=NCU_FADD + ALL_REDUCE)
    row = kernel_row(check(ours, ncu("shutil.copy(real, log)")), FADD)
    assert row.agrees is False
    assert row.reason.startswith("if nccl ran in this step")
    assert "by='kernel'" in row.reason


def test_several_processes_in_ncus_log_are_ranks(recorded, logs):
    imported = import_files([logs / "kernel-replay.csv"])
    unknown = counting(recorded, {})
    assert verify._nccl_ran(unknown, None) is None
    assert verify._nccl_ran(unknown, imported) is None
    assert verify._nccl_ran(unknown, replace(imported, processes=(1, 2))) is True


@pytest.mark.parametrize(
    ("first", "agrees"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
        (None, False),
    ],
    ids=["nccl's is among them", "none is nccl's"],
)
def test_traced_kernels_tell_of_nccl_best(recorded, ncu, first, agrees):
    regions = Measurement.load(HARNESS / "resnet18-layers/run.json").regions
    if first is not None:
        kernels = (replace(regions.kernels[0], name=first), *regions.kernels[1:])
        regions = replace(regions, kernels=kernels)
    ours = counting(recorded, {"world_size": 2}, fadd=NCU_FADD + ALL_REDUCE)
    found = check(replace(ours, regions=regions), ncu("shutil.copy(real, log)"))
    assert kernel_row(found, FADD).agrees is agrees
    assert ("nccl kernels" in found.left_out) is (agrees is None)


def test_nccl_is_not_mentioned_to_one_process(recorded, ncu):
    found = check(recorded, ncu("shutil.copy(real, log)"))
    assert "nccl" not in crosscheck.text(found)


# -- Seeds --------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "told"), [(None, True), (0, False)])
def test_a_count_that_differs_without_a_seed_says_so(recorded, ncu, seed, told):
    ours = counting(recorded, {"world_size": 1, "seed": seed})
    found = check(ours, ncu("shutil.copy(real, log)"))
    row = kernel_row(found, FADD)
    assert row.agrees is False
    assert ("names no seed" in (row.reason or "")) is told
    others = [other.reason or "" for other in found.counters if other.metric != FADD]
    assert not any("seed" in reason for reason in others)


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
    for ours, there in zip(added.crosscheck.counters, recorded.crosscheck.counters, strict=True):
        # Recorded before a count that differs without a seed was explained.
        why = verify._NO_SEED if ours.agrees is False else there.reason
        assert ours == replace(there, reason=why)
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


def test_a_hang_is_ended_with_everything_that_it_started(recorded, ncu, tmp_path, monkeypatch):
    monkeypatch.setattr(ncu_run, "_PATIENCE", 1.0)
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


def test_a_hang_with_a_progress_bar_is_ended(recorded, ncu, monkeypatch):
    monkeypatch.setattr(ncu_run, "_LEAST_LIMIT", 3.0)
    monkeypatch.setattr(ncu_run, "_MARGIN", 0.0)
    body = """
    while True:
        print("50%", flush=True)
        time.sleep(0.2)
    """
    started = time.monotonic()
    found = check(recorded, ncu(body), stall=60.0)
    assert time.monotonic() - started < 50
    reason = found.counters[0].reason
    assert reason.startswith("ncu and the program were stopped after 3 s, far more than this run")
    assert reason.endswith("; the program's last line: 50%")


def test_the_limit_follows_from_the_work(recorded):
    """140 launches of 0.36 s and 2 x 10 steps of about 5 ms: 50.5 s."""
    assert verify.price(recorded) == pytest.approx(50.5, abs=0.05)
    assert ncu_run.limit(50.5) == 1800
    assert ncu_run.limit(100) == 2000
    ranks = replace(recorded, workload={"rank": 1, "world_size": 4})  # ncu profiles one of them
    assert verify.price(ranks) == verify.price(recorded)
    # Not traced: one launch in 2 us at most, which are 2500 in 5 ms.
    untraced = replace(recorded, kernels=None)
    launches = recorded.timing.median / 2e-6
    assert 2400 < launches < 2600
    assert verify.price(untraced) == pytest.approx(0.36 * launches + 0.1, abs=0.05)
    assert verify.price(replace(untraced, timing=None)) == 0


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


TWO_MEASUREMENTS = """
    import torch
    calls = []
    torch.cuda.profiler.start = lambda: calls.append("start")
    torch.cuda.profiler.stop = lambda: calls.append("stop")
    import roofprobe
    from roofprobe.counters.external import ExternalBackend
    try:
        for name in ("A", "B", "C"):
            result = roofprobe.measure_step(
                lambda: calls.append(name), name, warmup=1, timed=2, device="cpu",
                backend=ExternalBackend(lambda: None, name),
            )
            assert result.timing is None and not result.rounds
    finally:
        print(*calls)
"""


def test_measurements_of_other_names_are_plain_steps():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TWO_MEASUREMENTS)],
        capture_output=True,
        text=True,
        env={**os.environ, external.ENVIRONMENT: external.SOURCE, external.NAME: "B"},
    )
    assert done.returncode == 0, done.stderr
    calls = done.stdout.split()
    assert set(calls[: calls.index("B")]) <= {"A"}
    assert calls[calls.index("B") :] == ["B", "B", "B", "start", "B", "stop"]
    assert external.passed_by(done.stderr) == ["A"]


def test_measure_tells_the_name_and_what_was_passed_by_overwrites_nothing(recorded, tmp_path):
    """The same through ``backend="cupti"``, as a user's program has it."""
    script = textwrap.dedent(TWO_MEASUREMENTS).replace(
        "ExternalBackend(lambda: None, name)", '"cupti"'
    )
    script = script.replace("import roofprobe\n", "import roofprobe, sys\n", 1).replace(
        "assert result", "result.save(sys.argv[1] + name)\n        assert result"
    )
    script = "import torch\ntorch.cuda.synchronize = lambda *_: None\n" + script
    kept = recorded.save(f"{tmp_path}/A")
    done = subprocess.run(
        [sys.executable, "-c", script, f"{tmp_path}/"],
        capture_output=True,
        text=True,
        env={**os.environ, external.ENVIRONMENT: external.SOURCE, external.NAME: "B"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-6:] == ["B", "B", "B", "start", "B", "stop"]
    assert Measurement.load(kept) == recorded
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A"]


def test_a_name_that_never_comes_is_one_sentence(recorded, ncu, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(TWO_MEASUREMENTS))
    body = """
    import subprocess
    subprocess.run(sys.argv[sys.argv.index("--metrics") + 2 :], check=True)
    log.write_text("==PROF== Connected\\n==WARNING== No kernels were profiled.\\n")
    """
    found = verify.cross_check(
        recorded, [sys.executable, str(program)], ncu_run.find_ncu(ncu(body))
    )
    judged = [row for row in found.counters if row.tolerance is not None]
    assert all(row.agrees is False for row in judged)
    reason = (
        "the program measured 'A', 'B', 'C' and never 'alexnet batch 64', which the run file is "
        "of, so ncu counted nothing: give the command that was measured, with the same arguments"
    )
    assert {row.reason for row in found.counters} == {reason}


def test_the_records_name_goes_to_the_program(recorded, ncu, tmp_path, monkeypatch):
    monkeypatch.delenv(external.NAME, raising=False)
    seen = tmp_path / "seen"
    said = []
    body = f"""
    with open("{seen}", "a") as out:
        print(os.environ["{external.NAME}"], file=out)
    shutil.copy(real, log)
    """
    check(recorded, ncu(body), say=said.append)
    assert seen.read_text() == "alexnet batch 64\nalexnet batch 64\n"
    assert external.NAME not in os.environ
    assert "the first measurement of the program that is called 'alexnet batch 64'" in said[0]


@pytest.mark.parametrize("name", ["step", "größer\n= 2", "a\0b", "half \ud800"])
def test_any_name_comes_through_the_environment(recorded, monkeypatch, capsys, name):
    monkeypatch.setenv(external.NAME, "another")
    with external.only(replace(recorded, name=name)):
        assert os.environ[external.NAME].isascii()
        assert external.ExternalBackend(lambda: None, name).prepare([]).passes == 1
        with pytest.raises(CountersBusyError, match="is another one"):
            external.ExternalBackend(lambda: None, name + "!").prepare([])
    assert os.environ[external.NAME] == "another"
    assert len(external.passed_by(capsys.readouterr().err)) == 1


TWO_RANKS = """
    import os, sys
    import torch
    calls = []
    torch.cuda.profiler.start = lambda: calls.append("start")
    torch.cuda.profiler.stop = lambda: calls.append("stop")
    torch.cuda.synchronize = lambda *_: None
    import roofprobe
    rank = int(sys.argv[1])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2
    )
    one = torch.ones(1)
    def step():
        torch.distributed.all_reduce(one)
        calls.append("step")
    try:
        record = roofprobe.measure_step(
            step, warmup=1, timed=2, device="cpu", backend=sys.argv[3], workload={"seed": 5}
        )
        print(record.workload)
    finally:
        print(*calls)
"""


def in_two_ranks(tmp_path, backend: str, **environment: str) -> list[str]:
    """What each of two processes prints that do the same steps."""
    script, store = textwrap.dedent(TWO_RANKS), tmp_path / f"store-{len(environment)}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(store), backend],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        for rank in (0, 1)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return said


def test_one_rank_is_marked_and_the_others_do_the_same_steps(recorded, tmp_path):
    """ncu takes one process after the other: a range in each would wait for the other for ever."""
    for record, marked in (
        (recorded, 0),
        (replace(recorded, workload={"rank": 1, "world_size": 2}), 1),
    ):
        with external.only(record):
            asked = {name: os.environ[name] for name in (external.NAME, external.RANK)}
        asked[external.NAME] = "step"
        folder = tmp_path / str(marked)
        folder.mkdir()
        said = in_two_ranks(folder, "cupti", **{external.ENVIRONMENT: external.SOURCE}, **asked)
        assert said[marked].split() == ["step", "step", "step", "start", "step", "stop"]
        assert said[1 - marked].split() == ["step"] * 4
    assert external.RANK not in os.environ


def test_a_record_says_which_rank_it_is_of(tmp_path):
    said = in_two_ranks(tmp_path, "analytic")
    for rank, text in enumerate(said):
        assert text.startswith(str({"rank": rank, "world_size": 2, "seed": 5}))


def test_only_verify_makes_it_so(monkeypatch):
    monkeypatch.delenv(external.ENVIRONMENT, raising=False)
    assert not external.requested()
    monkeypatch.setenv(external.ENVIRONMENT, external.SOURCE)
    assert external.requested()
