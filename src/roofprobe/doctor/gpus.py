"""Rules on the GPUs, and on who may count on the selected one. Pure."""

import re
from collections.abc import Iterator
from typing import Final

from roofprobe import metrics, refusals
from roofprobe.doctor.facts import Gpu
from roofprobe.doctor.findings import Finding, fail, not_applicable, ok, warn
from roofprobe.doctor.state import State, major, major_of, pair
from roofprobe.units import GIB, si

# The range profiler's first family (cuptiProfilerDeviceSupported in cupti_profiler_target.h of
# CUPTI 13.0), and the first that CUDA 13 runs on.
_VOLTA: Final = (7, 0)
_TURING: Final = (7, 5)
_CUDA_WITHOUT_VOLTA: Final = 13
_OLDER: Final = {6: "Pascal", 5: "Maxwell", 3: "Kepler", 2: "Fermi"}

# From here on the driver accepts CAP_PERFMON (NVIDIA's page on ERR_NVGPUCTRPERM).
_PERFMON_DRIVER: Final = 565


def gpus(state: State) -> Iterator[Finding]:
    """Every GPU, by what it is and whether it has a range profiler."""
    facts = state.facts
    if not facts.gpus:
        yield not_applicable("GPU", "there is none, or nothing lists it")
        return
    if facts.gpu is None and facts.software.devices:
        yield fail(
            "GPU",
            f"there is no GPU {facts.selected}: PyTorch sees {facts.software.devices}, numbered "
            "from 0",
            "name another one with --gpu",
        )
    for gpu in facts.gpus:
        yield _gpu(state, gpu)


def _gpu(state: State, gpu: Gpu) -> Finding:
    """One GPU. What stands against the machine or the process is left to the rules for that."""
    selected = gpu.index == state.facts.selected
    check = "hidden GPU" if gpu.index is None else f"GPU {gpu.index}"
    what = _described(gpu)
    capability = pair(gpu.compute_capability)
    code = refusals.status_of_support(gpu.support)
    unknown = gpu.chip is not None and gpu.chip not in (state.facts.software.chips or (gpu.chip,))
    say = fail if selected else warn
    if capability is not None and capability < _VOLTA:
        family = _OLDER.get(capability[0], "its family")
        newer = [g for g in state.facts.gpus if (pair(g.compute_capability) or (0, 0)) >= _VOLTA]
        return say(
            check,
            f"{what}: {family} has no range profiler, which came with Volta (7.0)",
            "measure on "
            + (" or ".join(_called(g) for g in newer) if newer else "a machine with a newer GPU"),
        )
    if gpu.index is None:
        if gpu.mig:
            why = "MIG is on, so that nothing but its instances can be used"
        elif "CUDA_VISIBLE_DEVICES" in state.facts.host.environment:
            why = "hidden by CUDA_VISIBLE_DEVICES"
        else:
            why = "PyTorch does not see it"
        return not_applicable(check, f"{what}: {why}")
    if unknown:
        return say(
            check,
            f"{what}: libcupti {state.facts.software.cupti_version} does not know the chip",
            "install a newer PyTorch, which brings a newer libcupti",
        )
    if code is None and gpu.failure is not None:
        code = gpu.failure.code
    refusal = refusals.of_status(code, wsl=state.wsl)
    if refusal is not None and refusal.of_wsl:
        return not_applicable(check, f"{what}: see platform")
    if refusal is not None and code not in refusals.NOT_OF_THE_GPU:
        return say(check, f"{what}: {refusal.cause}", refusal.fix)
    if refusal is None and gpu.failure is not None:
        return say(check, f"{what}: {gpu.failure.text}", "update the driver and PyTorch")
    if gpu.chip is not None and _family(gpu) is None:
        return warn(
            check,
            f"{what}: roofprobe has no metric table for this chip",
            "name metrics explicitly (--metrics; roofprobe metrics --chip lists them)",
        )
    old_cuda = (major(state.facts.software.torch_cuda) or 0) < _CUDA_WITHOUT_VOLTA
    if capability is not None and capability < _TURING and not old_cuda:
        return warn(
            check,
            f"{what}: CUDA 13 no longer runs on Volta",
            "install a PyTorch built for CUDA 12",
        )
    return ok(check, what + (" [selected]" if selected and len(state.facts.gpus) > 1 else ""))


def _family(gpu: Gpu) -> metrics.Family | None:
    return next((family for family in metrics.FAMILIES if gpu.chip in family.chips), None)


def _called(gpu: Gpu) -> str:
    return gpu.name if gpu.index is None else f"GPU {gpu.index} ({gpu.name})"


def _described(gpu: Gpu) -> str:
    parts = [gpu.name]
    if gpu.chip is not None:
        parts.append(gpu.chip)
    if gpu.compute_capability is not None:
        parts.append(f"compute capability {gpu.compute_capability}")
    if gpu.sm_count is not None:
        parts.append(f"{gpu.sm_count} SMs")
    if gpu.integrated:
        parts.append("integrated, with the CPU's memory")
    elif gpu.memory_byte is not None:
        parts.append(f"{gpu.memory_byte / GIB:.0f} GiB")
    return ", ".join(parts)


