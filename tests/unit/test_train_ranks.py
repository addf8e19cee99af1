"""Processes of one run whose measurements take different numbers of steps, on the CPU with gloo."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from roofprobe import imagenet, train
from roofprobe.errors import RoofprobeError
from roofprobe.record import Measurement

ERROR = "roofprobe.train: error:"

# ``{backend}`` is the backend of this process, ``{after}`` what it does behind each step, and
# ``{limit}`` for how many seconds it waits for the other.
PROGRAM = """
import datetime, os, sys, time
from torch import nn
from roofprobe import ceilings, imagenet, probe, report, train
from roofprobe.counters import Plan
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.errors import CountersBusyError

rank = int(os.environ["RANK"])
steps = 0

class Windowed(AnalyticBackend):
    "As NVML GPM: how many passes it takes is known when the last has run."
    run = 0
    def prepare(self, metrics):
        plan = super().prepare(metrics)
        return Plan(plan.metrics, 1, plan.unavailable, window=0.01)
    def end_pass(self):
        super().end_pass()
        self.run += 1
        return self.run == (3, 5)[rank]

class Busy(AnalyticBackend):
    def open(self):
        raise CountersBusyError("ncu is at work")

step = imagenet.Trainer.step
def stepped(*arguments):
    global steps
    steps += 1
    output = step(*arguments)
    {after}
    return output

imagenet.Trainer.step = stepped
imagenet.build_model = lambda arch, pretrained: nn.Sequential(
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1000)
)
if "--steps" in sys.argv:
    imagenet.Agreement.__init__ = None  # may not be asked
imagenet.AGREEMENT_LIMIT = datetime.timedelta(seconds={limit})
probe._backends = lambda *_: [{backend}]
ceilings.measure_cpu_roofs = lambda: ()
report.save_plot = lambda record, path: path
code = train.main(sys.argv[1:])
print("steps", steps)
sys.exit(code)
"""


def run_two(
    folder: Path,
    *,
    backend: str = "Windowed()",
    after: str = "pass",
    limit: int = 60,
    options: str = "",
) -> list[subprocess.CompletedProcess[str]]:
    """Both processes to their ends. They meet in a file, so that no port can be taken."""
    program = PROGRAM.format(backend=backend, after=after, limit=limit)
    command = [
        *(sys.executable, "-c", program, "--dummy", "-b", "4", "-j", "0", "--backend", "analytic"),
        *("--dist-url", f"file://{folder}/meet", "--out", str(folder / "out"), *options.split()),
    ]
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    running = []
    for rank in ("0", "1"):
        environment = {**os.environ, **place, "RANK": rank, "LOCAL_RANK": rank}
        running.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = []
    for process in running:
        out, err = process.communicate(timeout=120)
        ended.append(subprocess.CompletedProcess(command, process.returncode, out, err))
    return ended


def steps(ended: subprocess.CompletedProcess[str]) -> int:
    return int(ended.stdout.splitlines()[-1].removeprefix("steps "))


def record(folder: Path, rank: int) -> Measurement:
    return Measurement.load(folder / "out" / f"rank{rank}" / "run.json")


def test_all_processes_leave_after_the_last_has_measured(tmp_path: Path) -> None:
    first, second = run_two(tmp_path)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    # 1 warm-up, 2 timed, and 3 passes in one process, 5 in the other.
    assert (steps(first), steps(second)) == (8, 8)
    assert [record(tmp_path, rank).rounds[0].passes for rank in (0, 1)] == [3, 5]
    assert all(record(tmp_path, rank).complete for rank in (0, 1))


def test_a_refusal_in_one_process_leaves_the_other_its_measurement(tmp_path: Path) -> None:
    first, second = run_two(tmp_path, backend="Busy() if rank == 0 else Windowed()")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "training goes on without counters: ncu is at work" in first.stderr
    assert (steps(first), steps(second)) == (8, 8)
    assert record(tmp_path, 0).rounds == ()
    assert record(tmp_path, 1).complete


def test_a_fixed_number_of_steps_needs_no_agreement(tmp_path: Path) -> None:
    first, second = run_two(tmp_path, options="--steps 7")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert (steps(first), steps(second)) == (7, 7)
    assert record(tmp_path, 0).complete
    assert not record(tmp_path, 1).complete


@pytest.mark.parametrize(
    ("after", "limit", "why"),
    [
        (
            "if rank == 1 and steps == 7: os._exit(9)",
            60,
            "Connection .* by peer",
        ),  # closed, or reset
        ("if rank == 1 and steps == 7: time.sleep(15)", 5, "Timed out waiting 5000ms .*"),
    ],
    ids=["dies", "hangs"],
)
def test_a_process_that_is_left_says_so_and_keeps_its_record(
    after: str, limit: int, why: str, tmp_path: Path
) -> None:
    first, _ = run_two(tmp_path, after=after, limit=limit)
    assert first.returncode == 1
    kept, said = first.stderr.splitlines()
    assert kept.endswith(f"what had been measured is in {tmp_path}/out/rank0/run.json")
    sentence = (
        rf"{ERROR} another process of this run ended or did not answer in time \(.*{why}.*\): see "
        "what that one printed"
    )
    assert re.fullmatch(sentence, said)
    assert record(tmp_path, 0).complete


def test_a_process_alone_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: object) -> None:
        raise AssertionError("no other process is there")

    monkeypatch.setattr(imagenet.Agreement, "__init__", none)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1000))
    monkeypatch.setattr(imagenet, "build_model", lambda arch, pretrained: model)
    monkeypatch.setattr("roofprobe.ceilings.measure_cpu_roofs", lambda: ())
    arguments = ["--dummy", "-b", "2", "-j", "0", "--backend", "analytic", "--out", str(tmp_path)]
    assert train.main(arguments) == 0


def test_no_way_over_the_cpu_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**_: object) -> None:
        raise RuntimeError("Unable to resolve hostname to a (local) address")

    monkeypatch.setattr(torch.distributed, "new_group", unreachable)
    with pytest.raises(RoofprobeError, match=r"\(Unable .*\): name .* in GLOO_SOCKET_IFNAME"):
        imagenet.Agreement()


def test_a_wait_for_the_others_can_be_broken_off(tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM are Python's business, and so must not have to wait for gloo."""
    code = f"""
    import os, signal, sys, time, torch
    from roofprobe import imagenet
    rank = int(sys.argv[1])
    torch.distributed.init_process_group(
        "gloo", init_method="file://{tmp_path}/meet", rank=rank, world_size=2)
    agreement = imagenet.Agreement()
    if rank == 1:
        time.sleep(200)
    def alarm(number, frame):
        print("heard", flush=True)
        os._exit(0)
    signal.signal(signal.SIGALRM, alarm)
    signal.alarm(1)
    agreement.of_all(True)
    """
    running = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), rank], stdout=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    try:
        assert running[0].communicate(timeout=100)[0] == "heard\n"
    finally:
        for process in running:
            process.kill()
            process.communicate()
