"""Tells a ``Tracker`` which module of a model works, forward and backward.

Forward, a module's own hooks say when it begins and ends. Backward, there is no hook that serves
every model (``register_full_backward_hook`` makes views of its operands, on which an in-place
activation fails), so the nodes of autograd's graph are hooked themselves: nodes are numbered as
they are made, so a node belongs to the module that was innermost when its number was next. Nodes
that no module made, and those that add up gradients, belong to none.

Compiled modules run as one: their insides are not hooked. TorchScript takes no hooks, so its
modules are a part of the one around them. Nothing stays on the model afterwards.
"""

import dataclasses
import sys
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import MemberDescriptorType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from roofprobe.regions import Frame, Tracker

# Wrappers that put a level of their own between a module and the path that users know.
_WRAPPERS: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Classes that keep what they wrap as ``module``, by name: apex, fairscale and Megatron have some
# of the same names, and PyTorch's FSDP takes long to import.
_PARALLEL: Final = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}
_INNER: Final = "module"
# Their contents are all that they are.
_HOLDERS: Final = (Mapping, list, tuple, set, frozenset)
# Other values of these packages' own types hold no tensors.
_PLAIN: Final = ("builtins", "torch", "numpy")
# Marks a node of autograd's graph that belongs to a module already.
_MARK: Final = "roofprobe"
# AccumulateGrad carries this instead of a number of its own.
_UNNUMBERED: Final = 2**64 - 1


@dataclass(slots=True)
class Unseen:
    """What could not be watched.

    Attributes:
        unhooked: Path of a module that takes no hook -> why.
        outputs: Path of a module that no other one called -> type of what its output holds and
            nobody can look into, though it leads to work.
    """

    unhooked: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)


@contextmanager
def watched(model: nn.Module, tracker: Tracker, unseen: Unseen | None = None) -> Iterator[None]:
    """Within it, the tracker knows the module of ``model`` that works; everything is undone after.

    Args:
        model: Wrappers for data parallelism are looked through.
        tracker: What is told.
        unseen: Takes in what could not be watched.
    """
    watch = _Watch(tracker, Unseen() if unseen is None else unseen)
    with ExitStack() as stack:
        stack.callback(watch.forget)
        for path, module in named_units(model):
            stack.enter_context(watch.module(path, module))
        yield


def named_units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that can be told apart, each once, with the path that its user knows.

    A compiled module is one, without what is in it; one of TorchScript is none.
    """
    return ((path, module) for path, module in _found(model) if not is_scripted(module))


def compiled_units(model: nn.Module) -> list[str]:
    """Paths of the modules that are compiled."""
    return [path for path, module in _found(model) if is_compiled(module)]


def scripted_units(model: nn.Module) -> list[str]:
    """Paths of the modules of TorchScript, without what is in them."""
    return [path for path, module in _found(model) if is_scripted(module)]


def _found(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules but those inside of compiled ones and of TorchScript."""
    while isinstance(model, DataParallel | DistributedDataParallel) and not is_compiled(model):
        model = model.module
    sealed: tuple[str, ...] = ()
    wrappers: set[str] = set()
    for path, module in model.named_modules():
        if path.startswith(sealed):
            continue
        if is_compiled(module) or is_scripted(module):
            sealed = (*sealed, f"{path}." if path else "")
        if _PARALLEL & {kind.__name__ for kind in type(module).__mro__}:
            wrappers.add(path)
        yield _known_path(path, wrappers), module


def is_compiled(module: nn.Module) -> bool:
    """True after ``torch.compile(module)`` or ``module.compile()``."""
    return _wraps_compiled(module) or module._compiled_call_impl is not None


def is_scripted(module: nn.Module) -> bool:
    """True for what ``torch.jit`` scripted, traced or loaded."""
    return isinstance(module, torch.jit.ScriptModule)


def _wraps_compiled(module: nn.Module) -> bool:
    # Importing the compiler takes seconds, and where nobody has there is nothing compiled.
    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(module, compiler.OptimizedModule)


def _known_path(path: str, wrappers: set[str]) -> str:
    """The path without what wrappers put into it.

    Args:
        path: As PyTorch names it.
        wrappers: Paths of those whose ``module`` is no attribute of the user's.
    """
    steps = path.split(".")
    return ".".join(
        step
        for at, step in enumerate(steps)
        if step not in _WRAPPERS and not (step == _INNER and ".".join(steps[:at]) in wrappers)
    )


