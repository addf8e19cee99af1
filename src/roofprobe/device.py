"""Which GPU this is, and what its datasheet promises.

The catalogue is ``data/gpus.json``: dense peaks in base units, each row with its sources. A row
describes one product: two cards with the same chip can differ twofold in the rate of one path.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

# FP16 products with fp16 accumulate, apart from ``tensor_fp16``, which is with fp32 accumulate as
# PyTorch's default is. GeForce runs the one at twice the rate of the other. Counts of both are of
# the path ``tensor_fp16``: this one names roofs only, and ``fp16_accumulate`` chooses between them.
TENSOR_FP16_ACC16: Final = "tensor_fp16_acc16"

# Chips from Volta on count the two apart, but for Hopper. With a qualifier in the name it is a part
# of the same count.
_FP16_ACCUMULATE: Final = re.compile(
    r"sms?p?__ops_path_tensor_(?P<op>op_\w+_)?src_fp16_dst_fp16"
    r"(?P<sparsity>_sparsity_(?:on|off))?(?:_realtime)?\.sum"
)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One product's datasheet. None, or a path missing from ``peaks``, means not published.

    Attributes:
        name: The catalogue's name.
        device_names: Names that drivers report for it.
        chip: CUPTI's chip name.
        compute_capability: ``major.minor``.
        memory_byte: As printed, GB taken as 1e9 bytes; the device reports up to 7% more.
        memory_byte_per_s: DRAM bandwidth, byte/s.
        peaks: FLOP path (see ``metrics``, and ``TENSOR_FP16_ACC16``) -> dense peak in FLOP/s;
            ``tensor_int8`` in op/s.
        source: Where the figures are from (URLs).
        seen: When the sources were read (year and month).
        note: What to know before trusting a figure.
        sm_count: Streaming multiprocessors.
        boost_hz: Boost clock that the CUDA-core peaks assume, Hz.
        l2_byte: L2 cache as printed, MB taken as 1e6 bytes.
        tdp_w: Rated power, W.
    """

    name: str
    device_names: tuple[str, ...]
    chip: str
    compute_capability: str
    memory_byte: float
    memory_byte_per_s: float
    peaks: Mapping[str, float]
    source: tuple[str, ...]
    seen: str
    note: str
    sm_count: int | None = None
    boost_hz: float | None = None
    l2_byte: float | None = None
    tdp_w: float | None = None

    def peak(self, path: str, fp16_accumulate: float = 0.0) -> float | None:
        """Dense peak of a path, FLOP/s (op/s of an integer path); None where not published.

        Args:
            path: Which.
            fp16_accumulate: Of work on ``tensor_fp16``: the share of its FLOP that accumulates in
                fp16, and so runs at another peak where the two differ.
        """
        peak = self.peaks.get(path)
        if path != "tensor_fp16" or not self.accumulators_differ or peak is None:
            return peak
        least = (1 - fp16_accumulate) / peak + fp16_accumulate / self.peaks[TENSOR_FP16_ACC16]
        return 1 / least

    @property
    def accumulators_differ(self) -> bool:
        """Whether fp16 products run at another peak with fp16 accumulate than with fp32."""
        return self.peaks.get(TENSOR_FP16_ACC16, 0.0) not in (0.0, self.peaks.get("tensor_fp16"))


# Reported over printed size. Above: memory is built in GiB and printed as GB, and no card holds
# more than that. Below: ECC kept in the memory itself takes 1/16 of GDDR, and drivers keep up to
# 3% for themselves: 1.0737 * 15/16 * 0.97 = 0.976. Seen in public output of torch's device
# properties (2026-11): T4 0.978 to 0.990, A10G 0.987, L40S 0.996, A100 40 GB 1.057,
# H100 SXM 1.063, H200 1.065.
_REPORTED_SIZE: Final = (0.97, 2**30 / 1e9)


@cache
def catalogue() -> tuple[DeviceSpec, ...]:
    """Every known product, in the catalogue's order."""
    body = json.loads((files("roofprobe") / "data" / "gpus.json").read_text(encoding="utf-8"))
    return tuple(_spec(row) for row in body["gpus"])


