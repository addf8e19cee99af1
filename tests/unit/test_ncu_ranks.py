"""Several ranks in one ncu log, rows torn in a value, and tables that other programs saved."""

import gzip

import pytest

from roofprobe.errors import RecordError
from roofprobe.ncu_import import import_files
from roofprobe.ncu_import.vocabulary import uses_tensor_cores

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
FADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
DRAM = "dram__bytes.sum"
ABOUT = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)


def quoted(*cells):
    return ",".join(f'"{cell}"' for cell in cells)


def about(ident, process="1", cc="9.0"):
    return [
        *(str(ident), process, "python3", "127.0.0.1", "k", "1", "7"),
        *("(256, 1, 1)", "(64, 1, 1)", "0", cc),
    ]


def head(*metrics):
    return quoted(*ABOUT, *(metrics or (DRAM, FFMA)))


def units(*names):
    return quoted(*[""] * len(ABOUT), *names)


def row(ident, process, *cells, cc="9.0"):
    return quoted(*about(ident, process, cc), *cells)


LONG = quoted(*ABOUT, "Section Name", "Metric Name", "Metric Unit", "Metric Value")


def cell(ident, process, metric, unit, value, cc="9.0"):
    return quoted(*about(ident, process, cc), "Command line", metric, unit, value)


@pytest.fixture
def load(tmp_path):
    def run(*lines, **options):
        path = tmp_path / "run.log"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return import_files([path], **options)

    return run


# Two ranks: bytes and instructions of a launch, in Mbyte and in Kbyte.
A, B = units("Mbyte", "inst"), units("Kbyte", "inst")
FIRST = [row(i, "1", "1.50", "1,000") for i in range(2)]
SECOND = [row(i, "2", "900.00", "1,000") for i in range(2)]


class TestRanks:
    @pytest.mark.parametrize(
        "text",
        [
            [head(), A, head(), B, *FIRST, *SECOND],
            [head(), A, head(), B, FIRST[0], SECOND[0], FIRST[1], SECOND[1]],
            [head(), A, FIRST[0], head(), B, SECOND[0], FIRST[1], SECOND[1]],
            [head(), head(), A, B, *SECOND, *FIRST],
            [head(), A, *FIRST, B, *SECOND],
            [head(), head(DRAM, FADD), A, A, *FIRST, *SECOND],
        ],
    )
    def test_of_other_units_or_metrics_are_refused(self, load, text):
        with pytest.raises(RecordError, match=r"ranks share this log.*--log-file NAME%p"):
            load(*text)
        prefixed = [f"[1,{number % 2}]<stdout>:{line}" for number, line in enumerate(text)]
        with pytest.raises(RecordError, match="ranks share this log"):
            load(*prefixed)

    def test_one_after_the_other_read_in_their_own_units(self, load):
        # 2 * 1.5 MB + 2 * 900 kB
        assert load(head(), A, *FIRST, head(), B, *SECOND).whole.byte["dram"] == 4.8e6

    def test_of_equal_tables_mix_as_they_like(self, load):
        text = [head(), head(), A, A, FIRST[0], row(0, "2", "0.50", "10"), FIRST[1]]
        assert load(*text).whole.byte["dram"] == 3.5e6

    def test_two_runs_of_one_process_number(self, load):
        # In a container each run's program is process 1, and its IDs start anew.
        text = [head(), A, FIRST[0], row(0, "2", "1.50", "1,000"), head(), B]
        text += [row(ident, rank, "1,500.00", "1,000") for rank in "12" for ident in range(2)]
        assert load(*text).whole.byte["dram"] == 6e6

    @pytest.mark.parametrize("values", [("64", "64"), ("64", "96")])
    def test_text_pages_line_by_line_are_refused(self, load, values):
        ruler = "    ----------------- ----------- ------------"
        both = [
            *("  k(int) (1, 1, 1)x(32, 1, 1), Context 1, Stream 7, Device 0, CC 9.0", ruler),
            *("    Metric Name       Metric Unit Metric Value", ruler),
        ]
        text = ["[100] python@127.0.0.1", "[101] python@127.0.0.1"]
        text += [line for line in both for _ in range(2)]
        text += [f"    dram__bytes.sum   byte        {value:>12}" for value in values]
        with pytest.raises(RecordError, match="ranks share this log"):
            load(*text, ruler, ruler)

    def test_each_that_was_killed_loses_its_last_launch(self, load):
        whole = [
            cell(ident, process, metric, unit, "10")
            for ident in range(2)
            for metric, unit in ((FFMA, "inst"), (DRAM, "byte"))
            for process in ("1", "2")
        ]
        parts = [cell(2, process, FFMA, "inst", "10") for process in ("1", "2")]
        found = load(LONG, *whole, *parts)
        assert found.whole.launches == 4
        assert found.whole.flop["total"] == 4 * 2 * 10
        assert found.whole.byte["dram"] == 4 * 10
        assert any("breaks off" in text for text in found.warnings)

    def test_the_first_was_killed(self, load):
        def run(process):
            metrics = ((FFMA, "inst"), (DRAM, "byte"))
            return [cell(i, process, *metric, "10") for i in range(3) for metric in metrics]

        found = load(LONG, *run("1")[:-1], *run("2"))
        assert (found.whole.launches, found.whole.flop["total"]) == (5, 100)


