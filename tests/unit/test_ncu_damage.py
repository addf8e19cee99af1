"""Damaged, cut and mixed ncu files: no launch is lost without a word."""

import csv
import io

import pytest

from roofprobe.errors import RecordError
from roofprobe.ncu_import import import_files

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
DRAM = "dram__bytes.sum"
ABOUT = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)
LONG = (*ABOUT, "Section Name", "Metric Name", "Metric Unit", "Metric Value")
# ID, kernel, bytes, instructions: 2 FLOP each
LAUNCHES = ((0, "a", "4,000", "1,000"), (1, "b", "6,000", "2,000"), (2, "c", "9,000", "4,000"))
SAID = "left out of every total"


def lines(rows, delimiter=",", quoting=csv.QUOTE_ALL):
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows(rows)
    return out.getvalue().splitlines()


def about(ident, name, process="4711"):
    return [
        *(str(ident), process, "python3", "127.0.0.1", name, "1", "7"),
        *("(256, 1, 1)", "(64, 1, 1)", "0", "9.0"),
    ]


def wide(launches=LAUNCHES, process="4711", units=("byte", "inst"), **style):
    head = [*ABOUT, DRAM, FFMA]
    blank = [*[""] * len(ABOUT), *units]
    rows = [[*about(ident, name, process), *cells] for ident, name, *cells in launches]
    return lines([head, blank, *rows], **style)


def long(launches=LAUNCHES, process="4711", columns=LONG, **style):
    rows = []
    for ident, name, moved, count in launches:
        for metric, unit, value in ((DRAM, "byte", moved), (FFMA, "inst", count)):
            cells = [*about(ident, name, process), "Command line", metric, unit, value]
            by_name = dict(zip(LONG, cells, strict=True))
            rows.append([by_name[column] for column in columns])
    return lines([list(columns), *rows], **style)


@pytest.fixture
def load(tmp_path):
    """Imports texts, each given as its lines."""

    def run(*texts, end="\n"):
        paths = []
        for index, text in enumerate(texts):
            path = tmp_path / f"run{index}.log"
            path.write_text("\n".join(text) + end, encoding="utf-8")
            paths.append(path)
        return import_files(paths).to_dict(kernels=True)

    return run


@pytest.fixture
def refusal(load):
    def run(*texts, **options):
        with pytest.raises(RecordError) as caught:
            load(*texts, **options)
        return str(caught.value)

    return run


def figures(record):
    return record["launches"], record["flop"]["total"], record["byte"]["dram"]


FIRST, LAST = (2, 12_000, 15_000), (2, 6000, 10_000)  # without the first launch, without the last
WHOLE, MIDDLE = (3, 14_000, 19_000), (2, 10_000, 13_000)


# A row of which only a part is there


@pytest.mark.parametrize(("row", "left"), [(2, FIRST), (3, MIDDLE), (4, LAST)])
@pytest.mark.parametrize("at", [30, 45, 60, 75])
def test_a_row_with_output_inside_loses_its_launch_and_says_so(load, row, left, at):
    text = wide()
    text[row : row + 1] = [text[row][:at] + "step 3 loss 0.2", text[row][at:]]
    record = load(text)
    assert figures(record) == left
    (warning,) = record["warnings"]
    assert f"launch {row - 2} of process 4711 is" in warning
    assert SAID in warning


def test_a_name_with_bare_quotes_loses_its_launch_and_says_so(load):
    text = [line.replace('"b"', '"f["x", {2}](int)"') for line in wide()]
    assert figures(load(text)) == MIDDLE
    assert load(text)["warnings"] == [f"damaged rows: launch 1 of process 4711 is {SAID}"]


@pytest.mark.parametrize("behind", ["", "\n", "slurmstepd: error: CANCELLED\n", "Killed\n"])
@pytest.mark.parametrize("form", [wide, long])
@pytest.mark.parametrize("left", [9, 25, 60])
def test_a_cut_last_launch_is_left_out_whatever_comes_behind(load, form, left, behind):
    # The first row of launch 2, cut.
    text = form()
    place = next(i for i, line in enumerate(text) if line.startswith('"2"'))
    record = load([*text[:place], text[place][:left]], end=behind)
    assert figures(record) == LAST
    (warning,) = record["warnings"]
    assert warning.startswith("the file breaks off: launch 2")
    assert SAID in warning


