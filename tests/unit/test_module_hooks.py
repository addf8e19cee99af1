"""Which module works, told from hooks on modules and on autograd's nodes."""

import dataclasses
from collections import OrderedDict
from itertools import groupby

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from roofprobe.layers import Unseen, compiled_units, named_units, scripted_units, watched
from roofprobe.regions import Label, Tracker

OUTSIDE = Label()


class Watch:
    """Labels in the order in which they came, without the way out and in between two modules."""

    def __init__(self):
        self.labels = []
        self.tracker = Tracker(self.labels.append)

    def modules(self, direction, leaving_out=()):
        """Paths in order; a module that is entered twice in a row counts once."""
        paths = [label.module for label in self.labels if label.direction == direction]
        return [path for path, _ in groupby(path for path in paths if path not in leaving_out)]


@pytest.fixture
def watch():
    return Watch()


def linear_chain(*between):
    return nn.Sequential(nn.Linear(4, 4), *between, nn.Linear(4, 4))


def test_a_module_belongs_to_itself_and_the_way_between_to_its_parent(watch):
    model = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.ReLU()))
    with watched(model, watch.tracker), torch.no_grad():
        model(torch.rand(1, 2))
    assert watch.labels == [
        Label("", "", "forward"),
        Label("", "a", "forward"),
        Label("", "", "forward"),
        Label("", "b", "forward"),
        Label("", "", "forward"),
        OUTSIDE,
    ]


def test_backward_goes_the_other_way(watch):
    model = linear_chain(nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    with watched(model, watch.tracker):
        loss = model(torch.rand(3, 4)).sum()
        watch.labels.clear()
        loss.backward()
    # the sum, which no module made, comes first and is outside; so is adding up gradients
    assert watch.modules("backward") == ["3", "2.1", "2.0", "1", "0"]
    assert watch.labels[0] == Label("", "3", "backward")
    assert watch.labels[-1] == OUTSIDE


def test_work_of_a_container_is_the_containers_own(watch):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return x + self.inner(x).exp()

    model = nn.Sequential(Block())
    with watched(model, watch.tracker):
        model(torch.rand(2, 4, requires_grad=True)).sum().backward()
    # exp and the addition are the block's
    assert watch.modules("backward") == ["0", "0.inner"]


def test_in_place_activation_after_a_normalisation(watch):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True))
    with watched(model, watch.tracker):
        model(torch.rand(2, 1, 5, 5)).sum().backward()
    assert watch.modules("backward") == ["2", "1", "0"]


def test_in_place_activation_on_a_view(watch):
    class Halves(nn.Module):
        def forward(self, x):
            x[:, :2].relu_()
            return x

    model = nn.Sequential(nn.Linear(4, 4), Halves())
    with watched(model, watch.tracker):
        model(torch.rand(3, 4)).sum().backward()
    assert watch.modules("backward") == ["1", "0"]


def test_a_module_called_twice(watch):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Tanh()

        def forward(self, x):
            return self.a(self.b(self.a(x)))

    model = Twice()
    with watched(model, watch.tracker):
        model(torch.rand(2, 4)).sum().backward()
    assert watch.modules("forward", [""]) == ["a", "b", "a"]
    assert watch.modules("backward") == ["a", "b", "a"]


def test_a_module_under_two_names_has_the_first(watch):
    shared = nn.Linear(4, 4)
    model = nn.Sequential(OrderedDict(first=shared, act=nn.Tanh(), second=shared))
    with watched(model, watch.tracker):
        model(torch.rand(2, 4)).sum().backward()
    assert watch.modules("backward") == ["first", "act", "first"]
    assert [path for path, _ in named_units(model)] == ["", "first", "act"]


@dataclasses.dataclass
class Out:
    main: torch.Tensor
    extra: dict


class Plain:
    def __init__(self, x):
        self.x = x


