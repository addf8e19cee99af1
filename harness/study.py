"""The published study, on the GPU at hand: ResNet-18 and AlexNet training, with and without TF32.

Question: where do these two land on the roofline by the study's formula, which counts fp32
instructions, and where when all FLOP are counted?
Method: each of four runs is measured in a process of its own by ``roofprobe.train``, and once more
by the study's tool, Nsight Compute, with the study's metrics. Both give a row of one table, beside
the published rows, and a point in one picture.

    python harness/study.py OUT_DIR                 # about 1 minute, and 5 with ncu
    python harness/study.py OUT_DIR --no-ncu
    python harness/study.py OUT_DIR --draw          # table and picture again; needs no GPU

A part that is already in OUT_DIR is not run again; one that fails costs nothing but itself. ncu's
log is kept as OUT_DIR/RUN/ncu.csv.gz. The tables are OUT_DIR/study.md and study.json, the picture
study-bBATCH.png. They have every fp32 or TF32 run of the two models in OUT_DIR, whatever its batch
size, and the cross-checks against ncu that are in run files; docs/study.md discusses them.
"""

import argparse
import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from roofprobe import Measurement, RoofprobeError, crosscheck, device, figures, metrics
from roofprobe.errors import RecordError, UsageError
from roofprobe.ncu_import import Imported, import_files
from roofprobe.record import CrossCheck, write_whole
from roofprobe.roofline import ceilings_of
from roofprobe.units import number, percent, seconds, si

PROG: Final = "study"
MODELS: Final = {"resnet18": "ResNet-18", "alexnet": "AlexNet"}
BATCH: Final = 256  # of PyTorch's ImageNet example
# TF32 on is PyTorch's own setting: convolutions, and no matrix products (since 1.12).
TF32: Final = {"": (), "-no-tf32": ("--no-tf32",)}

# What sets a step apart from the study's, by its name in the run file, and the study's own value.
PLAIN: Final = {"amp": None, "channels_last": False, "compile": False}
LOG: Final = "ncu.csv.gz"

CONVOLUTIONS, EVERYWHERE, OFF, NO_TF32 = "convolutions", "everywhere", "off", "not in this GPU"
PUBLISHED_SOURCE: Final = "published"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a training step, as one source saw it. Base units.

    Attributes:
        run: The folder that it is from; empty for a published row.
        model: For people.
        batch: Images of a step; None where it is not known.
        gpu: The device's own name, or the published one.
        tf32: What ran in TF32: ``convolutions``, ``everywhere``, ``off`` or ``not in this GPU``.
        source: ``cupti`` (roofprobe), ``ncu`` or ``published``.
        study_flop: fadd + fmul + 2 ffma, FLOP.
        flop: All FLOP, tensor cores included.
        tensor_frac: Share of tensor cores in it, 0 to 1.
        dram_byte: Read and written.
        study_intensity: The study's FLOP over DRAM bytes.
        intensity: All FLOP over DRAM bytes.
        study_flop_per_s: The study's FLOP over the sum of kernel times.
        flop_per_s: All FLOP over the unprofiled step time.
        flop_per_s_kernel: All FLOP over the sum of kernel times.
        wall: What the whole process took, s.
        reasons: Figure -> why it is None.
    """

    run: str
    model: str
    batch: int | None
    gpu: str
    tf32: str | None
    source: str
    study_flop: float | None = None
    flop: float | None = None
    tensor_frac: float | None = None
    dram_byte: float | None = None
    study_intensity: float | None = None
    intensity: float | None = None
    study_flop_per_s: float | None = None
    flop_per_s: float | None = None
    flop_per_s_kernel: float | None = None
    wall: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Traffic:
    """DRAM bytes of one step, counted around the step and by ncu with its cache flush.

    Attributes:
        run: The folder that it is from.
        model: For people.
        batch: Images of a step.
        tf32: As in the table's row.
        read: By roofprobe.
        write: By roofprobe.
        flushed_read: By ncu, which flushes the caches before each kernel.
        flushed_write: The same.
        unflushed: Read and written by ncu when it leaves the caches alone; None where that was
            not run.
    """

    run: str
    model: str
    batch: int | None
    tf32: str | None
    read: float
    write: float
    flushed_read: float
    flushed_write: float
    unflushed: float | None = None


# As published, to the digit: README of a study of 2024, "GPU Roofline Modeling, ImageNet Training
# Analysis" (read 2026-11). Batch size and TF32 setting of the rows are not stated.
PUBLISHED: Final = tuple(
    Row(
        *("", model, None, gpu, None, PUBLISHED_SOURCE),
        study_intensity=intensity,
        study_flop_per_s=rate,
    )
    for model, gpu, intensity, rate in (
        ("ResNet-18", "V100", 23.5, 4.60e12),
        ("ResNet-18", "A100", 0.55, 0.12e12),
        ("AlexNet", "V100", 10.4, 3.54e12),
        ("AlexNet", "A100", 5.24, 1.78e12),
    )
)
# The products whose roofs stand for those two names; the study does not say which it used.
PUBLISHED_GPUS: Final = {"V100": "V100 SXM2 16GB", "A100": "A100 SXM4 40GB"}


class Case(NamedTuple):
    """One of the four runs: its folder's name and the arguments of the training program."""

    name: str
    arguments: tuple[str, ...]


