"""What is counted: one table of metrics for each chip family, and named sets of them.

A metric is a CUPTI name with its roll-up (``dram__bytes_read.sum``). The table says what each one
means for a roofline: which FLOP path it counts and with which weight, or at which memory level it
counts bytes. Formulas elsewhere read this table and name no metric themselves.

FLOP paths:
    ``sass_*`` are CUDA-core instructions, counted by SASS instrumentation per thread with all
    predicates true: add 1, mul 1, fma 2 FLOP (one FMA is two FLOP). A half instruction is packed
    or not, and compilers load constants with HFMA2, so the fp16 weights 2, 2, 4 give an upper
    bound (measured on an H200: an fp32 GEMM of 131,072 threads reads hfma 131,072).
    ``tensor_*`` are tensor-core operations by source type, weight 1: the hardware already counts
    an FMA as two (measured on an H200: a 4096^3 GEMM reads 2*M*N*K).

Sources: names and units from libcupti's host API (CUPTI 13.0); which chip has which was asked of
it and is tested in tests/native.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from roofprobe.errors import UnknownMetricError, UsageError

Kind = Literal[
    "flop",
    "op",
    "byte",
    "sector",
    "rate",
    "second",
    "coverage_sass",
    "coverage_hardware",
    "gate",
    "block",
]
Level = Literal["dram", "l2", "l1"]
LEVELS: Final[tuple[Level, ...]] = ("dram", "l2", "l1")

DEFAULT_SET: Final = "full"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the metric table.

    Attributes:
        name: CUPTI's name with roll-up.
        kind: What one count is, once multiplied by ``weight``. ``op`` is an integer operation,
            which never enters a FLOP total, ``rate`` is bytes a second, which no sum may hold,
            ``gate`` counts what a pipe executed (``Gate``), and ``block`` is a thread block that
            was launched.
        weight: Factor from the counter's value to the base unit of ``kind``.
        path: FLOP path (``sass_fp32``, ``tensor_tf32``, ...) for kinds ``flop`` and ``op``.
        level: Memory level for kinds ``byte``, ``sector`` and ``rate``.
        direction: ``read`` or ``write`` where the counter tells them apart.
        upper_bound: True where the weight is the largest possible and not the exact one.
        error: Relative error that the value is known to have, a fraction; 0 for a counter.
    """

    name: str
    kind: Kind
    weight: float = 1.0
    path: str | None = None
    level: Level | None = None
    direction: Literal["read", "write"] | None = None
    upper_bound: bool = False
    error: float = 0.0

    @property
    def instrumented(self) -> bool:
        """True for SASS metrics: they count by patching kernels and can silently read 0."""
        return "__sass_" in self.name


def _sass(letter: str, precision: str, weights: tuple[int, int, int]) -> tuple[Metric, ...]:
    return tuple(
        Metric(
            f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum",
            "flop",
            weight,
            path=f"sass_{precision}",
            upper_bound=precision == "fp16",
        )
        for op, weight in zip(("add", "mul", "fma"), weights, strict=True)
    )


def _tensor(**paths: str) -> tuple[Metric, ...]:
    return tuple(
        Metric(
            f"sm__ops_path_tensor_src_{source}.sum",
            "op" if path == "int8" else "flop",
            path=f"tensor_{path}",
        )
        for source, path in paths.items()
    )


SASS_FP32: Final = _sass("f", "fp32", (1, 1, 2))
SASS: Final = _sass("h", "fp16", (2, 2, 4)) + SASS_FP32 + _sass("d", "fp64", (1, 1, 2))

# Packed fp32 instructions of data-centre Blackwell work on two values each.
_SASS_PACKED: Final = tuple(
    Metric(
        f"smsp__sass_thread_inst_executed_op_f{op}2_pred_on.sum", "flop", weight, path="sass_fp32"
    )
    for op, weight in (("add", 2), ("mul", 2), ("fma", 4))
)

