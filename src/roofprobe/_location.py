"""Where libcupti is: the one copy that this process' PyTorch uses, and no other.

The only module that knows how wheels and toolkits lay out their files.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
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
        raise CuptiLibraryError(_several([str(path) for path in loaded]))
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


def copies_of_libcupti() -> list[str]:
    """Distinct libcupti files in this process now; another one may come after ours was loaded."""
    return [str(path) for path in mapped_libcupti()]


def mixed_up(maps: str | None = None) -> str | None:
    """Which libraries of this process break its counters, and the remedy; None where none do.

    Args:
        maps: Text of a maps file, to read that instead.
    """
    maps = _maps() if maps is None else maps
    found = []
    copies = [str(path) for path in mapped_libcupti(maps)]
    if len(copies) > 1:
        found.append(_several(copies))
    stubs = [path for path in mapped(maps, "libcuda") if is_stub(path)]
    if stubs:
        found.append(
            f"this process has loaded a stub, which is for linking only, as the driver "
            f"({', '.join(stubs)}): take CUDA's stubs folder off LD_LIBRARY_PATH"
        )
    return "; ".join(found) or None


def _several(copies: Sequence[str]) -> str:
    return (
        f"this process has loaded more than one libcupti ({', '.join(copies)}), which break each "
        "other: uninstall the nvidia-cuda-cupti package that PyTorch was not built for, and take "
        "CUDA toolkits off LD_LIBRARY_PATH"
    )


def is_stub(path: str) -> bool:
    """A library for linking only, which does nothing."""
    return "/stubs/" in path


def mapped_libcupti(maps: str | None = None) -> list[Path]:
    """Distinct libcupti files mapped into this process, from /proc/self/maps.

    Args:
        maps: Text of a maps file, to read that instead.

    Returns:
        Their paths, links followed; that of a file which is gone ends in `` (deleted)``.
    """
    maps = _maps() if maps is None else maps
    return sorted({Path(path).resolve() for path in mapped(maps, "libcupti")})


def _maps() -> str:
    try:
        return Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return ""


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
