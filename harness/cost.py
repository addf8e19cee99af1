"""What measuring costs: ResNet-18, batch 64, the full metric set, on a GPU.

Question: how much longer does a training loop take because it is measured?
Method: the same number of steps is run in fresh processes, once plain and once measured; the
difference of the two loops' wall clock is what the user pays, CUPTI's first start included. The
slowdown of steps under hardware counters is taken with CUDA events inside the step, against plain
steps that also begin on an idle GPU.

    python harness/cost.py OUT.json       # 8 processes of about 10 s

The result is written anew after every process, so that a run that is cut short keeps what it has.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ARCH, BATCH = "resnet18", 64
WARMUP, TIMED = 5, 10
# What each process does, in the order of their worth.
RUNS = ("measured", "plain", "measured", "plain", "measured", "plain", "bare", "twice")
PLAIN_STEPS = WARMUP + TIMED + 7 + 2  # of a measurement on GH100


def loop(kind: str) -> dict[str, Any]:
    """One process: build the model, then time the loop.

    Args:
        kind: ``plain``, ``measured``, ``bare`` (measured without kernel records) or ``twice``
            (the second measurement of a process).
    """
    import torch
    from workloads import training_step

    import roofprobe

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
    options: dict[str, Any] = {"warmup": WARMUP, "timed": TIMED, "kernels": kind != "bare"}
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


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Figures from the processes that have run; those that lack a part are left out."""
    found: dict[str, Any] = {}
    if not runs["measured"] or not runs["plain"]:
        return found
    step = median(run["step"] for run in runs["measured"])
    plain = median(run["wall"] for run in runs["plain"])
    isolated = median(run["isolated"] for run in runs["plain"])
    hardware = median(t for run in runs["measured"] for t in run["pass_step"][:-1])
    found["step"] = step
    found["isolated_step"] = isolated
    found["hardware_pass_step"] = hardware
    found["hardware_pass_slowdown"] = hardware / isolated - 1
    found["sass_pass_step"] = median(run["pass_step"][-1] for run in runs["measured"])
    found["beyond_the_steps"] = {
        kind: median(
            run["wall"] - plain - (run["steps"] - PLAIN_STEPS) * step for run in runs[kind]
        )
        for kind in ("measured", "bare")
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
                "twice": "second measurement of a process, with kernel records",
            },
            "command": "python harness/cost.py OUT.json",
            "workload": {"arch": ARCH, "batch": BATCH, "warmup": WARMUP, "timed": TIMED},
            **figures,
            "runs": runs,
        }
        Path(sys.argv[1]).write_text(json.dumps(body, indent=1) + "\n")
        print(kind, figures.get("beyond_the_steps"), flush=True)
    print(f"hardware passes: {100 * figures['hardware_pass_slowdown']:+.2f}% against plain steps")
    for part, seconds in runs["measured"][0]["overhead"].items():
        print(f"  {seconds:7.3f} s {part}")
    print("  passes", [round(t, 3) for t in runs["measured"][0]["pass_duration"]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
