"""Importing ncu files: every total here is worked out by hand."""

import csv
import io
import json
import math
import random
import re
import sys
from typing import ClassVar

import fuzz_import
import fuzzing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofprobe.cli import main
from roofprobe.cli.import_ncu import roofline_of, workload
from roofprobe.errors import RecordError
from roofprobe.ncu_import import import_files
from roofprobe.ncu_import.numerals import NotANumberError, Numerals
from roofprobe.ncu_import.unit_names import unit
from roofprobe.ncu_import.vocabulary import meaning

FADD, FMUL, FFMA = (
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma")
)
DRAM, READ, WRITE = "dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
TIME = "gpu__time_duration.sum"
COLUMNS_15 = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC", "Section Name"),
    *("Metric Name", "Metric Unit", "Metric Value"),
)
COLUMNS_12 = tuple(
    "Kernel Time" if name == "Block Size" else name
    for name in COLUMNS_15
    if name not in ("Grid Size", "Device", "CC")
)
COLUMNS_20 = (
    *COLUMNS_15,
    *("Rule Name", "Rule Type", "Rule Description"),
    *("Estimated Speedup Type", "Estimated Speedup"),
)


def table(rows, columns=COLUMNS_15, delimiter=",", quoted=True):
    """A long CSV; a row is (ID, kernel, metric, unit, value) or a dict over the columns."""
    out = io.StringIO()
    quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = {
            "Process ID": "7",
            "Process Name": "python3",
            "Host Name": "127.0.0.1",
            "Kernel Time": "2020-Jun-09 11:50:40",
            "Context": "1",
            "Stream": "7",
            "Block Size": "(256, 1, 1)",
            "Grid Size": "(64, 1, 1)",
            "Device": "0",
            "CC": "9.0",
            "Section Name": "Command line profiler metrics",
        }
        if isinstance(row, dict):
            cells |= row
        else:
            names = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
            cells |= dict(zip(names, map(str, row), strict=True))
        writer.writerow([cells.get(name, "") for name in columns])
    return out.getvalue()


@pytest.fixture
def load(tmp_path):
    """Imports texts (or bytes) as files; the record as a dict."""

    def run(*contents, **options):
        paths = []
        for index, content in enumerate(contents):
            path = tmp_path / f"run{index}.log"
            data = content if isinstance(content, bytes) else content.encode()
            path.write_bytes(data)
            paths.append(path)
        return import_files(paths, **options).to_dict(kernels=True)

    return run


def refusal(load, *contents, **options):
    with pytest.raises(RecordError) as caught:
        load(*contents, **options)
    return str(caught.value)


# Numbers


@pytest.mark.parametrize(
    ("text", "form", "value"),
    [
        ("1,234,567", "en", 1234567),
        ("1.234.567", "de", 1234567),
        ("1,234.5", "en", 1234.5),
        ("1.234,5", "de", 1234.5),
        ("0.123", "en", 0.123),
        ("0,123", "de", 0.123),
        ("12,5", "de", 12.5),
        ("1234.567", "en", 1234.567),
        ("12,34,567", "en", 1234567),
        ("1\u202f234,5", "de", 1234.5),
        ("1'234.5", "en", 1234.5),
        ("1,5e+03", "de", 1500),
    ],
)
def test_a_number_that_reads_one_way_proves_the_format(text, form, value):
    numerals = Numerals()
    assert numerals.both(text) == (value, value)
    assert numerals.decide() == form


def test_a_lone_separator_reads_two_ways():
    numerals = Numerals()
    assert numerals.both("1,234") == (1234, 1.234)
    assert numerals.both("5.678") == (5.678, 5678)
    with pytest.raises(RecordError, match="--number-format"):
        numerals.decide()


def test_a_count_is_whole():
    numerals = Numerals()
    assert numerals.both("1.234", whole=True) == (1234, 1234)
    assert numerals.decide() == "de"


def test_integers_without_grouping_make_a_lone_separator_decimal():
    numerals = Numerals()
    numerals.both("1,234")
    numerals.both("56789")
    assert numerals.decide() == "de"


def test_two_formats_in_one_file_are_refused():
    numerals = Numerals()
    numerals.both("1,234.5")
    numerals.both("1.234,5")
    with pytest.raises(RecordError, match="two formats"):
        numerals.decide()


@pytest.mark.parametrize("text", ["1,23,4", "1.2.3", "1,234.567,8", "abc", "1,,2", "1-2", "٣٤,٥"])
def test_what_is_no_number(text):
    with pytest.raises(NotANumberError):
        Numerals().both(text)


def test_a_forced_format_refuses_what_cannot_be_in_it():
    assert Numerals("de").both("1.234") == (1234, 1234)
    with pytest.raises(NotANumberError):
        Numerals("en").both("1.234.567")


# 1,234,567 ns and 2,000 ns: the second alone could be 2 ns.
@pytest.mark.parametrize(
    ("long", "short"), [("1,234,567", "2,000"), ("1.234.567", "2.000"), ("1 234 567", "2 000")]
)
def test_one_long_number_decides_for_the_file(load, long, short):
    record = load(table([(0, "a", TIME, "ns", long), (1, "b", TIME, "ns", short)]))
    assert record["time_s"] == pytest.approx(1236567e-9)