class Slotted:
    __slots__ = ("__hidden", "empty")

    def __init__(self, x):
        self.__hidden = x

    @property
    def x(self):
        return self.__hidden


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda x: (x, None, "text"), lambda out: out[0]),
        (lambda x: {"out": [x], "n": 3}, lambda out: out["out"][0]),
        (lambda x: Out(x, {}), lambda out: out.main),
        (lambda x: Out(x.detach(), {"deep": (x,)}), lambda out: out.extra["deep"][0]),
        (Plain, lambda out: out.x),
        (Slotted, lambda out: out.x),
        (lambda x: [Plain({"out": Out(x, {})})], lambda out: out[0].x["out"].main),
    ],
    ids=["tuple", "mapping", "dataclass", "nested", "object", "slots", "nested in an object"],
)
def test_outputs_that_are_no_tensors(watch, pack, unpack):
    class Packing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return pack(self.layer(x).exp())

    model = Packing()
    with watched(model, watch.tracker):
        unpack(model(torch.rand(2, 4))).sum().backward()
    assert watch.modules("backward") == ["", "layer"]


def exponential(pack):
    """A model whose own work, after its only child, is seen by nobody but in what ``pack`` made."""

    class Packing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return pack(self.layer(x).exp())

    return Packing()


def later(x):
    yield x.exp()


class Refuses:
    """Fails whenever it is asked for an attribute."""

    __slots__ = ("x",)

    def __init__(self, x):
        object.__setattr__(self, "x", x)

    @property
    def __dict__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("pack", "kind"),
    [
        (later, "generator"),
        (lambda x: [0, iter([x])], "list_iterator"),
        (lambda x: Plain(Plain(x)), "Plain"),
        (Refuses, "Refuses"),
    ],
    ids=["generator", "iterator", "too deep", "error"],
)
def test_what_cannot_be_looked_into_is_said(watch, pack, kind):
    unseen = Unseen()
    model = nn.Sequential(exponential(pack))
    with watched(model, watch.tracker, unseen):
        model(torch.rand(2, 4))
    assert unseen.outputs == {"": kind}  # of the outermost module, which alone may lose work
    assert unseen.unhooked == {}


def test_where_no_node_was_missed_nothing_is_said(watch):
    unseen = Unseen()
    for pack in (lambda x: [x, Plain(Plain(None))], lambda x: Plain(x.detach())):
        with watched(model := exponential(pack), watch.tracker, unseen), torch.no_grad():
            model(torch.rand(2, 4))
    with watched(model := exponential(lambda x: (x, Plain(Plain(1)))), watch.tracker, unseen):
        model(torch.rand(2, 4))
    assert unseen.outputs == {}


def test_outputs_that_hold_themselves(watch):
    def circle(x):
        out = Out(x, {})
        out.extra["itself"] = [out, Plain(out)]
        return out

    model = exponential(circle)
    with watched(model, watch.tracker):
        model(torch.rand(2, 4)).main.sum().backward()
    assert watch.modules("backward") == ["", "layer"]


def test_an_output_kept_aside_is_found_through_its_own_module(watch):
    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.side = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            self.kept = self.side(x)
            return self.main(x)

    model = Aside()
    with watched(model, watch.tracker):
        out = model(torch.rand(2, 4))
        (out.sum() + model.kept.sum()).backward()
    assert set(watch.modules("backward")) == {"main", "side"}


def test_keyword_inputs(watch):
    class Named(nn.Module):
        def forward(self, *, x):
            return x * 2

    model = Named()
    x = torch.rand(2, requires_grad=True).exp()
    with watched(model, watch.tracker):
        model(x=x).sum().backward()
    # exp was made before the model and is none of its work
    assert watch.labels == [
        Label("", "", "forward"),
        OUTSIDE,
        Label("", "", "backward"),
        OUTSIDE,
    ]


def test_modules_called_one_by_one_without_their_model(watch):
    model = nn.ModuleDict({"encoder": nn.Linear(4, 4), "decoder": nn.Linear(4, 4)})
    with watched(model, watch.tracker):
        hidden = model["encoder"](torch.rand(2, 4))
        model["decoder"](hidden.tanh()).sum().backward()
    # tanh lies between the two and belongs to neither
    assert watch.modules("forward") == ["encoder", "decoder"]
    assert watch.modules("backward") == ["decoder", "encoder"]
    between = watch.labels.index(Label("", "decoder", "backward")) + 1
    assert watch.labels[between] == OUTSIDE


