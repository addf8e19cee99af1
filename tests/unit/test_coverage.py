from dataclasses import replace
from pathlib import Path

import pytest

from roofprobe import coverage, metrics
from roofprobe.activity import KernelTracer
from roofprobe.derive import figures
from roofprobe.errors import RoofprobeError
from roofprobe.judge import verdict
from roofprobe.probe import _noteworthy
from roofprobe.record import KernelTimes, Measurement, Regions, Round, Segment

SASS = "smsp__sass_inst_executed_op_global_st.sum"
GLOBAL = "smsp__inst_executed_op_global_st_pred_on_any.sum"
GENERIC = "smsp__inst_executed_op_generic_st_pred_on_any.sum"


def kernels(graph=0.0, copied=0.0, filled=0.0, copies=0.0):
    return KernelTimes(1, 10, graph, 0.1, 0.1, 0.1, copied, filled, copies)


def judge(sass, hardware, generic=0.0, *, ran=None, profiler=False):
    counters = {SASS: sass, GLOBAL: hardware, GENERIC: generic}
    return coverage.judge(counters, ran, profiler_active=profiler)


def test_fully_seen():
    judged = judge(95.0, 90.0, 5.0)
    assert judged.fraction == 1.0
    assert judged.trusted
    assert judged.cause is None


def test_the_driver_copies_explain_what_is_missing():
    # 100 stores of a warp are 100 * 32 threads * 4 byte = 12,800 byte copied.
    judged = judge(900.0, 1000.0, ran=kernels(copied=12_800))
    assert judged.explained == 100
    assert judged.fraction == 1.0
    assert judged.trusted
    # Half of that explains half of it: 950 of 1000.
    judged = judge(900.0, 1000.0, ran=kernels(copied=6_400))
    assert judged.fraction == 0.95
    assert not judged.trusted


def test_each_copy_may_end_in_a_partly_filled_warp():
    # Counted on an H200: 200 copies of 4,000 byte are 200 * 31.25 warps, and read 6,400 stores.
    judged = judge(0.0, 6400.0, ran=kernels(copied=200 * 4000, copies=200))
    assert judged.fraction == 1.0
    assert judged.trusted


def test_copies_never_explain_more_than_is_missing():
    assert judge(999.0, 1000.0, ran=kernels(copied=1e9)).fraction == 1.0


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (judge(0.0, 100.0, profiler=True), "profiler was active"),
        (judge(0.0, 100.0, ran=kernels(graph=5)), "50% of the kernels were launched from a CUDA"),
        (judge(50.0, 100.0), "saw 50.0% of the stores"),
        (judge(50.0, 100.0, ran=kernels()), "another tool"),
        (judge(None, 100.0), "was not collected"),
        (judge(0.0, 0.0), "nothing shows"),
        (judge(0.0, 0.0, ran=kernels(graph=1)), "nothing shows"),
    ],
)
def test_untrusted_with_its_cause(judged, words):
    assert not judged.trusted
    assert words in judged.cause


def test_a_profiler_that_hid_nothing_is_no_reason_to_withhold():
    judged = judge(100.0, 100.0, profiler=True)
    assert judged.trusted
    assert judged.cause is None


def test_copies_in_a_graph_explain_nothing():
    judged = judge(0.0, 100.0, ran=kernels(graph=10, copied=1e9))
    assert judged.fraction == 0
    assert not judged.trusted


def test_kernels_without_stores_rest_on_kernel_records():
    assert judge(0.0, 0.0, ran=kernels()).trusted


def test_nothing_to_judge_without_sass():
    assert coverage.judge({"lts__t_bytes.sum": 1.0}, None, profiler_active=False) is None


