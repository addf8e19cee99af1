"""Measuring a region of steps: ``measure`` around a loop, ``measure_step`` for a callable.

Steps are used up in a fixed order: warm-up; unprofiled steps that are timed; where parts of a step
are asked for, steps on which they are labelled; one step for each pass of each round, with
counters; the same again with counters by part; steps on which kernels are traced; where a witness
is asked for, one step under the analytic model. Counters are attached only while counting.
"""

import ctypes
import functools
import gc
import operator
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NoReturn, ParamSpec, TypeVar

import torch

from roofprobe import activity, ceilings, coverage, environment, metrics
from roofprobe.breakdown import Breakdown, check_range_name
from roofprobe.counters import (
    CounterBackend,
    Plan,
    RoundCounters,
    counts_regions,
    external,
    retries,
)
from roofprobe.eager import with_sass_of
from roofprobe.errors import (
    CountersBusyError,
    CuptiError,
    HardwareBusyError,
    MeasurementActiveError,
    RoofprobeError,
    UnknownMetricError,
    UsageError,
)
from roofprobe.kernel_names import brief, demangled
from roofprobe.metrics import named, require_levels
from roofprobe.modelled import ModelOfStep
from roofprobe.record import (
    Clocks,
    KernelTimes,
    Measurement,
    Modelled,
    Regions,
    Round,
    Scalar,
    Timing,
    storable,
)
from roofprobe.regions import BY, By
from roofprobe.timing import implausible, step_timer

P = ParamSpec("P")
T = TypeVar("T")

Phase = Literal["warmup", "plan", "timing", "labels", "pass", "kernels", "witness", "done"]

# Traced steps; their kernel times are averaged. Two show a step that is not like the others.
_TRACED_STEPS: Final = 2


# Steps alike repeat their FLOP but for what follows the data, as max-pooling's kernels do.
_SAME_FLOP: Final = 0.02
_UNLIKE: Final = "warm up for longer (autotuning, recompiling), and let every step do the same work"

_active = threading.Lock()  # held by the one measurement that may run in a process
_running: "Probe | None" = None


def _let_go() -> None:
    """In a forked child, a measurement stays the parent's: nothing here may count or close it."""
    global _active, _running
    _active = threading.Lock()
    if _running is not None:
        _running._let_go()
        _running = None


def _note_fork() -> None:
    if _running is not None:
        _running._note_fork()


