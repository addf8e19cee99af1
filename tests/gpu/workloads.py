"""Work of known size, and the models of the study."""

import contextlib

import torch


def gemm(size: int, dtype: torch.dtype):
    """One product of two random square matrices."""
    a = torch.randn(size, size, device="cuda").to(dtype)
    b = torch.randn(size, size, device="cuda").to(dtype)
    out = torch.empty(size, size, device="cuda", dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


@contextlib.contextmanager
def tf32(convolutions: bool, products: bool | None = None):
    """TF32 on or off for convolutions, and for matrix products alike unless told."""
    products = convolutions if products is None else products
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def copy(byte: int):
    """A copy on the device by PyTorch's own kernel (a strided source keeps the driver out)."""
    source = torch.randn(byte // 4, device="cuda").view(-1, 2)
    target = torch.empty_like(source)
    return lambda: torch.add(source, 0.0, out=target)


def driver_copy(byte: int):
    """A contiguous copy, which the driver runs with a kernel of its own."""
    source = torch.randn(byte // 4, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def training_step(
    arch: str,
    batch: int,
    *,
    amp: torch.dtype | None = None,
    channels_last: bool = False,
    compiled: bool = False,
):
    """One SGD step of a torchvision classifier on one random batch."""
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

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", amp, enabled=amp is not None):
            loss = criterion(forward(images), labels)
        loss.backward()
        optimizer.step()

    return step
