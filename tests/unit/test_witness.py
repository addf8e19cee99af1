"""The witness on committed H200 runs, against the operators' own count on meta tensors, and on
ratios that each known cause predicts."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torchvision

import roofprobe
from roofprobe.errors import UsageError
from roofprobe.metrics import ANALYTIC, GPM, SASS_FP32, metric_set
from roofprobe.record import Coverage, Environment, KernelTimes, Measurement, Modelled, Round
from roofprobe.witness import Algorithmic, witness

RESULTS = Path(__file__).parents[2] / "tests/data/runs"
LATEST = Path(__file__).parents[2] / "harness/results/h200"
CASE_38 = Path(__file__).parents[3] / "shared/cases/38-mac-vs-flop"

FADD, FMUL, FFMA = (row.name for row in SASS_FP32)
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
HMUL = "smsp__sass_thread_inst_executed_op_hmul_pred_on.sum"
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"


@cache
def model(arch: str, batch: int) -> Measurement:
    """The analytic record of a training step; meta tensors have shapes and no content."""
    with torch.device("meta"):
        network = torchvision.models.get_model(arch)
        images = torch.empty(batch, 3, 224, 224)
        labels = torch.zeros(batch, dtype=torch.long)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    facts = {"arch": arch, "batch_size": batch}
    return roofprobe.measure_step(
        step, backend="analytic", device="cpu", warmup=1, timed=1, workload=facts
    )


def run(name: str) -> Measurement:
    return Measurement.load(RESULTS / name / "run.json")


def hardware(counters: dict[str, float], **options: object) -> Measurement:
    """A record with these counters, of a chip without a table, so that they are all there is."""
    record = Measurement(
        name="step",
        source="cupti",
        created="2026-11-30T00:00:00Z",
        environment=Environment("GPU", "cuda"),
        workload={},
        metrics=tuple(counters),
        rounds=(Round(counters, 1, 0),),
        complete=True,
        steps_missing=0,
        unavailable={},
    )
    return replace(record, **options)


class TestRealRuns:
    def test_the_model_of_resnet18(self):
        # 1.814 GMAC an image (torchvision), 2 FLOP each, 3 passes, without the gradient of the
        # images: 2 * 64 * 112 * 112 * 3 * 7 * 7. Batch 256.
        by_hand = 256 * (6 * 1.814e9 - 2 * 64 * 112**2 * 147)
        assert Algorithmic.of(model("resnet18", 256)).flop == pytest.approx(by_hand, rel=1e-4)

    # Hardware FLOP over 2.725994e12 for ResNet-18 and 1.061012e12 for AlexNet.
    @pytest.mark.parametrize(
        ("name", "arch", "batch", "ratio", "verdict", "cause"),
        [
            ("resnet18-b256", "resnet18", 256, 1.0292, "agrees", None),
            ("resnet18-b4", "resnet18", 4, 0.9717, "agrees", None),
            ("resnet18-b256-no-tf32", "resnet18", 256, 0.6956, "explained", "Winograd"),
            ("alexnet-b256", "alexnet", 256, 1.4668, "explained", "padding"),
            ("alexnet-b256-no-tf32", "alexnet", 256, 0.7042, "explained", "Winograd"),
        ],
    )
    def test_flop(self, name, arch, batch, ratio, verdict, cause):
        found = witness(run(name), model(arch, batch)).flop
        assert found.ratio == pytest.approx(ratio, rel=1e-3)
        assert found.verdict == verdict
        assert [text.split()[0].strip(":") for text in found.causes] == ([cause] if cause else [])

    def test_resnet18_pads_its_first_layer(self):
        # Its 3 channels become 4, forward and for the weights' gradient: a third more of each. The
        # linear layer, 3 * 2 * 512 * 1000 an image, is not on tensor cores.
        layer = 256 * 2 * 64 * 112**2 * 147
        flop = Algorithmic.of(model("resnet18", 256)).flop
        expected = flop + 2 * layer / 3 - 256 * 6 * 512 * 1000
        assert run("resnet18-b256").value(TF32) == pytest.approx(expected, rel=1e-3)

    def test_bytes(self):
        found = witness(run("resnet18-b256"), model("resnet18", 256)).byte
        # 7.972e10 over 4.576e10
        assert found.ratio == pytest.approx(1.742, rel=0.01)
        assert "read more than once" in found.sentence
        small = witness(run("resnet18-b4"), model("resnet18", 4)).byte
        assert small.ratio == pytest.approx(0.775, rel=0.01)
        assert "stayed in a cache" in small.sentence

    def test_bytes_of_another_precision_are_not_compared(self):
        record = run("resnet18-b256")
        record = replace(record, workload={**record.workload, "amp": "bf16"})
        found = witness(record, model("resnet18", 256)).byte
        assert found.verdict == "unknown"
        assert found.reason == "the hardware ran with amp bf16 and the model with None"

    def test_sentences(self):
        flop, byte = witness(run("resnet18-b256"), model("resnet18", 256)).sentences
        assert flop == (
            "The hardware's FLOP (cupti) are 1.03 times the model's 2.726 TFLOP: they agree."
        )
        assert byte.startswith("The hardware's bytes (cupti) are 1.74 times the model's 45.76 GB,")

    # Products of ViT-B/16, batch 128: 12 layers of 12 * 768^2 weights for 197 places, and the
    # head; 7 products of 197^2 * 64 for each of 12 heads (2 forward, 5 backward); and the images'
    # patches, which have no gradient. 16.25e12 over 13.55e12, of which TF32 are 3.21e12.
    VIT_LINEAR = 6 * 128 * (12 * 12 * 768**2 * 197 + 768 * 1000)
    VIT_ATTENTION = 7 * 2 * 128 * 12 * 12 * 197**2 * 64
    VIT_PATCHES = 2 * 2 * 128 * 196 * 768 * 768

    def test_attention_in_fp32_takes_three_tf32_products_for_one(self):
        record = Measurement.load(LATEST / "vit_b_16-b128/run.json")
        flop = self.VIT_LINEAR + self.VIT_ATTENTION + self.VIT_PATCHES
        model = Algorithmic(flop, 202e9, attention=self.VIT_ATTENTION, convolution=self.VIT_PATCHES)
        found = witness(record, model).flop
        assert found.ratio == pytest.approx(1.199, rel=2e-3)
        (cause,) = found.causes
        assert cause.startswith("attention in fp32, whose kernels make three TF32 products of one")
        # Not for want of a better one: element-wise work cannot be so much.
        without = witness(record, replace(model, attention=0.0)).flop
        assert [text.split(":")[0] for text in without.causes] == ["padding"]

    def test_resnet50_pads_the_convolutions_of_one_point(self):
        # 4.089 GMAC an image, less the gradient of the images; measured by layer, 1.00 for nearly
        # every 3 x 3 and up to 1.31 for 1 x 1.
        flop = 256 * (6 * 4.089e9 - 2 * 64 * 112**2 * 147)
        record = Measurement.load(LATEST / "resnet50-b256/run.json")
        found = witness(record, Algorithmic(flop, 201e9)).flop
        assert found.ratio == pytest.approx(1.072, rel=2e-3)
        assert [text.split(":")[0] for text in found.causes] == ["padding"]

    def test_of_another_model_or_batch_is_refused(self):
        with pytest.raises(UsageError, match=r"arch resnet18 and .* has alexnet"):
            witness(run("resnet18-b256"), model("alexnet", 256))
        with pytest.raises(UsageError, match=r"batch_size 256 and .* has 4"):
            witness(run("resnet18-b256"), model("resnet18", 4))

    def test_the_wrong_way_round_is_refused(self):
        with pytest.raises(UsageError, match="itself a model"):
            witness(model("resnet18", 4), run("resnet18-b4"))
        with pytest.raises(UsageError, match="counted by cupti"):
            witness(run("resnet18-b4"), run("resnet18-b4"))


class TestForeignFigures:
    """Figures from elsewhere may count otherwise; of ResNet-18's real run at batch 256."""

    def explained(self, flop, name="resnet18-b256"):
        found = witness(run(name), Algorithmic(flop, None, "a paper")).flop
        assert found.verdict == "explained"
        return found

    def test_case_38_mac_vs_flop(self):
        if not CASE_38.exists():
            pytest.skip("needs the shared cases beside the checkout")
        case = json.loads((CASE_38 / "compare.json").read_text())
        expected = json.loads((CASE_38 / "expected.json").read_text())["expect"]
        theirs = Algorithmic(case["analytic"]["value"], None, case["analytic"]["tool"])
        found = witness(hardware(case["counters"]), theirs).flop
        assert found.hardware.value == expected["counter_flops"]
        assert found.ratio == expected["ratio"]
        assert expected["diagnosis"] in found.causes[0]

    def test_multiply_adds(self):
        # 3 * 1.814 GMAC an image
        assert "multiply-add as one" in self.explained(256 * 3 * 1.814e9).causes[0]
        assert "multiply-add as one" in self.explained(2 * 2.8055e12).causes[0]

    def test_a_forward_pass(self):
        assert "forward pass alone" in self.explained(256 * 2 * 1.814e9).causes[0]
        found = self.explained(256 * 1.814e9)
        assert found.causes[0].startswith("multiply-adds of a forward pass alone")

    def test_recomputation(self):
        assert "checkpointing" in self.explained(0.75 * 2.8055e12).causes[0]

    def test_our_own_model_is_not_suspected(self):
        # It counts an FMA as two, and sees backward pass and recomputation.
        for part in (1 / 2, 1 / 3, 3 / 4):
            found = witness(run("resnet18-b256"), Algorithmic(part * 2.8055e12, None)).flop
            assert [text.split(":")[0] for text in found.causes] == ["padding"]