def test_without_gradients_there_is_no_way_back(watch):
    model = linear_chain()
    with watched(model, watch.tracker), torch.no_grad():
        model(torch.rand(2, 4))
    assert watch.modules("backward") == []


def test_frozen_layers_have_no_way_back(watch):
    model = linear_chain(nn.Tanh())
    model[0].requires_grad_(False)
    with watched(model, watch.tracker):
        model(torch.rand(2, 4)).sum().backward()
    assert watch.modules("backward") == ["2"]


def test_a_backward_pass_that_never_reaches_a_module(watch):
    model = linear_chain(nn.Tanh())
    with watched(model, watch.tracker):
        inner = []
        hook = model[1].register_forward_hook(lambda m, a, out: inner.append(out))
        model(torch.rand(2, 4))
        inner[0].sum().backward()
        hook.remove()
    assert watch.modules("backward") == ["1", "0"]


def test_backward_twice_and_higher_derivatives(watch):
    model = linear_chain(nn.Tanh())
    x = torch.rand(2, 4, requires_grad=True)
    with watched(model, watch.tracker):
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        gradient.square().sum().backward()
    # the second derivative's nodes were made by no module; those of the first are run again
    assert watch.modules("backward")[:3] == ["2", "1", "0"]
    assert watch.labels[-1] == OUTSIDE


class BrokenLayerError(Exception):
    pass


@pytest.mark.parametrize("caught", [True, False])
def test_an_exception_in_the_middle(watch, caught):
    class Broken(nn.Module):
        fails = True

        def forward(self, x):
            if self.fails:
                raise BrokenLayerError
            return x

    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Broken()), nn.Tanh())
    if not caught:
        with pytest.raises(BrokenLayerError), watched(model, watch.tracker):
            model(torch.rand(2, 4))
        assert watch.labels[-1] == OUTSIDE
        assert untouched(model)
        return
    with watched(model, watch.tracker):
        with pytest.raises(BrokenLayerError):
            model(torch.rand(2, 4))
        assert watch.labels[-1] == OUTSIDE
        watch.labels.clear()
        Broken.fails = False
        model(torch.rand(2, 4)).sum().backward()
    assert watch.modules("backward") == ["2", "0"]
    assert watch.labels[-1] == OUTSIDE


def test_an_exception_in_the_backward_pass_reaches_the_user(watch):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise BrokenLayerError

    class Layer(nn.Module):
        def forward(self, x):
            return Broken.apply(x)

    model = nn.Sequential(nn.Linear(4, 4), Layer())
    frame = watch.tracker.enter_range("backward")
    with pytest.raises(BrokenLayerError), watched(model, watch.tracker):
        model(torch.rand(2, 4)).sum().backward()
    watch.tracker.leave(frame)
    assert watch.labels[-1] == OUTSIDE
    assert untouched(model)


def untouched(model):
    return all(
        not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._forward_hooks_always_called
        and not module._forward_hooks_with_kwargs
        for module in model.modules()
    )


def test_nothing_stays_on_the_model_or_on_its_graph(watch):
    model = linear_chain(nn.ReLU(inplace=True))
    own = model[0].register_forward_hook(lambda m, a, out: None)
    with watched(model, watch.tracker):
        loss = model(torch.rand(2, 4)).sum()
    assert list(model[0]._forward_hooks) == [own.id]
    own.remove()
    assert untouched(model)
    watch.labels.clear()
    loss.backward()  # a graph that outlived the step
    model(torch.rand(2, 4)).sum().backward()
    assert watch.labels == []


