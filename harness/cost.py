"""What measuring costs: ResNet-18, batch 64, the full metric set, on a GPU.

Question: how much longer does a training loop take because it is measured?
Method: the same number of steps is run in fresh processes, once plain and once measured; the
difference of the two loops' wall clock is what the user pays, CUPTI's first start included. The
slowdown of steps under hardware counters is taken with CUDA events in one process: 20 steps that
follow each other inside one range of a hardware pass, against 20 such steps before it. (A single
step of a pass begins on an idle GPU, so that its duration depends on how fast the CPU happens to
launch the first kernels, which varies by 20% between processes; both are in the result.)

By layer the same is asked of three models: wall clock of the first measurement of a process, whose
steps have run before, less its steps.

    python harness/cost.py OUT.json [KIND ...]       # 14 processes of about 10 s

The result is written anew after every process, so that a run that is cut short keeps what it has.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import roofprobe

ARCH, BATCH = "resnet18", 64
WARMUP, TIMED = 5, 10
KINDS = {
    "plain": "not measured",
    "measured": "first measurement of a process, prepared while the model is built, as train does",
    "hardware": "steps inside a hardware pass",
    "bare": "as measured, without kernel records",
    "cold": "first measurement of a process, not prepared",
    "twice": "second measurement of a process",
    "resnet18": "by layer, forward and backward",
    "resnet50": "likewise",
    "vit_b_16": "likewise",
}
BY_LAYER = ("resnet18", "resnet50", "vit_b_16")
# What the processes do, in the order of their worth.
RUNS = (
    *("plain", "measured", "hardware", *BY_LAYER),
    *("plain", "measured", "twice", "cold", "bare", "plain", "measured", "cold"),
)
PLAIN_STEPS = WARMUP + TIMED + 7 + 2  # of a measurement on GH100


def loop(kind: str) -> dict[str, Any]:
    """One process: build the model, then time the loop.

    Args:
        kind: One of ``KINDS``.
    """
    import torch

    import roofprobe

    if kind not in ("plain", "cold"):
        roofprobe.prepare()
    if kind in BY_LAYER:
        return by_layer(kind)
    from workloads import training_step

    step = training_step(ARCH, BATCH)
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def timed_step() -> None:
        pair = (event(), event())
        pair[0].record()
        step()
        pair[1].record()
        events.append(pair)

    def durations() -> list[float]:
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in events]

    torch.cuda.synchronize()
    if kind == "plain":
        started = time.perf_counter()
        for _ in range(PLAIN_STEPS):
            timed_step()
        torch.cuda.synchronize()
        wall = time.perf_counter() - started
        events.clear()
        for _ in range(20):
            torch.cuda.synchronize()
            timed_step()
        return {"wall": wall, "steps": PLAIN_STEPS, "isolated": median(durations())}
    if kind == "hardware":
        return hardware(timed_step, durations, events.clear)
    options: dict[str, Any] = {"warmup": WARMUP, "timed": TIMED, "kernels": kind != "bare"}
    if kind == "twice":
        roofprobe.measure_step(timed_step, **options)
        events.clear()
        torch.cuda.synchronize()
    started = time.perf_counter()
    record = roofprobe.measure_step(timed_step, **options)
    torch.cuda.synchronize()
    wall = time.perf_counter() - started
    first, passes = WARMUP + TIMED, record.rounds[0].passes
    return {
        **facts(record, wall, len(events)),
        "passes": passes,
        "pass_duration": list(record.rounds[0].pass_duration),
        "pass_step": durations()[first : first + passes],
    }


def by_layer(arch: str) -> dict[str, Any]:
    """A model's first measurement by layer, after steps that loaded its kernels."""
    import torch
    import torchvision
    from workloads import phased_step

    import roofprobe

    model = torchvision.models.get_model(arch).cuda()
    step = phased_step(model, (BATCH, 3, 224, 224))
    unmeasured: Any = SimpleNamespace(range=lambda name: nullcontext())
    for _ in range(WARMUP):
        step(unmeasured)
    torch.cuda.synchronize()
    steps = 0
    started = time.perf_counter()
    with roofprobe.measure(arch, by="layer", model=model, warmup=0, timed=TIMED) as probe:
        while not probe.done:
            with probe.step():
                step(probe)
            steps += 1
    torch.cuda.synchronize()
    wall = time.perf_counter() - started
    record = probe.result
    assert record.regions is not None
    return {**facts(record, wall, steps), "parts": len(record.regions.segments)}


