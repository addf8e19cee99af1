"""The architecture, read from the source text: which module may know which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/roofprobe"

# Lowest first. A module imports only modules above it in this list.
LAYERS = [
    "errors",
    "refusals",
    "units",
    "schema",
    "metrics",
    "device",
    "regions",
    "record",
    "ncu_import.numerals",
    "ncu_import.unit_names",
    "ncu_import.vocabulary",
    "ncu_import.launches",
    "ncu_import.rows",
    "ncu_import.ranks",
    "ncu_import.messages",
    "ncu_import.source",
    "ncu_import.csv_log",
    "ncu_import.page_text",
    "ncu_import.damage",
    "ncu_import.transposed",
    "ncu_import.report_file",
    "ncu_import.reader",
    "ncu_import.merge",
    "ncu_import.totals",
    "ncu_import.calibration",
    "ncu_import.imported",
    "ncu_import",
    "_location",
    "counters",
    "counters.external",
    "counters.cupti",
    "counters.recorded",
    "counters.analytic",
    "counters.nvml",
    "counters.gpm",
    "timing",
    "activity",
    "layers",
    "kernel_names",
    "breakdown",
    "coverage",
    "environment",
    "ceilings.roofs",
    "ceilings.bench",
    "ceilings.nvml",
    "ceilings.cpu",
    "ceilings.gemm",
    "ceilings.kernels",
    "ceilings.fma",
    "ceilings.memory",
    "ceilings.gpu",
    "ceilings.cache",
    "ceilings",
    "eager",
    "modelled",
    "probe",
    "ncu_run",
    "kernel_counters",
    "verify",
    "crosscheck",
    "derive",
    "witness",
    "roofline",
    "judge",
    "parts",
    "kernel_parts",
    "part_tables",
    "plot",
    "report",
    "page.chart",
    "page.layered",
    "page",
    "compare.change",
    "compare.quantities",
    "compare.setups",
    "compare.findings",
    "compare.comparison",
    "compare.gates",
    "compare",
    "doctor.facts",
    "doctor.findings",
    "doctor.selftest",
    "doctor.child",
    "doctor.gather",
    "doctor.state",
    "doctor.software",
    "doctor.gpus",
    "doctor.others",
    "doctor.judgement",
    "doctor.report",
    "doctor",
    "cli",
    "imagenet",
    "train",
]


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield name.removesuffix(".__init__"), path


def imported(path: Path) -> set[str]:
    """roofprobe modules that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("roofprobe"):
            base = node.module.removeprefix("roofprobe").lstrip(".")
            known = {name for name, _ in modules()}
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                found.add(inner if inner in known or inner == "_native" else base)
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("roofprobe.")
                for alias in node.names
                if alias.name.startswith("roofprobe.")
            }
    return found


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_imports_point_one_way(name, path):
    if name in ("__init__", "__main__"):
        return  # the front door names everything, lazily
    layer = "cli" if name.startswith("cli") else name
    rank = LAYERS.index(layer)
    for other in imported(path) - {"_native"}:
        target = "cli" if other.startswith("cli") else other
        assert LAYERS.index(target) < rank or target == layer, f"{name} imports {other}"


def test_only_the_cupti_backend_imports_the_extension():
    users = {name for name, path in modules() if "_native" in imported(path)}
    assert users == {"counters.cupti"}


def test_only_the_bindings_know_python():
    users = [p.name for p in (ROOT / "csrc").iterdir() if "pybind11" in p.read_text()]
    assert users == ["bindings.cpp"]


def test_cupti_python_and_nvml_have_one_home_each():
    def users(package: str) -> set[str]:
        return {
            name
            for name, path in modules()
            for node in ast.walk(ast.parse(path.read_text()))
            if (isinstance(node, ast.ImportFrom) and node.module == package and not node.level)
            or (isinstance(node, ast.Import) and package in [a.name for a in node.names])
        }

    assert users("pynvml") == {"environment", "ceilings.nvml", "counters.nvml"}
    assert users("cupti") == {"activity"}


def test_import_loads_nothing_heavy():
    code = (
        "import sys, roofprobe;"
        "print([m for m in ('torch', 'numpy', 'matplotlib', 'roofprobe._native') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist():
    import roofprobe

    for name in roofprobe.__all__:
        assert getattr(roofprobe, name) is not None
    with pytest.raises(AttributeError, match="no attribute"):
        roofprobe.nonsense  # noqa: B018
