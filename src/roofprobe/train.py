"""``python -m roofprobe.train``: the ImageNet training that people know, its steps measured.

    python -m roofprobe.train -a resnet18 --dummy       # made-up images; stops once measured
    python -m roofprobe.train -a resnet50 DIR --steps 0  # whole epochs, measured in the first
    torchrun --nproc-per-node 2 -m roofprobe.train -a resnet18 --dummy

The command line is that of PyTorch's ImageNet example; the last group of options is ours. Exit
codes: 0, 1 when the run failed, 2 when the command line makes no sense, 3 when --verify-ncu found
a difference, 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP (a closed terminal).
"""

import argparse
import dataclasses
import gc
import math
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import roofprobe
from roofprobe import metrics
from roofprobe.cli.signals import complain, drop_unwritten, words
from roofprobe.counters import external
from roofprobe.errors import CountersBusyError, RecordError, RoofprobeError, UsageError
from roofprobe.regions import BY

# PyTorch takes seconds to import, so that it is left to the functions that need it: --help and
# complaints about the command line come at once.
if TYPE_CHECKING:
    import torch

    from roofprobe.imagenet import Batches, Options, Ranks, Scores, Trainer

PROG: Final = "roofprobe.train"
EPOCHS: Final = 90  # of a whole training, as in the example

_PHASES: Final = {
    "warmup": "warm-up",
    "timing": "timing, no counters attached",
    "labels": "labels, and kernel records where there is a GPU",
    "kernels": "kernel records",
    "witness": "the analytic model, beside the counters",
}
_LINES: Final = 50  # about passes, at most

# AlexNet on one made-up batch at the usual rate of 0.1: from the step on at which its loss became
# NaN, fadd counted 3.4% more (measured, H200, harness/results/h200/verify-alexnet-b64-diverged).
_DIVERGED: Final = (
    "the loss is no longer finite: work that depends on its data (a division by way of NaN takes "
    "more instructions) then counts otherwise than in training that converges; use a smaller --lr"
)

# Half a gigabyte each: without a limit a slip of the finger ends other programs for want of memory.
_WORKERS_A_CORE: Final = 16

# Weights are float32, and PyTorch takes no factor for them that is not.
_LARGEST: Final = (2 - 2**-23) * 2.0**127

# Both runs of --verify-ncu need one. This one makes the images that a run without a seed makes.
_SEED: Final = 0

Say = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    # All that the run holds, loaders included, is let go of in there, while signals still wait.
    with _Signals() as signals:
        try:
            code = _main(given, signals)
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
    if signals.ended_by is not None:
        complain(f"{PROG}: {words(signals.ended_by)}")
        code = 128 + signals.ended_by
    elif code == 128 + signal.SIGINT:
        complain(f"{PROG}: {words(signal.SIGINT)}")
    drop_unwritten(sys.stdout, sys.stderr)
    return code


def _main(given: Sequence[str], signals: "_Signals") -> int:
    try:
        args = _parse(given)
        saved = _run(args, signals)
        if args.verify_ncu:
            return _verify(saved, args, given)
    except RoofprobeError as error:
        complain(f"{PROG}: error: {_sentence(error)}")
        return 2 if isinstance(error, UsageError) else 1
    return 0


class _TerminatedError(KeyboardInterrupt):
    """A batch system, a container, torchrun or a closed terminal asks this process to end."""