def cases(batch: int) -> list[Case]:
    """The four runs at a batch size."""
    return [
        Case(f"{arch}-b{batch}{suffix}", ("-a", arch, "-b", str(batch), "--dummy", *options))
        for arch in MODELS
        for suffix, options in TF32.items()
    ]


# -- Running ------------------------------------------------------------------------------


def train_command(case: Case, out: Path) -> list[str]:
    """A measured training in a process of its own.

    Args:
        case: Which run.
        out: Folder for its results.
    """
    program = [sys.executable, "-m", "roofprobe.train", *case.arguments]
    return [*program, "--backend", "cupti", "--out", str(out)]


def ncu_command(ncu: str, chip: str, log: Path, program: Sequence[str]) -> list[str]:
    """The study's Nsight Compute command for a program that brackets its step.

    The study's options are application replay, all processes and the eight metrics: fp16, fadd,
    fmul and ffma instructions, DRAM sectors and DRAM rates, read and written. Ours besides: the
    duration, because none of the eight is a time (it takes no further pass); a CSV of raw values
    in base units; and clocks left alone, as in the run that it is compared with. The cache flush
    before every kernel is ncu's default, and so the study's.

    Args:
        ncu: The tool.
        chip: CUPTI's name of the GPU's chip.
        log: File for the CSV.
        program: Its command line.
    """
    names = [*metrics.metric_set("study", chip), "gpu__time_duration.sum"]
    return [
        *(ncu, "-f", "--log-file", str(log)),
        *("--profile-from-start", "off", "--replay-mode", "application"),
        *("--target-processes", "all", "--metrics", ",".join(names)),
        *("--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
        *program,
    ]


def run_all(out: Path, batch: int, *, with_ncu: bool) -> bool:
    """Runs what is missing in a folder.

    Args:
        out: Folder of the study.
        batch: Images of a step.
        with_ncu: Run Nsight Compute too.

    Returns:
        False when a part failed; the others are there.
    """
    ncu = shutil.which("ncu") if with_ncu else None
    if with_ncu and ncu is None:
        say("Nsight Compute's ncu is not on the PATH, so its rows are left out")
    done = [_train(case, out) and (ncu is None or _ncu(case, out, ncu)) for case in cases(batch)]
    return all(done)


def _train(case: Case, out: Path) -> bool:
    folder = out / case.name
    if _is_measured(folder):
        say(f"{case.name}: measured already")
        return True
    say(f"{case.name}: roofprobe ...")
    wall = _process(train_command(case, folder), folder / "train.txt")
    if wall is None or not _is_measured(folder):
        say(f"{case.name}: not measured: {_last_line(folder / 'train.txt')}")
        return False
    _keep_wall(folder, "cupti", wall)
    return True


def _is_measured(folder: Path) -> bool:
    try:
        return Measurement.load(folder / "run.json").complete
    except RoofprobeError:  # none yet, or one that is of no use
        return False


def _ncu(case: Case, out: Path, ncu: str) -> bool:
    folder = out / case.name
    log, part = folder / LOG, folder / "ncu.part.csv"
    if log.exists():
        say(f"{case.name}: ncu ran already")
        return True
    chip = Measurement.load(folder / "run.json").environment.chip
    if chip is None:
        say(f"{case.name}: no ncu run: the measurement names no chip")
        return False
    say(f"{case.name}: ncu ...")
    with tempfile.TemporaryDirectory() as scratch:  # the program under ncu has nothing to keep
        program = train_command(case, Path(scratch))
        wall = _process(ncu_command(ncu, chip, part, program), folder / "ncu.txt")
    if wall is None or not part.exists():
        say(f"{case.name}: ncu failed: {_last_line(folder / 'ncu.txt', part)}")
        return False
    try:
        launches = import_files([part]).whole.launches
    except RoofprobeError as error:
        say(f"{case.name}: ncu's log is of no use: {error}")
        return False
    write_whole(log, gzip.compress(part.read_bytes(), mtime=0))
    part.unlink()
    _keep_wall(folder, "ncu", wall)
    say(f"{case.name}: ncu saw {launches} launches")
    return True


def _process(command: Sequence[str], output: Path) -> float | None:
    """Runs a process with its output in a file; its wall clock in s, or None when it failed."""
    output.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with output.open("w", encoding="utf-8") as stream:
        stream.write(f"$ {shlex.join(command)}\n")
        stream.flush()
        code = subprocess.run(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},  # ncu writes numbers as the locale does
        ).returncode
    return time.perf_counter() - started if code == 0 else None


