"""What ncu's metric names mean for a roofline, under all the names that they have had.

Weights and paths come from ``roofprobe.metrics``; this module adds ncu's own spellings: the
``sm__`` twins of ``smsp__`` counters, rates, derived metrics, the labels of the details page, and
the tensor counters' many subdivisions.

A counter stands in a file under several roll-ups. A sum, per elapsed cycle or per second too, can
be used. The others (averages, percentages, peaks) only hint at work: where the counter stands
under no other roll-up, what it counts is unknown.

Kernels' names tell of tensor cores, too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from roofprobe import metrics

Kind = Literal["flop", "tensor", "pipe", "hint", "byte", "time", "cycle", "clock"]
Per = Literal["", "second", "cycle"]

GPU_NAME: Final = "device__attribute_display_name"

# FLOP of one tensor instruction, by compute capability, where every shape does the same. Volta: a
# warp's m8n8k4 product is 4 * 512 FLOP in four HMMA.884 steps; arXiv 2009.05257 counts 512 too.
PIPE_FLOP: Final[Mapping[str, int]] = {"7.0": 512}

# A chip of each compute capability; those that share one have the same tensor counters.
_CHIPS: Final = {
    "7.0": "GV100",
    "7.5": "TU102",
    "8.0": "GA100",
    "8.6": "GA102",
    "8.7": "GA10B",
    "8.9": "AD102",
    "9.0": "GH100",
    "10.0": "GB100",
    "10.3": "GB110",
    "12.0": "GB202",
}

_FIRST_WITH_TENSOR_CORES: Final = 7  # compute capability 7.0

_COUNT: Final = frozenset({"inst", "op", ""})
_DIMENSIONS: Final = (
    *("inst", "byte", "second", "cycle", "sector"),
    *("byte/second", "cycle/second", "sector/second", "inst/cycle", "inst/second"),
)
_SASS: Final = re.compile(
    r"(?P<derived>derived__)?(?P<unit>smsp|sm)__sass_thread_inst_executed_op_"
    r"(?P<op>(?P<type>[hfdq])(?:add|mul|fma)[24]?)_pred_on(?:_x(?P<times>[24]))?"
)
_SASS_PATHS: Final = {"h": "sass_fp16", "f": "sass_fp32", "d": "sass_fp64", "q": "sass_fp8"}
_SASS_ALL: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
# Several kinds of instructions in one number: of one type, or of everything with that type.
_SASS_GROUP: Final = re.compile(
    r"sms?p?__sass_thread_inst_executed_op(?:s_(?P<type>[hfdq])add|_fp(?P<bits>\d+)_)\w*"
)
_OPS: Final = re.compile(r"sms?p?__ops_path_tensor\w*")
_TENSOR: Final = re.compile(
    r"sms?p?__ops_path_tensor_(?:op_(?P<op>\w+?)_)?src_(?P<source>\w+?)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?(?:_realtime)?"
)
# Volta's; later chips subdivide it in other ways, and no count of instructions gives FLOP there.
_PIPE: Final = re.compile(r"sms?p?__inst_executed_pipe_tensor(?:_op_(?P<op>hmma))?")
# Above 0 where tensor cores worked. HFMA2.MMA runs on their pipe without being a matrix product.
_BUSY: Final = re.compile(
    r"(?:[\w.]+\.)?(?:derived__)?sms?p?__(?:inst_executed_)?pipe_(?:tensor|fp64_op_dmma)"
    r"(?!\w*_type_hfma2)\w*"
    r"|sms?p?__sass_inst_executed_op_(?:shared_gmma|utcmma)"
)
_INTEGER: Final = re.compile(r"_(?:op|subpipe|type)_[ib]g?mma(?!\w*_[hqd]g?mma)")

_RATES: Final[Mapping[str, Per]] = {
    "sum": "",
    "sum.per_cycle_elapsed": "cycle",
    "sum.per_second": "second",
}
# By the first part of the roll-up that says so, what the others are.
_ROLL_UPS: Final = {
    "pct": "a percentage of the peak",
    "peak": "a peak, the most that the chip could do",
    "avg": "an average over the chip's units",
    "max": "the largest value of the chip's units",
    "min": "the smallest value of the chip's units",
    "per_": "a rate over something else than elapsed cycles or seconds",
}
_SILENT: Final = ("peak", "min")  # these are no sign of work

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

# Kernels of cuBLAS, cuDNN, CUTLASS, FlashAttention and others that use tensor cores. "xmma" alone
# does not say so: sm80_xmma_gemm_f32f32_f32f32_f32_..._ffma_... are fp32 kernels.
_TENSOR_KERNEL: Final = re.compile(
    r"tensorop_(?!i\d)"
    r"|(?<![a-z0-9])[a-z]?(?<!i)(?:884|161616|168(?:8|16|32|64))(?:gemm|cudnn|fprop|[dw]grad)"
    r"|xmma_(?!\w*_[hfd]fma)\w*(?:bf16|tf32|f16f16|e4m3|e5m2|tensor\d+x)"
    r"|(?<![a-z])(?:[hq]?gmma|wgmma|hmma|wmma|utcmma|tcgen05|nvjet|flash_fwd|flash_bwd)(?![a-z])"
    r"|fmha_cutlass[FB]_(?:f16|bf16)|deep_gemm|(?<![a-z])attn_(?:fwd|bwd)(?![a-z])"
    r"|triton_\w*mm_\w*(?:bf16|fp16)"
    r"|FlashAttn(?:Fwd|Bwd)|fmha_v2_(?!\w*int8)|fmhaSm[0-9]|sdpa_sm[0-9]|(?<![A-Za-z])Marlin\w*<"
    # CUTLASS 2 and 3, and what their instructions are called: SM80_16x8x16_F32BF16BF16F32_TN.
    r"|MmaTensorOp|Mainloop\w*[GU]mma|SM[0-9]+_(?:MMA_|[0-9]+x[0-9]+x[0-9]+_)(?:MX|T)?F[0-9]"
    r"|(?<![A-Za-z0-9])m(?:16n8k|8n8k4|64n[0-9]+k)[0-9]*(?![0-9]|\w*_[su][48])"
)
# The same names stand for products of integers, which these tell.
_INTEGER_KERNEL: Final = re.compile(
    r"SM[0-9]+_(?:MMA_|[0-9]+x[0-9]+x[0-9]+_)S|MmaTensorOp\b.*?(?:signed char|int(?:8|4b)_t)"
)
# The type of the factors, as the counters call it. h884 and h1688 are all fp16, s1688 is not.
_KERNEL_TYPES: Final = {
    "bf16": re.compile(r"bf16|bfloat16", re.IGNORECASE),
    "fp16": re.compile(
        r"(?<!b)fp?16|half|(?<![a-z0-9])h(?:884|16[0-9]+)|(?<!b)float16", re.IGNORECASE
    ),
    "tf32": re.compile(r"tf32", re.IGNORECASE),
    "fp64": re.compile(r"fp?64|double|(?<![a-z0-9])d(?:884|16[0-9]+)", re.IGNORECASE),
    "fp8": re.compile(r"e4m3|e5m2|fp8", re.IGNORECASE),
}
# Kernels of other tensor instructions than HMMA: a counter of one kind sees none of another.
_NOT_HMMA: Final = re.compile(
    r"[gu]mma|nvjet|utcmma|tcgen05|sm90|sm1[0-9]{2}|deep_gemm|fp?64|(?<![a-z0-9])d(?:884|16)",
    re.IGNORECASE,
)
# CUDA cores work in double precision.
_DOUBLE_KERNEL: Final = re.compile(
    r"(?<![A-Za-z0-9])d(?:gemm|gemv|ger|syrk|trsm|axpy|dot|scal)|\bdouble\b|_dfma(?![a-z])"
)
_WHOLE_PIPE: Final = re.compile(r"pipe_tensor(?!_op_|_subpipe)")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one metric contributes.

    Attributes:
        kind: ``flop`` (CUDA cores), ``tensor`` (operations), ``pipe`` (tensor instructions),
            ``hint`` (has to do with FLOP and gives none), ``byte``, ``time``, ``cycle`` or
            ``clock``.
        part: What is counted within the kind; metrics with the same part are the same quantity.
            For a hint, the kind and part of what should be there instead.
        weight: From the metric's base unit to FLOP or byte.
        rank: Lower is preferred among metrics with the same part.
        per: The value is a rate: per second, or per elapsed cycle.
        whole: The value is a count and cannot have decimals in its base unit.
        flaw: Of a hint, why it gives no FLOP and what would.
        silent: Of a hint, that it is above 0 without any work, or 0 in spite of it.
    """

    kind: Kind
    part: tuple[str, ...]
    weight: float = 1.0
    rank: int = 0
    per: Per = ""
    whole: bool = False
    flaw: str = ""
    silent: bool = False


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
    for read in (_sass, _sass_group, _tensor, _pipe, _busy, _clock, _byte):
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


