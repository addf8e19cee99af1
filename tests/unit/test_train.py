"""The training command line: options, data, checkpoints, one measured run from end to end."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from roofprobe import Measurement, Progress, ceilings, cli, imagenet, parts, report, train
from roofprobe.errors import CountersBusyError, RoofprobeError, UsageError
from roofprobe.imagenet import Options, Output, Ranks, Scores, Trainer

CPU = torch.device("cpu")
ONE = Ranks()
SMALL = [
    "-a", "squeezenet1_1", "-b", "2", "-j", "0", "--lr", "0.001", "--seed", "1",
    "--backend", "analytic",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _settings_restored() -> Iterator[None]:
    """A run sets PyTorch's global switches; the next test must not see them."""
    deterministic = torch.backends.cudnn.deterministic
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32


@pytest.fixture
def quick_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the roofs and the plot, which one test is enough to wait for."""

    def touch(record: Measurement, path: Path) -> Path:
        path.touch()
        return path

    monkeypatch.setattr(report, "save_plot", touch)
    monkeypatch.setattr(ceilings, "measure_cpu_roofs", lambda: ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes; 3 training and 2 validation images of each, none of them square."""
    root = tmp_path_factory.mktemp("images")
    for part, count in (("train", 3), ("val", 2)):
        for label, colour in (("cat", "red"), ("dog", "blue")):
            place = root / part / label
            place.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (40 + index, 30), colour).save(place / f"{index}.png")
    return root


@pytest.fixture
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of one layer in place of torchvision's, where it does not matter which."""
    monkeypatch.setattr(imagenet, "build_model", lambda arch, pretrained: TinyModel())


class TinyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 10)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layer(images.mean((2, 3)))
        return out


def trainer(**options: object) -> Trainer:
    return Trainer(Options(**{"arch": "alexnet", **options}), CPU, ONE)  # type: ignore[arg-type]


# -- Command line -------------------------------------------------------------------------


def test_the_studys_command_is_understood_verbatim() -> None:
    command = "--batch-size 4 --epochs 1 --print-freq 10 -a resnet18 --dummy"
    args = train._parse(command.split())
    assert (args.batch_size, args.epochs, args.print_freq) == (4, 1, 10)
    assert (args.arch, args.dummy, args.data) == ("resnet18", True, None)
    assert args.steps is None  # short: as many steps as the measurement needs


def test_defaults_are_those_of_the_example() -> None:
    args = train._parse(["imagenet"])
    assert (args.arch, args.batch_size, args.workers) == ("resnet18", 256, 4)
    assert (args.lr, args.momentum, args.weight_decay) == (0.1, 0.9, 1e-4)
    assert (args.print_freq, args.start_epoch) == (10, 0)
    assert (args.tf32, args.amp, args.seed, args.gpu, args.resume) == (None,) * 5
    assert (args.backend, args.metrics, args.rounds, args.warmup) == ("auto", "full", 1, None)


