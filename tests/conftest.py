"""Shared by all tiers: GPU tests run where one narrow probe finds a GPU with counters."""

import functools

import pytest


@functools.cache
def _why_no_gpu() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU"
    return None


def pytest_runtest_setup(item):
    if "gpu" in item.keywords and (why := _why_no_gpu()):
        pytest.skip(why)


@pytest.fixture(autouse=True)
def no_measurement_left_open():
    """A test that leaves a measurement running fails."""
    yield
    import sys

    probe = sys.modules.get("roofprobe.probe")
    assert probe is None or not probe._active.locked(), "a measurement was left open"
