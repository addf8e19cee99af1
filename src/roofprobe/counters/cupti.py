"""Hardware counters through CUPTI's range profiler: the only module that imports ``_native``.

One round is one set of passes in user-range, user-replay mode: the same step is run once a pass.
Every pass opens with an empty throw-away range, because the first range after a start can read
high (docs/design.md, "Throw-away range"), and ranges of one name would be added up.
"""

import difflib
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from roofprobe import _native, refusals
from roofprobe import metrics as table
from roofprobe._location import find_libcupti, mixed_up
from roofprobe.counters import Plan, RegionCounters, RoundCounters
from roofprobe.errors import (
    CuptiError,
    CuptiLibraryError,
    ForeignContextError,
    RecordError,
    SharedDeviceError,
    UnknownMetricError,
    UnsupportedDeviceError,
)

SOURCE: Final = "cupti"
STEP_RANGE: Final = "step"
_DISCARD_RANGE: Final = "discard"
# Regions are numbers here: how long a range's name may be is not documented, and names of modules
# are long.
_REGION_PREFIX: Final = "region"


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Turns the extension's errors into ours: what failed, what was asked, what to do next."""
    try:
        yield
    except _native.CuptiError as error:
        raise _refused(f"{doing}: {error}", error.code) from None
    except (_native.LibraryError, _native.DriverError) as error:
        mixed = mixed_up()
        raise CuptiLibraryError(f"{doing}: {error}{f'; {mixed}' if mixed else ''}") from None


def _refused(what: str, code: int | None) -> CuptiError:
    """The error for a CUPTI status, with its cause, the remedy and every version that matters."""
    refusal, versions = refusals.met(code), _versions()  # which has loaded the driver, or its stub
    mixed = mixed_up() if refusal is None or refusal.kind is CuptiError else None
    if refusal is None or mixed is not None:
        hint = mixed or "try a smaller metric set (--metrics memory) or --backend analytic"
        return CuptiError(f"{what}; {hint} ({versions})", code)
    return refusal.kind(f"{what}; {refusal.cause}: {refusal.fix} ({versions})", code)


def _versions() -> str:
    version = refusals.driver_version()
    driver = f"driver {version}" if version is not None else "driver"
    try:
        driver += f" for CUDA {cuda_driver_version()}"
    except CuptiError:
        driver = f"{driver} that does not answer" if version is not None else "no driver"
    found = [f"CUPTI {version_text(_native.cupti_version())}", driver]
    # The driver's own list: asking CUDA could fail as well.
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            name = path.read_text().partition("Model:")[2].partition("\n")[0].strip()
            found += [name] if name and name not in found else []
    return ", ".join(found)


def version_text(version: int) -> str:
    """``130001`` as ``13.0.1``; the older numbering (26 is CUDA 12.8) as ``API 26``."""
    if version < 10000:
        return f"API {version}"
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


_load_lock = threading.Lock()


def load() -> str:
    """Loads libcupti once for the process and returns its path.

    Raises:
        CuptiLibraryError: none found, too old for the range profiler, or two copies.
    """
    with _load_lock:
        try:
            return _native.cupti_path()
        except _native.LibraryError:
            pass
        path = str(find_libcupti())
        with _translated("loading CUPTI"):
            _native.load_cupti(path)
        return path


def cupti_version() -> str:
    """Version of the loaded libcupti."""
    load()
    return version_text(_native.cupti_version())


def cuda_driver_version() -> str:
    """The CUDA version that the driver supports, e.g. ``13.0``."""
    with _translated("asking the driver for its version"):
        version = _native.driver_version()
    return f"{version // 1000}.{version % 1000 // 10}"


def supported_chips() -> list[str]:
    """Chips that this libcupti knows. Needs no GPU."""
    load()
    with _translated("listing chips"):
        return _native.supported_chips()


def evaluator(chip: str) -> _native.HostEvaluator:
    """CUPTI's host side for a chip name. Needs no GPU.

    Raises:
        UnsupportedDeviceError: the chip is unknown to this libcupti or has no range profiler.
    """
    known = supported_chips()
    if chip not in known:
        raise UnsupportedDeviceError(
            f"CUPTI {cupti_version()} knows no chip {chip!r}: {_other_chip(chip, known)}"
        )
    with _translated(f"chip {chip}"):
        return _native.HostEvaluator(chip)


