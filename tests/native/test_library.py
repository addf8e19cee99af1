"""Loading libcupti, each case in a process of its own: a process keeps its libcupti for life."""

import ctypes.util
import subprocess
import sys
from pathlib import Path

import pytest

from roofprobe import _location

CODE = "import sys; from roofprobe import _native; print(_native.load_cupti(sys.argv[1]))"


def load(path):
    return subprocess.run(
        [sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=False
    )


def test_the_libcupti_of_torch_loads():
    done = load(_location.find_libcupti())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 24  # CUPTI of CUDA 12.6


def test_another_library_is_no_libcupti():
    done = load(ctypes.util.find_library("m"))
    assert "is not a libcupti: it has no cupti" in done.stderr


def test_a_missing_file_is_named():
    done = load("/nowhere/libcupti.so.13")
    assert "could not open libcupti" in done.stderr
    assert "/nowhere/libcupti.so.13" in done.stderr


# CUDA 12.4's libcupti, which `make test` puts there: PyTorch would load it from site-packages.
OLD = Path(sys.prefix, "share/cupti-12.4/nvidia/cuda_cupti/lib/libcupti.so.12")


def test_a_libcupti_without_range_profiler_says_what_works():
    assert OLD.is_file(), f"no {OLD}: run `make setup`"
    done = load(OLD)
    assert done.returncode != 0
    assert "CUPTI 12.4" in done.stderr
    assert "no range profiler" in done.stderr
    assert "CUDA 12.6 or newer" in done.stderr


def test_no_driver_is_one_sentence():
    code = "from roofprobe.counters import cupti; cupti.chip_of(0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        pytest.skip("needs a machine without an NVIDIA driver")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("roofprobe.errors.Cupti")
    assert "CUDA device 0" in last
