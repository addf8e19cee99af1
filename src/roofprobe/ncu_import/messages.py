"""What ncu says about itself in a log: refusals, failed kernels, metrics that it could not read.

The causes are told by the words that ncu is known to print; what is not known is quoted as it is.
"""

import re
from typing import Final

from roofprobe import refusals
from roofprobe.errors import RecordError
from roofprobe.refusals import INSUFFICIENT_PRIVILEGES, WITHOUT_COUNTERS

# Several messages, progress and a table can share a line: a message ends where the next one or
# a row begins.
_MESSAGE: Final = re.compile(
    r"==(?P<level>PROF|WARNING|ERROR)== *"
    r'(?P<text>.*?)(?===(?:PROF|WARNING|ERROR)==|"(?:ID|[0-9]+)"[,;\t]"|$)'
)
# The same without the mark, as ncu of old and programs that start it print it.
_UNMARKED: Final = re.compile(r"\W*error\b.*NVGPUCTRPERM", re.IGNORECASE)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_FAILED: Final = re.compile(r'[Ff]ailed to profile (?:kernel )?"(?P<kernel>[^"]+)"')
# "Failed to access the following 2 metrics: a, b", "Metric a could not be collected".
_MISSING: Final = re.compile(
    r"(?=.*\bmetrics?\b).*?\b(?:(?:failed|unable) to (?:access|collect|find|read|retrieve)"
    r"|(?:can|could) ?not (?:be )?(?:access|collect|find|found|read|retrieve)"
    r"|not (?:available|supported))",
    re.IGNORECASE,
)
_METRIC: Final = re.compile(r"\b[a-z0-9_]+__[\w.]*\w")
# ncu numbers what it profiles; replaying the application, it says so once for each pass.
_LAUNCH: Final = re.compile(r'Profiling "(?P<kernel>[^"]+)"(?: - (?P<ident>[0-9]{1,18})\b)?')
_PERCENT: Final = re.compile(r": *[0-9]+%[0-9%.]*$")
_DONE: Final = re.compile(r"100%|[0-9] pass(?:es)?\b")
_NO_PASS: Final = re.compile(r"100%\W*\b0 passes\b")
_REPORT: Final = re.compile(r"Report: *(?P<path>\S.*)")
_WINDOWS: Final = re.compile(r"Connected to process [0-9]+ \([A-Za-z]:\\")
_WSL: Final = re.compile(r"[0-9]-microsoft-standard", re.IGNORECASE)  # of a kernel's release
_CHILDREN: Final = "--target-processes all"
# Lines that only point to others.
_HOLLOW: Final = re.compile(
    r"$|An error (?:was reported by the|occurred while trying)|No kernels were profiled"
    rf"|{_FAILED.pattern}[^:]*$|.*{_CHILDREN}"
)
_ENDED: Final = re.compile(r"The application returned an error code")

_FEWER: Final = "run ncu again with one metric, or with --replay-mode application"
_LAUNCHER: Final = f"where a launcher starts the program, run ncu with {_CHILDREN}"