_DRAM: Final = (
    Metric("dram__bytes_read.sum", "byte", level="dram", direction="read"),
    Metric("dram__bytes_write.sum", "byte", level="dram", direction="write"),
)
_DRAM_OP: Final = (
    Metric("dram__bytes_op_read.sum", "byte", level="dram", direction="read"),
    Metric("dram__bytes_op_write.sum", "byte", level="dram", direction="write"),
)
_L2: Final = Metric("lts__t_bytes.sum", "byte", level="l2")
_L1: Final = Metric("l1tex__t_bytes.sum", "byte", level="l1")
_TIME: Final = Metric("gpu__time_duration.sum", "second", 1e-9)

# The cheapest pair that shows whether SASS instrumentation saw the kernels (docs/design.md,
# "Coverage"): CUPTI describes the instrumented count as "STG, ST", the hardware counts the two
# apart, and warp instructions with at least one thread on are what both count.
_COVERAGE_SASS: Final = Metric("smsp__sass_inst_executed_op_global_st.sum", "coverage_sass")
_COVERAGE_HARDWARE: Final = tuple(
    Metric(f"smsp__inst_executed_op_{op}_st_pred_on_any.sum", "coverage_hardware")
    for op in ("global", "generic")
)

# Kernel records say how many there were, so it shows whether the counters saw every kernel; it
# costs no pass on any chip (docs/design.md, "Coverage").
_BLOCKS: Final = Metric("sm__ctas_launched.sum", "block")

# The published study's instruction metrics: "op_fp16" counts half instructions of every kind.
_STUDY_FP16: Final = Metric(
    "smsp__sass_thread_inst_executed_op_fp16_pred_on.sum",
    "flop",
    0.0,  # counted by the study, not used in its FLOP formula
    path="study_fp16",
)
_STUDY_SECTORS: Final = (
    Metric("dram__sectors_read.sum", "sector", 32, level="dram", direction="read"),
    Metric("dram__sectors_write.sum", "sector", 32, level="dram", direction="write"),
)
_STUDY_SECTORS_OP: Final = (
    Metric("dram__sectors_op_read.sum", "sector", 32, level="dram", direction="read"),
    Metric("dram__sectors_op_write.sum", "sector", 32, level="dram", direction="write"),
)


def _rates(counted: tuple[Metric, ...]) -> tuple[Metric, ...]:
    """DRAM bytes a second over the time of the range, beside counters of DRAM bytes."""
    return tuple(
        Metric(f"{row.name}.per_second", "rate", level=row.level, direction=row.direction)
        for row in counted
    )


# Other programs count DRAM so; no set of ours does.
_DRAM_TOTAL: Final = Metric("dram__bytes.sum", "byte", level="dram")


@dataclass(frozen=True, slots=True)
class Gate:
    """A hardware counter that shows that instructions of some kind did not run.

    Instrumented counters are paid for by the metric and by the launch, hardware counters of a pass
    that runs anyway cost nothing. Where nothing went through a pipe, the instructions that only it
    executes need not be counted: they are 0.

    Attributes:
        name: The counter; 0 where the pipe did nothing.
        path: FLOP path whose instrumented instructions only this pipe executes.
        after: Metric after which it is scheduled: there it takes no pass of its own.
    """

    name: str
    path: str
    after: str


@dataclass(frozen=True, slots=True)
class Family:
    """Chips that share metric names.

    Attributes:
        title: For people.
        chips: CUPTI's chip names.
        tensor: Tensor-core operations by source type.
        dram: DRAM bytes, read and write; empty where the chip has no such counter.
        sectors: DRAM sectors, as the study counts them; its byte rates are those of ``dram``.
        sass: Instrumented instruction counts.
        gate: For those that training hardly ever runs, where it was held against their counts.
    """

    title: str
    chips: tuple[str, ...]
    tensor: tuple[Metric, ...]
    dram: tuple[Metric, ...] = _DRAM
    sectors: tuple[Metric, ...] = _STUDY_SECTORS
    sass: tuple[Metric, ...] = SASS
    gate: Gate | None = None


_AMPERE_TENSOR: Final = _tensor(
    bf16_dst_fp32="bf16",
    fp16_dst_fp16="fp16",
    fp16_dst_fp32="fp16",
    tf32_dst_fp32="tf32",
    fp64="fp64",
    int8="int8",
)

