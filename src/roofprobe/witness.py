"""Hardware counts beside algorithmic ones: a second opinion on FLOP and bytes. Pure.

Algorithmic FLOP are what the shapes of the operands ask for (one FMA is two), and compulsory bytes
are every operand read once and every result written once. Neither is what hardware does, and the
reasons why they differ are few and known. A ratio that one of them explains is named with it; one
that none explains is a flag: a count or the model is wrong, or saw other work.

Where the bounds of an explanation come from:
    multiply-adds   many tools count an FMA as one: 2 (facebookresearch/fvcore#69); of a forward
                    pass alone, which is how GMAC are published, 6
    forward only    a training step is three forward passes, less the gradient of the first input:
                    3 (torch.profiler has no formula for convolution_backward)
    recomputation   activation checkpointing runs the forward pass once more: 4/3
    tiles           tensor cores compute whole tiles: 64 for a matrix-vector product, 4/3 for a
                    first layer of three channels (H200, TF32, batch 256: ResNet-18's tensor FLOP
                    are 1.0147 times the model's, and that layer explains 1.0148; AlexNet 1.38)
    attention       in fp32, memory-efficient attention makes three TF32 products of one (H200,
                    ViT-B/16 by layer: 4.75 times the formula forward, which is 3 times the whole
                    tiles of 197 x 197, and 4.69 times backward); a causal mask lets kernels skip
                    half of what the formula counts
    element-wise    the dearest common operator, GELU's gradient, takes 34 FLOP for 12 byte in fp32
                    (H200, ViT-B/16), so 5.7 a byte in half precision: 6
    Winograd        F(2x2, 3x3) does 1/2.25 of the multiplications, F(4x4, 3x3) 1/4 (Lavin and Gray,
                    https://arxiv.org/abs/1509.09308); its transforms add some back (H200: ResNet-18
                    without TF32 0.70). A kernel of one point has nothing to save
    2:4 sparsity    half of the products
    sectors         DRAM moves 32 byte where 4 may be wanted: 8
    tiles, again    a product in tiles of 64 x 64 reads its operands once for each of them: at most
                    a byte for 8 FLOP, in fp64
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from roofprobe import metrics
from roofprobe.derive import Figure, Figures, figures
from roofprobe.errors import UsageError
from roofprobe.record import Measurement, Modelled
from roofprobe.units import number, si

# Counters, shapes and element-wise work together: nearer than this is agreement.
_AGREES: Final = 0.05
# How near a ratio must be to one that a cause predicts.
_NEAR: Final = 0.05
# 2.1 is within 5% of 2, which 2.1 / 2 - 1 in binary is not.
_ROUNDING: Final = 1e-9
# Largest ratio that whole tiles explain, with a first layer's padding and the like on top.
_TILES: Final = 64 * 1.05
# Kernels on CUDA cores have smaller tiles.
_SMALL_TILES: Final = 2 * 1.05
# Products that fp32 attention makes of one.
_SPLIT: Final = 3.0
# FLOP for a compulsory byte of element-wise work, at most.
_DEAREST: Final = 6.0
# Least ratio that Winograd explains: F(4x4, 3x3) before its transforms.
_WINOGRAD: Final = 0.25
# What a causal mask leaves of attention.
_MASKED: Final = 0.5
_SECTOR: Final = 8.0
_FLOP_PER_REREAD: Final = 8.0
# A batch and a model make the work; other facts of a workload only say how it was done.
_SAME: Final = ("arch", "batch_size", "world_size")

Verdict = Literal["agrees", "explained", "flag", "unknown"]

HEADS: Final = ("per step", "hardware", "model", "ratio", "verdict")

_MODEL: Final = (
    "The model is of PyTorch's operators in one further step, by their shapes; its error is not "
    "known."
)

_VERDICTS: Final = {"flag": "FLAG", "unknown": "n/a"}


@dataclass(frozen=True, slots=True)
class Algorithmic:
    """What a model of the step says, per step.

    Attributes:
        flop: FLOP; None where not known.
        byte: Compulsory DRAM bytes; None where not known.
        source: ``analytic`` for roofprobe's own count of the operators that ran, which counts an
            FMA as two and saw backward pass and recomputation; otherwise whose figure it is.
        uncounted: What the figures are known to leave out; None for nothing.
        missing: Why there is no figure, where one is None.
        convolution: FLOP of convolutions with a kernel of more than one point; None where not
            known.
        attention: FLOP of attention; None where not known.
        own_step: True where it modelled a step of the measured loop itself, so that it saw the same
            code.
    """

    flop: float | None
    byte: float | None
    source: str = "analytic"
    uncounted: str | None = None
    missing: str | None = None
    convolution: float | None = None
    attention: float | None = None
    own_step: bool = False

    @classmethod
    def of(cls, record: Measurement) -> "Algorithmic":
        """The figures of a record that the analytic backend made, or of a record's own witness.

        Raises:
            UsageError: a record with neither.
        """
        if record.source != "analytic":
            if record.witness is not None:
                return cls._of_step(record.witness)
            raise UsageError(
                f"{record.name!r} was counted by {record.source} and has no witness: measure it "
                "with witness=True, or the same step with the analytic backend"
            )
        derived = figures(record)
        byte = derived.byte["dram"]
        why = derived.flop_total.reason or byte.reason
        return cls(derived.flop_total.value, byte.value, missing=why)

    @classmethod
    def _of_step(cls, step: Modelled) -> "Algorithmic":
        return cls(
            flop=_total(step, "flop"),
            byte=_total(step, "byte"),
            source=step.source,
            missing=step.reason,
            convolution=step.flop.get("convolution", 0.0),
            attention=step.flop.get("attention", 0.0),
            own_step=True,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity of the hardware beside the model's.

    Attributes:
        quantity: ``FLOP`` or ``byte``.
        hardware: Per step, with its source; None with the reason.
        algorithmic: Per step; None where not known.
        ratio: Hardware over algorithmic; None where either lacks.
        at_least: True where the hardware's count lacks a part, and the ratio with it.
        verdict: ``agrees``; ``explained`` by one or more ``causes``; ``flag`` where nothing known
            explains the ratio; ``unknown`` without a ratio.
        causes: What would make this ratio, the likeliest first.
        reason: Why there is no ratio; None where there is one.
    """

    quantity: Literal["FLOP", "byte"]
    hardware: Figure
    algorithmic: float | None
    ratio: float | None
    at_least: bool
    verdict: Verdict
    causes: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def sentence(self) -> str:
        """The comparison for people."""
        if self.ratio is None:
            return f"No witness for {_plural(self.quantity)}: {self.reason}."
        said = (
            f"The hardware's {_plural(self.quantity)} ({self.hardware.source}) are "
            f"{self._bound('at most ', 'at least ')}{number(self.ratio, 3)} times the model's "
            f"{si(self.algorithmic, self._unit)}"
        )
        if self.verdict == "agrees":
            return f"{said}: they agree."
        if self.verdict == "flag":
            unseen = (
                "kernels ran that are no operators of PyTorch"
                if self.ratio > 1
                else "part of the step ran on another device"
            )
            return (
                f"{said}, and nothing known explains that: {unseen}, or a count or the model is "
                "wrong."
            )
        return f"{said}, which fits {'; or '.join(self.causes)}."

    @property
    def row(self) -> tuple[str, ...]:
        """The comparison as cells of a table, one for each of ``HEADS``."""
        value = si(self.hardware.value, self._unit)
        ratio = number(self.ratio, 3)
        return (
            "FLOP" if self.quantity == "FLOP" else "DRAM bytes",
            value if self.hardware.value is None else f"{self._bound('<= ', '>= ')}{value}",
            si(self.algorithmic, self._unit),
            ratio if self.ratio is None else f"{self._bound('<= ', '>= ')}{ratio}",
            _VERDICTS.get(self.verdict, self.verdict),
        )

    @property
    def _unit(self) -> str:
        return "FLOP" if self.quantity == "FLOP" else "B"

    def _bound(self, most: str, least: str) -> str:
        return most if self.hardware.upper_bound else least if self.at_least else ""


