"""Rules on others that may hold or disturb the counters. Pure."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Final

from roofprobe import refusals
from roofprobe.doctor.facts import DCGM, PROFILERS
from roofprobe.doctor.findings import Finding, fail, ok, warn
from roofprobe.doctor.state import State, pair

_HOPPER: Final = (9, 0)
_GPM: Final = "from Hopper on it need not hold the counters"

_INJECTED: Final[Mapping[str, str]] = {
    "NSYS_PROFILING_SESSION_ID": "nsys",
    "NV_NSIGHT_INJECTION_PORT_BASE": "ncu",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "ncu",
    "NV_SANITIZER_INJECTION_PORT_BASE": "compute-sanitizer",
    "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN": "compute-sanitizer",
}
_LISTENERS: Final = ("NVTX_INJECTION64_PATH", "KINETO_USE_DAEMON")
# Parts of the file names of libraries that tools inject; a compiler's libsanitizer is none.
_INJECTORS: Final = re.compile(
    r"injection|injector|nsys|nsight|sanitizer-(?:collection|public)|nvbit", re.I
)


def mps(state: State) -> Iterator[Finding]:
    """Whether counts would be those of several processes."""
    if not state.mps:
        yield ok("MPS", "not in use")
        return
    pipe = state.facts.host.mps_pipe
    text = refusals.MPS_SHARED + (f"; its daemon listens at {pipe}" if pipe is not None else "")
    if state.shared:
        yield fail("MPS", text, refusals.MPS_FIX)
    else:
        yield warn(
            "MPS",
            f"{text}; {refusals.MPS_ALLOWED}=1 has them taken, and marked as shared",
            "make sure that this process is its one client",
        )


def other_profilers(state: State) -> Iterator[Finding]:
    """Who else reads counters on this machine."""
    host = state.facts.host
    dcgm = ", ".join(name for name in host.processes if name in DCGM)
    profilers = ", ".join(name for name in host.processes if name in PROFILERS)
    if refusals.HARDWARE_BUSY in state.codes:
        yield _taken(state, dcgm, profilers)
        return
    if profilers:
        yield warn(
            "other profilers",
            f"{profilers} runs on this machine and may hold the counters",
            "wait for it to end",
        )
    if dcgm and _all_from_hopper_on(state):
        yield ok("other profilers", f"DCGM runs ({dcgm}); {_GPM}")
    elif dcgm:
        yield warn(
            "other profilers",
            f"DCGM runs ({dcgm}); where it watches profiling fields it holds the counters of all "
            "GPUs of the machine",
            refusals.DCGM_FIX,
        )
    if not profilers and not dcgm:
        yield ok("other profilers", "none is seen running")


def _taken(state: State, dcgm: str, profilers: str) -> Finding:
    """Who may have the counters that were refused as busy."""
    suspects = [profilers] if profilers else []
    if dcgm and not _all_from_hopper_on(state):
        suspects.append(f"DCGM's profiling fields ({dcgm} runs)")
    if suspects:
        text = f"the counters are taken, most likely by {' or by '.join(suspects)}"
    else:
        host = state.facts.host
        where = "the host, which a container does not show" if host.container else "another user"
        seen = f"DCGM runs ({dcgm}), but {_GPM}" if dcgm else "no DCGM or profiler is seen here"
        text = f"the counters are taken; {seen}, so look for a profiler of {where}"
    if profilers and not dcgm:
        fix = "stop it, then measure again"
    elif suspects and not profilers:
        fix = refusals.DCGM_FIX
    else:
        refusal = refusals.of_status(refusals.HARDWARE_BUSY, wsl=False)
        assert refusal is not None
        fix = refusal.fix
    return fail("other profilers", text, fix)


def _all_from_hopper_on(state: State) -> bool:
    """Every GPU of the machine is one whose monitors need not hold the counters."""
    found = [pair(gpu.compute_capability) for gpu in state.facts.gpus]
    return bool(found) and all(version is not None and version >= _HOPPER for version in found)


def injected(state: State) -> Iterator[Finding]:
    """Which tool has been put into this process."""
    environment = state.facts.host.environment
    named = [f"{tool} ({name})" for name, tool in _INJECTED.items() if name in environment]
    if "CUDA_INJECTION64_PATH" in environment:
        named.append(f"CUDA_INJECTION64_PATH={environment['CUDA_INJECTION64_PATH']}")
    named += [
        f"LD_PRELOAD={path}"
        for path in re.split(r"[:\s]+", environment.get("LD_PRELOAD", ""))
        if _INJECTORS.search(PurePath(path).name)
    ]
    # PyTorch listens for a daemon wherever KINETO_USE_DAEMON is set, to 0 as well.
    named += [name for name in _LISTENERS if name in environment]
    evidence = f"the environment names {', '.join(named)}"
    busy = next((code for code in (39, 36, 38) if code in state.codes), None)
    if busy is not None:
        refusal = refusals.of_status(busy, wsl=False)
        assert refusal is not None
        text = f"{refusal.cause}; {evidence}" if named else refusal.cause
        yield fail("injected tools", text, refusal.fix)
    elif named:
        yield warn(
            "injected tools",
            f"{evidence}: a tool may be in this process, and CUPTI serves one client",
            "should counters be refused or the self-test fail, run without it; roofprobe verify "
            "runs ncu by itself",
        )
    else:
        yield ok("injected tools", "none in the environment")
