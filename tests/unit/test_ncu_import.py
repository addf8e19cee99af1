"""Importing ncu files: every total here is worked out by hand."""

import csv
import gzip
import io
import itertools
import json
import math
import os
import random
import re
import sys
import tty
from contextlib import suppress
from pathlib import Path
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
from roofprobe.ncu_import.source import _Watched
from roofprobe.ncu_import.unit_names import unit
from roofprobe.ncu_import.vocabulary import meaning

FADD, FMUL, FFMA = (
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma")
)
SASS_FP32 = (FADD, FMUL, FFMA)
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


CONNECTED = "==PROF== Connected to process 7 (/usr/bin/python3)\n"
DENIED = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters.\n"
BUSY = "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that.\n"
GAVE_UP = (
    '==ERROR== Failed to profile "gemm" in process 7\n'
    "==PROF== Trying to shutdown target application\n"
    "==ERROR== The application returned an error code (9).\n"
    "==ERROR== An error occurred while trying to profile.\n"
)
NOTHING = (
    "==WARNING== No kernels were profiled.\n"
    "==WARNING== Profiling kernels launched by child processes requires the "
    "--target-processes all option.\n"
)
METRICS_OF_MIG = (
    "==ERROR== Failed to access the following 2 metrics. When profiling on a MIG instance, it is "
    "not possible to collect metrics from GPU units that are shared with other MIG instances: "
    f"{DRAM}, lts__t_bytes.sum\n"
)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (DENIED, "NVreg_RestrictProfilingToAdminUsers=0"),
        (
            "==ERROR== The user does not have permission to profile on the target device. See "
            "https://developer.nvidia.com/NVSOLN1000\n",
            "--cap-add=SYS_ADMIN",
        ),
        ('==PROF== Profiling "k" - 0: 0%' + DENIED, "failed: k; ncu said: ERR_NVGPUCTRPERM"),
        (
            "==WARNING== Not available: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\n",
            "whoever runs the HOST",
        ),
        ("\x1b[31m==ERROR== An error was reported by the driver:\n" + BUSY, "--resume"),
        ("==ERROR== Profiling is not supported on device 0. To find out\n", "--list-chips"),
        ("==WARNING== Skipping device 0: GPU (Tesla P100) is not supported.\n", "Tesla P100"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.\n", "update the driver"),
        (METRICS_OF_MIG, "MIG switched off"),
        ("==ERROR== Cannot lock GPU clock frequencies on MIG! Try\n", "--clock-control none"),
        (
            "==ERROR== Profiling is not supported on device 0 as it uses the Windows Subsystem for "
            "Linux (WSL).\n",
            "limit of the platform",
        ),
        ("==ERROR== Profiling is not permitted on this vGPU.\n", "administrator of the hypervisor"),
        ("==ERROR== Not supported as it uses the Confidential Computing mode.\n", "on the host"),
        ("==ERROR== Profiling on Mining Processors (CMP) is impossible.\n", "another GPU"),
        ("==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock\n", "TMPDIR"),
        ("==ERROR== Failed to find metric dram__bytes_read.sum\n", "--query-metrics"),
        ("==ERROR== Nsight Compute failed to connect (stub libcuda.so[.1] on path?).\n", "stubs"),
        ("==ERROR== UnknownError\n", "--replay-mode application"),
        ("==ERROR== The application returned an error code (1).\n", "without ncu first"),
        ("==WARNING== Kernel name filter 'x' did not match any kernel.\n", "--kernel-name"),
        ("==ERROR== What nobody has seen yet.\n", "ncu said: What nobody has seen yet"),
    ],
)
def test_why_nothing_was_profiled(load, said, words):
    gave_up = "" if "application returned" in said or "Profiling " in said else GAVE_UP
    text = refusal(load, CONNECTED + said + gave_up + NOTHING)
    assert words in text
    assert "no kernels were profiled" in text
    # Both are there for other causes.
    assert "--target-processes" not in text
    assert "code (9)" not in text
    assert ".." not in text


def test_the_launcher_is_the_cause_where_nothing_else_was_said(load):
    assert "--target-processes all" in refusal(load, CONNECTED + NOTHING)
    shell = "==ERROR== The target application terminated before first instrumented API call.\n"
    assert "--target-processes all" in refusal(load, CONNECTED + shell)
    failed = refusal(load, CONNECTED + '==ERROR== Failed to profile "a" in process 7\n')
    assert "failed: a" in failed
    assert "--target-processes" not in failed


def test_a_hang_names_its_kernel(load):
    text = refusal(
        load,
        CONNECTED + '==PROF== Profiling "ncclDevKernel_AllReduce(ncclDevComm *)" - 12: 0%\n'
        "==WARNING== Launching the workload is taking more time than expected. If this goes on\n"
        "==PROF== Received signal\n",
    )
    assert "failed: ncclDevKernel_AllReduce(ncclDevComm *)" in text
    assert "--kernel-name" in text


@pytest.mark.parametrize(
    "sign",
    [
        "==PROF== Connected to process 7 (C:\\Program Files\\Python313\\python.exe)\n",
        "Linux box 5.15.153.1-microsoft-standard-WSL2 #1 SMP x86_64 GNU/Linux\n",
    ],
)
def test_advice_for_linux_is_for_linux(load, sign):
    text = refusal(load, sign + DENIED)
    assert "Windows" in text or "WSL" in text
    for wrong in ("NVreg", "HOST", "cap-add"):
        assert wrong not in text


def test_a_refusal_without_ncus_mark(load):
    plain = "Error: ERR_NVGPUCTRPERM The user has no permission to access GPU counters.\n"
    assert "NVreg" in refusal(load, plain)
    chat = CONNECTED + "see ERR_NVGPUCTRPERM in our docs\n" + NOTHING
    assert "NVreg" not in refusal(load, chat)


def test_figures_that_are_elsewhere(load):
    profiled = CONNECTED + '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 2 passes\n'
    text = refusal(load, profiled + "==PROF== Report: /home/me/my out.ncu-rep\n")
    assert "import /home/me/my out.ncu-rep instead" in text
    assert "no kernels" not in text
    text = refusal(load, profiled)
    assert "import what ncu printed" in text
    assert "no kernels" not in text


@pytest.mark.parametrize(
    ("said", "words", "failed"),
    [
        (BUSY + GAVE_UP, "driver resource was unavailable", ["gemm"]),
        (DENIED, "ERR_NVGPUCTRPERM", []),
        ("==ERROR== The application returned an error code (1).\n", "error code (1)", []),
        ('==PROF== Profiling "relu" - 3: 0%==ERROR== LaunchFailed\n', "LaunchFailed", ["relu"]),
        ("==ERROR== Profiling is not supported on device 0. To find out\n", "on device 0", []),
        ("==PROF== Received signal\n", "ncu was stopped", []),
        (METRICS_OF_MIG, "Failed to access", []),
    ],
)
def test_an_error_beside_launches_is_a_warning(load, said, words, failed):
    header, row = table([(0, "gemm", FFMA, "inst", 1000)]).splitlines(keepends=True)
    # On its own lines, and sharing one with the table.
    for text in (said + header + row, said.rstrip() + header + row, header + row.rstrip() + said):
        record = load(CONNECTED + text)
        assert record["flop"]["total"] == 2000
        assert record["failed_kernels"] == failed
        error, *others = record["warnings"]
        assert "may be missing from every total" in error
        assert words in error
        assert others == [f"ncu could not profile {name}: not in any total" for name in failed]


def test_a_kernel_that_was_begun_and_ended_is_no_failure(load):
    progress = (
        '==PROF== Profiling "a" - 0: 0%....50%....100% - 2 passes\n'
        '==PROF== Profiling "b" - 1: 0%....\n'
        "loss 0.7\n"
        "100% - 9 passes\n"
        '==PROF== Profiling "c" - 2: \n'
        "==PROF== Disconnected from process 7\n"
        "==PROF== Report: out.ncu-rep\n"
    )
    rows = [(index, name, FFMA, "inst", 1) for index, name in enumerate("abc")]
    record = load(CONNECTED + progress + table(rows))
    assert record["failed_kernels"] == []
    assert record["warnings"] == []


@pytest.mark.parametrize(
    "said",
    [
        METRICS_OF_MIG.replace("ERROR", "WARNING"),
        f"==WARNING== Unable to access the following 2 metrics: {DRAM}, lts__t_bytes.sum. If "
        "profiling on a MIG instance, it is not possible to collect metrics from GPU units that "
        "are shared with other MIG instances.\n",
    ],
)
def test_ncu_tells_why_a_metric_has_no_value(load, said):
    record = load(said + table([(0, "a", FFMA, "inst", 1), (0, "a", DRAM, "", "n/a")]))
    assert set(record["unavailable"]) == {DRAM, "lts__t_bytes.sum"}
    for reason in (*record["unavailable"].values(), record["reasons"]["byte.dram"]):
        assert "ncu could not access it" in reason
        assert "MIG" in reason
    # Another run has it after all.
    both = load(said + table([(0, "a", FFMA, "inst", 1)]), table([(0, "a", DRAM, "byte", 8)]))
    assert both["byte"]["dram"] == 8
    assert set(both["unavailable"]) == {"lts__t_bytes.sum"}


def test_nan_in_an_sm_counter_is_not_blamed_on_mig(load):
    record = load(table([(0, "a", FFMA, "inst", "nan"), (0, "a", DRAM, "byte", 8)]))
    assert record["flop"]["total"] is None
    assert "any counter where its collection failed" in record["unavailable"][FFMA]


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


SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on"
SMSP_CYCLES = (0, "a", "smsp__cycles_elapsed.avg", "cycle", 1000)


@pytest.mark.parametrize("unit_name", ["inst/cycle", "inst", ""])
def test_derived_metrics_are_rates_and_not_doubled_again(load, unit_name):
    rows = [(0, "a", f"derived__{SASS.format('ffma')}_x2", unit_name, "40.50"), SMSP_CYCLES]
    assert load(table(rows))["flop"]["total"] == 40_500


def test_derived_half_is_brought_to_the_upper_bound(load):
    # ncu's sections: x1, x1, x2 of old, x2, x2, x4 today. hadd 10, hmul 20, hfma 2000 a cycle.
    rate = ".sum.per_cycle_elapsed"
    old = (("hadd", rate, 10), ("hmul", rate, 20), ("hfma", "_x2", 4000))
    new = (("hadd", "_x2", 20), ("hmul", "_x2", 40), ("hfma", "_x4", 8000))
    for form in (old, new):
        rows = [
            (0, "a", ("derived__" if "x" in end else "") + SASS.format(op) + end, "inst/cycle", v)
            for op, end, v in form
        ]
        # (2 * 10 + 2 * 20 + 4 * 2000) * 1000 cycles
        assert load(table([*rows, SMSP_CYCLES]))["flop"]["sass_fp16"] == 8_060_000


PEAK = SASS.format("ffma").replace("smsp", "sm")


@pytest.mark.parametrize(
    ("name", "unit_name", "what"),
    [
        (f"{PEAK}.sum.peak_sustained", "inst/cycle", "a peak"),
        (f"derived__{PEAK}_x2", "inst/cycle", "a peak"),
        (f"{SASS.format('ffma')}.sum.pct_of_peak_sustained_elapsed", "%", "a percentage"),
        (f"{SASS.format('ffma')}.avg", "inst", "an average"),
        (f"{SASS.format('ffma')}.max", "inst", "the largest"),
        (f"{SASS.format('ffma')}.sum.per_cycle_active", "furlong", "a rate over something else"),
    ],
)
def test_a_form_that_gives_no_count_is_no_zero(load, name, unit_name, what):
    alone = (0, "a", name, unit_name, 45)
    record = load(table([(0, "a", FADD, "inst", 10), alone]))
    assert record["flop"] == {"sass_fp32": None, "total": None}
    assert record["reasons"]["flop.total"].startswith(f"{name} stands there only as {what}")
    assert FFMA in record["reasons"]["flop.total"]
    # Beside the count it is of no interest.
    record = load(table([(0, "a", FADD, "inst", 10), alone, (0, "a", FFMA, "inst", 7)]))
    assert record["flop"]["total"] == 24
    assert record["unavailable"] == {}


def test_a_peak_of_what_was_not_counted_is_a_roof(load):
    peak = (0, "a", PEAK.replace("ffma", "dfma") + ".sum.peak_sustained", "inst/cycle", 45)
    assert load(table([(0, "a", FFMA, "inst", 7), peak]))["flop"]["total"] == 14
    reason = load(table([peak]))["reasons"]["flop.total"]
    assert "no usable FLOP counter" in reason and SASS.format("dfma") in reason


def test_an_average_of_zero_is_none_done(load):
    rows = [(0, "a", FADD, "inst", 10), (0, "a", f"{SASS.format('ffma')}.avg", "inst", 0)]
    assert load(table(rows))["flop"]["total"] == 10


@pytest.mark.parametrize("op", ["hadd2", "hfma2", "dfma2", "qfma4"])
def test_instructions_of_unknown_flop(load, op):
    row = (0, "a", f"{SASS.format(op)}.sum", "inst", 500)
    record = load(table([(0, "a", FFMA, "inst", 7), row]))
    assert record["flop"]["total"] is None
    assert f"one {op} instruction" in record["reasons"]["flop.total"]


def test_sums_over_kinds_of_instructions(load):
    stem = "smsp__sass_thread_inst_executed_op"
    mixed = (0, "a", f"{stem}s_fadd_fmul_ffma_pred_on.sum", "inst", 500)
    record = load(table([mixed]))
    assert record["flop"]["total"] is None
    assert "fadd, fmul and ffma" in record["reasons"]["flop.total"]
    assert load(table([mixed, (0, "a", FFMA, "inst", 7)]))["flop"]["total"] == 14
    every = (0, "a", f"{stem}_fp32_pred_on.sum", "inst", 500)
    assert "of every kind" in load(table([every]))["reasons"]["flop.total"]
    # What fp32 did is not known, so 4 FLOP of fp16 are no total.
    record = load(table([every, (0, "a", half("hfma"), "inst", 1)]))
    assert record["flop"] == {"sass_fp16": 4, "sass_fp32": None, "total": None}
    none = (0, "a", f"{stem}_fp32_pred_on.sum", "inst", 0)
    assert load(table([none, (0, "a", half("hfma"), "inst", 1)]))["flop"]["total"] == 4


FP16_KINDS = "smsp__sass_thread_inst_executed_op_fp16_pred_on"


def test_half_instructions_of_every_kind_are_in_no_total_and_that_is_said(load):
    # As in the study's list of metrics; ncu adds the other roll-ups.
    rows = [(0, "a", FFMA, "inst", 10)]
    rows += [(0, "a", f"{FP16_KINDS}.{end}", "inst", 10**9) for end in ("avg", "max", "min", "sum")]
    record = load(table(rows))
    assert record["flop"] == {"sass_fp32": 20, "total": 20}
    (warning,) = record["warnings"]
    assert warning.startswith(f"fp16 instructions of CUDA cores are in no total: {FP16_KINDS}.sum")
    assert "hadd, hmul and hfma" in warning
    assert record["reasons"]["flop.sass_fp16"] in warning
    assert "every kind" in record["unavailable"][f"{FP16_KINDS}.sum"]
    assert "flop.total" not in record["reasons"]


@pytest.mark.parametrize("value", [0, "n/a"])
def test_no_half_instructions_are_no_news(load, value):
    record = load(table([(0, "a", FFMA, "inst", 10), (0, "a", f"{FP16_KINDS}.sum", "inst", value)]))
    assert (record["flop"]["total"], record["warnings"]) == (20, [])
    assert "flop.sass_fp16" not in record["reasons"]


def test_half_instructions_of_every_kind_beside_those_that_are_counted(load):
    rows = [(0, "a", half("hfma"), "inst", 10), (0, "a", f"{FP16_KINDS}.sum", "inst", 12)]
    record = load(table(rows))
    assert record["flop"] == {"sass_fp16": 40, "total": 40}
    assert not any("in no total" in text for text in record["warnings"])


def test_the_reason_names_the_counter_at_fault(load):
    rows = [(0, "a", FADD, "inst", 10), (0, "a", FFMA, "inst/cycle", 5)]
    assert load(table(rows))["reasons"]["flop.total"].startswith(FFMA)


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


@pytest.mark.parametrize(
    ("unit_name", "value"),
    [("/ns", "2.5"), ("1/ns", "2.5"), ("op/nsecond", "2.5"), ("Gop/s", "2.5"), ("1/second", 25e8)],
)
def test_tensor_operations_a_second(load, unit_name, value):
    name = tensor("src_bf16_dst_fp32") + ".per_second"
    record = load(table([(0, "a", name, unit_name, value), (0, "a", TIME, "us", "4.00")]))
    # 2.5e9 a second, for 4e-6 s
    assert record["flop"]["tensor_bf16"] == pytest.approx(10_000)


def test_tensor_operations_a_cycle(load):
    rate = (0, "a", tensor("src_fp16") + ".per_cycle_elapsed", "1/cycle", "2.50")
    sass = (0, "a", FFMA, "inst", 7)
    assert load(table([rate, sass, SMSP_CYCLES]))["flop"]["total"] == 2514
    unknown = load(table([rate, sass]))
    assert unknown["flop"]["total"] is None
    assert "over how many cycles" in unknown["reasons"]["flop.total"]
    exact = load(table([rate, (0, "a", tensor("src_fp16"), "", 2501), SMSP_CYCLES]))
    assert exact["flop"]["total"] == 2501


@pytest.mark.parametrize(
    "name",
    [
        tensor("src_fp16").replace(".sum", ".avg"),
        tensor("src_fp16") + ".peak_sustained",
        tensor("src_fp16") + ".per_second",  # in no unit
        tensor("something_new"),
    ],
)
def test_tensor_operations_that_cannot_be_used(load, name):
    rows = [(0, "a", name, "", 1000), (0, "a", FFMA, "inst", 7), (0, "a", TIME, "ns", 5)]
    record = load(table(rows))
    assert record["flop"]["total"] is None
    assert name in record["reasons"]["flop.total"]


def test_other_roll_ups_beside_the_sum_change_nothing(load):
    stem = tensor("src_fp16").removesuffix(".sum")
    ends = ("avg", "max", "min", "sum", "sum.peak_sustained")
    rows = [(0, "a", f"{stem}.{end}", "", 1000) for end in ends]
    rows.append((0, "a", tensor("src_fp16_dst_fp32").replace(".sum", ".avg"), "", 1000))
    record = load(table(rows))
    assert record["flop"] == {"tensor_fp16": 1000, "total": 1000}
    assert record["unavailable"] == {}