def is_hint(found: Meaning | str | None) -> bool:
    """True for a metric whose value is in no figure."""
    return isinstance(found, Meaning) and found.kind == "hint"


def tensor_parts(capability: str | None) -> tuple[tuple[str, ...], ...] | None:
    """Parts of the counters that together see every tensor FLOP of a chip; None if not known."""
    chip = _CHIPS.get(capability or "")
    if chip is None:
        return None
    rows = (row.name for row in metrics.family_of(chip).tensor if row.kind == "flop")
    return tuple(found.part for name in rows if (found := expected(name)) is not None)


def has_tensor_cores(capability: str | None) -> bool:
    """Whether a chip may have tensor cores; True where nobody knows which it is."""
    major = (capability or "").partition(".")[0][:4]  # of a damaged one there may be thousands
    return not major.isdecimal() or int(major) >= _FIRST_WITH_TENSOR_CORES


def sass_metric(path: str, op: str) -> str:
    """The counter of one kind of instruction (``add``, ``mul``, ``fma``) of CUDA cores."""
    letter = next(letter for letter, known in _SASS_PATHS.items() if known == path)
    return _SASS_ALL.format(letter + op)


def tensor_metric(part: tuple[str, ...]) -> str:
    """The counter of a part of ``tensor_parts``."""
    _, source, _, result, _ = part
    return f"sm__ops_path_tensor_src_{source}{f'_dst_{result}' if result else ''}.sum"


