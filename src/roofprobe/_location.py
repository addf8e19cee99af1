"""Where libcupti is: the one copy that this process' PyTorch uses, and no other.

The only module that knows how wheels and toolkits lay out their files.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from roofprobe.errors import CuptiLibraryError

# Folder inside site-packages and file name, by CUDA major version, newest first.
_WHEELS = {
    "13": ("nvidia/cu13/lib", "libcupti.so.13"),
    "12": ("nvidia/cuda_cupti/lib", "libcupti.so.12"),
}
_TOOLKITS = ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib")


def find_libcupti() -> Path:
    """The libcupti to use.

    In order: the one that is already in the process; the one that the installed PyTorch was built
    for; one from NVIDIA's wheels; one from a CUDA toolkit.

    Raises:
        CuptiLibraryError: there is none, or the process already holds two.
    """
    loaded = mapped_libcupti()
    if len(loaded) > 1:
        raise CuptiLibraryError(
            "this process has loaded more than one libcupti ("
            + ", ".join(map(str, loaded))
            + "), which break each other: uninstall the nvidia-cuda-cupti package that PyTorch was "
            "not built for, and take CUDA toolkits off LD_LIBRARY_PATH"
        )
    if loaded and not loaded[0].exists():
        raise CuptiLibraryError(
            f"this process has loaded {loaded[0]}, which is no longer there, so that PyTorch was "
            "updated or moved meanwhile: start the program anew"
        )
    if loaded:
        return loaded[0]
    for candidate in _candidates():
        if candidate.is_file():
            return candidate.resolve()
    raise CuptiLibraryError(
        "no libcupti found beside PyTorch, in NVIDIA's wheels or in a CUDA toolkit: "
        "install a PyTorch built for CUDA 12.6 or newer, or the package nvidia-cuda-cupti"
    )


def mapped_libcupti(maps: str | None = None) -> list[Path]:
    """Distinct libcupti files mapped into this process, from /proc/self/maps.

    Args:
        maps: Text of a maps file, to read that instead.

    Returns:
        Their paths, links followed; that of a file which is gone ends in `` (deleted)``.
    """
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text()
        except OSError:
            return []
    return sorted({Path(path).resolve() for path in mapped(maps, "libcupti")})


def mapped(maps: str, stem: str) -> tuple[str, ...]:
    """Distinct files of a library in the text of a maps file: ``mapped(text, "libcuda")``."""
    # Five columns stand before the path, which may hold blanks.
    row = rf"^(?:\S+ +){{5}}(/.*/{stem}\.so[.\d]*(?: \(deleted\))?)$"
    return tuple(sorted(set(re.findall(row, maps, re.MULTILINE))))


def _candidates() -> Iterator[Path]:
    roots = [Path(entry) for entry in sys.path if entry]
    spec = importlib.util.find_spec("torch")
    wanted: str | None = None
    if spec is not None and spec.origin is not None:
        torch_dir = Path(spec.origin).parent
        roots.insert(0, torch_dir.parent)
        wanted = _torch_cuda_major(torch_dir)
    majors = [wanted] if wanted in _WHEELS else list(_WHEELS)
    for major in majors:
        folder, name = _WHEELS[major]
        for root in roots:
            yield root / folder / name
            yield root / "torch/lib" / name
    for toolkit in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        for major in majors:
            for folder in _TOOLKITS if toolkit else ():
                yield Path(str(toolkit), folder, _WHEELS[major][1])


def _torch_cuda_major(torch_dir: Path) -> str | None:
    """CUDA major version that an installed PyTorch was built for, without importing it."""
    try:
        text = (torch_dir / "version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=]*=\s*'(\d+)\.", text, re.MULTILINE)
    return match.group(1) if match else None
