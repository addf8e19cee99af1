"""cupti-python beside the libcupti of PyTorch, each case in a process of its own.

The libcupti of CUDA 12 is the one that ``make setup`` puts there; libcuda is a stand-in, because
cupti-python opens no libcupti without one.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roofprobe import _location

CUDA_12 = Path(sys.prefix, "share/cupti-12.8/nvidia/cuda_cupti/lib/libcupti.so.12")

# Ends with the copies of libcupti in the process, and what tracing says.
CODE = """
import sys
from roofprobe import _location, _native, activity, errors
for path in sys.argv[1:]:
    _native.load_cupti(path)
activity.preload()
tracer = activity.KernelTracer(lambda: None)
try:
    tracer.start()
except errors.RoofprobeError as error:
    print(error)
print(*_location.mapped_libcupti())
"""


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("libcuda")
    source = folder / "cuda.c"
    source.write_text("int cuDriverGetVersion(int *v) { *v = 13000; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    return folder


def traced(libcuda: Path, *paths: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, paths)],
        env={**os.environ, "LD_LIBRARY_PATH": str(libcuda)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_cupti_python_of_another_cuda_is_refused_before_it_loads_its_own(libcuda):
    assert CUDA_12.is_file(), f"no {CUDA_12}: run `make setup`"
    said, copies = traced(libcuda, CUDA_12)
    assert copies.split() == [str(CUDA_12.resolve())]
    assert said.startswith("no kernel is traced, because cupti-python 13.0.")
    assert f"loads CUPTI 13 and PyTorch uses CUPTI 12 ({CUDA_12.resolve()})" in said
    assert said.endswith("pip install 'cupti-python==12.*'")


def test_cupti_python_takes_the_libcupti_of_the_process(libcuda, tmp_path):
    """A toolkit's, say: the same release as the wheels', in another file."""
    copy = Path(shutil.copy(_location.find_libcupti(), tmp_path))
    *said, copies = traced(libcuda, copy)
    assert copies.split() == [str(copy.resolve())]
    # No refusal of ours: this machine has no GPU, and that is CUPTI's word.
    assert [text.split(":")[0] for text in said] in ([], ["CUPTI refuses activity records"])


def test_where_nothing_is_loaded_it_is_the_libcupti_of_torch(libcuda):
    *said, copies = traced(libcuda)
    assert len(copies.split()) == 1
    assert Path(copies).name == "libcupti.so.13"
    assert [text.split(":")[0] for text in said] in ([], ["CUPTI refuses activity records"])
