"""What SASS coverage reads when every kernel was seen, and when some were not.

Question: which coverage does a fully seen step show, over many kinds of work, and does a step
with unseen kernels fall below that?

    python harness/coverage.py OUT.json
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from workloads import training_step

import roofprobe

N = 4096


def cases() -> dict[str, Callable[[], object]]:
    """Steps whose kernels are all launched eagerly."""
    a, b = (torch.randn(N, N, device="cuda") for _ in range(2))
    big, other = (torch.randn(2**29, device="cuda") for _ in range(2))
    flat = torch.randn(2**24, device="cuda")
    bf16, half = a.bfloat16(), a.half()
    double = a.double()
    embedding = torch.nn.Embedding(50_000, 512).cuda()
    tokens = torch.randint(0, 50_000, (64, 512), device="cuda")
    lstm = torch.nn.LSTM(512, 512, 2).cuda()
    sequence = torch.randn(128, 64, 512, device="cuda")
    mlp = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.LayerNorm(4096),
        torch.nn.Linear(4096, 1024),
    ).cuda()  # fmt: skip
    rows = torch.randn(4096, 1024, device="cuda")
    compiled = torch.compile(mlp)

    def train(model: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
        def step() -> None:
            mlp.zero_grad()
            model(rows).square().mean().backward()  # type: ignore[no-untyped-call]

        return step

    return {
        "resnet18 b64": training_step("resnet18", 64),
        "resnet18 b256": training_step("resnet18", 256),
        "resnet18 b64 bf16 channels-last": training_step(
            "resnet18", 64, amp=torch.bfloat16, channels_last=True
        ),
        "resnet50 b32": training_step("resnet50", 32),
        "alexnet b256": training_step("alexnet", 256),
        "vit_b_16 b32 bf16": training_step("vit_b_16", 32, amp=torch.bfloat16),
        "mobilenet_v3_small b64": training_step("mobilenet_v3_small", 64),
        "densenet121 b16": training_step("densenet121", 16),
        "mlp": train(mlp),
        "mlp compiled": train(compiled),
        "lstm": lambda: lstm(sequence)[0].sum().backward(),
        "embedding": lambda: embedding(tokens).sum().backward(),
        "gemm fp32": lambda: a @ b,
        "gemm bf16": lambda: bf16 @ bf16,
        "gemm fp16": lambda: half @ half,
        "gemm fp64": lambda: double @ double,
        "driver copy 2 GiB": lambda: other.copy_(big),
        "transpose": lambda: a.t().contiguous(),
        "elementwise": lambda: flat.mul(2).add(1),
        "fill": lambda: big.zero_(),
        "random": lambda: flat.normal_(),
        "softmax": lambda: torch.softmax(a, -1),
        "sort": lambda: torch.sort(flat),
        "sum": lambda: flat.sum(),
        "cat": lambda: torch.cat([flat, flat]),
        "small copies": lambda: [
            other[i * 1001 : i * 1001 + 1000].copy_(big[:1000]) for i in range(200)
        ],
    }


def main() -> int:
    """Measures every case and writes the result."""
    found = {}
    for name, step in cases().items():
        record = roofprobe.measure_step(step, name, metrics="fp32", warmup=5, timed=3)
        judged = record.coverage
        assert judged is not None
        found[name] = {
            "fraction": judged.fraction,
            "without_copies": (
                judged.instrumented / judged.hardware
                if judged.hardware and judged.instrumented is not None
                else None
            ),
            "instrumented": judged.instrumented,
            "hardware": judged.hardware,
            "explained": judged.explained,
            "trusted": judged.trusted,
            "cause": judged.cause,
            "copy_byte": record.kernels.copy_byte if record.kernels else None,
            "fill_byte": record.kernels.fill_byte if record.kernels else None,
        }
        print(f"{name:34s} {found[name]['fraction']} {judged.cause or ''}", flush=True)
    environment = record.environment
    Path(sys.argv[1]).write_text(
        json.dumps(
            {
                "question": "coverage of steps whose kernels were all seen",
                "command": "python harness/coverage.py OUT.json",
                "device": environment.device_name,
                "driver": environment.driver,
                "cupti": environment.cupti,
                "torch": environment.torch,
                "created": record.created,
                "cases": found,
            },
            indent=1,
        )
        + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
