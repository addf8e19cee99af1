"""``.ncu-rep`` reports, through NVIDIA's ``ncu_report`` package (an extra)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from roofprobe.errors import RecordError
from roofprobe.ncu_import import vocabulary
from roofprobe.ncu_import.csv_log import NESTED
from roofprobe.ncu_import.launches import Launches, Owner
from roofprobe.ncu_import.numerals import Numerals

_MAGIC: Final = b"NVR\0"
_ATTRIBUTES: Final = ("major", "minor")
_NUMBERS: Final = ("FLOAT", "DOUBLE", "UINT32", "UINT64")
_NO_VALUE: Final = "n/a"  # as ncu prints it

PROCESSES: Final = (
    "an .ncu-rep report does not tell processes apart through NVIDIA's package, so processes is "
    "empty and those that shared a device count as one: export with ncu --import FILE --page raw "
    "--csv --print-units base to see them"
)


def is_report(path: Path) -> bool:
    """Whether a file is a report, by its first bytes or its name."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == _MAGIC or path.suffix == ".ncu-rep"
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from None


def read(path: Path) -> Launches:
    """All launches of a report.

    Raises:
        RecordError: the package is missing, or it refuses the file.
    """
    try:
        import ncu_report  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise RecordError(
            "reading an .ncu-rep report needs NVIDIA's package: pip install ncu-report, or export "
            "with ncu --import FILE --page raw --csv --print-units base"
        ) from None
    try:
        report = ncu_report.load_report(str(path))
    except Exception as error:  # the package documents no exception type
        raise RecordError(f"NVIDIA's ncu_report cannot read it ({error})") from None
    launches = Launches(Numerals("en"))
    for index in range(report.num_ranges() if report is not None else 0):
        actions = report.range_by_idx(index)
        for action in range(actions.num_actions()):
            _launch(launches, actions.action_by_idx(action), len(launches))
    if not len(launches):
        raise RecordError("no kernels were profiled: the report is empty or damaged")
    launches.settle()
    return launches


def _launch(launches: Launches, action: Any, ident: int) -> None:
    major, minor = (
        _number(action, f"device__attribute_compute_capability_{part}") for part in _ATTRIBUTES
    )
    device = _number(action, "launch__device_id")
    context = _number(action, "launch__context_id")
    grid = [_number(action, f"launch__grid_dim_{axis}") for axis in "xyz"]
    owner = Owner(
        process="",
        device=None if device is None else f"{device:.0f}",
        context="" if context is None else f"{context:.0f}",
        compute_capability=None if major is None or minor is None else f"{major:.0f}.{minor:.0f}",
    )
    gpu = action.metric_by_name(vocabulary.GPU_NAME)
    if gpu is not None and gpu.kind() == gpu.ValueKind_STRING:
        launches.gpus[gpu.as_string()] = None
    stream = _number(action, "launch__stream_id")
    launch = launches.launch(
        owner,
        ident,
        _name(action),
        str(grid) if None not in grid else "",
        NESTED.join(_ranges(action.nvtx_state())),
        stream="" if stream is None else f"{stream:.0f}",
    )
    for name in action.metric_names():
        if vocabulary.meaning(name, "") is None:
            continue
        metric = action.metric_by_name(name)
        value = _value(metric)
        # repr keeps every digit, and "nan" is what absent() knows.
        text = _NO_VALUE if value is None else repr(value)
        launches.sink(name, metric.unit(), "").put(launch, text)


def _name(action: Any) -> str:
    """With template arguments, as ncu's own pages have it; a range has its plain name only."""
    return str(action.name(action.NameBase_DEMANGLED) or action.name())


def _ranges(state: Any) -> Iterator[str]:
    """Names of the NVTX ranges around a launch, outermost first: started ones, then pushed ones."""
    domains = [state.domain_by_id(each) for each in state.domains()] if state is not None else []
    for domain in domains:
        yield from domain.start_end_ranges()
    for domain in domains:
        # The list of names is sorted; the index follows the stack.
        for index in range(len(domain.push_pop_ranges())):
            yield domain.push_pop_range(index).name()


def _number(action: Any, name: str) -> float | None:
    metric = action.metric_by_name(name)
    return _value(metric) if metric is not None else None


def _value(metric: Any) -> float | None:
    """None where there is no number: ``as_double`` gives 0 for that, and 0 is a count."""
    kinds = {getattr(metric, f"ValueKind_{kind}") for kind in _NUMBERS}
    if not metric.has_value() or metric.kind() not in kinds:
        return None
    return float(metric.as_double())
