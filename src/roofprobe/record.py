"""The record of one measurement: raw counters and what is needed to read them later.

Everything else (FLOP, bytes, intensity, rates, verdicts, plots) is a pure function of a record.
Constructors do no I/O and ask the machine nothing.

Schema history (``VERSION``):
    1: first version.
"""

import dataclasses
import json
import os
import tempfile
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from roofprobe.errors import RecordError
from roofprobe.regions import BY
from roofprobe.schema import json_schema, strict_json

SCHEMA: Final = "roofprobe.run"
VERSION: Final = 1

# More than any counter reads (1e16 FLOP/s for three million years), and far from overflowing sums.
_MOST_COUNTED: Final = 1e30
# Less than any time (s) or rate that is measured, and far from where a division overflows.
_LEAST: Final = 1e-30
# Fields whose numbers may be anything: facts of the user's, and what measuring took beyond the
# plain steps, which can be less than nothing.
_NO_AMOUNTS: Final = frozenset(("workload", "precision", "overhead", "duration"))

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Timing:
    """Unprofiled durations of whole steps, taken while no counters were attached.

    Attributes:
        step: Seconds of each timed step, in order.
        source: ``cuda_events`` on a GPU, ``perf_counter`` on a CPU.
    """

    step: tuple[float, ...]
    source: str

    @property
    def median(self) -> float:
        """Median step, seconds."""
        return median(self.step)

    @property
    def spread(self) -> float:
        """Largest minus smallest step over the median, a fraction."""
        return (max(self.step) - min(self.step)) / self.median


@dataclass(frozen=True, slots=True)
class Round:
    """One complete set of passes.

    Attributes:
        counters: CUPTI metric name -> value in the metric's own unit; None where none was formed.
        passes: Steps that it took.
        ranges_dropped: Ranges whose counts were lost; above 0, every counter is None.
        pass_duration: Seconds of wall clock of each pass, the step and our own work around it.
    """

    counters: Mapping[str, float | None]
    passes: int
    ranges_dropped: int
    pass_duration: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """GPU activity of one step, from activity records of steps of their own (mean over them).

    Attributes:
        steps: Steps that were traced.
        launches: Kernels per step.
        graph_launches: Those of them that ran from a CUDA graph.
        sum: Sum of kernel durations, seconds; concurrent kernels count twice.
        union: Time in which a kernel, or a copy or fill within the device, ran, seconds.
        span: Start of the first of these to end of the last, seconds.
        copy_byte: Bytes that the driver copied within the device.
        fill_byte: Bytes that the driver filled (memset).
        copies: How many such copies and fills there were.
        elsewhere: Kernels per step that ran in another CUDA context than the one that was counted.
        blocks: Thread blocks of the kernels per step; None where it was not kept.
        source: ``cupti_activity``.
    """

    steps: int
    launches: float
    graph_launches: float
    sum: float
    union: float
    span: float
    copy_byte: float
    fill_byte: float
    copies: float = 0.0
    elsewhere: float = 0.0
    blocks: float | None = None
    source: str = "cupti_activity"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether SASS instrumentation saw the kernels that ran.

    Attributes:
        instrumented: Store instructions that instrumentation counted.
        hardware: Store instructions that the hardware counted.
        explained: Those of the difference that the driver's own copies and fills account for;
            they do no arithmetic and are never instrumented.
        fraction: (instrumented + explained) / hardware; None where the hardware counted none.
        trusted: True when SASS figures of this measurement stand.
        cause: Why not, or what is noteworthy; None when all is plain.
    """

    instrumented: float | None
    hardware: float | None
    explained: float
    fraction: float | None
    trusted: bool
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks sampled while the unprofiled steps were timed, in Hz.

    Attributes:
        sm: Lowest, median and highest SM clock seen.
        memory: Median memory clock, None where not readable.
        samples: How many readings that rests on.
        source: ``nvml``.
    """

    sm: tuple[float, float, float]
    memory: float | None
    samples: int
    source: str = "nvml"


