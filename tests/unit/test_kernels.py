"""FLOP and bytes of single kernels, on ncu's real log of an AlexNet step on an H200.

The record of that run has no kernel names, so they are taken from the log, as ncu spells them; one
is given as CUPTI and PyTorch spell it. A script stands in for ncu where the verb is tested.
"""

# ruff: noqa: F401, F811 (fixtures of another module)

import csv
import inspect
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from test_verify import FFMA, TF32, logs, ncu, recorded

import roofprobe
from roofprobe import kernel_counters, metrics, ncu_run
from roofprobe.cli import kernels as verb
from roofprobe.cli import main
from roofprobe.errors import UsageError
from roofprobe.kernel_counters import Log, Replayed
from roofprobe.kernel_names import brief, demangled, function_name
from roofprobe.kernel_parts import kernel_parts
from roofprobe.record import (
    Kernel,
    KernelCounts,
    KernelUse,
    Measurement,
    Regions,
    Segment,
    Timing,
)
from roofprobe.report import text

READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
COUNTED = tuple(
    row.name
    for row in metrics.rows(metrics.metric_set("full", "GH100"))
    if row.kind in ("flop", "op", "byte")
)
LINEAR = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(T1::Params)"
TO_NHWC = (
    "void cudnn::nchwToNhwcKernel<float, float, float, 0, 1, 0>"
    "(cudnn::nchw2nhwc_params_t<T3>, const T1 *, T2 *)"
)
WGRAD = (
    "sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32_"
    "warpgroupsize1x1x1_g1_execute_segment_k_on_kernel__5x_cudnn"
)
# One kernel in three spellings: the symbol, PyTorch's, ncu's.
FILL_SYMBOL = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE"
    "St5arrayIPcLm1EEEEviT0_T1_"
)
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
FILL_NCU = (
    "void at::vectorized_elementwise_kernel<4, at::FillFunctor<float>, std::array<char *, 1>>"
    "(int, T2, T3)"
)


@pytest.fixture
def log(logs, tmp_path) -> Path:
    """The real log, with the symbol of one kernel, as ncu is asked for it."""
    path = tmp_path / "log.csv"
    path.write_text((logs / "kernel-replay.csv").read_text().replace(FILL_NCU, FILL_SYMBOL))
    return path


def rows_of(path: Path) -> dict[str, list[dict[str, str]]]:
    lines = path.read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith('"ID"'))
    found = defaultdict(list)
    for row in list(csv.DictReader(lines[first:]))[1:]:  # the first row holds units
        found[row["Kernel Name"]].append(row)
    return found


@pytest.fixture
def traced(recorded, logs) -> Measurement:
    """The recorded run with the log's kernels as its traced ones."""
    kernels = []
    for name, rows in rows_of(logs / "kernel-replay.csv").items():
        time = 1e-9 * sum(float(row["gpu__time_duration.sum"]) for row in rows)
        use = KernelUse(0, float(len(rows)), time)
        kernels.append(Kernel(FILL if name == FILL_NCU else name, (use,)))
    kernels.sort(key=lambda kernel: -kernel.time)
    step = Segment("", None, None, 1.0, (), sum(k.time for k in kernels), 140.0)
    regions = Regions("kernel", (step,), 2, "cupti_activity", tuple(kernels))
    return replace(recorded, regions=regions, crosscheck=None)


def kernel(record: Measurement, name: str) -> Kernel:
    return next(each for each in record.regions.kernels if each.name == name)


def renamed(record: Measurement, old: str, new: str, launches: float | None = None) -> Measurement:
    kernels = []
    for each in record.regions.kernels:
        if each.name == old:
            uses = tuple(replace(u, launches=launches or u.launches) for u in each.uses)
            each = replace(each, name=new, uses=uses)
        kernels.append(each)
    return replace(record, regions=replace(record.regions, kernels=tuple(kernels)))


COUNTS = KernelCounts("ncu 2025.3.1.0", ncu_run.FLUSHED, "", ("python",), 140.0, 45.0)


def merge(record: Measurement, log: Path | Log, top: int = 100) -> Measurement:
    planned = kernel_counters.plan(record, top)
    said = log if isinstance(log, Log) else kernel_counters.read(log, planned.metrics)
    return kernel_counters.merged(record, planned, said, COUNTS)


