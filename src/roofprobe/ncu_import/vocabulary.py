"""What ncu's metric names mean for a roofline, under all the names that they have had.

Weights and paths come from ``roofprobe.metrics``; this module adds ncu's own spellings: the
``sm__`` twins of ``smsp__`` counters, rates, derived metrics, the labels of the details page, and
the tensor counters' many subdivisions.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from roofprobe import metrics

Kind = Literal["flop", "tensor", "pipe", "byte", "time", "cycle", "clock"]
Per = Literal["", "second", "cycle"]

# FLOP of one tensor instruction, by compute capability, where every shape does the same. Volta: a
# warp's m8n8k4 product is 4 * 512 FLOP in four HMMA.884 steps; arXiv 2009.05257 counts 512 too.
PIPE_FLOP: Final[Mapping[str, int]] = {"7.0": 512}

_COUNT: Final = frozenset({"inst", "op", ""})
_DIMENSIONS: Final = (
    *("inst", "byte", "second", "cycle", "sector"),
    *("byte/second", "cycle/second", "sector/second", "inst/cycle", "inst/second"),
)
_SASS: Final = re.compile(
    r"(?P<derived>derived__)?(?P<unit>smsp|sm)__sass_thread_inst_executed_op_"
    r"(?P<op>[hfd](?:add|mul|fma)2?)_pred_on(?P<times>_x[24])?"
    r"(?P<sum>\.sum)?(?P<per>\.per_cycle_elapsed|\.per_second)?"
)
_TENSOR: Final = re.compile(
    r"sms?p?__ops_path_tensor_(?:op_(?P<op>\w+?)_)?src_(?P<source>\w+?)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?(?:_realtime)?\.sum"
)
_PIPE: Final = re.compile(r"sms?p?__inst_executed_pipe_tensor(?:_op_(?P<op>[a-z]+))?\.sum")
_CYCLES: Final = re.compile(
    r"(?P<unit>sm|smsp|gpc|tpc)__cycles_elapsed\.(?P<roll>avg|max)(?P<rate>\.per_second)?"
)
_PER_SECOND: Final = ".per_second"

# Labels of ncu's details page, which stand where metric names stand elsewhere.
_LABELS: Final = {
    "Duration": "gpu__time_duration.sum",
    "Elapsed Cycles": "gpc__cycles_elapsed.max",
    "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
    "Memory Throughput": "dram__bytes.sum.per_second",
}
_SAME_AS: Final = {
    "gpu__time_duration.avg": "gpu__time_duration.sum",
    "gpu__time_duration.max": "gpu__time_duration.sum",
    "gpu__time_duration": "gpu__time_duration.sum",
    "dram__bytes_op_read.sum": "dram__bytes_read.sum",
    "dram__bytes_op_write.sum": "dram__bytes_write.sum",
}
_SECTOR_BYTE: Final = 32  # ncu documentation, "Sector"
_SECTORS: Final = {
    "dram__sectors.sum": ("dram", ""),
    "dram__sectors_op_read.sum": ("dram", "read"),
    "dram__sectors_op_write.sum": ("dram", "write"),
    "lts__t_sectors.sum": ("l2", ""),
}
# Sources that the metric table does not list, on the chips that have them.
_TENSOR_PATHS: Final = {
    "fp16": "tensor_fp16",
    "bf16": "tensor_bf16",
    "tf32": "tensor_tf32",
    "fp64": "tensor_fp64",
    "fp8": "tensor_fp8",
    "fp16_bf16_tf32": "tensor_fp16",
    "fp4": "tensor_fp4",
    "fp6": "tensor_fp6",
    "fp4_fp6": "tensor_fp6",
    "fp4_fp6_fp8": "tensor_fp8",
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one metric contributes.

    Attributes:
        kind: ``flop`` (CUDA cores), ``tensor`` (operations), ``pipe`` (tensor instructions),
            ``byte``, ``time``, ``cycle`` or ``clock``.
        part: What is counted within the kind; metrics with the same part are the same quantity.
        weight: From the metric's base unit to FLOP or byte.
        rank: Lower is preferred among metrics with the same part.
        per: The value is a rate: per second, or per elapsed cycle.
        whole: The value is a count and cannot have decimals in its base unit.
    """

    kind: Kind
    part: tuple[str, ...]
    weight: float = 1.0
    rank: int = 0
    per: Per = ""
    whole: bool = False


@cache
def meaning(name: str, dimension: str) -> Meaning | str | None:
    """What a metric means.

    Args:
        name: As in the file.
        dimension: Of the unit that stands beside the value (see ``unit_names``).

    Returns:
        None for a metric that no roofline needs; a text, the reason, for one that it would need
        but cannot use as it is.
    """
    for read in (_sass, _tensor, _pipe, _clock, _byte):
        found = read(name, dimension)
        if found is not None:
            return found
    return None


