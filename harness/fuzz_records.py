"""Does any damaged file of ours crash its loader, or come back as something that it was not?

    python harness/fuzz_records.py {record|ceilings|counters} SECONDS [--seed N]
    python harness/fuzz_records.py record --minimise FILE...

``record`` is a run file: read, derived from, printed and written again. ``ceilings`` is the file
that ``roofprobe ceilings`` keeps. ``counters`` is a file of counter data: damaged as a file, in its
header, and in its sealed images below an intact container; whatever is read must evaluate to the
recorded values. One input of each outcome goes to build/fuzz-TARGET, and failures, with their
traceback, make the exit code 1. ``--minimise`` makes inputs smaller, in place, as long as they end
alike.

No input has a checksum of its own making: libcupti trusts an image that somebody forged.
"""

import argparse
import json
import lzma
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fuzzing import FAILED, Target, attempt, damaged, fuzz, minimised, set_limits

from roofprobe import report
from roofprobe.ceilings import cache
from roofprobe.ceilings.roofs import Ceilings
from roofprobe.cli.ceilings import text as ceilings_text
from roofprobe.counters.recorded import CounterFile
from roofprobe.derive import figures
from roofprobe.errors import RecordError
from roofprobe.record import Environment, Measurement

ROOT: Final = Path(__file__).parents[1]
DATA: Final = ROOT / "tests/data"

# A file's GPU and conditions, as the cache names it.
CONDITIONS: Final = {
    "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "driver": "580.159",
    "torch": "2.11.0+cu130",
    "clocks": None,
}
_DEEP: Final = "[" * 2000 + "]" * 2000
# Texts in place of a JSON value.
TEXTS: Final = (
    *("null", "true", "0", "-0.0", "-1", "1.5", "1e-320", "1e308", "1e999", "-1e999", "NaN"),
    *("Infinity", "9" * 400, "9" * 5000, '""', '"n/a"', r'"\ud800"', r'"\u0000"', r'"\u001b[2J"'),
    *('"' + "x" * 5000 + '"', "[]", "[[]]", "[null]", "{}", '{"a": 1}', '{"": null}', _DEEP),
    *('"cupti"', '"analytic"', '"gpm"', '"flop"', '"dram"', '"[red]"', '"\N{SNOWMAN}"'),
)


class WrongError(Exception):
    """An input was read as something that it is not."""


# JSON, by its structure


