"""Records counter-data images of known work, for tests that have no GPU.

    python harness/record_images.py tests/data [NAME...]

Each workload gives NAME.counters (images, one round) and NAME.json (the run record with the
values that the GPU machine evaluated).
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from workloads import Step, copy, gemm, product, tf32, training_step

import roofprobe

GIB2 = 2 * 2**30


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
    for name in names or cases:
        make, on = cases[name]
        # None is PyTorch's default: TF32 in convolutions, not in matrix products.
        with tf32(True, False) if on is None else tf32(on):
            step = make()
            with roofprobe.measure(name) as probe:
                while not probe.done:
                    with probe.step():
                        step()
        probe.save_counter_data(Path(folder, f"{name}.counters"))
        probe.result.save(Path(folder, f"{name}.json"))
        print(name, probe.result.complete, probe.result.warnings, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