class _Signals:
    """SIGTERM and SIGHUP end a run as Ctrl-C does, so that what was measured is saved, undisturbed.

    A batch system signals a whole job: this process and its loaders, whose death PyTorch raises
    here from a handler of its own. The second of these exceptions would come while the first one's
    record is being saved, and lose it. So the first signal that raises is the last: those after it
    are only noted.

    Attributes:
        held: True while signals are noted and nothing is raised.
    """

    def __init__(self) -> None:
        self.held = False
        self._own = os.getpid()
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        with suppress(ValueError):  # only the main thread may; elsewhere signals are the caller's
            self._take(signal.SIGTERM, self._terminate)
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # and not ignored, as by nohup
                self._take(signal.SIGHUP, self._terminate)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._take(signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    @property
    def ended_by(self) -> int | None:
        """SIGTERM or SIGHUP, whichever came first; None where neither did."""
        return next((number for number in self._came if number != signal.SIGINT), None)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Signals are noted during the body; ``check`` raises them afterwards."""
        before, self.held = self.held, True
        try:
            yield
        finally:
            self.held = before

    def check(self) -> None:
        """Raises what was only noted, or raised where Python lets no exception out (``__del__``).

        Raises:
            KeyboardInterrupt: for SIGINT, and as ``_TerminatedError`` for the others.
        """
        if self._came:
            self.held = True
            raise KeyboardInterrupt if self.ended_by is None else _TerminatedError

    def watch_loaders(self) -> None:
        """Takes PyTorch's handler in too, once it is there: with the first loader process."""
        handler = signal.getsignal(signal.SIGCHLD)
        if self._before and signal.SIGCHLD not in self._before and callable(handler):
            self._take(signal.SIGCHLD, handler)

    def _take(self, number: int, act: Callable[[int, FrameType | None], object]) -> None:
        def handle(number: int, frame: FrameType | None) -> None:
            if number != signal.SIGCHLD:  # of which most mean nothing: a process ended
                self._came.append(number)
            if self.held:
                return
            try:
                act(number, frame)
            except BaseException:
                self.held = True
                raise

        self._before[number] = signal.signal(number, handle)

    def _terminate(self, number: int, _frame: object) -> None:
        if os.getpid() != self._own:  # forked from here, with nothing to save
            os._exit(128 + number)
        raise _TerminatedError


# -- The command line ---------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        if value >= 2**63:  # neither sizes nor seeds of torch's are larger
            raise argparse.ArgumentTypeError(f"{value} has more than 64 bits")
        return value

    number.__name__ = "integer"  # argparse's word for what it expected
    return number


def _factor(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no finite number from 0 on")
    if value > _LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is beyond float32, whose largest is {_LARGEST}")
    return value


_factor.__name__ = "number"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"python -m {PROG}",
        description="Trains a torchvision model on ImageNet, or on made-up images, and measures "
        "a training step: FLOP, bytes, time, roofline.",
    )
    known = parser.add_argument_group("as in PyTorch's ImageNet example")
    ranks = parser.add_argument_group("distributed: torchrun's environment says who is who")
    ours = parser.add_argument_group("measuring")
    count, positive = _at_least(0), _at_least(1)
    # fmt: off
    add = known.add_argument
    add("data", nargs="?", metavar="DIR", help="folder with train/ and val/, a folder per class")
    add("--dummy", action="store_true", help="one made-up batch, made once and used every step")
    add("-a", "--arch", default="resnet18", help="any torchvision classifier (%(default)s)")
    add("-j", "--workers", type=count, default=4, metavar="N",
        help="loader processes (%(default)s)")
    add("--epochs", type=positive, metavar="N", help=f"in all ({EPOCHS} with --steps 0, else 1)")
    add("--start-epoch", type=count, default=0, metavar="N", help="to count from (%(default)s)")
    add("-b", "--batch-size", type=positive, default=256, metavar="N",
        help="images of a step, over all processes of this machine (%(default)s)")
    add("--lr", "--learning-rate", type=_factor, default=0.1, metavar="X",
        help="a tenth of it every 30 epochs (%(default)s)")
    add("--momentum", type=_factor, default=0.9, metavar="X", help="of SGD (%(default)s)")
    add("--wd", "--weight-decay", dest="weight_decay", type=_factor, default=1e-4, metavar="X",
        help="of SGD (%(default)s)")
    add("-p", "--print-freq", type=positive, default=10, metavar="N",
        help="steps between progress lines (%(default)s)")
    add("--resume", metavar="PATH", help="go on from a checkpoint")
    add("-e", "--evaluate", action="store_true", help="only validate; measures nothing")
    add("--pretrained", action="store_true", help="start from torchvision's best weights")
    add("--seed", type=_at_least(-(2**63)), metavar="N",
        help="of weights, order and made-up images; takes repeatable algorithms")
    add("--gpu", type=count, metavar="N", help="index of the GPU to use (0)")

    add = ranks.add_argument
    add("--dist-backend", metavar="NAME", help="nccl with GPUs, else gloo")
    add("--dist-url", default="env://", metavar="URL", help="where they meet (%(default)s)")
    add("--world-size", type=int, metavar="N", help="accepted under torchrun, which knows better")
    add("--rank", type=int, metavar="N", help="likewise")
    add("--multiprocessing-distributed", action="store_true", help="likewise")

    add = ours.add_argument
    add("--steps", type=count, metavar="N",
        help="training steps of an epoch at most, 0 for all of it (as many as the measurement "
        "needs, and then the run ends)")
    add("--warmup", type=count, metavar="N", help="unmeasured steps first (5; on a CPU 1)")
    add("--rounds", type=positive, default=1, metavar="N",
        help="repeat the whole set of passes, for a mean and a spread (%(default)s)")
    add("--by", choices=BY, default=BY[0],
        help="parts of the step to tell apart: phases, layers too, or kernels (%(default)s)")
    add("--metrics", default=metrics.DEFAULT_SET, metavar="NAME|LIST",
        help=f"a set ({', '.join(metrics.SET_NAMES)}) or CUPTI names with commas (%(default)s)")
    add("--amp", choices=("bf16", "fp16"), help="mixed precision; fp16 scales the loss (fp32)")
    add("--tf32", action=argparse.BooleanOptionalAction,
        help="in convolutions and matrix products, on a GPU (as PyTorch has it)")
    add("--channels-last", action="store_true", help="memory layout NHWC")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--backend", choices=("auto", "cupti", "gpm", "analytic"), default="auto",
        help="hardware counters (cupti), NVML's utilisations (gpm) or a model of the step; auto "
        "takes the first of them that this machine allows")
    add("--witness", action="store_true",
        help="one more step, by the model of it, to set beside the hardware counters")
    add("--out", type=Path, metavar="DIR", help="for results (runs/ARCH-bBATCH-TIME)")
    add("--verify-ncu", action="store_true",
        help="run it all again under Nsight Compute and compare the counters (minutes); without "
        f"--seed both runs take {_SEED}")
    add("--save-image", action="store_true", help="keep the raw counter data too")
    # fmt: on
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    args = _parser().parse_args(argv)
    if args.verify_ncu and (args.evaluate or args.backend in ("analytic", "gpm")):
        other = "--evaluate" if args.evaluate else f"--backend {args.backend}"
        raise UsageError(f"--verify-ncu compares hardware counters, and {other} reads none")
    args.seed_chosen = args.verify_ncu and args.seed is None
    if args.seed_chosen:
        args.seed = _SEED
    if (args.data is None) != args.dummy:
        raise UsageError("give either DIR, the folder of images, or --dummy for made-up ones")
    try:
        metrics.resolve(args.metrics, None, metrics.LEVELS)
    except RoofprobeError as error:  # here and not after minutes of warm-up
        raise UsageError(str(error)) from None
    return args