def _last_line(*files: Path) -> str:
    """The end of the first file with an end: an error is said last."""
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        lines = [line.strip() for line in text.splitlines()[1:] if line.strip()]
        if lines:
            return f"{lines[-1]} ({path})"
    return f"it said nothing ({files[0]})"


def _keep_wall(folder: Path, source: str, wall: float) -> None:
    body = _walls(folder) | {source: wall}
    write_whole(folder / "wall.json", (json.dumps(body, indent=1) + "\n").encode())


def _walls(folder: Path) -> dict[str, float]:
    path = folder / "wall.json"
    try:
        body = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


# -- The table ----------------------------------------------------------------------------


class Found(NamedTuple):
    """What lies in a folder.

    Attributes:
        rows: Of the table, by model, batch size and TF32, ours before ncu's.
        traffic: DRAM bytes of the runs that ncu counted too, in the same order.
        notes: What could not be read and why, and the importer's warnings.
        first: The first run, which says the GPU whose roofs are drawn.
    """

    rows: tuple[Row, ...]
    traffic: tuple[Traffic, ...]
    notes: tuple[str, ...]
    first: Measurement | None


def read(out: Path) -> Found:
    """Reads every run of the two models in a folder.

    Args:
        out: Folder of the study; each run is a folder in it.

    Raises:
        UsageError: there is no such folder.
    """
    if not out.is_dir():
        raise UsageError(f"no folder {out}: run the study first, without --draw")
    found: list[tuple[Measurement, _Read]] = []
    notes: list[str] = []
    for path in sorted(out.glob("*/run.json")):
        name = path.parent.name
        try:
            record = Measurement.load(path)
        except RecordError as error:
            notes.append(f"not in the table: {name}: {error}")
            continue
        if record.workload.get("arch") not in MODELS or record.environment.device_kind != "cuda":
            continue
        other = [f"{key} {record.workload[key]}" for key in PLAIN if _differs(record, key)]
        if other:
            notes.append(f"not in the table: {name}: not the study's setting ({', '.join(other)})")
            continue
        if record.regions is not None:
            continue  # the same step once more, by its parts
        if record.source != "cupti":
            notes.append(f"not in the table: {name}: estimated ({record.source}), not counted")
            continue
        found.append((record, _read(record, path.parent)))
    order = list(MODELS)
    found.sort(
        key=lambda item: (
            order.index(str(item[0].workload["arch"])),
            item[1].rows[0].batch or 0,
            item[1].rows[0].tf32 == OFF,
            item[1].rows[0].run,
        )
    )
    parts = [part for _, part in found]
    alone = [f"`{part.rows[0].run}`" for part in parts if len(part.rows) == 1]
    if alone:
        notes.append(f"no row of ncu for {', '.join(alone)}: it was not run, or not to its end")
    return Found(
        rows=tuple(row for part in parts for row in part.rows),
        traffic=tuple(line for part in parts for line in part.traffic),
        notes=tuple(dict.fromkeys([note for part in parts for note in part.notes] + notes)),
        first=found[0][0] if found else None,
    )


class _Read(NamedTuple):
    """What one run gives to ``Found``."""

    rows: list[Row]
    traffic: list[Traffic]
    notes: list[str]


def _differs(record: Measurement, key: str) -> bool:
    return record.workload.get(key, PLAIN[key]) != PLAIN[key]