# -- Names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (FILL, "vectorized_elementwise_kernel"),
        (FILL_NCU, "vectorized_elementwise_kernel"),
        (LINEAR, "Kernel2"),
        (WGRAD, WGRAD),
        ("void <unnamed>::softmax_warp_forward<float, 10, 1>(T2 *, int)", "softmax_warp_forward"),
        ("void (anonymous namespace)::f<at::(anonymous namespace)::g<2> >(int)", "f"),
        ("triton_poi_fused_relu_0", "triton_poi_fused_relu_0"),
        ("void f<decltype(a->b), 3>(int)", "f"),
        (FILL_SYMBOL, None),
        ("copy within the device", None),
        ("fill (memset)", None),
        ("", None),
    ],
)
def test_function_names(name, function):
    assert function_name(name) == function


def test_every_kernel_of_the_log_has_a_function_name(logs):
    found = {function_name(name) for name in rows_of(logs / "kernel-replay.csv")}
    assert None not in found
    assert {"reduce_kernel", "max_pool_forward_nchw", "splitKreduce_kernel", "Kernel"} <= found


def test_brief_names_keep_what_tells_kernels_apart():
    assert brief(LINEAR) == "Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>"
    assert brief(TO_NHWC) == "nchwToNhwcKernel<float, float, float, 0, 1, 0>"
    assert brief("void f<g(int), h<2> >(int)") == "f<g(int), h<2> >"
    assert brief("fill (memset)") == "fill (memset)"
    assert brief(WGRAD) == WGRAD


def test_symbols_are_spelled_as_in_a_record():
    assert demangled(FILL_SYMBOL) == FILL
    assert demangled(WGRAD) == WGRAD


# -- The plan and its price ---------------------------------------------------------------


def test_the_longest_kernels_and_those_of_the_same_function(traced):
    planned = kernel_counters.plan(traced, 4)
    assert planned.asked[1:] == (planned.asked[1], WGRAD, LINEAR)
    assert planned.functions == ("Kernel", "multi_tensor_apply_kernel", WGRAD, "Kernel2")
    # Kernel: 1 + 1 + 1 launches of three kernels; multi_tensor_apply: 6 + 3 + 3; wgrad: 3;
    # Kernel2: 2 + 1 + 1 (counted in the log).
    assert planned.launches == 3 + 12 + 3 + 4
    # before the step that is replayed: 10 timed ones, and the usual 5 to warm up
    step = traced.timing.median
    assert len(traced.timing.step) == 10
    assert planned.price == pytest.approx((0.2 * 22 + 10 * step, 0.36 * 22 + 15 * step))
    assert planned.metrics == COUNTED
    assert len(COUNTED) == 19
    assert planned.pattern == (f"regex:^(.*::)?(Kernel|multi_tensor_apply_kernel|{WGRAD}|Kernel2)$")


def test_slow_steps_before_the_measured_one_are_in_the_price(traced):
    slow = replace(traced, timing=Timing((20.0, 30.0, 31.0), "cuda_events"))
    planned = kernel_counters.plan(slow, 4)
    assert planned.before == (3 * 30.0, 8 * 30.0)
    assert planned.price == pytest.approx((0.2 * 22 + 90, 0.36 * 22 + 240))
    untimed = kernel_counters.plan(replace(traced, timing=None), 4)
    assert untimed.price == pytest.approx((0.2 * 22, 0.36 * 22))


def test_the_warm_up_in_the_price_is_that_of_measure():
    usual = inspect.signature(roofprobe.measure).parameters["warmup"].default
    assert usual == kernel_counters._WARMUP


def test_the_price_of_the_whole_step_is_what_it_took(traced, recorded):
    least, most = kernel_counters.plan(traced, 100).price
    assert least < recorded.crosscheck.duration["ncu, kernel replay"] < most


def test_what_cannot_be_replayed_makes_room_for_the_next(traced):
    record = renamed(traced, LINEAR, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevArgs*)")
    record = renamed(record, WGRAD, "fill (memset)")
    planned = kernel_counters.plan(record, 3)
    assert len(planned.asked) == 3
    assert list(planned.left_out) == [
        "fill (memset)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevArgs*)",
    ]
    assert "wait for other processes" in list(planned.left_out.values())[1]


def test_a_record_without_kernels_or_chip(recorded, traced):
    with pytest.raises(UsageError, match="--by kernel"):
        kernel_counters.plan(recorded)
    unknown = replace(traced.environment, chip=None)
    with pytest.raises(UsageError, match="which chip"):
        kernel_counters.plan(replace(traced, environment=unknown))
    cpu = replace(recorded.environment, device_kind="cpu", chip=None)
    with pytest.raises(UsageError, match="was measured on a CPU"):
        kernel_counters.plan(replace(recorded, environment=cpu))
    with pytest.raises(UsageError, match="--top 0"):
        kernel_counters.plan(traced, 0)


