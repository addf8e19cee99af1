"""Why counters are refused, and what to do about it: the one place for both.

Error messages and ``roofprobe doctor`` take their words from here. Numbers and meanings are CUPTI's
(cupti_result.h of CUPTI 13.0).
"""

import os
import re
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roofprobe.errors import (
    ConfidentialComputingError,
    CounterPermissionError,
    CuptiError,
    HardwareBusyError,
    MigUnsupportedError,
    MiningProcessorError,
    OldApiUnsupportedError,
    OldProfilerError,
    OtherSubscriberError,
    SliUnsupportedError,
    UnknownChipError,
    UnsupportedDeviceError,
    VirtualGpuError,
    VirtualGpuPermissionError,
    WslUnsupportedError,
)

INSUFFICIENT_PRIVILEGES: Final = 35
HARDWARE_BUSY: Final = 26
WSL: Final = 45
_NO_PROFILER: Final = 27
# Statuses that speak of the machine or the process, and not of one GPU.
NOT_OF_THE_GPU: Final = frozenset({HARDWARE_BUSY, INSUFFICIENT_PRIVILEGES, 36, 38, 39})

WITHOUT_COUNTERS: Final = (
    "without counters, the analytic backend models a step (--backend analytic)"
)
_OPEN_TO_ALL: Final = (
    "whoever runs the HOST sets the nvidia module's option NVreg_RestrictProfilingToAdminUsers=0 "
    "and reloads it or reboots"
)
_FROM_INSIDE: Final = f"a hosted job cannot fix this from inside; {WITHOUT_COUNTERS}"
PERMISSION_FIX: Final = (
    f"{_OPEN_TO_ALL}, or starts the container with --cap-add=SYS_ADMIN; being root in a "
    f"container is not enough, and {_FROM_INSIDE}"
)
# Where the process has the capability and is refused all the same.
POWERLESS_FIX: Final = (
    f"{_OPEN_TO_ALL}, or runs this outside of the user namespace or sandbox (rootless containers, "
    f"gVisor) that keeps the right from the driver; {_FROM_INSIDE}"
)
# Where the module lets everybody and the answer is no all the same.
OPEN_ALREADY_FIX: Final = (
    "the nvidia module's option is set as it must be, so look for what stands between this process "
    "and the driver (a sandbox such as gVisor, a virtual machine whose hypervisor forbids "
    f"profiling) and try outside of it; {_FROM_INSIDE}"
)
# The lock is one for the whole machine, and Hopper's monitors need not take it
# (maintainers in https://github.com/NVIDIA/DCGM/issues/56 and /62).
DCGM_FIX: Final = (
    "dcgmi profile --pause, measure, then dcgmi profile --resume, also when the measurement "
    "failed; or take the DCGM_FI_PROF_* fields out of what DCGM watches; the lock is one for the "
    "whole machine, whichever GPU is measured"
)
VGPU_FIX: Final = (
    "the administrator of the hypervisor must allow profiling for this virtual GPU (plug-in "
    "parameter enable_profiling=1)"
)


