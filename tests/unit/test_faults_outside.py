"""Faults from outside a measurement: forked children, SIGTERM, full disks, clocks, MPS, files."""

import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import roofprobe
from roofprobe import ceilings, refusals, report, train
from roofprobe.activity import KernelTracer, Span, impossible
from roofprobe.ceilings import cache
from roofprobe.counters import Plan
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.counters.cupti import CuptiBackend
from roofprobe.errors import RecordError, RoofprobeError, SharedDeviceError, UsageError
from roofprobe.imagenet import Output, Trainer
from roofprobe.record import Kernel, KernelUse, Measurement, Timing
from roofprobe.timing import WallStepTimer, implausible

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests/data/runs/resnet18-b4/run.json"
QUICK = {"device": "cpu", "warmup": 1, "timed": 2}
STEPS = 1 + 2 + 1  # warm-up, timed, and one pass of the analytic backend
SMALL = [
    "--dummy", "-a", "squeezenet1_1", "-b", "2", "-j", "0", "--lr", "0.001",
    "--backend", "analytic",
]  # fmt: skip


def work() -> None:
    torch.ones(2, 3) @ torch.ones(3, 4)  # 2*2*3*4 = 48 FLOP


def run(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A program of its own: some faults end one."""
    options = {"capture_output": True, "text": True, "timeout": 120, **options}
    # From Python 3.12 on, a fork beside threads is warned about.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)]
    return subprocess.run(command, check=False, **options)


# -- Forked children ------------------------------------------------------------------------

FORK = """
import os, sys, time, torch, roofprobe
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.errors import UsageError

closed_by = []

class Backend(AnalyticBackend):
    def prepare(self, metrics):
        time.sleep(0.5)  # the first step forks before this is done
        return super().prepare(metrics)

    def close(self):
        os.write(2, b"" if os.getpid() == parent else b"the child closed the parent's session")
        super().close()

def step():
    torch.ones(2, 3) @ torch.ones(3, 4)

parent = os.getpid()
with roofprobe.measure(warmup=1, timed=2, device="cpu", backend=Backend()) as probe:
    for index in range(4):
        with probe.step():
            step()
            if index == {at}:
                child = os.fork()
                if child == 0:
                    {child}
if os.getpid() != parent:
    assert probe.done
    try:
        probe.result
    except UsageError as error:
        print(error)
    record = roofprobe.measure_step(step, warmup=1, timed=2, device="cpu")
    sys.exit(0 if roofprobe.figures(record).flop_total.value == 48 else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, probe.result.complete, roofprobe.figures(probe.result).flop_total.value)
"""


@pytest.mark.parametrize("at", [0, 1, 3], ids=["while preparing", "while timing", "in a pass"])
@pytest.mark.parametrize(
    ("child", "status"),
    [("sys.exit(5)", 5), ("raise SystemExit", 0), ("os._exit(6)", 6)],
    ids=["sys.exit", "bare exit", "os._exit"],
)
def test_a_forked_child_neither_hangs_nor_closes_what_is_the_parents(at, child, status):
    ended = run(FORK.format(at=at, child=child))
    assert ended.stderr == ""
    assert ended.stdout == f"{status} True 48.0\n"
    assert ended.returncode == 0


@pytest.mark.parametrize("at", [0, 3], ids=["while preparing", "in a pass"])
def test_a_forked_child_that_goes_on_runs_unmeasured_and_may_measure_for_itself(at):
    ended = run(FORK.format(at=at, child="pass"))
    assert ended.stderr == ""
    said, result = ended.stdout.splitlines()
    assert "runs in the process that this one was forked from" in said
    assert result == "0 True 48.0"


class Images(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        torch.ones(64, 64) @ torch.ones(64, 64)  # a loader's work, which is not the step's
        return torch.ones(3)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("inside", [False, True], ids=["around the steps", "in every step"])
def test_forked_loader_processes_are_not_counted(inside):
    loader = DataLoader(Images(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    with roofprobe.measure(**QUICK) as probe:
        if inside:
            for _ in probe.steps(range(STEPS)):
                next(iter(loader))
                work()
        else:
            for _ in probe.steps(loader):
                work()
    assert probe.result.complete
    assert roofprobe.figures(probe.result).flop_total.value == 48


def test_a_fork_beside_an_open_session_is_warned_of():
    """Before counting there is nothing that a child could hang on."""

    def record(at):
        with roofprobe.measure(**QUICK) as probe:
            for index in probe.steps(range(STEPS)):
                if index == at:
                    child = os.fork()
                    if child == 0:
                        os._exit(0)
                    os.waitpid(child, 0)
                work()
        return probe.result

    warned = [
        any("forked while counters were attached" in text for text in record(at).warnings)
        for at in range(STEPS)
    ]
    assert warned == [False, False, False, True]


# -- SIGTERM and SIGHUP ---------------------------------------------------------------------


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Has the process signal itself in a step, counted from 0."""

    def arrange(number: int, at: int) -> None:
        steps = iter(range(9))
        step = Trainer.step

        def signalling(self: Trainer, images: Tensor, targets: Tensor) -> Output:
            if next(steps) == at:
                os.kill(os.getpid(), number)
            return step(self, images, targets)

        monkeypatch.setattr(Trainer, "step", signalling)

    return arrange


@pytest.mark.parametrize(
    ("at", "kept"), [(0, False), (1, False), (3, True)], ids=["warm-up", "timing", "pass"]
)
def test_sigterm_saves_what_was_measured_and_ends_with_143(at, kept, tmp_path, capsys, signalled):
    signalled(signal.SIGTERM, at)
    before = signal.getsignal(signal.SIGTERM)
    assert train.main([*SMALL, "--out", str(tmp_path)]) == 143
    assert signal.getsignal(signal.SIGTERM) is before
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "roofprobe.train: ended by SIGTERM"
    path = tmp_path / "run.json"
    assert path.exists() == kept
    nothing = "nothing is kept: the run ended before anything was measured"
    outcome = f"what had been measured is in {path}" if kept else nothing
    assert said[-2] == f"roofprobe.train: {outcome}"
    if kept:
        record = Measurement.load(path)
        assert not record.complete
        assert record.timing is not None


def test_sighup_does_what_sigterm_does_and_ends_with_129(tmp_path, capsys, signalled):
    signalled(signal.SIGHUP, 3)
    assert train.main([*SMALL, "--out", str(tmp_path)]) == 129
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    assert capsys.readouterr().err.splitlines() == [
        f"roofprobe.train: what had been measured is in {tmp_path / 'run.json'}",
        "roofprobe.train: ended by SIGHUP",
    ]
    assert Measurement.load(tmp_path / "run.json").timing is not None


@pytest.mark.usefixtures("quick_report")
def test_sighup_stays_ignored_under_nohup(tmp_path, signalled):
    signalled(signal.SIGHUP, 3)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train.main([*SMALL, "--out", str(tmp_path)]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert Measurement.load(tmp_path / "run.json").complete


@pytest.mark.filterwarnings("ignore:.*use of forkpty:DeprecationWarning")
def test_a_closed_terminal_costs_no_record(tmp_path):
    """Then nothing can be printed any more either."""
    program = f"""
    import os, signal, sys
    from roofprobe import imagenet, train
    step, steps = imagenet.Trainer.step, iter(range(9))
    def stepped(*arguments):
        if next(steps) == 3:
            print("close", flush=True)
            signal.pause()
        return step(*arguments)
    imagenet.Trainer.step = stepped
    sys.exit(train.main([*{SMALL!r}, "--out", {str(tmp_path)!r}]))
    """
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", textwrap.dedent(program)])
    printed = b""
    while b"close" not in printed:
        printed += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 129
    assert Measurement.load(tmp_path / "run.json").timing is not None


def test_sigterm_ends_a_loader_process_that_was_forked_meanwhile():
    with train._Signals():
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        time.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 143


# -- Disks ----------------------------------------------------------------------------------


def test_a_full_disk_costs_the_run_file_and_not_the_table(tmp_path):
    out = tmp_path / "out"
    ended = run(
        f"""
        import resource, sys
        from roofprobe import ceilings, train
        ceilings.measure_cpu_roofs = lambda: ()
        import matplotlib.pyplot  # writes a cache of fonts of its own
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        sys.exit(train.main([*{SMALL!r}, "--out", {str(out)!r}, "--save-image"]))
        """
    )
    assert ended.returncode == 1
    assert "FLOP" in ended.stdout  # the table
    assert "no plot: could not write" in ended.stdout
    why = f"could not write {out}/run.json: File too large"
    assert ended.stderr == f"roofprobe.train: error: {why}\n"
    assert list(out.iterdir()) == []


def test_a_full_disk_after_an_interruption_is_said(tmp_path, capsys, monkeypatch):
    steps = iter(range(9))
    step = Trainer.step

    def interrupted(self: Trainer, images: Tensor, targets: Tensor) -> Output:
        if next(steps) == 3:
            raise KeyboardInterrupt
        return step(self, images, targets)

    def full(path: object, data: bytes) -> Path:
        raise RecordError(f"could not write {path}: No space left on device")

    monkeypatch.setattr(Trainer, "step", interrupted)
    monkeypatch.setattr("roofprobe.record.write_whole", full)
    assert train.main([*SMALL, "--out", str(tmp_path)]) == 130
    assert "what had been measured is lost: could not write" in capsys.readouterr().err


def test_a_folder_that_refuses_files_is_found_before_anything_is_measured(capsys):
    """To root, access rights say yes to everything; only trying tells."""
    started = time.monotonic()
    assert train.main([*SMALL, "--out", "/proc/self"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("roofprobe.train: error: --out /proc/self cannot be written to: ")
    assert message.count("\n") == 1
    assert time.monotonic() - started < 60


@pytest.mark.usefixtures("quick_report")
def test_an_output_folder_removed_while_training_is_made_again(tmp_path, monkeypatch):
    out = tmp_path / "out"
    step = Trainer.step

    def removing(self: Trainer, images: Tensor, targets: Tensor) -> Output:
        if out.exists():
            out.rmdir()
        return step(self, images, targets)

    monkeypatch.setattr(Trainer, "step", removing)
    assert train.main([*SMALL, "--out", str(out)]) == 0
    assert Measurement.load(out / "run.json").complete


@pytest.fixture
def quick_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the roofs and the plot."""
    monkeypatch.setattr(report, "save_plot", lambda record, path: path)
    monkeypatch.setattr(ceilings, "measure_cpu_roofs", lambda: ())


def test_a_table_that_does_not_fit_the_disk_is_one_sentence(tmp_path):
    record = Measurement.load(RUN).save(tmp_path / "run.json")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "roofprobe", "report", str(record)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == ("roofprobe: error: cannot write the output: No space left on device\n")


def test_progress_that_cannot_be_written_costs_no_measurement(tmp_path):
    code = f"""
    import sys
    from roofprobe import ceilings, report, train
    ceilings.measure_cpu_roofs = lambda: ()
    report.save_plot = lambda record, path: path
    sys.exit(train.main([*{SMALL!r}, "--out", {str(tmp_path)!r}]))
    """
    with Path("/dev/full").open("w") as full:
        ended = run(code, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 0, ended.stderr
    said = "standard output cannot be written to (No space left on device); the rest is here"
    assert ended.stderr.startswith(f"roofprobe.train: {said}\n=> squeezenet1_1")
    assert ended.stderr.count(said) == 1
    assert Measurement.load(tmp_path / "run.json").complete


def test_a_gpu_that_is_lost_while_the_region_is_left_costs_no_record(tmp_path, capsys, monkeypatch):
    def lost(self: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(train._Region, "_unbracket", lost)
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        train.main([*SMALL, "--out", str(tmp_path)])
    assert Measurement.load(tmp_path / "run.json").complete
    assert f"what had been measured is in {tmp_path / 'run.json'}" in capsys.readouterr().err


# -- Clocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((0.1, 0.2), None),
        ((0.1, 0.0), "timed at 0 s"),
        ((0.1, -0.2), "timed at -0.2 s"),
        ((0.1, float("nan")), "timed at nan s"),
        ((0.1, 1.8e10), "that clock jumps"),  # BUGS 13: a run time of 1.8e10 s
        ((0.2, 0.2), "2 steps were timed at 0.4 s in all, within 0.35 s of wall clock"),
        ((0.1, float("inf")), "that clock jumps"),
    ],
)
def test_step_times_lie_within_the_wall_clock(steps, why):
    found = implausible(Timing(steps, "cuda_events"), wall=0.35)
    assert (found is None) if why is None else (why in found)


def test_garbage_times_leave_the_counts_and_no_rates(monkeypatch):
    garbage = Timing((1.8e10, 1.8e10), "perf_counter")
    monkeypatch.setattr(WallStepTimer, "result", lambda self: garbage)
    record = roofprobe.measure_step(work, **QUICK)
    assert record.complete
    assert record.timing is None
    assert any("step times are left out" in warning for warning in record.warnings)
    found = roofprobe.figures(record)
    assert found.flop_total.value == 48
    assert found.flop_per_s.value is None
    assert "that clock jumps" in found.flop_per_s.reason
    assert "that clock jumps" in report.text(record)


@pytest.mark.parametrize(
    "span",
    [
        Span("kernel", 0, 0),  # CUPTI had no time stamps
        Span("kernel", 2000, 1000),
        Span("kernel", 1000, 1000 + 2_000_000),
    ],
    ids=["none", "backwards", "longer than the step"],
)
def test_garbage_time_stamps_of_kernels_are_refused(span):
    plain = Span("kernel", 1000, 3000)
    assert impossible([plain], ticks=1_000_000) == 0
    assert impossible([plain, span], ticks=1_000_000) == 1
    tracer = KernelTracer(lambda: None)
    tracer._impossible = 1
    with pytest.raises(RoofprobeError, match="CUPTI's time stamps are no times here"):
        tracer.result()


# -- Counters that are not this process' alone ------------------------------------------------


def test_mps_is_refused_before_cupti_is_asked(monkeypatch):
    monkeypatch.setattr(refusals, "under_mps", lambda: True)
    monkeypatch.delenv(refusals.MPS_ALLOWED, raising=False)
    with pytest.raises(SharedDeviceError, match=r"what all its clients do: .*ROOFPROBE_ALLOW"):
        CuptiBackend(0, lambda: None).prepare(["lts__t_bytes.sum"])


def test_the_server_of_mps_is_seen_by_its_name(tmp_path):
    for pid, name in ((1, "init"), (20, "python3")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    (tmp_path / "30").mkdir()  # has ended meanwhile
    assert not refusals.under_mps(tmp_path)
    (tmp_path / "40").mkdir()
    (tmp_path / "40/comm").write_text("nvidia-cuda-mps\n")  # the kernel cuts at 15 characters
    assert refusals.under_mps(tmp_path)


def test_counters_taken_under_mps_are_marked_as_shared():
    class Shared(AnalyticBackend):
        def prepare(self, metrics):
            plan = super().prepare(metrics)
            return Plan(plan.metrics, plan.passes, notes={"shared": refusals.MPS_SHARED})

    record = roofprobe.measure_step(work, backend=Shared(), **QUICK)
    assert record.notes["shared"] == refusals.MPS_SHARED
    assert refusals.MPS_SHARED in record.warnings
    assert Measurement.from_json(record.to_json()).notes["shared"].startswith("shared: ")


@pytest.mark.parametrize("device", ["xyz", -1, 3.5, "mps", "meta"])
def test_what_is_no_device_of_ours_is_one_sentence(device):
    with pytest.raises(UsageError, match="device"), roofprobe.measure(device=device):
        pass


# -- Files that somebody else wrote -----------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('"passes": NaN', "NaN is no finite number"),
        ('"passes": 1e999', "1e999 is no finite number"),
        ('"passes": ' + "9" * 5000, "99999999999999999999 is no finite number"),
        (r'"passes": "\ud800"', "half of a surrogate pair"),
        ('"passes": ' + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
    ids=["nan", "overflow", "digits", "surrogate", "deep"],
)
def test_json_that_only_python_reads_is_refused(change, words):
    text = RUN.read_text()
    assert '"passes": 7' in text
    with pytest.raises(RecordError, match=words):
        Measurement.from_json(text.replace('"passes": 7', change))


@pytest.mark.parametrize("steps", [(), (0.0,), (0.1, -0.1)])
def test_a_record_with_impossible_step_times_is_refused(steps):
    record = dataclasses.replace(Measurement.load(RUN), timing=Timing(steps, "cuda_events"))
    with pytest.raises(RecordError, match="a step takes time"):
        Measurement.from_json(record.to_json())


@pytest.mark.parametrize("value", [-1.0, 1e308])
def test_a_record_with_impossible_counts_is_refused(value):
    record = Measurement.load(RUN)
    counted = {**record.rounds[0].counters, "lts__t_bytes.sum": value}
    odd = dataclasses.replace(
        record, rounds=(dataclasses.replace(record.rounds[0], counters=counted),)
    )
    with pytest.raises(RecordError, match=r"rounds/0/counters/lts__t_bytes\.sum: .* is nothing"):
        Measurement.from_json(odd.to_json())


def test_a_record_whose_parts_do_not_fit_together_is_refused():
    model = torch.nn.Linear(2, 3)
    record = roofprobe.measure_step(
        lambda: model(torch.ones(4, 2)).sum().backward(), by="layer", model=model, **QUICK
    )
    assert Measurement.from_json(record.to_json()) == record
    assert record.regions is not None
    first, *others = record.regions.segments
    assert others

    def text(**changes: object) -> str:
        return dataclasses.replace(
            record, regions=dataclasses.replace(record.regions, **changes)
        ).to_json()

    odd = (first, *(dataclasses.replace(other, counters=()) for other in others))
    with pytest.raises(RecordError, match="in another number of rounds than the first"):
        Measurement.from_json(text(segments=odd))
    below = dataclasses.replace(first, counters=({"lts__t_bytes.sum": -1.0},))
    with pytest.raises(RecordError, match=r"segments/0/counters/0/.*can have been measured"):
        Measurement.from_json(text(segments=(below, *others)))
    kernel = Kernel("gemm", (KernelUse(len(others) + 1, 1.0, 1e-6),))
    with pytest.raises(RecordError, match="there is no segment"):
        Measurement.from_json(text(kernels=(kernel,)))


def test_ceilings_without_what_may_be_left_out_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    conditions = {"uuid": "GPU-0"}
    path = cache.path_of(conditions)
    path.parent.mkdir(parents=True)
    body = {"schema": "roofprobe.ceilings", "version": 1, "conditions": conditions}
    path.write_text(json.dumps({**body, "ceilings": {"roofs": []}}))
    found = cache.load(conditions)
    assert found is not None
    assert found.warnings == ()