def test_a_row_without_quotes_that_is_cut(load):
    plain = [(ident, name, str(1000 + ident), "5") for ident, name, *_ in LAUNCHES]
    text = long(plain, quoting=csv.QUOTE_MINIMAL)
    for end in ("", "\n"):
        record = load([*text[:5], text[5][:40]], end=end)
        assert figures(record) == (2, 20, 2001)
        assert "launch 2" in record["warnings"][0]


def test_a_cut_file_with_another_behind_it(load):
    first, second = wide(), wide(LAUNCHES[:1], process="9")
    record = load([*first[:4], first[4][:-20] + second[0], *second[1:]])
    assert figures(record) == (3, 8000, 14_000)
    assert f"damaged rows: launch 2 of process 4711 is {SAID}" in record["warnings"]


def test_a_damaged_row_of_a_launch_that_is_there(load):
    text = long()
    spoilt = [*text[:3], text[3][:50], *text[4:]]
    record = load(spoilt)
    # Bytes of launch 1 are missing, so there is no total of them.
    assert figures(record) == (3, 14_000, None)
    assert "damaged rows: launch 1 (b) is without some of the metrics" in record["warnings"]
    at_end = load([*text[:5], text[5][:50], text[6]])
    assert figures(at_end) == LAST
    assert at_end["warnings"] == [f"damaged rows: launch 2 (c) is {SAID}"]


def test_one_process_is_cut_and_others_are_not(load, refusal):
    texts = [long(LAUNCHES[:1], process=process) for process in ("4711", "9", "11")]
    rows = [line for text in texts for line in text[1:]]
    record = load([texts[0][0], *rows[:4], rows[4][:60]], end="")
    assert figures(record) == (2, 4000, 8000)
    assert record["warnings"][0] == (
        f"the file breaks off: launch 0 of process 11 is incomplete and {SAID}"
    )
    record = load([texts[0][0], *rows[:2], rows[2][:60]], end="")
    assert figures(record) == (1, 2000, 4000)
    only = refusal([texts[0][0], rows[0], rows[1][:60]], end="")
    assert "nothing complete is left" in only


@pytest.mark.parametrize(("cut", "left"), [(6, LAST), (5, (1, 2000, 4000))])
def test_rows_sorted_by_metric(load, cut, left):
    # Behind the cut, launches lack the metric, too.
    head, *rows = long()
    rows = [*rows[::2], *rows[1::2]]
    record = load([head, *rows[: cut - 1], rows[cut - 1][:-5]], end="")
    assert figures(record) == left
    assert "incomplete" in record["warnings"][0]


def test_runs_of_one_metric_each_of_which_one_is_cut(load):
    moved = [line for line in long() if FFMA not in line]
    count = [line for line in long() if DRAM not in line]
    record = load(moved, [*count[:3], count[3][:-10]])
    assert figures(record) == LAST


# Launches of which there is nothing


def test_missing_ids(load):
    text = wide()
    record = load([*text[:3], text[4]])
    assert figures(record) == MIDDLE
    (warning,) = record["warnings"]
    assert "no row of launch 1 of process 4711" in warning
    assert load(text)["warnings"] == []
    later = [(ident + 7, *rest) for ident, *rest in LAUNCHES]  # --launch-skip 7
    assert load(wide(later))["warnings"] == []
    # One count through all processes.
    other = wide(LAUNCHES[1:2], process="9")
    both = load([*text[:3], text[4], other[2]])
    assert not any("no row of" in warning for warning in both["warnings"])


def profiling(count, again=1):
    return [
        f'==PROF== Profiling "{"abc"[i]}" - {i}: 0%....50%....100% - 3 passes'
        for _ in range(again)
        for i in range(count)
    ]


def test_what_ncu_says_it_profiled(load):
    assert load([*profiling(3, again=2), *wide()])["warnings"] == []
    record = load([*profiling(3), *wide()[:4]])
    assert figures(record) == LAST
    (warning,) = record["warnings"]
    assert "ncu profiled 3 kernels, and the file has rows for 2" in warning
    failed = [*profiling(3), '==ERROR== Failed to profile "c" in process 4711', *wide()[:4]]
    assert not any("rows for" in warning for warning in load(failed)["warnings"])


