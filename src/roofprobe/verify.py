"""The cross-check: the same step under Nsight Compute, compared counter by counter.

ncu is run twice, because none of its ways answers everything:

* kernel replay counts instructions and tensor operations (range replay refuses SASS metrics), and
  gives the bytes of its default, which flushes the caches before every kernel;
* application-range replay without cache control counts the bytes of the step as it runs, caches
  warm from kernel to kernel, which is what roofprobe counts.

Clocks are left alone in both. The program's own ``roofprobe.measure`` marks the step
(``counters.external``).
"""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roofprobe import metrics
from roofprobe.counters import external
from roofprobe.errors import RoofprobeError, UsageError
from roofprobe.ncu_import import Imported, import_files
from roofprobe.ncu_import.messages import PERMISSION, refused
from roofprobe.record import CheckedCounter, CrossCheck, Measurement

# Both read the same hardware: instructions repeat to the digit but for dropout, whose masks move
# fadd by 0.02%; bytes of the same question differ by up to 0.5% (measured, H200).
COUNT_TOLERANCE: Final = 1e-3
BYTE_TOLERANCE: Final = 2e-2

# Without a word from ncu or the program for this long, s, a run hangs. The slowest single launch
# seen under kernel replay took seconds.
STALL: Final = 300.0

_KERNEL: Final = "kernel replay"
_RANGE: Final = "application-range replay"
_FLUSHED: Final = "kernel replay, caches flushed"

# Communication kernels wait for each other across processes; replayed one at a time they never
# end. Spelled without lookahead, which not every regular-expression engine has.
_NOT_NCCL: Final = "regex:^([^n]|n[^c]|nc[^c]|ncc[^l]).*"

