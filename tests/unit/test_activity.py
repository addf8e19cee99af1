from types import SimpleNamespace

import pytest
from cupti import cupti

from roofprobe import activity
from roofprobe.activity import (
    KernelTracer,
    Span,
    Trace,
    different_kernels,
    in_seconds,
    seconds_per_tick,
    summarize,
)
from roofprobe.errors import RoofprobeError

GRID = {"grid_x": 3, "grid_y": 2, "grid_z": 1}  # 6 thread blocks


def test_sum_union_and_span_are_means_over_steps():
    # 0..2 and 1..4 overlap by 1, then idle until 6..7, where a copy runs beside; 100 s later
    # another step, whose distance counts nowhere.
    first = [
        Span("kernel", 1.0, 4.0),
        Span("kernel", 0.0, 2.0, from_graph=True),
        Span("kernel", 6.0, 7.0),
        Span("copy", 6.5, 8.0, byte=100),
        Span("fill", 7.0, 7.5, byte=10),
    ]
    second = [Span("kernel", 108.0, 110.0)]
    found = summarize([first, second])
    assert found.steps == 2
    assert found.launches == 2
    assert found.graph_launches == 0.5
    assert found.sum == pytest.approx((3 + 2 + 1 + 2) / 2)
    assert found.union == pytest.approx((4 + 2 + 2) / 2)
    assert found.span == pytest.approx((8 + 2) / 2)
    assert found.copy_byte == 50
    assert found.fill_byte == 5
    assert found.copies == 1


def test_a_step_without_work_counts_as_a_step():
    found = summarize([[], [Span("kernel", 3.0, 4.0)]])
    assert (found.steps, found.launches, found.span) == (2, 0.5, 0.5)


def test_copies_alone_are_no_kernels():
    found = summarize([[Span("copy", 1.0, 3.0, byte=8)]])
    assert found.launches == 0
    assert found.sum == 0
    assert found.union == 2.0


def test_a_kernel_inside_another_is_counted_once_in_the_union():
    found = summarize([[Span("kernel", 0.0, 10.0), Span("kernel", 2.0, 3.0)]])
    assert found.union == 10.0
    assert found.sum == 11.0


def test_the_unit_of_time_stamps():
    assert seconds_per_tick(1_000_000, 1_000_000) == 1e-9
    assert seconds_per_tick(1_000_500, 1_000_000) == 1e-9
    # 2.1 ticks a nanosecond, as torch.profiler leaves it on a 2.1 GHz processor
    assert seconds_per_tick(2_100_000, 1_000_000) == pytest.approx(1e-9 / 2.1)


def test_transfers_are_no_work_of_the_device():
    work = [Span("kernel", 1.0, 2.0), Span("transfer", 0.0, 9.0, byte=100)]
    found = summarize([work])
    assert (found.launches, found.span, found.union, found.copies) == (1, 1.0, 1.0, 0)


def test_ticks_become_seconds():
    kernel, fill = in_seconds(
        [Span("kernel", 30, 40, issued=10), Span("fill", 50, 60, byte=8)], 0.5
    )
    assert (kernel.start, kernel.end, kernel.issued, kernel.asked) == (15, 20, 5, 5)
    assert (fill.start, fill.end, fill.issued, fill.asked) == (25, 30, None, 25)