# Units


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>:", "worker-1  | ", "\x1b[32m"])
def test_units_behind_a_prefix(load, prefix):
    text = wide([(0, "a", "1.50", "2.50")], units=("Kbyte", "Minst"))
    record = load([prefix + line for line in text])
    assert figures(record) == (1, 5_000_000, 1500)


@pytest.mark.parametrize("glued", [" 50%|###  | 1/2{}", "{}step 1, loss 0.3"])
def test_units_that_share_their_line(load, glued):
    text = wide([(0, "a", "1.50", "2.50")], units=("Kbyte", "Minst"))
    text[1] = glued.format(text[1])
    assert figures(load(text)) == (1, 5_000_000, 1500)


def test_without_units_there_are_no_numbers(refusal):
    text = wide()
    assert "row of units below the header is missing" in refusal([text[0], *text[2:]])


def test_units_as_pandas_writes_them(load):
    text = [line.replace('""', '"nan"') for line in wide(units=("Kbyte", "inst"))]
    assert figures(load(text)) == (3, 14_000, 19_000_000)


# Headers


@pytest.mark.parametrize(
    "columns",
    [
        ("Process ID", "ID", *LONG[2:]),
        ("Kernel Name", "ID", "Metric Name", "Metric Unit", "Metric Value", "Process ID"),
    ],
)
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_columns_in_another_order(load, columns, quoting):
    same = [(ident, "a", *rest) for ident, _, *rest in LAUNCHES]
    assert figures(load(long(same, columns=columns, quoting=quoting))) == WHOLE


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("form", [wide, long])
def test_an_index_column_in_front(load, form, quoting):
    rows = list(csv.reader(form()))
    rows = [["" if i == 0 else str(i - 1), *row] for i, row in enumerate(rows)]
    assert figures(load(lines(rows, quoting=quoting))) == WHOLE


@pytest.mark.parametrize("before", ['"epoch","1","loss","0.7"', '"epoch","1",', 'say "hi" '])
def test_a_header_behind_a_programs_quotes(load, before):
    text = long()
    assert figures(load([before + text[0], *text[1:]])) == WHOLE


def test_a_programs_own_table_is_no_new_header(load):
    text = long()
    record = load([*text[:2], '"ID","Kernel Name","grid","note"', *text[2:]])
    assert figures(record) == WHOLE
    assert record["skipped_lines"] == 1


def test_lines_between_header_and_rows_are_counted(load):
    text = long()
    assert load([text[0], "step 1", "step 2", *text[1:]])["skipped_lines"] == 2


# Output of programs around whole rows


@pytest.mark.parametrize("form", [wide, long])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "tail",
    [
        "100%|##########| 10/10 [00:02<00:00,  4.20it/s]",
        "2024-05-01 12:00:00 INFO done",
        "3, 0.25",
        '"done"',
        '"3","0.5","0.1"',
        "0,1,2",
        "0.731",
    ],
)
def test_what_a_program_prints_last_is_no_row(load, form, count, tail):
    for end in ("", "\n"):
        record = load([*form(LAUNCHES[:count]), tail], end=end)
        assert figures(record) == {1: (1, 2000, 4000), 3: WHOLE}[count]
        assert record["warnings"] == []
        assert record["skipped_lines"] == 1


def test_two_rows_on_a_line(load):
    for text in (wide(), long()):
        record = load([*text[:3], text[3] + text[4], *text[5:]])
        assert figures(record) == WHOLE
        assert record["warnings"] == []
    text = wide()
    # The first breaks off, in a cell and between two.
    for at in (20, text[3].index('"127.0')):
        record = load([*text[:3], text[3][:at] + text[4]])
        assert figures(record) == MIDDLE
        assert record["warnings"] == [f"damaged rows: launch 1 of process 4711 is {SAID}"]


# Plain text


RULER = f"    {'-' * 52} {'-' * 11} {'-' * 12}"


