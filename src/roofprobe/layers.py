"""Tells a ``Tracker`` which module of a model works, forward and backward.

Forward, a module's own hooks say when it begins and ends. Backward, there is no hook that serves
every model (``register_full_backward_hook`` makes views of its operands, on which an in-place
activation fails), so the nodes of autograd's graph are hooked themselves: nodes are numbered as
they are made, so a node belongs to the module that was innermost when its number was next. Nodes
that no module made, and those that add up gradients, belong to none.

Compiled modules run as one: their insides are not hooked. Nothing stays on the model afterwards.
"""

import dataclasses
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from roofprobe.regions import Frame, Tracker

# Wrappers that put a level of their own between a module and the path that users know.
_WRAPPERS: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Marks a node of autograd's graph that belongs to a module already.
_MARK: Final = "roofprobe"
# AccumulateGrad carries this instead of a number of its own.
_UNNUMBERED: Final = 2**64 - 1


@contextmanager
def watched(model: nn.Module, tracker: Tracker) -> Iterator[None]:
    """Within it, the tracker knows the module of ``model`` that works; everything is undone after.

    Args:
        model: Wrappers for data parallelism are looked through.
        tracker: What is told.
    """
    watch = _Watch(tracker)
    with ExitStack() as stack:
        stack.callback(watch.forget)
        for path, module in named_units(model):
            stack.enter_context(watch.module(path, module))
        yield


def named_units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that can be told apart, each once, with the path that its user knows.

    A compiled module is one, without what is in it.
    """
    while isinstance(model, DataParallel | DistributedDataParallel) and not is_compiled(model):
        model = model.module
    sealed: set[int] = set()
    for path, module in model.named_modules():
        if id(module) in sealed:
            continue
        if is_compiled(module):
            sealed |= {id(inner) for inner in module.modules()}
        yield _known_path(path), module


def compiled_units(model: nn.Module) -> list[str]:
    """Paths of the modules that are compiled."""
    return [path for path, module in named_units(model) if is_compiled(module)]


def is_compiled(module: nn.Module) -> bool:
    """True after ``torch.compile(module)`` or ``module.compile()``."""
    return _wraps_compiled(module) or module._compiled_call_impl is not None


def _wraps_compiled(module: nn.Module) -> bool:
    # Importing the compiler takes seconds, and where nobody has there is nothing compiled.
    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(module, compiler.OptimizedModule)


def _known_path(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


class _Watch:
    """The hooks of one step."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._open: list[tuple[nn.Module, Frame, str]] = []  # forward, outermost first
        self._numbers: list[int] = []  # of the node that is next, at each change of module
        self._owners: list[str | None] = []  # whose it is
        self._roots: list[Any] = []  # nodes that the modules' outputs hang on
        self._borders: list[Any] = []  # nodes that the outermost module's inputs hang on
        self._handles: list[Any] = []

    @contextmanager
    def module(self, path: str, module: nn.Module) -> Iterator[None]:
        """Watches one module."""
        if module._compiled_call_impl is not None:
            with self._compiled_in_place(path, module):
                yield
            return

        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            # While PyTorch compiles a function around it, a hook becomes a part of that function.
            if not torch.compiler.is_compiling():
                self._begin(path, module, (args, kwargs))

        def after(_: nn.Module, args: Any, output: Any) -> None:
            if not torch.compiler.is_compiling():
                self._end(module, output)

        first = module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        last = module.register_forward_hook(after, always_call=True)
        try:
            yield
        finally:
            first.remove()
            last.remove()

    @contextmanager
    def _compiled_in_place(self, path: str, module: nn.Module) -> Iterator[None]:
        """After ``module.compile()`` its hooks are compiled with it, so its call is wrapped."""
        call: Callable[..., Any] | None = module._compiled_call_impl
        assert call is not None

        def watched_call(*args: Any, **kwargs: Any) -> Any:
            output = None
            self._begin(path, module, (args, kwargs))
            try:
                output = call(*args, **kwargs)
            finally:
                self._end(module, output)
            return output

        module._compiled_call_impl = watched_call
        try:
            yield
        finally:
            module._compiled_call_impl = call

    def forget(self) -> None:
        """Takes the hooks off the nodes of graphs that outlive the step."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _begin(self, path: str, module: nn.Module, inputs: object) -> None:
        # Inside the backward pass a module runs forward because a checkpoint asks for it.
        again = torch._C._current_graph_task_id() != -1
        if not self._open:
            self._numbers, self._owners, self._roots = [], [], []
            self._borders = list(_nodes(inputs))
        frame = self._tracker.enter_module(path, "recompute" if again else "forward")
        self._open.append((module, frame, path))
        self._owned_from_here()

    def _end(self, module: nn.Module, output: object) -> None:
        places = [place for place, (open_, _, _) in enumerate(self._open) if open_ is module]
        if not places:
            return
        # An exception may have kept those inside from ending.
        _, frame, _ = self._open[places[-1]]
        del self._open[places[-1] :]
        self._tracker.leave(frame)
        self._owned_from_here()
        self._roots += _nodes(output)
        if not self._open:
            self._hook_nodes()
            self._roots, self._borders = [], []

    def _owned_from_here(self) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(self._open[-1][2] if self._open else None)

    def _hook_nodes(self) -> None:
        """Finds the nodes that were made since the outermost module began, and hooks them."""
        borders = {id(node) for node in self._borders}
        seen: dict[int, Any] = {}  # keeps each node's Python object, and with it its id, alive
        waiting = list(self._roots)
        while waiting:
            node = waiting.pop()
            if id(node) in seen or id(node) in borders:
                continue
            seen[id(node)] = node
            number = node._sequence_nr()
            if number == _UNNUMBERED or number < self._numbers[0] or _MARK in node.metadata:
                continue
            node.metadata[_MARK] = True
            owner = self._owners[bisect_right(self._numbers, number) - 1]
            if owner is not None:
                self._hook(node, owner)
            waiting += [following for following, _ in node.next_functions if following is not None]

    def _hook(self, node: Any, path: str) -> None:
        running: list[Frame] = []

        def before(_: Any) -> None:
            running.append(self._tracker.enter_module(path, "backward"))

        def after(_: Any, __: Any) -> None:
            if running:
                self._tracker.leave(running.pop())

        self._handles += [node.register_prehook(before), node.register_hook(after)]


def _nodes(value: object) -> Iterator[Any]:
    """Nodes of autograd's graph that the tensors in an argument or a result hang on."""
    if isinstance(value, Tensor):
        # A tensor that was changed in place through a view may refuse to say.
        with suppress(RuntimeError):
            if value.grad_fn is not None:
                yield value.grad_fn
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _nodes(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _nodes(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _nodes(getattr(value, field.name, None))
