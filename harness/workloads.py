"""Work for the harness and the tests on a GPU: kernels of known size, and training steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import roofprobe

Step = Callable[[], object]


@contextmanager
def tf32(convolutions: bool, products: bool | None = None) -> Iterator[None]:
    """TF32 on or off for convolutions, and for matrix products alike unless told.

    PyTorch's default is ``tf32(True, False)``.
    """
    products = convolutions if products is None else products
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def gemm(size: int, dtype: torch.dtype) -> Step:
    """One product of two random square matrices: 2 * size^3 FLOP."""
    a = torch.randn(size, size, device="cuda").to(dtype)
    b = torch.randn(size, size, device="cuda").to(dtype)
    out = torch.empty(size, size, device="cuda", dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def product(count: int, dtype: torch.dtype) -> Step:
    """An elementwise product on CUDA cores: one multiplication an element."""
    a = torch.randn(count, device="cuda", dtype=dtype)
    b = torch.randn(count, device="cuda", dtype=dtype)
    out = torch.empty_like(a)
    return lambda: torch.mul(a, b, out=out)


def copy(byte: int) -> Step:
    """A copy of fp32 values by PyTorch's own kernel: ``x + 0``, one FMA an element."""
    source = torch.randn(byte // 4, device="cuda")
    target = torch.empty_like(source)
    return lambda: torch.add(source, 0.0, out=target)


def driver_copy(byte: int) -> Step:
    """A contiguous copy, which the driver runs with a kernel of its own."""
    source = torch.randn(byte // 4, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def three_linears(batch: int, widths: tuple[int, int, int, int]) -> dict[str, float]:
    """FLOP of each product of ``three_linears_model``, by layer and way.

    A product of m x k by k x n takes 2 m k n. Backward, a layer has one for its weights and one
    for its input, which the first layer does not need.
    """
    first, second, third = (float(2 * batch * ins * outs) for ins, outs in pairwise(widths))
    return {
        "0 forward": first,
        "2 forward": second,
        "4 forward": third,
        "4 backward": 2 * third,
        "2 backward": 2 * second,
        "0 backward": first,
    }


def three_linears_model(widths: tuple[int, int, int, int]) -> torch.nn.Module:
    """Three layers without bias, with activations between them, on the GPU."""
    a, b, c, d = widths
    return torch.nn.Sequential(
        torch.nn.Linear(a, b, bias=False),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(b, c, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(c, d, bias=False),
    ).cuda()


def phased_step(
    model: torch.nn.Module, shape: tuple[int, ...]
) -> Callable[["roofprobe.Probe"], None]:
    """One SGD step on random input with its phases marked as ranges; the loss is that of no task.

    Args:
        model: On the GPU.
        shape: Of its input.
    """
    inputs = torch.randn(shape, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(probe: "roofprobe.Probe") -> None:
        with probe.range("forward"):
            out = model(inputs)
        with probe.range("loss"):
            loss = out.square().mean()
        with probe.range("backward"):
            loss.backward()
        with probe.range("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def training_step(
    arch: str,
    batch: int,
    *,
    amp: torch.dtype | None = None,
    channels_last: bool = False,
    compiled: bool = False,
) -> Step:
    """One SGD step of a torchvision classifier on one random batch of ImageNet's size.

    Args:
        arch: Name of a torchvision classifier.
        batch: Images.
        amp: Autocast type; None for none.
        channels_last: Memory format of model and images.
        compiled: Use ``torch.compile``.
    """
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.get_model(arch).cuda()
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    criterion = torch.nn.CrossEntropyLoss()
    forward = torch.compile(model) if compiled else model

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", amp, enabled=amp is not None):
            loss = criterion(forward(images), labels)
        loss.backward()
        optimizer.step()

    return step
