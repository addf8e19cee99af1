"""Rules on others that may hold or disturb the counters. Pure."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Final

from roofprobe import refusals
from roofprobe.doctor.findings import Finding, fail, ok, warn
from roofprobe.doctor.state import State, pair

_HOPPER: Final = (9, 0)

_INJECTED: Final[Mapping[str, str]] = {
    "NSYS_PROFILING_SESSION_ID": "nsys",
    "NV_NSIGHT_INJECTION_PORT_BASE": "ncu",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "ncu",
    "NV_SANITIZER_INJECTION_PORT_BASE": "compute-sanitizer",
    "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN": "compute-sanitizer",
}
# Parts of the file names of libraries that tools inject.
_INJECTORS: Final = re.compile(r"injection|injector|nsys|nsight|sanitizer|nvbit|cupti", re.I)

_DCGM: Final = ("nv-hostengine", "dcgm-exporter", "dcgmi")
_PROFILERS: Final = ("nsys", "nsys-launcher", "ncu", "nv-nsight-cu-cli", "compute-sanitiz")
_MPS: Final = "nvidia-cuda-mps"


def mps(state: State) -> Iterator[Finding]:
    """Whether counts would be those of several processes."""
    host = state.facts.host
    stop = "echo quit | nvidia-cuda-mps-control, or run where no MPS server is"
    if any(name.startswith(_MPS) for name in host.processes):
        yield fail(
            "MPS",
            "the Multi-Process Service runs here: counters would add up what all its clients do",
            stop,
        )
    elif host.mps_pipe is not None:
        yield warn(
            "MPS",
            f"{host.mps_pipe} is there: if an MPS server still listens to it, counters add up what "
            "all its clients do",
            stop,
        )
    else:
        yield ok("MPS", "not in use")


def other_profilers(state: State) -> Iterator[Finding]:
    """Who else reads counters on this machine."""
    host = state.facts.host
    running = [name for name in host.processes if name in _DCGM]
    profilers = [name for name in host.processes if name in _PROFILERS]
    named = ", ".join(running)
    if refusals.HARDWARE_BUSY in state.codes:
        refusal = refusals.of_status(refusals.HARDWARE_BUSY, wsl=False)
        assert refusal is not None
        if running:
            text = f"the counters are taken, most likely by DCGM's profiling fields ({named} runs)"
        elif profilers:
            text = f"the counters are taken, most likely by {', '.join(profilers)}"
        else:
            hidden = " of the host, which a container does not show" if host.container else ""
            text = "the counters are taken; no DCGM or profiler is seen here, so look for one" + (
                hidden or " of another user"
            )
        fix = "stop it, then measure again" if profilers and not running else refusals.DCGM_FIX
        yield fail("other profilers", text, fix)
    elif running:
        old = [g for g in state.facts.gpus if (pair(g.compute_capability) or _HOPPER) < _HOPPER]
        if old:
            yield warn(
                "other profilers",
                f"DCGM runs ({named}); where it watches profiling fields it holds the counters of "
                "all GPUs of the machine",
                refusals.DCGM_FIX,
            )
        else:
            yield ok(
                "other profilers",
                f"DCGM runs ({named}); from Hopper on it need not hold the counters",
            )
    elif profilers:
        yield warn(
            "other profilers",
            f"{', '.join(profilers)} runs on this machine and may hold the counters",
            "wait for it to end",
        )
    else:
        yield ok("other profilers", "none is seen running")


def injected(state: State) -> Iterator[Finding]:
    """Which tool has been put into this process."""
    environment = state.facts.host.environment
    tools = sorted({tool for name, tool in _INJECTED.items() if name in environment})
    injected = environment.get("CUDA_INJECTION64_PATH")
    preloaded = [
        path
        for path in re.split(r"[:\s]+", environment.get("LD_PRELOAD", ""))
        if _INJECTORS.search(PurePath(path).name)
    ]
    busy = next((code for code in (39, 36, 38) if code in state.codes), None)
    said = [f"CUDA_INJECTION64_PATH={injected}"] if injected else []
    said += [f"LD_PRELOAD={path}" for path in preloaded]
    if tools or said:
        who = " and ".join(tools) or "a tool"
        evidence = [name for name in _INJECTED if name in environment] + said
        yield fail(
            "injected tools",
            f"{who} is in this process and is its one CUPTI client ({', '.join(evidence)})",
            "run without it; roofprobe verify runs ncu by itself",
        )
    elif busy is not None:
        refusal = refusals.of_status(busy, wsl=False)
        assert refusal is not None
        yield fail("injected tools", refusal.cause, refusal.fix)
    elif "NVTX_INJECTION64_PATH" in environment or "KINETO_USE_DAEMON" in environment:
        named = [n for n in ("NVTX_INJECTION64_PATH", "KINETO_USE_DAEMON") if n in environment]
        yield warn(
            "injected tools",
            f"{' and '.join(named)} set: a tool that listens may use CUPTI as well",
            f"unset {' '.join(named)}",
        )
    else:
        yield ok("injected tools", "none in the environment")