def test_integer_operations_that_cannot_be_used_are_no_flop(load):
    rows = [(0, "a", tensor("src_int8").replace(".sum", ".avg"), "", 9), (0, "a", FFMA, "inst", 7)]
    record = load(table(rows))
    assert (record["flop"]["total"], record["op"]) == (14, {"tensor_int8": None})


def test_subdivisions_that_overlap(load):
    off, gmma = tensor("src_fp16_sparsity_off"), tensor("op_hgmma_src_fp16")
    record = load(table([(0, "a", off, "", 100), (0, "a", gmma, "", 100)]))
    assert record["flop"]["total"] is None
    assert "may both count the same" in record["reasons"]["flop.total"]
    assert load(table([(0, "a", off, "", 100), (0, "a", gmma, "", 0)]))["flop"]["total"] == 100


BUSY = (
    "sm__inst_executed_pipe_tensor.sum",
    "sm__inst_executed_pipe_tensor.avg",
    "sm__inst_executed_pipe_tensor.sum.per_cycle_elapsed",
    "sm__inst_executed_pipe_tensor_subpipe_hmma.sum",
    "sm__inst_executed_pipe_tensor_op_hmma_v2.sum",
    "sm__inst_executed_pipe_fp64_op_dmma.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "smsp__pipe_tensor_op_hmma_cycles_active.sum",
    "derived__smsp__inst_executed_pipe_tensor_x512",
    "smsp__sass_inst_executed_op_shared_gmma.sum",
)


def busy_rows(name, value, sources=("fp16",)):
    unit_name = "inst/cycle" if name.endswith("per_cycle_elapsed") else ""
    return [
        (0, "a", FFMA, "inst", 7),
        (0, "a", DRAM, "byte", 7),
        *((0, "a", tensor(f"src_{source}"), "", 0) for source in sources),
        SMSP_CYCLES,
        (0, "a", name, unit_name, value),
    ]


@pytest.mark.parametrize("sources", [(), ("fp16",)])
@pytest.mark.parametrize("name", BUSY)
def test_tensor_cores_at_work_that_no_operations_were_counted_of(load, name, sources):
    record = load(table(busy_rows(name, 3, sources)))
    assert record["flop"]["tensor"] is None
    assert record["flop"]["total"] is None
    assert record["intensity"] is None
    assert name in record["reasons"]["flop.total"]
    idle = load(table(busy_rows(name, 0, sources)))
    assert (idle["flop"]["total"], idle["intensity"]) == (14, 2)


@pytest.mark.parametrize(
    "name",
    [
        # HFMA2.MMA: packed half instructions on the tensor cores' pipe, which the SASS counters see
        "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum",
        "sm__inst_executed_pipe_tensor.sum.peak_sustained",
        "sm__pipe_tensor_cycles_active.avg.peak_sustained",
        "derived__sm__inst_executed_pipe_tensor_x512",
        "sm__inst_executed_pipe_uniform.sum",
    ],
)
def test_what_is_no_sign_of_tensor_cores(load, name):
    assert load(table(busy_rows(name, 3)))["flop"]["total"] == 14


def test_integer_tensor_instructions_are_no_flop(load):
    record = load(table(busy_rows("sm__inst_executed_pipe_tensor_op_imma.sum", 3)))
    assert (record["flop"]["total"], record["op"]) == (14, {"tensor_int": None})


def test_a_launch_whose_operations_are_counted_explains_its_pipe(load):
    rows = [
        (index, "k", name, "", value)
        for index, ops in ((0, 100), (1, 0))
        for name, value in ((tensor("src_fp16"), ops), (PIPE, 1 - index))
    ]
    assert load(table(rows))["flop"]["total"] == 100
    # The second launch worked on another type.
    both = [(index, k, n, u, 1 if n == PIPE else v) for index, k, n, u, v in rows]
    assert load(table(both))["flop"]["total"] is None


def test_operations_of_every_type_overrule_the_pipe(load):
    # Every tensor counter of compute capability 9.0 is there and 0: HFMA2.MMA kept the pipe busy.
    sources = ("bf16_dst_fp32", "fp16", "tf32_dst_fp32", "fp8", "fp64")
    assert load(table(busy_rows(PIPE, 3, sources)))["flop"]["total"] == 14
    assert load(table(busy_rows(PIPE, 3, sources[:-1])))["flop"]["total"] is None


def test_volta_tensor_instructions_a_cycle(load):
    name = f"{PIPE}.per_cycle_elapsed"
    text = table([(0, "a", name, "inst/cycle", "2.50"), SMSP_CYCLES], COLUMNS_12)
    record = load(text, gpu="V100", compute_capability="7.0")
    assert record["flop"]["total"] == 2500 * 512


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn", True),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", True),
        ("volta_h884gemm_128x128_ldg8_nn", True),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x4_nn_align8", True),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32", True),
        ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc", True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", True),
        ("void pytorch_flash::flash_fwd_kernel<T1>(T2)", True),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_g1_ffma_aligna4", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(T1::Params)", False),
        ("volta_sgemm_128x64_nn", False),
        ("turing_int8_i8816gemm_int8_128x128_ldg16_stages_64x1_tn", False),
        ("void at::vectorized_elementwise_kernel<4, at::CUDAFunctor_add<float>>(int)", False),
    ],
)
def test_kernel_names_that_tell_of_tensor_cores(load, name, told):
    rows = [
        (ident, kernel, metric, unit_name, value)
        for ident, (kernel, ffma) in enumerate(((name, 7), ("copy", 3)))
        for metric, unit_name, value in ((FFMA, "inst", ffma), (DRAM, "byte", 5), (TIME, "s", 1))
    ]
    record = load(table(rows))
    assert record["flop"]["sass_fp32"] == 20
    if not told:
        assert (record["flop"]["total"], record["intensity"], record["flop_per_s"]) == (20, 2, 10)
        assert record["unavailable"] == {}
        return
    assert (record["flop"]["tensor"], record["flop"]["total"]) == (None, None)
    assert (record["intensity"], record["flop_per_s"]) == (None, None)
    reason = record["reasons"]["flop.total"]
    assert "by their names kernels such as" in reason and name[:40] in reason
    assert any(reason.endswith(why) for why in record["unavailable"].values())
    assert {k["name"]: k["flop"]["total"] for k in record["kernels"]} == {name: None, "copy": 6}
    # A counter of their pipe says that they did nothing.
    counted = load(table([*rows, (0, name, PIPE, "inst", 0), (1, "copy", PIPE, "inst", 0)]))
    assert counted["flop"]["total"] == 20
    # One that has no value says nothing.
    lacking = load(table([*rows, (0, name, PIPE, "inst", "n/a"), (1, "copy", PIPE, "inst", 0)]))
    assert lacking["flop"]["total"] is None


AMPERE_BF16 = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
TF32_GEMM = "cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4"


@pytest.mark.parametrize(
    ("name", "chip", "sources", "total"),
    [
        # The type that the name tells is in the file, with the 0 that was counted.
        (AMPERE_BF16, "8.0", {"bf16_dst_fp32": 0}, 14),
        (AMPERE_BF16, "", {"bf16_dst_fp32": 0}, 14),
        # Another is.
        (AMPERE_BF16, "8.0", {"fp16_dst_fp32": 0}, None),
        (AMPERE_BF16, "", {"fp16_dst_fp32": 0}, None),
        (AMPERE_BF16, "9.0", {"fp16": 0, "tf32_dst_fp32": 0}, None),
        # What integers did or did not do tells nothing of bf16.
        (AMPERE_BF16, "8.0", {"fp16_dst_fp32": 0, "int8": 100}, None),
        (AMPERE_BF16, "8.0", {"fp16_dst_fp32": 0, "int8": "n/a"}, None),
        # Operations of the launch were counted: 100 + 14.
        (AMPERE_BF16, "8.0", {"fp16_dst_fp32": 100}, 114),
        # fp16 that adds up in fp16 has a counter of its own on an A100.
        ("ampere_h16816gemm_128x128_nn", "8.0", {"fp16_dst_fp32": 0}, None),
        ("ampere_h16816gemm_128x128_nn", "8.0", {"fp16_dst_fp32": 0, "fp16_dst_fp16": 0}, 14),
        # A name without a type: any of the chip's.
        (TF32_GEMM, "9.0", {"fp16": 0, "bf16_dst_fp32": 0, "tf32_dst_fp32": 0}, None),
        (
            TF32_GEMM,
            "9.0",
            dict.fromkeys(("fp16", "bf16_dst_fp32", "tf32_dst_fp32", "fp8", "fp64"), 0),
            14,
        ),
        (TF32_GEMM, "", {"fp16": 0}, None),
        # Turing counts all of them as one.
        ("turing_fp16_s1688gemm_fp16_nn", "7.5", {"fp16_bf16_tf32_dst_fp32": 100}, 114),
    ],
)
def test_a_kernel_of_a_type_that_nobody_counted(load, name, chip, sources, total):
    cells = {"ID": "0", "Kernel Name": name, "CC": chip, "Metric Unit": ""}
    values = {FFMA: 7, DRAM: 7} | {tensor(f"src_{key}"): count for key, count in sources.items()}
    units = {FFMA: "inst", DRAM: "byte"}
    rows = [
        cells | {"Metric Name": key, "Metric Unit": units.get(key, ""), "Metric Value": str(value)}
        for key, value in values.items()
    ]
    record = load(table(rows))
    assert record["flop"]["total"] == total
    assert record["intensity"] == (None if total is None else total / 7)
    if total is None:
        (missing,) = [name for name in record["unavailable"] if "int8" not in name]
        assert missing.startswith("sm__ops_path_tensor_src_")
        assert missing not in values
        assert record["reasons"]["flop.total"].startswith(missing)


