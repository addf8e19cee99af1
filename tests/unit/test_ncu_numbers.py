"""Numbers of an ncu log: in which locale they are, and when two cells are the same one."""

import csv
import io

import pytest

from roofprobe.cli import main
from roofprobe.errors import RecordError
from roofprobe.ncu_import import import_files
from roofprobe.ncu_import.launches import Launches, Owner
from roofprobe.ncu_import.numerals import NotANumberError, Numerals, clue

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
DRAM = "dram__bytes.sum"
TIME = "gpu__time_duration.sum"
SHARE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
COLUMNS = ("ID", "Process ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit")


def table(*rows, section="Command line profiler metrics"):
    """A long CSV of one kernel; a row is (ID, metric, unit, value)."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*COLUMNS, "Metric Value"])
    for launch, metric, unit, value in rows:
        writer.writerow([launch, "7", "k", section, metric, unit, value])
    return out.getvalue()


@pytest.fixture
def load(tmp_path):
    """Imports texts as files; the record as a dict."""

    def run(*texts, **options):
        paths = [tmp_path / f"run{index}.csv" for index in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        return import_files(paths, **options).to_dict()

    return run


def refusal(load, *texts, **options):
    with pytest.raises(RecordError) as caught:
        load(*texts, **options)
    return str(caught.value)


# The locale


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("1\u202f234\u202f567", "12,582"),
        ("1\u00a0234\u00a0567", "12,582"),
        ("1'234'567", "12.582"),
        ("1\u2019234\u2019567", "12.582"),
        ("1234567", "12.582"),
    ],
)
def test_where_something_else_groups_a_lone_sign_is_decimal(load, long, short):
    record = load(table((0, FFMA, "inst", long), (0, DRAM, "Mbyte", short)))
    assert record["flop"]["total"] == 2 * 1_234_567
    assert record["byte"]["dram"] == pytest.approx(12_582_000)


def test_both_signs_alone_are_still_two_readings(load):
    rows = [(0, FFMA, "inst", "1 234 567"), (0, DRAM, "Mbyte", "12,582"), (0, TIME, "us", "1.234")]
    assert "reads two ways" in refusal(load, table(*rows))


@pytest.mark.parametrize("text", ["1 23 456", "1234 567", "1,234 567", "0 123", "1 234'567"])
def test_spaces_that_do_not_group_thousands(text):
    with pytest.raises(NotANumberError):
        Numerals().both(text)


def test_a_number_that_no_figure_needs_does_not_have_to_be_clear(load):
    rows = [(0, FFMA, "inst", "512"), (0, DRAM, "byte", "640")]
    for name, unit in (("smsp__stalled.ratio", ""), ("smsp__stalled.pct", "%")):
        record = load(table(*rows, (0, name, unit, "3.125")))
        assert record["flop"]["total"] == 1024
        assert record["byte"]["dram"] == 640


@pytest.mark.parametrize(
    ("name", "unit", "value", "kbyte"),
    [
        (SHARE, "%", "45,678", 1.536),  # no share of the peak is 45678 %
        ("L2 Hit Rate", "%", "45.678", 1536),
        ("Elapsed Cycles", "cycle", "3.456", 1.536),
        ("Threads", "thread", "262.144", 1.536),
        ("Grid Size", "", "1,024", 1536),
        ("sm__inst_executed.sum", "inst", "1,024", 1536),
        (TIME, "ns", "2.432", 1.536),  # time stamps are whole nanoseconds
        ("Duration", "nsecond", "2,432", 1536),
    ],
)
def test_what_a_value_is_tells_how_it_reads(load, name, unit, value, kbyte):
    rows = [(0, FFMA, "inst", "512"), (0, DRAM, "Kbyte", "1,536"), (0, name, unit, value)]
    assert load(table(*rows))["byte"]["dram"] == pytest.approx(kbyte * 1000)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("smsp__average_warps_issue_stalled_wait_per_issue_active.pct", "%"),
        ("sm__cycles_active.avg", "cycle"),
        ("derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2", "inst"),
        ("smsp__inst_executed.sum.per_cycle_active", "inst/cycle"),
        (DRAM, "Kbyte"),
        (TIME, "us"),
        ("sm__cycles_elapsed.max", "Kcycle"),
    ],
)
def test_what_can_be_either_tells_nothing(load, name, unit):
    assert clue(name, unit) is None
    rows = [(0, "dram__bytes_read.sum", "Mbyte", "1,536"), (0, name, unit, "1,234")]
    assert "reads two ways" in refusal(load, table(*rows))


def test_clues_that_contradict_each_other_decide_nothing(load):
    clues = [(0, "Threads", "thread", "1.024"), (0, "Grid Size", "", "1,024")]
    rows = [*clues, (0, FFMA, "inst", "512")]
    assert load(table(*rows))["flop"]["total"] == 1024
    assert "reads two ways" in refusal(load, table(*rows, (0, DRAM, "Kbyte", "1,536")))


def test_a_clue_is_weaker_than_a_proof(load):
    rows = [(0, SHARE, "%", "45,678"), (0, FFMA, "inst", "1,234,567"), (0, DRAM, "Kbyte", "1,536")]
    record = load(table(*rows))
    assert record["flop"]["total"] == 2_469_134
    assert record["byte"]["dram"] == pytest.approx(1_536_000)


def test_a_word_in_digits_is_no_ungrouped_number(load):
    rows = [(0, DRAM, "Mbyte", "12,582"), (0, "launch__some_version", "", "12040")]
    assert "reads two ways" in refusal(load, table(*rows))


# The format that the user names


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        ("en", "1.234", 1.234),
        ("en", "1,234", 1234),
        ("ch", "1.234", 1.234),
        ("ch", "1'234.5", 1234.5),
        ("de", "1.234", 1234),
        ("de", "1,234", 1.234),
        ("fr", "1,234", 1.234),
        ("fr", "1\u202f234,5", 1234.5),
    ],
)
def test_a_named_format(form, text, value):
    assert Numerals(form).both(text) == (value, value)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *(("ch", text) for text in ("1,234", "1,234,567", "1,234.5", "12,5")),
        *(("fr", text) for text in ("1.234", "1.234.567", "1.234,5", "12.5")),
        *(("de", text) for text in ("1,234,567", "1,234.5", "12.5")),
        *(("en", text) for text in ("1.234.567", "1.234,5", "12,5")),
    ],
)
def test_signs_that_a_named_format_does_not_have(form, text):
    numerals = Numerals(form)
    for _ in range(2):  # what one number proves must not let the next pass
        with pytest.raises(NotANumberError, match=f"in format {form}"):
            numerals.both(text)
        numerals.both("0.5" if form in ("en", "ch") else "0,5")


def test_refusals_say_what_to_do(load, tmp_path, capsys):
    text = table((0, FFMA, "inst", "1,234,567"))
    assert "in format de: name another with --number-format" in refusal(
        load, text, number_format="de"
    )
    german = table((1, FFMA, "inst", "1.234.567"))
    assert "import two logs as two files" in refusal(load, text + german)
    assert load(text, german)["flop"]["total"] == 4_938_268
    path = tmp_path / "x.csv"
    path.write_text(table((0, DRAM, "Kbyte", "1.234")))
    assert main(["import-ncu", str(path), "--number-format", "fr"]) == 1
    assert "in format fr" in capsys.readouterr().err


# The same cell twice


EXACT = (0, DRAM, "byte", "12,582,912")


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_roundings_the_finer_is_kept(load, turn):
    rows = [EXACT, (0, DRAM, "Mbyte", "12.58")]
    assert load(table(*rows[::turn]))["byte"]["dram"] == 12_582_912


@pytest.mark.parametrize("other", [("byte", "12,582,913"), ("Mbyte", "12.59"), ("Mbyte", "12.57")])
@pytest.mark.parametrize("turn", [1, -1])
def test_values_further_apart_than_their_last_digit(load, other, turn):
    rows = [EXACT, (0, DRAM, *other)][::turn]
    assert "different values" in refusal(load, table(*rows))


@pytest.mark.parametrize("turn", [1, -1])
def test_another_launch_in_a_larger_unit_excuses_nothing(load, turn):
    rows = [(0, DRAM, "byte", "1,000,000"), (0, DRAM, "byte", "1,004,000")]
    text = table(*[*rows, (1, DRAM, "Mbyte", "1.00")][::turn])
    assert "different values" in refusal(load, text)


def test_a_coarse_value_that_happens_to_be_equal(load):
    rows = [(DRAM, "Mbyte", "1.00"), (DRAM, "byte", "1,000,000"), (DRAM, "byte", "1,004,000")]
    assert "different values" in refusal(load, table(*((0, *row) for row in rows)))


def test_small_values_of_a_large_unit(load):
    # 0.00 Kbyte is anything up to 5 bytes.
    rows = [(0, DRAM, "byte", "5"), (0, DRAM, "Kbyte", "0.00"), (0, FFMA, "inst", "1,000")]
    assert load(table(*rows))["byte"]["dram"] == 5
    rows[0] = (0, DRAM, "byte", "6")
    assert "different values: 6 and 0" in refusal(load, table(*rows))


@pytest.mark.parametrize(
    "other",
    [("%", "12.50"), ("byte/s", "12,500"), ("", "n/a"), ("byte", "n/a"), ("", "(!) nan")],
)
@pytest.mark.parametrize("turn", [1, -1])
def test_a_cell_of_another_kind_is_no_second_value(load, other, turn):
    rows = [(0, DRAM, "byte", "1,000"), (0, DRAM, *other), (0, FFMA, "inst", "1,000")]
    record = load(table(*rows[::turn]))
    assert record["byte"]["dram"] == 1000
    assert record["intensity"] == 2
    assert record["unavailable"] == {}


def test_a_wide_page_with_a_metric_in_two_units(load):
    text = (
        f'"ID","Process ID","Kernel Name","{DRAM}","{DRAM}","{FFMA}"\n'
        '"","","","byte","{}","inst"\n'
        '"0","7","a","1,500","1.50","10"\n'
        '"1","7","b","5","0.00","10"\n'
    )
    for unit in ("%", "Kbyte"):
        assert load(text.format(unit))["byte"]["dram"] == 1505


def test_another_unit_alone_is_no_value(load):
    record = load(table((0, DRAM, "%", "12.50"), (1, DRAM, "byte", "1,000")))
    assert record["byte"]["dram"] is None
    assert "in %, expected byte" in record["unavailable"][DRAM]


def test_two_files_with_one_launch(load):
    exact, rounded = table(EXACT), table((0, DRAM, "Mbyte", "12.58"))
    assert load(exact, rounded)["byte"]["dram"] == 12_582_912
    assert load(rounded, exact)["byte"]["dram"] == 12_582_912
    assert "different values" in refusal(load, exact, table((0, DRAM, "Mbyte", "12.60")))


def test_units_stay_with_their_launches():
    launches = Launches(Numerals("en"))
    exact, rounded = (launches.sink(DRAM, unit, "") for unit in ("byte", "Mbyte"))
    for index in range(3):
        launches.launch(Owner("7", "0", "1", "9.0"), index, "k")
    for index, sink in enumerate((exact, rounded, exact)):
        sink.put(index, "1")
    launches.settle()
    launches.select([2, 1])
    (column,) = launches.columns
    assert list(column.values) == [1, 1e6]
    assert [column.scale(launch) for launch in (0, 1)] == [1, 1e6]


# Counts with fixed decimals, as pandas' float_format writes them


def test_round_counts_are_a_thousand_only_by_a_comma(load):
    assert load(table((0, FFMA, "inst", "1,000")))["flop"]["total"] == 2000
    beside = table((0, FFMA, "inst", "1,000"), (0, DRAM, "Mbyte", "0.50"))
    assert load(beside)["flop"]["total"] == 2000
    fixed = table((0, FFMA, "inst", "128.000"), (1, FFMA, "inst", "256.000"))
    assert "'128.000' reads two ways" in refusal(load, fixed)
    assert "reads two ways" in refusal(load, fixed.replace('","', '";"'))
    assert load(fixed, number_format="en")["flop"]["total"] == 2 * 384
    assert load(fixed, number_format="de")["flop"]["total"] == 2 * 384_000
    # Nanoseconds are whole as well, and say as little.
    beside = table((0, FFMA, "inst", "8.000"), (0, TIME, "ns", "5.000"))
    assert "reads two ways" in refusal(load, beside)


@pytest.mark.parametrize(
    ("others", "total"),
    [
        (("0.000",), 2 * 128),
        (("1234567.000",), 2 * (128 + 1_234_567)),
        (("1,234,567.000",), 2 * (128 + 1_234_567)),
        (("1234567",), 2 * (128 + 1_234_567)),
        (("1.234",), 2 * (128_000 + 1234)),
        (("1.234.567",), 2 * (128_000 + 1_234_567)),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_else_tells_how_a_round_count_reads(load, others, total, first):
    cells = ["128.000", *others] if first else [*others, "128.000"]
    text = table(*((i, FFMA, "inst", cell) for i, cell in enumerate(cells)))
    assert load(text)["flop"]["total"] == total


def test_a_decimal_comma_behind_round_counts(load):
    text = table((0, FFMA, "inst", "128,000"), (1, FFMA, "inst", "0,000"))
    assert load(text)["flop"]["total"] == 2 * 128


def test_round_counts_and_another_format_are_refused(load):
    text = table((0, FFMA, "inst", "128.000"), (0, DRAM, "Mbyte", "12.25"))
    assert "two formats" in refusal(load, text)


def test_a_user_s_own_column_is_no_evidence(load):
    rows = [(0, FFMA, "inst", "1.000.000"), (0, DRAM, "Mbyte", "12,50")]
    record = load(table(*rows, (0, "torch_version", "", "2.4")))
    assert (record["flop"]["total"], record["byte"]["dram"]) == (2_000_000, 12_500_000)
    # With a unit it is ncu's.
    text = table((0, FFMA, "inst", "7"), (0, DRAM, "Mbyte", "1,234"))
    version = (0, "torch_version", "", "2.4")
    assert "reads two ways" in refusal(load, table((0, DRAM, "Mbyte", "1,234"), version))
    assert load(text + '"0","7","k","s","x__y.avg","warp","2,40"\n')["byte"]["dram"] == 1_234_000


# Values with those of their instances behind them


@pytest.mark.parametrize(
    "cell", ["1,000 (500; 500)", "1,000 (0x10: 500; 0x20: 500)", "1,000 (1,000)", "1000 (1000)"]
)
def test_what_stands_before_the_instances_is_the_value(load, cell):
    assert load(table((0, FFMA, "inst", cell)))["flop"]["total"] == 2000


def test_other_words_behind_a_number_are_damage(load):
    for cell in ("1,000 (x)", "1,000 (5) 3", "(5; 5)", "1,0 (5) (x)"):
        assert "is not a number" in refusal(load, table((0, FFMA, "inst", cell)))