def _other_chip(chip: str, known: Sequence[str]) -> str:
    """What to do about an unknown name."""
    close = difflib.get_close_matches(chip.upper(), known, n=1)
    return (
        (f"did you mean {close[0]}? " if close else "")
        + "`roofprobe metrics` lists those that it knows; a newer GPU needs a newer PyTorch, which "
        "brings a newer libcupti"
    )


def chip_of(device: int) -> str:
    """CUPTI's chip name of a CUDA device, e.g. ``GH100``."""
    load()
    with _translated(f"CUDA device {device}"):
        return _native.chip_name(device)


def device_support(device: int) -> dict[str, str]:
    """What CUPTI says of range profiling on a CUDA device, without starting any.

    Returns:
        Feature (``overall``, ``architecture``, ``vgpu``, ``wsl``, ...) -> ``supported``,
        ``unsupported``, ``disabled`` or ``unknown``.
    """
    load()
    with _translated(f"CUDA device {device}"):
        return _native.device_support(device)


def primary_context_id(device: int) -> int:
    """CUPTI's number of a CUDA device's primary context, the one that is counted."""
    load()
    with _translated(f"CUDA device {device}"):
        return _native.primary_context_id(device)


def require_primary_context(device: int) -> None:
    """Makes sure that what this thread launches on a CUDA device is counted.

    Raises:
        ForeignContextError: it would run in a context of somebody's own.
    """
    load()
    with _translated(f"CUDA device {device}"):
        foreign = _native.foreign_context_is_current(device)
    if foreign:
        raise ForeignContextError(
            f"kernels on CUDA device {device} would run in a CUDA context that a library made for "
            "itself (cuCtxCreate), and the counters are those of PyTorch's own: take it off this "
            "thread while measuring (cuCtxPopCurrent)"
        )


def require_counters(device: int) -> None:
    """Raises what stands between this process and the counters of a CUDA device.

    Raises:
        CuptiError: the device is not supported or its counters are refused; see its subclasses.
    """
    # Only a clear no is one; where the question itself fails, the next one decides.
    support: Mapping[str, str] = {}
    with suppress(CuptiError):
        support = device_support(device)
    code = refusals.status_of_support(support)
    if code is not None:
        raise _refused(f"CUDA device {device} cannot be profiled", code)
    with _translated(f"asking CUDA device {device} for its counters"):
        _availability(device)


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """The outcome of ``schedule`` on a device, and the evaluator that it was made with."""

    host: _native.HostEvaluator
    plan: _native.Schedule | None
    metrics: tuple[str, ...]
    unavailable: Mapping[str, str]


_availability_lock = threading.Lock()


@cache
def _asked_availability(device: int) -> _native.AvailabilityImage:
    return _native.counter_availability(device)


def _availability(device: int) -> _native.AvailabilityImage:
    # Asking costs 80 ms (130 to 500 ms the first time) and the answer is the device's, so it is
    # asked once, also where two threads want it; a failure is not cached.
    with _availability_lock:
        return _asked_availability(device)


@cache
def _scheduled(device: int, names: tuple[str, ...]) -> _Scheduled:
    """What a device will count of some metrics.

    The answer stays the same, and takes 20 ms beside a training step, so it is formed once.
    """
    host = _native.HostEvaluator(chip_of(device), _availability(device))
    return _Scheduled(host, *schedule(host, names))


def described(host: _native.HostEvaluator, metric: str) -> _native.MetricDescription | None:
    """What CUPTI says of a metric that can be summed.

    Args:
        host: Evaluator of the chip.
        metric: Name without roll-up.

    Returns:
        None for one without a sum, and for one whose roll-ups CUPTI refuses to tell, as it does
        for those of its own groups (``TPC.TriageCompute...``).
    """
    try:
        return host.describe(f"{metric}.sum") if ".sum" in host.submetrics(metric) else None
    except _native.CuptiError:
        return None


