"""Ceilings of a real GPU against the same calls by hand, the counters and the datasheet."""

import re
import statistics
import time

import pytest
import torch
from workloads import tf32

import roofprobe
from roofprobe import device as devices
from roofprobe.ceilings import bench, cache, fma, gemm, gpu, kernels, memory
from roofprobe.ceilings.roofs import dram_roof, peaks
from roofprobe.cli import main
from roofprobe.environment import collect
from roofprobe.roofline import l1_ceiling

GIB = 2**30
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
DFMA = "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum"


@pytest.fixture(scope="module")
def cuda():
    return torch.device("cuda", 0)


@pytest.fixture(scope="module")
def measured(gpu_ceilings):
    return gpu_ceilings


@pytest.fixture(scope="module")
def value(measured):
    return {roof.name: roof.value for roof in measured.roofs}


def by_hand(call, work: float) -> float:
    """The best rate of a call as anybody would time it: warm-up, events around ten calls."""

    def loop(calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / calls

    loop(3)
    rates = []
    for _ in range(5):
        time.sleep(0.1)
        rates.append(work / loop(10))
    return statistics.median(rates)


def test_every_ceiling_is_there_or_says_why(measured):
    every = {name for name, _, _ in gpu._parts(torch.device("cpu"), None, 0)}
    there = {roof.name for roof in measured.roofs}
    assert there | measured.left_out.keys() == every
    assert measured.complete
    if torch.cuda.get_device_capability() == (9, 0):
        assert every - there <= {gemm.FP16_ACC16.name}, measured.left_out
        assert "gains nothing" in measured.left_out.get(gemm.FP16_ACC16.name, "gains nothing")


def test_it_takes_less_than_a_minute(measured):
    assert measured.duration < 60


def test_clocks_were_seen_and_repeats_agree(measured):
    for roof in measured.roofs:
        assert 0.3e9 < roof.clock < 3.5e9, roof
        assert 0 <= roof.spread < 0.1, roof


@pytest.mark.parametrize(
    ("name", "dtype", "allow_tf32"),
    [
        ("FP16 GEMM", torch.float16, False),
        ("BF16 GEMM", torch.bfloat16, False),
        ("TF32 GEMM", torch.float32, True),
        ("FP32 GEMM", torch.float32, False),
        ("FP64 GEMM", torch.float64, False),
    ],
)
def test_products_are_within_3_percent_of_the_same_call_by_hand(
    measured, value, name, dtype, allow_tf32
):
    if name not in value:
        assert measured.left_out[name]
        return
    (method,) = [roof.method for roof in measured.roofs if roof.name == name]
    size = int(re.search(r"(\d+) x \d+ x \d+", method)[1])
    found = {}
    with tf32(allow_tf32):
        for n in {size, 8192}:
            a, b = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
            out = torch.empty(n, n, device="cuda", dtype=dtype)
            a = a.t() if "A transposed" in method and n == size else a
            b = b.t() if "B transposed" in method and n == size else b
            found[n] = by_hand(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), 2 * n**3)
    assert value[name] >= 0.97 * max(found.values())


