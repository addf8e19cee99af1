"""Running a program under Nsight Compute: finds ncu, watches a run, says what went wrong.

The program's own ``roofprobe.measure`` marks the one step that ncu counts, and ends the program
there (``counters.external``). Clocks are left alone.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roofprobe import refusals
from roofprobe.counters import external
from roofprobe.errors import RoofprobeError, UsageError
from roofprobe.ncu_import.messages import Messages

# Without a word from ncu or the program for this long, s, a run hangs. The slowest single launch
# seen under kernel replay took seconds.
STALL: Final = 300.0

KERNEL: Final = "kernel replay"
RANGE: Final = "application-range replay"
FLUSHED: Final = f"{KERNEL}, caches flushed"  # ncu's default, before every pass of every kernel

# Communication kernels wait for each other across processes; replayed one at a time they never
# end. Spelled without lookahead, which not every regular-expression engine has.
NOT_NCCL: Final = "regex:^(n|nc|ncc|[^n].*|n[^c].*|nc[^c].*|ncc[^l].*)$"
NCCL_REASON: Final = "they wait for other processes and cannot be replayed one at a time"

_HALF_A_SECOND: Final = 0.5
_NAMED: Final = 3  # kernels that a message names

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

    def require(self, chip: str | None) -> None:
        """Makes sure that it can profile a chip.

        Raises:
            UsageError: it does not know the chip.
        """
        if self.chips and chip is not None and chip not in self.chips:
            raise UsageError(
                f"ncu {self.version} ({self.path}) does not know chip {chip}: install one that "
                "does (the newest for a new GPU; for Volta 2025.2 or older), or name it with "
                "--ncu PATH"
            )


@dataclass(frozen=True, slots=True)
class Run:
    """One run of ncu.

    Attributes:
        mode: How it replays; names its log.
        title: The same for people.
        metrics: What it counts.
        options: Of ncu, beside those that every run has.
    """

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
            f"Nsight Compute is needed, and {asked}: install it (nsight-compute, in every CUDA "
            "toolkit) or name it with --ncu PATH"
        )
    version = re.search(r"Version (\S+)", _answer(path, "--version"))
    if version is None:
        raise UsageError(f"{path} --version does not answer as Nsight Compute does")
    chips = re.findall(r"\b[a-z]{2}[0-9]{2}[0-9a-z]\b", _answer(path, "--list-chips"))
    return Ncu(path, version[1], frozenset(chip.upper() for chip in chips))


def kernel_replay(
    metrics: tuple[str, ...], kernels: str = NOT_NCCL, options: tuple[str, ...] = ()
) -> Run:
    """Each kernel of the step again and again, alone, until everything is counted.

    Args:
        metrics: What to count.
        kernels: Which, by their function names, as ncu's ``--kernel-name`` takes it.
        options: Further ones.
    """
    marked = ("--replay-mode", "kernel", "--profile-from-start", "off")
    names = ("--kernel-name-base", "function", "--kernel-name", kernels)
    return Run(KERNEL, KERNEL, metrics, (*marked, *names, *options))


def range_replay(metrics: tuple[str, ...]) -> Run:
    """The whole program again and again, caches warm from kernel to kernel."""
    options = ("--replay-mode", "app-range", "--cache-control", "none")
    return Run(RANGE, f"{RANGE} without cache control", metrics, options)


@contextmanager
def profiled(
    run: Run, command: Sequence[str], ncu: Ncu, *, logs: Path | None, stall: float
) -> Iterator[Path]:
    """Runs a program under ncu and hands over what ncu wrote, for as long as it is open.

    Args:
        run: What to count, and how.
        command: The program.
        ncu: Which ncu.
        logs: Folder in which the log is kept; None for one that goes away.
        stall: Seconds without any output after which the run is stopped.

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
        yield log


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
                        "a program that waits for others (nccl) hangs under replay"
                        + _last(_lines(log), "ncu")
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
    """Why ncu ended with an error, and what to do about it, in a sentence."""
    messages = Messages(wsl=refusals.under_wsl())
    for line in _lines(log):
        messages.take(line)
    # ncu writes there as well, what it has to say before it opens its log.
    printed = [line for line in _lines(output) if not messages.take(line)]
    said = "; ".join(filter(None, (_named(messages.failed), messages.cause())))
    number = -status if status < 0 else status - 128
    if status < 0 or 128 < status <= 128 + signal.NSIG:
        called = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        ended = f"ncu or the program under it was killed by signal {called}"
        ended += " (out of memory?)" if called == "SIGKILL" else ""
    else:
        ended = f"{'ncu' if said else 'the program under ncu'} ended with status {status}"
    return f"{ended}{said and f'; {said}'}{_last(printed, 'the program')}"


def _named(kernels: Sequence[str]) -> str:
    """Kernels that failed, the first few by name; empty where none did."""
    rest = len(kernels) - _NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"failed: {', '.join(kernels[:_NAMED])}{more}" if kernels else ""


def _last(lines: Sequence[str], writer: str) -> str:
    return f"; {writer}'s last line: {lines[-1][:200]}" if lines else f"; {writer} printed nothing"


def _lines(path: Path) -> list[str]:
    """The lines of a file that are not blank; none of a file that is not there."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


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