class TestCauses:
    def causes(self, counters, flop, **options):
        found = witness(hardware(counters, **options), Algorithmic(flop, None)).flop
        return found, " / ".join(found.causes)

    def test_a_matrix_vector_product_fills_one_row_of_64(self):
        # The same thread of NVIDIA's forum: M=1 counts 64 times, M=128 1.5 times.
        for ratio in (64.0, 1.5):
            found, causes = self.causes({TF32: ratio * 1e9}, 1e9)
            assert found.verdict == "explained"
            assert "whole tiles" in causes

    def test_more_than_tiles_is_a_flag(self):
        found, _ = self.causes({TF32: 512e9}, 1e9)
        assert found.verdict == "flag"
        assert found.sentence.endswith(
            "times the model's 1 GFLOP, and nothing known explains that: kernels ran that are no "
            "operators of PyTorch, or a count or the model is wrong."
        )

    def test_the_edge_of_five_percent_belongs_to_it(self):
        # In binary 2.1 / 2 and 0.525 / 0.5 are a rounding above 1.05, as is 1.05 itself.
        for flop, part in ((1e9, "the model counts"), (4e9, "the hardware's figure counts")):
            model = Algorithmic(flop, None, "a paper")
            found = witness(hardware({TF32: 2.1e9}), model).flop
            assert any(f"mismatch: {part} a multiply-add as one" in text for text in found.causes)
        at = witness(hardware({TF32: 1.05e9}), Algorithmic(1e9, None)).flop
        assert at.verdict == "agrees"

    def test_element_wise_work(self):
        _, causes = self.causes({TF32: 1.01e9, FADD: 0.2e9}, 1e9)
        assert causes.startswith("element-wise work")

    def test_a_step_without_its_backward_pass(self):
        _, causes = self.causes({TF32: 1e9, FFMA: 0.0}, 3e9)
        assert (
            causes == "a region without the backward pass, which is two thirds of a training step"
        )

    def test_winograd_saves_convolutions_only(self):
        # ResNet-18 without TF32 lacks 0.83e12 of 2.726e12 FLOP, 3/4 of 1.11e12.
        record = run("resnet18-b256-no-tf32")
        enough, little = (
            witness(record, Algorithmic(2.726e12, None, convolution=flop)).flop
            for flop in (1.11e12, 1.10e12)
        )
        assert enough.verdict == "explained"
        assert enough.causes[0].startswith("Winograd")
        assert little.verdict == "flag"
        assert little.sentence.endswith(
            "nothing known explains that: part of the step ran on another device, or a count or "
            "the model is wrong."
        )

    def test_winograd_leaves_work_for_cuda_cores(self):
        # A quarter of what it took over: 0.1e9 of the 0.3e9 that are missing.
        model = Algorithmic(1e9, None, convolution=1e9)
        for left, verdict in ((0.101e9, "explained"), (0.09e9, "flag")):
            counters = {TF32: 0.7e9 - left, FADD: left}
            assert witness(hardware(counters), model).flop.verdict == verdict

    def test_a_causal_mask_hides_half_of_attention(self):
        model = Algorithmic(10e9, None, convolution=0.0, attention=4e9)
        found = witness(hardware({TF32: 8e9}), model).flop
        assert found.causes == (
            "attention with a causal mask, of which kernels skip what the mask hides",
        )
        assert witness(hardware({TF32: 7.9e9}), model).flop.verdict == "flag"

    def test_half_precision_on_cuda_cores_is_in_no_total(self):
        # An instruction is at most 2 FLOP.
        record = hardware({TF32: 0.0, FADD: 1e9, HMUL: 1e9})
        (cause,) = witness(record, Algorithmic(2.5e9, None, convolution=0.0)).flop.causes
        assert cause.startswith("half precision on CUDA cores")
        assert witness(record, Algorithmic(3.2e9, None, convolution=0.0)).flop.verdict == "flag"

    def test_the_step_s_own_model_has_seen_its_backward_pass(self):
        _, causes = self.causes({TF32: 1e9}, 3e9)
        assert causes.startswith("a region without the backward pass")
        own = Algorithmic(3e9, None, convolution=0.0, attention=0.0, own_step=True)
        assert witness(hardware({TF32: 1e9}), own).flop.verdict == "flag"

    def test_a_chip_without_tensor_cores_lacks_none(self):
        counters = dict.fromkeys(metric_set("full", "TU116"), 0.0) | {FADD: 1e9}
        record = hardware(counters, environment=Environment("GTX 1660", "cuda", chip="TU116"))
        model = Algorithmic(9e9, None, convolution=0.0)
        assert witness(record, model).flop.verdict == "flag"

    def test_element_wise_work_has_its_bytes(self):
        # 6 FLOP for a byte, and not more.
        for byte, causes in ((0.5e9, 1), (0.4e9, 0)):
            found = witness(hardware({FADD: 4e9}), Algorithmic(1e9, byte)).flop
            assert len(found.causes) == causes
        assert found.verdict == "flag"

    def test_tiles_on_cuda_cores(self):
        found = witness(hardware({FFMA: 1e9}), Algorithmic(1.2e9, 1e6)).flop
        assert found.ratio == pytest.approx(2 / 1.2)
        assert found.causes == (
            "tiles of products on CUDA cores, which small or odd dimensions do not fill",
        )

    def test_kernels_of_a_graph_are_unseen(self):
        kernels = KernelTimes(2, 10, 5, 1.0, 1.0, 1.0, 0, 0)
        found = witness(hardware({TF32: 512e9}, kernels=kernels), Algorithmic(1e9, None)).flop
        assert found.verdict == "explained"
        assert found.causes[0].startswith("kernels of a CUDA graph")

    def test_operands_are_read_for_every_tile(self):
        # 8192^3 in fp64: 3 * 8192^2 * 8 byte by shape, and at most a byte for 8 FLOP more.
        flop, byte = 2 * 8192**3, 3 * 8192**2 * 8
        for moved, verdict in ((9 * byte, "explained"), (8 * byte + flop / 7, "flag")):
            found = witness(hardware({READ: moved, WRITE: 0.0}), Algorithmic(flop, byte))
            assert found.byte.verdict == verdict

    def test_sparsity(self):
        _, causes = self.causes({TF32: 1e9}, 2e9)
        assert causes.startswith("2:4 sparsity")

    def test_tensor_cores_that_nobody_counted(self):
        # The study's formula on the real step: 3.94e10 of 2.726e12.
        _, causes = self.causes({FADD: 5.2e9, FMUL: 7.1e9, FFMA: 13.5e9}, 2.726e12)
        assert causes == "work on tensor cores, which this run did not count"

    def test_too_little_on_tensor_cores_is_a_flag(self):
        found, _ = self.causes({TF32: 1e9}, 5e9)
        assert found.verdict == "flag"

    def test_what_the_model_leaves_out(self):
        model = Algorithmic(1e9, None, uncounted="operators without a FLOP formula: mine::op (3)")
        found = witness(hardware({TF32: 2e9}), model).flop
        assert "mine::op (3)" in found.causes[0]

    def test_uncovered_sass_is_a_lower_bound(self):
        blind = Coverage(0.0, 1e6, 0.0, 0.0, False, "a profiler was active")
        counters = {TF32: 1e9, FADD: None, FMUL: None, FFMA: None}
        why = dict.fromkeys((FADD, FMUL, FFMA), "a profiler was active")
        found, causes = self.causes(counters, 3e9, coverage=blind, unavailable=why)
        assert found.at_least
        assert found.ratio == pytest.approx(1 / 3)
        assert causes.startswith("SASS counters that did not see the kernels")
        assert "at least 0.333 times" in found.sentence

    @pytest.mark.parametrize(
        ("ratio", "verdict"),
        [(0.1, "explained"), (0.96, "agrees"), (7.9, "explained"), (9, "flag")],
    )
    def test_bytes(self, ratio, verdict):
        found = witness(hardware({READ: ratio * 1e9, WRITE: 0.0}), Algorithmic(None, 1e9))
        assert found.byte.verdict == verdict

    def test_without_figures_there_is_no_verdict(self):
        found = witness(hardware({READ: 1e9, WRITE: 0.0}), Algorithmic(1e9, None))
        assert found.flop.verdict == found.byte.verdict == "unknown"
        assert found.flop.sentence == "No witness for FLOP: no such counter was asked for."
        assert found.byte.sentence == "No witness for bytes: the model has no figure."
        # A step of element-wise work alone.
        bare = witness(hardware({FADD: 1e9}), Algorithmic(0.0, 1e9)).flop
        assert bare.sentence == "No witness for FLOP: the model counts none."