_FLUSH_REASON: Final = (
    "another question: ncu flushes the caches before each kernel, so that what one kernel left "
    "there for the next is read again (reads up), and stops counting before dirty lines are "
    "written back (writes down)"
)
_HALF_A_SECOND: Final = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ncu:
    """An installed Nsight Compute.

    Attributes:
        path: The program.
        version: As it prints it, such as ``2025.3.1.0``.
        chips: Chips that it can profile, in CUPTI's spelling; empty where it does not tell.
    """

    path: str
    version: str
    chips: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of ncu: how, and what for."""

    mode: str
    title: str
    metrics: tuple[str, ...]
    options: tuple[str, ...]


def find_ncu(given: str | None = None) -> Ncu:
    """Finds Nsight Compute and asks it what it is.

    Args:
        given: Path or name, where the user knows better than ``PATH``.

    Raises:
        UsageError: there is none, or it does not answer.
    """
    path = next((found for name in _candidates(given) if (found := shutil.which(name))), None)
    if path is None:
        asked = f"{given} is not a program" if given else "ncu is not on PATH nor where CUDA has it"
        raise UsageError(
            f"the cross-check needs Nsight Compute, and {asked}: install it (nsight-compute, in "
            "every CUDA toolkit) or name it with roofprobe verify --ncu PATH"
        )
    version = re.search(r"Version (\S+)", _answer(path, "--version"))
    if version is None:
        raise UsageError(f"{path} --version does not answer as Nsight Compute does")
    chips = re.findall(r"\b[a-z]{2}[0-9]{2}[0-9a-z]\b", _answer(path, "--list-chips"))
    return Ncu(path, version[1], frozenset(chip.upper() for chip in chips))


def cross_check(
    record: Measurement,
    command: Sequence[str],
    ncu: Ncu,
    *,
    logs: Path | None = None,
    stall: float = STALL,
    say: Say = lambda line: None,
) -> CrossCheck:
    """Runs a program under ncu and compares what it counts with a record.

    A run that fails leaves its counters without a value and with the reason; the rest stands.

    Args:
        record: What roofprobe measured of the same program.
        command: The program.
        ncu: Which ncu.
        logs: Folder in which ncu's logs are kept; a temporary one by default.
        stall: Seconds without any output after which a run is stopped.
        say: Takes progress, a line at a time.

    Raises:
        UsageError: the record has no hardware counters, or this ncu does not know the chip.
    """
    runs = _runs(record)
    _check(record, ncu)
    rows: list[CheckedCounter] = []
    duration = {"roofprobe, beyond the steps": sum(record.overhead.values())}
    left_out = _left_out(record)
    for run in runs:
        say(f"=> ncu, {run.title}: {len(run.metrics)} metrics")
        started = time.perf_counter()
        counted: Imported | None = None
        reason: str | None = None
        try:
            counted = _profile(run, command, ncu, logs, stall)
        except RoofprobeError as error:
            reason = str(error)
            say(f"=> ncu, {run.title}, failed: {reason}")
        duration[f"ncu, {run.title}"] = time.perf_counter() - started
        rows += _compared(record, run, counted, reason)
        if counted is not None and counted.failed_kernels:
            left_out[f"kernels that ncu could not profile ({run.title})"] = ", ".join(
                counted.failed_kernels
            )
    return CrossCheck(
        tool=f"ncu {ncu.version}",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=tuple(command),
        counters=tuple(_multiples_named(rows)),
        duration=duration,
        left_out=left_out,
    )


def applied(record: Measurement, check: CrossCheck) -> Measurement:
    """The record with the cross-check in it."""
    return dataclasses.replace(record, crosscheck=check)


# -- What is compared ---------------------------------------------------------------------


def _runs(record: Measurement) -> tuple[_Run, ...]:
    rows = metrics.rows(record.metrics)
    counts = tuple(row.name for row in rows if row.kind in ("flop", "op"))
    byte = tuple(row.name for row in rows if row.kind in ("byte", "sector"))
    if not counts and not byte:
        raise UsageError(
            "none of the record's metrics is one that ncu is compared on: measure one of the sets "
            f"{', '.join(metrics.SET_NAMES)}"
        )
    kernel = (
        *("--replay-mode", "kernel", "--profile-from-start", "off"),
        *("--kernel-name-base", "function", "--kernel-name", _NOT_NCCL),
    )
    ranges = ("--replay-mode", "app-range", "--cache-control", "none")
    found = [_Run(_KERNEL, _KERNEL, (*counts, *byte), kernel)]
    if byte:
        found.append(_Run(_RANGE, f"{_RANGE} without cache control", byte, ranges))
    return tuple(found)


def _check(record: Measurement, ncu: Ncu) -> None:
    if record.source != "cupti" or not record.rounds:
        raise UsageError(
            f"the record holds no complete round of hardware counters (its source is "
            f"{record.source}): measure with --backend cupti first"
        )
    chip = record.environment.chip
    if ncu.chips and chip is not None and chip not in ncu.chips:
        raise UsageError(
            f"ncu {ncu.version} ({ncu.path}) does not know chip {chip}: install one that does (the "
            "newest for a new GPU; for Volta 2025.2 or older), or name it with roofprobe verify "
            "--ncu PATH"
        )


def _left_out(record: Measurement) -> dict[str, str]:
    found = {
        "nccl kernels": "they wait for other processes and cannot be replayed one at a time; the "
        f"filter of {_KERNEL} leaves them out",
    }
    for row in metrics.rows(record.metrics):
        if row.kind == "second":
            found[row.name] = "ncu runs kernels one at a time, so that its time is another one"
        elif row.kind in ("coverage_sass", "coverage_hardware"):
            found[row.name] = "a check of the SASS counters, which are compared themselves"
    unknown = [name for name in record.metrics if name not in metrics.TABLE]
    return found | dict.fromkeys(unknown, "not a count of FLOP or bytes")


def _compared(
    record: Measurement, run: _Run, counted: Imported | None, reason: str | None
) -> list[CheckedCounter]:
    found = []
    processes = max(1, len(counted.processes)) if counted is not None else 1
    for name in run.metrics:
        byte = metrics.TABLE[name].kind in ("byte", "sector")
        shown_only = byte and run.mode == _KERNEL
        other = counted.counters.get(name) if counted is not None else None
        row = CheckedCounter(
            metric=name,
            roofprobe=record.value(name),
            other=None if other is None else other / processes,
            mode=_FLUSHED if shown_only else run.mode,
            tolerance=None if shown_only else BYTE_TOLERANCE if byte else COUNT_TOLERANCE,
            agrees=None,
        )
        if shown_only:
            row = dataclasses.replace(row, reason=reason or _FLUSH_REASON)
        else:
            row = _judged(row, record, counted, reason)
        found.append(row)
    return found


def _judged(
    row: CheckedCounter, record: Measurement, counted: Imported | None, reason: str | None
) -> CheckedCounter:
    assert row.tolerance is not None
    if row.roofprobe is None:
        why = record.unavailable.get(row.metric, "not measured")
        return dataclasses.replace(row, agrees=False, reason=f"roofprobe has no value: {why}")
    if row.other is None:
        if reason is None:
            known = counted.unavailable if counted is not None else {}
            why = known.get(row.metric, "no such column in its output")
            reason = f"ncu has no value: {why}"
        return dataclasses.replace(row, agrees=False, reason=reason)
    difference = abs(row.roofprobe - row.other)
    agrees = difference <= row.tolerance * max(abs(row.other), abs(row.roofprobe))
    return dataclasses.replace(row, agrees=agrees)


def _multiples_named(rows: Sequence[CheckedCounter]) -> list[CheckedCounter]:
    """Says so where ncu saw several steps: everything is then off by one whole factor."""
    ratios = [
        row.other / row.roofprobe
        for row in rows
        if row.tolerance == COUNT_TOLERANCE and row.other and row.roofprobe
    ]
    steps = round(ratios[0]) if ratios else 1
    if steps < 2 or any(abs(ratio / steps - 1) > COUNT_TOLERANCE for ratio in ratios):
        return list(rows)
    why = (
        f"ncu counted {steps} times as much: the program brackets {steps} steps with the CUDA "
        "profiler's start and stop where roofprobe measured one"
    )
    return [
        dataclasses.replace(row, reason=why) if row.agrees is False and row.other else row
        for row in rows
    ]


# -- Running ncu --------------------------------------------------------------------------


def _profile(
    run: _Run, command: Sequence[str], ncu: Ncu, logs: Path | None, stall: float
) -> Imported:
    """Runs the program under ncu and reads what ncu wrote.

    Raises:
        RoofprobeError: in one sentence, why there is nothing to read.
    """
    with tempfile.TemporaryDirectory(prefix="roofprobe-ncu-") as temporary:
        folder = logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        stem = run.mode.replace(" ", "-")
        log, output = folder / f"{stem}.csv", folder / f"{stem}.out"
        log.unlink(missing_ok=True)
        arguments = [
            *(ncu.path, "--csv", "--page", "raw", "--print-units", "base"),
            *("--log-file", str(log), "--target-processes", "all", "--clock-control", "none"),
            *(*run.options, "--metrics", ",".join(run.metrics), *command),
        ]
        status = _watched(arguments, log, output, stall)
        if status != 0:
            raise RoofprobeError(_failure(status, log, output))
        if not log.exists() or not log.read_bytes().strip():
            raise RoofprobeError(
                "ncu ended without an error and wrote nothing: run the same command under ncu by "
                f"hand to see why ({' '.join(arguments[:1] + list(command))})"
            )
        return import_files([log])


def _watched(arguments: Sequence[str], log: Path, output: Path, stall: float) -> int:
    """Runs a program and its children to the end, or stops them all.

    Raises:
        RoofprobeError: neither log nor output grew for ``stall`` seconds.
    """
    environment = {**os.environ, external.ENVIRONMENT: external.SOURCE, "LC_ALL": "C"}
    with output.open("wb") as stream:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            seen, since = (0, 0), time.monotonic()
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(_HALF_A_SECOND)
                sizes = (log.stat().st_size if log.exists() else 0, output.stat().st_size)
                if sizes != seen:
                    seen, since = sizes, time.monotonic()
                elif time.monotonic() - since > stall:
                    raise RoofprobeError(
                        f"ncu and the program printed nothing for {stall:.0f} s and were stopped: "
                        f"a program that waits for others (nccl) hangs under replay{_last(log)}"
                    )
        except BaseException:
            _stop(process)
            raise


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process and everything that it started, which may outlive it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)


def _failure(status: int, log: Path, output: Path) -> str:
    """Why ncu ended with an error, in a sentence."""
    text = _text(log) + "\n" + _text(output)
    if PERMISSION in text:
        return refused()
    number = -status if status < 0 else status - 128
    if status < 0 or 128 < status <= 128 + signal.NSIG:
        called = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        return (
            f"ncu or the program under it was killed by signal {called}"
            + (" (out of memory?)" if called == "SIGKILL" else "")
            + _last(output)
        )
    said = re.findall(r"==ERROR== *(.+)", text)
    # "An error occurred while trying to profile" and the like point to the line before them.
    if said:
        return f"ncu ended with status {status}; it said: {'; '.join(dict.fromkeys(said))[:400]}"
    return f"the program under ncu ended with status {status}{_last(output)}"


def _last(path: Path) -> str:
    lines = [line.strip() for line in _text(path).splitlines() if line.strip()]
    return f"; its last line: {lines[-1][:200]}" if lines else "; it printed nothing"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _candidates(given: str | None) -> list[str]:
    if given is not None:
        return [given]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    installed = sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    return ["ncu", *(f"{home}/bin/ncu" for home in homes if home), *map(str, installed)]


def _answer(path: str, option: str) -> str:
    try:
        done = subprocess.run(
            [path, option], capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} {option} does not run: {error}") from None
    return done.stdout