# -- What ncu counted ---------------------------------------------------------------------


def test_every_kernel_of_the_step_gets_its_sums(traced, log):
    found = merge(traced, log)
    assert found.regions.counted.left_out == {}
    assert found.regions.counted.unavailable == {}
    sheet = rows_of(log)
    for each in found.regions.kernels:
        rows = sheet[FILL_SYMBOL if each.name == FILL else each.name]
        assert set(each.counters) == set(COUNTED)
        for metric, value in each.counters.items():
            assert value == sum(float(row[metric]) for row in rows)
    # Two linear layers forward, 9216 to 4096 and 4096 to 4096, batch 64: an FMA for each product,
    # and the weights read once (the bytes beyond are the inputs).
    linear = kernel(found, LINEAR).counters
    assert linear[FFMA] == pytest.approx(64 * 4096 * (9216 + 4096), rel=1e-3)
    assert linear[READ] == pytest.approx(4 * 4096 * (9216 + 4096), rel=0.02)
    assert linear[TF32] == 0
    # All kernels together are the step that verify compared.
    whole = {row.metric: row.other for row in traced_check()}
    assert sum(each.counters[TF32] for each in found.regions.kernels) == whole[TF32]


def traced_check():
    path = Path(__file__).parents[1] / "data/ncu-alexnet-b64/run.json"
    return Measurement.load(path).crosscheck.counters


def test_a_record_with_counts_survives_the_file(traced, log, tmp_path):
    found = merge(traced, log, 5)
    found.save(tmp_path / "run.json")
    assert Measurement.load(tmp_path / "run.json") == found


def test_only_what_was_asked_for_has_counters(traced, log):
    planned = kernel_counters.plan(traced, 3)
    counted = [each.name for each in merge(traced, log, 3).regions.kernels if each.counters]
    assert counted == [each.name for each in planned.kernels]


def test_processes_of_one_run_are_averaged(traced, log, tmp_path):
    lines = log.read_text().splitlines(keepends=True)
    second = [line.replace('"655"', '"656"', 1) for line in lines if '"655"' in line[:16]]
    assert len(second) == 140
    both = tmp_path / "both.csv"
    both.write_text("".join([*lines, *second]))
    assert merge(traced, both).regions.kernels == merge(traced, log).regions.kernels
    assert kernel_counters.read(both, COUNTED).launches == 140


def test_another_number_of_launches_is_another_step(traced, log):
    found = merge(renamed(traced, LINEAR, LINEAR, launches=1.5), log)
    assert kernel(found, LINEAR).counters == {}
    assert found.regions.counted.left_out == {
        LINEAR: "ncu replayed 2 launches of it, and a traced step had 1.5"
    }


def test_a_launch_without_a_value_leaves_no_partial_sum(traced, log, tmp_path):
    lines = log.read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith('"ID"'))
    heads = next(csv.reader([lines[first]]))
    place = next(i for i in range(first + 2, len(lines)) if LINEAR in lines[i])
    cells = next(csv.reader([lines[place]]))
    cells[heads.index(READ)] = "n/a"
    lines[place] = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
    holed = tmp_path / "holed.csv"
    holed.write_text("\n".join(lines) + "\n")
    found = merge(traced, holed)
    linear = kernel(found, LINEAR).counters
    assert linear[READ] is None
    assert linear[WRITE] == 4840448
    assert kernel(found, WGRAD).counters[READ] == 75386112
    assert READ in found.regions.counted.unavailable
    part = next(p for p in kernel_parts(found) if p.kernel.name == LINEAR)
    assert part.counted.byte["dram"].value is None
    assert part.counted.flop_total.value is not None


def test_a_metric_that_ncu_did_not_print_has_no_value(log):
    said = kernel_counters.read(log, ["lts__t_sectors.sum", READ])
    assert said.kernels[WGRAD].counters == {"lts__t_sectors.sum": None, READ: 75386112.0}
    assert said.unavailable == {"lts__t_sectors.sum": "ncu printed no such column"}


# -- Names that do not meet ---------------------------------------------------------------


def test_ncus_own_spelling_is_matched_where_one_kernel_has_the_function_name(traced, log):
    ours = "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int, float*)"
    theirs = next(n for n in rows_of(log) if "max_pool_forward_nchw" in n)
    found = merge(renamed(traced, theirs, ours), log)
    assert kernel(found, ours).counters[READ] == 96502784
    assert found.regions.counted.left_out == {}


