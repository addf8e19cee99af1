"""The ImageNet workload of ``roofprobe.train``: data, model, checkpoint, one training step.

It does what the ImageNet example that people know does: SGD with momentum, a tenth of the learning
rate every 30 epochs, random crops and flips, 1000 classes, and checkpoints with the same keys.
It knows nothing of counters.
"""

import difflib
import io
import itertools
import pickle
import random
import re
import struct
import textwrap
import time
import urllib.error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol, cast

import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from roofprobe.errors import RoofprobeError, UsageError
from roofprobe.record import write_whole

CLASSES: Final = 1000  # of ImageNet-1k; every torchvision model has that many outputs
# Images of ILSVRC-2012 (Russakovsky et al. 2015, table 2), whose place --dummy takes.
TRAIN_IMAGES: Final = 1_281_167
VAL_IMAGES: Final = 50_000
# Of ImageNet's channels, as torchvision's models expect them (its "Models" documentation).
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
# Pixels of a side: inception_v3 was made for 299 (Szegedy et al. 2016), the others for 224.
IMAGE_SIZE: Final = 224
IMAGE_SIZES: Final = {"inception_v3": 299}
# Share of the side classifiers' loss, from their papers (Szegedy et al. 2015, 2016).
AUXILIARY_WEIGHT: Final = {"googlenet": 0.3, "inception_v3": 0.4}
# Below nccl's own limit of 10 minutes, after which it kills a process that saves nothing.
AGREEMENT_LIMIT: Final = timedelta(minutes=5)
_MOMENT: Final = 1e-4  # s
AMP: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Batches(Sized, Protocol):
    """Anything that gives (images, targets) anew for each epoch and knows how many."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Starts an epoch."""
        ...


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of a distributed run; the default is a run of one process."""

    rank: int = 0
    local: int = 0
    world: int = 1
    local_world: int = 1


class Agreement:
    """Tells the processes of a run when all of them have had enough.

    They ask over the CPU, in a group of their own: through nccl, the answer would wait for the GPU.

    Raises:
        RoofprobeError: they do not reach each other so.
    """

    def __init__(self) -> None:
        try:
            self._group: Any = torch.distributed.new_group(backend="gloo", timeout=AGREEMENT_LIMIT)
        except RuntimeError as error:
            raise RoofprobeError(
                "the processes do not reach each other over the CPU (gloo), and so cannot agree "
                f"when to end ({str(error).strip()}): name the network interface that they share "
                "in GLOO_SOCKET_IFNAME, or the number of steps with --steps"
            ) from None

    def of_all(self, own: bool) -> bool:
        """True where it is ``own`` of every process; each must call this as often as the others.

        Raises:
            RuntimeError: gloo's, where another process has ended or does not answer in time.
        """
        least = torch.tensor([int(own)])
        work = torch.distributed.all_reduce(
            least, torch.distributed.ReduceOp.MIN, group=self._group, async_op=True
        )
        assert work is not None
        while not work.is_completed():  # wait() lets no signal through
            time.sleep(_MOMENT)
        work.wait()
        return bool(least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is trained, and how. Names and defaults are the command line's.

    Attributes:
        data: ImageFolder root with ``train`` and ``val``; None for fake data.
        batch_size: Images of a step in this process.
        workers: Loader processes of this process.
        amp: ``bf16``, ``fp16`` or None.
        tf32: For convolutions and matrix products; None leaves PyTorch's defaults alone.
    """

    arch: str
    data: str | None = None
    batch_size: int = 256
    workers: int = 4
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    pretrained: bool = False
    seed: int | None = None
    amp: str | None = None
    tf32: bool | None = None
    channels_last: bool = False
    compile: bool = False

    @property
    def layout(self) -> torch.memory_format:
        """Memory layout of the weights and images."""
        return torch.channels_last if self.channels_last else torch.preserve_format


def configure(options: Options) -> None:
    """Seeds the generators and sets the precision of this process."""
    if options.seed is not None:
        random.seed(options.seed)
        torch.manual_seed(options.seed)
        # As in the example: a seeded run gives up cuDNN's faster but unrepeatable algorithms.
        torch.backends.cudnn.deterministic = True
    if options.tf32 is not None:
        # The older of PyTorch's two interfaces: once it is set, both can still be read.
        torch.backends.cudnn.allow_tf32 = options.tf32
        torch.backends.cuda.matmul.allow_tf32 = options.tf32


