"""Hardware counts beside algorithmic ones: a second opinion on FLOP and bytes. Pure.

Algorithmic FLOP are what the shapes of the operands ask for (one FMA is two), and compulsory bytes
are every operand read once and every result written once. Neither is what hardware does, and the
reasons why they differ are few and known. A ratio that one of them explains is named with it; one
that none explains is a flag: a count or the model is wrong.

Where the ratios come from:
    multiply-adds   many tools count an FMA as one: 2 (facebookresearch/fvcore#69); of a forward
                    pass alone, which is how GMAC are published, 6
    forward only    a training step is three forward passes, less the gradient of the first input:
                    3 (torch.profiler has no formula for convolution_backward)
    recomputation   activation checkpointing runs the forward pass once more: 4/3
    tiles           tensor cores compute whole tiles: 64 for a matrix-vector product, 4/3 for a
                    first layer of three channels (H200, TF32, batch 256: ResNet-18's tensor FLOP
                    are 1.0147 times the model's, and that layer explains 1.0148; AlexNet 1.38)
    Winograd        F(2x2, 3x3) does 1/2.25 of the multiplications, F(4x4, 3x3) 1/4 (Lavin and Gray,
                    https://arxiv.org/abs/1509.09308); its transforms add some back (H200: ResNet-18
                    without TF32 0.70)
    2:4 sparsity    half of the products
    sectors         DRAM moves 32 byte where 4 may be wanted: 8
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from roofprobe.derive import Figure, Figures, figures
from roofprobe.errors import UsageError
from roofprobe.record import Measurement
from roofprobe.units import number, si

# Counters, shapes and element-wise work together: nearer than this is agreement.
_AGREES: Final = 0.05
# How near a ratio must be to one that a cause predicts.
_NEAR: Final = 0.05
# 2.1 is within 5% of 2, which 2.1 / 2 - 1 in binary is not.
_ROUNDING: Final = 1e-9
# Largest ratio that whole tiles explain, with a first layer's padding and the like on top.
_TILES: Final = 64 * 1.05
# Least ratio that Winograd explains: F(4x4, 3x3) before its transforms.
_WINOGRAD: Final = 0.25
_SECTOR: Final = 8.0
# A batch and a model make the work; other facts of a workload only say how it was done.
_SAME: Final = ("arch", "batch_size", "world_size")

Verdict = Literal["agrees", "explained", "flag", "unknown"]


@dataclass(frozen=True, slots=True)
class Algorithmic:
    """What a model of the step says, per step.

    Attributes:
        flop: FLOP; None where not known.
        byte: Compulsory DRAM bytes; None where not known.
        source: ``analytic`` for roofprobe's own count of the operators that ran, which counts an
            FMA as two and saw backward pass and recomputation; otherwise whose figure it is.
        uncounted: What the model is known to leave out; None for nothing.
    """

    flop: float | None
    byte: float | None
    source: str = "analytic"
    uncounted: str | None = None

    @classmethod
    def of(cls, record: Measurement) -> "Algorithmic":
        """The figures of a record that the analytic backend made.

        Raises:
            UsageError: a record of another backend.
        """
        if record.source != "analytic":
            raise UsageError(
                f"{record.name!r} was counted by {record.source}; the witness is a record of the "
                "analytic backend: measure the same step with --backend analytic"
            )
        derived = figures(record)
        left_out = next(
            (text for text in record.warnings if "without a FLOP formula" in text), None
        )
        return cls(derived.flop_total.value, derived.byte["dram"].value, uncounted=left_out)


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
        unit = "FLOP" if self.quantity == "FLOP" else "B"
        if self.ratio is None:
            return f"No witness for {_plural(self.quantity)}: {self.reason}."
        bound = "at most " if self.hardware.upper_bound else "at least " if self.at_least else ""
        said = (
            f"The hardware's {_plural(self.quantity)} ({self.hardware.source}) are {bound}"
            f"{number(self.ratio, 3)} times the model's {si(self.algorithmic, unit)}"
        )
        if self.verdict == "agrees":
            return f"{said}: they agree."
        if self.verdict == "flag":
            return f"{said}: nothing known explains that, so a count or the model is wrong."
        return f"{said}, which fits {'; or '.join(self.causes)}."


@dataclass(frozen=True, slots=True)
class Witness:
    """Both quantities of one step."""

    flop: Comparison
    byte: Comparison

    @property
    def sentences(self) -> tuple[str, str]:
        """For people."""
        return self.flop.sentence, self.byte.sentence


def witness(hardware: Measurement, model: Measurement | Algorithmic) -> Witness:
    """Sets a hardware record beside a model of the same step.

    Args:
        hardware: Counted by hardware (``cupti``, ``gpm``, ``ncu``, ``recorded``).
        model: A record of the analytic backend, or figures from elsewhere.

    Raises:
        UsageError: records of different work, or none by hardware, or none by a model.
    """
    if hardware.source == "analytic":
        raise UsageError(
            f"{hardware.name!r} is itself a model (analytic): give a record that hardware counted"
        )
    missing = "the model has no figure"
    if isinstance(model, Measurement):
        _check_same_work(hardware, model)
        ours, theirs = (record.workload.get("amp") for record in (hardware, model))
        model = Algorithmic.of(model)
        if ours != theirs:  # FLOP stay the same, and bytes do not
            model = replace(model, byte=None)
            missing = f"the hardware ran with amp {ours} and the model with {theirs}"
    derived = figures(hardware)
    return Witness(_flop(hardware, derived, model), _byte(derived, model, missing))


def _check_same_work(hardware: Measurement, model: Measurement) -> None:
    for fact in _SAME:
        ours, theirs = hardware.workload.get(fact), model.workload.get(fact)
        if ours is not None and theirs is not None and ours != theirs:
            raise UsageError(
                f"{hardware.name!r} has {fact} {ours} and {model.name!r} has {theirs}: "
                "a witness must have seen the same work"
            )


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
        why = "the model has no figure" if model.flop is None else "the model counts none"
        why = counted.reason if counted.value is None and counted.reason else why
        return Comparison("FLOP", counted, model.flop, None, at_least, "unknown", reason=why)
    # Of an upper bound all between the exact part and the bound is possible.
    if _agrees(ratio, counted) or (counted.upper_bound and low < model.flop < ratio * model.flop):
        return Comparison("FLOP", counted, model.flop, ratio, at_least, "agrees")
    tensor = sum(value for path, value in exact.items() if path.startswith("tensor_"))
    if ratio > 1:
        causes = tuple(_more_flop(ratio, tensor / model.flop, model))
    elif at_least:
        blind = record.coverage is not None and not record.coverage.trusted
        what = (
            "SASS counters that did not see the kernels" if blind else "counters that are missing"
        )
        causes = (f"{what} ({counted.reason})",)
    else:
        uncounted = not any(path.startswith("tensor_") for path in derived.flop)
        causes = tuple(_less_flop(ratio, tensor / low if low else 0.0, uncounted, model))
    verdict: Verdict = "explained" if causes else "flag"
    return Comparison("FLOP", counted, model.flop, ratio, at_least, verdict, causes)


def _more_flop(ratio: float, tensor: float, model: Algorithmic) -> Iterator[str]:
    """What makes hardware count more than the model; ``tensor`` is tensor cores' over it."""
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
    if 1 + _AGREES < tensor <= _TILES:
        yield "padding: tensor cores compute whole tiles, which small or odd dimensions do not fill"
    elif tensor <= 1 + _AGREES and ratio <= 2 * (1 + _NEAR):
        yield "element-wise work, of which the model counts no FLOP, or tiles that are not full"