os.register_at_fork(before=_note_fork, after_in_child=_let_go)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a measurement is: step ``index`` (from 1) of ``total`` in ``phase``."""

    phase: Phase
    index: int
    total: int
    message: str = ""


ProgressCallback = Callable[[Progress], None]


class _Once(AbstractContextManager[T]):
    """A context manager for one ``with``, which says what to do where it is used otherwise.

    Args:
        inner: What it stands for.
        again: What to do instead of a second ``with``.
    """

    def __init__(self, inner: AbstractContextManager[T], again: str) -> None:
        self._inner = inner
        self._again = again
        self._entered = False

    def __enter__(self) -> T:
        if self._entered:
            raise UsageError(self._again)
        self._entered = True
        return self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._inner.__exit__(kind, error, trace)

    if not TYPE_CHECKING:  # a type checker says by itself that there is no such attribute

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(Probe, name) or name in ("name", "done", "refusal"):
                raise UsageError(
                    f"{name} belongs to the probe, which the with-block gives: write 'with "
                    f"roofprobe.measure(...) as probe:' and use probe.{name} in it"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _for_one_with(again: str) -> Callable[[Callable[P, Iterator[T]]], Callable[P, _Once[T]]]:
    """As ``contextmanager``, for a ``_Once``."""

    def decorated(function: Callable[P, Iterator[T]]) -> Callable[P, _Once[T]]:
        managed = contextmanager(function)

        @functools.wraps(function)
        def made(*args: P.args, **kwargs: P.kwargs) -> _Once[T]:
            return _Once(managed(*args, **kwargs), again)

        return made

    return decorated


class Probe:
    """One measurement. Made by ``measure``; used inside its ``with`` block.

    Attributes:
        name: The region's name.
        done: True once everything has been measured; further steps run unmeasured.
        refusal: Why there are no counters although the steps went on: another profiler has them.
    """

    def __init__(
        self,
        name: str,
        backends: Sequence[CounterBackend],
        device: torch.device,
        *,
        request: str | Iterable[str],
        levels: Sequence[metrics.Level],
        warmup: int,
        timed: int,
        rounds: int,
        kernels: bool,
        workload: Mapping[str, Scalar],
        progress: ProgressCallback | None,
        breakdown: Breakdown | None = None,
        witness: bool = False,
    ) -> None:
        self.name = name
        self.done = False
        self.refusal: CountersBusyError | None = None
        self._backend, *self._others = backends
        self._device = device
        self._request = request
        self._levels = levels
        self._warmup = warmup
        self._timed = timed
        self._round_count = rounds
        self._traced = _TRACED_STEPS if kernels and device.type == "cuda" else 0
        self._workload = dict(workload)
        self._progress = progress or (lambda event: None)
        self._breakdown = breakdown
        self._labelled = 0 if breakdown is None else max(1, self._traced)
        self._witness = witness

        self._complete = False
        self._forked = False  # True in a child of the process that measures
        self._steps_run = 0
        self._in_step = False
        self._profiler_seen = False
        self._passes_run = 0
        self._retried = 0  # passes that the first round took beyond its plan
        self._before_retry: tuple[float, ...] = ()  # durations of the passes before them
        self._attached = False  # a session is open
        self._requests: list[int] = []  # for memory, of each counted step
        self._part_plan: Plan | None = None
        self._timing: Timing | None = None
        self._between: float | None = None  # median wall clock between timed steps, s
        self._clocks: Clocks | None = None
        self._kernels: KernelTimes | None = None
        self._modelled: Modelled | None = None
        self._collected: list[tuple[RoundCounters, tuple[float, ...]]] = []
        self._overhead: dict[str, float] = {}
        self._notes: dict[str, str] = {}
        self._warnings: list[str] = []
        self._result: Measurement | None = None
        self._preparer = ThreadPoolExecutor(1, thread_name_prefix="roofprobe-prepare")
        self._prepared: Future[Plan] = self._preparer.submit(self._prepare_any)
        self._script = self._run()
        next(self._script)

    # -- What the user calls --------------------------------------------------------------

    def steps(self, iterable: Iterable[T]) -> Iterator[T]:
        """Yields every element; what the loop's body does with one is one step.

        The loop is not cut short when the measurement is complete: ask ``done`` for that. A
        ``break`` before that leaves a step unfinished, which ends the measurement with what it has.
        """
        for item in iterable:
            with self.step():
                yield item

    @_for_one_with("one probe.step() is one step: call probe.step() anew for each")
    def step(self) -> Iterator[None]:
        """The body is one step, for loops that ``steps`` cannot wrap."""
        if self._in_step:
            raise UsageError("a step was begun inside a step: end the first before the next begins")
        if self.done:
            yield
            return
        self._in_step = True
        try:
            self._advance()
            yield
            if not self._forked:
                self._steps_run += 1
                self._advance()
        except BaseException:
            # Whatever went wrong in the step, no session may stay open.
            self._abandon()
            raise
        finally:
            self._in_step = False

    @property
    def steps_needed(self) -> int:
        """Steps that the whole measurement takes, or probably takes. Waits for the plan."""
        counted = self._counted_steps(self._plan()) + self._steps_by_part
        others = self._labelled + self._traced + self._model_steps
        return self._warmup + self._timed + counted + others

    @property
    def _steps_by_part(self) -> int:
        """Steps that are counted by part; until the whole step is known, at most so many."""
        if not self._counts_parts:
            return 0
        return self._counted_steps(self._part_plan or self._plan())

    @property
    def _counts_parts(self) -> bool:
        wanted = self._breakdown is not None and self._breakdown.counts
        return wanted and counts_regions(self._backend)

    @property
    def _model_steps(self) -> int:
        """Steps under the analytic model; none where that is what counts, or nothing here does."""
        elsewhere = self._backend.source in ("analytic", external.SOURCE)
        return int(self._witness and not elsewhere)

    def range(self, name: str) -> AbstractContextManager[None]:
        """A part of the step: ``with probe.range("attention"):``. Ranges may lie in one another.

        What runs within it counts under its name; the backward pass of what is in it does not,
        unless a range is open around that. Needs ``measure(by=...)``.

        Args:
            name: Not empty, without ``/``.
        """
        check_range_name(name)
        if self._breakdown is None:
            self._warn_once(
                "probe.range() was used, and whole steps were asked for: pass by='phase' to "
                "measure()"
            )
            return nullcontext()
        if not (self._in_step or self.done):
            self._warn_once(
                f"probe.range({name!r}) was opened between steps, where nothing is counted: open "
                "it within the step, inside the loop's body"
            )
        return self._breakdown.range(name)

    @property
    def result(self) -> Measurement:
        """The record.

        Raises:
            UsageError: the ``with`` block of ``measure`` has not ended yet.
        """
        self._require_own()
        if self._result is None:
            raise UsageError("the result exists once the with-block of measure() has ended")
        return self._result

    def save_counter_data(self, path: str | os.PathLike[str]) -> Path:
        """Writes the raw counter-data images, from which any machine gets the same values again.

        Raises:
            UsageError: there are none: not counted by CUPTI, or no round was completed.
        """
        from roofprobe.counters.recorded import CounterFile

        images = [counts.image for counts, _ in self._collected if counts.image is not None]
        if not images and self._backend.source in ("analytic", "gpm", external.SOURCE):
            raise UsageError(
                f"{self.name!r} has no counter data to save: backend {self._backend.source} keeps "
                "none, only backend cupti does"
            )
        if not images or self._backend.chip is None:
            raise UsageError(
                f"{self.name!r} has no counter data to save: backend {self._backend.source} "
                f"completed {len(images)} rounds with CUPTI"
            )
        plan = self._plan()
        whole = CounterFile(self._backend.chip, plan.metrics, plan.passes, tuple(images))
        if self._breakdown is not None:
            whole = replace(
                whole,
                labels=self._breakdown.labels,
                part_metrics=self._part_plan.metrics if self._part_plan is not None else (),
                parts=tuple(self._breakdown.images),
            )
        return whole.save(path)

    # -- The order of things --------------------------------------------------------------

    def _run(self) -> Generator[None, None, None]:
        """Every ``yield`` hands over to the user: in turn between steps and inside one."""
        for index in range(self._warmup):
            yield
            if self._prepared.done():  # the price, or a refusal, before more steps are spent
                self._await_plan()
            self._report("warmup", index + 1, self._warmup)
            yield
        self._await_plan()
        try:
            if self.refusal is None:
                yield from self._measure()
        except CountersBusyError as error:
            self._refuse(error)
        self._report("done", 1, 1)

    def _measure(self) -> Generator[None, None, None]:
        yield from self._time_steps()
        if self._breakdown is not None:
            yield from self._label_steps(self._breakdown)
        yield from self._count_steps()
        if self._breakdown is not None and self._counts_parts:
            yield from self._count_regions(self._breakdown)
        if self._traced:
            yield from self._trace_steps()
        if self._model_steps:
            yield from self._model_step()

    def _time_steps(self) -> Generator[None, None, None]:
        timer = step_timer(self._device)
        ended: list[float] = []
        between: list[float] = []
        began = time.perf_counter()
        with environment.sampled_clocks(self._device) as clocks:
            for index in range(self._timed):
                yield
                between += [time.perf_counter() - before for before in ended[-1:]]
                self._report("timing", index + 1, self._timed)
                timer.begin()
                yield
                timer.end()
                ended.append(time.perf_counter())
            timing = timer.result()
        why = implausible(timing, time.perf_counter() - began)
        if why is None:
            self._timing = timing
        else:
            self._notes["timing"] = why
            self._warnings.append(f"step times are left out: {why}")
        self._between = median(between) if between else None
        self._clocks = clocks[0] if clocks else None

    def _label_steps(self, breakdown: Breakdown) -> Generator[None, None, None]:
        tracer = self._tracer(detailed=True) if self._traced else None
        started = time.perf_counter()
        try:
            for index in range(self._labelled):
                yield
                self._report("labels", index + 1, self._labelled)
                if tracer is not None:
                    self._start_tracer(tracer)
                with breakdown.labelled(tracer):
                    yield
                if tracer is not None:
                    tracer.stop()
        finally:
            if tracer is not None:
                tracer.stop()
        traces: Sequence[activity.Trace] = ()
        if tracer is not None and "kernels" not in self._notes:
            try:
                traces = tracer.steps
            except RoofprobeError as error:
                self._notes["parts"] = str(error)
        breakdown.settle(traces)
        self._note_overhead("labels", started, self._labelled)

    def _count_steps(self) -> Generator[None, None, None]:
        def collect(durations: tuple[float, ...]) -> None:
            self._collected.append((self._backend.collect(), durations))

        @contextmanager
        def counted() -> Iterator[None]:
            self._backend.begin_pass()
            yield

        def attach() -> Plan:
            self._open_any()
            return self._plan()

        yield from self._count("passes", attach, counted, collect)

    def _count_regions(self, breakdown: Breakdown) -> Generator[None, None, None]:
        backend = self._backend
        assert counts_regions(backend)

        # What the whole step has none of, none of its parts has: most kinds of tensor operations,
        # each of which would take a pass.
        values = {name: self._collected[-1][0].values.get(name) for name in self._plan().metrics}
        some = [name for name, value in values.items() if value != 0] or list(values)
        none = [name for name in values if name not in some]

        def collect(_: tuple[float, ...]) -> None:
            for name, reason in breakdown.collect(backend, none).items():
                self._notes[f"parts: {name}"] = reason

        def attach() -> Plan:
            self._part_plan = backend.prepare(some)
            breakdown.open(backend)
            return self._part_plan

        def counted() -> AbstractContextManager[None]:
            return breakdown.counted(backend)

        yield from self._count("passes by part", attach, counted, collect)

    def _count(
        self,
        what: str,
        attach: Callable[[], Plan],
        counted: Callable[[], AbstractContextManager[None]],
        collect: Callable[[tuple[float, ...]], None],
    ) -> Generator[None, None, None]:
        """Rounds of passes.

        Args:
            what: What their price is called in the record.
            attach: Opens the backend and says what it will count.
            counted: Begins a pass; left when its step has been issued.
            collect: Takes in a round, with the seconds of its passes.
        """
        started = time.perf_counter()
        steps, spent = 0, 0.0
        try:
            self._attached = True
            plan = attach()
            self._add_overhead("open", time.perf_counter() - started)
            total = self._counted_steps(self._plan()) + self._steps_by_part
            for _ in range(self._round_count):
                durations: list[float] = []
                submitted = False
                while not submitted:
                    if len(durations) == plan.passes and plan.retry:
                        self._retried = plan.retry
                        self._before_retry = tuple(durations)
                    most = plan.passes + plan.retry
                    if len(durations) == most and not plan.window:
                        raise CuptiError(
                            f"{most} passes were scheduled and have run, but CUPTI asks for "
                            "more: measure again, with fewer metrics if it persists"
                        )
                    yield
                    steps += 1
                    index = self._passes_run + steps
                    self._report("pass", index, max(index, total))
                    requested = self._memory_requests()
                    started = time.perf_counter()
                    with counted():
                        self._profiler_seen |= torch._C._autograd._profiler_enabled()
                        yield
                    submitted = self._backend.end_pass()
                    durations.append(time.perf_counter() - started)
                    if not plan.window:  # a window's steps are averaged, and its first is watched
                        self._note_requests(requested)
                spent += sum(durations)
                started = time.perf_counter()
                collect(tuple(durations))
                self._add_overhead("collect", time.perf_counter() - started)
        finally:
            started = time.perf_counter()
            self._backend.close()
            self._attached = False
            self._add_overhead("close", time.perf_counter() - started)
        self._passes_run += steps
        if self._timing is not None:
            self._overhead[what] = spent - steps * self._timing.median

    def _trace_steps(self) -> Generator[None, None, None]:
        tracer = self._tracer()
        started = time.perf_counter()
        try:
            for index in range(self._traced):
                yield
                self._report("kernels", index + 1, self._traced)
                self._start_tracer(tracer)
                yield
                tracer.stop()
        finally:
            tracer.stop()
        if "kernels" not in self._notes:
            try:
                self._kernels = tracer.result()
                self._warn_of_different(tracer.steps)
            except RoofprobeError as error:
                self._notes["kernels"] = str(error)
        self._note_overhead("kernels", started, self._traced)

    def _model_step(self) -> Generator[None, None, None]:
        yield
        self._report("witness", 1, 1)
        self._notes["witness"] = "the step under the analytic model did not come to its end"
        self._synchronize()
        started = time.perf_counter()
        model = ModelOfStep()
        model.begin()
        try:
            yield
        finally:
            model.end()
        self._synchronize()
        self._note_overhead("witness", started, 1)
        self._modelled = model.result
        if model.error is None:
            del self._notes["witness"]
        else:
            self._notes["witness"] = f"the analytic model failed on the step: {model.error!r}"

    def _tracer(self, *, detailed: bool = False) -> activity.KernelTracer:
        # Where PyTorch sees one device there is nothing to tell apart.
        device = self._device.index if torch.cuda.device_count() > 1 else None
        # Other backends read what the device did, in whatever context.
        counted = self._device.index if self._backend.source == "cupti" else None
        return activity.KernelTracer(
            self._synchronize, device=device, counted=counted, detailed=detailed
        )

    def _warn_of_different(self, steps: Sequence[activity.Trace]) -> None:
        name = activity.different_kernels(steps)
        if name is not None:
            self._warnings.append(
                f"two steps in a row did not run the same kernels (the first that differs is "
                f"{brief(demangled(name))}), so passes are of steps with different work: {_UNLIKE}"
            )

    def _start_tracer(self, tracer: activity.KernelTracer) -> None:
        # Inside torch.profiler, a second user of CUPTI's activity buffers hangs the process.
        if self._profiler_holds_records():
            self._profiler_seen = True
            self._notes["kernels"] = "a PyTorch profiler is active and holds the kernel records"
            return
        try:
            tracer.start()
        except RoofprobeError as error:
            self._notes["kernels"] = str(error)

    def _profiler_holds_records(self) -> bool:
        if torch._C._autograd._profiler_enabled():
            return True
        # In the warm-up of its schedule PyTorch does not call it enabled, yet it traces already,
        # which takes every SASS counter to 0. Only then is it worth looking for.
        if not self._collected:
            return _profiler_warms_up()
        counted = self._collected[-1][0].values
        judged = coverage.judge(counted, None, profiler_active=False)
        return (judged is None or judged.instrumented == 0) and _profiler_warms_up()

    # -- Preparing ------------------------------------------------------------------------

    def _prepare_any(self) -> Plan:
        """The plan of the first backend that is not refused."""
        while True:
            try:
                return self._prepare()
            except (CuptiError, UnknownMetricError) as error:
                self._fall_back(error)

    def _open_any(self) -> None:
        """Opens the backend, or the next where a session is refused."""
        while True:
            try:
                return self._backend.open()
            except CuptiError as error:
                self._backend.close()
                self._fall_back(error)
                self._prepared = self._preparer.submit(self._prepare_any)
                self._prepared.result()

    def _fall_back(self, error: RoofprobeError) -> None:
        # A second CUPTI client in this process (nsys, ncu) is here on purpose: it is its
        # measurement, and this one is in its way. Metrics by their names are asked of CUPTI alone.
        busy = isinstance(error, CountersBusyError) and not isinstance(error, HardwareBusyError)
        named = isinstance(error, UnknownMetricError) and self._request not in metrics.SET_NAMES
        if busy or named or not self._others:
            raise error
        refused, self._backend = self._backend.source, self._others.pop(0)
        self._warnings.append(
            f"{refused} was refused, so {self._backend.source} takes its place: {error}"
        )

    def _plan(self) -> Plan:
        self._require_own()  # the thread that prepares is not in a forked child
        try:
            return self._prepared.result()
        except CountersBusyError as error:
            self._refuse(error)
            names: Sequence[str] = ()
            with suppress(RoofprobeError):
                names = metrics.resolve(self._request, self._backend.chip, self._levels)
            return Plan((), 0, dict.fromkeys(names, str(error)))

    def _refuse(self, error: CountersBusyError) -> None:
        # Another profiler's measurement is as good as this one, and training is neither's business.
        if self.refusal is None:
            self.refusal = error
            self._warnings.append(f"no counters, and the steps went on without: {error}")
            # Not the loop's end is why these are missing.
            if self._timing is None:
                self._notes.setdefault("timing", str(error))
            self._notes.setdefault("kernels", str(error))

    def _counted_steps(self, plan: Plan) -> int:
        step = self._timing.median if self._timing is not None else None
        return plan.expected(step) * self._round_count + self._retried

    def _prepare(self) -> Plan:
        """Runs on a thread beside the warm-up: CUPTI's first start takes half a second."""
        started = time.perf_counter()
        names = metrics.resolve(self._request, self._backend.chip, self._levels)
        plan = self._backend.prepare(metrics.with_coverage(names))
        if self._traced:
            activity.preload()
        self._overhead["prepare (beside warm-up)"] = time.perf_counter() - started
        return plan

    def _await_plan(self) -> None:
        """Waits for the plan and announces its price, once."""
        if "wait for plan" in self._overhead:
            return
        started = time.perf_counter()
        plan = self._plan()
        self._overhead["wait for plan"] = time.perf_counter() - started
        if self.refusal is not None:
            return
        rounds = f" x {self._round_count} rounds" if self._round_count > 1 else ""
        parts = [
            f"{self._warmup} warm-up",
            f"{self._timed} timed",
            *([f"{self._labelled} labelled"] if self._labelled else []),
            f"{'at least ' if plan.window else ''}{self._counted_steps(plan)} with counters "
            f"({len(plan.metrics)} metrics in {plan.passes} passes{rounds}"
            f"{f', {plan.retry} more if fp64 runs on CUDA cores' if plan.retry else ''})",
        ]
        if self._counts_parts:
            parts.append(f"at most {self._steps_by_part} with counters by part")
        if self._traced:
            parts.append(f"{self._traced} with kernel records")
        if self._model_steps:
            parts.append(f"{self._model_steps} under the analytic model")
        message = f"{self.steps_needed} steps: {', '.join(parts)}"
        self._report("plan", 0, self.steps_needed, message)

    # -- Helpers --------------------------------------------------------------------------

    def _advance(self) -> None:
        try:
            next(self._script)
        except StopIteration:
            self.done = True
            self._complete = self.refusal is None

    def _report(self, phase: Phase, index: int, total: int, message: str = "") -> None:
        self._progress(Progress(phase, index, total, message))

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _memory_requests(self) -> int | None:
        """How often PyTorch was asked for GPU memory so far; None where that is not counted."""
        if self._device.type != "cuda":
            return None
        with suppress(RuntimeError):  # allocators other than PyTorch's own count nothing
            # Not memory_stats(), which builds names for some hundred figures first.
            stats = torch.cuda.memory_stats_as_nested_dict(self._device)
            return int(stats["allocation"]["all"]["allocated"]) if stats else None
        return None

    def _note_requests(self, before: int | None) -> None:
        """Ends a counted step: steps alike ask for memory equally often."""
        after = self._memory_requests()
        if before is not None and after is not None:
            self._requests.append(after - before)

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)

    def _note_overhead(self, part: str, started: float, steps: int) -> None:
        """The price of some steps over plain ones, where these were timed."""
        if self._timing is not None:
            plain = steps * self._timing.median
            self._overhead[part] = time.perf_counter() - started - plain

    def _add_overhead(self, part: str, duration: float) -> None:
        self._overhead[part] = self._overhead.get(part, 0.0) + duration

    # -- Ending ---------------------------------------------------------------------------

    def _note_fork(self) -> None:
        if self._attached:
            self._warn_once(
                "a process was forked while counters were attached, and may hang: start the "
                "loader's workers before, or with multiprocessing_context='spawn'"
            )

    def _let_go(self) -> None:
        self.done = self._forked = True
        # Its finally clauses, and the session that it holds, must not run in this process: not even
        # when the interpreter ends. One reference too many keeps both to the end.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._script))

    def _require_own(self) -> None:
        if self._forked:
            raise UsageError(
                f"measurement {self.name!r} runs in the process that this one was forked from: "
                "ask for its result there"
            )

    def _end(self) -> None:
        """Releases everything and builds the record from what there is."""
        if self._forked:
            return
        self._abandon()
        try:
            plan = self._plan()
            finished = self._complete or self.refusal is not None
            missing = 0 if finished else max(1, self.steps_needed - self._steps_run)
        finally:
            self._preparer.shutdown()
        self._result = self._build(plan, missing)

    def _end_after_failure(self) -> None:
        """The same, while an exception is on its way to the user: nothing may hide that."""
        try:
            self._end()
        except Exception as error:  # see above
            self._warnings.append(f"no record could be built after a failed step: {error}")

    def _abandon(self) -> None:
        """Closes whatever session or trace is open."""
        if self._forked:
            return
        self.done = True
        try:
            self._script.close()
        except Exception as error:  # a step's own exception must reach the user
            self._warnings.append(f"closing after a step that was not completed: {error}")

    def _regions(self, plan: Plan) -> Regions | None:
        if self._breakdown is None:
            return None
        if self._breakdown.counts and not self._counts_parts:
            self._notes["parts"] = (
                f"{self._backend.source} counts whole steps only, so parts have times and no counts"
            )
        return self._breakdown.result(plan.metrics, between=self._between)

    def _build(self, plan: Plan, missing: int) -> Measurement:
        unavailable = dict(plan.unavailable)
        whole = len(self._collected)
        if not whole and retries(self._backend):
            counts = self._backend.before_retry()
            if counts is not None:
                self._collected.append((counts, self._before_retry))
        for counts, _ in self._collected:
            unavailable |= counts.reasons
            self._warnings += [text for text in counts.warnings if text not in self._warnings]
        if missing:
            self._warnings.append(
                f"incomplete: the loop ended {missing} steps too early; "
                f"{whole} of {self._round_count} rounds of counters are whole"
            )
        if not self._collected:
            why = "the run ended before all passes of a round were done"
            unavailable |= dict.fromkeys(plan.metrics, str(self.refusal or why))
        if len(set(self._requests)) > 1:
            self._warnings.append(
                f"counted steps asked for GPU memory {min(self._requests)} to "
                f"{max(self._requests)} times, so they did not do the same work: {_UNLIKE}"
            )
        if self._model_steps and self._modelled is None:
            why = "the run ended before its step under the analytic model"
            self._notes.setdefault("witness", str(self.refusal or why))
        if self._witness and self._backend.source == "analytic":
            self._notes["witness"] = "the counts are the analytic model's already"
        machine = environment.collect(self._device)
        record = Measurement(
            name=self.name,
            source=self._backend.source,
            created=environment.now_utc(),
            environment=machine,
            workload=self._workload,
            metrics=(*plan.metrics, *plan.unavailable),
            rounds=tuple(
                Round(counts.values, len(durations), counts.ranges_dropped, durations)
                for counts, durations in self._collected
            ),
            complete=self._complete,
            steps_missing=missing,
            unavailable=unavailable,
            timing=self._timing,
            kernels=self._kernels,
            clocks=self._clocks,
            roofs=ceilings.load_cached(machine),
            regions=self._regions(plan),
            witness=self._modelled,
            overhead=self._overhead,
            notes={**plan.notes, **self._notes},
        )
        record = coverage.applied(record, profiler_active=self._profiler_seen)
        return replace(record, warnings=(*self._warnings, *_noteworthy(record)))


