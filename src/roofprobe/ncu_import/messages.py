"""What ncu says about itself in a log: refusals, failed kernels, metrics that it could not read."""

import re
from typing import Final

from roofprobe.errors import RecordError
from roofprobe.refusals import PERMISSION_FIX

_MESSAGE: Final = re.compile(r"==(?P<level>PROF|WARNING|ERROR)== *(?P<text>.*)")
_FAILED: Final = re.compile(r'[Ff]ailed to profile (?:kernel )?"(?P<kernel>.+?)"')
_MISSING: Final = re.compile(r"following (?:[0-9]+ )?metrics?: *(?P<names>.+?)\.?\s*$")
PERMISSION: Final = "ERR_NVGPUCTRPERM"


def refused() -> str:
    """What a refusal of the counters means and who can do something about it."""
    return f"counter access was refused ({PERMISSION}): {PERMISSION_FIX}"


class Messages:
    """ncu's own lines of one file.

    Attributes:
        warnings: Texts of warnings.
        errors: Texts of errors.
        failed: Kernels that could not be profiled.
        missing: Metrics that could not be read.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.failed: list[str] = []
        self.missing: list[str] = []
        self._ran = False

    def take(self, line: str) -> bool:
        """Reads a line; False when it is not ncu's."""
        found = _MESSAGE.search(line)
        if found is None:
            return False
        text = found["text"].strip()
        self._ran = True
        if found["level"] == "WARNING":
            self.warnings.append(text)
        elif found["level"] == "ERROR":
            self.errors.append(text)
        failed = _FAILED.search(text)
        if failed is not None:
            self.failed.append(failed["kernel"])
        missing = _MISSING.search(text)
        if missing is not None:
            names = [name.strip() for name in missing["names"].split(",")]
            self.missing += [name for name in names if "__" in name]
        return True

    def no_kernels(self, header: bool) -> RecordError:
        """Why a file has no launch, and what to do about it."""
        if any(PERMISSION in text for text in (*self.errors, *self.warnings)):
            return RecordError(f"no kernels were profiled: {refused()}")
        failed = f"; failed: {', '.join(dict.fromkeys(self.failed))}" if self.failed else ""
        said = next((text for text in self.errors if not _FAILED.search(text)), None)
        if said is not None:
            failed += f"; ncu said: {said}"
        if header:
            return RecordError(
                f"no kernels were profiled: there is a header and no row below it{failed}. "
                "Where a launcher starts the program, run ncu with --target-processes all"
            )
        if self._ran:
            return RecordError(
                f"no kernels were profiled{failed}. Where a launcher starts the program, run ncu "
                "with --target-processes all"
            )
        return RecordError(
            "no ncu output in it: neither a CSV header nor a details page; "
            "write it with ncu --csv --log-file FILE"
        )
