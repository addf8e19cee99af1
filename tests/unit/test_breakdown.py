"""Parts of a step: counted with the analytic backend, attributed from hand-made traces."""

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import roofprobe
from roofprobe import metrics
from roofprobe.activity import Span, Trace
from roofprobe.breakdown import Breakdown
from roofprobe.counters import Plan, RegionCounters, RoundCounters, counts_regions
from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.errors import UsageError
from roofprobe.parts import STEP_TIME, checks, parts, phases, within

QUICK = {"device": "cpu", "warmup": 1, "timed": 1}
FLOP = "analytic__flop_fp32.sum"
READ = "analytic__bytes_read.sum"

BATCH, A, B, C, D = 8, 16, 32, 24, 10


def three_layers():
    return nn.Sequential(
        nn.Linear(A, B), nn.ReLU(inplace=True), nn.Linear(B, C), nn.ReLU(), nn.Linear(C, D)
    )


def training_step(model, optimizer, probe, x, targets):
    with probe.range("forward"):
        out = model(x)
    with probe.range("loss"):
        loss = cross_entropy(out, targets)
    with probe.range("backward"):
        loss.backward()
    with probe.range("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def measured(by, model=None, step=None, **options):
    model = three_layers() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, targets = torch.rand(BATCH, A), torch.randint(0, D, (BATCH,))
    with roofprobe.measure("net", by=by, model=model, **{**QUICK, **options}) as probe:
        while not probe.done:
            with probe.step():
                if step is None:
                    training_step(model, optimizer, probe, x, targets)
                else:
                    step(model, probe, x)
    assert probe.result.complete
    return probe.result


def flop(record):
    """FLOP by part, of those that have any."""
    found = {part.name: part.figures.flop_total.value for part in parts(record)}
    return {name: value for name, value in found.items() if value}


def counts(record):
    """Checks of what was counted: wall clock of such short steps is mostly the labelling."""
    return [check for check in checks(record) if check.name != STEP_TIME]


class TestByLayer:
    def test_flop_of_every_layer_are_exact_both_ways(self):
        record = measured("layer")
        # an m x k by k x n product is 2mkn FLOP, and so is each gradient; the first layer's
        # input needs none
        ab, bc, cd = (2 * BATCH * m * n for m, n in ((A, B), (B, C), (C, D)))
        assert flop(record) == {
            "0 forward": ab,
            "2 forward": bc,
            "4 forward": cd,
            "4 backward": 2 * cd,
            "2 backward": 2 * bc,
            "0 backward": ab,
        }

    def test_bytes_of_activations_are_exact_and_in_place_ones_seen(self):
        record = measured("layer")
        read = {part.name: part.record.value(READ) for part in parts(record)}
        # fp32; relu reads its input, its gradient reads the result and the incoming gradient
        assert read["1 forward"] == 4 * BATCH * B
        assert read["1 backward"] == 2 * 4 * BATCH * B
        assert read["3 backward"] == 2 * 4 * BATCH * C

    def test_parts_add_up_to_a_step_that_was_not_cut(self):
        record = measured("layer")
        assert [check.name for check in checks(record)] == ["FLOP", "dram", "step time"]
        assert all(check.ratio == 1 for check in counts(record))
        # what belongs to no module is there by its phase
        names = [part.name for part in parts(record)]
        assert {"(loss)", "(backward)", "(optimizer)", "(outside)"} <= set(names)

    def test_sums_by_prefix(self):
        body = nn.Sequential(nn.Linear(A, B), nn.Tanh())
        record = measured("layer", nn.Sequential(body, nn.Linear(B, D)))
        ab, bd = 2 * BATCH * A * B, 2 * BATCH * B * D
        assert within(record, "0").figures.flop_total.value == 2 * ab
        assert within(record, "").figures.flop_total.value == 2 * ab + 3 * bd
        assert within(record, "backward").figures.flop_total.value == ab + 2 * bd
        with pytest.raises(UsageError, match="no part called 'nonsense'"):
            within(record, "nonsense")

    def test_phases_of_the_same_measurement(self):
        record = measured("layer")
        named = {part.name: part.figures.flop_total.value for part in phases(record)}
        ab, bc, cd = (2 * BATCH * m * n for m, n in ((A, B), (B, C), (C, D)))
        assert named["forward"] == ab + bc + cd
        assert named["backward"] == ab + 2 * bc + 2 * cd
        assert named["loss"] == named["optimizer"] == 0

    def test_a_checkpoint_shows_what_it_computes_again(self):
        class Checkpointed(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.head = nn.Linear(A, B), nn.Linear(B, D)

            def forward(self, x):
                return self.head(checkpoint(self.inner, x, use_reentrant=False))

        found = flop(measured("layer", Checkpointed()))
        ab = 2 * BATCH * A * B
        assert found["inner forward"] == found["inner backward"] == ab
        # it stops as soon as it has the input again, which the backward pass asks for: nothing of
        # a linear layer has to be computed for that
        assert found.get("inner recompute", 0) in (0, ab)

    def test_rounds_are_kept_apart(self):
        record = measured("layer", rounds=3)
        assert len(record.rounds) == 3
        assert all(len(segment.counters) == 3 for segment in record.regions.segments)
        assert all(check.ratio == 1 for check in counts(record))

    def test_times_are_wall_clock_here_and_cover_the_step(self):
        record = measured("layer")
        assert record.regions.time_source == "perf_counter"
        assert record.regions.kernels == ()
        assert all(segment.time > 0 for segment in record.regions.segments)
        assert all(segment.launches is None for segment in record.regions.segments)
        (check,) = (check for check in checks(record) if check.name == STEP_TIME)
        assert check.parts == pytest.approx(sum(s.time for s in record.regions.segments))
        assert check.whole == record.timing.median

    def test_the_record_survives_its_file(self, tmp_path):
        record = measured("layer")
        again = roofprobe.Measurement.load(record.save(tmp_path / "run.json"))
        assert again == record
        assert flop(again) == flop(record)

    def test_a_function_that_is_compiled_around_the_model_is_said_to_have_no_layers(self):
        model = three_layers()
        compiled = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)

        def step(_, probe, x):
            with probe.range("forward"):
                loss = compiled(x)
            with probe.range("backward"):
                loss.backward()

        # counted eagerly by this backend, so only the labelled step shows what a GPU would see
        breakdown = Breakdown("layer", model, cuda=False)
        with breakdown.labelled(None):
            step(None, breakdown, torch.rand(BATCH, A))
        breakdown.settle(())
        found = breakdown.result([], between=None)
        assert {segment.range for segment in found.segments} == {"", "forward", "backward"}
        assert any("layers cannot be told apart, phases can" in note for note in found.notes)
        assert any("another model than the one that the steps run" in note for note in found.notes)
        assert not any("CUDA" in note for note in found.notes)  # there is none on a CPU

    def test_modules_that_counted_steps_alone_meet_are_not_said_to_be_called_in_no_step(self):
        model = three_layers()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        record = measured("layer", model, lambda _, __, x: compiled(x).sum().backward())
        ab, bc, cd = (2 * BATCH * m * n for m, n in ((A, B), (B, C), (C, D)))
        assert flop(record) == {"(outside)": 2 * ab + 3 * bc + 3 * cd}
        (note,) = record.regions.notes
        assert note.startswith("parts that no labelled step had are counted as outside of ")
        assert "a compiled function hides them where it does not run eagerly" in note
        assert note.endswith("layers cannot be told apart, phases can (probe.range)")

    def test_a_compiled_model_is_one_part_and_that_is_said(self):
        model = three_layers()
        model.compile(backend="eager")
        record = measured("layer", model)
        ab, bc, cd = (2 * BATCH * m * n for m, n in ((A, B), (B, C), (C, D)))
        assert flop(record) == {
            "(model) forward": ab + bc + cd,
            "(model) backward": ab + 2 * bc + 2 * cd,
        }
        assert any("compiled" in note and "the model" in note for note in record.regions.notes)

    @pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
    def test_torchscript_is_a_part_of_the_module_around_it_and_the_loop_goes_on(self):
        model = nn.Sequential(
            nn.Linear(A, B), torch.jit.script(nn.Sequential(nn.Linear(B, C), nn.ReLU()))
        )
        model.append(nn.Linear(C, D))
        record = measured("layer", model)
        ab, bc, cd = (2 * BATCH * m * n for m, n in ((A, B), (B, C), (C, D)))
        assert flop(record) == {
            "(model) forward": bc,
            "0 forward": ab,
            "2 forward": cd,
            "2 backward": 2 * cd,
            "(model) backward": 2 * bc,
            "0 backward": ab,
        }
        (note,) = record.regions.notes
        assert note.startswith("TorchScript takes no hooks, so these have no rows of their own: 1;")

    @pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
    def test_a_model_of_torchscript_alone_is_not_taken_for_another_model(self):
        record = measured("layer", torch.jit.script(three_layers()))
        (note,) = record.regions.notes
        assert "no rows of their own: the model;" in note
        assert "(forward)" in flop(record)

    def test_a_module_that_refuses_hooks_is_left_out_and_that_is_said(self):
        class Refusing(nn.Linear):
            def register_forward_pre_hook(self, *args, **options):
                raise TypeError("no hooks here")

        record = measured("layer", nn.Sequential(nn.Linear(A, B), Refusing(B, D)))
        assert flop(record)["(model) forward"] == 2 * BATCH * B * D
        (note,) = record.regions.notes
        assert note.startswith("no hook could be put on 1 (TypeError: no hooks here): ")

    def test_what_comes_from_a_generator_is_outside_and_that_is_said(self):
        class Later(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.weight = nn.Linear(A, B), nn.Parameter(torch.rand(B, D))

            def forward(self, x):
                hidden = self.inner(x)
                return (part @ self.weight for part in [hidden])

        record = measured("layer", Later(), lambda model, _, x: next(model(x)).sum().backward())
        # both ways of the product with the weight; the products that autograd needs are two
        assert flop(record)["(outside)"] == 3 * 2 * BATCH * B * D
        (note,) = record.regions.notes
        assert note == (
            "outputs hold objects that cannot be looked into ((model): generator), so work that "
            "hangs on these alone, forward or backward, belongs to no module"
        )

    def test_an_exception_in_a_step_leaves_the_model_as_it_was(self):
        model = three_layers()
        for fail_at in range(5):
            calls = iter(range(10))

            def step(model, probe, x, calls=calls, fail_at=fail_at):
                model(x).sum().backward()
                if next(calls) == fail_at:
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                measured("layer", model, step)
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        assert flop(measured("layer", model))["0 forward"] == 2 * BATCH * A * B

    @pytest.mark.parametrize("steps", [1, 2, 3, 4])
    def test_a_loop_that_ends_early(self, steps):
        model = three_layers()
        with roofprobe.measure("net", by="layer", model=model, **QUICK) as probe:
            assert probe.steps_needed == 5  # warm-up, timed, labelled, whole, by part
            for _ in probe.steps(range(steps)):
                model(torch.rand(BATCH, A)).sum().backward()
        record = probe.result
        assert not record.complete
        assert record.steps_missing == 5 - steps
        assert (record.regions is None) == (steps < 3)
        if record.regions is not None:
            assert all(segment.counters == () for segment in record.regions.segments)
            assert counts(record) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arch", ["resnet18", "densenet121", "googlenet", "swin_t"])
def test_every_layer_of_known_models_does_twice_the_work_backward(arch):
    # one product for the weights and one for the input, which the first layer does not need
    model = getattr(torchvision.models, arch)(weights=None).train()
    images = torch.rand(2, 3, 64, 64)

    def step(model, probe, _):
        outputs = model(images)
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        sum(out.sum() for out in outputs if out is not None).backward()

    record = measured("layer", model, step)
    assert all(check.ratio == 1 for check in counts(record))
    found = flop(record)
    layers = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and f"{path} forward" in found
    ]
    assert len(layers) > 15
    ratios = {path: found[f"{path} backward"] / found[f"{path} forward"] for path in layers}
    assert ratios == {path: 1 if path == layers[0] else 2 for path in layers}


class TestByPhase:
    def test_ranges_nest_and_modules_are_not_told_apart(self):
        first, second = nn.Linear(A, B), nn.Linear(B, D)

        def step(model, probe, x):
            with probe.range("forward"):
                with probe.range("attention"):
                    hidden = first(x)
                second(hidden)

        record = measured("phase", nn.Sequential(first, second), step)
        assert flop(record) == {
            "forward/attention": 2 * BATCH * A * B,
            "forward": 2 * BATCH * B * D,
        }
        both = 2 * BATCH * (A * B + B * D)
        assert within(record, "forward").figures.flop_total.value == both
        assert all(segment.module is None for segment in record.regions.segments)

    def test_without_any_range_all_is_outside(self):
        record = measured("phase", step=lambda model, probe, x: model(x))
        assert [part.name for part in parts(record)] == ["(outside)"]
        assert checks(record)[0].ratio == 1
        (note,) = record.regions.notes
        assert note.startswith("no range was opened in a step, so that the whole step is one part")

    def test_with_ranges_nothing_is_said_of_them(self):
        assert measured("phase").regions.notes == ()

    def test_the_loops_own_time_between_steps(self):
        model = three_layers()
        with roofprobe.measure("net", by="phase", **{**QUICK, "timed": 3}) as probe:
            while not probe.done:
                with probe.step():
                    model(torch.rand(BATCH, A))
        assert probe.result.regions.between > 0

    def test_a_range_around_the_steps_holds_nothing_and_that_is_said(self):
        model = three_layers()
        with (
            roofprobe.measure("net", by="phase", **QUICK) as probe,
            probe.range("epoch"),
            probe.range("inner"),
        ):
            for _ in probe.steps(range(10)):
                with probe.range("forward"):
                    model(torch.rand(BATCH, A))
        record = probe.result
        said = [text for text in record.warnings if "between steps" in text]
        assert [text.split(" was")[0] for text in said] == [
            "probe.range('epoch')",
            "probe.range('inner')",
        ]
        assert "forward" in {part.name for part in parts(record)}

    @pytest.mark.parametrize("name", ["", "a/b", None, 3])
    def test_names_that_cannot_be(self, name):
        named = roofprobe.measure("net", by="phase", **QUICK)
        with named as probe, pytest.raises(UsageError, match="name of a range"):
            probe.range(name)


class TestWhatIsAskedFor:
    def test_layers_of_no_model(self):
        with pytest.raises(UsageError, match="pass model="), roofprobe.measure(by="layer", **QUICK):
            pass

    @pytest.mark.parametrize("model", [lambda x: x, [nn.Linear(A, B)], nn.Linear])
    def test_layers_of_what_is_no_module(self, model):
        options = {"by": "layer", "model": model, **QUICK}
        kind = pytest.raises(UsageError, match=r"type (function|list|type), ")
        with kind, roofprobe.measure(**options):
            pass

    def test_kernels_on_a_cpu(self):
        with (
            pytest.raises(UsageError, match="kernel records"),
            roofprobe.measure(by="kernel", **QUICK),
        ):
            pass

    def test_another_word(self):
        with (
            pytest.raises(UsageError, match="phase, layer, kernel"),
            roofprobe.measure(by="module", **QUICK),
        ):
            pass

    def test_a_backend_that_counts_whole_steps_only(self):
        class WholeSteps:
            source = "whole"
            chip = None
            prepare = open = begin_pass = end_pass = collect = close = print

        with (
            pytest.raises(UsageError, match="whole counts whole ones"),
            roofprobe.measure(by="phase", backend=WholeSteps(), **QUICK),
        ):
            pass

    def test_ranges_of_a_step_that_is_measured_as_a_whole_do_nothing_and_that_is_said(self):
        record = measured("step")
        assert record.regions is None
        assert any("by='phase'" in warning for warning in record.warnings)

    def test_whole_steps_take_no_further_steps(self):
        with roofprobe.measure("net", **QUICK) as probe:
            assert probe.steps_needed == 3


class Counted:
    """A backend that writes down what it is told; every region counts how often it was entered."""

    def __init__(self):
        self.told = []
        self.entered = {}

    def open_regions(self, switches):
        self.told.append(("open", switches))

    def begin_regions(self, region):
        self.told.append(region)
        self.entered[region] = self.entered.get(region, 0) + 1

    def switch(self, region):
        self.begin_regions(region)

    def collect_regions(self):
        values, self.entered = self.entered, {}
        return RegionCounters({key: {"m.sum": float(n)} for key, n in values.items()})


class Marks:
    """Takes the place of a tracer: a mark a second."""

    def __init__(self):
        self.count = 0

    def mark(self):
        self.count += 1


def sequence(breakdown, *names):
    for name in names:
        with breakdown.range(name):
            pass


def test_backends_that_count_parts():
    from roofprobe.counters.cupti import CuptiBackend
    from roofprobe.counters.recorded import CounterFile, RecordedBackend

    assert counts_regions(AnalyticBackend())
    assert counts_regions(CuptiBackend(0, lambda: None))  # without asking any GPU
    assert not counts_regions(RecordedBackend(CounterFile("GH100", (), 1, ())))


class TestBoundaries:
    """Labels of one step: outside, a, outside, b, outside, a, outside."""

    def settled(self, spans, names=("a", "b", "a")):
        breakdown = Breakdown("phase", None, cuda=True)
        traces = []
        for _ in range(2):
            marks = Marks()
            with breakdown.labelled(marks):
                sequence(breakdown, *names)
            # stops begin at 0, 1, 2 ... s of the trace
            traces.append(Trace(tuple(spans), tuple(map(float, range(marks.count)))))
        breakdown.settle(traces)
        return breakdown

    def counted(self, breakdown, *passes):
        backend = Counted()
        breakdown.open(backend)
        for names in passes:
            with breakdown.counted(backend):
                sequence(breakdown, *names)
        breakdown.collect(backend, ())
        return backend.told

    # outside is region 0, a is 1, b is 2
    WORK = (Span("kernel", 1.5, 1.6), Span("kernel", 3.5, 3.6), Span("transfer", 5.2, 5.3))

    def test_only_stops_with_work_take_a_boundary(self):
        told = self.counted(self.settled(self.WORK), ("a", "b", "a"))
        assert told[1:] == [0, 1, 2, 1]

    def test_work_outside_is_not_given_to_a_neighbour(self):
        told = self.counted(self.settled((*self.WORK, Span("fill", 4.5, 4.6))), ("a", "b", "a"))
        assert told[1:] == [0, 1, 2, 0, 1]

    def test_another_way_takes_every_boundary_from_there_on(self):
        told = self.counted(self.settled(self.WORK), ("a", "a", "b"))
        # known: into a, and that nothing runs after it; then a again where b was expected
        assert told[1:] == [0, 1, 0, 2, 0]

    def test_parts_that_only_some_passes_entered_have_no_counts(self):
        breakdown = self.settled(self.WORK)
        self.counted(breakdown, ("a", "b", "a"), ("a",))
        found = breakdown.result(["m.sum"], between=None)
        values = {segment.range: segment.counters for segment in found.segments}
        assert values["b"] == ({"m.sum": None},)
        assert values["a"][0]["m.sum"] is not None
        assert any("only some passes" in note and "b" in note for note in found.notes)

    def test_parts_that_were_not_there_before_are_outside_and_that_is_said(self):
        breakdown = self.settled(self.WORK)
        self.counted(breakdown, ("a", "new", "a"))
        found = breakdown.result(["m.sum"], between=None)
        assert "new" not in {segment.range for segment in found.segments}
        assert any("new" in note for note in found.notes)

    def test_what_the_step_has_none_of_is_zero_and_takes_no_counter(self):
        breakdown = self.settled(self.WORK)
        backend = Counted()
        breakdown.open(backend)
        with breakdown.counted(backend):
            sequence(breakdown, "a", "b", "a")
        breakdown.collect(backend, ["fp8.sum"])
        found = breakdown.result(["m.sum", "fp8.sum"], between=None)
        values = {segment.range: segment.counters[0] for segment in found.segments}
        assert values["a"] == {"m.sum": 2.0, "fp8.sum": 0.0}

    def test_room_for_every_switch(self):
        told = self.counted(self.settled(self.WORK), ("a", "b", "a"))
        assert told[0][1] >= 3


SEEN = {
    name: 0.0 if "__sass_" in name else 100.0
    for name in metrics.with_coverage(metrics.metric_set("full", "GH100"))
}


class Uninstrumented(Counted):
    """As CUPTI counts under a profiler: SASS counters read 0, and hardware counters do not."""

    source = "cupti"
    chip = "GH100"

    def prepare(self, metrics):
        return Plan(tuple(name for name in metrics if name in SEEN), 1)

    def open(self):
        self.told.append("open")

    def begin_pass(self):
        self.told.append("whole")

    def close(self):
        self.told.append("close")

    def end_pass(self):
        return True

    def collect(self):
        return RoundCounters(SEEN, {})

    def collect_regions(self):
        return RegionCounters({0: {name: value for name, value in SEEN.items() if value}})


def test_what_is_withheld_of_the_step_is_withheld_of_its_parts():
    record = measured("phase", step=lambda model, probe, x: model(x), backend=Uninstrumented())
    assert not record.coverage.trusted
    (segment,) = record.regions.segments
    hidden = {name for name, value in segment.counters[0].items() if value is None}
    assert hidden == {name for name in SEEN if "__sass_" in name}
    assert {segment.counters[0][name] for name in segment.counters[0].keys() - hidden} == {100.0}
    assert parts(record)[0].figures.flop_total.value is None


class TestKernels:
    def test_belong_to_the_part_that_asked_for_them(self):
        spans = (
            # asked for inside a, begun late
            Span("kernel", 2.5, 2.75, name="_Z4gemmPf", issued=1.9),
            Span("kernel", 3.25, 4.0, name="_Z4gemmPf", issued=3.2),
            Span("kernel", 3.5, 3.75, name="plain", issued=3.4, from_graph=True),
            Span("fill", 5.5, 5.75, byte=8),
            Span("transfer", 1.1, 1.9, byte=8),
            Span("kernel", -1.0, -0.5, name="plain"),
        )
        breakdown = TestBoundaries().settled(spans)
        found = breakdown.result([], between=0.25)
        times = {segment.range: segment.time for segment in found.segments}
        assert times == pytest.approx({"a": 0.25 + 0.25, "b": 0.75 + 0.25})
        assert {s.range: s.launches for s in found.segments} == {"a": 1, "b": 2}
        assert {s.range: s.entered for s in found.segments} == {"a": 2, "b": 1}
        named = {kernel.name: kernel for kernel in found.kernels}
        assert set(named) == {"gemm(float*)", "plain", "fill (memset)"}
        gemm = named["gemm(float*)"]
        assert gemm == found.kernels[0]  # the longest
        assert (gemm.launches, gemm.time) == (2, pytest.approx(1.0))
        where = [(found.segments[use.segment].range, use.time) for use in gemm.uses]
        assert where == [("a", pytest.approx(0.25)), ("b", pytest.approx(0.75))]
        assert found.lost_time == pytest.approx(0.5)
        assert found.between == 0.25
        assert found.time_source == "cupti_activity"
        graph, _ = found.notes
        # a phase launches a graph, or a module does: torch.cuda.make_graphed_callables
        assert graph == (
            "25% of the kernels ran from a CUDA graph, whose inside cannot be told apart: they "
            "belong to the part that launched it"
        )

    def test_transfers_are_no_parts_time_and_that_is_said(self):
        spans = (
            Span("transfer", 1.25, 1.5, byte=8),  # in a
            Span("transfer", 3.0, 3.5, byte=8),  # in b
            Span("transfer", 5.0, 5.5, byte=8),  # in a again
            Span("transfer", 6.0, 6.125, byte=8),  # outside
            Span("kernel", 3.5, 3.75, name="plain", issued=3.4),
        )
        found = TestBoundaries().settled(spans).result([], between=None)
        assert [(segment.range, segment.time) for segment in found.segments] == [("b", 0.25)]
        assert found.notes == (
            "transfers from and to the device took 1.38 s a step, in a (750 ms), b (500 ms), "
            "(outside) (125 ms): no part's time contains them, as they may run beside kernels",
        )

    def test_three_parts_with_transfers_are_named(self):
        names = ("a", "b", "c", "d", "e")
        spans = [Span("transfer", 2 * n + 1, 2 * n + 1 + 2.0**-n) for n in range(5)]
        found = TestBoundaries().settled(spans, names).result([], between=None)
        (note,) = found.notes
        assert "took 1.94 s a step, in a (1 s), b (500 ms), c (250 ms) and 2 more: " in note

    def test_by_layer_transfers_are_of_modules_and_of_ranges_without_one(self):
        breakdown = Breakdown("kernel", nn.Sequential(nn.Identity()), cuda=True)
        with breakdown.labelled(marks := Marks()):
            sequence(breakdown, "data")  # 1 to 2 s
            breakdown._model(torch.rand(2))  # 0 from 4 to 5 s
        spans = (Span("transfer", 1.0, 1.5), Span("transfer", 4.5, 4.75))
        breakdown.settle([Trace(spans, tuple(map(float, range(marks.count))))])
        found = breakdown.result([], between=None)
        assert found.segments == ()
        assert "in (data) (500 ms), 0 forward (250 ms): " in found.notes[0]

    def test_without_traces_there_are_no_times(self):
        breakdown = Breakdown("phase", None, cuda=True)
        with breakdown.labelled(None):
            sequence(breakdown, "a")
        breakdown.settle(())
        backend = Counted()
        breakdown.open(backend)
        with breakdown.counted(backend):
            sequence(breakdown, "a")
        breakdown.collect(backend, ())
        found = breakdown.result(["m.sum"], between=None)
        # every boundary is taken where it is not known which ones have work
        assert backend.told[1:] == [0, 1, 0]
        assert found.time_source is None
        assert [segment.time for segment in found.segments] == [None, None]
        assert [s.counters for s in found.segments] == [({"m.sum": 2.0},), ({"m.sum": 1.0},)]
