"""Counts what the dispatched operators ask for, on any device and in one pass.

The model: FLOP and bytes of each ATen operator by itself, from the shapes of its operands.

FLOP
    PyTorch's own formulas (``torch.utils.flop_counter.flop_registry``; one FMA is two FLOP) for
    the matmul, convolution and attention family, plus those that it lacks or has wrong
    (``_FORMULAS``). Element-wise work, reductions and normalisations have no formula and are not
    in FLOP. The path is the type of the operands, not of the unit that does the work: fp32
    operands count as fp32 where the hardware takes TF32. Integer matmuls are no FLOP.

Bytes
    Every tensor operand is read once in full and every result is written once. Views and
    allocations move nothing; fills and copies do not read their destination; an in-place
    operator reads and writes its own operand; of an expanded operand only the distinct elements
    count; a lookup (embedding, indexing) reads no more than it returns.

What the figures do not mean:
    * Nothing is kept in a cache between operators, so bytes bound the compulsory traffic of
      unfused operators from above. A kernel that reads an operand twice moves more.
    * An operand counts as read even where the kernel needs a part of it or only its shape; an
      indexed write counts its whole destination. Running statistics that batch norm updates
      behind its schema's back count as read only.
    * Bytes are not told apart by device: a copy from the host counts like one on the device.
    * Compiled functions (``torch.compile``) run eagerly while they are counted, so fusion never
      shows; a warning says where there were any.
    * Kernels that bypass the dispatcher (raw Triton or CUDA launches, CUDA graph replays) and other
      threads' work are invisible; autograd's threads are seen.
    * Operators whose FLOP or bytes could not be told are named in
      ``AnalyticBackend.uncounted_ops``, and what misses one has no value. A step without a single
      operator has none at all: its work went past the dispatcher, if there was any.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from roofprobe.counters import Plan, RegionCounters, RoundCounters
from roofprobe.metrics import ANALYTIC, ANALYTIC_PREFIX

_READ: Final = f"{ANALYTIC_PREFIX}bytes_read.sum"
_WRITE: Final = f"{ANALYTIC_PREFIX}bytes_write.sum"
_EVERYTHING: Final = frozenset(metric.name for metric in ANALYTIC)
_BYTES: Final = frozenset((_READ, _WRITE))
_FLOP: Final = _EVERYTHING - _BYTES
_NOTHING: Final[frozenset[str]] = frozenset()
_PRECISIONS: Final = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
# One complex FMA is 4 multiplications and 4 additions, where the formulas see one FMA.
_COMPLEX_WEIGHT: Final = 4

# Their first operand is a destination, or lends its shape: either way it is not read.
# fmt: off
_FIRST_UNREAD: Final = frozenset((
    "copy_", "_foreach_copy_", "zero_", "_foreach_zero_", "fill_", "bernoulli_", "cauchy_",
    "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_", "new_full",
    "new_ones", "new_zeros", "full_like", "ones_like", "rand_like", "randint_like", "randn_like",
    "zeros_like",
))
_LOOKUPS: Final = frozenset(("embedding", "gather", "index", "index_select", "take"))
_READ_ONLY: Final = frozenset(("_local_scalar_dense", "equal"))
# By prefix from here on.
_MOVES_NOTHING: Final = ("empty", "new_empty", "_empty", "_efficientzerotensor", "record_stream")
_MATRIX_WORK_WITHOUT_FORMULA: Final = (
    "_cdist", "_cudnn_rnn", "_fft_", "_grouped_mm", "_linalg", "_scaled_grouped_mm",
    "_sparse_addmm", "_sparse_mm", "_sparse_semi_structured", "_sparse_sparse", "_trilinear",
    "_weight_int", "addbmm", "cholesky", "geqrf", "linalg_", "lu_solve", "miopen_rnn",
    "mkldnn_convolution", "mkldnn_linear", "mkldnn_rnn", "ormqr", "sparse_sampled",
    "triangular_solve",
)
_NO_MATRIX_WORK: Final = ("linalg_cross", "linalg_vector_norm", "linalg__powsum")
# fmt: on
_BUILTIN: Final = ("aten", "prim", "prims")
# What other processes' data go through: at most a sum, which is no FLOP here either.
_COMMUNICATION: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")

_UNSEEN: Final = (
    "no PyTorch operator ran in the step's own thread: what other threads, CUDA graphs and "
    "kernels launched past PyTorch do is not seen, so this is a gap and no 0"
)

_COMPILED: Final = (
    "compiled functions were modelled as if they ran eagerly, so what fusion saves does not show"
)


def _conv_backward_flop(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **_: Any) -> int:
    # Each gradient takes the multiplications of the forward pass. PyTorch's own formula takes the
    # weight gradient of a grouped convolution too often, by the number of groups.
    *_rest, transposed, _padding, _groups, mask = rest
    gradients: int = sum(mask[:2])
    positions = (x if transposed else grad).shape[2:]
    return gradients * 2 * x.shape[0] * prod(positions) * weight.numel()


def _matvec_flop(*operands: Any, **_: Any) -> int:
    return 2 * max(operand.numel() for operand in operands if isinstance(operand, Tensor))


_aten: Final = torch.ops.aten
_FORMULAS: Final[Mapping[object, Callable[..., int]]] = {
    _aten.convolution_backward: _conv_backward_flop,
    _aten.dot: _matvec_flop,
    _aten.vdot: _matvec_flop,
    _aten.mv: _matvec_flop,
    _aten.addmv: _matvec_flop,
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        _aten._scaled_dot_product_flash_attention
    ],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """How one operator treats its arguments, each named by position and by keyword.

    Attributes:
        composite: It only calls other operators, which are counted instead.
        written: Arguments that it changes.
        unread: Arguments whose content it does not need.
        moves: False for allocations and changes of metadata.
        inspects: Reading is its whole effect; others without a result ask for metadata.
        lookup: It reads no more of its first argument than it returns.
        opaque: It does work that no FLOP formula covers.
    """

    composite: bool
    written: frozenset[int | str]
    unread: frozenset[int | str]
    moves: bool
    inspects: bool
    lookup: bool
    opaque: bool


@cache
def _rule(op: OpOverload[..., Any]) -> _Rule:
    name = op._overloadpacket.__name__
    written: set[int | str] = set()
    unread: set[int | str] = {0, "self"} if name in _FIRST_UNREAD else set()
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {position, argument.name}
            if argument.is_out:
                unread |= {position, argument.name}
    builtin = op.namespace in _BUILTIN
    matrix = name.startswith(_MATRIX_WORK_WITHOUT_FORMULA) and not name.startswith(_NO_MATRIX_WORK)
    return _Rule(
        # TorchScript's own "prim" operators are unknown to the dispatcher.
        composite=op.namespace != "prim"
        and torch._C._dispatch_has_kernel_for_dispatch_key(
            op._name, torch._C.DispatchKey.CompositeImplicitAutograd
        ),
        written=frozenset(written),
        unread=frozenset(unread),
        moves=not name.startswith(_MOVES_NOTHING) and torch.Tag.inplace_view not in op.tags,
        inspects=name in _READ_ONLY,
        lookup=builtin and name in _LOOKUPS,
        opaque=matrix if builtin else op.namespace not in _COMMUNICATION,
    )


_HIGHER_ORDER: Final = _Rule(
    composite=False,
    written=frozenset(),
    unread=frozenset(),
    moves=True,
    inspects=False,
    lookup=False,
    opaque=True,
)


def _tensors(value: object) -> Iterator[Tensor]:
    """Strided tensors in an argument or result; a sparse one is its indices and values."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Tensor):
        if value.layout is torch.strided:
            yield value
        elif value.layout is torch.sparse_coo:
            yield from (value._indices(), value._values())
        elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (value.crow_indices(), value.col_indices(), value.values())
        elif value.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from (value.ccol_indices(), value.row_indices(), value.values())
        else:
            raise NotImplementedError(f"no size is known for a tensor of layout {value.layout}")


