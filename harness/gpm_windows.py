"""NVML's GPM against CUPTI's counters: how to turn a utilisation into a count.

Questions: how often does the driver renew GPM's counters? Over which window does its DRAM
utilisation, times the theoretical bandwidth, give the bytes that CUPTI counts? How many FLOP does
a pipe do in a cycle in which GPM calls it active? Does the ``gpm`` backend answer as CUPTI does?
Method: a burst of copies and the idle GPU after it are sampled every 10 ms; the times at which
GPM's answer changes tell the period. Then each workload's step is counted by CUPTI, and GPM is read
around windows of plain steps, each after 0.3 s of such steps, so that the 100 ms by which a sample
may be late hold nothing else. The backend measures ResNet-18 as well; GPM is sampled whenever it
waits for the GPU, which shows the windows that it saw.

    python harness/gpm_windows.py OUT.json      # at most 60 s on an H200

The result is written anew after every workload, so that a run that is cut short keeps what it has.
No workload begins later than 45 s after the start. The exit code is 1 where one failed or was left
out. The FLOP of a cycle are GH100's; elsewhere only the bytes mean anything.
"""

import argparse
import json
import math
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pynvml
import torch
from workloads import Step, copy, gemm, tf32, training_step

import roofprobe
from roofprobe.counters import nvml
from roofprobe.counters.gpm import GpmBackend
from roofprobe.record import write_whole

# Ids of nvml.h, nvmlGpmMetricId_t. Every one that may help to tell the pipes apart, where
# ``nvml.IDS`` has those that the backend takes. Percentages:
UTILISATION: Final = {
    "graphics": 1, "sm": 2, "occupancy": 3, "integer": 4, "any_tensor": 5, "dfma": 6, "hmma": 7,
    "dmma": 8, "imma": 9, "dram": 10, "fp64": 11, "fp32": 12, "fp16": 13,
}  # fmt: skip
# SM cycles, which only newer drivers count:
CYCLES: Final = {
    "elapsed": 248, "active": 249, "mma": 250, "dmma": 251, "hmma": 252, "imma": 253, "dfma": 254,
    "integer": 257, "fp64": 258, "fp32": 259, "fp16": 260,
}  # fmt: skip
IDS: Final = {("utilisation", name): number for name, number in UTILISATION.items()} | {
    ("cycles", name): number for name, number in CYCLES.items()
}
# FLOP of one SM in one cycle: the H200 datasheet's dense peaks over SMs and clock.
FLOP_PER_CYCLE: Final = {
    "tensor_tf32": 2048,
    "tensor_bf16": 4096,
    "tensor_fp64": 256,
    "sass_fp32": 256,
}
# The pipe by which GPM should show a path, and the cycle counters that may.
PIPE: Final = {
    "tensor_tf32": "hmma",
    "tensor_bf16": "hmma",
    "tensor_fp64": "dfma",
    "sass_fp32": "fp32",
}
COUNTED_BY: Final = ("hmma", "mma", "dfma", "dmma", "fp32")

METRICS: Final = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    *(
        f"sm__ops_path_tensor_src_{operands}.sum"
        for operands in ("tf32_dst_fp32", "bf16_dst_fp32", "fp16", "fp64")
    ),
)
SASS: Final = tuple(
    f"smsp__sass_thread_inst_executed_op_f{operation}_pred_on.sum"
    for operation in ("add", "mul", "fma")
)