def test_ambiguous_durations_are_refused_and_can_be_forced(load):
    text = table([(0, "a", TIME, "us", "1.234"), (1, "b", TIME, "us", "5.678")])
    assert "--number-format" in refusal(load, text)
    assert load(text, number_format="en")["time_s"] == pytest.approx(6.912e-6)
    assert load(text, number_format="de")["time_s"] == pytest.approx(6912e-6)


def test_german_log(load):
    rows = [
        (0, "a", FFMA, "inst", "1.000.000"),
        (0, "a", DRAM, "Mbyte", "12,582"),
        (0, "a", TIME, "usecond", "35,20"),
    ]
    record = load(table(rows, delimiter=";"))
    assert record["flop"]["total"] == 2_000_000
    assert record["byte"]["dram"] == pytest.approx(12_582_000)
    assert record["time_s"] == pytest.approx(35.2e-6)


# Units


@pytest.mark.parametrize(
    ("text", "scale", "dimension"),
    [
        ("byte", 1, "byte"),
        ("Kbyte", 1e3, "byte"),
        ("Tbyte", 1e12, "byte"),
        ("nsecond", 1e-9, "second"),
        ("ns", 1e-9, "second"),
        ("us", 1e-6, "second"),
        ("msecond", 1e-3, "second"),
        ("s", 1, "second"),
        ("Ghz", 1e9, "cycle/second"),
        ("cycle/nsecond", 1e9, "cycle/second"),
        ("cycle/usecond", 1e6, "cycle/second"),
        ("Gbyte/s", 1e9, "byte/second"),
        ("Gbyte/second", 1e9, "byte/second"),
        ("Ksector", 1e3, "sector"),
        ("Minst", 1e6, "inst"),
        ("inst/cycle", 1, "inst/cycle"),
        ("%", 1, "%"),
        ("", 1, ""),
    ],
)
def test_units(text, scale, dimension):
    found = unit(text)
    assert found.scale == pytest.approx(scale)
    assert found.dimension == dimension


@pytest.mark.parametrize("text", ["furlong", "Kfurlong", "byte/furlong", "Xbyte", "ksecond"])
def test_an_unknown_unit_is_refused_where_it_matters(load, text):
    assert f"unknown unit {text}" in refusal(load, table([(0, "a", DRAM, text, 1)]))
    rows = [(0, "a", DRAM, "byte", 5), (0, "a", "sm__some.avg", text, 1)]
    assert load(table(rows))["byte"]["dram"] == 5


def test_a_unit_of_another_kind_makes_the_figure_unknown(load):
    rows = [(0, "a", FADD, "inst", 10), (0, "a", FFMA, "inst/cycle", 5)]
    record = load(table(rows))
    assert record["flop"]["total"] is None
    assert "inst/cycle" in record["unavailable"][FFMA]


# Layouts


