"""docs/reliability.md says what a user sees; here it is held against the tests and the source."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reliability.md"
ROW = re.compile(r"^\| (?P<fault>.+?) \| (?P<how>.+?) \| (?P<seen>.+?) \| `(?P<test>[^`|]+)` \|$")
NOT_YET_RUN = "(GPU, not yet run)"


def rows():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| fault | how")]


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of a file's tests, those of a class behind its name."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{method.name}"
                for method in node.body
                if isinstance(method, ast.FunctionDef)
            }
    return frozenset(found)


@cache
def said() -> str:
    """Every text in the source; where it is put together, the parts in a row."""
    texts = []
    for path in sorted((ROOT / "src/roofprobe").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    texts += [path.read_text() for path in sorted((ROOT / "csrc").glob("*.cpp"))]
    return "\n".join(texts)


def test_there_are_rows():
    assert len(rows()) >= 35
    assert len({ROW.match(row)["test"] for row in rows()}) >= 35


@pytest.mark.parametrize("row", rows())
def test_a_row_names_a_test_that_exists(row):
    found = ROW.match(row)
    assert found is not None, f"not a row of the table: {row}"
    path, _, name = found["test"].partition("::")
    assert name.rpartition("::")[2].startswith("test_")
    assert name in names_in(path)


@pytest.mark.parametrize("row", [row for row in rows() if '"' in ROW.match(row)["seen"]])
def test_a_quoted_sentence_is_the_codes_own(row):
    for sentence in re.findall(r'"([^"]+)"', ROW.match(row)["seen"]):
        for part in filter(None, re.split(r"\s*…\s*", sentence)):
            assert len(part) < 2 or part in said() or system_says(part), part


def system_says(part: str) -> bool:
    return part in (": File too large", "No space left on device")


def test_rows_on_a_gpu_say_whether_they_have_run():
    for row in rows():
        found = ROW.match(row)
        run = [mark for mark in ("(H200)", NOT_YET_RUN) if found["seen"].endswith(mark)]
        assert bool(run) == found["test"].startswith("tests/gpu/"), row