@dataclass(frozen=True, slots=True)
class MeasuredRoof:
    """A ceiling that was measured on the device of the run.

    Attributes:
        name: For people.
        kind: ``flop`` for a rate of arithmetic, ``byte`` for one of memory traffic.
        value: Median of the repeats, FLOP/s or byte/s.
        spread: (largest - smallest) / median of the repeats' durations, as a fraction.
        method: What was run, with its size and thread count.
        path: FLOP path that the roof limits, for kind ``flop``.
        level: Memory level that the roof limits, for kind ``byte``.
        clock: Median SM clock while it was measured, Hz; None where not readable.
        sustained: The rate under the same load for half a second and more, when the power limit
            may have brought the clock down; None where that was not measured.
        source: The label of every figure.
    """

    name: str
    kind: str
    value: float
    spread: float
    method: str
    path: str | None
    level: str | None
    clock: float | None = None
    sustained: float | None = None
    source: str = "measured"


@dataclass(frozen=True, slots=True)
class CheckedCounter:
    """One counter as roofprobe and as another profiler read it.

    Attributes:
        metric: CUPTI metric name, or what was derived from several.
        roofprobe: Our value per step.
        other: The other profiler's, in the same unit; None with the ``reason``.
        mode: How the other one collected it.
        tolerance: Largest relative difference that counts as agreement; None for a row that is
            shown and not judged, because it answers another question.
        agrees: The verdict; None where it is not judged.
        reason: Why there is no value, no agreement or no verdict; None where all is plain.
    """

    metric: str
    roofprobe: float | None
    other: float | None
    mode: str
    tolerance: float | None
    agrees: bool | None
    reason: str | None = None

    @property
    def ratio(self) -> float | None:
        """Our value over the other; 1 for two zeros, None without a value or for a lone 0 there."""
        if self.roofprobe is None or self.other is None:
            return None
        if self.other == 0:
            return 1.0 if self.roofprobe == 0 else None
        return self.roofprobe / self.other


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """The same workload under another profiler, counter by counter.

    Attributes:
        tool: The other profiler with its version: ``ncu 2025.3.1.0``.
        created: UTC, ISO 8601.
        command: The workload's command.
        counters: The comparison.
        duration: Run -> seconds of wall clock, ours (``roofprobe``) among them.
        left_out: What is not compared -> why.
    """

    tool: str
    created: str
    command: tuple[str, ...]
    counters: tuple[CheckedCounter, ...]
    duration: Mapping[str, float]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """True when something was judged and all that was judged agrees."""
        judged = [row.agrees for row in self.counters if row.agrees is not None]
        return bool(judged) and all(judged)


@dataclass(frozen=True, slots=True)
class Segment:
    """What ran while one label was open; segments are disjoint and add up to the step.

    Attributes:
        range: The user's ranges or phases, outermost first, joined by ``/``; empty outside of any.
        module: Path of the innermost module, empty for the model itself; None outside of any.
        direction: For a module ``forward``, ``recompute`` (forward again, for a checkpoint) or
            ``backward``, else None.
        entered: How often a step enters it; a module's work is in several pieces where others lie
            between, and backward there is one for each node of autograd's graph.
        counters: As in ``Round``, one for each round that counted by region.
        time: Seconds: durations of its kernels and of the driver's copies and fills on a GPU, wall
            clock on a CPU; None where that was not taken.
        launches: Kernels; None where they were not traced.
    """

    range: str
    module: str | None
    direction: str | None
    entered: float
    counters: tuple[Mapping[str, float | None], ...] = ()
    time: float | None = None
    launches: float | None = None