def page():
    text = ["[4711] python3@127.0.0.1"]
    for _, name, moved, count in LAUNCHES:
        text += [
            f"  {name} (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0",
            *("    Section: Command line profiler metrics", RULER),
            f"    {'Metric Name':52s} {'Metric Unit':>11s} {'Metric Value':>12s}",
            RULER,
            f"    {DRAM:52s} {'byte':>11s} {moved:>12s}",
            f"    {FFMA:52s} {'inst':>11s} {count:>12s}",
            *(RULER, ""),
        ]
    return text


KERNEL = 1 + 2 * 9  # the line of launch 2


def test_a_page_that_breaks_off_anywhere_in_its_last_launch(load):
    assert figures(load(page())) == WHOLE
    # Up to the ruler below the last row.
    for row in range(KERNEL, KERNEL + 8):
        line = page()[row]
        for cut in range(4, len(line)):
            for behind in ("", "\n", "Killed\n"):
                record = load([*page()[:row], line[:cut]], end=behind)
                assert record["launches"] <= 3
                if record["launches"] == 3:
                    assert row == KERNEL + 7  # all but a part of the ruler is there
                else:
                    assert figures(record) == LAST
                    assert "breaks off" in record["warnings"][0] or cut < 5


def test_a_torn_line_of_a_kernel(load):
    text = page()
    line = text[10]
    text[10:11] = [line[:20] + "step 3", line[20:]]
    record = load(text)
    assert figures(record) == MIDDLE
    assert record["warnings"] == [f"damaged rows: launch 1 of process 4711 is {SAID}"]


@pytest.mark.parametrize("tail", ["    done 3", "100%|###| 1/1", "  0%|   | 0/1 [00:00<?, ?it/s]"])
def test_what_a_program_prints_below_a_page(load, tail):
    record = load([*page(), tail], end="")
    assert figures(record) == WHOLE
    assert record["warnings"] == []


def test_a_bar_before_a_kernel_is_no_part_of_its_name(load):
    text = page()
    text[1] = "  0%|   | 0/1 [00:00<?, ?it/s]" + text[1]
    assert [kernel["name"] for kernel in load(text)["kernels"]] == ["a", "b", "c"]


# What cannot be read


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ([wide()[0], wide()[1][:30]], "the file breaks off"),
        ([*wide()[:2], wide()[2][:-9]], "the file breaks off"),
        (long()[:1] + [line.rpartition(",")[0] for line in long()[1:]], "6 rows do not fit"),
        (long()[1:], "rows without their header"),
        (
            lines(
                [
                    ["Process ID", "Kernel Name", "Invocations", "Metric Name", "Average"],
                    ["7", "a", "3", DRAM, "4,000"],
                ]
            ),
            "--print-summary",
        ),
        (
            lines([["ID", "Function Name", f"{DRAM} [Kbyte]"], ["0", "a", "4.00"]]),
            "desktop application",
        ),
        (
            lines([["Kernel Name", "a"], ["#", "Address", "# Samples"], ["0", "7f", "128"]]),
            "--page raw",
        ),
    ],
)
def test_files_that_hold_no_launch_say_why(refusal, text, words):
    for end in ("", "\n"):
        message = refusal(text, end=end)
        assert words in message
        assert "--target-processes" not in message
        assert "no ncu output" not in message


# The desktop application's export: 2 * 3000 FLOP, 10 kB


def export(*metrics, names='"Function","a","b"'):
    return [names, *metrics]


ADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
READ = f'"{DRAM} [byte]","4,000","6,000"'
COUNT = f'"{FFMA} [inst]","1,000","2,000"'


@pytest.mark.parametrize("behind", ["", "\n", "\nKilled\n", f"\n{READ}\n"])
@pytest.mark.parametrize("left", [2, len('"smsp'), 30, len(COUNT) - 22, len(COUNT) - 10])
def test_a_row_of_a_transposed_export_that_is_there_in_part_is_refused(load, refusal, left, behind):
    text = export(f'"{ADD} [inst]","5","5"')
    # 5 + 5, and 2 * 3000 of the row
    assert load([*text, COUNT, READ])["flop"]["total"] == 6010
    part = COUNT[:left]
    if behind or '",' not in part:
        assert "breaks off inside a row ('\"s" in refusal([*text, part], end=behind)
    else:
        assert load([*text, part], end=behind)["flop"]["total"] is None


