import pytest

from roofprobe import metrics
from roofprobe.errors import UnknownMetricError, UsageError

SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"


def test_an_fma_is_two_flop_and_a_tensor_op_is_one():
    weights = {row.name: row.weight for row in metrics.TABLE.values()}
    assert [weights[SASS.format(op)] for op in ("fadd", "fmul", "ffma")] == [1, 1, 2]
    assert [weights[SASS.format(op)] for op in ("dadd", "dmul", "dfma")] == [1, 1, 2]
    # Packed halves work on two values, and whether they are packed is not told: an upper bound.
    assert [weights[SASS.format(op)] for op in ("hadd", "hmul", "hfma")] == [2, 2, 4]
    assert all(metrics.TABLE[SASS.format(op)].upper_bound for op in ("hadd", "hmul", "hfma"))
    tensor = [row for row in metrics.TABLE.values() if (row.path or "").startswith("tensor_")]
    assert len(tensor) > 10
    assert {row.weight for row in tensor} == {1.0}


def test_integer_operations_are_not_flop():
    assert metrics.TABLE["sm__ops_path_tensor_src_int8.sum"].kind == "op"


def test_the_study_set_is_the_study_verbatim():
    """The eight of its ncu command, one after the other, and nothing else."""
    eight = [SASS.format(op) for op in ("fp16", "fadd", "fmul", "ffma")]
    eight += ["dram__sectors_read.sum", "dram__sectors_write.sum"]
    eight += ["dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second"]
    for chip in ("GV100", "GA100", "GH100"):
        assert list(metrics.metric_set("study", chip)) == eight
    # Consumer Blackwell spells the same eight with "_op".
    spelled = [name.replace("_read", "_op_read").replace("_write", "_op_write") for name in eight]
    assert list(metrics.metric_set("study", "GB202")) == spelled
    # A chip without counters of DRAM has the instructions.
    assert list(metrics.metric_set("study", "GA10B")) == eight[:4]


def test_a_rate_is_in_no_sum():
    rates = [row for row in metrics.TABLE.values() if row.name.endswith(".per_second")]
    assert {row.kind for row in rates} == {"rate"}
    assert {(row.level, row.direction) for row in rates} == {("dram", "read"), ("dram", "write")}
    assert len(rates) == 4  # read and write, in two spellings


def test_names_follow_the_chip():
    assert "dram__bytes_read.sum" in metrics.metric_set("memory", "GH100")
    assert "dram__bytes_op_read.sum" in metrics.metric_set("memory", "GB202")
    assert not any(name.startswith("dram") for name in metrics.metric_set("memory", "GA10B"))


def test_levels_choose_bytes():
    names = metrics.metric_set("memory", "GH100", ("l2",))
    assert names == ("lts__t_bytes.sum", "gpu__time_duration.sum")


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (["hbm"], "levels has 'hbm'; there are 'dram', 'l2', 'l1'"),
        (["dram", "L2"], "levels has 'L2'; there are 'dram', 'l2', 'l1'"),
        ("dram", "levels is the text 'dram': pass a list, such as levels=['dram']"),
    ],
)
def test_levels_that_are_none_are_refused(levels, said):
    for ask in (
        lambda: metrics.require_levels(levels),
        lambda: metrics.metric_set("memory", "GH100", levels),
        lambda: metrics.resolve("full", "GH100", levels),
        lambda: metrics.resolve("full", None, levels),  # a backend without a chip
        lambda: metrics.resolve(["a.sum"], "GH100", levels),
    ):
        with pytest.raises(UsageError) as caught:
            ask()
        assert str(caught.value) == said


@pytest.mark.parametrize("levels", [(), ("l1",), ["dram", "l2", "l1"], metrics.LEVELS])
def test_levels_that_exist_are_taken(levels):
    metrics.require_levels(levels)
    assert len(metrics.resolve("memory", "GB202", levels)) == 1 + sum(
        {"dram": 2, "l2": 1, "l1": 1}[level] for level in levels
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("memory", list(metrics.metric_set("memory", "GH100"))),
        ("dram__bytes_read.sum", ["dram__bytes_read.sum"]),
        (" a.sum, b.avg ,", ["a.sum", "b.avg"]),
        (["a.sum"], ["a.sum"]),
    ],
)
def test_resolve(request_, expected):
    assert metrics.resolve(request_, "GH100", metrics.LEVELS) == expected


@pytest.mark.parametrize("request_", ["nonsense", [], "a.sum,b", ","])
def test_resolve_refuses(request_):
    with pytest.raises(UnknownMetricError):
        metrics.resolve(request_, "GH100", metrics.LEVELS)


def test_unknown_chip_says_what_is_known():
    with pytest.raises(UnknownMetricError, match="GH100"):
        metrics.metric_set("full", "XX999")


def test_stores_are_added_only_where_sass_is():
    memory = list(metrics.metric_set("memory", "GH100"))
    assert metrics.with_coverage(memory) == [*memory, "sm__ctas_launched.sum"]
    added = set(metrics.with_coverage([SASS.format("ffma")])) - {SASS.format("ffma")}
    stores = {"coverage_sass", "coverage_hardware"}
    assert {metrics.TABLE[name].kind for name in added} == {*stores, "block"}
    assert metrics.with_coverage([]) == []
    full = metrics.with_coverage(metrics.metric_set("full", "GH100"))
    assert sorted(metrics.with_coverage(full)) == sorted(full)