@dataclass(frozen=True, slots=True)
class KernelUse:
    """A kernel in one segment, per step.

    Attributes:
        segment: Index into ``Regions.segments``.
        launches: How often it ran.
        time: Sum of its durations, s.
    """

    segment: int
    launches: float
    time: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, or the driver's copies or fills.

    Attributes:
        name: As in its source.
        uses: Where it ran.
        counters: CUPTI metric name -> sum over its launches in a step, None where one has no
            value; empty where it was not counted. ``Regions.counted`` says how.
    """

    name: str
    uses: tuple[KernelUse, ...]
    counters: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def launches(self) -> float:
        """How often a step ran it."""
        return sum(use.launches for use in self.uses)

    @property
    def time(self) -> float:
        """Sum of its durations in a step, s."""
        return sum(use.time for use in self.uses)


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """How kernels were counted one by one: by another profiler, which replays each of them.

    Attributes:
        tool: The profiler with its version: ``ncu 2025.3.1.0``.
        mode: How it replays, and what it does with the caches.
        created: UTC, ISO 8601.
        command: The workload's command.
        launches: That it replayed, in one step of one process.
        duration: Seconds of wall clock.
        unavailable: Metric -> why it has no value, or not for every launch.
        left_out: Kernel -> why it has no counters.
        source: The label of every such figure.
    """

    tool: str
    mode: str
    created: str
    command: tuple[str, ...]
    launches: float
    duration: float
    unavailable: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    source: str = "ncu"


@dataclass(frozen=True, slots=True)
class Regions:
    """The step by its parts.

    Attributes:
        by: What was asked for: ``phase``, ``layer`` or ``kernel``.
        segments: Every label that a step goes through and that has work, in order of appearance.
        steps: Steps on which times were taken.
        time_source: ``cupti_activity``, ``perf_counter``, or None where no times were taken.
        kernels: By time, longest first; empty where they were not traced.
        lost_time: Seconds of kernels that began before the first label was open.
        between: Median seconds of wall clock between two timed steps: the loop waits for data.
        notes: What could not be told apart, and why.
        counted: How kernels were counted, where that was done.
    """

    by: str
    segments: tuple[Segment, ...]
    steps: int
    time_source: str | None = None
    kernels: tuple[Kernel, ...] = ()
    lost_time: float = 0.0
    between: float | None = None
    notes: tuple[str, ...] = ()
    counted: KernelCounts | None = None


@dataclass(frozen=True, slots=True)
class EagerRun:
    """The same step launched kernel by kernel, for counters that a CUDA graph hides.

    Attributes:
        name: Of that measurement.
        created: UTC, ISO 8601.
        command: Its command.
        counters: CUPTI metric name -> mean over its rounds; instrumented metrics only.
        agreement: Hardware counter that both have -> its value here over its value there.
        source: The label of every figure in which one of these counters is.
    """

    name: str
    created: str
    command: tuple[str, ...]
    counters: Mapping[str, float]
    agreement: Mapping[str, float]
    source: str = "cupti, eager run"


@dataclass(frozen=True, slots=True)
class Modelled:
    """One further step as the analytic backend counts it: a model, whose error is not known.

    Attributes:
        counters: Metric of that backend -> value; None where it misses an operator.
        flop: Kind of operator -> its FLOP, None likewise: ``convolution`` (kernels of more than
            one point), ``attention``, ``other``.
        uncounted: Operator -> calls whose FLOP or bytes could not be told.
        reason: Why a counter has no value; None where all have one.
        source: The label of every such figure.
    """

    counters: Mapping[str, float | None]
    flop: Mapping[str, float | None]
    uncounted: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
    source: str = "analytic"


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and the software. None means that it could not be read or does not exist."""

    device_name: str
    device_kind: str  # "cuda" or "cpu"
    chip: str | None = None
    uuid: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    memory_byte: int | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    cupti: str | None = None
    torch: str | None = None
    cuda_runtime: str | None = None
    cudnn: str | None = None
    python: str | None = None
    roofprobe: str | None = None
    platform: str | None = None
    precision: Mapping[str, Scalar] = field(default_factory=dict)
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured, as it was measured.

    Attributes:
        name: The user's name for the region.
        source: Where the counters come from: ``cupti``, ``analytic``, ``ncu``, ``gpm``,
            ``recorded``.
        created: UTC, ISO 8601.
        environment: Machine and software.
        workload: The harness's own facts (model, batch size, ...).
        metrics: Metrics that were asked for.
        rounds: Complete rounds only; values of an unfinished one are never kept.
        complete: False when the loop ended before every round was done.
        steps_missing: How many more steps it needed; 0 when complete.
        unavailable: Metric -> why it has no value.
        timing: Unprofiled step times; None when the loop ended before they were taken.
        kernels: GPU activity; None with the reason in ``notes``.
        coverage: Whether SASS figures stand; None where no SASS metric was asked for.
        clocks: Clocks in the timed window.
        roofs: Ceilings measured on this device, where that was done.
        crosscheck: The same step under another profiler, where that was done.
        regions: The step by phase, layer or kernel, where that was asked for.
        eager: SASS counters of an eager run, where they were hidden here and somebody asked.
        witness: The same step under the analytic model, where somebody asked.
        overhead: Seconds of wall clock that each part of measuring took beyond the plain steps.
        notes: Part -> why it is missing or limited.
        warnings: For the user, in order of appearance.
    """

    name: str
    source: str
    created: str
    environment: Environment
    workload: Mapping[str, Scalar]
    metrics: tuple[str, ...]
    rounds: tuple[Round, ...]
    complete: bool
    steps_missing: int
    unavailable: Mapping[str, str]
    timing: Timing | None = None
    kernels: KernelTimes | None = None
    coverage: Coverage | None = None
    clocks: Clocks | None = None
    roofs: tuple[MeasuredRoof, ...] = ()
    crosscheck: CrossCheck | None = None
    regions: Regions | None = None
    eager: EagerRun | None = None
    witness: Modelled | None = None
    overhead: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def value(self, metric: str) -> float | None:
        """Mean over rounds of a counter; None when a round lacks it or there is none."""
        values = [counted.counters.get(metric) for counted in self.rounds]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    def spread(self, metric: str) -> float | None:
        """Largest minus smallest over the mean, a fraction; None below two rounds."""
        values = [counted.counters.get(metric) for counted in self.rounds]
        known = [value for value in values if value is not None]
        if len(known) < 2 or len(known) != len(values):
            return None
        mean = fmean(known)
        return (max(known) - min(known)) / mean if mean else 0.0

    def to_json(self) -> str:
        """The record as JSON text; the same record gives the same bytes."""
        body = {"schema": SCHEMA, "version": VERSION, **_plain(self)}
        return json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the record whole or not at all, and returns the path.

        A record of a measurement that was passed by under ncu (``counters.external``) is not
        written: the program that ``verify`` repeats would lose what it measured before.

        Raises:
            RecordError: the file cannot be written.
        """
        if self.source == "ncu" and not self.rounds:
            return Path(path)
        return write_whole(path, self.to_json().encode())

    @classmethod
    def from_json(cls, text: str) -> "Measurement":
        """Reads what ``to_json`` wrote.

        Raises:
            RecordError: not JSON, not a run record, another version, a broken field, or a
                value that nothing can have measured.
        """
        try:
            body = strict_json(text)
        except ValueError as error:
            raise RecordError(f"not a run record: not valid JSON ({error})") from None
        if not isinstance(body, dict) or body.get("schema") != SCHEMA:
            raise RecordError(f"not a run record: its schema is not {SCHEMA!r}")
        if body.get("version") != VERSION:
            raise RecordError(
                f"run record of version {body.get('version')!r}; this roofprobe reads version "
                f"{VERSION}: measure again, or read it with the roofprobe that wrote it"
            )
        _validate(body)
        record = typing.cast(Measurement, _build(cls, body))
        _require_plausible(record)
        _require_amounts("", body)
        return record

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Measurement":
        """Reads a run file.

        Raises:
            RecordError: it cannot be read; the message names the file.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"{path}: cannot be read ({error})") from None


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None where one is not known."""
    found = 0.0
    for value in values:
        if value is None:
            return None
        found += value
    return found


