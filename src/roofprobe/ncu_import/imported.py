"""The record of an import: figures of the whole, of each device, kernel and NVTX range."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from roofprobe import metrics
from roofprobe.errors import RecordError
from roofprobe.ncu_import import csv_log, merge, reader, totals
from roofprobe.ncu_import.calibration import Calibration
from roofprobe.ncu_import.launches import Launches
from roofprobe.ncu_import.numerals import NumberFormat
from roofprobe.ncu_import.totals import Figure, Terms

SCHEMA: Final = "roofprobe.ncu"
VERSION: Final = 1

_LONGEST_NUMBER: Final = 19  # digits of a process or device
_LISTED: Final = 5  # names in a warning
_RANGE_REPLAY: Final = "range"  # what ncu calls it in place of a kernel
# Bytes of two files can be compared only where these agree.
_MODES: Final = ("cache_control", "replay_mode")
_UNTOLD: Final = "ncu's files do not say; its defaults are --cache-control all --replay-mode kernel"
_BYTES: Final = ("dram_read", "dram_write", "dram", "l2", "l1")


@dataclass(frozen=True, slots=True)
class Kernel:
    """Figures of some launches: the whole, one kernel, one device or one NVTX range.

    Attributes:
        name: Which; the empty text for the whole.
        launches: How many.
        flop: FLOP by path, and ``total``; None where a part is unknown.
        op: Integer operations of tensor cores by path; in no total.
        byte: Bytes by level, and ``dram_read`` and ``dram_write``.
        time_s: Sum of the launches' durations, s.
        intensity: Total FLOP over DRAM bytes.
        intensity_by_level: The same for each memory level.
        sm_clock_hz: SM cycles over time, Hz, in the launches of which both are known.
    """

    name: str
    launches: int
    flop: Mapping[str, float | None]
    op: Mapping[str, float | None]
    byte: Mapping[str, float | None]
    time_s: float | None
    intensity: float | None
    intensity_by_level: Mapping[str, float | None]
    sm_clock_hz: float | None

    @property
    def flop_per_s(self) -> float | None:
        """Total FLOP over the sum of durations."""
        return _ratio(self.flop["total"], self.time_s)

    def to_dict(self) -> dict[str, Any]:
        """As JSON's types."""
        body: dict[str, Any] = {
            "launches": self.launches,
            "flop": dict(self.flop),
            "byte": dict(self.byte),
            "time_s": self.time_s,
            "sm_clock_hz": self.sm_clock_hz,
            "intensity": self.intensity,
            "intensity_by_level": dict(self.intensity_by_level),
            "flop_per_s": self.flop_per_s,
        }
        if self.op:
            body["op"] = dict(self.op)
        return {"name": self.name, **body} if self.name else body


