"""Metrics that ncu could not collect, streams, the SM clock, and figures that differ by launch."""

import csv
import io
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from roofprobe import device
from roofprobe.cli import main
from roofprobe.cli.import_ncu import roofline_of
from roofprobe.errors import RecordError
from roofprobe.ncu_import import Calibration, import_files, numerals, transposed
from roofprobe.ncu_import.csv_log import NESTED
from roofprobe.ncu_import.launches import NAMELESS
from roofprobe.ncu_import.messages import Messages
from roofprobe.ncu_import.vocabulary import is_seen_by, uses_tensor_cores

SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
FADD, FFMA = SASS.format("fadd"), SASS.format("ffma")
TENSOR = "sm__ops_path_tensor_src_fp16.sum"
BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
DRAM, READ, WRITE = "dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
TIME = "gpu__time_duration.sum"
CYCLES = "sm__cycles_elapsed.avg"
CLOCK = f"{CYCLES}.per_second"
PUSH_POP = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
START_STOP = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
COLUMNS = (
    *("ID", "Process ID", "Host Name", PUSH_POP, START_STOP, "Kernel Name", "Context", "Stream"),
    *("Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"),
)
USUAL = {
    **dict.fromkeys(COLUMNS, ""),
    **{"Process ID": "7", "Host Name": "here", "Kernel Name": "k", "Context": "1"},
    **{"Stream": "7", "Device": "0", "CC": "9.0"},
}