def test_gradients_are_those_without_hooks(watch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(18, 3))
    x = torch.rand(2, 1, 5, 5)

    def gradients():
        model.zero_grad()
        model(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain = gradients()
    with watched(model, watch.tracker):
        seen = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_runs_forward_again(watch, reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.inner, self.after = nn.Linear(4, 4), linear_chain(), nn.Linear(4, 4)

        def forward(self, x):
            return self.after(checkpoint(self.inner, self.before(x), use_reentrant=reentrant))

    model = Checkpointed()
    with watched(model, watch.tracker):
        model(torch.rand(2, 4)).sum().backward()
    assert watch.modules("recompute", ["inner"]) == ["inner.0", "inner.1"]
    # what is left out: the checkpoint's own node, which is the model's
    assert watch.modules("backward", [""]) == ["after", "inner.1", "inner.0", "before"]
    assert watch.labels[-1] == OUTSIDE


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_data_parallel_wrappers_are_looked_through(watch, one_process):
    model = linear_chain(nn.ReLU(inplace=True))
    wrapped = nn.parallel.DistributedDataParallel(model)
    for _ in range(2):  # accumulators of gradients outlive a step here
        watch.labels.clear()
        with watched(wrapped, watch.tracker):
            wrapped(torch.rand(2, 4)).sum().backward()
        assert watch.modules("forward", [""]) == ["0", "1", "2"]
        assert watch.modules("backward") == ["2", "1", "0"]
        assert watch.labels[-1] == OUTSIDE


def test_data_parallel_wrappers_inside_a_model_are_looked_through(watch, one_process):
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    model = nn.Sequential(
        OrderedDict(body=nn.parallel.DistributedDataParallel(body), head=nn.Linear(4, 4))
    )
    with watched(model, watch.tracker):
        model(torch.rand(2, 4)).sum().backward()
    assert watch.modules("forward", [""]) == ["body", "body.0", "body", "body.1", "body", "head"]
    assert watch.modules("backward") == ["head", "body.1", "body.0"]
    assert [path for path, _ in named_units(model)] == [
        "",
        *["body"] * 2,
        "body.0",
        "body.1",
        "head",
    ]


def test_a_users_own_attribute_called_module_stays():
    class DistributedDataParallel(nn.Module):
        """As apex and Megatron have one."""

        def __init__(self, module):
            super().__init__()
            self.module = module

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2)))
            self.module.module.add_module("module", nn.Tanh())

    assert [path for path, _ in named_units(Model())] == [
        *("", "module", "module", "module.0", "module.module")
    ]
    alone = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2)))
    assert [path for path, _ in named_units(alone)] == ["", "", "0"]


def scripted(module):
    return torch.jit.script(module)


def traced(module):
    return torch.jit.trace(module, torch.rand(2, 4))


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
class TestTorchScript:
    @pytest.mark.parametrize("make", [scripted, traced])
    def test_its_work_is_that_of_the_module_around_it(self, watch, make):
        inner = make(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(inner, nn.Linear(4, 4)))
        assert scripted_units(model) == ["1.0"]
        assert [path for path, _ in named_units(model)] == ["", "0", "1", "1.1"]
        for _ in range(4):  # TorchScript's executor settles on a graph in the first calls
            watch.labels.clear()
            with watched(model, watch.tracker):
                model(torch.rand(2, 4)).sum().backward()
            assert watch.modules("forward", [""]) == ["0", "1", "1.1", "1"]
            assert watch.modules("backward") == ["1.1", "1", "0"]
            assert watch.labels[-1] == OUTSIDE
        assert untouched(model)

    def test_a_model_that_is_all_of_it_has_no_modules(self, watch):
        model = scripted(linear_chain())
        assert scripted_units(model) == [""]
        with watched(model, watch.tracker):
            model(torch.rand(2, 4)).sum().backward()
        assert watch.labels == []


@pytest.mark.parametrize("hook", ["register_forward_pre_hook", "register_forward_hook"])
def test_a_module_that_refuses_a_hook_is_left_out_and_has_none(watch, hook):
    class Refusing(nn.Sequential):
        pass

    def refuse(self, *args, **options):
        raise TypeError("no hooks\nhere")

    setattr(Refusing, hook, refuse)
    unseen = Unseen()
    model = nn.Sequential(Refusing(nn.Linear(4, 4)), nn.Tanh())
    with watched(model, watch.tracker, unseen):
        model(torch.rand(2, 4)).sum().backward()
    assert unseen.unhooked == {"0": "TypeError: no hooks here"}
    assert watch.modules("forward", [""]) == ["0.0", "1"]
    assert watch.modules("backward") == ["1", "0.0"]
    assert untouched(model)