# -- One run ------------------------------------------------------------------------------


def _run(args: argparse.Namespace, signals: _Signals) -> Path | None:
    """Trains; returns the run file, where something was measured."""
    import torch

    from roofprobe import imagenet

    given = _torchrun(args, os.environ)
    ranks = given or imagenet.Ranks()
    device = _device(args.gpu if given is None else ranks.local)
    options = _options(args, ranks, device)
    if given is not None:
        _join(args, ranks, device)
    say = _say if ranks.rank == 0 else _silent
    if args.backend in ("auto", "cupti") and not args.evaluate:
        roofprobe.prepare(metrics=args.metrics, device=device)
    imagenet.configure(options)
    if args.seed_chosen:
        say(
            f"=> --verify-ncu: seed {args.seed} for this run and for those under ncu, with "
            "repeatable algorithms; --seed takes another one"
        )
    saved = None
    try:
        trainer = imagenet.Trainer(options, device, ranks)
        trainer.epoch = args.start_epoch
        if args.resume is not None:
            trainer.restore(args.resume)
            say(f"=> {args.resume}: going on from epoch {trainer.epoch}")
        if args.evaluate:
            batches = imagenet.val_batches(options, trainer.image_size, device, ranks)
            _validate(trainer, batches, args.steps, args.print_freq, say)
        else:
            saved = _train(args, trainer, device, ranks, say, signals)
    except (RuntimeError, ValueError) as error:
        why = _failure(error, options, device)
        if why is None:
            raise
        raise RoofprobeError(why) from None
    if given is not None:
        torch.distributed.destroy_process_group()
    return saved