def build_model(arch: str, pretrained: bool = False) -> nn.Module:
    """A torchvision classification model.

    Raises:
        UsageError: there is no model of that name; the message has the closest ones.
        RoofprobeError: its weights could not be fetched.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    if arch not in known:
        plain = {name.replace("_", ""): name for name in known}
        spelled = re.sub(r"[-_ /]", "", arch.lower())
        close = [spelled] if spelled in plain else difflib.get_close_matches(spelled, plain)
        hint = (
            f"did you mean {' or '.join(plain[name] for name in close)}?"
            if close
            else "torchvision.models.list_models(module=torchvision.models) lists them"
        )
        raise UsageError(f"torchvision has no classification model {arch!r}: {hint}")
    # These two warn unless told that they shall initialise themselves, as all others do unasked.
    extra = {"init_weights": True} if arch in AUXILIARY_WEIGHT and not pretrained else {}
    try:
        model = torchvision.models.get_model(
            arch, weights="DEFAULT" if pretrained else None, **extra
        )
    except (urllib.error.URLError, RuntimeError) as error:
        if not pretrained:
            raise
        raise RoofprobeError(f"could not fetch the weights of {arch}: {error}") from None
    return cast(nn.Module, model)


def image_size(arch: str, model: nn.Module) -> int:
    """Pixels of a side that the model takes; vision transformers accept one size only."""
    own = getattr(model, "image_size", None)
    return own if isinstance(own, int) else IMAGE_SIZES.get(arch, IMAGE_SIZE)


class FakeBatches:
    """An epoch of one batch, made once on the device and given again and again.

    A step's counters do not depend on what the images show, and no loader can be the bottleneck:
    what is measured is training and not the making of random numbers. The same seed gives the same
    batch on every device, since it is always made on the CPU.
    """

    def __init__(
        self, images: int, options: Options, size: int, device: torch.device, ranks: Ranks
    ) -> None:
        # Processes of one run see different images, as they would with real ones.
        generator = torch.Generator().manual_seed((options.seed or 0) + ranks.rank)
        shape = (min(options.batch_size, images), 3, size, size)
        made = torch.randn(shape, generator=generator)
        self._images = made.to(device, memory_format=options.layout)
        self._targets = torch.randint(CLASSES, shape[:1], generator=generator).to(device)
        self._count = images

    def __len__(self) -> int:
        return -(-self._count // len(self._images))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, self._count, len(self._images)):
            rest = self._count - start
            yield self._images[:rest], self._targets[:rest]


def train_batches(options: Options, size: int, device: torch.device, ranks: Ranks) -> Batches:
    """The training set of this process, in batches of one size only.

    The images that do not fill a last batch are left out of an epoch (shuffling makes them others
    in the next): counters are collected over several steps, which must all do the same work.

    Raises:
        UsageError: there is no such folder.
        RoofprobeError: it has no images, too many classes, or fewer images than a batch.
    """
    if options.data is None:
        steps = max(1, TRAIN_IMAGES // ranks.world // options.batch_size)
        return FakeBatches(steps * options.batch_size, options, size, device, ranks)
    augment = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    dataset = _image_folder(Path(options.data, "train"), augment)
    if len(dataset) // ranks.world < options.batch_size:
        raise RoofprobeError(
            f"{dataset.root} has {len(dataset)} images for {ranks.world} process(es), fewer than "
            f"a batch of {options.batch_size} for each: use a smaller --batch-size"
        )
    return DataLoader(
        dataset,
        options.batch_size,
        shuffle=ranks.world == 1,
        sampler=(
            DistributedSampler(dataset, ranks.world, ranks.rank, drop_last=True)
            if ranks.world > 1
            else None
        ),
        num_workers=options.workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
    )


def val_batches(options: Options, size: int, device: torch.device, ranks: Ranks) -> Batches:
    """This process' share of the validation set: over all processes, every image exactly once.

    Raises:
        UsageError: there is no such folder.
        RoofprobeError: it has no images or too many classes.
    """
    if options.data is None:
        images = len(range(ranks.rank, VAL_IMAGES, ranks.world))
        return FakeBatches(images, options, size, device, ranks)
    # The usual margin: 256 pixels for a crop of 224.
    crop = [transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)]
    dataset = _image_folder(Path(options.data, "val"), crop)
    return DataLoader(
        Subset(dataset, range(ranks.rank, len(dataset), ranks.world)),
        options.batch_size,
        num_workers=options.workers,
        pin_memory=device.type == "cuda",
    )


def endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Epoch after epoch, for a measurement that needs more steps than an epoch has."""
    return itertools.chain.from_iterable(itertools.repeat(batches))


