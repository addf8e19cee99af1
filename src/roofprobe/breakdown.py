"""A step by its parts: labels on steps of their own first, then counters by label.

Labelled steps say which labels there are and in which order, which kernels ran under each and how
long. Counted steps then need a boundary only where something runs. Neither is a step to take times
of whole steps from: every boundary waits for the device.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Final

from torch import nn

from roofprobe import layers
from roofprobe.activity import KernelTracer, Span, Trace
from roofprobe.counters import RegionBackend
from roofprobe.errors import UsageError
from roofprobe.kernel_names import demangled
from roofprobe.record import Kernel, KernelUse, Regions, Segment
from roofprobe.regions import (
    MODEL,
    OUTSIDE,
    SEPARATOR,
    By,
    Guide,
    Itinerary,
    Label,
    Tracker,
    labels_of,
    layer_name,
    range_name,
    stop_at,
)
from roofprobe.units import percent, seconds

_BASE: Final = Label()  # every step begins outside of everything

# Names for what the driver does by itself.
_DRIVER: Final = {"copy": "copy within the device", "fill": "fill (memset)"}

# Names in one note: of modules, and of parts with transfers.
_NAMED: Final = 5
_TRANSFERS: Final = 3

Values = Mapping[str, float | None]


class Breakdown:
    """Collects what is known of a step's parts.

    Args:
        by: ``phase`` for ranges alone, ``layer`` for modules too, ``kernel`` for labelled steps
            without counters.
        model: Whose modules are told apart.
        cuda: The steps run on a GPU.
        capturing: True while a CUDA graph is captured. Waiting for the device would break that,
            and nothing runs in it.
    """

    def __init__(
        self,
        by: By,
        model: nn.Module | None,
        *,
        cuda: bool,
        capturing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._by = by
        self._model = model if by != "phase" else None
        self._cuda = cuda
        self._capturing = capturing
        self._tracker: Tracker | None = None
        self._stops: list[tuple[Label, ...]] = []  # of each labelled step
        self._walls: list[tuple[float, ...]] = []  # when each stop began and the last one ended
        self._traces: tuple[Trace, ...] = ()
        self._known = Itinerary((), ())
        self._index: dict[Label, int] = {}
        self._passes: list[set[int]] = []  # regions that each pass of the round entered
        self._rounds: list[Mapping[int, Values]] = []
        self.images: list[bytes] = []  # sealed counter data of each round, where there is any
        self._strangers: set[Label] = set()
        self._partial: set[int] = set()
        self._unseen = layers.Unseen()

    @property
    def counts(self) -> bool:
        """True where counters are wanted by label."""
        return self._by != "kernel"

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels of the regions, by number."""
        return tuple(self._index)

    def range(self, name: str) -> AbstractContextManager[None]:
        """A range of the user's; open it around work that is to be a part of its own."""
        if self._tracker is None:
            return nullcontext()
        return _opened(self._tracker, name)

    # -- Labelled steps -------------------------------------------------------------------

    @contextmanager
    def labelled(self, tracer: KernelTracer | None) -> Iterator[None]:
        """Within it, one step is labelled; a tracer that runs gets a mark at each boundary."""
        stops: list[Label] = [_BASE]
        walls: list[float] = []

        def boundary() -> None:
            if tracer is not None:
                tracer.mark()
            walls.append(time.perf_counter())

        def switch(label: Label) -> None:
            if not self._capturing():
                boundary()
                stops.append(label)

        boundary()
        with self._watched(switch):
            yield
        walls.append(time.perf_counter())
        self._stops.append(tuple(stops))
        self._walls.append(tuple(walls))

    def settle(self, traces: Sequence[Trace]) -> None:
        """Ends the labelled steps.

        Args:
            traces: Of each labelled step; empty where they were not traced.
        """
        self._traces = tuple(traces)
        steps = [Itinerary(stops, (False,) * len(stops)) for stops in self._stops]
        if traces:
            steps = [
                Itinerary(stops, _idle(stops, trace))
                for stops, trace in zip(self._stops, traces, strict=True)
            ]
        self._known = Itinerary.common(steps)
        self._index = {label: index for index, label in enumerate(labels_of(steps))}

    # -- Counted steps --------------------------------------------------------------------

    def open(self, backend: RegionBackend) -> None:
        """Attaches the counters, with room for every switch of a step and some to spare."""
        known = self._known.switches if self._known.stops else max(map(len, self._stops))
        backend.open_regions(known + known // 4 + 16)

    @contextmanager
    def counted(self, backend: RegionBackend) -> Iterator[None]:
        """Within it, one pass is counted by label; the caller ends the pass."""
        guide = Guide(self._known)
        current = base = self._index[_BASE]
        entered = {base}

        def switch(label: Label) -> None:
            nonlocal current
            if self._capturing() or not guide.wanted(label):
                return
            if label not in self._index:
                self._strangers.add(label)
            region = self._index.get(label, base)
            if region != current:
                backend.switch(region)
                current = region
                entered.add(region)

        backend.begin_regions(base)
        with self._watched(switch):
            yield
        self._passes.append(entered)

    def collect(self, backend: RegionBackend, none: Iterable[str]) -> Mapping[str, str]:
        """Takes in the round just completed; returns why metrics have no value, by metric.

        Args:
            backend: What counted.
            none: Metrics that were not counted because the whole step has 0 of them.
        """
        found = backend.collect_regions()
        always = set.intersection(*self._passes)
        # CUPTI gives 0 for what a region did not count in a pass that never entered it.
        self._partial |= set.union(*self._passes) - always
        self._passes.clear()
        self.images += [found.image] if found.image is not None else []
        zeros = dict.fromkeys(none, 0.0)
        self._rounds.append(
            {key: {**zeros, **found.values[key]} for key in always if key in found.values}
        )
        return found.reasons

    # -- The outcome ----------------------------------------------------------------------

    def result(self, metrics: Sequence[str], *, between: float | None) -> Regions | None:
        """What is known; None where no step was labelled.

        Args:
            metrics: Metrics that were counted.
            between: Wall clock between timed steps, s.
        """
        if not self._index:
            return None
        steps = len(self._stops)
        entered = Counter(label for stops in self._stops for label in stops)
        times, launches, kernels, lost = self._attributed()
        if self._cuda and not self._traces:
            source = None
        else:
            source = "cupti_activity" if self._cuda else "perf_counter"
        nothing: Values = dict.fromkeys(metrics)
        worked = {label for _, label in kernels}
        segments: list[Segment] = []
        places: dict[Label, int] = {}
        for label, index in self._index.items():
            known = any(index in counted for counted in self._rounds)
            if self._cuda and not known and label not in worked and index not in self._partial:
                continue  # not once on its way was anything issued
            places[label] = len(segments)
            segments.append(
                Segment(
                    range=label.range,
                    module=label.module,
                    direction=label.direction,
                    entered=entered[label] / steps,
                    counters=tuple(counted.get(index, nothing) for counted in self._rounds),
                    time=times[label] / steps if source is not None else None,
                    launches=launches[label] / steps if self._traces else None,
                )
            )
        return Regions(
            by=self._by,
            segments=tuple(segments),
            steps=steps,
            time_source=source,
            kernels=_kernels(kernels, places, steps),
            lost_time=lost / steps,
            between=between,
            notes=tuple(self._notes()),
        )

    def _attributed(
        self,
    ) -> tuple[
        Mapping[Label, float],
        Mapping[Label, int],
        Mapping[tuple[str, Label], Sequence[float]],
        float,
    ]:
        """Seconds and launches by label, durations by kernel and label, and seconds outside."""
        times: defaultdict[Label, float] = defaultdict(float)
        launches: Counter[Label] = Counter()
        kernels: defaultdict[tuple[str, Label], list[float]] = defaultdict(list)
        lost = 0.0
        if not self._cuda:
            for stops, walls in zip(self._stops, self._walls, strict=True):
                for label, (begin, end) in zip(stops, pairwise(walls), strict=True):
                    times[label] += end - begin
        for stops, trace in zip(self._stops, self._traces, strict=False):
            for span in _work(trace.spans):
                stop, duration = stop_at(trace.marks, span.asked), span.end - span.start
                if stop is None:
                    lost += duration
                    continue
                label = stops[stop]
                times[label] += duration
                launches[label] += span.kind == "kernel"
                kernels[span.name or _DRIVER.get(span.kind, span.kind), label].append(duration)
        return times, launches, kernels, lost

    def _notes(self) -> Iterator[str]:
        if self._model is not None:
            yield from self._notes_on_modules(self._model)
        elif self._by == "phase" and not self._strangers and self.labels == (_BASE,):
            yield (
                "no range was opened in a step, so that the whole step is one part: open some "
                'with probe.range("...") in the loop\'s body (the callable of measure_step gets '
                "no probe)"
            )
        if not self._known.stops and len(self._stops) > 1:
            yield (
                "the labelled steps went different ways through the model, so that counts of parts "
                "come from steps that differ"
            )
        if self._strangers:
            names = ", ".join(sorted({_spelled(label) for label in self._strangers})[:5])
            cause = "every step must do the same work"
            if self._hidden():
                cause = (
                    "a compiled function hides them where it does not run eagerly, or the steps do "
                    "not do the same work; layers cannot be told apart, phases can (probe.range)"
                )
            yield (
                f"parts that no labelled step had are counted as outside of everything: {names}; "
                f"{cause}"
            )
        if self._partial:
            labels = list(self._index)
            names = ", ".join(_spelled(labels[index]) for index in sorted(self._partial)[:5])
            yield f"parts that only some passes entered have no counts: {names}"
        yield from self._notes_on_spans()

    def _hidden(self) -> bool:
        """True where modules were met, though in no labelled step."""
        labelled = any(label.module is not None for label in self._index)
        return not labelled and any(label.module is not None for label in self._strangers)

    def _notes_on_spans(self) -> Iterator[str]:
        spans = [span for trace in self._traces for span in trace.spans if span.kind == "kernel"]
        graph = sum(span.from_graph for span in spans)
        if graph:
            yield (
                f"{percent(graph / len(spans))} of the kernels ran from a CUDA graph, whose inside "
                "cannot be told apart: they belong to the part that launched it"
            )
        moved = self._transfers()
        if moved:
            total = sum(moved.values()) / len(self._traces)
            longest = sorted(moved, key=lambda name: -moved[name])
            named = [
                f"{name} ({seconds(moved[name] / len(self._traces), 3)})"
                for name in longest[:_TRANSFERS]
            ]
            yield (
                f"transfers from and to the device took {seconds(total, 3)} a step, in "
                f"{_listed(named, len(longest))}: no part's time contains them, as they may run "
                "beside kernels"
            )

    def _transfers(self) -> Mapping[str, float]:
        """Seconds of copies from and to the device on all traced steps, by part."""
        found: defaultdict[str, float] = defaultdict(float)
        for stops, trace in zip(self._stops, self._traces, strict=False):
            for span in trace.spans:
                if span.kind == "transfer":
                    stop = stop_at(trace.marks, span.asked)
                    label = _BASE if stop is None else stops[stop]
                    by_range = self._by == "phase"
                    name = range_name(label.range) if by_range else layer_name(*label)
                    found[name] += span.end - span.start
        return found

    def _notes_on_modules(self, model: nn.Module) -> Iterator[str]:
        compiled = [path or "the model" for path in layers.compiled_units(model)]
        scripted = [path or "the model" for path in layers.scripted_units(model)]
        if compiled:
            yield (
                f"compiled, and so one part each, without layers: {', '.join(compiled)}; phases "
                "still stand"
            )
        elif (
            all(label.module is None for label in (*self._index, *self._strangers))
            and "the model" not in scripted
        ):
            holders = "a compiled function" + (" or a CUDA graph" if self._cuda else "")
            yield (
                f"no module of model= was called in a step: it is another model than the one that "
                f"the steps run, or {holders} runs all of it; layers cannot be told apart, phases "
                "can (probe.range)"
            )
        if scripted:
            yield (
                "TorchScript takes no hooks, so these have no rows of their own: "
                f"{_listed(scripted)}; their work belongs to the module around them, or without "
                "one to the phase"
            )
        if self._unseen.unhooked:
            named = [f"{path or MODEL} ({why})" for path, why in self._unseen.unhooked.items()]
            yield (
                f"no hook could be put on {_listed(named)}: their own work belongs to the module "
                "around them, or without one to the phase"
            )
        if self._unseen.outputs:
            named = [f"{path or MODEL}: {kind}" for path, kind in self._unseen.outputs.items()]
            yield (
                f"outputs hold objects that cannot be looked into ({_listed(named)}), so work that "
                "hangs on these alone, forward or backward, belongs to no module"
            )

    @contextmanager
    def _watched(self, switch: Callable[[Label], None]) -> Iterator[None]:
        self._tracker = Tracker(switch)
        try:
            if self._model is None:
                yield
            else:
                with layers.watched(self._model, self._tracker, self._unseen):
                    yield
        finally:
            self._tracker = None


def check_range_name(name: str) -> None:
    """Raises UsageError for what cannot be a range's name."""
    if not isinstance(name, str) or not name or SEPARATOR in name:
        raise UsageError(
            f"{name!r} cannot be the name of a range: that is a text, not empty, and {SEPARATOR!r} "
            "joins nested ranges"
        )


@contextmanager
def _opened(tracker: Tracker, name: str) -> Iterator[None]:
    frame = tracker.enter_range(name)
    try:
        yield
    finally:
        tracker.leave(frame)


def _idle(stops: Sequence[Label], trace: Trace) -> tuple[bool, ...]:
    """For each stop of a traced step, True where nothing at all ran."""
    busy = {stop_at(trace.marks, span.asked) for span in trace.spans}
    return tuple(index not in busy for index in range(len(stops)))


def _work(spans: Sequence[Span]) -> Iterator[Span]:
    return (span for span in spans if span.kind != "transfer")


def _kernels(
    durations: Mapping[tuple[str, Label], Sequence[float]],
    places: Mapping[Label, int],
    steps: int,
) -> tuple[Kernel, ...]:
    uses: defaultdict[str, list[KernelUse]] = defaultdict(list)
    for (name, label), each in durations.items():
        uses[name].append(KernelUse(places[label], len(each) / steps, sum(each) / steps))
    found = [Kernel(demangled(name), tuple(places)) for name, places in uses.items()]
    return tuple(sorted(found, key=lambda kernel: -kernel.time))


def _listed(names: Sequence[str], count: int | None = None) -> str:
    """The first names, and how many more there are.

    Args:
        names: All of them, or as many as are to be named.
        count: How many there are in all, where these are not all.
    """
    shown = names[:_NAMED]
    more = (len(names) if count is None else count) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _spelled(label: Label) -> str:
    parts = [label.range, label.module if label.module != "" else MODEL, label.direction]
    return " ".join(part for part in parts if part) or OUTSIDE