@pytest.mark.parametrize(
    ("columns", "quoted"),
    [
        *((columns, True) for columns in (COLUMNS_12, COLUMNS_15, COLUMNS_20, COLUMNS_15[::-1])),
        *((columns, False) for columns in (COLUMNS_12, COLUMNS_15, COLUMNS_20)),
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_layouts(load, columns, quoted, delimiter):
    rows = [
        (0, "f<1, 2>(int)", FFMA, "inst", "1,000,000"),
        (0, "f<1, 2>(int)", DRAM, "byte", "16,000"),
        (1, "g", FFMA, "inst", "1"),
        (1, "g", DRAM, "byte", "2"),
    ]
    record = load(table(rows, columns, delimiter, quoted))
    assert record["launches"] == 2
    assert record["flop"]["total"] == 2_000_002
    assert record["byte"]["dram"] == 16_002
    assert [kernel["name"] for kernel in record["kernels"]] == ["f<1, 2>(int)", "g"]


def test_rules_below_a_section_are_no_metrics(load):
    rows = [
        (0, "a", FFMA, "inst", 5),
        {"ID": "0", "Kernel Name": "a", "Rule Name": "SOLBottleneck", "Rule Type": "OPT"},
    ]
    assert load(table(rows, COLUMNS_20))["flop"]["total"] == 10


def test_wide_page(load):
    text = (
        f'noise"ID","Process ID","Kernel Name","Device","CC","{READ}","{WRITE}","{FFMA}","{TIME}"\n'
        '"","","","","","Mbyte","Kbyte","inst","usecond"\n'
        '"0","5","a","0","8.0","12.582912","524.288","1,000,000","35.20"\n'
        "step 1\n"
        '"1","5","b","0","8.0","0.50","1,024.00","0","4.10"\n'
    )
    record = load(text)
    # 12,582,912 + 524,288 + 500,000 + 1,024,000
    assert record["byte"]["dram"] == pytest.approx(14_631_200)
    assert record["launches"] == 2
    assert record["flop"]["total"] == 2_000_000
    assert record["time_s"] == pytest.approx(39.3e-6)
    assert record["skipped_lines"] == 1


DETAILS = f"""==PROF== Connected to process 12 (/usr/bin/app)
==PROF== Profiling "add": 0%....50%....100% - 8 passes
==PROF== Disconnected from process 12
[12] app@127.0.0.1
  copy, 2020-Jun-09 11:50:40, Context 1, Stream 7
    Section: GPU Speed Of Light Throughput
    ----------------------- ------------- ------------
    Duration                      usecond         1.00
    ----------------------- ------------- ------------
    Section: Command line profiler metrics
    --------------------------------------------------- ----------- ------------
    {DRAM}                                            Mbyte         1.00
    {FFMA}        inst            0
    --------------------------------------------------- ----------- ------------
  void add<float, 4>(float *, int) (196, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.6
    Section: GPU Speed Of Light Throughput
    ----------------------- ------------- ------------
    Metric Name               Metric Unit Metric Value
    ----------------------- ------------- ------------
    SM Frequency            cycle/nsecond         1.50
    Elapsed Cycles                  cycle        3,000
    Memory Throughput                   %        60.21
    Duration                      usecond         2.00
    ----------------------- ------------- ------------

    OPT   This kernel's grid is too small to fill the device.

    Section: Command line profiler metrics
    --------------------------------------------------- ----------- ------------
    Metric Name                                         Metric Unit Metric Value
    --------------------------------------------------- ----------- ------------
    {DRAM}                                            Kbyte        12.50
    {FFMA}        inst    1,000,000
    --------------------------------------------------- ----------- ------------
"""


def test_details_page(load):
    record = load(DETAILS)
    assert record["launches"] == 2
    assert record["flop"]["total"] == 2_000_000
    assert record["byte"]["dram"] == pytest.approx(1_012_500)
    assert record["time_s"] == pytest.approx(3e-6)
    names = [kernel["name"] for kernel in record["kernels"]]
    assert names == ["copy", "void add<float, 4>(float *, int)"]
    assert record["processes"] == [12]


def test_transposed_export(load):
    text = (
        '"","1 - add","2 - mul"\n'
        '"Function","add","mul"\n'
        '"Device","0","0"\n'
        f'"{FFMA} [inst]","1,000,000 (+5.00%)","500 (-1%)"\n'
        f'"{DRAM} [Mbyte]","1.50 (+0.00%)","0.25 (z=1)"\n'
        f'"{TIME} [us]","2.00","1.00"\n'
    )
    record = load(text)
    assert record["launches"] == 2
    assert record["flop"]["total"] == 2_001_000
    assert record["byte"]["dram"] == pytest.approx(1_750_000)
    assert record["time_s"] == pytest.approx(3e-6)
    assert [kernel["name"] for kernel in record["kernels"]] == ["add", "mul"]


# Noise and encodings


def test_noise_around_rows(load):
    lines = table(
        [(0, "a", FFMA, "inst", "1,000,000"), (0, "a", DRAM, "byte", "2,000,000")]
    ).splitlines()
    text = "\n".join(
        [
            '"epoch","1","loss","0.7"',
            "100%|###| 1/1" + lines[0],
            " 50%|##  |" + lines[1],
            "step 1, loss 0.70",
            lines[2] + "step 2",
            "All done",
        ]
    )
    record = load(text)
    assert record["flop"]["total"] == 2_000_000
    assert record["byte"]["dram"] == 2_000_000
    assert record["skipped_lines"] == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings(load, encoding, end):
    text = table([(0, "a", FFMA, "inst", "2,000"), (0, "a", DRAM, "byte", "16,000")])
    record = load(text.replace("\n", end).encode(encoding))
    assert record["intensity"] == 0.25


def test_bytes_that_are_no_text_beside_the_table(load):
    data = b"Pr\xe9paration\n" + table([(0, "a", FFMA, "inst", "2,000")]).encode() + b"\xff\xfe\n"
    assert load(data)["flop"]["total"] == 4000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\0\1\2\3" * 100, "neither text"),
        (b"hello\n", "no ncu output"),
        (table([]).encode(), "no row below"),
        (b"==PROF== Connected to process 1 (x)\n", "--target-processes all"),
        (b"==ERROR== ERR_NVGPUCTRPERM - no\n", "--cap-add=SYS_ADMIN"),
    ],
)
def test_files_without_launches(load, data, message):
    text = refusal(load, data)
    assert message in text
    assert "run0.log" in text


def test_some_kernels_failed(load):
    head = '==ERROR== Failed to profile kernel "gemv" in process 7\n'
    record = load(head + table([(0, "a", FFMA, "inst", 1)]))
    assert record["failed_kernels"] == ["gemv"]
    assert "gemv" in record["warnings"][0]


# Duplicates and missing values


def test_equal_duplicates_count_once_and_others_are_refused(load):
    row = (0, "a", DRAM, "byte", "1,000,000")
    assert load(table([row, row]))["byte"]["dram"] == 1_000_000
    twice = table([row, (0, "a", DRAM, "byte", "1,000,001")])
    assert "different values: 1000000 and 1000001" in refusal(load, twice)
    scaled = table([row, (0, "a", DRAM, "Mbyte", "1.00")])
    assert load(scaled)["byte"]["dram"] == 1_000_000


def test_the_same_label_with_another_unit_is_another_metric(load):
    label = "Memory Throughput"
    rows = [
        (0, "a", label, "%", "60.21"),
        (0, "a", label, "Gbyte/second", "100.50"),
        (0, "a", "Duration", "usecond", "2.00"),
    ]
    record = load(table(rows))
    assert record["byte"]["dram"] == pytest.approx(201_000)
    assert any("rate" in text for text in record["warnings"])
    clash = [*rows, (0, "a", label, "%", "70.00")]
    assert "different values" in refusal(load, table(clash))