# What ncu says, and what to do about it: a CUPTI status that means the same, or a remedy. The
# order is that of blame, for one cause can bring several messages.
_CAUSES: Final[tuple[tuple[str, int | str], ...]] = (
    (
        "NVGPUCTRPERM|NVSOLN1000|INSUFFICIENT_PRIVILEGES|not have permission to (?:profile|access)",
        INSUFFICIENT_PRIVILEGES,
    ),
    ("driver resource was unavailable|HARDWARE_BUSY", refusals.HARDWARE_BUSY),
    (r"Windows Subsystem for Linux|\bWSL2?\b", refusals.WSL),
    ("Confidential Computing", 41),
    ("Mining Processor|NVCMPGPU", 42),
    (r"\bvGPU\b", 40),
    ("lock GPU clock", "run ncu with --clock-control none"),
    (
        "other MIG instances",
        "units shared with other MIG instances cannot be read: leave out the metrics of DRAM and "
        "L2, or measure on a GPU with MIG switched off",
    ),
    (
        r"not supported on (?:this )?device|\bGPU\b.* not supported",
        "ncu --list-chips names the GPUs that this ncu knows; take the newest for a new GPU, "
        "2025.2 or older for Volta (compute capability 7.0), and another GPU for what is older",
    ),
    ("stub libcuda", "take CUDA's stubs folder off LD_LIBRARY_PATH"),
    (
        "driver is not compatible|LibraryNotLoaded|load Nsight Compute CUDA modules",
        "update the driver, or take the ncu of the CUDA version that nvidia-smi shows",
    ),
    (
        "nsight-compute-lock|InterprocessLock",
        "wait until the other ncu has ended; where the lock is another user's file, set TMPDIR to "
        "a folder of your own",
    ),
    (
        "find metric|find section|unrecogni[sz]ed option",
        "correct ncu's options; ncu --query-metrics, --list-sections and --help show what there is",
    ),
    (
        r"(?i:\b(?:access|collect|read|retrieve)\b.*\bmetrics?\b"
        r"|\bmetrics?\b.*\bnot (?:be )?(?:available|collected|supported))",
        "ncu --query-metrics lists what this GPU has; leave out the others",
    ),
    (
        "taking more time than expected",
        "kernels that wait for other processes (nccl) hang where ncu replays them one at a time: "
        "leave them out with --kernel-name",
    ),
    (
        "LaunchFailed|Unknown ?Error|prepare kernel for profiling",
        "find out whether the program runs without ncu and under compute-sanitizer; if it does, "
        "try --replay-mode application",
    ),
    ("before first instrumented API call", _LAUNCHER),
    (r"filter\b.*\bmatch", "change ncu's --kernel-name, or leave it out"),
    ("Received signal", "ncu was stopped: let it run to its end"),
    (_ENDED.pattern, "the program failed: see what it printed, and run it without ncu first"),
)

# roofprobe itself does not run there, so only logs come from it.
_WINDOWS_FIX: Final = (
    "under Windows, an administrator allows it in the NVIDIA Control Panel (Developer, Manage GPU "
    f"Performance Counters), or runs ncu; {WITHOUT_COUNTERS}"
)
_LONGEST: Final = 300  # characters of a message that are quoted
_TELLING: Final = 2000  # characters of a message in which its cause is looked for


