"""Ceilings measured on this machine: what its GPU (or CPU) reaches, beside what a sheet promises.

``measure_gpu_roofs(device)`` runs the microbenchmarks, ``load_cached(environment)`` gives what an
earlier run of ``roofprobe ceilings`` measured under the same conditions, on a CPU too;
``measure_cpu_roofs()`` is for machines without a GPU.

``roofs`` says what a set of ceilings is and which of several binds; ``bench`` times one way of
running into a roof; ``gemm``, ``fma`` and ``memory`` know the ways; ``kernels`` holds the CUDA
kernels that no library call stands for; ``nvml`` asks for settings and other users; ``gpu`` puts
them in order; ``cache`` keeps results. Names are looked up when first used: reading the cache
needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofprobe.ceilings.cache import load_cached
    from roofprobe.ceilings.cpu import measure_cpu_roofs
    from roofprobe.ceilings.gpu import measure_gpu_roofs
    from roofprobe.ceilings.roofs import Ceilings, dram_roof, peaks

_HOME = {
    "Ceilings": "roofs",
    "dram_roof": "roofs",
    "load_cached": "cache",
    "measure_cpu_roofs": "cpu",
    "measure_gpu_roofs": "gpu",
    "peaks": "roofs",
}

__all__ = [
    "Ceilings",
    "dram_roof",
    "load_cached",
    "measure_cpu_roofs",
    "measure_gpu_roofs",
    "peaks",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