def test_fp8_is_within_3_percent_of_the_same_call_by_hand(measured, value):
    if "FP8 GEMM" not in value:
        assert measured.left_out["FP8 GEMM"]
        return
    one = torch.ones((), device="cuda")
    best = 0.0
    for n in (8192, 16384):
        a, b = (torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        for fast in (True, False):
            rate = by_hand(
                lambda a=a, b=b, fast=fast: torch._scaled_mm(
                    a,
                    b.t(),
                    scale_a=one,
                    scale_b=one,
                    out_dtype=torch.bfloat16,
                    use_fast_accum=fast,
                ),
                2 * n**3,
            )
            best = max(best, rate)
    assert value["FP8 GEMM"] >= 0.97 * best


def test_copy_and_write_are_within_3_percent_of_the_same_calls_by_hand(value):
    source = torch.randn(GIB, device="cuda")  # 4 GiB
    target = torch.empty_like(source)
    assert value["DRAM copy"] >= 0.97 * by_hand(lambda: target.copy_(source), 8 * GIB)
    assert value["DRAM read"] >= 0.97 * by_hand(lambda: torch.sum(source), 4 * GIB)
    assert value["DRAM write"] >= 0.97 * by_hand(lambda: target.fill_(1.5), 4 * GIB)


@pytest.mark.parametrize(("precision", "metric"), [("fp32", FFMA), ("fp64", DFMA)])
def test_chains_execute_what_is_counted_for_them(cuda, precision, metric):
    launch = kernels.fma_chains(cuda, precision, rounds=4)
    record = roofprobe.measure_step(launch.run, metrics=[metric], warmup=2, timed=2)
    assert record.value(metric) == launch.work / 2, (record.coverage, record.unavailable)


def test_reads_of_l2_stay_in_l2_and_pass_l1(cuda, measured):
    (roof,) = [roof for roof in measured.roofs if roof.level == "l2"]
    footprint = int(re.search(r"footprint (\d+) MiB", roof.method)[1]) * 2**20
    data = torch.randn(footprint // 4, device=cuda)
    launch = kernels.reads(cuda, data, 8 * GIB)
    assert launch.work == pytest.approx(8 * GIB, rel=0.01)
    record = roofprobe.measure_step(launch.run, metrics="memory", warmup=3, timed=3)
    byte = {level: figure.value for level, figure in roofprobe.figures(record).byte.items()}
    # Data that lies in the far half of L2 may be counted there as well. An H200 reads 0.957 with
    # ld.global.cg and with loads that L1 may not answer, so that something between the two joins
    # requests; L2's request coalescer would.
    assert 0.94 < byte["l2"] / launch.work < 2.1
    assert byte["dram"] < 0.02 * launch.work


def test_the_roof_of_l1_is_near_its_width(cuda, measured):
    (roof,) = [roof for roof in measured.roofs if roof.level == "l1"]
    sm_count = torch.cuda.get_device_properties(cuda).multi_processor_count
    if torch.cuda.get_device_capability() in ((7, 0), (8, 0), (9, 0)):
        assert 0.7 < roof.value / (128 * sm_count * roof.clock) < 1.03, roof
    assert roof.value > 1.5 * max(each.value for each in measured.roofs if each.level == "l2")


def test_reads_of_l1_stay_in_l1_and_are_the_bytes_that_its_counter_counts(cuda):
    data = torch.randn(kernels.l1_byte(cuda) // 4, device=cuda)
    launch = kernels.l1_reads(cuda, data, 8 * GIB)
    assert launch.work == pytest.approx(8 * GIB, rel=0.01)
    record = roofprobe.measure_step(launch.run, metrics="memory", warmup=3, timed=3)
    byte = {level: figure.value for level, figure in roofprobe.figures(record).byte.items()}
    assert byte["l1"] == pytest.approx(launch.work, rel=0.02)
    # Each SM fetches its blocks' windows once, and is then served by L1.
    assert byte["l2"] < 0.02 * launch.work
    assert byte["dram"] < 0.02 * launch.work


def test_reads_of_dram_come_from_dram(cuda):
    data = torch.randn(GIB // 2, device=cuda)
    launch = kernels.reads(cuda, data, data.nbytes)
    record = roofprobe.measure_step(launch.run, metrics="memory", warmup=3, timed=3)
    read = roofprobe.figures(record).byte["dram_read"].value
    assert read == pytest.approx(launch.work, rel=0.03)


def test_l2_is_above_dram_and_fmas_above_products(measured, value):
    assert value["L2 read"] > 1.1 * max(value["DRAM read"], value["DRAM copy"])
    assert peaks(measured.roofs)["sass_fp32"].name == "FP32 FMA"
    assert dram_roof(measured.roofs).value == max(value["DRAM copy"], value["DRAM read"])


def test_nothing_is_above_the_datasheet(cuda, measured):
    machine = collect(cuda)
    spec = devices.find(
        device_name=machine.device_name,
        chip=machine.chip,
        sm_count=machine.sm_count,
        memory_byte=machine.memory_byte,
    )
    assert spec is not None, f"{machine.device_name} is not in the catalogue"
    for roof in measured.roofs:
        l1 = l1_ceiling(spec)
        levels = {"dram": spec.memory_byte_per_s, "l1": l1.value if l1 is not None else None}
        sheet = levels.get(roof.level) if roof.level is not None else spec.peaks.get(roof.path)
        assert sheet is None or roof.value <= 1.02 * sheet, roof
    # The chains reach what the sheet's own arithmetic promises, at the clock that was seen.
    chains = peaks(measured.roofs)["sass_fp32"]
    at_clock = spec.peaks["sass_fp32"] * chains.clock / spec.boost_hz
    assert chains.value >= 0.93 * at_clock


def test_settings_and_random_numbers_are_the_users(cuda):
    def state():
        products = torch.backends.cuda.matmul
        return (
            products.fp32_precision,
            products.allow_tf32,
            products.allow_fp16_accumulation,
            torch.get_float32_matmul_precision(),
        )

    before, numbers, host = state(), torch.cuda.get_rng_state(), torch.get_rng_state()
    parts = [
        part
        for part in gpu._parts(cuda, None, 4 * GIB)
        if part[0] in ("TF32 GEMM", gpu.FP32_FMA, "DRAM copy")
    ]
    roofs, left_out, _ = gpu.run_parts(parts, None)
    assert len(roofs) == 3, left_out
    assert state() == before
    assert torch.equal(torch.cuda.get_rng_state(), numbers)
    assert torch.equal(torch.get_rng_state(), host)


def test_out_of_memory_costs_one_ceiling(cuda):
    def too_much():
        return torch.empty(2**48, dtype=torch.uint8, device=cuda).zero_  # 256 TiB

    parts = [
        ("FP16 GEMM", {"path": "x"}, lambda: bench.best_of([bench.Way("", 1, too_much)], cuda)),
        ("FP32 FMA", {"path": "y"}, lambda: bench.best_of(fma.ways(cuda, "fp32"), cuda)),
    ]
    roofs, left_out, complete = gpu.run_parts(parts, None)
    assert "out of memory" in left_out["FP16 GEMM"]
    assert [roof.name for roof in roofs] == ["FP32 FMA"]
    assert complete


def test_a_kernel_that_does_not_compile_costs_its_own_ceilings(cuda, monkeypatch):
    def forget():
        kernels._module.cache_clear()
        kernels._kernel.cache_clear()

    forget()
    monkeypatch.setattr(kernels, "SOURCE", "this is no CUDA")
    try:
        parts = [
            (gpu.L2_READ, {"level": "l2"}, lambda: memory.l2_reading(cuda)),
            (gpu.L1_READ, {"level": "l1"}, lambda: memory.l1_reading(cuda)),
            (
                "DRAM read",
                {"level": "dram"},
                lambda: bench.best_of(memory.dram_ways(cuda, 8 * GIB)["DRAM read"], cuda),
            ),
        ]
        roofs, left_out, _ = gpu.run_parts(parts, None)
    finally:
        monkeypatch.undo()
        forget()
    assert "does not compile" in left_out[gpu.L2_READ]
    assert "does not compile" in left_out[gpu.L1_READ]
    assert [roof.name for roof in roofs] == ["DRAM read"]


def test_the_verb_shows_what_is_kept(cuda, measured, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = collect(cuda)
    conditions = cache.conditions_of(machine)
    assert conditions["clocks"]["sm_max"] > 1e9
    cache.save(measured, conditions)
    assert cache.load_cached(machine) == measured.roofs
    assert main(["ceilings"]) == 0
    out = capsys.readouterr().out
    assert "FP32 FMA" in out and "measured on this GPU" in out