class TestOwnStep:
    """Of a record that holds the model of its own step."""

    def step(self, **changes):
        counters = dict.fromkeys((row.name for row in ANALYTIC), 0.0)
        counters |= {"analytic__flop_fp32.sum": 3e9, "analytic__flop_bf16.sum": 1e9}
        counters |= {"analytic__bytes_read.sum": 6e6, "analytic__bytes_write.sum": 2e6}
        modelled = Modelled(counters, {"convolution": 2.5e9, "attention": 0.5e9, "other": 1e9})
        return replace(modelled, **changes)

    def test_its_figures(self):
        record = hardware({TF32: 4e9, READ: 1e7, WRITE: 2e6}, witness=self.step())
        model = Algorithmic.of(record)
        assert (model.flop, model.byte) == (4e9, 8e6)
        assert (model.convolution, model.attention) == (2.5e9, 0.5e9)
        assert model.own_step
        found = witness(record)
        assert (found.flop.ratio, found.byte.ratio) == (1.0, 1.5)
        assert found.rows == (
            ("FLOP", "4 GFLOP", "4 GFLOP", "1", "agrees"),
            ("DRAM bytes", "12 MB", "8 MB", "1.5", "explained"),
        )
        assert [flagged for _, flagged in found.remarks] == [False, False, False]
        assert found.remarks[-1][0].endswith("its error is not known.")

    def test_of_one_model_for_another_record(self):
        other = hardware({TF32: 8e9}, witness=self.step())
        assert witness(hardware({TF32: 2e9}), other).flop.ratio == 0.5

    def test_kinds_bound_the_causes(self):
        # Winograd saves 3/4 of 2.5e9 at most, a mask half of 0.5e9.
        for counted, causes in ((1.9e9, ["Winograd", "attention"]), (1.8e9, [])):
            record = hardware({TF32: 0.0, FADD: counted}, witness=self.step())
            found = witness(record).flop
            assert [text.split()[0] for text in found.causes] == causes

    def test_a_gap_is_no_figure(self):
        counters = {**self.step().counters, "analytic__flop_bf16.sum": None}
        record = hardware(
            {TF32: 4e9, READ: 8e6, WRITE: 0.0},
            witness=self.step(counters=counters, reason="mine::op (3)"),
        )
        found = witness(record)
        assert found.flop.sentence == "No witness for FLOP: mine::op (3)."
        assert found.flop.row == ("FLOP", "4 GFLOP", "n/a", "n/a", "n/a")
        assert found.byte.verdict == "agrees"
        # A record of an older or a damaged kind.
        assert witness(replace(record, witness=Modelled({}, {}))).flop.verdict == "unknown"

    def test_bounds_are_in_the_table(self):
        values = dict.fromkeys((row.name for row in GPM), 0.0)
        values |= {"gpm__flop_tensor_tf32.sum": 2e9, "gpm__flop_fp32.sum": 3e9}
        found = witness(hardware(values, source="gpm", witness=self.step())).flop
        assert found.row == ("FLOP", "<= 5 GFLOP", "4 GFLOP", "<= 1.25", "agrees")

    def test_a_model_is_none_beside_itself(self):
        with pytest.raises(UsageError, match="itself a model"):
            witness(replace(model("resnet18", 4), witness=self.step()))


class TestGpm:
    def found(self, tensor, cores, flop):
        values = dict.fromkeys((row.name for row in GPM), 0.0)
        values |= {"gpm__flop_tensor_tf32.sum": tensor, "gpm__flop_fp32.sum": cores}
        return witness(hardware(values, source="gpm"), Algorithmic(flop, None)).flop

    def test_its_error_is_granted(self):
        assert self.found(1.09e9, 0.0, 1e9).verdict == "agrees"
        assert self.found(1.12e9, 0.0, 1e9).verdict == "explained"

    def test_anything_up_to_its_bound_is_possible(self):
        found = self.found(0.2e9, 1.5e9, 1e9)
        assert found.verdict == "agrees"
        assert "at most 1.7 times" in found.sentence