MPS_PROCESS: Final = "nvidia-cuda-mps"  # how the names of its daemon and server begin
MPS_ALLOWED: Final = "ROOFPROBE_ALLOW_MPS"  # set to 1, shared counters are taken and marked
MPS_SHARED: Final = (
    "shared: CUDA's Multi-Process Service runs here, so counters add up what all its clients do"
)
MPS_FIX: Final = (
    "stop it (echo quit | nvidia-cuda-mps-control), run where there is none, or set "
    f"{MPS_ALLOWED}=1 where this process is its one client"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a CUPTI status means.

    Attributes:
        kind: The error to raise.
        cause: What is wrong, in a clause.
        fix: What to do next, in a clause.
    """

    kind: type[CuptiError]
    cause: str
    fix: str

    @property
    def of_wsl(self) -> bool:
        """It is the platform's, whatever the GPU and the user's rights."""
        return self.kind is WslUnsupportedError


_STATUS: Final[Mapping[int, Refusal]] = {
    14: Refusal(CuptiError, "CUPTI and the driver do not fit each other", "update the driver"),
    15: Refusal(
        CuptiError,
        "CUPTI could not start: the driver is older than this CUPTI, a stub libcuda was loaded, or "
        "CUPTI was finalized in this process",
        "update the driver, and take CUDA's stubs folder off LD_LIBRARY_PATH",
    ),
    HARDWARE_BUSY: Refusal(
        HardwareBusyError,
        "another client holds the performance monitors (DCGM's profiling fields, nsys, ncu or "
        "another process that measures)",
        f"stop the other profiler; with DCGM: {DCGM_FIX}",
    ),
    _NO_PROFILER: Refusal(
        UnsupportedDeviceError,
        "this chip or configuration has no range profiler",
        "measure on Volta (compute capability 7.0) or newer; on such a chip, update the driver and "
        "PyTorch",
    ),
    33: Refusal(VirtualGpuError, "this virtual GPU cannot be profiled", WITHOUT_COUNTERS),
    INSUFFICIENT_PRIVILEGES: Refusal(
        CounterPermissionError,
        "the driver lets only administrators read GPU counters",
        PERMISSION_FIX,
    ),
    36: Refusal(
        OldProfilerError,
        "CUPTI's old event API is in use in this process",
        "remove the library that uses it (nvprof's, an old PAPI)",
    ),
    38: Refusal(
        OldApiUnsupportedError,
        "something asked for CUPTI's old event API, which chips from Turing on do not have",
        "remove the library that uses it (nvprof's, an old PAPI)",
    ),
    39: Refusal(
        OtherSubscriberError,
        "another CUPTI client is active in this process (nsys, ncu, cuda-gdb, compute-sanitizer or "
        "a profiler library)",
        "run without it",
    ),
    40: Refusal(
        VirtualGpuPermissionError, "the hypervisor does not allow profiling this GPU", VGPU_FIX
    ),
    41: Refusal(
        ConfidentialComputingError,
        "confidential computing is on, which allows no counters",
        f"switch it off on the host; {WITHOUT_COUNTERS}",
    ),
    42: Refusal(
        MiningProcessorError, "mining processors (CMP) allow no counters", "measure on another GPU"
    ),
    43: Refusal(
        MigUnsupportedError,
        "this MIG instance allows no counters",
        "measure on a GPU with MIG switched off",
    ),
    44: Refusal(SliUnsupportedError, "SLI is on, which allows no counters", "switch SLI off"),
    WSL: Refusal(
        WslUnsupportedError,
        "WSL does not offer the counters of this GPU, which is a limit of the platform and no "
        "missing right",
        f"measure under Linux itself; {WITHOUT_COUNTERS}",
    ),
    46: Refusal(
        UnknownChipError,
        "this libcupti does not know the chip",
        "install a newer PyTorch, which brings a newer libcupti",
    ),
}

# What cuptiProfilerDeviceSupported answers, by feature and level, as the status that means the same
# (CUpti_Profiler_DeviceSupported_Params in cupti_profiler_target.h). The order is that of blame.
_NO: Final = ("unsupported", "disabled")
_SUPPORT: Final[tuple[tuple[str, tuple[str, ...], int], ...]] = (
    ("wsl", _NO, WSL),
    ("architecture", _NO, _NO_PROFILER),
    ("cmp", _NO, 42),
    ("confidential_compute", _NO, 41),
    ("vgpu", ("disabled",), 40),
    ("vgpu", ("unsupported",), 33),
    ("sli", _NO, 44),
)


def of_status(code: int | None, *, wsl: bool) -> Refusal | None:
    """What a CUPTI status means; None for one that is not about being refused.

    Args:
        code: The status.
        wsl: The process runs under WSL, where the driver may answer "no privileges" for a GPU that
            offers no counters at all (https://github.com/systalyze/utilyze/issues/4).
    """
    if wsl and code in (_NO_PROFILER, INSUFFICIENT_PRIVILEGES, WSL):
        return _STATUS[WSL]
    return _STATUS.get(code) if code is not None else None


def status_of_support(support: Mapping[str, str]) -> int | None:
    """The CUPTI status that says why a device is not supported; None where it is, or may be.

    Args:
        support: Feature -> level, as ``counters.cupti.device_support`` gives it.
    """
    if support.get("overall") not in _NO:
        return None
    named = (code for feature, levels, code in _SUPPORT if support.get(feature) in levels)
    return next(named, _NO_PROFILER)


def is_wsl(proc_version: str | None, dxg: bool) -> bool:
    """Whether a kernel is that of Windows Subsystem for Linux.

    Args:
        proc_version: Text of /proc/version.
        dxg: /dev/dxg exists, through which WSL 2 passes the GPU.
    """
    # The release alone: Microsoft builds other kernels too, and names itself behind it.
    release = re.match(r"Linux version (\S+)", proc_version or "")
    return dxg or (release is not None and "microsoft" in release[1].lower())


def under_wsl() -> bool:
    """Whether this process runs under WSL."""
    return is_wsl(_read(Path("/proc/version")), Path("/dev/dxg").exists())


def driver_version(text: str | None = None) -> str | None:
    """The version of NVIDIA's kernel module, such as ``580.65.06``; None where none is seen.

    Args:
        text: Text of /proc/driver/nvidia/version, to read that instead.
    """
    if text is None:
        text = _read(Path("/proc/driver/nvidia/version")) or ""
    found = re.search(r"Kernel Module.*?\s(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else None


def under_mps(proc: Path = Path("/proc")) -> bool:
    """Whether CUDA's Multi-Process Service serves this process, as far as a container shows it."""
    names = (_read(path) or "" for path in proc.glob("[0-9]*/comm"))
    return any(name.startswith(MPS_PROCESS) for name in names) or mps_control() is not None


def mps_control() -> Path | None:
    """Where a daemon of the Multi-Process Service listens, as every CUDA program looks for it.

    It may run in another container, so that nothing but its socket is seen here.
    """
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    control = Path(folder, "control")
    try:
        mode = control.stat().st_mode
    except OSError:
        return None
    return None if stat.S_ISSOCK(mode) and _is_abandoned(control) else control


def _is_abandoned(path: Path) -> bool:
    """A socket to which nobody listens any more: its daemon was killed."""
    with socket.socket(socket.AF_UNIX) as tried:
        tried.settimeout(1.0)
        try:
            tried.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # it answers otherwise, or not yet: no sign of that
            return False
    return False


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