@pytest.mark.parametrize("text", ["n/a", "(!) n/a", "nan", "(!) nan", "", "N/A", "-nan", "inf"])
def test_no_number_is_no_zero(load, text):
    rows = [
        (0, "a", FFMA, "inst", 50),
        (0, "a", DRAM, "byte", 100),
        (1, "b", FFMA, "inst", 70),
        (1, "b", DRAM, "", text),
    ]
    record = load(table(rows))
    assert record["byte"]["dram"] is None
    assert record["flop"]["total"] == 240
    assert "1 of 2 launches" in record["unavailable"][DRAM]
    # The intensity is that of launch 0 alone, and the record says so.
    assert record["intensity"] == 1.0
    assert any("1 of 2 launches" in warning for warning in record["warnings"])


def test_reads_alone_are_no_total(load):
    record = load(table([(0, "a", READ, "byte", 5), (0, "a", FFMA, "inst", 5)]))
    assert record["byte"]["dram_read"] == 5
    assert record["byte"]["dram"] is None
    assert record["reasons"]["byte.dram"] == "only the read counter is in the files"


def test_total_against_parts(load):
    rows = [(0, "a", READ, "byte", 5), (0, "a", WRITE, "byte", 5), (0, "a", DRAM, "byte", 20)]
    record = load(table(rows))
    assert record["byte"]["dram"] == 10
    assert "do not add up" in record["warnings"][0]


def test_a_kernel_cannot_have_two_names(load):
    rows = [(0, "a", FFMA, "inst", 5), (1, "c", FFMA, "inst", 5), (0, "b", FADD, "inst", 5)]
    assert "called both" in refusal(load, table(rows))


# FLOP


def half(op, prefix="smsp"):
    return f"{prefix}__sass_thread_inst_executed_op_{op}_pred_on.sum"


def test_packed_half_is_an_upper_bound(load):
    rows = [(0, "a", half(op), "inst", 10) for op in ("hadd", "hmul", "hfma")]
    record = load(table(rows))
    assert record["flop"]["sass_fp16"] == 20 + 20 + 40
    assert record["upper_bound"] == ["sass_fp16", "total"]
    assert "upper bound" in record["warnings"][0]


def test_volta_logs_of_old_are_weighted_as_published(load):
    rows = [(0, "volta_gemm", half(op, "sm"), "inst", 10) for op in ("hadd", "hmul", "hfma")]
    assert load(table(rows, COLUMNS_12))["flop"]["sass_fp16"] == 10 + 10 + 20
    assert load(table(rows))["flop"]["sass_fp16"] == 80  # compute capability 9.0


def test_derived_metrics_are_not_doubled_again_and_peaks_are_not_work(load):
    base = "sass_thread_inst_executed_op_ffma_pred_on_x2"
    rows = [
        (0, "a", f"derived__smsp__{base}", "inst", 40),
        (0, "a", f"derived__sm__{base}", "inst/cycle", 999),
    ]
    record = load(table(rows))
    assert record["flop"]["total"] == 40
    assert "chip could do" in record["unavailable"][f"derived__sm__{base}"]


def test_rates_times_cycles(load):
    stem = "smsp__sass_thread_inst_executed_op"
    rows = [
        (0, "a", f"{stem}_fadd_pred_on.sum.per_cycle_elapsed", "inst/cycle", "2.50"),
        (0, "a", f"derived__{stem}_ffma_pred_on_x2", "inst/cycle", "10.00"),
        (0, "a", "smsp__cycles_elapsed.avg.per_second", "cycle/nsecond", "1.50"),
        (0, "a", TIME, "us", "2.00"),
        (0, "a", "dram__bytes.sum.per_second", "Gbyte/s", "1.50"),
    ]
    record = load(table(rows))
    assert record["flop"]["total"] == pytest.approx(12.5 * 3000)
    assert record["byte"]["dram"] == pytest.approx(3000)
    unknown = load(table(rows[:2]))
    assert unknown["flop"]["total"] is None


def tensor(name):
    return f"sm__ops_path_tensor_{name}.sum"


def test_tensor_subdivisions_are_not_added_to_their_sum(load):
    rows = [
        (0, "a", tensor("src_fp16"), "op", 100),
        (0, "a", tensor("src_fp16_dst_fp32"), "op", 60),
        (0, "a", tensor("op_hmma_src_fp16"), "op", 100),
        (0, "a", tensor("src_tf32_dst_fp32_sparsity_off"), "op", 7),
        (0, "a", tensor("src_tf32_dst_fp32_sparsity_on"), "op", 3),
        (0, "a", tensor("src_int8"), "op", 1000),
    ]
    record = load(table(rows))
    assert record["flop"] == {"tensor_fp16": 100, "tensor_tf32": 10, "total": 110}
    assert record["op"] == {"tensor_int8": 1000}


PIPE = "sm__inst_executed_pipe_tensor.sum"