def find(
    *, device_name: str, chip: str | None, sm_count: int | None, memory_byte: int | None
) -> DeviceSpec | None:
    """The product that a device is, told by its chip, SM count and memory size.

    The name decides between several that fit (SXM, PCIe, NVL). It can also rule out: the catalogue
    does not hold every product, and an L40 has the L40S's chip, SMs and memory at half its tensor
    rate, so a name that states some other model fits no row.

    Args:
        device_name: As the driver reports it.
        chip: CUPTI's chip name; None excludes nothing.
        sm_count: Streaming multiprocessors; a MIG slice has fewer than its product.
        memory_byte: As the device reports it (torch's ``total_memory``), bytes.

    Returns:
        None when nothing fits, when neither SM count nor memory is known (a name alone is not
        enough), or when several fit whose roofs differ. Of several with the same roofs, the first.
    """
    if sm_count is None and memory_byte is None:
        return None
    fits = [
        spec
        for spec in catalogue()
        if (chip is None or chip == spec.chip)
        and (sm_count is None or spec.sm_count is None or sm_count == spec.sm_count)
        and (memory_byte is None or _is_size(memory_byte, spec.memory_byte))
        and _may_be_called(device_name, spec)
    ]
    named = [spec for spec in fits if device_name in spec.device_names] or fits
    roofs = {(spec.memory_byte_per_s, *sorted(spec.peaks.items())) for spec in named}
    return named[0] if len(roofs) == 1 else None


def called(name: str) -> tuple[DeviceSpec, ...]:
    """Products that a user's name stands for: the one called exactly so, or all that may be.

    A name may leave out maker and brand, form, memory size and edition, but not a part of the
    model: "RTX 6000" is not an RTX PRO 6000, nor "RTX 2080" a 2080 Ti. It may also be a chip's.

    Args:
        name: ``H100 SXM``, ``A100-80GB``, ``GA102``.
    """
    exact = tuple(
        spec
        for spec in catalogue()
        if name.lower() in {known.lower() for known in (spec.name, *spec.device_names)}
    )
    said = _sized_words(name) - _BRANDS
    return exact or tuple(spec for spec in catalogue() if _is_called(said, spec))


def fp16_accumulate(counters: Mapping[str, float | None], flop: float | None) -> float:
    """Share of fp16 work on tensor cores that accumulates in fp16, from 0 to 1.

    Args:
        counters: By metric name, of CUPTI or ncu.
        flop: All FLOP of the path ``tensor_fp16``.

    Returns:
        0 where nothing was counted of it.
    """
    whole: list[float] = []
    parts: list[float] = []
    for name, value in counters.items():
        match = _FP16_ACCUMULATE.fullmatch(name)
        if match is not None and value is not None:
            (parts if match["op"] or match["sparsity"] else whole).append(value)
    counted = whole[0] if whole else sum(parts)
    return min(1.0, counted / flop) if flop else 0.0


def _spec(row: dict[str, Any]) -> DeviceSpec:
    lists = {key: tuple(row[key]) for key in ("device_names", "source")}
    return DeviceSpec(**(row | lists))


def _is_size(reported: int, printed: float) -> bool:
    low, high = _REPORTED_SIZE
    return low * printed <= reported <= high * printed


def _may_be_called(device_name: str, spec: DeviceSpec) -> bool:
    """False for a name that states a model, by a word with a digit, and says what the row doesn't.

    Names without a model exist ("NVIDIA Graphics Device"); old drivers leave out "NVIDIA".
    """
    words = _words(device_name)
    states_model = any(any(letter.isdigit() for letter in word) for word in words)
    return not states_model or words <= _words("NVIDIA", spec.name, *spec.device_names)


# Makers and brands, which tell no two products apart.
_BRANDS: Final = {"nvidia", "tesla", "geforce", "rtx"}

# The model in a catalogue name: up to the first word with a digit, and a "Ti" after that.
_MODEL: Final = re.compile(r"\D*\w+(?: ti\b)?", re.IGNORECASE)


def _is_called(said: set[str], spec: DeviceSpec) -> bool:
    """Whether a name's words state a row's model, or its chip, and nothing that the row is not."""
    match = _MODEL.match(spec.name)
    assert match is not None
    model = _words(match[0]) - _BRANDS
    chip = spec.chip.lower()
    size = f"{spec.memory_byte / 1e9:g}gb"
    words = _sized_words(spec.name, *spec.device_names) | {chip, size}
    if any(re.fullmatch(r"sxm\d", word) for word in words):
        words.add("sxm")
    return (model <= said or chip in said) and said <= words


def _sized_words(*texts: str) -> set[str]:
    """Words, with ``80 GB``, ``80GiB`` and ``80G`` as ``80gb``."""
    joined = re.sub(r"\b(\d+) ?gi?b?\b", r"\1gb", " ".join(texts).lower())
    return _words(joined)


def _words(*texts: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", " ".join(texts).lower()))
