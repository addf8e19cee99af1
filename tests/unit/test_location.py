import subprocess
import sys
from pathlib import Path

import pytest

from roofprobe import _location
from roofprobe.errors import CuptiLibraryError

MAPS = """\
7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/libc.so.6
7f01-7f02 r-xp 00000000 fe:00 2 {first}
7f02-7f03 r--p 00001000 fe:00 2 {first}
"""


def test_maps_are_read(tmp_path):
    first = tmp_path / "libcupti.so.13"
    first.touch()
    assert _location.mapped_libcupti(MAPS.format(first=first)) == [first]
    assert _location.mapped_libcupti("7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/libc.so.6") == []


def test_a_link_and_its_target_are_one_library(tmp_path):
    target = tmp_path / "libcupti.so.13.0"
    target.touch()
    link = tmp_path / "libcupti.so.13"
    link.symlink_to(target)
    text = MAPS.format(first=target) + f"7f04-7f05 r-xp 00000000 fe:00 2 {link}\n"
    assert _location.mapped_libcupti(text) == [target]


def test_paths_with_blanks_and_files_that_are_gone_are_read():
    rows = (
        "7f01-7f02 r-xp 00000000 08:01 11                         /home/me/my env/libcupti.so.12\n"
        "7f02-7f03 r--p 00001000 08:01 11                         /home/me/my env/libcupti.so.12\n"
        "7f03-7f04 r-xp 00000000 08:01 12                         /opt/an env/libcupti.so.12\n"
        "7f04-7f05 r-xp 00000000 08:01 13                         /b/libcupti.so.12 (deleted)\n"
        "7f05-7f06 r-xp 00000000 08:01 14                         /b/libcuptiother.so.12\n"
    )
    found = (
        "/b/libcupti.so.12 (deleted)",
        "/home/me/my env/libcupti.so.12",
        "/opt/an env/libcupti.so.12",
    )
    assert _location.mapped(rows, "libcupti") == found
    assert tuple(map(str, _location.mapped_libcupti(rows))) == found


def test_a_library_that_was_replaced_is_refused(monkeypatch):
    gone = Path("/venv/lib/libcupti.so.13 (deleted)")
    monkeypatch.setattr(_location, "mapped_libcupti", lambda: [gone])
    with pytest.raises(CuptiLibraryError, match=r"so\.13 \(deleted\).*start the program anew"):
        _location.find_libcupti()


def test_two_libraries_are_refused(tmp_path, monkeypatch):
    paths = [tmp_path / "a/libcupti.so.12", tmp_path / "b/libcupti.so.13"]
    monkeypatch.setattr(_location, "mapped_libcupti", lambda: paths)
    with pytest.raises(CuptiLibraryError, match="more than one libcupti") as caught:
        _location.find_libcupti()
    assert all(str(path) in str(caught.value) for path in paths)


def test_a_second_library_is_seen_after_ours_was_loaded():
    code = (
        "import ctypes, shutil, sys, tempfile\n"
        "from roofprobe import _location\n"
        "from roofprobe.counters import cupti\n"
        "first = cupti.load()\n"
        "assert _location.copies_of_libcupti() == [first]\n"
        "assert _location.mixed_up() is None\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    second = shutil.copy(first, folder)\n"
        "    ctypes.CDLL(second)\n"
        "    assert set(_location.copies_of_libcupti()) == {first, second}\n"
        "    said = _location.mixed_up()\n"
        "assert said.startswith('this process has loaded more than one libcupti ('), said\n"
        "assert first in said and second in said\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_stub_that_was_loaded_as_the_driver_is_named():
    stub = "/usr/local/cuda/lib64/stubs/libcuda.so.1"
    said = _location.mixed_up(MAPS.format(first=stub))
    assert said == (
        f"this process has loaded a stub, which is for linking only, as the driver ({stub}): take "
        "CUDA's stubs folder off LD_LIBRARY_PATH"
    )
    assert _location.mixed_up(MAPS.format(first="/usr/lib/libcuda.so.580.65.06")) is None
    assert _location.mixed_up("") is None


@pytest.mark.parametrize(("cuda", "chosen"), [("13.0", "13"), ("12.8", "12")])
def test_the_copy_of_the_installed_torch_wins(tmp_path, monkeypatch, cuda, chosen):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text(f"cuda: Optional[str] = '{cuda}'\n")
    libraries = {
        "13": tmp_path / "nvidia/cu13/lib/libcupti.so.13",
        "12": tmp_path / "nvidia/cuda_cupti/lib/libcupti.so.12",
    }
    for library in libraries.values():
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    monkeypatch.setattr(_location, "mapped_libcupti", lambda: [])
    assert _location.find_libcupti() == libraries[chosen]


def test_none_found_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(_location, "mapped_libcupti", lambda: [])
    monkeypatch.setattr(_location, "_candidates", lambda: iter([tmp_path / "libcupti.so.13"]))
    with pytest.raises(CuptiLibraryError, match="nvidia-cuda-cupti"):
        _location.find_libcupti()