@dataclass(frozen=True, slots=True)
class Imported:
    """Everything that the files say.

    Attributes:
        files: Their names.
        gpu: The user's name for the GPU, or else the files' own.
        compute_capabilities: Of the devices, where known.
        whole: Figures of all launches.
        kernels: Figures by kernel name, in order of appearance.
        parts: Figures by process and device, where there are several.
        ranges: Figures by NVTX range, where the files have ranges.
        steady: The first of the most ranges in a row that ran the same kernels; None where no two
            did.
        processes: Process IDs of the first run.
        devices: Device numbers.
        upper_bound: FLOP figures that are the most that they can be.
        unavailable: Metric -> why it has no value, or not for every launch.
        reasons: Figure -> why it is None.
        skipped_lines: Lines of other programs between ncu's rows.
        failed_kernels: Kernels that ncu could not profile.
        counters: Metric -> sum over launches, for counts.
        warnings: For the user.
        tensor_scale: Factor that a calibration found, None without one.
        not_counted: What the total FLOP leave out because nobody asked for its counters.
    """

    files: tuple[str, ...]
    gpu: str | None
    compute_capabilities: tuple[str, ...]
    whole: Kernel
    kernels: tuple[Kernel, ...]
    parts: tuple[Kernel, ...]
    ranges: tuple[Kernel, ...]
    steady: str | None
    processes: tuple[int | str, ...]
    devices: tuple[int | str, ...]
    upper_bound: tuple[str, ...]
    unavailable: Mapping[str, str]
    reasons: Mapping[str, str]
    skipped_lines: int
    failed_kernels: tuple[str, ...]
    counters: Mapping[str, float]
    warnings: tuple[str, ...]
    tensor_scale: float | None = None
    not_counted: tuple[str, ...] = ()

    def to_dict(self, *, kernels: bool = False) -> dict[str, Any]:
        """As JSON's types.

        Args:
            kernels: With figures by kernel.
        """
        body: dict[str, Any] = {
            "schema": SCHEMA,
            "version": VERSION,
            "source": "ncu",
            "files": list(self.files),
            "gpu": self.gpu,
            "compute_capability": list(self.compute_capabilities),
            **self.whole.to_dict(),
            "upper_bound": list(self.upper_bound),
            "processes": list(self.processes),
            "devices": list(self.devices),
            "unavailable": dict(self.unavailable),
            **dict.fromkeys(_MODES),
            "reasons": {**self.reasons, **dict.fromkeys(_MODES, _UNTOLD)},
            "skipped_lines": self.skipped_lines,
            "failed_kernels": list(self.failed_kernels),
            "counters": dict(self.counters),
            "not_counted": list(self.not_counted),
            "warnings": list(self.warnings),
        }
        if self.parts:
            body["by_device"] = [part.to_dict() for part in self.parts]
        if self.ranges:
            body["ranges"] = [part.to_dict() for part in self.ranges]
            body["steady_range"] = self.steady
        if self.tensor_scale is not None:
            body["tensor_scale"] = self.tensor_scale
        if kernels:
            body["kernels"] = [kernel.to_dict() for kernel in self.kernels]
        return body

    def to_json(self, *, kernels: bool = False) -> str:
        """As JSON text, in ASCII; the same files give the same bytes."""
        body = self.to_dict(kernels=kernels)
        return json.dumps(body, indent=1, allow_nan=False) + "\n"


def import_files(
    paths: Sequence[Path],
    *,
    gpu: str | None = None,
    compute_capability: str | None = None,
    number_format: NumberFormat | None = None,
    calibration: Calibration | None = None,
) -> Imported:
    """Reads files that belong together.

    Args:
        paths: One file, or several of one workload.
        gpu: The user's name for the GPU.
        compute_capability: That GPU's, for files that do not tell.
        number_format: Forces how numbers read.
        calibration: A kernel of known work that settles the tensor counter's scale.

    Raises:
        RecordError: a file cannot be read, or the files do not belong together.
    """
    contents = [reader.read(path, number_format) for path in paths]
    messages = [content.messages for content in contents]
    for content in contents:
        _drop_uncounted(content)
    work = merge.merge(contents)
    launches = work.launches
    capabilities = _capabilities(launches, gpu, compute_capability)
    told = {name: why for message in messages for name, why in message.missing.items()}
    build = partial(totals.terms, work, compute_capability, told)
    parts = calibration.apply(launches, build) if calibration is not None else build()
    unavailable = _unavailable(launches, {**launches.unusable, **parts.unusable}, told)
    reasons = dict(parts.reasons)
    warnings = [*_said(contents), *work.warnings, *parts.warnings]
    unsettled = totals.unsettled(parts, work, compute_capability)
    warnings += [unsettled] if unsettled is not None else []
    whole = _whole(work, parts, reasons, warnings, unavailable)
    owners = _by_owner(launches, parts) if work.paired else ()
    warnings += _time_notes(launches, whole, len(owners))
    known = whole.flop["total"] is not None
    not_counted = totals.not_counted(work, compute_capability) if known else ()
    ranges, steady = _ranges(launches, parts, warnings) if work.paired else ((), None)
    return Imported(
        files=tuple(path.name for path in paths),
        gpu=gpu or _gpu_told(contents),
        compute_capabilities=capabilities,
        whole=whole,
        kernels=_kernels(launches, parts),
        parts=owners,
        ranges=ranges,
        steady=steady,
        processes=_distinct(owner.process for owner in launches.owners),
        devices=_distinct(owner.device for owner in launches.owners),
        upper_bound=tuple(parts.upper_bound),
        unavailable=unavailable,
        reasons=reasons,
        skipped_lines=sum(content.foreign for content in contents),
        failed_kernels=tuple(dict.fromkeys(name for each in messages for name in each.failed)),
        counters=_counters(launches),
        warnings=tuple(dict.fromkeys(warnings)),
        tensor_scale=parts.scale,
        not_counted=tuple(not_counted),
    )


