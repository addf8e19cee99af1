"""Records counter-data images of known work, for tests that have no GPU.

    python harness/record_images.py tests/data [NAME...]

Each workload gives NAME.counters (images, one round) and NAME.json (the run record with the
values that the GPU machine evaluated).
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from workloads import (
    Step,
    copy,
    gemm,
    phased_step,
    product,
    tf32,
    three_linears_model,
    training_step,
)

import roofprobe

GIB2 = 2 * 2**30
THREE_LAYERS, BATCH, WIDTHS = "three-layers", 4096, (2048, 4096, 4096, 1024)


def main(folder: str, *names: str) -> None:
    """Records everything, or what is named, into ``folder``."""
    cases: dict[str, tuple[Callable[[], Step], bool | None]] = {
        "gemm4096-fp32": (lambda: gemm(4096, torch.float32), False),
        "gemm4096-tf32": (lambda: gemm(4096, torch.float32), True),
        "gemm4096-bf16": (lambda: gemm(4096, torch.bfloat16), False),
        "gemm4096-fp16": (lambda: gemm(4096, torch.float16), False),
        "gemm4096-fp64": (lambda: gemm(4096, torch.float64), False),
        "mul-fp32": (lambda: product(2**24, torch.float32), False),
        "mul-fp64": (lambda: product(2**24, torch.float64), False),
        "copy-2gib": (lambda: copy(GIB2), False),
        "resnet18-b256-tf32": (lambda: training_step("resnet18", 256), None),
        "resnet18-b256-fp32": (lambda: training_step("resnet18", 256), False),
        "alexnet-b256-tf32": (lambda: training_step("alexnet", 256), None),
        "alexnet-b256-fp32": (lambda: training_step("alexnet", 256), False),
    }
    for name in names or (*cases, THREE_LAYERS):
        if name == THREE_LAYERS:
            by_layer(folder)
            continue
        make, on = cases[name]
        # None is PyTorch's default: TF32 in convolutions, not in matrix products.
        with tf32(True, False) if on is None else tf32(on):
            step = make()
            with roofprobe.measure(name) as probe:
                while not probe.done:
                    with probe.step():
                        step()
        keep(folder, name, probe)


def by_layer(folder: str) -> None:
    """Records a model whose FLOP per layer are known, part by part."""
    model = three_linears_model(WIDTHS)
    step = phased_step(model, (BATCH, WIDTHS[0]))
    with tf32(True), roofprobe.measure(THREE_LAYERS, by="layer", model=model) as probe:
        while not probe.done:
            with probe.step():
                step(probe)
    keep(folder, THREE_LAYERS, probe)


def keep(folder: str, name: str, probe: roofprobe.Probe) -> None:
    """Writes what was measured, raw and as a record."""
    probe.save_counter_data(Path(folder, f"{name}.counters"))
    probe.result.save(Path(folder, f"{name}.json"))
    print(name, probe.result.complete, probe.result.warnings, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
