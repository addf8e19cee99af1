"""What measuring costs: ResNet-18, batch 64, the full metric set, on a GPU.

Question: how much longer does a training loop take because it is measured?
Method: the same number of steps is run in fresh processes, once plain and once measured; the
difference of the two loops' wall clock is what the user pays, CUPTI's first start included. The
slowdown of steps under hardware counters is taken with CUDA events in one process: 20 steps that
follow each other inside one range of a hardware pass, against 20 such steps before it. (A single
step of a pass begins on an idle GPU, so that its duration depends on how fast the CPU happens to
launch the first kernels, which varies by 20% between processes; both are in the result.)

    python harness/cost.py OUT.json       # 10 processes of about 10 s

The result is written anew after every process, so that a run that is cut short keeps what it has.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

ARCH, BATCH = "resnet18", 64
WARMUP, TIMED = 5, 10
# What each process does, in the order of their worth.
RUNS = (
    "plain",
    "measured",
    "hardware",
    "plain",
    "measured",
    "bare",
    "twice",
    "fp32",
    "plain",
    "measured",
)
PLAIN_STEPS = WARMUP + TIMED + 7 + 2  # of a measurement on GH100


def loop(kind: str) -> dict[str, Any]:
    """One process: build the model, then time the loop.

    Args:
        kind: ``plain``, ``measured``, ``bare`` (measured without kernel records), ``twice``
            (the second measurement of a process), ``fp32`` (without SASS fp16 and fp64) or
            ``hardware`` (steps inside a hardware pass).
    """
    import torch
    from workloads import training_step

    import roofprobe
    from roofprobe.counters import cupti

    if kind != "plain":
        # As roofprobe.train does: CUPTI starts while the CPU builds the model.
        Thread(target=cupti.start_early, args=(0,), daemon=True).start()
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
    if kind == "fp32":
        from roofprobe import metrics

        full = metrics.metric_set("full", "GH100")
        rows = [metrics.TABLE[name] for name in full]
        options["metrics"] = [r.name for r in rows if r.path not in ("sass_fp16", "sass_fp64")]
    if kind == "twice":
        roofprobe.measure_step(timed_step, **options)
        events.clear()
        torch.cuda.synchronize()
    started = time.perf_counter()
    record = roofprobe.measure_step(timed_step, **options)
    torch.cuda.synchronize()
    wall = time.perf_counter() - started
    assert record.timing is not None
    first, passes = WARMUP + TIMED, record.rounds[0].passes
    return {
        "wall": wall,
        "steps": len(events),
        "step": record.timing.median,
        "passes": passes,
        "metrics": len(record.metrics),
        "pass_duration": list(record.rounds[0].pass_duration),
        "pass_step": durations()[first : first + passes],
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
    if not runs["measured"] or not runs["plain"]:
        return found
    step = median(run["step"] for run in runs["measured"])
    plain = median(run["wall"] for run in runs["plain"])
    isolated = median(run["isolated"] for run in runs["plain"])
    alone = median(t for run in runs["measured"] for t in run["pass_step"][:-1])
    found["step"] = step
    found["isolated_step"] = isolated
    found["hardware_pass_step"] = alone
    if runs["hardware"]:
        times = runs["hardware"][0]["step"]
        found["hardware_pass_slowdown"] = times["inside"] / times["before"] - 1
        found["slowdown_afterwards"] = times["after"] / times["before"] - 1
    found["sass_pass_step"] = median(run["pass_step"][-1] for run in runs["measured"])
    found["beyond_the_steps"] = {
        kind: median(
            run["wall"] - plain - (run["steps"] - PLAIN_STEPS) * step for run in runs[kind]
        )
        for kind in ("measured", "bare", "fp32")
        if runs[kind]
    }
    if runs["twice"]:
        # The process is warm then, and so are the steps to compare with.
        found["beyond_the_steps"]["twice"] = median(
            run["wall"] - run["steps"] * run["step"] for run in runs["twice"]
        )
    return found


def main() -> int:
    """Runs everything and writes the result."""
    if sys.argv[1] in RUNS:
        print(json.dumps(loop(sys.argv[1])))
        return 0
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in dict.fromkeys(RUNS)}
    for kind in RUNS:
        command = [sys.executable, __file__, kind]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        runs[kind].append(json.loads(output.splitlines()[-1]))
        figures = summary(runs)
        body = {
            "question": "seconds of wall clock that a measured loop takes beyond its steps",
            "kinds": {
                "measured": "first measurement of a process, with kernel records",
                "bare": "first measurement of a process, counters only",
                "fp32": "as measured, without the six SASS counters of fp16 and fp64",
                "twice": "second measurement of a process, with kernel records",
            },
            "command": "python harness/cost.py OUT.json",
            "workload": {"arch": ARCH, "batch": BATCH, "warmup": WARMUP, "timed": TIMED},
            **figures,
            "runs": runs,
        }
        Path(sys.argv[1]).write_text(json.dumps(body, indent=1) + "\n")
        print(kind, figures.get("beyond_the_steps"), flush=True)
    print(f"steps afterwards: {100 * figures['slowdown_afterwards']:+.2f}% against steps before")
    print(f"hardware passes: {100 * figures['hardware_pass_slowdown']:+.2f}% against plain steps")
    for part, seconds in runs["measured"][0]["overhead"].items():
        print(f"  {seconds:7.3f} s {part}")
    print("  passes", [round(t, 3) for t in runs["measured"][0]["pass_duration"]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
