"""The clock is a fake: real rates are nobody's to expect."""

import argparse
import json
import re
import subprocess
from dataclasses import asdict, replace
from itertools import cycle
from pathlib import Path

import pytest
import torch

import roofprobe
from roofprobe import environment
from roofprobe.ceilings import (
    bench,
    cache,
    cpu,
    dram_roof,
    gemm,
    gpu,
    kernels,
    load_cached,
    measure_cpu_roofs,
    memory,
    nvml,
    peaks,
)
from roofprobe.ceilings.roofs import Ceilings, UnavailableError
from roofprobe.cli import ceilings as verb
from roofprobe.cli import main
from roofprobe.errors import RecordError
from roofprobe.record import Environment, MeasuredRoof

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
GIB = 2**30


def set_clock(monkeypatch, *steps: float) -> None:
    """Makes each look at the clock come ``steps`` seconds after the one before, in turn."""
    now, turns = 0.0, cycle(steps)

    def clock() -> float:
        nonlocal now
        now += next(turns)
        return now

    monkeypatch.setattr(cpu, "perf_counter", clock)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(cpu, "_GEMM_SIZES", (4, 8))
    monkeypatch.setattr(cpu, "_COPY_BYTES", 2**21)


def test_rates(monkeypatch):
    set_clock(monkeypatch, 1.0)
    # 160 s: 40 s for either GEMM size. A call takes 1 s, so a repeat is 40/5 = 8 calls and, by
    # this clock, takes 1 s: 1/8 s a call. The larger size wins with 2*8**3 / (1/8) = 8192 FLOP/s.
    # The copy has 80 s: a repeat is 16 calls of 2*2**21 byte in 1 s.
    gemm, copy = measure_cpu_roofs(seconds=160)
    assert (gemm.kind, gemm.path, gemm.level) == ("flop", "analytic_fp32", None)
    assert gemm.value == 8192
    assert gemm.method.startswith("torch.mm of 8 x 8 matrices")
    assert (copy.kind, copy.path, copy.level) == ("byte", None, "dram")
    assert copy.value == 2**26
    assert "two buffers of 2 MiB" in copy.method
    assert {gemm.source, copy.source} == {"measured"}
    assert gemm.spread == copy.spread == 0


def test_no_larger_matrices_than_fit_the_time(monkeypatch):
    set_clock(monkeypatch, 1.0)
    # 8 s: 2 s for a size, and the next size would take 8 times the 1 s that this one took
    gemm, _ = measure_cpu_roofs(seconds=8)
    assert gemm.method.startswith("torch.mm of 4 x 4 matrices")
    assert gemm.value == 2 * 4**3  # one call a repeat, 1 s each


def test_the_better_size_wins(monkeypatch):
    monkeypatch.setattr(cpu, "_time", lambda call, seconds: (next(durations), 0.0))
    # 128 FLOP in 1 s, then 1024 FLOP in 16 s; the third is the copy's
    durations = iter((1.0, 16.0, 1.0))
    gemm, _ = measure_cpu_roofs(seconds=100)
    assert gemm.value == 128


def test_spread(monkeypatch):
    # Two looks for the trial call, then two for each of five repeats: 1, 1, 2, 1, 1 s.
    set_clock(monkeypatch, 0, 1, 0, 1, 0, 1, 0, 2, 0, 1, 0, 1)
    duration, spread = cpu._time(lambda: None, 0.0)
    assert (duration, spread) == (1, 1)  # (2 - 1) / 1


def test_works_on_numbers_and_leaves_the_users_alone(monkeypatch):
    operands = []

    def keep(call, seconds):
        operands.extend(call.args)
        return 1.0, 0.0

    monkeypatch.setattr(cpu, "_time", keep)
    before = torch.get_rng_state()
    measure_cpu_roofs()
    assert torch.equal(torch.get_rng_state(), before)
    # Pages and multiplications of zeros can be cheaper than others.
    assert all((operand != 0).float().mean() > 0.99 for operand in operands)


# --- timing ----------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Durations of one call: a way's call says how long it takes."""

    def timed(call, calls, repeats, device):
        return tuple(call() for _ in range(repeats))

    monkeypatch.setattr(bench, "_timed", timed)
    monkeypatch.setattr(bench, "_REST", 0.0)


def way(name: str, work: float, *durations: float) -> bench.Way:
    return bench.Way(name, work, lambda: cycle(durations).__next__)


def broken(reason: str) -> bench.Way:
    def prepare():
        raise RuntimeError(reason)

    return bench.Way("broken", 1.0, prepare)


def test_the_best_way_wins(clock):
    ways = [way("small", 100, 0.01), way("large", 800, 0.04), way("largest", 1600, 0.1)]
    reading = bench.best_of(ways, CPU)
    assert reading.value == 800 / 0.04
    assert reading.method == "large; 7 bursts of 1 call"  # of 0.04 s, longer than a burst
    assert reading.sustained == 800 / 0.04
    assert reading.spread == 0
    assert reading.clock is None  # a CPU has no SM


def test_value_is_the_median_and_spread_is_over_the_bursts(clock):
    # prepare() gives a new cycle: one duration for the warm-up, then seven bursts.
    reading = bench.read(way("w", 12, 9.0, 2.0, 3.0, 8.0, 2.5, 4.0, 2.0, 7.0), 1.0, CPU)
    assert reading.value == 12 / 3  # of 2, 2, 2.5, 3, 4, 7, 8
    assert reading.spread == (8 - 2) / 3


