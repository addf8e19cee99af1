"""Findings as text and as JSON."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from roofprobe.doctor.facts import Facts
from roofprobe.doctor.findings import Finding
from roofprobe.refusals import WITHOUT_COUNTERS
from roofprobe.schema import json_schema

SCHEMA: Final = "roofprobe.doctor"
VERSION: Final = 1

_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Report:
    """What the doctor found.

    Attributes:
        created: UTC, ISO 8601.
        roofprobe: Version of this package.
        ok: Nothing failed.
        findings: In order.
        facts: What they were judged by.
        schema: Name of the format.
        version: Version of the format.
    """

    created: str
    roofprobe: str
    ok: bool
    findings: tuple[Finding, ...]
    facts: Facts
    schema: str = field(default=SCHEMA)
    version: int = field(default=VERSION)


def to_json(report: Report) -> str:
    """The report as JSON text."""
    return json.dumps(asdict(report), indent=1, sort_keys=True, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of ``to_json``."""
    return json_schema(Report)


def to_text(report: Report, *, width: int = _WIDTH) -> str:
    """The report for a person, plain text.

    Args:
        report: What was found.
        width: Columns.
    """
    column = max(len(finding.check) for finding in report.findings) + 2
    lines: list[str] = []
    for finding in report.findings:
        status = finding.status.upper() if finding.status == "fail" else finding.status
        lines += _wrapped(f"{status:6}{finding.check:{column}}", finding.text, width)
        if finding.fix is not None:
            lines += _wrapped(" " * (column + 6) + "fix: ", finding.fix, width)
    return "\n".join([*lines, "", *_summary(report, width)]) + "\n"


def _summary(report: Report, width: int) -> Iterator[str]:
    failed = [finding.check for finding in report.findings if finding.status == "fail"]
    warned = [finding.check for finding in report.findings if finding.status == "warn"]
    if failed:
        text = f"Measuring with hardware counters does not work here: {', '.join(failed)}. "
        yield from textwrap.wrap(
            text + WITHOUT_COUNTERS[0].upper() + WITHOUT_COUNTERS[1:] + ".", width
        )
        return
    tested = any(f.status == "ok" and f.check.startswith("self-test") for f in report.findings)
    proof = "and known work is counted right" if tested else "as far as can be told without a test"
    but = f"; warnings: {', '.join(warned)}" if warned else ""
    yield from textwrap.wrap(f"Hardware counters can be read here, {proof}{but}.", width)


def _wrapped(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
