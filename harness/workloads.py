"""The training step that the harness measures: a torchvision classifier on one random batch."""

from collections.abc import Callable

import torch
import torchvision


def training_step(
    arch: str,
    batch: int,
    *,
    amp: torch.dtype | None = None,
    channels_last: bool = False,
) -> Callable[[], None]:
    """Builds one SGD step with fixed seed, ImageNet's sizes and the usual hyperparameters.

    Args:
        arch: Name of a torchvision classifier.
        batch: Images.
        amp: Autocast type; None for none.
        channels_last: Memory format of model and images.
    """
    torch.manual_seed(0)
    model = torchvision.models.get_model(arch).cuda()
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    if channels_last:
        # torch's stub for Module.to lacks this overload.
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    criterion = torch.nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", amp, enabled=amp is not None):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()

    return step