class TestTornValue:
    """A block that ends inside the last value: what comes next closes its quote."""

    @pytest.mark.parametrize("then", ['epoch","loss"', 'step", 3, "loss": 0.25', "it's 5\" wide"])
    def test_by_a_program(self, load, then):
        torn = row(0, "1", "1,000", "67890")[:-4]
        rest = [row(ident, "1", "1,000", "10") for ident in (1, 2)]
        found = load(head(), units("byte", "inst"), torn + '"' + then, '890"', *rest)
        assert (found.whole.launches, found.whole.flop["total"]) == (2, 40)
        assert any("launch 0 of process 1 is left out" in text for text in found.warnings)

    @pytest.mark.parametrize("tears", [1, 2])
    def test_by_another_rank(self, load, tears):
        torn = "".join(row(0, str(rank), "1,000", "67890")[:-4] for rank in range(1, 1 + tears))
        rest = [row(1, str(rank), "1,000", "10") for rank in range(1, 1 + tears)]
        found = load(
            head(), units("byte", "inst"), torn + row(0, "9", "1,000", "10"), '890"', *rest
        )
        assert found.whole.flop["total"] == 20 * (1 + tears)
        (said,) = [text for text in found.warnings if "damaged rows" in text]
        assert all(f"launch 0 of process {rank}" in said for rank in range(1, 1 + tears))

    def test_a_whole_row_before_a_torn_one_stays(self, load):
        first, second = row(0, "1", "1,000", "10"), row(1, "1", "1,000", "10")[:40]
        found = load(head(), units("byte", "inst"), first + second, row(2, "1", "1,000", "10"))
        assert found.whole.flop["total"] == 40

    def test_a_count_with_decimals_is_no_count(self, load):
        found = load(LONG, cell(0, "1", FFMA, "inst", "1,234.5"), cell(0, "1", DRAM, "byte", "8"))
        assert found.whole.flop["total"] is None
        assert found.whole.byte["dram"] == 8
        found = load(LONG, cell(0, "1", FFMA, "inst", "1,234.00"))
        assert found.whole.flop["total"] == 2468


class TestTextPage:
    WIDTH = 14

    def load(self, load, name, value, unit="inst"):
        widths = (52, 11, self.WIDTH)
        ruler = "    " + " ".join("-" * width for width in widths)
        rows = [("Metric Name", "Metric Unit", "Metric Value"), None]
        rows += [(DRAM, "byte", "2,000"), (FADD, "inst", "500"), (name, unit, value)]
        lines = [
            ruler if each is None else f"    {each[0]:52} {each[1]:11} {each[2]:>{self.WIDTH}}"
            for each in [None, *rows, None]
        ]
        kernel = "  k(int *) (1, 1, 1)x(32, 1, 1), Context 1, Stream 13, Device 0, CC 8.9"
        return load("[77] python@127.0.0.1", kernel, *lines, "")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("smsp__inst_executed.avg", "1.5e+06"),
            ("device__attribute_x", "3D capable"),
            ("launch__func_handle", "0x7f3a10"),
            ("device__attribute_uuid", "4d3e-11"),
            ("launch__cluster_x", "0 (none)"),
            ("smsp__pcsamp_sample_buffer_full", ""),
        ],
    )
    def test_what_no_figure_needs_may_be_anything(self, load, name, value):
        found = self.load(load, name, value, "")
        assert (found.whole.flop["total"], found.whole.byte["dram"]) == (500, 2000)
        assert not found.warnings

    def test_exponents(self, load):
        assert self.load(load, FFMA, "1.5e+06").whole.flop["total"] == 500 + 3e6

    def test_not_a_number(self, load):
        found = self.load(load, FFMA, "1.#QNAN")
        assert found.whole.flop["total"] is None
        assert "NaN" in found.unavailable[FFMA]

    @pytest.mark.parametrize("value", ["12step 3", ""])
    def test_a_needed_value_in_pieces_is_none(self, load, value):
        with pytest.raises(RecordError, match="breaks off"):
            self.load(load, FFMA, value)