@dataclass(frozen=True, slots=True)
class Witness:
    """Both quantities of one step."""

    flop: Comparison
    byte: Comparison

    @property
    def sentences(self) -> tuple[str, str]:
        """For people."""
        return self.flop.sentence, self.byte.sentence

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Cells under ``HEADS``."""
        return self.flop.row, self.byte.row

    @property
    def remarks(self) -> tuple[tuple[str, bool], ...]:
        """Sentences for a report, each with True where somebody has to look into it."""
        both = ((each.sentence, each.verdict == "flag") for each in (self.flop, self.byte))
        return (*both, (_MODEL, False))


def witness(hardware: Measurement, model: Measurement | Algorithmic | None = None) -> Witness:
    """Sets a hardware record beside a model of the same step.

    Args:
        hardware: Counted by hardware (``cupti``, ``gpm``, ``ncu``, ``recorded``).
        model: A record of the analytic backend, or figures from elsewhere; by default the model of
            its own step that the record holds.

    Raises:
        UsageError: records of different work, or none by hardware, or none by a model.
    """
    if hardware.source == "analytic":
        raise UsageError(
            f"{hardware.name!r} is itself a model (analytic): give a record that hardware counted"
        )
    if model is None:
        model = Algorithmic.of(hardware)
    elif isinstance(model, Measurement):
        _check_same_work(hardware, model)
        ours, theirs = (record.workload.get("amp") for record in (hardware, model))
        model = Algorithmic.of(model)
        if ours != theirs:  # FLOP stay the same, and bytes do not
            why = f"the hardware ran with amp {ours} and the model with {theirs}"
            model = replace(model, byte=None, missing=why if model.flop else model.missing)
    derived = figures(hardware)
    return Witness(_flop(hardware, derived, model), _byte(derived, model))


def _total(step: Modelled, kind: str) -> float | None:
    """Sum of a step's counters of a kind; None where one has no value."""
    values = [step.counters.get(row.name) for row in metrics.ANALYTIC if row.kind == kind]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _check_same_work(hardware: Measurement, model: Measurement) -> None:
    for fact in _SAME:
        ours, theirs = hardware.workload.get(fact), model.workload.get(fact)
        if ours is not None and theirs is not None and ours != theirs:
            raise UsageError(
                f"{hardware.name!r} has {fact} {ours} and {model.name!r} has {theirs}: "
                "a witness must have seen the same work"
            )


