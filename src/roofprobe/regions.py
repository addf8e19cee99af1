"""Which part of a step the work belongs to that is issued now. Bookkeeping only, no torch.

A ``Tracker`` keeps a stack of what is open: ranges of the user's, and modules on their way forward
or backward. What is on the stack makes up one ``Label``, and a step is a sequence of labels, one at
a time. So what is counted by label adds up to the step, and work of no module has a label, too.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

By = Literal["step", "phase", "layer", "kernel"]
BY: Final[tuple[By, ...]] = ("step", "phase", "layer", "kernel")

Direction = Literal["forward", "recompute", "backward"]

SEPARATOR: Final = "/"  # of nested ranges

# What people call work of no range and no module, and the model itself, whose path is empty.
OUTSIDE: Final = "(outside)"
MODEL: Final = "(model)"


class Label(NamedTuple):
    """What was open while work was issued.

    Attributes:
        range: The user's ranges, outermost first, joined by ``/``; empty outside of any.
        module: Path of the innermost module, empty for the model itself; None outside of any.
        direction: On its way forward, forward again for a checkpoint, or backward.
    """

    range: str = ""
    module: str | None = None
    direction: Direction | None = None


class Frame:
    """Something that was opened, and its place on the stack."""

    __slots__ = ("direction", "module", "range")

    def __init__(
        self,
        range_: str | None = None,
        module: str | None = None,
        direction: Direction | None = None,
    ) -> None:
        self.range = range_
        self.module = module
        self.direction = direction


class Tracker:
    """The stack of what is open.

    Safe for autograd's threads, which run one after the other but for graphs over several devices.

    Args:
        switch: Called with the new label whenever the label changes.
    """

    def __init__(self, switch: Callable[[Label], None]) -> None:
        self._switch = switch
        self._frames: list[Frame] = []
        self._label = Label()
        self._lock = threading.RLock()

    def enter_range(self, name: str) -> Frame:
        """Opens a range of the user's inside those that are open."""
        return self._enter(Frame(range_=name))

    def enter_module(self, path: str, direction: Direction) -> Frame:
        """Opens a module on its way forward or backward."""
        return self._enter(Frame(module=path, direction=direction))

    def _enter(self, frame: Frame) -> Frame:
        with self._lock:
            self._frames.append(frame)
            self._update()
        return frame

    def leave(self, frame: Frame) -> None:
        """Closes a frame and whatever an exception left open above it; safe to call twice."""
        with self._lock:
            if frame in self._frames:
                del self._frames[self._frames.index(frame) :]
                self._update()

    def _update(self) -> None:
        ranges = [frame.range for frame in self._frames if frame.range is not None]
        modules = [frame for frame in self._frames if frame.module is not None]
        label = Label(SEPARATOR.join(ranges))
        if modules:
            label = Label(label.range, modules[-1].module, modules[-1].direction)
        if label != self._label:
            self._label = label
            self._switch(label)


@dataclass(frozen=True, slots=True)
class Itinerary:
    """The labels of a step, in the order in which it goes through them.

    Attributes:
        stops: A label each time it is entered, the first one from the step's beginning on.
        idle: For each stop, True where no work at all was issued there.
    """

    stops: tuple[Label, ...]
    idle: tuple[bool, ...]

    @classmethod
    def common(cls, steps: Sequence["Itinerary"]) -> "Itinerary":
        """What holds of every one of some steps; empty where they went different ways."""
        if not steps or any(step.stops != steps[0].stops for step in steps):
            return cls((), ())
        return cls(steps[0].stops, tuple(map(all, zip(*(s.idle for s in steps), strict=True))))

    @property
    def switches(self) -> int:
        """How often a ``Guide`` wants to go on."""
        return sum(not idle for idle in self.idle[1:])


class Guide:
    """Says of each stop of a step whether it is worth a boundary.

    A boundary drains the GPU and takes CUPTI about a millisecond, and half of all stops have no
    work: the way from one child of a container to the next. Nothing is guessed: as soon as a step
    leaves the known way, every stop is worth it.
    """

    def __init__(self, known: Itinerary) -> None:
        self._known = known
        self._at = 0
        self._lost = not known.stops

    def wanted(self, label: Label) -> bool:
        """False where nothing will be issued before the next stop."""
        self._at += 1
        stops = self._known.stops
        self._lost = self._lost or self._at >= len(stops) or stops[self._at] != label
        return self._lost or not self._known.idle[self._at]


def range_name(range_: str) -> str:
    """A range for people."""
    return range_ or OUTSIDE


def layer_name(range_: str, module: str | None, direction: str | None) -> str:
    """A module on its way for people; without a module, the range in parentheses."""
    if module is None:
        return f"({range_})" if range_ else OUTSIDE
    return f"{module or MODEL} {direction}"


def stop_at(starts: Sequence[float], time: float) -> int | None:
    """Index of the stop in which a moment lies; None before the first.

    Args:
        starts: When each stop was entered, s, in order.
        time: In the same clock.
    """
    return bisect_right(starts, time) - 1 if starts and time >= starts[0] else None


def labels_of(steps: Iterable[Itinerary]) -> tuple[Label, ...]:
    """All labels of some steps, each once, in order of appearance."""
    return tuple(dict.fromkeys(label for step in steps for label in step.stops))