def test_and_refused_where_several_have(traced, log):
    ours = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, 0>(float*)"
    found = merge(renamed(traced, TO_NHWC, ours), log)
    assert kernel(found, ours).counters == {}
    reasons = found.regions.counted.left_out
    assert reasons[ours] == "ncu spells names differently, and 2 of its kernels may be this one"
    assert reasons[TO_NHWC] == "ncu replayed it, and the traced steps did not run it"


def said_of(**changes) -> Log:
    given = {
        "kernels": {},
        "repeated": frozenset(),
        "respelled": frozenset(),
        "failed": frozenset(),
        "unavailable": {},
        "launches": 1.0,
    }
    return Log(**(given | changes))


def test_a_symbol_of_other_template_arguments_is_another_kernel(traced):
    other = FILL.replace("float", "double")
    log = said_of(kernels={other: Replayed(6.0, {READ: 1.0})})
    reasons = merge(traced, log).regions.counted.left_out
    assert reasons[FILL] == "ncu saw no launch of it"
    assert reasons[other] == "ncu replayed it, and the traced steps did not run it"


def test_also_where_the_function_name_is_there_once(traced, log):
    theirs = next(n for n in rows_of(log) if "max_pool_forward_nchw" in n)
    ours, other = (f"void at::max_pool_forward_nchw<{t}, int>({t}*)" for t in ("float", "double"))
    said = said_of(kernels={other: Replayed(3.0, {READ: 1.0})})
    found = merge(renamed(traced, theirs, ours), said)
    assert kernel(found, ours).launches == 3
    assert kernel(found, ours).counters == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"failed": frozenset({FILL})}, "ncu could not profile it"),
        (
            {
                "kernels": {FILL: Replayed(6.0, {READ: 1.0})},
                "failed": frozenset({"vectorized_elementwise_kernel"}),
            },
            "ncu could not profile it",
        ),
        ({"repeated": frozenset({FILL})}, "several kernels have this name"),
    ],
)
def test_why_a_kernel_has_no_counters(traced, changes, reason):
    assert merge(traced, said_of(**changes)).regions.counted.left_out[FILL] == reason


# -- Under the roofs ----------------------------------------------------------------------


def part_of(record: Measurement, name: str):
    return next(part for part in kernel_parts(record) if part.kernel.name == name)


def test_a_kernel_is_judged_by_its_own_time(traced, log):
    found = part_of(merge(traced, log), LINEAR)
    # 305.76 us of two launches; 2 x 3,492,806,656 FLOP of FMA and the few beside them under the
    # datasheet's 67 TFLOP/s are 34% of that, 226,988,032 B under 4.8 TB/s 15%.
    assert found.part.time == pytest.approx(305.76e-6)
    assert found.counted.byte["dram"].value == 222147584 + 4840448
    flop = found.counted.flop_total.value
    assert flop == pytest.approx(2 * 3492806656, rel=1e-3)
    assert found.counted.flop["sass_fp32"].source == "ncu"
    assert found.counted.intensity["dram"].value == pytest.approx(flop / 226988032)
    uses = {use.name: use.fraction for use in found.part.verdict.uses}
    assert uses["compute"] == pytest.approx(flop / 67e12 / 305.76e-6, rel=0.01)
    assert uses["DRAM"] == pytest.approx(226988032 / 4.8e12 / 305.76e-6, rel=1e-3)
    assert found.part.lost == pytest.approx(305.76e-6 - flop / 67e12, rel=0.01)
    assert not found.warm


def test_more_bytes_than_dram_delivers_came_from_caches(traced, log):
    kernels = tuple(
        replace(each, uses=tuple(replace(use, time=use.time / 10) for use in each.uses))
        if each.name == LINEAR
        else each
        for each in traced.regions.kernels
    )
    quick = replace(traced, regions=replace(traced.regions, kernels=kernels))
    found = part_of(merge(quick, log), LINEAR)  # 227 MB in 31 us are 7.4 TB/s
    assert found.warm
    assert found.counted.byte["dram"].value == 226988032
    assert "DRAM" not in {use.name for use in found.part.verdict.uses}


def test_the_report_has_the_table_and_its_terms(traced, log):
    said = " ".join(text(merge(traced, log, 3)).split())
    assert "Kernels, counted by ncu 2025.3.1.0, kernel replay, caches flushed" in said
    assert "each replayed alone (ncu)" in said
    assert "Kernels, counted" not in text(traced)


# -- The verb -----------------------------------------------------------------------------


