"""Running a program under Nsight Compute: finds ncu, watches a run, says what went wrong.

The program's own ``roofprobe.measure`` marks the one step that ncu counts, and ends the program
there (``counters.external``). Clocks are left alone.
"""

import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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

# A run that takes so much more than it should is taken for one that never ends.
_MARGIN: Final = 20.0
_LEAST_LIMIT: Final = 1800.0  # s

_HALF_A_SECOND: Final = 0.5
_ANSWER_LIMIT: Final = 60.0  # s, for ncu to say its version
_PATIENCE: Final = 10.0  # s, for a program to end by itself when asked to
_MOMENT: Final = 0.05  # s
_LITTLE: Final = 4096  # bytes: on a full disk, an empty file can still be made
_OTHER_FOLDER: Final = "free some space, or name a folder elsewhere with --logs DIR or in TMPDIR"
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


def limit(price: float) -> float:
    """Seconds after which a run can be taken for one that never ends.

    Args:
        price: Seconds that it should take, without the program's start, which nobody knows.
    """
    return max(_LEAST_LIMIT, _MARGIN * price)


@contextmanager
def profiled(
    run: Run,
    command: Sequence[str],
    ncu: Ncu,
    *,
    logs: Path | None,
    stall: float,
    limit: float = math.inf,
) -> Iterator[Path]:
    """Runs a program under ncu and hands over what ncu wrote, for as long as it is open.

    Args:
        run: What to count, and how.
        command: The program.
        ncu: Which ncu.
        logs: Folder in which the log is kept; None for one that goes away.
        stall: Seconds without any output after which the run is stopped.
        limit: Seconds after which it is stopped whatever it prints: a progress bar of one rank
            goes on while another one hangs.

    Raises:
        RoofprobeError: in one sentence, why there is nothing to read.
    """
    with room(logs) as folder:
        log = _profile(run, command, ncu, folder, stall, limit)
        yield log


@contextmanager
def room(logs: Path | None) -> Iterator[Path]:
    """A folder for logs that can be written to.

    Args:
        logs: The one that was asked for; None for one that goes away.

    Raises:
        RoofprobeError: there is none.
    """
    with ExitStack() as stack:
        try:
            if logs is None:
                temporary = tempfile.TemporaryDirectory(
                    prefix="roofprobe-ncu-", ignore_cleanup_errors=True
                )
                folder = Path(stack.enter_context(temporary))
            else:
                folder = logs
                folder.mkdir(parents=True, exist_ok=True)
            _write_a_little(folder)
        except OSError as error:
            where = f"--logs {logs} cannot be written to" if logs else "there is no room for them"
            raise RoofprobeError(
                f"ncu needs a folder for its logs, and {where} ({error.strerror or error}): "
                f"{_OTHER_FOLDER}"
            ) from None
        yield folder


def require_room(logs: Path | None) -> None:
    """Raises RoofprobeError where there is no folder for logs, before minutes are spent."""
    with room(logs):
        pass


def _write_a_little(folder: Path) -> None:
    """Raises OSError where nothing can be written. Access rights would say yes to root."""
    with tempfile.TemporaryFile(dir=folder) as stream:
        stream.write(bytes(_LITTLE))


def _profile(
    run: Run, command: Sequence[str], ncu: Ncu, folder: Path, stall: float, limit: float
) -> Path:
    """Runs a program under ncu to its end; the log."""
    stem = run.mode.replace(" ", "-")
    log, output = folder / f"{stem}.csv", folder / f"{stem}.out"
    arguments = [
        *(ncu.path, "--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", str(log), "--target-processes", "all", "--clock-control", "none"),
        *(*run.options, "--metrics", ",".join(run.metrics), *command),
    ]
    try:
        log.unlink(missing_ok=True)
        status = _watched(arguments, log, output, stall, limit)
        written = log.exists() and log.read_bytes().strip()
    except OSError as error:
        raise RoofprobeError(f"ncu could not be run with its log in {folder}: {error}") from None
    try:
        _write_a_little(folder)
    except OSError as error:  # what is in the log may then be a part of it
        raise RoofprobeError(
            f"the disk became full ({folder}: {error.strerror or error}), so that ncu's log may be "
            f"cut short and is not used; ncu ended with status {status}: {_OTHER_FOLDER}"
        ) from None
    if status != 0:
        raise RoofprobeError(_failure(status, log, output))
    if not written:
        raise RoofprobeError(
            "ncu ended without an error and wrote nothing: run the same command under ncu by "
            f"hand to see why ({' '.join(arguments[:1] + list(command))})"
        )
    return log