@pytest.mark.parametrize(
    ("capability", "count", "expected"), [("7.0", 3, 1536), ("8.0", 3, None), ("8.0", 0, 0)]
)
def test_tensor_instructions(load, capability, count, expected):
    cells = {"ID": "0", "Kernel Name": "a", "CC": capability}
    rows = [
        cells | {"Metric Name": PIPE, "Metric Unit": "inst", "Metric Value": str(count)},
        cells | {"Metric Name": FFMA, "Metric Unit": "inst", "Metric Value": "5"},
        cells | {"Metric Name": DRAM, "Metric Unit": "byte", "Metric Value": "5"},
    ]
    record = load(table(rows))
    assert record["flop"]["total"] == (None if expected is None else expected + 10)
    assert (record["intensity"] is None) == (expected is None)


def test_gpu_names_the_chip_where_the_file_does_not(load):
    text = table([(0, "a", PIPE, "inst", 2)], COLUMNS_12)
    assert load(text)["flop"]["total"] is None
    assert load(text, gpu="V100", compute_capability="7.0")["flop"]["total"] == 1024
    told = table([(0, "a", PIPE, "inst", 2)])
    assert "the files say 9.0" in refusal(load, told, gpu="V100", compute_capability="7.0")


def test_time_from_cycles(load):
    rows = [
        (0, "a", "sm__cycles_elapsed.avg", "cycle", "3000.00"),
        (0, "a", "sm__cycles_elapsed.avg.per_second", "cycle/nsecond", "1.50"),
        (1, "b", "sm__cycles_elapsed.avg", "cycle", "1500.00"),
        (1, "b", "sm__cycles_elapsed.avg.per_second", "cycle/usecond", "1000.00"),
    ]
    assert load(table(rows))["time_s"] == pytest.approx(3.5e-6)


def test_a_time_that_no_kernel_takes(load):
    record = load(table([(0, "a", TIME, "second", "18000000000"), (0, "a", FFMA, "inst", 5)]))
    assert record["time_s"] is None
    assert record["flop"]["total"] == 10
    assert "which no kernel takes" in record["reasons"]["time_s"]


# Processes, devices, files


def test_processes_and_devices_are_kept_apart(load):
    rows = [
        {"ID": "0", "Process ID": process, "Device": gpu, "Kernel Name": f"k{process}"}
        | {"Metric Name": FFMA, "Metric Unit": "inst", "Metric Value": value}
        for process, gpu, value in (("1", "0", "10"), ("2", "1", "20"), ("1", "0", "10"))
    ]
    record = load(table(rows))
    assert record["launches"] == 2
    assert record["flop"]["total"] == 60
    assert [part["flop"]["total"] for part in record["by_device"]] == [20, 40]
    assert record["processes"] == [1, 2]
    assert record["devices"] == [0, 1]


def one_metric(metric, unit_name, values, process="7", **cells):
    rows = [
        {"ID": str(index), "Kernel Name": name, "Process ID": process, **cells}
        | {"Metric Name": metric, "Metric Unit": unit_name, "Metric Value": str(value)}
        for index, (name, value) in enumerate(values)
    ]
    return table(rows)


def test_one_metric_a_file(load):
    record = load(
        one_metric(FFMA, "inst", [("a", 10), ("b", 20)], process="1"),
        one_metric(DRAM, "byte", [("a", 5), ("b", 100)], process="2"),
    )
    assert record["launches"] == 2
    assert record["intensity"] == pytest.approx(60 / 105)
    assert [kernel["intensity"] for kernel in record["kernels"]] == [4.0, 0.4]
    assert record["warnings"] == []


def test_another_order_pairs_by_name_with_a_warning(load):
    record = load(
        one_metric(FFMA, "inst", [("a", 10), ("b", 20)]),
        one_metric(DRAM, "byte", [("b", 100), ("a", 5)]),
    )
    assert record["intensity"] == pytest.approx(60 / 105)
    assert [kernel["intensity"] for kernel in record["kernels"]] == [4.0, 0.4]
    assert "different orders" in record["warnings"][0]
    assert "launch 0" in record["warnings"][0]


def test_other_kernels_are_refused(load):
    text = refusal(
        load,
        one_metric(FFMA, "inst", [("a", 10), ("b", 20)]),
        one_metric(DRAM, "byte", [("a", 100), ("c", 5)]),
    )
    assert "first difference at launch 1" in text


def test_files_with_the_same_metrics_are_ranks(load):
    record = load(
        one_metric(FFMA, "inst", [("a", 10)], process="1"),
        one_metric(FFMA, "inst", [("a", 30)], process="2"),
    )
    assert record["flop"]["total"] == 80
    assert record["launches"] == 2
    assert [part["flop"]["total"] for part in record["by_device"]] == [20, 60]
    assert "repeats of one run" in record["warnings"][0]


def test_the_same_file_twice_counts_once(load):
    text = one_metric(FFMA, "inst", [("a", 10)])
    assert load(text, text)["flop"]["total"] == 20
    assert "different values" in refusal(load, text, one_metric(FFMA, "inst", [("a", 11)]))


# Truncation


def test_a_cut_last_launch_is_in_no_total(load):
    text = table(
        [
            (0, "a", FFMA, "inst", 10),
            (0, "a", DRAM, "byte", 5),
            (1, "b", FFMA, "inst", 20),
            (1, "b", DRAM, "byte", 7),
        ]
    )
    for cut in (text[: text.rindex('"1"')], text[:-2], text[:-3]):
        record = load(cut)
        assert record["launches"] == 1
        assert record["flop"]["total"] == 20
        assert record["byte"]["dram"] == 5
        assert "incomplete" in record["warnings"][0]