def _read(record: Measurement, folder: Path) -> _Read:
    """Rows of a run: ours, that of ncu's log and that of the cross-check, where there are any."""
    walls = _walls(folder)
    ours = measured_row(record, folder.name, walls.get("cupti"))
    read = _Read([ours], [], [])
    log = folder / LOG
    if log.exists():
        try:
            imported = _imported(log)
        except RoofprobeError as error:
            read.notes.append(f"not in the table: {folder.name}: ncu's log: {error}")
        else:
            read.rows.append(ncu_row(imported, ours, walls.get("ncu")))
            read.notes.extend(f"ncu's logs: {text}" for text in imported.warnings)
            byte = imported.whole.byte
            read.traffic.extend(
                _traffic(record, ours, byte.get("dram_read"), byte.get("dram_write"))
            )
    if record.crosscheck is not None:
        flushed = _as_ncu_counted(record, record.crosscheck, _KERNEL_REPLAY)
        alone = figures(_as_ncu_counted(record, record.crosscheck, _RANGE_REPLAY)).byte
        read.rows.append(checked_row(flushed, ours, record.crosscheck))
        byte = {name: figure.value for name, figure in figures(flushed).byte.items()}
        unflushed = alone["dram"].value if "dram" in alone else None
        read.traffic.extend(
            _traffic(record, ours, byte.get("dram_read"), byte.get("dram_write"), unflushed)
        )
        read.notes.append(f"`{folder.name}`: {crosscheck.summary(record.crosscheck)}")
    return read


def _imported(log: Path) -> Imported:
    """Reads a compressed log of ncu's.

    Raises:
        RoofprobeError: it cannot be read, or is no log.
    """
    try:
        text = gzip.decompress(log.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{log}: cannot be read ({error})") from None
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch, log.stem)
        plain.write_bytes(text)
        try:
            return import_files([plain])
        except RoofprobeError as error:
            raise RecordError(str(error).replace(str(plain), str(log))) from None


def _traffic(
    record: Measurement,
    row: Row,
    flushed_read: float | None,
    flushed_write: float | None,
    unflushed: float | None = None,
) -> list[Traffic]:
    """One line, or none where a part is missing."""
    ours = figures(record).byte
    read, write = (ours[name].value if name in ours else None for name in _DRAM)
    if read is None or write is None or flushed_read is None or flushed_write is None:
        return []
    run = (row.run, row.model, row.batch, row.tf32)
    return [Traffic(*run, read, write, flushed_read, flushed_write, unflushed)]


def measured_row(record: Measurement, run: str, wall: float | None) -> Row:
    """The row of a measured run.

    Args:
        record: The run.
        run: Its folder's name.
        wall: What the process took, s.
    """
    found = figures(record)
    reasons: dict[str, str] = {}

    def value(name: str, figure: Any) -> float | None:
        if figure is None:
            reasons[name] = "not asked for in this run"
            return None
        if figure.value is None:
            reasons[name] = figure.reason or "unknown"
        return figure.value  # type: ignore[no-any-return]

    total = value("flop", found.flop_total)
    tensor = [f.value for path, f in found.flop.items() if path in _tensor_paths(record)]
    known = [part for part in tensor if part is not None]
    frac = sum(known) / total if total and len(known) == len(tensor) else None
    if frac is None:
        reasons["tensor_frac"] = reasons.get("flop", "a tensor-core counter has no value")
    study = found.study
    if wall is None:
        reasons["wall"] = "the process was not timed"
    batch = record.workload.get("batch_size")
    return Row(
        run=run,
        model=MODELS[str(record.workload["arch"])],
        batch=int(batch) if batch is not None else None,
        gpu=record.environment.device_name,
        tf32=tf32_of(record),
        source=record.source,
        study_flop=value("study_flop", study and study.flop),
        flop=total,
        tensor_frac=frac,
        dram_byte=value("dram_byte", found.byte.get("dram")),
        study_intensity=value("study_intensity", study and study.intensity),
        intensity=value("intensity", found.intensity.get("dram")),
        study_flop_per_s=value("study_flop_per_s", study and study.flop_per_s),
        flop_per_s=value("flop_per_s", found.flop_per_s),
        flop_per_s_kernel=value("flop_per_s_kernel", found.flop_per_s_kernel),
        wall=wall,
        reasons=reasons,
    )