def prepare(
    *,
    metrics: str | Iterable[str] = metrics.DEFAULT_SET,
    device: torch.device | str | int | None = None,
) -> None:
    """Starts, on a thread, what the first measurement of a process waits for; measures nothing.

    CUPTI's own start, its host library and the question which counters the device has take 0.3 s.
    Beside the first training step, which loads kernels and libraries, they take that and hold it
    up as well (measured, H200: 0.2 to 0.35 s); beside building the model they cost nothing. So call
    this first of all, if at all. Without a CUDA device it does nothing.

    Args:
        metrics: As for ``measure``.
        device: Likewise.

    Raises:
        UsageError: the device does not exist. What else goes wrong is told by ``measure``, where it
            goes wrong again.
    """
    chosen = _device(device)
    if chosen.type == "cuda" and not external.requested():
        # Not a daemon: a process that ended while CUPTI starts could crash.
        threading.Thread(target=_prepare_early, args=(chosen, metrics)).start()


def _prepare_early(device: torch.device, request: str | Iterable[str]) -> None:
    # RuntimeError: PyTorch's, from a GPU that is lost.
    with suppress(RoofprobeError, RuntimeError):
        backend = _backend("cupti", device)
        names = metrics.resolve(request, backend.chip, metrics.LEVELS)
        backend.prepare(metrics.with_coverage(names))
        activity.preload()
        environment.collect(device)  # NVML's start