@pytest.mark.parametrize("part", ["smsp", FFMA, f"{FFMA} [inst]", "\ufffd"])
def test_a_row_without_quotes_of_which_only_the_name_is_there(refusal, part):
    text = [line.replace('"', "") for line in export(f'"{ADD} [inst]","5","5"')]
    for end in ("", "\n", "\nKilled\n"):
        assert "breaks off inside a row" in refusal([*text, part], end=end)


def test_lines_of_a_program_in_a_transposed_export_are_skipped(load):
    record = load([*export(COUNT), "loss 0.3", "Killed", READ])
    assert (record["launches"], record["flop"]["total"]) == (2, 6000)
    assert (record["byte"]["dram"], record["skipped_lines"]) == (10_000, 2)


@pytest.mark.parametrize(
    ("head", "again"),
    [('"Function","a","b"', '"Function","c","d"'), ('"Process","1","1"', '"Process","2","2"')],
)
def test_two_transposed_exports_in_one_file_are_refused(refusal, head, again):
    assert "import them as two files" in refusal([head, COUNT, "", again, READ])


# CSV and plain text in one file


@pytest.mark.parametrize("mark", ["", "0: ", "[1,0]<stdout>:"])
def test_csv_and_plain_text_in_one_file_are_refused(refusal, mark):
    plain = [mark + line for line in page()]
    assert "CSV and plain text" in refusal([*long(), *plain])
    assert "CSV and plain text" in refusal([*wide(), *plain])
    assert "CSV and plain text" in refusal([*plain, *long()])


# Rules, and pages without units


RULES = (*LONG, "Rule Name", "Rule Type", "Rule Description")


def ruled(description, launches=LAUNCHES):
    """A log in which each launch ends in the words of a rule."""
    text = [lines([RULES])[0]]
    for launch in launches:
        text += [f'{row},"","",""' for row in long([launch])[1:]]
        cells = [*about(*launch[:2]), "SpeedOfLight", "", "", "", "SOLBottleneck", "OPT"]
        text += lines([[*cells, description]])
    return text


def test_words_of_a_rule_with_line_feeds_cost_no_launch(load):
    for words in ("It is slow,\nvery slow.", "One\n\nthree, of\nfour", "plain"):
        record = load(ruled(words))
        assert figures(record) == WHOLE
        assert (record["warnings"], record["skipped_lines"]) == ([], 0)


def test_a_torn_row_behind_torn_words_of_a_rule_is_still_one(load):
    text = ruled("plain")
    text[3] = text[3][: text[3].index("plain")]
    text[4] = text[4][:-20]  # launch 1
    record = load(text)
    assert "damaged rows: launch 1 (b) is without some" in record["warnings"][0]
    assert record["byte"]["dram"] is None


def test_a_page_whose_metrics_all_have_no_unit(load):
    text = [lines([[*ABOUT, FFMA]])[0], lines([[""] * (len(ABOUT) + 1)])[0]]
    text += lines([[*about(ident, name), count] for ident, name, _, count in LAUNCHES])
    assert load(text)["flop"]["total"] == 14_000
    # What needs a unit has no value without one.
    record = load(wide(units=("", "")))
    assert (record["flop"]["total"], record["byte"]["dram"]) == (14_000, None)
    assert "in no unit" in record["unavailable"][DRAM]
    # An empty row further down is no row of units.
    record = load([*wide()[:3], lines([[""] * (len(ABOUT) + 2)])[0], *wide()[3:]])
    assert figures(record) == WHOLE


# Plain text with a launcher's mark before each line


@pytest.mark.parametrize("mark", ["0: ", " 0: ", "[1,0]<stdout>:", "worker-1  | ", "[rank0]: "])
def test_a_page_with_a_mark_before_each_line(load, mark):
    record = load([(mark + line).rstrip() for line in page()])
    assert figures(record) == WHOLE
    assert (record["warnings"], record["processes"]) == ([], [4711])
    cut = load([mark + line for line in page()[:-3]])  # within the table of launch 2
    assert figures(cut) == LAST
    assert "launch 2" in cut["warnings"][0]


def test_two_marks_are_two_ranks(refusal):
    other = [line.replace("[4711]", "[4712]") for line in page()]
    both = ["0: " + line for line in page()] + ["1: " + line for line in other]
    assert "a file for each rank" in refusal(both)
