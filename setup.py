"""Builds roofprobe._native with CMake; everything else is in pyproject.toml."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def cuda_include_dirs() -> list[str]:
    """Folders with CUPTI's headers: ROOFPROBE_CUDA_INCLUDE, else NVIDIA's pip packages."""
    if given := os.environ.get("ROOFPROBE_CUDA_INCLUDE"):
        return given.split(os.pathsep)
    layouts = ("cu13/include", "cuda_cupti/include", "cuda_runtime/include")
    found = [Path(entry, "nvidia", layout) for entry in sys.path for layout in layouts]
    return [str(path) for path in found if path.is_dir()]


class CMakeBuild(build_ext):
    """One CMake configure and build for the one extension."""

    def build_extension(self, ext: Extension) -> None:
        """Configures and builds into the folder where setuptools expects the extension."""
        import pybind11

        source = Path(__file__).resolve().parent
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": target,
            "CUDA_INCLUDE_DIRS": ";".join(cuda_include_dirs()),
            "Python_EXECUTABLE": sys.executable,
            "PYBIND11_FINDPYTHON": "ON",
            "pybind11_DIR": pybind11.get_cmake_dir(),
            "ROOFPROBE_SANITIZE": "ON" if os.environ.get("ROOFPROBE_SANITIZE") else "OFF",
        }
        arguments = [f"-D{name}={value}" for name, value in options.items()]
        # A folder of its own: pip builds in an environment that is gone the next time, and CMake
        # would remember where its tools were.
        with tempfile.TemporaryDirectory() as build:
            subprocess.run(["cmake", "-G", "Ninja", str(source), *arguments], cwd=build, check=True)
            subprocess.run(["cmake", "--build", "."], cwd=build, check=True)


setup(ext_modules=[Extension("roofprobe._native", sources=[])], cmdclass={"build_ext": CMakeBuild})
