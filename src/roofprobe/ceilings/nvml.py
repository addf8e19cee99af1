"""What NVML says about a GPU's settings and other users, by UUID; None where it says nothing."""

import os
import time
from dataclasses import dataclass
from typing import Any, Final

# NVML averages utilisation over up to a second, our own work just before included.
_SETTLE: Final = 1.5  # s
_IDLE: Final = 0.05


@dataclass(frozen=True, slots=True)
class ClockSettings:
    """What bounds a GPU's clocks. A lock by ``nvidia-smi -lgc`` cannot be read, and is not here.

    Attributes:
        sm_max: Highest SM clock of the device, Hz.
        application: Application clock that was set, Hz.
        power_limit: Enforced power limit, W.
    """

    sm_max: float | None
    application: float | None
    power_limit: float | None


def clock_settings(uuid: str) -> ClockSettings | None:
    """The settings in force now; None where NVML or the device does not answer."""
    found = _handle(uuid)
    if found is None:
        return None
    nvml, handle = found

    def ask(call: str, unit: float, *arguments: int) -> float | None:
        try:
            return unit * float(getattr(nvml, call)(handle, *arguments))
        except nvml.NVMLError:
            return None

    return ClockSettings(
        ask("nvmlDeviceGetMaxClockInfo", 1e6, nvml.NVML_CLOCK_SM),
        ask("nvmlDeviceGetApplicationsClock", 1e6, nvml.NVML_CLOCK_GRAPHICS),
        ask("nvmlDeviceGetEnforcedPowerLimit", 1e-3),
    )


def other_processes(uuid: str) -> int:
    """How many other processes have a CUDA context on the GPU; 0 where NVML does not say.

    This process must have one. In a container NVML may name it by its number outside, so one of
    the listed processes is taken for this one.
    """
    found = _handle(uuid)
    if found is None:
        return 0
    nvml, handle = found
    try:
        pids = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except nvml.NVMLError:
        return 0
    return len(pids - {os.getpid()}) if os.getpid() in pids else max(0, len(pids) - 1)


def busy(uuid: str) -> float | None:
    """The fraction of time that somebody's kernels run, now that ours do not; None if unknown.

    Waits up to 1.5 s for our own last work to leave NVML's average.
    """
    found = _handle(uuid)
    if found is None:
        return None
    nvml, handle = found
    deadline = time.monotonic() + _SETTLE
    try:
        while True:
            fraction = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
            if fraction <= _IDLE or time.monotonic() > deadline:
                return fraction if fraction > _IDLE else 0.0
            time.sleep(0.1)
    except nvml.NVMLError:
        return None


def _handle(uuid: str) -> tuple[Any, Any] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # NVML's errors and its absence both mean: nothing is known
        return None