@pytest.mark.parametrize("detailed", [True, False])
def test_what_is_kept_of_cuptis_records(detailed):
    kinds = cupti.ActivityKind

    def record(kind, start, **more):
        return SimpleNamespace(
            kind=kind, start=start, end=start + 5, **{"graph_id": 0, **GRID, **more}
        )

    tracer = KernelTracer(lambda: None, detailed=detailed)
    tracer._keep(
        [
            record(kinds.CONCURRENT_KERNEL, 20, name="_Z3addv", queued=10),
            # CUPTI does not know when a kernel of a graph was asked for
            record(kinds.CONCURRENT_KERNEL, 25, name="_Z3mulv", queued=3, graph_id=2),
            record(kinds.MEMSET, 30, bytes=64),
            record(kinds.MEMCPY, 40, bytes=32, copy_kind=8, graph_id=1),
            record(kinds.MEMCPY, 50, bytes=16, copy_kind=1),  # from the host
        ]
    )
    expected = [
        Span("kernel", 20, 25, name="_Z3addv", issued=10 if detailed else None, blocks=6),
        Span("kernel", 25, 30, name="_Z3mulv", from_graph=True, blocks=6),
        Span("fill", 30, 35, 64),
        Span("copy", 40, 45, 32, from_graph=True),
    ]
    assert tracer._records == expected + ([Span("transfer", 50, 55, 16)] if detailed else [])


def test_work_of_other_devices_is_not_kept():
    kinds = cupti.ActivityKind
    records = [
        SimpleNamespace(
            kind=kind,
            start=20 + device,
            end=30,
            graph_id=0,
            device_id=device,
            name="k",
            bytes=4,
            copy_kind=8,
            **GRID,
        )
        for device in (0, 1)
        for kind in (kinds.CONCURRENT_KERNEL, kinds.MEMSET, kinds.MEMCPY)
    ]
    tracer = KernelTracer(lambda: None, device=1)
    tracer._keep(records)
    assert [(span.kind, span.start) for span in tracer._records] == [
        ("kernel", 21),
        ("fill", 21),
        ("copy", 21),
    ]
    every = KernelTracer(lambda: None)
    every._keep(records)
    assert len(every._records) == 6


def test_kernels_of_another_context_are_told_apart(monkeypatch):
    kinds = cupti.ActivityKind
    monkeypatch.setattr(activity, "primary_context_id", lambda device: 7 + device)
    records = [
        SimpleNamespace(
            kind=kind,
            start=20,
            end=30,
            graph_id=0,
            name="k",
            bytes=4,
            copy_kind=8,
            context_id=each,
            **GRID,
        )
        for each in (7, 8, 1)
        for kind in (kinds.CONCURRENT_KERNEL, kinds.MEMSET)
    ]
    silent = SimpleNamespace(
        **{name: lambda *_: None for name in ("activity_register_callbacks", "activity_enable")},
        get_timestamp=lambda: 0,
        ActivityKind=kinds,
        cuptiError=cupti.cuptiError,
    )
    monkeypatch.setattr(activity, "_cupti", lambda: silent)
    for counted, elsewhere in ((1, 2), (None, 0)):
        tracer = KernelTracer(lambda: None, counted=counted)
        tracer.start()
        tracer._keep(records)
        found = summarize([tracer._records])
        assert (found.launches, found.elsewhere, found.blocks) == (3, elsewhere, 3 * 6)


def test_a_cupti_without_a_clock_is_one_sentence(monkeypatch):
    """As cupti-python of another CUDA said it; the step must go on."""

    def clock():
        raise cupti.cuptiError(999)

    broken = SimpleNamespace(get_timestamp=clock, cuptiError=cupti.cuptiError)
    monkeypatch.setattr(activity, "_cupti", lambda: broken)
    tracer = KernelTracer(lambda: None)
    with pytest.raises(RoofprobeError, match=r"CUPTI refuses activity records: .*999"):
        tracer.start()
    tracer.stop()


def test_steps_that_run_other_kernels_are_told_apart():
    def step(*names):
        return Trace(tuple(Span("kernel", 0, 1, name=name) for name in names))

    assert different_kernels([step("a", "b", "a"), step("a", "a", "b")]) is None
    assert different_kernels([step("a", "b"), step("a", "b", "b")]) == "b"
    assert different_kernels([step("a"), step("a", "trial")]) == "trial"
    # copies are not compared: loading data may overlap with a step or not
    assert different_kernels([Trace((Span("copy", 0, 1),)), Trace(())]) is None