@dataclass(frozen=True, slots=True)
class _Counted:
    """FLOP of the hardware by what may explain them.

    Attributes:
        total: Of all paths; of upper bounds, all that they allow.
        tensor: On tensor cores.
        tf32: Those of them in TF32.
        half: The most that CUDA cores may have done in half precision, which is in no total.
        from_graphs: Kernels that ran from a CUDA graph.
        tensor_unasked: Nothing is known of tensor cores, and the chip may have some.
    """

    total: float
    tensor: float
    tf32: float
    half: float
    from_graphs: float
    tensor_unasked: bool

    @property
    def cores(self) -> float:
        """On CUDA cores."""
        return self.total - self.tensor


def _flop(record: Measurement, derived: Figures, model: Algorithmic) -> Comparison:
    counted = derived.flop_total
    exact = {
        path: figure.value
        for path, figure in derived.flop.items()
        if figure.value is not None and not figure.upper_bound and path != "tensor_int8"
    }
    low = sum(exact.values())
    at_least = counted.value is None and low > 0
    if at_least:
        counted = replace(counted, value=low)
    ratio = _ratio(counted.value, model.flop)
    if ratio is None or not model.flop:
        why = _why_unknown(counted, model.flop, model)
        return Comparison("FLOP", counted, model.flop, None, at_least, "unknown", reason=why)
    # Of an upper bound all between the exact part and the bound is possible.
    if _agrees(ratio, counted) or (counted.upper_bound and low < model.flop < ratio * model.flop):
        return Comparison("FLOP", counted, model.flop, ratio, at_least, "agrees")
    if ratio > 1:
        found = _counted(record, derived, exact, ratio * model.flop)
        causes = tuple(_more_flop(found, model.flop, model))
    elif at_least:
        blind = record.coverage is not None and not record.coverage.trusted
        what = (
            "SASS counters that did not see the kernels" if blind else "counters that are missing"
        )
        causes = (f"{what} ({counted.reason})",)
    else:
        found = _counted(record, derived, exact, low)
        causes = tuple(_less_flop(found, model.flop, model))
    verdict: Verdict = "explained" if causes else "flag"
    return Comparison("FLOP", counted, model.flop, ratio, at_least, verdict, causes)


def _counted(
    record: Measurement, derived: Figures, exact: dict[str, float], total: float
) -> _Counted:
    half = derived.flop.get("sass_fp16")
    asked = any(path.startswith("tensor_") for path in derived.flop)
    return _Counted(
        total=total,
        tensor=sum(value for path, value in exact.items() if path.startswith("tensor_")),
        tf32=exact.get("tensor_tf32", 0.0),
        half=half.value or 0.0 if half is not None else 0.0,
        from_graphs=record.kernels.graph_launches if record.kernels is not None else 0.0,
        tensor_unasked=not asked and not metrics.flop_paths(record.environment.chip),
    )


