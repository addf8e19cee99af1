"""The part that may hang or crash, as a process of its own: ``python -m roofprobe.doctor.child``.

It asks the driver, PyTorch and CUPTI (``probe``) or measures work of known size (``self-test``),
and appends every answer to a file as a line of JSON the moment it has it, after the name of what it
tries next. Whoever reads the file knows what is known and, should the process die, what killed it.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from roofprobe import metrics
from roofprobe._location import find_libcupti, mapped, mapped_libcupti
from roofprobe.doctor import selftest
from roofprobe.doctor.facts import Counted, Failure, Gpu
from roofprobe.errors import RoofprobeError

if TYPE_CHECKING:
    import torch

PROBE: Final = "probe"
SELF_TEST: Final = "self-test"

# N of the products: 2 N^3 FLOP take 3 ms at fp32's rate on an H200 and half a second on the slowest
# fp64 (a 64th of fp32's).
GEMM_SIZE: Final = 4096
# The copy dwarfs the caches; a small or full GPU gets a quarter of what is free.
_COPY_BYTE: Final = 2 * 2**30
_COPY_LEAST: Final = 64 * 2**20

Say = Callable[[str, Any], None]


def main(arguments: list[str]) -> None:
    """Runs one of the two.

    Args:
        arguments: ``probe`` or ``self-test``, the file to write to, CUDA's number of the GPU.
    """
    what, path, selected = arguments
    with Path(path).open("a", encoding="utf-8") as stream:

        def say(key: str, value: Any) -> None:
            stream.write(json.dumps({key: value}) + "\n")
            stream.flush()

        (_probe if what == PROBE else _self_test)(say, int(selected))


def _probe(say: Say, selected: int) -> None:
    say("stage", "importing PyTorch")
    count = 0
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        say("torch_failure", asdict(Failure(_line(error))))
    else:
        say("torch", torch.__version__)
        say("torch_cuda", torch.version.cuda)
        say("stage", "asking PyTorch for GPUs")
        # The exact count: another one leaves CUDA out of it and can be too high.
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        say("devices", count)
    say("stage", "loading CUPTI")
    from roofprobe.counters import cupti

    with _refused(say, "driver_failure"):
        say("cuda_driver", cupti.cuda_driver_version())
    with _refused(say, "cupti_failure"):
        say("cupti", str(find_libcupti()))
        say("cupti_version", cupti.cupti_version())
        say("chips", cupti.supported_chips())
    for index in range(count):
        say("stage", f"asking CUPTI about GPU {index}")
        say("gpu", asdict(_gpu(index, ask=index == selected)))
    say("stage", "reading which libraries were loaded")
    maps = Path("/proc/self/maps").read_text()
    say("loaded_cupti", [str(path) for path in mapped_libcupti(maps)])
    say("loaded_cuda", mapped(maps, "libcuda"))


def _gpu(index: int, *, ask: bool) -> Gpu:
    """One device; its counters are asked for only where ``ask``, which makes a context on it."""
    import torch

    from roofprobe import environment
    from roofprobe.counters import cupti

    found = environment.collect(torch.device("cuda", index))
    support: dict[str, str] = {}
    granted, failure = None, None
    try:
        support = cupti.device_support(index)
        if ask:
            cupti.require_counters(index)
            granted = True
    except RoofprobeError as error:
        granted, failure = False, Failure(str(error), getattr(error, "code", None))
    return Gpu(
        found.device_name,
        index=index,
        uuid=found.uuid,
        compute_capability=found.compute_capability,
        chip=found.chip,
        sm_count=found.sm_count,
        memory_byte=found.memory_byte,
        integrated=bool(torch.cuda.get_device_properties(index).is_integrated),
        support=support,
        granted=granted,
        failure=failure,
    )


def _self_test(say: Say, selected: int) -> None:
    say("stage", "importing PyTorch")
    import torch

    from roofprobe.counters import cupti

    device = torch.device("cuda", selected)
    torch.cuda.set_device(device)
    say("stage", "asking CUPTI for the chip")
    paths = metrics.flop_paths(cupti.chip_of(selected))
    free, _ = torch.cuda.mem_get_info(device)
    size = min(_COPY_BYTE, free // 4) // _COPY_LEAST * _COPY_LEAST
    work: dict[str, torch.dtype] = {"fp32": torch.float32}
    for precision, dtype in (
        ("tf32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ):
        if f"tensor_{precision}" in paths:
            work[precision] = dtype
    work["fp64"] = torch.float64

    say("stage", "counting a copy")
    say("counted", asdict(_counted("copy", size, partial(_copy, size, device))))
    for precision, dtype in work.items():
        torch.cuda.empty_cache()
        say("stage", f"counting a GEMM in {precision}")
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        say("counted", asdict(_counted(precision, GEMM_SIZE, partial(_gemm, dtype, device))))


def _counted(work: str, size: int, prepare: Callable[[], Callable[[], object]]) -> Counted:
    import torch

    import roofprobe

    try:
        if not size:
            raise torch.OutOfMemoryError
        record = roofprobe.measure_step(prepare(), work, warmup=2, timed=2, backend="cupti")
    except torch.OutOfMemoryError:
        return Counted(work, size, skipped="the GPU has too little free memory for it")
    except RoofprobeError as error:
        return Counted(work, size, failure=Failure(str(error), getattr(error, "code", None)))
    return selftest.of_record(record, work, size)


def _copy(byte: int, device: "torch.device") -> Callable[[], object]:
    """``x + 0`` by PyTorch's own kernel: one FMA an element, and stores that can be counted."""
    import torch

    source = torch.ones(byte // 4, device=device)
    target = torch.empty_like(source)
    return lambda: torch.add(source, 0.0, out=target)


def _gemm(dtype: "torch.dtype", device: "torch.device") -> Callable[[], object]:
    import torch

    a = torch.randn(GEMM_SIZE, GEMM_SIZE, device=device).to(dtype)
    b = torch.randn(GEMM_SIZE, GEMM_SIZE, device=device).to(dtype)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


@contextmanager
def _refused(say: Say, key: str) -> Iterator[None]:
    try:
        yield
    except RoofprobeError as error:
        say(key, asdict(Failure(str(error), getattr(error, "code", None))))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


if __name__ == "__main__":
    main(sys.argv[1:])