STUDY = Path(__file__).parents[2] / "harness/results/h200"


@pytest.mark.parametrize("run", ["resnet18-b256", "resnet18-b256-no-tf32"])
def test_the_study_s_own_logs_have_a_total_only_without_tensor_cores(load, run):
    text = gzip.decompress((STUDY / run / "ncu.csv.gz").read_bytes()).decode()
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    _, *rows = csv.DictReader(lines[start:])
    fadd, fmul, ffma = (sum(int(row[name].replace(",", "")) for row in rows) for name in SASS_FP32)
    record = load(text)
    assert record["flop"]["sass_fp32"] == fadd + fmul + 2 * ffma
    if run.endswith("no-tf32"):
        assert record["flop"]["total"] == fadd + fmul + 2 * ffma
        return
    assert (record["flop"]["total"], record["intensity"], record["flop_per_s"]) == (None,) * 3
    why = record["unavailable"]["sm__ops_path_tensor_src_tf32_dst_fp32.sum"]
    assert "use tensor cores" in why
    assert record["reasons"]["flop.total"].endswith(why)


@pytest.mark.parametrize(
    ("pipe", "name", "total"),
    [
        ("sm__inst_executed_pipe_tensor_op_hmma.sum", AMPERE_BF16, 14),
        # HMMA instructions are no warp group's, and a count of these is not one of HMMA.
        ("sm__inst_executed_pipe_tensor_op_hmma.sum", "nvjet_hsh_128x256_64x4_h_bz_TNT", None),
        ("smsp__sass_inst_executed_op_shared_gmma.sum", AMPERE_BF16, None),
        ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", AMPERE_BF16, 14),
    ],
)
def test_an_idle_pipe_explains_only_the_kernels_that_it_serves(load, pipe, name, total):
    record = load(table([(0, name, FFMA, "inst", 7), (0, name, pipe, "", 0)]))
    assert record["flop"]["total"] == total


def test_runs_in_different_orders_know_launches_by_their_kernels(load):
    flop = [(i, name, FFMA, "inst", 7) for i, name in enumerate((AMPERE_BF16, "copy"))]
    for source, total in (("bf16_dst_fp32", 128), ("fp16_dst_fp32", None)):
        ops = [
            (i, name, tensor(f"src_{source}"), "", 100 * (name != "copy" and total is not None))
            for i, name in enumerate(("copy", AMPERE_BF16))
        ]
        assert load(table(flop), table(ops))["flop"]["total"] == total


@pytest.mark.parametrize(
    ("chip", "said"), [("9.0", None), ("8.0", "compute capability 8.0"), ("", "a GPU that is not")]
)
def test_the_scale_of_tensor_operations_is_known_of_one_chip(load, chip, said):
    row = {"ID": "0", "Kernel Name": "a", "CC": chip, "Metric Name": tensor("src_tf32_dst_fp32")}
    record = load(table([row | {"Metric Value": "8"}]))
    assert record["flop"]["total"] == 8
    texts = [text for text in record["warnings"] if "--calibration" in text]
    assert len(texts) == (said is not None)
    assert all(f"count an FMA as two on {said}" in text for text in texts)
    # No operations, no scale.
    assert load(table([row | {"Metric Value": "0"}]))["warnings"] == []


def test_no_dram_writes_may_lie_in_l2(load):
    rows = [(0, "a", READ, "byte", 5), (0, "a", WRITE, "byte", 0), (0, "a", FFMA, "inst", 5)]
    record = load(table(rows))
    assert record["byte"]["dram"] == 5
    assert "may still lie there" in record["warnings"][0]
    other = [(1, "a", READ, "byte", 5), (1, "a", WRITE, "byte", 1), (1, "a", FFMA, "inst", 5)]
    assert load(table([*rows, *other]))["warnings"] == []


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
    # Work that took no time has an unknown one.
    measured = st.tuples(*[st.integers(0, 10**9)] * 2, st.integers(1, 10**9))
    values = draw(st.lists(measured, min_size=count, max_size=count))
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


NOTHING_LEFT = "no kernels|empty|no ncu output|nothing complete"


@settings(deadline=None, max_examples=30)
@given(logs(), st.booleans())
def test_any_log_cut_anywhere_gives_totals_or_a_refusal(tmp_path_factory, log, told):
    """Whether the number format is told or has to be found out from what is left."""
    text, values, locale = log
    data = text.encode()
    path = tmp_path_factory.mktemp("cut") / "x.log"
    form = ("en" if locale in ("en", "c") else "de") if told else None
    for end in range(len(data)):
        path.write_bytes(data[:end])
        try:
            record = import_files([path], number_format=form).to_dict()
        except RecordError as error:
            ambiguous = "" if told else "|reads two ways"
            assert re.search(NOTHING_LEFT + ambiguous, str(error))
        else:
            check(record, values)


# Instructions, bytes and ns. Small counts have no sign that tells how a time with one reads.
SMALL_OR_LARGE = st.integers(1, 999) | st.integers(1, 10**9)
NUMBERS = st.tuples(SMALL_OR_LARGE, SMALL_OR_LARGE, SMALL_OR_LARGE)


@st.composite
def ranks(draw):
    """A log of two processes, launch by launch in turn as drawn, and each one's values."""
    form = LOCALES[draw(st.sampled_from(sorted(LOCALES)))]
    turns = draw(st.lists(st.sampled_from("78"), min_size=1, max_size=4))
    values = {"7": [], "8": []}
    rows = []
    for process in turns:
        ident = str(len(values[process]))
        ffma, byte, spent = draw(NUMBERS)
        values[process].append((ffma, byte, spent))
        for metric, unit_name, value in (
            (FFMA, "inst", form(ffma, 0)),
            (DRAM, "byte", form(byte, 0)),
            (TIME, "usecond", form(spent / 1000, 3)),
        ):
            cells = {"ID": ident, "Process ID": process, "Kernel Name": "k", "Metric Name": metric}
            rows.append(cells | {"Metric Unit": unit_name, "Metric Value": value})
    return table(rows), values


@settings(deadline=None, max_examples=6)
@given(ranks())
def test_a_log_of_processes_cut_anywhere_gives_totals_or_a_refusal(tmp_path_factory, log):
    text, values = log
    data = text.encode()
    path = tmp_path_factory.mktemp("ranks") / "x.log"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        try:
            record = import_files([path]).to_dict()
        except RecordError as error:
            assert re.search(f"{NOTHING_LEFT}|reads two ways", str(error))
            continue
        (only, *others) = record["processes"]
        counts = {str(only): record["launches"]}
        if others:
            parts = {part["name"]: part["launches"] for part in record["by_device"]}
            counts = {p: parts[f"process {p}, device 0"] for p in map(str, record["processes"])}
        left = [value for process, count in counts.items() for value in values[process][:count]]
        assert len(left) == record["launches"]
        check(record, left)


@settings(deadline=None, max_examples=10)
@given(
    st.sampled_from(sorted(LOCALES)),
    st.lists(NUMBERS, min_size=1, max_size=3),
    st.integers(0, 1),
)
def test_runs_of_which_one_is_cut_anywhere_give_totals_or_a_refusal(
    tmp_path_factory, locale, values, cut
):
    folder = tmp_path_factory.mktemp("runs")
    form = LOCALES[locale]
    counted, moved = [], []
    for ident, (ffma, byte, spent) in enumerate(values):
        counted.append((ident, "k", FFMA, "inst", form(ffma, 0)))
        moved.append((ident, "k", DRAM, "byte", form(byte, 0)))
        moved.append((ident, "k", TIME, "usecond", form(spent / 1000, 3)))
    texts = [table(counted), table(moved)]
    paths = [folder / "0.csv", folder / "1.csv"]
    paths[1 - cut].write_text(texts[1 - cut], encoding="utf-8")
    data = texts[cut].encode()
    for end in range(len(data)):
        paths[cut].write_bytes(data[:end])
        try:
            record = import_files(paths).to_dict()
        except RecordError as error:
            whole = "not runs of one workload|as a run of the same program it adds nothing"
            assert re.search(f"{NOTHING_LEFT}|reads two ways|{whole}", str(error))
            continue
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


def test_a_terminal_sees_how_much_was_read(tmp_path, monkeypatch):
    monkeypatch.setattr(_Watched, "_DELAY", 0.0)
    path = tmp_path / "x.csv"
    # Three blocks of a mebibyte and what the table takes.
    path.write_text("loss 0.70\n" * 314_573 + table([(0, "a", FFMA, "inst", 5)]))
    ours, theirs = os.openpty()
    tty.setraw(theirs)  # line ends as they were written
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        assert import_files([path]).whole.flop["total"] == 10
    shown = b""
    while not shown.endswith(b" \r"):
        shown += os.read(ours, 4096)
    os.close(ours)
    size = path.stat().st_size
    told = [min(100 * (block << 20) / size, 100) for block in (1, 2, 3, 4)]
    shares = "".join(f"\rx.csv: {share:3.0f}%" for share in told)
    assert shown.decode() == f"{shares}\r{' ' * 11}\r"  # and the line is wiped


