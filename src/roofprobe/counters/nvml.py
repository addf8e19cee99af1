"""NVML's GPU Performance Monitoring (GPM) of one GPU, and what is needed to read it rightly."""

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from roofprobe.errors import CounterPermissionError, UnsupportedDeviceError

# Metric ids (nvml.h, nvmlGpmMetricId_t): percentages of the time, or of the theoretical most.
IDS: Final = {
    "graphics": 1,
    "any_tensor": 5,
    "dfma": 6,
    "hmma": 7,
    "imma": 9,
    "dram": 10,
    "fp64": 11,
    "fp32": 12,
    "fp16": 13,
}
_INSTEAD: Final = "use --backend analytic"


class GpmReader:
    """GPM of one GPU.

    Args:
        uuid: ``GPU-...``, since NVML does not follow CUDA_VISIBLE_DEVICES.

    Raises:
        UnsupportedDeviceError: no NVML, no GPM on this device, or MIG is on.
        CounterPermissionError: NVML refuses this user.
    """

    def __init__(self, uuid: str) -> None:
        try:
            import pynvml
        except ImportError:
            raise UnsupportedDeviceError(
                f"GPM needs the package nvidia-ml-py: install it, or {_INSTEAD}"
            ) from None
        self._nvml = pynvml
        self._samples: list[Any] = []
        with self._translated():
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._check()

    def _check(self) -> None:
        nvml = self._nvml
        mode = nvml.NVML_DEVICE_MIG_DISABLE
        with suppress(nvml.NVMLError):  # devices that know no MIG answer with an error
            mode, _ = nvml.nvmlDeviceGetMigMode(self._handle)
        if mode == nvml.NVML_DEVICE_MIG_ENABLE:
            raise UnsupportedDeviceError(
                "MIG is on, where GPM's percentages have not been held against counters: "
                f"{_INSTEAD}"
            )
        if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            raise UnsupportedDeviceError(
                f"NVML has no GPM on this device (it takes Hopper or newer): {_INSTEAD}"
            )
        # A sandbox may answer yes to the above and refuse the sample.
        self.sample()
        self.free()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            refused = error.value == self._nvml.NVML_ERROR_NO_PERMISSION
            kind = CounterPermissionError if refused else UnsupportedDeviceError
            raise kind(f"NVML GPM cannot be read here: {error}; {_INSTEAD}") from None

    def sample(self) -> Any:
        """A sample for ``utilisation``, valid until ``free``; it may be up to 100 ms old."""
        with self._translated():
            sample = self._nvml.nvmlGpmSampleAlloc()
            self._samples.append(sample)
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return sample

    def utilisation(self, first: Any, second: Any) -> Mapping[str, float]:
        """Name in ``IDS`` -> mean fraction between two samples; what failed is missing."""
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(IDS)
        request.sample1, request.sample2 = first, second
        for index, number in enumerate(IDS.values()):
            request.metrics[index].metricId = number
        with self._translated():
            self._nvml.nvmlGpmMetricsGet(request)
        answers = {name: request.metrics[index] for index, name in enumerate(IDS)}
        return {
            name: answer.value / 100
            for name, answer in answers.items()
            if answer.nvmlReturn == self._nvml.NVML_SUCCESS and math.isfinite(answer.value)
        }

    def free(self) -> None:
        """Gives every sample back."""
        samples, self._samples = self._samples, []
        for sample in samples:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)

    def sm_clock(self) -> float | None:
        """The SM clock now, Hz."""
        return self._clock(self._nvml.NVML_CLOCK_SM)

    def dram_byte_per_s(self) -> float | None:
        """Theoretical DRAM bandwidth at the clock in force, which GPM's percentage refers to."""
        clock = self._clock(self._nvml.NVML_CLOCK_MEM)
        try:
            width = int(self._nvml.nvmlDeviceGetMemoryBusWidth(self._handle))  # bit
        except self._nvml.NVMLError:
            return None
        # Data move on both edges of the clock. H200: 3201 MHz and 6144 bit, 4.917 TB/s.
        return clock * 2 * width / 8 if clock and width else None

    def _clock(self, which: int) -> float | None:
        try:
            return 1e6 * float(self._nvml.nvmlDeviceGetClockInfo(self._handle, which))
        except self._nvml.NVMLError:
            return None

    def others_at_work(self, since: float) -> Sequence[int] | None:
        """Other processes whose kernels ran since a time (epoch, s); None where it is not known."""
        nvml = self._nvml
        try:
            seen = nvml.nvmlDeviceGetProcessUtilization(self._handle, int(since * 1e6))
        except nvml.NVMLError:
            return None
        busy = {each.pid for each in seen if each.smUtil}
        # In a container NVML may list numbers from outside of it, of which one can be this process.
        if busy and os.getpid() not in busy and not busy & _processes():
            return None
        return sorted(busy - {os.getpid()})


def _processes() -> set[int]:
    """Numbers of the processes that this one can see."""
    with suppress(OSError):
        return {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}
    return set()


class MeanClock:
    """Reads a clock on a thread while it is entered.

    Args:
        read: The clock now, Hz; None where it cannot be read.
    """

    _PERIOD: Final = 0.02  # s; a reading takes the GIL from a step for a moment

    def __init__(self, read: Callable[[], float | None]) -> None:
        self._read = read
        self._readings: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roofprobe-gpm-clock", daemon=True)

    def __enter__(self) -> "MeanClock":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def mean(self) -> float | None:
        """Mean reading, Hz; None without any."""
        return fmean(self._readings) if self._readings else None

    def _run(self) -> None:
        with suppress(Exception):  # a GPU that stops answering ends the readings, no more
            while not self._stop.wait(self._PERIOD):
                reading = self._read()
                if reading is not None:
                    self._readings.append(reading)