def test_a_burst_is_short_and_the_lasting_rate_is_taken_after_heating(monkeypatch):
    asked = []

    def timed(call, calls, repeats, device):
        asked.append(calls)
        return (0.001,) * repeats

    monkeypatch.setattr(bench, "_timed", timed)
    monkeypatch.setattr(bench, "_REST", 0.0)
    bench.read(way("w", 2.0, 0.0), 2000.0, CPU)  # 1 ms a call
    assert asked == [1, *[10] * 7]  # 10 ms
    asked.clear()
    assert bench.sustained(way("w", 2.0, 0.0), 2000.0, CPU) == 2000
    assert asked == [300, 200]  # 0.3 s that do not count, 0.2 s that do


def test_a_way_that_would_take_too_long_is_not_tried(clock):
    tried = []

    def prepare():
        tried.append("huge")
        return lambda: 1.0

    # 1e6 FLOP at 1000 FLOP/s are 1000 s.
    bench.best_of([way("small", 100, 0.1), bench.Way("huge", 1e6, prepare)], CPU)
    assert tried == []


def test_a_way_that_fails_leaves_the_others(clock):
    reading = bench.best_of([broken("out of memory"), way("good", 100, 0.01)], CPU)
    assert reading.value == 1e4


def test_no_way_at_all_says_why(clock):
    with pytest.raises(UnavailableError, match=r"^not supported$"):
        bench.best_of([broken("not supported\nstack"), broken("other")], CPU)
    with pytest.raises(UnavailableError, match="fits the free memory"):
        bench.best_of([], CPU)


def test_real_clock_runs_the_call_so_often():
    calls = []
    durations = bench._timed(lambda: calls.append(1), 3, 2, CPU)
    assert len(calls) == 6
    assert len(durations) == 2 and all(duration > 0 for duration in durations)


# --- matrix products -------------------------------------------------------------------------


def gemm_of(path: str) -> gemm.Gemm:
    (found,) = [one for one in gemm.GEMMS if one.path == path]
    return found


def test_work_is_2mnk_and_methods_name_the_call():
    ways = list(gemm.ways(gemm_of("tensor_tf32"), CPU, 80 * GIB))
    assert [way.work for way in ways[::3]] == [2 * n**3 for n in (4096, 8192, 12288, 16384)]
    assert ways[0].method == (
        "torch.mm, fp32 with fp32_precision=tf32, 4096 x 4096 x 4096, A and B row-major"
    )
    assert len({way.method for way in ways}) == len(ways) == 12


def test_operands_fit_the_memory():
    # 4096: three fp16 matrices and one of fp32 in the making, 4096^2 * (6 + 4) byte = 160 MiB
    ways = list(gemm.ways(gemm.FP16, CPU, 160 * 2**20))
    assert max(way.work for way in ways) == 2 * 4096**3
    assert not list(gemm.ways(gemm.FP16, CPU, 2**20))


@pytest.mark.parametrize(
    ("path", "capability", "chip", "reason"),
    [
        ("tensor_bf16", (7, 5), "TU104", "no such tensor cores"),
        ("tensor_fp8", (8, 6), "GA102", "no such tensor cores"),
        ("tensor_fp16", (7, 5), "TU116", "no such tensor cores"),
        ("tensor_fp16_acc16", (7, 5), "TU116", "no such tensor cores"),
        ("tensor_fp64", (8, 6), "GA102", "FP64 FMA"),
        ("tensor_fp64", (7, 0), "GV100", "FP64 FMA"),
    ],
)
def test_a_precision_that_the_gpu_lacks(path, capability, chip, reason):
    with pytest.raises(UnavailableError, match=reason):
        gemm.require(gemm_of(path), capability, chip)


def test_an_h200_has_every_precision_known_chip_or_not():
    for one in gemm.GEMMS:
        gemm.require(one, (9, 0), "GH100")
        gemm.require(one, (9, 0), None)


@pytest.mark.parametrize("one", gemm.GEMMS, ids=lambda one: one.path)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_operands_are_normal_numbers_and_products_are_right(one, layout):
    if one.path == "tensor_fp8":
        layout = "nt"  # the one that the hardware takes
    before = torch.get_rng_state()
    call = gemm._prepare(one, CPU, 64, layout, False)
    assert torch.equal(torch.get_rng_state(), before)
    a, b = (operand.to(torch.float64) for operand in call.args)
    for operand in (a, b):
        assert operand.std() == pytest.approx(1, abs=0.05)
        assert operand.mean() == pytest.approx(0, abs=0.1)
    assert (call.args[0].stride() == (1, 64)) == (layout[0] == "t")
    assert (call.args[1].stride() == (1, 64)) == (layout[1] == "t")
    with gemm.settings(one):
        result = call()
    assert torch.allclose(result.to(torch.float64), a @ b, rtol=0.02, atol=0.3)


def precision_settings():
    products = torch.backends.cuda.matmul
    return (
        products.fp32_precision,
        products.allow_tf32,
        products.allow_fp16_accumulation,
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
    )


@pytest.mark.parametrize("users", ["highest", "high", "medium"])
def test_settings_hold_inside_and_are_the_users_again_outside(users):
    torch.set_float32_matmul_precision(users)
    try:
        before = precision_settings()
        for one in gemm.GEMMS:
            with pytest.raises(KeyError), gemm.settings(one):
                assert torch.backends.cuda.matmul.fp32_precision == one.fp32_precision
                accumulation = torch.backends.cuda.matmul.allow_fp16_accumulation
                assert accumulation == one.fp16_accumulation
                raise KeyError
            assert precision_settings() == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_an_inherited_setting_stays_inherited():
    products = torch.backends.cuda.matmul
    # Left by the test above as set; "none" inherits.
    products.fp32_precision = "none"
    torch.backends.fp32_precision = "tf32"
    try:
        assert products.fp32_precision == "tf32"
        with gemm.settings(gemm_of("sass_fp32")):
            assert products.fp32_precision == "ieee"
        assert products.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert products.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