def test_long_and_short_names_are_the_same_option() -> None:
    long = "DIR --arch vgg11 --workers 1 --learning-rate 0.5 --weight-decay 0.2 --evaluate"
    short = "DIR -a vgg11 -j 1 --lr 0.5 --wd 0.2 -e"
    assert train._parse(long.split()) == train._parse(short.split())


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; from roofprobe import train; train._parser(); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("", 2, "give either DIR"),
        ("--dummy DIR", 2, "give either DIR"),
        ("--dummy -b 0", 2, "0 is below 1"),
        ("--dummy -b many", 2, "invalid integer value: 'many'"),
        ("--dummy --lr nan", 2, "--lr/--learning-rate: nan is no finite number from 0 on"),
        ("--dummy --lr inf", 2, "inf is no finite number from 0 on"),
        ("--dummy --lr=-1", 2, "-1 is no finite number from 0 on"),
        ("--dummy --momentum=-2", 2, "-2 is no finite number from 0 on"),
        ("--dummy --wd=-1", 2, "-1 is no finite number from 0 on"),
        ("--dummy --wd much", 2, "invalid number value: 'much'"),
        # (2 - 2^-23) * 2^127 = 3.40282346...e38 is float32's largest
        ("--dummy --lr 1e308", 2, "1e308 is beyond float32"),
        ("--dummy --momentum 1e300", 2, "1e300 is beyond float32"),
        ("--dummy --wd 3.4028235e38", 2, "3.4028235e38 is beyond float32"),
        ("--dummy --seed 9223372036854775808", 2, "9223372036854775808 has more than 64 bits"),
        ("--dummy --seed=-9223372036854775809", 2, "is below -9223372036854775808"),
        ("--dummy -b 9223372036854775808", 2, "9223372036854775808 has more than 64 bits"),
        ("--dummy -b 9223372036854775807", 1, "images a step: use a smaller --batch-size"),
        ("--dummy --no-such-option", 2, "unrecognized arguments: --no-such-option"),
        ("--dummy --metrics everything", 2, "no metric set is called 'everything'"),
        ("--dummy -a resnet-18", 2, "did you mean resnet18?"),
        ("--dummy -a resnet19", 2, "did you mean resnet18"),
        ("--dummy -a qqqqqq", 2, "list_models"),
        ("--dummy --rank 0 --world-size 2", 2, "torchrun --nproc-per-node"),
        ("--dummy --multiprocessing-distributed", 2, "torchrun --nproc-per-node"),
        ("--dummy --epochs 2 --start-epoch 2", 2, "leaves nothing to train"),
        ("--dummy --resume /no/checkpoint", 2, "there is no checkpoint /no/checkpoint"),
        ("--dummy --resume {empty}", 1, "is not a PyTorch checkpoint"),
        ("--dummy --out {empty}/out", 1, "cannot be made"),
        ("/no/folder", 2, "there is no folder /no/folder/train"),
        ("{folder}/train/cat", 2, "there is no folder"),
        ("{folder}/train/.. -b 7", 1, "has 6 images"),
    ],
)
def test_bad_input_gets_one_sentence(
    arguments: str,
    code: int,
    words: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").touch()
    line = arguments.format(folder=folder, empty=tmp_path / "empty").split()
    model = [] if "-a" in line else ["-a", "squeezenet1_1"]
    assert train.main([*line, *model]) == code
    message = capsys.readouterr().err
    assert message.startswith("roofprobe.train: error: ")
    assert words in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "option",
    ["-j", "-b", "-p", "--epochs", "--start-epoch", "--steps", "--warmup", "--rounds", "--gpu"],
)
def test_counts_end_where_the_machines_integers_do(option: str) -> None:
    assert train._parse(["--dummy", option, str(2**63 - 1)])
    with pytest.raises(UsageError, match="9223372036854775808 has more than 64 bits"):
        train._parse(["--dummy", option, str(2**63)])


def test_the_largest_factors_do_not_end_training() -> None:
    largest = ["--lr", "3.4028234663852886e38", "--wd", "3.4028234663852886e38"]
    args = train._parse(["--dummy", *largest, "--momentum", "3.4028234663852886e38"])
    assert args.lr == args.weight_decay == args.momentum == torch.finfo(torch.float32).max
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    rest = {"momentum": args.momentum, "weight_decay": args.weight_decay}
    optimizer = torch.optim.SGD([weight], args.lr, **rest)
    for _ in range(2):  # the second has a momentum
        optimizer.step()


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
@pytest.mark.parametrize("option", ["--gpu 1", "--amp fp16", "--backend cupti", "--by kernel"])
def test_what_needs_a_gpu_says_so(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--dummy", *option.split()]) == 2
    assert "GPU" in capsys.readouterr().err


def test_an_index_beyond_the_last_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="there is no GPU 2: PyTorch finds 2"):
        train._device(2)


def test_an_unreadable_image_is_named(folder: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / part / "cat").mkdir(parents=True)
    bad = tmp_path / "train" / "cat" / "bad.png"
    bad.write_bytes(b"no image")
    for workers in (0, 1):  # in this process, and in a loader's
        options = Options(arch="alexnet", data=str(tmp_path), batch_size=1, workers=workers)
        with pytest.raises(RoofprobeError) as caught:
            next(iter(imagenet.train_batches(options, 64, CPU, ONE)))
        sentence = train._sentence(caught.value)
        assert sentence.startswith(f"{bad} cannot be read as an image")
        assert "\n" not in sentence


# -- Distributed --------------------------------------------------------------------------


def test_torchruns_environment_says_who_is_who() -> None:
    environ = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
    args = train._parse(["--dummy", "--multiprocessing-distributed", "--world-size", "2"])
    ranks = train._torchrun(args, environ)
    assert ranks == Ranks(rank=5, local=1, world=8, local_world=4)
    assert train._torchrun(train._parse(["--dummy"]), {}) is None