LEAD_IN: Final = 0.3  # s
# s after the start; the workloads that come late take some 10 s at most (an estimate)
LAST_START: Final = 45.0
COPY: Final = 2**31  # byte
COPIES: Final = 300  # of some 1 ms on an H200
RENEWAL: Final = 0.8  # s of sampling, more than half of them idle
ALL: Final = (0.3, 1.0, 3.0)  # s


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured.

    Attributes:
        make: Builds the step.
        path: The FLOP path that does most; None where no FLOP count.
        windows: Durations of the windows, s.
        tf32: TF32 for convolutions and for matrix products.
        sass: Have CUPTI count fp32 instructions of CUDA cores too.
        backend: Ask the backend too.
    """

    make: Callable[[], Step]
    path: str | None
    windows: tuple[float, ...]
    tf32: tuple[bool, bool] = (True, False)  # PyTorch's default
    sass: bool = False
    backend: bool = False


# In the order of their worth.
WORKLOADS: Final = {
    "resnet18 b64 tf32": Workload(
        lambda: training_step("resnet18", 64), "tensor_tf32", ALL, sass=True, backend=True
    ),
    "resnet18 b256 tf32": Workload(
        lambda: training_step("resnet18", 256), "tensor_tf32", ALL, sass=True, backend=True
    ),
    "copy 2 GiB": Workload(lambda: copy(COPY), None, ALL),
    "gemm 8192 bf16": Workload(lambda: gemm(8192, torch.bfloat16), "tensor_bf16", ALL),
    "resnet18 b256 bf16 channels-last": Workload(
        lambda: training_step("resnet18", 256, amp=torch.bfloat16, channels_last=True),
        "tensor_bf16",
        (2.0,),
    ),
    "gemm 8192 tf32": Workload(
        lambda: gemm(8192, torch.float32), "tensor_tf32", (1.0,), tf32=(True, True)
    ),
    "gemm 8192 fp32": Workload(
        lambda: gemm(8192, torch.float32), "sass_fp32", (1.0,), tf32=(False, False), sass=True
    ),
    "gemm 8192 fp64": Workload(lambda: gemm(8192, torch.float64), "tensor_fp64", (1.0,)),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What GPM says of the time between two samples.

    Attributes:
        utilisation: Name in ``UTILISATION`` -> fraction.
        cycles: Name in ``CYCLES`` -> SM cycles.
        failed: The others -> why NVML gave none.
    """

    utilisation: dict[str, float]
    cycles: dict[str, float]
    failed: dict[str, str]

    @classmethod
    def between(cls, first: Any, second: Any) -> "Reading":
        """Asks NVML about two samples of a ``GpmReader``; raises ``pynvml.NVMLError``."""
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(IDS)
        request.sample1, request.sample2 = first, second
        for index, number in enumerate(IDS.values()):
            request.metrics[index].metricId = number
        pynvml.nvmlGpmMetricsGet(request)
        found = cls({}, {}, {})
        for index, (kind, name) in enumerate(IDS):
            answer = request.metrics[index]
            if answer.nvmlReturn != pynvml.NVML_SUCCESS:
                found.failed[f"{kind} {name}"] = f"NVML error {answer.nvmlReturn}"
            elif not math.isfinite(answer.value):
                found.failed[f"{kind} {name}"] = f"NVML gave {answer.value}"
            elif kind == "cycles":
                found.cycles[name] = answer.value
            else:
                found.utilisation[name] = answer.value / 100
        return found

    def __str__(self) -> str:
        parts = [f"{name} {100 * value:.3f}%" for name, value in self.utilisation.items()]
        parts += [f"{name} {value:.6g} cycles" for name, value in self.cycles.items()]
        parts += [f"{name}: {why}" for name, why in self.failed.items()]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU and what reads it.

    Attributes:
        reader: GPM and clocks.
        sm_count: Streaming multiprocessors.
        dram_byte_per_s: Theoretical bandwidth; None if not readable.
    """

    reader: nvml.GpmReader
    sm_count: int
    dram_byte_per_s: float | None


def told(ask: Callable[..., Any], *arguments: Any) -> Any:
    """NVML's answer, or what it said instead."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError as error:
        return str(error)