# --- own kernels -----------------------------------------------------------------------------


def test_kernels_compile_to_what_is_counted():
    if torch.version.cuda is None:
        with pytest.raises(UnavailableError, match="without CUDA"):
            kernels.compile_for(90)
        return
    assert kernels.compile_for(90).startswith(b"\x7fELF")
    # A GPU that is younger than the compiler gets PTX, which the driver finishes.
    ptx = kernels.compile_for(999).decode()
    entries = {part.split("(")[0]: part for part in ptx.split(".entry ")[1:]}
    for name, fma, other in (
        ("fma_fp32", "fma.rn.f32", ".f64"),
        ("fma_fp64", "fma.rn.f64", ".f32"),
    ):
        body = entries[name]
        assert 2 * body.count(fma) == kernels.FMA_FLOP_A_ROUND == 1024
        assert other not in body
        assert body.count("bra") <= 3  # skip, loop, end: nothing else repeats
    reading = entries["read_global"]
    assert reading.count("ld.relaxed.gpu.global.v4.u32") == kernels.LOADS == 4
    assert kernels.PIECE_BYTE == 4 * 4
    assert entries["read_l1"].count("ld.relaxed.cta.global.v4.u32") == kernels.LOADS
    assert kernels.L1_BLOCK_BYTE == 16 * 2**10  # 512 threads with two pieces of 16 bytes


def known_architectures() -> list[int]:
    nvrtc, count = kernels._nvrtc(), kernels.ctypes.c_int()
    assert nvrtc.nvrtcGetNumSupportedArchs(kernels.ctypes.byref(count)) == 0
    known = (kernels.ctypes.c_int * count.value)()
    assert nvrtc.nvrtcGetSupportedArchs(known) == 0
    return list(known)


def loads_in_loops(code: str) -> list[str]:
    """Loads between a label and a jump back to it, of one function of nvdisasm's."""
    lines = code.splitlines()
    labels = {line.rstrip(":"): at for at, line in enumerate(lines) if line.startswith(".L")}
    found = []
    for at, line in enumerate(lines):
        jump = re.search(r"BRA.*`\((\.L\w+)\)", line)
        if jump and labels[jump[1]] < at:
            inside = "\n".join(lines[labels[jump[1]] : at])
            found += re.findall(r"\bLDG\S*", inside)
    return found


def test_the_assembler_leaves_every_load_in_its_loop(tmp_path):
    """With ld.global.ca it loads once and loops over nothing, which would be a roof without end."""
    triton = pytest.importorskip("triton")
    disassembler = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    if torch.version.cuda is None or not disassembler.exists():
        pytest.skip("no NVRTC or no disassembler")
    architectures = known_architectures()
    assert 90 in architectures
    for arch in architectures:
        cubin = tmp_path / f"{arch}.cubin"
        cubin.write_bytes(kernels.compile_for(arch))
        done = subprocess.run([disassembler, "-c", cubin], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        functions = dict(
            re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text|\Z)", done.stdout, re.M | re.S)
        )
        own = "LDG.E.128.STRONG.SM" if arch >= 80 else "LDG.E.128.STRONG.CTA"
        assert loads_in_loops(functions["read_l1"]) == [own] * kernels.LOADS, arch
        past = loads_in_loops(functions["read_global"])
        assert past == ["LDG.E.128.STRONG.GPU"] * kernels.LOADS, arch


