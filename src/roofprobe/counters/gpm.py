"""Counts from NVML's GPU Performance Monitoring (GPM): utilisations times this device's peaks.

For machines where CUPTI refuses counters. GPM needs no privilege; it exists on Hopper and later.
Two samples around many unprofiled steps give the mean utilisation of DRAM and of each pipe between
them, and one step's share of that time turns a utilisation into a count:

    DRAM bytes = utilisation * (memory clock * 2 * bus width / 8) * window / steps
    FLOP = utilisation * SMs * FLOP of an SM in a cycle * mean SM clock * window / steps

What the figures do not mean:
    * GPM sees the whole device, and all of the time: what a loop does between its steps counts, and
      so do other processes. Where another process was at work, the figures are withheld.
    * The driver renews GPM's counters ten times a second (https://github.com/NVIDIA/DCGM/issues/310),
      so a sample can be 100 ms old. Steps run alike for longer than that before the first sample:
      what it then misses at the end equals what it has too much at the beginning.
    * An active pipe need not do its most: a CUDA-core pipe does half as many FLOP in additions as
      in FMA. CUDA-core FLOP are therefore upper bounds. Of tensor cores ``_YIELD`` is known,
      as far as it was held against counters.
    * HMMA is one utilisation for fp16, bf16 and tf32. Which of them ran is told from the operands
      of PyTorch's operators, for which one step of each round is watched. Where they do not tell,
      the FLOP are withheld, with the range in which they lie.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from statistics import stdev
from typing import Final

import torch

from roofprobe.counters import Plan, RoundCounters
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.counters.nvml import GpmReader, MeanClock
from roofprobe.metrics import ANALYTIC, GPM

SOURCE: Final = "gpm"

# s; three times and twenty times the age that a sample can have.
_LEAD_IN: Final = 0.3
_WINDOW: Final = 2.0
# The parts of a window show whether its steps were alike. Each is whole steps, and so many that
# the piece of a step by which a sample is late counts little.
_PARTS: Final = 4
_STEPS_A_PART: Final = 4

# FLOP of one SM in one cycle, by compute capability: the datasheet's dense peak over SMs and the
# clock that it assumes (H200: 1.98 GHz for CUDA cores and fp64, 1.83 GHz for other tensor paths).
# A capability is here once its figures have been held against counters.
_FLOP_PER_CYCLE: Final[Mapping[tuple[int, int], Mapping[str, float]]] = {
    (9, 0): {
        "tensor_fp16": 4096.0,
        "tensor_bf16": 4096.0,
        "tensor_tf32": 2048.0,
        "tensor_fp64": 256.0,
        "sass_fp16": 512.0,
        "sass_fp32": 256.0,
        "sass_fp64": 128.0,
    },
}
# FLOP path -> tensor FLOP that the hardware counted over what the active cycles could have held, on
# H200s (harness/results/h200/gpm_windows.json, and readings before it): the middle of what was
# seen.
# TF32 0.909 (a GEMM of 8192) to 0.942 (ResNet-18), BF16 0.842 (ResNet-18, autocast) to 0.905 (a
# GEMM), FP64 0.965 to 0.998 (a GEMM). FP16 is taken to be like BF16.
_YIELD: Final[Mapping[str, float]] = {
    "tensor_tf32": 0.93,
    "tensor_bf16": 0.87,
    "tensor_fp16": 0.87,
    "tensor_fp64": 0.98,
}

# A fraction below this is printed as 0 by GPM's tools, and too coarse to be judged.
_NOTHING: Final = 5e-4
# Operands with less of the algorithmic FLOP than this decide no precision.
_SMALL: Final = 0.01

_NAMES: Final = {row.path or "dram": row.name for row in GPM}
_ERRORS: Final = {row.path or "dram": row.error for row in GPM}
_HMMA: Final = {"tensor_fp16": "fp16", "tensor_bf16": "bf16", "tensor_tf32": "fp32"}


@dataclass(frozen=True, slots=True)
class GpmDevice:
    """What turns utilisations of one device into counts.

    Attributes:
        sm_count: Streaming multiprocessors.
        dram_byte_per_s: Theoretical bandwidth at the memory clock in force; None if not readable.
        flop_per_cycle: FLOP path -> FLOP of one SM in one cycle; empty where not known.
    """

    sm_count: int
    dram_byte_per_s: float | None
    flop_per_cycle: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Window:
    """What was read around steps that are all alike.

    Attributes:
        steps: How many.
        duration: From the end of the step before them to the end of the last, s.
        utilisation: GPM's name (``counters.nvml.IDS``) -> fraction; what failed is missing.
        parts: The same of the window's parts.
        sm_clock: Mean SM clock, Hz; None where not readable.
    """

    steps: int
    duration: float
    utilisation: Mapping[str, float]
    parts: tuple[Mapping[str, float], ...] = ()
    sm_clock: float | None = None

    @property
    def step(self) -> float:
        """From the end of one step to the end of the next, s."""
        return self.duration / self.steps


@dataclass(slots=True)
class _Found:
    values: dict[str, float | None] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def give(self, path: str, value: float) -> None:
        self.values[_NAMES[path]] = value

    def withhold(self, paths: Iterable[str], why: str) -> None:
        for path in paths:
            self.values[_NAMES[path]] = None
            self.reasons[_NAMES[path]] = why


def counts(
    window: Window, device: GpmDevice, operands: Mapping[str, float], *, tf32: bool
) -> RoundCounters:
    """Counts of one step.

    Args:
        window: What was read.
        device: Where.
        operands: Operand type (``fp16``, ``bf16``, ``fp32``, ``fp64``, ``other``) -> algorithmic
            FLOP of one step; empty where no operator was seen.
        tf32: True where PyTorch may use tensor cores for fp32 operands.

    Returns:
        FLOP and bytes by metric name; None with the reason for each that cannot be had.
    """
    found = _Found()
    if not window.utilisation.get("graphics"):
        found.withhold(_NAMES, "GPM reported an idle GPU while the steps ran")
        return RoundCounters(found.values, found.reasons)
    used, why = _steady(window, "dram", _ERRORS["dram"])
    if used is None:
        found.withhold(["dram"], why)
    elif device.dram_byte_per_s is None:
        found.withhold(["dram"], "NVML does not tell memory clock and bus width, hence no peak")
    else:
        found.give("dram", used * device.dram_byte_per_s * window.step)
    single = {"sass_fp16": "fp16", "sass_fp32": "fp32", "sass_fp64": "fp64", "tensor_fp64": "dfma"}
    for path, pipe in single.items():
        cycles, why = _cycles(window, pipe, device, _ERRORS[path])
        if cycles is None:
            found.withhold([path], why)
        else:
            found.give(path, cycles * _rate(device, path))
    _hmma(found, window, device, operands, tf32)
    return RoundCounters(found.values, found.reasons)


def _hmma(
    found: _Found,
    window: Window,
    device: GpmDevice,
    operands: Mapping[str, float],
    tf32: bool,
) -> None:
    """Shares what GPM calls HMMA among the precisions that the operands show."""
    cycles, why = _cycles(window, "hmma", device, min(_ERRORS[path] for path in _HMMA))
    if cycles is None:
        return found.withhold(_HMMA, why)
    other = _unnamed(window)
    if other is not None:
        return found.withhold(_HMMA, other)
    shares, why = _shares(operands, tf32) if cycles else ({}, "")
    if cycles and not shares:
        low, high = (pick(cycles * _rate(device, path) for path in _HMMA) for pick in (min, max))
        return found.withhold(_HMMA, f"{why}: {low:.3g} FLOP if tf32, {high:.3g} if fp16 or bf16")
    # The cycles are the sum over precisions, each with its own rate.
    least = sum(share / _rate(device, path) for path, share in shares.items())
    for path in _HMMA:
        found.give(path, cycles / least * shares.get(path, 0.0) if shares else 0.0)
    return None


def _shares(operands: Mapping[str, float], tf32: bool) -> tuple[Mapping[str, float], str]:
    """Path -> its share of the FLOP that HMMA may do; nothing, with the reason, if not known."""
    every = sum(operands.values())
    if not every:
        return {}, "tensor cores worked, and no PyTorch operator tells at which precision"
    if operands.get("other", 0.0) > _SMALL * every:
        return {}, "8-bit operands were multiplied too, which GPM does not tell apart"
    flop = {path: operands.get(kind, 0.0) for path, kind in _HMMA.items()}
    if not tf32:
        del flop["tensor_tf32"]
    flop = {path: value for path, value in flop.items() if value > _SMALL * every}
    if not flop:
        return {}, "tensor cores worked, and no PyTorch operator had operands for them"
    return {path: value / sum(flop.values()) for path, value in flop.items()}, ""


def _unnamed(window: Window) -> str | None:
    """Why HMMA is not all that there is, where the tensor utilisations do not add up."""
    seen = window.utilisation
    if not {"any_tensor", "dfma", "imma"} <= seen.keys():
        return "GPM does not report every tensor utilisation on this device"
    rest = seen["any_tensor"] - seen["hmma"] - seen["dfma"] - seen["imma"]
    if rest <= max(2 * _NOTHING, 0.05 * seen["any_tensor"]):
        return None
    return f"tensor cores worked {100 * rest:.1f}% of the time on what GPM has no name for"


def _rate(device: GpmDevice, path: str) -> float:
    """FLOP of one SM in a cycle in which the pipe of a path is active."""
    return device.flop_per_cycle[path] * _YIELD.get(path, 1.0)


def _cycles(window: Window, pipe: str, device: GpmDevice, error: float) -> tuple[float | None, str]:
    """Cycles of one step in which a pipe was active, summed over SMs."""
    used, why = _steady(window, pipe, error)
    if used is None:
        return None, why
    if not device.flop_per_cycle:
        return None, "GPM's FLOP have not been held against counters on this compute capability"
    if window.sm_clock is None:
        return None, "NVML does not tell the SM clock"
    return used * device.sm_count * window.sm_clock * window.step, ""


def _steady(window: Window, name: str, error: float) -> tuple[float | None, str]:
    """A utilisation, where the parts of the window agree on it."""
    used = window.utilisation.get(name)
    if used is None:
        return None, f"GPM gave no {name} utilisation"
    if not 0 <= used <= 1:
        return None, f"GPM gave an impossible {name} utilisation, {100 * used:g}%"
    if used < _NOTHING:
        return used, ""  # too little to judge its steadiness by, and not made 0
    parts = [part[name] for part in window.parts if name in part]
    # The standard error of the mean; below 1% of use a part's reading is too coarse to judge by.
    if len(parts) > 1 and stdev(parts) / math.sqrt(len(parts)) > error * max(used, 0.01):
        return None, (
            f"{name} utilisation went from {100 * min(parts):.1f}% to {100 * max(parts):.1f}% "
            "within the window: the steps are not alike, or something else used the GPU"
        )
    return used, ""


class GpmBackend:
    """Counts on one CUDA device by NVML's GPM (see ``CounterBackend``).

    A round is a step whose operators are watched, a lead-in, and the window. One pass is one step;
    how many there are follows from how long a step takes (``Plan.window``).

    Args:
        device: CUDA device index, as PyTorch numbers them.
        synchronize: Waits until the device has finished; called a few times a window, and not
            between its steps.
    """

    source = SOURCE
    chip: str | None = None

    def __init__(self, device: int, synchronize: Callable[[], None]) -> None:
        self._index = device
        self._synchronize = synchronize
        self._reader: GpmReader | None = None
        self._device: GpmDevice | None = None
        self._operators = AnalyticBackend()
        self._round: Generator[None, None, None] | None = None
        self._window: Window | None = None
        self._since = 0.0

    def prepare(self, metrics: Sequence[str]) -> Plan:
        """Plans every GPM metric; hardware counters are unavailable by name.

        Raises:
            UnsupportedDeviceError: no GPM on this device.
            CounterPermissionError: NVML refuses this user.
        """
        properties = torch.cuda.get_device_properties(self._index)
        self._reader = GpmReader(f"GPU-{properties.uuid}")
        self._device = GpmDevice(
            properties.multi_processor_count,
            self._reader.dram_byte_per_s(),
            _FLOP_PER_CYCLE.get((properties.major, properties.minor), {}),
        )
        planned = tuple(row.name for row in GPM)
        why = "a hardware counter, which GPM does not read"
        unavailable = dict.fromkeys((name for name in metrics if name not in planned), why)
        least = 2 + _PARTS * _STEPS_A_PART  # one watched, one to lead in, and the window
        return Plan(planned, least, unavailable, window=_LEAD_IN + _WINDOW)

    def open(self) -> None:
        """Makes the watched step as fast as it can be."""
        self._operators.open()

    def begin_pass(self) -> None:
        """The first pass of a round starts it; the others follow without a pause."""
        if self._round is None:
            self._round = self._run()
            next(self._round)

    def end_pass(self) -> bool:
        """True when the window is full."""
        assert self._round is not None, "begin_pass() comes first"
        try:
            next(self._round)
        except StopIteration:
            self._round = None
            return True
        return False

    def collect(self) -> RoundCounters:
        """FLOP and bytes (byte) of one step, from the window just completed."""
        assert self._window is not None and self._device is not None and self._reader is not None
        others = self._reader.others_at_work(self._since)
        if others:
            found = _Found()
            named = ", ".join(map(str, others))
            found.withhold(_NAMES, f"GPM counts a whole GPU, and process {named} used it as well")
            return RoundCounters(found.values, found.reasons)
        counted = counts(self._window, self._device, self._operand_flop(), tf32=_tf32())
        if others is None:
            silent = "GPM counts a whole GPU, and NVML does not say whether others used it as well"
            return RoundCounters(counted.values, counted.reasons, warnings=(silent,))
        return counted

    def close(self) -> None:
        """Ends what is under way."""
        unfinished, self._round = self._round, None
        if unfinished is not None:
            unfinished.close()
        if self._reader is not None:
            self._reader.free()

    def _run(self) -> Generator[None, None, None]:
        """One round. Every ``yield`` is a step of the user's."""
        reader = self._reader
        assert reader is not None, "prepare() comes first"
        self._operators.begin_pass()
        try:
            yield
        finally:
            self._operators.close()
        step = yield from self._lead_in()
        steps = max(_STEPS_A_PART, math.ceil(_WINDOW / _PARTS / step))
        self._since = time.time()
        with MeanClock(reader.sm_clock) as clock:
            begun = ended = time.perf_counter()
            samples = [reader.sample()]
            for _ in range(_PARTS):
                for _ in range(steps):
                    yield
                # Without this the CPU would be done with the steps long before the GPU.
                self._synchronize()
                ended = time.perf_counter()
                samples.append(reader.sample())
        self._window = Window(
            _PARTS * steps,
            ended - begun,
            reader.utilisation(samples[0], samples[-1]),
            tuple(reader.utilisation(first, second) for first, second in pairwise(samples)),
            clock.mean,
        )
        reader.free()

    def _lead_in(self) -> Generator[None, None, float]:
        """Steps like the window's until GPM shows nothing else; the time of one, s."""
        self._synchronize()
        begun = time.perf_counter()
        steps = 1
        while True:
            since = time.perf_counter()
            for _ in range(steps):
                yield
            self._synchronize()
            now = time.perf_counter()
            if now - begun >= _LEAD_IN:
                return (now - since) / steps
            steps *= 2

    def _operand_flop(self) -> Mapping[str, float]:
        values = self._operators.collect().values
        return {
            row.path.removeprefix("analytic_"): values[row.name] or 0.0
            for row in ANALYTIC
            if row.kind == "flop" and row.path is not None
        }


def _tf32() -> bool:
    # The older flags raise once the newer settings were used; these can always be read.
    operators = ("cudnn.conv", "cudnn.rnn", "cuda.matmul")
    settings = (attrgetter(f"{name}.fp32_precision")(torch.backends) for name in operators)
    return "tf32" in settings