def _gpu_told(contents: Sequence[reader.Content]) -> str | None:
    """The GPU that the files name, where they name one."""
    names = list(dict.fromkeys(name for content in contents for name in content.launches.gpus))
    return names[0] if len(names) == 1 else None


def _said(contents: Sequence[reader.Content]) -> Iterator[str]:
    """What each file has to warn of, with its name where there are several."""
    for content in contents:
        where = f"{content.path.name}: " if len(contents) > 1 else ""
        for text in (*content.warnings, *content.messages.notes()):
            yield where + text


def _time_notes(launches: Launches, whole: Kernel, owners: int) -> Iterator[str]:
    """Warns where the sum of durations is not how long it took."""
    streams = launches.overlapping()
    if streams > 1 and whole.time_s is not None:
        yield (
            f"launches on one device are of {streams} streams, and ncu replayed them one by one: "
            "time_s adds up what may have run at the same time, so flop_per_s is no rate of the "
            "step; take the step's time from a run without ncu"
        )
    if owners:
        yield (
            f"{owners} devices or processes: time_s adds up what may have run at the same time; "
            f"{_job_roof(launches)}"
        )


def _capabilities(launches: Launches, gpu: str | None, named: str | None) -> tuple[str, ...]:
    told = {o.compute_capability for o in launches.owners if o.compute_capability}
    if named is not None and told - {named}:
        raise RecordError(
            f"--gpu {gpu} has compute capability {named}, and the files say "
            f"{', '.join(sorted(told))}: leave --gpu out"
        )
    return tuple(sorted(told or ({named} if named else set())))


def _drop_uncounted(content: reader.Content) -> None:
    """Takes zeros for no count in launches over which ncu made no pass."""
    launches = content.launches
    uncounted = content.messages.uncounted
    known = launches.by_ident() if uncounted else {}
    for ident, kernel in uncounted:
        # The name alone, or as mangled names have it: behind its length.
        bare = re.escape(kernel)
        named = re.compile(rf"(?<!\w){bare}(?!\w)|(?<![0-9]){len(kernel)}{bare}")
        for launch in known.get(ident, ()):
            if named.search(launches.titles[launches.names[launch]]):
                for column in launches.columns:
                    column.refuse_zero(launch, "0 in the file, and ncu made 0 passes: not counted")


def _unavailable(
    launches: Launches, unusable: Mapping[str, str], told: Mapping[str, str]
) -> dict[str, str]:
    """Metrics without a number in some launch, and why.

    Args:
        launches: Of all files.
        unusable: Why values cannot be used.
        told: Reasons that ncu itself gave.
    """
    found = {**told, **unusable}
    count = len(launches)
    for column in launches.columns:
        if column.meaning is None:
            continue
        missing = totals.nan_count(launches, column)
        if missing:
            why = told.get(column.name) or "; ".join(column.reasons) or "no row in the file"
            where = "" if missing == count else f" ({missing} of {count} launches)"
            found[column.name] = why + where
        elif column.name in told:
            found.pop(column.name, None)  # another of the files has it
    return found