def _failure(error: Exception, options: "Options", device: "torch.device") -> str | None:
    """What an error of PyTorch's means for who typed the command; None where we cannot say."""
    import torch

    text = _sentence(error)
    size = options.batch_size
    needed = ("allocate memory", "Storage size calculation overflowed")
    if isinstance(error, torch.OutOfMemoryError) or any(part in text for part in needed):
        return f"out of memory on {device} with {size} images a step: use a smaller --batch-size"
    if text.startswith("Expected more than 1 value per channel when training"):
        # Batch normalisation of one pixel per image has nothing to average over.
        return f"{options.arch} needs more than {size} image a step: use a larger --batch-size"
    if isinstance(error, torch.distributed.DistError) or "gloo" in text:
        # Without the line of gloo's source in front, and without its advice.
        reason = re.sub(r"^\[.*?\] ", "", text).splitlines()[0].split(". ")[0]
        return (
            f"another process of this run ended or did not answer in time ({reason}): see what "
            "that one printed"
        )
    if text.startswith("DataLoader worker"):
        return f"a loader process died: {text.rstrip('. ')}; with -j 0 there are none"
    return None


def _verify(saved: Path | None, args: argparse.Namespace, given: Sequence[str]) -> int:
    """Runs the same command line under ncu; the run file is already written."""
    if saved is None:
        raise RoofprobeError("--verify-ncu: nothing was measured that could be compared")
    import torch

    from roofprobe.cli.verify import verify_file
    from roofprobe.verify import require_comparable

    require_comparable(roofprobe.Measurement.load(saved))

    # The same model comes again, beside what this process still holds.
    gc.collect()
    torch.cuda.empty_cache()
    seed = ["--seed", str(args.seed)] if args.seed_chosen else []
    # In front, since what follows two dashes is no option.
    ours = ["--out", str(saved.parent), *seed]
    command = [sys.executable, "-m", PROG, *ours, *_without_verify(given)]
    try:
        return verify_file(saved, command)
    except UsageError as error:  # about ncu, and this program has no --ncu
        raise UsageError(
            f"{error}; the measurement is saved, and this compares it without measuring again: "
            f"roofprobe verify {shlex.quote(str(saved))} --ncu PATH -- {shlex.join(command)}"
        ) from None


def _without_verify(given: Sequence[str]) -> list[str]:
    """The command line without --verify-ncu, which may be shortened, as --verify."""
    return [
        argument
        for argument in given
        if len(argument) <= len("--") or not "--verify-ncu".startswith(argument)
    ]


def _train(
    args: argparse.Namespace,
    trainer: "Trainer",
    device: "torch.device",
    ranks: "Ranks",
    say: Say,
    signals: _Signals,
) -> Path | None:
    from roofprobe import imagenet

    options = trainer.options
    last = args.epochs or (EPOCHS if args.steps == 0 else trainer.epoch + 1)
    if trainer.epoch >= last:
        raise UsageError(
            f"--epochs {last} leaves nothing to train: the run starts at epoch {trainer.epoch}"
        )
    data = (options, trainer.image_size, device, ranks)
    batches = imagenet.train_batches(*data)
    limit = None if args.steps is None else min(args.steps or len(batches), len(batches))
    # An epoch that is cut short is for measuring: it is neither validated nor saved.
    val = imagenet.val_batches(*data) if limit == len(batches) else None
    base, folder = _folders(args, ranks)
    say(f"=> {options.arch}, {options.batch_size} images a step, on {device}")
    unsaved: RoofprobeError | None = None
    with _Region(args, trainer, device, ranks, folder, say, signals) as region:
        while trainer.epoch < last and unsaved is None:
            _train_epoch(trainer, batches, limit, region, args.print_freq, say)
            trainer.end_epoch()
            if limit is None:
                break
            if val is not None:
                scores = _validate(trainer, val, 0, args.print_freq, say)
                if ranks.rank == 0:
                    try:
                        say(f"=> {trainer.save(base, scores.acc1)}")
                    except RoofprobeError as error:  # raised when the table has been printed
                        say(f"=> no checkpoint, so the run ends here: {error}")
                        unsaved = error
    if limit is None and trainer.epoch < last:
        say("=> measured, so the run ends here; --steps 0 trains whole epochs")
    region.report()
    if unsaved is not None:
        raise unsaved
    return region.saved