def test_a_batch_and_its_loaders_are_shared_by_the_processes_of_a_machine() -> None:
    ranks = Ranks(rank=1, local=1, world=4, local_world=4)
    options = train._options(train._parse(["--dummy", "-b", "64", "-j", "6"]), ranks, CPU)
    assert (options.batch_size, options.workers) == (16, 2)
    with pytest.raises(UsageError, match="--batch-size 6 cannot be shared by 4"):
        train._options(train._parse(["--dummy", "-b", "6"]), ranks, CPU)


def test_loader_processes_are_limited_by_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    options = train._options(train._parse(["--dummy", "-j", "32"]), ONE, CPU)
    assert options.workers == 32  # 16 a core
    why = "--workers 33 are more loader processes than a machine of 2 cores .* use 32 or fewer"
    with pytest.raises(UsageError, match=why):
        train._options(train._parse(["--dummy", "-j", "33"]), ONE, CPU)


def test_processes_share_out_the_validation_images(folder: Path) -> None:
    options = Options(arch="alexnet", data=str(folder), batch_size=1, workers=0)
    shares = [imagenet.val_batches(options, 32, CPU, Ranks(rank, rank, 3, 3)) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 1, 1]


def test_two_processes_measure_one_model(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 -m roofprobe.train --dummy"
    done = subprocess.run(
        [sys.executable, *command.split(), *SMALL, "-b", "4", "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    records = [Measurement.load(out / f"rank{rank}" / "run.json") for rank in range(2)]
    assert all(record.complete for record in records)
    assert [record.workload["rank"] for record in records] == [0, 1]
    assert {record.workload["batch_size"] for record in records} == {2}
    assert done.stdout.count("=> timing") == 1  # one process talks


@pytest.mark.parametrize(
    "changed",
    [
        {"RANK": "x"},
        {"RANK": "2"},
        {"RANK": "-1"},
        {"WORLD_SIZE": "0"},
        {"LOCAL_RANK": "1"},
        {"LOCAL_WORLD_SIZE": "0"},
        {"LOCAL_WORLD_SIZE": "3"},
    ],
)
def test_an_environment_that_is_no_torchruns_is_refused(changed: dict[str, str]) -> None:
    environ = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    args = train._parse(["--dummy"])
    assert train._torchrun(args, environ) == Ranks(0, 0, 2, 1)
    with pytest.raises(UsageError, match="unset RANK for a run of one process"):
        train._torchrun(args, environ | changed)


def test_a_backend_that_does_not_exist_is_one_sentence() -> None:
    args = train._parse(["--dummy", "--dist-backend", "bar", "--dist-url", "tcp://127.0.0.1:1"])
    with pytest.raises(RoofprobeError, match=r"process 0 could not join the others .* with bar: "):
        train._join(args, ONE, CPU)


# -- Data ---------------------------------------------------------------------------------


def test_made_up_batches_follow_the_seed() -> None:
    def first(seed: int, rank: int = 0) -> Tensor:
        options = Options(arch="alexnet", batch_size=3, seed=seed)
        batches = imagenet.train_batches(options, 224, CPU, Ranks(rank, rank, 2, 2))
        images, targets = next(iter(batches))
        assert images.shape == (3, 3, 224, 224)
        assert targets.min() >= 0
        assert targets.max() < 1000
        return images

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
    assert not torch.equal(first(1), first(1, rank=1))


def test_made_up_epochs_are_as_long_as_imagenets() -> None:
    options = Options(arch="alexnet", batch_size=64)
    assert len(imagenet.train_batches(options, 32, CPU, ONE)) == 1_281_167 // 64
    val = imagenet.val_batches(options, 32, CPU, ONE)
    assert sum(len(targets) for _, targets in val) == 50_000
    assert len(val) == len(list(val))


def test_every_training_step_has_the_same_size(folder: Path) -> None:
    options = Options(arch="alexnet", data=str(folder), batch_size=4, workers=0)
    batches = imagenet.train_batches(options, 64, CPU, ONE)
    # 6 images: one batch of 4 an epoch, and an endless supply of them.
    assert len(batches) == 1
    endless = imagenet.endless(batches)
    assert [next(endless)[0].shape for _ in range(3)] == [(4, 3, 64, 64)] * 3


# -- Training -----------------------------------------------------------------------------


def test_scores_of_a_known_batch() -> None:
    logits = torch.tensor([[6.0, 5, 4, 3, 2, 1], [6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6]])
    output = Output(torch.tensor(0.5), logits, torch.tensor([0, 4, 0]))
    scores = Scores.of(output.sums())  # first guess; fifth guess; sixth guess
    assert astuple(scores) == pytest.approx((0.5, 100 / 3, 200 / 3))


@pytest.mark.usefixtures("tiny_model")
def test_evaluation_is_over_all_images_and_does_not_train() -> None:
    model = trainer()
    before = [weight.clone() for weight in model.model.parameters()]
    torch.manual_seed(0)
    batches = [(torch.randn(n, 3, 4, 4), torch.arange(n) % 10) for n in (5, 3)]
    seen: list[int] = []
    scores = model.evaluate(batches, lambda index, sums: seen.append(int(sums[3])))
    assert seen == [5, 8]
    images, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    whole = model.evaluate([(images, targets)], lambda index, sums: None)
    assert astuple(scores) == pytest.approx(astuple(whole))
    assert all(torch.equal(a, b) for a, b in zip(before, model.model.parameters(), strict=True))


def test_side_classifiers_count_with_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sided(TinyModel):
        def forward(self, images: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
            return (super().forward(images),) * 3

    batch = torch.ones(2, 3, 4, 4), torch.tensor([0, 1])
    losses = []
    for kind in (TinyModel, Sided):
        torch.manual_seed(0)
        monkeypatch.setattr(imagenet, "build_model", lambda arch, pretrained, kind=kind: kind())
        losses.append(trainer(arch="googlenet").step(*batch).loss.item())
    assert losses[1] == pytest.approx((1 + 2 * 0.3) * losses[0])


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_the_learning_rate_falls_tenfold_every_30_epochs() -> None:
    model = trainer()
    rates = []
    for _ in range(90):
        rates.append(model.optimizer.param_groups[0]["lr"])
        model.end_epoch()
    assert rates == pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30)


# -- Checkpoints --------------------------------------------------------------------------


@pytest.fixture
def trained(tiny_model: None, tmp_path: Path) -> tuple[Trainer, Path]:
    """A trainer after 31 epochs of one step, and its checkpoint."""
    torch.manual_seed(0)
    model = trainer()
    for _ in range(31):
        model.step(torch.randn(4, 3, 4, 4), torch.arange(4))
        model.end_epoch()
    return model, model.save(tmp_path, acc1=12.5)


def assert_restored(other: Trainer, saved: Trainer) -> None:
    assert other.epoch == 31
    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert other.scheduler.last_epoch == 31
    # The same next step: weights and momentum are all there.
    for one in (other, saved):
        one.step(torch.ones(4, 3, 4, 4), torch.arange(4))
    for a, b in zip(other.model.parameters(), saved.model.parameters(), strict=True):
        assert torch.equal(a, b)
    # The next fall is at epoch 60 and not 30 epochs from here.
    while other.epoch < 60:
        other.end_epoch()
    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_a_checkpoint_brings_everything_back(trained: tuple[Trainer, Path]) -> None:
    saved, path = trained
    keys = {"epoch", "arch", "state_dict", "best_acc1", "optimizer", "scheduler"}
    assert set(torch.load(path, weights_only=True)) == keys
    other = trainer(lr=0.5)
    other.restore(str(path))
    assert other.best_acc1 == 12.5
    assert_restored(other, saved)


def _from_ddp(checkpoint: dict[str, object]) -> None:
    weights = checkpoint["state_dict"]
    assert isinstance(weights, dict)
    checkpoint["state_dict"] = {f"module.{key}": value for key, value in weights.items()}


def _from_before_2022(checkpoint: dict[str, object]) -> None:
    del checkpoint["scheduler"]


@pytest.mark.parametrize("change", [_from_ddp, _from_before_2022])
def test_the_examples_own_checkpoints_are_read(
    change: Callable[[dict[str, object]], None], trained: tuple[Trainer, Path]
) -> None:
    saved, path = trained
    checkpoint = torch.load(path, weights_only=True)
    change(checkpoint)
    torch.save(checkpoint, path)
    other = trainer()
    other.restore(str(path))
    assert_restored(other, saved)


def test_the_best_model_is_kept(trained: tuple[Trainer, Path]) -> None:
    model, path = trained
    best = path.with_name("model_best.pth.tar")
    before = best.read_bytes()
    model.save(path.parent, acc1=10.0)
    assert best.read_bytes() == before
    model.save(path.parent, acc1=20.0)
    assert best.read_bytes() == path.read_bytes()
    assert torch.load(path, weights_only=True)["best_acc1"] == 20.0
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, best.name]


def test_ctrl_c_while_saving_leaves_both_checkpoints_as_they_were(
    trained: tuple[Trainer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = trained
    best = path.with_name("model_best.pth.tar")
    for whole in (0, 1):  # of the two files
        before = path.read_bytes(), best.read_bytes()
        synced = iter(range(2))

        def interrupted(handle: int, synced: Iterator[int] = synced, whole: int = whole) -> None:
            if next(synced) == whole:
                raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.save(path.parent, acc1=20.0 + whole)
        assert (path.read_bytes() == before[0]) == (whole == 0)
        assert best.read_bytes() == before[1]
        assert sorted(file.name for file in path.parent.iterdir()) == [path.name, best.name]


def test_checkpoints_that_do_not_fit_are_refused(trained: tuple[Trainer, Path]) -> None:
    _, path = trained
    with pytest.raises(UsageError, match="a checkpoint of alexnet, not of vgg11: add -a alexnet"):
        trainer(arch="vgg11").restore(str(path))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RoofprobeError, match="is not a PyTorch checkpoint, or is damaged"):
        trainer().restore(str(path))
    torch.save({"epoch": 1, "arch": "alexnet"}, path)
    with pytest.raises(RoofprobeError, match="lacks best_acc1, optimizer, state_dict"):
        trainer().restore(str(path))
    path.write_bytes(whole)
    checkpoint = torch.load(path, weights_only=True)
    torch.save({**checkpoint, "state_dict": {"other": torch.ones(1)}}, path)
    with pytest.raises(RoofprobeError, match=r"does not fit alexnet: Missing key.*layer\.weight"):
        trainer().restore(str(path))
    nowhere = ("epoch", -3), ("epoch", 1.5), ("epoch", True), ("arch", None), ("best_acc1", "x")
    for key, value in (*nowhere, ("best_acc1", torch.tensor(torch.nan)), ("best_acc1", 101)):
        torch.save({**checkpoint, key: value}, path)
        with pytest.raises(RoofprobeError, match=f"{key} is .*{value}"):
            trainer().restore(str(path))
    for key, value in (("epoch", 2**63), ("best_acc1", 10**309), ("best_acc1", torch.eye(9))):
        torch.save({**checkpoint, key: value}, path)
        with pytest.raises(RoofprobeError, match=f"{key} is ") as caught:
            trainer().restore(str(path))
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        ("scheduler", 5, "its scheduler is no StepLR"),
        ("scheduler", {"last_epoch": 31}, "which has last_epoch, step_size and gamma"),
        ("scheduler last_epoch", "x", "last_epoch of its scheduler is 'x', and no integer"),
        ("scheduler last_epoch", -1, "last_epoch of its scheduler is -1"),
        ("scheduler last_epoch", True, "last_epoch of its scheduler is True"),
        ("scheduler step_size", 0, "step_size of its scheduler is 0"),
        ("scheduler step_size", 30.0, "step_size of its scheduler is 30.0"),
        ("scheduler gamma", torch.nan, "gamma of its scheduler is nan"),
        ("scheduler gamma", -0.1, "gamma of its scheduler is -0.1"),
        ("scheduler gamma", 1e300, "gamma of its scheduler is 1e"),
        ("optimizer param_groups 0 lr", torch.nan, "lr of its optimizer is nan"),
        ("optimizer param_groups 0 lr", torch.inf, "lr of its optimizer is inf"),
        ("optimizer param_groups 0 lr", torch.eye(9), "lr of its optimizer is tensor"),
        ("optimizer param_groups 0 momentum", "x", "momentum of its optimizer is 'x'"),
        ("optimizer param_groups 0 weight_decay", 1e300, "weight_decay of its optimizer is 1e"),
        ("optimizer param_groups 0 dampening", 10**400, "dampening of its optimizer is"),
        ("optimizer param_groups 0 nesterov", "x", "nesterov of its optimizer is 'x'"),
        ("optimizer param_groups 0 differentiable", True, "differentiable of its optimizer"),
        ("optimizer state 0", 5, "the optimizer's state of a weight is 5"),
        ("optimizer state 0 momentum_buffer", 5, "its momentum of a weight is no plain tensor"),
        # the layer's weight is of 10 outputs by 3 inputs
        ("optimizer state 0 momentum_buffer", torch.ones(3), r"weight of \(10, 3\) is of \(3,\)"),
        ("optimizer state 0 momentum_buffer", torch.eye(10, 3).to_sparse(), "no plain tensor"),
        ("state_dict", {5: torch.ones(3)}, "Missing key"),
    ],
)
def test_checkpoints_that_no_step_could_go_on_from_are_refused(
    place: str, value: object, why: str, trained: tuple[Trainer, Path]
) -> None:
    _, path = trained
    checkpoint = torch.load(path, weights_only=True)
    *above, last = [int(key) if key.isdigit() else key for key in place.split()]
    inside = checkpoint
    for key in above:
        inside = inside[key]
    inside[last] = value
    torch.save(checkpoint, path)
    with pytest.raises(RoofprobeError, match=f"{path} does not fit alexnet: .*{why}") as caught:
        trainer().restore(str(path))
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_another_optimizer_is_refused(trained: tuple[Trainer, Path]) -> None:
    saved, path = trained
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["optimizer"] = torch.optim.Adam(saved.model.parameters()).state_dict()
    torch.save(checkpoint, path)
    with pytest.raises(RoofprobeError, match="its optimizer is no SGD, having no momentum"):
        trainer().restore(str(path))


# -- From end to end ----------------------------------------------------------------------


def test_real_images_are_measured(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert train.main([str(folder), *SMALL, "--out", str(out), "-p", "2"]) == 0
    # 3 steps an epoch, and 4 to measure: the epoch went round, and was neither validated nor saved.
    assert sorted(path.name for path in out.iterdir()) == ["roofline.png", "run.json"]
    record = Measurement.load(out / "run.json")
    assert record.complete
    assert record.source == "analytic"
    assert record.timing is not None
    assert len(record.timing.step) == 2
    assert {roof.kind for roof in record.roofs} == {"flop", "byte"}
    assert record.workload["arch"] == "squeezenet1_1"
    assert record.workload["data"] == str(folder)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [str(out / "run.json"), str(out / "roofline.png")]
    phases = [line for line in printed if line.startswith(("=> ", "Epoch"))]
    words = [line.split()[1].rstrip(":,") for line in phases]
    # The plan is made beside the warm-up and told as soon as it is there.
    assert 0 < words.index("4") < words.index("timing")
    words.remove("4")
    assert words == [
        "squeezenet1_1", "warm-up", "[0][0/3]", "timing", "[0][2/3]", "pass", "measuring",
    ]  # fmt: skip


def test_the_profilers_bracket_opens_after_the_warm_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ncu --profile-from-start off looks at; the plan is told earlier than that."""
    seen: list[str] = []
    told = train._Region._on_progress

    def on_progress(region: train._Region, event: Progress) -> None:
        seen.append(event.phase)
        told(region, event)

    monkeypatch.setattr(train._Region, "_on_progress", on_progress)
    monkeypatch.setattr(train._Region, "_bracket", lambda region: seen.append("bracket"))
    assert train.main([str(folder), *SMALL, "--out", str(tmp_path / "out")]) == 0
    assert seen.count("bracket") == 1
    assert seen[seen.index("bracket") - 1] == "timing"
    assert "warmup" not in seen[seen.index("bracket") :]


@pytest.mark.usefixtures("quick_report")
@pytest.mark.parametrize("by", ["phase", "layer"])
def test_parts_of_a_step(
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TinyModel()
    model.layer = nn.Linear(3, 1000)
    monkeypatch.setattr(imagenet, "build_model", lambda arch, pretrained: model)
    out = tmp_path / "out"
    assert train.main(["--dummy", *SMALL, "--by", by, "--out", str(out)]) == 0
    record = Measurement.load(out / "run.json")
    assert record.regions is not None
    ranges = dict.fromkeys(segment.range for segment in record.regions.segments)
    assert list(ranges) == ["", "data", "forward", "loss", "optimizer", "backward"]
    modules = {segment.module for segment in record.regions.segments}
    assert modules == ({None} if by == "phase" else {None, "", "layer"})
    # 2 images of 3 channels into 1000 classes; the images need no gradient
    named = {part.name: part.figures.flop_total.value for part in parts.parts(record)}
    one = 2 * 2 * 3 * 1000
    if by == "phase":
        assert (named["forward"], named["backward"]) == (one, one)
    else:
        assert (named["layer forward"], named["layer backward"]) == (one, one)
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == str(out / f"{by}s.png")
    assert (out / f"{by}s.png").read_bytes().startswith(b"\x89PNG")
    assert "The parts add up to the uncut step: 100% of its FLOP" in printed


@pytest.mark.usefixtures("quick_report")
def test_whole_epochs_are_validated_saved_and_resumed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    train_whole = [str(folder), *SMALL, "--steps", "0"]
    assert train.main([*train_whole, "--epochs", "2", "--out", str(first)]) == 0
    # Epochs of 3 steps: the 4 steps of the measurement reach into the second.
    assert Measurement.load(first / "run.json").complete
    assert (first / "model_best.pth.tar").exists()
    checkpoint = first / "checkpoint.pth.tar"
    assert torch.load(checkpoint, weights_only=True)["epoch"] == 2
    capsys.readouterr()

    again = [*train_whole, "--lr", "0.25", "--resume", str(checkpoint), "--out", str(second)]
    assert train.main([*again, "--epochs", "2"]) == 2
    assert "leaves nothing to train: the run starts at epoch 2" in capsys.readouterr().err
    assert train.main([*again, "--epochs", "3"]) == 0
    printed = capsys.readouterr().out
    assert "going on from epoch 2" in printed
    assert "Epoch [2][0/3]" in printed
    assert torch.load(second / "checkpoint.pth.tar", weights_only=True)["epoch"] == 3
    # 3 steps were one too few, and the record says so.
    resumed = Measurement.load(second / "run.json")
    assert resumed.steps_missing == 1
    # The checkpoint's rate is the one in force.
    rate = Measurement.load(first / "run.json").workload["lr"]
    assert resumed.workload["lr"] == rate != 0.25


def test_evaluating_measures_nothing(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for data in ([str(folder)], ["--dummy", "--steps", "2"]):
        assert train.main([*data, *SMALL, "-e", "-p", "1"]) == 0
        printed = capsys.readouterr().out
        assert "Test [1/2]" in printed
        assert "=> validated: Loss" in printed
    assert not list(tmp_path.iterdir())


def test_interrupting_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter(range(4))
    step = Trainer.step

    def interrupted(self: Trainer, images: Tensor, targets: Tensor) -> Output:
        if next(steps) == 3:
            raise KeyboardInterrupt
        return step(self, images, targets)

    monkeypatch.setattr(Trainer, "step", interrupted)
    assert train.main(["--dummy", *SMALL, "--out", str(tmp_path)]) == 130
    message = capsys.readouterr().err
    assert f"what had been measured is in {tmp_path / 'run.json'}" in message
    record = Measurement.load(tmp_path / "run.json")
    assert not record.complete
    assert record.timing is not None


SIGNALLED = """
import multiprocessing, os, subprocess, sys, time
from roofprobe import imagenet, train
from roofprobe.record import Measurement

workers_first, step, to_json = {workers_first}, imagenet.Trainer.step, Measurement.to_json
steps = iter(range(9))
workers = []

def end(pids):
    # Not from here: a loader process takes a SIGTERM of its parent's for the usual end.
    subprocess.run(["kill", *map(str, pids)])
    time.sleep(1)  # while PyTorch may learn that its loaders died, if these were signalled

def stepped(*arguments):
    if next(steps) == 3:
        workers.extend(child.pid for child in multiprocessing.active_children())
        end(workers if workers_first else [os.getpid()])
    return step(*arguments)

def saved(record):
    end([os.getpid()] if workers_first else workers)
    return to_json(record)

imagenet.Trainer.step, Measurement.to_json = stepped, saved
code = train.main({arguments!r})
assert len(workers) == 2
sys.exit(code)
"""


@pytest.mark.parametrize("workers_first", [True, False])
def test_sigterm_to_a_whole_job_saves_what_was_measured(
    workers_first: bool, folder: Path, tmp_path: Path
) -> None:
    arguments = [str(folder), *SMALL, "-j", "2", "--out", str(tmp_path)]
    code = SIGNALLED.format(workers_first=workers_first, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 143, done.stderr
    kept = f"roofprobe.train: what had been measured is in {tmp_path / 'run.json'}"
    first, *others, last = done.stderr.splitlines()
    assert (first, last) == (kept, "roofprobe.train: ended by SIGTERM")
    assert len(others) == workers_first  # the loaders' death came first, and is said
    assert all("error: a loader process died: DataLoader worker" in line for line in others)
    record = Measurement.load(tmp_path / "run.json")
    assert not record.complete
    assert record.timing is not None


def test_signals_that_come_while_saving_are_raised_afterwards() -> None:
    with train._Signals() as signals:
        with pytest.raises(KeyboardInterrupt), signals.waiting():
            os.kill(os.getpid(), signal.SIGINT)
            signals.check()
        with pytest.raises(train._TerminatedError):
            os.kill(os.getpid(), signal.SIGTERM)  # noted: the first signal that raised is the last
            signals.check()
        assert signals.ended_by == signal.SIGTERM


def test_a_termination_while_the_roofs_are_measured_names_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "measure_cpu_roofs", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert train.main(["--dummy", *SMALL, "--out", str(tmp_path)]) == 143
    assert capsys.readouterr().err.splitlines() == [
        f"roofprobe.train: what had been measured is in {tmp_path / 'run.json'}",
        "roofprobe.train: ended by SIGTERM",
    ]
    assert Measurement.load(tmp_path / "run.json").complete


@pytest.mark.usefixtures("quick_report")
def test_a_run_too_short_for_its_parts_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--dummy", *SMALL, "--by", "phase", "--steps", "3", "--out", str(tmp_path)]
    assert train.main(arguments) == 0
    printed = capsys.readouterr().out
    why = "the run ended before they were counted"
    assert f"no plot: there is none of the step's parts: {why}" in printed
    assert "measure it with --by" not in printed


def test_a_batch_that_cannot_be_normalised_names_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.Flatten())
    monkeypatch.setattr(imagenet, "build_model", lambda arch, pretrained: model)
    assert train.main(["--dummy", *SMALL, "-b", "1", "--out", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "squeezenet1_1 needs more than 1 image a step: use a larger" in message


@pytest.mark.usefixtures("quick_report")
def test_a_path_that_is_no_utf_8_can_be_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "lat\udce9"  # byte 0xE9, which is é in Latin-1
    command = ["python", "-m", "roofprobe.train", "--out", str(out)]
    monkeypatch.setattr(sys, "orig_argv", command)
    assert train.main(["--dummy", *SMALL, "--out", str(out)]) == 0
    record = Measurement.load(out / "run.json")
    assert record.environment.command == (*command[:-1], str(tmp_path / "lat") + r"\xe9")


def test_titles_do_not_say_on_twice() -> None:
    names = [train._name(Options(arch="a", batch_size=1, tf32=on)) for on in (None, True, False)]
    assert names == ["a batch 1", "a batch 1, TF32", "a batch 1, no TF32"]


def test_report_takes_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "."]) == 1
    message = capsys.readouterr().err
    assert message.startswith("roofprobe: error: ")
    assert message.count("\n") == 1


@pytest.mark.usefixtures("quick_report")
def test_a_loss_that_is_no_longer_finite_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.step

    def diverged(self: Trainer, images: Tensor, targets: Tensor) -> Output:
        output = step(self, images, targets)
        return dataclasses.replace(output, loss=output.loss * torch.nan)

    assert train.main(["--dummy", *SMALL, "--out", str(tmp_path / "fine")]) == 0
    monkeypatch.setattr(Trainer, "step", diverged)
    assert train.main(["--dummy", *SMALL, "--out", str(tmp_path / "diverged")]) == 0
    fine, other = (Measurement.load(tmp_path / n / "run.json") for n in ("fine", "diverged"))
    assert not any("no longer finite" in warning for warning in fine.warnings)
    assert any("no longer finite" in warning for warning in other.warnings)


def test_running_out_of_memory_names_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Trainer, images: Tensor, targets: Tensor) -> Output:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(Trainer, "step", full)
    assert train.main(["--dummy", *SMALL, "--out", str(tmp_path)]) == 1
    assert "use a smaller --batch-size" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())  # nothing had been measured


@pytest.mark.usefixtures("quick_report")
def test_training_goes_on_when_another_profiler_has_the_counters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from roofprobe.counters.analytic import AnalyticBackend

    def busy(self: AnalyticBackend) -> None:
        raise CountersBusyError("ncu is at work")

    monkeypatch.setattr(AnalyticBackend, "open", busy)
    arguments = ["--dummy", *SMALL, "--steps", "5", "-p", "1", "--out", str(tmp_path)]
    assert train.main(arguments) == 0
    printed = capsys.readouterr()
    assert "training goes on without counters: ncu is at work" in printed.err
    assert "Epoch [0][4/5]" in printed.out
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["timing"] is not None
    assert record["rounds"] == []