def test_a_cut_run_shortens_the_others(load):
    whole = one_metric(FFMA, "inst", [("a", 10), ("b", 20), ("c", 30)])
    cut = one_metric(DRAM, "byte", [("a", 5), ("b", 6), ("c", 7)])[:-3]
    record = load(whole, cut)
    assert record["launches"] == 2
    assert record["flop"]["total"] == 60
    assert record["byte"]["dram"] == 11


# Any log

LOCALES = {
    "en": lambda value, places: f"{value:,.{places}f}",
    "de": lambda value, places: f"{value:,.{places}f}".translate(str.maketrans(",.", ".,")),
    "fr": lambda value, places: f"{value:,.{places}f}".translate(str.maketrans(",.", "\u202f,")),
    "c": lambda value, places: f"{value:.{places}f}",
}
NOISE = ("", "step 1, loss 0,70", "==PROF== Profiling", " 50%|##  |", '"epoch","1"', "été")


@st.composite
def logs(draw):
    """A log, the per-launch values that it holds, and its locale."""
    locale = draw(st.sampled_from(sorted(LOCALES)))
    count = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(["a", "f<1, 2>(int)", 'g["x", {3}]']), min_size=count))
    values = draw(st.lists(st.tuples(*[st.integers(0, 10**9)] * 3), min_size=count, max_size=count))
    byte_unit, byte_places = draw(st.sampled_from([("byte", 0), ("Kbyte", 3), ("Mbyte", 6)]))
    time_unit, time_places = draw(st.sampled_from([("ns", 0), ("usecond", 3), ("msecond", 6)]))
    form = LOCALES[locale]

    def cells(ffma, moved, spent):
        return (
            (FFMA, "inst", form(ffma, 0)),
            (DRAM, byte_unit, form(moved / 10**byte_places, byte_places)),
            (TIME, time_unit, form(spent / 10**time_places, time_places)),
        )

    layout = draw(st.sampled_from(["long", "old", "wide", "text"]))
    launches = list(enumerate(zip(names, values, strict=False)))
    if layout in ("long", "old"):
        columns = COLUMNS_15 if layout == "long" else COLUMNS_12
        rows = [(i, name, *cell) for i, (name, v) in launches for cell in cells(*v)]
        text = table(rows, columns)
    elif layout == "wide":
        out = io.StringIO()
        writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(["ID", "Process ID", "Kernel Name", FFMA, DRAM, TIME])
        writer.writerow(["", "", "", "inst", byte_unit, time_unit])
        for i, (name, v) in launches:
            writer.writerow([i, 7, name, *(cell[2] for cell in cells(*v))])
        text = out.getvalue()
    else:
        ruler = f"    {'-' * 60} {'-' * 11} {'-' * 20}"
        lines = ["[7] app@127.0.0.1"]
        for _, (name, v) in launches:
            lines.append(f"  {name} (1, 1, 1)x(32, 1, 1), Context 1, Stream 7, Device 0, CC 9.0")
            lines += ["    Section: Command line profiler metrics", ruler]
            lines += [f"    {m:60s} {u:>11s} {value:>20s}" for m, u, value in cells(*v)]
            lines.append(ruler)
        text = "\n".join(lines) + "\n"
    lines = text.splitlines()
    for noise in draw(st.lists(st.sampled_from(NOISE), max_size=3)):
        # Programs do not print inside ncu's table of one kernel, nor before its units.
        first = 2 if layout == "wide" else 0
        if layout != "text":
            lines.insert(draw(st.integers(first, len(lines))), noise)
    return "\n".join(lines) + "\n", values, locale


def check(record, values):
    """Totals are those of the first launches, or None."""
    count = record["launches"]
    assert 1 <= count <= len(values)
    ffma, moved, spent = (sum(part) for part in zip(*values[:count], strict=True))
    for found, expected in (
        (record["flop"]["total"], 2 * ffma),
        (record["byte"]["dram"], moved),
        (record["time_s"], spent * 1e-9),
    ):
        assert found is None or math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-18)


@settings(deadline=None)
@given(logs())
def test_any_log_gives_its_totals(tmp_path_factory, log):
    text, values, locale = log
    path = tmp_path_factory.mktemp("any") / "x.log"
    path.write_text(text, encoding="utf-8")
    forced = "en" if locale in ("en", "c") else "de"
    record = import_files([path], number_format=forced).to_dict()
    assert record["launches"] == len(values)
    assert None not in (record["flop"]["total"], record["byte"]["dram"], record["time_s"])
    check(record, values)
    try:
        check(import_files([path]).to_dict(), values)
    except RecordError as error:
        assert "reads two ways" in str(error)


@settings(deadline=None, max_examples=30)
@given(logs())
def test_any_log_cut_anywhere_gives_totals_or_a_refusal(tmp_path_factory, log):
    text, values, locale = log
    data = text.encode()
    path = tmp_path_factory.mktemp("cut") / "x.log"
    forced = "en" if locale in ("en", "c") else "de"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        try:
            record = import_files([path], number_format=forced).to_dict()
        except RecordError as error:
            assert re.search("no kernels|empty|no ncu output|nothing complete", str(error))
        else:
            check(record, values)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("raw") / "x.log"
    path.write_bytes(table([(0, "a", FFMA, "inst", 5)]).encode() + data)
    try:
        import_files([path]).to_json(kernels=True)
    except RecordError as error:
        assert str(error)