def _train_epoch(
    trainer: "Trainer",
    batches: "Batches",
    limit: int | None,
    region: "_Region",
    print_freq: int,
    say: Say,
) -> None:
    from roofprobe import imagenet

    trainer.start_epoch(batches)
    source = imagenet.endless(batches) if limit is None else islice(batches, limit)
    total = limit or len(batches)
    printed, since = -1, time.perf_counter()
    for index, (images, targets) in enumerate(source):
        with region.step():
            output = trainer.step(images, targets)
        region.loss = output.loss
        # Scores are computed and read here, outside the step: computing them is no part of
        # training and would be counted, and reading them makes the CPU wait for the GPU, which
        # would leave a gap in the step that no step without a line has.
        if index % print_freq == 0 and not region.tracing:
            scores = imagenet.Scores.of(output.sums())
            now = time.perf_counter()
            pace = (now - since) / (index - printed)
            say(f"Epoch [{trainer.epoch}][{index}/{total}]  Time {pace:.4f} s  {scores}")
            printed, since = index, now
        if limit is None and region.over_everywhere():
            return


def _validate(
    trainer: "Trainer", batches: "Batches", steps: int | None, print_freq: int, say: Say
) -> "Scores":
    from roofprobe.imagenet import Scores

    total = min(steps or len(batches), len(batches))

    def watch(index: int, sums: "torch.Tensor") -> None:
        if index % print_freq == 0:
            say(f"Test [{index}/{total}]  {Scores.of(sums)}")

    scores = trainer.evaluate(islice(batches, total), watch)
    say(f"=> validated: {scores}")
    return scores


