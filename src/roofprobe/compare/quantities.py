"""Which quantities two records are compared by, their figures, and how far repeats differ."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from roofprobe import metrics
from roofprobe.compare.change import Change, Kind
from roofprobe.derive import Figure, figures, own_rows
from roofprobe.errors import UsageError
from roofprobe.record import Measurement

# The largest change between repeats of one step, by kind. Measured on one H200, 2026-11-30, as the
# larger of eight rounds in a process and of runs in processes of their own: FLOP counters repeat
# to the last digit but for dropout (AlexNet's fadd, 0.02%); DRAM writes differed by 0.5%, L2 by
# 0.3%, L1 by 0.2%; step and kernel time by up to 1.4%. Kernels are launched by a program that
# repeats exactly. The spread within either record counts where it is larger.
_NOISE: Final[Mapping[Kind, float]] = {
    "flop": 5e-4,
    "op": 5e-4,
    "byte": 5e-3,
    "intensity": 5e-3,
    "count": 0.0,
    "time": 0.02,
    "share": 0.02,  # of the step: the noise of the two times that it is made of
    "raw": 0.0,
}

# The duration of a range includes gaps between launches: 13% in the same eight rounds.
_RANGE_TIME_NOISE: Final = 0.13

BYTES: Final[Mapping[str, str]] = {
    "dram": "dram_bytes",
    "dram_read": "dram_read_bytes",
    "dram_write": "dram_write_bytes",
    "l2": "l2_bytes",
    "l1": "l1_bytes",
}

INTENSITY: Final = {"dram": "intensity", "l2": "intensity.l2", "l1": "intensity.l1"}

PATHS: Final = tuple(
    sorted({row.path for row in metrics.TABLE.values() if row.path} - {"study_fp16"})
)

# Names that a gate can stand on, besides FLOP paths and CUPTI metrics.
QUANTITIES: Final = (
    "flop",
    *BYTES.values(),
    *INTENSITY.values(),
    "launches",
    "kernel_time",
    "busy_time",
    "step_time",
)

# Shown, and no gate stands on it: a percentage of a difference of two times says little.
IDLE: Final = "gpu_idle"

UNASKED: Final = "no such counter was asked for"

_PER_IMAGE: Final[frozenset[Kind]] = frozenset({"flop", "op", "byte", "time"})


def changes(before: Measurement, after: Measurement) -> Iterator[Change]:
    """Every quantity that either record has, in a fixed order."""
    images = _images(before, after)
    sides = _quantities(before), _quantities(after)
    flop = sorted(
        {name for side in sides for name in side if name.startswith("flop.")},
        key=lambda name: PATHS.index(name.removeprefix("flop.")),
    )
    for name in ("flop", *flop, *QUANTITIES[1:], IDLE):
        kinds = [side[name][0] for side in sides if name in side]
        if not kinds:
            continue
        first, second = (
            side[name][1] if name in side else Figure(None, record.source, reason=UNASKED)
            for side, record in zip(sides, (before, after), strict=True)
        )
        both = first.value is not None and second.value is not None
        if both and not _same_parts(name, before, after):
            why = "the two runs counted different parts of it"
            first, second = (replace(figure, value=None, reason=why) for figure in (first, second))
        kind = kinds[0]
        grows = images if kind in _PER_IMAGE else None
        yield Change(name, kind, first, second, _noise(_NOISE[kind], first, second), grows)


def _quantities(record: Measurement) -> dict[str, tuple[Kind, Figure]]:
    derived = figures(record)
    found: dict[str, tuple[Kind, Figure]] = {"flop": ("flop", derived.flop_total)}
    for path, figure in derived.flop.items():
        found[f"flop.{path}"] = ("op" if path == "tensor_int8" else "flop", figure)
    for level, figure in derived.byte.items():
        # The undivided levels have no directions of their own on any chip but DRAM's.
        if level in BYTES:
            found[BYTES[level]] = ("byte", figure)
    for level, figure in derived.intensity.items():
        found[INTENSITY[level]] = ("intensity", figure)
    found["launches"] = ("count", _launches(record))
    found["kernel_time"] = ("time", derived.kernel_time)
    found["busy_time"] = ("time", derived.busy_time)
    found["step_time"] = ("time", derived.step_time)
    found[IDLE] = ("share", derived.idle)
    return {name: (kind, _finite(figure)) for name, (kind, figure) in found.items()}


def _launches(record: Measurement) -> Figure:
    if record.kernels is None:
        why = record.notes.get("kernels", "no kernels were traced")
        return Figure(None, "cupti_activity", reason=why)
    return Figure(record.kernels.launches, record.kernels.source)


def _finite(figure: Figure) -> Figure:
    if figure.value is None or math.isfinite(figure.value):
        return figure
    return replace(figure, value=None, reason="the record holds no finite number")


def _raw(record: Measurement, metric: str) -> Figure:
    value = record.value(metric)
    if value is None:
        asked = metric in counted(record)
        why = record.unavailable.get(metric, "not measured" if asked else "not asked for")
        return Figure(None, record.source, reason=why)
    return _finite(Figure(value, record.source, record.spread(metric)))


def _raw_noise(metric: str) -> float:
    row = metrics.TABLE.get(metric)
    if row is None:
        return _NOISE["raw"]
    if row.kind in ("second", "rate"):
        return _RANGE_TIME_NOISE
    return _NOISE["flop" if row.kind in ("flop", "op") else "byte"]


def counted(record: Measurement) -> set[str]:
    """Metrics that were asked for or hold a value."""
    return {*record.metrics, *(name for round_ in record.rounds for name in round_.counters)}


def _noise(floor: float, *figures_: Figure) -> float:
    return max([floor, *(figure.spread for figure in figures_ if figure.spread is not None)])


def _same_parts(quantity: str, before: Measurement, after: Measurement) -> bool:
    """False where a sum is made of other counters in either record, which no unit would show."""
    if before.environment.chip != after.environment.chip:
        return True  # chips spell and divide counters differently; the device is labelled
    return _parts(quantity, before) == _parts(quantity, after)


def _parts(quantity: str, record: Measurement) -> set[str]:
    """The counters that a sum is made of."""
    rows = own_rows(record)
    parts: set[str] = set()
    if quantity == "flop" or quantity in INTENSITY.values():
        parts |= {
            row.name
            for row in rows
            if row.kind == "flop" and not row.upper_bound and row.path != "study_fp16"
        }
    if quantity.startswith("flop."):
        parts |= {row.name for row in rows if row.path == quantity.removeprefix("flop.")}
    if quantity in (BYTES["dram"], INTENSITY["dram"]):
        # Sectors and bytes, apart or as one counter, are the same traffic.
        counts = ("byte", "sector")
        directions = {row.direction for row in rows if row.level == "dram" and row.kind in counts}
        parts |= {"read", "write"} if None in directions else {str(way) for way in directions}
    return parts


def known(quantity: str) -> bool:
    """True for the name of a quantity that a gate can stand on and that is no CUPTI metric."""
    path = quantity.removeprefix("flop.")
    return quantity in QUANTITIES or (path != quantity and path in PATHS)


def metric_change(before: Measurement, after: Measurement, metric: str) -> Change:
    """The change of a CUPTI metric's own value.

    Raises:
        UsageError: neither record knows a metric of that name.
    """
    held = counted(before) | counted(after)
    if metric not in held:
        raise UsageError(
            f"neither run asked for {metric!r}; they hold the metrics {', '.join(sorted(held))}"
        )
    first, second = (_raw(record, metric) for record in (before, after))
    return Change(metric, "raw", first, second, _noise(_raw_noise(metric), first, second))


def _images(before: Measurement, after: Measurement) -> tuple[int, int] | None:
    """Images of a step in this process, of both records, where they differ."""
    first, second = (record.workload.get("batch_size") for record in (before, after))
    # bool is an int to Python; a batch size is none.
    if type(first) is not int or type(second) is not int or first == second:
        return None
    return (first, second) if first > 0 and second > 0 else None
