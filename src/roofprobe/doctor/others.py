"""Rules on others that may hold or disturb the counters. Pure."""

from collections.abc import Iterator
from typing import Final

from roofprobe import refusals
from roofprobe.doctor.findings import Finding, fail, ok, warn
from roofprobe.doctor.state import State, pair
from roofprobe.refusals import DCGM, PROFILERS, ROOFPROBE, Signs, process_name

_HOPPER: Final = (9, 0)
_GPM: Final = "from Hopper on it need not hold the counters"


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
    seen = state.facts.host.processes
    dcgm = tuple(text for text in seen if process_name(text) in DCGM)
    profilers = tuple(text for text in seen if process_name(text) in (*PROFILERS, ROOFPROBE))
    if refusals.HARDWARE_BUSY in state.codes:
        yield _taken(state, dcgm, profilers)
        return
    if profilers:
        yield warn(
            "other profilers",
            f"{', '.join(profilers)} runs on this machine and may hold the counters",
            "wait for it to end",
        )
    if dcgm and _all_from_hopper_on(state):
        yield ok("other profilers", f"DCGM runs ({', '.join(dcgm)}); {_GPM}")
    elif dcgm:
        yield warn(
            "other profilers",
            f"DCGM runs ({', '.join(dcgm)}); where it watches profiling fields it holds the "
            "counters of all GPUs of the machine",
            refusals.DCGM_FIX,
        )
    if not profilers and not dcgm:
        yield ok("other profilers", "none is seen running")


def _taken(state: State, dcgm: tuple[str, ...], profilers: tuple[str, ...]) -> Finding:
    """Who may have the counters that were refused as busy."""
    host = state.facts.host
    tools = refusals.injected(host.environment)
    blamed = () if _all_from_hopper_on(state) else dcgm
    signs = Signs(tools=tools, profilers=profilers, dcgm=blamed)
    refusal = refusals.of_status(refusals.HARDWARE_BUSY, wsl=False, signs=signs)
    assert refusal is not None
    if tools or profilers or blamed:
        return fail("other profilers", refusal.cause, refusal.fix)
    where = "the host, which a container does not show" if host.container else "another user"
    seen = f"DCGM runs ({', '.join(dcgm)}), but {_GPM}" if dcgm else "no DCGM or profiler is seen"
    text = f"the counters are taken; {seen} here, so look for a profiler of {where}"
    return fail("other profilers", text, refusal.fix)


def _all_from_hopper_on(state: State) -> bool:
    """Every GPU of the machine is one whose monitors need not hold the counters."""
    found = [pair(gpu.compute_capability) for gpu in state.facts.gpus]
    return bool(found) and all(version is not None and version >= _HOPPER for version in found)


def injected(state: State) -> Iterator[Finding]:
    """Which tool has been put into this process."""
    environment = state.facts.host.environment
    tools, listeners = refusals.injected(environment), refusals.listeners(environment)
    busy = next((code for code in refusals.OF_THE_PROCESS if code in state.codes), None)
    if busy is not None:
        signs = Signs(tools=tools, listeners=listeners)
        refusal = refusals.of_status(busy, wsl=False, signs=signs)
        assert refusal is not None
        yield fail("injected tools", refusal.cause, refusal.fix)
    elif tools or listeners:
        yield warn(
            "injected tools",
            f"the environment names {', '.join((*tools, *listeners))}: a tool may be in this "
            "process, and CUPTI serves one client",
            "should counters be refused or the self-test fail, run without it; roofprobe verify "
            "runs ncu by itself",
        )
    else:
        yield ok("injected tools", "none in the environment")