def _more_flop(found: _Counted, flop: float, model: Algorithmic) -> Iterator[str]:
    """What makes hardware count more than the model's FLOP; each cause is enough by itself."""
    ratio, surplus = found.total / flop, found.total - flop
    if model.uncounted is not None:
        yield f"work that the model leaves out ({model.uncounted})"
    if model.source != "analytic":
        if _near(ratio, 2.0):
            yield "a MAC vs FLOP unit mismatch: the model counts a multiply-add as one"
        if _near(ratio, 6.0):
            yield "multiply-adds of a forward pass alone, where a training step is 6 times that"
        if _near(ratio, 3.0):
            yield "the FLOP of a forward pass alone, where a training step is 3 times that"
        if _near(ratio, 4 / 3):
            yield "activation checkpointing, which runs the forward pass once more"
    padding = "padding: tensor cores compute whole tiles, which small or odd dimensions do not fill"
    padded = found.tensor > 0 and surplus <= found.tensor * (1 - 1 / _TILES)
    surely = padded and found.tensor > (1 + _AGREES) * flop
    if surely:
        yield padding
    plain = _element_wise(found, flop, model)
    split = not surely and _split_attention(found, surplus - plain, model)
    if split:
        yield (
            "attention in fp32, whose kernels make three TF32 products of one and compute whole "
            "tiles"
        )
    if plain >= surplus - _AGREES * flop:
        yield "element-wise work, of which the model counts no FLOP"
    elif padded and not surely and not split:
        yield padding
    elif not found.tensor and ratio <= _SMALL_TILES:
        yield "tiles of products on CUDA cores, which small or odd dimensions do not fill"
    if found.from_graphs:
        yield "kernels of a CUDA graph that the step replays itself, which the model does not see"


def _element_wise(found: _Counted, flop: float, model: Algorithmic) -> float:
    """The most that element-wise work can be of what CUDA cores did."""
    if model.byte is None:
        return found.cores if found.total <= _SMALL_TILES * flop else 0.0
    return min(found.cores, _DEAREST * model.byte)


def _split_attention(found: _Counted, surplus: float, model: Algorithmic) -> bool:
    if not model.attention or found.tf32 < (1 - _NEAR) * _SPLIT * model.attention:
        return False
    return surplus <= found.tf32 - model.attention


def _less_flop(found: _Counted, flop: float, model: Algorithmic) -> Iterator[str]:
    """What makes hardware count less than the model's FLOP."""
    ratio, deficit = found.total / flop, flop - found.total
    if found.tensor_unasked and model.source == "analytic":
        yield "work on tensor cores, which this run did not count"
    if model.source != "analytic" and _near(ratio, 0.5):
        yield "a MAC vs FLOP unit mismatch: the hardware's figure counts a multiply-add as one"
    if not model.own_step and _near(ratio, 1 / 3):
        yield "a region without the backward pass, which is two thirds of a training step"
    if not model.own_step and found.tensor > 0.5 * found.total and _near(ratio, 0.5):
        yield "2:4 sparsity, which leaves out half of the products"
    if found.half >= deficit:
        yield "half precision on CUDA cores, of which there is a bound and nothing in the total"
    # What Winograd left to do was done on CUDA cores.
    convolution = flop if model.convolution is None else model.convolution
    saved = (1 - _WINOGRAD) * convolution
    saved = saved if found.cores >= _WINOGRAD / (1 - _WINOGRAD) * deficit else 0.0
    skipped = (1 - _MASKED) * (model.attention or 0.0)
    if saved + skipped < deficit * (1 - _ROUNDING):
        return
    if saved:
        yield "Winograd or FFT convolutions, which need fewer multiplications than the formula"
    if skipped:
        yield "attention with a causal mask, of which kernels skip what the mask hides"


def _byte(derived: Figures, model: Algorithmic) -> Comparison:
    counted = derived.byte.get("dram") or Figure(
        None, derived.flop_total.source, reason="no DRAM counter was asked for"
    )
    ratio = _ratio(counted.value, model.byte)
    if ratio is None or counted.value is None or not model.byte:
        why = _why_unknown(counted, model.byte, model)
        return Comparison("byte", counted, model.byte, None, False, "unknown", reason=why)
    if _agrees(ratio, counted):
        return Comparison("byte", counted, model.byte, ratio, False, "agrees")
    causes: tuple[str, ...] = ()
    if ratio < 1:
        causes = (
            "values that stayed in a cache or in a fused kernel from one operator to the next",
        )
    elif counted.value <= _SECTOR * model.byte + (model.flop or 0.0) / _FLOP_PER_REREAD:
        causes = (
            "operands read more than once, changes of layout and workspaces",
            "sectors of 32 byte of which a kernel used a part",
        )
    return Comparison(
        "byte", counted, model.byte, ratio, False, "explained" if causes else "flag", causes
    )


def _why_unknown(counted: Figure, figure: float | None, model: Algorithmic) -> str:
    if counted.value is None and counted.reason:
        return counted.reason
    if figure is not None:
        return "the model counts none"
    return "the model has no figure" if model.missing is None else model.missing


def _ratio(hardware: float | None, model: float | None) -> float | None:
    return hardware / model if hardware is not None and model else None


def _agrees(ratio: float, counted: Figure) -> bool:
    return abs(ratio - 1) <= _AGREES + (counted.error or 0.0) + _ROUNDING


def _near(ratio: float, target: float) -> bool:
    return abs(ratio / target - 1) <= _NEAR + _ROUNDING


def _plural(quantity: str) -> str:
    return "FLOP" if quantity == "FLOP" else "bytes"