def _whole(
    work: merge.Workload,
    parts: Terms,
    reasons: dict[str, str],
    warnings: list[str],
    unavailable: Mapping[str, str],
) -> Kernel:
    sums = totals.summed(parts.items)
    count = len(work.launches)
    whole = _figures("", count, sums)
    if whole.sm_clock_hz is None:
        cycles, seconds = (sums.get(("clock", unit), 0.0) for unit in ("cycle", "second"))
        if seconds:
            reasons["sm_clock_hz"] = f"{cycles / seconds:.6g} Hz, which no GPU runs at"
            warnings.append(
                f"SM cycles over time are {reasons['sm_clock_hz']}: one of them is wrong, and "
                "time_s may be"
            )
        else:
            source = next((t.source for t in parts.of("clock") if t.source in unavailable), None)
            reasons["sm_clock_hz"] = (
                f"{source}: {unavailable[source]}"
                if source is not None
                else "the files tell neither the SM clock nor cycles and their time"
            )
    for term in parts.items:
        kind, part = term.figure
        key = "time_s" if kind == "time" else f"{kind}.{part}"
        if math.isnan(sums[term.figure]):
            reasons.setdefault(key, f"{term.source}: {unavailable.get(term.source, 'unknown')}")
    if whole.flop["total"] is None:
        blocked = [key for key in reasons if whole.flop.get(key.removeprefix("flop."), 0) is None]
        reasons.setdefault(
            "flop.total", reasons[blocked[0]] if blocked else "no FLOP counter is in the files"
        )
    for level in _BYTES:
        if whole.byte[level] is None and level in metrics.LEVELS:
            reasons.setdefault(f"byte.{level}", "no such counter is in the files")
    if not work.paired or parts.blind:
        return whole
    # Some launches lack a part, so there is no total; those that have all give an intensity.
    levels = dict(whole.intensity_by_level)
    for level, value in levels.items():
        if value is None and parts.of("flop") and ("byte", level) in sums:
            levels[level], launches = totals.covered(parts, level, count)
            if levels[level] is not None:
                warnings.append(
                    f"{level} intensity rests on {launches} of {count} launches, those that have "
                    "both FLOP and bytes"
                )
    return replace(whole, intensity=levels["dram"], intensity_by_level=levels)


def _figures(name: str, count: int, sums: Mapping[Figure, float]) -> Kernel:
    flop: dict[str, float | None] = {p: _known(v) for (k, p), v in sums.items() if k == "flop"}
    values = list(flop.values())
    known = [value for value in values if value is not None]
    flop["total"] = math.fsum(known) if known and len(known) == len(values) else None
    byte = {level: _known(sums.get(("byte", level), math.nan)) for level in _BYTES}
    levels: dict[str, float | None] = {
        level: _ratio(flop["total"], byte[level]) for level in metrics.LEVELS
    }
    return Kernel(
        name=name,
        launches=count,
        flop=flop,
        op={p: _known(v) for (k, p), v in sums.items() if k == "op"},
        byte=byte,
        time_s=_known(sums.get(("time", ""), math.nan)) or None,  # no work takes no time
        intensity=levels["dram"],
        intensity_by_level=levels,
        sm_clock_hz=_clock(sums),
    )


def _clock(sums: Mapping[Figure, float]) -> float | None:
    """The SM clock, Hz; None where it is not told, or none that a GPU has."""
    clock = _ratio(sums.get(("clock", "cycle")), sums.get(("clock", "second")))
    return clock if clock is not None and totals.SLOWEST <= clock <= totals.FASTEST else None


def _kernels(launches: Launches, parts: Terms) -> tuple[Kernel, ...]:
    counts = Counter(launches.names)
    sums = totals.by_kernel(parts.items)
    return tuple(
        _figures(title, counts[index], sums.get(title, {}))
        for index, title in enumerate(launches.titles)
    )


def _by_owner(launches: Launches, parts: Terms) -> tuple[Kernel, ...]:
    """One entry for each process and device, where there are several.

    Contexts of one process share the device.
    """
    members: dict[tuple[str, str, str | None], list[int]] = {}
    for launch, index in enumerate(launches.owner):
        owner = launches.owners[index]
        members.setdefault((owner.host, owner.process, owner.device), []).append(launch)
    if len(members) < 2:
        return ()
    return tuple(
        _figures(_called(*key), len(chosen), totals.summed(parts.items, chosen))
        for key, chosen in members.items()
    )