def test_chains_never_settle():
    # The kernel's recurrence, each step rounded to fp32 once, as an FMA does.
    thread = torch.arange(256, dtype=torch.float64)
    seed = (torch.tensor(1.99) - (thread * 2.0**-14).float()).double()
    x = torch.rand(8, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = []
    for step in range(3000):
        x = (seed - x * x).float().double()
        if step >= 2900:
            seen.append(x)
    orbit = torch.stack(seen)
    assert orbit.abs().max() <= 2
    distinct = [len(set(column.tolist())) for column in orbit.flatten(1).T]
    assert sum(count > 90 for count in distinct) > 0.9 * len(distinct)


def test_an_architecture_that_no_compiler_knows():
    if torch.version.cuda is not None:
        with pytest.raises(UnavailableError, match="and newer"):
            kernels.compile_for(1)


# --- memory ----------------------------------------------------------------------------------


def test_buffers_are_far_larger_than_l2(monkeypatch):
    monkeypatch.setattr(memory, "l2_byte", lambda device: 60 * 2**20)
    monkeypatch.setattr(kernels, "sweep_byte", lambda device: 4325376)  # 132 SMs * 2048 * 16
    ways = memory.dram_ways(CPU, 80 * GIB)
    assert {name: [way.work for way in several] for name, several in ways.items()} == {
        "DRAM copy": [8 * GIB, 8 * GIB],  # read and written
        # 4 GiB, and what whole groups of four loads cover: 248 * 17301504
        "DRAM read": [4 * GIB, 4 * GIB, 4290772992],
        "DRAM write": [4 * GIB, 4 * GIB],
    }
    # An 8 GB card with 4 GiB to spare still has 2 GiB a buffer; half a GiB is too near L2.
    assert memory.dram_ways(CPU, 4 * GIB)["DRAM write"][0].work == 2 * GIB
    with pytest.raises(UnavailableError, match="256 MiB, and less than 8 times the L2"):
        memory.dram_ways(CPU, GIB // 2)


def test_without_the_own_kernel_the_librarys_ways_remain(monkeypatch):
    def no_kernel(device):
        raise UnavailableError("no NVRTC")

    monkeypatch.setattr(memory, "l2_byte", lambda device: 2**20)
    monkeypatch.setattr(kernels, "sweep_byte", no_kernel)
    methods = [way.method for way in memory.dram_ways(CPU, GIB)["DRAM read"]]
    assert methods == ["torch.sum of 0.5 GiB", "torch.amax of 0.5 GiB"]


def test_every_way_of_dram_runs_on_random_numbers(monkeypatch):
    monkeypatch.setattr(memory, "l2_byte", lambda device: 2**20)
    monkeypatch.setattr(kernels, "sweep_byte", lambda device: 2**16)
    monkeypatch.setattr(memory, "_BUFFER", 8 * 2**20)
    for name, ways in memory.dram_ways(CPU, GIB).items():
        for one in ways:
            if "own kernel" not in one.method:
                call = one.prepare()
                operands = call.args
                assert all(operand.nbytes == 8 * 2**20 for operand in operands)
                call()
                if name == "DRAM copy":
                    assert torch.equal(operands[0].abs(), operands[1].abs())
                if name != "DRAM write":
                    assert operands[-1].std() == pytest.approx(1, abs=0.01)


def test_the_plateau_of_l2(monkeypatch):
    rates = {4: 5.0e12, 8: 6.8e12, 16: 7.0e12, 24: 6.9e12, 32: 5.5e12, 60: 4.4e12}
    monkeypatch.setattr(memory, "l2_byte", lambda device: 60 * 2**20)
    monkeypatch.setattr(memory, "l2_rates", lambda d: {m * 2**20: r for m, r in rates.items()})
    monkeypatch.setattr(kernels, "sweep_byte", lambda device: 4325376)
    monkeypatch.setattr(
        memory, "read", lambda way, rate, device: bench.Reading(rate, 0.0, way.method, 1.98e9)
    )
    monkeypatch.setattr(memory, "sustained", lambda way, rate, device: 0.9 * rate)
    reading = memory.l2_reading(CPU)
    assert reading.value == 7.0e12
    assert reading.sustained == 6.3e12
    assert reading.clock == 1.98e9
    assert "reads only" in reading.method and "footprint 16 MiB" in reading.method
    assert "L2's 60 MiB, those of 8 to 24 MiB read within 5% of it" in reading.method


def test_footprints_lie_between_one_sweep_of_the_grid_and_the_size_of_l2(monkeypatch):
    monkeypatch.setattr(memory, "l2_byte", lambda device: 50 * 2**20)
    monkeypatch.setattr(kernels, "sweep_byte", lambda device: 4325376)
    monkeypatch.setattr(memory, "look", lambda way, device: way.work)
    sizes = [size // 2**20 for size in memory.l2_rates(CPU)]
    assert sizes == [6, 9, 12, 15, 18, 25, 31, 37, 43, 50]  # 3 MiB is less than one sweep


def test_l2_of_unknown_size(monkeypatch):
    monkeypatch.setattr(memory, "l2_byte", lambda device: 0)
    monkeypatch.setattr(kernels, "sweep_byte", lambda device: 4325376)
    with pytest.raises(UnavailableError, match="size of L2 is not known"):
        memory.l2_reading(CPU)


@pytest.fixture
def h200_l1(monkeypatch):
    """Reads of L1 on 132 SMs with four blocks of 512 threads each, at a rate and a clock."""

    def install(value, clock=1.98e9):
        monkeypatch.setattr(kernels, "l1_byte", lambda device: 132 * 4 * 16 * 2**10)
        monkeypatch.setattr(kernels, "l1_group_byte", lambda device: 132 * 4 * 512 * 16 * 4)
        monkeypatch.setattr(memory, "_sm_count", lambda device: 132)
        monkeypatch.setattr(
            memory, "best_of", lambda ways, d: bench.Reading(value, 0.0, ways[0].method, clock)
        )

    return install


def test_reads_of_l1_say_what_they_are(h200_l1):
    h200_l1(32e12)
    reading = memory.l1_reading(CPU)
    assert reading.value == 32e12
    assert reading.method == (
        "own kernel, reads only, 16-byte loads that L1 answers (ld.relaxed.cta), 16 KiB a block, "
        "64 KiB an SM"
    )
    # 32 GiB in whole groups of 132 * 4 * 512 * 16 * 4 = 17301504 bytes: 1985 of them
    assert memory._l1_way(CPU).work == 34343485440


def test_l1_cannot_be_faster_than_its_width(h200_l1):
    # A loop that lost half of its loads would read 256 bytes a clock and SM.
    h200_l1(2 * 128 * 132 * 1.98e9)
    with pytest.raises(UnavailableError, match=r"256 bytes a clock and SM, at the 1\.98 GHz"):
        memory.l1_reading(CPU)
    h200_l1(1.03 * 128 * 132 * 1.98e9)  # a clock that was read a little low
    assert memory.l1_reading(CPU).clock == 1.98e9
    h200_l1(1e15, clock=None)
    assert memory.l1_reading(CPU).value == 1e15


def test_an_l1_that_cannot_be_measured_costs_no_other_roof(monkeypatch):
    def no_kernel(device):
        raise UnavailableError("the kernel does not compile for sm_70: why")

    monkeypatch.setattr(kernels, "l1_byte", no_kernel)
    parts = [part for part in gpu._parts(CPU, None, GIB) if part[0] == "L1 read"]
    roofs, left_out, complete = gpu.run_parts(parts, None)
    assert (roofs, complete) == ((), True)
    assert left_out == {"L1 read": "the kernel does not compile for sm_70: why"}


# --- putting them together -------------------------------------------------------------------


def roof(name: str, value: float, path: str | None = None, level: str | None = None):
    kind = "flop" if path else "byte"
    return MeasuredRoof(name, kind, value, 0.004, f"how {name}", path, level, clock=1.98e9)


# What one H200 gave (shared facts): 8192^3 products and 8 GiB copies; the last three are made up.
H200 = Ceilings(
    (
        roof("FP16 GEMM", 700e12, "tensor_fp16"),
        roof("BF16 GEMM", 720e12, "tensor_bf16"),
        roof("TF32 GEMM", 398e12, "tensor_tf32"),
        roof("FP32 GEMM", 50.7e12, "sass_fp32"),
        roof("FP64 GEMM", 55.7e12, "tensor_fp64"),
        roof("DRAM copy", 4.25e12, level="dram"),
        roof("DRAM read", 4.21e12, level="dram"),
        roof("DRAM write", 4.57e12, level="dram"),
        roof("FP32 FMA", 65e12, "sass_fp32"),
        roof("L2 read", 7e12, level="l2"),
    ),
    {"FP8 GEMM": "a reason"},
    created="2026-11-30T00:00:00Z",
)


def part(name: str, result, **limits: str):
    def run():
        if isinstance(result, BaseException):
            raise result
        return bench.Reading(result, 0.01, f"how {name}", 1.98e9)

    return name, limits, run


def test_a_part_that_fails_leaves_only_itself_out():
    parts = [
        part("a", 1.0, path="tensor_fp16"),
        part("b", torch.OutOfMemoryError("CUDA out of memory.\nTried to"), path="tensor_bf16"),
        part("c", UnavailableError("no such unit"), path="tensor_fp8"),
        part("d", 2.0, level="l2"),
    ]
    seen: list[str] = []
    roofs, left_out, complete = gpu.run_parts(parts, seen.append)
    assert [(one.name, one.kind, one.value, one.path, one.level) for one in roofs] == [
        ("a", "flop", 1.0, "tensor_fp16", None),
        ("d", "byte", 2.0, None, "l2"),
    ]
    assert left_out == {"b": "CUDA out of memory.", "c": "no such unit"}
    assert complete and seen == ["a", "b", "c", "d"]
    assert (roofs[0].spread, roofs[0].clock, roofs[0].method) == (0.01, 1.98e9, "how a")
    assert roofs[0].source == "measured"


def test_a_fault_of_the_device_keeps_what_was_measured(monkeypatch):
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")

    def empty_cache():
        raise fault

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    roofs, left_out, complete = gpu.run_parts(
        [part("a", 1.0, level="l2"), part("L1 read", fault, level="l1")], None
    )
    assert [one.name for one in roofs] == ["a"]
    assert left_out == {"L1 read": str(fault)}
    assert complete


def test_ctrl_c_keeps_what_was_measured():
    parts = [
        part("a", 1.0, level="l2"),
        part("b", KeyboardInterrupt(), level="l2"),
        part("c", 1.0, level="l2"),
    ]
    roofs, left_out, complete = gpu.run_parts(parts, None)
    assert [one.name for one in roofs] == ["a"]
    assert left_out == {"b": "interrupted", "c": "interrupted"}
    assert not complete


def test_every_ceiling_has_a_path_of_the_metric_table_or_a_level():
    named = {name: limits for name, limits, _ in gpu._parts(CPU, "GH100", GIB)}
    assert named == {
        "FP16 GEMM": {"path": "tensor_fp16"},
        "FP16 GEMM, FP16 accumulate": {"path": "tensor_fp16_acc16"},
        "BF16 GEMM": {"path": "tensor_bf16"},
        "FP8 GEMM": {"path": "tensor_fp8"},
        "TF32 GEMM": {"path": "tensor_tf32"},
        "FP32 GEMM": {"path": "sass_fp32"},
        "FP64 GEMM": {"path": "tensor_fp64"},
        "FP32 FMA": {"path": "sass_fp32"},
        "FP64 FMA": {"path": "sass_fp64"},
        "DRAM copy": {"level": "dram"},
        "DRAM read": {"level": "dram"},
        "DRAM write": {"level": "dram"},
        "L2 read": {"level": "l2"},
        "L1 read": {"level": "l1"},
    }


def test_fp16_accumulation_that_gains_nothing_is_said_and_is_no_roof():
    acc16 = roof("FP16 GEMM, FP16 accumulate", 690e12, "tensor_fp16_acc16")
    found = gpu.judged(replace(H200, roofs=(*H200.roofs, acc16)))
    assert found.roofs == H200.roofs
    reason = found.left_out["FP16 GEMM, FP16 accumulate"]
    assert "gains nothing" in reason and "690 TFLOP/s" in reason and "700 TFLOP/s" in reason
    assert found.left_out["FP8 GEMM"] == "a reason"
    # A GeForce card runs it twice as fast.
    twice = replace(acc16, value=1380e12)
    assert twice in gpu.judged(replace(H200, roofs=(*H200.roofs, twice))).roofs


def test_an_l2_that_reads_no_faster_than_dram_is_no_roof():
    slow = (*H200.roofs[:-1], roof("L2 read", 4.2e12, level="l2"))
    found = gpu.judged(replace(H200, roofs=slow))
    assert "L2 read" not in {one.name for one in found.roofs}
    assert "4.2 TB/s" in found.left_out["L2 read"] and "4.21 TB/s" in found.left_out["L2 read"]


def test_an_l1_that_reads_no_faster_than_what_is_outside_it_is_no_roof():
    def found(value):
        l1 = roof("L1 read", value, level="l1")
        return gpu.judged(replace(H200, roofs=(*H200.roofs, l1)))

    assert "L1 read" in {one.name for one in found(31e12).roofs}
    slow = found(6.9e12)
    assert slow.roofs == H200.roofs
    assert "6.9 TB/s" in slow.left_out["L1 read"] and "7 TB/s" in slow.left_out["L1 read"]


def test_which_roof_binds():
    assert dram_roof(H200.roofs).name == "DRAM copy"  # not write, which is faster
    assert dram_roof(H200.roofs[6:]).name == "DRAM read"
    assert dram_roof(H200.roofs[7:]) is None
    best = peaks(H200.roofs)
    assert best["sass_fp32"].name == "FP32 FMA"
    assert best["tensor_tf32"].value == 398e12
    assert set(best) == {f"tensor_{p}" for p in ("fp16", "bf16", "tf32", "fp64")} | {"sass_fp32"}


# --- NVML ------------------------------------------------------------------------------------


class FakeNvml:
    """NVML's calls that are used, for one GPU."""

    NVMLError = ValueError
    NVML_CLOCK_SM, NVML_CLOCK_GRAPHICS = 1, 0

    def __init__(self, pids=(), loads=(0,)):
        self._pids, self._loads = pids, cycle(loads)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [argparse.Namespace(pid=pid) for pid in self._pids]

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return argparse.Namespace(gpu=next(self._loads))

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):  # noqa: N802
        return 1980

    def nvmlDeviceGetApplicationsClock(self, handle, kind):  # noqa: N802
        raise self.NVMLError("not supported")

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        return 700000  # mW


@pytest.fixture
def fake_nvml(monkeypatch):
    def install(**what):
        monkeypatch.setattr(nvml, "_handle", lambda uuid: (FakeNvml(**what), None))

    return install


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ((1000,), 0),
        ((1000, 7), 1),
        ((), 0),  # as in some containers
        ((51,), 0),  # ours, by its number outside the container
        ((51, 52, 53), 2),
    ],
)
def test_other_processes(fake_nvml, monkeypatch, pids, others):
    monkeypatch.setattr(nvml.os, "getpid", lambda: 1000)
    fake_nvml(pids=pids)
    assert nvml.other_processes("GPU-1") == others


