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


class CountersBusyError(CuptiError):
    """Another profiler holds the counters."""


class UnknownMetricError(RoofprobeError):
    """A metric or metric set that does not exist, or does not exist on this chip."""


class MeasurementActiveError(RoofprobeError):
    """A second measurement was started inside a first."""


class RecordError(RoofprobeError):
    """A run file or counter-data file that cannot be read."""


class UsageError(RoofprobeError):
    """Arguments that make no sense together."""