def ncu_row(imported: Imported, beside: Row, wall: float | None) -> Row:
    """The row of ncu's log of the same run.

    Args:
        imported: The log.
        beside: Our row, which says what was run.
        wall: What the process took, s.
    """
    whole = imported.whole
    flop, byte, time_s = whole.flop.get("sass_fp32"), whole.byte.get("dram"), whole.time_s
    needs = {
        "study_flop": {"flop.sass_fp32": flop},
        "dram_byte": {"byte.dram": byte},
        "study_intensity": {"flop.sass_fp32": flop, "byte.dram": byte},
        "study_flop_per_s": {"flop.sass_fp32": flop, "time_s": time_s},
    }
    reasons = {
        name: imported.reasons.get(key, f"{key} is not in ncu's log")
        for name, parts in needs.items()
        for key, value in parts.items()
        if value is None
    }
    for name in ("flop", "tensor_frac", "intensity", "flop_per_s", "flop_per_s_kernel"):
        reasons[name] = "the study's metrics do not count tensor cores"
    if wall is None:
        reasons["wall"] = "the process was not timed"
    return Row(
        *(beside.run, beside.model, beside.batch, beside.gpu, beside.tf32, "ncu"),
        study_flop=flop,
        dram_byte=byte,
        study_intensity=flop / byte if flop is not None and byte else None,
        study_flop_per_s=flop / time_s if flop is not None and time_s else None,
        wall=wall,
        reasons=reasons,
    )


_DRAM: Final = ("dram_read", "dram_write")
_KERNEL_REPLAY, _RANGE_REPLAY = "kernel replay", "application-range replay"  # as cross-checks say


def _as_ncu_counted(record: Measurement, check: CrossCheck, mode: str) -> Measurement:
    """The run with ncu's values of a way of replay in place of ours."""
    rows = [row for row in check.counters if row.mode.startswith(mode)]
    return replace(
        record,
        source="ncu",
        metrics=tuple(row.metric for row in rows),
        rounds=(replace(record.rounds[0], counters={row.metric: row.other for row in rows}),),
        unavailable={row.metric: row.reason for row in rows if row.other is None and row.reason},
        timing=None,
        kernels=None,
        crosscheck=None,
    )


def checked_row(flushed: Measurement, beside: Row, check: CrossCheck) -> Row:
    """The row of what ncu counted in a cross-check, under kernel replay.

    Args:
        flushed: The run with those values.
        beside: Our row, which says what was run.
        check: The cross-check.
    """
    wall = check.duration.get(f"ncu, {_KERNEL_REPLAY}")
    row = measured_row(flushed, beside.run, wall)
    untimed = "a cross-check takes no times from ncu"
    names = ("study_flop_per_s", "flop_per_s", "flop_per_s_kernel")
    return replace(row, reasons=dict(row.reasons) | dict.fromkeys(names, untimed))


def tf32_of(record: Measurement) -> str | None:
    """What ran in TF32; None where the record does not tell."""
    if not any(path == "tensor_tf32" for path in metrics.flop_paths(record.environment.chip)):
        return NO_TF32
    precision = record.environment.precision
    convolutions, products = (
        precision.get(name) for name in ("cudnn_allow_tf32", "matmul_allow_tf32")
    )
    if convolutions is None or products is None:
        return None
    if convolutions:
        return EVERYWHERE if products else CONVOLUTIONS
    return "products" if products else OFF


def _tensor_paths(record: Measurement) -> list[str]:
    paths = metrics.flop_paths(record.environment.chip)
    return [path for path in paths if path.startswith("tensor_")]


_COLUMNS: Final = (
    *("model", "batch", "GPU", "TF32", "source", "study's FLOP", "all FLOP", "on tensor cores"),
    *("DRAM bytes", "study's FLOP/B", "all FLOP/B", "study's TFLOP/s"),
    *("TFLOP/s, step", "TFLOP/s, kernels", "wall", "run"),
)