def _watched(arguments: Sequence[str], log: Path, output: Path, stall: float, limit: float) -> int:
    """Runs a program and its children to the end, or stops them all.

    Raises:
        RoofprobeError: neither log nor output grew for ``stall`` seconds, or ``limit`` is over.
        OSError: it could not be started, or its output not be written.
    """
    environment = {**os.environ, external.ENVIRONMENT: external.SOURCE, "LC_ALL": "C"}
    with (
        output.open("wb") as stream,
        _started(arguments, stdout=stream, stderr=subprocess.STDOUT, env=environment) as process,
    ):
        seen, since = (0, 0), time.monotonic()
        until = since + limit
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
            if time.monotonic() > until:
                raise RoofprobeError(
                    f"ncu and the program were stopped after {limit:.0f} s, far more than this run "
                    "should take: where a process waits for others (nccl), compare a run of one "
                    "process; where it takes so long up to the measured step, give it fewer steps "
                    "or less data before that" + _last(_lines(output), "the program")
                )


# -- Processes ----------------------------------------------------------------------------


@contextmanager
def _started(arguments: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A program in a session of its own, which an exception in the body ends as a whole."""
    process = None
    try:
        with _signals_wait():
            process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, start_new_session=True, **options
            )
        yield process
    except BaseException:
        if process is not None:
            _stop(process.pid)
            with suppress(subprocess.TimeoutExpired):  # the driver may hold it fast
                process.wait(_PATIENCE)
            if process.stdout is not None:
                process.stdout.close()
        raise


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Signals that came during the body have their effect after it.

    An exception of theirs in the middle of Popen would leave a program behind that nobody knows.
    """
    came: list[int] = []
    before: dict[int, Any] = {}
    with suppress(ValueError):  # only the main thread sees signals
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(each)):
                before[each] = signal.signal(each, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            before[number](number, None)


def _stop(leader: int) -> None:
    """Ends the session of a process, and what it started in sessions of their own (torchrun)."""
    family = _family(leader)
    try:
        _signal(family, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE
        while _running(family) and time.monotonic() < until:
            time.sleep(_MOMENT)
    finally:  # at once where somebody presses Ctrl-C again
        _signal(family | _family(leader), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Process:
    """A process; its start tells it from a later one of the same number."""

    pid: int
    parent: int
    session: int
    start: int


def _processes() -> list[_Process]:
    """Those that run here, without those that have ended and wait to be noticed."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):  # it has ended meanwhile
            # The name, in brackets, may hold anything.
            state, *fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if state not in ("Z", "X"):
                parent, _, session = map(int, fields[:3])
                found.append(_Process(int(path.parent.name), parent, session, int(fields[18])))
    return found


def _family(leader: int) -> dict[int, int]:
    """The session of a process and all that descends from it: process -> its start."""
    here = _processes()
    found: dict[int, int] = {}
    while True:
        more = {
            each.pid: each.start
            for each in here
            if each.pid not in found and (each.session == leader or each.parent in found)
        }
        if not more:
            return found
        found |= more


def _running(family: dict[int, int]) -> dict[int, int]:
    here = {each.pid: each.start for each in _processes()}
    return {pid: start for pid, start in family.items() if here.get(pid) == start}


def _signal(family: dict[int, int], number: int) -> None:
    for pid in _running(family):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


# -- What went wrong ----------------------------------------------------------------------


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
        with _started([path, option], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            said, _ = process.communicate(timeout=_ANSWER_LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} {option} does not run: {error}") from None
    return said.decode(errors="replace")
