"""Metrics that ncu could not collect, streams, the SM clock, and figures that differ by launch."""

import csv
import io
import json
from dataclasses import replace

import pytest

from roofprobe.cli import main
from roofprobe.cli.import_ncu import roofline_of
from roofprobe.ncu_import import import_files
from roofprobe.ncu_import.csv_log import NESTED
from roofprobe.ncu_import.launches import NAMELESS
from roofprobe.ncu_import.messages import Messages

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

    def run(*texts):
        paths = []
        for index, text in enumerate(texts):
            paths.append(tmp_path / f"run{index}.csv")
            paths[-1].write_text(text)
        return import_files(paths)

    return run


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