class _Region:
    """The measured steps; ends, and saves, as soon as everything is measured or the run ends.

    Attributes:
        closed: True once it has ended; steps are then plain steps.
        over: True once it has ended and no other profiler waits for steps to look at.
        tracing: True while a step's kernels are recorded.
        loss: Of the latest step, on the device.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        trainer: "Trainer",
        device: "torch.device",
        ranks: "Ranks",
        folder: Path,
        say: Say,
        signals: _Signals,
    ) -> None:
        from roofprobe.imagenet import Agreement

        options = trainer.options
        self.closed = False
        self.tracing = False
        self.loss: torch.Tensor | None = None
        self._folder = folder
        self._say = say
        self._signals = signals
        self._rank = ranks.rank
        self._save_image = args.save_image
        self._result: roofprobe.Measurement | None = None
        self._files: list[Path] = []
        self._unsaved: RoofprobeError | None = None
        self._cuda = device.type == "cuda"
        self._bracketed = False
        self._steps = args.steps
        alone = ranks.world == 1 or args.steps is not None
        self._agreement = None if alone else Agreement()
        self._left_to_others = 0  # plain steps that another profiler's region still covers
        # A CPU step is long and alike to the next: ResNet-18 at batch 256 takes 20 s on two cores.
        warmup, timed = (5, 10) if self._cuda else (1, 2)
        self._measure = roofprobe.measure(
            _name(options),
            metrics=args.metrics,
            warmup=warmup if args.warmup is None else args.warmup,
            timed=timed,
            rounds=args.rounds,
            device=device,
            backend=args.backend,
            workload=_workload(options, ranks),
            progress=self._on_progress,
            by=args.by,
            model=trainer.model,
            witness=args.witness,
        )
        self._trainer = trainer
        self._by = args.by

    def __enter__(self) -> "_Region":
        self._probe = self._measure.__enter__()
        if self._by != BY[0]:
            self._trainer.phase = self._probe.range
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._signals.held = True
        if not self.closed:
            self._close(kind, error, trace)
        if error is not None:
            self._say_what_is_kept()

    def _say_what_is_kept(self) -> None:
        if self._files:
            complain(f"{PROG}: what had been measured is in {self._files[0]}")
        elif self._unsaved is not None:
            complain(f"{PROG}: what had been measured is lost: {self._unsaved}")
        elif not external.requested():
            complain(f"{PROG}: nothing is kept: the run ended before anything was measured")

    @contextmanager
    def step(self) -> Iterator[None]:
        """Its body is one training step, measured while there is something left to measure."""
        self._signals.watch_loaders()
        self._signals.check()
        if self.closed:
            yield
            if self._left_to_others:
                self._left_to_others -= 1
                if not self._left_to_others:
                    self._unbracket()
            return
        with self._probe.step():
            yield
        if self._probe.done:
            bracketed = self._bracketed
            self._close()
            self._signals.check()
            if self._probe.refusal is not None:
                self._go_on(self._probe.refusal, bracketed)

    @property
    def saved(self) -> Path | None:
        """The run file, once there is one."""
        return self._files[0] if self._files else None

    @property
    def over(self) -> bool:
        return self.closed and not self._left_to_others

    def over_everywhere(self) -> bool:
        """``over`` in all processes of the run.

        How many steps each needs follows its own clock and what its GPU refuses. One that ended
        by itself would leave the others waiting for its gradients.
        """
        return self.over if self._agreement is None else self._agreement.of_all(self.over)

    def _go_on(self, refusal: CountersBusyError, bracketed: bool) -> None:
        """Without counters: under ncu or nsys they are not ours, and that is intended.

        The region that those look at is then a plain step, or as many as --steps asks for.
        """
        complain(f"{PROG}: training goes on without counters: {refusal}")
        if self._cuda and not bracketed:
            self._bracket()
            self._left_to_others = self._steps or 1

    def report(self) -> None:
        """Draws the plot, prints the table, and last the files written.

        Raises:
            RecordError: the run file could not be written; all else has been done.
        """
        if self._result is None:
            return
        try:
            self._signals.check()
            self._report(self._result)
        except BaseException:
            self._say_what_is_kept()
            raise
        if self._unsaved is not None:
            raise self._unsaved

    def _report(self, result: "roofprobe.Measurement") -> None:
        from roofprobe import report

        if not self._cuda:
            # No data sheet gives a CPU's roofs, so they are measured, now that it is idle.
            from roofprobe.ceilings import measure_cpu_roofs

            self._say("=> measuring the roofs of this CPU")
            result = dataclasses.replace(result, roofs=measure_cpu_roofs())
            self._write(result)
        self._say("\n" + report.text(result))
        try:
            self._files.append(report.save_plot(result, self._folder / "roofline.png"))
            if self._by in ("phase", "layer"):
                _require_counted_parts(result)
                picture = self._folder / f"{self._by}s.png"
                self._files.append(report.save_layered_plot(result, picture))
        except RoofprobeError as error:
            self._say(f"no plot: {error}")
        for path in self._files:
            _say(str(path))

    def _on_progress(self, event: "roofprobe.Progress") -> None:
        self.tracing = event.phase in ("kernels", "labels")
        if event.phase == "timing" and event.index == 1:
            # From after the warm-up on, for ``ncu --profile-from-start off``.
            self._bracket()
        if event.phase == "plan":
            self._say(f"=> {event.message}")
        elif event.phase == "pass":
            # NVML GPM takes hundreds of steps; a line for each would bury the rest.
            stride = -(-event.total // _LINES)
            if event.index % stride == 0:
                self._say(f"=> pass {event.index} of {event.total}")
        elif event.phase in _PHASES and event.index == 1:
            steps = "1 step" if event.total == 1 else f"{event.total} steps"
            self._say(f"=> {_PHASES[event.phase]}: {steps}")

    def _close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        with self._signals.waiting():
            self.closed = True
            try:
                self._unbracket()  # fails where the GPU is lost
            finally:
                try:
                    self._measure.__exit__(kind, error, trace)
                finally:
                    self._save(interrupted=error is not None or self._probe.refusal is not None)

    def _bracket(self) -> None:
        # Where verify counts from outside, the measured step alone is marked, by its backend.
        if self._cuda and not external.requested():
            import torch

            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            self._bracketed = True

    def _unbracket(self) -> None:
        if self._bracketed:
            import torch

            torch.cuda.synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
            self._bracketed = False

    def _diverged(self) -> bool:
        import torch

        return self.loss is not None and not bool(torch.isfinite(self.loss))

    def _save(self, interrupted: bool) -> None:
        try:
            result = self._probe.result
        except UsageError:
            self._unsaved = RoofprobeError("no record could be built of it")
            return
        if interrupted and (external.requested() or (result.timing is None and not result.rounds)):
            return
        if not interrupted and self._diverged():
            result = dataclasses.replace(result, warnings=(*result.warnings, _DIVERGED))
        self._result = result
        self._write(result)
        if self._save_image:
            try:
                self._files.append(self._probe.save_counter_data(self._folder / "run.counters"))
            except (UsageError, RecordError) as error:
                self._say(f"no counter data: {error}")

    def _write(self, result: "roofprobe.Measurement") -> None:
        try:
            path = result.save(self._folder / "run.json")
        except RecordError as error:  # told last, when the table has been printed
            self._unsaved = error
            return
        self._unsaved = None
        if path not in self._files:
            self._files.append(path)


# -- Details ------------------------------------------------------------------------------


def _torchrun(args: argparse.Namespace, environ: Mapping[str, str]) -> "Ranks | None":
    """This process' place as torchrun set it; None without torchrun."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        if args.verify_ncu:
            raise UsageError(
                "--verify-ncu starts the program anew, which no process under torchrun can: use "
                f"roofprobe verify RUN.json -- torchrun ... -m {PROG} ..."
            )
        if args.gpu is not None:
            raise UsageError("--gpu is not for torchrun, which gives every process its own GPU")
        return _ranks(environ)
    if args.multiprocessing_distributed or args.rank is not None or args.world_size is not None:
        raise UsageError(
            "processes are started by torchrun: torchrun --nproc-per-node GPUS -m "
            f"{PROG} ..., instead of --multiprocessing-distributed, --rank and --world-size"
        )
    return None