def schedule(
    host: _native.HostEvaluator, metrics: Sequence[str]
) -> tuple[_native.Schedule | None, tuple[str, ...], dict[str, str]]:
    """Schedules what can be scheduled.

    Args:
        host: Evaluator of the chip (with the device's availability, where there is one).
        metrics: Names with roll-up.

    Returns:
        The schedule (None when nothing is left), the metrics in it, and metric -> reason for
        those that dropped out.
    """
    unique = list(dict.fromkeys(metrics))
    unavailable: dict[str, str] = {}
    try:
        plan = host.schedule(unique)
    except _native.CuptiError:
        plan = None
    if plan is None:
        # One bad name refuses them all: find it by asking for each alone, then adding them up.
        known = set(host.metrics())
        good: list[str] = []
        for name in unique:
            try:
                plan = host.schedule([*good, name])
                good.append(name)
            except _native.CuptiError as error:
                base = name.partition(".")[0]
                unavailable[name] = (
                    f"not offered by this device ({error.name})"
                    if base in known
                    else f"does not exist on chip {host.chip}"
                )
        unique = good
        plan = host.schedule(good) if good else None
    if plan is not None and plan.passes == 0:
        unavailable |= dict.fromkeys(unique, "CUPTI schedules 0 passes for it")
        return None, (), unavailable
    return plan, tuple(unique), unavailable


def evaluate_image(sealed: bytes, metrics: Sequence[str]) -> RoundCounters:
    """Values of the step's range in a sealed counter-data image. Needs no GPU.

    Raises:
        RecordError: truncated, corrupted, or without a step range.
        UnsupportedDeviceError: an image of a chip that this libcupti does not know.
    """
    return _evaluate(*_unsealed(sealed), metrics, ranges_dropped=0)


def evaluate_regions(sealed: bytes, metrics: Sequence[str]) -> RegionCounters:
    """Values of every region in a sealed counter-data image. Needs no GPU.

    Raises:
        RecordError: truncated, corrupted, or with ranges that are no regions.
        UnsupportedDeviceError: an image of a chip that this libcupti does not know.
    """
    return _evaluate_regions(*_unsealed(sealed), metrics, ranges_dropped=0)


def _unsealed(sealed: bytes) -> tuple[_native.HostEvaluator, _native.CounterDataImage]:
    try:
        image = _native.CounterDataImage.unseal(sealed)
    except _native.ImageError as error:
        raise RecordError(str(error)) from None
    return evaluator(image.chip), image


def _evaluate(
    host: _native.HostEvaluator,
    image: _native.CounterDataImage,
    metrics: Sequence[str],
    ranges_dropped: int,
) -> RoundCounters:
    with _translated("evaluating counter data"):
        names = host.range_names(image)
        if STEP_RANGE not in names:
            raise RecordError(f"counter data holds no range {STEP_RANGE!r} but {names}")
        index = names.index(STEP_RANGE)
        values, reasons = _evaluate_range(host, image, index, metrics, ranges_dropped)
    return RoundCounters(values, reasons, ranges_dropped, image.seal())


def _evaluate_regions(
    host: _native.HostEvaluator,
    image: _native.CounterDataImage,
    metrics: Sequence[str],
    ranges_dropped: int,
) -> RegionCounters:
    found: dict[int, Mapping[str, float | None]] = {}
    reasons: dict[str, str] = {}
    with _translated("evaluating counter data"):
        for index, name in enumerate(host.range_names(image)):
            if name == _DISCARD_RANGE:
                continue
            number = name.removeprefix(_REGION_PREFIX)
            if not (name.startswith(_REGION_PREFIX) and number.isdecimal()):
                raise RecordError(f"counter data holds a range {name!r}, which is no region")
            values, why = _evaluate_range(host, image, index, metrics, ranges_dropped)
            region = int(number)
            if region in found:  # ranges of one name come back as one, as far as seen
                values = _added(found[region], values)
            found[region] = values
            reasons |= why
    return RegionCounters(found, reasons, ranges_dropped, image.seal())


def _added(
    first: Mapping[str, float | None], second: Mapping[str, float | None]
) -> dict[str, float | None]:
    """Sums of what can be summed up."""
    total: dict[str, float | None] = {}
    for name, value in first.items():
        other = second[name]
        if value is None or other is None or not name.endswith(".sum"):
            total[name] = None
        else:
            total[name] = value + other
    return total