def permission(state: State) -> Iterator[Finding]:
    """Whether this process may read counters: CUPTI's answer, else what the system says."""
    host, gpu = state.facts.host, state.facts.gpu
    if state.wsl:
        yield not_applicable("permission", "under WSL it is the platform that decides")
        return
    if not state.usable:
        yield not_applicable("permission", "there is no driver to ask")
        return
    able = _able(state)
    where = f" in a container ({host.container})" if host.container else ""
    who = f"user {host.uid}" if host.uid is not None else "this user"
    right = f"with {able}" if able else "without CAP_SYS_ADMIN"
    rule = {
        True: f"the driver lets only administrators read counters; this is {who} {right}{where}",
        False: "the driver lets every user read counters",
        None: f"the driver does not say who may read counters; this is {who} {right}{where}",
    }[host.admin_only]
    if refusals.INSUFFICIENT_PRIVILEGES in state.codes:
        if able and host.own_user_namespace:
            rule += ", a right that holds in its own user namespace only"
        yield fail("permission", f"CUPTI was refused: {rule}", _permission_fix(state))
    elif gpu is not None and gpu.granted:
        yield ok("permission", f"CUPTI listed the counters; {rule}")
    elif host.admin_only and (not able or host.own_user_namespace):
        yield fail("permission", rule, _permission_fix(state))
    elif host.admin_only is None:
        yield warn("permission", f"{rule}; only the self-test can tell", None)
    else:
        yield ok("permission", rule)


def _permission_fix(state: State) -> str:
    """The remedy for a refusal, without what is done already."""
    if state.facts.host.admin_only is False:
        return refusals.OPEN_ALREADY_FIX
    return refusals.POWERLESS_FIX if _able(state) else refusals.PERMISSION_FIX


def _able(state: State) -> str | None:
    """The capability that opens the counters to this process; None without one."""
    host = state.facts.host
    if "CAP_SYS_ADMIN" in host.capabilities:
        return "CAP_SYS_ADMIN"
    branch = major_of(host.driver)
    if "CAP_PERFMON" in host.capabilities and branch is not None and branch >= _PERFMON_DRIVER:
        return "CAP_PERFMON"
    return None


def configuration(state: State) -> Iterator[Finding]:
    """Virtual GPU and confidential computing; a refusal of theirs is the GPU's finding."""
    support = state.facts.gpu.support if state.facts.gpu is not None else {}
    for check, feature in (("vGPU", "vgpu"), ("confidential computing", "confidential_compute")):
        level = support.get(feature)
        if level is None:
            yield not_applicable(check, "CUPTI was not asked")
        elif level == "supported":
            yield ok(check, "nothing in the way")
        elif level == "unknown":
            yield warn(check, "CUPTI cannot tell; the self-test can", None)
        else:
            yield not_applicable(check, f"CUPTI says {level}; see the GPU above")


def mig(state: State) -> Iterator[Finding]:
    """Whether a MIG instance shares units, whose counters are then kept back."""
    instance = state.facts.gpu.instance if state.facts.gpu is not None else None
    if instance is None:
        yield not_applicable("MIG", "no MIG instance is selected")
    elif re.match(r"\d+c\.", instance):
        yield warn(
            "MIG",
            f"compute instance {instance} shares L2 and DRAM with others: their counters are n/a "
            "by design, and with them bytes and intensity; FLOP are right",
            "measure on an instance that has its slice to itself, such as "
            f"{instance.partition('.')[2]}",
        )
    else:
        yield ok("MIG", f"instance {instance} has its slice to itself; clocks cannot be locked")


def memory(state: State) -> Iterator[Finding]:
    """Whether DRAM bytes can be counted and set against a bandwidth."""
    gpu = state.facts.gpu
    if gpu is None:
        return
    family = _family(gpu)
    if family is not None and not family.dram:
        yield warn(
            "DRAM counters",
            f"chip {gpu.chip} has none: bytes are counted at L2 and L1 only",
            "read the L2 roofline; for a bandwidth, roofprobe ceilings measures one",
        )
    elif gpu.integrated:
        yield warn(
            "DRAM counters",
            "the GPU shares the CPU's memory: it has no bandwidth of its own in a datasheet",
            "measure one with roofprobe ceilings",
        )


def clocks(state: State) -> Iterator[Finding]:
    """What the clocks can be."""
    gpu = state.facts.gpu
    if gpu is None or gpu.sm_clock_max is None:
        yield not_applicable("clocks", "nothing says what they are")
        return
    limit = f", power limit {gpu.power_limit:.0f} W" if gpu.power_limit else ""
    text = f"SM up to {si(gpu.sm_clock_max, 'Hz')}{limit}"
    if gpu.application_clock is not None and gpu.application_clock < gpu.sm_clock_max:
        text += f", application clock {si(gpu.application_clock, 'Hz')}"
    yield ok("clocks", f"{text}; a lock cannot be read, so every run samples its clock")