def test_every_file_that_the_fuzzer_starts_from_is_read(tmp_path):
    importer = fuzz_import.target([], tmp_path)
    for data in fuzz_import.seeds():
        assert fuzzing.attempt(importer, data).kind == fuzzing.READ


def test_the_fuzzer_tells_refusals_from_failures(tmp_path, monkeypatch):
    importer = fuzz_import.target([], tmp_path)
    assert fuzzing.attempt(importer, b"nothing").kind == fuzzing.REFUSED
    for broken, error in ((lambda: 1 // 0, "ZeroDivision"), (lambda: bytes(1 << 60), "Memory")):
        monkeypatch.setattr(fuzz_import, "import_files", lambda paths, broken=broken: broken())
        outcome = fuzzing.attempt(importer, b"nothing")
        assert outcome.kind == fuzzing.FAILED
        assert f"{error}Error" in outcome.text


def test_a_fuzz_input_depends_on_its_number_only():
    pool = fuzz_import.seeds()
    first, second = (fuzz_import.mutated(pool, random.Random("1:7")) for _ in range(2))
    assert first == second


# Found by harness/fuzz_import.py


def test_numbers_longer_than_python_reads(load):
    huge = "9" * 5000
    row = {"ID": "0", "Kernel Name": "a", "Metric Name": FFMA, "Metric Unit": "inst"}
    record = load(table([row | {"Metric Value": "5", "Process ID": huge}]))
    assert record["processes"] == [huge]
    assert "no launch ID" in refusal(load, table([row | {"Metric Value": "5", "ID": huge}]))
    cut = table([(0, "a", FFMA, "inst", 5), (1, "a", FFMA, "inst", 5)]) + f'"{huge}","7","pyth'
    assert "breaks off" in load(cut)["warnings"][0]


def test_a_damaged_metric_of_a_transposed_export(load):
    text = f'"Function","add"\n"{DRAM} [byte]","8"\n"{FFMA} [inst] [inst]","5"\n'
    assert "damaged" in refusal(load, text)
    for other in ("Passes [a] [b]", "launch__other [a] [b]"):
        text = f'"Function","add"\n"{other}","8"\n"{FFMA} [inst]","5"\n'
        assert load(text)["flop"]["total"] == 10


# The command


def test_command(tmp_path, capsys):
    path = tmp_path / "x.csv"
    rows = [(0, "a", FFMA, "inst", 5), (0, "a", DRAM, "byte", 5), (0, "a", TIME, "ns", 10)]
    path.write_text(table(rows))
    assert main(["import-ncu", str(path), "--per-kernel"]) == 0
    assert "10 FLOP" in capsys.readouterr().out
    assert main(["import-ncu", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["flop_per_s"] == pytest.approx(1e9)
    assert "kernels" not in record
    assert main(["import-ncu", str(path), "--gpu", "NoSuchGPU"]) == 2
    assert main(["import-ncu", str(tmp_path / "missing")]) == 1
    with pytest.raises(SystemExit) as caught:
        main(["import-ncu"])
    assert caught.value.code == 2


LEVELS = (
    (0, "a", FFMA, "inst", 500),
    (0, "a", DRAM, "byte", 100),
    (0, "a", "lts__t_bytes.sum", "byte", 250),
    (0, "a", TIME, "ns", 10),
)


@pytest.fixture
def roofline(tmp_path):
    """The roofline of a log, as ``import-ncu --plot`` draws it."""

    def of(rows, gpu=None):
        path = tmp_path / "work" / "log.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(table(rows))
        return roofline_of(import_files([path], gpu=gpu), workload([path]))

    return of


def test_a_point_for_each_level_and_a_reason_for_each_other(roofline):
    found = roofline(LEVELS)
    places = [(point.level, point.intensity, point.flop_per_s) for point in found.points]
    # 1000 FLOP over 100 and 250 bytes, in 10 ns
    assert places == [("dram", 10, pytest.approx(1e11)), ("l2", 4, pytest.approx(1e11))]
    assert found.title == "log.csv, 1 launches [ncu]"
    assert found.ceilings == ()
    assert found.left_out == (
        ("L1", "no such counter is in the files"),
        ("roofs", "the GPU is not known, name the product with --gpu"),
    )


def test_no_time_and_no_bytes_are_no_points(roofline):
    found = roofline((*LEVELS[:1], (0, "a", DRAM, "byte", 0)))
    assert found.points == ()
    assert dict(found.left_out)["DRAM"] == (
        "the files have neither gpu__time_duration nor cycles with their rate"
    )
    zero = roofline([*LEVELS[:1], (0, "a", DRAM, "byte", 0), LEVELS[3]])
    assert dict(zero.left_out)["DRAM"] == "0 bytes: intensity unbounded"


@pytest.mark.parametrize("name", ["V100-SXM2-16GB", "Tesla V100-SXM2-16GB", "v100 sxm2 16gb"])
def test_roofs_of_a_named_product(roofline, name):
    found = roofline(LEVELS, gpu=name)
    roofs = {(ceiling.name, ceiling.value) for ceiling in found.ceilings}
    assert roofs == {("FP32 CUDA cores", 15.7e12), ("DRAM", 900e9)}
    assert "on V100 SXM2 16GB" in found.title
    assert "datasheets give no bandwidth" in found.points[1].note
    assert not found.points[0].note


def test_only_roofs_on_which_all_products_of_a_name_agree(roofline):
    found = roofline(LEVELS, gpu="V100")
    assert [ceiling.name for ceiling in found.ceilings] == ["DRAM"]
    (reason,) = [why for name, why in found.left_out if name == "FP32 CUDA cores roof"]
    assert "V100 PCIe 16GB" in reason and "name one with --gpu" in reason
    assert not roofline(LEVELS, gpu="7.0").ceilings  # other products have that, too


def test_paths_without_a_datasheet_figure(roofline):
    found = roofline([*LEVELS, (0, "a", tensor("src_tf32"), "op", 500)], gpu="NVIDIA L40S")
    assert {ceiling.path for ceiling in found.ceilings} == {"sass_fp32", "tensor_tf32", None}
    found = roofline([*LEVELS, (0, "a", tensor("src_fp4"), "op", 500)], gpu="NVIDIA L40S")
    assert ("tensor_fp4 roof", "no datasheet figure") in found.left_out


def test_what_limits_a_point_is_noted(roofline):
    assert "upper bound" in roofline([*LEVELS, (0, "a", half("hfma"), "inst", 5)]).points[0].note
    rows = [
        {"ID": "0", "Kernel Name": "a", "Process ID": process, "Metric Name": name}
        | {"Metric Unit": unit_name, "Metric Value": str(value)}
        for process in ("7", "8")
        for _, _, name, unit_name, value in LEVELS
    ]
    point = roofline(rows).points[0]
    assert point.note == "mean of 2 processes or devices, under the roof of one"
    assert (point.intensity, point.flop_per_s) == (10, pytest.approx(1e11))


def test_names_of_workloads(tmp_path):
    assert workload([tmp_path / "a.csv"]) == "a.csv"
    assert workload([tmp_path / "run" / "a.csv", tmp_path / "run" / "b.csv"]) == "run"
    assert workload([tmp_path / "run" / "a.csv", tmp_path / "b.csv"]) == "a.csv ..."


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_import(tmp_path, capsys):
    # The log does not exist: that would be the complaint of an import that had begun.
    code = main(["import-ncu", str(tmp_path / "none.csv"), "--plot", "x.bmp"])
    assert code == 2
    message = capsys.readouterr().err
    assert "bmp" in message
    assert "none.csv" not in message


def test_plot(tmp_path, capsys):
    path, picture = tmp_path / "x.csv", tmp_path / "x.png"
    path.write_text(table(LEVELS))
    arguments = ["import-ncu", str(path), "--plot", str(picture)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "not in the picture: L1: no such counter is in the files" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["launches"] == 1
    assert "not in the picture" in captured.err
    before = picture.read_bytes()
    assert main([*arguments[:3], str(tmp_path / "x.jpeg")]) == 2
    assert main([*arguments[:3], str(path / "x.png")]) == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["x.csv", "x.png"]
    assert picture.read_bytes() == before


def test_a_report_needs_nvidias_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0")
    with pytest.raises(RecordError, match="pip install ncu-report"):
        import_files([path])


def test_calibration(tmp_path, capsys):
    path, calibration = tmp_path / "x.csv", tmp_path / "c.json"
    rows = [(0, "gemm", tensor("src_fp16"), "op", 8), (1, "b", tensor("src_fp16"), "op", 5)]
    path.write_text(table(rows))
    calibration.write_text(json.dumps({"kernel": "gemm", "m": 2, "n": 2, "k": 2}))
    arguments = ["import-ncu", str(path), "--json", "--calibration", str(calibration)]
    assert main(arguments) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["tensor_scale"], record["flop"]["total"]) == (2.0, 10)
    calibration.write_text(json.dumps({"kernel": "gemm", "exact_flops": 100}))
    assert main(arguments) == 1


def test_meaning_of_names_without_one():
    assert meaning("sm__throughput.avg", "%") is None


class FakeMetric:
    def __init__(self, value, unit=""):
        self._value, self._unit = value, unit

    def as_double(self):
        return self._value

    def unit(self):
        return self._unit


class FakeAction:
    _METRICS: ClassVar = {
        FFMA: FakeMetric(1e6, "inst"),
        DRAM: FakeMetric(math.nan, "byte"),
        TIME: FakeMetric(2000.0, "ns"),
        "device__attribute_compute_capability_major": FakeMetric(9.0),
        "device__attribute_compute_capability_minor": FakeMetric(0.0),
    }

    def name(self):
        return "gemm"

    def metric_names(self):
        return list(self._METRICS)

    def metric_by_name(self, name):
        return self._METRICS.get(name)


class FakeReport:
    """NVIDIA's package as far as it is used: a report of one range with two launches."""

    def load_report(self, path):
        return self

    def num_ranges(self):
        return 1

    def range_by_idx(self, index):
        return self

    def num_actions(self):
        return 2

    def action_by_idx(self, index):
        return FakeAction()


def test_a_report(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", FakeReport())
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0")
    record = import_files([path]).to_dict()
    assert record["launches"] == 2
    assert record["flop"]["total"] == 4_000_000
    assert record["time_s"] == pytest.approx(4e-6)
    assert record["byte"]["dram"] is None
    assert record["compute_capability"] == ["9.0"]
