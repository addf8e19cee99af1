"""One step under the analytic model, to stand beside what the hardware counted of others."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from roofprobe import metrics
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.record import Modelled, total

# Kinds of operators that hardware may do in another way than their formula says.
_KINDS: Final = ("other", "convolution", "attention")


def _kind(operator: str, arguments: Sequence[Any]) -> str:
    """The kind of an operator, which ``_KINDS`` lists.

    A convolution whose kernel is one point is a matrix product, and no trick saves it anything.
    """
    if "attention" in operator:
        return "attention"
    if "conv" not in operator:
        return "other"
    weight = arguments[2 if "backward" in operator else 1 :][:1]
    pointwise = weight and isinstance(weight[0], torch.Tensor) and prod(weight[0].shape[2:]) == 1
    return "other" if pointwise else "convolution"


class _ByKind(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells of each operator, before it runs, the number of its kind."""

    supports_higher_order_operators = True  # as the analytic backend below it does

    def __init__(self, switch: Callable[[int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._switch = switch

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper tensor's plain operators come back here
        self._switch(_KINDS.index(_kind(str(func), args)))
        return func(*args, **(kwargs or {}))


class ModelOfStep:
    """The analytic model of one step. What fails in it costs its result and nothing else.

    Attributes:
        result: What was counted.
        error: What failed first.
    """

    def __init__(self) -> None:
        self.result: Modelled | None = None
        self.error: Exception | None = None
        self._backend = AnalyticBackend()
        self._counting = ExitStack()

    def begin(self) -> None:
        """What is dispatched from here on is counted."""
        # The work of torch and of formulas from anywhere: whatever they raise is no step's failure.
        try:
            with ExitStack() as stack:
                stack.callback(self._backend.close)
                self._backend.open()
                self._backend.begin_regions(0)
                stack.enter_context(_ByKind(self._backend.switch))
                self._counting = stack.pop_all()
        except Exception as error:
            self.error = error

    def end(self) -> None:
        """Counts no more."""
        try:
            self._counting.close()
            if self.error is None:
                self.result = self._modelled()
        except Exception as error:
            self.error = self.error or error

    def _modelled(self) -> Modelled:
        counted = self._backend.collect_regions()
        flop = [row.name for row in metrics.ANALYTIC if row.kind == "flop"]
        return Modelled(
            counters={
                row.name: total(values[row.name] for values in counted.values.values())
                for row in metrics.ANALYTIC
            },
            flop={
                kind: total(counted.values[index][name] for name in flop)
                for index, kind in enumerate(_KINDS)
                if index in counted.values
            },
            uncounted=self._backend.uncounted_ops,
            reason=next(iter(counted.reasons.values()), None),
        )