def table(found: Found) -> str:
    """The tables in markdown, the published rows last, with notes below."""
    rows = (*found.rows, *PUBLISHED)
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *(_line(_cells(row)) for row in rows)]
    notes = [
        "TFLOP/s of the study's formula and `kernels` are over the sum of kernel durations, `step` "
        "over the unprofiled step. One FMA is two FLOP. `wall` is the whole process.",
        "`cupti` is roofprobe: caches as training leaves them, clocks as they are. `ncu` flushes "
        "the caches before every kernel. Its rows with a rate are the study's own command "
        "(application replay), those without are cross-checks (kernel replay, more counters).",
        "`published` rows are as printed, `~` and all; batch size, TF32, FLOP and bytes are not "
        "given there.",
    ]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in found.rows:
        for name, reason in row.reasons.items():
            names = reasons.setdefault((row.source, reason), [])
            if name not in names:
                names.append(name)
    notes += [
        f"n/a in rows of {source}: {', '.join(names)}: {reason}"
        for (source, reason), names in reasons.items()
    ]
    notes += found.notes
    if found.traffic:
        lines += ["", "DRAM bytes of the steps that ncu counted too:", "", _line(_TRAFFIC)]
        lines += [_line(["---"] * len(_TRAFFIC)), *(_line(_flushed(t)) for t in found.traffic)]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


_TRAFFIC: Final = (
    *("model", "batch", "TF32", "read", "written", "ncu, flushed: read", "written", "both"),
    *("ncu, not flushed: both", "run"),
)


def _flushed(line: Traffic) -> list[str]:
    ours, flushed = line.read + line.write, line.flushed_read + line.flushed_write
    return [
        line.model,
        str(line.batch) if line.batch is not None else "?",
        line.tf32 or "?",
        si(line.read, "B"),
        si(line.write, "B"),
        _beside(line.flushed_read, line.read),
        _beside(line.flushed_write, line.write),
        _beside(flushed, ours),
        _beside(line.unflushed, ours),
        f"`{line.run}`",
    ]


def _beside(value: float | None, ours: float) -> str:
    """A number of bytes, and by how much it differs from ours."""
    return si(value, "B") + (f" ({value / ours - 1:+z.1%})" if value is not None and ours else "")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row) -> list[str]:
    about = "~" if row.source == PUBLISHED_SOURCE else ""
    return [
        row.model,
        str(row.batch) if row.batch is not None else "?",
        row.gpu,
        row.tf32 or "?",
        row.source,
        si(row.study_flop, "FLOP"),
        si(row.flop, "FLOP"),
        percent(row.tensor_frac),
        si(row.dram_byte, "B"),
        about + number(row.study_intensity, 3),
        number(row.intensity, 3),
        about + _tera(row.study_flop_per_s),
        _tera(row.flop_per_s),
        _tera(row.flop_per_s_kernel),
        seconds(row.wall, 3),
        f"`{row.run}`" if row.run else "",
    ]


def _tera(flop_per_s: float | None) -> str:
    return number(flop_per_s / 1e12 if flop_per_s is not None else None, 3)


def as_json(found: Found) -> str:
    """The table as JSON, in base units, with the reason of everything that is null."""
    body = {
        "about": "One training step of each run; base units; one FMA is two FLOP.",
        "rows": [asdict(row) for row in (*found.rows, *PUBLISHED)],
        "traffic": [asdict(line) for line in found.traffic],
        "notes": list(found.notes),
    }
    return json.dumps(body, indent=1, allow_nan=False) + "\n"


# -- The picture --------------------------------------------------------------------------

_COLOURS: Final = {"ResNet-18": "#0072b2", "AlexNet": "#b84f00"}
_GREY: Final = "#9a9a9a"
_Side = Literal["above", "below", "right", "beyond"]
_LIMITS: Final = ((0.13, 600.0), (0.05, 1000.0))  # FLOP/byte, TFLOP/s