def _less_flop(ratio: float, tensor: float, uncounted: bool, model: Algorithmic) -> Iterator[str]:
    """What makes hardware count less; ``tensor`` is the share of its FLOP on tensor cores."""
    if uncounted and model.source == "analytic":
        yield "work on tensor cores, which this run did not count"
    if model.source != "analytic" and _near(ratio, 0.5):
        yield "a MAC vs FLOP unit mismatch: the hardware's figure counts a multiply-add as one"
    if _near(ratio, 1 / 3):
        yield "a region without the backward pass, which is two thirds of a training step"
    if tensor > 0.5 and _near(ratio, 0.5):
        yield "2:4 sparsity, which leaves out half of the products"
    if tensor < 0.5 and ratio >= _WINOGRAD:
        yield "Winograd or FFT convolutions, which need fewer multiplications than the formula"


def _byte(derived: Figures, model: Algorithmic, missing: str) -> Comparison:
    counted = derived.byte.get("dram") or Figure(
        None, derived.flop_total.source, reason="no DRAM counter was asked for"
    )
    ratio = _ratio(counted.value, model.byte)
    if ratio is None:
        why = counted.reason if counted.value is None and counted.reason else missing
        return Comparison("byte", counted, model.byte, None, False, "unknown", reason=why)
    if _agrees(ratio, counted):
        return Comparison("byte", counted, model.byte, ratio, False, "agrees")
    causes: tuple[str, ...] = ()
    if ratio < 1:
        causes = (
            "values that stayed in a cache or in a fused kernel from one operator to the next",
        )
    elif ratio <= _SECTOR:
        causes = (
            "operands read more than once, changes of layout and workspaces",
            "sectors of 32 byte of which a kernel used a part",
        )
    return Comparison(
        "byte", counted, model.byte, ratio, False, "explained" if causes else "flag", causes
    )


def _ratio(hardware: float | None, model: float | None) -> float | None:
    return hardware / model if hardware is not None and model else None


def _agrees(ratio: float, counted: Figure) -> bool:
    return abs(ratio - 1) <= _AGREES + (counted.error or 0.0) + _ROUNDING


def _near(ratio: float, target: float) -> bool:
    return abs(ratio / target - 1) <= _NEAR + _ROUNDING


def _plural(quantity: str) -> str:
    return "FLOP" if quantity == "FLOP" else "bytes"