@cache
def expected(name: str) -> Meaning | None:
    """What a metric means in the unit that it should have; None for one that is not needed."""
    for dimension in _DIMENSIONS:
        found = meaning(name, dimension)
        if isinstance(found, Meaning):
            return found
    return None


def is_metric_name(text: str) -> bool:
    """True for what looks like a hardware metric's name (and unlike a label)."""
    return re.fullmatch(r"[a-z0-9_]+__[A-Za-z0-9_.]+", text) is not None


def _sass(name: str, dimension: str) -> Meaning | str | None:
    match = _SASS.fullmatch(name)
    if match is None:
        return None
    if match["derived"] and match["unit"] == "sm":
        return "the most that the chip could do, not what the kernel did"
    if not match["derived"] and (match["times"] or not match["sum"]):
        return None
    op = match["op"]
    row = metrics.TABLE[f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum"]
    assert row.path is not None
    per: Per = ""
    if dimension in ("inst/cycle", "op/cycle"):
        per = "cycle"
    elif dimension in ("inst/second", "op/second"):
        per = "second"
    elif dimension not in _COUNT:
        return f"in {dimension}, which is no count of instructions"
    expected = {".per_cycle_elapsed": "cycle", ".per_second": "second"}.get(match["per"] or "", "")
    if per != expected and not match["derived"]:
        return f"in {dimension or 'no unit'}, which does not fit the name"
    # A derived metric with _x2 or _x4 in its name is multiplied already.
    weight = 1.0 if match["times"] else row.weight
    rank = 2 * bool(per) + bool(match["derived"])
    # The two spellings differ in how fp16 is weighted (see totals), so both are kept.
    return Meaning("flop", (row.path, op, match["unit"]), weight, rank, per, whole=not per)


def _tensor(name: str, dimension: str) -> Meaning | str | None:
    match = _TENSOR.fullmatch(name)
    if match is None:
        return None
    if dimension not in _COUNT:
        return f"in {dimension}, which is no count of operations"
    source = match["source"]
    row = metrics.TABLE.get(f"sm__{name.partition('__')[2]}")
    path = (row.path if row else None) or _TENSOR_PATHS.get(source, f"tensor_{source}")
    qualifiers = tuple(match[key] or "" for key in ("op", "dst", "sparsity"))
    return Meaning("tensor", (path, source, *qualifiers), whole=True)


def _pipe(name: str, dimension: str) -> Meaning | str | None:
    match = _PIPE.fullmatch(name)
    if match is None:
        return None
    if dimension not in _COUNT:
        return f"in {dimension}, which is no count of instructions"
    return Meaning("pipe", (match["op"] or "",), whole=True)


def _clock(name: str, dimension: str) -> Meaning | str | None:
    label = _LABELS.get(name)
    name = _SAME_AS.get(label or name, label or name)
    if name == "gpu__time_duration.sum":
        if dimension != "second":
            return f"in {dimension or 'no unit'}, which is no time"
        return Meaning("time", (), rank=1 if label else 0)
    match = _CYCLES.fullmatch(name)
    if match is None:
        return None
    wanted = "cycle/second" if match["rate"] else "cycle"
    if dimension != wanted:
        return f"in {dimension or 'no unit'}, expected {wanted}"
    # Averages first: over the units of a chip, cycles over rate is the time only of like with like.
    rank = 2 * (match["roll"] == "max") + bool(label)
    return Meaning("clock" if match["rate"] else "cycle", (match["unit"],), rank=rank)


def _byte(name: str, dimension: str) -> Meaning | str | None:
    label = name in _LABELS
    full = _LABELS.get(name, name)
    base = full.removesuffix(_PER_SECOND)
    per: Per = "second" if base != full else ""
    row = metrics.TABLE.get(_SAME_AS.get(base, base))
    if row is not None and row.kind in ("byte", "sector") and not base.startswith("analytic"):
        part: tuple[str, str] = (row.level or "", row.direction or "")
        sector = row.kind == "sector"
    elif base in _SECTORS:
        part, sector = _SECTORS[base], True
    else:
        return None
    wanted = ("sector" if sector else "byte") + ("/second" if per else "")
    if dimension != wanted and not (sector and not per and dimension == ""):
        # The page shows a second "Memory Throughput", in per cent of the peak.
        return None if label else f"in {dimension or 'no unit'}, expected {wanted}"
    rank = sector + 2 * bool(per) + label
    weight = _SECTOR_BYTE if sector else 1
    return Meaning("byte", part, weight, rank, per, whole=not per)