def _ranks(environ: Mapping[str, str]) -> "Ranks":
    from roofprobe.imagenet import Ranks

    rank, world = environ["RANK"], environ["WORLD_SIZE"]
    local = environ.get("LOCAL_RANK", rank)
    local_world = environ.get("LOCAL_WORLD_SIZE", world)
    with suppress(ValueError):
        found = Ranks(int(rank), int(local), int(world), int(local_world))
        if 0 <= found.rank < found.world and 0 <= found.local < found.local_world <= found.world:
            return found
    raise UsageError(
        f"the environment has RANK={rank}, LOCAL_RANK={local}, WORLD_SIZE={world} and "
        f"LOCAL_WORLD_SIZE={local_world}, which are no place among processes: start them with "
        "torchrun, or unset RANK for a run of one process"
    )


def _device(index: int | None) -> "torch.device":
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        return torch.device("cpu")
    if (index or 0) >= count:
        raise UsageError(f"there is no GPU {index}: PyTorch finds {count}, counted from 0")
    torch.cuda.set_device(index or 0)
    return torch.device("cuda", index or 0)


def _options(args: argparse.Namespace, ranks: "Ranks", device: "torch.device") -> "Options":
    """What this process trains; refuses what the device cannot do."""
    from roofprobe.imagenet import Options

    if device.type == "cpu":
        if args.gpu is not None:
            raise UsageError(f"--gpu {args.gpu}: PyTorch finds no GPU; leave it out for the CPU")
        if args.amp == "fp16":
            raise UsageError("--amp fp16 needs a GPU, because loss scaling does: use --amp bf16")
        if args.verify_ncu:
            raise UsageError("--verify-ncu needs an NVIDIA GPU: there are no counters to compare")
        if args.by == "kernel":
            raise UsageError("--by kernel needs an NVIDIA GPU: use --by layer or --by phase")
        if args.backend in ("cupti", "gpm"):
            raise UsageError(
                f"--backend {args.backend} needs an NVIDIA GPU: use --backend analytic"
            )
    share, rest = divmod(args.batch_size, ranks.local_world)
    if rest or not share:
        raise UsageError(
            f"--batch-size {args.batch_size} cannot be shared by {ranks.local_world} processes: "
            "use a multiple of that"
        )
    cores = os.cpu_count() or 1
    if args.workers > _WORKERS_A_CORE * cores:
        raise UsageError(
            f"--workers {args.workers} are more loader processes than a machine of {cores} cores "
            f"and its memory hold: use {_WORKERS_A_CORE * cores} or fewer, best one a core"
        )
    same = {field.name for field in dataclasses.fields(Options)} & vars(args).keys()
    chosen = {name: getattr(args, name) for name in same}
    workers = -(-args.workers // ranks.local_world)
    return Options(**{**chosen, "batch_size": share, "workers": workers})


def _join(args: argparse.Namespace, ranks: "Ranks", device: "torch.device") -> None:
    import torch

    backend = args.dist_backend or ("nccl" if device.type == "cuda" else "gloo")
    try:
        torch.distributed.init_process_group(
            backend, init_method=args.dist_url, rank=ranks.rank, world_size=ranks.world
        )
    except (ValueError, RuntimeError, AssertionError) as error:  # the last for unknown backends
        raise RoofprobeError(
            f"process {ranks.rank} could not join the others through {args.dist_url} with "
            f"{backend}: {_sentence(error)}"
        ) from None


def _folders(args: argparse.Namespace, ranks: "Ranks") -> tuple[Path, Path]:
    """The run's folder, and this process' own in it; they exist and can be written to."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = args.out or Path("runs", f"{args.arch}-b{args.batch_size}-{stamp}")
    own = base
    if ranks.world > 1:
        import torch

        # Clocks differ: the first process' time names the folder of all.
        shared = [str(base)]
        torch.distributed.broadcast_object_list(shared, src=0)
        base = Path(shared[0])
        own = base / f"rank{ranks.rank}"
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RoofprobeError(f"--out {own} cannot be made: {error.strerror}") from None
    try:
        tempfile.TemporaryFile(dir=own).close()
    except OSError as error:
        raise RoofprobeError(f"--out {own} cannot be written to: {error.strerror}") from None
    return base, own


def _name(options: "Options") -> str:
    """What tells this run from others of the same model, for titles."""
    tf32 = {True: "TF32", False: "no TF32"}  # titles go on with "on" and the device
    parts = [
        f"{options.arch} batch {options.batch_size}",
        options.amp,
        tf32[options.tf32] if options.tf32 is not None else None,
        "channels-last" if options.channels_last else None,
        "compiled" if options.compile else None,
    ]
    return ", ".join(part for part in parts if part)


def _require_counted_parts(result: "roofprobe.Measurement") -> None:
    """Says why a run that was asked for parts has no counts of them; they cannot be drawn then."""
    regions = result.regions
    if regions is None or not any(segment.counters for segment in regions.segments):
        why = result.notes.get("parts", "the run ended before they were counted")
        raise RoofprobeError(f"there is none of the step's parts: {why}")


def _workload(options: "Options", ranks: "Ranks") -> dict[str, str | int | float | bool | None]:
    """The facts of a run that its record keeps."""
    from roofprobe.environment import printable

    facts = dataclasses.asdict(options)
    facts["data"] = printable(options.data or "dummy")
    return {**facts, "optimizer": "SGD", "rank": ranks.rank, "world_size": ranks.world}


def _sentence(error: BaseException) -> str:
    """An error's own sentence; from a loader process it comes as the end of a traceback."""
    text = str(error).strip()
    return re.sub(r"^[\w.]+: ", "", text.splitlines()[-1]) if "Traceback" in text else text


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:  # a full disk or a reader that left costs no measurement
        complain(
            f"{PROG}: standard output cannot be written to ({error.strerror}); the rest is here"
        )
        sys.stdout = sys.stderr
        complain(line)


def _silent(line: str) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
