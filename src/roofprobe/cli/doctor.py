"""``roofprobe doctor``: can counters be read here, and are they right? If not, what to do."""

import argparse
import importlib.metadata
import sys
import tempfile
import time
from typing import Any, Final

from roofprobe.doctor import gather, report
from roofprobe.doctor.judgement import judge, may_measure
from roofprobe.errors import RoofprobeError, UsageError

_MEMORY: Final = "/dev/shm"  # takes files where the disk is full, or a container's is read-only


def add_parser(verbs: Any) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "doctor",
        help="can counters be read here, and are they right? If not, what to do",
        description="Looks at driver, CUPTI, PyTorch, permissions and other profilers, then counts "
        "work of known size. Ends also where the driver hangs. Exit code 0 when counters can be "
        "read (warnings included), 1 when they cannot or would be wrong; a machine without a GPU "
        "is one of those.",
    )
    parser.add_argument(
        "--gpu", type=int, default=0, metavar="N", help="which GPU, as PyTorch counts them"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--no-self-test", action="store_true", help="count nothing")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Asks, judges and prints."""
    if arguments.gpu < 0:
        raise UsageError(f"GPU {arguments.gpu} was asked for; they are numbered from 0")
    _find_room()
    facts = gather.gather(arguments.gpu, say=_say)
    if may_measure(facts) and not arguments.no_self_test:
        facts = gather.run_self_test(facts, say=_say)
    findings = judge(facts)
    found = report.Report(
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        roofprobe=importlib.metadata.version("roofprobe"),
        ok=all(finding.status != "fail" for finding in findings),
        findings=findings,
        facts=facts,
    )
    print((report.to_json if arguments.json else report.to_text)(found), end="")
    return 0 if found.ok else 1


def _find_room() -> None:
    """Finds a folder for the few lines that the checks leave there.

    Raises:
        RoofprobeError: there is none.
    """
    try:
        tempfile.gettempdir()
        return
    except OSError as error:
        why = error.strerror or str(error)
    tempfile.tempdir = _MEMORY
    try:
        with tempfile.TemporaryFile() as stream:
            stream.write(b"a little")
    except OSError as error:
        raise RoofprobeError(
            "the checks leave their answers in a small file, and there is no place for it: "
            f"{why}; {_MEMORY}: {error.strerror}; free some space, or name a folder that can be "
            "written to in TMPDIR"
        ) from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