_BLACKWELL_TENSOR: Final = _tensor(
    bf16_dst_fp32="bf16",
    fp16_dst_fp16="fp16",
    fp16_dst_fp32="fp16",
    tf32_dst_fp32="tf32",
    fp4_dst_fp32="fp4",
    fp64="fp64",
    int8="int8",
)
# Some chips count the formats of at most 8 bits as one, others keep fp8 apart.
_LUMPED_FP8: Final = _tensor(fp4_fp6_fp8_dst_fp16="fp8", fp4_fp6_fp8_dst_fp32="fp8")
_SEPARATE_FP8: Final = _tensor(
    fp8_dst_fp16="fp8", fp8_dst_fp32="fp8", fp4_fp6_dst_fp16="fp6", fp4_fp6_dst_fp32="fp6"
)

FAMILIES: Final[tuple[Family, ...]] = (
    Family("Volta", ("GV100",), _tensor(fp16_dst_fp16="fp16", fp16_dst_fp32="fp16")),
    # Turing's tensor cores take fp16 and integers only, so the lumped counter is fp16.
    Family(
        "Turing",
        ("TU102", "TU104", "TU106"),
        _tensor(fp16_dst_fp16="fp16", fp16_bf16_tf32_dst_fp32="fp16", int8="int8"),
    ),
    Family("Turing without tensor cores", ("TU116", "TU117"), ()),
    Family("Ampere", ("GA100", "GA102", "GA103", "GA104", "GA106", "GA107"), _AMPERE_TENSOR),
    Family("Ampere (integrated)", ("GA10B",), _AMPERE_TENSOR, dram=(), sectors=()),
    Family(
        "Ada",
        ("AD102", "AD103", "AD104", "AD106", "AD107"),
        _AMPERE_TENSOR + _tensor(fp8="fp8"),
    ),
    Family(
        "Hopper",
        ("GH100",),
        _tensor(
            bf16_dst_fp32="bf16",
            fp16="fp16",
            tf32_dst_fp32="tf32",
            fp8="fp8",
            fp64="fp64",
            int8="int8",
        ),
        gate=Gate(
            "smsp__inst_executed_pipe_fp64.sum",
            path="sass_fp64",
            after="sm__ops_path_tensor_src_tf32_dst_fp32.sum",
        ),
    ),
    Family(
        "Blackwell (data centre)",
        ("GB100", "GB102"),
        _BLACKWELL_TENSOR + _LUMPED_FP8,
        sass=SASS + _SASS_PACKED,
    ),
    Family(
        "Blackwell Ultra (data centre)",
        ("GB110",),
        _BLACKWELL_TENSOR + _SEPARATE_FP8,
        sass=SASS + _SASS_PACKED,
    ),
    Family(
        "Blackwell (consumer and workstation)",
        ("GB202", "GB203", "GB205", "GB206", "GB207"),
        _BLACKWELL_TENSOR + _SEPARATE_FP8,
        dram=_DRAM_OP,
        sectors=_STUDY_SECTORS_OP,
    ),
    Family(
        "Blackwell (integrated)",
        ("GB10B",),
        _BLACKWELL_TENSOR + _LUMPED_FP8,
        dram=(),
        sectors=(),
    ),
    Family(
        "Blackwell (integrated, consumer)",
        ("GB20B",),
        _BLACKWELL_TENSOR + _SEPARATE_FP8,
        dram=(),
        sectors=(),
    ),
)

# The analytic backend's own names, in the same table so that one set of formulas serves both.
ANALYTIC_PREFIX: Final = "analytic__"
ANALYTIC: Final[tuple[Metric, ...]] = (
    *(
        Metric(f"{ANALYTIC_PREFIX}flop_{p}.sum", "flop", path=f"analytic_{p}")
        for p in ("fp16", "bf16", "fp32", "fp64", "other")
    ),
    Metric(f"{ANALYTIC_PREFIX}bytes_read.sum", "byte", level="dram", direction="read"),
    Metric(f"{ANALYTIC_PREFIX}bytes_write.sum", "byte", level="dram", direction="write"),
)