def test_our_own_last_work_is_not_somebody_elses(fake_nvml, monkeypatch):
    monkeypatch.setattr(nvml.time, "sleep", lambda s: None)
    fake_nvml(loads=(100, 60, 3))
    assert nvml.busy("GPU-1") == 0
    monkeypatch.setattr(nvml, "_SETTLE", 0.0)
    fake_nvml(loads=(97,))
    assert nvml.busy("GPU-1") == 0.97


def test_others_at_work_are_warned_about(fake_nvml, monkeypatch):
    monkeypatch.setattr(nvml.os, "getpid", lambda: 1000)
    monkeypatch.setattr(nvml, "_SETTLE", 0.0)
    fake_nvml(pids=(1000, 7), loads=(97,))
    warnings, disturbed = gpu._others("GPU-1")
    assert disturbed
    assert [("another process" in warnings[0]), ("97% busy" in warnings[1])] == [True, True]
    fake_nvml(pids=(1000,), loads=(0,))
    assert gpu._others("GPU-1") == ([], False)


def test_clock_settings(fake_nvml):
    fake_nvml()
    assert nvml.clock_settings("GPU-1") == nvml.ClockSettings(1.98e9, None, 700.0)


def test_without_nvml_nothing_is_claimed(monkeypatch):
    monkeypatch.setattr(nvml, "_handle", lambda uuid: None)
    assert nvml.clock_settings("GPU-1") is None
    assert nvml.other_processes("GPU-1") == 0
    assert nvml.busy("GPU-1") is None


