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


def other(version):
    """A libcupti that is not this PyTorch's; `make setup` puts it there."""
    path = Path(sys.prefix, f"share/cupti-{version}/nvidia/cuda_cupti/lib/libcupti.so.12")
    assert path.is_file(), f"no {path}: run `make setup`"
    return path


def test_one_build_serves_cupti_12_and_13():
    """CUDA 12.8's libcupti reads images that 13.0 recorded, to the same values."""
    code = """
import sys
from roofprobe import _native
print(_native.load_cupti(sys.argv[1]))
from roofprobe.counters.recorded import CounterFile
print(CounterFile.load(sys.argv[2]).evaluate()[0].values["sm__ops_path_tensor_src_fp16.sum"])
"""
    image = Path(__file__).parents[1] / "data/gemm4096-fp16.counters"
    done = subprocess.run(
        [sys.executable, "-c", code, str(other("12.8")), str(image)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["26", str(float(2 * 4096**3))]


def test_a_libcupti_without_range_profiler_says_what_works():
    done = load(other("12.4"))
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