class _Raw:
    """JSON text to be written as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


def _dump(value: Any) -> str:
    """JSON text; ``_Raw`` and repeated keys (pairs instead of a mapping) included."""
    if isinstance(value, _Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_dump, value)) + "]"
    return json.dumps(value)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    found: list[tuple[Any, Any]] = []
    keys = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in keys:
        found.append((value, key))
        if isinstance(item, dict | list):
            found += _places(item)
    return found


def _reshape(body: Any, source: random.Random) -> None:
    """Replaces, removes, repeats or moves one value of a body of JSON."""
    places = _places(body)
    if not places:
        return
    container, key = source.choice(places)
    match source.randrange(6):
        case 0 | 1 | 2:
            container[key] = _Raw(source.choice(TEXTS))
        case 3:
            del container[key]
        case 4:
            other, name = source.choice(places)
            value = json.loads(_dump_plain(other[name])) if name in _keys(other) else None
            container[key] = value
        case _ if isinstance(container, dict):
            container[source.choice(("surprise", "version", "", key + "x"))] = container.pop(key)
        case _:
            container.insert(key, container[key])


def _keys(container: Any) -> Any:
    return container if isinstance(container, dict) else range(len(container))


def _dump_plain(value: Any) -> str:
    text = _dump(value)
    return text if len(text) < 2000 else "null"


def _reshaped(text: str, source: random.Random) -> bytes:
    body = json.loads(text)
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        try:
            _reshape(body, source)
        except ValueError:  # what was copied is no JSON that Python reads; it stays
            continue
    return _dump(body).encode("utf-8", "surrogatepass")


def _json_input(seeds: Sequence[str], source: random.Random) -> bytes:
    text = source.choice(seeds)
    data = _reshaped(text, source) if source.random() < 0.7 else text.encode()
    return damaged(data, source) if source.random() < 0.4 else data


# Targets


def _record(_folder: Path) -> Target:
    paths = [*DATA.glob("*.json"), *DATA.glob("runs/*/run.json"), *DATA.glob("ncu-*/*.json")]
    seeds = [path.read_text(encoding="utf-8") for path in sorted(paths)]
    return Target("record", lambda source: _json_input(seeds, source), _read_record)


def _read_record(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:  # as ``Measurement.load`` has it
        raise RecordError(f"cannot be read ({error})") from None
    record = Measurement.from_json(text)
    if Measurement.from_json(record.to_json()) != record:
        raise WrongError("a record that was read is another one once written")
    found = figures(record)
    for figure in (found.flop_total, found.step_time, *found.byte.values()):
        if figure.value is not None and not (math.isfinite(figure.value) and figure.value >= 0):
            raise WrongError(f"a figure of {figure.value}")
    report.text(record).encode()


def _ceilings(folder: Path) -> Target:
    kept = json.loads((ROOT / "harness/results/h200/ceilings.json").read_text(encoding="utf-8"))
    roofs = Measurement.from_json(
        (ROOT / "harness/results/h200/resnet18-b256/run.json").read_text(encoding="utf-8")
    ).roofs
    small = Ceilings(roofs[:2], left_out={"L2 read": "too small"}, warnings=("warm",), created="x")
    seeds = [
        json.dumps({**kept, "conditions": CONDITIONS}),
        cache.to_json(small, CONDITIONS),
    ]
    os.environ["XDG_CACHE_HOME"] = str(folder)
    path = cache.path_of(CONDITIONS)
    path.parent.mkdir(parents=True)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        _read_ceilings()

    for seed in seeds:  # one that is refused shows at once
        read(seed.encode())
    return Target("ceilings", lambda source: _json_input(seeds, source), read)


def _read_ceilings() -> None:
    found = cache.load(CONDITIONS)
    assert found is not None, "the file is there"
    for roof in found.roofs:
        numbers = [roof.value, roof.spread, roof.clock or 1.0, roof.sustained or 1.0]
        if not all(map(math.isfinite, numbers)) or roof.value <= 0:
            raise WrongError(f"a roof of {asdict(roof)}")
    cache.to_json(found, CONDITIONS)
    ceilings_text(found, Environment("NVIDIA H200", "cuda", chip="GH100", sm_count=132)).encode()


def _counters(folder: Path) -> Target:
    path = DATA / "gemm4096-bf16.counters"
    whole = path.read_bytes()
    head, _, _ = whole.partition(b"\n")
    recording = CounterFile.load(path)
    [image] = recording.images
    [values] = [counts.values for counts in recording.evaluate()]

    def draw(source: random.Random) -> bytes:
        match source.randrange(4):
            case 0:  # the file as it lies on disk
                return damaged(whole, source)
            case 1:  # its header
                changed = _reshaped(head.decode(), source)
                return changed.replace(b"\n", b" ") + whole[len(head) :]
            case 2:  # an image below an intact container
                return _sealed(head, damaged(image[:2000], source) + image[2000:])
            case _:  # its first bytes, where the seal is, and its length
                front = bytearray(image[:40])
                front[source.randrange(40)] = source.randrange(256)
                cut = source.choice((len(image), len(image), 41, 40, source.randrange(len(image))))
                return _sealed(head, (bytes(front) + image[40:])[:cut])

    def read(data: bytes) -> None:
        file = folder / "input.counters"
        file.write_bytes(data)
        loaded = CounterFile.load(file)
        for counts in loaded.evaluate():
            for name, value in counts.values.items():
                # A name that the damage made is one that was not counted.
                if value is not None and value != values.get(name, value):
                    raise WrongError(f"{name} is {value}, and {values[name]} was recorded")

    read(whole)
    return Target("counters", draw, read)


def _sealed(head: bytes, image: bytes) -> bytes:
    body = {**json.loads(head), "sizes": [len(image)]}
    return json.dumps(body).encode() + b"\n" + lzma.compress(image, preset=0)


# By name, each made with a folder that it may write to.
TARGETS: Final[dict[str, Callable[[Path], Target]]] = {
    "record": _record,
    "ceilings": _ceilings,
    "counters": _counters,
}


def main() -> int:
    """Runs, prints the counts, and gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("seconds", nargs="?", type=float, metavar="SECONDS")
    parser.add_argument("--minimise", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if (arguments.seconds is None) == (arguments.minimise is None):
        parser.error("give either SECONDS or --minimise FILE")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        target = TARGETS[arguments.target](Path(folder))
        set_limits()
        if arguments.minimise is not None:
            return _minimise(target, arguments.minimise)
        found = fuzz(target, arguments.seconds, arguments.seed, Path(f"build/fuzz-{target.name}"))
    print(
        f"{target.name}: {arguments.seconds:g} s, seed {arguments.seed}: "
        + ", ".join(f"{count} {name}" for name, count in found.items())
    )
    return 1 if found[FAILED] else 0


def _minimise(target: Target, paths: Sequence[Path]) -> int:
    for path in paths:
        path.write_bytes(minimised(target, path.read_bytes()))
        outcome = attempt(target, path.read_bytes())
        print(f"{path}: {path.stat().st_size} bytes, {outcome.kind}: {outcome.place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