class Messages:
    """ncu's own lines of one file.

    Args:
        wsl: They are of a run under WSL, which the lines themselves may also show.

    Attributes:
        warnings: Texts of warnings.
        errors: Texts of errors.
        missing: Metrics that could not be read -> why.
        uncounted: ID and kernel, as short as ncu calls it here, of launches without any pass.
    """

    def __init__(self, *, wsl: bool = False) -> None:
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.missing: dict[str, str] = {}
        self.uncounted: set[tuple[int, str]] = set()
        self._announced: set[int] = set()  # IDs of launches
        self._lost: set[int] = set()  # those that failed
        self._last_of: dict[str, int] = {}  # kernel -> ID of its last launch
        self._launch: tuple[int, str] | None = None  # the one that ncu was at last
        self._failed: list[str] = []
        self._begun: str | None = None  # the kernel that ncu is at
        self._profiled = False
        self._report: str | None = None
        self._ran = False
        self._wsl = wsl
        self._windows = False

    @property
    def failed(self) -> tuple[str, ...]:
        """Kernels that could not be profiled, and the one at which ncu stopped."""
        last = [self._begun] if self._begun is not None else []
        return tuple(dict.fromkeys([*self._failed, *last]))

    @property
    def profiled(self) -> int:
        """Launches that ncu numbered, without those that failed and the one at which it stopped."""
        at = self._last_of.get(self._begun) if self._begun is not None else None
        return len(self._announced - self._lost - {at})

    def take(self, line: str) -> bool:
        """Reads a line; False when it is not ncu's."""
        line = _COLOUR.sub("", line)
        self._wsl = self._wsl or _WSL.search(line) is not None
        if _DONE.search(line):
            self._begun = None
        found = list(_MESSAGE.finditer(line))
        for message in found:
            self._take(message["level"], message["text"].strip())
        if not found:
            self._note_passes(line)
        if found or not _UNMARKED.match(line):
            return bool(found)
        self.errors.append(line.strip())
        return True

    def _take(self, level: str, text: str) -> None:
        self._ran = True
        if level == "WARNING":
            self.warnings.append(text)
        elif level == "ERROR" or text.startswith("Received signal"):
            self.errors.append(text)
        else:
            self._progress(text)
        failed = _FAILED.search(text)
        if failed is not None:
            self._failed.append(failed["kernel"])
            if failed["kernel"] in self._last_of:
                self._lost.add(self._last_of[failed["kernel"]])
        if level in ("WARNING", "ERROR") and _MISSING.match(text):
            why = "ncu could not access it"
            if "MIG" in text:
                why += "; under MIG, units shared with other MIG instances cannot be read"
            self.missing |= dict.fromkeys(_METRIC.findall(text), why)

    def _progress(self, text: str) -> None:
        report, launch = _REPORT.match(text), _LAUNCH.match(text)
        if launch is not None:
            self._announce(launch["kernel"], launch["ident"])
        self._note_passes(text)
        if text.startswith("Profiling"):
            begun = launch is not None and _PERCENT.search(text, launch.end())
            self._begun = launch["kernel"] if launch is not None and begun else None
            if _DONE.search(text):
                self._begun, self._profiled = None, True
        if report is not None:
            self._report = report["path"]
        self._windows = self._windows or _WINDOWS.match(text) is not None

    def _announce(self, kernel: str, ident: str | None) -> None:
        if ident is None:
            return
        number = int(ident)
        self._launch = number, kernel
        self._announced.add(number)
        self._last_of[kernel] = number

    def _note_passes(self, text: str) -> None:
        if self._launch is not None and _NO_PASS.search(text):
            self.uncounted.add(self._launch)

    def notes(self) -> list[str]:
        """Warnings for a file that has launches."""
        missed = [
            f"ncu reported an error, so launches may be missing from every total: {self._told(e)}"
            for e in self._substance(self.errors)
        ]
        if self.failed:
            missed.append(f"ncu could not profile {', '.join(self.failed)}: not in any total")
        # A failed kernel is named above.
        return [*missed, *(text for text in self.warnings if not _HOLLOW.match(text))]

    def no_kernels(self, header: bool) -> RecordError:
        """Why a file has no launch, and what to do about it."""
        said = self.cause()
        if not self._ran and not said and not header:
            return RecordError(
                "no ncu output in it: neither a CSV header nor a details page; "
                "write it with ncu --csv --log-file FILE"
            )
        if self._report is not None:
            what = f"the launches are not in it but in a report; import {self._report} instead"
        elif self._profiled and not header:
            what = "ncu's figures are not in it; import what ncu printed, or its report"
        else:
            what = "no kernels were profiled"
            what += ": there is a header and no row below it" if header else ""
            hinted = any(_CHILDREN in text for text in self.warnings)
            if not said or (hinted and said == _FEWER):
                said = "; ".join(filter(None, (said, _LAUNCHER)))
        failed = f"; failed: {', '.join(self.failed)}" if self.failed else ""
        return RecordError(what + failed + (f"; {said}" if said else ""))

    def cause(self) -> str:
        """What ncu said that tells most, and what to do about it.

        Returns:
            Only the remedy for a kernel that failed without a word; the empty text for nothing.
        """
        errors = self._substance(self.errors)
        texts = [*errors, *self._substance(self.warnings)]
        if not texts:
            return _FEWER if self.failed else ""
        first = min(texts, key=_blame)
        told = [first] if _blame(first) < len(_CAUSES) else errors or texts
        return f"ncu said: {'; '.join(map(self._told, told))}"

    def _substance(self, texts: list[str]) -> list[str]:
        """Those of some messages that say what happened."""
        told = [text for text in dict.fromkeys(texts) if not _HOLLOW.match(text)]
        causes = [text for text in told if not _ENDED.match(text)]
        # Where ncu gives up it ends the program, and reports that as well.
        return causes or ([] if self._failed else told)

    def _told(self, text: str) -> str:
        """A message, and what to do about it where that is known."""
        place = _blame(text)
        if place == len(_CAUSES):
            return text.rstrip(".")[:_LONGEST]
        quoted = text.partition(". ")[0].rstrip(".")[:_LONGEST]
        return f"{quoted}; {self._remedy(_CAUSES[place][1])}"

    def _remedy(self, remedy: int | str) -> str:
        if isinstance(remedy, str):
            return remedy
        if remedy == INSUFFICIENT_PRIVILEGES and self._windows:
            return _WINDOWS_FIX
        refusal = refusals.of_status(remedy, wsl=self._wsl)
        assert refusal is not None
        return f"{refusal.cause}: {refusal.fix}"


def _blame(text: str) -> int:
    """The place of a message's cause in the table, the table's length for an unknown one."""
    head = text[:_TELLING]
    known = (place for place, (pattern, _) in enumerate(_CAUSES) if re.search(pattern, head))
    return next(known, len(_CAUSES))