def table(*rows, said=""):
    """A log: rows of ID, metric, unit, value and other columns by name."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(COLUMNS)
    for ident, metric, unit, value, *more in rows:
        cells = {"ID": ident, "Metric Name": metric, "Metric Unit": unit, "Metric Value": value}
        row = {**USUAL, **cells, **(more[0] if more else {})}
        writer.writerow([row[name] for name in COLUMNS])
    return said + out.getvalue()


@pytest.fixture
def load(tmp_path):
    """Imports logs, given as texts."""

    def run(*texts, **options):
        paths = []
        for index, text in enumerate(texts):
            paths.append(tmp_path / f"run{index}.csv")
            paths[-1].write_text(text)
        return import_files(paths, **options)

    return run


def refusal(load, *texts, **options):
    with pytest.raises(RecordError) as caught:
        load(*texts, **options)
    return str(caught.value)


class TestMissingMetrics:
    ROWS = ((0, FFMA, "inst", 1000), (0, DRAM, "byte", 4000))

    @pytest.mark.parametrize(
        "said",
        [
            f"==WARNING== Failed to access the following 2 metrics: {FADD}, lts__t_bytes.sum\n",
            f"==ERROR== Failed to collect metric {FADD}\n",
            f"==WARNING== Metric {FADD} could not be collected\n",
            f"==WARNING== The metric {FADD} is not available on this device\n",
        ],
    )
    def test_a_part_that_ncu_could_not_collect_leaves_no_total(self, load, said):
        whole = load(table(*self.ROWS, said=said))
        assert whole.whole.flop == {"sass_fp32": None, "total": None}
        assert whole.whole.intensity is None
        assert whole.reasons["flop.total"] == f"{FADD}: ncu could not access it"
        assert whole.unavailable[FADD] == "ncu could not access it"
        assert whole.whole.byte["dram"] == 4000

    def test_tensor_operations_and_bytes(self, load):
        said = f"==WARNING== Failed to access the following metrics: {BF16}, {READ}\n"
        rows = ((0, FFMA, "inst", 1000), (0, WRITE, "byte", 10))
        found = load(table(*rows, said=said))
        assert found.whole.flop == {"tensor_bf16": None, "sass_fp32": 2000, "total": None}
        assert found.whole.byte["dram"] is None
        assert READ in found.reasons["byte.dram"]

    @pytest.mark.parametrize(
        "name",
        [
            "dram__bytes_op_read.sum",  # stands in for dram__bytes_read
            "sm__throughput.avg.pct_of_peak_sustained_elapsed",  # in no figure
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        ],
    )
    def test_what_is_in_no_figure_or_has_another_name_takes_none_away(self, load, name):
        said = f"==WARNING== Failed to access the following 1 metrics: {name}\n"
        rows = ((0, FFMA, "inst", 1000), (0, READ, "byte", 30), (0, WRITE, "byte", 10))
        found = load(table(*rows, said=said))
        assert found.whole.flop["total"] == 2000
        assert found.whole.byte["dram"] == 40
        assert found.whole.intensity == 50

    def test_another_run_has_the_metric(self, load):
        said = f"==WARNING== Failed to access the following 1 metrics: {FADD}\n"
        found = load(table((0, FFMA, "inst", 1000), said=said), table((0, FADD, "inst", 10)))
        assert found.whole.flop["total"] == 2010

    @pytest.mark.parametrize(
        "said",
        [
            f"==WARNING== Metric {FADD} is deprecated",
            '==ERROR== Failed to profile "my__metrics"',
            f"==PROF== collecting metric {FADD}, which is not supported",
        ],
    )
    def test_other_messages_name_no_missing_metric(self, said):
        messages = Messages()
        assert messages.take(said)
        assert messages.missing == {}


class TestStreams:
    def log(self, *streams, metric=TIME):
        rows = [
            (ident, metric, "ns" if metric == TIME else "inst", 100, {"Stream": stream})
            for ident, stream in enumerate(streams)
        ]
        return table(*rows)

    def warned(self, found):
        return [text for text in found.warnings if "streams" in text]

    def test_durations_of_several_streams_are_no_time_of_the_step(self, load):
        (said,) = self.warned(load(self.log("7", "20", "7", "21")))
        assert "of 3 streams" in said
        assert "flop_per_s is no rate of the step" in said

    def test_one_stream_no_times_and_no_stream_are_quiet(self, load):
        assert not self.warned(load(self.log("7", "7")))
        assert not self.warned(load(self.log("n/a", "7")))
        assert not self.warned(load(self.log("7", "20", metric=FFMA)))

    def test_streams_of_two_devices_run_beside_each_other_anyway(self, load):
        rows = [(0, TIME, "ns", 100), (0, TIME, "ns", 100, {"Device": "1", "Stream": "20"})]
        assert not self.warned(load(table(*rows)))

    def test_ranks_in_files_of_their_own(self, load):
        other = table((0, TIME, "ns", 5, {"Process ID": "8"}))
        assert self.warned(load(self.log("7", "20"), other))
        assert not self.warned(load(self.log("7"), other))

    def test_the_details_page_and_the_desktop_export(self, load):
        kernel = "  {} (1, 1, 1)x(32, 1, 1), Context 1, Stream {}, Device 0, CC 9.0\n"
        ruler = f"    {'-' * 30} {'-' * 12} {'-' * 12}\n"
        body = f"{ruler}    {'Metric Name':30} {'Metric Unit':12} {'Metric Value':>12}\n{ruler}"
        row = f"    {TIME:30} {'ns':12} {100:>12}\n{ruler}\n"
        page = "[7] python3@127.0.0.1\n" + "".join(
            kernel.format(name, stream) + body + row for name, stream in (("a", 7), ("b", 13))
        )
        assert self.warned(load(page))
        export = '"Function","a","b"\n"Stream","7","{}"\n"' + TIME + ' [ns]","100","100"\n'
        assert self.warned(load(export.format(13)))
        assert not self.warned(load(export.format(7)))


class TestClock:
    # 120,000 cycles in 100 us are 1.2 GHz; 3e9 FLOP in it are 30 TFLOP/s.
    WORK = ((0, FFMA, "inst", 1_500_000_000), (0, DRAM, "Mbyte", "200.00"), (0, TIME, "us", 100))

    @pytest.mark.parametrize(
        "told", [(0, CLOCK, "cycle/nsecond", "1.20"), (0, CYCLES, "cycle", "120,000")]
    )
    def test_the_record_has_the_clock(self, load, told):
        found = load(table(*self.WORK, told))
        assert found.whole.sm_clock_hz == pytest.approx(1.2e9)
        assert found.kernels[0].sm_clock_hz == pytest.approx(1.2e9)
        assert found.to_dict()["sm_clock_hz"] == pytest.approx(1.2e9)

    def test_the_mean_is_over_time(self, load):
        # 1 GHz for 30 us and 2 GHz for 10 us: 50,000 cycles in 40 us; launch 2 does not tell.
        rows = [(0, CLOCK, "Ghz", "1.00"), (0, TIME, "us", "30")]
        rows += [(1, CLOCK, "Ghz", "2.00"), (1, TIME, "us", "10"), (2, TIME, "us", "99")]
        assert load(table(*rows)).whole.sm_clock_hz == pytest.approx(1.25e9)

    def test_without_times_launches_count_alike(self, load):
        rows = [(0, CLOCK, "Ghz", "1.00"), (1, CLOCK, "Ghz", "2.00")]
        assert load(table(*rows)).whole.sm_clock_hz == pytest.approx(1.5e9)

    def test_no_clock_has_a_reason_and_no_warning(self, load):
        found = load(table(*self.WORK))
        assert found.whole.sm_clock_hz is None
        assert "neither the SM clock nor cycles" in found.reasons["sm_clock_hz"]
        assert found.warnings == ()

    def test_a_clock_that_no_gpu_has(self, load):
        # 120,000 cycles at 1200 GHz would be 100 ns.
        rows = [(0, CLOCK, "Ghz", "1200.00"), (0, CYCLES, "cycle", "120,000")]
        found = load(table(*rows))
        assert found.whole.sm_clock_hz is None
        assert found.whole.time_s is None
        assert found.reasons["time_s"] == (
            f"{CLOCK}: 1.2e+12 Hz in launch 0 (k), which no GPU runs at"
        )
        assert any("no GPU runs at" in text for text in found.warnings)
        # The same by cycles over time: 1.2e6 cycles in 100 ns are 12,000 GHz.
        found = load(table((0, TIME, "ns", 100), (0, CYCLES, "cycle", "1,200,000")))
        assert found.whole.sm_clock_hz is None
        assert any("1.2e+13 Hz" in text and "one of them" in text for text in found.warnings)

    def test_text_and_picture_have_both_roofs(self, tmp_path, capsys):
        path = tmp_path / "log.csv"
        path.write_text(table(*self.WORK, (0, CLOCK, "Ghz", "1.20")))
        assert main(["import-ncu", "--gpu", "H200 SXM", str(path)]) == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        # 132 SMs, 128 FMA a cycle each: 132 * 256 * 1.2e9
        assert "SM clock, mean over that time 1.2 GHz" in lines
        assert "datasheet roof, FP32 CUDA cores 66.9 TFLOP/s" in lines
        assert "roof, FP32 CUDA cores at 1.2 GHz 40.55 TFLOP/s" in lines
        roofline = roofline_of(import_files([path], gpu="H200 SXM"), "log")
        roofs = {ceiling.name: ceiling for ceiling in roofline.ceilings}
        slower = roofs["FP32 CUDA cores at 1.2 GHz"]
        assert slower.value == pytest.approx(132 * 256 * 1.2e9)
        assert "files' mean SM clock, 1.2 GHz" in slower.detail
        assert roofs["FP32 CUDA cores"].value == 66.9e12

    def test_a_tensor_peak_that_is_stated_at_a_lower_clock(self, load):
        # 4096 FLOP a cycle in each of 132 SMs; the datasheet's 989.4 TFLOP/s are at 1.83 GHz.
        found = load(table(*self.WORK[1:], (0, BF16, "op", 10**9), (0, CLOCK, "Ghz", "1.20")))
        roofline = roofline_of(replace(found, gpu="H100 SXM5"), "log")
        values = {ceiling.name: ceiling.value for ceiling in roofline.ceilings}
        assert values["BF16 tensor at 1.2 GHz"] == pytest.approx(132 * 4096 * 1.2e9)

    def test_work_that_no_gpu_of_the_files_chip_can_do(self, tmp_path, capsys):
        # 3e12 FLOP in 1 us
        path = tmp_path / "log.csv"
        path.write_text(table((0, FFMA, "inst", 1_500_000_000_000), (0, TIME, "us", "1.00")))
        assert main(["import-ncu", "--json", str(path)]) == 0
        (said,) = json.loads(capsys.readouterr().out)["warnings"]
        assert said.startswith("above the roof of every GPU of compute capability 9.0")
        path.write_text(table(*self.WORK))
        assert main(["import-ncu", "--json", str(path)]) == 0
        assert json.loads(capsys.readouterr().out)["warnings"] == []

    def test_cycles_where_the_rate_is_not_there(self, load):
        rows = [
            (0, CYCLES, "cycle", 3000),
            (0, TIME, "ns", 2000),
            (0, CLOCK, "cycle/nsecond", "n/a"),
        ]
        assert load(table(*rows)).whole.sm_clock_hz == pytest.approx(1.5e9)
        # 3000 cycles in 2 us, and 1 GHz for 2 us
        rows += [
            (1, CYCLES, "cycle", "n/a"),
            (1, TIME, "ns", 2000),
            (1, CLOCK, "cycle/nsecond", "1.0"),
        ]
        assert load(table(*rows)).whole.sm_clock_hz == pytest.approx(1.25e9)

    def test_cycles_of_a_run_in_another_order(self, load):
        rates = [
            (i, metric, unit, value, {"Kernel Name": "ab"[i]})
            for i in range(2)
            for metric, unit, value in ((CLOCK, "cycle/nsecond", "n/a"), (TIME, "ns", 2000))
        ]
        cycles = [(i, CYCLES, "cycle", 3000, {"Kernel Name": "ba"[i]}) for i in range(2)]
        assert load(table(*rates), table(*cycles)).whole.sm_clock_hz == pytest.approx(1.5e9)

    def test_why_there_is_none(self, load):
        rows = [(0, TIME, "ns", 2000), (0, CLOCK, "cycle/nsecond", "n/a")]
        found = load(table(*rows))
        assert found.whole.sm_clock_hz is None
        assert found.reasons["sm_clock_hz"].startswith(f"{CLOCK}: n/a in the file")


class TestConsistency:
    def test_read_and_write_beside_the_total_in_each_launch(self, load):
        # 1.5e6 beside 1e6, and 0.5e6 beside 1e6: the sums agree.
        rows = []
        for ident, (read, write, both) in enumerate(((1400, 100, 1000), (400, 100, 1000))):
            for name, value in ((READ, read), (WRITE, write), (DRAM, both)):
                rows.append((ident, name, "Kbyte", value))
        (said,) = load(table(*rows)).warnings
        assert "1.5e+06 and 1e+06 in launch 0 (k)" in said
        assert "read + write is used" in said

    def test_two_labels_in_each_launch(self, load):
        rows = [
            (ident, "Duration", "us", value, {"Section Name": section})
            for ident, values in enumerate((("2.00", "3.00"), ("3.00", "2.00")))
            for section, value in zip("AB", values, strict=True)
        ]
        (said,) = load(table(*rows)).warnings
        assert "2e-06 and 3e-06 in launch 0 (k)" in said

    def test_noise_and_a_gap_are_no_difference(self, load):
        rows = []
        for ident, (read, write, both) in enumerate(((500, 500, 1030), (500, 500, 970))):
            for name, value in ((READ, read), (WRITE, write), (DRAM, both)):
                rows.append((ident, name, "byte", value))
        assert load(table(*rows)).warnings == ()
        gap = [*rows, (2, READ, "byte", 1), (2, WRITE, "byte", "n/a"), (2, DRAM, "byte", 900)]
        assert load(table(*gap)).warnings == ()

    def test_a_gap_does_not_hide_a_difference(self, load):
        rows = [(0, READ, "byte", 500), (0, WRITE, "byte", 500), (0, DRAM, "byte", 2000)]
        rows += [(1, READ, "byte", "n/a"), (1, WRITE, "byte", 5), (1, DRAM, "byte", 9)]
        (said,) = load(table(*rows)).warnings
        assert "1000 and 2000" in said


class TestZeroPasses:
    ROWS = ((0, TENSOR, "op", 0), (0, DRAM, "byte", 4000))
    PROFILING = '==PROF== Profiling "k" - {}: 0%....50%....100% - {}\n'

    @pytest.mark.parametrize(
        "said",
        [
            PROFILING.format(0, "0 passes"),
            '==PROF== Profiling "k" - 0: 0%....50%\nloss 0.7\n....100% - 0 passes\n',
        ],
    )
    def test_what_was_not_counted_is_no_zero(self, load, said):
        found = load(table(*self.ROWS, said=said))
        assert found.whole.flop == {"tensor_fp16": None, "total": None}
        assert "ncu made 0 passes" in found.reasons["flop.total"]
        assert found.whole.byte["dram"] == 4000
        assert TENSOR not in found.counters

    @pytest.mark.parametrize(
        "said", [PROFILING.format(0, "10 passes"), PROFILING.format(1, "0 passes")]
    )
    def test_a_count_of_zero_stays(self, load, said):
        found = load(table(*self.ROWS, (1, TENSOR, "op", 5), (1, DRAM, "byte", 1), said=said))
        assert found.whole.flop["total"] == 5

    @pytest.mark.parametrize("name", ["gemm", "void at::gemm<4>(int *)", "_Z4gemmPfi"])
    def test_names_that_are_the_kernels(self, load, name):
        said = self.PROFILING.replace('"k"', '"gemm"').format(0, "0 passes")
        rows = [(*row, {"Kernel Name": name}) for row in self.ROWS]
        assert load(table(*rows, said=said)).whole.flop["total"] is None

    @pytest.mark.parametrize(
        "name", ["gemm_relu", "my_gemm", "_Z9gemm_reluPf", "_Z14gemm_relu_biasPf"]
    )
    def test_names_that_only_contain_the_kernels(self, load, name):
        said = self.PROFILING.replace('"k"', '"gemm"').format(0, "0 passes")
        rows = [(*row, {"Kernel Name": name}) for row in self.ROWS]
        assert load(table(*rows, said=said)).whole.flop["total"] == 0

    def test_only_the_launch_that_had_none(self, load):
        said = self.PROFILING.format(0, "3 passes") + self.PROFILING.format(1, "0 passes")
        found = load(table(*self.ROWS, (1, TENSOR, "op", 0), (1, DRAM, "byte", 1), said=said))
        assert found.whole.flop["total"] is None
        assert found.unavailable[TENSOR].endswith("not counted (1 of 2 launches)")


def test_a_kernel_without_a_name_has_an_entry(load):
    rows = [(0, FFMA, "inst", 1000, {"Kernel Name": ""}), (1, FFMA, "inst", 10)]
    kernels = load(table(*rows)).to_dict(kernels=True)["kernels"]
    assert [kernel["name"] for kernel in kernels] == [NAMELESS, "k"]
    assert kernels[0]["flop"]["total"] == 2000


def test_started_ranges_are_around_pushed_ones(load):
    name = '1  "<default domain>:{}:none:none:none:none:none:none" '.format
    rows = [
        (ident, FFMA, "inst", 1, {PUSH_POP: name("train"), START_STOP: name(f"step_{step}")})
        for ident, step in enumerate((0, 1, 1))
    ]
    found = load(table(*rows))
    assert [(each.name, each.launches) for each in found.ranges] == [("step_0", 1), ("step_1", 2)]
    # Inside one range around everything the pushed ones tell the steps apart.
    rows = [
        (ident, FFMA, "inst", 1, {PUSH_POP: name(f"step_{ident}"), START_STOP: name("all")})
        for ident in range(2)
    ]
    found = load(table(*rows))
    assert [each.name for each in found.ranges] == ["step_0", "step_1"]
    assert all(NESTED not in each.name for each in found.ranges)


@pytest.mark.parametrize(("kernels", "steady"), [("tkk", "step_1"), ("abc", "none")])
def test_the_text_has_the_steady_range(tmp_path, capsys, kernels, steady):
    name = "31 <default domain>:step_{}:none:none:none:none:none:none".format
    rows = [
        (ident, FFMA, "inst", 1, {PUSH_POP: name(ident), "Kernel Name": kernel})
        for ident, kernel in enumerate(kernels)
    ]
    path = tmp_path / "log.csv"
    path.write_text(table(*rows))
    assert main(["import-ncu", str(path)]) == 0
    assert f"steady range {steady}" in " ".join(capsys.readouterr().out.split())


def counts(metric, unit, *values, **cells):
    """A log of one metric: a launch of kernel ``k`` for each value."""
    return table(*((ident, metric, unit, value, cells) for ident, value in enumerate(values)))


class TestRunsOfDifferentLength:
    WHOLE = counts(FFMA, "inst", 10, 20, 30)

    def test_a_run_that_broke_off_shortens_a_whole_one(self, load):
        found = load(self.WHOLE, counts(DRAM, "byte", 1, 2, 3)[:-3])
        assert (found.whole.launches, found.whole.flop["total"]) == (2, 60)
        assert any("first 2 launches are complete" in text for text in found.warnings)

    def test_of_two_that_broke_off_the_shorter_counts(self, load):
        found = load(self.WHOLE[:-3], counts(DRAM, "byte", *range(1, 6))[:-3])
        assert (found.whole.launches, found.whole.byte["dram"]) == (2, 3)

    def test_a_whole_run_that_is_shorter_is_another_workload(self, load):
        # Left of the second run are five launches.
        longer = counts(DRAM, "byte", *range(1, 7))
        for text in (longer, longer[:-3]):
            assert "are not runs of one workload" in refusal(load, self.WHOLE, text)
            assert "are not runs of one workload" in refusal(load, text, self.WHOLE)

    def test_whole_runs_of_two_lengths_are_two_workloads(self, load):
        four = counts(TIME, "ns", 1, 2, 3, 4)
        cut = counts(DRAM, "byte", 1, 2, 3)[:-3]
        assert "are not runs of one workload" in refusal(load, self.WHOLE, four, cut)


class TestCalibration:
    HALF, SINGLE = (
        "sm__ops_path_tensor_src_fp16_dst_fp16.sum",
        "sm__ops_path_tensor_src_fp16_dst_fp32.sum",
    )
    GEMM = Calibration("gemm", 6000.0)  # counted as 3000

    def rows(self, *launches):
        """Of kernel, process, FLOP that accumulate in fp16 and in fp32, bytes."""
        for ident, (kernel, process, *values) in enumerate(launches):
            cells = {"Kernel Name": kernel, "Process ID": process}
            for metric, unit, value in zip(
                (self.HALF, self.SINGLE, DRAM), ("op", "op", "byte"), values, strict=True
            ):
                yield ident, metric, unit, value, cells

    def test_its_launches_are_in_nothing(self, load):
        rows = self.rows(
            *(("gemm", "7", 3000, 0, 100), ("k", "7", 0, 600, "n/a")),
            *(("gemm", "8", 3000, 0, 100), ("k", "8", 0, 400, 10)),
        )
        found = load(table(*rows), calibration=self.GEMM)
        assert found.tensor_scale == 2.0
        assert (found.whole.launches, found.whole.flop["total"]) == (2, 2000)
        assert found.counters == {self.HALF: 0, self.SINGLE: 1000}
        assert [(kernel.name, kernel.launches) for kernel in found.kernels] == [("k", 2)]
        assert [(part.launches, part.flop["total"]) for part in found.parts] == [
            (1, 1200),
            (1, 800),
        ]
        assert found.whole.intensity == 80
        assert any("rests on 1 of 2 launches" in text for text in found.warnings)
        assert "(1 of 2 launches)" in found.unavailable[DRAM]
        settled = "2 launches of gemm settled the tensor counter's scale (2) and are left out"
        assert sum(text.startswith(settled) for text in found.warnings) == 1
        # No FLOP of what is left accumulate in fp16.
        assert device.fp16_accumulate(found.counters, 1000) == 0

    def test_a_process_of_its_own_is_in_nothing(self, load):
        rows = [*self.rows(("gemm", "8", 3000, 0, 100), ("k", "7", 0, 600, 10))]
        found = load(table(*rows), calibration=self.GEMM)
        assert found.processes == (7,)
        assert found.parts == ()

    def test_runs_in_different_orders(self, load):
        kernels = ("a", "gemm", "k")
        flop = [
            (i, self.SINGLE, "op", v, {"Kernel Name": kernels[i]})
            for i, v in enumerate((50, 3000, 7))
        ]
        moved = [
            (i, DRAM, "byte", v, {"Kernel Name": kernels[2 - i]})
            for i, v in enumerate((1, 20, 300))
        ]
        read = [
            (i, READ, "byte", v, {"Kernel Name": kernels[2 - i]}) for i, v in enumerate((1, 10, 30))
        ]
        found = load(table(*flop), table(*moved, *read), calibration=self.GEMM)
        assert {
            kernel.name: (kernel.flop["total"], kernel.byte["dram"]) for kernel in found.kernels
        } == {
            "a": (100, 300),
            "k": (14, 1),
        }
        assert found.whole.byte["dram_read"] == 31
        assert found.counters == {self.SINGLE: 57, DRAM: 301, READ: 31}

    def test_nothing_is_left(self, load):
        found = load(table(*self.rows(("gemm", "7", 3000, 0, 100))), calibration=self.GEMM)
        assert (found.whole.launches, found.whole.flop["total"]) == (0, None)
        assert (found.counters, found.kernels) == ({}, ())


class TestLaunchesThatAreNotThere:
    PIPE = "sm__inst_executed_pipe_tensor.sum"

    def rows(self, *launches):
        return [
            (
                ident,
                metric,
                unit,
                value,
                {"CC": chip, "Process ID": chip[0], "Kernel Name": f"sm{chip}"},
            )
            for ident, (chip, count) in enumerate(launches)
            for metric, unit, value in ((self.PIPE, "inst", count), (DRAM, "byte", 5))
        ]

    def test_a_cut_launch_leaves_no_trace(self, load):
        text = table(*self.rows(("7.0", 15), ("7.0", 0), ("9.0", 4)))[:-3]
        found = load(text, gpu="V100", compute_capability="7.0")
        assert found.whole.flop == {"tensor_fp16": 15 * 512, "total": 15 * 512}
        assert found.whole.intensity == 15 * 512 / 10
        assert (found.processes, found.compute_capabilities) == ((7,), ("7.0",))
        assert "flop.tensor" not in found.reasons

    def test_a_launch_that_used_no_tensor_core_says_nothing_of_their_kind(self, load):
        found = load(table(*self.rows(("7.0", 15), ("9.0", 0))))
        assert found.whole.flop == {"tensor_fp16": 15 * 512, "total": 15 * 512}
        used = load(table(*self.rows(("7.0", 15), ("9.0", 1))))
        assert used.whole.flop == {"tensor": None, "total": None}
        assert "instruction shape unknown" in used.reasons["flop.total"]
        none = load(table(*self.rows(("9.0", 0))))
        assert none.whole.flop == {"tensor": 0, "total": 0}

    def test_where_launches_ran_that_are_in_another_order(self, load):
        # By position the second run's counts would all be of the 7.0.
        def run(metric, unit, **values):
            chips = {"a": "7.0", "b": "7.0", "c": "9.0"}
            return table(
                *(
                    (ident, metric, unit, value, {"Kernel Name": kernel, "CC": chips[kernel]})
                    for ident, (kernel, value) in enumerate(values.items())
                )
            )

        moved = run(DRAM, "byte", a=5, b=5, c=5)
        found = load(moved, run(self.PIPE, "inst", c=5, b=5, a=0))
        assert found.whole.flop["total"] is None

    def test_names_of_launches_that_are_left_out_tell_of_no_gpu(self, load):
        rows = [
            (ident, self.PIPE, "inst", 4, {"CC": "", "Kernel Name": kernel})
            for ident, kernel in enumerate(("volta_h884gemm", "k", "ampere_gemm"))
        ]
        whole, cut = load(table(*rows)), load(table(*rows)[:-3])
        assert whole.whole.flop["total"] is None
        assert cut.whole.flop == {"tensor_fp16": 8 * 512, "total": 8 * 512}
        assert any("kernel names (volta_*) say Volta" in text for text in cut.warnings)


class TestWorkThatFollowsTheData:
    def runs(self, count):
        first = table((0, FFMA, "inst", 100_000_000), (0, DRAM, "byte", 5))
        return first, table((0, FFMA, "inst", count), (0, TIME, "ns", 5))

    @pytest.mark.parametrize("count", [100_000_001, 99_000_000, 102_000_000])
    def test_a_little_is_a_warning(self, load, count):
        found = load(*self.runs(count))
        assert found.whole.flop["total"] == 200_000_000
        (said,) = found.warnings
        assert f"of launch 0 (k) is 100000000 and {count}" in said

    @pytest.mark.parametrize("count", [102_100_000, 97_900_000, 0])
    def test_more_is_refused(self, load, count):
        said = refusal(load, *self.runs(count))
        assert "did not do the same work" in said
        assert "profile one run twice with the same seed and data, or import each by itself" in said

    def test_the_launch_that_is_named_is_the_worst(self, load):
        first = table(*((i, FFMA, "inst", 1000) for i in range(3)), (0, DRAM, "byte", 5))
        other = table(*((i, FFMA, "inst", 1000 + i) for i in range(3)), (0, TIME, "ns", 5))
        (said,) = (text for text in load(first, other).warnings if "the same work" in text)
        assert "of launch 2 (k) is 1000 and 1002" in said


class TestRunsInDifferentOrders:
    """What is put together by kernel name only."""

    def run(self, order, *metrics):
        """Each metric with its unit and its values by kernel."""
        return table(
            *(
                (ident, metric, unit, values[kernel], {"Kernel Name": kernel})
                for metric, unit, values in metrics
                for ident, kernel in enumerate(order)
            )
        )

    def test_a_metric_without_any_value_is_taken_from_the_second(self, load):
        first = self.run(
            "ab", (FFMA, "inst", {"a": 1, "b": 2}), (DRAM, "byte", {"a": "n/a", "b": "n/a"})
        )
        second = self.run("ba", (TIME, "ns", {"a": 1, "b": 2}), (DRAM, "byte", {"a": 30, "b": 4}))
        found = load(first, second)
        assert [kernel.byte["dram"] for kernel in found.kernels] == [30, 4]

    def test_read_with_a_gap_and_a_whole_counter_of_both(self, load):
        split = [(READ, "byte", {"a": "n/a", "b": 2}), (WRITE, "byte", {"a": 1, "b": 2})]
        found = load(self.run("ab", *split), self.run("ba", (DRAM, "byte", {"a": 30, "b": 4})))
        assert (found.whole.byte["dram"], found.whole.byte["dram_read"]) == (34, None)

    def test_parts_of_a_counter_that_may_overlap(self, load):
        by_type, by_size = TENSOR, "sm__ops_path_tensor_op_hmma.sum"
        for counted, total in ((0, 5), (4, None)):
            one = self.run("ab", (by_type, "op", {"a": 5, "b": 0}))
            two = self.run("ba", (by_size, "op", {"a": 0, "b": counted}))
            assert load(one, two).whole.flop["total"] == total


def test_bytes_that_differ_between_runs(load):
    first = table((0, FFMA, "inst", 5), (0, DRAM, "byte", 100), (0, "launch__what", "", 4))
    second = table((0, TIME, "ns", 5), (0, DRAM, "byte", 110), (0, "launch__what", "", 5))
    found = load(first, second)
    assert found.whole.byte["dram"] == 100
    assert any(
        f"{DRAM} differs between run0.csv and run1.csv: 100 and 110" in w for w in found.warnings
    )


def test_files_beside_each_other_keep_why_there_is_no_value(load):
    one, two = counts(FFMA, "inst", 5), counts(FFMA, "inst", "n/a", **{"Process ID": "8"})
    found = load(one, two)
    assert "n/a in the file" in found.unavailable[FFMA]
    assert found.whole.flop["total"] is None


class TestWhatNcuCounted:
    PROFILING = '==PROF== Profiling "k" - {}: 0%....50%....100% - 3 passes\n'
    FAILED = '==ERROR== Failed to profile "k" in process 7\n'

    def said(self, *, failed=0, good=0):
        at = range(failed + good)
        return "".join(self.PROFILING.format(i) + self.FAILED * (i < failed) for i in at)

    def test_a_kernel_that_fails_again_and_again(self, load):
        text = table((4, FFMA, "inst", 5), said=self.said(failed=4, good=1))
        (said,) = load(text).warnings
        assert said == "ncu could not profile k: not in any total"

    def test_a_launch_that_is_missing_beside_failed_ones(self, load):
        text = table((2, FFMA, "inst", 5), said=self.said(failed=2, good=2))
        assert any(
            "ncu profiled 2 kernels, and the file has rows for 1" in w for w in load(text).warnings
        )

    def test_a_launch_at_which_ncu_stopped(self):
        messages = Messages()
        for line in (self.PROFILING.format(0), '==PROF== Profiling "k" - 1: 0%....50%\n'):
            assert messages.take(line)
        assert (messages.profiled, messages.failed) == (1, ("k",))


class TestWhatToDo:
    @pytest.mark.parametrize(
        ("said", "advice"),
        [
            ('==ERROR== Failed to profile "k" in process 7\n', "run ncu again with one metric"),
            (
                f"==ERROR== Failed to access the following 2 metrics: {FADD}, {FFMA}\n",
                "--query-metrics lists what this GPU has; leave out the others",
            ),
            (f"==ERROR== Metric {FADD} could not be collected\n", "leave out the others"),
        ],
    )
    def test_an_end_with_a_next_step(self, load, said, advice):
        assert advice in refusal(load, "==PROF== Connected to process 7 (/bin/python)\n" + said)

    def test_causes_for_others(self):
        messages = Messages(wsl=True)
        assert messages.cause() == ""
        messages.take("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
        assert "WSL does not offer" in messages.cause()


@pytest.mark.parametrize(("first", "second"), [("1,234", "1234"), ("1234", "1,234")])
def test_two_values_that_differ_in_the_file_s_format(load, first, second):
    # 0,5 shows that the comma is the decimal sign: 1.234 and 1234.
    rows = [(0, DRAM, "Mbyte", first), (0, DRAM, "Mbyte", second), (0, TIME, "us", "0,5")]
    assert "is there twice, with different values" in refusal(load, table(*rows))
    same = [(0, DRAM, "Mbyte", "1,234"), (0, DRAM, "Mbyte", "1,234"), (0, TIME, "us", "0,5")]
    assert load(table(*same)).whole.byte["dram"] == pytest.approx(1.234e6)


def test_a_header_without_units(load):
    text = table((0, FFMA, "inst", 5)).replace("Metric Unit", "Metric What")
    assert "the header has no column Metric Unit" in refusal(load, text)


class TestLongLines:
    """Lines may have 16 million characters, so none may take more than linear time."""

    MANY = 100_000

    @pytest.mark.parametrize(
        "line",
        [
            *("Kernel Name " + "ID," * MANY, "Kernel Name " + '"ID",' * MANY),
            *("a" + " " * MANY + "b,1", "a" + "(" * MANY + "),1", "a__" * MANY),
            *("[1] x" + "@a" * MANY + " b", "  Section: a" + " " * MANY + "b"),
            *('==PROF== Profiling "a"' + ": 1%" * MANY + "x", "1" * MANY),
            *('==ERROR== Failed to profile "' + 'a"' * MANY + ":", "==ERROR== " + "filter " * MANY),
        ],
        ids=lambda line: line[:16],
    )
    def test_anything_before_a_table(self, load, line):
        begun = time.process_time()
        assert load(f"{line}\n{counts(FFMA, 'inst', 5)}").whole.flop["total"] == 10
        assert time.process_time() - begun < 5

    @pytest.mark.parametrize("line", ['"1","x",' * MANY, "1," * MANY, "x" * MANY, '"' * MANY])
    def test_anything_in_a_table(self, load, line):
        begun = time.process_time()
        text = counts(FFMA, "inst", 5, 6)
        where = text.rindex('\n"1"') + 1
        assert load(f"{text[:where]}{line}\n{text[where:]}").whole.launches == 2
        assert time.process_time() - begun < 5

    def test_a_cell_that_is_no_number(self):
        begun = time.process_time()
        assert numerals.absent("-" * self.MANY + "1") is None
        assert numerals.absent("-" * self.MANY) is not None
        assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ("gpu__time_duration.sum [ns]", ("gpu__time_duration.sum", "ns")),
        ("Duration (us)", ("Duration", "us")),
        (" Elapsed   ", ("Elapsed", "")),
        ("f(int) [inst]", ("f(int)", "inst")),
        ("f(a)b)", ("f(a)b)", "")),
        ("abc)", ("abc)", "")),
        ("a [b", None),
        ("a] [b]", None),
        ("abc]", None),
        ("a ([b)", None),
    ],
)
def test_heads_of_a_transposed_table(head, named):
    assert transposed._metric(head) == named


def test_a_log_sorted_by_metric_that_breaks_off_takes_no_longer_for_it(load):
    ids = range(20_000)
    rows = [(i, metric, unit, 1) for metric, unit in ((FFMA, "inst"), (DRAM, "byte")) for i in ids]
    text = table(*rows)
    cut = text.rindex('"10000"') + 20  # of DRAM half is there
    begun = time.process_time()
    found = load(text[:cut])
    assert time.process_time() - begun < 10
    whole = found.whole
    assert (whole.launches, whole.flop["total"], whole.byte["dram"]) == (10_000, 20_000, 10_000)


# What a total leaves out


def missing(metrics, chip="9.0", kernel="k"):
    """A log of one launch with a count of 5 in each of some metrics."""
    cells = {"CC": chip, "Kernel Name": kernel}
    return table(*((0, metric, "", "5", cells) for metric in metrics))


FP32 = tuple(SASS.format(op) for op in ("fadd", "fmul", "ffma"))
TENSOR_OUT = "flop.total counts CUDA cores alone: no counter of tensor cores"


@pytest.mark.parametrize(
    ("metrics", "total", "said"),
    [
        ((*FP32, TENSOR), 25, []),
        (FP32[:1], 5, [f"counts add of sass_fp32 alone: no {FP32[1]} or {FP32[2]} is in"]),
        ((FP32[1], TENSOR), 10, [f"counts mul of sass_fp32 alone: no {FP32[0]} or {FP32[2]} is"]),
        (FP32[:2], 10, [f"counts add and mul of sass_fp32 alone: no {FP32[2]} is in"]),
        (
            (*FP32, SASS.format("dfma"), TENSOR),
            35,
            [f"counts fma of sass_fp64 alone: no {SASS.format('dadd')} or {SASS.format('dmul')}"],
        ),
        ((TENSOR,), 5, ["counts tensor cores alone: no counter of CUDA cores"]),
        (FP32, 20, [TENSOR_OUT]),
    ],
)
def test_a_total_says_what_it_leaves_out(load, capsys, tmp_path, metrics, total, said):
    text = missing(metrics)
    found = load(text)
    assert found.whole.flop["total"] == total
    if TENSOR not in metrics and TENSOR_OUT not in said:
        said = [*said, TENSOR_OUT]
    assert len(found.not_counted) == len(said)
    assert all(words in text for words, text in zip(said, found.not_counted, strict=True))
    (tmp_path / "x.csv").write_text(text)
    assert main(["import-ncu", str(tmp_path / "x.csv")]) == 0
    printed = capsys.readouterr().out
    assert all(f"warning: {text}" in printed for text in found.not_counted)


def test_a_chip_without_tensor_cores_leaves_none_out(load):
    assert load(missing(FP32, "6.1")).not_counted == ()
    assert load(missing(FP32, "")).not_counted[0].startswith(TENSOR_OUT)
    assert load(missing(FP32, ""), compute_capability="6.1").not_counted == ()
    # A counter of their pipe has looked.
    idle = table((0, FFMA, "", "5"), (0, "sm__inst_executed_pipe_tensor.sum", "inst", "0"))
    assert not any(TENSOR_OUT in text for text in load(idle).not_counted)


def test_no_total_leaves_nothing_out(load):
    assert load(table((0, DRAM, "byte", "5"))).not_counted == ()
    found = load(missing(FP32[:1], kernel="void flash::flash_fwd_kernel<T1>(T2)"))
    assert (found.whole.flop["total"], found.not_counted) == (None, ())


@pytest.mark.parametrize(
    ("kernel", "said"),
    [("volta_dgemm_128x64_nn", 1), ("void f<double>(double *)", 1), ("volta_sgemm_128x64_nn", 0)],
)
def test_kernels_that_work_in_fp64(load, kernel, said):
    found = load(missing((*FP32, TENSOR), kernel=kernel))
    assert found.whole.flop["total"] == 25
    assert sum("no fp64 instructions" in text for text in found.not_counted) == said
    doubles = [SASS.format(op) for op in ("dadd", "dmul", "dfma")]
    assert load(missing((*FP32, *doubles, TENSOR), kernel=kernel)).not_counted == ()


CUTLASS_3 = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int>, "
    "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4, "
    "cute::tuple<cute::C<2>, cute::C<1>>>, cute::TiledMMA<cute::MMA_Atom<cute::SM90_64x128x16_{}>>>"
)


@pytest.mark.parametrize(
    ("kernel", "tensor", "hmma"),
    [
        (CUTLASS_3.format("F32BF16BF16_SS"), True, False),
        (CUTLASS_3.format("S32S8S8_SS"), False, False),
        ("void device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<x>>>", True, False),
        ("fmha_v2_flash_attention_bf16_64_128_S_qkv_128_causal_sm90_kernel", True, False),
        ("fmha_v2_int8_512_64_sm80_kernel", False, True),
        ("void marlin::Marlin<__nv_bfloat16, 256, 1>(int4 const *)", True, True),
        ("void marlin::gptq_marlin_repack_kernel<256, 4>(int const *)", False, True),
        ("mma_m16n8k16_f16_kernel", True, True),
        ("mma_m16n8k32_s8_kernel", False, True),
        ("void gemm<cute::MMA_Atom<cute::SM80_16x8x16_F32F16F16F32_TN>>(int)", True, True),
        ("void gemm<cute::MMA_Atom<cute::SM80_16x8x32_S32S8S8S32_TN>>(int)", False, True),
        ("void cutlass::Kernel<cutlass::gemm::warp::MmaTensorOp<cutlass::half_t>>", True, True),
        ("void cutlass::Kernel<cutlass::gemm::warp::MmaTensorOp<signed char>>", False, True),
    ],
)
def test_names_of_kernels_on_tensor_cores(load, kernel, tensor, hmma):
    assert uses_tensor_cores(kernel) is tensor
    assert is_seen_by("sm__inst_executed_pipe_tensor_op_hmma.sum", kernel) is hmma
    total = load(missing(FP32, kernel=kernel)).whole.flop["total"]
    assert total == (None if tensor else 20)


# Streams


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_names_that_the_terminal_cannot_show(tmp_path, encoding):
    path = tmp_path / "x.csv"
    path.write_text(missing(FP32, kernel="k\u00e9r\u2192<\u00b5>"), encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "roofprobe", "import-ncu", "--per-kernel", str(path)]
    plain = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert b"\\u2192" in plain.stdout
    assert plain.stderr == b""
    body = subprocess.run([*command, "--json"], env=environment, capture_output=True, check=True)
    (kernel,) = json.loads(body.stdout)["kernels"]
    assert kernel["name"] == "k\u00e9r\u2192<\u00b5>"


def test_a_pipe_is_refused_by_its_name(tmp_path, capsys):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(missing(FP32),), daemon=True)
    writer.start()
    assert main(["import-ncu", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"roofprobe: error: {path}: a pipe, which cannot be read twice: save it to a file first\n"
    )
    path.read_text()
    writer.join()
