import pytest

from roofprobe import coverage
from roofprobe.record import KernelTimes

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