@_for_one_with("this measurement was begun before: call measure() anew for another one")
def measure(
    name: str = "step",
    *,
    metrics: str | Iterable[str] = metrics.DEFAULT_SET,
    levels: Sequence[metrics.Level] = metrics.LEVELS,
    warmup: int = 5,
    timed: int = 10,
    rounds: int = 1,
    kernels: bool = True,
    device: torch.device | str | int | None = None,
    backend: Literal["auto", "cupti", "gpm", "analytic"] | CounterBackend = "auto",
    workload: Mapping[str, Scalar] | None = None,
    progress: ProgressCallback | None = None,
    by: By = "step",
    model: torch.nn.Module | None = None,
    witness: bool = False,
) -> Iterator[Probe]:
    """Measures the steps of a loop.

    ``with measure("name") as probe: for batch in probe.steps(loader): train_step(batch)``.
    Afterwards ``probe.result`` is the record.

    Args:
        name: The region's name, a text.
        metrics: A named set (``study``, ``fp32``, ``memory``, ``full``) or CUPTI metric names.
        levels: Memory levels to count bytes at.
        warmup: Steps to leave unmeasured first; choose enough for autotuning to settle.
        timed: Unprofiled steps to time.
        rounds: How often to repeat the whole set of passes.
        kernels: Trace kernels on two further steps.
        device: The CUDA device (or the CPU); the current CUDA device by default.
        backend: ``auto`` (on a CUDA device ``cupti``, or ``gpm`` where that is refused, or
            ``analytic`` where that is too; else ``analytic``), one of the three, or a backend of
            your own.
        workload: Facts to keep in the record: texts, finite numbers, booleans and None; what
            is none of these is kept as ``str`` writes it. ``rank`` and ``world_size`` of PyTorch's
            process group are among them by themselves.
        progress: Called at every step with a ``Progress``.
        by: ``step`` for the step as a whole; ``phase`` for its parts as ``Probe.range`` marks
            them, too; ``layer`` for the modules of ``model`` as well, forward and backward;
            ``kernel`` for names and times of kernels by range and module, without counters.
        model: For ``layer`` and ``kernel``: whose modules are told apart.
        witness: Run one further step under the analytic model, after everything else, and keep its
            FLOP and bytes for a comparison with the hardware's. That step is slow (every operator
            goes through Python) and runs what ``torch.compile`` compiled eagerly, which may take
            more memory. Where the model is the backend there is none, and a note says so.

    Raises:
        MeasurementActiveError: another measurement is running in this process.
        UsageError: an argument that is nothing of its kind, ``cupti`` without a CUDA device, or
            parts that cannot be told apart so.
    """
    if not isinstance(name, str):
        raise UsageError(f"name is {name!r}; a region's name is a text")
    for option, value, least in (("warmup", warmup, 0), ("timed", timed, 1), ("rounds", rounds, 1)):
        _require_count(option, value, least)
    require_levels(levels)
    request = named(metrics)
    if not isinstance(workload, Mapping | None):
        raise UsageError(f"workload is {workload!r}; it must be a mapping of facts by name")
    if progress is not None:
        _require_callable("progress", progress)
    global _running
    chosen = _device(device)
    backends = _backends(backend, chosen, name)
    breakdown = _breakdown(by, model, backends[0], chosen, kernels=kernels)
    active = _active  # in a forked child, ``_active`` is another one
    if not active.acquire(blocking=False):
        raise MeasurementActiveError(
            f"measurement {name!r} was started inside another one, and a GPU has one set of "
            "counters: end the first before starting the second"
        )
    try:
        probe = Probe(
            name,
            backends,
            chosen,
            request=request,
            levels=levels,
            warmup=warmup,
            timed=timed,
            rounds=rounds,
            kernels=kernels,
            workload=storable({**environment.ranks(), **(workload or {})}),
            progress=progress,
            breakdown=breakdown,
            witness=witness,
        )
        _running = probe
        try:
            yield probe
        except BaseException:
            probe._end_after_failure()
            raise
        probe._end()
    finally:
        _running = None
        active.release()