def _job_roof(launches: Launches) -> str:
    """The roof of several devices or processes, in words.

    A device number is no GPU's identity: every process can have a device 0 of its own.
    """
    owners = [launches.owners[who] for who in dict.fromkeys(launches.owner)]
    chips = dict.fromkeys(o.compute_capability for o in owners if o.compute_capability)
    if len(chips) > 1:
        return (
            f"they have compute capabilities {', '.join(chips)}, so there is no one roof of all: "
            "compare each with its own"
        )
    least = len({(owner.host, owner.device) for owner in owners})
    most = len({(owner.host, owner.process, owner.device) for owner in owners})
    if least < most:
        return (
            "a device number does not tell whether processes shared a GPU, so the roof of all is "
            f"{least} to {most} times that of one"
        )
    return f"the roof of all is {most} times that of one, if each has a GPU of its own"


def _called(host: str, process: str, device: str | None) -> str:
    where = f" on {host}" if host not in ("", "127.0.0.1", "localhost") else ""
    return f"process {process or '?'}{where}" + (f", device {device}" if device is not None else "")


def _ranges(
    launches: Launches, parts: Terms, warnings: list[str]
) -> tuple[tuple[Kernel, ...], str | None]:
    found = _by_range(launches)
    figures = tuple(
        _figures(name, len(chosen), totals.summed(parts.items, chosen))
        for name, chosen in found.items()
    )
    names = list(found)
    kinds = [Counter(launches.titles[launches.names[i]] for i in found[name]) for name in names]
    start, count = _longest_run(kinds)
    if count > 1:
        for where, others in (("later", range(start)), ("earlier", range(start, len(names)))):
            odd = [names[i] for i in others if kinds[i] != kinds[start]]
            if odd:
                warnings.append(
                    f"{_listed(odd)}: kernel set differs from {where} ranges (autotune or warm-up)"
                )
        return figures, names[start]
    if names:
        warnings.append(
            f"{_listed(names)}: no two ranges in a row ran the same kernels, so nothing shows that "
            "autotune and warm-up were over; profile two steps, each in a range of its own name"
        )
    return figures, None


def _by_range(launches: Launches) -> dict[str, list[int]]:
    """Launches by range, at the outermost level of nesting that has several ranges."""
    levels: list[dict[str, list[int]]] = []
    for text, chosen in launches.by_range():
        for level, name in enumerate(text.split(csv_log.NESTED)):
            if level == len(levels):
                levels.append({})
            levels[level].setdefault(name, []).extend(chosen)
    return next((level for level in levels if len(level) > 1), levels[0] if levels else {})


def _longest_run(kinds: Sequence[Counter[str]]) -> tuple[int, int]:
    """Start and length of the most equal multisets of kernels in a row, the first of several."""
    best = start = count = 0
    for index, kind in enumerate(kinds):
        # Range replay shows a range as one launch, whatever is inside.
        same = index > 0 and kind == kinds[index - 1] and set(kind) != {_RANGE_REPLAY}
        if not same:
            start = index
        if index + 1 - start > count:
            best, count = start, index + 1 - start
    return best, count


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _counters(launches: Launches) -> dict[str, float]:
    if not len(launches):
        return {}
    sums = {
        column.name: math.fsum(column.filled(len(launches)))
        for column in launches.columns
        if column.meaning is not None and column.name.endswith(".sum")
    }
    return {name: value for name, value in sums.items() if not math.isnan(value)}


def _distinct(items: Any) -> tuple[int | str, ...]:
    known = (item for item in dict.fromkeys(items) if item)
    return tuple(
        int(item) if item.isdecimal() and len(item) <= _LONGEST_NUMBER else item for item in known
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _ratio(top: float | None, bottom: float | None) -> float | None:
    if top is None or not bottom:
        return None
    ratio = top / bottom
    return ratio if math.isfinite(ratio) else None
