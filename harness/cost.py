"""What measuring costs: ResNet-18, batch 64, the full metric set, on a GPU.

Question: how much longer does a training loop take because it is measured?
Method: the same number of steps is run in fresh processes, once plain and once measured; the
difference of the two loops' wall clock is what the user pays, CUPTI's first start included.
The slowdown of the steps under hardware counters is taken with CUDA events inside the step,
against steps that also begin on an idle GPU.

    python harness/cost.py OUT.json
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
REPEATS = 3


def loop(kind: str) -> dict[str, Any]:
    """One process: build the model, then time the loop.

    Args:
        kind: ``plain``, ``measured``, ``bare`` (measured without kernel records) or ``twice``
            (a second measurement in the same process).
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

    torch.cuda.synchronize()
    if kind == "plain":
        steps = int(sys.argv[2])
        started = time.perf_counter()
        for _ in range(steps):
            timed_step()
        torch.cuda.synchronize()
        wall = time.perf_counter() - started
        isolated = []
        for _ in range(20):
            torch.cuda.synchronize()
            timed_step()
            torch.cuda.synchronize()
            isolated.append(events[-1][0].elapsed_time(events[-1][1]) / 1e3)
        return {"wall": wall, "isolated": median(isolated)}
    options: dict[str, Any] = {"warmup": WARMUP, "timed": TIMED, "kernels": kind != "bare"}
    if kind == "twice":
        roofprobe.measure_step(timed_step, **options)
        events.clear()
        torch.cuda.synchronize()
    started = time.perf_counter()
    record = roofprobe.measure_step(timed_step, **options)
    torch.cuda.synchronize()
    wall = time.perf_counter() - started
    passes = record.rounds[0].passes
    first = WARMUP + TIMED
    assert record.timing is not None
    return {
        "wall": wall,
        "steps": len(events),
        "step": record.timing.median,
        "passes": passes,
        "metrics": len(record.metrics),
        "pass_duration": list(record.rounds[0].pass_duration),
        "pass_step": [a.elapsed_time(b) / 1e3 for a, b in events[first : first + passes]],
        "overhead": dict(record.overhead),
        "environment": {
            "device": record.environment.device_name,
            "driver": record.environment.driver,
            "cupti": record.environment.cupti,
            "torch": record.environment.torch,
            "created": record.created,
        },
    }


def child(*arguments: str) -> dict[str, Any]:
    """Runs ``loop`` in a fresh process."""
    output = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def main() -> int:
    """Runs everything and writes the result."""
    if sys.argv[1] in ("plain", "measured", "bare", "twice"):
        print(json.dumps(loop(sys.argv[1])))
        return 0
    runs: dict[str, list[dict[str, Any]]] = {
        kind: [child(kind) for _ in range(REPEATS)] for kind in ("measured", "bare", "twice")
    }
    steps = {kind: found[0]["steps"] for kind, found in runs.items()}
    plain = {
        count: [child("plain", str(count)) for _ in range(REPEATS)] for count in set(steps.values())
    }
    step = runs["measured"][0]["step"]
    isolated = median(run["isolated"] for runs_ in plain.values() for run in runs_)
    # `twice` runs on a warm process: its plain counterpart is steps at their median.
    cost = {
        "measured": median(r["wall"] for r in runs["measured"])
        - median(r["wall"] for r in plain[steps["measured"]]),
        "bare": median(r["wall"] for r in runs["bare"])
        - median(r["wall"] for r in plain[steps["bare"]]),
        "twice": median(r["wall"] for r in runs["twice"]) - steps["twice"] * step,
    }
    hardware = [t for r in runs["measured"] for t in r["pass_step"][:-1]]
    result: dict[str, Any] = {
        "question": "seconds of wall clock beyond the steps themselves",
        "command": "python harness/cost.py OUT.json",
        "workload": {"arch": ARCH, "batch": BATCH, "warmup": WARMUP, "timed": TIMED},
        "beyond_the_steps": {
            "first measurement of a process, with kernel records": cost["measured"],
            "first measurement of a process, counters only": cost["bare"],
            "second measurement of a process, with kernel records": cost["twice"],
        },
        "step": step,
        "isolated_step": isolated,
        "hardware_pass_step": median(hardware),
        "hardware_pass_slowdown": median(hardware) / isolated - 1,
        "sass_pass_step": median(r["pass_step"][-1] for r in runs["measured"]),
        "runs": runs,
        "plain": {str(k): v for k, v in plain.items()},
    }
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")
    for label, seconds in result["beyond_the_steps"].items():
        print(f"{seconds:7.3f} s beyond the steps: {label}")
    print(f"hardware passes: {100 * result['hardware_pass_slowdown']:+.2f}% against plain steps")
    for part, seconds in runs["measured"][0]["overhead"].items():
        print(f"  {seconds:7.3f} s {part}")
    print("  pass durations", [round(t, 3) for t in runs["measured"][0]["pass_duration"]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