def uses_tensor_cores(kernel: str) -> bool:
    """True where a name says so; False says nothing."""
    return _TENSOR_KERNEL.search(kernel) is not None and _INTEGER_KERNEL.search(kernel) is None


def uses_fp64(kernel: str) -> bool:
    """True where a name says that CUDA cores work in fp64; False says nothing."""
    return _DOUBLE_KERNEL.search(kernel) is not None


def tensor_types(kernel: str) -> frozenset[str]:
    """Types of floating-point numbers that a name tells, in the counters' words."""
    return frozenset(name for name, form in _KERNEL_TYPES.items() if form.search(kernel))


def is_seen_by(metric: str, kernel: str) -> bool:
    """Whether a counter of the tensor cores' pipe is above 0 where a kernel used them."""
    if _WHOLE_PIPE.search(metric):
        return True
    return "hmma" in metric and _NOT_HMMA.search(kernel) is None


def is_metric_name(text: str) -> bool:
    """True for what looks like a hardware metric's name (and unlike a label)."""
    return re.fullmatch(r"[a-z0-9_]+__[A-Za-z0-9_.]+", text) is not None


def _sass(name: str, dimension: str) -> Meaning | str | None:
    base, _, roll = name.partition(".")
    match = _SASS.fullmatch(base)
    if match is None or (match["times"] and not match["derived"]):
        return None
    op = match["op"]
    part = ("flop", _SASS_PATHS[match["type"]], op)
    row = metrics.TABLE.get(_SASS_ALL.format(op))
    if row is None:
        return Meaning("hint", part, flaw=f"how many FLOP one {op} instruction does is not known")
    if match["derived"] and match["unit"] == "sm":
        roll = "peak"
    elif match["derived"] and not roll:
        # ncu's section files define these as "....sum.per_cycle_elapsed * 2"; some of its versions
        # print them in inst all the same.
        roll = "sum.per_cycle_elapsed"
        if dimension in _COUNT:
            dimension += "/cycle"
    per = _RATES.get(roll)
    if per is None:
        return _hint(part, roll, _SASS_ALL.format(op))
    refused = _refused(dimension, per, "instructions")
    if refused is not None:
        return refused
    # Multiplied by 2 or 4 already, which for half precision need not be the weight.
    weight = row.weight / int(match["times"] or 1)
    rank = 2 * bool(per) + bool(match["derived"])
    # The two spellings differ in how fp16 is weighted (see totals), so both are kept.
    return Meaning("flop", (*part[1:], match["unit"]), weight, rank, per, whole=not per)


