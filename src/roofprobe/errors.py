"""The exception tree. Every message says what failed, what was asked and what to do next."""


class RoofprobeError(Exception):
    """Base of everything that roofprobe raises on purpose; its text is meant for the user."""


class CuptiError(RoofprobeError):
    """A CUPTI call failed.

    Attributes:
        code: CUPTI's status, or None where the library itself could not be used.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class CuptiLibraryError(CuptiError):
    """libcupti is missing, too old for the range profiler, or loaded twice."""


class CounterPermissionError(CuptiError):
    """The system refuses hardware counters to this user."""


class UnsupportedDeviceError(CuptiError):
    """The chip or its configuration has no range profiler."""


class SharedDeviceError(UnsupportedDeviceError):
    """Counters here are those of several processes together."""


class ForeignContextError(CuptiError):
    """Kernels run in another CUDA context than the one whose counters are read."""


class CountersBusyError(CuptiError):
    """Another profiler holds the counters."""


# One class for each status that CUPTI has for a refusal (``refusals`` says which is which).


class HardwareBusyError(CountersBusyError):
    """Another client holds the performance monitors: DCGM, or a profiler of another process."""


class OldProfilerError(CountersBusyError):
    """CUPTI's old event API is in use in this process."""


class OtherSubscriberError(CountersBusyError):
    """Another CUPTI client is in this process."""


class VirtualGpuError(UnsupportedDeviceError):
    """A virtual GPU that cannot be profiled."""


class VirtualGpuPermissionError(CounterPermissionError):
    """A virtual GPU whose hypervisor does not allow profiling."""


class OldApiUnsupportedError(UnsupportedDeviceError):
    """CUPTI's old event API was asked for on a chip that does not have it."""


class ConfidentialComputingError(UnsupportedDeviceError):
    """Confidential computing is on."""


class MiningProcessorError(UnsupportedDeviceError):
    """A mining processor (CMP)."""


class MigUnsupportedError(UnsupportedDeviceError):
    """A MIG instance that cannot be profiled."""


class SliUnsupportedError(UnsupportedDeviceError):
    """SLI is on."""


class WslUnsupportedError(UnsupportedDeviceError):
    """Windows Subsystem for Linux offers no counters of this device."""


class UnknownChipError(UnsupportedDeviceError):
    """This libcupti does not know the chip."""


class UnknownMetricError(RoofprobeError):
    """A metric or metric set that does not exist, or does not exist on this chip."""


class MeasurementActiveError(RoofprobeError):
    """A second measurement was started inside a first."""


class RecordError(RoofprobeError):
    """A run file or counter-data file that cannot be read."""


class UsageError(RoofprobeError):
    """Arguments that make no sense together."""
