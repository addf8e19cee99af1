"""Parts of a step on a real GPU: what each layer did, and that the parts add up."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from workloads import gemm, phased_step, tf32, three_linears, three_linears_model

import roofprobe
from roofprobe.counters.recorded import CounterFile
from roofprobe.part_tables import by_loss
from roofprobe.parts import checks, parts, phases
from roofprobe.report import layered_roofline, text

BATCH, WIDTHS = 4096, (2048, 4096, 4096, 1024)
MODELS = {"resnet18": 64, "resnet50": 64, "vit_b_16": 32}
STORES = "smsp__sass_inst_executed_op_global_st.sum"


def measured(step, model=None, by="layer", **options):
    with roofprobe.measure("net", by=by, model=model, **{"warmup": 5, **options}) as probe:
        while not probe.done:
            with probe.step():
                step(probe)
    record = probe.result
    assert record.complete
    print(text(record, width=120))
    return record


@pytest.fixture(scope="module", params=MODELS)
def classifier(request):
    torchvision = pytest.importorskip("torchvision")
    return request.param, torchvision.models.get_model(request.param, weights=None).cuda().train()


@pytest.fixture(scope="module")
def by_layer(classifier):
    name, model = classifier
    return measured(phased_step(model, (MODELS[name], 3, 224, 224)), model)


def test_flop_of_three_layers_are_exact_both_ways():
    model = three_linears_model(WIDTHS)
    with tf32(True):
        record = measured(phased_step(model, (BATCH, WIDTHS[0])), model)
    found = {part.name: part.figures.flop["tensor_tf32"].value for part in parts(record)}
    total = {part.name: part.figures.flop_total.value for part in parts(record)}
    exact = three_linears(BATCH, WIDTHS)
    assert {name: value for name, value in found.items() if value} == pytest.approx(exact, rel=1e-3)
    assert {name: total[name] for name in exact} == pytest.approx(exact, rel=1e-3)
    # the activation in between reads and writes its whole operand, from memory or from L2
    relu = next(part for part in parts(record) if part.name == "1 forward")
    assert relu.figures.byte["l1"].value == pytest.approx(2 * 4 * BATCH * WIDTHS[1], rel=0.05)


def test_parts_add_up_to_a_step_that_was_not_cut(by_layer):
    for check in checks(by_layer):
        assert check.agrees, check
    assert sum(part.time for part in parts(by_layer)) == pytest.approx(
        by_layer.kernels.sum, rel=0.05
    )


def test_phases_add_up_too(by_layer):
    found = {part.name: part for part in phases(by_layer)}
    assert {"forward", "loss", "backward", "optimizer"} <= set(found)
    flop = {name: part.figures.flop_total.value for name, part in found.items()}
    # backward does twice the products of forward, but for the first layer
    assert 1.6 < flop["backward"] / flop["forward"] < 2.1


def test_kernels_belong_to_the_layer_that_was_counted(by_layer):
    regions = by_layer.regions
    assert regions.lost_time == 0
    assert regions.notes == ()
    assert sum(kernel.launches for kernel in regions.kernels) >= by_layer.kernels.launches
    for part in parts(by_layer):
        launches = sum(segment.launches for segment in part.segments)
        # What was counted somewhere was launched there, and what was launched was counted.
        if part.figures.flop_total.value > 1e4:
            assert launches > 0, part.name
        if launches and part.name != "(outside)":
            assert part.record.value("l1tex__t_bytes.sum") > 0, part.name


def test_every_layer_with_weights_has_both_ways(by_layer, classifier):
    names = {part.name for part in parts(by_layer)}
    modules = classifier[1].named_modules()
    weighty = {path for path, module in modules if list(module.parameters(recurse=False))}
    # a module whose weights another one uses is never called
    called = {path for path in weighty if f"{path} forward" in names}
    assert len(called) > 40
    assert {f"{path} backward" for path in called} <= names


def test_the_ten_layers_that_lose_most_time_are_named(by_layer):
    first = by_loss(by_layer)[:10]
    assert all(part.lost and part.verdict.uses for part in first)
    assert [part.lost for part in first] == sorted((part.lost for part in first), reverse=True)
    drawn = layered_roofline(by_layer)
    assert len([point for point in drawn.points if not point.quiet]) == 10
    assert all(0 < point.share < 1 for point in drawn.points)


def test_rounds_repeat_to_the_digit_and_raw_data_gives_the_same(tmp_path):
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(inplace=True), nn.Conv2d(16, 8, 3)).cuda()
    step = phased_step(model, (32, 8, 64, 64))
    with roofprobe.measure("net", by="layer", model=model, rounds=2) as probe:
        while not probe.done:
            with probe.step():
                step(probe)
    record = probe.result
    flop = [metric for metric in record.metrics if "ffma" in metric or "ops_path" in metric]
    for segment in record.regions.segments:
        first, second = segment.counters
        assert {m: first[m] for m in flop} == {m: second[m] for m in flop}
    kept = CounterFile.load(probe.save_counter_data(tmp_path / "net.counters"))
    labels = [tuple(label) for label in kept.labels]
    for number, values in enumerate(kept.evaluate_parts()):
        for segment in record.regions.segments:
            region = labels.index((segment.range, segment.module, segment.direction))
            counted = {name: segment.counters[number][name] for name in kept.part_metrics}
            assert values.values[region] == counted
    # what the step has none of was not counted again, and is 0 in every part
    left_out = set(record.metrics) - set(kept.part_metrics)
    assert any("ops_path_tensor_src_fp8" in name for name in left_out)
    assert all(record.value(name) == 0 for name in left_out)


def test_a_measurement_by_layer_disturbs_none_after_it():
    # long kernels: the time of a short step is the processor's, which varies
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()).cuda()
    step = phased_step(model, (8192, 4096))
    before = roofprobe.measure_step(lambda: step(Plain()), warmup=5, timed=20)
    measured(step, model)
    after = roofprobe.measure_step(lambda: step(Plain()), warmup=5, timed=20)
    assert after.coverage.trusted
    assert after.value(STORES) == before.value(STORES)
    assert after.timing.median == pytest.approx(before.timing.median, rel=0.05)
    assert not any(module._forward_hooks for module in model.modules())


class Plain:
    """Where nothing is measured by part."""

    def range(self, name):
        return nullcontext()


def test_an_exception_in_the_middle_of_a_region_leaves_the_next_measurement_working():
    class Broken(nn.Module):
        fails = False

        def forward(self, x):
            if self.fails:
                raise ZeroDivisionError
            return x * 2

    model = nn.Sequential(nn.Linear(512, 512), Broken(), nn.Linear(512, 512)).cuda()
    step = phased_step(model, (512, 512))
    for fail_at in (15, 18, 24):  # labelled, whole, by part; after 5 to warm up and 10 timed
        steps = iter(range(100))

        def failing(probe, steps=steps, fail_at=fail_at):
            model[1].fails = next(steps) == fail_at
            step(probe)

        with pytest.raises(ZeroDivisionError):
            measured(failing, model)
        model[1].fails = False
    assert checks(measured(step, model))[0].agrees


def test_a_cuda_graph_has_phases_and_says_so():
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()).cuda()
    inputs = torch.randn(1024, 1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        model(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        model(inputs)

    def step(probe):
        with probe.range("forward"):
            graph.replay()

    record = measured(step, model)
    assert any("CUDA graph" in note for note in record.regions.notes)
    assert any("layers cannot be told apart" in note for note in record.regions.notes)
    found = {part.name: part for part in phases(record)}
    assert found["forward"].time > 0
    assert found["forward"].figures.byte["dram"].value is not None
    # instrumented counts are withheld of the parts as of the step
    assert found["forward"].figures.flop_total.value is None


def test_a_compiled_model_is_one_part():
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
    model.compile()
    # More than L2 holds: what a cut leaves there is little of the step's bytes then.
    record = measured(phased_step(model, (2**16, 1024)), model)
    assert any("compiled" in note for note in record.regions.notes)
    assert {segment.module for segment in record.regions.segments} <= {None, ""}
    assert all(check.agrees for check in checks(record))


def test_kernels_alone_take_no_counted_steps_by_part():
    step = gemm(2048, torch.bfloat16)
    record = measured(lambda probe: step(), by="kernel")
    assert all(segment.counters == () for segment in record.regions.segments)
    longest = record.regions.kernels[0]
    assert longest.launches == 1
    assert not longest.name.startswith("_Z")
    assert longest.time == pytest.approx(record.kernels.sum, rel=0.1)