def test_a_file_sees_nothing_of_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_Watched, "_DELAY", 0.0)
    path = tmp_path / "x.csv"
    path.write_text(table([(0, "a", FFMA, "inst", 5)]))
    import_files([path])
    assert capsys.readouterr().err == ""


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


@pytest.mark.parametrize(
    ("kernel", "name", "message"),
    [
        ("gemm", "src_fp16", "no kernel in the files has the calibration's name 'gemm'"),
        ("void gemm<4>(int)", "", "instruction shape unknown"),
    ],
)
def test_calibrations_that_settle_nothing(tmp_path, capsys, kernel, name, message):
    path, calibration = tmp_path / "x.csv", tmp_path / "c.json"
    counter = tensor(name) if name else PIPE
    path.write_text(table([(0, "void gemm<4>(int)", counter, "", 8), (1, "b", counter, "", 5)]))
    calibration.write_text(json.dumps({"kernel": kernel, "exact_flops": 16}))
    assert main(["import-ncu", str(path), "--calibration", str(calibration)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert ("'void gemm<4>(int)'" in error) and "nan" not in error


def test_a_file_of_the_calibration_alone_has_no_figures(tmp_path, capsys):
    path, calibration = tmp_path / "x.csv", tmp_path / "c.json"
    rows = [(0, "gemm", tensor("src_fp16"), "", 8), (0, "gemm", DRAM, "byte", 5)]
    path.write_text(table(rows))
    calibration.write_text(json.dumps({"kernel": "gemm", "exact_flops": 16}))
    arguments = ["import-ncu", str(path), "--json", "--calibration", str(calibration)]
    assert main(arguments) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["tensor_scale"] == 2
    assert record["flop"] == {"total": None}
    assert record["byte"]["dram"] is None
    assert "no kernel but gemm" in record["reasons"]["flop.total"]
    assert "no kernel but gemm" in record["reasons"]["byte.dram"]


def test_meaning_of_names_without_one():
    assert meaning("sm__throughput.avg", "%") is None


class FakeMetric:
    """NVIDIA's metric as documented: ``as_double`` is 0. where there is no number."""

    ValueKind_UNKNOWN, ValueKind_ANY, ValueKind_STRING, ValueKind_FLOAT = range(4)
    ValueKind_DOUBLE, ValueKind_UINT32, ValueKind_UINT64 = range(4, 7)

    def __init__(self, value, unit="", kind=None):
        self._value, self._unit = value, unit
        numbers = {int: self.ValueKind_UINT64, float: self.ValueKind_DOUBLE}
        self._kind = numbers.get(type(value), self.ValueKind_UNKNOWN) if kind is None else kind

    def has_value(self):
        return self._value is not None

    def kind(self):
        return self._kind

    def as_double(self):
        return float(self._value) if isinstance(self._value, int | float) else 0.0

    def unit(self):
        return self._unit


class FakeDomain:
    """Range names come sorted; the index of a pushed range follows the stack."""

    def __init__(self, pushed, started=()):
        self._pushed, self._started = pushed, started

    def push_pop_ranges(self):
        return tuple(sorted(self._pushed))

    def push_pop_range(self, index):
        name = self._pushed[index]
        return type("Range", (), {"name": lambda self: name})()

    def start_end_ranges(self):
        return tuple(sorted(self._started))


class FakeState:
    def __init__(self, *domains):
        self._domains = domains

    def domains(self):
        return tuple(range(len(self._domains)))

    def domain_by_id(self, ident):
        return self._domains[ident]


class FakeAction:
    """A launch; ``name`` without its argument is the function's, with no template arguments."""

    NameBase_FUNCTION, NameBase_MANGLED, NameBase_DEMANGLED = range(3)
    METRICS: ClassVar = {
        FFMA: FakeMetric(10**6, "inst"),
        DRAM: FakeMetric(math.nan, "byte"),
        TIME: FakeMetric(2000.0, "ns"),
        "device__attribute_compute_capability_major": FakeMetric(9),
        "device__attribute_compute_capability_minor": FakeMetric(0),
    }

    def __init__(self, demangled="void gemm<4>(float *)", state=None, **more):
        self._demangled, self._state = demangled, state
        self._metrics = self.METRICS | more

    def name(self, base=NameBase_FUNCTION):
        return self._demangled if base == self.NameBase_DEMANGLED else "gemm"

    def nvtx_state(self):
        return self._state

    def metric_names(self):
        return tuple(self._metrics)

    def metric_by_name(self, name):
        return self._metrics.get(name)


class FakeReport:
    """NVIDIA's package as far as it is used: a report of one range."""

    def __init__(self, *actions):
        self._actions = actions

    def load_report(self, path):
        return self

    def num_ranges(self):
        return 1

    def range_by_idx(self, index):
        return self

    def num_actions(self):
        return len(self._actions)

    def action_by_idx(self, index):
        return self._actions[index]


def test_the_stand_in_for_a_report_has_nothing_that_nvidia_s_package_lacks():
    package = pytest.importorskip("ncu_report", reason="needs ncu-report")
    pairs = (
        (FakeMetric, package.IMetric),
        (FakeDomain, package.INvtxDomainInfo),
        (FakeState, package.INvtxState),
        (FakeAction, package.IAction),
    )
    for ours, theirs in pairs:
        names = {name for name in vars(ours) if not name.startswith("_")} - {"METRICS"}
        assert names <= set(dir(theirs))
    kinds = [kind for kind in dir(package.IMetric) if kind.startswith("ValueKind_")]
    assert set(kinds) == {name for name in vars(FakeMetric) if name.startswith("ValueKind_")}
    assert "return ``0.``" in package.IMetric.as_double.__doc__
    assert "NameBase_FUNCTION" in package.IAction.name.__doc__
    assert not hasattr(package.IAction, "process_id")


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Imports a report of launches, with other files beside it."""

    def run(*actions, beside=()):
        monkeypatch.setitem(sys.modules, "ncu_report", FakeReport(*actions))
        path = tmp_path / "x.ncu-rep"
        path.write_bytes(b"NVR\0")
        others = [tmp_path / f"{index}.csv" for index in range(len(beside))]
        for other, text in zip(others, beside, strict=True):
            other.write_text(text)
        return import_files([path, *others]).to_dict(kernels=True)

    return run


def test_a_report(report):
    record = report(FakeAction(), FakeAction())
    assert record["launches"] == 2
    assert record["flop"]["total"] == 4_000_000
    assert record["time_s"] == pytest.approx(4e-6)
    assert record["byte"]["dram"] is None
    assert record["compute_capability"] == ["9.0"]


@pytest.mark.parametrize(
    "metric",
    [
        FakeMetric(None, "inst", FakeMetric.ValueKind_UINT64),
        FakeMetric(None, "inst", FakeMetric.ValueKind_ANY),
        FakeMetric("(!) n/a", "inst", FakeMetric.ValueKind_STRING),
    ],
)
def test_a_metric_of_a_report_without_a_number_is_no_zero(report, metric):
    record = report(FakeAction(), FakeAction(**{FADD: metric}))
    assert record["flop"]["total"] is None
    assert FADD in record["unavailable"]
    # Nor is a device that is not told device 0.
    ids = {"launch__device_id": FakeMetric(None, "", FakeMetric.ValueKind_UINT64)}
    assert report(FakeAction(**ids))["devices"] == []
    assert report(FakeAction(launch__device_id=FakeMetric(3)))["devices"] == [3]


def test_kernels_of_a_report_keep_their_template_arguments(report):
    names = ["void gemm<4>(float *)", "void gemm<8>(float *)"]
    record = report(*map(FakeAction, names))
    assert [kernel["name"] for kernel in record["kernels"]] == names
    # ncu prints the same in a log, so that the two pair.
    log = table([(i, name, tensor("src_fp16"), "", 5) for i, name in enumerate(names)])
    both = report(*map(FakeAction, names), beside=[log])
    assert (both["launches"], both["flop"]["total"]) == (2, 4_000_010)
    # A range has no demangled name.
    assert report(FakeAction(""))["kernels"][0]["name"] == "gemm"


def test_a_report_says_that_it_does_not_tell_processes(report):
    record = report(FakeAction())
    assert record["processes"] == []
    assert any("does not tell processes apart" in text for text in record["warnings"])


def test_ranges_of_a_report(report):
    # "b" was pushed before "a", and all of it lies in a range that was started.
    inner = FakeState(FakeDomain(["b", "a"], ["epoch"]))
    outer = FakeState(FakeDomain(["c"], ["epoch"]), FakeDomain([]))
    record = report(FakeAction(state=inner), FakeAction(state=outer), FakeAction(state=outer))
    assert [(part["name"], part["launches"]) for part in record["ranges"]] == [("b", 1), ("c", 2)]


class TestWhatUsersHand:
    """Logs that shells, editors and the desktop application leave: read right, or refused."""

    ROWS: ClassVar = table([(0, "a", FFMA, "inst", "2,000"), (0, "a", DRAM, "byte", "16,000")])
    LATER: ClassVar = ROWS.replace('"7","python3"', '"8","python3"')  # another process
    CHINESE: ClassVar = "\u8bad\u7ec3\u5f00\u59cb\uff0c\u7b2c\u4e00\u8f6e\r\n" * 40

    # Encodings

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            *itertools.product(
                ("utf-8", "utf-8-sig", "utf-16", "utf-16-le"),
                ("utf-8", "utf-8-sig", "utf-16", "utf-16-le"),
            ),
            ("utf-16-be", "utf-8"),
        ],
    )
    def test_a_log_that_another_shell_appended_to(self, load, first, second):
        record = load(self.ROWS.encode(first) + self.LATER.encode(second))
        assert record["launches"] == 2
        assert record["processes"] == [7, 8]
        assert record["flop"]["total"] == 8000  # 2 * 2000 FMA, 2 FLOP each
        assert record["byte"]["dram"] == 32000

    def test_an_encoding_that_changes_where_blocks_meet(self, load):
        """The appended part starts at any place around the first block's end."""
        size = 1 << 20
        for before in range(size - 70, size + 6, 5):
            rows = self.ROWS.encode("utf-16")
            filler = b"." * (before - len(self.LATER.encode()) - 1) + b"\n"
            record = load(self.LATER.encode() + filler + rows)
            assert record["flop"]["total"] == 8000
            filler = ("." * ((before - len(rows)) // 2 - 1) + "\n").encode("utf-16-le")
            assert load(rows + filler + self.LATER.encode())["flop"]["total"] == 8000

    def test_utf_16_without_a_mark_that_starts_with_other_scripts(self, load):
        record = load((self.CHINESE + self.ROWS).encode("utf-16-le"))
        assert record["flop"]["total"] == 4000
        record = load((self.CHINESE + self.ROWS + self.CHINESE + self.LATER).encode("utf-16"))
        assert record["flop"]["total"] == 8000

    @pytest.mark.parametrize("place", [0, 1, 2, 3])
    @pytest.mark.parametrize("text", [b"loading\0done\n", b"\0" * 600 + b"\n", b"\0\0\n"])
    def test_zero_bytes_between_rows(self, load, place, text):
        lines = self.ROWS.encode().splitlines(keepends=True)
        record = load(b"".join([*lines[:place], text, *lines[place:]]))
        assert record["flop"]["total"] == 4000
        assert record["byte"]["dram"] == 16000

    def test_a_zero_byte_inside_a_number_is_damage(self, load):
        assert "not a number" in refusal(load, self.ROWS.encode().replace(b"2,000", b"2,\x0000"))

    def test_windows_1252_inside_a_row(self, load):
        text = table(
            [
                (0, "gr\u00f6\u00dfe", FFMA, "inst", "2\u00a0000"),
                (0, "gr\u00f6\u00dfe", TIME, "\u00b5s", "12.50"),
            ]
        )
        for encoding in ("utf-8", "cp1252"):
            record = load(text.encode(encoding))
            assert record["flop"]["total"] == 4000
            assert record["time_s"] == pytest.approx(12.5e-6)
            assert record["kernels"][0]["name"] == "gr\u00f6\u00dfe"

    def test_what_is_no_text_is_refused_with_advice(self, load):
        assert "ncu --csv --log-file" in refusal(load, bytes(range(256)) * 16)
        assert "a line of over" in refusal(load, b"\0" * (1 << 25))

    # Cells without a number

    @pytest.mark.parametrize(
        ("cell", "reason"),
        [
            *((cell, "n/a in the file") for cell in ("#N/A", "n.a.", "n/a*", "[n/a]", "<N/A>")),
            *((cell, "n/a in the file") for cell in ("No data", "(Not Available)", "\u2014", "?")),
            *((cell, "NaN") for cell in ("1.#QNAN", "-1.#IND", "1.#QNAN00", "-nan(ind)", "nan")),
            *((cell, "infinite") for cell in ("1.#INF", "-inf", "1.#INF00")),
            *((cell, f"{cell!r} in the file") for cell in ("error", "overflow")),
            *((cell, "below zero") for cell in ("-1", "-1,000", "-0.5")),
            *((cell, "2^63 or more") for cell in ("18446744073709551615", "9223372036854775808")),
            ("18,446,744,073,709,550,616", "2^63 or more"),
        ],
    )
    def test_a_cell_without_a_count(self, load, cell, reason):
        rows = [(0, "a", FFMA, "inst", cell), (0, "a", DRAM, "byte", "4,000")]
        rows += [(1, "b", FFMA, "inst", "1,000"), (1, "b", DRAM, "byte", "4,000")]
        record = load(table(rows))
        assert record["flop"]["total"] is None
        assert reason in record["unavailable"][FFMA]
        assert "1 of 2 launches" in record["unavailable"][FFMA]
        assert record["byte"]["dram"] == 8000
        assert record["intensity"] == 0.5  # launch 1 alone: 2000 FLOP over 4000 B

    def test_impossible_bytes(self, load):
        rows = [(0, "a", FFMA, "inst", "1,000"), (0, "a", DRAM, "Kbyte", "-4.00")]
        record = load(table(rows))
        assert record["byte"]["dram"] is None
        assert record["intensity"] is None
        # 1e16 Kbyte is 1e19 B, more than 2^63 = 9.2e18; 9e15 Kbyte is not.
        rows[1] = (0, "a", DRAM, "Kbyte", "10,000,000,000,000,000.00")
        assert load(table(rows))["byte"]["dram"] is None
        rows[1] = (0, "a", DRAM, "Kbyte", "9,000,000,000,000,000.00")
        assert load(table(rows))["byte"]["dram"] == 9e18

    def test_a_cell_that_may_hold_a_number_is_refused_with_advice(self, load):
        rows = [(0, "a", FFMA, "inst", "12x4")]
        assert "export" in refusal(load, table(rows))

    # NVTX ranges

    PUSH_POP: ClassVar = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    START_STOP: ClassVar = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    TUNED: ClassVar = (("a", "trial", "b"), ("a", "b"), ("a", "b"))

    @staticmethod
    def cell(*names, domain="<default domain>"):
        """As ncu writes it."""
        none = ":none" * 6
        return "31  " + "  ".join(f'"{domain}:{name}{none}"' for name in names) + " "

    def ranges(self, load, steps, column=PUSH_POP):
        """Imports launches of 1000 FMA each; steps are (cell, kernels)."""
        rows = []
        for cell, kernels in steps:
            for kernel in kernels:
                row = {"ID": str(len(rows)), column: cell, "Kernel Name": kernel}
                rows.append(
                    row | {"Metric Name": FFMA, "Metric Unit": "inst", "Metric Value": "1000"}
                )
        columns = (*COLUMNS_15[:4], self.PUSH_POP, self.START_STOP, *COLUMNS_15[4:])
        record = load(table(rows, columns))
        found = {entry["name"]: entry["flop"]["total"] for entry in record["ranges"]}
        return found, record["steady_range"], record["warnings"]

    def test_ranges_inside_each_other(self, load):
        expected = {"step_0": 6000, "step_1": 4000, "step_2": 4000}
        warning = "step_0: kernel set differs from later ranges (autotune or warm-up)"
        for outer, inner in ((("train",), ()), ((), ("forward",)), (("fit", "train"), ("mm",))):
            steps = [
                (self.cell(*outer, f"step_{index}", *inner), kernels)
                for index, kernels in enumerate(self.TUNED)
            ]
            assert self.ranges(load, steps) == (expected, "step_1", [warning])

    def test_launches_outside_the_steps(self, load):
        steps = [(self.cell("train", f"s{i}"), kernels) for i, kernels in enumerate(self.TUNED)]
        steps = [("", ["init"]), (self.cell("train"), ["zero"]), *steps]
        found, steady, _ = self.ranges(load, steps)
        assert found == {"s0": 6000, "s1": 4000, "s2": 4000}
        assert steady == "s1"

    def test_names_with_colons(self, load):
        names = ("iteration: 0", "iteration: 1", "cub::Sum")
        steps = [(self.cell(name), ["a"]) for name in names]
        assert list(self.ranges(load, steps)[0]) == list(names)
        steps = [(self.cell(name, domain="pytorch"), ["a"]) for name in names]
        assert list(self.ranges(load, steps)[0]) == list(names)

    @pytest.mark.parametrize("form", ["{}:<default domain>:{}{}", '{}  "<default domain>:{}{}" '])
    def test_start_stop_ranges(self, load, form):
        steps = [(form.format(i, f"step:{i}", ":none" * 6), ["a"]) for i in range(2)]
        found, steady, warnings = self.ranges(load, steps, self.START_STOP)
        assert (found, steady, warnings) == ({"step:0": 2000, "step:1": 2000}, "step:0", [])

    def test_steps_that_never_settle(self, load):
        for kernels in ((("a", "t1"), ("a", "t2"), ("a",)), (("a", "t1", "t2"),)):
            steps = [(self.cell(f"step_{i}"), names) for i, names in enumerate(kernels)]
            found, steady, (warning,) = self.ranges(load, steps)
            assert len(found) == len(kernels)
            assert steady is None
            assert warning.startswith("step_0")
            assert "autotune" in warning

    def test_a_step_that_differs_later(self, load):
        kernels = (("a",), ("a",), ("a", "t1", "t2"), ("a",))
        steps = [(self.cell(f"step_{i}"), names) for i, names in enumerate(kernels)]
        _, steady, warnings = self.ranges(load, steps)
        assert steady == "step_0"
        assert warnings == ["step_2: kernel set differs from earlier ranges (autotune or warm-up)"]

    def test_the_longest_run_of_equal_steps_is_the_steady_one(self, load):
        kernels = (("w",), ("w",), ("a", "t"), ("a",), ("a",), ("a",))
        steps = [(self.cell(f"step_{i}"), names) for i, names in enumerate(kernels)]
        _, steady, (warning,) = self.ranges(load, steps)
        assert steady == "step_3"
        assert warning.startswith("step_0, step_1, step_2: ")

    def test_range_replay_does_not_show_the_kernels(self, load):
        """Each range is one launch named so, whatever ran inside."""
        steps = [(self.cell(f"step_{i}"), ["range"]) for i in range(3)]
        _, steady, (warning,) = self.ranges(load, steps)
        assert steady is None
        assert "no two ranges" in warning

    # The desktop application's export

    @staticmethod
    def export(*lines, names='"Function","add","mul"'):
        return "\n".join([names, *lines]) + "\n"

    # 2 * (2000 + 1000) FLOP, 24000 B
    GOOD: ClassVar = (f'"{FFMA} [inst]","2,000","1,000"', f'"{DRAM} [Kbyte]","16.00","8.00"')

    @pytest.mark.parametrize(
        "text",
        [
            "\n".join(('"Function","add","mul"', *GOOD)) + "\n",
            "\n".join(('"Metric Name","add","mul"', *GOOD)) + "\n",
            "\n".join(('"Function","add","mul"', *GOOD)).replace("[", "(").replace("]", ")"),
            f"Function,add,mul,\n{FFMA} [inst],2000,1000,\n{DRAM} [Kbyte],16.00,8.00,\n",
            f'"Metric Name","Metric Unit","add","mul"\n"{FFMA}","inst","2,000","1,000"\n'
            f'"{DRAM}","Kbyte","16.00","8.00"\n',
        ],
    )
    def test_spellings_of_the_table(self, load, text):
        record = load(text)
        assert record["flop"]["total"] == 6000
        assert record["byte"]["dram"] == 24000
        assert [kernel["name"] for kernel in record["kernels"]] == ["add", "mul"]

    def test_processes_and_devices_above_the_names(self, load):
        text = self.export(
            '"Device","0","1"', '"Function","add","mul"', *self.GOOD, names='"Process","5","6"'
        )
        record = load(text)
        assert record["devices"] == [0, 1]
        assert [part["flop"]["total"] for part in record["by_device"]] == [4000, 2000]

    def test_a_line_that_only_looks_like_the_table(self, load):
        noise = '"Device","0"\n"Process","5"\n'
        assert load(noise + self.ROWS)["flop"]["total"] == 4000

    @pytest.mark.parametrize(
        "row",
        [
            f'"{FFMA} [inst]","2,000","1,000","500"',
            f'"{FFMA} [inst]","2,000"',
            f'"Device","0"\n"{FFMA} [inst]","2,000","1,000"',
        ],
    )
    def test_rows_of_different_widths(self, load, row):
        text = refusal(load, self.export(row, self.GOOD[1]))
        assert "which kernel" in text
        assert "export it again" in text

    def test_a_column_without_a_kernel(self, load):
        text = self.export(f'"{FFMA}","inst","2,000"', names='"Function","","add"')
        assert "no kernel name" in refusal(load, text)

    def test_a_table_that_breaks_off(self, load):
        """What is missing makes the totals unknown, and never smaller."""
        head = self.export(self.GOOD[1], f'"{FADD} [inst]","5","5"')
        row = self.GOOD[0]
        for end in range(len(f'"{FFMA} [inst]",'), len(row)):
            record = load(head + row[:end])
            assert record["flop"]["total"] is None, row[:end]
            assert record["byte"]["dram"] == 24000
        assert load(head + row)["flop"]["total"] == 6010
        for end in (len('"smsp__sass'), len(f'"{FFMA}'), len(f'"{FFMA} [inst]"')):
            assert "breaks off" in refusal(load, head + row[:end])
        head, row = head.replace('"', ""), f"{FFMA} [inst],2000,1000"
        assert load(head + row)["flop"]["total"] is None  # 1000 can be the start of 10000
        assert load(head + row + "\n")["flop"]["total"] == 6010


class TestWhatBelongsTogether:
    """Launches, runs and ranks: what is one, what is two, and what nobody can tell."""

    WORK: ClassVar = [("a", 1000), ("b", 2000)]

    def launches(self, *lines, **cells):
        """Rows of (ID, kernel, metric, unit, value), all with the same other cells."""
        names = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
        return [dict(zip(names, map(str, line), strict=True)) | cells for line in lines]

    def test_a_label_whose_unit_changes_is_one_label(self, load):
        rows = [
            (0, "a", FFMA, "inst", 10),
            (0, "a", "Duration", "us", "10.50"),
            (0, "a", "Static Shared Memory Per Block", "Kbyte/block", "8.19"),
            (1, "b", FFMA, "inst", 20),
            (1, "b", "Duration", "ms", "3.25"),
            (1, "b", "Static Shared Memory Per Block", "byte/block", "0"),
        ]
        record = load(table(rows))
        assert record["launches"] == 2
        assert record["flop"]["total"] == 60
        assert record["time_s"] == pytest.approx(3.2605e-3)
        assert record["warnings"] == []
        assert record["unavailable"] == {}

    def test_a_label_without_a_number_does_not_break_the_file_off(self, load):
        rows = [
            (0, "a", FFMA, "inst", 10),
            (0, "a", "Duration", "us", "10.50"),
            (1, "b", FFMA, "inst", 20),
            (1, "b", "Duration", "", "n/a"),
        ]
        record = load(table(rows))
        assert record["launches"] == 2
        assert record["time_s"] is None
        assert "n/a" in record["unavailable"]["Duration"]

    def test_a_last_launch_on_another_chip_is_complete(self, load):
        old, new = {"Device": "0", "CC": "8.0"}, {"Device": "1", "CC": "12.0"}
        rows = self.launches((0, "k", READ, "byte", 1000), (0, "k", WRITE, "byte", 100), **old)
        rows += self.launches((1, "k", READ, "byte", 1000), (1, "k", WRITE, "byte", 100), **old)
        rows += self.launches(
            (2, "k", "dram__bytes_op_read.sum", "byte", 2000),
            (2, "k", "dram__bytes_op_write.sum", "byte", 200),
            **new,
        )
        record = load(table(rows))
        assert record["launches"] == 3
        assert record["byte"]["dram"] == 4400
        assert not any("breaks off" in text for text in record["warnings"])
        # A figure of the chip that is not there at all makes the total unknown.
        rows = self.launches((0, "k", FFMA, "inst", 5), (0, "k", DRAM, "byte", 7), **old)
        record = load(table(rows + self.launches((1, "k", FFMA, "inst", 5), **new)))
        assert record["launches"] == 2
        assert record["byte"]["dram"] is None

    def test_two_runs_in_one_file(self, load):
        first = one_metric(FFMA, "inst", self.WORK, process="31")
        text = refusal(load, first + one_metric(DRAM, "byte", self.WORK, process="99"))
        assert "processes 31 and 99 have different metrics" in text
        assert "each run into a file of its own" in text
        assert "called both" in refusal(load, first + one_metric(DRAM, "byte", [("x", 1)], "31"))
        wider = one_metric(DRAM, "byte", self.WORK, "31", **{"Grid Size": "(65, 1, 1)"})
        assert "both the grid" in refusal(load, first + wider)

    def test_rows_below_a_second_header(self, load):
        text = one_metric(FFMA, "inst", self.WORK)
        record = load(text + text)
        assert record["flop"]["total"] == 6000
        (warning,) = record["warnings"]
        assert "2 launches are in the file twice" in warning
        assert "ranks" in warning
        first = table([(0, "a", FFMA, "inst", 10), (0, "a", DRAM, "byte", 5)])
        record = load(first + first + table([(1, "b", FFMA, "inst", 10)]))  # and breaks off
        assert record["launches"] == 1
        assert any("1 launches are in the file twice" in text for text in record["warnings"])
        row = (0, "a", FFMA, "inst", 10)
        assert load(table([row, row]))["warnings"] == []

    def test_the_time_of_day_tells_launches_apart(self, load):
        def text(time):
            row = {"ID": "0", "Kernel Name": "k", "Metric Name": FFMA, "Metric Unit": "inst"}
            return table([row | {"Metric Value": "1,000", "Kernel Time": time}], COLUMNS_12)

        early, late = text("2019-Nov-07 13:07:05"), text("2019-Nov-07 13:07:45")
        for record in (load(early + late), load(early, late)):
            assert record["launches"] == 2
            assert record["flop"]["total"] == 4000
            assert "repeats of one run" in record["warnings"][0]
        assert load(early, early)["launches"] == 1

    def test_equal_files_are_never_dropped_in_silence(self, load):
        text = one_metric(FFMA, "inst", self.WORK)
        record = load(text, text)
        assert record["flop"]["total"] == 6000
        (warning,) = record["warnings"]
        assert "2 launches of run1.log are in run0.log too" in warning
        assert "add up" in warning
        assert "--cache-control" in refusal(load, text, one_metric(FFMA, "inst", [("a", 11)]))

    def test_files_that_name_no_process_are_different_ones(self, load):
        text = f'"Function","add","mul"\n"{FFMA} [inst]","2,000","1,000"\n'
        record = load(text, text)
        assert record["flop"]["total"] == 12_000
        assert [part["flop"]["total"] for part in record["by_device"]] == [6000, 6000]
        assert "processes beside each other" in record["warnings"][0]

    def test_runs_with_other_grids_are_other_work(self, load):
        text = refusal(
            load,
            one_metric(FFMA, "inst", self.WORK, **{"Grid Size": "(128, 1, 1)"}),
            one_metric(DRAM, "byte", self.WORK, **{"Grid Size": "(256, 1, 1)"}),
        )
        assert "first difference at launch 0: 'a (128, 1, 1)(256, 1, 1)'" in text
        assert "'a (256, 1, 1)(256, 1, 1)'" in text

    def test_grids_are_compared_as_numbers(self, load):
        page = (
            "[7] app@127.0.0.1\n"
            "  a (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0\n"
            "    Section: Command line profiler metrics\n"
            f"    {'-' * 60} {'-' * 11} {'-' * 20}\n"
            f"    {DRAM:60s} {'byte':>11s} {'500':>20s}\n"
            f"    {'-' * 60} {'-' * 11} {'-' * 20}\n"
        )
        record = load(one_metric(FFMA, "inst", [("a", 1000)]), page)
        assert record["intensity"] == 4.0
        assert record["warnings"] == []

    def test_another_order_rests_on_an_assumption(self, load):
        record = load(
            one_metric(FFMA, "inst", self.WORK), one_metric(DRAM, "byte", self.WORK[::-1])
        )
        assert record["intensity"] == 2.0
        assert "rest on the assumption" in record["warnings"][0]

    def test_a_run_on_another_device_or_chip(self, load):
        first = one_metric(FFMA, "inst", self.WORK)
        text = refusal(load, first, one_metric(DRAM, "byte", self.WORK, Device="1"))
        assert "ran on device 0 and 1" in text
        assert "same metrics" in text
        text = refusal(load, first, one_metric(DRAM, "byte", self.WORK, CC="8.0"))
        assert "ran on compute capability 9.0 and 8.0" in text

    def test_a_run_that_adds_nothing_is_more_likely_a_rank(self, load):
        rows = [(i, name, FFMA, "inst", value) for i, (name, value) in enumerate(self.WORK)]
        more = table([*rows, *((i, n, TIME, "ns", 100) for i, (n, _) in enumerate(self.WORK))])
        text = refusal(load, one_metric(FFMA, "inst", self.WORK, process="1"), more)
        assert "every metric of" in text
        assert f"{TIME} is only in one" in text

    def test_runs_that_counted_other_work(self, load):
        def run(metric, ffma, order=(0, 1)):
            rows = [
                row
                for i, name in enumerate("ab"[j] for j in order)
                for row in ((i, name, FFMA, "inst", ffma[order[i]]), (i, name, metric, "byte", 5))
            ]
            return table(rows)

        first = run(DRAM, (1000, 2000))
        assert load(first, run("lts__t_bytes.sum", (1000, 2000)))["flop"]["total"] == 6000
        for other in ((1000, 1950), (2000, 1000)):
            text = refusal(load, first, run("lts__t_bytes.sum", other))
            assert "did not do the same work" in text
        assert "of launch 0 (a) is 1000 and 2000" in text
        text = refusal(load, first, run("lts__t_bytes.sum", (1030, 2000), (1, 0)))
        assert "of a is 1000 and 1030" in text

    def test_a_value_that_only_the_second_run_has(self, load):
        first = table([(0, "k", FFMA, "inst", 1_000_000), (0, "k", DRAM, "", "n/a")])
        second = table([(0, "k", TIME, "ns", 1_234_567), (0, "k", DRAM, "byte", 65_536)])
        record = load(first, second)
        assert record["byte"]["dram"] == 65_536
        assert record["intensity"] == 2_000_000 / 65_536
        assert record["unavailable"] == {}

    def ranks(self, metric, unit_name, values, order):
        return [
            one_metric(
                *(metric, unit_name, [("k0", values[rank]), ("k1", values[rank])]),
                process=f"{len(unit_name)}{rank}",
                Device=str(rank),
            )
            for rank in order
        ]

    def test_runs_of_several_devices_are_put_together_by_device(self, load):
        work = self.ranks(FFMA, "inst", (1000, 2000), (0, 1))
        moved = self.ranks(DRAM, "byte", (500, 600), (1, 0))
        record = load(*work, *moved)
        assert [part["flop"]["total"] for part in record["by_device"]] == [4000, 8000]
        assert [part["byte"]["dram"] for part in record["by_device"]] == [1000, 1200]
        assert [part["intensity"] for part in record["by_device"]] == [4.0, 8000 / 1200]
        assert not any("orders" in text for text in record["warnings"])

    def test_processes_with_one_device_number_are_told_by_order_only(self, load):
        def runs(metric, unit_name, first):
            return [
                one_metric(metric, unit_name, [("k", 5)], process=str(first + i)) for i in (0, 1)
            ]

        record = load(*runs(FFMA, "inst", 1), *runs(DRAM, "byte", 5))
        assert record["flop"]["total"] == 20
        assert any("can mix processes up" in text for text in record["warnings"])

    @pytest.mark.parametrize(
        ("places", "words"),
        [
            ([("1", "0", "9.0"), ("2", "1", "9.0")], "is 2 times that of one, if each has a GPU"),
            ([("1", "0", "9.0"), ("2", "0", "9.0")], "is 1 to 2 times"),
            ([("1", "0", "9.0"), ("2", "0", "9.0"), ("2", "1", "9.0")], "is 2 to 3 times"),
            ([("1", "0", "8.0"), ("1", "1", "9.0")], "8.0, 9.0, so there is no one roof"),
        ],
    )
    def test_the_roof_of_several_devices(self, load, places, words):
        rows = [
            {"ID": str(index), "Process ID": process, "Device": number, "CC": chip}
            | {"Kernel Name": "k", "Metric Name": FFMA, "Metric Unit": "inst", "Metric Value": "5"}
            for index, (process, number, chip) in enumerate(places)
        ]
        (warning,) = load(table(rows))["warnings"]
        assert words in warning

    def test_no_kernel_takes_no_time(self, load):
        rows = [(0, "k", TIME, "us", "0.00"), (0, "k", FFMA, "inst", 5)]
        record = load(table(rows))
        assert record["time_s"] is None
        assert record["flop_per_s"] is None
        assert "0 s in every launch" in record["reasons"]["time_s"]
        # Beside others it is shorter than the last digit.
        rows += [(1, "j", TIME, "us", "1.00"), (1, "j", FFMA, "inst", 5)]
        record = load(table(rows))
        assert record["time_s"] == pytest.approx(1e-6)
        assert [kernel["time_s"] for kernel in record["kernels"]] == [None, pytest.approx(1e-6)]

    def test_modes_that_the_files_do_not_tell(self, load):
        record = load(one_metric(FFMA, "inst", self.WORK))
        for mode in ("cache_control", "replay_mode"):
            assert record[mode] is None
            assert "do not say" in record["reasons"][mode]


# -- A report that an H200 recorded -------------------------------------------------------

REPORT = Path(__file__).parents[1] / "data/ncu-report"
# 132 SMs hold 8 blocks of 256 threads each; 64 rounds of 512 FMAs a thread.
CHAIN_FMA = 132 * 8 * 256 * 64 * 512
# Groups of four 16-byte loads of every thread of 132 x 4 blocks of 512, as many as fit in 1 GiB.
GROUP_BYTE = 132 * 4 * 512 * 4 * 16


def known_work(path):
    record = import_files([path]).to_dict(kernels=True)
    chains, read = record["kernels"]
    assert (chains["name"], chains["launches"]) == ("fma_fp32", 2)
    assert (read["name"], read["launches"]) == ("read_global", 1)
    assert record["counters"]["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"] == (
        2 * CHAIN_FMA
    )
    assert chains["flop"]["total"] == pytest.approx(2 * 2 * CHAIN_FMA, rel=1e-3)
    # All that is read lies in DRAM, and each byte of it is read once.
    assert read["byte"]["l1"] == 2**30 // GROUP_BYTE * GROUP_BYTE
    assert read["byte"]["dram_read"] == pytest.approx(read["byte"]["l1"], rel=1e-3)
    assert (record["compute_capability"], record["devices"]) == (["9.0"], [0])
    assert record["gpu"] == "NVIDIA H200"
    return record


def test_known_work_in_ncu_s_export_of_a_report():
    known_work(REPORT / "kernels.csv")


def test_a_real_report_is_what_ncu_exports_of_it():
    pytest.importorskip("ncu_report", reason="needs ncu-report")
    ours = known_work(REPORT / "kernels.ncu-rep")
    theirs = import_files([REPORT / "kernels.csv"]).to_dict(kernels=True)
    differ = {key for key in ours if ours[key] != theirs[key]}
    assert differ == {"files", "processes", "warnings"}
    (only_ours,) = set(ours["warnings"]) - set(theirs["warnings"])
    assert "does not tell processes apart" in only_ours


@pytest.mark.parametrize("size", [0, 3, 4, 1000, 45_000, 60_000, 70_000, 90_000, 93_000, 93_156])
def test_a_report_that_was_cut_short_is_refused_or_has_no_total(tmp_path, size):
    """NVIDIA's package reads what there is of it and says nothing."""
    pytest.importorskip("ncu_report", reason="needs ncu-report")
    path = tmp_path / "cut.ncu-rep"
    path.write_bytes((REPORT / "kernels.ncu-rep").read_bytes()[:size])
    with suppress(RecordError):
        record = import_files([path]).to_dict()
        figures = [*record["flop"].values(), *record["byte"].values(), record["time_s"]]
        assert set(figures) == {None}, figures


def test_a_gpu_that_the_files_name_is_the_users_to_overrule():
    assert import_files([REPORT / "kernels.csv"], gpu="H200").gpu == "H200"