# The GPM backend's, likewise. Errors bound the differences from CUPTI's counters that were seen
# (harness/results/h200/gpm_windows.json; the largest in bytes was of a GEMM that throttled the
# clock). An active CUDA-core pipe does no more than its datasheet's FLOP.
GPM_PREFIX: Final = "gpm__"
GPM: Final[tuple[Metric, ...]] = (
    *(
        Metric(f"{GPM_PREFIX}flop_tensor_{p}.sum", "flop", path=f"tensor_{p}", error=error)
        for p, error in (("fp16", 0.1), ("bf16", 0.1), ("tf32", 0.05), ("fp64", 0.05))
    ),
    *(
        Metric(f"{GPM_PREFIX}flop_{p}.sum", "flop", path=f"sass_{p}", upper_bound=True, error=0.05)
        for p in ("fp16", "fp32", "fp64")
    ),
    Metric(f"{GPM_PREFIX}bytes_dram.sum", "byte", level="dram", error=0.07),
)


def family_of(chip: str) -> Family:
    """The family of a CUPTI chip name; raises UnknownMetricError for a chip not in the table."""
    for family in FAMILIES:
        if chip in family.chips:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.chips)
    raise UnknownMetricError(
        f"chip {chip} has no metric table; roofprobe knows {known}. "
        "Name the metrics explicitly to measure it all the same"
    )


def flop_paths(chip: str | None) -> tuple[str, ...]:
    """Paths whose exact FLOP make up a total on a chip; none for a chip without a table."""
    family = next((family for family in FAMILIES if chip in family.chips), None)
    rows = (*family.tensor, *family.sass) if family is not None else ()
    exact = [row.path for row in rows if row.kind == "flop" and not row.upper_bound]
    return tuple(dict.fromkeys(path for path in exact if path is not None))


def rows_of_path(chip: str | None, path: str) -> tuple[Metric, ...]:
    """Everything that a chip counts of a FLOP path; nothing for a chip without a table."""
    family = next((family for family in FAMILIES if chip in family.chips), None)
    rows = (*family.tensor, *family.sass) if family is not None else ()
    return tuple(row for row in rows if row.path == path)


SET_NAMES: Final = ("study", "fp32", "memory", "full")


def metric_set(name: str, chip: str, levels: Sequence[Level] = LEVELS) -> tuple[str, ...]:
    """Names of a metric set on a chip, in the order in which they schedule into fewest passes.

    Args:
        name: ``study`` (what the published study counts), ``fp32``, ``memory`` or ``full``.
        chip: CUPTI's chip name.
        levels: Memory levels to count bytes at; the study's set has its own.

    Raises:
        UnknownMetricError: no table for the chip.
        UsageError: a level that does not exist.
    """
    require_levels(levels)
    family = family_of(chip)
    memory = tuple(metric for metric in (*family.dram, _L2, _L1) if metric.level in levels)
    sets: Mapping[str, tuple[Metric, ...]] = {
        "study": (
            _STUDY_FP16,
            *SASS_FP32,
            *family.sectors,
            *_rates(family.dram),
        ),
        "fp32": (*memory, _TIME, *(row for row in family.sass if row.path == "sass_fp32")),
        "memory": (*memory, _TIME),
        "full": (*family.tensor[:1], *memory, _TIME, *family.tensor[1:], *family.sass),
    }
    return tuple(metric.name for metric in sets[name])


def require_levels(levels: Sequence[str]) -> None:
    """Raises UsageError for memory levels that are none, whose bytes nobody would count."""
    if isinstance(levels, str):
        raise UsageError(f"levels is the text {levels!r}: pass a list, such as levels=['dram']")
    # What can be gone through once would be used up here.
    if not isinstance(levels, Collection):
        raise UsageError(f"levels is {levels!r}: pass a list, such as levels=['dram']")
    for level in levels:
        if level not in LEVELS:
            raise UsageError(f"levels has {level!r}; there are {', '.join(map(repr, LEVELS))}")


