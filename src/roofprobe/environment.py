"""What the machine and the software are, asked once and explicitly."""

import importlib.metadata
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
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
        "roofprobe": _told(lambda: importlib.metadata.version("roofprobe")),
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
    cudnn = _told(torch.backends.cudnn.version)
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


def autocast_dtype() -> str | None:
    """What autocast casts to at this moment in this thread, ``bfloat16`` say; None where off."""
    for kind in ("cuda", "cpu"):
        if torch.is_autocast_enabled(kind):
            return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
    return None


def ranks() -> dict[str, int]:
    """``rank`` and ``world_size`` of this process in PyTorch's process group; empty without one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    return {
        "rank": torch.distributed.get_rank(),
        "world_size": torch.distributed.get_world_size(),
    }


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


# PyTorch has two interfaces to the precision of fp32 arithmetic. Once the newer one was used, the
# older raises where it has no words for what is set, and the newer can be read whatever was used.
def _precision() -> dict[str, Scalar]:
    """PyTorch's settings, through whichever interface they were made; None where not known."""
    conv, rnn = _fp32("cudnn.conv"), _fp32("cudnn.rnn")
    products = _fp32("cuda.matmul")
    return {
        "cudnn_allow_tf32": _allowed("cudnn", conv) if _is_tf32(conv) == _is_tf32(rnn) else None,
        "matmul_allow_tf32": _allowed("cuda.matmul", products),
        "float32_matmul_precision": _matmul_precision(products),
        **_autocast(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "num_threads": torch.get_num_threads(),
        **_by_operator(conv, rnn),
    }


def _by_operator(conv: str | None, rnn: str | None) -> dict[str, Scalar]:
    """What the other settings do not tell: operators of one library that are set apart."""
    found: dict[str, Scalar] = {}
    if _is_tf32(conv) != _is_tf32(rnn):
        found |= {"cudnn_conv_fp32_precision": conv, "cudnn_rnn_fp32_precision": rnn}
    for operator in ("conv", "matmul", "rnn"):  # the CPU's
        precision = _fp32(f"mkldnn.{operator}")
        if precision in ("bf16", "tf32"):
            found[f"mkldnn_{operator}_fp32_precision"] = precision
    return found


def _fp32(operator: str) -> str | None:
    """The newer interface's setting: ``tf32``, ``bf16``, or ``ieee`` and ``none`` for full fp32."""
    found = _told(lambda: attrgetter(f"{operator}.fp32_precision")(torch.backends))
    return str(found) if found is not None else None


def _is_tf32(precision: str | None) -> bool | None:
    return None if precision is None else precision == "tf32"


def _allowed(library: str, precision: str | None) -> bool | None:
    """Whether TF32 is on, by the newer interface, or by the older where there is no newer."""
    if precision is not None:
        return _is_tf32(precision)
    found = _told(lambda: attrgetter(f"{library}.allow_tf32")(torch.backends))
    return bool(found) if found is not None else None


def _matmul_precision(products: str | None) -> str | None:
    """The older interface's word for matrix products; None where it is not what holds."""
    found = _told(torch.get_float32_matmul_precision)
    tf32 = _is_tf32(products)
    # The newer interface leaves the word of the older one as it was.
    return found if tf32 is None or found is None or (found != "highest") == tf32 else None


def _autocast() -> dict[str, Scalar]:
    dtype = autocast_dtype()
    # A step switches it on and off again: that it is off now says nothing.
    return {"autocast": True, "autocast_dtype": dtype} if dtype else {"autocast": None}


def _told(ask: Callable[[], Any]) -> Any:
    """An answer; None where there is none, for whatever reason."""
    with suppress(Exception):
        return ask()
    return None


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
        return int(text.split("MemTotal:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None
