"""Shared by all tiers: GPU tests run where one narrow probe finds a GPU."""

import functools
import os
import signal
import sys

import pytest

NO_GPU = "needs an NVIDIA GPU"
EXPECTED_SKIPS = {
    NO_GPU,
    "needs ncu",
    "needs ncu-report",
    "needs user namespaces with mounts",
    "needs Chromium and Playwright",
    "needs two GPUs",
    "needs a machine without an NVIDIA driver",
    "needs the shared cases beside the checkout",
    "needs the shared V100 logs beside the checkout",
}

_unexpected_skips: list[str] = []


# A shell ignores Ctrl-C for what it runs in the background, nohup a hang-up; children inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@functools.cache
def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_runtest_setup(item):
    if "gpu" in item.keywords and not _has_gpu():
        pytest.skip(NO_GPU)


def pytest_runtest_logreport(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in EXPECTED_SKIPS:
            _unexpected_skips.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session):
    if _unexpected_skips and os.environ.get("CI"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    for skip in _unexpected_skips:
        terminalreporter.write_line(f"unexpected skip: {skip}", red=True)


@pytest.fixture(autouse=True)
def no_measurement_left_open():
    """A test that leaves a measurement running fails."""
    yield
    probe = sys.modules.get("roofprobe.probe")
    assert probe is None or not probe._active.locked(), "a measurement was left open"