def measure_step(
    step: Callable[[], object],
    name: str = "step",
    *,
    eager: Callable[[], object] | None = None,
    **options: object,
) -> Measurement:
    """Measures a callable, which is run as often as the measurement needs.

    Args:
        step: One step; it must do the same work every time.
        name: The region's name.
        eager: The same step without a CUDA graph. Where SASS counters were hidden, this is measured
            as well and theirs are taken, and figures with them are labelled so. A warning says
            where it turned out to be another step.
        options: As for ``measure``.

    Raises:
        UsageError: a step that cannot be called, and as for ``measure``.
    """
    _require_callable("step", step)
    if eager is not None:
        _require_callable("eager", eager)
    record = _measured(step, name, options)
    coverage = record.coverage
    if eager is None or coverage is None or coverage.trusted:
        return record
    whole = {key: value for key, value in options.items() if key not in ("by", "model")}
    other = _measured(eager, f"{name} (eager)", whole)
    try:
        taken = with_sass_of(record, other)
        # The operators behind a graph's kernels are seen where the graph is not.
        return replace(taken, witness=other.witness or taken.witness)
    except UsageError as error:
        return replace(record, warnings=(*record.warnings, f"SASS counters stay out: {error}"))


def _measured(step: Callable[[], object], name: str, options: Mapping[str, object]) -> Measurement:
    with measure(name, **options) as probe:  # type: ignore[arg-type]
        while not probe.done:
            with probe.step():
                step()
    return probe.result