def _storage(tensor: Tensor) -> int:
    # A meta or fake tensor has no address, but its storage is an object all the same.
    return int(tensor.untyped_storage()._cdata)


def _distinct(tensor: Tensor) -> int:
    """Number of different elements behind a tensor: expanded and overlapping ones count once."""
    if tensor.numel() == 0:
        return 0
    dims = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step]
    return min(prod(n for n, _ in dims), 1 + sum((n - 1) * step for n, step in dims))


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct elements of all tensors together, views of one storage merged."""
    sizes: dict[int, int] = {}
    views: defaultdict[int, dict[Hashable, int]] = defaultdict(dict)
    for tensor in tensors:
        key = _storage(tensor)
        sizes[key] = tensor.untyped_storage().nbytes()
        view = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        views[key][view] = _distinct(tensor) * tensor.itemsize
    return sum(min(sizes[key], sum(seen.values())) for key, seen in views.items())


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up every operator that is dispatched while it is active."""

    # Without this torch refuses to run a higher-order operator under the mode.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.regions: dict[int, dict[str, float]] = {}
        self.gaps: defaultdict[int, set[str]] = defaultdict(set)  # metrics that miss an operator
        self.enter(0)
        self.uncounted: Counter[str] = Counter()
        self.idle = True  # nothing was dispatched so far
        self.compiled = False  # a compiled function was called

    def enter(self, region: int) -> None:
        """What is dispatched from here on belongs to a region."""
        self.values = self.regions.setdefault(region, {metric.name: 0.0 for metric in ANALYTIC})
        self.missing = self.gaps[region]

    def counts(self, region: int) -> dict[str, float | None]:
        """Sums of a region by metric; None for one that misses an operator."""
        gaps = _EVERYTHING if self.idle else self.gaps[region]
        return {
            name: None if name in gaps else value for name, value in self.regions[region].items()
        }

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self.idle = False
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper tensor calls plain operators, which come back here
        rule = _rule(func) if isinstance(func, OpOverload) else _HIGHER_ORDER
        if rule.composite:  # seen in inference mode only; autograd takes it apart otherwise
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        result = func(*args, **kwargs)
        # Formulas are anybody's code, and an observer must not break the step.
        try:
            self._count_bytes(rule, args, kwargs, result)
            missed = _NOTHING
        except Exception:
            missed = _BYTES
        try:
            missed |= self._count_flop(func, rule, args, kwargs, result)
        except Exception:
            missed |= _FLOP
        if missed:
            self.missing |= missed
            self.uncounted[str(func)] += 1
        return result

    def _count_bytes(
        self, rule: _Rule, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object
    ) -> None:
        arguments = [
            (key, list(_tensors(value))) for key, value in chain(enumerate(args), kwargs.items())
        ]
        operands = [tensor for _, tensors in arguments for tensor in tensors]
        read = [t for key, tensors in arguments if key not in rule.unread for t in tensors]
        written = [t for key, tensors in arguments if key in rule.written for t in tensors]
        # Told by storage rather than by schema: some views declare themselves new tensors.
        known = {_storage(tensor) for tensor in operands}
        written += [tensor for tensor in _tensors(result) if _storage(tensor) not in known]

        if rule.moves and (written or rule.inspects):
            bytes_read, bytes_written = _bytes(read), _bytes(written)
            if rule.lookup:
                bytes_read -= max(0, _bytes(read[:1]) - bytes_written)
            self.values[_READ] += bytes_read
            self.values[_WRITE] += bytes_written

    def _count_flop(
        self,
        func: Any,
        rule: _Rule,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: object,
    ) -> frozenset[str]:
        """Adds an operator's FLOP; the metric that misses them where there is no formula."""
        target = getattr(func, "_overloadpacket", func)
        formula = _FORMULAS.get(target) or flop_registry.get(target)
        if formula is None and not rule.opaque:
            return _NOTHING
        operands = list(_tensors([*args, *kwargs.values()]))
        tensors = chain(operands, _tensors(result) if operands else ())
        dtype = next((t.dtype for t in tensors if t.is_floating_point() or t.is_complex()), None)
        if dtype is None:
            return _NOTHING  # work on integers is no FLOP
        metric = f"{ANALYTIC_PREFIX}flop_{_PRECISIONS.get(dtype.to_real(), 'other')}.sum"
        sparse = any(isinstance(arg, Tensor) and arg.layout is not torch.strided for arg in args)
        if formula is None or sparse:  # formulas are for dense operands
            return frozenset((metric,))
        flop = formula(*args, **kwargs, out_val=result)
        self.values[metric] += flop * (_COMPLEX_WEIGHT if dtype.is_complex else 1)
        return _NOTHING