def facts(record: "roofprobe.Measurement", wall: float, steps: int) -> dict[str, Any]:
    """What every measured process tells."""
    assert record.timing is not None
    return {
        "wall": wall,
        "steps": steps,
        "step": record.timing.median,
        "metrics": len(record.metrics),
        "overhead": dict(record.overhead),
        "environment": {
            "device": record.environment.device_name,
            "driver": record.environment.driver,
            "cupti": record.environment.cupti,
            "torch": record.environment.torch,
            "created": record.created,
        },
    }


def hardware(
    step: Callable[[], None], durations: Callable[[], list[float]], clear: Callable[[], None]
) -> dict[str, Any]:
    """Steps before, inside and after one range of the pass that counts DRAM, L2 and L1 bytes."""
    import torch

    from roofprobe import metrics
    from roofprobe.counters.cupti import CuptiBackend

    def median_step() -> float:
        clear()
        for _ in range(20):
            step()
        return median(durations())

    backend = CuptiBackend(0, torch.cuda.synchronize)
    plan = backend.prepare(metrics.metric_set("memory", backend.chip))
    assert plan.passes == 1
    median_step()
    found: dict[str, list[float]] = {"before": [], "inside": [], "after": []}
    for _ in range(5):
        found["before"].append(median_step())
        backend.open()
        backend.begin_pass()
        found["inside"].append(median_step())
        backend.end_pass()
        backend.close()
        found["after"].append(median_step())
    return {"step": {when: median(times) for when, times in found.items()}, "all": found}


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Figures from the processes that have run; those that lack a part are left out."""
    found: dict[str, Any] = {}
    beyond: dict[str, list[float]] = {}
    for kind in ("twice", *BY_LAYER):
        # The kernels are loaded then, and so are those of the steps to compare with.
        beyond[kind] = [run["wall"] - run["steps"] * run["step"] for run in runs[kind]]
    if runs["plain"] and runs["measured"]:
        step = median(run["step"] for run in runs["measured"])
        plain = median(run["wall"] for run in runs["plain"])
        found["step"] = step
        found["isolated_step"] = median(run["isolated"] for run in runs["plain"])
        hardware_steps = [t for run in runs["measured"] for t in run["pass_step"][:-1]]
        found["hardware_pass_step"] = median(hardware_steps)
        found["sass_pass_step"] = median(run["pass_step"][-1] for run in runs["measured"])
        for kind in ("measured", "cold", "bare"):
            beyond[kind] = [
                run["wall"] - plain - (run["steps"] - PLAIN_STEPS) * step for run in runs[kind]
            ]
    if runs["hardware"]:
        times = runs["hardware"][0]["step"]
        found["hardware_pass_slowdown"] = times["inside"] / times["before"] - 1
        found["slowdown_afterwards"] = times["after"] / times["before"] - 1
    found["beyond_the_steps"] = {k: median(values) for k, values in beyond.items() if values}
    found["beyond_the_steps_each"] = {k: values for k, values in beyond.items() if values}
    return found


def main() -> int:
    """Runs everything and writes the result."""
    if sys.argv[1] in KINDS:
        print(json.dumps(loop(sys.argv[1])))
        return 0
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for kind in sys.argv[2:] or RUNS:
        command = [sys.executable, __file__, kind]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        runs[kind].append(json.loads(output.splitlines()[-1]))
        figures = summary(runs)
        body = {
            "question": "seconds of wall clock that a measured loop takes beyond its steps",
            "kinds": KINDS,
            "command": " ".join(["python harness/cost.py OUT.json", *sys.argv[2:]]),
            "workload": {"arch": ARCH, "batch": BATCH, "warmup": WARMUP, "timed": TIMED},
            **figures,
            "runs": runs,
        }
        Path(sys.argv[1]).write_text(json.dumps(body, indent=1) + "\n")
        last = figures["beyond_the_steps_each"].get(kind, [])[-1:]
        print(kind, *(f"{seconds:.3f} s beyond the steps" for seconds in last), flush=True)
    for kind, seconds in figures["beyond_the_steps"].items():
        print(f"{seconds:7.3f} s beyond the steps, {kind}: {KINDS[kind]}")
    if runs["hardware"]:
        print(f"steps afterwards: {100 * figures['slowdown_afterwards']:+.2f}% against before")
        print(f"hardware passes: {100 * figures['hardware_pass_slowdown']:+.2f}% against plain")
    for kind in ("measured", *BY_LAYER):
        for run in runs[kind][-1:]:
            parts = ", ".join(f"{k} {v:.3f}" for k, v in run["overhead"].items())
            print(f"{kind}: {parts}")
    for run in runs["measured"]:
        print("  passes", [round(t, 3) for t in run["pass_duration"]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
