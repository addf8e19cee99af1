"""Why counters are refused, and what to do about it: the one place for both.

Error messages and ``roofprobe doctor`` take their words from here. Numbers and meanings are CUPTI's
(cupti_result.h of CUPTI 13.0).
"""

import os
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Final, NamedTuple

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
OTHER_SUBSCRIBER: Final = 39
WSL: Final = 45
_NO_PROFILER: Final = 27
# Statuses that speak of another client in this process.
OF_THE_PROCESS: Final = (OTHER_SUBSCRIBER, 36, 38)
# Statuses that speak of the machine or the process, and not of one GPU.
NOT_OF_THE_GPU: Final = frozenset({HARDWARE_BUSY, INSUFFICIENT_PRIVILEGES, *OF_THE_PROCESS})

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
    OTHER_SUBSCRIBER: Refusal(
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

# Who may have the counters, by the signs that they leave.

# Processes, as /proc/PID/comm has them, which ends after 15 letters.
DCGM: Final = ("nv-hostengine", "dcgm-exporter", "dcgmi")
PROFILERS: Final = tuple(
    name[:15] for name in ("nsys", "nsys-launcher", "ncu", "nv-nsight-cu-cli", "compute-sanitizer")
)
ROOFPROBE: Final = "roofprobe"
_INJECTED: Final[Mapping[str, str]] = {
    "NSYS_PROFILING_SESSION_ID": "nsys",
    "NV_NSIGHT_INJECTION_PORT_BASE": "ncu",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "ncu",
    "NV_SANITIZER_INJECTION_PORT_BASE": "compute-sanitizer",
    "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN": "compute-sanitizer",
}
# PyTorch listens for a daemon wherever the latter is set, to 0 as well.
_LISTENERS: Final = ("NVTX_INJECTION64_PATH", "KINETO_USE_DAEMON")
# Parts of the file names of libraries that tools inject; a compiler's libsanitizer is none.
_INJECTORS: Final = re.compile(
    r"injection|injector|nsys|nsight|sanitizer-(?:collection|public)|nvbit", re.I
)
# Whose such a library is, by its path.
_OWNERS: Final[Mapping[str, str]] = {
    "nsight-systems|/nsys": "nsys",
    "nsight-compute|/ncu": "ncu",
    "sanitizer": "compute-sanitizer",
}


@dataclass(frozen=True, slots=True)
class Signs:
    """What shows who may have the counters.

    Attributes:
        tools: Those injected into this process, each with what shows it.
        listeners: Environment variables that let one in at any time.
        profilers: Processes that may hold the counters of a GPU.
        dcgm: DCGM's processes.
    """

    tools: Sequence[str] = ()
    listeners: Sequence[str] = ()
    profilers: Sequence[str] = ()
    dcgm: Sequence[str] = ()


def of_status(code: int | None, *, wsl: bool, signs: Signs = Signs()) -> Refusal | None:
    """What a CUPTI status means; None for one that is not about being refused.

    Args:
        code: The status.
        wsl: The process runs under WSL, where the driver may answer "no privileges" for a GPU that
            offers no counters at all (https://github.com/systalyze/utilyze/issues/4).
        signs: Of others at the counters. Without any the cause lists whoever it can be.
    """
    if wsl and code in (_NO_PROFILER, INSUFFICIENT_PRIVILEGES, WSL):
        return _STATUS[WSL]
    refusal = _STATUS.get(code) if code is not None else None
    if refusal is None:
        return None
    if code == HARDWARE_BUSY:
        return _busy(refusal, signs)
    named = ", ".join((*signs.tools, *signs.listeners))
    if named and code == OTHER_SUBSCRIBER:
        cause = f"another CUPTI client is active in this process, most likely {named}"
        return replace(refusal, cause=cause)
    if named and code in OF_THE_PROCESS:
        return replace(refusal, cause=f"{refusal.cause}; seen in it: {named}")
    return refusal


def _busy(general: Refusal, signs: Signs) -> Refusal:
    suspects = [", ".join(group) for group in (signs.tools, signs.profilers) if group]
    fix = "stop it or run without it, then measure again"
    if signs.dcgm:
        running = ", ".join(signs.dcgm)
        suspects.append(f"DCGM's profiling fields (before Hopper), with {running} running")
        fix = DCGM_FIX if len(suspects) == 1 else general.fix
    if not suspects:
        return general
    cause = f"the counters are taken, most likely by {' or by '.join(suspects)}"
    return replace(general, cause=cause, fix=fix)


def met(code: int | None) -> Refusal | None:
    """What a CUPTI status means that this process has just met, with who is seen to be the cause.

    Args:
        code: The status.
    """
    return of_status(code, wsl=under_wsl(), signs=_signs(code))


def _signs(code: int | None) -> Signs:
    if code != HARDWARE_BUSY and code not in OF_THE_PROCESS:
        return Signs()
    # Other processes hold a GPU's counters, and are no client in this one.
    seen = processes() if code == HARDWARE_BUSY else ()
    return Signs(
        tools=injected(os.environ, _read(Path("/proc/self/maps")) or ""),
        listeners=listeners(os.environ),
        profilers=tuple(text for text in seen if process_name(text) in (*PROFILERS, ROOFPROBE)),
        dcgm=tuple(text for text in seen if process_name(text) in DCGM),
    )


def injected(environment: Mapping[str, str], maps: str = "") -> tuple[str, ...]:
    """Tools that were put into a process, each with what shows it.

    Args:
        environment: Its environment variables.
        maps: Text of its maps file.
    """
    found = [f"{tool} ({name})" for name, tool in _INJECTED.items() if environment.get(name)]
    if environment.get("CUDA_INJECTION64_PATH"):
        found.append(f"CUDA_INJECTION64_PATH={environment['CUDA_INJECTION64_PATH']}")
    preloaded = re.split(r"[:\s]+", environment.get("LD_PRELOAD", ""))
    found += [f"LD_PRELOAD={path}" for path in preloaded if _is_injector(path)]
    told = " ".join(found)
    for path in dict.fromkeys(re.findall(r"^(?:\S+ +){5}(/.*\.so[.\d]*)$", maps, re.MULTILINE)):
        if _is_injector(path) and path not in told:
            owners = (tool for sign, tool in _OWNERS.items() if re.search(sign, path))
            tool = next(owners, None)
            found.append(f"{tool} ({path})" if tool is not None else path)
    return tuple(found)


def listeners(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Environment variables that let a tool in at any time."""
    return tuple(name for name in _LISTENERS if name in environment)


def _is_injector(path: str) -> bool:
    return _INJECTORS.search(PurePath(path).name) is not None


def process_name(text: str) -> str:
    """The name in a text of ``processes``."""
    return text.partition(" (")[0]


class _Process(NamedTuple):
    name: str
    parent: int


# Reading /proc may hang on a process that the driver holds fast.
_SCAN_LIMIT: Final = 0.5  # s


def processes(proc: Path = Path("/proc"), *, own: int | None = None) -> tuple[str, ...]:
    """Processes that may hold or share counters: ``ncu (process 4242)``, by their numbers.

    Those of roofprobe are named ``roofprobe``, but for this one and those that it comes from or has
    started, and those that another one has started. What cannot be read is passed over.

    Args:
        proc: Where the system lists them.
        own: The number of this process.
    """
    found: dict[int, str] = {}
    until = time.monotonic() + _SCAN_LIMIT
    arguments = (proc, os.getpid() if own is None else own, found, until)
    scan = threading.Thread(target=_scan, args=arguments, name="roofprobe-processes", daemon=True)
    with suppress(RuntimeError):  # no thread is to be had any more
        scan.start()
        scan.join(_SCAN_LIMIT)
    return tuple(f"{name} (process {pid})" for pid, name in sorted(found.copy().items()))


def _scan(proc: Path, own: int, found: dict[int, str], until: float) -> None:
    every = dict(_listed(proc))
    for pid, process in every.items():
        if process.name in (*DCGM, *PROFILERS) or process.name.startswith(MPS_PROCESS):
            found[pid] = process.name
    family = {own, *_line(own, every)}
    measuring: set[int] = set()
    for pid in every:
        if time.monotonic() > until:
            break
        if pid not in family and own not in _line(pid, every) and _runs_roofprobe(proc / str(pid)):
            measuring.add(pid)
    # Workers of a loader carry all that their process has loaded.
    found |= {pid: ROOFPROBE for pid in measuring if not measuring & set(_line(pid, every))}


def _listed(proc: Path) -> Iterator[tuple[int, _Process]]:
    with suppress(OSError):
        for folder in proc.iterdir():
            # Number, name in parentheses, state, parent; the name may hold anything.
            text = _read(folder / "stat") if folder.name.isdecimal() else None
            name, _, rest = (text or "").partition("(")[2].rpartition(") ")
            values = rest.split(" ", 2)
            if len(values) == 3 and values[0] not in "ZX" and values[1].isdecimal():
                yield int(folder.name), _Process(name, int(values[1]))


def _line(pid: int, every: Mapping[int, _Process]) -> list[int]:
    """The processes that a process comes from, its parent first."""
    found: list[int] = []
    while pid in every and every[pid].parent not in found:
        pid = every[pid].parent
        found.append(pid)
    return found


def _runs_roofprobe(folder: Path) -> bool:
    """Whether a process has our extension; where that cannot be read, whether its command is ours.

    Args:
        folder: Of the process, in /proc.
    """
    maps = _read(folder / "maps")
    if maps is not None:
        return "/roofprobe/_native." in maps
    command = (_read(folder / "cmdline") or "").split("\0")
    if any(PurePath(argument).name == ROOFPROBE for argument in command[:2]):
        return True
    module = next((name for option, name in pairwise(command) if option == "-m"), "")
    return module.partition(".")[0] == ROOFPROBE


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