def _sass_group(name: str, dimension: str) -> Meaning | None:
    base, _, roll = name.partition(".")
    match = _SASS_GROUP.fullmatch(base)
    if match is None:
        return None
    letter = match["type"] or {"16": "h", "32": "f", "64": "d"}.get(match["bits"], "q")
    ops = f"{letter}add, {letter}mul and {letter}fma"
    part = ("flop", _SASS_PATHS[letter], "")
    if match["type"]:
        flaw = "counts in one number what differs in FLOP"
    else:
        flaw = "counts instructions of every kind, with FLOP and without"
    silent = _hint(part, roll, "").silent
    flaw += f": collect {_SASS_ALL.format('*')} of {ops}"
    return Meaning("hint", part, flaw=flaw, silent=silent)


def _tensor(name: str, dimension: str) -> Meaning | str | None:
    base, _, roll = name.partition(".")
    if _OPS.fullmatch(base) is None:
        return None
    match = _TENSOR.fullmatch(base)
    if match is None:
        return Meaning("hint", ("tensor",), flaw="roofprobe does not know what it counts")
    source = match["source"]
    row = metrics.TABLE.get(f"sm__{base.partition('__')[2]}.sum")
    path = (row.path if row else None) or _TENSOR_PATHS.get(source, f"tensor_{source}")
    part = (path, source, *(match[key] or "" for key in ("op", "dst", "sparsity")))
    per = _RATES.get(roll)
    if per is None:
        return _hint(("tensor", *part), roll, f"{base}.sum")
    refused = _refused(dimension, per, "operations")
    return refused or Meaning("tensor", part, rank=2 * bool(per), per=per, whole=not per)


def _pipe(name: str, dimension: str) -> Meaning | str | None:
    base, _, roll = name.partition(".")
    match, per = _PIPE.fullmatch(base), _RATES.get(roll)
    if match is None or per is None:
        return None
    refused = _refused(dimension, per, "instructions")
    part = (match["op"] or "",)
    return refused or Meaning("pipe", part, rank=2 * bool(per), per=per, whole=not per)


def _busy(name: str, dimension: str) -> Meaning | None:
    """Signs that tensor cores worked."""
    match = _BUSY.match(name)
    if match is None or name[match.end() : match.end() + 1] not in ("", "."):
        return None
    base = match.group()
    hint = _hint(("pipe", "op" if _INTEGER.search(base) else "flop"), name[match.end() + 1 :], "")
    return None if hint.silent or base.startswith("derived__sm__") else hint


def _hint(part: tuple[str, ...], roll: str, instead: str) -> Meaning:
    key = next((key for key in _ROLL_UPS if key in roll), "")
    what = _ROLL_UPS.get(key, "no sum over the chip's units")
    return Meaning(
        "hint", part, flaw=f"stands there only as {what}: collect {instead}", silent=key in _SILENT
    )


def _refused(dimension: str, per: Per, counted: str) -> str | None:
    """Why a unit cannot be that of a count, or of a rate of one."""
    top, _, bottom = dimension.partition("/")
    if top not in _COUNT:
        return f"in {dimension}, which is no count of {counted}"
    if bottom != per:
        return f"in {dimension or 'no unit'}, which does not fit the name"
    return None


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