def named(request: str | Iterable[str]) -> str | tuple[str, ...]:
    """A request that can be gone through more than once.

    Raises:
        UsageError: neither a text nor texts.
    """
    if isinstance(request, str):
        return request
    instead = f"name a set ({', '.join(SET_NAMES)}) or list CUPTI metric names with their roll-up"
    if not isinstance(request, Iterable):
        raise UsageError(f"metrics is {request!r}: {instead}")
    names = tuple(request)
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"metrics has {name!r}, which is no text: {instead}")
    return names


def resolve(request: str | Iterable[str], chip: str | None, levels: Sequence[Level]) -> list[str]:
    """Metric names of a request: a set's name, names separated by commas, or names.

    Args:
        request: What the user asked for.
        chip: CUPTI's chip name; None for a backend without a chip, where a set has no members.
        levels: Memory levels to count bytes at, for a set.

    Raises:
        UnknownMetricError: a set that does not exist, or nothing named.
        UsageError: a level that does not exist, or what is no text.
    """
    require_levels(levels)
    request = named(request)
    if isinstance(request, str):
        if "." not in request and "," not in request:
            if request not in SET_NAMES:
                raise UnknownMetricError(
                    f"no metric set is called {request!r}; there are {', '.join(SET_NAMES)}, "
                    "or CUPTI metric names with their roll-up, separated by commas"
                )
            return list(metric_set(request, chip, levels)) if chip else []
        request = tuple(request.split(","))
    names = [name.strip() for name in request if name.strip()]
    if not names:
        raise UnknownMetricError("no metric was named: name a set or at least one metric")
    for name in names:
        if "." not in name:
            raise UnknownMetricError(f"metric {name!r} has no roll-up: ask for {name}.sum, say")
    return names


def with_coverage(names: Sequence[str]) -> list[str]:
    """Adds the counters that check the others: blocks, and stores where there are SASS metrics.

    CUPTI packs counters into passes in the order in which they are named. With one metric
    between the two store counters these cost no pass of their own (the ``full`` set takes 7
    passes instead of 8 on GH100 and GA100, 11 instead of 12 on GB202).
    """
    if not names:
        return []
    if not any("__sass_" in name for name in names):
        return list(dict.fromkeys([*names, _BLOCKS.name]))
    first, second = (metric.name for metric in _COVERAGE_HARDWARE)
    checked = (first, *names[:1], second, *names[1:], _COVERAGE_SASS.name, _BLOCKS.name)
    return list(dict.fromkeys(checked))


def gate_of(chip: str | None) -> Gate | None:
    """The gate of a chip; None where none is known to be right."""
    return next((family.gate for family in FAMILIES if chip in family.chips), None)


def behind(gate: Gate, chip: str) -> tuple[str, ...]:
    """Names of the instrumented metrics that are 0 where a chip's gate is 0."""
    return tuple(row.name for row in rows_of_path(chip, gate.path) if row.instrumented)


def with_gate(names: Sequence[str], gate: Gate) -> list[str]:
    """Adds a gate to a list of metrics, where it costs no pass if it can."""
    place = names.index(gate.after) + 1 if gate.after in names else len(names)
    return list(dict.fromkeys([*names[:place], gate.name, *names[place:]]))


def _table() -> dict[str, Metric]:
    rows: list[Metric] = [
        *ANALYTIC,
        *GPM,
        _L2,
        _L1,
        _TIME,
        _COVERAGE_SASS,
        *_COVERAGE_HARDWARE,
        _BLOCKS,
        _STUDY_FP16,
        _DRAM_TOTAL,
    ]
    for family in FAMILIES:
        rows += [*family.tensor, *family.dram, *family.sectors, *family.sass]
        rows += _rates(family.dram)
        rows += [Metric(family.gate.name, "gate")] if family.gate is not None else []
    return {row.name: row for row in rows}


TABLE: Final[Mapping[str, Metric]] = _table()


def rows(names: Iterable[str]) -> tuple[Metric, ...]:
    """The table's rows for those of ``names`` that it knows; others have no roofline meaning."""
    return tuple(TABLE[name] for name in names if name in TABLE)