def test_sass_without_its_check_is_not_trusted():
    counters = {"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 5.0}
    assert not coverage.judge(counters, None, profiler_active=False).trusted


# -- Counters that are connected to nothing ------------------------------------------------

DATA = Path(__file__).parents[1] / "data"
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
DRAM = (READ, WRITE)
L2, L1 = "lts__t_bytes.sum", "l1tex__t_bytes.sum"
TIME = "gpu__time_duration.sum"
BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
DOCTOR = "; run roofprobe doctor"


def recorded(name="runs/resnet18-b256/run", **changes) -> Measurement:
    """An H200's record as it was before it was judged."""
    plain = {"coverage": None, "warnings": (), "crosscheck": None, "notes": {}}
    return replace(Measurement.load(DATA / f"{name}.json"), **plain, **changes)


def reading(record: Measurement, *zeros: str, only: tuple[str, ...] = ()) -> Measurement:
    """The record with some counters at 0, all of them where none is named, and judged.

    Args:
        record: As it was counted.
        zeros: What reads 0.
        only: What was asked for, where that is not everything.
    """
    kept = only or record.metrics
    rounds = tuple(
        replace(
            each,
            counters={
                name: 0.0 if name in (zeros or kept) else each.counters[name] for name in kept
            },
        )
        for each in record.rounds
    )
    record = replace(record, rounds=rounds, metrics=kept, unavailable={})
    return coverage.applied(record, profiler_active=False)


def every_value(record: Measurement) -> set[float | None]:
    return {value for each in record.rounds for value in each.counters.values()}


@pytest.mark.parametrize(
    ("zeros", "which"),
    [
        ((), "every counter"),
        ((READ, WRITE, L2, L1), "every byte counter"),  # its FLOP are counted
        ((L2, L1), "bytes at L1 and L2"),
    ],
)
def test_kernels_that_moved_no_byte_were_not_counted(zeros, which):
    record = reading(recorded(), *zeros)
    assert every_value(record) == {None}
    why = f"{which} read 0 although 384 kernels ran: the counters were not connected (a virtual "
    assert set(record.unavailable) == set(record.metrics)
    assert len(set(record.unavailable.values())) == 1
    assert record.unavailable[L2].startswith(why) and record.unavailable[L2].endswith(DOCTOR)
    assert record.notes["counters"] == record.coverage.cause == record.unavailable[L2]
    assert not record.coverage.trusted
    found = figures(record)
    assert found.flop_total.value is found.byte["dram"].value is found.intensity["l2"].value is None
    assert why in found.flop_total.reason
    assert verdict(record).bound is None


BLOCKS = "sm__ctas_launched.sum"


def launched(
    counted: float | None, ran: float | None, elsewhere: float = 0.0, copies: float = 0.0
) -> Measurement:
    """The record of a step with so many thread blocks, judged."""
    whole = recorded()
    kernels = replace(whole.kernels, blocks=ran, elsewhere=elsewhere, copies=copies)
    (round_,) = whole.rounds
    if counted is not None:
        round_ = replace(round_, counters={**round_.counters, BLOCKS: counted})
        whole = replace(whole, metrics=(*whole.metrics, BLOCKS))
    record = replace(whole, kernels=kernels, rounds=(round_,))
    return coverage.applied(record, profiler_active=False)


@pytest.mark.parametrize(
    ("counted", "ran", "elsewhere", "why"),
    [
        (
            900.0,
            1000.0,
            1.0,
            "1 of 384 kernels ran in a CUDA context that a library made for itself (cuCtxCreate), "
            "and counters saw 900 of 1000 thread blocks that ran: leave them out of the step, or",
        ),
        (None, 1000.0, 2.0, "2 of 384 kernels ran in a CUDA context that a library made for itsel"),
        (900.0, None, 1.0, "1 of 384 kernels ran in a CUDA context that a library made for itself"),
        # Records that miss kernels prove nothing.
        (1100.0, 1000.0, 1.0, "1 of 384 kernels ran in a CUDA context that a library made for it"),
        (0.0, 1000.0, 0.0, "counters saw 0 of 1000 thread blocks that ran: the counters were not"),
    ],
)
def test_blocks_that_were_not_counted_void_every_counter(counted, ran, elsewhere, why):
    record = launched(counted, ran, elsewhere)
    assert every_value(record) == {None}
    assert record.unavailable[L2].startswith(why)
    if counted is None:
        assert "and nothing shows that they were counted: " in record.unavailable[L2]
    assert record.notes["counters"] == record.coverage.cause == record.unavailable[L2]
    assert Measurement.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("counted", "ran", "elsewhere", "copies"),
    [
        (1000.0, 1000.0, 384.0, 0.0),  # green contexts, which are counted
        (1020.0, 1000.0, 1.0, 2.0),  # and 20 blocks of two copies by the driver
        (500.0, 1000.0, 0.0, 0.0),  # steps that are not alike are warned of elsewhere
        (None, 1000.0, 0.0, 0.0),
        (1000.0, None, 0.0, 0.0),
        (0.0, 0.0, 0.0, 0.0),
    ],
)
def test_blocks_that_were_counted_void_nothing(counted, ran, elsewhere, copies):
    record = launched(counted, ran, elsewhere, copies)
    assert record.value(L2) == 188_016_112_128
    assert record.notes == {}


def test_gpm_reads_the_device_whatever_its_contexts():
    apart = replace(recorded().kernels, elsewhere=1.0)
    record = coverage.applied(recorded(kernels=apart, source="gpm"), profiler_active=False)
    assert record.value(L2) == 188_016_112_128


def test_it_is_warned_of_once():
    for names in ((), (READ, WRITE, L2, L1)):
        record = reading(recorded(), only=names)
        (warning,) = _noteworthy(record)
        assert warning == f"no counter is usable: {record.unavailable[L2]}"