class TestTypesThatTheChipLacks:
    FP16 = "sm__ops_path_tensor_src_fp16_dst_fp32.sum"
    FP8 = "sm__ops_path_tensor_src_fp8.sum"

    def test_add_nothing(self, load):
        rows = [
            cell(0, "1", self.FP16, "", "2,048", "8.0"),
            cell(0, "1", self.FP8, "", "n/a", "8.0"),
        ]
        found = load(LONG, *rows)
        assert found.whole.flop["total"] == 2048
        assert self.FP8 in found.unavailable

    def test_of_two_chips_one(self, load):
        rows = [cell(0, "1", self.FP8, "", "100"), cell(0, "1", self.FP16, "", "10")]
        rows += [cell(1, "1", self.FP8, "", "", "8.0"), cell(1, "1", self.FP16, "", "7", "8.0")]
        assert load(LONG, *rows).whole.flop["total"] == 117

    @pytest.mark.parametrize(
        ("cc", "rows"),
        [
            ("9.0", [(FP16, "5"), (FP8, "n/a")]),  # Hopper has fp8
            ("8.0", [(FP8, "n/a")]),  # nobody looked at the types that it has
            ("10.0", [(FP16, "5"), (FP8, "n/a")]),  # there fp8 is counted with fp4 and fp6
        ],
    )
    def test_but_not_where_it_may_have_them(self, load, cc, rows):
        text = [cell(0, "1", name, "", value, cc) for name, value in rows]
        text.append(cell(0, "1", FFMA, "inst", "1", cc))
        assert load(LONG, *text).whole.flop["total"] is None


class TestSavedAgain:
    @pytest.mark.parametrize("cc", ["8", "8,0", "8.0"])
    def test_by_a_spreadsheet(self, load, cc):
        text = [head(), units("byte", "inst"), row(0, "1", "8", "10", cc=cc)]
        assert load(*text).compute_capabilities == ("8.0",)

    def test_ten_is_no_one(self, load):
        text = [head(), units("byte", "inst"), row(0, "1", "8", "10", cc="10")]
        assert load(*text).compute_capabilities == ("10.0",)

    def test_by_pandas(self, load):
        text = [head(), units("byte", "inst"), row("0.0", "42.0", "8", "10")]
        found = load(*text)
        assert (found.whole.flop["total"], found.whole.byte["dram"]) == (20, 8)
        bare = [line.replace('"(256, 1, 1)"', "x").replace('"(64, 1, 1)"', "y") for line in text]
        found = load(*(line.replace('"', "") for line in bare))
        assert (found.whole.flop["total"], found.whole.byte["dram"]) == (20, 8)

    def test_compressed(self, tmp_path):
        path = tmp_path / "run.csv.gz"
        path.write_bytes(gzip.compress(head().encode()))
        with pytest.raises(RecordError, match="compressed: unpack it"):
            import_files([path])


class TestWords:
    @pytest.mark.parametrize("own", ['"4","12"', '"1","17","0.25"'])
    @pytest.mark.parametrize("at", [2, 3])
    def test_numbers_of_a_program_are_no_row(self, load, own, at):
        text = [LONG, *(cell(ident, "4242", FFMA, "inst", "10") for ident in range(2))]
        text.insert(at, own)
        assert load(*text).whole.flop["total"] == 40
        assert not load(*text).warnings

    def test_a_gap(self, load):
        found = load(LONG, *(cell(ident, "1", FFMA, "inst", "10") for ident in (3, 9)))
        assert any("launches 4 to 8 of process 1" in text for text in found.warnings)

    def test_a_rate_over_cycles(self, load):
        rate = [
            (f"{FFMA}.per_cycle_elapsed", "inst/cycle", "2"),
            (f"{FADD}.per_cycle_elapsed", "inst/cycle", "0"),
        ]
        rows = [
            cell(0, "1", *each) for each in (*rate, ("smsp__cycles_elapsed.avg", "cycle", "10"))
        ]
        found = load(LONG, *rows)
        assert found.whole.flop["total"] == 40
        (said,) = [text for text in found.warnings if "is a rate" in text]
        assert "multiplied by the cycles" in said

    @pytest.mark.parametrize(
        ("name", "tensor"),
        [
            ("_attn_fwd", True),
            ("triton_mm_bf16", True),
            ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", True),
            ("void deep_gemm::fp8_gemm_kernel<1>", True),
            ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", False),
            ("triton_poi_fused_add_bf16", False),
        ],
    )
    def test_kernels_that_use_tensor_cores(self, name, tensor):
        assert uses_tensor_cores(name) is tensor
