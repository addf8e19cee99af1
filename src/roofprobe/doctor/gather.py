"""Asks the machine. Whatever touches the driver runs in a process with a time limit."""

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from roofprobe import ncu_run, refusals
from roofprobe.counters import external
from roofprobe.doctor import child, facts
from roofprobe.doctor.facts import Counted, Facts, Failure, Gpu, Host, Ncu, SelfTest, Software
from roofprobe.errors import RoofprobeError

# Time limits, s: far above what a slow file system or a GPU with little fp64 needs, since the one
# thing that they stop is a hang.
PROBE_LIMIT: Final = 180.0
SELF_TEST_LIMIT: Final = 600.0
_SMI_LIMIT: Final = 30.0
_KILL_LIMIT: Final = 5.0

_VARIABLES: Final = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "CUDA_MPS_PIPE_DIRECTORY",
    refusals.MPS_ALLOWED,
    "NSYS_PROFILING_SESSION_ID",
    "NV_NSIGHT_INJECTION_PORT_BASE",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
    "NV_SANITIZER_INJECTION_PORT_BASE",
    "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN",
    "KINETO_USE_DAEMON",
)
_QUERY: Final = (
    "index,name,uuid,compute_cap,memory.total,clocks.max.sm,clocks.max.memory,"
    "clocks.applications.graphics,power.limit,mig.mode.current"
)

Say = Callable[[str], None]


def gather(selected: int, *, say: Say = lambda line: None) -> Facts:
    """Finds out everything but the self-test. Ends within minutes, whatever the driver does.

    Args:
        selected: CUDA's number of the GPU to measure on.
        say: Takes progress, a line at a time.
    """
    host = _host()
    say("=> asking the driver, PyTorch and CUPTI")
    answers, failure = _answers(child.PROBE, selected, PROBE_LIMIT)
    seen = tuple(_gpu(body) for body in answers.pop("gpu", []))
    listed, instances = _nvidia_smi()
    say("=> asking Nsight Compute")
    return Facts(
        host,
        _software(answers),
        facts.merged(listed, seen, instances),
        selected=selected,
        probe_failure=failure,
    )


def run_self_test(found: Facts, *, say: Say = lambda line: None) -> Facts:
    """The facts with work of known size counted on the selected GPU."""
    say("=> counting work of known size (some 10 s)")
    answers, failure = _answers(child.SELF_TEST, found.selected, SELF_TEST_LIMIT)
    counted = tuple(_counted(body) for body in answers.get("counted", []))
    return replace(found, self_test=SelfTest(counted, failure))


# -- Files --------------------------------------------------------------------------------


def _host() -> Host:
    status = _read("/proc/self/status")
    files = [name for name in ("/.dockerenv", "/run/.containerenv") if Path(name).exists()]
    cgroup, mounts = _read("/proc/self/cgroup"), _read("/proc/self/mounts")
    folders = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    control = refusals.mps_control()
    return Host(
        kernel=_read("/proc/version").strip() or None,
        dxg=Path("/dev/dxg").exists(),
        driver=refusals.driver_version(),
        admin_only=facts.admin_only(_read("/proc/driver/nvidia/params")),
        uid=facts.effective_uid(status),
        capabilities=facts.capabilities(status),
        own_user_namespace=facts.own_user_namespace(_read("/proc/self/uid_map")),
        container=facts.container(files, cgroup, mounts, os.environ),
        processes=refusals.processes(),
        mps_pipe=str(control) if control is not None else None,
        environment=_environment(),
        stubs=tuple(path for path in _in(folders, "libcuda.so*") if facts.is_stub(path)),
        cupti_in_front=_in(folders, "libcupti.so*"),
    )