class _Watch:
    """The hooks of one step."""

    def __init__(self, tracker: Tracker, unseen: Unseen) -> None:
        self._tracker = tracker
        self._unseen = unseen
        self._open: list[tuple[nn.Module, Frame, str]] = []  # forward, outermost first
        self._numbers: list[int] = []  # of the node that is next, at each change of module
        self._owners: list[str | None] = []  # whose it is
        self._roots: list[Any] = []  # nodes that the modules' outputs hang on
        self._borders: list[Any] = []  # nodes that the outermost module's inputs hang on
        self._handles: list[Any] = []

    def module(self, path: str, module: nn.Module) -> ExitStack:
        """Watches one module until what it returns is closed; one that cannot be is left out."""
        undo = ExitStack()
        try:
            if module._compiled_call_impl is not None:
                self._wrap_call(path, module, undo)
            else:
                self._hook_module(path, module, undo)
        except Exception as error:  # a module may forbid it as it likes, and the loop goes on
            undo.close()
            self._unseen.unhooked[path] = " ".join(f"{type(error).__name__}: {error}".split())
        return undo

    def _hook_module(self, path: str, module: nn.Module, undo: ExitStack) -> None:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            # While PyTorch compiles a function around it, a hook becomes a part of that function.
            if not torch.compiler.is_compiling():
                self._begin(path, module, (args, kwargs))

        def after(_: nn.Module, args: Any, output: Any) -> None:
            if not torch.compiler.is_compiling():
                self._end(module, output)

        first = module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        undo.callback(first.remove)
        last = module.register_forward_hook(after, always_call=True)
        undo.callback(last.remove)

    def _wrap_call(self, path: str, module: nn.Module, undo: ExitStack) -> None:
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

        undo.callback(setattr, module, "_compiled_call_impl", call)
        module._compiled_call_impl = watched_call

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
            self._borders = _Search(inputs).nodes
        frame = self._tracker.enter_module(path, "recompute" if again else "forward")
        self._open.append((module, frame, path))
        self._owned_from_here()

    def _end(self, module: nn.Module, output: object) -> None:
        places = [place for place, (open_, _, _) in enumerate(self._open) if open_ is module]
        if not places:
            return
        # An exception may have kept those inside from ending.
        _, frame, path = self._open[places[-1]]
        del self._open[places[-1] :]
        self._tracker.leave(frame)
        self._owned_from_here()
        search = _Search(output)
        self._roots += search.nodes
        if not self._open:
            missed = self._hook_nodes() < self._numbers[-1] - self._numbers[0]
            self._note_closed(path, search.closed, missed=missed)
            self._roots, self._borders = [], []

    def _owned_from_here(self) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(self._open[-1][2] if self._open else None)

    def _note_closed(self, path: str, values: Sequence[object], *, missed: bool) -> None:
        """Of an output that nobody can look into; ``missed`` where nodes were made, not found."""
        for value in values:
            # What is run later is outside of the module, whatever was made before.
            if missed or isinstance(value, Iterator | Awaitable):
                self._unseen.outputs.setdefault(path, type(value).__qualname__)

    def _hook_nodes(self) -> int:
        """Finds the nodes that were made since the outermost module began, and hooks them.

        Returns:
            How many.
        """
        found = 0
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
            found += 1
            node.metadata[_MARK] = True
            owner = self._owners[bisect_right(self._numbers, number) - 1]
            if owner is not None:
                self._hook(node, owner)
            waiting += [following for following, _ in node.next_functions if following is not None]
        return found

    def _hook(self, node: Any, path: str) -> None:
        running: list[Frame] = []

        def before(_: Any) -> None:
            running.append(self._tracker.enter_module(path, "backward"))

        def after(_: Any, __: Any) -> None:
            if running:
                self._tracker.leave(running.pop())

        self._handles += [node.register_prehook(before), node.register_hook(after)]


class _Search:
    """Looks for the nodes of autograd's graph that the tensors in an argument or a result hang on.

    Attributes:
        nodes: Those found.
        closed: What may hold tensors and cannot be looked into.
    """

    def __init__(self, value: object) -> None:
        self.nodes: list[Any] = []
        self.closed: list[object] = []
        self._seen: dict[int, object] = {}  # objects may hold each other in a circle
        self._look(value, inside=False)

    def _look(self, value: object, *, inside: bool) -> None:
        """Looks into a value.

        Args:
            value: Anything.
            inside: It is an attribute of an object of the user's. Those of objects further in are
                not looked at: whole programs hang on them.
        """
        if isinstance(value, Tensor):
            # A tensor that was changed in place through a view may refuse to say.
            with suppress(RuntimeError):
                self.nodes += [] if value.grad_fn is None else [value.grad_fn]
        elif isinstance(value, Iterator | Awaitable):
            self.closed.append(value)  # to see what it gives would use it up
        elif isinstance(value, _HOLDERS) or _is_record(value):
            self._look_inside(value, inside=inside)
        elif type(value).__module__ in _PLAIN or isinstance(value, type):
            return
        elif inside or not self._look_inside(value, inside=True):
            self.closed.append(value)

    def _look_inside(self, value: object, *, inside: bool) -> bool:
        """False where there is nothing that can be seen."""
        if id(value) in self._seen:
            return True
        self._seen[id(value)] = value
        contents = _contents(value)
        for item in contents:
            self._look(item, inside=inside)
        return bool(contents)


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _contents(value: object) -> list[object]:
    """What an object holds; nothing where it refuses to say."""
    with suppress(Exception):  # an object of the user's may do anything when it is asked
        if isinstance(value, Mapping):
            return list(value.values())
        if isinstance(value, _HOLDERS):
            return list(value)
        return [*getattr(value, "__dict__", {}).values(), *_slots(value)]
    return []


def _slots(value: object) -> Iterator[object]:
    for kind in type(value).__mro__:
        for member in vars(kind).values():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # nothing was put into it
                    yield member.__get__(value)