def test_a_compiled_wrapper_is_one(watch, one_process):
    wrapped = nn.parallel.DistributedDataParallel(linear_chain(nn.ReLU()))
    wrapped.compile(backend="eager")
    with watched(wrapped, watch.tracker):
        wrapped(torch.rand(2, 4)).sum().backward()
    assert watch.modules("forward") == [""]
    assert set(watch.modules("backward")) == {""}


class TestCompiled:
    def test_a_wrapper_is_one(self, watch):
        model = linear_chain(nn.ReLU())
        compiled = torch.compile(model, backend="eager")
        assert [path for path, _ in named_units(compiled)] == [""]
        assert compiled_units(compiled) == [""]
        for _ in range(2):
            watch.labels.clear()
            with watched(compiled, watch.tracker):
                compiled(torch.rand(2, 4)).sum().backward()
            assert watch.modules("forward") == [""]
            assert set(watch.modules("backward")) == {""}

    def test_in_place_is_one(self, watch):
        model = linear_chain(nn.ReLU())
        model.compile(backend="eager")
        call = model._compiled_call_impl
        for _ in range(2):
            watch.labels.clear()
            with watched(model, watch.tracker):
                model(torch.rand(2, 4)).sum().backward()
            assert watch.modules("forward") == [""]
            assert set(watch.modules("backward")) == {""}
        assert model._compiled_call_impl is call

    def test_a_part_of_a_model(self, watch):
        model = nn.Sequential(nn.Linear(4, 4), linear_chain(nn.ReLU()))
        model[1] = torch.compile(model[1], backend="eager")
        assert [path for path, _ in named_units(model)] == ["", "0", "1"]
        with watched(model, watch.tracker):
            model(torch.rand(2, 4)).sum().backward()
        assert watch.modules("forward", [""]) == ["0", "1"]
        assert watch.modules("backward") == ["1", "0"]

    def test_an_exception_leaves_the_call_as_it_was(self, watch):
        model = linear_chain()
        model.compile(backend="eager")
        call = model._compiled_call_impl
        with pytest.raises(Exception, match=r"reduction dim|multiplied"):  # noqa: SIM117
            with watched(model, watch.tracker):
                model(torch.rand(2, 5))
        assert model._compiled_call_impl is call
        assert watch.labels[-1] == OUTSIDE

    def test_a_function_around_the_model_has_no_modules_and_no_breaks(self, watch):
        model = linear_chain(nn.ReLU())
        step = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)
        with watched(model, watch.tracker):
            step(torch.rand(2, 4)).backward()
        assert watch.labels == []

    def test_with_inductors_graphs_the_way_back_is_one_node(self, watch):
        model = linear_chain(nn.ReLU())
        compiled = torch.compile(model, backend="aot_eager")
        with watched(compiled, watch.tracker):
            compiled(torch.rand(2, 4)).sum().backward()
        assert watch.modules("forward") == [""]
        assert watch.modules("backward") == [""]


def test_ranges_of_the_users_inside_modules(watch):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(4, 4)

        def forward(self, x):
            frame = watch.tracker.enter_range("scores")
            out = self.proj(x).softmax(-1)
            watch.tracker.leave(frame)
            return out

    model = Attention()
    with watched(model, watch.tracker), torch.no_grad():
        model(torch.rand(1, 4))
    assert watch.labels == [
        Label("", "", "forward"),
        Label("scores", "", "forward"),
        Label("scores", "proj", "forward"),
        Label("scores", "", "forward"),
        Label("", "", "forward"),
        OUTSIDE,
    ]


def test_names_of_wrappers_are_not_the_users():
    model = nn.Sequential(OrderedDict(block=nn.Module()))
    model.block.add_module("_checkpoint_wrapped_module", nn.Linear(2, 2))
    assert [path for path, _ in named_units(model)] == ["", "block", "block"]