def run_verb(record: Measurement, path: Path, program: str, *options: str) -> int:
    record.save(path)
    return main(["kernels", str(path), "--ncu", program, *options, "--", "python", "t.py"])


def test_the_price_comes_first_and_the_counts_into_the_file(
    traced,
    log,
    ncu,
    tmp_path,
    capfd,
):
    seen = tmp_path / "seen"
    body = f"""
    pathlib.Path("{seen}").write_text(" ".join(sys.argv[1:]))
    shutil.copy("{log}", log)
    """
    path = tmp_path / "run.json"
    assert run_verb(traced, path, ncu(body), "--top", "4") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("=> ncu replays 22 launches of 4 kernels and 6 of the same function")
    assert "about 4 to 8 s" in lines[0]
    assert lines[-1] == f"added to {path}"
    row = next(line for line in lines if line.startswith("Kernel2") and "tn_align1" in line)
    assert [cell.strip() for cell in row.split("│")] == [
        *("Kernel2<c…28x64_8x5_tn_align1>", "2", "306 µs", "6.99 G", "227 MB", "30.8"),
        *("? (compute 34%)", "<= 201 µs"),
    ]
    asked = seen.read_text()
    assert "--replay-mode kernel --profile-from-start off --kernel-name-base function" in asked
    assert "--print-kernel-base mangled --metrics " + ",".join(COUNTED) + " python t.py" in asked
    assert "--clock-control none" in asked
    assert "--cache-control" not in asked  # ncu's default, which flushes
    added = Measurement.load(path)
    assert added.regions.counted.tool == "ncu 2025.3.1.0"
    assert added.regions.counted.mode == "kernel replay, caches flushed"
    assert added.regions.counted.command == ("python", "t.py")
    assert added.regions.counted.source == "ncu"
    assert kernel(added, WGRAD).counters[TF32] == 51036291072


def test_a_long_run_needs_a_yes(traced, log, ncu, tmp_path, capsys):
    seen = tmp_path / "seen"
    body = f"pathlib.Path('{seen}').touch(); shutil.copy('{log}', log)"
    long = renamed(traced, WGRAD, WGRAD, launches=2000.0)
    assert run_verb(long, tmp_path / "run.json", ncu(body)) == 2
    assert "may take 12 minutes: add --yes" in capsys.readouterr().err
    assert not seen.exists()
    assert run_verb(long, tmp_path / "run.json", ncu(body), "--yes") == 0
    assert seen.exists()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("log.write_text('==ERROR== ERR_NVGPUCTRPERM'); sys.exit(1)", "ncu said: ERR_NVGPUCTRPERM"),
        ("print('boom'); sys.exit(5)", "ended with status 5; the program's last line: boom"),
        (
            "log.write_text('==PROF== Connected\\n==WARNING== No kernels were profiled.\\n')",
            "no kernels were profiled",
        ),
    ],
    ids=["refused", "program", "no kernels"],
)
def test_a_fault_is_one_sentence_and_leaves_the_file(
    traced,
    ncu,
    tmp_path,
    capsys,
    body,
    sentence,
):
    path = tmp_path / "run.json"
    assert run_verb(traced, path, ncu(body)) == 1
    assert Measurement.load(path) == traced
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_another_program_is_refused(traced, log, ncu, tmp_path, capsys):
    kernels = tuple(
        replace(each, name=f"other_{index}") for index, each in enumerate(traced.regions.kernels)
    )
    other = replace(traced, regions=replace(traced.regions, kernels=kernels))
    path = tmp_path / "run.json"
    assert run_verb(other, path, ncu(f"shutil.copy('{log}', log)")) == 1
    assert "no kernel that ncu replayed is one of" in capsys.readouterr().err
    assert Measurement.load(path) == other


def test_a_command_is_needed(traced, tmp_path, capsys):
    traced.save(tmp_path / "run.json")
    assert main(["kernels", str(tmp_path / "run.json")]) == 2
    assert "needs the command" in capsys.readouterr().err


def test_an_ncu_that_does_not_know_the_chip(traced, ncu, tmp_path, capsys):
    assert run_verb(traced, tmp_path / "run.json", ncu("", chips="tu102")) == 2
    assert "does not know chip GH100" in capsys.readouterr().err


def test_the_table_fits_and_cuts_no_number(traced, log):
    found = merge(traced, log)
    lines = verb.text(found, found.regions.counted).splitlines()
    assert max(map(len, lines)) <= 114
    cells = [cell for line in lines for cell in line.split("│")[1:]]
    assert len(cells) == 7 * len(found.regions.kernels)
    assert not any("…" in cell for cell in cells)