def picture(found: Found, batch: int) -> bytes:
    """The roofline of the four runs at a batch size, as a PNG.

    Args:
        found: What was read.
        batch: Images of a step.

    Raises:
        UsageError: none of the four runs is there.
    """
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = {case.name for case in cases(batch)}
    rows = [row for row in found.rows if row.run in names]
    if not rows or found.first is None:
        raise UsageError(f"no run at batch size {batch} is there, so there is nothing to draw")
    machine = found.first.environment
    spec = device.find(
        device_name=machine.device_name,
        chip=machine.chip,
        sm_count=machine.sm_count,
        memory_byte=machine.memory_byte,
    )
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(7.4, 5.9), dpi=150)
        canvas = FigureCanvasAgg(figure)
        ax = figure.add_axes((0.09, 0.27, 0.885, 0.675))
        ax.set(xscale="log", yscale="log", xlim=_LIMITS[0], ylim=_LIMITS[1])
        ax.set_xlabel("Arithmetic intensity (FLOP/byte of DRAM)")
        ax.set_ylabel("TFLOP/s over kernel time")
        ax.set_title(
            f"Training at batch {batch} on {machine.device_name}, and the published study",
            size=11,
            loc="left",
        )
        ax.grid(which="major", color="#eeeeee", linewidth=0.6)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        for name in PUBLISHED_GPUS.values():
            if spec is None or spec.name.split()[0] != name.split()[0]:
                _roofs(ax, next(s for s in device.catalogue() if s.name == name), light=True)
        if spec is not None:
            _roofs(ax, spec, light=False)
        for row in (*rows, *PUBLISHED):
            _draw(ax, row)
        roofs = f"{spec.name}, " if spec is not None else ""
        _legend(
            ax,
            f"{roofs}{', '.join(PUBLISHED_GPUS.values())}",
            with_ncu=any(row.source == "ncu" for row in rows),
        )
        data = io.BytesIO()
        canvas.print_png(data, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return data.getvalue()


def _roofs(ax: Any, spec: device.DeviceSpec, *, light: bool) -> None:
    """Draws a product's fp32, TF32 and DRAM roofs with their names on them."""
    short = spec.name.split()[0]
    colour, width = (_GREY, 0.8) if light else ("#333333", 1.4)
    roofs = ceilings_of(spec, ("sass_fp32", "tensor_tf32"))
    bandwidth = next(roof.value for roof in roofs if roof.kind == "byte")
    peaks = {roof.name: roof.value for roof in roofs if roof.kind == "flop"}
    low, high = _LIMITS[0]
    top = max(peaks.values())
    style = {"color": colour, "linewidth": width, "zorder": 1 if light else 2}
    ax.plot((low, top / bandwidth), (low * bandwidth / 1e12, top / 1e12), **style)
    for name, peak in peaks.items():
        ax.plot((peak / bandwidth, high), (peak / 1e12, peak / 1e12), **style)
        ax.annotate(
            f"{short} {'TF32' if 'TF32' in name else 'FP32'} {peak / 1e12:g}",
            (high, peak / 1e12),
            (-3, -2 if light and "V100" in short else 2),
            textcoords="offset points",
            ha="right",
            va="top" if light and "V100" in short else "bottom",
            size=7,
            color=colour if not light else "#777777",
        )
    place = 2.2 if light else 3.1  # light ones under their lines, away from the arrows
    ax.annotate(
        f"{short} DRAM {bandwidth / 1e12:g} TB/s",
        (place, place * bandwidth / 1e12),
        (0, -3 if light else 2),
        textcoords="offset points",
        ha="center",
        va="top" if light else "bottom",
        rotation=_slope(ax),
        rotation_mode="anchor",
        size=7,
        color=colour if not light else "#777777",
    )


def _slope(ax: Any) -> float:
    """The angle of a bandwidth roof in the picture, degrees."""
    import math

    (x0, x1), (y0, y1) = _LIMITS
    box, size = ax.get_position(), ax.figure.get_size_inches()
    run = box.width * size[0] / math.log(x1 / x0)
    rise = box.height * size[1] / math.log(y1 / y0)
    return math.degrees(math.atan2(rise, run))


def _draw(ax: Any, row: Row) -> None:
    colour = _COLOURS[row.model]
    counted = _place(row.study_intensity, row.study_flop_per_s)
    everything = _place(row.intensity, row.flop_per_s_kernel)
    style = {"linestyle": "", "markersize": 6.5, "color": colour, "zorder": 4}
    if row.source == PUBLISHED_SOURCE and counted is not None:
        ax.plot(*counted, marker="D", markerfacecolor="white", **style)
        side: _Side = "right" if row.model == "ResNet-18" else "below"
        _label(ax, f"{row.model}, {row.gpu}\npublished", counted, colour, side)
    elif row.source == "ncu" and counted is not None:
        ax.plot(*counted, marker="x", **style | {"markersize": 9, "zorder": 5})
    elif counted is not None or everything is not None:
        off = row.tf32 != CONVOLUTIONS
        if counted is not None:
            ax.plot(*counted, marker="^" if off else "o", **style)
        if everything is not None:
            ax.plot(*everything, marker="^" if off else "s", **style)
        if counted is not None and everything is not None and _apart(counted, everything):
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.1, "shrinkA": 5}
            ax.annotate("", everything, counted, arrowprops=arrow | {"shrinkB": 5}, zorder=3)
            side = "below" if row.model == "ResNet-18" else "above"
            _label(ax, f"{row.model}, study's formula", counted, colour, side)
            _label(ax, f"{row.model}, all FLOP", everything, colour, "above")
        else:
            at = everything or counted
            assert at is not None
            tf32 = "TF32 off" if row.tf32 == OFF else f"TF32 {row.tf32 or 'unknown'}"
            side = "below" if row.model == "ResNet-18" else "beyond"
            _label(ax, f"{row.model}, {tf32}", at, colour, side)