# --- the cache -------------------------------------------------------------------------------

MACHINE = Environment(
    "NVIDIA H200",
    "cuda",
    chip="GH100",
    uuid="GPU-0123",
    sm_count=132,
    memory_byte=143156 * 2**20,
    driver="580.159",
    torch="2.11.0+cu130",
)


@pytest.fixture
def folder(monkeypatch, tmp_path, fake_nvml) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake_nvml()
    return tmp_path / "roofprobe/ceilings"


def keep(ceilings: Ceilings) -> Path | None:
    return cache.save(ceilings, cache.conditions_of(MACHINE))


def test_what_is_kept_comes_back(folder):
    assert load_cached(MACHINE) == ()
    path = keep(H200)
    assert path.parent == folder and list(folder.iterdir()) == [path]
    assert load_cached(MACHINE) == H200.roofs
    assert cache.load(cache.conditions_of(MACHINE)) == H200


@pytest.mark.parametrize("change", [{"uuid": "GPU-9"}, {"driver": "581"}, {"torch": "2.12"}])
def test_other_conditions_have_other_ceilings(folder, change):
    keep(H200)
    assert load_cached(replace(MACHINE, **change)) == ()


def test_other_clocks_have_other_ceilings(folder, monkeypatch):
    keep(H200)
    monkeypatch.setattr(
        nvml, "clock_settings", lambda uuid: nvml.ClockSettings(1.98e9, None, 500.0)
    )
    assert load_cached(MACHINE) == ()


PROCESSOR = Environment("Xeon", "cpu", torch="2.11.0", precision={"num_threads": 8})
# A GEMM at 100 GFLOP/s and a copy at 10 GB/s.
OF_PROCESSOR = Ceilings(
    (
        MeasuredRoof("CPU fp32 GEMM", "flop", 1e11, 0.01, "mm", "analytic_fp32", None),
        MeasuredRoof("CPU memory copy", "byte", 1e10, 0.01, "copy_", None, "dram"),
    )
)


def test_what_a_cpu_reaches_is_kept_too(folder):
    assert load_cached(PROCESSOR) == ()
    path = cache.save(OF_PROCESSOR, cache.conditions_of(PROCESSOR))
    assert path.parent == folder and path.name.startswith("Xeon-")
    assert load_cached(PROCESSOR) == OF_PROCESSOR.roofs


@pytest.mark.parametrize(
    "change", [{"device_name": "EPYC"}, {"torch": "2.12"}, {"precision": {"num_threads": 4}}]
)
def test_another_cpu_has_other_ceilings(folder, change):
    cache.save(OF_PROCESSOR, cache.conditions_of(PROCESSOR))
    assert load_cached(replace(PROCESSOR, **change)) == ()