@contextmanager
def _eager(counter: _Counter) -> Iterator[None]:
    """Within it, compiled functions run eagerly, and the counter learns whether there were any.

    PyTorch tells nobody of such a call. But each one asks what to do under the stance of the moment
    and names its compiler, where functions that must not be compiled name none.
    """
    from torch._dynamo import eval_frame  # ``open`` has paid for it

    module: Any = eval_frame
    # A PyTorch that asks elsewhere costs the warning and no step.
    decide = getattr(module, "_callback_from_stance", lambda compiler: None)

    def decided(compiler: object) -> object:
        counter.compiled |= not isinstance(compiler, bool | None)
        return decide(compiler)

    # torch.compile(fullgraph=True) raises under a dispatch mode unless it may run eagerly.
    with torch.compiler.set_stance("force_eager"):
        module._callback_from_stance = decided
        try:
            yield
        finally:
            module._callback_from_stance = decide


class AnalyticBackend:
    """Counts algorithmic work of this thread's PyTorch operators; see the module for the model."""

    source = "analytic"
    chip: str | None = None

    def __init__(self) -> None:
        self._counter = _Counter()
        self._pass = ExitStack()

    @property
    def uncounted_ops(self) -> Mapping[str, int]:
        """Operators of the latest pass whose FLOP or bytes are missing, with their calls."""
        return dict(self._counter.uncounted)

    def prepare(self, metrics: Sequence[str]) -> Plan:
        """Plans every analytic metric in one pass; hardware metrics are unavailable by name."""
        planned = tuple(metric.name for metric in ANALYTIC)
        hardware = [name for name in metrics if name not in planned]
        why = "a hardware counter, which the analytic backend does not read"
        return Plan(planned, passes=1, unavailable=dict.fromkeys(hardware, why))

    def open(self) -> None:
        """Loads the compiler's front end, so that the first pass does not pay for it."""
        with torch.compiler.set_stance("force_eager"):
            pass

    def begin_pass(self) -> None:
        """Starts counting from zero in this thread; a pass that a failed step left open ends."""
        self.close()
        self._counter = _Counter()
        with ExitStack() as stack:
            stack.enter_context(_eager(self._counter))
            stack.enter_context(self._counter)
            self._pass = stack.pop_all()

    def end_pass(self) -> bool:
        """Stops counting; one pass is a round."""
        self._pass.close()
        return True

    def collect(self) -> RoundCounters:
        """FLOP by operand type and bytes (byte) of the latest pass."""
        values, why = self._counter.counts(0), self._why()
        reasons = {name: why for name, value in values.items() if value is None and why is not None}
        warnings = (why, _COMPILED if self._counter.compiled else None)
        return RoundCounters(
            values, reasons, warnings=tuple(text for text in warnings if text is not None)
        )

    def open_regions(self, switches: int) -> None:
        """As ``open``."""
        self.open()

    def begin_regions(self, region: int) -> None:
        """Starts counting from zero in this thread, in a region."""
        self.begin_pass()
        self._counter.regions.clear()
        self._counter.enter(region)

    def switch(self, region: int) -> None:
        """What is dispatched from here on, in any thread of autograd, belongs to a region."""
        self._counter.enter(region)

    def collect_regions(self) -> RegionCounters:
        """FLOP by operand type and bytes (byte) of the latest pass, by region."""
        values = {region: self._counter.counts(region) for region in self._counter.regions}
        why = self._why()
        missing = {name for one in values.values() for name, value in one.items() if value is None}
        return RegionCounters(values, dict.fromkeys(missing, why) if why is not None else {})

    def _why(self) -> str | None:
        """What keeps the latest pass's counts from being whole; None where nothing does."""
        if self._counter.idle:
            return _UNSEEN
        if not self.uncounted_ops:
            return None
        named = ", ".join(f"{name} ({times})" for name, times in self.uncounted_ops.items())
        return f"operators without a FLOP formula, or whose bytes could not be told: {named}"

    def close(self) -> None:
        """Stops counting where a pass is still open."""
        self._pass.close()