def describe(device: Device) -> dict[str, Any]:
    """What NVML says of the device before anything runs; clocks in MHz, as it gives them."""
    properties = torch.cuda.get_device_properties(0)
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
    clock = pynvml.nvmlDeviceGetClockInfo
    return {
        "device": properties.name,
        "sm_count": device.sm_count,
        "driver": told(pynvml.nvmlSystemGetDriverVersion),
        "nvml": told(pynvml.nvmlSystemGetNVMLVersion),
        "torch": torch.__version__,
        "gpm_streaming": told(pynvml.nvmlGpmQueryIfStreamingEnabled, handle),
        "sm_clock_mhz": told(clock, handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": told(clock, handle, pynvml.NVML_CLOCK_MEM),
        "memory_bus_bit": told(pynvml.nvmlDeviceGetMemoryBusWidth, handle),
        "dram_byte_per_s": device.dram_byte_per_s,
        "others_at_work": device.reader.others_at_work(time.time() - 2),
    }


def renewal(device: Device, found: dict[str, Any]) -> None:
    """When GPM's answer changes, while copies run and then nothing does.

    Args:
        device: Where.
        found: Gets ``sample``, the time that one takes, s; ``changes``, the times, s, at which DRAM
            utilisation since the first sample became another, with the fraction; ``between``, the
            times from one to the next, s.
    """
    step = copy(COPY)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    started = time.perf_counter()
    zero = device.reader.sample()
    took = time.perf_counter() - started
    for _ in range(COPIES):  # they are queued, and run while the loop below samples
        step()
    samples = []
    started = time.perf_counter()
    while (at := time.perf_counter() - started) < RENEWAL:
        samples.append((at, device.reader.sample()))
        time.sleep(0.01)
    changes: list[tuple[float, float | str | None]] = []
    for at, sample in samples:
        now: float | str | None
        try:
            reading = Reading.between(zero, sample)
            now = reading.utilisation.get("dram", reading.failed.get("utilisation dram"))
        except pynvml.NVMLError as error:  # the counters are the same still
            now = str(error)
        if not changes or now != changes[-1][1]:
            changes.append((at, now))
    device.reader.free()
    between = [second[0] - first[0] for first, second in pairwise(changes)]
    print(f"a sample takes {1e6 * took:.0f} us; {len(changes)} changes of DRAM utilisation:")
    for at, now in changes:
        print(f"  {at:.3f} s: {now if isinstance(now, str) else f'{100 * (now or 0):.2f}%'}")
    print("  from one to the next, s:", [round(each, 3) for each in between])
    found |= {"sample": took, "changes": changes, "between": between}


def window(device: Device, step: Step, seconds: float) -> dict[str, Any]:
    """GPM around plain steps that fill so many seconds, after a lead-in of the same steps."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    led_in = 0
    while time.perf_counter() - started < LEAD_IN:
        step()
        torch.cuda.synchronize()
        led_in += 1
    once = (time.perf_counter() - started) / led_in
    steps = max(4, round(seconds / once))
    with nvml.MeanClock(device.reader.sm_clock) as clock:
        started = time.perf_counter()
        first = device.reader.sample()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        duration = time.perf_counter() - started
        second = device.reader.sample()
    reading = Reading.between(first, second)
    device.reader.free()
    return {"steps": steps, "duration": duration, "sm_clock": clock.mean, **asdict(reading)}


def compared(
    device: Device, found: dict[str, Any], path: str | None, byte: float | None, flop: float | None
) -> dict[str, Any]:
    """What a window gives against CUPTI's counts of one step.

    Args:
        device: Where.
        found: As from ``window``.
        path: The FLOP path that does most.
        byte: DRAM bytes by CUPTI.
        flop: FLOP of the path by CUPTI.

    Returns:
        ``byte`` of one step by GPM and ``byte_over_cupti``; ``yield``, CUPTI's FLOP over what the
        pipe's active cycles could have held; ``flop_per_counted_cycle``, CUPTI's FLOP over each
        cycle counter. None, or missing, where it cannot be had.
    """
    steps, period = found["steps"], found["duration"] / found["steps"]
    used, peak, clock = found["utilisation"], device.dram_byte_per_s, found["sm_clock"]
    by_gpm = used["dram"] * peak * period if peak and "dram" in used else None
    most = None
    if path and clock and PIPE[path] in used:
        most = used[PIPE[path]] * device.sm_count * FLOP_PER_CYCLE[path] * clock * period
    counted = {name: found["cycles"].get(name) for name in COUNTED_BY}
    return {
        "step": period,
        "byte": by_gpm,
        "byte_over_cupti": by_gpm / byte if by_gpm is not None and byte else None,
        "yield": flop / most if most and flop is not None else None,
        "flop_per_counted_cycle": {
            name: flop * steps / cycles for name, cycles in counted.items() if cycles and flop
        },
    }


def show(found: dict[str, Any], path: str | None) -> None:
    """Prints a window."""
    clock = "?" if found["sm_clock"] is None else f"{found['sm_clock'] / 1e6:.0f}"
    line = (
        f"  {found['duration']:5.2f} s, {found['steps']} steps of {1e3 * found['step']:.3f} ms, "
        f"{clock} MHz"
    )
    if found["byte"] is not None:
        line += f"; DRAM {100 * found['utilisation']['dram']:.3f}% = {found['byte']:.5g} B"
    if found["byte_over_cupti"] is not None:
        line += f", {found['byte_over_cupti']:.4f} of cupti"
    if path and found["yield"] is not None:
        pipe = PIPE[path]
        line += f"; {pipe} {100 * found['utilisation'][pipe]:.3f}%"
        line += f", cupti {path} / full-rate cycles = {found['yield']:.4f}"
    print(line)
    print("   ", Reading(found["utilisation"], found["cycles"], found["failed"]))
    for name, flop in found["flop_per_counted_cycle"].items():
        assert path is not None
        print(
            f"    {name}: {found['cycles'][name] / found['steps']:.6g} cycles a step, "
            f"{flop:.1f} FLOP a cycle (one SM at most {FLOP_PER_CYCLE[path]})"
        )
    if "elapsed" in found["cycles"]:
        print(f"    elapsed: {found['cycles']['elapsed'] / found['duration']:.5g} cycles a second")


class Watch:
    """A backend's way to wait for the GPU, which samples GPM each time.

    Args:
        reader: What to sample with.

    Attributes:
        steps: How many have run; the loop counts.
        looks: Time, s, steps until then, and sample.
    """

    def __init__(self, reader: nvml.GpmReader) -> None:
        self._reader = reader
        self.steps = 0
        self.looks: list[tuple[float, int, Any]] = []

    def wait(self) -> None:
        """What the backend calls."""
        torch.cuda.synchronize()
        self.looks.append((time.perf_counter(), self.steps, self._reader.sample()))

    def spans(self) -> list[dict[str, Any]]:
        """From each look to the next: steps, duration, s, and what GPM says; frees the samples."""
        found: list[dict[str, Any]] = []
        for (begun, before, first), (ended, after, second) in pairwise(self.looks):
            span: dict[str, Any] = {"steps": after - before, "duration": ended - begun}
            try:
                span |= asdict(Reading.between(first, second))
            except pynvml.NVMLError as error:  # a lead-in shorter than GPM's period
                span["error"] = str(error)
            found.append(span)
        self._reader.free()
        return found


def by_backend(device: Device, step: Step) -> dict[str, Any]:
    """One round of the backend, and the windows that it saw: after its lead-in, equal parts."""
    watch = Watch(device.reader)
    backend = GpmBackend(0, watch.wait)
    for _ in range(3):
        step()
    started = time.perf_counter()
    try:
        backend.prepare([])
        backend.open()
        with nvml.MeanClock(device.reader.sm_clock) as clock:
            full = False
            while not full:
                backend.begin_pass()
                step()
                watch.steps += 1
                full = backend.end_pass()
        counted = backend.collect()
    finally:
        backend.close()
    seconds = time.perf_counter() - started
    spans = watch.spans()
    print(f"  backend: {watch.steps} steps, {seconds:.2f} s, mean clock {clock.mean} Hz")
    for name, value in counted.values.items():
        print(f"    {name}: {counted.reasons[name] if value is None else f'{value:.5g}'}")
    for warning in counted.warnings:
        print(f"    warning: {warning}")
    for span in spans:
        read = span.get("error") or Reading(span["utilisation"], span["cycles"], span["failed"])
        print(f"    {span['steps']} steps, {span['duration']:.3f} s: {read}")
    return {
        "steps": watch.steps,
        "seconds": seconds,
        "sm_clock": clock.mean,
        "values": dict(counted.values),
        "reasons": dict(counted.reasons),
        "warnings": list(counted.warnings),
        "spans": spans,
    }


def measure(device: Device, name: str, work: Workload, found: dict[str, Any]) -> None:
    """One workload: CUPTI, the windows, the backend; fills ``found`` as it goes."""
    with tf32(*work.tf32):
        step = work.make()
        for _ in range(3):
            step()
        record = roofprobe.measure_step(
            step,
            name,
            metrics=METRICS + (SASS if work.sass else ()),
            backend="cupti",
            kernels=False,
            warmup=2,
            timed=10,
        )
        assert record.timing is not None
        derived = roofprobe.figures(record)
        byte = derived.byte["dram"].value
        flop = {path: figure.value for path, figure in derived.flop.items() if figure.value}
        counts = {"DRAM byte": byte, **flop}
        shown = ", ".join(f"{k} {'?' if v is None else f'{v:.5g}'}" for k, v in counts.items())
        print(f"  cupti: step {1e3 * record.timing.median:.3f} ms, {shown}")
        # A path of which CUPTI counted none has 0; one that it could not count has None.
        asked = derived.flop.get(work.path) if work.path else None
        found["path"] = work.path
        found["cupti"] = {
            "step": record.timing.median,
            "byte": byte,
            "flop": flop,
            "version": record.environment.cupti,
            "created": record.created,
        }
        found["windows"] = []
        for seconds in work.windows:
            seen = window(device, step, seconds)
            seen |= compared(device, seen, work.path, byte, asked.value if asked else None)
            show(seen, work.path)
            found["windows"].append(seen)
        if work.backend:
            found["backend"] = by_backend(device, step)


def main() -> int:
    """Measures everything, writes the result, and gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device here: run this on a GPU, Hopper or newer")
    started = time.perf_counter()
    properties = torch.cuda.get_device_properties(0)
    try:
        reader = nvml.GpmReader(f"GPU-{properties.uuid}")
    except roofprobe.RoofprobeError as error:
        parser.error(str(error))
    device = Device(reader, properties.multi_processor_count, reader.dram_byte_per_s())
    body: dict[str, Any] = {
        "question": "bytes and FLOP by GPM's utilisations against CUPTI's counts, by window",
        "command": "python harness/gpm_windows.py OUT.json",
        **describe(device),
        "flop_per_cycle": FLOP_PER_CYCLE,
        "renewal": {},
        "workloads": {name: {} for name in WORKLOADS},
        "failed": {},
    }
    for key, value in body.items():
        if key not in ("renewal", "workloads", "failed"):
            print(f"{key}: {value}")
    parts = {"renewal": partial(renewal, device, body["renewal"])}
    for name, work in WORKLOADS.items():
        parts[name] = partial(measure, device, name, work, body["workloads"][name])
    for name, part in parts.items():
        begun = time.perf_counter()
        print(f"\n{name} (at {begun - started:.1f} s)", flush=True)
        if begun - started > LAST_START:
            body["failed"][name] = f"left out: {LAST_START:.0f} s had passed"
            print("  left out", flush=True)
        else:
            try:
                part()
            except Exception as error:  # the other workloads are worth having all the same
                traceback.print_exc()
                body["failed"][name] = f"{type(error).__name__}: {error}"
                reader.free()
            print(f"  {time.perf_counter() - begun:.2f} s", flush=True)
        torch.cuda.empty_cache()
        body["seconds"] = time.perf_counter() - started
        write_whole(arguments.out, (json.dumps(body, indent=1) + "\n").encode())
    print(f"\nall: {body['seconds']:.1f} s; failed: {body['failed'] or 'nothing'}")
    return 1 if body["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