def test_a_cpu_whose_threads_are_not_known_has_no_cache(folder):
    assert cache.conditions_of(replace(PROCESSOR, precision={})) is None
    assert load_cached(replace(PROCESSOR, precision={})) == ()


def test_a_step_on_a_cpu_is_judged_by_what_was_kept(folder, monkeypatch):
    def measured() -> roofprobe.Measurement:
        a, b = torch.rand(2, 3), torch.rand(3, 4)
        return roofprobe.measure_step(lambda: a @ b, device="cpu", warmup=0, timed=1)

    assert measured().roofs == ()
    cache.save(OF_PROCESSOR, cache.conditions_of(environment.collect(CPU)))
    record = measured()
    assert record.roofs == OF_PROCESSOR.roofs
    judged = roofprobe.verdict(record)
    assert judged.basis == "measured"
    # 2*2*3*4 = 48 FLOP at 1e11 FLOP/s; (6 + 12 + 8) floats of 4 byte at 1e10 B/s
    least = {use.name: use.time_at_roof for use in judged.uses}
    assert least == pytest.approx({"compute": 48 / 1e11, "DRAM": 104 / 1e10})

    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    assert measured().roofs == ()


def corrupt(body: dict, where: str, value: object) -> dict:
    body["ceilings"]["roofs"][0][where] = value
    return body


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: "", "not valid JSON"),
        (lambda text: "[]", "no ceilings file"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "of version 1"),
        (lambda text: text.replace("580.159", "1.0"), "other conditions"),
        (lambda text: json.dumps(corrupt(json.loads(text), "value", "fast")), "roofs/0/value"),
        (lambda text: json.dumps(corrupt(json.loads(text), "value", -1.0)), "is no rate"),
        (lambda text: json.dumps(corrupt(json.loads(text), "value", float("nan"))), "NaN"),
        (lambda text: json.dumps(corrupt(json.loads(text), "colour", "red")), "colour"),
    ],
)
def test_a_broken_file_is_refused_and_never_half_read(folder, broken, reason):
    path = keep(H200)
    path.write_text(broken(path.read_text()))
    with pytest.raises(RecordError, match=reason):
        cache.load(cache.conditions_of(MACHINE))
    assert load_cached(MACHINE) == ()
    assert keep(H200) == path  # and is replaced
    assert load_cached(MACHINE) == H200.roofs


def test_half_a_set_does_not_replace_a_whole_one(folder):
    half = replace(H200, roofs=H200.roofs[:2], complete=False)
    keep(half)
    assert load_cached(MACHINE) == H200.roofs[:2]
    keep(H200)
    assert keep(half) is None
    assert load_cached(MACHINE) == H200.roofs


def test_what_was_measured_beside_others_work_is_not_kept(folder):
    assert keep(replace(H200, disturbed=True)) is None
    assert keep(Ceilings((), {"FP16 GEMM": "interrupted"}, complete=False)) is None
    assert not folder.exists()


def test_a_relative_cache_folder_is_ignored(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/someone"))
    path = cache.path_of(cache.conditions_of(MACHINE))
    assert path.parent == Path("/home/someone/.cache/roofprobe/ceilings")


# --- the verb --------------------------------------------------------------------------------


def rows(text: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.split("│")] for line in text.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if len(cells) > 1}


def test_the_table_has_the_datasheet_beside_each_roof():
    text = verb.text(H200, MACHINE)
    table = rows(text)
    # H200 SXM, dense: TF32 494.7 TFLOP/s, fp32 66.9 TFLOP/s; 4.8 TB/s.
    assert table["TF32 GEMM"] == [
        "398 TFLOP/s",
        "0.4%",
        "1.98 GHz",
        "n/a",
        "494.7 TFLOP/s",
        "80.5%",
    ]
    assert table["FP32 FMA"] == ["65 TFLOP/s", "0.4%", "1.98 GHz", "n/a", "66.9 TFLOP/s", "97.2%"]
    assert table["DRAM read"] == ["4.21 TB/s", "0.4%", "1.98 GHz", "n/a", "4.8 TB/s", "87.7%"]
    assert table["L2 read"] == ["7 TB/s", "0.4%", "1.98 GHz", "n/a", "n/a", "n/a"]
    assert "TF32 GEMM: how TF32 GEMM" in text
    assert "n/a: FP8 GEMM: a reason" in text
    assert "DRAM roof to judge work by: DRAM copy" in text
    assert "Datasheet: H200 SXM, dense peaks, seen 2026-11: https://www.nvidia.com/" in text
    assert "warning" not in text
    # What lasts under load stands beside, where it was measured.
    lasting = replace(H200, roofs=(replace(H200.roofs[0], sustained=350e12),))
    assert rows(verb.text(lasting, MACHINE))[H200.roofs[0].name][3] == "350 TFLOP/s"


def test_l1_has_its_derived_figure_beside_it():
    text = verb.text(
        replace(H200, roofs=(*H200.roofs, roof("L1 read", 31e12, level="l1"))), MACHINE
    )
    assert rows(text)["L1 read"] == [
        "31 TB/s",
        "0.4%",
        "1.98 GHz",
        "n/a",
        "33.45 TB/s",
        "92.7%",
    ]
    assert (
        "Datasheet of L1: derived, no datasheet prints it: 128 bytes a clock and SM x 132" in text
    )
    assert "n/a: L1 read" not in text