def _evaluate_range(
    host: _native.HostEvaluator,
    image: _native.CounterDataImage,
    index: int,
    metrics: Sequence[str],
    ranges_dropped: int,
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Values of one range, and why for each that is None."""
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    absent = _absent(host, image, index, metrics)
    asked = [name for name in metrics if name not in absent]
    try:
        raw = dict(host.evaluate(image, index, asked))
    except _native.CuptiError:
        raw = {name: _evaluate_one(host, image, index, name) for name in asked}
    raw |= dict.fromkeys(absent, 0.0)
    for name in metrics:
        value = raw[name]
        if ranges_dropped:
            values[name], reasons[name] = None, f"{ranges_dropped} ranges were dropped"
        elif math.isfinite(value):
            values[name] = value
        else:
            values[name], reasons[name] = None, "CUPTI could not form a value (NaN)"
    return values, reasons


def _absent(
    host: _native.HostEvaluator,
    image: _native.CounterDataImage,
    index: int,
    metrics: Sequence[str],
) -> frozenset[str]:
    """Instrumented metrics that are 0 because the pipe that executes them did nothing."""
    gate = table.gate_of(host.chip)
    if gate is None or gate.name not in metrics:
        return frozenset()
    quiet = _evaluate_one(host, image, index, gate.name) == 0
    return frozenset(table.behind(gate, host.chip)) if quiet else frozenset()


def _evaluate_one(
    host: _native.HostEvaluator, image: _native.CounterDataImage, index: int, name: str
) -> float:
    try:
        return host.evaluate(image, index, [name])[0][1]
    except _native.CuptiError:
        return math.nan


def _around_gate(
    metrics: Sequence[str], chip: str
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Metrics with the chip's gate among them, and the same without what lies behind it.

    Returns:
        The metrics alone, and None, where there is no gate or nothing would be saved.
    """
    gate = table.gate_of(chip)
    hidden = table.behind(gate, chip) if gate is not None else ()
    if gate is None or not set(hidden) <= set(metrics):
        return tuple(metrics), None
    gated = table.with_gate(metrics, gate)
    return tuple(gated), tuple(name for name in gated if name not in hidden)


class CuptiBackend:
    """Counts on one CUDA device (see ``CounterBackend``).

    Instrumented instructions that hardly any step runs are left out of a round's first passes where
    a hardware counter shows, at no price, whether there were any (``metrics.Gate``). Where there
    were, the round starts over in a session that counts everything: one configuration is all that a
    session takes.

    Args:
        device: CUDA device index, as PyTorch numbers them.
        synchronize: Waits until the device has finished; called before every range boundary.
    """

    source = SOURCE

    def __init__(self, device: int, synchronize: Callable[[], None]) -> None:
        self._device = device
        self._synchronize = synchronize
        self._whole: _Scheduled | None = None  # everything that was asked for
        self._spared: _Scheduled | None = None  # without what lies behind the gate
        self._used: _Scheduled | None = None  # one of the two
        self._names: tuple[str, ...] = ()  # whose values are told
        self._gate_open = False  # steps of this backend did what lies behind the gate
        self._session: _native.RangeSession | None = None
        self._fresh = True  # False once a round has been collected: the session must be reset
        self._decoded: tuple[_native.CounterDataImage, int] | None = None
        self._without: RoundCounters | None = None  # a round without what lies behind the gate

    @property
    def chip(self) -> str:
        """CUPTI's chip name."""
        return chip_of(self._device)

    def prepare(self, metrics: Sequence[str]) -> Plan:
        """Schedules the metrics that this device offers.

        Raises:
            CuptiError: CUPTI refuses the device or the user; see its subclasses.
            UnknownMetricError: none of the metrics can be counted here.
        """
        shared = refusals.under_mps()
        if shared and os.environ.get(refusals.MPS_ALLOWED) != "1":
            raise SharedDeviceError(f"{refusals.MPS_SHARED}: {refusals.MPS_FIX}")
        chip = self.chip
        require_counters(self._device)
        with _translated(f"asking CUDA device {self._device} for its counters"):
            gated, spared = _around_gate(metrics, chip)
            self._whole = _scheduled(self._device, gated)
            self._spared = None
            if spared is not None and not self._gate_open:
                # Where the gate itself cannot be counted, nothing is spared.
                sparing = _scheduled(self._device, spared)
                self._spared = None if sparing.unavailable else sparing
        whole = self._whole
        if whole.plan is None:
            reasons = "; ".join(f"{name}: {why}" for name, why in whole.unavailable.items())
            raise UnknownMetricError(
                f"none of the {len(metrics)} metrics asked for can be counted on {chip} "
                f"({reasons or 'no metric was named'}); "
                f"list what exists with: roofprobe metrics --chip {chip}"
            )
        self._names = whole.metrics
        notes = {"shared": refusals.MPS_SHARED} if shared else {}
        if self._spared is None or self._spared.plan is None:
            return Plan(self._names, whole.plan.passes, whole.unavailable, notes=notes)
        return Plan(
            self._names,
            self._spared.plan.passes,
            whole.unavailable,
            notes=notes,
            retry=whole.plan.passes,
        )

    def open(self) -> None:
        """Enables the range profiler on the device's primary context."""
        self._open(self._spared or self._whole, max_ranges=2)

    def open_regions(self, switches: int) -> None:
        """The same for passes with so many switches between regions at most.

        Ranges of one name are added up in the end, and still each needs its room (26 KB): with
        less the process crashed (docs/design.md, "Parts of a step").
        """
        self._open(self._whole, max_ranges=2 + switches)

    def _open(self, scheduled: _Scheduled | None, max_ranges: int) -> None:
        assert scheduled is not None and scheduled.plan is not None, "prepare() comes first"
        require_primary_context(self._device)  # here, as prepare() runs on another thread
        self._synchronize()
        with _translated("opening a range profiler session"):
            self._session = _native.RangeSession(
                self._device,
                scheduled.host.chip,
                list(scheduled.metrics),
                scheduled.plan.config,
                max_ranges=max_ranges,
            )
        self._used = scheduled
        self._fresh = True

    def begin_pass(self) -> None:
        """Starts a pass; what runs from here on belongs to the step."""
        self._begin(STEP_RANGE)

    def begin_regions(self, region: int) -> None:
        """Starts a pass; what runs from here on belongs to a region."""
        self._begin(f"{_REGION_PREFIX}{region}")

    def switch(self, region: int) -> None:
        """Waits for what was issued; what runs from here on belongs to another region."""
        session = self._opened()
        self._synchronize()
        with _translated("going from one region to the next"):
            session.pop()
            session.push(f"{_REGION_PREFIX}{region}")

    def _begin(self, name: str) -> None:
        session = self._opened()
        self._synchronize()
        with _translated("starting a pass"):
            if not self._fresh:
                session.reset()
                self._fresh = True
            session.start()
            session.push(_DISCARD_RANGE)
            session.pop()
            session.push(name)

    def end_pass(self) -> bool:
        """Ends the pass; True when CUPTI has all passes of the round."""
        session = self._opened()
        self._synchronize()
        with _translated("ending a pass"):
            session.pop()
            submitted = session.stop().all_passes_submitted
        if submitted and self._used is self._spared and self._found_gate_open():
            self._without = self._as_far_as_counted()
            self._gate_open = True
            self._spared = None
            self.close()
            self.open()
            return False
        return submitted

    def _found_gate_open(self) -> bool:
        """True where the round just counted did what was left out of it, or may have."""
        assert self._used is not None
        image, dropped = self._decoded = self._decode()
        gate = table.gate_of(image.chip)
        assert gate is not None
        counts = _evaluate(self._used.host, image, (gate.name,), dropped)
        return counts.values[gate.name] != 0

    def _as_far_as_counted(self) -> RoundCounters:
        assert self._used is not None and self._decoded is not None
        image, dropped = self._decoded
        counted = _evaluate(self._used.host, image, self._used.metrics, dropped)
        hidden = [name for name in self._names if name not in self._used.metrics]
        why = "the loop ended while a round with it was counted"
        return replace(
            counted,
            values={**counted.values, **dict.fromkeys(hidden)},
            reasons={**counted.reasons, **dict.fromkeys(hidden, why)},
        )

    def before_retry(self) -> RoundCounters | None:
        """The round that was whole but for what lies behind the gate; None once that is counted."""
        return self._without

    def collect(self) -> RoundCounters:
        """Decodes the round; call only after ``end_pass`` answered True."""
        self._without = None
        decoded, self._decoded = self._decoded or self._decode(), None
        assert self._used is not None
        image, dropped = decoded
        return _evaluate(self._used.host, image, self._names, dropped)

    def collect_regions(self) -> RegionCounters:
        """Decodes the round by region; call only after ``end_pass`` answered True."""
        image, dropped = self._decode()
        assert self._used is not None
        return _evaluate_regions(self._used.host, image, self._names, dropped)

    def _decode(self) -> tuple[_native.CounterDataImage, int]:
        session = self._opened()
        with _translated("decoding counter data"):
            dropped = session.decode()
            image = session.counter_data()
        self._fresh = False
        return image, dropped

    def close(self) -> None:
        """Disables the range profiler."""
        session, self._session = self._session, None
        self._decoded = None
        if session is not None:
            with _translated("closing a range profiler session"):
                session.close()

    def _opened(self) -> _native.RangeSession:
        assert self._session is not None, "open() comes first"
        return self._session