def _image_folder(root: Path, crop: Sequence[Any]) -> Any:
    if not root.is_dir():
        raise UsageError(
            f"there is no folder {root}: DIR needs train/ and val/ with a folder of images for "
            "each class, or use --dummy for made-up images"
        )
    steps = [*crop, transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    try:
        dataset = ImageFolder(root, transforms.Compose(steps), loader=_read_image)
    except FileNotFoundError as error:  # torchvision's words for a folder without images
        raise RoofprobeError(str(error).splitlines()[0]) from None
    if len(dataset.classes) > CLASSES:
        raise RoofprobeError(
            f"{root} has {len(dataset.classes)} classes, and these models tell {CLASSES} apart"
        )
    return dataset


def _read_image(path: str) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except OSError as error:
        raise RoofprobeError(f"{path} cannot be read as an image ({error})") from None


@dataclass(frozen=True, slots=True)
class Scores:
    """Mean loss, and percentages of images whose class was the first guess or among five."""

    loss: float
    acc1: float
    acc5: float

    @classmethod
    def of(cls, sums: Tensor) -> "Scores":
        """Reads ``Output.sums`` back, which waits for the device."""
        loss, top1, top5, images = sums.tolist()
        return cls(loss / images, 100 * top1 / images, 100 * top5 / images)

    def __str__(self) -> str:
        return f"Loss {self.loss:.4e}  Acc@1 {self.acc1:6.2f}  Acc@5 {self.acc5:6.2f}"


@dataclass(frozen=True, slots=True)
class Output:
    """What a step left on the device."""

    loss: Tensor
    logits: Tensor
    targets: Tensor

    def sums(self) -> Tensor:
        """Sum of losses, hits at the first guess, hits within five, and images."""
        guesses = self.logits.topk(5).indices
        hits = guesses == self.targets[:, None]
        images = len(self.targets)
        counts = (self.loss * images, hits[:, 0].sum(), hits.sum(), torch.tensor(images))
        return torch.stack([count.double().to(self.loss.device) for count in counts])


class Trainer:
    """A model with all that a training step needs.

    Attributes:
        epoch: The epoch to train next.
        best_acc1: Best validation accuracy so far, percent.
        image_size: Pixels of a side that the model takes.
        phase: Opened around each phase of a step, by name: ``data`` (copies to the device),
            ``forward``, ``loss``, ``backward`` and ``optimizer``.
    """

    def __init__(self, options: Options, device: torch.device, ranks: Ranks) -> None:
        self.options = options
        self.epoch = 0
        self.best_acc1 = 0.0
        self.phase: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
        self._device = device
        self._distributed = ranks.world > 1
        # The model itself has the keys of a checkpoint; ``model`` may be wrapped for DDP.
        self._plain = build_model(options.arch, options.pretrained)
        self._plain.to(device=device).to(memory_format=options.layout)
        self.image_size = image_size(options.arch, self._plain)
        self.optimizer = torch.optim.SGD(
            self._plain.parameters(),
            options.lr,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=30, gamma=0.1)
        self.scaler = torch.amp.GradScaler(device.type, enabled=options.amp == "fp16")
        self.model = self._plain
        if self._distributed:
            self.model = nn.parallel.DistributedDataParallel(
                self._plain, device_ids=[device] if device.type == "cuda" else None
            )
        if options.compile:
            # In place: a wrapper would rename every key of a checkpoint.
            self.model.compile()

    def start_epoch(self, batches: Batches) -> None:
        """Training mode, and an order of images that is new and the same in every process."""
        self.model.train()
        sampler = getattr(batches, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(self.epoch)

    def step(self, images: Tensor, targets: Tensor) -> Output:
        """One step of training; queues the work and does not wait for it."""
        output = self._forward(self.model, images, targets)
        with self.phase("optimizer"):
            self.optimizer.zero_grad()
        with self.phase("backward"):
            self.scaler.scale(output.loss).backward()  # type: ignore[no-untyped-call]
        with self.phase("optimizer"):
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return Output(output.loss.detach(), output.logits.detach(), output.targets)

    @torch.no_grad()
    def evaluate(
        self, batches: Iterable[tuple[Tensor, Tensor]], watch: Callable[[int, Tensor], None]
    ) -> Scores:
        """Scores over the validation sets of all processes.

        Args:
            batches: This process' share.
            watch: Called after each batch with its index and the ``Output.sums`` so far.
        """
        # Not the DDP wrapper: it synchronises, and processes may have different numbers of batches.
        self._plain.eval()
        sums = torch.zeros(4, dtype=torch.float64, device=self._device)
        for index, (images, targets) in enumerate(batches):
            sums += self._forward(self._plain, images, targets).sums()
            watch(index, sums)
        if self._distributed:
            torch.distributed.all_reduce(sums)
        return Scores.of(sums)

    def end_epoch(self) -> None:
        """Moves on to the next epoch and its learning rate."""
        self.scheduler.step()
        self.epoch += 1

    def save(self, folder: Path, acc1: float) -> Path:
        """Writes ``checkpoint.pth.tar``, and ``model_best.pth.tar`` when it is the best so far.

        Raises:
            RoofprobeError: they cannot be written.
        """
        best = acc1 > self.best_acc1
        self.best_acc1 = max(acc1, self.best_acc1)
        path = folder / "checkpoint.pth.tar"
        checkpoint = {
            "epoch": self.epoch,
            "arch": self.options.arch,
            "state_dict": self._plain.state_dict(),
            "best_acc1": torch.tensor(self.best_acc1),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }
        # By way of memory: where a disk is full, PyTorch's own writer does not say so.
        written = io.BytesIO()
        torch.save(checkpoint, written)
        write_whole(path, written.getvalue())
        if best:
            write_whole(folder / "model_best.pth.tar", written.getvalue())
        return path

    def restore(self, path: str) -> None:
        """Goes on from a checkpoint, of ours or of the example that people know.

        Its learning rate, momentum and weight decay take the place of the options'.

        Raises:
            UsageError: there is no such file, or it holds another model.
            RoofprobeError: it is not a checkpoint, or does not fit.
        """
        checkpoint = _read_checkpoint(path, self._device)
        _require_position(path, checkpoint)
        if checkpoint["arch"] != self.options.arch:
            raise UsageError(
                f"{path} is a checkpoint of {checkpoint['arch']}, not of {self.options.arch}: "
                f"add -a {checkpoint['arch']}"
            )
        try:
            # Saved from inside DataParallel or DDP, every key starts with "module.".
            weights = checkpoint["state_dict"].items()
            named = {str(key).removeprefix("module."): weight for key, weight in weights}
            self._plain.load_state_dict(named)
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            _require_sgd(self.optimizer)
            self.epoch = checkpoint["epoch"]
            self.best_acc1 = float(checkpoint["best_acc1"])
            self.scheduler.load_state_dict(_schedule(checkpoint, self.scheduler))
        except _DAMAGE as error:
            raise RoofprobeError(
                f"{path} does not fit {self.options.arch}: {_first_reason(error)}"
            ) from None
        (group,) = self.optimizer.param_groups
        in_force = {name: group[name] for name in ("lr", "momentum", "weight_decay")}
        self.options = replace(self.options, **in_force)

    def _forward(self, model: nn.Module, images: Tensor, targets: Tensor) -> Output:
        with self.phase("data"):
            images = images.to(self._device, non_blocking=True, memory_format=self.options.layout)
            targets = targets.to(self._device, non_blocking=True)
        amp = self.options.amp
        with torch.autocast(self._device.type, AMP.get(amp or ""), enabled=amp is not None):
            with self.phase("forward"):
                output = model(images)
            # In training, two models have side classifiers beside the main one.
            logits, *side = output if isinstance(output, tuple) else (output,)
            with self.phase("loss"):
                loss = cross_entropy(logits, targets)
                for other in side:
                    share = AUXILIARY_WEIGHT[self.options.arch]
                    loss = loss + share * cross_entropy(other, targets)
        return Output(loss, logits, targets)


# What torch.load raises on truncated and altered files (found by altering some thousands).
_DAMAGE: Final = (
    pickle.UnpicklingError,
    struct.error,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


_BRIEF: Final = 200  # characters


def _read_checkpoint(path: str, device: torch.device) -> dict[str, Any]:
    try:
        # Tensors and plain values only: a checkpoint is data from elsewhere and must run no code.
        checkpoint = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise UsageError(f"there is no checkpoint {path}") from None
    except OSError as error:
        raise RoofprobeError(f"{path} cannot be read: {error.strerror or error}") from None
    except _DAMAGE:
        raise RoofprobeError(f"{path} is not a PyTorch checkpoint, or is damaged") from None
    needed = {"epoch", "arch", "state_dict", "best_acc1", "optimizer"}
    missing = sorted(needed - (checkpoint.keys() if isinstance(checkpoint, dict) else set()))
    if missing:
        raise RoofprobeError(f"{path} is not a training checkpoint: it lacks {', '.join(missing)}")
    return cast(dict[str, Any], checkpoint)


def _require_position(path: str, checkpoint: Mapping[str, Any]) -> None:
    """Refuses what cannot say which model it is of, or where its training stood."""
    arch, epoch, best = (checkpoint[key] for key in ("arch", "epoch", "best_acc1"))
    if not isinstance(arch, str):
        raise RoofprobeError(f"{path} does not name its model: arch is {_shown(arch)}, and no text")
    if type(epoch) is not int or not 0 <= epoch < 2**63:
        raise RoofprobeError(
            f"{path} is at no epoch: epoch is {_shown(epoch)}, and no integer from 0 on"
        )
    with suppress(TypeError, ValueError, RuntimeError, OverflowError):
        if 0 <= float(best) <= 100:
            return
    raise RoofprobeError(f"{path} has no accuracy: best_acc1 is {_shown(best)}, and no percentage")


def _require_sgd(optimizer: torch.optim.SGD) -> None:
    """Refuses a state with which a step would fail: PyTorch loads nearly anything.

    Raises:
        ValueError: what does not fit.
    """
    largest = torch.finfo(torch.float32).max
    for group in optimizer.param_groups:
        for name, usual in optimizer.defaults.items():
            if name not in group:
                raise ValueError(f"its optimizer is no SGD, having no {name}")
            value = group[name]
            if usual is None or isinstance(usual, bool):
                # To be differentiated, a step must not change weights in place, as training does.
                if value not in ((False,) if name == "differentiable" else (None, False, True)):
                    raise ValueError(f"{name} of its optimizer is {_shown(value)}")
            elif type(value) not in (int, float) or not 0 <= value <= largest:
                raise ValueError(
                    f"{name} of its optimizer is {_shown(value)}, and no number from 0 on"
                )
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            if not isinstance(state, dict):
                raise ValueError(f"the optimizer's state of a weight is {_shown(state)}")
            momentum = state.get("momentum_buffer")
            if momentum is None:
                continue
            if not isinstance(momentum, Tensor) or momentum.layout != torch.strided:
                raise ValueError("its momentum of a weight is no plain tensor")
            if momentum.shape != weight.shape:
                raise ValueError(
                    f"its momentum of a weight of {tuple(weight.shape)} is of "
                    f"{tuple(momentum.shape)}"
                )


def _schedule(
    checkpoint: Mapping[str, Any], scheduler: torch.optim.lr_scheduler.StepLR
) -> dict[str, Any]:
    """What StepLR goes on from; all else that a checkpoint may hold of it follows from this.

    Raises:
        ValueError: it is no state of a StepLR.
    """
    # The example wrote no scheduler before 2022.
    usual = {
        "last_epoch": checkpoint["epoch"],
        "step_size": scheduler.step_size,
        "gamma": scheduler.gamma,
    }
    found = checkpoint.get("scheduler", usual)
    if not isinstance(found, dict) or not usual.keys() <= found.keys():
        raise ValueError("its scheduler is no StepLR, which has last_epoch, step_size and gamma")
    last, size, gamma = (found[name] for name in usual)
    if type(last) is not int or last < 0:
        raise ValueError(f"last_epoch of its scheduler is {_shown(last)}, and no integer from 0 on")
    if type(size) is not int or size < 1:
        raise ValueError(f"step_size of its scheduler is {_shown(size)}, and no integer from 1 on")
    if type(gamma) not in (int, float) or not 0 <= gamma <= 1:
        raise ValueError(f"gamma of its scheduler is {_shown(gamma)}, and no number from 0 to 1")
    return {"last_epoch": last, "step_size": size, "gamma": gamma, "_step_count": last + 1}


def _first_reason(error: Exception) -> str:
    """PyTorch puts the reasons why weights do not fit in lines below a heading."""
    heading, *reasons = str(error).splitlines() or [type(error).__name__]
    reason = reasons[0] if reasons and heading.endswith(":") else str(error) or heading
    return textwrap.shorten(reason, _BRIEF, placeholder=" ...").rstrip(".")


def _shown(value: object) -> str:
    """A value out of a file, in a sentence: that of a tensor may have many lines."""
    return textwrap.shorten(repr(value), _BRIEF, placeholder=" ...")