def _environment() -> dict[str, str]:
    found = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # empty, it hides every GPU
        found["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _in(folders: Sequence[Path], pattern: str) -> tuple[str, ...]:
    """Distinct files in folders, links followed, but for those that name a folder of stubs."""
    found: dict[str, None] = {}
    for folder in folders:
        with suppress(OSError):
            for path in sorted(folder.glob(pattern)):
                found[str(path if facts.is_stub(str(path)) else path.resolve())] = None
    return tuple(found)


# -- Other programs -----------------------------------------------------------------------


def _nvidia_smi() -> tuple[tuple[Gpu, ...], Mapping[str, str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), {}
    listed = _Run.of([program, f"--query-gpu={_QUERY}", "--format=csv"], _SMI_LIMIT).output
    instances = _Run.of([program, "-L"], _SMI_LIMIT).output
    return facts.listed_gpus(listed), facts.mig_instances(instances)


def _ncu() -> Ncu | None:
    try:
        found = ncu_run.find_ncu()
    except RoofprobeError:
        return None
    return Ncu(found.path, found.version, tuple(sorted(found.chips)))


def _software(answers: Mapping[str, list[Any]]) -> Software:
    last: dict[str, Any] = {key: values[-1] for key, values in answers.items()}
    last.pop("stage", None)
    for key in [key for key in last if key.endswith("_failure")]:
        last[key] = Failure(**last[key])
    for key in ("chips", "loaded_cupti", "loaded_cuda"):
        last[key] = tuple(last.get(key, ()))
    return Software(cupti_python=_version("cupti-python"), ncu=_ncu(), **last)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu(body: dict[str, Any]) -> Gpu:
    return Gpu(**_with_failure(body))


def _counted(body: dict[str, Any]) -> Counted:
    return Counted(**_with_failure(body))


def _with_failure(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"failure": Failure(**body["failure"]) if body["failure"] else None}


# -- Processes with a time limit -----------------------------------------------------------


def _answers(what: str, selected: int, limit: float) -> tuple[dict[str, list[Any]], Failure | None]:
    """What the child answered, and how it ended unless well."""
    with tempfile.TemporaryDirectory(prefix="roofprobe-doctor-") as folder:
        path = Path(folder, "answers")
        path.touch()
        run = _Run.of([sys.executable, "-m", child.__name__, what, str(path), str(selected)], limit)
        answers: dict[str, list[Any]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the last line of a process that was killed
                for key, value in json.loads(line).items():
                    answers.setdefault(key, []).append(value)
    if run.end is None:
        return answers, None
    stage = answers.get("stage", ["starting Python"])[-1]
    said = [line.strip() for line in run.output.splitlines() if line.strip()]
    last = f"; its last line: {said[-1][:200]}" if said else ""
    return answers, Failure(f"{run.end} while {stage}{last}")


@dataclass(frozen=True, slots=True)
class _Run:
    """A program that has ended or was ended.

    Attributes:
        output: What it printed, both streams.
        end: How it ended; None for well.
    """

    output: str
    end: str | None

    @classmethod
    def of(cls, command: Sequence[str], limit: float) -> "_Run":
        """Runs a program for no longer than ``limit`` seconds."""
        # An overridden precision would change which kernels run; a mark of ``verify`` would end
        # the measurement.
        left_out = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", external.ENVIRONMENT)
        environment = {key: value for key, value in os.environ.items() if key not in left_out}
        # A file, since a pipe would have to be read until a process closes it that may never end.
        with tempfile.TemporaryFile() as stream:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                return cls("", f"could not be started ({error})")
            end = None
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                end = f"gave no answer and was stopped after {limit:.0f} s"
            else:
                end = _end(status)
            finally:
                if process.poll() is None:
                    _kill(process)
            stream.seek(0)
            return cls(stream.read().decode(errors="replace"), end)


def _end(status: int) -> str | None:
    if status >= 0:
        return f"ended with status {status}" if status else None
    known = {number.value: number.name for number in signal.Signals}
    return f"died of {known.get(-status, f'signal {-status}')}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process and its children; one that the driver holds fast is left behind."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_LIMIT)