def _require_count(option: str, value: int, least: int) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{option} is {value!r}; it must be a whole number") from None
    if number < least:
        raise UsageError(f"{option} is {number}; it must be at least {least}")


def _require_callable(option: str, value: object) -> None:
    if not callable(value):
        raise UsageError(f"{option} is {value!r}; it must be a callable")


def _device(device: torch.device | str | int | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(
            f"there is no device {device!r}: give 'cpu', 'cuda', 'cuda:N' or the N of a GPU, from 0"
        ) from None
    if chosen.type not in ("cpu", "cuda"):
        raise UsageError(
            f"device {chosen} was asked for: roofprobe measures NVIDIA GPUs and models the CPU"
        )
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device {chosen} was asked for, but PyTorch finds no CUDA device")
        index = torch.cuda.current_device() if chosen.index is None else chosen.index
        if index >= torch.cuda.device_count():
            raise UsageError(
                f"device {chosen} was asked for, but there are {torch.cuda.device_count()}"
            )
        return torch.device("cuda", index)
    return chosen


def _backends(
    choice: str | CounterBackend, device: torch.device, name: str
) -> Sequence[CounterBackend]:
    """What to count with; the later ones where an earlier one is refused."""
    if not isinstance(choice, str):
        # Not by isinstance, nor by asking for the chip, which takes CUPTI half a second to tell.
        calls = ("prepare", "open", "begin_pass", "end_pass", "collect", "close")
        lacking = [call for call in calls if not callable(getattr(choice, call, None))]
        if lacking or isinstance(choice, type):
            raise UsageError(
                f"backend is {choice!r}; it must be auto, cupti, gpm or analytic, or an object of "
                "your own with every call of roofprobe.counters.CounterBackend"
            )
        return [choice]
    if choice != "auto":
        return [_backend(choice, device, name)]
    choices = ("cupti", "gpm", "analytic") if device.type == "cuda" else ("analytic",)
    return [_backend(each, device, name) for each in choices]


def _backend(choice: str, device: torch.device, name: str | None = None) -> CounterBackend:
    if choice == "analytic":
        from roofprobe.counters.analytic import AnalyticBackend

        return AnalyticBackend()
    if choice == "cupti" and external.requested():
        return external.ExternalBackend(
            lambda: torch.cuda.synchronize(device), name, environment.ranks().get("rank")
        )
    if choice in ("cupti", "gpm"):
        if device.type != "cuda":
            raise UsageError(
                f"backend {choice} was asked for on device {device}: it reads the counters of a "
                "CUDA device; use backend analytic here"
            )
        from roofprobe.counters.cupti import CuptiBackend
        from roofprobe.counters.gpm import GpmBackend

        kind = CuptiBackend if choice == "cupti" else GpmBackend
        return kind(device.index, lambda: torch.cuda.synchronize(device))
    raise UsageError(f"no backend is called {choice!r}; there are auto, cupti, gpm and analytic")


def _breakdown(
    by: By,
    model: torch.nn.Module | None,
    backend: CounterBackend,
    device: torch.device,
    *,
    kernels: bool,
) -> Breakdown | None:
    if by not in BY:
        raise UsageError(f"by is {by!r}; a step can be told apart by {', '.join(BY[1:])}")
    if by == "layer" and model is None:
        raise UsageError("by='layer' needs the model whose layers they are: pass model=...")
    if by in ("layer", "kernel") and not isinstance(model, torch.nn.Module | None):
        raise UsageError(
            f"model is of type {type(model).__name__}, and by={by!r} tells apart the modules of a "
            "torch.nn.Module: pass the one that the steps call"
        )
    # What marks one step for a profiler outside has no parts.
    if by == "step" or isinstance(backend, external.ExternalBackend):
        return None
    cuda = device.type == "cuda"
    if by == "kernel" and not (cuda and kernels):
        raise UsageError(
            "by='kernel' rests on kernel records, which "
            + ("kernels=False leaves out" if cuda else f"there are none of on device {device}")
        )
    if by != "kernel" and not counts_regions(backend):
        raise UsageError(
            f"by={by!r} needs a backend that counts parts of a step, and {backend.source} counts "
            "whole ones"
        )
    capturing = torch.cuda.is_current_stream_capturing if cuda else lambda: False
    return Breakdown(by, model, cuda=cuda, capturing=capturing)


def _profiler_warms_up() -> bool:
    """True while a torch.profiler of this process is in the warm-up of its schedule."""
    from torch.profiler import ProfilerAction, profile

    # Nothing in PyTorch lists its profilers, so all objects are looked through: first their types,
    # which takes half as long. Not isinstance: that asks for __class__, which some objects answer
    # with a warning.
    objects = gc.get_objects()
    kinds = tuple(kind for kind in set(map(type, objects)) if issubclass(kind, profile))
    return bool(kinds) and any(
        candidate.current_action == ProfilerAction.WARMUP
        for candidate in objects
        if type(candidate) in kinds
    )


def _flop(counted: Round) -> float | None:
    """All FLOP of a round; None where a counter of them has no value."""
    total = 0.0
    for name, value in counted.counters.items():
        row = metrics.TABLE.get(name)
        if row is None or row.kind != "flop":
            continue
        if value is None:
            return None
        total += row.weight * value
    return total


def _noteworthy(record: Measurement) -> list[str]:
    """Warnings about what was measured, for a person to judge."""
    found = []
    if "counters" in record.notes:
        found.append(f"no counter is usable: {record.notes['counters']}")
    elif record.coverage is not None and not record.coverage.trusted:
        found.append(f"SASS counters are not usable: {record.coverage.cause}")
    if record.timing is not None and record.timing.spread > 0.1:
        found.append(
            f"step times differ by {100 * record.timing.spread:.0f}% (largest minus smallest): "
            "warm up longer, or look for something else on this machine"
        )
    if "shared" in record.notes:
        found.append(record.notes["shared"])
    each = (_flop(counted) for counted in record.rounds)
    flop = [value for value in each if value is not None]
    if len(flop) > 1 and max(flop) - min(flop) > _SAME_FLOP * max(flop):
        found.append(
            f"FLOP differ by {100 * (max(flop) - min(flop)) / max(flop):.1f}% between rounds, and "
            f"their mean is of no step: {_UNLIKE}"
        )
    dropped = sum(counted.ranges_dropped for counted in record.rounds)
    if dropped:
        found.append(f"CUPTI dropped {dropped} ranges: their counters are not used")
    return found