def test_it_survives_the_run_file():
    record = reading(recorded())
    assert Measurement.from_json(record.to_json()) == record


def test_a_step_that_stays_in_l2_moves_no_byte_of_dram():
    record = reading(recorded(), *DRAM)
    assert record.value(READ) == record.value(WRITE) == 0
    assert record.value(L2) == 188_016_112_128
    assert record.coverage.trusted and record.notes == {}
    # Nor where no other bytes were asked for, as long as something was counted.
    record = reading(recorded(), *DRAM, only=(*DRAM, BF16, SASS, GLOBAL, GENERIC))
    assert record.value(READ) == 0 and record.value(GLOBAL) > 0
    assert "every counter" in reading(recorded(), only=(*DRAM, TIME)).unavailable[READ]


def test_a_product_through_tma_stores_nothing_and_is_counted():
    record = reading(recorded("gemm4096-bf16"), GLOBAL, GENERIC, SASS)
    assert record.coverage.trusted
    # Counted on an H200: 4096^3 multiply-adds, and 12,160 bytes at L1.
    assert (record.value(BF16), record.value(L1)) == (2 * 4096**3, 12_160)


def test_a_clock_runs_without_the_counters():
    record = reading(recorded(), *(name for name in recorded().metrics if name != TIME))
    assert every_value(record) == {None}
    assert "every counter read 0" in record.unavailable[TIME]


def test_an_empty_step_and_one_of_copies_read_0():
    # One copy by a copy engine is no kernel's.
    for ran in (KernelTimes(2, 0, 0, 0, 0, 0, 0, 0), KernelTimes(2, 0, 0, 0, 1e-5, 1e-5, 64, 0, 1)):
        record = reading(recorded(kernels=ran))
        assert every_value(record) == {0.0}
        assert record.notes == {} and record.unavailable == {}
    # The tracer was on and saw nothing at all.
    tracer = KernelTracer(lambda: None)
    with pytest.raises(RoofprobeError) as nothing:
        tracer.result()
    record = reading(replace(recorded(kernels=None), notes={"kernels": str(nothing.value)}))
    assert record.value(READ) == record.value(L2) == record.value(BF16) == 0
    assert "counters" not in record.notes


def test_without_kernel_records_0_everywhere_is_no_count():
    for notes in ({}, {"kernels": "a PyTorch profiler is active and holds the kernel records"}):
        record = reading(replace(recorded(kernels=None), notes=notes))
        assert every_value(record) == {None}
        assert "nothing shows that the step was empty" in record.unavailable[READ]
        assert record.notes["kernels" if notes else "counters"]


def test_without_kernel_records_operations_show_that_kernels_ran():
    record = reading(recorded(kernels=None), *DRAM, L2, L1)
    assert every_value(record) == {None}
    assert "every byte counter read 0 although kernels were counted" in record.unavailable[READ]
    # A copy engine's bytes are no kernel's.
    nothing = tuple(name for name in recorded().metrics if name not in DRAM)
    record = reading(recorded(kernels=None), *nothing)
    assert record.value(READ) > 0 and record.value(L2) == 0


def test_one_round_that_was_not_counted_spoils_the_mean():
    whole = recorded()
    empty = replace(whole.rounds[0], counters=dict.fromkeys(whole.metrics, 0.0))
    record = replace(whole, rounds=(whole.rounds[0], empty, whole.rounds[0]), unavailable={})
    record = coverage.applied(record, profiler_active=False)
    assert every_value(record) == {None}


def test_parts_of_such_a_step_have_no_counts_either():
    counted = dict.fromkeys(recorded().metrics, 0.0)
    parts = (Segment("forward", None, None, 1.0, (counted,)),)
    record = reading(recorded(regions=Regions("phase", parts, 1)))
    assert set(record.regions.segments[0].counters[0].values()) == {None}
    # Where SASS counters alone are hidden, so are those of the parts.
    hidden = reading(recorded(regions=Regions("phase", parts, 1)), SASS)
    kept = hidden.regions.segments[0].counters[0]
    assert (kept[SASS], kept[L2]) == (None, 0.0)


def test_what_counts_nothing_itself_may_say_0():
    names = tuple(row.name for row in metrics.ANALYTIC)
    rounds = (Round(dict.fromkeys(names, 0.0), 1, 0),)
    record = recorded(source="analytic", metrics=names, rounds=rounds, unavailable={})
    assert coverage.applied(record, profiler_active=False) == record


@pytest.mark.parametrize("path", sorted(DATA.glob("**/run.json")) + sorted(DATA.glob("*.json")))
def test_no_recording_of_an_h200_is_doubted(path):
    assert coverage.unconnected(Measurement.load(path)) is None
