"""What a GPU really did during PyTorch training.

Importing this package loads no torch, no driver and no matplotlib; names are looked up when they
are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofprobe.derive import Figures, figures
    from roofprobe.eager import with_sass_of
    from roofprobe.errors import RoofprobeError
    from roofprobe.judge import verdict
    from roofprobe.probe import Probe, Progress, measure, measure_step, prepare
    from roofprobe.record import Measurement

_HOME = {
    "Figures": "derive",
    "Measurement": "record",
    "Probe": "probe",
    "Progress": "probe",
    "RoofprobeError": "errors",
    "figures": "derive",
    "measure": "probe",
    "measure_step": "probe",
    "prepare": "probe",
    "verdict": "judge",
    "with_sass_of": "eager",
}

__all__ = [
    "Figures",
    "Measurement",
    "Probe",
    "Progress",
    "RoofprobeError",
    "figures",
    "measure",
    "measure_step",
    "prepare",
    "verdict",
    "with_sass_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