def test_ceilings_of_before_l1_are_used_and_say_what_they_lack(folder):
    # Of a real H200, kept when there was no such ceiling.
    recorded = json.loads((ROOT / "harness/results/h200/ceilings.json").read_text())
    conditions = recorded["conditions"]
    path = cache.path_of(conditions)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(recorded))
    kept = cache.load(conditions)
    assert {one.level for one in kept.roofs} >= {"dram", "l2"}
    kept = replace(kept, roofs=tuple(one for one in kept.roofs if one.level != "l1"))
    text = verb.text(kept, MACHINE)
    assert "n/a: L1 read: these ceilings were kept by a roofprobe that did not measure it" in text
    assert "Datasheet of L1" not in text


def test_a_product_that_is_not_told_has_no_datasheet():
    text = verb.text(H200, replace(MACHINE, sm_count=60))  # as a MIG slice
    assert rows(text)["TF32 GEMM"][-2:] == ["n/a", "n/a"]
    assert "Datasheet:" not in text


def test_more_than_the_datasheet_is_a_fault_that_is_said_and_not_clipped():
    fast = replace(H200, roofs=(roof("TF32 GEMM", 989e12, "tensor_tf32"),))
    text = verb.text(fast, MACHINE)
    assert rows(text)["TF32 GEMM"][0] == "989 TFLOP/s"
    assert "warning: TF32 GEMM is 200% of the datasheet's dense peak" in text


def test_a_ceiling_that_does_not_repeat_is_warned_about():
    shaky = replace(H200, roofs=(replace(H200.roofs[0], spread=1.63), *H200.roofs[1:]))
    said = [line for line in verb.text(shaky, MACHINE).splitlines() if "warning" in line]
    assert len(said) == 1
    assert said[0].startswith(f"warning: the runs behind {H200.roofs[0].name} differ by 163%")


def test_fp16_accumulate_has_its_own_datasheet_figure():
    card = Environment(
        "NVIDIA GeForce RTX 4090", "cuda", chip="AD102", sm_count=128, memory_byte=24 * GIB
    )
    both = (
        roof("FP16 GEMM", 160e12, "tensor_fp16"),
        roof("FP16 GEMM, FP16 accumulate", 300e12, "tensor_fp16_acc16"),
    )
    table = rows(verb.text(Ceilings(both), card))
    assert table["FP16 GEMM"][4] == "165.2 TFLOP/s"
    assert table["FP16 GEMM, FP16 accumulate"][4] == "330.3 TFLOP/s"


@pytest.fixture
def command(folder, monkeypatch):
    """The verb on a machine with one H200, whose measurements are these."""
    asked: list[str] = []

    def install(found: Ceilings):
        def measure(where):
            asked.append(where)
            return found

        monkeypatch.setattr(environment, "collect", lambda device: MACHINE)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(verb, "_measure", measure)
        return asked

    return install


def test_the_verb_measures_once_and_then_remembers(command, capsys):
    asked = command(H200)
    assert main(["ceilings"]) == 0
    first = capsys.readouterr().out
    assert main(["ceilings"]) == 0
    assert capsys.readouterr().out == first
    assert asked == ["cuda:0"]
    assert main(["ceilings", "--fresh", "--gpu", "0"]) == 0
    assert len(asked) == 2


def test_json_is_what_is_kept(command, capsys, folder):
    command(H200)
    assert main(["ceilings", "--json"]) == 0
    text = capsys.readouterr().out
    (path,) = folder.iterdir()
    assert text == path.read_text()
    assert json.loads(text)["ceilings"] == json.loads(json.dumps(asdict(H200)))


def test_a_broken_file_is_measured_anew_with_a_warning(command, capsys, folder):
    asked = command(H200)
    main(["ceilings"])
    (path,) = folder.iterdir()
    path.write_text("{")
    capsys.readouterr()
    assert main(["ceilings"]) == 0
    assert "warning: measuring anew" in capsys.readouterr().err
    assert len(asked) == 2
    assert load_cached(MACHINE) == H200.roofs


def test_an_interrupted_run_prints_and_is_measured_again(command, capsys):
    asked = command(replace(H200, roofs=H200.roofs[:1], complete=False))
    assert main(["ceilings"]) == 130
    out = capsys.readouterr().out
    assert "INCOMPLETE" in out and "FP16 GEMM" in out
    main(["ceilings"])
    assert len(asked) == 2


def test_nothing_measured_is_an_error(command, capsys):
    command(Ceilings((), {"FP16 GEMM": "no driver"}))
    assert main(["ceilings"]) == 1
    assert "no ceiling of NVIDIA H200 was measured: FP16 GEMM: no driver" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_costs_a_warning(command, capsys, monkeypatch):
    command(H200)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert main(["ceilings"]) == 0
    captured = capsys.readouterr()
    assert "warning: the result is not kept: could not write" in captured.err
    assert "FP16 GEMM" in captured.out


@pytest.mark.parametrize(("count", "there"), [(0, "sees none"), (2, "sees 2, numbered from 0")])
def test_a_gpu_that_is_not_there(monkeypatch, capsys, count, there):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert main(["ceilings", "--gpu", "2"]) == 2
    assert there in capsys.readouterr().err


def test_a_machine_without_a_gpu_measures_its_cpu_and_says_so(monkeypatch, capsys, folder):
    set_clock(monkeypatch, 1.0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["ceilings"]) == 0
    captured = capsys.readouterr()
    assert "measured on this CPU, no GPU was found" in captured.out
    assert "slowest less fastest repeat" in " ".join(captured.out.split())
    assert "GPU, the roof" not in " ".join(captured.out.split())
    assert set(rows(captured.out)) == {"CPU fp32 GEMM", "CPU memory copy"}
    assert load_cached(environment.collect(CPU)) != ()
    monkeypatch.setattr(cpu, "measure_cpu_roofs", None)  # and is not asked again
    assert main(["ceilings"]) == 0
    assert capsys.readouterr().out == captured.out