def _place(intensity: float | None, flop_per_s: float | None) -> tuple[float, float] | None:
    return (intensity, flop_per_s / 1e12) if intensity and flop_per_s else None


def _apart(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return max(second[0] / first[0], first[0] / second[0]) > 1.2


def _label(
    ax: Any,
    text: str,
    at: tuple[float, float],
    colour: str,
    side: _Side,
) -> None:
    offset, ha, va = {
        "above": ((0, 7), "center", "bottom"),
        "below": ((0, -7), "center", "top"),
        "right": ((8, 0), "left", "center"),
        "beyond": ((15, 0), "left", "center"),  # past the same step under ncu
    }[side]
    ax.annotate(
        text,
        at,
        offset,
        textcoords="offset points",
        ha=ha,
        va=va,
        size=7.5,
        linespacing=1.1,
        color=colour,
        path_effects=_halo(),
        zorder=6,
    )


def _halo() -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def _legend(ax: Any, roofs: str, *, with_ncu: bool) -> None:
    from matplotlib.lines import Line2D

    keys = [
        ("o", "TF32 convolutions (PyTorch's setting), study's formula"),
        ("s", "the same step, all FLOP"),
        ("^", "TF32 off, where the two agree"),
        *([("x", "the same steps under ncu, study's formula")] if with_ncu else []),
        ("D", "published, study's formula"),
    ]
    handles = [
        Line2D(
            *([], []),
            linestyle="",
            marker=marker,
            label=text,
            color="#333333",
            markerfacecolor="white" if marker == "D" else "#333333",
            markersize=6,
        )
        for marker, text in keys
    ]
    ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.12),
        ncols=2,
        fontsize=7.5,
        frameon=False,
    )
    ax.annotate(
        f"Roofs are dense datasheet peaks: {roofs}. Which V100 and A100 were\n"
        "used is not published, nor which batch size and TF32 setting each published point has.",
        (0, 0),
        (0, -86),
        xycoords="axes fraction",
        textcoords="offset points",
        va="top",
        size=7,
        color="#333333",
        annotation_clip=False,
    )


# -- The command line ---------------------------------------------------------------------


def draw(out: Path, batch: int) -> None:
    """Writes table and picture from what lies in a folder.

    Args:
        out: Folder of the study.
        batch: Images of a step, for the picture.

    Raises:
        RoofprobeError: there is nothing to draw, or a file cannot be written.
    """
    found = read(out)
    if not found.rows:
        why = "".join(f"; {note}" for note in found.notes)
        raise RecordError(f"{out} has no run of {' or '.join(MODELS)} on a GPU in it{why}")
    text = table(found)
    print(text)
    files = [
        write_whole(out / "study.md", text.encode()),
        write_whole(out / "study.json", as_json(found).encode()),
    ]
    try:
        files.append(write_whole(out / f"study-b{batch}.png", picture(found, batch)))
    except UsageError as error:
        say(str(error))
    for path in files:
        print(path)


def say(text: str) -> None:
    """A line of progress."""
    print(re.sub(r"\s+", " ", text), file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0, 1 when a part failed, 2 when it makes no sense, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(prog=f"python harness/{PROG}.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("-b", "--batch-size", type=int, default=BATCH, metavar="N")
    parser.add_argument("--no-ncu", action="store_true", help="leave Nsight Compute out")
    parser.add_argument("--draw", action="store_true", help="only table and picture")
    args = parser.parse_args(argv)
    try:
        if args.batch_size < 1:
            raise UsageError(f"--batch-size {args.batch_size} is below 1")
        whole = args.draw or run_all(args.out, args.batch_size, with_ncu=not args.no_ncu)
        draw(args.out, args.batch_size)
    except KeyboardInterrupt:
        say("interrupted; run it again to go on from here")
        return 130
    except (RoofprobeError, OSError) as error:
        say(f"{PROG}: error: {error}")
        return 2 if isinstance(error, UsageError) else 1
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
