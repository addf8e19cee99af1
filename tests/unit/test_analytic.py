"""Every figure is worked out by hand in the comment beside it; an fp32 element is 4 byte."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import flop_counter

from roofprobe.counters.analytic import AnalyticBackend
from roofprobe.metrics import ANALYTIC


@pytest.fixture
def backend() -> Iterator[AnalyticBackend]:
    backend = AnalyticBackend()
    backend.prepare(())
    backend.open()
    yield backend
    backend.close()


@pytest.fixture
def count(backend: AnalyticBackend) -> Callable[[Callable[[], object]], dict[str, float | None]]:
    """Counts one step; the answer has ``flop_<path>``, where not 0, and ``read`` and ``write``."""

    def run(step: Callable[[], object]) -> dict[str, float | None]:
        backend.begin_pass()
        step()
        assert backend.end_pass()
        values = backend.collect().values
        short = {name[len("analytic__") : -len(".sum")]: value for name, value in values.items()}
        moved = {kind: short.pop(f"bytes_{kind}") for kind in ("read", "write")}
        return {name: value for name, value in short.items() if value != 0} | moved

    return run


def leaf(*shape: int) -> Tensor:
    return torch.rand(shape, requires_grad=True)


class TestFlop:
    @pytest.mark.parametrize(
        ("dtype", "path", "size"),
        [
            (torch.float16, "fp16", 2),
            (torch.bfloat16, "bf16", 2),
            (torch.float32, "fp32", 4),
            (torch.float64, "fp64", 8),
        ],
    )
    def test_matmul(self, count, dtype, path, size):
        a, b = torch.rand(2, 3).to(dtype), torch.rand(3, 4).to(dtype)
        # 2*2*3*4 = 48 FLOP; 6 + 12 elements read, 8 written
        assert count(lambda: a @ b) == {f"flop_{path}": 48, "read": 18 * size, "write": 8 * size}

    def test_eight_bit_floats_are_other(self, count):
        a = torch.empty(16, 32, dtype=torch.float8_e4m3fn, device="meta")
        b = torch.empty(16, 32, dtype=torch.float8_e4m3fn, device="meta").t()
        one = torch.empty((), device="meta")
        # 2*16*32*16 = 16,384 FLOP
        step = count(lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16))
        assert step["flop_other"] == 16_384

    def test_a_complex_multiplication_is_four_real_ones(self, count):
        a = torch.rand(2, 3, dtype=torch.complex64)
        b = torch.rand(3, 4, dtype=torch.complex64)
        # 4*48 = 192 FLOP on pairs of fp32; 18 and 8 elements of 8 byte
        assert count(lambda: a @ b) == {"flop_fp32": 192, "read": 144, "write": 64}

    def test_integers_are_no_flop(self, count):
        a, b = torch.ones(2, 3, dtype=torch.int32), torch.ones(3, 4, dtype=torch.int32)
        assert count(lambda: a @ b) == {"read": 72, "write": 32}

    def test_linear_in_bf16(self, count):
        layer, x = nn.Linear(3, 4, dtype=torch.bfloat16), torch.rand(2, 3).bfloat16()
        # the matmul's 48 FLOP; bias 4, x 6 and weight 12 elements of 2 byte read, 8 written
        assert count(lambda: layer(x)) == {"flop_bf16": 48, "read": 44, "write": 16}

    def test_matrix_times_vector_and_dot(self, count):
        a, x = torch.rand(2, 3), torch.rand(3)
        # 2*2*3 = 12 FLOP; 6 + 3 elements read, 2 written
        assert count(lambda: a @ x) == {"flop_fp32": 12, "read": 36, "write": 8}
        # 2*3 = 6 FLOP; the same 3 elements twice are read once
        assert count(lambda: x @ x) == {"flop_fp32": 6, "read": 12, "write": 4}

    def test_matmul_backward_is_twice_the_forward(self, count):
        x, w, grad = leaf(2, 3), leaf(3, 4), torch.rand(2, 4)
        out = x @ w
        # dx = grad @ w.T: 48 FLOP, 8 + 12 elements read, 6 written
        # dw = x.T @ grad: 48 FLOP, 6 + 8 elements read, 12 written
        expected = {"flop_fp32": 96, "read": 136, "write": 72}
        assert count(lambda: out.backward(grad)) == expected

    def test_forward_and_backward_in_one_pass(self, count):
        x, w, grad = leaf(2, 3), leaf(3, 4), torch.rand(2, 4)
        # the two tests above: 48 + 96 FLOP, 72 + 136 byte, 32 + 72 byte
        expected = {"flop_fp32": 144, "read": 208, "write": 104}
        assert count(lambda: (x @ w).backward(grad)) == expected

    def test_convolution(self, count):
        x, w, grad = leaf(1, 2, 5, 5), leaf(3, 2, 3, 3), torch.rand(1, 3, 3, 3)
        # 3x3 positions, each 3 channels of 2*3*3 FMA: 9*3*18*2 = 972 FLOP, and both gradients
        # take as many; forward reads 50 + 54 elements and writes 27; backward reads those and
        # grad's 27, and writes 50 + 54: 4*(104 + 131) and 4*(27 + 104) byte
        expected = {"flop_fp32": 3 * 972, "read": 940, "write": 524}
        assert count(lambda: functional.conv2d(x, w).backward(grad)) == expected

    def test_no_gradient_for_the_first_layers_input(self, count):
        x, w, grad = torch.rand(1, 2, 5, 5), leaf(3, 2, 3, 3), torch.rand(1, 3, 3, 3)
        step = count(lambda: functional.conv2d(x, w).backward(grad))
        assert step["flop_fp32"] == 2 * 972

    def test_depthwise_convolution(self, count):
        x, w, grad = leaf(1, 2, 5, 5), leaf(2, 1, 3, 3), torch.rand(1, 2, 3, 3)
        # 9 positions, 2 channels of 1*3*3 FMA each: 9*2*9*2 = 324 FLOP, three times
        step = count(lambda: functional.conv2d(x, w, groups=2).backward(grad))
        assert step["flop_fp32"] == 3 * 324

    def test_transposed_convolution(self, count):
        x, w, grad = leaf(1, 2, 3, 3), leaf(2, 4, 2, 2), torch.rand(1, 4, 6, 6)
        # each of the input's 9 positions spreads 2 channels over 4*2*2: 9*2*16*2 = 576 FLOP
        step = count(lambda: functional.conv_transpose2d(x, w, stride=2).backward(grad))
        assert step["flop_fp32"] == 3 * 576

    def test_attention(self, count):
        q, k, v = (leaf(1, 1, 2, 4) for _ in range(3))
        attend = functional.scaled_dot_product_attention
        # scores and their product with v: 2 matmuls of 2*2*4*2 = 32 FLOP; backward computes the
        # scores again and four gradients: 5 more
        step = count(lambda: attend(q, k, v).backward(torch.rand(1, 1, 2, 4)))
        assert step["flop_fp32"] == 7 * 32

    def test_inference_mode(self, count):
        layer, x = nn.Linear(3, 4, bias=False), torch.rand(2, 3)

        @torch.inference_mode()
        def step():
            layer(x)

        assert count(step) == {"flop_fp32": 48, "read": 72, "write": 32}

    def test_compiled_functions_count_as_eager_ones(self, count):
        a, b = torch.rand(2, 3), torch.rand(3, 4)
        compiled = torch.compile(lambda: a @ b, backend="eager", fullgraph=True)
        assert count(compiled) == {"flop_fp32": 48, "read": 72, "write": 32}

    @pytest.mark.parametrize("way", ["function", "module", "in place"])
    def test_compiled_functions_are_said_to_be_modelled_as_eager_ones(self, backend, count, way):
        layer, x = nn.Linear(3, 4), torch.rand(2, 3)
        options = {"backend": "eager", "fullgraph": True}
        if way == "in place":
            layer.compile(**options)
            called = layer
        else:
            plain = layer if way == "module" else layer.forward
            called = torch.compile(plain, **options)
        called(x)  # compiled before it is counted
        assert count(lambda: called(x))["flop_fp32"] == 48
        (warning,) = backend.collect().warnings
        assert warning.startswith("compiled functions were modelled as if they ran eagerly")

    def test_nothing_is_said_of_compiled_functions_that_the_step_does_not_call(
        self, backend, count
    ):
        a, b = torch.rand(2, 3), torch.rand(3, 4)
        compiled = torch.compile(lambda: a @ b, backend="eager", fullgraph=True)
        compiled()
        assert count(compiled)["flop_fp32"] == 48
        for plain in (lambda: a @ b, torch.compiler.disable(lambda: a @ b)):
            assert count(plain)["flop_fp32"] == 48
            assert backend.collect().warnings == ()

    @pytest.mark.parametrize("ends", ["end_pass", "close"])
    def test_compiling_is_as_before_after_a_pass(self, backend, ends):
        from torch._dynamo import eval_frame

        before = eval_frame._callback_from_stance
        backend.begin_pass()
        assert eval_frame._callback_from_stance is not before
        getattr(backend, ends)()
        assert eval_frame._callback_from_stance is before

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_wrapper_tensor_counts_as_what_it_wraps(self, count):
        rows = [torch.rand(2, 3), torch.rand(1, 3)]
        x, w = torch.nested.nested_tensor(rows, layout=torch.jagged), torch.rand(4, 3)
        # 3 rows in all: 2*3*3*4 = 72 FLOP; 9 + 12 elements read, 12 written
        assert count(lambda: functional.linear(x, w)) == {"flop_fp32": 72, "read": 84, "write": 48}


class TestBytes:
    def test_views_and_allocations_move_nothing(self, count):
        x = torch.rand(2, 3)

        def step():
            x.view(6), x.t(), x[:, 1:], x.detach(), x[None].expand(5, 2, 3), x.split(1), x.ravel()
            torch.ops.aten._unsafe_view(x, [6])  # a view that declares itself a new tensor
            torch.empty(9), torch.empty_like(x), x.new_empty(9)
            x.unsqueeze_(0).squeeze_(0)

        assert count(step) == {"read": 0, "write": 0}

    def test_elementwise(self, count):
        x, y = torch.rand(6), torch.rand(6)
        assert count(lambda: x + y) == {"read": 48, "write": 24}
        assert count(lambda: x * x) == {"read": 24, "write": 24}

    def test_in_place(self, count):
        x, y = torch.rand(6), torch.rand(6)
        assert count(lambda: x.add_(y)) == {"read": 48, "write": 24}
        assert count(lambda: x.mul_(2)) == {"read": 24, "write": 24}
        # lists of tensors, as optimizers use them on a GPU
        assert count(lambda: torch._foreach_add_([x, y], 1)) == {"read": 48, "write": 48}

    def test_out_variant_does_not_read_its_destination(self, count):
        a, b, out = torch.rand(2, 3), torch.rand(3, 4), torch.rand(2, 4)
        expected = {"flop_fp32": 48, "read": 72, "write": 32}
        assert count(lambda: torch.mm(a, b, out=out)) == expected

    def test_broadcast_operand(self, count):
        column, x = torch.rand(3, 1), torch.rand(3, 4)
        # 3 + 12 elements read, 12 written
        assert count(lambda: column.expand(3, 4) + x) == {"read": 60, "write": 48}
        assert count(lambda: column.expand(3, 4).contiguous()) == {"read": 12, "write": 48}

    def test_overlapping_windows(self, count):
        x = torch.rand(6)
        # 4 windows of 3: 12 elements written, 6 read
        assert count(lambda: x.unfold(0, 3, 1).contiguous()) == {"read": 24, "write": 48}

    def test_two_views_of_one_tensor(self, count):
        x = torch.rand(2, 3)
        # 2*2*3*2 = 24 FLOP; x and x.T are the same 6 elements; 4 written
        assert count(lambda: x @ x.t()) == {"flop_fp32": 24, "read": 24, "write": 16}
        # columns 0 and 2 share a storage and no element: 2 + 2 read, 2 written
        assert count(lambda: x[:, 0] + x[:, 2]) == {"read": 16, "write": 8}

    def test_copies(self, count):
        x, half = torch.rand(6), torch.rand(6).bfloat16()
        assert count(lambda: x.copy_(half)) == {"read": 12, "write": 24}
        assert count(lambda: x.bfloat16()) == {"read": 24, "write": 12}
        assert count(lambda: x.clone()) == {"read": 24, "write": 24}

    @pytest.mark.parametrize(
        "fill",
        [
            lambda x: x.zero_(),
            lambda x: x.fill_(1),
            lambda x: x.normal_(),
            lambda x: x.uniform_(),
            lambda x: torch.ones(6),
            lambda x: torch.zeros_like(x),
            lambda x: x.new_full((6,), 2.0),
            lambda x: torch._foreach_zero_([x]),
        ],
    )
    def test_fills_only_write(self, count, fill):
        x = torch.rand(6)
        assert count(lambda: fill(x)) == {"read": 0, "write": 24}

    def test_part_of_a_tensor(self, count):
        x = torch.rand(6)
        assert count(lambda: x[2:4].zero_()) == {"read": 0, "write": 8}

    def test_lookup_reads_what_it_returns(self, count):
        index, table = torch.tensor([7, 9]), torch.rand(100, 4)
        # two rows of 4 elements and two int64 indices: 32 + 16 byte
        expected = {"read": 48, "write": 32}
        assert count(lambda: functional.embedding(index, table)) == expected
        assert count(lambda: table[index]) == expected

    def test_lookup_reads_a_small_table_once(self, count):
        index, table = torch.tensor([0, 1, 1, 0, 1]), torch.rand(2, 4)
        # the table's 32 byte and five int64 indices; five rows of 16 byte written
        expected = {"read": 72, "write": 80}
        assert count(lambda: functional.embedding(index, table)) == expected

    def test_reduction_and_item(self, count):
        x = torch.rand(6)
        assert count(lambda: x.sum()) == {"read": 24, "write": 4}
        assert count(lambda: x[0].item()) == {"read": 4, "write": 0}

    def test_sparse_tensor_is_its_indices_and_values(self, count):
        x = torch.eye(3).to_sparse()
        # 2x3 int64 indices and 3 values are 48 + 12 byte
        assert count(lambda: x.mul(2))["read"] == 60

    def test_meta_tensors_have_a_size(self, count):
        x = torch.rand(6, device="meta")
        assert count(lambda: x + x) == {"read": 24, "write": 24}


def test_training_step_of_a_small_cnn(count):
    model = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    x = torch.rand(1, 1, 4, 4)

    def step():
        model(x).sum().backward()
        optimizer.step()

    # FLOP: convolution 4 positions * 2 channels * 9 FMA * 2 = 144, and as many for dw (x needs
    # no gradient); linear 2*8*3 = 48, and as many for dx and for dw: 2*144 + 3*48 = 432
    #
    # elements              read             written
    # convolution           16 + 18          8
    # relu                  8                8
    # linear                3 + 8 + 24       3
    # sum                   3                1
    # gradient of sum       0                1       (a fill, then expanded to 3)
    # linear dx             1 + 24           8       (the expanded gradient is 1 element)
    # linear dw             1 + 8            24
    # linear db             1                3
    # relu                  8 + 8            8
    # convolution dw        8 + 16 + 18      18
    # SGD, 18 + 24 + 3      45 * 2           45
    # total                 263              127
    assert count(step) == {"flop_fp32": 432, "read": 4 * 263, "write": 4 * 127}


class TestLifecycle:
    def test_plans_its_own_metrics_whatever_is_asked_for(self):
        plan = AnalyticBackend().prepare(["dram__bytes_read.sum"])
        assert plan.metrics == tuple(metric.name for metric in ANALYTIC)
        assert plan.passes == 1
        assert "does not read" in plan.unavailable["dram__bytes_read.sum"]

    def test_every_metric_has_a_value(self, backend):
        backend.begin_pass()
        torch.empty(3)
        backend.end_pass()
        counters = backend.collect()
        assert counters.values == {metric.name: 0.0 for metric in ANALYTIC}
        assert all(type(value) is float for value in counters.values.values())
        assert not counters.reasons

    def test_counts_only_between_begin_and_end(self, backend, count):
        x = torch.rand(6)
        x.clone()
        count(lambda: x + x)
        x.clone()
        assert backend.collect().values["analytic__bytes_read.sum"] == 24

    def test_every_round_starts_from_zero(self, count):
        x = torch.rand(6)
        assert count(lambda: x + x) == count(lambda: x + x)

    @pytest.mark.parametrize("closes", [True, False])
    def test_measures_again_after_a_failed_step(self, backend, count, closes):
        a, b = torch.rand(2, 3), torch.rand(3, 4)
        backend.begin_pass()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            a @ b @ b
        if closes:
            backend.close()
            backend.close()
            b.clone()
            # what ran before the failure, and nothing since
            assert backend.collect().values["analytic__flop_fp32.sum"] == 48
        assert count(lambda: a @ b) == {"flop_fp32": 48, "read": 72, "write": 32}


class TestUncounted:
    def test_starts_empty_in_every_round(self, backend, count):
        count(lambda: torch.linalg.inv(torch.eye(3)))
        assert backend.uncounted_ops
        count(lambda: torch.rand(6).add_(1))
        assert backend.uncounted_ops == {}

    def test_a_failing_formula_does_not_stop_the_step(self, backend, count, monkeypatch):
        def broken(*_args, **_kwargs):
            raise ValueError("no formula for this shape")

        monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.mm, broken)
        a, b = torch.rand(2, 3), torch.rand(3, 4)
        flop = dict.fromkeys(("flop_fp16", "flop_bf16", "flop_fp32", "flop_fp64", "flop_other"))
        assert count(lambda: [a @ b, a @ b]) == {**flop, "read": 2 * 72, "write": 2 * 32}
        assert backend.uncounted_ops == {"aten.mm.default": 2}

    def test_matrix_work_without_a_formula(self, backend, count):
        lstm, x = nn.LSTM(3, 4), torch.rand(5, 2, 3)
        assert count(lambda: lstm(x))["flop_fp32"] is None
        assert sum(backend.uncounted_ops.values()) == 1

    def test_a_total_that_misses_a_part_has_no_value(self, backend, count):
        a, b = torch.eye(16), torch.eye(16, dtype=torch.float64)

        def step() -> None:
            a @ a  # 2*16*16*16 = 8192 FLOP in fp32
            b @ b
            torch.linalg.cholesky(a)

        counted = count(step)
        assert counted["flop_fp32"] is None
        assert counted["flop_fp64"] == 8192
        why = backend.collect().reasons
        assert list(why) == ["analytic__flop_fp32.sum"]
        assert "linalg_cholesky_ex" in why["analytic__flop_fp32.sum"]

    def test_only_the_region_that_misses_it_has_no_value(self, backend):
        a = torch.eye(16)
        backend.begin_regions(0)
        a @ a
        backend.switch(1)
        torch.linalg.cholesky(a)
        backend.end_pass()
        found = backend.collect_regions()
        assert found.values[0]["analytic__flop_fp32.sum"] == 8192
        assert found.values[1]["analytic__flop_fp32.sum"] is None
        assert list(found.reasons) == ["analytic__flop_fp32.sum"]

    @pytest.mark.parametrize(
        "step",
        [
            lambda x: functional.normalize(x),
            lambda x: nn.utils.clip_grad_norm_([nn.Parameter(x)], 1.0),
            lambda x: torch.linalg.vector_norm(x),
            lambda x: torch.linalg.cross(x, x),
        ],
    )
    def test_reductions_and_element_wise_work_miss_nothing(self, backend, count, step):
        assert None not in count(lambda: step(torch.rand(4, 3))).values()
        assert backend.uncounted_ops == {}

    def test_what_processes_send_each_other_misses_nothing(self, backend, count, tmp_path):
        store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            model = nn.parallel.DistributedDataParallel(nn.Linear(3, 4))
            x = torch.rand(2, 3)
            # forward and the gradient of the weight: 2*2*3*4 = 48 FLOP each
            assert count(lambda: model(x).sum().backward())["flop_fp32"] == 96
            assert backend.uncounted_ops == {}
        finally:
            torch.distributed.destroy_process_group()

    def test_work_in_another_thread_is_a_gap_and_no_zero(self, backend, count):
        a = torch.eye(16)

        def step() -> None:
            thread = threading.Thread(target=lambda: a @ a)
            thread.start()
            thread.join()

        assert set(count(step).values()) == {None}
        counted = backend.collect()
        assert set(counted.reasons) == set(counted.values)
        assert "own thread" in counted.warnings[0]

    def test_sparse_matmul(self, backend, count):
        a, b = torch.eye(3).to_sparse(), torch.rand(3, 4)
        assert count(lambda: a @ b)["flop_fp32"] is None
        assert backend.uncounted_ops == {"aten.mm.default": 1}

    def test_custom_operator_has_bytes_and_no_flop(self, backend, count):
        @torch.library.custom_op("roofprobe_test::double", mutates_args=())
        def double(x: Tensor) -> Tensor:
            return x * 2

        x = torch.rand(6)
        assert count(lambda: double(x)) == {"flop_fp32": None, "read": 24, "write": 24}
        assert backend.uncounted_ops == {"roofprobe_test.double.default": 1}

    def test_tensors_without_a_storage(self, backend, count):
        x = torch.rand(6, 6).to_mkldnn()
        assert count(lambda: x.to_dense()) == {"read": None, "write": None}
        assert sum(backend.uncounted_ops.values()) == 1


def test_operators_without_a_formula_reach_the_record():
    import roofprobe

    lstm = torch.nn.LSTM(4, 4)
    rows = torch.randn(2, 1, 4)
    with torch.no_grad():
        record = roofprobe.measure_step(lambda: lstm(rows), device="cpu", warmup=0, timed=1)
    assert any("without a FLOP formula" in warning for warning in record.warnings)
    assert any("rnn_layer" in warning for warning in record.warnings)
