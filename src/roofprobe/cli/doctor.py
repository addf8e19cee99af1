"""``roofprobe doctor``: can counters be read here, and are they right? If not, what to do."""

import argparse
import importlib.metadata
import sys
import time
from typing import Any

from roofprobe.doctor import gather, report
from roofprobe.doctor.judgement import judge, may_measure
from roofprobe.errors import UsageError


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


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
