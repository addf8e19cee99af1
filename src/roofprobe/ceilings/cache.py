"""Ceilings of a GPU or CPU, kept between runs under the conditions that they hold for.

A file a set of conditions, in ``$XDG_CACHE_HOME/roofprobe/ceilings`` or ``~/.cache``.

Format history (``VERSION``):
    1: first version.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from roofprobe.ceilings import nvml
from roofprobe.ceilings.roofs import Ceilings
from roofprobe.errors import RecordError
from roofprobe.record import Environment, MeasuredRoof, write_whole
from roofprobe.schema import json_schema, strict_json

SCHEMA: Final = "roofprobe.ceilings"
VERSION: Final = 1

Conditions = Mapping[str, Any]


def load_cached(environment: Environment) -> tuple[MeasuredRoof, ...]:
    """The ceilings that ``roofprobe ceilings`` measured on this device under today's conditions.

    Args:
        environment: Of a measurement on this machine.

    Returns:
        Nothing for another GPU, driver, PyTorch or clock setting than those that were measured,
        for another CPU, number of threads or PyTorch, and where the file is broken (``roofprobe
        ceilings`` says so).
    """
    conditions = conditions_of(environment)
    try:
        cached = load(conditions) if conditions is not None else None
    except RecordError:
        return ()
    return cached.roofs if cached is not None else ()


def conditions_of(environment: Environment) -> Conditions | None:
    """What ceilings depend on; None where that is not known, and so they are not kept."""
    if environment.device_kind == "cpu":
        threads = environment.precision.get("num_threads")
        if threads is None:
            return None
        return {"cpu": environment.device_name, "threads": threads, "torch": environment.torch}
    if environment.uuid is None:
        return None
    clocks = nvml.clock_settings(environment.uuid)
    return {
        "uuid": environment.uuid,
        "driver": environment.driver,
        "torch": environment.torch,
        "clocks": asdict(clocks) if clocks is not None else None,
    }


def path_of(conditions: Conditions) -> Path:
    """Where the ceilings for these conditions are kept."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of these folders says to ignore a relative path.
    folder = Path(root) if Path(root).is_absolute() else Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:12]
    name = str(conditions["cpu" if "cpu" in conditions else "uuid"])
    name = "".join(c if c.isalnum() or c == "-" else "_" for c in name)
    return folder / "roofprobe" / "ceilings" / f"{name}-{digest}.json"


def save(ceilings: Ceilings, conditions: Conditions) -> Path | None:
    """Keeps ceilings, unless they are worse than what is kept or than nothing.

    Rates that were measured beside somebody else's work are not kept, and half a set does not
    replace a whole one.

    Returns:
        The file, or None where nothing was written.

    Raises:
        RecordError: it cannot be written.
    """
    if ceilings.disturbed or not ceilings.roofs:
        return None
    if not ceilings.complete:
        try:
            before = load(conditions)
        except RecordError:
            before = None
        if before is not None and before.complete:
            return None
    return write_whole(path_of(conditions), to_json(ceilings, conditions).encode())


def load(conditions: Conditions) -> Ceilings | None:
    """The ceilings that are kept for these conditions; None where there are none.

    Raises:
        RecordError: the file is broken, or another version's.
    """
    path = path_of(conditions)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read ({error})") from None
    try:
        body = strict_json(text)
    except ValueError as error:
        raise RecordError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(body, dict) or (body.get("schema"), body.get("version")) != (SCHEMA, VERSION):
        raise RecordError(f"{path}: no ceilings file of version {VERSION}")
    if body.get("conditions") != json.loads(json.dumps(conditions)):
        raise RecordError(f"{path}: holds ceilings for other conditions than its name says")
    return _from_json(body.get("ceilings"), path)


def to_json(ceilings: Ceilings, conditions: Conditions | None) -> str:
    """Ceilings with their conditions as JSON text."""
    body = {
        "schema": SCHEMA,
        "version": VERSION,
        "conditions": conditions,
        "ceilings": asdict(ceilings),
    }
    return json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _from_json(body: Any, path: Path) -> Ceilings:
    import jsonschema  # takes a while to import

    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(json_schema(Ceilings)).iter_errors(body)
    )
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path) or "ceilings"
        raise RecordError(f"{path}: at {where}: {error.message[:200]}")
    roofs = tuple(MeasuredRoof(**roof) for roof in body["roofs"])
    for roof in roofs:
        if roof.value <= 0 or roof.spread < 0:
            raise RecordError(f"{path}: {roof.name} of {roof.value:g} is no rate")
    return Ceilings(**{**body, "roofs": roofs, "warnings": tuple(body.get("warnings", ()))})
