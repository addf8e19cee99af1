"""What the machine and the software are, asked once and explicitly."""

import importlib.metadata
import platform
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from roofprobe.counters import cupti
from roofprobe.errors import RoofprobeError
from roofprobe.record import Clocks, Environment, Scalar

_SAMPLE_PERIOD: Final = 0.02  # s; a reading takes the GIL from a step for a moment


def collect(device: torch.device) -> Environment:
    """The environment of a measurement on ``device``. Never fails: what it cannot read is None."""
    shared: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "roofprobe": importlib.metadata.version("roofprobe"),
        "platform": platform.platform(),
        "precision": _precision(),
        "command": tuple(printable(argument) for argument in sys.orig_argv),
    }
    if device.type != "cuda":
        memory = _cpu_memory()
        return Environment(_cpu_name(), "cpu", memory_byte=memory, **shared)
    properties = torch.cuda.get_device_properties(device)
    chip = version = cuda_driver = None
    with suppress(RoofprobeError):
        version, cuda_driver = cupti.cupti_version(), cupti.cuda_driver_version()
        chip = cupti.chip_of(device.index or 0)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return Environment(
        properties.name,
        "cuda",
        chip=chip,
        uuid=f"GPU-{properties.uuid}",
        compute_capability=f"{properties.major}.{properties.minor}",
        sm_count=properties.multi_processor_count,
        memory_byte=properties.total_memory,
        driver=_driver(),
        cuda_driver=cuda_driver,
        cupti=version,
        cuda_runtime=torch.version.cuda,
        cudnn=str(cudnn) if cudnn else None,
        **shared,
    )


def printable(text: str) -> str:
    r"""``text`` from the system, where it is no UTF-8 with escapes: ``lat\xe9`` for Latin-1.

    Python keeps such bytes as halves of surrogate pairs, which no file of text can hold.
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@contextmanager
def sampled_clocks(device: torch.device) -> Iterator[list[Clocks]]:
    """Samples clocks through NVML, on a thread, while the body runs.

    The list that it yields holds one ``Clocks`` after the body, or stays empty where NVML gives
    none (no GPU, no driver library, not permitted).
    """
    found: list[Clocks] = []
    reader = _clock_reader(device) if device.type == "cuda" else None
    if reader is None:
        yield found
        return
    samples: list[tuple[float, float | None]] = [reader()]
    stop = threading.Event()

    def sample() -> None:
        with suppress(Exception):  # a GPU that stops answering ends the sampling, no more
            while not stop.wait(_SAMPLE_PERIOD):
                samples.append(reader())

    thread = threading.Thread(target=sample, name="roofprobe-clocks", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
    # The first reading may show a GPU that has not yet left its idle clock.
    used = samples[1:] or samples
    sm = [clock for clock, _ in used]
    memory = [clock for _, clock in used if clock is not None]
    found.append(
        Clocks((min(sm), median(sm), max(sm)), median(memory) if memory else None, len(used))
    )


def now_utc() -> str:
    """The time, UTC, ISO 8601 to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _clock_reader(device: torch.device) -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
        # By UUID: NVML does not follow CUDA_VISIBLE_DEVICES.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except Exception:  # NVML's errors and its absence both mean: no clocks
        return None

    def read() -> tuple[float, float | None]:
        sm = 1e6 * pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        try:
            return sm, 1e6 * pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
        except pynvml.NVMLError:
            return sm, None

    return read


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # as above
        return None


def _precision() -> dict[str, Scalar]:
    return {
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "autocast": torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "num_threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cpu_memory() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    return int(text.split("MemTotal:")[1].split()[0]) * 1024
