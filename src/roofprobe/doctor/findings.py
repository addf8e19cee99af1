"""One line of the doctor's: what was looked at, how it is, and the remedy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check: What was looked at.
        status: ``ok``; ``warn``: something is lost or doubtful; ``fail``: measuring with counters
            would not work, or would count the wrong thing; ``n/a``: it does not apply here.
        text: What was found, a sentence.
        fix: What to do about it, a sentence; None where nothing needs doing.
    """

    check: str
    status: str
    text: str
    fix: str | None = None


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", text)


def warn(check: str, text: str, fix: str | None) -> Finding:
    """Something is lost or doubtful."""
    return Finding(check, "warn", text, fix)


def fail(check: str, text: str, fix: str | None) -> Finding:
    """Measuring would not work, or not be right."""
    return Finding(check, "fail", text, fix)


def not_applicable(check: str, text: str) -> Finding:
    """The check has nothing to look at here."""
    return Finding(check, "n/a", text)