def storable(facts: Mapping[Any, Any]) -> dict[str, Scalar]:
    """Facts as a record can hold them: what is no ``Scalar``, or no finite number, as its text."""
    return {str(key): fact if _is_scalar(fact) else str(fact) for key, fact in facts.items()}


def _is_scalar(fact: Any) -> bool:
    if isinstance(fact, int | float):
        return abs(fact) <= _MOST_COUNTED  # NaN is not
    return fact is None or isinstance(fact, str)


def write_whole(path: str | os.PathLike[str], data: bytes) -> Path:
    """Writes a file whole or not at all: to a temporary neighbour first, then renamed.

    Raises:
        RecordError: the folder or the file cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            # mkstemp makes files private; a result is as public as the user's umask says.
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            temporary.replace(target)
        except BaseException:
            temporary.unlink()
            raise
    except OSError as error:
        raise RecordError(f"could not write {target}: {error.strerror or error}") from None
    return target


@cache
def schema() -> Mapping[str, Any]:
    """The JSON schema of a run record; docs/run.schema.json is a copy of it."""
    body = json_schema(Measurement)
    head = {"schema": {"const": SCHEMA}, "version": {"const": VERSION}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"roofprobe run record, version {VERSION}",
        "description": (
            "Raw counters of one measurement. Base units: byte, FLOP, second, Hz. "
            "null means not measured; the reason is in unavailable or notes."
        ),
        "type": "object",
        "properties": {**head, **body["properties"]},
        "required": [*head, *body["required"]],
        "additionalProperties": False,
    }


def _validate(body: Mapping[str, Any]) -> None:
    # Imported here: it costs half of roofprobe's import time, and only loading needs it.
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema())
    error = jsonschema.exceptions.best_match(validator.iter_errors(body))
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path) or "the record"
        raise RecordError(f"broken run record: at {where}: {error.message[:200]}")


def _require_plausible(record: Measurement) -> None:
    """Refuses what no measurement gives and no later calculation would survive."""
    if record.timing is not None and min(record.timing.step, default=0.0) < _LEAST:
        raise _broken("timing/step", "a step takes time, more than 0 s")
    for index, roof in enumerate(record.roofs):
        if roof.value < _LEAST:
            raise _broken(f"roofs/{index}/value", "a ceiling is more than 0")
    if record.crosscheck is not None and not record.crosscheck.tool.strip():
        raise _broken("crosscheck/tool", "it names no tool")
    if record.regions is not None:
        _require_whole(record.regions)


def _require_amounts(place: str, body: Any) -> None:
    """Refuses numbers below 0, and above what anything counts."""
    if isinstance(body, Mapping):
        for key, item in body.items():
            if key not in _NO_AMOUNTS:
                _require_amounts(f"{place}/{key}", item)
    elif isinstance(body, list):
        for index, item in enumerate(body):
            _require_amounts(f"{place}/{index}", item)
    elif isinstance(body, int | float) and not 0 <= body <= _MOST_COUNTED:
        raise _broken(place.removeprefix("/"), f"{body:g} is nothing that can have been measured")


def _require_whole(regions: Regions) -> None:
    """Refuses parts that do not fit together."""
    if regions.by not in BY[1:]:
        raise _broken("regions/by", f"{regions.by!r} is none of {', '.join(BY[1:])}")
    segments = regions.segments
    for index, segment in enumerate(segments):
        if len(segment.counters) != len(segments[0].counters):
            raise _broken(
                f"regions/segments/{index}",
                "it was counted in another number of rounds than the first",
            )
    for kernel in regions.kernels:
        for use in kernel.uses:
            if not 0 <= use.segment < len(segments):
                raise _broken("regions/kernels", f"there is no segment {use.segment}")


def _broken(place: str, what: str) -> RecordError:
    return RecordError(f"broken run record: at {place}: {what}")


def _plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as JSON's types.

    Halves of surrogate pairs, of which a path that is not UTF-8 has some, are spelled out.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _build(kind: Any, value: Any) -> Any:
    """The inverse of ``_plain`` for a type annotation; ``value`` has passed the schema."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [f.name for f in dataclasses.fields(kind) if f.name in value]
        return kind(**{name: _build(hints[name], value[name]) for name in names})  # type: ignore[operator]
    if isinstance(value, float) and kind in (int, int | None):
        return int(value)  # the schema takes 8.0 for an integer, and so other programs may write it
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        arms = [arm for arm in typing.get_args(kind) if dataclasses.is_dataclass(arm)]
        return _build(arms[0], value) if arms and value is not None else value
    if origin is tuple:
        arguments = typing.get_args(kind)
        item = arguments[0] if arguments else Any
        return tuple(_build(item, entry) for entry in value)
    return value
